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

import warnings
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.conv2d_calls import Direct, Repeated, again, is_whole, key_of, remember, run_on_gpu
from kernels_numba.conv2d_dispatch import Explanation, explain
from kernels_numba.conv2d_geometry import Geometry, pair
from kernels_numba.conv2d_plan import Plan
from kernels_numba.device import LARGEST_SHARED_BYTES, Device, device
from kernels_numba.fftconv import HostCopyWarning
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import STORAGE_TYPES

IMPLS = ("fft", "direct")
AMPLE_PART = 4
"""Of a GPU's memory spectra take one part in so many, where nobody sets a limit."""


class Conv2dSpectra:
    """The spectrum of a layer's input, kept by the forward pass for the gradient of the weights.

    Give the same object as ``keep`` to :func:`conv2d` and then to :func:`conv2d_weight_gradient`, with the same x. The
    second need not transform x again; it does not notice if x has changed. ``bytes`` of device (or host) memory are
    held until :meth:`clear`, or until the object goes.
    """

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.values: Any = None

    @property
    def bytes(self) -> int:
        """Memory that is held."""
        return 0 if self.plan is None else 4 * self.plan.words(self.plan.images)["A"]

    def clear(self) -> None:
        """Let the memory go."""
        self.plan = self.values = None


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
        keep: keeps the spectrum of x for `conv2d_weight_gradient`; by FFT only, and not with images in groups.

    Raises:
        TypeError: an argument is not an array, or its dtype is not accepted (nothing is converted silently).
        ValueError: a shape, setting, device or memory layout is not accepted, or ``memory`` does not suffice (the
            message says what would). Nothing has been allocated then.
        LaunchError: the GPU refused a kernel, or an earlier kernel failed.
    """
    key = key_of("forward", x, w, (stride, padding, dilation, groups, impl, tile, memory), out)
    if keep is None and (y := again(key, x, w, out)) is not None:
        return y
    geometry = _layer(_shape(x, "x"), _shape(w, "w"), stride, padding, dilation, groups)
    arrays = {"x": x, "w": w}
    return _run(geometry, "forward", arrays, geometry.y_shape, impl, tile, memory, out, keep, key)


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
) -> Any:
    """The gradient in x ``[N, C, H, W]`` from that in y; ``input_size`` is H, W (several may give one y).

    The other arguments and errors are those of :func:`conv2d`.
    """
    key = key_of("input", dy, w, (input_size, stride, padding, dilation, groups, impl, tile, memory), out)
    if (dx := again(key, dy, w, out)) is not None:
        return dx
    shape, taps = _shape(dy, "dy"), _shape(w, "w")
    size = pair(input_size, "input_size", "H and W of x")
    if isinstance(groups, bool) or not isinstance(groups, (int, np.integer)) or groups < 1:
        raise ValueError(f"groups: expected a whole number, at least 1; got {groups!r}")
    x_shape = (shape[0], taps[1] * int(groups), *size)
    geometry = _layer(x_shape, taps, stride, padding, dilation, groups)
    return _run(geometry, "input_gradient", {"dy": dy, "w": w}, x_shape, impl, tile, memory, out, None, key)


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
    key = key_of("weight", x, dy, (kernel_size, stride, padding, dilation, groups, impl, tile, memory), out)
    if keep is None and (dw := again(key, x, dy, out)) is not None:
        return dw
    x_shape, dy_shape = _shape(x, "x"), _shape(dy, "dy")
    if isinstance(groups, bool) or not isinstance(groups, (int, np.integer)) or groups < 1:
        raise ValueError(f"groups: expected a whole number, at least 1; got {groups!r}")
    if x_shape[1] % groups:
        raise ValueError(f"x: expected C divisible by groups={groups}; got C={x_shape[1]}")
    w_shape = (dy_shape[1], x_shape[1] // int(groups), *pair(kernel_size, "kernel_size", "kh and kw of w"))
    geometry = _layer(x_shape, w_shape, stride, padding, dilation, groups)
    return _run(geometry, "weight_gradient", {"x": x, "dy": dy}, w_shape, impl, tile, memory, out, keep, key)


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
        tile=_tile(tile),
        memory=memory,
        ample=_ample(where),
        shared_limit=where.shared_bytes_per_block or LARGEST_SHARED_BYTES,
    )


def conv2d_cpu(
    which: str, arrays: dict[str, NDArray], geometry: Geometry, *, tile: Any = None, memory: int | None = None
) -> tuple[NDArray, Counters]:
    """One pass on the CPU body: the result, and what all its launches did."""
    from kernels_numba.conv2d_run import run_cpu

    dtype = adapter_of(next(iter(arrays.values())), "x").dtype_name(next(iter(arrays.values())))
    plan = _plan(geometry, which, dtype, _tile(tile), memory, None, LARGEST_SHARED_BYTES)
    return run_cpu(plan, arrays, _result_shape(geometry, which))[:2]


# ---- arguments -----------------------------------------------------------------------------------------------
_layers: dict[tuple, Geometry] = {}


def _layer(x: tuple[int, ...], w: tuple[int, ...], *settings: Any) -> Geometry:
    """The layer, checked once for the same arguments: their text tells 1 from True and 1.0."""
    key = (x, w, repr(settings))
    found = _layers.get(key)
    if found is None:
        names = ("stride", "padding", "dilation", "groups")
        found = Geometry.of(x, w, **dict(zip(names, settings, strict=True)))
        if len(_layers) > 1024:
            _layers.clear()
        _layers[key] = found
    return found


def _shape(x: Any, name: str) -> tuple[int, ...]:
    adapter_of(x, name)
    shape = tuple(int(n) for n in x.shape)
    if len(shape) != 4:
        raise ValueError(f"{name}: expected an array of four axes, got shape {shape}")
    return shape


def _tile(tile: Any) -> tuple[int, int] | None:
    return None if tile is None else pair(tile, "tile", "rows and columns of a tile")


def _result_shape(geometry: Geometry, which: str) -> tuple[int, int, int, int]:
    shapes = {"forward": geometry.y_shape, "input_gradient": geometry.x_shape}
    return shapes.get(which, geometry.w_shape)


def _check(a: Any, name: str, shape: tuple[int, ...], dtype: str, index: int | None, first: str) -> Adapter:
    adapter = adapter_of(a, name)
    if tuple(a.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape} for this layer; got {tuple(a.shape)}")
    found = adapter.dtype_name(a)
    if found not in STORAGE_TYPES:
        raise TypeError(
            f"{name}: the kernels take {', '.join(STORAGE_TYPES)}, got {found}; convert it (nothing is converted "
            "silently), or use reference.conv2d, which computes in float64"
        )
    if found != dtype:
        raise TypeError(
            f"{name}: expected {dtype}, as {first}; got {found}. Convert it, nothing is converted silently"
        )
    objection = adapter.objection(a)
    if objection:
        raise TypeError(f"{name}: {objection}")
    if adapter.index(a) != index:
        mine, theirs = ("host memory" if i is None else f"GPU {i}" for i in (adapter.index(a), index))
        raise ValueError(f"{name} is in {mine} and {first} in {theirs}; move them to one place")
    if not adapter.contiguous(a):
        raise ValueError(f"{name}: expected a contiguous (row-major) array; copy it, e.g. with .contiguous()")
    return adapter


# ---- running -------------------------------------------------------------------------------------------------
def _run(
    geometry: Geometry,
    which: str,
    arrays: dict[str, Any],
    shape: tuple[int, ...],
    impl: str | None,
    tile: Any,
    memory: int | None,
    out: Any,
    keep: Conv2dSpectra | None,
    key: tuple | None,
) -> Any:
    if impl not in (None, *IMPLS):
        raise ValueError(f"impl: expected one of {', '.join(IMPLS)}, or None for the model's; got {impl!r}")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, (int, np.integer))):
        raise TypeError(f"memory: expected a whole number of bytes; got {memory!r}")
    first, a = next(iter(arrays.items()))
    adapter = adapter_of(a, first)
    index, dtype = adapter.index(a), adapter.dtype_name(a)
    shapes = {"x": geometry.x_shape, "w": geometry.w_shape, "dy": geometry.y_shape}
    for name, array in arrays.items():
        _check(array, name, shapes[name], dtype, index, first)
    library = index is not None and adapter.library == "torch"
    if impl == "direct" and not library:
        raise ValueError('impl: "direct" is the library of PyTorch, for its tensors on a GPU; use "fft"')
    if out is not None:
        _check(out, "out", shape, dtype, index, first)
    if geometry.x_shape[0] == 0:
        y = adapter.empty_of(a, shape) if out is None else out
        if which == "weight_gradient":
            _fill_zeros(y, adapter)
        return y
    wanted = _tile(tile)
    kept = keep.plan if keep is not None and which == "weight_gradient" else None
    if (
        keep is not None
        and which == "weight_gradient"
        and (kept is None or kept.geometry != geometry or kept.dtype != dtype)
    ):
        raise ValueError("keep: it holds no spectrum of this layer's x; give it to conv2d first")
    if impl is None and (not library or keep is not None or wanted is not None):
        impl = "fft"
    where = device(index or 0)
    limit = where.shared_bytes_per_block or LARGEST_SHARED_BYTES
    if impl is None:
        impl = _chosen(geometry, which, dtype, memory, where.sm_count, limit, _ample(where))
    if impl == "direct":
        y = adapter.conv2d(which, geometry, arrays)  # type: ignore[attr-defined]
        remember(key, Direct(which, geometry, arrays, y, adapter))
        return y if out is None else out.copy_(y)
    if kept is not None:
        plan = _kept_plan(kept, memory)
    else:
        plan = _plan(geometry, which, dtype, wanted, memory, where.sm_count, limit, _ample(where))
    y = adapter.empty_of(a, shape) if out is None else out
    if keep is not None and which == "forward" and plan.batches > 1:
        raise ValueError(
            f"keep: images go in groups of {plan.images} here, so their spectra are not all there at once; allow "
            "more memory"
        )
    if index is not None:
        _run_on_gpu(plan, arrays, y, adapter, index, keep, key)
    else:
        _run_on_host(plan, arrays, y, keep)
    return y


def _fill_zeros(y: Any, adapter: Adapter) -> None:
    if adapter.index(y) is None:
        adapter.host(y)[...] = 0
    elif hasattr(y, "zero_"):
        y.zero_()
    else:
        y[...] = 0


def _ample(where: Device) -> int | None:
    """What spectra may take of a GPU's memory where nobody set a limit: inside a network there is more to keep."""
    return None if where.memory_bytes is None else where.memory_bytes // AMPLE_PART


