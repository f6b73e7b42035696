"""Which kernels of any factors, and of fp32, are in the table of `resources`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kernels_numba import fused_rounds
from kernels_numba.any_spec import LARGEST_LAST
from kernels_numba.families import default_plans, family_of
from monarch import Plan


def any_kernels() -> Iterator[tuple[Any, Any]]:
    """Any factors: orders 2 and 3, each packing, factors read through the caches, gates, and both formats.

    A first factor that is no multiple of 8, and the largest; every last factor above 32.
    """
    for last in range(
        48, LARGEST_LAST + 1, 16
    ):  # the larger the last factor, the more does not fit into registers
        yield _kernel(Plan(16 * last, (16, last)), "fp16")
    for factors, packing, dtype in (
        ((17, 16, 16), "pair", "fp16"),
        ((432, 16), "pair", "fp16"),
        ((48, 48), "pair", "fp16"),
        ((112, 112), "pair", "fp16"),
        ((48, 48, 16), "pair", "bf16"),
        ((48, 48), "half", "fp16"),
        ((112, 16, 16), "half", "fp16"),
        ((16, 16, 128), "half", "fp16"),
    ):
        plan = Plan.of(factors, packing=packing)
        yield _kernel(plan, dtype)
    yield _kernel(Plan(2304, (48, 48)), "fp16", guarded=True, pregate=True, postgate=True)
    yield _kernel(Plan(2304, (48, 48), signal=1152, wanted=1152), "fp16")
    for gated in (False, True):
        family, spec = _kernel(
            Plan(4096, (16, 16, 16), packing="complex"), "fp16", guarded=gated, pregate=gated, postgate=gated
        )
        yield family, replace(spec, sequences="fp32")


def float_kernels() -> Iterator[tuple[Any, Any]]:
    """fp32: the default plans, and gated, guarded and causal ones at 1024 points.

    Of those whose points stay in shared memory two, and a gated and guarded one.
    """
    plans = default_plans(dtype="fp32")
    for plan in plans.values():
        if family_of(plan, "fp32") is not fused_rounds:
            yield _kernel(plan, "fp32")
    yield _kernel(plans[1024], "fp32", guarded=True, pregate=True, postgate=True)
    yield _kernel(plans[1024].with_(signal=512, wanted=512), "fp32")
    for n in (49152, 57344):
        yield _kernel(plans[n], "fp32")
    yield _kernel(Plan(3072, (12, 16, 16)), "fp32", guarded=True, pregate=True, postgate=True)


def _kernel(plan: Plan, dtype: str, **variant: bool) -> tuple[Any, Any]:
    family = family_of(plan, dtype)
    return family, family.make_spec(plan, dtype, **variant)
