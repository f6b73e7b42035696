"""Predictions of linear layers beside measurements, and what the thresholds of the closed form cost.

The decision judged is where to change kernel: the kernel that `costmodel.linear.thresholds` names for M, against the
fastest one measured, among launches that follow each other (where at least two kernels were measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import Any

from costmodel import linear, measurements
from costmodel.compare import Comparison, Decision, Pair
from costmodel.gpus import GPU, load
from costmodel.measurements import Row

OVERLAPPED = "-overlapped"


def compare(gpu: str | GPU, *, folder: Path | None = None) -> Comparison:
    """Predictions beside every measured row of ours on one GPU."""
    found = load(gpu)
    return judge(measurements.read(found.slug, op="linear", folder=folder), found)


def judge(rows: Sequence[Row], gpu: GPU) -> Comparison:
    """Predictions beside those of ``rows`` that are ours."""
    ours = [row for row in rows if row.ours]
    pairs = tuple(_pair(row, gpu) for row in ours)
    return Comparison("linear", gpu, pairs, tuple(_decide(ours, gpu)))


def choice_of(row: Row) -> Any:
    """The kernel and settings that a row was measured with, from its note."""
    from kernels_numba.linear_product import Choice

    impl, *settings = row.note.split()
    return Choice.of(impl, **{name: int(value) for name, _, value in (s.partition("=") for s in settings)})


def _pair(row: Row, gpu: GPU) -> Pair:
    from kernels_numba.linear_product import product

    case, choice = row.case_values, choice_of(row)
    overlap = row.provider_variant.endswith(OVERLAPPED)
    made = product(choice, int(case["M"]), int(case["N"]), int(case["K"]), row.dtype, overlap=overlap)
    rates = linear.rates(gpu)
    seconds, bound, _ = linear.time_of(made, rates, overlap=overlap)
    spread = sqrt(linear.KERNEL.error**2 + rates.uncertainty**2)
    us = seconds * 1e6
    return Pair(row, choice, us, us * (1 - spread), us * (1 + spread), bound)


def _decide(rows: Sequence[Row], gpu: GPU) -> list[Decision]:
    cases: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if not row.provider_variant.endswith(OVERLAPPED):
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
