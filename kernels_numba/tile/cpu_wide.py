"""The CPU body for sequences of float32 whose products are of halves; see `gpu_wide.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu import CpuTile
from kernels_numba.tile.cpu_memory import COLUMN, Fragment, _by_width, _lanes, _mask, _starts
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
            offset, to, ok = _lanes(offset), _lanes(to), _mask(valid)
            where = offset[ok]
            self._check(source, where, halves)
            values = np.zeros((*offset.shape, halves), np.float32)
            values[ok] = source.data[where[:, None] + np.arange(halves)]
            machine = self.machine
            machine.counters.add_bytes("global_read_bytes", source.name, where.size * 4 * halves)
            if np.count_nonzero(to % halves):
                raise KernelError(f"shared memory: a copy of {halves} elements is not aligned to its size")
            places = to[..., None] + np.arange(halves)
            machine.shared.begin_write(
                machine.warp, places >> 1, COLUMN, machine.epoch, single_halves=halves == 1
            )
            machine.counters.shared_written_bytes += 2 * values.size
            machine.shared.halves[places] = self._round(values)
            machine.shared.finish_write(machine.warp, places >> 1, machine.epoch)

        return copy

    def gather(self, pieces: Any, count: int, halves: int, *, guarded: bool) -> Callable:
        """Load what `store_pieces` would store, rounded; zeros where masked."""
        together, step = _by_width(pieces), np.arange(halves)

        def load(source: Buffer, base: Any, limit: Any, *offsets: Any) -> Fragment:
            out = np.zeros((count, WARP), np.int32)
            for width, which, constants, registers in together:
                index = _starts(offsets, which, constants)[..., None] + halves * np.arange(
                    2 * width // halves
                )
                keep = index < limit if guarded else np.ones(index.shape, bool)
                where = (base + index)[keep]
                self._check(source, where, halves)
                values = np.zeros((*index.shape, halves), np.float32)
                values[keep] = source.data[where[:, None] + step]
                words = self._round(values).reshape(-1, WARP, 2 * width).view(np.int32)
                out[registers] = words.swapaxes(1, 2)
                self.machine.counters.add_bytes("global_read_bytes", source.name, where.size * 4 * halves)
            return out

        return load

    def store_pieces(self, pieces: Any, halves: int, *, guarded: bool, held: bool = False) -> Callable:
        """Store pieces of a fragment of halves to global memory, as float32."""
        together, step = _by_width(pieces), min(halves, 4)

        def put(target: Buffer, base: Any, limit: Any, *rest: Any) -> None:
            offsets, fragment = rest[:4], rest[4]
            for width, which, constants, registers in together:
                words = np.ascontiguousarray(fragment[registers].swapaxes(1, 2))
                values = words.view(self.half).astype(np.float32)  # [pieces, 32, 2 registers]
                index = _starts(offsets, which, constants)[..., None] + step * np.arange(2 * width // step)
                keep = index < limit if guarded else np.ones(index.shape, bool)
                where = (base + index)[keep]
                self._check(target, where, step)
                target.data[where[:, None] + np.arange(step)] = values.reshape(*index.shape, step)[keep]
                self.machine.counters.add_bytes("global_written_bytes", target.name, where.size * 4 * step)

        return put
