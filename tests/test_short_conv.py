"""Short causal filters and their gradients on the CPU body: values, bits, counts, what is refused."""

from typing import Any

import numpy as np
import pytest
from convolutions import noise
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import reference
from kernels_numba import short_conv as module
from kernels_numba.short_conv import (
    SPAN,
    make_spec,
    run_cpu,
    run_cpu_gradients,
    short_conv,
    short_conv_gradients,
)


def exact(x: NDArray, w: NDArray, dy: NDArray) -> tuple[NDArray, NDArray, NDArray]:
    """y, dx and dw in float64."""
    (_, _, length), taps = x.shape, w.shape[1]
    before = np.pad(x.astype(float), ((0, 0), (0, 0), (taps - 1, 0)))
    after = np.pad(dy.astype(float), ((0, 0), (0, 0), (0, taps - 1)))
    shifted = [before[..., t : t + length] for t in range(taps)]
    y = sum(w[:, t, None] * shifted[t] for t in range(taps))
    dx = sum(w[:, t, None] * after[..., taps - 1 - t :][..., :length] for t in range(taps))
    return y, dx, np.stack([(dy.astype(float) * s).sum((0, 2)) for s in shifted], axis=1)


@settings(max_examples=25)
@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 3),
    length=st.integers(1, 1200),
    taps=st.integers(1, module.MOST_TAPS),
    dtype=st.sampled_from(["fp16", "bf16"]),
    seed=st.integers(0, 99),
)
@example(batch=2, channels=3, length=SPAN + 8, taps=3, dtype="fp16", seed=0)
@example(batch=40, channels=1, length=16, taps=4, dtype="bf16", seed=0)
@example(batch=1, channels=1, length=1, taps=8, dtype="fp16", seed=0)
def test_values_and_gradients(
    batch: int, channels: int, length: int, taps: int, dtype: str, seed: int
) -> None:
    shape = (batch, channels, length)
    x, dy = noise(shape, dtype, [seed, 1]), noise(shape, dtype, [seed, 2])
    w = np.random.default_rng(seed).standard_normal((channels, taps)).astype(np.float32)
    y, dx, dw = exact(x, w, dy)
    got, (got_dx, got_dw, _) = run_cpu(x, w)[0], run_cpu_gradients(x, w, dy)
    assert got.dtype == got_dx.dtype == x.dtype and got_dw.dtype == np.float32
    u = reference.unit_roundoff(dtype)
    terms = np.abs(w).sum(1)[:, None] * max(np.abs(x.astype(float)).max(), np.abs(dy.astype(float)).max())
    for a, b in ((got, y), (got_dx, dx)):
        assert (np.abs(a.astype(float) - b) <= u * np.abs(b) + 2.0**-20 * terms + 2.0**-25).all()
    largest = np.linalg.norm(x.astype(float)) * np.linalg.norm(dy.astype(float))
    assert np.abs(got_dw - dw).max() <= 2.0**-20 * largest


def test_two_passes_give_the_same_bits() -> None:
    x, dy = noise((5, 2, 900), "fp16", 1), noise((5, 2, 900), "fp16", 2)
    w = np.ones((2, 3), np.float32)
    one, two = run_cpu_gradients(x, w, dy)[:2], run_cpu_gradients(x, w, dy)[:2]
    assert all((a == b).all() for a, b in zip(one, two, strict=True))


def test_what_is_not_finite_reaches_its_neighbours_only() -> None:
    x, dy = noise((2, 2, 100), "fp16", 1), noise((2, 2, 100), "fp16", 2)
    w = np.ones((2, 3), np.float32)
    x[0, 1, 50], dy[1, 0, 20] = np.nan, np.inf
    y = run_cpu(x, w)[0]
    assert sorted(map(tuple, np.argwhere(~np.isfinite(y)))) == [(0, 1, 50 + i) for i in range(3)]
    dx, dw, _ = run_cpu_gradients(x, w, dy)
    assert sorted(map(tuple, np.argwhere(~np.isfinite(dx)))) == [(1, 0, 18 + i) for i in range(3)]
    assert not np.isfinite(dw[0]).any() and np.isnan(dw[1]).all()


@pytest.mark.parametrize("length", [4096, 256])
def test_counts(length: int) -> None:
    """Everything once, and each lane's neighbours once more."""
    shape, taps = (2, 3, length), 3
    x, dy, w = noise(shape, "fp16", 1), noise(shape, "fp16", 2), np.ones((3, taps), np.float32)
    _, forward = run_cpu(x, w)
    _, _, backward = run_cpu_gradients(x, w, dy)
    edges = 4 * x.size // 8  # a register for eight samples,
    none = 4 * 2 * 3  # but where a sequence begins or ends
    assert forward.global_read_bytes["x"] == 2 * x.size + edges - none
    assert forward.global_written_bytes["y"] == 2 * x.size
    assert backward.global_read_bytes["x"] == backward.global_read_bytes["dy"]
    assert backward.global_read_bytes["dy"] == 2 * x.size + edges - none
    assert backward.global_written_bytes == {"dx": 2 * x.size, "sums": 4 * 2 * 3 * taps}


def test_which_kernel() -> None:
    assert make_spec(3, "fp16", 4096).name == "short_conv_forward_3_fp16_v8_c4"
    assert make_spec(3, "bf16", 100, 4, backward=True).name == "short_conv_gradients_3_bf16_v2_c1"
    assert make_spec(2, "fp16", 37).halves == 1


X, W = noise((1, 2, 40), "fp16"), np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: short_conv(X.astype(np.float32), W), TypeError, "x: accepted are fp16 and bf16; got fp32"),
        (lambda: short_conv(X, W.astype(np.float64)), TypeError, "weights: expected fp32; got fp64"),
        (
            lambda: short_conv(X[0], W),
            ValueError,
            "x: expected [B, H, L] with nothing empty; got shape (2, 40)",
        ),
        (lambda: short_conv(X, W[:1]), ValueError, "the 2 channels of x and 1 to 8 taps; got shape (1, 3)"),
        (lambda: short_conv(X, np.ones((2, 9), np.float32)), ValueError, "1 to 8 taps; got shape (2, 9)"),
        (lambda: short_conv(X[..., ::2], W), ValueError, "x: expected a contiguous"),
        (lambda: short_conv_gradients(X[..., :39], X, W), ValueError, "dy: expected shape and type of x"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)


@pytest.mark.parametrize("backward", [False, True])
def test_compiles_to_few_instructions(backward: bool) -> None:
    """Sixteen bytes an access, a multiply-add for each tap, nothing spilled."""
    pytest.importorskip("numba.cuda")
    from kernels_numba.launch import compile_spec
    from kernels_numba.tile.compile import disassemble, opcodes

    spec = make_spec(3, "fp16", 4096, backward=backward)
    sass = disassemble(compile_spec(module.family(spec), spec, (9, 0)))
    found = opcodes(sass)
    assert not {"LDL", "STL", "CALL", "DADD", "DMUL", "DFMA"} & set(found)
    assert sass.count("STG.E.128") == 4 and sass.count("LDG.E.128") == (8 if backward else 4)
    assert found["FFMA"] == 32 * (5 if backward else 2)
