"""The GPU body's moves whose pattern differs between lanes."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import I32, asm, pack_tuple

LOW, HIGH = 0x5410, 0x7632  # selectors of prmt: the low halves of two registers, and the high ones


class GpuSwaps:
    """Moves of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    def pair_halves_swapped(self, spec: tuple[tuple[int, int, int], ...]) -> Any:
        """As ``pair_halves``: ``op(x, swap)`` takes the other half in lanes whose ``swap`` is 1, not 0."""

        @intrinsic
        def paired(typing_context, fragment, swap):
            result = types.UniTuple(types.int32, len(spec))

            def codegen(context, builder, signature, args):
                step = builder.mul(args[1], ir.Constant(I32, HIGH - LOW))
                selectors = (
                    builder.add(ir.Constant(I32, LOW), step),
                    builder.sub(ir.Constant(I32, HIGH), step),
                )
                words = []
                for i, j, half in spec:
                    low, high = builder.extract_value(args[0], i), builder.extract_value(args[0], j)
                    words.append(
                        asm(
                            builder, I32, [low, high, selectors[half]], "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r"
                        )
                    )
                return pack_tuple(context, builder, signature.return_type, words)

            return result(fragment, types.int32), codegen

        return paired
