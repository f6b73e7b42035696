"""Partial convolutions: a filter much shorter than the signal, by overlap-save, chunk by chunk.

Causal, ``y[n] = sum_{j < K} k[j] u[n - j]``: an output needs the last ``K - 1`` samples and no others, so a
sequence of any length goes through a tile of ``N`` samples, ``K - 1`` old ones and ``N - K + 1`` new ones.
What wraps around on the tile's circle falls on the first ``K - 1`` outputs, which are dropped.

Sources: Fu et al., FlashFFTConv, arXiv 2311.05908, section on partial convolutions; overlap-save: Stockham,
*High-speed convolution and correlation*, AFIPS SJCC 28 (1966).
"""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import check_shapes, whole, widen

__all__ = ["FFTConvStream", "overlap_save_tile", "partial_fftconv"]

_SHORTEST = 256  # below this a call of the FFT costs more than its arithmetic


def overlap_save_tile(taps: int, samples: int | None = None) -> int:
    """Return the tile length N of the fewest operations per output, a power of two of at least 256.

    A tile costs about ``N log2 N`` and yields ``N - K + 1`` outputs. Their quotient is least where ``N =
    (K - 1) (1 + ln N)``, which is 5 to 20 times K, and nearly flat around it.

    Args:
        taps: K.
        samples: L, if known: no tile is longer than the whole linear convolution needs.
    """
    taps = whole(taps, "taps", "the taps K of the filter")
    powers = [max(_SHORTEST, 1 << (taps - 1).bit_length())]
    while powers[-1] < 64 * taps:
        powers.append(2 * powers[-1])
    tile = min(powers, key=lambda n: (n * log2(n) / (n - taps + 1), n))
    if samples is not None:
        least = whole(samples, "samples", "the samples L of the signal") + taps - 1
        tile = min(tile, max(_SHORTEST, 1 << (least - 1).bit_length()))
    return tile


class FFTConvStream:
    """A causal convolution of sequences that arrive in chunks; float64, or complex128 for complex data.

    Args:
        k: the filter, ``[H, K]``, or ``[K]`` for all.
        shape: the leading shape of the chunks, ``(B, H)`` or any ``(..., H)``; ``()`` for one sequence.
        tile: N, at least K; None for `overlap_save_tile`.

    Raises TypeError for a dtype that double precision does not hold, ValueError for an empty or misshapen
    argument and for a tile shorter than the filter.
    """

    def __init__(self, k: ArrayLike, shape: tuple[int, ...], *, tile: int | None = None) -> None:
        self._taps = widen(k, "k")
        self._shape = tuple(whole(n, "shape", "sequences along an axis") for n in shape)
        check_shapes(np.broadcast_to(0.0, (*self._shape, 1)), self._taps)
        self.taps = self._taps.shape[-1]
        tile = overlap_save_tile(self.taps) if tile is None else tile
        self.tile = whole(tile, "tile", "the samples N of a tile")
        if self.tile < self.taps:
            raise ValueError(f"tile must be at least K={self.taps}, one new sample; got {self.tile}.")
        self._real = not np.iscomplexobj(self._taps)
        self._spectrum = (np.fft.rfft if self._real else np.fft.fft)(self._taps, self.tile)
        self.reset()

    @property
    def state(self) -> NDArray[Any]:
        """A copy of the last ``K - 1`` samples, after the gate, ``[*shape, K - 1]``; zeros at the start."""
        return self._past.copy()

    @property
    def workspace(self) -> int:
        """Bytes for real data beside input and output, whatever L is: state, filter, and one tile, 60 N."""
        sequences = int(np.prod(self._shape))
        return sequences * (8 * (self.taps - 1) + 60 * self.tile) + self._spectrum.nbytes

    def reset(self) -> None:
        """Start again, with zeros in the past."""
        self._past: NDArray[Any] = np.zeros((*self._shape, self.taps - 1))

    def restore(self, state: ArrayLike) -> None:
        """Continue from a `state` saved before, of this stream or of another of the same filter."""
        past = widen(state, "state")
        if past.shape != self._past.shape:
            raise ValueError(f"state must have shape {self._past.shape}; got {past.shape}.")
        self._past = past

    def __call__(
        self, u: ArrayLike, *, pregate: ArrayLike | None = None, postgate: ArrayLike | None = None
    ) -> NDArray[Any]:
        """Convolve the next chunk, ``[*shape, any]``, gated or not; a chunk that is refused changes nothing."""
        named = {"u": u, "pregate": pregate, "postgate": postgate}
        arrays = {name: np.asarray(a) for name, a in named.items() if name == "u" or a is not None}
        for name, array in arrays.items():
            if array.shape != (*self._shape, *arrays["u"].shape[-1:]) or array.ndim == 0:
                raise ValueError(f"{name} must have shape {(*self._shape, 'any')}, as u; got {array.shape}.")
        before, step = self._past, self.tile - self.taps + 1
        empty = [widen(a[..., :0], name) for name, a in arrays.items()]  # their dtypes, checked
        y = np.empty(arrays["u"].shape, np.result_type(self._past, self._taps, *empty))
        try:
            for start in range(0, y.shape[-1], step):
                part = {name: widen(a[..., start : start + step], name) for name, a in arrays.items()}
                out = self._convolve(part["u"] * part.get("pregate", 1.0))
                y[..., start : start + step] = out * part.get("postgate", 1.0)
        except TypeError:
            self._past = before
            raise
        return y

    def _convolve(self, new: NDArray[Any]) -> NDArray[Any]:
        """At most ``N - K + 1`` new samples, already gated, and the past moved on by as many."""
        samples = new.shape[-1]
        x = np.concatenate([self._past, new], axis=-1)
        self._past = x[..., samples:].copy()
        if samples * self.taps <= self.tile * log2(self.tile):  # the sum is cheaper than a tile: decoding
            windows = np.lib.stride_tricks.sliding_window_view(x, self.taps, axis=-1)
            return (windows @ self._taps[..., ::-1, None])[..., 0]
        if self._real and not np.iscomplexobj(x):
            product = np.fft.rfft(x, self.tile)
            product *= self._spectrum
            return np.fft.irfft(product, self.tile)[..., self.taps - 1 : x.shape[-1]]
        spectrum = np.fft.fft(self._taps, self.tile) if self._real else self._spectrum
        return np.fft.ifft(np.fft.fft(x, self.tile) * spectrum)[..., self.taps - 1 : x.shape[-1]]


def partial_fftconv(
    u: ArrayLike,
    k: ArrayLike,
    *,
    tile: int | None = None,
    pregate: ArrayLike | None = None,
    postgate: ArrayLike | None = None,
) -> NDArray[Any]:
    """Convolve ``u [..., H, L]`` with ``k [H, K]`` or ``[K]`` as ``fftconv(mode="causal")``, tile by tile.

    Beside input and output it takes `FFTConvStream.workspace` bytes, about ``60 N`` a sequence, gates included;
    ``tile`` is N, None for ``overlap_save_tile(K, L)``. Dtypes and errors are those of `fftconv`.
    """
    data, taps = np.asarray(u), np.asarray(k)
    check_shapes(data, taps)
    if tile is None:
        tile = overlap_save_tile(taps.shape[-1], data.shape[-1])
    return FFTConvStream(taps, data.shape[:-1], tile=tile)(data, pregate=pregate, postgate=postgate)
