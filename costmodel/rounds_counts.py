"""Exact counts of the fused fp32 kernel whose points stay in shared memory.

As `float_counts`: closed forms for everything but bank conflicts, which are counted over the accesses of one item; a
property test holds all of it equal to the counters of the kernel's CPU body.

Symbols: P = r1 r2 ... rp points, of which stage i has P / r_i butterflies. Nothing depends on the grid.
Derivation: docs/kernels.md.
"""

from __future__ import annotations

from math import prod
from typing import Any

from costmodel.counts import Counts
from costmodel.float_counts import SPLIT_POINTS, counts_of, transform_flops
from monarch import Plan


def _kernel() -> Any:
    """The kernel's shapes; loaded at first use."""
    from kernels_numba import rounds_spec

    return rounds_spec


def factor_lists(order: int, packing: str) -> list[tuple[int, ...]]:
    """The factor lists of an order that the kernel runs."""
    return [f for f in _kernel().PACKINGS.get(packing, ()) if len(f) == order]


def twiddles(radix: int, step: int) -> tuple[int, int]:
    """(accesses of 16 bytes, complex products) of one butterfly."""
    if radix * step >= SPLIT_POINTS and radix % 4 == 0:
        return -(-(3 + radix // 4 - 1) // 2), 3 * (radix // 4) + radix - 4
    return -(-radix // 2), radix - 1


def totals(
    factors: tuple[int, ...],
    rows_in: int,
    rows_out: int,
    *,
    half: bool,
    batch: int,
    channels: int,
    length: int,
    pregate: bool = False,
    postgate: bool = False,
    complex_data: bool = False,
) -> dict[str, int]:
    """Totals of one launch, under the names of the CPU body's counters; arguments as of `float_counts.totals`."""
    points = prod(factors)
    steps = [prod(factors[i + 1 :]) for i in range(len(factors))]
    first = factors[0]
    butterflies = [points // r for r in factors]
    items = channels * (batch if half else -(-batch // 2))

    flops = (14 if half else 6) * points
    quads = 0
    for r, s, n in list(zip(factors, steps, butterflies, strict=True))[:-1]:
        accesses, products = twiddles(r, s)
        flops += 2 * 6 * products * n
        quads += 2 * accesses * n
    flops += sum(2 * n * transform_flops(r, r, r) for r, n in zip(factors[1:], butterflies[1:], strict=True))
    flops += butterflies[0] * (
        transform_flops(first, rows_in, first) + transform_flops(first, first, rows_out)
    )
    flops += (6 if complex_data else 2) * butterflies[0] * (rows_in * pregate + rows_out * postgate)

    moved = 8 * points * (2 * (len(factors) - 1) + half)
    brought = 8 * butterflies[0] * rows_in  # through the lane's own places
    conflicts = items * _conflicts(factors, rows_in, half)
    samples = 4 * batch * channels * length
    return {
        "read_u": samples,
        "read_pregate": samples if pregate else 0,
        "read_postgate": samples if postgate else 0,
        "read_spectrum": items * 8 * points * (2 if half else 1),
        "read_constants": items * 16 * quads,
        "read_tables": items * 12 * butterflies[-1] if half else 0,
        "read_scales": 0,
        "written_y": samples,
        "shared_read_bytes": items * (moved + brought),
        "shared_written_bytes": items * (moved + brought),
        "shared_wavefronts": items * (2 * moved + brought) // 128 + conflicts,
        "bank_conflicts": conflicts,
        "fp32_flops": items * flops,
        "mma_m16n8k16": 0,
        "half_flops": 0,
        "transposes": 0,
        "barriers": items * 2 * (len(factors) - 1),
    }


def _conflicts(factors: tuple[int, ...], rows_in: int, half: bool) -> int:
    """Passes beyond the fewest for one item: half a warp wants 16 places that differ modulo 16."""
    import numpy as np

    kernel = _kernel()
    shape = kernel.shape_of(factors)

    def extra(places: Any) -> int:
        """Of accesses [.., 16]."""
        found = 0
        for lanes in places.reshape(-1, 16):
            found += int(np.bincount(lanes % 16).max()) - 1
        return found

    inner = []
    for stage in shape.stages:
        begin = shape.at(shape.place(stage, np.arange(shape.points // stage.radix), 0))
        inner.append(extra(begin))
    first, *middle, last = (n * stage.radix for n, stage in zip(inner, shape.stages, strict=True))
    # Every stage reads and writes its places both ways; of the first way and the last the ends are the samples'.
    total = 2 * first + inner[0] * rows_in + 4 * sum(middle)
    if not half:
        return total + 2 * last
    rows, radix = kernel.pairs_of_rows(factors), factors[-1]
    total += (
        3 * radix * extra(shape.at(radix * rows))
    )  # transformed points are written once more, for the mirrors
    words = kernel.places_of_pairs(factors).reshape(3, 2, -1) // 2
    starts = words[1:].reshape(2, 2, -1)
    for start, of_zero in starts:
        for q in range(radix):
            total += extra((of_zero if q == 0 else start) + shape.at(radix - 1 - q))
    return total


def kernel_counts(
    plan: Plan, batch: int, channels: int, *, gated: bool, capacity_bytes: float
) -> Counts | None:
    """Counts of one call, or None where the points do not fit into shared memory."""
    spec = _kernel().make_spec(plan, pregate=gated, postgate=gated)
    if spec.shared_bytes > capacity_bytes:
        return None
    single = plan.packing == "half"
    if plan.packing == "complex":  # a pair of real sequences for every complex one
        batch *= 2
    items = channels * (batch if single else -(-batch // 2))
    found = totals(
        plan.factors,
        spec.rows_in,
        spec.rows_out,
        half=single,
        batch=batch,
        channels=channels,
        length=plan.signal or plan.n,
        pregate=gated,
        postgate=gated,
        complex_data=plan.packing == "complex",
    )
    return counts_of(plan, spec, found, items, channels, registers=128)
