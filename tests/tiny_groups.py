"""Small kernels for groups of four warps, that both bodies run; see `tiny_kernels.py`, whose buffers they take.

A block is two teams of four warps. Every warp writes register r of lane l to word ``1024 team + 256 w + 32 r + l``.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tiny_kernels
from numpy.typing import NDArray
from tiny_kernels import POISON, SIGNATURE, SIZE, Data, Tiny, min_blocks

from kernels_numba.tile.counters import Counters
from kernels_numba.tile.cpu import CpuTile
from kernels_numba.tile.machine import Buffer, Machine

CAPABILITY = (9, 0)
TEAMS = 2
COLUMNS = 16
FACTOR, DATA, TABLE = (
    0,
    1024,
    2048,
)  # in shared memory and in ``w``: words of a left factor, of the data, of a table
PARTS_DATA, PARTS_TABLE = 2048, 2560
"""The same after a left factor of two parts."""
SETTINGS = {"warps": 4 * TEAMS, "shared_words": 3072}
KERNELS = {
    name: Tiny(name, "fp16", data=data, **SETTINGS)
    for name, data in (
        ("rows", "integers"),
        ("rows:lower", "integers"),
        ("rows_times:shared", "integers"),
        ("rows_times:global", "integers"),
        ("columns_times:registers", "integers"),
        ("store_matrices", "bits"),
        ("to_parts:shared", "integers"),
        ("to_parts:global", "integers"),
        ("of_both:first", "integers"),
        ("of_both:second", "integers"),
        ("from_parts", "integers"),
    )
}
STORED = ((0, (0, 1, 2, 3)), (128, (7, 6, 5, 4)))
ALONG, ACROSS = 128, 4 * 128  # bytes between the core matrices of 32 rows of data


def build(tile: Any, spec: Tiny) -> Callable:
    """Fill shared memory, meet, run one operation, and write its words."""
    what, _, where = spec.name.partition(":")
    lane, warp, small = tile.lane, tile.warp, tile.small
    copy, commit, wait, barrier = tile.copy_words_async, tile.commit, tile.wait(0), tile.barrier
    fence, meet = tile.fence_async, tile.team_barrier(4)
    load, load_shared = tile.load_global(8, 4), tile.load_shared(8, 4)
    put = tile.store_pieces(tuple((0, 64 * r, (r,)) for r in range(8)), 2, guarded=False)
    put_half = tile.store_pieces(tuple((0, 64 * r, (r,)) for r in range(4)), 2, guarded=False)
    # 32 rows are contracted, so the data and a left factor of 64 rows are 2 x 16 of them deep; a right one is 16.
    rows = tile.group_dft_rows(
        COLUMNS, 2, along=ALONG, across=ACROSS, inverse=True, lower_half=where == "lower"
    )
    rows_times = tile.group_dft_rows_times(
        COLUMNS, 2, along=ALONG, across=ACROSS, inverse=False, self_paired=True, table=where or "shared"
    )
    columns_times = tile.group_dft_columns_times(COLUMNS, 1, inverse=False, table="registers")
    # Two sequences of 8 columns each; of inner columns 16, of which one sequence is written.
    both, second = COLUMNS // 2, where == "second"
    to_parts = tile.group_to_parts_times(
        both, 2, along=ALONG, across=ACROSS, table=where if what == "to_parts" else "shared"
    )
    from_parts = tile.group_from_parts(both, 2, along=ALONG, across=ACROSS)
    of_both = tile.group_dft_columns_of_both(COLUMNS, 1, inverse=False, table="registers")
    one_of = tile.select(tuple(range(8 * second, 8 * second + 8)))
    outer_in, outer_out, inner = what == "to_parts", what == "from_parts", what == "of_both"
    join = tile.join
    store = tile.store_matrices(STORED)
    pack, pack_half = tile.pack(8), tile.pack(4)
    plain, lower, contract_rows, contract_columns = (
        what == "rows" and not where,
        where == "lower",
        what == "rows_times",
        what == "columns_times",
    )

    def kernel(h, w, f, out, n):
        l = small(lane())  # noqa: E741
        index = small(warp())
        for i in range(3):
            at = small(1024 * i + 128 * index + 4 * l)
            copy(at, w, at)
        commit()
        wait()
        fence()
        barrier()
        team = small(index >> 2)
        rank = small(index & 3)
        to = small(2048 * team + 512 * rank + 2 * l)
        at = small(TABLE + 256 * rank + 4 * l)
        if plain:
            put(out, 0, 0, to, 0, 0, 0, pack(rows(FACTOR, DATA)))
        elif lower:
            put_half(out, 0, 0, to, 0, 0, 0, pack_half(rows(FACTOR, DATA)))
        elif contract_rows:
            put(out, 0, 0, to, 0, 0, 0, rows_times(FACTOR, DATA, w, at, small((rank == 0) & (l < 4))))
        elif contract_columns:
            x = load(w, 256 * index + 4 * l, 128)
            put(out, 0, 0, to, 0, 0, 0, columns_times(x, FACTOR, load(w, at, 128), 0))
        elif outer_in:
            at = small(PARTS_TABLE + 128 * rank + 4 * l)
            put(out, 0, 0, to, 0, 0, 0, to_parts(FACTOR, PARTS_DATA, w, at))
        elif outer_out:
            put_half(out, 0, 0, to, 0, 0, 0, pack_half(from_parts(FACTOR, DATA)))
        elif inner:
            x = join(load(w, 256 * index + 4 * l, 128), load(w, 256 * (7 - index) + 4 * l, 128))
            put(out, 0, 0, to, 0, 0, 0, one_of(of_both(x, FACTOR, load(w, at, 128), 0)))
        else:
            x = load(w, 256 * index + 4 * l, 128)
            barrier()
            # Each warp's own eight matrices, in the first 2048 words; read back as they lie.
            store(256 * index + 32 * (l >> 3) + 4 * (l & 7), x)
            meet(team)
            other = small(4 * team + ((rank + 1) & 3))
            put(out, 0, 0, to, 0, 0, 0, load_shared(256 * other + 4 * l, 128))

    return kernel


def run_cpu(spec: Tiny, data: Data) -> tuple[NDArray[np.int16], Counters]:
    """Run on the CPU body: what it wrote (poisoned before) and what was counted."""
    machine = Machine()
    out = np.full(SIZE, POISON, np.int16)
    kernel = build(CpuTile(machine, spec.dtype), spec)
    buffers = [Buffer("h", data.h), Buffer("w", data.w), Buffer("f", data.f), Buffer("out", out)]
    return out, machine.run(kernel, spec.grid, spec.warps, spec.shared_words, [*buffers, spec.n])


def run_gpu(spec: Tiny, data: Data) -> NDArray[np.int16]:
    """Run on the first GPU, which must have these instructions."""
    return tiny_kernels.run_gpu(spec, data, sys.modules[__name__])


__all__ = ["CAPABILITY", "KERNELS", "SIGNATURE", "build", "min_blocks", "run_cpu", "run_gpu"]
