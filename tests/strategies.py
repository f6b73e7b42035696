"""What the property tests draw: structure (factors, shapes, a seed, a kind of signal), never big arrays."""

from math import prod

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import monarch

KINDS = ("noise", "impulse", "constant", "tone", "huge range", "outlier", "zeros")
PRIMES = (2, 3, 5, 7, 11, 13, 17, 31, 61)


def signal(kind: str, shape: tuple[int, ...], seed: int) -> NDArray[np.float64]:
    """A real signal along the last axis; every sequence of the shape is a different one of its kind."""
    draw = np.random.default_rng(seed)
    length, lead = shape[-1], (*shape[:-1], 1)
    n = np.arange(length)
    noise = draw.standard_normal(shape)
    if kind == "noise":
        return noise
    if kind == "impulse":
        return draw.choice([-1.0, 0.5, 3.0], lead) * (n == draw.integers(0, length, lead))
    if kind == "constant":
        return np.broadcast_to(draw.uniform(0.5, 2.0, lead), shape).copy()
    if kind == "tone":
        return np.cos(2 * np.pi * (draw.integers(0, length, lead) * n / length + draw.random(lead)))
    if kind == "huge range":
        return noise * 10.0 ** draw.uniform(-60, 60, shape)
    if kind == "outlier":
        return noise + 1e6 * (n == draw.integers(0, length, lead))
    assert kind == "zeros"
    return np.zeros(shape)


kinds = st.sampled_from(KINDS)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def factor_tuples(
    draw: st.DrawFn, *, most_points: int = 4096, orders: tuple[int, int] = (1, 6)
) -> tuple[int, ...]:
    """Factors, prime ones among them, of order 1 to 6 and with a product of at most ``most_points``."""
    order = draw(st.integers(*orders), label="order")
    factors: list[int] = []
    for left in reversed(range(order)):
        room = most_points // (prod(factors) * 2**left)  # leaves at least a 2 for each factor still to come
        choices = st.one_of(st.sampled_from([p for p in PRIMES if p <= room]), st.integers(2, min(room, 64)))
        factors.append(draw(choices, label=f"factor {order - left}"))
    return tuple(draw(st.permutations(factors), label="factors"))


@st.composite
def plans(draw: st.DrawFn, *, most_points: int = 1024) -> monarch.Plan:
    """Plans of any packing."""
    factors = draw(factor_tuples(most_points=most_points), label="factors")
    packing = draw(st.sampled_from(monarch.PACKINGS), label="packing")
    return monarch.Plan(prod(factors) * (2 if packing == "half" else 1), factors, packing=packing)
