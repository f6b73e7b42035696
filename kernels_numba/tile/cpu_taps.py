"""The CPU body's operations on short filters; see `gpu_taps.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_products import fma_single
from kernels_numba.tile.layout import WARP, edge_words

Fragment = NDArray[Any]


class CpuTaps:
    """Short filters."""

    machine: Any
    half: Any

    def _float_halves(self, words: Fragment) -> NDArray[np.float32]:
        """[2 registers, 32]: the halves of registers as float32, in order."""
        halves = np.ascontiguousarray(words.T).view(self.half)
        return np.ascontiguousarray(halves.astype(np.float32).T)

    def _windows(
        self, x: Fragment, edge: Fragment, shape: tuple[int, int, int], ahead: bool
    ) -> list[NDArray[np.float32]]:
        chunks, words, taps = shape
        more, found = edge_words(taps), []
        for i in range(chunks):
            own = self._float_halves(x[i * words : (i + 1) * words])
            other = self._float_halves(edge[i * more : (i + 1) * more])
            found.append(np.concatenate([own, other] if ahead else [other[2 * more - (taps - 1) :], own]))
        return found

    def filter_taps(self, chunks: int, words: int, taps: int, *, ahead: bool) -> Callable:
        """Sums of neighbours, float32."""

        def filtered(x: Fragment, edge: Fragment, weights: Fragment) -> Fragment:
            ordered, out = weights[::-1] if ahead else weights, []
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                for window in self._windows(x, edge, (chunks, words, taps), ahead):
                    total = ordered[0] * window[: 2 * words]
                    for t in range(1, taps):
                        total = fma_single(ordered[t][None], window[t : t + 2 * words], total)
                    out.append(total)
            self.machine.counters.fp32_flops += chunks * 2 * words * (2 * taps - 1) * WARP
            return np.concatenate(out)

        return filtered

    def add_taps(self, chunks: int, words: int, taps: int) -> Callable:
        """For each tap a sum of products."""

        def added(sums: Fragment, dy: Fragment, x: Fragment, edge: Fragment) -> Fragment:
            sums = np.array(sums)
            for number, window in enumerate(self._windows(x, edge, (chunks, words, taps), False)):
                change = self._float_halves(dy[number * words : (number + 1) * words])
                for i in range(2 * words):
                    for t in range(taps):
                        sums[t] = fma_single(change[i], window[i + t], sums[t])
            self.machine.counters.fp32_flops += chunks * 2 * words * 2 * taps * WARP
            return sums

        return added

    def over_lanes(self, count: int) -> Callable:
        """Sums over the lanes, by butterfly."""

        def total(values: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 5 * values.size
            with np.errstate(invalid="ignore", over="ignore"):
                for distance in (16, 8, 4, 2, 1):
                    values = values + values[:, np.arange(WARP) ^ distance]
            return values

        return total
