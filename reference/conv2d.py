"""Convolution layers in two dimensions, float64: the layer and both its gradients, direct or by FFT.

The meaning is that of PyTorch's functional ``conv2d``: a cross-correlation, the filter is not flipped. With
``x [S, Cin, n, m]``, ``w [Cout, Cin / groups, kh, kw]`` and xp the zero-padded x, for every output o and the inputs
c of its group:

    y[s, o, a, b]   = sum_{c, i, j} w[o, c, i, j] xp[s, c, a sh + i dh, b sw + j dw]

A loss with gradient g in y, of the shape of y, has by the transposed sums the gradients

    gx[s, c, a sh + i dh, b sw + j dw] += w[o, c, i, j] g[s, o, a, b]      then the padding is cut off
    gw[o, c, i, j]  = sum_{s, a, b} g[s, o, a, b] xp[s, c, a sh + i dh, b sw + j dw]

so <y, g> = <x, gx> = <w, gw>. The direct method goes tap by tap: a window of xp, strided, and one matrix product over
the channels. ``method="fft"`` goes through `reference.Conv2dTransforms`; the two agree to about 1e-15 of
||x|| ||w||, which is all that an FFT promises: small outputs beside large ones may drown, and a sum of terms that are
not negative may come out below zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import whole
from ._geometry import Geometry, images, pair
from .conv2d_direct import direct_forward, direct_input_gradient, direct_weight_gradient
from .conv2d_fft import Conv2dTransforms

__all__ = ["conv2d", "conv2d_input_gradient", "conv2d_weight_gradient"]

Array = NDArray[np.float64]
Integers = int | Sequence[int]
METHODS = ("direct", "fft")
SHAPE_OF_W = "[Cout, Cin / groups, kh, kw]"


def _transforms(method: str, geometry: Geometry) -> Conv2dTransforms | None:
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}.")
    return Conv2dTransforms(geometry) if method == "fft" else None


def conv2d(
    x: ArrayLike,
    w: ArrayLike,
    *,
    stride: Integers = 1,
    padding: Integers | str = 0,
    dilation: Integers = 1,
    groups: int = 1,
    method: str = "direct",
) -> Array:
    """Return the layer's result ``[S, Cout, h, w]`` for ``x [S, Cin, n, m]``, ``w [Cout, Cin / groups, kh, kw]``.

    Args:
        x: real, any dtype up to double; S may be 0.
        w: likewise; it must fit into the padded ``x``.
        stride: samples from output to output, one integer or two (rows first).
        padding: zeros on each side, one integer or two; or "valid" (none) or "same" (as many outputs as
            inputs, stride 1 only; where the zeros of a side are uneven, the extra one goes right and below).
        dilation: samples from tap to tap, one integer or two.
        groups: of channels that are not mixed; ``groups = Cin`` is depthwise.
        method: "direct" or "fft".

    Raises:
        TypeError: complex data, a dtype that double precision does not hold, or a number that is no integer.
        ValueError: shapes that do not fit each other or the padding, or an unknown name.
    """
    x, w = images(x, "x", "[S, Cin, n, m]"), images(w, "w", SHAPE_OF_W)
    geometry = Geometry.of(x.shape, w.shape, stride=stride, padding=padding, dilation=dilation, groups=groups)
    if transforms := _transforms(method, geometry):
        return transforms.forward(transforms.of_x(x), transforms.of_w(w))
    return direct_forward(x, w, geometry)


def conv2d_input_gradient(
    gradient: ArrayLike,
    w: ArrayLike,
    *,
    size: Integers,
    stride: Integers = 1,
    padding: Integers | str = 0,
    dilation: Integers = 1,
    groups: int = 1,
    method: str = "direct",
) -> Array:
    """Return the gradient in x ``[S, Cin, n, m]`` from that in y, ``[S, Cout, h, w]``; ``size`` is n, m.

    The other arguments and errors are those of `conv2d`. The size must be told because several may give one y.
    """
    g, w = images(gradient, "gradient", "[S, Cout, h, w]"), images(w, "w", SHAPE_OF_W)
    groups = whole(groups, "groups", "of channels that are not mixed")
    shape = (g.shape[0], w.shape[1] * groups, *pair(size, "size", "n and m of x"))
    geometry = Geometry.of(shape, w.shape, stride=stride, padding=padding, dilation=dilation, groups=groups)
    geometry.check(g.shape)
    if transforms := _transforms(method, geometry):
        return transforms.input_gradient(transforms.of_gradient(g), transforms.of_w(w))
    return direct_input_gradient(g, w, geometry)


def conv2d_weight_gradient(
    gradient: ArrayLike,
    x: ArrayLike,
    *,
    size: Integers,
    stride: Integers = 1,
    padding: Integers | str = 0,
    dilation: Integers = 1,
    groups: int = 1,
    method: str = "direct",
) -> Array:
    """Return the gradient in w ``[Cout, Cin / groups, kh, kw]`` from that in y; ``size`` is kh, kw.

    The other arguments and errors are those of `conv2d`.
    """
    g, x = images(gradient, "gradient", "[S, Cout, h, w]"), images(x, "x", "[S, Cin, n, m]")
    groups = whole(groups, "groups", "of channels that are not mixed")
    if x.shape[1] % groups:
        raise ValueError(f"x must have Cin divisible by groups={groups}; got Cin={x.shape[1]}.")
    shape = (g.shape[1], x.shape[1] // groups, *pair(size, "size", "kh and kw of w"))
    geometry = Geometry.of(
        x.shape, shape, stride=stride, padding=padding, dilation=dilation, groups=groups, filters="gradient"
    )
    geometry.check(g.shape)
    if transforms := _transforms(method, geometry):
        return transforms.weight_gradient(transforms.of_gradient(g), transforms.of_x(x))
    return direct_weight_gradient(g, x, geometry)
