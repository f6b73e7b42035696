"""``monarch.torch`` on the CPU: values, gradients of gradients, compiling, autocast, kept spectra, operators.

``make test-torch`` installs PyTorch and runs these; ``make test`` skips them where it is not installed.
"""

import copy
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="PyTorch is not installed; make test-torch installs it")

import torch_cases  # noqa: E402
from strategies import seeds  # noqa: E402
from torch_cases import array, operands  # noqa: E402

import kernels_numba  # noqa: E402
import monarch  # noqa: E402
import reference  # noqa: E402
from costmodel import measure_training, training  # noqa: E402
from costmodel.errors import MeasurementError  # noqa: E402
from monarch.torch import (  # noqa: E402
    LongConv,
    fftconv,
    forget_spectra,
    kernels_on_host,
    plans,
    torch_fftconv,
)
from monarch.torch.flashfftconv import FlashDepthWiseConv1d, FlashFFTConv  # noqa: E402
from monarch.torch.operators import OPERATORS, ImplicitFilter, short_conv  # noqa: E402

WIDE = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


def close(a: Any, b: Any, points: int, *, times: float = 1.0) -> None:
    """Two results of transforms of so many points in float64: the bound of fp32, in the roundoff of float64.

    ``times``: by how much what comes after may raise an error, relative to its result.
    """
    bound = reference.fft32_bound(points, coherent=True) * 2.0**-29
    assert np.linalg.norm(array(a) - array(b)) <= times * bound * np.linalg.norm(array(b))
    assert np.linalg.norm(array(b)) > 0


# ---- values and gradients ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("mode", "taps", "gates"),
    [("circular", 3, "plain"), ("causal", 5, "both"), ("two-sided", 2, "pre"), ("circular", 2, "post")],
)
def test_gradients_of_gradients(mode: str, taps: int, gates: str) -> None:
    o = operands((2, 2, 3), taps, gates)
    given = [x for x in o[:4] if x is not None]
    names = list(o.gates)

    def run(u: Any, k: Any, *rest: Any) -> Any:
        return fftconv(u, k, mode=mode, **dict(zip(names, rest, strict=True)))

    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)


def test_gradients_of_one_filter_for_all_channels() -> None:
    o = operands((2, 2, 4), 3, shared=True)
    assert o.k.shape == (3,)
    assert torch.autograd.gradcheck(lambda u, k: fftconv(u, k, mode="causal"), o[:2])
    assert torch.autograd.gradgradcheck(lambda u, k: fftconv(u, k, mode="causal"), o[:2])


@settings(max_examples=20)
@given(
    mode=st.sampled_from(monarch.MODES),
    length=st.integers(1, 40),
    taps=st.integers(1, 90),
    gates=st.sampled_from(list(torch_cases.GATES)),
    lead=st.sampled_from([(), (2,), (2, 3)]),
    seed=seeds,
)
@example(mode="two-sided", length=5, taps=90, gates="plain", lead=(2,), seed=0)
def test_double_precision_is_the_reference(
    mode: str, length: int, taps: int, gates: str, lead: tuple[int, ...], seed: int
) -> None:
    taps = min(taps, length) if mode == "circular" else taps
    o = operands((*lead, 2, length), taps, gates, seed=seed)
    y = fftconv(o.u, o.k, mode=mode, **o.gates)
    y.backward(o.dy)
    wanted, gradients = torch_cases.exact(o, mode)
    np.testing.assert_array_equal(array(y), wanted)
    for x, right in zip((o.u, o.k, o.pregate, o.postgate), gradients, strict=True):
        assert (x is None) == (right is None)
        if x is not None:
            np.testing.assert_array_equal(array(x.grad), right)
    z = torch_fftconv(o.u, o.k, mode=mode, **o.gates)
    terms = (
        np.linalg.norm(array(o.u))
        * np.linalg.norm(array(o.k))
        * max([1.0, *(np.abs(array(x)).max() for x in o.gates.values())]) ** 2
    )
    bound = reference.fft32_bound(length + taps, coherent=True) * 2.0**-29
    assert np.abs(array(z) - wanted).max() <= bound * terms


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
def test_other_types_are_the_reference_rounded(dtype: str) -> None:
    o = operands((2, 3, 50), 50, "both", WIDE[dtype])
    y = fftconv(o.u, o.k, mode="causal", **o.gates)
    y.backward(o.dy)
    wanted, gradients = torch_cases.exact(o, "causal")
    assert y.dtype == WIDE[dtype] and torch.equal(y, torch.from_numpy(wanted).to(y.dtype))
    assert o.k.grad.dtype == torch.float32
    assert torch.equal(o.k.grad, torch.from_numpy(gradients.k).float())
    assert torch.equal(o.pregate.grad, torch.from_numpy(gradients.pregate).to(y.dtype))


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize(
    ("mode", "length", "taps", "gates", "points"),
    [
        ("causal", 128, 128, "both", 256),
        ("circular", 256, 200, "pre", 256),
        ("two-sided", 101, 77, "post", 256),
    ],
)
def test_kernels_on_the_cpu_body(
    dtype: str, mode: str, length: int, taps: int, gates: str, points: int
) -> None:
    o = operands((3, 2, length), taps, gates, WIDE[dtype])
    with kernels_on_host():
        y = fftconv(o.u, o.k, mode=mode, **o.gates)
        y.backward(o.dy)
    torch_cases.check(o, y, mode, order=2, points=points)


