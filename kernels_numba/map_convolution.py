"""A depthwise pass in one launch: each map transformed, multiplied by the spectrum of its channel's filter, and back.

    y[m, c] = F^-1 (F x[m, c] conj(F w[c]))          or without the conjugate, the gradient of the input

Channels do not mix, so no spectrum needs device memory. A block has one channel and a chunk of its images and tiles:
its first warp transforms the filter, whose points all warps read from shared memory; a warp takes one tile after the
other through registers, as `map_transform.py` and `map_inverse.py` do, its next map on its way meanwhile. The points of
x are multiplied in float32, unrounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba.map_pieces import Side, points_of, samples_of
from kernels_numba.map_places import find_tile_of_image


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    rows: int
    columns: int
    dtype: str
    conjugate: bool
    x: Side
    w: Side
    wanted_rows: int
    wanted_columns: int
    """Samples of a tile that are formed: multiples of 16 rows and of 8 columns (16, where C is none of 32)."""
    halves: int = 2
    """Samples that are stored together."""
    spread: bool = False
    """Only every so many samples are stored."""
    warps: int = 8
    blocks: int = 2
    """Blocks per SM that the compiler must leave registers for."""

    @property
    def points(self) -> int:
        """Frequencies of a tile."""
        return self.rows * self.columns // 2

    @property
    def words(self) -> tuple[int, int, int]:
        """Constants of x, of w, and of the way back, which are copied 128 at a time."""
        x, w = (side.constant_words(self.rows, self.columns) for side in (self.x, self.w))
        return x, w, -(-(self.columns * self.wanted_columns + self.rows * self.wanted_rows) // 256) * 128

    @property
    def shared_bytes(self) -> int:
        """Constants and the filter's points."""
        return 4 * (sum(self.words) + self.points)

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        kind = ("_conj" if self.conjugate else "") + ("_spread" if self.spread else "")
        return (
            f"map_convolution_{self.rows}x{self.columns}_x{self.x.name}_w{self.w.name}_to{self.wanted_rows}x"
            f"{self.wanted_columns}v{self.halves}_{self.dtype}_w{self.warps}{kind}"
        )


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    rows, columns, warps = spec.rows, spec.columns, spec.warps
    count = spec.points // 32  # points of a lane
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    copy, commit, wait, barrier = tile.copy_words_async, tile.commit, tile.wait(0), tile.barrier
    x_words, w_words, y_words = spec.words
    constant_words = x_words + w_words + y_words
    load_x, load_w = (
        tile.load_window(side.seen_rows // 8, side.seen_columns // 8, side.halves, spread=side.spread)
        for side in (spec.x, spec.w)
    )
    x_lane, w_lane = spec.x.seen_columns // 4, spec.w.seen_columns // 4
    transform_x, transform_w = (
        points_of(tile, rows, columns, side.seen_rows, side.seen_columns) for side in (spec.x, spec.w)
    )
    x_down, w_down = (columns * side.seen_columns // 2 for side in (spec.x, spec.w))
    y_down = columns * spec.wanted_columns // 2
    operand, form = samples_of(tile, rows, columns, spec.wanted_rows, spec.wanted_columns)
    as_words, zeros = tile.as_words(spec.x.words), tile.zeros(spec.x.words)
    pack_points = tile.pack_points(count)
    put = tile.store_shared_pieces(tuple((0, 32 * j, (j,)) for j in range(count)))
    get = tile.load_shared(count, 1)
    multiply = tile.filter_points(count, conjugate=spec.conjugate)
    out_groups, out_tiles = spec.wanted_rows // 8, spec.wanted_columns // 8
    scale = tile.scale(2 * out_groups * out_tiles)
    store = tile.store_window(out_groups, out_tiles, spec.halves, spread=spec.spread)
    find_place = find_tile_of_image(tile)

    @tile.subroutine
    def bring(to, constants, words, w, index):
        r = w
        while 128 * r < words:
            copy(to + r * 128 + 4 * index, constants, r * 128 + 4 * index)
            r = small(r + warps)

    def kernel(
        x,
        w,
        y,
        x_constants,
        w_constants,
        y_constants,
        factor,
        maps,
        tiles_down,
        tiles_across,
        channels,
        chunks,
        x_image,
        x_channel,
        x_pitch,
        x_height,
        x_width,
        x_down_by,
        x_across_by,
        first_row,
        first_column,
        step_down,
        step_across,
        w_channel,
        w_pitch,
        w_height,
        w_width,
        w_down_by,
        w_across_by,
        y_image,
        y_channel,
        y_pitch,
        y_height,
        y_width,
        y_down_by,
        y_across_by,
    ):
        index = small(lane())
        mine = small(warp())
        bring(small(0), x_constants, x_words, mine, index)
        bring(small(x_words), w_constants, w_words, mine, index)
        bring(small(x_words + w_words), y_constants, y_words, mine, index)
        commit()
        chunk = small(divide(block(), channels))
        channel = small(block() - chunk * channels)
        row = small(index >> 2)
        x_at = small(4 * index)
        w_at = small(x_words + 4 * index)
        y_at = small(x_words + w_words + 4 * index)
        points_at = small(constant_words + index)
        wait()
        barrier()
        if mine == 0:
            base = int64(channel) * w_channel
            column = small((index & 3) * w_lane)
            taps = load_w(w, base, w_pitch, row, column, w_height, w_width, w_down_by, w_across_by)
            points = pack_points(transform_w(taps, w_at, w_at + w_down))
            put(points_at, points_at, points_at, points_at, points)
        barrier()
        # A warp's next map is on its way while it goes on with one: the first turn only asks for the first map.
        step = small(chunks * warps)
        m = small(chunk * warps + mine - step)
        data = as_words(zeros())
        while m < maps:
            coming = small(m + step)
            image, top, left = find_place(coming, tiles_down, tiles_across, step_down, step_across)
            top = small(top + first_row)
            left = small(left + first_column)
            base = int64(image) * x_image + int64(channel) * x_channel
            # A tile may lie in the zeros beside the image altogether.
            bottom = small(max(0, min(x_height, top + rows)) * (coming < maps))
            right = small(max(0, min(x_width, left + columns)))
            column = small(left + (index & 3) * x_lane)
            following = load_x(x, base, x_pitch, top + row, column, bottom, right, x_down_by, x_across_by)
            if m >= 0:
                z = transform_x(data, x_at, x_at + x_down)
                z = operand(multiply(z, get(points_at, 32)))
                v = scale(form(z, y_at, y_at + y_down), factor)
                image, top, left = find_place(m, tiles_down, tiles_across, step_down, step_across)
                base = int64(image) * y_image + int64(channel) * y_channel
                bottom = small(min(y_height, top + step_down))
                right = small(min(y_width, left + step_across))
                column = small(left + 2 * (index & 3))
                store(y, base, y_pitch, top + row, column, bottom, right, y_down_by, y_across_by, v)
            data = following
            m = coming

    return kernel


VOCABULARY = "layers"
ARGUMENTS = (
    "x",
    "w",
    "y",
    "x_constants",
    "w_constants",
    "y_constants",
    "factor",
    "maps",
    "tiles_down",
    "tiles_across",
    "channels",
    "chunks",
    "x_image",
    "x_channel",
    "x_pitch",
    "x_height",
    "x_width",
    "x_down_by",
    "x_across_by",
    "first_row",
    "first_column",
    "step_down",
    "step_across",
    "w_channel",
    "w_pitch",
    "w_height",
    "w_width",
    "w_down_by",
    "w_across_by",
    "y_image",
    "y_channel",
    "y_pitch",
    "y_height",
    "y_width",
    "y_down_by",
    "y_across_by",
)
"""Names of the kernel's arguments,"""
SIGNATURE = ("HALVES",) * 3 + ("WORDS",) * 3 + ("FLOAT",) + ("INT",) * 29
"""and their kinds, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return spec.blocks
