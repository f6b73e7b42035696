"""Convolution layers by FFT on the CPU body: values within their derived bound, and counts equal to the closed
forms."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import reference
from costmodel.conv2d_counts import of_steps
from kernels_numba.conv2d_geometry import Geometry
from kernels_numba.conv2d_plan import PASSES, Plan, candidates
from kernels_numba.conv2d_run import alignment, run_cpu
from kernels_numba.tile.layout import HALF_TYPES

OPERANDS = {"forward": ("x", "w"), "input_gradient": ("dy", "w"), "weight_gradient": ("dy", "x")}


@dataclass(frozen=True)
class Case:
    """A pass of a layer in one tiling, and how its data are made."""

    x: tuple[int, int, int, int]
    outputs: int
    taps: tuple[int, int]
    which: str = "forward"
    tile: tuple[int, int] = (16, 16)
    dtype: str = "fp16"
    stride: tuple[int, int] = (1, 1)
    padding: Any = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    images: int | None = None
    seed: int = 0

    @property
    def geometry(self) -> Geometry:
        w = (self.outputs, self.x[1] // self.groups, *self.taps)
        return Geometry.of(self.x, w, **self.layer)

    @property
    def layer(self) -> dict[str, Any]:
        names = ("stride", "padding", "dilation", "groups")
        return {name: getattr(self, name) for name in names}

    @property
    def plan(self) -> Plan:
        geometry = self.geometry
        tiles = {(d.size, a.size): (d, a) for d, a in candidates(geometry, self.which)}
        return Plan(geometry, self.which, self.dtype, *tiles[self.tile], self.images or self.x[0])

    def data(self) -> dict[str, NDArray]:
        draw, geometry = np.random.default_rng(self.seed), self.geometry
        shapes = {"x": geometry.x_shape, "w": geometry.w_shape, "dy": geometry.y_shape}
        return {
            name: draw.standard_normal(shapes[name]).astype(HALF_TYPES[self.dtype])
            for name in OPERANDS[self.which]
        }


def exact(which: str, data: dict[str, NDArray], geometry: Geometry, layer: dict[str, Any]) -> NDArray:
    if which == "forward":
        return reference.conv2d(data["x"], data["w"], **layer)
    if which == "input_gradient":
        return reference.conv2d_input_gradient(data["dy"], data["w"], size=geometry.x_shape[2:], **layer)
    return reference.conv2d_weight_gradient(data["dy"], data["x"], size=geometry.w_shape[2:], **layer)


def assert_right(case: Case) -> None:
    plan, data = case.plan, case.data()
    result = exact(case.which, data, case.geometry, case.layer)
    got, counters, _ = run_cpu(plan, data, result.shape)
    a, b = (data[name] for name in OPERANDS[case.which])
    reference.check_conv2d(got, result, a, b, which=case.which, dtype=case.dtype, groups=case.groups)
    steps = plan.steps(alignment(data, got))
    found, expected = vars(of_steps(steps)), counters.as_dict()
    assert found == {name: expected[name] for name in found}
    assert not any(value for name, value in expected.items() if name not in found)


LARGER = (
    Case((1, 2, 20, 30), 2, (5, 3), tile=(32, 48)),
    Case((2, 1, 30, 18), 2, (3, 9), "input_gradient", (64, 16), stride=(3, 2), padding=(2, 4)),
    Case((1, 2, 30, 40), 1, (9, 7), "weight_gradient", (48, 32), "bf16", padding=(4, 3)),
)


@pytest.mark.parametrize("case", LARGER, ids=lambda case: f"{case.which}-{case.tile[0]}x{case.tile[1]}")
def test_large_tiles(case: Case) -> None:
    assert_right(case)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Layers in tiles of 16 x 16, most of them a few tiles; primes, even and odd filters, filters larger than the
    map."""
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    taps = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    dilation = tuple(draw(st.integers(1, 1 if k > 5 else 2)) for k in taps)
    span = [d * (k - 1) + 1 for d, k in zip(dilation, taps, strict=True)]
    padding = tuple(draw(st.integers(0, k)) for k in span)
    sizes = [draw(st.integers(max(1, k - 2 * p), 23)) for k, p in zip(span, padding, strict=True)]
    return Case(
        (draw(st.integers(1, 3)), groups * draw(st.integers(1, 2)), *sizes),  # type: ignore[arg-type]
        groups * draw(st.integers(1, 2)),
        taps,
        draw(st.sampled_from(PASSES)),
        dtype=draw(st.sampled_from(("fp16", "bf16"))),
        stride=draw(st.sampled_from(((1, 1), (1, 1), (2, 1), (3, 2)))),
        padding=padding,
        dilation=dilation,  # type: ignore[arg-type]
        groups=groups,
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=5)
@given(cases())
@example(Case((2, 3, 13, 15), 6, (3, 5), padding=(1, 2)))
@example(Case((2, 4, 11, 13), 3, (4, 3), "input_gradient", padding=(2, 1), dilation=(2, 2)))
@example(Case((2, 4, 9, 20), 6, (3, 4), "weight_gradient", stride=(2, 2), groups=2, dtype="bf16"))
@example(Case((1, 1, 1, 1), 1, (1, 1)))
@example(Case((3, 2, 7, 3), 2, (9, 5), "weight_gradient", padding=(5, 2)))
@example(Case((3, 1, 5, 20), 2, (2, 5), images=2))
def test_passes_are_right_and_counted(case: Case) -> None:
    assert_right(case)
