"""Where the registers of the order-2 kernels lie in memory: pieces for the tile layer's copies, gathers and stores."""

from __future__ import annotations

from typing import Any


def copy_pieces(spec: Any, swizzle: int) -> Any:
    """A warp's copies of one sequence: each brings 32 times ``halves`` elements, so some rows.

    Of the two places of a lane the second is the one with the other swizzle, for rows where that bit has changed.
    """
    step = 32 * spec.halves
    count = -(-spec.rows_in * spec.n2 // step)
    return tuple(
        (int(swizzle and (i * step // spec.n2) & swizzle) // 2, i * step, i * step) for i in range(count)
    )


def rows_to_b(spec: Any) -> tuple[tuple[int, int, int], ...]:
    """Words of rows, two columns each, of both sequences -> B operand registers: two rows of one column each.

    Tiles of 16 rows, first of the one sequence; or a tile of eight rows of each.
    """
    tiles, chunk = spec.n2 // 8, spec.n2 // 16
    rows = spec.rows_in // 4
    pairs = [(part * rows + 2 * i) * chunk for part in range(2) for i in range(rows // 2)]
    return tuple(
        (pairs[i + r] + j // 2, pairs[i + r] + chunk + j // 2, j % 2)
        for i in range(0, len(pairs), 2)
        for j in range(tiles)
        for r in range(2)
    )


def rows_of_parts_to_b(spec: Any) -> tuple[int, ...]:
    """Blocks of two packed complex [N1 / 2, n2], transposed, as B operands whose rows are both parts, one by one."""
    column_tiles, own = spec.n2 // 8, spec.n1 // 16  # groups of eight rows of one sequence
    rows = [[(part * 2 + s) * own + y for part in range(2) for y in range(own)] for s in range(2)]
    return tuple(
        group[2 * k + r] * column_tiles + j
        for group in rows
        for k in range(own)
        for j in range(column_tiles)
        for r in range(2)
    )


def output_pieces(spec: Any, first_register: int, row_stride: int) -> Any:
    """Where a lane's outputs lie: (which lane offset, constant, registers).

    The lane offsets are 0 and 1 for rows upwards, left and right, and 2 and 3 for the mirrored rows.

    ``row_stride`` is the distance of two rows: n2 elements in memory, n2 / 2 words in shared memory.
    """
    column_tiles, chunk = spec.n2 // 8, spec.n2 // 16
    half = spec.n1 // 16
    pieces = []
    for group in range(spec.rows_out // 8):
        mirror = group >= half
        row = spec.n1 - 1 - 8 * (group - half) if mirror else 8 * group
        start = first_register + group * column_tiles
        pieces.append((2 * mirror, row * row_stride, tuple(start + j for j in range(chunk))))
        pieces.append(
            (2 * mirror + 1, row * row_stride, tuple(start + column_tiles - 1 - j for j in range(chunk)))
        )
    return tuple(pieces)
