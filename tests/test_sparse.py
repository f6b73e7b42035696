"""Frequency-sparse convolutions: against the masked dense one, their counts, and the choice of patterns."""

from collections import Counter
from collections.abc import Callable
from itertools import chain, combinations, product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import factor_tuples, kinds, seeds, signal

import monarch
import reference
from monarch.index import mirror_pairs_of

TIGHT = 1e-12
Pattern = monarch.SparsityPattern


def make_plan(factors: tuple[int, ...], packing: str = "complex") -> monarch.Plan:
    return monarch.Plan(prod(factors) * (2 if packing == "half" else 1), factors, packing=packing)


@st.composite
def sparse_plans(draw: st.DrawFn, *, most_points: int = 400) -> tuple[monarch.Plan, Pattern]:
    """A plan of order 2 to 4 and a pattern: a union of boxes, single slots, everything or nothing."""
    factors = draw(factor_tuples(most_points=most_points, orders=(2, 4)), label="factors")
    plan = make_plan(factors, draw(st.sampled_from(monarch.PACKINGS), label="packing"))
    rows = st.tuples(*(st.none() | st.sets(st.integers(0, n - 1)) for n in factors))
    pattern = Pattern.blocks(plan, draw(st.lists(rows, max_size=3), label="boxes"))
    if draw(st.booleans(), label="and single slots"):
        draws = np.random.default_rng(draw(seeds, label="seed of slots"))
        pattern |= Pattern(factors, draws.random(plan.points) < draws.random())
    if plan.packing != "complex":
        pattern |= Pattern(factors, pattern.kept[plan.mirror()])
    return plan, pattern


def masked(x: NDArray[Any], h: NDArray[Any], plan: monarch.Plan, pattern: Pattern) -> NDArray[Any]:
    """The dense convolution by numpy.fft, with the spectrum masked in natural order."""
    kept = pattern.kept[monarch.natural_order(plan)]
    if plan.packing == "half":
        kept = np.tile(kept, 2)  # slot k holds k and k + N / 2
    y = np.fft.ifft(np.fft.fft(x) * np.where(kept, np.fft.fft(h), 0))
    if plan.packing != "complex":
        assert np.all(np.abs(y.imag) <= TIGHT * size(x, h))
        return y.real
    return y


def size(x: NDArray[Any], h: NDArray[Any]) -> NDArray[Any]:
    """What an element could add up to; a masked filter is at most as large as its dense spectrum allows."""
    norm = np.linalg.norm(x, axis=-1, keepdims=True) * np.linalg.norm(h, axis=-1, keepdims=True)
    return np.asarray(norm * np.sqrt(h.shape[-1]))


