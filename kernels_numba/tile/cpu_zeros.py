"""The CPU body's registers of zeros."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kernels_numba.tile.cpu_memory import Fragment


class CpuZeros:
    """Moves of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    def select_or_zero(self, picks: tuple[int, ...]) -> Callable:
        """As ``select``; -1 is a register of two zero halves."""
        chosen = np.array(picks)

        def select(fragment: Fragment) -> Fragment:
            return np.where(chosen[:, None] < 0, fragment.dtype.type(0), fragment[chosen])

        return select
