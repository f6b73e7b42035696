"""Linear layers on a GPU: values, agreement with the CPU body, streams, graphs, overlapped launches, libraries."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray
from test_linear import DTYPES, OWN, Case, cases, judge

import kernels_numba
from kernels_numba import HostCopyWarning, Linear, linear_group, linear_stream
from kernels_numba.linear_product import LARGEST_M, Choice
from kernels_numba.linear_run import run_cpu
from kernels_numba.linear_settings import default_choice

pytestmark = pytest.mark.gpu

LAYERS = ((4096, 4096), (1024, 4096), (11008, 4096), (4097, 4095), (130, 8191), (5, 30000))


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def to_torch(x: NDArray, offset: int = 0) -> Any:
    """On the GPU, contiguous, ``offset`` elements after an aligned address, in a sea of NaN."""
    import torch

    bits = torch.from_numpy(np.ascontiguousarray(x).view(np.int16).reshape(-1))
    kind = torch.bfloat16 if x.dtype == ml_dtypes.bfloat16 else torch.float16
    room = torch.full((x.size + 32,), 0x7FFF, dtype=torch.int16, device="cuda")
    view = room[offset : offset + x.size]
    view.copy_(bits)
    return view.view(kind).reshape(x.shape)


def to_numpy(x: Any) -> NDArray:
    import torch

    kind = ml_dtypes.bfloat16 if x.dtype == torch.bfloat16 else np.float16
    return x.contiguous().view(torch.int16).cpu().numpy().view(kind)


def poisoned(torch: Any, m: int, n: int, like: Any) -> Any:
    return torch.full((m, n), float("nan"), dtype=like.dtype, device="cuda")


def noise(m: int, n: int, k: int, dtype: str = "fp16", seed: int = 0) -> tuple[NDArray, NDArray]:
    return Case("flat", 0, 1, m, n, k, dtype, seed=seed).data()


# ---- values --------------------------------------------------------------------------------------------------
AWKWARD = (
    Case("flat", 0, 3, 9, 37, 263, aligned_x=False),
    Case("flat", 1, 1, 8, 130, 520),
    Case("full", 1, 3, 33, 65, 200, "bf16", aligned_w=False),
    Case("full", 2, 1, 70, 128, 256),
    Case("full", 3, 2, 33, 80, 511, "bf16", aligned_x=False),
    Case("full", 4, 1, 31, 141, 384),
    Case("full", 3, 2, 33, 304, 511),
    Case("full", 4, 1, 5, 144, 257, "bf16"),
    Case("full", 5, 1, 64, 141, 384),
    Case("full", 6, 1, 100, 141, 384, "bf16", aligned_x=False, aligned_w=False),
)


@pytest.mark.parametrize("case", AWKWARD, ids=lambda case: f"{case.impl}-{case.variant}-{case.m}-{case.k}")
def test_bodies_agree_where_it_is_awkward(case: Case) -> None:
    bodies_agree(case)


@settings(max_examples=15)  # most examples compile a kernel of their own
@given(cases())
def test_bodies_agree(case: Case) -> None:
    bodies_agree(case)


def bodies_agree(case: Case) -> None:
    """The same sums but for the order within an instruction; both within the bound; inputs as they were."""
    torch = pytest.importorskip("torch")
    # Products on warpgroups run on compute capability 9.0 alone.
    here = kernels_numba.device().capability
    if getattr(case.product.family, "CAPABILITY", here) != here:
        return
    x, w = case.data()
    there = to_torch(x, 0 if case.aligned_x else 3), to_torch(w, 0 if case.aligned_w else 1)
    layer = Linear(case.m, case.n, case.k, dtype=case.dtype, choice=case.choice)
    out = poisoned(torch, case.m, case.n, there[0])
    for _ in range(2):  # counters are back where they were
        assert layer(*there, out=out) is out
        got = to_numpy(out)
        judge(got, x, w, case.dtype)
        out.fill_(float("nan"))
    expected, _ = run_cpu(case.product, x, w)
    if case.impl == "gemv" and case.aligned_w:  # nothing of it is left to the hardware's order
        assert np.array_equal(got.view(np.int16), expected.view(np.int16))
    assert np.array_equal(to_numpy(there[0]).view(np.int16), x.view(np.int16))
    assert np.array_equal(to_numpy(there[1]).view(np.int16), w.view(np.int16))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("impl", OWN)
@pytest.mark.parametrize(("n", "k"), LAYERS)
def test_default_kernels(n: int, k: int, impl: str, dtype: str, torch: Any) -> None:
    limit = LARGEST_M[impl] or 200
    x, w = noise(limit, n, k, dtype)
    a, b = to_torch(x), to_torch(w)
    for m in {1, min(3, limit), limit}:
        y = kernels_numba.linear(a[:m], b, impl=impl, out=poisoned(torch, m, n, a))
        judge(to_numpy(y), x[:m], w, dtype)


@pytest.mark.parametrize("m", [1, 2, 8, 16, 33, 64, 128, 300])
def test_dispatch(m: int, torch: Any) -> None:
    x, w = noise(m, 4096, 1024)
    judge(to_numpy(kernels_numba.linear(to_torch(x), to_torch(w))), x, w, "fp16")
    found = kernels_numba.explain_linear(m, 4096, 1024)
    assert found.choice.impl in LARGEST_M


def test_kernels_for_other_gpus_are_refused(torch: Any) -> None:
    """A choice on warpgroups says which GPUs have them; the full product picks it where it runs."""
    choice = default_choice("full", 300, 256, 512, capability=linear_group.CAPABILITY)
    x, w = noise(300, 256, 512)
    layer = Linear(300, 256, 512, dtype="fp16", choice=choice)
    here = kernels_numba.device().capability
    if here == linear_group.CAPABILITY:
        judge(to_numpy(layer(to_torch(x), to_torch(w))), x, w, "fp16")
    else:
        with pytest.raises(ValueError, match=r"runs on compute capability 9\.0 only, and GPU 0 has"):
            layer(to_torch(x), to_torch(w))
    found = Linear(300, 256, 512, dtype="fp16", impl="full").choice()
    assert ("groups" in found.options) == (here == linear_group.CAPABILITY)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (4097, 4095), (130, 8191)])
def test_full_product_for_many_rows(n: int, k: int, dtype: str, torch: Any) -> None:
    """Several tiles a block, whole and not; again and again the same bits."""
    x, w = noise(513, n, k, dtype)
    a, b = to_torch(x), to_torch(w)
    for m in (24, 64, 150, 256, 513):
        layer = Linear(m, n, k, dtype=dtype, impl="full")
        y = layer(a[:m], b, out=poisoned(torch, m, n, a))
        judge(to_numpy(y), x[:m], w, dtype)
        for _ in range(10):
            assert torch.equal(layer(a[:m], b, out=poisoned(torch, m, n, a)), y)


STREAMS = (
    {"groups": 1, "columns": 64, "pitch": 62, "stages": 9},
    {"groups": 1, "columns": 192, "pitch": 180, "stages": 4, "split": 3},
    {"groups": 1, "columns": 64, "pitch": 64, "stages": 8, "split": 8},
    {"groups": 2, "turned": 1, "columns": 96, "pitch": 120, "stages": 6, "split": 2},
    {"groups": 2, "columns": 256, "stages": 4},
)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("options", STREAMS, ids=str)
def test_operands_by_the_copy_engine(options: dict[str, int], overlap: bool, torch: Any) -> None:
    """Tiles and shares of the weights that are not whole, launch after launch, at addresses that change."""
    where = kernels_numba.device()
    if where.capability != linear_stream.CAPABILITY:
        pytest.skip(f"needs compute capability {linear_stream.CAPABILITY}; {where}")
    choice = Choice.of("full", stream=1, **options, shares=132)
    x, w = noise(300, 3001, 1032)
    a, b = to_torch(x), to_torch(w)
    for m in (1, 64, 300):
        layer = Linear(m, 3001, 1032, dtype="fp16", choice=choice, overlap=overlap)
        y = layer(a[:m], b, out=poisoned(torch, m, 3001, a))
        judge(to_numpy(y), x[:m], w, "fp16")
        for turn in range(50):
            elsewhere = a[:m].clone() if turn % 3 else a[:m]
            assert torch.equal(layer(elsewhere, b, out=poisoned(torch, m, 3001, a)), y)


def test_vendor(torch: Any) -> None:
    x, w = noise(7, 100, 200)
    out = poisoned(torch, 7, 100, to_torch(x))
    assert kernels_numba.linear(to_torch(x), to_torch(w), impl="vendor", out=out) is out
    judge(to_numpy(out), x, w, "fp16")


def test_results_do_not_depend_on_timing(torch: Any) -> None:
    """Split sums are added in one order: a hundred launches agree bit for bit."""
    x, w = noise(5, 200, 8192)
    a, b = to_torch(x), to_torch(w)
    for impl in OWN:
        if impl == "gemv":
            a = to_torch(x[:3])
        choice = Choice.of(impl, **{**default_choice(impl, 3, 200, 8192).options, "split": 4})
        layer = Linear(a.shape[0], 200, 8192, dtype="fp16", choice=choice)
        first = layer(a, b).clone()
        assert all(torch.equal(layer(a, b), first) for _ in range(100)), impl
        a = to_torch(x)


# ---- launching -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("n", "k"), [(512, 1024), (200, 8191)])
@pytest.mark.parametrize("impl", OWN)
@pytest.mark.parametrize("overlap", [False, True])
def test_chain_in_a_graph(impl: str, n: int, k: int, overlap: bool, torch: Any) -> None:
    """Each product reads the one before: overlapped launches must wait for it, in a graph too."""
    if torch.cuda.get_device_capability() < (9, 0) and overlap:
        pytest.skip("launches overlap from compute capability 9.0 on")
    x, w = noise(4, n, k)
    v = noise(4, k, n, seed=1)[1]
    a, b, c = to_torch(x), to_torch(w), to_torch(v)
    up = Linear(4, n, k, dtype="fp16", impl=impl, overlap=overlap)
    down = Linear(4, k, n, dtype="fp16", impl=impl, overlap=overlap)
    y, z = poisoned(torch, 4, n, a), poisoned(torch, 4, k, a)

    def chain() -> None:
        z.copy_(a)
        for _ in range(3):
            up(z, b, out=y)
            y.mul_(1 / 64)
            down(y, c, out=z)
            z.mul_(1 / 64)
            up(z, b, out=y)
            down(y, c, out=z)
            z.mul_(2.0**-11)

    chain()
    torch.cuda.synchronize()
    expected = z.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        chain()
    for _ in range(5):
        z.fill_(float("nan"))
        y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(z, expected)
    assert torch.isfinite(expected).all()


def test_streams_have_their_own_workspaces(torch: Any) -> None:
    x, w = noise(4, 64, 8192)
    choice = Choice.of("flat", **{**default_choice("flat", 4, 64, 8192).options, "split": 4})
    layer = Linear(4, 64, 8192, dtype="fp16", choice=choice)
    b = to_torch(w)
    inputs = [to_torch((x * s).astype(np.float16)) for s in (1, 2, -1, 0.5)]
    expected = [layer(a, b).clone() for a in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in inputs]
    outputs = [[] for _ in inputs]
    for _ in range(50):
        for stream, a, found in zip(streams, inputs, outputs, strict=True):
            with torch.cuda.stream(stream):
                found.append(layer(a, b))
    torch.cuda.synchronize()
    for found, wanted in zip(outputs, expected, strict=True):
        assert all(torch.equal(y, wanted) for y in found)


def test_host_arrays_are_copied_with_a_note() -> None:
    x, w = noise(3, 40, 99)
    with pytest.warns(HostCopyWarning):
        y = kernels_numba.linear(x, w)
    judge(y, x, w, "fp16")


def test_mixed_places_are_refused(torch: Any) -> None:
    x, w = noise(3, 40, 99)
    with pytest.raises(ValueError, match=r"w is in host memory and x in GPU 0"):
        kernels_numba.linear(to_torch(x), torch.from_numpy(w))
    with pytest.raises(TypeError, match="gradient"):
        kernels_numba.linear(to_torch(x).requires_grad_(), to_torch(w))


def test_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    x, w = noise(3, 40, 99)
    for impl in (*OWN, "vendor"):
        y = kernels_numba.linear(cupy.asarray(x), cupy.asarray(w), impl=impl)
        assert isinstance(y, cupy.ndarray)
        judge(y.get(), x, w, "fp16")
