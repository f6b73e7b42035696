"""The fused convolution on a GPU: values, agreement with the CPU body, streams, graphs, threads, array libraries."""

import threading
from collections.abc import Callable
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tiny_kernels
from convolutions import FACTORS, PLAIN, Case, cases, filters, noise, scatter
from hypothesis import example, given, settings
from numpy.typing import NDArray

import kernels_numba
import reference
from kernels_numba import FFTConv, prepare_filter
from kernels_numba.launch import LaunchError, LoadedKernel
from monarch import Plan

pytestmark = pytest.mark.gpu

LENGTH = 1024


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def to_torch(x: NDArray, offset: int = 0) -> Any:
    """On the GPU, contiguous, ``offset`` elements after an aligned address."""
    import torch

    bits = torch.from_numpy(np.ascontiguousarray(x).view(np.int16).reshape(-1))
    kind = torch.bfloat16 if x.dtype == ml_dtypes.bfloat16 else torch.float16
    room = torch.full((x.size + 16,), 0x7FFF, dtype=torch.int16, device="cuda")
    view = room[offset : offset + x.size]
    view.copy_(bits)
    return view.view(kind).reshape(x.shape)


def to_numpy(x: Any) -> NDArray:
    import torch

    kind = ml_dtypes.bfloat16 if x.dtype == torch.bfloat16 else np.float16
    return x.contiguous().view(torch.int16).cpu().numpy().view(kind)


def poisoned(x: Any) -> Any:
    import torch

    return torch.full_like(x, float("nan"))


def same_bits(a: NDArray, b: NDArray) -> bool:
    return bool((a.view(np.int16) == b.view(np.int16)).all())


# ---- values --------------------------------------------------------------------------------------------------
@settings(max_examples=80)  # most examples compile a kernel of their own
@given(cases())
@example(PLAIN)
@example(PLAIN._replace(mode="causal", length=1, taps=1, batch=1))
@example(PLAIN._replace(mode="causal", length=127, taps=129, batch=3, gates=(True, True), offset=1))
def test_within_the_bound_of_the_reference(case: Case) -> None:
    pytest.importorskip("torch")
    u, k, gates = case.data()
    there = {name: to_torch(x, case.offset) for name, x in gates.items()}
    x = to_torch(u, case.offset)
    out = to_torch(np.full(u.shape, np.nan, u.dtype), case.offset)
    y = kernels_numba.fftconv(x, k, mode=case.mode, plan=case.plan, out=out, **there)
    assert y is out
    exact = reference.fftconv(u, k, mode=case.mode, **gates)
    found = reference.relative_error(to_numpy(y), exact, u, k, pairs=True, **gates)
    assert found.worst <= case.bound, (found, case.bound)
    assert same_bits(to_numpy(x), u)


