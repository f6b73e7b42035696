"""Convolution layers by FFT on the CPU body: values within their derived bound, and counts equal to the closed
forms."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import reference
from costmodel.conv2d_counts import of_steps
from kernels_numba import map_operands, map_transform
from kernels_numba.conv2d_geometry import Geometry
from kernels_numba.conv2d_plan import PASSES, Plan, can_fuse, candidates
from kernels_numba.conv2d_run import poisoned, run_cpu, run_steps
from kernels_numba.conv2d_tiles import axis
from kernels_numba.tile.layout import STORAGE_TYPES

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
        down, across, parts = next(  # the fewest parts of the filter
            way for way in candidates(geometry, self.which) if (way[0].size, way[1].size) == self.tile
        )
        images = self.images or self.x[0]
        return Plan(geometry, self.which, self.dtype, down, across, images, parts=parts)

    @property
    def terms(self) -> int:
        """Products of spectra that are added up."""
        if self.which == "weight_gradient":
            return self.x[0] * self.plan.tiles
        return self.plan.contraction[1]

    def data(self) -> dict[str, NDArray]:
        draw, geometry = np.random.default_rng(self.seed), self.geometry
        shapes = {"x": geometry.x_shape, "w": geometry.w_shape, "dy": geometry.y_shape}
        return {
            name: draw.standard_normal(shapes[name]).astype(STORAGE_TYPES[self.dtype])
            for name in OPERANDS[self.which]
        }


def exact(which: str, data: dict[str, NDArray], geometry: Geometry, layer: dict[str, Any]) -> NDArray:
    if which == "forward":
        return reference.conv2d(data["x"], data["w"], **layer)
    if which == "input_gradient":
        return reference.conv2d_input_gradient(data["dy"], data["w"], size=geometry.x_shape[2:], **layer)
    return reference.conv2d_weight_gradient(data["dy"], data["x"], size=geometry.w_shape[2:], **layer)


def check(case: Case, got: NDArray, result: NDArray, data: dict[str, NDArray]) -> None:
    """Within the bound; where every result is a sum of zeros, zeros."""
    if not result.any():
        assert not got.any()
        return
    a, b = (data[name] for name in OPERANDS[case.which])
    held: dict[str, Any] = {"which": case.which, "dtype": case.dtype, "groups": case.groups}
    reference.check_conv2d(got, result, a, b, terms=case.terms, **held)


def assert_right(case: Case) -> None:
    """In several launches, and in one where that can be."""
    whole, data = case.plan, case.data()
    result = exact(case.which, data, case.geometry, case.layer)
    for plan in (whole, replace(whole, fused=True, images=case.x[0])) if can_fuse(whole) else (whole,):
        got, counters, _ = run_cpu(plan, data, result.shape)
        check(case, got, result, data)
        found, expected = vars(of_steps(plan.steps())), counters.as_dict()
        assert found == {name: expected[name] for name in found}
        assert not any(value for name, value in expected.items() if name not in found)
        assert plan.launches() == len(plan.steps())


TILES = [(r, c) for r, c in np.ndindex(4, 4) if (r, c) != (0, 0)]


def spectrum_of(words: NDArray[np.int32], plan: Plan, dtype: str) -> NDArray[np.complex128]:
    """[R, C / 2, channels] by frequency (p + 1/2, q + 1/2), from the words [F, channels] of one tile."""
    rows, columns = plan.tile
    slices = map_transform.slices(rows, columns)
    parts = words.view(STORAGE_TYPES[dtype]).astype(float).reshape(*words.shape, 2)
    values = (parts[..., 0] + 1j * parts[..., 1]).reshape(
        slices, rows // 8, columns // 16 // slices, 2, 8, 4, -1
    )  # slice, row group, column tile, e, g, t
    values = values.transpose(1, 4, 0, 2, 5, 3, 6).reshape(rows, columns // 2, -1)
    return np.concatenate([values[: rows // 2], values[: rows // 2 - 1 : -1]])


@pytest.mark.parametrize("place", TILES, ids=lambda place: "x".join(str(16 * (i + 1)) for i in place))
def test_transforms_of_every_tile(place: tuple[int, int]) -> None:
    """The spectrum is the half-step transform, and transformed back it is the map."""
    rows, columns = (16 * (i + 1) for i in place)
    geometry = Geometry.of((1, 2, rows - 1, columns - 2), (1, 2, 1, 1), padding=(1, 2))
    down, across = axis(rows, rows - 1, rows, 1, -1, 0), axis(columns, columns - 2, columns, 1, -2, 0)
    assert down is not None and across is not None
    plan = Plan(geometry, "input_gradient", "fp16", down, across, 1)
    draw = np.random.default_rng(rows * columns)
    x = draw.standard_normal(geometry.x_shape).astype(np.float16)
    halves = {"x": x.reshape(-1).view(np.int16).copy(), "A": poisoned(2 * plan.points * 4)}
    forward = plan.transform(plan.source_x(1), "A", 1)
    run_steps([forward], "fp16", halves)
    words = halves["A"].view(np.int32).reshape(plan.points, 4)
    assert not words[:, 2:].any()  # channels that fill up the four
    tile = np.zeros((2, rows, columns))
    tile[:, 1:, 2:] = x[0]
    r, c = np.arange(rows), np.arange(columns)
    f = [np.exp(-2j * np.pi * np.outer(n + 0.5, n) / n.size) for n in (r, c)]
    scale = np.prod([map_operands.scale(n, "signal", "fp16") for n in (rows, columns)])
    exact = scale * np.einsum("pr,nrc,qc->pqn", f[0], tile, f[1][: columns // 2])
    found = spectrum_of(np.ascontiguousarray(words[:, :2]), plan, "fp16")
    # Four of the roundings of a layer, and all of them in one element.
    bound = reference.conv2d_bound("fp16", coherent=True) * np.abs(exact).max()
    assert np.abs(found - exact).max() < bound
    assert np.linalg.norm(found - exact) < reference.conv2d_bound("fp16") * np.linalg.norm(exact)
    # Back: one operand only, so its scale alone is undone.
    halves |= {"P": halves["A"], "out": poisoned(x.size)}
    inverse = plan.inverse(1, 1)
    whole = {**inverse.values, "factor": 2 / (scale**2 * rows * columns)}
    run_steps([replace(inverse, values=whole)], "fp16", halves)
    back = halves["out"].view(np.float16).reshape(2, rows - 1, columns - 2).astype(float)
    assert np.linalg.norm(back - np.roll(tile, (0, 0), (1, 2))[:, : rows - 1, : columns - 2]) < (
        reference.conv2d_bound("fp16") * np.linalg.norm(x.astype(float))
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Layers in tiles of 16 x 16, most of them a few tiles; primes, even and odd filters, filters larger than the
    map."""
    groups = draw(st.sampled_from((1, 1, 2)))
    taps = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    dilation = tuple(draw(st.integers(1, 1 if k > 5 else 2)) for k in taps)
    span = [d * (k - 1) + 1 for d, k in zip(dilation, taps, strict=True)]
    padding = tuple(draw(st.integers(0, k)) for k in span)
    sizes = [draw(st.integers(max(1, k - 2 * p), 23)) for k, p in zip(span, padding, strict=True)]
    return Case(
        (draw(st.integers(1, 2)), groups * draw(st.integers(1, 2)), *sizes),  # type: ignore[arg-type]
        groups * draw(st.integers(1, 2)),
        taps,
        draw(st.sampled_from(PASSES)),
        dtype=draw(st.sampled_from(("fp16", "bf16", "fp32"))),
        stride=draw(st.sampled_from(((1, 1), (1, 1), (2, 1), (3, 2)))),
        padding=padding,
        dilation=dilation,  # type: ignore[arg-type]
        groups=groups,
        seed=draw(st.integers(0, 99)),
    )


