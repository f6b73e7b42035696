"""The CPU body's products whose results are rounded to halves; see `gpu_halves.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_memory import Fragment
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Machine

STEP = 16
"""Terms of one step of a contraction."""


class CpuHalves:
    """Operations of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine
    dtype: str
    half: Any
    _left: Callable
    _right: Callable
    _accumulators: Callable
    _count_mma: Callable
    _halves: Callable
    _words: Callable
    _fma: Callable
    pack: Callable

    def mma_halves(self, row_tiles: int, column_tiles: int, k_tiles: int) -> Callable:
        """A real product; in fp16 sums are rounded after each step."""
        rounded = self.pack(2 * row_tiles * column_tiles)
        depth = STEP if self.dtype == "fp16" else STEP * k_tiles

        def product(a: Fragment, b: Fragment) -> Fragment:
            self._count_mma(row_tiles, column_tiles, k_tiles)
            left, right = self._left(a, row_tiles, k_tiles), self._right(b, k_tiles, column_tiles)
            total: NDArray[np.float32] = np.zeros((1, 1), np.float32)
            with np.errstate(invalid="ignore", over="ignore"):
                for start in range(0, STEP * k_tiles, depth):
                    steps = slice(start, start + depth)
                    total = total.astype(self.half).astype(np.float32) + left[:, steps] @ right[steps]
            return rounded(self._accumulators(total))

        return product

    def mma_to_parts_halves(self, row_tiles: int, column_tiles: int, k_tiles: int) -> Callable:
        """Two real sequences by one complex factor."""
        product = self.mma_halves(row_tiles, column_tiles, k_tiles)

        def contract(factor: Fragment, data: Fragment) -> Fragment:
            found = [np.split(product(factor, x), 2) for x in np.split(data, 2)]
            return np.concatenate([parts[i] for i in range(2) for parts in found])

        return contract

    def dft_rows_halves(self, row_tiles: int, column_tiles: int, k_tiles: int, *, inverse: bool) -> Callable:
        """Contract rows; outputs and mirrors are added up in halves."""
        product = self.mma_halves(row_tiles, column_tiles, k_tiles)

        def contract(factor: Fragment, data: Fragment) -> Fragment:
            (a, e), (d, b) = (np.split(product(factor, x), 2) for x in np.split(data, 2))
            return np.concatenate(self.added_halves(a, b, d, e, inverse=inverse))

        return contract

    def dft_columns_halves(
        self, row_tiles: int, column_tiles: int, k_tiles: int, *, inverse: bool
    ) -> Callable:
        """Contract columns; outputs and mirrors are added up in halves."""
        product = self.mma_halves(row_tiles, column_tiles, k_tiles)

        def contract(data: Fragment, factor: Fragment) -> Fragment:
            words = [product(x, factor) for x in np.split(data, 2)]
            p, q = (x.reshape(2 * row_tiles, 2, -1, WARP) for x in words)  # [row group, outputs or mirrors]
            halves = [np.ascontiguousarray(x).reshape(-1, WARP) for x in (p[:, 0], q[:, 1], q[:, 0], p[:, 1])]
            found = self.added_halves(*halves, inverse=inverse)
            parts = [x.reshape(2 * row_tiles, -1, WARP) for x in found]
            joined = [np.concatenate(parts[i : i + 2], axis=1) for i in (0, 2)]
            return np.concatenate([x.reshape(-1, WARP) for x in joined])

        return contract

    def added_halves(
        self, a: Fragment, b: Fragment, d: Fragment, e: Fragment, *, inverse: bool
    ) -> tuple[Fragment, ...]:
        """Real parts of outputs and of mirrors, then imaginary parts: a + b, a - b, d - e, d + e."""
        self.machine.counters.half_flops += 8 * a.size
        a, b, d, e = (self._halves(x) for x in (a, b, d, e))
        plus, minus = (
            [self._words(self._fma(y, sign * t, x)) for x, y, t in ((a, b, 1.0), (d, e, -1.0))]
            for sign in (1.0, -1.0)
        )
        if inverse:
            plus, minus = minus, plus
        return plus[0], minus[0], plus[1], minus[1]
