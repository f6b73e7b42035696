"""Where the registers of the order-4 kernel lie in its exchange: pieces for the tile layer's gathers and scatters.

The exchange is [k1][tile][64 chunks of four words]; a chunk is two columns (or two pairs of columns), real and
imaginary parts. What a tile and a chunk stand for changes from stage to stage, but each stage writes the words that it
has read; docs/kernels.md has the table.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.deep_spec import Spec


def outer_writes(spec: Spec) -> Any:
    """Results of the outer stage: rows k1 of two groups; four registers (pairs over n2 of one n4) of both parts."""
    return tuple(
        (
            0,
            8 * y * spec.row_words + 4 * h,
            tuple(spec.n1 // 2 * part + 4 * y + 2 * h + j for j in range(2) for part in range(2)),
        )
        for y in range(spec.n1 // 8)
        for h in range(2)
    )


def rows_to_b(spec: Spec) -> Any:
    """A lane's words of rows 4 e + t, of both sequences -> registers (e, column tile): a row's two parts of a column.

    A word is two columns of one sequence. (With half-length packing it is such a register as it stands.) With
    right-angle packing there is one sequence, and a register is a column of two rows.
    """
    rows = spec.rows_in // 4
    if spec.right_angle:
        return tuple((4 * e + j // 2, 4 * e + 2 + j // 2, j % 2) for e in range(rows // 2) for j in range(4))
    return tuple((2 * e + j // 2, 2 * (rows + e) + j // 2, j % 2) for e in range(rows) for j in range(4))


def rows_in_order(spec: Spec) -> tuple[int, ...]:
    """Those registers in the order of a B operand, (tile of rows, column tile, r); -1 is a register of zeros."""
    registers = spec.rows_in * spec.parts // 8
    return tuple(
        4 * (2 * k + r) + j if 2 * k + r < registers else -1
        for k in range(spec.contracted * spec.parts // 16)
        for j in range(4)
        for r in range(2)
    )


MIDDLE_READS = ((0, 0, (0, 1, 2, 3)), (0, 4, (4, 5, 6, 7)))
"""A strip as B operand of [real parts; imaginary parts]: registers (column tile, part) are pairs over n2."""

MIDDLE_WRITES = ((0, 0, (0, 4, 1, 5)), (0, 4, (2, 6, 3, 7)))
"""The strip after the contraction: registers (part, column tile), pairs over n3 of one n4."""

INNER_READS = tuple((0, 128 * r, (r, 4 + r, 2 + r, 6 + r)) for r in range(2))
"""A tile as complex B operand: registers (part, column tile, r)."""

INNER_WRITES = tuple((0, 128 * y, (2 * y, 4 + 2 * y, 2 * y + 1, 4 + 2 * y + 1)) for y in range(2))
"""The tile after the inner convolution: registers (part, row group, column tile), pairs over n4."""


def back_reads(spec: Spec) -> Any:
    """A strip of two neighbouring k2, as INNER_WRITES left it: eight registers, pairs over n4."""
    return tuple((0, spec.tile_words * i, tuple(range(4 * i, 4 * i + 4))) for i in range(2))


BACK_PAIRS = tuple((2 * v + r, 4 + 2 * v + r, e) for v in range(2) for e in range(2) for r in range(2))
"""Those registers -> B operand of [real parts; imaginary parts], pairs over k2: (column tile, part)."""

BACK_WRITES = ((0, 0, (0, 4, 1, 5)), (1, 0, (3, 7, 2, 6)))
"""The strip after the contraction: registers (part, column tile); mirrored columns come in reverse order."""


def outer_reads(spec: Spec) -> Any:
    """A strip of the last stage: 16 registers of four k1, pairs over n4."""
    rows = ((r, i) for r in range(spec.n1 // 8) for i in range(2))
    return tuple(
        (0, (8 * r + i) * spec.row_words, tuple(range(8 * r + 4 * i, 8 * r + 4 * i + 4))) for r, i in rows
    )


def outer_pairs(spec: Spec) -> Any:
    """Those registers -> complex B operand, pairs over k1: (part, column tile, r).

    Lanes of mirrored columns have their halves swapped.
    """
    return tuple(
        (8 * r + 2 * (j & 1) + part, 8 * r + 4 + 2 * (j & 1) + part, j >> 1)
        for part in range(2)
        for j in range(4)
        for r in range(spec.n1 // 8)
    )


def outer_in_order(spec: Spec) -> tuple[int, ...]:
    """Those, of [real parts; imaginary parts], as a B operand: parts are tiles of 16 rows, or with 8 halves of one."""
    if spec.n1 == 16:
        return tuple(range(16))
    return tuple(4 * part + j for j in range(4) for part in range(2))


def twiddle_pairs(spec: Spec) -> Any:
    """Outer twiddles, stored two columns a register -> one column twice: both n2 of a pair have the same."""
    groups = spec.n1 // 8
    found = (
        (2 * (groups * part + y) + (j >> 1), j & 1)
        for part in range(2)
        for y in range(groups)
        for j in range(4)
    )
    return tuple((register, register, half) for register, half in found)


def output_pieces(spec: Spec, first_register: int) -> Any:
    """Where a lane's outputs lie: (lane offset; constant; registers), for each group of eight rows.

    A lane has eight columns of a row, in four registers of one sequence; with half-length packing in four registers
    of two samples each, and four more (`block_pieces.woven`) eight samples on.
    """
    return tuple(
        (
            0,
            8 * spec.unit * group * spec.q,
            tuple(range(first_register + 4 * group, first_register + 4 * group + 4)),
        )
        for group in range(spec.rows_out // 8)
    )
