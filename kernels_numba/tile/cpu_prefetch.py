"""The CPU body's hints to the memory system, which it checks and has no use for."""

from __future__ import annotations

from typing import Any

from kernels_numba.tile.cpu_memory import _lanes, _mask
from kernels_numba.tile.machine import Buffer


class CpuPrefetch:
    """Hints of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    @staticmethod
    def prefetch(source: Buffer, offset: Any, valid: Any) -> None:
        """Name lines that will be read: in bounds, or it is an error. Nothing is moved or counted."""
        source.check(_lanes(offset)[_mask(valid)], 1)
