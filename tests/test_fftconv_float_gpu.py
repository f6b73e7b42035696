"""The fp32 convolution and filters' transforms on a GPU: values, agreement with the CPU body, streams, libraries."""

from math import prod
from typing import Any

import numpy as np
import pytest
from convolutions import filters, scatter
from hardware import HALF
from hypothesis import example, given, settings
from numpy.typing import NDArray
from test_fftconv_float import PAIR, ROUNDS, Case, cases, noise, plan_of

import kernels_numba
import reference
from kernels_numba import FFTConv, families, fused_float, prepare_filter, spectrum
from kernels_numba.filter_transform import WORKSPACE_BYTES
from kernels_numba.tile.layout import STORAGE_TYPES

pytestmark = pytest.mark.gpu

PLANS = families.default_plans(dtype="fp32")


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def to_torch(x: NDArray[np.float32], offset: int = 0) -> Any:
    """On the GPU, contiguous, ``offset`` elements after an aligned address, among NaN."""
    import torch

    room = torch.full((x.size + 16,), float("nan"), device="cuda")
    view = room[offset : offset + x.size]
    view.copy_(torch.from_numpy(np.ascontiguousarray(x).reshape(-1)))
    return view.reshape(x.shape)


def poisoned(x: Any) -> Any:
    import torch

    return torch.full_like(x, float("nan"))


# ---- values --------------------------------------------------------------------------------------------------
@settings(max_examples=40)  # most examples compile a kernel of their own
@given(cases())
@example(Case(PAIR, "circular", 256, 256))
@example(Case(PAIR, "causal", 127, 129, batch=3, gates=(True, True), offset=1))
@example(Case(plan_of((8, 8, 8), "half"), "two-sided", 501, 300, batch=3, gates=(True, True), offset=1))
def test_within_the_bound_of_the_reference(case: Case) -> None:
    pytest.importorskip("torch")
    u, k, gates = case.data()
    there = {name: to_torch(x, case.offset) for name, x in gates.items()}
    x = to_torch(u, case.offset)
    out = to_torch(np.full(u.shape, np.nan, np.float32), case.offset)
    y = kernels_numba.fftconv(x, k, mode=case.mode, plan=case.plan, out=out, **there)
    assert y is out
    case.check(y.cpu().numpy(), u, k, gates)
    assert (x.cpu().numpy() == u).all()


@settings(max_examples=20)
@given(cases(ROUNDS))
@example(Case(plan_of((12, 16, 16), "half"), "causal", 3071, 3000, batch=3, gates=(True, True), offset=1))
def test_points_in_shared_memory_within_the_bound(case: Case) -> None:
    test_within_the_bound_of_the_reference.hypothesis.inner_test(case)


