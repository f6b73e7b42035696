"""Device memory that a prepared object keeps for what its blocks leave for each other."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakSet

import numpy as np

STREAMS = 4
"""Workspaces that are allocated at a time."""


_all: WeakSet[Workspaces] = WeakSet()


def allocated(index: int) -> int:
    """Bytes of all workspaces on a GPU."""
    return sum(buffer.nbytes for space in _all if space.index == index for buffer in space._buffers)


class Workspaces:
    """For each stream a workspace of ``words`` and ``counters`` (zero between launches).

    Launches on one stream come one after the other, so they share; two streams never do. The first call allocates
    for ``streams`` streams, so a stream that a graph is captured on later has one without allocating.
    """

    def __init__(self, index: int, words: int, counters: int, *, streams: int = STREAMS) -> None:
        self.index, self.words, self.counters, self.streams = index, words, counters, streams
        self._of: dict[int, tuple[int, int]] = {}
        self._buffers: list[Any] = []
        self._free: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        _all.add(self)
        self._allocate()

    def of(self, stream: int) -> tuple[int, int]:
        """Addresses of the words and the counters for launches on ``stream``."""
        return self._of.get(stream) or self._assign(stream)

    def _assign(self, stream: int) -> tuple[int, int]:
        with self._lock:
            if stream not in self._of:
                if not self._free:
                    self._allocate()
                self._of[stream] = self._free.pop()
            return self._of[stream]

    def _allocate(self) -> None:
        from kernels_numba.launch import DeviceBuffer

        room = -(-self.counters // 4) * 4  # so that every part begins on a 16-byte boundary
        words = DeviceBuffer(self.index, (self.streams, self.words), np.int32)
        counters = DeviceBuffer.of(np.zeros((self.streams, max(room, 4)), np.int32), self.index)
        self._buffers += [words, counters]
        self._free += [
            (words.pointer + 4 * i * self.words, counters.pointer + 4 * i * room) for i in range(self.streams)
        ]
