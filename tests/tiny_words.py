"""Small kernels, one for each operation on complex words, that both bodies run; as `tiny_kernels`."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tiny_kernels
from numpy.typing import NDArray
from tiny_kernels import Data, Tiny
from tiny_registry import registry

from kernels_numba.tile.counters import Counters

SIGNATURE = tiny_kernels.SIGNATURE
PARTS = ((0, 3), (5, 1), (4, 2), (6, 7))
"""Registers of real and imaginary parts, in no order."""

KERNELS, tiny, build, min_blocks = registry(partial(Tiny, dtype="fp16"))


def run_cpu(spec: Tiny, data: Data) -> tuple[NDArray[np.int32], Counters]:
    """Run on the CPU body: the words it wrote (poisoned before) and what was counted."""
    out, counters = tiny_kernels.run_cpu(spec, data, sys.modules[__name__])
    return out.view(np.int32), counters


def run_gpu(spec: Tiny, data: Data) -> NDArray[np.int32]:
    return tiny_kernels.run_gpu(spec, data, sys.modules[__name__]).view(np.int32)


def _put(tile: Any, count: int) -> Any:
    return tile.store_pieces(tuple((0, 64 * r, (r,)) for r in range(count)), 2, guarded=False)


@tiny("multiply_words", "turn_words:0", "turn_words:1", data="noise")
def multiply_words(tile: Any, swap: int | None = None) -> Callable:
    lane, load, words = tile.lane, tile.load_global(8, 4), tile.load_global(4, 4)
    floats = tiny_kernels._reinterpret(tile, 8, "floats")
    operation = tile.multiply_words(PARTS) if swap is None else tile.turn_words(PARTS, swap=bool(swap))
    put = _put(tile, 4)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, operation(floats(load(f, 4 * l, 128)), words(w, 4 * l, 128)))

    return kernel


@tiny("widen_words", data="noise")
def widen_words(tile: Any) -> Callable:
    lane, load, operation, put = tile.lane, tile.load_global(4, 4), tile.widen_words(4), _put(tile, 8)
    words = tiny_kernels._reinterpret(tile, 8, "words")

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, words(operation(load(w, 4 * l, 128))))

    return kernel


@tiny("mirror_words", data="noise")
def mirror_words(tile: Any) -> Callable:
    lane, load, operation, put = tile.lane, tile.load_global(4, 4), tile.mirror_words(4), _put(tile, 4)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        x, a = load(w, 4 * l, 128), load(w, 128 + 4 * l, 128)
        m, b = load(w, 256 + 4 * l, 128), load(w, 384 + 4 * l, 128)
        put(out, 0, 0, 2 * l, 0, 0, 0, operation(x, a, m, b))

    return kernel


@tiny("columns_product:0", "columns_product:1", data="integers", shared_words=1536)
def columns_product(tile: Any, shared: int) -> Callable:
    """Three column tiles, three of four contraction tiles."""
    lane, copy, commit, wait, sync = (
        tile.lane,
        tile.copy_words_async,
        tile.commit,
        tile.wait(0),
        tile.warp_sync,
    )
    load, operation = tile.load_global(12, 4), tile.columns_product(3, 3, stored=4, shared=bool(shared))
    words, put = tiny_kernels._reinterpret(tile, 12, "words"), _put(tile, 12)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        for i in range(6):
            copy(128 * i + 4 * l, w, 128 * i + 4 * l)
        commit()
        wait()
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, words(operation(w, 4 * l, load(w, 1024 + 4 * l, 128))))

    return kernel