VARIANTS: dict[str, tuple[str, float, tuple[bool, bool]]] = {
    "plain": ("circular", 1.0, (False, False)),
    "causal": ("causal", 0.5, (False, False)),
    "gated": ("circular", 1.0, (True, True)),
    "short and odd": ("two-sided", 0.37, (False, True)),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("n", PLANS)
def test_bodies_agree(n: int, variant: str, torch: Any) -> None:
    """Bit for bit, at every default length."""
    mode, part, gates = VARIANTS[variant]
    length = n if mode == "circular" else int(part * n) | (variant == "short and odd")
    case = Case(PLANS[n], mode, length, length, batch=3 if n <= 1024 else 1, channels=2, gates=gates)
    u, k, both = case.data()
    spectrum_of_k = prepare_filter(k, length=length, mode=mode, dtype="fp32", plan=PLANS[n])
    convolve = FFTConv(spectrum_of_k, batch=case.batch)
    x = to_torch(u)
    y = convolve(x, out=poisoned(x), **{name: to_torch(v) for name, v in both.items()}).cpu().numpy()
    assert (y == convolve.run_cpu(u, **both)[0]).all()
    case.check(y, u, k, both)


def test_a_full_load(torch: Any) -> None:
    """B = 64, H = 768: every sequence against PyTorch in float64."""
    for n in (512, 1024, 4096):
        x = torch.randn((64, 768, n), device="cuda")
        k = torch.randn((768, n), device="cuda", dtype=torch.float64) / n**0.5
        y = kernels_numba.fftconv(x, k, out=poisoned(x))
        bound, spectra = reference.fft32_bound(n), torch.fft.rfft(k)
        wrong = size = worst = 0.0
        for i in range(0, 64, 8):
            u = x[i : i + 8].double()
            error = (y[i : i + 8] - torch.fft.irfft(torch.fft.rfft(u) * spectra, n=n)).norm(dim=-1)
            terms = u.norm(dim=-1) * k.norm(dim=-1)
            wrong, size = wrong + error.square().sum().item(), size + terms.square().sum().item()
            worst = max(worst, (error / terms).max().item())
        assert (wrong / size) ** 0.5 <= bound and worst <= bound * scatter(n)


@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("packing", ["pair", "half"])
def test_unaligned_views(offset: int, packing: str, torch: Any) -> None:
    """The same bits; nothing beside the output is written."""
    plan = plan_of((16, 16), packing)
    u, v = noise((3, 2, plan.n)), noise((3, 2, plan.n), 1)
    convolve = FFTConv(prepare_filter(filters(2, plan.n), length=plan.n, dtype="fp32", plan=plan), batch=3)
    expected = convolve(to_torch(u), postgate=to_torch(v)).cpu().numpy()
    room = torch.full((u.size + 64,), float("nan"), device="cuda")
    out = room[16 + offset :][: u.size].view(u.shape)
    convolve(to_torch(u, offset), postgate=to_torch(v, offset), out=out)
    assert (out.cpu().numpy() == expected).all()
    assert torch.isnan(room[: 16 + offset]).all() and torch.isnan(room[16 + offset + u.size :]).all()


@pytest.mark.parametrize("length", [256, 200, 1024, 8192])
def test_in_place_and_repeatable(length: int, torch: Any) -> None:
    u, k = noise((9, 7, length)), filters(7, 57)
    x = to_torch(u)
    expected = kernels_numba.fftconv(x, k).cpu().numpy()
    for _ in range(10):
        z = x.clone()
        assert kernels_numba.fftconv(z, k, out=z) is z
        assert (z.cpu().numpy() == expected).all()


def test_graphs_and_side_streams(torch: Any) -> None:
    convolve = FFTConv(prepare_filter(filters(6, 1024), length=1024, dtype="fp32"), batch=8)
    inputs = [noise((8, 6, 1024), seed) for seed in range(3)]
    expected = [convolve(to_torch(u)).cpu().numpy() for u in inputs]
    x = to_torch(inputs[0])
    y = poisoned(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        convolve(x, out=y)
    for u, answer in zip(inputs, expected, strict=True):
        x.copy_(to_torch(u))
        y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert (y.cpu().numpy() == answer).all()


def test_libraries(torch: Any) -> None:
    """Arrays of NumPy (copied, which is said), CuPy and Numba give what PyTorch's give."""
    from kernels_numba.tile.compile import device_array

    u, k = noise((3, 2, 512)), filters(2, 512)
    expected = kernels_numba.fftconv(to_torch(u), k).cpu().numpy()
    with pytest.warns(kernels_numba.HostCopyWarning):
        assert (kernels_numba.fftconv(u, k) == expected).all()
    there = device_array(u.shape, np.float32)
    there.copy_to_device(u)
    assert (kernels_numba.fftconv(there, k).copy_to_host() == expected).all()
    cupy = pytest.importorskip("cupy")
    assert (kernels_numba.fftconv(cupy.asarray(u), k).get() == expected).all()


def test_gigabytes_are_indexed_right(torch: Any) -> None:
    """Offsets beyond 2^31 elements: the last sequences are as right as the first."""
    batch, channels = 2**12 + 1, 2**11 + 1
    need = 4 * batch * channels * 256
    if torch.cuda.mem_get_info()[0] < 2.5 * need:
        pytest.skip(f"needs {2.5 * need / 1e9:.0f} GB of GPU memory")
    u, k = noise((2, 2, 256)), filters(1, 256)[0]
    x = torch.zeros((batch, channels, 256), device="cuda")
    x[-1:, -2:], x[:1, :2] = to_torch(u)[:1], to_torch(u)[1:]
    y = kernels_numba.fftconv(x, k, out=poisoned(x))
    bound = reference.fft32_bound(256) * scatter(256)
    for place, part in ((y[-1:, -2:], u[:1]), (y[:1, :2], u[1:])):
        reference.check_close(place.cpu().numpy(), reference.fftconv(part, k), part, k, bound=bound)
    assert not y[2:-1].any()


# ---- filters -------------------------------------------------------------------------------------------------
FILTERS = [(dtype, n) for dtype in ("fp16", "bf16", "fp32") for n in families.default_factors(dtype)]


@pytest.mark.parametrize("mode", ["circular", "causal"])
@pytest.mark.parametrize(("dtype", "n"), FILTERS)
def test_spectra_are_numpy_s(dtype: str, n: int, mode: str, torch: Any) -> None:
    """Of every default plan: words within their roundoff, one in some hundred a neighbour, and scales equal.

    (Or larger in half precision by at most 2 sqrt(2), where a bound stands for the largest bin.)
    """
    plan = families.default_plan(n, dtype)
    length = n if mode == "circular" else n // 2
    k = filters(3, length) * np.array([[1.0], [1e-3], [1e3]])
    k = k.astype(np.float32 if mode == "circular" else np.float64)
    found = prepare_filter(torch.from_numpy(k).cuda(), length=length, mode=mode, dtype=dtype, plan=plan)
    layout = spectrum._layout(found.plan, mode, length, length, dtype)
    exact, scales = spectrum._transform(k.astype(np.float64), 3, layout)
    words, powers = found.on_host()
    peak = np.abs(np.fft.fft(k, n=n)).max(axis=1) if dtype != "fp32" else np.ones(3)
    larger = [spectrum._scales(times * peak, dtype) for times in (2, 2**1.5)]
    assert ((powers == scales) | (powers == larger).any(axis=0)).all()
    assert found.scaled == (powers != 1).any()
    got, wanted = (
        w.view(STORAGE_TYPES[dtype]).astype(float) * s[:, None] for w, s in ((words, powers), (exact, scales))
    )
    apart = np.linalg.norm(got - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    u = reference.unit_roundoff(dtype)
    assert (apart <= (0.01 * u if dtype == "fp32" else 0.1 * u + reference.fft32_bound(n))).all()
    assert (
        np.abs(got - wanted) <= 2 * u * np.abs(wanted) + 2e-6 * np.abs(wanted).max(axis=1, keepdims=True)
    ).all()


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_filters_of_any_library_and_type(dtype: str, kind: str, torch: Any) -> None:
    """The same words whoever holds the filter, contiguous or not, one for all channels or each its own."""
    from kernels_numba.tile.compile import device_array

    taps = filters(5, 300).astype({**HALF, "fp32": np.float32, "fp64": np.float64}[kind])
    options = {"length": 400, "mode": "causal", "dtype": dtype}
    expected, _ = prepare_filter(taps, **options).on_host()

    def same(k: Any) -> bool:
        return bool((prepare_filter(k, **options).on_host()[0] == expected).all())

    assert same(np.repeat(taps, 2, axis=1)[:, ::2])
    if kind != "bf16":
        there = torch.from_numpy(taps).cuda()
        assert same(there) and same(there.T.contiguous().T) and same(torch.from_numpy(taps))
        array = device_array(taps.shape, taps.dtype)
        array.copy_to_device(taps)
        assert same(array)
    else:
        there = torch.from_numpy(taps.astype(np.float32)).cuda().bfloat16()
        assert same(there)
    shared = prepare_filter(there[1], channels=3, **options).on_host()[0]
    assert (shared == expected[1:2]).all() and len(shared) == 3


@pytest.mark.parametrize(("dtype", "n"), [("fp16", 65536), ("fp32", 32768)])
def test_more_filters_than_the_workspace_holds(dtype: str, n: int, torch: Any) -> None:
    rows = 2 * WORKSPACE_BYTES // (8 * n) + 3
    k = torch.randn((rows, n), device="cuda") / n**0.5
    words, scales = prepare_filter(k, length=n, dtype=dtype).on_host()
    assert (scales == 1).all()
    for row in (0, rows // 2, rows - 1):
        alone, _ = prepare_filter(k[row], length=n, dtype=dtype).on_host()
        assert (words[row] == alone[0]).all()


def test_a_filter_made_on_a_busy_stream(torch: Any) -> None:
    """A library's filter is transformed after what comes before it on the library's stream."""
    k = torch.from_numpy(filters(2, 256)).cuda()
    expected, _ = prepare_filter(k, length=256).on_host()
    with torch.cuda.stream(torch.cuda.Stream()):
        late = torch.zeros_like(k)
        torch.cuda._sleep(200_000_000)
        late.copy_(k)
        words, _ = prepare_filter(late, length=256).on_host()
    assert (words == expected).all()


def test_every_length_is_covered() -> None:
    assert {prod(f) for f in fused_float.FACTORS} >= {2**i for i in range(8, 15)}
