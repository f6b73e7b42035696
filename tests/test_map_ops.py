"""Operations on maps against plain NumPy, bit for bit; and the two bodies against each other."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tiny_maps
from hardware import assert_same_halves, exact_fma, halves, slots_a, to_words
from numpy.typing import NDArray
from test_product_ops import read, rounded, written
from tiny_kernels import POISON, SIZE, Data, Tiny
from tiny_maps import (
    ACROSS,
    BASE,
    COLUMN,
    DOWN,
    FIRST_CHUNK,
    KERNELS,
    PASSED_AT,
    ROW,
    SLAB,
    WORDS_AT,
    data_for,
    run_cpu,
)

from kernels_numba.tile.cpu_products import fma_single
from kernels_numba.tile.machine import KernelError

LANES = range(32)
FORMATTED = (
    "store_window",
    "pack_points",
    "filter_points",
    "fold_mirrors",
    "complex_columns",
    "store_points",
    "store_outer_points",
    "pass_outer_points",
)
CASES = [
    Tiny(**{**vars(spec), "dtype": dtype})
    for spec in KERNELS.values()
    for dtype in (("fp16", "bf16") if spec.name.split(":")[0] in FORMATTED else ("fp16",))
]
cases = pytest.mark.parametrize("spec", CASES, ids=lambda spec: f"{spec.name}-{spec.dtype}")


def image_place(row: int, column: int, height: int, width: int, spread: str) -> int | None:
    """The element of a pixel of the window, or None where there is none."""
    if not (0 <= row < height and 0 <= column < width):
        return None
    if not spread:
        return BASE + row * width + column
    if row % DOWN or column % ACROSS:
        return None
    return BASE + row // DOWN * width + column // ACROSS


def expect_load_window(spec: Tiny, data: Data, words: str, spread: str = "") -> NDArray:
    """As a matrix of 32 rows, 8 apart in a lane, and 32 columns, 8 neighbours in a lane."""
    window = np.zeros((32, 32), np.int16)
    for row, column in np.ndindex(32, 32):
        place = image_place(row + ROW, column + COLUMN, 21, spec.n, spread)
        if place is not None:
            window[row, column] = data.h[place]
    # Column slot 16 k + 8 r + 2 t + e of an A operand stands for column 8 t + 4 k + 2 r + e.
    slot = np.arange(32)
    columns = 8 * (slot % 8 // 2) + 4 * (slot // 16) + 2 * (slot % 16 // 8) + slot % 2
    fragment = np.zeros((16, 32, 2), np.int16)
    fragment[tuple(np.moveaxis(slots_a(2, 2), -1, 0))] = window[:, columns]
    return written(fragment.view(np.int32)[..., 0])


def sums(data: Data, count: int) -> NDArray[np.float32]:
    return read(data.w, 0, count, 4).view(np.float32)


def expect_store_window(spec: Tiny, data: Data, words: str, spread: str = "") -> NDArray:
    out = np.full(SIZE, POISON, np.int16)
    values = rounded(sums(data, 8), spec.dtype).reshape(2, 2, 2, 32)
    for y, n, e, lane in np.ndindex(2, 2, 2, 32):
        row, column = (lane >> 2) + ROW + 8 * y, 2 * (lane & 3) + COLUMN + 8 * n + e
        place = image_place(row, column, 11, spec.n, spread)
        if place is not None:
            out[place] = values[y, n, e, lane]
    return out


def points(real: NDArray, imaginary: NDArray, dtype: str) -> NDArray[np.int32]:
    both = np.stack([rounded(real, dtype), rounded(imaginary, dtype)], axis=-1)
    return np.ascontiguousarray(both).view(np.int32)[..., 0]


def expect_pack_points(spec: Tiny, data: Data) -> NDArray:
    values = sums(data, 8)
    return written(points(values[:4], values[4:], spec.dtype))


def expect_filter_points(spec: Tiny, data: Data, conjugate: str = "") -> NDArray:
    """Each part a product, a fused multiply-add, and rounded to a half."""
    real, imaginary = np.split(sums(data, 8), 2)
    w = halves(read(data.w, WORDS_AT // 2, 4, 4), spec.dtype).astype(np.float32)
    turned = -w[..., 1] if conjugate else w[..., 1]
    with np.errstate(all="ignore"):
        parts = [
            fma_single(b, s * turned, a * w[..., 0])
            for a, b, s in ((real, imaginary, -1), (imaginary, real, 1))
        ]
    return written(points(*parts, spec.dtype))


def expect_fold_mirrors(spec: Tiny, data: Data) -> NDArray:
    p, m = np.split(halves(read(data.w, 0, 8, 4), spec.dtype), 2)
    total, difference = (
        np.array([exact_fma(a, 1, s * b, spec.dtype) for a, b in zip(p.flat, m.flat, strict=True)]).reshape(
            p.shape
        )
        for s in (1, -1)
    )
    turned = np.stack([difference[..., 1], -difference[..., 0]], axis=-1)  # -i (a + i b) = b - i a
    return written(to_words(np.concatenate([total, turned]), spec.dtype))


def expect_complex_columns(spec: Tiny, data: Data, kind: str) -> NDArray:
    w = halves(read(data.w, 0, 4, 4), spec.dtype)
    re, im = w[..., 0], w[..., 1]
    sign = -1 if kind == "conjugate" else 1
    # (x + iy)(a + ib) = (xa - yb) + i (xb + ya); with conjugate b changes its sign.
    real, imaginary = np.stack([re, -sign * im], axis=-1), np.stack([sign * im, re], axis=-1)
    return written(to_words(np.concatenate([real, imaginary]), spec.dtype))


def after_words(data: Data, changes: Iterator[tuple[int, int]], count: int, at: int = WORDS_AT) -> NDArray:
    w = data.w.copy()
    room = np.full(max(0, WORDS_AT + 32 * count - w.size), 0, np.int32)
    w = np.concatenate([w, room])
    for place, word in changes:
        w[place] = word
    return written(w[at : at + 32 * count].reshape(count, 32))


def expect_store_points(spec: Tiny, data: Data) -> NDArray:
    c = sums(data, 16).reshape(2, 2, 2, 2, 32)  # row group, part, tile, which of two
    words = points(c[:, 0], c[:, 1], spec.dtype)

    def changes() -> Iterator[tuple[int, int]]:
        for y, n, e, lane in np.ndindex(2, 2, 2, 32):
            row, column = (lane >> 2) + 8 * y, 2 * (lane & 3) + 8 * n + e
            if row < spec.n and column < 10:
                yield WORDS_AT + 18 * row + column, words[y, n, e, lane]

    return after_words(data, changes(), 9)


def expect_store_outer_points(spec: Tiny, data: Data, times: int = 1, at: int = WORDS_AT) -> NDArray:
    """The product of the parts [2 i + (re, im), 2 j + (re, im)] as conj(g) x."""
    c = sums(data, 8).reshape(2, 2, 2, 32)
    parts = np.empty((16, 16), np.float32)
    for y, n, e, lane in np.ndindex(2, 2, 2, 32):
        parts[8 * y + (lane >> 2), 8 * n + 2 * (lane & 3) + e] = c[y, n, e, lane]
    real = (parts[0::2, 0::2] + parts[1::2, 1::2]).astype(np.float32)
    imaginary = (parts[0::2, 1::2] - parts[1::2, 0::2]).astype(np.float32)
    words = points(times * real, times * imaginary, spec.dtype)
    changes = ((at + 9 * i + j, words[i, j]) for i, j in np.ndindex(8, 8) if i < spec.n and j < 6)
    return after_words(data, changes, 3, at)


def expect_pass_outer_points(spec: Tiny, data: Data) -> NDArray:
    return expect_store_outer_points(spec, data, times=2, at=PASSED_AT)


def expect_move_words(spec: Tiny, data: Data) -> NDArray:
    changes = (
        (WORDS_AT + lane + spec.n + 40 * i, data.w[lane + 33 * i])
        for i in range(3)
        for lane in LANES
        if lane != 5
    )
    return after_words(data, changes, 4)


def expect_load_matrices_across(spec: Tiny, data: Data) -> NDArray:
    """Register i of lane 4 g + t: elements g of rows 2 t and 2 t + 1 of block i."""
    h = data.w.view(np.int16)
    fragment = np.empty((12, 32, 2), np.int16)
    for n, i, lane, e in np.ndindex(3, 4, 32, 2):
        row, chunk = 8 * (i % 2) + 2 * (lane & 3) + e, i // 2 + FIRST_CHUNK + 2 * n
        word = SLAB * (chunk // 8) + 32 * row + 4 * (chunk % 8 ^ row % 8)
        fragment[4 * n + i, lane, e] = h[2 * word + (lane >> 2)]
    return written(fragment.view(np.int32)[..., 0])


EXACT = {name.removeprefix("expect_"): f for name, f in list(globals().items()) if name.startswith("expect_")}


def test_every_kernel_has_a_meaning() -> None:
    assert {name.split(":")[0] for name in KERNELS} == set(EXACT)


def assert_right(spec: Tiny, data: Data, out: NDArray[np.int16]) -> None:
    name, *words = spec.name.split(":")
    with np.errstate(invalid="ignore", over="ignore"):
        assert_same_halves(out, EXACT[name](spec, data, *words), spec.dtype)


@cases
@pytest.mark.parametrize("seed", range(2))
def test_operation(spec: Tiny, seed: int) -> None:
    data = data_for(spec, seed)
    assert_right(spec, data, run_cpu(spec, data)[0])


def test_products_with_complex_columns_are_complex() -> None:
    """An operand of points times both operands of other points, as the contraction of halves that a product is."""
    draw = np.random.default_rng(0)
    x, w = draw.integers(-4, 5, (2, 16, 8)) + 1j * draw.integers(-4, 5, (2, 16, 8))
    x, w = x[:16, :8], w[:8, :8]
    left = np.stack([x.real, x.imag], axis=-1).reshape(16, 16)
    for sign in (1, -1):  # without and with the conjugate
        real = np.stack([w.real, -sign * w.imag], axis=-1).reshape(8, 16)
        imaginary = np.stack([sign * w.imag, w.real], axis=-1).reshape(8, 16)
        other = w if sign == 1 else w.conj()
        assert np.array_equal(left @ real.T + 1j * (left @ imaginary.T), x @ other.T)


COUNTS: dict[str, dict[str, Any]] = {
    # rows 0..20 of 32 from -3 on, columns 0..11
    "load_window:1": {"global_read_bytes": {"h": 2 * 21 * 12}},
    "load_window:4": {"global_read_bytes": {"h": 2 * 21 * 12}},
    # every second row of the first 21, every third column of the first 12
    "load_window:1:spread": {"global_read_bytes": {"h": 2 * 11 * 4}},
    # rows 0..10, columns 0..11 of 16 from -4 on
    "store_window:2": {"global_written_bytes": {"out": 2 * 11 * 12}},
    "fold_mirrors": {"half_flops": 4 * 8 * 32},
    "store_points": {"global_written_bytes": {"w": 4 * 13 * 10, "out": 4 * 9 * 32}},
    "store_outer_points": {
        "fp32_flops": 2 * 4 * 32,
        "global_written_bytes": {"w": 4 * 7 * 6, "out": 4 * 3 * 32},
    },
    "pass_outer_points": {
        "fp32_flops": 3 * 2 * 4 * 32,
        "global_written_bytes": {"f": 8 * 7 * 6, "w": 4 * 7 * 6, "out": 4 * 3 * 32},
    },
    "move_words": {"shared_read_bytes": 3 * 128, "bank_conflicts": 0},
    "load_matrices_across": {
        "shared_read_bytes": 3 * 512,
        "shared_wavefronts": 3 * 4,
        "bank_conflicts": 0,
    },
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    _, counters = run_cpu(KERNELS[name], data_for(KERNELS[name]))
    found = counters.as_dict()
    assert {key: found[key] for key in COUNTS[name]} == COUNTS[name]


def test_a_misaligned_window_is_an_error() -> None:
    with pytest.raises(KernelError, match="aligned"):
        run_cpu(Tiny("load_window:4", "fp16", n=13), data_for(KERNELS["load_window:4"]))


INSTRUCTIONS = {  # on sm_90
    # of four row groups the last is below the image: the compiler knows
    "load_window:1": {"LDG.E.U16": 24},
    "load_window:4": {"LDG.E.64": 6},
    "fold_mirrors": {"HFMA2.MMA": 4, "HADD2": 4},
    "load_matrices_across": {"LDSM.16.MT88.4": 3},
}


@cases
def test_compiles(spec: Tiny) -> None:
    """To machine code for sm_90, with the instructions that the operation stands for."""
    pytest.importorskip("numba.cuda")
    from kernels_numba.launch import compile_spec
    from kernels_numba.tile.compile import disassemble, opcodes

    if spec.name not in INSTRUCTIONS or spec.dtype != "fp16":
        pytest.skip("compiled as part of the kernels, in the table of resources")
    sass = disassemble(compile_spec(tiny_maps, spec, (9, 0)))
    wanted = INSTRUCTIONS[spec.name]
    assert {name: sass.count(name) for name in wanted} == wanted
    assert not {"LDL", "STL", "CALL", "DADD", "DMUL", "DFMA"} & set(opcodes(sass))


@pytest.mark.gpu
@cases
@pytest.mark.parametrize("seed", range(2))
def test_bodies_agree(spec: Tiny, seed: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit."""
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path / "cache"))
    data = data_for(spec, seed)
    assert_right(spec, data, tiny_maps.run_gpu(spec, data))
