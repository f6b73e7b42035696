"""The fp32 convolution, on whichever body runs here: its meaning, its error bound, its bad inputs."""

from math import prod
from typing import Any, NamedTuple

import numpy as np
import pytest
from convolutions import PRIMES, filters, scatter, shifted
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds, signal

import kernels_numba
import monarch
import reference
from kernels_numba import (
    FFTConv,
    families,
    float_spec,
    fused_float,
    fused_rounds,
    prepare_filter,
    rounds_spec,
)
from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.plan_choice import choose_plan
from monarch import Plan

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")

SHORT = tuple(f for f in fused_float.FACTORS if prod(f) <= 1024)
ROUNDS = tuple(f for f in fused_rounds.FACTORS if prod(f) <= 6000)


def single(x: NDArray) -> NDArray[np.float32]:
    return np.ascontiguousarray(x, np.float32)


def noise(shape: tuple[int, ...], seed: int | list[int] = 0) -> NDArray[np.float32]:
    return single(np.random.default_rng(seed).standard_normal(shape))


class Case(NamedTuple):
    """One convolution to try: structure only, the data come from the seed."""

    plan: Plan
    mode: str
    length: int
    taps: int
    batch: int = 2
    channels: int = 1
    gates: tuple[bool, bool] = (False, False)
    kind: str = "noise"
    size: float = 1.0
    offset: int = 0
    seed: int = 0

    def data(self) -> tuple[NDArray, NDArray, dict[str, NDArray]]:
        """u, k and the gates."""
        shape = (self.batch, self.channels, self.length)
        u = shifted(single(signal(self.kind, shape, self.seed)), self.offset)
        k = self.size * filters(self.channels, self.taps, self.seed)
        names = [name for name, on in zip(("pregate", "postgate"), self.gates, strict=True) if on]
        return (
            u,
            k,
            {name: shifted(noise(shape, [self.seed, i]), self.offset) for i, name in enumerate(names)},
        )

    @property
    def bound(self) -> float:
        """Statistics need data without structure, and enough of them."""
        coherent = self.kind != "noise" or min(self.length, self.taps) < 32
        bound = reference.fft32_bound(self.plan.n, gates=sum(self.gates), coherent=coherent)
        return bound if coherent else bound * scatter(self.plan.n)

    def check(self, y: NDArray, u: NDArray, k: NDArray, gates: dict[str, NDArray]) -> None:
        exact = reference.fftconv(u, k, mode=self.mode, **gates)
        found = reference.relative_error(y, exact, u, k, pairs=self.plan.packing == "pair", **gates)
        assert found.worst <= self.bound, (found, self.bound)


def plan_of(factors: tuple[int, ...], packing: str = "pair") -> Plan:
    return Plan(prod(factors) * (2 if packing == "half" else 1), factors, packing=packing)


