"""The CPU body's operations on two sequences that are transformed side by side; see `gpu_sequences.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels_numba.tile.cpu_memory import Fragment
from kernels_numba.tile.cpu_zeros import CpuZeros
from kernels_numba.tile.layout import WARP


class CpuSequences(CpuZeros):
    """Operations of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    def mma_to_parts(self, row_tiles: int, column_tiles: int, k_tiles: int) -> Callable:
        """Two real sequences by one complex factor."""
        product = self.mma(row_tiles, column_tiles, k_tiles)  # type: ignore[attr-defined]

        def contract(factor: Fragment, data: Fragment) -> Fragment:
            found = [np.split(product(factor, x), 2) for x in np.split(data, 2)]
            return np.concatenate([parts[i] for i in range(2) for parts in found])

        return contract

    def mma_first(self, row_tiles: int, column_tiles: int, k_tiles: int, kept: int) -> Callable:
        """Of a product the first accumulators."""
        product = self.mma(row_tiles, column_tiles, k_tiles)  # type: ignore[attr-defined]
        return lambda factor, data: product(factor, data)[:kept]

    def mma_from_parts(self, row_tiles: int, column_tiles: int, k_tiles: int, kept: int) -> Callable:
        """Two complex sequences by one factor, of which the real parts are wanted."""
        product = self.mma_first(row_tiles, column_tiles, k_tiles, kept)

        def contract(factor: Fragment, data: Fragment) -> Fragment:
            return np.concatenate([product(factor, x) for x in np.split(data, 2)])

        return contract

    def dft_rows_halves(self, row_tiles: int, column_tiles: int, k_tiles: int, *, inverse: bool) -> Callable:
        """Contract rows; outputs and mirrors are added up in halves."""
        product = self.mma(row_tiles, column_tiles, k_tiles)  # type: ignore[attr-defined]
        rounded = self.pack(2 * row_tiles * column_tiles)  # type: ignore[attr-defined]

        def contract(factor: Fragment, data: Fragment) -> Fragment:
            (a, e), (d, b) = (np.split(rounded(product(factor, x)), 2) for x in np.split(data, 2))
            return np.concatenate(self.added_halves(a, b, d, e, inverse=inverse))

        return contract

    def dft_columns_halves(
        self, row_tiles: int, column_tiles: int, k_tiles: int, *, inverse: bool
    ) -> Callable:
        """Contract columns; outputs and mirrors are added up in halves."""
        product = self.mma(row_tiles, column_tiles, k_tiles)  # type: ignore[attr-defined]
        rounded = self.pack(2 * row_tiles * column_tiles)  # type: ignore[attr-defined]

        def contract(data: Fragment, factor: Fragment) -> Fragment:
            words = [rounded(product(x, factor)) for x in np.split(data, 2)]
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
        self.machine.counters.half_flops += 8 * a.size  # type: ignore[attr-defined]
        a, b, d, e = (self._halves(x) for x in (a, b, d, e))  # type: ignore[attr-defined]
        plus, minus = (
            [self._words(self._fma(y, sign * t, x)) for x, y, t in ((a, b, 1.0), (d, e, -1.0))]  # type: ignore[attr-defined]
            for sign in (1.0, -1.0)
        )
        if inverse:
            plus, minus = minus, plus
        return plus[0], minus[0], plus[1], minus[1]

    def multiply_complex_shared(self, count: int) -> Callable:
        """Two complex sequences times the same numbers."""
        product = self.multiply_complex(2 * count)  # type: ignore[attr-defined]

        def shared(a: Fragment, b: Fragment) -> Fragment:
            real, imaginary = np.split(b, 2)
            return product(a, np.concatenate([real, real, imaginary, imaginary]))

        return shared