VARIANTS: dict[str, tuple[str, float, tuple[bool, bool]]] = {
    "plain": ("circular", 1.0, (False, False)),
    "causal": ("causal", 0.5, (False, False)),
    "gated": ("circular", 1.0, (True, True)),
    "causal-gated": ("causal", 0.5, (True, True)),
    "short and odd": ("two-sided", 0.37, (False, True)),
}
ALL_FACTORS = (
    *dict.fromkeys((*FACTORS, *kernels_numba.fused_group.FACTORS)),
    *dict.fromkeys(f for f in kernels_numba.families.DEFAULT_FACTORS.values() if len(f) == 3),
    *kernels_numba.fused_deep.FACTORS,
)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("factors", ALL_FACTORS, ids=str)
def test_bodies_agree(factors: tuple[int, ...], variant: str, dtype: str, torch: Any) -> None:
    """The same roundings but for the order of sums, which moves a few results to a neighbouring half."""
    mode, part, gates = VARIANTS[variant]
    n = prod(factors)
    length = n if mode == "circular" else int(part * n) | (variant == "short and odd")
    few = {"batch": 3, "channels": 2} if n <= 1024 else {"batch": 1, "channels": 1}
    case = PLAIN._replace(
        factors=factors, mode=mode, length=length, taps=length, gates=gates, dtype=dtype, **few
    )
    u, k, both = case.data()
    spectrum = prepare_filter(k, length=length, mode=mode, dtype=dtype, plan=Plan(n, factors))
    convolve = FFTConv(spectrum, batch=case.batch)
    x = to_torch(u)
    got = to_numpy(convolve(x, out=poisoned(x), **{name: to_torch(v) for name, v in both.items()})).astype(
        float
    )
    expected = convolve.run_cpu(u, **both)[0].astype(float)
    assert np.isfinite(got).all()
    apart = reference.relative_error(got, expected, u, k, pairs=True, **both)
    # Sums differ in their last bits, which moves one rounding in some hundred; what was moved moves later roundings
    # with a probability that grows with it, so the bodies part by about a twentieth of the bound per rounding.
    assert apart.overall <= 0.4 * reference.fftconv_bound(len(factors), dtype), apart
    assert abs(got - expected).max() <= 4 * reference.unit_roundoff(dtype) * abs(expected).max()
    exact = reference.fftconv(u, k, mode=mode, **both)
    reference.check_close(got, exact, u, k, bound=case.bound, pairs=True, **both)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_full_load(dtype: str, torch: Any) -> None:
    """B = 64, H = 768: every element against PyTorch in fp32, a few sequences against float64."""
    shape = (64, 768, LENGTH)
    generator = torch.Generator(device="cuda").manual_seed(3)
    kind = torch.float16 if dtype == "fp16" else torch.bfloat16
    x = torch.randn(shape, device="cuda", generator=generator).to(kind)
    k = torch.randn(shape[1:], device="cuda", generator=generator) / LENGTH**0.5
    y = kernels_numba.fftconv(x, k, out=poisoned(x))
    bound = reference.fftconv_bound(2, dtype)
    peer = torch.fft.irfft(torch.fft.rfft(x.float()) * torch.fft.rfft(k), n=LENGTH)
    sizes = x.float().norm(dim=-1) * k.norm(dim=-1)
    errors = (y.float() - peer).norm(dim=-1)
    assert (errors.square().sum() / sizes.square().sum()).sqrt().item() <= bound
    assert (errors / sizes).max().item() <= 1.5 * bound
    batches, channels = [0, 1, 30, 31, 62, 63], [0, 1, 500, 767]
    u, taps = to_numpy(x[batches][:, channels]), k[channels].cpu().numpy().astype(float)
    some = to_numpy(y[batches][:, channels])
    limit = bound * scatter(LENGTH)
    reference.check_close(some, reference.fftconv(u, taps), u, taps, bound=limit, pairs=True)


def test_one_sequence(torch: Any) -> None:
    u = noise((1, 1, 100), "fp16")
    k = filters(1, 30)
    x = to_torch(u)
    y = kernels_numba.fftconv(x, k, mode="causal", out=poisoned(x))
    exact = reference.fftconv(u, k, mode="causal")
    bound = reference.fftconv_bound(2, "fp16", coherent=True)
    reference.check_close(to_numpy(y), exact, u, k, bound=bound, pairs=True)


def test_runs_are_repeatable(torch: Any) -> None:
    u = noise((9, 7, LENGTH), "fp16")
    convolve = FFTConv(prepare_filter(filters(7, LENGTH), length=LENGTH), batch=9)
    x = to_torch(u)
    first = to_numpy(convolve(x, out=poisoned(x)))
    assert all(same_bits(to_numpy(convolve(x, out=poisoned(x))), first) for _ in range(20))


