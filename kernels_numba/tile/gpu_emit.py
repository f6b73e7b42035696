"""What the GPU body's operations are made of: inline PTX, addresses, tuples of registers.

Nothing here is an operation of the tile layer; `gpu.py` and `gpu_memory.py` build those from it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

I16, I32, I64, F32, F64 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()
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


def shared_address(builder: Any, word_offset: Any) -> Any:
    """The 32-bit address, in the block's dynamic shared memory, of a word offset (a 64-bit value)."""
    return builder.add(
        _shared_base(builder), builder.shl(builder.trunc(word_offset, I32), ir.Constant(I32, 2))
    )


def shared_address_of_half(builder: Any, half_offset: Any) -> Any:
    """As :func:`shared_address`, from an offset in half elements."""
    return builder.add(
        _shared_base(builder), builder.shl(builder.trunc(half_offset, I32), ir.Constant(I32, 1))
    )


def _shared_base(builder: Any) -> Any:
    module = builder.module
    symbol = module.globals.get(SHARED_SYMBOL)
    if symbol is None:
        symbol = cgutils.add_global_variable(module, ir.ArrayType(I32, 0), SHARED_SYMBOL, SHARED_SPACE)
        symbol.linkage = "external"
        symbol.align = 16
    return builder.ptrtoint(symbol, I32)


def registers(first: int, count: int) -> str:
    """``{$first, ...}`` for PTX; without braces for one register."""
    names = ", ".join(f"${first + i}" for i in range(count))
    return "{" + names + "}" if count > 1 else names


def load_shared_words(builder: Any, address: Any, byte_offset: int, width: int) -> list:
    """``width`` words at a 32-bit address plus a constant, which the instruction itself adds."""
    vector = f".v{width}" if width > 1 else ""
    kind = ir.LiteralStructType([I32] * width) if width > 1 else I32
    text = f"ld.shared{vector}.b32 {registers(0, width)}, [${width}+{byte_offset}];"
    value = asm(builder, kind, [address], text, ",".join(["=r"] * width) + ",r,~{memory}", effect=True)
    return unpack(builder, value, width) if width > 1 else [value]


def load_global_words(builder: Any, pointer: Any, offset: Any, constant: int, width: int) -> list:
    """``width`` words at an offset plus a constant, in words."""
    kind = ir.VectorType(I32, width) if width > 1 else I32
    start = global_pointer(builder, pointer, builder.add(offset, ir.Constant(I64, constant)), kind)
    value = builder.load(start)
    value.align = 4 * width
    if width == 1:
        return [value]
    return [builder.extract_element(value, ir.Constant(I32, w)) for w in range(width)]


def store_shared_words(builder: Any, address: Any, byte_offset: int, words: list) -> None:
    """Words at a 32-bit address plus a constant."""
    vector = f".v{len(words)}" if len(words) > 1 else ""
    text = f"st.shared{vector}.b32 [$0+{byte_offset}], {registers(1, len(words))};"
    asm(builder, VOID, [address, *words], text, "r" + ",r" * len(words) + ",~{memory}", effect=True)


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


def butterfly(
    builder: Any, p: list, q: list, pairs: list[tuple[int, int, bool]], *, inverse: bool, special: Any
) -> tuple[list, list]:
    """Outputs and mirrors from P = W Re z and Q = W Im z, W = [cosines; sines]."""
    re, im = [None] * len(p), [None] * len(p)
    for i, j, alone in pairs:
        a, e, d, b = p[i], p[j], q[i], q[j]
        plus = (builder.fadd(a, b), builder.fsub(d, e))
        minus = (builder.fsub(a, b), builder.fadd(d, e))
        if inverse:
            plus, minus = minus, plus
        if alone:
            plus = (builder.select(special, a, plus[0]), builder.select(special, d, plus[1]))
            minus = (builder.select(special, e, minus[0]), builder.select(special, b, minus[1]))
        re[i], im[i] = plus
        re[j], im[j] = minus
    return re, im
