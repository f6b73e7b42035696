"""Decode attention on a GPU: values, agreement with the CPU body, adversarial logits, streams, graphs, libraries."""

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attentions import GROUPS, KINDS, RANGES, Case, Problem, cases
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import kernels_numba
import reference
from kernels_numba import DecodeAttention
from kernels_numba.attention_checks import HEAD_SIZES

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def to_torch(x: Any) -> Any:
    import torch

    x = np.ascontiguousarray(x)
    if x.dtype in (np.float16, ml_dtypes.bfloat16):
        kind = torch.bfloat16 if x.dtype == ml_dtypes.bfloat16 else torch.float16
        return torch.from_numpy(x.view(np.int16)).cuda().view(kind)
    return torch.from_numpy(x).cuda()


def to_numpy(x: Any) -> NDArray:
    import torch

    kind = ml_dtypes.bfloat16 if x.dtype == torch.bfloat16 else np.float16
    return x.contiguous().view(torch.int16).cpu().numpy().view(kind)


def poisoned(x: Any) -> Any:
    import torch

    return torch.full_like(x, float("nan"))


def same(a: NDArray, b: NDArray) -> bool:
    return bool((a.view(np.int16) == b.view(np.int16)).all())


def prepared(case: Case, p: Problem, **other: Any) -> DecodeAttention:
    blocks = None if p.block_table is None else p.block_table.shape[1]
    made: dict[str, Any] = {"splits": case.splits, **case.settings, **other}
    return DecodeAttention(p.q.shape, p.k.shape, case.dtype, blocks=blocks, **made)


def run(attend: DecodeAttention, p: Problem, kind: type = np.int32) -> NDArray:
    """Run on poisoned memory."""
    q, k, v = to_torch(p.q), to_torch(p.k), to_torch(p.v)
    lengths = None if p.seqlens is None else to_torch(np.array(p.seqlens, kind))
    table = None if p.block_table is None else to_torch(p.block_table.astype(kind))
    out = poisoned(q)
    assert attend(q, k, v, seqlens=lengths, block_table=table, out=out) is out
    return to_numpy(out)


