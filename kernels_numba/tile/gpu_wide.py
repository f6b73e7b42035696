"""The GPU body for sequences of float32 whose products are of halves: what touches sequences rounds, or widens.

A kernel built with this tile reads and writes float32 where it would halves, and is the same otherwise: inputs are
rounded once on their way to shared memory or registers, results are exact as float32.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu import GpuTile
from kernels_numba.tile.gpu_emit import (
    F32,
    I32,
    I64,
    VOID,
    asm,
    global_pointer,
    pack_tuple,
    shared_address_of_half,
    unpack,
)
from kernels_numba.tile.gpu_memory import CopyPieces, Pieces


class GpuWide(GpuTile):
    """The vocabulary of a half-precision type for float32 sequences."""

    def _load(self, halves: int, outputs: list[str], address: str, inside: str) -> str:
        """PTX that loads ``halves`` float32, zeros where not ``inside``, and rounds them into ``outputs``."""
        single = self.ptx["pack"].replace("x2", "")
        step = min(halves, 4)
        names = [f"f{i}" for i in range(halves)]
        lines = [f"{{.reg .pred p; .reg .f32 f<{halves}>; .reg .b16 h; setp.ne.b32 p, {inside}, 0;"]
        lines += [f"mov.f32 {name}, 0f00000000;" for name in names]
        vector = {1: "", 2: ".v2", 4: ".v4"}[step]
        for start in range(0, halves, step):
            group = ", ".join(names[start : start + step])
            group = f"{{{group}}}" if step > 1 else group
            lines.append(f"@p ld.global{vector}.f32 {group}, [{address}+{4 * start}];")
        if halves == 1:
            lines.append(f"{single} h, f0; mov.b32 {outputs[0]}, {{h, 0}};")
        for i in range(halves // 2):
            lines.append(f"{self.ptx['pack']} {outputs[i]}, f{2 * i + 1}, f{2 * i};")
        return " ".join(lines)

    def _copy(
        self, builder: Any, to: Any, shared_constant: int, pointer: Any, inside: Any, halves: int
    ) -> None:
        """Load, round and store to shared memory."""
        words = [f"w{i}" for i in range(max(halves // 2, 1))]
        text = self._load(halves, words, "$1", "$2")
        text = text.replace(".reg .b16 h;", f".reg .b16 h; .reg .b32 w<{len(words)}>;", 1)
        if halves == 1:
            text += f" st.shared.b16 [$0+{2 * shared_constant}], h;}}"
        else:
            vector = f".v{len(words)}" if len(words) > 1 else ""
            group = ", ".join(words)
            group = f"{{{group}}}" if len(words) > 1 else group
            text += f" st.shared{vector}.b32 [$0+{2 * shared_constant}], {group};}}"
        operands = [to, pointer, builder.zext(inside, I32)]
        asm(builder, VOID, operands, text, "r,l,r,~{memory}", effect=True)

    def copy_async(self, halves: int) -> Any:
        """Copy ``halves`` elements from global to shared memory, rounded; zeros where not valid. Not asynchronous."""
        emit = self._copy

        @intrinsic
        def copy(typing_context, shared, source, offset, valid):
            signature = types.void(types.int64, source, types.int64, types.boolean)

            def codegen(context, builder, signature, args):
                to, base, index, ok = args
                index = builder.select(ok, index, ir.Constant(I64, 0))
                pointer = global_pointer(builder, base, index, F32)
                emit(builder, shared_address_of_half(builder, to), 0, pointer, ok, halves)
                return context.get_dummy_value()

            return signature, codegen

        return copy

    def copy_pieces(self, pieces: CopyPieces, halves: int, *, guarded: bool) -> Any:
        """Several such copies: ``op(source, base, limit, index, to0, to1, to2, to3)``."""
        emit = self._copy

        @intrinsic
        def copy(typing_context, source, base, limit, index, to0, to1, to2, to3):
            signature = types.void(source, *[types.int64] * 7)

            def codegen(context, builder, signature, args):
                pointer, start, limit, index, *places = args
                addresses = [shared_address_of_half(builder, to) for to in places]
                for which, shared_constant, global_constant in pieces:
                    inside, address = _place(builder, pointer, start, index, global_constant, limit, guarded)
                    emit(builder, addresses[which], shared_constant, address, inside, halves)
                return context.get_dummy_value()

            return signature, codegen

        return copy

    def gather(self, pieces: Pieces, count: int, halves: int, *, guarded: bool) -> Any:
        """``op(source, base, limit, o0, o1, o2, o3)``: load what `store_pieces` would store; zeros where masked."""
        per = max(halves // 2, 1)
        text = self._load(halves, [f"${i}" for i in range(per)], f"${per}", f"${per + 1}") + "}"
        returns = ir.LiteralStructType([I32] * per) if per > 1 else I32
        constraints = ",".join(["=&r"] * per) + ",l,r,~{memory}"

        @intrinsic
        def load(typing_context, source, base, limit, o0, o1, o2, o3):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                pointer, start, limit, *offsets = args
                words: list = [None] * count
                for which, constant, registers in pieces:
                    parts: list = []
                    for step in range(2 * len(registers) // halves):
                        inside, address = _place(
                            builder, pointer, start, offsets[which], constant + step * halves, limit, guarded
                        )
                        operands = [address, builder.zext(inside, I32)]
                        value = asm(builder, returns, operands, text, constraints, effect=True)
                        parts += unpack(builder, value, per) if per > 1 else [value]
                    if halves == 1:
                        shift = ir.Constant(I32, 16)
                        parts = [
                            builder.or_(parts[i], builder.shl(parts[i + 1], shift))
                            for i in range(0, len(parts), 2)
                        ]
                    for register, word in zip(registers, parts, strict=True):
                        words[register] = word
                return pack_tuple(context, builder, signature.return_type, words)

            return result(source, *[types.int64] * 6), codegen

        return load

    def store_pieces(self, pieces: Pieces, halves: int, *, guarded: bool, held: bool = False) -> Any:
        """``op(target, base, limit, o0, o1, o2, o3, fragment)``: store a fragment of halves as float32."""
        step = min(halves, 4)
        vector = {1: "", 2: ".v2", 4: ".v4"}[step]
        group = ", ".join(f"${1 + i}" for i in range(step))
        group = f"{{{group}}}" if step > 1 else group
        widen = self.widen_halves

        @intrinsic
        def put(typing_context, target, base, limit, o0, o1, o2, o3, fragment):
            signature = types.void(target, *[types.int64] * 6, fragment)

            def codegen(context, builder, signature, args):
                pointer, start, limit, *offsets, value = args
                text = f"st.global{vector}.f32 [$0], {group};"
                if guarded:
                    text = f"{{.reg .pred p; setp.ne.b32 p, ${step + 1}, 0; @p {text}}}"
                for which, constant, registers in pieces:
                    floats = [x for r in registers for x in widen(builder, builder.extract_value(value, r))]
                    for first in range(0, len(floats), step):
                        inside, address = _place(
                            builder, pointer, start, offsets[which], constant + first, limit, guarded
                        )
                        operands = [address, *floats[first : first + step]]
                        constraints = "l" + ",f" * step
                        if guarded:
                            operands.append(builder.zext(inside, I32))
                            constraints += ",r"
                        asm(builder, VOID, operands, text, constraints + ",~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return put


def _place(
    builder: Any, pointer: Any, start: Any, offset: Any, constant: int, limit: Any, guarded: bool
) -> tuple[Any, Any]:
    """Whether an element is below the limit, and its address; that of the first element where it is not."""
    at = builder.add(offset, ir.Constant(I64, constant))
    inside = ir.Constant(ir.IntType(1), 1)
    where = builder.add(start, at)
    if guarded:
        inside = builder.icmp_signed("<", at, limit)
        where = builder.select(inside, where, ir.Constant(I64, 0))
    return inside, global_pointer(builder, pointer, where, F32)
