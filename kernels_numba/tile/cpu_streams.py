"""The CPU body's streams between memory and registers: wide loads, results, order between blocks and launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_memory import Fragment, _lanes, _mask
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Buffer, KernelError, Machine

CHUNK = 8


class CpuStreams:
    """Streaming operations of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine
    half: np.dtype
    copy_async: Callable
    _copy: Callable

    # ---- loads ---------------------------------------------------------------------------------------------
    def load_chunks(self, pieces: Any, *, guarded: bool, stream: bool) -> Callable:
        """Loads of 16 bytes; piece (which, constant, registers) at element ``o + 8 (at + constant)``."""
        count = 4 * len(pieces)
        within = np.arange(CHUNK)

        def load(source: Buffer, at: Any, limit: Any, offsets: Any) -> Fragment:
            out = np.zeros((count, WARP), np.int32)
            read = 0
            for which, constant, registers in pieces:
                chunk = _lanes(at) + constant
                keep = chunk < limit if guarded else np.ones(WARP, bool)
                where = (_lanes(offsets[which]) + CHUNK * chunk)[keep]
                source.check(where, CHUNK)
                values = np.zeros((WARP, CHUNK), np.int16)
                values[keep] = source.data[where[:, None] + within]
                out[list(registers)] = values.view(np.int32).T
                read += where.size * 2 * CHUNK
            self.machine.counters.add_bytes("global_read_bytes", source.name, read)
            return out

        return load

    def places(self, count: int) -> Callable:
        """Offsets ``start + min(first + i step, last) stride``."""

        def made(first: Any, step: Any, last: Any, stride: Any, start: Any) -> tuple[NDArray[np.int64], ...]:
            rows = (_lanes(first) + i * _lanes(step) for i in range(count))
            return tuple(_lanes(start) + np.minimum(row, _lanes(last)) * _lanes(stride) for row in rows)

        return made

    def load_pairs(self, order: tuple[tuple[int, int, int], ...]) -> Callable:
        """Pairs of halves from any address, near or far, zeros below 0 and from the limits on."""

        def load(
            source: Buffer, near: Any, near_limit: Any, far: Any, far_limit: Any, offsets: Any
        ) -> Fragment:
            out, read = np.zeros((len(order), WARP, 2), np.int16), 0
            for register, (which, side, constant) in enumerate(order):
                at, limit = ((near, near_limit), (far, far_limit))[side]
                for e in range(2):
                    index = _lanes(at) + constant + e
                    keep = (index >= 0) & (index < _lanes(limit))
                    where = (_lanes(offsets[which]) + index)[keep]
                    source.check(where, 1)
                    out[register, keep, e] = source.data[where]
                    read += 2 * where.size
            self.machine.counters.add_bytes("global_read_bytes", source.name, read)
            return out.view(np.int32)[..., 0]

        return load

    def load_matrices(self, constants: tuple[int, ...]) -> Callable:
        """Four 8 x 8 blocks of halves per constant from shared memory; lane 8 i + r names row r of block i."""
        column = np.array(constants)[:, None]

        def load(word: Any) -> Fragment:
            machine, starts = self.machine, _lanes(word) + column
            for start in starts:
                machine.count_shared(start, 4, write=False)
            index = starts[:, None] + np.arange(4)[:, None]
            rows = machine.shared.read(machine.warp, index, machine.epoch)
            return rows.swapaxes(1, 2).reshape(-1, WARP)  # by constant and block: row, word

        return load

    def copy_rows(self, count: int, shared_step: int, row_step: int, *, guarded: bool) -> Callable:
        """Asynchronous copies of 16 bytes, a row apart."""
        copy, i, several = self.copy_async(CHUNK), np.arange(count)[:, None], np.ones((count, WARP), bool)

        def copies(to: Any, source: Buffer, at: Any, stride: Any, rows: Any, valid: Any) -> None:
            inside = several
            if guarded:
                inside = (_lanes(rows) > i * row_step) & (_lanes(valid) > 0)
            copy(_lanes(to) + i * shared_step, source, _lanes(at) + i * int(stride), inside)

        return copies

    def copy_words(self, count: int, shared_step: int, row_step: int) -> Callable:
        """Asynchronous copies of 4 bytes, of which there may be less."""

        def copies(to: Any, source: Buffer, at: Any, stride: Any, rows: Any, elements: Any) -> None:
            for i in range(count):
                there = np.where(_lanes(rows) > i * row_step, np.clip(_lanes(elements), 0, 2), 0)
                where = (_lanes(at) + i * int(stride))[:, None] + np.arange(2)
                some = np.arange(2) < there[:, None]
                source.check(where[some], 1)
                if ((source.data.ctypes.data + 2 * where[there > 0, 0]) % 4).any():
                    raise KernelError(f"buffer {source.name!r}: a copy of 4 bytes is not aligned to its size")
                values = np.zeros((WARP, 2), np.int16)
                values[some] = source.data[where[some]]
                self.machine.counters.add_bytes("global_read_bytes", source.name, 2 * int(there.sum()))
                self._copy(_lanes(to) + i * shared_step, values, synchronous=False)

        return copies

    def clear_halves(self, count: int, shared_step: int, most: int) -> Callable:
        """Zeros to some half elements of shared memory."""

        def clear(at: Any, elements: Any) -> None:
            machine = self.machine
            places, wanted = _lanes(at), _lanes(elements)
            for i in range(count):
                for e in range(most):
                    lanes = np.flatnonzero(wanted > e)
                    if lanes.size:
                        index = places[lanes] + e + i * shared_step
                        words = (machine.warp, index >> 1, lanes, machine.epoch)
                        machine.shared.begin_write(*words, single_halves=True)
                        machine.shared.halves[index] = 0
                        machine.shared.finish_write(machine.warp, index >> 1, machine.epoch)
                        machine.counters.shared_written_bytes += 2 * lanes.size

        return clear

    # ---- results -------------------------------------------------------------------------------------------
    def _put(self, target: Buffer, where: NDArray, values: NDArray) -> None:
        target.check(where, 1)
        target.data[where] = values
        nbytes = where.size * target.data.itemsize
        self.machine.counters.add_bytes("global_written_bytes", target.name, nbytes)

    def store_rounded(self, target: Buffer, at: Any, valid: Any, value: Fragment) -> None:
        """One float32 a lane, rounded to half."""
        keep = _mask(valid)
        with np.errstate(over="ignore", invalid="ignore"):
            halves = value[0].astype(self.half).view(np.int16)
        self._put(target, _lanes(at)[keep], halves[keep])

    def store_tile(self, row_groups: int, column_tiles: int, halves: int) -> Callable:
        """Accumulators by row group, rounded, to a row-major matrix."""

        def put(target: Buffer, at: Any, stride: Any, rows: Any, columns: Any, c: Fragment) -> None:
            with np.errstate(over="ignore", invalid="ignore"):
                values = c.astype(self.half).view(np.int16).reshape(row_groups, column_tiles, 2, WARP)
            for y in range(row_groups):
                start = _lanes(at) + 8 * y * int(stride)
                for n in range(column_tiles):
                    for e in range(0, 2, halves):
                        keep = (_lanes(rows) > 8 * y) & (_lanes(columns) > 8 * n + e)
                        where = start[keep] + 8 * n + e
                        target.check(where, halves)
                        for h in range(halves):
                            self._put(target, where + h, values[y, n, e + h, keep])

        return put

    # ---- sums over blocks, order between launches ----------------------------------------------------------
    def store_float(self, target: Buffer, at: Any, valid: Any, value: Fragment) -> None:
        """One float32 a lane to global memory."""
        keep = _mask(valid)
        self._put(target, _lanes(at)[keep], value[0][keep])

    def load_fresh(self, source: Buffer, at: Any) -> Fragment:
        """One float32 a lane that another block wrote."""
        where = _lanes(at)
        source.check(where, 1)
        self.machine.counters.add_bytes("global_read_bytes", source.name, 4 * WARP)
        return source.data[where][None]

    def store_sums(self, count: int) -> Callable:
        """``count`` float32 a lane, four at a time."""

        def put(target: Buffer, at: Any, stride: Any, values: Fragment) -> None:
            for q in range(count // 4):
                where = _lanes(at) + q * int(stride)
                target.check(where, 4)
                for i in range(4):
                    self._put(target, where + i, values[4 * q + i])

        return put

    def load_sums(self, count: int) -> Callable:
        """What `store_sums` of another block stored."""
        within = np.arange(4)[None, :, None]

        def load(source: Buffer, at: Any, stride: Any) -> Fragment:
            starts = _lanes(at) + int(stride) * np.arange(count // 4)[:, None, None]
            source.check(starts, 4)
            self.machine.counters.add_bytes("global_read_bytes", source.name, 4 * count * WARP)
            return source.data[starts + within].reshape(count, WARP)

        return load

    def last_block(self, counters: Buffer, at: Any, expected: Any) -> bool:
        """Whether this block is the last of ``expected`` to arrive; its first warp counts for all."""
        place = int(_lanes(at)[0])
        counters.check(np.asarray([place]), 1)
        if not 0 <= counters.data[place] < expected:
            raise KernelError(f"counter {place} is {counters.data[place]}, of {expected} blocks that arrive")
        arrived = int(counters.data[place])
        self.machine.barrier()
        if self.machine.warp.index == 0:
            counters.data[place] = (arrived + 1) % int(expected)
        self.machine.barrier()
        return arrived + 1 == int(expected)

    def wait_for_previous(self) -> None:
        """Launches follow each other on the CPU."""

    def let_next_start(self) -> None:
        """Launches follow each other on the CPU."""
