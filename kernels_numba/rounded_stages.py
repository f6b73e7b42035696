"""Stages of transforms with their rounding to halves: of float32 sums, or, where errors leave room, by tensor cores.

A sequence's own result is half of what a pair's noise is spread over, so the error of a half signal through a right
angle is sqrt(1/2) of a pair's, and there is room for a rounding more in each inner stage: its products are rounded
before outputs and mirrors are added up. In fp16 tensor cores do that (`tile.dft_rows_halves`), which takes neither
instructions for rounding nor registers for float32 sums.
"""

from __future__ import annotations

from typing import Any


def in_halves(spec: Any) -> bool:
    """Whether tensor cores round inner products before outputs and mirrors are added up: of half signals in fp16."""
    return bool(spec.right_angle and spec.dtype == "fp16")


def rounded(tile: Any, product: Any, count: int) -> Any:
    """``op(a, b)``: a product, rounded to ``count`` registers of halves."""
    pack = tile.pack(count)

    def both(a, b):
        return pack(product(a, b))

    return tile.function(both)


def rows(tile: Any, *shape: int, inverse: bool, halves: bool) -> Any:
    """`tile.dft_rows`, rounded; ``shape``: tiles of rows, of columns and of what is contracted."""
    return _dft(tile, "dft_rows", shape, inverse, halves)


def columns(tile: Any, *shape: int, inverse: bool, halves: bool) -> Any:
    """`tile.dft_columns`, rounded; the rest as `rows`."""
    return _dft(tile, "dft_columns", shape, inverse, halves)


def _dft(tile: Any, name: str, shape: tuple[int, ...], inverse: bool, halves: bool) -> Any:
    if halves:
        return getattr(tile, f"{name}_halves")(*shape, inverse=inverse)
    return rounded(tile, getattr(tile, name)(*shape, inverse=inverse), 4 * shape[0] * shape[1])


def first(
    tile: Any,
    row_tiles: int,
    column_tiles: int,
    rows_in: int,
    *,
    right_angle: bool,
    paired: int = 8,
    parts: bool = False,
) -> Any:
    """The first stage, rounded, of ``rows_in`` rows: of two real sequences, or of a pair of them.

    ``paired``: see `tile.dft_rows`; ``parts``: the pair's factor is a real matrix of both parts.
    """
    if parts:
        return tile.mma_halves(2 * row_tiles, column_tiles, rows_in // 8)
    shape = (row_tiles, column_tiles, rows_in // 16)
    if right_angle:
        return tile.mma_to_parts_halves(*shape)
    product = tile.dft_rows(*shape, inverse=False, self_paired=paired)
    return rounded(tile, product, 4 * row_tiles * column_tiles)
