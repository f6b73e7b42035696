"""Measure what preparing a filter takes beside `torch.fft.rfft`: ``costmodel measure --op filters``.

768 filters of as many fp32 taps as the transform has points, on the GPU, to spectra of fp16 and fp32 in the order that
the convolution's kernel reads; PyTorch's in fp32, in the natural order. Rows are the convolution's, of the variant
"filter" with B = 1; ``bytes_min`` is the taps and the spectrum once. Errors are of the spectrum's numbers against
float64, the largest of all channels; what PyTorch's has to hold is what ours has.

A training step transforms its filter and convolves at once: rows of the variant "from-taps" are of both, call after
call, circular and (L = N / 2) causal, beside PyTorch, which transforms the filter too; the note has what the
convolution alone takes in the same run. Short filters are transformed by the convolution's kernel; of others the
transform begins with what it reads no longer in the cache, and neither launch overlaps with one of its kind.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from costmodel import measure, measurements, render, replays
from costmodel.measurements import Row

LENGTHS = (256, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384, 32768, 49152, 65536)
FIRST_FP32 = 4096
"""Shorter spectra of fp32 are made by the same launches as this one's."""
LONGEST_CALL = 8192
BOUNDS = {"fp16": 2.0**-11, "fp32": 2.0**-22}
"""Of halves their rounding; of fp32 two roundings of numbers that were computed in float64, or an fp32 FFT."""


