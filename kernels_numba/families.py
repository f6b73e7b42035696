"""Which kernel runs a plan: a registry of kernel families.

A family is a module with ``FACTORS`` and ``PACKINGS`` (the plans it runs), ``make_spec`` (plan to compiled-in
choices), ``build`` (the kernel function), ``SIGNATURE``, ``min_blocks``, ``workers`` (who takes items),
``operand_key`` and ``operands`` (its constant buffers, and what they depend on) and ``spectrum_layout`` (the filter's
order). A new kernel is a new family; nothing else changes.
"""

from __future__ import annotations

from functools import cache
from math import prod
from types import ModuleType

from kernels_numba import fused_block, fused_float, fused_warp
from kernels_numba.device import LARGEST_SHARED_BYTES
from monarch import Plan, format_factors

FAMILIES: dict[int, ModuleType] = {2: fused_warp, 3: fused_block}
"""By order, for fp16 and bf16."""

DEFAULT_FACTORS: dict[int, tuple[int, ...]] = {
    256: (16, 16),
    512: (16, 32),
    768: (48, 16),
    1024: (32, 32),
    1536: (48, 32),
    2048: (8, 16, 16),
    4096: (16, 16, 16),
    8192: (16, 16, 32),
    12288: (48, 16, 16),
    16384: (16, 32, 32),
    24576: (48, 16, 32),
    32768: (32, 32, 32),
    49152: (48, 16, 32),
    65536: (32, 32, 32),
}
"""For every transform length the factors measured fastest on an H200 (costmodel/measurements). Factors of half the
length mean half-length packing."""


def families(dtype: str = "fp16") -> dict[int, ModuleType]:
    """By order, the families for sequences of a dtype: fp32 has one for every order."""
    return dict.fromkeys((2, 3, 4), fused_float) if dtype == "fp32" else FAMILIES


def default_factors(dtype: str = "fp16") -> dict[int, tuple[int, ...]]:
    """By transform length, the factors that are best for a dtype."""
    return fused_float.DEFAULT_FACTORS if dtype == "fp32" else DEFAULT_FACTORS


def shared_bytes(plan: Plan, dtype: str = "fp16") -> int:
    """The least shared memory a block that the plan's kernel can run with."""
    return family_of(plan, dtype).make_spec(plan, dtype, shared_limit=0).shared_bytes


@cache
def default_plans(limit: int = LARGEST_SHARED_BYTES, dtype: str = "fp16") -> dict[int, Plan]:
    """By transform length, the plans for a GPU whose blocks can have ``limit`` bytes of shared memory.

    Where a pair of sequences does not fit, one sequence may, with half-length packing; other lengths are left out.
    """
    found = {}
    by_length = default_factors(dtype)
    for n, factors in by_length.items():
        shorter = by_length.get(n // 2, ())
        candidates = [Plan(n, factors)] if prod(factors) == n else []
        candidates += [Plan(n, f, packing="half") for f in (factors, shorter) if 2 * prod(f) == n]
        for plan in candidates:
            runs = plan.factors in families(dtype)[plan.order].PACKINGS.get(plan.packing, ())
            if runs and shared_bytes(plan, dtype) <= limit:
                found[n] = plan
                break
    return found


def default_plan(n: int, dtype: str = "fp16") -> Plan:
    """The plan for a transform length of `default_factors`, on a GPU with the most shared memory."""
    return default_plans(dtype=dtype)[n]


def family_of(plan: Plan, dtype: str = "fp16") -> ModuleType:
    """The family that runs a plan on sequences of a dtype. Raises ``ValueError`` if there is none, saying what is."""
    registered = families(dtype)
    family = registered.get(plan.order)
    if family is None or plan.factors not in family.PACKINGS.get(plan.packing, ()):
        accepted: dict[str, list[str]] = {}
        for each in dict.fromkeys(registered.values()):
            for packing, factors in each.PACKINGS.items():
                accepted.setdefault(packing, []).extend(map(format_factors, factors))
        listed = "; ".join(
            f"with packing '{packing}' " + ", ".join(found) for packing, found in accepted.items()
        )
        kind = " in fp32" if dtype == "fp32" else ""
        raise ValueError(f"plan: no fused kernel runs {plan}{kind}; accepted {listed}")
    return family