@pytest.mark.parametrize("offset", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("gated", [False, True])
def test_unaligned_views(offset: int, gated: bool, torch: Any) -> None:
    """Narrower accesses, the same bits; nothing beside the output is written."""
    u, v = noise((3, 2, 256), "fp16"), noise((3, 2, 256), "fp16", 1)
    convolve = FFTConv(prepare_filter(filters(2, 256), length=256), batch=3)
    gates = {"pregate": to_torch(v), "postgate": to_torch(v, offset)} if gated else {}
    aligned = {name: to_torch(v) for name in gates}
    expected = to_numpy(convolve(to_torch(u), **aligned))
    room = torch.full((u.size + 64,), float("nan"), device="cuda", dtype=torch.float16)
    out = room[16 + offset :][: u.size].view(u.shape)
    convolve(to_torch(u, offset), out=out, **gates)
    assert same_bits(to_numpy(out), expected)
    assert torch.isnan(room[: 16 + offset]).all() and torch.isnan(room[16 + offset + u.size :]).all()


@pytest.mark.parametrize("length", [256, 200, 129])
def test_in_place(length: int, torch: Any) -> None:
    u, k = noise((5, 3, length), "fp16"), filters(3, 57)
    mode = "circular" if length == 256 else "causal"
    x = to_torch(u)
    expected = to_numpy(kernels_numba.fftconv(x, k, mode=mode))
    assert kernels_numba.fftconv(x, k, mode=mode, out=x) is x
    assert same_bits(to_numpy(x), expected)


# ---- streams, graphs, threads --------------------------------------------------------------------------------
@pytest.fixture
def prepared(torch: Any) -> tuple[FFTConv, list[NDArray], list[NDArray]]:
    """A compiled convolution, several inputs, and what comes out of each."""
    convolve = FFTConv(prepare_filter(filters(6, LENGTH), length=LENGTH), batch=8)
    inputs = [noise((8, 6, LENGTH), "fp16", seed) for seed in range(4)]
    return convolve, inputs, [to_numpy(convolve(to_torch(u))) for u in inputs]


def test_the_caller_s_stream(prepared: tuple, torch: Any) -> None:
    """On a stream that is busy, the kernel waits for what comes before it there, and for nothing else."""
    convolve, inputs, expected = prepared
    stream = torch.cuda.Stream()
    x, fresh, early = (to_torch(u) for u in inputs[:3])
    y, other = poisoned(x), poisoned(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)  # a quarter of a second
        x.copy_(fresh)
        convolve(x, out=y)
    convolve(early, out=other)
    torch.cuda.default_stream().synchronize()
    assert not stream.query()  # still asleep, and neither the host nor the default stream waited for it
    assert same_bits(to_numpy(other), expected[2])
    stream.synchronize()
    assert same_bits(to_numpy(y), expected[1])


@pytest.mark.parametrize("n", [256, 1024, 2048, 4096, 16384])
def test_launches_in_a_row_wait_for_each_other(n: int, torch: Any) -> None:
    """Launches overlap, and each still reads what the one before wrote, or writes where it read; in a graph too."""
    k = np.random.default_rng(n).standard_normal((64, n)) / n**0.5
    convolve = FFTConv(prepare_filter(k, length=n), batch=64)
    first = torch.randn(64, 64, n, device="cuda").half()
    x, y = first.clone(), poisoned(first)
    for _ in range(6):  # one after the other, each alone
        convolve(x, out=y)
        torch.cuda.synchronize()
        x, y = y, x
    expected = x.clone()

    def chain(x: Any, y: Any) -> None:
        for _ in range(3):
            convolve(x, out=y)
            convolve(y, out=x)

    for _ in range(5):
        x.copy_(first)
        chain(x, y)
        assert torch.equal(x.view(torch.int16), expected.view(torch.int16))
        x.copy_(first)
        for _ in range(6):
            convolve(x, out=x)
        assert torch.equal(x.view(torch.int16), expected.view(torch.int16))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(x, y)
    for _ in range(5):
        x.copy_(first)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(x.view(torch.int16), expected.view(torch.int16))


@pytest.mark.parametrize("given_out", [True, False])
def test_graph_capture_and_replay(prepared: tuple, torch: Any, given_out: bool) -> None:
    convolve, inputs, expected = prepared
    x = to_torch(inputs[0])
    y = poisoned(x) if given_out else None
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = convolve(x, out=y)
    for u, answer in zip(inputs, expected, strict=True):
        x.copy_(to_torch(u))
        y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert same_bits(to_numpy(y), answer)


def in_threads(*functions: Callable[[], None]) -> None:
    """Run each in a thread of its own, and raise what they raise."""
    failed: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_two_host_threads(prepared: tuple, torch: Any) -> None:
    """One prepared convolution, called from two threads on streams of their own, never mixes their arrays."""
    convolve, inputs, expected = prepared
    meet = threading.Barrier(2)

    def work(first: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            xs = [to_torch(inputs[first + i]) for i in range(2)]
            outs = [poisoned(xs[i % 2]) for i in range(200)]
            meet.wait()
            for i, out in enumerate(outs):
                convolve(xs[i % 2], out=out)
            torch.cuda.current_stream().synchronize()
            for i, out in enumerate(outs):
                assert same_bits(to_numpy(out), expected[first + i % 2])

    in_threads(lambda: work(0), lambda: work(2))


def test_a_thread_that_has_not_used_the_gpu(prepared: tuple) -> None:
    """A new host thread has no current context; a launch there works all the same."""
    from kernels_numba.tile.compile import device_array

    convolve, inputs, expected = prepared
    u = device_array(inputs[0].shape, np.float16)
    u.copy_to_device(inputs[0])
    out = device_array(inputs[0].shape, np.float16)
    convolve(u, out=out)
    out.copy_to_device(np.full(inputs[0].shape, np.nan, np.float16))
    in_threads(lambda: convolve(u, out=out))
    assert same_bits(out.copy_to_host(), expected[0])


# ---- array libraries -----------------------------------------------------------------------------------------
def test_cupy(prepared: tuple) -> None:
    cupy = pytest.importorskip("cupy")
    convolve, inputs, expected = prepared
    y = convolve(cupy.asarray(inputs[0]))
    assert isinstance(y, cupy.ndarray)
    assert same_bits(y.get(), expected[0])
    with cupy.cuda.Stream(non_blocking=True) as stream:
        z = convolve(cupy.asarray(inputs[1]))
        stream.synchronize()
    assert same_bits(z.get(), expected[1])


def test_numba(prepared: tuple) -> None:
    from kernels_numba.tile.compile import device_array

    convolve, inputs, expected = prepared
    u = device_array(inputs[0].shape, np.float16)
    u.copy_to_device(inputs[0])
    y = convolve(u)
    assert type(y) is type(u)
    assert same_bits(y.copy_to_host(), expected[0])
    filters_there = device_array((6, LENGTH), np.float64)
    filters_there.copy_to_device(filters(6, LENGTH))
    assert same_bits(kernels_numba.fftconv(u, filters_there).copy_to_host(), expected[0])


def test_torch(prepared: tuple, torch: Any) -> None:
    convolve, inputs, expected = prepared
    x = to_torch(inputs[0])
    y = convolve(x)
    assert isinstance(y, torch.Tensor) and y.device == x.device and y.dtype == x.dtype
    assert same_bits(to_numpy(y), expected[0])
    k = torch.from_numpy(filters(6, LENGTH)).cuda().requires_grad_()
    assert same_bits(to_numpy(kernels_numba.fftconv(x, k)), expected[0])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_arrays_on_the_host_are_copied_and_it_is_said(prepared: tuple, torch: Any, library: str) -> None:
    convolve, inputs, expected = prepared
    u = inputs[0] if library == "numpy" else torch.from_numpy(inputs[0])
    with pytest.warns(kernels_numba.HostCopyWarning, match="copied to the GPU and back"):
        y = convolve(u)
    assert type(y) is type(u)
    assert same_bits(np.asarray(y), expected[0])
    gates = {
        name: noise(inputs[0].shape, "fp16", seed) for seed, name in enumerate(("pregate", "postgate"), 7)
    }
    there = {name: x if library == "numpy" else torch.from_numpy(x) for name, x in gates.items()}
    with pytest.warns(kernels_numba.HostCopyWarning):
        assert convolve(u, out=y, **there) is y
    exact = reference.fftconv(inputs[0], filters(6, LENGTH), **gates)
    bound = reference.fftconv_bound(2, "fp16", gates=2) * scatter(LENGTH)
    reference.check_close(
        np.asarray(y), exact, inputs[0], filters(6, LENGTH), bound=bound, pairs=True, **gates
    )


def test_arrays_in_two_places(prepared: tuple, torch: Any) -> None:
    convolve, inputs, _ = prepared
    x = to_torch(inputs[0])
    for name in ("pregate", "postgate", "out"):
        for wrong in (inputs[0], torch.from_numpy(inputs[0])):
            with pytest.raises(ValueError, match=f"^{name} is in host memory and u in GPU 0; move"):
                convolve(x, **{name: wrong})
        with pytest.raises(ValueError, match=f"^{name} is in GPU 0 and u in host memory; move"):
            convolve(inputs[0], **{name: x})


def test_gradients_are_not_dropped_silently(prepared: tuple, torch: Any) -> None:
    convolve, inputs, expected = prepared
    x = to_torch(inputs[0]).requires_grad_()
    with pytest.raises(TypeError, match=r"^u: the tensor requires a gradient.*no_grad"):
        convolve(x)
    with torch.no_grad():
        assert same_bits(to_numpy(convolve(x)), expected[0])
    assert same_bits(to_numpy(convolve(x.detach())), expected[0])


def test_views_that_are_not_contiguous(prepared: tuple, torch: Any) -> None:
    convolve, inputs, _ = prepared
    x = to_torch(inputs[0])
    wrong = torch.cat([x, x], dim=-1)[..., ::2]
    for arguments in ({"u": wrong}, {"u": x, "pregate": wrong}, {"u": x, "out": wrong}):
        with pytest.raises(ValueError, match=r"^\w+: expected a contiguous"):
            convolve(**arguments)


def test_a_second_gpu(torch: Any) -> None:
    """Runs where its arrays are, whatever GPU is current, and leaves that as it was."""
    if kernels_numba.device().count < 2:
        pytest.skip("needs two GPUs")
    u, k = noise((3, 2, 256), "fp16"), filters(2, 256)
    expected = to_numpy(kernels_numba.fftconv(to_torch(u), k))
    x = to_torch(u).to("cuda:1")
    with torch.cuda.device(0):
        y = kernels_numba.fftconv(x, k)
        assert torch.cuda.current_device() == 0
    assert y.device == x.device
    torch.cuda.synchronize(1)
    assert same_bits(to_numpy(y), expected)
    with pytest.raises(ValueError, match=r"^pregate is in GPU 0 and u in GPU 1"):
        kernels_numba.fftconv(x, k, pregate=to_torch(u))


# ---- errors of the launch ------------------------------------------------------------------------------------
@pytest.fixture
def tiny_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path / "cache"))


