"""``monarch.torch`` on a GPU: values and gradients, compiled, under autocast, in graphs, on streams."""

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch_cases  # noqa: E402
from torch_cases import array, operands  # noqa: E402

import reference  # noqa: E402
from monarch import Plan, SparsityPattern  # noqa: E402
from monarch.torch import LongConv, fftconv, forget_spectra, torch_fftconv  # noqa: E402
from monarch.torch.operators import OPERATORS, short_conv  # noqa: E402

pytestmark = pytest.mark.gpu
HALF = (torch.float16, torch.bfloat16)


SHAPES = {  # length, taps, points and order of the transform
    "causal": (500, 500, 1024, 2),
    "circular": (256, 256, 256, 2),
    "two-sided": (301, 77, 512, 2),
}


@pytest.mark.parametrize(
    ("dtype", "mode", "gates"),
    [
        *((torch.float16, "causal", gates) for gates in torch_cases.GATES),
        (torch.float16, "two-sided", "both"),
        (torch.bfloat16, "circular", "both"),
        (torch.bfloat16, "causal", "plain"),
        (torch.float32, "causal", "both"),
        (torch.float32, "two-sided", "plain"),
    ],
)
def test_values_and_gradients(dtype: Any, mode: str, gates: str) -> None:
    length, taps, points, order = SHAPES[mode]
    o = operands((5, 3, length), taps, gates, dtype, device="cuda")
    y = fftconv(o.u, o.k, mode=mode, **o.gates)
    y.backward(o.dy)
    torch_cases.check(o, y, mode, order=order, points=points)


@pytest.mark.parametrize(
    ("length", "points", "order"),
    [(4096, 8192, 3), (8192, 16384, 4), (32768, 65536, 4), (65536, 131072, 4), (300001, 786432, 4)],
)
def test_long_causal(length: int, points: int, order: int) -> None:
    o = operands((3, 2, length), length, "both", torch.float16, device="cuda")
    y = fftconv(o.u, o.k, mode="causal", **o.gates)
    y.backward(o.dy)
    torch_cases.check(o, y, "causal", order=order, points=points)


def test_long_causal_in_single_precision() -> None:
    """Beyond what one kernel sums: by rows, in fp32 throughout."""
    o = operands((3, 2, 40000), 40000, "both", torch.float32, device="cuda")
    y = fftconv(o.u, o.k, mode="causal", **o.gates)
    y.backward(o.dy)
    torch_cases.check(o, y, "causal", order=4, points=131072)


def test_long_convolutions_share_workspaces() -> None:
    """Steps with a filter each allocate none after the first, and all can be freed."""
    from kernels_numba.workspace import allocated

    forget_spectra()
    before = allocated(0)
    o = operands((2, 2, 65536), 65536, "plain", torch.float16, device="cuda")
    held = []
    for _ in range(3):
        fftconv(o.u, o.k, mode="causal").backward(o.dy)
        held.append(allocated(0) - before)
    assert held[0] > 0 and len(set(held)) == 1
    forget_spectra()
    assert allocated(0) == before


def test_gaps_and_overlaps_are_copied() -> None:
    o = operands((4, 6, 256), 256, "both", torch.float16, device="cuda")
    y = fftconv(o.u, o.k, mode="causal", **o.gates)
    y.backward(o.dy)
    wanted = [x.grad.clone() for x in (o.u, o.k, o.pregate, o.postgate)]
    leaves = [x.detach().clone().requires_grad_() for x in (o.u, o.k, o.pregate, o.postgate)]
    u, k, before, after = leaves
    strided = u.transpose(1, 2).contiguous().transpose(1, 2), k.t().contiguous().t()
    gates = {name: torch.stack([x, x], -1)[..., 0] for name, x in (("pregate", before), ("postgate", after))}
    z = fftconv(*strided, mode="causal", **gates)
    assert z.is_contiguous() and torch.equal(y, z)
    z.backward(o.dy.transpose(0, 1).contiguous().transpose(0, 1))
    for got, right in zip(leaves, wanted, strict=True):
        assert torch.equal(got.grad, right)


