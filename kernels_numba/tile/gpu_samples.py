"""The GPU body's operations of long fp32 transforms: samples of any stored type, and rows whose place a table says."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import F32, I16, I64, VOID, asm, global_pointer, pack_tuple, unpack
from kernels_numba.tile.gpu_float import POINT

# A half h as float32 in $0, and the float32 $2 as a half.
WIDEN = {"fp16": "cvt.f32.f16 $0, h;", "bf16": ".reg .b16 z; mov.b16 z, 0; mov.b32 $0, {z, h};"}
NARROW = {"fp16": "cvt.rn.f16.f32 h, $2;", "bf16": "cvt.rn.bf16.f32 h, $2;"}


class GpuSamples:
    """Operations of the vocabulary "float"; :class:`kernels_numba.tile.gpu_vocabularies.GpuFloats` inherits them."""

    load_floats: Any
    store_floats: Any

    def load_kind(self, constants: tuple[int, ...], kind: str, *, guarded: bool) -> Any:
        """``op(source, base, limit, at)``: samples of type ``kind`` as float32, from ``base + at + constants[i]``.

        Guarded, a sample is zero unless ``at + constants[i] < limit``.
        """
        count = len(constants)
        if kind == "fp32":
            pieces = tuple((c, (i,)) for i, c in enumerate(constants))
            return self.load_floats(pieces, count, guarded=guarded)

        @intrinsic
        def load(typing_context, source, base, limit, at):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                pointer, base, limit, at = args
                room = builder.sub(limit, at)
                address = global_pointer(
                    builder, pointer, builder.add(base, builder.sext(at, base.type)), I16
                )
                found = []
                for constant in constants:
                    get = f"ld.global.b16 h, [$1+{2 * constant}];"
                    if guarded:
                        get = f".reg .pred p; setp.gt.s32 p, $2, {constant}; mov.b16 h, 0; @p {get}"
                    text = f"{{.reg .b16 h; {get} {WIDEN[kind]}}}"
                    found.append(asm(builder, F32, [address, room], text, "=f,l,r,~{memory}", effect=True))
                return pack_tuple(context, builder, signature.return_type, found)

            return result(source, types.int64, types.int32, types.int32), codegen

        return load

    def store_kind(self, constants: tuple[int, ...], first: int, kind: str, *, guarded: bool) -> Any:
        """``op(target, base, limit, at, x)``: registers from ``first`` on, rounded to ``kind``; as `store_floats`."""
        if kind == "fp32":
            pieces = tuple((c, (first + i,)) for i, c in enumerate(constants))
            return self.store_floats(pieces, guarded=guarded)

        @intrinsic
        def store(typing_context, target, base, limit, at, x):
            signature = types.void(target, types.int64, types.int32, types.int32, x)

            def codegen(context, builder, signature, args):
                pointer, base, limit, at, x = args
                room = builder.sub(limit, at) if guarded else limit
                address = global_pointer(
                    builder, pointer, builder.add(base, builder.sext(at, base.type)), I16
                )
                for i, constant in enumerate(constants):
                    text = (
                        f"{{.reg .pred p; .reg .b16 h; setp.gt.s32 p, $1, {constant if guarded else 0}; "
                        f"{NARROW[kind]} @p st.global.b16 [$0+{2 * constant}], h;}}"
                    )
                    value = builder.extract_value(x, first + i)
                    asm(builder, VOID, [address, room, value], text, "l,r,f,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return store

    def load_rows(self, count: int) -> Any:
        """``op(source, base, places)``: complex points of global memory from ``base + places[i]`` (in points).

        Zeros where a place is negative.
        """
        text = (
            "{.reg .pred p; setp.ge.s32 p, $3, 0; mov.f32 $0, 0f00000000; mov.f32 $1, 0f00000000; "
            "@p ld.global.v2.f32 {$0, $1}, [$2];}"
        )

        @intrinsic
        def load(typing_context, source, base, places):
            result = types.UniTuple(types.float32, 2 * count)

            def codegen(context, builder, signature, args):
                pointer, base, places = args
                points = []
                for place in unpack(builder, places, count):
                    address = _point(builder, pointer, base, place)
                    value = asm(builder, POINT, [address, place], text, "=&f,=&f,l,r,~{memory}", effect=True)
                    points.append(unpack(builder, value, 2))
                out = [p[0] for p in points] + [p[1] for p in points]
                return pack_tuple(context, builder, signature.return_type, out)

            return result(source, types.int64, places), codegen

        return load

    def store_rows(self, count: int) -> Any:
        """``op(target, base, places, x)``: the reverse; nothing where a place is negative."""
        text = "{.reg .pred p; setp.ge.s32 p, $1, 0; @p st.global.v2.f32 [$0], {$2, $3};}"

        @intrinsic
        def store(typing_context, target, base, places, x):
            signature = types.void(target, types.int64, places, x)

            def codegen(context, builder, signature, args):
                pointer, base, places, x = args
                for i, place in enumerate(unpack(builder, places, count)):
                    address = _point(builder, pointer, base, place)
                    parts = [builder.extract_value(x, j) for j in (i, i + count)]
                    asm(builder, VOID, [address, place, *parts], text, "l,r,f,f,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return store


def _point(builder: Any, pointer: Any, base: Any, place: Any) -> Any:
    """The address of a complex point."""
    at = builder.add(base, builder.sext(place, I64))
    return global_pointer(builder, pointer, builder.shl(at, ir.Constant(I64, 1)), F32)
