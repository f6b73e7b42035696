"""Convolution on a circle, and its two gradients, on spectra that are kept and used again.

With unitary transforms X, E of a signal x and of a gradient e in y, and the filter's plain spectrum H:

    y = x * h          Y = H X
    gradient in x      conj(H) E                       a product with H has the adjoint conj(H)
    gradient in h      sum over the batch of E conj(X), through the adjoint of the filter's transform

Packing "half" (`monarch.packing`) has ``Y = A X + B X'`` with ``X'[k] = conj X[-k]``. Its adjoint is
``conj(A) E + B[-k] E'``: the packed spectrum of the filter reversed in time. The gradients in A and B are
``E conj(X)`` and ``E conj(X')``. Packing "pair" needs nothing more: with ``e1 + i e2`` and ``x1 + i x2`` the real
part of the correlation is that of e1 with x1 plus that of e2 with x2, the very sum over the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import monarch

__all__ = ["Circle", "fold", "unfold"]

Array = NDArray[Any]
Filter = tuple[Array, Array | None]  # H and nothing, or A and B


def fold(y: Array, samples: int) -> Array:
    """Add what lies beyond ``samples`` to the front: a linear convolution becomes a circular one."""
    tail, y = y[..., samples:], y[..., :samples]
    if tail.shape[-1]:
        y = y.copy()
        y[..., : tail.shape[-1]] += tail
    return y


def unfold(e: Array, full: int) -> Array:
    """Go on with the front beyond the end, to ``full`` samples: the adjoint of `fold`."""
    return np.concatenate([e, e[..., : full - e.shape[-1]]], axis=-1)


@dataclass(frozen=True)
class Circle:
    """Transforms of ``batch`` signals of ``n`` samples: by `numpy.fft`, or by the plan's Monarch transform."""

    n: int
    batch: int
    real: bool
    plan: monarch.Plan | None = None
    kept: Array | None = None
    """Without a plan, what spectra of filters are multiplied by, by frequency: real and the same for k and -k of real
    signals."""

    def __post_init__(self) -> None:
        if self.plan is not None and self.plan.packing != "complex" and not self.real:
            raise TypeError(
                f'plan must have packing="complex" for complex u, k or pregate; got {self.plan}. '
                f'monarch.plan({self.plan.n}, packing="complex") makes one.'
            )
        if self.plan is not None and self.plan.packing == "right-angle":
            raise ValueError(
                f"plan must be of a whole circle, and {self.plan} is of half of one; "
                f'Plan({self.plan.n}, factors, packing="pair") is.'
            )

    def of_signal(self, x: Array) -> Array:
        """Transform signals: ``[B, ..., L]``, padded with zeros, to ``[B', ..., frequencies]``."""
        x = np.concatenate([x, np.zeros((*x.shape[:-1], self.n - x.shape[-1]), x.dtype)], axis=-1)
        if self.plan is None:
            return np.fft.rfft(x, norm="ortho") if self.real else np.fft.fft(x, norm="ortho")
        if self.plan.packing == "complex":
            return monarch.transform(x, self.plan)
        pack = monarch.pack_half if self.plan.packing == "half" else monarch.pack_pairs
        return monarch.transform(pack(x), self.plan)

    def to_signal(self, spectrum: Array) -> Array:
        """Undo `of_signal`: ``[B, ..., n]``."""
        if self.plan is None:
            if self.real:
                return np.fft.irfft(spectrum, self.n, norm="ortho")
            return np.fft.ifft(spectrum, norm="ortho")
        z = monarch.transform(spectrum, self.plan, inverse=True)
        if self.plan.packing == "half":
            return monarch.unpack_half(z)
        if self.plan.packing == "pair":
            return monarch.unpack_pairs(z, self.batch)
        return z.real if self.real else z

    def of_filter(self, h: Array) -> Filter:
        """Transform filters on the circle, ``[n]`` or ``[H, n]``; not scaled."""
        if self.plan is None:
            return self._masked(np.fft.rfft(h) if self.real else np.fft.fft(h)), None
        if self.plan.packing == "half":
            return monarch.half_filter(h, self.plan)
        return monarch.filter_spectrum(h, self.plan), None

    def convolve(self, spectrum: Array, of_h: Filter) -> Array:
        """Return the spectrum of the convolution: a product."""
        a, b = of_h
        return a * spectrum if b is None else a * spectrum + b * self._mirrored(spectrum)

    def signal_gradient(self, of_e: Array, of_h: Filter) -> Array:
        """Return the spectrum of the gradient in the signal: a convolution with the filter reversed in time."""
        a, b = of_h
        return self.convolve(of_e, (a.conj(), None if b is None else self._mirrored(b).conj()))

    def filter_gradient(self, of_e: Array, of_x: Array) -> Array:
        """Return the gradient in the filter on the circle, ``[..., n]``, summed over the batch.

        The sum is taken of spectra, so one inverse transform serves the batch.
        """
        in_a = np.sum(of_e * of_x.conj(), axis=0)
        if self.plan is None:
            return np.sqrt(self.n) * self.to_signal(self._masked(in_a))
        if self.plan.packing == "half":
            in_b = np.sum(of_e * self._mirrored(of_x).conj(), axis=0)
            return monarch.half_filter_adjoint(in_a, in_b, self.plan)
        h = monarch.filter_spectrum_adjoint(in_a, self.plan)
        return h.real if self.real else h

    def _masked(self, spectrum: Array) -> Array:
        """Return the spectrum with its zeros."""
        return spectrum if self.kept is None else spectrum * self.kept[: spectrum.shape[-1]]

    def _mirrored(self, spectrum: Array) -> Array:
        """Return ``conj X[-k]``."""
        assert self.plan is not None
        return spectrum[..., self.plan.mirror()].conj()
