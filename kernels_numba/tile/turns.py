"""Whose turn it is: the warps of a block as threads, of which one runs at a time; see `machine.py`."""

from __future__ import annotations

import threading
from collections.abc import Callable


class KernelError(RuntimeError):
    """A kernel did something that is undefined on a GPU."""


class Turns:
    """A baton: which warp may run. Warps run in order of index between barriers."""

    def __init__(self, warps: int) -> None:
        self.warps = warps
        self.alive = list(range(warps))
        self.queue = list(range(warps))
        self.arrived: dict[range | None, list[int]] = {}
        self.barriers = 0
        self.idle = 0
        """How often in a row warps found nothing to do and let others go first."""
        self.error: BaseException | None = None
        self.lock = threading.Lock()
        self.mine = [threading.Condition(self.lock) for _ in range(warps)]
        """What each warp waits for, so that passing the baton wakes one thread, not all."""

    def _pass(self) -> None:
        """Wake whoever may run now; after an error, everybody."""
        for index in range(self.warps) if self.error is not None else self.queue[:1]:
            self.mine[index].notify()

    def wait_turn(self, index: int) -> None:
        """Wait until a warp may run."""
        with self.lock:
            self.mine[index].wait_for(
                lambda: self.error is not None or (self.queue and self.queue[0] == index)
            )
            if self.error is not None:
                raise Stopped

    def arrive(self, index: int, opening: Callable[[], None], members: range | None = None) -> None:
        """Reach a barrier of the block or of ``members``.

        The last warp opens it, and calls ``opening`` before any other can go on.
        """
        with self.lock:
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
                raise KernelError("the warps of a block wait at different barriers")
            self._pass()

    def let_others(self, index: int) -> None:
        """A warp waits for what another one will do: it goes to the end of the queue."""
        with self.lock:
            self.idle += 1
            if self.idle > len(self.queue):
                raise KernelError(
                    "all warps that could run wait for barriers in shared memory that nobody opens"
                )
            self.queue.remove(index)
            self.queue.append(index)
            self._pass()

    def leave(self, index: int) -> None:
        """A warp has ended."""
        with self.lock:
            self.alive.remove(index)
            if index in self.queue:
                self.queue.remove(index)
            if self.error is None and any(m is None or index in m for m in self.arrived):
                self.error = KernelError("a warp ended while others of its block wait at a barrier")
            self._pass()

    def fail(self, error: BaseException) -> None:
        """A warp has failed: all others end at their next turn."""
        with self.lock:
            if self.error is None and not isinstance(error, Stopped):
                self.error = error
            self._pass()


class Stopped(BaseException):
    """Another warp failed; this one ends."""
