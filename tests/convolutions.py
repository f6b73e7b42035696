"""Convolutions to try, for the tests of both bodies: structure is drawn, data come from a seed."""

from math import prod
from typing import NamedTuple

import numpy as np
from hardware import HALF
from hypothesis import assume
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds, signal

import monarch
import reference
from kernels_numba.families import default_plans
from monarch import Plan

FACTORS = ((16, 16), (16, 32), (32, 16), (48, 16), (80, 16), (32, 32), (64, 32))
PRIMES = (1, 2, 3, 7, 31, 97, 127, 251, 509, 1021)


def half(x: NDArray, dtype: str) -> NDArray:
    return np.ascontiguousarray(x).astype(HALF[dtype])


def noise(shape: tuple[int, ...], dtype: str, seed: int | list[int] = 0) -> NDArray:
    return half(np.random.default_rng(seed).standard_normal(shape), dtype)


def filters(channels: int, taps: int, seed: int = 0) -> NDArray:
    return np.random.default_rng([seed, 1]).standard_normal((channels, taps)) / np.sqrt(taps)


def shifted(x: NDArray, offset: int) -> NDArray:
    """The same values, contiguous, ``offset`` elements after a 16-byte boundary."""
    room = np.zeros(x.size + 16, x.dtype)
    start = -room.ctypes.data // x.itemsize % 8 + offset
    view = room[start : start + x.size].reshape(x.shape)
    view[...] = x
    return view


def scatter(n: int) -> float:
    """How far a single sequence may lie above the mean: n errors are drawn, here are five standard deviations."""
    return 1 + 5 / np.sqrt(n)


class Case(NamedTuple):
    """One convolution to try: structure only, the data come from the seed."""

    factors: tuple[int, ...]
    mode: str
    length: int
    taps: int
    batch: int
    channels: int
    dtype: str
    gates: tuple[bool, bool]
    kind: str
    default_plan: bool
    size: float
    offset: int
    seed: int

    def data(self) -> tuple[NDArray, NDArray, dict[str, NDArray]]:
        """u, k and the gates."""
        shape = (self.batch, self.channels, self.length)
        u = half(signal(self.kind, shape, self.seed), self.dtype)
        k = self.size * filters(self.channels, self.taps, self.seed)
        gates = {}
        for name, wanted, seed in (("pregate", self.gates[0], 2), ("postgate", self.gates[1], 3)):
            if wanted:
                gate = np.random.default_rng([self.seed, seed]).standard_normal(shape)
                if self.kind == "impulse":  # made tiny, it would spread over values below fp16's normal range
                    gate = np.copysign(np.maximum(np.abs(gate), 0.25), gate)
                gates[name] = half(gate, self.dtype)
        return shifted(u, self.offset), k, {name: shifted(x, self.offset) for name, x in gates.items()}

    @property
    def plan(self) -> Plan | None:
        return None if self.default_plan else Plan(prod(self.factors), self.factors)

    @property
    def bound(self) -> float:
        """Statistics need data without structure, and enough of them."""
        coherent = self.kind != "noise" or min(self.length, self.taps) < 32
        order = len(self.factors)
        if self.default_plan:  # which may be of a higher order than the factors drawn
            found = (default_plans(halved=halved).get(prod(self.factors)) for halved in (False, True))
            order = max((order, *(plan.order for plan in found if plan)))
        bound = reference.fftconv_bound(order, self.dtype, gates=sum(self.gates), coherent=coherent)
        return bound if coherent else bound * scatter(prod(self.factors))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    factors = draw(st.sampled_from(FACTORS), label="factors")
    n = prod(factors)
    mode = draw(st.sampled_from(monarch.MODES), label="mode")
    if mode == "circular":
        length, taps = n, draw(st.one_of(st.just(n), st.integers(1, n)), label="K")
    else:
        short = st.sampled_from([p for p in PRIMES if p < n])
        length = draw(st.one_of(st.integers(1, n), short, st.just(n // 2)), label="L")
        taps = draw(st.one_of(st.integers(1, n), st.just(n - length + 1), short), label="K")
        if mode == "causal" and 2 * length - 1 <= n:
            taps += draw(st.sampled_from((0, n)), label="more taps than samples")
        assume(monarch.convolution_length(mode, length, taps) <= n)
    dtype = draw(st.sampled_from(("fp16", "bf16")), label="dtype")
    return Case(
        factors,
        mode,
        length,
        taps,
        batch=draw(st.integers(1, 5), label="B"),
        channels=draw(st.integers(1, 3), label="H"),
        dtype=dtype,
        gates=draw(st.tuples(st.booleans(), st.booleans()), label="gates"),
        kind=draw(st.sampled_from(("noise", "noise", "impulse", "constant", "tone", "zeros")), label="kind"),
        default_plan=draw(st.booleans(), label="default plan"),
        size=draw(
            st.sampled_from((1.0, 100.0, 0.1) if dtype == "fp16" else (1.0, 1e20, 1e-20)), label="size"
        ),
        offset=draw(st.sampled_from((0, 0, 1, 2, 4)), label="offset"),
        seed=draw(seeds, label="seed"),
    )


PLAIN = Case((16, 16), "circular", 256, 256, 2, 1, "fp16", (False, False), "noise", True, 1.0, 0, 0)
