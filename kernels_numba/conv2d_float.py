"""The launches of a pass in fp32, on ordinary cores; as `conv2d_half`, function by function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels_numba import float_map_inverse, float_map_transform, float_spectral_product
from kernels_numba.conv2d_geometry import Pair
from kernels_numba.conv2d_steps import Ref, Source, Step, Target, contracted, padded

if TYPE_CHECKING:
    from kernels_numba.conv2d_plan import Plan

BLOCK_BYTES = 75 * 1024
"""Shared memory of a block of transforms: three blocks on an SM of 227 KiB,"""
LARGE_BLOCK_BYTES = 150 * 1024
"""or one, where registers leave no room for more."""
HALVES = 4
"""Of a point, which products copy as halves."""
TILES: dict[int, tuple[Pair, ...]] = {32: ((64, 32), (32, 32)), 64: ((96, 48), (64, 32), (32, 32))}
"""By rows of a block's tile of a product, columns of it and of a warp's."""
FEW_COLUMNS = 16
"""Where there are no more of them than so many, a block takes so many: fewer products, though more words for each."""


def _channels(plan: Plan, slots: int, width: int) -> int:
    """Maps of a block of transforms: a warp's lanes times some number read and write 16, 8 or 4 side by side."""
    rows, half = plan.tile[0], plan.tile[1] // 2
    most = LARGE_BLOCK_BYTES if max(rows, half) > 32 else BLOCK_BYTES
    found = 16
    while found > 4 and (8 * found * (rows * width + 1) > min(most, plan.shared_limit) or found >= 2 * slots):
        found //= 2
    return found


def _warps(channels: int, *columns: int) -> int:
    """Warps of a block: as many as have something to do, eight at most."""
    return min(8, channels * max(columns) // 32)


def transform(plan: Plan, source: Source, target: str, aligned: int, first_image: int) -> Step:
    """Transform an operand, or the part of it that a part of the filter sees, into spectrum ``target``."""
    rows, columns = plan.tile
    seen_rows, seen_columns = (
        min(-(-min(n, s - first) // 8) * 8, size)
        for n, s, first, size in zip(source.extent, source.dense, source.first, plan.tile, strict=True)
    )
    width = min(seen_columns, columns // 2)
    channels = _channels(plan, source.slots, width)
    spec = float_map_transform.Spec(
        rows,
        columns,
        seen_rows,
        seen_columns,
        source.spread != (1, 1),
        channels,
        _warps(channels, rows, width),
    )
    blocks = -(-source.slots // channels)
    step = (plan.down.step, plan.across.step)
    values = dict(source.values(step, first_image, blocks), spectrum=Ref(target, 2 * source.first_slot))
    return Step(float_map_transform, spec, source.rows * blocks, values)


def _shape(m: int, n: int) -> tuple[int, int, int]:
    """Rows and columns of a block's tile of a product, and columns of a warp's."""
    rows = 32 if m <= 32 else 64
    if n <= FEW_COLUMNS:
        return rows, FEW_COLUMNS, FEW_COLUMNS
    return rows, *min(TILES[rows], key=lambda c: (-(-n // c[0]) * c[0], -c[0]))


def product(plan: Plan, images: int) -> Step:
    """Multiply the spectra at every frequency, over channels."""
    g = plan.geometry
    across = plan.which == "input_gradient"
    m, (n, depth) = images * plan.tiles, plan.contraction
    rows, columns, warp_columns = _shape(m, n)
    deep, conjugate = ("x", "") if across else ("xw", "right")
    spec = float_spectral_product.Spec(deep, conjugate, rows, columns, warp_columns)
    row_blocks, column_blocks = -(-m // rows), -(-n // columns)
    values = dict(
        x=Ref("A"), w=Ref("B"), y=Ref("P"), m=m, n=n, groups=g.groups,
        row_blocks=row_blocks, column_blocks=column_blocks,
        x_stride=g.groups * depth, x_group=depth, x_frequency=m * g.groups * depth,
        y_stride=g.groups * padded(n), y_group=padded(n), y_frequency=m * g.groups * padded(n),
        **contracted(plan, 1),
    )  # fmt: skip
    return Step(float_spectral_product, spec, plan.points * g.groups * row_blocks * column_blocks, values)


def product_over_images(plan: Plan, images: int, part: int, *, first: bool, last: bool) -> Step:
    """Multiply the spectra at every frequency, over images and tiles, for one part of the filter."""
    g = plan.geometry
    inputs, outputs = padded(g.inputs), padded(g.outputs)
    all_inputs = plan.part_count * inputs
    rows, columns, warp_columns = _shape(g.outputs, g.inputs)
    spec = float_spectral_product.Spec("", "left", rows, columns, warp_columns, accumulate=not first)
    row_blocks, column_blocks = -(-g.outputs // rows), -(-g.inputs // columns)
    m = images * plan.tiles
    values = dict(
        x=Ref("A"), w=Ref("B", HALVES * part * inputs),
        y=Ref("P", 2 * part * plan.points * g.w_shape[0] * inputs),
        m=g.outputs, n=g.inputs, k=m, groups=g.groups,
        row_blocks=row_blocks, column_blocks=column_blocks,
        x_stride=g.groups * outputs, w_stride=g.groups * all_inputs, y_stride=inputs,
        x_group=outputs, w_group=all_inputs, y_group=g.outputs * inputs,
        x_frequency=m * g.groups * outputs, w_frequency=m * g.groups * all_inputs,
        y_frequency=g.w_shape[0] * inputs, parts=1, w_rows=m, w_part=0,
    )  # fmt: skip
    return Step(float_spectral_product, spec, plan.points * g.groups * row_blocks * column_blocks, values)


def gradient_sums(plan: Plan) -> int:
    """Sums that a group of images leaves to the next: none beside the product itself, which is in fp32."""
    return 0


def inverse(plan: Plan, target: Target, aligned: int, first_image: int) -> Step:
    """Transform the product back, into images or a part of the filters."""
    rows, columns = plan.tile
    channels = _channels(plan, target.slots, columns // 2)
    spec = float_map_inverse.Spec(
        rows, columns, target.spread != (1, 1), channels, _warps(channels, rows, columns // 2)
    )
    blocks = -(-target.slots // channels)
    values = dict(
        target.values(first_image, blocks),
        spectrum=Ref("P", 2 * target.first_point),
        factor=2.0 / (rows * columns),
        skip_down=target.skip[0],
        skip_across=target.skip[1],
    )
    return Step(float_map_inverse, spec, target.maps * blocks, values)
