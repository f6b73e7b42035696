"""FFT convolution in float64: the exact meaning of `fftconv`.

With ``u`` of shape ``[..., H, L]`` and ``k`` of shape ``[H, K]`` (or ``[K]`` for all channels), per channel:

    circular    y[n] = sum_j k[j] u[(n - j) mod L]                        K <= L
    causal      y[n] = sum_{j <= n} k[j] u[n - j]                         any K; taps from L on never matter
    two-sided   y[n] = sum_j k[j] u[n + c - j],  c = (K - 1) // 2         zero outside (scipy's "same", L >= K)
    gated       y = postgate * ((u * pregate) conv k)                     gates of the shape of u

``L`` samples come out of each. `reference.direct_fftconv` evaluates these sums as written, in O(L K); `fftconv` goes
through `numpy.fft`, or through the Monarch transform of a plan. The two agree to about 1e-15 of ||u|| ||k||.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import monarch

from ._circle import fold
from ._fftconv_arguments import plan_length, prepare

__all__ = ["fftconv"]


def fftconv(
    u: ArrayLike,
    k: ArrayLike,
    *,
    mode: str = "circular",
    pregate: ArrayLike | None = None,
    postgate: ArrayLike | None = None,
    plan: monarch.Plan | None = None,
) -> NDArray[Any]:
    """Convolve ``u [..., H, L]`` with ``k [H, K]`` or ``[K]`` in float64; returns ``[..., H, L]``.

    Args:
        u: the signal, any real or complex dtype up to double; strided views are fine.
        k: the filter, one per channel or one for all.
        mode: "circular", "causal" or "two-sided"; see the module's text.
        pregate: multiplies ``u`` before, shape of ``u``; either gate may stand alone.
        postgate: multiplies the result, shape of ``u``.
        plan: run the Monarch transform of this plan instead of `numpy.fft`. Its ``n`` must hold the
            convolution: ``monarch.convolution_length(mode, L, K)`` or more (circular: exactly L, or at least
            L + K - 1, which is folded), and its ``signal`` and ``wanted`` at least L.

    Returns:
        float64, or complex128 if an input is complex. A NaN or infinity spoils its whole sequence, and with a
        plan of pairs its partner.

    Raises:
        TypeError: a dtype that double precision does not hold, or complex data with a real packing.
        ValueError: an empty or misshapen argument, a filter longer than a circular signal, a plan too short.
    """
    x, taps, after = prepare(u, k, mode, pregate, postgate)
    samples = x.shape[-1]
    length = monarch.convolution_length(mode, samples, taps.shape[-1])
    if plan is not None:
        length = plan_length(plan, mode, samples, taps.shape[-1], length)
    folded = mode == "circular" and length > samples
    # a circular convolution on a longer circle: the whole linear one, whose tail wraps around to the front
    full = samples + taps.shape[-1] - 1 if folded else samples
    circle = monarch.place_filter(taps, samples, length, mode="causal" if folded else mode)
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], length - samples), x.dtype)], axis=-1)
    y = fold(_circular(padded, circle, plan)[..., :full], samples)
    return y if after is None else after * y


def _circular(x: NDArray[Any], h: NDArray[Any], plan: monarch.Plan | None) -> NDArray[Any]:
    """Convolve on the circle of the last axis, ``[..., N]`` with ``[H, N]`` or ``[N]``."""
    real = not (np.iscomplexobj(x) or np.iscomplexobj(h))
    if plan is None:
        n = x.shape[-1]
        if real:
            return np.fft.irfft(np.fft.rfft(x) * np.fft.rfft(h), n)
        return np.fft.ifft(np.fft.fft(x) * np.fft.fft(h))
    inner = x.shape[-2:] if h.ndim == 2 else x.shape[-1:]
    y = monarch.circular_convolution(x.reshape(-1, *inner), h, plan).reshape(x.shape)
    return y.real if real else y
