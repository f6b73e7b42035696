"""Constant operands of the kernel of any factors; see `any_spec.py` and docs/kernels.md.

Complex factors are real matrices [2 r, 2 r] of real and imaginary parts. n = (n1, .., np) row-major, and
k = k1 + N1 (k2 + N2 (...)); every index lies in its natural place.
"""

from __future__ import annotations

from functools import cache, lru_cache
from itertools import accumulate
from math import prod

import numpy as np
from numpy.typing import NDArray

from kernels_numba.any_spec import Spec, stored_tiles, tiles_of
from kernels_numba.block_operands import mirrored_weights
from kernels_numba.operands import rounding_scale
from kernels_numba.tile import layout
from monarch import Plan
from monarch.index import digit_order_of

OUT_ROWS = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Lane group -> row of eight: neighbours are four apart, so that their accesses fall on different banks."""


def points_of_stage(count: int) -> NDArray[np.intp]:
    """Column tile n, thread t -> point of a stage before the last, [count / 4, 4]: a thread has two neighbours of 8."""
    tile, thread = np.arange(count // 4)[:, None], np.arange(4)[None, :]
    return 8 * (tile // 2) + 2 * thread + tile % 2


def points_of_last(count: int) -> NDArray[np.intp]:
    """Column tile n, thread t -> point, [count / 4, 4]: a thread has four neighbours of 16 in four tiles."""
    tile, thread = np.arange(count // 4)[:, None], np.arange(4)[None, :]
    return 16 * (tile // 4) + 4 * thread + tile % 4


@cache
def scale_of(factor: int, dtype: str) -> float:
    """The scale, near 1, with which a unitary factor rounds to half precision with the least error."""
    k = np.arange(factor)
    scale = rounding_scale(np.cos(2 * np.pi * np.outer(k, k) / factor) / np.sqrt(factor), dtype)
    return scale / 2 if scale > np.sqrt(2) else scale


@lru_cache(maxsize=64)
def factor_words(factor: int, dtype: str, *, last: bool) -> NDArray[np.int32]:
    """B operands of a stage, [column tile][contraction tile], two in 128 words.

    That is a real matrix between parts of points, scaled, with zeros for the points that fill up tiles. Contraction
    tile k has in its slots 2 t + e + 8 h part e of the point of column tile 2 k + h and thread t, and so have outputs.
    """
    k_tiles, column_tiles = stored_tiles(factor), 2 * tiles_of(factor)
    points = (points_of_last if last else points_of_stage)(8 * k_tiles).reshape(-1)
    n, part = np.repeat(points, 2)[:, None], np.tile([0, 1], points.size)[:, None]
    k, made = n[: 8 * column_tiles].T, part[: 8 * column_tiles].T
    angle = 2 * np.pi * (n * k % factor) / factor
    matrix = np.where(part == made, np.cos(angle), np.where(made == 0, np.sin(angle), -np.sin(angle)))
    matrix = np.where((n < factor) & (k < factor), scale_of(factor, dtype) * matrix / np.sqrt(factor), 0.0)
    rows, columns = (
        x.reshape(k_tiles, column_tiles, 2, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
        for x in layout.b_index(k_tiles, column_tiles)
    )
    return layout.pack_operand(matrix, (rows, columns), dtype)


def twiddles(factors: tuple[int, ...], i: int) -> NDArray[np.complex128]:
    """Of stage i, [k_i, (n(i+1) .. np)]."""
    radix, step = factors[i], prod(factors[i + 1 :])
    return np.exp(-2j * np.pi * np.outer(np.arange(radix), np.arange(step)) / (radix * step))


def by_strips(table: NDArray[np.complex128], dtype: str) -> NDArray[np.int32]:
    """Twiddles [points, columns] in the order in which lanes read them, a strip of 16 columns after the other.

    Of each eight points a lane has columns 2 g and 2 g + 1 of point 2 t, then of 2 t + 1.
    """
    points, columns = table.shape
    filled = np.zeros((8 * tiles_of(points), columns), np.complex128)
    filled[:points] = table
    tile, lane, word = np.arange(len(filled) // 8)[:, None, None], np.arange(32)[:, None], np.arange(4)
    point = 8 * tile + 2 * layout.THREAD[lane] + word // 2
    column = 2 * layout.GROUP[lane] + word % 2
    found = filled[point, 16 * np.arange(columns // 16)[:, None, None, None] + column]
    return planes(found, dtype)


def planes(numbers: NDArray[np.complex128], dtype: str) -> NDArray[np.int32]:
    """Two words for two neighbours: their real parts, then the imaginary."""
    two = numbers.reshape(-1, 2)
    return layout.to_words(np.stack([two.real, two.imag], axis=1), dtype).reshape(-1)


def table_words(spec: Spec) -> NDArray[np.int32]:
    """All twiddles, as `Spec.table_places` has them."""
    first, *middle, last = factors = spec.factors
    found = {"first": by_strips(twiddles(factors, 0), spec.dtype)}
    if middle:
        found["middle"] = by_strips(twiddles(factors, 1), spec.dtype)
        # For each k1 the points are n2, which the inverse transform has just made.
        each = twiddles(factors, 0).reshape(first, *middle, last)
        found["back"] = np.concatenate([by_strips(rows, spec.dtype) for rows in each])
    found["last"] = planes(twiddles(factors, len(factors) - 2), spec.dtype)
    assert list(accumulate(map(len, found.values()), initial=0)) == list(spec.table_places.values())
    return np.concatenate(list(found.values()))


# ---- rows of the last stage, sixteen a unit -----------------------------------------------------------------------
def unit_rows(factors: tuple[int, ...], half: bool) -> NDArray[np.intp]:
    """Row of each slot of each unit, [units, 16].

    With half-length packing slots 8 to 15 are the mirrors of slots 0 to 7 (of two rows that are their own mirrors one
    is the other's).
    """
    count = prod(factors[:-1])
    rows = np.arange(count)
    if not half:
        return rows.reshape(-1, 2, 8)[:, :, OUT_ROWS].reshape(-1, 16)
    mirror = row_mirrors(factors)
    own = np.flatnonzero(mirror == rows)
    assert own.size == 2 and own[0] == 0
    first = rows[(rows < mirror) | (rows == 0)]
    second = np.where(first == 0, own[1], mirror[first])
    return np.concatenate([x.reshape(-1, 8)[:, OUT_ROWS] for x in (first, second)], axis=1)


def row_mirrors(factors: tuple[int, ...]) -> NDArray[np.intp]:
    """The row in which the frequencies -k of each row lie."""
    digits = np.array(np.unravel_index(np.arange(prod(factors[:-1])), factors[:-1]))
    found, borrowed = [], np.zeros(digits.shape[1], bool)
    for digit, factor in zip(digits, factors[:-1], strict=True):
        found.append((-digit - borrowed) % factor)
        borrowed |= digit > 0
    return np.ravel_multi_index(tuple(found), factors[:-1])


def unit_places(spec: Spec) -> NDArray[np.int32]:
    """For half-length packing what each lane must know of each unit: eight words [units, 2, 32, 4].

    Where its two rows lie, and where their twiddles; and from where the mirrors of its points count downwards (of the
    row of frequency 0 those of its first point are apart).
    """
    shape, last = spec.layout, spec.factors[-1]
    rows = unit_rows(spec.factors, True)
    digits = np.array(np.unravel_index(rows, spec.factors[:-1]))
    at = np.tensordot(np.array(shape.strides[:-1]), digits, 1)  # [units, 16]
    tables = digits[-1] * last
    other = np.concatenate([at[:, 8:], at[:, :8]], axis=1)
    mirror = np.where(row_mirrors(spec.factors)[rows] == rows, at, other) + last - 1 + (rows == 0)
    group, thread = layout.GROUP, layout.THREAD
    lanes = [x[:, [*group, *(8 + group)]].reshape(-1, 2, 32) for x in (at, tables, mirror, rows)]
    start = lanes[2] - 4 * thread
    of_zero = np.where((lanes[3] == 0) & (thread == 0), 0, start)
    quads = [(lanes[0] + 4 * thread, lanes[1] + 4 * thread), (start, of_zero)]
    words = np.stack([np.concatenate(pair, axis=1) for pair in quads], axis=1)  # [units, 2, 4, 32]
    return words.swapaxes(2, 3).astype(np.int32).reshape(-1)


def spectrum_of_plan(plan: Plan, dtype: str) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """Bins [1 or 2, positions] and weights in the order in which the kernel reads a spectrum; tiles, of two positions.

    A lane's words of a unit: of contraction tile, half of it, and row, the last running fastest; with half-length
    packing A, then B (see `block_operands.half_spectrum_layout`).
    """
    factors = plan.factors
    last = factors[-1]
    rows = unit_rows(factors, plan.packing == "half")
    word = np.arange(last // 2)
    tile, y = 2 * (word // 4) + word % 4 // 2, word % 2
    k = points_of_last(last)[tile][:, layout.THREAD]  # [words, lanes]
    row = rows[:, 8 * y[:, None] + layout.GROUP[None, :]]  # [units, words, lanes]
    place = (row * last + k).reshape(rows.shape[0], -1, 4, 32).swapaxes(2, 3)
    order = digit_order_of(factors)[place].reshape(-1)
    scale = prod(scale_of(f, dtype) for f in factors)
    weights = np.full(order.size, 1 / scale**2, np.complex128)
    if plan.packing != "half":
        return order[None], weights[None], order.size // 2
    bins, both, _ = mirrored_weights(order, weights, rows.shape[0])
    return bins, both, bins.shape[1] // 2


def operand_key(spec: Spec) -> tuple:
    """What the constant buffers depend on."""
    return (spec.factors, spec.dtype, spec.half)


@lru_cache(maxsize=16)
def operands(factors: tuple[int, ...], dtype: str, half: bool) -> tuple[NDArray[np.int32], ...]:
    """The constant buffers, in the order of the kernel's arguments: factors; twiddles, and the places of units."""
    spec = Spec(factors, dtype, 0, 0, "half" if half else "pair")
    matrices = [factor_words(abs(f), dtype, last=f < 0) for f in spec.matrices]
    places = unit_places(spec) if half else np.zeros(0, np.int32)
    found = np.concatenate(matrices), np.concatenate([table_words(spec), places])
    for words in found:
        words.setflags(write=False)
    return found
