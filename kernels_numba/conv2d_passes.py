"""One pass of a convolution layer, or both gradients, of arrays that are checked, wherever they are."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.conv2d_calls import (
    Direct,
    Repeated,
    RepeatedGradients,
    Spectra,
    is_whole,
    remember,
    run_on_gpu,
)
from kernels_numba.conv2d_checks import check, result_shape, tile_of
from kernels_numba.conv2d_dispatch import explain
from kernels_numba.conv2d_geometry import Geometry, Pair
from kernels_numba.conv2d_kept import Conv2dSpectra, Place, place_of
from kernels_numba.conv2d_plan import Plan
from kernels_numba.conv2d_shared import (
    direct_is_faster,
    inputs_of,
    of_forward,
    plan_to_keep,
    plans_of_gradients,
    weights_of,
)
from kernels_numba.device import LARGEST_SHARED_BYTES, Device, device
from kernels_numba.fftconv import HostCopyWarning
from kernels_numba.tile.layout import STORAGE_TYPES

IMPLS = ("fft", "direct")
AMPLE_PART = 4
"""Of a GPU's memory spectra take one part in so many, where nobody sets a limit."""


Outs = dict[str, tuple[Any, tuple[int, ...]]]
"""Arrays for results by name, perhaps None, with their shapes."""


def ample_bytes(where: Device) -> int | None:
    """What spectra may take of a GPU's memory where nobody set a limit: inside a network there is more to keep."""
    return None if where.memory_bytes is None else where.memory_bytes // AMPLE_PART


@dataclass(frozen=True)
class Setting:
    """Arrays that have been checked, where they are, and what was asked for."""

    geometry: Geometry
    arrays: dict[str, Any]
    adapter: Adapter
    index: int | None
    dtype: str
    tile: Pair | None
    limits: dict[str, Any]
    """``memory``, ``ample`` and ``shared_limit`` of plans."""
    sm_count: int | None
    impl: str | None
    """What was asked for, or is the only way; None where the model may choose."""

    @property
    def place(self) -> Place:
        """Where the arrays are."""
        return place_of(self.adapter, self.index)

    def empty(self, shape: tuple[int, ...]) -> Any:
        """An array like the operands."""
        return self.adapter.empty_of(next(iter(self.arrays.values())), shape)


def setting(
    geometry: Geometry,
    arrays: dict[str, Any],
    outs: Outs,
    *,
    impl: str | None,
    tile: Any,
    memory: int | None,
    keep: Conv2dSpectra | None,
) -> Setting:
    """Check everything."""
    if impl not in (None, *IMPLS):
        raise ValueError(f"impl: expected one of {', '.join(IMPLS)}, or None for the model's; got {impl!r}")
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, (int, np.integer))):
        raise TypeError(f"memory: expected a whole number of bytes; got {memory!r}")
    first, a = next(iter(arrays.items()))
    adapter = adapter_of(a, first)
    index, dtype = adapter.index(a), adapter.dtype_name(a)
    shapes = {"x": geometry.x_shape, "w": geometry.w_shape, "dy": geometry.y_shape}
    for name, array in arrays.items():
        check(array, name, shapes[name], dtype, index, first)
    library = index is not None and adapter.library == "torch"
    if impl == "direct" and not library:
        raise ValueError('impl: "direct" is the library of PyTorch, for its tensors on a GPU; use "fft"')
    if impl == "direct" and keep is not None:
        raise ValueError("keep: the direct library has no spectra; leave out one of keep and impl")
    for name, (out, shape) in outs.items():
        if out is not None:
            check(out, name, shape, dtype, index, first)
    wanted = tile_of(tile)
    if not library or keep is not None or wanted is not None:
        impl = impl or "fft"
    where = device(index or 0)
    limits = {
        "memory": memory,
        "ample": ample_bytes(where),
        "shared_limit": where.shared_bytes_per_block or LARGEST_SHARED_BYTES,
    }
    return Setting(geometry, arrays, adapter, index, dtype, wanted, limits, where.sm_count, impl)


