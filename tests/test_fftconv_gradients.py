"""Gradients of the FFT convolution: the sums, adjoint identities, finite differences, and the errors."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from imitation import half, imitated_gradients
from numpy.typing import NDArray
from strategies import factor_tuples, kinds, plans, seeds, signal

import monarch
import reference

Array = NDArray[Any]
TIGHT = 1e-12
MODES = st.sampled_from(monarch.MODES)


@dataclass(frozen=True)
class Case:
    """A convolution's shapes; `Case(...)` of a failing example can be pasted into ``@example``."""

    mode: str
    u: tuple[int, ...]
    k: tuple[int, ...]
    gates: tuple[str, ...] = ()
    plan: monarch.Plan | None = None
    complex: tuple[str, ...] = ()

    @property
    def operands(self) -> tuple[str, ...]:
        return ("u", "k", *self.gates)

    def data(
        self, seed: int, kind: str = "noise", filter_kind: str = "noise"
    ) -> tuple[Array, dict[str, Array]]:
        """Dy and the operands by name."""

        def made(name: str, kind: str, number: int) -> Array:
            shape = self.k if name == "k" else self.u
            x: Array = signal(kind, shape, seed + number)
            imaginary = name in self.complex or (name == "dy" and self.complex)
            return x + 1j * signal("noise", shape, seed + number + 10) if imaginary else x

        of = {"u": kind, "k": filter_kind, "dy": kind}
        made_all = {
            name: made(name, of.get(name, "noise"), i) for i, name in enumerate(("dy", *self.operands))
        }
        return made_all.pop("dy"), made_all

    def forward(self, operands: dict[str, Array]) -> Array:
        return reference.direct_fftconv(**operands, mode=self.mode)

    def gradients(self, dy: Array, operands: dict[str, Array], *, direct: bool = False) -> dict[str, Array]:
        if direct:
            found = reference.direct_fftconv_gradients(dy, **operands, mode=self.mode)
        else:
            found = reference.fftconv_gradients(dy, **operands, mode=self.mode, plan=self.plan)
        assert all((value is None) == (name not in operands) for name, value in found._asdict().items())
        return {name: value for name, value in found._asdict().items() if value is not None}


def gates_of(draw: st.DrawFn) -> tuple[str, ...]:
    return draw(st.sampled_from([(), ("pregate",), ("postgate",), ("pregate", "postgate")]), label="gates")


@st.composite
def cases(draw: st.DrawFn, *, longest: int = 40) -> Case:
    mode = draw(MODES, label="mode")
    length = draw(st.integers(1, longest), label="L")
    taps = draw(st.integers(1, length if mode == "circular" else 2 * longest), label="K")
    u = draw(st.sampled_from([(length,), (3, length), (3, 2, length), (2, 1, 3, length)]), label="shape of u")
    k = draw(st.sampled_from([(taps,), (u[-2], taps)]), label="shape of k") if len(u) > 1 else (taps,)
    return Case(mode, u, k, gates_of(draw))


