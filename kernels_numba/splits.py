"""How many splits decode attention takes its keys in: the count with the least predicted time.

The prediction is that of `costmodel.decode_attention`, which explains it and holds it against measurements; here are
its terms with the figures of an H200, as a rule that needs no GPU file.
"""

from __future__ import annotations

from math import ceil
from typing import Any

MEMORY_BYTES_PER_US = 4.69e6
SM_SHARE, SM_SHARE_PER_ROW = 0.553, 0.0212
NORM = 5.08
UNFAIR = 0.02
WAVE_US, REDUCTION_US, SPLIT_US, CLUSTER_US = 1.24, 0.84, 0.15, 0.53
MOST_SPLITS = 512
CLUSTERS_SINCE = (9, 0)


def clustered(splits: int, capability: tuple[int, int] | None) -> bool:
    """Whether the splits of a unit are a cluster of two blocks on GPUs of a compute capability."""
    return splits == 2 and capability is not None and capability >= CLUSTERS_SINCE


def predicted_us(
    units: int,
    tiles: int,
    splits: int,
    spec: Any,
    sm_count: int,
    blocks_per_sm: int,
    capability: tuple[int, int] | None = CLUSTERS_SINCE,
) -> float:
    """Microseconds beyond the launch, for ``units`` of ``tiles`` tiles of 16 keys each."""
    blocks, per_block = units * splits, ceil(tiles / splits)
    memory = units * tiles * 64 * spec.head_size / spec.row_tiles / MEMORY_BYTES_PER_US
    # The SM with the most blocks has so many tiles, and takes its own time for them.
    share = SM_SHARE + SM_SHARE_PER_ROW * spec.unit_rows
    busiest = ceil(blocks / sm_count) * per_block * sm_count / (units * tiles) * share * spec.row_tiles
    waves = ceil(blocks / (sm_count * blocks_per_sm))
    work = memory * (1 + busiest**NORM) ** (1 / NORM)
    work += UNFAIR * memory / waves + WAVE_US * (waves - 1)
    if clustered(splits, capability):
        return work + CLUSTER_US
    return work + (REDUCTION_US + SPLIT_US * splits if splits > 1 else 0.0)


def choose_splits(
    units: int,
    room: int,
    spec: Any,
    sm_count: int,
    blocks_per_sm: int,
    capability: tuple[int, int] | None = CLUSTERS_SINCE,
) -> int:
    """The split count with the least predicted time; the fewest of several."""
    tiles = ceil(room / 16)
    most = min(tiles, MOST_SPLITS, max(1, 8 * sm_count * blocks_per_sm // units))
    gpu = (spec, sm_count, blocks_per_sm, capability)
    times = {s: predicted_us(units, tiles, s, *gpu) for s in range(1, most + 1)}
    return min(times, key=lambda s: (times[s], s))
