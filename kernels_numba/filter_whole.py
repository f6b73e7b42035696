"""The transform of a real filter in one launch, for spectra of half precision of up to 32768 points.

A block (or a part of one) lays a filter's taps on their circle of N samples as P = N / 2 complex points, transforms
these in shared memory with the stages of `fused_float`, takes the largest of the N bins for the channel's scale, and
gathers from the points X the positions of the spectrum in the convolution's order,

    sum_i phase_i H[b_i] = E a + O b,   E = X[b] + conj X[-b],  O = X[b] - conj X[-b],  indices modulo P,
    a = sum_i phase_i / 2,   b = -i / 2 sum_i phase_i w^(b_i),   w = e^(-2 pi i / N),

where the two bins of half-length packing differ by P. Then over the scale, and rounded. The values are those of
`filter_transform`, which does longer ones, but for the last bits of fp32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import filter_passes, filter_short, filter_transform, float_spec, float_stages
from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.device import LARGEST_SHARED_BYTES, device
from kernels_numba.filter_gradient import FACTORS as FACTORS_BACK
from kernels_numba.float_spec import Shape, shape_of
from kernels_numba.float_stages import mirror_places, point_places
from monarch.index import natural_order_of

FACTORS = FACTORS_BACK | {128: (2, 8, 8), 768: (12, 4, 4, 4)}
"""By points P the factors of a transform."""
TURNED = {384: (8, 6, 8), 768: (24, 8, 4)}
"""The same for right-angle packing, where they differ: a thread makes four of a spectrum's positions at a time."""
POINTERS = ("taps", "numbers", "table", "roots", "mirrors", "places", "weights", "spectrum", "scales")
"""The kernel's arrays."""
SCALARS = ("rows", "row_taps", "pairs", "tile_pairs")
"""And its numbers."""
NAMES = {"mirrors", filter_short.NUMBERS, filter_short.IN_ORDER}
"""Of these tables one is here or of `filter_short`, and none of `filter_transform`."""
MOST_HALVES = 2**30
"""Of a spectrum in one launch: offsets are of 32 bits."""


