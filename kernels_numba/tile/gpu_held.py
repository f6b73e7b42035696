"""The GPU body's indices that are worked out once and then held."""

from __future__ import annotations

from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import I32, I64, asm


@intrinsic
def held(typing_context, value):
    """An index in a register of its own from here on: the compiler does not work it out anew at each use."""
    wide = isinstance(value, types.Integer) and value.bitwidth == 64
    kind = types.int64 if wide else types.int32

    def codegen(context, builder, signature, args):
        text, letter, element = ("mov.b64", "l", I64) if wide else ("mov.b32", "r", I32)
        return asm(builder, element, [args[0]], f"{text} $0, $1;", f"={letter},{letter}", effect=True)

    return kind(kind), codegen


class GpuHeld:
    """Indices of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    held = staticmethod(held)
