"""Running a prepared product: on a GPU as one to three launches, on the CPU body with counts.

Workspaces (copies, partial sums, counters of shared outputs) belong to a stream, so that streams may run at once; on
one stream all products share one, since launches follow each other there. One more than are used is kept ready, so that
a stream which is being captured in a graph, where nothing can be allocated, finds one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import linear_realign
from kernels_numba.linear_product import Product
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import HALF_TYPES

POINTERS = ("x", "shifted", "w", "y")


class _Pool:
    """Device memory of one GPU, a buffer for each stream; ``zeros``: it holds zeros between launches."""

    def __init__(self, index: int, *, zeros: bool) -> None:
        self.index, self.zeros = index, zeros
        self.streams: dict[int, Any] = {}
        self.spare: list[Any] = []

    def take(self, stream: int, nbytes: int) -> Any:
        """The stream's buffer, of at least so many bytes. Keep it for as long as a launch may use it.

        Raises `LaunchError` while the stream is being captured, if no buffer is ready.
        """
        from kernels_numba.launch import LaunchError

        found = self.streams.get(stream)
        if found is None or found.nbytes < nbytes:
            ready = next((buffer for buffer in self.spare if buffer.nbytes >= nbytes), None)
            if ready is None and _capturing(stream):
                raise LaunchError(
                    f"a product needs a workspace of {nbytes} bytes, which cannot be allocated while its stream is "
                    "captured in a graph; call it once outside, before each capture on a new stream"
                )
            if ready is not None:
                self.spare.remove(ready)
            found = self.streams[stream] = ready or self._allocate(nbytes)
        if not any(buffer.nbytes >= nbytes for buffer in self.spare) and not _capturing(stream):
            self.spare = [self._allocate(nbytes)]
        return found

    def _allocate(self, nbytes: int) -> Any:
        from kernels_numba.launch import DeviceBuffer

        if self.zeros:
            return DeviceBuffer.of(np.zeros(nbytes, np.uint8), self.index)
        return DeviceBuffer(self.index, (nbytes,), np.uint8)


def _capturing(stream: int) -> bool:
    """Whether a graph is being captured from the stream, so that nothing may be allocated."""
    from cuda.bindings import driver

    status, state = driver.cuStreamIsCapturing(driver.CUstream(stream))
    none = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return bool(status != driver.CUresult.CUDA_SUCCESS or state != none)


_pools: dict[tuple[int, bool], _Pool] = {}


def _pool(index: int, *, zeros: bool) -> _Pool:
    return _pools.setdefault((index, zeros), _Pool(index, zeros=zeros))


class Workspace:
    """Device memory of one product on one stream: addresses, and the buffers that must outlive its launches."""

    def __init__(self, product: Product, index: int, stream: int) -> None:
        sizes = (2 * product.shifted_x_size, 2 * product.copied_w_size, 4 * product.partial_floats)
        padded = [-(-size // 256) * 256 for size in sizes]
        self.data = _pool(index, zeros=False).take(stream, max(sum(padded), 256))
        self.x = self.data.pointer
        self.w = self.x + padded[0]
        self.partials = self.w + padded[1]
        self.zeros, self.counters = None, 0
        if product.partial_floats:
            self.zeros = _pool(index, zeros=True).take(stream, -(-4 * product.groups // 4096) * 4096)
            self.counters = self.zeros.pointer


def launches(product: Product, index: int) -> Callable[[int, int, int, int], None]:
    """A function ``run(stream_handle, x, w, y)`` that launches the product on GPU ``index``."""
    from kernels_numba import launch

    loaded = launch.load(product.family, product.spec, index)
    overlap = getattr(product.spec, "overlap", False)

    def launcher(shifted: Any, w: Any, partials: int, counters: int) -> Callable[..., None]:
        arguments = product.arguments("x", shifted, w, partials, counters, "y")
        return loaded.launcher(product.grid, arguments, pointers=POINTERS, overlap=overlap)

    if not (product.shift_x or product.copy_w or product.partial_floats):
        start = launcher("shifted", "w", 0, 0)
        return lambda stream, x, w, y: start(stream, x, x, w, y)

    prepared: dict[int, tuple[Any, ...]] = {}

    def realigner(target: int, rows: int, phases: int, *, led: bool = False) -> Callable[..., None]:
        spec = linear_realign.Spec(product.spec.dtype, overlap=overlap, led=led)
        sizes = _realign_sizes(product.k, rows, phases, led=led)
        grid = -(-sizes[-1] // (32 * spec.warps))
        realign = launch.load(linear_realign, spec, index)
        return realign.launcher(grid, ("x", target, *sizes), pointers=POINTERS, overlap=product.early)

    def prepare(stream: int) -> tuple[Any, ...]:
        space = Workspace(product, index, stream)
        found = prepared[stream] = (
            realigner(space.x, product.m, product.phases, led=product.led) if product.shift_x else None,
            realigner(space.w, product.n, 1) if product.copy_w else None,
            launcher(
                space.x if product.shift_x else "shifted",
                space.w if product.copy_w else "w",
                space.partials,
                space.counters,
            ),
            space,
        )
        return found

    def run(stream: int, x: int, w: int, y: int) -> None:
        shift_x, copy_w, start, _ = prepared.get(stream) or prepare(stream)
        if shift_x:
            shift_x(stream, x, 0, 0, 0)
        if copy_w:
            copy_w(stream, w, 0, 0, 0)
        start(stream, x, x, w, y)

    return run


def _realign_sizes(k: int, rows: int, phases: int, *, led: bool) -> tuple[int, int, int, int]:
    """The realigning kernel's arguments after its pointers: rows, K, stride, chunks."""
    stride = linear_realign.padded(k, led=led)
    return rows, k, stride, phases * rows * stride // linear_realign.CHUNK


