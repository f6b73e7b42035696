"""The GPU body's operations of long transforms' outer stages: twiddles in float32, computed where they are used.

A *run* is four or eight neighbouring columns of one row in as many registers of a complex float32 fragment: (which of
three rows, row constant, column constant, registers of the real parts). Its twiddles, ``exp(-+ 2 pi i row column /
points)``, are the first column's, times powers of the row's step, all from sine and cosine of two angles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import types

from kernels_numba.tile.gpu_emit import F32, I16, I32, asm, shared_address, unpack
from kernels_numba.tile.gpu_rows import operation

FOUR = ir.LiteralStructType([I32] * 4)
Runs = tuple[tuple[int, int, int, tuple[int, ...]], ...]
Complex = tuple[Any, Any]


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return asm(builder, F32, [a, b, c], "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f")


def _mul(builder: Any, a: Any, b: Any) -> Any:
    return asm(builder, F32, [a, b], "mul.rn.f32 $0, $1, $2;", "=f,f,f")


def _times(builder: Any, x: Complex, y: Complex) -> Complex:
    """X y: a rounded product and a fused multiply-add for each part."""
    minus = builder.fsub(ir.Constant(F32, -0.0), x[1])
    real = _fma(builder, minus, y[1], _mul(builder, x[0], y[0]))
    return real, _fma(builder, x[1], y[0], _mul(builder, x[0], y[1]))


def _unit(builder: Any, number: Any, points: int, sign: int) -> Complex:
    """exp(sign 2 pi i number / points) of an integer in 0 .. points - 1."""
    wrapped = builder.sub(number, ir.Constant(I32, points))
    above = builder.icmp_signed(">=", builder.shl(number, ir.Constant(I32, 1)), ir.Constant(I32, points))
    turned = builder.sitofp(builder.select(above, wrapped, number), F32)
    angle = _mul(builder, turned, ir.Constant(F32, float(np.float32(sign * 2 * np.pi / points))))
    cosine, sine = (asm(builder, F32, [angle], f"{f}.approx.f32 $0, $1;", "=f,f") for f in ("cos", "sin"))
    return cosine, sine


def powers(builder: Any, first: Complex, step: Complex, count: int) -> list[Complex]:
    """First times step^0 .. step^(count - 1), count a power of two."""
    found = [first]
    while len(found) < count:
        found += [_times(builder, x, step) for x in found]
        step = _times(builder, step, step)
    return found


class GpuTurns:
    """Operations of the vocabulary "outer"."""

    dtype: str

    def load_transposed(self, constants: tuple[int, ...]) -> Any:
        """``op(word)``: four 8 x 8 blocks of halves per constant, from shared memory, each transposed (``ldmatrix``).

        Lane 8 i + r names the first word of row r of block i, to which the constant (in words) is added; in register i
        lane 4 g + t then has rows 2 t and 2 t + 1 of column g.
        """

        def body(builder: Any, word: Any) -> list:
            address = shared_address(builder, word)
            words = []
            for constant in constants:
                text = (
                    f"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{$0, $1, $2, $3}}, [$4+{4 * constant}];"
                )
                value = asm(
                    builder,
                    FOUR,
                    [address],
                    text,
                    "=r,=r,=r,=r,r,~{memory}",
                    effect=True,
                    convergent=True,
                )
                words += unpack(builder, value, 4)
            return words

        return operation(types.UniTuple(types.int32, 4 * len(constants)), (types.int64,), body)

    def widen(self, count: int) -> Any:
        """``op(words)``: registers of two halves as twice as many float32, the low half first."""

        def body(builder: Any, x: Any) -> list:
            found = []
            for word in unpack(builder, x, count):
                if self.dtype == "bf16":
                    bits = (
                        builder.shl(word, ir.Constant(I32, 16)),
                        builder.and_(word, ir.Constant(I32, -65536)),
                    )
                    found += [builder.bitcast(b, F32) for b in bits]
                else:
                    for half in (word, builder.lshr(word, ir.Constant(I32, 16))):
                        found.append(
                            asm(builder, F32, [builder.trunc(half, I16)], "cvt.f32.f16 $0, $1;", "=f,h")
                        )
            return found

        return operation(types.UniTuple(types.float32, 2 * count), (None,), body)

    def turn_rows(self, groups: int, registers: int) -> Any:
        """``op(x, table)``: complex accumulators, ``registers`` of each part in a row group, times a number per row.

        ``table``: for every row group two registers, the bits of the real and the imaginary part.
        """
        count = groups * registers

        def body(builder: Any, x: Any, table: Any) -> list:
            values = unpack(builder, x, 2 * count)
            bits = [builder.bitcast(word, F32) for word in unpack(builder, table, 2 * groups)]
            pairs = [
                _times(builder, (values[i], values[count + i]), tuple(bits[2 * (i // registers) :][:2]))
                for i in range(count)
            ]
            return [re for re, _ in pairs] + [im for _, im in pairs]

        return operation(types.UniTuple(types.float32, 2 * count), (None, None), body)

    def turn_runs(self, runs: Runs, count: int, *, points: int, inverse: bool, scale: float) -> Any:
        """``op(x, row0, row1, row2, column)``: every element times ``scale exp(-+ 2 pi i row column / points)``.

        A run's row and first column are the named one plus its constant; their product is below ``points``.
        """
        sign = 1 if inverse else -1

        def body(builder: Any, x: Any, row0: Any, row1: Any, row2: Any, column: Any) -> list:
            values = unpack(builder, x, 2 * count)
            named = [builder.trunc(row, I32) for row in (row0, row1, row2)]
            first = builder.trunc(column, I32)
            found: list = [None] * (2 * count)
            steps: dict = {}
            for which, row_constant, column_constant, registers in runs:
                key = (which, row_constant)
                row = builder.add(named[which], ir.Constant(I32, row_constant))
                if key not in steps:
                    steps[key] = _unit(builder, row, points, sign)
                at = builder.mul(row, builder.add(first, ir.Constant(I32, column_constant)))
                start = _unit(builder, at, points, sign)
                factor = ir.Constant(F32, float(np.float32(scale)))
                scaled = _mul(builder, start[0], factor), _mul(builder, start[1], factor)
                turns = powers(builder, scaled, steps[key], len(registers))
                for r, turn in zip(registers, turns, strict=True):
                    found[r], found[count + r] = _times(builder, (values[r], values[count + r]), turn)
            return found

        result = types.UniTuple(types.float32, 2 * count)
        return operation(result, (None, *[types.int64] * 4), body)
