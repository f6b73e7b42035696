r"""Adjoints of what is done to a filter: from a gradient in its spectrum back to one in its taps.

A filter ``k [..., K]`` is laid on a circle of N samples (`place_filter`), and transformed (`filter_spectrum`, or
`half_filter`). Each step is linear, and its adjoint carries gradients the other way: ``<S k, g> = <k, S^* g>``
with ``<a, b> = Re sum a conj(b)``.

- Placing copies taps to places, so its adjoint reads these places; taps that are left out get zero.
- The unscaled spectrum is ``sqrt(P) F h`` with F unitary, so its adjoint is ``sqrt(P) F^-1``.
- ``A = He + i/2 (1 - w) Ho`` and ``B = i/2 (1 + w) Ho`` of half-length packing give, from gradients a in A and b in
  B, the gradient ``a`` in He and ``-i/2 ((1 - conj w) a + (1 + conj w) b)`` in Ho. Each goes through
  ``sqrt(P) F^-1``; its real part is the gradient in the even or odd samples of h, because those are real.

A gradient in a complex number z = p + iq is ``dL/dp + i dL/dq``, as in PyTorch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import whole_number
from .convolution import filter_lags
from .dft import roots_of_unity
from .packing import unpack_half
from .plan import Plan
from .transform import transform

__all__ = ["filter_spectrum_adjoint", "half_filter_adjoint", "place_filter_adjoint"]


def place_filter_adjoint(h: ArrayLike, samples: int, taps: int, *, mode: str) -> NDArray[np.generic]:
    """Take the taps off a circle: ``[..., N] -> [..., K]``, in the dtype of ``h``.

    Args:
        h: the gradient on the circle, ``[..., N]`` with N at least ``convolution_length(mode, L, K)``.
        samples: L, samples of the signal.
        taps: K; taps that reach no wanted output get zero.
        mode: "circular", "causal" or "two-sided".

    Raises:
        ValueError: the circle is too short for this convolution, or is a scalar.
    """
    circle = np.asarray(h)
    taps = whole_number(taps, name="taps", least=1, meaning="the taps K of the filter")
    length = circle.shape[-1] if circle.ndim else 0
    lag, centre = filter_lags(mode, samples, taps, length, name="h's last axis")
    k = np.zeros((*circle.shape[:-1], taps), dtype=circle.dtype)
    k[..., lag + centre] = circle[..., lag % length]
    return k


def filter_spectrum_adjoint(gradient: ArrayLike, plan: Plan) -> NDArray[np.complex128]:
    """Return the gradient in h ``[..., N]`` from that in `filter_spectrum`, ``[..., P]`` in digit order.

    Complex; of a real filter the gradient is the real part. For packing "half" use `half_filter_adjoint`.
    """
    if plan.packing == "half":
        raise ValueError('plan has packing "half", with two gradients: use monarch.half_filter_adjoint.')
    if plan.packing == "right-angle":
        raise ValueError('plan has packing "right-angle", whose bins are no circle\'s: use packing="pair".')
    return np.sqrt(plan.points) * transform(gradient, plan, inverse=True)


def half_filter_adjoint(a: ArrayLike, b: ArrayLike, plan: Plan) -> NDArray[np.float64]:
    """Return the gradient in h ``[..., N]`` from those in A and B of `half_filter`, ``[..., P]`` in digit order."""
    if plan.packing != "half":
        raise ValueError(f'plan must have packing "half"; got {plan}.')
    in_a, in_b = np.asarray(a), np.asarray(b)
    if in_a.shape != in_b.shape:
        raise ValueError(f"a and b must have one shape, [..., P]; got {in_a.shape} and {in_b.shape}.")
    delay = roots_of_unity(-plan.frequencies().reshape(-1), plan.points)  # conj w
    in_odd = -0.5j * ((1 - delay) * in_a + (1 + delay) * in_b)
    even, odd = (np.sqrt(plan.points) * transform(x, plan, inverse=True).real for x in (in_a, in_odd))
    return unpack_half(even + 1j * odd)
