"""What decode attention accepts: shapes, settings, and integers in host memory; errors say what came and what fits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_TOKENS = 8
MOST_GROUP = 16
HEAD_SIZES = range(64, 257, 8)
LOWEST, HIGHEST = -60.0, 40.0
"""Limits of x - phi: e^-60 and e^40 times the halves of 2^31 keys are normal float32 numbers."""
VARIANTS = ("async", "sync")
MOST_KEYS = 2**31 - 256
MOST_BATCH, MOST_HEADS = 2**16 - 1, 2**13 - 1
"""Sequences, and heads with up to eight tiles of rows each, are axes of the grid."""


def check_shapes(
    queries: Any, caches: Any, blocks: int | None
) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """Both shapes as tuples, if they fit each other."""
    q, kv = tuple(int(n) for n in queries), tuple(int(n) for n in caches)
    if len(q) != 4 or 0 in q:
        raise ValueError(f"q: expected [B, T, Hq, D], none of them 0; got shape {q}")
    layout = "[B, L, Hkv, D]" if blocks is None else "[pages, page, Hkv, D]"
    if len(kv) != 4 or 0 in kv:
        raise ValueError(f"k_cache: expected {layout}, none of them 0; got shape {kv}")
    batch, tokens, heads, size = q
    if batch > MOST_BATCH or kv[2] > MOST_HEADS:
        raise ValueError(
            f"q: expected at most {MOST_BATCH} sequences and {MOST_HEADS} key heads, got {batch} and {kv[2]}; "
            "take them in parts"
        )
    if not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(f"q: expected 1 to {MOST_TOKENS} query tokens, got {tokens} (shape {q})")
    if size not in HEAD_SIZES:
        raise ValueError(f"q: expected a head size from 64 to 256 in steps of 8, got {size}; pad with zeros")
    if kv[3] != size:
        raise ValueError(f"k_cache: expected the head size of q, {size}; got {kv[3]} (shape {kv})")
    if heads % kv[2] or heads // kv[2] > MOST_GROUP:
        raise ValueError(
            f"q: expected 1 to {MOST_GROUP} query heads for each of the {kv[2]} key heads, all the same; got {heads}"
        )
    if blocks is None and kv[0] != batch:
        raise ValueError(
            f"k_cache: expected a sequence for each of the {batch} of q, got shape {kv}; pages need a block_table"
        )
    if blocks is not None and blocks < 1:
        raise ValueError(f"block_table: expected [B, blocks] with at least one block, got {blocks}")
    keys = kv[1] * (1 if blocks is None else blocks)
    if max(keys, kv[0] * kv[1]) > MOST_KEYS:
        raise ValueError(f"k_cache: {keys} keys a sequence, or all pages, are more than {MOST_KEYS}")
    return (batch, tokens, heads, size), (kv[0], kv[1], kv[2], kv[3])


def table_columns(table: Any) -> int:
    """Columns of a block table."""
    shape = np.shape(table) if isinstance(table, list | tuple) else tuple(table.shape)
    if len(shape) != 2:
        raise ValueError(f"block_table: expected [B, blocks], got shape {shape}")
    return int(shape[1])


def check_splits(splits: Any) -> int | None:
    """A split count, or None: to be chosen."""
    if splits is not None and (isinstance(splits, bool) or int(splits) != splits or splits < 1):
        raise ValueError(f"splits: expected a whole number of parts, at least one; got {splits!r}")
    return None if splits is None else int(splits)


def fit_strides(strides: tuple[int, ...], page: int) -> bool:
    """Whether the kernel can read a cache: 16-byte pieces of heads, and pages that follow one another."""
    first, key, head, element = strides
    paged = first == page * key if page else True
    return element == 1 and min(strides) >= 0 and not (first % 8 or key % 8 or head % 8) and paged


def check_scheme(phi: Any, bounds: Any, variant: str) -> tuple[float, tuple[float, float]]:
    """Shift and bounds as numbers, checked if given; "async" needs both."""
    if variant not in VARIANTS:
        raise ValueError(f"variant: expected one of {', '.join(VARIANTS)}; got {variant!r}")
    if variant == "async" and (phi is None or bounds is None):
        raise ValueError(
            f'phi and bounds: expected for variant "async", which shifts all rows by phi; got {phi!r} and {bounds!r}; '
            'calibrate_phi finds them, variant "sync" does without'
        )
    shift = 0.0 if phi is None else positive(phi, "phi", signed=True)
    if bounds is None:
        return shift, (0.0, 0.0)
    if np.shape(bounds) != (2,):
        raise TypeError(f"bounds: expected two numbers (a, b), got {bounds!r}")
    a, b = (positive(end, "bounds", signed=True) for end in bounds)
    if not LOWEST <= a < b <= HIGHEST:
        raise ValueError(
            f"bounds: expected (a, b) with {LOWEST:g} <= a < b <= {HIGHEST:g}, which float32 exponentials hold; got "
            f'({a:g}, {b:g}); wider data have no common shift, use variant "sync"'
        )
    return shift, (a, b)


def positive(value: Any, name: str, *, signed: bool = False) -> float:
    """A finite number, positive unless ``signed``."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: expected a number, got {value!r} of type {type(value).__name__}")
    if not math.isfinite(value) or (value <= 0 and not signed):
        raise ValueError(f"{name}: expected a finite {'' if signed else 'positive '}number, got {value!r}")
    return float(value)


