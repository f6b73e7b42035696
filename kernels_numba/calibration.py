"""Find the shift of the asynchronised softmax in a sample of logits; `calibrate.py` is the command for it.

A row may use phi if all its logits lie in (phi + a, phi + b); one that does not is computed again, so phi, a and b are
worth choosing from data. Float32 exponentials hold a = -60 to b = 40, 100 in all, and cost next to no accuracy
there (`reference.accuracy`), so the interval is the part of the sample that `coverage` asks for, and then as much room
on both sides as that leaves. Where the part itself is wider than 100 (OPT-6.7B: -496.8 to 363.5 in the paper), or too
many rows would fall back even so, the technique should stay off: use variant "sync".

The rate of fallback is that of rows which had no part in choosing: every second row chooses, the others are counted.
Its 95 % interval is Wilson's (1927).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.attention_checks import HIGHEST, LOWEST

MOST_FALLBACK = 0.05
"""Share of rows that may fall back: those go on as in variant "sync", so beyond a few the shift serves no purpose."""
NORMAL_95 = 1.959963984540054


@dataclass(frozen=True)
class Calibration:
    """What a sample says. ``phi`` and ``bounds`` are for `softmax` and `decode_attention`; None where it stays off."""

    usable: bool
    reason: str
    phi: float | None
    bounds: tuple[float, float] | None
    logit_range: tuple[float, float]
    """The part of the sample's logits that ``coverage`` asks for."""
    fallback_rate: float
    """Share of rows that would be recomputed, among those that had no part in choosing."""
    fallback_interval: tuple[float, float]
    """95 % confidence interval of that share."""
    rows: int
    """How many rows were counted."""

    def __str__(self) -> str:
        low, high = self.logit_range
        rate = f"{self.fallback_rate:.3%} of {self.rows} rows (95 %: {self.fallback_interval[0]:.3%} to "
        rate += f"{self.fallback_interval[1]:.3%})"
        if not self.usable:
            return (
                f"leave it off (variant sync): {self.reason}\nlogits {low:.4g} to {high:.4g}; fallback {rate}"
            )
        assert self.bounds is not None
        return (
            f"phi = {self.phi:.6g}, bounds = ({self.bounds[0]:.6g}, {self.bounds[1]:.6g})\n"
            f"logits {low:.4g} to {high:.4g}; fallback {rate}"
        )


