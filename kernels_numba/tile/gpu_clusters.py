"""The GPU body's operations for blocks that share what they read ("clusters", compute capability 9.0).

The blocks of a cluster run at once, on neighbouring SMs. One reads some rows from global memory and the copy engine
writes them into the shared memory of all (``cp.async.bulk ... multicast``), each time at the same place. Two barriers
in shared memory belong to each of ``stages`` buffers: *full* opens when all bytes that were announced have arrived,
*free* when all blocks of the cluster have let go of the buffer. A barrier is two words; its turns alternate in
parity, from 0 on. (PTX ISA, "mbarrier" and "cp.async.bulk".)
"""

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
    VOID,
    asm,
    global_pointer,
    pack_tuple,
    registers,
    shared_address,
    shared_address_of_half,
    statement,
    unpack,
)
from kernels_numba.tile.gpu_group_sums import SWIZZLED, slab_place

BARRIER_BYTES = 8


class GpuClusters:
    """Operations of clusters; the vocabulary of linear layers inherits them."""

    dtype: str

    def begin_sharing(self, stages: int, blocks: int) -> Any:
        """``op(at, word)``: prepare ``stages`` full barriers from ``word`` on and as many free ones after them.

        All warps of all blocks of the cluster call it; none goes on before all are ready. The buffers lie between
        ``at`` and ``word``: what nobody copies there may be read, and can be anything.
        """
        inits = " ".join(
            f"@p mbarrier.init.shared::cta.b64 [$0+{BARRIER_BYTES * i}], {1 if i < stages else blocks};"
            for i in range(2 * stages)
        )
        text = (
            "{.reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; setp.eq.u32 p, t, 0; "
            + inits
            + " fence.mbarrier_init.release.cluster; "
            "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;}"
        )

        @intrinsic
        def begin(typing_context, at, word):
            def codegen(context, builder, signature, args):
                address = shared_address(builder, args[1])
                asm(builder, VOID, [address], text, "r,~{memory}", effect=True, convergent=True)
                return context.get_dummy_value()

            return types.void(types.int64, types.int64), codegen

        return begin

    @cached_property
    def end_sharing(self) -> Any:
        """No block of the cluster ends before all have come here: until then others may still tell it something."""
        return statement(
            "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;", convergent=True
        )

    @cached_property
    def announce(self) -> Any:
        """``op(word, nbytes)``: the full barrier at ``word`` opens when so many bytes have come (one lane says so)."""

        @intrinsic
        def tell(typing_context, word, nbytes):
            def codegen(context, builder, signature, args):
                text = (
                    "{.reg .pred p; .reg .u32 t; mov.u32 t, %laneid; setp.eq.u32 p, t, 0; "
                    "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;}"
                )
                values = [shared_address(builder, args[0]), builder.trunc(args[1], I32)]
                asm(builder, VOID, values, text, "r,r,~{memory}", effect=True, convergent=True)
                return context.get_dummy_value()

            return types.void(types.int64, types.int64), codegen

        return tell

    def share_row(self, nbytes: int, blocks: int) -> Any:
        """``op(to_half, word, source, at, valid)``: a lane's copy of ``nbytes`` to all blocks of the cluster.

        From element ``at``, which lies on 16 bytes as ``to_half`` does, to half element ``to_half`` of every block's
        shared memory; the full barrier at ``word`` of each of them hears of it. Lanes that are not ``valid`` copy
        nothing.
        """
        multicast, mask = (".multicast::cluster", f", {(1 << blocks) - 1:#x}") if blocks > 1 else ("", "")
        text = (
            "{.reg .pred p; .reg .b16 m; setp.ne.b32 p, $3, 0; "
            + (f"mov.b16 m{mask}; " if blocks > 1 else "")
            + f"@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{multicast} "
            f"[$0], [$1], {nbytes}, [$2]{', m' if blocks > 1 else ''};}}"
        )

        @intrinsic
        def share(typing_context, to, word, source, at, valid):
            signature = types.void(types.int64, types.int64, source, types.int64, types.boolean)

            def codegen(context, builder, signature, args):
                to, word, pointer, at, valid = args
                values = [
                    shared_address_of_half(builder, to),
                    global_pointer(builder, pointer, at, I16),
                    shared_address(builder, word),
                    builder.zext(valid, I32),
                ]
                asm(builder, VOID, values, text, "r,l,r,r,~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return share

    @cached_property
    def await_barrier(self) -> Any:
        """``op(word, parity)``: wait until the barrier's turn of this parity has ended."""

        @intrinsic
        def wait(typing_context, word, parity):
            def codegen(context, builder, signature, args):
                text = (
                    "{.reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; "
                    "@p bra.uni DONE; bra.uni AGAIN; DONE: }"
                )
                values = [shared_address(builder, args[0]), builder.trunc(args[1], I32)]
                asm(builder, VOID, values, text, "r,r,~{memory}", effect=True, convergent=True)
                return context.get_dummy_value()

            return types.void(types.int64, types.int64), codegen

        return wait

    def let_go(self, blocks: int) -> Any:
        """``op(word)``: tell the free barrier at ``word`` of every block of the cluster that this one is done with it.

        All warps of the block have read the buffer before, and met; the first one tells.
        """
        text = (
            "{.reg .pred p; .reg .u32 t, r; mov.u32 t, %tid.x; "
            f"setp.lt.u32 p, t, {blocks}; "
            "@p mapa.shared::cluster.u32 r, $0, t; "
            "@p mbarrier.arrive.shared::cluster.b64 _, [r];}"
        )

        @intrinsic
        def tell(typing_context, word):
            def codegen(context, builder, signature, args):
                address = shared_address(builder, args[0])
                asm(builder, VOID, [address], text, "r,~{memory}", effect=True, convergent=True)
                return context.get_dummy_value()

            return types.void(types.int64), codegen

        return tell

    def group_mma_add_held(self, columns: int, k_tiles: int) -> Any:
        """``op(c, a, right)``: begin c + a right^T; as `group_mma_add`, with the left operand in registers.

        ``a`` holds a warp's 16 rows, 16 ``k_tiles`` deep, as `mma` has them; ``right`` is the word offset of slabs of
        ``columns`` rows, 64 deep each, one after another. `group_wait_held` must follow before the next one begins.
        """
        count, held = columns // 2, 4 * k_tiles
        kind = self.dtype.replace("fp16", "f16")
        name = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind}"
        right = count + held
        lines = [
            "{.reg .pred yes; .reg .b32 b; .reg .b64 r; setp.eq.u32 yes, 0, 0; wgmma.fence.sync.aligned;"
        ]
        for k in range(k_tiles):
            place = (k // 4) * (columns * 128 >> 4) + 2 * (k % 4)
            lines.append(
                f"add.u32 b, ${right}, {place}; mov.b64 r, {{b, {SWIZZLED}}}; "
                f"{name} {registers(0, count)}, {registers(count + 4 * k, 4)}, r, yes, 1, 1, 0;"
            )
        lines.append("wgmma.commit_group.sync.aligned;}")
        # Accumulators are inputs too, in the same registers.
        kinds = ["=f"] * count + ["r"] * (held + 1) + [str(i) for i in range(count)]

        @intrinsic
        def product(typing_context, c, a, right):
            result = types.UniTuple(types.float32, count)

            def codegen(context, builder, signature, args):
                sums, left = unpack(builder, args[0], count), unpack(builder, args[1], held)
                value = asm(
                    builder,
                    ir.LiteralStructType([F32] * count),
                    [*left, slab_place(builder, args[2]), *sums],
                    " ".join(lines),
                    ",".join(kinds) + ",~{memory}",
                    effect=True,
                    convergent=True,
                )
                return pack_tuple(context, builder, signature.return_type, unpack(builder, value, count))

            return result(c, a, types.int64), codegen

        return product

    def group_wait_held(self, columns: int, k_tiles: int) -> Any:
        """``c = op(c, a)``: wait until the product has ended; until here tensor cores may read ``a``."""
        count, held = columns // 2, 4 * k_tiles
        kinds = ["=f"] * count + ["r"] * held + [str(i) for i in range(count)]

        @intrinsic
        def wait(typing_context, c, a):
            def codegen(context, builder, signature, args):
                sums, left = unpack(builder, args[0], count), unpack(builder, args[1], held)
                value = asm(
                    builder,
                    ir.LiteralStructType([F32] * count),
                    [*left, *sums],
                    "wgmma.wait_group.sync.aligned 0;",
                    ",".join(kinds) + ",~{memory}",
                    effect=True,
                    convergent=True,
                )
                return pack_tuple(context, builder, signature.return_type, unpack(builder, value, count))

            return c(c, a), codegen

        return wait
