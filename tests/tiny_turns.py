"""Small kernels, one for each operation of long transforms' outer stages, that both bodies run; as `tiny_kernels`."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tiny_kernels
from numpy.typing import NDArray
from tiny_kernels import POISON, SIZE, Data, Tiny
from tiny_registry import registry

from kernels_numba.tile.counters import Counters
from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import Buffer, Machine

VOCABULARY = "outer"
SIGNATURE = tiny_kernels.SIGNATURE
POINTS = 3 * 2**18
RUNS8 = ((0, 0, 0, (0, 1, 2, 3, 4, 5, 6, 7)), (1, 5, 32, (15, 14, 13, 12, 8, 9, 10, 11)))
RUNS4 = ((2, 3, 0, (0, 2, 1, 3)), (0, 0, 4, (4, 5, 6, 7)))
SCALE = 0.7

KERNELS, tiny, build, min_blocks = registry(partial(Tiny, dtype="fp16"))


def run_cpu(spec: Tiny, data: Data) -> tuple[NDArray[np.int32], Counters]:
    """Run on the CPU body: the words it wrote (poisoned before) and what was counted."""
    machine = Machine()
    out = np.full(SIZE, POISON, np.int16)
    kernel = build(vocabulary(machine, spec.dtype, VOCABULARY), spec)
    buffers = [Buffer("h", data.h), Buffer("w", data.w), Buffer("f", data.f), Buffer("out", out)]
    counters = machine.run(kernel, spec.grid, spec.warps, spec.shared_words, [*buffers, spec.n])
    return out.view(np.int32), counters


def run_gpu(spec: Tiny, data: Data) -> NDArray[np.int32]:
    return tiny_kernels.run_gpu(spec, data, sys.modules[__name__]).view(np.int32)


def _put(tile: Any, count: int) -> Any:
    return tile.store_pieces(tuple((0, 64 * r, (r,)) for r in range(count)), 2, guarded=False)


@tiny("load_transposed", shared_words=512)
def load_transposed(tile: Any) -> Callable:
    """Eight blocks: rows of 16 words, four blocks beside each other in two columns and two rows of blocks."""
    lane, copy, commit, wait, sync = (
        tile.lane,
        tile.copy_words_async,
        tile.commit,
        tile.wait(0),
        tile.warp_sync,
    )
    load, put = tile.load_transposed((0, 256)), _put(tile, 8)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        for i in range(4):
            copy(128 * i + 4 * l, w, 128 * i + 4 * l)
        commit()
        wait()
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, load((l & 15) * 16 + 4 * (l >> 4)))

    return kernel


@tiny("widen")
def widen(tile: Any) -> Callable:
    lane, load, operation, put = tile.lane, tile.load_global(4, 4), tile.widen(4), _put(tile, 8)
    words = tiny_kernels._reinterpret(tile, 8, "words")

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, words(operation(load(w, 4 * l, 128))))

    return kernel


@tiny("turn_rows", data="noise")
def turn_rows(tile: Any) -> Callable:
    """Two row groups of two registers a part."""
    lane, load, operation, put = tile.lane, tile.load_global(4, 4), tile.turn_rows(2, 2), _put(tile, 8)
    widened, words = tile.widen(4), tiny_kernels._reinterpret(tile, 8, "words")
    table, floats = tile.load_global(4, 4), tiny_kernels._reinterpret(tile, 4, "words")

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        turned = operation(widened(load(w, 4 * l, 128)), floats(table(f, 4 * l, 128)))
        put(out, 0, 0, 2 * l, 0, 0, 0, words(turned))

    return kernel


@tiny("turn_runs:8:0", "turn_runs:8:1", "turn_runs:4:0", data="noise")
def turn_runs(tile: Any, columns: int, inverse: int) -> Callable:
    """Rows 3 l, 5 l + 100 and 250, from column 64 l on."""
    runs = RUNS8 if columns == 8 else RUNS4
    count = 2 * columns
    operation = tile.turn_runs(runs, count, points=POINTS, inverse=bool(inverse), scale=SCALE)
    lane, load, widened = tile.lane, tile.load_global(count, 4), tile.widen(count)
    words, put = tiny_kernels._reinterpret(tile, 2 * count, "words"), _put(tile, 2 * count)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        turned = operation(widened(load(w, 4 * l, 128)), 3 * l, 5 * l + 100, 250, 64 * l)
        put(out, 0, 0, 2 * l, 0, 0, 0, words(turned))

    return kernel
