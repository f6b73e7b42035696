"""``monarch.torch.fftconv`` of complex sequences, and with zeros in the filter's spectrum, on the CPU."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch installs it")

import reference  # noqa: E402
from monarch import Plan, SparsityPattern  # noqa: E402
from monarch.torch import LongConv, fftconv, kernels_on_host, plans, torch_fftconv  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

SMALL = Plan(12, (3, 4))
PLAN = Plan(256, (16, 16))
PAIRS = SparsityPattern.middles(PLAN, (8, 4))
GATES = ("pregate", "postgate")


def noise(shape: tuple[int, ...], kind: Any, seed: int, *, grad: bool = True) -> Any:
    """A leaf; complex32 has no generator of its own."""
    wide = torch.complex128 if kind.is_complex else torch.float64
    x = torch.randn(shape, dtype=wide, generator=torch.Generator().manual_seed(seed))
    return x.to(kind).requires_grad_(grad)


def array(x: Any) -> Any:
    return x.detach().to(torch.complex128 if x.is_complex() else torch.float64).resolve_conj().numpy()


def apart(found: Any, exact: Any) -> float:
    """Relative difference in L2."""
    return float(np.linalg.norm(array(found) - exact) / np.linalg.norm(exact))


def leaves(kind: Any, taps: int, length: int, *, of_k: Any, shared: bool = False) -> dict[str, Any]:
    """u, k, both gates."""
    found = {name: noise((3, 2, length), kind, i) for i, name in enumerate(("u", *GATES))}
    return found | {"k": noise((taps,) if shared else (2, taps), of_k, 9)}


# ---- complex sequences ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("of_k", [torch.complex128, torch.float64])
@pytest.mark.parametrize("mode", ["circular", "causal", "two-sided"])
def test_complex_gradients_of_gradients(mode: str, of_k: Any) -> None:
    given = [noise((2, 1, 3), torch.complex128, i) for i in range(3)] + [noise((1, 2), of_k, 3)]

    def run(u: Any, pregate: Any, postgate: Any, k: Any) -> Any:
        return fftconv(u, k, mode=mode, pregate=pregate, postgate=postgate)

    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)


@pytest.mark.parametrize("kind", [torch.complex32, torch.complex64])
@pytest.mark.parametrize("complex_filter", [True, False])
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "reference"])
def test_complex_types(kind: Any, complex_filter: bool, kernels: bool) -> None:
    o = leaves(kind, 100, 128, of_k=torch.complex64 if complex_filter else torch.float32)
    dy = noise((3, 2, 128), kind, 7, grad=False)
    with kernels_on_host() if kernels else torch.enable_grad():
        y = fftconv(mode="causal", **o)
        y.backward(dy)
    arrays = {name: array(x) for name, x in o.items()}
    exact = reference.fftconv_gradients(array(dy), mode="causal", **arrays)
    bound = 4e-7 if kind == torch.complex64 else 8 * reference.fftconv_bound(2, "fp16", gates=2)
    assert y.dtype == kind and apart(y, reference.fftconv(mode="causal", **arrays)) <= bound
    for name, x in o.items():
        assert x.grad.dtype == x.dtype and x.grad.shape == x.shape
        assert apart(x.grad, getattr(exact, name)) <= bound, name


def test_complex_as_torch_fft() -> None:
    """Values and gradients of autograd's own, with real and complex filters."""
    for of_k in (torch.complex128, torch.float64):
        for mode in ("circular", "causal", "two-sided"):
            found = []
            for convolve in (fftconv, torch_fftconv):
                o = leaves(torch.complex128, 11, 15, of_k=of_k)
                y = convolve(mode=mode, **o)
                y.abs().sum().backward()
                found.append([y, *(x.grad for x in o.values())])
            for a, b in zip(*found, strict=True):
                assert a.dtype == b.dtype and apart(a, array(b)) <= 1e-13


def test_conjugate_views_are_worked_out() -> None:
    """PyTorch marks a conjugate, and changes no memory: what a kernel reads has to be worked out first."""
    u, k = noise((1, 2, 64), torch.complex64, 1, grad=False), noise((2, 64), torch.complex64, 2, grad=False)
    assert u.conj().is_conj()
    with kernels_on_host():
        y = fftconv(u.conj(), k.conj())
        z = fftconv(torch.conj_physical(u), torch.conj_physical(k))
        x, taps = u.imag.contiguous(), k.real.contiguous()
        assert torch._neg_view(x).is_neg() and torch.equal(
            fftconv(torch._neg_view(x), taps), -fftconv(x, taps)
        )
    assert torch.equal(y, z)


def test_complex_in_words() -> None:
    u, k = noise((1, 2, 64), torch.float32, 1, grad=False), noise((2, 64), torch.complex64, 2, grad=False)
    with pytest.raises(
        TypeError, match=r"^k: a complex filter is for complex sequences, and u is torch.float32"
    ):
        fftconv(u, k)
    with pytest.raises(
        TypeError, match=r"^u: accepted are float16, .* complex128; got torch.int64; convert it"
    ):
        fftconv(u.long(), k)


def test_complex_traced() -> None:
    o = leaves(torch.complex64, 16, 16, of_k=torch.complex64)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    operands = (o["u"], o["k"], None, o["postgate"])
    torch.library.opcheck(
        torch.ops.monarch_numba.fftconv, (*operands, "causal", "", False), test_utils=checks
    )


