"""Blocks that write to each other's shared memory, and grids of three axes, on the CPU body; what is refused."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import KernelError, Machine

WORDS = 1024


def run(kernel: Callable, cluster: int) -> Machine:
    """``kernel(tile)`` in one cluster of blocks of one warp."""
    machine = Machine()
    tile = vocabulary(machine, "fp16", "attention")
    machine.run(lambda: kernel(tile), cluster, 1, WORDS, [], cluster=cluster)
    return machine


PIECES = ((0, 4, (0, 1, 2, 3)),)  # 16 bytes of a lane from word 4 on


def give(tile: Any, block: int) -> None:
    """Two numbers, and four words of each lane: its index and this block's number."""
    index, mine = tile.lane(), int(tile.block())
    words = np.array([np.asarray(index) + 32 * r + 1000 * mine for r in range(4)], np.int32)
    tile.store_neighbour_pieces(PIECES)(4 * index, 0, block, words)
    tile.put_neighbour_numbers(2)(1, 2, block, (np.float32(mine + 0.5), np.float32(mine)))


def take(tile: Any) -> tuple[NDArray, NDArray]:
    """What came."""
    words = tile.load_pieces(PIECES, 4)(4 * tile.lane(), 0, 0, 0)
    return words.copy(), np.array([tile.get_float(1), tile.get_float(3)])


def test_neighbours_write_to_each_other() -> None:
    found = {}

    def kernel(tile: Any) -> None:
        tile.greet()
        mine = int(tile.block())
        tile.await_greetings()
        give(tile, (mine + 1) % 3)
        tile.meet()
        found[mine] = take(tile)

    machine = run(kernel, 3)
    for block, (words, numbers) in found.items():
        other = (block - 1) % 3
        assert np.array_equal(words, np.arange(128).reshape(4, 32) + 1000 * other)
        assert list(numbers) == [other + 0.5, other]
    assert machine.counters.shared_written_bytes == 3 * (512 + 8) and machine.counters.barriers == 2


def test_neighbours_meet_before_they_write_and_before_they_read() -> None:
    def early(tile: Any) -> None:
        give(tile, 1)

    def late(tile: Any) -> None:
        tile.await_greetings()
        if int(tile.block()) == 1:
            give(tile, 0)

    def at_once(tile: Any) -> None:
        tile.await_greetings()
        if int(tile.block()) == 0:
            give(tile, 1)
        else:
            take(tile)

    def over_others(tile: Any) -> None:
        tile.await_greetings()
        give(tile, 1)

    def over_what_is_read(tile: Any) -> None:
        tile.await_greetings()
        give(tile, 1 - int(tile.block()))
        tile.meet()
        take(tile)
        give(tile, int(tile.block()))

    for kernel, message in (
        (early, "a block that may not have begun"),
        (late, "a block that has ended"),
        (at_once, "another warp wrote, without a barrier"),
        (over_others, "that somebody has used since the blocks met"),
        (over_what_is_read, "that somebody has used since the blocks met"),
    ):
        with pytest.raises(KernelError, match=re.escape(message)):
            run(kernel, 2)


def test_places_in_a_grid_of_three_axes() -> None:
    found = []

    def kernel(tile: Any) -> None:
        found.append(tuple(tile.block_along(axis)() for axis in range(3)))

    machine = Machine()
    tile = vocabulary(machine, "fp16", "attention")
    machine.run(lambda: kernel(tile), (2, 3, 4), 1, 1, [])
    assert found == [(x, y, z) for z in range(4) for y in range(3) for x in range(2)]
    assert machine.counters.blocks == 24
