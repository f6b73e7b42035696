"""The forward transform of maps in float32: real tiles to points, for products of matrices at every frequency.

A tile of R x C real samples has R C / 2 frequencies that say everything, half a step beside the whole ones along its
rows (as in `map_operands.py`). Of those, half a period apart, two samples make one complex number: with

    z[r, c] = x[r, c] + i x[r, c + C/2],        c < C/2,

the frequencies 2 q + 1/2 of a row of x are an ordinary transform of C/2 points,

    Z[p, q] = sum_{r, c} z[r, c] e^{i pi c / C} e^{2 pi i (p r / R + q c / (C/2))},

and the others are their mirrors (the "right-angle" convolution: real polynomials modulo t^C + 1 are complex ones modulo
t^(C/2) - i). Columns need no half step. Nothing is packed or unpacked, and every frequency is an ordinary number.

A block takes one tile of ``channels`` maps of one image. A lane first contracts the rows of two columns of a map, which
neighbouring lanes read side by side; points go to shared memory; then it contracts a row, and neighbouring lanes, with
the same row of neighbouring channels, write

    spectrum[p C/2 + q, image and tile, channel]           points of two float32

Channels are padded to a multiple of four a group, with zeros, so that products can copy 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba import map_transform
from kernels_numba.map_places import find_channel, find_tile_of_image


class SharedPoints:
    """What both kernels keep in shared memory: for each channel, rows p of points."""

    rows: int
    columns: int
    channels: int
    width: int
    """Points of a row, at most C/2."""

    @property
    def half(self) -> int:
        """C/2, the points of a row."""
        return self.columns // 2

    @property
    def pitch(self) -> int:
        """Points from channel to channel: odd, so that 16 of them are on different banks."""
        return self.rows * self.width + 1

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 8 * self.channels * self.pitch


@dataclass(frozen=True)
class Spec(SharedPoints):
    """Everything that is compiled into one kernel."""

    rows: int
    columns: int
    seen_rows: int
    seen_columns: int
    """Samples that may be other than zero, from the tile's first on: multiples of 8."""
    spread: bool = False
    """Samples stand apart, zeros between them."""
    channels: int = 16
    """Maps of a block."""
    warps: int = 8
    dtype: str = "fp32"

    @property
    def width(self) -> int:  # type: ignore[override]
        """Points of a row of which a sample may be other than zero."""
        return min(self.seen_columns, self.half)

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        spread = "_spread" if self.spread else ""
        return (
            f"float_map_transform_{self.rows}x{self.columns}_of{self.seen_rows}x{self.seen_columns}"
            f"_c{self.channels}_w{self.warps}{spread}"
        )


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    rows, half, channels, width, pitch = spec.rows, spec.half, spec.channels, spec.width, spec.pitch
    threads, down_items, across_items = 32 * spec.warps, channels * width, channels * rows
    log_channels = channels.bit_length() - 1
    lane, warp, block, divide, barrier = tile.lane, tile.warp, tile.block, tile.divide, tile.barrier
    small, int64 = tile.small, tile.int64
    load = tile.load_map_columns(spec.seen_rows, half if spec.seen_columns > half else 0, spread=spec.spread)
    contract_rows = tile.dft_points(rows, 1, inverse=True, live=spec.seen_rows)
    put = tile.store_points(tuple(width * p for p in range(rows)))
    get = tile.load_points(tuple(range(width)))
    contract_columns = tile.dft_points(half, 1, inverse=True, live=width, skew="in")
    store = tile.store_far_points(half)

    find_place, find_map = find_tile_of_image(tile), find_channel(tile)

    def kernel(
        x,
        spectrum,
        maps,
        tiles_down,
        tiles_across,
        image_stride,
        channel_stride,
        row_pitch,
        height,
        width_of_image,
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
        first = small(32 * warp())
        # Which tile of which image.
        m = small(divide(block(), channel_blocks))
        first_slot = small((block() - m * channel_blocks) * channels)
        image, top, left = find_place(m, tiles_down, tiles_across, step_down, step_across)
        start = int64(image) * image_stride
        top = small(top + first_row)
        left = small(left + first_column)
        # A tile may lie in the zeros beside the image altogether.
        bottom = small(max(0, min(height, top + extent_down)))
        right = small(max(0, min(width_of_image, left + extent_across)))
        i = first
        while i < down_items:
            item = small(i + index)
            c = small(divide(item, width))
            column = small(item - c * width)
            slot = small(first_slot + c)
            number, real = find_map(slot, padded_channels, real_channels)
            # A channel that only fills up its group is a map without rows.
            inside = real & (slot < all_channels)
            base = start + int64(number) * channel_stride
            z = load(x, base, row_pitch, top, left + column, bottom * inside, right, down, across)
            put(2 * (c * pitch + column), contract_rows(z))
            i = small(i + threads)
        barrier()
        step = int64(maps) * row_slots
        i = first
        while i < across_items:
            item = small(i + index)
            c = small(item & (channels - 1))
            p = small(item >> log_channels)
            z = contract_columns(get(2 * (c * pitch + p * width)))
            slot = small(first_slot + c)
            group = small(divide(slot, padded_channels))
            place = small(slot + group * (group_slots - padded_channels))
            at = int64(p * half) * step + int64(m) * row_slots + place
            store(spectrum, at, step, slot < all_channels, z)
            i = small(i + threads)

    return kernel


VOCABULARY = "float-layers"
ARGUMENTS = tuple(name for name in map_transform.ARGUMENTS if name != "words")
"""Names of the kernel's arguments: those of the half kernel, whose constants come from memory,"""
SIGNATURE = ("FLOATS",) * 2 + ("INT",) * 22
"""and their kinds, for the compiler."""


def min_blocks(spec: Any) -> int:
    """Blocks per SM that the compiler must leave registers for: a lane holds a row or a column of points."""
    return 1 if max(spec.rows, spec.half) > 32 else 16 // spec.warps
