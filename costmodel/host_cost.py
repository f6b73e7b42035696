"""What a prepared call costs the host, measured beside one elementwise operation of PyTorch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from costmodel import measure, render
from costmodel.measurements import Row


def rows(torch: Any, stamp: tuple[str, str]) -> Iterator[tuple[Row, float]]:
    """Host time of a prepared call, beside one PyTorch elementwise operation on the same tensors."""
    case = measure.Case(1024, 1024, "plain", "fp16")
    data = measure._Data(
        torch.randn((case.batch, case.channels, case.length), device="cuda").half(), None, None
    )
    provider = measure._providers(case, torch)[0]
    call, y = provider.prepare(data)
    call()
    error = measure._error(data, measure._filters(case, torch), y, case, torch)

    def elementwise() -> None:
        torch.mul(data.u, 2.0, out=y)

    for name, function in (("ours:host-call", call), ("torch:host-elementwise", elementwise)):
        times = sorted(host_times(function, torch))
        middle, low, high = (times[int(len(times) * q)] for q in (0.5, 0.2, 0.8))
        note = "host time of one call with out=, not GPU time"
        if name.startswith("torch"):
            note += "; torch.mul(u, 2, out=y)"
        yield (
            Row(
                "fftconv",
                case.name,
                "fp16",
                name,
                middle,
                low,
                high,
                len(times),
                case.bytes_min(2),
                case.flops,
                error if name.startswith("ours") else 0.0,
                *stamp,
                note,
            ),
            provider.bound,
        )
        render.note(f"{name}: {middle:.1f} us on the host")


def host_times(function: Callable[[], Any], torch: Any, *, rounds: int = 100, calls: int = 20) -> list[float]:
    """Microseconds that the host takes for one call, for each of many rounds of calls."""
    function()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - begin) * 1e6 / calls)
    return times
