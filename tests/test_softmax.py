"""The exact softmax: three forms that must agree, the rows that must be recomputed, and the bound of a shift."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, target
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special
from strategies import seeds

import reference

Array = NDArray[Any]
TIGHT = 1e-12
BOUNDS = (-20.0, 20.0)
KINDS = ("in range", "wide", "outlier", "constant", "masked")
# More than 99.99 % of the logits of three models: FlashDecoding++, arXiv 2311.01282, section 3.
RANGES = {"Llama2-7B": (-16.8, 6.5), "ChatGLM2-6B": (-10.5, 13.7), "OPT-6.7B": (-496.8, 363.5)}


def logits(kind: str, shape: tuple[int, ...], seed: int) -> Array:
    draw = np.random.default_rng(seed)
    x = draw.uniform(-15, 15, shape)
    if kind == "wide":
        x *= 1000
    elif kind == "outlier":
        x = np.where(np.arange(shape[-1]) == draw.integers(0, max(shape[-1], 1)), 900.0, x)
    elif kind == "constant":
        x = np.broadcast_to(x[..., :1], shape).copy()
    elif kind == "masked":
        x[draw.random(shape) < 0.7] = -np.inf
    return x


@st.composite
def rows(draw: st.DrawFn, *, least: int = 0) -> Array:
    shape = (draw(st.integers(1, 4), label="rows"), draw(st.integers(least, 40), label="n"))
    return logits(draw(st.sampled_from(KINDS), label="kind"), shape, draw(seeds, label="seed"))


def variants(x: Any, **settings: Any) -> dict[str, Array]:
    settings = {"phi": 0.5, "bounds": BOUNDS, **settings}
    return {name: reference.softmax(x, variant=name, **settings) for name in ("async", "sync", "plain")}


# ---- the same by other ways ----


@given(rows(least=1), st.integers(1, 50))
def test_scipy_agrees(x: Array, splits: int) -> None:
    present = np.any(x > -np.inf, axis=-1)
    expected = special.softmax(x[present], axis=-1)
    for y in variants(x, splits=splits).values():
        assert y.shape == x.shape and y.dtype == np.float64
        assert np.allclose(y[present], expected, rtol=TIGHT, atol=0)
        assert np.all(y[~present] == 0)


@given(rows(), st.integers(1, 50), st.integers(1, 50))
def test_any_split_is_the_whole(x: Array, one: int, other: int) -> None:
    first, second = variants(x, splits=one), variants(x, splits=other)
    for name in first:
        assert np.allclose(first[name], second[name], rtol=TIGHT, atol=0)
        assert np.allclose(first[name], first["plain"], rtol=TIGHT, atol=0)


@given(rows(least=1), st.integers(-40, 40))
def test_shift_invariance(x: Array, shift: int) -> None:
    x = np.rint(x * 8) / 8  # so that the shift is exact
    for (name, y), moved in zip(variants(x).items(), variants(x + shift).values(), strict=True):
        assert np.allclose(moved, y, rtol=TIGHT, atol=0), name
    together = reference.softmax(x + shift, phi=0.5 + shift, bounds=BOUNDS)
    assert np.array_equal(together, reference.softmax(x, phi=0.5, bounds=BOUNDS))


@given(rows(least=1))
def test_weights_are_positive_and_sum_to_one(x: Array) -> None:
    for y in variants(x, splits=3).values():
        assert np.all(y >= 0)
        assert np.allclose(y.sum(axis=-1), np.any(x > -np.inf, axis=-1), rtol=TIGHT, atol=0)


def test_the_direct_formula_and_one_without_its_maximum() -> None:
    x = logits("in range", (3, 17), 0)
    direct = np.exp(x) / np.sum(np.exp(x), axis=-1, keepdims=True)
    assert np.allclose(reference.softmax(x, variant="plain"), direct, rtol=TIGHT, atol=0)
    with np.errstate(over="ignore", invalid="ignore"):
        far = np.exp(x + 1000) / np.sum(np.exp(x + 1000), axis=-1, keepdims=True)
    assert not np.allclose(far, direct)  # what a softmax without a shift would give
    for y in variants(x + 1000).values():
        assert np.allclose(y, direct, rtol=1e-10, atol=0)


def test_parts_joined_without_rescaling_are_rejected() -> None:
    x = logits("in range", (3, 16), 0)
    parts = [np.exp(part - part.max(axis=-1, keepdims=True)) for part in np.split(x, 4, axis=-1)]
    wrong = np.concatenate(parts, axis=-1)
    wrong /= wrong.sum(axis=-1, keepdims=True)
    assert not np.allclose(reference.softmax(x, variant="sync", splits=4), wrong, rtol=0.1)


# ---- which rows are recomputed ----


def test_the_example_of_figure_6() -> None:
    """a = -3, b = 3, phi = 6: the second row touches both bounds and is recomputed, so the interval is open."""
    x, scheme = [[4, 5, 6, 7], [3, 6, 9, 6]], {"phi": 6, "bounds": (-3, 3)}
    assert reference.overflow_flags(x, **scheme).tolist() == [False, True]
    for splits in (1, 2, 4):
        expected = special.softmax(x, axis=-1)
        assert np.allclose(reference.softmax(x, splits=splits, **scheme), expected, rtol=TIGHT, atol=0)
    for end in (-3.0, 3.0):
        inside = 6 + np.nextafter(end, 0) * (1 - 1e-15)
        assert not reference.overflow_flags([6, inside], **scheme)
        assert reference.overflow_flags([6, 6 + end], **scheme)
        assert reference.overflow_flags([6, 6 + 1.5 * end], **scheme)


@given(rows(), st.integers(-8, 8), st.integers(-40, 39), st.integers(1, 40))
@example(np.array([[-3.0, 0.0]]), 0, -3, 6)
@example(np.array([[3.0, 0.0]]), 0, -3, 6)
def test_flags_are_the_rule(x: Array, phi: int, a: int, width: int) -> None:
    x = np.rint(x)  # so that entries meet the bounds often
    expected = [any(v != -np.inf and not a < v - phi < a + width for v in row) for row in x.tolist()]
    assert reference.overflow_flags(x, phi=phi, bounds=(a, a + width)).tolist() == expected


@given(rows(least=1), st.integers(1, 9))
def test_flagged_rows_and_only_they_are_recomputed(x: Array, splits: int) -> None:
    """Bit by bit: a flagged row is the row of "sync", another one comes from the common shift."""
    found = variants(x, splits=splits)
    flags = reference.overflow_flags(x, phi=0.5, bounds=BOUNDS)
    assert np.array_equal(found["async"][flags], found["sync"][flags])
    terms = np.exp(x[~flags] - 0.5)
    total = terms.sum(axis=-1, keepdims=True)
    expected = np.divide(terms, total, out=np.zeros_like(terms), where=total > 0)
    assert np.allclose(found["async"][~flags], expected, rtol=1e-14, atol=0)


def test_without_the_fallback_a_wide_row_would_be_lost() -> None:
    x = np.array([[-900.0, -899.0], [900.0, 1.0]])
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.isnan(np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)).any(axis=-1).all()
    assert np.allclose(reference.softmax(x, phi=0, bounds=BOUNDS), special.softmax(x, axis=-1), rtol=TIGHT)


@pytest.mark.parametrize("model", ["Llama2-7B", "ChatGLM2-6B"])
def test_ranges_of_models_need_no_fallback(model: str) -> None:
    low, high = RANGES[model]
    x = np.random.default_rng(0).uniform(low, high, (8, 100))
    scheme = {"phi": (low + high) / 2, "bounds": (-(high - low) / 2, (high - low) / 2)}
    assert not reference.overflow_flags(x, **scheme).any()
    assert np.allclose(reference.softmax(x, **scheme), special.softmax(x, axis=-1), rtol=TIGHT, atol=0)


def test_a_range_without_a_common_shift_is_refused() -> None:
    low, high = RANGES["OPT-6.7B"]
    with pytest.raises(ValueError, match=r'bounds must be .*within \+-300.*use variant "sync"'):
        reference.softmax([0.0], phi=low, bounds=(0, high - low))


# ---- rows without weight, infinities, NaN ----


@pytest.mark.parametrize("splits", [1, 2, 7])
def test_special_rows(splits: int) -> None:
    inf, nan = np.inf, np.nan
    x = [
        [-inf] * 3,
        [-inf, 2, -inf],
        [1, nan, 2],
        [1, inf, 2],
        [-inf, inf, -inf],
        [nan, -inf, inf],
        [0, 0, 0],
    ]
    third = [1 / 3] * 3
    expected = [[0] * 3, [0, 1, 0], [nan] * 3, [nan] * 3, [nan] * 3, [nan] * 3, third]
    for name, y in variants(x, splits=splits).items():
        assert np.allclose(y, expected, rtol=TIGHT, atol=0, equal_nan=True), name
    flags = reference.overflow_flags(x, phi=0.5, bounds=BOUNDS)
    assert flags.tolist() == [False, False, True, True, True, True, False]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (2, 0, 5)])
def test_nothing_in_nothing_out(shape: tuple[int, ...]) -> None:
    for y in variants(np.zeros(shape), splits=3).values():
        assert y.shape == shape
    flags = reference.overflow_flags(np.zeros(shape), phi=0, bounds=BOUNDS)
    assert flags.shape == shape[:-1] and not flags.any()


@pytest.mark.parametrize("name", ["async", "sync", "plain"])
def test_layouts_dtypes_and_the_ends_of_double(name: str) -> None:
    x = logits("in range", (2, 5, 6), 0).astype(np.float16)
    expected = special.softmax(x.astype(float), axis=-1)
    settings: dict[str, Any] = {"phi": 0, "bounds": BOUNDS, "variant": name, "splits": 4}
    for view in (x, x.astype(np.float64)[:, ::-1][:, ::-1], x.tolist(), np.asfortranarray(x)):
        assert np.allclose(reference.softmax(view, **settings), expected, rtol=TIGHT, atol=0)
    assert reference.softmax([5.0], **settings).tolist() == [1.0]
    huge = np.finfo(float).max
    assert reference.softmax([huge, -huge, huge], **settings).tolist() == [0.5, 0, 0.5]


# ---- the bound of a shift ----


def in_fp32(x: Array, shift: Any, *, base_2: bool) -> Array:
    """Softmax as a kernel computes it: fp32, by e^(x - s) or by 2^(x c - s c) with one fused multiply-add."""
    single, s = np.float32, np.asarray(shift, np.float32)
    if base_2:
        c = single(np.log2(np.e))
        exact = np.multiply(x, c, dtype=np.float64) - (s * c).astype(np.float64)
        terms = np.exp2(exact.astype(single).astype(np.float64)).astype(single)
    else:
        terms = np.exp(x - s)
    assert terms.dtype == np.float32
    return terms / np.sum(terms, axis=-1, keepdims=True)


def error_of_shift(x: Array, shift: Any, *, base_2: bool = False) -> tuple[float, float]:
    """rms over rows of the relative L2 error, and of the distance weighted by squares of weights."""
    exact = reference.softmax(x, variant="plain")
    off = np.linalg.norm(in_fp32(x, shift, base_2=base_2) - exact, axis=-1) / np.linalg.norm(exact, axis=-1)
    square = np.sum((exact * (x - shift)) ** 2, axis=-1) / np.sum(exact**2, axis=-1)
    return float(np.sqrt(np.mean(off**2))), float(np.sqrt(np.mean(square)))


@pytest.mark.parametrize("base_2", [False, True])
@pytest.mark.parametrize("model", ["Llama2-7B", "ChatGLM2-6B"])
@pytest.mark.parametrize("where", ["maximum", "middle", "low end"])
def test_fp32_softmax_stays_in_its_bound(where: str, model: str, base_2: bool) -> None:
    low, high = RANGES[model]
    middle, draw = (low + high) / 2, np.random.default_rng(0)
    normal = np.clip(middle + draw.standard_normal((200, 1000)) * (high - low) / 8, low, high)
    for x in (normal, draw.uniform(low, high, (200, 1000))):
        x = x.astype(np.float32)
        shift = {"maximum": x.max(axis=-1, keepdims=True), "middle": middle, "low end": low}[where]
        error, distance = error_of_shift(x, shift, base_2=base_2)
        assert 0.1 < error / reference.softmax_shift_bound(distance) < 1
        assert distance <= (
            2 if where == "maximum" else (high - low) / 2 if where == "middle" else high - low
        )


def test_a_shift_in_the_middle_of_the_range_costs_about_5_roundoffs() -> None:
    low, high = RANGES["Llama2-7B"]
    draw = np.random.default_rng(0)
    x = np.clip((low + high) / 2 + draw.standard_normal((200, 1000)) * (high - low) / 8, low, high)
    x = x.astype(np.float32)
    u, middle = 2.0**-24, (low + high) / 2
    most, centre, far = (error_of_shift(x, s)[0] for s in (x.max(axis=-1, keepdims=True), middle, low))
    assert most < 2 * u < 3 * u < centre < 5 * u < far
    # and what no error may look like
    assert error_of_shift(x, -60.0)[0] > 3 * reference.softmax_shift_bound((high - low) / 2)


@given(st.floats(-40, 40), st.floats(0.1, 40), st.booleans(), seeds)
def test_no_weight_leaves_the_coherent_bound(centre: float, width: float, base_2: bool, seed: int) -> None:
    x = (centre + width * np.random.default_rng(seed).uniform(-0.5, 0.5, (4, 64))).astype(np.float32)
    exact = reference.softmax(x, variant="plain")
    distance = float(np.abs(x).max())
    bound = reference.softmax_shift_bound(distance, additions=64, coherent=True)
    ratio = float(np.max(np.abs(in_fp32(x, 0.0, base_2=base_2) / exact - 1))) / bound
    target(ratio)
    assert ratio < 1


def test_bounds_are_what_they_say() -> None:
    bound, u = reference.softmax_shift_bound, 2.0**-24
    assert bound(0) == pytest.approx(np.sqrt(4 / 3) * u)
    assert bound(9) == pytest.approx(np.sqrt(85 / 3) * u)
    assert bound(9, additions=33) == pytest.approx(np.sqrt(96 / 3) * u)
    assert bound(9, dtype="fp16") == pytest.approx(bound(9) * 2**13)
    assert bound(4, coherent=True, additions=3) == 22 * u
    for wrong in (
        {"distance": -1},
        {"distance": np.nan},
        {"distance": np.inf},
        {"distance": 1, "additions": -1},
    ):
        with pytest.raises(ValueError, match="distance and additions must be finite and at least 0"):
            bound(**wrong)


# ---- what is refused ----

X = np.zeros((2, 3))
REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: reference.softmax(1.0, variant="sync"), ValueError, r"x must be an array .*got a single number"),
    (lambda: reference.softmax(X * 1j, variant="sync"), TypeError, r"x must be real; got complex128"),
    (lambda: reference.softmax(X > 0, variant="sync"), TypeError, r"x must be float16.*got bool"),
    (lambda: reference.softmax(X, variant="fast"), ValueError, r"variant must be one of .*got 'fast'"),
    (lambda: reference.softmax(X), ValueError, r"phi and bounds must be given .*got None and None"),
    (lambda: reference.softmax(X, phi=1), ValueError, r"phi and bounds must be given .*got 1 and None"),
    (
        lambda: reference.softmax(X, phi="6", bounds=(-3, 3)),
        TypeError,
        r"phi must be a real number .*got '6'",
    ),
    (lambda: reference.softmax(X, phi=True, bounds=(-3, 3)), TypeError, r"phi must be a real number"),
    (lambda: reference.softmax(X, phi=np.inf, bounds=(-3, 3)), ValueError, r"phi must be finite.*got inf"),
    (lambda: reference.softmax(X, phi=0, bounds=3), TypeError, r"bounds must be two numbers \(a, b\); got 3"),
    (lambda: reference.softmax(X, phi=0, bounds=(1, 2, 3)), TypeError, r"bounds must be two numbers"),
    (lambda: reference.softmax(X, phi=0, bounds=(3, -3)), ValueError, r"a < b.*got \(3, -3\)"),
    (lambda: reference.softmax(X, phi=0, bounds=(3, 3)), ValueError, r"a < b"),
    (lambda: reference.softmax(X, phi=0, bounds=(-np.inf, 3)), ValueError, r"bounds must be finite"),
    (lambda: reference.softmax(X, phi=0, bounds=(-1, 301)), ValueError, r"within \+-300"),
    (lambda: reference.softmax(X, variant="sync", bounds=(3, -3)), ValueError, r"a < b"),
    (lambda: reference.softmax(X, variant="sync", splits=0), ValueError, r"splits must be at least 1"),
    (lambda: reference.softmax(X, variant="sync", splits=2.0), TypeError, r"splits must be an integer"),
    (lambda: reference.softmax(X, variant="sync", splits=True), TypeError, r"splits must be an integer"),
    (lambda: reference.overflow_flags(X, phi=0, bounds=None), ValueError, r"phi and bounds must be given"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_input_is_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
