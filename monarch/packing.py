r"""Packing real data into complex transforms.

**Pair.** Two real sequences that share a real filter: ``z = u1 + i u2``. Convolution with a real filter is
real-linear and never mixes the parts, so ``z * k = (u1 * k) + i (u2 * k)``. No bookkeeping at all.

**Half length** (decimation in time; Sorensen, Jones, Heideman and Burrus, IEEE Trans. ASSP 35, 1987). One
real sequence of ``N`` samples, ``P = N / 2``: ``z[m] = x[2m] + i x[2m+1]``, ``Z = DFT_P z``. With ``Z'[k] =
conj Z[-k]``,

.. math::
    X_e = (Z + Z') / 2, \quad X_o = -i (Z - Z') / 2, \quad
    X[k] = X_e[k] + e^{-2 \pi i k / N} X_o[k], \quad X[k + P] = X_e[k] - e^{-2 \pi i k / N} X_o[k].

A *convolution* needs no such unpacking. Even and odd samples of ``y = x * h`` are, with ``w[k] = exp(-2 pi i
k / P)`` (a delay by one even sample), ``Ye = Xe He + w Xo Ho`` and ``Yo = Xe Ho + Xo He``; so the packed
result is

.. math::
    Z_y = Y_e + i Y_o = A\,Z + B\,Z', \qquad
    A = H_e + \tfrac{i}{2} (1 - w) H_o, \qquad B = \tfrac{i}{2} (1 + w) H_o.

``A`` and ``B`` depend on the filter only and are computed once.

**Right angle** (a discrete weighted transform; Crandall and Fagin, Math. Comp. 62, 1994). Of half a circle,
``P = N / 2`` samples in and out. A product of polynomials modulo ``x^P - i`` puts what runs over the end, or
before the beginning, into imaginary parts: ``x^(n + P)`` is ``i x^n``, and ``x^(n - P)`` is ``-i x^n``. So
for real data the real parts of the first P samples are those of the linear convolution. The roots of ``x^P =
i`` are ``exp(2 pi i (k + 1/4) / P)``: a transform of P points of samples that are turned by ``n / P`` of a
right angle, ``x[n] exp(-pi i n / 2P)``. The filter's lags n and n - P are turned as ``h[n] + i h[P + n]``.

All spectra here may be in digit order: the
only index map is ``plan.mirror()``, the slot of ``-k``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .dft import roots_of_unity
from .plan import Plan
from .transform import transform

__all__ = [
    "fold_right_angle",
    "half_filter",
    "merge_half",
    "pack_half",
    "pack_pairs",
    "pack_right_angle",
    "right_angle_filter",
    "split_half",
    "unpack_half",
    "unpack_pairs",
    "unpack_right_angle",
]


def _real(x: ArrayLike, name: str) -> NDArray[np.float64]:
    data = np.asarray(x)
    if np.iscomplexobj(data):
        raise TypeError(f'{name} must be real to be packed; got {data.dtype}. Use packing="complex".')
    return data.astype(np.float64)


def pack_pairs(x: ArrayLike) -> NDArray[np.complex128]:
    """Make pairs: ``[B, ..., N] -> [ceil(B / 2), ..., N]`` complex.

    Sequences 2b and 2b+1 become real and imaginary part; an odd last sequence is paired with zeros.
    """
    data = _real(x, "x")
    if data.ndim < 2:
        raise ValueError(f"x must have a batch axis to take pairs from, [B, ..., N]; got shape {data.shape}.")
    if data.shape[0] % 2:
        data = np.concatenate([data, np.zeros_like(data[:1])])
    return data[0::2] + 1j * data[1::2]


def unpack_pairs(z: ArrayLike, count: int) -> NDArray[np.float64]:
    """Undo `pack_pairs`: ``[ceil(B / 2), ..., N]`` complex ``-> [B, ..., N]`` real; ``count`` is B."""
    data = np.asarray(z, dtype=np.complex128)
    if data.ndim < 2 or data.shape[0] != -(-count // 2):
        raise ValueError(f"z must hold {-(-count // 2)} pairs for count={count}; got shape {data.shape}.")
    return np.stack([data.real, data.imag], axis=1).reshape(-1, *data.shape[1:])[:count]


def pack_half(x: ArrayLike) -> NDArray[np.complex128]:
    """``[..., N]`` real ``-> [..., N / 2]`` complex: even samples + i odd samples."""
    data = _real(x, "x")
    if data.ndim == 0 or data.shape[-1] % 2:
        raise ValueError(
            f"x must have an even number of samples along its last axis; got shape {data.shape}."
        )
    return data[..., 0::2] + 1j * data[..., 1::2]


def unpack_half(z: ArrayLike) -> NDArray[np.float64]:
    """``[..., N / 2]`` complex ``-> [..., N]`` real: undoes `pack_half`."""
    data = np.asarray(z, dtype=np.complex128)
    return np.stack([data.real, data.imag], axis=-1).reshape(*data.shape[:-1], -1)


def split_half(z: ArrayLike) -> NDArray[np.complex128]:
    """Turn the packed spectrum into that of the real sequence: ``[..., P] -> [..., P + 1]``, natural order.

    ``z`` is the DFT (any scale) of ``pack_half(x)``; the result is ``X[0..N/2]`` in the same scale,
    as ``numpy.fft.rfft`` orders it.
    """
    spectrum = np.asarray(z, dtype=np.complex128)
    points = spectrum.shape[-1]
    k = np.arange(points + 1)
    here, there = spectrum[..., k % points], spectrum[..., -k % points].conj()
    return (here + there) / 2 - 0.5j * roots_of_unity(k, 2 * points) * (here - there)


def merge_half(spectrum: ArrayLike) -> NDArray[np.complex128]:
    """Turn the spectrum ``X[0..N/2]`` of a real sequence into the packed one: undoes `split_half`."""
    x = np.asarray(spectrum, dtype=np.complex128)
    points = x.shape[-1] - 1
    if points < 1:
        raise ValueError(
            f"spectrum must hold N / 2 + 1 >= 2 values along its last axis; got shape {x.shape}."
        )
    k = np.arange(points)
    here, there = x[..., k], x[..., points - k].conj()
    return (here + there) / 2 + 0.5j * roots_of_unity(-k, 2 * points) * (here - there)


def half_filter(h: ArrayLike, plan: Plan) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Return ``A, B`` of shape ``[..., P]`` in digit order, so that ``Zy = A Z + B Z'`` convolves.

    Args:
        h: the filter on the circle of ``plan.n`` samples, real, ``[..., N]``.
        plan: a plan with packing "half".

    Returns:
        A and B scaled for unitary transforms: ``transform(inverse)`` of ``A Z + B Z'`` is the packed
        convolution when ``Z`` is the unitary ``transform(pack_half(x), plan)`` and ``Z' = conj(Z[...,
        plan.mirror()])``.
    """
    if plan.packing != "half":
        raise ValueError(f'plan must have packing "half"; got {plan}.')
    samples = _real(h, "h")
    scale = np.sqrt(plan.points)
    even = scale * transform(samples[..., 0::2], plan)
    odd = scale * transform(samples[..., 1::2], plan)
    delay = roots_of_unity(plan.frequencies().reshape(-1), plan.points)
    return even + 0.5j * (1 - delay) * odd, 0.5j * (1 + delay) * odd


