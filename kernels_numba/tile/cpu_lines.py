"""The CPU body's operations on lines of a matrix; see `gpu_lines.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_rows import EXPECTED
from kernels_numba.tile.layout import WARP

Fragment = NDArray


class CpuLines:
    """Operations on lines; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    _flops: Callable
    _to_floats: Callable

    def widen(self, count: int) -> Callable:
        """Registers of two halves as float32."""
        return lambda words: self._to_floats(words[None])[0]

    @staticmethod
    def cut(count: int, value: float) -> Callable:
        """``value`` from the limit on."""

        def cut(x: Fragment, at: Any, limit: Any) -> Fragment:
            return np.where(np.asarray(at) + np.arange(count)[:, None] < int(limit), x, np.float32(value))

        return cut

    def less(self, count: int) -> Callable:
        """All registers minus the one of the shift."""

        def less(x: Fragment, shift: Fragment) -> Fragment:
            self._flops(x.size)
            with np.errstate(**EXPECTED):
                return x - shift

        return less

    @staticmethod
    def any_outside(count: int) -> Callable:
        """1 in lanes with an element that is not in (low, high) nor -inf."""

        def found(x: Fragment, low: np.float32, high: np.float32) -> NDArray:
            inside = (x > np.float32(low)) & (x < np.float32(high))
            return (~(inside | (x == -np.inf))).any(axis=0).astype(np.int64)

        return found

    def largest(self, count: int) -> Callable:
        """The largest register of both; NaN is passed over."""

        def top(most: Fragment, x: Fragment) -> Fragment:
            self._flops(x.size)
            return np.fmax(most, np.fmax.reduce(x, axis=0)[None])

        return top

    def total(self, count: int) -> Callable:
        """The sum of a lane's registers."""

        def total(x: Fragment) -> Fragment:
            self._flops(x.size - WARP)
            with np.errstate(**EXPECTED):
                while len(x) > 1:
                    x = x[: len(x) // 2] + x[len(x) // 2 :]
            return x

        return total

    def across(self, kind: str) -> Callable:
        """The sum or the maximum of one register over all lanes."""
        join = {"sum": np.add, "max": np.fmax}[kind]

        def across(x: Fragment) -> Fragment:
            self._flops(5 * WARP)
            lanes = np.arange(WARP)
            with np.errstate(**EXPECTED):
                for distance in (1, 2, 4, 8, 16):
                    x = join(x, x[:, lanes ^ distance])
            return x

        return across
