"""Which plans a measurement times: the default, and those that it was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import monarch
from monarch import Plan


def plans_asked(texts: Sequence[str]) -> list[Plan]:
    """The plans of factor lists such as "16x8x16x16", with every packing of real data that a kernel has for them.

    Raises ``ValueError`` for factors that no kernel takes.
    """
    from kernels_numba.families import FAMILIES, family_of

    found = []
    for text in texts:
        factors = monarch.parse_factors(text)
        plans = [
            Plan.of(factors, packing=packing)
            for family in FAMILIES
            for packing, lists in family.PACKINGS.items()
            if factors in lists and packing != "complex"  # measured sequences are real
        ]
        found += plans or [Plan.of(factors)]
        family_of(found[-1])
    return found


def default_of(case: Any) -> Plan | None:
    """The default plan of a `measure.Case`; None for a length that has none."""
    from kernels_numba.families import default_plans

    return default_plans(halved=2 * case.length <= case.n, dtype=case.dtype).get(case.n)


def plans_of(case: Any, asked: Sequence[Plan] = ()) -> list[Plan]:
    """What is timed of a `measure.Case`: the default, if there is one, then what was asked for.

    When nothing was asked for, of the plain fp16 case of every length all lists with the default's packing, and of
    causal cases the default for longer signals.
    """
    from kernels_numba import fused_any
    from kernels_numba.families import FAMILIES, default_plan

    default = default_of(case)
    others = [plan for plan in asked if plan.n == case.n and case.length <= (plan.signal or plan.n)]
    if default is None:
        return others
    if not asked:
        others = [default_plan(case.n, case.dtype)]
    if not asked and case.variant == "plain" and case.dtype == "fp16" and case.batch > 1:
        tuned = [family for family in FAMILIES if family is not fused_any]
        lists = [f for family in tuned for f in family.PACKINGS.get(default.packing, ())]
        others = [default.with_(factors=f) for f in lists if math.prod(f) == default.points]
    return [default, *(plan for plan in others if plan != default)]
