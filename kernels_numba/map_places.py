"""Where tiles and channels of layers lie: what all kernels of maps work out in the same way."""

from __future__ import annotations

from typing import Any


def find_tile_of_image(tile: Any) -> Any:
    """``op(m, tiles_down, tiles_across, step_down, step_across)``: the image of tile m, and its place in it."""
    divide, small = tile.divide, tile.small

    @tile.subroutine
    def find(m, tiles_down, tiles_across, step_down, step_across):
        strip = small(divide(m, tiles_across))
        left = small((m - strip * tiles_across) * step_across)
        image = small(divide(strip, tiles_down))
        top = small((strip - image * tiles_down) * step_down)
        return image, top, left

    return find


def find_channel(tile: Any) -> Any:
    """``op(slot, padded_channels, real_channels)``: the channel of a slot, and whether it is a real one."""
    divide, small = tile.divide, tile.small

    @tile.subroutine
    def find(slot, padded_channels, real_channels):
        group = small(divide(slot, padded_channels))
        within = small(slot - group * padded_channels)
        return small(group * real_channels + within), within < real_channels

    return find
