"""The state of warps and blocks that `machine.py` runs: shared memory with who touched it last, and its barriers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile.layout import WARP
from kernels_numba.tile.turns import KernelError

if TYPE_CHECKING:
    from kernels_numba.tile.machine import Machine

NOBODY, MANY, PAIR = -1, -2, -3
TEAM_EPOCHS = 1 << 32
"""An epoch is the count of block barriers times this, plus that of the team's barriers since."""


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
    """Groups of asynchronous copies under way, oldest first: (words [..., 32, n], values)."""
    open_group: list[tuple[NDArray, NDArray]] = field(default_factory=list)


def highest(index: NDArray) -> int:
    """The largest of some indices, where a negative one counts as larger than any that can be."""
    return int(np.maximum.reduce(np.asarray(index, np.int64).view(np.uint64), axis=None))


_OTHER_WARP_USES = "a warp writes shared memory that another warp uses, without a barrier between"


class Shared:
    """Shared memory of one block, word by word, with who touched it last."""

    def __init__(self, words: int) -> None:
        self.words = np.empty(words, np.int32)
        self.halves = self.words.view(np.int16)
        """The same memory as 16-bit elements."""
        self.ready = np.empty(words, bool)
        self.writer = np.full(words, NOBODY, np.int32)
        self.writer_lane = np.full(words, NOBODY, np.int32)
        self.written_at = np.full(words, NOBODY, np.int64)
        self.written_sync = np.full(words, NOBODY, np.int64)
        self.written_fence = np.empty(words, np.int64)
        self.reader = np.full(words, NOBODY, np.int32)
        self.reader_lane = np.full(words, NOBODY, np.int32)
        self.reader_team = np.full(words, NOBODY, np.int32)
        self.read_at = np.full(words, NOBODY, np.int64)
        self.read_sync = np.full(words, NOBODY, np.int64)
        self.busy = np.zeros(words, np.int32)
        """How many warpgroup products under way may still read a word,"""
        self.under_way = 0
        """and how many such products there are."""
        self.last_read = self.last_write = NOBODY
        """The newest of ``read_at`` and of ``written_at``."""

    def begin(self) -> None:
        """A new block: nothing has been written. When the memory was used before may stay: epochs go on."""
        self.words.fill(0x7FFF7FFF)
        self.ready.fill(False)
        self.written_fence.fill(NOBODY)

    def hold(self, index: NDArray) -> None:
        """A warpgroup product that reads words ``index`` begins."""
        np.add.at(self.busy, index, 1)
        self.under_way += 1

    def let_go(self, index: NDArray) -> None:
        """It has ended."""
        np.subtract.at(self.busy, index, 1)
        self.under_way -= 1

    def _check_bounds(self, index: NDArray) -> None:
        if highest(index) >= self.words.size:
            raise KernelError(
                f"shared memory of {self.words.size} words accessed at {index.min()}..{index.max()}"
            )

    def _read_now(self, warp: Warp, index: NDArray, epoch: int) -> NDArray | None:
        """Which words were read with no barrier between then and now; None for none."""
        if self.last_read // TEAM_EPOCHS < epoch // TEAM_EPOCHS:
            return None
        at = self.read_at[index]
        if warp.machine.one_team:
            return _some(at == epoch)
        return _some(self._now(at, self.reader_team[index], warp, epoch))

    def _written_now(self, warp: Warp, index: NDArray, epoch: int) -> NDArray | None:
        """Which words were written with no barrier between then and now; None for none."""
        if self.last_write // TEAM_EPOCHS < epoch // TEAM_EPOCHS:
            return None
        at = self.written_at[index]
        if warp.machine.one_team:
            return _some(at == epoch)
        return _some(self._now(at, self.writer[index] // warp.machine.team_warps, warp, epoch))

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
        if self._written_now(warp, index, epoch) is not None:
            raise KernelError("a product reads shared memory that was written without a barrier between")
        if (np.asarray(fences)[writer] == self.written_fence[index]).any():
            raise KernelError("a product reads shared memory that its writer did not fence (fence_async)")
        self._note_read(warp, index, epoch)
        self.reader_lane[index] = MANY

    def note_late_read(self, warp: Warp, index: NDArray, epoch: int) -> None:
        """A product that read words ``index`` has ended: it may have read them until now."""
        self._note_read(warp, index, epoch)
        self.reader_lane[index] = MANY

    def _note_read(self, warp: Warp, index: NDArray, epoch: int) -> NDArray | None:
        """Remember who reads; which words this warp had read since the last barrier, None for none."""
        read_now = self._read_now(warp, index, epoch)
        if not warp.machine.one_team:
            team = warp.team
            self.reader_team[index] = (
                team
                if read_now is None
                else np.where(read_now & (self.reader_team[index] != team), MANY, team)
            )
        self.read_at[index] = epoch
        self.last_read = max(self.last_read, epoch)
        if read_now is None:
            self.reader[index] = warp.index
            return None
        reader = self.reader[index]
        self.reader[index] = np.where(read_now & (reader != warp.index), MANY, warp.index)
        return read_now & (reader == warp.index)

    def read(self, warp: Warp, index: NDArray, epoch: int) -> NDArray[np.int32]:
        """Words at ``index`` [..., 32]."""
        self._check_bounds(index)
        if np.count_nonzero(self.ready[index]) < index.size:
            raise KernelError(
                "shared memory is read before it was written, or before its copy was waited for"
            )
        recent = self._written_now(warp, index, epoch)
        if recent is not None:
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
        before = self._note_read(warp, index, epoch)
        if before is not None:
            before &= (self.read_sync[index] == warp.syncs) & (self.reader_lane[index] != _INDICES)
        self.reader_lane[index] = _INDICES
        several = self.reader_lane[index] != _INDICES  # lanes of this very access
        if before is not None:
            several |= before
        if np.count_nonzero(several):
            self.reader_lane[index[several]] = MANY
        self.read_sync[index] = warp.syncs
        return self.words[index]

    def begin_write(
        self, warp: Warp, index: NDArray, lanes: NDArray, epoch: int, *, single_halves: bool = False
    ) -> None:
        """Check a write by ``lanes`` of ``warp`` to words ``index``, which are not readable before its end.

        ``single_halves``: the lanes write 16 bits each, so two of them may share a word.
        """
        self._claim(warp, index, lanes, epoch, single_halves)
        self.ready[index] = False

    def write(
        self, warp: Warp, index: NDArray, values: NDArray, epoch: int, lanes: NDArray | None = None
    ) -> None:
        """``lanes`` of ``warp``, all if None, write words ``index``."""
        self._claim(warp, index, _INDICES if lanes is None else lanes, epoch, False)
        self.words[index] = values
        self.ready[index] = True
        self.written_fence[index] = warp.machine.fences[warp.index]

    def _claim(self, warp: Warp, index: NDArray, lanes: NDArray, epoch: int, single_halves: bool) -> None:
        self._check_bounds(index)
        if self.under_way and self.busy[index].any():
            raise KernelError("shared memory is written while a product that reads it is under way")
        read_now, written_now = self._read_now(warp, index, epoch), self._written_now(warp, index, epoch)
        raced: NDArray | None = None
        if read_now is not None:
            if (read_now & (self.reader[index] != warp.index)).any():
                raise KernelError(_OTHER_WARP_USES)
            raced = read_now & (self.read_sync[index] == warp.syncs) & (self.reader_lane[index] != lanes)
        if written_now is not None:
            if (written_now & (self.writer[index] != warp.index)).any():
                raise KernelError(_OTHER_WARP_USES)
            writer = self.writer_lane[index]
            this_sync = written_now & (self.written_sync[index] == warp.syncs)
            overwritten = this_sync & (writer != lanes) & (writer != PAIR)
            raced = overwritten if raced is None else raced | overwritten
        self.writer_lane[index] = PAIR if single_halves else lanes
        if not single_halves:
            shared = self.writer_lane[index] != lanes  # lanes of this very access
            raced = shared if raced is None else raced | shared
        if raced is not None and np.count_nonzero(raced):
            raise KernelError("a lane writes shared memory that another lane uses, without warp_sync between")
        self.writer[index] = warp.index
        self._note_write(warp, index, epoch)

    def _note_write(self, warp: Warp, index: NDArray, epoch: int) -> None:
        self.written_at[index] = epoch
        self.last_write = max(self.last_write, epoch)
        self.written_sync[index] = warp.syncs

    def finish_write(self, warp: Warp, index: NDArray, epoch: int) -> None:
        """The words become readable: to the writing lane at once, to others after a synchronisation."""
        self.ready[index] = True
        self._note_write(warp, index, epoch)
        self.written_fence[index] = warp.machine.fences[warp.index]


_INDICES = np.arange(WARP)


def _some(found: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """None for none."""
    return found if np.count_nonzero(found) else None


@dataclass
class Gate:
    """A barrier in shared memory that ``expected`` arrivals and the bytes that were announced open, turn after turn."""

    expected: int
    arrived: int = 0
    missing_bytes: int = 0
    turns: int = 0
    """How often it has opened."""
    coming: list[tuple[NDArray, NDArray]] = field(default_factory=list)
    """Words and values that were copied in this turn,"""
    came: list[tuple[NDArray, NDArray]] = field(default_factory=list)
    """and in turns that have ended, but that nobody has waited for."""

    def change(self, *, arrivals: int = 0, announced: int = 0, brought: int = 0) -> None:
        """Somebody arrives, announces bytes, or brings them."""
        self.arrived += arrivals
        self.missing_bytes += announced - brought
        if self.arrived > self.expected:
            raise KernelError(f"a gate for {self.expected} arrivals has had {self.arrived} in one turn")
        if self.arrived == self.expected and self.missing_bytes == 0:
            self.arrived = 0
            self.turns += 1
            self.came += self.coming
            self.coming = []

    def land(self, shared: Shared) -> None:
        """What came is there to be read."""
        for index, values in self.came:
            shared.words[index] = values
            shared.ready[index] = True
            shared.written_at[index] = NOBODY
        self.came = []


class Block:
    """State of a block: its shared memory, what its warps have under way, the barriers that they passed."""

    def __init__(self, shared_words: int, warps: int, first_warp: int) -> None:
        self.shared = Shared(shared_words)
        self.warps = warps
        self.first_warp = first_warp
        """Its first warp among those of its cluster."""
        self.epoch = 0
        self.begin()

    def begin(self) -> None:
        """A block begins, after others that had the same memory."""
        self.shared.begin()
        self.fences = [0] * self.warps
        self.products: dict[int, deque[NDArray]] = {}
        self.gates: dict[int, Gate] = {}
        """Gates by the word of shared memory they lie at."""
        self.greeted = False
        """Whether the blocks of its cluster have met since it began,"""
        self.ended = False
        """and whether a warp of it has ended."""
        self.open()

    def accept(self, index: NDArray, words: NDArray) -> None:
        """A warp of any block of the cluster writes words ``index``, to be read when the blocks have met."""
        shared, now = self.shared, self.epoch * TEAM_EPOCHS
        shared._check_bounds(index)
        if not self.greeted:
            raise KernelError("a warp writes to shared memory of a block that may not have begun")
        if self.ended:
            raise KernelError("a warp writes to shared memory of a block that has ended")
        if (shared.read_at[index] >= now).any() or (shared.written_at[index] >= now).any():
            raise KernelError(
                "a warp writes to another block's shared memory that somebody has used since the blocks met"
            )
        shared.words[index], shared.ready[index] = words, True
        shared.written_at[index], shared.writer[index] = now, MANY
        shared.last_write = max(shared.last_write, now)

    def open(self) -> None:
        """All warps have met."""
        self.epoch += 1
        self.team_epochs: dict[int, int] = {}

    def gate(self, word: int) -> Gate:
        """The gate at a word."""
        if word not in self.gates:
            raise KernelError(f"there is no barrier in shared memory at word {word}")
        return self.gates[word]
