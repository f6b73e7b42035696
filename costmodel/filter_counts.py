"""Exact counts of the kernels that transform filters, launch by launch.

:func:`first` to :func:`last` and :func:`whole` are plain arithmetic; a property test holds them equal to the counters
of the kernels' CPU bodies.

Symbols: ``rows`` filters of which ``used`` taps count, N samples as P = N / 2 complex ``points``; a pass of radix r
over points ``step`` apart has rows P / r butterflies, one a lane; ``lanes`` are those of the grid: those without a
butterfly do the first one again. ``size`` is the bytes of a real number: 4, or 8 where a spectrum of fp32 is made in
fp64 (whose flops are not counted).
"""

from __future__ import annotations

from typing import Any

from costmodel.float_counts import transform_flops, twiddles

THREADS = 128
PEAK_LANES = 256
AT_ONCE = 4
"""Filters whose positions a lane makes, and points that it looks at at once for their peak; as the kernels have it."""
WARP = 32


def butterflies(radix: int, lanes: Any, size: int) -> dict[str, Any]:
    """What every pass does: twiddles of every point but those of the first, which are ones, are read and applied."""
    flops = transform_flops(radix, radix, radix) + 6 * radix
    return {"read_table": 2 * size * radix * lanes, "fp32_flops": flops * lanes if size == 4 else 0}


def first(
    radix: int,
    rows: Any,
    points: Any,
    lanes: Any,
    *,
    used: Any,
    again: Any,
    taps_bytes: int,
    size: int,
    turned: bool = False,
) -> dict[str, Any]:
    """The first pass; ``again``: taps of the first butterfly, which idle lanes read once more.

    ``turned``: points are multiplied by numbers of their own before, for right-angle packing.
    """
    idle = lanes - rows * points // radix
    found = butterflies(radix, lanes, size)
    return found | {
        "read_taps": taps_bytes * (rows * used + idle * again),
        "read_numbers": 8 * radix * lanes,
        "read_turns": 2 * size * radix * lanes if turned else 0,
        "written_points": 2 * size * rows * points,
        "fp32_flops": found["fp32_flops"] + (6 * radix * lanes if turned else 0),
    }


def sums(
    radix: int, rows: Any, points: Any, lanes: Any, *, used: Any, again: Any, taps_bytes: int, size: int
) -> dict[str, Any]:
    """The first pass of a large prime, a point a lane, which reads every tap of its column; as `first`."""
    idle = lanes - rows * points
    return {
        "read_taps": taps_bytes * (radix * rows * used + idle * again),
        "read_numbers": 8 * radix * lanes,
        "read_roots": 2 * size * radix * lanes,
        "read_table": 2 * size * lanes,
        "written_points": 2 * size * rows * points,
        "fp32_flops": (8 * radix + 6) * lanes if size == 4 else 0,
    }


def later(radix: int, rows: Any, points: Any, lanes: Any, *, size: int) -> dict[str, Any]:
    """A later pass, in place."""
    return butterflies(radix, lanes, size) | {
        "read_points": 2 * size * radix * lanes,
        "written_points": 2 * size * rows * points,
    }


