"""What the kernel of any factors is made of: a stage before the last, and where samples and results lie."""

from __future__ import annotations

from typing import Any

from kernels_numba.any_spec import HELD, LATE, Spec, stored_tiles, strips, tiles_of


class Stage:
    """A stage before the last: where its strips lie, and its operations."""

    def __init__(self, tile: Any, spec: Spec, i: int) -> None:
        self.factor, self.stride = spec.factors[i], spec.layout.strides[i]
        self.strips = strips(spec)[i]
        tiles, self.stored = tiles_of(self.factor), stored_tiles(self.factor)
        shared = self.factor not in spec.cached
        self.held = shared and self.factor <= HELD
        self.at = spec.constant_places[self.factor] + (spec.layout.exchange_words if shared else 0)
        live, kept = (spec.rows_in // 8, spec.rows_out // 8) if i == 0 else (tiles, tiles)
        self.in_tiles, self.late = live, 8 * live > LATE
        self.chunk, self.chunk_out = _chunk(tiles), _chunk(kept)
        self.turns, self.turns_out = tiles // self.chunk, kept // self.chunk_out
        self.next_chunk, self.next_out = (128 * self.stored * n for n in (self.chunk, self.chunk_out))
        self.next_strip = 128 * tiles
        """Words of twiddles of a strip."""

        def operations(chunk: int, k_tiles: int) -> tuple[Any, Any, Any]:
            """To take what a product needs of a held factor, and to multiply by that, and by one that is not held."""
            order = (
                2 * (n * self.stored + k) + r
                for k in range(k_tiles)
                for n in range(2 * chunk)
                for r in range(2)
            )
            return (
                tile.select(tuple(order) if self.held else (0,)),
                tile.mma(1, 2 * chunk, k_tiles),
                tile.columns_product(2 * chunk, k_tiles, stored=self.stored, shared=shared),
            )

        self.hold = tile.load_shared(4 * tiles * self.stored, 4)
        self.forward, self.inverse = operations(self.chunk, live), operations(self.chunk_out, tiles)
        self.get = tile.load_pieces(points_read(self.stride, tiles), 4 * tiles)
        self.put = tile.store_shared_pieces(points_read(self.stride, self.chunk))
        self.load_table = tile.load_global(4 * self.chunk, 4)
        self.turn = tile.turn_words(words_of_columns(self.chunk))


def _chunk(tiles: int) -> int:
    """Tiles of eight outputs that are made at once: all of few."""
    return tiles if tiles <= HELD // 8 else 2 - tiles % 2


def points_read(stride: int, tiles: int) -> Any:
    """A lane's two columns of the points 2 t and 2 t + 1 of each eight: two words a piece."""
    return tuple(
        (0, (8 * k + r) * stride, (4 * k + 2 * r, 4 * k + 2 * r + 1)) for k in range(tiles) for r in range(2)
    )


def words_of_columns(tiles: int) -> tuple[tuple[int, int], ...]:
    """Accumulators (real part, imaginary part) of the same points, in the same order."""
    count = 2 * tiles
    return tuple((2 * (y * count + n), 2 * (y * count + n) + 1) for n in range(count) for y in range(2))


def sample_pieces(spec: Spec, tiles: int, first: int = 0) -> Any:
    """The samples of `points_read`, from register ``first`` on: one of a sequence, or two complex words."""
    unit, q = (2 if spec.single else 1), spec.layout.steps[0]
    return tuple(
        (0, unit * (8 * k + r) * q, tuple(range(first + unit * (2 * k + r), first + unit * (2 * k + r + 1))))
        for k in range(tiles)
        for r in range(2)
    )


def output_order(spec: Spec, tiles: int) -> tuple[int, ...]:
    """Accumulators in the order in which they are rounded: those of either sequence, or a point's parts.

    Their parts are exchanged: what is called imaginary is the real part.
    """
    parts = words_of_columns(tiles)
    if spec.single:
        return tuple(i for im, re in parts for i in (re, im))
    return (*(re for _, re in parts), *(im for im, _ in parts))
