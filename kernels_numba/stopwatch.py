"""GPU time of launches, by a captured graph between two events, with nothing but the driver.

The host takes microseconds for a launch, so kernels that follow each other are captured in a graph and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kernels_numba.device import device
from kernels_numba.launch import LaunchError, current_device

REPLAY_US = 1500.0
"""What a replay takes at least, so that the graph's own start does not matter."""
MOST_ROUNDS = 200
WARM_UP = 3


def _call(name: str, *arguments: Any) -> Any:
    from cuda.bindings import driver

    status, *found = getattr(driver, name)(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"timing a kernel: {name} failed: {status.name}")
    return found[0] if found else None


def graph_times(
    calls: Sequence[Callable[[int], None]], index: int, *, replays: int = 20, replay_us: float = REPLAY_US
) -> list[float]:
    """Microseconds of GPU time of one call, for each of ``replays`` replays of a graph of the calls in turn.

    A call gets a stream's handle and launches on it. Give several calls with data of their own when one's data would
    stay in a cache.

    Raises:
        LaunchError: the driver refused something, or a kernel failed while it ran.
    """
    from cuda.bindings import driver

    with current_device(device(index)):
        stream = _call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        begin, end = (_call("cuEventCreate", 0) for _ in range(2))
        kept: list[tuple[str, Any]] = [
            ("cuEventDestroy", begin),
            ("cuEventDestroy", end),
            ("cuStreamDestroy", stream),
        ]
        try:

            def once(run: Callable[[], Any]) -> float:
                _call("cuEventRecord", begin, stream)
                run()
                _call("cuEventRecord", end, stream)
                _call("cuEventSynchronize", end)
                return float(_call("cuEventElapsedTime", begin, end)) * 1e3

            handle = int(stream)

            def all_calls() -> None:
                for call in calls:
                    call(handle)

            once(all_calls)
            estimate = max(once(all_calls), 1.0)
            rounds = max(1, min(MOST_ROUNDS, math.ceil(replay_us / estimate)))
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
            _call("cuStreamBeginCapture", stream, mode)
            try:
                for _ in range(rounds):
                    all_calls()
            finally:
                graph = _call("cuStreamEndCapture", stream)
            kept.insert(0, ("cuGraphDestroy", graph))
            executable = _call("cuGraphInstantiate", graph, 0)
            kept.insert(0, ("cuGraphExecDestroy", executable))
            times = []
            for number in range(replays + WARM_UP):
                elapsed = once(lambda: _call("cuGraphLaunch", executable, stream))
                if number >= WARM_UP:
                    times.append(elapsed / (rounds * len(calls)))
            return times
        finally:
            for name, what in kept:
                getattr(driver, name)(what)
