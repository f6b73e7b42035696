"""The closed-form counts of the fused kernels against what their CPU bodies count, exactly."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodel import (
    any_counts,
    block_counts,
    deep_counts,
    float_counts,
    group_counts,
    kernel_counts,
    rounds_counts,
)
from kernels_numba import (
    FFTConv,
    any_spec,
    float_spec,
    fused_any,
    fused_block,
    fused_deep,
    fused_float,
    fused_group,
    fused_rounds,
    fused_warp,
    prepare_filter,
)
from kernels_numba.block_spec import TUNED
from kernels_numba.families import (
    FAMILIES,
    RIGHT_ANGLE_FACTORS,
    default_plans,
    family_of,
)
from kernels_numba.tile.layout import ELEMENT_TYPES, HALF_TYPES
from monarch import Plan

FACTORS = fused_warp.FACTORS
HALVES = st.sampled_from([1, 2, 4, 8])


def flat(counters: object) -> dict[str, int]:
    """The counters under the names of the closed forms."""
    found = dict(vars(counters))
    reads, written = found.pop("global_read_bytes"), found.pop("global_written_bytes")
    found |= {f"read_{name}": count for name, count in reads.items()}
    found |= {f"written_{name}": count for name, count in written.items()}
    return found


def count(plan, dtype, batch, channels, length, gates, blocks, size):
    """Run the kernel on the CPU body: the convolution, its spec, the grid, and everything that was counted."""
    mode = "circular" if length == plan.n else "causal"
    taps = plan.n + 1 - length if mode == "causal" else length
    rng = np.random.default_rng(0)
    filters = size * rng.standard_normal((channels, taps)) / taps**0.5
    kind = ELEMENT_TYPES["complex64"] if plan.packing == "complex" else HALF_TYPES[dtype]
    stored = "complex64" if plan.packing == "complex" else dtype
    spectrum = prepare_filter(filters, length=length, mode=mode, dtype=stored, products=dtype, plan=plan)
    convolve = FFTConv(spectrum, batch=batch)

    def data() -> np.ndarray:
        return rng.standard_normal(convolve.shape).astype(kind)

    pregate, postgate = (data() if on else None for on in gates)
    _, counters = convolve.run_cpu(data(), pregate=pregate, postgate=postgate, blocks=blocks)
    spec = convolve.spec(pregate=gates[0], postgate=gates[1])
    grid, per_worker = convolve.grid(convolve.family.workers(spec), blocks)
    counted = flat(counters)
    assert counted.pop("blocks") == grid and counted.pop("warps") == grid * spec.warps
    shape = {"blocks": grid}
    if convolve.family is fused_group:
        shape["loads"] = group_counts.spectrum_loads(convolve.items, convolve.pairs, per_worker, spec.teams)
    elif convolve.family is fused_warp:
        shape["loads"] = kernel_counts.spectrum_loads(convolve.items, convolve.pairs, per_worker)
    return convolve, spec, shape, counted


def check(expected, counted):
    """Every counter as expected, and none that was not."""
    assert {name: counted.pop(name, 0) for name in expected} == expected
    assert not any(counted.values()), "the kernel counted something that has no closed form"


@given(
    factors=st.sampled_from(FACTORS),
    dtype=st.sampled_from(["fp16", "bf16"]),
    batch=st.integers(1, 5),
    channels=st.integers(1, 3),
    part=st.floats(0.01, 1.0),
    gates=st.tuples(st.booleans(), st.booleans()),
    blocks=st.integers(1, 3),
    size=st.sampled_from([1.0, 1e4]),
)
@example(
    factors=(16, 16), dtype="fp16", batch=2, channels=1, part=0.4, gates=(False, True), blocks=1, size=1.0
)
@example(
    factors=(32, 32), dtype="fp16", batch=5, channels=3, part=1.0, gates=(True, True), blocks=2, size=1e4
)
def test_counts_equal_the_counters(factors, dtype, batch, channels, part, gates, blocks, size):
    """Order 2: every counter, for any plan, batch, length, alignment and grid."""
    length = max(1, int(part * prod(factors)))
    plan = Plan(prod(factors), factors)
    convolve, spec, grid, counted = count(plan, dtype, batch, channels, length, gates, blocks, size)
    expected = kernel_counts.totals(
        *factors,
        *kernel_counts.warp_rows(convolve.spectrum.plan),
        batch=batch,
        channels=channels,
        length=length,
        pregate=gates[0],
        postgate=gates[1],
        halves=spec.halves,
        scaled=convolve.scaled,
        **grid,
    )
    check(expected, counted)


def block_case(plan, dtype, batch, channels, length, gates, blocks, size):
    """Compare one case of order 3."""
    convolve, spec, grid, counted = count(plan, dtype, batch, channels, length, gates, blocks, size)
    expected = block_counts.totals(
        *plan.factors,
        *kernel_counts.rows(convolve.spectrum.plan),
        batch=batch,
        channels=channels,
        length=length,
        pregate=gates[0],
        postgate=gates[1],
        scaled=convolve.scaled,
        warps=spec.warps,
        tables_shared=spec.tables_shared,
        together=spec.q <= block_counts.TOGETHER_POINTS,
        fold=block_counts.fold_of(plan.factors[0]),
        half=plan.packing == "half",
        **grid,
    )
    check(expected, counted)


@settings(max_examples=25)
@given(
    factors=st.sampled_from([f for f in fused_group.FACTORS if f[1] <= 64]),
    dtype=st.sampled_from(["fp16", "bf16"]),
    batch=st.integers(1, 9),
    channels=st.integers(1, 3),
    part=st.floats(0.01, 1.0),
    gates=st.tuples(st.booleans(), st.booleans()),
    blocks=st.integers(1, 2),
    size=st.sampled_from([1.0, 1e4]),
)
@example(
    factors=(64, 128), dtype="bf16", batch=3, channels=2, part=0.5, gates=(True, True), blocks=1, size=1e4
)
@example(
    factors=(64, 32), dtype="fp16", batch=9, channels=3, part=1.0, gates=(True, True), blocks=1, size=1e4
)
def test_group_counts_equal_the_counters(factors, dtype, batch, channels, part, gates, blocks, size):
    """Order 2 on warpgroups: every counter, for any plan, batch, length, alignment and grid."""
    n = prod(factors)
    length = max(1, int(part * n))
    convolve, spec, grid, counted = count(
        Plan(n, factors), dtype, batch, channels, length, gates, blocks, size
    )
    expected = group_counts.totals(
        *factors,
        *group_counts.live_rows(convolve.spectrum.plan),
        batch=batch,
        channels=channels,
        length=length,
        pregate=gates[0],
        postgate=gates[1],
        scaled=convolve.scaled,
        tables_shared=spec.tables_shared,
        ring=spec.ring,
        keep=spec.keep,
        **grid,
    )
    check(expected, counted)


@settings(max_examples=15)
@given(
    dtype=st.sampled_from(["fp16", "bf16"]),
    batch=st.integers(1, 3),
    channels=st.integers(1, 2),
    length=st.integers(1, 4096),
    gates=st.tuples(st.booleans(), st.booleans()),
    blocks=st.integers(1, 3),
    size=st.sampled_from([1.0, 1e4]),
)
@example(dtype="bf16", batch=3, channels=2, length=4096, gates=(True, True), blocks=2, size=1e4)
def test_block_counts_equal_the_counters(dtype, batch, channels, length, gates, blocks, size):
    """Order 3: every counter, for any batch, length, alignment, gates and grid."""
    block_case(Plan(4096, (16, 16, 16)), dtype, batch, channels, length, gates, blocks, size)


@settings(max_examples=15)
@given(
    dtype=st.sampled_from(["fp16", "bf16"]),
    batch=st.integers(1, 3),
    channels=st.integers(1, 2),
    length=st.builds(lambda count, unit: max(1, count // unit * unit), st.integers(1, 8192), HALVES),
    gates=st.tuples(st.booleans(), st.booleans()),
    blocks=st.integers(1, 3),
    size=st.sampled_from([1.0, 1e4]),
)
@example(dtype="bf16", batch=3, channels=2, length=8192, gates=(True, True), blocks=2, size=1e4)
@example(dtype="fp16", batch=1, channels=1, length=1, gates=(False, True), blocks=1, size=1.0)
def test_block_counts_of_half_length_packing(dtype, batch, channels, length, gates, blocks, size):
    """One sequence of 2 P samples: every counter, with copies of 8, 4, 2 elements or one."""
    block_case(half_plan((16, 16, 16)), dtype, batch, channels, length, gates, blocks, size)


@pytest.mark.parametrize("factors", [f for f in TUNED if f[0] >= 16 and f != (16, 16, 16)] + [(80, 16, 16)])
def test_block_counts_of_every_half_length_list(factors):
    """Each list once; conflicts are those of the one gather alone, as many as the mirrors of its rows say."""
    plan = half_plan(factors)
    block_case(plan, "fp16", 1, 1, plan.n, (False, False), 1, 1.0)


def deep_plan(packing, factors=(16, 8, 16, 16)):
    """The order-4 kernel's plan with a packing."""
    return Plan(prod(factors) * (2 if packing == "half" else 1), factors, packing=packing)


