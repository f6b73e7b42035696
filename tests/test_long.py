"""Convolutions with outer stages, on the CPU body: a small limit on chip sends short lengths through every path."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from convolutions import filters, noise, scatter
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import seeds, signal

import kernels_numba
import reference
from kernels_numba import FFTConv, families, long_groups, long_plans, outer_spec, prepare_filter
from kernels_numba.long_conv import LongFFTConv
from kernels_numba.tile.layout import HALF_TYPES
from monarch import Plan, convolution_length

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")

ON_CHIP = 512
PLAN = Plan(4096, (16, 16, 16))
"""16 rows of 256 points, if no more than `ON_CHIP` fit on chip."""


def call(
    plan: Plan, mode: str, length: int, taps: int, batch: int, channels: int, dtype: str = "fp16", **rest: Any
) -> tuple[LongFFTConv, Any]:
    k = rest.pop("k", None)
    k = filters(channels, taps, rest.pop("seed", 0)) if k is None else k
    workspace = rest.pop("workspace", None)
    spectrum = prepare_filter(k, length=length, mode=mode, dtype=dtype, plan=plan, on_chip=ON_CHIP)
    convolve = FFTConv(spectrum, batch=batch, workspace=workspace)
    assert isinstance(convolve, LongFFTConv) and spectrum.outer
    return convolve, k


# ---- meaning and accuracy ------------------------------------------------------------------------------------
@settings(max_examples=4)
@given(
    mode=st.sampled_from(["circular", "causal", "two-sided"]),
    dtype=st.sampled_from(["fp16", "bf16"]),
    part=st.one_of(st.sampled_from([0.5, 1.0]), st.floats(0.0, 1.0)),
    batch=st.integers(1, 3),
    gates=st.tuples(st.booleans(), st.booleans()),
    kind=st.sampled_from(["noise", "noise", "impulse", "tone", "constant"]),
    rows=st.sampled_from([16, 32]),
    seed=seeds,
)
@example("circular", "fp16", 1.0, 2, (False, False), "noise", 16, 0)
@example("causal", "bf16", 0.5, 3, (True, True), "noise", 16, 1)
@example("causal", "fp16", 0.0, 1, (False, True), "noise", 32, 2)
def test_within_the_bound_of_the_reference(
    mode: str, dtype: str, part: float, batch: int, gates: tuple, kind: str, rows: int, seed: int
) -> None:
    plan = Plan(rows * 256, (rows, 16, 16))
    length = plan.n if mode == "circular" else max(1, int(part * plan.n))
    taps = length if mode == "circular" else max(1, plan.n + 1 - length)
    assert convolution_length(mode, length, taps) <= plan.n
    convolve, k = call(plan, mode, length, taps, batch, 1, dtype, seed=seed)
    u = np.ascontiguousarray(signal(kind, convolve.shape, seed)).astype(HALF_TYPES[dtype])
    names = [name for name, on in zip(("pregate", "postgate"), gates, strict=True) if on]
    given_gates = {name: noise(convolve.shape, dtype, [seed, len(name)]) for name in names}
    out = np.full(u.shape, np.nan, u.dtype)
    y = convolve(u, out=out, **given_gates)
    exact = reference.fftconv(u, k, mode=mode, **given_gates)
    coherent = kind != "noise" or min(length, taps) < 32
    bound = reference.fftconv_bound(plan.order, dtype, gates=len(names), coherent=coherent)
    found = reference.relative_error(y, exact, u, k, pairs=True, **given_gates)
    assert found.worst <= bound * scatter(plan.n), (found, bound)


@pytest.mark.parametrize("outer", [(16, 16), (16, 32), (32, 32)], ids=str)
def test_two_outer_factors(outer: tuple[int, int]) -> None:
    """256, 512 and 1024 rows, through the exchange; half a signal, so that half of the rows are read and written."""
    plan = Plan(prod(outer) * 256, (*outer, 16, 16))
    half = plan.n // 2
    convolve, k = call(plan, "causal", half, half, 1, 1)
    assert convolve.split.rows == prod(outer)
    u = noise(convolve.shape, "fp16")
    y, counters = convolve.run_cpu(u)
    found = reference.relative_error(y, reference.fftconv(u, k, mode="causal"), u, k, pairs=True)
    assert found.worst <= reference.fftconv_bound(4, "fp16")
    assert counters.bank_conflicts == 0 and counters.global_read_bytes["u"] == 2 * half


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_no_alignment_is_asked_for(offset: int) -> None:
    convolve, k = call(PLAN, "causal", 2048 - offset, 99, 1, 1)
    u = noise(convolve.shape, "fp16")
    exact = reference.fftconv(u, k, mode="causal")
    assert reference.relative_error(convolve(u), exact, u, k, pairs=True).worst <= reference.fftconv_bound(
        3, "fp16", coherent=True
    )


def test_large_filters_are_scaled() -> None:
    k = 1e4 * filters(2, 4096)
    convolve, _ = call(PLAN, "circular", 4096, 4096, 2, 2, k=k)
    assert convolve.scaled and convolve.specs()[2].scaled and not convolve.specs()[1].scaled
    u = (noise(convolve.shape, "fp16") / 100).astype(np.float16)
    found = reference.relative_error(convolve(u), reference.fftconv(u, k), u, k, pairs=True)
    assert found.worst <= reference.fftconv_bound(3, "fp16") * scatter(4096)


@pytest.mark.parametrize("place", [0, 777, 4095])
def test_an_impulse_brings_out_the_filter(place: int) -> None:
    convolve, k = call(PLAN, "circular", 4096, 4096, 1, 1)
    u = np.zeros((1, 1, 4096), np.float16)
    u[0, 0, place] = 1
    found = convolve(u)[0]
    assert np.linalg.norm(found - np.roll(k, place, axis=-1)) <= reference.fftconv_bound(
        3, "fp16", coherent=True
    )


# ---- groups and workspace ------------------------------------------------------------------------------------
def test_groups_do_not_change_the_result() -> None:
    """One workspace's room for all, or for one pair of one channel at a time: bit for bit."""
    whole, k = call(PLAN, "causal", 3000, 1000, 3, 2)
    small, _ = call(PLAN, "causal", 3000, 1000, 3, 2, k=k, workspace=4 * 4096)
    assert len(whole.groups) == 1 and len(small.groups) == 4 and small.groups.bytes == 4 * 4096
    u = noise(whole.shape, "fp16")
    assert np.array_equal(whole(u), small(u))