def test_too_much_shared_memory(tiny_cache: None) -> None:
    spec = tiny_kernels.Tiny("multiply", "fp16", shared_words=10**6)
    limit = kernels_numba.device().shared_bytes_per_block
    with pytest.raises(LaunchError, match=f"multiply needs 4000000 bytes.*allows {limit}"):
        LoadedKernel(tiny_kernels, spec, kernels_numba.device())


def test_a_launch_that_the_driver_refuses(tiny_cache: None) -> None:
    spec = tiny_kernels.Tiny("multiply", "fp16")
    loaded = LoadedKernel(tiny_kernels, spec, kernels_numba.device())
    launch = loaded.launcher(0, (*tiny_kernels.POINTERS, 0))  # an empty grid
    with pytest.raises(LaunchError, match=r"launch of multiply \(grid 0, 32 threads.*CUDA_ERROR"):
        launch(0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(256, (16, 16)),
        Plan(2048, (64, 32)),
        Plan(2048, (8, 16, 16)),
        Plan(2304, (48, 48)),
        Plan(4608, (48, 48), packing="half"),
        Plan(16384, (8, 8, 16, 16)),
        Plan(65536, (16, 8, 16, 16), packing="half"),
    ],
    ids=lambda plan: f"{plan.factors}-{plan.packing}",
)
def test_gigabytes_are_indexed_right(plan: Plan, torch: Any) -> None:
    """Offsets beyond 2^31 elements, by every family: the last sequences are as right as the first."""
    n = plan.n
    channels = max(5, (2**11 + 1) * 256 // n)
    batch = 2**31 // (channels * n) + 2
    need = 2 * batch * channels * n
    if torch.cuda.mem_get_info()[0] < 2.5 * need:
        pytest.skip(f"needs {2.5 * need / 1e9:.0f} GB of GPU memory")
    u = noise((2, 2, n), "fp16")
    x = torch.zeros((batch, channels, n), device="cuda", dtype=torch.float16)
    x[-1:, -2:] = to_torch(u)[:1]
    x[:1, :2] = to_torch(u)[1:]
    k = filters(1, n)[0]
    y = kernels_numba.fftconv(x, k, plan=plan, out=poisoned(x))
    bound = reference.fftconv_bound(plan.order, "fp16") * scatter(n)
    for place, part in ((y[-1:, -2:], u[:1]), (y[:1, :2], u[1:])):
        reference.check_close(to_numpy(place), reference.fftconv(part, k), part, k, bound=bound)
    for start in range(2, batch - 2, 64):  # NaN is not zero either
        assert not y[start : min(start + 64, batch - 2)].any()
