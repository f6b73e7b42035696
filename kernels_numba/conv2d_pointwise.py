"""The products of depthwise layers, in any dtype: what takes their place in `conv2d_half` and `conv2d_float`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernels_numba import map_operands, spectral_pointwise
from kernels_numba.conv2d_steps import Ref, Step
from kernels_numba.spectral_pointwise import LANES

if TYPE_CHECKING:
    from kernels_numba.conv2d_plan import Plan


def _step(plan: Plan, spec: spectral_pointwise.Spec, images: int, **values: Any) -> Step:
    channels, m = plan.geometry.groups, images * plan.tiles
    row_blocks = 1 if spec.sums else -(-m // (spec.rows * spec.warps))
    column_blocks = -(-channels // LANES)
    given = dict(
        x=Ref("A"), w=Ref("B"), y=Ref("P"), sums=Ref("P"), m=m, channels=channels,
        row_blocks=row_blocks, column_blocks=column_blocks,
        parts=plan.part_count, all_channels=plan.part_count * channels, first=1, last=1, factor=1.0,
    )  # fmt: skip
    return Step(spectral_pointwise, spec, plan.points * row_blocks * column_blocks, given | values)


def product(plan: Plan, images: int) -> Step:
    """Multiply the spectra, and add up the parts of a filter."""
    conjugate = "right" if plan.which == "forward" else ""
    return _step(plan, spectral_pointwise.Spec(plan.dtype, conjugate=conjugate), images)


def gradient_sums(plan: Plan) -> int:
    """Float32 sums that a group of images leaves to the next, of one part of the filter."""
    if plan.which != "weight_gradient" or plan.batches == 1:
        return 0
    return 2 * plan.points * plan.geometry.groups


def product_over_images(plan: Plan, images: int, part: int, *, first: bool, last: bool) -> Step:
    """Multiply the spectra and add up images and tiles, for one part of the filter."""
    channels, words = plan.geometry.groups, plan.point_words
    spec = spectral_pointwise.Spec(plan.dtype, True, "left", partial=plan.batches > 1)
    return _step(
        plan, spec, images,
        w=Ref("B", words * part * channels), y=Ref("P", words * part * plan.points * channels),
        sums=Ref("S", part * gradient_sums(plan)) if spec.partial else Ref("P"),
        first=int(first), last=int(last),
        factor=1.0 if plan.dtype == "fp32" else map_operands.lift(*plan.tile),
    )  # fmt: skip
