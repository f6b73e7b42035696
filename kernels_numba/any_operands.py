"""Constant operands of the kernel of any factors; see `any_spec.py` and docs/kernels.md.

Complex factors are real matrices [2 r, 2 r] of real and imaginary parts. n = (n1, .., np) row-major, and
k = k1 + N1 (k2 + N2 (...)); every index lies in its natural place.
"""

from __future__ import annotations

from functools import cache, lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from kernels_numba.any_spec import Spec
from kernels_numba.block_operands import mirrored_weights
from kernels_numba.operands import rounding_scale
from kernels_numba.tile import layout
from monarch import Plan
from monarch.index import digit_order_of

OUT_ROWS = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Lane group -> row of eight: neighbours are four apart, so that their accesses fall on different banks."""


def points_contracted(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(point, part) of each contraction slot of a stage before the last: thread t has points 2 t, 2 t + 1 of eight."""
    slot = np.arange(2 * count)
    s = slot % 16
    return 8 * (slot // 16) + 2 * (s % 8 // 2) + s // 8, slot % 2


def rows_made(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(point, part) of each output row of a stage before the last: eight points' real parts, then the imaginary."""
    row = np.arange(2 * count)
    return 8 * (row // 16) + OUT_ROWS[row % 8], row % 16 // 8


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


def real_form(outputs: tuple, contracted: tuple, factor: int, dtype: str) -> NDArray:
    """The factor's real matrix [outputs, contracted] between parts of points, scaled."""
    (k, part_out), (n, part_in) = ([np.asarray(x) for x in pair] for pair in (outputs, contracted))
    angle = 2 * np.pi * (np.outer(k, n) % factor) / factor
    cosine, sine = np.cos(angle), np.sin(angle)
    same = part_out[:, None] == part_in[None, :]
    matrix = np.where(same, cosine, np.where(part_out[:, None] == 0, sine, -sine))
    return scale_of(factor, dtype) * matrix / np.sqrt(factor)


@lru_cache(maxsize=32)
def row_factor(factor: int, dtype: str) -> NDArray[np.int32]:
    """A operands of a stage before the last, [factor / 8, factor / 8] of 128 words."""
    matrix = real_form(rows_made(factor), points_contracted(factor), factor, dtype)
    return layout.pack_operand(matrix, layout.a_index(factor // 8, factor // 8), dtype)


@lru_cache(maxsize=32)
def last_factor(factor: int, dtype: str) -> NDArray[np.int32]:
    """B operands of the last stage, [column tile][contraction tile], two in 128 words."""
    points = np.repeat(points_of_last(factor).reshape(-1), 2)
    # Contraction tile k, slot 2 t + e + 8 h: part e of the point of column tile 2 k + h and thread t.
    parts = np.tile([0, 1], factor)
    matrix = real_form((points, parts), (points, parts), factor, dtype).T
    k_tiles, column_tiles = factor // 8, factor // 4
    rows, columns = (
        x.reshape(k_tiles, column_tiles, 2, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
        for x in layout.b_index(k_tiles, column_tiles)
    )
    return layout.pack_operand(matrix, (rows, columns), dtype)


def twiddle_words(factors: tuple[int, ...], dtype: str) -> list[NDArray[np.int32]]:
    """For each stage but the last its twiddles [k_i, (n(i+1) .. np)], a complex word each."""
    found = []
    for i, radix in enumerate(factors[:-1]):
        step = prod(factors[i + 1 :])
        w = np.exp(-2j * np.pi * np.outer(np.arange(radix), np.arange(step)) / (radix * step)).reshape(-1)
        found.append(layout.to_words(np.stack([w.real, w.imag], axis=-1), dtype))
    return found


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
    matrices = [row_factor(f, dtype) if f > 0 else last_factor(-f, dtype) for f in spec.matrices]
    tables = twiddle_words(factors, dtype)
    found = np.concatenate(matrices), np.concatenate([*tables, *([unit_places(spec)] if half else [])])
    for words in found:
        words.setflags(write=False)
    return found
