"""Predictions of convolution layers beside measurements: every pass by FFT, in the tiles that were measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel import conv2d, measurements
from costmodel.compare import Comparison, Pair
from costmodel.cross_validation import Problem
from costmodel.gpus import GPU, load
from costmodel.measure_conv2d import BACKWARD
from costmodel.measurements import Row

KEPT = "kept"
"""Rows of gradients with spectra of x and w that were there already, and of passes that kept them."""
JUDGED = ("", KEPT, "depthwise")
"""Variants of ours that are predicted: not the host's time of a call."""


@dataclass(frozen=True)
class Tiles:
    """How a row was measured: rows and columns of a tile."""

    tile: tuple[int, int]

    def __str__(self) -> str:
        return f"fft {self.tile[0]}x{self.tile[1]}"


def costs_of(row: Row) -> tuple[Tiles, list[Any]]:
    """The tiles that a row's note names, and what its launches do.

    Raises:
        ValueError: a note without tiles, or tiles that the layer does not have.
    """
    from kernels_numba.conv2d_dispatch import costs, plans
    from kernels_numba.conv2d_geometry import Geometry
    from kernels_numba.conv2d_plan import NONE
    from kernels_numba.conv2d_shared import Gradients, W, X

    named = re.match(r"tiles (\d+)x(\d+)\b", row.note)
    if not named:
        raise ValueError(
            f"{row.case}: note: got {row.note!r}; accepted: one that begins with tiles, such as 32x32"
        )
    tile, case = (int(named[1]), int(named[2])), row.case_values
    batch, inputs, outputs, size, taps = (int(case[key]) for key in ("S", "Cin", "Cout", "n", "k"))
    named = re.search(r"groups = (\d+)", row.note)
    groups = int(named[1]) if named else 1
    geometry = Geometry.of(
        (batch, inputs, size, size), (outputs, inputs // groups, taps, taps), groups=groups
    )
    named = re.search(r"filter in (\d+)x(\d+) parts", row.note)
    parts = (int(named[1]), int(named[2])) if named else (1, 1)
    kept, fused = row.provider_variant == KEPT, "MB of sums" in row.note
    if case["pass"] != BACKWARD:
        which = conv2d.PASSES[str(case["pass"])]
        (plan,) = plans(geometry, which, row.dtype, tile=tile, parts=parts, fused=fused)
        given = {"bprop": W, "accgrad": X}.get(str(case["pass"]), NONE) if kept else NONE
        return Tiles(tile), costs(plan, given)
    named = re.search(r"gradient of w in tiles (\d+)x(\d+)", row.note)
    second = (int(named[1]), int(named[2])) if named else tile
    (first,) = plans(geometry, "input_gradient", row.dtype, tile=tile, parts=parts, fused=fused)
    (last,) = plans(geometry, "weight_gradient", row.dtype, tile=second, parts=parts, fused=fused)
    return Tiles(tile), Gradients(first, last).costs(kept=kept)


def compare(gpu: str | GPU, *, folder: Path | None = None) -> Comparison:
    """Predictions beside every measured row of ours on one GPU."""
    chosen = load(gpu)
    return judge(measurements.read(chosen.slug, op="conv2d", folder=folder), chosen)


def judge(rows: Sequence[Row], gpu: GPU) -> Comparison:
    """Predictions beside those of ``rows`` that are ours."""
    rates = conv2d.rates(gpu)
    spread = conv2d.relative_error(gpu)
    pairs = []
    for row in rows:
        if row.ours and row.provider_variant in JUDGED:
            tiles, launches = costs_of(row)
            us = 1e6 * sum(cost.seconds(rates) for cost in launches)
            longest = max(launches, key=lambda cost: cost.seconds(rates))
            pairs.append(Pair(row, tiles, us, us * (1 - spread), us * (1 + spread), longest.bound(rates)))
    return Comparison("conv2d", gpu, tuple(pairs), ())


def problem(gpu: str | GPU, *, folder: Path | None = None) -> Problem | None:
    """The model with its rates as factors; layers are left out whole."""
    chosen = load(gpu)
    every = measurements.read(chosen.slug, op="conv2d", folder=folder)
    rows = [row for row in every if row.ours and row.provider_variant in JUDGED]
    if not rows:
        return None
    rates = conv2d.rates(chosen)
    # All that was found on measurements but the library's convolution.
    names = tuple(f.name for f in fields(rates) if "direct" not in f.name)
    launches = [costs_of(row)[1] for row in rows]

    def predict(factors: NDArray) -> NDArray:
        moved = replace(
            rates, **{name: getattr(rates, name) * float(f) for name, f in zip(names, factors, strict=True)}
        )
        return np.array([1e6 * sum(cost.seconds(moved) for cost in some) for some in launches])

    groups = [tuple(row.case_values[key] for key in ("S", "Cin", "Cout", "n")) for row in rows]
    return Problem("conv2d", names, predict, np.array([row.median_us for row in rows]), groups)
