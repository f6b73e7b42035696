"""Small kernels for running sums on a warpgroup, that both bodies run; see `tiny_kernels.py`, whose buffers they take.

Words of ``w`` are two slabs, a left one of 64 rows and a right one of 16, as they lie in shared memory. Their product
is added twice and written to ``out``: row-major [64, 16], or transposed, [16, 64]; of "odd" all but the last row and
column, an element at a time.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tiny_kernels
from numpy.typing import NDArray
from tiny_kernels import POISON, SIGNATURE, SIZE, Data, Tiny, min_blocks

from kernels_numba.tile.counters import Counters
from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import Buffer, Machine

CAPABILITY = (9, 0)
VOCABULARY = "linear"
ROWS, COLUMNS, SLAB = 64, 16, 64
LEFT, RIGHT = 0, ROWS * SLAB // 2
WORDS = RIGHT + COLUMNS * SLAB // 2
KERNELS = {
    name: Tiny(name, "fp16", warps=4, shared_words=WORDS, data="integers")
    for name in ("plain", "plain:odd", "turned", "turned:odd")
}


def build(tile: Any, spec: Tiny) -> Callable:
    """Fill shared memory, meet, add the product twice, write."""
    how, _, odd = spec.name.partition(":")
    turned = how == "turned"
    halves, left_out = (1, 1) if odd else (2, 0)
    height, width = (COLUMNS, ROWS) if turned else (ROWS, COLUMNS)
    lane, warp, small = tile.lane, tile.warp, tile.small
    copy, commit, wait, barrier = tile.copy_words_async, tile.commit, tile.wait(0), tile.barrier
    fence, zeros, add = tile.fence_async, tile.zeros(COLUMNS // 2), tile.group_mma_add(COLUMNS, SLAB // 16)
    finish_first, finish = tile.group_wait(COLUMNS, 1), tile.group_wait(COLUMNS, 0)
    store = (tile.store_group_turned if turned else tile.store_group)(COLUMNS, halves)

    def kernel(h, w, f, out, n):
        l = small(lane())  # noqa: E741
        index = small(warp())
        for i in range(WORDS // 512):
            at = small(512 * i + 128 * index + 4 * l)
            copy(at, w, at)
        commit()
        wait()
        fence()
        barrier()
        c = add(zeros(), LEFT, RIGHT)
        c = finish_first(add(c, LEFT, RIGHT))
        c = finish(c)
        row = small(l >> 2)
        column = small(2 * (l & 3))
        if turned:
            column = small(column + 16 * index)
        else:
            row = small(row + 16 * index)
        rows = small(height - left_out - row)
        columns = small(width - left_out - column)
        store(out, row * width + column, width, rows, columns, c)

    return kernel


def run_cpu(spec: Tiny, data: Data) -> tuple[NDArray[np.int16], Counters]:
    """Run on the CPU body: what it wrote (poisoned before) and what was counted."""
    machine = Machine()
    out = np.full(SIZE, POISON, np.int16)
    kernel = build(vocabulary(machine, spec.dtype, VOCABULARY), spec)
    buffers = [Buffer("h", data.h), Buffer("w", data.w), Buffer("f", data.f), Buffer("out", out)]
    return out, machine.run(kernel, spec.grid, spec.warps, spec.shared_words, [*buffers, spec.n])


def run_gpu(spec: Tiny, data: Data) -> NDArray[np.int16]:
    """Run on the first GPU, which must have these instructions."""
    return tiny_kernels.run_gpu(spec, data, sys.modules[__name__])


__all__ = ["CAPABILITY", "KERNELS", "SIGNATURE", "build", "min_blocks", "run_cpu", "run_gpu"]
