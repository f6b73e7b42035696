"""Measure long convolutions, short filters over long signals, and spectra with zeros: ``costmodel measure --op long``.

Rows go into the convolutions' file, each case's providers in one run. Notes say what a call takes of memory beside its
input, output and prepared spectrum: ours as it allocates it, PyTorch's at its peak. How times are taken: `measure`.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import monarch
from costmodel import measurements, render
from costmodel.errors import MeasurementError
from costmodel.measure import FP32_BOUND
from costmodel.measurements import Row
from costmodel.replays import commit, need_torch, time_calls
from monarch import Plan, SparsityPattern

SHAPES = {
    65536: (8, 768),
    131072: (8, 384),
    262144: (8, 192),
    524288: (8, 96),
    1048576: (8, 48),
    2097152: (8, 32),
    4194304: (8, 16),
    16777216: (2, 4),
}
"""B and H by N, the published ones and two more."""
FIRST = (131072, 1048576, 4194304, 262144, 2097152)
"""The lengths that are measured first."""
ALONE = (4194304, 1048576)
"""Lengths of one sequence alone."""
LADDER: dict[int, tuple[int, ...]] = {
    50: (8, 0, 0, 0, 0),
    75: (8, 8, 0, 0, 0),
    79: (8, 8, 2, 0, 0),
    84: (8, 10, 2, 0, 0),
    91: (10, 12, 0, 0, 0),
}
"""Rows of zeros along each axis of 2M points as 16 x 16 x 16 x 16 x 32, nearest to the published sparsities."""
LADDER_PLAN = Plan(2097152, (16, 16, 16, 16, 32))
PARTIAL_SAMPLES = 1048576
PARTIAL_TAPS = (256, 1024, 2048, 8192, 32768, 262144, 1048576)
"""To 12288 taps in tiles too."""
WITHIN_ROWS: dict[str, tuple[int, ...]] = {"75-within": (0, 0, 12, 0, 0), "50-low": (0, 0, 0, 0, 16)}
"""The same along the first axis of the rows' kernel, and the high frequencies: along its last."""
FLOATS = (131072, 1048576, 4194304, 65536, 16777216)
"""Lengths in fp32."""
REPLAYS = 12


@dataclass(frozen=True)
class Long:
    """One case: shape, mode, filter and zeros."""

    n: int
    length: int
    batch: int
    channels: int
    variant: str = "plain"
    taps: int = 0
    """0: as many as samples."""
    zeros: tuple[int, ...] = ()
    dtype: str = "fp16"

    @property
    def mode(self) -> str:
        """The convolution's mode."""
        return "causal" if self.variant.startswith(("causal", "partial")) else "circular"

    @property
    def name(self) -> str:
        """The ``case`` column."""
        values: dict[str, int | str] = {"B": self.batch, "H": self.channels, "N": self.n, "L": self.length}
        values["variant"] = self.variant
        return measurements.format_case("fftconv", values)

    def bytes_min(self, item: int) -> int:
        """Input, output and the filter's spectrum, once each."""
        return 2 * self.batch * self.channels * self.length * item + 2 * item * self.channels * self.n

    @property
    def flops(self) -> int:
        """As `measure.Case.flops`, of the whole transform."""
        return round(self.batch * self.channels * (5 * self.n * math.log2(self.n) + 3 * self.n))


@dataclass(frozen=True)
class _Way:
    """A provider: its name, dtype, call and result, note and bound."""

    name: str
    dtype: str
    call: Callable[[], Any]
    y: Any
    note: str
    bound: float


