"""The CPU body's operations on float32 points; see `gpu_float.py` for what each does.

Sums and products round as the GPU's. A fused multiply-add is computed in float64, where the product is exact, and
rounded from there: a second rounding that differs from a single one about once in 2^29. (In float64, which only
filters' transforms use, it rounds twice.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_memory import Fragment, _lanes, parted
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Buffer, Machine
from kernels_numba.tile.points import dft_program


def fma(a: Any, b: Any, c: Any) -> NDArray:
    """The type of ``a``, float32 or float64: a b + c."""
    return (np.multiply(a, b, dtype=np.float64) + c).astype(a.dtype)


OPERATIONS: dict[str, Callable] = {
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "neg": lambda a, b, c: -a,
    "mul": lambda a, b, c: a * a.dtype.type(c),
    "fma": lambda a, b, c: fma(a, a.dtype.type(c), b),
}


class CpuFloat:
    """Operations on float32 of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine
    _copy: Callable

    def load_floats(self, pieces: Any, count: int, *, guarded: bool) -> Callable:
        """Float32 of global memory, one or two neighbours an instruction; zeros where masked."""

        def load(source: Buffer, base: Any, limit: Any, at: Any) -> Fragment:
            out = np.zeros((count, WARP), np.float32)
            read = 0
            for constant, names in pieces:
                start = _lanes(at) + constant
                keep = start < limit if guarded else np.ones(WARP, bool)
                where = (_lanes(base) + start)[keep]
                source.check(where, len(names))
                for i, name in enumerate(names):
                    out[name, keep] = source.data[where + i]
                read += 4 * where.size * len(names)
            self.machine.counters.add_bytes("global_read_bytes", source.name, read)
            return out

        return load

    def store_floats(self, pieces: Any, *, guarded: bool) -> Callable:
        """The reverse; all of it, or nothing of it where ``limit`` is 0, if not guarded."""

        def store(target: Buffer, base: Any, limit: Any, at: Any, x: Fragment) -> None:
            written = 0
            for constant, names in pieces:
                start = _lanes(at) + constant
                keep = start < limit if guarded else _lanes(limit) > 0
                where = (_lanes(base) + start)[keep]
                target.check(where, len(names))
                for i, name in enumerate(names):
                    target.data[where + i] = x[name, keep]
                written += 4 * where.size * len(names)
            self.machine.counters.add_bytes("global_written_bytes", target.name, written)

        return store

    def copy_floats(self, pieces: Any, *, guarded: bool) -> Callable:
        """Asynchronous copies to shared memory; zeros where masked."""

        def copy(source: Buffer, base: Any, limit: Any, at: Any, word: Any) -> None:
            for constant, place, n in pieces:
                start = _lanes(at) + constant
                keep = start < limit if guarded else np.ones(WARP, bool)
                where = (_lanes(base) + start)[keep]
                source.check(where, n)
                values = np.zeros((WARP, n), np.float32)
                values[keep] = source.data[where[:, None] + np.arange(n)]
                self.machine.counters.add_bytes("global_read_bytes", source.name, 4 * n * where.size)
                self._copy(2 * (_lanes(word) + place), values.view(np.int16), synchronous=False)

        return copy

    def multiply_floats(self, count: int) -> Callable:
        """Elementwise product of two fragments."""

        def product(a: Fragment, b: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += a.size
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                return a * b

        return product

    def multiply_complex_floats(self, count: int) -> Callable:
        """Elementwise product of two complex fragments."""

        def product(a: Fragment, b: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 6 * WARP * count
            (xr, xi), (wr, wi) = parted(a), parted(b)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                return np.concatenate([fma(xr, wr, -(xi * wi)), fma(xr, wi, xi * wr)])

        return product

    def dft_points(
        self,
        points: int,
        groups: int,
        *,
        inverse: bool,
        live: int | None = None,
        wanted: int | None = None,
        double: bool = False,
        skew: str = "",
    ) -> Callable:
        """Transforms of ``points`` points, ``groups`` of them, in the type that comes."""
        program = dft_program(points, inverse=inverse, live=live, wanted=wanted, skew=skew)
        given, kept = live or points, wanted or points

        def transform(x: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 0 if double else program.flops * groups * WARP
            parts = x.reshape(2, groups, given, WARP)
            values = [parts[part, :, i] for part in range(2) for i in range(given)]
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                made = np.stack(program.run(values, OPERATIONS), axis=1)  # [groups, 2 kept, 32]
            return made.reshape(groups, 2, kept, WARP).swapaxes(0, 1).reshape(-1, WARP)

        return transform

    def _quads(self, table: Buffer, at: Any, constant: int) -> NDArray[np.float32]:
        where = _lanes(at) + constant
        table.check(where, 4)
        self.machine.counters.add_bytes("global_read_bytes", table.name, 16 * WARP)
        return table.data.view(np.float32)[where[None, :] + np.arange(4)[:, None]]

    def multiply_points(self, factors: Any, count: int, *, conjugate: bool = False) -> Callable:
        """Multiply points by complex numbers of a table, or by their conjugates."""

        def product(x: Fragment, table: Buffer, at: Any) -> Fragment:
            out = x.copy()
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                for constant, *pair in factors:
                    quads = self._quads(table, at, constant)
                    for which, points in enumerate(pair):
                        wr, wi = quads[2 * which : 2 * which + 2]
                        for i in points:
                            xr, xi = out[i], out[i + count]
                            if conjugate:
                                out[i], out[i + count] = fma(xr, wr, xi * wi), fma(xi, wr, -(xr * wi))
                            else:
                                out[i], out[i + count] = fma(xr, wr, -(xi * wi)), fma(xr, wi, xi * wr)
                            self.machine.counters.fp32_flops += 6 * WARP
            return out

        return product

    def multiply_mirrored(self, places: tuple[tuple[int, int], ...], stride: int) -> Callable:
        """X a + conj(m) b, with a point m of shared memory for each of x."""
        count = len(places)

        def product(x: Fragment, table: Buffer, at: Any, word: Any, starts: Fragment) -> Fragment:
            out = np.empty_like(x)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                for i, (which, place) in enumerate(places):
                    mr, mi = self._points(_lanes(word) + starts[which], (place,))
                    ar, ai, br, bi = self._quads(table, at, i * stride)
                    xr, xi = x[i], x[i + count]
                    out[i] = fma(mi, bi, fma(mr, br, fma(xr, ar, -(xi * ai))))
                    out[i + count] = fma(-mi, br, fma(mr, bi, fma(xr, ai, xi * ar)))
            self.machine.counters.fp32_flops += 14 * count * WARP
            return out

        return product

    def _points(self, word: Any, places: tuple[int, ...]) -> Fragment:
        machine, base = self.machine, _lanes(word)
        constants = 2 * np.asarray(places)
        for constant in constants:
            machine.count_shared(base + constant, 2, write=False)
        index = base + constants[:, None, None] + np.arange(2)[None, :, None]
        words = machine.shared.read(machine.warp, index, machine.epoch)
        return words.view(np.float32).swapaxes(0, 1).reshape(-1, WARP)

    def load_points(self, places: tuple[int, ...]) -> Callable:
        """Points of shared memory, two words each."""
        return lambda word: self._points(word, places)

    def store_points(self, places: tuple[int, ...]) -> Callable:
        """The reverse."""
        count = len(places)
        constants = 2 * np.asarray(places)

        def store(word: Any, x: Fragment) -> None:
            machine, base = self.machine, _lanes(word)
            warp, shared = machine.warp, machine.shared
            for constant in constants:
                machine.count_shared(base + constant, 2, write=True)
            index = base + constants[:, None, None] + np.arange(2)[None, :, None]
            words = x.reshape(2, count, WARP).swapaxes(0, 1).view(np.int32)
            shared.write(warp, index, words, machine.epoch)

        return store