@lru_cache(maxsize=1024)
def _chosen(
    geometry: Geometry,
    which: str,
    dtype: str,
    memory: int | None,
    sm_count: int | None,
    limit: int,
    ample: int | None = None,
) -> str:
    direct = geometry.before == geometry.after  # the library pads both sides alike
    settings: dict[str, Any] = {"memory": memory, "ample": ample, "shared_limit": limit}
    return explain(geometry, which, dtype, sm_count=sm_count, direct=direct, **settings).impl


@lru_cache(maxsize=1024)
def _plan(
    geometry: Geometry,
    which: str,
    dtype: str,
    tile: tuple[int, int] | None,
    memory: int | None,
    sm_count: int | None,
    limit: int,
    ample: int | None = None,
) -> Plan:
    settings: dict[str, Any] = {"memory": memory, "ample": ample, "shared_limit": limit}
    found = explain(geometry, which, dtype, sm_count=sm_count, tile=tile, direct=False, **settings)
    assert found.plan is not None
    return found.plan


def _kept_plan(kept: Plan, memory: int | None) -> Plan:
    """The plan of the gradient of the weights that takes the spectrum of x as the forward pass left it."""
    plan = replace(kept, which="weight_gradient")
    if memory is not None and plan.bytes > memory:
        raise ValueError(
            f"memory: with the spectrum of x kept this layer needs {plan.bytes} bytes; got a limit of {memory}. Allow "
            "more, or leave out keep: images then go in groups"
        )
    return plan


