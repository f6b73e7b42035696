"""Gradients of the fused convolution on a GPU: values, agreement with the CPU body, bits, streams, libraries."""

from math import prod
from typing import Any

import numpy as np
import pytest
from convolutions import PLAIN, Case, cases, filters, noise, scatter
from hypothesis import example, given, settings
from test_fftconv_gpu import poisoned, same_bits, to_numpy, to_torch
from test_fftconv_gradient_kernels import close

import kernels_numba
import reference
from kernels_numba import (
    FFTConv,
    FFTConvGradients,
    backward_pass,
    families,
    fftconv_gradients,
    gradient_families,
    gradient_float,
    long_gradient,
    prepare_filter,
)
from kernels_numba.arrays import adapter_of
from kernels_numba.filter_sums import FilterGradient
from kernels_numba.long_gradient import LongFilterGradient
from monarch import Plan

pytestmark = pytest.mark.gpu

LENGTH = 1024
NAMES = ("u", "k", "pregate", "postgate")


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def on_host(found: Any) -> Any:
    """Gradients on the GPU as NumPy arrays."""
    k = None if found.k is None else found.k.cpu().numpy()
    rest = {name: getattr(found, name) for name in NAMES if name != "k"}
    return found._replace(k=k, **{name: None if x is None else to_numpy(x) for name, x in rest.items()})


def alike(a: Any, b: Any) -> bool:
    """The same bits in everything."""
    pairs = [(getattr(a, name), getattr(b, name)) for name in NAMES]
    return all((x is None and y is None) or same_bits(x, y) for x, y in pairs)


# ---- values --------------------------------------------------------------------------------------------------
@settings(max_examples=25)  # most examples compile kernels of their own
@given(cases())
@example(PLAIN)
@example(PLAIN._replace(mode="causal", length=1, taps=1, batch=1))
@example(PLAIN._replace(mode="causal", length=127, taps=129, batch=3, gates=(True, True), offset=1))
@example(PLAIN._replace(length=251, taps=97, batch=5, channels=2, gates=(False, True)))
def test_within_the_bound_of_the_reference(case: Case) -> None:
    pytest.importorskip("torch")
    u, k, gates = case.data()
    dy = noise(u.shape, case.dtype, [case.seed, 5])
    there = {name: to_torch(x, case.offset) for name, x in gates.items()}
    plan = case.plan if case.length <= prod(case.factors) else None
    found = fftconv_gradients(
        to_torch(u, case.offset), k, to_torch(dy, case.offset), mode=case.mode, plan=plan, **there
    )
    exact = reference.fftconv_gradients(dy, u, k, mode=case.mode, **gates)
    close(on_host(found), case, exact, u, k, dy, gates)


