"""The GPU body's operations on maps of float32: columns of images, far points, products of matrices of points.

A point is a complex number of two float32. Fragments of points that transforms work on hold the real parts first, as
everywhere; those of matrices are interleaved, as they lie in memory.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import F32, I32, I64, VOID, asm, global_pointer, pack_tuple, unpack
from kernels_numba.tile.gpu_float import POINT
from kernels_numba.tile.gpu_maps import _inside
from kernels_numba.tile.points import PRODUCT_TERMS


class GpuFloatMaps:
    """Operations on maps of float32; :class:`kernels_numba.tile.gpu_vocabularies.GpuFloatLayers` inherits them."""

    dtype: str
    round_pair: Any
    _widen: Any

    def load_map_columns(self, rows: int, second: int, *, spread: bool = False) -> Any:
        """Two columns of an image: ``op(source, base, pitch, row, column, height, width, down, across)``.

        Real parts are the samples (row + i, column), i = 0 .. rows - 1; imaginary parts those ``second`` columns on,
        or zeros where ``second`` is 0. What is not in the image is zero; ``spread`` as in ``load_window``.
        """
        text = "{.reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.global.b32 $0, [$1];}"

        @intrinsic
        def load(typing_context, source, base, pitch, row, column, height, width, down, across):
            result = types.UniTuple(types.float32, 2 * rows)

            def codegen(context, builder, signature, args):
                pointer, base, pitch, row, column, height, width, down, across = args
                places = [_inside(builder, column, width, across, spread)]
                if second:
                    at = builder.add(column, ir.Constant(I64, second))
                    places.append(_inside(builder, at, width, across, spread))
                found: list = [ir.Constant(F32, 0.0)] * (2 * rows)
                for i in range(rows):
                    at, inside = _inside(builder, builder.add(row, ir.Constant(I64, i)), height, down, spread)
                    start = builder.add(base, builder.mul(at, pitch))
                    for part, (place, here) in enumerate(places):
                        ok = builder.zext(builder.and_(inside, here), I32)
                        # An address outside the buffer is formed and not used.
                        address = global_pointer(builder, pointer, builder.add(start, place), F32)
                        found[part * rows + i] = asm(
                            builder, F32, [address, ok], text, "=&f,l,r,~{memory}", effect=True
                        )
                return pack_tuple(context, builder, signature.return_type, found)

            return result(source, *[types.int64] * 8), codegen

        return load

    def store_map_columns(self, rows: int, second: int, *, spread: bool = False) -> Any:
        """The reverse, times a factor: ``op(target, base, pitch, row, column, height, width, down, across, f, x)``.

        ``x`` is a tile of so many rows and twice ``second`` columns, one period of a signal whose sign changes from
        period to period along its rows: samples before row or column 0 stand for those one period on. (Not ``spread``.)
        """
        text = "{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.f32 [$0], $1;}"

        def wrapped(builder, at, period):
            if spread:
                return at, ir.Constant(ir.IntType(1), 0)
            before = builder.icmp_signed("<", at, ir.Constant(I64, 0))
            return builder.select(before, builder.add(at, ir.Constant(I64, period)), at), before

        @intrinsic
        def put(typing_context, target, base, pitch, row, column, height, width, down, across, factor, x):
            signature = types.void(target, *[types.int64] * 8, types.float32, x)

            def codegen(context, builder, signature, args):
                pointer, base, pitch, row, column, height, width, down, across, factor, x = args
                values = unpack(builder, x, 2 * rows)
                places = []
                for c in (0, second):
                    at, before = wrapped(builder, builder.add(column, ir.Constant(I64, c)), 2 * second)
                    scale = builder.select(before, builder.fmul(factor, ir.Constant(F32, -1.0)), factor)
                    places.append((scale, *_inside(builder, at, width, across, spread)))
                for i in range(rows):
                    at, _ = wrapped(builder, builder.add(row, ir.Constant(I64, i)), rows)
                    at, inside = _inside(builder, at, height, down, spread)
                    start = builder.add(base, builder.mul(at, pitch))
                    for part, (scale, place, here) in enumerate(places):
                        ok = builder.zext(builder.and_(inside, here), I32)
                        address = global_pointer(builder, pointer, builder.add(start, place), F32)
                        value = builder.fmul(values[part * rows + i], scale)
                        asm(builder, VOID, [address, value, ok], text, "l,f,r,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return put

    def load_far_points(self, count: int) -> Any:
        """``op(source, at, stride, valid)``: points ``at + i stride`` of global memory, zeros where not valid."""
        text = (
            "{.reg .pred p; setp.ne.b32 p, $3, 0; mov.b32 $0, 0; mov.b32 $1, 0; "
            "@p ld.global.v2.f32 {$0, $1}, [$2];}"
        )

        @intrinsic
        def load(typing_context, source, at, stride, valid):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                pointer, at, stride, valid = args
                ok, points = builder.zext(valid, I32), []
                for _ in range(count):
                    address = global_pointer(builder, pointer, builder.shl(at, ir.Constant(I64, 1)), F32)
                    value = asm(builder, POINT, [address, ok], text, "=&f,=&f,l,r,~{memory}", effect=True)
                    points.append(unpack(builder, value, 2))
                    at = builder.add(at, stride)
                out = [p[0] for p in points] + [p[1] for p in points]
                return pack_tuple(context, builder, signature.return_type, out)

            return result(source, types.int64, types.int64, types.boolean), codegen

        return load

    def store_far_points(self, count: int) -> Any:
        """``op(target, at, stride, valid, x)``: the reverse."""
        text = "{.reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.v2.f32 [$0], {$1, $2};}"

        @intrinsic
        def put(typing_context, target, at, stride, valid, x):
            signature = types.void(target, types.int64, types.int64, types.boolean, x)

            def codegen(context, builder, signature, args):
                pointer, at, stride, valid, x = args
                values, ok = unpack(builder, x, 2 * count), builder.zext(valid, I32)
                for i in range(count):
                    address = global_pointer(builder, pointer, builder.shl(at, ir.Constant(I64, 1)), F32)
                    parts = [values[i], values[count + i]]
                    asm(builder, VOID, [address, *parts, ok], text, "l,f,f,r,~{memory}", effect=True)
                    at = builder.add(at, stride)
                return context.get_dummy_value()

            return signature, codegen

        return put

    def load_point_rows(self, count: int) -> Any:
        """``op(source, at, stride, rows, valid)``: points ``at + i stride`` of words, in their dtype, as float32.

        Interleaved, as words; zeros where not valid or ``i`` is not below ``rows``.
        """
        half = self.dtype != "fp32"
        text = (
            "{.reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.global.b32 $0, [$1];}"
            if half
            else "{.reg .pred p; setp.ne.b32 p, $3, 0; mov.b32 $0, 0; mov.b32 $1, 0; "
            "@p ld.global.v2.b32 {$0, $1}, [$2];}"
        )
        pair = ir.LiteralStructType([I32, I32])

        @intrinsic
        def load(typing_context, source, at, stride, rows, valid):
            result = types.UniTuple(types.int32, 2 * count)

            def codegen(context, builder, signature, args):
                pointer, at, stride, rows, valid = args
                found: list = []
                for i in range(count):
                    inside = builder.icmp_signed(">", rows, ir.Constant(I64, i))
                    ok = builder.zext(builder.and_(inside, valid), I32)
                    place = at if half else builder.shl(at, ir.Constant(I64, 1))
                    address = global_pointer(builder, pointer, place, I32)
                    if half:
                        word = asm(builder, I32, [address, ok], text, "=&r,l,r,~{memory}", effect=True)
                        found += [builder.bitcast(x, I32) for x in self._widen(builder, word)]
                    else:
                        both = asm(builder, pair, [address, ok], text, "=&r,=&r,l,r,~{memory}", effect=True)
                        found += unpack(builder, both, 2)
                    at = builder.add(at, stride)
                return pack_tuple(context, builder, signature.return_type, found)

            return result(source, types.int64, types.int64, types.int64, types.boolean), codegen

        return load

    def store_point_rows(self, count: int) -> Any:
        """``op(target, at, stride, rows, valid, c)``: the reverse, of float32; rounded to the dtype."""
        half = self.dtype != "fp32"
        text = (
            "{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.b32 [$0], $1;}"
            if half
            else "{.reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.v2.f32 [$0], {$1, $2};}"
        )

        @intrinsic
        def put(typing_context, target, at, stride, rows, valid, c):
            signature = types.void(target, types.int64, types.int64, types.int64, types.boolean, c)

            def codegen(context, builder, signature, args):
                pointer, at, stride, rows, valid, value = args
                values = unpack(builder, value, 2 * count)
                for i in range(count):
                    inside = builder.icmp_signed(">", rows, ir.Constant(I64, i))
                    ok = builder.zext(builder.and_(inside, valid), I32)
                    place = at if half else builder.shl(at, ir.Constant(I64, 1))
                    address = global_pointer(builder, pointer, place, I32)
                    parts = values[2 * i :][:2]
                    operands = [address, self.round_pair(builder, *parts)] if half else [address, *parts]
                    kinds = "l,r,r,~{memory}" if half else "l,f,f,r,~{memory}"
                    asm(builder, VOID, [*operands, ok], text, kinds, effect=True)
                    at = builder.add(at, stride)
                return context.get_dummy_value()

            return signature, codegen

        return put

    # ---- matrices of points --------------------------------------------------------------------------------
    def add_point_products(self, rows: int, columns: int, steps: int, *, conjugate: str) -> Any:
        """``op(c, a, b)``: a lane's own ``c[i, j] + sum_k a[i, k] b[j, k]``, one fused multiply-add after the other.

        ``a`` [rows, steps] and ``b`` [columns, steps] are words of points, ``c`` [rows, columns] points;
        ``conjugate`` is "left" (a), "right" (b), or "".
        """
        terms = PRODUCT_TERMS[conjugate]

        @intrinsic
        def product(typing_context, c, a, b):
            count = 2 * rows * columns
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                sums = unpack(builder, args[0], count)
                left, right = (
                    [builder.bitcast(word, F32) for word in unpack(builder, value, 2 * n * steps)]
                    for value, n in ((args[1], rows), (args[2], columns))
                )
                for k in range(steps):
                    for i in range(rows):
                        for j in range(columns):
                            for term, (p, q, minus) in enumerate(terms):
                                place = 2 * (i * columns + j) + term // 2
                                x, y = left[2 * (i * steps + k) + p], right[2 * (j * steps + k) + q]
                                text = "fma.rn.f32 $0, $1, $2, $3;"
                                if minus:
                                    text = "{.reg .f32 t; neg.f32 t, $1; fma.rn.f32 $0, t, $2, $3;}"
                                sums[place] = asm(builder, F32, [x, y, sums[place]], text, "=f,f,f,f")
                return pack_tuple(context, builder, signature.return_type, sums)

            return result(c, a, b), codegen

        return product

    def store_point_tile(self, rows: tuple[int, ...], columns: tuple[int, ...]) -> Any:
        """``op(target, at, stride, row_limit, column_limit, c)``: c[i, j] to ``at + rows[i] stride + columns[j]``.

        Stored is what lies below the limits, ``rows[i] < row_limit`` and ``columns[j] < column_limit``.
        """
        text = "{.reg .pred p; setp.ne.b32 p, $3, 0; @p st.global.v2.f32 [$0], {$1, $2};}"

        @intrinsic
        def put(typing_context, target, at, stride, row_limit, column_limit, c):
            signature = types.void(target, *[types.int64] * 4, c)

            def codegen(context, builder, signature, args):
                pointer, at, stride, row_limit, column_limit, value = args
                values = unpack(builder, value, 2 * len(rows) * len(columns))
                for place, address, ok in _tile_places(
                    builder, (pointer, at, stride, row_limit, column_limit), rows, columns
                ):
                    parts = values[2 * place :][:2]
                    asm(builder, VOID, [address, *parts, ok], text, "l,f,f,r,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return put

    def load_point_tile(self, rows: tuple[int, ...], columns: tuple[int, ...]) -> Any:
        """``op(source, at, stride, row_limit, column_limit)``: what `store_point_tile` stores; zeros elsewhere."""
        text = (
            "{.reg .pred p; setp.ne.b32 p, $3, 0; mov.b32 $0, 0; mov.b32 $1, 0; "
            "@p ld.global.v2.f32 {$0, $1}, [$2];}"
        )

        @intrinsic
        def load(typing_context, source, at, stride, row_limit, column_limit):
            result = types.UniTuple(types.float32, 2 * len(rows) * len(columns))

            def codegen(context, builder, signature, args):
                found: list = []
                for _, address, ok in _tile_places(builder, args, rows, columns):
                    value = asm(builder, POINT, [address, ok], text, "=&f,=&f,l,r,~{memory}", effect=True)
                    found += unpack(builder, value, 2)
                return pack_tuple(context, builder, signature.return_type, found)

            return result(source, *[types.int64] * 4), codegen

        return load


def _tile_places(builder: Any, args: Any, rows: tuple[int, ...], columns: tuple[int, ...]) -> Any:
    """Number, address and whether it is inside (32 bits) of each point of a lane's part of a matrix."""
    pointer, at, stride, row_limit, column_limit = args
    for i, row in enumerate(rows):
        start = builder.add(at, builder.mul(ir.Constant(I64, row), stride))
        inside = builder.icmp_signed("<", ir.Constant(I64, row), row_limit)
        for j, column in enumerate(columns):
            here = builder.icmp_signed("<", ir.Constant(I64, column), column_limit)
            ok = builder.zext(builder.and_(inside, here), I32)
            place = builder.shl(builder.add(start, ir.Constant(I64, column)), ir.Constant(I64, 1))
            yield i * len(columns) + j, global_pointer(builder, pointer, place, F32), ok
