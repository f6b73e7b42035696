"""Small kernels, one for each operation that matrix products stream and add up with; both bodies run them.

As in `tiny_kernels`: halves ``h``, words ``w`` and floats ``f`` to read, halves ``out`` to write, an integer ``n``; a
kernel that makes a fragment writes register r of lane l to the two halves at ``64 r + 2 l``.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny_kernels import POINTERS, POISON, SIGNATURE, SIZE, Data, Tiny
from tiny_kernels import data_for as any_data
from tiny_registry import registry

from kernels_numba.tile.counters import Counters
from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import Buffer, Machine

__all__ = ["SIGNATURE", "build", "min_blocks"]

VOCABULARY = "linear"
KERNELS, tiny, build, min_blocks = registry(partial(Tiny, dtype="fp16"))


def data_for(spec: Tiny, seed: int = 0) -> Data:
    data = any_data(spec, seed)
    if spec.name == "last_block":
        data.w[:8] = 0  # counters
    return data


def run_cpu(spec: Tiny, data: Data) -> tuple[NDArray[np.int16], Counters, Data]:
    """Run on the CPU body: what it wrote (poisoned before), what was counted, and the inputs after."""
    machine = Machine()
    out = np.full(SIZE, POISON, np.int16)
    kernel = build(vocabulary(machine, spec.dtype, VOCABULARY), spec)
    after = Data(*(x.copy() for x in data))
    names = ("h", "w", "f")
    buffers = [*(Buffer(name, x) for name, x in zip(names, after, strict=True)), Buffer("out", out)]
    counters = machine.run(kernel, spec.grid, spec.warps, spec.shared_words, [*buffers, spec.n])
    return out, counters, after


def run_gpu(spec: Tiny, data: Data, *, launches: int = 1) -> NDArray[np.int16]:
    """Run on the first GPU; set MONARCH_NUMBA_CACHE to a folder of the test's own before."""
    from kernels_numba import device
    from kernels_numba.launch import DeviceBuffer, LoadedKernel, synchronize

    loaded = LoadedKernel(sys.modules[__name__], spec, device())
    buffers = [DeviceBuffer.of(x, 0) for x in (*data, np.full(SIZE, POISON, np.int16))]
    launch = loaded.launcher(spec.grid, (*POINTERS, spec.n), overlap=spec.name == "order")
    for _ in range(launches):
        launch(0, *(buffer.pointer for buffer in buffers))
    synchronize(0)
    return buffers[-1].host()


def _put(tile: Any, count: int) -> Any:
    return tile.store_pieces(tuple((0, 64 * r, (r,)) for r in range(count)), 2, guarded=False)


# ---- loads ---------------------------------------------------------------------------------------------------
CHUNK_PIECES = ((0, 0, (0, 1, 2, 3)), (1, 4, (5, 4, 7, 6)), (3, 8, (8, 9, 10, 11)))
PLACES = {"first": 1, "step": 8, "last": 20, "stride": 72, "start": 16}
"""Rows g + 1, g + 9, ... of at most row 20, 72 elements long, from element 16 on."""


@tiny("load_chunks:stream", "load_chunks:keep", n=11)
@tiny("load_chunks:stream:guarded", "load_chunks:keep:guarded", n=6)
def load_chunks(tile: Any, kind: str, guarded: str = "") -> Callable:
    """Lane 4 g + t reads chunks t, t + 4 and t + 8 of three of its rows; from chunk n on zeros if guarded."""
    lane, places, put = tile.lane, tile.places(4), _put(tile, 12)
    load = tile.load_chunks(CHUNK_PIECES, guarded=bool(guarded), stream=kind == "stream")
    first, step, last, stride, start = PLACES.values()

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        rows = places((l >> 2) + first, step, last, stride, start)
        put(out, 0, 0, 2 * l, 0, 0, 0, load(h, l & 3, n, rows))

    return kernel


