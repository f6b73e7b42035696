"""The CPU body's running sums on warpgroups: each warp computes its own 16 of the 64 rows.

A product is computed when it begins, and is under way until it is waited for: until then nobody may write what it
reads (`Shared.busy`), nor may its warp use the accumulators. Counts are by warp, as in `cpu_warpgroup`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_memory import Fragment, _lanes
from kernels_numba.tile.cpu_warpgroup import GROUP_WARPS
from kernels_numba.tile.layout import WARP, row_words
from kernels_numba.tile.machine import Buffer, KernelError, Machine

SLAB = 64
SLAB_WORDS = 256
"""Slabs begin on 1024 bytes."""


def slab_halves(rows: int) -> NDArray[np.intp]:
    """Where the elements [rows, 64] of a slab lie: chunk c (8 halves) of row r is at place c XOR (r mod 8)."""
    row, column = np.meshgrid(np.arange(rows), np.arange(SLAB), indexing="ij")
    return row * SLAB + (column // 8 ^ row % 8) * 8 + column % 8


class CpuGroupSums:
    """Running sums of warpgroups; the vocabulary of linear layers inherits them."""

    machine: Machine
    half: np.dtype
    _count_mma: Callable
    _put: Callable
    _accumulators: Callable
    _summed: Callable

    def group_mma_add(self, columns: int, k_tiles: int) -> Callable:
        """Begin c + left right^T for the 64 rows of a warpgroup, one 16-deep step after another."""
        deep = 16 * k_tiles
        places = (slab_halves(16)[:, :deep], slab_halves(columns)[:, :deep])
        words = tuple(np.unique(halves >> 1) for halves in places)

        def read(which: int, word: int, sharers: int) -> NDArray[np.float32]:
            machine, halves = self.machine, places[which]
            machine.shared.read_async(machine.warp, word + words[which], machine.epoch, machine.fences)
            machine.counters.shared_read_bytes += 2 * halves.size // sharers
            machine.counters.shared_wavefronts += halves.size // (64 * sharers)
            with np.errstate(invalid="ignore"):  # a signalling NaN
                return machine.shared.halves[2 * word + halves].view(self.half).astype(np.float32)

        def product(c: Fragment, left: Any, right: Any) -> Fragment:
            machine = self.machine
            for word in (left, right):
                if int(word) % SLAB_WORDS:
                    raise KernelError(f"a slab begins at word {int(word)}, not on 1024 bytes")
            mine = int(left) + 16 * SLAB // 2 * (machine.warp.index % GROUP_WARPS)
            a, b = read(0, mine, 1), read(1, int(right), GROUP_WARPS)
            self._count_mma(1, columns // 8, k_tiles)
            total = self._summed(by_row_groups(c), 2)
            with np.errstate(invalid="ignore", over="ignore"):
                for k in range(0, deep, 16):
                    total = total + a[:, k : k + 16] @ b[:, k : k + 16].T
            busy = np.concatenate([mine + words[0], int(right) + words[1]])
            machine.shared.hold(busy)
            machine.products.setdefault(machine.warp.index, deque()).append(busy)
            found = self._accumulators(total).reshape(2, columns // 8, 2, WARP)
            return found.transpose(1, 0, 2, 3).reshape(-1, WARP)

        return product

    def group_wait(self, columns: int, pending: int) -> Callable:
        """Wait until at most ``pending`` products of this warp are under way: the older ones have ended."""

        def wait(c: Fragment) -> Fragment:
            machine = self.machine
            mine = machine.products.get(machine.warp.index, deque())
            while len(mine) > pending:
                words = mine.popleft()
                machine.shared.let_go(words)
                # It may have read until now.
                machine.shared.note_late_read(machine.warp, words, machine.epoch)
            return c

        return wait

    # ---- results -------------------------------------------------------------------------------------------
    def store_group(self, columns: int, halves: int, spacing: int = 1) -> Callable:
        """Accumulators of a warp, rounded, to a row-major matrix."""
        return self._store(columns, halves, spacing, turned=False)

    def store_group_turned(self, columns: int, halves: int, spacing: int = 1) -> Callable:
        """The same to the transposed matrix."""
        return self._store(columns, halves, spacing, turned=True)

    def store_group_rows(self, columns: int) -> Callable:
        """The same in whole rows, through shared memory."""
        tiles, wide, pitch = columns // 8, columns // 2, row_words(columns)
        lanes = np.arange(WARP)

        def put(
            target: Buffer, word: Any, at: Any, stride: Any, rows: Any, columns: Any, c: Fragment
        ) -> None:
            machine = self.machine
            if machine.products.get(machine.warp.index):
                raise KernelError("accumulators are stored while products onto them are under way")
            with np.errstate(over="ignore", invalid="ignore"):
                halves = np.ascontiguousarray(
                    c.astype(self.half).view(np.int16).reshape(-1, 2, WARP).swapaxes(1, 2)
                )
            words = halves.view(np.int32).reshape(tiles, 2, WARP)
            for j in range(tiles):
                for y in range(2):
                    index = int(word) + (lanes // 4 + 8 * y) * pitch + 4 * j + lanes % 4
                    machine.count_shared(index, 1, write=True)
                    machine.shared.write(machine.warp, index, words[j, y], machine.epoch)
            machine.warp.syncs += 1
            for r in range(16):
                for first in range(0, wide, WARP):
                    place = first + lanes
                    index = int(word) + r * pitch + np.minimum(place, wide - 1)
                    machine.count_shared(index, 1, write=False)
                    found = machine.shared.read(machine.warp, index[None], machine.epoch)[0]
                    keep = (place < wide) & (2 * place < int(columns)) & (r < int(rows))
                    where = int(at) + r * int(stride) + 2 * place[keep]
                    target.check(where, 2)
                    for e in range(2):
                        self._put(target, where + e, found.view(np.int16).reshape(WARP, 2)[keep, e])

        return put

    def _store(self, columns: int, halves: int, spacing: int, *, turned: bool) -> Callable:
        tiles = columns // 8

        def put(target: Buffer, at: Any, stride: Any, rows: Any, columns: Any, c: Fragment) -> None:
            machine = self.machine
            if machine.products.get(machine.warp.index):
                raise KernelError("accumulators are stored while products onto them are under way")
            with np.errstate(over="ignore", invalid="ignore"):
                blocks = c.astype(self.half).view(np.int16).reshape(tiles, 2, 2, WARP)
            if turned:
                machine.counters.transposes += 2 * tiles
                # Lane 4 g + t has row g, columns 2 t + e; of the transposed block too.
                square = blocks.reshape(tiles, 2, 2, 8, 4).transpose(0, 1, 3, 4, 2).reshape(tiles, 2, 8, 8)
                turned_back = square.swapaxes(-1, -2).reshape(tiles, 2, 8, 4, 2)
                blocks = turned_back.transpose(0, 1, 4, 2, 3).reshape(tiles, 2, 2, WARP)
            for j in range(tiles):
                for y in range(2):
                    down, right = (8 * j, 8 * y) if turned else (8 * y, 8 * j)
                    for e in range(0, 2, halves):
                        keep = (_lanes(rows) > down) & (_lanes(columns) > right + e)
                        where = (_lanes(at) + down * int(stride) + spacing * (right + e))[keep]
                        target.check(where, halves)
                        for h in range(halves):
                            self._put(target, where + h, blocks[j, y, e + h, keep])

        return put


def by_row_groups(c: Fragment) -> Fragment:
    """Accumulators [column tile, row group, 2] as [row group, column tile, 2]."""
    return c.reshape(-1, 2, 2, WARP).transpose(1, 0, 2, 3).reshape(-1, WARP)
