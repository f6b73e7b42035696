"""Right-angle packing: half a circle of signal, turned, so that all points of a transform are of one sequence."""

from math import prod
from typing import Any

import numpy as np
import pytest
from convolutions import PLAIN, scatter
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import factor_tuples, kinds, seeds, signal
from test_filter_transform import by_kernels, in_one_launch, values
from test_kernel_counts import check, count

import kernels_numba
import monarch
import reference
from costmodel import block_counts, deep_counts, group_counts, kernel_counts
from kernels_numba import (
    FFTConv,
    filter_whole,
    fused_block,
    fused_deep,
    fused_group,
    fused_warp,
    prepare_filter,
    spectrum,
)
from kernels_numba.families import RIGHT_ANGLE_FACTORS, default_plans, sequences_together
from kernels_numba.tile.layout import ELEMENT_TYPES, HALF_TYPES
from monarch import Plan

LISTS = [
    f for family in (fused_warp, fused_group, fused_block, fused_deep) for f in family.PACKINGS["right-angle"]
]
SMALL = [f for f in LISTS if prod(f) <= 2048] + [(16, 16, 16)]
VARIANTS = [
    ("causal", 1.0, False),
    ("causal", 0.93, True),
    ("two-sided", 0.61, False),
    ("circular", 0.5, True),
]
"""Mode, samples over N / 2, gates."""


def plan_of(factors: tuple[int, ...]) -> Plan:
    return Plan(2 * prod(factors), factors, packing="right-angle")


# ---- the decomposition ---------------------------------------------------------------------------------------
@given(factor_tuples(most_points=300, orders=(1, 4)), kinds, st.sampled_from(monarch.MODES), seeds)
def test_the_first_half_is_that_of_the_linear_convolution(
    factors: tuple[int, ...], kind: str, mode: str, seed: int
) -> None:
    """Whatever runs over either end of P samples is imaginary."""
    plan = plan_of(factors)
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, plan.points + 1))
    taps = int(rng.integers(1, (length if mode == "circular" else 2 * length) + 1))
    if kind == "huge range":
        kind = "outlier"
    u, k = signal(kind, (3, 2, length), seed), rng.standard_normal((2, taps))
    if mode == "circular":  # folded: tap j acts at the lags j and j - L
        h = np.zeros((2, plan.n))
        h[:, :taps] += k
        h[:, plan.n - length + 1 : plan.n - length + taps] += k[:, 1:]
    else:
        h = monarch.place_filter(k, length, plan.n, mode=mode)
    x = np.concatenate([u, np.zeros((3, 2, plan.n - length))], axis=-1)
    y = monarch.circular_convolution(x, h, plan)
    exact = reference.fftconv(u, k, mode=mode)
    size = np.linalg.norm(u, axis=-1) * np.linalg.norm(k, axis=-1)
    assert (np.linalg.norm(y[..., :length] - exact, axis=-1) <= 1e-12 * size).all()
    assert y.shape == x.shape and not y[..., plan.points :].any()


def test_what_it_is_not_for() -> None:
    """Signals beyond half of the circle, whole circles, zeros in spectra, adjoints of circles."""
    plan = plan_of((16, 16))
    assert (plan.points, plan.signal, plan.wanted) == (256, 256, 256)
    with pytest.raises(ValueError, match="signal must be at most n/2=256"):
        plan.with_(signal=257)
    with pytest.raises(ValueError, match="even"):
        Plan(511, (16, 16), packing="right-angle")
    x = np.ones((2, 512))
    with pytest.raises(ValueError, match="zero from sample 256 on"):
        monarch.circular_convolution(x, x[0], plan)
    with pytest.raises(ValueError, match="right_angle_filter"):
        monarch.filter_spectrum(x, plan)
    with pytest.raises(ValueError, match='packing="pair"'):
        monarch.filter_spectrum_adjoint(x[:, :256], plan)
    half = np.random.default_rng(0).standard_normal((2, 2, 256))
    by_plan, exact = (reference.fftconv(half, half[0], plan=p, mode="causal") for p in (plan, None))
    assert np.allclose(by_plan, exact, atol=1e-12)
    with pytest.raises(ValueError, match="whole circles"):
        reference.fftconv(half, half[0], plan=plan)
    with pytest.raises(ValueError, match="whole circle"):
        reference.fftconv_gradients(half, half, half[0], plan=plan, mode="causal")
    with pytest.raises(ValueError, match="right-angle"):
        monarch.right_angle_filter(x, Plan(512, (16, 32)))
    u, k = np.zeros((2, 2, 300), np.float16), np.ones((2, 9))
    with pytest.raises(ValueError, match="at most n/2=256"):
        kernels_numba.fftconv(u, k, mode="causal", plan=plan)
    pattern = monarch.SparsityPattern.middles(Plan(256, (16, 16)), (2, 2))
    with pytest.raises(ValueError, match='packing "pair"'):
        prepare_filter(k, length=200, mode="causal", plan=plan, pattern=pattern)