PAIR_ORDER = ((1, 0, 0), (0, 1, 0), (0, 0, 3))
NEAR_LIMIT = 21


@tiny("load_pairs", n=80)
def load_pairs(tile: Any) -> Callable:
    """Odd addresses; near pairs end at 21, far ones, which begin at 50, at n."""
    lane, places, put = tile.lane, tile.places(2), _put(tile, 3)
    load = tile.load_pairs(PAIR_ORDER)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, load(h, 2 * l, NEAR_LIMIT, 2 * l + 50, n, places(0, 1, 1, 701, 3)))

    return kernel


@tiny("copy_rows", "copy_rows:guarded", shared_words=512, n=5)
def copy_rows(tile: Any, guarded: str = "") -> Callable:
    """Four copies, rows 264 elements apart; guarded, those of rows below n - lane / 8 and lanes that are not 3."""
    lane, commit, wait, sync = tile.lane, tile.commit, tile.wait(0), tile.warp_sync
    copy, load, put = (
        tile.copy_rows(4, 256, 2, guarded=bool(guarded)),
        tile.load_shared(16, 4),
        _put(tile, 16),
    )

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        copy(8 * l, h, 8 + 8 * l, 264, n - (l >> 3), l != 3)
        commit()
        wait()
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, load(4 * l, 128))

    return kernel


MATRICES = (0, 8, 260)


@tiny("load_matrices", shared_words=1024)
def load_matrices(tile: Any) -> Callable:
    """Blocks whose rows are 12 words apart, in reverse."""
    lane, copy, commit, wait, sync = (
        tile.lane,
        tile.copy_words_async,
        tile.commit,
        tile.wait(0),
        tile.warp_sync,
    )
    load, put = tile.load_matrices(MATRICES), _put(tile, 12)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        for i in range(8):
            copy(128 * i + 4 * l, w, 128 * i + 4 * l)
        commit()
        wait()
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, load(12 * (31 - l)))

    return kernel


# ---- running sums --------------------------------------------------------------------------------------------
@tiny("mma_add:1:1:1", "mma_add:2:3:2", data="noise")
def mma_add(tile: Any, rows: int, columns: int, k: int) -> Callable:
    """The product twice over, onto zeros."""
    count = 4 * rows * columns
    lane, zeros, product, words, put = (
        tile.lane,
        tile.zeros(count),
        tile.mma_add(rows, columns, k),
        tile.as_words(count),
        _put(tile, count),
    )
    load_a, load_b = tile.load_global(4 * rows * k, 4), tile.load_global(2 * k * columns, 2)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        a, b = load_a(w, 4 * l, 128), load_b(w, 1024 + 2 * l, 64)
        c = product(zeros(), a, b)
        put(out, 0, 0, 2 * l, 0, 0, 0, words(product(c, a, b)))

    return kernel


@tiny("dot_add:2:3:4", "dot_add:1:1:1", data="noise")
@tiny("dot_add:2:1:2")
def dot_add(tile: Any, rows: int, columns: int, words: int) -> Callable:
    """Sums that begin with floats of ``w``; rows from word 1024 on, columns from 2048 on."""
    count = rows * columns
    lane, product, floats, bits = (
        tile.lane,
        tile.dot_add(rows, columns, words),
        tile.as_floats(count),
        tile.as_words(count),
    )
    load_c, load_w, load_x = (tile.load_global(n, 1) for n in (count, rows * words, columns * words))
    put = _put(tile, count)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        c = floats(load_c(w, l, 32))
        put(out, 0, 0, 2 * l, 0, 0, 0, bits(product(c, load_w(w, 1024 + l, 32), load_x(w, 2048 + l, 32))))

    return kernel


