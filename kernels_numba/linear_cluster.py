"""The full product of few rows: blocks that share their reading of x (compute capability 9.0).

For y = x w^T with x [M, K], w [N, K] and M from some ten to a few hundred, the weights stream from memory as in
`linear_group`, and x comes from L2 again for every block: for M = 64 nearly as many bytes as the weights. Here the
``cluster`` blocks of a cluster read every row of x once together: each asks for a part of a slab, and the copy engine
writes it into the shared memory of all of them.

**Operands.** ``wgmma`` multiplies 64 rows of x for each warpgroup with ``columns`` rows of w. Weights come by
asynchronous copies of 16 bytes a lane, swizzled, as `linear_group` brings them, and are read in place. The copy
engine cannot swizzle rows: x lies in rows of a step's depth and 16 bytes more, so that ``ldmatrix`` meets no bank
twice, and is the left operand from registers.

**Order.** A step is ``depth`` slabs of 64. The weights of ``stages`` - 1 steps are under way; x runs `SLACK` steps less
ahead, so that a block may be that much behind its neighbours before they wait for it. Every block takes ``pitch`` rows
of w and all of K; nothing is split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba.linear_full import CHUNKS, ROW_WORDS, SLAB
from kernels_numba.linear_group import CAPABILITY, GROUP_ROWS, GROUP_WARPS

__all__ = ["CAPABILITY", "Spec", "build"]

SLACK = 2
PADDING_WORDS = 4
SM_SHARED_BYTES, BLOCK_SHARED_BYTES = 228 * 1024, 1024
"""Shared memory of an SM (compute capability 9.0), and what a block takes beside its own."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    dtype: str
    groups: int = 1
    """Warpgroups of a block, 64 rows of x each."""
    columns: int = 96
    """Rows of w that a block has room for."""
    depth: int = 1
    """Slabs of a step."""
    stages: int = 8
    """Steps in shared memory."""
    cluster: int = 4
    """Blocks that share their reading of x."""
    overlap: bool = False
    """The first weights are loaded while the launch before still runs."""
    halves: int = 2
    """Elements of y that are stored together."""

    def __post_init__(self) -> None:
        unit = 16 * self.groups
        if self.columns not in range(unit, 257, unit):
            raise ValueError(
                f"columns: {self.groups} warpgroups copy {unit} rows at once and a product has at most 256 columns, so "
                f"a multiple up to 256; got {self.columns}"
            )
        if self.stages < SLACK + 2:
            raise ValueError(
                f"stages: x runs {SLACK} steps less ahead than the weights, so at least {SLACK + 2}; got {self.stages}"
            )
        if self.cluster not in (2, 4, 8):
            raise ValueError(
                f"cluster: expected 2, 4 or 8 blocks, which any GPU with clusters takes; got {self.cluster}"
            )
        if self.depth not in (1, 2):
            raise ValueError(f"depth: expected 1 or 2 slabs a step; got {self.depth}")

    @property
    def deep(self) -> int:
        """Elements of K in a step."""
        return SLAB * self.depth

    @property
    def ahead(self) -> int:
        """Steps of weights on their way while one is used."""
        return self.stages - 1

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return GROUP_WARPS * self.groups

    @property
    def x_rows(self) -> int:
        """Rows of x."""
        return GROUP_ROWS * self.groups

    left_rows = x_rows

    @property
    def w_stage_words(self) -> int:
        """Shared memory of the weights of a step, in words."""
        return self.depth * self.columns * ROW_WORDS

    @property
    def x_row_words(self) -> int:
        """Of a row of x."""
        return self.depth * ROW_WORDS + PADDING_WORDS

    @property
    def x_stage_words(self) -> int:
        """Of a step of x."""
        return self.x_rows * self.x_row_words

    @property
    def stage_bytes(self) -> int:
        """Of a step, with its two barriers."""
        return 4 * (self.w_stage_words + self.x_stage_words + 4)

    @property
    def shared_bytes(self) -> int:
        """All stages."""
        return self.stages * self.stage_bytes

    @property
    def blocks(self) -> int:
        """Blocks that an SM holds."""
        return max(1, SM_SHARED_BYTES // (self.shared_bytes + BLOCK_SHARED_BYTES))

    @property
    def registers(self) -> int:
        """Accumulators of a lane."""
        return self.columns // 2

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        shape = f"{self.x_rows}x{self.columns}x{SLAB * self.depth}_s{self.stages}_c{self.cluster}"
        return f"cluster_gemm_{shape}_{self.dtype}_v{self.halves}" + ("_o" if self.overlap else "")


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    columns, stages, depth, cluster, overlap = (
        spec.columns,
        spec.stages,
        spec.depth,
        spec.cluster,
        spec.overlap,
    )
    w_stage_words, x_stage_words, x_row_words = spec.w_stage_words, spec.x_stage_words, spec.x_row_words
    x_at = stages * w_stage_words
    full_at = x_at + stages * x_stage_words
    free_at = full_at + 2 * stages
    threads = 32 * spec.warps
    copied_rows = threads // CHUNKS
    deep, slab_words = SLAB * depth, columns * ROW_WORDS
    x_rows = spec.x_rows
    share = x_rows // (cluster * spec.warps)
    lane, warp, block, divide, barrier = tile.lane, tile.warp, tile.block, tile.divide, tile.barrier
    small, int64, opaque, fence = tile.small, tile.int64, tile.opaque, tile.fence_async
    copy_w = tile.copy_rows(columns // copied_rows, 2 * ROW_WORDS * copied_rows, copied_rows, guarded=True)
    ahead, x_ahead = stages - 1, stages - 1 - SLACK
    commit, wait, wait_all = tile.commit, tile.wait(ahead - 1), tile.wait(0)
    begin_sharing, end_sharing, announce = (
        tile.begin_sharing(stages, cluster),
        tile.end_sharing,
        tile.announce,
    )
    share_row, await_barrier, let_go = (
        tile.share_row(2 * deep, cluster),
        tile.await_barrier,
        tile.let_go(cluster),
    )
    zeros, load_x = tile.zeros(spec.registers), tile.load_matrices(tuple(8 * i for i in range(4 * depth)))
    begin_product, finish = (
        tile.group_mma_add_held(columns, 4 * depth),
        tile.group_wait_held(columns, 4 * depth),
    )
    store = tile.store_group(columns, spec.halves)
    wait_for_previous, let_next_start = tile.wait_for_previous, tile.let_next_start

    def kernel(x, w, y, m, n, k, x_stride, w_stride, pitch):
        at = lane()
        index = small(warp())
        mine = small(block())
        rank = small(mine & (cluster - 1))
        # Copies of weights: eight lanes bring the eight chunks of a row.
        thread = small(32 * index + at)
        row = small(thread >> 3)
        chunk = small(thread & 7)
        to = small(2 * (row * ROW_WORDS + ((chunk ^ (row & 7)) << 2)))
        w_begin = small(mine * pitch)
        w_end = small(min(n, w_begin + pitch))
        left = small(w_end - w_begin - row)
        from_w = int64(w_begin + row) * w_stride + 8 * chunk
        w_step = int64(copied_rows) * w_stride
        steps = small(divide(k, deep))
        # Rows of x: of the cluster's warps each asks for every so manieth one.
        x_row = small((share * index + at) * cluster + rank)
        x_mine = (at < share) & (x_row < m)
        from_x = int64(x_row) * x_stride * x_mine
        x_bytes = small(2 * deep * min(m, x_rows))

        def bring_w(stage, step):
            """Copy the weights of a step."""
            for d in range(depth):
                place = small(stage * w_stage_words + d * slab_words)
                copy_w(2 * place + to, w, from_w + (deep * step + SLAB * d), w_step, left, True)

        def bring_x(stage, step):
            """Copy this warp's rows of a step of x for all blocks of the cluster."""
            full = small(full_at + 2 * stage)
            if index == 0:
                announce(full, x_bytes)
            place = small(x_at + stage * x_stage_words + x_row * x_row_words)
            share_row(2 * place, full, x, from_x + deep * step, x_mine)

        for s in range(ahead):
            if s < steps:
                bring_w(s, s)
            commit()
        begin_sharing(x_at, full_at)
        if overlap:
            wait_for_previous()
            let_next_start()
        for s in range(x_ahead):
            if s < steps:
                bring_x(s, s)
        # Rows of this warp: lane 8 i + r names row r of block i of 8 x 8.
        x_place = small(x_at + (16 * index + (at & 15)) * x_row_words + 4 * (at >> 4))
        here = small(0)
        turn = small(0)
        x_stage = small(x_ahead)
        x_turn = small(0)
        c = zeros()
        for s in range(opaque(steps)):
            wait()
            fence()
            barrier()
            # Here every warp has done with the step before: its stage is free.
            before = small(here + (stages - 1))
            if before >= stages:
                before = small(before - stages)
            # The product runs while the next operands are asked for.
            await_barrier(full_at + 2 * here, small(turn & 1))
            a = load_x(x_place + here * x_stage_words)
            c = begin_product(c, a, here * w_stage_words)
            if index == 0:
                if s > 0:
                    let_go(free_at + 2 * before)
            if s + ahead < steps:
                bring_w(before, s + ahead)
            commit()
            if s + x_ahead < steps:
                if x_turn > 0:
                    await_barrier(free_at + 2 * x_stage, small((x_turn - 1) & 1))
                bring_x(x_stage, s + x_ahead)
            x_stage = small(x_stage + 1)
            if x_stage == stages:
                x_stage = small(0)
                x_turn = small(x_turn + 1)
            c = finish(c, a)
            here = small(here + 1)
            if here == stages:
                here = small(0)
                turn = small(turn + 1)
        wait_all()
        out_row = small(16 * index + (at >> 2))
        out_column = small(w_begin + 2 * (at & 3))
        store(y, int64(out_row) * n + out_column, n, m - out_row, w_end - out_column, c)
        end_sharing()

    return kernel


VOCABULARY = "linear"
SIGNATURE = ("HALVES",) * 3 + ("INT",) * 6
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return 1
