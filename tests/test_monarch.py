"""The transform executed from a plan, against `numpy.fft`, the direct sum and the laws of the DFT."""

import time
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import factor_tuples, kinds, plans, seeds, signal

import monarch

TIGHT = 1e-12  # relative to the norm of what went in; the transform is unitary


def complex_signal(kind: str, shape: tuple[int, ...], seed: int) -> NDArray[np.complex128]:
    return signal(kind, shape, seed) + 1j * signal(kind, shape, seed + 1)


def complex_plan(factors: tuple[int, ...]) -> monarch.Plan:
    return monarch.Plan(prod(factors), factors, packing="complex")


def assert_same(got: NDArray[Any], expected: NDArray[Any], size: NDArray[Any] | None = None) -> None:
    """Agreement to 1e-12 of the norm of each sequence (of ``expected`` unless ``size`` is given)."""
    assert got.shape == expected.shape
    size = np.linalg.norm(expected if size is None else size, axis=-1)
    assert np.all(np.linalg.norm(got - expected, axis=-1) <= TIGHT * size)


def direct_dft(x: NDArray[Any]) -> NDArray[np.complex128]:
    """The unitary DFT as its sum, its phases reduced in integers and evaluated in extended precision."""
    n = x.shape[-1]
    phase = (np.outer(np.arange(n), np.arange(n)) % n).astype(np.longdouble) * (
        -2 * np.arccos(np.longdouble(-1)) / n
    )
    matrix = np.cos(phase).astype(np.float64) + 1j * np.sin(phase).astype(np.float64)
    return x @ matrix / np.sqrt(n)


# ---- constants ----


@given(st.integers(1, 2**40), st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20))
@example(8, [0, 1, 2, 3, 4, 5, 6, 7, 8, -1])
@example(3, [1, 2])
@example(2**40, [1, 2**38, 2**38 - 1, 2**39 + 1])
def test_roots_are_exact_to_one_unit(n: int, exponents: list[int]) -> None:
    import mpmath

    got = monarch.roots_of_unity(exponents, n)
    with mpmath.workdps(40):
        exact = [mpmath.expjpi(mpmath.mpf(-2 * (e % n)) / n) for e in exponents]
        for root, true in zip(got, exact, strict=True):
            for part, true_part in ((root.real, true.real), (root.imag, true.imag)):
                assert abs(part - true_part) <= 2.0**-52
    assert np.all((np.abs(got.real) <= 1) & (np.abs(got.imag) <= 1))


def test_special_roots_have_no_rounding_at_all() -> None:
    assert monarch.roots_of_unity([0, 1, 2, 3], 4).tolist() == [1, -1j, -1, 1j]
    eighth = monarch.roots_of_unity(1, 8)
    assert eighth.real == -eighth.imag == np.sqrt(0.5)


@given(st.integers(1, 200))
def test_dft_matrix_is_unitary_and_symmetric(n: int) -> None:
    matrix = monarch.dft_matrix(n)
    assert np.abs(matrix @ matrix.conj().T - np.eye(n)).max() < 1e-14
    assert np.array_equal(matrix, matrix.T)
    assert np.array_equal(monarch.dft_matrix(n, inverse=True), matrix.conj())


def test_constants_cannot_be_written_to() -> None:
    plan = monarch.plan(1024)
    for constant in (plan.dft(0), plan.dft(0, inverse=True), plan.twiddle(0), monarch.dft_matrix(700)):
        with pytest.raises(ValueError, match="read-only"):
            constant[0, 0] = 0


@given(st.integers(1, 40), st.integers(1, 40))
def test_twiddles(n: int, rest: int) -> None:
    k, m = np.arange(n)[:, None], np.arange(rest)[None, :]
    assert np.abs(monarch.twiddle_factors(n, rest) - np.exp(-2j * np.pi * k * m / (n * rest))).max() < 1e-14


# ---- the transform ----


