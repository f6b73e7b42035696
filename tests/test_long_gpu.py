"""Long convolutions on a GPU against float64 FFTs: lengths up to 2^24, adversarial signals, streams, zeros, graphs."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest

import kernels_numba.launch
import reference
from kernels_numba import FFTConv, FFTConvStream, partial_fftconv, prepare_filter
from monarch import Plan, SparsityPattern

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch")

KINDS = ("noise", "impulse", "constant", "tone", "outlier")


def signal(kind: str, shape: tuple[int, ...], dtype: str = "fp16") -> Any:
    generator = torch.Generator(device="cuda").manual_seed(len(kind))
    n = torch.arange(shape[-1], device="cuda", dtype=torch.float64)
    noise = torch.randn(shape, device="cuda", generator=generator)
    if kind == "impulse":
        noise = torch.zeros(shape, device="cuda")
        noise[..., shape[-1] // 3] = 1
    elif kind == "constant":
        noise = torch.ones(shape, device="cuda")
    elif kind == "tone":
        noise = torch.cos(2 * np.pi * 12345 * n / shape[-1]).expand(shape)
    elif kind == "outlier":
        noise[..., shape[-1] // 2] = 1000
    kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
    return noise.to(kinds[dtype]).contiguous()


def filters(channels: int, taps: int) -> Any:
    generator = torch.Generator(device="cuda").manual_seed(taps)
    return torch.randn((channels, taps), device="cuda", generator=generator, dtype=torch.float64) / taps**0.5


def exact(u: Any, k: Any, mode: str, mask: Any = None, n: int | None = None) -> Any:
    """In float64; causal on a circle without wrap-around, or on one of n points."""
    length = u.shape[-1]
    n = n or (length if mode == "circular" else length + k.shape[-1])
    bins = torch.fft.fft(k.double(), n=n)
    if mask is not None:
        bins = bins * mask
    return torch.fft.ifft(torch.fft.fft(u.double(), n=n) * bins).real[..., :length]


def close(y: Any, wanted: Any, u: Any, k: Any, bound: float) -> None:
    size = torch.linalg.norm(u.double(), dim=-1) * torch.linalg.norm(k.double(), dim=-1)
    found = torch.linalg.norm(y.double() - wanted, dim=-1) / torch.maximum(
        size, torch.linalg.norm(wanted, dim=-1)
    )
    pairs = found.square().mean(dim=0).sqrt()  # rounding in a pair is shared by its two sequences
    assert bool((pairs <= bound).all()), (found, bound)


@pytest.mark.parametrize("exponent", range(17, 25))
def test_powers_of_two(exponent: int) -> None:
    n = 2**exponent
    k, u = filters(1, n), signal("noise", (2, 1, n))
    spectrum = prepare_filter(k, length=n)
    assert spectrum.outer and spectrum.plan.n == n and spectrum.words.nbytes == 4 * n
    y = FFTConv(spectrum, batch=2)(u, out=torch.full_like(u, float("nan")))
    close(y, exact(u, k, "circular"), u, k, reference.fftconv_bound(spectrum.plan.order, "fp16"))


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("exponent", [17, 20, 22])
def test_signals_with_structure(kind: str, exponent: int) -> None:
    n = 2**exponent
    k, u = filters(1, n), signal(kind, (1, 1, n))
    spectrum = prepare_filter(k, length=n)
    y = FFTConv(spectrum, batch=1)(u, out=torch.full_like(u, float("nan")))
    bound = reference.fftconv_bound(spectrum.plan.order, "fp16", coherent=True)
    close(y, exact(u, k, "circular"), u, k, bound)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(("length", "taps"), [(65537, 65537), (100001, 30000), (3 * 2**17 - 4, 500)])
def test_causal_gated_any_length(length: int, taps: int, dtype: str) -> None:
    k = filters(2, taps)
    u, v, w = (signal("noise", (3, 2, length), dtype) for _ in range(3))
    v, w = v.flip(-1).contiguous(), w.roll(7, -1).contiguous()
    y = kernels_numba.fftconv(
        u, k, mode="causal", pregate=v, postgate=w, out=torch.full_like(u, float("nan"))
    )
    gated = (u * v).double()
    wanted = exact(gated, k, "causal") * w.double()
    order = prepare_filter(k, length=length, mode="causal", dtype=dtype).plan.order
    found = torch.linalg.norm(y.double() - wanted) / torch.linalg.norm(wanted)
    assert float(found) <= 1.1 * reference.fftconv_bound(order, dtype, gates=2)


@pytest.mark.parametrize("exponent", range(16, 25))
def test_powers_of_two_in_fp32(exponent: int) -> None:
    n = 2**exponent
    k, u = filters(1, n), signal("noise", (2, 1, n), "fp32")
    spectrum = prepare_filter(k, length=n, dtype="fp32")
    assert spectrum.outer and spectrum.plan.n == n and spectrum.words.nbytes == 8 * n
    y = FFTConv(spectrum, batch=2)(u, out=torch.full_like(u, float("nan")))
    close(y, exact(u, k, "circular"), u, k, reference.fft32_bound(n))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("length", "taps"), [(40001, 40001), (65537, 30000), (3 * 2**17 - 4, 500)])
def test_causal_gated_any_length_in_fp32(length: int, taps: int, dtype: str) -> None:
    """Of halves too: then only the result is rounded."""
    k = filters(2, taps)
    u, v, w = (signal("noise", (3, 2, length), dtype) for _ in range(3))
    v, w = v.flip(-1).contiguous(), w.roll(7, -1).contiguous()
    spectrum = prepare_filter(k, length=length, mode="causal", dtype=dtype, products="fp32")
    out = torch.full_like(u, float("nan"))
    y = FFTConv(spectrum, batch=3)(u, pregate=v, postgate=w, out=out)
    wanted = exact(u.double() * v.double(), k, "causal") * w.double()
    stored = 0.0 if dtype == "fp32" else reference.unit_roundoff(dtype) / 2
    found = torch.linalg.norm(y.double() - wanted) / torch.linalg.norm(wanted)
    assert float(found) <= reference.fft32_bound(spectrum.plan.n, gates=2) + stored


def test_groups_and_a_graph_in_fp32() -> None:
    n = 65536
    k, u = filters(3, n), signal("noise", (5, 3, n), "fp32")
    spectrum = prepare_filter(k, length=n, dtype="fp32")
    whole, small = FFTConv(spectrum, batch=5), FFTConv(spectrum, batch=5, workspace=16 * n)
    y = whole(u)
    assert len(small.groups) == 9 and bool((small(u) == y).all())  # type: ignore[attr-defined]
    out = torch.empty_like(u)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        whole(u, out=out)
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert bool((out == y).all())


def test_groups_and_a_graph() -> None:
    """Many groups give what one does; a captured graph gives what a call does, on inputs that came later."""
    n = 131072
    k, u = filters(3, n), signal("noise", (5, 3, n))
    spectrum = prepare_filter(k, length=n)
    whole, small = FFTConv(spectrum, batch=5), FFTConv(spectrum, batch=5, workspace=8 * n)
    y = whole(u)
    assert len(small.groups) == 9 and len(whole.groups) == 1  # type: ignore[attr-defined]
    assert bool((small(u) == y).all())
    x, out = torch.zeros_like(u), torch.empty_like(u)
    for convolve in (whole, small):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            convolve(x, out=out)
        x.copy_(u)
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert bool((out == y).all())
        x.zero_()


@pytest.mark.parametrize("tile", [2048, 4096, None])
def test_streams(tile: int | None) -> None:
    k, u = filters(2, 1000), signal("noise", (2, 2, 70000))
    v, w = u.flip(-1).contiguous(), u.roll(3, -1).contiguous()
    stream, y, at = FFTConvStream(k, (2, 2), tile=tile), [], 0
    for size in (1, 999, 20000, 0, 3001, 45999):
        part = slice(at, at + size)
        pieces = [x[..., part].contiguous() for x in (u, v, w)]
        out = torch.full_like(pieces[0], float("nan"))
        y.append(stream(pieces[0], pregate=pieces[1], postgate=pieces[2], out=out))
        at += size
    wanted = exact((u * v).double(), k, "causal") * w.double()
    whole = torch.cat(y, -1).double()
    bound = 1.1 * reference.fftconv_bound(3, "fp16", gates=2)
    assert float(torch.linalg.norm(whole - wanted) / torch.linalg.norm(wanted)) <= bound
    past = (u * v)[..., -999:].cpu().numpy()
    assert np.array_equal(stream.state, past)


def test_partial_equals_whole() -> None:
    k, u = filters(2, 2048), signal("noise", (1, 2, 2**20))
    bound = reference.fftconv_bound(3, "fp16") + reference.fftconv_bound(5, "fp16")
    tiled, whole = partial_fftconv(u, k), kernels_numba.fftconv(u, k, mode="causal")
    assert float(torch.linalg.norm((tiled - whole).double()) / torch.linalg.norm(whole.double())) <= bound


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("zeros", [(8, 0, 0, 0, 0), (8, 8, 0, 0, 0), (2, 4, 4, 0, 2)])
def test_zeros(zeros: tuple[int, ...], dtype: str) -> None:
    n = 2**20
    k, u = filters(1, n), signal("noise", (3, 1, n), dtype)
    plan = Plan(n, (16, 16, 16, 16, 16))
    pattern = SparsityPattern.middles(plan, zeros)
    spectrum = prepare_filter(k, length=n, plan=plan, pattern=pattern, dtype=dtype)
    each = 4096 * (2 if dtype == "fp32" else 1)
    assert len(spectrum.rows) < 256 and spectrum.words.shape[1] == len(spectrum.rows) * each
    y = FFTConv(spectrum, batch=3)(u, out=torch.full_like(u, float("nan")))
    mask = np.zeros(n, bool)
    mask[plan.frequencies().reshape(-1)] = pattern.kept
    wanted = exact(u, k, "circular", torch.from_numpy(mask).cuda())
    bound = reference.fft32_bound(n) if dtype == "fp32" else reference.fftconv_bound(plan.order, "fp16")
    close(y, wanted, u, k, bound)


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="takes all memory of the GPU")
def test_out_of_memory_says_what_fits() -> None:
    """With 200 MiB left, the workspace that the error names is enough."""
    n = 2**22
    k, u = filters(1, n), signal("noise", (2, 8, n))
    spectrum, out = prepare_filter(k[0], length=n, channels=8), torch.full_like(u, float("nan"))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # what PyTorch keeps for later is given back before an allocation fails
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(free - 200 * 2**20, dtype=torch.uint8, device="cuda")
    with pytest.raises(kernels_numba.launch.LaunchError, match=r"workspace=\d+\) fits") as caught:
        FFTConv(spectrum, batch=2)(u, out=out)
    room = int(re.findall(r"workspace=(\d+)", str(caught.value))[0])
    assert 100 * 2**20 < room <= 200 * 2**20
    y = FFTConv(spectrum, batch=2, workspace=room)(u, out=out)
    del ballast
    torch.cuda.empty_cache()  # the reference needs room too
    wanted = exact(u[:, :1], k, "circular")
    close(y[:, :1], wanted, u[:, :1], k, reference.fftconv_bound(spectrum.plan.order, "fp16"))


@pytest.mark.parametrize(
    ("factors", "zeros"),
    [
        ((32, 32), (16, 16)),
        ((16, 16, 32), (8, 0, 16)),
        ((8, 8, 16, 16), (4, 4, 0, 0)),
        ((16, 16, 16, 32), (8, 0, 0, 16)),
        ((16, 16, 16, 16, 32), (4, 0, 12, 0, 16)),
    ],
    ids=str,
)
def test_zeros_within_rows(factors: tuple[int, ...], zeros: tuple[int, ...]) -> None:
    """What one kernel leaves out, alone and between outer stages, equals the dense one with a masked spectrum."""
    n = int(np.prod(factors))
    plan = Plan(n, factors)
    pattern = SparsityPattern.middles(plan, zeros)
    k, u = filters(3, n), signal("noise", (3, 3, n))
    spectrum = prepare_filter(k, length=n, plan=plan, pattern=pattern)
    assert spectrum.marks or spectrum.axes
    y = FFTConv(spectrum, batch=3)(u, out=torch.full_like(u, float("nan")))
    mask = np.zeros(n, bool)
    mask[plan.frequencies().reshape(-1)] = pattern.kept
    wanted = exact(u, k, "circular", torch.from_numpy(mask).cuda())
    close(y, wanted, u, k, 1.1 * reference.fftconv_bound(plan.order, "fp16"))


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_offsets_beyond_32_bits(dtype: str) -> None:
    """More than 2^31 elements: the last sequences are as right as the first."""
    n, channels = 131072, 2
    batch = 2**31 // (n * channels) + 2
    kind, bound = {
        "fp16": (torch.float16, 1.2 * reference.fftconv_bound(4, "fp16")),
        "fp32": (torch.float32, 1.2 * reference.fft32_bound(n)),
    }[dtype]
    if torch.cuda.get_device_properties(0).total_memory < 30 * 2**30:
        pytest.skip("needs 30 GB")
    k, u = filters(channels, 64), torch.empty((batch, channels, n), dtype=kind, device="cuda")
    u.normal_()
    y = FFTConv(prepare_filter(k, length=n, dtype=dtype), batch=batch)(u)
    for b in (0, batch - 1):
        part = u[b : b + 1]
        wanted = exact(part, k, "circular")
        close(y[b : b + 1], wanted, part, k, bound)
