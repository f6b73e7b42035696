"""Products of spectra: at every frequency a complex matrix product over channels, on tensor cores.

    y[f, m, o] = sum_c x[f, m, c] conj(w[f, o, c])          (or without the conjugate)

A point is a word of two halves, so with the halves as contraction index x is an ordinary left operand, and w with its
halves exchanged and one sign changed, in registers, gives the imaginary parts (`complex_columns`): four real products,
and results whose real and imaginary parts meet in one lane. A block makes ``rows`` by ``columns`` points of one
frequency (and of one group of channels); both operands come in slabs of 32 channels, as in `linear_full.py`, of which
all but one are under way while one is used. Blocks next to each other share a frequency.
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
    conjugate: bool
    rows: int = 64
    """Rows of x of a block's tile."""
    columns: int = 96
    """Rows of w of a block's tile."""
    warp_rows: int = 32
    warp_columns: int = 48
    stages: int = 3

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
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        shape = f"{self.rows}x{self.columns}_w{self.warp_rows}x{self.warp_columns}_s{self.stages}"
        return f"spectral_product_{shape}_{self.dtype}" + ("_conj" if self.conjugate else "")


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    rows, columns, stages, stage_words = spec.rows, spec.columns, spec.stages, spec.stage_words
    warp_rows, warp_columns = spec.warp_rows, spec.warp_columns
    row_tiles, column_tiles = warp_rows // 16, warp_columns // 8
    warps_across = columns // warp_columns
    copied_rows = 32 * spec.warps // CHUNKS
    lane, warp, block, divide, barrier = tile.lane, tile.warp, tile.block, tile.divide, tile.barrier
    small, int64, opaque = tile.small, tile.int64, tile.opaque
    step = 2 * ROW_WORDS * copied_rows
    copy_x = tile.copy_rows(rows // copied_rows, step, copied_rows, guarded=True)
    copy_w = tile.copy_rows(columns // copied_rows, step, copied_rows, guarded=True)
    commit, wait, wait_all = tile.commit, tile.wait(stages - 2), tile.wait(0)
    load_a = tile.load_matrices(tuple(16 * ROW_WORDS * i for i in range(row_tiles)))
    load_b = tile.load_matrices(tuple(16 * ROW_WORDS * i for i in range(column_tiles // 2)))
    complex_columns = tile.complex_columns(2 * column_tiles, conjugate=spec.conjugate)
    zeros = tile.zeros(8 * row_tiles * column_tiles)
    mma_add = tile.mma_add(row_tiles, 2 * column_tiles, 1)
    store = tile.store_points(2 * row_tiles, column_tiles)

    def kernel(
        x,
        w,
        y,
        m,
        n,
        k,
        groups,
        row_blocks,
        column_blocks,
        x_stride,
        w_stride,
        y_stride,
        x_group,
        w_group,
        y_group,
        x_frequency,
        w_frequency,
        y_frequency,
    ):
        at = lane()
        index = small(warp())
        # Which frequency, group and tile.
        item = small(divide(block(), row_blocks))
        down = small((block() - item * row_blocks) * rows)
        rest = small(divide(item, column_blocks))
        right = small((item - rest * column_blocks) * columns)
        frequency = small(divide(rest, groups))
        group = small(rest - frequency * groups)
        # Copies: eight lanes bring the eight chunks of a row.
        thread = small(32 * index + at)
        row = small(thread >> 3)
        chunk = small(thread & 7)
        to = small(2 * (row * ROW_WORDS + ((chunk ^ (row & 7)) << 2)))
        depth = small(k - 8 * chunk)
        x_row = small(down + row)
        w_row = small(right + row)
        from_x = int64(frequency) * x_frequency + int64(group) * x_group + int64(x_row) * x_stride + 8 * chunk
        from_w = int64(frequency) * w_frequency + int64(group) * w_group + int64(w_row) * w_stride + 8 * chunk
        x_step = int64(copied_rows) * x_stride
        w_step = int64(copied_rows) * w_stride
        x_rows = small(m - x_row)
        w_rows = small(n - w_row)
        slabs = small(divide(k + (SLAB - 1), SLAB))
        # Operands: which row and chunk of a 16 x 16 block each lane names for ldmatrix.
        warp_down = small(divide(index, warps_across))
        warp_right = small(index - warp_down * warps_across)
        turn = small(at & 7)
        a_at = small((warp_down * warp_rows + (at & 15)) * ROW_WORDS)
        a_chunk = small(at >> 4)
        b_at = small((rows + warp_right * warp_columns + (at & 7) + ((at >> 4) << 3)) * ROW_WORDS)
        b_chunk = small((at >> 3) & 1)
        for s in range(stages - 1):
            if s < slabs:
                base = 2 * s * stage_words + to
                inside = SLAB * s < depth
                copy_x(base, x, from_x + SLAB * s, x_step, x_rows, inside)
                copy_w(base + 2 * rows * ROW_WORDS, w, from_w + SLAB * s, w_step, w_rows, inside)
            commit()
        c = zeros()
        stage = small(0)
        coming = small(stages - 1)
        for s in range(opaque(slabs)):
            wait()
            barrier()
            ahead = small(s + (stages - 1))
            if ahead < slabs:
                base = 2 * coming * stage_words + to
                inside = SLAB * ahead < depth
                copy_x(base, x, from_x + SLAB * ahead, x_step, x_rows, inside)
                copy_w(base + 2 * rows * ROW_WORDS, w, from_w + SLAB * ahead, w_step, w_rows, inside)
            commit()
            here = small(stage * stage_words)
            for i in range(4):
                a = load_a(here + a_at + (((2 * i + a_chunk) ^ turn) << 2))
                b = load_b(here + b_at + (((2 * i + b_chunk) ^ turn) << 2))
                c = mma_add(c, a, complex_columns(b))
            coming = stage
            stage = small(stage + 1)
            if stage == stages:
                stage = small(0)
        wait_all()
        out_row = small(down + warp_down * warp_rows + (at >> 2))
        out_column = small(right + warp_right * warp_columns + 2 * (at & 3))
        place = int64(frequency) * y_frequency + int64(group) * y_group + int64(out_row) * y_stride
        store(y, place + out_column, y_stride, m - out_row, n - out_column, c)

    return kernel


VOCABULARY = "layers"
ARGUMENTS = (
    "x",
    "w",
    "y",
    "m",
    "n",
    "k",
    "groups",
    "row_blocks",
    "column_blocks",
    "x_stride",
    "w_stride",
    "y_stride",
    "x_group",
    "w_group",
    "y_group",
    "x_frequency",
    "w_frequency",
    "y_frequency",
)
"""Names of the kernel's arguments,"""
SIGNATURE = ("HALVES",) * 2 + ("WORDS",) + ("INT",) * 15
"""and their kinds, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return 1