def problem(plan: monarch.Plan, kind: str, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A batch ``[3, 2, N]`` and filters ``[2, N]``, complex if the plan is."""
    x, h = signal(kind, (3, 2, plan.n), seed), signal("noise", (2, plan.n), seed + 1)
    if plan.packing == "complex":
        return x + 1j * x[::-1], h - 1j * h[::-1]
    return x, h


# ---- doing it ----


@given(sparse_plans(), kinds, seeds)
def test_equals_the_masked_dense_one(drawn: tuple[monarch.Plan, Pattern], kind: str, seed: int) -> None:
    plan, pattern = drawn
    x, h = problem(plan, kind, seed)
    counts: Counter[str] = Counter()
    got = monarch.sparse_circular_convolution(x, h, plan, pattern, counts=counts)
    # two sequences of a pair share their rounding errors
    scale = size(x, h).max(axis=0) if plan.packing == "pair" else size(x, h)
    assert got.shape == x.shape and got.dtype == (np.complex128 if plan.packing == "complex" else np.float64)
    assert np.all(np.abs(got - masked(x, h, plan, pattern)) <= TIGHT * scale)
    transforms = 2 * 2 if plan.packing == "pair" else 2 * 3
    assert counts["flops"] == transforms * pattern.convolution_flops(plan)
    for stage in range(plan.order):
        done = prod(plan.factors[: stage + 1]) - pattern.skipped_rows(stage)
        assert counts[f"rows {stage + 1}"] == 2 * transforms * done


@given(factor_tuples(most_points=300, orders=(1, 4)), st.sampled_from(monarch.PACKINGS), seeds)
def test_nothing_zero_is_the_dense_convolution(factors: tuple[int, ...], packing: str, seed: int) -> None:
    plan = make_plan(factors, packing)
    everything = Pattern.blocks(plan, [(None,) * plan.order])
    assert everything.sparsity == 0 and everything.is_symmetric
    assert everything.convolution_flops(plan) == plan.convolution_flops()
    assert [everything.flops(i) for i in range(plan.order)] == [plan.flops(i) for i in range(plan.order)]
    x, h = problem(plan, "noise", seed)
    got = monarch.sparse_circular_convolution(x, h, plan, everything)
    assert np.all(np.abs(got - monarch.circular_convolution(x, h, plan)) <= TIGHT * size(x, h))


@given(sparse_plans())
def test_rows_are_the_beginnings_of_kept_slots(drawn: tuple[monarch.Plan, Pattern]) -> None:
    plan, pattern = drawn
    slots = np.argwhere(pattern.kept.reshape(plan.factors)).tolist()
    for stage, (factor, rest) in enumerate(zip(plan.factors, plan.strides, strict=True)):
        rows = {tuple(slot[: stage + 1]) for slot in slots}
        assert {tuple(row) for row in np.argwhere(pattern.rows(stage)).tolist()} == rows
        assert pattern.flops(stage) == 8 * len(rows) * factor * rest


@pytest.mark.parametrize("packing", monarch.PACKINGS)
def test_skipped_rows_are_not_even_read(packing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan((4, 6, 8), packing)
    pattern = (Pattern.tails if packing == "complex" else Pattern.middles)(plan, (2, 2, 4))
    x, h = problem(plan, "noise", 0)
    expected = monarch.sparse_circular_convolution(x, h, plan, pattern)
    kept = pattern.kept.reshape(plan.factors)
    dead = [np.flatnonzero(~kept.any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(3)]
    assert all(rows.size for rows in dead)
    whole, spectrum = monarch.Plan.dft, monarch.sparse.filter_spectrum

    def poisoned(self: monarch.Plan, stage: int, inverse: bool = False) -> NDArray[np.complex128]:
        matrix = whole(self, stage, inverse).copy()
        matrix[:, dead[stage]] = np.nan if inverse else matrix[:, dead[stage]]
        matrix[dead[stage]] = matrix[dead[stage]] if inverse else np.nan
        return matrix

    # the filter's own transform is dense, so it is made beforehand
    if packing == "half":
        filters = monarch.half_filter(h, plan)
        monkeypatch.setattr(monarch.sparse, "half_filter", lambda *_: filters)
    else:
        values = spectrum(h, plan)
        monkeypatch.setattr(monarch.sparse, "filter_spectrum", lambda *_: values)
    monkeypatch.setattr(monarch.Plan, "dft", poisoned)
    assert np.isnan(monarch.circular_convolution(x, h, plan)).any()
    assert np.array_equal(monarch.sparse_circular_convolution(x, h, plan, pattern), expected)


@given(sparse_plans(), st.sampled_from(monarch.MODES), st.data(), seeds)
def test_reference_is_circular_with_the_masked_filter(
    drawn: tuple[monarch.Plan, Pattern], mode: str, data: st.DataObject, seed: int
) -> None:
    plan, pattern = drawn
    samples = plan.n if mode == "circular" else data.draw(st.integers(1, plan.n // 2 + 1), label="L")
    most = {"circular": plan.n, "causal": plan.n - samples + 1, "two-sided": 2 * (plan.n - samples) + 1}
    taps = data.draw(st.integers(1, most[mode]), label="K")
    u, v, w = (signal("noise", (2, 3, samples), seed + i) for i in range(3))
    k = signal("noise", data.draw(st.sampled_from([(3, taps), (taps,)]), label="shape of k"), seed + 3)
    got = reference.sparse_fftconv(u, k, pattern, plan=plan, mode=mode, pregate=v, postgate=w)
    assert got.shape == u.shape and got.dtype == np.float64
    circle = monarch.place_filter(k, samples, plan.n, mode=mode)
    padded = np.concatenate([u * v, np.zeros((2, 3, plan.n - samples))], axis=-1)
    expected = w * masked(padded, circle, plan, pattern)[..., :samples].real
    scale = size(padded, circle).max() * np.abs(w).max()
    assert np.all(np.abs(got - expected) <= TIGHT * scale)
    if u.ndim == 3 and k.ndim == 1:
        alone = reference.sparse_fftconv(u[0, 0] * v[0, 0], k, pattern, plan=plan, mode=mode)
        assert np.all(np.abs(w[0, 0] * alone - expected[0, 0]) <= TIGHT * scale)


@given(factor_tuples(most_points=200, orders=(1, 4)), seeds)
def test_the_real_part_is_that_of_half_the_missing_mirrors(factors: tuple[int, ...], seed: int) -> None:
    plan = make_plan(factors)
    pattern = Pattern(factors, np.random.default_rng(seed).random(plan.points) < 0.5)
    u, k = signal("noise", (2, plan.n), seed), signal("noise", (2, plan.n), seed + 1)
    natural = pattern.kept[monarch.natural_order(plan)]
    weight = (natural + natural[-np.arange(plan.n)].astype(float)) / 2
    expected = np.fft.ifft(np.fft.fft(u) * np.fft.fft(k) * weight)
    assert np.all(np.abs(expected.imag) <= TIGHT * size(u, k))
    got = reference.sparse_fftconv(u, k, pattern, plan=plan)
    assert np.all(np.abs(got - expected.real) <= TIGHT * size(u, k))


# ---- patterns ----


@pytest.mark.parametrize(
    ("zeros", "percent", "flops"),
    [
        ((0, 0, 0, 0), 0, 1.0),
        ((16, 0, 0, 0), 50, 0.5),
        ((16, 16, 0, 0), 75, 0.30),
        ((16, 16, 4, 4), 79, 0.28),
        ((16, 16, 8, 8), 84, 0.25),
        ((16, 16, 16, 16), 91, 0.21),
    ],
)
def test_the_papers_ladder(zeros: tuple[int, ...], percent: int, flops: float) -> None:
    plan = make_plan((32, 32, 32, 64))
    pattern = Pattern.tails(plan, zeros)
    kept = prod(n - a for n, a in zip(plan.factors, zeros, strict=True))
    assert pattern.sparsity == 1 - kept / plan.points
    assert abs(100 * pattern.sparsity - percent) < 0.51
    assert abs(pattern.convolution_flops(plan) / plan.convolution_flops() - flops) < 0.005
    pairs = plan.with_(packing="pair")
    mirrored = Pattern.middles(pairs, zeros)
    assert 0 <= mirrored.sparsity - pattern.sparsity < 0.001
    assert mirrored.convolution_flops(pairs) <= pattern.convolution_flops(plan)
    mirrored.check(pairs)


@given(factor_tuples(most_points=600, orders=(1, 4)), st.data())
def test_mirrored_rows(factors: tuple[int, ...], data: st.DataObject) -> None:
    plan = make_plan(factors, "pair")
    zeros = [data.draw(st.integers(0, n - 1), label="zeros") for n in factors]
    pattern = Pattern.middles(plan, zeros)
    assert pattern.is_symmetric and pattern.symmetric() == pattern
    assert pattern.sparsity >= Pattern.tails(plan, zeros).sparsity - 1e-12
    kept = pattern.kept.reshape(factors)
    for axis, (n, a) in enumerate(zip(factors, zeros, strict=True)):
        others = tuple(i for i in range(plan.order) if i != axis)
        assert np.count_nonzero(kept.any(axis=others)) <= n - a  # inside one box of so many rows
    for nested in (False, True):
        pairs = mirror_pairs_of(factors, nested=nested)
        for n, pair in zip(factors, pairs, strict=True):
            assert np.array_equal(pair, pair[plan.mirror()]) and pair.max() == (n + 1) // 2 - 1
    if all(n % 2 == 0 for n in factors):
        cells = np.ravel_multi_index(mirror_pairs_of(factors), [n // 2 for n in factors])
        assert np.array_equal(np.bincount(cells), np.full(plan.points >> plan.order, 1 << plan.order))


def test_symmetric_is_the_largest_within() -> None:
    plan = make_plan((4, 6), "pair")
    frequency = plan.frequencies().reshape(-1)
    pattern = Pattern(plan.factors, frequency < 15)
    assert not pattern.is_symmetric
    found = pattern.symmetric()
    assert set(frequency[found.kept]) == {0, *range(10, 15)} and found.is_symmetric


@given(st.integers(1, 16), st.integers(1, 31))
def test_zeros_on_the_last_axis_are_a_low_pass(rows: int, other: int) -> None:
    plan = make_plan((2 * other, 32), "pair")
    pattern = Pattern.middles(plan, (0, 32 - 2 * rows))
    kept = pattern.kept[monarch.natural_order(plan)]
    frequency = np.minimum(np.arange(plan.n), plan.n - np.arange(plan.n))
    edge = rows * plan.factors[0]
    assert kept[frequency < edge].all() and (rows == 16 or not kept[frequency >= edge].any())


@given(sparse_plans(), sparse_plans())
def test_set_operations(first: tuple[monarch.Plan, Pattern], second: tuple[monarch.Plan, Pattern]) -> None:
    plan, a = first
    b = Pattern(a.factors, np.resize(second[1].kept, plan.points))
    assert np.array_equal((a | b).kept, a.kept | b.kept) and np.array_equal((a & b).kept, a.kept & b.kept)
    assert (a | b) & a == a and hash(a & a) == hash(a) and (a == b) == np.array_equal(a.kept, b.kept)
    assert a != "a" and str(a).startswith("x".join(map(str, a.factors)))
    box = [slice(1)] * plan.order
    assert not a.without(box).kept[0] and np.array_equal(a.without(box).kept[1:], a.kept[1:])
    assert a.symmetric() & a == a.symmetric() and a.symmetric().is_symmetric


# ---- energy ----


@given(sparse_plans(), seeds)
def test_energy_kept_is_that_of_the_taps(drawn: tuple[monarch.Plan, Pattern], seed: int) -> None:
    plan, pattern = drawn
    h = signal("noise", (3, plan.points), seed)
    if plan.packing == "half":
        plan = plan.with_(n=plan.points, packing="complex")
    spectrum = monarch.filter_spectrum(h, plan)
    cut = monarch.transform(pattern.apply(spectrum), plan, inverse=True) / np.sqrt(plan.points)
    energy = np.linalg.norm(h, axis=-1) ** 2
    # Parseval, of what is kept and of what is lost
    assert np.allclose(pattern.energy_kept(spectrum), np.linalg.norm(cut, axis=-1) ** 2 / energy, atol=TIGHT)
    lost = np.linalg.norm(h - cut, axis=-1) ** 2 / energy
    assert np.allclose(1 - pattern.energy_kept(spectrum), lost, atol=TIGHT)


def test_the_energy_of_half_packing_is_that_of_the_real_spectrum() -> None:
    plan = make_plan((4, 6, 4), "half")
    h = signal("noise", (plan.n,), 0)
    chosen = monarch.sparsify(monarch.transform(monarch.pack_half(h), plan), plan, 0.5)
    kept = np.tile(chosen.pattern.kept[monarch.natural_order(plan)], 2)
    energy = np.abs(np.fft.fft(h)) ** 2
    assert abs(chosen.energy_kept - energy[kept].sum() / energy.sum()) < TIGHT


# ---- choosing ----


def filters(plan: monarch.Plan, seed: int) -> NDArray[Any]:
    """Spectra ``[2, P]`` of decaying filters."""
    h = signal("noise", (2, plan.points), seed) * np.exp(-np.arange(plan.points) / 5)
    complex_plan = plan.with_(n=plan.points, packing="complex")
    return monarch.filter_spectrum(h, complex_plan)


def best(patterns: list[Pattern], spectrum: NDArray[Any], target: float, by: str) -> tuple[float, float]:
    """Sparsity and energy of the best of all patterns, one after the other."""
    energy = np.sum(np.abs(spectrum) ** 2, axis=0)
    scored = [(p.sparsity, energy[p.kept].sum() / energy.sum()) for p in patterns]
    if by == "sparsity":
        return max((s for s in scored if s[0] >= target - 1e-9), key=lambda s: (round(s[1], 12), s[0]))
    return max((s for s in scored if 1 - s[1] <= target + 1e-9), key=lambda s: (s[0], s[1]))


small = st.lists(st.sampled_from([2, 4, 6]), min_size=1, max_size=3).map(tuple)
targets = st.integers(0, 47).map(lambda n: n / 64)
ways = st.sampled_from(["sparsity", "energy"])


@settings(max_examples=25)
@given(small, st.sampled_from(monarch.PACKINGS), targets, ways, seeds)
@example((4, 4), "pair", 0.5, "sparsity", 0)
@example((4, 4), "complex", 0.0, "energy", 0)
def test_the_best_box(factors: tuple[int, ...], packing: str, target: float, by: str, seed: int) -> None:
    plan = make_plan(factors, packing)
    symmetric = packing != "complex"
    zeros = product(*(range(0, n, 2 if symmetric else 1) for n in factors))
    patterns = [(Pattern.middles if symmetric else Pattern.tails)(plan, z) for z in zeros]
    spectrum = filters(plan, seed)
    if by == "sparsity" and max(p.sparsity for p in patterns) < target:
        with pytest.raises(ValueError, match="target must leave"):
            monarch.sparsify(spectrum, plan, target, by=by)
        return
    chosen = monarch.sparsify(spectrum, plan, target, by=by)
    chosen.pattern.check(plan)
    assert chosen.pattern in patterns
    sparsity, energy = best(patterns, spectrum, target, by)
    assert abs(chosen.sparsity - sparsity) < TIGHT and abs(chosen.energy_kept - energy) < 1e-9
    assert chosen.flops_kept == chosen.pattern.convolution_flops(plan) / plan.convolution_flops()


@settings(max_examples=15)
@given(st.sampled_from([((4, 4), (2, 2)), ((6, 8), (2, 4)), ((8, 2, 4), (4, 2, 2))]), targets, ways, seeds)
@example(((6, 8), (2, 4)), 0.5, "sparsity", 0)
def test_the_best_blocks(
    grid: tuple[tuple[int, ...], tuple[int, ...]], target: float, by: str, seed: int
) -> None:
    factors, block = grid
    cells = [n // b for n, b in zip(factors, block, strict=True)]
    for packing in monarch.PACKINGS:
        plan = make_plan(factors, packing)
        spectrum = filters(plan, seed)
        chosen = monarch.sparsify(spectrum, plan, target, by=by, shape="blocks", block=block)
        chosen.pattern.check(plan)
        if packing == "complex":
            coordinates = np.unravel_index(np.arange(plan.points), factors)
            rows = [c // b for c, b in zip(coordinates, block, strict=True)]
        else:
            pairs = mirror_pairs_of(factors)
            rows = [pair // (b // 2) for pair, b in zip(pairs, block, strict=True)]
        cell = np.ravel_multi_index(rows, cells)
        every = chain.from_iterable(combinations(range(prod(cells)), r) for r in range(1, prod(cells) + 1))
        patterns = [Pattern(factors, np.isin(cell, kept)) for kept in every]
        sparsity, energy = best(patterns, spectrum, target, by)
        assert abs(chosen.sparsity - sparsity) < TIGHT and abs(chosen.energy_kept - energy) < 1e-9


def test_a_smooth_filter_loses_little() -> None:
    plan = monarch.Plan(4096, (16, 16, 16))
    h = np.exp(-0.5 * ((np.arange(4096) - 2048) / 3) ** 2)
    spectrum = monarch.filter_spectrum(h, plan)
    chosen = monarch.sparsify(spectrum, plan, 0.5)
    assert chosen.sparsity >= 0.5 and chosen.energy_kept > 1 - 1e-9
    tight = monarch.sparsify(spectrum, plan, 1e-6, by="energy")
    assert tight.sparsity > 0.6 and 1 - 1e-6 <= tight.energy_kept < 1 and tight.flops_kept < 0.9
    u = signal("noise", (2, 4096), 0)
    exact = reference.fftconv(u, h)
    got = reference.sparse_fftconv(u, h, tight.pattern, plan=plan)
    assert np.linalg.norm(got - exact) < 0.01 * np.linalg.norm(exact)
    nothing = monarch.sparsify(np.zeros(4096), plan, 0.5)
    assert nothing.energy_kept == 1 and nothing.sparsity >= 0.5
    assert monarch.sparsify(spectrum, plan, 0.0).sparsity == 0


# ---- what is refused ----

PLAN, PAIR = make_plan((4, 6)), make_plan((4, 6), "pair")
ALL = Pattern.blocks(PLAN, [(None, None)])
SPECTRUM = np.ones(24)
REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: Pattern((4, 6), np.ones(24)), TypeError, r"kept must hold booleans.*got float64"),
    (lambda: Pattern((4, 6), np.ones(23, bool)), ValueError, r"kept must have shape \(24,\) or \(4, 6\)"),
    (lambda: Pattern.tails(PLAN, (1,)), ValueError, r"zeros must hold one number per axis.*got 1"),
    (lambda: Pattern.tails(PLAN, (5, 0)), ValueError, r"zeros must be at most the rows \(4, 6\)"),
    (lambda: Pattern.middles(PLAN, (-1, 0)), ValueError, r"zeros must be at least 0"),
    (lambda: Pattern.blocks("4x6", []), TypeError, r"plan must be a monarch.Plan; got str"),
    (lambda: Pattern.blocks(PLAN, [(None,)]), ValueError, r"A block must select rows of 2 axes; got 1"),
    (lambda: Pattern.blocks(PLAN, [([4], None)]), ValueError, r"Rows of axis 1 must be below 4; got 4"),
    (lambda: ALL | Pattern.blocks(make_plan((6, 4)), []), ValueError, r"Both patterns must have the factors"),
    (lambda: ALL.rows(2), ValueError, r"stage must be below the order 2"),
    (lambda: ALL.apply(np.ones(4)), ValueError, r"spectrum must have 24 values"),
    (lambda: ALL.check(make_plan((6, 4))), ValueError, r"pattern must have the factors \(6, 4\)"),
    (
        lambda: Pattern.tails(PAIR, (1, 0)).check(PAIR),
        ValueError,
        r"pattern must keep -k wherever it keeps k",
    ),
    (lambda: monarch.sparsify(SPECTRUM, "4x6", 0.5), TypeError, r"plan must be a monarch.Plan"),
    (lambda: monarch.sparsify(np.ones(4), PLAN, 0.5), ValueError, r"spectrum must be \[\.\.\., 24\]"),
    (lambda: monarch.sparsify(SPECTRUM * np.nan, PLAN, 0.5), ValueError, r"spectrum must be finite"),
    (lambda: monarch.sparsify(SPECTRUM, PLAN, 1), ValueError, r"target must be a share"),
    (lambda: monarch.sparsify(SPECTRUM, PLAN, "half"), ValueError, r"target must be a share"),
    (lambda: monarch.sparsify(SPECTRUM, PLAN, 0.5, by="flops"), ValueError, r"by must be"),
    (lambda: monarch.sparsify(SPECTRUM, PLAN, 0.5, shape="ring"), ValueError, r"shape must be"),
    (lambda: monarch.sparsify(SPECTRUM, PLAN, 0.5, block=(2,)), ValueError, r"block must be one number, or"),
    (lambda: monarch.sparsify(SPECTRUM, PAIR, 0.5, block=3), ValueError, r"block must be even on axis 1"),
    (
        lambda: monarch.sparsify(SPECTRUM, PLAN, 0.5, block=4, shape="blocks"),
        ValueError,
        r"block must divide the 6 rows of axis 2",
    ),
    (
        lambda: monarch.sparsify(SPECTRUM, PLAN, 0.99),
        ValueError,
        r"target must leave a block",
    ),
    (
        lambda: monarch.sparsify(SPECTRUM, PLAN, 0.99, shape="blocks"),
        ValueError,
        r"target must leave one of 24 blocks",
    ),
    (
        lambda: monarch.sparse_circular_convolution(np.ones(12), np.ones(24), PLAN, ALL),
        ValueError,
        r"x must have n=24 samples",
    ),
    (
        lambda: monarch.sparse_circular_convolution(np.ones((2, 24)), 1j * np.ones(24), PAIR, ALL),
        TypeError,
        r"h must be real",
    ),
    (
        lambda: reference.sparse_fftconv(np.ones(24), np.ones(3), ALL.kept, plan=PLAN),
        TypeError,
        r"pattern must be a monarch.SparsityPattern; got ndarray",
    ),
    (
        lambda: reference.sparse_fftconv(np.ones(20), np.ones(3), ALL, plan=PLAN),
        ValueError,
        r"plan must have n == L=20 for a circular",
    ),
    (
        lambda: reference.sparse_fftconv(np.ones(24), np.ones(3), ALL, plan=PLAN, mode="causal"),
        ValueError,
        r"plan must have n >= 26",
    ),
    (
        lambda: reference.sparse_fftconv(np.ones(24), np.ones(3), ALL, plan=None),
        TypeError,
        r"plan must be a monarch.Plan",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_input_is_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@given(sparse_plans(), st.sampled_from(monarch.MODES), st.booleans(), st.data(), seeds)
def test_gradients_are_adjoints(
    drawn: tuple[monarch.Plan, Pattern], mode: str, shared: bool, data: st.DataObject, seed: int
) -> None:
    """y is linear in u, k and each gate: <y, dy> = <what it is linear in, its gradient>, for any change of it."""
    plan, pattern = drawn
    samples = plan.n if mode == "circular" else data.draw(st.integers(1, -(-plan.n // 2)), label="samples")
    taps = data.draw(st.integers(1, samples), label="taps")
    complex_data = plan.packing == "complex" and data.draw(st.booleans(), label="complex data")
    draws = np.random.default_rng(seed)

    def noise(*shape: int) -> NDArray[Any]:
        x = draws.standard_normal(shape)
        return x + 1j * draws.standard_normal(shape) if complex_data else x

    u, dy, pregate, postgate = (noise(3, 2, samples) for _ in range(4))
    operands = {
        "u": u,
        "k": noise(taps) if shared else noise(2, taps),
        "pregate": pregate,
        "postgate": postgate,
    }
    found = reference.sparse_fftconv_gradients(
        dy, pattern=pattern, plan=plan, mode=mode, **operands
    )._asdict()
    for name, x in operands.items():
        change = noise(*x.shape)
        y = reference.sparse_fftconv(pattern=pattern, plan=plan, mode=mode, **operands | {name: change})
        one, other = (np.vdot(a, b).real for a, b in ((y, dy), (change, found[name])))
        assert found[name].shape == x.shape and np.iscomplexobj(found[name]) == complex_data
        assert abs(one - other) <= TIGHT * plan.n * np.linalg.norm(y) * np.linalg.norm(dy) + TIGHT


def test_gradients_with_nothing_zero_are_the_dense_ones() -> None:
    plan = make_plan((4, 6, 8), "pair")
    everything = Pattern.blocks(plan, [(None,) * 3])
    u, dy, k = (np.random.default_rng(s).standard_normal((2, 3, 90)) for s in range(3))
    found = reference.sparse_fftconv_gradients(dy, u, k[0], everything, plan=plan, mode="causal")
    exact = reference.fftconv_gradients(dy, u, k[0], mode="causal")
    for name in ("u", "k"):
        assert np.allclose(getattr(found, name), getattr(exact, name), rtol=0, atol=1e-11)
    with pytest.raises(TypeError, match=r"^pattern must be a monarch\.SparsityPattern; got ndarray"):
        reference.sparse_fftconv_gradients(dy, u, k[0], everything.kept, plan=plan)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^plan must have n == L=90 for a circular"):
        reference.sparse_fftconv_gradients(dy, u, k[0], everything, plan=plan)
