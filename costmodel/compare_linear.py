"""Predictions of linear layers beside measurements, and what the thresholds of the closed form cost.

Two decisions are judged. Where to change kernel: the kernel that `costmodel.linear.thresholds` names for M, against the
fastest one measured, among launches that follow each other (where at least two kernels were measured). And the tile
width B_N of the flat product, where several were.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel import linear, measurements
from costmodel.compare import Comparison, Decision, Pair
from costmodel.cross_validation import Problem
from costmodel.gpus import GPU, load
from costmodel.linear_kernels import KERNEL, OVERLAP_ORDER, kind_of
from costmodel.measurements import Row

OVERLAPPED = "-overlapped"
WIDTH = "flat-b"
"""Rows of the flat product with a tile width of its own, such as flat-b48."""


def compare(gpu: str | GPU, *, folder: Path | None = None) -> Comparison:
    """Predictions beside every measured row of ours on one GPU."""
    found = load(gpu)
    return judge(measurements.read(found.slug, op="linear", folder=folder), found)


def judge(rows: Sequence[Row], gpu: GPU) -> Comparison:
    """Predictions beside those of ``rows`` that are ours."""
    pairs = tuple(_pair(row, gpu) for row in rows if row.ours)
    decisions = [*_decide([pair.row for pair in pairs], gpu), *_decide_widths(pairs)]
    return Comparison("linear", gpu, pairs, tuple(decisions))


def choice_of(row: Row) -> Any:
    """The kernel and settings that a row was measured with, from its note."""
    from kernels_numba.linear_product import Choice

    impl, *settings = row.note.split()
    return Choice.of(impl, **{name: int(value) for name, _, value in (s.partition("=") for s in settings)})


def _time(row: Row, rates: linear.Rates) -> tuple[float, str, dict[str, float]]:
    from kernels_numba.linear_product import product

    case = row.case_values
    overlap = row.provider_variant.endswith(OVERLAPPED)
    m, n, k = (int(case[key]) for key in ("M", "N", "K"))
    made = product(choice_of(row), m, n, k, row.dtype, overlap=overlap)
    return linear.time_of(made, rates, overlap=overlap)


def _pair(row: Row, gpu: GPU) -> Pair:
    choice, rates = choice_of(row), linear.rates(gpu)
    seconds, bound, _ = _time(row, rates)
    spread = sqrt(KERNEL.error**2 + rates.uncertainty**2)
    us = seconds * 1e6
    return Pair(row, choice, us, us * (1 - spread), us * (1 + spread), bound)


def _decide(rows: Sequence[Row], gpu: GPU) -> list[Decision]:
    cases: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row.provider_variant in linear.IMPLS:
            cases.setdefault((row.case, row.dtype), {})[row.provider_variant] = row.median_us
    found = []
    for (case, dtype), times in cases.items():
        values = measurements.parse_case("linear", case)
        m, n, k = (int(values[key]) for key in ("M", "N", "K"))
        m1, m2 = linear.thresholds(n, k, gpu)
        chosen = "gemv" if m < m1 else "flat" if m < m2 else "full"
        if len(times) > 1 and chosen in times:
            best = min(times, key=times.__getitem__)
            found.append(Decision("thresholds", case, dtype, chosen, best, times[chosen] / times[best]))
    return found


def _decide_widths(pairs: Sequence[Pair]) -> list[Decision]:
    """The flat product's B_N, where it was timed with several (`measure_widths`); other settings are the same."""
    cases: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        if pair.row.provider_variant.startswith(WIDTH):
            cases.setdefault((pair.row.case, pair.row.dtype), []).append(pair)
    found = []
    for (case, dtype), members in cases.items():
        if len(members) > 1:
            pick = min(members, key=lambda pair: pair.predicted_us)
            top = min(members, key=lambda pair: pair.row.median_us)
            chosen, best = (pair.row.provider_variant.removeprefix(WIDTH) for pair in (pick, top))
            regret = pick.row.median_us / top.row.median_us
            found.append(Decision("tile", case, dtype, chosen, best, regret))
    return found


def problem(gpu: str | GPU, *, folder: Path | None = None) -> Problem | None:
    """The model with a factor for each term of each kernel; layers [N, K] are left out whole."""
    chosen = load(gpu)
    rows = [row for row in measurements.read(chosen.slug, op="linear", folder=folder) if row.ours]
    if not rows:
        return None
    rates = linear.rates(chosen)
    terms = [_time(row, rates)[2] for row in rows]
    kernels = [_kernel(row) for row in rows]
    owned = [[f"{kernel}: {term}" for term in some] for kernel, some in zip(kernels, terms, strict=True)]
    names = sorted({name for some in owned for name in some})
    place = np.zeros((len(rows), max(map(len, owned))), int)
    times = np.zeros(place.shape)
    for i, (some, own) in enumerate(zip(terms, owned, strict=True)):
        place[i, : len(own)] = [names.index(name) for name in own]
        times[i, : len(own)] = [1e6 * seconds for seconds in some.values()]
    assert all(next(iter(some)) == linear.START for some in terms)
    order = np.array([OVERLAP_ORDER[kernel.removesuffix(OVERLAPPED)] for kernel in kernels])

    def predict(factors: NDArray) -> NDArray:
        moved = times * factors[place]
        work = (moved[:, 1:] ** order[:, None]).sum(axis=1) ** (1 / order)
        return np.asarray(moved[:, 0] + work)

    groups = [(row.case_values["N"], row.case_values["K"]) for row in rows]
    return Problem("linear", tuple(names), predict, np.array([row.median_us for row in rows]), groups)


def _kernel(row: Row) -> str:
    """Whose factors a row has: full products on warpgroups have their own, and so have overlapped launches."""
    return kind_of(choice_of(row)) + (OVERLAPPED if row.provider_variant.endswith(OVERLAPPED) else "")
