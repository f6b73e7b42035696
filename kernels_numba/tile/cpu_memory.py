"""The CPU body's memory operations: asynchronous copies, loads and stores of fragments, counted and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import POISON, Buffer, KernelError, Machine

Fragment = NDArray


def _lanes(value: Any) -> NDArray[np.int64]:
    """An offset per lane, from a scalar or per-lane value."""
    if isinstance(value, np.ndarray) and value.shape == (WARP,):
        return np.asarray(value, np.int64)
    return np.full(WARP, value, np.int64)


class CpuMemory:
    """Memory operations of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine

    def copy_async(self, halves: int) -> Callable:
        """Copy ``halves`` half elements a lane from global to shared memory, zeros where not valid."""

        def copy(to: Any, source: Buffer, offset: Any, valid: Any) -> None:
            offset, to = _lanes(offset), _lanes(to)
            ok = np.broadcast_to(np.asarray(valid, bool), (WARP,))
            source.check(offset[ok], halves)
            values = np.zeros((WARP, halves), np.int16)
            values[ok] = source.data[offset[ok, None] + np.arange(halves)]
            self.machine.counters.add_bytes("global_read_bytes", source.name, int(ok.sum()) * 2 * halves)
            self._copy(to[:, None] + np.arange(halves), values, synchronous=halves == 1)

        return copy

    def copy_pieces(self, pieces: Any, halves: int, *, guarded: bool) -> Callable:
        """Several asynchronous copies; piece (which, shared constant, global constant)."""
        copy = self.copy_async(halves)

        def copies(source: Buffer, base: Any, limit: Any, index: Any, *places: Any) -> None:
            for which, shared_constant, global_constant in pieces:
                at = _lanes(index) + global_constant
                valid = (at < limit) if guarded else True
                copy(_lanes(places[which]) + shared_constant, source, base + at, valid)

        return copies

    def copy_words_async(self, to: Any, source: Buffer, offset: Any) -> None:
        """Copy four words a lane from a word buffer to shared memory."""
        offset, to = _lanes(offset), _lanes(to)
        source.check(offset, 4)
        values = source.data[offset[:, None] + np.arange(4)].view(np.int16)
        self.machine.counters.add_bytes("global_read_bytes", source.name, WARP * 16)
        self._copy(2 * to[:, None] + np.arange(8), values, synchronous=False)

    def _copy(self, offsets: NDArray, values: NDArray, *, synchronous: bool) -> None:
        machine = self.machine
        warp, shared = machine.warp, machine.shared
        words, lanes = offsets >> 1, np.broadcast_to(np.arange(WARP)[:, None], offsets.shape)
        if (offsets[:, 0] % offsets.shape[1]).any():
            raise KernelError(
                f"shared memory: a copy of {offsets.shape[1]} half elements is not aligned to its size"
            )
        # Two lanes that copy one element each may share a word; neither owns it, so both need a warp_sync.
        shared.begin_write(warp, words, lanes, machine.epoch, single_halves=synchronous)
        nbytes = offsets.shape[1] * 2
        machine.counters.shared_written_bytes += nbytes * WARP
        if synchronous:
            shared.halves[offsets] = values
            shared.finish_write(warp, words, machine.epoch)
        else:
            shared.halves[offsets] = POISON
            warp.open_group.append((offsets, values))

    def load_shared(self, count: int, width: int) -> Callable:
        """``count`` words in chunks of ``width``, chunk c at offset + c stride."""
        chunks = np.arange(count // width)[:, None, None]
        within = np.arange(width)[None, :, None]

        def load(offset: Any, stride: Any) -> Fragment:
            base = _lanes(offset)
            for chunk in range(count // width):
                self.machine.count_shared(base + chunk * int(stride), width, write=False)
            index = base + chunks * int(stride) + within
            return self.machine.shared.read(self.machine.warp, index, self.machine.epoch).reshape(count, WARP)

        return load

    def load_global(self, count: int, width: int) -> Callable:
        """As :meth:`load_shared`, from a word buffer."""
        chunks = np.arange(count // width)[:, None, None]
        within = np.arange(width)[None, :, None]

        def load(source: Buffer, offset: Any, stride: Any) -> Fragment:
            starts = _lanes(offset) + chunks * int(stride)
            source.check(starts, width)
            self.machine.counters.add_bytes("global_read_bytes", source.name, 4 * count * WARP)
            return source.data[starts + within].reshape(count, WARP)

        return load

    def load_float(self, source: Buffer, offset: Any) -> np.float32:
        """One float32 for the whole warp."""
        at = int(_lanes(offset)[0])
        source.check(np.asarray([at]), 1)
        self.machine.counters.add_bytes("global_read_bytes", source.name, 4)
        return source.data[at]

    def load_pieces(self, pieces: Any, count: int) -> Callable:
        """Gather from shared memory; piece (o, c, registers) is read at ``o + c`` words."""

        def load(*offsets: Any) -> Fragment:
            out = np.empty((count, WARP), np.int32)
            for which, constant, registers in pieces:
                base = _lanes(offsets[which]) + constant
                self.machine.count_shared(base, len(registers), write=False)
                index = base + np.arange(len(registers))[:, None]
                out[list(registers)] = self.machine.shared.read(self.machine.warp, index, self.machine.epoch)
            return out

        return load

    def gather_halves(self, count: int) -> tuple[Callable, Callable]:
        """Registers of half elements from anywhere in shared memory: load of the offsets, and the gather."""

        def gather(base: Any, offsets: Fragment) -> Fragment:
            pairs = np.ascontiguousarray(offsets).view(np.uint16).reshape(count, WARP, 2).astype(np.int64)
            found = np.empty((count, WARP, 2), np.int16)
            machine = self.machine
            for e in range(2):
                for r in range(count):
                    at = 2 * int(base) + pairs[r, :, e]
                    machine.count_shared(at >> 1, 1, write=False)
                    machine.shared.read(machine.warp, at >> 1, machine.epoch)
                    found[r, :, e] = machine.shared.halves[at]
            return found.view(np.int32)[..., 0]

        return self.load_global(count, 4), gather

    def store_shared_pieces(self, pieces: Any) -> Callable:
        """Scatter to shared memory; piece (o, c, registers) is written at ``o + c`` words."""

        def put(*arguments: Any) -> None:
            offsets, fragment = arguments[:4], arguments[4]
            machine = self.machine
            warp, shared = machine.warp, machine.shared
            for which, constant, registers in pieces:
                base = _lanes(offsets[which]) + constant
                machine.count_shared(base, len(registers), write=True)
                index = base + np.arange(len(registers))[:, None]
                shared.begin_write(warp, index, np.arange(WARP), machine.epoch)
                shared.words[index] = fragment[list(registers)]
                shared.finish_write(warp, index, machine.epoch)

        return put

    def gather(self, pieces: Any, count: int, halves: int, *, guarded: bool) -> Callable:
        """Load what `store_pieces` would store; zeros where masked."""
        step = np.arange(halves)

        def load(source: Buffer, base: Any, limit: Any, *offsets: Any) -> Fragment:
            out = np.zeros((count, WARP), np.int32)
            read = 0
            for which, constant, registers in pieces:
                start = _lanes(offsets[which]) + constant
                index = start[:, None] + halves * np.arange(2 * len(registers) // halves)
                keep = index < limit if guarded else np.ones(index.shape, bool)
                where = (base + index)[keep]
                source.check(where, halves)
                values = np.zeros((WARP, index.shape[1], halves), np.int16)
                values[keep] = source.data[where[:, None] + step]
                out[list(registers)] = values.reshape(WARP, -1).view(np.int32).T
                read += where.size * 2 * halves
            self.machine.counters.add_bytes("global_read_bytes", source.name, read)
            return out

        return load

    def store_pieces(self, pieces: Any, halves: int, *, guarded: bool, held: bool = False) -> Callable:
        """Store pieces of a fragment of halves to global memory, ``halves`` elements an instruction."""
        step = np.arange(halves)

        def put(target: Buffer, base: Any, limit: Any, *rest: Any) -> None:
            offsets, fragment = rest[:4], rest[4]
            written = 0
            for which, constant, registers in pieces:
                values = np.ascontiguousarray(fragment[list(registers)].T).view(np.int16)  # [32, 2 registers]
                start = _lanes(offsets[which]) + constant
                index = start[:, None] + halves * np.arange(values.shape[1] // halves)
                keep = index < limit if guarded else np.ones(index.shape, bool)
                where = (base + index)[keep]
                target.check(where, halves)
                target.data[where[:, None] + step] = values.reshape(WARP, -1, halves)[keep]
                written += where.size * 2 * halves
            self.machine.counters.add_bytes("global_written_bytes", target.name, written)

        return put
