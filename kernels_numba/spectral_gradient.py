"""Products of spectra that contract images: at every frequency the gradient of a layer's weights, on tensor cores.

    y[f, o, c] = factor sum_m conj(g[f, m, o]) x[f, m, c]

Contracted is the row index of both operands, so they are transposed on their way to registers (``ldmatrix.trans``),
halves by themselves: a row of the left operand is the real or the imaginary part of one channel, and so is a column of
the right one. The product has all four products of parts, and the two rows of a channel, which neighbouring groups of
lanes hold, are joined when the sums are stored. A block makes a tile of points of one frequency and group from slabs
of 32 rows m. Where images come in groups, ``partial``, each launch but the last leaves its sums, in float32, to the
next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba.spectral_product import find_tile

SLAB = 32
"""Rows m of a slab, and channels that lie side by side in one."""
SLAB_WORDS = SLAB * SLAB
LAYOUTS = {
    (32, 32): (1, 2),
    (32, 64): (1, 4),
    (32, 96): (2, 4),
    (64, 32): (2, 2),
    (64, 64): (2, 4),
    (64, 96): (2, 4),
    (96, 32): (4, 2),
    (96, 64): (2, 4),
    (96, 96): (2, 4),
}
"""By channels of both operands that a block takes, how its warps share them."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    dtype: str
    rows: int = 64
    """Channels of g of a block's tile."""
    columns: int = 64
    """Channels of x of a block's tile."""
    stages: int = 4
    partial: bool = False
    """Whether sums may come from a launch before, and go to the next."""

    @property
    def warps(self) -> int:
        """Warps of a block."""
        down, across = LAYOUTS[self.rows, self.columns]
        return down * across

    @property
    def stage_words(self) -> int:
        """Shared memory of one slab of both operands, in words, one a channel."""
        return SLAB * (self.rows + self.columns)

    @property
    def shared_bytes(self) -> int:
        """All stages."""
        return 4 * self.stages * self.stage_words

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        partial = "_partial" if self.partial else ""
        return f"spectral_gradient_{self.rows}x{self.columns}_s{self.stages}_{self.dtype}{partial}"


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    stages, stage_words, g_words, x_words = spec.stages, spec.stage_words, spec.rows, spec.columns
    warps_down, warps_across = LAYOUTS[g_words, x_words]
    warp_rows, warp_columns = 2 * g_words // warps_down, 2 * x_words // warps_across
    row_tiles, column_tiles = warp_rows // 16, warp_columns // 8
    copied_rows = 4 * spec.warps  # eight lanes bring the eight chunks of a row of 32 channels
    lane, warp, divide, barrier = tile.lane, tile.warp, tile.divide, tile.barrier
    small, int64, opaque, find = tile.small, tile.int64, tile.opaque, find_tile(tile, g_words, x_words)
    copy = tile.copy_rows(SLAB // copied_rows, 2 * SLAB * copied_rows, copied_rows, guarded=True)
    commit, wait, wait_all = tile.commit, tile.wait(stages - 2), tile.wait(0)
    load_a = tile.load_matrices_across(row_tiles, SLAB_WORDS)
    load_b = tile.load_matrices_across(column_tiles // 2, SLAB_WORDS)
    zeros = tile.zeros(4 * row_tiles * column_tiles)
    mma_add = tile.mma_add(row_tiles, column_tiles, 1)
    scale = tile.scale(4 * row_tiles * column_tiles)
    store = tile.store_outer_points(2 * row_tiles, column_tiles)
    pass_on, partial = tile.pass_outer_points(2 * row_tiles, column_tiles), spec.partial
    g_slabs, x_slabs = g_words // SLAB, x_words // SLAB

    def kernel(
        g,
        x,
        y,
        sums,
        m,
        rows,
        columns,
        groups,
        row_blocks,
        column_blocks,
        g_stride,
        x_stride,
        y_stride,
        g_group,
        x_group,
        y_group,
        g_frequency,
        x_frequency,
        y_frequency,
        first,
        last,
        factor,
    ):
        at = lane()
        index = small(warp())
        down, right, frequency, group = find(row_blocks, column_blocks, groups)
        # Copies: eight lanes bring the chunks of a row.
        thread = small(32 * index + at)
        row = small(thread >> 3)
        chunk = small(thread & 7)
        to = small(2 * (row * SLAB + ((chunk ^ (row & 7)) << 2)))
        from_g = int64(frequency) * g_frequency + int64(group) * g_group + int64(row) * g_stride
        from_x = int64(frequency) * x_frequency + int64(group) * x_group + int64(row) * x_stride
        from_g = from_g + 2 * down + 8 * chunk
        from_x = from_x + 2 * right + 8 * chunk
        g_left = small(rows - down - 4 * chunk)
        x_left = small(columns - right - 4 * chunk)
        g_step = int64(copied_rows) * g_stride
        x_step = int64(copied_rows) * x_stride
        g_next = int64(SLAB) * g_stride
        x_next = int64(SLAB) * x_stride
        left = small(m - row)
        slabs = small(divide(m + (SLAB - 1), SLAB))
        # Operands: which row m and chunk of a block each lane names for ldmatrix.
        warp_down = small(divide(index, warps_across))
        warp_right = small(index - warp_down * warps_across)
        turn = small(at & 7)
        a_at = small((((at >> 4) << 3) + turn) * SLAB)
        a_chunk = small(warp_down * (warp_rows // 8) + ((at >> 3) & 1))
        b_at = small(((((at >> 3) & 1) << 3) + turn) * SLAB + g_slabs * SLAB_WORDS)
        b_chunk = small(warp_right * (warp_columns // 8) + (at >> 4))
        for s in range(stages - 1):
            if s < slabs:
                base = small(2 * s * stage_words + to)
                for i in range(g_slabs):
                    copy(base + 2 * SLAB_WORDS * i, g, from_g + 2 * SLAB * i, g_step, left, SLAB * i < g_left)
                base = small(base + 2 * SLAB_WORDS * g_slabs)
                for i in range(x_slabs):
                    copy(base + 2 * SLAB_WORDS * i, x, from_x + 2 * SLAB * i, x_step, left, SLAB * i < x_left)
                from_g = from_g + g_next
                from_x = from_x + x_next
                left = small(left - SLAB)
            commit()
        c = zeros()
        stage = small(0)
        coming = small(stages - 1)
        for s in range(opaque(slabs)):
            wait()
            barrier()
            if s + (stages - 1) < slabs:
                base = small(2 * coming * stage_words + to)
                for i in range(g_slabs):
                    copy(base + 2 * SLAB_WORDS * i, g, from_g + 2 * SLAB * i, g_step, left, SLAB * i < g_left)
                base = small(base + 2 * SLAB_WORDS * g_slabs)
                for i in range(x_slabs):
                    copy(base + 2 * SLAB_WORDS * i, x, from_x + 2 * SLAB * i, x_step, left, SLAB * i < x_left)
                from_g = from_g + g_next
                from_x = from_x + x_next
                left = small(left - SLAB)
            commit()
            here = small(stage * stage_words)
            for i in range(SLAB // 16):
                a = load_a(here + a_at + 16 * SLAB * i, a_chunk, turn)
                b = load_b(here + b_at + 16 * SLAB * i, b_chunk, turn)
                c = mma_add(c, a, b)
            coming = stage
            stage = small(stage + 1)
            if stage == stages:
                stage = small(0)
        wait_all()
        c = scale(c, factor)
        out_row = small(down + warp_down * (warp_rows // 2) + (at >> 3))
        out_column = small(right + warp_right * (warp_columns // 2) + (at & 3))
        place = int64(frequency) * y_frequency + int64(group) * y_group + int64(out_row) * y_stride
        place = place + out_column
        if partial:
            pass_on(y, sums, place, y_stride, rows - out_row, columns - out_column, first, last, c)
        else:
            store(y, place, y_stride, rows - out_row, columns - out_column, c)

    return kernel


VOCABULARY = "layers"
ARGUMENTS = (
    "g",
    "x",
    "y",
    "sums",
    "m",
    "rows",
    "columns",
    "groups",
    "row_blocks",
    "column_blocks",
    "g_stride",
    "x_stride",
    "y_stride",
    "g_group",
    "x_group",
    "y_group",
    "g_frequency",
    "x_frequency",
    "y_frequency",
    "first",
    "last",
    "factor",
)
"""Names of the kernel's arguments,"""
SIGNATURE = ("HALVES",) * 2 + ("WORDS", "FLOATS") + ("INT",) * 17 + ("FLOAT",)
"""and their kinds, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for: sixteen warps, but for tiles with too many sums."""
    return 1 if max(spec.rows, spec.columns) > 64 else 16 // spec.warps
