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

    def correlate(self, count: int) -> Callable:
        """Sums + conj(z) w."""

        def add(sums: Fragment, z: Fragment, w: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 16 * count * WARP
            # [parts, count, 2 halves, 32]
            halves = self._halves(z).astype(np.float32).reshape(2, count, WARP, 2).swapaxes(2, 3)
            (zr, zi), (wr, wi) = halves, w.reshape(2, count, 2, WARP)
            before = sums.reshape(count, 2, 2, WARP)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                re = fma(zi, wi, fma(zr, wr, before[:, :, 0]))
                im = fma(-zi, wr, fma(zr, wi, before[:, :, 1]))
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
                machine.shared.begin_write(machine.warp, index, np.arange(WARP), machine.epoch)
                machine.shared.words[index] = sums[4 * i : 4 * i + 4].view(np.int32)
                machine.shared.finish_write(machine.warp, index, machine.epoch)

        return put

    def correlate_global(self, count: int) -> Callable:
        """The same, sums in global memory."""
        add, store = self.correlate(count), self.store_sums_global(count)

        def put(target: Buffer, at: Any, z: Fragment, w: Fragment) -> None:
            where = self._sums_at(at, count)
            target.check(where[:, 0], 4)
            self.machine.counters.add_bytes("global_read_bytes", target.name, 16 * count * WARP)
            store(target, at, add(target.data[where].reshape(4 * count, WARP), z, w))

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


class CpuBins:
    """What brings sums back to taps; :class:`kernels_numba.tile.cpu_vocabularies.CpuFloats` inherits them."""

    machine: Machine
    _points_at: Callable

    def add_hermitian(self, constants: tuple[int, ...]) -> Callable:
        """so_far + p + i w d: points of a half-length transform from four of the whole one each."""
        apart = np.array(constants)[:, None]
        count = len(constants)

        def add(
            so_far: Fragment, source: Buffer, base: Any, places: Buffer, roots: Buffer, k: Any
        ) -> Fragment:
            number = _lanes(k) + apart
            places.check(4 * number, 4)
            roots.check(2 * number, 2)
            counters = self.machine.counters
            counters.add_bytes("global_read_bytes", places.name, 16 * number.size)
            counters.add_bytes("global_read_bytes", roots.name, 8 * number.size)
            counters.fp32_flops += 18 * number.size
            at = (places.data[4 * number + i].astype(np.int64) for i in range(4))
            a, b, c, e = (np.split(self._points_at(source, _lanes(base) + x), 2) for x in at)
            cosine, sine = roots.data[2 * number], roots.data[2 * number + 1]
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                one, two = (a[0] + b[0], a[1] - b[1]), (c[0] + e[0], c[1] - e[1])
                (pr, dr), (pi, di) = ((x + y, x - y) for x, y in zip(one, two, strict=True))
                re = fma(-cosine, di, fma(-sine, dr, so_far[:count] + pr))
                im = fma(-sine, di, fma(cosine, dr, so_far[count:] + pi))
                return np.concatenate([re, im])

        return add

    def gather_shared(self, count: int) -> Callable:
        """Float32 of shared memory at the words that a table says; zero where it, or its index, is negative."""

        def gather(word: Any, table: Buffer, at: Any, step: Any) -> Fragment:
            first, word = _lanes(at), _lanes(word)
            inside = first >= 0
            out = np.zeros((count, WARP), np.float32)
            machine = self.machine
            for i in range(count):
                where = (first + i * int(step))[inside]
                table.check(where, 1)
                machine.counters.add_bytes("global_read_bytes", table.name, 4 * where.size)
                entry = np.full(WARP, -1, np.int64)
                entry[inside] = table.data[where]
                keep = entry >= 0
                if keep.any():
                    # Lanes without a value read what another reads, for the checks.
                    index = word + np.where(keep, entry, 0)
                    index = np.where(keep, index, index[keep][0])
                    machine.count_shared(index, 1, write=False)
                    words = machine.shared.read(machine.warp, index, machine.epoch)
                    out[i, keep] = words.view(np.float32)[keep]
            return out

        return gather

    def correlate_points(self, count: int) -> Callable:
        """Sums + conj(z) w of complex points."""

        def add(sums: Fragment, z: Fragment, w: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 8 * count * WARP
            zr, zi, wr, wi = z[:count], z[count:], w[:count], w[count:]
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                re = fma(zi, wi, fma(zr, wr, sums[:count]))
                return np.concatenate([re, fma(-zi, wr, fma(zr, wi, sums[count:]))])

        return add

    def add_turned(self, count: int) -> Callable:
        """so_far + x (re + i im)."""
        add = self.correlate_points(count)

        def turned(so_far: Fragment, x: Fragment, re: np.float32, im: np.float32) -> Fragment:
            factor = np.broadcast_to(np.array([[re], [-im]], np.float32), (2, WARP)).repeat(count, axis=0)
            return add(so_far, factor, x)

        return turned

    def plus(self, count: int) -> Callable:
        """Elementwise sum of float32."""

        def added(a: Fragment, b: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += a.size
            with np.errstate(over="ignore", invalid="ignore"):
                return a + b

        return added

    def scaled_total(self, count: int) -> Callable:
        """The sum of registers, first to last, times a factor."""

        def total_of(values: Fragment, factor: np.float32) -> Fragment:
            self.machine.counters.fp32_flops += count * WARP
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                total = values[0]
                for value in values[1:]:
                    total = total + value
                return (total * np.float32(factor))[None]

        return total_of