# ---- the kernels ---------------------------------------------------------------------------------------------
@settings(max_examples=3)
@given(
    factors=st.sampled_from(SMALL),
    variant=st.sampled_from(VARIANTS),
    dtype=st.sampled_from(["fp16", "bf16"]),
    batch=st.integers(1, 3),
    seed=seeds,
)
@example(factors=(24, 16, 16), variant=VARIANTS[1], dtype="fp16", batch=3, seed=1)
@example(factors=(64, 32), variant=VARIANTS[1], dtype="bf16", batch=3, seed=1)
@example(factors=(8, 8, 16, 16), variant=VARIANTS[1], dtype="fp16", batch=1, seed=3)
def test_within_the_bound_of_the_reference(
    factors: tuple[int, ...], variant: tuple, dtype: str, batch: int, seed: int
) -> None:
    """Every mode; a sequence alone; outputs begin as NaN on the CPU body."""
    plan, (mode, part, gated) = plan_of(factors), variant
    length = int(part * plan.points)
    case = PLAIN._replace(
        factors=factors, mode=mode, length=length, taps=length, batch=batch, dtype=dtype, gates=(gated, gated)
    )
    u, k, gates = case._replace(seed=seed % 1000).data()
    y = kernels_numba.fftconv(u, k, mode=mode, plan=plan, **gates)
    exact = reference.fftconv(u, k, mode=mode, **gates)
    found = reference.relative_error(y, exact, u, k, pairs=False, **gates)
    assert found.worst <= reference.fftconv_bound(plan.order, dtype, gates=len(gates)) * scatter(length)


@pytest.mark.parametrize("mode", ["causal", "two-sided"])
@pytest.mark.parametrize("factors", [(16, 16), (16, 32), (24, 32), (64, 32)], ids=str)
def test_filters_are_transformed_as_by_numpy(factors: tuple[int, ...], mode: str) -> None:
    """By one launch and by passes, which make the adjoint too; every word within its roundoff."""
    plan, length = plan_of(factors), prod(factors)
    k = np.random.default_rng(0).standard_normal((2, length)).astype(np.float32) / length**0.5
    layouts = [spectrum._layout(plan, mode, length, length, "fp16", adjoint) for adjoint in (False, True)]
    exact = [spectrum._transform(k.astype(np.float64), 2, layout) for layout in layouts]
    found = by_kernels(k, "fp32", 2, layouts[0], both=True)
    made = [(exact[0], found[0], found[1]), (exact[1], found[2], found[1])]
    if filter_whole.fits(plan.n, turned=True):
        made += [(e, *in_one_launch(k, "fp32", 2, layout)) for e, layout in zip(exact, layouts, strict=True)]
    for (words, scales), got, scale in made:
        right, wrong = (values(w, s, "fp16") for w, s in ((words, scales), (got, scale)))
        assert abs(right - wrong).max() <= 2**-11 * abs(right).max() and (scales == scale).all()
        assert (right == wrong).mean() > 0.99


