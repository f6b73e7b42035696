"""How well a time model does on cases that its factors were not fitted to: ``python -m costmodel.cross_validation``.

Every model has factors that were found on measurements. To judge it fairly, its cases are dealt into folds, whole
shapes at a time; the factors are fitted anew to all folds but one, by least squares in log time, and the cases of that
one are predicted with them:

    minimise  sum_cases huber((log t_model - log t_measured) / s) + sum_factors (log f)^2 / u^2

A factor f multiplies what the code has (1: as it is); s = 3 %, the spread of two careful measurements, u = 50 %; errors
above 2 s count in proportion (Huber's loss). Prints
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

from costmodel import documents, least_squares, render
from costmodel.compare import percentile
from costmodel.gpus import GPU, load

NOISE, PULL, FAR = 0.03, 0.5, 2.0
FOLDS = 10
ROOT = Path(__file__).parent.parent
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

    found, _ = least_squares.minimise(
        residuals, len(problem.names), steps=STEPS, start=np.log(start), limit=FAR
    )
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


def validations(gpu: str | GPU) -> list[Validation]:
    """All operations that were measured on a GPU, ``fftconv`` first."""
    from costmodel import fit

    chosen = load(gpu)
    points = fit.points_of(chosen)
    found = []
    if points:
        fitted = fit.fit(chosen, points)
        inputs = fit.timing.inputs_of(chosen)
        as_is = (abs(fit.timing.seconds(p.counts, chosen, inputs) / p.time_s - 1) for p in points)
        folds = len({p.group for p in points})
        found = [
            Validation("fftconv", folds, tuple(as_is), fitted.errors, fitted.left_out, dict(fitted.factors))
        ]
    return [*found, *map(validate, problems(chosen))]


def table(found: Sequence[Validation], form: str) -> str:
    """Errors of every operation as text."""
    header = ["operation", "cases"]
    header += [f"{what}{q}" for what in ("", "fitted: ", "left out: ") for q in ("median", "p90")]
    rows = [
        [
            v.op,
            str(len(v.as_is)),
            *(f"{percentile(some, q):.1%}" for some in (v.as_is, v.fitted, v.left_out) for q in (50, 90)),
            str(v.folds),
        ]
        for v in found
    ]
    return render.rows_as(form, [*header, "folds"], rows)


def sentence(found: Sequence[Validation]) -> list[str]:
    """README's lines about shapes that a fit has not seen."""
    middle, most = (max(percentile(v.left_out, q) for v in found) for q in (50, 90))
    return [
        "Shapes that a fit has not seen ([docs/cost-model.md](docs/cost-model.md#decisions)) are off by at most "
        f"{100 * middle:.1f} % in the",
        f"median, whatever the operation, and nine in ten of them by at most {100 * most:.1f} %.",
    ]


def write(found: Sequence[Validation]) -> None:
    """Put the table and the sentence into the documents."""
    documents.write(ROOT / "docs" / "cost-model.md", {"cross-validation": table(found, "md").splitlines()})
    documents.write(ROOT / "README.md", {"left-out": sentence(found)})


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 2 where nothing was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.cross_validation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--gpu", default="h200-sxm", help="slug of a GPU with measurements (h200-sxm)")
    parser.add_argument("--format", default="table", choices=("table", "csv", "md"), help="(table)")
    parser.add_argument("--write", action="store_true", help="put it into README.md and docs/cost-model.md")
    options = parser.parse_args(argv)
    found = validations(options.gpu)
    print(table(found, options.format))
    if options.write:
        write(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