def calibrate_phi(
    logits: Any = None,
    *,
    q: Any = None,
    k: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    coverage: float = 0.9999,
    most_fallback: float = MOST_FALLBACK,
    tight: bool = False,
) -> Calibration:
    """Choose phi and (a, b) from logits, or from queries and keys.

    Args:
        logits: x [..., keys], rows of what the softmax gets (after scale and cap); at least two rows. -inf is absent.
        q: instead of logits, queries [B, T, Hq, D] ...
        k: ... and keys [B, L, Hkv, D], of NumPy.
        scale: of the logits of q and k; None: 1 / sqrt(D).
        softcap: of the logits of q and k.
        coverage: the share of logits that must lie inside.
        most_fallback: the share of rows that may fall back; above it the technique stays off.
        tight: keep a and b at the range found, without the room that float32 leaves.

    Raises:
        TypeError: neither or both of logits and q, k.
        ValueError: too little data, or settings out of range.
    """
    if (logits is None) == (q is None or k is None):
        raise TypeError("logits: expected logits, or q and k; give one of the two")
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage: expected a share in (0, 1], got {coverage}")
    if not 0 <= most_fallback <= 1:
        raise ValueError(f"most_fallback: expected a share in [0, 1], got {most_fallback}")
    x = (
        np.asarray(logits, np.float64)
        if logits is not None
        else logits_of(q, k, scale=scale, softcap=softcap)
    )
    if x.ndim < 2 or x.size == 0:
        raise ValueError(f"logits: expected rows [..., keys], got shape {x.shape}; reshape a flat sample")
    x = x.reshape(-1, x.shape[-1])
    x = x[~np.all(x == -np.inf, axis=1)]
    if len(x) < 2:
        raise ValueError(f"logits: expected at least two rows with a key in sight, got {len(x)}")
    choose, held = x[::2], x[1::2]
    seen = choose[choose > -np.inf]  # a NaN is not
    seen = seen[np.isfinite(seen)]
    if seen.size == 0:
        raise ValueError("logits: expected finite numbers in the rows that choose, found none")
    tail = (1 - coverage) / 2
    low, high = (float(v) for v in np.quantile(seen, [tail, 1 - tail], method="closest_observation"))
    # The interval is open, so a range that ends where data do needs a little more.
    margin = 0.01 * max(high - low, 1.0)
    room = HIGHEST - LOWEST
    if high - low + 2 * margin > room:
        span = f"{coverage:.4%} of the logits span {high - low:.4g}"
        reason = f"{span}, more than the {room:g} that float32 exponentials hold"
        # As good an interval as there is, to say how many rows it would lose.
        rate, interval = fallback(held, (low + high - room) / 2 - LOWEST, (LOWEST, HIGHEST))
        return Calibration(False, reason, None, None, (low, high), rate, interval, len(held))
    # phi such that both ends are as far from the limits.
    phi = (low + high) / 2 - (LOWEST + HIGHEST) / 2
    bounds = (low - margin - phi, high + margin - phi) if tight else (LOWEST, HIGHEST)
    if tight:  # any shift serves; the middle keeps the exponentials small on both sides
        phi, bounds = (low + high) / 2, ((low - high) / 2 - margin, (high - low) / 2 + margin)
    rate, interval = fallback(held, phi, bounds)
    if interval[0] > most_fallback:
        reason = f"{rate:.3%} of the rows leave the range all the same, more than {most_fallback:.3%}"
        return Calibration(False, reason, None, None, (low, high), rate, interval, len(held))
    return Calibration(True, "", phi, bounds, (low, high), rate, interval, len(held))


def logits_of(
    q: Any, k: Any, *, scale: float | None = None, softcap: float | None = None
) -> NDArray[np.float64]:
    """Logits ``[B, T, Hq, L]`` of queries [B, T, Hq, D] and keys [B, L, Hkv, D], as decode attention makes them."""
    queries, keys = np.asarray(q).astype(np.float64), np.asarray(k).astype(np.float64)
    if queries.ndim != 4 or keys.ndim != 4 or queries.shape[3] != keys.shape[3] or len(queries) != len(keys):
        raise ValueError(
            f"q and k: expected [B, T, Hq, D] and [B, L, Hkv, D], got {queries.shape} and {keys.shape}"
        )
    batch, tokens, heads, size = queries.shape
    kv = keys.shape[2]
    if heads % kv:
        raise ValueError(f"q: expected a multiple of the {kv} key heads, got {heads}")
    grouped = queries.reshape(batch, tokens, kv, heads // kv, size)
    x = np.einsum("bthgd,blhd->bthgl", grouped, keys).reshape(batch, tokens, heads, -1)
    x *= 1 / math.sqrt(size) if scale is None else scale
    return x if softcap is None else softcap * np.tanh(x / softcap)


def fallback(
    rows: NDArray[np.float64], phi: float, bounds: tuple[float, float]
) -> tuple[float, tuple[float, float]]:
    """Share of rows [rows, keys] that fall back, and its 95 % interval (Wilson)."""
    inside = (rows - phi > bounds[0]) & (rows - phi < bounds[1]) | (rows == -np.inf)
    count, n = int(np.sum(~np.all(inside, axis=-1))), len(rows)
    p, z2 = count / n, NORMAL_95**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = NORMAL_95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return p, (max(0.0, middle - half) if count else 0.0, min(1.0, middle + half) if count < n else 1.0)
