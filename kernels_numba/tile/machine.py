"""A grid of warps on the CPU: what the tile layer's CPU body runs on.

One Python thread per warp, and only one of them awake at a time: a warp runs until a barrier or its end, then
the next one goes on. Runs are therefore deterministic. Lanes are an array axis of length 32; control flow
must be uniform within a warp, and a branch on a value that differs between lanes is an error.

The machine checks what a GPU would leave undefined:

* reading shared memory that nobody wrote, or that another warp wrote since the last barrier, or that another
  lane of the same warp wrote since the last ``warp_sync``, or whose asynchronous copy has not been waited
  for;
* writing shared memory that another warp read or wrote since the last barrier, or that another lane of the same
  warp read or wrote since the last ``warp_sync``;
* a warpgroup product that reads shared memory written since the last barrier, or not fenced by its writer, and
  writing what a product under way reads;
* touching shared memory or a global buffer outside its bounds, or off the access's natural alignment.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import WARP
from kernels_numba.tile.turns import KernelError, Turns

NOBODY, MANY, PAIR = -1, -2, -3
TEAM_EPOCHS = 1 << 32
"""An epoch is the count of block barriers times this, plus that of the team's barriers since."""
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

    def check(self, index: NDArray, width: int) -> None:
        """Indices [pieces] of accesses of ``width`` elements: in bounds and aligned to their own size."""
        if index.size == 0:
            return
        if index.min() < 0 or index.max() + width > self.data.size:
            raise KernelError(
                f"buffer {self.name!r} of {self.data.size} elements accessed at "
                f"{index.min()}..{index.max() + width - 1}"
            )
        address = self.data.ctypes.data + index * self.data.itemsize
        if (address % (width * self.data.itemsize)).any():
            raise KernelError(
                f"buffer {self.name!r}: an access of {width} elements is not aligned to its size"
            )


@dataclass
class Warp:
    """State of one warp."""

    block: int
    index: int
    machine: Machine
    syncs: int = 0

    @property
    def team(self) -> int:
        """Which team of the block this warp is in: the warps that meet at one team barrier."""
        return self.index // self.machine.team_warps

    pending: list[list[tuple[NDArray, NDArray]]] = field(default_factory=list)
    """Groups of asynchronous copies under way, oldest first: (half offsets [32, n], values [32, n])."""
    open_group: list[tuple[NDArray, NDArray]] = field(default_factory=list)


_OTHER_WARP_USES = "a warp writes shared memory that another warp uses, without a barrier between"


