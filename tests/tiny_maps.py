"""Small kernels, one for each operation on maps; both bodies run them.

As in `tiny_kernels`: halves ``h``, words ``w`` and floats ``f`` to read, halves ``out`` to write, an integer ``n``; a
kernel that makes a fragment writes register r of lane l to the two halves at ``64 r + 2 l``. What goes to words is
stored in ``w`` from `WORDS_AT` on and read back from there.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny_kernels import POINTERS, POISON, SIGNATURE, SIZE, Data, Tiny, data_for
from tiny_registry import registry

from kernels_numba.tile.counters import Counters
from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import Buffer, Machine

__all__ = ["SIGNATURE", "build", "data_for", "min_blocks"]

VOCABULARY = "layers"
KERNELS, tiny, build, min_blocks = registry(partial(Tiny, dtype="fp16"))
WORDS_AT, PASSED_AT = 2048, 1024
ROW, COLUMN, BASE = -3, -4, 40
"""Where the window of lane 0 begins, and the image's first element."""
DOWN, ACROSS = 2, 3


def run_cpu(spec: Tiny, data: Data) -> tuple[NDArray[np.int16], Counters]:
    machine = Machine()
    out = np.full(SIZE, POISON, np.int16)
    kernel = build(vocabulary(machine, spec.dtype, VOCABULARY), spec)
    buffers = [Buffer(name, x.copy()) for name, x in zip(("h", "w", "f"), data, strict=True)]
    counters = machine.run(
        kernel, spec.grid, spec.warps, spec.shared_words, [*buffers, Buffer("out", out), spec.n]
    )
    return out, counters


def run_gpu(spec: Tiny, data: Data) -> NDArray[np.int16]:
    from kernels_numba import device
    from kernels_numba.launch import DeviceBuffer, LoadedKernel, synchronize

    loaded = LoadedKernel(sys.modules[__name__], spec, device())
    buffers = [DeviceBuffer.of(x, 0) for x in (*data, np.full(SIZE, POISON, np.int16))]
    loaded.launcher(spec.grid, (*POINTERS, spec.n))(0, *(buffer.pointer for buffer in buffers))
    synchronize(0)
    return buffers[-1].host()


def _put(tile: Any, count: int) -> Any:
    return tile.store_pieces(tuple((0, 64 * r, (r,)) for r in range(count)), 2, guarded=False)


@tiny("load_window:1", "load_window:2", "load_window:4", n=12)
@tiny("load_window:1:spread", n=12)
def load_window(tile: Any, halves: int, spread: str = "") -> Callable:
    """Four rows, 8 columns a lane, of an image 21 high and n wide, n elements a row; spread: 21 and n are dense."""
    lane, put = tile.lane, _put(tile, 16)
    load = tile.load_window(4, 4, halves, spread=bool(spread))

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        x = load(h, BASE, n, (l >> 2) + ROW, 8 * (l & 3) + COLUMN, 21, n, DOWN, ACROSS)
        put(out, 0, 0, 2 * l, 0, 0, 0, x)

    return kernel


@tiny("store_window:1", "store_window:2", n=12)
@tiny("store_window:1:spread", n=13)
def store_window(tile: Any, halves: int, spread: str = "") -> Callable:
    """Two row groups and two column tiles to an image 11 high and n wide."""
    lane, load, cast = tile.lane, tile.load_global(8, 4), tile.as_floats(8)
    store = tile.store_window(2, 2, halves, spread=bool(spread))

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        c = cast(load(w, 4 * l, 128))
        store(out, BASE, n, (l >> 2) + ROW, 2 * (l & 3) + COLUMN, 11, n, DOWN, ACROSS, c)

    return kernel


@tiny("pack_points")
def pack_points(tile: Any) -> Callable:
    lane, load, put = tile.lane, tile.load_global(8, 4), _put(tile, 4)
    cast, pack = tile.as_floats(8), tile.pack_points(4)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, pack(cast(load(w, 4 * l, 128))))

    return kernel


@tiny("filter_points", "filter_points:conjugate")
def filter_points(tile: Any, conjugate: str = "") -> Callable:
    lane, load, put = tile.lane, tile.load_global(8, 4), _put(tile, 4)
    cast, load_points = tile.as_floats(8), tile.load_global(4, 4)
    product = tile.filter_points(4, conjugate=bool(conjugate))

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        points = load_points(w, WORDS_AT // 2 + 4 * l, 128)
        put(out, 0, 0, 2 * l, 0, 0, 0, product(cast(load(w, 4 * l, 128)), points))

    return kernel


@tiny("fold_mirrors")
def fold_mirrors(tile: Any) -> Callable:
    lane, load, put, fold = tile.lane, tile.load_global(8, 4), _put(tile, 8), tile.fold_mirrors(4)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, fold(load(w, 4 * l, 128)))

    return kernel


