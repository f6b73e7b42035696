"""Filters that their convolution's kernel transforms, on a GPU: values, and taps and sequences that just changed."""

from typing import Any

import pytest

import reference
from kernels_numba import FFTConv, fftconv, prepare_filter
from kernels_numba.call_filter import Untransformed, prepare_for_call

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu
CALLS = 40
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def noise(*shape: int, dtype: Any = torch.float16, seed: int = 0) -> Any:
    return torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).to(dtype)


CASES = [("circular", n) for n in (256, 512, 768)] + [("causal", n) for n in (256, 301, 384, 512, 640, 768)]


def exactly(u: Any, k: Any, mode: str, *, adjoint: bool = False) -> Any:
    length = u.shape[-1]
    n = length if mode == "circular" else 2 * length
    bins = torch.fft.rfft(k.double(), n=n)
    y = torch.fft.irfft(torch.fft.rfft(u.double(), n=n) * (bins.conj() if adjoint else bins), n=n)
    return y[..., :length]


VARIANTS = {  # B, H, type of sequences and of taps, K / L, gates
    "whole": (64, 768, "fp16", "fp32", 1.0, ""),
    "few channels": (64, 5, "fp16", "fp32", 1.0, ""),
    "alone in a pair": (3, 7, "fp16", "bf16", 0.97, "adjoint pregate"),
    "one filter for all": (50, 131, "bf16", "fp16", 0.13, "shared postgate"),
    "one sequence": (1, 300, "fp16", "fp32", 0.51, "adjoint pregate postgate"),
}


@pytest.mark.parametrize(("mode", "n"), CASES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_values(mode: str, n: int, variant: str) -> None:
    """Whole and shorter filters of every type, one for all channels, gates, and the adjoint."""
    batch, channels, dtype, kind, part, how = VARIANTS[variant]
    taps, adjoint = int(part * n), "adjoint" in how
    u = noise(batch, channels, n, dtype=TYPES[dtype])
    shape = (taps,) if "shared" in how else (channels, taps)
    k = (noise(*shape, dtype=torch.float32, seed=1) / taps**0.5).to(TYPES[kind])
    names = [name for name in ("pregate", "postgate") if name in how]
    gates = {name: noise(*u.shape, dtype=u.dtype, seed=len(name)) for name in names}
    given = {"length": n, "mode": mode, "dtype": dtype, "channels": channels}
    spectrum = prepare_for_call(k, **given, adjoint=adjoint, scaled=True)
    y = FFTConv(spectrum, batch=batch)(u, out=torch.full_like(u, float("nan")), **gates)
    if not names and "shared" not in how:  # else there may be no room, or another length
        assert isinstance(spectrum, Untransformed) and "transformed" not in vars(spectrum)
    x = u.double() * (gates["pregate"].double() if "pregate" in gates else 1)
    exact = exactly(x, k, mode, adjoint=adjoint)
    exact = exact * (gates["postgate"].double() if "postgate" in gates else 1)
    bound = reference.fftconv_bound(2, dtype, gates=len(gates))
    assert ((y.double() - exact).norm() / exact.norm()).item() < 1.2 * bound
    # Channels of few samples scatter: the error's norm and that of the result.
    each = (y.double() - exact).norm(dim=(0, 2)) / exact.norm(dim=(0, 2))
    assert each.max().item() < 3 * bound


@pytest.mark.parametrize(("mode", "n"), CASES)
def test_taps_and_sequences_that_were_just_written(mode: str, n: int) -> None:
    """Each call reads taps and sequences of the launches before it, and may write where they read; in a graph too."""
    u, first = noise(64, 768, n), noise(768, n, dtype=torch.float32, seed=1) / n**0.5
    turns = [(1 + i % 3) * torch.roll(first, i, 0) for i in range(CALLS)]
    how = {"length": n, "mode": mode, "scaled": True}
    expected = [FFTConv(prepare_filter(k, **how), batch=64)(u) for k in turns]
    k, x = torch.full_like(first, float("nan")), torch.full_like(u, float("nan"))
    found = [torch.full_like(u, float("nan")) for _ in turns]

    def chain() -> None:
        for new, y in zip(turns, found, strict=True):
            x.copy_(u)
            k.copy_(new)
            fftconv(x, k, mode=mode, out=y)
            k.fill_(float("nan"))
            k.copy_(new)
            fftconv(x, k, mode=mode, out=x)
            x.sub_(y)  # nothing is left
            y.add_(x)

    def check() -> None:
        torch.cuda.synchronize()
        for y, right in zip(found, expected, strict=True):
            assert ((y.float() - right.float()).norm() / right.float().norm()).item() < 1e-3
            y.fill_(float("nan"))

    chain()
    check()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    for _ in range(5):
        graph.replay()
        check()


@pytest.mark.parametrize(("mode", "n"), CASES)
def test_calls_in_a_row(mode: str, n: int) -> None:
    """Calls that follow each other without a pause, each with the result of the one before: the same bits each time."""
    k = noise(768, n, dtype=torch.float32, seed=3) / n**0.5
    first = noise(64, 768, n)

    def chain() -> Any:
        x, y = first.clone(), torch.full_like(first, float("nan"))
        for _ in range(6):
            fftconv(x, k, mode=mode, out=y)
            fftconv(y, k, mode=mode, out=x)
        return x

    alone = first.clone()
    for _ in range(12):
        alone = fftconv(alone, k, mode=mode)
        torch.cuda.synchronize()
    for _ in range(10):
        assert torch.equal(chain().view(torch.int16), alone.view(torch.int16))
