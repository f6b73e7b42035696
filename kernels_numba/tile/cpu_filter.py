"""The CPU body's operations that prepare filters; see `gpu_filter.py` for what each does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_float import fma
from kernels_numba.tile.cpu_memory import Fragment, _lanes, _mask
from kernels_numba.tile.layout import HALF_TYPES, WARP
from kernels_numba.tile.machine import Buffer, Machine


class CpuFilter:
    """Operations for filters of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine

    def load_taps(self, count: int, kind: str, *, double: bool = False) -> Callable:
        """Taps of type ``kind`` as float32 or float64, by their numbers; negative numbers are zeros."""

        def load(taps: Buffer, row: Any, places: Buffer, at: Any, step: Any) -> Fragment:
            where = _lanes(at) + np.arange(count)[:, None] * int(step)
            places.check(where, 1)
            number = places.data[where].astype(np.int64)
            keep = number >= 0
            index = (number + _lanes(row))[keep]
            taps.check(index, 1)
            data = taps.data.view(HALF_TYPES.get(kind, taps.data.dtype))
            out = np.zeros((count, WARP), np.float64 if double else np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                out[keep] = data[index].astype(out.dtype)
            counters = self.machine.counters
            counters.add_bytes("global_read_bytes", places.name, 4 * where.size)
            counters.add_bytes("global_read_bytes", taps.name, index.size * data.itemsize)
            return out

        return load

    def _points_at(self, source: Buffer, where: NDArray[np.int64]) -> Fragment:
        source.check(2 * where, 2)
        nbytes = 2 * where.size * source.data.itemsize
        self.machine.counters.add_bytes("global_read_bytes", source.name, nbytes)
        return np.concatenate([source.data[2 * where], source.data[2 * where + 1]])

    def load_strided(self, count: int, *, double: bool = False) -> Callable:
        """Complex points of global memory, ``step`` apart."""
        number = np.arange(count)[:, None]
        return lambda source, at, step: self._points_at(source, _lanes(at) + number * int(step))

    def store_strided(self, count: int, *, double: bool = False) -> Callable:
        """The reverse, where valid."""

        def store(target: Buffer, at: Any, step: Any, valid: Any, x: Fragment) -> None:
            keep = _mask(valid)
            where = 2 * (_lanes(at) + np.arange(count)[:, None] * int(step))[:, keep]
            target.check(where, 2)
            target.data[where], target.data[where + 1] = x[:count, keep], x[count:, keep]
            nbytes = 2 * where.size * target.data.itemsize
            self.machine.counters.add_bytes("global_written_bytes", target.name, nbytes)

        return store

    def multiply_strided(self, count: int, *, double: bool = False) -> Callable:
        """Multiply points by complex numbers of a table."""

        def product(x: Fragment, table: Buffer, at: Any, step: Any) -> Fragment:
            out = x.copy()
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                for q in range(count):
                    where = _lanes(at) + 4 * (q // 2) * int(step) + 2 * (q % 2)
                    table.check(where, 2)
                    wr, wi = table.data[where], table.data[where + 1]
                    xr, xi = x[q], x[q + count]
                    out[q], out[q + count] = fma(xr, wr, -(xi * wi)), fma(xr, wi, xi * wr)
            counters = self.machine.counters
            counters.add_bytes("global_read_bytes", table.name, 2 * table.data.itemsize * count * WARP)
            counters.fp32_flops += 0 if double else 6 * count * WARP
            return out

        return product

    def gather_points(self, count: int, *, double: bool = False) -> Callable:
        """Complex points of global memory from anywhere."""
        return lambda source, base, places: self._points_at(source, _lanes(base) + places.astype(np.int64))

    def weigh(self, count: int, *, double: bool = False) -> Callable:
        """so_far + x w."""

        def weighed(so_far: Fragment, x: Fragment, weights: Fragment) -> Fragment:
            numbers = np.ascontiguousarray(weights)
            if double:  # words of the low and the high half in turn
                pairs = np.stack([numbers[0::2], numbers[1::2]], axis=-1)
                numbers = np.ascontiguousarray(pairs).view(np.float64)[..., 0]
            else:
                numbers = numbers.view(np.float32)
            xr, xi, wr, wi = x[:count], x[count:], numbers[0::2], numbers[1::2]
            self.machine.counters.fp32_flops += 0 if double else 8 * count * WARP
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                re = fma(-xi, wi, fma(xr, wr, so_far[:count]))
                return np.concatenate([re, fma(xi, wr, fma(xr, wi, so_far[count:]))])

        return weighed

    def zeros(self, count: int, *, double: bool = False) -> Callable:
        """Registers that are zero."""
        return lambda: np.zeros((count, WARP), np.float64 if double else np.float32)

    def combine_rows(self, count: int, *, double: bool = False) -> Callable:
        """Two positions of the spectra of ``count`` filters, E a + O b."""

        def combine(
            points: Buffer, base: Any, step: Any, places: Buffer, weights: Buffer, pair: Any
        ) -> Fragment:
            at, first = 4 * _lanes(pair), 8 * _lanes(pair)
            places.check(at, 4)
            weights.check(np.stack([first + 2 * j for j in range(4)]), 2)
            counters = self.machine.counters
            counters.add_bytes("global_read_bytes", places.name, 16 * WARP)
            counters.add_bytes("global_read_bytes", weights.name, 8 * weights.data.itemsize * WARP)
            counters.fp32_flops += 0 if double else count * 2 * 18 * WARP
            out = []
            for i in range(count):
                re, im = [], []
                for e in range(2):
                    ar, ai, br, bi = (weights.data[first + 4 * e + j] for j in range(4))
                    two = np.stack([places.data[at + 2 * e + j].astype(np.int64) for j in range(2)])
                    xr, mr, xi, mi = self._points_at(points, _lanes(base) + i * int(step) + two)
                    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                        er, ei, dr, di = xr + mr, xi - mi, xr - mr, xi + mi
                        re.append(fma(-bi, di, fma(br, dr, fma(ar, er, -ai * ei))))
                        im.append(fma(bi, dr, fma(br, di, fma(ar, ei, ai * er))))
                out += re + im
            return np.stack(out)

        return combine

    def narrow(self, count: int) -> Callable:
        """Float64 registers rounded to float32."""

        def rounded(x: Fragment) -> Fragment:
            with np.errstate(over="ignore", invalid="ignore"):
                return x.astype(np.float32)

        return rounded

    def magnitude(self, count: int) -> Callable:
        """The largest of so_far and all |x_i|; NaN if any is."""

        def largest(x: Fragment, so_far: Fragment) -> Fragment:
            a, b = np.abs(x[:count]), np.abs(x[count:])
            m, s = np.maximum(a, b), np.minimum(a, b)
            with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
                s = s / m
                found = np.where(m == 0, np.float32(0), np.sqrt(fma(s, s, np.float32(1))) * m)
            return np.maximum(found.max(axis=0), so_far)

        return largest

    def largest_word(self, count: int) -> Callable:
        """The largest of float32 that come as words; NaN if any is."""
        return lambda words: np.ascontiguousarray(words).view(np.float32).max(axis=0, keepdims=True)

    @staticmethod
    def as_words(x: Fragment) -> Fragment:
        """Float32 registers as words."""
        return np.ascontiguousarray(x).view(np.int32)

    def power_above(self, least: float, most: float) -> Callable:
        """1 for an ordinary peak, else the power of two that is not below it."""

        def scale(peak: Fragment) -> Fragment:
            plain = ~np.isfinite(peak) | (peak == 0) | ((peak >= least) & (peak <= most))
            with np.errstate(divide="ignore"):
                exponent = np.ceil(np.log2(np.where(plain, 1, peak).astype(np.float64)))
            return np.ldexp(np.float32(1), np.clip(exponent, -126, 127).astype(int)).astype(np.float32)

        return scale

    def divide_floats(self, count: int) -> Callable:
        """Divide float32 registers by a power of two."""

        def divided(values: Fragment, power: np.float32) -> Fragment:
            self.machine.counters.fp32_flops += values.size
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                return values * (np.float32(1) / power)

        return divided
