"""What kernels of maps have in common: one warp's transform of one tile to points, and of points back to samples.

The mathematics, and how constants lie, are in `map_operands.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Side:
    """What is compiled for reading a map: rows and columns that may be other than zero, in multiples of 16."""

    seen_rows: int
    seen_columns: int
    halves: int
    """Samples that are loaded together."""
    spread: bool = False
    """Samples stand apart, zeros between them."""

    def constant_words(self, rows: int, columns: int) -> int:
        """Both factors."""
        return (columns * self.seen_columns + rows * self.seen_rows) // 2

    @property
    def words(self) -> int:
        """Registers of a map as it is loaded."""
        return self.seen_rows * self.seen_columns // 64

    @property
    def name(self) -> str:
        """In a kernel's name."""
        return f"{self.seen_rows}x{self.seen_columns}v{self.halves}" + ("s" if self.spread else "")


def points_of(tile: Any, rows: int, columns: int, seen_rows: int, seen_columns: int, slices: int = 1) -> Any:
    """``op(data, across, down)``: points of a map, or of one slice of its columns, in float32.

    ``across`` and ``down`` are where this lane's words of the factors lie.
    """
    row_tiles, seen_tiles, k_tiles, q_tiles = (
        rows // 16,
        seen_rows // 16,
        seen_columns // 16,
        columns // 16 // slices,
    )
    load_across = tile.load_shared(4 * k_tiles * q_tiles, 4)
    load_down = tile.load_shared(4 * row_tiles * seen_tiles, 4)
    contract_columns = tile.mma(seen_tiles, 2 * q_tiles, k_tiles)
    pack = tile.pack(seen_tiles * 4 * q_tiles)
    transpose = tile.transpose(
        tuple(
            (2 * k + r) * 2 * q_tiles + part * q_tiles + n
            for part in range(2)
            for k in range(seen_tiles)
            for n in range(q_tiles)
            for r in range(2)
        )
    )
    contract_rows = tile.dft_rows(row_tiles, q_tiles, seen_tiles, inverse=False)

    @tile.subroutine
    def transform(data, across, down):
        z = contract_columns(data, load_across(across, 128))
        return contract_rows(load_down(down, 128), transpose(pack(z)))

    return transform


def samples_of(
    tile: Any, rows: int, columns: int, wanted_rows: int, wanted_columns: int, parts: int = 1, strips: int = 1
) -> tuple[Any, Any]:
    """``op(points)``: an operand of sums and differences; ``op(operand, across, down)``: samples, or a strip of them.

    ``parts``: of the columns of points, in the order in which they come from the forward transform; ``strips``: of the
    columns of samples.
    """
    row_tiles, k_tiles, q_tiles = rows // 16, columns // 16, columns // 16 // parts
    out_groups, out_tiles = wanted_rows // 8, wanted_columns // 8 // strips
    count = rows * columns // 64  # points of a lane
    # As they come: [part, row group, column tile, e]; first all row groups of the first half, then the mirrors.
    in_order = tile.select(
        tuple(
            part * (count // parts) + (y * q_tiles + n) * 2 + e
            for y in range(rows // 8)
            for part in range(parts)
            for n in range(q_tiles)
            for e in range(2)
        )
    )
    fold = tile.fold_mirrors(count // 2)
    as_left = tile.select(
        tuple(
            ((2 * m + (r & 1)) * k_tiles + k) * 2 + (r >> 1)
            for m in range(row_tiles)
            for k in range(k_tiles)
            for r in range(4)
        )
    )
    load_across = tile.load_shared(2 * k_tiles * out_tiles, 4)
    load_down = tile.load_shared(2 * out_groups * row_tiles, 4)
    contract_columns = tile.mma(row_tiles, out_tiles, k_tiles)
    pack = tile.pack(2 * row_tiles * out_tiles)
    transpose = tile.transpose(
        tuple(
            (2 * k + r) * out_tiles + n for k in range(row_tiles) for n in range(out_tiles) for r in range(2)
        )
    )
    contract_rows = tile.mma(out_groups // 2, out_tiles, row_tiles)

    @tile.subroutine
    def operand(points):
        return as_left(fold(in_order(points)))

    @tile.subroutine
    def form(z, across, down):
        u = contract_columns(z, load_across(across, 128))
        return contract_rows(load_down(down, 128), transpose(pack(u)))

    return operand, form
