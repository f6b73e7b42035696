"""Rows of 16-bit elements, in host or device memory, copied part by part: what a stream keeps between chunks."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kernels_numba.device import device


class Planes(Protocol):
    """``rows`` rows of ``width`` elements."""

    rows: int
    width: int

    def copy(self, at: int, source: Any, source_at: int, count: int) -> None:
        """``count`` elements of every row from another of its kind."""

    def fill(self, at: int, count: int, bits: int) -> None:
        """``count`` elements of every row with the same bits."""


class HostPlanes:
    """Over a flat array of 16-bit words."""

    def __init__(self, rows: int, width: int, words: NDArray) -> None:
        self.rows, self.width, self.words = rows, width, words
        self._table = words.reshape(rows, width)

    def copy(self, at: int, source: HostPlanes, source_at: int, count: int) -> None:
        """``count`` elements of every row from another of its kind."""
        self._table[:, at : at + count] = source._table[:, source_at : source_at + count]

    def fill(self, at: int, count: int, bits: int) -> None:
        """``count`` elements of every row with the same bits."""
        self._table[:, at : at + count] = np.array(bits, np.uint16).view(np.int16)


class DevicePlanes:
    """At an address on a GPU; copies go to a stream, which is set before use."""

    def __init__(
        self, rows: int, width: int, pointer: int, stream: int, index: int, keep: Any = None
    ) -> None:
        self.rows, self.width, self.pointer, self.stream, self.keep = rows, width, pointer, stream, keep
        self._where = device(index)

    def copy(self, at: int, source: DevicePlanes, source_at: int, count: int) -> None:
        """``count`` elements of every row from another of its kind."""
        from cuda.bindings import driver

        from kernels_numba.launch import current_device

        if not count:
            return
        what = driver.CUDA_MEMCPY2D()
        what.srcMemoryType = what.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        what.srcDevice, what.srcPitch = source.pointer + 2 * source_at, 2 * source.width
        what.dstDevice, what.dstPitch = self.pointer + 2 * at, 2 * self.width
        what.WidthInBytes, what.Height = 2 * count, self.rows
        with current_device(self._where):
            self._check(driver.cuMemcpy2DAsync(what, self.stream)[0], "copying")

    def fill(self, at: int, count: int, bits: int) -> None:
        """``count`` elements of every row with the same bits."""
        from cuda.bindings import driver

        from kernels_numba.launch import current_device

        if count:
            place = self.pointer + 2 * at
            with current_device(self._where):
                status = driver.cuMemsetD2D16Async(place, 2 * self.width, bits, count, self.rows, self.stream)
            self._check(status[0], "setting")

    def _check(self, status: Any, what: str) -> None:
        from cuda.bindings import driver

        from kernels_numba.launch import LaunchError

        if status != driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(f"{what} {self.rows} rows of {self.width} elements failed: {status.name}")
