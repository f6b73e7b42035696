"""The CPU body's operations for blocks that share what they read; see `gpu_clusters.py`.

The blocks of a cluster run at once, warp by warp, each with its own shared memory (`machine.Block`). Copies arrive when
their barrier is waited for. The machine objects to copies onto what somebody of the other block may still read, to more
arrivals at a barrier than it is for, and to warps that wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.blocks import TEAM_EPOCHS, Gate
from kernels_numba.tile.cpu_group_sums import SLAB, SLAB_WORDS, by_row_groups, slab_halves
from kernels_numba.tile.cpu_memory import Fragment, _lanes
from kernels_numba.tile.cpu_warpgroup import GROUP_WARPS
from kernels_numba.tile.layout import WARP, a_index, c_index
from kernels_numba.tile.machine import POISON, Buffer, KernelError, Machine


class CpuClusters:
    """Operations of clusters; the vocabulary of linear layers inherits them."""

    machine: Machine
    half: np.dtype
    _count_mma: Callable
    _matrix: Callable
    group_wait: Callable

    def begin_sharing(self, stages: int, blocks: int) -> Callable:
        """Full barriers, then free ones; what lies before them, from ``at`` on, may be read before anything came."""

        def begin(at: Any, word: Any) -> None:
            machine, shared = self.machine, self.machine.shared
            if len(machine.cluster) != blocks:
                raise KernelError(
                    f"a kernel for clusters of {blocks} blocks runs in one of {len(machine.cluster)}"
                )
            if machine.warp.index == 0:
                places = [int(word) + 2 * i for i in range(2 * stages)]
                machine.here.gates = {p: Gate(1 if i < stages else blocks) for i, p in enumerate(places)}
                shared.halves[2 * int(at) : 2 * int(word)] = POISON
                shared.ready[int(at) : int(word)] = True
            machine.cluster_barrier()

        return begin

    def end_sharing(self) -> None:
        """All blocks of the cluster meet."""
        self.machine.cluster_barrier()

    def announce(self, word: Any, nbytes: Any) -> None:
        """So many bytes will come."""
        self.machine.here.gate(int(word)).change(arrivals=1, announced=int(nbytes))
        self.machine.gate_moved()

    def share_row(self, nbytes: int, blocks: int) -> Callable:
        """A lane's copy to all blocks of the cluster."""
        halves = nbytes // 2

        def share(to: Any, word: Any, source: Buffer, at: Any, valid: Any) -> None:
            machine = self.machine
            ok = np.broadcast_to(np.asarray(valid, bool), (WARP,))
            where, targets = _lanes(at)[ok], _lanes(to)[ok]
            source.check(where, 8)
            source.check(where + halves - 8, 8)
            if (targets % 8).any():
                raise KernelError("shared memory: a copy to several blocks does not begin on 16 bytes")
            machine.counters.add_bytes("global_read_bytes", source.name, nbytes * where.size)
            for start, target in zip(where, targets, strict=True):
                values = source.data[start : start + halves].view(np.int32)
                index = target // 2 + np.arange(halves // 2)
                for block in machine.cluster:
                    shared = block.shared
                    if (shared.read_at[index] >= block.epoch * TEAM_EPOCHS).any():
                        raise KernelError(
                            "a copy goes to shared memory that a warp of that block may still read"
                        )
                    shared.ready[index] = False
                    machine.counters.shared_written_bytes += nbytes
                    gate = block.gate(int(word))
                    gate.coming.append((index, values))
                    gate.change(brought=nbytes)
            machine.gate_moved()

        return share

    def await_barrier(self, word: Any, parity: Any) -> None:
        """Wait for a turn of a barrier to end."""
        self.machine.await_gate(int(word), int(parity))

    def let_go(self, blocks: int) -> Callable:
        """The first warp tells all blocks."""

        def tell(word: Any) -> None:
            if self.machine.warp.index == 0:
                for block in self.machine.cluster:
                    block.gate(int(word)).change(arrivals=1)
                self.machine.gate_moved()

        return tell

    def group_mma_add_held(self, columns: int, k_tiles: int) -> Callable:
        """Begin c + a right^T, a in registers, one 16-deep step after another."""
        rows, across = c_index(2, columns // 8)
        halves = slab_halves(columns)
        words, slab = np.unique(halves >> 1), columns * SLAB_WORDS // 8

        def product(c: Fragment, a: Fragment, right: Any) -> Fragment:
            machine, shared = self.machine, self.machine.shared
            left = self._matrix(a, a_index(1, k_tiles), (16, 16 * k_tiles))
            total = np.empty((16, columns), np.float32)
            total[rows, across] = by_row_groups(c).reshape(-1, 2, WARP).transpose(0, 2, 1)
            self._count_mma(1, columns // 8, k_tiles)
            busy: list[NDArray] = []
            for first in range(0, k_tiles, SLAB // 16):
                start = int(right) + first // (SLAB // 16) * slab
                if start % SLAB_WORDS:
                    raise KernelError(f"a slab begins at word {start}, not on 1024 bytes")
                shared.read_async(machine.warp, start + words, machine.epoch, machine.fences)
                machine.counters.shared_read_bytes += 2 * halves.size // GROUP_WARPS
                machine.counters.shared_wavefronts += halves.size // (64 * GROUP_WARPS)
                with np.errstate(invalid="ignore", over="ignore"):
                    b = shared.halves[2 * start + halves].view(self.half).astype(np.float32)
                    for k in range(min(SLAB // 16, k_tiles - first)):
                        step = left[:, 16 * (first + k) :][:, :16]
                        total = total + step @ b[:, 16 * k : 16 * k + 16].T
                np.add.at(shared.busy, start + words, 1)
                busy.append(start + words)
            machine.products.setdefault(machine.warp.index, deque()).append(np.concatenate(busy))
            found = total[rows, across].transpose(0, 2, 1).reshape(2, columns // 8, 2, WARP)
            return found.transpose(1, 0, 2, 3).reshape(-1, WARP)

        return product

    def group_wait_held(self, columns: int, k_tiles: int) -> Callable:
        """The product has ended."""
        wait = self.group_wait(columns, 0)
        return lambda c, a: wait(c)
