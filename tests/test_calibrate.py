"""Finding phi: the paper's three models, honest rates and intervals, a transformer trained here, the command."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attentions import RANGES
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import kernels_numba
import reference
from kernels_numba import calibrate_phi
from kernels_numba.attention_checks import HIGHEST, LOWEST
from kernels_numba.calibrate import main
from kernels_numba.calibration import fallback, logits_of


def in_range(model: str, rows: int = 400, keys: int = 100, seed: int = 0) -> NDArray[np.float64]:
    """Logits about normal whose range is the model's."""
    low, high = RANGES[model]
    x = np.random.default_rng(seed).standard_normal((rows, keys)).clip(-4, 4)
    return (low + high) / 2 + x * (high - low) / 8


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("model", RANGES)
def test_the_paper_s_models(model: str, tight: bool) -> None:
    x = in_range(model)
    found = calibrate_phi(x, tight=tight, most_fallback=0.2)
    if model == "OPT-6.7B":
        assert not found.usable and found.phi is None and found.bounds is None
        assert "more than the 100 that float32 exponentials hold" in found.reason and "leave it off" in str(
            found
        )
        return
    assert found.usable and found.phi is not None and found.bounds is not None
    a, b = found.bounds
    assert LOWEST <= a < b <= HIGHEST
    inside = (x - found.phi > a) & (x - found.phi < b)
    assert np.mean(inside) >= 0.9995
    if not tight:
        assert found.fallback_rate == 0 and inside.all()
        low, high = found.logit_range
        assert np.isclose(
            low - found.phi - LOWEST, HIGHEST - (high - found.phi)
        )  # as much room on both sides
    assert not reference.overflow_flags(
        in_range(model, seed=7), phi=found.phi, bounds=(LOWEST, HIGHEST)
    ).any()


@given(seed=seeds, shift=st.floats(-1000, 1000), width=st.floats(0, 20))
def test_a_shift_of_all_logits_shifts_phi(seed: int, shift: float, width: float) -> None:
    x = width * np.random.default_rng(seed).standard_normal((20, 30))
    one, other = calibrate_phi(x, most_fallback=1.0), calibrate_phi(x + shift, most_fallback=1.0)
    assert one.usable == other.usable
    if one.usable:
        assert one.phi is not None and other.phi is not None
        assert np.isclose(other.phi - one.phi, shift, atol=1e-6) and one.bounds == other.bounds


@given(seeds)
def test_the_rate_is_of_rows_that_did_not_choose(seed: int) -> None:
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((60, 20))
    wild = draw.choice(30, 7, replace=False)
    x[2 * wild + 1, 3] = 500  # rows that are only counted
    found = calibrate_phi(x, most_fallback=1.0)
    assert found.rows == 30 and found.fallback_rate == 7 / 30
    assert found.phi is not None and found.bounds is not None
    flags = reference.overflow_flags(x[1::2], phi=found.phi, bounds=found.bounds)
    assert np.mean(flags) == found.fallback_rate
    low, high = found.fallback_interval
    assert low < found.fallback_rate < high
    strict = calibrate_phi(x)
    assert not strict.usable and "leave the range all the same" in strict.reason


def test_the_interval_covers() -> None:
    """In about 95 of 100 samples the true rate is inside; counted over fixed seeds."""
    draw, n, p = np.random.default_rng(0), 200, 0.03
    covered = 0
    for _ in range(1000):
        rows = np.where(draw.random((n, 1)) < p, 100.0, 0.0)
        low, high = fallback(rows, 0.0, (-1.0, 1.0))[1]
        covered += low <= p <= high
    assert 0.92 <= covered / 1000 <= 0.99
    assert fallback(np.zeros((50, 1)), 0.0, (-1.0, 1.0))[1][0] == 0
    assert fallback(np.full((50, 1), 9.0), 0.0, (-1.0, 1.0))[1][1] == 1


# ---- a transformer ---------------------------------------------------------------------------------------------
TOKENS, HALF, WIDTH, HEADS, HEAD = 12, 10, 64, 1, 64


