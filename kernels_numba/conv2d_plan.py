"""From a convolution layer to the launches that compute one of its passes by FFT.

Three passes, each of three or four launches: transform both operands, multiply at every frequency, transform back and
crop; in half precision on tensor cores (`conv2d_half`), in fp32 on ordinary ones (`conv2d_float`).

=================  =======================  ===============================  ==========================
pass               first operand            second operand                   product
=================  =======================  ===============================  ==========================
"forward"          x, tiles                 w, a row for each output         x conj(w), over inputs
"input_gradient"   dy, tiles                w, as in the forward pass        dy w, over outputs
"weight_gradient"  dy, blocks of the tiles  x, tiles as in the forward pass  conj(dy) x, over images, tiles
=================  =======================  ===============================  ==========================

A filter that no tile has room for is cut into *parts* of equal size, which see the image from other places: a sum over
parts and channels takes the place of that over channels (the gradient of the weights has a product for each part).

A :class:`Plan` says how large everything is before anything is allocated; images go in groups if a limit asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any

from kernels_numba import (
    conv2d_float,
    conv2d_half,
    conv2d_pointwise,
    map_correlation,
    map_operands,
    map_transform,
)
from kernels_numba.conv2d_geometry import Geometry, Pair
from kernels_numba.conv2d_steps import MULTIPLE, WHOLE, Alignment, Source, Step, Target, padded
from kernels_numba.conv2d_tiles import Axis, axes, from_start
from kernels_numba.map_operands import FILTER, SIGNAL

PASSES = ("forward", "input_gradient", "weight_gradient")
OPERANDS = {"forward": ("x", "w"), "input_gradient": ("dy", "w"), "weight_gradient": ("dy", "x")}
"""Of each pass, in the order of its workspaces "A" and "B"."""
Kept = frozenset[str]
NONE: Kept = frozenset()
MORE_PARTS = 3
"""Smaller parts of a filter than need be leave larger steps from tile to tile: so many more are tried."""


@dataclass(frozen=True)
class Plan:
    """One pass of a layer by FFT."""

    geometry: Geometry
    which: str
    dtype: str
    down: Axis
    across: Axis
    images: int
    """That are processed at once."""
    shared_limit: int = 227 * 1024
    parts: Pair = (1, 1)
    """Of the filter, along both axes."""
    fused: bool = False
    """Whether transforms and products are one launch, and spectra are nowhere (`can_fuse`)."""

    # ---- sizes -------------------------------------------------------------------------------------------
    @property
    def tile(self) -> Pair:
        """Rows and columns of a tile."""
        return self.down.size, self.across.size

    @property
    def tiles(self) -> int:
        """Tiles of an image."""
        return self.down.count * self.across.count

    @property
    def points(self) -> int:
        """Frequencies of a tile."""
        return map_operands.points(*self.tile)

    @property
    def batches(self) -> int:
        """How often `images` images are processed."""
        return -(-self.geometry.x_shape[0] // self.images)

    @property
    def part_count(self) -> int:
        """Parts of the filter."""
        return self.parts[0] * self.parts[1]

    @property
    def part_taps(self) -> Pair:
        """Taps of a part, along both axes; the last may have fewer."""
        return part_taps(self.geometry, self.parts)

    @property
    def pointwise(self) -> bool:
        """Whether each channel has a filter of its own and nothing else is summed: a depthwise layer."""
        return self.geometry.inputs == self.geometry.outputs == 1

    @property
    def multiple(self) -> int:
        """That channels of a group are filled up to in a spectrum."""
        return 1 if self.pointwise else MULTIPLE

    @property
    def contraction(self) -> tuple[int, int]:
        """Of a product over channels of a group: columns of the result, and depth, with all parts of the filter."""
        g = self.geometry
        if self.which == "input_gradient":
            return g.inputs, self.part_count * padded(g.outputs)
        return g.outputs, self.part_count * padded(g.inputs)

    @property
    def point_words(self) -> int:
        """Words of 32 bits of a point."""
        return 2 if self.dtype == "fp32" else 1

    @property
    def element_bytes(self) -> int:
        """Bytes of a sample."""
        return 2 * self.point_words

    def words(self, images: int) -> dict[str, int]:
        """Words of each workspace for a number of images, by name.

        The spectra of the operands, "A" and "B", and of the product, "P"; if images go in groups that are summed, "S",
        the sums.
        """
        if self.fused:
            if self.which != "weight_gradient":
                return {}
            return {"S": 2 * conv2d_half.chunks(self) * self.points * self.geometry.groups}
        found = dict(zip("ABPS", _words(self, images), strict=True))
        return {name: words for name, words in found.items() if words or name != "S"}

    @property
    def bytes(self) -> int:
        """Device memory of the workspaces that are held at once."""
        return 4 * sum(self.words(self.images).values())

    @cached_property
    def kinds(self) -> tuple[str, str]:
        """How the spectra of the operands are scaled."""
        return (FILTER, SIGNAL) if self.which == "weight_gradient" else (SIGNAL, FILTER)

    @property
    def workspaces(self) -> dict[str, str]:
        """By operand, the workspace that its spectrum is in."""
        if self.fused:
            return {}
        return dict(zip(OPERANDS[self.which], "AB", strict=True))

    def launches(self, kept: Kept = NONE) -> int:
        """Kernels that are launched, with the spectra of some operands there already."""
        if self.fused:
            return 2 if self.which == "weight_gradient" else 1
        parts, batches, over_images = self.part_count, self.batches, self.which == "weight_gradient"
        transforms = {"x": parts * batches, "dy": batches if over_images else parts * batches, "w": parts}
        needed = sum(transforms[name] for name in OPERANDS[self.which] if name not in kept)
        return needed + (parts * (batches + 1) if over_images else 2 * batches)

    # ---- operands and results ----------------------------------------------------------------------------
    def _image(self, name: str, shape: tuple[int, ...], channels: int, images: int, **other: Any) -> Source:
        _, _, height, width = shape
        size = height * width
        return Source(
            name,
            (height, width),
            images=images,
            image_stride=shape[1] * size,
            channel_stride=size,
            pitch=width,
            groups=self.geometry.groups,
            channels=channels,
            tiles=(self.down.count, self.across.count),
            multiple=self.multiple,
            **other,
        )

    def _part(self, part: int) -> tuple[Pair, Pair, Pair]:
        """Of a part of the filter: its first tap, its taps, and how many samples further on it sees the image."""
        g = self.geometry
        at = divmod(part, self.parts[1])
        first = (at[0] * self.part_taps[0], at[1] * self.part_taps[1])
        taps = tuple(min(n, k - f) for n, k, f in zip(self.part_taps, g.w_shape[2:], first, strict=True))
        return first, taps, (first[0] * g.dilation[0], first[1] * g.dilation[1])  # type: ignore[return-value]

    def source_x(self, images: int, kind: str = SIGNAL, part: int = 0) -> Source:
        """The input's tiles, as a part of the filter sees them."""
        g, pair, (_, _, shift) = self.geometry, (self.down, self.across), self._part(part)
        return self._image(
            "x", g.x_shape, g.inputs, images, spread=(1, 1), kind=kind, part=part, parts=self.part_count,
            first=tuple(a.first + s for a, s in zip(pair, shift, strict=True)), extent=self.tile,
        )  # fmt: skip

    def source_dy(self, images: int, part: int = 0) -> Source:
        """Tiles of the gradient in y, or, to contract images, the blocks of it that belong to the tiles of x."""
        g, pair, (_, _, shift) = self.geometry, (self.down, self.across), self._part(part)
        if self.which == "weight_gradient":
            return self._image(
                "dy", g.y_shape, g.outputs, images, spread=g.stride, kind=SIGNAL,
                first=(0, 0), extent=tuple(min(a.step, a.size) for a in pair),
            )  # fmt: skip
        return self._image(
            "dy", g.y_shape, g.outputs, images, spread=g.stride, kind=SIGNAL, part=part, parts=self.part_count,
            first=tuple(a.first - s for a, s in zip(pair, shift, strict=True)), extent=self.tile,
        )  # fmt: skip

    def source_w(self, part: int = 0) -> Source:
        """A part of the filters, a row for each output."""
        g = self.geometry
        kh, kw = g.w_shape[2:]
        first, shape, _ = self._part(part)
        taps, inputs = kh * kw, g.inputs
        made = Source(
            "w",
            shape,
            spread=g.dilation,
            images=g.w_shape[0],
            image_stride=inputs * taps,
            channel_stride=taps,
            pitch=kw,
            groups=1,
            channels=inputs,
            first=(0, 0),
            extent=self.tile,
            tiles=(1, 1),
            kind=FILTER,
            offset=first[0] * kw + first[1],
            part=part,
            parts=self.part_count,
        )
        if self.pointwise:  # filters are the channels of one image
            made = replace(made, images=1, groups=g.groups, multiple=1)
        return made

    def target(self, images: int, part: int = 0) -> Target:
        """What results go to; for the gradient of the weights a part of the filters."""
        g = self.geometry
        if self.which == "weight_gradient":
            kh, kw = g.w_shape[2:]
            first, taps, _ = self._part(part)
            span = tuple(d * (k - 1) + 1 for d, k in zip(g.dilation, taps, strict=True))
            made = Target(
                taps, g.dilation, g.w_shape[0], g.inputs * kh * kw, kh * kw, kw, 1, g.inputs,
                tiles=(1, 1), step=span, skip=(0, 0), offset=first[0] * kw + first[1],  # type: ignore[arg-type]
                first_point=part * self.points * g.w_shape[0] * padded(g.inputs, self.multiple),
            )  # fmt: skip
            return replace(made, images=1, groups=g.groups, multiple=1) if self.pointwise else made
        backwards = self.which == "input_gradient"
        _, all_maps, height, width = g.x_shape if backwards else g.y_shape
        size = height * width
        return Target(
            (height, width), (1, 1) if backwards else g.stride, images, all_maps * size, size, width, g.groups,
            g.inputs if backwards else g.outputs, tiles=(self.down.count, self.across.count),
            step=(self.down.step, self.across.step), skip=(self.down.skip, self.across.skip),
            multiple=self.multiple,
        )  # fmt: skip

    # ---- launches ----------------------------------------------------------------------------------------
    @property
    def maker(self) -> ModuleType:
        """What makes the launches of this dtype."""
        return conv2d_float if self.dtype == "fp32" else conv2d_half

    def transform(self, source: Source, target: str, aligned: int, first_image: int = 0) -> Step:
        """The launch that transforms an operand into spectrum ``target``."""
        found: Step = self.maker.transform(self, source, target, aligned, first_image)
        return found

    def inverse(self, images: int, aligned: int, first_image: int = 0, part: int = 0) -> Step:
        """The launch that transforms the product back."""
        found: Step = self.maker.inverse(self, self.target(images, part), aligned, first_image)
        return found

    def _product(self, images: int) -> Step:
        found: Step = (conv2d_pointwise if self.pointwise else self.maker).product(self, images)
        return found

    def _groups(self) -> Iterator[tuple[int, int]]:
        """First image and number of images of each group."""
        total = self.geometry.x_shape[0]
        for start in range(0, total, self.images):
            yield start, min(self.images, total - start)

    def steps(self, aligned: Alignment = WHOLE, kept: Kept = NONE) -> list[Step]:
        """All launches; ``kept``: operands ("x", "w", "dy") whose spectra are there already.

        Of "x" and "dy" they are, then, of all images at once.
        """
        parts = range(self.part_count)
        if self.fused and self.which != "weight_gradient":
            return [conv2d_half.convolution(self, aligned)]
        if self.which == "weight_gradient":
            return self._steps_over_images(aligned, kept)
        made = [self.transform(self.source_w(part), "B", aligned.w) for part in parts if "w" not in kept]
        forward = self.which == "forward"
        near, far = (aligned.x, aligned.y) if forward else (aligned.y, aligned.x)
        for start, images in self._groups():
            for part in parts if kept.isdisjoint(("x", "dy")) else ():
                source = self.source_x(images, part=part) if forward else self.source_dy(images, part)
                made.append(self.transform(source, "A", near, start))
            made += [self._product(images), self.inverse(images, far, start)]
        return made

    def _steps_over_images(self, aligned: Alignment, kept: Kept) -> list[Step]:
        made, parts, total = [], range(self.part_count), self.geometry.x_shape[0]
        if self.fused:
            return [conv2d_half.correlation(self, aligned), self.inverse(total, aligned.w)]
        for start, images in self._groups():
            if "dy" not in kept:
                made.append(self.transform(self.source_dy(images), "A", aligned.y, start))
            if "x" not in kept:
                sources = (self.source_x(images, part=part) for part in parts)
                made += [self.transform(source, "B", aligned.x, start) for source in sources]
            order = {"first": start == 0, "last": start + images == total}
            maker = conv2d_pointwise if self.pointwise else self.maker
            made += [maker.product_over_images(self, images, part, **order) for part in parts]
        return made + [self.inverse(total, aligned.w, part=part) for part in parts]


