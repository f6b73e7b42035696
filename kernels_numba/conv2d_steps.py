"""What a planned pass is made of: launches with their arguments, and the maps that are transformed."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kernels_numba.conv2d_geometry import Pair

if TYPE_CHECKING:
    from kernels_numba.conv2d_plan import Plan

MULTIPLE = 4


def padded(channels: int, multiple: int = MULTIPLE) -> int:
    """Channels of a group in a spectrum: a multiple of four, so that they can be copied 16 bytes at a time."""
    return -(-channels // multiple) * multiple


def contracted(plan: Plan, unit: int) -> dict[str, int]:
    """Arguments of a product over channels that say what it contracts; distances in units, so many a point.

    The spectrum of w is [frequency, output, part, input]. The forward pass contracts a row of it, all parts at once;
    the gradient of the input the rows of a group, for each part.
    """
    g, parts = plan.geometry, plan.part_count
    inputs, outputs = padded(g.inputs), padded(g.outputs)
    row = parts * inputs
    across = plan.which == "input_gradient"
    found = {
        "k": outputs if across else row,
        "w_stride": row,
        "w_group": g.outputs * row,
        "w_frequency": g.w_shape[0] * row,
        "w_part": inputs,
    }
    found = {name: unit * value for name, value in found.items()}
    return {**found, "w_rows": g.outputs, "parts": parts if across else 1}


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
    image_stride: int
    channel_stride: int
    pitch: int
    """Samples from row to row, and the others along their axes, as they are stored."""
    groups: int
    channels: int
    """Of a group."""
    first: Pair
    extent: Pair
    tiles: Pair
    kind: str
    offset: int = 0
    """Element of the array that is the first sample."""
    part: int = 0
    """Which part of the filter this is for, of"""
    parts: int = 1
    """so many, whose channels follow each other in the spectrum, in each group, or,"""
    multiple: int = MULTIPLE
    """where groups have one channel and nothing fills them up (1), after those of all groups."""

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
        return self.groups * padded(self.channels, self.multiple)

    @property
    def group_slots(self) -> int:
        """Channels of the spectrum from group to group."""
        return padded(self.channels, self.multiple) * (self.parts if self.multiple > 1 else 1)

    @property
    def row_slots(self) -> int:
        """Channels of the spectrum, of all parts."""
        return self.parts * self.slots

    @property
    def first_slot(self) -> int:
        """Where the channels of this part begin."""
        return self.part * (padded(self.channels) if self.multiple > 1 else self.slots)

    def values(self, step: Pair, first_image: int, blocks: int) -> dict[str, Any]:
        """Arguments of a transform, of either kind, in so many blocks of channels."""
        return dict(
            x=Ref(self.name, self.offset + first_image * self.image_stride),
            maps=self.rows,
            tiles_down=self.tiles[0],
            tiles_across=self.tiles[1],
            image_stride=self.image_stride,
            channel_stride=self.channel_stride,
            row_pitch=self.pitch,
            height=self.dense[0],
            width=self.dense[1],
            first_row=self.first[0],
            first_column=self.first[1],
            step_down=step[0],
            step_across=step[1],
            extent_down=self.extent[0],
            extent_across=self.extent[1],
            down=self.spread[0],
            across=self.spread[1],
            real_channels=self.channels,
            padded_channels=padded(self.channels, self.multiple),
            all_channels=self.slots,
            channel_blocks=blocks,
            row_slots=self.row_slots,
            group_slots=self.group_slots,
        )


@dataclass(frozen=True)
class Target:
    """Maps that results go to: [images, channels of all groups, height, width], in tiles."""

    shape: Pair
    """Rows and columns as they are stored."""
    spread: Pair
    """Every so many results along each axis are stored."""
    images: int
    image_stride: int
    channel_stride: int
    pitch: int
    groups: int
    channels: int
    """Of a group."""
    tiles: Pair
    step: Pair
    skip: Pair
    offset: int = 0
    """Element of the array that is the first result."""
    first_point: int = 0
    """Point of the product's spectrum that is the first."""
    multiple: int = MULTIPLE
    """That channels of a group are filled up to."""

    @property
    def maps(self) -> int:
        """Rows m of the spectrum."""
        return self.images * self.tiles[0] * self.tiles[1]

    @property
    def slots(self) -> int:
        """Channels of the spectrum."""
        return self.groups * padded(self.channels, self.multiple)

    def values(self, first_image: int, blocks: int) -> dict[str, Any]:
        """Arguments of a transform back, of either kind, in so many blocks of channels."""
        height, width = ((n - 1) * s + 1 for n, s in zip(self.shape, self.spread, strict=True))
        return dict(
            y=Ref("out", self.offset + first_image * self.image_stride),
            maps=self.maps,
            tiles_down=self.tiles[0],
            tiles_across=self.tiles[1],
            image_stride=self.image_stride,
            channel_stride=self.channel_stride,
            row_pitch=self.pitch,
            height=height,
            width=width,
            step_down=self.step[0],
            step_across=self.step[1],
            down=self.spread[0],
            across=self.spread[1],
            real_channels=self.channels,
            padded_channels=padded(self.channels, self.multiple),
            all_channels=self.slots,
            channel_blocks=blocks,
        )
