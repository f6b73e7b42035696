"""The CPU body's float32 operations on rows of logits, counted; what lies where is described in `gpu_rows.py`.

Sums and products round as the GPU's, in its order. The exponential is rounded from float64: the GPU's is within
2 units in the last place of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_memory import Fragment, _lanes
from kernels_numba.tile.layout import THREAD, WARP
from kernels_numba.tile.machine import Machine

LOG2E = np.float32(1.4426950408889634)
TINY = np.float32(2.0**-126)
EXPECTED: dict[str, Any] = {"invalid": "ignore", "over": "ignore", "under": "ignore", "divide": "ignore"}


def _queries(tiles: int) -> NDArray[np.int64]:
    """The query of each query register in each lane, [2 tiles, 32]."""
    j = np.arange(2 * tiles)[:, None]
    return 8 * (j // 2) + 2 * THREAD[None, :] + j % 2


class CpuRows:
    """Operations on logits; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    machine: Machine
    dtype: str

    def _flops(self, count: int) -> None:
        self.machine.counters.fp32_flops += count

    def fill(self, count: int) -> Callable:
        """A fragment of one float32."""
        return lambda value: np.full((count, WARP), value, np.float32)

    @staticmethod
    def registers(count: int) -> Callable:
        """Integers as a fragment of ``count`` registers."""

        def made(*values: Any) -> Fragment:
            return np.stack([_lanes(v) for v in values[:count]]).astype(np.int32)

        return made

    @staticmethod
    def as_floats(count: int) -> Callable:
        """Registers of words as float32."""
        return lambda words: np.ascontiguousarray(words).view(np.float32)

    @staticmethod
    def as_words(count: int) -> Callable:
        """Registers of float32 as words."""
        return lambda values: np.ascontiguousarray(values).view(np.int32)

    @staticmethod
    def first(x: Fragment) -> Any:
        """The first register, the same in all lanes."""
        return x[0].reshape(-1)[0]

    # ---- logits ----------------------------------------------------------------------------------------------
    def _exp(self, x: NDArray) -> NDArray:
        """e^x as the special-function unit makes it: 2^x of a rounded product, results below 2^-126 are 0."""
        self.machine.counters.exponentials += x.size
        self._flops(x.size)
        with np.errstate(**EXPECTED):
            power = np.exp2((x * LOG2E).astype(np.float64)).astype(np.float32)
        return np.where(power < TINY, np.float32(0), power)

    def _floored(self, x: NDArray) -> NDArray:
        kept = np.maximum(self._exp(x), TINY)  # a NaN stays
        return np.where(x == -np.inf, np.float32(0), kept)

    def logits(self, tiles: int, *, capped: bool) -> Callable:
        """Products times the factor, under a cap if ``capped``."""

        def made(products: Fragment, factor: np.float32, cap: np.float32) -> Fragment:
            self._flops(products.size)
            with np.errstate(**EXPECTED):
                x = products * np.float32(factor)
                if not capped:
                    return x
                z = x / np.float32(cap)
                power = self._exp(z + z)
                self._flops(6 * x.size)
                one, two = np.float32(1), np.float32(2)
                return np.float32(cap) * (one - two / (power + one))

        return made

    @staticmethod
    def mask(tiles: int, value: float) -> Callable:
        """``value`` for keys that are not below the query's limit."""

        def masked(x: Fragment, key: Any, limits: Fragment) -> Fragment:
            first = _lanes(key)
            keys = np.repeat(np.stack([first, first + 8]), 2 * tiles, axis=0)
            return np.where(keys < np.concatenate([limits, limits]), x, np.float32(value))

        return masked

    def shift(self, tiles: int) -> Callable:
        """Logits minus the query's shift."""

        def shifted(x: Fragment, shifts: Fragment) -> Fragment:
            self._flops(x.size)
            with np.errstate(**EXPECTED):
                return x - np.concatenate([shifts, shifts])

        return shifted

    @staticmethod
    def outside(tiles: int) -> Callable:
        """Bit q where a value of query q is not in (low, high); -inf sets none."""
        places = 1 << _queries(tiles)

        def found(x: Fragment, low: np.float32, high: np.float32) -> NDArray:
            inside = (x > np.float32(low)) & (x < np.float32(high))
            wrong = (~(inside | (x == -np.inf))).reshape(2, 2 * tiles, WARP).any(axis=0)
            return np.bitwise_or.reduce(np.where(wrong, places, 0), axis=0)

        return found

    def exponentials(self, count: int, *, floor: bool = False) -> Callable:
        """e^x; with ``floor`` at least 2^-126 except for -inf."""
        return self._floored if floor else self._exp

    def add(self, count: int) -> Callable:
        """Sums of float32 registers."""

        def total(a: Fragment, b: Fragment) -> Fragment:
            self._flops(a.size)
            with np.errstate(**EXPECTED):
                return a + b

        return total

    def times(self, count: int) -> Callable:
        """Products of float32 registers."""

        def product(a: Fragment, b: Fragment) -> Fragment:
            self._flops(a.size)
            with np.errstate(**EXPECTED):
                return a * b

        return product

    def add_keys(self, tiles: int) -> Callable:
        """Query registers plus the values of the lane's two keys."""

        def total(sums: Fragment, x: Fragment) -> Fragment:
            self._flops(x.size)
            with np.errstate(**EXPECTED):
                return sums + (x[: 2 * tiles] + x[2 * tiles :])

        return total

    @staticmethod
    def _by_query(x: Fragment) -> NDArray:
        """[registers, groups, threads]."""
        return x.reshape(len(x), 8, 4)

    def max_keys(self, tiles: int) -> Callable:
        """The larger of the query registers and the query's values in all lanes; NaN is passed over."""

        def top(most: Fragment, x: Fragment) -> Fragment:
            self._flops(8 * tiles * WARP)
            here = np.fmax.reduce(self._by_query(np.fmax(x[: 2 * tiles], x[2 * tiles :])), axis=1)
            return np.fmax(most, np.tile(here, (1, 8)))

        return top

    def sum_lanes(self, tiles: int) -> Callable:
        """Query registers added up over the eight lanes that hold the query, as a butterfly does."""

        def total(sums: Fragment) -> Fragment:
            self._flops(3 * sums.size)
            lanes = np.arange(WARP)
            with np.errstate(**EXPECTED):
                for distance in (4, 8, 16):
                    sums = sums + sums[:, lanes ^ distance]
            return sums

        return total

    @staticmethod
    def any_bits(bits: Any) -> int:
        """The bits that are set in any lane."""
        return int(np.bitwise_or.reduce(np.atleast_1d(np.asarray(bits))))

    @staticmethod
    def differ(count: int) -> Callable:
        """1 in lanes where any register differs."""
        return lambda a, b: (a != b).any(axis=0).astype(np.int64)

    @staticmethod
    def choose(tiles: int) -> Callable:
        """Query registers of a where the query's bit is set, else of b."""
        places = _queries(tiles)
        return lambda bits, a, b: np.where((int(bits) >> places) & 1 == 1, a, b)

    @staticmethod
    def anchors(count: int) -> Callable:
        """What may be subtracted: 0 for a maximum of -inf."""
        return lambda most: np.where(most == -np.inf, np.float32(0), most)

    @staticmethod
    def started(count: int) -> Callable:
        """The shift where something was summed, else -inf."""
        return lambda sums, shifts: np.where(sums == 0, np.float32(-np.inf), shifts)

    def decays(self, count: int) -> Callable:
        """e^(old - new), 0 for an old -inf."""

        def made(old: Any, new: Any) -> Any:
            old, new = np.asarray(old, np.float32), np.asarray(new, np.float32)
            self._flops(old.size)
            with np.errstate(**EXPECTED):
                return self._floored(old - self.anchors(count)(new))

        return made

    def decay(self, old: np.float32, new: np.float32) -> np.float32:
        """As :meth:`decays`, of two numbers."""
        return np.float32(self.decays(1)(old, new))