# ---- the CPU body --------------------------------------------------------------------------------------------
def run_cpu(product: Product, x: NDArray, w: NDArray) -> tuple[NDArray, Counters]:
    """The product of host arrays x [M, K] and w [N, K] of halves: y [M, N], and what all launches did."""
    from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
    from kernels_numba.tile.machine import POISON, Buffer, Machine

    dtype = product.spec.dtype
    machine = Machine()
    tile = vocabulary(machine, dtype, "linear")

    def realigned(source: Buffer, rows: int, phases: int, name: str, *, led: bool = False) -> Buffer:
        sizes = _realign_sizes(product.k, rows, phases, led=led)
        spec = linear_realign.Spec(dtype, led=led)
        target = Buffer(name, aligned(np.full(sizes[-1] * linear_realign.CHUNK, POISON, np.int16)))
        grid = -(-sizes[-1] // (32 * spec.warps))
        machine.run(linear_realign.build(tile, spec), grid, spec.warps, 0, [source, target, *sizes])
        return target

    x_buffer, w_buffer = (
        Buffer(name, aligned(values.reshape(-1).view(np.int16))) for name, values in (("x", x), ("w", w))
    )
    shifted = x_buffer
    if product.shift_x:
        shifted = realigned(x_buffer, product.m, product.phases, "shifted x", led=product.led)
    if product.copy_w:
        w_buffer = realigned(w_buffer, product.n, 1, "copied w")
    result = aligned(np.full(product.m * product.n, POISON, np.int16))
    y = Buffer("y", result)
    partials = Buffer("partials", aligned(np.full(product.partial_floats, np.nan, np.float32)))
    counters = Buffer("counters", np.zeros(product.groups, np.int32))
    arguments = product.arguments(x_buffer, shifted, w_buffer, partials, counters, y)
    kernel = product.family.build(tile, product.spec)
    together = getattr(product.spec, "cluster", 1)
    words = product.spec.shared_bytes // 4
    machine.run(kernel, product.grid, product.spec.warps, words, arguments, cluster=together)
    if counters.data.any():
        raise RuntimeError(f"{product.spec.name}: counters are not back at zero")
    return result.view(HALF_TYPES[dtype]).reshape(product.m, product.n), machine.counters


def aligned(bits: NDArray) -> NDArray:
    """The array where it is if it begins on 16 bytes, as device allocations do, else a copy that does."""
    if bits.ctypes.data % 16 == 0:
        return bits
    room = np.empty(bits.size + 8, bits.dtype)
    start = (-room.ctypes.data // bits.itemsize) % 8
    room[start : start + bits.size] = bits
    return room[start : start + bits.size]
