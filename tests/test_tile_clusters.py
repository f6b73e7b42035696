"""Blocks that share what they read: what reaches whom on the CPU body, and what the machine refuses."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.linear_run import aligned
from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import POISON, Buffer, KernelError, Machine

ROW, PLACE, STAGES = 64, 256, 2  # halves of a row; where rows lie, in words; buffers
GATES = PLACE + STAGES * 32 * ROW // 2
WORDS = GATES + 8


def run(kernel: Callable, cluster: int, warps: int = 1) -> tuple[Machine, NDArray[np.int16]]:
    """``kernel(tile, x, y)`` in one cluster; x holds 0, 1, 2 ..., 64 rows; y is poisoned."""
    machine = Machine()
    tile = vocabulary(machine, "fp16", "linear")
    x = Buffer("x", aligned(np.arange(64 * ROW, dtype=np.int16)))
    y = Buffer("y", aligned(np.full(cluster * 64 * ROW, POISON, np.int16)))
    machine.run(lambda *given: kernel(tile, *given), cluster, warps, WORDS, [x, y], cluster=cluster)
    return machine, y.data


def fetch(tile: Any, x: Buffer, cluster: int, stage: int, first: int, count: int) -> None:
    """Rows ``first`` .. of x to all blocks, this block's share of 32 / cluster rows by its rank."""
    at, share = tile.lane(), 32 // cluster
    row = tile.block() % cluster * share + at
    to = 2 * PLACE + (32 * stage + row) * ROW
    ok = (at < share) & (row < count)
    tile.share_row(2 * ROW, cluster)(to, GATES + 2 * stage, x, (first + row) * ROW * ok, ok)


def put(tile: Any, y: Buffer, stage: int, rows: int) -> None:
    """What lies in a buffer to this block's part of y, row ``stage`` * 32 on."""
    load = tile.load_matrices((0,))
    at = tile.lane()
    for first in range(0, rows, 8):
        for column in range(0, ROW, 32):
            word = PLACE + (32 * stage + first + (at & 7)) * ROW // 2 + column // 2 + 4 * (at >> 3)
            values = load(word).view(np.int16).reshape(4, 32, 2)
            target = tile.block() * 64 * ROW + (32 * stage + first + (at >> 2)) * ROW + column + 2 * (at & 3)
            for block in range(4):
                for e in range(2):
                    y.data[np.asarray(target + 8 * block + e)] = values[block, :, e]


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_every_row_reaches_all_blocks(cluster: int) -> None:
    """Each is read once; buffers are used again when all have let go of them."""

    def kernel(tile: Any, x: Buffer, y: Buffer) -> None:
        tile.begin_sharing(STAGES, cluster)(PLACE, GATES)
        for turn in range(2):
            for stage in range(STAGES):
                if turn:
                    tile.await_barrier(GATES + 2 * (STAGES + stage), turn - 1)
                tile.announce(GATES + 2 * stage, 2 * ROW * 30)
                fetch(tile, x, cluster, stage, 2 * turn + 32 * stage, 30)
            for stage in range(STAGES):
                tile.await_barrier(GATES + 2 * stage, turn)
                put(tile, y, stage, 30)
                tile.barrier()
                tile.let_go(cluster)(GATES + 2 * (STAGES + stage))
        tile.end_sharing()

    machine, y = run(kernel, cluster)
    rows = np.arange(64 * ROW, dtype=np.int16).reshape(64, ROW)
    for found in y.reshape(cluster, 2, 32, ROW):
        for stage in range(2):
            wanted = rows[2 + 32 * stage : 64][:30]
            assert np.array_equal(found[stage, : len(wanted)], wanted)
    assert machine.counters.global_read_bytes == {"x": 4 * 30 * ROW * 2}
    assert machine.counters.shared_written_bytes == cluster * 4 * 30 * ROW * 2


def refuses(kernel: Callable, message: str, cluster: int = 2) -> None:
    with pytest.raises(KernelError, match=re.escape(message)):
        run(kernel, cluster)


def begun(act: Callable) -> Callable:
    """A kernel that begins and announces a buffer of 32 rows."""

    def kernel(tile: Any, x: Buffer, y: Buffer) -> None:
        tile.begin_sharing(STAGES, 2)(PLACE, GATES)
        tile.announce(GATES, 2 * ROW * 32)
        act(tile, x, y)
        tile.end_sharing()

    return kernel


def test_copies_are_waited_for() -> None:
    def act(tile: Any, x: Buffer, y: Buffer) -> None:
        fetch(tile, x, 2, 0, 0, 32)
        put(tile, y, 0, 8)

    refuses(begun(act), "shared memory is read before it was written, or before its copy was waited for")


def test_copies_onto_what_is_read_are_refused() -> None:
    """Without a barrier the other warps of the block may still read."""

    def act(tile: Any, x: Buffer, y: Buffer) -> None:
        fetch(tile, x, 2, 0, 0, 32)
        tile.await_barrier(GATES, 0)
        put(tile, y, 0, 8)
        fetch(tile, x, 2, 0, 0, 32)

    refuses(begun(act), "a copy goes to shared memory that a warp of that block may still read")


def test_a_row_that_never_comes() -> None:
    def act(tile: Any, x: Buffer, y: Buffer) -> None:
        fetch(tile, x, 2, 0, 0, 31)
        tile.await_barrier(GATES, 0)

    refuses(begun(act), "wait for barriers in shared memory that nobody opens")


def test_a_block_that_does_not_let_go() -> None:
    def act(tile: Any, x: Buffer, y: Buffer) -> None:
        if tile.block() == 0:
            tile.let_go(2)(GATES + 2 * STAGES)
        tile.await_barrier(GATES + 2 * STAGES, 0)

    refuses(begun(act), "wait for barriers in shared memory that nobody opens")


def test_more_arrivals_than_a_barrier_is_for() -> None:
    def act(tile: Any, x: Buffer, y: Buffer) -> None:
        tile.announce(GATES, 0)

    refuses(begun(act), "a gate for 1 arrivals has had 2 in one turn")


def test_other_mistakes() -> None:
    nowhere = GATES + 20
    message = f"no barrier in shared memory at word {nowhere}"
    refuses(begun(lambda tile, x, y: tile.await_barrier(nowhere, 0)), message)
    refuses(
        lambda tile, x, y: tile.begin_sharing(STAGES, 2)(PLACE, GATES),
        "a kernel for clusters of 2 blocks runs in one of 4",
        cluster=4,
    )
    refuses(
        begun(lambda tile, x, y: tile.share_row(128, 2)(PLACE + 2, GATES, x, 0, True)),
        "a copy to several blocks does not begin on 16 bytes",
    )