def run(*, quick: bool = False) -> Iterator[tuple[Row, float]]:
    """All rows with their bounds, as they are measured."""
    torch = replays.need_torch()
    import datetime

    stamp = (datetime.date.today().isoformat(), replays.commit())
    for n in LENGTHS[-1:] if quick else LENGTHS:
        for dtype in ("fp16", "fp32"):
            if dtype == "fp16" or FIRST_FP32 <= n <= _longest_fp32():
                yield _ours(n, dtype, torch, stamp)
        yield _torch(n, torch, stamp)
        if n <= LONGEST_CALL:
            yield from _call(measure.Case(n, n, "from-taps", "fp16"), torch, stamp)
            if n > LENGTHS[0]:
                yield from _call(measure.Case(n, n // 2, "from-taps", "fp16"), torch, stamp)
        torch.cuda.empty_cache()


def _call(case: measure.Case, torch: Any, stamp: tuple[str, str]) -> Iterator[tuple[Row, float]]:
    """A filter's transform and its convolution, by this project and by PyTorch."""
    import reference
    from kernels_numba import FFTConv, prepare_filter
    from kernels_numba.call_filter import Untransformed, prepare_for_call

    taps, n, length = measure._filters(case, torch).float(), case.n, case.length
    mode = "circular" if length == n else "causal"
    how: dict[str, Any] = {"length": length, "mode": mode, "dtype": case.dtype, "scaled": True}
    data = measure.input_sets(case, 2, torch)
    outputs = {id(d): torch.empty_like(d.u) for d in data}  # where arrays lie moves times by 5 to 10 %

    def both(data: Any) -> tuple[Callable[[], Any], Any]:
        k, y = taps.clone(), outputs[id(data)].fill_(math.nan)
        return lambda: FFTConv(prepare_for_call(k, **how), batch=case.batch)(data.u, out=y), y

    def alone(data: Any) -> tuple[Callable[[], Any], Any]:
        convolve = FFTConv(prepare_filter(taps, **how), batch=case.batch)
        y = outputs[id(data)].fill_(math.nan)
        return lambda: convolve(data.u, out=y), y

    def by_torch(data: Any) -> tuple[Callable[[], Any], Any]:
        k, u, y = taps.clone(), data.u.float(), torch.full_like(data.u, math.nan, dtype=torch.float32)
        whole = partial(torch.fft.rfft, n=n)
        return lambda: y.copy_(torch.fft.irfft(whole(u) * whole(k), n=n)[..., :length]), y

    def measured(call: Any, note: str = "") -> tuple[Row, float]:
        return measure._measure(
            case, measure._Provider("ours", case.dtype, call, note, bound), torch, stamp, data
        )

    plan = prepare_filter(taps, **how).plan
    bound = reference.fftconv_bound(plan.order, case.dtype)
    before, (row, _), after = measured(alone), measured(both), measured(alone)
    others = " and ".join(f"{x.median_us:.2f}" for x, _ in (before, after))
    inside = isinstance(prepare_for_call(taps, **how), Untransformed)
    note = "one kernel" if inside else "prepare_filter and the convolution"
    note += f"; the convolution alone, on the same arrays before and after, took {others} us"
    note += f"; plan={'x'.join(map(str, plan.factors))}"
    note += "" if plan.packing == "pair" else f"; packing={plan.packing}"
    yield replace(row, note=f"{note}{row.note}"), bound
    call = measure._Provider("torch", "fp32", by_torch, "irfft(rfft(u) rfft(k))", measure.FP32_BOUND)
    yield measure._measure(case, call, torch, stamp)


def _longest_fp32() -> int:
    from kernels_numba.families import default_factors

    return max(default_factors("fp32"))


def _taps(n: int, torch: Any) -> list[Any]:
    """Sets of filters, together more than the L2 cache twice holds."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(1, min(measure.MAX_SETS, math.ceil(2 * cache / (8 * measure.CHANNELS * n))))
    generator = torch.Generator(device="cuda").manual_seed(n)
    shape = (measure.CHANNELS, n)
    return [torch.randn(shape, device="cuda", generator=generator) / math.sqrt(n) for _ in range(sets)]


def _ours(n: int, dtype: str, torch: Any, stamp: tuple[str, str]) -> tuple[Row, float]:
    from kernels_numba import prepare_filter

    filters = _taps(n, torch)
    spectrum = prepare_filter(filters[0], length=n, dtype=dtype, scaled=True)
    error = error_of(spectrum, filters[0], torch)
    calls = [partial(prepare_filter, k, length=n, dtype=dtype, scaled=True) for k in filters]
    times = replays.time_calls(calls, torch)
    packing = "" if spectrum.plan.packing == "pair" else f"; packing={spectrum.plan.packing}"
    name = "x".join(map(str, spectrum.plan.factors))
    note = (
        f"prepare_filter, {spectrum.words.nbytes // measure.CHANNELS} bytes a channel; plan={name}{packing}"
    )
    note += f"; {len(filters)} input sets"
    return _row(n, dtype, "ours", times, spectrum.words.nbytes, error, stamp, note), BOUNDS[dtype]


def _torch(n: int, torch: Any, stamp: tuple[str, str]) -> tuple[Row, float]:
    filters = _taps(n, torch)
    found, exact = torch.fft.rfft(filters[0]), torch.fft.rfft(filters[0].double())
    error = ((found - exact).norm(dim=1) / exact.norm(dim=1)).max().item()
    times = replays.time_calls([partial(torch.fft.rfft, k) for k in filters], torch)
    nbytes = found.nelement() * found.element_size()
    note = f"rfft(k); {len(filters)} input sets"
    return _row(n, "fp32", "torch", times, nbytes, error, stamp, note), measure.FP32_BOUND


def error_of(spectrum: Any, k: Any, torch: Any) -> float:
    """The largest relative error of a channel's spectrum, as the kernel reads it, against float64."""
    from kernels_numba import spectrum as making

    plan, dtype, n = spectrum.plan, spectrum.products, spectrum.plan.n
    layout = making._layout.__wrapped__(plan, spectrum.mode, spectrum.length, spectrum.taps, dtype)
    worst = 0.0
    order, phase = (torch.from_numpy(np.ascontiguousarray(x)).cuda() for x in (layout.order, layout.phase))
    for start in range(0, k.shape[0], 64):
        rows = slice(start, start + 64)
        bins = torch.fft.fft(k[rows].double(), n=n)
        exact = sum(bins[:, o] * p for o, p in zip(order, phase, strict=True))
        words = spectrum.words[rows]
        if dtype == "fp32":
            parts = words.view(torch.float32).view(words.shape[0], -1, 2)
        else:
            kind = torch.float16 if dtype == "fp16" else torch.bfloat16
            tiled = words.view(kind).view(words.shape[0], layout.tiles, 2, -1)
            parts = tiled.transpose(2, 3).reshape(words.shape[0], -1, 2)
        found = torch.view_as_complex(parts.double().contiguous()) * spectrum.scales[rows, None].double()
        worst = max(worst, ((found - exact).norm(dim=1) / exact.norm(dim=1)).max().item())
    return worst


def _row(
    n: int,
    dtype: str,
    provider: str,
    times: list[float],
    spectrum_bytes: int,
    error: float,
    stamp: tuple[str, str],
    note: str,
) -> Row:
    case = measurements.format_case(
        "fftconv", {"B": 1, "H": measure.CHANNELS, "N": n, "L": n, "variant": "filter"}
    )
    deciles = statistics.quantiles(times, n=10)
    flops = round(measure.CHANNELS * 2.5 * n * math.log2(n))
    render.note(f"{provider} {case} {dtype}: {statistics.median(times):.1f} us, error {error:.2e}")
    return Row(
        "fftconv",
        case,
        dtype,
        provider,
        statistics.median(times),
        deciles[1],
        deciles[7],
        len(times),
        4 * measure.CHANNELS * n + spectrum_bytes,
        flops,
        error,
        *stamp,
        note,
    )
