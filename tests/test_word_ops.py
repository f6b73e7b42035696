"""The tile layer's operations on complex words against plain NumPy, and the two bodies against each other."""

from typing import Any

import numpy as np
import pytest
import tiny_words
from hardware import place_a, place_b
from numpy.typing import NDArray
from tiny_kernels import Data, data_for
from tiny_words import KERNELS, PARTS, run_cpu

U = 2.0**-11


def made(name: str, data: Data, count: int) -> NDArray[np.int32]:
    """[count, 32]; nothing else was written."""
    out, _ = run_cpu(KERNELS[name], data)
    assert (out[32 * count :] == 0x7FFF7FFF).all()
    return out[: 32 * count].reshape(count, 32)


def in_lane_order(flat: NDArray, count: int, at: int = 0) -> NDArray:
    """[count, 32]: lane l has words 128 c + 4 l .. + 3 of chunk c."""
    return flat[at : at + 32 * count].reshape(-1, 32, 4).transpose(0, 2, 1).reshape(count, 32)


def halves(words: NDArray[np.int32]) -> NDArray[np.float64]:
    return np.ascontiguousarray(words).view(np.float16).reshape(*words.shape, 2).astype(float)


def numbers(words: NDArray[np.int32], *, planar: bool = False) -> NDArray[np.complex128]:
    """The complex numbers of words [count, 32]."""
    parts = halves(words)
    if planar:
        return np.stack(
            [parts[i, :, e] + 1j * parts[i + 1, :, e] for i in range(0, len(words), 2) for e in range(2)]
        )
    return parts[..., 0] + 1j * parts[..., 1]


def product_of(name: str, *, planar: bool) -> tuple[NDArray, NDArray]:
    """What an operation made of numbers and words, and the exact products."""
    data = data_for(KERNELS[name], 1)
    x = in_lane_order(data.f, 8).astype(float)
    z = np.stack([x[re] + 1j * x[im] for re, im in PARTS])
    exact = z * numbers(in_lane_order(data.w, 4), planar=planar)
    return numbers(made(name, data, 4)), exact


def test_multiply_words() -> None:
    found, exact = product_of("multiply_words", planar=False)
    assert np.abs(found - exact).max() <= 1.01 * U * np.abs(exact).max()
    assert np.abs(found - np.conj(exact)).max() > 0.1


@pytest.mark.parametrize("swap", [0, 1])
def test_turn_words(swap: int) -> None:
    """Numbers are rounded, one product of each part too, and the sum."""
    found, exact = product_of(f"turn_words:{swap}", planar=True)
    found = found.imag + 1j * found.real if swap else found
    assert np.abs(found - exact).max() <= 3 * U * np.abs(exact).max()
    assert np.abs(found - np.conj(exact)).max() > 0.1


def test_widen_words_is_exact() -> None:
    data = data_for(KERNELS["widen_words"], 2)
    found = made("widen_words", data, 8).view(np.float32)
    assert np.array_equal(found[0::2] + 1j * found[1::2], numbers(in_lane_order(data.w, 4)))


def test_mirror_words() -> None:
    data = data_for(KERNELS["mirror_words"], 3)
    x, a, m, b = (numbers(in_lane_order(data.w, 4, 128 * i), planar=i % 2 == 1) for i in range(4))
    exact = x * a + np.conj(m) * b
    found = numbers(made("mirror_words", data, 4))
    assert np.abs(found.imag + 1j * found.real - exact).max() <= 1.01 * U * np.abs(exact).max()


def operand(words: NDArray, place: Any, shape: tuple[int, int]) -> NDArray:
    """The matrix of one operand's registers [count, 32], by the hardware's own map."""
    matrix, values = np.zeros(shape), halves(words)
    for lane in range(32):
        for i in range(2 * len(words)):
            matrix[place(lane, i)] = values[i // 2, lane, i % 2]
    return matrix


def accumulators(matrix: NDArray) -> NDArray:
    """Registers [groups, column tiles, 2] of a product."""
    rows, columns = matrix.shape
    lane = np.arange(32)
    return np.stack(
        [
            matrix[8 * y + (lane >> 2), 8 * n + 2 * (lane & 3) + e]
            for y in range(rows // 8)
            for n in range(columns // 8)
            for e in range(2)
        ]
    )


@pytest.mark.parametrize("shared", [0, 1])
def test_columns_product(shared: int) -> None:
    name = f"columns_product:{shared}"
    data = data_for(KERNELS[name], 5)
    x = in_lane_order(data.w, 12, 1024)
    left = np.block([operand(x[4 * k :][:4], place_a, (16, 16)) for k in range(3)])
    quads = [in_lane_order(data.w, 4, 128 * i) for i in range(6)]
    right = np.block(
        [
            [operand(quads[2 * n + k // 2][2 * (k % 2) :][:2], place_b, (16, 8)) for n in range(3)]
            for k in range(3)
        ]
    )
    found = made(name, data, 12).view(np.float32)
    assert np.array_equal(found, accumulators(left @ right)) and np.abs(found).max() > 10


def test_counts() -> None:
    """Complex products are six flops, fourteen with mirrors; factors come from where they lie, in 512 bytes each."""
    for name, single, half in (
        ("multiply_words", 6, 0),
        ("turn_words:1", 0, 6),
        ("mirror_words", 14, 0),
        ("widen_words", 0, 0),
    ):
        _, counted = run_cpu(KERNELS[name], data_for(KERNELS[name]))
        assert (counted.fp32_flops, counted.half_flops) == (128 * single, 128 * half)
    for name, products, factors in (("columns_product", 9, 6),):
        _, counted = run_cpu(KERNELS[f"{name}:1"], data_for(KERNELS[f"{name}:1"]))
        assert counted.mma_m16n8k16 == products and counted.shared_read_bytes == 512 * factors
        assert counted.bank_conflicts == 0
        _, cached = run_cpu(KERNELS[f"{name}:0"], data_for(KERNELS[f"{name}:0"]))
        assert cached.shared_read_bytes == 0
        assert cached.global_read_bytes["w"] == counted.global_read_bytes["w"] + 512 * factors


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_bodies_agree(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: sums of the products are of small integers."""
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path))
    data = data_for(KERNELS[name], 6)
    expected, _ = run_cpu(KERNELS[name], data)
    assert np.array_equal(tiny_words.run_gpu(KERNELS[name], data), expected)
