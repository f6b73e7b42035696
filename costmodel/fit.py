"""Fit the factors of the time model to measurements: ``python -m costmodel.fit --gpu h200-sxm``.

Least squares in log time over the rows of this project's kernels, by Gauss-Newton with a numerical Jacobian; errors
beyond twice the spread of measurements count in proportion, not by their squares (Huber's loss), so that a few kernels
of another build do not decide for all. Each factor is also pulled, weakly, towards the value in the GPU file, so that
a factor the measurements say nothing about stays where it is:

    minimise  sum_cases huber((log t_model - log t_measured) / s) + sum_factors (log f / f0)^2 / u^2

s = 3 %, the spread between two careful measurements; u = 50 %, whatever the file says, so that fitting twice to the
same measurements does not count them twice. The shares of the device copy rate, the tensor rate and the shared
memory that kernels reach are not fitted: they are those of the rates themselves. The error of the fitted model is
reported *leave one out*: each transform length is predicted by factors fitted without it. The model's own error is
what 68 % of those errors do not exceed, so that an interval of one standard deviation holds about as many cases.

``--write`` puts the factors into the GPU's file, into the calibrated file of the same name, and, as a property of the
kernels, into the files of all GPUs that have them from here: with three times the uncertainty and at least 15 %.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from math import exp, log
from pathlib import Path

import numpy as np

from costmodel import least_squares, measurements, timing
from costmodel.compare import FILTER, FROM_TAPS, counts_of, percentile, plan_to_judge
from costmodel.counts import Counts
from costmodel.gpus import GPU, MODEL_RANGES, load, read

FITTED = ("stages_per_worker", "half_rate_warps", "issue_fraction", "l2_fraction", "launch_us")
FITTED_FP32 = ("fp32_half_rate_warps", "fp32_issue_fraction")
"""Fitted after the others, with those held: fp32 kernels have these two of their own."""
NOISE = 0.03
FAR = 2.0
"""Errors above this many times `NOISE` count in proportion."""
PULL = 0.5
WITHIN = 68
"""Per cent of the left-out errors that the model's own error is not below."""
CARRIED = "a property of the kernels: fitted on {slug}, not on this GPU"
WIDER, LEAST_UNCERTAINTY = 3.0, 0.15
"""Of a factor on another GPU."""


@dataclass(frozen=True)
class Point:
    """One measured case: its work, its time in seconds, and the group it is left out with."""

    counts: Counts
    time_s: float
    group: int


@dataclass(frozen=True)
class Fit:
    """Fitted factors, their relative uncertainties, and the errors of the model with them."""

    factors: dict[str, float]
    uncertainties: dict[str, float]
    errors: tuple[float, ...]
    left_out: tuple[float, ...]

    def report(self) -> str:
        """A few plain lines."""
        lines = [
            f"{key:<20} {self.factors[key]:.4g} +- {self.uncertainties[key]:.1%}" for key in self.factors
        ]
        for name, errors in (("fitted", self.errors), ("left out", self.left_out)):
            if errors:
                lines.append(
                    f"{name:<20} median {percentile(errors, 50):.1%}, p90 {percentile(errors, 90):.1%} "
                    f"absolute error over {len(errors)} cases"
                )
        return "\n".join(lines)


def points_of(gpu: GPU, *, folder: Path | None = None) -> list[Point]:
    """The rows of ours on this GPU as points; groups are transform lengths."""
    out = []
    for row in measurements.read(gpu.slug, op="fftconv", folder=folder):
        learnt_from = row.ours and row.case_values["variant"] not in (FILTER, FROM_TAPS)
        plan = plan_to_judge(row) if learnt_from else None
        if plan is not None:
            out.append(Point(counts_of(row, plan, gpu), row.median_us * 1e-6, plan.n))
    return out


def fit(gpu: GPU, points: Sequence[Point], *, prior: dict[str, float] | None = None) -> Fit:
    """Fit to ``points``; ``prior`` overrides how far from the file's value a factor may lie (relative).

    Raises:
        ValueError: there is no point to fit to.
    """
    if not points:
        raise ValueError(f"points: got none; measure first: python -m costmodel measure (on the {gpu.slug})")
    inputs = timing.inputs_of(gpu)
    uncertainties: dict[str, float] = {}
    errors: list[float] = []
    left_out: list[float] = []
    factors: dict[str, float] = {}
    for names, some in (
        (FITTED, [p for p in points if p.counts.arithmetic != "fp32"]),
        (FITTED_FP32, [p for p in points if p.counts.arithmetic == "fp32"]),
    ):
        if not some:
            continue
        base, pull = inputs, dict.fromkeys(names, PULL) | (prior or {})
        solution, covariance = _solve(gpu, base, some, names, pull)
        inputs = _moved(base, names, solution)
        factors |= {key: inputs[key].value for key in names}
        uncertainties |= {key: float(np.sqrt(covariance[i, i])) for i, key in enumerate(names)}
        errors += [abs(_error(gpu, inputs, p)) for p in some]
        groups = sorted({p.group for p in some})
        for group in groups if len(groups) > 1 else []:
            others, _ = _solve(gpu, base, [p for p in some if p.group != group], names, pull, solution)
            left_out += [abs(_error(gpu, _moved(base, names, others), p)) for p in some if p.group == group]
    return Fit(factors, uncertainties, tuple(errors), tuple(left_out))


