"""Equation 2 of FlashFFTConv: the closed form, the three features of Figure 4, and integer factors."""

import math

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from costmodel import equation2
from costmodel.equation2 import Constants, constants, cost
from monarch import factor_lists

A100 = constants("a100-sxm-40gb")
LENGTHS = [2**e for e in range(8, 23)]
CURVES = equation2.curve((2, 3, 4), LENGTHS, A100)


def per_token(order: int, n: int, rates: Constants = A100) -> float:
    return equation2.curve((order,), (n,), rates)[order][0]


def test_the_constants_are_the_papers():
    assert (A100.sigma_h, A100.sigma_s, A100.tau_m, A100.tau_g) == (1.35e12, 9.5e12, 234e12, 17.6e12)
    assert A100.mu == 16


def test_cost_of_one_case_by_hand():
    products = 64 * 768 * 2 * 16 * 1024 * 32 / 234e12
    traffic = 64 * 768 * 2 * 4 * 1024 / 9.5e12
    assert cost((32, 32), A100, batch=64, channels=768) == pytest.approx(products + traffic, rel=1e-12)
    assert 1e-4 < products + traffic < 1e-3  # seconds: a prefix off by a thousand cannot pass


def test_a_factor_under_16_leaves_the_tensor_cores():
    small, large = equation2.stage_cost((8, 32), 0, A100)[0], equation2.stage_cost((16, 16), 0, A100)[0]
    assert small == pytest.approx(16 * 256 * 8 / 17.6e12, rel=1e-12)
    assert large == pytest.approx(16 * 256 * 16 / 234e12, rel=1e-12)
    assert small > 6 * large


# Figure 4, feature 1: high orders are dear at short lengths, because their factors are under 16.


@pytest.mark.parametrize("n", [256, 512, 1024])
def test_high_orders_are_dear_at_short_lengths(n):
    assert per_token(2, n) < per_token(3, n) < per_token(4, n)


def test_they_are_dear_because_of_small_factors():
    """With tensor cores for every factor the same orders would be no dearer than p = 2 plus their traffic."""
    all_tensor = Constants(**{**A100.__dict__, "mu": 2})
    assert per_token(3, 512) > per_token(2, 512)
    assert per_token(3, 512, all_tensor) < per_token(2, 512, all_tensor)
    assert per_token(4, 256) > 3 * per_token(2, 256)


# Features 2 and 3: order 2, and later order 3, bump where the sequence leaves on-chip memory.


def bump(order: int, n: int) -> float:
    """What leaving the chip adds to the cost per token, relative to staying."""
    factors = equation2.best_factors(n, order, A100)
    roomy = Constants(**{**A100.__dict__, "capacity_bytes": math.inf})
    return cost(factors, A100) / cost(factors, roomy) - 1


def first_bump(order: int) -> int:
    return next(n for n in LENGTHS if bump(order, n) > 0)


def test_order_2_bumps_and_then_order_3():
    assert first_bump(2) == 32 * 1024
    assert first_bump(3) == 64 * 1024
    assert bump(2, 32 * 1024) > 0.08
    assert bump(3, 64 * 1024) > 0.20


