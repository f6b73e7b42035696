"""Which kernel runs a plan: a registry of kernel families.

A family is a module with ``FACTORS`` and ``PACKINGS`` (the plans it runs), ``make_spec`` (plan to compiled-in
choices), ``build`` (the kernel function), ``SIGNATURE``, ``min_blocks``, ``workers`` (who takes items),
``operand_key`` and ``operands`` (its constant buffers, and what they depend on) and ``spectrum_layout`` (the filter's
order). One whose instructions only one compute capability has says so as ``CAPABILITY``; one with too many plans to
list says in words what they are as ``ACCEPTED``; one whose items are more sequences than share a transform says, by
packing, how many, as ``TOGETHER``. A new kernel is a new family; nothing else changes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from types import ModuleType
from typing import Any

from kernels_numba import (
    fused_any,
    fused_block,
    fused_deep,
    fused_float,
    fused_group,
    fused_rounds,
    fused_warp,
)
from kernels_numba.device import LARGEST_SHARED_BYTES
from monarch import Plan, format_factors

FAMILIES: tuple[ModuleType, ...] = (fused_warp, fused_group, fused_block, fused_deep, fused_any)
"""For fp16 and bf16."""

FLOAT_FAMILIES: tuple[ModuleType, ...] = (fused_float, fused_rounds)
"""For fp32 and complex64."""

FLOAT_TYPES = ("fp32", "complex64")

HOPPER = (9, 0)

DEFAULT_FACTORS: dict[int, tuple[int, ...]] = {
    256: (16, 16),
    512: (16, 32),
    768: (48, 16),
    1024: (32, 32),
    1280: (80, 16),
    1536: (48, 32),
    2048: (8, 16, 16),
    4096: (16, 16, 16),
    8192: (16, 16, 32),
    12288: (48, 16, 16),
    16384: (8, 8, 16, 16),
    24576: (48, 32, 16),
    32768: (16, 8, 16, 16),
    49152: (48, 32, 16),
    65536: (16, 8, 16, 16),
}
"""For every transform length the factors measured fastest on an H200 (costmodel/measurements). Factors of half the
length mean half-length packing."""

HALVED_FACTORS: dict[int, tuple[int, ...]] = {
    2048: (64, 32),
    4096: (64, 64),
    8192: (32, 16, 16),
    16384: (32, 16, 32),
}
"""The same, where it differs, for at most half a length of samples in and out: the usual causal convolution."""

RIGHT_ANGLE_FACTORS: dict[int, tuple[int, ...]] = {
    512: (16, 16),
    768: (24, 16),
    1024: (32, 16),
    1280: (40, 16),
    1536: (48, 16),
    4096: (64, 32),
    8192: (16, 16, 16),
    12288: (24, 16, 16),
    16384: (16, 16, 32),
    24576: (24, 32, 16),
    32768: (32, 16, 32),
    65536: (16, 8, 16, 16),
}
"""The same, by right-angle packing."""

COMPLEX_FACTORS: dict[int, tuple[int, ...]] = {
    256: (16, 16),
    512: (32, 16),
    768: (48, 16),
    1024: (32, 32),
    1536: (48, 32),
    2048: (64, 32),
    4096: (16, 16, 16),
    8192: (32, 16, 16),
    12288: (48, 16, 16),
    16384: (32, 32, 16),
    24576: (48, 32, 16),
    32768: (32, 32, 32),
    40960: (80, 32, 16),
}
"""For complex sequences whose products are of half precision; of these the powers of two but 512 were measured."""


def families(dtype: str = "fp16") -> tuple[ModuleType, ...]:
    """The families for sequences of a dtype, for every order."""
    return FLOAT_FAMILIES if dtype in FLOAT_TYPES else FAMILIES


def default_factors(dtype: str = "fp16", *, complex_data: bool = False) -> dict[int, tuple[int, ...]]:
    """By transform length, the factors that are best for a dtype (of products; of complex sequences too)."""
    found: dict[int, tuple[int, ...]] = {**fused_float.DEFAULT_FACTORS, **fused_rounds.DEFAULT_FACTORS}
    if complex_data and dtype not in FLOAT_TYPES:
        return COMPLEX_FACTORS
    if dtype == "complex64":
        whole = {n: factors for n, factors in found.items() if prod(factors) == n}
        return whole | {prod(factors): factors for factors in fused_rounds.DEFAULT_FACTORS.values()}
    return found if dtype == "fp32" else DEFAULT_FACTORS


def fitted(
    spec: Any, plan: Plan, length: int, *, alone: bool, capability: tuple[int, int] | None = None
) -> Any:
    """A kernel's spec for sequences of ``length`` samples on a GPU of a compute capability, if that is known.

    Nothing is masked where the rows that are read and written are whole ones of signal, unless a sequence is ``alone``
    in a pair. Launches may overlap where a kernel can say what it waits for.
    """
    if not hasattr(spec, "overlap"):
        return spec
    row = plan.strides[0] * (2 if plan.packing == "half" else 1)
    if not alone and spec.rows_in * row == length == spec.rows_out * row:
        spec = replace(spec, guarded=False)
    return replace(spec, overlap=capability is not None and capability >= HOPPER)


def sequences_together(plan: Plan, dtype: str = "fp16") -> int:
    """Sequences of an item of a plan's kernel: those that share a transform, or only its tables."""
    together: dict[str, int] = getattr(_find(plan, dtype), "TOGETHER", {})
    return together.get(plan.packing, plan.sequences_per_transform)


