"""The CPU body's indices that are worked out once and then held."""

from __future__ import annotations

from typing import Any


class CpuHeld:
    """Indices of the vocabulary; :class:`kernels_numba.tile.cpu.CpuTile` inherits them."""

    @staticmethod
    def held(value: Any) -> Any:
        """An index that a GPU keeps in a register of its own."""
        return value