@dataclass(frozen=True)
class Spec:
    """One kernel; ``taps`` is the filter's type, ``dtype`` the spectrum's, ``limits`` as in `filter_passes.Spec`."""

    factors: tuple[int, ...]
    taps: str
    dtype: str
    limits: tuple[float, float]
    turned: bool = False
    """Points are turned before, and positions are half as many, as right-angle packing has them."""

    @property
    def shape(self) -> Shape:
        """Of the transform."""
        return shape_of(self.factors)

    @property
    def together(self) -> int:
        """Filters of a block."""
        return self.shape.together

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.shape.together * self.shape.threads // 32

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: points, and twice a number a thread."""
        return 4 * (self.point_words + 2 * 32 * self.warps)

    @property
    def point_words(self) -> int:
        """Words of the points, rounded up to an access of four."""
        return -(-2 * self.shape.together * self.shape.padding[2] // 4) * 4

    @property
    def name(self) -> str:
        """For error messages and profilers."""
        turned = "_turned" * self.turned
        return f"filter_whole_{'x'.join(map(str, self.factors))}_of_{self.taps}_{self.dtype}{turned}"


def fits(n: int, limit: int = LARGEST_SHARED_BYTES, *, turned: bool = False) -> bool:
    """Whether N points can be done here, with ``limit`` bytes of shared memory a block."""
    if n // 2 not in FACTORS:
        return False
    factors = factors_of(n // 2, turned=turned)
    if turned and shape_of(factors).held % 8:  # positions go four by four
        return False
    return Spec(factors, "fp32", "fp16", (0, 0)).shared_bytes <= limit


def factors_of(points: int, *, turned: bool) -> tuple[int, ...]:
    """The factors of a transform of so many points, ``turned`` as in `Spec`."""
    return TURNED.get(points, FACTORS[points]) if turned else FACTORS[points]


def spec_of(n: int, positions: int, tiles: int, taps: str, dtype: str, limits: tuple[float, float]) -> Spec:
    """The kernel for N points, whatever the tiles of a spectrum."""
    turned = 2 * positions == n
    return Spec(factors_of(n // 2, turned=turned), taps, dtype, limits, turned)


def kernels(n: int, positions: int, tiles: int, limit: int = LARGEST_SHARED_BYTES) -> Any:
    """The module that transforms N points to so many positions in one launch, this or `filter_short`; or None.

    ``limit``: bytes of shared memory a block.
    """
    if filter_short.fits(n, positions, tiles, limit):
        return filter_short
    return sys.modules[__name__] if fits(n, limit, turned=2 * positions == n) else None


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile``.

    Arguments: ``taps`` [rows, .], ``numbers`` [N] (which tap each sample of the circle is, negative for none),
    ``table`` of twiddles, ``roots`` [R, T, 2] and ``mirrors`` of each thread's points (behind ``roots``, if ``turned``,
    what points are multiplied by before), ``places`` [positions, 2] and ``weights`` [positions, 4] (see `tables`),
    ``spectrum``, ``scales``; then the filters, the distance of two rows of
    taps, pairs of positions in a row, and in a tile (real parts, then imaginary parts).
    """
    shape = spec.shape
    stages = shape.stages
    threads, together, held = shape.threads, shape.together, shape.held
    room, group = 2 * shape.padding[2], min(32, threads)
    at_lanes = spec.point_words
    at_warps = at_lanes + 32 * spec.warps
    barrier = float_stages.barrier_of(tile, shape)
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    load = tile.load_samples(shape.constants(stages[0], stages[0].radix), spec.taps)
    turned, taken = spec.turned, held // 2 if spec.turned else held
    own = enumerate(shape.constants(stages[0], stages[0].radix))
    load_turns = tile.load_floats(tuple((2 * c, (i, i + held)) for i, c in own), 2 * held, guarded=False)
    before, turns_at = tile.multiply_complex_floats(held), 2 * shape.points
    starts, forward = float_stages.starts_of(tile, shape), float_stages.forward_of(tile, shape)
    put4 = tile.store_points(point_places(shape, stages[-1]))
    load_mirrors = tile.load_global(2 * stages[-1].groups, 1)
    largest_bin, zeros = tile.largest_bin(mirror_places(shape), 2 * threads), tile.zeros(1)
    as_words, put_word = tile.as_words, tile.store_shared_pieces(((0, 0, (0,)),))
    load_lanes, largest_of_lanes = tile.load_shared(group, 4), tile.largest_word(group)
    warps_of_one = max(1, threads // 32)
    load_warps, largest_of_warps = tile.load_shared(warps_of_one, 1), tile.largest_word(warps_of_one)
    power, store_scale = tile.power_above(*spec.limits), tile.store_floats(((0, (0,)),), guarded=True)
    combine, scaled, pack = tile.combine_bins(4, threads), tile.divide_floats(16), tile.pack(8)
    store, store_rest = (
        tile.store_pieces(tuple((i, 0, (first + i,)) for i in range(4)), 2, guarded=True) for first in (0, 4)
    )

    def kernel(
        taps,
        numbers,
        table,
        roots,
        mirrors,
        places,
        weights,
        spectrum,
        scales,
        rows,
        row_taps,
        pairs,
        tile_pairs,
    ):
        index = small(32 * warp() + lane())
        slot = small(divide(index, threads))
        j = small(index - slot * threads)
        base = small(slot * room)
        m1, m2, m3, at1, at2, at3, at4 = starts(j, base)

        # Those without a filter do the first again, and store nothing.
        row = small(block() * together + slot)
        there = small(row < rows)
        row = small(row * there)
        x = load(taps, int64(row) * row_taps, numbers, j)
        if turned:
            x = before(x, load_turns(roots, int64(turns_at), turns_at, 2 * j))
        x = forward(x, table, m1, m2, m3, at1, at2, at3, at4)
        put4(at4, x)
        barrier()
        best = largest_bin(x, roots, 2 * j, base, load_mirrors(mirrors, j, threads), zeros())
        mine = small(at_lanes + index)
        put_word(mine, mine, mine, mine, as_words(best))
        barrier()
        best = largest_of_lanes(load_lanes(at_lanes + index - (j & (group - 1)), 4))
        if threads > 32:
            mine = small(at_warps + index)
            put_word(mine, mine, mine, mine, as_words(best))
            barrier()
            best = largest_of_warps(load_warps(at_warps + slot * threads, 32))
        scale = power(best)
        store_scale(scales, int64(row), there * (j == 0), small(0), scale)
        limit = small(4 * pairs * rows)
        start = small(4 * pairs * row + limit * (1 - there))
        pair = j
        turn = small(0)
        while turn < taken:  # pairs of positions, four at a time, for a wait is long
            x = pack(scaled(combine(base, places, weights, pair), scale[0]))
            real1 = small(start + 2 * (pair + small(divide(pair, tile_pairs)) * tile_pairs))
            pair = small(pair + threads)
            real2 = small(start + 2 * (pair + small(divide(pair, tile_pairs)) * tile_pairs))
            pair = small(pair + threads)
            real3 = small(start + 2 * (pair + small(divide(pair, tile_pairs)) * tile_pairs))
            pair = small(pair + threads)
            real4 = small(start + 2 * (pair + small(divide(pair, tile_pairs)) * tile_pairs))
            pair = small(pair + threads)
            part = small(2 * tile_pairs)
            store(spectrum, int64(0), limit, real1, small(real1 + part), real2, small(real2 + part), x)
            store_rest(spectrum, int64(0), limit, real3, small(real3 + part), real4, small(real4 + part), x)
            turn = small(turn + 4)

    return kernel


def family(spec: Spec) -> Any:
    """What `launch` asks of a kernel family."""
    taps = filter_passes.TAP_POINTERS[spec.taps]
    pointers = (taps, "WORDS", "FLOATS", "FLOATS", "WORDS", "WORDS", "FLOATS", "HALVES", "FLOATS")
    return filter_passes.family_of(__name__, build, pointers, len(SCALARS))


def tables(
    n: int, numbers: NDArray[np.int32], order: NDArray[np.intp], phase: NDArray[np.complex128]
) -> dict[str, NDArray]:
    """What the kernel reads beside taps, by name; ``numbers`` [N], ``order``, ``phase`` [1 or 2, .] as in `spectrum`.

    ``places`` are words of a filter's points in shared memory: X and its mirror for each position.
    """
    turned = 2 * order.shape[1] == n
    factors = factors_of(n // 2, turned=turned)
    return {
        "numbers": numbers,
        "table": float_spec.tables(factors),
        "roots": _roots(factors, turned),
        "mirrors": float_spec.mirrors(factors),
        **filter_transform.tables_of_positions(
            2 * _shape_places(factors), order, phase, "fp16", turned=int(turned)
        ),
    }


def transform(
    k: Any,
    rows: int,
    constants: dict[str, Any],
    tiles: int,
    dtype: str,
    limits: tuple[float, float],
    *,
    adapter: Adapter,
    index: int,
) -> tuple[Any, Any]:
    """As `filter_transform.transform`; ``constants``: device buffers of the tables of `kernels`."""
    source, make, stream = filter_transform.on_device(k, adapter, index)
    in_order = filter_short.IN_ORDER in constants
    constants = constants | ({filter_short.NUMBERS: constants[filter_short.IN_ORDER]} if in_order else {})
    how = filter_short if filter_short.NUMBERS in constants else sys.modules[__name__]
    n, positions = constants[how.POINTERS[1]].nbytes // 4, constants["places"].shape[0]
    words, scales = make(index, (rows, positions), np.int32), make(index, (rows,), np.float32)
    kind, taps = adapter.dtype_name(k), int(k.shape[-1])
    itemsize = {"fp64": 8, "fp32": 4}.get(kind, 2)
    row_taps = taps if len(k.shape) == 2 else 0
    pointers = [constants[name].pointer for name in how.POINTERS[1:-2]]
    at, to, scale_at = (adapter_of(x, "k").pointer(x) for x in (source, words, scales))
    count = MOST_HALVES // (2 * positions)
    spec = how.spec_of(n, positions, tiles, kind, dtype, limits)
    if how is filter_short:
        spec = how.on_device(spec, min(rows, count), device(index), in_order=in_order and kind != "fp64")
    pairs = positions // 2
    known = {"row_taps": row_taps, "count": taps, "pairs": pairs, "tile_pairs": pairs // tiles}
    for first in range(0, rows, count):
        now = {"rows": min(count, rows - first)} | known
        run = _launcher(how, spec, tuple(now[name] for name in how.SCALARS), index)
        done = (at + first * row_taps * itemsize, *pointers, to + 4 * positions * first, scale_at + 4 * first)
        run(stream, *done)
    return words, scales


@lru_cache(maxsize=256)
def _launcher(how: Any, spec: Any, scalars: tuple[int, ...], index: int) -> Callable[..., None]:
    from kernels_numba import launch

    loaded = launch.load(how.family(spec), spec, index)
    grid = -(-scalars[0] // spec.together)
    return loaded.launcher(
        grid, (*how.POINTERS, *scalars), how.POINTERS, overlap=getattr(spec, "overlap", False)
    )


def _shape_places(factors: tuple[int, ...]) -> NDArray[np.intp]:
    """Where the point of each frequency lies in shared memory, in points."""
    return shape_of(factors).at(natural_order_of(factors))


@lru_cache(maxsize=32)
def _roots(factors: tuple[int, ...], turned: bool = False) -> NDArray[np.float32]:
    """[R, T, 2]: -i / 2 e^(-2 pi i k / N) of each thread's points; then, if turned, what points are turned by."""
    shape = shape_of(factors)
    last = shape.stages[-1]
    constants = np.array(shape.constants(last, last.radix))
    slot = shape.place(last, np.arange(shape.threads), 0)[None, :] + constants[:, None]
    k = np.argsort(natural_order_of(factors))[slot]
    found = (-0.5j * np.exp(-1j * np.pi * k / shape.points)).astype(np.complex64).view(np.float32).reshape(-1)
    return np.concatenate([found, filter_transform.turns(shape.points, "fp16")]) if turned else found
