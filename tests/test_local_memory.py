"""Registers that do not fit, as traffic: against the compiler's table and against the counters of an H200."""

from dataclasses import replace
from math import prod

import pytest

from costmodel import counts, gpus, local_memory, timing
from kernels_numba import families, resources
from monarch import Plan

H200 = gpus.load("h200-sxm")
BLOCK = H200.spec["shared_memory_per_block_bytes"]
MEASURED = {
    (112, 112): (3515, 4703),
    (80, 32, 16): (719, 2662),
    (96, 16, 16): (612, 1879),
    (144, 64): (369, 1368),
    (96, 96): (1576, 2521),
    (72, 32, 16): (642, 1522),
    (112, 16, 16): (499, 1499),
    (80, 16, 16): (539, 1348),
    (16, 16, 128): (2099, 7942),
}
"""Megabytes that crossed device memory and L2, by Nsight Compute, 16 x 264 sequences; the last by half packing."""


def plan_of(factors: tuple[int, ...]) -> Plan:
    """A pair, but for the longest."""
    half = factors == (16, 16, 128)
    return Plan(prod(factors) * (2 if half else 1), factors, packing="half" if half else "pair")


def of(factors: tuple[int, ...]) -> counts.Counts:
    return counts.for_plan(plan_of(factors), 16, 264, capacity_bytes=BLOCK)


@pytest.mark.parametrize("factors", MEASURED)
def test_bytes_are_those_of_the_counters(factors: tuple[int, ...]) -> None:
    """Within a fifth; without local memory those of 112 x 112 would be a tenth and a fifth of what was counted."""
    memory, _, l2 = timing.work(of(factors), H200)
    device, cache = MEASURED[factors]
    assert memory / 1e6 == pytest.approx(device, rel=0.2)
    assert l2 / 1e6 == pytest.approx(cache, rel=0.2)


def test_stacks_are_those_of_the_table() -> None:
    table = resources.committed()
    for factors in ((112, 112), (48, 48), (80, 16, 16), (96, 16, 16)):
        family = families.family_of(plan_of(factors))
        name = family.make_spec(plan_of(factors), "fp16").name
        assert local_memory.stack_bytes(name) == table[name, local_memory.MEASURED_ON]["stack_bytes"] > 0
        assert of(factors).stack_bytes_per_thread == local_memory.stack_bytes(name)
    assert local_memory.stack_bytes("no such kernel") == 0
    assert of((16, 16, 16)).stack_bytes_per_thread == 0


def test_a_list_that_is_not_in_the_table_has_the_stack_of_the_same_last_factor() -> None:
    family = families.family_of(plan_of((32, 96)))
    assert (family.make_spec(plan_of((32, 96)), "fp16").name, "sm_90") not in resources.committed()
    assert of((32, 96)).stack_bytes_per_thread == of((16, 96)).stack_bytes_per_thread > 2000


def test_where_it_goes() -> None:
    """What fits into the first-level cache is written through it; of what fits into L2 a share goes further."""
    work = replace(of((16, 16, 16)), stack_bytes_per_thread=8, local_bytes=1e9)
    memory, first, l2 = local_memory.traffic(work, H200, 1)
    on_gpu = 8 * work.threads_per_block * H200.spec["sm_count"]
    assert (first, l2) == (2e9, 1e9) and memory == pytest.approx(1e9 * on_gpu / H200.spec["l2_bytes"])
    beyond = local_memory.traffic(replace(work, stack_bytes_per_thread=65536), H200, 1)
    assert beyond > (1.9e9, 2.9e9, 1.9e9) and beyond < (2e9, 3e9, 2e9)
    assert local_memory.traffic(replace(work, stack_bytes_per_thread=0), H200, 1) == (0, 0, 0)


def test_explanations_say_so() -> None:
    text = timing.explain(of((112, 112)), H200)
    assert "4552 B of a thread do not fit into registers" in text
    assert "registers" not in timing.explain(of((16, 16, 16)), H200)