def test_kernels_on_the_cpu_body_leave_double_precision_alone() -> None:
    o = operands((2, 2, 20), 20)
    with kernels_on_host():
        y = fftconv(o.u, o.k)
    assert torch.equal(y, fftconv(o.u, o.k))


@pytest.mark.parametrize("spoiled", ["u", "k"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_a_number_goes_as_far_as_in_pytorch(spoiled: str, value: float) -> None:
    o = operands((2, 3, 16), 16, dtype=torch.float32)
    with torch.no_grad():
        (o.u[0, 1] if spoiled == "u" else o.k[1])[3] = value
    found = []
    for run in (fftconv, torch_fftconv):
        y = run(o.u, o.k)
        y.backward(o.dy)
        found.append([~y.isfinite(), ~o.u.grad.isfinite(), ~o.k.grad.isfinite()])
        o.u.grad = o.k.grad = None
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert found[0][0].any() and not found[0][0].all()


# ---- what is kept and copied ---------------------------------------------------------------------------------
def test_the_forward_pass_keeps_its_arguments_and_nothing_else() -> None:
    o = operands((2, 3, 30), 30, "both", torch.float16)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.data_ptr()) or x, lambda x: x):
        fftconv(o.u, o.k, mode="causal", **o.gates)
    assert sorted(kept) == sorted(x.data_ptr() for x in o[:4])


def test_gaps_are_copied() -> None:
    o = operands((4, 3, 20), 20, "both")
    y = fftconv(o.u, o.k, mode="causal", **o.gates)
    y.backward(o.dy)
    leaves = [x.detach().clone().requires_grad_() for x in o[:4]]
    u, k, before, after = leaves
    gaps = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (u, k, before, after)]
    assert not any(x.is_contiguous() for x in gaps)
    z = fftconv(gaps[0], gaps[1], mode="causal", pregate=gaps[2], postgate=gaps[3])
    assert z.is_contiguous() and torch.equal(y, z)
    z.backward(o.dy[..., :1].expand(4, 3, 20) * 0 + o.dy)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(leaves, o[:4], strict=True))
    u.grad = None
    fftconv(u, k, mode="causal").sum().backward()  # a gradient of stride 0
    torch.testing.assert_close(u.grad[..., 0], k.sum(-1).expand(4, 3))


def test_only_what_is_asked_for_has_a_gradient() -> None:
    o = operands((2, 3, 10), 10, "both")
    o.u.requires_grad_(False)
    o.postgate.requires_grad_(False)
    fftconv(o.u, o.k, **o.gates).backward(o.dy)
    assert o.u.grad is None and o.postgate.grad is None
    _, gradients = torch_cases.exact(o, "circular")
    np.testing.assert_array_equal(array(o.pregate.grad), gradients.pregate)


def test_shapes_without_data() -> None:
    with torch.device("meta"):
        layer, u = LongConv(3, 10, skip=True), torch.empty(2, 3, 12, dtype=torch.float16)
    assert layer(u, pregate=u).shape == u.shape and layer(u).dtype == torch.float16


def test_no_sequences() -> None:
    u, k = torch.zeros(0, 3, 10, requires_grad=True), torch.randn(3, 10, requires_grad=True)
    y = fftconv(u, k)
    y.sum().backward()
    assert y.shape == (0, 3, 10) and u.grad.shape == (0, 3, 10)
    assert torch.equal(k.grad, torch.zeros(3, 10))


