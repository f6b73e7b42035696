"""The order-4 kernel: its meaning and error bound on the CPU body, its constants, and where it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convolutions import PLAIN, noise, scatter
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import seeds

import kernels_numba
import reference
from kernels_numba import FFTConv, deep_operands, families, fused_deep, prepare_filter
from kernels_numba.operands import mirrored
from kernels_numba.tile.layout import HALF_TYPES
from monarch import Plan, convolution_length

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")

FACTORS = (16, 8, 16, 16)
POINTS = 32768
PAIR, HALF = Plan(POINTS, FACTORS), Plan(2 * POINTS, FACTORS, packing="half")
SMALL = (8, 8, 16, 16)
SMALL_PAIR, SMALL_HALF = Plan(POINTS // 2, SMALL), Plan(POINTS, SMALL, packing="half")
PLANS = [PAIR, HALF, SMALL_PAIR, SMALL_HALF]
each_plan = pytest.mark.parametrize("plan", PLANS, ids=["pair", "half", "small pair", "small half"])


def check(plan: Plan, case: Any) -> None:
    """One convolution within the bound of order 4, from poisoned memory."""
    u, k, gates = case.data()
    out = np.full(u.shape, np.nan, u.dtype)
    y = kernels_numba.fftconv(u, k, mode=case.mode, plan=plan, out=out, **gates)
    exact = reference.fftconv(u, k, mode=case.mode, **gates)
    pairs = plan.packing == "pair"
    found = reference.relative_error(y, exact, u, k, pairs=pairs, **gates)
    bound = reference.fftconv_bound(
        4,
        case.dtype,
        gates=sum(case.gates),
        coherent=min(case.length, case.taps) < 32 or case.kind != "noise",
    )
    assert found.worst <= bound * scatter(plan.points), (found, bound)


# ---- meaning and accuracy ------------------------------------------------------------------------------------
@settings(max_examples=8)
@given(
    plan=st.sampled_from(PLANS),
    dtype=st.sampled_from(["fp16", "bf16"]),
    mode=st.sampled_from(["circular", "causal", "two-sided"]),
    part=st.one_of(st.sampled_from([0.5, 1.0]), st.floats(0.0, 1.0)),
    batch=st.integers(1, 3),
    gates=st.tuples(st.booleans(), st.booleans()),
    kind=st.sampled_from(["noise", "noise", "impulse", "tone"]),
    seed=seeds,
)
@example(PAIR, "fp16", "circular", 1.0, 2, (False, False), "noise", 0)
@example(HALF, "fp16", "circular", 1.0, 1, (True, True), "noise", 1)
@example(PAIR, "bf16", "causal", 0.5, 1, (False, True), "noise", 2)
@example(HALF, "bf16", "two-sided", 0.3, 1, (True, False), "noise", 3)
@example(PAIR, "fp16", "causal", 0.0, 1, (False, False), "noise", 4)
@example(SMALL_PAIR, "bf16", "causal", 0.5, 3, (False, False), "noise", 5)
@example(SMALL_PAIR, "fp16", "circular", 1.0, 1, (True, True), "noise", 6)
@example(SMALL_HALF, "fp16", "two-sided", 0.4, 1, (True, True), "noise", 7)
@example(
    HALF, "fp16", "causal", 1.0, 1, (True, False), "impulse", 3570
)  # by a gate of 0.017 before gates had a least size
def test_within_the_bound_of_the_reference(
    plan: Plan, dtype: str, mode: str, part: float, batch: int, gates: tuple, kind: str, seed: int
) -> None:
    length = plan.n if mode == "circular" else max(1, int(part * plan.n))
    taps = length if mode == "circular" else max(1, plan.n + 1 - length)
    assert convolution_length(mode, length, taps) <= plan.n
    case = PLAIN._replace(
        mode=mode, length=length, taps=taps, batch=batch, dtype=dtype, gates=gates, kind=kind, seed=seed
    )
    check(plan, case)


@pytest.mark.parametrize("plan", [PAIR, HALF, SMALL_PAIR], ids=["pair", "half", "small pair"])
@pytest.mark.parametrize("offset", [1, 2, 4])
def test_no_alignment_is_asked_for(plan: Plan, offset: int) -> None:
    """Lengths that allow copies of 1, 2 and 4 elements; the arrays begin as far off."""
    case = PLAIN._replace(mode="causal", length=plan.n // 2 - offset, taps=1000, batch=1, offset=offset)
    check(plan, case)


@each_plan
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_bound_is_not_loose(plan: Plan, dtype: str) -> None:
    """The mean error of whole circles lies under the bound of order 4, and over that of order 2."""
    u, k = noise((2, 1, plan.n), dtype), np.random.default_rng(1).standard_normal((1, plan.n)) / plan.n**0.5
    y = kernels_numba.fftconv(u, k, plan=plan)
    found = reference.relative_error(y, reference.fftconv(u, k), u, k, pairs=plan.packing == "pair")
    assert reference.fftconv_bound(2, dtype) < found.overall <= reference.fftconv_bound(4, dtype)


@each_plan
def test_an_impulse_brings_out_the_filter(plan: Plan) -> None:
    """At three places, of which one is the last sample: a shift by as much, and no other place is hit."""
    k = np.random.default_rng(2).standard_normal((1, plan.n)) / plan.n**0.5
    at = (0, 4999, plan.n - 1)
    u = np.zeros((3, 1, plan.n), np.float16)
    u[range(3), 0, at] = 1
    y = kernels_numba.fftconv(u, k, plan=plan)
    for found, place in zip(y, at, strict=True):
        wanted = np.roll(k, place, axis=-1)
        assert np.linalg.norm(found - wanted) <= reference.fftconv_bound(4, "fp16", coherent=True)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_half_length_packing_keeps_sequences_apart(value: float) -> None:
    u, k = noise((2, 1, HALF.n), "fp16"), np.eye(1, 64)
    u[0, 0, 5] = value
    y = kernels_numba.fftconv(u, k, plan=HALF)
    assert not np.isfinite(y[0].astype(float)).any() and np.isfinite(y[1].astype(float)).all()


@each_plan
def test_zeros_are_skipped(plan: Plan) -> None:
    """Half a signal: half the copies, no row beyond it is read; of 16 rows half the products of both outer stages.

    Of 8 rows products are as many: the live ones do not fill a tile.
    """
    found = {}
    for part in (1, 2):
        length = plan.n // part
        spectrum = prepare_filter(
            np.eye(1, 9), length=length, mode="causal" if part > 1 else "circular", plan=plan
        )
        _, found[part] = FFTConv(spectrum, batch=1).run_cpu(noise((1, 1, length), "fp16"), blocks=1)
    whole, half = found[1], found[2]
    tiles = plan.factors[0] == 16
    assert whole.mma_m16n8k16 - half.mma_m16n8k16 == (2 * 512 if tiles else 0)
    assert whole.shared_written_bytes - half.shared_written_bytes == 2 * plan.points + (2048 if tiles else 0)
    assert 2 * half.global_read_bytes["u"] == whole.global_read_bytes["u"]


def test_rows_that_are_not_there_are_zeros() -> None:
    """Four live rows of eight: what shared memory holds beyond them, here infinities of another item, is not used."""
    length = SMALL_PAIR.n // 2
    k = np.eye(1, 9)
    spectrum = prepare_filter(k, length=length, mode="causal", plan=SMALL_PAIR)
    u = np.stack(
        [np.full((1, length), np.inf, np.float16)] * 2 + [noise((1, length), "fp16", i) for i in range(2)]
    )
    y, _ = FFTConv(spectrum, batch=4).run_cpu(u, blocks=1)
    exact = reference.fftconv(u[2:].astype(float), k, mode="causal")
    assert reference.relative_error(y[2:], exact, u[2:], k).overall <= reference.fftconv_bound(
        4, "fp16", coherent=True
    )


@pytest.mark.gpu
@pytest.mark.parametrize("gates", [False, True], ids=["plain", "gated"])
@each_plan
def test_bodies_agree(plan: Plan, gates: bool) -> None:
    """A GPU's results beside the CPU body's: the same roundings but for the order of sums."""
    length = plan.n // 2 - 4 if gates else plan.n
    case = PLAIN._replace(
        mode="causal" if gates else "circular", length=length, taps=length, batch=3, gates=(gates, gates)
    )
    u, k, both = case.data()
    spectrum = prepare_filter(k, length=length, mode=case.mode, plan=plan)
    convolve = FFTConv(spectrum, batch=3)
    got = convolve(u, out=np.full(u.shape, np.nan, u.dtype), **both).astype(float)
    expected = convolve.run_cpu(u, **both)[0].astype(float)
    apart = reference.relative_error(got, expected, u, k, pairs=plan.packing == "pair", **both)
    assert apart.overall <= 0.4 * reference.fftconv_bound(4, "fp16"), apart


# ---- constants -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n1", [8, 16])
def test_the_outer_factors_are_transforms(n1: int) -> None:
    """Of real and imaginary parts, k1 by slots; the way back is the inverse."""
    (there, scale), (back, other) = (
        deep_operands.outer_factor(n1, inverse=way, dtype="fp16") for way in (False, True)
    )
    z = np.random.default_rng(0).standard_normal((2, n1)).T @ [1, 1j]
    k1 = mirrored(n1, self_paired=True)
    found = there @ np.concatenate([z.real, z.imag]) / scale
    np.testing.assert_allclose(found[:n1] + 1j * found[n1:], np.fft.fft(z)[k1] / n1**0.5, rtol=0, atol=1e-12)
    again = back @ found / other
    np.testing.assert_allclose(again[:n1] + 1j * again[n1:], z, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [4, 8, 16])
def test_rows_are_contracted_once(rows: int) -> None:
    """Both parts of every live row; fewer than eight rows are filled up to eight, by slots of their own."""
    part, row = deep_operands.parts_read(rows)
    assert sorted(zip(part, row, strict=True)) == [(p, r) for p in range(2) for r in range(max(8, rows))]
    assert set(row[: 2 * rows]) == set(range(rows))  # half a signal is the first half of the slots, too


@pytest.mark.parametrize("k1", [0, 1, 8, 15])
def test_the_middle_factor_is_a_shifted_transform(k1: int) -> None:
    """n2 -> k2 with w^(k1 n2) put in, of real and imaginary parts; the way back is its inverse."""
    (there, scale), (back, other) = (
        deep_operands.middle_factor(16, 8, k1, inverse=way, dtype="fp16") for way in (False, True)
    )
    z = np.random.default_rng(k1).standard_normal(8) + 1j * np.random.default_rng(99).standard_normal(8)
    found = there @ np.concatenate([z.real, z.imag]) / scale
    wanted = np.fft.fft(z * np.exp(-2j * np.pi * k1 * np.arange(8) / 128)) / np.sqrt(8)
    np.testing.assert_allclose(found[:8] + 1j * found[8:], wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(back @ there / (scale * other), np.eye(16), rtol=0, atol=1e-12)
    assert 1 <= scale < 2 and 1 <= other < 2


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_middle_factors_round_well(dtype: str) -> None:
    """rms error of the entries, which are not those of a DFT: at most 0.25 of a unit, a general constant has 0.41."""
    for k1 in range(16):
        matrix, _ = deep_operands.middle_factor(16, 8, k1, inverse=False, dtype=dtype)
        error = matrix.astype(HALF_TYPES[dtype]).astype(float) - matrix
        assert np.linalg.norm(error) <= 0.26 * reference.unit_roundoff(dtype) * np.linalg.norm(matrix)


@pytest.mark.parametrize("n1", [8, 16])
@pytest.mark.parametrize("half", [False, True], ids=["pair", "half"])
def test_every_tile_is_worked_on_once(half: bool, n1: int) -> None:
    order = deep_operands.tiles_in_order(n1, 8, half)
    assert sorted(map(tuple, order)) == [(slot, k2) for slot in range(n1) for k2 in range(8)]


@pytest.mark.parametrize("n1", [8, 16])
def test_mirrors_are_worked_on_together(n1: int) -> None:
    """With half-length packing the frequencies -k of two neighbouring tiles are those of the two."""
    k1 = mirrored(n1, self_paired=True)
    rest = 8 * n1 * np.arange(256)
    for tiles in deep_operands.tiles_in_order(n1, 8, True).reshape(-1, 2, 2):
        k = np.concatenate([k1[slot] + n1 * k2 + rest for slot, k2 in tiles])
        assert set(k) == set(-k % (2048 * n1))


# ---- where it runs -------------------------------------------------------------------------------------------
def test_shared_memory_decides() -> None:
    """As many strips ahead as fit, at most an item's: half the rows, or no gates, leave room for twice as many."""
    causal = PAIR.with_(signal=POINTS // 2, wanted=POINTS // 2)
    rings = {}
    for limit in (227, 200):
        for plan in (PAIR, causal):
            for gates in (False, True):
                spec = fused_deep.make_spec(plan, "fp16", pregate=gates, shared_limit=limit * 1024)
                rings[limit, plan is causal, gates] = spec.ring if spec.shared_bytes <= limit * 1024 else None
    assert [rings[227, False, gates] for gates in (False, True)] == [2, 1]
    assert [rings[227, True, gates] for gates in (False, True)] == [4, 2]
    assert [rings[200, False, gates] for gates in (False, True)] == [1, None]
    assert families.shared_bytes(PAIR) > 163 * 1024


def test_two_blocks_of_eight_warps_share_an_sm() -> None:
    """Where an SM has 228 KiB, for every variant; elsewhere one block runs, also with 99 KiB."""
    causal = SMALL_PAIR.with_(signal=POINTS // 4, wanted=POINTS // 4)
    kept = {}
    for plan in (SMALL_PAIR, causal, SMALL_HALF):
        for gates in (False, True):
            found = fused_deep.make_spec(plan, "fp16", pregate=gates, postgate=gates)
            assert fused_deep.min_blocks(found) == 2 and found.warps == 8
            assert 2 * (found.shared_bytes + 1024) <= 228 * 1024
            kept[plan is causal, gates] = found.ring, found.middle_shared
            for limit in (163, 99):
                spec = fused_deep.make_spec(
                    plan, "fp16", pregate=gates, postgate=gates, shared_limit=limit * 1024
                )
                assert spec.shared_bytes <= limit * 1024 < 2 * spec.shared_bytes
    assert kept == {
        (False, False): (3, True),
        (False, True): (2, False),
        (True, False): (6, True),
        (True, True): (3, True),
    }


def test_other_plans_are_refused() -> None:
    for plan in (
        Plan(POINTS, (8, 16, 16, 16)),
        Plan(65536, (16,) * 4),
        Plan(POINTS, FACTORS, packing="complex"),
    ):
        with pytest.raises(ValueError, match=r"^plan: .*16, 8, 16, 16.* 'pair', 'half' or 'right-angle'"):
            fused_deep.make_spec(plan, "fp16")
        with pytest.raises(ValueError, match=r"^plan: no fused kernel"):
            families.family_of(plan)


def test_a_plan_is_asked_for_by_name() -> None:
    """A spectrum prepared for one order is not taken for another."""
    u, k = noise((1, 1, POINTS), "fp16"), np.eye(1, 8)
    spectrum = prepare_filter(k, length=POINTS, plan=PAIR)
    assert FFTConv(spectrum, batch=1).family is fused_deep
    with pytest.raises(ValueError, match=r"^plan: the spectrum was prepared for"):
        kernels_numba.fftconv(u, spectrum, plan=Plan(POINTS, (32, 32, 32)))