def sequences(draw: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Random tokens, then the same again: what comes next in the second half is to be looked up."""
    first = draw.integers(0, TOKENS, (count, HALF))
    return np.concatenate([first, first], axis=1)


def forward(p: dict[str, NDArray], tokens: NDArray[np.int64]) -> tuple[NDArray, tuple]:
    n = tokens.shape[1]
    x = p["token"][tokens] + p["place"][:n]
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    s = q @ k.transpose(0, 2, 1) / np.sqrt(HEAD)
    s = np.where(np.tri(n, dtype=bool), s, -np.inf)
    a = np.exp(s - s.max(axis=-1, keepdims=True))
    a /= a.sum(axis=-1, keepdims=True)
    y = x + (a @ v) @ p["o"]
    z = y @ p["u"]
    z = np.exp(z - z.max(axis=-1, keepdims=True))
    return z / z.sum(axis=-1, keepdims=True), (x, q, k, v, s, a, y)


def gradients(p: dict[str, NDArray], tokens: NDArray[np.int64]) -> tuple[float, dict[str, NDArray]]:
    """Cross-entropy of the second half's tokens and its gradient, written out."""
    z, (x, q, k, v, _, a, y) = forward(p, tokens[:, :-1])
    later = np.arange(z.shape[1]) >= HALF - 1
    count = later.sum() * len(tokens)
    right = np.take_along_axis(z, tokens[:, 1:, None], axis=-1)[..., 0]
    loss = -np.log(right[:, later] + 1e-30).sum() / count
    dz = z.copy()
    np.put_along_axis(dz, tokens[:, 1:, None], right[..., None] - 1, axis=-1)
    dz *= later[None, :, None] / count
    dy = dz @ p["u"].T
    do = dy @ p["o"].T
    da = do @ v.transpose(0, 2, 1)
    ds = a * (da - (da * a).sum(axis=-1, keepdims=True)) / np.sqrt(HEAD)
    dq, dk, dv = ds @ k, ds.transpose(0, 2, 1) @ q, a.transpose(0, 2, 1) @ do
    dx = dy + dq @ p["q"].T + dk @ p["k"].T + dv @ p["v"].T
    dtoken = np.zeros_like(p["token"])
    np.add.at(dtoken, tokens[:, :-1], dx)

    def both(left: NDArray, right: NDArray) -> NDArray:
        return np.einsum("bni,bnj->ij", left, right, optimize=True)

    dplace = np.zeros_like(p["place"])
    dplace[: dx.shape[1]] = dx.sum(axis=0)
    found = {"token": dtoken, "place": dplace, "q": both(x, dq), "k": both(x, dk), "v": both(x, dv)}
    return float(loss), found | {"o": both(a @ v, dy), "u": both(y, dz)}


def train(steps: int = 250) -> tuple[dict[str, NDArray], list[float]]:
    """One layer, trained by Adam to repeat what it has seen."""
    draw = np.random.default_rng(0)
    shapes = {"token": (TOKENS, WIDTH), "place": (2 * HALF, WIDTH), "u": (WIDTH, TOKENS)}
    shapes |= {name: (WIDTH, HEAD) for name in "qkvo"}
    p = {name: draw.standard_normal(shape) / np.sqrt(WIDTH) for name, shape in shapes.items()}
    mean = {name: np.zeros(shape) for name, shape in shapes.items()}
    square = {name: np.zeros(shape) for name, shape in shapes.items()}
    losses = []
    for step in range(1, steps + 1):
        loss, gradient = gradients(p, sequences(draw, 32))
        losses.append(loss)
        for name, g in gradient.items():
            mean[name] = 0.9 * mean[name] + 0.1 * g
            square[name] = 0.99 * square[name] + 0.01 * g * g
            p[name] -= (
                0.01 * (mean[name] / (1 - 0.9**step)) / (np.sqrt(square[name] / (1 - 0.99**step)) + 1e-8)
            )
    return p, losses


def test_the_gradient_of_the_transformer() -> None:
    draw = np.random.default_rng(1)
    p, _ = train(1)
    tokens = sequences(draw, 3)
    _, gradient = gradients(p, tokens)
    for name, g in gradient.items():
        way = draw.standard_normal(g.shape)
        ends = [gradients({**p, name: p[name] + e * way}, tokens)[0] for e in (1e-5, -1e-5)]
        assert np.isclose((ends[0] - ends[1]) / 2e-5, np.sum(g * way), rtol=1e-4, atol=1e-8), name


def test_a_transformer_trained_from_scratch() -> None:
    """Calibrated on some sequences, phi serves others, and the kernel gives what the exact attention gives."""
    p, losses = train()
    assert losses[0] > 2 and np.mean(losses[-20:]) < 0.5  # it learnt: chance is log 12 = 2.5
    draw = np.random.default_rng(5)
    x = forward(p, sequences(draw, 60))[1][4]
    found = calibrate_phi(x)
    assert found.usable and found.phi is not None and found.bounds is not None
    _, (_, q, k, v, s, _, _) = forward(p, sequences(draw, 8))
    flags = reference.overflow_flags(s, phi=found.phi, bounds=found.bounds)
    assert np.mean(flags) <= found.fallback_interval[1] + 0.05
    tight = calibrate_phi(x, tight=True, coverage=0.99, most_fallback=1.0)
    assert tight.fallback_rate > 0  # some rows reach beyond the middle 99 %
    halves = [np.ascontiguousarray(y[:, :, None]).astype(np.float16) for y in (q[:, -1:], k, v)]
    for scheme in (found, tight):
        settings: dict[str, Any] = {"phi": scheme.phi, "bounds": scheme.bounds}
        y = kernels_numba.DecodeAttention(halves[0].shape, halves[1].shape, **settings).run_cpu(*halves)[0]
        exact = reference.decode_attention(*halves, **settings)
        tolerance = reference.attention_tolerance(*halves, dtype="fp16", phi=scheme.phi)
        reference.check_attention(y, exact, tolerance)


# ---- arguments and the command ---------------------------------------------------------------------------------
def test_queries_and_keys() -> None:
    draw = np.random.default_rng(0)
    q, k = draw.standard_normal((3, 2, 4, 16)), draw.standard_normal((3, 9, 2, 16))
    x = logits_of(q, k, softcap=3.0)
    assert x.shape == (3, 2, 4, 9)
    assert np.isclose(x[1, 1, 3, 5], 3 * np.tanh(q[1, 1, 3] @ k[1, 5, 1] / 4 / 3))
    assert calibrate_phi(q=q, k=k, softcap=3.0) == calibrate_phi(x)
    masked = np.concatenate([x, np.full_like(x, -np.inf)], axis=-1)
    assert calibrate_phi(masked) == calibrate_phi(x)


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (TypeError, "^logits: expected logits, or q and k", {}),
        (TypeError, "^logits: expected logits, or q and k", {"q": np.ones((1, 1, 1, 8))}),
        (ValueError, "^logits: expected rows", {"logits": np.ones(5)}),
        (ValueError, "^logits: expected at least two rows", {"logits": np.ones((1, 5))}),
        (ValueError, "^logits: expected finite", {"logits": np.full((4, 5), np.nan)}),
        (ValueError, "^coverage: expected", {"logits": np.ones((4, 5)), "coverage": 0}),
        (ValueError, "^most_fallback: expected", {"logits": np.ones((4, 5)), "most_fallback": 2}),
        (ValueError, "^q and k: expected", {"q": np.ones((1, 1, 1, 8)), "k": np.ones((1, 1, 1, 9))}),
        (ValueError, "^q: expected a multiple", {"q": np.ones((1, 1, 3, 8)), "k": np.ones((1, 1, 2, 8))}),
    ],
)
def test_refusals(error: type[Exception], match: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=match):
        calibrate_phi(**arguments)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, both, wrong = (
        str(tmp_path / name) for name in ("good.npy", "bad.npy", "both.npz", "wrong.npz")
    )
    x = in_range("Llama2-7B")
    np.save(good, x)
    np.save(bad, in_range("OPT-6.7B"))
    draw = np.random.default_rng(0)
    np.savez(both, q=draw.standard_normal((3, 1, 4, 16)), k=draw.standard_normal((3, 9, 2, 16)))
    np.savez(wrong, z=x)
    assert main([good, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = calibrate_phi(x)
    assert printed["phi"] == expected.phi and tuple(printed["bounds"]) == expected.bounds
    assert main([bad]) == 1 and "leave it off" in capsys.readouterr().out
    assert main([both, "--scale", "1", "--tight"]) in (0, 1) and "fallback" in capsys.readouterr().out
    for path in (wrong, str(tmp_path / "none.npy")):
        assert main([path]) == 2 and "calibrate: " in capsys.readouterr().err
