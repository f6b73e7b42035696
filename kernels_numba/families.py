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

from kernels_numba import fused_block, fused_deep, fused_warp
from kernels_numba.device import LARGEST_SHARED_BYTES
from monarch import Plan, format_factors

FAMILIES: dict[int, ModuleType] = {2: fused_warp, 3: fused_block, 4: fused_deep}

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
    32768: (16, 8, 16, 16),
    49152: (48, 16, 32),
    65536: (16, 8, 16, 16),
}
"""For every transform length the factors measured fastest on an H200 (costmodel/measurements). Factors of half the
length mean half-length packing."""


def shared_bytes(plan: Plan) -> int:
    """The least shared memory a block that the plan's kernel can run with."""
    return family_of(plan).make_spec(plan, "fp16", shared_limit=0).shared_bytes


@cache
def default_plans(limit: int = LARGEST_SHARED_BYTES) -> dict[int, Plan]:
    """By transform length, the plans for a GPU whose blocks can have ``limit`` bytes of shared memory.

    Where a pair of sequences does not fit, one sequence may, with half-length packing; other lengths are left out.
    """
    found = {}
    for n, factors in DEFAULT_FACTORS.items():
        shorter = DEFAULT_FACTORS.get(n // 2, ())
        candidates = [Plan(n, factors)] if prod(factors) == n else []
        candidates += [Plan(n, f, packing="half") for f in (factors, shorter) if 2 * prod(f) == n]
        for plan in candidates:
            runs = plan.factors in FAMILIES[plan.order].PACKINGS.get(plan.packing, ())
            if runs and shared_bytes(plan) <= limit:
                found[n] = plan
                break
    return found


def default_plan(n: int) -> Plan:
    """The plan for a transform length of `DEFAULT_FACTORS`, on a GPU with the most shared memory."""
    return default_plans()[n]


def family_of(plan: Plan) -> ModuleType:
    """The family that runs a plan. Raises ``ValueError`` when there is none, saying what there is."""
    family = FAMILIES.get(plan.order)
    if family is None or plan.factors not in family.PACKINGS.get(plan.packing, ()):
        accepted: dict[str, list[str]] = {}
        for each in FAMILIES.values():
            for packing, factors in each.PACKINGS.items():
                accepted.setdefault(packing, []).extend(map(format_factors, factors))
        listed = "; ".join(
            f"with packing '{packing}' " + ", ".join(found) for packing, found in accepted.items()
        )
        raise ValueError(f"plan: no fused kernel runs {plan}; accepted {listed}")
    return family