def test_a_filter_that_did_not_change_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    prepare = kernels_numba.prepare_filter
    monkeypatch.setattr(kernels_numba, "prepare_filter", lambda *a, **b: made.append(1) or prepare(*a, **b))
    forget_spectra()
    layer = LongConv(2, 100).eval()
    u = torch.randn(2, 2, 100, dtype=torch.float16)
    with torch.no_grad(), kernels_on_host():
        y = layer(u)
        assert torch.equal(layer(u), y) and len(made) == 1
        layer(u[:1])  # another batch, the same spectrum
        assert len(made) == 1
        layer(u.bfloat16())
        assert len(made) == 2
        layer.k.mul_(2)
        z = layer(u)
        assert len(made) == 3 and torch.equal(z, 2 * y)
        forget_spectra()
        assert torch.equal(layer(u), z) and len(made) == 4
    with kernels_on_host():
        layer(u), layer(u)  # a gradient is recorded
        assert len(made) == 6
        with torch.inference_mode():
            assert torch.equal(layer(u), z) and torch.equal(layer(u), z)
            assert len(made) == 6
            k = layer.k.clone()  # made here, so its changes are not counted
            assert torch.equal(fftconv(u, k, mode="causal"), z)
            k.mul_(2)
            assert torch.equal(fftconv(u, k, mode="causal"), 2 * z)


def test_only_a_few_spectra_of_a_filter_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    prepare = kernels_numba.prepare_filter
    monkeypatch.setattr(
        kernels_numba, "prepare_filter", lambda *a, **b: made.append(b["length"]) or prepare(*a, **b)
    )
    forget_spectra()
    k = torch.randn(1, 20)
    with torch.no_grad(), kernels_on_host():
        for length in (20, 21, 22, 23, 20, 24, 20, 21):
            fftconv(torch.ones(1, 1, length).half(), k, mode="causal")
    assert made == [20, 21, 22, 23, 24, 21]  # 21 went when 24 came, for 20 had been used since


def test_a_new_filter_at_an_old_address_is_not_mistaken() -> None:
    forget_spectra()
    u = torch.randn(1, 1, 64, dtype=torch.float16)
    with torch.no_grad(), kernels_on_host():
        for seed in range(5):
            torch.manual_seed(seed)
            k = torch.randn(1, 64)
            exact = reference.fftconv(array(u), array(k), mode="causal")
            y = fftconv(u, k, mode="causal")
            bound = reference.fftconv_bound(2, "fp16") * (1 + 5 / 16)
            reference.check_close(array(y), exact, array(u), array(k), bound=bound)
            del k


# ---- compiling, exporting, autocast --------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch's own check looks at it
def test_operators_are_registered_as_pytorch_wants() -> None:
    o = operands((2, 3, 16), 16, "both", torch.float32)
    quick = {"test_utils": ("test_schema", "test_autograd_registration", "test_faketensor")}
    torch.library.opcheck(torch.ops.monarch_numba.fftconv.default, (*o[:4], "causal", "", False))
    none = (o.u, o.k, None, None, "circular", "", False)
    torch.library.opcheck(torch.ops.monarch_numba.fftconv.default, none, **quick)
    needs = [True, True, False, True]
    backward = (o.dy, *o[:4], "causal", "", needs)
    torch.library.opcheck(torch.ops.monarch_numba.fftconv_backward.default, backward, **quick)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic: bool) -> None:
    plan = monarch.Plan(256, (16, 16))
    o = operands((4, 3, 40), 40, "both", torch.float32)

    def layer(u: Any, k: Any, before: Any, after: Any) -> Any:
        y = fftconv(torch.tanh(u), k, mode="causal", pregate=before, postgate=after, plan=plan)
        return y * 2

    y = layer(*o[:4])
    y.backward(o.dy)
    wanted = [x.grad for x in o[:4]]
    for x in o[:4]:
        x.grad = None
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    z = compiled(*o[:4])
    z.backward(o.dy)
    assert torch.equal(y, z)
    assert all(torch.equal(x.grad, right) for x, right in zip(o[:4], wanted, strict=True))
    if dynamic:
        more = operands((7, 3, 40), 40, "both", torch.float32, seed=1)
        assert torch.equal(compiled(*more[:4]), layer(*more[:4]))


