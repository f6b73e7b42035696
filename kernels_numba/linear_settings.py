"""Settings of the kernels of linear layers for a shape, without measurements.

Figures are those that were fastest on an H200, or bandwidths of one SM of it; a dispatch table knows better where one
was measured (`linear_dispatch`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm
from typing import Any

from kernels_numba import linear_flat, linear_full, linear_group
from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.linear_product import Choice


def default_choice(
    impl: str,
    m: int,
    n: int,
    k: int,
    *,
    sm_count: int = 132,
    shared_bytes: int = LARGEST_SHARED_BYTES,
    capability: tuple[int, int] | None = None,
) -> Choice:
    """Settings of a kernel for a shape, without measurements.

    Args:
        impl: the kernel.
        m: rows of x, at least 1.
        n: rows of w.
        k: columns of both.
        sm_count: the GPU's SMs,
        shared_bytes: the shared memory that it allows a block,
        capability: and its compute capability; None: any. On 9.0 the full product runs on warpgroups.

    Raises:
        ValueError: no kernel fits in so little shared memory.
    """
    if impl == "vendor":
        return Choice("vendor")
    if impl == "full":
        on_groups = capability == linear_group.CAPABILITY
        found = _default_group(m, n, k, sm_count, shared_bytes) if on_groups else None
        return found or _default_full(m, n, k, sm_count, shared_bytes)
    if impl == "gemv":
        rows, depth = (2, 4) if m <= 2 else (4, 2)
        split = _split(-(-n // rows), k, 4 * 256 * depth, sm_count)
        return Choice.of("gemv", rows=rows, depth=depth, warps=4, blocks=6 if m == 1 else 4, split=split)
    settings = flat_tile(m, -(-n // sm_count))
    columns = -(-m // 8)
    while settings["warps"] > 1 and linear_flat.Spec("fp16", columns, **settings).shared_bytes > shared_bytes:
        settings["warps"] //= 2
    return Choice.of("flat", **settings, blocks=1, shares=sm_count, split=_split(n, k, 8 * 128, sm_count))


def flat_tile(m: int, share: int) -> dict[str, Any]:
    """Tile, batch and ring of the flat product where an SM takes ``share`` rows of w.

    x is read once for every tile, so tiles are as high as fits. Accumulators (row_tiles M / 2 registers a lane) and
    shared memory set the limit; the figures are those that were fastest on an H200.
    """
    if m <= 8:
        if share <= 32:
            return {"row_tiles": 2, "steps": 2, "stages": 2, "warps": 16}
        if 64 < share <= 96:
            return {"row_tiles": 6, "steps": 2, "stages": 2, "warps": 8}
        return {"row_tiles": 3, "steps": 4, "stages": 2, "warps": 8}
    if m <= 16:
        if share <= 32:
            return {"row_tiles": 2, "steps": 2, "stages": 2, "warps": 16}
        return {"row_tiles": 3, "steps": 4, "stages": 2, "warps": 8}
    if m <= 32:
        return {"row_tiles": 2, "steps": 4, "stages": 2, "warps": 8}
    return {"row_tiles": 2, "steps": 2, "stages": 2, "warps": 4}


def _split(parts: int, k: int, share: int, sm_count: int) -> int:
    """Blocks that share their outputs: as many as give every SM one, each of them ``share`` of K or more."""
    return max(1, min(sm_count // parts, k // share, 64))


FULL_TILES: tuple[dict[str, Any], ...] = (
    {"rows": 128, "columns": 256, "warp_rows": 64, "warp_columns": 64, "stages": 4, "blocks": 1},
    {"rows": 128, "columns": 192, "warp_rows": 64, "warp_columns": 48, "stages": 4, "blocks": 1},
    {"rows": 128, "columns": 128, "warp_rows": 64, "warp_columns": 64, "stages": 3, "blocks": 2},
    {"rows": 64, "columns": 128, "warp_rows": 32, "warp_columns": 64, "stages": 4, "blocks": 2},
    {"rows": 64, "columns": 192, "warp_rows": 32, "warp_columns": 48, "stages": 5, "blocks": 1},
    {"rows": 64, "columns": 64, "warp_rows": 32, "warp_columns": 32, "stages": 5, "blocks": 2},
    {"rows": 32, "columns": 128, "warp_rows": 32, "warp_columns": 32, "stages": 6, "blocks": 1},
)
"""Tiles of the full product, from the one with the fewest loads for its products on."""


def _default_full(m: int, n: int, k: int, sm_count: int, shared_bytes: int) -> Choice:
    """The tile, and the split of K, with the least work for the busiest SM.

    Work is counted in elements of y times K, over what of the tensor cores' rate a tile of that size reaches; a split
    adds the partial sums' way through L2, here as if K were 1024 longer for each.
    """

    def work(settings: dict[str, int], split: int) -> float:
        rows, columns = settings["rows"], settings["columns"]
        units = -(-m // rows) * -(-n // columns) * split
        rate = 1 / (1 + 24 / rows + 24 / columns)
        return -(-units // sm_count) * rows * columns * (k / split + (1024 if split > 1 else 0)) / rate

    slabs = -(-k // linear_full.SLAB)
    candidates = [
        (work(settings, split), i, split)
        for i, settings in enumerate(FULL_TILES)
        for split in (1, 2, 3, 4, 6, 8)
        if (split == 1 or split <= slabs // 4)
        and linear_full.Spec("fp16", **settings).shared_bytes <= shared_bytes
    ]
    if not candidates:
        raise ValueError(f"no tile of the full product fits in {shared_bytes} bytes of shared memory a block")
    _, place, split = min(candidates)
    tile = FULL_TILES[place]
    return Choice.of("full", **tile, shares=sm_count * tile["blocks"], split=split)


# ---- the full product on warpgroups ----------------------------------------------------------------------------
GROUP_COLUMNS = (256, 192, 160, 128, 96, 64, 32)
"""Rows of the right operand of a tile."""
MOST_COLUMNS = 256
MOST_STAGES = 16
REACH = {1: 1.0, 2: 1.0, 4: 10 / 11}
"""Blocks that split K, and how many of an H200's SMs clusters of so many fill: its parts have 16 or 18 SMs, or less."""
L2_BYTES_PER_US, ALONE_BYTES_PER_US = 68e3, 72e3
"""What an SM of an H200 gets from L2 where all ask (for much that others ask for too), and at most;"""
FLOPS_PER_US, MEMORY_BYTES_PER_US, MEMORY_REACH = 6.0e6, 34.5e3, 1.4
"""from its tensor cores; and its share of device memory, of which a block can ask for so much more;"""
ROUGH_ORDER = 4
"""Of the norm that adds up what hides each other."""
LATENCY_US, SLAB_US, WORD_ROW_US = 1.5, 0.15, 5.5e-3
"""how long a slab is on its way when all SMs ask, the least that it takes, and for a row that is copied by words;"""
MEETING_US, SUMS_BYTES_PER_US = 1.3, 25e3
"""how long blocks that share a tile take to meet, and how fast they exchange sums;"""
STREAM_START_US, FEW_ROWS = 0.8, 128
"""and how much later the copy engine begins than copies by warps, which counts for so many rows of x or less."""
SMALL_COPY, COPY_RATIO = 2**20, 5
"""Elements whose copy costs no more than the launch that another copy takes; and rows of w whose copy costs as much as
that of a row of x, twice where K is odd."""


