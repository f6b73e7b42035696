"""The time of a filter's transform: `timing`'s law for the launches that `filter_counts` counts.

In one launch everything is as in an fp32 convolution, but that tables come from L2 for every filter (of short ones for
every block, and its warps go through their one wave in step). In passes the points of some filters stay in L2 from one
launch to the next where it holds them: then only taps and spectra cross device memory. Three things were found on an
H200: the start of such a launch, which has no tables to bring first and no persistent blocks, how much more of L2's
rate it reaches than a convolution, and how much more crosses L2 than is asked for where lanes side by side ask for
points that are far apart, as sectors of 32 bytes: where fp64 points are gathered, and in a last pass over neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from costmodel import filter_counts, timing
from costmodel.counts import Counts, instructions
from costmodel.float_counts import transform_flops
from costmodel.gpus import GPU
from monarch import Plan

TAPS_BYTES = 4
DOUBLE = 2
"""Issue slots of an instruction in fp64 on GPUs for computing; others, which have few such units, take longer."""
REGISTERS = {"first": 106, "sums": 40, "next": 106, "end": 83, "peak": 26, "scale": 26, "last": 60}
MOST_REGISTERS = 255


@dataclass(frozen=True)
class Figures:
    """What was found on measurements."""

    start_us: float
    """Of a launch."""
    scattered: float
    """Bytes that cross L2 for a byte of points far apart."""
    l2: float
    """How much more of L2's rate is reached than by convolutions."""


FILTER = Figures(1.5, 1.8, 1.15)
INSIDE = "filter_counts: filters, inside"
"""Where the counts of a convolution are from that transforms its filters."""
INSIDE_US = 0.2
"""What that adds to its start, for each point of a filter that a lane holds: all warps of a block wait for the few that
transform."""


def counts_of(n: int, rows: int, dtype: str, gpu: GPU) -> Counts:
    """The counts of the launches that transform circular filters of N fp32 taps to spectra of ``dtype``."""
    from kernels_numba import filter_whole

    capacity = int(gpu.spec["shared_memory_per_block_bytes"])
    if dtype != "fp32" and filter_whole.fits(n, capacity):
        return _in_one_launch(n, rows, dtype)
    return _in_passes(n, rows, dtype, gpu.spec["l2_bytes"])


