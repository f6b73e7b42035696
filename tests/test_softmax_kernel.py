"""Softmax of rows on both bodies: the reference's laws, the fallback and its boundary, infinities, refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hardware import HALF
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import kernels_numba
import reference
from kernels_numba.line_softmax import SHORT
from kernels_numba.softmax import softmax_cpu

KINDS = ("noise", "wide", "outlier", "masked", "constant")
LENGTHS = (1, 2, 3, 7, 8, 64, 255, 256, 257, SHORT, SHORT + 1, 2100)


def data(kind: str, rows: int, n: int, dtype: str, seed: int) -> NDArray:
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((rows, n))
    if kind == "wide":
        x *= 12
    elif kind == "outlier":
        x[draw.integers(0, rows), draw.integers(0, n)] = draw.choice([-300.0, 90.0])
    elif kind == "masked":
        x[draw.random((rows, n)) < 0.5] = -np.inf
    elif kind == "constant":
        x[:] = 2.5
    return x.astype(HALF[dtype])


def check(y: NDArray, x: NDArray, scheme: dict[str, Any], dtype: str) -> None:
    """Each weight within its worst-case bound: a rounding to half, and the shift's."""
    exact = reference.softmax(x, **scheme)
    u = reference.unit_roundoff(dtype)
    wide = x.astype(float)
    phi = scheme.get("phi") or 0.0
    top = np.max(np.where(np.isfinite(wide), wide, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
    distance = np.where(exact > 0, np.abs(wide - phi) + np.abs(wide - np.where(np.isfinite(top), top, 0)), 0)
    distance = np.where(np.isfinite(distance), distance, 0).max(axis=-1, keepdims=True, initial=0)
    fp32 = (2.5 * distance + 9 + x.shape[-1]) * 2.0**-24
    smallest = 2.0**-25 if dtype == "fp16" else 2.0**-126
    got = y.astype(float)
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    assert (np.abs(got - exact) <= exact * (u + fp32) + smallest)[~np.isnan(exact)].all()


def run_cpu(x: NDArray, **scheme: Any) -> NDArray:
    return softmax_cpu(x, **scheme)[0]


def run_gpu(x: NDArray, **scheme: Any) -> NDArray:
    torch = pytest.importorskip("torch")
    there = torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).cuda()
    there = there.view(torch.float16 if x.dtype == np.float16 else torch.bfloat16)
    out = torch.full_like(there, float("nan"))
    assert kernels_numba.softmax(there, out=out, **scheme) is out
    return out.view(torch.int16).cpu().numpy().view(x.dtype)


bodies = pytest.mark.parametrize("run", [run_cpu, pytest.param(run_gpu, marks=pytest.mark.gpu)])
schemes = st.sampled_from(
    [
        {"phi": 0.0, "bounds": (-20.0, 20.0)},
        {"phi": 1.5, "bounds": (-3.0, 3.0)},
        {"phi": -30.0, "bounds": (-60.0, 40.0)},
        {"variant": "sync"},
    ]
)


@bodies
@settings(max_examples=40)
@given(
    kind=st.sampled_from(KINDS),
    rows=st.integers(1, 11),
    n=st.sampled_from(LENGTHS),
    dtype=st.sampled_from(["fp16", "bf16"]),
    scheme=schemes,
    seed=seeds,
)
@example(kind="outlier", rows=9, n=2100, dtype="fp16", scheme={"phi": 0.0, "bounds": (-5.0, 5.0)}, seed=0)
@example(kind="masked", rows=3, n=1, dtype="bf16", scheme={"variant": "sync"}, seed=0)
def test_within_the_bound_of_the_reference(
    run: Callable[..., NDArray], kind: str, rows: int, n: int, dtype: str, scheme: dict[str, Any], seed: int
) -> None:
    x = data(kind, rows, n, dtype, seed)
    check(run(x, **scheme), x, scheme, dtype)


@bodies
@pytest.mark.parametrize("n", [40, SHORT + 100])
def test_only_flagged_rows_are_recomputed(run: Callable[..., NDArray], n: int) -> None:
    x = data("noise", 10, n, "fp16", 0)
    scheme: dict[str, Any] = {"phi": 0.0, "bounds": (-7.0, 7.0)}
    quiet = run(x, **scheme)
    x[3, n // 2], x[8, 0] = -50, 20
    y = run(x, **scheme)
    kept = np.delete(np.arange(10), [3, 8])
    assert list(np.flatnonzero(reference.overflow_flags(x, **scheme))) == [3, 8]
    assert (y[kept].view(np.int16) == quiet[kept].view(np.int16)).all()
    check(y, x, scheme, "fp16")


def test_the_example_of_figure_6() -> None:
    """[4, 5, 6, 7] is done in one pass; [3, 6, 9, 6], which reaches the ends of (-3, 3), in two: a warp's more."""
    scheme: dict[str, Any] = {"phi": 6.0, "bounds": (-3.0, 3.0)}
    reads = []
    for row in ([4, 5, 6, 7], [3, 6, 9, 6]):
        x = np.array([row], np.float16)
        y, counters = softmax_cpu(x, **scheme)
        check(y, x, scheme, "fp16")
        reads.append(counters.global_read_bytes["x"])
    assert reads == [2 * 8, 3 * 8]


@bodies
def test_what_is_not_finite(run: Callable[..., NDArray]) -> None:
    for n in (30, SHORT + 30):
        x = data("noise", 5, n, "fp16", 1)
        x[0, 7], x[1, n - 1], x[2, :], x[3, 5] = np.nan, np.inf, -np.inf, -np.inf
        for scheme in ({"phi": 0.0, "bounds": (-8.0, 8.0)}, {"variant": "sync"}):
            y = run(x, **scheme).astype(float)
            assert np.isnan(y[:2]).all() and not y[2].any() and y[3, 5] == 0
            check(y[3:].astype(np.float16), x[3:], scheme, "fp16")


@pytest.mark.skipif(kernels_numba.device().is_gpu, reason="host arrays go to the GPU here")
def test_the_function() -> None:
    x = data("noise", 6, 50, "fp16", 2).reshape(2, 3, 50)
    y = kernels_numba.softmax(x, phi=0.0, bounds=(-9.0, 9.0))
    assert (
        y.shape == x.shape
        and (y.reshape(6, 50) == run_cpu(x.reshape(6, 50), phi=0.0, bounds=(-9.0, 9.0))).all()
    )
    assert kernels_numba.softmax(x, variant="sync", out=x) is x and np.allclose(
        x.astype(float).sum(axis=-1), 1, atol=2e-3
    )


@pytest.mark.parametrize(
    ("error", "match", "x", "settings"),
    [
        (TypeError, r"^x: the fused kernels take fp16 and bf16, got fp32", np.ones((2, 3), np.float32), {}),
        (TypeError, r"^x: expected a NumPy", [1.0], {}),
        (ValueError, r"^x: expected rows", np.ones((2, 0), np.float16), {}),
        (ValueError, r"^x: expected a contiguous", np.ones((2, 6), np.float16)[:, ::2], {}),
        (ValueError, r"^phi and bounds: expected", np.ones((2, 3), np.float16), {"phi": None}),
        (ValueError, r"^bounds: expected", np.ones((2, 3), np.float16), {"bounds": (-100.0, 3.0)}),
        (
            ValueError,
            r"^out: expected fp16 \(2, 3\)",
            np.ones((2, 3), np.float16),
            {"out": np.ones(6, np.float16)},
        ),
    ],
)
def test_refusals(error: type[Exception], match: str, x: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(error, match=match):
        kernels_numba.softmax(x, **{"phi": 0.0, "bounds": (-5.0, 5.0), **settings})