def run_pass(
    geometry: Geometry,
    which: str,
    arrays: dict[str, Any],
    *,
    out: Any,
    keep: Conv2dSpectra | None,
    key: tuple | None,
    **asked: Any,
) -> Any:
    """One pass; ``asked`` is ``impl``, ``tile`` and ``memory``."""
    shape = result_shape(geometry, which)
    s = setting(geometry, arrays, {"out": (out, shape)}, keep=keep, **asked)
    if geometry.x_shape[0] == 0:
        if keep is not None and which == "forward":
            keep.clear()
        return _of_no_images(s, which, shape, out)
    impl = s.impl or _chosen(geometry, which, s.dtype, s.sm_count, **s.limits)
    if impl == "direct":
        return _direct(s, which, arrays, out, key)
    given: Spectra = {}
    if keep is None:
        plan = _plan(geometry, which, s.dtype, s.tile, s.sm_count, **s.limits)
    elif which == "forward":
        plan = plan_to_keep(geometry, s.dtype, s.tile, s.sm_count, **s.limits)
    else:
        forward = keep.plan_for(geometry, s.dtype, s.place, s.tile)
        if which == "input_gradient":
            plan, given = inputs_of(forward, **s.limits), {"w": keep.w}
        else:
            plan, given = weights_of(forward, **s.limits), {"x": keep.x}
    y = s.empty(shape) if out is None else out
    spectra = _run(s, plan, arrays, y, given)
    handed_out: tuple[str, ...] = ()
    if keep is not None and which == "forward":
        keep.hold(plan, s.place, **spectra)
        handed_out = ("x", "w")
    _remember(s, key, y, plan, arrays, given, handed_out)
    return y


def run_gradients(
    geometry: Geometry,
    arrays: dict[str, Any],
    *,
    out: tuple[Any, Any],
    keep: Conv2dSpectra | None,
    key: tuple | None,
    **asked: Any,
) -> tuple[Any, Any]:
    """Both gradients; ``arrays`` are dy, x and w."""
    dy, x, w = arrays["dy"], arrays["x"], arrays["w"]
    backward, over_images = {"dy": dy, "w": w}, {"x": x, "dy": dy}
    shapes = (geometry.x_shape, geometry.w_shape)
    outs: Outs = {f"out[{i}]": pair for i, pair in enumerate(zip(out, shapes, strict=True))}
    s = setting(geometry, arrays, outs, keep=keep, **asked)
    if geometry.x_shape[0] == 0:
        return (
            _of_no_images(s, "input_gradient", shapes[0], out[0]),
            _of_no_images(s, "weight_gradient", shapes[1], out[1]),
        )
    impl = s.impl or _chosen_for_gradients(geometry, s.dtype, s.sm_count, **s.limits)
    if impl == "direct":
        return (
            _direct(s, "input_gradient", backward, out[0], None),
            _direct(s, "weight_gradient", over_images, out[1], None),
        )
    if keep is None:
        both = plans_of_gradients(geometry, s.dtype, s.tile, s.sm_count, **s.limits)
    else:
        both = of_forward(keep.plan_for(geometry, s.dtype, s.place, s.tile), **s.limits)
    dx, dw = (s.empty(shape) if a is None else a for a, shape in zip(out, shapes, strict=True))
    kept: tuple[Spectra, Spectra] = ({}, {}) if keep is None else ({"w": keep.w}, {"x": keep.x})
    spectra = _run(s, both.inputs, backward, dx, kept[0])
    again = {"dy": spectra["dy"]} if both.shared else {}
    del spectra  # that of w may go before the second pass needs memory
    _run(s, both.weights, over_images, dw, kept[1] | again)
    if s.index is not None and key is not None and is_whole(dy, x, w, dx, dw):
        remember(
            key,
            RepeatedGradients(
                Repeated(both.inputs, backward, dx, s.adapter, s.index, kept[0], again),
                Repeated(both.weights, over_images, dw, s.adapter, s.index, kept[1] | again),
            ),
        )
    return dx, dw