def group_candidates(
    m: int, n: int, k: int, sm_count: int, shared_bytes: int
) -> Iterator[tuple[float, Choice]]:
    """Settings of the full product on warpgroups that fit, each with a rough time in microseconds.

    Tiles are one or two warpgroups' rows of x by ``columns`` rows of w; or, turned, one or two warpgroups' rows of w by
    all rows of x (at most 256). Of w a tile may have fewer rows than it has room for, so that every SM gets the same.
    The copy engine brings operands or, for few rows of x, warps: they begin sooner, and read rows of w that begin
    anywhere.
    """
    slabs = -(-k // linear_full.SLAB)
    moved = 2 * (n * k + m * k + m * n) / MEMORY_BYTES_PER_US
    for streamed in _families(m, n, k):
        start_us = STREAM_START_US * streamed
        used = 1 if streamed else 2  # slabs in use, and two barriers of 8 bytes for each stage
        for turned, groups, columns, pitch, split in _group_tiles(m, n, slabs, sm_count, streamed=streamed):
            rows = linear_group.GROUP_ROWS * groups
            stages = min(MOST_STAGES, shared_bytes // ((rows + columns) * 2 * linear_full.SLAB + 16))
            if stages <= used + 2 * (split > 1):  # sums leave through shared memory too
                continue
            tiles = -(-m // (columns if turned else rows)) * -(-n // pitch)
            active = min(tiles * split, sm_count)
            loaded = (min(m, columns if turned else rows) + pitch) * 2 * linear_full.SLAB
            slab_us = max(
                loaded / min(ALONE_BYTES_PER_US, L2_BYTES_PER_US * sm_count / active),
                LATENCY_US / (stages - used),
                2 * linear_full.SLAB * rows * columns / FLOPS_PER_US,
                SLAB_US,
                0.0 if streamed or k % 8 == 0 else WORD_ROW_US * (rows if turned else columns),
            )
            turns = -(-tiles // int(sm_count * REACH[split] / split))
            parts = (turns * slabs / split * slab_us, moved / min(sm_count, MEMORY_REACH * active))
            time_us = start_us + sum(part**ROUGH_ORDER for part in parts) ** (1 / ROUGH_ORDER)
            if split > 1:
                time_us += MEETING_US + 4 * rows * columns / SUMS_BYTES_PER_US
            settings = {"stream": 1} if streamed else {}
            settings |= {"groups": groups, "columns": columns, "stages": stages}
            if turned:
                settings["turned"] = 1
            if pitch != (rows if turned else columns):
                settings["pitch"] = pitch
            yield time_us, Choice.of("full", **settings, blocks=1, shares=sm_count, split=split)


def _families(m: int, n: int, k: int) -> tuple[bool, ...]:
    """Whether the copy engine brings operands, or warps: both may be the faster where there are few rows of x."""
    if k % 8 == 0:
        return (False, True) if m <= FEW_ROWS else (True,)
    copies = m * k * (1 + k % 2)
    return (copies > SMALL_COPY and COPY_RATIO * copies > n * k,)


def _group_tiles(
    m: int, n: int, slabs: int, sm_count: int, *, streamed: bool
) -> Iterator[tuple[int, int, int, int, int]]:
    """Whether turned, warpgroups, columns, rows of w of a tile, and the split of K."""
    for split in (split for split in REACH if split == 1 or split <= slabs // 4):
        slots = int(sm_count * REACH[split]) // split
        if not slots:
            continue
        for groups in (1, 2):
            rows = linear_group.GROUP_ROWS * groups
            # Copies by warps are of so many rows at once; blocks that split K store equal parts of the columns.
            unit = lcm(8 * split, 1 if streamed else 16 * groups)
            # Turned: all rows of x, and as many of w as give every SM the same.
            share = -(-n // slots)
            pitch = _even(-(-share // -(-share // rows)))
            columns = -(-m // unit) * unit
            if columns <= MOST_COLUMNS and (groups == 1 or 2 * pitch > rows):
                yield 1, groups, columns, pitch, split
            if (groups == 1) != (m <= linear_group.GROUP_ROWS):
                continue
            for columns in GROUP_COLUMNS:
                if columns % unit == 0:
                    yield 0, groups, columns, columns, split
            # The same number of tiles for every SM, of which not all columns are used.
            x_tiles = -(-m // rows)
            for turns in (1, 2, 3):
                w_tiles = slots * turns // x_tiles
                pitch = _even(-(-n // w_tiles)) if w_tiles else n
                columns = -(-pitch // unit) * unit
                if columns <= MOST_COLUMNS:
                    yield 0, groups, columns, pitch, split


def _even(rows: int) -> int:
    return rows + rows % 2


def _default_group(m: int, n: int, k: int, sm_count: int, shared_bytes: int) -> Choice | None:
    """The candidate with the least time, None where none fits."""
    found = sorted(
        group_candidates(m, n, k, sm_count, shared_bytes), key=lambda pair: (pair[0], str(pair[1]))
    )
    return found[0][1] if found else None
