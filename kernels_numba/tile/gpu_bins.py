"""The GPU body's operations on float32 points that bring sums of spectra back to taps, and sum those of fp32."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_correlation import FOUR, FUSED, TWO, conjugate_product
from kernels_numba.tile.gpu_emit import (
    F32,
    I32,
    I64,
    VOID,
    asm,
    global_pointer,
    pack_tuple,
    shared_address,
    unpack,
)

TWO_WORDS = ir.LiteralStructType([I32] * 2)
FOUR_WORDS = ir.LiteralStructType([I32] * 4)


class GpuBins:
    """What brings sums back to taps; :class:`kernels_numba.tile.gpu_vocabularies.GpuFloats` inherits them."""

    def add_hermitian(self, constants: tuple[int, ...]) -> Any:
        """``op(so_far, source, base, places, roots, k)``: so_far + points ``k + constants`` of half a transform.

        Point k is p + i w d of four points of global memory, a, b, c and e at ``base`` + the words 4 k .. 4 k + 3 of
        ``places``: p = (a + conj b) + (c + conj e), d = (a + conj b) - (c + conj e), w the complex number k of
        ``roots``.
        """
        count = len(constants)

        @intrinsic
        def add(typing_context, so_far, source, base, places, roots, k):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                total, source, base, places, roots, k = args
                values = unpack(builder, total, 2 * count)
                start = global_pointer(builder, source, builder.shl(base, ir.Constant(I64, 1)), F32)
                words = global_pointer(builder, places, builder.shl(k, ir.Constant(I64, 2)), I32)
                table = global_pointer(builder, roots, builder.shl(k, ir.Constant(I64, 1)), F32)
                for i, constant in enumerate(constants):
                    points = []
                    for place in _places_of_point(builder, words, constant):
                        offset = builder.shl(builder.zext(place, I64), ir.Constant(I64, 1))
                        address = builder.gep(start, [offset])
                        text = "ld.global.v2.f32 {$0, $1}, [$2];"
                        loaded = asm(builder, TWO, [address], text, "=f,=f,l,~{memory}", effect=True)
                        points.append(unpack(builder, loaded, 2))
                    before = values[i], values[i + count]
                    values[i], values[i + count] = _hermitian(builder, *before, points, table, constant)
                return pack_tuple(context, builder, signature.return_type, values)

            return result(so_far, source, types.int64, places, roots, types.int64), codegen

        return add

    def add_quads(self, count: int, stride: int) -> Any:
        """``op(so_far, source, at)``: so_far + float32 of global memory, quad i at ``at + i stride``."""

        @intrinsic
        def add(typing_context, so_far, source, at):
            result = types.UniTuple(types.float32, 4 * count)

            def codegen(context, builder, signature, args):
                values = unpack(builder, args[0], 4 * count)
                address = global_pointer(builder, args[1], args[2], F32)
                quads = []
                for i in range(count):
                    text = f"ld.global.v4.f32 {{$0, $1, $2, $3}}, [$4+{4 * i * stride}];"
                    loaded = asm(builder, FOUR, [address], text, "=f,=f,=f,=f,l,~{memory}", effect=True)
                    quads += unpack(builder, loaded, 4)
                made = [builder.fadd(x, y) for x, y in zip(values, quads, strict=True)]
                return pack_tuple(context, builder, signature.return_type, made)

            return result(so_far, source, types.int64), codegen

        return add

    def scatter_points(self, count: int, stride: int) -> Any:
        """``op(word, places, at, x)``: complex points to shared memory, in pairs as `add_quads` has them.

        The points of quad i go to ``word`` + the words ``at + i stride`` of ``places`` and the next.
        """

        @intrinsic
        def scatter(typing_context, word, places, at, x):
            signature = types.void(types.int64, places, types.int64, x)

            def codegen(context, builder, signature, args):
                start = shared_address(builder, args[0])
                table = global_pointer(builder, args[1], args[2], I32)
                values = unpack(builder, args[3], 4 * count)
                for i in range(count):
                    text = f"ld.global.nc.v2.b32 {{$0, $1}}, [$2+{4 * i * stride}];"
                    where = unpack(builder, asm(builder, TWO_WORDS, [table], text, "=r,=r,l"), 2)
                    for e, place in enumerate(where):
                        address = builder.add(start, builder.shl(place, ir.Constant(I32, 2)))
                        point = values[4 * i + 2 * e : 4 * i + 2 * e + 2]
                        text = "st.shared.v2.f32 [$0], {$1, $2};"
                        asm(builder, VOID, [address, *point], text, "r,f,f,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return scatter

    def hermitian_shared(self, constants: tuple[int, ...]) -> Any:
        """``op(word, places, roots, k)``: as `add_hermitian` from zero, points of shared memory after ``word``."""
        count = len(constants)

        @intrinsic
        def make(typing_context, word, places, roots, k):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                word, places, roots, k = args
                start = shared_address(builder, word)
                words = global_pointer(builder, places, builder.shl(k, ir.Constant(I64, 2)), I32)
                table = global_pointer(builder, roots, builder.shl(k, ir.Constant(I64, 1)), F32)
                out: list = [None] * (2 * count)
                for i, constant in enumerate(constants):
                    points = []
                    for place in _places_of_point(builder, words, constant):
                        address = builder.add(start, builder.shl(place, ir.Constant(I32, 2)))
                        text = "ld.shared.v2.f32 {$0, $1}, [$2];"
                        loaded = asm(builder, TWO, [address], text, "=f,=f,r,~{memory}", effect=True)
                        points.append(unpack(builder, loaded, 2))
                    zero = ir.Constant(F32, 0.0)
                    out[i], out[i + count] = _hermitian(builder, zero, zero, points, table, constant)
                return pack_tuple(context, builder, signature.return_type, out)

            return result(types.int64, places, roots, types.int64), codegen

        return make

    def gather_shared(self, count: int) -> Any:
        """``op(word, table, at, step)``: float32 of shared memory at ``word`` + entry ``at + i step`` of a table.

        Zero where the entry is negative, or ``at`` is.
        """

        @intrinsic
        def gather(typing_context, word, table, at, step):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                word, table, at, step = args
                start = shared_address(builder, word)
                inside = builder.icmp_signed(">=", at, ir.Constant(I64, 0))
                entries, found = [], []
                for i in range(count):  # all of them first, so that none waits for another
                    where = builder.add(at, builder.mul(step, ir.Constant(I64, i)))
                    where = builder.select(inside, where, ir.Constant(I64, 0))
                    entry = builder.load(global_pointer(builder, table, where, I32))
                    entries.append(builder.select(inside, entry, ir.Constant(I32, -1)))
                for entry in entries:
                    address = builder.add(start, builder.shl(entry, ir.Constant(I32, 2)))
                    text = "{.reg .pred p; setp.ge.s32 p, $2, 0; mov.f32 $0, 0f00000000; @p ld.shared.f32 $0, [$1];}"
                    found.append(asm(builder, F32, [address, entry], text, "=&f,r,r,~{memory}", effect=True))
                return pack_tuple(context, builder, signature.return_type, found)

            return result(types.int64, table, types.int64, types.int64), codegen

        return gather

    def correlate_points(self, count: int) -> Any:
        """``op(sums, z, w)``: sums + conj(z) w of ``count`` complex points, real parts first in all three."""

        @intrinsic
        def add(typing_context, sums, z, w):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                sums, z, w = (unpack(builder, x, 2 * count) for x in args)
                for i in range(count):
                    points = [z[i], z[i + count], w[i], w[i + count]]
                    sums[i], sums[i + count] = conjugate_product(builder, sums[i], sums[i + count], *points)
                return pack_tuple(context, builder, signature.return_type, sums)

            return result(sums, z, w), codegen

        return add

    def add_turned(self, count: int) -> Any:
        """``op(so_far, x, re, im)``: so_far + x (re + i im) of ``count`` complex points."""

        @intrinsic
        def add(typing_context, so_far, x, re, im):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                total, values = (unpack(builder, a, 2 * count) for a in args[:2])
                conjugate = builder.fsub(ir.Constant(F32, -0.0), args[3])
                for i in range(count):
                    # conj(re - i im) x
                    points = [args[2], conjugate, values[i], values[i + count]]
                    total[i], total[i + count] = conjugate_product(
                        builder, total[i], total[i + count], *points
                    )
                return pack_tuple(context, builder, signature.return_type, total)

            return result(so_far, x, types.float32, types.float32), codegen

        return add

    def plus(self, count: int) -> Any:
        """``op(a, b)``: elementwise sum of float32."""

        @intrinsic
        def added(typing_context, a, b):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                left, right = (unpack(builder, x, count) for x in args)
                made = [builder.fadd(x, y) for x, y in zip(left, right, strict=True)]
                return pack_tuple(context, builder, signature.return_type, made)

            return result(a, b), codegen

        return added

    def scaled_total(self, count: int, groups: int = 1) -> Any:
        """``op(values, factor)``: the sum of ``count`` float32, first to last, times a factor; of each group."""

        @intrinsic
        def total_of(typing_context, values, factor):
            result = types.UniTuple(types.float32, groups)

            def codegen(context, builder, signature, args):
                terms, found = unpack(builder, args[0], count * groups), []
                for first in range(0, count * groups, count):
                    total = terms[first]
                    for other in terms[first + 1 : first + count]:
                        total = builder.fadd(total, other)
                    found.append(builder.fmul(total, args[1]))
                return pack_tuple(context, builder, signature.return_type, found)

            return result(values, types.float32), codegen

        return total_of


def _places_of_point(builder: Any, words: Any, constant: int) -> list:
    """The four words of a table that belong to a point."""
    text = f"ld.global.nc.v4.b32 {{$0, $1, $2, $3}}, [$4+{16 * constant}];"
    return unpack(builder, asm(builder, FOUR_WORDS, [words], text, "=r,=r,=r,=r,l"), 4)


def _hermitian(builder: Any, re: Any, im: Any, points: list, table: Any, constant: int) -> tuple[Any, Any]:
    """``re + i im + p + i w d``; see `GpuBins.add_hermitian`."""
    text = f"ld.global.nc.v2.f32 {{$0, $1}}, [$2+{8 * constant}];"
    cosine, sine = unpack(builder, asm(builder, TWO, [table], text, "=f,=f,l"), 2)
    (ar, ai), (br, bi), (cr, ci), (er, ei) = points
    one = builder.fadd(ar, br), builder.fsub(ai, bi)
    two = builder.fadd(cr, er), builder.fsub(ci, ei)
    pr, pi = (builder.fadd(x, y) for x, y in zip(one, two, strict=True))
    dr, di = (builder.fsub(x, y) for x, y in zip(one, two, strict=True))
    less_cosine, less_sine = (builder.fsub(ir.Constant(F32, -0.0), x) for x in (cosine, sine))
    re, im = builder.fadd(re, pr), builder.fadd(im, pi)
    for left, right in ((less_sine, dr), (less_cosine, di)):
        re = asm(builder, F32, [left, right, re], FUSED, "=f,f,f,f")
    for left, right in ((cosine, dr), (less_sine, di)):
        im = asm(builder, F32, [left, right, im], FUSED, "=f,f,f,f")
    return re, im