def test_exported() -> None:
    layer = LongConv(3, 24, skip=True)
    u = torch.randn(2, 3, 24)
    exported = torch.export.export(layer, (u,))
    assert torch.equal(exported.module()(u), layer(u))
    assert any("monarch_numba.fftconv" in str(node.target) for node in exported.graph.nodes)


def test_autocast_casts_signals_and_not_the_filter() -> None:
    o = operands((2, 3, 30), 30, "both", torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = fftconv(o.u, o.k, mode="causal", **o.gates)
        z = torch_fftconv(o.u, o.k, mode="causal", **o.gates)
    assert y.dtype == z.dtype == torch.bfloat16
    rounded = [x.detach().bfloat16() for x in (o.u, o.pregate, o.postgate)]
    wanted = fftconv(rounded[0], o.k, mode="causal", pregate=rounded[1], postgate=rounded[2])
    assert torch.equal(y, wanted)
    y.backward(o.dy.bfloat16())
    assert {x.grad.dtype for x in o[:4]} == {torch.float32}
    double = operands((2, 3, 30), 30)
    with torch.autocast("cpu", torch.bfloat16):
        assert fftconv(double.u, double.k).dtype == torch.float64


@given(
    st.sampled_from(("pair", "half", "complex")), st.integers(2, 40), st.integers(2, 40), st.integers(0, 30)
)
def test_plans_go_through_text(packing: str, a: int, b: int, short: int) -> None:
    n = a * b * (2 if packing == "half" else 1)
    plan = monarch.Plan(n, (a, b), packing=packing, signal=None if short == 0 else min(short, n))
    assert plans.from_text(plans.to_text(plan)) == plan
    assert plans.from_text(plans.to_text(None)) is None


# ---- what is refused -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"mode": "linear"}, ValueError, "mode: accepted are circular, causal, two-sided; got 'linear'"),
        ({"plan": "16x16"}, TypeError, r"plan: expected a monarch.Plan or None, got str; .*Plan.parse"),
        ({"u": np.zeros((2, 3, 8))}, TypeError, "u: expected a torch.Tensor, got ndarray"),
        (
            {"u": torch.zeros(2, 3, 8, dtype=torch.int32)},
            TypeError,
            "u: accepted are float16, .* got torch.int32",
        ),
        ({"u": torch.zeros(8)}, ValueError, r"u: expected \[..., H, L\], got shape \(8,\)"),
        ({"k": torch.zeros(4, 8)}, ValueError, r"k: expected \[H, K\] with the 3 channels of u, .*\(4, 8\)"),
        (
            {"pregate": torch.zeros(2, 3, 8).half()},
            TypeError,
            "pregate: expected torch.float32, as u has, got",
        ),
        ({"postgate": torch.zeros(3, 8)}, ValueError, r"postgate: expected the shape of u, \(2, 3, 8\); got"),
        ({"k": torch.zeros(3, 8, device="meta")}, ValueError, "k is on meta and u on cpu; move them"),
        ({"k": torch.zeros(3, 9)}, ValueError, "k must have at most L=8 taps"),
    ],
)
def test_refused(change: dict[str, Any], error: type[Exception], text: str) -> None:
    good: dict[str, Any] = {"u": torch.zeros(2, 3, 8), "k": torch.zeros(3, 8)} | change
    u, k = good.pop("u"), good.pop("k")
    with pytest.raises(error, match=text):
        fftconv(u, k, **good)


# ---- layers --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", monarch.MODES)
def test_skip_is_a_number_at_lag_0(mode: str) -> None:
    layer = LongConv(3, 21, mode=mode, skip=True, dtype=torch.float64)
    u, before, after = torch.randn(3, 2, 3, 32, dtype=torch.float64)
    y = layer(u, pregate=before, postgate=after)
    x = u * before
    close(y, after * (torch_fftconv(x, layer.k, mode=mode) + layer.skip[:, None] * x), 64, times=4)
    assert repr(layer) == f"LongConv(3, 21, mode={mode!r}, skip=True)"


def test_layer_is_causal_and_keeps_the_size() -> None:
    torch.manual_seed(0)
    layer = LongConv(16, 256)
    u = torch.randn(8, 16, 256)
    v = u.clone()
    v[..., 100:] = 0
    assert torch.allclose(layer(u)[..., :100], layer(v)[..., :100], atol=1e-6)
    assert 0.5 < layer(u)[..., 128:].var().item() < 1.1  # the whole filter from K samples on


