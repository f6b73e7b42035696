"""The CPU body's operations on maps: windows of images, complex numbers of two halves in one word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_memory import Fragment, _lanes, _mask, parted
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Buffer, Machine

GROUP, THREAD = np.arange(WARP) >> 2, np.arange(WARP) & 3
LOW_SIGN, HIGH_SIGN = np.int32(0x8000), np.int32(-0x80000000)


class CpuMaps:
    """Operations on maps; :class:`kernels_numba.tile.cpu_vocabularies.CpuLayers` inherits them."""

    machine: Machine
    half: np.dtype
    _put: Callable
    _halves: Callable
    _words: Callable
    _fma: Callable

    # ---- windows of images ---------------------------------------------------------------------------------
    def load_window(self, groups: int, words: int, halves: int, *, spread: bool = False) -> Callable:
        """Rows of an image as an A operand, zeros outside."""

        def load(
            source: Buffer,
            base: Any,
            pitch: Any,
            row: Any,
            column: Any,
            height: Any,
            width: Any,
            down: Any,
            across: Any,
        ) -> Fragment:
            out = np.zeros((groups, words, WARP, 2), np.int16)
            read = 0
            for y in range(groups):
                at, inside = _inside(_lanes(row) + 8 * y, height, down, spread)
                for i in range(0, 2 * words, halves):
                    place, here = _inside(_lanes(column) + i, width, across, spread)
                    keep = inside & here
                    where = (_lanes(base) + at * int(pitch) + place)[keep]
                    source.check(where, halves)
                    for h in range(halves):
                        out[y, (i + h) // 2, keep, (i + h) % 2] = source.data[where + h]
                    read += 2 * halves * where.size
            self.machine.counters.add_bytes("global_read_bytes", source.name, read)
            registers = out.view(np.int32)[..., 0].reshape(groups // 2, 2, words // 2, 2, WARP)
            return np.ascontiguousarray(registers.transpose(0, 2, 3, 1, 4)).reshape(-1, WARP)

        return load

    def store_window(self, groups: int, tiles: int, halves: int, *, spread: bool = False) -> Callable:
        """Accumulators by row group, rounded, to an image."""

        def put(
            target: Buffer,
            base: Any,
            pitch: Any,
            row: Any,
            column: Any,
            height: Any,
            width: Any,
            down: Any,
            across: Any,
            c: Fragment,
        ) -> None:
            with np.errstate(over="ignore", invalid="ignore"):
                values = c.astype(self.half).view(np.int16).reshape(groups, tiles, 2, WARP)
            for y in range(groups):
                at, inside = _inside(_lanes(row) + 8 * y, height, down, spread)
                for n in range(tiles):
                    for e in range(0, 2, halves):
                        place, here = _inside(_lanes(column) + 8 * n + e, width, across, spread)
                        keep = inside & here
                        where = (_lanes(base) + at * int(pitch) + place)[keep]
                        target.check(where, halves)
                        for h in range(halves):
                            self._put(target, where + h, values[y, n, e + h, keep])

        return put

    # ---- points ------------------------------------------------------------------------------------------
    def pack_points(self, count: int) -> Callable:
        """Real and imaginary parts, rounded, as points."""

        def rounded(values: Fragment) -> Fragment:
            with np.errstate(over="ignore", invalid="ignore"):
                halves = np.stack(parted(values), axis=-1).astype(self.half)
            return np.ascontiguousarray(halves).view(np.int32)[..., 0]

        return rounded

    def fold_mirrors(self, count: int) -> Callable:
        """Points p and mirrors m as p + m and -i (p - m)."""

        def folded(points: Fragment) -> Fragment:
            self.machine.counters.half_flops += 4 * points.size
            p, m = parted(self._halves(points))
            sums, differences = (self._words(self._fma(p, 1.0, x)) for x in (m, -m))
            return np.concatenate([sums, _exchanged(differences) ^ HIGH_SIGN])

        return folded

    def complex_columns(self, count: int, *, conjugate: bool) -> Callable:
        """Points as operands that make the real and the imaginary part of a product."""

        def operands(points: Fragment) -> Fragment:
            other = _exchanged(points)
            if conjugate:
                return np.concatenate([points, other ^ LOW_SIGN])
            return np.concatenate([points ^ HIGH_SIGN, other])

        return operands

    def _put_points(self, target: Buffer, where: NDArray, width: int, points: NDArray[np.int32]) -> None:
        target.check(where, width)
        for i in range(width):
            self._put(target, where + i, points[i])

    def store_points(self, row_groups: int, column_tiles: int) -> Callable:
        """A matrix of points, two neighbours at a time."""
        pack = self.pack_points(2 * row_groups * column_tiles)

        def put(target: Buffer, at: Any, stride: Any, rows: Any, columns: Any, c: Fragment) -> None:
            parts = c.reshape(row_groups, 2, -1, WARP).swapaxes(0, 1).reshape(-1, WARP)
            words = pack(parts).reshape(row_groups, column_tiles, 2, WARP)
            for y in range(row_groups):
                for n in range(column_tiles):
                    keep = (_lanes(rows) > 8 * y) & (_lanes(columns) > 8 * n)
                    where = (_lanes(at) + 8 * y * int(stride) + 8 * n)[keep]
                    self._put_points(target, where, 2, words[y, n][:, keep])

        return put

    def store_outer_points(self, row_groups: int, column_tiles: int) -> Callable:
        """Points conj(g) x from products of their parts."""
        pass_points = self.pass_outer_points(row_groups, column_tiles)

        def put(target: Buffer, at: Any, stride: Any, rows: Any, columns: Any, c: Fragment) -> None:
            pass_points(target, target, at, stride, rows, columns, True, True, c)

        return put

    def pass_outer_points(self, row_groups: int, column_tiles: int) -> Callable:
        """The same, added to what was passed on, and passed on or rounded."""
        pack = self.pack_points(1)
        even = (np.arange(WARP) & 4) == 0

        def put(target: Buffer, sums: Buffer, at: Any, stride: Any, *rest: Any) -> None:
            rows, columns, first, last, c = rest
            pairs = c.reshape(row_groups, column_tiles, 2, WARP)
            others = pairs[..., np.arange(WARP) ^ 4]
            with np.errstate(over="ignore", invalid="ignore"):
                points = np.stack(
                    [pairs[:, :, 0] + others[:, :, 1], pairs[:, :, 1] - others[:, :, 0]], axis=2
                )
            self.machine.counters.fp32_flops += points.size * (1 if first else 2)
            for y in range(row_groups):
                for n in range(column_tiles):
                    keep = even & (_lanes(rows) > 4 * y) & (_lanes(columns) > 4 * n)
                    where = (_lanes(at) + 4 * y * int(stride) + 4 * n)[keep]
                    values = points[y, n][:, keep]
                    if not first:
                        sums.check(2 * where, 2)
                        self.machine.counters.add_bytes("global_read_bytes", sums.name, 8 * where.size)
                        values = values + sums.data[2 * where + np.arange(2)[:, None]]
                    if last:
                        self._put_points(target, where, 1, pack(values))
                    else:
                        for part in range(2):
                            self._put(sums, 2 * where + part, values[part])

        return put

    # ---- moves -------------------------------------------------------------------------------------------
    def move_words(self, count: int, shared_step: int) -> Callable:
        """Words from shared to global memory."""

        def move(word: Any, target: Buffer, at: Any, stride: Any, valid: Any) -> None:
            machine = self.machine
            keep = _mask(valid)
            for i in range(count):
                start = _lanes(word) + i * shared_step
                machine.count_shared(start, 1, write=False)
                if not keep.any():
                    continue
                # What other lanes find there is of no use, so it need not have been written.
                used = np.where(keep, start, start[np.argmax(keep)])
                values = machine.shared.read(machine.warp, used[None], machine.epoch)[0]
                where = (_lanes(at) + i * int(stride))[keep]
                target.check(where, 1)
                self._put(target, where, values[keep])

        return move

    def load_matrices_across(self, tiles: int, slab_words: int) -> Callable:
        """Four transposed 8 x 8 blocks of halves per tile, from slabs whose chunks have changed places."""

        def load(word: Any, chunk: Any, turn: Any) -> Fragment:
            machine = self.machine
            here = _lanes(chunk) + 2 * np.arange(tiles)[:, None]
            starts = _lanes(word) + (here >> 3) * slab_words + 4 * ((here & 7) ^ _lanes(turn))
            for start in starts:
                machine.count_shared(start, 4, write=False)
            index = starts[:, None] + np.arange(4)[:, None]
            rows = machine.shared.read(machine.warp, index, machine.epoch).swapaxes(1, 2)
            halves = np.ascontiguousarray(rows).view(np.int16).reshape(-1, 8, 8).swapaxes(1, 2)
            return np.ascontiguousarray(halves).view(np.int32).reshape(-1, WARP)

        return load


def _exchanged(points: NDArray[np.int32]) -> NDArray[np.int32]:
    halves = np.ascontiguousarray(points).view(np.int16).reshape(*points.shape, 2)[..., ::-1]
    return np.ascontiguousarray(halves).view(np.int32)[..., 0]


def _inside(at: NDArray[np.int64], limit: Any, step: Any, spread: bool) -> tuple[NDArray, NDArray]:
    inside = (at >= 0) & (at < _lanes(limit))
    if not spread:
        return at, inside
    return at // int(step), inside & (at % int(step) == 0)
