"""Operations on maps of float32 against plain NumPy; and the two bodies against each other, bit for bit."""

from typing import Any

import numpy as np
import pytest
import tiny_float_maps
from numpy.typing import NDArray
from tiny_float_maps import (
    ACROSS,
    BASE,
    COLUMN,
    COLUMN_LIMIT,
    DOWN,
    FAR,
    HEIGHT,
    KERNELS,
    ROW,
    ROW_LIMIT,
    ROWS,
    SECOND,
    STRIDE,
    TILE_COLUMNS,
    TILE_ROWS,
    WIDTH,
    data_for,
    run_cpu,
)

from kernels_numba.tile.points import dft_program

U = 2.0**-24


def registers(out: NDArray, count: int) -> NDArray:
    return out[: 32 * count].reshape(count, 32)


def pixel(row: int, column: int, spread: bool) -> int | None:
    """The element of a pixel of the image, or None where there is none."""
    if not (0 <= row < HEIGHT and 0 <= column < WIDTH):
        return None
    if not spread:
        return BASE + row * WIDTH + column
    if row % DOWN or column % ACROSS:
        return None
    return BASE + row // DOWN * WIDTH + column // ACROSS


@pytest.mark.parametrize("kind", ("", ":one", ":spread"))
def test_load_map_columns(kind: str) -> None:
    spec = KERNELS["load_map_columns" + kind]
    data = data_for(spec)
    out, counters = run_cpu(spec, data)
    expected = np.zeros((2, ROWS, 32), np.float32)
    read = 0
    for part, i, lane in np.ndindex(1 if kind == ":one" else 2, ROWS, 32):
        place = pixel(ROW + i, COLUMN + lane + part * SECOND, kind == ":spread")
        if place is not None:
            expected[part, i, lane] = data.f[place]
            read += 4
    assert np.array_equal(registers(out, 2 * ROWS), expected.reshape(-1, 32))
    assert counters.global_read_bytes == {"f": read} and read > 0


@pytest.mark.parametrize("kind", ("", ":spread"))
def test_store_map_columns(kind: str) -> None:
    """A tile is one period of a signal that changes sign along its rows, and what lies before the image wraps."""
    spec = KERNELS["store_map_columns" + kind]
    data = data_for(spec)
    out, counters = run_cpu(spec, data)
    tile = data.f[: 64 * ROWS].reshape(2, ROWS, 32)[..., :SECOND]  # part, row, column
    tile = np.concatenate([tile[0], tile[1]], axis=1) / 2
    expected = np.full(out.size, np.nan, np.float32)
    for i, j in np.ndindex(tile.shape):
        row, column, sign = ROW + i, COLUMN + j, 1
        if not kind:
            row += ROWS if row < 0 else 0
            column, sign = (column + 2 * SECOND, -1) if column < 0 else (column, 1)
        place = pixel(row, column, bool(kind))
        if place is not None:
            expected[place] = sign * tile[i, j]
    assert np.array_equal(out, expected, equal_nan=True)
    assert counters.global_written_bytes == {"out": 4 * np.isfinite(expected).sum()}


def test_far_points() -> None:
    spec = KERNELS["far_points"]
    data = data_for(spec)
    out, counters = run_cpu(spec, data)
    points = data.f[2 * (FAR + np.arange(32) + STRIDE * np.arange(3)[:, None])[..., None] + np.arange(2)]
    points[:, 5] = 0
    assert np.array_equal(registers(out, 6), np.concatenate([points[..., 0], points[..., 1]]))
    stored = out[2 * (500 + np.arange(32) + STRIDE * np.arange(3)[:, None])[..., None] + np.arange(2)]
    assert np.isnan(stored[:, 5]).all()
    stored[:, 5] = 0
    assert np.array_equal(stored, points)
    assert counters.global_read_bytes["f"] == 3 * 31 * 8


