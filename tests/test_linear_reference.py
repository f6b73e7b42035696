"""Linear layers in float64: the definition, the derived bound, and that the check rejects what kernels get wrong.

The half-precision kernel is imitated here: products exact, sums in fp32, in order or in parts of K.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, target
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import kinds, seeds, signal

import reference

Array = NDArray[Any]
DTYPES = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
dtypes = st.sampled_from(sorted(DTYPES))
storable = kinds.filter(lambda kind: kind != "huge range")  # what half precision has the range for


def rounded(x: Array, dtype: str) -> Array:
    return x.astype(DTYPES[dtype]).astype(np.float64)


def operands(
    m: int, n: int, k: int, dtype: str, *, seed: int = 0, kind: str = "noise"
) -> tuple[Array, Array]:
    x, w = signal(kind, (m, k), seed), signal("noise", (n, k), seed + 1)
    if kind == "outlier":
        x /= 128  # within the range of fp16
    return rounded(x, dtype), rounded(w, dtype)


def cancelling(m: int, n: int, k: int, dtype: str, *, seed: int = 0) -> tuple[Array, Array]:
    """Operands of which each half of K sums up to something large, and both together to something small."""
    x, w = operands(m, n, k, dtype, seed=seed)
    x, w = np.abs(x), np.abs(w)
    half = k // 2
    w[:, half : 2 * half] = w[:, :half]
    x[:, half : 2 * half] = rounded(
        -x[:, :half] * (1 - 0.05 * np.abs(signal("noise", (m, half), seed + 2))), dtype
    )
    return x, w


def kernel(x: Array, w: Array, dtype: str, *, parts: int = 1, partials: str = "fp32") -> Array:
    """Exact products, sums in fp32 one after the other, K in parts whose sums are kept in ``partials``."""
    keep = np.float32 if partials == "fp32" else DTYPES[dtype]
    total = np.zeros((len(x), len(w)), np.float32)
    for some in np.array_split(np.arange(x.shape[1]), parts):
        part = np.zeros_like(total)
        for k in some:
            part += np.outer(x[:, k], w[:, k]).astype(np.float32)
        total += part.astype(keep).astype(np.float32)
    return total.astype(DTYPES[dtype])


# ---- the product ----


@given(st.integers(0, 4), st.integers(1, 4), st.integers(1, 9), kinds, seeds)
def test_linear_is_the_sum(m: int, n: int, k: int, kind: str, seed: int) -> None:
    x, w = signal(kind, (m, k), seed), signal("noise", (n, k), seed + 1)
    y = reference.linear(x, w)
    assert y.shape == (m, n) and y.dtype == np.float64
    bound = reference.linear_bound(x, w, "fp64")
    for i in range(m):
        for j in range(n):
            exact = sum((Fraction(a) * Fraction(b) for a, b in zip(x[i], w[j], strict=True)), Fraction(0))
            assert abs(float(Fraction(float(y[i, j])) - exact)) <= bound[i, j]


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 40), seeds)
def test_rows_are_independent(m: int, n: int, k: int, seed: int) -> None:
    x, w = signal("noise", (m, k), seed), signal("noise", (n, k), seed + 1)
    y = reference.linear(x, w)
    padded = reference.linear(np.concatenate([x, np.zeros((3, k))]), w)
    assert np.allclose(padded[:m], y, rtol=0, atol=1e-13 * k) and not padded[m:].any()
    assert np.allclose(reference.linear(x[0], w), y[0], rtol=0, atol=1e-13 * k)
    stacked = reference.linear(np.stack([x, 2 * x]), w)
    assert np.allclose(stacked, np.stack([y, 2 * y]), rtol=0, atol=1e-13 * k)


def test_no_rows_give_no_rows() -> None:
    x, w = np.zeros((0, 5)), np.ones((3, 5))
    assert reference.linear(x, w).shape == reference.linear_bound(x, w, "fp16").shape == (0, 3)
    assert reference.check_linear(np.zeros((0, 3)), x, w, dtype="fp16") == 0


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.int8])
def test_narrow_types_are_widened(dtype: Any) -> None:
    x, w = np.arange(6).reshape(2, 3).astype(dtype), np.arange(12).reshape(4, 3).astype(dtype)
    y = reference.linear(x, w)
    assert y.dtype == np.float64
    assert y.tolist() == [[5, 14, 23, 32], [14, 50, 86, 122]]


# ---- the bound ----


def test_bound_by_hand() -> None:
    x, w = np.array([[1.0, -2.0]]), np.array([[3.0, 4.0], [0.0, 0.0]])
    gamma = 2 * 2.0**-24 / (1 - 2 * 2.0**-24)
    for dtype, u in (("fp16", 2.0**-11), ("bf16", 2.0**-8)):
        assert reference.linear_bound(x, w, dtype).tolist() == [[(2 * u + gamma) * 11, 0.0]]
    assert reference.linear_bound(x, w, np.float64)[0, 0] < 11 * 5 * 2.0**-53


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 64), st.integers(1, 5), dtypes, storable, seeds)
@example(2, 3, 64, 4, "fp16", "constant", 0)
def test_a_sound_kernel_is_within_the_bound(
    m: int, n: int, k: int, parts: int, dtype: str, kind: str, seed: int
) -> None:
    x, w = operands(m, n, k, dtype, seed=seed, kind=kind)
    y = kernel(x, w, dtype, parts=parts).astype(np.float64)
    bound = reference.linear_bound(x, w, dtype)
    error = np.abs(y - reference.linear(x, w))
    assert np.all(error <= bound + 2.0**-25)  # half the spacing of subnormal fp16
    target(float(np.max(error / np.maximum(bound, 2.0**-25))))


@given(st.integers(1, 4), st.integers(1, 64), dtypes, seeds)
def test_operands_rounded_on_the_way_in_are_within_the_bound(n: int, k: int, dtype: str, seed: int) -> None:
    x, w = signal("noise", (3, k), seed), signal("noise", (n, k), seed + 1)
    y = reference.linear(rounded(x, dtype), rounded(w, dtype)).astype(np.float32)
    slack = 2.0**-22 * np.sum(np.abs(w), axis=1)  # values of noise below the normal range of fp16, and u^2
    assert np.all(np.abs(y - reference.linear(x, w)) <= 1.01 * reference.linear_bound(x, w, dtype) + slack)


# ---- the check ----

CASES: dict[str, tuple[int, int, int]] = {
    "square": (64, 64, 64),
    "wide": (3, 200, 1000),
    "awkward": (5, 33, 4095),
}


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("case", CASES)
def test_a_sound_kernel_passes(case: str, dtype: str) -> None:
    for make in (operands, cancelling):
        x, w = make(*CASES[case], dtype)
        for parts in (1, 8):
            y = kernel(x, w, dtype, parts=parts)
            assert 0 < reference.check_linear(y, x, w, dtype=dtype) <= 1


def test_sums_that_cut_off_pass() -> None:
    """Aligned data, and sums that lose bits toward zero at every step of 16, as tensor cores do."""
    x, w = operands(4, 8, 11008, "fp16")
    x, w = np.abs(x), np.abs(w)
    total = np.zeros((4, 8))
    for k in range(0, 11008, 16):
        terms = x[:, None, k : k + 16] * w[None, :, k : k + 16]
        spare = 2.0 ** (np.floor(np.log2(np.maximum(total, terms.max(-1)))) - 25)
        total = np.floor(total / spare) * spare + np.sum(np.floor(terms / spare[..., None]), -1) * spare
        ulp = 2.0 ** (np.floor(np.log2(total)) - 23)
        total = np.floor(total / ulp) * ulp
    lost = 1 - total / reference.linear(x, w)
    assert np.all(lost > 11008 / 16 * 2.0**-24)  # more than roundings would
    assert reference.check_linear(total.astype(np.float16), x, w, dtype="fp16") <= 1


def poisoned(y: Array, value: float, where: Any) -> Array:
    y = y.copy()
    y[where] = value
    return y


WRONG: dict[str, Callable[[Array, Array, Array], Array]] = {
    "zeros": lambda x, w, y: np.zeros_like(y),
    "minus the result": lambda x, w, y: -y,
    "half the result": lambda x, w, y: y / 2,
    "transposed w": lambda x, w, y: x @ w if w.shape[0] == w.shape[1] else x @ w.reshape(w.shape[::-1]),
    "last of K dropped": lambda x, w, y: x[:, :-1] @ w[:, :-1].T,
    "first of K dropped": lambda x, w, y: x[:, 1:] @ w[:, 1:].T,
    "K cut to a multiple of 16": lambda x, w, y: x[:, : (k := (x.shape[1] - 1) // 16 * 16)] @ w[:, :k].T,
    "one of K twice": lambda x, w, y: y + np.outer(x[:, 7], w[:, 7]),
    "K shifted by one": lambda x, w, y: x @ np.roll(w, 1, axis=1).T,
    "one row of another": lambda x, w, y: y[[0, *range(len(y) - 1)]],
    "columns shifted": lambda x, w, y: np.roll(y, 1, axis=1),
    "last column unwritten": lambda x, w, y: poisoned(y, 0.0, (..., -1)),
    "one element unwritten": lambda x, w, y: poisoned(y, 0.0, np.unravel_index(np.argmax(abs(y)), y.shape)),
    "one NaN": lambda x, w, y: poisoned(y, np.nan, (1, 2)),
    "one infinity": lambda x, w, y: poisoned(y, np.inf, (0, 0)),
}


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_results_are_rejected(wrong: str, case: str, dtype: str) -> None:
    x, w = operands(*CASES[case], dtype)
    result = WRONG[wrong](x, w, reference.linear(x, w))
    if "transposed" in wrong:
        result = result.reshape(len(x), -1)
    with pytest.raises(AssertionError, match=r"y\[\d+, \d+\] is \S+ instead of \S+ off by"):
        reference.check_linear(result, x, w, dtype=dtype)


@pytest.mark.parametrize("parts", [2, 8])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("case", CASES)
def test_partial_sums_in_half_are_rejected(case: str, dtype: str, parts: int) -> None:
    x, w = cancelling(*CASES[case], dtype)
    y = kernel(x, w, dtype, parts=parts, partials="half")
    with pytest.raises(AssertionError, match="times the"):
        reference.check_linear(y, x, w, dtype=dtype)


def test_sums_in_half_are_rejected() -> None:
    x, w = operands(*CASES["wide"], "fp16")
    total = np.zeros((len(x), len(w)), np.float16)
    for k in range(x.shape[1]):
        total += np.outer(x[:, k], w[:, k]).astype(np.float16)
    with pytest.raises(AssertionError, match="times the"):
        reference.check_linear(total, x, w, dtype="fp16")


def test_an_empty_check_is_refused() -> None:
    x = np.array([[1.0, 1.0]])
    with pytest.raises(ValueError, match="zeros would pass"):
        reference.check_linear(np.zeros((1, 1)), x, np.array([[1.0, -1.0]]), dtype="fp16")
    zeros = np.zeros((2, 2))
    assert reference.check_linear(zeros, zeros, np.ones((2, 2)), dtype="fp16") == 0
    with pytest.raises(AssertionError, match="off by"):
        reference.check_linear(zeros + 1e-30, zeros, np.ones((2, 2)), dtype="fp16")


def test_results_below_the_normal_numbers_are_rounded_absolutely() -> None:
    """By up to half the spacing of 2^-24, which is much of a small value; of a wrong value not all, of zero nothing."""
    x, w = np.array([[1.0, 1.0]]), np.array([[2.0**-24, 2.0**-12], [2.0**-12, 2.0**-24]])
    x[0, 1] = 2.0**-13  # 2^-24 + 2^-25: between two numbers
    exact = reference.linear(x, w)
    y = exact.astype(np.float16)
    assert y[0, 0] != exact[0, 0]
    assert reference.check_linear(y, x, w, dtype="fp16") <= 1
    y[0, 0] += np.float16(2.0**-24) if y[0, 0] > exact[0, 0] else -np.float16(2.0**-24)
    with pytest.raises(AssertionError, match="off by"):
        reference.check_linear(y, x, w, dtype="fp16")


# ---- errors ----


@pytest.mark.parametrize(
    ("x", "w", "error", "message"),
    [
        (np.ones((2, 3)), np.ones((3, 4)), ValueError, r"w must be \[N, K\] with the K=3 of x .* Pass w\.T"),
        (np.ones((2, 0)), np.ones((3, 0)), ValueError, r"x must be .* K >= 1"),
        (np.ones((2, 3)), np.ones((0, 3)), ValueError, r"w must be .* N >= 1"),
        (np.ones((2, 3)), np.ones(3), ValueError, r"w must be \[N, K\]"),
        (np.float64(1), np.ones((1, 1)), ValueError, r"x must be \[\.\.\., M, K\]"),
        (np.ones((2, 3)) * 1j, np.ones((3, 3)), TypeError, "x must be real"),
        (np.ones((2, 3)), np.ones((3, 3)) * 1j, TypeError, "w must be real"),
        (np.ones((2, 3), bool), np.ones((3, 3)), TypeError, "x must be float16"),
    ],
)
def test_bad_arguments(x: Array, w: Array, error: type[Exception], message: str) -> None:
    for call in (reference.linear, lambda x, w: reference.linear_bound(x, w, "fp16")):
        with pytest.raises(error, match=message):
            call(x, w)


def test_bad_arguments_of_the_check() -> None:
    x, w = np.ones((2, 3)), np.ones((4, 3))
    with pytest.raises(ValueError, match=r"y must have the shape .* \(2, 4\); got \(4, 2\)"):
        reference.check_linear(np.ones((4, 2)), x, w, dtype="fp16")
    with pytest.raises(ValueError, match="x must hold values of the given dtype"):
        reference.check_linear(np.ones((2, 4)), x / 3, w, dtype="fp16")
    with pytest.raises(ValueError, match="w must hold values of the given dtype"):
        reference.check_linear(np.ones((2, 4)), x, w + 2.0**-9, dtype="bf16")
    with pytest.raises(ValueError, match="dtype must be one of"):
        reference.linear_bound(x, w, "int8")
    with pytest.raises(ValueError, match="finite product"):
        reference.check_linear(np.ones((2, 4)), x * np.inf, w, dtype="fp16")