@st.composite
def cases(draw: st.DrawFn, lists: tuple[tuple[int, ...], ...] = SHORT) -> Case:
    plan = plan_of(draw(st.sampled_from(lists), label="factors"), draw(st.sampled_from(("pair", "half"))))
    n = plan.n
    mode = draw(st.sampled_from(monarch.MODES), label="mode")
    if mode == "circular":
        length, taps = n, draw(st.one_of(st.just(n), st.integers(1, n)), label="K")
    else:
        short = st.sampled_from(PRIMES)
        length = min(n, draw(st.one_of(st.integers(1, n), short, st.just(n // 2)), label="L"))
        most = n - length + 1 if mode == "causal" else n - (length + 1) // 2
        taps = min(max(1, most), draw(st.one_of(st.integers(1, n), short), label="K"))
        while monarch.convolution_length(mode, length, taps) > n:
            taps = max(1, taps // 2)
    return Case(
        plan,
        mode,
        length,
        taps,
        batch=draw(st.integers(1, 4), label="B"),
        channels=draw(st.integers(1, 3), label="H"),
        gates=draw(st.tuples(st.booleans(), st.booleans()), label="gates"),
        kind=draw(st.sampled_from(("noise", "noise", "impulse", "constant", "tone", "zeros")), label="kind"),
        size=draw(st.sampled_from((1.0, 1e20, 1e-20)), label="size"),
        offset=draw(st.sampled_from((0, 0, 1, 2, 3)), label="offset"),
        seed=draw(seeds, label="seed"),
    )


PAIR, HALF = plan_of((16, 16)), plan_of((16, 16), "half")


# ---- meaning and accuracy ------------------------------------------------------------------------------------
@given(cases())
@example(Case(PAIR, "circular", 256, 256))
@example(Case(PAIR, "causal", 1, 1, batch=1))
@example(Case(PAIR, "causal", 127, 129, batch=3, gates=(True, True), offset=1))
@example(Case(HALF, "circular", 512, 512, batch=3))
@example(Case(HALF, "causal", 255, 100, gates=(True, True), offset=1))
@example(Case(HALF, "two-sided", 256, 77, gates=(False, True)))
def test_within_the_bound_of_the_reference(case: Case) -> None:
    u, k, gates = case.data()
    y = kernels_numba.fftconv(u, k, mode=case.mode, plan=case.plan, **gates)
    assert y.shape == u.shape and y.dtype == np.float32
    case.check(y, u, k, gates)


@settings(max_examples=12)
@given(cases(ROUNDS))
@example(Case(plan_of((12, 16, 16), "half"), "causal", 3071, 3000, batch=3, gates=(True, True), offset=1))
@example(Case(plan_of((20, 16, 16)), "two-sided", 2500, 77, batch=3, gates=(True, False)))
def test_points_in_shared_memory_within_the_bound(case: Case) -> None:
    """Transforms whose threads do their butterflies in rounds."""
    u, k, gates = case.data()
    y = kernels_numba.fftconv(u, k, mode=case.mode, plan=case.plan, **gates)
    case.check(y, u, k, gates)


@pytest.mark.parametrize("packing", ["pair", "half"])
@pytest.mark.parametrize(
    "factors",
    [*fused_float.FACTORS, (16, 8, 9, 16), (16, 8, 12, 16), (16, 16, 8, 14)],
    ids=monarch.format_factors,
)
def test_every_list_of_factors(factors: tuple[int, ...], packing: str) -> None:
    plan = plan_of(factors, packing)
    case = Case(plan, "circular", plan.n, plan.n, batch=1)
    u, k, _ = case.data()
    y = kernels_numba.fftconv(u, k, plan=plan)
    bound = reference.fft32_bound(plan.n) * scatter(plan.n)
    reference.check_close(y, reference.fftconv(u, k), u, k, bound=bound)


@pytest.mark.parametrize("factors", SHORT, ids=monarch.format_factors)
def test_many_sequences_together(factors: tuple[int, ...]) -> None:
    """The bound speaks of the mean, and it is not loose: half of it would be exceeded. Wrong results are noticed."""
    n = prod(factors)
    u, k = noise((8, 4, n)), filters(4, n)
    exact = reference.fftconv(u, k)
    y = kernels_numba.fftconv(u, k, plan=plan_of(factors))
    found = reference.relative_error(y, exact, u, k, pairs=True)
    bound = reference.fft32_bound(n)
    assert bound / 2 < found.overall <= bound
    for wrong in (np.roll(y, 1, axis=-1), y[::-1], y[:, ::-1], np.zeros_like(y), -y, y.astype(np.float16)):
        with pytest.raises(AssertionError):
            reference.check_close(wrong, exact, u, k, bound=bound * scatter(n), pairs=True)


def test_an_impulse_brings_out_the_filter() -> None:
    where = [0, 1, 131, 255]
    u = np.zeros((4, 1, 256), np.float32)
    u[np.arange(4), 0, where] = 1
    k = filters(1, 256)
    bound = reference.fft32_bound(256, coherent=True) * np.linalg.norm(k)
    y = kernels_numba.fftconv(u, k).astype(float)
    for i, position in enumerate(where):
        assert np.linalg.norm(y[i, 0] - np.roll(k[0], position)) <= bound


@settings(max_examples=20)
@given(seed=seeds, factors=st.sampled_from(SHORT), power=st.sampled_from((-40, -1, 1, 40)))
def test_scaling_by_powers_of_two_and_negation_are_exact(
    seed: int, factors: tuple[int, ...], power: int
) -> None:
    plan = plan_of(factors)
    u, k = noise((2, 1, plan.n), seed), filters(1, plan.n, seed)
    y = kernels_numba.fftconv(u, k, plan=plan)
    assert (kernels_numba.fftconv(np.ldexp(u, power), k, plan=plan) == np.ldexp(y, power)).all()
    assert (kernels_numba.fftconv(u, k * 2.0**power, plan=plan) == np.ldexp(y, power)).all()
    assert (kernels_numba.fftconv(-u, k, plan=plan) == -y).all()


@settings(max_examples=25)
@given(case=cases(), pairs=st.integers(2, 3))
def test_pairs_and_channels_do_not_meet(case: Case, pairs: int) -> None:
    """A pair of sequences gets the same bits alone as among others; on a grid of any size."""
    case = case._replace(batch=2 * pairs, kind="noise", offset=0)
    u, k, gates = case.data()
    y = kernels_numba.fftconv(u, k, mode=case.mode, plan=case.plan, **gates)
    channel, first = case.channels - 1, 2 * (pairs - 1)
    part = (slice(first, first + 2), slice(channel, channel + 1))
    spectrum = prepare_filter(k[channel], length=case.length, mode=case.mode, dtype="fp32", plan=case.plan)
    alone = FFTConv(spectrum, batch=2)(u[part].copy(), **{name: x[part].copy() for name, x in gates.items()})
    assert (y[part].view(np.int32) == alone.view(np.int32)).all()


# ---- values that are not finite ------------------------------------------------------------------------------
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("plan", [PAIR, HALF, plan_of((8, 8, 8))], ids=str)
def test_what_is_not_finite_stays_where_it_is(plan: Plan, bad: float) -> None:
    """In its pair, or with half-length packing in its sequence, though several share a block; and in its channel."""
    u, k = noise((5, 2, plan.n)), filters(2, plan.n)
    clean = kernels_numba.fftconv(u, k, plan=plan)
    dirty = u.copy()
    dirty[2, 1, 77] = bad
    y = kernels_numba.fftconv(dirty, k, plan=plan)
    assert not np.isfinite(y[2, 1]).any()
    same = np.ones(u.shape[:2], bool)
    same[2 : 3 if plan.packing == "half" else 4, 1] = False
    assert (y[same] == clean[same]).all()
    k[1, 5] = bad
    y = kernels_numba.fftconv(u, k, plan=plan)
    assert not np.isfinite(y[:, 1]).any() and (y[:, 0] == clean[:, 0]).all()


# ---- shapes, outputs, plans ----------------------------------------------------------------------------------
@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("length", [256, 100])
def test_out(batch: int, length: int) -> None:
    """Every element of the output is written, and no other; in place too."""
    u, k = noise((batch, 2, length)), filters(2, 100)
    mode = "circular" if length == 256 else "causal"
    expected = kernels_numba.fftconv(u, k, mode=mode)
    room = np.full(u.size + 32, np.nan, np.float32)
    out = room[16:-16].reshape(u.shape)
    assert kernels_numba.fftconv(u, k, mode=mode, out=out) is out
    assert (out == expected).all()
    assert np.isnan(room[:16]).all() and np.isnan(room[-16:]).all()
    assert kernels_numba.fftconv(u, k, mode=mode, out=u) is u
    assert (u == expected).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_filters_of_any_float_type(dtype: Any) -> None:
    u, k = noise((2, 1, 256)), filters(1, 256).astype(dtype)
    assert (kernels_numba.fftconv(u, k) == kernels_numba.fftconv(u, k.astype(np.float64))).all()
    assert (
        kernels_numba.fftconv(u[0], k[0], pregate=u[0]) == kernels_numba.fftconv(u[:1], k, pregate=u[:1])[0]
    ).all()


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_the_grid_does_not_change_the_result(blocks: int) -> None:
    convolve = FFTConv(prepare_filter(filters(3, 512), length=512, dtype="fp32"), batch=5)
    u = noise((5, 3, 512))
    y, counters = convolve.run_cpu(u, blocks=blocks)
    assert (y == convolve.run_cpu(u, blocks=1)[0]).all()
    assert 1 <= counters.blocks <= blocks


@pytest.mark.parametrize(
    ("length", "taps"), [(1, 1), (5, 5), (97, 97), (255, 1), (300, 299), (301, 7), (2049, 9)]
)
def test_any_circle(length: int, taps: int) -> None:
    u, k = noise((3, 1, length), length), filters(1, taps)
    spectrum = prepare_filter(k, length=length, dtype="fp32")
    case = Case(spectrum.plan, "circular", length, taps)
    case.check(FFTConv(spectrum, batch=3)(u), u, k, {})


def test_wide_access_only_where_it_is_aligned() -> None:
    """Half-length packing: two samples at once if rows begin at even addresses."""
    for length, low_bits, wide in ((512, 0, True), (512, 8, True), (512, 4, False), (511, 0, False)):
        mode = "circular" if length == 512 else "causal"
        spectrum = prepare_filter(np.ones(1), length=length, mode=mode, dtype="fp32", plan=HALF)
        assert FFTConv(spectrum, batch=1).spec(low_bits).wide == wide


@pytest.mark.parametrize(("capacity", "longest"), [(99, 16384), (163, 36864), (227, 57344)])
def test_default_plans(capacity: int, longest: int) -> None:
    """Every power of two that a block's shared memory allows; one sequence where a pair does not fit."""
    plans = families.default_plans(capacity * 1024, dtype="fp32")
    assert {2**i for i in range(8, 16) if 2**i <= longest} <= set(plans) and max(plans) == longest
    for n, plan in plans.items():
        family = families.family_of(plan, "fp32")
        assert plan.n == n and family is (fused_float if n <= 32768 else fused_rounds)
        assert family.make_spec(plan).shared_bytes <= capacity * 1024
    assert plans[longest].packing == "half" and plans[4096].packing == "pair"
    whole = families.default_plans(dtype="complex64")
    assert max(whole) == 28672 and {plan.packing for plan in whole.values()} == {"complex"}


def test_which_lengths_have_outer_stages() -> None:
    """fp32 sequences beyond what shared memory holds; halves that are multiplied in fp32 beyond what registers hold."""
    here = kernels_numba.device()
    for sequences, n, expected in (
        ("fp32", 49152, False),
        ("fp32", 65536, True),
        ("fp16", 49152, True),
        ("fp16", 65536, True),
    ):
        how = {"plan": None, "dtype": "fp32", "sequences": sequences}
        plan, outer = choose_plan("circular", n, 9, where=here, **how)
        assert plan.n == n and outer == expected, (sequences, plan)


def test_shapes() -> None:
    """Threads hold every point of every stage once, and few accesses meet on a bank."""
    for factors in fused_float.FACTORS:
        shape = float_spec.shape_of(factors)
        for stage in shape.stages:
            constants = np.array(shape.constants(stage, stage.radix))
            first = shape.place(stage, np.arange(shape.threads), 0)
            points = first[:, None] + constants
            assert sorted(points.reshape(-1)) == list(range(shape.points))
            places = shape.at(points)
            assert (places == shape.at(first)[:, None] + shape.at(constants)).all()
        assert places.max() < shape.padding[2]
        assert shape.threads * shape.held == shape.points
        assert 8 * shape.together * shape.padding[2] <= LARGEST_SHARED_BYTES


def test_shapes_in_shared_memory() -> None:
    """Every stage's butterflies hold every point once, at constant distances; conflicts where nothing else fits."""
    for factors in fused_rounds.FACTORS:
        shape = rounds_spec.shape_of(factors)
        for stage in shape.stages:
            butterfly = np.arange(shape.points // stage.radix)
            constants = np.array(shape.constants(stage, stage.radix))
            points = shape.place(stage, butterfly, 0)[:, None] + constants
            assert sorted(points.reshape(-1)) == list(range(shape.points))
            first = shape.at(points[:, :1])
            assert (shape.at(points) == first + shape.at(constants)).all()
            assert butterfly.size % 32 == 0
        assert 8 * shape.padding[2] <= LARGEST_SHARED_BYTES and shape.padding[2] >= shape.at(shape.points - 1)
        assert (shape._conflicts(*shape.padding) == 0) == (factors != (16, 16, 8, 14))
        rows = rounds_spec.pairs_of_rows(factors)
        assert sorted(rows.reshape(-1)) == list(range(shape.points // factors[-1]))


@pytest.mark.parametrize(
    ("factors", "why"),
    [
        ((16, 16), "3 or 4 factors"),
        ((40, 16, 16), "factors to 32"),
        ((16, 16, 32), "an even one to 16"),
        ((16, 16, 16, 7), "an even one to 16"),
        ((5, 6, 4), "do not fill warps"),
        ((16, 16, 8, 16), "32768 points of 8 bytes do not fit into 232448 bytes"),
    ],
)
def test_factors_that_do_not_fit_into_shared_memory(factors: tuple[int, ...], why: str) -> None:
    with pytest.raises(ValueError, match=f"^plan: the fp32 kernel cannot run .*{why}"):
        rounds_spec.Shape(factors)


# ---- bad input -----------------------------------------------------------------------------------------------
U = np.zeros((2, 3, 256), np.float32)


@pytest.mark.parametrize(
    ("factors", "why"),
    [
        ((256,), "2 to 4 factors"),
        ((4, 4, 4, 4, 4), "2 to 4 factors"),
        ((16, 48), "48 points, at most 32"),
        ((32, 32, 32), "32768 points, at most 16384"),
        ((4, 4, 4, 64), "64 points, at most 32"),
        ((5, 5), "distances"),
        ((3, 16), "48 points"),
    ],
)
def test_factors_that_no_threads_suit(factors: tuple[int, ...], why: str) -> None:
    with pytest.raises(ValueError, match=f"^plan: the fp32 kernel cannot run .*({why})"):
        float_spec.Shape(factors)


BAD: dict[str, tuple[type[Exception], str, Any]] = {
    "gate of another type": (
        TypeError,
        "^pregate: expected fp32.*got fp16; convert",
        lambda: kernels_numba.fftconv(U, np.ones(3), pregate=U.astype(np.float16)),
    ),
    "spectrum of another type": (
        TypeError,
        "^u: expected fp16.*got fp32",
        lambda: kernels_numba.fftconv(U, prepare_filter(np.ones((3, 5)), length=256)),
    ),
    "too long": (
        ValueError,
        "^u: a causal convolution of 16777216 samples with 9 taps needs 16777224 points; .*fp32 take up to 16777216",
        lambda: prepare_filter(np.ones(9), length=2**24, mode="causal", dtype="fp32"),
    ),
    "plan of the half-precision kernels": (
        ValueError,
        "^plan: no fused kernel runs .* in fp32; lists of 768 points with this packing: 12x8x8; "
        "accepted with packing 'pair' 16x16",
        lambda: kernels_numba.fftconv(
            np.zeros((1, 1, 768), np.float32), np.ones(3), plan=Plan(768, (48, 16))
        ),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    kind, message, attempt = BAD[name]
    with pytest.raises(kind, match=message):
        attempt()
