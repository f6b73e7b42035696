"""The kernel of any factors, on whichever body runs here: its lengths, meaning, error bound, and skipped work."""

from math import prod
from typing import Any

import numpy as np
import pytest
from convolutions import PLAIN, filters, half, noise, scatter
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import kernels_numba
import reference
from kernels_numba import FFTConv, any_operands, any_spec, families, fused_any, prepare_filter
from kernels_numba.device import LARGEST_SHARED_BYTES, Device
from kernels_numba.plan_choice import choose_plan
from monarch import Plan

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")

SMALL = [(f, packing) for packing, lists in fused_any.PACKINGS.items() for f in lists if prod(f) <= 6400]
LISTS = [
    (48, 48),
    (16, 64),
    (32, 112),
    (208, 16),
    (112, 48),
    (272, 16),
    (16, 16, 48),
    (16, 48, 16),
    (48, 16, 16),
]
LISTS += [(5, 16, 32), (17, 16, 16), (23, 16, 16)]


def plan_of(factors: tuple[int, ...], packing: str) -> Plan:
    return Plan.of(factors, packing=packing)


# ---- which lengths -------------------------------------------------------------------------------------------
def test_every_length_of_multiples_of_16_has_a_kernel() -> None:
    """Order 2 and more: multiples of 256 points, as a pair while those fit, 4 bytes a point, else one sequence."""
    limit = LARGEST_SHARED_BYTES
    by_packing = {
        packing: {
            prod(f) * (2 if packing == "half" else 1)
            for family in families.FAMILIES
            for f in family.PACKINGS.get(packing, ())
        }
        for packing in ("pair", "half", "complex")
    }
    fit = range(256, 55808 + 1, 256)
    assert {57344, *fit} <= by_packing["pair"] and {57344, *fit} <= by_packing["complex"]
    assert set(range(512, 65536 + 1, 512)) <= by_packing["half"]
    lists = [f for f in any_spec.ALL if len(f) == 3]
    for middle, last in {f[1:] for f in lists}:
        firsts = [f[0] for f in lists if f[1:] == (middle, last)]
        assert firsts == list(range(2, max(firsts) + 1))
        for first, fits in ((max(firsts), True), (max(firsts) + 8, False)):
            assert (32 * -(-first // 8) * (middle * last + any_spec.PADDING) <= limit) == fits


def test_rows_are_padded_where_there_is_room() -> None:
    for factors in any_spec.ALL:
        shape = any_spec.Layout(factors)
        assert 4 * shape.exchange_words <= LARGEST_SHARED_BYTES
        first, *rest = factors
        padded = (
            any_spec.tiles_of(first) * 8 * (rest[0] + 4 if len(rest) == 1 else rest[0] * (rest[1] + 4) + 4)
        )
        assert (shape.padding > 0) == (4 * padded <= LARGEST_SHARED_BYTES)
        assert all(stride % 16 == 4 for stride in shape.strides[: -1 if shape.padding else 1])


@pytest.mark.parametrize("factors", [(16, 272), (272, 272), (448, 16), (17, 16), (16, 17, 16), (16, 16, 144)])
def test_lists_without_a_kernel_say_what_is_accepted(factors: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="last two factors are multiples of 16"):
        families.family_of(plan_of(factors, "pair"))


def test_a_list_without_a_kernel_is_told_the_others_of_its_points() -> None:
    """4352 points as 16 x 272 have no kernel; as 17 x 16 x 16, and slower as 272 x 16, they have."""
    with pytest.raises(
        ValueError, match="lists of 4352 points with this packing: 272x16, 17x16x16; accepted"
    ):
        families.family_of(plan_of((16, 272), "pair"))


@pytest.mark.parametrize("kib", [99, 163])
def test_what_does_not_fit_on_a_smaller_gpu_says_so(kib: int) -> None:
    """The limit follows from the device; the message names both."""
    small = Device("gpu", "one imagined", 0, "small GPU", (8, 0), 100, 1024 * kib, 1024 * kib)
    fits, longer = plan_of((57, 16, 16), "pair"), plan_of((177, 16, 16), "pair")
    asked = {"mode": "circular", "taps": 9, "dtype": "fp16", "sequences": "fp16"}
    assert choose_plan(length=fits.n, plan=fits, where=small, **asked)[0].factors == fits.factors
    with pytest.raises(
        ValueError, match=f"191,360 bytes of shared memory a block, small GPU has {1024 * kib:,}"
    ):
        choose_plan(length=longer.n, plan=longer, where=small, **asked)


def test_no_two_kernels_claim_a_plan() -> None:
    for packing in ("pair", "half", "complex"):
        every = [f for family in families.FAMILIES for f in family.PACKINGS.get(packing, ())]
        assert len(every) == len(set(every))


@pytest.mark.parametrize("kib", [64, 99, 163, 227])
def test_factors_give_way_to_points(kib: int) -> None:
    """With less shared memory the largest factors are read through the caches; what does not fit then is refused."""
    for factors in any_spec.ALL:
        spec = any_spec.make_spec(plan_of(factors, "pair"), "fp16", shared_limit=1024 * kib)
        points = 4 * spec.layout.exchange_words
        assert spec.shared_bytes <= 1024 * kib or (
            set(spec.cached) == set(spec.matrices) and points > 1024 * kib
        )
        kept = [f for f in spec.matrices if f not in spec.cached]
        assert list(spec.matrices) == [*kept, *reversed(spec.cached)]
        assert 32 * spec.warps * any_spec.min_blocks(spec) * any_spec.registers(spec) <= 65536


# ---- meaning -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("packing", ["pair", "half"])
@pytest.mark.parametrize("factors", LISTS, ids=str)
def test_causal_of_odd_length_with_gates(factors: tuple[int, ...], packing: str) -> None:
    plan = plan_of(factors, packing)
    length = plan.n // 2 - 5
    case = PLAIN._replace(
        factors=factors, mode="causal", length=length, taps=length, batch=3, gates=(True, True)
    )
    u, k, gates = case.data()
    y = kernels_numba.fftconv(u, k, mode="causal", plan=plan, out=np.full_like(u, np.nan), **gates)
    exact = reference.fftconv(u, k, mode="causal", **gates)
    bound = reference.fftconv_bound(len(factors), "fp16", gates=2) * scatter(length)
    reference.check_close(y, exact, u, k, bound=bound, pairs=packing == "pair", **gates)


@settings(max_examples=30)
@given(
    kind=st.sampled_from([x for x in SMALL if x[1] != "complex"]),
    mode=st.sampled_from(["circular", "causal", "two-sided"]),
    part=st.floats(0.01, 0.6),
    batch=st.integers(1, 3),
    dtype=st.sampled_from(["fp16", "bf16"]),
    gates=st.tuples(st.booleans(), st.booleans()),
    size=st.sampled_from([1.0, 100.0]),
    seed=seeds,
)
def test_within_the_bound_of_the_reference(
    kind: tuple, mode: str, part: float, batch: int, dtype: str, gates: tuple, size: float, seed: int
) -> None:
    """Any list and packing, any length, filters of any size."""
    factors, packing = kind
    plan = plan_of(factors, packing)
    length = plan.n if mode == "circular" else max(32, int(part * plan.n))
    taps = length if mode == "circular" else min(length, plan.n - length)
    case = PLAIN._replace(
        factors=factors, mode=mode, length=length, taps=taps, batch=batch, dtype=dtype, gates=gates, size=size,
        seed=seed,
    )  # fmt: skip
    u, k, both = case.data()
    y = kernels_numba.fftconv(u, k, mode=mode, plan=plan, **both)
    found = reference.relative_error(
        y, reference.fftconv(u, k, mode=mode, **both), u, k, pairs=packing == "pair", **both
    )
    assert found.worst <= case.bound, (found, case.bound)


@pytest.mark.parametrize(
    ("one", "other"), [((48, 80), (80, 48)), ((272, 16), (17, 16, 16)), ((48, 48), (144, 16))]
)
def test_orders_of_factors_agree(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    n = prod(one)
    plans = [plan_of(f, "pair") for f in (one, other) if families.is_fused(plan_of(f, "pair"))]
    u, k = noise((2, 1, n), "fp16"), filters(1, n)
    found = [kernels_numba.fftconv(u, k, plan=plan).astype(float) for plan in plans]
    size = np.linalg.norm(u.astype(float)) * np.linalg.norm(k)
    assert np.linalg.norm(found[0] - found[-1]) <= 2 * reference.fftconv_bound(2, "fp16") * size


@pytest.mark.parametrize("packing", ["pair", "half"])
@pytest.mark.parametrize("factors", [(48, 48), (16, 48, 16)], ids=str)
def test_an_impulse_brings_out_the_filter(factors: tuple[int, ...], packing: str) -> None:
    plan = plan_of(factors, packing)
    where = [0, 1, plan.n // 2 + 3, plan.n - 1]
    u = np.zeros((len(where), 1, plan.n))
    u[np.arange(len(where)), 0, where] = 1
    k = filters(1, plan.n)
    y = kernels_numba.fftconv(half(u, "fp16"), k, plan=plan).astype(float)
    bound = reference.fftconv_bound(len(factors), "fp16", coherent=True)
    for i, position in enumerate(where):
        assert np.linalg.norm(y[i, 0] - np.roll(k[0], position)) <= bound * np.linalg.norm(k)


def test_scales_of_factors_hardly_change_magnitudes() -> None:
    """Transforms are unitary but for these scales, which the spectrum undoes: values grow by less than 2.9."""
    for dtype in ("fp16", "bf16"):
        for factors in any_spec.ALL:
            assert 0.4 < prod(any_operands.scale_of(f, dtype) for f in factors) <= 2.9
    u = np.full((2, 1, 3840), 250.0, np.float16)  # in one bin 62 times as much
    y = kernels_numba.fftconv(u, np.ones((1, 1)), plan=Plan(3840, (80, 48)))
    assert np.abs(y / u - 1).max() <= 1e-2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_half_length_packing_keeps_sequences_apart(value: float) -> None:
    u, k = noise((2, 1, 4608), "fp16"), filters(1, 4608)
    u[0, 0, 5] = value
    y = kernels_numba.fftconv(u, k, plan=Plan(4608, (48, 48), packing="half"))
    assert not np.isfinite(y[0].astype(float)).any() and np.isfinite(y[1].astype(float)).all()


@pytest.mark.parametrize("packing", ["pair", "half"])
def test_gradients_of_its_plans(packing: str) -> None:
    """The signal's by the same kernel with the filter backwards, the filter's by a plan that has a kernel for it."""
    plan = plan_of((48, 48), packing)
    u, dy = noise((2, 1, plan.n), "fp16"), noise((2, 1, plan.n), "fp16", 1)
    k = filters(1, plan.n)
    found = kernels_numba.fftconv_gradients(u, k, dy, plan=plan)
    exact = reference.fftconv_gradients(dy, u, k)
    bound = reference.fftconv_bound(2, "fp16") * scatter(plan.n)
    assert np.linalg.norm(found.u - exact.u) <= bound * np.linalg.norm(dy.astype(float)) * np.linalg.norm(k)
    reference.check_filter_gradient(
        found.k, exact.k, dy, u, bound=reference.filter_gradient_bound(3, "fp16"), pairs=True
    )


# ---- work that is skipped ------------------------------------------------------------------------------------
@pytest.mark.parametrize("factors", [(48, 48), (16, 16, 48), (16, 64)], ids=str)
def test_zeros_are_skipped(factors: tuple[int, ...]) -> None:
    """With L <= N / 2 the first contraction does half of its products, and so does the last for half of the outputs."""
    n = prod(factors)
    counted = []
    for mode, length in (("circular", n), ("causal", n // 2)):
        spectrum = prepare_filter(
            filters(1, n // 2), length=length, mode=mode, plan=Plan(n, factors), dtype="fp16"
        )
        u: NDArray[Any] = noise((2, 1, length), "fp16")
        counted.append(FFTConv(spectrum, batch=2).run_cpu(u)[1].mma_m16n8k16)
    outer = 2 * n * factors[0] // 512
    assert counted[0] - counted[1] == outer // 2


# ---- on a GPU ------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@settings(max_examples=40)  # most examples compile a kernel of their own
@given(
    kind=st.sampled_from(
        [(f, p) for p, lists in fused_any.PACKINGS.items() for f in lists if prod(f) <= 16384]
    ),
    mode=st.sampled_from(["circular", "causal", "two-sided"]),
    part=st.floats(0.01, 0.6),
    batch=st.integers(1, 4),
    products=st.sampled_from(["fp16", "bf16"]),
    gates=st.tuples(st.booleans(), st.booleans()),
    offset=st.sampled_from([0, 0, 1, 2, 4]),
    seed=seeds,
)
def test_random_plans_on_a_gpu(
    kind: tuple, mode: str, part: float, batch: int, products: str, gates: tuple, offset: int, seed: int
) -> None:
    """Any list, packing, length and alignment, complex sequences too, from poisoned outputs."""
    torch = pytest.importorskip("torch")
    factors, packing = kind
    plan = plan_of(factors, packing)
    length = plan.n if mode == "circular" else max(32, int(part * plan.n))
    taps = length if mode == "circular" else min(length, plan.n - length)
    draw = np.random.default_rng(seed)
    stored = {"fp16": torch.float16, "bf16": torch.bfloat16}[products]
    whole = packing == "complex"

    def data(*shape: int) -> Any:
        x = draw.standard_normal(shape) + (1j * draw.standard_normal(shape) if whole else 0)
        x = torch.from_numpy(x).cuda().to(torch.complex64 if whole else stored)
        room = torch.empty(x.numel() + 16, dtype=x.dtype, device="cuda")
        room[offset : offset + x.numel()] = x.reshape(-1)
        return room[offset : offset + x.numel()].reshape(shape)

    u, k = data(batch, 2, length), data(2, taps) / taps**0.5
    both = {name: data(*u.shape) for name, on in zip(("pregate", "postgate"), gates, strict=True) if on}
    extra = {"products": products} if whole else {}
    y = kernels_numba.fftconv(u, k, mode=mode, plan=plan, out=torch.full_like(u, torch.nan), **extra, **both)
    kind_of = torch.complex128 if whole else torch.float64
    arrays = {name: x.to(kind_of).cpu().numpy() for name, x in (("y", y), ("u", u), ("k", k), *both.items())}
    got, u, k = (arrays.pop(name) for name in ("y", "u", "k"))
    exact = reference.fftconv(u, k, mode=mode, **arrays)
    roundings = len(both) if not whole else 1 + 2 * len(both)
    bound = reference.fftconv_bound(len(factors), products, gates=roundings, coherent=min(length, taps) < 32)
    found = reference.relative_error(got, exact, u, k, pairs=packing == "pair", **arrays)
    assert found.worst <= bound * scatter(plan.n), (found, bound)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("packing", ["pair", "half"])
@pytest.mark.parametrize("factors", LISTS, ids=str)
def test_bodies_agree(factors: tuple[int, ...], packing: str, dtype: str) -> None:
    """The same roundings but for the order of sums; whole, and causal of odd length with gates."""
    torch = pytest.importorskip("torch")
    plan = plan_of(factors, packing)
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    for mode, length, gated in (("circular", plan.n, False), ("causal", plan.n // 2 - 3, True)):
        case = PLAIN._replace(
            factors=factors, mode=mode, length=length, taps=length, batch=3, dtype=dtype, gates=(gated, gated)
        )
        u, k, gates = case.data()
        convolve = FFTConv(prepare_filter(k, length=length, mode=mode, dtype=dtype, plan=plan), batch=3)
        there = {name: torch.from_numpy(x.astype(np.float32)).cuda().to(kind) for name, x in gates.items()}
        x = torch.from_numpy(u.astype(np.float32)).cuda().to(kind)
        got = convolve(x, out=torch.full_like(x, torch.nan), **there).double().cpu().numpy()
        expected = convolve.run_cpu(u, **gates)[0].astype(float)
        pairs = packing == "pair"
        apart = reference.relative_error(got, expected, u, k, pairs=pairs, **gates)
        assert apart.overall <= 0.4 * reference.fftconv_bound(len(factors), dtype), apart
        exact = reference.fftconv(u, k, mode=mode, **gates)
        reference.check_close(got, exact, u, k, bound=case.bound, pairs=pairs, **gates)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "factors",
    [
        (112, 112),
        (48, 48, 16),
        (256, 112),
        (128, 16, 16),
        (80, 32, 16),
        (432, 16),
        (127, 16, 16),
        (211, 16, 16),
    ],
    ids=str,
)
def test_long_lists_on_a_gpu(factors: tuple[int, ...]) -> None:
    """What fills shared memory, by both packings, against float64 on the GPU."""
    torch = pytest.importorskip("torch")
    for packing in ("pair", "half"):
        plan = plan_of(factors, packing)
        if not families.is_fused(plan):
            continue
        u = torch.randn(5, 3, plan.n, device="cuda").half()
        k = torch.randn(3, plan.n, device="cuda", dtype=torch.float64) / plan.n**0.5
        y = kernels_numba.fftconv(u, k, plan=plan, out=torch.full_like(u, torch.nan)).double()
        exact = torch.fft.irfft(torch.fft.rfft(u.double()) * torch.fft.rfft(k), n=plan.n)
        error = ((y - exact).norm() / exact.norm()).item()
        assert error <= reference.fftconv_bound(len(factors), "fp16"), (plan, error)


@pytest.mark.gpu
@pytest.mark.parametrize("products", ["fp16", "bf16"])
@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("complex_filter", [False, True])
def test_complex_sequences_on_a_gpu(library: str, products: str, complex_filter: bool) -> None:
    """Both bodies, with gates and without, filters of any size."""
    draw = np.random.default_rng(0)

    def data(*shape: int) -> NDArray[np.complex64]:
        return (draw.standard_normal(shape) + 1j * draw.standard_normal(shape)).astype(np.complex64)

    if library == "torch":
        torch = pytest.importorskip("torch")
        to = lambda x: torch.from_numpy(x).cuda()  # noqa: E731
        back = lambda x: x.cpu().numpy()  # noqa: E731
    else:
        cupy = pytest.importorskip("cupy")
        to, back = cupy.asarray, cupy.asnumpy
    for length, gated, size in ((700, True, 1.0), (4096, False, 1e5 if products == "bf16" else 30.0)):
        u, k = data(3, 2, length), data(2, 99) * np.float32(size / 10)
        k = k if complex_filter else k.real.copy()
        gates = {name: data(*u.shape) for name in ("pregate", "postgate")} if gated else {}
        mode = "causal" if gated else "circular"
        y = back(
            kernels_numba.fftconv(
                to(u), to(k), mode=mode, products=products, **{name: to(x) for name, x in gates.items()}
            )
        )
        exact = reference.fftconv(u, k, mode=mode, **gates)
        bound = reference.fftconv_bound(3, products, gates=1 + 2 * len(gates)) * scatter(length)
        reference.check_close(y, exact, u, k, bound=bound, **gates)
