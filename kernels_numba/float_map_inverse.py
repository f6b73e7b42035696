"""The inverse transform of points in float32, cropped: from spectrum[frequency, image and tile, channel] to images.

The other way round from `float_map_transform.py`: a lane contracts a row of points,

    u[p, c] = e^{-i pi c / C} sum_q Z[p, q] e^{-2 pi i q c / (C/2)},

and after shared memory a column of them, z[r, c] = sum_p u[p, c] e^{-2 pi i p r / R}, whose real parts are the samples
of column c and whose imaginary parts those of column c + C/2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba.float_map_transform import SharedPoints, min_blocks
from kernels_numba.map_places import find_channel, find_tile_of_image


@dataclass(frozen=True)
class Spec(SharedPoints):
    """Everything that is compiled into one kernel."""

    rows: int
    columns: int
    spread: bool = False
    """Only every so many samples are stored."""
    channels: int = 16
    """Maps of a block."""
    warps: int = 8
    dtype: str = "fp32"

    @property
    def width(self) -> int:  # type: ignore[override]
        """Points of a row."""
        return self.half

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        spread = "_spread" if self.spread else ""
        return f"float_map_inverse_{self.rows}x{self.columns}_c{self.channels}_w{self.warps}{spread}"


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    rows, half, channels, pitch, spread = spec.rows, spec.half, spec.channels, spec.pitch, spec.spread
    threads, down_items, across_items = 32 * spec.warps, channels * half, channels * rows
    log_channels = channels.bit_length() - 1
    lane, warp, block, divide, barrier = tile.lane, tile.warp, tile.block, tile.divide, tile.barrier
    small, int64 = tile.small, tile.int64
    load = tile.load_far_points(half)
    contract_columns = tile.dft_points(half, 1, inverse=False, skew="out")
    put = tile.store_points(tuple(range(half)))
    get = tile.load_points(tuple(half * p for p in range(rows)))
    contract_rows = tile.dft_points(rows, 1, inverse=False)
    store = tile.store_map_columns(rows, half, spread=spread)

    find_place, find_map = find_tile_of_image(tile), find_channel(tile)

    def kernel(
        spectrum,
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
        skip_down,
        skip_across,
        down,
        across,
        real_channels,
        padded_channels,
        all_channels,
        channel_blocks,
    ):
        index = small(lane())
        first = small(32 * warp())
        m = small(divide(block(), channel_blocks))
        first_slot = small((block() - m * channel_blocks) * channels)
        step = int64(maps) * all_channels
        i = first
        while i < across_items:
            item = small(i + index)
            c = small(item & (channels - 1))
            p = small(item >> log_channels)
            slot = small(first_slot + c)
            at = int64(p * half) * step + int64(m) * all_channels + slot
            u = contract_columns(load(spectrum, at, step, slot < all_channels))
            put(2 * (c * pitch + p * half), u)
            i = small(i + threads)
        image, top, left = find_place(m, tiles_down, tiles_across, step_down, step_across)
        bottom = small(min(height, top + step_down))
        right = small(min(width, left + step_across))
        origin = int64(image) * image_stride
        if not spread:
            # Counted from the tile's first result: what is skipped lies before the image, or wraps around to its end.
            origin = origin + int64(top) * row_pitch + left
            bottom = small(bottom - top)
            right = small(right - left)
            top = small(-skip_down)
            left = small(-skip_across)
        barrier()
        i = first
        while i < down_items:
            item = small(i + index)
            c = small(divide(item, half))
            column = small(item - c * half)
            slot = small(first_slot + c)
            number, real = find_map(slot, padded_channels, real_channels)
            inside = real & (slot < all_channels)
            base = origin + int64(number) * channel_stride
            z = contract_rows(get(2 * (c * pitch + column)))
            store(y, base, row_pitch, top, left + column, bottom * inside, right, down, across, factor, z)
            i = small(i + threads)

    return kernel


VOCABULARY = "float-layers"
ARGUMENTS = (
    "spectrum",
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
    "skip_down",
    "skip_across",
    "down",
    "across",
    "real_channels",
    "padded_channels",
    "all_channels",
    "channel_blocks",
)
"""Names of the kernel's arguments,"""
SIGNATURE = ("FLOATS",) * 2 + ("FLOAT",) + ("INT",) * 18
"""and their kinds, for the compiler."""

__all__ = ["ARGUMENTS", "SIGNATURE", "VOCABULARY", "Spec", "build", "min_blocks"]
