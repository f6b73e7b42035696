r"""Two-dimensional convolution layers by FFT, with transforms that are reused.

Source: Mathieu, Henaff, LeCun, *Fast Training of Convolutional Networks through FFTs*, arXiv 1312.5851 (2013).
On a torus of P x Q points, at least the padded input, let X, W and G be the real transforms of the padded input, of
the filter with its taps spread by the dilation, and of the gradient in y with zeros between the strides. At every
frequency, summed over what the two have in common (per group of channels), the three passes are the products

    Y   [S, Cout]    = X W^H      over inputs     then every stride-th sample of the first `dense`
    Gx  [S, Cin]     = G W        over outputs    then the padding is cut off
    Gw  [Cout, Cin]  = G^H X      over samples    then every dilation-th sample of the first `span`

(conjugates make them correlations). Nothing wraps around: y reads at most sample (dense - 1) + (span - 1) =
padded - 1 <= P - 1, gx ends there too, and gw reads no more than y. Each of the three transforms serves two passes.
Odd sizes keep all their samples, because the inverse is told P and Q.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import widen_real
from ._geometry import Geometry, Pair, pair
from ._spectra import Conv2dSpectrum, to_matrices, to_samples

__all__ = ["Conv2dSpectrum", "Conv2dTransforms", "conv2d_transforms"]

Array = NDArray[np.float64]


class Conv2dTransforms:
    """The transforms of one layer and its three passes on spectra; made by `conv2d_transforms`."""

    def __init__(self, geometry: Geometry, lengths: Pair | None = None) -> None:
        self.geometry = geometry
        self.lengths = geometry.padded if lengths is None else lengths
        if any(have < need for have, need in zip(self.lengths, geometry.padded, strict=True)):
            raise ValueError(
                f"lengths must be at least the padded input's, {geometry.padded}; got {lengths}."
            )

    def of_x(self, x: ArrayLike) -> Conv2dSpectrum:
        """Transform the input, for `forward` and `weight_gradient`."""
        data = self._checked(x, "x", self.geometry.x_shape)
        return self._transform("x", self.geometry.pad(data))

    def of_w(self, w: ArrayLike) -> Conv2dSpectrum:
        """Transform the filter, for `forward` and `input_gradient`."""
        data, (dh, dw) = self._checked(w, "w", self.geometry.w_shape), self.geometry.dilation
        spread = np.zeros((*data.shape[:2], (data.shape[2] - 1) * dh + 1, (data.shape[3] - 1) * dw + 1))
        spread[..., ::dh, ::dw] = data
        return self._transform("w", spread)

    def of_gradient(self, gradient: ArrayLike) -> Conv2dSpectrum:
        """Transform the gradient in y, for `input_gradient` and `weight_gradient`."""
        data, (sh, sw) = self._checked(gradient, "gradient", self.geometry.y_shape), self.geometry.stride
        dense = np.zeros((*data.shape[:2], *self.geometry.dense))
        dense[..., ::sh, ::sw] = data
        return self._transform("gradient", dense)

    def forward(self, x: Conv2dSpectrum, w: Conv2dSpectrum) -> Array:
        """Return y ``[S, Cout, h, w]``."""
        product = self._values(x, "x") @ self._values(w, "w").conj().swapaxes(-1, -2)
        (rows, columns), (sh, sw) = self.geometry.dense, self.geometry.stride
        return to_samples(product, self.lengths)[..., :rows:sh, :columns:sw].copy()

    def input_gradient(self, gradient: Conv2dSpectrum, w: Conv2dSpectrum) -> Array:
        """Return the gradient in x ``[S, Cin, n, m]``."""
        product = self._values(gradient, "gradient") @ self._values(w, "w")
        return self.geometry.crop(to_samples(product, self.lengths)).copy()

    def weight_gradient(self, gradient: Conv2dSpectrum, x: Conv2dSpectrum) -> Array:
        """Return the gradient in w ``[Cout, Cin / groups, kh, kw]``."""
        product = self._values(gradient, "gradient").conj().swapaxes(-1, -2) @ self._values(x, "x")
        (dh, dw), (_, _, kh, kw) = self.geometry.dilation, self.geometry.w_shape
        return to_samples(product, self.lengths, filters=True)[..., ::dh, ::dw][..., :kh, :kw].copy()

    def _checked(self, data: ArrayLike, name: str, shape: tuple[int, ...]) -> Array:
        wide = widen_real(data, name)
        if wide.shape != shape:
            raise ValueError(
                f"{name} must have the shape {shape} that the transforms were made for; got {wide.shape}."
            )
        return wide

    def _transform(self, of: str, data: Array) -> Conv2dSpectrum:
        return Conv2dSpectrum(of, to_matrices(data, self.lengths, self.geometry.groups, filters=of == "w"))

    def _values(self, spectrum: Conv2dSpectrum, of: str) -> NDArray[np.complex128]:
        """Return the values of the right spectrum of this layer, or raise."""
        if not isinstance(spectrum, Conv2dSpectrum) or spectrum.of != of:
            made = spectrum.of if isinstance(spectrum, Conv2dSpectrum) else type(spectrum).__name__
            raise TypeError(f"{of} must be the spectrum that of_{of} makes; got that of {made!r}.")
        (samples, inputs, _, _), (outputs, channels, _, _) = self.geometry.x_shape, self.geometry.w_shape
        groups, (rows, columns) = self.geometry.groups, self.lengths
        matrix = {
            "x": (samples, inputs // groups),
            "w": (outputs // groups, channels),
            "gradient": (samples, outputs // groups),
        }[of]
        shape = (rows, columns // 2 + 1, groups, *matrix)
        if spectrum.values.shape != shape:
            raise ValueError(f"{of} must be a spectrum of this layer, {shape}; got {spectrum.values.shape}.")
        return spectrum.values


def conv2d_transforms(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    lengths: int | Sequence[int] | None = None,
) -> Conv2dTransforms:
    """Return the transforms of a layer; the arguments are those of `conv2d`, with shapes for arrays.

    >>> layer = conv2d_transforms((1, 1, 3, 3), (1, 1, 2, 2))
    >>> ones = layer.of_x(np.ones((1, 1, 3, 3)))
    >>> layer.forward(ones, layer.of_w(np.ones((1, 1, 2, 2)))).round(12)
    array([[[[4., 4.],
             [4., 4.]]]])

    ``lengths`` P, Q are at least the padded input's, which is what they are if not given.
    """
    for name, shape in (("x_shape", x_shape), ("w_shape", w_shape)):
        if len(shape) != 4 or min(shape[1:]) < 1 or shape[0] < (name == "w_shape"):
            raise ValueError(
                f"{name} must be four lengths, none of them 0 but the number of samples; got {shape}."
            )
    geometry = Geometry.of(
        tuple(x_shape), tuple(w_shape), stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    return Conv2dTransforms(geometry, None if lengths is None else pair(lengths, "lengths", "P and Q"))
