"""The GPU body's operations on rows of keys in global memory, and on what blocks leave for each other."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import (
    F32,
    I16,
    I32,
    I64,
    VOID,
    asm,
    global_pointer,
    load_shared_words,
    pack_tuple,
    registers,
    shared_address,
    shared_address_of_half,
    statement,
    unpack,
)
from kernels_numba.tile.gpu_memory import Pieces
from kernels_numba.tile.gpu_rows import operation


def lane_of(builder: Any) -> Any:
    """The lane index, 32 bits."""
    thread = asm(builder, I32, [], "mov.u32 $0, %tid.x;", "=r")
    return builder.and_(thread, ir.Constant(I32, 31))


class GpuRecords:
    """Memory operations of attention; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    # ---- rows of keys ------------------------------------------------------------------------------------------
    def consecutive_rows(self, count: int, step: int) -> Any:
        """``op(first)``: a fragment of row numbers, ``step`` apart."""

        def body(builder: Any, first: Any) -> list:
            start = builder.trunc(first, I32)
            return [builder.add(start, ir.Constant(I32, i * step)) for i in range(count)]

        return operation(types.UniTuple(types.int32, count), (types.int64,), body)

    def paged_rows(self, count: int, step: int, page: int) -> Any:
        """``op(first, end, table, at, spacing, pages)``: row numbers in a cache of pages.

        Key j, of ``count`` that are ``step`` apart, lies in the page that the table (words) holds at
        ``at + (j / page) spacing``; keys from ``end`` on are not looked up and have row 0. A page number that is not
        below ``pages`` is taken for the last page: nothing outside the cache is read.
        """

        @intrinsic
        def rows(typing_context, first, end, table, at, spacing, pages):
            result = types.UniTuple(types.int32, count)
            signature = result(types.int64, types.int64, table, *[types.int64] * 3)

            def codegen(context, builder, signature, args):
                first, end, table, at, spacing, pages = args
                last = builder.sub(builder.trunc(pages, I32), ir.Constant(I32, 1))
                size = ir.Constant(I32, page)
                found = []
                for i in range(count):
                    key = builder.add(builder.trunc(first, I32), ir.Constant(I32, i * step))
                    inside = builder.icmp_signed("<", key, builder.trunc(end, I32))
                    number = builder.udiv(key, size)
                    place = builder.sub(key, builder.mul(number, size))
                    where = builder.add(at, builder.mul(builder.zext(number, I64), spacing))
                    where = builder.select(inside, where, ir.Constant(I64, 0))
                    text = (
                        "{.reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p ld.global.nc.b32 $0, [$1];}"
                    )
                    operands = [global_pointer(builder, table, where, I32), builder.zext(inside, I32)]
                    entry = asm(builder, I32, operands, text, "=&r,l,r,~{memory}", effect=True)
                    entry = builder.select(builder.icmp_unsigned("<", entry, last), entry, last)
                    row = builder.add(builder.mul(entry, size), place)
                    found.append(builder.select(inside, row, ir.Constant(I32, 0)))
                return pack_tuple(context, builder, signature.return_type, found)

            return signature, codegen

        return rows

    def copy_rows(self, count: int, step: int, to_step: int, *, consecutive: bool = False) -> Any:
        """``op(to0, to1, to2, to3, source, rows, stride, at, first, end)``: asynchronous copies of 8 elements.

        Copy i goes from element ``rows[i] stride + at`` to half element ``to0`` .. ``to3`` (i modulo 4) plus
        ``i to_step``; zeros where the key ``first + i step`` is not below ``end``. ``consecutive``: the rows are
        `consecutive_rows`, so one product finds them all.
        """
        text = "cp.async.cg.shared.global [$0+{}], [$1], 16, $2;"

        @intrinsic
        def copy(typing_context, to0, to1, to2, to3, source, rows, stride, at, first, end):
            signature = types.void(*[types.int64] * 4, source, rows, *[types.int64] * 4)

            def codegen(context, builder, signature, args):
                *places, source, rows, stride, at, first, end = args
                places = [shared_address_of_half(builder, to) for to in places]
                key, limit = builder.trunc(first, I32), builder.trunc(end, I32)
                onward = builder.mul(stride, ir.Constant(I64, step))
                legal = global_pointer(builder, source, ir.Constant(I64, 0), I16)
                here = None
                for i in range(count):
                    inside = builder.icmp_signed("<", builder.add(key, ir.Constant(I32, i * step)), limit)
                    if consecutive and here is not None:
                        here = builder.gep(here, [onward])
                    else:
                        row = builder.sext(builder.extract_value(rows, i), I64)
                        here = global_pointer(builder, source, builder.add(builder.mul(row, stride), at), I16)
                    # A lane with nothing to copy must still name a legal address.
                    asm(
                        builder,
                        VOID,
                        [
                            places[i % 4],
                            builder.select(inside, here, legal),
                            builder.select(inside, ir.Constant(I32, 16), ir.Constant(I32, 0)),
                        ],
                        text.format(2 * i * to_step),
                        "r,l,r,~{memory}",
                        effect=True,
                    )
                return context.get_dummy_value()

            return signature, codegen

        return copy

    def load_chunks(self, count: int, step: int) -> Any:
        """``op(source, at, place, limit)``: ``count`` times 8 halves, ``step`` elements apart.

        Chunk c comes from element ``at + c step``; zeros where ``place + c step`` is not below ``limit``.
        """

        @intrinsic
        def load(typing_context, source, at, place, limit):
            result = types.UniTuple(types.int32, 4 * count)

            def codegen(context, builder, signature, args):
                source, at, place, limit = args
                words: list = []
                four = ir.LiteralStructType([I32] * 4)
                zeros = " ".join(f"mov.b32 ${i}, 0;" for i in range(4))
                text = f"{{.reg .pred p; setp.ne.b32 p, $5, 0; {zeros} @p ld.global.v4.b32 {registers(0, 4)}, [$4];}}"
                for c in range(count):
                    offset = ir.Constant(I64, c * step)
                    inside = builder.icmp_signed("<", builder.add(place, offset), limit)
                    where = builder.select(inside, builder.add(at, offset), ir.Constant(I64, 0))
                    operands = [global_pointer(builder, source, where, I16), builder.zext(inside, I32)]
                    value = asm(builder, four, operands, text, "=&r,=&r,=&r,=&r,l,r,~{memory}", effect=True)
                    words += unpack(builder, value, 4)
                return pack_tuple(context, builder, signature.return_type, words)

            return result(source, *[types.int64] * 3), codegen

        return load

    @cached_property
    def load_word(self) -> Any:
        """``op(source, at)``: one word for all lanes, as a signed integer."""

        @intrinsic
        def load(typing_context, source, at):
            def codegen(context, builder, signature, args):
                return builder.sext(builder.load(global_pointer(builder, args[0], args[1], I32)), I64)

            return types.int64(source, types.int64), codegen

        return load

    # ---- partial results -----------------------------------------------------------------------------------------
    def put_rows(self, rows: int) -> Any:
        """``op(at, x)``: a row fragment to shared memory, row r at word ``at + r``."""

        def body(builder: Any, at: Any, x: Any) -> None:
            lane = lane_of(builder)
            value = builder.extract_value(x, 0)
            for row in range(1, rows):
                here = builder.icmp_signed("==", lane, ir.Constant(I32, row))
                value = builder.select(here, builder.extract_value(x, row), value)
            place = builder.add(shared_address(builder, at), builder.shl(lane, ir.Constant(I32, 2)))
            live = builder.zext(builder.icmp_signed("<", lane, ir.Constant(I32, rows)), I32)
            text = "{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.shared.f32 [$0], $1;}"
            asm(builder, VOID, [place, value, live], text, "r,f,r,~{memory}", effect=True)

        return operation(types.void, (types.int64, None), body)

    @cached_property
    def get_float(self) -> Any:
        """``op(at)``: one float32 of shared memory for all lanes."""

        def body(builder: Any, at: Any) -> Any:
            (word,) = load_shared_words(builder, shared_address(builder, at), 0, 1)
            return builder.bitcast(word, F32)

        return operation(types.float32, (types.int64,), body)

    def store_word_pieces(self, pieces: Pieces) -> Any:
        """``op(target, base, o0, o1, words)``: write piece (o, c, registers) of each lane from ``base + o + c`` on."""

        @intrinsic
        def put(typing_context, target, base, o0, o1, words):
            signature = types.void(target, *[types.int64] * 3, words)

            def codegen(context, builder, signature, args):
                target, base, *offsets, fragment = args
                for which, constant, chosen in pieces:
                    at = builder.add(builder.add(base, offsets[which]), ir.Constant(I64, constant))
                    values = [builder.extract_value(fragment, r) for r in chosen]
                    vector = f".v{len(values)}" if len(values) > 1 else ""
                    text = f"st.global{vector}.b32 [$0], {registers(1, len(values))};"
                    constraints = "l" + ",r" * len(values) + ",~{memory}"
                    asm(
                        builder,
                        VOID,
                        [global_pointer(builder, target, at, I32), *values],
                        text,
                        constraints,
                        effect=True,
                    )
                return context.get_dummy_value()

            return signature, codegen

        return put

    def load_fresh_pieces(self, pieces: Pieces, count: int, *, parts: int = 1, step: int = 0) -> Any:
        """``op(source, base, o0, o1, live)``: what `store_word_pieces` wrote in any block: past the SM's own cache.

        ``parts`` fragments of ``count`` registers, one after the other, that lie ``step`` words apart; zeros for those
        that are not below ``live``, which are not read.
        """

        @intrinsic
        def load(typing_context, source, base, o0, o1, live):
            result = types.UniTuple(types.int32, parts * count)

            def codegen(context, builder, signature, args):
                source, base, *offsets, live = args
                words: list = [None] * (parts * count)
                for part in range(parts):
                    here = builder.icmp_signed("<", ir.Constant(I64, part), live)
                    for which, constant, chosen in pieces:
                        width = len(chosen)
                        constant = ir.Constant(I64, constant + part * step)
                        at = builder.add(builder.add(base, offsets[which]), constant)
                        vector = f".v{width}" if width > 1 else ""
                        kind = ir.LiteralStructType([I32] * width) if width > 1 else I32
                        zeros = " ".join(f"mov.b32 ${i}, 0;" for i in range(width))
                        text = (
                            f"{{.reg .pred p; setp.ne.b32 p, ${width + 1}, 0; {zeros} "
                            f"@p ld.global.cg{vector}.b32 {registers(0, width)}, [${width}];}}"
                        )
                        constraints = ",".join(["=&r"] * width) + ",l,r,~{memory}"
                        operands = [global_pointer(builder, source, at, I32), builder.zext(here, I32)]
                        value = asm(builder, kind, operands, text, constraints, effect=True)
                        found = unpack(builder, value, width) if width > 1 else [value]
                        for register, word in zip(chosen, found, strict=True):
                            words[part * count + register] = word
                return pack_tuple(context, builder, signature.return_type, words)

            return result(source, *[types.int64] * 4), codegen

        return load

    @cached_property
    def put_float(self) -> Any:
        """``op(target, at, value)``: lane 0 writes one float32 to a buffer of words."""

        @intrinsic
        def put(typing_context, target, at, value):
            def codegen(context, builder, signature, args):
                pointer = global_pointer(builder, args[0], args[1], I32)
                first = builder.zext(builder.icmp_signed("==", lane_of(builder), ir.Constant(I32, 0)), I32)
                text = "{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.f32 [$0], $1;}"
                asm(builder, VOID, [pointer, args[2], first], text, "l,f,r,~{memory}", effect=True)
                return context.get_dummy_value()

            return types.void(target, types.int64, types.float32), codegen

        return put

    @cached_property
    def fence(self) -> Any:
        """What this thread wrote to global memory becomes visible to the GPU before what it does next."""
        return statement("fence.acq_rel.gpu;")

    @cached_property
    def arrive(self) -> Any:
        """``op(counters, at, total)``: how many came before this warp, 0..total - 1; the last one sets it back to 0."""

        @intrinsic
        def count(typing_context, counters, at, total):
            def codegen(context, builder, signature, args):
                counters, at, total = args
                pointer = global_pointer(builder, counters, at, I32)
                first = builder.zext(builder.icmp_signed("==", lane_of(builder), ir.Constant(I32, 0)), I32)
                limit = builder.sub(builder.trunc(total, I32), ir.Constant(I32, 1))
                text = (
                    "{.reg .pred p; setp.ne.b32 p, $3, 0; mov.b32 $0, 0; "
                    "@p atom.global.inc.u32 $0, [$1], $2; shfl.sync.idx.b32 $0, $0, 0, 31, 0xffffffff;}"
                )
                operands = [pointer, limit, first]
                before = asm(
                    builder, I32, operands, text, "=&r,l,r,r,~{memory}", effect=True, convergent=True
                )
                return builder.zext(before, I64)

            return types.int64(counters, types.int64, types.int64), codegen

        return count
