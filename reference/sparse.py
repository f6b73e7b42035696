"""Frequency-sparse convolutions: `fftconv` by a plan, with zeros in the filter's spectrum.

The zeros are those of a `monarch.SparsityPattern`, in the plan's digit order, and what they spare is not
computed. The filter that is left is as long as the circle, so a causal or two-sided convolution also sees
samples that its own filter did not, and wraps around: it equals the circular one with the masked spectrum,
on the plan's circle, and only that.

Source: Fu et al., FlashFFTConv, arXiv 2311.05908, section on frequency-sparse convolutions.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import monarch

from ._fftconv_arguments import plan_length, prepare
from .fftconv_gradients import FFTConvGradients, spectral, with_gates

__all__ = ["sparse_fftconv", "sparse_fftconv_gradients"]


def sparse_fftconv(
    u: ArrayLike,
    k: ArrayLike,
    pattern: monarch.SparsityPattern,
    *,
    plan: monarch.Plan,
    mode: str = "circular",
    pregate: ArrayLike | None = None,
    postgate: ArrayLike | None = None,
    counts: Counter[str] | None = None,
) -> NDArray[Any]:
    """Convolve ``u [..., H, L]`` with ``k [H, K]`` or ``[K]``, its spectrum zero where the pattern says so.

    Args:
        u: the signal, as in `fftconv`.
        k: the filter; its whole spectrum is computed, and the pattern, one for all channels, applied.
        pattern: what is kept; symmetric for plans of packing "pair" and "half", whose results are real. For
            real data with packing "complex" it may be any, and the real part is returned: the spectrum times
            ``(kept[k] + kept[-k]) / 2``.
        plan: holds the convolution as in `fftconv`; a circular one exactly, ``plan.n == L``.
        mode: "circular", "causal" or "two-sided".
        pregate: multiplies ``u`` before, shape of ``u``.
        postgate: multiplies the result, shape of ``u``.
        counts: is added to; see `monarch.sparse_circular_convolution`.

    Returns:
        ``[..., H, L]`` float64, or complex128 if an input is complex.

    Raises:
        TypeError, ValueError: as `fftconv`; a pattern of another plan, or not symmetric where it must be.
    """
    _check_pattern(pattern)
    x, taps, after = prepare(u, k, mode, pregate, postgate)
    samples, number = x.shape[-1], taps.shape[-1]
    length = _circle_length(plan, mode, samples, number)
    circle = monarch.place_filter(taps, samples, length, mode=mode)
    padded = np.concatenate([x, np.zeros((*x.shape[:-1], length - samples), x.dtype)], axis=-1)
    inner = x.shape[-2:-1] if taps.ndim == 2 else ()
    y = monarch.sparse_circular_convolution(
        padded.reshape(-1, *inner, length), circle, plan, pattern, counts=counts
    ).reshape(padded.shape)[..., :samples]
    y = y if np.iscomplexobj(x) or np.iscomplexobj(taps) else y.real
    return y if after is None else after * y


def sparse_fftconv_gradients(
    dy: ArrayLike,
    u: ArrayLike,
    k: ArrayLike,
    pattern: monarch.SparsityPattern,
    *,
    plan: monarch.Plan,
    mode: str = "circular",
    pregate: ArrayLike | None = None,
    postgate: ArrayLike | None = None,
) -> FFTConvGradients:
    """Return the gradients of `sparse_fftconv` in ``u``, ``k`` and the gates, from that in y.

    Zeros are a projection P of filters on the circle, and P is its own adjoint. So the signal's gradient is the
    correlation with P k, and the filter's is P of the correlation of signals, at the places of its taps.

    Args:
        dy: the gradient in y, ``[..., H, L]``.
        u: as given to `sparse_fftconv`, and so are the rest.
        k: the filter.
        pattern: what is kept.
        plan: its circle and order of slots; transforms are `numpy.fft`'s.
        mode: "circular", "causal" or "two-sided".
        pregate: multiplies ``u`` before.
        postgate: multiplies the result.

    Raises:
        TypeError, ValueError: as `sparse_fftconv`, and as `fftconv_gradients` for ``dy``.
    """
    _check_pattern(pattern)
    kept = pattern.bins(plan).astype(np.float64)

    def core(e: NDArray[Any], x: NDArray[Any], taps: NDArray[Any], wanted: bool) -> Any:
        _circle_length(plan, mode, x.shape[-1], taps.shape[-1])
        real = not any(np.iscomplexobj(a) for a in (e, x, taps))
        mask = (kept + kept[-np.arange(kept.size)]) / 2 if real else kept
        return spectral(e, x, taps, wanted, mode, plan, mask)

    return with_gates(core, dy, u, k, mode, pregate, postgate)


def _check_pattern(pattern: object) -> None:
    if not isinstance(pattern, monarch.SparsityPattern):
        raise TypeError(f"pattern must be a monarch.SparsityPattern; got {type(pattern).__name__}.")


def _circle_length(plan: monarch.Plan, mode: str, samples: int, taps: int) -> int:
    length = plan_length(plan, mode, samples, taps, monarch.convolution_length(mode, samples, taps))
    if mode == "circular" and length != samples:
        raise ValueError(
            f"plan must have n == L={samples} for a circular convolution with zeros; got {plan}. On a longer "
            "circle they would be zeros of another spectrum."
        )
    return length
