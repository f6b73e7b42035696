"""Convolution layers in two dimensions and both their gradients, by FFT on tensor cores or by the direct library.

The meaning is that of PyTorch's functional ``conv2d``, a cross-correlation (``reference.conv2d`` has the sums):

    >>> import numpy as np, kernels_numba
    >>> x = np.ones((1, 1, 4, 4), np.float16)
    >>> w = np.ones((1, 1, 3, 3), np.float16)
    >>> kernels_numba.conv2d(x, w).shape
    (1, 1, 2, 2)

By FFT, maps are cut into tiles of 16 to 64 rows and columns (`conv2d_tiles`); each pass transforms its operands, forms
a product of matrices over channels at every frequency, and transforms back (`conv2d_plan`). Spectra are in half
precision, sums in float32; of fp32 all is in float32. An FFT promises an error that is small beside the size of the
result as a whole, not beside every single element: small outputs next to large ones may drown, and a sum of terms that
are not negative may come out below zero.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.conv2d_calls import key_of, remembered
from kernels_numba.conv2d_checks import groups_of, layer_of, shape_of, tile_of
from kernels_numba.conv2d_dispatch import Explanation, explain
from kernels_numba.conv2d_geometry import Geometry, pair
from kernels_numba.conv2d_kept import Conv2dSpectra, place_of
from kernels_numba.conv2d_passes import ample_bytes, run_gradients, run_pass
from kernels_numba.device import LARGEST_SHARED_BYTES, device
from kernels_numba.tile.layout import STORAGE_TYPES

__all__ = [
    "Conv2dSpectra",
    "conv2d",
    "conv2d_gradients",
    "conv2d_input_gradient",
    "conv2d_weight_gradient",
    "explain_conv2d",
]


def conv2d(
    x: Any,
    w: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    impl: str | None = None,
    tile: Any = None,
    memory: int | None = None,
    out: Any = None,
    keep: Conv2dSpectra | None = None,
) -> Any:
    """The layer's result ``y [N, O, h, w]`` of ``x [N, C, H, W]`` and ``w [O, C / groups, kh, kw]``.

    Args:
        x: fp16, bf16 or fp32, contiguous; NumPy, PyTorch, CuPy or Numba. N may be 0.
        w: filters, of the dtype and the place of x.
        stride: samples from output to output, one integer or two (rows first).
        padding: zeros on each side, one integer or two; "valid" (none), or "same" (as many outputs as inputs).
        dilation: samples from tap to tap, one integer or two.
        groups: of channels that are not mixed; ``groups = C`` is depthwise.
        impl: "fft"; "direct", the library's convolution, for PyTorch tensors on a GPU; by default what
            :func:`explain_conv2d` says.
        tile: rows and columns of a tile, 16, 32, 48 or 64, one number or two; by default the model's choice.
        memory: the most bytes of spectra to hold at once; images then go in groups. By default a quarter of the
            GPU's memory, or if that does not suffice, what one image needs.
        out: where to put the result; it must not overlap x or w.
        keep: keeps the spectra of x and w for the gradients; by FFT only, and not with images in groups. Tiles are
            then those in which the three passes together are fastest.

    Raises:
        TypeError: an argument is not an array, or its dtype is not accepted (nothing is converted silently).
        ValueError: a shape, setting, device or memory layout is not accepted, or ``memory`` does not suffice (the
            message says what would). Nothing has been allocated then.
        LaunchError: the GPU refused a kernel, or an earlier kernel failed.
    """
    asked = {"impl": impl, "tile": tile, "memory": memory}
    key = key_of("forward", x, w, (stride, padding, dilation, groups, asked), out, keep is not None)
    if call := remembered(key):
        spectra: dict[str, Any] = {}
        if (y := call(x, w, out, spectra)) is not None:
            if keep is not None:
                keep.hold(call.plan, place_of(call.adapter, call.index), **spectra)
            return y
    geometry = layer_of(shape_of(x, "x"), shape_of(w, "w"), stride, padding, dilation, groups)
    return run_pass(geometry, "forward", {"x": x, "w": w}, out=out, keep=keep, key=key, **asked)


def conv2d_input_gradient(
    dy: Any,
    w: Any,
    *,
    input_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    impl: str | None = None,
    tile: Any = None,
    memory: int | None = None,
    out: Any = None,
    keep: Conv2dSpectra | None = None,
) -> Any:
    """The gradient in x ``[N, C, H, W]`` from that in y; ``input_size`` is H, W (several may give one y).

    ``keep``: the spectrum of w that :func:`conv2d` kept. The other arguments and errors are those of :func:`conv2d`.
    """
    asked, known = {"impl": impl, "tile": tile, "memory": memory}, None if keep is None else keep.known
    settings = (input_size, stride, padding, dilation, groups, asked)
    key = key_of("input", dy, w, settings, out, known)
    given = {} if keep is None else {"w": keep.w}
    if (call := remembered(key)) and (dx := call(dy, w, out, given)) is not None:
        return dx
    shape, taps = shape_of(dy, "dy"), shape_of(w, "w")
    size = pair(input_size, "input_size", "H and W of x")
    geometry = layer_of(
        (shape[0], taps[1] * groups_of(groups), *size), taps, stride, padding, dilation, groups
    )
    arrays = {"dy": dy, "w": w}
    return run_pass(geometry, "input_gradient", arrays, out=out, keep=keep, key=key, **asked)


def conv2d_weight_gradient(
    x: Any,
    dy: Any,
    *,
    kernel_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    impl: str | None = None,
    tile: Any = None,
    memory: int | None = None,
    out: Any = None,
    keep: Conv2dSpectra | None = None,
) -> Any:
    """The gradient in w ``[O, C / groups, kh, kw]`` from that in y; ``kernel_size`` is kh, kw.

    ``keep``: the spectrum of x that :func:`conv2d` kept. The other arguments and errors are those of :func:`conv2d`.
    Where images go in groups, sums from group to group are in float32.
    """
    asked, known = {"impl": impl, "tile": tile, "memory": memory}, None if keep is None else keep.known
    settings = (kernel_size, stride, padding, dilation, groups, asked)
    key = key_of("weight", x, dy, settings, out, known)
    given = {} if keep is None else {"x": keep.x}
    if (call := remembered(key)) and (dw := call(x, dy, out, given)) is not None:
        return dw
    x_shape, dy_shape, count = shape_of(x, "x"), shape_of(dy, "dy"), groups_of(groups)
    if x_shape[1] % count:
        raise ValueError(f"x: expected C divisible by groups={groups}; got C={x_shape[1]}")
    taps = pair(kernel_size, "kernel_size", "kh and kw of w")
    geometry = layer_of(x_shape, (dy_shape[1], x_shape[1] // count, *taps), stride, padding, dilation, groups)
    arrays = {"x": x, "dy": dy}
    return run_pass(geometry, "weight_gradient", arrays, out=out, keep=keep, key=key, **asked)


def conv2d_gradients(
    dy: Any,
    x: Any,
    w: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    impl: str | None = None,
    tile: Any = None,
    memory: int | None = None,
    out: tuple[Any, Any] | None = None,
    keep: Conv2dSpectra | None = None,
) -> tuple[Any, Any]:
    """Both gradients, in x and in w, from that in y; where one tile holds a map, dy is transformed once for both.

    ``keep``: the spectra of x and w that :func:`conv2d` kept; ``out``: two arrays. The other arguments and errors are
    those of :func:`conv2d`.
    """
    outs = (None, None) if out is None else tuple(out)
    if len(outs) != 2:
        raise ValueError(f"out: expected two arrays, for the gradients in x and in w; got {len(outs)}")
    asked, known = {"impl": impl, "tile": tile, "memory": memory}, None if keep is None else keep.known
    settings = (stride, padding, dilation, groups, asked, getattr(w, "shape", None), [type(a) for a in outs])
    key = key_of("gradients", dy, x, settings, out, known)
    given = {} if keep is None else {"x": keep.x, "w": keep.w}
    if (call := remembered(key)) and (found := call(dy, (x, w), outs, given)) is not None:
        return found
    geometry = layer_of(shape_of(x, "x"), shape_of(w, "w"), stride, padding, dilation, groups)
    arrays = {"dy": dy, "x": x, "w": w}
    return run_gradients(geometry, arrays, out=outs, keep=keep, key=key, **asked)


def explain_conv2d(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    dtype: str = "fp16",
    which: str = "forward",
    tile: Any = None,
    memory: int | None = None,
) -> Explanation:
    """Which way a pass ("forward", "input_gradient" or "weight_gradient") of a layer goes here, and why."""
    geometry = Geometry.of(x_shape, w_shape, stride=stride, padding=padding, dilation=dilation, groups=groups)
    if dtype not in STORAGE_TYPES:
        raise ValueError(f"dtype: expected one of {', '.join(STORAGE_TYPES)}; got {dtype!r}")
    where = device()
    return explain(
        geometry,
        which,
        dtype,
        sm_count=where.sm_count,
        tile=tile_of(tile),
        memory=memory,
        ample=ample_bytes(where),
        shared_limit=where.shared_bytes_per_block or LARGEST_SHARED_BYTES,
    )
