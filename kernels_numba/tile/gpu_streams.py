"""The GPU body's streams between memory and registers: wide loads, results, order between blocks and launches."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_copies import CHUNK, GpuCopies
from kernels_numba.tile.gpu_emit import (
    F32,
    I16,
    I32,
    I64,
    VOID,
    asm,
    global_pointer,
    pack_tuple,
    shared_address,
    statement,
    unpack,
)

# (which offset, constant in chunks, four registers): see load_chunks.
ChunkPieces = tuple[tuple[int, int, tuple[int, ...]], ...]
FOUR = ir.LiteralStructType([I32] * 4)
STREAM = "ld.global.nc.L1::no_allocate.v4.b32"
KEEP = "ld.global.v4.b32"


class GpuStreams(GpuCopies):
    """Streaming operations of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    ptx: dict[str, str]

    # ---- loads ---------------------------------------------------------------------------------------------
    def load_chunks(self, pieces: ChunkPieces, *, guarded: bool, stream: bool) -> Any:
        """Loads of 16 bytes: ``op(source, at, limit, offsets)``.

        Piece (which, constant, registers) is the chunk of eight halves at element ``o + 8 (at + constant)``, ``o`` the
        offset (of a tuple from `places`) that ``which`` names. Guarded, chunks whose ``at + constant`` is not below
        ``limit`` are zeros.
        ``stream``: data that is read once and never written while the kernel runs; it is kept out of L1.
        """
        count = 4 * len(pieces)
        text = (STREAM if stream else KEEP) + " {$0, $1, $2, $3}, "
        zero = " ".join(f"mov.b32 ${i}, 0;" for i in range(4))

        @intrinsic
        def load(typing_context, source, at, limit, offsets):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                pointer, at, limit, starts = args
                words: list = [None] * count
                eight = ir.Constant(I64, CHUNK)
                start = builder.mul(at, eight)
                used = sorted({which for which, _, _ in pieces})
                places = {q: builder.add(builder.extract_value(starts, q), start) for q in used}
                rows = {q: global_pointer(builder, pointer, place, I16) for q, place in places.items()}
                for which, constant, registers in pieces:
                    if guarded:
                        inside = builder.icmp_signed("<", builder.add(at, ir.Constant(I64, constant)), limit)
                        value = asm(
                            builder,
                            FOUR,
                            [rows[which], builder.zext(inside, I32)],
                            f"{{.reg .pred p; setp.ne.b32 p, $5, 0; {zero} @p {text} [$4+{16 * constant}];}}",
                            "=&r,=&r,=&r,=&r,l,r",
                            effect=True,
                        )
                    else:
                        value = asm(
                            builder,
                            FOUR,
                            [rows[which]],
                            f"{text} [$4+{16 * constant}];",
                            "=r,=r,=r,=r,l",
                            effect=True,
                        )
                    for register, word in zip(registers, unpack(builder, value, 4), strict=True):
                        words[register] = word
                return pack_tuple(context, builder, signature.return_type, words)

            return result(source, types.int64, types.int64, offsets), codegen

        return load

    def places(self, count: int) -> Any:
        """``op(first, step, last, stride, start)``: the offsets ``start + min(first + i step, last) stride``.

        Of rows beyond the last the last is taken: what is loaded there is a copy of something legal.
        """

        @intrinsic
        def made(typing_context, first, step, last, stride, start):
            def codegen(context, builder, signature, args):
                row, step, last, stride, start = args
                found = []
                for _ in range(count):
                    inside = builder.select(builder.icmp_signed("<", row, last), row, last)
                    found.append(builder.add(start, builder.mul(inside, stride)))
                    row = builder.add(row, step)
                return pack_tuple(context, builder, signature.return_type, found)

            return types.UniTuple(types.int64, count)(*[types.int64] * 5), codegen

        return made

    def load_pairs(self, order: tuple[tuple[int, int, int], ...]) -> Any:
        """``op(source, near, near_limit, far, far_limit, offsets)``: pairs of halves from any address.

        Register (which, side, constant) holds the halves ``i`` and ``i + 1`` after the offset that ``which`` names,
        ``i`` the constant beyond near (side 0) or far (1); those below 0 or not below that side's limit are zeros.
        """

        @intrinsic
        def load(typing_context, source, near, near_limit, far, far_limit, offsets):
            result = types.UniTuple(types.int32, len(order))

            def codegen(context, builder, signature, args):
                pointer, near, near_limit, far, far_limit, starts = args
                words = []
                for which, side, constant in order:
                    at, limit = ((near, near_limit), (far, far_limit))[side]
                    at = builder.add(at, ir.Constant(I64, constant))
                    oks = [
                        builder.zext(  # below 0 is beyond all limits, unsigned
                            builder.icmp_unsigned("<", builder.add(at, ir.Constant(I64, e)), limit), I32
                        )
                        for e in range(2)
                    ]
                    place = builder.add(builder.extract_value(starts, which), at)
                    words.append(
                        asm(
                            builder,
                            I32,
                            [global_pointer(builder, pointer, place, I16), *oks],
                            "{.reg .pred p, q; .reg .b16 a, b; setp.ne.b32 p, $2, 0; setp.ne.b32 q, $3, 0; "
                            "mov.b16 a, 0; mov.b16 b, 0; @p ld.global.b16 a, [$1]; @q ld.global.b16 b, [$1+2]; "
                            "mov.b32 $0, {a, b};}",
                            "=r,l,r,r",
                            effect=True,
                        )
                    )
                return pack_tuple(context, builder, signature.return_type, words)

            return result(source, *[types.int64] * 4, offsets), codegen

        return load

    def load_matrices(self, constants: tuple[int, ...]) -> Any:
        """``op(word)``: four 8 x 8 blocks of halves per constant, from shared memory (``ldmatrix``).

        Lane 8 i + r names the first word of row r of block i, to which the constant (in words) is added; register i
        then holds block i as an operand holds it: lane 4 g + t has columns 2 t and 2 t + 1 of row g.
        """
        count = 4 * len(constants)

        @intrinsic
        def load(typing_context, word):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                address = shared_address(builder, args[0])
                words = []
                for constant in constants:
                    value = asm(
                        builder,
                        FOUR,
                        [address],
                        f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{$0, $1, $2, $3}}, [$4+{4 * constant}];",
                        "=r,=r,=r,=r,r,~{memory}",
                        effect=True,
                        convergent=True,
                    )
                    words += unpack(builder, value, 4)
                return pack_tuple(context, builder, signature.return_type, words)

            return result(types.int64), codegen

        return load

    # ---- results -------------------------------------------------------------------------------------------
    @cached_property
    def store_rounded(self) -> Any:
        """``op(target, at, valid, value)``: one float32 a lane, rounded to half, to global memory."""
        text = self.ptx["pack"].replace("x2", "")

        @intrinsic
        def put(typing_context, target, at, valid, value):
            signature = types.void(target, types.int64, types.boolean, value)

            def codegen(context, builder, signature, args):
                pointer, at, ok, value = args
                asm(
                    builder,
                    VOID,
                    [
                        global_pointer(builder, pointer, at, I16),
                        builder.extract_value(value, 0),
                        builder.zext(ok, I32),
                    ],
                    f"{{.reg .pred p; .reg .b16 v; setp.ne.b32 p, $2, 0; {text} v, $1; "
                    "@p st.global.b16 [$0], v;}",
                    "l,f,r,~{memory}",
                    effect=True,
                )
                return context.get_dummy_value()

            return signature, codegen

        return put

    def store_tile(self, row_groups: int, column_tiles: int, halves: int) -> Any:
        """``op(target, at, row_stride, rows, columns, c)``: accumulators by row group, rounded, to a row-major matrix.

        ``at`` is the place of the lane's own first element; ``rows`` and ``columns`` are how many there are from
        that element on: what lies beyond is not written. ``halves`` (2 or 1) elements go in one instruction.
        """
        count = 2 * row_groups * column_tiles
        pack = self.ptx["pack"]

        @intrinsic
        def put(typing_context, target, at, row_stride, rows, columns, c):
            signature = types.void(target, *[types.int64] * 4, c)

            def codegen(context, builder, signature, args):
                pointer, at, stride, rows, columns, value = args
                values = unpack(builder, value, count)
                step = builder.mul(stride, ir.Constant(I64, 8))
                for y in range(row_groups):
                    inside = builder.icmp_signed(">", rows, ir.Constant(I64, 8 * y))
                    address = global_pointer(builder, pointer, at, I16)
                    for n in range(column_tiles):
                        low, high = values[2 * (y * column_tiles + n) :][:2]
                        word = asm(builder, I32, [high, low], f"{pack} $0, $1, $2;", "=r,f,f")
                        for e in range(0, 2, halves):
                            here = builder.icmp_signed(">", columns, ir.Constant(I64, 8 * n + e))
                            ok = builder.zext(builder.and_(inside, here), I32)
                            place = f"[$0+{16 * n + 2 * e}]"
                            if halves == 2:
                                store = f"@p st.global.b32 {place}, $1;}}"
                            else:
                                part = "{v, o}" if e == 0 else "{o, v}"
                                store = f".reg .b16 v, o; mov.b32 {part}, $1; @p st.global.b16 {place}, v;}}"
                            text = "{.reg .pred p; setp.ne.b32 p, $2, 0; " + store
                            asm(builder, VOID, [address, word, ok], text, "l,r,r,~{memory}", effect=True)
                    at = builder.add(at, step)
                return context.get_dummy_value()

            return signature, codegen

        return put

    # ---- sums over blocks, order between launches ----------------------------------------------------------
    @cached_property
    def store_float(self) -> Any:
        """``op(target, at, valid, value)``: one float32 a lane to global memory."""

        @intrinsic
        def put(typing_context, target, at, valid, value):
            signature = types.void(target, types.int64, types.boolean, value)

            def codegen(context, builder, signature, args):
                pointer, at, ok, value = args
                asm(
                    builder,
                    VOID,
                    [
                        global_pointer(builder, pointer, at, F32),
                        builder.extract_value(value, 0),
                        builder.zext(ok, I32),
                    ],
                    "{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.f32 [$0], $1;}",
                    "l,f,r,~{memory}",
                    effect=True,
                )
                return context.get_dummy_value()

            return signature, codegen

        return put

    @cached_property
    def load_fresh(self) -> Any:
        """``op(source, at)``: one float32 a lane that another block may have written, so not from L1."""

        @intrinsic
        def load(typing_context, source, at):
            result = types.UniTuple(types.float32, 1)

            def codegen(context, builder, signature, args):
                address = global_pointer(builder, args[0], args[1], F32)
                text = "ld.global.cg.f32 $0, [$1];"
                value = asm(builder, F32, [address], text, "=f,l,~{memory}", effect=True)
                return pack_tuple(context, builder, signature.return_type, [value])

            return result(source, types.int64), codegen

        return load

    def store_sums(self, count: int) -> Any:
        """``op(target, at, stride, values)``: ``count`` float32 a lane, four at a time, quad q at ``at + q stride``."""

        @intrinsic
        def put(typing_context, target, at, stride, values):
            signature = types.void(target, types.int64, types.int64, values)

            def codegen(context, builder, signature, args):
                pointer, at, stride, values = args
                parts = unpack(builder, values, count)
                for q in range(0, count, 4):
                    address = global_pointer(builder, pointer, at, F32)
                    text = "st.global.v4.f32 [$0], {$1, $2, $3, $4};"
                    asm(builder, VOID, [address, *parts[q : q + 4]], text, "l,f,f,f,f,~{memory}", effect=True)
                    at = builder.add(at, stride)
                return context.get_dummy_value()

            return signature, codegen

        return put

    def load_sums(self, count: int) -> Any:
        """``op(source, at, stride)``: what `store_sums` of another block stored, so not from L1."""

        @intrinsic
        def load(typing_context, source, at, stride):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                pointer, at, stride = args
                found = []
                for _ in range(0, count, 4):
                    address = global_pointer(builder, pointer, at, F32)
                    text = "ld.global.cg.v4.f32 {$0, $1, $2, $3}, [$4];"
                    four = ir.LiteralStructType([F32] * 4)
                    value = asm(builder, four, [address], text, "=f,=f,=f,=f,l,~{memory}", effect=True)
                    found += unpack(builder, value, 4)
                    at = builder.add(at, stride)
                return pack_tuple(context, builder, signature.return_type, found)

            return result(source, types.int64, types.int64), codegen

        return load

    @cached_property
    def last_block(self) -> Any:
        """``op(counters, at, expected)``: whether this block is the last of ``expected`` to arrive at a counter.

        All warps of the block call it; what the blocks wrote to global memory before is then seen by the last. The
        counter wraps to zero, ready for the next launch.
        """

        @intrinsic
        def arrive(typing_context, counters, at, expected):
            def codegen(context, builder, signature, args):
                address = global_pointer(builder, args[0], args[1], I32)
                last = builder.sub(builder.trunc(args[2], I32), ir.Constant(I32, 1))
                found = asm(
                    builder,
                    I32,
                    [address, last],
                    "{.reg .pred p, q; .reg .u32 t, o; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; "
                    "membar.gl; bar.sync 0; mov.u32 o, 0xffffffff; "
                    "@p atom.global.inc.u32 o, [$1], $2; setp.eq.u32 q, o, $2; "
                    "bar.red.or.pred q, 0, q; membar.gl; selp.u32 $0, 1, 0, q;}",
                    "=r,l,r,~{memory}",
                    effect=True,
                    convergent=True,
                )
                return builder.icmp_unsigned("!=", found, ir.Constant(I32, 0))

            return types.boolean(counters, types.int64, types.int64), codegen

        return arrive

    @cached_property
    def wait_for_previous(self) -> Any:
        """Wait until the launch before this one has ended and what it wrote is visible (compute capability 9)."""
        return statement("griddepcontrol.wait;")

    @cached_property
    def let_next_start(self) -> Any:
        """From here on the next launch may start beside this one (compute capability 9)."""
        return statement("griddepcontrol.launch_dependents;")
