"""Products of spectra in float32: at every frequency one matrix of points by another, on ordinary cores.

    y[f, m, n] = sum_k x[f, m, k] w[f, n, k]          one of the factors conjugated if asked for

Tensor cores have no float32; fused multiply-adds do, and a product of spectra has few enough of them. A block makes a
tile of y of one frequency and group from slabs of 16 points k, in shared memory as they lie in device memory: k side by
side (``deep``: the forward pass and the gradient of the input, which contract channels), or the rows of x and of w
(the gradient of the weights, which contracts images). A lane forms 8 rows of 2, 4 or 6 columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba import spectral_product

DEPTH = 16
"""Points k of a slab, and of rows that are copied side by side."""
CHUNK = 2
"""Points that are copied together, 16 bytes."""
WARP_ROWS = 32
LANE_ROWS, LANES_DOWN, LANES_ACROSS = 8, 4, 8


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    deep: bool
    """Whether the contraction runs fastest in memory."""
    conjugate: str
    """"left" (x), "right" (w), or "": none."""
    rows: int = 64
    """Rows of a block's tile: 32 or 64."""
    columns: int = 96
    warp_columns: int = 48
    accumulate: bool = False
    """Whether the result is added to what is there."""
    stages: int = 3
    dtype: str = "fp32"

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return (self.rows // WARP_ROWS) * (self.columns // self.warp_columns)

    @property
    def pitch(self) -> int:
        """Points from row to row of a deep slab: eight rows of 16 bytes are then on different banks."""
        return DEPTH + CHUNK

    @property
    def stage_words(self) -> int:
        """Shared memory of one slab of both operands, in words."""
        return 2 * (self.rows + self.columns) * (self.pitch if self.deep else DEPTH)

    @property
    def shared_bytes(self) -> int:
        """All stages."""
        return 4 * self.stages * self.stage_words

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        shape = f"{self.rows}x{self.columns}_w{self.warp_columns}_s{self.stages}"
        kind = ("_deep" if self.deep else "") + ("_add" if self.accumulate else "")
        return f"float_spectral_product_{shape}{kind}_conj{self.conjugate}"

    @property
    def lane_columns(self) -> int:
        """Columns that a lane forms."""
        return self.warp_columns // LANES_ACROSS

    def places(self, lanes: int, count: int) -> tuple[int, ...]:
        """A lane's rows (or columns), from its first on: single ones in turn with other lanes, or pairs."""
        if self.deep:
            return tuple(lanes * i for i in range(count))
        return tuple(2 * lanes * (i // 2) + i % 2 for i in range(count))


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    rows, columns, stages, stage_words, deep = (
        spec.rows,
        spec.columns,
        spec.stages,
        spec.stage_words,
        spec.deep,
    )
    warp_columns, lane_columns, accumulate = spec.warp_columns, spec.lane_columns, spec.accumulate
    warps_across = columns // warp_columns
    copied_rows = 4 * spec.warps  # eight lanes bring the eight chunks of 16 points
    lane, warp, block, divide, barrier = tile.lane, tile.warp, tile.block, tile.divide, tile.barrier
    small, int64, opaque = tile.small, tile.int64, tile.opaque
    # Halves are what copies count in: four a point.
    if deep:
        row_pitch, x_turns, w_turns = spec.pitch, 1, 1
        copies = (rows // copied_rows, columns // copied_rows)
    else:
        row_pitch, x_turns, w_turns = 0, rows // DEPTH, columns // DEPTH
        copies = (DEPTH // copied_rows, DEPTH // copied_rows)
    x_pitch, w_pitch = (row_pitch, row_pitch) if deep else (rows, columns)
    copy_x = tile.copy_rows(copies[0], 4 * x_pitch * copied_rows, copied_rows, guarded=True)
    copy_w = tile.copy_rows(copies[1], 4 * w_pitch * copied_rows, copied_rows, guarded=True)
    commit, wait, wait_all = tile.commit, tile.wait(stages - 2), tile.wait(0)
    w_at = 2 * rows * (row_pitch if deep else DEPTH)
    per_turn = CHUNK if deep else 1
    # A lane's rows: of a deep slab two points k of each, else two neighbouring rows of one k.
    load_a, load_b = tile.load_shared(16 * per_turn, 4), tile.load_shared(2 * lane_columns * per_turn, 4)
    a_stride = 2 * LANES_DOWN * row_pitch if deep else 4 * LANES_DOWN
    b_stride = 2 * LANES_ACROSS * row_pitch if deep else 4 * LANES_ACROSS
    a_lane, b_lane = (2 * row_pitch, 2 * row_pitch) if deep else (4, 4)
    a_turn, b_turn = (4, 4) if deep else (2 * rows, 2 * columns)
    a_warp, b_warp = (2 * row_pitch, 2 * row_pitch) if deep else (2, 2)
    multiply = tile.add_point_products(LANE_ROWS, lane_columns, per_turn, conjugate=spec.conjugate)
    zeros = tile.zeros(2 * LANE_ROWS * lane_columns)
    own = (spec.places(LANES_DOWN, LANE_ROWS), spec.places(LANES_ACROSS, lane_columns))
    load_sums, store = tile.load_point_tile(*own), tile.store_point_tile(*own)
    apart = 1 if deep else 2

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
        thread = small(32 * index + at)
        row = small(thread >> 3)
        chunk = small(CHUNK * (thread & 7))
        from_x = 4 * (int64(frequency) * x_frequency + int64(group) * x_group + chunk)
        from_w = 4 * (int64(frequency) * w_frequency + int64(group) * w_group + chunk)
        if deep:
            from_x = from_x + 4 * int64(down + row) * x_stride
            from_w = from_w + 4 * int64(right + row) * w_stride
            x_rows = small(m - down - row)
            w_rows = small(n - right - row)
            x_chunks = small(k - chunk)
            w_chunks = x_chunks
        else:
            from_x = from_x + 4 * (int64(row) * x_stride + down)
            from_w = from_w + 4 * (int64(row) * w_stride + right)
            x_rows = small(k - row)
            w_rows = x_rows
            x_chunks = small(m - down - chunk)
            w_chunks = small(n - right - chunk)
        x_step = int64(4 * copied_rows) * x_stride
        w_step = int64(4 * copied_rows) * w_stride
        x_next = 4 * DEPTH if deep else 4 * DEPTH * int64(x_stride)
        w_next = 4 * DEPTH if deep else 4 * DEPTH * int64(w_stride)
        x_to = small(4 * (row * x_pitch + chunk))
        w_to = small(2 * w_at + 4 * (row * w_pitch + chunk))
        slabs = small(divide(k + (DEPTH - 1), DEPTH))
        # Which part of the tile is this lane's.
        warp_down = small(divide(index, warps_across))
        warp_right = small(index - warp_down * warps_across)
        lane_down = small(at >> 3)
        lane_right = small(at & 7)
        a_at = small(warp_down * (WARP_ROWS * a_warp) + lane_down * a_lane)
        b_at = small(w_at + warp_right * (warp_columns * b_warp) + lane_right * b_lane)
        out_row = small(down + warp_down * WARP_ROWS + apart * lane_down)
        out_column = small(right + warp_right * warp_columns + apart * lane_right)
        place = (
            int64(frequency) * y_frequency + int64(group) * y_group + int64(out_row) * y_stride + out_column
        )
        for s in range(stages - 1):
            if s < slabs:
                base = small(2 * s * stage_words)
                for i in range(x_turns):
                    ok = (small(DEPTH * s) < x_chunks) if deep else (small(DEPTH * i) < x_chunks)
                    copy_x(base + x_to + 4 * DEPTH * i, x, from_x + 4 * DEPTH * i, x_step, x_rows, ok)
                for i in range(w_turns):
                    ok = (small(DEPTH * s) < w_chunks) if deep else (small(DEPTH * i) < w_chunks)
                    copy_w(base + w_to + 4 * DEPTH * i, w, from_w + 4 * DEPTH * i, w_step, w_rows, ok)
                from_x = from_x + x_next
                from_w = from_w + w_next
                if not deep:
                    x_rows = small(x_rows - DEPTH)
                    w_rows = small(w_rows - DEPTH)
            commit()
        c = zeros()
        if accumulate:
            c = load_sums(y, place, y_stride, m - out_row, n - out_column)
        stage = small(0)
        coming = small(stages - 1)
        for s in range(opaque(slabs)):
            wait()
            barrier()
            ahead = small(s + (stages - 1))
            if ahead < slabs:
                base = small(2 * coming * stage_words)
                for i in range(x_turns):
                    ok = (small(DEPTH * ahead) < x_chunks) if deep else (small(DEPTH * i) < x_chunks)
                    copy_x(base + x_to + 4 * DEPTH * i, x, from_x + 4 * DEPTH * i, x_step, x_rows, ok)
                for i in range(w_turns):
                    ok = (small(DEPTH * ahead) < w_chunks) if deep else (small(DEPTH * i) < w_chunks)
                    copy_w(base + w_to + 4 * DEPTH * i, w, from_w + 4 * DEPTH * i, w_step, w_rows, ok)
                from_x = from_x + x_next
                from_w = from_w + w_next
                if not deep:
                    x_rows = small(x_rows - DEPTH)
                    w_rows = small(w_rows - DEPTH)
            commit()
            here = small(stage * stage_words)
            a_from = small(here + a_at)
            b_from = small(here + b_at)
            turns = small(divide(small(min(DEPTH, k - DEPTH * s)) + (per_turn - 1), per_turn))
            t = small(0)
            while t < turns:
                c = multiply(c, load_a(a_from, a_stride), load_b(b_from, b_stride))
                a_from = small(a_from + a_turn)
                b_from = small(b_from + b_turn)
                t = small(t + 1)
            coming = stage
            stage = small(stage + 1)
            if stage == stages:
                stage = small(0)
        wait_all()
        store(y, place, y_stride, m - out_row, n - out_column, c)

    return kernel


VOCABULARY = "float-layers"
ARGUMENTS = spectral_product.ARGUMENTS
"""Names of the kernel's arguments,"""
SIGNATURE = ("HALVES",) * 2 + ("FLOATS",) + ("INT",) * 15
"""and their kinds, for the compiler; distances are points."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for: twelve warps."""
    return 12 // spec.warps