ALL_PLANS = [Plan.of(f) for lists in gradient_families.DEFAULT_FACTORS.values() for f in lists]
ALL_PLANS += [Plan.of(f, packing="right-angle") for f in gradient_families.RIGHT_ANGLE_FACTORS.values()]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("variant", ["plain", "causal-gated"])
@pytest.mark.parametrize("plan", ALL_PLANS, ids=str)
def test_filter_gradient_of_every_plan(plan: Plan, variant: str, dtype: str, torch: Any) -> None:
    """Within the bound of the exact one, and close to the CPU body's where that is quick."""
    n, turned = plan.n, plan.packing == "right-angle"
    mode, length = ("causal", n // 2) if turned or variant != "plain" else ("circular", n)
    shape = (3, 2, length)
    u, dy = noise(shape, dtype, 1), noise(shape, dtype, 2)
    gated = variant != "plain"
    gates = {name: noise(shape, dtype, 3 + i) for i, name in enumerate(NAMES[2:])} if gated else {}
    gradient = FilterGradient(shape, taps=length, mode=mode, dtype=dtype, plan=plan)
    x, e, *both = (to_torch(v) for v in (u, dy, *gates.values()))
    before, after = both or (None, None)
    adapter = adapter_of(x, "u")
    dk, again = (gradient.launch(x, e, before, after, adapter=adapter, index=0) for _ in range(2))
    assert torch.equal(dk, again)
    exact = reference.fftconv_gradients(dy, u, np.zeros((2, length)), mode=mode, **gates).k
    bound = reference.filter_gradient_bound(plan.order, dtype, gates=len(gates))
    found = dk.cpu().numpy()
    pairs = not turned
    reference.check_filter_gradient(found, exact, dy, u, bound=bound * scatter(n), pairs=pairs, **gates)
    if n <= 4096:
        expected, _, _ = gradient.run_cpu(u, dy, *gates.values())
        apart = reference.filter_gradient_error(found, expected.astype(float), dy, u, pairs=True, **gates)
        assert apart.worst <= 0.4 * bound


WHOLE = [plan for plan in ALL_PLANS if backward_pass.family_of(plan)]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("plan", WHOLE, ids=str)
def test_all_gradients_at_once(plan: Plan, gated: bool, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the bounds of the exact ones, every element written, twice the same bits; a sequence is alone."""
    monkeypatch.setattr(kernels_numba.arrays.TorchAdapter, "empty_like", lambda self, x: poisoned(x))
    dtype, turned = ("bf16" if plan.n in (512, 4096) else "fp16"), plan.packing == "right-angle"
    mode, length = ("causal", plan.n // 2) if turned else ("circular", plan.n)
    case = PLAIN._replace(factors=plan.factors, mode=mode, length=length, taps=length, batch=3, dtype=dtype)
    case = case._replace(gates=(gated, gated))
    u, k, gates = case.data()
    dy = noise(u.shape, dtype, 9)
    there = {name: to_torch(x) for name, x in gates.items()}
    found, again = (
        on_host(fftconv_gradients(to_torch(u), k, to_torch(dy), mode=mode, plan=plan, **there))
        for _ in range(2)
    )
    assert alike(found, again)
    exact = reference.fftconv_gradients(dy, u, k, mode=mode, **gates)
    close(found, case, exact, u, k, dy, gates)


@pytest.mark.parametrize("factors", gradient_float.FACTORS, ids=str)
def test_fp32(factors: tuple[int, ...], torch: Any) -> None:
    n = prod(factors)
    gated = n in (512, 4096, 12288)
    mode, length = ("causal", n // 2) if gated else ("circular", n)
    shape = (3, 2, length)
    draw = np.random.default_rng(n)
    u, dy, *both = (draw.standard_normal(shape).astype(np.float32) for _ in range(4 if gated else 2))
    gates = dict(zip(NAMES[2:], both, strict=False))
    there = [torch.from_numpy(x).cuda() for x in (u, dy, *both)]
    gradient = FilterGradient(shape, taps=length, mode=mode, dtype="fp32", plan=Plan(n, factors))
    assert gradient.plan.factors == factors
    before, after = there[2:] or (None, None)
    dk, again = (
        gradient.launch(*there[:2], before, after, adapter=adapter_of(there[0], "u"), index=0)
        for _ in range(2)
    )
    assert torch.equal(dk, again)
    k = filters(2, length)
    exact = reference.fftconv_gradients(dy, u, k, mode=mode, **gates)
    bound = reference.filter_gradient32_bound(n, terms=2, gates=len(gates)) * scatter(n)
    reference.check_filter_gradient(dk.cpu().numpy(), exact.k, dy, u, bound=bound, pairs=True, **gates)
    found = fftconv_gradients(there[0], k, there[1], mode=mode, **dict(zip(gates, there[2:], strict=True)))
    bound = reference.fft32_bound(n, gates=len(gates)) * scatter(n)
    pair = {"pregate": gates.get("postgate"), "postgate": gates.get("pregate")}
    reference.check_close(found.u.cpu().numpy(), exact.u, dy, k, bound=bound, pairs=True, **pair)
    if gated:
        pair["postgate"] = u
        reference.check_close(
            found.pregate.cpu().numpy(), exact.pregate, dy, k, bound=bound, pairs=True, **pair
        )


@pytest.mark.parametrize(
    ("shape", "mode", "gated"),
    [((3, 2, 65536), "causal", True), ((2, 3, 131072), "circular", False), ((1, 1, 2**20), "causal", False)],
)
@pytest.mark.parametrize("workspace", [2**29, 1])
def test_beyond_one_kernel(
    shape: tuple[int, int, int], mode: str, gated: bool, workspace: int, torch: Any
) -> None:
    """Sums by rows, of all pairs at once and of each by itself; twice the same bits, and values by PyTorch."""
    generator = torch.Generator(device="cuda").manual_seed(5)

    def random() -> Any:
        return torch.randn(shape, device="cuda", generator=generator).half()

    u, noise_of_dy, *gates = (random() for _ in range(4 if gated else 2))
    dy, length = u + noise_of_dy, shape[2]
    split = long_gradient.choose(mode, length, length, "fp16", "fp16", 227 * 1024)
    gradient = LongFilterGradient(
        shape, taps=length, mode=mode, dtype="fp16", split=split, workspace=workspace
    )
    before, after = gates or (None, None)
    adapter = adapter_of(u, "u")
    dk, again = (gradient.launch(u, dy, before, after, adapter=adapter, index=0) for _ in range(2))
    assert torch.equal(dk, again)
    n = length if mode == "circular" else 2 * length
    x, e = (v if gate is None else v.double() * gate.double() for v, gate in ((u, before), (dy, after)))
    spectra = [torch.fft.rfft(v.double(), n=n) for v in (x, e)]
    exact = torch.fft.irfft((spectra[0].conj() * spectra[1]).sum(0), n=n)[..., :length].cpu().numpy()
    host = {name: x.double().cpu().numpy() for name, x in zip(NAMES[2:], gates, strict=False)}
    bound = reference.filter_gradient_bound(len(gradient.plan.factors), "fp16", gates=len(gates)) * scatter(n)
    there = (v.double().cpu().numpy() for v in (dy, u))
    reference.check_filter_gradient(dk.cpu().numpy(), exact, *there, bound=bound, pairs=True, **host)


def test_all_ways_back_to_taps(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (4, 6, 4096)
    u, dy = (to_torch(noise(shape, "fp16", i)) for i in range(2))

    def run() -> Any:
        gradient = FilterGradient(shape, taps=4096, mode="circular", dtype="fp16")
        return gradient.launch(u, dy, None, None, adapter=adapter_of(u, "u"), index=0)

    one = run()
    for way in ("whole", "passes"):
        monkeypatch.setattr(kernels_numba.gradient_jobs, "way_back", lambda *_, way=way, **__: way)
        two = run()
        assert (one - two).abs().max() <= 2e-6 * one.abs().max()


# Autograd's threads have no GPU yet when they come to a transform, which PyTorch then says.
@pytest.mark.filterwarnings("ignore:Attempting to run cuFFT")
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_full_load(dtype: str, torch: Any) -> None:
    """B = 64, H = 768, against PyTorch's own gradients in fp32; twice the same bits."""
    kind = torch.float16 if dtype == "fp16" else torch.bfloat16
    generator = torch.Generator(device="cuda").manual_seed(3)
    shape = (64, 768, LENGTH)
    u, dy = (torch.randn(shape, device="cuda", generator=generator).to(kind) for _ in range(2))
    k = torch.randn(shape[1:], device="cuda", generator=generator) / LENGTH**0.5
    run = FFTConvGradients(prepare_filter(k, length=LENGTH, dtype=dtype, gradients=True), batch=64)
    found, again = run(u, dy), run(u, dy)
    assert torch.equal(found.u.view(torch.int16), again.u.view(torch.int16)) and torch.equal(found.k, again.k)
    x, taps = u.float().requires_grad_(), k.clone().requires_grad_()
    y = torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(taps), n=LENGTH)
    y.backward(dy.float())
    error = (found.u.float() - x.grad).norm() / (dy.float().norm(dim=-1) * k.norm(dim=-1)).norm()
    assert error <= reference.fftconv_bound(2, dtype)
    size = (u.float().norm(dim=-1) * dy.float().norm(dim=-1)).norm(dim=0)
    errors = (found.k - taps.grad).norm(dim=-1) / size
    assert errors.max() <= reference.filter_gradient_bound(2, dtype) * scatter(LENGTH)


# ---- streams, graphs, libraries ------------------------------------------------------------------------------
@pytest.fixture
def prepared(torch: Any) -> tuple[Any, list, list]:
    """Compiled gradients, some inputs (u, dy and gates), and what comes out of each."""
    spectrum = prepare_filter(filters(6, LENGTH), length=LENGTH, gradients=True)
    run = FFTConvGradients(spectrum, batch=8)
    inputs = [[noise((8, 6, LENGTH), "fp16", [seed, i]) for i in range(4)] for seed in range(3)]

    def call(arrays: Any) -> Any:
        u, dy, before, after = arrays
        return run(u, dy, pregate=before, postgate=after)

    return call, inputs, [on_host(call([to_torch(x) for x in arrays])) for arrays in inputs]


def test_the_caller_s_stream(prepared: tuple, torch: Any) -> None:
    call, inputs, expected = prepared
    arrays, fresh = ([to_torch(x) for x in inputs[i]] for i in range(2))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for x, y in zip(arrays, fresh, strict=True):
            x.copy_(y)
        found = call(arrays)
    assert not stream.query()  # nothing waited for it
    stream.synchronize()
    assert alike(on_host(found), expected[1])


def test_graph_capture_and_replay(prepared: tuple, torch: Any) -> None:
    call, inputs, expected = prepared
    arrays = [to_torch(x) for x in inputs[0]]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call(arrays)
    for given_arrays, answer in zip(inputs, expected, strict=True):
        for x, y in zip(arrays, given_arrays, strict=True):
            x.copy_(to_torch(y))
        graph.replay()
        torch.cuda.synchronize()
        assert alike(on_host(found), answer)


def test_a_graph_with_the_filter_s_transform(torch: Any) -> None:
    """A training step changes the filter each time: all of it, from the taps on, is captured."""
    u, dy = (to_torch(noise((4, 3, 512), "fp16", i)) for i in range(2))
    k = torch.from_numpy(filters(3, 512)).float().cuda()
    fftconv_gradients(u, k, dy)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fftconv_gradients(u, k, dy)
    k.mul_(-3)
    graph.replay()
    torch.cuda.synchronize()
    assert alike(on_host(found), on_host(fftconv_gradients(u, k, dy)))


def test_cupy(prepared: tuple) -> None:
    cupy = pytest.importorskip("cupy")
    call, inputs, expected = prepared
    found = call([cupy.asarray(x) for x in inputs[0]])
    assert isinstance(found.k, cupy.ndarray) and found.k.dtype == np.float32
    assert all(same_bits(getattr(found, name).get(), getattr(expected[0], name)) for name in NAMES)


def test_numba(prepared: tuple) -> None:
    from kernels_numba.tile.compile import device_array

    call, inputs, expected = prepared
    arrays = [device_array(x.shape, x.dtype) for x in inputs[0]]
    for x, y in zip(arrays, inputs[0], strict=True):
        x.copy_to_device(y)
    found = call(arrays)
    assert type(found.k) is type(arrays[0])
    assert all(same_bits(getattr(found, name).copy_to_host(), getattr(expected[0], name)) for name in NAMES)


def test_arrays_on_the_host(prepared: tuple) -> None:
    call, inputs, expected = prepared
    with pytest.warns(kernels_numba.HostCopyWarning, match="copied to the GPU and back"):
        found = call(inputs[0])
    assert alike(found, expected[0])


def test_one_filter_for_all_channels(torch: Any) -> None:
    u, dy = noise((4, 70, 200), "fp16", 1), noise((4, 70, 200), "fp16", 2)
    k = filters(1, 40)[0]
    found = fftconv_gradients(to_torch(u), k, to_torch(dy), mode="causal")
    exact = reference.fftconv_gradients(dy, u, k, mode="causal")
    bound = reference.filter_gradient_bound(2, "fp16")
    reference.check_filter_gradient(found.k.cpu().numpy(), exact.k, dy, u, bound=bound, pairs=True)


def test_what_requires_a_gradient_is_refused(torch: Any) -> None:
    u = to_torch(noise((2, 1, 256), "fp16"))
    with pytest.raises(TypeError, match="requires a gradient"):
        fftconv_gradients(u.requires_grad_(), filters(1, 256), u.detach())
    with torch.no_grad():
        assert poisoned(fftconv_gradients(u, filters(1, 256), u).u).shape == u.shape


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_complex_sequences(library: str, torch: Any) -> None:
    xp = pytest.importorskip(library)
    draw = np.random.default_rng(9)

    def noise_of(*shape: int) -> Any:
        return (draw.standard_normal(shape) + 1j * draw.standard_normal(shape)).astype(np.complex64)

    u, dy, before, after, k = *(noise_of(3, 2, 1000) for _ in range(4)), noise_of(2, 1000)
    put = (lambda x: torch.from_numpy(x).cuda()) if library == "torch" else xp.asarray
    get = (lambda x: x.cpu().numpy()) if library == "torch" else xp.asnumpy
    gates = {"pregate": before, "postgate": after}
    there = {name: put(x) for name, x in gates.items()}
    found = fftconv_gradients(put(u), put(k), put(dy), mode="causal", **there)
    exact = reference.fftconv_gradients(dy, u, k, mode="causal", **gates)
    for name in NAMES:
        got, wanted = get(getattr(found, name)), getattr(exact, name)
        assert got.dtype == np.complex64 and np.linalg.norm(got - wanted) <= 5e-7 * np.linalg.norm(wanted)


TWICE = [(f, "fp16") for f in dict.fromkeys((*families.DEFAULT_FACTORS.values(), (64, 64), (48, 48)))]
TWICE += [(f, "fp32") for f, _ in TWICE if f in families.default_factors("fp32").values()]


@pytest.mark.parametrize("mode", ["circular", "causal"])
@pytest.mark.parametrize(("factors", "dtype"), TWICE, ids=str)
def test_two_output_gates(factors: tuple[int, ...], mode: str, dtype: str, torch: Any) -> None:
    """The bits of two runs, whatever the alignment."""
    n = prod(factors)
    length = n if mode == "circular" else n // 2 - 3
    generator = torch.Generator(device="cuda").manual_seed(7)
    kind = torch.float16 if dtype == "fp16" else torch.float32
    u, before, first, second = (
        torch.randn((3, 2, length), device="cuda", generator=generator).to(kind) for _ in range(4)
    )
    spectrum = prepare_filter(
        filters(2, length), length=length, mode=mode, dtype=dtype, plan=Plan(n, factors)
    )
    convolve = FFTConv(spectrum, batch=3)
    both = convolve.twice(u, first, second, pregate=before)
    for y, gate in zip(both, (first, second), strict=True):
        assert torch.equal(y, convolve(u, pregate=before, postgate=gate)) and y.isfinite().all()
