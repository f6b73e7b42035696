r"""How far a kernel's decode attention may be from the exact one, element by element; and the check of that.

The kernel: logits from half-precision operands with fp32 sums, fp32 weights and sums, one rounding to half (u). With
u' = 2^-24, weights w and values v of the keys in sight, for each element

.. math::
    |\hat y - y| \le u\,|y| + \sum_j w_j (e_j + \bar e)\,|v_j| , \qquad \bar e = \sum_j w_j e_j ,

where e_j bounds the relative error of the unnormalised weight of key j, and the mean of it that of their sum:

    2 D u' scale sum_d |q_d k_jd|    the logit: D exact products added in fp32, which tensor cores may truncate
    8 u' cap                         tanh by an exponential and two quotients
    (2.5 d_j + 9 + m) u'             the exponential at a distance d_j from the shift, and m additions one after the
                                     other: `softmax_shift_bound`

d_j is |x_j - max| for "sync"; to which "async" adds |x_j - phi|. Where weights are rounded to TF32 for a tensor core,
2^-11 sum w |v| comes on top. This is a worst case, and yet the first term leads: with d = 23 and m = 1000 the sum's e_j
come to 10^-4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .accuracy import unit_roundoff
from .attention import _rows, decode_attention
from .softmax import softmax

__all__ = ["attention_tolerance", "check_attention", "decode_attention_bound"]

_SINGLE = 2.0**-24


def decode_attention_bound(dtype: object, *, tf32: bool = False) -> float:
    """Return the bound on the relative L2 error over many elements, whose roundings are independent.

    One rounding to half is u / sqrt 6 rms (see `reference.accuracy`); TF32 weights, 2^-11 / sqrt 6 each, err by as much
    of the result, since both add up in the same way. A fifth more for chance and the fp32 part.
    """
    half, weights = unit_roundoff(dtype), 2.0**-11 if tf32 else 0.0
    return 1.2 * float(np.hypot(half, weights) / np.sqrt(6))


def attention_tolerance(
    q: ArrayLike,
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    *,
    dtype: object,
    additions: int | None = None,
    tf32: bool = False,
    phi: float | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    seqlens: ArrayLike | None = None,
    block_table: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Return the bound ``[B, T, Hq, D]`` on the error of each element of `decode_attention`.

    Args:
        q: queries, as given to the kernel; so are the caches, lengths, table, scale and cap.
        k_cache: keys.
        v_cache: values.
        dtype: what the result is rounded to.
        additions: m, the longest chain of additions; None: as many as a token sees keys.
        tf32: whether weights are rounded to TF32.
        phi: the shift of "async"; None: "sync".
        scale: as in `decode_attention`.
        softcap: as in `decode_attention`.
        seqlens: as in `decode_attention`.
        block_table: as in `decode_attention`.
    """
    exact = decode_attention(
        q,
        k_cache,
        v_cache,
        seqlens=seqlens,
        block_table=block_table,
        scale=scale,
        softcap=softcap,
        variant="plain",
    )
    place: dict[str, Any] = {"seqlens": seqlens, "block_table": block_table}
    logits = _rows(q, k_cache, v_cache, scale=scale, softcap=softcap, **place)
    size = None if scale is None else abs(scale)
    sizes = _rows(
        np.abs(np.asarray(q)), np.abs(np.asarray(k_cache)), v_cache, scale=size, softcap=None, **place
    )
    bound = unit_roundoff(dtype) * np.abs(exact)
    d = exact.shape[-1]
    with np.errstate(invalid="ignore", over="ignore"):
        for (b, t, x, values), (_, _, terms, _) in zip(logits, sizes, strict=True):
            w = softmax(x, variant="plain")
            top = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
            distance = np.where(w > 0, np.abs(x - top) + (0 if phi is None else np.abs(x - phi)), 0.0)
            m = x.shape[-1] if additions is None else additions
            e = _SINGLE * (2 * d * terms + 8 * (softcap or 0.0) + 2.5 * distance + 9 + m)
            e = np.where(w > 0, e, 0.0)  # a key without weight may have an infinite logit
            both = w * (tf32 * 2.0**-11 + e + np.sum(w * e, axis=-1, keepdims=True))
            bound[b, t] += (both @ np.abs(values).transpose(1, 0, 2)).reshape(bound.shape[2:])
    # A result below the normal range is rounded to its spacing there.
    return bound + (2.0**-25 if unit_roundoff(dtype) == 2.0**-11 else 2.0**-134)


def check_attention(y: ArrayLike, exact: ArrayLike, tolerance: ArrayLike, *, largest: float = 1.0) -> float:
    """Raise AssertionError unless each element of ``y`` is within ``largest`` tolerances; return the largest ratio.

    Where the exact result is NaN or infinite, ``y`` must be the same.

    Raises:
        AssertionError: an element is too far off, or NaN or infinite where the exact one is not; with its place.
        ValueError: zeros would pass although the exact result is not zero: the check would be empty.
    """
    got, right, bound = (np.asarray(x).astype(np.float64) for x in (y, exact, tolerance))
    if got.shape != right.shape or bound.shape != right.shape:
        raise ValueError(
            f"y, exact and tolerance must have one shape; got {got.shape}, {right.shape}, {bound.shape}."
        )
    finite = np.isfinite(right)
    if np.any(right[finite]) and not np.any(np.abs(right[finite]) > 2 * largest * bound[finite]):
        raise ValueError("exact is within twice the tolerance of zero everywhere: zeros would pass.")
    same = np.where(np.isnan(right), np.isnan(got), got == right)
    with np.errstate(invalid="ignore"):
        ratio = np.where(finite, np.abs(got - right) / bound, np.where(same, 0.0, np.inf))
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    worst = float(np.max(ratio, initial=0.0))
    if worst > largest:
        where = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
        raise AssertionError(
            f"element {list(where)} is {got[where]:.6g} and should be {right[where]:.6g}: off by {worst:.3g} times the "
            f"tolerance {bound[where]:.3g}."
        )
    return worst
