"""How the time of a linear layer comes about: every term with its numbers, and the input that moves it most."""

from __future__ import annotations

from dataclasses import fields, replace
from math import sqrt
from typing import Any

from costmodel import linear, sensitivity, units
from costmodel.gpus import GPU
from costmodel.linear_kernels import KERNEL, OVERLAP_ORDER, kind_of

COUNTED = {
    "memory": ("B", "memory_bytes_per_s"),
    "L2": ("B", "cached_bytes_per_s"),
    "CUDA cores": ("lane instructions", "lane_instructions_per_s"),
    "tensor cores": ("flop", "tensor_flops_per_s"),
}
"""Unit of the work of a term, and the rate that does it."""


def explain(m: int, n: int, k: int, choice: Any, gpu: GPU, *, dtype: str = "fp16") -> str:
    """Term by term: work / rate = time, then how they add up, the most sensitive input, and what binds."""
    from kernels_numba.linear_product import product

    made, rates = product(choice, m, n, k, dtype), linear.rates(gpu)
    total, bound, terms = linear.time_of(made, rates)
    start = terms[linear.START]
    lines = [
        f"{choice}: x [{m}, {k}] times w [{n}, {k}], {made.grid} blocks of {32 * made.spec.warps} threads"
        + (f", {made.split} share their outputs" if made.split > 1 else "")
    ]
    for name, seconds in terms.items():
        if name == linear.START:
            continue
        if name not in COUNTED:  # of the product on warpgroups: slabs one after the other on the busiest SM
            lines.append(f"  {name:<13} {_us(seconds)}")
            continue
        unit, rate_name = COUNTED[name]
        work, rate = _work(name, made), getattr(rates, _rate_of(rate_name, made))
        uneven = seconds * rate / work
        extra = "" if abs(uneven - 1) < 0.005 else f" x {uneven:.3g}"
        lines.append(f"  {name:<13} {work:.4g} {unit} / {rate:.4g}/s{extra} = {_us(seconds)}")
    lines.append(
        f"  {linear.START:<13} {_us(start)} beside the work: launching, the first fetch, sums at the end"
    )
    order = OVERLAP_ORDER[kind_of(choice)]
    inside = ", ".join(_us(seconds) for name, seconds in terms.items() if name != linear.START)
    lines.append(
        f"t = start + norm of order {order:g} of ({inside}) = {_us(start)} + {_us(total - start)} = {_us(total)}"
    )
    lines.append("(Factors: what idle SMs, tiles that are not full or the busiest SM add.)")
    values = {
        f.name: float(getattr(rates, f.name))
        for f in fields(rates)
        if f.name.endswith("_per_s") and getattr(rates, f.name)
    }

    def evaluate(moved: dict[str, Any]) -> float:
        return linear.time_of(made, replace(rates, **moved))[0]

    lines.append(sensitivity.sentence(sensitivity.sensitivities(evaluate, values)))
    spread = sqrt(KERNEL.error**2 + rates.uncertainty**2)
    between = units.microseconds_between(total * 1e6 * (1 - spread), total * 1e6 * (1 + spread))
    share = terms[bound] / total
    lines.append(sensitivity.bound_sentence(bound, _us(terms[bound]), share, _us(total), between))
    return "\n".join(lines)


def _us(seconds: float) -> str:
    return units.microseconds(seconds * 1e6)


def _rate_of(name: str, made: Any) -> str:
    """The rate's name: the full product shares what it reads from L2, and on warpgroups has rates of its own."""
    if made.pitch:
        return {
            "cached_bytes_per_s": "group_cache_bytes_per_s",
            "tensor_flops_per_s": "group_flops_per_s",
        }.get(name, name)
    return "shared_cache_bytes_per_s" if made.choice.impl == "full" and name == "cached_bytes_per_s" else name


def _work(name: str, made: Any) -> float:
    """The work of a term, everything included that all blocks do."""
    from costmodel.linear_counts import of_product
    from kernels_numba import linear_thresholds as shared

    if name == "memory":
        return 2.0 * (made.n * made.k + made.m * (made.k + made.n))
    if name == "CUDA cores":
        return made.n * made.k * (shared.WEIGHT_INSTRUCTIONS + shared.INPUT_INSTRUCTIONS * made.m)
    counted = of_product(made)
    if name == "tensor cores":
        return 4096.0 * counted.mma_m16n8k16
    passing = sum(counted.global_read_bytes.values()) + sum(counted.global_written_bytes.values())
    if made.choice.impl == "gemv":
        passing -= counted.global_read_bytes.get("x", 0)
    return float(passing)
