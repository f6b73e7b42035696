"""Where the registers of the order-3 kernel lie in memory: pieces for the tile layer's gathers and scatters."""

from __future__ import annotations

from typing import Any

from kernels_numba.block_spec import STRIP_WORDS, Spec


def copy_pieces(spec: Spec) -> Any:
    """A warp's copies of one strip of one sequence: each brings ``halves`` rows of 32 columns.

    Of the two places of a lane the second is the one with the other swizzle, for rows where that bit has changed.
    """
    rows = [spec.halves * i for i in range(spec.rows_in // spec.halves)]
    return tuple(((row >> 1) & 1, 32 * row, row_offset(spec, row)) for row in rows)


def second_exchange_pieces(spec: Spec) -> Any:
    """Where a lane's inner results go: (lane offset 0/1 rows upwards plus/minus, 2/3 mirrored rows; ...).

    The fragment is (low, high): registers of two k1 for columns e = 0 and e = 1 of each packed register, each
    [real, imaginary][row group][column tile].
    """
    column_tiles, inner = spec.n3 // 8, spec.q // 64
    half_rows, half_columns = spec.n2 // 16, column_tiles // 2
    pieces = []
    for part in range(2):
        for group in range(spec.n2 // 8):
            mirror = group >= half_rows
            row = spec.n2 - 8 - 8 * (group - half_rows) if mirror else 8 * group
            row_at = row * STRIP_WORDS if spec.n3 == 32 else row // 2 * STRIP_WORDS
            for j in range(half_columns):
                register = part * inner + group * column_tiles + j
                low, high = register, 2 * inner + register
                pieces.append((2 * mirror, row_at + 32 * part + 8 * j, (low, high)))
                low, high = low + half_columns, high + half_columns
                back = 8 * (spec.n3 // 8 - 1 - j)
                pieces.append((2 * mirror + 1, row_at + 32 * part + back, (high, low)))
    return tuple(pieces)


def row_offset(spec: Spec, row: int) -> int:
    """Samples from the first row of the outer stage's matrix to another: n1, and the part of the columns."""
    return row % spec.n1 * spec.q + row // spec.n1 * (spec.q // spec.fold)


def output_pieces(spec: Spec, first_register: int) -> Any:
    """Where a lane's outputs lie: (lane offset: 0 rows upwards, 1 mirrored rows; constant; registers)."""
    half = spec.rows // 16
    pieces = []
    for group in range(spec.rows_out // 8):
        mirror = group >= half
        row = spec.n1 - 1 - spec.lanes * (group - half) if mirror else spec.lanes * group
        start = first_register + 4 * group
        pieces.append((int(mirror), row * spec.q, tuple(range(start, start + 4))))
    return tuple(pieces)
