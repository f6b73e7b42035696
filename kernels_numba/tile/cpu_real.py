"""The CPU body's operations that make the spectrum of a real filter; see `gpu_real.py` for what each does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_float import fma
from kernels_numba.tile.cpu_memory import Fragment, _lanes
from kernels_numba.tile.layout import HALF_TYPES, WARP
from kernels_numba.tile.machine import Buffer, Machine


class CpuReal:
    """Spectra of real filters; :class:`kernels_numba.tile.cpu_vocabularies.CpuFloats` inherits them."""

    machine: Machine
    magnitude: Callable
    power_above: Callable
    divide_floats: Callable
    multiply_complex_floats: Callable

    def _shared_points(self, words: NDArray[np.int64]) -> tuple[NDArray, NDArray]:
        """Real and imaginary parts at words [.., 32] and the next."""
        machine = self.machine
        for at in words.reshape(-1, WARP):
            machine.count_shared(at, 2, write=False)
        found = (machine.shared.read(machine.warp, words + part, machine.epoch) for part in range(2))
        real, imaginary = (np.ascontiguousarray(x).view(np.float32) for x in found)
        return real, imaginary

    def load_samples(self, constants: tuple[int, ...], kind: str) -> Callable:
        """Complex points of two samples, by the numbers of their taps; negative numbers are zeros."""
        apart = np.array(constants)[:, None]

        def load(taps: Buffer, row: Any, numbers: Buffer, at: Any) -> Fragment:
            point = _lanes(at) + apart
            where = np.concatenate([2 * point, 2 * point + 1])
            numbers.check(where, 1)
            number = numbers.data[where].astype(np.int64)
            keep = number >= 0
            index = (number + _lanes(row))[keep]
            taps.check(index, 1)
            data = taps.data.view(HALF_TYPES.get(kind, taps.data.dtype))
            out = np.zeros(where.shape, np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                out[keep] = data[index].astype(np.float32)
            counters = self.machine.counters
            counters.add_bytes("global_read_bytes", numbers.name, 4 * where.size)
            counters.add_bytes("global_read_bytes", taps.name, index.size * data.itemsize)
            return out

        return load

    def samples_at(self, count: int, kind: str) -> Callable:
        """Complex points of two samples, by numbers of their taps in registers."""

        def load(taps: Buffer, row: Any, numbers: Fragment) -> Fragment:
            number = np.concatenate([numbers[0::2], numbers[1::2]]).astype(np.int64)
            keep = number >= 0
            index = (number + _lanes(row))[keep]
            taps.check(index, 1)
            data = taps.data.view(HALF_TYPES.get(kind, taps.data.dtype))
            out = np.zeros(number.shape, np.float32)
            with np.errstate(over="ignore", invalid="ignore"):
                out[keep] = data[index].astype(np.float32)
            self.machine.counters.add_bytes("global_read_bytes", taps.name, index.size * data.itemsize)
            return out

        return load

    def turn_by_words(self, count: int) -> Callable:
        """Points times complex numbers that come as words."""
        product = self.multiply_complex_floats(count)

        def turned(x: Fragment, words: Fragment) -> Fragment:
            numbers = np.ascontiguousarray(words).view(np.float32)
            turned: Fragment = product(x, np.concatenate([numbers[0::2], numbers[1::2]]))
            return turned

        return turned

    def largest_part(self, count: int, lanes: int) -> Callable:
        """The largest magnitude of a part of points of neighbouring lanes."""

        def largest(x: Fragment) -> Fragment:
            best = np.abs(x).max(axis=0).reshape(-1, lanes).max(axis=1)
            return np.repeat(best, lanes)[None]

        return largest

    def powers_above(self, count: int, each: int, least: float, most: float) -> Callable:
        """`power_above` of twice the largest of each group of words."""
        power = self.power_above(least, most)

        def powers(words: Fragment) -> Fragment:
            peaks = np.ascontiguousarray(words).view(np.float32).reshape(count, each, WARP).max(axis=1)
            self.machine.counters.fp32_flops += peaks.size
            with np.errstate(over="ignore"):
                twice = np.where(
                    np.isfinite(peaks), np.minimum(peaks + peaks, np.finfo(np.float32).max), peaks
                )
                above: Fragment = power(twice)
            return above

        return powers

    def divide_groups(self, groups: int, each: int) -> Callable:
        """`divide_floats` of groups of registers."""
        divide = self.divide_floats(groups * each)

        def divided(values: Fragment, powers: Fragment) -> Fragment:
            found: Fragment = divide(values, np.repeat(powers, each, axis=0))
            return found

        return divided

    def combine_pairs(self, pairs: int, count: int, room: int) -> Callable:
        """Pairs of positions of the spectra of some filters, X a + conj(M) b."""

        def combine(word: Any, places: Fragment, first: Fragment, second: Fragment) -> Fragment:
            weights = [np.ascontiguousarray(x).view(np.float32) for x in (first, second)]
            self.machine.counters.fp32_flops += 2 * 14 * pairs * count * WARP
            found = []
            for i in range(count):
                real, imaginary = self._shared_points(_lanes(word) + i * room + places.astype(np.int64))
                for p in range(pairs):
                    both = []
                    for e in range(2):
                        (xr, mr), (xi, mi) = (part[4 * p + 2 * e :][:2] for part in (real, imaginary))
                        ar, ai, br, bi = weights[e][4 * p : 4 * p + 4]
                        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                            re = fma(mi, bi, fma(mr, br, fma(xr, ar, -(xi * ai))))
                            both.append((re, fma(-mi, br, fma(mr, bi, fma(xr, ai, xi * ar)))))
                    found += [both[0][0], both[1][0], both[0][1], both[1][1]]
            return np.stack(found)

        return combine

    def largest_bin(self, places: tuple[tuple[int, int], ...], stride: int) -> Callable:
        """The largest of so_far and the bins of points x and of those P on."""
        count = len(places)
        which, apart = (np.array(column) for column in zip(*places, strict=True))
        magnitude = self.magnitude(count)

        def largest(
            x: Fragment, roots: Buffer, at: Any, word: Any, starts: Fragment, so_far: Fragment
        ) -> Fragment:
            where = _lanes(at) + stride * np.arange(count)[:, None]
            roots.check(where, 2)
            self.machine.counters.add_bytes("global_read_bytes", roots.name, 8 * where.size)
            self.machine.counters.fp32_flops += 22 * where.size
            cr, ci = roots.data[where], roots.data[where + 1]
            mr, mi = self._shared_points(_lanes(word) + starts[which].astype(np.int64) + 2 * apart[:, None])
            half = np.float32(0.5)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                er, ei = half * (x[:count] + mr), half * (x[count:] - mi)
                dr, di = x[:count] - mr, x[count:] + mi
                for c, s in ((cr, ci), (-cr, -ci)):
                    re, im = fma(-s, di, fma(c, dr, er)), fma(s, dr, fma(c, di, ei))
                    so_far = magnitude(np.concatenate([re, im]), so_far)
            return so_far

        return largest

    def combine_bins(self, count: int, stride: int) -> Callable:
        """Pairs of positions of a spectrum, E a + O b."""

        def combine_one(word: Any, places: Buffer, weights: Buffer, pair: Any) -> Fragment:
            at, first = 4 * _lanes(pair), 8 * _lanes(pair)
            places.check(at, 4)
            weights.check(first, 4)
            weights.check(first + 4, 4)
            counters = self.machine.counters
            counters.add_bytes("global_read_bytes", places.name, 16 * WARP)
            counters.add_bytes("global_read_bytes", weights.name, 32 * WARP)
            counters.fp32_flops += 2 * 18 * WARP
            words = np.stack([places.data[at + i].astype(np.int64) for i in range(4)])
            numbers = np.stack([weights.data[first + i] for i in range(8)]).reshape(2, 4, WARP)
            return _two_bins(*self._shared_points(_lanes(word) + words), numbers)

        def combine(word: Any, places: Buffer, weights: Buffer, pair: Any) -> Fragment:
            pairs = [_lanes(pair) + i * stride for i in range(count)]
            return np.concatenate([combine_one(word, places, weights, p) for p in pairs])

        return combine


def _two_bins(real: NDArray, imaginary: NDArray, weights: NDArray) -> Fragment:
    """E a + O b of two positions, real parts first: X and its mirror of each [4, 32], a and b of each [2, 4, 32]."""
    re, im = [], []
    for e, (ar, ai, br, bi) in enumerate(weights):
        (xr, mr), (xi, mi) = real[2 * e : 2 * e + 2], imaginary[2 * e : 2 * e + 2]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            er, ei, dr, di = xr + mr, xi - mi, xr - mr, xi + mi
            re.append(fma(-bi, di, fma(br, dr, fma(ar, er, -ai * ei))))
            im.append(fma(bi, dr, fma(br, di, fma(ar, ei, ai * er))))
    return np.stack(re + im)