# ---- values --------------------------------------------------------------------------------------------------
@settings(max_examples=60)  # most examples compile a kernel of their own
@given(cases(room=300))
@example(Case(room=1, splits=6))
@example(Case(tokens=8, group=16, size=64, room=200))
@example(Case(tokens=5, room=3, lengths=True))
@example(Case(kind="all out of range", splits=5, group=6, size=136, room=200))
def test_within_the_bound_of_the_reference(case: Case) -> None:
    pytest.importorskip("torch")
    p = case.data()
    case.check(run(prepared(case, p), p, np.int64 if case.seed % 2 else np.int32), p)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("variant", ["async", "sync"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_bodies_agree(group: int, variant: str, dtype: str, torch: Any) -> None:
    """But for the order in which tensor cores add up, and exponentials, which move a few results by a rounding."""
    case = Case(group=group, variant=variant, dtype=dtype, size=128, room=150, splits=3, bounds=(-2.0, 2.0))
    p = case.data()
    attend = prepared(case, p)
    got, (expected, _) = run(attend, p), attend.run_cpu(p.q, p.k, p.v)
    case.check(got, p)
    apart = np.abs(got.astype(float) - expected.astype(float))
    assert np.max(apart / case.tolerance(p)) <= 2
    assert np.mean(apart > 0) < 0.1


@pytest.mark.parametrize("size", HEAD_SIZES)
def test_every_head_size(size: int, torch: Any) -> None:
    case = Case(size=size, group=3, room=200, splits=3, dtype="fp16" if size % 16 else "bf16")
    p = case.data()
    case.check(run(prepared(case, p), p), p)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("splits", [1, 7, 64])
def test_adversarial_logits(kind: str, splits: int, torch: Any) -> None:
    """One outlier, every row out of range, the ranges of the paper's models; more splits than tiles of keys."""
    case = Case(kind=kind, splits=splits, room=700, group=2, bounds=(-5.0, 5.0))
    p = case.data()
    case.check(run(prepared(case, p), p), p)


@pytest.mark.parametrize("place", [0, 1, 15, 16, 333, 699])
def test_an_outlier_anywhere(place: int, torch: Any) -> None:
    for value in (-200.0, 90.0):
        case = Case(room=700, group=3, scale=1.0, bounds=(-6.0, 6.0), splits=4)
        p = case.data()
        p.q[:] *= 0.1
        p.q[..., 0] = 1
        p.k[:, place, :, 0] = value
        assert case.flags(p).all()
        case.check(run(prepared(case, p), p), p)


def test_one_key(torch: Any) -> None:
    for splits in (1, 5, None):
        case = Case(room=1, group=4)
        p = case.data()
        y = run(prepared(case, p, splits=splits), p)
        assert same(y, np.repeat(p.v, 4, axis=2))


def test_what_is_not_seen_changes_no_bit(torch: Any) -> None:
    case = Case(tokens=3, group=2, room=100, lengths=True, seed=1)
    p = case.data()
    assert p.seqlens is not None
    attend = prepared(case, p)
    y = run(attend, p)
    for b, n in enumerate(p.seqlens):
        p.k[b, n:] = p.v[b, n:] = np.nan
    assert same(run(attend, p), y)


def test_lengths_that_do_not_fit_are_cut(torch: Any) -> None:
    """They are not looked at on the host; nothing outside the cache is read."""
    case = Case(room=50)
    p = case.data()
    attend = prepared(case, p)
    full = run(attend, p._replace(seqlens=[50, 0]))
    assert same(run(attend, p._replace(seqlens=[10**6, -3])), full)


@pytest.mark.parametrize("variant", ["async", "sync"])
def test_infinities_propagate(variant: str, torch: Any) -> None:
    for where, value in (("q", np.nan), ("k", np.inf), ("v", np.nan), ("v", np.inf), ("v", -np.inf)):
        case = Case(group=6, room=90, variant=variant, splits=3)
        p = case.data()
        x = {"q": p.q, "k": p.k, "v": p.v}[where]
        x[(0, 0, 1, 3) if where == "q" else (0, 20, 1, 3)] = value
        y, exact = run(prepared(case, p), p).astype(float), case.exact(p)
        assert np.array_equal(np.isnan(y), np.isnan(exact))
        odd = ~np.isfinite(exact) & ~np.isnan(exact)
        assert (y[odd] == exact[odd]).all() and np.isfinite(y[np.isfinite(exact)]).all()


def test_runs_are_repeatable(torch: Any) -> None:
    case = Case(batch=3, group=4, size=128, room=900, splits=9, kind="outlier", bounds=(-3.0, 3.0))
    p = case.data()
    attend = prepared(case, p)
    first = run(attend, p)
    assert all(same(run(attend, p), first) for _ in range(20))


@settings(max_examples=15)
@given(cases(room=300), st.just(2))
@example(Case(kind="outlier", room=900, group=6, size=128, bounds=(-3.0, 3.0)), 4)
def test_splits_as_a_cluster_give_the_same_bits(case: Case, cluster: int) -> None:
    """As by way of device memory, which other numbers of splits and GPUs without clusters take."""
    case = case._replace(splits=cluster)
    p = case.data()
    y = run(prepared(case, p), p)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernels_numba.splits.CLUSTERS_SINCE", (99, 0))
        assert same(run(prepared(case, p), p), y)


@pytest.mark.parametrize("model", RANGES)
def test_a_full_load(model: str, torch: Any) -> None:
    """B = 8, 32 heads of 128, 4096 keys, against PyTorch in float64."""
    low, high = RANGES[model]
    generator = torch.Generator(device="cuda").manual_seed(1)
    q, k, v = (
        torch.randn((8, n, 32, 128), device="cuda", generator=generator, dtype=torch.float32)
        for n in (1, 4096, 4096)
    )
    q *= 0.01
    q[..., 0] = 1
    k[..., 0] = torch.rand(k.shape[:-1], device="cuda", generator=generator) * (high - low) + low
    q, k, v = q.half(), k.half(), v.half()
    wide = high - low > 100
    scheme: dict[str, Any] = (
        {"variant": "sync"}
        if wide
        else {"phi": (low + high) / 2, "bounds": (-(high - low) / 2, (high - low) / 2)}
    )
    y = kernels_numba.decode_attention(q, k, v, scale=1.0, out=poisoned(q), **scheme)
    bound = reference.decode_attention_bound("fp16")
    for b in range(8):
        x = torch.einsum("thd,lhd->hl", q[b].double(), k[b].double())
        exact = torch.einsum("hl,lhd->hd", torch.softmax(x, dim=-1), v[b].double())
        assert ((y[b, 0].double() - exact).norm() / exact.norm()).item() <= bound


# ---- layouts, streams, graphs, threads ---------------------------------------------------------------------------
@pytest.fixture
def ready(torch: Any) -> tuple[DecodeAttention, list[Problem], list[NDArray]]:
    case = Case(batch=2, group=2, size=128, room=400, splits=5)
    problems = [case._replace(seed=seed).data() for seed in range(4)]
    attend = prepared(case, problems[0])
    return attend, problems, [run(attend, p) for p in problems]


def test_layouts(ready: tuple, torch: Any) -> None:
    attend, problems, expected = ready
    q, k, v = (to_torch(x) for x in (problems[0].q, problems[0].k, problems[0].v))
    first = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    both = torch.stack([k, v], dim=2)
    for one, other in (first, (both[:, :, 0], both[:, :, 1]), (k, v)):
        assert same(to_numpy(attend(q, one, other, out=poisoned(q))), expected[0])
    with pytest.raises(ValueError, match=r"^v_cache: expected the strides of k_cache"):
        attend(q, k, first[1])
    with pytest.raises(ValueError, match=r"^k_cache: expected contiguous heads"):
        attend(q, torch.cat([k, k], dim=-1)[..., ::2], v)
    with pytest.raises(ValueError, match=r"^q: expected an array on a 16-byte boundary"):
        room = torch.zeros(q.numel() + 8, device="cuda", dtype=q.dtype)
        attend(room[1 : 1 + q.numel()].view(q.shape), k, v)
    with pytest.raises(ValueError, match=r"^k_cache is in host memory and q in GPU 0"):
        attend(q, k.cpu(), v)
    with pytest.raises(TypeError, match=r"^seqlens: expected int32 or int64"):
        attend(q, k, v, seqlens=torch.ones(2, device="cuda"))


def test_graph_capture_and_replay(ready: tuple, torch: Any) -> None:
    """On the stream of the capture, which no call has used before."""
    attend, problems, expected = ready
    q, k, v = (to_torch(x) for x in (problems[0].q, problems[0].k, problems[0].v))
    out = poisoned(q)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend(q, k, v, out=out)
    for p, answer in zip(problems, expected, strict=True):
        for there, x in ((q, p.q), (k, p.k), (v, p.v)):
            there.copy_(to_torch(x))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert same(to_numpy(out), answer)


def test_streams_and_threads(ready: tuple, torch: Any) -> None:
    """Two host threads on streams of their own never mix their partial results."""
    attend, problems, expected = ready
    meet = threading.Barrier(2)
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                there = [[to_torch(x) for x in (p.q, p.k, p.v)] for p in problems[first : first + 2]]
                outs = [poisoned(there[0][0]) for _ in range(200)]
                meet.wait()
                for i, out in enumerate(outs):
                    attend(*there[i % 2], out=out)
                torch.cuda.current_stream().synchronize()
                assert all(same(to_numpy(out), expected[first + i % 2]) for i, out in enumerate(outs))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_host_arrays_are_copied_and_it_is_said(ready: tuple) -> None:
    attend, problems, expected = ready
    p = problems[0]
    with pytest.warns(kernels_numba.HostCopyWarning, match="copied to the GPU and back"):
        assert same(attend(p.q, p.k, p.v), expected[0])


def test_cupy(ready: tuple) -> None:
    cupy = pytest.importorskip("cupy")
    attend, problems, expected = ready
    y = attend(*(cupy.asarray(x) for x in (problems[0].q, problems[0].k, problems[0].v)))
    assert isinstance(y, cupy.ndarray) and same(y.get(), expected[0])


def test_gradients_are_not_dropped_silently(ready: tuple, torch: Any) -> None:
    attend, problems, _ = ready
    q, k, v = (to_torch(x) for x in (problems[0].q, problems[0].k, problems[0].v))
    with pytest.raises(TypeError, match=r"^q: the tensor requires a gradient"):
        attend(q.requires_grad_(), k, v)


def test_the_workspace_is_what_is_said(ready: tuple) -> None:
    attend, _, _ = ready
    spec = attend.spec()
    assert attend.workspace_bytes(spec, 1) == 0
    assert attend.workspace_bytes(spec, 5) == 4 * 4 * (5 * spec.record_words + 1)


def test_gigabytes_are_indexed_right(torch: Any) -> None:
    """Offsets beyond 2^31 elements: the last sequence is as right as the first."""
    batch, length = 9, 2**16
    if torch.cuda.mem_get_info()[0] < 4.5 * batch * length * 32 * 128 * 2:
        pytest.skip("needs 22 GB of GPU memory")
    q = torch.randn((batch, 1, 32, 128), device="cuda", dtype=torch.float16)
    k = torch.zeros((batch, length, 32, 128), device="cuda", dtype=torch.float16)
    v = torch.zeros_like(k)
    for b in (0, batch - 1):
        k[b].normal_()
        v[b].normal_()
    y = kernels_numba.decode_attention(q, k, v, phi=0.0, bounds=(-10.0, 10.0), out=poisoned(q))
    for b in (0, batch - 1):
        one = kernels_numba.decode_attention(
            q[b : b + 1], k[b : b + 1].clone(), v[b : b + 1].clone(), phi=0.0, bounds=(-10.0, 10.0)
        )
        assert (y[b].float() - one[0].float()).abs().max().item() < 2e-4
    assert not y[1:-1].any()
