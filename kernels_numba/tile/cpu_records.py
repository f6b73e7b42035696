"""The CPU body's operations on rows of keys in global memory and on partial results; see `gpu_records.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels_numba.tile.cpu_memory import Fragment, _by_width, _lanes, _starts
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Buffer, Machine


class CpuRecords:
    """Memory operations of attention; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine
    copy_async: Callable

    # ---- rows of keys ------------------------------------------------------------------------------------------
    @staticmethod
    def consecutive_rows(count: int, step: int) -> Callable:
        """Row numbers, ``step`` apart."""
        return lambda first: (_lanes(first) + step * np.arange(count)[:, None]).astype(np.int32)

    def paged_rows(self, count: int, step: int, page: int) -> Callable:
        """Row numbers in a cache of pages."""

        def rows(first: Any, end: Any, table: Buffer, at: Any, spacing: Any, pages: Any) -> Fragment:
            key = _lanes(first) + step * np.arange(count)[:, None]
            inside = key < end
            where = (_lanes(at) + key // page * int(spacing))[inside]
            table.check(where, 1)
            self.machine.counters.add_bytes("global_read_bytes", table.name, 4 * where.size)
            found = np.zeros(key.shape, np.int64)
            entries = np.minimum(table.data[where].view(np.uint32), int(pages) - 1).astype(np.int64)
            found[inside] = entries * page + (key % page)[inside]
            return found.astype(np.int32)

        return rows

    def copy_rows(self, count: int, step: int, to_step: int, *, consecutive: bool = False) -> Callable:
        """Asynchronous copies of 8 elements, one a row."""
        copy, i = self.copy_async(8), np.arange(count)[:, None]

        def copies(*arguments: Any) -> None:
            *places, source, rows, stride, at, first, end = arguments
            to = np.stack([_lanes(places[row % 4]) for row in range(count)]) + i * to_step
            inside = _lanes(first) + i * step < end
            copy(to, source, rows[:count].astype(np.int64) * int(stride) + _lanes(at), inside)

        return copies

    def load_chunks(self, count: int, step: int) -> Callable:
        """``count`` times 8 halves; zeros past the limit."""
        c = np.arange(count)[:, None]

        def load(source: Buffer, at: Any, place: Any, limit: Any) -> Fragment:
            out = np.zeros((count, WARP, 8), np.int16)
            inside = _lanes(place) + c * step < _lanes(limit)
            where = (_lanes(at) + c * step)[inside]
            source.check(where, 8)
            out[inside] = source.data[where[:, None] + np.arange(8)]
            self.machine.counters.add_bytes("global_read_bytes", source.name, 16 * where.size)
            return out.view(np.int32).transpose(0, 2, 1).reshape(4 * count, WARP)

        return load

    def load_word(self, source: Buffer, offset: Any) -> int:
        """One word for all lanes, as a signed integer."""
        at = int(_lanes(offset)[0])
        source.check(np.asarray([at]), 1)
        self.machine.counters.add_bytes("global_read_bytes", source.name, 4)
        return int(source.data[at])

    # ---- partial results -----------------------------------------------------------------------------------------
    def put_rows(self, rows: int) -> Callable:
        """A row fragment to shared memory."""

        def put(at: Any, x: Fragment) -> None:
            machine = self.machine
            index = int(at) + np.arange(rows)
            machine.counters.shared_written_bytes += 4 * rows
            machine.counters.shared_wavefronts += 1
            lanes = np.arange(rows)
            machine.shared.write(machine.warp, index, x[lanes, lanes].view(np.int32), machine.epoch, lanes)

        return put

    def get_float(self, at: Any) -> np.float32:
        """One float32 of shared memory for all lanes."""
        machine = self.machine
        index = _lanes(at)
        machine.count_shared(index, 1, write=False)
        return machine.shared.read(machine.warp, index, machine.epoch)[:1].view(np.float32)[0]

    def store_word_pieces(self, pieces: Any) -> Callable:
        """Pieces of each lane's words to a buffer."""
        together = _by_width(pieces)

        def put(target: Buffer, base: Any, o0: Any, o1: Any, words: Fragment) -> None:
            for width, which, constants, chosen in together:
                where = _lanes(base) + _starts((o0, o1), which, constants)
                target.check(where, width)
                target.data[where[:, None] + np.arange(width)[:, None]] = words[chosen]
                self.machine.counters.add_bytes("global_written_bytes", target.name, 4 * width * where.size)

        return put

    def load_fresh_pieces(self, pieces: Any, count: int, *, parts: int = 1, step: int = 0) -> Callable:
        """Read what `store_word_pieces` wrote: the parts below ``live``, zeros for the others."""
        together = _by_width(pieces)

        def load(source: Buffer, base: Any, o0: Any, o1: Any, live: Any) -> Fragment:
            words = np.zeros((parts, count, WARP), np.int32)
            for part in range(min(parts, int(_lanes(live)[0]))):
                for width, which, constants, chosen in together:
                    where = _lanes(base) + _starts((o0, o1), which, constants) + part * step
                    source.check(where, width)
                    words[part, chosen] = source.data[where[:, None] + np.arange(width)[:, None]]
                    self.machine.counters.add_bytes("global_read_bytes", source.name, 4 * width * where.size)
            return words.reshape(parts * count, WARP)

        return load

    def put_float(self, target: Buffer, at: Any, value: np.float32) -> None:
        """Lane 0 writes one float32 to a buffer of words."""
        where = np.asarray([int(_lanes(at)[0])])
        target.check(where, 1)
        target.data[where] = np.float32(value).view(np.int32)
        self.machine.counters.add_bytes("global_written_bytes", target.name, 4)

    def fence(self) -> None:
        """Blocks run one after the other here, so what they write is seen at once."""

    def arrive(self, counters: Buffer, at: Any, total: Any) -> int:
        """How many came before; the last one sets the counter back to 0."""
        where = int(_lanes(at)[0])
        counters.check(np.asarray([where]), 1)
        before = int(counters.data[where])
        counters.data[where] = 0 if before >= int(total) - 1 else before + 1
        self.machine.counters.atomics += 1
        return before
