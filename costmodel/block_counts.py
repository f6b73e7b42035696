"""Exact counts of this project's fused order-3 convolution kernel, as closed forms.

:func:`totals` is plain arithmetic, as `kernel_counts.totals` is for order 2: given integers it returns integers,
given sympy symbols it returns expressions; a property test holds it equal to the counters of the kernel's CPU body.

Symbols: B sequences, H channels, L samples; P = N1 Q points, Q = N2 N3; ``fold`` parts of the columns share a product
of the outer stage (2 for N1 = 8, which fills half of one, else 1); ``rows_in`` and ``rows_out``, the live rows of the
[fold N1, Q / fold] matrix; a grid of ``blocks`` blocks of ``warps`` warps. Items are the H ceil(B / 2) pairs of
sequences of P samples, or, with ``half``-length packing, the H B sequences of 2 P samples, in either case P complex
points. Per item the kernel contracts n1 in Q / (32 fold) strips of 32 columns, does N1 inner convolutions of Q points,
and contracts k1 in as many strips again. Derivation of each line: docs/kernels.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

STRIP = 32
TOGETHER_POINTS = 256
"""Inner convolutions of at most this many points are done two at a time, and share their constants."""

SHAPES: dict[tuple[int, ...], tuple[int, int, int, bool]] = {
    (8, 16, 16): (3, 4, 2, True),
    (16, 16, 16): (2, 8, 2, True),
    (16, 16, 32): (3, 4, 1, False),
    (16, 32, 16): (3, 4, 1, False),
    (32, 16, 16): (3, 4, 1, False),
    (16, 32, 32): (2, 4, 1, False),
    (32, 16, 32): (2, 4, 1, False),
    (32, 32, 16): (2, 4, 1, False),
    (32, 32, 32): (1, 8, 1, False),
    (48, 16, 16): (2, 4, 1, False),
    (48, 16, 32): (1, 8, 1, False),
    (48, 32, 16): (1, 8, 1, False),
}
"""By factors, as the kernel chooses: blocks per SM, warps, strips copied ahead, outer twiddles in shared memory."""
TURNED_SHAPES: dict[tuple[int, ...], tuple[int, int, int, bool]] = {
    (8, 16, 16): (4, 4, 1, False),
    (16, 16, 16): (4, 4, 1, False),
    (16, 16, 32): (2, 8, 1, False),
    (16, 32, 16): (2, 4, 1, False),
    (24, 16, 16): (2, 4, 1, False),
    (32, 16, 32): (1, 8, 2, False),
}
"""The same with right-angle packing."""
LEAN = ((24, 16, 16), (24, 32, 16), (32, 16, 32), (32, 32, 16))
"""Of these the lists whose inner convolutions are always two at a time."""
OTHER_SHAPE = (1, 8, 1, False)
"""The same for the other lists that it takes."""
OTHERS = [
    (n1, n2, n3) for n2 in (16, 32) for n3 in (16, 32) for n1 in range(16, 112, 16) if n1 * n2 * n3 <= 32768
]


@dataclass(frozen=True)
class Shape:
    """One block: what it is made of, and the shared memory it takes."""

    blocks_per_sm: int
    warps: int
    ring: int
    tables_shared: bool
    shared_bytes: int


def shapes(packing: str) -> list[tuple[int, ...]]:
    """The factor lists that the kernel takes with a packing."""
    if packing == "right-angle":
        inner = [(n2, n3) for n2 in (16, 32) for n3 in (16, 32)]
        longer = [(n1, *pair) for n1 in (16, 24, 32, 48) for pair in inner if 2 * n1 * prod(pair) <= 32768]
        return [(8, 16, 16), *longer]
    least = {"pair": 8, "half": 16}.get(packing)
    known = [*SHAPES, *(f for f in OTHERS if f not in SHAPES)]
    return [f for f in known if least is not None and f[0] >= least]


def fold_of(n1: int) -> int:
    """How many parts of the columns share a product of the outer stage."""
    return max(1, 16 // n1)


def last_rows(n1: Any, *, fold: Any = 1, right_angle: bool = False) -> Any:
    """Rows of the last factor: cosines and sines; of right-angle packing the real samples, as whole tiles."""
    if not right_angle:
        return fold * n1
    return -(-n1 // 32) * 16


def factor_words(n1: Any, n2: Any, n3: Any, rows_in: Any, *, fold: Any = 1, right_angle: bool = False) -> Any:
    """32-bit words of the six DFT factors (real, half precision) and the two inner twiddles (complex)."""
    rows, last = fold * n1, last_rows(n1, fold=fold, right_angle=right_angle)
    return (rows * rows_in + rows * last + 2 * n2 * n2 + 2 * n3 * n3) // 2 + 2 * n2 * n3


def block_shape(
    factors: tuple[int, ...],
    rows_in: int,
    *,
    pregate: bool,
    postgate: bool,
    capacity_bytes: float,
    half: bool = False,
    right_angle: bool = False,
) -> Shape | None:
    """The block that the kernel takes on a GPU with ``capacity_bytes`` of shared memory a block; None: too little.

    With right-angle packing the first of ``factors`` counts the k1 of both sequences.
    """
    n1, n2, n3 = factors
    known, kept = (TURNED_SHAPES, (n1 // 2, n2, n3)) if right_angle else (SHAPES, factors)
    blocks, warps, ring, tables = known.get(kept, OTHER_SHAPE)
    if pregate or postgate:
        ring, tables = 1, False
        if prod(factors) <= 8192:
            blocks, warps = min(3, blocks * warps // 4), 4
    # Two k1 of the exchange, padded against bank conflicts.
    pair_words = n2 * (2 * n3 + 8) + (4 if half or right_angle else 8)
    after = prod(factors) > 4096  # gates come after their sequences, into the same place
    stage_words = rows_in * STRIP * (2 if pregate and not after else 1)

    def size() -> int:
        words = factor_words(n1, n2, n3, rows_in, fold=fold_of(n1), right_angle=right_angle)
        words += (1 if right_angle else 2) * prod(factors) if tables else 0
        return 4 * (words + n1 // 2 * pair_words + warps * ring * stage_words)

    for step in range(4):  # what the kernel gives up, in order, where shared memory is short
        if size() <= capacity_bytes:
            break
        if step == 0:
            tables = False
        elif step == 1:
            ring = 1
        else:
            warps = min(warps, 4 if step == 2 else 2)
    if size() > capacity_bytes:
        return None
    return Shape(blocks, warps, ring, tables, size())


def products(n1: Any, n2: Any, n3: Any, rows_in: Any, *, fold: Any = 1, right_angle: bool = False) -> Any:
    """Tensor-core instructions (16 x 8 x 16) of one pair: two real products of the factor's size in each stage."""
    tiles, last = fold * n1 // 16, last_rows(n1, fold=fold, right_angle=right_angle) // 16
    outer = n2 * n3 // (fold * STRIP) * 8 * tiles * (rows_in // 16 + last)
    inner = n1 * 4 * (n2 // 16) * (n3 // 8) * (n2 // 16 + n3 // 16)
    return outer + inner


def totals(
    n1: Any,
    n2: Any,
    n3: Any,
    rows_in: Any,
    rows_out: Any,
    *,
    batch: Any,
    channels: Any,
    length: Any,
    blocks: Any,
    warps: Any,
    tables_shared: bool,
    together: bool,
    fold: Any = 1,
    half: bool = False,
    right_angle: bool = False,
    lean: bool = False,
    rounded: bool = False,
    pregate: bool = False,
    postgate: bool = False,
    scaled: bool = False,
) -> dict[str, Any]:
    """All counters of one launch, by name.

    ``right_angle``: two sequences of at most N / 2 samples, each as N / 2 complex points; N1 counts the k1 of both,
    which share outer twiddles and spectrum, and the outer stages need no additions.

    ``together``: two inner convolutions share their constants, Q <= `TOGETHER_POINTS` (not with ``half``); with
    ``lean`` any do. ``rounded``: inner products are rounded before they are added up, in halves.
    """
    channel_items = batch if half else (batch + 1) // 2
    q = n2 * n3
    n, rows = n1 * q, fold * n1
    strips = q // (fold * STRIP)
    items = channels * channel_items
    words = factor_words(n1, n2, n3, rows_in, fold=fold, right_angle=right_angle)
    served = 2 if right_angle else 1
    sequences = 2 * batch * channels * length
    # Half-precision constants of the inner convolution: factors forward and inverse, twiddles forward and inverse.
    inner = 4 * n2 * n2 + 4 * n3 * n3 + 8 * q
    outer = strips * 2 * rows * (rows_in + last_rows(n1, fold=fold, right_angle=right_angle))
    constants = outer + n1 * inner // (2 if (together or lean) and not half else 1)
    staged = 128 * strips * rows_in * (2 if pregate else 1)
    table = 8 * n // served if tables_shared else 0
    first = (
        128 * rows // served * warps * blocks
    )  # outer twiddles of each warp's first strip, loaded an item ahead
    exchanged = 8 * n  # written once, read once: two exchanges of 4 bytes a point
    # Half-length packing: the tile k1 = 0 is written, and its mirror -k gathered, a half element a lane. Mirrors of a
    # row group are its neighbour rows, on banks of their own, but rows k2 = 0 and N2 / 2 are their own mirrors: in the
    # N3 accesses of their groups they meet another row, and in 4 of those k3 = 0 and N3 / 2 meet another column too.
    mirrored, gathered, conflicts = (4 * q, 8 * q, n3 + 4) if half else (0, 0, 0)
    shared_read = items * (staged + constants + table + exchanged + gathered)
    filled = 4 * words + table
    rows_kept = 64 * strips * rows_out
    outer_additions = 0 if right_angle else 2 * n + (2 * n if rows_out == rows else n)
    gates = (64 * strips * rows_in if pregate else 0) + (rows_kept if postgate else 0)
    return {
        "read_u": sequences,
        "read_pregate": sequences if pregate else 0,
        "read_postgate": sequences if postgate else 0,
        "read_spectrum": (8 if half else 4) * n // served * items,
        "read_scales": 4 * warps * items if scaled else 0,
        "read_constants": 4 * words * blocks,
        "read_tables": (table * blocks if tables_shared else 8 * n // served * items + first)
        + mirrored * items,
        "written_y": sequences,
        "shared_read_bytes": shared_read,
        "shared_written_bytes": filled * blocks + items * (staged + exchanged + mirrored),
        "shared_wavefronts": (shared_read + items * (exchanged + mirrored)) // 128 + items * conflicts,
        "bank_conflicts": items * conflicts,
        "mma_m16n8k16": items * products(n1, n2, n3, rows_in, fold=fold, right_angle=right_angle),
        "fp32_flops": items * ((0 if rounded else 8 * n) + outer_additions + (rows_kept if scaled else 0)),
        "half_flops": items * ((38 if half or rounded else 30) * n + gates),
        "transposes": items * n // 32,
        "barriers": blocks + 3 * items,
    }
