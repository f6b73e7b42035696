"""Counts, the time model, candidates and decisions."""

import itertools
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel import counts as counting
from costmodel import fftconv, gpus, kernel_counts, timing, units
from costmodel.counts import Counts, analytic
from kernels_numba.block_spec import TUNED
from kernels_numba.families import DEFAULT_FACTORS, FAMILIES, default_plans
from monarch import Plan, plan

H200 = costmodel.load_gpu("h200-sxm")
CAPACITY = H200.spec["shared_memory_per_block_bytes"]
INPUTS = timing.inputs_of(H200)
TERMS = ("memory", "tensor", "shared", "l2", "issue", "launch")


def counted(factors: tuple[int, ...], *, batch: int = 64, variant: str = "plain", **fields) -> Counts:
    fields.setdefault("n", math.prod(factors))
    made = Plan(factors=factors, **fields)
    return analytic(made, batch, 768, variant=variant, capacity_bytes=CAPACITY)


# Counts.


def test_counts_of_a_pair_by_hand():
    c = counted((32, 32))
    pairs = 32 * 768
    assert c.transforms == pairs
    assert c.mma_flops == pairs * 2 * 4 * 1024 * (32 + 32)
    assert c.half_flops == pairs * 6 * 1024 * 3
    assert c.device_read_bytes == 64 * 768 * 1024 * 2 + 768 * 4 * 1024
    assert c.device_write_bytes == 64 * 768 * 1024 * 2
    assert c.launches == 1 and c.barriers_per_transform == 0


def test_products_are_half_the_plans_own_flops_where_nothing_is_padded_or_skipped():
    p = Plan(n=4096, factors=(16, 16, 16))
    per_transform = counted((16, 16, 16)).mma_flops / (32 * 768)
    assert per_transform == sum(p.flops(i) for i in range(3))  # two directions, half each


def test_an_odd_batch_costs_a_whole_pair():
    assert counted((32, 32), batch=7).mma_flops == counted((32, 32), batch=8).mma_flops
    assert counted((32, 32), batch=7).device_write_bytes < counted((32, 32), batch=8).device_write_bytes


@pytest.mark.parametrize(("factor", "work"), [(16, 16), (32, 32), (8, 32), (4, 64), (24, 32 * 32 / 24)])
def test_padding_to_tiles(factor, work):
    assert counting.padded_work(factor) == pytest.approx(work, rel=1e-12)


def test_dead_tiles_of_a_half_filled_input_are_skipped():
    full, half = counted((32, 32)), counted((32, 32), signal=512, wanted=512)
    assert half.mma_flops == full.mma_flops * (32 + 16) / 64
    assert half.device_write_bytes == full.device_write_bytes / 2


def test_gates_are_read_and_multiplied():
    plain, gated = counted((32, 32)), counted((32, 32), variant="gated")
    assert gated.device_read_bytes - plain.device_read_bytes == 2 * 64 * 768 * 1024 * 2
    assert gated.half_flops - plain.half_flops == 64 * 768 * 1024 * 2


def test_a_sequence_too_long_for_the_chip_makes_a_trip_per_outer_stage():
    near = counted((32, 32, 32))
    far = counted((16, 16, 16, 16))
    assert near.launches == 1 and far.launches == 3
    points = 32 * 768 * 65536
    assert far.device_write_bytes == 64 * 768 * 65536 * 2 + 2 * 4 * points
    assert counting.outer_stages((32, 32, 32), CAPACITY) == 0
    assert counting.outer_stages((16, 16, 16, 16), CAPACITY) == 1


def test_half_packing_keeps_64k_on_chip():
    c = counted((32, 32, 32), n=65536, packing="half")
    assert c.launches == 1
    assert c.transforms == 64 * 768
    assert c.device_write_bytes == 64 * 768 * 65536 * 2


def test_complex_data_are_twice_the_bytes():
    assert counted((32, 32), packing="complex").device_write_bytes == 2 * counted((32, 32)).device_write_bytes


