"""Two-dimensional convolution layers tap by tap: a strided window of the padded input, and one matrix product.

For the tap (i, j), Xij is what lies under it, ``[Cin / groups, h w]`` for each sample and group, and Wij its weights,
``[Cout / groups, Cin / groups]``. With G the gradient in y, ``[Cout / groups, h w]``, the three passes are

    y += Wij Xij            gradient of Xij += Wij^T G            gradient of Wij = sum over samples of G Xij^T

No array is larger than the input, the result or the weights. `reference.conv2d` checks the arguments.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ._geometry import Geometry

__all__ = ["direct_forward", "direct_input_gradient", "direct_weight_gradient"]

Array = NDArray[np.float64]


def _windows(xp: Array, geometry: Geometry) -> Iterator[tuple[int, int, Array]]:
    """Yield every tap and the samples of the padded ``xp`` under it, a view ``[S, groups, Cin / groups, h, w]``."""
    (samples, _, rows, columns), (sh, sw), (dh, dw) = geometry.y_shape, geometry.stride, geometry.dilation
    _, channels, kh, kw = geometry.w_shape
    grouped = xp.reshape(samples, geometry.groups, channels, *geometry.padded)
    for i in range(kh):
        for j in range(kw):
            down = slice(i * dh, i * dh + (rows - 1) * sh + 1, sh)
            across = slice(j * dw, j * dw + (columns - 1) * sw + 1, sw)
            yield i, j, grouped[..., down, across]


def _flat(window: Array) -> Array:
    """Join the last two axes."""
    return window.reshape(*window.shape[:-2], window.shape[-2] * window.shape[-1])


def _by_group(y: Array, geometry: Geometry) -> Array:
    """See the result or its gradient as ``[S, groups, Cout / groups, h w]``."""
    samples, channels, rows, columns = geometry.y_shape
    return y.reshape(samples, geometry.groups, channels // geometry.groups, rows * columns)


def _taps(w: Array, geometry: Geometry) -> Array:
    return w.reshape(geometry.groups, w.shape[0] // geometry.groups, *w.shape[1:])


def direct_forward(x: Array, w: Array, geometry: Geometry) -> Array:
    """Return y ``[S, Cout, h, w]``."""
    y = np.zeros(geometry.y_shape)
    total, taps = _by_group(y, geometry), _taps(w, geometry)
    for i, j, window in _windows(geometry.pad(x), geometry):
        total += taps[..., i, j] @ _flat(window)
    return y


def direct_input_gradient(g: Array, w: Array, geometry: Geometry) -> Array:
    """Return the gradient in x ``[S, Cin, n, m]``."""
    xp = np.zeros((*geometry.x_shape[:2], *geometry.padded))
    grouped, taps = _by_group(g, geometry), _taps(w, geometry)
    for i, j, window in _windows(xp, geometry):
        window += (taps[..., i, j].swapaxes(1, 2) @ grouped).reshape(window.shape)
    return geometry.crop(xp).copy()


def direct_weight_gradient(g: Array, x: Array, geometry: Geometry) -> Array:
    """Return the gradient in w ``[Cout, Cin / groups, kh, kw]``."""
    gw = np.zeros(geometry.w_shape)
    grouped, taps = _by_group(g, geometry), _taps(gw, geometry)
    for i, j, window in _windows(geometry.pad(x), geometry):
        taps[..., i, j] = np.sum(grouped @ _flat(window).swapaxes(2, 3), axis=0)
    return gw
