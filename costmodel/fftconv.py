"""Predictions for the FFT convolution: candidate plans, their times, and which is best.

Input u[B, H, L] in half precision, one filter per channel, transform length N; y[B, H, wanted]. A plan
(monarch.Plan) says how the transform is factored; `predict` times every sensible plan of order 2, 3 and 4
with the measured model (costmodel.timing) or the paper's (costmodel.equation2) and puts the best first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from costmodel import counts as counting
from costmodel import equation2, timing, units
from costmodel.candidate_plans import LONG_ORDERS, ORDERS, plans
from costmodel.counts import VARIANTS, Counts
from costmodel.gpus import GPU, load
from costmodel.long_counts import ON_CHIP
from monarch import Plan, format_factors

MODELS = ("measured", "paper")
MAX_PER_ORDER = 3


def plan_name(plan: Plan) -> str:
    """``"32x32"``, with the packing where it is not the usual one: ``"32x32x32 half"``, ``"32x16 right"`` (angle)."""
    text = format_factors(plan.factors)
    return text if plan.packing == "pair" else f"{text} {plan.packing.removesuffix('-angle')}"


@dataclass(frozen=True)
class Candidate:
    """One plan with its predicted time in seconds and what bounds it.

    ``margin`` is how much slower it is than the best plan; for the best, how much slower the best plan of
    another order is (or the runner-up, when there is one order only). The paper's model times without ``counts``.
    """

    plan: Plan
    time_s: float
    time_low_s: float
    time_high_s: float
    bound: str
    margin: float
    terms_s: dict[str, float]
    counts: Counts | None = None

    @property
    def name(self) -> str:
        """The plan's name."""
        return plan_name(self.plan)

    @property
    def bound_share(self) -> float:
        """How much of the time what binds takes, were it alone."""
        return max(self.terms_s.values()) / self.time_s

    @property
    def has_kernel(self) -> bool:
        """Whether a kernel for this plan exists (on this GPU); its counts are then exact."""
        return bool(self.counts and self.counts.exact)

    def as_dict(self) -> dict[str, Any]:
        """The JSON form; times in microseconds."""
        return {
            "plan": self.name,
            "order": self.plan.order,
            "factors": list(self.plan.factors),
            "packing": self.plan.packing,
            "time_us": self.time_s * 1e6,
            "time_low_us": self.time_low_s * 1e6,
            "time_high_us": self.time_high_s * 1e6,
            "bound": self.bound,
            "bound_share": self.bound_share,
            "margin": self.margin,
            "kernel": self.has_kernel,
            "exact_counts": self.has_kernel,
            "terms_us": {key: value * 1e6 for key, value in self.terms_s.items()},
        }


@dataclass(frozen=True)
class Forecast:
    """Answer for one case: candidates with the best first, the floor in seconds, and notes for the reader."""

    inputs: dict[str, Any]
    gpu: GPU
    candidates: tuple[Candidate, ...]
    floor_s: float
    notes: tuple[str, ...]

    @property
    def best(self) -> Candidate:
        """The fastest candidate."""
        return self.candidates[0]

    def best_of_order(self, order: int) -> Candidate | None:
        """The fastest candidate of one order, if there is one."""
        return next((c for c in self.candidates if c.plan.order == order), None)

    @property
    def best_with_kernel(self) -> Candidate | None:
        """The fastest candidate that a kernel exists for, if there is one."""
        return next((c for c in self.candidates if c.has_kernel), None)

    @property
    def tie(self) -> bool:
        """Whether the margin to the runner-up is smaller than the best plan's interval."""
        return len(self.candidates) > 1 and self.best.time_s * (1 + self.best.margin) < self.best.time_high_s

    def conclusion(self) -> str:
        """One plain sentence."""
        best = self.best
        time = units.microseconds(best.time_s * 1e6)
        text = (
            f"Best plan {best.name} (order {best.plan.order}): {time}, "
            f"{units.ratio(best.time_s / self.floor_s)}x the memory floor, bound by {best.bound}, "
            f"{best.bound_share:.0%} of its time"
        )
        other = next((c for c in self.candidates if c.plan.order != best.plan.order), None)
        if other is None:
            return text + "."
        tie = ", inside the interval: a tie" if self.tie else ""
        return (
            text + f"; the best of order {other.plan.order} ({other.name}) is {best.margin:.0%} slower{tie}."
        )


