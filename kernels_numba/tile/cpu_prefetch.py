"""The CPU body's hints to the memory system, which it checks and has no use for."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Buffer


class CpuPrefetch:
    """Hints of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    @staticmethod
    def prefetch(source: Buffer, offset: Any, valid: Any) -> None:
        """Name lines that will be read: in bounds, or it is an error. Nothing is moved or counted."""
        offsets = np.broadcast_to(np.asarray(offset, np.int64), (WARP,))
        source.check(offsets[np.broadcast_to(np.asarray(valid, bool), (WARP,))], 1)