@pytest.mark.parametrize("dtype", HALF)
def test_autocast(dtype: Any) -> None:
    o = operands((4, 3, 512), 512, "both", torch.float32, device="cuda")
    with torch.autocast("cuda", dtype):
        y = fftconv(o.u, o.k, mode="causal", **o.gates)
    assert y.dtype == dtype
    y.backward(o.dy.to(dtype))
    assert {x.grad.dtype for x in (o.u, o.k, o.pregate, o.postgate)} == {torch.float32}
    half = torch_cases.Operands(*(x.detach().to(dtype) if x is not o.k else x for x in o[:4]), o.dy.to(dtype))
    for to, of in zip(half[:4], o[:4], strict=True):
        if to is not of:
            to.grad = of.grad.to(dtype)
    torch_cases.check(half, y, "causal", order=2, points=1024)


@pytest.mark.filterwarnings("default")  # those of PyTorch's own compiler
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool) -> None:
    o = operands((4, 3, 512), 512, "both", torch.float16, device="cuda")

    def layer(u: Any, k: Any, before: Any, after: Any) -> Any:
        return 2 * fftconv(torch.tanh(u), k, mode="causal", pregate=before, postgate=after)

    y = layer(*o[:4])
    y.backward(o.dy)
    wanted = [x.grad.clone() for x in o[:4]]
    for x in o[:4]:
        x.grad = None
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic)
    z = compiled(*o[:4])
    z.backward(o.dy)
    unit = reference.unit_roundoff("fp16")  # a fused tanh may round otherwise, by one unit
    assert (z - y).norm() <= 2 * unit * y.norm()
    for x, right in zip(o[:4], wanted, strict=True):
        assert (x.grad - right).float().norm() <= 4 * unit * right.float().norm()


def test_captured_with_its_filter() -> None:
    """A captured training step follows the filter: its transform is in the graph."""
    o = operands((4, 3, 512), 512, "both", torch.float16, device="cuda")
    stream = torch.cuda.Stream()

    def step() -> Any:
        for x in o[:4]:
            x.grad = None
        y = fftconv(o.u, o.k, mode="causal", **o.gates)
        y.backward(o.dy)
        return y

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = step()
    with torch.no_grad():
        o.k.copy_(torch.randn_like(o.k) * 512**-0.5)
        o.u.copy_(torch.randn_like(o.u))
        o.dy.copy_(o.u + torch.randn_like(o.u))
    graph.replay()
    torch.cuda.synchronize()
    torch_cases.check(o, y, "causal", order=2, points=1024)


def test_streams_do_not_share_what_is_not_finished() -> None:
    """Two streams, one filter that changes: each call sees the filter of its stream's order."""
    forget_spectra()
    torch.manual_seed(0)
    u = torch.randn(64, 8, 512, device="cuda", dtype=torch.float16)
    k = torch.randn(8, 512, device="cuda") / 512**0.5
    streams = [torch.cuda.Stream() for _ in range(2)]
    with torch.no_grad():
        for _ in range(10):
            k.normal_(std=512**-0.5)
            torch.cuda.synchronize()
            found = []
            for stream in streams:
                with torch.cuda.stream(stream):
                    found += [fftconv(u, k, mode="causal"), fftconv(u, k, mode="causal")]
            torch.cuda.synchronize()
            exact = reference.fftconv(array(u[:2]), array(k), mode="causal")
            for y in found:
                assert torch.equal(y, found[0])
            reference.check_close(
                array(found[0][:2]),
                exact,
                array(u[:2]),
                array(k),
                bound=reference.fftconv_bound(2, "fp16") * 1.2,
            )


def test_two_backward_passes_give_the_same_bits() -> None:
    o = operands((16, 8, 1000), 1000, "both", torch.bfloat16, device="cuda")
    found = []
    for _ in range(2):
        for x in o[:4]:
            x.grad = None
        fftconv(o.u, o.k, mode="causal", **o.gates).backward(o.dy)
        found.append([x.grad.clone() for x in o[:4]])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@two_gpus
@pytest.mark.parametrize("length", [512, 65536])
def test_second_gpu(length: int) -> None:
    """Data on a GPU that is not the current one; which that is does not change."""
    o = operands((4, 3, length), length, "both", torch.float16, device="cuda:1")
    assert torch.cuda.current_device() == 0
    y = fftconv(o.u, o.k, mode="causal", **o.gates)
    y.backward(o.dy)
    assert {y.get_device()} | {x.grad.get_device() for x in o[:4]} == {1} and torch.cuda.current_device() == 0
    torch_cases.check(o, y, "causal", order=2 if length == 512 else 4, points=2 * length)
    with pytest.raises(ValueError, match="k is on cuda:0 and u on cuda:1"):
        fftconv(o.u, o.k.to("cuda:0"), mode="causal")


