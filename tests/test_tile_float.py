"""Every float32 operation of the tile layer against exact arithmetic or plain NumPy; and the two bodies together."""

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tiny_float
from hardware import FORMAT, exact_fma
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds
from tiny_float import FACTORS, KERNELS, MIRRORS, PIECES, SIZE, Data, Tiny, data_for, run_cpu

from kernels_numba.tile.points import dft_program

LANES = np.arange(32)
U = 2.0**-24
assert FORMAT.setdefault("fp32", (24, -126, 127)) == (24, -126, 127)


def fma(a: Any, b: Any, c: Any) -> NDArray[np.float32]:
    """Elementwise a b + c with one rounding, by exact arithmetic."""
    found = [exact_fma(*x, "fp32") for x in zip(*(np.ravel(v) for v in (a, b, c)), strict=True)]
    return np.array(found, np.float32).reshape(np.shape(a))


def product(xr: Any, xi: Any, wr: Any, wi: Any) -> tuple[NDArray, NDArray]:
    return fma(xr, wr, -(xi * wi)), fma(xr, wi, xi * wr)


def registers(flat: NDArray, count: int, at: int = 0) -> NDArray:
    """[count, 32]"""
    return flat[at : at + 32 * count].reshape(count, 32)


def result(spec: Tiny, data: Data, count: int, n: int = 0) -> NDArray[np.float32]:
    out, _ = run_cpu(spec, data, n)
    assert np.isnan(out[32 * count :]).all()
    return registers(out, count)


# ---- the programs --------------------------------------------------------------------------------------------
OPERATIONS = {
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "neg": lambda a, b, c: -a,
    "mul": lambda a, b, c: a * c,
    "fma": lambda a, b, c: a * c + b,
}


@given(
    points=st.sampled_from([2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 24, 32, 48]),
    inverse=st.booleans(),
    parts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=seeds,
)
def test_programs_are_transforms(points: int, inverse: bool, parts: tuple[float, float], seed: int) -> None:
    """In float64 to its rounding, with any number of live inputs and wanted outputs; less of either is less work."""
    live, wanted = (max(1, round(part * points)) for part in parts)
    draw = np.random.default_rng(seed)
    z = np.zeros(points, complex)
    z[:live] = draw.standard_normal(live) + 1j * draw.standard_normal(live)
    program = dft_program(points, inverse=inverse, live=live, wanted=wanted)
    out = np.array(program.run([*z.real[:live], *z.imag[:live]], OPERATIONS))
    exact = (np.fft.ifft(z) * points if inverse else np.fft.fft(z))[:wanted]
    assert np.abs(out[:wanted] + 1j * out[wanted:] - exact).max() <= 1e-13 * points
    assert program.flops <= dft_program(points, inverse=inverse).flops