@pytest.mark.parametrize("factors", [(16, 16), (16, 32), (32, 16), (32, 32)])
def test_analytic_counts_are_those_of_the_kernel_where_there_is_one(factors):
    """So plans with and without a kernel compete on equal terms."""
    exact = counting.for_plan(Plan(n=math.prod(factors), factors=factors), 64, 768, capacity_bytes=CAPACITY)
    assert exact.exact
    rough = counted(factors)
    keys = ["device_read_bytes", "device_write_bytes", "half_flops", "transforms", "launches"]
    if factors == (
        32,
        32,
    ):  # shorter ones have other blocks, and first factors of 16 are real matrices of both parts
        keys += [
            "mma_flops",
            "fp32_flops",
            "shared_bytes",
            "blocks",
            "threads_per_block",
            "workers_per_block",
        ]
        keys += ["shared_bytes_per_block", "registers_per_thread", "fill_bytes_per_block"]
    for key in keys:
        assert getattr(rough, key) == getattr(exact, key), key
    if factors[0] == 16:
        stages = 2 * sum(factors)
        assert exact.mma_flops * stages == rough.mma_flops * (stages + factors[0])
        assert 4 * exact.fp32_flops == 3 * rough.fp32_flops
    # Tensor cores round what such a factor makes, a word a point.
    spared = exact.transforms * math.prod(factors) / 32 if factors[0] == 16 else 0
    assert rough.l2_bytes == pytest.approx(exact.l2_bytes, rel=0.02)
    assert rough.warp_instructions == pytest.approx(exact.warp_instructions + spared, rel=0.1)


@pytest.mark.parametrize("factors", [f for f in TUNED if min(f) > 8])
@pytest.mark.parametrize("variant", ["plain", "gated"])
@pytest.mark.parametrize("packing", ["pair", "half"])
def test_analytic_counts_are_near_the_block_kernels(factors, variant, packing):
    """Nearly: the order-3 kernel shares some constants (but not with half-length packing, which also reads where
    mirrors are), and keeps outer twiddles in shared memory at 16x16x16 without gates."""
    n = math.prod(factors) * (2 if packing == "half" else 1)
    made = Plan(n=n, factors=factors, packing=packing)
    exact = counting.for_plan(made, 64, 768, variant=variant, capacity_bytes=CAPACITY)
    assert exact.exact and "order 3" in exact.source
    rough = counted(factors, n=n, packing=packing, variant=variant)
    for key in (
        *("device_read_bytes", "device_write_bytes", "mma_flops", "half_flops", "fp32_flops"),
        *("transforms", "launches", "blocks", "workers_per_block", "barriers_per_transform"),
    ):
        assert getattr(rough, key) == getattr(exact, key), key
    assert rough.shared_bytes == pytest.approx(exact.shared_bytes, rel=0.3 if packing == "half" else 0.15)
    assert rough.warp_instructions == pytest.approx(exact.warp_instructions, rel=0.05)
    in_shared = factors == (16, 16, 16) and variant == "plain"
    tables = 8 * made.points * exact.transforms if in_shared else 0
    assert rough.l2_bytes == pytest.approx(exact.l2_bytes + tables, rel=0.015)
    times = [timing.seconds(c, H200, INPUTS) for c in (rough, exact)]
    assert times[0] == pytest.approx(times[1], rel=0.4)


def test_a_kernel_that_does_not_fit_is_no_kernel():
    """32x32x32 needs more than the 163 KiB that a block of an A100 can have."""
    options = {"dtype": "fp16", "variant": "plain"}
    made = Plan(32768, (32, 32, 32))
    assert kernel_counts.kernel_counts(made, 64, 768, capacity_bytes=CAPACITY, **options).exact
    assert kernel_counts.kernel_counts(made, 64, 768, capacity_bytes=163 * 1024, **options) is None


@pytest.mark.parametrize("n", [32768, 65536])
@pytest.mark.parametrize("variant", counting.VARIANTS)
def test_order_4_has_predictions(n, variant):
    """With exact counts, beside order 3, and no slower: it reads no table of the length's size."""
    packing = "pair" if n == 32768 else "half"
    forecast = costmodel.predict(n, gpu="h200-sxm", variant=variant, packing=packing)
    deep, block = (forecast.best_of_order(order) for order in (4, 3))
    assert deep.plan.factors == (16, 8, 16, 16) and deep.has_kernel and "order 4" in deep.counts.source
    assert deep.time_s < block.time_s
    assert set(deep.terms_s) == set(block.terms_s)


