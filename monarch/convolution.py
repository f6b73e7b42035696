"""Convolutions as circular ones: lengths, where the filter's taps go, and the execution of a plan.

Three meanings of ``u * k`` for ``L`` samples and ``K`` taps, all with ``L`` samples of output:

- ``circular``: ``y[n] = sum_j k[j] u[(n - j) mod L]``, ``K <= L``;
- ``causal``: ``y[n] = sum_{j <= n} k[j] u[n - j]``, any K (taps from L on never matter);
- ``two-sided``: ``y[n] = sum_j k[j] u[n + c - j]`` with ``c = (K - 1) // 2`` and zeros outside.

Tap ``j`` acts at lag ``j`` (or ``j - c``). On a circle of M samples lag l sits at ``l mod M``, so the wanted
outputs are always ``0 .. L-1`` and only M differs. With lags in ``[-a, b]`` nothing wanted is aliased when
``M >= L + max(a, b)``: L + K - 1 for causal, but only L + K // 2 for two-sided.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import whole_number
from .packing import (
    half_filter,
    pack_half,
    pack_pairs,
    pack_right_angle,
    right_angle_filter,
    unpack_half,
    unpack_pairs,
    unpack_right_angle,
)
from .plan import Plan
from .transform import transform

__all__ = ["MODES", "circular_convolution", "convolution_length", "filter_spectrum", "place_filter"]

MODES = ("circular", "causal", "two-sided")


def check_mode(mode: object) -> str:
    """Return ``mode`` if it is one of the three, or raise."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}; got {mode!r}.")
    return str(mode)


def _lags(mode: str, samples: int, taps: int) -> tuple[int, int]:
    """Return the first lag and the last that reach a wanted output."""
    centre = (taps - 1) // 2 if mode == "two-sided" else 0
    return max(-centre, 1 - samples), min(taps - 1 - centre, samples - 1)


def convolution_length(mode: str, samples: int, taps: int) -> int:
    """Return the least circular length that holds this convolution without aliasing.

    Args:
        mode: "circular", "causal" or "two-sided".
        samples: L, samples of input and of output.
        taps: K, taps of the filter.

    Returns:
        L for circular, ``L + min(K, L) - 1`` for causal, ``L + min(K // 2, L - 1)`` for two-sided.
        Pass it to `monarch.transform_length` for a length with convenient factors (a circular convolution of
        another length than L is a linear one folded, and needs ``L + K - 1``).

    Raises:
        ValueError: an empty signal or filter, an unknown mode, a circular filter longer than the signal.
    """
    check_mode(mode)
    samples = whole_number(samples, name="samples", least=1, meaning="the samples L of the signal")
    taps = whole_number(taps, name="taps", least=1, meaning="the taps K of the filter")
    first, last = _lags(mode, samples, taps)
    if mode == "circular":
        if taps > samples:
            raise ValueError(
                f"taps must be at most samples={samples} for a circular convolution; got {taps}. "
                'Fold the filter onto the circle, or use mode "causal" or "two-sided".'
            )
        return samples
    return samples + max(-first, last)


def filter_lags(
    mode: str, samples: int, taps: int, length: int, *, name: str
) -> tuple[NDArray[np.int64], int]:
    """Return the lags that reach a wanted output, and the tap at lag 0; raise if a circle of ``length`` aliases."""
    least = convolution_length(mode, samples, taps)
    if length < least:
        raise ValueError(
            f"{name} must be at least {least} for mode {mode!r}; got {length}, which would alias."
        )
    first, last = _lags(mode, samples, taps)
    return np.arange(first, last + 1), (taps - 1) // 2 if mode == "two-sided" else 0


def place_filter(k: ArrayLike, samples: int, length: int, *, mode: str) -> NDArray[np.generic]:
    """Lay the taps on a circle: ``[..., K] -> [..., length]``, in the filter's dtype.

    Args:
        k: the filter, ``[..., K]``.
        samples: L, samples of the signal; taps that reach no wanted output are left out.
        length: the circle, at least ``convolution_length(mode, L, K)``.
        mode: "circular", "causal" or "two-sided".
    """
    taps = np.asarray(k)
    if taps.ndim == 0:
        raise ValueError("k must have an axis of taps, [..., K]; got a scalar.")
    lag, centre = filter_lags(mode, samples, taps.shape[-1], length, name="length")
    circle = np.zeros((*taps.shape[:-1], length), dtype=taps.dtype)
    circle[..., lag % length] = taps[..., lag + centre]
    return circle


def filter_spectrum(h: ArrayLike, plan: Plan) -> NDArray[np.complex128]:
    """Return the spectrum that multiplies a unitary transform: ``[..., N] -> [..., P]`` in digit order.

    It is ``sum_n h[n] exp(-2 pi i k n / N)``, not scaled. For packing "half" use `monarch.half_filter`.
    """
    if plan.packing == "half":
        raise ValueError('plan has packing "half", which needs two arrays: use monarch.half_filter.')
    if plan.packing == "right-angle":
        raise ValueError('plan has packing "right-angle": use monarch.right_angle_filter.')
    return np.sqrt(plan.points) * transform(h, plan)


def on_circle(x: ArrayLike, h: ArrayLike, plan: Plan) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Return both as arrays if they have the plan's samples, and a real filter for a pair, or raise."""
    data, taps = np.asarray(x), np.asarray(h)
    for name, array in (("x", data), ("h", taps)):
        if array.ndim == 0 or array.shape[-1] != plan.n:
            raise ValueError(
                f"{name} must have n={plan.n} samples along its last axis; got shape {array.shape}."
            )
    if plan.packing == "pair" and np.iscomplexobj(taps):
        raise TypeError(f'h must be real for packing "pair"; got {taps.dtype}. Use packing="complex".')
    return data, taps


def circular_convolution(
    x: ArrayLike, h: ArrayLike, plan: Plan
) -> NDArray[np.float64] | NDArray[np.complex128]:
    """Convolve circularly over ``plan.n`` samples by the plan's Monarch transform, packed as the plan says.

    Args:
        x: ``[B, ..., N]``; real for "pair" (pairs are taken along the first axis), "half" and "right-angle", whose
            samples from N / 2 on must be zero.
        h: the filter on the circle, ``[N]`` or ``[..., N]`` of the shape of one batch element; real likewise.
        plan: the plan.

    Returns:
        ``[B, ..., N]`` float64 for real packings, complex128 for "complex"; of "right-angle" the first N / 2 samples
        are the convolution's, and zeros follow.
    """
    data, taps = on_circle(x, h, plan)
    if plan.packing == "right-angle":
        if np.any(data[..., plan.points :]):
            raise ValueError(
                f'x must be zero from sample {plan.points} on for packing "right-angle" ({plan}); '
                'take packing "pair" for whole circles.'
            )
        z = right_angle_filter(taps, plan) * transform(pack_right_angle(data[..., : plan.points]), plan)
        y = unpack_right_angle(transform(z, plan, inverse=True))
        return np.concatenate([y, np.zeros_like(y)], axis=-1)
    if plan.packing == "half":
        a, b = half_filter(taps, plan)
        z = transform(pack_half(data), plan)
        return unpack_half(transform(a * z + b * z[..., plan.mirror()].conj(), plan, inverse=True))
    spectrum = filter_spectrum(taps, plan)
    if plan.packing == "complex":
        return transform(spectrum * transform(data, plan), plan, inverse=True)
    packed = transform(spectrum * transform(pack_pairs(data), plan), plan, inverse=True)
    return unpack_pairs(packed, data.shape[0])
