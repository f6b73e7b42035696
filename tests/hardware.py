"""What the hardware's documents say about half precision and about fragments, written down again.

Tests hold the tile layer against this file, so nothing of the package is used here.
"""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

HALF = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


# ---- exact arithmetic ----------------------------------------------------------------------------------------
FORMAT = {"fp16": (11, -14, 15), "bf16": (8, -126, 127)}
"""Significant digits, least and largest exponent of normal numbers."""


def nearest(x: Fraction, dtype: str) -> float:
    """x rounded once, to nearest, ties to even; zero and infinity keep the sign."""
    digits, least, most = FORMAT[dtype]
    if x == 0:
        return 0.0
    exponent = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    exponent -= Fraction(2) ** exponent > abs(x)
    quantum = Fraction(2) ** (max(exponent, least) - digits + 1)
    rounded = round(x / quantum) * quantum  # Python rounds a Fraction half to even
    if abs(rounded) >= Fraction(2) ** (most + 1):
        return math.copysign(math.inf, x)
    return math.copysign(float(rounded), x)


def exact_fma(a: float, b: float, c: float, dtype: str) -> float:
    """a b + c with one rounding, and the zeros, infinities and NaN of IEEE 754."""
    a, b, c = float(a), float(b), float(c)  # NumPy's own would warn
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        negative = math.copysign(1, a) * math.copysign(1, b) < 0 and math.copysign(1, c) < 0
        return -0.0 if negative and c == 0 and (a == 0 or b == 0) else 0.0
    return nearest(exact, dtype)


def halves(words: NDArray[np.int32], dtype: str) -> NDArray[np.float64]:
    """[registers, 32] -> [registers, 32, 2]"""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return np.ascontiguousarray(words).view(HALF[dtype]).reshape(*words.shape, 2).astype(np.float64)


def to_words(values: NDArray[np.float64], dtype: str) -> NDArray[np.int32]:
    """[registers, 32, 2], values of the format -> [registers, 32]"""
    return np.ascontiguousarray(values.astype(HALF[dtype])).view(np.int32)[..., 0]


def assert_same_halves(got: NDArray, wanted: NDArray, dtype: str) -> None:
    """Equal bits; any NaN equals any other, since the formats do not say which bits one has."""
    got, wanted = (np.ascontiguousarray(x).reshape(-1).view(np.int16) for x in (got, wanted))
    nan = np.isnan(got.view(HALF[dtype])) & np.isnan(wanted.view(HALF[dtype]))
    different = np.flatnonzero((got != wanted) & ~nan)
    assert not different.size, f"{different.size} differ, first at {different[0]}: {got[different[0]]:#x}"


# ---- where a matrix lies: PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type" --------------
def place_a(lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
    return row, thread * 2 + (i & 1) + (0 if i < 4 else 8)


def place_b(lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    return thread * 2 + (i & 1) + (0 if i < 2 else 8), group


def place_c(lane: int, i: int) -> tuple[int, int]:
    group, thread = lane >> 2, lane % 4
    return group if i < 2 else group + 8, thread * 2 + (i & 1)


def slots_a(rows: int, k: int) -> NDArray[np.intp]:
    """For each element of the matrix, its [register, lane, half] of an A operand."""
    where = np.empty((16 * rows, 16 * k, 3), int)
    for m, q, lane, i in np.ndindex(rows, k, 32, 8):
        row, column = place_a(lane, i)
        where[16 * m + row, 16 * q + column] = ((m * k + q) * 4 + i // 2, lane, i % 2)
    return where


def slots_b(k: int, columns: int) -> NDArray[np.intp]:
    where = np.empty((16 * k, 8 * columns, 3), int)
    for q, n, lane, i in np.ndindex(k, columns, 32, 4):
        row, column = place_b(lane, i)
        where[16 * q + row, 8 * n + column] = ((q * columns + n) * 2 + i // 2, lane, i % 2)
    return where


def slots_c(rows: int, columns: int) -> NDArray[np.intp]:
    """Accumulators [group of 8 rows, tile of 8 columns, 2] as [register pair, lane, which of the two]."""
    where = np.empty((16 * rows, 8 * columns, 3), int)
    for m, n, lane, i in np.ndindex(rows, columns, 32, 4):
        row, column = place_c(lane, i)
        where[16 * m + row, 8 * n + column] = ((2 * m + i // 2) * columns + n, lane, i % 2)
    return where


def gather(values: NDArray, slots: NDArray[np.intp]) -> NDArray:
    return values[tuple(np.moveaxis(slots, -1, 0))]


def scatter(matrix: NDArray, slots: NDArray[np.intp], dtype: str) -> NDArray[np.int32]:
    """A matrix as the registers [n, 32] of an operand."""
    values = np.zeros((slots[..., 0].max() + 1, 32, 2))
    values[tuple(np.moveaxis(slots, -1, 0))] = matrix
    return to_words(values, dtype)


def accumulators(fragment: NDArray[np.float32], rows: int, columns: int) -> NDArray[np.float32]:
    pairs = fragment.reshape(-1, 2, 32).transpose(0, 2, 1)
    return gather(pairs, slots_c(rows, columns))
