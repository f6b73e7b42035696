"""How times are taken on a GPU: replays of a graph of calls, timed by events; and what a measurement says of itself."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from costmodel.errors import MeasurementError

REPLAYS = 40
LONG_US = 4000
"""Of a replay; fewer of those do."""


def need_torch() -> Any:
    """PyTorch with CUDA. Raises `MeasurementError` where it is not."""
    try:
        import torch
    except ImportError as error:
        raise MeasurementError(
            "measuring needs PyTorch with CUDA as peer and for data; pip install torch"
        ) from error
    if not torch.cuda.is_available():
        raise MeasurementError(f"PyTorch {torch.__version__} cannot use the GPU; install a build with CUDA")
    return torch


def time_calls(
    calls: Sequence[Callable[[], Any]], torch: Any, *, replays: int = REPLAYS, least_us: float = 2000.0
) -> list[float]:
    """Microseconds of GPU time of one call, for each of many replays of a graph of the calls in turn.

    A replay lasts at least ``least_us``, or 50 rounds.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for call in calls:
            call()
        end.record()
        torch.cuda.synchronize()
        # A replay long enough that the graph's own start does not matter.
        estimate = max(begin.elapsed_time(end) * 1e3 / len(calls), 1.0)
        rounds = max(1, min(50, math.ceil(least_us / (estimate * len(calls)))))
        replays = replays if estimate * len(calls) < LONG_US else replays // 2
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(rounds):
                for call in calls:
                    call()
        times = []
        for number in range(replays + 3):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if number >= 3:
                times.append(begin.elapsed_time(end) * 1e3 / (rounds * len(calls)))
    return times


def commit() -> str:
    """The commit measured, with a plus sign when other files differ from it; "unknown" outside a checkout."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
        ).stdout

    try:
        # Rows that this measurement has written already are no change.
        rows = ":(top,exclude)costmodel/measurements"
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", rows).strip()
        return git("rev-parse", "--short", "HEAD").strip() + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