class Shared:
    """Shared memory of one block, word by word, with who touched it last."""

    def __init__(self, words: int) -> None:
        self.words = np.full(words, np.int32(0x7FFF7FFF), np.int32)
        self.ready = np.zeros(words, bool)
        self.writer = np.full(words, NOBODY, np.int32)
        self.writer_lane = np.full(words, NOBODY, np.int32)
        self.written_at = np.full(words, NOBODY, np.int64)
        self.written_sync = np.full(words, NOBODY, np.int64)
        self.written_fence = np.full(words, NOBODY, np.int64)
        self.reader = np.full(words, NOBODY, np.int32)
        self.reader_lane = np.full(words, NOBODY, np.int32)
        self.reader_team = np.full(words, NOBODY, np.int32)
        self.read_at = np.full(words, NOBODY, np.int64)
        self.read_sync = np.full(words, NOBODY, np.int64)
        self.busy = np.zeros(words, np.int32)
        """How many warpgroup products under way may still read a word."""

    def _check_bounds(self, index: NDArray) -> None:
        if index.min() < 0 or index.max() >= self.words.size:
            raise KernelError(
                f"shared memory of {self.words.size} words accessed at {index.min()}..{index.max()}"
            )

    def _read_now(self, warp: Warp, index: NDArray, epoch: int) -> NDArray:
        """Which words were read with no barrier between then and now."""
        at = self.read_at[index]
        if warp.machine.one_team:
            return at == epoch
        return self._now(at, self.reader_team[index], warp, epoch)

    def _written_now(self, warp: Warp, index: NDArray, epoch: int) -> NDArray:
        """Which words were written with no barrier between then and now."""
        at = self.written_at[index]
        if warp.machine.one_team:
            return at == epoch
        return self._now(at, self.writer[index] // warp.machine.team_warps, warp, epoch)

    @staticmethod
    def _now(at: NDArray, team: NDArray, warp: Warp, epoch: int) -> NDArray:
        """Whether accesses at epochs ``at`` by ``team`` have no barrier between them and now.

        Another team's are separated by the block's barriers only; no barrier separates them if several teams read.
        """
        same_block = at // TEAM_EPOCHS == epoch // TEAM_EPOCHS
        return (at == epoch) | (same_block & (at >= 0) & (team != warp.team))

    def read_async(self, warp: Warp, index: NDArray, epoch: int, fences: list[int]) -> None:
        """A warpgroup product reads words ``index``."""
        self._check_bounds(index)
        if not self.ready[index].all():
            raise KernelError(
                "a product reads shared memory that was not written, or whose copy was not waited for"
            )
        writer = self.writer[index]
        if self._written_now(warp, index, epoch).any():
            raise KernelError("a product reads shared memory that was written without a barrier between")
        if (np.asarray(fences)[writer] == self.written_fence[index]).any():
            raise KernelError("a product reads shared memory that its writer did not fence (fence_async)")
        self._note_read(warp, index, epoch)
        self.reader_lane[index] = MANY

    def note_late_read(self, warp: Warp, index: NDArray, epoch: int) -> None:
        """A product that read words ``index`` has ended: it may have read them until now."""
        self._note_read(warp, index, epoch)
        self.reader_lane[index] = MANY

    def _note_read(self, warp: Warp, index: NDArray, epoch: int) -> NDArray:
        """Remember who reads; whether others had read since the last barrier."""
        read_now = self._read_now(warp, index, epoch)
        if not warp.machine.one_team:
            team = self.reader_team[index]
            self.reader_team[index] = np.where(read_now & (team != warp.team), MANY, warp.team)
        self.read_at[index] = epoch
        if not read_now.any():
            self.reader[index] = warp.index
            return read_now
        reader = self.reader[index]
        self.reader[index] = np.where(read_now & (reader != warp.index), MANY, warp.index)
        return read_now & (reader == warp.index)

    def read(self, warp: Warp, index: NDArray, epoch: int) -> NDArray[np.int32]:
        """Words at ``index`` [..., 32]."""
        self._check_bounds(index)
        if not self.ready[index].all():
            raise KernelError(
                "shared memory is read before it was written, or before its copy was waited for"
            )
        recent = self._written_now(warp, index, epoch)
        if recent.any():
            other = recent & (self.writer[index] != warp.index)
            if other.any():
                raise KernelError(
                    "a warp reads shared memory that another warp wrote, without a barrier between"
                )
            other = recent & (self.writer_lane[index] != _INDICES) & (self.written_sync[index] == warp.syncs)
            if other.any():
                raise KernelError(
                    "a lane reads shared memory that another lane wrote, without warp_sync between"
                )
        before = self._note_read(warp, index, epoch) & (self.read_sync[index] == warp.syncs)
        several = before & (self.reader_lane[index] != _INDICES)
        self.reader_lane[index] = _INDICES
        several |= self.reader_lane[index] != _INDICES  # lanes of this very access
        self.reader_lane[index[several]] = MANY
        self.read_sync[index] = warp.syncs
        return self.words[index]

    def begin_write(
        self, warp: Warp, index: NDArray, lanes: NDArray, epoch: int, *, single_halves: bool = False
    ) -> None:
        """Check a write by ``lanes`` of ``warp`` to words ``index``, which are not readable before its end.

        ``single_halves``: the lanes write 16 bits each, so two of them may share a word.
        """
        self._check_bounds(index)
        if self.busy[index].any():
            raise KernelError("shared memory is written while a product that reads it is under way")
        read_now, written_now = self._read_now(warp, index, epoch), self._written_now(warp, index, epoch)
        raced = np.zeros(index.shape, bool)
        if read_now.any():
            if (read_now & (self.reader[index] != warp.index)).any():
                raise KernelError(_OTHER_WARP_USES)
            raced |= read_now & (self.read_sync[index] == warp.syncs) & (self.reader_lane[index] != lanes)
        if written_now.any():
            if (written_now & (self.writer[index] != warp.index)).any():
                raise KernelError(_OTHER_WARP_USES)
            writer = self.writer_lane[index]
            this_sync = written_now & (self.written_sync[index] == warp.syncs)
            raced |= this_sync & (writer != lanes) & (writer != PAIR)
        self.writer_lane[index] = PAIR if single_halves else lanes
        if not single_halves:
            raced |= self.writer_lane[index] != lanes  # lanes of this very access
        if raced.any():
            raise KernelError("a lane writes shared memory that another lane uses, without warp_sync between")
        self.writer[index] = warp.index
        self.written_at[index] = epoch
        self.written_sync[index] = warp.syncs
        self.ready[index] = False

    def finish_write(self, warp: Warp, index: NDArray, epoch: int) -> None:
        """The words become readable: to the writing lane at once, to others after a synchronisation."""
        self.ready[index] = True
        self.written_at[index] = epoch
        self.written_sync[index] = warp.syncs
        self.written_fence[index] = warp.machine.fences[warp.index]

    @property
    def halves(self) -> NDArray[np.int16]:
        """The same memory as 16-bit elements."""
        return self.words.view(np.int16)


_INDICES = np.arange(WARP)


@lru_cache(maxsize=4096)
def _wavefronts(pattern: bytes, width: int) -> tuple[int, int]:
    """Passes over the banks for one access of ``width`` words a lane, and how many different words there are.

    ``pattern`` is the lanes' word offsets. Wide accesses are served in groups of 32 / width lanes; lanes that want
    the same word share it.
    """
    offsets = np.frombuffer(pattern, np.int64)
    total = 0
    for part in offsets.reshape(width, WARP // width):
        words = np.unique(part[:, None] + np.arange(width))
        total += int(np.bincount(words % 32, minlength=32).max())
    return total, np.unique(offsets[:, None] + np.arange(width)).size


class Machine:
    """Runs kernel functions over a grid and counts what they do."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.local = threading.local()
        self.shared = Shared(1)
        self.team_warps = ONE_TEAM
        """Warps that meet at a team barrier; one team unless a kernel has such barriers."""
        self.fences: list[int] = []
        """By warp of the block, how often it fenced its writes for warpgroup products."""
        self.products: dict[int, deque[NDArray]] = {}
        """By warp of the block, the words that its warpgroup products under way read, oldest first."""
        self._block_epoch = 0
        self._team_epochs: dict[int, int] = {}

    @property
    def one_team(self) -> bool:
        """Whether the block's barriers are the only ones."""
        return self.team_warps == ONE_TEAM

    @property
    def warp(self) -> Warp:
        """The warp that is running."""
        return self.local.warp

    @property
    def epoch(self) -> int:
        """Counts the barriers that the running warp has passed: the block's, and between them its team's."""
        return self._block_epoch * TEAM_EPOCHS + self._team_epochs.get(self.warp.team, 0)

    def count_shared(self, offsets: NDArray, width: int, *, write: bool) -> None:
        """One shared-memory instruction: word offsets [32], ``width`` words a lane."""
        if (offsets % width).any():
            raise KernelError(f"shared memory: an access of {width} words is not aligned to its size")
        nbytes = 4 * width * WARP
        if write:
            self.counters.shared_written_bytes += nbytes
        else:
            self.counters.shared_read_bytes += nbytes
        relative = np.ascontiguousarray(offsets - offsets.min(), np.int64)
        passes, words = _wavefronts(relative.tobytes(), width)
        self.counters.shared_wavefronts += passes
        self.counters.bank_conflicts += passes - max(1, -(-words // 32))

    # ---- running -------------------------------------------------------------------------------------------
    def run(
        self, kernel: Callable, grid: int, warps: int, shared_words: int, arguments: Sequence[Any]
    ) -> Counters:
        """Launch ``kernel`` on ``grid`` blocks of ``warps`` warps; raises what the kernel raises."""
        for block in range(grid):
            self.shared = Shared(max(shared_words, 1))
            self._run_block(kernel, block, warps, arguments)
        self.counters.blocks += grid
        self.counters.warps += grid * warps
        return self.counters

    def _run_block(self, kernel: Callable, block: int, warps: int, arguments: Sequence[Any]) -> None:
        state = Turns(warps)
        self._turns = state
        self.fences = [0] * warps
        self.products = {}
        self._block_epoch += 1
        self._team_epochs = {}

        def body(index: int) -> None:
            self.local.warp = Warp(block, index, self)
            try:
                state.wait_turn(index)
                kernel(*arguments)
                if self.products.get(index):
                    raise KernelError(f"warp {index} ended while products of it are under way")
            except BaseException as error:
                state.fail(error)
            finally:
                state.leave(index)

        threads = [threading.Thread(target=body, args=(i,), daemon=True) for i in range(warps)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if state.error is not None:
            raise state.error
        self.counters.barriers += state.barriers

    def barrier(self) -> None:
        """The running warp waits for all others."""
        warp = self.warp
        warp.syncs += 1
        self._turns.arrive(warp.index, self._open)
        self._turns.wait_turn(warp.index)

    def _open(self) -> None:
        self._block_epoch += 1
        self._team_epochs = {}

    def team_barrier(self, team: int) -> None:
        """The running warp waits for the others of its team."""
        warp = self.warp
        if team != warp.team:
            raise KernelError(
                f"warp {warp.index} is in team {warp.team} and waits at the barrier of team {team}"
            )
        warp.syncs += 1
        members = range(team * self.team_warps, (team + 1) * self.team_warps)

        def opening() -> None:
            self._team_epochs[team] = self._team_epochs.get(team, 0) + 1

        self._turns.arrive(warp.index, opening, members)
        self._turns.wait_turn(warp.index)
