"""The transform of short real filters, some a block, for spectra of half precision: `filter_whole` for little work.

Here waiting binds: for a launch to begin, for tables, for one load after the other. So tables come before the kernel
waits for the launch before it (programmatic dependent launch, compute capability 9; elsewhere in the same order): each
thread has its twiddles and the places and weights of its positions in registers, and taps in order need no numbers.
What is left is a load of taps, the stages of `fused_float` in shared memory, a gather for each position, and a store.
As many filters share a block as make 768 of them one wave. Up to 1024 samples but for 768 a warp (or two) makes the
positions of its own filter; beyond, where a thread's registers would not hold what it reads for that, all threads of a
block share the positions, and each makes its few for every filter there.

No bin is looked at for a channel's scale: with X the points, m the largest magnitude of all real and imaginary parts of
X, and H the bins, |H| <= sqrt(2) |X| <= 2 m, and m <= max |X| <= sqrt(2) max |H|. So 2 m is at least the peak and at
most 2 sqrt(2) times it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import filter_passes, filter_transform, float_stages
from kernels_numba.device import LARGEST_SHARED_BYTES, Device
from kernels_numba.float_spec import Shape, shape_of
from kernels_numba.float_stages import point_places
from monarch.index import natural_order_of

SHAPES: dict[int, tuple[tuple[int, ...], int, bool]] = {
    128: ((4, 4, 4, 2), 6, False),
    256: ((8, 8, 4), 6, False),
    384: ((12, 4, 4, 2), 6, True),
    512: ((8, 8, 8), 6, False),
    768: ((12, 4, 4, 4), 6, True),
    1024: ((16, 16, 4), 8, True),
}
"""By points P: the factors of a transform, of which the first is what a thread holds; filters of a block; and whether
its threads share their positions."""
FACTORS = {points: factors for points, (factors, *_) in SHAPES.items()}
NUMBERS, IN_ORDER = "samples", "samples in order"
"""What numbers of taps are called, and those that need not be looked at."""
POINTERS = ("taps", NUMBERS, "table", "places", "weights", "spectrum", "scales")
"""The kernel's arrays."""
SCALARS = ("rows", "row_taps", "count")
"""And its numbers."""


