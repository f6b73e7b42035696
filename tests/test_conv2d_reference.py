"""Convolution layers in two dimensions: the definition, FFT against direct, adjoint gradients, and the errors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import reference

Array = NDArray[Any]
TIGHT = 1e-12


@dataclass(frozen=True)
class Layer:
    """A layer's shapes and arguments; `Layer(...)` of a failing example can be pasted into ``@example``."""

    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1

    @property
    def arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("stride", "padding", "dilation", "groups")}

    def data(self, seed: int) -> tuple[Array, Array, Array]:
        """x, w and a gradient of the shape of the result."""
        draw = np.random.default_rng(seed)
        x, w = draw.standard_normal(self.x), draw.standard_normal(self.w)
        return x, w, draw.standard_normal(reference.conv2d(x, w, **self.arguments).shape)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    def two(least: int, most: int, label: str) -> Any:
        one = st.integers(least, most)
        return draw(st.one_of(one, st.tuples(one, one)), label=label)

    groups = draw(st.integers(1, 3), label="groups")
    inputs, outputs = (
        draw(st.integers(1, 3), label="Cin / groups"),
        draw(st.integers(1, 3), label="Cout / groups"),
    )
    n, m = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)), label="n, m")
    dilation, stride = two(1, 3, "dilation"), two(1, 4, "stride")
    padding = draw(st.sampled_from(["valid", "same", "number"]), label="padding")
    if padding == "same":
        stride = 1
    elif padding == "number":
        padding = two(0, 4, "padding in samples")
    spread = np.broadcast_to(dilation, 2)
    pads = (0, 0) if padding == "valid" else (99, 99) if padding == "same" else np.broadcast_to(padding, 2)
    taps = [
        draw(st.integers(1, min(6, (size + 2 * int(p) - 1) // int(d) + 1)), label="taps")
        for size, p, d in zip((n, m), pads, spread, strict=True)
    ]
    samples = draw(st.integers(1, 3), label="S")
    x, w = (samples, groups * inputs, n, m), (groups * outputs, inputs, taps[0], taps[1])
    return Layer(x, w, stride, padding, dilation, groups)


def assert_same(got: Array, expected: Array, *sizes: Array) -> None:
    """Agreement to 1e-12 of the product of the operands' norms; NaN agrees with nothing."""
    assert got.shape == expected.shape and got.dtype == np.float64
    size = np.prod([np.linalg.norm(x) for x in sizes])
    worst = np.max(np.abs(got - expected), initial=0.0)
    assert worst <= TIGHT * size, f"off by {worst} where the terms are {size}"


def as_written(layer: Layer, x: Array, w: Array) -> Array:
    """The definition, index by index."""
    (sh, sw), (dh, dw) = np.broadcast_to(layer.stride, 2), np.broadcast_to(layer.dilation, 2)
    kh, kw = w.shape[2:]
    if layer.padding == "same":
        top, bottom = (total := dh * (kh - 1)) // 2, (total + 1) // 2
        left, right = (total := dw * (kw - 1)) // 2, (total + 1) // 2
    else:
        top, left = np.broadcast_to(0 if layer.padding == "valid" else layer.padding, 2)
        bottom, right = top, left
    height, width = x.shape[2] + top + bottom - dh * (kh - 1), x.shape[3] + left + right - dw * (kw - 1)
    y = np.zeros((x.shape[0], w.shape[0], -(-height // sh), -(-width // sw)))
    per_group = w.shape[0] // layer.groups
    for s, o, a, b in np.ndindex(y.shape):
        for c, i, j in np.ndindex(w.shape[1:]):
            row, column = a * sh + i * dh - top, b * sw + j * dw - left
            if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                y[s, o, a, b] += w[o, c, i, j] * x[s, o // per_group * w.shape[1] + c, row, column]
    return y


# ---- the same by other ways ----

SMALL = Layer((1, 2, 4, 5), (2, 1, 2, 3), (2, 1), (1, 0), (1, 2), 2)


@pytest.mark.parametrize(
    "layer",
    [
        SMALL,
        Layer((2, 1, 1, 1), (1, 1, 1, 1)),
        Layer((1, 2, 5, 4), (3, 2, 2, 4), padding="same"),
        Layer((1, 1, 3, 2), (1, 1, 4, 6), padding="same"),
        Layer((1, 1, 5, 6), (1, 1, 2, 3), padding="same", dilation=(3, 2)),
        Layer((1, 3, 7, 5), (3, 1, 3, 3), 2, 1, 1, 3),
        Layer((1, 1, 2, 3), (1, 1, 5, 7), 1, 3),
        Layer((1, 2, 6, 6), (2, 2, 3, 2), (3, 2), "valid"),
    ],
    ids=str,
)
def test_direct_is_the_definition(layer: Layer) -> None:
    x, w, _ = layer.data(0)
    assert_same(reference.conv2d(x, w, **layer.arguments), as_written(layer, x, w), x, w)


def passes(layer: Layer, x: Array, w: Array, g: Array, method: str) -> tuple[Array, Array, Array]:
    return (
        reference.conv2d(x, w, method=method, **layer.arguments),
        reference.conv2d_input_gradient(g, w, size=layer.x[2:], method=method, **layer.arguments),
        reference.conv2d_weight_gradient(g, x, size=layer.w[2:], method=method, **layer.arguments),
    )


@given(layers(), seeds)
@example(Layer((2, 3, 13, 17), (4, 3, 7, 6), padding="same"), 0)
@example(Layer((3, 8, 16, 15), (8, 1, 5, 5), groups=8, padding=2), 0)
@example(Layer((1, 1, 2, 2), (1, 1, 11, 11), padding=5, stride=3), 0)
@example(Layer((0, 2, 4, 4), (2, 2, 3, 3)), 0)
def test_fft_is_direct_in_all_three_passes(layer: Layer, seed: int) -> None:
    x, w, g = layer.data(seed)
    by_fft, direct = passes(layer, x, w, g, "fft"), passes(layer, x, w, g, "direct")
    for got, expected, operands in zip(by_fft, direct, [(x, w), (g, w), (g, x)], strict=True):
        assert_same(got, expected, *operands)


@given(layers(), seeds)
def test_gradients_are_adjoint(layer: Layer, seed: int) -> None:
    """<conv(x, w), g> = <x, gradient in x> = <w, gradient in w>, by both methods."""
    x, w, g = layer.data(seed)
    for method in ("direct", "fft"):
        y, gx, gw = passes(layer, x, w, g, method)
        assert gx.shape == x.shape and gw.shape == w.shape
        size = np.linalg.norm(x) * np.linalg.norm(w) * np.linalg.norm(g)
        assert abs(np.vdot(y, g) - np.vdot(x, gx)) <= TIGHT * size
        assert abs(np.vdot(y, g) - np.vdot(w, gw)) <= TIGHT * size


@given(layers(), seeds, st.tuples(st.integers(0, 5), st.integers(0, 5)))
def test_transforms_are_reused(layer: Layer, seed: int, longer: tuple[int, int]) -> None:
    """Three transforms serve all three passes, on any torus that holds the padded input."""
    x, w, g = layer.data(seed)
    padded = reference.conv2d_transforms(layer.x, layer.w, **layer.arguments).lengths
    lengths = (padded[0] + longer[0], padded[1] + longer[1])
    transforms = reference.conv2d_transforms(layer.x, layer.w, lengths=lengths, **layer.arguments)
    X, W, G = transforms.of_x(x), transforms.of_w(w), transforms.of_gradient(g)
    frequencies = lengths[0] * (lengths[1] // 2 + 1)
    assert [s.nbytes for s in (X, W, G)] == [16 * frequencies * a.shape[0] * a.shape[1] for a in (x, w, g)]
    y, gx, gw = passes(layer, x, w, g, "direct")
    assert_same(transforms.forward(X, W), y, x, w)
    assert_same(transforms.input_gradient(G, W), gx, g, w)
    assert_same(transforms.weight_gradient(G, X), gw, g, x)


@pytest.mark.parametrize("method", ["direct", "fft"])
@pytest.mark.parametrize(
    ("size", "taps"), [((9, 8), (3, 5)), ((8, 7), (2, 4)), ((5, 5), (5, 5)), ((6, 1), (3, 1))]
)
def test_plain_case_is_correlate2d_of_scipy(
    size: tuple[int, int], taps: tuple[int, int], method: str
) -> None:
    from scipy.signal import correlate2d

    draw = np.random.default_rng(3)
    x, w = draw.standard_normal((2, 3, *size)), draw.standard_normal((4, 3, *taps))
    modes = {"valid": "valid", "full": (taps[0] - 1, taps[1] - 1)}
    if taps[0] % 2 and taps[1] % 2:
        modes["same"] = "same"
    for mode, padding in modes.items():
        expected = np.array([[sum(map(lambda a, b: correlate2d(a, b, mode), s, o)) for o in w] for s in x])
        assert_same(reference.conv2d(x, w, padding=padding, method=method), expected, x, w)


@pytest.mark.parametrize("method", ["direct", "fft"])
def test_same_of_an_even_filter_pads_right_and_below(method: str) -> None:
    x, w = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 10.0])
    for shape in ((1, 1, 1, -1), (1, 1, -1, 1)):
        y = reference.conv2d(x.reshape(shape), w.reshape(shape), padding="same", method=method)
        assert y.ravel().round(12).tolist() == [21, 32, 43, 4]
    w = np.array([1.0, 10.0, 100.0, 1000.0]).reshape(1, 1, 1, 4)  # total 3: one left, two right
    y = reference.conv2d(x.reshape(1, 1, 1, 4), w, padding="same", method=method)
    assert y.ravel().round(10).tolist() == [3210, 4321, 432, 43]


@pytest.mark.parametrize("method", ["direct", "fft"])
def test_gradients_are_finite_differences(method: str) -> None:
    x, w, g = SMALL.data(5)
    _, gx, gw = passes(SMALL, x, w, g, method)

    def loss(x: Array, w: Array) -> float:
        return float(np.vdot(reference.conv2d(x, w, **SMALL.arguments), g))

    for data, gradient, call in (
        (x, gx, lambda changed: loss(changed, w)),
        (w, gw, lambda changed: loss(x, changed)),
    ):
        for at in np.ndindex(data.shape):
            step = np.zeros_like(data)
            step[at] = 0.5  # the loss is linear in either operand: any step will do
            assert abs(call(data + step) - call(data - step) - gradient[at]) <= 1e-12 * 100


def test_groups_are_separate_layers() -> None:
    x, w, _ = Layer((2, 6, 5, 4), (9, 2, 3, 2), groups=3).data(1)
    for method in ("direct", "fft"):
        y = reference.conv2d(x, w, groups=3, method=method)
        parts = [reference.conv2d(x[:, 2 * i : 2 * i + 2], w[3 * i : 3 * i + 3]) for i in range(3)]
        assert_same(y, np.concatenate(parts, axis=1), x, w)


def test_half_types_are_widened_and_inputs_kept() -> None:
    x, w = np.ones((1, 1, 3, 3), np.float16) * 2048, np.ones((1, 1, 3, 3), np.int32)
    for method in ("direct", "fft"):
        y = reference.conv2d(x, w, padding=1, method=method)
        assert y.dtype == np.float64 and y.max().round(6) == 9 * 2048
    assert x.dtype == np.float16 and np.all(x == 2048)
    strided = np.broadcast_to(np.float64(1), (1, 2, 6, 6))[:, ::2, ::-1, ::2]
    assert np.all(reference.conv2d(strided, w) == 9)


def test_small_outputs_beside_large_ones_drown_in_an_fft() -> None:
    """What the documentation says that an FFT cannot promise, and direct sums can."""
    x, w = np.full((1, 1, 16, 16), 1e-9), np.ones((1, 1, 3, 3))
    x[0, 0, 8, 8] = 1e9
    direct, by_fft = (reference.conv2d(x, w, method=method) for method in ("direct", "fft"))
    corner = (0, 0, 0, 0)
    assert abs(direct[corner] - 9e-9) < 1e-22
    assert_same(by_fft, direct, x, w)
    assert 1e-9 < np.max(np.abs(by_fft - direct)[..., :5, :5])


# ---- what is wrong differs ----

ODD = Layer((2, 4, 9, 8), (6, 2, 3, 4), (2, 1), (1, 2), (1, 2), 2)
SAME = Layer((2, 2, 7, 6), (3, 2, 4, 2), padding="same")


def early_same(x: Array, w: Array) -> Array:
    """The extra zero left and above."""
    x = np.pad(x, [(0, 0), (0, 0), (2, 1), (1, 0)])
    return reference.conv2d(x, w)


def swapped(layer: Layer, *names: str) -> dict[str, Any]:
    return {name: value[::-1] if name in names else value for name, value in layer.arguments.items()}


WRONG: dict[str, tuple[Layer, Callable[[Array, Array], Array]]] = {
    "convolution": (ODD, lambda x, w: reference.conv2d(x, w[..., ::-1, ::-1], **ODD.arguments)),
    "filter transposed": (ODD, lambda x, w: reference.conv2d(x, w.reshape(6, 2, 4, 3), **ODD.arguments)),
    "stride and padding swapped": (
        ODD,
        lambda x, w: reference.conv2d(x, w, **{**ODD.arguments, "stride": (1, 2), "padding": (2, 1)}),
    ),
    "rows and columns of the stride": (ODD, lambda x, w: reference.conv2d(x, w, **swapped(ODD, "stride"))),
    "rows and columns of the padding": (ODD, lambda x, w: reference.conv2d(x, w, **swapped(ODD, "padding"))),
    "groups mixed": (ODD, lambda x, w: reference.conv2d(x[:, [0, 2, 1, 3]], w, **ODD.arguments)),
    "stride from 1": (
        ODD,
        lambda x, w: reference.conv2d(np.roll(x, -1, 2), w, **ODD.arguments),
    ),
    "same off by one": (SAME, early_same),
    "circular": (
        SAME,
        lambda x, w: reference.conv2d(np.pad(x, [(0, 0), (0, 0), (1, 2), (0, 1)], mode="wrap"), w),
    ),
    "zeros": (SAME, lambda x, w: 0 * reference.conv2d(x, w, padding="same")),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_results_are_rejected(wrong: str) -> None:
    layer, make = WRONG[wrong]
    x, w, _ = layer.data(7)
    exact = as_written(layer, x, w)
    assert_same(reference.conv2d(x, w, **layer.arguments), exact, x, w)
    with pytest.raises(AssertionError):
        assert_same(make(x, w), exact, x, w)


def test_nan_is_rejected() -> None:
    x, w, _ = SAME.data(7)
    y = reference.conv2d(x, w, padding="same")
    y[0, 0, 0, 0] = np.nan
    with pytest.raises(AssertionError, match="off by nan"):
        assert_same(y, as_written(SAME, x, w), x, w)


def test_fp32_is_held_to_fp32() -> None:
    """A result of operands that were rounded to 10 or to 16 bits of significand is no fp32 result."""
    draw = np.random.default_rng(3)
    x, w = (draw.standard_normal(shape).astype(np.float32) for shape in ((2, 8, 20, 20), (6, 8, 5, 5)))
    exact = reference.conv2d(x, w)
    held = {"which": "forward", "dtype": "fp32"}
    reference.check_conv2d(exact.astype(np.float32), exact, x, w, **held)  # type: ignore[arg-type]
    for bits in (10, 16):
        step = np.float32(2.0 ** (23 - bits) + 1)  # Veltkamp's splitting
        high = [step * a - (step * a - a) for a in (x, w)]
        with pytest.raises(AssertionError):
            reference.check_conv2d(reference.conv2d(*high), exact, x, w, **held)  # type: ignore[arg-type]
    few, many = (reference.conv2d_bound("fp32", terms=k) for k in (1, 80_000))
    assert 2e-7 < few < 4e-7 < many < 1e-5


# ---- errors ----

X, W = np.ones((2, 4, 5, 6)), np.ones((6, 2, 3, 3))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"x": X[0]}, ValueError, r"x must be \[S, Cin, n, m\].*got shape \(4, 5, 6\)"),
        ({"w": W[0]}, ValueError, r"w must be \[Cout, Cin / groups, kh, kw\].*got shape"),
        ({"x": X[..., :0]}, ValueError, "x must be .* none of them 0"),
        ({"w": W[:0]}, ValueError, "w must be .* none of them 0"),
        ({"x": X * 1j}, TypeError, "x must be real"),
        ({"w": W.astype(bool)}, TypeError, "w must be float16"),
        ({"groups": 1}, ValueError, "w must be .* Cin=4 .* groups=1"),
        ({"w": W[:5]}, ValueError, "w must have Cout divisible by groups=2; got Cout=5"),
        ({"groups": 0}, ValueError, "groups must be at least 1"),
        ({"groups": 2.0}, TypeError, "groups must be an integer"),
        ({"stride": 0}, ValueError, "stride must be .* at least 1"),
        ({"stride": (1, 2, 3)}, ValueError, "stride must be one integer or two"),
        ({"stride": 1.5}, TypeError, "stride must be one integer or two"),
        ({"dilation": (1, 0)}, ValueError, "dilation must be"),
        ({"padding": -1}, ValueError, "padding must be .* at least 0"),
        ({"padding": "full"}, ValueError, 'padding must be "same", "valid"'),
        ({"padding": "same", "stride": 2}, ValueError, 'padding "same" must have stride 1'),
        (
            {"w": np.ones((6, 2, 6, 3))},
            ValueError,
            r"w must fit into the padded x: \(6, 3\) taps .* \(5, 6\)",
        ),
        ({"dilation": 3}, ValueError, r"w must fit .* dilation \(3, 3\) cover \(7, 7\) samples of \(5, 6\)"),
        ({"method": "winograd"}, ValueError, "method must be one of direct, fft"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"x": X, "w": W, "groups": 2, **arguments}
    with pytest.raises(error, match=message):
        reference.conv2d(given.pop("x"), given.pop("w"), **given)


def test_bad_arguments_of_the_gradients() -> None:
    g = np.ones((2, 6, 3, 4))
    assert reference.conv2d_input_gradient(g, W, size=(5, 6), groups=2).shape == X.shape
    assert reference.conv2d_weight_gradient(g, X, size=3, groups=2).shape == W.shape
    for size in ((6, 5), 5, (5, 7)):
        with pytest.raises(ValueError, match=r"gradient must have the shape .*got \(2, 6, 3, 4\)"):
            reference.conv2d_input_gradient(g, W, size=size, groups=2)
    with pytest.raises(ValueError, match="gradient must have the shape"):
        reference.conv2d_weight_gradient(g[:1], X, size=3, groups=2)
    with pytest.raises(ValueError, match="x must have Cin divisible by groups=3; got Cin=4"):
        reference.conv2d_weight_gradient(g, X, size=3, groups=3)
    with pytest.raises(ValueError, match="gradient must have Cout divisible by groups=2; got Cout=5"):
        reference.conv2d_weight_gradient(g[:, :5], X, size=3, groups=2)
    with pytest.raises(ValueError, match=r"size must be .* at least 1"):
        reference.conv2d_weight_gradient(g, X, size=0)
    with pytest.raises(ValueError, match="groups must be at least 1"):
        reference.conv2d_weight_gradient(g, X, size=3, groups=0)
    with pytest.raises(TypeError, match="groups must be an integer"):
        reference.conv2d_weight_gradient(g, X, size=3, groups="2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="groups must be an integer"):
        reference.conv2d_input_gradient(g, W, size=5, groups=2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"gradient must be \[S, Cout, h, w\]"):
        reference.conv2d_input_gradient(g[0], W, size=5)


def test_bad_spectra_are_refused() -> None:
    layer = reference.conv2d_transforms((2, 4, 5, 6), (4, 4, 3, 3), padding=1)
    other = reference.conv2d_transforms((2, 4, 5, 6), (4, 4, 3, 3))
    x, w = layer.of_x(X), layer.of_w(np.ones((4, 4, 3, 3)))
    with pytest.raises(TypeError, match="x must be the spectrum that of_x makes; got that of 'w'"):
        layer.forward(w, x)
    with pytest.raises(TypeError, match=r"w must be the spectrum that of_w makes; got .*ndarray"):
        layer.forward(x, w.values)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x must be a spectrum of this layer"):
        layer.forward(other.of_x(X), w)
    with pytest.raises(ValueError, match=r"x must have the shape \(2, 4, 5, 6\) that the transforms"):
        layer.of_x(X[:1])
    with pytest.raises(
        ValueError, match=r"lengths must be at least the padded input's, \(7, 8\); got \(7, 7\)"
    ):
        reference.conv2d_transforms((2, 4, 5, 6), (4, 4, 3, 3), padding=1, lengths=(7, 7))
    with pytest.raises(ValueError, match="w_shape must be four lengths"):
        reference.conv2d_transforms((0, 4, 5, 6), (0, 4, 3, 3))
