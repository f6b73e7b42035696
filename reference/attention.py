"""Decode attention in float64: a few new query tokens over a cache of keys and values.

With ``q [B, T, Hq, D]``, caches ``[B, L, Hkv, D]``, n = ``seqlens[b]`` keys in sequence b, whose last T belong
to the query tokens, and head h of the queries in group ``h // (Hq / Hkv)`` of the keys:

    s_j = scale * q[b, t, h] . k[b, j, group]                    logits
    x_j = softcap * tanh(s_j / softcap)                          if there is a soft cap
    y[b, t, h] = sum_j softmax(x)_j v[b, j, group]               over j <= n - T + t: the causal mask

The mask comes after the soft cap, which would turn -inf into -softcap. Keys that a token does not see do not
exist for it: even a NaN among them, or in the cache past n, changes nothing. A token that sees none (n = 0,
or t < T - n) gets zeros, and so does one whose logits are all -inf. With one query token the mask hides nothing.

The softmax is `reference.softmax` in the variant asked for, with phi and bounds meant for x, after scale and cap.
In exact arithmetic variants and splits make no difference, since sum_j w_j v_j is linear in the weights.
Infinities and NaN propagate: in a query, or a key that a token sees, by its logits (NaN or +inf: all of
y[b, t, h] is NaN; -inf: weight 0); in a value, to the same place of y.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import finite, widen_real
from ._caches import open_caches
from .softmax import check_scheme, overflow_flags, softmax

__all__ = ["attention_flags", "decode_attention"]

Array = NDArray[np.float64]


def decode_attention(
    q: ArrayLike,
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    *,
    phi: float | None = None,
    bounds: tuple[float, float] | None = None,
    seqlens: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    splits: int | None = None,
    variant: str = "async",
) -> Array:
    """Return the attention of ``q [B, T, Hq, D]`` over the caches, ``[B, T, Hq, D]`` in float64.

    Args:
        q: the last T tokens of each sequence, any real dtype up to double; any T (kernels take 1 to 8).
        k_cache: keys ``[B, L, Hkv, D]``, Hq a multiple of Hkv; ``[pages, page, Hkv, D]`` with a block table.
        v_cache: values, shape of ``k_cache``.
        phi: the shift of variant "async"; checked and not used by the others.
        bounds: (a, b), open: see `reference.softmax`.
        seqlens: keys of each sequence ``[B]``, the query tokens' own among them; None: all that there is
            room for. 0 is fine.
        block_table: ``[B, blocks]`` integers, which pages hold a sequence; entries past its end are not read.
        scale: of the logits; None: 1 / sqrt(D).
        softcap: bound on the size of logits, positive; None: no cap.
        splits: how many parts the keys that a token sees are taken in (1).
        variant: "async", "sync" or "plain".

    Raises:
        TypeError: a dtype that is not accepted, or something that is no number.
        ValueError: shapes, lengths, pages or settings that do not fit.
    """
    check_scheme(phi, bounds, splits, variant)
    rows = _rows(q, k_cache, v_cache, seqlens, block_table, scale, softcap)
    y = np.zeros(np.shape(q))
    for b, t, x, values in rows:
        weights = softmax(x, phi=phi, bounds=bounds, splits=splits, variant=variant)
        with np.errstate(invalid="ignore", over="ignore"):
            found = (weights @ values.transpose(1, 0, 2)).reshape(y.shape[2:])
        seen = np.any(weights != 0, axis=-1).reshape(-1, 1)  # else even an infinite value has no part in it
        y[b, t] = np.where(seen, found, 0.0)
    return y


def attention_flags(
    q: ArrayLike,
    k_cache: ArrayLike,
    *,
    phi: float,
    bounds: tuple[float, float],
    seqlens: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> NDArray[np.bool_]:
    """Return ``[B, T, Hq]``: True where "async" must recompute, because phi does not serve a logit in sight."""
    check_scheme(phi, bounds, None, "async")
    rows = _rows(q, k_cache, k_cache, seqlens, block_table, scale, softcap)
    flags = np.zeros(np.shape(q)[:3], bool)
    for b, t, x, _ in rows:
        flags[b, t] = overflow_flags(x, phi=phi, bounds=bounds).reshape(-1)
    return flags


def _rows(
    q: ArrayLike,
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    seqlens: ArrayLike | None,
    block_table: ArrayLike | None,
    scale: float | None,
    softcap: float | None,
) -> Iterator[tuple[int, int, Array, Array]]:
    """Check everything; then give, for each token, ``(b, t, logits [Hkv, G, seen], values [seen, Hkv, D])``."""
    queries = widen_real(q, "q")
    if queries.ndim != 4 or 0 in queries.shape[1:]:
        raise ValueError(f"q must be [B, T, Hq, D] with T, Hq and D at least 1; got shape {queries.shape}.")
    caches = open_caches(queries, k_cache, v_cache, seqlens, block_table)
    batch, tokens, heads, size = queries.shape
    kv = caches.keys.shape[2]
    factor = 1 / math.sqrt(size) if scale is None else finite(scale, "scale", "of the logits")
    cap = None if softcap is None else finite(softcap, "softcap", "largest size of a logit; None for no cap")
    if cap is not None and cap <= 0:
        raise ValueError(f"softcap must be positive, or None for no cap; got {softcap!r}.")

    def generate() -> Iterator[tuple[int, int, Array, Array]]:
        for b, group in enumerate(queries.reshape(batch, tokens, kv, heads // kv, size)):
            keys, values = caches.sequence(b)
            for t in range(tokens):
                seen = max(len(keys) - tokens + t + 1, 0)
                with np.errstate(invalid="ignore", over="ignore"):
                    x = factor * (group[t] @ keys[:seen].transpose(1, 2, 0))
                    x = x if cap is None else cap * np.tanh(x / cap)
                yield b, t, x, values[:seen]

    return generate()
