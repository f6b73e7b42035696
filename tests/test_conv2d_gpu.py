"""Convolution layers on a GPU: against float64, and against the CPU body; layers too large for that one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray
from test_conv2d import OPERANDS, Case, cases, check, exact

import reference
from kernels_numba import (
    Conv2dSpectra,
    conv2d,
    conv2d_gradients,
    conv2d_input_gradient,
    conv2d_weight_gradient,
)
from kernels_numba.conv2d_plan import PASSES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning"),
]


@pytest.fixture
def torch() -> Any:
    """PyTorch; a build of it that has no CUDA has no arrays for these tests."""
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("PyTorch without CUDA")
    return found


def run(case: Case, data: dict[str, NDArray], **settings: Any) -> NDArray:
    geometry, layer = case.geometry, {**case.layer, "tile": case.tile, "impl": "fft", **settings}
    if case.which == "forward":
        return conv2d(data["x"], data["w"], **layer)
    if case.which == "input_gradient":
        return conv2d_input_gradient(data["dy"], data["w"], input_size=geometry.x_shape[2:], **layer)
    return conv2d_weight_gradient(data["x"], data["dy"], kernel_size=geometry.w_shape[2:], **layer)


def assert_right(case: Case, **settings: Any) -> None:
    data = case.data()
    result = exact(case.which, data, case.geometry, case.layer)
    check(case, run(case, data, **settings), result, data)


@settings(max_examples=30)
@given(cases())
def test_random_layers(case: Case) -> None:
    assert_right(case)


LAYERS = (
    Case((4, 96, 32, 32), 96, (7, 7), tile=(32, 32)),
    Case((3, 35, 33, 40), 70, (5, 9), tile=(32, 48), padding=(2, 4), dtype="bf16"),
    Case((2, 130, 30, 50), 33, (11, 4), tile=(48, 16), stride=(2, 3)),
    Case((3, 12, 64, 64), 20, (11, 11), tile=(64, 64)),
    Case((2, 12, 90, 70), 18, (7, 7), tile=(64, 48), dilation=(2, 3), padding=(6, 9), groups=3),
    Case((2, 24, 31, 37), 24, (5, 5), tile=(32, 32), padding=(2, 2), groups=24),
    Case((3, 70, 31, 37), 70, (5, 5), tile=(32, 32), padding=(2, 2), groups=70, dtype="fp32"),
    Case((40, 3, 50, 50), 64, (9, 9), tile=(48, 64)),
    Case((2, 5, 70, 64), 6, (40, 33), tile=(64, 64)),
    Case((1, 1, 1, 1), 1, (1, 1)),
    Case((2, 3, 9, 9), 4, (5, 5), padding=(40, 3)),
    Case((4, 96, 32, 32), 96, (7, 7), tile=(32, 32), dtype="fp32"),
    Case((3, 35, 33, 40), 70, (5, 9), tile=(32, 48), padding=(2, 4), dtype="fp32"),
    Case((2, 130, 30, 50), 33, (11, 4), tile=(48, 16), stride=(2, 3), dtype="fp32"),
    Case((2, 12, 90, 70), 18, (7, 7), tile=(64, 64), dilation=(2, 3), padding=(6, 9), groups=3, dtype="fp32"),
    Case((2, 5, 80, 70), 6, (66, 33), tile=(64, 64), padding=9),
    Case((2, 5, 20, 90), 6, (3, 80), tile=(16, 64), padding=9, dtype="fp32"),
)


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(
    "case", LAYERS, ids=lambda case: "x".join(map(str, (*case.x, *case.taps))) + case.dtype
)
def test_layers(case: Case, which: str) -> None:
    assert_right(Case(**{**vars(case), "which": which}))


@pytest.mark.parametrize("case", LAYERS[:3], ids=lambda case: "x".join(map(str, case.x)))
def test_images_in_groups_give_the_same(case: Case) -> None:
    data = case.data()
    limit = case.plan.bytes - 1
    assert np.array_equal(run(case, data), run(case, data, memory=limit))


@pytest.mark.parametrize("groups", (1, 8))
@pytest.mark.parametrize("dtype", ("fp16", "fp32"))
@pytest.mark.parametrize("which", PASSES)
def test_memory_limit_is_obeyed(which: str, dtype: str, groups: int, torch: Any) -> None:
    """A pass in groups of images allocates no more than it was allowed, and is as right as the whole."""
    case = Case((24, 8, 40, 40), 8, (5, 5), which, tile=(32, 32), dtype=dtype, groups=groups)
    whole = case.plan
    limit = whole.bytes // 2
    data = {name: torch.from_numpy(x).cuda() for name, x in case.data().items()}
    result = exact(which, case.data(), case.geometry, case.layer)
    out = torch.empty(result.shape, device="cuda", dtype=next(iter(data.values())).dtype)
    run(case, data, memory=limit, out=out)
    out.fill_(float("nan"))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run(case, data, memory=limit, out=out)
    torch.cuda.synchronize()
    assert 0 < torch.cuda.max_memory_allocated() - before <= limit
    a, b = (case.data()[name] for name in OPERANDS[which])
    reference.check_conv2d(
        out.cpu().numpy(), result, a, b, which=which, dtype=dtype, groups=groups, terms=case.terms
    )


@pytest.mark.parametrize("number", (0, 1, 5, 8, 11))
def test_kept_spectra_give_the_same_gradients(number: int, torch: Any) -> None:
    """And x, w are not read again; calls that are made again take the spectra that are kept then."""
    case = LAYERS[number]
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[case.dtype]
    draw, g = torch.Generator("cuda").manual_seed(0), case.geometry
    size, taps, layer = g.x_shape[2:], g.w_shape[2:], case.layer
    for _ in range(3):
        x, w, dy = (
            torch.randn(shape, device="cuda", generator=draw).to(kind)
            for shape in (g.x_shape, g.w_shape, g.y_shape)
        )
        keep = Conv2dSpectra()
        y = conv2d(x, w, tile=case.tile, keep=keep, **layer)
        depthwise = case.groups == case.x[1]  # without spectra these round less
        assert depthwise or torch.equal(y, conv2d(x, w, tile=case.tile, impl="fft", **layer))
        assert keep.bytes == keep.x.nbytes + keep.w.nbytes
        lost_x, lost_w = torch.full_like(x, float("nan")), torch.full_like(w, float("nan"))
        dx = conv2d_input_gradient(dy, lost_w, input_size=size, keep=keep, **layer)
        dw = conv2d_weight_gradient(lost_x, dy, kernel_size=taps, keep=keep, **layer)
        out = torch.full_like(x, float("nan")), torch.full_like(w, float("nan"))
        both = conv2d_gradients(dy, lost_x, lost_w, keep=keep, out=out, **layer)
        assert all(a is b for a, b in zip(both, out, strict=True))
        assert torch.equal(both[0], dx) and torch.equal(both[1], dw)
        given: dict[str, Any] = {"tile": case.tile, "impl": "fft", **layer}
        assert depthwise or torch.equal(dw, conv2d_weight_gradient(x, dy, kernel_size=taps, **given))
        assert depthwise or torch.equal(dx, conv2d_input_gradient(dy, w, input_size=size, **given))
        for found, exact_of in zip(
            conv2d_gradients(dy, x, w, impl="fft", **layer),
            (
                torch.nn.grad.conv2d_input(g.x_shape, w.double(), dy.double(), **layer),
                torch.nn.grad.conv2d_weight(x.double(), g.w_shape, dy.double(), **layer),
            ),
            strict=True,
        ):
            error = (found.double() - exact_of).norm() / exact_of.norm()
            assert error < reference.conv2d_bound(case.dtype, terms=4096)
    library = conv2d_gradients(dy, x, w, impl="direct", **layer)
    assert all((a - b).norm() < 0.02 * b.norm() for a, b in zip(library, both, strict=True))


def test_many_magnitudes() -> None:
    """Norm-wise per map: images and filters of very different size do not disturb each other."""
    case = LAYERS[0]
    data = case.data()
    sizes = 2.0 ** np.random.default_rng(0).integers(-6, 7, (4, 96))
    data["x"] = (data["x"] * sizes[..., None, None]).astype(np.float16)
    result = exact("forward", data, case.geometry, case.layer)
    found = run(case, data)
    reference.check_conv2d(found, result, data["x"], data["w"], which="forward", dtype="fp16")


def test_pytorch_on_a_stream_in_a_graph_and_the_library(torch: Any) -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    x, w, dy = (
        torch.randn(shape, device="cuda", generator=draw).half()
        for shape in ((4, 16, 30, 31), (24, 16, 7, 7), (4, 24, 30, 31))
    )
    layer = {"padding": 3}
    calls = {
        "forward": lambda impl: conv2d(x, w, impl=impl, **layer),
        "input_gradient": lambda impl: conv2d_input_gradient(dy, w, input_size=(30, 31), impl=impl, **layer),
        "weight_gradient": lambda impl: conv2d_weight_gradient(x, dy, kernel_size=7, impl=impl, **layer),
    }
    for which, call in calls.items():
        eager, library = call("fft"), call("direct")
        difference = (eager.double() - library.double()).norm() / library.double().norm()
        assert difference < 2 * reference.conv2d_bound("fp16"), (
            which
        )  # the library's own rounding, and more terms
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call("fft")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = call("fft")
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, eager), which
    # Calls that are made again, with other arrays, in the place of others, and from an odd address.
    for call in calls.values():
        for impl in ("fft", "direct", None):
            assert torch.equal(call(impl), call(impl))
    first, other = conv2d(x, w, impl="fft", **layer), torch.randn_like(x)
    out = torch.full_like(first, float("nan"))
    assert conv2d(x, w, impl="fft", out=out, **layer) is out and torch.equal(out, first)
    shifted = torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)[1:].view(x.shape).copy_(x)
    assert torch.equal(conv2d(shifted, w, impl="fft", **layer), first)
    assert not torch.equal(conv2d(other, w, impl="fft", **layer), first)
    assert conv2d(x, w, impl="direct", out=out, **layer) is out and not torch.equal(out, first)
    # fp32 is fp32 by both ways, whatever is allowed elsewhere.
    torch.backends.cudnn.allow_tf32 = True
    single = [conv2d(x.float(), w.float(), impl=impl, **layer).double() for impl in ("fft", "direct")]
    exact_y = torch.nn.functional.conv2d(x.double(), w.double(), padding=3)
    assert all((y - exact_y).norm() < 1e-5 * exact_y.norm() for y in single)
    assert torch.backends.cudnn.allow_tf32
    weights = torch.nn.Parameter(w)
    with torch.no_grad():
        assert torch.equal(conv2d(x, weights, impl="fft", **layer), first)
    with pytest.raises(TypeError, match="requires a gradient"):
        conv2d(x, weights, impl="fft", **layer)
    with pytest.raises(TypeError, match="requires a gradient"):
        conv2d(x.clone().requires_grad_(), w)
    assert conv2d(x, w, padding="same").shape == (4, 24, 30, 31)
