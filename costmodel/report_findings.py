"""What the report shows: every part of the model, asked about one GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from costmodel import (
    comparisons,
    cross_validation,
    decode_attention,
    demo,
    linear_tables,
    measurements,
    tables,
)
from costmodel import fit as fitting
from costmodel.compare import Comparison
from costmodel.fftconv import Forecast
from costmodel.gpus import GPU, load
from costmodel.models import models

OPERATIONS = comparisons.OPERATIONS
BATCHES = (1, 4, 16, 64)
HEADS = ((32, 32), (32, 8))
"""Query and key heads."""
HEAD_SIZE = 128
KEYS = tuple(2**e for e in range(10, 18))
Say = Callable[[str], None]


@dataclass(frozen=True)
class Split:
    """Decode attention in one case: the best split count, and times in microseconds."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    splits: int
    time_us: float
    floor_us: float
    unsplit_us: float
    """With one split."""


@dataclass(frozen=True)
class Judged:
    """One operation's predictions beside its measurements."""

    op: str
    summary: dict[str, Any]
    points: tuple[tuple[float, float], ...]
    """(measured, predicted) microseconds."""
    regrets: dict[str, list[float]]
    header: tuple[str, ...]
    cells: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Findings:
    """What the report shows."""

    gpu: GPU
    forecasts: list[Forecast]
    """Of the convolution, at the demo's lengths and sizes."""
    known: demo.Evidence
    comparison: Comparison
    """Of the convolution."""
    judged: list[Judged]
    """The operations that were measured here."""
    fit: fitting.Fit | None
    validations: list[cross_validation.Validation]
    """Of the operations beside the convolution."""
    layers: list[dict[str, Any]]
    splits: list[Split]


def gather(gpu: str | GPU, *, say: Say = lambda text: None) -> Findings:
    """Ask every part of the model about a GPU; ``say`` is told each step. Some seconds, most of them for the fit."""
    chosen = load(gpu)
    say("convolutions")
    forecasts = demo.forecasts([chosen])[chosen.slug]
    known = demo.Evidence(chosen.slug, tuple(measurements.read(chosen.slug, op="fftconv")), False)
    say("comparison with measurements")
    every = comparisons.compare_all(chosen)
    comparison = every["fftconv"]
    judged = [_judged(one) for one in every.values() if one.pairs]
    say("linear layers and splits")
    layers = _layers(chosen)
    splits = [_split(chosen, b, *heads, keys) for heads in HEADS for b in BATCHES for keys in KEYS]
    say("fit, each length left out in turn")
    points = fitting.points_of(chosen)
    fit = fitting.fit(chosen, points) if points else None
    say("cross-validation of the other operations")
    validations = [
        cross_validation.validate(problem)
        for problem in cross_validation.problems(chosen)
        if len(set(problem.groups)) > 1
    ]
    return Findings(chosen, forecasts, known, comparison, judged, fit, validations, layers, splits)


def _layers(gpu: GPU) -> list[dict[str, Any]]:
    """`linear_tables.threshold_bodies` of the layers of every model, each with the model's name."""
    return [
        {"model": model.name, **body}
        for model in models().values()
        for body in linear_tables.threshold_bodies(list(model.linear.items()), gpu)
    ]


def _split(gpu: GPU, batch: int, heads: int, kv_heads: int, length: int) -> Split:
    found = decode_attention.candidates(
        batch=batch, heads=heads, kv_heads=kv_heads, head_size=HEAD_SIZE, length=length, gpu=gpu
    )
    floor = decode_attention.floor_us(
        batch=batch, kv_heads=kv_heads, head_size=HEAD_SIZE, length=length, gpu=gpu
    )
    one = next(c for c in found if c.splits == 1)
    return Split(batch, heads, kv_heads, length, found[0].splits, found[0].time_us, floor, one.time_us)


def _judged(found: Comparison) -> Judged:
    regrets: dict[str, list[float]] = {}
    for decision in found.decisions:
        regrets.setdefault(decision.kind, []).append(decision.regret)
    header, cells = tables.comparison_rows(found)
    points = tuple((p.row.median_us, p.predicted_us) for p in found.pairs)
    return Judged(found.op, found.summary(), points, regrets, tuple(header), tuple(map(tuple, cells)))
