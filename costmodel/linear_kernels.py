"""What the model knows of the kernels of linear layers, the same on every GPU; fitted to sweeps on one H200."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OVERLAP_ORDER = {"gemv": 12, "flat": 4, "full": 3, "group": 3.5, "stream": 3.4}
"""Of the norm that adds up the terms of a time; infinity would be the largest alone, 1 the sum."""


@dataclass(frozen=True)
class OnGroups:
    """Properties of a full product on warpgroups, the same on every GPU."""

    start_s: float
    """What a launch takes beside its work,"""
    hidden_s: float
    """how much of it is hidden where launches overlap,"""
    latency_s: float
    """what a slab takes from memory to its use, during which several are under way,"""
    slab_s: float
    """what it takes at least,"""
    word_row_s: float
    """and for each row of w that is copied by words;"""
    exchange_bytes_per_s: float
    """how fast an SM takes the sums of the blocks that share its tile,"""
    reach: float
    """how much of its share of memory's rate it can take, if others take less,"""
    cache: float
    """and what it gets from L2, over what copies by warps get."""


ON_GROUPS = {
    "group": OnGroups(3.72e-6, 1.34e-6, 1.32e-6, 0.061e-6, 5.5e-9, 38e9, 1.65, 1.0),
    "stream": OnGroups(4.35e-6, 1.94e-6, 0.0, 0.089e-6, 0.0, 19e9, 8.0, 1.3),
}
"""Copied by warps, and by the copy engine."""


@dataclass(frozen=True)
class Kernel:
    """Properties of the kernels, the same on every GPU: seconds, and lane instructions."""

    hidden_s: tuple[float, float, float] = (0.5e-6, 2.0e-6, 1.2e-6)
    """How much of each start is hidden where launches overlap."""
    vector_fraction: float = 0.75
    """Of the CUDA cores' rate."""
    full_cache_fraction: float = 0.63
    """Of the 64 bytes for each SM and clock that L2 could deliver: lambda_u."""
    full_reach: float = 1.4
    """Blocks of the full product on fewer SMs than 1 / 1.4 of all leave memory idle."""
    tile_loss: float = 16.0
    """A tile of r x c reaches 1 / (1 + loss / r + loss / c) of the rate of products."""
    flat_cache_factor: float = 1.7
    """Of L2's rate, where the flat product reads: much of x comes from the first-level cache."""
    group_cache_fraction: float = 0.95
    """Of L2's rate, where warps copy for warpgroups."""
    realign_s: float = 2.5e-6
    """What a launch takes that copies an operand to where its rows begin on 16 bytes,"""
    realign_share: float = 0.15
    """and of memory's rate how much copies of x for each place within 16 bytes reach, half by half."""
    error: float = 0.10
    """Relative standard deviation of what is left."""


KERNEL = Kernel()


def kind_of(choice: Any) -> str:
    """Whose properties a choice has: there are three full products."""
    if choice.impl == "full" and "groups" in choice.options:
        return "stream" if "stream" in choice.options else "group"
    return str(choice.impl)
