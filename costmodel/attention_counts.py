"""What the decode-attention kernel does, in closed form: every counter of its CPU body, exactly.

For queries [B, T, Hq, D] over caches of n keys each, Hkv heads, taken in ``splits`` parts by blocks of ``warps`` warps,
with no row out of range. Names are the counters' (`kernels_numba.tile.counters`), with ``read_`` and ``written_``
before those of a buffer. The kernel's shape is repeated here rather than imported: the model stands without kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

KEYS = 16
WARP = 32
MOST_ROWS = 16
MOST_MULTIPLIED = 4
MOST_CHAINED = 2


@dataclass(frozen=True)
class Shape:
    """What follows from head size, group and tokens; see ``kernels_numba.decode_spec``."""

    head_size: int
    group: int
    tokens: int = 1

    @property
    def rows(self) -> int:
        """Rows of a key head."""
        return self.group * self.tokens

    @property
    def row_tiles(self) -> int:
        """Units that they are dealt to."""
        return ceil(self.rows / MOST_ROWS)

    @property
    def unit_rows(self) -> int:
        """Rows of a unit."""
        return ceil(self.rows / self.row_tiles)

    @property
    def query_tiles(self) -> int:
        """Columns of eight queries."""
        return ceil(self.unit_rows / 8)

    @property
    def products(self) -> bool:
        """Whether values are weighed on tensor cores."""
        return self.unit_rows > MOST_MULTIPLIED

    @property
    def padded(self) -> int:
        """Elements of a key's row in shared memory."""
        return next(n for n in (64, 128, 256) if n >= self.head_size)

    @property
    def size(self) -> int:
        """Elements of an output row with padding."""
        return 64 * ceil(self.head_size / 64)


def totals(
    head_size: int,
    group: int,
    tokens: int,
    *,
    batch: int,
    kv_heads: int,
    length: int,
    splits: int,
    warps: int = 4,
    capped: bool = False,
    lengths: bool = False,
    cluster: int = 1,
) -> dict[str, int]:
    """All counters of one launch of the "async" kernel on contiguous caches.

    ``cluster``: above 1, that is the number of splits, whose blocks write results to each other's shared memory.
    """
    shape = Shape(head_size, group, tokens)
    r, nt, size, blocks64 = shape.unit_rows, shape.query_tiles, shape.size, shape.size // 64
    result_rows = 8 * nt if shape.products else r
    units = batch * kv_heads * shape.row_tiles
    blocks = units * splits
    all_warps = blocks * warps
    tiles = ceil(length / KEYS)
    # With several tokens, the last tiles hold keys that some of them do not see.
    hidden = tiles - max(0, (length - tokens + 1) // KEYS) if tokens > 1 else 0
    plain = tiles - hidden
    joined = int(splits > 1)
    elsewhere, near = (0, joined) if cluster > 1 else (joined, 0)  # where splits leave their results
    queries = batch * kv_heads * shape.rows
    logits = 4 * nt * WARP

    # A tile: bytes read from shared memory, what its weights take, and operations.
    chunks = ceil(head_size / 32)
    keys_read = 2 * chunks * 512
    if shape.products:
        fast_read, careful_read = 2 * (256 * nt + 1024 * blocks64), 4 * (2 * nt * 512 + 4 * blocks64 * 512)
        fast_flops, careful_flops = 0, 2 * KEYS * 16 * nt * blocks64 * WARP
        fast_conflicts = 0
    else:
        fast_read = careful_read = 4 * r * 512 + 2 * KEYS * size
        fast_flops = careful_flops = 2 * r * KEYS * size
        fast_conflicts = 3 * 4 * r
    # Weights that all lanes (or the eight of a query) read are few words in many passes.
    careful_conflicts = 3 * (8 * nt + 16 * blocks64) if shape.products else fast_conflicts
    # Its two sums where there are few rows, scaled, shifted, e^x, added; tanh by an exponential.
    per_logit = (5 if r <= MOST_CHAINED else 4) + (7 if capped else 0)

    join_read = r * warps * (4 * size + 256)
    left = result_rows * size * 4
    shared_read = (
        units * (tiles * keys_read + plain * fast_read + hidden * careful_read)
        + blocks * join_read
        + elsewhere * all_warps * 128
        + near * blocks * r * (4 * size + 256)
    )
    weights = units * tiles * 4 * nt * 128
    sums = all_warps * left
    numbers = all_warps * 2 * 4 * r
    told = elsewhere * blocks * 128 + near * blocks * r * 4 * size  # rows given to the other block among them
    near_numbers = near * blocks * r * 2
    wavefront_conflicts = all_warps * 12 * 4 * nt * blocks64 if shape.products else 0
    narrow = units * (plain * fast_conflicts + hidden * careful_conflicts)
    number_stores = all_warps * 2 + near_numbers
    # Joined: the parts of a block's warps, then those of the splits, as many at once as a block has warps.
    joins = blocks * r + elsewhere * units * r * ceil(splits / warps)
    found = {
        "read_q": 2 * queries * head_size * splits * warps,
        "read_k": 2 * units * length * head_size,
        "read_v": 2 * units * length * head_size,
        "read_lengths": 4 * all_warps * int(lengths),
        "read_partials": elsewhere * blocks * r * (4 * size + 256),
        "written_out": 2 * queries * head_size,
        "written_partials": elsewhere * blocks * r * (4 * size + 8),
        "shared_read_bytes": shared_read,
        "shared_written_bytes": units * tiles * 64 * shape.padded
        + weights
        + sums
        + numbers
        + told
        + 4 * near_numbers,
        "shared_wavefronts": (shared_read + weights + sums + told) // 128
        + wavefront_conflicts
        + number_stores,
        "bank_conflicts": narrow + wavefront_conflicts,
        "mma_m16n8k16": units * tiles * nt * 2 * chunks,
        "mma_m16n8k8": units * plain * 8 * nt * blocks64 if shape.products else 0,
        "fp32_flops": units * (tiles * logits * per_logit + plain * fast_flops + hidden * careful_flops)
        + all_warps * 6 * nt * WARP
        + joins * (4 * WARP * (warps + 1) + size * (1 + 2 * warps))
        + near * units * r * (4 * WARP * (cluster + 1) + size * (1 + 2 * cluster))
        + 2 * queries * size,
        "exponentials": units * tiles * logits * (2 if capped else 1)
        + joins * WARP * (warps + 1)
        + near * units * r * WARP * (cluster + 1),
        "barriers": blocks * (1 + 2 * elsewhere) + 2 * near * units,
        "atomics": elsewhere * blocks,
        "blocks": blocks,
        "warps": all_warps,
    }
    return {name: count for name, count in found.items() if count}