@tiny("add", data="noise")
def add(tile: Any) -> Callable:
    lane, load, put = tile.lane, tile.load_global(8, 4), _put(tile, 8)
    total, floats, words = tile.add(8), tile.as_floats(8), tile.as_words(8)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        values = total(floats(load(w, 4 * l, 128)), floats(load(w, 1024 + 4 * l, 128)))
        put(out, 0, 0, 2 * l, 0, 0, 0, words(values))

    return kernel


@tiny("sum_lanes", data="noise")
def sum_lanes(tile: Any) -> Callable:
    lane, load, put = tile.lane, tile.load_global(4, 4), _put(tile, 4)
    total, floats, words = tile.sum_lanes(4), tile.as_floats(4), tile.as_words(4)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, words(total(floats(load(w, 4 * l, 128)))))

    return kernel


# ---- results -------------------------------------------------------------------------------------------------
@tiny("store_rounded", n=19)
def store_rounded(tile: Any) -> Callable:
    """Any bits as float32, of lanes below n."""
    lane, load, floats, store = tile.lane, tile.load_global(1, 1), tile.as_floats(1), tile.store_rounded

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        store(out, 3 * l + 1, l < n, floats(load(w, l, 0)))

    return kernel


@tiny("store_tile:2", "store_tile:1", n=27, data="noise")
def store_tile(tile: Any, halves: int) -> Callable:
    """32 x 16 accumulators to a matrix of 40 columns (41 if one element is stored at a time), n rows and 12 columns."""
    lane, load, floats = tile.lane, tile.load_global(16, 4), tile.as_floats(16)
    store = tile.store_tile(4, 2, halves)
    stride = 42 - halves

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        g, t = l >> 2, l & 3
        store(out, g * stride + 2 * t + 8, stride, n - g, 12 - 2 * t, floats(load(w, 4 * l, 128)))

    return kernel


# ---- order between blocks and launches -----------------------------------------------------------------------
@tiny("last_block", grid=6, warps=2, n=3)
def last_block(tile: Any) -> Callable:
    """Two groups of n blocks leave a float for each lane in ``f``; the last of a group adds them up in order."""
    lane, warp, block, divide = tile.lane, tile.warp, tile.block, tile.divide
    store, fresh, last, add_one = tile.store_float, tile.load_fresh, tile.last_block, tile.add(1)
    load, floats, words, put = tile.load_global(1, 1), tile.as_floats(1), tile.as_words(1), _put(tile, 1)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        group = divide(block(), n)
        mine = 32 * warp() + l
        store(f, 64 * block() + mine, l != 7, floats(load(w, 1024 + 64 * block() + mine, 0)))
        if last(w, group + 1, n):
            total = fresh(f, 64 * n * group + mine)
            for i in range(1, n):
                total = add_one(total, fresh(f, 64 * (n * group + i) + mine))
            put(out, 2 * (64 * group + 32 * warp()), 0, 2 * l, 0, 0, 0, words(total))

    return kernel


@tiny("sums", data="noise")
def sums(tile: Any) -> Callable:
    """Eight floats a lane to ``f``, quads 136 apart, and back in the other order of quads."""
    lane, load, store, again = tile.lane, tile.load_global(8, 4), tile.store_sums(8), tile.load_sums(8)
    floats, words, put = tile.as_floats(8), tile.as_words(8), _put(tile, 8)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        store(f, 4 * l, 136, floats(load(w, 4 * l, 128)))
        put(out, 0, 0, 2 * l, 0, 0, 0, words(again(f, 4 * l + 136, -136)))

    return kernel


@tiny("order", grid=3)
def order(tile: Any) -> Callable:
    """A launch may begin while the one before ends; both write the same here."""
    lane, block, load, put = tile.lane, tile.block, tile.load_global(1, 1), _put(tile, 1)
    wait, go = tile.wait_for_previous, tile.let_next_start

    def kernel(h, w, f, out, n):
        x = load(w, 32 * block() + lane(), 0)
        wait()
        go()
        put(out, 64 * block(), 0, 2 * lane(), 0, 0, 0, x)

    return kernel
