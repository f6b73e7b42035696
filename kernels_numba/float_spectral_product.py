"""Products of spectra in float32: at every frequency one matrix of points by another, on ordinary cores.

    y[f, m, n] = sum_k x[f, m, k] w[f, n, k]          one of the factors conjugated if asked for

Tensor cores have no float32; fused multiply-adds do, and a product of spectra has few enough of them. A block makes a
tile of y of one frequency and group from slabs of 16 points k, in shared memory as they lie in device memory: k side by
side (``deep``), or rows of as many k. The forward pass contracts what lies side by side in both operands, the gradient
of the weights, which sums images, the rows of both, and the gradient of the input the rows of w alone, part by part as
in `spectral_product.py`. A lane forms 8 rows of 2, 4 or 6 columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba import spectral_product
from kernels_numba.spectral_product import find_tile, next_slab

DEPTH = 16
"""Points k of a slab, and of rows that are copied side by side."""
CHUNK = 2
"""Points that are copied together, 16 bytes."""
WARP_ROWS = 32
LANE_ROWS, LANES_DOWN, LANES_ACROSS = 8, 4, 8


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    deep: str
    """The operands whose contraction runs fastest in memory: "xw", "x", or "", none."""
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
    def x_words(self) -> int:
        """Shared memory of one slab of x, in words."""
        return 2 * self.rows * (self.pitch if "x" in self.deep else DEPTH)

    @property
    def stage_words(self) -> int:
        """Shared memory of one slab of both operands, in words."""
        return self.x_words + 2 * self.columns * (self.pitch if "w" in self.deep else DEPTH)

    @property
    def shared_bytes(self) -> int:
        """All stages."""
        return 4 * self.stages * self.stage_words

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        shape = f"{self.rows}x{self.columns}_w{self.warp_columns}_s{self.stages}"
        kind = (f"_deep{self.deep}" if self.deep else "") + ("_add" if self.accumulate else "")
        return f"float_spectral_product_{shape}{kind}_conj{self.conjugate}"

    @property
    def lane_columns(self) -> int:
        """Columns that a lane forms."""
        return self.warp_columns // LANES_ACROSS

    def places(self, operand: str, lanes: int, count: int) -> tuple[int, ...]:
        """A lane's rows (or columns), from its first on: single ones in turn with other lanes, or pairs."""
        if operand in self.deep:
            return tuple(lanes * i for i in range(count))
        return tuple(2 * lanes * (i // 2) + i % 2 for i in range(count))


def _copies(spec: Spec, operand: str, size: int, copied_rows: int) -> tuple[int, int, int]:
    """Of a slab: its pitch in points, turns of 16 columns, and the copies of a thread in one."""
    if operand in spec.deep:
        return spec.pitch, 1, size // copied_rows
    return size, size // DEPTH, DEPTH // copied_rows


def _pieces(spec: Spec, operand: str, lanes: int, count: int, size: int) -> tuple:
    """A lane's points of a turn, [row, k], as it reads them: two k of a row at once, or two neighbouring rows."""
    steps = CHUNK if "x" in spec.deep else 1
    if operand in spec.deep:
        return tuple(
            (0, 2 * lanes * spec.pitch * i, tuple(range(2 * CHUNK * i, 2 * CHUNK * (i + 1))))
            for i in range(count)
        )
    return tuple(
        (
            0,
            2 * size * t + 4 * lanes * i,
            tuple(2 * ((2 * i + e) * steps + t) + part for e in range(2) for part in range(2)),
        )
        for t in range(steps)
        for i in range(count // 2)
    )


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    rows, columns, stages, stage_words = spec.rows, spec.columns, spec.stages, spec.stage_words
    warp_columns, lane_columns, accumulate = spec.warp_columns, spec.lane_columns, spec.accumulate
    x_deep, w_deep = "x" in spec.deep, "w" in spec.deep
    warps_across = columns // warp_columns
    copied_rows = 4 * spec.warps  # eight lanes bring the eight chunks of 16 points
    lane, warp, divide, barrier = tile.lane, tile.warp, tile.divide, tile.barrier
    small, int64, opaque = tile.small, tile.int64, tile.opaque
    find, move_on = find_tile(tile, rows, columns), next_slab(tile)
    # Points from row to row of a slab, and rows of 16 points, or turns of so many columns, that a thread copies.
    x_pitch, x_turns, x_copies = _copies(spec, "x", rows, copied_rows)
    w_pitch, w_turns, w_copies = _copies(spec, "w", columns, copied_rows)
    # Halves are what copies count in: four a point.
    copy_x = tile.copy_rows(x_copies, 4 * x_pitch * copied_rows, copied_rows, guarded=True)
    copy_w = tile.copy_rows(w_copies, 4 * w_pitch * copied_rows, copied_rows, guarded=True)
    commit, wait, wait_all = tile.commit, tile.wait(stages - 2), tile.wait(0)
    w_at = spec.x_words
    per_turn = CHUNK if x_deep else 1
    load_a, load_b = (
        tile.load_pieces(_pieces(spec, *which), 2 * per_turn * which[2])
        for which in (("x", LANES_DOWN, LANE_ROWS, rows), ("w", LANES_ACROSS, lane_columns, columns))
    )
    # Words from lane to lane and from turn to turn, and from row (or column) to row for a warp.
    a_lane, a_turn, a_warp = (2 * x_pitch, 4, 2 * x_pitch) if x_deep else (4, 2 * rows * per_turn, 2)
    b_lane, b_turn, b_warp = (2 * w_pitch, 4, 2 * w_pitch) if w_deep else (4, 2 * columns * per_turn, 2)
    multiply = tile.add_point_products(LANE_ROWS, lane_columns, per_turn, conjugate=spec.conjugate)
    zeros = tile.zeros(2 * LANE_ROWS * lane_columns)
    own = spec.places("x", LANES_DOWN, LANE_ROWS), spec.places("w", LANES_ACROSS, lane_columns)
    load_sums, store = tile.load_point_tile(*own), tile.store_point_tile(*own)
    x_apart, w_apart = (1 if x_deep else 2), (1 if w_deep else 2)

    @tile.subroutine
    def bring_x(to, within, x, at, step, left, chunks):
        if x_deep:
            copy_x(to, x, at, step, left, DEPTH * within < chunks)
        else:
            rest = small(left - DEPTH * within)
            for i in range(x_turns):
                copy_x(to + 4 * DEPTH * i, x, at + 4 * DEPTH * i, step, rest, DEPTH * i < chunks)

    @tile.subroutine
    def bring_w(to, within, w, at, step, left, chunks):
        if w_deep:
            copy_w(to, w, at, step, left, DEPTH * within < chunks)
        else:
            rest = small(left - DEPTH * within)
            for i in range(w_turns):
                copy_w(to + 4 * DEPTH * i, w, at + 4 * DEPTH * i, step, rest, DEPTH * i < chunks)

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
        thread = small(32 * index + at)
        row = small(thread >> 3)
        chunk = small(CHUNK * (thread & 7))
        from_x = 4 * (int64(frequency) * x_frequency + int64(group) * x_group + chunk)
        from_w = 4 * (int64(frequency) * w_frequency + int64(group) * w_group + chunk)
        if x_deep:
            from_x = from_x + 4 * int64(down + row) * x_stride
            x_left = small(m - down - row)
            x_chunks = small(k - chunk)
            x_next = int64(4 * DEPTH)
        else:
            from_x = from_x + 4 * (int64(row) * x_stride + down)
            x_left = small(k - row)
            x_chunks = small(m - down - chunk)
            x_next = 4 * DEPTH * int64(x_stride)
        if w_deep:
            from_w = from_w + 4 * int64(right + row) * w_stride
            w_left = small(n - right - row)
            w_chunks = small(k - chunk)
            w_next = int64(4 * DEPTH)
        else:
            from_w = from_w + 4 * (int64(row) * w_stride + right)
            w_left = small(w_rows - row)
            w_chunks = small(n - right - chunk)
            w_next = 4 * DEPTH * int64(w_stride)
        x_step = int64(4 * copied_rows) * x_stride
        w_step = int64(4 * copied_rows) * w_stride
        x_to = small(4 * (row * x_pitch + chunk))
        w_to = small(2 * w_at + 4 * (row * w_pitch + chunk))
        # From part to part of a filter it is as far as all slabs of one, and so much more.
        part_slabs = small(divide(k + (DEPTH - 1), DEPTH))
        slabs = small(parts * part_slabs)
        x_jump = 4 * int64(k) - part_slabs * x_next
        w_jump = 4 * int64(w_part) - part_slabs * w_next
        within = small(0)
        # Which part of the tile is this lane's.
        warp_down = small(divide(index, warps_across))
        warp_right = small(index - warp_down * warps_across)
        lane_down = small(at >> 3)
        lane_right = small(at & 7)
        a_at = small(warp_down * (WARP_ROWS * a_warp) + lane_down * a_lane)
        b_at = small(w_at + warp_right * (warp_columns * b_warp) + lane_right * b_lane)
        out_row = small(down + warp_down * WARP_ROWS + x_apart * lane_down)
        out_column = small(right + warp_right * warp_columns + w_apart * lane_right)
        place = (
            int64(frequency) * y_frequency + int64(group) * y_group + int64(out_row) * y_stride + out_column
        )
        for s in range(stages - 1):
            if s < slabs:
                base = small(2 * s * stage_words)
                bring_x(base + x_to, within, x, from_x, x_step, x_left, x_chunks)
                bring_w(base + w_to, within, w, from_w, w_step, w_left, w_chunks)
                within, from_x, from_w = move_on(
                    within, part_slabs, from_x, x_next, x_jump, from_w, w_next, w_jump
                )
            commit()
        c = zeros()
        if accumulate:
            c = load_sums(y, place, y_stride, m - out_row, n - out_column)
        stage = small(0)
        coming = small(stages - 1)
        left = small(k)
        for s in range(opaque(slabs)):
            wait()
            barrier()
            if s + (stages - 1) < slabs:
                base = small(2 * coming * stage_words)
                bring_x(base + x_to, within, x, from_x, x_step, x_left, x_chunks)
                bring_w(base + w_to, within, w, from_w, w_step, w_left, w_chunks)
                within, from_x, from_w = move_on(
                    within, part_slabs, from_x, x_next, x_jump, from_w, w_next, w_jump
                )
            commit()
            here = small(stage * stage_words)
            a_from = small(here + a_at)
            b_from = small(here + b_at)
            turns = small(divide(small(min(DEPTH, left)) + (per_turn - 1), per_turn))
            t = small(0)
            while t < turns:
                a = load_a(a_from, a_from, a_from, a_from)
                c = multiply(c, a, load_b(b_from, b_from, b_from, b_from))
                a_from = small(a_from + a_turn)
                b_from = small(b_from + b_turn)
                t = small(t + 1)
            left = small(left - DEPTH)
            if left <= 0:
                left = small(k)
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
SIGNATURE = ("HALVES",) * 2 + ("FLOATS",) + ("INT",) * 18
"""and their kinds, for the compiler; distances are points."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for: twelve warps."""
    return 12 // spec.warps