def _case(
    n: int, batch: int, channels: int, length: int | None, wanted: int | None, dtype: str, variant: str
) -> dict[str, Any]:
    for name, value in (("N", n), ("B", batch), ("H", channels)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name}: got {value!r} ({type(value).__name__}); accepted: an integer")
        if value < 1:
            raise ValueError(f"{name}: got {value}; accepted: at least 1")
    if n > 2**26:
        raise ValueError(f"N: got {n}; accepted: up to {2**26} (64M) points")
    if variant not in VARIANTS:
        raise ValueError(f"variant: got {variant!r}; accepted: {', '.join(VARIANTS)}")
    if dtype not in counting.ITEM_BYTES:
        raise ValueError(f"dtype: got {dtype!r}; accepted: {', '.join(counting.ITEM_BYTES)}")
    if length is None:
        length = max(1, n // 2) if variant.startswith("causal") else n
    wanted = length if wanted is None else wanted
    for name, value in (("L", length), ("wanted", wanted)):
        if not 1 <= value <= n:
            raise ValueError(
                f"{name}: got {value}; accepted: 1 to N = {n} (a longer input needs a longer transform)"
            )
    return {
        "op": "fftconv",
        "B": batch,
        "H": channels,
        "N": n,
        "L": length,
        "wanted": wanted,
        "dtype": dtype,
        "variant": variant,
    }


def predict(
    n: int,
    *,
    gpu: str | GPU,
    batch: int = 64,
    channels: int = 768,
    length: int | None = None,
    wanted: int | None = None,
    dtype: str = "fp16",
    variant: str = "plain",
    order: int | None = None,
    packing: str = "auto",
    model: str = "measured",
) -> Forecast:
    """Time every candidate plan of one case; the best comes first.

    Args:
        n: transform length N.
        gpu: slug, path of a GPU file, ``"auto"`` or a GPU.
        batch: B, sequences that share a filter.
        channels: H, filters.
        length: L, input samples (default N; N/2 for causal variants, so that the result does not wrap round).
        wanted: output samples (default L).
        dtype: what input and output are stored in: ``"fp16"`` or ``"bf16"``, by products of small matrices on tensor
            cores, or ``"fp32"``, by an FFT on CUDA cores.
        variant: ``"plain"``, ``"causal"``, ``"gated"`` or ``"causal-gated"``.
        order: only plans of this order.
        packing: ``"auto"``, ``"pair"``, ``"half"``, ``"right-angle"``, ``"any"`` (of these) or ``"complex"`` data
            (see `plans`).
        model: ``"measured"``, or ``"paper"`` for Equation 2.

    Raises:
        ValueError, TypeError: an argument is out of range, with what is accepted.
        UnknownGPUError: no such GPU.
    """
    inputs = _case(n, batch, channels, length, wanted, dtype, variant)
    if model not in MODELS:
        raise ValueError(f"model: got {model!r}; accepted: {', '.join(MODELS)}")
    if model == "paper" and dtype == "fp32":
        raise ValueError("model: the paper's is of products in half precision; accepted with fp32: measured")
    inputs |= {"model": model, "packing": packing}
    chosen = load(gpu)
    orders = (*ORDERS, *(LONG_ORDERS if n > ON_CHIP else ())) if order is None else (order,)
    make = _by_paper if model == "paper" else _by_measurement
    found = sorted(make(inputs, chosen, orders, packing), key=_rank)
    minimum = counting.bytes_minimum(
        inputs["L"], inputs["wanted"], batch, channels, dtype=dtype, variant=variant
    ) * (2 if packing == "complex" else 1)
    floor = minimum / timing.inputs_of(chosen)["memory_rate"].value
    kept = _keep(found)
    return Forecast(inputs, chosen, _with_margins(kept), floor, tuple(_notes(chosen, minimum, kept, model)))


def _rank(c: Candidate) -> tuple[float, bool, tuple[int, ...]]:
    return (float(f"{c.time_s:.6e}"), not c.has_kernel, tuple(-f for f in c.plan.factors))


def _counts(plan: Plan, inputs: dict[str, Any], gpu: GPU) -> Counts:
    return counting.for_plan(
        plan,
        inputs["B"],
        inputs["H"],
        dtype=inputs["dtype"],
        variant=inputs["variant"],
        capacity_bytes=gpu.spec["shared_memory_per_block_bytes"],
        capability=gpu.compute_capability,
    )


def _by_measurement(inputs: dict[str, Any], gpu: GPU, orders: Sequence[int], packing: str) -> list[Candidate]:
    capacity = gpu.spec["shared_memory_per_block_bytes"]
    n = inputs["N"]
    signal, wanted = (None if inputs[key] == n else inputs[key] for key in ("L", "wanted"))
    known = timing.inputs_of(gpu)
    rough = []
    for plan in plans(
        n,
        capacity_bytes=capacity,
        orders=orders,
        packing=packing,
        signal=signal,
        wanted=wanted,
        dtype=inputs["dtype"],
    ):
        work = _counts(plan, inputs, gpu)
        parts = timing.terms(work, gpu, known)
        time = timing.seconds(work, gpu, known)
        rough.append(Candidate(plan, time, time, time, timing.bound(parts), 0.0, parts, work))
    out = []
    for c in _keep(sorted(rough, key=_rank)):  # an interval costs a dozen evaluations: only for what is shown
        assert c.counts is not None
        _, low, high = timing.time_with_interval(c.counts, gpu, known)
        out.append(replace(c, time_low_s=low, time_high_s=high))
    return out


def _by_paper(inputs: dict[str, Any], gpu: GPU, orders: Sequence[int], packing: str) -> list[Candidate]:
    if packing not in ("auto", "pair"):
        raise ValueError(
            f"packing: got {packing!r} with the paper's model, which knows no packing; accepted: auto, pair"
        )
    rates = equation2.constants(gpu)
    known = timing.inputs_of(gpu)
    n = inputs["N"]
    signal, wanted = (None if inputs[key] == n else inputs[key] for key in ("L", "wanted"))
    out = []
    for order in orders:
        factors = equation2.best_factors(inputs["N"], order, rates)
        if factors is None:
            continue

        def evaluate(moved: timing.Inputs, factors: tuple[int, ...] = factors) -> float:
            scaled = replace(
                rates,
                sigma_h=rates.sigma_h * moved["memory_rate"].value / known["memory_rate"].value,
                sigma_s=rates.sigma_s * moved["shared_rate"].value / known["shared_rate"].value,
                tau_m=rates.tau_m * moved["tensor_rate"].value / known["tensor_rate"].value,
                tau_g=rates.tau_g * moved["fp32_rate"].value / known["fp32_rate"].value,
            )
            return equation2.cost(factors, scaled, batch=inputs["B"], channels=inputs["H"])

        scale = inputs["B"] * inputs["H"]
        stages = [equation2.stage_cost(factors, i, rates) for i in range(order)]
        parts = {"products": scale * sum(s[0] for s in stages), "traffic": scale * sum(s[1] for s in stages)}
        low, high = timing.interval(evaluate, known)
        plan = Plan(n=n, factors=factors, signal=signal, wanted=wanted)
        work = _counts(plan, inputs, gpu)
        bound = max(parts, key=lambda key: parts[key])
        out.append(Candidate(plan, sum(parts.values()), low, high, bound, 0.0, parts, work))
    if not out:
        raise ValueError(f"N: {n} has no factor list of order {' or '.join(map(str, orders))}")
    return out


def _keep(ordered: list[Candidate]) -> list[Candidate]:
    """The first few of each order and packing, without permutations that cost the same, and the best with a kernel."""
    kept: list[Candidate] = []
    seen: set[tuple[Any, ...]] = set()
    per_kind: dict[tuple[int, str], int] = {}
    for c in ordered:
        same = (tuple(sorted(c.plan.factors)), c.plan.packing, f"{c.time_s:.5e}")
        kind = (c.plan.order, c.plan.packing)
        first_kernel = c.has_kernel and not any(k.has_kernel for k in kept)
        if not first_kernel and (same in seen or per_kind.get(kind, 0) >= MAX_PER_ORDER):
            continue
        seen.add(same)
        per_kind[kind] = per_kind.get(kind, 0) + 1
        kept.append(c)
    return kept


def _with_margins(ordered: list[Candidate]) -> tuple[Candidate, ...]:
    best = ordered[0]
    others = [c for c in ordered[1:] if c.plan.order != best.plan.order] or ordered[1:]
    first = replace(best, margin=others[0].time_s / best.time_s - 1 if others else 0.0)
    return (first, *(replace(c, margin=c.time_s / best.time_s - 1) for c in ordered[1:]))


def _notes(gpu: GPU, minimum: int, ordered: Sequence[Candidate], model: str) -> list[str]:
    notes = list(gpu.notes)
    best = ordered[0]
    if gpu.data_sheet_only:
        unsure = f" ({gpu.spec_note})" if gpu.spec_note else ""
        notes.append(f"{gpu.slug} is known from its data sheet only: the intervals are wider{unsure}")
    if minimum > gpu.spec["memory_bytes"]:
        notes.append(
            f"input and output are {minimum / 1e9:.0f} GB and the GPU has "
            f"{gpu.spec['memory_bytes'] / 1e9:.0f}: the time is that of parts that fit, one after the other"
        )
    if not best.has_kernel and gpu.runs_kernels:
        text = "no kernel exists for the best plan"
        if model != "paper":
            text += ", so its work is counted analytically"
        other = next((c for c in ordered if c.has_kernel), None)
        if other is None:
            notes.append(f"{text}; nor for any other plan shown")
        else:
            slower = other.time_s / best.time_s - 1
            notes.append(f"{text}; the fastest plan with a kernel is {other.name}, {slower:.0%} slower")
    return notes


def explain(forecast: Forecast) -> str:
    """How the best candidate's time comes about, term by term with numbers."""
    best, inputs = forecast.best, forecast.inputs
    if inputs["model"] == "paper":
        return equation2.explain(
            best.plan.factors, equation2.constants(forecast.gpu), batch=inputs["B"], channels=inputs["H"]
        )
    assert best.counts is not None
    head = f"{best.name}: {prod(best.plan.factors)} complex points a transform, {best.plan.packing} packing"
    return f"{head}\n{timing.explain(best.counts, forecast.gpu)}"


def best_plan(
    n: int,
    *,
    gpu: str | GPU,
    order: int | None = None,
    packing: str = "pair",
    signal: int | None = None,
    wanted: int | None = None,
) -> Plan:
    """The plan that the measured model prefers for a circular transform of length ``n`` on ``gpu``.

    Example:
        >>> best_plan(1024, gpu="h200-sxm").order
        2
    """
    return predict(n, gpu=gpu, order=order, packing=packing, length=signal or n, wanted=wanted or n).best.plan
