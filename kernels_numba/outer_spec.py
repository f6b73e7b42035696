"""What is compiled into one outer stage of a long transform, and its constant operands; see `outer_stage.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.operands import factor, factor_scale, mirrored, rows_read
from kernels_numba.tile import layout

SPLITS: dict[int, tuple[int, int]] = {
    16: (16, 1),
    32: (32, 1),
    256: (16, 16),
    512: (16, 32),
    1024: (32, 32),
}
"""By rows N1, the one or two factors whose product they are."""
STRIPS = (32, 64)


@dataclass(frozen=True)
class Spec:
    """One kernel: rows ``n1 = a b``, of ``n2`` columns, taken ``strip`` columns at a time.

    ``halves``, ``guarded``, ``pregate``, ``postgate``, ``twice``, ``scaled``: as for the fused kernels. ``half_in`` and
    ``half_out``: only the first half of the rows holds signal, or is wanted.
    """

    a: int
    b: int
    n2: int
    dtype: str
    inverse: bool
    strip: int = 64
    halves: int = 8
    guarded: bool = False
    pregate: bool = False
    postgate: bool = False
    twice: bool = False
    scaled: bool = False
    half_in: bool = False
    half_out: bool = False
    warps: int = 8
    blocks: int = 2
    """Blocks on an SM that the compiler leaves registers for."""
    copied: bool = False
    """Strips come by asynchronous copies into the exchange, not by loads into registers; strips of 64 columns only."""

    kept: int = 0
    """Rows of the intermediate that are not left out; 0: none is. Which they are says a table after the constants."""

    @property
    def rows_kept(self) -> int:
        """Rows of the intermediate."""
        return self.kept or self.n1

    @property
    def n1(self) -> int:
        """Rows."""
        return self.a * self.b

    @property
    def rows_in(self) -> int:
        """Of the first factor forward, the rows that can hold signal, as far as products can be spared."""
        return self.a // 2 if self.half_in and self.a == 32 and not self.inverse else self.a

    @property
    def n(self) -> int:
        """Points of the long transform."""
        return self.n1 * self.n2

    @property
    def name(self) -> str:
        """For error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        parts = f"{self.a}x{self.b}_of_{self.n2}" if self.b > 1 else f"{self.a}_of_{self.n2}"
        gates += "_twice" if self.twice else ""
        live = ("_in" if self.half_in else "") + ("_out" if self.half_out else "")
        live = f"{live}half" if live else ""
        flags = ("_guarded" if self.guarded else "") + ("_scaled" if self.scaled else "")
        way = "inverse" if self.inverse else "forward"
        flags += f"_rows{self.kept}" if self.kept else ""
        block = f"s{self.strip}_w{self.warps}b{self.blocks}" + ("_copied" if self.copied else "")
        return f"outer_{way}_{parts}{live}_{self.dtype}_v{self.halves}{gates}{flags}_{block}"

    @property
    def strips(self) -> int:
        """Strips of a row."""
        return self.n2 // self.strip

    @property
    def row_words(self) -> int:
        """A row of one part in the exchange: a strip, and padding against bank conflicts."""
        return self.strip // 2 + 4

    @property
    def first(self) -> int:
        """The factor that is contracted first."""
        return self.b if self.inverse and self.b > 1 else self.a

    @property
    def group_words(self) -> int:
        """Rows of one output of the first factor, for all of the other, and padding."""
        return self.n1 // self.first * self.row_words + 4

    @property
    def part_words(self) -> int:
        """All rows of one part."""
        return self.first * self.group_words

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: the exchange between two factors."""
        return 8 * self.part_words if self.b > 1 else 0


TUNED: dict[int, tuple[int, int, int, bool]] = {
    16: (64, 4, 4, False),
    32: (32, 4, 4, False),
    256: (64, 8, 2, True),
    512: (32, 8, 2, False),
    1024: (32, 16, 1, False),
}
"""By rows: columns of a strip, warps of a block, blocks on an SM, and whether strips are copied."""


def outer_spec(split: Any, dtype: str, *, inverse: bool, **choices: Any) -> Spec:
    """The outer stage of a `long_plans.Split`, forward or inverse."""
    a, b = split.pair
    strip, warps, blocks, copied = TUNED[a * b]
    copied = copied and not (inverse and choices.get("kept"))
    block: dict[str, Any] = {"strip": strip, "warps": warps, "blocks": blocks, "copied": copied}
    return Spec(a, b, split.inner.n, dtype, inverse, **block | choices)


def columns_of_lane(strip: int, spread: bool) -> tuple[int, int, int]:
    """First column that lane group g loads is ``g // 2 x + g % 2 y``; returns (x, y, columns).

    A thread's accumulators are the columns of groups 2 t and 2 t + 1. ``spread``: half a strip apart, so that four
    threads make 64 contiguous bytes of a row; so they also read from shared memory without bank conflicts.
    """
    columns = strip // 8
    if spread and strip == 64:
        return columns, 4 * columns, columns
    return 2 * columns, columns, columns


def scales(spec: Spec) -> float:
    """What undoes the scales of the DFT factors."""
    undone = factor_scale(spec.a, 0.0, spec.dtype)
    return 1 / (undone * (factor_scale(spec.b, 0.0, spec.dtype) if spec.b > 1 else 1.0))


@lru_cache(maxsize=32)
def constants(a: int, b: int, dtype: str, inverse: bool, rows_in: int) -> NDArray[np.int32]:
    """Words: the first factor, the second, and the complex float32 between, [second index, row group, lane group].

    Forward a is contracted first, its frequencies turned by exp(-2 pi i ka n_b / (a b)); inverse b is.
    """
    first, second = (b, a) if inverse and b > 1 else (a, b)

    def operand(n: int, order: NDArray[np.intp], live: int) -> NDArray[np.int32]:
        matrix = factor(n, order, mirrored(n, self_paired=True), shift=0.0, dtype=dtype)[:, :live]
        return layout.pack_operand(matrix, layout.a_index(n // 16, live // 16), dtype)

    parts = [operand(first, rows_read(first), first if inverse else rows_in)]
    if b > 1:
        parts.append(operand(second, np.arange(second), second))
        slots = mirrored(first, self_paired=True)
        turn = np.exp((2j if inverse else -2j) * np.pi * np.outer(np.arange(second), slots) / (a * b))
        parts.append(turn.astype(np.complex64).reshape(-1).view(np.int32))
    words = np.concatenate(parts)
    words.setflags(write=False)
    return words


def constant_words(spec: Spec) -> int:
    """Words of the constants; the table of rows follows them."""
    first, second = (spec.b, spec.a) if spec.inverse and spec.b > 1 else (spec.a, spec.b)
    between = 0 if spec.b == 1 else second * second // 2 + 2 * spec.n1
    return first * (first if spec.inverse else spec.rows_in) // 2 + between


def operand_key(spec: Spec, rows: tuple[int, ...] = ()) -> tuple:
    """What the constant buffer depends on; ``rows``: those of the intermediate that are kept, if not all."""
    return (spec.a, spec.b, spec.dtype, spec.inverse, spec.rows_in, rows)


def operands(
    a: int, b: int, dtype: str, inverse: bool, rows_in: int, rows: tuple[int, ...] = ()
) -> tuple[NDArray[np.int32], ...]:
    """The constant buffer: the constants, where each row is in the intermediate (after its end: nowhere), and marks.

    The marks, float32, say for each ka whether any row of it is there.
    """
    words = constants(a, b, dtype, inverse, rows_in)
    if not rows:
        return (words,)
    places = np.full(a * b, len(rows), np.int32)
    places[list(rows)] = np.arange(len(rows))
    return (np.concatenate([words, places, marks_of_rows(a, rows).view(np.int32)]),)


def marks_of_rows(a: int, rows: tuple[int, ...]) -> NDArray[np.float32]:
    """[A]: 1 where a row k1 = ka + A kb is kept for any kb, else 0."""
    marks = np.zeros(a, np.float32)
    marks[np.array(rows) % a] = 1
    return marks


def min_blocks(spec: Spec) -> int:
    """Blocks on an SM that the compiler must leave registers for."""
    return spec.blocks
