"""The tile layer's operations for outer stages against plain NumPy, and the two bodies against each other."""

from typing import Any

import numpy as np
import pytest
import tiny_turns
from numpy.typing import NDArray
from tiny_kernels import Data, data_for
from tiny_turns import KERNELS, POINTS, RUNS4, RUNS8, SCALE, run_cpu

LANES = np.arange(32)
TURN = 2.0**-18
"""Error of a twiddle: 2^-20.5 of sine and cosine, up to the eighth power of one that is."""


def words(name: str, data: Data, count: int) -> NDArray[np.int32]:
    """[count, 32]; nothing else was written."""
    out, _ = run_cpu(KERNELS[name], data)
    assert (out[32 * count :] == 0x7FFF7FFF).all()
    return out[: 32 * count].reshape(count, 32)


def floats(name: str, data: Data, count: int) -> NDArray[np.float32]:
    return words(name, data, count).view(np.float32)


def loaded(data: Data, count: int) -> NDArray[np.float32]:
    """Registers of halves as float32, [2 count, 32]: lane l has words 128 c + 4 l .. + 3 of chunk c."""
    chunks = data.w[: 32 * count].reshape(count // 4, 32, 4).transpose(0, 2, 1).reshape(count, 32)
    halves = np.ascontiguousarray(chunks).view(np.float16).reshape(count, 32, 2)
    return halves.transpose(0, 2, 1).reshape(2 * count, 32).astype(np.float32)


def test_load_transposed() -> None:
    """Block i of four is at rows 8 (i & 1), words 4 (i >> 1); lane 4 g + t has rows 2 t, 2 t + 1 of column g."""
    data = data_for(KERNELS["load_transposed"], 1)
    halves = data.w[:512].view(np.int16).reshape(32, 32)  # 32 rows of 16 words
    found = words("load_transposed", data, 8)
    g, t = LANES >> 2, LANES & 3
    for register in range(8):
        top, left = 16 * (register // 4) + 8 * (register & 1), 8 * ((register & 3) >> 1)
        low, high = halves[top + 2 * t, left + g], halves[top + 2 * t + 1, left + g]
        pairs = np.stack([low, high], axis=1).copy().view(np.int32)[:, 0]
        assert np.array_equal(found[register], pairs)


def test_widen_is_exact() -> None:
    data = data_for(KERNELS["widen"], 2)
    assert np.array_equal(floats("widen", data, 8), loaded(data, 4), equal_nan=True)


def test_turn_rows() -> None:
    """Registers of row group y, real and imaginary, times that group's complex number."""
    data = data_for(KERNELS["turn_rows"], 3)
    x = loaded(data, 4)
    table = data.f[:128].reshape(32, 4)
    z, turn = x[:4] + 1j * x[4:].astype(complex), table[:, 0::2] + 1j * table[:, 1::2].astype(complex)
    exact = z * turn.T.repeat(2, axis=0)
    found = floats("turn_rows", data, 8)
    assert np.abs(found[:4] + 1j * found[4:] - exact).max() <= 4 * 2.0**-24 * np.abs(exact).max()


@pytest.mark.parametrize("name", ["turn_runs:8:0", "turn_runs:8:1", "turn_runs:4:0"])
def test_turn_runs(name: str) -> None:
    columns, inverse = (int(x) for x in name.split(":")[1:])
    runs, count = (RUNS8, 16) if columns == 8 else (RUNS4, 8)
    data = data_for(KERNELS[name], 4)
    x = loaded(data, count)
    z = x[:count] + 1j * x[count:].astype(complex)
    rows = (3 * LANES, 5 * LANES + 100, np.full(32, 250))
    exact = np.zeros_like(z)
    for which, row, column, registers in runs:
        for i, register in enumerate(registers):
            number = (rows[which] + row) * (64 * LANES + column + i)
            assert number.max() < POINTS
            exact[register] = z[register] * SCALE * np.exp((2j if inverse else -2j) * np.pi * number / POINTS)
    found = floats(name, data, 2 * count)
    assert np.abs(found[:count] + 1j * found[count:] - exact).max() <= TURN * np.abs(z).max()
    assert np.abs(found[:count] - 1j * found[count:] - exact).max() > 0.1  # a conjugated twiddle shows


def test_counts() -> None:
    """Complex products are six flops; shared memory is read without conflicts."""
    _, counted = run_cpu(KERNELS["turn_rows"], data_for(KERNELS["turn_rows"]))
    assert counted.fp32_flops == 32 * 4 * 6
    _, counted = run_cpu(KERNELS["turn_runs:8:0"], data_for(KERNELS["turn_runs:8:0"]))
    # Seven products for the powers of each run and eight of its data; each row's step is squared twice.
    assert counted.fp32_flops == 32 * (2 * (6 * 15 + 2) + 2 * 2 * 6)
    _, counted = run_cpu(KERNELS["load_transposed"], data_for(KERNELS["load_transposed"]))
    assert counted.shared_read_bytes == 2 * 512


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_bodies_agree(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, but for twiddles of approximate sines."""
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path))
    data = data_for(KERNELS[name], 5)
    expected, _ = run_cpu(KERNELS[name], data)
    found = tiny_turns.run_gpu(KERNELS[name], data)
    if name.startswith("turn_runs"):
        count = 1024 if ":8" in name else 512
        one, two = (x[:count].view(np.float32) for x in (found, expected))
        assert np.abs(one - two).max() <= 2 * TURN * np.abs(two).max()
    elif name == "widen":  # what bits a NaN has is the GPU's affair
        assert np.array_equal(found.view(np.float32), expected.view(np.float32), equal_nan=True)
    else:
        assert np.array_equal(found, expected)
