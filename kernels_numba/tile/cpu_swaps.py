"""The CPU body's moves whose pattern differs between lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels_numba.tile.cpu_memory import Fragment
from kernels_numba.tile.layout import WARP


class CpuSwaps:
    """Moves of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    def pair_halves_swapped(self, spec: tuple[tuple[int, int, int], ...]) -> Callable:
        """As ``pair_halves``, but the other half in lanes whose ``swap`` is 1."""
        low, high, half = (np.array(x) for x in zip(*spec, strict=True))

        def paired(fragment: Fragment, swap: Any) -> Fragment:
            halves = np.ascontiguousarray(fragment).view(np.int16).reshape(*fragment.shape, 2)
            lanes = np.arange(WARP)
            which = half[:, None] ^ np.broadcast_to(np.asarray(swap, np.intp), (WARP,))
            both = np.stack([halves[i[:, None], lanes, which] for i in (low, high)], axis=-1)
            return np.ascontiguousarray(both).view(np.int32)[..., 0]

        return paired
