"""A grid of warps on the CPU: what the tile layer's CPU body runs on.

One Python thread per warp, and only one of them awake at a time: a warp runs until a barrier or its end, then
the next one goes on. (A warp that is alone runs in the caller's thread.) Runs are therefore deterministic. Lanes are
an array axis of length 32; control flow must be uniform within a warp, and a branch on a value that differs between
lanes is an error.

The machine checks what a GPU would leave undefined:

* reading shared memory that nobody wrote, or that another warp wrote since the last barrier, or that another
  lane of the same warp wrote since the last ``warp_sync``, or whose asynchronous copy has not been waited
  for;
* writing shared memory that another warp read or wrote since the last barrier, or that another lane of the same
  warp read or wrote since the last ``warp_sync``;
* a warpgroup product that reads shared memory written since the last barrier, or not fenced by its writer, and
  writing what a product under way reads;
* writing to another block's shared memory before that block has begun or after it has ended, or where somebody has
  used it since the blocks met; and reading what came so before they meet again;
* touching shared memory or a global buffer outside its bounds, or off the access's natural alignment.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.blocks import TEAM_EPOCHS, Block, Shared, Warp, highest
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.turns import KernelError, Turns, closed_gate

ONE_TEAM = 1 << 16
"""Warps of a team where a kernel has no team barriers: more than a block has."""
POISON = np.int16(0x7FFF)  # a NaN in both half-precision formats


class Lanes(np.ndarray):
    """A value per lane. Behaves as a value: ``x += 1`` makes a new one, and truth must be uniform."""

    def __bool__(self) -> bool:
        flat = np.asarray(self).reshape(-1)
        if (flat != flat[0]).any():
            raise KernelError("a branch depends on a value that differs between the lanes of a warp")
        return bool(flat[0])

    def _rebind(operation: Callable) -> Callable:  # type: ignore[misc]
        def inplace(self: Lanes, other: Any) -> Any:
            return operation(self, other)

        return inplace

    __iadd__ = _rebind(np.add)
    __isub__ = _rebind(np.subtract)
    __imul__ = _rebind(np.multiply)
    __ifloordiv__ = _rebind(np.floor_divide)
    __imod__ = _rebind(np.remainder)
    __ilshift__ = _rebind(np.left_shift)
    __irshift__ = _rebind(np.right_shift)
    __ior__ = _rebind(np.bitwise_or)
    __iand__ = _rebind(np.bitwise_and)
    __ixor__ = _rebind(np.bitwise_xor)


LANES = np.arange(WARP).view(Lanes)
LANES.setflags(write=False)


@dataclass
class Buffer:
    """A named global buffer: a flat array of 16-bit, 32-bit or float32 elements."""

    name: str
    data: NDArray

    def __post_init__(self) -> None:
        self.address: int = self.data.ctypes.data

    def check(self, index: NDArray, width: int) -> None:
        """Indices [pieces] of accesses of ``width`` elements: in bounds and aligned to their own size."""
        if index.size == 0:
            return
        if highest(index) + width > self.data.size:
            raise KernelError(
                f"buffer {self.name!r} of {self.data.size} elements accessed at "
                f"{index.min()}..{index.max() + width - 1}"
            )
        item = self.data.itemsize
        first = self.address // item
        if self.address % item or (width > 1 and np.count_nonzero((first + index) % width)):
            raise KernelError(
                f"buffer {self.name!r}: an access of {width} elements is not aligned to its size"
            )


@lru_cache(maxsize=1 << 14)
def _wavefronts(pattern: bytes, width: int) -> tuple[int, int]:
    """Passes over the banks for one access of ``width`` words a lane, and how many are beyond the fewest.

    ``pattern`` is the lanes' word offsets, from any of them: the banks' order does not matter. Wide accesses are served
    in groups of 32 / width lanes; lanes that want the same word share it.
    """
    offsets = np.frombuffer(pattern, np.int64)
    if (offsets % width).any():
        raise _misaligned(width)
    total = 0
    for part in offsets.reshape(width, WARP // width):
        words = np.unique(part[:, None] + np.arange(width))
        total += int(np.bincount(words % 32, minlength=32).max())
    needed = np.unique(offsets[:, None] + np.arange(width)).size
    return total, total - max(1, -(-needed // 32))


def _misaligned(width: int) -> KernelError:
    return KernelError(f"shared memory: an access of {width} words is not aligned to its size")


class Machine:
    """Runs kernel functions over a grid and counts what they do."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.team_warps = ONE_TEAM
        """Warps that meet at a team barrier; one team unless a kernel has such barriers."""
        self.grid = (1, 1, 1)
        self._rest()

    def _rest(self) -> None:
        """No kernel runs: what the last one had in memory goes at once, without a garbage collection."""
        self.cluster: list[Block] = []
        """The blocks that run at once,"""
        self.here = Block(1, 0, 0)
        """and that of the running warp,"""
        self.warp = Warp(0, 0, self)
        """which is this one."""

    @property
    def one_team(self) -> bool:
        """Whether the block's barriers are the only ones."""
        return self.team_warps == ONE_TEAM

    @property
    def shared(self) -> Shared:
        """Shared memory of its block."""
        return self.here.shared

    @property
    def fences(self) -> list[int]:
        """By warp of the block, how often it fenced its writes for warpgroup products."""
        return self.here.fences

    @property
    def products(self) -> dict[int, deque[NDArray]]:
        """By warp of the block, the words that its warpgroup products under way read, oldest first."""
        return self.here.products

    @property
    def epoch(self) -> int:
        """Counts the barriers that the running warp has passed: the block's, and between them its team's."""
        here = self.here
        among_teams = here.team_epochs.get(self.warp.team, 0) if here.team_epochs else 0
        return here.epoch * TEAM_EPOCHS + among_teams

    def count_shared(self, offsets: NDArray, width: int, *, write: bool) -> None:
        """One shared-memory instruction: word offsets [32], ``width`` words a lane."""
        first = offsets[0]
        if first % width:
            raise _misaligned(width)
        nbytes = 4 * width * WARP
        if write:
            self.counters.shared_written_bytes += nbytes
        else:
            self.counters.shared_read_bytes += nbytes
        relative = np.asarray(offsets - first, np.int64)
        passes, conflicts = _wavefronts(relative.tobytes(), width)
        self.counters.shared_wavefronts += passes
        self.counters.bank_conflicts += conflicts

    # ---- running -------------------------------------------------------------------------------------------
    def run(
        self,
        kernel: Callable,
        grid: int | tuple[int, int, int],
        warps: int,
        shared_words: int,
        arguments: Sequence[Any],
        *,
        cluster: int = 1,
    ) -> Counters:
        """Launch ``kernel`` on a grid of blocks of ``warps`` warps, ``cluster`` at once; raises what it raises."""
        self.grid = (grid, 1, 1) if isinstance(grid, int) else grid
        blocks = prod(self.grid)
        firsts = range(0, cluster * warps, warps)
        self.cluster = [Block(max(shared_words, 1), warps, first) for first in firsts]
        gates = [closed_gate() for _ in range(cluster * warps + 1)]
        threads: list[threading.Thread] = []
        running = True
        failure: BaseException | None = None

        def follow(place: int) -> None:
            """One thread: a warp of every cluster, one after the other."""
            while True:
                gates[place].acquire()
                if not running:
                    return
                self._run_warp(place, warps, kernel, arguments)

        if cluster * warps > 1:
            threads += (
                threading.Thread(target=follow, args=(i,), daemon=True) for i in range(len(gates) - 1)
            )
        for thread in threads:
            thread.start()
        for self._first in range(0, blocks, cluster):
            for block in self.cluster:
                block.begin()
            turns = self._turns = Turns(gates)
            if threads:
                turns.begin()
            else:
                self._run_warp(0, 1, kernel, arguments)
            gates[-1].acquire()
            self.counters.barriers += turns.barriers
            failure = turns.error
            if failure is not None:
                break
        running = False
        for gate in gates[:-1]:
            gate.release()
        for thread in threads:
            thread.join()
        self._rest()
        if failure is not None:
            raise failure
        self.counters.blocks += blocks
        self.counters.warps += blocks * warps
        return self.counters

    def _run_warp(self, place: int, warps: int, kernel: Callable, arguments: Sequence[Any]) -> None:
        """Warp ``place`` of the cluster, which has the baton."""
        turns = self._turns
        rank, index = divmod(place, warps)
        self.here = self.cluster[rank]
        self.warp = Warp(self._first + rank, index, self)
        failure: BaseException | None = None
        try:
            if turns.error is None:
                kernel(*arguments)
                if self.products.get(index):
                    raise KernelError(f"warp {index} ended while products of it are under way")
                self.here.ended = True
        except BaseException as error:
            failure = error
        turns.leave(place, failure)

    def _wait(self, turn: Callable[[int], None]) -> None:
        """The running warp does what lets others run before it goes on."""
        warp, here = self.warp, self.here
        turn(here.first_warp + warp.index)
        self.warp, self.here = warp, here

    def _meet(self, opening: Callable[[], None], members: range | None) -> None:
        """The running warp waits for the others among ``members``, all if None."""
        self.warp.syncs += 1
        self._wait(lambda place: self._turns.arrive(place, opening, members))

    def barrier(self) -> None:
        """The running warp waits for all others of its block."""
        here = self.here
        alone = len(self.cluster) == 1
        members = None if alone else range(here.first_warp, here.first_warp + len(here.fences))
        self._meet(here.open, members)

    def cluster_barrier(self) -> None:
        """The running warp waits for all others of all blocks of its cluster."""

        def opening() -> None:
            for block in self.cluster:
                block.open()
                block.greeted = True

        self._meet(opening, None)

    def team_barrier(self, team: int) -> None:
        """The running warp waits for the others of its team."""
        warp, here = self.warp, self.here
        if team != warp.team:
            raise KernelError(
                f"warp {warp.index} is in team {warp.team} and waits at the barrier of team {team}"
            )
        first = here.first_warp + team * self.team_warps

        def opening() -> None:
            here.team_epochs[team] = here.team_epochs.get(team, 0) + 1

        self._meet(opening, range(first, first + self.team_warps))

    def await_gate(self, word: int, parity: int) -> None:
        """The running warp waits until the gate's turn of this parity has ended; what came with it is there then."""
        gate = self.here.gate(word)
        while gate.turns % 2 == parity:
            self._wait(self._turns.let_others)
        gate.land(self.here.shared)

    def gate_moved(self) -> None:
        """Somebody arrived at a gate: who waits for one may go on."""
        self._turns.idle = 0
