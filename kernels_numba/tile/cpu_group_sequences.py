"""The CPU body's operations of warpgroups on two sequences side by side; see `gpu_group_sequences.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels_numba.tile.cpu_memory import Fragment
from kernels_numba.tile.cpu_sequences import CpuSequences
from kernels_numba.tile.cpu_warpgroup import GROUP_WARPS, CpuWarpgroup
from kernels_numba.tile.layout import WARP, group_left_index


class CpuGroupSequences(CpuSequences, CpuWarpgroup):
    """Operations of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    def group_to_parts_times(
        self, columns: int, k_tiles: int, *, along: int, across: int, table: str
    ) -> Callable:
        """Contract the rows of two real sequences with a complex factor, and multiply by a table."""
        contract = self._real_rows(columns, k_tiles, along, across)
        part_words = 64 * 16 * k_tiles // 2
        load, count = self._table(columns, table), columns // 4
        rounded, multiply = self.pack(2 * count), self.multiply_complex(count)

        def product(factor: Any, data: Any, source: Any, at: Any) -> Fragment:
            parts = [contract(factor + part * part_words, data) for part in range(2)]
            words = load(source, at)
            both = zip(*(np.split(x, 2) for x in parts), strict=True)
            return np.concatenate([multiply(rounded(np.concatenate(z)), words) for z in both])

        return product

    def group_dft_columns_of_both(self, columns: int, k_tiles: int, *, inverse: bool, table: str) -> Callable:
        """Contract the columns of two complex sequences in registers, and multiply by a table."""
        contract = self.group_dft_columns_times(columns, k_tiles, inverse=inverse, table="registers")
        load = self._table(columns, table)

        def product(data: Fragment, factor: Any, source: Any, at: Any) -> Fragment:
            words = load(source, at)
            return np.concatenate([contract(z, factor, words, 0) for z in np.split(data, 2)])

        return product

    def group_from_parts(self, columns: int, k_tiles: int, *, along: int, across: int) -> Callable:
        """Contract the rows of two sequences' parts with a real factor."""
        return self._real_rows(columns, k_tiles, along, across)

    def _real_rows(self, columns: int, k_tiles: int, along: int, across: int) -> Callable:
        """Accumulators [sequence, row group, column tile, 2] of a warp's rows."""
        rows, within = group_left_index(16 * k_tiles)
        k, n = np.meshgrid(np.arange(16 * k_tiles), np.arange(2 * columns), indexing="ij")
        halves = k // 8 * (along // 2) + k % 8 * 8 + n // 8 * (across // 2) + n % 8

        def contract(factor: Any, data: Any) -> Fragment:
            mine = np.flatnonzero(rows // 16 == self.machine.warp.index % GROUP_WARPS)
            left = np.empty((16, 16 * k_tiles), np.float32)
            left[rows[mine] % 16, within[mine]] = self._read_core(factor, mine, sharers=1)
            found = self._group_product(left, self._read_core(data, halves), k_tiles)
            return found.reshape(2, 2, -1, WARP).swapaxes(0, 1).reshape(-1, WARP)

        return contract

    def _table(self, columns: int, table: str) -> Callable:
        """A table's registers, from where the operation's last arguments say."""
        if table == "registers":
            return lambda source, at: source
        count = columns // 2
        shared, there = self.load_shared(count, 4), self.load_global(count, 4)
        return (
            (lambda source, at: shared(at, 128))
            if table == "shared"
            else (lambda source, at: there(source, at, 128))
        )
