"""The CPU body's operations for measuring a GPU: streams of words, long chains of arithmetic, plain products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_memory import Fragment, _lanes
from kernels_numba.tile.cpu_products import fma_single
from kernels_numba.tile.layout import WARP, group_left_index, group_plain_right_index
from kernels_numba.tile.machine import Buffer, Machine

QUAD = 4
_WITHIN = np.arange(QUAD)
GROUP_WARPS = 4


class CpuProbes:
    """Operations of the vocabulary "probe"; :class:`kernels_numba.tile.cpu.CpuTile` has the others."""

    machine: Machine
    half: np.dtype
    _halves: Callable
    _words: Callable
    _fma: Callable
    _read_core: Callable
    load_shared: Callable
    _count_mma: Callable
    _accumulators: Callable

    def load_quads(self, count: int) -> Callable:
        """Quads of words, quad q at word ``at + q step``."""

        def load(source: Buffer, at: Any, step: Any) -> Fragment:
            starts = _lanes(at) + np.arange(count)[:, None] * int(step)
            source.check(starts, QUAD)
            self.machine.counters.add_bytes("global_read_bytes", source.name, 4 * QUAD * count * WARP)
            return source.data[starts[:, None] + _WITHIN[:, None]].reshape(QUAD * count, WARP)

        return load

    def store_quads(self, count: int) -> Callable:
        """Quads of words to global memory."""

        def put(target: Buffer, at: Any, step: Any, words: Fragment) -> None:
            starts = _lanes(at) + np.arange(count)[:, None] * int(step)
            target.check(starts, QUAD)
            target.data[starts[:, None] + _WITHIN[:, None]] = words.reshape(count, QUAD, WARP)
            self.machine.counters.add_bytes("global_written_bytes", target.name, 4 * QUAD * count * WARP)

        return put

    def reload_quads(self, count: int) -> Callable:
        """Quads from shared memory."""
        return self.load_shared(QUAD * count, QUAD)

    @staticmethod
    def repeat_quad(count: int) -> Callable:
        """The same four words ``count`` times."""
        return lambda quad: np.tile(quad, (count, 1))

    @staticmethod
    def fold_quads(count: int) -> Callable:
        """The exclusive or of a quad and others."""

        def folded(quad: Fragment, words: Fragment) -> Fragment:
            return quad ^ np.bitwise_xor.reduce(words.reshape(count, QUAD, WARP), axis=0)

        return folded

    def multiply_adds(self, count: int, steps: int) -> Callable:
        """X = x a + b in float32, ``steps`` times; a and b are one register each."""

        def chain(x: Fragment, a: Fragment, b: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 2 * steps * x.size
            for _ in range(steps):
                x = fma_single(a[:1], x, b[:1])
            return x

        return chain

    def multiply_adds_halves(self, count: int, steps: int) -> Callable:
        """The same on registers of two halves."""

        def chain(x: Fragment, a: Fragment, b: Fragment) -> Fragment:
            self.machine.counters.half_flops += 4 * steps * x.size
            factor, term = self._halves(a[:1]), self._halves(b[:1])
            for _ in range(steps):
                x = self._words(self._fma(self._halves(x), factor, term))
            return x

        return chain

    def mma_narrow_add(self, products: int) -> Callable:
        """C += a b with m16n8k8 on halves, each product with operands of its own."""

        def elements(words: Fragment) -> NDArray[np.float32]:
            """[registers, 32] as [registers, 32, 2]."""
            halves = np.ascontiguousarray(words).view(self.half).reshape(*words.shape, 2)
            return halves.astype(np.float32)

        def product(c: Fragment, a: Fragment, b: Fragment) -> Fragment:
            out = []
            for i in range(products):
                left, right = np.empty((16, 8), np.float32), np.empty((8, 8), np.float32)
                for r, values in enumerate(elements(a[2 * i : 2 * i + 2])):
                    left[8 * r : 8 * r + 8] = values.reshape(
                        8, 8
                    )  # lane 4 g + t has row g, columns 2 t and 2 t + 1
                right[:] = elements(b[i : i + 1])[0].reshape(8, 8).T
                out.append(self._add_product(c[4 * i : 4 * i + 4], left, right))
            return np.concatenate(out)

        return product

    def mma_tf32_add(self, products: int) -> Callable:
        """The same on TF32."""

        def product(c: Fragment, a: Fragment, b: Fragment) -> Fragment:
            out = []
            left_words, right_words = (np.ascontiguousarray(x).view(np.float32) for x in (a, b))
            for i in range(products):
                # Register h + 2 q of lane 4 g + t: row g + 8 h, column t + 4 q; of b: row t + 4 q, column g.
                left = left_words[4 * i : 4 * i + 4].reshape(2, 2, 8, 4).transpose(1, 2, 0, 3).reshape(16, 8)
                right = right_words[2 * i : 2 * i + 2].reshape(2, 8, 4).transpose(0, 2, 1).reshape(8, 8)
                out.append(self._add_product(c[4 * i : 4 * i + 4], left, right))
            return np.concatenate(out)

        return product

    def _add_product(self, c: Fragment, left: NDArray, right: NDArray) -> Fragment:
        self.machine.counters.mma_m16n8k8 += 1
        return c + self._accumulators(left @ right)

    def group_mma_add(self, columns: int, k_tiles: int) -> Callable:
        """C += a b for the 64 rows of four warps, both operands in shared memory."""
        k = 16 * k_tiles
        rows, within = group_left_index(k)
        order = np.empty((k, columns), np.intp)
        depth, across = group_plain_right_index(k, columns)
        order[depth, across] = np.arange(depth.size)

        def product(c: Fragment, left: Any, right: Any) -> Fragment:
            rank = self.machine.warp.index % GROUP_WARPS
            mine = np.flatnonzero(rows // 16 == rank)
            a = np.empty((16, k), np.float32)
            a[rows[mine] % 16, within[mine]] = self._read_core(left, mine, sharers=1)
            b = self._read_core(right, order)
            self._count_mma(1, columns // 8, k_tiles)
            found = self._accumulators(a @ b).reshape(2, columns // 8, 2, WARP)
            return c + found.transpose(1, 0, 2, 3).reshape(-1, WARP)

        return product
