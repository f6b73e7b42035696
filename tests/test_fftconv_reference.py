"""The exact FFT convolution: three evaluations that must agree, the laws of convolution, and the errors."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import factor_tuples, kinds, seeds, signal

import monarch
import reference

TIGHT = 1e-12
modes = st.sampled_from(monarch.MODES)


@st.composite
def problems(draw: st.DrawFn, *, longest: int = 70) -> tuple[str, NDArray[np.float64], NDArray[np.float64]]:
    """A mode, a signal ``[B, H, L]`` and a filter ``[H, K]`` or ``[K]``."""
    mode = draw(modes, label="mode")
    length = draw(st.integers(1, longest), label="L")
    taps = draw(st.integers(1, length if mode == "circular" else 2 * longest), label="K")
    batch, channels = draw(st.integers(1, 3), label="B"), draw(st.integers(1, 3), label="H")
    seed = draw(seeds, label="seed")
    u = signal(draw(kinds, label="kind of u"), (batch, channels, length), seed)
    shape = draw(st.sampled_from([(channels, taps), (taps,)]), label="shape of k")
    return mode, u, signal(draw(kinds, label="kind of k"), shape, seed + 1)


Problem = tuple[str, NDArray[np.float64], NDArray[np.float64]]


def assert_same(got: NDArray[Any], expected: NDArray[Any], u: NDArray[Any], k: NDArray[Any]) -> None:
    """Agreement to 1e-12 of what the terms could add up to; NaN agrees with nothing."""
    assert got.shape == expected.shape
    size = np.linalg.norm(u, axis=-1, keepdims=True) * np.sum(np.abs(k), axis=-1, keepdims=True)
    assert np.all(np.abs(got - expected) <= TIGHT * size)


# ---- the same by other ways ----


def as_written(mode: str, u: list[float], k: list[float]) -> list[float]:
    """The definitions, index by index in plain Python."""
    length, taps = len(u), len(k)
    c = (taps - 1) // 2 if mode == "two-sided" else 0
    y = []
    for n in range(length):
        total = 0.0
        for j in range(taps):
            at = (n - j) % length if mode == "circular" else n + c - j
            if 0 <= at < length:
                total += k[j] * u[at]
        y.append(total)
    return y


@given(problems(longest=12))
def test_direct_sum_is_the_definition(problem: Problem) -> None:
    mode, u, k = problem
    got = reference.direct_fftconv(u, k, mode=mode)
    filters = np.broadcast_to(k, (u.shape[1], k.shape[-1]))
    expected = [[as_written(mode, list(x), list(h)) for x, h in zip(b, filters, strict=True)] for b in u]
    assert_same(got, np.array(expected), u, k)


@given(problems())
def test_numpy_fft_agrees_with_the_sum(problem: Problem) -> None:
    mode, u, k = problem
    assert_same(reference.fftconv(u, k, mode=mode), reference.direct_fftconv(u, k, mode=mode), u, k)


@st.composite
def planned_problems(draw: st.DrawFn) -> tuple[str, tuple[int, int], monarch.Plan]:
    """A plan of any packing, order 1 to 6, and a mode with L and K that it holds."""
    factors = draw(factor_tuples(most_points=1500), label="factors")
    packing = draw(st.sampled_from(monarch.PACKINGS), label="packing")
    n = prod(factors) * (2 if packing == "half" else 1)
    mode = draw(modes, label="mode")
    if mode == "circular" and draw(st.booleans(), label="exact length"):
        length, taps = n, draw(st.integers(1, n), label="K")
    else:
        length = draw(st.integers(1, max(1, n // 2)), label="L")
        most = n - length + 1 if mode != "two-sided" else 2 * (n - length) + 1
        taps = draw(st.integers(1, min(most, length) if mode == "circular" else most), label="K")
    limit = draw(st.one_of(st.none(), st.integers(length, n)), label="signal and wanted")
    return mode, (length, taps), monarch.Plan(n, factors, packing=packing, signal=limit, wanted=limit)


@given(planned_problems(), kinds, kinds, seeds)
@example(("circular", (997, 997), monarch.Plan(997, (997,))), "noise", "noise", 0)
@example(("circular", (1024, 1024), monarch.plan(1024)), "noise", "tone", 0)
@example(("circular", (700, 500), monarch.plan(1280, packing="half")), "noise", "noise", 0)
@example(("two-sided", (500, 524), monarch.plan(1024, order=6, packing="complex")), "noise", "noise", 0)
def test_monarch_agrees_with_numpy_fft(
    problem: tuple[str, tuple[int, int], monarch.Plan], kind: str, filter_kind: str, seed: int
) -> None:
    mode, (length, taps), plan = problem
    u, k = signal(kind, (3, 2, length), seed), signal(filter_kind, (2, taps), seed + 1)
    got = reference.fftconv(u, k, mode=mode, plan=plan)
    assert got.dtype == np.float64
    together = np.linalg.norm(u, axis=0, keepdims=True)  # a pair shares its rounding errors
    assert_same(got, reference.fftconv(u, k, mode=mode), together, k)


@given(planned_problems(), seeds)
def test_monarch_agrees_with_the_sum(problem: tuple[str, tuple[int, int], monarch.Plan], seed: int) -> None:
    mode, (length, taps), plan = problem
    u, k = signal("noise", (2, length), seed), signal("noise", (taps,), seed + 1)
    got = reference.fftconv(u, k, mode=mode, plan=plan)
    expected = reference.direct_fftconv(u, k, mode=mode)
    assert np.linalg.norm(got - expected) <= TIGHT * np.linalg.norm(u) * np.linalg.norm(k)


@given(problems(), seeds)
def test_complex_data(problem: Problem, seed: int) -> None:
    mode, u, k = problem
    v, h = signal("noise", u.shape, seed), signal("noise", k.shape, seed + 1)
    z, g = u + 1j * v, k - 1j * h
    expected = reference.direct_fftconv(z, g, mode=mode)
    assert expected.dtype == np.complex128
    assert_same(reference.fftconv(z, g, mode=mode), expected, z, g)
    plan = monarch.plan(u.shape[-1] + k.shape[-1] + 1, packing="complex")
    assert_same(reference.fftconv(z, g, mode=mode, plan=plan), expected, z, g)


def test_two_sided_is_same_of_scipy() -> None:
    from scipy.signal import convolve

    for length, taps in [(9, 1), (9, 4), (9, 5), (9, 9), (10, 10), (64, 7)]:
        u, k = signal("noise", (length,), 1), signal("noise", (taps,), 2)
        assert_same(reference.fftconv(u, k, mode="two-sided"), convolve(u, k, mode="same"), u, k)


def test_small_cases_by_hand() -> None:
    u, k = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 10.0, 100.0])
    for mode, expected in (
        ("circular", [1 + 40 + 300, 2 + 10 + 400, 3 + 20 + 100, 4 + 30 + 200]),
        ("causal", [1, 12, 123, 234]),
        ("two-sided", [12, 123, 234, 340]),
    ):
        assert reference.direct_fftconv(u, k, mode=mode).tolist() == expected
        assert np.allclose(reference.fftconv(u, k, mode=mode), expected, rtol=1e-13)


# ---- laws ----


@given(problems(), seeds, st.floats(-100, 100))
def test_linear(problem: Problem, seed: int, scale: float) -> None:
    mode, u, k = problem
    v = signal("noise", u.shape, seed)
    got = reference.fftconv(scale * u + v, k, mode=mode)
    expected = scale * reference.fftconv(u, k, mode=mode) + reference.fftconv(v, k, mode=mode)
    assert_same(got, expected, np.concatenate([scale * u, v], axis=-1), k)


@given(problems(), st.integers(0, 200))
def test_a_shift_goes_through(problem: Problem, shift: int) -> None:
    mode, u, k = problem
    y = reference.fftconv(u, k, mode=mode)
    if mode == "circular":
        assert_same(reference.fftconv(np.roll(u, shift, -1), k), np.roll(y, shift, -1), u, k)
        return
    shift %= u.shape[-1]
    late = np.concatenate([np.zeros((*u.shape[:-1], shift)), u], axis=-1)
    assert_same(reference.fftconv(late, k, mode=mode)[..., shift:], y, u, k)


@given(problems(), st.integers(0, 200))
def test_an_impulse_is_the_identity_or_a_delay(problem: Problem, place: int) -> None:
    mode, u, k = problem
    place %= k.shape[-1]
    impulse = (np.arange(k.shape[-1]) == place).astype(float)
    y = reference.fftconv(u, impulse, mode=mode)
    lag = place - ((k.shape[-1] - 1) // 2 if mode == "two-sided" else 0)
    expected = np.roll(u, lag, -1)
    if mode != "circular":
        n = np.arange(u.shape[-1]) - lag
        inside = (0 <= n) & (n < u.shape[-1])
        expected = np.where(inside, u[..., np.clip(n, 0, u.shape[-1] - 1)], 0.0)
    assert_same(y, expected, u, impulse)


@given(problems(), st.data(), seeds)
def test_causal_prefixes_do_not_see_the_future(problem: Problem, data: st.DataObject, seed: int) -> None:
    _, u, k = problem
    cut = data.draw(st.integers(1, u.shape[-1]), label="cut")
    changed = u.copy()
    changed[..., cut:] = signal("noise", u.shape, seed)[..., cut:]
    y = reference.fftconv(u, k, mode="causal")
    both = np.concatenate([u, changed], axis=-1)
    assert_same(reference.fftconv(changed, k, mode="causal")[..., :cut], y[..., :cut], both, k)
    assert_same(reference.fftconv(u[..., :cut], k, mode="causal"), y[..., :cut], u, k)


@given(problems())
def test_circular_convolution_commutes_and_keeps_the_sum(problem: Problem) -> None:
    _, u, k = problem
    x, h = u[0, 0], np.resize(k, u.shape[-1])
    y = reference.fftconv(x, h)
    assert_same(y, reference.fftconv(h, x), x, h)
    assert abs(y.sum() - x.sum() * h.sum()) <= TIGHT * len(x) * np.linalg.norm(x) * np.abs(h).sum()


@given(problems(), seeds)
def test_gates(problem: Problem, seed: int) -> None:
    mode, u, k = problem
    w, v = signal("noise", u.shape, seed), signal("noise", u.shape, seed + 1)
    gated, plain = u * w, reference.fftconv(u, k, mode=mode)
    for function in (reference.fftconv, reference.direct_fftconv):
        both = function(u, k, mode=mode, pregate=w, postgate=v)
        assert_same(both / v, reference.fftconv(gated, k, mode=mode), gated, k)
        assert_same(function(u, k, mode=mode, pregate=w), reference.fftconv(gated, k, mode=mode), gated, k)
        assert_same(function(u, k, mode=mode, postgate=v) / v, plain, u, k)
        assert_same(function(u, k, mode=mode, pregate=np.ones_like(u)), plain, u, k)


# ---- what is accepted ----


def test_half_precision_and_mixtures_are_widened_exactly() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    u, k = signal("noise", (2, 3, 32), 0), signal("noise", (3, 32), 1)
    for u_type, k_type in [
        (np.float16, np.float16),
        (ml_dtypes.bfloat16, np.float32),
        (np.float16, ml_dtypes.bfloat16),
        (np.int8, np.int64),
    ]:
        narrow_u, narrow_k = (4 * u).astype(u_type), (4 * k).astype(k_type)
        got = reference.fftconv(narrow_u, narrow_k)
        assert got.dtype == np.float64
        assert np.array_equal(
            got, reference.fftconv(narrow_u.astype(np.float64), narrow_k.astype(np.float64))
        )


def test_strided_views_and_lists_are_read_right() -> None:
    base = signal("noise", (4, 3, 80), 0)
    kept = base.copy()
    view, k = base[::-1, :, 10:50:2], signal("noise", (7, 3), 1).T
    plan = monarch.plan(40)
    for mode in monarch.MODES:
        expected = reference.fftconv(view.copy(), k.copy(), mode=mode)
        assert np.array_equal(reference.fftconv(view, k, mode=mode), expected)
        assert_same(reference.fftconv(view, k, mode=mode, plan=plan), expected, np.sqrt(40) * view, k)
        assert np.array_equal(reference.fftconv(view.tolist(), k.tolist(), mode=mode), expected)
    assert np.array_equal(base, kept)


def test_a_nan_is_not_swallowed() -> None:
    u = signal("noise", (2, 2, 16), 0)
    u[1, 0, 5] = np.nan
    y = reference.fftconv(u, np.ones(3), mode="causal")
    assert np.isnan(y[1, 0]).all() and np.isfinite(y[0]).all() and np.isfinite(y[1, 1]).all()


ONES = np.ones((2, 3, 8))
REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: reference.fftconv(np.ones((2, 3, 0)), np.ones(1)), ValueError, r"u must be a non-empty array"),
    (lambda: reference.fftconv(np.ones((0, 3, 8)), np.ones(1)), ValueError, r"u must be a non-empty array"),
    (lambda: reference.fftconv(ONES, np.ones(0)), ValueError, r"k must be a non-empty array"),
    (lambda: reference.fftconv(1.0, np.ones(1)), ValueError, r"u must be a non-empty array .*got shape \(\)"),
    (lambda: reference.fftconv(ONES, np.ones(9)), ValueError, r"k must have at most L=8 taps.*got 9"),
    (
        lambda: reference.fftconv(ONES, np.ones(8), plan="4x2"),
        TypeError,
        r"plan must be a monarch.Plan, .*; got str",
    ),
    (
        lambda: reference.fftconv(ONES, np.ones((2, 4))),
        ValueError,
        r"k must have one filter for each of the H",
    ),
    (lambda: reference.fftconv(np.ones(8), np.ones((1, 4))), ValueError, r"k must have one filter for each"),
    (lambda: reference.fftconv(ONES, np.ones((2, 3, 4))), ValueError, r"k must be \[H, K\] or \[K\]"),
    (
        lambda: reference.fftconv(ONES, np.ones(3), mode="same"),
        ValueError,
        r"mode must be one of .*got 'same'",
    ),
    (
        lambda: reference.fftconv(ONES, np.ones(3), pregate=np.ones(8)),
        ValueError,
        r"pregate must have the shape",
    ),
    (
        lambda: reference.fftconv(ONES, np.ones(3), postgate=ONES[:1]),
        ValueError,
        r"postgate must have the shape",
    ),
    (lambda: reference.fftconv(ONES > 0, np.ones(3)), TypeError, r"u must be float16.*got bool"),
    (lambda: reference.fftconv(ONES, np.ones(3, np.longdouble)), TypeError, r"k must be float16.*got"),
    (lambda: reference.fftconv(ONES, ["a", "b"]), TypeError, r"k must be float16.*got <U1"),
    (lambda: reference.fftconv(ONES, np.array([2**53 + 1])), TypeError, r"k has integers of 2\*\*53 or more"),
    (
        lambda: reference.fftconv(ONES, np.ones(3), mode="causal", plan=monarch.plan(9)),
        ValueError,
        r"plan must have n >= 10 for mode 'causal' with L=8 and K=3; got N=9",
    ),
    (
        lambda: reference.fftconv(ONES, np.ones(3), plan=monarch.plan(9)),
        ValueError,
        r"plan must have n >= 10",
    ),
    (
        lambda: reference.fftconv(ONES, np.ones(3), plan=monarch.plan(4)),
        ValueError,
        r"plan must have n >= 10",
    ),
    (
        lambda: reference.fftconv(ONES, np.ones(3), plan=monarch.plan(8, signal=7)),
        ValueError,
        r"plan must have signal >= L=8",
    ),
    (
        lambda: reference.fftconv(ONES, np.ones(3), plan=monarch.plan(8, wanted=7)),
        ValueError,
        r"plan must have wanted >= L=8",
    ),
    (lambda: reference.fftconv(1j * ONES, np.ones(3), plan=monarch.plan(8)), TypeError, r'packing="complex"'),
    (lambda: reference.fftconv(ONES, 1j * np.ones(3), plan=monarch.plan(8)), TypeError, r'packing="complex"'),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_input_is_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_direct_sum_refuses_the_same() -> None:
    with pytest.raises(ValueError, match="k must have at most L=8 taps"):
        reference.direct_fftconv(ONES, np.ones(9))
    with pytest.raises(ValueError, match="mode must be one of"):
        reference.direct_fftconv(ONES, np.ones(3), mode="full")