@pytest.mark.parametrize("factors", [(16, 16), (32, 32), (16, 16, 16), (32, 32, 32)])
def test_l2_carries_at_least_what_device_memory_does(factors):
    for variant in counting.VARIANTS:
        made = Plan(n=math.prod(factors), factors=factors)
        exact = counting.for_plan(made, 64, 768, variant=variant, capacity_bytes=CAPACITY)
        assert exact.l2_bytes >= exact.device_bytes


def test_exact_counts_of_a_kernel_go_first(monkeypatch):
    exact = replace(counted((32, 32)), exact=True, source="kernel")
    asked = []

    def source(made, batch, channels, *, dtype, variant, capacity_bytes):
        assert capacity_bytes == CAPACITY
        asked.append((made.factors, batch, channels, dtype, variant))
        return exact if made.factors == (32, 32) else None

    monkeypatch.setattr(counting, "_registry", [])
    assert counting.register(source) is source
    found = costmodel.predict(1024, gpu=H200, batch=2, channels=3, dtype="bf16", variant="gated")
    by_name = {c.name: c for c in found.candidates}
    assert ((32, 32), 2, 3, "bf16", "gated") in asked
    assert by_name["32x32"].counts is exact
    assert any(c.counts.source == "analytic" for c in found.candidates)
    assert by_name["32x32"].as_dict()["exact_counts"] is True


def test_exact_counts_have_the_narrower_interval():
    rough = counted((32, 32))
    _, low, high = timing.time_with_interval(rough, H200)
    _, low_exact, high_exact = timing.time_with_interval(replace(rough, exact=True), H200)
    assert low < low_exact < high_exact < high


# Time.

positive = st.floats(1e-7, 1.0)


@given(st.lists(positive, min_size=6, max_size=6), st.floats(0, 100))
def test_combined_time_lies_between_perfect_and_no_overlap(values, overlap):
    parts = dict(zip(TERMS, values, strict=True))
    total = timing.combine(parts, overlap)
    assert (max(values[:5]) + parts["launch"]) * (1 - 1e-12) <= total <= sum(values) * (1 + 1e-12)


@given(st.lists(positive, min_size=6, max_size=6), st.sampled_from(TERMS), st.floats(1.01, 3))
def test_more_of_any_work_takes_longer(values, term, factor):
    parts = dict(zip(TERMS, values, strict=True))
    more = {**parts, term: parts[term] * factor}
    assert timing.combine(more, 2.0) > timing.combine(parts, 2.0)


def test_ends_of_the_overlap():
    parts = dict.fromkeys(TERMS, 1.0)
    assert timing.combine(parts, 0.0) == pytest.approx(6.0, rel=1e-12)
    assert timing.combine(parts, math.inf) == 2.0


def test_fewer_warps_reach_less_of_the_chips_rates_and_of_memory_as_much():
    many = counting.for_plan(Plan(1024, (32, 32)), 64, 768, capacity_bytes=CAPACITY)
    few = replace(many, registers_per_thread=255)  # 8 warps an SM where there were 12
    assert timing.residency(many, H200) == (12, 12) and timing.residency(few, H200) == (8, 8)
    half = INPUTS["half_rate_warps"].value
    before, after = timing.terms(many, H200, INPUTS), timing.terms(few, H200, INPUTS)
    assert after["memory"] == before["memory"]
    waves = timing.use(many.blocks, 132, 3) / timing.use(few.blocks, 132, 2)
    for key in ("tensor", "issue"):
        assert after[key] / before[key] == pytest.approx(
            (8 + half) / 8 / ((12 + half) / 12) * waves, rel=1e-9
        )


