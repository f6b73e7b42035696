"""Softmax over the rows of a matrix with a shift known beforehand, rows out of its range recomputed.

:func:`softmax` has the meaning of ``reference.softmax`` for fp16 and bf16 matrices, in one kernel launch; exponentials
and sums are float32, results are rounded once. `line_softmax.py` has the kernel.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from kernels_numba import line_softmax
from kernels_numba.arrays import adapter_of, check_contiguous, check_place, half_dtype
from kernels_numba.attention_checks import check_scheme
from kernels_numba.device import device
from kernels_numba.fftconv import HostCopyWarning
from kernels_numba.host_arrays import _aligned, _bits, _write
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import HALF_TYPES

NAMES = ("x", "y")
_launches: dict[tuple, Any] = {}


def softmax(
    x: Any,
    *,
    phi: float | None = None,
    bounds: tuple[float, float] | None = None,
    variant: str = "async",
    out: Any = None,
) -> Any:
    """Softmax of ``x [rows, n]`` along its last axis: y, an array of the kind, shape and dtype of x.

    Args:
        x: fp16 or bf16, contiguous; NumPy, PyTorch, CuPy or Numba. More axes are rows too.
        phi: the shift of "async".
        bounds: (a, b), open, with -60 <= a < b <= 40: a row any of whose ``x - phi`` is outside is recomputed with its
            maximum, on the GPU and in the same launch.
        variant: "async" or "sync" (with the maximum of every row).
        out: where to put the result, shaped and typed as x; x itself is allowed.

    An entry of -inf is absent; a row with no others gets zeros; a NaN or +inf makes its row NaN.

    Raises:
        TypeError: x is not an array, or its dtype is not accepted.
        ValueError: a shape, setting, device or memory layout is not accepted.
        LaunchError: the GPU refused the kernel, or an earlier kernel failed.

    Source: Hong et al., FlashDecoding++, arXiv 2311.01282, Equations 3 and 4.
    """
    adapter = adapter_of(x, "x")
    dtype = half_dtype(x, adapter, "x")
    shift, interval = check_scheme(phi, bounds, variant)
    shape = tuple(x.shape)
    if not shape or 0 in shape:
        raise ValueError(f"x: expected rows [..., n] with n >= 1 and at least one row, got shape {shape}")
    index = adapter.index(x)
    y = adapter.empty_like(x) if out is None else out
    for name, array in (("x", x), ("out", y)):
        mine = adapter_of(array, name)
        if tuple(array.shape) != shape or mine.dtype_name(array) != dtype:
            raise ValueError(
                f"{name}: expected {dtype} {shape}, as x; got {mine.dtype_name(array)} {tuple(array.shape)}"
            )
        check_place(mine, array, name, index, "x")
        check_contiguous(mine, array, name)
    rows, n = int(np.prod(shape[:-1], dtype=np.int64)), int(shape[-1])
    if max(rows, n) >= 2**31 - 4096:
        raise ValueError(f"x: {rows} rows of {n} are more than 2^31; split them")
    scheme = (shift, *interval)
    if index is not None:
        at_x, at_y = adapter.pointer(x), adapter.pointer(y)
        _launch(index, dtype, rows, n, (at_x | at_y) & 15, variant, scheme)(adapter.stream(index), at_x, at_y)
        return y
    if not adapter.host(y).flags.writeable:
        raise ValueError("out: the array is read-only; copy it, or leave out away for a new array")
    if not device().is_gpu:
        _write(y, adapter, softmax_cpu(x, phi=phi, bounds=bounds, variant=variant)[0])
        return y
    from kernels_numba.launch import DeviceBuffer, device_index

    warnings.warn(
        "arrays in host memory are copied to the GPU and back; keep them there (CuPy, PyTorch, Numba) for speed",
        HostCopyWarning,
        stacklevel=2,
    )
    there_x = DeviceBuffer.of(np.ascontiguousarray(adapter.host(x)), device_index())
    result = DeviceBuffer(device_index(), shape, HALF_TYPES[dtype])
    _launch(device_index(), dtype, rows, n, 0, variant, scheme)(0, there_x.pointer, result.pointer)
    _write(y, adapter, result.host())
    return y


def _spec(dtype: str, n: int, low_bits: int, variant: str) -> line_softmax.Spec:
    halves = next(v for v in (8, 4, 2, 1) if n % v == 0 and low_bits % (2 * v) == 0)
    return line_softmax.Spec(dtype, halves, team=n > line_softmax.SHORT, sync=variant == "sync")


def _grid(spec: line_softmax.Spec, rows: int) -> int:
    return rows if spec.team else -(-rows // spec.warps)


def _launch(index: int, dtype: str, rows: int, n: int, low_bits: int, variant: str, scheme: tuple) -> Any:
    """The launch for a shape and scheme, made at first use."""
    from kernels_numba import launch

    key = (index, dtype, rows, n, low_bits, variant, scheme)
    if key not in _launches:
        spec = _spec(dtype, n, low_bits, variant)
        loaded = launch.load(line_softmax, spec, index)
        if len(_launches) > 256:
            _launches.clear()
        _launches[key] = loaded.launcher(_grid(spec, rows), (*NAMES, rows, n, *scheme), NAMES)
    return _launches[key]


def softmax_cpu(
    x: Any,
    *,
    phi: float | None = None,
    bounds: tuple[float, float] | None = None,
    variant: str = "async",
) -> tuple[Any, Counters]:
    """Run the kernel on the CPU body: y, and what was counted."""
    from kernels_numba.tile.cpu_vocabularies import tile
    from kernels_numba.tile.machine import POISON, Buffer, Machine

    adapter = adapter_of(x, "x")
    dtype = half_dtype(x, adapter, "x")
    shift, interval = check_scheme(phi, bounds, variant)
    shape = tuple(x.shape)
    rows, n = int(np.prod(shape[:-1])), int(shape[-1])
    spec = _spec(dtype, n, 0, variant)
    machine = Machine()
    kernel = line_softmax.build(tile(machine, dtype, line_softmax.VOCABULARY), spec)
    result = _aligned(np.full(rows * n, POISON, np.int16))
    buffers = [Buffer("x", _bits(np.ascontiguousarray(adapter.host(x)))), Buffer("y", result)]
    scalars = [np.float32(s) for s in (shift, *interval)]
    counters = machine.run(
        kernel, _grid(spec, rows), spec.warps, spec.shared_bytes // 4, [*buffers, rows, n, *scalars]
    )
    return result.view(HALF_TYPES[dtype]).reshape(shape), counters
