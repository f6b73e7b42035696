"""The CPU body's operations with the copy engine, and for blocks that form a cluster; see `gpu_clusters.py`.

The blocks of a cluster run at once, warp by warp, each with its own shared memory (`machine.Block`). Boxes arrive when
their barrier is waited for. The machine objects to boxes onto what a product under way reads, to more arrivals at a
barrier than it is for, to warps that wait for each other, and to sums that go where another block still reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels_numba.tensor_maps import BOX_COLUMNS, TensorMap
from kernels_numba.tile.blocks import MANY, TEAM_EPOCHS, Gate
from kernels_numba.tile.cpu_group_sums import SLAB_WORDS, slab_halves
from kernels_numba.tile.cpu_memory import Fragment, _lanes
from kernels_numba.tile.machine import POISON, KernelError, Machine


class CpuClusters:
    """Boxes, and sums of clusters; the vocabulary of linear layers inherits them."""

    machine: Machine

    # ---- boxes of a matrix -------------------------------------------------------------------------------------
    def announce(self, word: Any, nbytes: Any) -> None:
        """So many bytes will come."""
        self.machine.here.gate(int(word)).change(arrivals=1, announced=int(nbytes))
        self.machine.gate_moved()

    def await_barrier(self, word: Any, parity: Any) -> None:
        """Wait for a turn of a barrier to end."""
        self.machine.await_gate(int(word), int(parity))

    def begin_gates(self, stages: int, arrivals: int) -> Callable:
        """Full barriers, then free ones, of one block."""

        def begin(at: Any, word: Any) -> None:
            machine, shared = self.machine, self.machine.shared
            if machine.warp.index == 0:
                places = [int(word) + 2 * i for i in range(2 * stages)]
                machine.here.gates = {p: Gate(1 if i < stages else arrivals) for i, p in enumerate(places)}
                shared.halves[2 * int(at) : 2 * int(word)] = POISON
                shared.ready[int(at) : int(word)] = True
            machine.barrier()

        return begin

    def prefetch_map(self, source: TensorMap) -> None:
        """Nothing that can be counted."""

    def bring_box(self, to: Any, word: Any, source: TensorMap, row: Any, column: Any) -> None:
        """A box of a matrix, zeros beyond it."""
        machine, start = self.machine, int(to)
        if start % SLAB_WORDS:
            raise KernelError(f"a box goes to word {start}, not on 1024 bytes")
        down = int(row) + np.arange(source.box_rows)[:, None]
        across = int(column) + np.arange(BOX_COLUMNS)
        inside = (down >= 0) & (down < source.rows) & (across >= 0) & (across < source.columns)
        values = np.zeros(inside.shape, np.int16)
        values[inside] = source.source.data[(down * source.stride + across)[inside]]
        order = np.argsort(slab_halves(source.box_rows), axis=None)
        index = start + np.arange(values.size // 2)
        shared = machine.shared
        if shared.busy[index].any():
            raise KernelError("a box goes to shared memory that a product under way still reads")
        shared.ready[index] = False
        machine.counters.add_bytes("global_read_bytes", source.source.name, 2 * int(inside.sum()))
        machine.counters.shared_written_bytes += 2 * values.size
        gate = machine.here.gate(int(word))
        gate.coming.append((index, values.reshape(-1)[order].view(np.int32)))
        gate.change(brought=2 * values.size)
        machine.gate_moved()

    def arrive(self, word: Any) -> None:
        """The warp arrives at a barrier of its block."""
        self.machine.here.gate(int(word)).change(arrivals=1)
        self.machine.gate_moved()

    # ---- sums of blocks that share a tile ----------------------------------------------------------------------
    def meet_cluster(self) -> None:
        """All blocks of the cluster meet."""
        self.machine.cluster_barrier()

    def part_of(self, count: int, parts: int) -> Callable:
        """An equal share of registers."""
        share = count // parts
        return lambda values, part: values[int(part) * share :][:share]

    def give_sums(self, count: int) -> Callable:
        """Registers to the shared memory of a block of the cluster, four at a time."""

        def give(word: Any, rank: Any, values: Fragment) -> None:
            machine, block = self.machine, self.machine.cluster[int(rank)]
            if machine.products.get(machine.warp.index):
                raise KernelError("accumulators are given away while products onto them are under way")
            if any(block.products.values()):
                raise KernelError("sums go to a block of which products are still under way")
            epoch = block.epoch * TEAM_EPOCHS
            for q in range(0, count, 4):
                start = _lanes(word) + 32 * q
                machine.count_shared(start, 4, write=True)
                index = start + np.arange(4)[:, None]
                if (block.shared.read_at[index] >= epoch).any():
                    raise KernelError("sums go to shared memory that a warp of that block may still read")
                words = np.ascontiguousarray(values[q : q + 4]).view(np.int32)
                block.shared.write(machine.warp, index, words, epoch)
                if block is not machine.here:
                    block.shared.writer[index] = MANY  # none of that block's warps

        return give