@lru_cache(maxsize=4096)
def _words(plan: Plan, images: int) -> tuple[int, int, int, int]:
    g, parts = plan.geometry, plan.part_count
    inputs, outputs = padded(g.inputs, plan.multiple), padded(g.outputs, plan.multiple)
    rows = images * plan.tiles * g.groups
    if plan.which == "forward":
        sizes = rows * parts * inputs, g.w_shape[0] * parts * inputs, rows * outputs
    elif plan.which == "input_gradient":
        sizes = rows * parts * outputs, g.w_shape[0] * parts * inputs, rows * inputs
    else:
        sizes = rows * outputs, rows * parts * inputs, parts * g.w_shape[0] * inputs
    first, second, product = (plan.points * plan.point_words * size for size in sizes)
    maker = conv2d_pointwise if plan.pointwise else plan.maker
    return first, second, product, parts * maker.gradient_sums(plan)


def can_fuse(plan: Plan) -> bool:
    """Whether a warp can keep a channel's spectra to itself: depthwise layers in half precision."""
    single = plan.dtype == "fp32" or plan.part_count > 1
    return plan.pointwise and not single and map_correlation.fits(*plan.tile)


def part_taps(geometry: Geometry, parts: Pair) -> Pair:
    """Taps of a part of the filter, along both axes."""
    kh, kw = geometry.w_shape[2:]
    return -(-kh // parts[0]), -(-kw // parts[1])


def candidates(geometry: Geometry, which: str) -> list[tuple[Axis, Axis, Pair]]:
    """All tilings of a pass, with the parts of the filter along both axes."""
    down, across = (_axis_candidates(geometry, which, i) for i in range(2))
    return [
        (d, a, (m, n)) for m, d in down for n, a in across if d.size * a.size <= map_transform.MOST_POINTS
    ]


def _axis_candidates(geometry: Geometry, which: str, i: int) -> list[tuple[int, Axis]]:
    n, dense, before = geometry.x_shape[2 + i], geometry.dense[i], geometry.before[i]
    taps, dilation, largest = geometry.w_shape[2 + i], geometry.dilation[i], max(map_transform.SIZES)
    most = (largest - 1) // dilation + 1  # taps of a part
    fewest = -(-taps // most)
    found = []
    for parts in range(fewest, min(fewest + MORE_PARTS, taps) + 1 if fewest > 1 else 2):
        span = dilation * (-(-taps // parts) - 1) + 1
        if which == "input_gradient":
            low = before - span + 1
            sides = axes(dense, n, span, low, span - 1, wrap=parts == 1)
            if parts == 1:
                sides = [from_start(axis, dense, n, span, low) for axis in sides]
        else:
            sides = axes(n, dense, span, -before, 0, wrap=parts == 1)
        found += [(parts, axis) for axis in sides]
    return found
