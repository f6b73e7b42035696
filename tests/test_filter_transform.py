"""The transform of filters by the project's own kernels, on the CPU body: against NumPy's, which is in float64."""

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from convolutions import filters
from hardware import HALF
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import reference
from kernels_numba import families, filter_passes, filter_short, filter_transform, filter_whole, spectrum
from kernels_numba.device import Device
from kernels_numba.tile.cpu_vocabularies import tile
from kernels_numba.tile.layout import STORAGE_TYPES
from kernels_numba.tile.machine import Buffer, Machine
from monarch import Plan

TYPES = {**HALF, "fp32": np.dtype(np.float32), "fp64": np.dtype(np.float64)}


def by_kernels(k: NDArray, kind: str, rows: int, layout: Any, *, both: bool = False) -> tuple[NDArray, ...]:
    """Words and scales, poisoned before, by `filter_transform.jobs`; with the adjoint's words if ``both``."""
    n, taps = layout.n, k.shape[-1]
    limits = spectrum.ORDINARY[layout.dtype]
    positions = layout.order.shape[1]
    width = 2 if layout.dtype == "fp32" else 1
    stored = np.int16 if width == 1 else np.float32
    bits = np.ascontiguousarray(k).reshape(-1)
    inner = np.float32 if layout.dtype != "fp32" else np.float64
    numbers = filter_transform.numbers(n, layout.targets, layout.sources, turned=layout.turned)
    room = -(-rows // filter_passes.AT_ONCE) * filter_passes.AT_ONCE
    how = {"both": both, "turned": layout.turned}
    host = filter_transform.all_tables(n, numbers, layout.order, layout.phase, layout.dtype, **how)
    arrays = {name: x.reshape(-1) for name, x in host.items()} | {
        "taps": bits.view(np.int16) if bits.itemsize == 2 else bits,
        "points": np.full(room * n, np.nan, inner),
        "peaks": np.full(rows * max(filter_passes.MOST_PIECES, n), np.nan, np.float32),
        "spectrum": np.full(2 * rows * positions, -1, stored),
        "spectrum2": np.full(2 * rows * positions, -1, stored),
        "scales": np.full(rows, 1 if layout.dtype == "fp32" else np.nan, np.float32),
    }
    row_taps = taps if k.ndim == 2 else 0
    what = (n, rows, kind, row_taps, layout.dtype, positions, layout.tiles, limits)
    jobs = filter_transform.jobs(*what, **how)
    for job in jobs:
        machine = Machine()
        kernel = filter_passes.build(tile(machine, job.spec.dtype, "float"), job.spec)
        buffers = [Buffer(name, arrays[name]) for name in job.pointers]
        machine.run(kernel, job.grid, job.spec.warps, job.spec.shared_bytes // 4, [*buffers, *job.scalars])
    found = [arrays[name].view(np.int32).reshape(rows, -1) for name in ("spectrum", "spectrum2")]
    return (found[0], arrays["scales"], found[1]) if both else (found[0], arrays["scales"])


def in_one_launch(
    k: NDArray, kind: str, rows: int, layout: Any, kernels: Any = filter_whole, **more: Any
) -> tuple[NDArray, NDArray]:
    """The same, by `filter_whole`, or `filter_short` as ``kernels``."""
    bits = np.ascontiguousarray(k).reshape(-1)
    positions, taps = layout.order.shape[1], k.shape[-1]
    how = layout.n, positions, layout.tiles, kind, layout.dtype, spectrum.ORDINARY[layout.dtype]
    numbers = filter_transform.numbers(layout.n, layout.targets, layout.sources, turned=layout.turned)
    arrays = kernels.tables(layout.n, numbers, layout.order, layout.phase) | {
        "taps": bits.view(np.int16) if bits.itemsize == 2 else bits,
        "spectrum": np.full(2 * rows * positions, -1, np.int16),
        "scales": np.full(rows, np.nan, np.float32),
    }
    if filter_short.IN_ORDER in arrays:
        arrays[filter_short.NUMBERS] = arrays.pop(filter_short.IN_ORDER)
        more = {"in_order": kind != "fp64"} | more
    spec = kernels.spec_of(*how, **more)
    machine = Machine()
    kernel = kernels.build(tile(machine, layout.dtype, "float"), spec)
    buffers = [Buffer(name, arrays[name].reshape(-1)) for name in kernels.POINTERS]
    known = {"rows": rows, "row_taps": taps if k.ndim == 2 else 0, "count": taps, "pairs": positions // 2}
    known["tile_pairs"] = positions // 2 // layout.tiles
    scalars = [known[name] for name in kernels.SCALARS]
    machine.run(kernel, -(-rows // spec.together), spec.warps, spec.shared_bytes // 4, [*buffers, *scalars])
    return arrays["spectrum"].view(np.int32).reshape(rows, -1), arrays["scales"]


in_one_short_launch = partial(in_one_launch, kernels=filter_short)
by_numbers = partial(in_one_short_launch, in_order=False)


def values(words: NDArray, scales: NDArray, dtype: str) -> NDArray[np.float64]:
    """The numbers that words stand for."""
    return words.view(STORAGE_TYPES[dtype]).astype(float) * scales[:, None].astype(float)


PLANS = {
    "fp16": [Plan(256, (16, 16)), Plan(512, (16, 32)), Plan(768, (48, 16)), Plan(2048, (8, 16, 16))],
    "fp32": [Plan(256, (16, 16)), Plan(512, (16, 16), packing="half"), Plan(768, (12, 8, 8))],
}
PLANS["bf16"] = PLANS["fp16"]


@settings(max_examples=30)
@given(
    dtype=st.sampled_from(("fp16", "bf16", "fp32")),
    which=st.integers(0, 2),
    mode=st.sampled_from(("circular", "folded", "causal", "two-sided")),
    part=st.floats(0.01, 1.0),
    rows=st.integers(1, 3),
    shared=st.booleans(),
    kind=st.sampled_from(tuple(TYPES)),
    size=st.sampled_from((1.0, 1e-3, 1e4)),
    seed=seeds,
)
@example(
    dtype="fp16", which=0, mode="circular", part=1.0, rows=2, shared=False, kind="fp32", size=1.0, seed=0
)
@example(
    dtype="fp16",
    which=0,
    mode="folded",
    part=0.8828125,
    rows=1,
    shared=False,
    kind="fp32",
    size=1.0,
    seed=20840352,
)
def test_as_by_numpy(
    dtype: str, which: int, mode: str, part: float, rows: int, shared: bool, kind: str, size: float, seed: int
) -> None:
    """Every word within the roundoff of its format and the error of an fp32 transform, and scales as they should be."""
    plan = PLANS[dtype][which]
    n = plan.n
    length = n if mode == "circular" else n // 2
    taps = max(1, int(part * length))
    layout = spectrum._layout(plan, "circular" if mode == "folded" else mode, length, taps, dtype)
    k = (size * filters(1 if shared else rows, taps, seed)).astype(TYPES[kind])
    k = k[0] if shared else k
    exact, expected = spectrum._transform(k.astype(np.float64), rows, layout)
    ways: tuple[Any, ...] = (by_kernels,) if dtype == "fp32" else (by_kernels, in_one_launch)
    if filter_short.fits(n, layout.order.shape[1], layout.tiles):
        ways = (*ways, in_one_short_launch, by_numbers)
    for way in ways:
        words, scales = way(k, kind, rows, layout)
        if way is in_one_launch:
            assert (scales == expected).all()
        assert (scales == may_be(k, rows, layout)).any(axis=0).all()
        close(words, scales, exact, expected, dtype, n)


@pytest.mark.parametrize(
    "plan",
    [Plan(8192, (16, 16, 32)), Plan(8192, (16, 16, 16), packing="half"), Plan(12288, (48, 16, 16))],
    ids=str,
)
def test_long_ones(plan: Plan) -> None:
    """In one launch, and by passes of which the last looks for peaks."""
    layout = spectrum._layout(plan, "causal", plan.n // 2, 100, "fp16")
    k = (np.array([[1], [1e-3]]) * filters(2, 100)).astype(np.float32)
    exact, expected = spectrum._transform(k.astype(np.float64), 2, layout)
    words, scales = in_one_launch(k, "fp32", 2, layout)
    assert (scales == expected).all()
    close(words, scales, exact, expected, "fp16", plan.n)
    how = (plan.n, 2, "fp32", 100, "fp16", layout.order.shape[1], layout.tiles, (0.0, 1.0))
    kinds = [job.spec.kind for job in filter_transform.jobs(*how)]
    assert ("end" in kinds, "peak" in kinds) == ((True, False) if plan.n == 8192 else (False, True))
    words, scales = by_kernels(k, "fp32", 2, layout)
    assert (scales == may_be(k, 2, layout)).any(axis=0).all()
    close(words, scales, exact, expected, "fp16", plan.n)


@pytest.mark.parametrize("mode", ["circular", "causal", "two-sided"])
@pytest.mark.parametrize(
    ("plan", "dtype"),
    [
        (Plan(2048, (8, 16, 16)), "fp16"),
        (Plan(8192, (16, 16, 16), packing="half"), "bf16"),
        (Plan(512, (16, 16), packing="half"), "fp32"),
    ],
    ids=str,
)
def test_the_adjoint_comes_from_the_same_points(plan: Plan, dtype: str, mode: str) -> None:
    length = plan.n if mode == "circular" else plan.n // 2
    taps = min(length, 300)
    k = filters(2, taps).astype(np.float32)
    layout, other = (spectrum._layout(plan, mode, length, taps, dtype, adjoint) for adjoint in (False, True))
    words, scales, words2 = by_kernels(k, "fp32", 2, layout, both=True)
    for got, how in ((words, layout), (words2, other)):
        exact, expected = spectrum._transform(k.astype(np.float64), 2, how)
        close(got, scales, exact, expected, dtype, plan.n)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("factors", [(16, 16), (24, 16), (32, 16), (48, 16)], ids=str)
def test_through_a_right_angle(factors: tuple[int, ...], adjoint: bool) -> None:
    """By every way there is, a filter of half a circle, and the one that correlates with it."""
    plan = Plan.of(factors, packing="right-angle")
    k = filters(2, plan.points - 3).astype(np.float32)
    layout = spectrum._layout(plan, "causal", plan.points, k.shape[1], "fp16", adjoint)
    exact, expected = spectrum._transform(k.astype(np.float64), 2, layout)
    whole = (in_one_launch,) if filter_whole.fits(plan.n, turned=True) else ()
    for way in (by_kernels, *whole):
        words, scales = way(k, "fp32", 2, layout)
        close(words, scales, exact, expected, "fp16", plan.n)


def may_be(k: NDArray, rows: int, layout: Any) -> list[NDArray]:
    """The scales of a peak, of twice it and of 2 sqrt(2) times it: one that is too large by at most that has one."""
    circle = np.zeros((rows, layout.n))
    circle[:, layout.targets] = k[..., layout.sources].astype(float)
    peak = np.abs(np.fft.fft(circle)).max(axis=1)
    return [spectrum._scales(times * peak, layout.dtype) for times in (1, 2 + 1e-6, 2**1.5 + 1e-6)]


@pytest.mark.parametrize(
    ("factors", "kind", "dtype"),
    [
        ((17, 16, 16), "fp16", "fp16"),
        ((17, 16, 16), "fp64", "fp32"),
        ((34, 16, 16), "fp32", "bf16"),
    ],
)
def test_large_primes_are_done_by_sums(factors: tuple[int, ...], kind: str, dtype: str) -> None:
    """Lengths with a prime factor that no radix has; of two rows, both ways."""
    plan = Plan(prod(factors), factors)
    n = plan.n
    assert filter_transform.factors_of(n // 2, 16)[0] == 17
    layout = spectrum._layout(plan, "causal", n // 2, 100, "bf16" if dtype == "bf16" else "fp16")
    layout = replace(layout, dtype=dtype, tiles=n if dtype == "fp32" else layout.tiles)
    k = filters(2, 100).astype(TYPES[kind])
    exact, expected = spectrum._transform(k.astype(np.float64), 2, layout)
    close(*by_kernels(k, kind, 2, layout), exact, expected, dtype, n)


def close(words: NDArray, scales: NDArray, exact: NDArray, expected: NDArray, dtype: str, n: int) -> None:
    """Every word within the roundoff of its format and the error of an fp32 transform."""
    got, wanted = values(words, scales, dtype), values(exact, expected, dtype)
    largest = np.abs(wanted).max(axis=1, keepdims=True)
    apart, u = np.abs(got - wanted), reference.unit_roundoff(dtype)
    inner = 1e-14 if dtype == "fp32" else 2e-6
    assert (apart <= 2 * u * np.abs(wanted) + inner * largest).all()
    norm = np.linalg.norm(wanted)
    rms = np.linalg.norm(got - wanted) / norm
    other_side = (
        2 * u * largest.max() / norm
    )  # one word rounded to the other side, which counts where words are few
    # In fp32 that is where a sum of taps, which is exact, lies halfway between two numbers.
    rest = 0.01 * u if dtype == "fp32" else 0.1 * u + reference.fft32_bound(n)
    assert rms <= rest + other_side


@pytest.mark.parametrize("way", [by_kernels, in_one_launch, in_one_short_launch])
@pytest.mark.parametrize("peak", [0.0, 2.0**-7, 2.0**-6, 16.0, 16.5, 1e30, 3e-39, np.inf, np.nan])
def test_scales(peak: float, way: Any) -> None:
    """An impulse has a flat spectrum: the scale is 1 from 2^-6 to 2^4, else the power of two that is not below it.

    By passes it is that of sqrt(2) times the peak, of short filters that of twice the largest part of a point.
    """
    layout = spectrum._layout(Plan(256, (16, 16)), "causal", 256, 1, "bf16")
    words, scales = way(np.array([[peak], [1.0]], np.float32), "fp32", 2, layout)
    assert scales[1] == 1
    times = {by_kernels: filter_passes.ROOT_OF_TWO, in_one_launch: 1, in_one_short_launch: 2}[way]
    seen = np.float32(peak) * np.float32(times)
    if not np.isfinite(peak) or peak == 0 or 2.0**-6 <= seen <= 16:
        assert scales[0] == 1
    else:
        assert scales[0] == 2.0 ** max(-126, np.ceil(np.log2(seen)))
    close(words[1:], scales[1:], *spectrum._transform(np.array([[1.0]]), 1, layout), "bf16", 256)
    finite = np.isfinite(words[0].view(HALF["bf16"]).astype(float))
    assert finite.all() == np.isfinite(peak)


def test_which_short_ones() -> None:
    """A thread's pairs of positions lie one distance apart, whatever the tiles."""
    assert all(filter_short.fits(2 * points, 2 * points, 1) for points in filter_short.FACTORS)
    assert filter_short.fits(256, 256, 128)  # tiles of two positions
    assert not any(filter_short.fits(2 * p, 2 * p, 2 * p) for p in filter_short.FACTORS)  # fp32
    assert not filter_short.fits(512, 256, 1)  # as many as points, by right-angle packing
    assert not filter_short.fits(256, 256, 2)  # a tile of 64 pairs, where a thread has one in every 32
    assert not filter_short.fits(1536, 1280, 1) and not filter_short.fits(1280, 1280, 1)


def test_blocks_are_spread_by_the_shared_memory_they_take() -> None:
    sm, block = 228 * 1024, 227 * 1024
    where = Device(
        "gpu", "", capability=(9, 0), sm_count=132, shared_bytes_per_sm=sm, shared_bytes_per_block=block
    )
    spec = filter_short.spec_of(256, 256, 1, "fp32", "fp16", (0.0, 1.0))
    for rows in (1, 792, 793, 2000, 4000):
        found = filter_short.on_device(spec, rows, where, in_order=True)
        blocks = -(-rows // spec.together)
        assert found.overlap and found.in_order
        assert sm // (found.shared_bytes + 1024) == -(-blocks // 132)  # 1024 the system takes
    older = replace(where, capability=(8, 0))
    assert filter_short.on_device(spec, 1, older, in_order=False) == spec


@pytest.mark.parametrize("largest", [16, 32])
@pytest.mark.parametrize("n", [2, 3, 16, 24, 256, 512, 768, 1536, 12288, 49152, 65536])
def test_factors(n: int, largest: int) -> None:
    """As few as can be, and none much larger than it must be."""
    factors = filter_transform.factors_of(n, largest)
    assert prod(factors) == n and max(factors) <= largest and factors == tuple(sorted(factors))
    fewest = next(count for count in range(1, 20) if largest**count >= n)
    assert len(factors) <= fewest + (n % 3 == 0)


def test_factors_that_there_are_not() -> None:
    with pytest.raises(ValueError, match=r"4112 points leaves 257 .*up to 256"):
        filter_transform.factors_of(257 * 16, 32)


def test_every_default_plan_has_passes() -> None:
    """All lengths, with few kernels."""
    radices = set()
    for dtype in ("fp16", "fp32"):
        for n in families.default_factors(dtype):
            radices |= set(filter_transform.factors_of(n // 2, filter_transform.largest_radix(dtype)))
    assert radices <= set(filter_transform.RADICES) and len(radices) <= 14
