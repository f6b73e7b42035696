"""The GPU body's registers of zeros."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import I32, pack_tuple


class GpuZeros:
    """Moves of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    def select_or_zero(self, picks: tuple[int, ...]) -> Any:
        """As ``select``; -1 is a register of two zero halves."""

        @intrinsic
        def chosen(typing_context, fragment):
            result = types.UniTuple(types.int32, len(picks))

            def codegen(context, builder, signature, args):
                zero = ir.Constant(I32, 0)
                values = [zero if i < 0 else builder.extract_value(args[0], i) for i in picks]
                return pack_tuple(context, builder, signature.return_type, values)

            return result(fragment), codegen

        return chosen
