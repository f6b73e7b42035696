"""The GPU body's float32 operations on rows of logits: what attention and softmax do between their products.

*Logits* are the accumulators of a product of 16 keys and 8 ``tiles`` queries, by row group: register
``(y tiles + n) 2 + e`` of lane ``4 g + t`` belongs to key ``g + 8 y`` and query ``8 n + 2 t + e``. *Query
registers* are one value per query, ``n 2 + e``, for the queries of the lane (the eight lanes with the same t hold
the same queries). A *row fragment* has one register per query, the same in every lane.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import F32, I32, asm, pack_tuple, unpack

LOG2E = float(np.float32(1.4426950408889634))
TINY = 2.0**-126


def operation(result: Any, kinds: tuple, body: Callable[..., Any]) -> Any:
    """An intrinsic of up to five arguments: ``body(builder, *values)`` gives a list (a tuple of registers) or a value.

    ``kinds`` are the arguments' types; None takes what comes.
    """

    def typed(*given: Any) -> Any:
        return result(*(kind or found for kind, found in zip(kinds, given, strict=True)))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = body(builder, *args)
        if isinstance(values, list):
            return pack_tuple(context, builder, signature.return_type, values)
        return context.get_dummy_value() if values is None else values

    if len(kinds) == 1:

        @intrinsic
        def one(typing_context, a):
            return typed(a), codegen

        return one
    if len(kinds) == 2:

        @intrinsic
        def two(typing_context, a, b):
            return typed(a, b), codegen

        return two
    if len(kinds) == 3:

        @intrinsic
        def three(typing_context, a, b, c):
            return typed(a, b, c), codegen

        return three
    if len(kinds) == 4:

        @intrinsic
        def four(typing_context, a, b, c, d):
            return typed(a, b, c, d), codegen

        return four

    @intrinsic
    def five(typing_context, a, b, c, d, e):
        return typed(a, b, c, d, e), codegen

    return five


def number(value: float) -> Any:
    """A float32 constant."""
    return ir.Constant(F32, float(np.float32(value)))


def binary(builder: Any, name: str, a: Any, b: Any) -> Any:
    """One float32 instruction of two operands, never fused with another."""
    return asm(builder, F32, [a, b], f"{name}.f32 $0, $1, $2;", "=f,f,f")


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """A float32 multiply-add, rounded once."""
    return asm(builder, F32, [a, b, c], "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f")


def exponential(builder: Any, x: Any) -> Any:
    """e^x: 2^x of the special-function unit, after a rounded product with log2(e)."""
    scaled = binary(builder, "mul.rn", x, number(LOG2E))
    return asm(builder, F32, [scaled], "ex2.approx.ftz.f32 $0, $1;", "=f,f")


def floored(builder: Any, x: Any) -> Any:
    """e^x, at least 2^-126 where x is not -inf, where it is 0: a weight that is not zero stays so."""
    kept = binary(builder, "max.NaN", exponential(builder, x), number(TINY))
    absent = builder.fcmp_ordered("==", x, number(-np.inf))
    return builder.select(absent, number(0.0), kept)


def shuffle(builder: Any, x: Any, distance: int) -> Any:
    """The value of the lane whose index differs in one bit."""
    text = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, 0xffffffff;"
    return asm(builder, F32, [x], text, "=f,f", convergent=True)


def thread_of_group(builder: Any) -> Any:
    """The lane's t."""
    thread = asm(builder, I32, [], "mov.u32 $0, %tid.x;", "=r")
    return builder.and_(thread, ir.Constant(I32, 3))


def floats(count: int) -> Any:
    """The type of a fragment of float32."""
    return types.UniTuple(types.float32, count)