@two_gpus
def test_a_thread_for_each_gpu() -> None:
    """Both at once, many times: each the bits that it gives alone."""
    both = [operands((8, 4, 1000), 1000, "both", torch.float16, device=f"cuda:{i}", seed=i) for i in range(2)]

    def run(o: Any) -> list[Any]:
        y = fftconv(o.u, o.k, mode="causal", **o.gates)
        return [y, *torch.autograd.grad(y, o[:4], o.dy)]

    alone = [run(o) for o in both]
    with ThreadPoolExecutor(2) as pool:
        for found in [pool.map(run, both) for _ in range(20)]:
            for right, got in zip(alone, found, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(right, got, strict=True))


def _replica(rank: int, port: int, results: str) -> None:
    """One process of `test_distributed_data_parallel`: its half of the batch."""
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    layer, u, dy = _parallel_data(f"cuda:{rank}")
    half = slice(4 * rank, 4 * rank + 4)
    replica = torch.nn.parallel.DistributedDataParallel(layer, device_ids=[rank])
    replica(u[half]).backward(2 * dy[half])  # gradients are averaged
    torch.save([p.grad.cpu() for p in layer.parameters()], f"{results}/{rank}.pt")
    torch.distributed.destroy_process_group()


def _parallel_data(device: str) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    layer = LongConv(6, 700, skip=True)
    u = torch.randn(8, 6, 700)
    dy = u + torch.randn_like(u)
    return layer.to(device), u.to(device, torch.bfloat16), dy.to(device, torch.bfloat16)


@two_gpus
def test_distributed_data_parallel(tmp_path: Any) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(_replica, (port, str(tmp_path)), nprocs=2)
    layer, u, dy = _parallel_data("cuda:0")
    layer(u).backward(dy)
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for p, a, b in zip(layer.parameters(), one, other, strict=True):
        assert torch.equal(a, b)  # as the processes agreed
        assert (a - p.grad.cpu()).norm() <= 1e-5 * p.grad.norm().cpu()  # sums in another order


