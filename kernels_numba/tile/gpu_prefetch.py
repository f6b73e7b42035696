"""The GPU body's hints to the memory system."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import I16, I32, VOID, asm, global_pointer


class GpuPrefetch:
    """Hints of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    @cached_property
    def prefetch(self) -> Any:
        """``op(source, offset, valid)``: have the line of a half element in the L2 cache, where ``valid``."""

        @intrinsic
        def hint(typing_context, source, offset, valid):
            signature = types.void(source, types.int64, types.boolean)

            def codegen(context, builder, signature, args):
                pointer = global_pointer(builder, args[0], args[1], I16)
                asm(
                    builder,
                    VOID,
                    [pointer, builder.zext(args[2], I32)],
                    "{.reg .pred p; setp.ne.b32 p, $1, 0; @p prefetch.global.L2 [$0];}",
                    "l,r",
                    effect=True,
                )
                return context.get_dummy_value()

            return signature, codegen

        return hint
