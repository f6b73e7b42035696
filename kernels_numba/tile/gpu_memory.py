"""The GPU body's memory operations: asynchronous copies, loads and stores of fragments."""

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
    shared_address,
    shared_address_of_half,
    store_shared_words,
    unpack,
)

# (which of four lane offsets, constant offset, registers): see load_pieces and store_pieces.
Pieces = tuple[tuple[int, int, tuple[int, ...]], ...]

# (which of four places, constant offset in shared memory, constant offset in the source): see copy_pieces.
CopyPieces = tuple[tuple[int, int, int], ...]


class GpuMemory:
    """Memory operations of the vocabulary; :class:`kernels_numba.tile.gpu.GpuTile` inherits them."""

    def copy_async(self, halves: int) -> Any:
        """Copy ``halves`` (8, 4, 2 or 1) half elements from global to shared memory, zeros where not valid.

        ``op(shared_half_offset, source, source_offset, valid)``. A copy of one element is synchronous: the
        hardware's smallest asynchronous copy is 4 bytes.
        """
        nbytes = 2 * halves
        cache = "cg" if nbytes == 16 else "ca"

        @intrinsic
        def copy(typing_context, shared, source, offset, valid):
            signature = types.void(types.int64, source, types.int64, types.boolean)

            def codegen(context, builder, signature, args):
                to, base, index, ok = args
                # A lane with nothing to copy must still name a legal address.
                index = builder.select(ok, index, ir.Constant(I64, 0))
                pointer = global_pointer(builder, base, index, I16)
                address = shared_address_of_half(builder, to)
                if halves == 1:
                    asm(
                        builder,
                        VOID,
                        [address, pointer, builder.zext(ok, I32)],
                        "{.reg .pred p; .reg .b16 v; setp.ne.b32 p, $2, 0; mov.b16 v, 0; "
                        "@p ld.global.b16 v, [$1]; st.shared.b16 [$0], v;}",
                        "r,l,r,~{memory}",
                        effect=True,
                    )
                    return context.get_dummy_value()
                size = builder.select(ok, ir.Constant(I32, nbytes), ir.Constant(I32, 0))
                asm(
                    builder,
                    VOID,
                    [address, pointer, size],
                    f"cp.async.{cache}.shared.global [$0], [$1], {nbytes}, $2;",
                    "r,l,r,~{memory}",
                    effect=True,
                )
                return context.get_dummy_value()

            return signature, codegen

        return copy

    def copy_pieces(self, pieces: CopyPieces, halves: int, *, guarded: bool) -> Any:
        """Several asynchronous copies: ``op(source, base, limit, index, to0, to1, to2, to3)``.

        Piece (which, shared constant, global constant) goes from element ``base + index + global constant`` to half
        element ``to0`` .. ``to3`` plus its shared constant. Guarded, elements whose ``index + ...`` is not below
        ``limit`` become zeros.
        """
        nbytes = 2 * halves
        cache = "cg" if nbytes == 16 else "ca"
        if halves == 1:
            text = (
                "{{.reg .pred p; .reg .b16 v; setp.ne.b32 p, $2, 0; mov.b16 v, 0; "
                "@p ld.global.b16 v, [$1+{0}]; st.shared.b16 [$0+{1}], v;}}"
            )
        else:
            text = f"cp.async.{cache}.shared.global [$0+{{1}}], [$1+{{0}}], {nbytes}, $2;"

        @intrinsic
        def copy(typing_context, source, base, limit, index, to0, to1, to2, to3):
            signature = types.void(source, *[types.int64] * 7)

            def codegen(context, builder, signature, args):
                pointer, start, limit, index, *places = args
                addresses = [shared_address_of_half(builder, to) for to in places]
                origin = global_pointer(builder, pointer, builder.add(start, index), I16)
                legal = global_pointer(builder, pointer, ir.Constant(I64, 0), I16)
                for which, shared_constant, global_constant in pieces:
                    size = ir.Constant(I32, nbytes)
                    address, offset = origin, 2 * global_constant
                    if guarded:
                        at = builder.add(index, ir.Constant(I64, global_constant))
                        inside = builder.icmp_signed("<", at, limit)
                        size = builder.select(inside, size, ir.Constant(I32, 0))
                        # A lane with nothing to copy must still name a legal address.
                        there = builder.gep(origin, [ir.Constant(I64, global_constant)])
                        address, offset = builder.select(inside, there, legal), 0
                    asm(
                        builder,
                        VOID,
                        [addresses[which], address, size],
                        text.format(offset, 2 * shared_constant),
                        "r,l,r,~{memory}",
                        effect=True,
                    )
                return context.get_dummy_value()

            return signature, codegen

        return copy

    @cached_property
    def copy_words_async(self) -> Any:
        """Copy four words: ``op(shared_word_offset, source_words, source_offset)``."""

        @intrinsic
        def copy(typing_context, shared, source, offset):
            signature = types.void(types.int64, source, types.int64)

            def codegen(context, builder, signature, args):
                to, base, index = args
                asm(
                    builder,
                    VOID,
                    [shared_address(builder, to), global_pointer(builder, base, index, I32)],
                    "cp.async.cg.shared.global [$0], [$1], 16;",
                    "r,l,~{memory}",
                    effect=True,
                )
                return context.get_dummy_value()

            return signature, codegen

        return copy

    def load_shared(self, count: int, width: int) -> Any:
        """``op(word_offset, stride)``: ``count`` words, ``width`` at a time, chunk c at offset + c stride."""
        return _load_shared(count, width)

    def load_global(self, count: int, width: int) -> Any:
        """``op(source, word_offset, stride)``: as :meth:`load_shared`, from a word buffer."""
        return _load_global(count, width)

    @cached_property
    def load_float(self) -> Any:
        """``op(source, offset)``: one float32."""

        @intrinsic
        def load(typing_context, source, offset):
            def codegen(context, builder, signature, args):
                return builder.load(global_pointer(builder, args[0], args[1], F32))

            return types.float32(source, types.int64), codegen

        return load

    def load_pieces(self, pieces: Pieces, count: int) -> Any:
        """``op(o0, o1, o2, o3)``: gather from shared memory, piece (o, c, registers) at word ``o + c``."""

        @intrinsic
        def load(typing_context, o0, o1, o2, o3):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                words: list = [None] * count
                addresses = [shared_address(builder, offset) for offset in args]
                for which, constant, registers in pieces:
                    found = load_shared_words(builder, addresses[which], 4 * constant, len(registers))
                    for register, word in zip(registers, found, strict=True):
                        words[register] = word
                return pack_tuple(context, builder, signature.return_type, words)

            return result(*[types.int64] * 4), codegen

        return load

    def gather_halves(self, count: int) -> tuple[Any, Any]:
        """``count`` registers of half elements from anywhere in shared memory: ``load`` and ``gather(base, offsets)``.

        ``load`` reads the offsets from a table, as :meth:`load_global` in quads: two of 16 bits a word, in half
        elements from the word offset ``base``, of a register's low and high half.
        """
        addresses = _load_global(count, 4)

        @intrinsic
        def gather(typing_context, base, offsets):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                start = shared_address(builder, args[0])
                words = []
                for word in unpack(builder, args[1], count):
                    low, high = (
                        builder.and_(word, ir.Constant(I32, 0xFFFF)),
                        builder.lshr(word, ir.Constant(I32, 16)),
                    )
                    places = [builder.add(start, builder.shl(x, ir.Constant(I32, 1))) for x in (low, high)]
                    text = (
                        "{.reg .b16 a, b; ld.shared.b16 a, [$1]; ld.shared.b16 b, [$2]; mov.b32 $0, {a, b};}"
                    )
                    words.append(asm(builder, I32, places, text, "=r,r,r,~{memory}", effect=True))
                return pack_tuple(context, builder, signature.return_type, words)

            return result(types.int64, offsets), codegen

        return addresses, gather

    def store_shared_pieces(self, pieces: Pieces) -> Any:
        """``op(o0, o1, o2, o3, fragment)``: scatter to shared memory; piece (o, c, registers) goes to ``o + c``."""

        @intrinsic
        def put(typing_context, o0, o1, o2, o3, fragment):
            signature = types.void(*[types.int64] * 4, fragment)

            def codegen(context, builder, signature, args):
                *offsets, value = args
                addresses = [shared_address(builder, offset) for offset in offsets]
                for which, constant, registers in pieces:
                    words = [builder.extract_value(value, r) for r in registers]
                    store_shared_words(builder, addresses[which], 4 * constant, words)
                return context.get_dummy_value()

            return signature, codegen

        return put

    def gather(self, pieces: Pieces, count: int, halves: int, *, guarded: bool) -> Any:
        """``op(source, base, limit, o0, o1, o2, o3)``: load what `store_pieces` would store; zeros where masked."""
        per = max(halves // 2, 1)
        letters = {8: "v4.b32", 4: "v2.b32", 2: "b32", 1: "b16"}[halves]
        out_kind = ir.IntType(16) if halves == 1 else I32
        letter = "h" if halves == 1 else "r"

        @intrinsic
        def load(typing_context, source, base, limit, o0, o1, o2, o3):
            result = types.UniTuple(types.int32, count)

            def codegen(context, builder, signature, args):
                pointer, start, limit, *offsets = args
                words: list = [None] * count
                names = ", ".join(f"${i}" for i in range(per))
                names = "{" + names + "}" if per > 1 else names
                zero = " ".join(f"mov.b{16 if halves == 1 else 32} ${i}, 0;" for i in range(per))
                returns = ir.LiteralStructType([out_kind] * per) if per > 1 else out_kind
                for which, constant, registers in pieces:
                    parts = []
                    for step in range(2 * len(registers) // halves):
                        at = builder.add(offsets[which], ir.Constant(I64, constant + step * halves))
                        inside = (
                            builder.icmp_signed("<", at, limit) if guarded else ir.Constant(ir.IntType(1), 1)
                        )
                        safe = builder.select(inside, builder.add(start, at), ir.Constant(I64, 0))
                        address = global_pointer(builder, pointer, safe, I16)
                        text = f"ld.global.{letters} {names}, [${per}];"
                        if guarded:
                            text = f"{{.reg .pred p; setp.ne.b32 p, ${per + 1}, 0; {zero} @p {text}}}"
                        operands = [address, builder.zext(inside, I32)] if guarded else [address]
                        constraints = ",".join([f"=&{letter}" if guarded else f"={letter}"] * per)
                        constraints += ",l,r" if guarded else ",l"
                        value = asm(builder, returns, operands, text, constraints + ",~{memory}", effect=True)
                        parts += unpack(builder, value, per) if per > 1 else [value]
                    if halves == 1:
                        wide = [builder.zext(x, I32) for x in parts]
                        parts = [
                            builder.or_(wide[i], builder.shl(wide[i + 1], ir.Constant(I32, 16)))
                            for i in range(0, len(wide), 2)
                        ]
                    for register, word in zip(registers, parts, strict=True):
                        words[register] = word
                return pack_tuple(context, builder, signature.return_type, words)

            return result(source, *[types.int64] * 6), codegen

        return load

    def store_pieces(self, pieces: Pieces, halves: int, *, guarded: bool, held: bool = False) -> Any:
        """``op(target, base, limit, o0, o1, o2, o3, fragment)``: store a fragment of halves to global memory.

        Piece (o, c, registers) is written from element ``base + o + c`` on, ``halves`` elements an
        instruction. Guarded, an instruction writes only where its element ``o + c + ...`` is below ``limit``. ``held``:
        the address that all share is formed first and kept; else the compiler adds what it stands for to each offset
        before it makes bytes of them, two instructions more for each offset and two registers less.
        """
        per = max(halves // 2, 1)
        letters = {8: "v4.b32", 4: "v2.b32", 2: "b32", 1: "b16"}[halves]

        @intrinsic
        def put(typing_context, target, base, limit, o0, o1, o2, o3, fragment):
            signature = types.void(target, *[types.int64] * 6, fragment)

            def codegen(context, builder, signature, args):
                pointer, start, limit, *offsets, value = args
                origin = global_pointer(builder, pointer, start, I16)
                origin = asm(builder, origin.type, [origin], "mov.b64 $0, $1;", "=l,l")
                places = [builder.gep(origin, [o]) for o in offsets]
                for which, constant, registers in pieces:
                    words = [builder.extract_value(value, r) for r in registers]
                    for step in range(2 * len(words) // halves):
                        at = builder.add(offsets[which], ir.Constant(I64, constant + step * halves))
                        address, after = global_pointer(builder, pointer, builder.add(start, at), I16), 0
                        if held:
                            address, after = places[which], 2 * (constant + step * halves)
                        if halves == 1:
                            word = builder.lshr(words[step // 2], ir.Constant(I32, 16 * (step % 2)))
                            parts, kinds, names = [builder.trunc(word, I16)], "h", "$1"
                        else:
                            parts = words[step * per : (step + 1) * per]
                            kinds = ",".join("r" * per)
                            names = ", ".join(f"${1 + i}" for i in range(per))
                            names = "{" + names + "}" if per > 1 else names
                        text = f"st.global.{letters} [$0+{after}], {names};"
                        operands, constraints = [address, *parts], f"l,{kinds}"
                        if guarded:
                            text = f"{{.reg .pred p; setp.ne.b32 p, ${len(operands)}, 0; @p {text}}}"
                            operands.append(builder.zext(builder.icmp_signed("<", at, limit), I32))
                            constraints += ",r"
                        asm(builder, VOID, operands, text, constraints + ",~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return put


def _load_shared(count: int, width: int) -> Any:
    result = types.UniTuple(types.int32, count)

    @intrinsic
    def load(typing_context, offset, stride):
        def codegen(context, builder, signature, args):
            offset, stride = args
            words = []
            if isinstance(stride, ir.Constant):
                address = shared_address(builder, offset)
                for chunk in range(count // width):
                    words += load_shared_words(builder, address, 4 * chunk * stride.constant, width)
            else:
                for _ in range(count // width):
                    words += load_shared_words(builder, shared_address(builder, offset), 0, width)
                    offset = builder.add(offset, stride)
            return pack_tuple(context, builder, signature.return_type, words)

        return result(types.int64, types.int64), codegen

    return load


def _load_global(count: int, width: int) -> Any:
    result = types.UniTuple(types.int32, count)
    kind = ir.VectorType(I32, width) if width > 1 else I32

    @intrinsic
    def load_from(typing_context, source, offset, stride):
        def codegen(context, builder, signature, args):
            base, offset, stride = args
            words = []
            for _ in range(count // width):
                value = builder.load(global_pointer(builder, base, offset, kind))
                value.align = 4 * width
                parts = (
                    [builder.extract_element(value, ir.Constant(I32, w)) for w in range(width)]
                    if width > 1
                    else [value]
                )
                words += parts
                offset = builder.add(offset, stride)
            return pack_tuple(context, builder, signature.return_type, words)

        return result(source, types.int64, types.int64), codegen

    return load_from