# ---- zeros in the spectrum -----------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [torch.float64, torch.complex128])
@pytest.mark.parametrize("mode", ["circular", "two-sided"])
def test_gradients_of_gradients_with_zeros(mode: str, kind: Any) -> None:
    plan = SMALL if kind == torch.float64 else SMALL.with_(packing="complex")
    pattern = SparsityPattern.middles(SMALL, (1, 2))
    if mode == "circular":
        given = [noise((1, 1, 12), kind, 0), noise((1, 1, 3), kind, 3)]
    else:
        given = [noise((1, 1, 4), kind, i) for i in (0, 3, 1, 2)]

    def run(u: Any, k: Any, pregate: Any = None, postgate: Any = None) -> Any:
        taps = k[0]
        return fftconv(u, taps, mode=mode, pregate=pregate, postgate=postgate, plan=plan, pattern=pattern)

    assert torch.autograd.gradcheck(run, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, given, fast_mode=True)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
@pytest.mark.parametrize(("mode", "length", "taps"), [("circular", 256, 256), ("causal", 100, 77)])
def test_zeros_by_the_kernels(kind: Any, mode: str, length: int, taps: int) -> None:
    plan = PLAN.with_(packing="complex") if kind.is_complex else PLAN
    how: dict[str, Any] = {"mode": mode, "plan": plan, "pattern": PAIRS}
    o = leaves(kind, taps, length, of_k=torch.complex64 if kind.is_complex else torch.float32)
    dy = noise((3, 2, length), kind, 7, grad=False)
    with kernels_on_host():
        y = fftconv(**o, **how)
        y.backward(dy)
    arrays = {name: array(x) for name, x in o.items()}
    exact = reference.sparse_fftconv_gradients(array(dy), **arrays, **how)
    name = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(kind, "")
    # Results of a filter that lost half of its spectrum are smaller than the errors of the whole one's bound assume.
    bound = 3 * reference.fftconv_bound(2, name, gates=2) if name else 1e-6
    assert apart(y, reference.sparse_fftconv(**arrays, **how)) <= bound
    for name, x in o.items():
        assert x.grad.dtype == x.dtype and apart(x.grad, getattr(exact, name)) <= bound, name
    gone = np.fft.fft(array(o["k"].grad)) if mode == "circular" and taps == 256 else None
    if gone is not None:  # the gradient has the zeros of the filter
        size = np.abs(gone).max()
        assert np.abs(gone[..., ~PAIRS.bins(PLAN)]).max() <= 1e-5 * size < size


def test_zeros_as_torch_fft() -> None:
    for kind in (torch.float64, torch.complex128):
        plan = SMALL if kind == torch.float64 else SMALL.with_(packing="complex")
        how: dict[str, Any] = {
            "plan": plan,
            "pattern": SparsityPattern.middles(SMALL, (1, 0)),
            "mode": "causal",
        }
        found = []
        for convolve in (fftconv, torch_fftconv):
            o = leaves(kind, 5, 6, of_k=kind)
            y = convolve(**o, **how)
            y.abs().square().sum().backward()
            found.append([y, *(x.grad for x in o.values())])
        for a, b in zip(*found, strict=True):
            assert apart(a, array(b)) <= 1e-13


@pytest.mark.filterwarnings("default")  # those of PyTorch's own compiler
def test_zeros_are_compiled_and_kept_in_a_layer() -> None:
    layer = LongConv(2, 20, plan=PLAN, pattern=PAIRS, dtype=torch.float64)
    u = noise((2, 2, 40), torch.float64, 1)
    y = layer(u)
    assert (
        apart(y, reference.sparse_fftconv(array(u), array(layer.k), PAIRS, plan=PLAN, mode="causal")) < 1e-14
    )
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    z = compiled(u)
    assert torch.equal(y, z)
    y.sum().backward()
    before, layer.k.grad = layer.k.grad, None
    z.sum().backward()
    assert torch.equal(before, layer.k.grad) and before.abs().sum() > 0


def test_patterns_go_through_text() -> None:
    draw = np.random.default_rng(0)
    for packing in ("pair", "complex", "half"):
        plan = Plan(48 if packing == "half" else 24, (4, 6), packing=packing)
        pattern = SparsityPattern(plan.factors, draw.random(24) < 0.5)
        text = plans.with_pattern(plan, pattern)
        assert plans.from_text(text) == plan and plans.pattern_from_text(text) == pattern
        assert plans.pattern_from_text(plans.to_text(plan)) is None
    assert plans.pattern_from_text("") is None


def test_zeros_in_words() -> None:
    u, k = noise((1, 2, 256), torch.float32, 1, grad=False), noise((2, 9), torch.float32, 2, grad=False)
    for convolve in (fftconv, torch_fftconv):
        with pytest.raises(
            ValueError, match=r"^pattern: zeros are of one plan's spectrum; give that plan, too"
        ):
            convolve(u, k, pattern=PAIRS)
        with pytest.raises(TypeError, match=r"^pattern: expected a monarch\.SparsityPattern, got ndarray"):
            convolve(u, k, plan=PLAN, pattern=PAIRS.kept)
