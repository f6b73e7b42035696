"""Predictions of backward passes beside measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel import gradient_time, measurements, timing
from costmodel.compare import Comparison, Pair
from costmodel.cross_validation import Problem
from costmodel.gpus import GPU, load
from costmodel.gradient_time import GRADIENT, NEEDS, Figures, Pass
from costmodel.measurements import Row

OP = "fftconv_gradients"
WAYS = {"": "from the taps", "prepared": "with prepared spectra", "dk": "of the filter alone"}


def work_of(row: Row, gpu: GPU) -> Pass:
    """What a measured pass does. Raises ``ValueError`` for a way to measure it that is not known."""
    way = row.provider_variant
    if way not in WAYS:
        raise ValueError(f"{row.case}: provider: got {row.provider!r}; accepted: ours with {', '.join(WAYS)}")
    case = row.case_values
    n, length, batch, channels = (int(case[key]) for key in ("N", "L", "B", "H"))
    return gradient_time.work(
        n,
        length,
        batch,
        channels,
        gpu=gpu,
        dtype=row.dtype,
        gated="gated" in str(case["variant"]),
        prepared=way == "prepared",
        needs=("k",) if way == "dk" else NEEDS,
    )


def compare(gpu: str | GPU, *, folder: Path | None = None) -> Comparison:
    """Predictions beside every measured row of ours on one GPU."""
    chosen = load(gpu)
    return judge(measurements.read(chosen.slug, op=OP, folder=folder), chosen)


def judge(rows: Sequence[Row], gpu: GPU) -> Comparison:
    """Predictions beside those of ``rows`` that are ours."""
    inputs, spread = timing.inputs_of(gpu), gradient_time.relative_error(gpu)
    pairs = []
    for row in rows:
        if row.ours:
            done = work_of(row, gpu)
            us = 1e6 * gradient_time.seconds(done, gpu, inputs)
            bound = timing.bound(timing.terms(done.sums, gpu, inputs))
            way = WAYS[row.provider_variant]
            pairs.append(Pair(row, way, us, us * (1 - spread), us * (1 + spread), bound))
    return Comparison(OP, gpu, tuple(pairs), ())


def problem(gpu: str | GPU, *, folder: Path | None = None) -> Problem | None:
    """The model with its figures as factors; lengths are left out whole."""
    chosen = load(gpu)
    rows = [row for row in measurements.read(chosen.slug, op=OP, folder=folder) if row.ours]
    if not rows:
        return None
    inputs, passes = timing.inputs_of(chosen), [work_of(row, chosen) for row in rows]

    def predict(factors: NDArray) -> NDArray:
        moved = Figures(*(value * float(f) for value, f in zip(astuple(GRADIENT), factors, strict=True)))
        return np.array([1e6 * gradient_time.seconds(done, chosen, inputs, moved) for done in passes])

    names = tuple(f.name for f in fields(Figures))
    return Problem(
        OP, names, predict, np.array([row.median_us for row in rows]), [row.case_values["N"] for row in rows]
    )
