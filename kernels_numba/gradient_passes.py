"""Kernels that bring sums of spectra back to taps through device memory, and those around them; see `filter_gradient`.

A thread does one thing: a butterfly of the first pass, a tap, some rows of one tap, four floats of a row.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.filter_passes import item_of

TOGETHER = 32
"""Rows that are added up at a time."""


def build(tile: Any, spec: Any) -> Any:
    """The kernel function of ``spec`` (`filter_gradient.Spec`), of any kind but "whole"."""
    made = {"bins": _bins, "taps": _taps, "total": _total, "keep": _keep}
    if spec.turned:
        made |= {"bins": _turned_bins, "taps": _turned_taps}
    return made[spec.kind](tile, spec)


def _bins(tile: Any, spec: Any) -> Any:
    """Sums to points after the first pass.

    Arguments: ``sums``, ``bins`` and ``roots`` as above, ``table`` of twiddles, ``points``; then the butterflies in
    all, and the shares.
    """
    radix, step = spec.radix, spec.points // spec.radix
    n = 2 * spec.points
    item, small, int64 = item_of(tile), tile.small, tile.int64
    zeros, add = tile.zeros(2 * radix), tile.add_hermitian(tuple(step * q for q in range(radix)))
    dft = tile.dft_points(radix, 1, inverse=False)
    turn, store = tile.multiply_strided(radix), tile.store_strided(radix)

    def kernel(sums, bins, roots, table, points, butterflies, shares):
        _, valid, row, column = item(butterflies, step)
        source = int64(row) * (shares * n)
        x = zeros()
        share = small(0)
        while share < shares:
            x = add(x, sums, source, bins, roots, column)
            source += n
            share = small(share + 1)
        at = int64(row) * (radix * step) + column
        store(points, at, step, valid, turn(dft(x), table, 4 * column, step))

    return kernel


def _turned_bins(tile: Any, spec: Any) -> Any:
    """Turned sums to points after the first pass.

    Arguments: as those of `_bins`; ``bins`` [P] are the floats where the bins' sums begin, ``roots`` is not read.
    """
    radix, step, p = spec.radix, spec.points // spec.radix, spec.points
    item, small, int64 = item_of(tile), tile.small, tile.int64
    zeros, load, plus, join = (
        tile.zeros(2 * radix),
        tile.load_taps(radix, "fp32"),
        tile.plus(2 * radix),
        tile.join,
    )
    dft = tile.dft_points(radix, 1, inverse=False)
    turn, store = tile.multiply_strided(radix), tile.store_strided(radix)

    def kernel(sums, bins, roots, table, points, butterflies, shares):
        _, valid, row, column = item(butterflies, step)
        source = 2 * int64(row) * (shares * p)
        x = zeros()
        share = small(0)
        while share < shares:
            real = load(sums, source, bins, column, step)
            x = plus(x, join(real, load(sums, source + 1, bins, column, step)))
            source += 2 * p
            share = small(share + 1)
        at = int64(row) * (radix * step) + column
        store(points, at, step, valid, turn(dft(x), table, 4 * column, step))

    return kernel


def _turned_taps(tile: Any, spec: Any) -> Any:
    """Points of right-angle packing to taps.

    Arguments: as those of `_taps`, and after ``taps``, which are the floats where points lie, ``turns`` [1 or 2,
    2, K] of what both parts are multiplied by.
    """
    item, int64 = item_of(tile), tile.int64
    load, load_turns = tile.load_taps(1, "fp32"), tile.load_floats(((0, (0,)),), 1, guarded=False)
    times, plus, total, zeros = tile.multiply_floats(1), tile.plus(1), tile.scaled_total(1), tile.zeros(1)
    store, places = tile.store_floats(((0, (0,)),), guarded=True), spec.places

    def kernel(points, taps, turns, dk, scale, count, items, n):
        index, _, row, tap = item(items, count)
        source = 2 * int64(row) * n
        x = zeros()
        for i in range(places):
            for part in range(2):
                value = load(points, source + part, taps, tap + i * count, count)
                x = plus(x, times(value, load_turns(turns, int64(2 * i + part) * count, 0, tap)))
        store(dk, int64(0), items, index, total(x, scale))

    return kernel


def _taps(tile: Any, spec: Any) -> Any:
    """Points to taps.

    Arguments: ``points`` [rows, P, 2], ``taps`` [1 or 2, K] of the floats of a row where taps lie, ``dk``; then a
    factor, K, taps in all, and P.
    """
    item, int64 = item_of(tile), tile.int64
    load, total = tile.load_taps(spec.places, "fp32"), tile.scaled_total(spec.places)
    store = tile.store_floats(((0, (0,)),), guarded=True)

    def kernel(points, taps, dk, scale, count, items, n):
        index, _, row, tap = item(items, count)
        x = load(points, int64(row) * (2 * n), taps, tap, count)
        store(dk, int64(0), items, index, total(x, scale))

    return kernel


def _total(tile: Any, spec: Any) -> Any:
    """Rows added up, TOGETHER at a time.

    Arguments: ``source`` [rows, K], ``target`` [groups, K]; then K, the sums in all, and rows.
    """
    item, small, int64 = item_of(tile), tile.small, tile.int64
    load, plus, zeros = tile.load_floats(((0, (0,)),), 1, guarded=True), tile.plus(1), tile.zeros(1)
    store = tile.store_floats(((0, (0,)),), guarded=True)

    def kernel(source, target, count, items, rows):
        index, _, group, tap = item(items, count)
        row = small(group * TOGETHER)
        x = zeros()
        turn = small(0)
        while turn < TOGETHER:  # rows beyond the last one are zeros
            x = plus(x, load(source, int64(row) * count, count * (row < rows), tap))
            row = small(row + 1)
            turn = small(turn + 1)
        store(target, int64(0), items, index, x)

    return kernel


def _keep(tile: Any, spec: Any) -> Any:
    """Sums of spectra times a factor for each bin, four floats a thread.

    Arguments: ``sums`` [rows, N, 2], in place; ``kept`` [N, 2], 1 or 0; then quads in all, and in a row.
    """
    item, small, int64 = item_of(tile), tile.small, tile.int64
    pieces = ((0, (0, 1)), (2, (2, 3)))
    load, multiply = tile.load_floats(pieces, 4, guarded=False), tile.multiply_floats(4)
    store = tile.store_floats(pieces, guarded=False)

    def kernel(sums, kept, quads, width):
        _, valid, row, quad = item(quads, width)
        there, at = small(valid), small(4 * quad)
        base = int64(row) * (4 * width)
        x = load(sums, base, there, at)
        store(sums, base, there, at, multiply(x, load(kept, int64(0), there, at)))

    return kernel