@st.composite
def planned_cases(draw: st.DrawFn) -> Case:
    """A plan of any packing, order 1 to 6, with L and K that it holds."""
    factors = draw(factor_tuples(most_points=600), label="factors")
    packing = draw(st.sampled_from(monarch.PACKINGS), label="packing")
    n = prod(factors) * (2 if packing == "half" else 1)
    mode = draw(MODES, label="mode")
    if mode == "circular" and draw(st.booleans(), label="exact length"):
        length = n
        taps = draw(st.integers(1, n), label="K")
    else:
        length = draw(st.integers(1, max(1, n // 2)), label="L")
        most = n - length + 1 if mode != "two-sided" else 2 * (n - length) + 1
        taps = draw(st.integers(1, min(most, length) if mode == "circular" else most), label="K")
    lead = draw(st.sampled_from([(), (2,), (3, 2), (2, 2, 2)]), label="batch and channels")
    k = draw(st.sampled_from([(taps,), (*lead[-1:], taps)]), label="shape of k")
    of_complex: tuple[str, ...] = ()
    gates = gates_of(draw)
    if packing == "complex":
        of_complex = tuple(draw(st.sets(st.sampled_from(["u", "k", *gates])), label="complex"))
    return Case(mode, (*lead, length), k, gates, monarch.Plan(n, factors, packing=packing), of_complex)


def norm(x: Array) -> float:
    return float(np.linalg.norm(x))


def sizes(case: Case, dy: Array, operands: dict[str, Array]) -> dict[str, float]:
    """What the terms of each gradient could add up to."""
    largest = {name: float(np.max(np.abs(operands[name]))) for name in case.gates}
    of = {"u": norm(operands["u"]), "k": float(np.sum(np.abs(operands["k"]))), **largest}
    return {name: norm(dy) * prod(size for other, size in of.items() if other != name) for name in operands}


def assert_same(got: dict[str, Array], expected: dict[str, Array], size: dict[str, float]) -> None:
    assert got.keys() == expected.keys()
    for name, value in got.items():
        assert value.shape == expected[name].shape and value.dtype == expected[name].dtype
        worst = np.max(np.abs(value - expected[name]))
        assert worst <= TIGHT * size[name], f"{name} is off by {worst} where the terms are {size[name]}"


# ---- the same by other ways ----


def as_written(case: Case, dy: Array, operands: dict[str, Array]) -> dict[str, Array]:
    """The transposed definition, index by index."""
    u, k = operands["u"], operands["k"]
    v, w = (operands.get(name, np.ones(u.shape)) for name in ("pregate", "postgate"))
    found = {name: np.zeros(operands[name].shape, operands[name].dtype) for name in operands}
    length, taps = u.shape[-1], k.shape[-1]
    centre = (taps - 1) // 2 if case.mode == "two-sided" else 0
    for (*lead, n), j in ((at, j) for at in np.ndindex(u.shape) for j in range(taps)):
        m = (n - j) % length if case.mode == "circular" else n + centre - j
        if not 0 <= m < length:
            continue
        # y[n] += w[n] k[j] v[m] u[m]: every factor gets dy times the others
        to, of, tap = (*lead, n), (*lead, m), (*lead[len(lead) + 1 - k.ndim :], j)
        factors = {"postgate": (to, w[to]), "k": (tap, k[tap]), "pregate": (of, v[of]), "u": (of, u[of])}
        for name, total in found.items():
            others = np.prod([value for other, (_, value) in factors.items() if other != name])
            term = dy[to] * np.conj(others)
            total[factors[name][0]] += term if np.iscomplexobj(total) else term.real
    return found


@given(cases(longest=6), seeds, st.sets(st.sampled_from(["u", "k", "pregate", "postgate"])))
def test_direct_sums_are_the_definition(case: Case, seed: int, of_complex: set[str]) -> None:
    made = Case(case.mode, case.u, case.k, case.gates, None, tuple(of_complex & {*case.operands}))
    dy, operands = made.data(seed)
    expected = as_written(made, dy, operands)
    assert_same(made.gradients(dy, operands, direct=True), expected, sizes(made, dy, operands))


@given(cases(), kinds, kinds, seeds)
@example(Case("causal", (2, 7), (40,)), "noise", "noise", 0)
@example(Case("two-sided", (3, 1, 39), (1, 80), ("postgate",)), "huge range", "outlier", 0)
def test_numpy_fft_agrees_with_the_sums(case: Case, kind: str, filter_kind: str, seed: int) -> None:
    dy, operands = case.data(seed, kind, filter_kind)
    expected = case.gradients(dy, operands, direct=True)
    assert_same(case.gradients(dy, operands), expected, sizes(case, dy, operands))


@given(planned_cases(), kinds, kinds, seeds)
@example(Case("circular", (3, 2, 61), (2, 61), (), monarch.Plan(61, (61,))), "noise", "tone", 0)
@example(
    Case("circular", (3, 2, 50), (45,), ("postgate",), monarch.plan(96, packing="half")), "noise", "noise", 0
)
@example(
    Case("two-sided", (4, 50), (4, 200), (), monarch.plan(512, order=6, packing="complex")),
    "tone",
    "noise",
    0,
)
@example(Case("causal", (1, 2, 50), (2, 70), ("pregate",), monarch.plan(120)), "noise", "noise", 0)
@example(Case("causal", (2, 9), (9,), ("postgate",), monarch.plan(17), ("postgate",)), "noise", "noise", 0)
def test_monarch_agrees_with_the_sums(case: Case, kind: str, filter_kind: str, seed: int) -> None:
    dy, operands = case.data(seed, kind, filter_kind)
    expected = case.gradients(dy, operands, direct=True)
    assert_same(case.gradients(dy, operands), expected, sizes(case, dy, operands))


@pytest.mark.parametrize("packing", monarch.PACKINGS)
@pytest.mark.parametrize("gates", [(), ("pregate",), ("pregate", "postgate")])
def test_spectra_are_taken_once(
    gates: tuple[str, ...], packing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three transforms of signals, four with a postgate, as docs/mathematics.md counts."""
    plan = monarch.plan(1024, packing=packing)
    case, calls = Case("causal", (4, 2, 500), (2, 500), gates, plan), []

    def counted(x: Array, plan: monarch.Plan, *, inverse: bool = False) -> Array:
        calls.append(inverse)
        return transform(x, plan, inverse=inverse)

    transform = monarch.transform
    dy, operands = case.data(0)
    monkeypatch.setattr(monarch, "transform", counted)  # filters are transformed inside monarch
    case.gradients(dy, operands)
    assert calls == [False, False, True] + [True] * ("postgate" in gates)
    one_way = sum(plan.flops(i) + plan.twiddle_flops(i) for i in range(plan.order))
    backward = len(calls) * one_way + (14 + 6 * ("postgate" in gates)) * plan.points
    if packing == "pair":
        expected = 2.008 if "postgate" in gates else 1.505
        assert backward / plan.convolution_flops() == pytest.approx(expected, abs=5e-4)


# ---- what a gradient is ----


def real_dot(a: Array, b: Array) -> float:
    return float(np.vdot(a, b).real)


@given(planned_cases(), seeds)
def test_gradients_are_adjoint(case: Case, seed: int) -> None:
    """y is linear in every operand: Re<y, dy> is the same as Re<operand, its gradient>, and so for any change."""
    dy, operands = case.data(seed)
    for plan in (None, case.plan):
        planned = Case(case.mode, case.u, case.k, case.gates, plan, case.complex)
        found, size = planned.gradients(dy, operands), sizes(case, dy, operands)
        for i, (name, gradient) in enumerate(found.items()):
            change = signal("noise", gradient.shape, seed + 100 + i)
            y = reference.fftconv(**{**operands, name: change}, mode=case.mode, plan=plan)
            assert abs(real_dot(y, dy) - real_dot(change, gradient)) <= TIGHT * size[name] * norm(change)


@pytest.mark.parametrize("mode", monarch.MODES)
@pytest.mark.parametrize("plan", [None, monarch.plan(14), monarch.plan(14, packing="half")], ids=str)
def test_gradients_are_finite_differences(mode: str, plan: monarch.Plan | None) -> None:
    """Central differences of a loss that is not linear, whose gradient in y is tanh y."""
    case = Case(mode, (2, 2, 7), (2, 6), ("pregate", "postgate"), plan)
    _, operands = case.data(3)
    gradients = case.gradients(np.tanh(case.forward(operands)), operands)
    step = 1e-5

    def loss(name: str, at: tuple[int, ...], by: float) -> float:
        changed = operands[name].copy()
        changed[at] += by
        return float(np.sum(np.log(np.cosh(case.forward({**operands, name: changed})))))

    for name, gradient in gradients.items():
        for at in np.ndindex(gradient.shape):
            slope = (loss(name, at, step) - loss(name, at, -step)) / (2 * step)
            assert abs(slope - gradient[at]) <= 1e-7 * (1 + abs(slope)), (name, at)


@pytest.mark.parametrize("packing", ["complex", None])
def test_complex_gradients_are_finite_differences(packing: str | None) -> None:
    plan = None if packing is None else monarch.plan(14, packing=packing)
    case = Case("causal", (2, 2, 7), (6,), ("pregate", "postgate"), plan, ("u", "k", "pregate", "postgate"))
    dy, operands = case.data(3)
    for name, gradient in case.gradients(dy, operands).items():
        for at in np.ndindex(gradient.shape):
            for unit in (1, 1j):
                step = np.zeros_like(gradient)
                step[at] = 0.5 * unit  # Re<y, dy> is linear in one operand: any step will do
                slope = real_dot(case.forward({**operands, name: step}), dy) * 2
                part = gradient[at].real if unit == 1 else gradient[at].imag
                assert abs(slope - part) <= 1e-11


def test_small_cases_by_hand() -> None:
    dy, u, k = np.array([1.0, 0, 0, 2]), np.array([1.0, 2, 3, 4]), np.array([1.0, 10, 100])
    for mode, du, dk in (
        ("circular", [1, 200, 120, 12], [9, 10, 7]),
        ("causal", [1, 200, 20, 2], [9, 6, 4]),
        ("two-sided", [10, 1, 200, 20], [2, 9, 6]),
    ):
        found = reference.direct_fftconv_gradients(dy, u, k, mode=mode)
        assert (found.u.tolist(), found.k.tolist()) == (du, dk)
        by_fft = reference.fftconv_gradients(dy, u, k, mode=mode)
        assert np.allclose(by_fft.u, du, atol=1e-11) and np.allclose(by_fft.k, dk, atol=1e-11)


@given(cases(), seeds)
def test_filter_gradients_are_sums_over_the_batch(case: Case, seed: int) -> None:
    u, k = (3, 2, case.u[-1]), (2, case.k[-1])
    batch = Case(case.mode, u, k, case.gates)
    dy, operands = batch.data(seed)
    size = sizes(batch, dy, operands)["k"]
    whole = batch.gradients(dy, operands)["k"]
    parts = []
    for b in range(3):
        one = {name: x if name == "k" else x[b] for name, x in operands.items()}
        parts.append(batch.gradients(dy[b], one)["k"])
    assert np.max(np.abs(sum(parts) - whole)) <= TIGHT * size
    shared = batch.gradients(dy, {**operands, "k": operands["k"][0]})["k"]  # depends on no tap
    assert shared.shape == k[1:] and np.max(np.abs(whole.sum(axis=0) - shared)) <= TIGHT * size


def test_the_gradient_of_a_circular_convolution_turns_with_dy() -> None:
    dy, u, k = (signal("noise", (2, 3, 24), seed) for seed in range(3))
    k = k[0]
    once, turned = (
        reference.fftconv_gradients(dy, u, k),
        reference.fftconv_gradients(np.roll(dy, 5, -1), u, k),
    )
    assert np.allclose(turned.u, np.roll(once.u, 5, -1), atol=1e-11)
    assert np.allclose(turned.k, np.roll(once.k, 5, -1), atol=1e-11)


# ---- sizes and types ----


@given(planned_cases(), seeds, st.sampled_from([-300, -40, 40, 300]))
def test_tiny_and_huge_filters(case: Case, seed: int, power: int) -> None:
    """Gradients in all but the filter grow with it, to the last bit for powers of two; its own does not."""
    dy, operands = case.data(seed)
    scaled = {**operands, "k": operands["k"] * 2.0**power}
    for plan in (None, case.plan):
        planned = Case(case.mode, case.u, case.k, case.gates, plan, case.complex)
        small, large = planned.gradients(dy, operands), planned.gradients(dy, scaled)
        size = sizes(case, dy, operands)
        expected = {name: x if name == "k" else np.ldexp(1.0, power) * x for name, x in small.items()}
        assert_same(
            large, expected, {name: s * (1 if name == "k" else 2.0**power) for name, s in size.items()}
        )
        assert np.array_equal(large["k"], small["k"])


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16", np.float32, np.int8, np.complex64])
def test_short_types_are_widened_exactly(dtype: Any) -> None:
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    dy, u, k, v = ((4 * signal("noise", (2, 3, 16), seed)).astype(dtype) for seed in range(4))
    wide = np.complex128 if dtype is np.complex64 else np.float64
    for function in (reference.fftconv_gradients, reference.direct_fftconv_gradients):
        got = function(dy, u, k[0], postgate=v)
        exact = function(dy.astype(wide), u.astype(wide), k[0].astype(wide), postgate=v.astype(wide))
        for a, b in zip(got, exact, strict=True):
            assert (a is None and b is None) or (a.dtype == wide and np.array_equal(a, b))


def test_views_and_lists_are_read_right_and_kept() -> None:
    base = signal("noise", (4, 3, 80), 0)
    kept, k = base.copy(), signal("noise", (7, 3), 1).T
    u, dy = base[::-1, :, 10:50:2], base[:, ::-1, 30:70:2]
    for plan in (None, monarch.plan(40), monarch.plan(40, packing="half")):
        expected = reference.fftconv_gradients(dy.copy(), u.copy(), k.copy(), plan=plan)
        got = reference.fftconv_gradients(dy, u, k, plan=plan)
        lists = reference.fftconv_gradients(dy.tolist(), u.tolist(), k.tolist(), plan=plan)
        for a, b, c in zip(got[:2], expected[:2], lists[:2], strict=True):
            assert np.allclose(a, b, rtol=0, atol=1e-11) and np.allclose(c, b, rtol=0, atol=1e-11)
    assert np.array_equal(base, kept)


# ---- NaN and infinity ----


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("plan", [None, monarch.plan(12), monarch.plan(12, packing="half")], ids=str)
@pytest.mark.parametrize("mode", monarch.MODES)
@pytest.mark.parametrize("where", ["dy", "u", "k", "pregate", "postgate"])
def test_what_is_not_finite_goes_where_the_sums_take_it(
    where: str, mode: str, plan: monarch.Plan | None, value: float
) -> None:
    """A sequence is spoilt where the sums spoil any of it (of pairs maybe the partner too); no other changes."""
    case = Case(mode, (4, 2, 8), (2, 5), ("pregate", "postgate"), plan)
    dy, operands = case.data(0)
    clean = case.gradients(dy, operands)
    spoilt = (dy if where == "dy" else operands[where]).copy()
    spoilt[(1, 3) if where == "k" else (2, 1, 4)] = value
    dy, operands = (spoilt, operands) if where == "dy" else (dy, {**operands, where: spoilt})
    with np.errstate(invalid="ignore"):
        got, direct = case.gradients(dy, operands), case.gradients(dy, operands, direct=True)
    for name, gradient in got.items():
        bad, least = (~np.all(np.isfinite(x), axis=-1) for x in (gradient, direct[name]))
        most = least
        if least.ndim == 2 and plan is not None and plan.packing == "pair":
            most = np.repeat(least[0::2] | least[1::2], 2, axis=0)
        assert np.all(least <= bad) and np.all(bad <= most), name
        assert np.allclose(gradient[~bad], clean[name][~bad], rtol=0, atol=1e-11), name


def test_no_operand_enters_its_own_gradient_and_taps_that_never_matter_get_zero() -> None:
    dy, u, k = signal("noise", (3, 6), 0), signal("noise", (3, 6), 1), signal("noise", (9,), 2)
    for plan in (None, monarch.plan(11)):
        exact = reference.fftconv_gradients(dy, u, k, mode="causal", plan=plan)
        assert np.all(exact.k[6:] == 0) and np.all(exact.k[:6] != 0)
        k_late = np.where(np.arange(9) < 6, k, np.nan)
        late = reference.fftconv_gradients(dy, u, k_late, mode="causal", plan=plan)
        without_u = reference.fftconv_gradients(dy, np.nan * u, k, mode="causal", plan=plan)
        without_k = reference.fftconv_gradients(dy, u, np.nan * k, mode="causal", plan=plan)
        assert np.array_equal(late.u, exact.u) and np.array_equal(without_u.u, exact.u)
        assert np.array_equal(without_k.k, exact.k) and np.isnan(without_k.u).all()


# ---- adjoints of the filter's transform ----


@given(planned_cases(), seeds)
def test_placing_taps_has_its_adjoint(case: Case, seed: int) -> None:
    assert case.plan is not None
    mode, samples, n = case.mode, case.u[-1], case.plan.n
    if mode == "circular" and n > samples:
        mode = "causal"
    k, g = signal("noise", case.k, seed), signal("noise", (*case.k[:-1], n), seed + 1)
    back = monarch.place_filter_adjoint(g, samples, case.k[-1], mode=mode)
    assert back.shape == k.shape
    there = np.vdot(monarch.place_filter(k, samples, n, mode=mode), g)
    assert abs(there - np.vdot(k, back)) <= TIGHT * norm(k) * norm(g)


@given(plans(), seeds)
def test_transforms_of_filters_have_their_adjoints(plan: monarch.Plan, seed: int) -> None:
    h = signal("noise", (2, plan.n), seed)
    shape = (2, plan.points)
    g, f = (signal("noise", shape, seed + i) + 1j * signal("noise", shape, seed + 9 + i) for i in (1, 2))
    if plan.packing == "half":
        a, b = monarch.half_filter(h, plan)
        there, back = real_dot(a, g) + real_dot(b, f), monarch.half_filter_adjoint(g, f, plan)
        assert back.dtype == np.float64
    else:
        there = real_dot(monarch.filter_spectrum(h, plan), g)
        back = monarch.filter_spectrum_adjoint(g, plan).real
    assert back.shape == h.shape
    assert abs(there - real_dot(h, back)) <= TIGHT * np.sqrt(plan.n) * norm(h) * (norm(g) + norm(f))


# ---- bounds ----


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("factors", ["16x16", "32x32", "64x64", "16x16x16", "16x16x16x16"])
def test_half_precision_gradients_stay_in_their_bounds(factors: str, fused: bool, dtype: str) -> None:
    plan = monarch.Plan.parse(factors)
    storage = np.float16 if dtype == "fp16" else pytest.importorskip("ml_dtypes").bfloat16
    shape = (max(2, 16384 // plan.n), 1, plan.n)
    dy, u, k = (half(signal("noise", s, i), storage) for i, s in enumerate((shape, shape, shape[1:])))
    du, dk = imitated_gradients(dy, u, k, plan, dtype=storage, fused=fused)
    exact = reference.fftconv_gradients(dy, u, k)
    bound = reference.fftconv_bound(plan.order, dtype)
    found = reference.check_close(du, exact.u, dy, k, bound=1.1 * bound, pairs=True)
    assert 0.65 * bound < found.overall < bound
    bound = reference.filter_gradient_bound(plan.order, dtype)
    found = reference.check_filter_gradient(dk, exact.k, dy, u, bound=bound, pairs=True)
    assert 0.55 * bound < found.overall


@given(kinds, kinds, seeds)
def test_structured_data_stay_in_the_coherent_bound(kind: str, other: str, seed: int) -> None:
    plan = monarch.Plan.parse("16x16")
    dy, u = (
        half(np.clip(signal(of, (4, 1, 256), seed + i), -30, 30), np.float16)
        for i, of in enumerate((kind, other))
    )
    k = half(signal("noise", (1, 256), seed + 2), np.float16)
    _, dk = imitated_gradients(dy, u, k, plan, dtype=np.float16, fused=True)
    exact = reference.fftconv_gradients(dy, u, k).k
    found = reference.filter_gradient_error(dk, exact, dy, u, pairs=True)
    assert found.worst < reference.filter_gradient_bound(2, "fp16", coherent=True)


def test_gates_count_in_the_scale_and_wrong_gradients_are_rejected() -> None:
    shape, bound = (3, 2, 256), reference.filter_gradient_bound(2, "bf16", gates=2)
    dy, u, v, w = (scale * signal("noise", shape, i) for i, scale in enumerate((1, 2, 100, 0.01)))
    k = signal("noise", (2, 256), 9)
    gates = {"pregate": v, "postgate": w}
    exact = reference.fftconv_gradients(dy, u, k, **gates)
    assert exact.pregate is not None and exact.postgate is not None
    assert reference.check_filter_gradient(exact.k, exact.k, dy, u, bound=bound, **gates).worst == 0
    close = reference.check_close
    for found in (
        reference.filter_gradient_error(exact.k * (1 + 1e-3), exact.k, dy, u, **gates),
        close(exact.u * (1 + 1e-3), exact.u, dy, k, bound=bound, pregate=w, postgate=v),
        close(exact.pregate * (1 + 1e-3), exact.pregate, dy, k, bound=bound, pregate=w, postgate=u),
        close(exact.postgate * (1 + 1e-3), exact.postgate, u, k, bound=bound, pregate=v, postgate=dy),
    ):
        assert 0.3e-3 < found.overall <= found.worst <= 1.01e-3
    mean = reference.fftconv_gradients(dy, u, k, **gates).k / 3
    unconjugated = np.fft.irfft((np.fft.rfft(dy * w) * np.fft.rfft(u * v)).sum(axis=0))
    last = reference.fftconv_gradients(dy[:2], u[:2], k, pregate=v[:2], postgate=w[:2]).k
    ungated = reference.fftconv_gradients(dy, u, k).k
    for wrong in (mean, unconjugated, last, ungated, exact.k[::-1], 0 * exact.k, np.roll(exact.k, 1, -1)):
        with pytest.raises(AssertionError, match=r"in filter \[[01]\] exceeds the bound"):
            reference.check_filter_gradient(wrong, exact.k, dy, u, bound=bound, **gates)
    poisoned = exact.k.copy()
    poisoned[1, 7] = np.nan
    assert reference.filter_gradient_error(poisoned, exact.k, dy, u, **gates) == (np.inf, np.inf, (1,))


def test_filter_gradient_bounds_are_what_they_say() -> None:
    bound = reference.filter_gradient_bound
    assert bound(1, "fp16") == pytest.approx(np.sqrt(2) * 2.0**-11)
    assert bound(2, "bf16", gates=2) == pytest.approx(np.sqrt(26 / 6) * 2.0**-8)
    assert bound(2, "fp16", gates=1, coherent=True) == 25 * 2.0**-11
    single = reference.filter_gradient32_bound
    assert single(1024) == pytest.approx(np.sqrt(1.5 * 1.21 * 10 + 1 / 12) * 2.0**-24)
    assert single(1024, terms=12, gates=6) == pytest.approx(np.sqrt(1.5 * 1.21 * 10 + 2) * 2.0**-24)


# ---- errors ----

ONES = np.ones((2, 3, 8))
HALF, PAIR = monarch.plan(8, packing="half"), monarch.plan(8)
REFUSED: list[tuple[Callable[[Callable[..., object]], object], type[Exception], str]] = [
    (
        lambda f: f(ONES[0], ONES, np.ones(3)),
        ValueError,
        r"dy must have the shape of u and y, \(2, 3, 8\); got \(3",
    ),
    (lambda f: f(ONES[..., :7], ONES, np.ones(3)), ValueError, r"dy must have the shape .*got \(2, 3, 7\)"),
    (
        lambda f: f(1j * ONES, ONES, np.ones(3)),
        TypeError,
        r"dy must be real.*got complex128. Pass its real part",
    ),
    (lambda f: f(ONES > 0, ONES, np.ones(3)), TypeError, r"dy must be float16.*got bool"),
    (lambda f: f(ONES, ONES > 0, np.ones(3)), TypeError, r"u must be float16.*got bool"),
    (lambda f: f(ONES, ONES, np.ones(0)), ValueError, r"k must be a non-empty array"),
    (lambda f: f(ONES, ONES, np.ones(9)), ValueError, r"k must have at most L=8 taps.*got 9"),
    (lambda f: f(ONES, ONES, np.ones((2, 4))), ValueError, r"k must have one filter for each of the H"),
    (lambda f: f(ONES, ONES, np.ones(3), mode="full"), ValueError, r"mode must be one of .*got 'full'"),
    (
        lambda f: f(ONES, ONES, np.ones(3), pregate=np.ones(8)),
        ValueError,
        r"pregate must have the shape of u",
    ),
    (lambda f: f(ONES, ONES, np.ones(3), postgate=ONES[:1]), ValueError, r"postgate must have the shape"),
]
REFUSED_PLANS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: reference.fftconv_gradients(ONES, ONES, np.ones(3), plan="4x2"),
        TypeError,
        r"plan must be a monarch",
    ),
    (
        lambda: reference.fftconv_gradients(ONES, ONES, np.ones(3), mode="causal", plan=PAIR),
        ValueError,
        r"plan must have n >= 10 for mode 'causal'",
    ),
    (
        lambda: reference.fftconv_gradients(1j * ONES, 1j * ONES, np.ones(3), plan=PAIR),
        TypeError,
        r'packing="complex"',
    ),
    (
        lambda: reference.fftconv_gradients(ONES, ONES, 1j * np.ones(3), plan=HALF),
        TypeError,
        r'packing="complex"',
    ),
    (
        lambda: reference.fftconv_gradients(ONES, ONES, 1j * np.ones(3), plan=PAIR),
        TypeError,
        r'packing="complex"',
    ),
    (
        lambda: monarch.filter_spectrum_adjoint(np.ones(4), HALF),
        ValueError,
        "use monarch.half_filter_adjoint",
    ),
    (
        lambda: monarch.half_filter_adjoint(np.ones(8), np.ones(8), PAIR),
        ValueError,
        'plan must have packing "half"',
    ),
    (
        lambda: monarch.half_filter_adjoint(np.ones((2, 4)), np.ones(4), HALF),
        ValueError,
        "a and b must have one",
    ),
    (
        lambda: monarch.place_filter_adjoint(np.ones(9), 8, 3, mode="causal"),
        ValueError,
        "h's last axis must be at least 10 for mode 'causal'; got 9, which would alias",
    ),
    (lambda: reference.filter_gradient_bound(0, "fp16"), ValueError, "order must be at least 1"),
    (lambda: reference.filter_gradient32_bound(8, terms=0), ValueError, "terms must be at least 1; got 0"),
    (
        lambda: reference.filter_gradient_error(np.ones((3, 4)), np.ones((3, 5)), ONES, ONES),
        ValueError,
        "dk and dk_ref must have one shape",
    ),
    (
        lambda: reference.filter_gradient_error(np.ones((2, 4)), np.ones((2, 4)), ONES, ONES),
        ValueError,
        "with the H channels of u",
    ),
    (
        lambda: reference.filter_gradient_error(np.ones(4), np.ones(4), ONES[0], ONES),
        ValueError,
        "dy and u must have one shape",
    ),
    (
        lambda: reference.filter_gradient_error(np.ones(4), np.full(4, np.nan), ONES, ONES),
        ValueError,
        "dk_ref must be finite",
    ),
    (
        lambda: reference.check_filter_gradient(np.zeros(4), np.zeros(4), ONES, ONES, bound=0.1),
        ValueError,
        "zeros would pass. Use a dy that follows u",
    ),
    (lambda: monarch.place_filter_adjoint(1.0, 8, 3, mode="causal"), ValueError, "at least 10 .*got 0"),
]


@pytest.mark.parametrize("function", [reference.fftconv_gradients, reference.direct_fftconv_gradients])
@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_input_is_named(
    call: Callable[[Callable[..., object]], object],
    error: type[Exception],
    message: str,
    function: Callable[..., object],
) -> None:
    with pytest.raises(error, match=message):
        call(function)


@pytest.mark.parametrize(("call", "error", "message"), REFUSED_PLANS)
def test_bad_plans_and_spectra_are_named(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