def test_additions_run_at_the_rate_of_the_data_sheet():
    """An A100 adds 64 numbers a clock and SM, half of what its schedulers could issue."""
    work = counted((16, 16, 16))
    for slug, ratio in (("h200-sxm", 1.0), ("a100-sxm-40gb", 2.0)):
        gpu = costmodel.load_gpu(slug)
        known = timing.inputs_of(gpu)
        more = replace(
            work,
            fp32_flops=2 * work.fp32_flops,
            warp_instructions=work.warp_instructions + work.fp32_flops / 32,
        )
        extra = timing.terms(more, gpu, known)["issue"] - timing.terms(work, gpu, known)["issue"]
        other = replace(work, warp_instructions=more.warp_instructions)
        plain = timing.terms(other, gpu, known)["issue"] - timing.terms(work, gpu, known)["issue"]
        assert extra / plain == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize(
    ("blocks", "resident", "share"),
    [(132, 1, 1.0), (133, 1, 133 / 264), (264, 2, 1.0), (200, 2, 200 / 264), (1, 4, 1 / 132), (1320, 2, 1.0)],
)
def test_wave_quantisation(blocks, resident, share):
    assert timing.use(blocks, 132, resident) == pytest.approx(share, rel=1e-12)


def test_a_grid_of_no_blocks_is_an_error():
    with pytest.raises(ValueError, match="blocks: got 0"):
        timing.use(0, 132, 1)


def test_resident_blocks_by_each_limit():
    base = replace(
        counted((32, 32)), registers_per_thread=32, threads_per_block=128, shared_bytes_per_block=0
    )
    assert timing.resident_blocks(base, H200) == 16  # threads: 2048 / 128
    assert timing.resident_blocks(replace(base, registers_per_thread=168), H200) == 3
    assert timing.resident_blocks(replace(base, shared_bytes_per_block=100 * 1024), H200) == 2
    assert timing.resident_blocks(replace(base, shared_bytes_per_block=227 * 1024), H200) == 1


def test_interval_is_first_order_in_one_uncertain_input():
    known = {"rate": timing.Input(2.0, 0.1, "test"), "sure": timing.Input(3.0, 0.0, "test")}
    low, high = timing.interval(lambda i: 6.0 / i["rate"].value * i["sure"].value, known)
    assert high == pytest.approx(9 * 1.1, rel=1e-12)
    assert low == pytest.approx(9 / 1.1, rel=1e-12)


def test_spread_of_a_measured_rate_comes_from_its_percentiles():
    m = gpus.Measured(median=100.0, p20=98.0, p80=102.0, source="s", date="2026-01-01")
    assert timing._measured(m).relative_uncertainty == pytest.approx(0.02 / 0.8416, rel=1e-3)


def test_every_term_has_the_right_magnitude():
    """The prefixes: 204 MB at 4.26 TB/s is 48 us, 12.9 Gflop at 551 Tflop/s 23 us, whatever else is fitted."""
    work = counted((32, 32))
    parts = timing.terms(work, H200, INPUTS)
    warps, _ = timing.residency(work, H200)
    reached = warps / (warps + INPUTS["half_rate_warps"].value)
    fraction = {key: INPUTS[f"{key}_fraction"].value for key in timing.OVERLAPPED}
    assert parts["memory"] * fraction["memory"] == pytest.approx(48.0e-6, rel=0.01)
    assert parts["tensor"] * fraction["tensor"] * reached == pytest.approx(23.4e-6, rel=0.05)
    assert parts["shared"] * fraction["shared"] * reached == pytest.approx(18.4e-6, rel=0.05)
    assert parts["l2"] * fraction["l2"] * reached == pytest.approx(13.2e-6, rel=0.05)
    assert parts["issue"] * fraction["issue"] * reached == pytest.approx(20e-6, rel=0.05)


@pytest.mark.parametrize(
    ("factors", "variant", "measured_us"),
    [
        *(((32, 32), "plain", 57.3), ((32, 32), "gated", 104.3), ((16, 16, 16), "plain", 307.5)),
        *(((48, 16), "plain", 45.6), ((8, 16, 16), "plain", 146.5), ((32, 16, 16), "plain", 691.1)),
        *(((32, 16, 32), "plain", 1562.1), ((48, 16, 16), "plain", 1170.2), ((48, 16, 16), "gated", 1956.8)),
    ],
)
def test_kernels_lie_near_their_intervals(factors, variant, measured_us):
    """Measured on one H200 (B=64, H=768, fp16), not read from the file that the factors were fitted to."""
    work = counting.for_plan(
        Plan(n=math.prod(factors), factors=factors), 64, 768, variant=variant, capacity_bytes=CAPACITY
    )
    _, low, high = timing.time_with_interval(work, H200)
    assert 0.95 * low < measured_us * 1e-6 < 1.05 * high
    assert high / low < 1.35


