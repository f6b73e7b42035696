"""Small kernels, one for each operation on maps of float32; both bodies run them. Arguments as in `tiny_float`.

What is made in registers is written as there, register r of lane l to ``32 r + l``; an image or a matrix that is stored
begins at its own place of ``out``.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny_float import SIGNATURE, SIZE, Data, Tiny, data_for, reader
from tiny_registry import registry

from kernels_numba.tile.counters import Counters
from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import Buffer, Machine

__all__ = ["SIGNATURE", "build", "data_for", "min_blocks"]

VOCABULARY = "float-layers"
KERNELS, tiny, build, min_blocks = registry(Tiny)
BASE, HEIGHT, WIDTH = 40, 9, 21
"""An image: its first element, rows and columns;"""
ROW, COLUMN, ROWS, SECOND = -2, -3, 8, 16
"""a tile of 8 rows and 32 columns that begins before it."""
DOWN, ACROSS = 2, 3
FAR, STRIDE = 8, 70
TILE_ROWS, TILE_COLUMNS, ROW_LIMIT, COLUMN_LIMIT = (0, 1, 8), (0, 4), 7, 6


def run_cpu(spec: Tiny, data: Data) -> tuple[NDArray[np.float32], Counters]:
    machine = Machine()
    out = np.full(SIZE, np.nan, np.float32)
    kernel = build(vocabulary(machine, "fp32", VOCABULARY), spec)
    h, f, w, d = (Buffer(name, x) for name, x in zip("hfwd", data, strict=True))
    counters = machine.run(kernel, 1, spec.warps, spec.shared_words, [h, f, w, Buffer("out", out), 0, d])
    return out, counters


def run_gpu(spec: Tiny, data: Data) -> NDArray[np.float32]:
    from kernels_numba import device
    from kernels_numba.launch import DeviceBuffer, LoadedKernel, synchronize

    loaded = LoadedKernel(sys.modules[__name__], spec, device())
    h, f, w, d, out = (DeviceBuffer.of(x, 0) for x in (*data, np.full(SIZE, np.nan, np.float32)))
    launch = loaded.launcher(1, ("u", "pregate", "postgate", "y", 0, d.pointer))
    launch(0, h.pointer, f.pointer, w.pointer, out.pointer)
    synchronize(0)
    return out.host()


def _put(tile: Any, count: int) -> Any:
    return tile.store_floats(tuple((32 * r, (r,)) for r in range(count)), guarded=False)


@tiny("load_map_columns", "load_map_columns:one", "load_map_columns:spread")
def load_map_columns(tile: Any, kind: str = "") -> Callable:
    """Columns 0 .. 31 of the tile, of which each also has the one 16 on."""
    load = tile.load_map_columns(ROWS, 0 if kind == "one" else SECOND, spread=kind == "spread")
    put, lane, small, int64 = _put(tile, 2 * ROWS), tile.lane, tile.small, tile.int64

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        x = load(f, BASE, WIDTH, ROW, COLUMN + index, HEIGHT, WIDTH, DOWN, ACROSS)
        put(out, int64(0), small(1), index, x)

    return kernel


@tiny("store_map_columns", "store_map_columns:spread")
def store_map_columns(tile: Any, kind: str = "") -> Callable:
    """Lanes 0 .. 15 have a tile of 32 columns, times 0.5; the others are beyond the image."""
    store = tile.store_map_columns(ROWS, SECOND, spread=bool(kind))
    read, lane, small, int64 = reader(tile, 2 * ROWS), tile.lane, tile.small, tile.int64
    half = np.float32(0.5)

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        x = read(f, int64(0), small(0), index)
        column = small(COLUMN + index + 100 * (index >> 4))
        store(out, BASE, WIDTH, ROW, column, HEIGHT, WIDTH, DOWN, ACROSS, half, x)

    return kernel


@tiny("far_points")
def far_points(tile: Any) -> Callable:
    """Three points of each lane but 5 from one place to another."""
    load, store = tile.load_far_points(3), tile.store_far_points(3)
    put, lane, small, int64 = _put(tile, 6), tile.lane, tile.small, tile.int64

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        x = load(f, FAR + index, STRIDE, index != 5)
        put(out, int64(0), small(1), index, x)
        store(out, 500 + index, STRIDE, index != 5, x)

    return kernel


@tiny("point_rows")
def point_rows(tile: Any) -> Callable:
    """Two of three rows of points of each lane but 5, and back."""
    load, store, cast = tile.load_point_rows(3), tile.store_point_rows(3), tile.as_floats(6)
    put, lane, small, int64 = _put(tile, 6), tile.lane, tile.small, tile.int64

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        x = cast(load(f, FAR + index, STRIDE, 2, index != 5))
        put(out, int64(0), small(1), index, x)
        store(out, 500 + index, STRIDE, 2, index != 5, x)

    return kernel


@tiny("add_point_products", "add_point_products:left", "add_point_products:right")
def add_point_products(tile: Any, conjugate: str = "") -> Callable:
    """Two rows, three columns, two steps."""
    multiply = tile.add_point_products(2, 3, 2, conjugate=conjugate)
    read, words = reader(tile, 12), tile.as_words(12)
    read_left, left_words = reader(tile, 8), tile.as_words(8)
    put, lane, small, int64 = _put(tile, 12), tile.lane, tile.small, tile.int64

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        c = read(f, int64(0), small(0), index)
        a = left_words(read_left(f, int64(1000), small(0), index))
        b = words(read(f, int64(2000), small(0), index))
        put(out, int64(0), small(1), index, multiply(c, a, b))

    return kernel


@tiny("point_tile")
def point_tile(tile: Any) -> Callable:
    """Lane l has row l / 4 and column l % 4 of a matrix of points with 12 a row, and others on from there."""
    load, store = (op(TILE_ROWS, TILE_COLUMNS) for op in (tile.load_point_tile, tile.store_point_tile))
    put, lane, small, int64 = _put(tile, 12), tile.lane, tile.small, tile.int64

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        row = small(2 * (index >> 2))
        column = small(index & 3)
        at = small(12 * row + column)
        c = load(f, at, 12, ROW_LIMIT + 9 - row, COLUMN_LIMIT - column)
        put(out, int64(0), small(1), index, c)
        store(out, 500 + at, 12, ROW_LIMIT + 9 - row, COLUMN_LIMIT - column, c)

    return kernel
