"""The kernels that transform filters through device memory, one pass a launch; see `filter_transform`."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

WARPS = 4
THREADS = 32 * WARPS
PEAK_WARPS = 8
AT_ONCE = 4
"""Points that a thread looks at at a time, and filters that it takes positions of: a wait for memory is long."""
MOST_PIECES = 64
"""Of a row, where a kernel of its own looks for its peak."""
ROOT_OF_TWO = np.nextafter(np.float32(2**0.5), np.float32(2))


@dataclass(frozen=True)
class Spec:
    """One kernel: ``kind`` is "first", "sums", "next", "end", "peak", "scale" or "last".

    ``radix``: of a pass. ``taps``: the filter's type. ``dtype``: the spectrum's.
    """

    kind: str
    radix: int = 0
    taps: str = "fp32"
    dtype: str = "fp32"
    limits: tuple[float, float] = (0.0, 0.0)
    """Between these a peak needs no scale."""
    peaks: bool = False
    """Of "end": each block tells the largest magnitude of its points, which are of one row."""
    turned: bool = False
    """Of "first": points are turned before, as right-angle packing has them."""

    @property
    def double(self) -> bool:
        """Whether it computes in fp64."""
        return self.dtype == "fp32"

    @property
    def name(self) -> str:
        """For error messages and profilers."""
        wide = "_fp64" if self.double else ""
        detail = {
            "first": f"_r{self.radix}_of_{self.taps}{wide}{'_turned' * self.turned}",
            "sums": f"_r{self.radix}_of_{self.taps}{wide}",
            "next": f"_r{self.radix}{wide}",
            "end": f"_r{self.radix}{'_peaks' * self.peaks}",
            "peak": "",
        }
        return f"filter_{self.kind}" + detail.get(self.kind, f"_{self.dtype}")

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return {"peak": PEAK_WARPS, "scale": 1}.get(self.kind, WARPS)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        lanes = 2 * 32 * self.warps if self.peaks or self.kind in ("peak", "scale") else 0
        return 4 * (lanes + (2 * THREADS * (self.radix + 1) if self.kind == "end" else 0))


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile``."""
    makers = {
        "first": _build_first,
        "sums": _build_sums,
        "next": _build_next,
        "end": _build_end,
        "peak": _build_peak,
        "scale": _build_scale,
        "last": _build_last,
    }
    return makers[spec.kind](tile, spec)


def item_of(tile: Any) -> Any:
    """A function of (items in all, items of a row): a thread's number, if there is such an item, its row and place.

    Threads that are too many do the first item again.
    """
    small, lane, warp, block, divide = tile.small, tile.lane, tile.warp, tile.block, tile.divide

    def item(items, each):
        index = small(block() * THREADS + 32 * warp() + lane())
        valid = index < items
        now = small(index * valid)
        row = small(divide(now, each))
        return index, valid, row, small(now - row * each)

    return tile.function(item)


def _build_first(tile: Any, spec: Spec) -> Any:
    """Taps to points after the first pass.

    Arguments: ``taps`` [rows, .], ``places`` [2, P] (which tap each sample of the circle is, negative for none, first
    the even samples), ``table`` of twiddles, if ``turned`` what points are multiplied by before, ``points``; then the
    butterflies in all and in a row, and the distance of two rows of taps.
    """
    radix = spec.radix
    item, int64 = item_of(tile), tile.int64
    double = spec.double
    load = tile.load_taps(radix, spec.taps, double=double)
    dft = tile.dft_points(radix, 1, inverse=False, double=double)
    turn, store = tile.multiply_strided(radix, double=double), tile.store_strided(radix, double=double)
    join = tile.join
    load_turns, before = tile.load_strided(radix, double=double), tile.multiply_complex_floats(radix)

    def turned(taps, places, table, turns, points, butterflies, step, row_taps):
        _, valid, row, column = item(butterflies, step)
        source = int64(row) * row_taps
        x = join(
            load(taps, source, places, column, step), load(taps, source, places, radix * step + column, step)
        )
        x = before(x, load_turns(turns, int64(column), step))
        store(
            points, int64(row) * (radix * step) + column, step, valid, turn(dft(x), table, 4 * column, step)
        )

    if spec.turned:
        return turned

    def kernel(taps, places, table, points, butterflies, step, row_taps):
        _, valid, row, column = item(butterflies, step)
        source = int64(row) * row_taps
        x = join(
            load(taps, source, places, column, step), load(taps, source, places, radix * step + column, step)
        )
        store(
            points, int64(row) * (radix * step) + column, step, valid, turn(dft(x), table, 4 * column, step)
        )

    return kernel


