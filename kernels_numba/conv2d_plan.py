"""From a convolution layer to the launches that compute one of its passes by FFT.

Three passes, each of three or four launches: transform both operands (`map_transform`), multiply at every frequency
(`spectral_product`, `spectral_gradient`), transform back and crop (`map_inverse`).

=================  =======================  ===============================  ==========================
pass               first operand            second operand                   product
=================  =======================  ===============================  ==========================
"forward"          x, tiles                 w, a row for each output         x conj(w), over inputs
"input_gradient"   dy, tiles                w, a row for each input          dy w, over outputs
"weight_gradient"  dy, blocks of the tiles  x, tiles as in the forward pass  conj(dy) x, over images, tiles
=================  =======================  ===============================  ==========================

A :class:`Plan` says how large everything is before anything is allocated; images go in groups if a limit asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from kernels_numba import map_inverse, map_operands, map_transform, spectral_gradient, spectral_product
from kernels_numba.conv2d_geometry import Geometry, Pair
from kernels_numba.conv2d_steps import WHOLE, Alignment, Constants, Ref, Source, Step, padded
from kernels_numba.conv2d_tiles import Axis, axes
from kernels_numba.map_operands import FILTER, SIGNAL

PASSES = ("forward", "input_gradient", "weight_gradient")
BLOCK_BYTES = 113 * 1024
"""Shared memory of a block of transforms, where the least number of channels allows: two blocks on an SM of 227 KiB."""
PRODUCT_COLUMNS: dict[int, tuple[Pair, ...]] = {
    16: ((96, 48), (64, 32), (32, 16)),
    32: ((96, 48), (64, 32), (32, 16)),
    64: ((96, 48), (64, 32), (32, 32), (16, 16)),
}
"""By rows of a block's tile of a product, columns of it and of a warp's; two warps at least."""


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

    def words(self, images: int) -> dict[str, int]:
        """Words of each spectrum for a number of images, by name: of the operands "A" and "B", of the product "P"."""
        return dict(zip("ABP", _words(self, images), strict=True))

    @property
    def bytes(self) -> int:
        """Device memory of the spectra that are held at once."""
        return 4 * sum(self.words(self.images).values())

    @cached_property
    def kinds(self) -> tuple[str, str]:
        """How the spectra of the operands are scaled."""
        return (FILTER, SIGNAL) if self.which == "weight_gradient" else (SIGNAL, FILTER)

    @property
    def factor(self) -> float:
        """What results are multiplied by."""
        return map_operands.result_scale(*self.tile, self.kinds, self.dtype)

    # ---- operands ----------------------------------------------------------------------------------------
    def _image(self, name: str, shape: tuple[int, ...], channels: int, images: int, **other: Any) -> Source:
        _, _, height, width = shape
        size = height * width
        return Source(
            name,
            (height, width),
            images=images,
            per_group=max(images, 1),
            group_stride=0,
            image_stride=shape[1] * size,
            channel_stride=size,
            groups=self.geometry.groups,
            channels=channels,
            tiles=(self.down.count, self.across.count),
            **other,
        )

    def source_x(self, images: int, kind: str = SIGNAL) -> Source:
        """The input's tiles."""
        g, pair = self.geometry, (self.down, self.across)
        return self._image(
            "x", g.x_shape, g.inputs, images, spread=(1, 1), kind=kind,
            first=tuple(a.first for a in pair), extent=self.tile,
        )  # fmt: skip

    def source_dy(self, images: int) -> Source:
        """Tiles of the gradient in y, or, to contract images, the blocks of it that belong to the tiles of x."""
        g, pair = self.geometry, (self.down, self.across)
        blocks = self.which == "weight_gradient"
        return self._image(
            "dy", g.y_shape, g.outputs, images, spread=g.stride, kind=FILTER if blocks else SIGNAL,
            first=(0, 0) if blocks else tuple(a.first for a in pair),
            extent=tuple(min(a.step, a.size) for a in pair) if blocks else self.tile,
        )  # fmt: skip

    def source_w(self) -> Source:
        """The filters, a row for each output or, for the gradient of the input, for each input."""
        g = self.geometry
        kh, kw = g.w_shape[2:]
        taps, inputs, outputs = kh * kw, g.inputs, g.outputs
        backwards = self.which == "input_gradient"
        return Source(
            "w",
            (kh, kw),
            spread=g.dilation,
            images=g.x_shape[1] if backwards else g.w_shape[0],
            per_group=inputs if backwards else g.w_shape[0],
            group_stride=outputs * inputs * taps if backwards else 0,
            image_stride=taps if backwards else inputs * taps,
            channel_stride=inputs * taps if backwards else taps,
            groups=1,
            channels=outputs if backwards else inputs,
            first=(0, 0),
            extent=self.tile,
            tiles=(1, 1),
            kind=FILTER,
        )

    # ---- launches ----------------------------------------------------------------------------------------
    def _channels(self, slots: int, constant_words: int) -> int:
        """Maps of a block of transforms."""
        found = 32
        while found > 4 and (
            4 * (constant_words + self.points * (found + 1)) > min(BLOCK_BYTES, self.shared_limit)
            or found >= 2 * slots
        ):
            found //= 2
        return found

    def _blocks(self, halves: int) -> int:
        """Blocks of eight warps per SM that the compiler leaves registers for; a few spills weigh less than one."""
        if self.tile[0] * self.tile[1] > 1024:
            return 1
        return 3 if halves > 1 else 2

    def transform(self, source: Source, target: str, aligned: int, first_image: int = 0) -> Step:
        """The launch that transforms an operand into spectrum ``target``."""
        (rows, columns), (height, width) = self.tile, source.shape
        (down, across), (tiles_down, tiles_across) = source.spread, source.tiles
        spread = source.spread != (1, 1)
        step = (self.down.step, self.across.step)
        halves = 8
        seen_rows, seen_columns = (
            min(-(-min(n, s - first) // 16) * 16, size)
            for n, s, first, size in zip(source.extent, source.dense, source.first, self.tile, strict=True)
        )
        places = [width, height * width, source.first[1], seen_columns // 4, source.extent[1]]
        places += [step[1]] if tiles_across > 1 else []
        while halves > 1 and (halves > aligned or any(p % halves for p in places)):
            halves //= 2
        halves = 1 if spread else halves
        channels = self._channels(source.slots, (rows * seen_rows + columns * seen_columns) // 2)
        spec = map_transform.Spec(
            rows, columns, self.dtype, seen_rows, seen_columns, halves, spread, channels,
            warps=min(8, channels), blocks=self._blocks(halves),
        )  # fmt: skip
        blocks = -(-source.slots // channels)
        values = dict(
            x=Ref(source.name, first_image * source.image_stride),
            words=Constants(
                map_operands.forward,
                (rows, columns, (seen_rows, seen_columns), spec.slices, source.kind, self.dtype),
            ),
            spectrum=Ref(target),
            maps=source.rows,
            tiles_down=tiles_down,
            tiles_across=tiles_across,
            images=source.per_group,
            group_stride=source.group_stride,
            image_stride=source.image_stride,
            channel_stride=source.channel_stride,
            row_pitch=width,
            height=source.dense[0],
            width=source.dense[1],
            first_row=source.first[0],
            first_column=source.first[1],
            step_down=step[0],
            step_across=step[1],
            extent_down=source.extent[0],
            extent_across=source.extent[1],
            down=down,
            across=across,
            real_channels=source.channels,
            padded_channels=padded(source.channels),
            all_channels=source.slots,
            channel_blocks=blocks,
        )
        return Step(map_transform, spec, source.rows * blocks, values)

    def product(self, images: int) -> Step:
        """The launch that multiplies the spectra at every frequency."""
        if self.which == "weight_gradient":
            return self._product_over_images(images)
        g = self.geometry
        inputs, outputs = padded(g.inputs), padded(g.outputs)
        m = images * self.tiles
        backwards = self.which == "input_gradient"
        n, k, rows_of_w = (
            (g.inputs, outputs, g.x_shape[1]) if backwards else (g.outputs, inputs, g.w_shape[0])
        )
        rows = next((r for r in PRODUCT_COLUMNS if m <= r), max(PRODUCT_COLUMNS))
        columns, warp_columns = min(PRODUCT_COLUMNS[rows], key=lambda c: (-(-n // c[0]) * c[0], -c[0]))
        spec = spectral_product.Spec(
            self.dtype, not backwards, rows, columns, warp_rows=min(rows, 32), warp_columns=warp_columns
        )
        row_blocks, column_blocks = -(-m // spec.rows), -(-n // columns)
        values = dict(
            x=Ref("A"), w=Ref("B"), y=Ref("P"), m=m, n=n, k=2 * k, groups=g.groups,
            row_blocks=row_blocks, column_blocks=column_blocks,
            x_stride=2 * g.groups * k, w_stride=2 * k, y_stride=g.groups * padded(n),
            x_group=2 * k, w_group=2 * n * k, y_group=padded(n),
            x_frequency=2 * m * g.groups * k, w_frequency=2 * rows_of_w * k,
            y_frequency=m * g.groups * padded(n),
        )  # fmt: skip
        return Step(spectral_product, spec, self.points * g.groups * row_blocks * column_blocks, values)

    def _product_over_images(self, images: int) -> Step:
        g = self.geometry
        inputs, outputs = padded(g.inputs), padded(g.outputs)
        m = images * self.tiles
        sizes = sorted({rows for rows, _ in spectral_gradient.LAYOUTS})
        rows, columns = (
            min(sizes, key=lambda size: (-(-n // size) * size, -size)) for n in (g.outputs, g.inputs)
        )
        row_blocks, column_blocks = -(-g.outputs // rows), -(-g.inputs // columns)
        spec = spectral_gradient.Spec(self.dtype, rows, columns)
        values = dict(
            g=Ref("A"), x=Ref("B"), y=Ref("P"), m=m, rows=g.outputs, columns=g.inputs, groups=g.groups,
            row_blocks=row_blocks, column_blocks=column_blocks,
            g_stride=2 * g.groups * outputs, x_stride=2 * g.groups * inputs, y_stride=inputs,
            g_group=2 * outputs, x_group=2 * inputs, y_group=g.outputs * inputs,
            g_frequency=2 * m * g.groups * outputs, x_frequency=2 * m * g.groups * inputs,
            y_frequency=g.w_shape[0] * inputs,
        )  # fmt: skip
        grid = self.points * g.groups * row_blocks * column_blocks
        return Step(spectral_gradient, spec, grid, values)

    def inverse(self, images: int, aligned: int, first_image: int = 0) -> Step:
        """The launch that transforms the product back."""
        g, (rows, columns) = self.geometry, self.tile
        if self.which == "weight_gradient":
            shape, groups, channels, spread = g.w_shape, 1, g.inputs, g.dilation
            images, tiles, step, skip = g.w_shape[0], (1, 1), g.span, (0, 0)
        else:
            backwards = self.which == "input_gradient"
            shape, channels = (g.x_shape, g.inputs) if backwards else (g.y_shape, g.outputs)
            spread, groups = (1, 1) if backwards else g.stride, g.groups
            tiles = (self.down.count, self.across.count)
            step, skip = (self.down.step, self.across.step), (self.down.skip, self.across.skip)
        wanted_rows, wanted_columns = -(-step[0] // 16) * 16, -(-step[1] // 8) * 8
        if columns % 32 or rows * wanted_columns > map_transform.MOST_REGISTERS:
            wanted_columns = -(-step[1] // 16) * 16
        (_, all_maps, height, width), apart = shape, spread != (1, 1)
        places = [width] + ([step[1]] if tiles[1] > 1 else [])
        halves = 2 if aligned >= 2 and not apart and not any(p % 2 for p in places) else 1
        slots = groups * padded(channels)
        constants = (rows * wanted_rows + columns * wanted_columns) // 2
        per_block = self._channels(slots, constants)
        spec = map_inverse.Spec(
            rows, columns, self.dtype, wanted_rows, wanted_columns, halves, apart, per_block,
            warps=min(8, per_block), blocks=self._blocks(2),
        )  # fmt: skip
        key = (rows, columns, spec.slices, (wanted_rows, wanted_columns), skip, self.dtype)
        blocks, maps = -(-slots // per_block), images * tiles[0] * tiles[1]
        values = dict(
            spectrum=Ref("P"),
            words=Constants(map_operands.inverse, key),
            y=Ref("out", first_image * all_maps * height * width),
            factor=self.factor,
            maps=maps,
            tiles_down=tiles[0],
            tiles_across=tiles[1],
            image_stride=all_maps * height * width,
            channel_stride=height * width,
            row_pitch=width,
            height=(height - 1) * spread[0] + 1,
            width=(width - 1) * spread[1] + 1,
            step_down=step[0],
            step_across=step[1],
            down=spread[0],
            across=spread[1],
            real_channels=channels,
            padded_channels=padded(channels),
            all_channels=slots,
            channel_blocks=blocks,
        )
        return Step(map_inverse, spec, maps * blocks, values)

    def steps(self, aligned: Alignment = WHOLE, *, kept_x: bool = False) -> list[Step]:
        """All launches; ``kept_x``: the spectrum of x is there already (in "B" of the gradient of the weights)."""
        total = self.geometry.x_shape[0]
        if self.which == "weight_gradient":
            made = [self.transform(self.source_dy(total), "A", aligned.y)]
            if not kept_x:
                made.append(self.transform(self.source_x(total), "B", aligned.x))
            return [*made, self.product(total), self.inverse(total, aligned.w)]
        made = [self.transform(self.source_w(), "B", aligned.w)]
        for start in range(0, total, self.images):
            images = min(self.images, total - start)
            source = self.source_x(images) if self.which == "forward" else self.source_dy(images)
            near, far = (aligned.x, aligned.y) if self.which == "forward" else (aligned.y, aligned.x)
            made += [
                self.transform(source, "A", near, start),
                self.product(images),
                self.inverse(images, far, start),
            ]
        return made


@lru_cache(maxsize=4096)
def _words(plan: Plan, images: int) -> tuple[int, int, int]:
    g = plan.geometry
    inputs, outputs = padded(g.inputs), padded(g.outputs)
    rows = images * plan.tiles * g.groups
    if plan.which == "forward":
        sizes = rows * inputs, g.w_shape[0] * inputs, rows * outputs
    elif plan.which == "input_gradient":
        sizes = rows * outputs, g.x_shape[1] * outputs, rows * inputs
    else:
        sizes = rows * outputs, rows * inputs, g.w_shape[0] * inputs
    first, second, product = (plan.points * size for size in sizes)
    return first, second, product


def candidates(geometry: Geometry, which: str) -> list[tuple[Axis, Axis]]:
    """All tilings of a pass."""
    found = []
    for i in range(2):
        n, span, dense = geometry.x_shape[2 + i], geometry.span[i], geometry.dense[i]
        if which == "input_gradient":
            found.append(axes(dense, n, span, geometry.before[i] - span + 1, span - 1))
        else:
            found.append(axes(n, dense, span, -geometry.before[i], 0))
    return [
        (down, across)
        for down in found[0]
        for across in found[1]
        if down.size * across.size <= map_transform.MOST_POINTS
    ]