@pytest.mark.parametrize(("points", "flops"), [(2, 4), (4, 16), (8, 60), (16, 176), (32, 488)])
def test_programs_are_short(points: int, flops: int) -> None:
    """Little above 4 n log2 n - 6 n + 8, split radix (Yavne 1968), where a rotation costs 6."""
    assert dft_program(points).flops == flops
    assert flops <= 1.2 * (4 * points * np.log2(points) - 6 * points + 8) + points
    assert dft_program(points, live=points // 2).flops < flops or points == 2


# ---- memory --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("n", [0, 1, 64, 100, 190, 1000])
@pytest.mark.parametrize("guarded", [0, 1])
def test_floats(guarded: int, n: int) -> None:
    """Guarded: elements below n; not guarded: all or, where n is 0, nothing (of the store)."""
    spec = KERNELS[f"floats:{guarded}"]
    data = data_for(spec)
    out, counters = run_cpu(spec, data, n)
    expected = np.full(SIZE, np.nan, np.float32)
    for row, constant in enumerate((1, 64, 5, 65)):  # copied asynchronously; zeros where masked
        keep = (2 * LANES + min(constant, 64) < n) | (not guarded)
        expected[2000 + 32 * row + LANES] = np.where(keep, data.f[16 + 2 * LANES + constant], 0)
    for constant, names in PIECES:
        for i in range(len(names)):
            at = 2 * LANES + constant
            at = at[at < n] if guarded else at
            if n:
                expected[1000 + at + i] = data.f[16 + at + i]
    assert np.array_equal(out, expected, equal_nan=True)
    assert counters.global_written_bytes["out"] == 4 * np.isfinite(expected).sum()
    assert counters.shared_written_bytes == 32 * 16


def test_points() -> None:
    data = data_for(KERNELS["points"])
    x = registers(data.f, 6)
    assert (result(KERNELS["points"], data, 6) == x[:, ::-1]).all()


# ---- arithmetic ----------------------------------------------------------------------------------------------
def test_multiply_floats() -> None:
    data = data_for(KERNELS["multiply_floats"])
    expected = registers(data.f, 3) * registers(data.f, 3, 100)
    assert (result(KERNELS["multiply_floats"], data, 3) == expected).all()


@pytest.mark.parametrize("name", [name for name in KERNELS if name.startswith("dft:")])
def test_dft(name: str) -> None:
    points, inverse, live, wanted = (int(x) for x in name.split(":")[1:])
    groups = 2 if points < 32 else 1
    data = data_for(KERNELS[name])
    x = registers(data.f, 2 * groups * live).reshape(2, groups, live, 32).astype(float)
    z = np.zeros((groups, points, 32), complex)
    z[:, :live] = x[0] + 1j * x[1]
    exact = (np.fft.ifft(z, axis=1) * points if inverse else np.fft.fft(z, axis=1))[:, :wanted]
    out, counters = run_cpu(KERNELS[name], data)
    y = registers(out, 2 * groups * wanted).reshape(2, groups, wanted, 32).astype(float)
    size = np.linalg.norm(z, axis=1, keepdims=True)
    assert (np.abs(y[0] + 1j * y[1] - exact) <= 3 * np.log2(points) * U * size).all()
    flops = dft_program(points, inverse=bool(inverse), live=live, wanted=wanted).flops
    assert counters.fp32_flops == flops * groups * 32


@pytest.mark.parametrize("conjugate", [0, 1])
def test_multiply_points(conjugate: int) -> None:
    spec = KERNELS[f"multiply_points:{conjugate}"]
    data = data_for(spec)
    x = registers(data.f, 10).copy()
    for constant, *pair in FACTORS:
        for which, points in enumerate(pair):
            at = 512 + 8 * LANES + constant + 2 * which
            wr, wi = data.f[at], data.f[at + 1]
            for i in points:
                xr, xi = x[i], x[i + 5]
                if conjugate:
                    x[i], x[i + 5] = fma(xr, wr, xi * wi), fma(xi, wr, -(xr * wi))
                else:
                    x[i], x[i + 5] = product(xr, xi, wr, wi)
    assert (result(spec, data, 10) == x).all()


def test_multiply_mirrored() -> None:
    spec = KERNELS["mirrored"]
    data = data_for(spec)
    data.w[:64] = np.arange(64) % 7 * 2
    x = registers(data.f, 6)
    stored = x.reshape(2, -1)
    expected = []
    for i, (which, place) in enumerate(MIRRORS):
        at = 512 + 4 * LANES + 128 * i
        ar, ai, br, bi = (data.f[at + j] for j in range(4))
        mr, mi = stored[:, 8 + data.w[32 * which + LANES] // 2 + place]
        xr, xi = x[i], x[i + 3]
        expected.append(
            (
                fma(mi, bi, fma(mr, br, fma(xr, ar, -(xi * ai)))),
                fma(-mi, br, fma(mr, bi, fma(xr, ai, xi * ar))),
            )
        )
    assert (
        result(spec, data, 6) == np.concatenate([[e[0] for e in expected], [e[1] for e in expected]])
    ).all()


# ---- filters -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in KERNELS if name.startswith("taps:")])
def test_taps(name: str) -> None:
    _, kind, _ = name.split(":")
    data = data_for(KERNELS[name])
    taps = {
        "fp16": data.h.view(np.float16),
        "bf16": data.h.view(ml_dtypes.bfloat16),
        "fp32": data.f,
        "fp64": data.d,
    }[kind]
    places = np.array([data.w[40 * i + LANES] for i in range(3)])
    with np.errstate(over="ignore"):
        expected = np.where(places < 0, 0, taps.astype(np.float32)[7 + np.maximum(places, 0)])
    assert (places < 0).any() and np.array_equal(result(KERNELS[name], data, 3), expected, equal_nan=True)


@pytest.mark.parametrize("double", [0, 1])
def test_strided(double: int) -> None:
    """A transform, twiddles, and a weighted sum with other points, in either precision."""
    spec = KERNELS[f"strided:{double}"]
    data = data_for(spec)
    source, kind = (data.d, np.float64) if double else (data.f, np.float32)
    draw, size = np.random.default_rng(1), 12 if double else 6
    weights = [draw.standard_normal(6).astype(kind) for _ in range(2)]
    data.w[:size], data.w[20 : 20 + size] = (w.view(np.int32) for w in weights)
    data.w[40:43] = (5, 9, 13)
    points = source.reshape(-1, 2) @ [1, 1j]
    x = np.fft.fft(np.array([points[LANES + 50 * i] for i in range(3)]), axis=0)
    table = [points[(4 * LANES + 33 * 4 * (q // 2)) // 2 + q % 2] for q in range(3)]
    x = x * np.array(table)
    w0, w1 = (w.astype(float).reshape(3, 2) @ [1, 1j] for w in weights)
    gathered = points[3 + np.array([5, 9, 13])]
    expected = x * w0[:, None] + (gathered * w1)[:, None]
    found = result(spec, data, 6).astype(float)
    largest = np.abs(x * w0[:, None]).max() + np.abs(gathered * w1).max()
    assert np.abs(found[:3] + 1j * found[3:] - expected).max() <= (4 if double else 12) * U * largest


def test_store_strided() -> None:
    data = data_for(KERNELS["store_strided"])
    out, _ = run_cpu(KERNELS["store_strided"], data)
    expected = np.full(SIZE, np.nan, np.float32)
    for i in range(3):
        for lane in range(20):
            at, source = 2 * (5 + lane + 40 * i), 2 * (lane + 32 * i)
            expected[at : at + 2] = data.f[source : source + 2]
    assert np.array_equal(out, expected, equal_nan=True)


@pytest.mark.parametrize("scale", [1.0, 2.0**-8, 2.0**80, 2.0**-140, 0.0, np.inf, np.nan])
def test_magnitude(scale: float) -> None:
    """The largest |z| of any lane without overflow, the power of two above it, and division by a power of two."""
    data = data_for(KERNELS["magnitude"])
    with np.errstate(under="ignore", invalid="ignore"):
        data.f[:192] = (data.f[:192].astype(float) * scale).astype(np.float32)
    data.f[4000] = 2.0**-3
    best, most, power, divided = result(KERNELS["magnitude"], data, 4)
    points = data.f[:192].astype(float).reshape(3, 32, 2)
    exact = np.hypot(points[..., 0], points[..., 1]).max(axis=0)
    if not np.isfinite(exact).all():
        assert not np.isfinite(best).any() and (power == 1).all()
        return
    assert np.allclose(best, exact, rtol=4 * U, atol=2.0**-148)
    assert (most == best.max()).all() and (divided == 8 * most).all()
    peak = float(most[0])
    ordinary = peak == 0 or 2.0**-6 <= peak <= 16
    assert (power == (1 if ordinary else 2.0 ** max(-126, np.ceil(np.log2(peak))))).all()
    assert not ordinary or Fraction(float(power[0])) == 1


# ---- both bodies ---------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_bodies_agree(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, but for float64 steps and for how a magnitude is rounded: there the last bit may differ."""
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path))
    spec = KERNELS[name]
    data = data_for(spec, 3)
    n = 100 if name.startswith("floats") else 0
    if name == "mirrored":
        data.w[:64] = np.arange(64) % 7 * 2
    if name.startswith("strided"):
        data.w[:32] = data.f[:32].view(np.int32) if name.endswith("0") else data.d[:16].view(np.int32)
        data.w[40:43] = (5, 9, 13)
    expected, _ = run_cpu(spec, data, n)
    found = tiny_float.run_gpu(spec, data, n)
    if name in ("magnitude", "strided:1"):
        assert np.allclose(found, expected, rtol=4 * U, atol=4 * U, equal_nan=True)
    else:
        assert np.array_equal(found, expected, equal_nan=True)
