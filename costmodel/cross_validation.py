"""How well a time model does on cases that its factors were not fitted to: ``python -m costmodel.cross_validation``.

Every model has factors that were found on measurements. To judge it fairly, its cases are dealt into folds, whole
shapes at a time; the factors are fitted anew to all folds but one, by least squares in log time, and the cases of that
one are predicted with them:

    minimise  sum_cases (log t_model - log t_measured)^2 / s^2 + sum_factors (log f)^2 / u^2

A factor f multiplies what the code has (1: as it is); s = 3 %, the spread of two careful measurements, u = 50 %. Prints
for each operation the error with the factors as they are in the code, fitted to all cases, and left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel import least_squares, render
from costmodel.compare import percentile
from costmodel.gpus import GPU, load

NOISE, PULL = 0.03, 0.5
FOLDS = 10
STEPS = 8


@dataclass(frozen=True)
class Problem:
    """A time model and measured cases: ``predict`` maps factors [len(names)] to the times [cases], in microseconds."""

    op: str
    names: tuple[str, ...]
    predict: Callable[[NDArray], NDArray]
    measured: NDArray
    groups: Sequence[Hashable]
    """Cases of one group are left out together."""


@dataclass(frozen=True)
class Validation:
    """Absolute relative errors: with the code's factors, fitted to all cases, and of cases left out of the fit."""

    op: str
    folds: int
    as_is: tuple[float, ...]
    fitted: tuple[float, ...]
    left_out: tuple[float, ...]
    factors: dict[str, float]


def fold_of(groups: Sequence[Hashable], folds: int = FOLDS) -> NDArray[np.intp]:
    """The fold of each case: groups are dealt in the order in which they come."""
    order = {group: i % folds for i, group in enumerate(dict.fromkeys(groups))}
    return np.array([order[group] for group in groups])


def validate(problem: Problem, *, folds: int = FOLDS) -> Validation:
    """Fit to all cases, and to all folds but one for each.

    Raises:
        ValueError: fewer than two groups, of which none could be left out.
    """
    count = min(folds, len(set(problem.groups)))
    if count < 2:
        raise ValueError(
            f"{problem.op}: got one group of cases; accepted: two or more, so that one can be left out"
        )
    one = np.ones(len(problem.names))
    everything = np.ones(len(problem.measured), bool)
    factors = _fit(problem, everything, one)
    fold = fold_of(problem.groups, count)
    left_out = np.empty(len(problem.measured))
    for number in range(count):
        own = fold == number
        left_out[own] = _errors(problem, _fit(problem, ~own, factors))[own]
    return Validation(
        problem.op,
        count,
        tuple(_errors(problem, one)),
        tuple(_errors(problem, factors)),
        tuple(left_out),
        dict(zip(problem.names, map(float, factors), strict=True)),
    )


def _errors(problem: Problem, factors: NDArray) -> NDArray:
    return np.abs(problem.predict(factors) / problem.measured - 1)


def _fit(problem: Problem, used: NDArray[np.bool_], start: NDArray) -> NDArray:
    def residuals(logs: NDArray) -> NDArray:
        found = np.log(problem.predict(np.exp(logs))[used] / problem.measured[used]) / NOISE
        return np.concatenate([found, logs / PULL])

    found, _ = least_squares.minimise(residuals, len(problem.names), steps=STEPS, start=np.log(start))
    return np.exp(found)


def problems(gpu: str | GPU, *, folder: Path | None = None) -> list[Problem]:
    """Every operation that was measured on a GPU, but ``fftconv``, whose fit is `costmodel.fit`'s."""
    from costmodel import compare_conv2d, compare_decode, compare_gradients, compare_linear, decode_attention

    chosen = load(gpu)
    made = (
        compare_gradients.problem(chosen, folder=folder),
        compare_linear.problem(chosen, folder=folder),
        decode_attention.problem(chosen, folder=folder),
        compare_decode.problem(chosen, folder=folder),
        compare_conv2d.problem(chosen, folder=folder),
    )
    return [problem for problem in made if problem is not None]


def table(gpu: str | GPU, form: str) -> str:
    """All operations as text, ``fftconv`` first."""
    from costmodel import fit

    chosen = load(gpu)
    points = fit.points_of(chosen)
    rows = []
    if points:
        found = fit.fit(chosen, points)
        inputs = fit.timing.inputs_of(chosen)
        as_is = [abs(fit.timing.seconds(p.counts, chosen, inputs) / p.time_s - 1) for p in points]
        rows.append(_line("fftconv", len({p.group for p in points}), as_is, found.errors, found.left_out))
    for v in map(validate, problems(chosen)):
        rows.append(_line(v.op, v.folds, v.as_is, v.fitted, v.left_out))
    header = ["operation", "cases"]
    header += [f"{what}{q}" for what in ("", "fitted: ", "left out: ") for q in ("median", "p90")]
    return render.rows_as(form, [*header, "folds"], rows)


def _line(op: str, folds: int, *errors: Sequence[float]) -> list[str]:
    figures = [f"{percentile(some, q):.1%}" for some in errors for q in (50, 90)]
    return [op, str(len(errors[0])), *figures, str(folds)]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 2 where nothing was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.cross_validation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--gpu", default="h200-sxm", help="slug of a GPU with measurements (h200-sxm)")
    parser.add_argument("--format", default="table", choices=("table", "csv", "md"), help="(table)")
    options = parser.parse_args(argv)
    print(table(options.gpu, options.format))
    return 0


if __name__ == "__main__":
    sys.exit(main())