@pytest.mark.parametrize("arguments", [{"channels": 0}, {"taps": 1.5}, {"mode": "linear"}])
def test_layers_that_cannot_be(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}: .*; got"):
        LongConv(**({"channels": 2, "taps": 3} | arguments))


@pytest.mark.parametrize("name", list(OPERATORS))
def test_operators_are_those_of_torch_fft(name: str) -> None:
    torch.manual_seed(0)
    layer = OPERATORS[name](6, 48).double()
    other = copy.deepcopy(layer)
    other.convolve = torch_fftconv
    x = torch.randn(2, 48, 6, dtype=torch.float64)
    found = []
    for each in (layer, other):
        y = each(x)
        (y * x).sum().backward()
        assert all(p.grad is not None for p in each.parameters())
        found.append([y, *(p.grad for p in each.parameters())])
    for a, b in zip(*found, strict=True):
        close(a, b, 128, times=4)


def test_hyena_by_its_definition() -> None:
    """Written out with sums, from the parameters alone."""
    torch.manual_seed(0)
    layer = OPERATORS["hyena"](4, 12).double()
    x = torch.randn(2, 12, 4, dtype=torch.float64)
    with torch.no_grad():
        parts = []
        for weight, taps in zip(layer.project.weights, layer.project.shorts, strict=True):
            z, short = array(x @ weight.T), array(taps)
            y = np.zeros_like(z)
            for n in range(12):
                for lag in range(min(n + 1, 3)):
                    y[:, n] += short[:, 2 - lag] * z[:, n - lag]
            parts.append(y)
        v, before, after = parts
        k = array(layer.filter())
        k[:, 0] += array(layer.skip)
        y = np.zeros_like(v)
        for n in range(12):
            for j in range(n + 1):
                y[:, n] += k[:, j] * (before * v)[:, n - j]
        close(layer(x), torch.from_numpy((after * y) @ array(layer.out).T), 32, times=4)


def test_hyena_takes_shorter_sequences_and_the_mixer_both_directions() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 32, 4, dtype=torch.float64)
    hyena, mixer = (OPERATORS[name](4, 32).double() for name in ("hyena", "m2"))
    close(hyena(x[:, :20]), hyena(x)[:, :20], 64, times=4)
    moved = x.clone()
    moved[:, 20] += 1
    assert torch.allclose(hyena(x)[:, :20], hyena(moved)[:, :20])
    assert not torch.allclose(mixer(x)[:, :20], mixer(moved)[:, :20])


def test_implicit_filter_stays_in_single_precision() -> None:
    make = ImplicitFilter(4, 16)
    plain = make()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(make(), plain)
    assert plain.shape == (4, 16) and plain.dtype == torch.float32


# ---- the calls of flashfftconv -------------------------------------------------------------------------------
@settings(max_examples=25)
@given(n=st.integers(1, 70), part=st.floats(0, 1), taps=st.integers(1, 80), seed=seeds)
@example(n=64, part=0.5, taps=32, seed=0)
@example(n=64, part=0.5, taps=64, seed=0)
@example(n=64, part=1.0, taps=64, seed=0)
@example(n=64, part=0.75, taps=64, seed=0)
@example(n=64, part=0.5, taps=33, seed=0)
@example(n=64, part=0.5, taps=34, seed=0)
def test_flashfftconv_is_a_circle_of_its_length(n: int, part: float, taps: int, seed: int) -> None:
    length = max(1, round(part * n))
    o = operands((2, 3, length), taps, "both", torch.float16, seed=seed)
    conv = FlashFFTConv(n, dtype=torch.float16, use_32_butterfly=False)
    x, circle = np.zeros((2, 3, n)), np.zeros((3, n))
    x[..., :length] = array(o.u) * array(o.pregate)
    circle[:, :taps] = array(o.k)[:, :n]
    wanted = np.fft.ifft(np.fft.fft(x) * np.fft.fft(circle)).real[..., :length] * array(o.postgate)
    y = conv(o.u, o.k, pregate=o.pregate, postgate=o.postgate)
    unit = reference.unit_roundoff("fp16")
    assert np.all(np.abs(array(y) - wanted) <= unit * np.abs(wanted) + 2.0**-25 + 1e-12)  # rounded once
    y.backward(o.dy)
    assert torch.equal(o.k.grad[:, n:], torch.zeros(3, max(0, taps - n)))
    e = np.zeros((2, 3, n))
    e[..., :length] = array(o.dy) * array(o.postgate)
    dk = np.fft.ifft(np.fft.fft(e) * np.fft.fft(x).conj()).real.sum(0)[:, :taps]
    size = np.sqrt((np.square(np.linalg.norm(e, axis=-1) * np.linalg.norm(x, axis=-1))).sum(0))[:, None]
    assert np.all(np.abs(array(o.k.grad)[:, :n] - dk) <= 8 * reference.unit_roundoff("fp32") * size)