@given(factor_tuples(), kinds, seeds)
@example((997,), "noise", 0)
@example((2,) * 6, "noise", 0)
@example((31, 61, 2), "tone", 3)
@example((7, 5, 3, 2, 11, 2), "huge range", 1)
def test_agrees_with_numpy(factors: tuple[int, ...], kind: str, seed: int) -> None:
    plan = complex_plan(factors)
    x = complex_signal(kind, (2, plan.points), seed)
    expected = np.fft.fft(x, norm="ortho")
    forward = monarch.transform(x, plan)
    assert_same(forward[..., monarch.natural_order(plan)], expected)
    assert_same(forward, expected[..., monarch.digit_order(plan)])
    assert_same(monarch.transform(forward, plan, inverse=True), x)
    backward = monarch.transform(x[..., monarch.digit_order(plan)], plan, inverse=True)
    assert_same(backward, np.fft.ifft(x, norm="ortho"))


@given(factor_tuples(most_points=300), seeds)
@example((257,), 0)
@example((2, 3, 5, 7), 0)
def test_agrees_with_the_sum(factors: tuple[int, ...], seed: int) -> None:
    plan = complex_plan(factors)
    x = complex_signal("noise", (plan.points,), seed)
    got = monarch.transform(x, plan)[monarch.natural_order(plan)]
    assert_same(got, direct_dft(x))


@given(st.data(), factor_tuples(most_points=2000), kinds, seeds)
def test_every_order_gives_the_same(
    data: st.DataObject, factors: tuple[int, ...], kind: str, seed: int
) -> None:
    lists = monarch.factor_lists(prod(factors), multiple_of=1)
    others = data.draw(st.sampled_from(lists), label="other factors")
    x = complex_signal(kind, (prod(factors),), seed)
    one, two = complex_plan(factors), complex_plan(others)
    assert_same(
        monarch.transform(x, one)[monarch.natural_order(one)],
        monarch.transform(x, two)[monarch.natural_order(two)],
    )


@given(factor_tuples(), kinds, seeds, st.complex_numbers(max_magnitude=1e3, allow_nan=False))
def test_linear(factors: tuple[int, ...], kind: str, seed: int, scale: complex) -> None:
    plan = complex_plan(factors)
    x, y = complex_signal(kind, (plan.points,), seed), complex_signal("noise", (plan.points,), seed + 7)
    got = monarch.transform(scale * x + y, plan)
    terms = np.stack([scale * x, y]).ravel()  # cancellation may leave less
    assert_same(got, scale * monarch.transform(x, plan) + monarch.transform(y, plan), terms)


@given(factor_tuples(), kinds, seeds)
def test_parseval(factors: tuple[int, ...], kind: str, seed: int) -> None:
    plan = complex_plan(factors)
    x = complex_signal(kind, (plan.points,), seed)
    before, after = np.linalg.norm(x), np.linalg.norm(monarch.transform(x, plan))
    assert abs(after - before) <= TIGHT * before


@given(factor_tuples(), st.integers(0, 10**6), kinds, seeds)
def test_a_shift_turns_the_phases(factors: tuple[int, ...], shift: int, kind: str, seed: int) -> None:
    plan = complex_plan(factors)
    x = complex_signal(kind, (plan.points,), seed)
    turn = monarch.roots_of_unity(plan.frequencies().ravel() * (shift % plan.points), plan.points)
    assert_same(monarch.transform(np.roll(x, shift), plan), turn * monarch.transform(x, plan))


@given(factor_tuples(), st.integers(0, 10**6))
def test_an_impulse_is_one_tone(factors: tuple[int, ...], place: int) -> None:
    plan = complex_plan(factors)
    n = np.arange(plan.points) == place % plan.points
    tone = monarch.roots_of_unity(plan.frequencies().ravel() * (place % plan.points), plan.points)
    assert_same(monarch.transform(n, plan), tone / np.sqrt(plan.points))


@given(factor_tuples(), kinds, seeds)
def test_real_data_have_a_mirrored_spectrum(factors: tuple[int, ...], kind: str, seed: int) -> None:
    plan = complex_plan(factors)
    spectrum = monarch.transform(signal(kind, (plan.points,), seed), plan)
    assert_same(spectrum[plan.mirror()], spectrum.conj())


@given(factor_tuples())
def test_index_maps(factors: tuple[int, ...]) -> None:
    plan = complex_plan(factors)
    slots = np.indices(factors)
    weights = np.cumprod([1, *factors[:-1]])
    assert np.array_equal(plan.frequencies(), np.tensordot(weights, slots, 1))
    digit, natural = monarch.digit_order(plan), monarch.natural_order(plan)
    assert np.array_equal(digit[natural], np.arange(plan.points))
    assert np.array_equal((digit + digit[plan.mirror()]) % plan.points, np.zeros(plan.points))


