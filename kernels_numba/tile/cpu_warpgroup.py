"""The CPU body's operations for groups of four warps: each warp computes its own 16 of the 64 rows.

Operands in shared memory must have been written before the last barrier and fenced: the tensor cores read them by
another way than loads do. Counts are by warp: a warp's 16 x 8 x 16 part of a product is one ``mma_m16n8k16``; it reads
its own rows of a left operand and a quarter of the right one, which the four share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_memory import Fragment, _lanes, parted
from kernels_numba.tile.layout import (
    WARP,
    by_slices,
    group_column_slices,
    group_left_index,
    group_right_index,
    group_row_slices,
)
from kernels_numba.tile.machine import Machine

GROUP_WARPS = 4


class CpuWarpgroup:
    """Warpgroup operations of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine
    half: np.dtype
    # What `CpuTile` has beside these:
    _accumulators: Callable
    _butterfly: Callable
    _count_mma: Callable
    _left: Callable
    load_global: Callable
    load_shared: Callable
    multiply_complex: Callable
    pack: Callable

    def team_barrier(self, warps: int) -> Callable:
        """The ``warps`` warps of one team of the block meet."""
        self.machine.team_warps = warps

        def meet(team: int) -> None:
            self.machine.team_barrier(int(team))

        return meet

    def fence_async(self) -> None:
        """What this warp wrote to shared memory is to be seen by warpgroup products after the next barrier."""
        self.machine.fences[self.machine.warp.index] += 1

    def store_matrices(self, pieces: tuple[tuple[int, tuple[int, ...]], ...]) -> Callable:
        """Four registers as four core matrices each; lane l gives the place of row l % 8 of matrix l / 8."""

        def put(word: Any, fragment: Fragment) -> None:
            machine = self.machine
            warp, shared = machine.warp, machine.shared
            for constant, registers in pieces:
                base = _lanes(word) + constant
                machine.count_shared(base, 4, write=True)
                index = base[None, :] + np.arange(4)[:, None]  # [word of a row, 8 matrix + row]
                # Lane 4 g + t holds word t of row g.
                rows = np.stack([fragment[r].reshape(8, 4) for r in registers]).reshape(WARP, 4)
                shared.write(warp, index, rows.T, machine.epoch)

        return put

    def group_dft_rows(
        self, columns: int, k_tiles: int, *, along: int, across: int, inverse: bool, lower_half: bool = False
    ) -> Callable:
        """Contract the rows of complex data in shared memory with a factor of 64 rows in shared memory."""
        return self._rows(columns, k_tiles, along, across, inverse, lower_half=lower_half)

    def group_dft_rows_times(
        self,
        columns: int,
        k_tiles: int,
        *,
        along: int,
        across: int,
        inverse: bool,
        self_paired: bool = False,
        table: str,
    ) -> Callable:
        """The same, rounded and multiplied by a complex table."""
        contract = self._rows(columns, k_tiles, along, across, inverse, self_paired=self_paired)
        times = self._times(group_row_slices(columns), table)
        return lambda factor, data, source, at, alone: times(contract(factor, data, alone), source, at)

    def _rows(
        self,
        columns: int,
        k_tiles: int,
        along: int,
        across: int,
        inverse: bool,
        *,
        self_paired: bool = False,
        lower_half: bool = False,
    ) -> Callable:
        rows, within = group_left_index(16 * k_tiles)
        slices = group_row_slices(columns)
        place = np.empty((columns // 8, 2), np.intp)  # of a column tile's real and imaginary part
        for chosen in slices:
            for i in range(2):
                place[chosen, i] = 2 * chosen[0] + i * len(chosen) + np.arange(len(chosen))
        k, n, part = np.meshgrid(np.arange(16 * k_tiles), np.arange(columns), np.arange(2), indexing="ij")
        halves = k // 8 * (along // 2) + k % 8 * 8 + place[n // 8, part] * (across // 2) + n % 8

        def contract(factor: Any, data: Any, alone: Any = None) -> Fragment:
            rank = self.machine.warp.index % GROUP_WARPS
            mine = np.flatnonzero(rows // 16 == rank)
            left = np.empty((16, 16 * k_tiles), np.float32)
            left[rows[mine] % 16, within[mine]] = self._read_core(factor, mine, times=len(slices), sharers=1)
            right = self._read_core(data, halves)
            (a, e), (d, b) = (parted(self._group_product(left, right[..., i], k_tiles)) for i in range(2))
            plus, minus = self._butterfly(a, b, d, e, inverse=inverse, both=not lower_half)
            if self_paired:
                for part, unpaired in zip((*plus, *minus), (a, d, e, b), strict=False):
                    part[:] = np.where(_lanes(alone) != 0, unpaired, part)
            if lower_half:
                return np.concatenate(plus)
            return np.concatenate([plus[0], minus[0], plus[1], minus[1]])

        return contract

    def group_dft_columns_times(self, columns: int, k_tiles: int, *, inverse: bool, table: str) -> Callable:
        """Contract the columns of complex data in registers; rounded, and multiplied by a complex table."""
        rows, across = group_right_index(16 * k_tiles, columns)
        order = np.empty((16 * k_tiles, columns), np.intp)
        order[rows, across] = np.arange(rows.size)
        tiles, times = columns // 8, self._times(group_column_slices(columns), table)

        def contract(data: Fragment, factor: Any, source: Any, at: Any) -> Fragment:
            products = []
            for part in parted(data):
                left = self._left(part, 1, k_tiles)
                products.append(self._group_product(left, self._read_core(factor, order), k_tiles))
            p, q = (x.reshape(2, 2, tiles, WARP) for x in products)
            plus, minus = self._butterfly(p[:, 0], q[:, 1], q[:, 0], p[:, 1], inverse=inverse, both=True)
            parts = [np.stack(pair, axis=1).reshape(-1, WARP) for pair in zip(plus, minus, strict=True)]
            return times(np.concatenate(parts), source, at)

        return contract

    def _times(self, slices: list[list[int]], table: str) -> Callable:
        """Round accumulators and multiply them by a table, whose registers come by slices."""
        order = list(by_slices(slices))
        count = len(order)
        places = np.empty(2 * count, np.intp)
        places[order], places[[count + i for i in order]] = np.arange(count), count + np.arange(count)
        rounded, multiply = self.pack(2 * count), self.multiply_complex(count)
        load_shared, load_global = self.load_shared(2 * count, 4), self.load_global(2 * count, 4)

        def times(values: Fragment, source: Any, at: Any) -> Fragment:
            if table == "registers":
                words = source
            else:
                words = load_shared(at, 128) if table == "shared" else load_global(source, at, 128)
            return multiply(rounded(values), words[places])

        return times

    def _read_core(
        self, word: Any, halves: NDArray, *, times: int = 1, sharers: int = GROUP_WARPS
    ) -> NDArray:
        """Half elements at ``word`` plus offsets, read ``times`` times by the tensor cores for ``sharers`` warps."""
        machine = self.machine
        at = 2 * int(word) + halves
        machine.shared.read_async(machine.warp, np.unique(at >> 1), machine.epoch, machine.fences)
        machine.counters.shared_read_bytes += 2 * halves.size * times // sharers
        machine.counters.shared_wavefronts += halves.size * times // (64 * sharers)
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return machine.shared.halves[at].view(self.half).astype(np.float32)

    def _group_product(self, left: NDArray, right: NDArray, k_tiles: int) -> Fragment:
        self._count_mma(1, right.shape[1] // 8, k_tiles)
        with np.errstate(invalid="ignore", over="ignore"):
            return self._accumulators(left @ right)