@pytest.mark.parametrize(("order", "n"), [(2, 32 * 1024), (3, 64 * 1024)])
def test_the_bump_shows_in_the_curve(order, n):
    """The step into the bump is steeper than the steps at the same balance of factors, 2^p times away."""

    def step(at: int) -> float:
        return per_token(order, at) / per_token(order, at // 2)

    assert step(n) > 1.05 * step(n // 2**order)
    assert step(n) > 1.05 * step(n * 2**order)


def test_order_3_takes_over_before_order_2_bumps_and_order_4_when_order_3_does():
    best = {n: min((2, 3, 4), key=lambda p: CURVES[p][i]) for i, n in enumerate(LENGTHS)}
    assert [n for n in LENGTHS if best[n] == 2] == [256, 512, 1024, 2048]
    assert [n for n in LENGTHS if best[n] == 3] == [4096, 8192, 16384, 32768]
    assert all(best[n] == 4 for n in LENGTHS if n >= 65536)


def test_h200_figure_at_1024():
    """About 114 us with rough constants, a kernel takes 74: this model knows no packing."""
    microseconds = cost((32, 32), constants("h200-sxm"), batch=64, channels=768) * 1e6
    assert microseconds == pytest.approx(114, rel=0.05)


# Integers.


def test_a_root_in_floating_point_is_refused():
    root = 4096 ** (1 / 3)
    assert root < 16  # the trap
    with pytest.raises(TypeError, match=r"15\.99.*accepted: integers"):
        cost((root, root, root), A100)
    assert equation2.best_factors(4096, 3, A100) == (16, 16, 16)


def test_the_root_would_flip_the_decision():
    wrong = 3 * (16 * 4096 * 16 / A100.tau_g + 4 * 4096 / A100.sigma_s)
    right = cost((16, 16, 16), A100)
    order_2 = cost((64, 64), A100)
    assert right < order_2 < wrong


@given(st.integers(2, 4), st.integers(8, 16))
def test_best_list_is_the_cheapest_of_all(order, exponent):
    n = 2**exponent
    best = cost(equation2.best_factors(n, order, A100), A100)
    assert all(best <= cost(f, A100) * (1 + 1e-12) for f in factor_lists(n, order=order, multiple_of=1))


def test_no_list_of_that_order():
    assert equation2.best_factors(1009, 2, A100) is None
    assert math.isnan(equation2.curve((2,), (1009,), A100)[2][0])


# sympy says the same as plain Python.


@given(st.lists(st.integers(2, 64), min_size=1, max_size=5), st.integers(1, 64), st.integers(1, 768))
def test_symbolic_form_equals_the_closed_form(factors, batch, channels):
    values = equation2.substitutions(factors, A100, batch=batch, channels=channels)
    symbolic = equation2.evaluate(equation2.symbolic(len(factors)), values)
    assert symbolic == pytest.approx(cost(factors, A100, batch=batch, channels=channels), rel=1e-12)


def test_symbolic_form_is_equation_2():
    b, h = sympy.symbols("B H", positive=True)
    n1, n2 = sympy.symbols("N1 N2", positive=True, integer=True)
    g1, g2, o1, o2 = sympy.symbols("gamma1 gamma2 omega1 omega2", positive=True)
    n = n1 * n2
    by_hand = b * h * (16 * n * n1 / g1 + 4 * n / o1 + 16 * n * n2 / g2 + 4 * n / o2)
    assert sympy.simplify(equation2.symbolic(2) - by_hand) == 0


def test_explanation_has_every_term_and_the_sum():
    text = equation2.explain((8, 16, 32), A100, batch=64, channels=768)
    total = cost((8, 16, 32), A100, batch=64, channels=768) * 1e6
    assert text.count("products:") == text.count("traffic:") == 3
    assert "tau_G, no tensor cores: N1 < 16" in text
    assert f"Sum: {total:.4g} us" in text
    lines = [line for line in text.splitlines() if line.startswith("  stage")]
    terms = [float(line.rsplit(" = ", 1)[1].removesuffix(" us")) for line in lines]
    assert sum(terms) == pytest.approx(total, rel=0.01)


# What stays on chip.


def test_on_chip_counts_the_sequence_and_its_matrices():
    size = 4 * 128 * 128 + 4 * 128 * 128  # the sequence, and one matrix that both stages share
    assert equation2.on_chip((128, 128), 0, capacity_bytes=size)
    assert not equation2.on_chip((128, 128), 0, capacity_bytes=size - 1)
    assert equation2.on_chip((128, 128), 1, capacity_bytes=4 * 128 + 4 * 128 * 128)


def test_constants_of_a_data_sheet_gpu_are_below_its_peaks():
    h100 = constants("h100-sxm")
    assert 0.8 * 3.35e12 < h100.sigma_h < 3.35e12
    assert h100.sigma_h < h100.sigma_s < 33.5e12
    assert 0.5 * 989.4e12 < h100.tau_m < 989.4e12
    assert 0.8 * 66.9e12 < h100.tau_g < 66.9e12