def test_issue_slots_are_those_of_the_hardware_counters():
    """Warp instructions of an H200's own counters: 14900 a pair at 32x16x16, 59000 at 32x32x32."""
    for factors, counted_by_gpu in (((32, 16, 16), 366e6), ((32, 32, 32), 1.45e9)):
        work = counting.for_plan(
            Plan(n=math.prod(factors), factors=factors), 64, 768, capacity_bytes=CAPACITY
        )
        assert 0.6 < work.warp_instructions / counted_by_gpu < 0.8


# Decisions.


@pytest.mark.parametrize("slug", ["h200-sxm", "h100-sxm", "a100-sxm-40gb"])
def test_best_orders_over_the_lengths(slug):
    best = {n: costmodel.best_plan(n, gpu=slug).order for n in (256, 512, 1024, 8192, 2**20, 2**22)}
    # Outer stages of two factors, and rows of two, three or four: ties.
    assert {best.pop(2**20), best.pop(2**22)} <= {4, 5, 6}
    assert best == {256: 2, 512: 2, 1024: 2, 8192: 3}
    # The order-4 kernel needs more shared memory than a block of an A100 can have.
    assert costmodel.best_plan(32768, gpu=slug).order == (3 if slug.startswith("a100") else 4)
    # At 4096 the order-3 kernel fits twice on an SM of Hopper and once on one of an A100.
    assert costmodel.best_plan(4096, gpu=slug).order == (2 if slug.startswith("a100") else 3)


@pytest.mark.parametrize("slug", gpus.slugs())
@pytest.mark.parametrize("variant", counting.VARIANTS)
def test_times_grow_with_the_length_and_stay_above_the_floor(slug, variant):
    """Also where no kernel exists: order 4, one sequence as N/2 points, 64K and above."""
    found = [costmodel.predict(2**e, gpu=slug, variant=variant) for e in range(8, 23)]
    for shorter, longer in itertools.pairwise(found):
        # Less where the shorter one goes in pairs and the longer one through a right angle.
        packings = (shorter.best.plan.packing, longer.best.plan.packing)
        least = 1.2 if packings == ("pair", "right-angle") else 1.4
        assert longer.best.time_s > least * shorter.best.time_s
    for f in found:
        assert all(c.time_s > f.floor_s for c in f.candidates)
        # A B200 has twice the bandwidth for each product that mma.sync does.
        assert f.best.time_s < (16 if slug == "b200" else 12) * f.floor_s


@pytest.mark.parametrize("model", ["measured", "paper"])
def test_candidates_are_ordered_and_margins_are_relative_to_the_best(model):
    f = costmodel.predict(4096, gpu="h200-sxm", model=model)
    times = [c.time_s for c in f.candidates]
    assert times == sorted(times)
    assert f.best is f.candidates[0]
    for c in f.candidates:
        assert c.time_low_s < c.time_s < c.time_high_s
    for c in f.candidates[1:]:
        assert c.margin == pytest.approx(c.time_s / times[0] - 1, rel=1e-9)
    other = next(c for c in f.candidates if c.plan.order != f.best.plan.order)
    assert f.best.margin == other.margin
    assert {c.plan.order for c in f.candidates} == {2, 3, 4}


def test_floor_is_input_and_output_once():
    f = costmodel.predict(1024, gpu="h200-sxm")
    assert f.floor_s == pytest.approx(47.3e-6, rel=0.001)
    assert f.best.time_s > f.floor_s


@pytest.mark.parametrize("n", [256, 1024, 4096, 65536, 2**20])
def test_time_grows_with_the_work(n):
    def time(**changes):
        return costmodel.predict(n, gpu="h200-sxm", packing="pair", **changes).best.time_s

    assert time(batch=64) < time(batch=128) < 2.05 * time(batch=64)
    assert time(variant="causal") < time(variant="plain") < time(variant="gated")


