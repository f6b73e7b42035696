"""Whose turn it is: the warps of a block as threads, of which one runs at a time; see `machine.py`."""

from __future__ import annotations

import threading
from collections.abc import Callable


class KernelError(RuntimeError):
    """A kernel did something that is undefined on a GPU."""


def closed_gate() -> threading.Lock:
    """A lock that opens when somebody else releases it."""
    gate = threading.Lock()
    gate.acquire()
    return gate


class Turns:
    """A baton: which warp may run. Warps run in order of index between barriers.

    Only the thread that holds the baton touches anything here, so nothing is locked. A thread that waits for it waits
    at a gate of its own, a lock that is closed but when its turn comes; so passing the baton wakes one thread.
    """

    def __init__(self, gates: list[threading.Lock]) -> None:
        self.gates = gates
        """One for each warp, and one for whoever waits until all warps have ended."""
        self.warps = len(gates) - 1
        self.alive = list(range(self.warps))
        self.queue = list(range(self.warps))
        self.arrived: dict[range | None, list[int]] = {}
        self.barriers = 0
        self.idle = 0
        """How often in a row warps found nothing to do and let others go first."""
        self.error: BaseException | None = None

    def begin(self) -> None:
        """The first warp may run."""
        self.gates[self.queue[0]].release()

    def _give_way(self, index: int) -> None:
        """The first of the queue goes on; so does this warp, when it is the first."""
        first = self.queue[0]
        if first == index:
            return
        self.gates[first].release()
        self.gates[index].acquire()
        if self.error is not None:
            raise Stopped

    def arrive(self, index: int, opening: Callable[[], None], members: range | None = None) -> None:
        """Reach a barrier of the block or of ``members``, and wait until it is open and this warp's turn.

        The last warp opens it, and calls ``opening`` before any other can go on.
        """
        wanted = set(range(self.warps) if members is None else members)
        if not wanted <= set(self.alive):
            raise KernelError("a warp waits at a barrier that another warp of its block never reaches")
        self.queue.remove(index)
        waiting = self.arrived.setdefault(members, [])
        waiting.append(index)
        if len(waiting) == len(wanted):
            opening()  # before any other warp can run
            self.queue = sorted([*self.queue, *waiting])
            del self.arrived[members]
            self.barriers += 1
            self.idle = 0
        elif not self.queue:
            raise KernelError(_DIFFERENT_BARRIERS)
        self._give_way(index)

    def let_others(self, index: int) -> None:
        """A warp waits for what another one will do: it goes to the end of the queue."""
        self.idle += 1
        if self.idle > len(self.queue):
            raise KernelError("all warps that could run wait for barriers in shared memory that nobody opens")
        self.queue.remove(index)
        self.queue.append(index)
        self._give_way(index)

    def leave(self, index: int, error: BaseException | None = None) -> None:
        """A warp has ended, or failed: then all others end at their next turn."""
        self.alive.remove(index)
        if index in self.queue:
            self.queue.remove(index)
        if self.error is None and not isinstance(error, Stopped):
            self.error = error
        if self.error is None and any(m is None or index in m for m in self.arrived):
            self.error = KernelError("a warp ended while others of its block wait at a barrier")
        if self.error is None and self.alive and not self.queue:
            self.error = KernelError(_DIFFERENT_BARRIERS)
        if self.error is not None:
            self.queue = list(self.alive)
        self.gates[self.queue[0] if self.alive else -1].release()


_DIFFERENT_BARRIERS = "the warps of a block wait at different barriers"


class Stopped(BaseException):
    """Another warp failed; this one ends."""