@settings(max_examples=1 if settings().max_examples <= 50 else settings().max_examples // 20)
@given(cases())
@example(Case((1, 1, 3, 4), 1, (2, 5), padding=(20, 1)))  # tiles with nothing but zeros
@example(Case((2, 3, 13, 15), 6, (3, 5), padding=(1, 2)))
@example(Case((1, 4, 11, 13), 4, (4, 3), "input_gradient", padding=(2, 1), dilation=(2, 2), groups=2))
@example(Case((2, 2, 9, 20), 3, (3, 4), "weight_gradient", stride=(2, 2), dtype="bf16"))
@example(Case((3, 2, 7, 3), 2, (9, 5), "weight_gradient", padding=(5, 2)))
@example(Case((3, 1, 1, 9), 2, (1, 5), images=2))
@example(Case((1, 1, 1, 1), 1, (1, 1), stride=(3, 2), padding=(0, 1)))  # every result is of zeros
@example(Case((3, 2, 9, 8), 5, (2, 3), "weight_gradient", images=2))
@example(Case((2, 5, 13, 15), 5, (3, 5), padding=(1, 2), groups=5))  # depthwise
@example(Case((2, 3, 9, 20), 3, (3, 4), "input_gradient", stride=(2, 2), groups=3, dtype="fp32"))
@example(Case((3, 3, 9, 20), 3, (3, 4), "weight_gradient", groups=3, dilation=(2, 1), images=1))
@example(Case((3, 2, 9, 8), 2, (2, 3), "weight_gradient", groups=2, images=2, dtype="fp32"))
@example(Case((1, 2, 3, 68), 2, (2, 66), groups=2, tile=(16, 64), dtype="bf16"))
@example(Case((2, 2, 3, 68), 2, (2, 66), "weight_gradient", groups=2, tile=(16, 64), dtype="fp32"))
@example(Case((2, 3, 13, 15), 6, (3, 5), padding=(1, 2), dtype="fp32"))
@example(
    Case((1, 4, 11, 13), 4, (4, 3), "input_gradient", padding=(2, 1), dilation=(2, 2), groups=2, dtype="fp32")
)
@example(Case((3, 2, 9, 20), 3, (3, 4), "weight_gradient", stride=(2, 2), dtype="fp32", images=2))
@example(Case((1, 3, 66, 4), 2, (66, 3), padding=(1, 1), tile=(64, 16)))  # a filter in parts
@example(Case((1, 2, 3, 70), 2, (2, 66), "input_gradient", tile=(16, 64), dtype="fp32"))
@example(Case((2, 2, 3, 68), 2, (2, 66), "weight_gradient", groups=2, tile=(16, 64), images=1))
def test_passes_are_right_and_counted(case: Case) -> None:
    assert_right(case)
