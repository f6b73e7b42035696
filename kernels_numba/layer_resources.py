"""Which kernels of convolution layers stand in the table of resources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kernels_numba import spectral_pointwise
from kernels_numba.conv2d_dispatch import plans
from kernels_numba.conv2d_geometry import Geometry


def layer_kernels() -> Iterator[tuple[Any, Any]]:
    """Convolution layers: all passes in whole maps of 32 x 32, one in bf16, transforms of 64 x 64, and dilated taps.

    The gradient of the weights with images in groups too; and fp32: all of these but the dilated taps. All passes of a
    depthwise layer in half precision, and products of such layers where spectra are kept.
    """
    found: dict[Any, Any] = {}
    for size, which, dtype, dilation in (
        (32, "forward", "fp16", 1),
        (32, "input_gradient", "fp16", 1),
        (32, "weight_gradient", "fp16", 1),
        (32, "forward", "bf16", 1),
        (64, "forward", "fp16", 2),
        (32, "forward", "fp32", 1),
        (32, "input_gradient", "fp32", 1),
        (32, "weight_gradient", "fp32", 1),
        (64, "forward", "fp32", 1),
    ):
        geometry = Geometry.of((128, 96, size, size), (96, 96, 7, 7), dilation=dilation)
        (plan,) = plans(geometry, which, dtype, tile=(size, size))
        if which == "weight_gradient":
            for step in replace(plan, images=64).steps():
                found[step.spec] = step.family
        for step in plan.steps():
            found[step.spec] = step.family
    depthwise = Geometry.of((128, 96, 32, 32), (96, 1, 7, 7), groups=96)
    for which in ("forward", "input_gradient", "weight_gradient"):
        (plan,) = plans(depthwise, which, "fp16", tile=(32, 32))
        for step in plan.steps():
            found[step.spec] = step.family
    for dtype in ("fp16", "fp32"):
        found[spectral_pointwise.Spec(dtype, conjugate="right")] = spectral_pointwise
        found[spectral_pointwise.Spec(dtype, True, "left")] = spectral_pointwise
    for spec, family in found.items():
        yield family, spec