@pytest.mark.parametrize("factors", [(16, 32), (16, 16, 16)], ids=str)
def test_the_adjoint_correlates(factors: tuple[int, ...]) -> None:
    """<y, e> = <u, adjoint e> for the causal convolution: the same bits of spectrum, conjugate."""
    plan = plan_of(factors)
    length = plan.points
    rng = np.random.default_rng(0)
    u, e = (rng.standard_normal((2, 1, length)).astype(np.float16) for _ in range(2))
    k = rng.standard_normal((1, length)) / length**0.5
    made = prepare_filter(k, length=length, mode="causal", plan=plan, gradients=True)
    assert made.words.shape == (1, plan.points)  # half of a pair's bins
    y, x = (FFTConv(s, batch=2)(v).astype(float) for s, v in ((made, u), (made.adjoint, e)))
    left, right = (y * e).sum(), (u * x).sum()
    scale = np.linalg.norm(y) * np.linalg.norm(e)
    assert abs(left - right) <= 4 * reference.fftconv_bound(plan.order, "fp16") * scale


def test_half_signals_go_this_way_where_it_is_faster() -> None:
    """By default, if nothing else was asked for; whole signals and other lengths go as before."""
    for n, factors in RIGHT_ANGLE_FACTORS.items():
        plan = default_plans(halved=True)[n]
        assert (plan.packing, plan.factors) == ("right-angle", factors)
        assert default_plans()[n].packing != "right-angle"
        assert sequences_together(plan) == (1 if plan.order == 4 else 2)
    assert prepare_filter(np.ones((1, 512)), length=512, mode="causal").plan.packing == "right-angle"
    assert prepare_filter(np.ones((1, 512)), length=513, mode="causal").plan.packing == "pair"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("factors", [(16, 16), (32, 16), (8, 16, 16), (16, 16, 16), (8, 8, 16, 16)], ids=str)
