"""Gradients of the fused convolution on the CPU body: values, shares of the batch, bits, NaN, types, errors."""

from math import prod
from typing import Any

import numpy as np
import pytest
from convolutions import PLAIN, Case, cases, filters, half, noise, scatter
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import kernels_numba
import reference
from kernels_numba import (
    FFTConvGradients,
    fftconv_gradients,
    gradient_families,
    gradient_float,
    prepare_filter,
)
from kernels_numba.filter_sums import FilterGradient
from monarch import Plan

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")


def close(found: Any, case: Case, exact: Any, u: NDArray, k: NDArray, dy: NDArray, gates: dict) -> None:
    """All gradients within their bounds, by norms alone as `reference.fftconv_gradient_error` says."""
    before, after = gates.get("pregate"), gates.get("postgate")
    assert found.u.dtype == u.dtype and found.u.shape == u.shape
    assert found.k.dtype == np.float32 and found.k.shape == k.shape

    def within(got: Any, wanted: Any, x: NDArray, pregate: Any, postgate: Any) -> None:
        error = reference.relative_error(got, wanted, x, k, pairs=True, pregate=pregate, postgate=postgate)
        assert error.worst <= case.bound, (error, case.bound)

    within(found.u, exact.u, dy, after, before)
    assert (found.pregate is None) == (before is None) and (found.postgate is None) == (after is None)
    if before is not None:
        within(found.pregate, exact.pregate, dy, after, u)
    if after is not None:
        within(found.postgate, exact.postgate, u, before, dy)
    error = reference.filter_gradient_error(found.k, exact.k, dy, u, pairs=True, **gates)
    coherent = case.kind != "noise" or min(case.length, case.taps) < 32
    order = 3 if prod(case.factors) > 1536 or case.default_plan else len(case.factors)
    bound = reference.filter_gradient_bound(order, case.dtype, gates=len(gates), coherent=coherent)
    assert error.worst <= bound * (1 if coherent else scatter(prod(case.factors))), (error, bound)


@settings(max_examples=8)
@given(cases())
@example(PLAIN)
@example(PLAIN._replace(mode="causal", length=1, taps=1, batch=1))
@example(PLAIN._replace(mode="causal", length=127, taps=129, batch=3, gates=(True, True), offset=1))
@example(PLAIN._replace(length=251, taps=97, batch=5, channels=2, gates=(False, True)))
@example(PLAIN._replace(mode="two-sided", length=200, taps=56, gates=(True, False), dtype="bf16", size=1e20))
def test_within_the_bound_of_the_reference(case: Case) -> None:
    u, k, gates = case.data()
    dy = noise(u.shape, case.dtype, [case.seed, 5])
    plan = case.plan if case.length <= prod(case.factors) else None
    found = fftconv_gradients(u, k, dy, mode=case.mode, plan=plan, **gates)
    exact = reference.fftconv_gradients(dy, u, k, mode=case.mode, **gates)
    close(found, case, exact, u, k, dy, gates)


