"""Where a warp keeps a matrix: the register fragments of ``mma.sync.m16n8k16``.

A warp of 32 lanes holds a matrix in *fragments*: lane ``l = 4 g + t`` (group g in 0..7, thread t in 0..3)
owns a few 32-bit registers, and each register holds two neighbouring half-precision elements (or one float32
accumulator). The maps below say which; they are the PTX ISA's (section "Matrix fragments for mma.m16n8k16"):

====================  =====================================  ==============================
fragment              element held by register r, half e     order of the registers
====================  =====================================  ==============================
A, 16 x 16, half      row g + 8 (r & 1), column 2t + e + 8 (r >> 1)   ``A[(m KT + k) 4 + r]``
B, 16 x 8, half       row 2t + e + 8 r, column g             ``B[(k NT + n) 2 + r]``
C, 8 x 8, packed      row g, column 2t + e                   ``C[group NT + n]``
====================  =====================================  ==============================

C is kept by *row group* (8 rows) rather than by 16-row tile: two neighbouring groups of a packed C are the
rows of an A operand, and one transposed 8 x 8 block of C is half of a B operand, so products chain in
registers.

Everything here is NumPy; the CPU body of the tile layer and the builder of the constant operands both use it.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

WARP = 32
LANE = np.arange(WARP)
GROUP = LANE >> 2
THREAD = LANE & 3

HALF_TYPES = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
STORAGE_TYPES = {**HALF_TYPES, "fp32": np.dtype(np.float32)}
COMPLEX_TYPES = ("complex64", "complex32")
ELEMENT_TYPES = {
    **STORAGE_TYPES,
    "complex64": np.dtype(np.complex64),
    "complex32": np.dtype([("real", np.float16), ("imag", np.float16)]),
}
"""What sequences are made of; a complex number is stored as two of fp32, or of fp16 (NumPy has no such type)."""

Index = tuple[NDArray[np.intp], NDArray[np.intp]]


def _frozen(*arrays: NDArray[np.intp]) -> tuple[NDArray[np.intp], ...]:
    for array in arrays:
        array.setflags(write=False)
    return arrays


@cache
def a_index(row_tiles: int, k_tiles: int) -> Index:
    """Rows and columns of an A operand, each [registers, 32 lanes, 2 halves]."""
    m, k, r = np.meshgrid(np.arange(row_tiles), np.arange(k_tiles), np.arange(4), indexing="ij")
    m, k, r = (x.reshape(-1, 1, 1) for x in (m, k, r))
    half = np.arange(2)
    rows = 16 * m + GROUP[None, :, None] + 8 * (r & 1) + 0 * half
    columns = 16 * k + 2 * THREAD[None, :, None] + half + 8 * (r >> 1)
    return _frozen(rows, columns)  # type: ignore[return-value]


@cache
def b_index(k_tiles: int, column_tiles: int) -> Index:
    """Rows and columns of a B operand, each [registers, 32 lanes, 2 halves]."""
    k, n, r = np.meshgrid(np.arange(k_tiles), np.arange(column_tiles), np.arange(2), indexing="ij")
    k, n, r = (x.reshape(-1, 1, 1) for x in (k, n, r))
    half = np.arange(2)
    rows = 16 * k + 2 * THREAD[None, :, None] + half + 8 * r
    columns = 8 * n + GROUP[None, :, None] + 0 * half
    return _frozen(rows, columns)  # type: ignore[return-value]


@cache
def c_index(row_groups: int, column_tiles: int) -> Index:
    """Rows and columns of a packed C, each [registers, 32 lanes, 2 halves]."""
    y, n = (
        x.reshape(-1, 1, 1)
        for x in np.meshgrid(np.arange(row_groups), np.arange(column_tiles), indexing="ij")
    )
    half = np.arange(2)
    rows = 8 * y + GROUP[None, :, None] + 0 * half
    columns = 8 * n + 2 * THREAD[None, :, None] + half
    return _frozen(rows, columns)  # type: ignore[return-value]


@cache
def group_left_index(k: int) -> Index:
    """Rows and columns of a left operand [64, k] of a warpgroup in shared memory, flat, in the order of its halves.

    Core matrices of 8 rows by 8 columns follow each other as [k / 16, 8 row groups, 2 of k].
    """
    step, group, part, row, column = np.meshgrid(
        *(np.arange(n) for n in (k // 16, 8, 2, 8, 8)), indexing="ij"
    )
    return _frozen((8 * group + row).reshape(-1), (16 * step + 8 * part + column).reshape(-1))  # type: ignore[return-value]


SLICE_TILES = 4


def group_row_slices(columns: int) -> list[list[int]]:
    """Column tiles of a warpgroup product that contracts rows, in the slices that are computed one after the other.

    A slice's real and imaginary accumulators are one instruction's, so each is at most 32 columns wide.
    """
    tiles = list(range(columns // 8))
    return [tiles[start : start + SLICE_TILES] for start in range(0, len(tiles), SLICE_TILES)]


def group_column_slices(columns: int) -> list[list[int]]:
    """Column tiles of a warpgroup product that contracts columns, in its slices.

    More columns of accumulators, beside a left operand and results that are complete, would not leave registers for
    anything else. A slice has as many tiles of the first half as of the second: an output and its mirror are formed
    together.
    """
    half = columns // 16
    step = half // -(-half // (SLICE_TILES // 2))
    return [
        [*range(start, start + step), *range(half + start, half + start + step)]
        for start in range(0, half, step)
    ]


def by_slices(slices: list[list[int]]) -> tuple[int, ...]:
    """Registers of a packed C of two row groups in the order in which slices of its column tiles come."""
    tiles = sum(map(len, slices))
    return tuple(y * tiles + tile for chosen in slices for y in range(2) for tile in chosen)


@cache
def group_right_index(k: int, columns: int) -> Index:
    """Rows and columns of a right operand [k, columns] of a warpgroup in shared memory, flat, as its halves lie.

    Core matrices of 8 columns by 8 rows (the contraction runs fastest) follow each other as
    [k / 16, column groups by slice, 2 of k].
    """
    groups = np.array([tile for part in group_column_slices(columns) for tile in part])
    step, group, part, column, row = np.meshgrid(
        np.arange(k // 16), groups, *(np.arange(n) for n in (2, 8, 8)), indexing="ij"
    )
    return _frozen((16 * step + 8 * part + row).reshape(-1), (8 * group + column).reshape(-1))  # type: ignore[return-value]


@cache
def group_plain_right_index(k: int, columns: int) -> Index:
    """As `group_right_index`, with the column groups in their natural order."""
    step, group, part, column, row = np.meshgrid(
        *(np.arange(n) for n in (k // 16, columns // 8, 2, 8, 8)), indexing="ij"
    )
    return _frozen((16 * step + 8 * part + row).reshape(-1), (8 * group + column).reshape(-1))  # type: ignore[return-value]


def to_words(values: NDArray[np.floating], dtype: str) -> NDArray[np.int32]:
    """Round [..., 2] to half precision and pack each pair into one 32-bit register."""
    halves = np.ascontiguousarray(values.astype(HALF_TYPES[dtype]))
    return halves.view(np.int32).reshape(values.shape[:-1])


def lane_order(words: NDArray[np.int32]) -> NDArray[np.int32]:
    """Reorder [registers, 32] so that every lane reads its registers with 16-byte loads.

    Memory order is [register quads, 32 lanes, 4]: chunk c at word ``128 c + 4 lane``. A warp's load of one
    chunk is 512 contiguous bytes, without bank conflicts.
    """
    registers = words.shape[0]
    if registers % 4:
        raise ValueError(f"words: {registers} registers cannot be read in quads; pad to a multiple of 4")
    return np.ascontiguousarray(words.reshape(registers // 4, 4, WARP).transpose(0, 2, 1)).reshape(-1)


def lane_order_positions(
    row_groups: int, column_tiles: int, order: tuple[int, ...] | None = None, *, width: int = 4
) -> Index:
    """Rows and columns of a packed C, flat, in the order of the halves that :func:`lane_order` makes.

    ``order``: the C's registers in another order. ``width``: registers that a lane reads at once.
    """
    rows, columns = (x if order is None else x[list(order)] for x in c_index(row_groups, column_tiles))
    registers = rows.shape[0]
    shape = (registers // width, width, WARP, 2)
    flat = [x.reshape(shape).swapaxes(1, 2).reshape(-1) for x in (rows, columns)]
    return flat[0], flat[1]


def pack_operand(matrix: NDArray[np.floating], index: Index, dtype: str) -> NDArray[np.int32]:
    """Lane-ordered words of a real matrix laid out by ``index`` (from a_index, b_index or c_index)."""
    rows, columns = index
    return lane_order(to_words(matrix[rows, columns], dtype))


def pack_complex(matrix: NDArray[np.complexfloating], index: Index, dtype: str) -> NDArray[np.int32]:
    """Lane-ordered words of registers of real parts, then of imaginary parts."""
    rows, columns = index
    return lane_order(np.concatenate([to_words(x[rows, columns], dtype) for x in (matrix.real, matrix.imag)]))


def pack_core(matrix: NDArray[np.floating], index: Index, dtype: str) -> NDArray[np.int32]:
    """Words of a real matrix as core matrices, laid out by ``index`` (from group_left_index or group_right_index)."""
    rows, columns = index
    return to_words(matrix[rows, columns].reshape(-1, 2), dtype)


def edge_words(taps: int) -> int:
    """Registers with the neighbours that a short filter needs beyond a piece of a sequence."""
    return max(1, taps // 2)


def row_words(columns: int) -> int:
    """How far apart rows of so many halves are staged, in words: so that eight rows meet no bank twice."""
    return columns // 2 + (4 if columns % 16 == 0 else 0)
