"""The GPU body's operations with the copy engine, and for blocks that form a cluster (compute capability 9.0).

*Boxes.* The copy engine brings boxes of a matrix into shared memory (``cp.async.bulk.tensor``; `tensor_maps`). Two
barriers in shared memory belong to each of several buffers: *full* opens when all bytes that were announced have come,
*free* when all warps have let go of the buffer. A barrier is two words; its turns alternate in parity, from 0 on.
(PTX ISA, "mbarrier" and "cp.async.bulk.tensor".)

*Sums.* The blocks of a cluster run at once, on neighbouring SMs, and may write to each other's shared memory.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from kernels_numba.tile.gpu_emit import (
    I32,
    VOID,
    asm,
    pack_tuple,
    registers,
    shared_address,
    statement,
    unpack,
)

BARRIER_BYTES = 8


class GpuClusters:
    """Boxes, and sums of clusters; the vocabulary of linear layers inherits them."""

    # ---- boxes of a matrix -------------------------------------------------------------------------------------
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

    def begin_gates(self, stages: int, arrivals: int) -> Any:
        """``op(at, word)``: prepare ``stages`` full barriers from ``word`` on and as many free ones after them.

        Free barriers open after so many arrivals. All warps of the block call it; none goes on before all are ready.
        The buffers lie between ``at`` and ``word``: what nobody brings there may be read, and can be anything.
        """
        # Behind one branch: lanes that each prepared one would be served one after the other.
        inits = " ".join(
            f"mbarrier.init.shared::cta.b64 [$0+{BARRIER_BYTES * i}], {1 if i < stages else arrivals};"
            for i in range(2 * stages)
        )
        text = (
            "{.reg .pred p; .reg .u32 t; mov.u32 t, %tid.x; setp.ne.u32 p, t, 0; @p bra READY; "
            + inits
            + " READY: fence.mbarrier_init.release.cluster; bar.sync 0;}"
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
    def prefetch_map(self) -> Any:
        """``op(source)``: the copy engine will need this map."""

        @intrinsic
        def prefetch(typing_context, source):
            def codegen(context, builder, signature, args):
                text = (
                    "{.reg .pred p; .reg .u32 t; mov.u32 t, %laneid; setp.eq.u32 p, t, 0; "
                    "@p prefetch.tensormap [$0];}"
                )
                address = builder.ptrtoint(args[0], ir.IntType(64))
                asm(builder, VOID, [address], text, "l,~{memory}", effect=True, convergent=True)
                return context.get_dummy_value()

            return types.void(source), codegen

        return prefetch

    @cached_property
    def bring_box(self) -> Any:
        """``op(to_word, word, source, row, column)``: the copy engine brings a box of a matrix (one lane asks).

        ``source`` is its map (`kernels_numba.tensor_maps`); the box goes to ``to_word``, on 1024 bytes, and the full
        barrier at ``word`` hears of all its bytes, those too that lie beyond the matrix and become zeros.
        """
        text = (
            "{.reg .pred p; .reg .u32 t; mov.u32 t, %laneid; setp.eq.u32 p, t, 0; "
            "@p cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
            "[$0], [$1, {$2, $3}], [$4];}"
        )

        @intrinsic
        def bring(typing_context, to, word, source, row, column):
            signature = types.void(types.int64, types.int64, source, types.int64, types.int64)

            def codegen(context, builder, signature, args):
                to, word, pointer, row, column = args
                values = [
                    shared_address(builder, to),
                    builder.ptrtoint(pointer, ir.IntType(64)),
                    builder.trunc(column, I32),
                    builder.trunc(row, I32),
                    shared_address(builder, word),
                ]
                asm(builder, VOID, values, text, "r,l,r,r,r,~{memory}", effect=True, convergent=True)
                return context.get_dummy_value()

            return signature, codegen

        return bring

    @cached_property
    def arrive(self) -> Any:
        """``op(word)``: this warp is done with a buffer: it arrives at the free barrier of its own block."""

        @intrinsic
        def tell(typing_context, word):
            def codegen(context, builder, signature, args):
                text = (
                    "{.reg .pred p; .reg .u32 t; mov.u32 t, %laneid; setp.eq.u32 p, t, 0; "
                    "@p mbarrier.arrive.shared::cta.b64 _, [$0];}"
                )
                address = shared_address(builder, args[0])
                asm(builder, VOID, [address], text, "r,~{memory}", effect=True, convergent=True)
                return context.get_dummy_value()

            return types.void(types.int64), codegen

        return tell

    # ---- sums of blocks that share a tile ----------------------------------------------------------------------
    @cached_property
    def meet_cluster(self) -> Any:
        """All warps of all blocks of the cluster meet; what they wrote to each other before is there to be read."""
        return statement("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", convergent=True)

    def part_of(self, count: int, parts: int) -> Any:
        """``op(values, part)``: of ``count`` registers the part-th of ``parts`` equal shares, in turn."""
        share = count // parts

        @intrinsic
        def take(typing_context, values, part):
            result = types.UniTuple(types.float32, share)

            def codegen(context, builder, signature, args):
                given = unpack(builder, args[0], count)
                found = given[:share]
                for p in range(1, parts):
                    this = builder.icmp_signed("==", args[1], ir.Constant(args[1].type, p))
                    others = given[p * share : (p + 1) * share]
                    found = [builder.select(this, new, old) for new, old in zip(others, found, strict=True)]
                return pack_tuple(context, builder, signature.return_type, found)

            return result(values, types.int64), codegen

        return take

    def give_sums(self, count: int) -> Any:
        """``op(word, rank, values)``: ``count`` float32 a lane to the shared memory of block ``rank`` of the cluster.

        Four at a time, quad q at ``word + 128 q``. `meet_cluster` comes before, when that block has no use for what
        lies there, and after, before it reads.
        """
        lines = ["{.reg .u32 a; mapa.shared::cluster.u32 a, $0, $1;"]
        for q in range(0, count, 4):
            lines.append(f"st.shared::cluster.v4.f32 [a+{128 * q}], {registers(q + 2, 4)};")
        text = " ".join(lines) + "}"

        @intrinsic
        def give(typing_context, word, rank, values):
            signature = types.void(types.int64, types.int64, values)

            def codegen(context, builder, signature, args):
                operands = [shared_address(builder, args[0]), builder.trunc(args[1], I32)]
                operands += unpack(builder, args[2], count)
                asm(builder, VOID, operands, text, "r,r," + "f," * count + "~{memory}", effect=True)
                return context.get_dummy_value()

            return signature, codegen

        return give