def _integers(x: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    from kernels_numba.arrays import adapter_of

    if isinstance(x, list | tuple):
        x = np.asarray(x)
    adapter = adapter_of(x, name)
    if adapter.index(x) is not None:
        raise ValueError(f"{name} is in GPU {adapter.index(x)} and q in host memory; move them to one place")
    host = adapter.host(x)
    if not np.issubdtype(host.dtype, np.integer):
        raise TypeError(f"{name}: expected integers, got {host.dtype}")
    if host.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {host.shape}")
    return host.astype(np.int64)


def check_host_lengths(seqlens: Any, batch: int, room: int) -> NDArray[np.int32]:
    """Lengths in host memory as words, all within the cache."""
    lengths = _integers(seqlens, "seqlens", (batch,))
    if not 0 <= lengths.min() <= lengths.max() <= room:
        raise ValueError(
            f"seqlens: expected 0 to {room}, what the cache has room for; got {lengths.min()} to {lengths.max()}"
        )
    return lengths.astype(np.int32)


def check_host_table(
    table: Any, shape: tuple[int, int], pages: int, page: int, lengths: NDArray | None
) -> NDArray[np.int32]:
    """A block table in host memory as words; pages exist wherever a sequence reaches."""
    entries = _integers(table, "block_table", shape)
    ends = np.full(shape[0], shape[1] * page) if lengths is None else lengths
    used = np.arange(shape[1]) * page < ends[:, None]
    wrong = np.argwhere(used & ((entries < 0) | (entries >= pages)))
    if wrong.size:
        b, block = (int(i) for i in wrong[0])
        raise ValueError(
            f"block_table: expected pages from 0 to {pages - 1} wherever a sequence reaches; got "
            f"{entries[b, block]} at [{b}, {block}], where sequence {b} has {ends[b]} keys"
        )
    return np.where(used, entries, 0).astype(np.int32)


def check_host_integers(seqlens: Any, table: Any, attend: Any) -> tuple[NDArray | None, NDArray | None]:
    """Lengths and block table in host memory as words, checked against the caches of a `DecodeAttention`."""
    lengths = None if seqlens is None else check_host_lengths(seqlens, attend.shape[0], attend.room)
    if (table is None) != (attend.blocks is None):
        raise ValueError("block_table: it belongs to caches in pages, as prepared with `blocks`")
    if table is None:
        return lengths, None
    shape = (attend.shape[0], attend.blocks)
    return lengths, check_host_table(table, shape, attend.cache_shape[0], attend.page, lengths)
