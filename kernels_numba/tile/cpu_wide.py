"""The CPU body for sequences of float32 whose products are of halves; see `gpu_wide.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu import CpuTile
from kernels_numba.tile.cpu_memory import Fragment, _lanes
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Buffer, KernelError


class CpuWide(CpuTile):
    """The vocabulary of a half-precision type for float32 sequences."""

    def _round(self, values: NDArray[np.float32]) -> NDArray[np.int16]:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.ascontiguousarray(values.astype(self.half)).view(np.int16)

    @staticmethod
    def _check(buffer: Buffer, index: NDArray, halves: int) -> None:
        """Accesses of more than four float32 are several of 16 bytes."""
        for start in range(0, halves, 4):
            buffer.check(index + start, min(halves, 4))

    def copy_async(self, halves: int) -> Callable:
        """Copy ``halves`` elements a lane from global to shared memory, rounded; zeros where not valid."""

        def copy(to: Any, source: Buffer, offset: Any, valid: Any) -> None:
            offset, to = _lanes(offset), _lanes(to)
            ok = np.broadcast_to(np.asarray(valid, bool), (WARP,))
            self._check(source, offset[ok], halves)
            values = np.zeros((WARP, halves), np.float32)
            values[ok] = source.data[offset[ok, None] + np.arange(halves)]
            machine = self.machine
            machine.counters.add_bytes("global_read_bytes", source.name, int(ok.sum()) * 4 * halves)
            if (to % halves).any():
                raise KernelError(f"shared memory: a copy of {halves} elements is not aligned to its size")
            places = to[:, None] + np.arange(halves)
            lanes = np.broadcast_to(np.arange(WARP)[:, None], places.shape)
            machine.shared.begin_write(
                machine.warp, places >> 1, lanes, machine.epoch, single_halves=halves == 1
            )
            machine.counters.shared_written_bytes += 2 * halves * WARP
            machine.shared.halves[places] = self._round(values)
            machine.shared.finish_write(machine.warp, places >> 1, machine.epoch)

        return copy

    def gather(self, pieces: Any, count: int, halves: int, *, guarded: bool) -> Callable:
        """Load what `store_pieces` would store, rounded; zeros where masked."""

        def load(source: Buffer, base: Any, limit: Any, *offsets: Any) -> Fragment:
            out = np.zeros((count, WARP), np.int32)
            for which, constant, registers in pieces:
                start = _lanes(offsets[which]) + constant
                index = start[:, None] + halves * np.arange(2 * len(registers) // halves)
                keep = index < limit if guarded else np.ones(index.shape, bool)
                where = (base + index)[keep]
                self._check(source, where, halves)
                values = np.zeros((WARP, index.shape[1], halves), np.float32)
                values[keep] = source.data[where[:, None] + np.arange(halves)]
                out[list(registers)] = self._round(values.reshape(WARP, -1)).view(np.int32).T
                self.machine.counters.add_bytes("global_read_bytes", source.name, where.size * 4 * halves)
            return out

        return load

    def store_pieces(self, pieces: Any, halves: int, *, guarded: bool, held: bool = False) -> Callable:
        """Store pieces of a fragment of halves to global memory, as float32."""

        def put(target: Buffer, base: Any, limit: Any, *rest: Any) -> None:
            offsets, fragment = rest[:4], rest[4]
            step = min(halves, 4)
            for which, constant, registers in pieces:
                words = np.ascontiguousarray(fragment[list(registers)].T)
                values = words.view(self.half).astype(np.float32)  # [32, 2 registers]
                start = _lanes(offsets[which]) + constant
                index = start[:, None] + step * np.arange(values.shape[1] // step)
                keep = index < limit if guarded else np.ones(index.shape, bool)
                where = (base + index)[keep]
                self._check(target, where, step)
                target.data[where[:, None] + np.arange(step)] = values.reshape(WARP, -1, step)[keep]
                self.machine.counters.add_bytes("global_written_bytes", target.name, where.size * 4 * step)

        return put