def cases(*, quick: bool = False) -> Iterator[Long]:
    """What is measured, the cases that say most first."""
    for n in (131072, 1048576) if quick else FIRST:
        yield Long(n, n, *SHAPES[n])
    yield _partial(2048)
    if quick:
        return
    for percent in (75, 91):
        yield Long(2097152, 2097152, *SHAPES[2097152], f"sparse-{percent}", zeros=LADDER[percent])
    for n in ALONE:
        yield Long(n, n, 1, 1)
    for n in (131072, 1048576, 4194304):
        yield Long(n, n // 2, *SHAPES[n], "causal")
    for percent in (50, 79, 84):
        yield Long(2097152, 2097152, *SHAPES[2097152], f"sparse-{percent}", zeros=LADDER[percent])
    for taps in PARTIAL_TAPS:
        if taps != 2048:
            yield _partial(taps)
    for n in SHAPES:
        if n not in (*FIRST, 65536):
            yield Long(n, n, *SHAPES[n])
    for n in FLOATS:
        yield Long(n, n, *SHAPES[n], dtype="fp32")
    for name, zeros in WITHIN_ROWS.items():
        yield Long(2097152, 2097152, *SHAPES[2097152], f"sparse-{name}", zeros=zeros)


@cache
def _pattern(zeros: tuple[int, ...]) -> SparsityPattern:
    return SparsityPattern.middles(LADDER_PLAN, zeros)


def _partial(taps: int) -> Long:
    """A short filter over a long signal, on the shortest transform that holds both."""
    need = PARTIAL_SAMPLES + taps - 1
    n = min(n for n in _lengths() if n >= need)
    return Long(n, PARTIAL_SAMPLES, *SHAPES[PARTIAL_SAMPLES], f"partial-{taps}", taps=taps)


def _lengths() -> list[int]:
    from kernels_numba.long_plans import default_long_plans

    return sorted(default_long_plans())


def run(*, quick: bool = False) -> Iterator[tuple[Row, float]]:
    """All rows with their bounds, as they are measured.

    Raises:
        MeasurementError: PyTorch with CUDA is not there, or a result is wrong.
    """
    torch = need_torch()
    stamp = (datetime.date.today().isoformat(), commit())
    for case in cases(quick=quick):
        yield from rows_of(case, torch, stamp)


def rows_of(case: Long, torch: Any, stamp: tuple[str, str]) -> Iterator[tuple[Row, float]]:
    """The rows of one case with their bounds; ``stamp`` is the date and the commit."""
    said = []
    for way, error in ways_of(case, torch):
        row = _row(case, way, error, torch, stamp)
        said.append(f"{row.provider} {row.median_us:.0f} us, error {row.rel_err:.1e}")
        yield row, way.bound
        torch.cuda.empty_cache()
    render.note(f"{case.name}: {'; '.join(said)}")


def ways_of(case: Long, torch: Any) -> Iterator[tuple[_Way, float]]:
    """Every way to compute a case on data of its own, and its error after one call."""
    generator = torch.Generator(device="cuda").manual_seed(case.n)
    shape = (case.batch, case.channels, case.length)
    u = torch.randn(shape, device="cuda", generator=generator)
    u = u if case.dtype == "fp32" else u.half()
    taps = case.taps or case.length
    k = torch.randn((case.channels, taps), device="cuda", generator=generator, dtype=torch.float64)
    k /= math.sqrt(taps)
    for way in _ways(case, u, k, torch):
        way.call()
        yield way, _error(case, way.y, u, k, torch)


def _ways(case: Long, u: Any, k: Any, torch: Any) -> Iterator[_Way]:
    import reference
    from kernels_numba import FFTConv, FFTConvStream, prepare_filter
    from kernels_numba.windows import tiles_of

    y = torch.full_like(u, math.nan)
    if case.variant.startswith("partial") and tiles_of(case.taps):
        stream = FFTConvStream(k, (case.batch, case.channels))

        def tiled() -> None:
            stream.reset()
            stream(u, out=y)

        note = f"tile={stream.tile}; extra={stream.workspace} bytes"
        yield _Way("ours", "fp16", tiled, y, note, reference.fftconv_bound(3, "fp16"))
        y = torch.full_like(u, math.nan)
    plan = LADDER_PLAN if case.zeros else None
    pattern = _pattern(case.zeros) if case.zeros else None
    spectrum = prepare_filter(
        k, length=case.length, mode=case.mode, dtype=case.dtype, plan=plan, pattern=pattern
    )
    convolve: Any = FFTConv(spectrum, batch=case.batch)
    text = monarch.format_factors(spectrum.plan.factors)
    rooms = (
        2 * convolve.groups.bytes
        if 2 * convolve.groups.bytes <= convolve.workspace
        else convolve.groups.bytes
    )
    note = f"plan={text}; extra={rooms} bytes"
    if pattern is not None:
        note += f"; sparsity={pattern.sparsity:.4f}; rows={len(spectrum.rows) or convolve.split.rows}"
    name = f"ours:{text}" if case.variant.startswith("partial") else "ours"
    whole = case.dtype == "fp32"
    bound = reference.fft32_bound(case.n) if whole else reference.fftconv_bound(spectrum.plan.order, "fp16")
    yield _Way(name, case.dtype, lambda: convolve(u, out=y), y, note, bound)
    if case.zeros or (whole and case.n != 65536):  # PyTorch's times in fp32 are those of the fp16 cases
        return
    x = u.float()
    kf = torch.fft.rfft(k.float(), n=case.n)
    z = torch.full_like(x, math.nan)

    def peer() -> None:
        z.copy_(torch.fft.irfft(torch.fft.rfft(x, n=case.n) * kf, n=case.n)[..., : case.length])

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    peer()
    extra = torch.cuda.max_memory_allocated() - before
    note = f"irfft(rfft(u) kf), kf prepared; extra={extra} bytes"
    yield _Way("torch", "fp32", peer, z, note, FP32_BOUND)


def _row(case: Long, way: _Way, error: float, torch: Any, stamp: tuple[str, str]) -> Row:
    if not error <= way.bound:  # true for NaN as well
        raise MeasurementError(
            f"{way.name} {case.name}: error {error:.3g}, bound {way.bound:.3g}; its row is not written"
        )
    times = time_calls([way.call], torch, replays=REPLAYS)
    deciles = statistics.quantiles(times, n=10)
    item = 2 if way.dtype == "fp16" else 4
    return Row(
        "fftconv",
        case.name,
        way.dtype,
        way.name,
        statistics.median(times),
        deciles[1],
        deciles[7],
        len(times),
        case.bytes_min(item),
        case.flops,
        error,
        *stamp,
        way.note,
    )


def _error(case: Long, y: Any, u: Any, k: Any, torch: Any) -> float:
    """As `measure._error`, two sequences at a time, with the case's zeros."""
    mask = None
    if case.zeros:
        pattern = _pattern(case.zeros)
        mask = torch.zeros(case.n, dtype=torch.bool, device="cuda")
        slots = torch.from_numpy(LADDER_PLAN.frequencies().reshape(-1)).cuda()
        mask[slots] = torch.from_numpy(pattern.kept.copy()).cuda()
    wrong = size = 0.0
    for h in range(0, case.channels, max(1, 2**22 // case.n)):
        part = slice(h, h + max(1, 2**22 // case.n))
        bins = torch.fft.fft(k[part], n=case.n)
        bins = bins if mask is None else bins * mask
        taps = k[part].norm(dim=-1)
        for b in range(case.batch):
            x = u[b, part].double()
            exact = torch.fft.ifft(torch.fft.fft(x, n=case.n) * bins).real[..., : case.length]
            wrong += (y[b, part].double() - exact).square().sum().item()
            size += torch.maximum(x.norm(dim=-1) * taps, exact.norm(dim=-1)).square().sum().item()
    return math.sqrt(wrong / size)
