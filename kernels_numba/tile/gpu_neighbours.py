"""The GPU body's operations for blocks of a cluster that write to each other's shared memory.

They run at once, on neighbouring SMs (compute capability 9.0 on), and are numbered from 0 on within the cluster, which
lies along the grid's first axis. (PTX ISA, "barrier.cluster", "mapa" and "st.shared::cluster".)
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from llvmlite import ir
from numba.cuda import types

from kernels_numba.tile.gpu_emit import (
    I32,
    VOID,
    asm,
    registers,
    shared_address,
    special_register,
    statement,
    unpack,
)
from kernels_numba.tile.gpu_memory import Pieces
from kernels_numba.tile.gpu_records import lane_of
from kernels_numba.tile.gpu_rows import operation


class GpuNeighbours:
    """Operations of clusters and grids of several axes; the vocabulary of attention inherits them."""

    @staticmethod
    def block_along(axis: int) -> Any:
        """``op()``: the block's place along an axis of the grid, of which 0 goes fastest."""
        return special_register(f"ctaid.{'xyz'[axis]}")

    @cached_property
    def greet(self) -> Any:
        """Tell the blocks of the cluster that this one has begun; `await_greetings` must follow in all warps."""
        return statement("barrier.cluster.arrive.relaxed.aligned;", convergent=True)

    @cached_property
    def await_greetings(self) -> Any:
        """Wait until all blocks of the cluster have begun: before that nothing may be written to them."""
        return statement("barrier.cluster.wait.aligned;", convergent=True)

    @cached_property
    def meet(self) -> Any:
        """All warps of all blocks of the cluster meet; what they wrote before, to shared memory too, all see after."""
        return statement(
            "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;", convergent=True
        )

    def store_neighbour_pieces(self, pieces: Pieces) -> Any:
        """``op(o0, o1, block, words)``: as `store_shared_pieces`, to the shared memory of a block of the cluster."""

        def body(builder: Any, o0: Any, o1: Any, block: Any, words: Any) -> None:
            there = [_address_in(builder, offset, block) for offset in (o0, o1)]
            for which, constant, chosen in pieces:
                values = [builder.extract_value(words, r) for r in chosen]
                vector = f".v{len(values)}" if len(values) > 1 else ""
                text = f"st.shared::cluster{vector}.b32 [$0+{4 * constant}], {registers(1, len(values))};"
                constraints = "r" + ",r" * len(values) + ",~{memory}"
                asm(builder, VOID, [there[which], *values], text, constraints, effect=True)

        return operation(types.void, (*[types.int64] * 3, None), body)

    def put_neighbour_numbers(self, count: int) -> Any:
        """``op(at, step, block, numbers)``: lane 0 writes float32 to a block's shared memory, ``step`` words apart."""

        def body(builder: Any, at: Any, step: Any, block: Any, numbers: Any) -> None:
            first = builder.zext(builder.icmp_signed("==", lane_of(builder), ir.Constant(I32, 0)), I32)
            there = _address_in(builder, at, block)
            onward = builder.shl(builder.trunc(step, I32), ir.Constant(I32, 2))
            text = "{.reg .pred p; setp.ne.b32 p, $2, 0; @p st.shared::cluster.f32 [$0], $1;}"
            for value in unpack(builder, numbers, count):
                asm(builder, VOID, [there, value, first], text, "r,f,r,~{memory}", effect=True)
                there = builder.add(there, onward)

        return operation(types.void, (*[types.int64] * 3, None), body)


def _address_in(builder: Any, word: Any, block: Any) -> Any:
    """Where in the cluster's shared memory a word of a block lies."""
    values = [shared_address(builder, word), builder.trunc(block, I32)]
    return asm(builder, I32, values, "mapa.shared::cluster.u32 $0, $1, $2;", "=r,r,r")
