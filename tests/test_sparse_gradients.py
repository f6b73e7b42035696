"""Gradients of convolutions whose filters have zeros in their spectra, by the kernels, on whichever body runs here."""

from typing import Any

import numpy as np
import pytest
from convolutions import filters, noise, scatter
from numpy.typing import NDArray
from test_long_gradient import SHORT, SHORT_FLOAT

import reference
from kernels_numba import FFTConvGradients, fftconv_gradients, gradient_jobs, prepare_filter
from kernels_numba.filter_sums import FilterGradient
from kernels_numba.long_gradient import LongFilterGradient, choose
from monarch import Plan, SparsityPattern

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")

PLAN = Plan(1024, (32, 32))
PATTERN = SparsityPattern.middles(PLAN, (16, 8))


def exact_of(u: NDArray, dy: NDArray, k: NDArray, pattern: Any, plan: Plan, mode: str, **gates: Any) -> Any:
    return reference.sparse_fftconv_gradients(dy, u, k, pattern, plan=plan, mode=mode, **gates)


def check(dk: NDArray, exact: NDArray, dy: NDArray, u: NDArray, plan: Plan, **gates: Any) -> None:
    """Zeros take errors away with what they are errors of, so the whole gradient's bound holds."""
    bound = reference.filter_gradient_bound(plan.order, "fp16", gates=len(gates)) * scatter(plan.n)
    reference.check_filter_gradient(dk, exact, dy, u, bound=bound, pairs=True, **gates)


@pytest.mark.parametrize("way", [gradient_jobs.STAGED, gradient_jobs.WHOLE, gradient_jobs.PASSES])
@pytest.mark.parametrize(("mode", "length", "taps"), [("circular", 1024, 1024), ("causal", 700, 99)])
def test_all_ways_back_to_taps(way: str, mode: str, length: int, taps: int) -> None:
    u, dy = (noise((3, 2, length), "fp16", seed) for seed in range(2))
    gradient = FilterGradient(u.shape, taps=taps, mode=mode, dtype="fp16", plan=PLAN, kept=PATTERN.bins(PLAN))
    dk, _, _ = gradient.run_cpu(u, dy, way=way)
    exact = exact_of(u, dy, np.zeros((2, taps)), PATTERN, PLAN, mode)
    check(dk, exact.k, dy, u, PLAN)
    dense = reference.fftconv_gradients(dy, u, np.zeros((2, taps)), mode=mode, plan=PLAN).k
    assert np.linalg.norm(dense - exact.k) > 0.1 * np.linalg.norm(dense)


@pytest.mark.parametrize("workspace", [1, 2**29])
def test_beyond_one_kernel(workspace: int) -> None:
    pattern = SparsityPattern.middles(SHORT.plan, (8, 4, 0))
    u, dy = (noise((3, 1, 1500), "fp16", seed) for seed in range(2))
    how: dict[str, Any] = {"taps": 1500, "mode": "causal", "kept": pattern.bins(SHORT.plan)}
    how["workspace"] = workspace
    exact = exact_of(u, dy, np.zeros((1, 1500)), pattern, SHORT.plan, "causal").k
    dk, _, _ = LongFilterGradient(u.shape, dtype="fp16", split=SHORT, **how).run_cpu(u, dy)
    check(dk, exact, dy, u, SHORT.plan)
    single = u.astype(np.float32), dy.astype(np.float32)
    dk, _, _ = LongFilterGradient(u.shape, dtype="fp32", split=SHORT_FLOAT, **how).run_cpu(*single)
    assert np.linalg.norm(dk - exact) <= 1e-6 * np.linalg.norm(exact)


def test_a_transform_of_as_many_points() -> None:
    """Zeros are of one circle: the sums' transform has its points, by whatever factors, or there is none."""
    other = Plan(1024, (8, 128))
    pattern = SparsityPattern.middles(other, (4, 0))
    gradient = FilterGradient(
        (2, 1, 100), taps=100, mode="causal", dtype="fp16", plan=other, kept=pattern.bins(other)
    )
    assert gradient.plan.factors == (32, 32)
    assert choose("causal", 100, 100, "fp16", "fp16", 227 * 1024, exact=1024) is None
    split = choose("causal", 100, 100, "fp16", "fp16", 227 * 1024, exact=2**18)
    assert split is not None and split.plan.n == 2**18
    odd = Plan(2304, (48, 48))
    kept = SparsityPattern.middles(odd, (16, 0))
    u, k = noise((2, 1, 2304), "fp16", 1), filters(1, 2304)
    with pytest.raises(
        ValueError,
        match=r"^plan: the gradient in a filter with zeros takes transforms of 256, .* not of 2304",
    ):
        fftconv_gradients(u, k, u, plan=odd, pattern=kept, needs="k")


@pytest.mark.parametrize("shared", [False, True])
def test_prepared_and_not(shared: bool) -> None:
    u, dy, before, after = (noise((2, 2, 1024), "fp16", seed) for seed in range(4))
    k = filters(2, 1024)[0] if shared else filters(2, 1024)
    gates = {"pregate": before, "postgate": after}
    found = fftconv_gradients(u, k, dy, plan=PLAN, pattern=PATTERN, **gates)
    exact = exact_of(u, dy, k, PATTERN, PLAN, "circular", **gates)
    bound = 1.5 * reference.fftconv_bound(2, "fp16", gates=2)
    for name in ("u", "pregate", "postgate"):
        assert np.linalg.norm(getattr(found, name) - getattr(exact, name)) <= bound * np.linalg.norm(
            getattr(exact, name)
        )
    assert found.k.shape == k.shape
    check(found.k, exact.k, dy, u, PLAN, **gates)
    if not shared:
        spectrum = prepare_filter(k, length=1024, plan=PLAN, pattern=PATTERN, gradients=True)
        again = FFTConvGradients(spectrum, batch=2)(u, dy, **gates)
        for name in ("u", "k", "pregate", "postgate"):
            assert np.array_equal(getattr(again, name), getattr(found, name))


def test_refusals() -> None:
    u, k = noise((2, 1, 1024), "fp16", 1), filters(1, 1024)
    with pytest.raises(ValueError, match=r"^pattern: zeros are of one plan's spectrum; give that plan, too"):
        fftconv_gradients(u, k, u, pattern=PATTERN)
    spectrum = prepare_filter(k, length=1024, plan=PLAN, pattern=PATTERN, gradients=True)
    with pytest.raises(
        ValueError, match=r"^pattern: the spectrum is prepared; give the pattern to prepare_filter"
    ):
        fftconv_gradients(u, spectrum, u, pattern=PATTERN)
    z, plan = u.astype(np.complex64), PLAN.with_(packing="complex")
    with pytest.raises(
        ValueError, match=r"^pattern: gradients of complex convolutions take zeros at k and -k alike"
    ):
        fftconv_gradients(z, k, z, plan=plan, pattern=SparsityPattern.tails(plan, (16, 0)))
