"""The CPU body's operations that correlate; see `gpu_correlation.py` for what each does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_float import fma
from kernels_numba.tile.cpu_memory import Fragment, _lanes
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Buffer, Machine

QUAD = 128


class CpuCorrelation:
    """Sums of products; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine
    _halves: Callable[[Fragment], NDArray[np.float64]]
    load_shared: Callable

    def no_sums(self, count: int) -> Callable:
        """Sums that are zero."""
        return lambda: np.zeros((4 * count, WARP), np.float32)

    def correlate(self, count: int, sequences: int = 1) -> Callable:
        """Sums + conj(z) w, of one sequence after the other."""

        def add(sums: Fragment, z: Fragment, w: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 16 * count * sequences * WARP
            # [parts, sequences, count, 2 halves, 32]
            shape = 2, sequences, count, 2, WARP
            halves = self._halves(z).astype(np.float32).reshape(*shape[:3], WARP, 2).swapaxes(3, 4)
            (zr, zi), (wr, wi) = halves, w.reshape(shape)
            re, im = np.moveaxis(sums.reshape(count, 2, 2, WARP), 2, 0)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                for i in range(sequences):
                    re = fma(zi[i], wi[i], fma(zr[i], wr[i], re))
                    im = fma(-zi[i], wr[i], fma(zr[i], wi[i], im))
            return np.stack([re, im], axis=2).reshape(4 * count, WARP)

        return add

    def correlate_shared(self, count: int) -> Callable:
        """The same, sums in shared memory."""
        add, load = self.correlate(count), self.load_shared(4 * count, 4)

        def put(word: Any, z: Fragment, w: Fragment) -> None:
            sums = add(np.ascontiguousarray(load(word, QUAD)).view(np.float32), z, w)
            machine, base = self.machine, _lanes(word)
            for i in range(count):
                machine.count_shared(base + QUAD * i, 4, write=True)
                index = base + QUAD * i + np.arange(4)[:, None]
                values = sums[4 * i : 4 * i + 4].view(np.int32)
                machine.shared.write(machine.warp, index, values, machine.epoch)

        return put

    def correlate_global(self, count: int, *, added: bool = False) -> Callable:
        """The same, sums in global memory; ``added`` there, which rounds once more and reads nothing."""
        add, store, none = self.correlate(count), self.store_sums_global(count), self.no_sums(count)

        def put(target: Buffer, at: Any, z: Fragment, w: Fragment) -> None:
            where = self._sums_at(at, count)
            target.check(where[:, 0], 4)
            before = target.data[where].reshape(4 * count, WARP)
            if added:
                with np.errstate(over="ignore", invalid="ignore"):
                    store(target, at, before + add(none(), z, w))
                return
            self.machine.counters.add_bytes("global_read_bytes", target.name, 16 * count * WARP)
            store(target, at, add(before, z, w))

        return put

    def store_sums_global(self, count: int) -> Callable:
        """Sums, or their words, to global memory."""

        def store(target: Buffer, at: Any, sums: Fragment) -> None:
            where = self._sums_at(at, count)
            target.check(where[:, 0], 4)
            target.data[where] = np.ascontiguousarray(sums).view(np.float32).reshape(count, 4, WARP)
            self.machine.counters.add_bytes("global_written_bytes", target.name, 16 * count * WARP)

        return store

    @staticmethod
    def _sums_at(at: Any, count: int) -> NDArray[np.int64]:
        """Where the sums lie: [count, 4, 32]."""
        return _lanes(at) + QUAD * np.arange(count)[:, None, None] + np.arange(4)[:, None]
