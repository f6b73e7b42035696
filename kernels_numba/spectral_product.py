"""Products of spectra: at every frequency a complex matrix product over channels, on tensor cores.

    y[f, m, o] = sum_c x[f, m, c] conj(w[f, o, c])          the forward pass
    y[f, m, c] = sum_o x[f, m, o] w[f, o, c]                ``across``, the gradient of the input

A point is a word of two halves, so with the halves as contraction index x is an ordinary left operand, and w with its
halves exchanged and one sign changed, in registers, gives the imaginary parts (`complex_columns`): four real products,
and results whose real and imaginary parts meet in one lane. A block makes ``rows`` by ``columns`` points of one
frequency (and of one group of channels); both operands come in slabs of 32 channels, as in `linear_full.py`, of which
all but one are under way while one is used. Blocks next to each other share a frequency.

Both passes read one spectrum w, [o, c]. Where its rows are contracted, a slab is 32 rows as they lie, and a lane reads
single words: a register of a right operand is one point. The parts of a filter, which a forward pass contracts as
more channels, are then contracted one after the other.
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
    across: bool = False
    """Whether the rows of w are contracted."""
    rows: int = 64
    """Rows of x of a block's tile."""
    columns: int = 96
    """Columns of y of a block's tile."""
    warp_rows: int = 32
    warp_columns: int = 48
    stages: int = 3

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    @property
    def pitch(self) -> int:
        """Words from row to row of a slab of w across: four rows of eight words are then on different banks."""
        return self.columns + 8

    @property
    def stage_words(self) -> int:
        """Shared memory of one slab of both operands, in words."""
        return ROW_WORDS * (self.rows + (self.pitch if self.across else self.columns))

    @property
    def shared_bytes(self) -> int:
        """All stages."""
        return 4 * self.stages * self.stage_words

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        shape = f"{self.rows}x{self.columns}_w{self.warp_rows}x{self.warp_columns}_s{self.stages}"
        return f"spectral_product_{shape}_{self.dtype}" + ("_across" if self.across else "_conj")


def find_tile(tile: Any, rows: int, columns: int) -> Any:
    """``op(row_blocks, column_blocks, groups)``: a block's first row and column, its frequency and its group."""
    block, divide, small = tile.block, tile.divide, tile.small

    @tile.subroutine
    def find(row_blocks, column_blocks, groups):
        item = small(divide(block(), row_blocks))
        down = small((block() - item * row_blocks) * rows)
        rest = small(divide(item, column_blocks))
        right = small((item - rest * column_blocks) * columns)
        frequency = small(divide(rest, groups))
        group = small(rest - frequency * groups)
        return down, right, frequency, group

    return find


