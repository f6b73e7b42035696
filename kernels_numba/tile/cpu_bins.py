"""The CPU body's operations that bring sums of spectra back to taps; see `gpu_bins.py` for what each does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_float import fma
from kernels_numba.tile.cpu_memory import Fragment, _lanes, parted
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Buffer, Machine


class CpuBins:
    """What brings sums back to taps; :class:`kernels_numba.tile.cpu_vocabularies.CpuFloats` inherits them."""

    machine: Machine
    _points_at: Callable
    _shared_points: Callable

    def add_hermitian(self, constants: tuple[int, ...]) -> Callable:
        """so_far + p + i w d: points of a half-length transform from four of the whole one each."""
        apart = np.array(constants)[:, None]

        def add(
            so_far: Fragment, source: Buffer, base: Any, places: Buffer, roots: Buffer, k: Any
        ) -> Fragment:
            number = _lanes(k) + apart
            at = self._places_of_points(places, number)
            points = [parted(self._points_at(source, _lanes(base) + x)) for x in at]
            return self._hermitian(so_far, points, roots, number)

        return add

    def hermitian_shared(self, constants: tuple[int, ...]) -> Callable:
        """As `add_hermitian` from zero, points of shared memory."""
        apart = np.array(constants)[:, None]

        def make(word: Any, places: Buffer, roots: Buffer, k: Any) -> Fragment:
            number = _lanes(k) + apart
            at = self._places_of_points(places, number)
            points = [self._shared_points(_lanes(word) + x) for x in at]
            return self._hermitian(np.zeros((2 * len(constants), WARP), np.float32), points, roots, number)

        return make

    def _places_of_points(self, places: Buffer, number: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        places.check(4 * number, 4)
        self.machine.counters.add_bytes("global_read_bytes", places.name, 16 * number.size)
        return [places.data[4 * number + i].astype(np.int64) for i in range(4)]

    def _hermitian(
        self, so_far: Fragment, points: list, roots: Buffer, number: NDArray[np.int64]
    ) -> Fragment:
        roots.check(2 * number, 2)
        counters, count = self.machine.counters, len(number)
        counters.add_bytes("global_read_bytes", roots.name, 8 * number.size)
        counters.fp32_flops += 18 * number.size
        a, b, c, e = points
        cosine, sine = roots.data[2 * number], roots.data[2 * number + 1]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            one, two = (a[0] + b[0], a[1] - b[1]), (c[0] + e[0], c[1] - e[1])
            (pr, dr), (pi, di) = ((x + y, x - y) for x, y in zip(one, two, strict=True))
            re = fma(-cosine, di, fma(-sine, dr, so_far[:count] + pr))
            im = fma(-sine, di, fma(cosine, dr, so_far[count:] + pi))
            return np.concatenate([re, im])

    def add_quads(self, count: int, stride: int) -> Callable:
        """so_far + float32 of global memory, four at a time."""
        within = np.arange(4)[:, None]

        def add(so_far: Fragment, source: Buffer, at: Any) -> Fragment:
            where = _lanes(at) + stride * np.arange(count)[:, None, None]
            source.check(where, 4)
            self.machine.counters.add_bytes("global_read_bytes", source.name, 16 * count * WARP)
            self.machine.counters.fp32_flops += so_far.size
            with np.errstate(over="ignore", invalid="ignore"):
                return so_far + source.data[where + within].reshape(4 * count, WARP)

        return add

    def scatter_points(self, count: int, stride: int) -> Callable:
        """Complex points to shared memory, to the words that a table says."""

        def scatter(word: Any, places: Buffer, at: Any, x: Fragment) -> None:
            machine = self.machine
            for i in range(count):
                where = _lanes(at) + stride * i
                places.check(where, 2)
                machine.counters.add_bytes("global_read_bytes", places.name, 8 * WARP)
                for e in range(2):
                    words = _lanes(word) + places.data[where + e].astype(np.int64)
                    machine.count_shared(words, 2, write=True)
                    index = words + np.arange(2)[:, None]
                    point = np.ascontiguousarray(x[4 * i + 2 * e : 4 * i + 2 * e + 2])
                    machine.shared.write(machine.warp, index, point.view(np.int32), machine.epoch)

        return scatter

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

    def scaled_total(self, count: int, groups: int = 1) -> Callable:
        """The sum of registers, first to last, times a factor; of each group."""

        def total_of(values: Fragment, factor: np.float32) -> Fragment:
            self.machine.counters.fp32_flops += count * groups * WARP
            terms = values.reshape(groups, count, WARP)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                total = terms[:, 0]
                for i in range(1, count):
                    total = total + terms[:, i]
                return total * np.float32(factor)

        return total_of
