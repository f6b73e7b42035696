"""Predictions beside measurements: how far off the times are, and what a decision costs.

The error of a time is |predicted - measured| / measured. The *regret* of a decision is the measured time of
the predicted choice over the measured time of the best choice: 1 means that the best one was chosen. A
decision is judged only on cases where at least two of its choices were measured, and only among those.

Decisions of the convolution: ``order`` (the best measured plan of each order competes) and ``tile`` (factor
lists of one order compete). ``ours`` is the plan that the kernels choose by themselves; it is named in the
row's note (``plan=32x32``) or, without one, taken from monarch.plan; ``ours:32x16`` is that plan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

from costmodel import counts as counting
from costmodel import filter_time, long_counts, measurements, timing
from costmodel.counts import Counts
from costmodel.gpus import GPU, load
from costmodel.measurements import Row
from monarch import Plan, format_factors, parse_factors
from monarch import plan as default_plan

FILTER = "filter"
"""The variant of rows of a filter's transform,"""
FROM_TAPS = "from-taps"
"""and of those of a transform and the convolution after it."""
SPARSE = ("partial", "sparse")
"""Variants with a number of taps (in tiles, or whole) or a percentage of zeros behind them."""


@dataclass(frozen=True)
class Pair:
    """One measured row of ours with its plan and its predicted time."""

    row: Row
    plan: Any
    """A plan; of a linear layer, the kernel and its settings."""
    predicted_us: float
    low_us: float
    high_us: float
    bound: str

    @property
    def relative_error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_us / self.row.median_us - 1

    @property
    def inside(self) -> bool:
        """Whether the measured time lies in the predicted interval."""
        return self.low_us <= self.row.median_us <= self.high_us


@dataclass(frozen=True)
class Decision:
    """One decision in one case: the predicted choice, the best measured one, and the regret."""

    kind: str
    case: str
    dtype: str
    chosen: str
    best: str
    regret: float


@dataclass(frozen=True)
class Comparison:
    """All pairs and decisions of one operation on one GPU."""

    op: str
    gpu: GPU
    pairs: tuple[Pair, ...]
    decisions: tuple[Decision, ...]
    skipped: int = 0

    def summary(self) -> dict[str, Any]:
        """The JSON form of the contract; figures are null where there is no case."""
        errors = [abs(p.relative_error) for p in self.pairs]
        out: dict[str, Any] = {
            "cases": len(self.pairs),
            "median_abs_rel_error": median(errors) if errors else None,
            "p90_abs_rel_error": percentile(errors, 90) if errors else None,
            "inside_interval": sum(p.inside for p in self.pairs) / len(self.pairs) if self.pairs else None,
            "skipped": self.skipped,
            "decisions": {},
        }
        for kind in ("order", "splits", "tile", "thresholds"):
            regrets = [d.regret for d in self.decisions if d.kind == kind]
            out["decisions"][kind] = {
                "cases": len(regrets),
                "regret_p95": percentile(regrets, 95) if regrets else None,
            }
        return out

    def worst_regret_p95(self) -> float | None:
        """The largest regret_p95 over the decisions that have cases."""
        figures = [
            d["regret_p95"] for d in self.summary()["decisions"].values() if d["regret_p95"] is not None
        ]
        return max(figures, default=None)


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0..100), linear between neighbours."""
    if not values:
        raise ValueError("values: got none; accepted: at least one number")
    ordered = sorted(values)
    position = (len(ordered) - 1) * q / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def plan_of(row: Row) -> Plan | None:
    """The plan that a row of ours was measured with; None when its variant is not a plan."""
    case = row.case_values
    n, length = int(case["N"]), int(case["L"])
    if tile := _named(row, "tile"):
        from kernels_numba.families import default_plan as fused

        return fused(tile)
    text = row.provider_variant
    note = re.search(r"\bplan=([0-9x]+)", row.note)
    if not text and note:
        text = note.group(1)
    limit = None if length == n else length
    if not text:
        return default_plan(n, signal=limit, wanted=limit)
    if not re.fullmatch(r"\d+(x\d+)*", text):
        return None
    factors = parse_factors(text)
    stated = re.search(r"\bpacking=([a-z-]+)", row.note)
    packing = stated.group(1) if stated else "half" if 2 * prod(factors) == n else "pair"
    return Plan(n=n, factors=factors, packing=packing, signal=limit, wanted=limit)


def plan_to_judge(row: Row) -> Plan | None:
    """`plan_of` a row of ours that the model predicts; None for the others."""
    kind = str(row.case_values["variant"]).partition("-")[0]
    known = row.case_values["variant"] in (*counting.VARIANTS, FILTER, FROM_TAPS) or kind in SPARSE
    return plan_of(row) if known and row.dtype in counting.ITEM_BYTES else None


def counts_of(row: Row, plan: Plan, gpu: GPU) -> Counts:
    """The counts of ``row``'s case with the plan that it was measured with."""
    case = row.case_values
    variant = str(case["variant"])
    kind, _, amount = variant.partition("-")
    batch = int(case["B"])
    if kind == FILTER:
        return filter_time.counts_of(plan.n, int(case["H"]), row.dtype, gpu)
    if tile := _named(row, "tile"):
        batch *= long_counts.windows(int(case["L"]), int(amount), tile)
    found = counting.for_plan(
        plan,
        batch,
        int(case["H"]),
        dtype=row.dtype,
        variant="plain" if kind in SPARSE or variant == FROM_TAPS else variant,
        capacity_bytes=gpu.spec["shared_memory_per_block_bytes"],
    )
    if variant == FROM_TAPS:
        return filter_time.in_a_call(plan, batch, int(case["H"]), row.dtype, found, gpu)
    rows = _named(row, "rows")
    return long_counts.with_rows(found, plan, rows) if rows else found


