"""Counts of whole long convolutions for the time model: two outer stages, and the fused kernel on every row between.

A `counts.Counts` with ``stages``, one for each kernel; what the kernels choose (`kernels_numba.outer_spec`) is repeated
here, as for the others, and a test holds the two equal. Groups (`kernels_numba.long_groups`) count as launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, prod
from typing import Any

from costmodel import outer_counts
from costmodel.counts import GATED, MMA_FLOPS, Counts, instructions
from monarch import Plan

SPLITS: dict[int, tuple[int, int]] = {
    16: (16, 1),
    32: (32, 1),
    256: (16, 16),
    512: (16, 32),
    1024: (32, 32),
}
"""By rows N1, their one or two factors;"""
BLOCKS: dict[int, tuple[int, int, int, bool]] = {
    16: (64, 4, 4, False),
    32: (32, 4, 4, False),
    256: (64, 8, 2, True),
    512: (32, 8, 2, False),
    1024: (32, 16, 1, False),
}
"""columns of a strip, warps of a block, blocks on an SM, and whether strips are copied."""
GROUP_BYTES = 256 * 2**20
LONGEST = 2**24
ON_CHIP = 65536
"""Shorter transforms have no outer stages by default."""
WORDS = 9
"""32-bit words a complex point that a stage moves between registers or rounds: halves to pairs of rows, two roundings,
and what twiddles take beside flops."""

Inner = Callable[..., Counts | None]


def split(plan: Plan) -> tuple[int, Plan] | None:
    """Rows, and the plan of each row; None for a plan without outer stages. Of two divisions that of more rows."""
    if plan.packing != "pair":
        return None
    from costmodel.kernel_counts import fused_lists

    for outer in (2, 1):
        head, rest = plan.factors[:outer], plan.factors[outer:]
        known = {(a, b)[:outer] for a, b in SPLITS.values() if (b > 1) == (outer == 2)}
        if rest and head in known and rest in fused_lists(prod(rest), len(rest)) and prod(rest) % 64 == 0:
            return prod(head), Plan(prod(rest), rest)
    return None


def factor_lists(points: int, order: int) -> list[tuple[int, ...]]:
    """The factor lists of long plans of ``points`` points and an order."""
    from costmodel.kernel_counts import fused_lists

    found = []
    for rows, (a, b) in SPLITS.items():
        head = (a, b) if b > 1 else (a,)
        if not ON_CHIP < points <= LONGEST or points % rows or order <= len(head):
            continue
        for rest in fused_lists(points // rows, order - len(head)):
            made = split(Plan(points, (*head, *rest)))
            if made and made[0] == rows:
                found.append((*head, *rest))
    return found


def kernel_counts(
    plan: Plan, batch: int, channels: int, *, variant: str, capacity_bytes: float, inner: Inner
) -> Counts | None:
    """Counts of one call; ``inner`` counts the rows' kernel. None without outer stages, or where they do not fit."""
    made = split(plan)
    if made is None:
        return None
    rows, row_plan = made
    pairs = (batch + 1) // 2
    middle = inner(
        row_plan, 2 * pairs, channels * rows, dtype="fp16", variant="plain", capacity_bytes=capacity_bytes
    )
    stages = [_stage(plan, rows, batch, channels, variant in GATED, inverse) for inverse in (False, True)]
    if middle is None or any(stage.shared_bytes_per_block > capacity_bytes for stage in stages):
        return None
    groups = ceil(4 * plan.n * pairs * channels / max(GROUP_BYTES, 4 * plan.n))
    parts = tuple(replace(part, launches=groups) for part in (stages[0], middle, stages[1]))

    def total(name: str) -> Any:
        return sum(getattr(part, name) for part in parts)

    return replace(
        middle,
        **{
            name: total(name)
            for name in (
                "device_read_bytes",
                "device_write_bytes",
                "mma_flops",
                "half_flops",
                "fp32_flops",
                "shared_bytes",
                "l2_bytes",
                "warp_instructions",
                "launches",
            )
        },
        transforms=pairs * channels,
        source="long_counts: outer stages around a fused kernel",
        stages=parts,
    )


