"""Counts of whole long fp32 convolutions for the time model: fp32 outer stages, and a complex fp32 kernel on every row.

As `long_counts`, which is of half precision. What the kernels choose (`kernels_numba.outer_float_spec`) is repeated
here, and a test holds the two equal.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from typing import Any

from costmodel import float_counts, outer_float_counts
from costmodel.counts import GATED, Counts, instructions
from costmodel.long_counts import GROUP_BYTES, LONGEST, SPLITS
from monarch import Plan

BLOCKS: dict[int, tuple[int, int, int]] = {
    16: (32, 4, 6),
    32: (32, 4, 4),
    256: (32, 8, 3),
    512: (16, 8, 2),
    1024: (16, 16, 1),
}
"""By rows: columns of a strip, warps of a block, blocks on an SM."""
ON_CHIP = 32768
"""Shorter transforms have no outer stages by default."""
SUMMED = (
    *("device_read_bytes", "device_write_bytes", "mma_flops", "half_flops", "fp32_flops"),
    *("shared_bytes", "l2_bytes", "warp_instructions", "launches"),
)


def split(plan: Plan) -> tuple[int, Plan] | None:
    """Rows, and the plan of each row; None for a plan without fp32 outer stages. Of two divisions that of more rows."""
    if plan.packing != "pair":
        return None
    for outer in (2, 1):
        head, rest = plan.factors[:outer], plan.factors[outer:]
        known = {(a, b)[:outer] for a, b in SPLITS.values() if (b > 1) == (outer == 2)}
        if head in known and rest in float_counts.factor_lists(len(rest), "complex") and prod(rest) % 64 == 0:
            return prod(head), Plan(prod(rest), rest, packing="complex")
    return None


def factor_lists(points: int, order: int) -> list[tuple[int, ...]]:
    """The factor lists of long fp32 plans of ``points`` points and an order."""
    if not ON_CHIP < points <= LONGEST:
        return []
    found: list[tuple[int, ...]] = []
    for rows, (a, b) in SPLITS.items():
        head = (a, b) if b > 1 else (a,)
        for rest in float_counts.factor_lists(order - len(head), "complex"):
            made = split(Plan(rows * prod(rest), (*head, *rest))) if rows * prod(rest) == points else None
            if made and made[0] == rows:
                found.append((*head, *rest))
    return found


def kernel_counts(
    plan: Plan, batch: int, channels: int, *, variant: str, capacity_bytes: float
) -> Counts | None:
    """Counts of one call; None without fp32 outer stages, or where they do not fit."""
    made = split(plan)
    if made is None:
        return None
    rows, row_plan = made
    pairs = (batch + 1) // 2
    middle = float_counts.kernel_counts(
        row_plan, pairs, channels * rows, gated=False, capacity_bytes=capacity_bytes
    )
    stages = [_stage(plan, rows, batch, channels, variant in GATED, inverse) for inverse in (False, True)]
    if middle is None or any(stage.shared_bytes_per_block > capacity_bytes for stage in stages):
        return None
    groups = ceil(8 * plan.n * pairs * channels / max(GROUP_BYTES, 8 * plan.n))
    parts = tuple(replace(part, launches=groups) for part in (stages[0], middle, stages[1]))
    return replace(
        middle,
        **{name: sum(getattr(part, name) for part in parts) for name in SUMMED},
        transforms=pairs * channels,
        source="long_float_counts: outer stages around a fused kernel",
        stages=parts,
    )


def _stage(plan: Plan, rows: int, batch: int, channels: int, gated: bool, inverse: bool) -> Counts:
    """One outer stage's counts."""
    a, b = SPLITS[rows]
    strip, warps, blocks = BLOCKS[rows]
    n2, pairs = plan.n // rows, channels * ((batch + 1) // 2)
    length = (plan.wanted if inverse else plan.signal) or plan.n
    found: dict[str, Any] = outer_float_counts.totals(
        *(a, b, n2),
        inverse=inverse,
        live=min(a, -(-length // (b * n2))),
        strip=strip,
        batch=batch,
        channels=channels,
        length=length,
        gated=gated,
    )
    gates = found["read_pregate"] if "read_pregate" in found else found["read_postgate"]
    read = gates + found["read_workspace" if inverse else "read_u"]
    written = found["written_y" if inverse else "written_workspace"]
    # What a block reads of the tables again comes from its SM's own cache.
    factor, lines = (b, a) if b > 1 else (a, 1)
    once = strip * (4 * factor + 16 * lines) + (8 * rows if b > 1 else 0)
    # A lane reaches one sample, 8 bytes of the intermediate or of shared memory, 16 bytes of tables at once.
    ends = (gates + found["written_y" if inverse else "read_u"]) / 128
    accesses = ends + (8 * plan.n * pairs + found["shared_read_bytes"] + found["shared_written_bytes"]) / 256
    return Counts(
        device_read_bytes=read,
        device_write_bytes=written,
        mma_flops=0,
        half_flops=0,
        fp32_flops=found["fp32_flops"],
        shared_bytes=128 * found["shared_wavefronts"],
        l2_bytes=read + written + pairs * (n2 // strip) * once,
        warp_instructions=instructions(
            products=0,
            fp32_flops=found["fp32_flops"],
            half_flops=0,
            words=0,
            accesses=accesses + found["read_constants"] / 512,
        ),
        transforms=pairs,
        launches=1,
        blocks=-(-pairs * (n2 // strip) // (1 if b > 1 else warps)),
        threads_per_block=32 * warps,
        shared_bytes_per_block=8 * rows * strip if b > 1 else 0,
        registers_per_thread=min(255, 65536 // (32 * warps * blocks) // 8 * 8),
        workers_per_block=1 if b > 1 else warps,
        fill_bytes_per_block=0,
        barriers_per_transform=n2 / strip if b > 1 else 0.0,
        exact=True,
        source="outer_float_counts: one stage",
        arithmetic="fp32",
        in_step=True,
    )
