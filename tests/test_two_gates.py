"""One convolution under two output gates: the bits of two runs, from every kernel family."""

from math import prod

import numpy as np
import pytest
from convolutions import half, noise

import kernels_numba
from kernels_numba import FFTConv, fftconv_gradients, prepare_filter
from monarch import Plan

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")

CASES = [  # a family each, and both packings; causal ones are of odd length
    ((16, 16), "pair", "fp16"),
    ((48, 32), "pair", "bf16"),
    ((64, 64), "pair", "fp16"),
    ((8, 16, 16), "pair", "fp16"),
    ((16, 16, 16), "half", "fp16"),
    ((8, 8, 16, 16), "pair", "bf16"),
    ((48, 48), "pair", "fp16"),
    ((16, 16), "pair", "fp32"),
    ((16, 16), "half", "fp32"),
    ((16, 16, 16), "long", "fp16"),  # with an outer stage each
    ((16, 16, 16, 16), "long", "bf16"),
    ((16, 16, 16), "long", "fp32"),
]


@pytest.mark.parametrize("mode", ["circular", "causal"])
@pytest.mark.parametrize(("factors", "packing", "dtype"), CASES, ids=str)
def test_the_bits_of_two_runs(factors: tuple[int, ...], packing: str, dtype: str, mode: str) -> None:
    n = prod(factors) * (2 if packing == "half" else 1)
    length = n if mode == "circular" else n // 2 - 3
    u, before, first, second = (
        x.astype(np.float32) if dtype == "fp32" else x
        for x in (noise((3, 1, length), "fp16" if dtype == "fp32" else dtype, i) for i in range(4))
    )
    k = np.random.default_rng(4).standard_normal((1, length)) / length**0.5
    long = packing == "long"
    plan = Plan(n, factors, packing="pair" if long else packing)
    spectrum = prepare_filter(
        k, length=length, mode=mode, dtype=dtype, plan=plan, on_chip=512 if long else None
    )
    assert spectrum.outer == long
    convolve = FFTConv(spectrum, batch=3)
    both = convolve.twice(u, first, second, pregate=before)
    for y, gate in zip(both, (first, second), strict=True):
        right = convolve(u, pregate=before, postgate=gate)
        assert y.shape == u.shape and y.dtype == u.dtype
        assert np.array_equal(y.view(np.uint16), right.view(np.uint16)) and np.abs(y.astype(float)).max() > 0


def test_gates_are_read_and_results_written_once_more() -> None:
    u, first, second = (noise((2, 3, 256), "fp16", i) for i in range(3))
    convolve = FFTConv(prepare_filter(np.eye(1, 256)[0], length=256, channels=3), batch=2)
    room = np.empty_like(u)
    _, one = convolve.run_cpu(u, postgate=first)
    _, two = convolve.run_cpu(u, postgate=first, second=(second, room))
    assert two.global_read_bytes["postgate2"] == one.global_read_bytes["postgate"] == 2 * u.size
    assert two.global_written_bytes["y2"] == one.global_written_bytes["y"] == 2 * u.size
    assert two.mma_m16n8k16 == one.mma_m16n8k16


def test_one_run_less_for_both_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of u and its gate, without the filter's, are one run; each alone is one too."""
    u, dy, before, after = (half(noise((2, 2, 256), "fp16", i), "fp16") for i in range(4))
    k = np.random.default_rng(5).standard_normal((2, 256)) / 16
    runs = []
    run = kernels_numba.cpu_convolution.run
    monkeypatch.setattr("kernels_numba.cpu_convolution.run", lambda *a: runs.append(a[4]) or run(*a))
    gates = {"pregate": before, "postgate": after}
    found = fftconv_gradients(u, k, dy, needs=("u", *gates), **gates)
    assert [second is not None for second in runs] == [True, False]
    for name in ("u", "pregate"):
        runs.clear()
        alone = fftconv_gradients(u, k, dy, needs=name, **gates)
        assert [second is not None for second in runs] == [False]
        same = getattr(alone, name).view(np.uint16) == getattr(found, name).view(np.uint16)
        assert same.all()


def test_gates_of_another_shape_are_refused() -> None:
    u = noise((2, 2, 256), "fp16")
    convolve = FFTConv(prepare_filter(np.eye(1, 256)[0], length=256, channels=2), batch=2)
    with pytest.raises(ValueError, match="second: expected shape"):
        convolve.twice(u, u, u[:1])
