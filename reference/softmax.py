"""Softmax over the last axis, in three forms that are one in exact arithmetic.

For a row ``x [n]`` and any shift s,  ``softmax(x)_i = e^(x_i - s) / sum_j e^(x_j - s)``.

    plain   s = max(x).
    sync    the row in parts x = [x' x''], each with its own maximum, rescaled when they are joined:
                m = max(m', m''),  f = [e^(m' - m) f'  e^(m'' - m) f''],  l = e^(m' - m) l' + e^(m'' - m) l'',
            softmax = f / l. (Milakov and Gimelshein, arXiv 1805.02867; Eq. 2 of FlashDecoding++, arXiv 2311.01282.)
    async   s = phi, the same for all rows, known beforehand: the sums of the parts are simply added (Eq. 3 and 4).

A row may use phi if ``a < x_i - phi < b`` for each of its entries; otherwise it is *flagged*, and recomputed by
"sync". Here the interval is open: -3 and 3 are outside (-3, 3). In the example of the paper's Figure 6 (a = -3,
b = 3, phi = 6) the row [4, 5, 6, 7] passes and [3, 6, 9, 6], whose differences -3, 0, 3, 0 reach the bounds
and go beyond neither, is recomputed: only the open interval does so, whatever text and figure say of the ends.

An entry of -inf is absent (a mask): its weight is 0, and it flags nothing. A row with no other entries, or
with none, gets zeros: it has no softmax, and zeros let it add nothing. A NaN or +inf flags its row, and makes
all of it NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import finite, whole, widen_real

__all__ = ["VARIANTS", "overflow_flags", "softmax"]

Rows = NDArray[np.float64]

VARIANTS = ("async", "sync", "plain")
_WIDEST = 300.0  # e^300 times any number of terms that fit into memory is still far from overflow


def softmax(
    x: ArrayLike,
    *,
    phi: float | None = None,
    bounds: tuple[float, float] | None = None,
    splits: int | None = None,
    variant: str = "async",
) -> Rows:
    """Return the softmax of ``x [..., n]`` along its last axis, float64, same shape.

    Args:
        x: any real dtype up to double; n may be 0.
        phi: the shift of all rows; needed by "async", checked and not used by the others.
        bounds: (a, b): a row any of whose ``x - phi`` is not strictly between is recomputed by "sync".
        splits: how many nearly equal parts a row is taken in (1); with more parts than entries some are empty.
        variant: "async", "sync" or "plain"; see the module's text.

    Raises:
        TypeError: complex data, or a dtype that double precision does not hold.
        ValueError: no last axis, an unknown variant, "async" without a shift, bounds that are none.
    """
    rows = _rows(x)
    shift, interval, count = check_scheme(phi, bounds, splits, variant)
    with np.errstate(over="ignore", invalid="ignore"):  # to -inf, rightly; and inf - inf, which is to be NaN
        if variant == "plain":
            terms = np.exp(rows - _anchor(np.max(rows, axis=-1, initial=-np.inf))[..., None])
            return _quotient(terms, np.sum(terms, axis=-1))
        if variant == "sync":
            return _synchronised(rows, count)
        flags = _flags(rows, shift, interval)
        y = np.empty_like(rows)
        y[~flags] = _unified(rows[~flags], shift, count)
        y[flags] = _synchronised(rows[flags], count)
        return y


def overflow_flags(x: ArrayLike, *, phi: float, bounds: tuple[float, float]) -> NDArray[np.bool_]:
    """Return, for ``x [..., n]``, the rows ``[...]`` that "async" recomputes: True where phi does not serve."""
    rows = _rows(x)
    return _flags(rows, *check_scheme(phi, bounds, None, "async")[:2])


def check_scheme(phi: Any, bounds: Any, splits: Any, variant: str) -> tuple[float, tuple[float, float], int]:
    """Return shift, bounds and split count, checked; raise if "async" lacks the first two."""
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}; got {variant!r}.")
    if variant == "async" and (phi is None or bounds is None):
        raise ValueError(
            f'phi and bounds must be given for variant "async", which shifts all rows by phi; got {phi!r} and '
            f'{bounds!r}. Take them from a sample of the data, or use variant "sync".'
        )
    shift = 0.0 if phi is None else finite(phi, "phi", "the shift of all rows")
    count = 1 if splits is None else whole(splits, "splits", "parts that a row is taken in")
    if bounds is None:
        return shift, (0.0, 0.0), count  # not used
    if np.shape(bounds) != (2,):
        raise TypeError(f"bounds must be two numbers (a, b); got {bounds!r}.")
    a, b = (finite(end, "bounds", "a and b, the limits of x - phi") for end in bounds)
    if not -_WIDEST <= a < b <= _WIDEST:
        raise ValueError(
            f"bounds must be (a, b) with a < b, both within +-{_WIDEST:g}; got ({a:g}, {b:g}). "
            f'Data that need more have no common shift: use variant "sync".'
        )
    return shift, (a, b), count


def _rows(x: ArrayLike) -> Rows:
    rows = widen_real(x, "x")
    if rows.ndim == 0:
        raise ValueError("x must be an array [..., n] of rows; got a single number.")
    return rows


def _flags(x: Rows, phi: float, bounds: tuple[float, float]) -> NDArray[np.bool_]:
    with np.errstate(over="ignore"):
        inside = (x - phi > bounds[0]) & (x - phi < bounds[1])  # false for NaN
    return ~np.all(inside | (x == -np.inf), axis=-1)


def _parts(n: int, count: int) -> list[slice]:
    return [slice(n * i // count, n * (i + 1) // count) for i in range(count)]


def _unified(x: Rows, phi: float, count: int) -> Rows:
    """Equations 3 and 4: nothing but sums passes between the parts."""
    terms = np.exp(x - phi)
    return _quotient(terms, sum(np.sum(terms[..., part], axis=-1) for part in _parts(x.shape[-1], count)))


def _synchronised(x: Rows, count: int) -> Rows:
    """Equation 2, part after part."""
    most, f, total = np.full(x.shape[:-1], -np.inf), x[..., :0], np.zeros(x.shape[:-1])
    for part in _parts(x.shape[-1], count):
        here = np.max(x[..., part], axis=-1, initial=-np.inf)
        terms = np.exp(x[..., part] - _anchor(here)[..., None])
        joined = np.maximum(most, here)
        old, new = np.exp(most - _anchor(joined)), np.exp(here - _anchor(joined))
        f = np.concatenate([old[..., None] * f, new[..., None] * terms], axis=-1)
        total = old * total + new * np.sum(terms, axis=-1)
        most = joined
    return _quotient(f, total)


def _anchor(most: Rows) -> Rows:
    """Return what may be subtracted: 0 where there is nothing to shift."""
    return np.where(most == -np.inf, 0.0, most)


def _quotient(f: Rows, total: Rows) -> Rows:
    """Return ``f / total``; zeros for a row without weight."""
    total = total[..., None]
    return np.divide(f, total, out=np.zeros_like(f), where=total != 0)
