"""The CPU body's operations for blocks that write to each other's shared memory; see `gpu_neighbours.py`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from kernels_numba.tile.cpu_memory import Fragment, _lanes
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Machine


class CpuNeighbours:
    """Operations of clusters and grids of several axes; the vocabulary of attention inherits them."""

    machine: Machine

    def block_along(self, axis: int) -> Callable[[], int]:
        """The block's place along an axis of the grid."""

        def place() -> int:
            machine = self.machine
            return machine.warp.block // prod(machine.grid[:axis]) % machine.grid[axis]

        return place

    def greet(self) -> None:
        """Tell the others that this block has begun: here, when it waits for them."""

    def await_greetings(self) -> None:
        """Wait until all blocks of the cluster have begun."""
        self.machine.cluster_barrier()

    def meet(self) -> None:
        """All warps of all blocks of the cluster meet."""
        self.machine.cluster_barrier()

    def store_neighbour_pieces(self, pieces: Any) -> Callable:
        """Pieces to the shared memory of a block of the cluster."""

        def put(o0: Any, o1: Any, block: Any, words: Fragment) -> None:
            machine = self.machine
            for which, constant, registers in pieces:
                base = _lanes((o0, o1)[which]) + constant
                machine.count_shared(base, len(registers), write=True)
                index = base + np.arange(len(registers))[:, None]
                machine.cluster[int(block)].accept(index, words[list(registers)])

        return put

    def put_neighbour_numbers(self, count: int) -> Callable:
        """Lane 0 writes a few float32 to the shared memory of a block of the cluster."""

        def put(at: Any, step: Any, block: Any, numbers: Any) -> None:
            machine, index = self.machine, int(at) + int(step) * np.arange(count)
            values = np.array([np.broadcast_to(x, (WARP,))[0] for x in numbers[:count]], np.float32)
            machine.counters.shared_written_bytes += 4 * count
            machine.counters.shared_wavefronts += count
            machine.cluster[int(block)].accept(index, values.view(np.int32))

        return put