def _build_sums(tile: Any, spec: Spec) -> Any:
    """Taps to points after the first pass of a large prime, a point a lane: sum_q x[q step + column] w^(q k), turned.

    Arguments: as `_build_first`, with ``roots`` [r, 2], the powers of w, before ``points``; then the points in all.
    """
    radix, double = spec.radix, spec.double
    small, lane, warp, block, divide, int64 = (
        tile.small,
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.int64,
    )
    words = 4 if double else 2  # of a root
    load, load_root = tile.load_taps(1, spec.taps, double=double), tile.load_global(words, words)
    weigh, zeros, join = tile.weigh(1, double=double), tile.zeros(2, double=double), tile.join
    turn, store = tile.multiply_strided(1, double=double), tile.store_strided(1, double=double)

    def kernel(taps, places, table, roots, points, count, step, row_taps):
        index = small(block() * THREADS + 32 * warp() + lane())
        valid = index < count
        now = small(index * valid)
        row = small(divide(now, radix * step))
        place = small(now - row * (radix * step))
        k = small(divide(place, step))
        column = small(place - k * step)
        source = int64(row) * row_taps
        total = zeros()
        q = small(0)
        power = small(0 * k)
        while q < radix:
            at = small(column + q * step)
            x = join(
                load(taps, source, places, at, step), load(taps, source, places, radix * step + at, step)
            )
            total = weigh(total, x, load_root(roots, words * power, 1))
            power = small(power + k)
            power = small(power - radix * (power >= radix))
            q = small(q + 1)
        at = small(4 * ((k >> 1) * step + column) + 2 * (k & 1))
        store(points, int64(now), 1, valid, turn(total, table, at, step))

    return kernel


def _build_next(tile: Any, spec: Spec) -> Any:
    """A later pass, in place.

    Arguments: ``table``, two that are not used, ``points``; then the butterflies in all, their points' distance, and
    where the table begins.
    """
    radix = spec.radix
    item, int64 = item_of(tile), tile.int64
    double = spec.double
    load = tile.load_strided(radix, double=double)
    dft = tile.dft_points(radix, 1, inverse=False, double=double)
    turn, store = tile.multiply_strided(radix, double=double), tile.store_strided(radix, double=double)

    def kernel(table, unused, unused_too, points, butterflies, step, start):
        _, valid, row, column = item(butterflies, step)
        at = int64(row) * (radix * step) + column
        x = turn(dft(load(points, at, step)), table, start + 4 * column, step)
        store(points, at, step, valid, x)

    return kernel


