"""Linear layers: y = x w^T, by the kernel that is fastest for the shape, or by the one that is asked for.

:func:`linear` has the meaning of ``reference.linear``: x [..., M, K], w [N, K] (a row per output) in fp16 or bf16, any
M >= 0, N >= 1, K >= 1. Products are exact, all sums are in float32, and the result is rounded once;
``reference.linear_bound`` says how far that is from exact.

========  ==================================================  =================================================
impl      for                                                 kernel
========  ==================================================  =================================================
"gemv"    one row of x, or a few                              `linear_gemv`: CUDA cores, at the speed of memory
"flat"    up to 64 rows                                       `linear_flat`: tensor cores, at the speed of memory
"full"    many rows                                           `linear_full`: tensor cores, large tiles; on compute
                                                              capability 9.0 `linear_group`, on warpgroups
"vendor"  any number, PyTorch or CuPy arrays on a GPU         the vendor's library, through PyTorch or CuPy
========  ==================================================  =================================================

Which one runs without ``impl`` is looked up in constant time (`linear_dispatch`); :func:`explain_linear` says which, by
which rule, and how close the next one is.

For speed, prepare once and call often; a call costs the host a few microseconds::

    layer = Linear(m, n, k, dtype="fp16")
    y = layer(x, w)                    # on the caller's current stream, can be captured in a CUDA graph
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from kernels_numba.arrays import Adapter, adapter_of, check_contiguous, check_place
from kernels_numba.device import LARGEST_SHARED_BYTES, device
from kernels_numba.fftconv import HostCopyWarning
from kernels_numba.linear_dispatch import Explanation, choose
from kernels_numba.linear_product import IMPLS, Choice, Product, check_accepts, product
from kernels_numba.linear_settings import default_choice
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import HALF_TYPES

CPU_SMS = 2
"""As many blocks at once are imagined on the CPU body."""


def linear(x: Any, w: Any, *, impl: str | None = None, out: Any = None) -> Any:
    """Multiply the rows of ``x`` with the rows of ``w``: ``y = x w^T``.

    Args:
        x: input [..., M, K] (or [K]), fp16 or bf16, contiguous; NumPy, PyTorch, CuPy or Numba.
        w: weights [N, K], of the dtype and the place of ``x``, contiguous.
        impl: "gemv", "flat", "full" or "vendor"; by default the one that the dispatch table says is fastest.
        out: where to put the result, [..., M, N], of the dtype of ``x``; it must not overlap ``x`` or ``w``.

    Returns:
        y [..., M, N] (or [N]), an array of the same kind as ``x``.

    Raises:
        TypeError: an argument is not an array, or its dtype is not accepted (nothing is converted silently).
        ValueError: a shape, impl, device or memory layout is not accepted.
        LaunchError: the GPU refused the kernel, or an earlier kernel failed.
    """
    adapter = adapter_of(x, "x")
    dtype = adapter.dtype_name(x)
    if dtype not in HALF_TYPES:
        raise TypeError(
            f"x: the kernels take fp16 and bf16, got {dtype}; convert it (nothing is converted silently), or use "
            "reference.linear, which computes in float64"
        )
    shape, w_shape = tuple(x.shape), tuple(w.shape)
    if not shape or shape[-1] == 0:
        raise ValueError(f"x: expected [..., M, K] with K >= 1, got shape {shape}")
    if len(w_shape) != 2 or 0 in w_shape:
        raise ValueError(f"w: expected [N, K] with N >= 1 and K >= 1, got shape {w_shape}")
    if w_shape[1] != shape[-1]:
        raise ValueError(
            f"w: expected [N, K] with the K={shape[-1]} of x [..., M, K], a row per output; got {w_shape}. "
            "Weights stored as [K, N] must be copied: w.T is not contiguous"
        )
    return _prepared(prod(shape[:-1]), *w_shape, dtype, impl)(x, w, out=out)


def gemv(x: Any, w: Any, *, out: Any = None) -> Any:
    """``linear`` by the vector product: at most 4 rows of x, on CUDA cores."""
    return linear(x, w, impl="gemv", out=out)


def flat_gemm(x: Any, w: Any, *, out: Any = None) -> Any:
    """``linear`` by the flat product: at most 64 rows of x, padded to a multiple of 8 inside the instruction."""
    return linear(x, w, impl="flat", out=out)


def full_gemm(x: Any, w: Any, *, out: Any = None) -> Any:
    """``linear`` by the full product: any number of rows of x, in large tiles."""
    return linear(x, w, impl="full", out=out)


def explain_linear(m: int, n: int, k: int, *, dtype: str = "fp16", vendor: bool | None = None) -> Explanation:
    """Which kernel computes x [M, K] times w [N, K] here, by which rule, and how close the next one is.

    Args:
        m: rows of x.
        n: rows of w.
        k: columns of both.
        dtype: "fp16" or "bf16".
        vendor: whether the arrays are PyTorch's or CuPy's, so that the vendor's library may be chosen; by default it
            may where a GPU is.
    """
    where = device()
    reachable = where.is_gpu if vendor is None else vendor
    shared = where.shared_bytes_per_block or LARGEST_SHARED_BYTES
    return choose(
        m,
        n,
        k,
        dtype,
        where.name,
        where.sm_count or CPU_SMS,
        shared_bytes=shared,
        capability=where.capability,
        vendor=reachable,
    )


class Linear:
    """A product prepared for one shape; calling it checks its arrays and launches.

    Args:
        m: rows of x, M >= 0.
        n: rows of w, N >= 1.
        k: columns of both, K >= 1.
        dtype: "fp16" or "bf16".
        impl: as for :func:`linear`.
        choice: a kernel with its settings, instead of ``impl``.
        overlap: weights begin to load while the launch before still runs ("programmatic dependent launch", compute
            capability 9). Only for weights that the launch just before does not write; x may be its result.

    On a GPU a call runs on the caller's current stream and can be captured in a CUDA graph (after one call outside,
    which compiles). Products whose K is split over blocks, or whose rows must be realigned, need a workspace, which
    all of a stream share: do not replay graphs at once that were captured on the same stream and hold such products.
    """

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        *,
        dtype: str,
        impl: str | None = None,
        choice: Choice | None = None,
        overlap: bool = False,
    ) -> None:
        for name, value, least in (("m", m, 0), ("n", n, 1), ("k", k, 1)):
            if not isinstance(value, (int, np.integer)) or value < least:
                raise ValueError(f"{name}: expected a whole number, at least {least}; got {value!r}")
        if dtype not in HALF_TYPES:
            raise ValueError(f"dtype: expected one of {', '.join(HALF_TYPES)}; got {dtype!r}")
        if impl is not None and impl not in IMPLS:
            raise ValueError(
                f"impl: expected one of {', '.join(IMPLS)}, or None for the fastest; got {impl!r}"
            )
        if choice is not None and impl not in (None, choice.impl):
            raise ValueError(
                f"impl: {impl!r} and a choice of {choice.impl!r} contradict each other; give one"
            )
        self.shape, self.dtype, self.impl, self.overlap = (int(m), int(n), int(k)), dtype, impl, overlap
        self._chosen = choice
        if m and (impl or choice):
            check_accepts(impl or choice.impl, m)  # type: ignore[union-attr]
        self._known: dict[tuple, tuple] = {}
        self._launches: dict[tuple[int, int], Callable[[int, int, int, int], None]] = {}

    def choice(self, library: str = "torch", index: int = 0) -> Choice:
        """The kernel and settings for arrays of a library on a GPU (or on the CPU body, where there is none)."""
        if self._chosen is not None:
            return self._chosen
        where = device(index)
        vendor = where.is_gpu and library in ("torch", "cupy")
        found = choose(
            *self.shape,
            self.dtype,
            where.name,
            where.sm_count or CPU_SMS,
            shared_bytes=where.shared_bytes_per_block or LARGEST_SHARED_BYTES,
            capability=where.capability,
            impl=self.impl,
            vendor=vendor,
            overlap=self.overlap,
        )
        return found.choice

    def product(
        self, choice: Choice, low_bits: tuple[int, int, int] = (0, 0, 0), *, overlap: bool = False
    ) -> Product:
        """The choice made concrete, for x, w and y whose addresses end in ``low_bits``."""
        x_bits, w_bits, y_bits = low_bits
        return product(
            choice,
            *self.shape,
            self.dtype,
            overlap=overlap,
            aligned_x=x_bits % 16 == 0,
            aligned_w=w_bits % 16 == 0,
            aligned_y=y_bits % 4 == 0,
        )

    def __call__(self, x: Any, w: Any, *, out: Any = None) -> Any:
        """Multiply: x [..., M, K] and w [N, K] to [..., M, N]; see :func:`linear`."""
        key = (type(x), type(w), x.shape)
        known: Any = self._known.get(key)
        at_x = at_w = 0
        if known:
            at_x, at_w = known[0](x), known[1](w)
        if not (at_x and at_w):
            known, at_x, at_w = self._learn(x, w)
        _, _, adapter, index, shape, vendor, read_y = known
        y = adapter.empty_of(x, shape) if out is None else out
        if self.shape[0] == 0:
            self._check(y, "out", shape, adapter, index)
            return y
        at_y = (type(y) is key[0] and read_y[0] is not None and read_y[0](y)) or self._result(y, known)
        if vendor:
            adapter.matmul(x, w, y)
            return y
        if index is None:
            self._run_on_host(adapter, x, w, y)
            return y
        # The lowest address bits decide whether rows begin on 16 bytes.
        bits = (index, (at_x & 15) << 8 | (at_w & 15) << 4 | at_y & 3)
        launch = self._launches.get(bits) or self._launch(bits, adapter.library)
        launch(adapter.stream(index), at_x, at_w, at_y)
        return y

    # ---- arguments -----------------------------------------------------------------------------------------
    def _learn(self, x: Any, w: Any) -> tuple[tuple, int, int]:
        """Check inputs in full; how to check arrays like them quickly, and their addresses."""
        adapter, other = adapter_of(x, "x"), adapter_of(w, "w")
        m, n, k = self.shape
        index = adapter.index(x)
        lead = tuple(x.shape[:-1])
        if not x.shape or x.shape[-1] != k or prod(lead) != m:
            raise ValueError(
                f"x: expected [..., M, K] with M={m} rows of K={k}, as prepared; got {tuple(x.shape)}"
            )
        self._check(x, "x", tuple(x.shape), adapter, index)
        self._check(w, "w", (n, k), other, index)
        library = adapter.library if index is not None else "numpy"
        vendor = m > 0 and self.choice(library, index or 0).impl == "vendor"
        if vendor and (index is None or not hasattr(adapter, "matmul")):
            raise ValueError(
                "impl: the vendor's library is reached through PyTorch or CuPy arrays on a GPU; got "
                f"{adapter.library} in {'host memory' if index is None else f'GPU {index}'}. Choose gemv, flat or full"
            )
        readers = (adapter.reader(x), other.reader(w)) if m else (lambda _: 0, lambda _: 0)
        known = (*readers, adapter, index, (*lead, n), vendor, [None])
        self._known[(type(x), type(w), x.shape)] = known
        return known, adapter.pointer(x), other.pointer(w)

    def _result(self, y: Any, known: tuple) -> int:
        _, _, mine, index, shape, _, read_y = known
        adapter = adapter_of(y, "out")
        self._check(y, "out", shape, adapter, index)
        if adapter is mine:
            read_y[0] = adapter.reader(y)
        return adapter.pointer(y)

    def _check(self, a: Any, name: str, shape: tuple[int, ...], adapter: Adapter, index: int | None) -> None:
        if tuple(a.shape) != shape:
            raise ValueError(f"{name}: expected shape {shape}; got {tuple(a.shape)}")
        found = adapter.dtype_name(a)
        if found != self.dtype:
            raise TypeError(
                f"{name}: expected {self.dtype} (as prepared, or as x), got {found}; convert it, nothing is converted "
                "silently"
            )
        check_place(adapter, a, name, index, "x")
        check_contiguous(adapter, a, name)

    # ---- running -------------------------------------------------------------------------------------------
    def _launch(self, key: tuple[int, int], library: str) -> Callable[[int, int, int, int], None]:
        """The launches for a GPU and the low bits of the addresses; made at first use."""
        from kernels_numba.linear_run import launches

        index, bits = key
        capability = device(index).capability or (0, 0)
        low_bits = (bits >> 8, bits >> 4 & 15, bits & 3)
        made = self.product(
            self.choice(library, index), low_bits, overlap=self.overlap and capability >= (9, 0)
        )
        needed = getattr(made.family, "CAPABILITY", capability)
        if capability != needed:
            raise ValueError(
                f"choice: {made.choice} runs on compute capability {needed[0]}.{needed[1]} only, and GPU {index} has "
                f"{capability[0]}.{capability[1]}; leave choice away for one that runs here"
            )
        found = self._launches[key] = launches(made, index)
        return found

    def _run_on_host(self, adapter: Adapter, x: Any, w: Any, out: Any) -> None:
        """Host arrays: on the CPU body, or on a GPU by way of copies."""
        target = adapter_of(out, "out").host(out)
        if not target.flags.writeable:
            raise ValueError("out: the array is read-only; copy it, or leave out away for a new array")
        if not device().is_gpu:
            self.run_cpu(x, w, out=out)
            return
        from kernels_numba.launch import DeviceBuffer, device_index

        warnings.warn(
            "arrays in host memory are copied to the GPU and back; keep them there (CuPy, PyTorch, Numba) for speed",
            HostCopyWarning,
            stacklevel=4,
        )
        index = device_index()
        there = [DeviceBuffer.of(adapter_of(a, "x").host(a), index) for a in (x, w)]
        result = DeviceBuffer(index, target.shape, HALF_TYPES[self.dtype])
        key = (index, 0)
        launch = self._launches.get(key) or self._launch(key, "numpy")
        launch(0, there[0].pointer, there[1].pointer, result.pointer)
        target[...] = result.host()

    def run_cpu(self, x: Any, w: Any, *, out: Any = None) -> tuple[Any, Counters]:
        """Run the kernel on the CPU body; returns y and what all its launches did."""
        from kernels_numba.linear_run import run_cpu

        m, _, k = self.shape
        choice = self.choice("numpy")
        rows, weights = (adapter_of(a, name).host(a) for a, name in ((x, "x"), (w, "w")))
        values, counters = run_cpu(self.product(choice), rows.reshape(m, k), weights)
        values = values.reshape(*rows.shape[:-1], -1)
        if out is None:
            return values, counters
        adapter_of(out, "out").host(out)[...] = values
        return out, counters


@lru_cache(maxsize=4096)
def _prepared(m: int, n: int, k: int, dtype: str, impl: str | None) -> Linear:
    return Linear(m, n, k, dtype=dtype, impl=impl)


__all__ = ["Linear", "default_choice", "explain_linear", "flat_gemm", "full_gemm", "gemv", "linear"]