def _remember(
    s: Setting, key: tuple | None, y: Any, plan: Plan, arrays: dict[str, Any], given: Spectra, handed_out: Any
) -> None:
    # Of arrays that begin elsewhere the kernels would be others, which nobody asked for.
    if s.index is not None and key is not None and is_whole(*arrays.values(), y):
        remember(key, Repeated(plan, arrays, y, s.adapter, s.index, given, handed_out))


def _direct(s: Setting, which: str, arrays: dict[str, Any], out: Any, key: tuple | None) -> Any:
    y = s.adapter.conv2d(which, s.geometry, arrays)  # type: ignore[attr-defined]
    remember(key, Direct(which, s.geometry, arrays, y, s.adapter))
    return y if out is None else out.copy_(y)


def _of_no_images(s: Setting, which: str, shape: tuple[int, ...], out: Any) -> Any:
    y = s.empty(shape) if out is None else out
    if which != "weight_gradient":
        return y
    if s.index is None:
        s.adapter.host(y)[...] = 0
    elif hasattr(y, "zero_"):
        y.zero_()
    else:
        y[...] = 0
    return y


@lru_cache(maxsize=1024)
def _chosen(geometry: Geometry, which: str, dtype: str, sm_count: int | None, **limits: Any) -> str:
    direct = geometry.before == geometry.after  # the library pads both sides alike
    return explain(geometry, which, dtype, sm_count=sm_count, direct=direct, **limits).impl


@lru_cache(maxsize=1024)
def _chosen_for_gradients(geometry: Geometry, dtype: str, sm_count: int | None, **limits: Any) -> str:
    if geometry.before != geometry.after:
        return "fft"
    try:
        found = plans_of_gradients(geometry, dtype, None, sm_count, **limits)
    except ValueError:  # too little memory for spectra
        return "direct"
    return "direct" if direct_is_faster(found, sm_count) else "fft"


@lru_cache(maxsize=1024)
def _plan(
    geometry: Geometry, which: str, dtype: str, tile: Pair | None, sm_count: int | None, **limits: Any
) -> Plan:
    found = explain(geometry, which, dtype, sm_count=sm_count, tile=tile, direct=False, **limits)
    assert found.plan is not None
    return found.plan


def _run(s: Setting, plan: Plan, arrays: dict[str, Any], y: Any, given: Spectra) -> Spectra:
    """Run a pass; the spectra of its operands."""
    if s.index is not None:
        return run_on_gpu(plan, arrays, y, s.adapter, s.index, given)
    target = adapter_of(y, "out").host(y)
    if not target.flags.writeable:
        raise ValueError("out: the array is read-only; copy it, or leave out away for a new array")
    hosts = {name: np.ascontiguousarray(adapter_of(a, name).host(a)) for name, a in arrays.items()}
    if device().is_gpu:
        return _through_gpu(plan, hosts, target, given)
    from kernels_numba.conv2d_run import run_cpu

    values, _, spectra = run_cpu(plan, hosts, target.shape, given)
    target[...] = values
    return spectra


def _through_gpu(plan: Plan, hosts: dict[str, Any], target: Any, given: Spectra) -> Spectra:
    """Host arrays on a GPU, by way of copies."""
    from kernels_numba.launch import DeviceBuffer, device_index

    warnings.warn(
        "arrays in host memory are copied to the GPU and back; keep them there (CuPy, PyTorch, Numba) for speed",
        HostCopyWarning,
        stacklevel=5,
    )
    index = device_index()
    there = {name: DeviceBuffer.of(a, index) for name, a in hosts.items()}
    result = DeviceBuffer(index, target.shape, STORAGE_TYPES[plan.dtype])
    spectra = run_on_gpu(plan, there, result, adapter_of(result, "out"), index, given)
    target[...] = result.host()
    return spectra
