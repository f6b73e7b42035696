"""Copies of a matrix whose rows begin on 16 bytes, for kernels that load no less: K padded, shifted by each phase.

Row n of a matrix [rows, K] of halves begins n K elements on. If K is not a multiple of 8, that is on 16 bytes only for
every ``phases``-th row; the first whole chunk of the others begins ``head(n) = (-n K) mod 8`` elements in. The kernels
of vector and flat products read w at its own chunks, so they want x at the same places: copy p of x begins at element
head(p). The full product wants both operands whole: copy 0 (head 0), padded with zeros.

    target[p, row, j] = source[row, head(p) + j]    for j < stride, zero beyond K

The product on warpgroups reads rows of w by words of two elements. Where K is odd, every other row begins within a
word, and is read from one element before; x has as many zeros in front, none or one, in its copies p = 0 and 1:

    target[p, row, j] = source[row, j - p]    zero outside 0 .. K - 1
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

CHUNK = 8


def phases(k: int) -> int:
    """How many places there are, within 16 bytes, at which rows of K halves begin."""
    return CHUNK // gcd(k, CHUNK)


def head(k: int, phase: int) -> int:
    """Elements of a row of this phase before its first whole chunk (at most K)."""
    return min(-phase * k % CHUNK, k)


def padded(k: int, *, led: bool = False) -> int:
    """K rounded up to whole chunks; ``led``: with room for a zero in front of it."""
    return -(-(k + led) // CHUNK) * CHUNK


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    dtype: str
    warps: int = 8
    overlap: bool = False
    """The launch after this one may begin early (compute capability 9)."""
    led: bool = False
    """Copies have zeros in front, instead of a head left out."""
    shared_bytes: int = 0

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        marks = "_l" * self.led + "_o" * self.overlap
        return f"realign_{self.dtype}_w{self.warps}{marks}"


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    warps, overlap, led = spec.warps, spec.overlap, spec.led
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    places, load = tile.places(1), tile.load_pairs(tuple((0, 0, 2 * i) for i in range(4)))
    store = tile.store_pieces(((0, 0, (0, 1, 2, 3)),), CHUNK, guarded=False)
    wait_for_previous, let_next_start = tile.wait_for_previous, tile.let_next_start

    def kernel(source, target, rows, k, stride, chunks):
        if overlap:
            wait_for_previous()
            let_next_start()
        item = small((block() * warps + warp()) * 32 + lane())
        # Lanes beyond the last chunk repeat it.
        item = small(item - (item - (chunks - 1)) * (item >= chunks))
        in_row = small(stride >> 3)
        row = small(divide(item, in_row))
        column = small(8 * (item - row * in_row))
        phase = small(divide(row, rows))
        row = small(row - phase * rows)
        skip = small(-phase if led else (8 - ((phase * (k & 7)) & 7)) & 7)
        x = load(source, skip + column, k, 0, 0, places(row, 0, row, k, 0))
        store(target, 0, 0, 8 * int64(item), 0, 0, 0, x)

    return kernel


VOCABULARY = "linear"
SIGNATURE = ("HALVES",) * 2 + ("INT",) * 4
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return 1