def with_rows(counts: Counts, plan: Plan, rows: int) -> Counts:
    """Counts of a long convolution whose spectrum is zero but in ``rows`` of its rows: only those cross memory between.

    The outer stages transform all rows as ever.

    Raises:
        ValueError: a plan without outer stages, or more rows than it has.
    """
    made = split(plan)
    if made is None or len(counts.stages) != 3 or not 1 <= rows <= made[0]:
        raise ValueError(f"rows: got {rows} of {plan}; accepted: 1 to the rows of a plan with outer stages")
    share = rows / made[0]
    forward, inner, inverse = counts.stages
    spared_out, spared_in = ((1 - share) * x for x in (forward.device_write_bytes, inverse.device_read_bytes))
    work = (
        *("device_read_bytes", "device_write_bytes", "mma_flops", "half_flops", "fp32_flops"),
        *("shared_bytes", "l2_bytes", "warp_instructions"),
    )
    parts = (
        replace(
            forward,
            device_write_bytes=forward.device_write_bytes - spared_out,
            l2_bytes=forward.l2_bytes - spared_out,
        ),
        replace(
            inner,
            **{name: share * getattr(inner, name) for name in work},
            blocks=ceil(share * inner.blocks),
            transforms=ceil(share * inner.transforms),
        ),
        replace(
            inverse,
            device_read_bytes=inverse.device_read_bytes - spared_in,
            l2_bytes=inverse.l2_bytes - spared_in,
        ),
    )
    totals = {name: sum(getattr(part, name) for part in parts) for name in work}
    return replace(counts, **totals, stages=parts, exact=False)


def windows(length: int, taps: int, tile: int) -> int:
    """Tiles of a signal of ``length`` samples that a filter of ``taps`` is convolved with in, overlapping by taps - 1.

    Raises:
        ValueError: a tile without room for the filter.
    """
    if not 1 <= taps <= tile:
        raise ValueError(f"taps: got {taps} for tiles of {tile}; accepted: 1 to {tile}")
    return ceil(length / (tile - taps + 1))


def _stage(plan: Plan, rows: int, batch: int, channels: int, gated: bool, inverse: bool) -> Counts:
    """One outer stage's counts."""
    a, b = SPLITS[rows]
    strip, warps, blocks, copied = BLOCKS[rows]
    n2 = plan.n // rows
    half_in = 2 * (plan.signal or plan.n) <= plan.n and a == 32 and not inverse
    found = outer_counts.totals(
        a,
        b,
        n2,
        strip=strip,
        warps=warps,
        inverse=inverse,
        batch=batch,
        channels=channels,
        length=(plan.wanted if inverse else plan.signal) or plan.n,
        rows_in=a // 2 if half_in else a,
        half_out=inverse and 2 * (plan.wanted or plan.n) <= plan.n,
        gated=gated,
        copied=copied,
    )
    pairs = channels * ((batch + 1) // 2)
    gates = found["read_pregate"] if "read_pregate" in found else found["read_postgate"]
    read = gates + found["read_workspace" if inverse else "read_u"]
    written = found["written_y" if inverse else "written_workspace"]
    shared = found["shared_read_bytes"] + found["shared_written_bytes"]
    per_block = 1 if b > 1 else warps
    first = b if inverse and b > 1 else a
    exchange = 8 * (rows * (strip // 2 + 4) + 4 * first) if b > 1 else 0
    return Counts(
        device_read_bytes=read,
        device_write_bytes=written,
        mma_flops=MMA_FLOPS * found["mma_m16n8k16"],
        half_flops=found["half_flops"],
        fp32_flops=found["fp32_flops"] / 2,  # products and sums are fused
        shared_bytes=shared,
        l2_bytes=read + written + found["read_constants"],
        warp_instructions=instructions(
            products=found["mma_m16n8k16"],
            fp32_flops=found["fp32_flops"] / 2,
            half_flops=found["half_flops"],
            words=WORDS * pairs * plan.n,
            accesses=(shared + read + written) / 400,
        ),
        transforms=pairs,
        launches=1,
        blocks=-(-pairs * (n2 // strip) // per_block),
        threads_per_block=32 * warps,
        shared_bytes_per_block=exchange,
        registers_per_thread=min(255, 65536 // (32 * warps * blocks) // 8 * 8),
        workers_per_block=per_block,
        fill_bytes_per_block=0,
        barriers_per_transform=n2 / strip if b > 1 else 0.0,
        exact=True,
        source="outer_counts: one stage",
    )