def _build_end(tile: Any, spec: Spec) -> Any:
    """The last pass, of neighbours, which come and go by way of shared memory: lanes side by side access points so.

    Rows are whole blocks of butterflies, the radix is a power of two. Arguments: ``points``, ``peaks`` [blocks] or what
    is not used.
    """
    radix = spec.radix
    small, lane, warp, block, int64 = tile.small, tile.lane, tile.warp, tile.block, tile.int64
    load, store = tile.load_strided(radix), tile.store_strided(radix)
    # Point p of a block lies at p + p / radix, so that neither way has bank conflicts.
    far = tuple((THREADS + THREADS // radix) * i for i in range(radix))
    near = tuple(range(radix))
    put_far, get_far, put_near, get_near = (
        *(tile.store_points(far), tile.load_points(far)),
        *(tile.store_points(near), tile.load_points(near)),
    )
    dft, log_radix, at_lanes = (
        tile.dft_points(radix, 1, inverse=False),
        radix.bit_length() - 1,
        2 * THREADS * (radix + 1),
    )
    peaks_too, magnitude, zeros = spec.peaks, tile.magnitude(radix), tile.zeros(1)
    as_words, put = tile.as_words, tile.store_shared_pieces(((0, 0, (0,)),))
    load_warps, largest_of_warps = tile.load_shared(WARPS, 1), tile.largest_word(WARPS)
    load_lanes, largest_of_lanes = tile.load_shared(32, 1), tile.largest_word(32)
    store_peak = tile.store_floats(((0, (0,)),), guarded=True)
    barrier, warp_sync = tile.barrier, tile.warp_sync

    def kernel(points, peaks):
        index = small(32 * warp() + lane())
        at = int64(block()) * (THREADS * radix) + index
        here = small(2 * (index + (index >> log_radix)))
        own = small(2 * (radix + 1) * index)
        put_far(here, load(points, at, THREADS))
        barrier()
        x = dft(get_near(own))
        put_near(own, x)
        if peaks_too:
            mine = small(at_lanes + index)
            put(mine, mine, mine, mine, as_words(magnitude(x, zeros())))
        barrier()
        store(points, at, THREADS, index < THREADS, get_far(here))
        if peaks_too:
            best = largest_of_warps(load_warps(at_lanes + lane(), 32))
            mine = small(at_lanes + THREADS + index)
            put(mine, mine, mine, mine, as_words(best))
            warp_sync()
            best = largest_of_lanes(load_lanes(at_lanes + THREADS + 32 * warp(), 1))
            store_peak(peaks, block(), 1, index, best)

    return kernel


def _build_peak(tile: Any, spec: Spec) -> Any:
    """The largest magnitude of each piece of a row.

    Arguments: ``points``, two that are not used, ``peaks`` [rows, pieces]; then a row's points and pieces, and the
    points of a piece.
    """
    small, lane, warp, block, int64 = tile.small, tile.lane, tile.warp, tile.block, tile.int64
    threads = 32 * PEAK_WARPS
    load, zeros, magnitude = tile.load_strided(1), tile.zeros(1), tile.magnitude(1)
    as_words, put = tile.as_words, tile.store_shared_pieces(((0, 0, (0,)),))
    load_warps, largest_of_warps = tile.load_shared(PEAK_WARPS, 1), tile.largest_word(PEAK_WARPS)
    load_lanes, largest_of_lanes = tile.load_shared(32, 1), tile.largest_word(32)
    store = tile.store_floats(((0, (0,)),), guarded=True)
    barrier, warp_sync, divide = tile.barrier, tile.warp_sync, tile.divide

    def kernel(points, unused, unused_too, peaks, n, pieces, span):
        index = small(32 * warp() + lane())
        row = small(divide(block(), pieces))
        at = small((block() - row * pieces) * span)
        end = small(min(at + span, n))
        last = small(end - 1)  # is looked at more than once where a turn ends beyond it
        base = int64(row) * n
        at = small(at + index)
        best = zeros()
        while at - index < end:
            x0 = load(points, base + min(at, last), 1)
            x1 = load(points, base + min(at + threads, last), 1)
            x2 = load(points, base + min(at + 2 * threads, last), 1)
            x3 = load(points, base + min(at + 3 * threads, last), 1)
            best = magnitude(x3, magnitude(x2, magnitude(x1, magnitude(x0, best))))
            at = small(at + AT_ONCE * threads)
        put(index, index, index, index, as_words(best))
        barrier()
        best = largest_of_warps(load_warps(lane(), 32))
        mine = small(threads + index)
        put(mine, mine, mine, mine, as_words(best))
        warp_sync()
        best = largest_of_lanes(load_lanes(threads + 32 * warp(), 1))
        store(peaks, block(), 1, index, best)

    return kernel


def _build_scale(tile: Any, spec: Spec) -> Any:
    """The scale of each row. Arguments: ``peaks``, two that are not used, ``scales``; then a row's pieces."""
    small, lane, block, int64 = tile.small, tile.lane, tile.block, tile.int64
    load, join, as_words = tile.load_floats(((0, (0,)),), 1, guarded=True), tile.join, tile.as_words
    put = tile.store_shared_pieces(((0, 0, (0,)),))
    load_lanes, larger, largest = tile.load_shared(32, 1), tile.largest_word(2), tile.largest_word(32)
    zeros = tile.zeros(1)
    total, power = tile.scaled_total(1), tile.power_above(*spec.limits)
    store, warp_sync = tile.store_floats(((0, (0,)),), guarded=True), tile.warp_sync

    def kernel(peaks, unused, unused_too, scales, pieces):
        index = small(lane())
        base = int64(block()) * pieces
        best = zeros()
        at = index
        while at - index < pieces:
            best = larger(as_words(join(best, load(peaks, base, pieces, at))))
            at = small(at + 32)
        put(index, index, index, index, as_words(best))
        warp_sync()
        best = largest(load_lanes(0 * index, 1))
        store(scales, block(), 1, index, power(total(best, ROOT_OF_TWO)))

    return kernel


def _build_last(tile: Any, spec: Spec) -> Any:
    """Points to a spectrum, two neighbouring positions of some filters a lane.

    Arguments: ``points``, ``places`` [positions, 2] and ``weights`` [positions, 4] (see `tables_of_positions`),
    ``scales`` and the spectrum; then the pairs of positions in a row, lanes, a row's points, the pairs in a tile (real
    parts, then imaginary parts), and rows.
    """
    double = spec.double
    item, divide, small, int64 = item_of(tile), tile.divide, tile.small, tile.int64
    combine, narrow, load_scale = tile.combine_rows(4, double=double), tile.narrow(16), tile.load_float
    row0, row1, row2, row3 = (tile.select(tuple(range(4 * i, 4 * i + 4))) for i in range(4))
    scaled, join, pack = tile.divide_floats(4), tile.join, tile.pack(8)
    if double:
        store_floats = tile.store_floats(((0, (0, 2)), (2, (1, 3))), guarded=True)
    else:  # of two filters at a time
        store, store_rest = (
            tile.store_pieces(tuple((i, 0, (first + i,)) for i in range(4)), 2, guarded=True)
            for first in (0, 4)
        )

    def kernel(points, places, weights, spectrum, scales, pairs, items, n, tile_pairs, rows):
        _, _, group, pair = item(items, pairs)
        row = small(group * AT_ONCE)
        x = combine(points, int64(row) * n, n, places, weights, pair)
        limit, place = small(4 * rows * pairs), small(row * pairs + pair)
        if double:
            z = narrow(x)
            store_floats(spectrum, int64(0), limit, small(4 * place), row0(z))
            store_floats(spectrum, int64(0), limit, small(4 * (place + pairs)), row1(z))
            store_floats(spectrum, int64(0), limit, small(4 * (place + 2 * pairs)), row2(z))
            store_floats(spectrum, int64(0), limit, small(4 * (place + 3 * pairs)), row3(z))
        else:  # two of the 4 elements of a pair are stored with those of its tile before it, two half a tile later
            last, part = small(rows - 1), small(2 * tile_pairs)
            y0 = scaled(row0(x), load_scale(scales, row))
            y1 = scaled(row1(x), load_scale(scales, min(row + 1, last)))
            y2 = scaled(row2(x), load_scale(scales, min(row + 2, last)))
            y3 = scaled(row3(x), load_scale(scales, min(row + 3, last)))
            z = pack(join(join(y0, y1), join(y2, y3)))
            at0 = small(2 * (place + small(divide(place, tile_pairs)) * tile_pairs))
            at1 = small(at0 + 4 * pairs)
            at2 = small(at1 + 4 * pairs)
            at3 = small(at2 + 4 * pairs)
            store(spectrum, int64(0), limit, at0, small(at0 + part), at1, small(at1 + part), z)
            store_rest(spectrum, int64(0), limit, at2, small(at2 + part), at3, small(at3 + part), z)

    return kernel


TAP_POINTERS = {"fp16": "HALVES", "bf16": "HALVES", "fp32": "FLOATS", "fp64": "DOUBLES"}
"""Pointers to a filter's taps, by their type."""


def family_of(name: str, build: Any, pointers: tuple[str, ...], scalars: int) -> Any:
    """What `launch` asks of a kernel of filters: the module's ``name``, then arguments, ``scalars`` integers last."""
    return SimpleNamespace(
        __name__=name,
        build=build,
        SIGNATURE=pointers + ("INT",) * scalars,
        VOCABULARY="float",
        min_blocks=lambda spec: 1,
    )


def family(spec: Spec) -> Any:
    """What `launch` asks of a kernel family, for one kernel: their arguments differ."""
    taps = TAP_POINTERS[spec.taps]
    inner = "DOUBLES" if spec.double else "FLOATS"
    pointers = {
        "first": (taps, "WORDS", *(inner,) * (3 if spec.turned else 2)),
        "sums": (taps, "WORDS", inner, "WORDS", inner),
        "next": (inner,) * 4,
        "end": ("FLOATS",) * 2,
        "peak": (inner,) * 3 + ("FLOATS",),
        "scale": ("FLOATS",) * 4,
        "last": (inner, "WORDS", inner, "FLOATS" if spec.double else "HALVES", "FLOATS"),
    }[spec.kind]
    scalars = {"first": 3, "sums": 3, "next": 3, "end": 0, "peak": 3, "scale": 1, "last": 5}[spec.kind]
    return family_of(__name__, build, pointers, scalars)