def _error(gpu: GPU, inputs: timing.Inputs, point: Point) -> float:
    return timing.seconds(point.counts, gpu, inputs) / point.time_s - 1


def _moved(base: timing.Inputs, names: Sequence[str], logs: np.ndarray) -> timing.Inputs:
    moved = dict(base)
    for key, step in zip(names, logs, strict=True):
        low, high = MODEL_RANGES[key]
        moved[key] = replace(base[key], value=min(max(base[key].value * exp(step), low), high))
    return moved


def _solve(
    gpu: GPU,
    base: timing.Inputs,
    points: Sequence[Point],
    names: Sequence[str],
    pull: dict[str, float],
    start: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    weights = np.array([1 / pull[key] for key in names])

    def residuals(logs: np.ndarray) -> np.ndarray:
        inputs = _moved(base, names, logs)
        data = [log(timing.seconds(p.counts, gpu, inputs) / p.time_s) / NOISE for p in points]
        return np.array([*data, *(logs * weights)])

    if start is None:
        # Squares first: from far away, where all errors count in proportion, few cases could hold the others back.
        start, _ = least_squares.minimise(residuals, len(names))
    return least_squares.minimise(residuals, len(names), start=start, limit=FAR)


def updated_text(text: str, result: Fit, *, source: str, day: str) -> str:
    """The text of a GPU file with the fitted factors put in; comments and everything else stay."""
    for key, value in result.factors.items():
        text = _put(text, key, value, result.uncertainties[key], source, day)
    if result.left_out:
        text = _put(text, "model_error", percentile(result.left_out, WITHIN), 0.0, source, day)
    return text.rstrip("\n") + "\n"


def carried_text(text: str, other: GPU, result: Fit, *, slug: str, day: str) -> str:
    """The text of another GPU's file with the factors put in that it has from this one; the same, if it has none."""
    source = CARRIED.format(slug=slug)
    for key, value in result.factors.items():
        if key in other.model and other.model[key].source == source:
            wider = max(WIDER * result.uncertainties[key], LEAST_UNCERTAINTY)
            text = _put(text, key, value, wider, source, day)
    return text


def _put(text: str, key: str, value: float, uncertainty: float, source: str, day: str) -> str:
    pattern = rf"(\[model\.{key}\]\n)(?:(?!\n\n|\n\[).)*"
    body = f"value = {value:.4g}\nrelative_uncertainty = {min(uncertainty, 1.0):.3g}\n"
    body += f'source = "{source}"\ndate = "{day}"'
    text, found = re.subn(pattern, lambda m: m.group(1) + body, text, flags=re.DOTALL)
    if found != 1:
        raise ValueError(f"the GPU file has no [model.{key}] to update")
    return text


def write(gpu: GPU, result: Fit, *, source: str, day: str) -> list[Path]:
    """Put the factors into every file that has them; the files that were written."""
    path = Path(gpu.path)
    texts = {path: updated_text(path.read_text(encoding="utf-8"), result, source=source, day=day)}
    calibrated = path.parent.parent / "calibrated" / path.name
    if calibrated.exists():
        old = calibrated.read_text(encoding="utf-8")
        texts[calibrated] = updated_text(old, result, source=source, day=day)
    for file in sorted(path.parent.glob("*.toml")):
        if file != path:
            old = file.read_text(encoding="utf-8")
            texts[file] = carried_text(old, read(file), result, slug=gpu.slug, day=day)
    for file, text in texts.items():
        measurements.write_whole(file, text)
    return list(texts)


def main(argv: Sequence[str] | None = None) -> int:
    """Fit, report, and with ``--write`` put the factors into the GPU file."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.fit", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--gpu", required=True, help="slug of a GPU with measurements")
    parser.add_argument(
        "--write", action="store_true", help="update the [model] sections of the files that have them"
    )
    options = parser.parse_args(argv)
    gpu = load(options.gpu)
    points = points_of(gpu)
    if not points:
        print(f"{gpu.slug}: nothing was measured yet; run: python -m costmodel measure", file=sys.stderr)
        return 2
    result = fit(gpu, points)
    print(result.report())
    if options.write:
        source = f"fitted to {len(points)} cases of measurements/{gpu.slug}/fftconv.csv"
        for path in write(gpu, result, source=source, day=date.today().isoformat()):
            print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
