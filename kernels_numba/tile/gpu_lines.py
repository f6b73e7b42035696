"""The GPU body's operations on lines of a matrix: every register of every lane is an element of one line (softmax)."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import types

from kernels_numba.tile.gpu_emit import I32, unpack
from kernels_numba.tile.gpu_rows import binary, floats, number, operation, shuffle


class GpuLines:
    """Operations on lines; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    halves_to_floats: Any

    def widen(self, count: int) -> Any:
        """``op(words)``: ``count`` registers of two halves as twice as many float32, in order."""

        def body(builder: Any, words: Any) -> list:
            return [x for word in unpack(builder, words, count) for x in self.halves_to_floats(builder, word)]

        return operation(floats(2 * count), (None,), body)

    def cut(self, count: int, value: float) -> Any:
        """``op(x, at, limit)``: register i is element ``at + i``; ``value`` from the limit on."""

        def body(builder: Any, x: Any, at: Any, limit: Any) -> list:
            first, end = builder.trunc(at, I32), builder.trunc(limit, I32)
            return [
                builder.select(
                    builder.icmp_signed("<", builder.add(first, ir.Constant(I32, i)), end),
                    element,
                    number(value),
                )
                for i, element in enumerate(unpack(builder, x, count))
            ]

        return operation(floats(count), (None, types.int64, types.int64), body)

    def less(self, count: int) -> Any:
        """``op(x, shift)``: all registers minus the one of ``shift``."""

        def body(builder: Any, x: Any, shift: Any) -> list:
            by = builder.extract_value(shift, 0)
            return [binary(builder, "sub.rn", element, by) for element in unpack(builder, x, count)]

        return operation(floats(count), (None, None), body)

    def any_outside(self, count: int) -> Any:
        """``op(x, low, high)``: 1 in lanes with an element that is not in (low, high) nor -inf, else 0."""

        def body(builder: Any, x: Any, low: Any, high: Any) -> Any:
            wrong: Any = ir.Constant(ir.IntType(1), 0)
            for value in unpack(builder, x, count):
                inside = builder.and_(
                    builder.fcmp_ordered(">", value, low), builder.fcmp_ordered("<", value, high)
                )
                absent = builder.fcmp_ordered("==", value, number(-np.inf))
                wrong = builder.or_(wrong, builder.not_(builder.or_(inside, absent)))
            return builder.zext(wrong, I32)

        return operation(types.int32, (None, types.float32, types.float32), body)

    def largest(self, count: int) -> Any:
        """``op(most, x)``: the largest register of both, one a lane; NaN is passed over."""

        def body(builder: Any, most: Any, x: Any) -> list:
            top = builder.extract_value(most, 0)
            for value in unpack(builder, x, count):
                top = binary(builder, "max", top, value)
            return [top]

        return operation(floats(1), (None, None), body)

    def total(self, count: int) -> Any:
        """``op(x)``: the sum of a lane's registers, halves of them added to the others until one is left."""

        def body(builder: Any, x: Any) -> list:
            parts = unpack(builder, x, count)
            while len(parts) > 1:
                middle = len(parts) // 2
                pairs = zip(parts[:middle], parts[middle:], strict=True)
                parts = [binary(builder, "add.rn", a, b) for a, b in pairs]
            return parts

        return operation(floats(1), (None,), body)

    def across(self, kind: str) -> Any:
        """``op(x)``: the "sum" or the "max" of one register over all lanes, the same in all."""
        name = {"sum": "add.rn", "max": "max"}[kind]

        def body(builder: Any, x: Any) -> list:
            value = builder.extract_value(x, 0)
            for distance in (1, 2, 4, 8, 16):
                value = binary(builder, name, value, shuffle(builder, value, distance))
            return [value]

        return operation(floats(1), (None,), body)
