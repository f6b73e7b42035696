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
from kernels_numba.tile.gpu_filter import QUICK_MAGNITUDE, TAPS

TWO = ir.LiteralStructType([F32, F32])
FOUR = ir.LiteralStructType([F32] * 4)
FOUR_WORDS = ir.LiteralStructType([I32] * 4)
FUSED = "fma.rn.f32 $0, $1, $2, $3;"


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return asm(builder, F32, [a, b, c], FUSED, "=f,f,f,f")


def _less(builder: Any, x: Any) -> Any:
    return builder.fsub(ir.Constant(F32, -0.0), x)


def _shared_point(builder: Any, address: Any, offset: int = 0) -> list:
    text = f"ld.shared.v2.f32 {{$0, $1}}, [$2+{offset}];"
    return unpack(builder, asm(builder, TWO, [address], text, "=f,=f,r,~{memory}", effect=True), 2)


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
                re, im = [], []
                for i, (ar, ai, br, bi) in enumerate(factors):
                    (xr, xi), (mr, mi) = (
                        _shared_point(builder, builder.add(start, builder.shl(v, ir.Constant(I32, 2))))
                        for v in at[2 * i : 2 * i + 2]
                    )
                    er, ei = builder.fadd(xr, mr), builder.fsub(xi, mi)
                    dr, di = builder.fsub(xr, mr), builder.fadd(xi, mi)
                    less_ai, less_bi = _less(builder, ai), _less(builder, bi)
                    total = _fma(builder, ar, er, builder.fmul(less_ai, ei))
                    re.append(_fma(builder, less_bi, di, _fma(builder, br, dr, total)))
                    total = _fma(builder, ar, ei, builder.fmul(ai, er))
                    im.append(_fma(builder, bi, dr, _fma(builder, br, di, total)))
                found = [x for i in range(0, 2 * count, 2) for x in (*re[i : i + 2], *im[i : i + 2])]
                return pack_tuple(context, builder, signature.return_type, found)

            return result(types.int64, places, weights, types.int64), codegen

        return combine
