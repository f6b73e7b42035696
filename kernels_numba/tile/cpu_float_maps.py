"""The CPU body's operations on maps of float32; see `gpu_float_maps.py` for what each does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_float import fma
from kernels_numba.tile.cpu_maps import _inside
from kernels_numba.tile.cpu_memory import Fragment, _lanes, _mask
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Buffer, Machine
from kernels_numba.tile.points import PRODUCT_TERMS


class CpuFloatMaps:
    """Operations on maps of float32; :class:`kernels_numba.tile.cpu_vocabularies.CpuFloatLayers` inherits them."""

    machine: Machine
    dtype: str
    half: np.dtype

    def _read(self, source: Buffer, where: NDArray, width: int) -> NDArray:
        """[width, *places]."""
        source.check(where, width)
        self.machine.counters.add_bytes("global_read_bytes", source.name, 4 * width * where.size)
        return np.stack([source.data[where + i] for i in range(width)])

    def _write(self, target: Buffer, where: NDArray, values: NDArray) -> None:
        target.check(where, len(values))
        for i, part in enumerate(values):
            target.data[where + i] = part
        self.machine.counters.add_bytes("global_written_bytes", target.name, 4 * len(values) * where.size)

    def load_map_columns(self, rows: int, second: int, *, spread: bool = False) -> Callable:
        """Two columns of an image as points."""

        def load(source: Buffer, base: Any, pitch: Any, *window: Any) -> Fragment:
            out = np.zeros((2, rows, WARP), np.float32)
            for part, where, keep in _map_places(base, pitch, window, rows, second, spread):
                out[part, keep] = self._read(source, where, 1)[0]
            return out.reshape(2 * rows, WARP)

        return load

    def store_map_columns(self, rows: int, second: int, *, spread: bool = False) -> Callable:
        """The reverse, times a factor; what lies before the image stands for what is a period on."""

        def put(target: Buffer, base: Any, pitch: Any, *rest: Any) -> None:
            *window, factor, x = rest
            before = (_lanes(window[1]) + second * np.arange(2)[:, None] < 0) & (not spread)
            sign = np.where(before, -np.float32(factor), np.float32(factor))
            self.machine.counters.fp32_flops += x.size
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                values = x.reshape(2, rows, WARP) * sign[:, None]
            for part, where, keep in _map_places(base, pitch, window, rows, second, spread, wrap=not spread):
                self._write(target, where, values[part, keep][None])

        return put

    def load_far_points(self, count: int) -> Callable:
        """Points a stride apart, zeros where not valid."""
        i = np.arange(count)[:, None]

        def load(source: Buffer, at: Any, stride: Any, valid: Any) -> Fragment:
            out = np.zeros((2, count, WARP), np.float32)
            keep = _mask(valid)
            where = 2 * (_lanes(at) + i * int(stride))[:, keep]
            out[:, :, keep] = self._read(source, where, 2)
            return out.reshape(2 * count, WARP)

        return load

    def store_far_points(self, count: int) -> Callable:
        """The reverse."""
        i = np.arange(count)[:, None]

        def put(target: Buffer, at: Any, stride: Any, valid: Any, x: Fragment) -> None:
            keep = _mask(valid)
            where = 2 * (_lanes(at) + i * int(stride))[:, keep]
            self._write(target, where, x.reshape(2, count, WARP)[:, :, keep])

        return put

    def load_point_rows(self, count: int) -> Callable:
        """Points of words, in their dtype, as float32."""
        width, i = 2 if self.dtype == "fp32" else 1, np.arange(count)[:, None]

        def load(source: Buffer, at: Any, stride: Any, rows: Any, valid: Any) -> Fragment:
            out = np.zeros((count, WARP, 2), np.float32)
            keep = _mask(valid) & (i < _lanes(rows))
            words = self._read(source, width * (_lanes(at) + i * int(stride))[keep], width)
            if width == 1:
                halves = np.ascontiguousarray(words[0]).view(self.half).reshape(-1, 2)
                out[keep] = halves.astype(np.float32)
            else:
                out[keep] = words.view(np.float32).T
            return np.ascontiguousarray(out.swapaxes(1, 2)).view(np.int32).reshape(2 * count, WARP)

        return load

    def store_point_rows(self, count: int) -> Callable:
        """The reverse, rounded."""
        width, i = 2 if self.dtype == "fp32" else 1, np.arange(count)[:, None]

        def put(target: Buffer, at: Any, stride: Any, rows: Any, valid: Any, c: Fragment) -> None:
            keep = _mask(valid) & (i < _lanes(rows))
            where = width * (_lanes(at) + i * int(stride))[keep]
            points = c.reshape(count, 2, WARP).swapaxes(1, 2)[keep]
            with np.errstate(over="ignore", invalid="ignore"):
                words = points.view(np.int32) if width == 2 else points.astype(self.half).view(np.int32)
            self._write(target, where, words.view(target.data.dtype).T)

        return put

    # ---- matrices of points --------------------------------------------------------------------------------
    def add_point_products(self, rows: int, columns: int, steps: int, *, conjugate: str) -> Callable:
        """Each lane's own products of points, added one after the other."""

        def product(c: Fragment, a: Fragment, b: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += 8 * rows * columns * steps * WARP
            sums = c.reshape(rows, columns, 2, WARP).copy()
            left = np.ascontiguousarray(a).view(np.float32).reshape(rows, 1, steps, 2, WARP)
            right = np.ascontiguousarray(b).view(np.float32).reshape(1, columns, steps, 2, WARP)
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                for k in range(steps):
                    for term, (p, q, minus) in enumerate(PRODUCT_TERMS[conjugate]):
                        x, y = left[:, :, k, p], right[:, :, k, q]
                        sums[:, :, term // 2] = fma(-x if minus else x, y, sums[:, :, term // 2])
            return sums.reshape(-1, WARP)

        return product

    def store_point_tile(self, rows: tuple[int, ...], columns: tuple[int, ...]) -> Callable:
        """A lane's part of a matrix of points."""

        def put(target: Buffer, at: Any, stride: Any, row_limit: Any, column_limit: Any, c: Fragment) -> None:
            where, keep = _tile_places(at, stride, row_limit, column_limit, rows, columns)
            self._write(target, where, c.reshape(-1, 2, WARP).swapaxes(0, 1)[:, keep])

        return put

    def load_point_tile(self, rows: tuple[int, ...], columns: tuple[int, ...]) -> Callable:
        """What was stored so; zeros beyond the limits."""

        def load(source: Buffer, at: Any, stride: Any, row_limit: Any, column_limit: Any) -> Fragment:
            where, keep = _tile_places(at, stride, row_limit, column_limit, rows, columns)
            out = np.zeros((2, *keep.shape), np.float32)
            out[:, keep] = self._read(source, where, 2)
            return np.ascontiguousarray(out.swapaxes(0, 1)).reshape(-1, WARP)

        return load


def _map_places(
    base: Any, pitch: Any, window: Any, rows: int, second: int, spread: bool, *, wrap: bool = False
) -> Iterator[tuple[int, NDArray, NDArray]]:
    """Part, elements, and rows and lanes of the samples of two columns that are in the image."""
    row, column, height, width, down, across = window
    y = _lanes(row) + np.arange(rows)[:, None]
    at, inside = _inside(np.where(y < 0, y + rows, y) if wrap else y, height, down, spread)
    for part in range(2 if second else 1):
        x = _lanes(column) + part * second
        place, here = _inside(np.where(x < 0, x + 2 * second, x) if wrap else x, width, across, spread)
        keep = inside & here
        yield part, (_lanes(base) + at * int(pitch) + place)[keep], keep


def _tile_places(
    at: Any, stride: Any, row_limit: Any, column_limit: Any, rows: tuple[int, ...], columns: tuple[int, ...]
) -> tuple[NDArray, NDArray]:
    """Elements, and points [rows x columns] and lanes, of those of a matrix that are within its limits."""
    row, column = np.repeat(rows, len(columns))[:, None], np.tile(columns, len(rows))[:, None]
    keep = (_lanes(row_limit) > row) & (_lanes(column_limit) > column)
    return 2 * (_lanes(at) + row * int(stride) + column)[keep], keep
