"""The CPU body's operations on complex words of two halves; see `gpu_words.py` for what each does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_float import fma
from kernels_numba.tile.cpu_memory import Fragment
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Buffer, Machine


class CpuWords:
    """Complex words of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine
    half: Any
    mma: Callable
    load_shared: Callable
    load_global: Callable
    _fma: Callable

    def columns_product(self, column_tiles: int, k_tiles: int, *, stored: int, shared: bool) -> Callable:
        """An A operand of 16 rows times a factor, from shared memory or a buffer."""
        product, pairs = self.mma(1, column_tiles, k_tiles), -(-k_tiles // 2)
        load = self.load_shared(4 * pairs, 4) if shared else self.load_global(4 * pairs, 4)

        def run(source: Buffer, word: Any, a: Fragment) -> Fragment:
            where = () if shared else (source,)
            columns = [load(*where, word + 64 * n * stored, 128) for n in range(column_tiles)]
            by_k = np.stack(columns).reshape(column_tiles, 2 * pairs, 2, WARP).swapaxes(0, 1)
            return product(a, by_k[:k_tiles].reshape(-1, WARP))

        return run

    def _wide(self, words: Fragment, planar: bool = False) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Real and imaginary parts as float32, [count, 32] each."""
        with np.errstate(invalid="ignore"):  # a signalling NaN
            parts = np.ascontiguousarray(words).view(self.half).astype(np.float32).reshape(*words.shape, 2)
        if planar:
            parts = parts.reshape(-1, 2, WARP, 2).transpose(0, 3, 2, 1).reshape(*words.shape, 2)
        return parts[..., 0], parts[..., 1]

    def _round_parts(self, re: NDArray, im: NDArray, swap: bool) -> Fragment:
        parts = (im, re) if swap else (re, im)
        with np.errstate(over="ignore", invalid="ignore"):
            halves = np.stack(parts, axis=-1).astype(self.half)
        return np.ascontiguousarray(halves).view(np.int32)[..., 0]

    def multiply_words(self, parts: Any) -> Callable:
        """Complex float32 times complex words, rounded to words."""
        re, im = (list(x) for x in zip(*parts, strict=True))

        def product(values: Fragment, words: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 6 * WARP * len(re)
            (wr, wi), xr, xi = self._wide(words), values[re], values[im]
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                return self._round_parts(fma(xr, wr, -(xi * wi)), fma(xr, wi, xi * wr), False)

        return product

    def turn_words(self, parts: Any, *, swap: bool = False) -> Callable:
        """Complex float32, rounded to halves, times complex halves."""
        re, im = (list(x) for x in zip(*parts, strict=True))

        def product(values: Fragment, planes: Fragment) -> Fragment:
            self.machine.counters.half_flops += 6 * WARP * len(re)
            with np.errstate(over="ignore", invalid="ignore"):
                xr, xi = (values[part].astype(self.half).astype(np.float64) for part in (re, im))
            wr, wi = (x.astype(np.float64) for x in self._wide(planes, True))
            made = [
                self._fma(xr, a, self._fma(b, c, -0.0).astype(np.float64))
                for a, b, c in ((wr, -xi, wi), (wi, xi, wr))
            ]
            halves = np.stack(made[::-1] if swap else made, axis=-1)
            return np.ascontiguousarray(halves).view(np.int32)[..., 0]

        return product

    def widen_words(self, count: int) -> Callable:
        """Words as float32, real and imaginary part of each in turn."""
        return lambda words: np.stack(self._wide(words), axis=1).reshape(2 * count, WARP)

    def mirror_words(self, count: int) -> Callable:
        """X a + conj(m) b of words, rounded to words with their parts exchanged."""

        def product(*fragments: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 14 * WARP * count
            (xr, xi), (ar, ai), (mr, mi), (br, bi) = map(self._wide, fragments, (False, True, False, True))
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                re = fma(mi, bi, fma(mr, br, fma(xr, ar, -(xi * ai))))
                im = fma(-mi, br, fma(mr, bi, fma(xr, ai, xi * ar)))
            return self._round_parts(re, im, True)

        return product
