"""What was measured of training: operators against the same ones by `torch.fft`, and the curves of a training run.

``costmodel/training_runs/<gpu-slug>/training.csv`` has a row per layer, shape and convolution, with the columns of
`OperatorRow` (`HEADER`); `costmodel.measure_training` writes it. ``hyena_training.csv`` and ``hyena_training.json`` are
what ``examples/train_hyena.py`` writes. Readers refuse what is incomplete or not finite, and name the line.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from costmodel.errors import MeasurementError
from costmodel.measurements import DTYPES, MEND, lines_of

FOLDER = Path(__file__).parent / "training_runs"
CONVOLUTIONS = ("fused", "torch")
LAYERS = ("fftconv", "fftconv-gated", "hyena", "m2", "longconv")


@dataclass(frozen=True)
class OperatorRow:
    """One layer, shape and convolution; the fields are the columns."""

    layer: str
    """`LAYERS`: the bare convolution, with two gates, and the operators of `monarch.torch.operators`."""
    B: int
    """Sequences,"""
    D: int
    """channels of each,"""
    L: int
    """and samples. The bare convolutions are circular, those of hyena and longconv causal, those of m2 two-sided."""
    dtype: str
    """Of the signals."""
    convolution: str
    """"fused" (`monarch.torch.fftconv`) or "torch" (`torch.fft`)."""
    forward_us: float
    """Median GPU time of a forward pass, the filter's transform in it,"""
    forward_p20_us: float
    forward_p80_us: float
    step_us: float
    """and of forward and backward pass, all gradients."""
    step_p20_us: float
    step_p80_us: float
    samples: int
    forward_bytes: int
    """Memory at the peak of a forward pass that records gradients, less that of parameters and inputs,"""
    step_bytes: int
    """and at the peak of forward and backward pass."""
    largest_batch: int
    """The largest B that a step ran with, 0 where that was not looked for."""
    rel_diff: float
    """Largest relative difference of the output and the gradients from those of the other convolution, in L2."""
    date: str
    commit: str
    note: str = ""

    @property
    def backward_us(self) -> float:
        """What the step takes beyond its forward pass."""
        return self.step_us - self.forward_us


HEADER = ",".join(f.name for f in fields(OperatorRow))


@dataclass(frozen=True)
class Loss:
    """A logged step of a training run."""

    convolution: str
    seed: int
    step: int
    loss: float


def check(row: OperatorRow) -> OperatorRow:
    """The row, if its figures can be; raises `MeasurementError` with what came and what is accepted."""
    for name, accepted in (("layer", LAYERS), ("dtype", DTYPES), ("convolution", CONVOLUTIONS)):
        if getattr(row, name) not in accepted:
            raise MeasurementError(f"{name}: got {getattr(row, name)!r}; accepted: {', '.join(accepted)}")
    for name in ("B", "D", "L", "samples", "forward_bytes", "step_bytes"):
        if getattr(row, name) < 1:
            raise MeasurementError(f"{name}: got {getattr(row, name)}; accepted: at least 1")
    for part in ("forward", "step"):
        low, middle, high = (getattr(row, f"{part}{name}_us") for name in ("_p20", "", "_p80"))
        if not (0 < low <= middle <= high < math.inf):
            raise MeasurementError(
                f"{part}_us: got {low}, {middle}, {high}; accepted: 0 < p20 <= median <= p80, finite"
            )
    if not row.forward_us <= row.step_us:
        raise MeasurementError(
            f"step_us: got {row.step_us}, less than the forward pass in it, {row.forward_us}"
        )
    if row.largest_batch < 0:
        raise MeasurementError(f"largest_batch: got {row.largest_batch}; accepted: at least 0")
    if not 0 <= row.rel_diff < math.inf:
        raise MeasurementError(f"rel_diff: got {row.rel_diff}; accepted: finite, at least 0")
    return row


def operators(slug: str, *, folder: Path | None = None) -> list[OperatorRow]:
    """The rows of a GPU's ``training.csv``, each checked; an empty list when nothing was measured."""
    path = (folder or FOLDER) / slug / "training.csv"
    return _rows(path, OperatorRow, check) if path.exists() else []


def losses(slug: str, *, folder: Path | None = None) -> list[Loss]:
    """The logged losses of a GPU's training runs; an empty list when there was none."""
    path = (folder or FOLDER) / slug / "hyena_training.csv"
    return _rows(path, Loss, _check_loss) if path.exists() else []


def runs(slug: str, *, folder: Path | None = None) -> dict[str, Any]:
    """What was run for `losses`, and for each run ``held_out_loss`` and ``tokens_per_s``; empty when nothing was."""
    path = (folder or FOLDER) / slug / "hyena_training.json"
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for key in ("settings", "where", "torch", "commit", "runs"):
        if key not in found:
            raise MeasurementError(f"{path}: {key} is missing")
    return found


def curves(rows: Iterable[Loss]) -> dict[tuple[str, int], tuple[list[int], list[float]]]:
    """Steps and losses of each (convolution, seed)."""
    found: dict[tuple[str, int], tuple[list[int], list[float]]] = {}
    for row in rows:
        steps, values = found.setdefault((row.convolution, row.seed), ([], []))
        steps.append(row.step)
        values.append(row.loss)
    return found


def to_csv(rows: Iterable[OperatorRow]) -> str:
    """Header and rows as the text of ``training.csv``, each row checked."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER.split(","))
    for row in rows:
        values = (getattr(check(row), f.name) for f in fields(row))
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])
    return out.getvalue()


def _check_loss(row: Loss) -> Loss:
    if row.convolution not in CONVOLUTIONS or row.seed < 0 or row.step < 0 or not 0 < row.loss < math.inf:
        raise MeasurementError(f"got {row}; accepted: {', '.join(CONVOLUTIONS)}, and a finite positive loss")
    return row


def _rows(path: Path, kind: Any, accept: Any) -> list[Any]:
    columns = [f.name for f in fields(kind)]
    text = path.read_text(encoding="utf-8")
    types = {"float": float, "int": int, "str": str}
    found = []
    for number, cells in lines_of(text, name=str(path), header=",".join(columns)):
        try:
            found.append(
                accept(kind(*(types[str(f.type)](x) for f, x in zip(fields(kind), cells, strict=True))))
            )
        except ValueError as error:
            raise MeasurementError(f"{path}, line {number}: {error}. {MEND}") from error
    return found
