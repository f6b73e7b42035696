"""Which kernel sums the filter's gradient over the batch, for a transform length: a registry, as `families` is.

A family is a module with ``FACTORS``, ``PACKINGS``, ``make_spec``, ``build``, ``SIGNATURE``, ``min_blocks``,
``workers``, ``operand_key``, ``operands`` and ``sums_layout`` (the bins of its result, and a factor).
"""

from __future__ import annotations

from functools import cache
from math import prod
from types import ModuleType

from kernels_numba import gradient_block, gradient_float, gradient_warp
from kernels_numba.device import LARGEST_SHARED_BYTES
from monarch import Plan, format_factors

FAMILIES: tuple[ModuleType, ...] = (gradient_warp, gradient_block)
"""For fp16 and bf16 products."""

DEFAULT_FACTORS: dict[int, tuple[tuple[int, ...], ...]] = {
    256: ((16, 16),),
    512: ((16, 32),),
    768: ((48, 16),),
    1024: ((32, 32),),
    1536: ((48, 32),),
    2048: ((8, 16, 16),),
    4096: ((16, 16, 16),),
    8192: ((16, 16, 32), (32, 16, 16)),
    12288: ((48, 16, 16),),
    16384: ((32, 16, 32), (64, 16, 16)),
    24576: ((48, 16, 32),),
    32768: ((32, 32, 32), (64, 16, 32)),
    49152: ((48, 32, 32),),
    65536: ((64, 32, 32),),
}
"""For every transform length the factors measured fastest on an H200, then some that need less shared memory."""
RIGHT_ANGLE_FACTORS: dict[int, tuple[int, ...]] = {
    512: (16, 16),
    768: (24, 16),
    1024: (32, 16),
    1536: (48, 16),
    4096: (8, 16, 16),
    8192: (16, 16, 16),
    12288: (24, 16, 16),
    16384: (16, 16, 32),
    24576: (24, 16, 32),
    32768: (16, 32, 32),
    49152: (24, 32, 32),
    65536: (32, 32, 32),
}
"""The same for sequences of at most half a length, by right-angle packing."""
FLOAT_FACTORS = {prod(f): (f,) for f in gradient_float.FACTORS}
"""Those of fp32."""


def family_of(plan: Plan, dtype: str = "fp16") -> ModuleType | None:
    """The family that runs a plan with products of a type, or None."""
    families = (gradient_float,) if dtype == "fp32" else FAMILIES
    return next((f for f in families if plan.factors in f.PACKINGS.get(plan.packing, ())), None)


@cache
def default_plans(limit: int = LARGEST_SHARED_BYTES, dtype: str = "fp16") -> dict[int, Plan]:
    """By transform length, the plans for a GPU whose blocks can have ``limit`` bytes of shared memory."""
    found = {}
    for n, lists in sorted((FLOAT_FACTORS if dtype == "fp32" else DEFAULT_FACTORS).items()):
        for factors in lists:
            plan = Plan(n, factors)
            if family_of(plan, dtype) and _least_shared(plan, dtype) <= limit:
                found[n] = plan
                break
    return found


@cache
def turned_plans(limit: int = LARGEST_SHARED_BYTES) -> dict[int, Plan]:
    """The same for sequences of at most half a transform's length and products of half precision."""
    plans = {n: Plan(n, factors, packing="right-angle") for n, factors in RIGHT_ANGLE_FACTORS.items()}
    return {n: plan for n, plan in plans.items() if _least_shared(plan, "fp16") <= limit}


def _least_shared(plan: Plan, dtype: str) -> int:
    """Bytes of shared memory a block that a plan's kernel needs, with gates, which take more."""
    family = family_of(plan, dtype)
    assert family is not None
    found: int = family.make_spec(plan, dtype, shared_limit=0, pregate=True, postgate=True).shared_bytes
    return found


def choose(
    length: int, need: int, plan: Plan | None, limit: int, dtype: str, *, circular: bool, exact: int = 0
) -> Plan:
    """The plan for sequences of ``length`` samples: the one of the convolution if a kernel runs it, else the default.

    ``need``: points without aliasing; ``exact``: the transform has to have so many points. Raises ``ValueError`` where
    no transform is long enough, or has them.
    """
    if exact and not (plan is not None and family_of(plan, dtype) is not None):
        plans = default_plans(limit, dtype)
        if exact not in plans:
            raise ValueError(
                f"plan: the gradient in a filter with zeros takes transforms of {', '.join(map(str, plans))} points "
                f"here, and longer ones with outer stages, not of {exact}; take such a plan, or "
                "reference.sparse_fftconv_gradients"
            )
        chosen = plans[exact]
    elif plan is not None and family_of(plan, dtype) is not None:
        chosen = plan
    else:
        plans = default_plans(limit, dtype)
        fitting = [n for n in plans if n >= need]
        if circular and length in plans:
            chosen = plans[length]
        elif fitting:
            chosen = plans[fitting[0]]
            if 2 * length <= chosen.n and dtype != "fp32":
                chosen = turned_plans(limit).get(chosen.n, chosen)
        else:
            longest = plans[max(plans)]
            raise ValueError(
                f"u: the filter's gradient of {length} samples needs {need} points; its kernels take up to {longest.n} "
                f"({format_factors(longest.factors)}) here. reference.fftconv_gradients computes any length in float64."
            )
    return chosen.with_(signal=min(length, chosen.n), wanted=min(length, chosen.n))


assert all(prod(factors) == n for n, lists in DEFAULT_FACTORS.items() for factors in lists)
assert all(2 * prod(factors) == n for n, factors in RIGHT_ANGLE_FACTORS.items())