def test_point_rows() -> None:
    spec = KERNELS["point_rows"]
    data = data_for(spec)
    out, counters = run_cpu(spec, data)
    places = 2 * (np.arange(32) + STRIDE * np.arange(3)[:, None])[..., None] + np.arange(2)
    points = data.f[2 * FAR + places]
    points[2], points[:, 5] = 0, 0
    assert np.array_equal(registers(out, 6), points.transpose(0, 2, 1).reshape(6, 32))
    stored = out[1000 + places]
    assert np.isnan(stored[2]).all() and np.isnan(stored[:, 5]).all()
    assert np.array_equal(np.nan_to_num(stored), points)
    assert counters.global_read_bytes == {"f": 2 * 31 * 8}


@pytest.mark.parametrize("conjugate", ("", "left", "right"))
def test_add_point_products(conjugate: str) -> None:
    spec = KERNELS["add_point_products" + (f":{conjugate}" if conjugate else "")]
    data = data_for(spec)
    out, counters = run_cpu(spec, data)

    def read(start: int, *shape: int) -> NDArray[np.complex128]:
        parts = data.f[start:][: 2 * np.prod(shape) * 32].astype(float).reshape(*shape, 2, 32)
        return parts[..., 0, :] + 1j * parts[..., 1, :]

    c, a, b = read(0, 2, 3), read(1000, 2, 2), read(2000, 3, 2)
    a, b = (a.conj() if conjugate == "left" else a), (b.conj() if conjugate == "right" else b)
    exact = c + np.einsum("ikl,jkl->ijl", a, b)
    found = registers(out, 12).astype(float).reshape(2, 3, 2, 32)
    size = np.abs(c) + np.einsum("ikl,jkl->ijl", np.abs(a), np.abs(b))
    assert (np.abs(found[:, :, 0] + 1j * found[:, :, 1] - exact) < 8 * U * size).all()
    assert counters.fp32_flops == 8 * 2 * 3 * 2 * 32


def test_point_tile() -> None:
    spec = KERNELS["point_tile"]
    data = data_for(spec)
    out, _ = run_cpu(spec, data)
    expected = np.full((400, 2), np.nan, np.float32)
    for lane, row, column in ((n, i, j) for n in range(32) for i in TILE_ROWS for j in TILE_COLUMNS):
        r, c = 2 * (lane // 4) + row, lane % 4 + column
        if r < ROW_LIMIT + 9 and c < COLUMN_LIMIT:
            expected[12 * r + c] = data.f[2 * (12 * r + c) :][:2]
    assert np.array_equal(out[1000:1800].reshape(400, 2), expected, equal_nan=True)
    kept = registers(out, 12).reshape(3, 2, 2, 32)
    assert np.array_equal(kept[0, 0, :, 0], data.f[:2]) and not kept[2, 1, :, 31].any()


@pytest.mark.parametrize("inverse", (False, True))
@pytest.mark.parametrize("skew", ("in", "out"))
@pytest.mark.parametrize("points", (8, 16, 24, 32))
def test_skewed_programs(points: int, skew: str, inverse: bool) -> None:
    draw = np.random.default_rng(points)
    x = draw.standard_normal(points) + 1j * draw.standard_normal(points)
    operations: dict[str, Any] = {
        "add": lambda a, b, c: a + b,
        "sub": lambda a, b, c: a - b,
        "neg": lambda a, b, c: -a,
        "mul": lambda a, b, c: a * c,
        "fma": lambda a, b, c: a * c + b,
    }
    found = dft_program(points, inverse=inverse, skew=skew).run([*x.real, *x.imag], operations)
    sign = 1 if inverse else -1
    j = np.arange(points)
    turn, transform = (
        np.exp(sign * 0.5j * np.pi * j / points),
        np.exp(sign * 2j * np.pi * np.outer(j, j) / points),
    )
    exact = transform @ (x * turn) if skew == "in" else (transform @ x) * turn
    assert np.allclose(np.array(found[:points]) + 1j * np.array(found[points:]), exact, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_bodies_agree(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path))
    spec = KERNELS[name]
    data = data_for(spec, 3)
    expected, _ = run_cpu(spec, data)
    assert np.array_equal(tiny_float_maps.run_gpu(spec, data), expected, equal_nan=True)
