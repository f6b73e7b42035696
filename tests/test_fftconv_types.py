"""Sequences of float32 with half-precision products, and complex ones, on whichever body runs here."""

from math import prod
from typing import Any

import numpy as np
import pytest
from hardware import HALF
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import kernels_numba
import reference
from kernels_numba import FFTConv, prepare_filter
from kernels_numba.families import default_factors
from monarch import Plan

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")

PLANS = {
    "one warp": Plan(256, (16, 16)),
    "warpgroup": Plan(2048, (64, 32)),
    "order 3": Plan(2048, (8, 16, 16)),
    "half-length": Plan(8192, (16, 16, 16), packing="half"),
}


def single(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def complex_noise(shape: tuple[int, ...], seed: int) -> NDArray[np.complex64]:
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


# ---- float32 sequences, half-precision products --------------------------------------------------------------
@pytest.mark.parametrize("products", ["fp16", "bf16"])
@pytest.mark.parametrize("mode", ["circular", "causal", "two-sided"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_half_products_of_single_sequences(plan: Plan, mode: str, products: str) -> None:
    """Exactly what sequences of halves give that were rounded before; and within their bound of the exact result."""
    length = {"circular": plan.n, "causal": plan.n // 2 - 3, "two-sided": plan.n // 2 + 2}[mode]
    taps = min(length, 99)
    u, k = single((3, 1, length), 1), single((1, taps), 2) / np.float32(taps) ** 0.5
    gates = {} if mode == "circular" else {"pregate": single(u.shape, 3), "postgate": single(u.shape, 4)}
    y = kernels_numba.fftconv(u, k, mode=mode, plan=plan, products=products, **gates)
    assert y.dtype == np.float32 and y.shape == u.shape
    rounded = {name: x.astype(HALF[products]) for name, x in {"u": u, **gates}.items()}
    same = kernels_numba.fftconv(rounded.pop("u"), k, mode=mode, plan=plan, **rounded)
    assert np.array_equal(y, same.astype(np.float32))
    # One more rounding for the input, and two for each gate: its own, and that of the product.
    bound = reference.fftconv_bound(plan.order, products, gates=1 + 2 * len(gates), coherent=True)
    exact = reference.fftconv(u, k, mode=mode, **gates)
    reference.check_close(y, exact, u, k, bound=bound, pairs=plan.packing == "pair", **gates)


@settings(max_examples=25)
@given(
    length=st.integers(1, 256),
    taps=st.integers(1, 256),
    batch=st.integers(1, 3),
    offset=st.integers(0, 3),
    seed=seeds,
)
def test_any_length_and_alignment(length: int, taps: int, batch: int, offset: int, seed: int) -> None:
    taps = min(taps, 257 - length)
    room = single((batch * 2 * length + 4,), seed)
    u = room[offset : offset + batch * 2 * length].reshape(batch, 2, length)
    k = single((2, taps), seed + 1)
    y = kernels_numba.fftconv(u, k, mode="causal", products="fp16")
    same = kernels_numba.fftconv(u.astype(np.float16), k, mode="causal")
    assert np.array_equal(y, same.astype(np.float32))


def test_a_prepared_call_with_half_products() -> None:
    u, k = single((2, 2, 300), 1), single((2, 20), 2)
    spectrum = prepare_filter(k, length=300, mode="causal", dtype="fp32", products="bf16")
    assert (spectrum.dtype, spectrum.products) == ("fp32", "bf16") and spectrum.words.nbytes == 4 * 2 * 512
    out = np.full_like(u, np.nan)
    assert FFTConv(spectrum, batch=2)(u, out=out) is out
    assert np.array_equal(out, kernels_numba.fftconv(u, k, mode="causal", products="bf16"))
    with pytest.raises(TypeError, match="u: expected fp32"):
        FFTConv(spectrum, batch=2)(u.astype(np.float16))
    with pytest.raises(ValueError, match=r"^products: the spectrum was prepared for bf16, not fp16"):
        kernels_numba.fftconv(u, spectrum, mode="causal", products="fp16")


@pytest.mark.parametrize(
    ("dtype", "products"),
    [(np.float16, "bf16"), (np.float16, "fp8"), (np.float32, "fp8"), (np.complex64, "fp32")],
)
def test_other_products_are_refused(dtype: Any, products: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^products: accepted are fp16 and bf16 for fp32 and complex64 .*got '{products}'"
    ):
        kernels_numba.fftconv(np.ones((1, 1, 256), dtype), np.ones(3), products=products)


# ---- complex sequences ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("complex_filter", [False, True])
@pytest.mark.parametrize(
    ("mode", "length", "taps"),
    [
        ("circular", 256, 256),
        ("circular", 777, 77),
        ("causal", 500, 513),
        ("two-sided", 301, 100),
        ("circular", 4096, 5),
    ],
)
def test_complex_sequences(mode: str, length: int, taps: int, complex_filter: bool) -> None:
    u = complex_noise((3, 2, length), 1)
    k = complex_noise((2, taps), 2) if complex_filter else single((2, taps), 2).astype(np.float64)
    y = kernels_numba.fftconv(u, k, mode=mode)
    assert y.dtype == np.complex64 and y.shape == u.shape
    plan = prepare_filter(k, length=length, mode=mode, dtype="complex64").plan
    assert plan.packing == "complex"
    exact = reference.fftconv(u, k, mode=mode)
    error = np.linalg.norm(y - exact) / (np.linalg.norm(u) * np.linalg.norm(k, axis=-1).max())
    assert 0 < error <= reference.fft32_bound(plan.n)
    for wrong in (np.conj(y), np.roll(y, 1, axis=-1), np.zeros_like(y), 1j * y):
        assert np.linalg.norm(wrong - exact) > 1e3 * np.linalg.norm(y - exact)


@given(seed=seeds, n=st.sampled_from([n for n in default_factors("complex64") if n <= 1024]))
@settings(max_examples=20)
def test_complex_convolution_is_linear_over_the_complex_numbers(seed: int, n: int) -> None:
    """(a u) conv k = a (u conv k), and the parts of u and k may be convolved one by one."""
    u, k = complex_noise((1, 1, n), seed), complex_noise((1, n), seed + 1)
    y = kernels_numba.fftconv(u, k).astype(np.complex128)
    real = kernels_numba.fftconv(np.concatenate([u.real, u.imag]), k.real).astype(float)
    imaginary = kernels_numba.fftconv(np.concatenate([u.real, u.imag]), k.imag).astype(float)
    parts = real[:1] - imaginary[1:] + 1j * (real[1:] + imaginary[:1])
    size = np.linalg.norm(u) * np.linalg.norm(k)
    assert np.linalg.norm(y - parts) <= 4 * reference.fft32_bound(n) * size
    turned = kernels_numba.fftconv((1j * u).astype(np.complex64), k).astype(np.complex128)
    assert np.linalg.norm(turned - 1j * y) <= 2 * reference.fft32_bound(n) * size


@pytest.mark.parametrize("products", [None, "fp16", "bf16"])
@pytest.mark.parametrize("complex_filter", [False, True])
@pytest.mark.parametrize(
    ("mode", "length", "taps", "gated"),
    [
        ("circular", 256, 256, (False, False)),
        ("circular", 777, 77, (True, False)),
        ("causal", 501, 300, (True, True)),
        ("two-sided", 300, 100, (False, True)),
    ],
)
def test_complex_gates_and_half_products(
    mode: str, length: int, taps: int, gated: tuple[bool, bool], complex_filter: bool, products: str | None
) -> None:
    """Gates multiply as complex numbers do; products of halves are within the bound of halves."""
    u = complex_noise((3, 2, length), 1)
    k = (complex_noise((2, taps), 2) if complex_filter else single((2, taps), 2)) / np.float32(taps) ** 0.5
    names = [name for name, on in zip(("pregate", "postgate"), gated, strict=True) if on]
    gates = {name: complex_noise(u.shape, 3 + i) for i, name in enumerate(names)}
    y = kernels_numba.fftconv(u, k, mode=mode, products=products, **gates)
    assert y.dtype == np.complex64 and y.shape == u.shape
    plan = prepare_filter(k, length=length, mode=mode, dtype="complex64", products=products).plan
    exact = reference.fftconv(u, k, mode=mode, **gates)
    if products is None:
        bound = reference.fft32_bound(plan.n, gates=len(names), coherent=True)
    else:  # one rounding more for the input, and two for each gate: its own, and that of the product
        bound = reference.fftconv_bound(plan.order, products, gates=1 + 2 * len(names), coherent=True)
    reference.check_close(y, exact, u, k, bound=bound, **gates)
    for wrong in (np.conj(y), np.roll(y, 1, axis=-1), 1j * y):
        with pytest.raises(AssertionError):
            reference.check_close(wrong, exact, u, k, bound=bound, **gates)


@pytest.mark.parametrize("factors", [(16, 16), (48, 16), (64, 32), (16, 16, 16), (48, 16, 16)], ids=str)
@pytest.mark.parametrize("products", ["fp16", "bf16"])
def test_half_products_of_many_complex_sequences(factors: tuple[int, ...], products: str) -> None:
    """The bound speaks of the mean."""
    n = prod(factors)
    u, k = complex_noise((2, 1, n), 1), complex_noise((1, n), 2) / np.float32(n) ** 0.5
    y = kernels_numba.fftconv(u, k, plan=Plan(n, factors, packing="complex"), products=products)
    found = reference.relative_error(y, reference.fftconv(u, k), u, k)
    assert 0 < found.overall <= reference.fftconv_bound(len(factors), products, gates=1)


COMPLEX32 = np.dtype([("real", np.float16), ("imag", np.float16)])


def halved(x: NDArray[np.complex64]) -> NDArray[Any]:
    """Complex numbers of two halves."""
    return np.stack([x.real, x.imag], axis=-1).astype(np.float16).view(COMPLEX32)[..., 0]


def widened(x: NDArray[Any]) -> NDArray[np.complex64]:
    return x["real"] + np.complex64(1j) * x["imag"]


@pytest.mark.parametrize("complex_filter", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("mode", "length"), [("circular", 256), ("causal", 501), ("two-sided", 300)])
def test_complex_sequences_of_halves(mode: str, length: int, gated: bool, complex_filter: bool) -> None:
    """Exactly what complex64 sequences give with half products, rounded; any alignment and type of filter."""
    u = halved(complex_noise((3, 2, length), 1))
    k = halved(complex_noise((2, 99), 2)) if complex_filter else single((2, 99), 2).astype(np.float16)
    gates = {n: halved(complex_noise(u.shape, 3 + i)) for i, n in enumerate(("pregate", "postgate")) if gated}
    out = np.full_like(u, np.array((np.nan, np.nan), COMPLEX32))
    y = kernels_numba.fftconv(u, k, mode=mode, out=out, **gates)
    assert y is out and y.dtype == COMPLEX32
    wide = {name: widened(x) for name, x in gates.items()}
    taps = widened(k) if complex_filter else k
    same = kernels_numba.fftconv(widened(u), taps, mode=mode, products="fp16", **wide)
    assert np.array_equal(widened(y), same)
    exact = reference.fftconv(widened(u), taps, mode=mode, **wide)
    bound = reference.fftconv_bound(2, "fp16", gates=len(gates), coherent=True)
    reference.check_close(widened(y), exact, widened(u), taps, bound=bound, **wide)
    spectrum = prepare_filter(k, length=length, mode=mode, dtype="complex32")
    assert spectrum.products == "fp16" and spectrum.words.nbytes == 4 * 2 * spectrum.plan.n
    with pytest.raises(TypeError, match="u: expected complex32"):
        FFTConv(spectrum, batch=3)(widened(u))
    with pytest.raises(ValueError, match=r"^products: accepted .*got 'bf16' for complex32"):
        kernels_numba.fftconv(u, k, mode=mode, products="bf16")


def test_lengths_of_complex_sequences() -> None:
    longest = max(default_factors("complex64"))
    assert longest == 28672 and all(prod(f) == n for n, f in default_factors("complex64").items())
    with pytest.raises(ValueError, match=r"of complex64 take up to 28672"):
        prepare_filter(np.ones(2), length=longest + 1, mode="causal", dtype="complex64")


def test_bad_complex_input() -> None:
    u, k = complex_noise((1, 1, 256), 1), complex_noise((1, 256), 2)
    with pytest.raises(TypeError, match="k: a complex64 filter is for complex sequences; these are fp32"):
        kernels_numba.fftconv(u.real.copy(), k)
    with pytest.raises(TypeError, match=r"pregate: expected complex64 .*got fp32; convert it"):
        kernels_numba.fftconv(u, k, pregate=u.real.copy())
    with pytest.raises(ValueError, match=r"^plan: .*is for real sequences, these are complex64.*packing="):
        kernels_numba.fftconv(u, k, plan=Plan(256, (16, 16)), products="fp16")
    with pytest.raises(ValueError, match=r"^plan: .*is for real sequences, these are complex64.*packing="):
        kernels_numba.fftconv(u, k, plan=Plan(256, (16, 16)))
    with pytest.raises(ValueError, match=r"^plan: .*is for complex sequences, these are fp32"):
        kernels_numba.fftconv(u.real.copy(), k.real, plan=Plan(256, (16, 16), packing="complex"))
    with pytest.raises(TypeError, match=r"the fused kernels take .*complex64, complex32, got complex128"):
        kernels_numba.fftconv(u.astype(np.complex128), k)


# ---- on a GPU ------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("plan", [*PLANS.values(), Plan(32768, (16, 8, 16, 16))], ids=[*PLANS, "order 4"])
def test_half_products_where_arrays_live_on_a_gpu(plan: Plan) -> None:
    torch = pytest.importorskip("torch")
    u = torch.randn(3, 2, plan.n - 1, device="cuda")
    k, v = torch.randn(2, 50, device="cuda"), torch.randn_like(u)
    mode = {"mode": "circular", "plan": plan.with_(signal=None)}
    u, v = (torch.cat([x, x[..., :1]], dim=-1) for x in (u, v))
    y = kernels_numba.fftconv(u, k, products="fp16", pregate=v, **mode)
    same = kernels_numba.fftconv(u.half(), k, pregate=v.half(), **mode)
    assert y.dtype == torch.float32 and torch.equal(y, same.float())
    w = u[..., : plan.n // 2 - 3].contiguous()
    y = kernels_numba.fftconv(w, k, products="bf16", mode="causal", plan=plan)
    assert torch.equal(y, kernels_numba.fftconv(w.bfloat16(), k, mode="causal", plan=plan).float())


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy", "numpy"])
def test_complex_filters_are_transformed_on_a_gpu(library: str) -> None:
    u, k = complex_noise((3, 2, 700), 1), complex_noise((2, 300), 2)
    exact = reference.fftconv(u, k, mode="causal")
    if library == "numpy":
        y = kernels_numba.fftconv(u, k, mode="causal")
    elif library == "cupy":
        cupy = pytest.importorskip("cupy")
        y = kernels_numba.fftconv(cupy.asarray(u), cupy.asarray(k), mode="causal").get()
    else:
        torch = pytest.importorskip("torch")
        there = [torch.from_numpy(x).cuda() for x in (u, k)]
        y = kernels_numba.fftconv(*there, mode="causal").cpu().numpy()
    error = np.linalg.norm(y - exact) / (np.linalg.norm(u) * np.linalg.norm(k, axis=-1).max())
    assert error <= 2 * reference.fft32_bound(1024)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("where", ["cuda", "cpu"])
@pytest.mark.parametrize("complex_filter", [False, True])
def test_complex_halves_of_pytorch(where: str, complex_filter: bool) -> None:
    torch = pytest.importorskip("torch")
    u, k = complex_noise((3, 2, 700), 1), complex_noise((2, 300), 2) / np.float32(17)
    k = k if complex_filter else k.real.copy()
    x = torch.from_numpy(u).to(torch.complex32).to(where)
    y = kernels_numba.fftconv(x, torch.from_numpy(k).to(where), mode="causal")
    assert y.dtype == torch.complex32 and y.device.type == where
    got, given = (v.to(torch.complex64).cpu().numpy() for v in (y, x))
    exact = reference.fftconv(given, k, mode="causal")
    bound = reference.fftconv_bound(2, "fp16", coherent=True)
    reference.check_close(got, exact, given, k, bound=bound)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [256, 1024, 8192, 16384])
def test_complex_gates_are_the_cpu_body_s(n: int) -> None:
    """fp32, bit for bit, circular and causal of odd length."""
    torch = pytest.importorskip("torch")
    for mode, length in (("circular", n), ("causal", n // 2 - 3)):
        u, before, after = (complex_noise((2, 1, length), seed) for seed in range(3))
        k = complex_noise((1, 99), 4)
        convolve = FFTConv(prepare_filter(k, length=length, mode=mode, dtype="complex64"), batch=2)
        there = [torch.from_numpy(x).cuda() for x in (u, before, after)]
        y = convolve(there[0], pregate=there[1], postgate=there[2], out=torch.full_like(there[0], torch.nan))
        same, _ = convolve.run_cpu(u, pregate=before, postgate=after)
        exact = reference.fftconv(u, k, mode=mode, pregate=before, postgate=after)
        bound = reference.fft32_bound(2 * n, gates=2, coherent=True)
        reference.check_close(y.cpu().numpy(), exact, u, k, bound=bound, pregate=before, postgate=after)
        assert np.array_equal(y.cpu().numpy(), same)
