"""The forward transform of maps: real tiles to points, for products of matrices at every frequency.

A warp carries one tile of one map in registers (the mathematics is in `map_operands.py`):

    1. z[r, q] = sum_c x[r, c] e^{-2 pi i (q + 1/2) c / C}     the map, as it is loaded, is the left operand
    2. Z[p, q] = sum_r z[r, q] e^{-2 pi i (p + 1/2) r / R}     z, transposed in registers, is the right one

Samples outside the image are zeros that were never stored. A block takes one tile of ``channels`` maps of one image:
points go to shared memory, [frequency, channel], and from there, channels side by side, to

    spectrum[frequency, image and tile, channel]          words of two halves, real and imaginary

A frequency is an index of registers and lanes (slice, row group, column tile, e, lane), so that lanes write different
banks; all kernels of a layer agree on it, and nobody needs another order. Channels are padded to a multiple of four a
group, with zeros, so that products can copy 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba.map_pieces import points_of
from kernels_numba.map_places import find_channel, find_tile_of_image

SIZES = (16, 32, 48, 64)
"""Rows and columns that a tile can have,"""
MOST_POINTS = 4096
"""and how many of both."""
MOST_REGISTERS = 2304
"""Samples of a tile whose points a warp can form at once; those of larger ones are formed in parts."""
UNROLLED = 8


def slices(rows: int, columns: int) -> int:
    """In how many parts the columns of points of a tile are formed."""
    if rows * columns <= MOST_REGISTERS:
        return 1
    return 3 if columns % 32 else 2


class SharedTile:
    """What both kernels of maps keep in shared memory beside constants: points of a few channels, by frequency."""

    rows: int
    columns: int
    channels: int

    @property
    def points(self) -> int:
        """Frequencies of a tile."""
        return self.rows * self.columns // 2

    @property
    def pitch(self) -> int:
        """Words from frequency to frequency in shared memory: odd, so that 32 of them are on different banks."""
        return self.channels + 1


@dataclass(frozen=True)
class Spec(SharedTile):
    """Everything that is compiled into one kernel."""

    rows: int
    columns: int
    dtype: str
    seen_rows: int
    seen_columns: int
    """Samples that may be other than zero, from the tile's first on: multiples of 16."""
    halves: int = 8
    """Samples that are loaded together."""
    spread: bool = False
    """Samples stand apart, zeros between them."""
    channels: int = 32
    """Maps of a block."""
    warps: int = 8
    blocks: int = 2
    """Blocks per SM that the compiler must leave registers for."""

    @property
    def slices(self) -> int:
        """Parts of the columns of points that are formed one after the other."""
        return slices(self.rows, self.columns)

    @property
    def constant_words(self) -> int:
        """Both factors."""
        return (self.columns * self.seen_columns + self.rows * self.seen_rows) // 2

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.constant_words + self.points * self.pitch)

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        spread = "_spread" if self.spread else ""
        return (
            f"map_transform_{self.rows}x{self.columns}_of{self.seen_rows}x{self.seen_columns}_{self.dtype}"
            f"_v{self.halves}_c{self.channels}_w{self.warps}{spread}"
        )


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    rows, columns, slices, warps, channels = spec.rows, spec.columns, spec.slices, spec.warps, spec.channels
    seen_tiles, k_tiles = spec.seen_rows // 16, spec.seen_columns // 16
    lane_columns = spec.seen_columns // 4
    q_tiles = columns // 16 // slices
    count = rows // 8 * q_tiles * 2  # points of a slice in a lane
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    copy, commit, wait, barrier = tile.copy_words_async, tile.commit, tile.wait(0), tile.barrier
    constant_words, pitch = spec.constant_words, spec.pitch
    rounds, slice_words = constant_words // 128, spec.seen_columns * 16 * q_tiles // 2
    at_rows = columns * spec.seen_columns // 2
    load = tile.load_window(2 * seen_tiles, 2 * k_tiles, spec.halves, spread=spec.spread)
    transform = points_of(tile, rows, columns, spec.seen_rows, spec.seen_columns, slices)
    pack_points = tile.pack_points(count)
    as_words, zeros = tile.as_words(4 * seen_tiles * k_tiles), tile.zeros(4 * seen_tiles * k_tiles)
    store = tile.store_shared_pieces(tuple((0, 32 * pitch * j, (j,)) for j in range(count)))
    # Copying out: a row of channels for each frequency, as many frequencies at once as a warp has lanes for.
    together = 32 // channels
    log_channels = channels.bit_length() - 1
    runs = spec.points // (UNROLLED * together)
    move = tile.move_words(UNROLLED, together * pitch)

    find_place, find_map = find_tile_of_image(tile), find_channel(tile)

    def kernel(
        x,
        words,
        spectrum,
        maps,
        tiles_down,
        tiles_across,
        image_stride,
        channel_stride,
        row_pitch,
        height,
        width,
        first_row,
        first_column,
        step_down,
        step_across,
        extent_down,
        extent_across,
        down,
        across,
        real_channels,
        padded_channels,
        all_channels,
        channel_blocks,
        row_slots,
        group_slots,
    ):
        index = small(lane())
        w = small(warp())
        r = w
        while r < rounds:
            copy(r * 128 + 4 * index, words, r * 128 + 4 * index)
            r = small(r + warps)
        commit()
        # Which tile of which image.
        m = small(divide(block(), channel_blocks))
        first_slot = small((block() - m * channel_blocks) * channels)
        image, top, left = find_place(m, tiles_down, tiles_across, step_down, step_across)
        start = int64(image) * image_stride
        top = small(top + first_row)
        left = small(left + first_column)
        # A tile may lie in the zeros beside the image altogether.
        bottom = small(max(0, min(height, top + extent_down)))
        right = small(max(0, min(width, left + extent_across)))
        row = small(top + (index >> 2))
        column = small(left + (index & 3) * lane_columns)
        wait()
        barrier()
        # A warp's next map is on its way while it transforms one: the first turn only asks for the first map. A channel
        # that only fills up its group is a map without rows.
        c = small(w - warps)
        data = as_words(zeros())
        while c < channels:
            slot = small(first_slot + c + warps)
            number, real = find_map(slot, padded_channels, real_channels)
            inside = real & (slot < all_channels) & (c + warps < channels)
            base = start + int64(number) * channel_stride
            coming = load(x, base, row_pitch, row, column, small(bottom * inside), right, down, across)
            if (c >= 0) & (slot < all_channels + warps):
                s = small(0)
                while s < slices:
                    z = transform(data, s * slice_words + 4 * index, at_rows + 4 * index)
                    store(constant_words + (s * (32 * count) + index) * pitch + c, 0, 0, 0, pack_points(z))
                    s = small(s + 1)
            data = coming
            c = small(c + warps)
        barrier()
        channel = small(index & (channels - 1))
        frequency = small(index >> log_channels)
        slot = small(first_slot + channel)
        group = small(divide(slot, padded_channels))
        place = small(slot + group * (group_slots - padded_channels))
        stride = int64(maps) * row_slots
        step = together * stride
        r = w
        while r < runs:
            f = small(r * (UNROLLED * together) + frequency)
            at = int64(f) * stride + int64(m) * row_slots + place
            move(constant_words + f * pitch + channel, spectrum, at, step, slot < all_channels)
            r = small(r + warps)

    return kernel


VOCABULARY = "layers"
ARGUMENTS = (
    "x",
    "words",
    "spectrum",
    "maps",
    "tiles_down",
    "tiles_across",
    "image_stride",
    "channel_stride",
    "row_pitch",
    "height",
    "width",
    "first_row",
    "first_column",
    "step_down",
    "step_across",
    "extent_down",
    "extent_across",
    "down",
    "across",
    "real_channels",
    "padded_channels",
    "all_channels",
    "channel_blocks",
    "row_slots",
    "group_slots",
)
"""Names of the kernel's arguments,"""
SIGNATURE = ("HALVES",) + ("WORDS",) * 2 + ("INT",) * 22
"""and their kinds, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return spec.blocks
