"""Gradients of `fftconv` in float64: in the signal, the filter and both gates.

A loss with gradient ``dy`` in ``y = postgate * c``, ``c = x conv k``, ``x = u * pregate``, has with
``e = dy * conj(postgate)``, per channel:

    circular    dx[m] = sum_j conj(k[j]) e[(m + j) mod L]         dk[j] = sum_m e[(m + j) mod L] conj(x[m])
    causal      dx[m] = sum_j conj(k[j]) e[m + j]                 dk[j] = sum_m e[m + j] conj(x[m])
    two-sided   the same with m + j - c for m + j, c = (K - 1) // 2          e, x zero outside

    du = dx * conj(pregate)      dpregate = dx * conj(u)      dpostgate = dy * conj(c)

``dk`` is summed over whatever shares the filter: the batch, and the channels if ``k`` is ``[K]``. All these are
adjoints: Re<y, dy> = Re<u, du> = Re<k, dk> = Re<pregate, dpregate> = Re<postgate, dpostgate>. Conjugates matter for
complex data only, where a gradient is dL/dRe + i dL/dIm (PyTorch's), and its real part for a real operand.

Correlations are products with conjugate spectra. The spectrum of e is taken once and serves dx and dk; that of x is
recomputed and serves dk and, with a postgate, c; so nothing has to be kept from the forward pass but its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

import monarch

from ._arguments import widen
from ._circle import Circle, fold, unfold
from ._fftconv_arguments import check_gradient, plan_length, prepare

__all__ = ["FFTConvGradients", "fftconv_gradients", "spectral", "with_gates"]

Array = NDArray[Any]


class FFTConvGradients(NamedTuple):
    """Gradients, each of the shape of its operand; None for a gate that was not given."""

    u: Array
    k: Array
    pregate: Array | None
    postgate: Array | None


# (e, x, taps, whether c is wanted) -> c, dx, dk
Core = Callable[[Array, Array, Array, bool], tuple[Array | None, Array, Array]]


def fftconv_gradients(
    dy: ArrayLike,
    u: ArrayLike,
    k: ArrayLike,
    *,
    mode: str = "circular",
    pregate: ArrayLike | None = None,
    postgate: ArrayLike | None = None,
    plan: monarch.Plan | None = None,
) -> FFTConvGradients:
    """Return the gradients in ``u [..., H, L]``, ``k [H, K]`` or ``[K]``, and the gates, from that in y.

    Args:
        dy: the gradient in y, ``[..., H, L]``; real if all operands are.
        u: as given to `fftconv`, and so are the rest; ``plan`` transforms both ways by its factors.
        k: the filter; its gradient is summed over the batch, and over the channels if it is ``[K]``.
        mode: "circular", "causal" or "two-sided".
        pregate: multiplies ``u`` before.
        postgate: multiplies the result.
        plan: run the Monarch transform of this plan instead of `numpy.fft`.

    Returns:
        float64, or complex128 for complex operands. A NaN or infinity spoils every sequence, and every filter's
        gradient, that it enters; with a plan of pairs those of the partner too. Whatever ``u`` holds, it does
        not enter its own gradient, nor ``k`` that of ``k``.

    Raises:
        TypeError, ValueError: as `fftconv`; a ``dy`` of another shape than ``u``, or complex where y is real.
    """

    def core(e: Array, x: Array, taps: Array, wanted: bool) -> tuple[Array | None, Array, Array]:
        return spectral(e, x, taps, wanted, mode, plan)

    return with_gates(core, dy, u, k, mode, pregate, postgate)


def with_gates(
    core: Core,
    dy: ArrayLike,
    u: ArrayLike,
    k: ArrayLike,
    mode: str,
    pregate: ArrayLike | None,
    postgate: ArrayLike | None,
) -> FFTConvGradients:
    """Put the gates around the core, which has the gradients of a plain convolution."""
    x, taps, after = prepare(u, k, mode, pregate, postgate)
    signal, before = widen(u, "u"), None if pregate is None else widen(pregate, "pregate")
    g = check_gradient(dy, x, any(a is not None and np.iscomplexobj(a) for a in (x, taps, after)))
    e = g if after is None else g * after.conj()
    if not (np.iscomplexobj(x) or np.iscomplexobj(taps)):
        e = e.real  # a complex postgate: what is real behind it sees no more than this
    c, dx, dk = core(e, x, taps, after is not None)
    return FFTConvGradients(
        _like(signal, dx if before is None else dx * before.conj()),
        _like(taps, dk),
        None if before is None else _like(before, dx * signal.conj()),
        None if after is None or c is None else _like(after, g * c.conj()),
    )


def _like(operand: Array, gradient: Array) -> Array:
    return gradient if np.iscomplexobj(operand) else gradient.real


def spectral(
    e: Array,
    x: Array,
    taps: Array,
    wanted: bool,
    mode: str,
    plan: monarch.Plan | None,
    kept: Array | None = None,
) -> tuple[Array | None, Array, Array]:
    """Return c (if wanted), dx and dk of a convolution without gates.

    ``kept [N]``: what the filter's spectrum on the plan's circle is multiplied by; `numpy.fft` transforms then.
    """
    samples, count = x.shape[-1], taps.shape[-1]
    length = monarch.convolution_length(mode, samples, count)
    if plan is not None:
        length = plan_length(plan, mode, samples, count, length)
    full = samples
    if mode == "circular" and length > samples:  # run as a linear convolution, folded
        mode, full = "causal", samples + count - 1
    # one axis of all that is summed over: the batch, and the channels if they share the filter
    inner = x.shape[x.ndim - taps.ndim :]
    signal, gradient = x.reshape(-1, *inner), unfold(e, full).reshape(-1, *inner[:-1], full)
    real = not any(np.iscomplexobj(a) for a in (e, x, taps))
    circle = Circle(length, len(signal), real, None if kept is not None else plan, kept)
    of_h = circle.of_filter(monarch.place_filter(taps, samples, length, mode=mode))
    of_e, of_x = circle.of_signal(gradient), circle.of_signal(signal)  # each taken once and used twice
    dx = circle.to_signal(circle.signal_gradient(of_e, of_h))[..., :samples].reshape(x.shape)
    dk = monarch.place_filter_adjoint(circle.filter_gradient(of_e, of_x), samples, count, mode=mode)
    if not wanted:
        return None, dx, dk
    c = circle.to_signal(circle.convolve(of_x, of_h))[..., :full]
    return fold(c, samples).reshape(x.shape), dx, dk
