"""Key/value caches, contiguous or paged, opened one sequence at a time.

    contiguous   caches [B, L, Hkv, D]; sequence b is the first ``seqlens[b]`` of the L keys
    paged        caches [pages, page, Hkv, D], block_table [B, blocks]: key j of sequence b lies in page
                 ``block_table[b, j // page]`` at place ``j % page``; L = blocks * page

Nothing past the length of a sequence is read: not keys, not values, not the entries of its block table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import widen_real

__all__ = ["Caches", "open_caches"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Caches:
    """Checked caches; ``lengths [B]`` and, if paged, the block table."""

    keys: Array
    values: Array
    lengths: Array
    table: Array | None

    def sequence(self, b: int) -> tuple[Array, Array]:
        """Return keys and values ``[n, Hkv, D]`` of one sequence in float64."""
        n = int(self.lengths[b])
        read = []
        for name, cache in (("k_cache", self.keys), ("v_cache", self.values)):
            if self.table is not None:
                page = cache.shape[1]
                cache = cache[self.table[b, : -(-n // page)]].reshape(-1, *cache.shape[2:])
            else:
                cache = cache[b]
            read.append(widen_real(cache[:n], name))
        return read[0], read[1]


def open_caches(
    q: Array, k_cache: ArrayLike, v_cache: ArrayLike, seqlens: ArrayLike | None, block_table: ArrayLike | None
) -> Caches:
    """Check the caches against ``q [B, T, Hq, D]``, and the lengths and the table against them; or raise."""
    keys, values = np.asarray(k_cache), np.asarray(v_cache)
    kind = "[B, L, Hkv, D]" if block_table is None else "[pages, page, Hkv, D]"
    for name, cache in (("k_cache", keys), ("v_cache", values)):
        widen_real(cache[:0] if cache.ndim else cache, name)  # its dtype, even if no sequence is read
        if cache.ndim != 4 or 0 in cache.shape[2:]:
            raise ValueError(f"{name} must be {kind} with Hkv and D at least 1; got shape {cache.shape}.")
    if values.shape != keys.shape:
        raise ValueError(f"v_cache must have the shape of k_cache, {keys.shape}; got {values.shape}.")
    batch, _, heads, size = q.shape
    if keys.shape[3] != size:
        raise ValueError(f"k_cache must have the head size of q, D={size}; got shape {keys.shape}.")
    if heads % keys.shape[2]:
        raise ValueError(
            f"q must have a multiple of the {keys.shape[2]} key heads of k_cache, a group of query heads for "
            f"each; got Hq={heads}."
        )
    if block_table is None:
        if len(keys) != batch:
            raise ValueError(
                f"k_cache must hold a sequence for each of the B={batch} of q; got shape {keys.shape}. "
                f"Caches in pages need a block_table."
            )
        return Caches(keys, values, _lengths(seqlens, batch, keys.shape[1]), None)
    table = _integers(block_table, "block_table", "[B, blocks], numbers of pages")
    if table.ndim != 2 or len(table) != batch:
        raise ValueError(
            f"block_table must be [B, blocks] with B={batch}, as q has; got shape {table.shape}."
        )
    pages, page = keys.shape[:2]
    if page == 0:
        raise ValueError(f"k_cache must have pages of at least one key; got shape {keys.shape}.")
    lengths = _lengths(seqlens, batch, table.shape[1] * page)
    used = np.arange(table.shape[1]) * page < lengths[:, None]
    wrong = np.argwhere(used & ((table < 0) | (table >= pages)))
    if wrong.size:
        b, block = (int(i) for i in wrong[0])
        raise ValueError(
            f"block_table must hold pages from 0 to {pages - 1} wherever a sequence reaches; got "
            f"{table[b, block]} at [{b}, {block}], where sequence {b} has {lengths[b]} keys."
        )
    return Caches(keys, values, lengths, table)


def _lengths(seqlens: ArrayLike | None, batch: int, room: int) -> Array:
    if seqlens is None:
        return np.full(batch, room)
    lengths = _integers(seqlens, "seqlens", "[B], keys of each sequence")
    if lengths.shape != (batch,):
        raise ValueError(f"seqlens must be [B] with B={batch}, as q has; got shape {lengths.shape}.")
    if lengths.size and not 0 <= lengths.min() <= lengths.max() <= room:
        raise ValueError(
            f"seqlens must lie between 0 and {room}, the keys that the cache has room for; got "
            f"{lengths.min()} to {lengths.max()}."
        )
    return lengths


def _integers(x: ArrayLike, name: str, meaning: str) -> Array:
    array = np.asarray(x)
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name} must be integers ({meaning}); got {array.dtype}.")
    return array.astype(np.int64)
