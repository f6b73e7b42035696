"""The copy engine, and blocks that form a cluster: what reaches whom on the CPU body, and what the machine refuses."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.linear_run import aligned
from kernels_numba.tensor_maps import TensorMap
from kernels_numba.tile.cpu_group_sums import slab_halves
from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import Buffer, KernelError, Machine

ROWS, COLUMNS, STAGES = 40, 100, 2  # of the matrix; buffers
BOX_ROWS = 24
BOX_WORDS = 1024  # apart
GATES = STAGES * BOX_WORDS
WORDS = GATES + 4 * STAGES
NBYTES = 128 * BOX_ROWS


def run(kernel: Callable, cluster: int = 1, warps: int = 1) -> tuple[Machine, NDArray[np.float32]]:
    """``kernel(tile, x, y)`` in one cluster; x is a map of a matrix of 0, 1, 2 ...; y takes float32."""
    machine = Machine()
    tile = vocabulary(machine, "fp16", "linear")
    data = Buffer("x", aligned(np.arange(ROWS * 104, dtype=np.int16)))
    x = TensorMap(data, ROWS, COLUMNS, 104, BOX_ROWS)
    y = Buffer("y", np.full(4096, np.nan, np.float32))
    machine.run(lambda *given: kernel(tile, *given), cluster, warps, WORDS, [x, y], cluster=cluster)
    return machine, y.data


def refuses(kernel: Callable, message: str, cluster: int = 1, warps: int = 1) -> None:
    with pytest.raises(KernelError, match=re.escape(message)):
        run(kernel, cluster, warps)


# ---- boxes ---------------------------------------------------------------------------------------------------
def test_boxes_come_swizzled_with_zeros_beyond_the_matrix() -> None:
    """Buffers are used again when all have let go of them; a warp asks, two others read."""
    boxes = ((0, 0), (20, 64), (36, 96), (-3, 0))
    wanted = np.zeros((ROWS + 64, 256), np.int16)
    wanted[32 : 32 + ROWS, :COLUMNS] = np.arange(ROWS * 104, dtype=np.int16).reshape(ROWS, 104)[:, :COLUMNS]

    def kernel(tile: Any, x: TensorMap, y: Buffer) -> None:
        tile.begin_gates(STAGES, 2)(0, GATES)
        for number, (row, column) in enumerate(boxes):
            stage, turn = number % STAGES, number // STAGES
            full, free = GATES + 2 * stage, GATES + 2 * (STAGES + stage)
            if tile.warp() == 2:
                if turn:
                    tile.await_barrier(free, turn - 1)
                tile.announce(full, NBYTES)
                tile.bring_box(stage * BOX_WORDS, full, x, row, column)
            else:
                tile.await_barrier(full, turn)
                found = tile.machine.shared.halves[2 * stage * BOX_WORDS :][slab_halves(BOX_ROWS)]
                assert np.array_equal(found, wanted[32 + row :, column : column + 64][:BOX_ROWS])
                tile.arrive(free)

    machine, _ = run(kernel, warps=3)
    assert machine.counters.global_read_bytes == {"x": 2 * (24 * 64 + 20 * 36 + 4 * 4 + 21 * 64)}
    assert machine.counters.shared_written_bytes == 4 * NBYTES


def begun(act: Callable) -> Callable:
    """A kernel that begins and announces a box."""

    def kernel(tile: Any, x: TensorMap, y: Buffer) -> None:
        tile.begin_gates(STAGES, 4)(0, GATES)
        tile.announce(GATES, NBYTES)
        act(tile, x, y)

    return kernel


def test_boxes_are_waited_for() -> None:
    def act(tile: Any, x: TensorMap, y: Buffer) -> None:
        tile.bring_box(0, GATES, x, 0, 0)
        tile.load_shared(1, 1)(tile.lane(), 0)

    refuses(begun(act), "shared memory is read before it was written, or before its copy was waited for")


def test_a_box_that_never_comes() -> None:
    refuses(
        begun(lambda tile, x, y: tile.await_barrier(GATES, 0)),
        "wait for barriers in shared memory that nobody opens",
    )


def test_a_warp_that_does_not_let_go() -> None:
    def act(tile: Any, x: TensorMap, y: Buffer) -> None:
        for _ in range(3):
            tile.arrive(GATES + 2 * STAGES)
        tile.await_barrier(GATES + 2 * STAGES, 0)

    refuses(begun(act), "wait for barriers in shared memory that nobody opens")


def test_boxes_onto_what_a_product_reads_are_refused() -> None:
    def kernel(tile: Any, x: TensorMap, y: Buffer) -> None:
        tile.begin_gates(STAGES, 4)(0, GATES)
        c = tile.group_mma_add(8, 4)(tile.zeros(4)(), 0, BOX_WORDS)
        tile.announce(GATES, NBYTES)
        tile.bring_box(0, GATES, x, 0, 0)
        tile.group_wait(8, 0)(c)

    refuses(kernel, "a box goes to shared memory that a product under way still reads", warps=4)


def test_other_mistakes() -> None:
    nowhere = GATES + 20
    message = f"no barrier in shared memory at word {nowhere}"
    refuses(begun(lambda tile, x, y: tile.await_barrier(nowhere, 0)), message)
    refuses(begun(lambda tile, x, y: tile.announce(GATES, 0)), "a gate for 1 arrivals has had 2 in one turn")
    refuses(begun(lambda tile, x, y: tile.bring_box(32, GATES, x, 0, 0)), "not on 1024 bytes")


# ---- sums of blocks that share a tile ------------------------------------------------------------------------
QUADS = 128  # words of four registers of a warp


def summed(cluster: int, warps: int) -> Callable:
    """Each warp's 4 ``cluster`` registers are added over the blocks; a block writes its part of them to y."""

    def kernel(tile: Any, x: TensorMap, y: Buffer) -> None:
        at, rank = tile.lane(), tile.block() % cluster
        values = (np.arange(4 * cluster)[:, None] + 100 * rank + at).astype(np.float32)
        place = QUADS * tile.warp() + 4 * at
        tile.meet_cluster()
        for to in range(cluster):
            tile.give_sums(4)(
                place + rank * warps * QUADS, to, tile.part_of(4 * cluster, cluster)(values, to)
            )
        tile.meet_cluster()
        total = np.zeros((4, 32), np.float32)
        for p in range(cluster):
            total = total + tile.load_shared(4, 4)(place + p * warps * QUADS, 0).view(np.float32)
        for e in range(4):
            y.data[np.asarray(4 * (tile.block() * 32 * warps + tile.warp() * 32 + at) + e)] = total[e]

    return kernel


@pytest.mark.parametrize("cluster", [2, 3, 8])
def test_sums_of_blocks_meet(cluster: int) -> None:
    warps = 2
    machine, y = run(summed(cluster, warps), cluster, warps)
    found = y[: cluster * warps * 128].reshape(cluster, warps, 32, 4)
    rank, _, lane, register = np.ix_(*map(np.arange, found.shape))
    others = 100 * cluster * (cluster - 1) // 2
    assert np.array_equal(
        found, np.broadcast_to(cluster * (4 * rank + register + lane) + others, found.shape)
    )
    assert machine.counters.shared_written_bytes == cluster * cluster * warps * 4 * QUADS
    assert machine.counters.bank_conflicts == 0


def test_sums_are_read_after_a_meeting() -> None:
    def unmet(tile: Any, x: TensorMap, y: Buffer) -> None:
        if tile.block() == 0:
            tile.give_sums(4)(4 * tile.lane(), 1, np.zeros((4, 32), np.float32))
        else:
            tile.load_shared(4, 4)(4 * tile.lane(), 0)

    refuses(unmet, "a warp reads shared memory that another warp wrote, without a barrier between", cluster=2)
