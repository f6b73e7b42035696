"""Long convolutions in fp32 on the CPU body: fp32 sequences, and halves with everything between in fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convolutions import filters, noise, scatter
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds, signal

import kernels_numba
import reference
from kernels_numba import FFTConv, long_plans, outer_float_spec, outer_spec, prepare_filter
from kernels_numba.long_conv import LongFFTConv
from kernels_numba.tile.layout import ELEMENT_TYPES
from monarch import Plan, SparsityPattern, convolution_length

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")

ON_CHIP = 512


def bound_of(n: int, dtype: str, *, gates: int = 0, coherent: bool = False) -> float:
    """Of the fp32 transform, and of the one rounding of a result that is stored in halves."""
    stored = 0.0 if dtype == "fp32" else reference.unit_roundoff(dtype)
    return reference.fft32_bound(n, gates=gates, coherent=coherent) + stored


def call(plan: Plan, length: int, batch: int, dtype: str, k: NDArray, **rest: Any) -> LongFFTConv:
    workspace = rest.pop("workspace", None)
    spectrum = prepare_filter(
        k, length=length, dtype=dtype, products="fp32", plan=plan, on_chip=ON_CHIP, **rest
    )
    convolve = FFTConv(spectrum, batch=batch, workspace=workspace)
    assert isinstance(convolve, LongFFTConv) and spectrum.outer and spectrum.products == "fp32"
    return convolve


@settings(max_examples=4)
@given(
    mode=st.sampled_from(["circular", "causal", "two-sided"]),
    dtype=st.sampled_from(["fp32", "fp32", "fp16", "bf16"]),
    part=st.one_of(st.sampled_from([0.5, 1.0]), st.floats(0.0, 1.0)),
    batch=st.integers(1, 3),
    gates=st.tuples(st.booleans(), st.booleans()),
    kind=st.sampled_from(["noise", "noise", "impulse", "tone", "constant"]),
    rows=st.sampled_from([16, 32]),
    seed=seeds,
)
@example("circular", "fp32", 1.0, 2, (False, False), "noise", 16, 0)
@example("causal", "fp32", 0.5, 3, (True, True), "noise", 32, 1)
@example("causal", "bf16", 0.3, 3, (True, True), "noise", 16, 1)
@example("two-sided", "fp16", 0.0, 1, (False, True), "noise", 32, 2)
def test_within_the_bound_of_the_reference(
    mode: str, dtype: str, part: float, batch: int, gates: tuple, kind: str, rows: int, seed: int
) -> None:
    plan = Plan(rows * 256, (rows, 16, 16))
    length = plan.n if mode == "circular" else max(1, int(part * plan.n))
    taps = length if mode == "circular" else max(1, plan.n + 1 - length)
    assert convolution_length(mode, length, taps) <= plan.n
    k = filters(1, taps, seed)
    convolve = call(plan, length, batch, dtype, k, mode=mode)
    u = np.ascontiguousarray(signal(kind, convolve.shape, seed)).astype(ELEMENT_TYPES[dtype])
    names = [name for name, on in zip(("pregate", "postgate"), gates, strict=True) if on]
    values = {name: np.random.default_rng([seed, len(name)]).standard_normal(u.shape) for name in names}
    given_gates = {name: x.astype(u.dtype) for name, x in values.items()}
    out = np.full(u.shape, np.nan, u.dtype)
    y = convolve(u, out=out, **given_gates)
    exact = reference.fftconv(u, k, mode=mode, **given_gates)
    coherent = kind != "noise" or min(length, taps) < 32
    found = reference.relative_error(y, exact, u, k, pairs=True, **given_gates)
    bound = bound_of(plan.n, dtype, gates=len(names), coherent=coherent)
    assert found.worst <= bound * scatter(plan.n), (found, bound)


@pytest.mark.parametrize("factors", [(16, 16, 16, 16), (16, 32, 16, 16), (32, 32, 16, 16)])
def test_two_outer_factors(factors: tuple[int, ...]) -> None:
    """Through the exchange, in strips of 32 and of 16 columns; half a signal: half of the rows are read and written."""
    n = int(np.prod(factors))
    plan = Plan(n, factors)
    k, u = filters(1, n // 2), np.random.default_rng(3).standard_normal((1, 1, n // 2)).astype(np.float32)
    convolve = call(plan, n // 2, 1, "fp32", k, mode="causal")
    y, counters = convolve.run_cpu(u)
    found = reference.relative_error(y, reference.fftconv(u, k, mode="causal"), u, k, pairs=True)
    assert found.worst <= bound_of(n, "fp32")
    assert counters.global_read_bytes["u"] == 2 * n == counters.global_written_bytes["y"]
    assert counters.global_read_bytes["workspace"] == 2 * 8 * n == counters.global_written_bytes["workspace"]


def test_groups_and_workspace() -> None:
    """8 bytes a point: one pair of one channel at a time gives the same bits as all at once."""
    plan = Plan(4096, (16, 16, 16))
    k, u = filters(2, 1000), np.random.default_rng(0).standard_normal((3, 2, 3000)).astype(np.float32)
    whole, small = (
        call(plan, 3000, 3, "fp32", k, mode="causal", workspace=room) for room in (None, 8 * 4096)
    )
    assert len(whole.groups) == 1 and len(small.groups) == 4 and small.groups.bytes == 8 * 4096
    assert np.array_equal(whole(u), small(u))
    assert "32,768 bytes" in small.describe()
    with pytest.raises(ValueError, match=r"^workspace: 1000 bytes are too few.*allow workspace=32768"):
        call(plan, 3000, 3, "fp32", k, mode="causal", workspace=1000)


def test_rows_of_zeros_are_left_out() -> None:
    """As with halves: not in the spectrum, not in the workspace, neither written nor read."""
    plan = Plan(8192, (32, 16, 16))
    pattern = SparsityPattern.middles(plan, (16, 0, 0))
    k, u = filters(1, 8192), np.random.default_rng(1).standard_normal((2, 1, 8192)).astype(np.float32)
    convolve = call(plan, 8192, 2, "fp32", k, pattern=pattern)
    kept = len(convolve.spectrum.rows)
    assert 16 <= kept <= 17 and convolve.spectrum.words.shape == (1, 2 * 256 * kept)
    y, counters = convolve.run_cpu(u)
    exact = reference.sparse_fftconv(u, k, pattern, plan=plan, mode="circular")
    assert reference.relative_error(y, exact, u, k, pairs=True).worst <= bound_of(8192, "fp32")
    assert counters.global_written_bytes["workspace"] == 2 * 8 * 256 * kept
    assert counters.global_read_bytes["workspace"] == 2 * 8 * 256 * kept


def test_default_plans() -> None:
    """Every power of two up to 2^24, on GPUs with less shared memory too."""
    for limit, capability in ((232448, (9, 0)), (163 * 1024, (8, 0)), (99 * 1024, (8, 9))):
        plans = long_plans.default_long_plans(limit, capability, shortest=32768, products="fp32")
        wanted = {2**e for e in range(16, 25)} if limit > 99 * 1024 else {2**e for e in range(16, 21)}
        assert wanted <= set(plans), (limit, sorted(plans))
        for n, plan in plans.items():
            split = long_plans.split_of(plan, capability, "fp32")
            assert split.rows * split.inner.points == n and long_plans.stage_bytes(split) <= limit
    assert set(outer_float_spec.TUNED) == set(outer_spec.SPLITS)


def test_fftconv_takes_long_fp32_sequences() -> None:
    """Beyond 32768 points without being asked; halves only when they are."""
    k = filters(1, 9)
    assert not prepare_filter(k, length=32768, dtype="fp32").outer
    found = prepare_filter(k, length=65536, dtype="fp32")
    assert found.outer and found.products == "fp32" and found.words.shape == (1, 2 * 65536)
    assert prepare_filter(k, length=2**17, dtype="fp16").products == "fp16"
    assert prepare_filter(k, length=2**17, dtype="fp16", products="fp32").products == "fp32"
    u = np.random.default_rng(2).standard_normal((1, 1, 40000)).astype(np.float32)
    y = kernels_numba.fftconv(u, k, mode="causal")
    exact = reference.fftconv(u, k, mode="causal")
    assert reference.relative_error(y, exact, u, k, pairs=True).worst <= bound_of(
        65536, "fp32", coherent=True
    )


def test_refusals_say_what_is_accepted() -> None:
    k = filters(1, 9)
    with pytest.raises(ValueError, match=r"^products: .* points fits on chip, .* convert the sequences"):
        prepare_filter(k, length=1024, dtype="fp16", products="fp32")
    with pytest.raises(ValueError, match=r"^plan: .* runs in one kernel, .* fp32 products of halves"):
        prepare_filter(k, length=1024, dtype="fp16", products="fp32", plan=Plan(1024, (32, 32)))
    with pytest.raises(ValueError, match=r"^plan: transforms with outer stages take .* not fp32 sequences"):
        plan = Plan(4096, (16, 16, 16))
        prepare_filter(k, length=4096, dtype="fp32", products="fp16", plan=plan, on_chip=ON_CHIP)
    with pytest.raises(ValueError, match=r"^products: accepted are .* got 'bf16' for fp16"):
        prepare_filter(k, length=4096, dtype="fp16", products="bf16")
    with pytest.raises(ValueError, match=r"complex64 sequences with complex64 products"):
        prepare_filter(k, length=2**17, dtype="complex64")


def test_noise_of_halves_loses_only_the_last_rounding() -> None:
    """fp32 on request: a fifth of the error of half-precision intermediates."""
    plan = Plan(4096, (16, 16, 16))
    k, u = filters(1, 4096), noise((2, 1, 4096), "fp16")
    exact = reference.fftconv(u, k)
    errors = []
    for products in ("fp16", "fp32"):
        spectrum = prepare_filter(k, length=4096, products=products, plan=plan, on_chip=ON_CHIP)
        y = FFTConv(spectrum, batch=2)(u)
        errors.append(reference.relative_error(y, exact, u, k, pairs=True).overall)
    assert errors[1] < 0.5 * errors[0] and errors[1] <= reference.unit_roundoff("fp16") / 2
