"""The CPU body's memory operations: asynchronous copies, loads and stores of fragments, counted and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Buffer, KernelError, Machine

Fragment = NDArray


_NOUGHTS = np.zeros(WARP, np.int64)
_ALL, _NONE = np.ones(WARP, bool), np.zeros(WARP, bool)
COLUMN = np.arange(WARP)[:, None]
for _constant in (_NOUGHTS, _ALL, _NONE, COLUMN):
    _constant.setflags(write=False)


def _lanes(value: Any) -> NDArray[np.int64]:
    """An offset per lane, from a scalar or per-lane value (or one for each lane of several instructions)."""
    if isinstance(value, np.ndarray) and value.ndim:
        return np.asarray(value, np.int64)
    return _NOUGHTS + int(value)


def _mask(valid: Any) -> NDArray[np.bool_]:
    """Whether each lane takes part, likewise."""
    if isinstance(valid, np.ndarray) and valid.ndim:
        return np.asarray(valid, bool)
    return _ALL if valid else _NONE


def parted(fragment: NDArray) -> tuple[NDArray, NDArray]:
    """The two halves of a fragment: real and imaginary parts."""
    middle = len(fragment) // 2
    return fragment[:middle], fragment[middle:]


def _by_width(pieces: Any) -> list[tuple[int, list[int], NDArray, NDArray]]:
    """Pieces (o, c, registers) that are equally wide together: width, the o, the c [p, 1] and registers [p, width]."""
    widths = sorted({len(registers) for _, _, registers in pieces})
    return [
        (
            width,
            [which for which, _, registers in pieces if len(registers) == width],
            np.array([[constant] for _, constant, registers in pieces if len(registers) == width]),
            np.array([registers for _, _, registers in pieces if len(registers) == width]),
        )
        for width in widths
    ]


def _starts(offsets: Any, which: list[int], constants: NDArray) -> NDArray[np.int64]:
    """Where such pieces start: [p, 32]."""
    return np.stack([_lanes(offsets[o]) for o in which]) + constants


class CpuMemory:
    """Memory operations of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine

    def copy_async(self, halves: int) -> Callable:
        """Copy ``halves`` half elements a lane from global to shared memory, zeros where not valid."""
        step = np.arange(halves)

        def copy(to: Any, source: Buffer, offset: Any, valid: Any) -> None:
            offset, ok = _lanes(offset), _mask(valid)
            where = offset[ok]
            source.check(where, halves)
            values = np.zeros((*offset.shape, halves), np.int16)
            values[ok] = source.data[where[:, None] + step]
            self.machine.counters.add_bytes("global_read_bytes", source.name, where.size * 2 * halves)
            self._copy(_lanes(to), values, synchronous=halves == 1)

        return copy

    def copy_pieces(self, pieces: Any, halves: int, *, guarded: bool) -> Callable:
        """Several asynchronous copies; piece (which, shared constant, global constant)."""
        copy = self.copy_async(halves)
        if not pieces:
            return lambda *given: None
        which, shared, far = (np.array(constants) for constants in zip(*pieces, strict=True))
        several = np.ones((len(pieces), WARP), bool)

        def copies(source: Buffer, base: Any, limit: Any, index: Any, *places: Any) -> None:
            at = _lanes(index) + far[:, None]
            valid = (at < limit) if guarded else several
            to = np.stack([_lanes(place) for place in places])[which] + shared[:, None]
            copy(to, source, base + at, valid)

        return copies

    def copy_words_async(self, to: Any, source: Buffer, offset: Any) -> None:
        """Copy four words a lane from a word buffer to shared memory."""
        offset, to = _lanes(offset), _lanes(to)
        source.check(offset, 4)
        values = source.data[offset[:, None] + np.arange(4)].view(np.int16)
        self.machine.counters.add_bytes("global_read_bytes", source.name, WARP * 16)
        self._copy(2 * to, values, synchronous=False)

    def _copy(self, to: NDArray, values: NDArray, *, synchronous: bool) -> None:
        """Half elements [..., 32, n] to shared memory from half element ``to`` [..., 32] on."""
        machine = self.machine
        warp, shared = machine.warp, machine.shared
        halves = values.shape[-1]
        if np.count_nonzero(to % halves):
            raise KernelError(f"shared memory: a copy of {halves} half elements is not aligned to its size")
        machine.counters.shared_written_bytes += 2 * values.size
        if synchronous:
            # Two lanes that copy one element each may share a word; neither owns it, so both need a warp_sync.
            halves_at = to[..., None] + np.arange(halves)
            words = halves_at >> 1
            shared.begin_write(warp, words, COLUMN, machine.epoch, single_halves=True)
            shared.halves[halves_at] = values
            shared.finish_write(warp, words, machine.epoch)
        else:
            words = (to >> 1)[..., None] + np.arange(halves // 2)
            shared.begin_write(warp, words, COLUMN, machine.epoch)
            warp.open_group.append((words, values.view(np.int32)))

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
        together = _by_width(pieces)

        def load(*offsets: Any) -> Fragment:
            machine = self.machine
            out = np.empty((count, WARP), np.int32)
            for width, which, constants, registers in together:
                starts = _starts(offsets, which, constants)
                for start in starts:
                    machine.count_shared(start, width, write=False)
                index = starts[:, None] + np.arange(width)[:, None]
                out[registers] = machine.shared.read(machine.warp, index, machine.epoch)
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
        together = _by_width(pieces)

        def put(*arguments: Any) -> None:
            offsets, fragment = arguments[:4], arguments[4]
            machine = self.machine
            for width, which, constants, registers in together:
                starts = _starts(offsets, which, constants)
                for start in starts:
                    machine.count_shared(start, width, write=True)
                index = starts[:, None] + np.arange(width)[:, None]
                machine.shared.write(machine.warp, index, fragment[registers], machine.epoch)

        return put

    def gather(self, pieces: Any, count: int, halves: int, *, guarded: bool) -> Callable:
        """Load what `store_pieces` would store; zeros where masked."""
        together, step = _by_width(pieces), np.arange(halves)

        def load(source: Buffer, base: Any, limit: Any, *offsets: Any) -> Fragment:
            out = np.zeros((count, WARP), np.int32)
            read = 0
            for width, which, constants, registers in together:
                index = _starts(offsets, which, constants)[..., None] + halves * np.arange(
                    2 * width // halves
                )
                keep = index < limit if guarded else np.ones(index.shape, bool)
                where = (base + index)[keep]
                source.check(where, halves)
                values = np.zeros((*index.shape, halves), np.int16)
                values[keep] = source.data[where[:, None] + step]
                words = values.reshape(-1, WARP, 2 * width).view(np.int32)
                out[registers] = words.swapaxes(1, 2)
                read += where.size * 2 * halves
            self.machine.counters.add_bytes("global_read_bytes", source.name, read)
            return out

        return load

    def store_pieces(self, pieces: Any, halves: int, *, guarded: bool, held: bool = False) -> Callable:
        """Store pieces of a fragment of halves to global memory, ``halves`` elements an instruction."""
        together, step = _by_width(pieces), np.arange(halves)

        def put(target: Buffer, base: Any, limit: Any, *rest: Any) -> None:
            offsets, fragment = rest[:4], rest[4]
            written = 0
            for width, which, constants, registers in together:
                values = np.ascontiguousarray(fragment[registers].swapaxes(1, 2)).view(np.int16)
                index = _starts(offsets, which, constants)[..., None] + halves * np.arange(
                    2 * width // halves
                )
                keep = index < limit if guarded else np.ones(index.shape, bool)
                where = (base + index)[keep]
                target.check(where, halves)
                target.data[where[:, None] + step] = values.reshape(*index.shape, halves)[keep]
                written += where.size * 2 * halves
            self.machine.counters.add_bytes("global_written_bytes", target.name, written)

        return put