def end(radix: int, rows: Any, points: Any) -> dict[str, Any]:
    """The last pass where rows are whole blocks: points come and go by way of shared memory; and each block's peak."""
    lanes = rows * points // radix
    blocks = lanes // THREADS
    return {
        "read_points": 8 * rows * points,
        "written_points": 8 * rows * points,
        "written_peaks": 4 * blocks,
        "shared_written_bytes": 16 * rows * points + 2 * 4 * lanes,
        "shared_read_bytes": 16 * rows * points + 4 * (THREADS // WARP + WARP) * lanes,
        "fp32_flops": transform_flops(radix, radix, radix) * lanes,
        "barriers": 2 * blocks,
    }


def peak(rows: Any, points: Any, pieces: Any) -> dict[str, Any]:
    """The largest point of every piece of a filter: a block for each, whose warps' results meet in shared memory."""
    turn = PEAK_LANES * AT_ONCE
    return {
        "read_points": 8 * rows * (-(-points // turn) * turn),
        "written_peaks": 4 * rows * pieces,
        "shared_written_bytes": 2 * 4 * PEAK_LANES * rows * pieces,
        "shared_read_bytes": 4 * (PEAK_LANES // WARP + WARP) * PEAK_LANES * rows * pieces,
        "barriers": rows * pieces,
    }


def scale(rows: Any, pieces: Any) -> dict[str, Any]:
    """The scale of every filter, a warp's, from the largest points of its pieces."""
    return {
        "read_peaks": 4 * rows * pieces,
        "written_scales": 4 * rows,
        "shared_written_bytes": 4 * WARP * rows,
        "shared_read_bytes": 4 * WARP * WARP * rows,
        "fp32_flops": WARP * rows,
    }


def last(rows: Any, positions: Any, lanes: Any, *, size: int) -> dict[str, Any]:
    """Points to the spectrum, two positions of some filters a lane; idle lanes store the first ones again."""
    idle = lanes - -(-rows // AT_ONCE) * positions // 2
    stored = rows * positions // 2 + idle * min(rows, AT_ONCE)
    return {
        "read_places": 16 * lanes,
        "read_weights": 8 * size * lanes,
        "read_points": 8 * size * AT_ONCE * lanes,
        "read_scales": 4 * AT_ONCE * lanes // WARP if size == 4 else 0,
        "written_spectrum": 2 * size * stored,
        "fp32_flops": (36 + 4) * AT_ONCE * lanes if size == 4 else 0,
    }


def whole(
    factors: tuple[int, ...],
    rows: Any,
    blocks: Any,
    *,
    together: int,
    held: int,
    used: Any,
    taps_bytes: int,
    turned: bool = False,
) -> dict[str, Any]:
    """One launch: N = 2 P points by P complex ones in shared memory; see `float_counts` for its symbols.

    ``used``: the taps of all transforms of the grid, those of a block that has no filter left included. ``turned``: for
    right-angle packing, which multiplies points before, and has half as many positions.
    """
    pairs = held // 2 if turned else held  # of positions, of a lane
    points = 1
    for r in factors:
        points *= r
    threads = points // held
    lanes = blocks * together * threads
    quads, products = twiddles(factors, threads, held)
    flops = 6 * products + 22 * held + 36 * pairs + 16 * pairs // 4 + (6 * held if turned else 0)
    for r in factors:
        flops += held // r * transform_flops(r, r, r)
    group = min(WARP, threads)
    within_warp = threads <= WARP and WARP % threads == 0
    exchanges = 8 * held * (len(factors) - 1)
    return {
        "read_taps": taps_bytes * used,
        "read_numbers": 8 * held * lanes,
        "read_table": 16 * quads * lanes,
        "read_roots": (16 if turned else 8) * held * lanes,
        "read_mirrors": 8 * (held // factors[-1]) * lanes,
        "read_places": 16 * pairs * lanes,
        "read_weights": 32 * pairs * lanes,
        "written_scales": 4 * rows,
        "written_spectrum": 8 * points * pairs // held * rows,
        # Exchanges between stages; then all points, whose mirrors and positions are read from there.
        "shared_written_bytes": lanes * (exchanges + 8 * held + (8 if threads > WARP else 4)),
        "shared_read_bytes": lanes
        * (exchanges + 8 * held + 32 * pairs + 4 * group + (4 * (threads // WARP) if threads > WARP else 0)),
        "fp32_flops": lanes * flops,
        "barriers": 0 if within_warp else blocks * (len(factors) + 1 + (threads > WARP)),
    }


def short(
    factors: tuple[int, ...],
    rows: Any,
    blocks: Any,
    *,
    together: int,
    shared: bool,
    in_order: bool,
    turns: int,
    held: int,
    used: Any,
    taps_bytes: int,
) -> dict[str, Any]:
    """One launch of `filter_short`: ``together`` filters a block, of ``turns`` pairs of positions a thread.

    ``shared``: a thread makes these of every filter of its block. ``in_order``: taps need no numbers. ``used``: as in
    `whole`.
    """
    points = 1
    for r in factors:
        points *= r
    threads = points // held
    lanes, exchanges, filters = blocks * together * threads, len(factors) - 1, together if shared else 1
    flops = 6 * held * exchanges + 1 + together * shared
    for r in factors:
        flops += held // r * transform_flops(r, r, r)
    flops += turns * filters * (2 * 14 + 4)
    each = max(1, threads // WARP)
    within_warp = threads <= WARP and WARP % threads == 0
    several = shared or not within_warp  # warps that make what one reads
    return {
        "read_taps": taps_bytes * used,
        "read_samples": 0 if in_order else 8 * held * lanes,
        "read_table": 8 * held * exchanges * lanes,
        "read_places": 16 * turns * lanes,
        "read_weights": 32 * turns * lanes,
        "written_scales": 4 * rows,
        "written_spectrum": 4 * 2 * points * rows,
        # Exchanges between stages, then all points, and a word a thread for peaks.
        "shared_written_bytes": lanes * (8 * held * (exchanges + 1) + 4 * several),
        # A pair of positions is made of four points.
        "shared_read_bytes": lanes
        * (8 * held * exchanges + 4 * each * (several + together * shared) + 32 * turns * filters),
        "fp32_flops": lanes * flops,
        "barriers": blocks * (several + (0 if within_warp else exchanges)),
    }


def within(
    n: int,
    blocks: Any,
    made: Any,
    loads: Any,
    *,
    used: Any,
    taps_bytes: int,
    turned: bool = False,
) -> dict[str, Any]:
    """What a convolution of order 2 does more that transforms ``made`` filters in its ``blocks``, by `warp_filter`.

    ``loads``: as in `kernel_counts.totals`; those of spectra and scales are from shared memory. ``used``: taps of all
    filters made.
    """
    from kernels_numba.warp_filter import FACTORS, shape

    factors, held, positions = FACTORS[n // 2], shape(n).held, n // 2 if turned else n
    rows, exchanges = len(factors) - 1 + turned, len(factors) - 1
    flops = 6 * held * rows + 1 + positions // 64 * (2 * 14 + 4)
    for r in factors:
        flops += held // r * transform_flops(r, r, r)
    tables = 24 * positions
    return {
        "read_taps": taps_bytes * used,
        "read_filter tables": 8 * WARP * held * rows * made + tables * blocks,
        # All points after each stage, the scale for every lane, and the spectrum.
        "shared_written_bytes": (8 * WARP * (held * len(factors) + 1) + 4 * positions) * made
        + tables * blocks,
        "shared_read_bytes": (8 * WARP * held * exchanges + 16 * positions + tables) * made
        + (4 * positions + 8 * WARP) * loads,
        "fp32_flops": WARP * flops * made,
        "barriers": blocks,
    }


def in_one_launch(
    n: int,
    rows: int,
    *,
    taps: int,
    taps_bytes: int,
    tiles: int = 1,
    turned: bool = False,
    in_order: bool = True,
) -> dict[str, Any]:
    """The counts of the kernel that transforms N points in one launch, of circular filters.

    ``turned``: as in `whole`; ``in_order``: as in `short`.
    """
    from kernels_numba import filter_short, filter_whole

    positions = n // 2 if turned else n
    how: dict[str, Any] = {"taps_bytes": taps_bytes}
    if filter_whole.kernels(n, positions, tiles) is filter_short:
        spec = filter_short.spec_of(n, positions, tiles, "fp32", "fp16", (0.0, 0.0))
        blocks = -(-rows // spec.together)
        how |= {"together": spec.together, "shared": spec.shared, "in_order": in_order, "turns": spec.turns}
        how |= {"held": spec.shape.held, "used": blocks * spec.together * min(taps, n)}
        return short(spec.factors, rows, blocks, **how)
    shape = filter_whole.spec_of(n, positions, tiles, "fp32", "fp16", (0.0, 0.0)).shape
    blocks = -(-rows // shape.together)
    how |= {"together": shape.together, "held": shape.held, "used": blocks * shape.together * min(taps, n)}
    return whole(shape.factors, rows, blocks, turned=turned, **how)


def passes(
    n: int, rows: int, *, taps: int, taps_bytes: int, positions: int, size: int, turned: bool = False
) -> list[dict[str, Any]]:
    """The counts of every launch that transforms N points through device memory, of circular filters.

    ``turned``: of causal ones of at most N / 2 taps, by right-angle packing.
    """
    from kernels_numba.filter_transform import jobs

    found = []
    points = step = n // 2
    for job in jobs(n, rows, "fp32", taps, "fp32" if size == 8 else "fp16", positions, 1, (0.0, 0.0)):
        kind, radix, lanes = job.spec.kind, job.spec.radix, THREADS * job.grid
        step //= radix or 1
        if kind in ("first", "sums"):
            used = min(taps, n)
            again = -(-used // (2 * step)) + -(-(used - 1) // (2 * step))
            if turned:  # others lie half a circle on, where there are no taps
                again = -(-used // step)
            known: dict[str, Any] = {"used": used, "again": again, "taps_bytes": taps_bytes, "size": size}
            if kind == "first":
                counted = first(radix, rows, points, lanes, turned=turned, **known)
            else:
                counted = sums(radix, rows, points, lanes, **known)
        elif kind == "next":
            counted = later(radix, rows, points, lanes, size=size)
        elif kind == "end":
            counted = end(radix, rows, points)
        elif kind == "peak":
            counted = peak(rows, points, job.scalars[1])
        elif kind == "scale":
            counted = scale(rows, job.scalars[0])
        else:
            counted = last(rows, positions, lanes, size=size)
        found.append(counted)
    return found
