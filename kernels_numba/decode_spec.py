"""What is compiled into a decode-attention kernel: sizes, format and scheme, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.splits import CLUSTERS_SINCE
from kernels_numba.tile.layout import WARP

KEYS = 16
"""Keys of a tile."""
WEIGHT_STRIDE = 20
"""Words from one row's weights of a tile to the next one's: lanes then write to different banks."""
MOST_ROWS = 16
MOST_MULTIPLIED = 4
"""Rows up to which multiply-adds on values keep up with memory; from there on tensor cores take them."""
MOST_CHAINED = 2
"""Rows up to which a warp waits for a tile's logits more than it issues instructions, so that shorter sums pay."""
RING_BYTES = 24 * 1024
"""Of keys and values that a warp keeps under way."""


@dataclass(frozen=True)
class Spec:
    """What is compiled into a kernel: sizes, format and scheme.

    ``page``: keys of a page, 0 for a contiguous cache. ``lengths``: sequences have lengths of their own.
    ``products``: values are weighed on tensor cores, with weights rounded to TF32, instead of by multiply-adds.
    ``cluster``: 2 if there are two splits, whose blocks are a cluster and write results to each other's shared memory.
    ``chains``: a logit's products are added in so many sums that do not wait for each other.
    """

    head_size: int
    group: int
    tokens: int
    dtype: str
    sync: bool = False
    capped: bool = False
    lengths: bool = False
    page: int = 0
    products: bool = False
    cluster: int = 1
    chains: int = 1
    warps: int = 4
    stages: int = 3

    @property
    def since(self) -> tuple[int, int]:
        """The compute capability from which on GPUs have its instructions."""
        return CLUSTERS_SINCE if self.cluster > 1 else (0, 0)

    @property
    def rows(self) -> int:
        """Rows of a key head: query heads of the group, for each token."""
        return self.group * self.tokens

    @property
    def row_tiles(self) -> int:
        """Units that a key head's rows are dealt to."""
        return ceil(self.rows / MOST_ROWS)

    @property
    def unit_rows(self) -> int:
        """Rows of a unit."""
        return ceil(self.rows / self.row_tiles)

    @property
    def query_tiles(self) -> int:
        """Columns of 8 queries in the product."""
        return ceil(self.unit_rows / 8)

    @property
    def padded(self) -> int:
        """Elements of a key's row in shared memory: a power of two, so that a warp's copies fill whole rows."""
        return next(n for n in (64, 128, 256) if n >= self.head_size)

    @property
    def contracted(self) -> int:
        """Elements of a key's row that are contracted."""
        return 32 * ceil(self.head_size / 32)

    @property
    def widths(self) -> tuple[int, ...]:
        """Neighbouring elements that a lane has of each block of the values' rows."""
        blocks = ceil(self.head_size / 64)
        return (4,) * (blocks // 2) + (2,) * (blocks % 2)

    @property
    def value_size(self) -> int:
        """Elements of an output row with its padding."""
        return 32 * sum(self.widths)

    @property
    def stage_words(self) -> int:
        """Words of a tile of keys and values."""
        return KEYS * self.padded

    @property
    def warp_words(self) -> int:
        """Words of a warp: its ring, where it later leaves its results, and the weights of a tile."""
        return self.ring_words + 8 * self.query_tiles * WEIGHT_STRIDE

    @property
    def ring_words(self) -> int:
        """Words of a warp's ring of stages."""
        return max(self.stages * self.stage_words, self.result_rows * (self.value_size + 2))

    @property
    def result_rows(self) -> int:
        """Rows that a warp leaves results of: tensor cores make them in eights."""
        return 8 * self.query_tiles if self.products else self.unit_rows

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: its warps', to tell them who came last, and what blocks of a cluster write here."""
        near = self.cluster * self.near_rows * (self.value_size + 4) if self.cluster > 1 else 0
        return 4 * (self.warps * self.warp_words + WARP + near)

    @property
    def near_rows(self) -> int:
        """Rows that a block of a cluster finishes, at most."""
        return ceil(self.unit_rows / self.cluster)

    @property
    def record_words(self) -> int:
        """Words of a partial result: o of every row, their m, their l."""
        return 4 * ceil(self.unit_rows * (self.value_size + 2) / 4)

    @property
    def name(self) -> str:
        """The kernel's name."""
        parts = [f"d{self.head_size}", f"g{self.group}", f"t{self.tokens}", self.dtype]
        parts += ["sync" if self.sync else "async"]
        parts += [word for word, on in (("capped", self.capped), ("lengths", self.lengths)) if on]
        parts += [f"page{self.page}"] if self.page else []
        parts += (
            [] if self.chains == (2 if self.unit_rows <= MOST_CHAINED else 1) else [f"chains{self.chains}"]
        )
        parts += [f"cluster{self.cluster}"] if self.cluster > 1 else []
        parts += [] if (self.warps, self.stages) == (4, 3) else [f"w{self.warps}x{self.stages}"]
        return "decode_attention_" + "_".join(parts)


def make_spec(
    head_size: int,
    group: int,
    tokens: int,
    dtype: str,
    *,
    warps: int = 4,
    stages: int | None = None,
    shared_limit: int = LARGEST_SHARED_BYTES,
    **settings: Any,
) -> Spec:
    """The kernel for a shape: as many stages as keep a warp's share of an SM's shared memory full."""
    padded = next(n for n in (64, 128, 256) if n >= head_size)
    depth = stages or max(3, RING_BYTES // (4 * KEYS * padded))
    spec = Spec(head_size, group, tokens, dtype, warps=warps, stages=depth, **settings)
    if "products" not in settings:
        spec = replace(spec, products=spec.unit_rows > MOST_MULTIPLIED)
    if "chains" not in settings and spec.unit_rows <= MOST_CHAINED:
        spec = replace(spec, chains=2)
    while spec.shared_bytes > shared_limit and spec.stages > 2:
        spec = replace(spec, stages=spec.stages - 1)
    return spec


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return max(1, min(3, (LARGEST_SHARED_BYTES + 1024) // (spec.shared_bytes + 1024)))
