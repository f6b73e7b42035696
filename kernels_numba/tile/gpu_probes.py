"""The GPU body's operations for measuring a GPU: streams of words, long chains of arithmetic, plain products.

They do one thing as fast as the hardware can, and keep what they computed, so that a result can be checked.
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
    pack_tuple,
    registers,
    shared_address,
    unpack,
)
from kernels_numba.tile.gpu_warpgroup import CONSTANT_STRIDES, _descriptor, _place

QUAD = 4
"""Words of the widest access of a lane: 16 bytes."""
FOUR = ir.LiteralStructType([I32] * QUAD)


class GpuProbes:
    """Operations of the vocabulary "probe"; :class:`kernels_numba.tile.gpu.GpuTile` has the others."""

    dtype: str
    ptx: dict[str, str]

    def load_quads(self, count: int) -> Any:
        """``op(source, at, step)``: ``count`` quads of words, quad q at word ``at + q step``, past L1 (``cg``)."""

        @intrinsic
        def load(typing_context, source, at, step):
            result = types.UniTuple(types.int32, QUAD * count)

            def codegen(context, builder, signature, args):
                pointer, at, step = args
                words = []
                for _ in range(count):
                    address = global_pointer(builder, pointer, at, I32)
                    text = "ld.global.cg.v4.b32 {$0, $1, $2, $3}, [$4];"
                    words += unpack(
                        builder, asm(builder, FOUR, [address], text, "=r,=r,=r,=r,l", effect=True), QUAD
                    )
                    at = builder.add(at, step)
                return pack_tuple(context, builder, signature.return_type, words)

            return result(source, types.int64, types.int64), codegen

        return load

    def store_quads(self, count: int) -> Any:
        """``op(target, at, step, words)``: quads of words to global memory, quad q at word ``at + q step``."""

        @intrinsic
        def put(typing_context, target, at, step, words):
            signature = types.void(target, types.int64, types.int64, words)

            def codegen(context, builder, signature, args):
                pointer, at, step, words = args
                values = unpack(builder, words, QUAD * count)
                for q in range(count):
                    address = global_pointer(builder, pointer, at, I32)
                    text = "st.global.v4.b32 [$0], {$1, $2, $3, $4};"
                    quad = values[QUAD * q : QUAD * (q + 1)]
                    asm(builder, VOID, [address, *quad], text, "l,r,r,r,r,~{memory}", effect=True)
                    at = builder.add(at, step)
                return context.get_dummy_value()

            return signature, codegen

        return put

    def reload_quads(self, count: int) -> Any:
        """``op(word, step)``: ``count`` quads from shared memory, read each time anew though nobody wrote there."""

        @intrinsic
        def load(typing_context, word, step):
            result = types.UniTuple(types.int32, QUAD * count)

            def codegen(context, builder, signature, args):
                at, step = args
                words = []
                for _ in range(count):
                    text = "ld.volatile.shared.v4.b32 {$0, $1, $2, $3}, [$4];"
                    value = asm(
                        builder, FOUR, [shared_address(builder, at)], text, "=r,=r,=r,=r,r", effect=True
                    )
                    words += unpack(builder, value, QUAD)
                    at = builder.add(at, step)
                return pack_tuple(context, builder, signature.return_type, words)

            return result(types.int64, types.int64), codegen

        return load

    def repeat_quad(self, count: int) -> Any:
        """``op(quad)``: the same four words ``count`` times."""

        @intrinsic
        def repeated(typing_context, quad):
            result = types.UniTuple(types.int32, QUAD * count)

            def codegen(context, builder, signature, args):
                values = unpack(builder, args[0], QUAD) * count
                return pack_tuple(context, builder, signature.return_type, values)

            return result(quad), codegen

        return repeated

    def fold_quads(self, count: int) -> Any:
        """``op(quad, words)``: the exclusive or of a quad and ``count`` others, word by word."""

        @intrinsic
        def folded(typing_context, quad, words):
            result = types.UniTuple(types.int32, QUAD)

            def codegen(context, builder, signature, args):
                values = unpack(builder, args[0], QUAD)
                for i, word in enumerate(unpack(builder, args[1], QUAD * count)):
                    values[i % QUAD] = builder.xor(values[i % QUAD], word)
                return pack_tuple(context, builder, signature.return_type, values)

            return result(quad, words), codegen

        return folded

    def multiply_adds(self, count: int, steps: int) -> Any:
        """``op(x, a, b)``: x = x a + b in float32, ``steps`` times one after the other, each rounded once.

        ``a`` and ``b`` are one register each, the same for all ``count`` of x: three registers from different places
        would be read in two cycles.
        """
        return self._chain(count, steps, "fma.rn.f32", F32, types.float32, "f")

    def multiply_adds_halves(self, count: int, steps: int) -> Any:
        """The same on registers of two halves: ``op(x, a, b)``."""
        return self._chain(count, steps, self.ptx["fma"], I32, types.int32, "r")

    @staticmethod
    def _chain(count: int, steps: int, name: str, register: Any, element: Any, letter: str) -> Any:
        @intrinsic
        def chain(typing_context, x, a, b):
            result = types.UniTuple(element, count)

            def codegen(context, builder, signature, args):
                values = unpack(builder, args[0], count)
                a, b = (builder.extract_value(y, 0) for y in args[1:])
                constraints = f"={letter}" + f",{letter}" * 3
                for _ in range(steps):
                    values = [
                        asm(builder, register, [x, a, b], f"{name} $0, $1, $2, $3;", constraints)
                        for x in values
                    ]
                return pack_tuple(context, builder, signature.return_type, values)

            return result(x, a, b), codegen

        return chain

    def mma_narrow_add(self, products: int) -> Any:
        """``op(c, a, b)``: ``products`` times c += a b on tensor cores with m16n8k8, each with operands of its own.

        ``a`` has two registers of halves a product, ``b`` one, ``c`` four of float32.
        """
        kind = self.dtype.replace("fp16", "f16")
        return self._tensor_chain(products, f"m16n8k8.row.col.f32.{kind}.{kind}.f32", 2, 1)

    def mma_tf32_add(self, products: int) -> Any:
        """The same on TF32, as float32 words whose last 13 bits are zero: four registers in ``a``, two in ``b``."""
        return self._tensor_chain(products, "m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2)

    @staticmethod
    def _tensor_chain(products: int, shape: str, left: int, right: int) -> Any:
        b = registers(4 + left, right)
        text = f"mma.sync.aligned.{shape} {registers(0, 4)}, {registers(4, left)}, "
        text += f"{b if right > 1 else '{' + b + '}'}, {registers(4 + left + right, 4)};"
        constraints = ",".join(["=f"] * 4 + ["r"] * (left + right) + ["0", "1", "2", "3"])

        @intrinsic
        def product(typing_context, c, a, b):
            result = types.UniTuple(types.float32, 4 * products)

            def codegen(context, builder, signature, args):
                sums = unpack(builder, args[0], 4 * products)
                a = unpack(builder, args[1], left * products)
                b = unpack(builder, args[2], right * products)
                out = []
                for i in range(products):
                    value = asm(
                        builder,
                        ir.LiteralStructType([F32] * 4),
                        [
                            *a[left * i : left * (i + 1)],
                            *b[right * i : right * (i + 1)],
                            *sums[4 * i : 4 * (i + 1)],
                        ],
                        text,
                        constraints,
                        convergent=True,
                    )
                    out += unpack(builder, value, 4)
                return pack_tuple(context, builder, signature.return_type, out)

            return result(c, a, b), codegen

        return product

    def group_mma_add(self, columns: int, k_tiles: int) -> Any:
        """``op(c, left, right)``: c += a b for the 64 rows of four warps, both operands in shared memory (``wgmma``).

        ``left`` and ``right`` are word offsets of core matrices (`layout.group_left_index`, `group_right_index`), of
        [64, 16 k_tiles] and [16 k_tiles, columns] halves. c is each warp's 16 rows, float32 by column tile: registers
        [tile, row group, 2]. Waits for the result.
        """
        count = columns // 2
        kind = self.dtype.replace("fp16", "f16")
        name = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"
        lines = ["{.reg .b64 l, r;", "wgmma.fence.sync.aligned;"]
        for k in range(k_tiles):
            # Inputs follow the accumulators twice: as outputs, and as the inputs tied to them.
            lines.append(_descriptor("l", 2 * count, 64 * 32 * k, CONSTANT_STRIDES))
            lines.append(_descriptor("r", 2 * count + 1, 32 * columns * k, CONSTANT_STRIDES))
            lines.append(f"{name} {registers(0, count)}, l, r, 1, 1, 1, 0, 0;")
        lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;}")

        @intrinsic
        def product(typing_context, c, left, right):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                sums = unpack(builder, args[0], count)
                places = [_place(builder, x) for x in args[1:]]
                constraints = ["=f"] * count + [str(i) for i in range(count)] + ["r", "r", "~{memory}"]
                value = asm(
                    builder,
                    ir.LiteralStructType([F32] * count),
                    [*sums, *places],
                    " ".join(lines),
                    ",".join(constraints),
                    effect=True,
                    convergent=True,
                )
                return pack_tuple(context, builder, signature.return_type, unpack(builder, value, count))

            return result(c, types.int64, types.int64), codegen

        return product
