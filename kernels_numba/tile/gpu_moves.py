"""The GPU body's operations that move registers: selections, regrouped halves, transposes."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import I32, asm, pack_tuple, unpack


class GpuMoves:
    """Moves of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    def select(self, picks: tuple[int, ...]) -> Any:
        """Registers of a fragment in another order (costs nothing)."""

        @intrinsic
        def chosen(typing_context, fragment):
            result = types.UniTuple(fragment.dtype, len(picks))

            def codegen(context, builder, signature, args):
                values = [builder.extract_value(args[0], i) for i in picks]
                return pack_tuple(context, builder, signature.return_type, values)

            return result(fragment), codegen

        return chosen

    @cached_property
    def join(self) -> Any:
        """Two fragments as one, for instance the real and the imaginary parts."""

        @intrinsic
        def joined(typing_context, a, b):
            result = types.UniTuple(a.dtype, a.count + b.count)

            def codegen(context, builder, signature, args):
                values = unpack(builder, args[0], a.count) + unpack(builder, args[1], b.count)
                return pack_tuple(context, builder, signature.return_type, values)

            return result(a, b), codegen

        return joined

    def pair_halves(self, spec: tuple[tuple[int, int, int], ...]) -> Any:
        """``(i, j, h)``: a register of half h of register i (low) and half h of register j (high)."""

        @intrinsic
        def paired(typing_context, fragment):
            result = types.UniTuple(types.int32, len(spec))

            def codegen(context, builder, signature, args):
                words = []
                for i, j, half in spec:
                    low, high = builder.extract_value(args[0], i), builder.extract_value(args[0], j)
                    selector = ir.Constant(I32, 0x7632 if half else 0x5410)
                    words.append(
                        asm(builder, I32, [low, high, selector], "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r")
                    )
                return pack_tuple(context, builder, signature.return_type, words)

            return result(fragment), codegen

        return paired

    def transpose(self, picks: tuple[int, ...]) -> Any:
        """Transpose 8 x 8 blocks of halves, one per register, in the order ``picks`` (``movmatrix``)."""

        @intrinsic
        def transposed(typing_context, fragment):
            result = types.UniTuple(types.int32, len(picks))

            def codegen(context, builder, signature, args):
                text = "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;"
                words = [
                    asm(builder, I32, [builder.extract_value(args[0], i)], text, "=r,r", convergent=True)
                    for i in picks
                ]
                return pack_tuple(context, builder, signature.return_type, words)

            return result(fragment), codegen

        return transposed
