"""Plans: factor lists, the choice among them, lengths, what is derived, and the errors."""

import sys
import types
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strategies import factor_tuples, plans

import monarch

# ---- factor lists ----


@given(factor_tuples(most_points=10**6))
def test_factors_survive_text(factors: tuple[int, ...]) -> None:
    assert monarch.parse_factors(monarch.format_factors(factors)) == factors


@pytest.mark.parametrize("text", ["32x16", " 32 x 16 ", "32*16", "32, 16", "32×16", "32X16", "32 16"])
def test_factors_are_read_in_many_spellings(text: str) -> None:
    assert monarch.parse_factors(text) == (32, 16)


@pytest.mark.parametrize("text", ["", "x", "32x", "32xx16", "-4x4", "4.0x4", "32x1", "0x8", "²x4", "axb"])
def test_unreadable_factors_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"text must be|factors\[\d\] must be at least 2"):
        monarch.parse_factors(text)


@lru_cache
def count_lists(points: int, multiple_of: int) -> int:
    """How many ordered factorisations there are, by the recursion over the first factor."""
    if points == 1:
        return 1
    firsts = [d for d in range(2, points + 1) if points % d == 0 and d % multiple_of == 0]
    return sum(count_lists(points // d, multiple_of) for d in firsts)


@given(st.integers(2, 3000), st.sampled_from([1, 2, 4, 16]))
def test_factor_lists_are_all_of_them(points: int, multiple_of: int) -> None:
    lists = monarch.factor_lists(points, multiple_of=multiple_of)
    assert len(set(lists)) == len(lists) == count_lists(points, multiple_of)
    assert all(prod(factors) == points for factors in lists)
    assert all(f >= 2 and f % multiple_of == 0 for factors in lists for f in factors)
    assert all((len(a), a) < (len(b), b) for a, b in pairwise(lists))


@given(st.integers(2, 3000), st.integers(1, 4), st.integers(2, 70))
def test_factor_lists_restricted(points: int, order: int, largest: int) -> None:
    everything = monarch.factor_lists(points, multiple_of=1)
    wanted = [factors for factors in everything if len(factors) == order and max(factors) <= largest]
    assert monarch.factor_lists(points, order=order, multiple_of=1, largest=largest) == wanted


def test_factor_lists_of_4096() -> None:
    expected = [(4096,), (16, 256), (32, 128), (64, 64), (128, 32), (256, 16), (16, 16, 16)]
    assert monarch.factor_lists(4096) == expected
    assert monarch.factor_lists(1023) == []


# ---- choosing ----


@pytest.mark.parametrize(
    ("points", "factors"),
    [
        (2, "2"),
        (32, "32"),
        (256, "16x16"),
        (512, "32x16"),
        (1024, "32x32"),
        (2048, "64x32"),  # 32x32x2 would leave a factor that is no multiple of 16
        (4096, "16x16x16"),
        (8192, "32x16x16"),
        (32768, "32x32x32"),
        (2**20, "32x32x32x32"),
        (2**22, "32x32x16x16x16"),
        (768, "48x16"),
        (1280, "80x16"),
        (1152, "12x12x8"),  # its only list of multiples of 16 is 1152 itself
        (1000, "10x10x10"),
        (997, "997"),
        (1994, "997x2"),
    ],
)
def test_chosen_factors(points: int, factors: str) -> None:
    assert monarch.format_factors(monarch.choose_factors(points)) == factors
    assert monarch.plan(points).factors == monarch.parse_factors(factors)
    assert monarch.plan(2 * points, packing="half").factors == monarch.parse_factors(factors)


@given(st.integers(2, 5000), st.integers(1, 6))
def test_chosen_order_is_honoured(points: int, order: int) -> None:
    lists = monarch.factor_lists(points, order=order, multiple_of=1)
    if not lists:
        with pytest.raises(ValueError, match=f"order must be between 1 and .* for {points} points"):
            monarch.plan(points, order=order)
        return
    chosen = monarch.plan(points, order=order).factors
    assert chosen in lists
    assert list(chosen) == sorted(chosen, reverse=True)
    if max(chosen) % 16:  # not all multiples of 16, so that was impossible, and it is the most balanced list
        assert monarch.factor_lists(points, order=order) == []
        assert monarch.work(chosen) == min(monarch.work(factors) for factors in lists)


def test_plan_asks_the_cost_model_about_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def best_plan(n: int, **options: Any) -> monarch.Plan:
        asked.update(options, n=n)
        return monarch.Plan(n, (16, 64))

    fake = types.ModuleType("costmodel")
    fake.best_plan = best_plan  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "costmodel", fake)
    chosen = monarch.plan(1024, gpu="h200-sxm", order=2, packing="pair", signal=512, wanted=256)
    assert chosen.factors == (16, 64)
    assert asked == dict(n=1024, gpu="h200-sxm", order=2, packing="pair", signal=512, wanted=256)


# ---- lengths ----


@lru_cache
def cheapest_length(minimum: int, multiple_of: int) -> int:
    """The definition: the least work, then the least length, over all lengths up to twice the next square."""
    step = max(2, multiple_of)
    first = monarch.factor_lists(step * step * -(-minimum // (step * step)), multiple_of=multiple_of)
    limit = min(monarch.work(factors) for factors in first if len(factors) > 1)
    best = (limit, prod(first[0]))
    for points in range(max(minimum, step * step), limit // (2 * step) + 1):
        if points % multiple_of == 0:
            for factors in monarch.factor_lists(points, multiple_of=multiple_of):
                if len(factors) > 1:
                    best = min(best, (monarch.work(factors), points))
    return best[1]


@given(st.integers(1, 6000))
def test_transform_length_is_the_cheapest(minimum: int) -> None:
    length = monarch.transform_length(minimum)
    assert length >= minimum
    assert length == cheapest_length(minimum, 16)
    assert monarch.plan(length).tensor_core


@given(st.integers(1, 120), st.sampled_from([1, 2, 3, 8]))
@example(125, 1)  # the search must not cut off too early
@example(164, 1)
def test_transform_length_for_other_multiples(minimum: int, multiple_of: int) -> None:
    assert monarch.transform_length(minimum, multiple_of=multiple_of) == cheapest_length(minimum, multiple_of)


def test_transform_lengths_are_not_only_powers_of_two() -> None:
    found = {monarch.transform_length(minimum) for minimum in range(1, 4097)}
    assert found == {256, 512, 768, 1024, 1280, 1536, 2048, 2304, 4096}
    assert monarch.transform_length(4 * 2**20 - 5) == 4 * 2**20


def aliased(mode: str, samples: int, taps: int, length: int) -> bool:
    """Whether a circle of this length confuses two lags of some wanted output and some input, by trying."""
    centre = (taps - 1) // 2 if mode == "two-sided" else 0
    legal = set(range(-centre, taps - centre))
    n = np.arange(samples)
    lags = (n[:, None] - n[None, :]).ravel()  # of an output and an input; a tap acts there if it exists
    on_circle: dict[int, set[int]] = {}
    for lag in set(lags.tolist()):
        on_circle.setdefault(lag % length, set()).add(lag)
    return any(len(met) > 1 and met & legal for met in on_circle.values())


@given(st.sampled_from(["causal", "two-sided"]), st.integers(1, 24), st.integers(1, 60))
def test_convolution_length_is_the_least(mode: str, samples: int, taps: int) -> None:
    length = monarch.convolution_length(mode, samples, taps)
    assert not aliased(mode, samples, taps, length)
    assert length == samples or aliased(mode, samples, taps, length - 1)


@given(st.integers(1, 50), st.integers(1, 50))
def test_circular_length_is_the_signal(samples: int, taps: int) -> None:
    if taps <= samples:
        assert monarch.convolution_length("circular", samples, taps) == samples
    else:
        with pytest.raises(ValueError, match=f"taps must be at most samples={samples}"):
            monarch.convolution_length("circular", samples, taps)


# ---- what a plan derives ----


@given(plans(most_points=4096))
def test_derived_quantities(plan: monarch.Plan) -> None:
    assert plan.points == prod(plan.factors) == plan.n // (2 if plan.packing == "half" else 1)
    assert plan.order == len(plan.factors)
    itemsize = np.dtype(complex).itemsize
    assert plan.strides == tuple(s // itemsize for s in np.empty(plan.factors, complex).strides)
    assert plan.sequences_per_transform == (2 if plan.packing == "pair" else 1)
    assert plan.tensor_core == (not any(f % 16 for f in plan.factors))
    shapes = [plan.dft(i).shape for i in range(plan.order)]
    assert shapes == [(f, f) for f in plan.factors]
    assert [plan.twiddle(i).shape for i in range(plan.order)] == list(
        zip(plan.factors, plan.strides, strict=True)
    )


def test_flops_of_a_pair_at_1024() -> None:
    """Counted by hand: 8 real operations per complex multiply-add, 6 per complex product."""
    plan = monarch.Plan.parse("32x32")
    assert plan.flops(0) == plan.flops(1) == 32 * 32 * 32 * 8
    assert (plan.twiddle_flops(0), plan.twiddle_flops(1), plan.pointwise_flops()) == (6144, 0, 6144)
    assert plan.convolution_flops() == 2 * (2 * 262144 + 6144) + 6144
    assert plan.with_(n=2048, packing="half").convolution_flops() == plan.convolution_flops() + 8 * 1024


@given(plans(), st.integers(1, 32), st.data())
def test_live_tiles_cover_the_signal_and_no_more(plan: monarch.Plan, tile: int, data: st.DataObject) -> None:
    samples = data.draw(st.integers(1, plan.n), label="samples")
    limited = plan.with_(signal=samples, wanted=samples)
    holds = np.arange(plan.n) < samples
    if plan.packing == "half":
        holds = holds[0::2] | holds[1::2]
    rows = np.flatnonzero(holds.reshape(plan.factors[0], -1).any(axis=1))
    assert limited.live_input_tiles(tile) == limited.live_output_tiles(tile) == rows.max() // tile + 1
    assert plan.live_input_tiles(tile) == -(-plan.factors[0] // tile)


@given(plans())
def test_plans_are_values(plan: monarch.Plan) -> None:
    assert plan == plan.with_() and hash(plan) == hash(plan.with_())
    assert plan.with_(signal=1) != plan
    assert monarch.Plan.parse(monarch.format_factors(plan.factors), packing=plan.packing) == plan
    as_numpy = monarch.Plan(np.int64(plan.n), [np.int32(f) for f in plan.factors], packing=plan.packing)  # type: ignore[arg-type]
    assert as_numpy == plan and type(as_numpy.n) is type(as_numpy.factors[0]) is int
    with pytest.raises(FrozenInstanceError):
        plan.n = 5  # type: ignore[misc]


def test_description_tells_the_plan() -> None:
    plan = monarch.Plan.parse("32x16x16", signal=4096, wanted=5000)
    assert str(plan) == "N=8192 32x16x16 pair signal=4096 wanted=5000"
    text = plan.describe()
    for part in (
        "N = 8192, order p = 3",
        "u1 + i u2",
        "32 x 16 x 16 = 8192 points; all multiples of 16",
        "stage 2   contract n2 -> k2: [16, 16] by 32 x [16, 16], 1,048,576 flops; twiddles [16, 16]",
        "slot [k1, k2, k3] holds frequency k1 + 32 k2 + 512 k3",
        "first 4096 of 8192 samples: 1 of 2 16-row tiles are live",
        "first 5000 of 8192 samples: 2 of 2 16-row tiles are live",
        f"{plan.convolution_flops():,} flops per transform",
    ):
        assert part in text
    assert "tensor cores would need padded tiles" in monarch.plan(997).describe()


# ---- errors ----

REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: monarch.Plan(1024, (32, 16)), ValueError, r"factors must multiply to 1024; got 32x16 = 512"),
    (lambda: monarch.Plan(1024, (32, 32), packing="half"), ValueError, r"multiply to 512 \(n / 2"),
    (lambda: monarch.Plan(15, (5, 3), packing="half"), ValueError, r"n must be even; use n=16"),
    (lambda: monarch.Plan(16, (4, 4), packing="real"), ValueError, r"packing must be one of .*got 'real'"),
    (lambda: monarch.Plan(16, ()), ValueError, r"factors must hold at least one"),
    (lambda: monarch.Plan(16, (16, 1)), ValueError, r"factors\[1\] must be at least 2"),
    (lambda: monarch.Plan(16, (-4, -4)), ValueError, r"factors\[0\] must be at least 2"),
    (lambda: monarch.Plan(16, (4.0, 4)), TypeError, r"factors\[0\] must be an integer"),  # type: ignore[arg-type]
    (lambda: monarch.Plan(16, "4x4"), TypeError, r"monarch.parse_factors"),  # type: ignore[arg-type]
    (lambda: monarch.Plan(16, 16), TypeError, r"factors must be a sequence"),  # type: ignore[arg-type]
    (lambda: monarch.Plan(0, (2,)), ValueError, r"n must be at least 2 .*got 0"),
    (lambda: monarch.Plan(True, (2,)), TypeError, r"n must be an integer"),
    (lambda: monarch.Plan(16, (4, 4), signal=17), ValueError, r"signal must be at most n=16"),
    (lambda: monarch.Plan(16, (4, 4), wanted=0), ValueError, r"wanted must be at least 1"),
    (lambda: monarch.plan(0), ValueError, r"n must be at least 1 .*got 0"),
    (lambda: monarch.plan(1), ValueError, r"n=1 leaves no factor"),
    (lambda: monarch.plan(7, packing="half"), ValueError, r"needs an even n; got 7"),
    (lambda: monarch.plan(2, packing="half"), ValueError, r"n=2 leaves no factor"),
    (lambda: monarch.plan(16, gpu="x", factors=(4, 4)), ValueError, r"not both"),
    (lambda: monarch.plan(16, order=3, factors=(4, 4)), ValueError, r"order must be 2"),
    (lambda: monarch.plan(12, order=4), ValueError, r"order must be between 1 and 3 for 12 points"),
    (lambda: monarch.plan(16, packing="real"), ValueError, r"packing must be one of"),
    (lambda: monarch.plan(64).dft(1), ValueError, r"stage must be below the order"),
    (lambda: monarch.plan(64).twiddle(-3), ValueError, r"stage must be at least 0"),
    (lambda: monarch.factor_lists(1), ValueError, r"points must be at least 2"),
    (lambda: monarch.transform_length(0), ValueError, r"minimum must be at least 1"),
    (lambda: monarch.convolution_length("same", 4, 2), ValueError, r"mode must be one of .*got 'same'"),
    (lambda: monarch.convolution_length("causal", 0, 2), ValueError, r"samples must be at least 1"),
    (lambda: monarch.convolution_length("causal", 4, 0), ValueError, r"taps must be at least 1"),
    (lambda: monarch.place_filter(np.ones(5), 8, 11, mode="causal"), ValueError, r"at least 12 .*alias"),
    (lambda: monarch.parse_factors(1024), TypeError, r"text must be a string"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_input_is_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@given(plans(), st.integers(2, 5000))
def test_length_and_factors_must_agree(plan: monarch.Plan, n: int) -> None:
    assume(n != plan.n)
    with pytest.raises(ValueError, match=r"factors must multiply|n must be even"):
        plan.with_(n=n)


def test_this_is_not_another_monarch() -> None:
    assert monarch.__distribution__ == "monarch-numba"
    assert set(monarch.__all__) <= set(dir(monarch))
