"""Which kernel runs a plan: a registry of kernel families.

A family is a module with ``FACTORS`` (the plans it runs), ``make_spec`` (plan to compiled-in choices), ``build``
(the kernel function), ``SIGNATURE``, ``min_blocks``, ``workers`` (who takes items), ``operands`` (its constant
buffers) and ``spectrum_layout`` (the filter's order). A new kernel is a new family; nothing else changes.
"""

from __future__ import annotations

from types import ModuleType

from kernels_numba import fused_block, fused_warp
from monarch import Plan, format_factors

FAMILIES: dict[int, ModuleType] = {2: fused_warp, 3: fused_block}

DEFAULT_FACTORS: dict[int, tuple[int, ...]] = {
    256: (16, 16),
    512: (16, 32),
    1024: (32, 32),
    2048: (8, 16, 16),
    4096: (16, 16, 16),
    8192: (16, 16, 32),
    16384: (16, 32, 32),
    32768: (32, 32, 32),
}
"""For every transform length the factors measured fastest on an H200 (costmodel/measurements)."""


def family_of(plan: Plan) -> ModuleType:
    """The family that runs a plan. Raises ``ValueError`` when there is none, saying what there is."""
    family = FAMILIES.get(plan.order)
    if family is None or plan.packing != "pair" or plan.factors not in family.FACTORS:
        accepted = ", ".join(format_factors(f) for family in FAMILIES.values() for f in family.FACTORS)
        raise ValueError(f"plan: no fused kernel runs {plan}; accepted with packing 'pair' are {accepted}")
    return family
