"""Running a prepared product: on a GPU as one to three launches, on the CPU body with counts.

Workspaces (copies, partial sums, counters of split tiles) belong to a stream: two streams may run the same product at
once. A few are made with the first launch, so that a stream which is being captured in a graph finds one.
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

SLOTS = 3
"""Streams that find a workspace without an allocation."""
POINTERS = ("x", "shifted", "w", "y")


class Workspaces:
    """Device memory of one product on one GPU, a slot for each stream."""

    def __init__(self, product: Product, index: int) -> None:
        self.product, self.index = product, index
        sizes = (
            2 * product.shifted_x_size,
            2 * product.copied_w_size,
            4 * product.partial_floats,
            4 * product.groups if product.split > 1 else 0,
        )
        self.sizes = [-(-size // 256) * 256 for size in sizes]
        self.slots: dict[int, tuple[int, ...]] = {}
        self.free: list[int] = []
        self.buffers: list[Any] = []
        self._allocate()

    def _allocate(self) -> None:
        from kernels_numba.launch import DeviceBuffer

        total = sum(self.sizes)
        # Zeros: the counters start there. One allocation, so that it happens before any capture.
        self.buffers.append(DeviceBuffer.of(np.zeros(SLOTS * total, np.uint8), self.index))
        self.free += [self.buffers[-1].pointer + i * total for i in range(SLOTS)]

    def of(self, stream: int) -> tuple[int, ...]:
        """Addresses of the copy of x, the copy of w, partial sums and counters for a stream."""
        found = self.slots.get(stream)
        if found is None:
            if not self.free:
                self._allocate()
            start = self.free.pop()
            places = [start]
            for size in self.sizes[:-1]:
                places.append(places[-1] + size)
            found = self.slots[stream] = tuple(places)
        return found


def launches(product: Product, index: int) -> Callable[[int, int, int, int], None]:
    """A function ``run(stream_handle, x, w, y)`` that launches the product on GPU ``index``."""
    from kernels_numba import launch

    loaded = launch.load(product.family, product.spec, index)
    overlap = getattr(product.spec, "overlap", False)

    def launcher(shifted: Any, w: Any, partials: int, counters: int) -> Callable[..., None]:
        arguments = product.arguments("x", shifted, w, partials, counters, "y")
        return loaded.launcher(product.grid, arguments, pointers=POINTERS, overlap=overlap)

    if not (product.shift_x or product.copy_w or product.split > 1):
        start = launcher("shifted", "w", 0, 0)
        return lambda stream, x, w, y: start(stream, x, x, w, y)

    spaces = Workspaces(product, index)
    spec = linear_realign.Spec(product.spec.dtype, overlap=overlap)
    prepared: dict[int, tuple[Callable[..., None] | None, ...]] = {}

    def realigner(target: int, rows: int, phases: int) -> Callable[..., None]:
        sizes = _realign_sizes(product.k, rows, phases)
        grid = -(-sizes[-1] // (32 * spec.warps))
        realign = launch.load(linear_realign, spec, index)
        return realign.launcher(grid, ("x", target, *sizes), pointers=POINTERS, overlap=overlap)

    def prepare(stream: int) -> tuple[Callable[..., None] | None, ...]:
        at_x, at_w, partials, counters = spaces.of(stream)
        found = prepared[stream] = (
            realigner(at_x, product.m, product.phases) if product.shift_x else None,
            realigner(at_w, product.n, 1) if product.copy_w else None,
            launcher(
                at_x if product.shift_x else "shifted", at_w if product.copy_w else "w", partials, counters
            ),
        )
        return found

    def run(stream: int, x: int, w: int, y: int) -> None:
        shift_x, copy_w, start = prepared.get(stream) or prepare(stream)
        if shift_x:
            shift_x(stream, x, 0, 0, 0)
        if copy_w:
            copy_w(stream, w, 0, 0, 0)
        start(stream, x, x, w, y)  # type: ignore[misc]

    return run


def _realign_sizes(k: int, rows: int, phases: int) -> tuple[int, int, int, int]:
    """The realigning kernel's arguments after its pointers: rows, K, stride, chunks."""
    stride = linear_realign.padded(k)
    return rows, k, stride, phases * rows * stride // linear_realign.CHUNK


# ---- the CPU body --------------------------------------------------------------------------------------------
def run_cpu(product: Product, x: NDArray, w: NDArray) -> tuple[NDArray, Counters]:
    """The product of host arrays x [M, K] and w [N, K] of halves: y [M, N], and what all launches did."""
    from kernels_numba.tile.cpu import CpuTile
    from kernels_numba.tile.machine import POISON, Buffer, Machine

    dtype = product.spec.dtype
    machine = Machine()
    tile = CpuTile(machine, dtype)

    def realigned(source: Buffer, rows: int, phases: int, name: str) -> Buffer:
        sizes = _realign_sizes(product.k, rows, phases)
        spec = linear_realign.Spec(dtype)
        target = Buffer(name, aligned(np.full(sizes[-1] * linear_realign.CHUNK, POISON, np.int16)))
        grid = -(-sizes[-1] // (32 * spec.warps))
        machine.run(linear_realign.build(tile, spec), grid, spec.warps, 0, [source, target, *sizes])
        return target

    x_buffer, w_buffer = (
        Buffer(name, aligned(values.reshape(-1).view(np.int16))) for name, values in (("x", x), ("w", w))
    )
    shifted = realigned(x_buffer, product.m, product.phases, "shifted x") if product.shift_x else x_buffer
    if product.copy_w:
        w_buffer = realigned(w_buffer, product.n, 1, "copied w")
    result = aligned(np.full(product.m * product.n, POISON, np.int16))
    y = Buffer("y", result)
    partials = Buffer("partials", aligned(np.full(product.partial_floats, np.nan, np.float32)))
    counters = Buffer("counters", np.zeros(product.groups, np.int32))
    arguments = product.arguments(x_buffer, shifted, w_buffer, partials, counters, y)
    kernel = product.family.build(tile, product.spec)
    machine.run(kernel, product.grid, product.spec.warps, product.spec.shared_bytes // 4, arguments)
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