def pack_right_angle(x: ArrayLike) -> NDArray[np.complex128]:
    """``[..., P]`` real ``-> [..., P]`` complex: sample n turned back by n / P of a right angle."""
    data = _real(x, "x")
    if data.ndim == 0:
        raise ValueError("x must have an axis of samples, [..., P]; got a scalar.")
    points = data.shape[-1]
    return data * roots_of_unity(np.arange(points), 4 * points)


def unpack_right_angle(z: ArrayLike) -> NDArray[np.float64]:
    """``[..., P]`` complex ``-> [..., P]`` real: samples turned forth again, of which the real part is wanted."""
    data = np.asarray(z, dtype=np.complex128)
    points = data.shape[-1]
    return (data * roots_of_unity(-np.arange(points), 4 * points)).real


def right_angle_filter(h: ArrayLike, plan: Plan) -> NDArray[np.complex128]:
    """Return the spectrum ``[..., P]``, in digit order, that convolves what `pack_right_angle` made.

    Args:
        h: the filter on the circle of ``plan.n`` samples, real, ``[..., N]``; lags of N / 2 do not matter.
        plan: a plan with packing "right-angle".

    Returns:
        The filter's values at ``exp(2 pi i (k + 1/4) / P)``, scaled for unitary transforms.
    """
    if plan.packing != "right-angle":
        raise ValueError(f'plan must have packing "right-angle"; got {plan}.')
    return np.sqrt(plan.points) * transform(fold_right_angle(_real(h, "h")), plan)


def fold_right_angle(h: NDArray[np.floating]) -> NDArray[np.complex128]:
    """Fold a filter on a circle, ``[..., N] -> [..., N / 2]``: lags n and n - N / 2, turned by n."""
    points = h.shape[-1] // 2
    return (h[..., :points] + 1j * h[..., points:]) * roots_of_unity(np.arange(points), 4 * points)
