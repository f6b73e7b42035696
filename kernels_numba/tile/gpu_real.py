"""The GPU body's operations that make the spectrum of a real filter from a transform of half its length.

The points X of x[m] = h[2m] + i h[2m + 1] give the bins H[b] = E / 2 - i / 2 w^b O of h, with E = X[b] + conj X[-b] and
O = X[b] - conj X[-b], indices modulo P.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import F32, I32, I64, asm, global_pointer, pack_tuple, shared_address, unpack
from kernels_numba.tile.gpu_filter import QUICK_MAGNITUDE, TAPS, power_above
from kernels_numba.tile.gpu_float import MIRRORED, PRODUCT

TWO = ir.LiteralStructType([F32, F32])
FOUR = ir.LiteralStructType([F32] * 4)
FOUR_WORDS = ir.LiteralStructType([I32] * 4)
LARGEST_POWER, HALF_OF_LEAST = 0x7F000000, 0x00400000
"""Bits of 2^127 and 2^-127."""
# Twice a number, or the largest one if that is more.
TWICE = (
    "{.reg .f32 t; .reg .pred p; testp.finite.f32 p, $1; add.rn.f32 t, $1, $1; "
    "@p min.f32 t, t, 0f7F7FFFFF; mov.f32 $0, t;}"
)
FUSED = "fma.rn.f32 $0, $1, $2, $3;"


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return asm(builder, F32, [a, b, c], FUSED, "=f,f,f,f")


def _less(builder: Any, x: Any) -> Any:
    return builder.fsub(ir.Constant(F32, -0.0), x)


def _shared_point(builder: Any, address: Any, offset: int = 0) -> list:
    text = f"ld.shared.v2.f32 {{$0, $1}}, [$2+{offset}];"
    return unpack(builder, asm(builder, TWO, [address], text, "=f,=f,r,~{memory}", effect=True), 2)


def _two_bins(builder: Any, points: list, weights: list) -> tuple[list, list]:
    """Real and imaginary parts of E a + O b of two positions: X and its mirror of each, a and b of each."""
    re, im = [], []
    for e, (ar, ai, br, bi) in enumerate(weights):
        (xr, xi), (mr, mi) = points[2 * e : 2 * e + 2]
        er, ei = builder.fadd(xr, mr), builder.fsub(xi, mi)
        dr, di = builder.fsub(xr, mr), builder.fadd(xi, mi)
        total = _fma(builder, ar, er, builder.fmul(_less(builder, ai), ei))
        re.append(_fma(builder, _less(builder, bi), di, _fma(builder, br, dr, total)))
        total = _fma(builder, ar, ei, builder.fmul(ai, er))
        im.append(_fma(builder, bi, dr, _fma(builder, br, di, total)))
    return re, im


def _place(builder: Any, start: Any, word: Any) -> Any:
    return builder.add(start, builder.shl(word, ir.Constant(I32, 2)))


class GpuReal:
    """Spectra of real filters; :class:`kernels_numba.tile.gpu_vocabularies.GpuFloats` inherits them."""

    def load_samples(self, constants: tuple[int, ...], kind: str) -> Any:
        """``op(taps, row, numbers, at)``: complex points ``at + constants`` of two samples each, of taps.

        Words 2 p and 2 p + 1 of ``numbers`` say which taps after element ``row`` the samples of point p are, negative
        for none.
        """
        text = "{.reg .pred p; setp.ge.s32 p, $1, 0; mov.f32 $0, 0f00000000; " + TAPS[kind] + "}"
        count = len(constants)

        @intrinsic
        def load(typing_context, taps, row, numbers, at):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                pointer, row, numbers, at = args
                element = pointer.type.pointee
                places: list = [None] * (2 * count)  # all of them first, so that none waits for another
                for i, constant in enumerate(constants):
                    where = builder.shl(builder.add(at, ir.Constant(I64, constant)), ir.Constant(I64, 1))
                    for part in range(2):
                        place = builder.add(where, ir.Constant(I64, part))
                        places[i + part * count] = builder.load(global_pointer(builder, numbers, place, I32))
                found = []
                for number in places:
                    index = builder.add(row, builder.sext(number, I64))
                    address = global_pointer(builder, pointer, index, element)
                    found.append(asm(builder, F32, [number, address], text, "=&f,r,l,~{memory}", effect=True))
                return pack_tuple(context, builder, signature.return_type, found)

            return result(taps, types.int64, numbers, types.int64), codegen

        return load

    def samples_at(self, count: int, kind: str) -> Any:
        """``op(taps, row, numbers)``: as `load_samples`, by numbers in registers, two of each point in turn."""
        text = "{.reg .pred p; setp.ge.s32 p, $1, 0; mov.f32 $0, 0f00000000; " + TAPS[kind] + "}"

        @intrinsic
        def load(typing_context, taps, row, numbers):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                pointer, row, numbers = args
                element = pointer.type.pointee
                found = []
                for number in unpack(builder, numbers, 2 * count):
                    index = builder.add(row, builder.sext(number, I64))
                    address = global_pointer(builder, pointer, index, element)
                    found.append(asm(builder, F32, [number, address], text, "=&f,r,l,~{memory}", effect=True))
                return pack_tuple(context, builder, signature.return_type, found[0::2] + found[1::2])

            return result(taps, types.int64, numbers), codegen

        return load

    def turn_by_words(self, count: int) -> Any:
        """``op(x, words)``: points times complex numbers, whose two parts come in turn as words of float32."""

        @intrinsic
        def product(typing_context, x, words):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                out = unpack(builder, args[0], 2 * count)
                numbers = [builder.bitcast(w, F32) for w in unpack(builder, args[1], 2 * count)]
                for i in range(count):
                    given = [out[i], out[i + count], *numbers[2 * i : 2 * i + 2]]
                    made = asm(builder, TWO, given, PRODUCT, "=&f,=&f,f,f,f,f")
                    out[i], out[i + count] = unpack(builder, made, 2)
                return pack_tuple(context, builder, signature.return_type, out)

            return result(x, words), codegen

        return product

    def largest_part(self, count: int, lanes: int) -> Any:
        """``op(x)``: the largest magnitude of a real or imaginary part of ``count`` points of so many lanes, in each.

        NaN if any is. The lanes are neighbours, 32 or a part of them.
        """

        @intrinsic
        def largest(typing_context, x):
            result = types.UniTuple(types.float32, 1)

            def codegen(context, builder, signature, args):
                parts = [
                    asm(builder, F32, [v], "abs.f32 $0, $1;", "=f,f")
                    for v in unpack(builder, args[0], 2 * count)
                ]
                while len(parts) > 1:
                    pairs = zip(parts[0::2], parts[1::2], strict=False)
                    most = [asm(builder, F32, list(p), "max.NaN.f32 $0, $1, $2;", "=f,f,f") for p in pairs]
                    parts = most + parts[2 * len(most) :]
                # Numbers that are not negative are in the order of their bits; a NaN is above them.
                text = (
                    f"{{.reg .b32 m; mov.u32 m, %laneid; and.b32 m, m, {32 - lanes}; "
                    f"shl.b32 m, {(1 << lanes) - 1}, m; redux.sync.max.u32 $0, $1, m;}}"
                )
                bits = builder.bitcast(parts[0], I32)
                best = asm(builder, I32, [bits], text, "=r,r", effect=True, convergent=True)
                return pack_tuple(context, builder, signature.return_type, [builder.bitcast(best, F32)])

            return result(x), codegen

        return largest

    def powers_above(self, count: int, each: int, least: float, most: float) -> Any:
        """``op(words)``: `power_above` of twice the largest of ``each`` float32 in words, for ``count`` such groups."""

        @intrinsic
        def powers(typing_context, words):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                peaks = [builder.bitcast(w, F32) for w in unpack(builder, args[0], count * each)]
                found = []
                for i in range(0, count * each, each):
                    best = peaks[i]
                    for other in peaks[i + 1 : i + each]:
                        best = asm(builder, F32, [best, other], "max.NaN.f32 $0, $1, $2;", "=f,f,f")
                    twice = asm(builder, F32, [best], TWICE, "=&f,f")
                    found.append(power_above(builder, twice, least, most))
                return pack_tuple(context, builder, signature.return_type, found)

            return result(words), codegen

        return powers

    def divide_groups(self, groups: int, each: int) -> Any:
        """``op(values, powers)``: `divide_floats` of groups of ``each`` registers, each group by its power of two."""

        @intrinsic
        def scaled(typing_context, values, powers):
            result = types.UniTuple(types.float32, groups * each)

            def codegen(context, builder, signature, args):
                made = []
                values, powers = (
                    unpack(builder, x, n) for x, n in zip(args, (groups * each, groups), strict=True)
                )
                for i, power in enumerate(powers):
                    # Of 2^127 it is not an ordinary number.
                    bits = builder.bitcast(power, I32)
                    low = builder.icmp_signed("==", bits, ir.Constant(I32, LARGEST_POWER))
                    inverse = builder.sub(ir.Constant(I32, LARGEST_POWER), bits)
                    inverse = builder.select(low, ir.Constant(I32, HALF_OF_LEAST), inverse)
                    inverse = builder.bitcast(inverse, F32)
                    made += [
                        asm(builder, F32, [v, inverse], "mul.rn.f32 $0, $1, $2;", "=f,f,f")
                        for v in values[i * each : (i + 1) * each]
                    ]
                return pack_tuple(context, builder, signature.return_type, made)

            return result(values, powers), codegen

        return scaled

    def combine_pairs(self, pairs: int, count: int, room: int) -> Any:
        """``op(word, places, first, second)``: pairs of positions of the spectra of ``count`` filters, X a + conj(M) b.

        Filters one after the other, and of each pair real parts first. Four words of ``places`` a pair say where X and
        M lie after ``word``, for one position and the next; four of ``first`` are a and b of the one, in float32, of
        ``second`` those of the other. The points of filter i begin ``i room`` words on.
        """

        @intrinsic
        def combine(typing_context, word, places, first, second):
            result = types.UniTuple(types.float32, 4 * pairs * count)

            def codegen(context, builder, signature, args):
                start = shared_address(builder, args[0])
                at = [_place(builder, start, v) for v in unpack(builder, args[1], 4 * pairs)]
                weights = [[builder.bitcast(w, F32) for w in unpack(builder, x, 4 * pairs)] for x in args[2:]]
                points = [[_shared_point(builder, a, 4 * room * i) for a in at] for i in range(count)]
                found = []
                for i in range(count):
                    for p in range(pairs):
                        both = []
                        for e in range(2):
                            x, mirror = points[i][4 * p + 2 * e : 4 * p + 2 * e + 2]
                            a_and_b = weights[e][4 * p : 4 * p + 4]
                            given = [*x, *a_and_b[:2], *mirror, *a_and_b[2:]]
                            made = asm(builder, TWO, given, MIRRORED, "=&f,=&f" + ",f" * 8)
                            both.append(unpack(builder, made, 2))
                        found += [both[0][0], both[1][0], both[0][1], both[1][1]]
                return pack_tuple(context, builder, signature.return_type, found)

            return result(types.int64, places, first, second), codegen

        return combine

    def largest_bin(self, places: tuple[tuple[int, int], ...], stride: int) -> Any:
        """``op(x, roots, at, word, starts, so_far)``: the largest of so_far and the bins of points x and of those P on.

        Point i takes -i / 2 w from ``at + i stride`` of ``roots`` on, and its mirror from shared memory as in
        `multiply_mirrored`. NaN if any is.
        """
        count = len(places)

        @intrinsic
        def largest(typing_context, x, roots, at, word, starts, so_far):
            result = types.UniTuple(types.float32, 1)

            def codegen(context, builder, signature, args):
                values, roots, at, word, offsets, best = args
                x, (best,) = unpack(builder, values, 2 * count), unpack(builder, best, 1)
                table = global_pointer(builder, roots, at, F32)
                starts = [
                    shared_address(builder, builder.add(word, builder.sext(m, word.type)))
                    for m in unpack(builder, offsets, 1 + max(which for which, _ in places))
                ]
                half = ir.Constant(F32, 0.5)
                turns = []  # all of them first, so that none waits for another
                for i in range(count):
                    text = f"ld.global.nc.v2.f32 {{$0, $1}}, [$2+{4 * i * stride}];"
                    turns.append(unpack(builder, asm(builder, TWO, [table], text, "=f,=f,l"), 2))
                for i, (which, place) in enumerate(places):
                    mr, mi = _shared_point(builder, starts[which], 8 * place)
                    cr, ci = turns[i]
                    er = builder.fmul(half, builder.fadd(x[i], mr))
                    ei = builder.fmul(half, builder.fsub(x[i + count], mi))
                    dr, di = builder.fsub(x[i], mr), builder.fadd(x[i + count], mi)
                    for sign in range(2):
                        c, s = (_less(builder, v) for v in (cr, ci)) if sign else (cr, ci)
                        re = _fma(builder, _less(builder, s), di, _fma(builder, c, dr, er))
                        im = _fma(builder, s, dr, _fma(builder, c, di, ei))
                        best = asm(builder, F32, [re, im, best], QUICK_MAGNITUDE, "=&f,f,f,f")
                return pack_tuple(context, builder, signature.return_type, [best])

            return result(x, roots, types.int64, types.int64, starts, so_far), codegen

        return largest

    def combine_bins(self, count: int, stride: int) -> Any:
        """``op(word, places, weights, pair)``: pairs of positions of a spectrum, E a + O b; of each real parts first.

        The pairs are ``pair + i stride``. Words 4 pair .. 4 pair + 3 of ``places`` say where X and its mirror lie
        after ``word``, for one position and the next; ``weights`` has a and b of each, 8 numbers.
        """

        @intrinsic
        def combine(typing_context, word, places, weights, pair):
            result = types.UniTuple(types.float32, 4 * count)

            def codegen(context, builder, signature, args):
                word, places, weights, pair = args
                start = shared_address(builder, word)
                words = global_pointer(builder, places, builder.shl(pair, ir.Constant(I64, 2)), I32)
                table = global_pointer(builder, weights, builder.shl(pair, ir.Constant(I64, 3)), F32)
                at, factors = [], []  # all of them first, so that none waits for another
                for i in range(count):
                    text = f"ld.global.nc.v4.b32 {{$0, $1, $2, $3}}, [$4+{16 * stride * i}];"
                    at += unpack(builder, asm(builder, FOUR_WORDS, [words], text, "=r,=r,=r,=r,l"), 4)
                    for e in range(2):
                        text = f"ld.global.nc.v4.f32 {{$0, $1, $2, $3}}, [$4+{32 * stride * i + 16 * e}];"
                        factors.append(unpack(builder, asm(builder, FOUR, [table], text, "=f,=f,=f,=f,l"), 4))
                found = []
                for i in range(count):
                    points = [
                        _shared_point(builder, _place(builder, start, v)) for v in at[4 * i : 4 * i + 4]
                    ]
                    re, im = _two_bins(builder, points, factors[2 * i : 2 * i + 2])
                    found += [*re, *im]
                return pack_tuple(context, builder, signature.return_type, found)

            return result(types.int64, places, weights, types.int64), codegen

        return combine
