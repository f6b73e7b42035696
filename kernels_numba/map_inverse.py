"""The inverse transform of points, cropped: from spectrum[frequency, image and tile, channel] to images.

The other way round from `map_transform.py`. A block brings one tile of ``channels`` maps to shared memory; a warp takes
a map's points to registers, where they are a left operand as they lie, and with S = Z[p] + Z[-1 - p] and
D = -i (Z[p] - Z[-1 - p]) for p < R/2 forms

    1. u[p, c] = sum_q Re (S[p, q] e^{2 pi i (q + 1/2) c / C}), the same of D
    2. y[r, c] = sum_p u_S[p, c] cos(2 pi (p + 1/2) r / R) - u_D[p, c] sin(2 pi (p + 1/2) r / R)

for the rows and columns that are wanted, and stores them, rounded once, where they belong.

``sums``: points come as `map_correlation.py` leaves them, in float32 and in chunks, which a warp adds up and rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba import map_transform
from kernels_numba.map_correlation import QUAD
from kernels_numba.map_pieces import samples_of
from kernels_numba.map_places import find_channel, find_tile_of_image
from kernels_numba.map_transform import MOST_REGISTERS, SharedTile


def strips(rows: int, columns: int, wanted_columns: int) -> int:
    """In how many parts the wanted columns of a tile are formed."""
    if rows * wanted_columns <= MOST_REGISTERS:
        return 1
    return wanted_columns // 16 if columns % 32 else 2


@dataclass(frozen=True)
class Spec(SharedTile):
    """Everything that is compiled into one kernel."""

    rows: int
    columns: int
    dtype: str
    wanted_rows: int
    wanted_columns: int
    """Samples of a tile that are formed: a multiple of 16 rows and of 16 columns (of 8, where C is one of 32)."""
    halves: int = 2
    """Samples that are stored together."""
    spread: bool = False
    """Only every so many samples are stored."""
    channels: int = 32
    """Maps of a block."""
    warps: int = 8
    blocks: int = 2
    """Blocks per SM that the compiler must leave registers for."""
    sums: bool = False

    @property
    def parts(self) -> int:
        """Parts of the columns of points in the order in which they come from the forward transform."""
        return map_transform.slices(self.rows, self.columns)

    @property
    def slices(self) -> int:
        """Parts of the wanted columns that are formed one after the other."""
        return strips(self.rows, self.columns, self.wanted_columns)

    @property
    def constant_words(self) -> int:
        """Both factors."""
        return (self.columns * self.wanted_columns + self.rows * self.wanted_rows) // 2

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.constant_words + (0 if self.sums else self.points * self.pitch))

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        spread = ("_spread" if self.spread else "") + ("_sums" if self.sums else "")
        return (
            f"map_inverse_{self.rows}x{self.columns}_to{self.wanted_rows}x{self.wanted_columns}_{self.dtype}"
            f"_v{self.halves}_c{self.channels}_w{self.warps}{spread}"
        )


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    rows, columns, warps, channels, slices = spec.rows, spec.columns, spec.warps, spec.channels, spec.slices
    out_groups, out_tiles = spec.wanted_rows // 8, spec.wanted_columns // 8 // slices
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
    copy_points = tile.copy_async(2)
    constant_words, pitch, points = spec.constant_words, spec.pitch, spec.points
    rounds, slice_words = -(-constant_words // 128), columns * 8 * out_tiles // 2
    at_rows = columns * spec.wanted_columns // 2
    load_points = tile.load_shared(count, 1)
    sums = spec.sums
    load_sums, as_floats, no_sums = (
        tile.load_global(2 * count, 4),
        tile.as_floats(2 * count),
        tile.zeros(2 * count),
    )
    add, lift, round_points = tile.add(2 * count), tile.scale(2 * count), tile.pack(count)
    operand, form = samples_of(tile, rows, columns, spec.wanted_rows, spec.wanted_columns, spec.parts, slices)
    scale = tile.scale(2 * out_groups * out_tiles)
    store = tile.store_window(out_groups, out_tiles, spec.halves, spread=spec.spread)
    together = 32 // channels
    log_channels = channels.bit_length() - 1

    find_place, find_map = find_tile_of_image(tile), find_channel(tile)

    def kernel(
        spectrum,
        words,
        y,
        factor,
        maps,
        tiles_down,
        tiles_across,
        image_stride,
        channel_stride,
        row_pitch,
        height,
        width,
        step_down,
        step_across,
        down,
        across,
        real_channels,
        padded_channels,
        all_channels,
        channel_blocks,
        parts,
        chunks,
        factor_of_sums,
    ):
        index = small(lane())
        w = small(warp())
        r = w
        while r < rounds:
            copy(r * 128 + 4 * index, words, r * 128 + 4 * index)
            r = small(r + warps)
        m = small(divide(block(), channel_blocks))
        first_slot = small((block() - m * channel_blocks) * channels)
        channel = small(index & (channels - 1))
        frequency = small(index >> log_channels)
        slot = small(first_slot + channel)
        stride = int64(maps) * all_channels
        f = small(w * together + frequency)
        at = 2 * (int64(f) * stride + int64(m) * all_channels + slot)
        step = 2 * (warps * together) * stride
        while (f < points) & (not sums):
            copy_points(2 * (constant_words + f * pitch + channel), spectrum, at, slot < all_channels)
            f = small(f + warps * together)
            at = at + step
        commit()
        image, top, left = find_place(m, tiles_down, tiles_across, step_down, step_across)
        bottom = small(min(height, top + step_down))
        right = small(min(width, left + step_across))
        row = small(top + (index >> 2))
        column = small(left + 2 * (index & 3))
        wait()
        barrier()
        c = w
        while c < channels:
            slot = small(first_slot + c)
            number, real = find_map(slot, padded_channels, real_channels)
            if (slot < all_channels) & real:
                if sums:
                    total = no_sums()
                    chunk = small(0)
                    while chunk < chunks:
                        at = 2 * points * (int64(chunk) * all_channels + slot) + 4 * index
                        total = add(total, as_floats(load_sums(parts, at, QUAD)))
                        chunk = small(chunk + 1)
                    z = round_points(lift(total, factor_of_sums))
                else:
                    z = load_points(constant_words + index * pitch + c, 32 * pitch)
                z = operand(z)
                base = int64(image) * image_stride + int64(number) * channel_stride
                s = small(0)
                while s < slices:
                    v = form(z, s * slice_words + 4 * index, at_rows + 4 * index)
                    at_column = small(column + s * (8 * out_tiles))
                    v = scale(v, factor)
                    store(y, base, row_pitch, row, at_column, bottom, right, down, across, v)
                    s = small(s + 1)
            c = small(c + warps)

    return kernel


VOCABULARY = "layers"
ARGUMENTS = (
    "spectrum",
    "words",
    "y",
    "factor",
    "maps",
    "tiles_down",
    "tiles_across",
    "image_stride",
    "channel_stride",
    "row_pitch",
    "height",
    "width",
    "step_down",
    "step_across",
    "down",
    "across",
    "real_channels",
    "padded_channels",
    "all_channels",
    "channel_blocks",
    "parts",
    "chunks",
    "factor_of_sums",
)
"""Names of the kernel's arguments,"""
SIGNATURE = ("HALVES", "WORDS", "HALVES", "FLOAT") + ("INT",) * 16 + ("WORDS", "INT", "FLOAT")
"""and their kinds, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return spec.blocks
