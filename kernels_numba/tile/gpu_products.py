"""The GPU body's running sums: products added onto accumulators, dot products, sums over lanes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import F32, I32, asm, pack_tuple, unpack


class GpuProducts:
    """Running sums of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    ptx: dict[str, str]
    dtype: str
    round_pair: Any

    def zeros(self, count: int) -> Any:
        """``op()``: float32 zeros."""

        @intrinsic
        def made(typing_context):
            def codegen(context, builder, signature, args):
                return pack_tuple(context, builder, signature.return_type, [ir.Constant(F32, 0.0)] * count)

            return types.UniTuple(types.float32, count)(), codegen

        return made

    def mma_add(self, row_tiles: int, column_tiles: int, k_tiles: int) -> Any:
        """``op(c, a, b)``: c + a b on tensor cores; c in float32 by row group, as `mma` returns it."""
        order = [
            (y // 2, n, 2 * (y % 2) + e)
            for y in range(2 * row_tiles)
            for n in range(column_tiles)
            for e in range(2)
        ]
        text = self.ptx["mma"] + " {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
        four = ir.LiteralStructType([F32] * 4)

        @intrinsic
        def product(typing_context, c, a, b):
            result = types.UniTuple(types.float32, len(order))

            def codegen(context, builder, signature, args):
                sums = unpack(builder, args[0], len(order))
                left = unpack(builder, args[1], row_tiles * k_tiles * 4)
                right = unpack(builder, args[2], k_tiles * column_tiles * 2)
                tiles: dict = {(m, n): [None] * 4 for m, n, _ in order}
                for value, (m, n, i) in zip(sums, order, strict=True):
                    tiles[m, n][i] = value
                for k in range(k_tiles):
                    for m in range(row_tiles):
                        for n in range(column_tiles):
                            value = asm(
                                builder,
                                four,
                                [
                                    *left[(m * k_tiles + k) * 4 :][:4],
                                    *right[(k * column_tiles + n) * 2 :][:2],
                                    *tiles[m, n],
                                ],
                                text,
                                "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3",
                                convergent=True,
                            )
                            tiles[m, n] = unpack(builder, value, 4)
                values = [tiles[m, n][i] for m, n, i in order]
                return pack_tuple(context, builder, signature.return_type, values)

            return result(c, a, b), codegen

        return product

    def dot_add(self, rows: int, columns: int, words: int) -> Any:
        """``op(sums, w, x)``: add to each of the [rows, columns] float32 sums a lane's own dot product.

        ``w`` holds ``words`` registers of halves for each row, ``x`` for each column. Products of halves are exact;
        each is added with one rounding, in the order of the elements.
        """

        @intrinsic
        def product(typing_context, sums, w, x):
            result = types.UniTuple(types.float32, rows * columns)

            def codegen(context, builder, signature, args):
                totals = unpack(builder, args[0], rows * columns)
                left = [self._widen(builder, v) for v in unpack(builder, args[1], rows * words)]
                right = [self._widen(builder, v) for v in unpack(builder, args[2], columns * words)]
                for i in range(words):
                    for e in range(2):
                        for r in range(rows):
                            for c in range(columns):
                                operands = [
                                    left[r * words + i][e],
                                    right[c * words + i][e],
                                    totals[r * columns + c],
                                ]
                                totals[r * columns + c] = asm(
                                    builder, F32, operands, "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f"
                                )
                return pack_tuple(context, builder, signature.return_type, totals)

            return result(sums, w, x), codegen

        return product

    def filter_points(self, count: int, *, conjugate: bool) -> Any:
        """``op(x, w)``: points x w, or x conj(w), of ``count`` x in float32 (real, then imaginary parts) and points w.

        Each part is a rounded product and a fused multiply-add in float32, and is rounded once more.
        """
        fused = "fma.rn.f32 $0, $1, $2, $3;"

        @intrinsic
        def product(typing_context, x, w):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                parts, words = unpack(builder, args[0], 2 * count), unpack(builder, args[1], count)
                points = []
                for real, imaginary, word in zip(parts[:count], parts[count:], words, strict=True):
                    re, im = self._widen(builder, word)
                    less = asm(builder, F32, [im], "neg.f32 $0, $1;", "=f,f")
                    first, second = (im, less) if conjugate else (less, im)
                    pair = [
                        asm(builder, F32, [a, b, builder.fmul(c, re)], fused, "=f,f,f,f")
                        for a, b, c in ((imaginary, first, real), (real, second, imaginary))
                    ]
                    points.append(self.round_pair(builder, *pair))
                return pack_tuple(context, builder, signature.return_type, points)

            return result(x, w), codegen

        return product

    def _widen(self, builder: Any, word: Any) -> list:
        """The two halves of a register as float32, exactly."""
        if self.dtype == "bf16":
            high = builder.and_(word, ir.Constant(I32, 0xFFFF0000))
            return [builder.bitcast(x, F32) for x in (builder.shl(word, ir.Constant(I32, 16)), high)]
        both = asm(
            builder,
            ir.LiteralStructType([F32] * 2),
            [word],
            "{.reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h;}",
            "=f,=f,r",
        )
        return unpack(builder, both, 2)

    def add(self, count: int) -> Any:
        """``op(a, b)``: elementwise sum in float32."""

        @intrinsic
        def total(typing_context, a, b):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                left, right = (unpack(builder, x, count) for x in args)
                values = [builder.fadd(x, y) for x, y in zip(left, right, strict=True)]
                return pack_tuple(context, builder, signature.return_type, values)

            return result(a, b), codegen

        return total

    def sum_lanes(self, count: int) -> Any:
        """``op(values)``: each float32 summed over the warp's lanes, the same sum in all of them (butterfly)."""

        @intrinsic
        def total(typing_context, values):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                sums = unpack(builder, args[0], count)
                for distance in (16, 8, 4, 2, 1):
                    text = f"shfl.sync.bfly.b32 $0, $1, {distance}, 31, 0xffffffff;"
                    others = [asm(builder, F32, [x], text, "=f,f", convergent=True) for x in sums]
                    sums = [builder.fadd(x, y) for x, y in zip(sums, others, strict=True)]
                return pack_tuple(context, builder, signature.return_type, sums)

            return result(values), codegen

        return total

    def as_words(self, count: int) -> Any:
        """``op(values)``: the bits of float32 registers, for shared memory."""
        return _cast(count, types.int32, I32)

    def as_floats(self, count: int) -> Any:
        """``op(words)``: registers read back as float32."""
        return _cast(count, types.float32, F32)


def _cast(count: int, element: Any, register: Any) -> Any:
    @intrinsic
    def cast(typing_context, fragment):
        def codegen(context, builder, signature, args):
            values = [builder.bitcast(x, register) for x in unpack(builder, args[0], count)]
            return pack_tuple(context, builder, signature.return_type, values)

        return types.UniTuple(element, count)(fragment), codegen

    return cast
