"""Operations of the order-3 kernel, by what its spec asks for."""

from __future__ import annotations

from typing import Any

from kernels_numba import block_pieces as pieces
from kernels_numba import rounded_stages as stages
from kernels_numba.block_spec import Spec


def outer_stages(tile: Any, spec: Spec) -> tuple[Any, Any, Any]:
    """What contracts n1 and rounds, what multiplies by the outer twiddles, and what contracts k1."""
    row_tiles, registers = spec.rows // 16, spec.rows // 2
    right = spec.right_angle
    first = stages.first(tile, row_tiles, 4, spec.rows_in, right_angle=right, paired=spec.lanes)
    if right:
        last = tile.mma_from_parts(spec.last_rows // 16, 4, row_tiles, 2 * (spec.rows_out // 8 * 4))
        return first, tile.multiply_complex_shared(registers // 2), last
    last = tile.dft_rows(row_tiles, 4, row_tiles, inverse=True, lower_half=spec.rows_out < spec.rows)
    return first, tile.multiply_complex(registers), last


def inner_stages(tile: Any, spec: Spec) -> tuple[Any, Any, Any, Any]:
    """What contracts n2 and n3 (to those k3 that are kept), k3 and k2, and rounds."""
    row_tiles, column_tiles, bin_tiles = spec.n2 // 16, spec.n3 // 8, spec.kept3 // 8
    halves = spec.rounded
    return (
        stages.rows(tile, row_tiles, column_tiles, row_tiles, inverse=False, halves=halves),
        stages.columns(tile, row_tiles, bin_tiles, column_tiles // 2, inverse=False, halves=halves),
        stages.columns(tile, row_tiles, column_tiles, bin_tiles // 2, inverse=True, halves=halves),
        stages.rows(tile, row_tiles, column_tiles, row_tiles, inverse=True, halves=halves),
    )


def for_one_sequence(tile: Any, spec: Spec) -> tuple[Any, ...]:
    """Of half-length packing: the order of results, mirrors in the same lane, products with them, those of tile 0."""
    registers = spec.q // 64
    put = tile.store_shared_pieces(tuple((0, 32 * r, (r,)) for r in range(2 * registers)))
    select = tile.select(pieces.mirror_registers(spec.n2, spec.n3))
    weave, product = tile.select(pieces.woven(spec)), tile.multiply_mirror(registers)
    return (weave, select, product, put, *tile.gather_halves(2 * registers))


def outputs(tile: Any, spec: Spec) -> tuple[Any, Any, Any]:
    """What stores the first and the second sequence's results, and loads output gates."""
    kept = spec.rows_out // 8 * 4
    both = [pieces.output_pieces(spec, first) for first in (0, kept)]
    stores = (tile.store_pieces(x, spec.halves, guarded=spec.guarded) for x in both)
    return (*stores, tile.gather(both[0], kept, spec.halves, guarded=spec.guarded))
