"""The CPU body's operations on two sequences that are transformed side by side; see `gpu_sequences.py`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels_numba.tile.cpu_halves import CpuHalves
from kernels_numba.tile.cpu_memory import Fragment
from kernels_numba.tile.cpu_zeros import CpuZeros


class CpuSequences(CpuHalves, CpuZeros):
    """Operations of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

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

    def multiply_complex_shared(self, count: int) -> Callable:
        """Two complex sequences times the same numbers."""
        product = self.multiply_complex(2 * count)  # type: ignore[attr-defined]

        def shared(a: Fragment, b: Fragment) -> Fragment:
            real, imaginary = np.split(b, 2)
            return product(a, np.concatenate([real, real, imaginary, imaginary]))

        return shared