def next_slab(tile: Any) -> Any:
    """``op(slab, slabs, x, x_next, x_jump, w, w_next, w_jump)``: the slab to copy next, and where in both operands.

    After the last of a part of the filter it is the first of the next part, ``x_jump`` and ``w_jump`` further on.
    """
    small = tile.small

    @tile.subroutine
    def move_on(slab, slabs, x, x_next, x_jump, w, w_next, w_jump):
        slab = small(slab + 1)
        x = x + x_next
        w = w + w_next
        if slab == slabs:
            slab = small(0)
            x = x + x_jump
            w = w + w_jump
        return slab, x, w

    return move_on


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    rows, columns, stages, stage_words = spec.rows, spec.columns, spec.stages, spec.stage_words
    warp_rows, warp_columns = spec.warp_rows, spec.warp_columns
    row_tiles, column_tiles = warp_rows // 16, warp_columns // 8
    warps_across = columns // warp_columns
    copied_rows = 32 * spec.warps // CHUNKS
    across, pitch = spec.across, spec.pitch
    lane, warp, divide, barrier = tile.lane, tile.warp, tile.divide, tile.barrier
    small, int64, opaque = tile.small, tile.int64, tile.opaque
    find, move_on = find_tile(tile, rows, columns), next_slab(tile)
    step = 2 * ROW_WORDS * copied_rows
    copy_x = tile.copy_rows(rows // copied_rows, step, copied_rows, guarded=True)
    # Of w across eight lanes bring 32 points of a row, or four all 16.
    w_chunks = min(CHUNKS, columns // 4)
    log_w_chunks, w_turns = w_chunks.bit_length() - 1, columns // (4 * w_chunks)
    if across:
        w_copied = 32 * spec.warps // w_chunks
        copy_w = tile.copy_rows(ROW_WORDS // w_copied, 2 * pitch * w_copied, w_copied, guarded=True)
    else:
        w_copied = copied_rows
        copy_w = tile.copy_rows(columns // copied_rows, step, copied_rows, guarded=True)
    commit, wait, wait_all = tile.commit, tile.wait(stages - 2), tile.wait(0)
    load_a = tile.load_matrices(tuple(16 * ROW_WORDS * i for i in range(row_tiles)))
    load_b = tile.load_matrices(tuple(16 * ROW_WORDS * i for i in range(column_tiles // 2)))
    load_words = tile.load_pieces(
        tuple((0, 8 * j + 4 * pitch * r, (2 * j + r,)) for j in range(column_tiles) for r in range(2)),
        2 * column_tiles,
    )
    complex_columns = tile.complex_columns(2 * column_tiles, conjugate=not across)
    zeros = tile.zeros(8 * row_tiles * column_tiles)
    mma_add = tile.mma_add(row_tiles, 2 * column_tiles, 1)
    store = tile.store_points(2 * row_tiles, column_tiles)

    @tile.subroutine
    def bring_w(to, within, w, at, step, left, columns_left):
        if across:
            rest = small(left - ROW_WORDS * within)
            for i in range(w_turns):
                copy_w(to + SLAB * i, w, at + SLAB * i, step, rest, ROW_WORDS * i < columns_left)
        else:
            copy_w(to, w, at, step, left, SLAB * within < columns_left)

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
        parts,
        w_rows,
        w_part,
    ):
        at = lane()
        index = small(warp())
        down, right, frequency, group = find(row_blocks, column_blocks, groups)
        # Copies: eight lanes bring the eight chunks of a row.
        thread = small(32 * index + at)
        row = small(thread >> 3)
        chunk = small(thread & 7)
        to = small(2 * (row * ROW_WORDS + ((chunk ^ (row & 7)) << 2)))
        depth = small(k - 8 * chunk)
        x_row = small(down + row)
        from_x = int64(frequency) * x_frequency + int64(group) * x_group + int64(x_row) * x_stride + 8 * chunk
        from_w = int64(frequency) * w_frequency + int64(group) * w_group
        x_step = int64(copied_rows) * x_stride
        x_rows = small(m - x_row)
        if across:
            w_row = small(thread >> log_w_chunks)
            w_chunk = small(thread & (w_chunks - 1))
            w_to = small(2 * (rows * ROW_WORDS + w_row * pitch + 4 * w_chunk))
            from_w = from_w + int64(w_row) * w_stride + 2 * right + 8 * w_chunk
            w_next = int64(ROW_WORDS) * w_stride
            w_left = small(w_rows - w_row)
            w_columns = small(n - right - 4 * w_chunk)
        else:
            w_row = small(right + row)
            w_to = small(to + 2 * rows * ROW_WORDS)
            from_w = from_w + int64(w_row) * w_stride + 8 * chunk
            w_next = int64(SLAB)
            w_left = small(n - w_row)
            w_columns = depth
        w_step = int64(w_copied) * w_stride
        # From part to part of a filter it is as far as all slabs of one, and so much more.
        part_slabs = small(divide(k + (SLAB - 1), SLAB))
        slabs = small(parts * part_slabs)
        x_next = int64(SLAB)
        x_jump = int64(k) - part_slabs * x_next
        w_jump = int64(w_part) - part_slabs * w_next
        within = small(0)
        # Operands: which row and chunk of a 16 x 16 block each lane names for ldmatrix, or which word.
        warp_down = small(divide(index, warps_across))
        warp_right = small(index - warp_down * warps_across)
        turn = small(at & 7)
        a_at = small((warp_down * warp_rows + (at & 15)) * ROW_WORDS)
        a_chunk = small(at >> 4)
        if across:
            b_at = small(rows * ROW_WORDS + (at & 3) * pitch + warp_right * warp_columns + (at >> 2))
        else:
            b_at = small((rows + warp_right * warp_columns + (at & 7) + ((at >> 4) << 3)) * ROW_WORDS)
        b_chunk = small((at >> 3) & 1)
        for s in range(stages - 1):
            if s < slabs:
                base = 2 * s * stage_words
                copy_x(base + to, x, from_x, x_step, x_rows, SLAB * within < depth)
                bring_w(base + w_to, within, w, from_w, w_step, w_left, w_columns)
                within, from_x, from_w = move_on(
                    within, part_slabs, from_x, x_next, x_jump, from_w, w_next, w_jump
                )
            commit()
        c = zeros()
        stage = small(0)
        coming = small(stages - 1)
        for s in range(opaque(slabs)):
            wait()
            barrier()
            if s + (stages - 1) < slabs:
                base = 2 * coming * stage_words
                copy_x(base + to, x, from_x, x_step, x_rows, SLAB * within < depth)
                bring_w(base + w_to, within, w, from_w, w_step, w_left, w_columns)
                within, from_x, from_w = move_on(
                    within, part_slabs, from_x, x_next, x_jump, from_w, w_next, w_jump
                )
            commit()
            here = small(stage * stage_words)
            for i in range(SLAB // 16):
                a = load_a(here + a_at + (((2 * i + a_chunk) ^ turn) << 2))
                if across:
                    offset = here + b_at + 8 * pitch * i
                    b = load_words(offset, offset, offset, offset)
                else:
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
    "parts",
    "w_rows",
    "w_part",
)
"""Names of the kernel's arguments,"""
SIGNATURE = ("HALVES",) * 2 + ("WORDS",) + ("INT",) * 18
"""and their kinds, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return 1
