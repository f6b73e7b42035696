"""The GPU body's operations on complex numbers of two halves in one word, as the kernel of any factors has them.

A word holds a number's real part in its low half and the imaginary part in its high half. As an operand of a product
it is two neighbouring elements of the contraction, so a complex factor is a real matrix whose columns alternate
between what multiplies real and imaginary parts. Sums and products are float32, each with its rounding, and are rounded
to halves once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import (
    F32,
    I32,
    asm,
    load_global_words,
    load_shared_words,
    pack_tuple,
    shared_address,
    unpack,
)
from kernels_numba.tile.gpu_float import MIRRORED, POINT, PRODUCT

# (real part, imaginary part): registers of float32 that become a word.
Parts = tuple[tuple[int, int], ...]


class GpuWords:
    """Complex words of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    dtype: str
    ptx: dict[str, str]
    round_pair: Any
    complex_product: Any

    def columns_product(self, column_tiles: int, k_tiles: int, *, stored: int, shared: bool) -> Any:
        """``op(source, word, a)``: an A operand of 16 rows times a factor; float32 accumulators by row group.

        The factor's B operands [column_tiles, stored] come in pairs, two neighbours of a column tile in 128 words in
        lane order, and lie in shared memory from ``word`` on, or in the buffer ``source``; of those of a column tile
        the first ``k_tiles`` are taken, each where it is used.
        """
        count = 4 * column_tiles

        @intrinsic
        def product(typing_context, source, word, a):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                load = _quads(builder, args[0], args[1], shared)
                left = unpack(builder, args[2], 4 * k_tiles)
                tiles = _zeros(1, column_tiles)
                for n in range(column_tiles):
                    for k in range(0, k_tiles, 2):
                        right = load((n * stored + k) // 2)
                        for i in range(min(2, k_tiles - k)):
                            a = left[4 * (k + i) :][:4]
                            tiles[0, n] = self._mma(builder, a, right[2 * i :][:2], tiles[0, n])
                out = [
                    tiles[0, n][2 * y + e] for y in range(2) for n in range(column_tiles) for e in range(2)
                ]
                return pack_tuple(context, builder, signature.return_type, out)

            return result(source, types.int64, a), codegen

        return product

    def _mma(self, builder: Any, a: list, b: list, c: list) -> list:
        text = self.ptx["mma"] + " {$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
        four = ir.LiteralStructType([F32] * 4)
        made = asm(builder, four, [*a, *b, *c], text, "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3", convergent=True)
        return unpack(builder, made, 4)

    def multiply_words(self, parts: Parts) -> Any:
        """``op(values, words)``: complex float32 times complex words, rounded to words.

        Word i is the number whose parts are the registers ``parts[i]``, times word i of the other fragment.
        """
        count = len(parts)

        @intrinsic
        def product(typing_context, values, words):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                out = []
                numbers = self._numbers(builder, args[1], count, False)
                for (re, im), w in zip(parts, numbers, strict=True):
                    x = [builder.extract_value(args[0], j) for j in (re, im)]
                    made = asm(builder, POINT, [*x, *w], PRODUCT, "=&f,=&f,f,f,f,f")
                    out.append(self._round(builder, made, False))
                return pack_tuple(context, builder, signature.return_type, out)

            return result(values, words), codegen

        return product

    def turn_words(self, parts: Parts, *, swap: bool = False) -> Any:
        """``op(values, planes)``: complex float32, rounded to halves, times complex halves; words.

        Two words of ``planes`` hold the real parts of two numbers, then the imaginary. A product is that of
        ``multiply_complex``, four instructions a number where float32 takes seven. Its parts are exchanged if ``swap``.
        """
        count = len(parts)

        @intrinsic
        def product(typing_context, values, planes):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                out = []
                planes = unpack(builder, args[1], count)
                for i in range(0, count, 2):
                    four = [[builder.extract_value(args[0], j) for j in pair] for pair in parts[i : i + 2]]
                    x = [self.round_pair(builder, *pair) for pair in zip(*four, strict=True)]
                    re, im = self.complex_product(builder, *x, *planes[i : i + 2])
                    low, high = (im, re) if swap else (re, im)
                    out += [_halves(builder, low, high, half) for half in range(2)]
                return pack_tuple(context, builder, signature.return_type, out)

            return result(values, planes), codegen

        return product

    def widen_words(self, count: int) -> Any:
        """``op(words)``: words as float32, real and imaginary part of each in turn."""

        @intrinsic
        def widened(typing_context, words):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                out = [
                    x for word in unpack(builder, args[0], count) for x in self.widen_halves(builder, word)
                ]
                return pack_tuple(context, builder, signature.return_type, out)

            return result(words), codegen

        return widened

    def mirror_words(self, count: int) -> Any:
        """``op(x, a, m, b)``: x a + conj(m) b, in float32, rounded to words with their parts exchanged.

        x and m are words, a and b planar ones (see :meth:`multiply_words`).
        """

        @intrinsic
        def product(typing_context, x, a, m, b):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                x, a, m, b = (
                    self._numbers(builder, value, count, planar)
                    for value, planar in zip(args, (False, True, False, True), strict=True)
                )
                out = []
                for i in range(count):
                    given = [*x[i], *a[i], *m[i], *b[i]]
                    made = asm(builder, POINT, given, MIRRORED, "=&f,=&f" + ",f" * 8)
                    out.append(self._round(builder, made, True))
                return pack_tuple(context, builder, signature.return_type, out)

            return result(x, a, m, b), codegen

        return product

    def _numbers(self, builder: Any, words: Any, count: int, planar: bool) -> list:
        """Real and imaginary parts of complex words, float32."""
        wide = [self.widen_halves(builder, word) for word in unpack(builder, words, count)]
        if not planar:
            return wide
        return [[wide[i][e], wide[i + 1][e]] for i in range(0, count, 2) for e in range(2)]

    def _round(self, builder: Any, made: Any, swap: bool) -> Any:
        re, im = unpack(builder, made, 2)
        return self.round_pair(builder, im, re) if swap else self.round_pair(builder, re, im)

    def widen_halves(self, builder: Any, word: Any) -> list:
        """The two halves of a register as float32, exactly; for use in code generation."""
        if self.dtype == "bf16":
            low = builder.shl(word, ir.Constant(I32, 16))
            high = builder.and_(word, ir.Constant(I32, 0xFFFF0000))
            return [builder.bitcast(low, F32), builder.bitcast(high, F32)]
        text = "{.reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h;}"
        return unpack(builder, asm(builder, ir.LiteralStructType([F32] * 2), [word], text, "=f,=f,r"), 2)


def _halves(builder: Any, low: Any, high: Any, half: int) -> Any:
    """The same half of two words in one."""
    text = f"prmt.b32 $0, $1, $2, {0x7632 if half else 0x5410};"
    return asm(builder, I32, [low, high], text, "=r,r,r")


def _zeros(row_tiles: int, column_tiles: int) -> dict[tuple[int, int], list]:
    zero = ir.Constant(F32, 0.0)
    return {(m, n): [zero] * 4 for m in range(row_tiles) for n in range(column_tiles)}


def _quads(builder: Any, source: Any, word: Any, shared: bool) -> Any:
    """A function that loads a lane's four words of operand i."""
    if not shared:
        return lambda i: load_global_words(builder, source, word, 128 * i, 4)
    address = shared_address(builder, word)
    return lambda i: load_shared_words(builder, address, 512 * i, 4)