def test_a_small_grid_is_not_served_at_full_rate():
    small = costmodel.predict(1024, gpu="h200-sxm", batch=2, channels=4).best
    assert small.time_s > 5 * costmodel.predict(1024, gpu="h200-sxm").best.time_s * (2 * 4) / (64 * 768)


def test_faster_memory_helps_a_memory_bound_case():
    faster = replace(
        H200,
        measured={
            **H200.measured,
            "device_copy_bytes_per_s": replace(H200.measured["device_copy_bytes_per_s"], median=8e12),
        },
    )
    now, then = (costmodel.predict(512, gpu=g, variant="gated").best for g in (H200, faster))
    assert now.bound == "device memory" != then.bound  # until something on the chip is slower
    assert 4.26 / 8 < then.time_s / now.time_s < 0.95


def test_a_data_sheet_is_trusted_less():
    known = costmodel.predict(4096, gpu="h200-sxm")
    sheet = costmodel.predict(4096, gpu="h100-sxm")
    widths = [f.best.time_high_s / f.best.time_low_s for f in (known, sheet)]
    assert widths[1] > 1.15 * widths[0]
    assert any("data sheet only" in note for note in sheet.notes)
    assert not any("data sheet only" in note for note in known.notes)


def test_what_does_not_fit_in_memory_is_said():
    assert any("825 GB" in note for note in costmodel.predict(2**22, gpu="h200-sxm").notes)


def test_half_packing_is_offered_where_a_pair_does_not_fit():
    assert {c.plan.packing for c in costmodel.predict(32768, gpu="h200-sxm").candidates} == {"pair"}
    assert {c.plan.packing for c in costmodel.predict(65536, gpu="h200-sxm").candidates} == {"pair", "half"}
    assert (
        costmodel.predict(49152, gpu="h200-sxm").best_with_kernel.name == "48x32x16 half"
    )  # no pair's kernel
    assert {c.plan.packing for c in costmodel.predict(1024, gpu="h200-sxm", packing="any").candidates} == {
        "pair",
        "half",
    }


def test_half_packing_is_offered_where_no_pairs_kernel_fits_the_gpu():
    """A pair of 32768 points fits on an A100's SM, but not with what its kernel keeps beside it."""
    known = default_plans(int(costmodel.load_gpu("a100-sxm-40gb").spec["shared_memory_per_block_bytes"]))
    assert known[32768].packing == "half"
    for n, default in known.items():
        best = costmodel.predict(n, gpu="a100-sxm-40gb").best_with_kernel
        assert best is not None and best.plan.packing == default.packing, n


def test_plans_with_a_kernel_are_marked_and_always_shown():
    """A reader is not told to use a plan that nothing runs."""
    f = costmodel.predict(2048, gpu="h200-sxm")
    assert f.best.has_kernel
    # 8 is not a multiple of 16, but the kernel has it; the other one exists on Hopper alone.
    found = {c.name for c in f.candidates if c.has_kernel}
    assert {"8x16x16", "64x32"} <= found <= {"8x16x16", "64x32", "32x64", "128x16"}
    older = costmodel.predict(2048, gpu="a100-sxm-40gb")
    assert "64x32" not in {c.name for c in older.candidates if c.has_kernel}
    assert older.best_with_kernel.name == "8x16x16"
    assert f.best.as_dict()["kernel"] is True and not all(c.as_dict()["kernel"] for c in f.candidates)
    assert not f.notes
    slow = costmodel.predict(4096, gpu="a100-sxm-40gb")
    assert not slow.best.has_kernel and slow.best_with_kernel.plan.order == 3
    name = slow.best_with_kernel.name
    assert any(f"the fastest plan with a kernel is {name}" in note for note in slow.notes)
    for n in DEFAULT_FACTORS:
        for packing in ("auto", "any"):
            assert costmodel.predict(n, gpu="h200-sxm", packing=packing).best_with_kernel is not None
    long = costmodel.predict(65536, gpu="h200-sxm")
    made = long.best_with_kernel
    assert made.name == "16x8x16x16 half" and made.counts.exact and made.as_dict()["kernel"] is True
    assert long.best is made or any("with a kernel is 16x8x16x16 half" in note for note in long.notes)
    longer = costmodel.predict(2**17, gpu="h200-sxm")  # by kernels with outer stages
    assert longer.best_with_kernel.plan.order == 4 and longer.best_with_kernel.counts.launches >= 3
    assert any("nor for any other plan" in note for note in costmodel.predict(2**25, gpu="h200-sxm").notes)