def shared_bytes(plan: Plan, dtype: str = "fp16") -> int:
    """The least shared memory a block that the plan's kernel can run with."""
    return family_of(plan, dtype).make_spec(plan, dtype, shared_limit=0).shared_bytes


@cache
def default_plans(
    limit: int = LARGEST_SHARED_BYTES,
    capability: tuple[int, int] = HOPPER,
    *,
    halved: bool = False,
    dtype: str = "fp16",
    complex_data: bool = False,
) -> dict[int, Plan]:
    """By transform length, the plans for sequences of a dtype on a GPU of a compute capability.

    Its blocks can have ``limit`` bytes of shared memory. ``halved``: for at most half a length of samples in and out.
    Where a pair of sequences does not fit, one sequence may, with half-length packing; other lengths are left out.
    ``complex_data``: ``dtype`` is that of the products of complex sequences.
    """
    found = {}
    complex_data = complex_data or dtype == "complex64"
    by_length, halves = default_factors(dtype, complex_data=complex_data), HALVED_FACTORS
    turned = RIGHT_ANGLE_FACTORS
    if dtype in FLOAT_TYPES or complex_data or not halved:
        halves = turned = {}
    packing = "complex" if complex_data else "pair"
    for n, factors in by_length.items():
        lists = [halves[n], factors] if n in halves else [factors]
        candidates = [Plan(n, f, packing=packing) for f in lists if prod(f) == n]
        shorter = by_length.get(n // 2, ())
        halved_lists = (*lists, shorter) if not complex_data else ()  # which have no half-length packing
        candidates += [Plan(n, f, packing="half") for f in halved_lists if 2 * prod(f) == n]
        if n in turned:
            candidates.insert(0, Plan(n, turned[n], packing="right-angle"))
        for plan in candidates:
            family = _find(plan, dtype)
            if family and runs_on(family, capability) and shared_bytes(plan, dtype) <= limit:
                found[n] = plan
                break
    return found


def default_plan(n: int, dtype: str = "fp16", *, complex_data: bool = False) -> Plan:
    """The plan for a transform length of `default_factors`, on an H100 or H200."""
    return default_plans(dtype=dtype, complex_data=complex_data)[n]


def runs_on(family: ModuleType, capability: tuple[int, int], spec: Any = None) -> bool:
    """Whether GPUs of a compute capability have a family's instructions, and those of a kernel of it."""
    needed = getattr(family, "CAPABILITY", None)
    return (needed is None or needed == capability) and capability >= getattr(spec, "since", (0, 0))


def _find(plan: Plan, dtype: str) -> ModuleType | None:
    return next((f for f in families(dtype) if plan.factors in f.PACKINGS.get(plan.packing, ())), None)


def is_fused(plan: Plan, dtype: str = "fp16") -> bool:
    """Whether one kernel runs a plan."""
    return _find(plan, dtype) is not None


def family_of(plan: Plan, dtype: str = "fp16") -> ModuleType:
    """The family that runs a plan on sequences of a dtype. Raises ``ValueError`` if there is none, saying what is."""
    family = _find(plan, dtype)
    if family is None:
        accepted: dict[str, list[str]] = {}
        for each in families(dtype):
            for packing, factors in each.PACKINGS.items():
                in_words = getattr(each, "ACCEPTED", None)
                listed = [in_words] if in_words else map(format_factors, factors)
                accepted.setdefault(packing, []).extend(listed)
        text = "; ".join(
            f"with packing '{packing}' " + ", ".join(found) for packing, found in accepted.items()
        )
        kind = " in fp32" if dtype in FLOAT_TYPES else ""
        same = [f for each in families(dtype) for f in each.PACKINGS.get(plan.packing, ())]
        lists = ", ".join(format_factors(f) for f in same if prod(f) == plan.points)
        instead = f"; lists of {plan.points} points with this packing: {lists}" if lists else ""
        raise ValueError(f"plan: no fused kernel runs {plan}{kind}{instead}; accepted {text}")
    return family
