"""Which kernel runs a plan, and which lengths a GPU's shared memory allows."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import sanitize

import kernels_numba
from kernels_numba import families, prepare_filter, spectrum
from kernels_numba.device import Device
from monarch import Plan

LIMITS = {"H100": 227 * 1024, "A100": 163 * 1024, "RTX 4090": 99 * 1024, "T4": 64 * 1024}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("gates", [False, True], ids=["plain", "gated"])
def test_default_plans_fit(limit: int, gates: bool) -> None:
    """Every default plan's kernel, with gates too, finds a block that fits."""
    plans = families.default_plans(limit)
    assert list(plans) == sorted(plans) and {256, 512, 1024, 4096} <= set(plans)
    for n, plan in plans.items():
        assert plan.n == n
        spec = families.family_of(plan).make_spec(
            plan, "fp16", shared_limit=limit, pregate=gates, postgate=gates, guarded=gates
        )
        assert spec.shared_bytes <= limit and spec.warps >= 1


def test_smaller_cards_take_one_sequence_where_a_pair_does_not_fit() -> None:
    assert families.default_plans(LIMITS["H100"]).keys() == families.DEFAULT_FACTORS.keys()
    large, small = (families.default_plans(LIMITS[card])[32768] for card in ("H100", "A100"))
    assert (large.packing, small.packing) == ("pair", "half") and 2 * prod(small.factors) == 32768
    assert max(families.default_plans(LIMITS["A100"])) == 49152
    assert max(families.default_plans(LIMITS["RTX 4090"])) == 32768


def test_the_limit_follows_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # The card's limits; filters are transformed on the CPU all the same.
    card = Device("cpu", "", 0, "A100", (8, 0), 108, LIMITS["A100"], 164 * 1024, 13000, 1)
    monkeypatch.setattr(spectrum, "device", lambda index=0: card)
    k = np.ones((1, 3), np.float32)
    assert prepare_filter(k, length=32768).plan.packing == "half"
    longer = prepare_filter(k, length=65534, mode="causal")
    assert longer.plan.n == 65536 and longer.outer
    card = replace(card, name="RTX 4090", shared_bytes_per_block=LIMITS["RTX 4090"])
    assert prepare_filter(k, length=32768, dtype="fp32").outer  # 16384 points fit on chip there
    with pytest.raises(
        ValueError, match=r"^u: .*kernels of complex64 take up to 8192 on RTX 4090, by its shared memory"
    ):
        prepare_filter(k, length=32768, dtype="complex64")


@pytest.mark.parametrize(
    ("card", "plan", "legal"),
    [
        ("RTX 4090", Plan(2304, (48, 48)), True),
        ("RTX 4090", Plan(12544, (112, 112)), True),
        ("RTX 4090", Plan(36864, (48, 48, 16)), False),
        ("RTX 4090", Plan(32768, (16, 8, 16, 16)), False),
        ("A100", Plan(36864, (48, 48, 16)), False),
        ("A100", Plan(32768, (16, 64, 32)), True),
        ("A100", Plan(65536, (16, 64, 32), packing="half"), True),
        ("H100", Plan(36864, (48, 48, 16)), True),
        ("H100", Plan(49152, (48, 32, 32)), True),
    ],
)
def test_a_plan_that_a_card_cannot_run_is_refused(
    card: str, plan: Plan, legal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what its block needs at least, before anything is transformed."""
    where = Device("cpu", "", 0, card, (9, 0), 132, LIMITS[card], 228 * 1024, 13000, 1)
    monkeypatch.setattr(spectrum, "device", lambda index=0: where)
    k = np.ones((1, 3), np.float32)
    if legal:
        assert prepare_filter(k, length=plan.n, plan=plan).plan.factors == plan.factors
        return
    with pytest.raises(
        ValueError, match=rf"^plan: .* bytes of shared memory a block, {card} has {LIMITS[card]:,}"
    ):
        prepare_filter(k, length=plan.n, plan=plan)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(4352, (16, 272)),
        Plan(4608, (32, 144)),
        Plan(65536, (64, 32, 32)),
        Plan(4096, (8, 8, 32), packing="half"),
    ],
)
def test_plans_without_a_kernel_are_refused(plan: Plan) -> None:
    with pytest.raises(
        ValueError,
        match=r"^plan: no fused kernel runs .*accepted with packing 'pair' 16x16.*, any N1 x N2 x N3 whose last two",
    ):
        families.family_of(plan)
    with pytest.raises(ValueError, match=r"^plan: no fused kernel"):
        kernels_numba.fftconv(np.zeros((1, 1, plan.n), np.float16), np.ones(1), plan=plan)


@pytest.mark.parametrize("factors", [(32, 32), (16, 16), (64, 32), (32, 16, 16), (16, 8, 16, 16)], ids=str)
def test_whole_rows_are_not_masked(factors: tuple[int, ...]) -> None:
    """Half of a signal ends with a row where rows of the first factor are whole ones; one sample less does not."""
    n = prod(factors)
    for length, alone, masked in ((n // 2, False, False), (n // 2, True, True), (n // 2 - 1, False, True)):
        plan = Plan(n, factors, signal=length, wanted=length)
        spec = families.family_of(plan).make_spec(plan, "fp16", guarded=True)
        assert families.fitted(spec, plan, length, alone=alone).guarded == masked


def test_launches_overlap_where_a_card_has_it() -> None:
    """Not of kernels that cannot say what they wait for, nor where the card is not known."""
    for plan, capability, overlap in (
        (Plan(1024, (32, 32)), (9, 0), True),
        (Plan(1024, (32, 32)), (12, 0), True),
        (Plan(1024, (32, 32)), (8, 0), False),
        (Plan(1024, (32, 32)), None, False),
        (Plan(2304, (48, 48)), (9, 0), False),
    ):
        spec = families.family_of(plan).make_spec(plan, "fp16")
        found = families.fitted(spec, plan, plan.n, alone=False, capability=capability)
        assert getattr(found, "overlap", False) == overlap


def test_every_kernel_is_a_plan() -> None:
    for family in families.FAMILIES:
        for packing, lists in family.PACKINGS.items():
            for factors in lists:
                plan = Plan.of(factors, packing=packing)
                assert families.family_of(plan) is family


def test_every_family_has_a_part_under_the_sanitizer():
    every = (*families.FAMILIES, *families.FLOAT_FAMILIES)
    families_here = {family.__name__.rpartition("fused_")[2] for family in every}
    assert families_here <= set(sanitize.PARTS)