def test_the_model_knows_the_plans_that_kernels_run():
    for packing in ("pair", "half", "complex", "right-angle"):
        known = {
            f
            for points in {math.prod(f) for family in FAMILIES for f in family.PACKINGS.get(packing, ())}
            for p in (2, 3, 4)
            for f in kernel_counts.factor_lists(points, p, packing)
        }
        assert known == {f for family in FAMILIES for f in family.PACKINGS.get(packing, ())}


def test_best_plan_is_what_monarch_plan_asks_for():
    asked = plan(2048, gpu="h200-sxm", signal=1024)
    assert asked == costmodel.best_plan(2048, gpu="h200-sxm", signal=1024)
    assert (asked.signal, asked.wanted, asked.packing) == (1024, None, "pair")
    assert plan(4096, gpu="h200-sxm", order=2).factors == (64, 64)


@given(st.integers(2, 64), st.integers(2, 64), st.sampled_from(gpus.slugs()))
def test_any_composite_length_has_a_prediction(a, b, slug):
    f = costmodel.predict(16 * a * b, gpu=slug, batch=3, channels=5)
    assert 0 < f.best.time_low_s < f.best.time_s < f.best.time_high_s < 1
    assert math.prod(f.best.plan.factors) == f.best.plan.points


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"n": 0}, ValueError, "N: got 0"),
        ({"n": 2**27}, ValueError, "N: got 134217728; accepted: up to"),
        ({"n": 1009}, ValueError, "1009 has no plan of order"),
        ({"n": 1024.0}, TypeError, "N: got 1024.0"),
        ({"batch": 0}, ValueError, "B: got 0"),
        ({"channels": True}, TypeError, "H: got True"),
        ({"length": 2048}, ValueError, "L: got 2048; accepted: 1 to N = 1024"),
        ({"wanted": 0}, ValueError, "wanted: got 0"),
        ({"dtype": "fp64"}, ValueError, "dtype: got 'fp64'; accepted: fp16, bf16, fp32"),
        ({"variant": "two-sided"}, ValueError, "variant: got 'two-sided'"),
        ({"packing": "trio"}, ValueError, "packing: got 'trio'"),
        ({"model": "roofline"}, ValueError, "model: got 'roofline'; accepted: measured, paper"),
        ({"gpu": "h300"}, costmodel.UnknownGPUError, "unknown GPU 'h300'"),
    ],
)
def test_bad_arguments(arguments, error, text):
    given_ = {"n": 1024, "gpu": "h200-sxm"} | arguments
    with pytest.raises(error) as caught:
        costmodel.predict(given_.pop("n"), **given_)
    assert text in str(caught.value)


def test_a_length_without_a_plan_is_told_one_that_has():
    with pytest.raises(ValueError, match="such as 1024"):
        costmodel.predict(1009, gpu="h200-sxm")


def test_explanation_adds_up():
    f = costmodel.predict(4096, gpu="h200-sxm")
    text = fftconv.explain(f)
    for name, seconds in f.best.terms_s.items():
        assert f" = {units.microseconds(seconds * 1e6)}" in text, name
    assert f" of {units.microseconds(f.best.time_s * 1e6)} (" in text
    assert text.splitlines()[-1].startswith(f"Bound by {f.best.bound}")


def test_conclusion_is_one_sentence_with_the_figures():
    f = costmodel.predict(8192, gpu="h200-sxm")
    text = f.conclusion()
    assert text.startswith(f"Best plan {f.best.name} (order 3): ") and text.endswith("slower.")


