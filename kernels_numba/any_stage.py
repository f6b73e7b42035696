"""What the kernel of any factors is made of: a stage before the last, and where samples and results lie."""

from __future__ import annotations

from typing import Any

from kernels_numba.any_spec import HELD, Spec, strips


class Stage:
    """A stage before the last: where its strips lie, and its operations."""

    def __init__(self, tile: Any, spec: Spec, i: int) -> None:
        factors, strides, steps = spec.factors, spec.layout.strides, spec.layout.steps
        self.factor, self.stride, self.step = factors[i], strides[i], steps[i]
        self.strips = strips(spec)[i]
        # A strip is 16 columns of one row; rows are those of the other index, where there is one.
        other = 1 - i if len(factors) > 2 else None
        self.rows_apart = 0 if other is None else strides[other]
        self.rows_in_table = steps[1] if other == 1 else 0
        stored = self.factor // 8
        shared = self.factor not in spec.cached
        self.held = shared and self.factor <= HELD
        self.at = spec.constant_places[self.factor] + (spec.layout.exchange_words if shared else 0)
        live, kept = (spec.rows_in, spec.rows_out) if i == 0 else (self.factor, self.factor)
        self.in_tiles, self.all_tiles = live // 8, stored
        self.chunk, self.chunk_out = _chunk(stored), _chunk(kept // 8)
        self.turns, self.turns_out = stored // self.chunk, kept // 8 // self.chunk_out
        self.next_chunk, self.next_out = (128 * stored * n for n in (self.chunk, self.chunk_out))

        def operations(chunk: int, k_tiles: int) -> tuple[Any, Any, Any]:
            """To hold a factor, to multiply by one that is held, and by one that is not."""
            pieces = tuple(
                (0, 128 * (m * stored + k), tuple(range(4 * (m * k_tiles + k), 4 * (m * k_tiles + k) + 4)))
                for m in range(chunk)
                for k in range(k_tiles)
            )
            return (
                tile.load_pieces(pieces, 4 * chunk * k_tiles),
                tile.mma(chunk, 2, k_tiles),
                tile.rows_product(chunk, 2, k_tiles, stored=stored, shared=shared),
            )

        self.forward, self.inverse = operations(self.chunk, live // 8), operations(self.chunk_out, stored)
        self.get = tile.load_pieces(
            tuple(
                (0, (8 * k + r) * self.stride, (4 * k + r, 4 * k + 2 + r))
                for k in range(stored)
                for r in range(2)
            ),
            4 * stored,
        )
        self.put = tile.store_shared_pieces(
            tuple((0, 8 * m * self.stride, tuple(range(4 * m, 4 * m + 4))) for m in range(self.chunk))
        )
        self.load_table = tile.load_global(4 * self.chunk, 4)
        self.turn = tile.multiply_words(words_of_rows(self.chunk))


def _chunk(tiles: int) -> int:
    """Tiles of eight outputs that are made at once: all of few."""
    return tiles if tiles <= HELD // 8 else 2 - tiles % 2


def words_of_rows(tiles: int) -> tuple[tuple[int, int], ...]:
    """Accumulators (real part, imaginary part) of a lane's four neighbouring columns, of each tile of eight outputs."""
    return tuple(
        (8 * m + 2 * (column % 2) + column // 2, 8 * m + 4 + 2 * (column % 2) + column // 2)
        for m in range(tiles)
        for column in range(4)
    )


def input_pieces(spec: Spec, k_tiles: int) -> Any:
    """A lane's two columns of rows 2 t and 2 t + 1 of eight: a register of one sequence, or two complex words.

    Those are in the order of a B operand, (tile of rows, column, r).
    """
    unit, q = (2 if spec.single else 1), spec.layout.steps[0]
    return tuple(
        (
            0,
            unit * (8 * k + r) * q,
            (4 * k + r, 4 * k + 2 + r) if spec.single else (2 * k + r,),
        )
        for k in range(k_tiles)
        for r in range(2)
    )


def output_pieces(spec: Spec, tiles: int, first: int) -> Any:
    """A lane's four columns of each eighth row: two registers of a sequence from ``first`` on, or four words."""
    unit, q = (2 if spec.single else 1), spec.layout.steps[0]
    width = 2 * unit
    return tuple(
        (0, unit * 8 * m * q, tuple(range(first + width * m, first + width * (m + 1)))) for m in range(tiles)
    )


def output_order(spec: Spec, tiles: int) -> tuple[int, ...]:
    """Accumulators in the order in which they are rounded: those of either sequence, or a point's parts.

    Their parts are exchanged: what is called imaginary is the real part.
    """
    parts = words_of_rows(tiles)
    if spec.single:
        return tuple(i for im, re in parts for i in (re, im))
    return (*(re for _, re in parts), *(im for im, _ in parts))
