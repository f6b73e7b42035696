"""What the GPU body's operations are made of: inline PTX, addresses, tuples of registers.

Nothing here is an operation of the tile layer; `gpu.py` and `gpu_memory.py` build those from it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

I16, I32, I64, F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
VOID = ir.VoidType()
GLOBAL_SPACE, SHARED_SPACE = 1, 3
SHARED_SYMBOL = "monarch_shared"


def asm(
    builder: Any,
    result: Any,
    args: list,
    text: str,
    constraints: str,
    *,
    effect: bool = False,
    convergent: bool = False,
) -> Any:
    """Inline PTX; ``effect`` forbids to drop or reorder it, ``convergent`` to split the warp around it."""
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(
        ir.InlineAsm(kind, text, constraints, side_effect=effect),
        args,
        attrs=("convergent",) if convergent else (),
    )


def unpack(builder: Any, value: Any, count: int) -> list:
    """The first ``count`` members of a tuple."""
    return [builder.extract_value(value, i) for i in range(count)]


def pack_tuple(context: Any, builder: Any, kind: Any, values: list) -> Any:
    """A tuple of Numba type ``kind``."""
    return context.make_tuple(builder, kind, values)


def shared_pointer(builder: Any, word_offset: Any, pointee: Any) -> Any:
    """Pointer into the block's dynamic shared memory, in its own address space (LDS/STS, never generic)."""
    module = builder.module
    symbol = module.globals.get(SHARED_SYMBOL)
    if symbol is None:
        symbol = cgutils.add_global_variable(module, ir.ArrayType(I32, 0), SHARED_SYMBOL, SHARED_SPACE)
        symbol.linkage = "external"
        symbol.align = 16
    base = builder.bitcast(symbol, ir.PointerType(I32, SHARED_SPACE))
    pointer = builder.gep(base, [builder.trunc(word_offset, I32)])
    return builder.bitcast(pointer, ir.PointerType(pointee, SHARED_SPACE))


def shared_address(builder: Any, word_offset: Any) -> Any:
    """The 32-bit address that shared-memory PTX instructions take."""
    return builder.ptrtoint(shared_pointer(builder, word_offset, I32), I32)


def global_pointer(builder: Any, pointer: Any, offset: Any, pointee: Any) -> Any:
    """``pointer + offset`` (in elements of the pointer's type), known to the compiler as global memory."""
    element = pointer.type.pointee
    known = builder.addrspacecast(pointer, ir.PointerType(element, GLOBAL_SPACE))
    return builder.bitcast(builder.gep(known, [offset]), ir.PointerType(pointee, GLOBAL_SPACE))


def special_register(name: str) -> Any:
    """An operation that reads a 32-bit special register."""

    @intrinsic
    def read(typing_context):
        def codegen(context, builder, signature, args):
            text = f"mov.u32 $0, %{name};"
            return builder.zext(asm(builder, I32, [], text, "=r"), I64)

        return types.int64(), codegen

    return read


def statement(text: str, *, convergent: bool = False) -> Any:
    """An operation without arguments or result: one PTX statement that orders memory accesses."""

    @intrinsic
    def run(typing_context):
        def codegen(context, builder, signature, args):
            asm(builder, VOID, [], text, "~{memory}", effect=True, convergent=convergent)
            return context.get_dummy_value()

        return types.void(), codegen

    return run


def load_chunk(builder: Any, locate: Any, place: tuple, width: int) -> list:
    """One aligned load of ``width`` words."""
    chunk = ir.VectorType(I32, width) if width > 1 else I32
    value = builder.load(locate(builder, *place, chunk))
    value.align = 4 * width
    if width == 1:
        return [value]
    return [builder.extract_element(value, ir.Constant(I32, w)) for w in range(width)]
