"""The GPU body's operations that correlate: conj(z) w summed over many sequences, in float32.

A warp has a row of *sums*, 4 ``count`` float32 a lane: of each packed register (two points) the real and the imaginary
part of one point, then of the other. In memory they are quads, [count, 32 lanes, 4]: complex points, 16 bytes a lane.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import (
    F32,
    I32,
    VOID,
    asm,
    global_pointer,
    load_shared_words,
    pack_tuple,
    shared_address,
    store_shared_words,
    unpack,
)

FUSED = "fma.rn.f32 $0, $1, $2, $3;"
QUAD = 128  # words from a lane's quad to its next
TWO = ir.LiteralStructType([F32, F32])
FOUR = ir.LiteralStructType([F32] * 4)


class GpuCorrelation:
    """Sums of products; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    dtype: str

    def no_sums(self, count: int) -> Any:
        """``op()``: sums that are zero."""

        @intrinsic
        def made(typing_context):
            result = types.UniTuple(types.float32, 4 * count)

            def codegen(context, builder, signature, args):
                return pack_tuple(
                    context, builder, signature.return_type, [ir.Constant(F32, 0.0)] * 4 * count
                )

            return result(), codegen

        return made

    def correlate(self, count: int, sequences: int = 1) -> Any:
        """``op(sums, z, w)``: sums + conj(z) w, z packed halves and w float32, ``count`` registers of z a part.

        Of more than one of ``sequences`` side by side (see `gpu_sequences`) all products go to the same sums.
        """
        widen, whole = self.widen_register, count * sequences

        @intrinsic
        def add(typing_context, sums, z, w):
            result = types.UniTuple(types.float32, 4 * count)

            def codegen(context, builder, signature, args):
                sums = unpack(builder, args[0], 4 * count)
                for i in range(whole):
                    now = slice(4 * (i % count), 4 * (i % count) + 4)
                    sums[now] = _quad(builder, sums[now], args[1:], i, whole, widen)
                return pack_tuple(context, builder, signature.return_type, sums)

            return result(sums, z, w), codegen

        return add

    def correlate_shared(self, count: int) -> Any:
        """``op(word, z, w)``: the same, sums in shared memory from this lane's ``word`` on."""
        widen = self.widen_register

        @intrinsic
        def add(typing_context, word, z, w):
            signature = types.void(types.int64, z, w)

            def codegen(context, builder, signature, args):
                address = shared_address(builder, args[0])
                for i in range(count):
                    words = load_shared_words(builder, address, 4 * QUAD * i, 4)
                    sums = [builder.bitcast(x, F32) for x in words]
                    sums = _quad(builder, sums, args[1:], i, count, widen)
                    store_shared_words(
                        builder, address, 4 * QUAD * i, [builder.bitcast(x, I32) for x in sums]
                    )
                return context.get_dummy_value()

            return signature, codegen

        return add

    def correlate_global(self, count: int, *, added: bool = False) -> Any:
        """``op(sums, at, z, w)``: the same, sums in global memory from this lane's float ``at`` on.

        ``added``: by the L2 cache (compute capability 9), so that nothing waits for the sums, nor holds them. A float
        is added to by one lane alone, so in order; what is smaller than 2^-126 counts as zero.
        """
        widen = self.widen_register

        @intrinsic
        def add(typing_context, target, at, z, w):
            signature = types.void(target, types.int64, z, w)

            def codegen(context, builder, signature, args):
                pointer, at, *operands = args
                address = global_pointer(builder, pointer, at, F32)
                for i in range(count):
                    if added:
                        product = _quad(builder, [ir.Constant(F32, 0.0)] * 4, operands, i, count, widen)
                        text = f"red.global.add.v4.f32 [$0+{4 * QUAD * i}], {{$1, $2, $3, $4}};"
                        asm(builder, VOID, [address, *product], text, "l,f,f,f,f,~{memory}", effect=True)
                        continue
                    text = f"ld.global.v4.f32 {{$0, $1, $2, $3}}, [$4+{4 * QUAD * i}];"
                    loaded = asm(builder, FOUR, [address], text, "=f,=f,=f,=f,l,~{memory}", effect=True)
                    sums = _quad(builder, unpack(builder, loaded, 4), operands, i, count, widen)
                    _store_quad(builder, address, i, sums)
                return context.get_dummy_value()

            return signature, codegen

        return add

    def store_sums_global(self, count: int) -> Any:
        """``op(target, at, sums)``: sums, or their words, to global memory from this lane's float ``at`` on."""

        @intrinsic
        def store(typing_context, target, at, sums):
            signature = types.void(target, types.int64, sums)

            def codegen(context, builder, signature, args):
                address = global_pointer(builder, args[0], args[1], F32)
                values = unpack(builder, args[2], 4 * count)
                values = [x if x.type == F32 else builder.bitcast(x, F32) for x in values]
                for i in range(count):
                    _store_quad(builder, address, i, values[4 * i : 4 * i + 4])
                return context.get_dummy_value()

            return signature, codegen

        return store

    def widen_register(self, builder: Any, word: Any) -> list:
        """The two halves of a register as float32; for use in code generation."""
        if self.dtype == "bf16":
            low = builder.shl(word, ir.Constant(I32, 16))
            high = builder.and_(word, ir.Constant(I32, 0xFFFF0000))
            return [builder.bitcast(x, F32) for x in (low, high)]
        text = "{.reg .b16 a, b; mov.b32 {a, b}, $2; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b;}"
        return unpack(builder, asm(builder, TWO, [word], text, "=&f,=&f,r"), 2)


def _quad(builder: Any, sums: list, operands: Any, i: int, count: int, widen: Any) -> list:
    """The sums of two points, conj(z) w added: re + zr wr + zi wi, im + zr wi - zi wr."""
    z, w = operands
    real, imaginary = (widen(builder, builder.extract_value(z, j)) for j in (i, i + count))
    out = []
    for e in range(2):
        wr, wi = (builder.extract_value(w, 2 * j + e) for j in (i, i + count))
        out += conjugate_product(builder, sums[2 * e], sums[2 * e + 1], real[e], imaginary[e], wr, wi)
    return out


def conjugate_product(builder: Any, re: Any, im: Any, zr: Any, zi: Any, wr: Any, wi: Any) -> list:
    """``re + i im + conj(z) w``, by four fused multiply-adds."""
    less = builder.fsub(ir.Constant(F32, -0.0), zi)
    for left, right in ((zr, wr), (zi, wi)):
        re = asm(builder, F32, [left, right, re], FUSED, "=f,f,f,f")
    for left, right in ((zr, wi), (less, wr)):
        im = asm(builder, F32, [left, right, im], FUSED, "=f,f,f,f")
    return [re, im]


def _store_quad(builder: Any, address: Any, i: int, values: list) -> None:
    text = f"st.global.v4.f32 [$0+{4 * QUAD * i}], {{$1, $2, $3, $4}};"
    asm(builder, VOID, [address, *values], text, "l,f,f,f,f,~{memory}", effect=True)
