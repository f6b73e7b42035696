"""Exact counts of the kernel that sums a filter's gradient over the batch in fp32, as closed forms.

As `float_counts` for the convolution; a property test holds them equal to the counters of the kernel's CPU body. A
transform of N = S P points is S parts of P = r1 r2 ... rp, each a unit of work of a channel and a share of its pairs.
``together`` units share a block and take ``per_share`` pairs each, u and dy of every one: two transforms a pair. Of the
last units of a grid some are missing: their threads do the first unit again and store nothing.
"""

from __future__ import annotations

from math import lcm, prod

from costmodel.float_counts import _conflicts, transform_flops, twiddles

CORRELATE_FLOPS = 8
"""Of conj(Z) W and its sum, a point."""
TURN_FLOPS = 6


def totals(
    factors: tuple[int, ...],
    parts: int,
    *,
    together: int,
    padding: tuple[int, int, int],
    batch: int,
    channels: int,
    length: int,
    guarded: bool,
    shares: int,
    per_share: int,
    pregate: bool = False,
    postgate: bool = False,
) -> dict[str, int]:
    """Totals of one launch, under the names of the CPU body's counters; zero counts are included.

    Args:
        factors: r1, ..., rp of a part.
        parts: S.
        together: units of a block.
        padding: as in `float_counts.totals`.
        batch: B.
        channels: H.
        length: L.
        guarded: accesses are masked one by one.
        shares: of the pairs of a channel,
        per_share: and the pairs of each.
        pregate: a gate on the inputs,
        postgate: and on the gradients.
    """
    points, held = prod(factors), lcm(*factors)
    threads = points // held
    steps = [prod(factors[i + 1 :]) for i in range(len(factors))]
    groups = [held // r for r in factors]
    units = channels * parts * shares
    slots = -(-units // together) * together  # units, and threads that do the first again
    sides = 2 * per_share  # transforms of a unit
    lanes = slots * threads * sides
    quads, products = twiddles(factors, threads, held)
    flops = TURN_FLOPS * products
    flops += sum(g * transform_flops(r, r, r) for r, g in zip(factors, groups, strict=True))
    if parts > 1:
        flops += held * ((TURN_FLOPS + 2) * parts + TURN_FLOPS)
    gates = int(pregate) + int(postgate)
    gate_flops = gates * slots * threads * per_share * parts * 2 * held
    exchanges = len(factors) - 1
    moved = 8 * held * exchanges
    conflicts = (
        slots
        // together
        * sides
        * _conflicts(factors, threads, groups, steps, False, together, padding, 0)
        // 2
    )
    if guarded:
        again = (slots - units) * min(2 * per_share, batch)
        read = 4 * length * (parts * batch * channels + again)
    else:
        read = 4 * slots * 2 * per_share * parts * points
    within_warp = threads <= 32 and 32 % threads == 0
    return {
        "read_u": read,
        "read_dy": read,
        "read_pregate": read if pregate else 0,
        "read_postgate": read if postgate else 0,
        "read_constants": lanes * 16 * quads,
        "read_tables": lanes * 8 * held if parts > 1 else 0,
        "read_roots": lanes // 32 * 8 * parts if parts > 1 else 0,  # a warp reads one number
        "written_sums": 8 * points * units,
        "shared_read_bytes": lanes * moved,
        "shared_written_bytes": lanes * moved,
        "shared_wavefronts": lanes * 2 * moved // 128 + conflicts,
        "bank_conflicts": conflicts,
        "fp32_flops": lanes * flops + slots * threads * per_share * CORRELATE_FLOPS * held + gate_flops,
        "barriers": 0 if within_warp else slots // together * sides * (exchanges + 1),
    }