@dataclass(frozen=True)
class Spec:
    """One kernel; ``taps`` is the filter's type, ``dtype`` the spectrum's, ``limits`` as in `filter_passes.Spec`.

    A spectrum has so many ``positions``, in so many ``tiles`` (real parts of a tile, then imaginary parts).
    """

    factors: tuple[int, ...]
    positions: int
    tiles: int
    taps: str
    dtype: str
    limits: tuple[float, float]
    in_order: bool = False
    """Tap i is sample i, as far as there are taps, and its place needs no table; not of fp64."""
    overlap: bool = False
    """The launch may begin while the one before it ends (compute capability 9)."""
    reserved: int = 0
    """Bytes of shared memory that a block takes at least; see `on_device`."""

    @property
    def shape(self) -> Shape:
        """Of the transform."""
        return shape_of(self.factors)

    @property
    def together(self) -> int:
        """Filters of a block."""
        return SHAPES[self.shape.points][1]

    @property
    def shared(self) -> bool:
        """Whether all threads make positions of all filters of a block."""
        return SHAPES[self.shape.points][2]

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.together * self.shape.threads

    @property
    def step(self) -> int:
        """Threads that share a spectrum's pairs of positions."""
        return self.threads if self.shared else self.shape.threads

    @property
    def turns(self) -> int:
        """How many pairs each of them makes."""
        return max(1, self.positions // 2 // self.step)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.threads // 32

    @property
    def point_words(self) -> int:
        """Words of the points."""
        return 2 * self.together * self.shape.padding[2]

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: points, and a number a thread."""
        return max(4 * (self.point_words + self.threads), self.reserved)

    @property
    def name(self) -> str:
        """For error messages and profilers."""
        shape = "x".join(map(str, self.factors))
        to = f"to{self.positions}" + (f"in{self.tiles}" if self.tiles > 1 else "")
        how = "_in_order" * self.in_order + "_o" * self.overlap
        return f"filter_short_{shape}_{to}_of_{self.taps}_{self.dtype}{how}"


def fits(n: int, positions: int, tiles: int, limit: int = LARGEST_SHARED_BYTES) -> bool:
    """Whether N points are done here, to a spectrum of so many positions and tiles; ``limit`` as in `filter_whole`.

    Not those of right-angle packing, which turns points before, and has as many positions as points; nor tiles of
    one position, as fp32 has them: a thread makes two positions at once.
    """
    pairs = positions // 2
    if n // 2 not in FACTORS or 2 * positions == n or tiles > pairs:
        return False
    spec = spec_of(n, positions, tiles, "", "", (0.0, 0.0))
    if spec.shared_bytes > limit:
        return False
    # A thread's pairs must lie at one distance from each other, also where they are stored.
    return pairs <= spec.step or (
        pairs % spec.step == 0 and (tiles == 1 or spec.step % (pairs // tiles) == 0)
    )


def spec_of(
    n: int,
    positions: int,
    tiles: int,
    taps: str,
    dtype: str,
    limits: tuple[float, float],
    *,
    in_order: bool = False,
    overlap: bool = False,
) -> Spec:
    """The kernel for N points."""
    return Spec(FACTORS[n // 2], positions, tiles, taps, dtype, limits, in_order, overlap)


def on_device(spec: Spec, rows: int, where: Device, *, in_order: bool) -> Spec:
    """The kernel for so many filters there; ``in_order``: as in `Spec`.

    Blocks of a launch that may begin while the one before it ends go where there is room first, and that is on a few
    SMs: there they would wait for each other. So a block takes so much shared memory that no SM has more of them than
    it must.
    """
    spec = replace(spec, in_order=in_order)
    if not where.overlaps or not (
        where.shared_bytes_per_sm and where.sm_count and where.shared_bytes_per_block
    ):
        return spec
    together = -(-rows // spec.together // where.sm_count)
    least = where.shared_bytes_per_sm // (together + 1) // 16 * 16
    return replace(spec, overlap=True, reserved=min(least, where.shared_bytes_per_block))


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile``.

    Arguments: ``taps`` [rows, .], then of each thread T of a filter ``numbers`` [R, T, 2] (which tap each of its
    samples is, negative for none) and ``table`` [stages - 1, R, T, 2] of twiddles; ``places`` [positions, 2] and
    ``weights`` [positions, 4] (see `tables`), ``spectrum``, ``scales``; then the filters, the distance of two rows of
    taps, and the taps of a filter.
    """
    shape = spec.shape
    stages = shape.stages
    threads, held, order = shape.threads, shape.held, len(stages)
    together, shared, step, turns = spec.together, spec.shared, spec.step, spec.turns
    filters = together if shared else 1  # whose positions a thread makes
    pairs, tile_pairs = spec.positions // 2, spec.positions // 2 // spec.tiles
    room, group, halves = 2 * shape.padding[2], min(32, threads), 2 * spec.positions
    at_lanes = spec.point_words
    barrier, place = float_stages.barrier_of(tile, shape), float_stages.place_of(tile, shape)
    several = shared or threads > 32  # whether more than a warp makes what a thread reads
    all_meet, follow = tile.barrier if several else tile.warp_sync, tile.follow(overlap=spec.overlap)
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    prefetch = tile.prefetch
    load_pairs, samples = tile.load_global(2 * held, 2), tile.samples_at(held, spec.taps)
    in_order, first = spec.in_order, shape.constants(stages[0], stages[0].radix)
    if in_order:
        load_taps = tile.load_kind(
            tuple(2 * c + part for part in range(2) for c in first), spec.taps, guarded=True
        )
    turn, stage_words = tile.turn_by_words(held), 2 * held * threads
    load_places, load_weights = tile.load_global(4 * turns, 4), tile.load_global(4 * turns, 4)
    four = float_stages.four_stages(shape)
    (step1, radix1), (step2, radix2), (step3, radix3), (step4, radix4) = ((s.step, s.radix) for s in four)
    dft1, dft2, dft3, dft4 = (tile.dft_points(s.radix, s.groups, inverse=False) for s in four)
    points = [point_places(shape, s) for s in four]
    put1, put2, put3, put4 = (tile.store_points(x) for x in points)
    get2, get3, get4 = (tile.load_points(x) for x in points[1:])
    largest, put_word = tile.largest_part(held, group), tile.store_shared_pieces(((0, 0, (0,)),))
    as_words, each = tile.as_words, max(1, threads // 32)
    load_peaks, load_mine = tile.load_shared(together * each, 1), tile.load_shared(each, 1)
    powers, power = (tile.powers_above(count, each, *spec.limits) for count in (together, 1))
    combine, scaled = tile.combine_pairs(turns, filters, room), tile.divide_groups(filters, 4 * turns)
    pack, store_scale = tile.pack(2 * turns * filters), tile.store_floats(((0, (0,)),), guarded=True)
    apart = 2 * step * (1 if spec.tiles == 1 else 2)
    store = tile.store_pieces(
        tuple(
            (part, halves * i + apart * t, (2 * (turns * i + t) + part,))
            for i in range(filters)
            for t in range(turns)
            for part in range(2)
        ),
        2,
        guarded=True,
    )

    def kernel(taps, numbers, table, places, weights, spectrum, scales, rows, row_taps, count):
        index = small(32 * warp() + lane())
        slot = small(divide(index, threads))
        j = small(index - slot * threads)
        if not in_order:
            tap_numbers = load_pairs(numbers, 2 * j, 2 * threads)
        w1 = load_pairs(table, 2 * j, 2 * threads)
        w2 = load_pairs(table, stage_words + 2 * j, 2 * threads)
        w3 = load_pairs(table, 2 * stage_words + 2 * j, 2 * threads) if order > 3 else w2
        # This thread's first pair of positions. One that there is not is the last one, and is not stored.
        mine = index if shared else j
        pair = small(min(mine, pairs - 1))
        where = load_places(places, 4 * pair, 4 * step)
        first_weights = load_weights(weights, 8 * pair, 8 * step)
        second_weights = load_weights(weights, 8 * pair + 4, 8 * step)
        base = small(slot * room)
        at1, at2 = place(j, base, step1, radix1), place(j, base, step2, radix2)
        at3, at4 = place(j, base, step3, radix3), place(j, base, step4, radix4)

        # Those without a filter do the first again, and store nothing.
        row = small(block() * together + slot)
        there = small(row < rows)
        limit = small(halves * rows)
        real = small(halves * (block() * together if shared else row))
        real = small(real + 2 * (pair + small(divide(pair, tile_pairs)) * tile_pairs))
        real = real if mine < pairs else limit
        row = small(row * there)
        # Taps may still be written, but their lines can be where that is done.
        prefetch(taps, int64(row) * row_taps + small(divide(j * row_taps, threads)), True)

        follow()
        if in_order:
            x = load_taps(taps, int64(row) * row_taps, small(count), small(2 * j))
        else:
            x = samples(taps, int64(row) * row_taps, tap_numbers)
        put1(at1, turn(dft1(x), w1))
        barrier()
        x = dft2(get2(at2))
        put2(at2, turn(x, w2))
        barrier()
        x = dft3(get3(at3))
        if order > 3:
            put3(at3, turn(x, w3))
            barrier()
            x = dft4(get4(at4))
        put4(at4, x)
        peak = as_words(largest(x))
        if several:
            put_at = small(at_lanes + index)
            put_word(put_at, put_at, put_at, put_at, peak)
            all_meet()
            my_scale = power(load_mine(at_lanes + slot * threads, 32))
        else:
            all_meet()
            my_scale = power(peak)
        store_scale(scales, int64(row), there * (j == 0), small(0), my_scale)
        if shared:
            scale = powers(load_peaks(at_lanes + 0 * index, group))
            base = small(0)
        else:
            scale = my_scale
        x = pack(scaled(combine(base, where, first_weights, second_weights), scale))
        imaginary = small(real + 2 * tile_pairs)
        store(spectrum, int64(0), limit, real, imaginary, real, real, x)

    return kernel


def family(spec: Spec) -> Any:
    """What `launch` asks of a kernel family."""
    taps = filter_passes.TAP_POINTERS[spec.taps]
    pointers = (taps, "WORDS", "WORDS", "WORDS", "WORDS", "HALVES", "FLOATS")
    return filter_passes.family_of(__name__, build, pointers, len(SCALARS))


def tables(
    n: int, numbers: NDArray[np.int32], order: NDArray[np.intp], phase: NDArray[np.complex128]
) -> dict[str, NDArray]:
    """What the kernel reads beside taps, by name; ``numbers`` [N], ``order``, ``phase`` [1 or 2, .] as in `spectrum`.

    ``places`` are words of a filter's points in shared memory: X and its mirror for each position. A position is
    E a + O b = X (a + b) + conj X[-b] (a - b), and ``weights`` are these two.
    """
    factors = FACTORS[n // 2]
    shape = shape_of(factors)
    first = np.array(shape.constants(shape.stages[0], shape.stages[0].radix))
    point = shape.place(shape.stages[0], np.arange(shape.threads), 0)[None, :] + first[:, None]
    counted = np.arange(n)
    in_order = ((numbers == counted) | (numbers < 0) & (counted > numbers.max())).all()
    return {
        IN_ORDER if in_order else NUMBERS: numbers.reshape(-1, 2)[point],
        "table": twiddles(factors),
        **positions(factors, order, phase),
    }


def positions(
    factors: tuple[int, ...], order: NDArray[np.intp], phase: NDArray[np.complex128], *, turned: int = 0
) -> dict[str, NDArray[np.int32]]:
    """``places`` and ``weights`` of `tables`; ``turned`` as in `filter_transform.tables_of_positions`."""
    at = 2 * shape_of(factors).at(natural_order_of(factors))
    found = filter_transform.tables_of_positions(at, order, phase, "fp32", turned=turned)
    a, b = found["weights"].view(np.complex128).T
    weights = np.stack([a + b, a - b], axis=1).astype(np.complex64)
    return {"places": found["places"], "weights": weights.view(np.int32)}


@lru_cache(maxsize=8)
def twiddles(factors: tuple[int, ...]) -> NDArray[np.int32]:
    """[stages - 1, R, T, 2]: what each thread's points are multiplied by after each stage but the last."""
    shape = shape_of(factors)
    found = []
    for stage in shape.stages[:-1]:
        c, q = np.divmod(np.arange(shape.held)[:, None], stage.radix)
        column = (np.arange(shape.threads) + shape.threads * c) % stage.step
        found.append(np.exp(-2j * np.pi * q * column / (stage.radix * stage.step)))
    return np.stack(found).astype(np.complex64).view(np.int32)
