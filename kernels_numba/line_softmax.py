"""The softmax kernel: a row of a matrix for a warp, or for all warps of a block; fixed shift, or running maximum.

With a shift s of the row, ``y_i = e^(x_i - s) / sum_j e^(x_j - s)``: one pass over x for the sum, another one, that
comes from a cache, for the results. **async**: s = phi. Lanes and warps add up what they have, and need nothing of each
other before; a row any of whose ``x - phi`` is not in (a, b) is summed again as in **sync**: with the running maximum
of each lane, and sums scaled when lanes and warps are joined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba.tile.layout import WARP

WARPS = 8
EACH = 8
"""Elements that a lane takes at a time."""
SHORT = 1024
"""Rows up to this length are a warp's."""


@dataclass(frozen=True)
class Spec:
    """What is compiled into a kernel: ``halves`` elements an access, and whether a block's warps share a row."""

    dtype: str
    halves: int
    team: bool
    sync: bool
    warps: int = WARPS

    @property
    def shared_bytes(self) -> int:
        """Maximum, sum and flag of each warp."""
        return 4 * 3 * self.warps

    @property
    def name(self) -> str:
        """The kernel's name."""
        who = "team" if self.team else "warp"
        return f"softmax_{self.dtype}_{who}_h{self.halves}_{'sync' if self.sync else 'async'}"


VOCABULARY = "attention"
SIGNATURE = ("HALVES",) * 2 + ("INT",) * 2 + ("FLOAT",) * 3
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return 4


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function: halves ``x`` and ``y`` [rows, n], the number of rows, n, and float32 phi, a, b."""
    warps, team, sync = spec.warps, spec.team, spec.sync
    lane, warp, block, small, int64, barrier = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.small,
        tile.int64,
        tile.barrier,
    )
    pieces = ((0, 0, tuple(range(EACH // 2))),)
    load = tile.gather(pieces, EACH // 2, spec.halves, guarded=True)
    store = tile.store_pieces(pieces, spec.halves, guarded=True)
    widen, cut, less, outside = (
        tile.widen(EACH // 2),
        tile.cut(EACH, float("-inf")),
        tile.less(EACH),
        tile.any_outside(EACH),
    )
    exp, exp_floor, add, add1, times1 = (
        tile.exponentials(EACH),
        tile.exponentials(EACH, floor=True),
        tile.add(EACH),
        tile.add(1),
        tile.times(1),
    )
    largest, total, sum_lanes, max_lanes = (
        tile.largest(EACH),
        tile.total(EACH),
        tile.across("sum"),
        tile.across("max"),
    )
    fill, fill1, anchors, decays, decay = (
        tile.fill(EACH),
        tile.fill(1),
        tile.anchors(1),
        tile.decays(1),
        tile.decay,
    )
    any_bits, first_of, pack, quotient = tile.any_bits, tile.first, tile.pack(EACH // 2), tile.quotient(EACH)
    put, get = tile.put_rows(1), tile.get_float
    negative, one = float("-inf"), 1.0
    span = WARP * EACH
    step = span * warps if team else span

    def kernel(x, y, rows, n, phi, low, high):
        index = small(lane())
        w = small(warp())
        row = int64(block()) if team else int64(block()) * warps + w
        begin = small(span * w) if team else small(0)
        zero = phi - phi
        if row < rows:
            base = row * n
            turn = small(1 if sync else 0)
            m = phi
            l = zero  # noqa: E741
            while turn < 2:
                sums = fill(0.0)
                mine = fill1(0.0)
                most = fill1(negative)
                bad = small(0)
                at = begin
                while at < n:
                    place = small(at + EACH * index)
                    v = cut(widen(load(x, base, n, place, 0, 0, 0)), place, n)
                    if turn == 0:
                        d = less(v, fill1(phi))
                        bad = small(bad | outside(d, low, high))
                        sums = add(sums, exp(d))
                    else:
                        top = largest(most, v)
                        p = total(exp_floor(less(v, anchors(top))))
                        mine = add1(times1(mine, decays(most, top)), p)
                        most = top
                    at = small(at + step)
                flagged = small(any_bits(bad))
                if turn == 0:
                    mine = total(sums)
                    m = phi
                else:
                    top = max_lanes(most)
                    mine = times1(mine, decays(most, top))
                    m = first_of(top)
                l = first_of(sum_lanes(mine))  # noqa: E741
                if team:
                    put(w, fill1(m))
                    put(warps + w, fill1(l))
                    put(2 * warps + w, fill1(one if flagged != 0 else 0.0))
                    barrier()
                    # A warp without an element has l = 0 and no say in the maximum.
                    up = get(0)
                    i = small(1)
                    while i < warps:
                        other = get(i)
                        up = other if other > up else up
                        i = small(i + 1)
                    l = zero  # noqa: E741
                    flagged = small(0)
                    i = small(0)
                    while i < warps:
                        part = get(warps + i)
                        if turn == 1:
                            part = part * decay(get(i), up)
                        l = l + part  # noqa: E741
                        if get(2 * warps + i) != zero:
                            flagged = small(1)
                        i = small(i + 1)
                    m = up
                    barrier()
                turn = small(turn + 1)
                if turn == 1 and flagged == 0:
                    turn = small(2)
            shift = anchors(fill1(m))
            at = begin
            while at < n:
                place = small(at + EACH * index)
                v = cut(widen(load(x, base, n, place, 0, 0, 0)), place, n)
                store(y, base, n, place, 0, 0, 0, pack(quotient(exp(less(v, shift)), l)))
                at = small(at + step)

    return kernel
