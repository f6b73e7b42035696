"""The CPU body's running sums: products added onto accumulators, dot products, sums over lanes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_memory import Fragment
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Machine


def fma_single(a: NDArray, b: NDArray, c: NDArray) -> NDArray[np.float32]:
    """Float32 of a b + c, rounded once: the product of two float32 is exact in float64.

    The sum is rounded to odd in float64 (its last bit says whether anything was lost), which no second rounding can
    mistake for a tie.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        wide = c.astype(np.float64)
        total = product + wide
        back = total - product
        lost = np.where(np.isfinite(total), (product - (total - back)) + (wide - back), 0.0)
        bits = total.view(np.int64)
        toward_zero = (lost != 0) & ((lost < 0) != np.signbit(total))
        bits = np.where(toward_zero, bits - 1, bits)
        bits = np.where(lost != 0, bits | 1, bits)
        return bits.view(np.float64).astype(np.float32)


class CpuProducts:
    """Running sums of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine
    half: np.dtype
    _left: Callable
    _right: Callable
    _accumulators: Callable
    _summed: Callable
    _count_mma: Callable

    def zeros(self, count: int) -> Callable:
        """Float32 zeros."""
        return lambda: np.zeros((count, WARP), np.float32)

    def mma_add(self, row_tiles: int, column_tiles: int, k_tiles: int) -> Callable:
        """C + a b in float32, one 16-deep step after another."""

        def product(c: Fragment, a: Fragment, b: Fragment) -> Fragment:
            self._count_mma(row_tiles, column_tiles, k_tiles)
            left = self._left(a, row_tiles, k_tiles)
            right = self._right(b, k_tiles, column_tiles)
            total = self._summed(c, 2 * row_tiles)
            with np.errstate(invalid="ignore", over="ignore"):
                for k in range(0, 16 * k_tiles, 16):
                    total = total + left[:, k : k + 16] @ right[k : k + 16]
            return self._accumulators(total)

        return product

    def _singles(self, words: Fragment) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore"):  # a signalling NaN
            halves = np.ascontiguousarray(words).view(self.half).reshape(*words.shape, 2)
            return halves.astype(np.float32)

    def dot_add(self, rows: int, columns: int, words: int) -> Callable:
        """Each lane's own dot products, [rows, columns] of them, each product added with one rounding."""

        def product(sums: Fragment, w: Fragment, x: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 4 * rows * columns * words * WARP
            left = self._singles(w).reshape(rows, 1, words, WARP, 2)
            right = self._singles(x).reshape(1, columns, words, WARP, 2)
            total = sums.reshape(rows, columns, WARP)
            for i in range(words):
                for e in range(2):
                    total = fma_single(left[:, :, i, :, e], right[:, :, i, :, e], total)
            return total.reshape(rows * columns, WARP)

        return product

    def filter_points(self, count: int, *, conjugate: bool) -> Callable:
        """Points x w, or x conj(w), of float32 x and points w, rounded."""

        def product(x: Fragment, w: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 6 * count * WARP
            (re, im), words = x.reshape(2, count, WARP), self._singles(w)
            first, second = words[..., 1], -words[..., 1]
            if not conjugate:
                first, second = second, first
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                parts = [
                    fma_single(a, b, c * words[..., 0]) for a, b, c in ((im, first, re), (re, second, im))
                ]
                halves = np.stack(parts, axis=-1).astype(self.half)
            return np.ascontiguousarray(halves).view(np.int32)[..., 0]

        return product

    def add(self, count: int) -> Callable:
        """Elementwise sum in float32."""

        def total(a: Fragment, b: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += a.size
            with np.errstate(invalid="ignore", over="ignore"):
                return a + b

        return total

    def sum_lanes(self, count: int) -> Callable:
        """Sums over the lanes, by butterfly."""

        def total(values: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 5 * values.size
            with np.errstate(invalid="ignore", over="ignore"):
                for distance in (16, 8, 4, 2, 1):
                    values = values + values[:, np.arange(WARP) ^ distance]
            return values

        return total

    def as_words(self, count: int) -> Callable:
        """The bits of float32 registers."""
        return lambda values: np.ascontiguousarray(values).view(np.int32)

    def as_floats(self, count: int) -> Callable:
        """Registers read back as float32."""
        return lambda words: np.ascontiguousarray(words).view(np.float32)