def _in_one_launch(n: int, rows: int, dtype: str) -> Counts:
    from kernels_numba import filter_short
    from kernels_numba.filter_whole import kernels

    how = kernels(n, n, 1)
    spec = how.spec_of(n, n, 1, "fp32", dtype, (0.0, 0.0))
    found = filter_counts.in_one_launch(n, rows, taps=n, taps_bytes=TAPS_BYTES)
    again = 0  # Of what is read, bytes that a block's other filters have brought to the first-level cache.
    if how is filter_short:
        tables = ("read_table",) if spec.shared else ("read_table", "read_places", "read_weights")
        again = sum(found[name] for name in tables) * (spec.together - 1) // spec.together
    moved = sum(v for key, v in found.items() if key.startswith(("read_", "written_")))
    counts = _launch(
        found,
        "filter_counts: filters, one launch",
        blocks=-(-rows // spec.together),
        threads=32 * spec.warps,
        shared_bytes=spec.shared_bytes,
        registers=80 if spec.shape.held <= 16 else 128,
        workers=spec.together,
        read=found["read_taps"],
        written=found["written_spectrum"] + found["written_scales"],
        l2_share=1 - again / moved,
    )
    return replace(counts, in_step=how is filter_short)


def _in_passes(n: int, rows: int, dtype: str, l2_bytes: float) -> Counts:
    from kernels_numba.filter_passes import AT_ONCE
    from kernels_numba.filter_transform import jobs, rows_at_once

    size = 8 if dtype == "fp32" else 4
    together = rows_at_once(rows, n, dtype)
    stays = together * n * size < l2_bytes
    stages = []
    for start in range(0, rows, together):
        now = min(together, rows - start)
        made = filter_counts.passes(n, now, taps=n, taps_bytes=TAPS_BYTES, positions=n, size=size)
        for job, found in zip(jobs(n, now, "fp32", n, dtype, n, 1, (0.0, 0.0)), made, strict=True):
            spec, radix, doubles = job.spec, job.spec.radix, 0
            neighbours = spec.kind == "next" and job.scalars[1] == 1
            if radix:
                doubles = (transform_flops(radix, radix, radix) + 6 * radix) * (now * n // 2 // radix)
            elif spec.kind == "last":
                doubles = 36 * 4 * (-(-now // AT_ONCE) * n // 2)
            # Each point crosses device memory once, however often lanes that are near each other read it.
            points = size * now * n if "read_points" in found else 0
            stages.append(
                _launch(
                    found | ({"fp32_flops": DOUBLE * doubles} if size == 8 else {}),
                    f"filter_counts: {spec.kind}",
                    blocks=job.grid,
                    threads=32 * spec.warps,
                    shared_bytes=spec.shared_bytes,
                    registers=min(MOST_REGISTERS, REGISTERS[spec.kind] * size // 4),
                    workers=spec.warps,
                    read=found.get("read_taps", 0) + (0 if stays else points),
                    l2_share=FILTER.scattered if neighbours or (spec.kind == "last" and spec.double) else 1.0,
                    written=found.get("written_spectrum", 0)
                    + found.get("written_scales", 0)
                    + (0 if stays else found.get("written_points", 0)),
                )
            )
    return _together(stages)


def _launch(
    found: dict[str, Any],
    source: str,
    *,
    blocks: int,
    threads: int,
    shared_bytes: int,
    registers: int,
    workers: int,
    read: float,
    written: float,
    l2_share: float = 1.0,
) -> Counts:
    moved = sum(v for key, v in found.items() if key.startswith(("read_", "written_")))
    shared = found.get("shared_read_bytes", 0) + found.get("shared_written_bytes", 0)
    flops = found.get("fp32_flops", 0)
    return Counts(
        device_read_bytes=read,
        device_write_bytes=written,
        mma_flops=0,
        half_flops=0,
        fp32_flops=flops,
        shared_bytes=shared,
        l2_bytes=moved * l2_share,
        # A lane reaches 8 bytes at once.
        warp_instructions=instructions(
            products=0, fp32_flops=flops, half_flops=0, words=0, accesses=(moved + shared) / 256
        ),
        transforms=1,
        launches=1,
        blocks=max(1, blocks),
        threads_per_block=threads,
        shared_bytes_per_block=shared_bytes,
        registers_per_thread=registers,
        workers_per_block=workers,
        fill_bytes_per_block=0,
        barriers_per_transform=0.0,
        exact=True,
        source=source,
        arithmetic="fp32",
    )


def _together(stages: list[Counts]) -> Counts:
    """Launches one after the other: their sums, and each by itself."""
    moved = ("device_read_bytes", "device_write_bytes", "shared_bytes", "l2_bytes")
    sums = (*moved, "fp32_flops", "warp_instructions", "launches", "transforms", "blocks")
    return replace(
        stages[0],
        source="filter_counts: filters, passes",
        stages=tuple(stages),
        **{name: sum(getattr(stage, name) for stage in stages) for name in sums},
    )


def in_a_call(plan: Plan, batch: int, rows: int, dtype: str, convolution: Counts, gpu: GPU) -> Counts:
    """A filter's transform and the convolution with it, one after the other or in one kernel."""
    inside = _inside(plan, batch, rows, dtype, convolution, gpu)
    if inside:
        return inside
    first = counts_of(plan.n, rows, dtype, gpu)
    found = _together([*(first.stages or (first,)), convolution])
    return replace(found, source="filter_counts: filters, in a call")


def _inside(plan: Plan, batch: int, rows: int, dtype: str, convolution: Counts, gpu: GPU) -> Counts | None:
    """The convolution that transforms its filters, if there is one: as many bytes of taps as of spectra, and more work.

    Blocks bring tables of positions from L2, and each filter its twiddles.
    """
    from kernels_numba import fused_warp, warp_filter

    if plan.factors not in fused_warp.PACKINGS.get(plan.packing, ()):
        return None
    spec, pairs = fused_warp.make_spec(plan, dtype, scaled=True), -(-batch // 2)
    blocks = int(gpu.spec["sm_count"]) * fused_warp.min_blocks(spec)
    found = warp_filter.chosen(spec, "fp32", pairs * rows, pairs, blocks)
    if found is None:
        return None
    spec, per_warp = found
    blocks = -(-pairs * rows // (spec.warps * per_warp))
    more = filter_counts.within(
        plan.n, blocks, rows, rows, used=0, taps_bytes=TAPS_BYTES, turned=spec.right_angle
    )
    moved, shared = more["read_filter tables"], more["shared_read_bytes"] + more["shared_written_bytes"]
    flops = more["fp32_flops"]
    extra = instructions(products=0, fp32_flops=flops, half_flops=0, words=0, accesses=(moved + shared) / 256)
    return replace(
        convolution,
        fp32_flops=convolution.fp32_flops + flops,
        shared_bytes=convolution.shared_bytes + shared,
        l2_bytes=convolution.l2_bytes + moved,
        warp_instructions=convolution.warp_instructions + extra,
        shared_bytes_per_block=spec.shared_bytes,
        source=INSIDE,
    )


def inputs_of(inputs: timing.Inputs, figures: Figures = FILTER) -> timing.Inputs:
    """What a filter's prediction rests on: those of a convolution, with this module's figures."""
    start, share = inputs["launch_us"], inputs["l2_fraction"]
    return {
        **inputs,
        "launch_us": replace(start, value=figures.start_us),
        "l2_fraction": replace(share, value=share.value * figures.l2),
    }


def inputs_inside(inputs: timing.Inputs, plan: Plan) -> timing.Inputs:
    """Those of a convolution that transforms its filters."""
    from kernels_numba.warp_filter import shape

    start = inputs["launch_us"]
    return {**inputs, "launch_us": replace(start, value=start.value + INSIDE_US * shape(plan.n).held)}
