"""Matrices as the copy engine of a GPU sees them ("tensor maps", compute capability 9.0).

A kernel asks for a box of such a matrix by its first row and column, and the copy engine finds the addresses, leaves
out what lies beyond the matrix, and writes the box into shared memory in the layout that ``wgmma`` reads. The map is an
argument of the kernel, 128 bytes by value (`tile.compile.MAPS`), and belongs to one address; the driver makes it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

BOX_COLUMNS = 64
"""Halves of a row of a box: 128 bytes, the span of the widest swizzle."""
MOST_ROWS = 256
ALIGNMENT = 16
MAP_BYTES = 128
MAPS_KEPT = 64
"""Maps of addresses that a launch remembers: making one takes the host longer than a launch."""


@dataclass(frozen=True)
class TensorMap:
    """A row-major matrix [rows, columns] of halves, in boxes of ``box_rows`` rows and 64 columns.

    The chunk c (16 bytes) of row r of a box lies at place c XOR (r mod 8) of its 128 bytes.
    """

    source: Any
    """The name of a pointer that a launch gets, or an address; on the CPU body a buffer."""
    rows: int
    columns: int
    stride: int
    """Distance of two rows in elements, a multiple of 8."""
    box_rows: int

    def encoded(self, pointer: int) -> bytes:
        """The 128 bytes of the map for a matrix at an address, which lies on 16 bytes as its rows do."""
        from cuda.bindings import driver

        kinds = driver.CUtensorMapDataType
        status, made = driver.cuTensorMapEncodeTiled(
            kinds.CU_TENSOR_MAP_DATA_TYPE_UINT16,
            2,
            pointer,
            [driver.cuuint64_t(self.columns), driver.cuuint64_t(self.rows)],
            [driver.cuuint64_t(2 * self.stride)],
            [driver.cuuint32_t(BOX_COLUMNS), driver.cuuint32_t(self.box_rows)],
            [driver.cuuint32_t(1), driver.cuuint32_t(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            raise ValueError(
                f"a matrix [{self.rows}, {self.columns}] at address {pointer:#x} has no tensor map ({status.name}): "
                f"it begins on {ALIGNMENT} bytes, as its rows do, and boxes have at most {MOST_ROWS} rows; got "
                f"{self.box_rows}"
            )
        return ctypes.string_at(int(made.getPtr()), MAP_BYTES)


class Slot:
    """Where a launch's parameters hold a map; the map follows the pointer."""

    def __init__(self, described: TensorMap) -> None:
        self.described = described
        self.storage = (ctypes.c_uint64 * (MAP_BYTES // 8))()
        self.pointer: int | None = None
        self.known: dict[int, bytes] = {}
        if not isinstance(described.source, str):
            self.point_to(described.source)

    def point_to(self, pointer: int) -> None:
        """Make the parameter the map of the matrix at ``pointer``."""
        if pointer == self.pointer:
            return
        found = self.known.get(pointer)
        if found is None:
            if len(self.known) >= MAPS_KEPT:
                self.known.clear()
            found = self.known[pointer] = self.described.encoded(pointer)
        ctypes.memmove(self.storage, found, MAP_BYTES)
        self.pointer = pointer
