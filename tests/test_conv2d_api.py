"""conv2d and its gradients as a user calls them: arguments, errors, memory, kept spectra, the choice of a way."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conv2d import Case, cases

import kernels_numba
import reference
from costmodel.conv2d_counts import of_steps
from kernels_numba import (
    Conv2dSpectra,
    conv2d,
    conv2d_calls,
    conv2d_gradients,
    conv2d_input_gradient,
    conv2d_weight_gradient,
    explain_conv2d,
)
from kernels_numba.arrays import adapter_of
from kernels_numba.conv2d_dispatch import costs, plans, rates_for, seconds
from kernels_numba.conv2d_geometry import Geometry
from kernels_numba.conv2d_passes import ample_bytes
from kernels_numba.conv2d_plan import NONE, PASSES
from kernels_numba.conv2d_run import run_cpu
from kernels_numba.conv2d_shared import of_forward
from kernels_numba.conv2d_tiles import axes, from_start
from kernels_numba.device import Device

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")


def data(*shape: int, seed: int = 0, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def test_passes_are_adjoint_and_spectra_are_reused() -> None:
    """<conv(x, w), dy> = <x, gx> = <w, gw>, within the bounds of the three; kept spectra change nothing."""
    x, w, layer = data(2, 2, 9, 11), data(3, 2, 3, 4, seed=1), {"padding": (1, 2)}
    keep = Conv2dSpectra()
    assert keep.bytes == 0
    y = conv2d(x, w, keep=keep, **layer)
    # Frequencies, images or outputs, channels padded to four.
    assert (keep.x_bytes, keep.w_bytes) == (4 * 128 * 2 * 4, 4 * 128 * 3 * 4)
    assert keep.bytes == keep.x_bytes + keep.w_bytes == keep.x.nbytes + keep.w.nbytes
    dy = data(*y.shape, seed=2)
    gx = conv2d_input_gradient(dy, w, input_size=(9, 11), **layer)
    gw = conv2d_weight_gradient(x, dy, kernel_size=(3, 4), **layer)
    # Neither x nor w is read again.
    lost_x, lost_w = np.full_like(x, np.nan), np.full_like(w, np.nan)
    assert np.array_equal(
        gx, conv2d_input_gradient(dy, lost_w, input_size=(9, 11), keep=keep, **layer)
    ) and np.array_equal(gw, conv2d_weight_gradient(lost_x, dy, kernel_size=(3, 4), keep=keep, **layer))
    out = np.full_like(x, np.nan), np.full_like(w, np.nan)
    found = conv2d_gradients(dy, lost_x, lost_w, keep=keep, out=out, **layer)
    assert all(a is b for a, b in zip(found, out, strict=True))
    for both in (found, conv2d_gradients(dy, x, w, **layer)):
        assert np.array_equal(both[0], gx) and np.array_equal(both[1], gw)
    reference.check_conv2d(y, reference.conv2d(x, w, **layer), x, w, which="forward", dtype="fp16")
    sizes = [np.linalg.norm(a.astype(float)) for a in (x, w, dy)]
    inner = [float(np.vdot(a.astype(float), b.astype(float))) for a, b in ((y, dy), (x, gx), (w, gw))]
    allowed = 2 * reference.conv2d_bound("fp16", samples=w.size) * np.prod(sizes)
    assert max(inner) - min(inner) < allowed < 0.1 * np.prod(sizes)
    conv2d(x[:0], w, keep=keep, **layer)
    assert keep.bytes == 0


def test_kept_spectra_must_be_of_the_layer() -> None:
    """What does not fit is named, with what is held and what came."""
    x, w, dy = data(2, 2, 9, 11), data(3, 2, 3, 4, seed=1), data(2, 3, 7, 8, seed=2)
    keep = Conv2dSpectra()
    with pytest.raises(ValueError, match="keep: it holds no spectra; give it to conv2d first"):
        conv2d_input_gradient(dy, w, input_size=(9, 11), keep=keep)
    conv2d(x, w, keep=keep)
    calls: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: conv2d_weight_gradient(
                data(2, 2, 9, 12), data(2, 3, 7, 9), kernel_size=(3, 4), keep=keep
            ),
            r"of another layer, with x_shape \(2, 2, 9, 11\); got \(2, 2, 9, 12\)",
        ),
        (
            lambda: conv2d_input_gradient(data(2, 3, 9, 10), w, input_size=(9, 11), padding=1, keep=keep),
            r"with padding before \(0, 0\); got \(1, 1\)",
        ),
        (
            lambda: conv2d_gradients(*(a.astype(np.float32) for a in (dy, x, w)), keep=keep),
            "it holds spectra of fp16, and this layer is in fp32",
        ),
        (
            lambda: conv2d_input_gradient(dy, w, input_size=(9, 11), keep=keep, tile=32),
            r"tile: the spectra that keep holds are of tiles of 16 x 16; got \(32, 32\)",
        ),
        (
            lambda: conv2d_weight_gradient(x, dy, kernel_size=(3, 4), keep=keep, memory=1000),
            "memory: with the spectrum of x kept this layer needs",
        ),
        (
            lambda: conv2d_input_gradient(dy, w, input_size=(9, 11), keep=keep, memory=1000),
            r"memory: .* need at least \d+ bytes",
        ),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()
    keep.place = ("torch", 1)
    with pytest.raises(ValueError, match="its spectra are in GPU 1, of torch and the arrays in host memory"):
        conv2d_input_gradient(dy, w, input_size=(9, 11), keep=keep)
    with pytest.raises(ValueError, match=r"out: expected two arrays.*got 1"):
        conv2d_gradients(dy, x, w, out=(x,))


@given(cases(), st.booleans())
@settings(max_examples=2 if settings().max_examples <= 50 else 15)
def test_both_gradients_are_those_of_the_passes(case: Case, whole: bool) -> None:
    """With spectra kept and dy transformed once: the bits of each pass alone, in fewer launches, as counted."""
    geometry, layer = case.geometry, case.layer
    given = [replace(case, which=which).data() for which in ("forward", "weight_gradient")]
    x, w, dy = given[0]["x"], given[0]["w"], given[1]["dy"]
    keep = Conv2dSpectra()
    conv2d(x, w, keep=keep, tile=None if whole else case.tile, **layer)
    dx, dw = conv2d_gradients(dy, x, w, keep=keep, **layer)
    assert keep.plan is not None
    pair = of_forward(keep.plan)
    alone = [
        run_cpu(plan, arrays, shape)
        for plan, arrays, shape in (
            (pair.inputs, {"dy": dy, "w": w}, geometry.x_shape),
            (pair.weights, {"dy": dy, "x": x}, geometry.w_shape),
        )
    ]
    assert np.array_equal(dx, alone[0][0]) and np.array_equal(dw, alone[1][0])
    first, second = pair.kept(kept=True)
    if pair.shared:  # nothing but spectra is needed
        spectra = {"dy": alone[0][2]["dy"], "x": keep.x}
        again, counters, _ = run_cpu(pair.weights, {}, geometry.w_shape, spectra)
        counted, found = vars(of_steps(pair.weights.steps(kept=second))), counters.as_dict()
        assert np.array_equal(again, dw) and counted == {name: found[name] for name in counted}
    for plan, kept in ((pair.inputs, first), (pair.weights, second)):
        assert plan.launches(kept) == len(plan.steps(kept=kept)) < plan.launches()
        fewer, all_bytes = (sum(cost.bytes for cost in costs(plan, some)) for some in (kept, NONE))
        assert fewer < all_bytes


@pytest.mark.parametrize("dtype", ("fp16", "fp32"))
def test_spectra_of_large_filters_are_reused(dtype: str) -> None:
    """The spectra of x that the parts of a filter see are those that its gradient needs."""
    kind = {"fp16": np.float16, "fp32": np.float32}[dtype]
    x, w = data(1, 2, 68, 4, dtype=kind), data(3, 2, 66, 2, seed=1, dtype=kind)
    keep = Conv2dSpectra()
    y = conv2d(x, w, keep=keep)
    reference.check_conv2d(y, reference.conv2d(x, w), x, w, which="forward", dtype=dtype)
    assert keep.plan is not None and keep.plan.part_count > 1
    dy = data(*y.shape, seed=2, dtype=kind)
    gx = conv2d_input_gradient(dy, np.full_like(w, np.nan), input_size=(68, 4), keep=keep)
    exact = reference.conv2d_input_gradient(dy, w, size=(68, 4))
    reference.check_conv2d(gx, exact, dy, w, which="input_gradient", dtype=dtype)
    gw = conv2d_weight_gradient(x, dy, kernel_size=(66, 2), keep=keep)
    exact = reference.conv2d_weight_gradient(dy, x, size=(66, 2))
    reference.check_conv2d(gw, exact, dy, x, which="weight_gradient", dtype=dtype)
    with pytest.raises(ValueError, match="with the spectrum of x kept this layer needs"):
        conv2d_weight_gradient(x, dy, kernel_size=(66, 2), keep=keep, memory=1000)


def test_out_and_empty_batches() -> None:
    w = data(3, 2, 3, 3, dtype=ml_dtypes.bfloat16)
    empty = np.empty((0, 2, 8, 8), ml_dtypes.bfloat16)
    assert conv2d(empty, w).shape == (0, 3, 6, 6)
    assert conv2d_input_gradient(np.empty((0, 3, 6, 6), w.dtype), w, input_size=8).shape == (0, 2, 8, 8)
    out = np.full(w.shape, np.nan, w.dtype)
    found = conv2d_weight_gradient(empty, np.empty((0, 3, 6, 6), w.dtype), kernel_size=3, out=out)
    assert found is out and not out.any()
    x = data(1, 1, 5, 4)
    out = np.full((1, 1, 5, 4), np.nan, np.float16)
    assert conv2d(x, np.ones((1, 1, 1, 1), np.float16), out=out) is out
    assert np.linalg.norm(out - x.astype(float)) < 2 * reference.conv2d_bound("fp16") * np.linalg.norm(x)


X, W = np.zeros((2, 4, 9, 9), np.float16), np.zeros((6, 4, 3, 3), np.float16)
DY = np.zeros((2, 6, 7, 7), np.float16)
ERRORS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: conv2d(X.astype(np.float64), W), TypeError, "x: the kernels take fp16, bf16, fp32, got fp64"),
    (lambda: conv2d(X.astype(np.float32), W), TypeError, "w: expected fp32, as x; got fp16"),
    (lambda: conv2d(X, W.astype(ml_dtypes.bfloat16)), TypeError, "w: expected fp16, as x; got bf16"),
    (lambda: conv2d([[1.0]], W), TypeError, "x: expected a NumPy"),
    (lambda: conv2d(X[0], W), ValueError, "x: expected an array of four axes"),
    (lambda: conv2d(X, W[:, :3]), ValueError, "with the C=4 of x"),
    (lambda: conv2d(X, W, groups=0), ValueError, "groups: expected a whole number"),
    (lambda: conv2d(X, W[:5, :2], groups=2), ValueError, "O divisible by groups"),
    (lambda: conv2d(X, W, stride=0), ValueError, "stride: expected one integer or two of at least 1"),
    (lambda: conv2d(X, W, dilation=1.5), TypeError, "dilation: expected one integer or two"),
    (lambda: conv2d(X, W, padding="full"), ValueError, 'padding: expected "same", "valid"'),
    (lambda: conv2d(X, W, padding="same", stride=2), ValueError, "needs stride 1"),
    (lambda: conv2d(X, W, dilation=5), ValueError, r"its taps cover \(11, 11\) samples of \(9, 9\)"),
    (lambda: conv2d(X, W, impl="winograd"), ValueError, "impl: expected one of fft, direct"),
    (lambda: conv2d(X, W, impl="direct"), ValueError, "PyTorch, for its tensors on a GPU"),
    (lambda: conv2d(X, W, tile=24), ValueError, "tile: accepted for this layer are 16x16"),
    (lambda: conv2d(X, W, memory=1 << 12), ValueError, "need at least 18432 bytes"),
    (lambda: conv2d(X, W, memory=0.5), TypeError, "memory: expected a whole number of bytes"),
    (lambda: conv2d(X.transpose(0, 1, 3, 2), W), ValueError, "x: expected a contiguous"),
    (lambda: conv2d(X, W, out=DY[:, :5]), ValueError, "out: expected shape"),
    (lambda: conv2d_input_gradient(DY, W, input_size=10), ValueError, "dy: expected shape"),
    (lambda: conv2d_input_gradient(DY, W, input_size=9, groups=0), ValueError, "groups"),
    (lambda: conv2d_weight_gradient(X, DY, kernel_size=4), ValueError, "dy: expected shape"),
    (lambda: conv2d_weight_gradient(X, DY, kernel_size=3, groups=3), ValueError, "C divisible by groups=3"),
    (
        lambda: conv2d_weight_gradient(X, DY, kernel_size=3, memory=100),
        ValueError,
        r"at least \d+ bytes \(one image at a time\)",
    ),
    (lambda: explain_conv2d((2, 4, 9, 9), (6, 4, 3, 3), dtype="fp64"), ValueError, "dtype"),
    (lambda: explain_conv2d((2, 4, 9, 9), (6, 4, 3, 3), which="backward"), ValueError, "which"),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors_say_what_came_and_what_is_accepted(number: int) -> None:
    call, kind, message = ERRORS[number]
    with pytest.raises(kind, match=message):
        call()


def test_kept_spectra_and_groups_of_images_exclude_each_other() -> None:
    x = np.zeros((3, 1, 8, 8), np.float16)
    with pytest.raises(ValueError, match="keep: images go in groups of 1"):
        conv2d(x, np.zeros((1, 1, 3, 3), np.float16), memory=1600, keep=Conv2dSpectra())


@given(
    st.integers(1, 300),
    st.integers(1, 40),
    st.integers(2, 64),
    st.integers(1, 11) | st.integers(60, 140),
    st.integers(10**5, 10**9),
    st.sampled_from(PASSES),
    st.sampled_from(("fp16", "fp32")),
)
def test_plans_obey_the_limit(
    n: int, channels: int, size: int, k: int, memory: int, which: str, dtype: str
) -> None:
    """Every plan stays within the limit, or the error names a limit that would do."""
    geometry = Geometry.of((n, channels, size, size), (channels, channels, k, k), padding=k // 2)
    try:
        found = plans(geometry, which, dtype, memory=memory)
    except ValueError as error:
        needed = int(str(error).split("at least ")[1].split(" bytes")[0])
        assert needed > memory
        found = plans(geometry, which, dtype, memory=needed)
        memory = needed
    for plan in found:
        assert plan.bytes <= memory
        assert plan.images * plan.batches >= n
        assert seconds(plan, rates_for(132)) > 0
    assert found[0].launches() == len(found[0].steps())


def test_without_a_limit_spectra_leave_most_of_the_memory() -> None:
    """As many images at once as an ample share holds; one, where that is too little; a limit goes before both."""
    geometry = Geometry.of((64, 8, 32, 32), (8, 8, 5, 5))
    (whole,) = plans(geometry, "forward", "fp16", tile=32)
    (half,) = plans(geometry, "forward", "fp16", tile=32, ample=whole.bytes // 2)
    (one,) = plans(geometry, "forward", "fp16", tile=32, ample=1)
    (asked,) = plans(geometry, "forward", "fp16", tile=32, ample=1, memory=whole.bytes)
    assert (whole.images, one.images, asked.images) == (64, 1, 64)
    assert 1 < half.images < 64 and half.bytes <= whole.bytes // 2
    gpu = Device("gpu", "", memory_bytes=4 * whole.bytes)
    assert ample_bytes(gpu) == whole.bytes and ample_bytes(Device("cpu", "")) is None


@given(
    st.integers(1, 150),
    st.integers(1, 20),
    st.integers(0, 25),
    st.integers(0, 30),
    st.booleans(),
)
def test_tiles_compute_each_result_from_its_own_samples(
    n_in: int, span: int, before: int, after: int, backwards: bool
) -> None:
    """Overlap-save on integers, wrapping with the other sign: every tiling gives the sums."""
    n_out = n_in + before + after - span + 1
    if n_out < 1:
        return
    draw = np.random.default_rng(n_in)
    source, filter_ = draw.integers(-9, 10, n_in), draw.integers(-9, 10, span)
    padded = np.concatenate([np.zeros(before, int), source, np.zeros(after, int)])
    taps = filter_[::-1] if backwards else filter_
    exact = np.correlate(padded, taps, "valid")
    skip = span - 1 if backwards else 0
    found_tiles = axes(n_in, n_out, span, -before, skip)
    if backwards:
        found_tiles += [from_start(tiles, n_in, n_out, span, -before) for tiles in found_tiles]
    for tiles in found_tiles:
        found = np.zeros(n_out, int)
        for i in range(tiles.count):
            at = tiles.first + i * tiles.step + np.arange(tiles.size)
            inside = (at >= 0) & (at < n_in)
            tile = np.where(inside, source[np.clip(at, 0, n_in - 1)], 0)
            for a in range(min(tiles.step, n_out - i * tiles.step)):
                for j in range(span):
                    place = a + tiles.skip - j if backwards else a + j
                    sign = -1 if place // tiles.size % 2 else 1
                    found[i * tiles.step + a] += filter_[j] * sign * tile[place % tiles.size]
        assert np.array_equal(found, exact), tiles


def test_explanations() -> None:
    found = explain_conv2d((128, 96, 32, 32), (96, 96, 7, 7))
    assert found.impl == "fft" and found.plan is not None and found.plan.tile == (32, 32)
    assert found.margin is not None and found.margin > 1
    assert "tiles of 32 x 32" in str(found) and "MB of spectra" in str(found)
    assert explain_conv2d((128, 96, 32, 32), (96, 96, 1, 1)).impl == "direct"
    large = explain_conv2d((1, 1, 99, 99), (1, 1, 65, 65))
    assert large.plan is not None and large.plan.part_count >= 4 and "filter in " in str(large)
    assert explain_conv2d((128, 96, 32, 32), (96, 96, 7, 7), dtype="fp32").impl == "fft"
    nothing = explain_conv2d((1, 1, 99, 99), (1, 1, 65, 65), memory=1000)
    assert nothing.impl == "direct" and "memory: the spectra of this layer need" in str(nothing)


def test_calls_that_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They read addresses and launch; other kinds of arrays, and those that begin elsewhere, go the long way."""
    x, w, out = data(2, 4, 9, 9), data(6, 4, 3, 3, seed=1), data(2, 6, 7, 7)
    plan = explain_conv2d(x.shape, w.shape).plan
    assert plan is not None
    started: list[tuple[str, ...]] = []
    steps = [
        (lambda stream, *p, n=n: started.append((n, *p)), [(name, offset) for name, offset in refs], None)
        for n, refs in (
            ("transform", [("x", 0), ("A", 8)]),
            ("inverse", [("P", 4), ("out", 2)]),
            ("B", [("B", 0)]),
        )
    ]
    monkeypatch.setattr(conv2d_calls, "launches", lambda *_: SimpleNamespace(steps=steps))
    adapter = adapter_of(x, "x")
    monkeypatch.setattr(adapter, "stream", lambda index: 7)
    spaces: list[np.ndarray] = []
    make = adapter.empty_of

    def empty(a: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        spaces.append(make(a, shape))
        return spaces[-1]

    monkeypatch.setattr(adapter, "empty_of", empty)
    call = conv2d_calls.Repeated(plan, {"x": x, "w": w}, out, adapter, 0)
    whole = conv2d_calls.is_whole(x, w, out)
    assert whole == all(a.ctypes.data % 16 == 0 for a in (x, w, out)) and not conv2d_calls.is_whole(
        x.reshape(-1)[1:]
    )
    assert (call(x, w, out, {}) is out) == whole
    if whole:
        words, space = plan.words(plan.images), spaces[-1]
        assert 2 * space.size == 4 * sum(words.values())
        start = space.ctypes.data
        assert started == [
            ("transform", x.ctypes.data, start + 8),
            ("inverse", start + 4 * (words["A"] + words["B"]) + 4, out.ctypes.data + 2),
            ("B", start + 4 * words["A"]),
        ]
    assert call(x[:1], w, out, {}) is None and call(x, w.astype(np.float32), out, {}) is None
    assert (
        call(x, w, out[:, :, :, :6], {}) is None
        and call(np.zeros((2, 4, 9, 18), np.float16)[..., ::2], w, out, {}) is None
    )
    # Spectra that are given or handed out are arrays of their own.
    started.clear()
    given: dict[str, Any] = {"w": np.zeros(words["B"], np.int32)} if whole else {}
    call = conv2d_calls.Repeated(plan, {"x": x, "w": w}, out, adapter, 0, given, ("x",))
    assert (call(x, w, out, given) is out) == whole
    if whole:
        assert [name for name, *_ in started] == ["transform", "inverse", "B"]
        assert started[0][2] == given["x"].ctypes.data + 8 and started[2][1] == given["w"].ctypes.data
        assert started[1][1] == spaces[-1].ctypes.data + 4 and 2 * spaces[-1].size == 4 * words["P"]
    key = conv2d_calls.key_of("forward", x, w, (1, 0), None)
    assert key != conv2d_calls.key_of("forward", x, w, (True, 0), None)
    assert conv2d_calls.key_of("forward", [1.0], w, (1, 0), None) is None
    assert conv2d_calls.remembered(None) is None and conv2d_calls.remembered(key) is None


def test_front_door_is_exported() -> None:
    assert {"conv2d", "Conv2dSpectra", "explain_conv2d"} <= set(kernels_numba.__all__)
