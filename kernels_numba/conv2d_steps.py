"""What a planned pass is made of: launches with their arguments, and the maps that are transformed."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kernels_numba.conv2d_geometry import Pair


def padded(channels: int) -> int:
    """Channels of a group in a spectrum: a multiple of four, so that they can be copied 16 bytes at a time."""
    return -(-channels // 4) * 4


@dataclass(frozen=True)
class Ref:
    """An argument that is an array: its name, and the element (of the kind the kernel takes) where it begins."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Constants:
    """An argument that is an array of constants."""

    make: Any
    key: tuple


@dataclass(frozen=True)
class Step:
    """One launch."""

    family: ModuleType
    spec: Any
    grid: int
    values: dict[str, Any]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The kernel's arguments in its order."""
        return tuple(self.values[name] for name in self.family.ARGUMENTS)


@dataclass(frozen=True)
class Alignment:
    """What is known of the arrays: how many neighbouring halves of each begin at a multiple of their size."""

    x: int = 8
    w: int = 8
    y: int = 8


WHOLE = Alignment()
"""Arrays that begin on 16 bytes."""


@dataclass(frozen=True)
class Source:
    """Maps that are transformed: [images, channels of all groups, height, width], perhaps spread out, in tiles."""

    name: str
    shape: Pair
    """Rows and columns as they are stored."""
    spread: Pair
    images: int
    per_group: int
    """Images that follow each other ``image_stride`` apart; then comes the next group of them."""
    group_stride: int
    image_stride: int
    channel_stride: int
    groups: int
    channels: int
    """Of a group."""
    first: Pair
    extent: Pair
    tiles: Pair
    kind: str

    @property
    def dense(self) -> Pair:
        """Rows and columns with the zeros between samples."""
        return tuple((n - 1) * s + 1 for n, s in zip(self.shape, self.spread, strict=True))  # type: ignore[return-value]

    @property
    def rows(self) -> int:
        """Rows m of the spectrum: images times tiles."""
        return self.images * self.tiles[0] * self.tiles[1]

    @property
    def slots(self) -> int:
        """Channels of the spectrum."""
        return self.groups * padded(self.channels)