def test_the_filter_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import kernels_numba

    made = []
    prepare = kernels_numba.prepare_filter
    monkeypatch.setattr(kernels_numba, "prepare_filter", lambda *a, **b: made.append(1) or prepare(*a, **b))
    layer = LongConv(3, 300, device="cuda").eval()
    u = torch.randn(2, 3, 300, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        y = layer(u)
        assert torch.equal(layer(u), y) and len(made) == 1
        layer.k.mul_(2)
        assert not torch.equal(layer(u), y) and len(made) == 2


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("shape", [(3, 5, 4096), (2, 3, 5000), (2, 2, 37), (70, 4, 128), (1, 2, 2**20)])
def test_short_filters(shape: tuple[int, int, int], dtype: Any) -> None:
    torch.manual_seed(0)
    x, dy = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
    w = torch.randn(shape[1], 3, device="cuda")
    found = []
    for u, k in ((x, w), (x, w), (x.double(), w.double())):
        u.requires_grad_()
        k.requires_grad_()
        y = short_conv(u, k)
        found.append([y, *torch.autograd.grad(y, (u, k), dy.to(u.dtype))])
    unit = reference.unit_roundoff("fp16" if dtype == torch.float16 else "bf16")
    for a, again, b, roundings in zip(*found, (1, 1, 0.01), strict=True):
        assert torch.equal(a, again)
        assert (a.double() - b).norm() <= roundings * unit * b.norm()


@pytest.mark.parametrize("name", list(OPERATORS))
def test_operators_agree_with_torch_fft(name: str) -> None:
    torch.manual_seed(0)
    layer = OPERATORS[name](64, 512).cuda()
    other = OPERATORS[name](64, 512, convolve=torch_fftconv).cuda()
    other.load_state_dict(layer.state_dict())
    x = torch.randn(4, 512, 64, device="cuda")
    found = []
    for each in (layer, other):
        with torch.autocast("cuda", torch.float16):
            y = each(x)
            loss = (y.float() * x).sum()
        loss.backward()
        found.append([y, *(p.grad for p in each.parameters())])
    bound = 8 * reference.fftconv_bound(
        2, "fp16", gates=2
    )  # casts and products in half precision, on both sides
    for a, b in zip(*found, strict=True):
        assert (a.float() - b.float()).norm() <= bound * b.float().norm()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("kind", [torch.complex64, torch.complex32])
@pytest.mark.parametrize("zeros", [False, True], ids=["dense", "zeros"])
def test_complex_sequences_in_a_graph(kind: Any, zeros: bool) -> None:
    """Values and gradients of complex operands, a complex filter's transform in the graph."""
    generator = torch.Generator("cuda").manual_seed(0)

    def noise(*shape: int) -> Any:
        return torch.randn(shape, dtype=torch.complex64, device="cuda", generator=generator)

    plan = Plan(1024, (32, 32), packing="complex") if zeros else None
    pattern = SparsityPattern.middles(Plan(1024, (32, 32)), (16, 0)) if zeros else None
    how: dict[str, Any] = {"mode": "causal", "plan": plan, "pattern": pattern}
    leaves = [noise(3, 2, 500).to(kind).requires_grad_() for _ in range(3)]
    leaves.append((noise(2, 400) / 20).requires_grad_())
    dy = noise(3, 2, 500).to(kind)
    stream = torch.cuda.Stream()

    def step() -> Any:
        for x in leaves:
            x.grad = None
        y = fftconv(leaves[0], leaves[3], pregate=leaves[1], postgate=leaves[2], **how)
        y.backward(dy)
        return y

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = step()
    with torch.no_grad():
        leaves[3].copy_(noise(2, 400) / 20)
    graph.replay()
    torch.cuda.synchronize()
    u, before, after, k = (x.detach().to(torch.complex128).cpu().numpy() for x in leaves)
    both = {"pregate": before, "postgate": after, "mode": "causal"}
    e = dy.to(torch.complex128).cpu().numpy()
    if zeros:
        wanted = reference.sparse_fftconv(u, k, pattern, plan=plan, **both)
        exact = reference.sparse_fftconv_gradients(e, u, k, pattern, plan=plan, **both)
    else:
        wanted, exact = reference.fftconv(u, k, **both), reference.fftconv_gradients(e, u, k, **both)
    bound = 1e-6 if kind == torch.complex64 else 8 * reference.fftconv_bound(2, "fp16", gates=2)
    found = {"u": leaves[0].grad, "pregate": leaves[1].grad, "postgate": leaves[2].grad, "k": leaves[3].grad}
    for name, x, right in (("y", y, wanted), *((n, x, getattr(exact, n)) for n, x in found.items())):
        x = x.detach().to(torch.complex128).cpu().numpy()
        assert ((abs(x - right) ** 2).sum() / (abs(right) ** 2).sum()) ** 0.5 <= bound, name


@pytest.mark.parametrize("n", [1024, 32768, 131072])
def test_zeros_in_the_spectrum(n: int) -> None:
    """All ways back to taps, and by rows beyond one kernel."""
    factors = {1024: (32, 32), 32768: (32, 32, 32), 131072: (32, 16, 16, 16)}[n]
    plan = Plan(n, factors)
    pattern = SparsityPattern.middles(plan, (factors[0] // 2, *[0] * (len(factors) - 1)))
    o = operands((3, 2, n // 2), n // 2, "both", torch.float16, device="cuda")
    y = fftconv(o.u, o.k, mode="causal", plan=plan, pattern=pattern, **o.gates)
    y.backward(o.dy)
    arrays = {"u": array(o.u), "k": array(o.k), "pregate": array(o.pregate), "postgate": array(o.postgate)}
    how: dict[str, Any] = {"pattern": pattern, "plan": plan, "mode": "causal"}
    exact = reference.sparse_fftconv_gradients(array(o.dy), **arrays, **how)
    bound = 3 * reference.fftconv_bound(4, "fp16", gates=2)
    pairs = [("y", array(y), reference.sparse_fftconv(**arrays, **how))]
    pairs += [(name, array(getattr(o, name).grad), getattr(exact, name)) for name in arrays]
    for name, x, right in pairs:
        assert ((x - right) ** 2).sum() ** 0.5 <= bound * (right**2).sum() ** 0.5, name