@given(
    n=st.sampled_from([2**17, 2**20, 3 * 2**18, 2**24]),
    channels=st.integers(1, 400),
    pairs=st.integers(1, 40),
    workspace=st.integers(2**19, 2**31),
)
def test_groups_cover_everything_once_and_fit(n: int, channels: int, pairs: int, workspace: int) -> None:
    if 4 * n > workspace:
        with pytest.raises(ValueError, match=f"workspace=.*{4 * n}|workspace={4 * n}"):
            long_groups.grouping(n, channels, pairs, workspace=workspace)
        return
    groups = long_groups.grouping(n, channels, pairs, workspace=workspace)
    done = np.zeros((channels, pairs), int)
    for group in groups:
        done[group.channel : group.channel + group.channels, group.pair : group.pair + group.pairs] += 1
    assert (done == 1).all() and len(list(groups)) == len(groups)
    assert groups.bytes <= max(workspace // 2, 4 * n)


def test_the_model_chooses_the_size_of_groups() -> None:
    """As measured on an H200; and where launches cost less than a larger L2 cache spares, groups stay in it."""
    whole, h200 = 4 * 131072 * 4 * 384, 60 * 2**20
    measured = {8: 2.00, 16: 1.65, 32: 1.55, 96: 1.52, 768: 1.44}
    extra = {mib: long_groups.extra_us(mib * 2**20, whole, h200) / 1e3 for mib in measured}
    apart = [measured[mib] - extra[mib] for mib in measured]
    assert max(apart) - min(apart) < 0.1
    large, small = (
        long_groups.grouping(131072, 384, 4, l2_bytes=l2_bytes) for l2_bytes in (h200, 300 * 2**20)
    )
    assert large.bytes == 256 * 2**20 and small.bytes <= 100 * 2**20


def test_what_a_call_needs_is_said() -> None:
    convolve, _ = call(PLAN, "circular", 4096, 4096, 2, 2)
    text = convolve.describe()
    assert "N1 = 16" in text and "N2 = 256" in text and f"{convolve.groups.bytes:,} bytes" in text
    assert "by launches and L2" in text
    with pytest.raises(
        ValueError, match=r"^workspace: 1000 bytes are too few.*takes 16384: allow workspace=16384"
    ):
        call(PLAN, "circular", 4096, 4096, 2, 2, workspace=1000)
    for wrong in (0, -1, 1.5):
        with pytest.raises(ValueError, match=r"^workspace: expected a number of bytes"):
            call(PLAN, "circular", 4096, 4096, 2, 2, workspace=wrong)


def test_no_memory_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what would fit; or that nothing does."""
    from kernels_numba import launch, long_conv

    def refuse(*_: Any, **__: Any) -> None:
        raise launch.LaunchError("cuMemAlloc of 32768 bytes on a GPU failed: CUDA_ERROR_OUT_OF_MEMORY")

    convolve, _ = call(PLAN, "circular", 4096, 4096, 2, 2)
    monkeypatch.setattr(long_conv, "Workspaces", refuse)
    for free, words in (
        (10 * 2**20, r"^workspace: 65536 bytes could not .*FFTConv\(..., workspace=8388608\) fits$"),
        (2**20, r"1048576 are free, and one pair .* alone needs 16384: free some memory"),
    ):
        monkeypatch.setattr(launch, "free_bytes", lambda index, free=free: free)
        with pytest.raises(launch.LaunchError, match=words):
            convolve._allocate(0)


# ---- plans ---------------------------------------------------------------------------------------------------
def test_default_plans() -> None:
    """Every power of two up to 2^24, and three quarters of them from 2^18 on; of orders 4 to 6."""
    plans = long_plans.default_long_plans()
    lengths = {2**e for e in range(17, 25)} | {3 * 2**e for e in range(16, 23)}
    assert lengths <= set(plans) and max(plans) == 2**24
    for n, plan in plans.items():
        split = long_plans.split_of(plan)
        assert split.rows * split.inner.n == n == prod(plan.factors) and 4 <= plan.order <= 6
        assert split.rows in outer_spec.SPLITS and families.is_fused(split.inner)


@pytest.mark.parametrize(("limit", "capability"), [(163 * 1024, (8, 0)), (99 * 1024, (8, 9))])
def test_smaller_gpus(limit: int, capability: tuple[int, int]) -> None:
    """Every default plan's three kernels fit into a block's shared memory."""
    plans = long_plans.default_long_plans(limit, capability)
    assert {2**17, 2**20, 2**22} <= set(plans)
    for plan in plans.values():
        split = long_plans.split_of(plan, capability)
        assert split.family.make_spec(split.inner, "fp16", shared_limit=limit).shared_bytes <= limit
        for inverse in (False, True):
            assert outer_spec.outer_spec(split, "fp16", inverse=inverse).shared_bytes <= limit


def test_the_limit_on_chip_decides() -> None:
    k = filters(1, 9)
    assert not prepare_filter(k, length=4096).outer
    found = prepare_filter(k, length=4096, on_chip=ON_CHIP)
    assert found.outer and found.plan.n == 4096 and found.words.shape == (1, 4096)
    assert prepare_filter(k, length=40000, mode="causal").plan.n == 49152  # one kernel, half-length packing
    assert prepare_filter(k, length=70000, mode="causal").plan.n == 131072


def test_spectrum_takes_four_bytes_a_bin() -> None:
    convolve, _ = call(PLAN, "circular", 4096, 4096, 2, 3)
    assert convolve.spectrum.words.nbytes == 4 * 3 * 4096


def test_refusals_say_what_is_accepted() -> None:
    k = filters(1, 9)
    with pytest.raises(ValueError, match=r"outer stages take .*, not fp32 sequences with fp16 products"):
        prepare_filter(k, length=131072, dtype="fp32", products="fp16")
    with pytest.raises(ValueError, match=r"^plan: transforms with outer stages take"):
        prepare_filter(k, length=4096, dtype="fp32", products="fp16", plan=PLAN, on_chip=ON_CHIP)
    with pytest.raises(ValueError, match=r"^plan: no kernels run .*a long one is 16, 32, 16x16"):
        long_plans.split_of(Plan(4096, (64, 64)))
    with pytest.raises(ValueError, match=r"take up to 16777216"):
        prepare_filter(k, length=2**24, mode="causal")


def test_fftconv_takes_long_plans() -> None:
    """A plan that no single kernel runs has outer stages without being asked, by way of `fftconv` too."""
    plan = Plan(65536, (16, 16, 16, 16))
    assert not families.is_fused(plan)
    k, u = filters(1, 50), noise((1, 1, 4000), "fp16")
    out = np.full_like(u, np.nan)
    assert kernels_numba.fftconv(u, k, mode="causal", plan=plan, out=out) is out
    found = reference.relative_error(out, reference.fftconv(u, k, mode="causal"), u, k, pairs=True)
    assert found.worst <= reference.fftconv_bound(4, "fp16") * scatter(4000)