def test_flashfftconv_plain_and_refused() -> None:
    conv = FlashFFTConv(64, dtype=torch.bfloat16)
    u, k = torch.randn(2, 3, 32).bfloat16(), torch.randn(3, 32)
    assert torch.equal(conv(u, k), fftconv(u, k, mode="causal"))
    assert torch.equal(conv(u, k, None, u), fftconv(u, k, mode="causal", postgate=u))  # one gate alone
    with pytest.raises(TypeError, match=r"u: expected torch\.bfloat16, .*got torch\.float16"):
        conv(u.half(), k)
    with pytest.raises(ValueError, match="u: 65 samples are more than the 64 points"):
        conv(torch.zeros(1, 3, 65).bfloat16(), k)
    with pytest.raises(ValueError, match="dtype: accepted are"):
        FlashFFTConv(64, dtype=torch.float32)
    with pytest.raises(ValueError, match="seqlen: expected"):
        FlashFFTConv(0)


def test_flashfftconv_takes_checkpoints_that_have_its_constants() -> None:
    model = torch.nn.ModuleDict({"conv": FlashFFTConv(256), "out": torch.nn.Linear(2, 2)})
    saved = model.state_dict()
    assert sorted(saved) == ["out.bias", "out.weight"]
    model.load_state_dict({**saved, "conv.f_sqrt_N_fft": torch.zeros(16, 16, 2), "conv.twid": torch.zeros(2)})


@pytest.mark.filterwarnings("default")  # those of PyTorch's own compiler
def test_short_filters() -> None:
    torch.manual_seed(0)
    plain = torch.nn.Conv1d(4, 4, 3, groups=4, padding=2).double()
    x = torch.randn(2, 4, 20, dtype=torch.float64)
    short = FlashDepthWiseConv1d(4, 3, 2, plain.weight, plain.bias)
    assert torch.equal(short(x), plain(x))
    rows = FlashDepthWiseConv1d(4, 3, 2, plain.weight, plain.bias, is_bhl=False)
    assert torch.equal(rows(x.transpose(1, 2).contiguous()), plain(x).transpose(1, 2))
    taps = plain.weight[:, 0].detach()
    torch.testing.assert_close(short_conv(x, taps), plain(x)[..., :20] - plain.bias[:, None])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("taps", [3, 5])
def test_short_filters_by_their_kernel(dtype: Any, taps: int) -> None:
    """Values, gradients, and gradients of gradients beside those of PyTorch in float64; with gaps, too."""
    torch.manual_seed(0)
    x = torch.randn(2, 37, 3).to(dtype).transpose(1, 2).requires_grad_()
    w, dy = torch.randn(3, taps, requires_grad=True), torch.randn(2, 3, 37).to(dtype)
    wide = [v.detach().double().requires_grad_() for v in (x, w)]
    found = []
    for (u, k), change in (((x, w), dy), (wide, dy.double())):
        with kernels_on_host():
            y = short_conv(u, k)
            first = torch.autograd.grad(y, (u, k), change, create_graph=True)
            second = torch.autograd.grad(sum((v * v).sum() for v in first), (u, k))
        found.append([y, *first, *second])
    unit = reference.unit_roundoff("fp16" if dtype == torch.float16 else "bf16")
    for (a, b), roundings in zip(zip(*found, strict=True), (1, 1, 0.01, 3, 3), strict=True):
        assert (a.double() - b).norm() <= roundings * unit * b.norm()
    assert found[0][0].dtype == found[0][1].dtype == dtype and found[0][2].dtype == torch.float32