def test_the_input_is_left_alone_and_may_be_strided() -> None:
    plan = monarch.Plan.parse("4x8", packing="complex")
    base = complex_signal("noise", (3, 64), 0)
    kept = base.copy()
    view = base[::-1, ::2]
    assert_same(monarch.transform(view, plan), monarch.transform(view.copy(), plan))
    assert np.array_equal(base, kept)
    assert monarch.transform(np.zeros((0, 32)), plan).shape == (0, 32)


@pytest.mark.parametrize("shape", [(), (31,), (32, 1), (2, 64)])
def test_a_wrong_length_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="x must have 32 values along its last axis"):
        monarch.transform(np.zeros(shape), monarch.Plan.parse("4x8"))


def test_4096_points_take_milliseconds() -> None:
    plan = monarch.plan(4096)
    x = complex_signal("noise", (4096,), 0)
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        monarch.transform(x, plan)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.05


# ---- packing ----


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 9), seeds)
def test_pairs_come_back(batch: int, channels: int, length: int, seed: int) -> None:
    x = signal("noise", (batch, channels, length), seed)
    packed = monarch.pack_pairs(x)
    assert packed.shape == (-(-batch // 2), channels, length)
    assert np.array_equal(monarch.unpack_pairs(packed, batch), x)


@given(st.integers(1, 200), kinds, seeds)
def test_half_packing_splits_and_merges(points: int, kind: str, seed: int) -> None:
    x = signal(kind, (2, 2 * points), seed)
    packed = np.fft.fft(monarch.pack_half(x))
    assert_same(monarch.split_half(packed), np.fft.rfft(x))
    assert_same(monarch.merge_half(np.fft.rfft(x)), packed)
    assert np.array_equal(monarch.unpack_half(monarch.pack_half(x)), x)


@given(plans(), kinds, kinds, seeds)
def test_every_packing_convolves(plan: monarch.Plan, kind: str, filter_kind: str, seed: int) -> None:
    if plan.packing == "half":
        assert monarch.half_filter(signal("noise", (plan.n,), 0), plan)[0].shape == (plan.points,)
    x = signal(kind, (3, 2, plan.n), seed)
    h = signal(filter_kind, (2, plan.n), seed + 1)
    if plan.packing == "complex":
        x, h = x + 1j * x[::-1], h - 1j * h[::-1]
    expected = np.fft.ifft(np.fft.fft(x) * np.fft.fft(h))
    got = monarch.circular_convolution(x, h, plan)
    assert np.iscomplexobj(got) == (plan.packing == "complex")
    # a pair shares its rounding errors, so the larger of the two sets the scale
    size = np.linalg.norm(x, axis=(0, -1)) * np.linalg.norm(h, axis=-1) * np.sqrt(plan.n)
    assert np.all(np.linalg.norm(got - expected, axis=-1) <= TIGHT * size)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda p: monarch.pack_pairs(1j * np.ones((2, 4))),
            TypeError,
            'real to be packed.*packing="complex"',
        ),
        (lambda p: monarch.pack_pairs(np.ones(4)), ValueError, "batch axis"),
        (lambda p: monarch.pack_half(np.ones(5)), ValueError, "even number of samples"),
        (lambda p: monarch.unpack_pairs(np.ones((2, 4)), 5), ValueError, "3 pairs for count=5"),
        (lambda p: monarch.merge_half(np.ones(1)), ValueError, "spectrum must hold"),
        (lambda p: monarch.half_filter(np.ones(16), p), ValueError, 'packing "half"; got N=16'),
        (
            lambda p: monarch.filter_spectrum(np.ones(8), monarch.plan(8, packing="half")),
            ValueError,
            "half_filter",
        ),
        (
            lambda p: monarch.circular_convolution(np.ones((1, 8)), np.ones(16), p),
            ValueError,
            "x must have n=16",
        ),
        (
            lambda p: monarch.circular_convolution(np.ones((1, 16)), np.ones(8), p),
            ValueError,
            "h must have n=16",
        ),
        (
            lambda p: monarch.circular_convolution(np.ones((1, 16)), 1j * np.ones(16), p),
            TypeError,
            "h must be real",
        ),
    ],
)
def test_misuse_of_packing_is_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(monarch.plan(16))
