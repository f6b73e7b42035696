"""Products of spectra that contract images: at every frequency the gradient of a layer's weights, on tensor cores.

    y[f, o, c] = sum_m conj(g[f, m, o]) x[f, m, c]

Contracted is the row index of both operands, so they are transposed on their way to registers (``ldmatrix.trans``),
halves by themselves: a row of the left operand is the real or the imaginary part of one channel, and so is a column of
the right one. The product has all four products of parts, and the two rows of a channel, which neighbouring groups of
lanes hold, are joined when the sums are stored. A block makes 64 by 64 points of one frequency and group from slabs of
32 rows m.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SLAB = 32
"""Rows m of a slab."""
ROW_WORDS = 64
"""Words of a slab's row, one a channel."""
CHUNKS = ROW_WORDS // 4
WARP_ROWS, WARP_COLUMNS = 64, 32
"""Halves of a warp's tile."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    dtype: str
    stages: int = 4
    warps: int = 8

    @property
    def stage_words(self) -> int:
        """Shared memory of one slab of both operands, in words."""
        return 2 * SLAB * ROW_WORDS

    @property
    def shared_bytes(self) -> int:
        """All stages."""
        return 4 * self.stages * self.stage_words

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        return f"spectral_gradient_{self.dtype}_s{self.stages}"


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    stages, stage_words = spec.stages, spec.stage_words
    row_tiles, column_tiles = WARP_ROWS // 16, WARP_COLUMNS // 8
    warps_across = 2 * ROW_WORDS // WARP_COLUMNS
    copied_rows = 32 * spec.warps // CHUNKS
    lane, warp, block, divide, barrier = tile.lane, tile.warp, tile.block, tile.divide, tile.barrier
    small, int64, opaque = tile.small, tile.int64, tile.opaque
    copy = tile.copy_rows(SLAB // copied_rows, 2 * ROW_WORDS * copied_rows, copied_rows, guarded=True)
    commit, wait, wait_all = tile.commit, tile.wait(stages - 2), tile.wait(0)
    load = tile.load_matrices_across((0,))
    join = tile.join
    zeros = tile.zeros(4 * row_tiles * column_tiles)
    mma_add = tile.mma_add(row_tiles, column_tiles, 1)
    store = tile.store_outer_points(2 * row_tiles, column_tiles)
    slab_words = SLAB * ROW_WORDS

    def kernel(
        g,
        x,
        y,
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
    ):
        at = lane()
        index = small(warp())
        item = small(divide(block(), row_blocks))
        down = small((block() - item * row_blocks) * ROW_WORDS)
        rest = small(divide(item, column_blocks))
        right = small((item - rest * column_blocks) * ROW_WORDS)
        frequency = small(divide(rest, groups))
        group = small(rest - frequency * groups)
        # Copies: sixteen lanes bring the chunks of a row.
        thread = small(32 * index + at)
        row = small(thread >> 4)
        chunk = small(thread & 15)
        to = small(2 * (row * ROW_WORDS + ((chunk ^ (row & 7)) << 2)))
        from_g = int64(frequency) * g_frequency + int64(group) * g_group + int64(row) * g_stride
        from_x = int64(frequency) * x_frequency + int64(group) * x_group + int64(row) * x_stride
        from_g = from_g + 2 * down + 8 * chunk
        from_x = from_x + 2 * right + 8 * chunk
        g_inside = small(down + 4 * chunk) < rows
        x_inside = small(right + 4 * chunk) < columns
        g_step = int64(copied_rows) * g_stride
        x_step = int64(copied_rows) * x_stride
        g_slab = int64(SLAB) * g_stride
        x_slab = int64(SLAB) * x_stride
        left = small(m - row)
        slabs = small(divide(m + (SLAB - 1), SLAB))
        # Operands: which row m and chunk of a block each lane names for ldmatrix.
        warp_down = small(divide(index, warps_across))
        warp_right = small(index - warp_down * warps_across)
        turn = small(at & 7)
        a_row = small(((at >> 4) << 3) + turn)
        a_chunk = small(warp_down * (WARP_ROWS // 8) + ((at >> 3) & 1))
        b_row = small((((at >> 3) & 1) << 3) + turn)
        b_chunk = small(warp_right * (WARP_COLUMNS // 8) + (at >> 4))
        for s in range(stages - 1):
            if s < slabs:
                base = 2 * s * stage_words + to
                copy(base, g, from_g, g_step, left, g_inside)
                copy(base + 2 * slab_words, x, from_x, x_step, left, x_inside)
                from_g = from_g + g_slab
                from_x = from_x + x_slab
                left = small(left - SLAB)
            commit()
        c = zeros()
        stage = small(0)
        coming = small(stages - 1)
        for s in range(opaque(slabs)):
            wait()
            barrier()
            if s + (stages - 1) < slabs:
                base = 2 * coming * stage_words + to
                copy(base, g, from_g, g_step, left, g_inside)
                copy(base + 2 * slab_words, x, from_x, x_step, left, x_inside)
                from_g = from_g + g_slab
                from_x = from_x + x_slab
                left = small(left - SLAB)
            commit()
            here = small(stage * stage_words)
            for i in range(SLAB // 16):
                a_at = small(here + (16 * i + a_row) * ROW_WORDS)
                b_at = small(here + slab_words + (16 * i + b_row) * ROW_WORDS)
                a = join(
                    join(
                        load(a_at + ((a_chunk ^ turn) << 2)),
                        load(a_at + (((a_chunk + 2) ^ turn) << 2)),
                    ),
                    join(
                        load(a_at + (((a_chunk + 4) ^ turn) << 2)),
                        load(a_at + (((a_chunk + 6) ^ turn) << 2)),
                    ),
                )
                b = join(
                    load(b_at + ((b_chunk ^ turn) << 2)),
                    load(b_at + (((b_chunk + 2) ^ turn) << 2)),
                )
                c = mma_add(c, a, b)
            coming = stage
            stage = small(stage + 1)
            if stage == stages:
                stage = small(0)
        wait_all()
        out_row = small(down + warp_down * (WARP_ROWS // 2) + (at >> 3))
        out_column = small(right + warp_right * (WARP_COLUMNS // 2) + (at & 3))
        place = int64(frequency) * y_frequency + int64(group) * y_group + int64(out_row) * y_stride
        store(y, place + out_column, y_stride, rows - out_row, columns - out_column, c)

    return kernel


VOCABULARY = "layers"
ARGUMENTS = (
    "g",
    "x",
    "y",
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
)
"""Names of the kernel's arguments,"""
SIGNATURE = ("HALVES",) * 2 + ("WORDS",) + ("INT",) * 15
"""and their kinds, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return 2