@tiny("complex_columns:plain", "complex_columns:conjugate")
def complex_columns(tile: Any, kind: str) -> Callable:
    lane, load, put = tile.lane, tile.load_global(4, 4), _put(tile, 8)
    operands = tile.complex_columns(4, conjugate=kind == "conjugate")

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, operands(load(w, 4 * l, 128)))

    return kernel


@tiny("store_points", n=13)
def store_points(tile: Any) -> Callable:
    """Two row groups, two column tiles of points; rows below n, columns below 10; rows are 18 words long."""
    lane, load, put, cast = tile.lane, tile.load_global(16, 4), _put(tile, 9), tile.as_floats(16)
    store, back, sync = tile.store_points(2, 2), tile.load_global(9, 1), tile.warp_sync

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        c = cast(load(w, 4 * l, 128))
        column = 2 * (l & 3)
        store(w, WORDS_AT + 18 * (l >> 2) + column, 18, n - (l >> 2), 10 - column, c)
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, back(w, WORDS_AT + l, 32))

    return kernel


@tiny("store_outer_points", n=7)
def store_outer_points(tile: Any) -> Callable:
    """Two row groups, two column tiles of parts; rows below n, columns below 6 of points; rows are 9 words long."""
    lane, load, put, cast = tile.lane, tile.load_global(8, 4), _put(tile, 3), tile.as_floats(8)
    store, back, sync = tile.store_outer_points(2, 2), tile.load_global(3, 1), tile.warp_sync

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        c = cast(load(w, 4 * l, 128))
        store(w, WORDS_AT + 9 * (l >> 3) + (l & 3), 9, n - (l >> 3), 6 - (l & 3), c)
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, back(w, WORDS_AT + l, 32))

    return kernel


@tiny("pass_outer_points", n=7)
def pass_outer_points(tile: Any) -> Callable:
    """As `store_outer_points`, once to sums in ``f``, and once more from there to words."""
    lane, load, put, cast = tile.lane, tile.load_global(8, 4), _put(tile, 3), tile.as_floats(8)
    store, back, sync = tile.pass_outer_points(2, 2), tile.load_global(3, 1), tile.warp_sync

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        c = cast(load(w, 4 * l, 128))
        at = 9 * (l >> 3) + (l & 3)
        store(w, f, PASSED_AT + at, 9, n - (l >> 3), 6 - (l & 3), 1, 0, c)
        sync()
        store(w, f, PASSED_AT + at, 9, n - (l >> 3), 6 - (l & 3), 0, 1, c)
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, back(w, PASSED_AT + l, 32))

    return kernel


@tiny("move_words", shared_words=512, n=9)
def move_words(tile: Any) -> Callable:
    """Three words a lane, 33 words apart, to rows of 40 words, in lanes that are not 5."""
    lane, copy, commit, wait, sync = (
        tile.lane,
        tile.copy_words_async,
        tile.commit,
        tile.wait(0),
        tile.warp_sync,
    )
    move, back, put = tile.move_words(3, 33), tile.load_global(4, 1), _put(tile, 4)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        copy(4 * l, w, 4 * l)
        commit()
        wait()
        sync()
        move(l, w, WORDS_AT + l + n, 40, l != 5)
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, back(w, WORDS_AT + l, 32))

    return kernel


SLAB, FIRST_CHUNK = 512, 3


@tiny("load_matrices_across", shared_words=1024)
def load_matrices_across(tile: Any) -> Callable:
    """16 rows of 8 chunks a slab; block i has chunk i / 2 + 3 of rows 8 (i % 2) + r; three tiles, two slabs."""
    lane, commit, wait, sync = tile.lane, tile.commit, tile.wait(0), tile.warp_sync
    copy, load, put = tile.copy_words_async, tile.load_matrices_across(3, SLAB), _put(tile, 12)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        for i in range(8):
            copy(128 * i + 4 * l, w, 128 * i + 4 * l)
        commit()
        wait()
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, load(32 * (l & 15), (l >> 4) + FIRST_CHUNK, l & 7))

    return kernel
