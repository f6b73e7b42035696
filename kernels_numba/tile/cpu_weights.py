"""The CPU body's operations on row fragments; see `gpu_weights.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_rows import EXPECTED
from kernels_numba.tile.layout import GROUP, HALF_TYPES, THREAD, WARP
from kernels_numba.tile.machine import Machine

Fragment = NDArray

KEYS = 16
WEIGHT_STRIDE = 20


def to_tf32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Float32 rounded to 11 significant bits, to nearest, ties away from zero; NaN and infinities stay."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x1000) & 0xFFFFE000).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


class CpuWeights:
    """Operations on row fragments; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine
    dtype: str
    _flops: Callable
    decays: Callable

    @staticmethod
    def spread(rows: int) -> Callable:
        """Query registers as a row fragment."""
        r = np.arange(rows)
        register, lane = 2 * (r // 8) + r % 2, r % 8 // 2
        return lambda x: np.repeat(x[register, lane][:, None], WARP, axis=1)

    def scale_rows(self, rows: int, per: int) -> Callable:
        """``per`` registers of each row times the row's factor."""

        def scaled(values: Fragment, factors: Fragment) -> Fragment:
            self._flops(values.size)
            with np.errstate(**EXPECTED):
                return values * np.repeat(factors, per, axis=0)

        return scaled

    def quotient(self, count: int) -> Callable:
        """Values / total; zeros where the total is zero."""

        def divided(values: Fragment, total: np.float32) -> Fragment:
            self._flops(2 * values.size)
            total = np.float32(total)
            with np.errstate(**EXPECTED):
                inverse = np.float32(1) / total
                return np.where(total == 0, np.float32(0), values * inverse)

        return divided

    def join_numbers(self, parts: int) -> Callable:
        """Factors, shift and sum of weights of a row's parts."""

        def made(joined: Fragment, numbers: Fragment) -> Fragment:
            found = np.concatenate([joined, numbers])
            shifts, totals = found[::2], found[1::2]
            weighty = totals != 0
            top, some = shifts[0], weighty[0]
            with np.errstate(**EXPECTED):
                for shift, has in zip(shifts[1:], weighty[1:], strict=True):
                    top = np.where(has & ((shift > top) | ~some), shift, top)
                    some = some | has
            factors = np.where(weighty & (shifts != top), self.decays(parts + 1)(shifts, top), np.float32(1))
            total = self._fused(factors, totals, np.zeros(WARP, np.float32))
            return np.concatenate([factors, top[None], total[None]])

        return made

    def join_sums(self, parts: int, per: int) -> Callable:
        """Sums of a row's parts times their factors, added up in order."""

        def added(sums: Fragment, more: Fragment, factors: Fragment) -> Fragment:
            self._flops(sums.size)
            with np.errstate(**EXPECTED):
                first = sums * factors[0]
            return self._fused(factors[1 : parts + 1, None], more.reshape(parts, per, WARP), first)

        return added

    def _fused(self, factors: NDArray, values: NDArray, total: NDArray) -> NDArray:
        """Multiply-adds to the total, in order, each rounded once (but for sums within 2^-53 of a tie)."""
        self._flops(2 * values.size)
        with np.errstate(**EXPECTED):
            for factor, value in zip(factors, values, strict=True):
                total = (factor.astype(np.float64) * value + total).astype(np.float32)
        return total

    def weigh(self, rows: int, widths: tuple[int, ...], stride: int, *, careful: bool = False) -> Callable:
        """Add 16 values of halves, each times its weight, in float32 and in the order of the keys."""
        per = sum(widths)

        def added(sums: Fragment, weights: Any, values: Any, lane: Any) -> Fragment:
            lanes = np.arange(WARP)
            quads = int(weights) + (
                WEIGHT_STRIDE * np.arange(rows)[:, None] + 4 * np.arange(KEYS // 4)
            ).reshape(-1)
            w = (
                self._read(np.repeat(quads[:, None], WARP, axis=1), 4)[..., 0]
                .reshape(rows, KEYS)
                .view(np.float32)
            )
            parts, start = [], int(values) + stride * np.arange(KEYS)[:, None]
            for width in widths:
                words = self._read(start + lanes * (width // 2), width // 2)
                parts.append(self._to_floats(words))
                start = start + 16 * width
            v = np.concatenate(parts, axis=1)
            self._flops(2 * rows * KEYS * per * WARP)
            total = sums.reshape(rows, per, WARP)
            with np.errstate(**EXPECTED):
                for key in range(KEYS):
                    # A product of two float32 is exact in float64, so this rounds as a fused multiply-add
                    # does, but for sums within 2^-53 of a tie.
                    exact = w[:, key, None, None].astype(np.float64) * v[key]
                    new = (exact + total).astype(np.float32)
                    total = np.where(w[:, key, None, None] < 0, total, new) if careful else new
            return total.reshape(rows * per, WARP)

        return added

    def _read(self, places: NDArray[np.int64], width: int) -> NDArray[np.int32]:
        """Loads of ``width`` words a lane from shared memory, one for each row of ``places``: [loads, width, 32]."""
        machine = self.machine
        for at in places:
            machine.count_shared(at, width, write=False)
        return machine.shared.read(machine.warp, places[:, None] + np.arange(width)[:, None], machine.epoch)

    def _to_floats(self, words: NDArray[np.int32]) -> NDArray[np.float32]:
        """[loads, width, 32] words of two halves -> [loads, 2 width, 32] float32."""
        loads, width, _ = words.shape
        halves = np.ascontiguousarray(words).view(HALF_TYPES[self.dtype]).reshape(loads, width, WARP, 2)
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return halves.transpose(0, 1, 3, 2).reshape(loads, 2 * width, WARP).astype(np.float32)

    def weigh_products(self, tiles: int, blocks: int, stride: int, *, careful: bool = False) -> Callable:
        """As :meth:`weigh`, on tensor cores, with weights rounded to TF32; ``careful``: by multiply-adds."""

        def added(sums: Fragment, weights: Any, values: Any, lane: Any) -> Fragment:
            total = sums.reshape(tiles, blocks, 4, 2, 2, WARP)
            if careful:
                return one_by_one(total, int(weights), int(values)).reshape(sums.shape)
            machine = self.machine
            machine.counters.mma_m16n8k8 += 2 * 4 * blocks * tiles
            for step in range(2):
                k = 8 * step + THREAD + 4 * np.arange(2)[:, None]  # the lane's two keys
                n = 8 * np.arange(tiles)[:, None, None]
                places = int(weights) + (WEIGHT_STRIDE * (n + GROUP) + k).reshape(2 * tiles, WARP)
                w = to_tf32(self._read(places, 1).view(np.float32).reshape(tiles, 2, WARP))
                chunk = 8 * np.arange(blocks)[:, None, None] + (GROUP ^ 2 * THREAD)
                places = (int(values) + k * stride + 4 * chunk).reshape(2 * blocks, WARP)
                v = self._to_floats(self._read(places, 4)).reshape(blocks, 2, 8, WARP)
                # [key of 8, row] and [element, key of 8], from lanes 4 g + t with g the row or the chunk
                p = w.reshape(tiles, 2, 8, 4).transpose(1, 3, 0, 2).reshape(8, 8 * tiles)
                x = v.reshape(blocks, 2, 8, 8, 4).transpose(0, 3, 2, 1, 4).reshape(64 * blocks, 8)
                with np.errstate(**EXPECTED):
                    product = x @ p
                # element 8 g + 2 i + y, row 8 n + 2 t + e -> [n, block, i, y, e, lane]
                parts = product.reshape(blocks, 8, 4, 2, tiles, 4, 2).transpose(4, 0, 2, 3, 6, 1, 5)
                with np.errstate(**EXPECTED):
                    total = total + parts.reshape(total.shape)
            return total.reshape(sums.shape)

        def one_by_one(total: NDArray, weights: int, values: int) -> NDArray:
            rows = (8 * np.arange(tiles)[:, None, None] + 2 * THREAD + np.arange(2)[:, None]).reshape(
                -1, WARP
            )
            for quad in range(KEYS // 4):
                w = self._read(weights + WEIGHT_STRIDE * rows + 4 * quad, 4).view(np.float32)
                w = w.reshape(tiles, 2, 4, WARP)
                for k in range(4):
                    chunk = 8 * np.arange(blocks)[:, None] + (GROUP ^ 2 * k)
                    v = self._to_floats(self._read(values + (4 * quad + k) * stride + 4 * chunk, 4))
                    v = v.reshape(1, blocks, 4, 2, 1, WARP)
                    weight = w[:, None, None, None, :, k]
                    self._flops(2 * total.size)
                    with np.errstate(**EXPECTED):
                        new = (weight.astype(np.float64) * v + total).astype(np.float32)
                    total = np.where(weight < 0, total, new)
            return total

        return added

    def scale_queries(self, tiles: int, blocks: int) -> Callable:
        """Sums in the order of :meth:`weigh_products` times their rows' query registers."""

        def scaled(sums: Fragment, factors: Fragment) -> Fragment:
            self._flops(sums.size)
            by_query = factors.reshape(tiles, 1, 1, 1, 2, WARP)
            with np.errstate(**EXPECTED):
                return (sums.reshape(tiles, blocks, 4, 2, 2, WARP) * by_query).reshape(sums.shape)

        return scaled