def test_the_short_filter_s_operators_are_registered_as_pytorch_wants() -> None:
    from kernels_numba.short_conv import MOST_TAPS
    from monarch.torch import short

    assert short.MOST_TAPS == MOST_TAPS
    x, w = torch.randn(2, 3, 40).half().requires_grad_(), torch.randn(3, 3, requires_grad=True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(short.forward_op, (x, w), test_utils=checks)
    torch.library.opcheck(short.backward_op, (x.detach(), x.detach(), w.detach()), test_utils=checks)
    layer = torch.compile(lambda x, w: 2 * short_conv(x, w), fullgraph=True, backend="aot_eager")
    with torch.device("meta"):
        y = layer(torch.empty(2, 3, 40, dtype=torch.float16), torch.empty(3, 3))
    assert y.shape == (2, 3, 40)


# ---- the training example ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def example() -> Any:
    path = Path(__file__).resolve().parent.parent / "examples" / "train_hyena.py"
    spec = importlib.util.spec_from_file_location("train_hyena", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train_hyena"] = module
    spec.loader.exec_module(module)
    return module


def test_a_language_model_trains_alike_by_both_convolutions(example: Any, tmp_path: Path) -> None:
    """In float64, where rounding is far below what a step changes, so that the curves must be one."""
    folder = tmp_path / "cpu"
    assert example.main(["--quick", "--steps", "10", "--seeds", "1", "--output", str(folder)]) == 0
    curves = training.curves(training.losses("cpu", folder=tmp_path))
    (steps, fused), (_, plain) = curves["fused", 0], curves["torch", 0]
    assert steps == list(range(10))
    assert abs(fused[0] - np.log(256)) < 0.1  # it begins knowing nothing,
    assert fused[-1] < fused[0] - 0.3  # and learns that some bytes are commoner than others
    np.testing.assert_allclose(fused, plain, rtol=1e-8)  # what the file holds
    found = training.runs("cpu", folder=tmp_path)
    assert [run["convolution"] for run in found["runs"]] == ["fused", "torch"]
    assert found["settings"]["dtype"] == "fp64" and found["text"]["bytes"] > 10**6
    for run in found["runs"]:
        assert run["tokens_per_s"] > 0 and run["held_out_loss"] < fused[0]


def test_what_the_example_refuses(example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        (["--quick", "--steps", "1"], "at least 2 steps"),
        ([], "there is no GPU here; --quick"),
    ):
        if not arguments and torch.cuda.is_available():
            continue
        with pytest.raises(SystemExit) as caught:
            example.main([*arguments, "--output", str(tmp_path)])
        assert caught.value.code == 2 and text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", range(2))
def test_the_code_of_the_document_runs(number: int) -> None:
    text = (Path(__file__).resolve().parent.parent / "docs" / "training.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    exec(compile(blocks[number], "training.md", "exec"), {})


# ---- measuring -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("layer", training.LAYERS)
def test_layers_that_are_measured_agree(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the clock and the allocator, which only a GPU has."""
    case = measure_training.Case(layer, 32, 2, 4, "bf16")
    calls = []

    def call(x: Any, torch: Any) -> int:
        calls.append(x())
        return 1000

    monkeypatch.setattr(measure_training, "peak", call)
    monkeypatch.setattr(measure_training, "times_of", lambda *given: ([float(len(calls))] * 10, ""))
    rows = measure_training.measured(case, torch, ("2026-11-30", "abc"), batches=False, device="cpu")
    assert [row.convolution for row in rows] == ["fused", "torch"] and len(calls) == 4
    text = training.to_csv(rows)
    assert text.count(f"{layer},2,4,32,bf16") == 2 and 0 < rows[0].rel_diff <= measure_training.bound(case)

    def wrong(*args: Any, **how: Any) -> Any:
        return 1.1 * fftconv(*args, **how)

    monkeypatch.setattr("monarch.torch.torch_fftconv", wrong)
    with pytest.raises(MeasurementError, match="output and gradients differ by"):
        measure_training.measured(case, torch, ("2026-11-30", "abc"), batches=False, device="cpu")


def test_what_is_measured_first() -> None:
    found = measure_training.cases()
    assert [case.layer for case in found[:5]] == list(training.LAYERS) and len(set(found)) == len(found)
    assert {case.length for case in found[:5]} == {4096} and {case.batch for case in found[:5]} == {64}
    assert all(case.batch * case.length <= 2**22 for case in found)
    assert len(measure_training.cases(quick=True)) == 5