def test_errors_are_as_counted(factors: tuple[int, ...], dtype: str) -> None:
    """Half of the roundings of a pair (docs/mathematics.md), and in fp16 half of one more in each inner stage."""
    plan, kind = plan_of(factors), ELEMENT_TYPES[dtype]
    draw = np.random.default_rng(0)
    u = draw.standard_normal((6, 2, plan.n // 2)).astype(kind)
    k = draw.standard_normal((2, plan.n // 2)) / plan.n**0.5
    y = kernels_numba.fftconv(u, k, mode="causal", plan=plan).astype(float)
    u = u.astype(float)
    found = reference.relative_error(y, reference.fftconv(u, k, mode="causal"), u, k).overall
    order, unit = plan.order, {"fp16": 2.0**-11, "bf16": 2.0**-8}[dtype]
    roundings = 8 * order - 2 + (min(2 * (order - 1), 4) if dtype == "fp16" else 0)
    assert found == pytest.approx(np.sqrt(roundings / 12) * unit, rel=0.08)


@settings(max_examples=4)
@given(
    factors=st.sampled_from(SMALL),
    dtype=st.sampled_from(["fp16", "bf16"]),
    batch=st.integers(1, 3),
    part=st.floats(0.5, 1.0),
    gates=st.tuples(st.booleans(), st.booleans()),
    blocks=st.integers(1, 2),
    size=st.sampled_from([1.0, 1e4]),
)
@example((24, 16, 16), "fp16", 2, 1.0, (True, True), 2, 1e4)
@example((24, 32), "bf16", 3, 0.93, (True, True), 2, 1e4)
@example((64, 32), "fp16", 3, 0.93, (True, True), 2, 1e4)
@example((64, 32), "bf16", 2, 1.0, (False, False), 1, 1.0)
@example((8, 8, 16, 16), "fp16", 2, 1.0, (False, True), 1, 1e4)
def test_counts_equal_the_counters(
    factors: tuple[int, ...],
    dtype: str,
    batch: int,
    part: float,
    gates: tuple[bool, bool],
    blocks: int,
    size: float,
) -> None:
    """Every counter of every order; no bank conflicts."""
    plan = plan_of(factors)
    length = max(1, int(part * plan.points))
    convolve, spec, grid, counted = count(plan, dtype, batch, 1, length, gates, blocks, size)
    how: dict[str, Any] = {"batch": batch, "channels": 1, "length": length, "right_angle": True}
    how |= {"pregate": gates[0], "postgate": gates[1], "scaled": convolve.scaled} | grid
    taken, first, rest = convolve.spectrum.plan, 2 * factors[0], factors[1:]
    if convolve.family is fused_group:
        how |= {"tables_shared": spec.tables_shared, "ring": spec.ring, "keep": spec.keep}
        expected = group_counts.totals(*factors, *group_counts.live_rows(taken), **how)
    elif plan.order == 2:
        how |= {"halves": spec.halves, "rounded": spec.rounded}
        expected = kernel_counts.totals(first, *rest, *kernel_counts.warp_rows(taken), **how)
    elif plan.order == 3:
        how |= {"warps": spec.warps, "tables_shared": spec.tables_shared}
        how |= {"together": spec.q <= block_counts.TOGETHER_POINTS, "lean": factors in block_counts.LEAN}
        how["rounded"] = spec.rounded
        expected = block_counts.totals(first, *rest, *kernel_counts.rows(taken), **how)
    else:
        how |= {"middle_shared": spec.middle_shared, "early": spec.early, "rounded": spec.rounded}
        expected = deep_counts.totals(*factors, *deep_counts.rows(taken), **how)
    assert expected["bank_conflicts"] == 0
    check(expected, counted)


# ---- on a GPU ------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("factors", LISTS, ids=str)
def test_bodies_agree(factors: tuple[int, ...], dtype: str) -> None:
    """The same roundings but for the order of sums; from poisoned outputs, at addresses of any alignment."""
    torch = pytest.importorskip("torch")
    plan, kind = plan_of(factors), {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    for offset, (mode, part, gated) in enumerate(VARIANTS):
        length = int(part * plan.points)
        length -= length % 8 if offset % 2 == 0 else 0
        case = PLAIN._replace(
            factors=factors, mode=mode, length=length, taps=length, batch=3, dtype=dtype, gates=(gated, gated)
        )
        u, k, gates = case.data()
        convolve = FFTConv(prepare_filter(k, length=length, mode=mode, dtype=dtype, plan=plan), batch=3)

        def there(x: Any, offset: int = offset) -> Any:
            room = torch.full((x.size + 16,), torch.nan, dtype=kind, device="cuda")
            view = room[offset : offset + x.size].view(x.shape)
            return view.copy_(torch.from_numpy(np.asarray(x, np.float32)))

        out = there(np.full(u.shape, np.nan))
        y = convolve(there(u), out=out, **{name: there(x) for name, x in gates.items()})
        got = y.double().cpu().numpy()
        expected = convolve.run_cpu(u, **gates)[0].astype(float)
        apart = reference.relative_error(got, expected, u, k, pairs=False, **gates)
        assert apart.overall <= 0.4 * reference.fftconv_bound(plan.order, dtype), apart
        exact = reference.fftconv(u, k, mode=mode, **gates)
        bound = reference.fftconv_bound(plan.order, dtype, gates=len(gates)) * scatter(length)
        reference.check_close(got, exact, u, k, bound=bound, pairs=False, **gates)


@pytest.mark.gpu
def test_gradients_by_default_plans() -> None:
    """Causal layers of half a transform's length: all gradients, with gates, against float64."""
    torch = pytest.importorskip("torch")
    for n in RIGHT_ANGLE_FACTORS:
        if n > 16384:
            continue
        length, kind = n // 2, HALF_TYPES["fp16"]
        rng = np.random.default_rng(n)
        u, dy, before, after = (rng.standard_normal((4, 2, length)).astype(kind) for _ in range(4))
        k = (rng.standard_normal((2, length)) / length**0.5).astype(np.float32)
        gates = {"pregate": before, "postgate": after}
        there = {name: torch.from_numpy(x).cuda() for name, x in gates.items()}
        found = kernels_numba.fftconv_gradients(
            *(torch.from_numpy(x).cuda() for x in (u, k, dy)), mode="causal", **there
        )
        exact = reference.fftconv_gradients(dy, u, k, mode="causal", **gates)
        for name in ("u", "pregate", "postgate"):
            got, wanted = getattr(found, name).double().cpu().numpy(), getattr(exact, name)
            error = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
            assert error <= reference.fftconv_bound(4, "fp16", gates=2), (n, name, error)
        error = np.linalg.norm(found.k.double().cpu().numpy() - exact.k) / np.linalg.norm(exact.k)
        assert error <= reference.filter_gradient_bound(3, "fp16", gates=2), (n, error)
