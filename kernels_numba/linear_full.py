"""The full product: many rows of input, on tensor cores, at the speed of products.

For y = x w^T with x [M, K], w [N, K] and M in the hundreds and more, time is the products'. A block makes a tile of y,
``rows`` by ``columns``; its warps make ``warp_rows`` by ``warp_columns`` each and hold the sums in float32 registers.
Both operands come in slabs 64 deep, by asynchronous copies into ``stages`` buffers in shared memory, of which all but
one are under way while one is used; ``ldmatrix`` brings them to registers, in the layout of ``mma.m16n8k16``.

A slab's row is 128 bytes, all 32 banks of shared memory, so the eight 16-byte chunks of row r are stored at chunk
c XOR (r mod 8): copies (8 lanes a row) and ``ldmatrix`` (8 rows of one chunk) then touch every bank once.

Blocks next to each other share their columns of w, which a tile of y needs most of, so w comes from device memory once.
A block that has several tiles copies the first slabs of the next one while it forms the last products of this one and
stores its sums.
K must be a multiple of 8 and rows begin on 16 bytes; `linear_realign` makes such copies of other operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SLAB = 64
"""Depth of a slab in halves."""
ROW_WORDS = SLAB // 2
CHUNKS = SLAB // 8


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    dtype: str
    rows: int = 128
    """Rows of x of a block's tile."""
    columns: int = 128
    """Rows of w of a block's tile."""
    warp_rows: int = 64
    warp_columns: int = 64
    stages: int = 3
    guarded: bool = False
    """Some tiles or slabs are not whole."""
    split: bool = False
    """Several blocks share a tile."""
    overlap: bool = False
    """The first weights are loaded while the launch before still runs (compute capability 9)."""
    halves: int = 2
    """Elements of y that are stored together."""
    blocks: int = 1
    """Blocks per SM that the compiler must leave registers for."""

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def stage_words(self) -> int:
        """Shared memory of one slab of both operands, in words."""
        return (self.rows + self.columns) * ROW_WORDS

    @property
    def shared_bytes(self) -> int:
        """All stages."""
        return 4 * self.stages * self.stage_words

    @property
    def tile_sums(self) -> int:
        """Sums of a tile."""
        return self.rows * self.columns

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        flags = {"g": self.guarded, "s": self.split, "o": self.overlap}
        marks = "".join(f"_{mark}" for mark, on in flags.items() if on)
        shape = f"{self.rows}x{self.columns}_w{self.warp_rows}x{self.warp_columns}_s{self.stages}"
        return f"full_gemm_{shape}_{self.dtype}_v{self.halves}{marks}"


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    rows, columns, stages, stage_words = spec.rows, spec.columns, spec.stages, spec.stage_words
    warp_rows, warp_columns = spec.warp_rows, spec.warp_columns
    row_tiles, column_tiles = warp_rows // 16, warp_columns // 8
    warps_across = columns // warp_columns
    threads = 32 * spec.warps
    copied_rows = threads // CHUNKS
    lane, warp, block, divide, barrier = tile.lane, tile.warp, tile.block, tile.divide, tile.barrier
    small, int64, opaque = tile.small, tile.int64, tile.opaque
    step = 2 * ROW_WORDS * copied_rows
    copy_x = tile.copy_rows(rows // copied_rows, step, copied_rows, guarded=spec.guarded)
    copy_w = tile.copy_rows(columns // copied_rows, step, copied_rows, guarded=spec.guarded)
    commit, wait, wait_all = tile.commit, tile.wait(stages - 2), tile.wait(0)
    load_a = tile.load_matrices(tuple(16 * ROW_WORDS * i for i in range(row_tiles)))
    load_b = tile.load_matrices(tuple(16 * ROW_WORDS * i for i in range(column_tiles // 2)))
    zeros, mma_add = (
        tile.zeros(4 * row_tiles * column_tiles),
        tile.mma_add(row_tiles, column_tiles, 1),
    )
    store = tile.store_tile(2 * row_tiles, column_tiles, spec.halves)
    overlap, wait_for_previous, let_next_start = spec.overlap, tile.wait_for_previous, tile.let_next_start
    split_k, registers, tile_sums = spec.split, 4 * row_tiles * column_tiles, rows * columns
    store_sums, load_sums, add, last_block = (
        tile.store_sums(registers),
        tile.load_sums(registers),
        tile.add(registers),
        tile.last_block,
    )

    def kernel(x, w, partials, counters, y, m, n, k, x_stride, w_stride, row_blocks, tiles, walkers, split):
        at = lane()
        index = small(warp())
        # A block takes every walkers-th tile, and of each the same part of K.
        first_tile = small(divide(block(), split))
        part = small(block() - first_tile * split)
        across = small(divide(first_tile, row_blocks))
        # Copies: eight lanes bring the eight chunks of a row.
        thread = small(32 * index + at)
        row = small(thread >> 3)
        chunk = small(thread & 7)
        to = small(2 * (row * ROW_WORDS + ((chunk ^ (row & 7)) << 2)))
        x_step = int64(copied_rows) * x_stride
        w_step = int64(copied_rows) * w_stride
        all_slabs = small(divide(k + (SLAB - 1), SLAB))
        first_slab = small(divide(part * all_slabs, split))
        slabs = small(divide((part + 1) * all_slabs, split) - first_slab)
        first_chunk = small(8 * chunk + SLAB * first_slab)
        depth = small(k - first_chunk)
        # What is copied next: which slab of which tile.
        copy_tile = first_tile
        x_row = small((first_tile - across * row_blocks) * rows + row)
        w_row = small(across * columns + row)
        from_x = int64(x_row) * x_stride + first_chunk
        from_w = int64(w_row) * w_stride + first_chunk
        # Operands: which row and chunk of a 16 x 16 block each lane names for ldmatrix.
        down = small(divide(index, warps_across))
        right = small(index - down * warps_across)
        turn = small(at & 7)
        a_at = small((down * warp_rows + (at & 15)) * ROW_WORDS)
        a_chunk = small(at >> 4)
        b_at = small((rows + right * warp_columns + (at & 7) + ((at >> 4) << 3)) * ROW_WORDS)
        b_chunk = small((at >> 3) & 1)
        c = zeros()
        for s in range(stages - 1):
            if s < slabs:
                inside = SLAB * s < depth
                copy_w(
                    2 * (s * stage_words + rows * ROW_WORDS) + to,
                    w,
                    from_w + SLAB * s,
                    w_step,
                    small(n - w_row),
                    inside,
                )
        if overlap:
            wait_for_previous()
            let_next_start()
        for s in range(stages - 1):
            if s < slabs:
                inside = SLAB * s < depth
                copy_x(2 * s * stage_words + to, x, from_x + SLAB * s, x_step, small(m - x_row), inside)
            commit()
        copy_slab = small(stages - 1)
        coming = small(stages - 1)
        stage = small(0)
        wait()
        barrier()
        # Four steps of 16. Operands of a step, and of the next slab's first, are on their way while the products before
        # are formed, and so are the copies: what waits for nothing fills the gaps between products.
        a = load_a(a_at + ((a_chunk ^ turn) << 2))
        b = load_b(b_at + ((b_chunk ^ turn) << 2))
        tile_index = first_tile
        while tile_index < tiles:
            for s in range(opaque(slabs)):
                if copy_slab >= slabs:  # on to the next tile, as long as this one's products last
                    if copy_tile < tiles:
                        copy_tile = small(copy_tile + walkers)
                        copy_slab = small(0)
                        across = small(divide(copy_tile, row_blocks))
                        x_row = small((copy_tile - across * row_blocks) * rows + row)
                        w_row = small(across * columns + row)
                        from_x = int64(x_row) * x_stride + first_chunk
                        from_w = int64(w_row) * w_stride + first_chunk
                here = small(stage * stage_words)
                inside = SLAB * copy_slab < depth
                base = small(coming * stage_words)
                next_a = load_a(here + a_at + (((2 + a_chunk) ^ turn) << 2))
                next_b = load_b(here + b_at + (((2 + b_chunk) ^ turn) << 2))
                c = mma_add(c, a, b)
                if copy_tile < tiles:
                    copy_x(2 * base + to, x, from_x + SLAB * copy_slab, x_step, small(m - x_row), inside)
                a = load_a(here + a_at + (((4 + a_chunk) ^ turn) << 2))
                b = load_b(here + b_at + (((4 + b_chunk) ^ turn) << 2))
                c = mma_add(c, next_a, next_b)
                if copy_tile < tiles:
                    copy_w(
                        2 * (base + rows * ROW_WORDS) + to,
                        w,
                        from_w + SLAB * copy_slab,
                        w_step,
                        small(n - w_row),
                        inside,
                    )
                commit()
                copy_slab = small(copy_slab + 1)
                next_a = load_a(here + a_at + (((6 + a_chunk) ^ turn) << 2))
                next_b = load_b(here + b_at + (((6 + b_chunk) ^ turn) << 2))
                c = mma_add(c, a, b)
                coming = stage
                stage = small(stage + 1)
                if stage == stages:
                    stage = small(0)
                wait()
                barrier()
                if (s + 1 < slabs) | (tile_index + walkers < tiles):
                    a = load_a(stage * stage_words + a_at + ((a_chunk ^ turn) << 2))
                    b = load_b(stage * stage_words + b_at + ((b_chunk ^ turn) << 2))
                c = mma_add(c, next_a, next_b)
            done = small(divide(tile_index, row_blocks))
            out_row = small((tile_index - done * row_blocks) * rows + down * warp_rows + (at >> 2))
            out_column = small(done * columns + right * warp_columns + 2 * (at & 3))
            place = int64(out_row) * n + out_column
            if split_k:
                mine = int64(tile_index * split) * tile_sums + (index * (32 * registers) + 4 * at)
                store_sums(partials, mine + part * tile_sums, 128, c)
                if last_block(counters, tile_index, split):
                    c = load_sums(partials, mine, 128)
                    for p in range(1, split):
                        c = add(c, load_sums(partials, mine + p * tile_sums, 128))
                    store(y, place, n, m - out_row, n - out_column, c)
            else:
                store(y, place, n, m - out_row, n - out_column, c)
            c = zeros()
            tile_index = small(tile_index + walkers)
        wait_all()

    return kernel


VOCABULARY = "linear"
SIGNATURE = ("HALVES",) * 2 + ("FLOATS", "WORDS", "HALVES") + ("INT",) * 9
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return spec.blocks


def tiles(spec: Spec, m: int, n: int) -> tuple[int, int]:
    """Tiles of y: along M, along N."""
    return -(-m // spec.rows), -(-n // spec.columns)
