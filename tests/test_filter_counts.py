"""Counts of the kernels that transform filters: equal to the counters of their CPU bodies, launch by launch."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from convolutions import filters
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_filter_transform import TYPES

from costmodel import compare, filter_counts, filter_time, fit, measurements, timing
from costmodel.gpus import load
from kernels_numba import filter_passes, filter_short, filter_transform, filter_whole, spectrum
from kernels_numba.tile.cpu_vocabularies import tile
from kernels_numba.tile.machine import Buffer, Machine
from monarch import Plan

PLANS = (
    Plan(256, (16, 16)),
    Plan(768, (48, 16)),
    Plan(1280, (80, 16)),
    Plan(2048, (8, 16, 16)),
    Plan(512, (16, 16), packing="half"),
    Plan(8192, (16, 16, 32)),
    Plan(4352, (17, 16, 16)),
)
BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}


def counters(machine: Machine) -> dict[str, int]:
    """What the CPU body counted, by the names of `filter_counts`; zeros left out."""
    found = machine.counters.as_dict()
    out = {f"read_{k}": v for k, v in found["global_read_bytes"].items()}
    out |= {f"written_{k}": v for k, v in found["global_written_bytes"].items()}
    out |= {k: found[k] for k in ("fp32_flops", "shared_read_bytes", "shared_written_bytes", "barriers")}
    return {k: v for k, v in out.items() if v}


def arrays_of(k: NDArray, rows: int) -> dict[str, NDArray]:
    """Taps as the kernels take them, and scales."""
    bits = np.ascontiguousarray(k).reshape(-1)
    return {"taps": bits.view(np.int16) if bits.itemsize == 2 else bits, "scales": np.ones(rows, np.float32)}


@settings(max_examples=25)
@given(
    which=st.integers(0, len(PLANS) - 2),  # the last one takes long
    dtype=st.sampled_from(("fp16", "bf16", "fp32")),
    kind=st.sampled_from(tuple(TYPES)),
    rows=st.integers(1, 3),
    part=st.floats(0.01, 1.0),
)
@example(which=0, dtype="fp32", kind="fp64", rows=3, part=1.0)
@example(which=4, dtype="fp16", kind="fp32", rows=1, part=0.3)
@example(which=5, dtype="fp16", kind="fp32", rows=3, part=0.7)
@example(which=6, dtype="fp16", kind="fp32", rows=2, part=0.2)
@example(which=6, dtype="fp32", kind="fp64", rows=1, part=0.1)
def test_passes(which: int, dtype: str, kind: str, rows: int, part: float) -> None:
    plan = PLANS[which]
    n, taps = plan.n, max(1, int(part * plan.n))
    layout = spectrum._layout(plan, "circular", n, taps, "fp16")
    positions = layout.order.shape[1]
    size = 8 if dtype == "fp32" else 4
    k = filters(rows, taps).astype(TYPES[kind])
    numbers = filter_transform.numbers(n, layout.targets, layout.sources)
    arrays = filter_transform.all_tables(n, numbers, layout.order, layout.phase, dtype) | arrays_of(k, rows)
    arrays |= {
        "points": np.ones(4 * -(-rows // 4) * n, np.float64 if size == 8 else np.float32),
        "peaks": np.ones(rows * max(n, filter_passes.MOST_PIECES), np.float32),
        "spectrum": np.zeros(2 * rows * positions, np.int16 if size == 4 else np.float32),
    }
    made = filter_counts.passes(n, rows, taps=taps, taps_bytes=BYTES[kind], positions=positions, size=size)
    tiles = layout.tiles if size == 4 else n
    jobs = filter_transform.jobs(n, rows, kind, taps, dtype, positions, tiles, spectrum.ORDINARY[dtype])
    assert len(jobs) == len(made)
    for job, counted in zip(jobs, made, strict=True):
        machine = Machine()
        kernel = filter_passes.family(job.spec).build(tile(machine, job.spec.dtype, "float"), job.spec)
        buffers = [Buffer(name, arrays[name].reshape(-1)) for name in job.pointers]
        machine.run(kernel, job.grid, job.spec.warps, job.spec.shared_bytes // 4, [*buffers, *job.scalars])
        assert {k: v for k, v in counted.items() if v} == counters(machine), job.spec.name


def by_one_launch(k: NDArray, kind: str, layout: Any, kernels: Any) -> tuple[dict[str, int], bool]:
    """What a kernel counts that transforms filters in one launch, and whether it needed no numbers of taps."""
    rows, taps = k.shape
    n, positions = layout.n, layout.order.shape[1]
    numbers = filter_transform.numbers(n, layout.targets, layout.sources, turned=layout.turned)
    arrays = kernels.tables(n, numbers, layout.order, layout.phase) | arrays_of(k, rows)
    arrays["spectrum"] = np.zeros(2 * rows * positions, np.int16)
    in_order = kind != "fp64" and filter_short.IN_ORDER in arrays
    if filter_short.IN_ORDER in arrays:
        arrays[filter_short.NUMBERS] = arrays[filter_short.IN_ORDER]
    how = n, positions, layout.tiles, kind, layout.dtype, spectrum.ORDINARY[layout.dtype]
    spec = kernels.spec_of(*how, **({"in_order": in_order} if kernels is filter_short else {}))
    machine = Machine()
    kernel = kernels.build(tile(machine, layout.dtype, "float"), spec)
    buffers = [Buffer(name, arrays[name].reshape(-1)) for name in kernels.POINTERS]
    known = {"rows": rows, "row_taps": taps, "count": taps, "pairs": positions // 2}
    known["tile_pairs"] = positions // 2 // layout.tiles
    scalars = [known[name] for name in kernels.SCALARS]
    grid = -(-rows // spec.together)
    machine.run(kernel, grid, spec.warps, spec.shared_bytes // 4, [*buffers, *scalars])
    return counters(machine), in_order


@settings(max_examples=20)
@given(
    n=st.sampled_from((256, 512, 1024, 1536, 2048, 4096, 8192)),
    dtype=st.sampled_from(("fp16", "bf16")),
    kind=st.sampled_from(tuple(TYPES)),
    rows=st.integers(1, 9),
    part=st.floats(0.01, 1.0),
)
@example(n=16384, dtype="fp16", kind="fp32", rows=1, part=1.0)
def test_one_launch(n: int, dtype: str, kind: str, rows: int, part: float) -> None:
    from kernels_numba.families import default_plan

    plan, taps = default_plan(n), max(1, int(part * n))
    layout = spectrum._layout(plan, "circular", n, taps, dtype)
    kernels = filter_whole.kernels(n, layout.order.shape[1], layout.tiles)
    found, in_order = by_one_launch(filters(rows, taps).astype(TYPES[kind]), kind, layout, kernels)
    how = {"taps": taps, "taps_bytes": BYTES[kind], "tiles": layout.tiles, "in_order": in_order}
    counted = filter_counts.in_one_launch(n, rows, **how)
    assert {k: v for k, v in counted.items() if v} == found


@pytest.mark.parametrize("factors", [(16, 16), (24, 16), (16, 32)], ids=str)
def test_turned(factors: tuple[int, ...]) -> None:
    """Of right-angle packing: points are turned, positions are half as many; by passes, and in one launch."""
    plan, rows, taps = Plan.of(factors, packing="right-angle"), 3, prod(factors) - 5
    n = plan.n
    layout = spectrum._layout(plan, "causal", plan.points, taps, "fp16")
    k = filters(rows, taps).astype(np.float32)
    numbers = filter_transform.numbers(n, layout.targets, layout.sources, turned=True)
    positions, limits = layout.order.shape[1], spectrum.ORDINARY["fp16"]
    shared = {"spectrum": np.zeros(2 * rows * positions, np.int16)} | arrays_of(k, rows)
    arrays = filter_transform.all_tables(n, numbers, layout.order, layout.phase, "fp16", turned=True) | shared
    arrays |= {"points": np.ones(4 * n, np.float32), "peaks": np.ones(rows * 64, np.float32)}
    how = {"taps": taps, "taps_bytes": 4, "turned": True}
    made = filter_counts.passes(n, rows, positions=positions, size=4, **how)
    jobs = filter_transform.jobs(n, rows, "fp32", taps, "fp16", positions, layout.tiles, limits, turned=True)
    for job, counted in zip(jobs, made, strict=True):
        machine = Machine()
        kernel = filter_passes.family(job.spec).build(tile(machine, job.spec.dtype, "float"), job.spec)
        buffers = [Buffer(name, arrays[name].reshape(-1)) for name in job.pointers]
        machine.run(kernel, job.grid, job.spec.warps, job.spec.shared_bytes // 4, [*buffers, *job.scalars])
        assert {k: v for k, v in counted.items() if v} == counters(machine), job.spec.name
    kernels = filter_whole.kernels(n, positions, layout.tiles)
    if kernels:
        found, _ = by_one_launch(k, "fp32", layout, kernels)
        counted = filter_counts.in_one_launch(n, rows, tiles=layout.tiles, **how)
        assert {k: v for k, v in counted.items() if v} == found


# ---- time ----------------------------------------------------------------------------------------------------
H200 = load("h200-sxm")


def test_in_one_launch_taps_and_spectra_cross_memory_once() -> None:
    counts = filter_time.counts_of(4096, 768, "fp16", H200)
    assert counts.launches == 1 and not counts.stages
    assert counts.device_bytes == 768 * (4 * 4096 + 4 * 4096 + 4)
    assert counts.l2_bytes > 4 * counts.device_bytes  # tables, for every filter


@pytest.mark.parametrize(("dtype", "size"), [("fp16", 4), ("fp32", 8)])
def test_points_of_passes_stay_in_the_cache_that_holds_them(dtype: str, size: int) -> None:
    n, rows = 65536, 80
    counts = filter_time.counts_of(n, rows, dtype, H200)
    spectra = rows * (size * n + (4 if size == 4 else 0))
    assert counts.device_bytes == pytest.approx(4 * rows * n + spectra, rel=1e-3)
    small = replace(H200, spec={**H200.spec, "l2_bytes": 4 * 2**20})
    there = filter_time.counts_of(n, rows, dtype, small)
    radices = filter_transform.factors_of(n // 2, filter_transform.largest_radix(dtype))
    points = rows * n * size  # written by every pass, and read by all but the first, and for the result
    assert there.device_bytes - counts.device_bytes >= (2 * len(radices)) * points
    assert there.launches == counts.launches == len(counts.stages)
    assert timing.seconds(there, small, timing.inputs_of(small)) > timing.seconds(
        counts, H200, timing.inputs_of(H200)
    )


def test_measured_filters_are_predicted_and_teach_the_convolution_nothing() -> None:
    rows = [r for r in measurements.read("h200-sxm", op="fftconv") if r.ours]
    variants = (compare.FILTER, compare.FROM_TAPS)
    filters_of = [r for r in rows if r.case_values["variant"] in variants]
    assert {r.dtype for r in filters_of} == {"fp16", "fp32"}
    pairs = compare.judge(filters_of, H200).pairs
    assert len(pairs) == len(filters_of)
    for pair in pairs:
        assert pair.low_us < pair.predicted_us < pair.high_us
    assert len(fit.points_of(H200)) + len(pairs) == len(compare.judge(rows, H200).pairs)