class GpuRows:
    """Operations on logits; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    dtype: str

    def fill(self, count: int) -> Any:
        """``op(value)``: a fragment of one float32."""
        return operation(floats(count), (types.float32,), lambda builder, value: [value] * count)

    def registers(self, count: int) -> Any:
        """``op(a, b, c, d)``: integers as a fragment of ``count`` registers; the others are not used."""

        def body(builder: Any, *values: Any) -> list:
            return [builder.trunc(value, I32) for value in values[:count]]

        return operation(types.UniTuple(types.int32, count), (types.int64,) * 4, body)

    def as_floats(self, count: int) -> Any:
        """Registers of words as float32, bit for bit."""

        def body(builder: Any, words: Any) -> list:
            return [builder.bitcast(word, F32) for word in unpack(builder, words, count)]

        return operation(floats(count), (None,), body)

    def as_words(self, count: int) -> Any:
        """Registers of float32 as words, bit for bit."""

        def body(builder: Any, values: Any) -> list:
            return [builder.bitcast(value, I32) for value in unpack(builder, values, count)]

        return operation(types.UniTuple(types.int32, count), (None,), body)

    @cached_property
    def first(self) -> Any:
        """``op(x)``: the first register of a fragment, as a number; it must be the same in all lanes."""

        @intrinsic
        def taken(typing_context, fragment):
            def codegen(context, builder, signature, args):
                return builder.extract_value(args[0], 0)

            return fragment.dtype(fragment), codegen

        return taken

    # ---- logits ----------------------------------------------------------------------------------------------
    def logits(self, tiles: int, *, capped: bool) -> Any:
        """``op(products, factor, cap)``: products times the factor; ``cap tanh(x / cap)`` of that if ``capped``.

        tanh(z) = 1 - 2 / (1 + e^(2 z)), whose absolute error is a few units of 2^-24.
        """
        count = 4 * tiles

        def body(builder: Any, products: Any, factor: Any, cap: Any) -> list:
            found = [binary(builder, "mul.rn", x, factor) for x in unpack(builder, products, count)]
            if not capped:
                return found
            result = []
            for x in found:
                z = binary(builder, "div.rn", x, cap)
                power = exponential(builder, binary(builder, "add.rn", z, z))
                below = binary(builder, "add.rn", power, number(1.0))
                part = binary(builder, "div.rn", number(2.0), below)
                result.append(binary(builder, "mul.rn", cap, binary(builder, "sub.rn", number(1.0), part)))
            return result

        return operation(floats(count), (None, types.float32, types.float32), body)

    def mask(self, tiles: int, value: float) -> Any:
        """``op(x, key, limits)``: ``value`` where a key (``key`` or 8 more) is not below its query's limit."""

        def body(builder: Any, x: Any, key: Any, limits: Any) -> list:
            values, ends = unpack(builder, x, 4 * tiles), unpack(builder, limits, 2 * tiles)
            first = builder.trunc(key, I32)
            keys = [first, builder.add(first, ir.Constant(I32, 8))]
            return [
                builder.select(
                    builder.icmp_signed("<", keys[i // (2 * tiles)], ends[i % (2 * tiles)]),
                    values[i],
                    number(value),
                )
                for i in range(4 * tiles)
            ]

        return operation(floats(4 * tiles), (None, types.int64, None), body)

    def shift(self, tiles: int) -> Any:
        """``op(x, shifts)``: logits minus the query's shift."""

        def body(builder: Any, x: Any, shifts: Any) -> list:
            values, less = unpack(builder, x, 4 * tiles), unpack(builder, shifts, 2 * tiles)
            return [binary(builder, "sub.rn", values[i], less[i % (2 * tiles)]) for i in range(4 * tiles)]

        return operation(floats(4 * tiles), (None, None), body)

    def outside(self, tiles: int) -> Any:
        """``op(x, low, high)``: bit q set where a value of query q is not in (low, high); -inf sets none."""
        pairs = 2 * tiles

        def body(builder: Any, x: Any, low: Any, high: Any) -> Any:
            values, bits = unpack(builder, x, 2 * pairs), ir.Constant(I32, 0)
            for j in range(pairs):
                wrong = ir.Constant(ir.IntType(1), 0)
                for value in (values[j], values[pairs + j]):
                    inside = builder.and_(
                        builder.fcmp_ordered(">", value, low), builder.fcmp_ordered("<", value, high)
                    )
                    absent = builder.fcmp_ordered("==", value, number(-np.inf))
                    wrong = builder.or_(wrong, builder.not_(builder.or_(inside, absent)))
                mark = builder.shl(builder.zext(wrong, I32), ir.Constant(I32, 8 * (j // 2) + j % 2))
                bits = builder.or_(bits, mark)
            place = builder.shl(thread_of_group(builder), ir.Constant(I32, 1))
            return builder.shl(bits, place)

        return operation(types.int32, (None, types.float32, types.float32), body)

    def exponentials(self, count: int, *, floor: bool = False) -> Any:
        """``op(x)``: e^x, 0 below the range of float32; with ``floor`` 2^-126 there, and 0 for -inf only."""
        one = floored if floor else exponential

        def body(builder: Any, x: Any) -> list:
            return [one(builder, value) for value in unpack(builder, x, count)]

        return operation(floats(count), (None,), body)

    def add(self, count: int) -> Any:
        """``op(a, b)``: sums of float32 registers."""

        def body(builder: Any, a: Any, b: Any) -> list:
            pairs = zip(unpack(builder, a, count), unpack(builder, b, count), strict=True)
            return [binary(builder, "add.rn", x, y) for x, y in pairs]

        return operation(floats(count), (None, None), body)

    def times(self, count: int) -> Any:
        """``op(a, b)``: products of float32 registers."""

        def body(builder: Any, a: Any, b: Any) -> list:
            pairs = zip(unpack(builder, a, count), unpack(builder, b, count), strict=True)
            return [binary(builder, "mul.rn", x, y) for x, y in pairs]

        return operation(floats(count), (None, None), body)

    def add_keys(self, tiles: int) -> Any:
        """``op(sums, x)``: query registers plus the values of the lane's two keys."""
        pairs = 2 * tiles

        def body(builder: Any, sums: Any, x: Any) -> list:
            values, totals = unpack(builder, x, 2 * pairs), unpack(builder, sums, pairs)
            return [
                binary(builder, "add.rn", totals[j], binary(builder, "add.rn", values[j], values[pairs + j]))
                for j in range(pairs)
            ]

        return operation(floats(pairs), (None, None), body)

    def max_keys(self, tiles: int) -> Any:
        """``op(most, x)``: the larger of the query register and its values in all lanes; NaN is passed over."""
        pairs = 2 * tiles

        def body(builder: Any, most: Any, x: Any) -> list:
            values, found = unpack(builder, x, 2 * pairs), unpack(builder, most, pairs)
            result = []
            for j in range(pairs):
                top = binary(builder, "max", values[j], values[pairs + j])
                for distance in (4, 8, 16):
                    top = binary(builder, "max", top, shuffle(builder, top, distance))
                result.append(binary(builder, "max", found[j], top))
            return result

        return operation(floats(pairs), (None, None), body)

    def sum_lanes(self, tiles: int) -> Any:
        """``op(sums)``: query registers added up over the eight lanes that hold the query."""

        def body(builder: Any, sums: Any) -> list:
            result = []
            for total in unpack(builder, sums, 2 * tiles):
                for distance in (4, 8, 16):
                    total = binary(builder, "add.rn", total, shuffle(builder, total, distance))
                result.append(total)
            return result

        return operation(floats(2 * tiles), (None,), body)

    @cached_property
    def any_bits(self) -> Any:
        """``op(bits)``: the bits that are set in any lane, the same in all lanes."""

        def body(builder: Any, bits: Any) -> Any:
            text = "redux.sync.or.b32 $0, $1, 0xffffffff;"
            return asm(builder, I32, [bits], text, "=r,r", convergent=True)

        return operation(types.int32, (types.int32,), body)

    def differ(self, count: int) -> Any:
        """``op(a, b)``: 1 in lanes where any register differs, else 0."""

        def body(builder: Any, a: Any, b: Any) -> Any:
            found = ir.Constant(ir.IntType(1), 0)
            for x, y in zip(unpack(builder, a, count), unpack(builder, b, count), strict=True):
                found = builder.or_(found, builder.fcmp_unordered("!=", x, y))
            return builder.zext(found, I32)

        return operation(types.int32, (None, None), body)

    def choose(self, tiles: int) -> Any:
        """``op(bits, a, b)``: query registers of a where the query's bit is set, else of b."""

        def body(builder: Any, bits: Any, a: Any, b: Any) -> list:
            place = builder.shl(thread_of_group(builder), ir.Constant(I32, 1))
            mine = builder.lshr(bits, place)
            pairs = zip(unpack(builder, a, 2 * tiles), unpack(builder, b, 2 * tiles), strict=True)
            result = []
            for j, (x, y) in enumerate(pairs):
                bit = builder.and_(mine, ir.Constant(I32, 1 << (8 * (j // 2) + j % 2)))
                result.append(builder.select(builder.icmp_signed("!=", bit, ir.Constant(I32, 0)), x, y))
            return result

        return operation(floats(2 * tiles), (types.int32, None, None), body)

    def anchors(self, count: int) -> Any:
        """``op(most)``: what may be subtracted: 0 for a maximum of -inf."""

        def body(builder: Any, most: Any) -> list:
            return [self._anchor(builder, x) for x in unpack(builder, most, count)]

        return operation(floats(count), (None,), body)

    @staticmethod
    def _anchor(builder: Any, most: Any) -> Any:
        nothing = builder.fcmp_ordered("==", most, number(-np.inf))
        return builder.select(nothing, number(0.0), most)

    def started(self, count: int) -> Any:
        """``op(sums, shifts)``: the shift where something was summed, else -inf: a maximum to go on from."""

        def body(builder: Any, sums: Any, shifts: Any) -> list:
            pairs = zip(unpack(builder, sums, count), unpack(builder, shifts, count), strict=True)
            return [
                builder.select(builder.fcmp_ordered("==", x, number(0.0)), number(-np.inf), y)
                for x, y in pairs
            ]

        return operation(floats(count), (None, None), body)

    def decays(self, count: int) -> Any:
        """``op(old, new)``: e^(old - new), by which sums are scaled when the shift moves; 0 for an old -inf."""

        def body(builder: Any, old: Any, new: Any) -> list:
            pairs = zip(unpack(builder, old, count), unpack(builder, new, count), strict=True)
            return [self._decay(builder, x, y) for x, y in pairs]

        return operation(floats(count), (None, None), body)

    def _decay(self, builder: Any, old: Any, new: Any) -> Any:
        return floored(builder, binary(builder, "sub.rn", old, self._anchor(builder, new)))

    @cached_property
    def decay(self) -> Any:
        """``op(old, new)``: as :meth:`decays`, of two numbers."""
        return operation(types.float32, (types.float32,) * 2, self._decay)
