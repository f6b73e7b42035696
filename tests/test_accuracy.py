"""The judge judged: the comparison rejects every wrong result that kernels give, and the bounds are tight.

The half-precision kernel is imitated here in NumPy: operands stored in half, everything else exact. Its error
must lie under the derived bound, and not far under it.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from imitation import half, imitated
from numpy.typing import NDArray
from strategies import KINDS, kinds, seeds, signal

import monarch
import reference

BATCH, CHANNELS, LENGTH = 3, 2, 256
PLAN = monarch.Plan.parse("16x16")
BOUND = reference.fftconv_bound(2, "bf16")  # the loosest that kernels are held to

Array = NDArray[Any]
Case = tuple[Array, Array, Array]


def case(mode: str = "circular", *, seed: int = 0) -> Case:
    u = signal("noise", (BATCH, CHANNELS, LENGTH), seed)
    k = signal("noise", (CHANNELS, LENGTH), seed + 1)
    return u, k, reference.fftconv(u, k, mode=mode)


def with_stages(
    u: Array, k: Array, plan: monarch.Plan, *, drop: int | None = None, swap: bool = False
) -> Array:
    """Circular convolution through a spoilt transform: twiddles after a stage left out, factors swapped."""

    def spoilt(x: Array) -> Array:
        factors = plan.factors[::-1] if swap else plan.factors
        for i, factor in enumerate(factors):
            x = x.reshape(-1, factor, prod(factors[i + 1 :]))
            x = monarch.dft_matrix(factor) @ x
            if i < plan.order - 1 and drop != i:
                x = x * monarch.twiddle_factors(*x.shape[1:])
        return x.reshape(*u.shape[:-1], -1)

    spectrum = monarch.filter_spectrum(k, plan)
    return monarch.transform(spoilt(u) * spectrum, plan, inverse=True).real


def test_the_right_result_passes() -> None:
    u, k, exact = case()
    assert reference.check_close(exact.copy(), exact, u, k, bound=BOUND).worst == 0
    assert reference.check_close(with_stages(u, k, PLAN), exact, u, k, bound=1e-12).worst > 0
    rounded = exact.astype(np.float16)
    assert 0 < reference.check_close(rounded, exact, u, k, bound=2.0**-11).worst


def poisoned(y: Array, value: float, where: Any) -> Array:
    y = y.copy()
    y[where] = value
    return y


WRONG: dict[str, Callable[[Array, Array, Array], Array]] = {
    "zeros": lambda u, k, y: np.zeros_like(y),
    "the input": lambda u, k, y: u,
    "minus the result": lambda u, k, y: -y,
    "half the result": lambda u, k, y: y / 2,
    "conjugated spectrum": lambda u, k, y: np.fft.irfft(np.fft.rfft(u) * np.fft.rfft(k).conj(), LENGTH),
    "linear instead of circular": lambda u, k, y: reference.fftconv(u, k, mode="causal"),
    "off by one": lambda u, k, y: np.roll(y, 1, axis=-1),
    "dropped twiddle": lambda u, k, y: with_stages(u, k, PLAN, drop=0),
    "real and imaginary part of a pair swapped": lambda u, k, y: y[[1, 0, 2]],
    "channels swapped": lambda u, k, y: y[:, ::-1],
    "one NaN": lambda u, k, y: poisoned(y, np.nan, (2, 1, 7)),
    "one infinity": lambda u, k, y: poisoned(y, -np.inf, (0, 0, 0)),
    "an unwritten row of NaN": lambda u, k, y: poisoned(y, np.nan, (1, 0)),
    "an unwritten row of zeros": lambda u, k, y: poisoned(y, 0.0, (2, 1)),
    "a row of another": lambda u, k, y: y[[0, 1, 1]],
    "one sample unwritten": lambda u, k, y: poisoned(y, 0.0, (1, 1, int(np.argmax(np.abs(y[1, 1]))))),
    "the last tile unwritten": lambda u, k, y: poisoned(y, 0.0, (..., slice(LENGTH - 16, None))),
}


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_results_are_rejected(wrong: str, pairs: bool) -> None:
    u, k, exact = case()
    result = WRONG[wrong](u, k, exact)
    with pytest.raises(AssertionError, match=r"relative error \S+ in sequence \[\d, \d\] exceeds the bound"):
        reference.check_close(result, exact, u, k, bound=BOUND, pairs=pairs)
    assert reference.relative_error(result, exact, u, k, pairs=pairs).worst > 2 * BOUND


def test_swapped_factors_are_rejected() -> None:
    plan = monarch.Plan.parse("32x8")
    u, k, exact = case()
    reference.check_close(with_stages(u, k, plan), exact, u, k, bound=1e-12)
    with pytest.raises(AssertionError, match="exceeds the bound"):
        reference.check_close(with_stages(u, k, plan, swap=True), exact, u, k, bound=BOUND)


@pytest.mark.parametrize("drop", [0, 1])
def test_either_dropped_twiddle_of_order_3_is_rejected(drop: int) -> None:
    plan = monarch.Plan.parse("8x4x8")
    u, k, exact = case()
    with pytest.raises(AssertionError, match="exceeds the bound"):
        reference.check_close(with_stages(u, k, plan, drop=drop), exact, u, k, bound=BOUND)


@pytest.mark.parametrize("mode", ["causal", "two-sided"])
def test_wrong_linear_results_are_rejected(mode: str) -> None:
    u, k, exact = case(mode)
    others = [reference.fftconv(u, k, mode=other) for other in monarch.MODES if other != mode]
    late = np.concatenate([exact[..., 1:], exact[..., -1:]], axis=-1)
    early = np.concatenate([exact[..., :1], exact[..., :-1]], axis=-1)
    for wrong in (*others, late, early):
        with pytest.raises(AssertionError, match="exceeds the bound"):
            reference.check_close(wrong, exact, u, k, bound=BOUND)


@given(seeds, st.sampled_from(sorted(WRONG)), st.integers(-12, 12))
def test_rejection_depends_on_neither_data_nor_scale(seed: int, wrong: str, decade: int) -> None:
    u, k, _ = case(seed=seed)
    u, k = u * 10.0**decade, k * 10.0**-decade / 3
    exact = reference.fftconv(u, k)
    with pytest.raises(AssertionError, match="exceeds the bound"):
        reference.check_close(WRONG[wrong](u, k, exact), exact, u, k, bound=BOUND / 3)


def test_the_worst_sequence_is_named() -> None:
    u, k, exact = case()
    wrong = exact.copy()
    wrong[2, 1] *= 1.5
    found = reference.relative_error(wrong, exact, u, k)
    assert found.where == (2, 1)
    share = np.linalg.norm(exact[2, 1]) / (np.linalg.norm(u[2, 1]) * np.linalg.norm(k[1]))
    assert found.worst == pytest.approx(0.5 * float(np.minimum(share, 1)), rel=1e-12)
    assert 0 < found.overall < found.worst
    assert reference.relative_error(poisoned(exact, np.nan, (1, 0, 3)), exact, u, k) == (
        np.inf,
        np.inf,
        (1, 0),
    )


def test_one_bad_sequence_does_not_hide_among_good_ones() -> None:
    u = signal("noise", (500, 1, LENGTH), 0)
    k = signal("noise", (1, LENGTH), 1)
    exact = reference.fftconv(u, k)
    wrong = exact.copy()
    wrong[321] *= 1 + 4 * BOUND
    found = reference.relative_error(wrong, exact, u, k)
    assert found.overall < BOUND / 2 < BOUND < found.worst
    with pytest.raises(AssertionError, match=r"in sequence \[321, 0\]"):
        reference.check_close(wrong, exact, u, k, bound=BOUND)


def test_cancellation_is_no_error_and_alignment_no_excuse() -> None:
    n = np.arange(LENGTH)
    tone, other, constant = (
        np.cos(2 * np.pi * 5 * n / LENGTH),
        np.cos(2 * np.pi * 9 * n / LENGTH),
        np.ones(LENGTH),
    )
    exact = reference.fftconv(tone, other)  # nothing passes but rounding
    assert reference.relative_error(exact + 1e-9, exact, tone, other).worst < 1e-9
    exact = reference.fftconv(constant, constant)  # 16 times ||u|| ||k||
    assert reference.relative_error(1.001 * exact, exact, constant, constant).worst == pytest.approx(1e-3)


def test_a_comparison_that_zeros_would_pass_is_refused() -> None:
    n = np.arange(LENGTH)
    tone, other = np.cos(2 * np.pi * 5 * n / LENGTH), np.cos(2 * np.pi * 9 * n / LENGTH)
    exact = reference.fftconv(tone, other)
    with pytest.raises(ValueError, match="zeros would pass"):
        reference.check_close(exact, exact, tone, other, bound=BOUND)
    with pytest.raises(ValueError, match="bound must be positive"):
        reference.check_close(exact, exact, tone, other, bound=float("nan"))


def test_zeros_in_must_be_zeros_out() -> None:
    zeros, k = np.zeros((2, LENGTH)), np.ones(LENGTH)
    assert reference.check_close(zeros, zeros, zeros, k, bound=BOUND) == (0.0, 0.0, (0,))
    with pytest.raises(AssertionError, match="relative error inf"):
        reference.check_close(zeros + 1e-30, zeros, zeros, k, bound=BOUND)


def test_gates_count_in_the_scale() -> None:
    u, k, _ = case()
    w, v = 100 * signal("noise", u.shape, 5), signal("noise", u.shape, 6) / 10
    exact = reference.fftconv(u, k, pregate=w, postgate=v)
    noise = signal("noise", u.shape, 7) * v * np.linalg.norm(u * w, axis=-1, keepdims=True) / np.sqrt(LENGTH)
    noise *= np.linalg.norm(k, axis=-1, keepdims=True)
    found = reference.relative_error(exact + 1e-3 * noise, exact, u, k, pregate=w, postgate=v)
    assert 0.5e-3 < found.overall <= found.worst < 2e-3
    with pytest.raises(AssertionError, match="exceeds the bound"):
        reference.check_close(exact / v, exact, u, k, bound=BOUND, pregate=w, postgate=v)


def test_a_pair_shares_its_errors() -> None:
    u, k, _ = case()
    u[0] *= 1000
    exact = reference.fftconv(u, k)
    noise = signal("noise", u.shape, 9) * np.linalg.norm(u[0]) * np.linalg.norm(k) / LENGTH / 100
    noise[2] = 0  # it is paired with zeros, not with the large one
    assert reference.relative_error(exact + noise, exact, u, k).worst > 1
    assert reference.relative_error(exact + noise, exact, u, k, pairs=True).worst < 0.05
    noise[2] = noise[1]
    assert reference.relative_error(exact + noise, exact, u, k, pairs=True).where[0] == 2


@pytest.mark.parametrize("kind", KINDS)
def test_norms_neither_overflow_nor_vanish(kind: str) -> None:
    for scale in (1e-200, 1.0, 1e200):
        u = scale * signal(kind, (2, LENGTH), 3)
        y = reference.fftconv(u, [1.0, 0.5], mode="causal")
        found = reference.relative_error(y * (1 + 1e-6), y, u, [1.0, 0.5])
        assert found.worst == (0 if kind == "zeros" else pytest.approx(1e-6, rel=0.5))


def test_shapes_are_compared_too() -> None:
    u, k, exact = case()
    with pytest.raises(ValueError, match="must have one shape"):
        reference.relative_error(exact[:1], exact, u, k)
    with pytest.raises(ValueError, match="must have one shape"):
        reference.relative_error(exact[..., :-1], exact[..., :-1], u, k)
    with pytest.raises(ValueError, match="y_ref must be finite"):
        reference.relative_error(exact, poisoned(exact, np.nan, (0, 0, 0)), u, k)


# ---- bounds ----


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("factors", ["16x16", "32x16", "32x32", "64x64", "16x16x16", "16x16x16x16"])
def test_half_precision_stays_in_its_bound(factors: str, fused: bool, dtype: str) -> None:
    plan = monarch.Plan.parse(factors)
    storage = np.float16 if dtype == "fp16" else pytest.importorskip("ml_dtypes").bfloat16
    sequences = max(2, 32768 // plan.n)
    u = half(signal("noise", (sequences, 1, plan.n), 0), storage)
    k = half(signal("noise", (1, plan.n), 1), storage)
    exact = reference.fftconv(u, k)
    found = reference.relative_error(
        imitated(u, k, plan, dtype=storage, fused=fused), exact, u, k, pairs=True
    )
    bound = reference.fftconv_bound(plan.order, dtype)
    assert 0.65 * bound < found.overall < bound
    assert found.worst < (1 if fused else 1.1) * bound


@given(kinds, seeds)
def test_structured_data_stay_in_the_coherent_bound(kind: str, seed: int) -> None:
    u = np.clip(signal(kind, (4, 1, 256), seed), -1000, 1000)
    u, k = half(u, np.float16), half(signal("noise", (1, 256), seed + 1), np.float16)
    got = imitated(u, k, PLAN, dtype=np.float16, fused=True)
    found = reference.relative_error(got, reference.fftconv(u, k), u, k, pairs=True)
    assert found.worst < reference.fftconv_bound(2, "fp16", coherent=True)


def test_bounds_are_what_they_say() -> None:
    assert reference.fftconv_bound(1, "fp16") == pytest.approx(1.15 * 2.0**-11)
    assert reference.fftconv_bound(4, np.float16) == pytest.approx(2.3 * 2.0**-11)
    assert reference.fftconv_bound(2, "bf16") == pytest.approx(8 * reference.fftconv_bound(2, "fp16"))
    assert reference.fftconv_bound(2, "fp16", gates=2) == pytest.approx(1.15 * 1.5 * 2.0**-11)
    assert reference.fftconv_bound(2, "fp16", gates=2, coherent=True) == 18 * 2.0**-11
    assert reference.fft32_bound(1024) == pytest.approx(1.1 * np.sqrt(10) * 2.0**-24)
    assert reference.fft32_bound(1024, gates=2) == pytest.approx(np.sqrt(12.1 + 1 / 3) * 2.0**-24)
    assert reference.fft32_bound(1024, gates=2, coherent=True) == 82 * 2.0**-24


def test_fp32_fft_stays_in_its_bound() -> None:
    from scipy import fft

    for n in (16, 256, 4096, 65536):
        u, k = (signal("noise", (max(1, 4096 // n), n), seed).astype(np.float32) for seed in (0, 1))
        got = fft.irfft(fft.rfft(u) * fft.rfft(k[:1]), n)
        assert got.dtype == np.float32
        found = reference.relative_error(got, reference.fftconv(u, k[0]), u, k[0])
        assert 0.1 * reference.fft32_bound(n) < found.overall < reference.fft32_bound(n)


@pytest.mark.parametrize(
    "name", ["fp16", "float16", np.float16, "bf16", "bfloat16", "fp32", np.float32, np.float64]
)
def test_unit_roundoff_is_half_the_gap_above_one(name: Any) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    short = {
        "fp16": np.float16,
        "bf16": ml_dtypes.bfloat16,
        "bfloat16": ml_dtypes.bfloat16,
        "fp32": np.float32,
    }
    dtype = short.get(name, name) if isinstance(name, str) else name
    u = reference.unit_roundoff(name)
    assert u == float(ml_dtypes.finfo(dtype).eps) / 2
    assert reference.unit_roundoff(dtype) == reference.unit_roundoff(np.dtype(dtype)) == u


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: reference.unit_roundoff("fp8"), "dtype must be one of .*got 'fp8'"),
        (lambda: reference.unit_roundoff(np.int32), "dtype must be one of"),
        (lambda: reference.fftconv_bound(0, "fp16"), "order must be at least 1"),
        (lambda: reference.fftconv_bound(1, "fp16", gates=-1), "gates at least 0"),
        (lambda: reference.fft32_bound(0), "n must be at least 1"),
        (lambda: reference.fft32_bound(2, gates=-1), "gates at least 0"),
    ],
)
def test_bad_bounds_are_refused(call: Callable[[], float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
