"""Transforms of two maps and the sum of their products: the gradient of the weights of a depthwise layer.

    sums[chunk, c, f] = sum_m conj(G[f, m, c]) X[f, m, c]          m over the images and tiles of a chunk

Each channel is by itself, so spectra need not meet other channels in device memory, or leave registers at all: a warp
transforms a tile of x and the block of the gradient in y that belongs to it, as `map_transform.py` does, and adds the
products to its sums, in float32. The points of x are not even rounded. A block has the tiles of a chunk of one channel;
its warps add up their sums at the end. `map_inverse.py` adds up the chunks and transforms back.

Sums lie as `correlate` has them: [chunk, channel, register, lane, two points], frequencies in the order of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba import map_transform
from kernels_numba.map_pieces import Side, points_of
from kernels_numba.map_places import find_tile_of_image

QUAD = 128
"""Words of a register of sums of a warp: two points a lane."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    rows: int
    columns: int
    dtype: str
    x: Side
    g: Side
    warps: int = 8
    blocks: int = 2
    """Blocks per SM that the compiler must leave registers for."""

    @property
    def points(self) -> int:
        """Frequencies of a tile."""
        return self.rows * self.columns // 2

    @property
    def constant_words(self) -> int:
        """The factors of both maps."""
        return sum(side.constant_words(self.rows, self.columns) for side in (self.x, self.g))

    @property
    def shared_bytes(self) -> int:
        """Constants, and the sums of all warps."""
        return 4 * (self.constant_words + 2 * self.points * self.warps)

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        return f"map_correlation_{self.rows}x{self.columns}_x{self.x.name}_g{self.g.name}_{self.dtype}_w{self.warps}"


def fits(rows: int, columns: int) -> bool:
    """Whether a warp can hold the sums of a tile."""
    return map_transform.slices(rows, columns) == 1


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    rows, columns, warps, points = spec.rows, spec.columns, spec.warps, spec.points
    registers = points // 64  # of sums, two points each
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    copy, commit, wait, barrier = tile.copy_words_async, tile.commit, tile.wait(0), tile.barrier
    x_words = spec.x.constant_words(rows, columns)
    x_rounds, g_rounds = x_words // 128, (spec.constant_words - x_words) // 128
    load_x, load_g = (
        tile.load_window(side.seen_rows // 8, side.seen_columns // 8, side.halves, spread=side.spread)
        for side in (spec.x, spec.g)
    )
    (as_x, no_x), (as_g, no_g), (as_z, no_z) = (
        (tile.as_words(count), tile.zeros(count)) for count in (spec.x.words, spec.g.words, 2 * registers)
    )
    x_lane, g_lane = spec.x.seen_columns // 4, spec.g.seen_columns // 4
    transform_x, transform_g = (
        points_of(tile, rows, columns, side.seen_rows, side.seen_columns) for side in (spec.x, spec.g)
    )
    x_down, g_down = (columns * side.seen_columns // 2 for side in (spec.x, spec.g))
    pack = tile.pack(2 * registers)
    no_sums, correlate, as_words = (
        tile.no_sums(registers),
        tile.correlate(registers),
        tile.as_words(4 * registers),
    )
    put = tile.store_shared_pieces(
        tuple((0, QUAD * i, tuple(range(4 * i, 4 * i + 4))) for i in range(registers))
    )
    get, as_floats, add, zeros = tile.load_shared(4, 4), tile.as_floats(4), tile.add(4), tile.zeros(4)
    store = tile.store_sums_global(1)
    at_sums, warp_words = spec.constant_words, 2 * points

    find_place = find_tile_of_image(tile)

    def kernel(
        x,
        g,
        x_constants,
        g_constants,
        sums,
        maps,
        tiles_down,
        tiles_across,
        channels,
        chunks,
        step_down,
        step_across,
        x_image,
        x_channel,
        x_pitch,
        x_height,
        x_width,
        x_first_row,
        x_first_column,
        g_image,
        g_channel,
        g_pitch,
        g_height,
        g_width,
        extent_down,
        extent_across,
        down,
        across,
    ):
        index = small(lane())
        w = small(warp())
        r = w
        while r < x_rounds:
            copy(r * 128 + 4 * index, x_constants, r * 128 + 4 * index)
            r = small(r + warps)
        r = w
        while r < g_rounds:
            copy(x_words + r * 128 + 4 * index, g_constants, r * 128 + 4 * index)
            r = small(r + warps)
        commit()
        chunk = small(divide(block(), channels))
        channel = small(block() - chunk * channels)
        row = small(index >> 2)
        x_column = small((index & 3) * x_lane)
        g_column = small((index & 3) * g_lane)

        wait()
        barrier()
        # One map of a warp's next pair is on its way while it transforms the other of this one: each is asked for when
        # its registers are free. The first turn only asks.
        x_at = small(4 * index)
        g_at = small(x_words + 4 * index)
        step = small(chunks * warps)
        m = small(chunk * warps + w - step)
        x_data = as_x(no_x())
        g_data = as_g(no_g())
        z = as_z(no_z())
        total = no_sums()
        while m < maps:
            coming = small(m + step)
            image, top, left = find_place(coming, tiles_down, tiles_across, step_down, step_across)
            there = coming < maps
            if m >= 0:
                z = pack(transform_g(g_data, g_at, g_at + g_down))
            base = int64(image) * g_image + int64(channel) * g_channel
            bottom = small(min(g_height, top + extent_down) * there)
            right = small(min(g_width, left + extent_across))
            g_data = load_g(g, base, g_pitch, top + row, left + g_column, bottom, right, down, across)
            if m >= 0:
                total = correlate(total, z, transform_x(x_data, x_at, x_at + x_down))
            top = small(top + x_first_row)
            left = small(left + x_first_column)
            base = int64(image) * x_image + int64(channel) * x_channel
            # A tile may lie in the zeros beside the image altogether.
            bottom = small(max(0, min(x_height, top + rows)) * there)
            right = small(max(0, min(x_width, left + columns)))
            x_data = load_x(x, base, x_pitch, top + row, left + x_column, bottom, right, 1, 1)
            m = coming
        here = at_sums + w * warp_words + 4 * index
        put(here, here, here, here, as_words(total))
        barrier()
        i = w
        while i < registers:
            part = zeros()
            j = small(0)
            while j < warps:
                part = add(part, as_floats(get(at_sums + j * warp_words + QUAD * i + 4 * index, 0)))
                j = small(j + 1)
            place = int64(chunk * channels + channel) * registers + i
            store(sums, place * QUAD + 4 * index, part)
            i = small(i + warps)

    return kernel


VOCABULARY = "layers"
ARGUMENTS = (
    "x",
    "g",
    "x_constants",
    "g_constants",
    "sums",
    "maps",
    "tiles_down",
    "tiles_across",
    "channels",
    "chunks",
    "step_down",
    "step_across",
    "x_image",
    "x_channel",
    "x_pitch",
    "x_height",
    "x_width",
    "x_first_row",
    "x_first_column",
    "g_image",
    "g_channel",
    "g_pitch",
    "g_height",
    "g_width",
    "extent_down",
    "extent_across",
    "down",
    "across",
)
"""Names of the kernel's arguments,"""
SIGNATURE = ("HALVES",) * 2 + ("WORDS",) * 2 + ("FLOATS",) + ("INT",) * 23
"""and their kinds, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return spec.blocks
