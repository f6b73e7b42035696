"""The sums of `fftconv` and of its gradients, tap by tap: no transform, no padding, nothing shared. O(L K)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._fftconv_arguments import prepare
from .fftconv_gradients import FFTConvGradients, with_gates

__all__ = ["direct_fftconv", "direct_fftconv_gradients"]

Array = NDArray[Any]


def direct_fftconv(
    u: ArrayLike,
    k: ArrayLike,
    *,
    mode: str = "circular",
    pregate: ArrayLike | None = None,
    postgate: ArrayLike | None = None,
) -> Array:
    """Evaluate the sums of `fftconv` term by term, O(L K)."""
    x, taps, after = prepare(u, k, mode, pregate, postgate)
    y = _convolve(x, taps, mode)
    return y if after is None else after * y


def direct_fftconv_gradients(
    dy: ArrayLike,
    u: ArrayLike,
    k: ArrayLike,
    *,
    mode: str = "circular",
    pregate: ArrayLike | None = None,
    postgate: ArrayLike | None = None,
) -> FFTConvGradients:
    """Evaluate the sums of `fftconv_gradients` term by term, O(L K)."""

    def core(e: Array, x: Array, taps: Array, wanted: bool) -> tuple[Array | None, Array, Array]:
        dx, dk = np.zeros(x.shape, np.result_type(e, taps)), np.zeros(taps.shape, np.result_type(e, x))
        summed = (*range(x.ndim - taps.ndim), -1)  # the batch, channels that share the filter, samples
        for j, to, of in _windows(mode, x.shape[-1], taps.shape[-1]):
            dx[..., of] += taps[..., j, None].conj() * e[..., to]
            dk[..., j] += np.sum(e[..., to] * x[..., of].conj(), axis=summed)
        return _convolve(x, taps, mode) if wanted else None, dx, dk

    return with_gates(core, dy, u, k, mode, pregate, postgate)


def _windows(mode: str, samples: int, taps: int) -> Iterator[tuple[int, Array, Array]]:
    """Yield every tap with the samples of y that it reaches, and those of x that it takes there."""
    centre, n = (taps - 1) // 2 if mode == "two-sided" else 0, np.arange(samples)
    for j in range(taps):
        of = n - (j - centre)
        if mode == "circular":
            yield j, n, of % samples
        else:
            inside = (of >= 0) & (of < samples)
            yield j, n[inside], of[inside]


def _convolve(x: Array, taps: Array, mode: str) -> Array:
    y = np.zeros(x.shape, np.result_type(x, taps))
    for j, to, of in _windows(mode, x.shape[-1], taps.shape[-1]):
        y[..., to] += taps[..., j, None] * x[..., of]
    return y
