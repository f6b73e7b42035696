"""The CPU body's operations of long transforms' outer stages: float32 twiddles; see `gpu_turns.py`.

A GPU's sine and cosine are approximate (2^-20.5 on [-pi, pi]); here they are float32's. Everything else is the GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.cpu_memory import Fragment, _lanes, parted
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.machine import Machine

Complex = tuple[NDArray[np.float32], NDArray[np.float32]]


def _fma(a: NDArray, b: NDArray, c: NDArray) -> NDArray[np.float32]:
    """A b + c of float32, rounded once (the product is exact in float64)."""
    return (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32)


def _times(x: Complex, y: Complex) -> Complex:
    return _fma(-x[1], y[1], x[0] * y[0]), _fma(x[1], y[0], x[0] * y[1])


def _unit(number: NDArray[np.int64], points: int, sign: int) -> Complex:
    turned = np.where(2 * number >= points, number - points, number).astype(np.float32)
    angle = turned * np.float32(sign * 2 * np.pi / points)
    return np.cos(angle), np.sin(angle)


def powers(first: Complex, step: Complex, count: int) -> Complex:
    """First times step^0 .. step^(count - 1), each [count, 32]; count a power of two."""
    re, im = first[0][None], first[1][None]
    while len(re) < count:
        more = _times((re, im), step)
        re, im = np.concatenate([re, more[0]]), np.concatenate([im, more[1]])
        step = _times(step, step)
    return re, im


COMPLEX_PRODUCT = 6
"""Flops of one."""


class CpuTurns:
    """Operations of the vocabulary "outer"."""

    machine: Machine
    half: np.dtype

    def load_transposed(self, constants: tuple[int, ...]) -> Callable:
        """Four 8 x 8 blocks of halves per constant from shared memory, transposed; lane 8 i + r names row r of i."""
        column = np.array(constants)[:, None]

        def load(word: Any) -> Fragment:
            machine, starts = self.machine, _lanes(word) + column
            for start in starts:
                machine.count_shared(start, 4, write=False)
            index = starts[:, None] + np.arange(4)[:, None]
            rows = machine.shared.read(machine.warp, index, machine.epoch).swapaxes(1, 2)
            blocks = np.ascontiguousarray(rows).view(np.int16).reshape(-1, 8, 8).swapaxes(1, 2)
            return np.ascontiguousarray(blocks).view(np.int32).reshape(-1, WARP)

        return load

    def widen(self, count: int) -> Callable:
        """Registers of two halves as twice as many float32, the low half first."""

        def widened(words: Fragment) -> Fragment:
            with np.errstate(invalid="ignore"):  # a signalling NaN
                halves = np.ascontiguousarray(words).view(self.half).reshape(count, WARP, 2)
                return halves.transpose(0, 2, 1).reshape(2 * count, WARP).astype(np.float32)

        return widened

    def turn_rows(self, groups: int, registers: int) -> Callable:
        """Complex accumulators times a complex number for each row."""
        row = np.arange(groups).repeat(registers)

        def turned(x: Fragment, table: Fragment) -> Fragment:
            self.machine.counters.fp32_flops += COMPLEX_PRODUCT * x.size // 2
            bits = np.ascontiguousarray(table).view(np.float32)
            re, im = parted(x)
            with np.errstate(invalid="ignore", over="ignore"):
                return np.concatenate(_times((re, im), (bits[2 * row], bits[2 * row + 1])))

        return turned

    def turn_runs(self, runs: Any, count: int, *, points: int, inverse: bool, scale: float) -> Callable:
        """Every element times ``scale exp(-+ 2 pi i row column / points)``."""
        sign = 1 if inverse else -1

        def turned(x: Fragment, row0: Any, row1: Any, row2: Any, column: Any) -> Fragment:
            named, first = [_lanes(row) for row in (row0, row1, row2)], _lanes(column)
            found = np.empty_like(x)
            for which, row_constant, column_constant, registers in runs:
                row = named[which] + row_constant
                step = _unit(row, points, sign)
                start = _unit(row * (first + column_constant), points, sign)
                scaled = start[0] * np.float32(scale), start[1] * np.float32(scale)
                with np.errstate(invalid="ignore", over="ignore"):
                    re, im = np.array(registers), count + np.array(registers)
                    turns = powers(scaled, step, len(registers))
                    found[re], found[im] = _times((x[re], x[im]), turns)
            # n - 1 products for the powers of n columns, n of the data, 2 flops for the scale; a row's step squared.
            n = len(runs[0][3])
            squares = (n.bit_length() - 2) * len({run[:2] for run in runs})
            products = (2 * n - 1) * len(runs) + squares
            self.machine.counters.fp32_flops += WARP * (COMPLEX_PRODUCT * products + 2 * len(runs))
            return found

        return turned
