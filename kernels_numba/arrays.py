"""Arrays of several libraries as pointers: what a launch needs to know, and nothing is copied silently.

Half-precision floats of NumPy (bfloat16 through ``ml_dtypes``), PyTorch, CuPy and Numba are recognised by their type,
and so are complex numbers of two halves, PyTorch's complex32 or NumPy's records of ``real`` and ``imag``. Each library
has one adapter. Outputs are made by the library of the input, on its current stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.layout import ELEMENT_TYPES

COMPLEX32 = ELEMENT_TYPES["complex32"]
DTYPE_NAMES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    str(COMPLEX32): "complex32",
}


class Adapter(ABC):
    """How one library's arrays are looked at. ``index`` is the GPU, None for host memory."""

    library = "array"

    def dtype_name(self, x: Any) -> str:
        """One of "fp16", "bf16", "fp32", "fp64", or the library's own name for anything else."""
        name = str(x.dtype).rsplit(".", 1)[-1]
        return DTYPE_NAMES.get(name, name)

    @abstractmethod
    def contiguous(self, x: Any) -> bool:
        """Row-major without gaps."""

    def objection(self, x: Any) -> str | None:
        """Why an array may not be used, when its library would expect more of the result than a kernel gives."""
        return None

    def reader(self, example: Any) -> Callable[[Any], int]:
        """A quick check that another array of this type is like ``example``: its address, or 0 if it is not.

        The example has passed all checks, so anything of the same place, shape, dtype and layout passes too.
        """
        place, shape, dtype = self.index(example), example.shape, example.dtype

        def read(x: Any) -> int:
            if x.shape == shape and x.dtype == dtype and self.contiguous(x) and self.index(x) == place:
                return self.pointer(x)
            return 0

        return read

    def strided_reader(self, example: Any) -> Callable[[Any], int]:
        """As :meth:`reader`, for an array that need not be contiguous; its strides are those of the example."""
        place, shape, dtype, strides = (
            self.index(example),
            example.shape,
            example.dtype,
            self.strides(example),
        )

        def read(x: Any) -> int:
            same = x.shape == shape and x.dtype == dtype and self.strides(x) == strides
            return self.pointer(x) if same and self.index(x) == place else 0

        return read

    def strides(self, x: Any) -> tuple[int, ...]:
        """Elements from one index to the next, for each axis."""
        return tuple(step // x.dtype.itemsize for step in x.strides)

    @abstractmethod
    def pointer(self, x: Any) -> int:
        """Address of the first element."""

    def index(self, x: Any) -> int | None:
        """The GPU that holds the array, None for host memory."""
        return None

    def stream(self, index: int) -> int:
        """Handle of the library's current stream on GPU ``index``."""
        return 0

    @abstractmethod
    def empty_like(self, x: Any) -> Any:
        """An uninitialised array of the same kind, shape and dtype."""

    @abstractmethod
    def empty_of(self, x: Any, shape: tuple[int, ...]) -> Any:
        """An uninitialised array of another shape, in the place of ``x`` and with its dtype."""

    @abstractmethod
    def host(self, x: Any) -> NDArray:
        """The values as a NumPy array: a view for host memory, else a copy."""

    def packed(self, x: Any) -> Any:
        """The same values without gaps, on the same device: the array itself if it has none."""
        return np.ascontiguousarray(self.host(x))

    def complex64(self, x: Any) -> Any:
        """Complex numbers of two halves as complex64, exactly."""
        host = self.host(x)
        return host["real"] + np.complex64(1j) * host["imag"]

    def empty(self, index: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised array of any NumPy dtype on GPU ``index``, of this library if it can make one."""
        from kernels_numba.launch import DeviceBuffer

        return DeviceBuffer(index, shape, dtype)


class NumpyAdapter(Adapter):
    """NumPy arrays."""

    library = "numpy"

    def contiguous(self, x: NDArray) -> bool:
        return bool(x.flags.c_contiguous)

    def pointer(self, x: NDArray) -> int:
        return x.ctypes.data

    def empty_like(self, x: NDArray) -> NDArray:
        return np.empty(x.shape, x.dtype)

    def empty_of(self, x: NDArray, shape: tuple[int, ...]) -> NDArray:
        return np.empty(shape, x.dtype)

    def host(self, x: NDArray) -> NDArray:
        return x


class TorchAdapter(Adapter):
    """PyTorch tensors, on a GPU or on the host."""

    library = "torch"

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def contiguous(self, x: Any) -> bool:
        return x.is_contiguous()

    def pointer(self, x: Any) -> int:
        return x.data_ptr()

    def index(self, x: Any) -> int | None:
        return x.get_device() if x.is_cuda else None

    def objection(self, x: Any) -> str | None:
        if not (x.requires_grad and self.torch.is_grad_enabled()):
            return None
        return (
            "the tensor requires a gradient, which these kernels do not record; call under torch.no_grad(), or with "
            ".detach()"
        )

    def reader(self, example: Any) -> Callable[[Any], int]:
        place, shape, dtype = example.get_device(), example.shape, example.dtype
        enabled = self.torch.is_grad_enabled

        def read(x: Any) -> int:
            if x.dtype is dtype and x.shape == shape and x.get_device() == place and x.is_contiguous():
                return 0 if x.requires_grad and enabled() else x.data_ptr()
            return 0

        return read

    def strided_reader(self, example: Any) -> Callable[[Any], int]:
        place, shape, dtype, strides = example.get_device(), example.shape, example.dtype, example.stride()
        enabled = self.torch.is_grad_enabled

        def read(x: Any) -> int:
            if x.dtype is dtype and x.shape == shape and x.get_device() == place and x.stride() == strides:
                return 0 if x.requires_grad and enabled() else x.data_ptr()
            return 0

        return read

    def strides(self, x: Any) -> tuple[int, ...]:
        return x.stride()

    def stream(self, index: int) -> int:
        return self.torch._C._cuda_getCurrentRawStream(index)

    def empty_like(self, x: Any) -> Any:
        return self.torch.empty_like(x)

    def packed(self, x: Any) -> Any:
        return x.detach().contiguous() if x.is_cuda else super().packed(x)

    def complex64(self, x: Any) -> Any:
        return x.detach().to(self.torch.complex64)

    def empty(self, index: int, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.torch.empty(shape, dtype=getattr(self.torch, np.dtype(dtype).name), device=index)

    def empty_of(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.new_empty(shape)

    def matmul(self, x: Any, w: Any, out: Any) -> None:
        """``out = x w^T`` by the vendor's library."""
        self.torch.matmul(x, w.t(), out=out)

    def conv2d(self, which: str, geometry: Any, arrays: dict[str, Any]) -> Any:
        """A pass of a convolution layer by the vendor's library; fp32 is fp32, not TF32."""
        g = geometry
        if g.before != g.after:
            raise ValueError(
                'padding: the library pads both sides alike, and this "same" cannot; use impl="fft"'
            )
        with self._full_precision():
            return self._library_conv2d(which, g, arrays)

    @contextmanager
    def _full_precision(self) -> Iterator[None]:
        """Products of fp32 that are not rounded to TF32, by the setting that this release of PyTorch has."""
        cudnn = self.torch.backends.cudnn
        conv = getattr(cudnn, "conv", None)
        where, name, value = (
            (conv, "fp32_precision", "ieee")
            if hasattr(conv, "fp32_precision")
            else (cudnn, "allow_tf32", False)
        )
        before = getattr(where, name)
        setattr(where, name, value)
        try:
            yield
        finally:
            setattr(where, name, before)

    def _library_conv2d(self, which: str, g: Any, arrays: dict[str, Any]) -> Any:
        torch = self.torch
        settings = (list(g.stride), list(g.before), list(g.dilation))
        if which == "forward":
            return torch.nn.functional.conv2d(arrays["x"], arrays["w"], None, *settings, g.groups)
        # What is not asked for is not read: its shape will do.
        x, w = (
            arrays[name] if name in arrays else arrays["dy"].new_empty(1).expand(shape)
            for name, shape in (("x", g.x_shape), ("w", g.w_shape))
        )
        wanted = [which == "input_gradient", which == "weight_gradient", False]
        backward = torch.ops.aten.convolution_backward
        found = backward(arrays["dy"], x, w, None, *settings, False, [0, 0], g.groups, wanted)
        return found[0] if wanted[0] else found[1]

    def host(self, x: Any) -> NDArray:
        x = x.detach()
        if x.dtype == self.torch.bfloat16:
            return x.cpu().view(self.torch.int16).numpy().view(ml_dtypes.bfloat16)
        if x.dtype == self.torch.complex32:
            return x.cpu().view(self.torch.int32).numpy().view(COMPLEX32)
        return x.cpu().numpy()


class CupyAdapter(Adapter):
    """CuPy arrays (bfloat16 through ``ml_dtypes``)."""

    library = "cupy"

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy

    def contiguous(self, x: Any) -> bool:
        return bool(x.flags.c_contiguous)

    def pointer(self, x: Any) -> int:
        return x.data.ptr

    def index(self, x: Any) -> int | None:
        return x.device.id

    def stream(self, index: int) -> int:
        return self.cupy.cuda.get_current_stream(index).ptr

    def empty_like(self, x: Any) -> Any:
        with self.cupy.cuda.Device(x.device.id):
            return self.cupy.empty(x.shape, x.dtype)

    def packed(self, x: Any) -> Any:
        return self.cupy.ascontiguousarray(x)

    def empty(self, index: int, shape: tuple[int, ...], dtype: Any) -> Any:
        with self.cupy.cuda.Device(index):
            return self.cupy.empty(shape, dtype)

    def empty_of(self, x: Any, shape: tuple[int, ...]) -> Any:
        with self.cupy.cuda.Device(x.device.id):
            return self.cupy.empty(shape, x.dtype)

    def matmul(self, x: Any, w: Any, out: Any) -> None:
        """``out = x w^T`` by the vendor's library."""
        self.cupy.matmul(x, w.T, out=out)

    def host(self, x: Any) -> NDArray:
        return x.get()


class NumbaAdapter(Adapter):
    """Numba device arrays; they run on Numba's default stream."""

    library = "numba"

    def contiguous(self, x: Any) -> bool:
        return bool(x.is_c_contiguous())

    def pointer(self, x: Any) -> int:
        return x.__cuda_array_interface__["data"][0]

    def index(self, x: Any) -> int | None:
        return x.gpu_data.context.device.id

    def empty_like(self, x: Any) -> Any:
        from kernels_numba.tile.compile import device_array

        return device_array(x.shape, x.dtype)

    def empty_of(self, x: Any, shape: tuple[int, ...]) -> Any:
        from kernels_numba.tile.compile import device_array

        return device_array(shape, x.dtype)

    def empty(self, index: int, shape: tuple[int, ...], dtype: Any) -> Any:
        from kernels_numba.launch import current_device, device
        from kernels_numba.tile.compile import device_array

        with current_device(device(index)):
            return device_array(shape, np.dtype(dtype))

    def host(self, x: Any) -> NDArray:
        return x.copy_to_host()


class BufferAdapter(Adapter):
    """Device memory that this package allocated itself; it is used on the default stream."""

    library = "monarch"

    def contiguous(self, x: Any) -> bool:
        return True

    def pointer(self, x: Any) -> int:
        return x.pointer

    def index(self, x: Any) -> int | None:
        return x.where.index

    def empty_like(self, x: Any) -> Any:
        return self.empty(x.where.index, x.shape, x.dtype)

    def empty_of(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self.empty(x.where.index, shape, x.dtype)

    def host(self, x: Any) -> NDArray:
        return x.host()


_ADAPTERS: dict[str, Callable[[], Adapter]] = {
    "numpy": NumpyAdapter,
    "torch": TorchAdapter,
    "cupy": CupyAdapter,
    "numba": NumbaAdapter,
    "numba_cuda": NumbaAdapter,
    "kernels_numba": BufferAdapter,
}


@cache
def _adapter_for(kind: type) -> Adapter | None:
    for base in kind.__mro__:
        make = _ADAPTERS.get(base.__module__.split(".")[0])
        if make is not None:
            return make()
    return None


def adapter_of(x: Any, name: str) -> Adapter:
    """The adapter for an array. Raises ``TypeError`` for anything that is not one, naming the argument."""
    found = _adapter_for(type(x))  # type: ignore[arg-type]  # a class is hashable
    if found is None:
        raise TypeError(
            f"{name}: expected a NumPy, PyTorch, CuPy or Numba array, got "
            f"{type(x).__module__}.{type(x).__qualname__}; convert it, for instance with numpy.asarray or "
            "cupy.from_dlpack"
        )
    return found


def half_dtype(x: Any, adapter: Adapter, name: str) -> str:
    """The dtype of an array that must be of half precision. Raises ``TypeError`` for any other, naming the argument."""
    found = adapter.dtype_name(x)
    if found not in ("fp16", "bf16"):
        raise TypeError(
            f"{name}: the fused kernels take fp16 and bf16, got {found}; convert it (nothing is converted silently), "
            "or use the function of the same name in reference, which computes in float64"
        )
    return found


def check_place(adapter: Adapter, a: Any, name: str, index: int | None, first: str) -> None:
    """Raise unless an array can be used as it is (``TypeError``) and lies where the array ``first`` does, ``index``."""
    objection = adapter.objection(a)
    if objection:
        raise TypeError(f"{name}: {objection}")
    if adapter.index(a) != index:
        mine, theirs = ("host memory" if i is None else f"GPU {i}" for i in (adapter.index(a), index))
        raise ValueError(f"{name} is in {mine} and {first} in {theirs}; move them to one place")


def check_contiguous(adapter: Adapter, a: Any, name: str) -> None:
    """Raise ``ValueError`` unless an array is contiguous."""
    if not adapter.contiguous(a):
        raise ValueError(f"{name}: expected a contiguous (row-major) array; copy it, e.g. with .contiguous()")
