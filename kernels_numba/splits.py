"""How many splits decode attention takes its keys in."""

from __future__ import annotations

from math import ceil
from typing import Any


def choose_splits(units: int, room: int, spec: Any, slots: int) -> int:
    """The split count with the least predicted time for ``slots`` blocks at once."""
    tiles = ceil(room / 16)
    best, best_cost = 1, float("inf")
    for splits in range(1, min(tiles, 512) + 1):
        blocks = units * splits
        waves = ceil(blocks / slots)
        turns = ceil(ceil(tiles / splits) / spec.warps)
        cost = waves * (turns + 2.0) + (3.0 + splits / 16 if splits > 1 else 0.0)
        if cost < best_cost:
            best, best_cost = splits, cost
        if blocks > 16 * slots:
            break
    return best