PLANS = [
    Plan.of(f)
    for lists in gradient_families.DEFAULT_FACTORS.values()
    for f in lists
    if prod(f) <= 8192 or f == (32, 16, 32)
]
TURNED = [Plan.of(f, packing="right-angle") for f in gradient_families.RIGHT_ANGLE_FACTORS.values()]
PLANS += [plan for plan in TURNED if plan.n <= 8192 or plan.factors in ((24, 16, 16), (16, 16, 32))]
SOME_GATES = {(False, False): (), (True, False): ("pregate",), (True, True): ("pregate", "postgate")}


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_filter_gradient_of_every_plan(plan: Plan) -> None:
    n, turned = plan.n, plan.packing == "right-angle"
    number = PLANS.index(plan)
    dtype, mode = ("fp16", "bf16")[number % 2], ("circular", "causal")[number // 2 % 2]
    length = n if mode == "circular" and not turned else n // 2 - number % 3
    shape = (3 if n <= 4096 else 2, 1, length)
    u, dy = noise(shape, dtype, [number, 1]), noise(shape, dtype, [number, 2])
    names = list(SOME_GATES.values())[number % 3]
    gates = {name: noise(shape, dtype, [number, 3 + i]) for i, name in enumerate(names)}
    gradient = FilterGradient(shape, taps=length, mode=mode, dtype=dtype, plan=plan)
    assert (gradient.plan.factors, gradient.plan.packing) == (plan.factors, plan.packing)
    dk, counters, _ = gradient.run_cpu(
        u, dy, *(gates.get(name) for name in ("pregate", "postgate")), workers=2
    )
    assert counters.bank_conflicts == 0
    exact = reference.fftconv_gradients(dy, u, np.zeros((1, length)), mode=mode, **gates).k
    bound = reference.filter_gradient_bound(plan.order, dtype, gates=len(gates)) * scatter(n)
    reference.check_filter_gradient(dk, exact, dy, u, bound=bound, pairs=not turned, **gates)


@pytest.mark.parametrize("mode", ["causal", "two-sided", "circular"])
def test_half_signals_go_through_a_right_angle(mode: str) -> None:
    """By default, where the convolution has twice the points; lags before zero, and taps that act at two lags, too."""
    length, taps = 250, 199
    u, dy, k = noise((3, 2, length), "fp16", 1), noise((3, 2, length), "fp16", 2), filters(2, taps)
    made = FilterGradient((3, 2, length), taps=taps, mode=mode, dtype="fp16")
    assert (made.plan.n, made.plan.packing) == (512, "right-angle")
    found = fftconv_gradients(u, k, dy, mode=mode, needs=("k",)).k
    exact = reference.fftconv_gradients(dy, u, k, mode=mode).k
    bound = reference.filter_gradient_bound(2, "fp16") * scatter(512)
    reference.check_filter_gradient(found, exact, dy, u, bound=bound)
    whole = FilterGradient((3, 2, 300), taps=200, mode="causal", dtype="fp16").plan
    assert (whole.n, whole.packing) == (512, "pair")


@pytest.mark.parametrize(
    "plan", [Plan.of((16, 16, 16)), Plan.of((16, 16, 16), packing="right-angle")], ids=str
)
@pytest.mark.parametrize("sums", ["half", "shared", "global", "added"])
def test_where_sums_are_kept_changes_no_bit(sums: str, plan: Plan) -> None:
    shape = (5, 1, 4096)
    u, dy = noise(shape, "fp16", 1), noise(shape, "fp16", 2)
    mode = "circular" if plan.packing == "pair" else "causal"

    def run(where: str) -> NDArray:
        gradient = FilterGradient(shape, taps=40, mode=mode, dtype="fp16", plan=plan)
        make = gradient.family.make_spec

        class Family:
            build, SIGNATURE, workers = (
                gradient.family.build,
                gradient.family.SIGNATURE,
                gradient.family.workers,
            )
            operands, operand_key = gradient.family.operands, gradient.family.operand_key
            sums_layout, __name__ = gradient.family.sums_layout, gradient.family.__name__
            make_spec = staticmethod(lambda *a, **kw: make(*a, **kw, sums=where))

        gradient.family = Family  # type: ignore[assignment]
        return gradient.run_cpu(u, dy, workers=1)[0]

    found, wanted = run(sums), run("registers")
    if sums == "added":  # products are rounded before they are added
        assert 0 < np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
    else:
        assert (found == wanted).all()


@settings(max_examples=5)
@given(batch=st.integers(1, 9), channels=st.integers(1, 2), workers=st.integers(1, 12))
@example(batch=9, channels=1, workers=12)
def test_shares_of_the_batch(batch: int, channels: int, workers: int) -> None:
    """However the batch is dealt, the gradient is the same but for the order of sums, and repeats bit for bit."""
    shape = (batch, channels, 256)
    u, dy = noise(shape, "fp16", 1), noise(shape, "fp16", 2)
    gradient = FilterGradient(shape, taps=256, mode="circular", dtype="fp16")
    shares, per_share = gradient.shares(workers, 1)
    assert (shares - 1) * per_share < gradient.pairs <= shares * per_share
    one, again = (gradient.run_cpu(u, dy, workers=workers)[0] for _ in range(2))
    assert (one.view(np.int32) == again.view(np.int32)).all()
    whole = gradient.run_cpu(u, dy, workers=1)[0]
    assert np.abs(one - whole).max() <= 2e-6 * np.abs(whole).max()


def test_shares_fill_the_workers() -> None:
    """768 channels on 132 SMs of 12 warps: two shares each, and no more for nothing."""
    assert FilterGradient((64, 768, 256), taps=256, mode="circular", dtype="fp16").shares(1584, 1) == (2, 16)
    assert FilterGradient((64, 8, 256), taps=256, mode="circular", dtype="fp16").shares(1584, 1) == (32, 1)
    assert FilterGradient((1, 8, 256), taps=256, mode="circular", dtype="fp16").shares(1584, 1) == (1, 1)


@pytest.mark.parametrize(("mode", "length"), [("circular", 512), ("circular", 100), ("causal", 200)])
def test_all_ways_back_to_taps(mode: str, length: int) -> None:
    """In one block or through device memory: the same but for fp32 rounding, each bin and each tap once."""
    shape = (2, 2, length)
    u, dy = noise(shape, "fp16", 1), noise(shape, "fp16", 2)
    gradient = FilterGradient(shape, taps=length // 2, mode=mode, dtype="fp16")
    ways = ("staged", "passes") if gradient.turned else ("staged", "whole", "passes")
    one, *others = (gradient.run_cpu(u, dy, way=way)[0] for way in ways)
    for other in others:
        assert np.abs(one - other).max() <= 2e-6 * np.abs(one).max()


@pytest.mark.parametrize("channels", [1, 40])
def test_one_filter_for_all_channels(channels: int) -> None:
    shape = (2, channels, 100)
    u, dy, k = noise(shape, "fp16", 1), noise(shape, "fp16", 2), filters(1, 40)[0]
    found = fftconv_gradients(u, k, dy, mode="causal")
    exact = reference.fftconv_gradients(dy, u, k, mode="causal")
    bound = reference.filter_gradient_bound(2, "fp16")
    reference.check_filter_gradient(found.k, exact.k, dy, u, bound=bound, pairs=True)


def test_prepared_and_not() -> None:
    """The same bits; and only what is needed is computed."""
    shape = (2, 2, 500)
    u, dy, v, w = (noise(shape, "fp16", i) for i in range(4))
    k = filters(2, 100)
    gates = {"pregate": v, "postgate": w}
    spectrum = prepare_filter(k, length=500, mode="causal", gradients=True)
    one = FFTConvGradients(spectrum, batch=2)(u, dy, **gates)
    two = fftconv_gradients(u, k, dy, mode="causal", **gates)
    three = fftconv_gradients(u, spectrum, dy, taps=100, **gates)
    for a, b, c in zip(one, two, three, strict=True):
        assert (a == b).all() and (a == c).all()
    few = fftconv_gradients(u, k, dy, mode="causal", needs=("k",), **gates)
    assert few.u is None and few.pregate is None and few.postgate is None and (few.k == one.k).all()
    assert fftconv_gradients(u, k, dy, mode="causal", needs="u").k is None
    flat = fftconv_gradients(u[0], k, dy[0], mode="causal")
    assert flat.u.shape == u[0].shape and flat.k.shape == k.shape


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_spoils_what_it_enters(bad: float) -> None:
    """A channel's filter gradient, and the sequences of its pair; never another channel's."""
    shape = (3, 2, 256)
    u, dy, k = noise(shape, "fp16", 1), noise(shape, "fp16", 2), filters(2, 256)
    exact = fftconv_gradients(u, k, dy)
    spoiled = u.copy()
    spoiled[2, 1, 7] = bad
    found = fftconv_gradients(spoiled, k, dy)
    assert np.isnan(found.k[1]).all() and (found.k[0] == exact.k[0]).all()
    assert (found.u == exact.u).all()  # u does not enter its own gradient
    spoiled = dy.copy()
    spoiled[0, 0, 3] = bad
    found = fftconv_gradients(u, k, spoiled)
    assert np.isnan(found.k[0]).all() and (found.k[1] == exact.k[1]).all()
    assert np.isnan(found.u[:2, 0]).all() and (found.u[2, 0] == exact.u[2, 0]).all()
    assert (found.u[:, 1] == exact.u[:, 1]).all()
    taps = k.copy()
    taps[0, 0] = bad
    found = fftconv_gradients(u, taps, dy)
    assert (found.k == exact.k).all() and not np.isfinite(found.u[:, 0].astype(float)).any()


def test_taps_that_reach_no_output_have_no_gradient() -> None:
    u, dy = noise((2, 1, 50), "fp16", 1), noise((2, 1, 50), "fp16", 2)
    u[0, 0, 0] = np.nan
    found = fftconv_gradients(u, filters(1, 80), dy, mode="causal", needs=("k",))
    assert np.isnan(found.k[0, :50]).all() and (found.k[0, 50:] == 0).all()


@pytest.mark.parametrize(
    ("dtype", "size"), [("fp16", 2.0**-14), ("fp16", 2000.0), ("bf16", 2.0**-100), ("bf16", 2.0**60)]
)
def test_loss_scaling_range(dtype: str, size: float) -> None:
    """dy may be small or large as far as its type holds it; the sums are in float32."""
    shape = (2, 1, 1024)
    u, dy = noise(shape, dtype, 1), half(np.sign(noise(shape, "fp16", 2).astype(float)) * size, dtype)
    found = fftconv_gradients(u, filters(1, 1024), dy, needs=("k",))
    exact = reference.fftconv_gradients(dy, u, np.zeros((1, 1024))).k
    bound = reference.filter_gradient_bound(2, dtype) * scatter(1024)
    # Halves of fp16 below 2^-14 have an absolute roundoff: 2^-25 of each of N bins, six roundings of them.
    floor = 6 * 2.0**-25 / size if dtype == "fp16" else 0.0
    error = reference.filter_gradient_error(found.k, exact, dy, u, pairs=True)
    assert error.worst <= bound + floor, error


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_fp32_sequences_with_half_products(dtype: str) -> None:
    shape = (3, 2, 300)
    u, dy = (np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i in range(2))
    k = filters(2, 60)
    found = fftconv_gradients(u, k, dy, mode="causal", products=dtype)
    exact = reference.fftconv_gradients(dy, u, k, mode="causal")
    assert found.u.dtype == np.float32
    bound = reference.filter_gradient_bound(2, dtype, gates=2)  # inputs are rounded too
    reference.check_filter_gradient(found.k, exact.k, dy, u, bound=bound, pairs=True)
    bound = reference.fftconv_bound(2, dtype, gates=1) * scatter(512)
    reference.check_close(found.u, exact.u, dy, k, bound=bound, pairs=True)


FLOAT_PLANS = [f for f in gradient_float.FACTORS if prod(f) in (256, 768, 12288)]


@pytest.mark.parametrize("factors", FLOAT_PLANS, ids=str)
def test_fp32(factors: tuple[int, ...]) -> None:
    """All gradients in fp32 throughout, whole and in parts of the frequencies."""
    n = prod(factors)
    number = FLOAT_PLANS.index(factors)
    length, mode = (n, "circular") if number % 2 == 0 else (n // 2, "causal")
    shape = (3 if n < 4096 else 2, 1, length)
    rng = np.random.default_rng(n)
    u, dy = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    gates = {"pregate": rng.standard_normal(shape).astype(np.float32)} if number == 1 else {}
    k = filters(1, length)
    plan = Plan(n, factors)
    found = fftconv_gradients(u, k, dy, mode=mode, plan=plan if n <= 8192 else None, **gates)
    exact = reference.fftconv_gradients(dy, u, k, mode=mode, **gates)
    limit = reference.fft32_bound(n, gates=len(gates)) * scatter(n)
    reference.check_close(found.u, exact.u, dy, k, bound=limit, postgate=gates.get("pregate"), pairs=True)
    limit = reference.filter_gradient32_bound(n, terms=2, gates=len(gates)) * scatter(n)
    reference.check_filter_gradient(found.k, exact.k, dy, u, bound=limit, pairs=True, **gates)
    gradient = FilterGradient(shape, taps=length, mode=mode, dtype="fp32", plan=plan)
    dk, counters, _ = gradient.run_cpu(u, dy, *gates.values())
    assert gradient.plan.factors == factors and (dk == gradient.run_cpu(u, dy, *gates.values())[0]).all()
    reference.check_filter_gradient(dk, exact.k, dy, u, bound=limit, pairs=True, **gates)
    assert counters.half_flops == 0 and counters.mma_m16n8k16 == 0


@settings(max_examples=6)
@given(batch=st.integers(1, 14), channels=st.integers(1, 2), workers=st.integers(1, 12), whole=st.booleans())
@example(batch=6, channels=1, workers=2, whole=True)  # two shares of three pairs
@example(batch=5, channels=1, workers=2, whole=True)
def test_fp32_sums_of_any_shares(batch: int, channels: int, workers: int, whole: bool) -> None:
    """However many workers share a batch: nothing is added twice, and nothing that is not there."""
    shape, mode = (batch, channels, 256 if whole else 100), "circular" if whole else "causal"
    rng = np.random.default_rng(batch)
    u, dy = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    gradient = FilterGradient(shape, taps=shape[2], mode=mode, dtype="fp32", plan=Plan(256, (16, 16)))
    count, per_share = gradient.shares(workers, 1)
    assert (count - 1) * per_share < gradient.pairs <= count * per_share
    exact = reference.fftconv_gradients(dy, u, np.zeros((channels, shape[2])), mode=mode).k
    limit = reference.filter_gradient32_bound(256, terms=-(-batch // 2)) * scatter(256)
    found = gradient.run_cpu(u, dy, workers=workers)[0]
    reference.check_filter_gradient(found, exact, dy, u, bound=limit, pairs=True)


def test_refused() -> None:
    u, k = noise((2, 1, 256), "fp16"), filters(1, 256)
    with pytest.raises(ValueError, match=r"dy: expected shape \(2, 1, 256\)"):
        fftconv_gradients(u, k, u[:, :, :255])
    with pytest.raises(TypeError, match="dy: expected fp16"):
        fftconv_gradients(u, k, u.astype(np.float32))
    with pytest.raises(ValueError, match="needs: accepted are u, k, pregate, postgate; got v"):
        fftconv_gradients(u, k, u, needs=("v",))
    with pytest.raises(ValueError, match="gradients=True"):
        FFTConvGradients(prepare_filter(k, length=256), batch=2)
    with pytest.raises(ValueError, match="made from 256 taps"):
        FFTConvGradients(prepare_filter(k, length=256, gradients=True), batch=2, taps=100)
    with pytest.raises(TypeError, match="expected what prepare_filter makes"):
        FFTConvGradients(k, batch=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a complex64 filter is for complex sequences"):
        fftconv_gradients(u, k.astype(np.complex64), u)
    with pytest.raises(ValueError, match="take up to 65536"):
        FilterGradient((1, 1, 60000), taps=60000, mode="causal", dtype="fp16")
    assert kernels_numba.fftconv_gradients is fftconv_gradients
