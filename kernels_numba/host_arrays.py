"""Arrays in host memory as the CPU body's buffers, and results put back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.arrays import COMPLEX32, Adapter, adapter_of


def _bits(x: Any) -> NDArray:
    """The numbers of an array (or of none), flat: those of half precision as 16-bit words, complex ones as two."""
    if x is None:
        return np.empty(0, np.int16)
    host = x if isinstance(x, np.ndarray) else adapter_of(x, "u").host(x)
    flat = host.reshape(-1)
    halves = flat.itemsize == 2 or flat.dtype == COMPLEX32
    bits = flat.view(np.int16) if halves else flat.view(flat.real.dtype)
    return bits if bits.ctypes.data % 16 == 0 else _aligned(bits)


def _aligned(bits: NDArray) -> NDArray:
    """A copy on a 16-byte boundary, as device allocations are."""
    per = 16 // bits.itemsize
    room = np.empty(bits.size + per, bits.dtype)
    start = (-room.ctypes.data // bits.itemsize) % per
    room[start : start + bits.size] = bits
    return room[start : start + bits.size]


def _write(out: Any, adapter: Adapter, values: NDArray) -> None:
    """Put the result into an array in host memory (host() of one is a view)."""
    adapter.host(out)[...] = values.reshape(tuple(out.shape))