@settings(max_examples=1)
@given(
    factors=st.sampled_from(fused_deep.FACTORS),
    packing=st.sampled_from(["pair", "half"]),
    dtype=st.sampled_from(["fp16", "bf16"]),
    batch=st.integers(1, 3),
    channels=st.integers(1, 2),
    length=st.builds(lambda count, unit: max(1, count // unit * unit), st.integers(1, 16384), HALVES),
    gates=st.tuples(st.booleans(), st.booleans()),
    blocks=st.integers(1, 2),
    size=st.sampled_from([1.0, 1e4]),
)
@example((16, 8, 16, 16), "pair", "fp16", 2, 1, 32768, (False, False), 1, 1.0)
@example((16, 8, 16, 16), "pair", "bf16", 3, 2, 16383, (True, True), 2, 1e4)
@example((16, 8, 16, 16), "half", "fp16", 1, 2, 65536, (False, False), 1, 1.0)
@example((16, 8, 16, 16), "half", "bf16", 2, 1, 40002, (True, False), 1, 1e4)
@example((8, 8, 16, 16), "pair", "fp16", 2, 1, 16384, (True, True), 1, 1e4)
@example((8, 8, 16, 16), "pair", "bf16", 3, 2, 8192, (False, False), 2, 1.0)
@example((8, 8, 16, 16), "half", "fp16", 1, 1, 32768, (False, True), 1, 1.0)
@example((8, 8, 16, 16), "half", "bf16", 2, 1, 16382, (False, False), 1, 1e4)
def test_deep_counts_equal_the_counters(
    factors, packing, dtype, batch, channels, length, gates, blocks, size
):
    """Order 4: every counter, for any batch, length, alignment, gates and grid; no conflicts for pairs."""
    plan = deep_plan(packing, factors)
    convolve, spec, grid, counted = count(plan, dtype, batch, channels, length, gates, blocks, size)
    expected = deep_counts.totals(
        *plan.factors,
        *deep_counts.rows(convolve.spectrum.plan),
        batch=batch,
        channels=channels,
        length=length,
        pregate=gates[0],
        postgate=gates[1],
        scaled=convolve.scaled,
        half=packing == "half",
        middle_shared=spec.middle_shared,
        early=spec.early,
        **grid,
    )
    check(expected, counted)
    assert expected["bank_conflicts"] == (convolve.items * 20 if packing == "half" else 0)


@given(
    factors=st.sampled_from(fused_deep.FACTORS),
    packing=st.sampled_from(["pair", "half"]),
    part=st.sampled_from([0.3, 0.5, 1.0]),
    gates=st.tuples(st.booleans(), st.booleans()),
    capacity=st.sampled_from([90, 99, 163, 190, 227]),
)
def test_deep_shapes_are_the_kernels(factors, packing, part, gates, capacity):
    """What the model assumes of an order-4 block is what the kernel chooses."""
    plan, limit = deep_plan(packing, factors), capacity * 1024
    plan = plan.with_(signal=int(part * plan.n), wanted=int(part * plan.n))
    spec = fused_deep.make_spec(plan, "fp16", pregate=gates[0], postgate=gates[1], shared_limit=limit)
    rows = deep_counts.rows(plan)
    assert rows == (spec.rows_in, spec.rows_out)
    shape = deep_counts.block_shape(plan.factors, *rows, pregate=gates[0], capacity_bytes=limit)
    if spec.shared_bytes > limit:
        assert shape is None
    else:
        assert shape == deep_counts.Shape(spec.warps, spec.ring, spec.middle_shared, spec.shared_bytes)


def half_plan(factors):
    """One sequence as half as many complex points."""
    return Plan(2 * prod(factors), factors, packing="half")


@pytest.mark.parametrize("n2", [16, 32])
@pytest.mark.parametrize("n3", [16, 32])
def test_conflicts_of_the_mirrored_gather(n2, n3):
    """The closed form N3 + 4, from the frequencies: slot q is k = q, slot n - 1 - q its complement; k -> -k."""

    def slots(n):
        return np.concatenate([np.arange(n // 2), n - 1 - np.arange(n // 2)])

    place2, place3 = np.argsort(slots(n2)), np.argsort(slots(n3))
    extra = 0
    for group in range(0, n2, 8):
        for column in range(n3 // 8 * 2):  # a column tile, and which half of a register
            banks = {}
            for row in range(group, group + 8):
                for thread in range(4):
                    k2, k3 = slots(n2)[row], slots(n3)[8 * (column // 2) + 2 * thread + column % 2]
                    mirror = (-(k2 + n2 * k3)) % (n2 * n3)
                    r, c = place2[mirror % n2], place3[mirror // n2]
                    word = (r // 8, c // 8, c % 8 // 2 + 4 * (r % 8))  # register, lane
                    banks.setdefault(word[2], set()).add(word)
            extra += max(map(len, banks.values())) - 1
    found = block_counts.totals(
        16,
        n2,
        n3,
        16,
        16,
        batch=1,
        channels=1,
        length=1,
        blocks=0,
        warps=4,
        tables_shared=False,
        together=False,
        half=True,
    )
    assert found["bank_conflicts"] == 2 * extra == n3 + 4  # real and imaginary parts


@pytest.mark.parametrize("factors", [f for f in TUNED if f != (16, 16, 16)])
@pytest.mark.parametrize("fraction, step", [(1.0, 0), (0.5, 4), (0.6, 1)])
def test_block_counts_of_every_factor_list(factors, fraction, step):
    """Each list in full, causal and at a length that allows no wide access, where the batch is odd."""
    length = int(fraction * prod(factors)) // 8 * 8 - step
    block_case(Plan(prod(factors), factors), "fp16", 1, 1, length, (step == 4, step == 4), 1, 1.0)


@pytest.mark.parametrize("factors", [f for f in fused_block.FACTORS if f not in TUNED])
def test_block_counts_of_lists_that_were_not_tuned(factors):
    """Each of them once."""
    n = prod(factors)
    block_case(Plan(n, factors), "fp16", 1, 1, n // 2 - 4, (False, True), 1, 1.0)


@given(
    kind=st.sampled_from([(f, packing) for packing, lists in fused_block.PACKINGS.items() for f in lists]),
    part=st.sampled_from([0.3, 0.5, 1.0]),
    gates=st.tuples(st.booleans(), st.booleans()),
    capacity=st.sampled_from([64, 99, 163, 227]),
)
def test_block_shapes_are_the_kernels(kind, part, gates, capacity):
    """What the model assumes of a block is what the kernel chooses, on GPUs with any amount of shared memory."""
    factors, packing = kind
    n = prod(factors) * (1 if packing == "pair" else 2)
    turned = packing == "right-angle"
    samples = int(min(part, 0.5 if turned else 1) * n)
    plan = Plan(n, factors, packing=packing, signal=samples, wanted=samples)
    options = {"pregate": gates[0], "postgate": gates[1]}
    spec = fused_block.make_spec(plan, "fp16", shared_limit=capacity * 1024, **options)
    rows_in, _ = kernel_counts.rows(plan)
    options |= {"half": packing == "half", "right_angle": turned}
    if turned:
        factors = (2 * factors[0], *factors[1:])
    shape = block_counts.block_shape(factors, rows_in, capacity_bytes=capacity * 1024, **options)
    if spec.shared_bytes > capacity * 1024:
        assert shape is None
        return
    kernel = (fused_block.min_blocks(spec), spec.warps, spec.ring, spec.tables_shared, spec.shared_bytes)
    assert shape == block_counts.Shape(*kernel)


ANY_LISTS = st.sampled_from(
    [(f, packing) for packing, lists in fused_any.PACKINGS.items() for f in lists if prod(f) <= 6400]
)


@settings(max_examples=12)
@given(
    kind=ANY_LISTS,
    dtype=st.sampled_from(["fp16", "bf16"]),
    batch=st.integers(1, 3),
    channels=st.integers(1, 2),
    part=st.floats(0.01, 1.0),
    gates=st.tuples(st.booleans(), st.booleans()),
    blocks=st.integers(1, 3),
    size=st.sampled_from([1.0, 1e4]),
)
@example(((48, 48), "pair"), "fp16", 3, 2, 1.0, (False, False), 2, 1.0)
@example(((80, 48), "half"), "bf16", 2, 1, 0.5, (True, True), 1, 1e4)
@example(((16, 16, 16), "complex"), "fp16", 2, 1, 0.4, (True, True), 1, 1e4)
@example(((256, 16), "pair"), "fp16", 1, 1, 0.5, (False, True), 1, 1.0)
@example(((17, 16, 16), "pair"), "fp16", 3, 2, 1.0, (True, True), 2, 1.0)
@example(((9, 16, 32), "half"), "fp16", 2, 1, 0.3, (False, True), 1, 1.0)
@example(((272, 16), "complex"), "fp16", 1, 1, 0.5, (True, False), 1, 1.0)
@example(((16, 48, 16), "pair"), "fp16", 2, 1, 0.4, (True, False), 1, 1.0)
@example(((24, 16, 32), "pair"), "bf16", 1, 1, 1.0, (False, False), 1, 1e4)
def test_any_counts_equal_the_counters(kind, dtype, batch, channels, part, gates, blocks, size):
    """Any first factor, with every packing; complex sequences are of float32."""
    factors, packing = kind
    n = prod(factors) * (2 if packing == "half" else 1)
    length = max(1, int(part * n))
    plan = Plan(n, factors, packing=packing)
    convolve, spec, grid, counted = count(plan, dtype, batch, channels, length, gates, blocks, size)
    expected = any_counts.totals(
        factors,
        spec.rows_in,
        spec.rows_out,
        batch=batch,
        channels=channels,
        numbers=length * (2 if packing == "complex" else 1),
        blocks=grid["blocks"],
        warps=spec.warps,
        cached=spec.cached,
        held=any_spec.HELD,
        held_last=any_spec.HELD_LAST,
        one_table=spec.one_table,
        padding=spec.layout.padding,
        packing=packing,
        item_bytes=4 if packing == "complex" else 2,
        pregate=gates[0],
        postgate=gates[1],
        scaled=convolve.scaled,
    )
    check(expected, counted)


def test_counts_are_symbolic():
    """Symbols go through: the products of one pair, and the bytes of a call."""
    sympy = pytest.importorskip("sympy")
    n1, n2, batch, channels, length, blocks, loads = sympy.symbols(
        "N1 N2 B H L G S", positive=True, integer=True
    )
    found = kernel_counts.totals(
        n1, n2, n1, n1, batch=batch, channels=channels, length=length, blocks=blocks, loads=loads
    )
    assert sympy.simplify(found["read_u"] - 2 * batch * channels * length) == 0
    values = {n1: 32, n2: 32, batch: 64, channels: 768, length: 1024, blocks: 384, loads: 768}
    numbers = kernel_counts.totals(32, 32, 32, 32, batch=64, channels=768, length=1024, blocks=384, loads=768)
    assert {name: sympy.sympify(e).subs(values) for name, e in found.items()} == numbers


def test_tensor_work_is_half_of_the_complex_products():
    """Equation 2 counts 16 N N_i flops a sequence, 32 a pair; the cosine/sine form takes a quarter of 8 N N_i x 4."""
    for factors in FACTORS:
        n = factors[0] * factors[1]
        flops = 4096 * kernel_counts.products(*factors, factors[0])
        extra = (
            8 * n * factors[0] // 2 if factors[0] == 16 else 0
        )  # whose first factor is a real matrix of both parts
        assert flops == 8 * n * sum(factors) + extra


def test_the_model_knows_every_kernel():
    """The kernels' own list of plans, and no other."""
    points = {prod(f) for family in FAMILIES for lists in family.PACKINGS.values() for f in lists}
    for packing in ("pair", "half", "complex", "right-angle"):
        run = [f for family in FAMILIES for f in family.PACKINGS.get(packing, ())]
        known = [
            f for n in points for order in (2, 3, 4) for f in kernel_counts.factor_lists(n, order, packing)
        ]
        assert sorted(known) == sorted(run)
    assert {n for n, plan in default_plans(halved=True).items() if plan.packing == "right-angle"} == set(
        RIGHT_ANGLE_FACTORS
    )
    for plan in (*default_plans().values(), *default_plans(halved=True).values()):
        factors = plan.factors
        found = kernel_counts.kernel_counts(
            plan, 2, 1, dtype="fp16", variant="plain", capacity_bytes=227 * 1024
        )
        assert found is not None and found.exact and plan.factors == factors
        spec = family_of(plan).make_spec(plan, "fp16")
        assert found.shared_bytes_per_block == spec.shared_bytes
        assert found.threads_per_block == 32 * spec.warps


@pytest.mark.parametrize("variant", ["plain", "gated"])
def test_order_4_beside_order_3(variant):
    """32768 points both ways: fewer products, two thirds of the additions, and no table of the length's size."""
    options = {"dtype": "fp16", "variant": variant, "capacity_bytes": 227 * 1024}
    deep, block = (
        kernel_counts.kernel_counts(plan, 64, 768, **options)
        for plan in (deep_plan("pair"), Plan(32768, (32, 32, 32)))
    )
    assert deep.exact and 3 * deep.fp32_flops == 2 * block.fp32_flops
    assert 6 * deep.mma_flops == 5 * block.mma_flops
    assert deep.device_bytes == block.device_bytes
    assert block.l2_bytes - deep.l2_bytes == 24576 * (8 - 2) * 32768  # twiddles of each pair
    spec = fused_deep.make_spec(deep_plan("pair"), "fp16", pregate=variant == "gated")
    assert deep.shared_bytes_per_block == spec.shared_bytes and deep.threads_per_block == 32 * spec.warps
    small = kernel_counts.kernel_counts(
        deep_plan("pair"), 64, 768, **(options | {"capacity_bytes": 163 * 1024})
    )
    assert small is None


def test_zeros_are_half_of_the_outer_products():
    """L = N / 2, and as many outputs: both outer stages do half; nothing else changes."""
    whole = deep_plan("pair")
    half = whole.with_(signal=whole.n // 2, wanted=whole.n // 2)
    found = [deep_counts.products(*plan.factors, *deep_counts.rows(plan)) for plan in (whole, half)]
    assert found == [10 * 512, 8 * 512]


def test_64k_by_half_length_packing():
    """One sequence of 65536 samples, one block of 8 warps: its own work, read and written once."""
    plan = Plan(65536, (32, 32, 32), packing="half")
    found = kernel_counts.kernel_counts(
        plan, 64, 768, dtype="fp16", variant="plain", capacity_bytes=227 * 1024
    )
    assert found.exact and found.launches == 1 and found.transforms == found.blocks == 64 * 768
    assert found.device_write_bytes == 64 * 768 * 65536 * 2
    assert found.device_read_bytes == 64 * 768 * 65536 * 2 + 768 * 8 * 32768
    assert found.half_flops == 64 * 768 * 38 * 32768
    pair = kernel_counts.kernel_counts(
        Plan(32768, (32, 32, 32)), 64, 768, dtype="fp16", variant="plain", capacity_bytes=227 * 1024
    )
    assert found.mma_flops == 2 * pair.mma_flops  # as many points, for one sequence instead of two
    extra = found.l2_bytes - 2 * pair.l2_bytes  # input and output are twice those of the pair
    assert extra == 64 * 768 * (4 * 32768 + 4 * 1024)  # B, and the mirrors' offsets


def test_the_model_uses_them():
    """The time model's counts are this kernel's, and say so."""
    from costmodel import counts

    found = counts.for_plan(Plan(1024, (32, 32)), 64, 768, capacity_bytes=227 * 1024)
    assert found.exact and "fused" in found.source
    assert found.device_read_bytes == 2 * 64 * 768 * 1024 + 4 * 768 * 1024
    spec = fused_warp.make_spec(Plan(1024, (32, 32)), "fp16")
    assert found.shared_bytes_per_block == spec.shared_bytes


# ---- fp32 ----------------------------------------------------------------------------------------------------
def float_case(factors, half, batch, channels, length, gates, blocks):
    """Compare one case of the fp32 kernel."""
    n = prod(factors) * (2 if half else 1)
    plan = Plan(n, factors, packing="half" if half else "pair")
    mode = "circular" if length == n else "causal"
    rng = np.random.default_rng(0)
    filters = rng.standard_normal((channels, n + 1 - length if mode == "causal" else length))
    spectrum = prepare_filter(filters, length=length, mode=mode, dtype="fp32", plan=plan)
    convolve = FFTConv(spectrum, batch=batch)
    data = [rng.standard_normal(convolve.shape).astype(np.float32) for _ in range(3)]
    pregate, postgate = (x if on else None for x, on in zip(data[1:], gates, strict=True))
    _, counters = convolve.run_cpu(data[0], pregate=pregate, postgate=postgate, blocks=blocks)
    counted = flat(counters)
    spec = convolve.spec(pregate=gates[0], postgate=gates[1])
    grid, turns = convolve.grid(convolve.family.workers(spec), blocks)
    assert counted.pop("blocks") == grid and counted.pop("warps") == grid * spec.warps
    case = {"half": half, "batch": batch, "channels": channels, "length": length}
    case |= {"pregate": gates[0], "postgate": gates[1]}
    if convolve.family is fused_rounds:
        expected = rounds_counts.totals(factors, spec.rows_in, spec.rows_out, **case)
    else:
        expected = float_counts.totals(
            factors,
            spec.rows_in,
            spec.rows_out,
            together=spec.shape.together,
            padding=spec.shape.padding,
            guarded=spec.guarded,
            blocks=grid,
            turns=turns,
            **case,
        )
    check(expected, counted)


@settings(max_examples=40)
@given(
    factors=st.sampled_from([f for f in fused_float.FACTORS if prod(f) <= 1024]),
    half=st.booleans(),
    batch=st.integers(1, 5),
    channels=st.integers(1, 3),
    part=st.floats(0.01, 1.0),
    gates=st.tuples(st.booleans(), st.booleans()),
    blocks=st.integers(1, 3),
)
@example(factors=(16, 16), half=False, batch=5, channels=3, part=1.0, gates=(True, True), blocks=2)
@example(factors=(16, 16), half=True, batch=1, channels=1, part=0.3, gates=(False, True), blocks=1)
def test_float_counts_equal_the_counters(factors, half, batch, channels, part, gates, blocks):
    """fp32: every counter, for any plan, packing, batch, length and grid."""
    length = max(1, int(part * prod(factors) * (2 if half else 1)))
    float_case(factors, half, batch, channels, length, gates, blocks)


@settings(max_examples=8)
@given(
    factors=st.sampled_from([f for f in fused_rounds.FACTORS if prod(f) <= 6000]),
    half=st.booleans(),
    batch=st.integers(1, 3),
    channels=st.integers(1, 2),
    part=st.floats(0.01, 1.0),
    gates=st.tuples(st.booleans(), st.booleans()),
    blocks=st.integers(1, 3),
)
@example(factors=(20, 16, 16), half=True, batch=3, channels=1, part=1.0, gates=(True, True), blocks=2)
def test_rounds_counts_equal_the_counters(factors, half, batch, channels, part, gates, blocks):
    """The same of transforms whose points stay in shared memory."""
    length = max(1, int(part * prod(factors) * (2 if half else 1)))
    float_case(factors, half, batch, channels, length, gates, blocks)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("factors", [(16, 8, 11, 16), (16, 16, 8, 14)])
def test_rounds_counts_of_long_lists(factors, half):
    """Of order 4, with bank conflicts and without."""
    n = prod(factors) * (2 if half else 1)
    float_case(factors, half, 1, 1, n // 2, (False, False), 1)


@pytest.mark.parametrize("factors", [(4, 16, 16), (12, 16, 16)])
@pytest.mark.parametrize("packing", ["pair", "half", "complex"])
def test_the_model_counts_what_the_fp32_kernel_does(packing, factors):
    """What a prediction rests on is what the CPU body counts."""
    n = prod(factors) * (2 if packing == "half" else 1)
    plan = Plan(n, factors, packing=packing)
    rng = np.random.default_rng(0)
    signal = rng.standard_normal((4, 3, n)).astype(np.float32)
    filters = rng.standard_normal((3, n))
    dtype = "complex64" if packing == "complex" else "fp32"
    signal = signal + 1j * signal if packing == "complex" else signal
    spectrum = prepare_filter(filters, length=n, dtype=dtype, plan=plan)
    convolve = FFTConv(spectrum, batch=4)
    made = kernel_counts.kernel_counts(plan, 4, 3, dtype="fp32", variant="plain", capacity_bytes=227 * 1024)
    signal = signal.astype(np.complex64 if packing == "complex" else np.float32)
    _, counters = convolve.run_cpu(signal, blocks=made.blocks)
    assert made is not None and made.exact
    assert made.fp32_flops == counters.fp32_flops
    assert made.shared_bytes == 128 * counters.shared_wavefronts
    assert made.device_write_bytes == counters.global_written_bytes["y"]
    spectra = 3 * 8 * prod(factors) * (2 if packing == "half" else 1)
    assert made.device_read_bytes == counters.global_read_bytes["u"] + spectra
    spec = convolve.spec(pregate=False, postgate=False)
    assert made.registers_per_thread * convolve.family.min_blocks(spec) * 32 * spec.warps <= 65536
    assert made.shared_bytes_per_block == spec.shared_bytes


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("factors", [f for f in fused_float.FACTORS if prod(f) > 1024])
def test_float_counts_of_every_factor_list(factors, half):
    n = prod(factors) * (2 if half else 1)
    float_case(factors, half, 1, 1, n if half else n // 2, (False, False), 1)


def test_float_conflicts_and_splits_are_the_kernels():
    """No conflicts at powers of two but, with half-length packing, one an access of the first mirror."""
    assert float_counts.SPLIT_POINTS == float_spec.SPLIT_POINTS
    assert float_counts.AHEAD_POINTS == float_spec.AHEAD_POINTS
    for factors in fused_float.DEFAULT_FACTORS.values():
        if prod(factors) & (prod(factors) - 1):
            continue
        shape = float_spec.shape_of(factors)
        size = {"together": shape.together, "padding": shape.padding, "batch": 1, "channels": 1, "length": 1}
        for half in (False, True):
            found = float_counts.totals(factors, 1, 1, half=half, guarded=True, blocks=1, turns=1, **size)
            assert found["bank_conflicts"] == (factors[-1] * shape.together if half else 0)