def _named(row: Row, name: str) -> int:
    """A number that the note of a short filter's or a sparse spectrum's row has, such as tile=4096; else 0."""
    kind = str(row.case_values["variant"]).partition("-")[0]
    found = re.search(rf"\b{name}=(\d+)", row.note) if kind in SPARSE else None
    return int(found.group(1)) if found else 0


def pair(row: Row, plan: Plan, gpu: GPU) -> Pair:
    """Predict the time of ``row``'s case with the plan that it was measured with."""
    work = counts_of(row, plan, gpu)
    known = timing.inputs_of(gpu)
    if row.case_values["variant"] == FILTER:
        known = filter_time.inputs_of(known)
    elif work.source == filter_time.INSIDE:
        known = filter_time.inputs_inside(known, plan)
    time, low, high = timing.time_with_interval(work, gpu, known)
    return Pair(row, plan, time * 1e6, low * 1e6, high * 1e6, timing.bound(timing.terms(work, gpu, known)))


def decide(pairs: Sequence[Pair]) -> list[Decision]:
    """Judge the order and the factor list of every case that was measured with more than one at the same commit.

    Kernels change between commits, and rows of an older one say nothing about the choice between today's.
    """
    out = []
    cases: dict[tuple[str, str, str], list[Pair]] = {}
    for p in pairs:
        if p.row.case_values["variant"] in counting.VARIANTS:
            cases.setdefault((p.row.case, p.row.dtype, p.row.commit), []).append(p)
    for (case, dtype, _), members in cases.items():
        by_order: dict[int, list[Pair]] = {}
        for p in members:
            by_order.setdefault(p.plan.order, []).append(p)
        if len(by_order) > 1:
            chosen = min(members, key=lambda p: p.predicted_us).plan.order
            measured = {order: min(p.row.median_us for p in group) for order, group in by_order.items()}
            best = min(measured, key=lambda order: measured[order])
            out.append(
                Decision("order", case, dtype, str(chosen), str(best), measured[chosen] / measured[best])
            )
        for group in by_order.values():
            if len({p.plan.factors for p in group}) < 2:
                continue
            choice = min(group, key=lambda p: p.predicted_us)
            top = min(group, key=lambda p: p.row.median_us)
            regret = choice.row.median_us / top.row.median_us
            names = (format_factors(choice.plan.factors), format_factors(top.plan.factors))
            out.append(Decision("tile", case, dtype, *names, regret))
    return out


def compare(gpu: str | GPU, *, op: str = "fftconv", folder: Path | None = None) -> Comparison:
    """Predictions beside every measured row of ours for one operation on one GPU."""
    chosen = load(gpu)
    return judge(measurements.read(chosen.slug, op=op, folder=folder), chosen, op=op)


def judge(rows: Sequence[Row], gpu: GPU, *, op: str = "fftconv") -> Comparison:
    """Predictions beside those of ``rows`` that are ours."""
    ours = [(row, plan_to_judge(row)) for row in rows if row.ours]
    pairs = [pair(row, plan, gpu) for row, plan in ours if plan is not None]
    return Comparison(op, gpu, tuple(pairs), tuple(decide(pairs)), len(ours) - len(pairs))
