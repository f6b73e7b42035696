"""Running the kernels of `probes.py` on a GPU: data, a checked launch, then the times.

Device memory holds ``COPIES`` times the same ``BASE_BYTES`` of random words, more than any L2 cache; an odd number, so
that the exclusive or of all of it is not zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import probe_checks
from kernels_numba.device import device
from kernels_numba.launch import DeviceBuffer, LaunchError, fill, load, synchronize
from kernels_numba.probes import NAMES, SPAN
from kernels_numba.stopwatch import graph_times

BASE_BYTES = 1 << 28
COPIES = 7
STREAMS = ("read", "write", "copy")
MEBIBYTE = 1 << 20
PARTS, PART_BYTES = 8, 16 * MEBIBYTE
"""What is copied or written is compared word by word in so many parts, spread from the first to the last."""


class WrongResultError(RuntimeError):
    """A measuring kernel left a wrong result: its time means nothing."""


@dataclass(frozen=True)
class Timed:
    """Times of one launch in microseconds, and what it did (`probes.work`)."""

    times_us: tuple[float, ...]
    work: dict[str, int]
    blocks_per_sm: int


def memory_bytes(index: int) -> int:
    """Device memory that is free now."""
    from cuda.bindings import driver

    from kernels_numba.launch import current_device

    with current_device(device(index)):
        status, free, _ = driver.cuMemGetInfo()
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"asking {device(index).name} for its free memory failed: {status.name}")
    return int(free)


class Bench:
    """A GPU's memory, filled once, and launches on it."""

    def __init__(self, index: int = 0, *, memory_bytes: float = np.inf) -> None:
        self.where = device(index)
        self.index = index
        copies = COPIES
        while copies > 1 and 2.5 * copies * BASE_BYTES > memory_bytes:
            copies -= 2
        self.stream_bytes = copies * BASE_BYTES
        draw = np.random.default_rng(7)
        self.base = draw.integers(0, 2**32, BASE_BYTES // 4, dtype=np.uint32).view(np.int32)
        self.chunks = np.bitwise_xor.reduce(self.base.reshape(-1, MEBIBYTE // 4 // SPAN, SPAN), axis=1)
        self.source = DeviceBuffer(index, (copies, self.base.size), np.int32)
        self.target = DeviceBuffer(index, (copies, self.base.size), np.int32)
        for copy in range(copies):
            self._upload(self.source.pointer + copy * BASE_BYTES, self.base)

    def _upload(self, pointer: int, host: NDArray) -> None:
        from cuda.bindings import driver

        from kernels_numba.launch import current_device

        with current_device(self.where):
            (status,) = driver.cuMemcpyHtoD(pointer, host.ctypes.data, host.nbytes)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(f"copying {host.nbytes} bytes to {self.where.name} failed: {status.name}")

    def _download(self, pointer: int, nbytes: int) -> NDArray[np.int32]:
        from cuda.bindings import driver

        from kernels_numba.launch import current_device

        host = np.empty(nbytes // 4, np.int32)
        with current_device(self.where):
            (status,) = driver.cuMemcpyDtoH(host.ctypes.data, pointer, nbytes)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(f"copying {nbytes} bytes from {self.where.name} failed: {status.name}")
        return host

    def time(
        self,
        spec: Any,
        *,
        nbytes: int = 0,
        blocks_per_sm: int = 0,
        blocks: int = 0,
        turns: int = 1,
        shift: int = 0,
        windows: int = 1,
        replays: int = 20,
        check: bool = True,
    ) -> Timed:
        """Launch a kernel, check what it left, and time it.

        Args:
            spec: of `probes` or `group_probes`.
            nbytes: what a kernel that streams goes through in a turn, a multiple of a mebibyte.
            blocks_per_sm: blocks of the grid for each SM; 0: as many as an SM holds at once.
            blocks: the grid itself, if given.
            turns: odd, but for kernels that only write.
            shift: tiles that a turn starts after the one before.
            windows: so many launches in turn, each on memory of its own.
            replays: how many times are taken.
            check: False only where the same kernel was checked with as much data before.

        Raises:
            WrongResultError: what the kernel left is wrong.
            LaunchError: the GPU refused it.
        """
        family = probe_checks.family_of(spec)
        loaded = load(family, spec, self.index)
        per_sm = min(blocks_per_sm or loaded.blocks_per_sm, loaded.blocks_per_sm)
        grid = blocks or per_sm * int(self.where.sm_count or 1)
        workers = grid * spec.warps
        streams = spec.kind in STREAMS
        n = nbytes // (4 * SPAN * spec.depth) if streams else 7
        if streams:
            source, target = self.source.pointer, self.target.pointer
            given = self.base
            room = self.stream_bytes
        else:
            given = probe_checks.source(spec, n, workers)
            small = DeviceBuffer.of(given, self.index)
            out = DeviceBuffer(self.index, (family.target_words(spec, n, workers),), np.int32)
            source, target, room = small.pointer, out.pointer, nbytes
        if not 0 <= windows * nbytes <= max(room, nbytes) or nbytes > room:
            raise ValueError(f"nbytes: {windows} x {nbytes} bytes do not fit into {room}")
        launch = loaded.launcher(grid, (*NAMES, n, workers, turns, shift), NAMES)

        def call(window: int) -> Callable[[int], None]:
            at = source + window * nbytes
            to = target + window * nbytes if spec.kind in ("write", "copy") else target
            return lambda stream: launch(stream, at, to)

        calls = [call(window) for window in range(windows)]
        left_bytes = 4 * family.target_words(spec, n, workers)
        for window in sorted({0, windows - 1}) if check else ():
            to = target + window * nbytes if spec.kind in ("write", "copy") else target
            fill(to, np.uint32(0x7FC07FC0).view(np.float32), left_bytes // 4, 0, self.index)
            synchronize(self.index)
            calls[window](0)
            synchronize(self.index)
            wrong = self._problem(spec, given, to, left_bytes, (window * nbytes, nbytes, n, workers, turns))
            if wrong:
                raise WrongResultError(f"{spec.name} on {self.where.name}: {wrong}")
        times = graph_times(calls, self.index, replays=replays)
        return Timed(
            tuple(times), family.work(spec, n, workers, turns), grid // int(self.where.sm_count or 1)
        )

    def _problem(
        self, spec: Any, given: NDArray[np.int32], to: int, left_bytes: int, what: tuple[int, ...]
    ) -> str | None:
        """As `probe_checks.problem`; streams are checked against the base, a part of memory after the other."""
        start, nbytes, n, workers, turns = what
        if spec.kind == "read":
            left = self._download(to, left_bytes)
            found = np.bitwise_xor.reduce(left.reshape(-1, SPAN), axis=0)
            first, count = start // MEBIBYTE, nbytes // MEBIBYTE
            wanted = np.bitwise_xor.reduce(
                self.chunks[np.arange(first, first + count) % len(self.chunks)], axis=0
            )
            return (
                None
                if np.array_equal(found, wanted)
                else "the words that were read are not those of the source"
            )
        if spec.kind not in STREAMS:
            return probe_checks.problem(spec, given, self._download(to, left_bytes), n, workers, turns)
        part = min(PART_BYTES, nbytes)
        for number in range(PARTS):
            at = (nbytes - part) * number // (PARTS - 1) // MEBIBYTE * MEBIBYTE
            left = self._download(to + at, part)
            first = (start + at) % BASE_BYTES // 4
            wanted = (
                np.take(self.base, np.arange(first, first + left.size), mode="wrap")
                if (first + left.size > self.base.size)
                else self.base[first : first + left.size]
            )
            if spec.kind == "write":
                seed = start % BASE_BYTES // 4
                wanted = np.broadcast_to(self.base[seed : seed + SPAN], (left.size // SPAN, SPAN)).reshape(-1)
            if not np.array_equal(left, wanted):
                return f"{spec.kind}: device memory does not hold what should have been written"
        return None
