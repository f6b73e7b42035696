"""Which registers of the decode-attention kernel lie where: pieces are (which offset, constant, registers)."""

from __future__ import annotations

from typing import Any

from kernels_numba.decode_spec import WEIGHT_STRIDE


def weight_pieces(tiles: int) -> Any:
    """A tile's weights by row: offset 0 for the lane's first key and query, 1 for the key 8 further on."""
    return tuple(
        (y, (8 * n + e) * WEIGHT_STRIDE, ((y * tiles + n) * 2 + e,))
        for y in range(2)
        for n in range(tiles)
        for e in range(2)
    )


def key_pieces(chunks: int, row_words: int) -> Any:
    """A operand registers from a tile of keys: lane 4 g + t reads 8 elements of keys g and g + 8 for each chunk of 32.

    The contraction runs over elements in the order that these reads give, which is that of the queries too.
    """
    return tuple(
        (c % 2, 16 * (c - c % 2) + 8 * y * row_words, tuple(8 * c + y + 2 * i for i in range(4)))
        for y in range(2)
        for c in range(chunks)
    )


def row_pieces(rows: int, widths: tuple[int, ...], size: int) -> Any:
    """Registers of rows of float32 sums by place: offset 0 for blocks of four a lane, 1 for those of two."""
    pieces, register = [], 0
    for row in range(rows):
        at = row * size
        for width in widths:
            pieces.append((0 if width == 4 else 1, at, tuple(range(register, register + width))))
            register += width
            at += 32 * width
    return tuple(pieces)


def parts_of(pieces: Any, parts: int, count: int, step: int) -> Any:
    """The same pieces of ``count`` registers for each of several parts that lie ``step`` words apart."""
    return tuple(
        (which, constant + part * step, tuple(part * count + register for register in registers))
        for part in range(parts)
        for which, constant, registers in pieces
    )


def product_pieces(tiles: int, size: int) -> Any:
    """Registers of sums made by tensor cores: 8 neighbouring elements of a row in two pieces."""
    blocks = size // 64
    return tuple(
        (
            0,
            (8 * n + e) * size + 64 * block + 4 * half,
            tuple(
                ((n * blocks + block) * 4 + i) * 4 + 2 * y + e
                for i in (2 * half, 2 * half + 1)
                for y in range(2)
            ),
        )
        for n in range(tiles)
        for e in range(2)
        for block in range(blocks)
        for half in range(2)
    )


def half_pieces(widths: tuple[int, ...]) -> Any:
    """The same for one row of packed halves."""
    return tuple(
        (which, constant, tuple(r // 2 for r in registers[::2]))
        for which, constant, registers in row_pieces(1, widths, 0)
    )
