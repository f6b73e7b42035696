"""The launches of a pass in half precision, on tensor cores: transforms, products of spectra, transforms back.

Each function makes one launch of a `conv2d_plan.Plan`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernels_numba import (
    map_convolution,
    map_correlation,
    map_inverse,
    map_operands,
    map_transform,
    spectral_gradient,
    spectral_product,
)
from kernels_numba.conv2d_geometry import Pair
from kernels_numba.conv2d_steps import Alignment, Constants, Ref, Source, Step, Target, contracted, padded
from kernels_numba.map_pieces import Side

if TYPE_CHECKING:
    from kernels_numba.conv2d_plan import Plan

BLOCK_BYTES = 113 * 1024
"""Shared memory of a block of transforms, where the least number of channels allows: two blocks on an SM of 227 KiB."""
DEPTHWISE_WARPS, DEPTHWISE_MAPS, DEPTHWISE_BLOCKS = 8, 2, 1056
"""Of a block that has a channel to itself: its warps, maps of a warp at least, and blocks that a GPU has work with."""
PRODUCT_COLUMNS: dict[int, tuple[Pair, ...]] = {
    16: ((96, 48), (64, 32), (32, 16)),
    32: ((96, 48), (64, 32), (32, 16)),
    64: ((96, 48), (64, 32), (32, 32), (16, 16)),
}
"""By rows of a block's tile of a product, columns of it and of a warp's; two warps at least."""


def _channels(plan: Plan, slots: int, constant_words: int) -> int:
    """Maps of a block of transforms."""
    found = 32
    while found > 4 and (
        4 * (constant_words + plan.points * (found + 1)) > min(BLOCK_BYTES, plan.shared_limit)
        or found >= 2 * slots
    ):
        found //= 2
    return found


def _blocks(plan: Plan, halves: int) -> int:
    """Blocks of eight warps per SM that the compiler leaves registers for; a few spills weigh less than one."""
    if plan.tile[0] * plan.tile[1] > 1024:
        return 1
    return 3 if halves > 1 else 2


def _window(plan: Plan, source: Source, aligned: int) -> Side:
    """How a kernel reads a map of an operand."""
    width, tiles_across = source.shape[1], source.tiles[1]
    spread = source.spread != (1, 1)
    halves = 8
    seen_rows, seen_columns = (
        min(-(-min(n, s - first) // 16) * 16, size)
        for n, s, first, size in zip(source.extent, source.dense, source.first, plan.tile, strict=True)
    )
    places = [source.pitch, source.channel_stride, source.first[1], seen_columns // 4, source.extent[1]]
    places += [source.offset, width]
    places += [plan.across.step] if tiles_across > 1 else []
    while halves > 1 and (halves > aligned or any(p % halves for p in places)):
        halves //= 2
    return Side(seen_rows, seen_columns, 1 if spread else halves, spread)


def _constants(plan: Plan, side: Side, kind: str) -> Constants:
    rows, columns = plan.tile
    seen = (side.seen_rows, side.seen_columns)
    key = (rows, columns, seen, map_transform.slices(rows, columns), kind, plan.dtype)
    return Constants(map_operands.forward, key)


def transform(plan: Plan, source: Source, target: str, aligned: int, first_image: int) -> Step:
    """Transform an operand, or the part of it that a part of the filter sees, into spectrum ``target``."""
    rows, columns = plan.tile
    side = _window(plan, source, aligned)
    channels = _channels(plan, source.slots, side.constant_words(rows, columns))
    spec = map_transform.Spec(
        rows, columns, plan.dtype, side.seen_rows, side.seen_columns, side.halves, side.spread, channels,
        warps=min(8, channels), blocks=_blocks(plan, side.halves),
    )  # fmt: skip
    blocks = -(-source.slots // channels)
    values = dict(
        source.values((plan.down.step, plan.across.step), first_image, blocks),
        words=_constants(plan, side, source.kind),
        spectrum=Ref(target, source.first_slot),
    )
    return Step(map_transform, spec, source.rows * blocks, values)


def _blocks_in_registers(plan: Plan) -> int:
    """Blocks per SM of kernels whose warps keep spectra in registers."""
    return 2 if plan.tile[0] * plan.tile[1] <= 1024 else 1


def chunks(plan: Plan) -> int:
    """Parts of the images and tiles of a depthwise layer's channel, each for a block.

    A warp has some of them at least, and a GPU some blocks for each SM.
    """
    maps = plan.geometry.x_shape[0] * plan.tiles
    return max(
        1, min(-(-maps // (DEPTHWISE_MAPS * DEPTHWISE_WARPS)), -(-DEPTHWISE_BLOCKS // plan.geometry.groups))
    )


def correlation(plan: Plan, aligned: Alignment) -> Step:
    """Transform both operands of a depthwise gradient of the weights, multiply, and add up the maps of each chunk."""
    images = plan.geometry.x_shape[0]
    x, g = plan.source_x(images), plan.source_dy(images)
    sides = _window(plan, x, aligned.x), _window(plan, g, aligned.y)
    spec = map_correlation.Spec(
        *plan.tile, plan.dtype, *sides, warps=DEPTHWISE_WARPS, blocks=_blocks_in_registers(plan)
    )
    values = dict(
        x=Ref("x"), g=Ref("dy"), sums=Ref("S"), maps=x.rows, tiles_down=x.tiles[0], tiles_across=x.tiles[1],
        x_constants=_constants(plan, sides[0], x.kind), g_constants=_constants(plan, sides[1], g.kind),
        channels=plan.geometry.groups, chunks=chunks(plan), step_down=plan.down.step, step_across=plan.across.step,
        x_image=x.image_stride, x_channel=x.channel_stride, x_pitch=x.pitch,
        x_height=x.dense[0], x_width=x.dense[1], x_first_row=x.first[0], x_first_column=x.first[1],
        g_image=g.image_stride, g_channel=g.channel_stride, g_pitch=g.pitch,
        g_height=g.dense[0], g_width=g.dense[1], extent_down=g.extent[0], extent_across=g.extent[1],
        down=g.spread[0], across=g.spread[1],
    )  # fmt: skip
    return Step(map_correlation, spec, plan.geometry.groups * chunks(plan), values)


def product(plan: Plan, images: int) -> Step:
    """Multiply the spectra at every frequency, over channels."""
    g = plan.geometry
    across = plan.which == "input_gradient"
    m, (n, depth) = images * plan.tiles, plan.contraction
    rows = next((r for r in PRODUCT_COLUMNS if m <= r), max(PRODUCT_COLUMNS))
    columns, warp_columns = min(PRODUCT_COLUMNS[rows], key=lambda c: (-(-n // c[0]) * c[0], -c[0]))
    spec = spectral_product.Spec(
        plan.dtype, across, rows, columns, warp_rows=min(rows, 32), warp_columns=warp_columns
    )
    row_blocks, column_blocks = -(-m // spec.rows), -(-n // columns)
    values = dict(
        x=Ref("A"), w=Ref("B"), y=Ref("P"), m=m, n=n, groups=g.groups,
        row_blocks=row_blocks, column_blocks=column_blocks,
        x_stride=2 * g.groups * depth, x_group=2 * depth, x_frequency=2 * m * g.groups * depth,
        y_stride=g.groups * padded(n), y_group=padded(n), y_frequency=m * g.groups * padded(n),
        **contracted(plan, 2),
    )  # fmt: skip
    return Step(spectral_product, spec, plan.points * g.groups * row_blocks * column_blocks, values)


def gradient_sums(plan: Plan) -> int:
    """Float32 sums that a group of images leaves to the next, of one part of the filter."""
    if plan.which != "weight_gradient" or plan.batches == 1:
        return 0
    return 2 * plan.points * plan.geometry.w_shape[0] * padded(plan.geometry.inputs)


def product_over_images(plan: Plan, images: int, part: int, *, first: bool, last: bool) -> Step:
    """Multiply the spectra at every frequency, over images and tiles, for one part of the filter."""
    g = plan.geometry
    inputs, outputs = padded(g.inputs), padded(g.outputs)
    m, all_inputs = images * plan.tiles, plan.part_count * inputs
    sizes = sorted({rows for rows, _ in spectral_gradient.LAYOUTS})
    rows, columns = (
        min(sizes, key=lambda size: (-(-n // size) * size, -size)) for n in (g.outputs, g.inputs)
    )
    spec = spectral_gradient.Spec(plan.dtype, rows, columns, partial=plan.batches > 1)
    row_blocks, column_blocks = -(-g.outputs // rows), -(-g.inputs // columns)
    values = dict(
        g=Ref("A"), x=Ref("B", 2 * part * inputs), y=Ref("P", part * plan.points * g.w_shape[0] * inputs),
        sums=Ref("S", part * gradient_sums(plan)) if spec.partial else Ref("P"),
        m=m, rows=g.outputs, columns=g.inputs, groups=g.groups,
        row_blocks=row_blocks, column_blocks=column_blocks,
        g_stride=2 * g.groups * outputs, x_stride=2 * g.groups * all_inputs, y_stride=inputs,
        g_group=2 * outputs, x_group=2 * all_inputs, y_group=g.outputs * inputs,
        g_frequency=2 * m * g.groups * outputs, x_frequency=2 * m * g.groups * all_inputs,
        y_frequency=g.w_shape[0] * inputs, first=int(first), last=int(last),
        factor=map_operands.lift(*plan.tile),
    )  # fmt: skip
    return Step(spectral_gradient, spec, plan.points * g.groups * row_blocks * column_blocks, values)


@dataclass(frozen=True)
class Back:
    """How a kernel forms the samples of a tile and stores them."""

    rows: int
    columns: int
    halves: int
    spread: bool

    def constants(self, plan: Plan, skip: Pair) -> Constants:
        """Both factors."""
        rows, columns = plan.tile
        strips = map_inverse.strips(rows, columns, self.columns)
        return Constants(
            map_operands.inverse, (rows, columns, strips, (self.rows, self.columns), skip, plan.dtype)
        )


def _back(plan: Plan, target: Target, aligned: int) -> Back:
    rows, columns = plan.tile
    step = target.step
    wanted_rows, wanted_columns = -(-step[0] // 16) * 16, -(-step[1] // 8) * 8
    if columns % 32 or rows * wanted_columns > map_transform.MOST_REGISTERS:
        wanted_columns = -(-step[1] // 16) * 16
    apart = target.spread != (1, 1)
    places = [target.pitch, target.channel_stride, target.offset] + ([step[1]] if target.tiles[1] > 1 else [])
    places += [target.shape[1]]
    halves = 2 if aligned >= 2 and not apart and not any(p % 2 for p in places) else 1
    return Back(wanted_rows, wanted_columns, halves, apart)


def inverse(plan: Plan, target: Target, aligned: int, first_image: int) -> Step:
    """Transform the product back, into images or a part of the filters."""
    rows, columns = plan.tile
    back = _back(plan, target, aligned)
    words = (rows * back.rows + columns * back.columns) // 2
    per_block = DEPTHWISE_WARPS if plan.fused else _channels(plan, target.slots, words)
    spec = map_inverse.Spec(
        rows, columns, plan.dtype, back.rows, back.columns, back.halves, back.spread, per_block,
        warps=min(8, per_block), blocks=_blocks(plan, 2), sums=plan.fused,
    )  # fmt: skip
    blocks = -(-target.slots // per_block)
    values = dict(
        target.values(first_image, blocks),
        spectrum=Ref("S") if plan.fused else Ref("P", 2 * target.first_point),
        words=back.constants(plan, target.skip),
        factor=map_operands.result_scale(*plan.tile, plan.kinds, plan.dtype),
        parts=Ref("S" if plan.fused else "P"),
        chunks=chunks(plan) if plan.fused else 0,
        factor_of_sums=map_operands.lift(*plan.tile),
    )
    return Step(map_inverse, spec, target.maps * blocks, values)


def convolution(plan: Plan, aligned: Alignment) -> Step:
    """A depthwise pass in one launch: the forward one, or the gradient of the input."""
    images, forward = plan.geometry.x_shape[0], plan.which == "forward"
    x = plan.source_x(images) if forward else plan.source_dy(images)
    near, far = (aligned.x, aligned.y) if forward else (aligned.y, aligned.x)
    w, y = plan.source_w(), plan.target(images)
    sides, back = (_window(plan, x, near), _window(plan, w, aligned.w)), _back(plan, y, far)
    spec = map_convolution.Spec(
        *plan.tile, plan.dtype, forward, *sides, back.rows, back.columns, back.halves, back.spread,
        warps=DEPTHWISE_WARPS, blocks=_blocks_in_registers(plan),
    )  # fmt: skip
    height, width = ((n - 1) * s + 1 for n, s in zip(y.shape, y.spread, strict=True))
    values = dict(
        x=Ref(x.name), w=Ref("w"), y=Ref("out"),
        x_constants=_constants(plan, sides[0], x.kind), w_constants=_constants(plan, sides[1], w.kind),
        y_constants=back.constants(plan, y.skip),
        factor=map_operands.result_scale(*plan.tile, plan.kinds, plan.dtype),
        maps=x.rows, tiles_down=x.tiles[0], tiles_across=x.tiles[1],
        channels=plan.geometry.groups, chunks=chunks(plan),
        x_image=x.image_stride, x_channel=x.channel_stride, x_pitch=x.pitch,
        x_height=x.dense[0], x_width=x.dense[1], x_down_by=x.spread[0], x_across_by=x.spread[1],
        first_row=x.first[0], first_column=x.first[1], step_down=y.step[0], step_across=y.step[1],
        w_channel=w.channel_stride, w_pitch=w.pitch, w_height=w.dense[0], w_width=w.dense[1],
        w_down_by=w.spread[0], w_across_by=w.spread[1],
        y_image=y.image_stride, y_channel=y.channel_stride, y_pitch=y.pitch, y_height=height, y_width=width,
        y_down_by=y.spread[0], y_across_by=y.spread[1],
    )  # fmt: skip
    return Step(map_convolution, spec, plan.geometry.groups * chunks(plan), values)