def _run_on_gpu(
    plan: Plan,
    arrays: dict[str, Any],
    y: Any,
    adapter: Adapter,
    index: int,
    keep: Conv2dSpectra | None,
    key: tuple | None,
) -> None:
    kept = keep.values if keep is not None and plan.which == "weight_gradient" else None
    spaces = run_on_gpu(plan, arrays, y, adapter, index, kept)
    if keep is None and key is not None:
        if is_whole(*arrays.values(), y):  # else its kernels would be others, which nobody asked for
            remember(key, Repeated(plan, arrays, y, adapter, index))
    elif keep is not None and plan.which == "forward":
        keep.plan, keep.values = plan, spaces["A"]


def _run_on_host(plan: Plan, arrays: dict[str, Any], y: Any, keep: Conv2dSpectra | None) -> None:
    """Host arrays: on the CPU body, or on a GPU by way of copies."""
    target = adapter_of(y, "out").host(y)
    if not target.flags.writeable:
        raise ValueError("out: the array is read-only; copy it, or leave out away for a new array")
    hosts = {name: np.ascontiguousarray(adapter_of(a, name).host(a)) for name, a in arrays.items()}
    if device().is_gpu:
        from kernels_numba.launch import DeviceBuffer, device_index

        warnings.warn(
            "arrays in host memory are copied to the GPU and back; keep them there (CuPy, PyTorch, Numba) for speed",
            HostCopyWarning,
            stacklevel=4,
        )
        index = device_index()
        there = {name: DeviceBuffer.of(a, index) for name, a in hosts.items()}
        result = DeviceBuffer(index, target.shape, STORAGE_TYPES[plan.dtype])
        _run_on_gpu(plan, there, result, adapter_of(result, "out"), index, keep, None)
        target[...] = result.host()
        return
    from kernels_numba.conv2d_run import run_cpu

    if keep is not None and plan.which == "weight_gradient":
        hosts["B"] = keep.values
    values, _, spectra = run_cpu(plan, hosts, target.shape)
    target[...] = values
    if keep is not None and plan.which == "forward":
        keep.plan, keep.values = plan, spectra["A"]