def test_a_tie_is_called_one():
    f = costmodel.predict(8192, gpu="h200-sxm")
    close = replace(f, candidates=(replace(f.best, margin=0.01), *f.candidates[1:]))
    assert not f.tie and close.tie
    assert close.conclusion().endswith("a tie.")


# fp32.


def test_fp32_takes_the_plans_that_its_kernel_runs():
    f = costmodel.predict(4096, gpu="h200-sxm", dtype="fp32")
    assert f.candidates and all(c.has_kernel and c.counts.arithmetic == "fp32" for c in f.candidates)
    half = costmodel.predict(4096, gpu="h200-sxm")
    assert f.floor_s == pytest.approx(2 * half.floor_s)
    assert f.best.time_s > half.best.time_s and f.best.terms_s["tensor"] == 0
    assert f"Bound by {f.best.bound}" in fftconv.explain(f)
    long = costmodel.predict(32768, gpu="h200-sxm", dtype="fp32")
    assert {c.plan.packing for c in long.candidates} == {"half"}
    wide = costmodel.predict(1024, gpu="h200-sxm", dtype="fp32", packing="complex")
    assert wide.floor_s == pytest.approx(2 * costmodel.predict(1024, gpu="h200-sxm", dtype="fp32").floor_s)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 2**25}, "no fp32 kernel transforms 33554432 points"),
        ({"n": 1000}, "no fp32 kernel transforms 1000 points"),
        ({"n": 1024, "model": "paper"}, "accepted with fp32: measured"),
    ],
)
def test_fp32_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        costmodel.predict(**options, gpu="h200-sxm", dtype="fp32")


def test_a_plan_without_an_fp32_kernel_is_not_counted():
    with pytest.raises(ValueError, match="no fp32 kernel runs 64x16"):
        counting.for_plan(Plan(1024, (64, 16)), 2, 1, dtype="fp32", capacity_bytes=CAPACITY)


# Terms.


def test_one_product_of_a_warpgroup_keeps_the_tensor_cores_busy():
    work = counted((32, 32))
    waiting = replace(work, waits=True)
    warps, _ = timing.residency(work, H200)
    reached = warps / (warps + INPUTS["half_rate_warps"].value)
    one, other = (timing.terms(w, H200, INPUTS) for w in (work, waiting))
    assert other["tensor"] == pytest.approx(one["tensor"] * reached)
    assert {k: v for k, v in one.items() if k != "tensor"} == {
        k: v for k, v in other.items() if k != "tensor"
    }


def test_blocks_in_step_overlap_as_one():
    work = counted((16, 16, 16))
    _, workers = timing.residency(work, H200)
    assert workers > 1
    parts = timing.terms(work, H200, INPUTS)
    k = INPUTS["stages_per_worker"].value
    together = timing.seconds(replace(work, in_step=True), H200, INPUTS)
    assert together == pytest.approx(timing.combine(parts, k)) and together > timing.seconds(
        work, H200, INPUTS
    )


def test_blocks_drift_apart_and_warps_are_apart():
    """Of blocks the root of their number overlaps, of warps their number."""
    for factors in ((16, 16, 16), (32, 32)):
        work = counted(factors)
        _, workers = timing.residency(work, H200)
        v = timing.independent_workers(work, H200)
        assert v == (workers**0.5 if work.workers_per_block == 1 else workers) > 1


@pytest.mark.parametrize(("batch", "channels", "waits"), [(64, 768, False), (64, 768, True), (2, 60, False)])
def test_explained_terms_are_work_over_what_stands_beside_it(batch, channels, waits):
    """The numbers of every line give its time, of a grid smaller than the GPU too."""
    made = Plan(4096, (16, 16, 16))
    work = replace(analytic(made, batch, channels, capacity_bytes=CAPACITY), waits=waits)
    parts = timing.terms(work, H200, INPUTS)
    for key in ("memory", "tensor", "shared", "l2"):
        line = next(x for x in timing.explain(work, H200).splitlines() if x.strip().startswith(f"{key} "))
        amount, rates = re.search(r"([\d.e+]+) \w+ / \(([^)]*)\)", line).groups()
        rate = math.prod(float(part.split()[0]) for part in rates.split(" x "))
        assert float(amount) / rate == pytest.approx(parts[key], rel=0.04), line
