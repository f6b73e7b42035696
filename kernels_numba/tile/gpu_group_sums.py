"""The GPU body's running sums on warpgroups (compute capability 9.0): ``wgmma`` onto accumulators, several under way.

Both operands lie in shared memory in slabs: rows of 64 halves, 128 bytes, of which the 16-byte chunk c of row r is
stored at place c XOR (r mod 8), and the slab begins on 1024 bytes. That is the layout "128-byte swizzle, K-major" of
the matrix descriptor (PTX ISA, "Asynchronous warpgroup level matrix shared memory layout"), and it is what copies of
16 bytes a lane write without touching a bank twice.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import (
    F32,
    I16,
    I32,
    I64,
    SHARED_SYMBOL,
    VOID,
    asm,
    global_pointer,
    pack_tuple,
    registers,
    shared_address,
    unpack,
)
from kernels_numba.tile.layout import row_words

SLAB_ALIGNMENT = 1024
SWIZZLED = 1 << 30 | SLAB_ALIGNMENT >> 4
"""High half of a descriptor: 128-byte swizzle, and how far apart groups of 8 rows are, in units of 16 bytes."""


def slab_place(builder: Any, word: Any) -> Any:
    """Low half of the descriptor of a slab: where it begins, in units of 16 bytes."""
    address = shared_address(builder, word)
    builder.module.globals[SHARED_SYMBOL].align = SLAB_ALIGNMENT
    place = builder.and_(builder.lshr(address, ir.Constant(I32, 4)), ir.Constant(I32, 0x3FFF))
    # The stride along the contraction is not used with this swizzle.
    return builder.or_(place, ir.Constant(I32, 1 << 16))


class GpuGroupSums:
    """Running sums of warpgroups; the vocabulary of linear layers inherits them."""

    ptx: dict[str, str]
    dtype: str

    def group_mma_add(self, columns: int, k_tiles: int) -> Any:
        """``op(c, left, right)``: begin c + left right^T for the 64 rows of a warpgroup, 16 ``k_tiles`` deep.

        ``left`` and ``right`` are the word offsets of slabs of 64 and of ``columns`` rows. c holds a warp's float32
        accumulators of 16 rows, [column tile, row group, 2]. It must not be used before `group_wait` has returned it,
        and the slabs must not be written before.
        """
        count = columns // 2
        kind = self.dtype.replace("fp16", "f16")
        name = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"
        lines = [
            "{.reg .pred yes; .reg .b32 a, b; .reg .b64 l, r; setp.eq.u32 yes, 0, 0;",
            "wgmma.fence.sync.aligned;",
        ]
        for k in range(k_tiles):
            lines.append(
                f"add.u32 a, ${2 * count}, {2 * k}; mov.b64 l, {{a, {SWIZZLED}}}; "
                f"add.u32 b, ${2 * count + 1}, {2 * k}; mov.b64 r, {{b, {SWIZZLED}}}; "
                f"{name} {registers(0, count)}, l, r, yes, 1, 1, 0, 0;"
            )
        lines.append("wgmma.commit_group.sync.aligned;}")

        @intrinsic
        def product(typing_context, c, left, right):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                sums = unpack(builder, args[0], count)
                places = [slab_place(builder, word) for word in args[1:]]
                value = asm(
                    builder,
                    ir.LiteralStructType([F32] * count),
                    [*sums, *places],
                    " ".join(lines),
                    ",".join(["=f"] * count + [str(i) for i in range(count)] + ["r", "r"]) + ",~{memory}",
                    effect=True,
                    convergent=True,
                )
                return pack_tuple(context, builder, signature.return_type, unpack(builder, value, count))

            return result(c, types.int64, types.int64), codegen

        return product

    def group_wait(self, columns: int, pending: int) -> Any:
        """``c = op(c)``: wait until at most ``pending`` products of this warpgroup are under way.

        With ``pending`` 0, c may then be used.
        """
        count = columns // 2

        @intrinsic
        def wait(typing_context, c):
            def codegen(context, builder, signature, args):
                value = asm(
                    builder,
                    ir.LiteralStructType([F32] * count),
                    unpack(builder, args[0], count),
                    f"wgmma.wait_group.sync.aligned {pending};",
                    ",".join(["=f"] * count + [str(i) for i in range(count)]) + ",~{memory}",
                    effect=True,
                    convergent=True,
                )
                return pack_tuple(context, builder, signature.return_type, unpack(builder, value, count))

            return c(c), codegen

        return wait

    def store_group(self, columns: int, halves: int, spacing: int = 1) -> Any:
        """``op(target, at, stride, rows, columns, c)``: accumulators of a warp, rounded, to a row-major matrix.

        c as `group_mma_add` has it. ``at`` is the place of the lane's own first element, ``rows`` and ``columns`` are
        how many there are from it on: what lies beyond is not written. ``halves`` (2 or 1) elements go in one
        instruction. Columns are ``spacing`` elements apart (1 if several go together).
        """
        return self._store(columns, halves, spacing, turned=False)

    def store_group_turned(self, columns: int, halves: int, spacing: int = 1) -> Any:
        """As `store_group`, to the transposed matrix: ``op(target, at, stride, rows, columns, c)``.

        Column c of the accumulators is row c of the target. Lane 4 g + t has row g and columns 2 t, 2 t + 1 of each
        8 x 8 block of the target (``movmatrix``); ``rows`` and ``columns`` are the target's.
        """
        return self._store(columns, halves, spacing, turned=True)

    def store_group_rows(self, columns: int) -> Any:
        """As `store_group`, in whole rows: ``op(target, word, at, stride, rows, columns, c)``.

        A warp's 16 rows go through shared memory, `row_words` words each from ``word`` on, which are the warp's alone,
        and leave 128 bytes at a time: pieces of 16 bytes, as `store_group` writes them, cost L2 a sector each, or two.
        ``at``, ``rows`` and ``columns`` are the warp's, and even where they count elements.
        """
        count, tiles, wide, pitch = columns // 2, columns // 8, columns // 2, row_words(columns)
        pack = self.ptx["pack"]

        @intrinsic
        def put(typing_context, target, word, at, row_stride, rows, columns, c):
            signature = types.void(target, *[types.int64] * 5, c)

            def codegen(context, builder, signature, args):
                pointer, word, at, stride, rows, columns, value = args
                values = unpack(builder, value, count)
                thread = asm(builder, I32, [], "mov.u32 $0, %tid.x;", "=r")
                lane = builder.and_(thread, ir.Constant(I32, 31))
                base = shared_address(builder, word)
                down = builder.mul(builder.lshr(lane, ir.Constant(I32, 2)), ir.Constant(I32, 4 * pitch))
                across = builder.shl(builder.and_(lane, ir.Constant(I32, 3)), ir.Constant(I32, 2))
                mine = builder.add(base, builder.add(down, across))
                for j in range(tiles):
                    for y in range(2):
                        low, high = values[4 * j + 2 * y : 4 * j + 2 * y + 2]
                        packed = asm(builder, I32, [high, low], f"{pack} $0, $1, $2;", "=r,f,f")
                        text = f"st.shared.b32 [$0+{32 * pitch * y + 16 * j}], $1;"
                        asm(builder, VOID, [mine, packed], text, "r,r,~{memory}", effect=True)
                asm(builder, VOID, [], "bar.warp.sync 0xffffffff;", "~{memory}", effect=True, convergent=True)
                pieces = []
                for first in range(0, wide, 32):
                    place = builder.add(lane, ir.Constant(I32, first))
                    last = ir.Constant(I32, wide - 1)
                    beyond = builder.icmp_unsigned(">", place, last)
                    source = builder.shl(builder.select(beyond, last, place), ir.Constant(I32, 2))
                    column = builder.shl(builder.zext(place, I64), ir.Constant(I64, 1))
                    ok = builder.and_(builder.icmp_signed("<", column, columns), builder.not_(beyond))
                    here = builder.gep(global_pointer(builder, pointer, at, I16), [column])
                    pieces.append((builder.add(base, source), here, ok))
                for r in range(16):
                    there = builder.icmp_signed(">", rows, ir.Constant(I64, r))
                    for i, (source, here, ok) in enumerate(pieces):
                        live = builder.zext(builder.and_(there, ok), I32)
                        text = (
                            "{.reg .pred p; .reg .b32 v; setp.ne.b32 p, $2, 0; "
                            f"ld.shared.b32 v, [$0+{4 * pitch * r}]; @p st.global.b32 [$1], v;}}"
                        )
                        asm(builder, VOID, [source, here, live], text, "r,l,r,~{memory}", effect=True)
                        pieces[i] = (source, builder.gep(here, [stride]), ok)
                return context.get_dummy_value()

            return signature, codegen

        return put

    def _store(self, columns: int, halves: int, spacing: int, *, turned: bool) -> Any:
        count, tiles = columns // 2, columns // 8
        pack = self.ptx["pack"]
        # (register pair, rows and columns from the lane's own place)
        if turned:
            pieces = [(2 * j + y, 8 * j, 8 * y) for j in range(tiles) for y in range(2)]
        else:
            pieces = [(2 * j + y, 8 * y, 8 * j) for y in range(2) for j in range(tiles)]

        @intrinsic
        def put(typing_context, target, at, row_stride, rows, columns, c):
            signature = types.void(target, *[types.int64] * 4, c)

            def codegen(context, builder, signature, args):
                pointer, at, stride, rows, columns, value = args
                values = unpack(builder, value, count)
                step = builder.mul(stride, ir.Constant(I64, 8))
                address, inside, last = None, None, None
                for pair, down, right in pieces:
                    low, high = values[2 * pair : 2 * pair + 2]
                    word = asm(builder, I32, [high, low], f"{pack} $0, $1, $2;", "=r,f,f")
                    if turned:
                        text = "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;"
                        word = asm(builder, I32, [word], text, "=r,r", convergent=True)
                    if down != last:
                        if last is not None:
                            at = builder.add(at, step)
                        last = down
                        inside = builder.icmp_signed(">", rows, ir.Constant(I64, down))
                        address = global_pointer(builder, pointer, at, I16)
                    for e in range(0, 2, halves):
                        here = builder.icmp_signed(">", columns, ir.Constant(I64, right + e))
                        ok = builder.zext(builder.and_(inside, here), I32)
                        place = f"[$0+{2 * spacing * (right + e)}]"
                        if halves == 2:
                            store = f"@p st.global.b32 {place}, $1;}}"
                        else:
                            part = "{v, o}" if e == 0 else "{o, v}"
                            store = f".reg .b16 v, o; mov.b32 {part}, $1; @p st.global.b16 {place}, v;}}"
                        text = "{.reg .pred p; setp.ne.b32 p, $2, 0; " + store
                        asm(builder, VOID, [address, word, ok], text, "l,r,r,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return put
