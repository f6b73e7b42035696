"""The GPU body's operations that prepare filters: taps of any float type, transforms through device memory, scales.

Distances between a lane's points are known only when the kernel runs, unlike those of `gpu_float.py`. Most operations
take ``double``: then they are of float64.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import F32, F64, I32, I64, VOID, asm, global_pointer, pack_tuple, unpack
from kernels_numba.tile.gpu_float import POINT, PRODUCT

# A tap as float32 in $0, from address $2 if p.
TAPS = {
    "fp16": ".reg .b16 h; @p ld.global.b16 h, [$2]; @p cvt.f32.f16 $0, h;",
    "bf16": ".reg .b16 h, z; mov.b16 z, 0; @p ld.global.b16 h, [$2]; @p mov.b32 $0, {z, h};",
    "fp32": "@p ld.global.f32 $0, [$2];",
    "fp64": ".reg .f64 d; @p ld.global.f64 d, [$2]; @p cvt.rn.f32.f64 $0, d;",
}
DOUBLE_TAP = (
    "{.reg .pred p; setp.ge.s32 p, $1, 0; mov.f64 $0, 0d0000000000000000; @p ld.global.f64 $0, [$2];}"
)
# The sum so far, $6 and $7, plus a product.
WEIGHED = (
    "{.reg .f32 t, m; neg.f32 m, $3; fma.rn.f32 t, $2, $4, $6; fma.rn.f32 $0, m, $5, t; "
    "fma.rn.f32 t, $2, $5, $7; fma.rn.f32 $1, $3, $4, t;}"
)
FOUR_WORDS = ir.LiteralStructType([I32] * 4)
DOUBLE_POINT = ir.LiteralStructType([F64, F64])
MAGNITUDE = (
    "{.reg .f32 a, b, m, s; .reg .pred p; abs.f32 a, $1; abs.f32 b, $2; max.NaN.f32 m, a, b; min.NaN.f32 s, a, b; "
    "setp.eq.f32 p, m, 0f00000000; div.rn.f32 s, s, m; fma.rn.f32 s, s, s, 0f3F800000; sqrt.rn.f32 s, s; "
    "mul.rn.f32 s, s, m; @p mov.f32 s, 0f00000000; max.NaN.f32 $0, s, $3;}"
)
# Off by some units in the last place, and without branches, of which the exact division and root have two each.
QUICK_MAGNITUDE = MAGNITUDE.replace("div.rn", "div.full").replace("sqrt.rn", "sqrt.approx")


class GpuFilter:
    """Operations for filters of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    def load_taps(self, count: int, kind: str, *, double: bool = False) -> Any:
        """``op(taps, row, places, at, step)``: taps of type ``kind`` as float32, or float64.

        Word i of ``places``, at ``at + i step``, says which tap after element ``row`` is meant; negative is zero.
        """
        text = "{.reg .pred p; setp.ge.s32 p, $1, 0; mov.f32 $0, 0f00000000; " + TAPS[kind] + "}"
        whole = double and kind == "fp64"

        @intrinsic
        def load_from(typing_context, taps, row, places, at, step):
            result = types.UniTuple(_numba(double), count)

            def codegen(context, builder, signature, args):
                pointer, row, places, at, step = args
                element = pointer.type.pointee
                found = []
                for i in range(count):
                    where = builder.add(at, builder.mul(step, ir.Constant(I64, i)))
                    place = builder.load(global_pointer(builder, places, where, I32))
                    index = builder.add(row, builder.sext(place, I64))
                    address = global_pointer(builder, pointer, index, element)
                    given, end = [place, address], "r,l,~{memory}"
                    if whole:
                        tap = asm(builder, F64, given, DOUBLE_TAP, "=&d," + end, effect=True)
                    else:
                        tap = asm(builder, F32, given, text, "=&f," + end, effect=True)
                    found.append(builder.fpext(tap, F64) if double and not whole else tap)
                return pack_tuple(context, builder, signature.return_type, found)

            return result(taps, types.int64, places, types.int64, types.int64), codegen

        return load_from

    def load_strided(self, count: int, *, double: bool = False) -> Any:
        """``op(source, at, step)``: complex points of global memory, point i at ``at + i step`` (in points)."""

        @intrinsic
        def load(typing_context, source, at, step):
            result = types.UniTuple(_numba(double), 2 * count)

            def codegen(context, builder, signature, args):
                pointer, at, step = args
                points = []
                for i in range(count):
                    where = builder.add(at, builder.mul(step, ir.Constant(I64, i)))
                    points.append(_load_point(builder, pointer, where, double))
                out = [p[0] for p in points] + [p[1] for p in points]
                return pack_tuple(context, builder, signature.return_type, out)

            return result(source, types.int64, types.int64), codegen

        return load

    def store_strided(self, count: int, *, double: bool = False) -> Any:
        """``op(target, at, step, valid, x)``: the reverse, where valid."""

        @intrinsic
        def store(typing_context, target, at, step, valid, x):
            signature = types.void(target, types.int64, types.int64, types.boolean, x)

            def codegen(context, builder, signature, args):
                pointer, at, step, valid, x = args
                kind, letter = _names(double)
                text = f"{{.reg .pred p; setp.ne.b32 p, $1, 0; @p st.global.v2.{kind} [$0], {{$2, $3}};}}"
                constraints = f"l,r,{letter},{letter},~{{memory}}"
                ok = builder.zext(valid, I32)
                for i in range(count):
                    where = builder.add(at, builder.mul(step, ir.Constant(I64, i)))
                    address = _point_address(builder, pointer, where)
                    parts = [builder.extract_value(x, j) for j in (i, i + count)]
                    asm(builder, VOID, [address, ok, *parts], text, constraints, effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return store

    def multiply_strided(self, count: int, *, double: bool = False) -> Any:
        """``op(x, table, at, step)``: multiply point q by a complex number of a table.

        The two of the points 2 i and 2 i + 1 are the four numbers at ``at + 4 i step``.
        """
        text = _of(PRODUCT, double)

        @intrinsic
        def product(typing_context, x, table, at, step):
            result = types.UniTuple(_numba(double), 2 * count)

            def codegen(context, builder, signature, args):
                values, table, at, step = args
                out = unpack(builder, values, 2 * count)
                for pair in range(-(-count // 2)):
                    where = builder.add(at, builder.mul(step, ir.Constant(I64, 4 * pair)))
                    half = builder.lshr(where, ir.Constant(I64, 1))
                    for which, i in enumerate(range(2 * pair, min(2 * pair + 2, count))):
                        place = builder.add(half, ir.Constant(I64, which))
                        given = [out[i], out[i + count], *_load_point(builder, table, place, double)]
                        out[i], out[i + count] = _two_parts(builder, given, text, double)
                return pack_tuple(context, builder, signature.return_type, out)

            return result(x, table, types.int64, types.int64), codegen

        return product

    def gather_points(self, count: int, *, double: bool = False) -> Any:
        """``op(source, base, places)``: complex points of global memory from ``base + places[i]`` (in points)."""

        @intrinsic
        def gather(typing_context, source, base, places):
            result = types.UniTuple(_numba(double), 2 * count)

            def codegen(context, builder, signature, args):
                pointer, base, places = args
                points = [
                    _load_point(builder, pointer, builder.add(base, builder.sext(place, I64)), double)
                    for place in unpack(builder, places, count)
                ]
                out = [p[0] for p in points] + [p[1] for p in points]
                return pack_tuple(context, builder, signature.return_type, out)

            return result(source, types.int64, places), codegen

        return gather

    def weigh(self, count: int, *, double: bool = False) -> Any:
        """``op(so_far, x, weights)``: so_far + x w by four fused multiply-adds.

        Weights come as words, real and imaginary part of each in turn; a float64 is two words.
        """
        text = _of(WEIGHED, double)

        @intrinsic
        def weighed(typing_context, so_far, x, weights):
            result = types.UniTuple(_numba(double), 2 * count)

            def codegen(context, builder, signature, args):
                total, values = (unpack(builder, a, 2 * count) for a in args[:2])
                words = unpack(builder, args[2], (4 if double else 2) * count)
                if double:
                    wide = [builder.zext(w, I64) for w in words]
                    pairs = zip(wide[0::2], wide[1::2], strict=True)
                    words = [builder.or_(low, builder.shl(high, ir.Constant(I64, 32))) for low, high in pairs]
                numbers = [builder.bitcast(w, F64 if double else F32) for w in words]
                out: list = [None] * (2 * count)
                for i in range(count):
                    given = [values[i], values[i + count], *numbers[2 * i :][:2], total[i], total[i + count]]
                    out[i], out[i + count] = _two_parts(builder, given, text, double)
                return pack_tuple(context, builder, signature.return_type, out)

            return result(so_far, x, weights), codegen

        return weighed

    def zeros(self, count: int, *, double: bool = False) -> Any:
        """``op()``: registers that are zero."""

        @intrinsic
        def made(typing_context):
            result = types.UniTuple(_numba(double), count)

            def codegen(context, builder, signature, args):
                zero = ir.Constant(F64 if double else F32, 0.0)
                return pack_tuple(context, builder, signature.return_type, [zero] * count)

            return result(), codegen

        return made

    def combine_rows(self, count: int, *, double: bool = False) -> Any:
        """``op(points, base, step, places, weights, pair)``: two positions of the spectra of ``count`` filters.

        As `GpuReal.combine_bins` does for one filter, of points in global memory: those of filter i begin at
        ``base + i step`` (in points), words 4 pair .. 4 pair + 3 of ``places`` say where X and its mirror lie after
        that, for one position and the next, and ``weights`` has a and b of each, 8 numbers. Real parts first.
        """
        kind, letter = _names(double)
        number, size = (F64, 8) if double else (F32, 4)

        @intrinsic
        def combine(typing_context, points, base, step, places, weights, pair):
            result = types.UniTuple(_numba(double), 4 * count)

            def codegen(context, builder, signature, args):
                points, base, step, places, weights, pair = args
                words = global_pointer(builder, places, builder.shl(pair, ir.Constant(I64, 2)), I32)
                text = "ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];"
                found = asm(builder, FOUR_WORDS, [words], text, "=r,=r,=r,=r,l")
                at = [builder.sext(v, I64) for v in unpack(builder, found, 4)]
                table = global_pointer(builder, weights, builder.shl(pair, ir.Constant(I64, 3)), number)
                factors = []
                for i in range(4):
                    text = f"ld.global.nc.v2.{kind} {{$0, $1}}, [$2+{2 * size * i}];"
                    both = asm(
                        builder, DOUBLE_POINT if double else POINT, [table], text, f"={letter},={letter},l"
                    )
                    factors.append(unpack(builder, both, 2))
                rows = []  # all of them first, so that none waits for another
                for i in range(count):
                    start = builder.add(base, builder.mul(step, ir.Constant(I64, i)))
                    rows.append([_load_point(builder, points, builder.add(start, v), double) for v in at])

                def fused(a, b, c):
                    return asm(
                        builder,
                        number,
                        [a, b, c],
                        f"fma.rn.{kind} $0, $1, $2, $3;",
                        f"={letter}" + f",{letter}" * 3,
                    )

                less = [(builder.fsub(ir.Constant(number, -0.0), b)) for _, b in factors]
                out = []
                for row in rows:
                    re, im = [], []
                    for e in range(2):
                        (xr, xi), (mr, mi) = row[2 * e : 2 * e + 2]
                        (ar, ai), (br, bi) = factors[2 * e : 2 * e + 2]
                        er, ei = builder.fadd(xr, mr), builder.fsub(xi, mi)
                        dr, di = builder.fsub(xr, mr), builder.fadd(xi, mi)
                        total = fused(ar, er, builder.fmul(less[2 * e], ei))
                        re.append(fused(less[2 * e + 1], di, fused(br, dr, total)))
                        total = fused(ar, ei, builder.fmul(ai, er))
                        im.append(fused(bi, dr, fused(br, di, total)))
                    out += [*re, *im]
                return pack_tuple(context, builder, signature.return_type, out)

            return result(points, types.int64, types.int64, places, weights, types.int64), codegen

        return combine

    def narrow(self, count: int) -> Any:
        """``op(x)``: float64 registers rounded to float32."""

        @intrinsic
        def rounded(typing_context, x):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                made = [builder.fptrunc(v, F32) for v in unpack(builder, args[0], count)]
                return pack_tuple(context, builder, signature.return_type, made)

            return result(x), codegen

        return rounded

    def magnitude(self, count: int) -> Any:
        """``op(x, so_far)``: the largest of so_far (a fragment of one) and all |x_i|; NaN if any is, no overflow."""

        @intrinsic
        def largest(typing_context, x, so_far):
            result = types.UniTuple(types.float32, 1)

            def codegen(context, builder, signature, args):
                values, (best,) = unpack(builder, args[0], 2 * count), unpack(builder, args[1], 1)
                for i in range(count):
                    given = [values[i], values[i + count], best]
                    best = asm(builder, F32, given, MAGNITUDE, "=&f,f,f,f")
                return pack_tuple(context, builder, signature.return_type, [best])

            return result(x, so_far), codegen

        return largest

    def largest_word(self, count: int) -> Any:
        """``op(words)``: the largest of float32 that come as words; NaN if any is."""

        @intrinsic
        def largest(typing_context, words):
            result = types.UniTuple(types.float32, 1)

            def codegen(context, builder, signature, args):
                best, *others = (builder.bitcast(w, F32) for w in unpack(builder, args[0], count))
                for other in others:
                    best = asm(builder, F32, [best, other], "max.NaN.f32 $0, $1, $2;", "=f,f,f")
                return pack_tuple(context, builder, signature.return_type, [best])

            return result(words), codegen

        return largest

    @cached_property
    def as_words(self) -> Any:
        """``op(x)``: float32 registers as words."""

        @intrinsic
        def words(typing_context, x):
            result = types.UniTuple(types.int32, x.count)

            def codegen(context, builder, signature, args):
                made = [builder.bitcast(v, I32) for v in unpack(builder, args[0], x.count)]
                return pack_tuple(context, builder, signature.return_type, made)

            return result(x), codegen

        return words

    def power_above(self, least: float, most: float) -> Any:
        """``op(peak)``: 1 where ``least <= peak <= most``, or peak is 0 or not finite; else 2^ceil(log2 peak).

        Kept in [2^-126, 2^127].
        """

        @intrinsic
        def scale(typing_context, peak):
            result = types.UniTuple(types.float32, 1)

            def codegen(context, builder, signature, args):
                (value,) = unpack(builder, args[0], 1)
                found = power_above(builder, value, least, most)
                return pack_tuple(context, builder, signature.return_type, [found])

            return result(peak), codegen

        return scale

    def divide_floats(self, count: int) -> Any:
        """``op(values, power)``: divide float32 registers by a power of two."""

        @intrinsic
        def scaled(typing_context, values, power):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                inverse = asm(builder, F32, [args[1]], "rcp.rn.f32 $0, $1;", "=f,f")
                made = [
                    asm(builder, F32, [v, inverse], "mul.rn.f32 $0, $1, $2;", "=f,f,f")
                    for v in unpack(builder, args[0], count)
                ]
                return pack_tuple(context, builder, signature.return_type, made)

            return result(values, types.float32), codegen

        return scaled


def power_above(builder: Any, value: Any, least: float, most: float) -> Any:
    """See `GpuFilter.power_above`."""
    bits = builder.bitcast(value, I32)
    # One more than the exponent where any bit of the fraction is set; the largest carries no further.
    up = builder.add(bits, ir.Constant(I32, 0x7FFFFF))
    exponent = builder.lshr(up, ir.Constant(I32, 23))
    low = builder.icmp_signed("<", exponent, ir.Constant(I32, 1))
    exponent = builder.select(low, ir.Constant(I32, 1), exponent)
    high = builder.icmp_signed(">", exponent, ir.Constant(I32, 254))
    exponent = builder.select(high, ir.Constant(I32, 254), exponent)
    power = builder.bitcast(builder.shl(exponent, ir.Constant(I32, 23)), F32)
    plain = builder.fcmp_ordered(">=", value, ir.Constant(F32, least))
    plain = builder.and_(plain, builder.fcmp_ordered("<=", value, ir.Constant(F32, most)))
    plain = builder.or_(plain, builder.icmp_signed(">=", bits, ir.Constant(I32, 0x7F800000)))
    plain = builder.or_(plain, builder.icmp_signed("==", bits, ir.Constant(I32, 0)))
    return builder.select(plain, ir.Constant(F32, 1.0), power)


def _numba(double: bool) -> Any:
    return types.float64 if double else types.float32


def _names(double: bool) -> tuple[str, str]:
    """The type's name in PTX, and its letter in constraints."""
    return ("f64", "d") if double else ("f32", "f")


def _of(text: str, double: bool) -> str:
    return text.replace("f32", "f64") if double else text


def _two_parts(builder: Any, given: list, text: str, double: bool) -> list:
    """Inline PTX that makes a complex number."""
    _, letter = _names(double)
    constraints = ",".join([f"=&{letter}"] * 2 + [letter] * len(given))
    return unpack(builder, asm(builder, DOUBLE_POINT if double else POINT, given, text, constraints), 2)


def _point_address(builder: Any, pointer: Any, where: Any) -> Any:
    element = pointer.type.pointee
    return global_pointer(builder, pointer, builder.shl(where, ir.Constant(I64, 1)), element)


def _load_point(builder: Any, pointer: Any, where: Any, double: bool) -> list:
    kind, letter = _names(double)
    text = f"ld.global.v2.{kind} {{$0, $1}}, [$2];"
    returns, constraints = DOUBLE_POINT if double else POINT, f"={letter},={letter},l,~{{memory}}"
    address = _point_address(builder, pointer, where)
    return unpack(builder, asm(builder, returns, [address], text, constraints, effect=True), 2)
