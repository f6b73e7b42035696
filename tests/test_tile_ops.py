"""Every operation of the tile layer against plain NumPy, bit for bit; and the two bodies against each other.

Nothing here uses the layer's own index maps: where a matrix lies in registers is written down again from the
PTX ISA's text for ``mma.m16n8k16``, and roundings are done in exact rational arithmetic.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tiny_kernels
from hardware import (
    FORMAT,
    HALF,
    accumulators,
    assert_same_halves,
    exact_fma,
    gather,
    halves,
    nearest,
    scatter,
    slots_a,
    slots_b,
    slots_c,
    to_words,
)
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds
from tiny_kernels import (
    BLOCKS,
    KERNELS,
    PAIRS,
    PICKS,
    PIECES,
    PLACES,
    POISON,
    SCATTERED,
    SIZE,
    SWAPPED,
    TABLE_AT,
    TURNS,
    ZEROS,
    Data,
    Tiny,
    copied_from,
    copied_pieces,
    data_for,
    run_cpu,
)

from kernels_numba.tile.cpu import CpuTile, round_half
from kernels_numba.tile.machine import Machine

LANES = range(32)
DTYPES = ("fp16", "bf16")
# Kernels whose meaning depends on the half-precision format.
FORMATTED = ("mma", "dft_rows", "dft_columns", "pack", "multiply", "multiply_complex", "multiply_mirror")
FORMATTED += ("mma_halves", "mma_to_parts_halves", "dft_rows_halves", "dft_columns_halves")
CASES = [
    Tiny(**{**vars(spec), "dtype": dtype})
    for spec in KERNELS.values()
    for dtype in (DTYPES if spec.name.split(":")[0] in FORMATTED else ("fp16",))
]
cases = pytest.mark.parametrize("spec", CASES, ids=lambda spec: f"{spec.name}-{spec.dtype}")


def test_exact_rounding_is_ieee() -> None:
    """The judge of this file agrees with NumPy's and ml_dtypes' conversions where those round once."""
    draw = np.random.default_rng(0)
    for dtype in DTYPES:
        single = draw.integers(0, 2**32, 4000, dtype=np.uint32).view(np.float32)
        single = single[np.isfinite(single)]
        with np.errstate(over="ignore"):
            expected = single.astype(HALF[dtype]).astype(float)
        assert [nearest(Fraction(float(x)), dtype) for x in single] == list(expected)


def test_operands_cover_every_element_once() -> None:
    for slots in (slots_a(2, 3), slots_b(3, 2), slots_c(2, 3)):
        flat = slots.reshape(-1, 3)
        assert len(np.unique(flat, axis=0)) == len(flat) == np.prod(flat.max(axis=0) + 1)


# ---- what the small kernels must write -----------------------------------------------------------------------
def read(words: NDArray[np.int32], start: int, count: int) -> NDArray[np.int32]:
    """The fragment [count, 32] that the kernels read: quads of words a lane, or pairs if quads do not fit."""
    width = 4 if count % 4 == 0 else 2
    return np.array(
        [
            [words[start + (r // width) * 32 * width + width * lane + r % width] for lane in LANES]
            for r in range(count)
        ]
    )


def written(fragment: NDArray[np.int32]) -> NDArray[np.int16]:
    """What the output holds after the fragment was stored."""
    out = np.full(SIZE, POISON, np.int16)
    words = np.ascontiguousarray(fragment).reshape(-1).view(np.int16)
    out[: words.size] = words
    return out


def expect_places(spec: Tiny, data: Data) -> NDArray:
    return written(np.array([data.w[32 * i + 31 - lane] for i in range(6) for lane in LANES], np.int32))


def expect_divide(spec: Tiny, data: Data) -> NDArray:
    return written(np.array([data.w[(100 * lane + 99) // 7] for lane in LANES]))


def expect_opaque(spec: Tiny, data: Data) -> NDArray:
    x = halves(np.concatenate([read(data.w, 512 * i, 16) for i in range(TURNS)]), spec.dtype)
    return written(to_words(_fma(x, x, -0.0, spec.dtype), spec.dtype))


def expect_held(spec: Tiny, data: Data) -> NDArray:
    return written(read(data.w, 0, 8)[:, ::-1])


def expect_barrier(spec: Tiny, data: Data) -> NDArray:
    sources = [4 * block + (warp + 1) % 4 for block in range(2) for warp in range(4)]
    return written(np.concatenate([read(data.w, 128 * source, 4) for source in sources]))


def expect_groups(spec: Tiny, data: Data) -> NDArray:
    return written(np.concatenate([read(data.w, 0, 4)[:, ::-1], read(data.w, 512, 4)[:, ::-1]]))


def expect_copy_async(spec: Tiny, data: Data, width: str) -> NDArray:
    step = int(width)
    shared = [data.h[step + e] if e - e % step < spec.n else 0 for e in range(1024)]
    return written(read(np.array(shared, np.int16).view(np.int32), 0, 16))


def expect_copy_pieces(spec: Tiny, data: Data, width: str, guarded: str = "") -> NDArray:
    step = int(width)
    first = copied_from(step, bool(guarded))
    shared = np.full(1024, POISON, np.int16)
    for which, to, start in copied_pieces(step):
        for lane in LANES:
            element = start + step * lane
            for j in range(step):
                live = not guarded or element < spec.n
                value = data.h[first + element + j] if live else 0
                shared[to + step * (lane ^ PLACES[which]) + j] = value
    return written(read(shared.view(np.int32), 0, 16))


def expect_gather_halves(spec: Tiny, data: Data) -> NDArray:
    table = read(data.w, TABLE_AT, 8)
    source = data.w.view(np.int16)
    pairs = [[(source[word & 0xFFFF], source[word >> 16]) for word in row.tolist()] for row in table]
    return written(np.array(pairs, np.int16).view(np.int32)[..., 0])


def expect_load_shared(spec: Tiny, data: Data, width: str) -> NDArray:
    step = int(width)
    lanes = [3 * lane if step == 1 else step * (31 - lane) for lane in LANES]
    return written(np.array([[data.w[a + 68 * (r // step) + r % step] for a in lanes] for r in range(8)]))


def expect_load_global(spec: Tiny, data: Data, width: str) -> NDArray:
    step = int(width)
    return written(
        np.array(
            [[data.w[1024 - step * lane + 68 * (r // step) + r % step] for lane in LANES] for r in range(8)]
        )
    )


def expect_load_pieces(spec: Tiny, data: Data) -> NDArray:
    offsets = [lambda x: 4 * (x ^ 5), lambda x: 2 * x, lambda x: 31 - x, lambda x: 3 * x]
    fragment = np.zeros((8, 32), np.int32)
    for which, constant, registers in PIECES:
        for position, register in enumerate(registers):
            fragment[register] = [data.w[offsets[which](lane) + constant + position] for lane in LANES]
    return written(fragment)


def expect_store_shared_pieces(spec: Tiny, data: Data) -> NDArray:
    shared = np.zeros(512, np.int32)
    for start, offsets in (
        (0, [lambda x: 4 * (x ^ 5), lambda x: 2 * x, lambda x: 31 - x, lambda x: 127 - x]),
        (1024, [lambda x: 128 + 4 * x, lambda x: 64 + 2 * x, lambda x: 32 + x, lambda x: 64 + x]),
    ):
        fragment = read(data.w, start, 8)
        for which, constant, registers in SCATTERED:
            for position, register in enumerate(registers):
                for lane in LANES:
                    shared[offsets[which](lane) + constant + position] = fragment[register, lane]
    return written(read(shared, 0, 16))


def expect_gather(spec: Tiny, data: Data, width: str, guarded: str = "") -> NDArray:
    step = int(width)
    live = [not guarded or e - e % step < spec.n for e in range(512)]
    values = np.where(live, data.h[8:520], 0).astype(np.int16).reshape(64, 4, 2)  # eight elements: four words
    fragment = np.empty((8, 32, 2), np.int16)
    for lane in LANES:
        fragment[:4, lane] = values[2 * lane]
        fragment[[7, 6, 5, 4], lane] = values[63 - 2 * lane]
    return written(fragment.view(np.int32)[..., 0])


def expect_store_pieces(spec: Tiny, data: Data, width: str, guarded: str = "") -> NDArray:
    out = np.full(SIZE, POISON, np.int16)
    fragment = read(data.w, 0, 8)
    for lane in LANES:
        low = fragment[0:4, lane].copy().view(np.int16)
        high = fragment[[7, 6, 5, 4], lane].copy().view(np.int16)
        for first, values in ((16 * lane, low), (8 * (63 - 2 * lane), high)):
            for j, value in enumerate(values):
                element = first + j
                if not guarded or element - element % int(width) < spec.n:
                    out[8 + element] = value
    return out


def expect_load_float(spec: Tiny, data: Data) -> NDArray:
    values = read(data.w, 0, 8).view(np.float32)
    exact = values.astype(np.float64) * float(data.f[5])  # exact: 24 + 24 digits, rounded once below
    return written(exact.astype(np.float32).view(np.int32))


def expect_pack(spec: Tiny, data: Data, swap: str = "") -> NDArray:
    values = read(data.w, 0, 8).view(np.float32).reshape(4, 2, 32).transpose(0, 2, 1).astype(np.float64)
    rounded = np.vectorize(
        lambda x: nearest(Fraction(x), spec.dtype) if math.isfinite(x) and x else x, otypes=[float]
    )(values)
    if swap:
        rounded[list(SWAPPED)] = rounded[list(SWAPPED)][..., ::-1]
    return written(to_words(rounded, spec.dtype))


def _fma(a: NDArray, b: NDArray, c: Any, dtype: str) -> NDArray:
    return np.vectorize(lambda *abc: exact_fma(*abc, dtype), otypes=[float])(a, b, c)


def expect_multiply(spec: Tiny, data: Data) -> NDArray:
    a, b = (halves(read(data.w, start, 16), spec.dtype) for start in (0, 1024))
    return written(to_words(_fma(a, b, -0.0, spec.dtype), spec.dtype))


def expect_multiply_complex(spec: Tiny, data: Data) -> NDArray:
    a, b = (halves(read(data.w, start, 32), spec.dtype) for start in (0, 1024))
    xr, xi, yr, yi = a[:16], a[16:], b[:16], b[16:]
    re = _fma(xr, yr, _fma(-xi, yi, -0.0, spec.dtype), spec.dtype)
    im = _fma(xr, yi, _fma(xi, yr, -0.0, spec.dtype), spec.dtype)
    return written(to_words(np.concatenate([re, im]), spec.dtype))


def mirror_product(
    x: NDArray, a: NDArray, m: NDArray, b: NDArray, dtype: str, first: bool = False
) -> NDArray:
    """x a + conj(m) b of complex fragments: a rounded product, then three fused multiply-adds, for each part."""
    (xr, xi), (ar, ai), (mr, mi), (br, bi) = (np.split(v, 2) for v in (x, a, m, b))
    parts = []
    for terms in (((xr, ar), (-xi, ai), (mr, br), (mi, bi)), ((xr, ai), (xi, ar), (mr, bi), (-mi, br))):
        total: Any = -0.0
        for left, right in terms[2:] + terms[:2] if first else terms:
            total = _fma(left, right, total, dtype)
        parts.append(total)
    return np.concatenate(parts)


def expect_multiply_mirror(spec: Tiny, data: Data, first: str = "") -> NDArray:
    x, a, m, b = (halves(read(data.w, start, 8), spec.dtype) for start in (0, 256, 512, 768))
    return written(to_words(mirror_product(x, a, m, b, spec.dtype, bool(first)), spec.dtype))


def expect_select(spec: Tiny, data: Data) -> NDArray:
    return written(read(data.w, 0, 8)[list(PICKS)])


def expect_select_or_zero(spec: Tiny, data: Data) -> NDArray:
    x = read(data.w, 0, 8)
    return written(np.stack([x[i] if i >= 0 else 0 * x[0] for i in ZEROS]))


def expect_join(spec: Tiny, data: Data) -> NDArray:
    return written(np.concatenate([read(data.w, 0, 4), read(data.w, 1024, 8)]))


def expect_pair_halves(spec: Tiny, data: Data) -> NDArray:
    bits = read(data.w, 0, 8)
    low, high = bits & 0xFFFF, (bits >> 16) & 0xFFFF
    rows = [(high if h else low)[i] | ((high if h else low)[j] << 16) for i, j, h in PAIRS]
    return written(np.array(rows))


def expect_pair_halves_swapped(spec: Tiny, data: Data) -> NDArray:
    bits = read(data.w, 0, 8)
    halves_of = bits & 0xFFFF, (bits >> 16) & 0xFFFF  # low, high
    rows = np.empty((len(PAIRS), 32), np.int64)
    for lane in LANES:
        swap = (lane >> 1 & 1) != (lane >> 3 & 1)
        for row, (i, j, h) in enumerate(PAIRS):
            half_words = halves_of[1 - h if swap else h]
            rows[row, lane] = half_words[i, lane] | (half_words[j, lane] << 16)
    return written(rows.astype(np.int32))


def expect_prefetch(spec: Tiny, data: Data) -> NDArray:
    return written(read(data.w, 0, 4))


def expect_transpose(spec: Tiny, data: Data) -> NDArray:
    fragment = read(data.w, 0, 8)
    rows = []
    for pick in BLOCKS:
        block = np.empty((8, 8), np.int16)  # lane 4 g + t holds row g, columns 2 t and 2 t + 1
        for lane in LANES:
            block[lane >> 2, 2 * (lane & 3) : 2 * (lane & 3) + 2] = fragment[pick : pick + 1, lane].view(
                np.int16
            )
        rows.append([block.T[lane >> 2, 2 * (lane & 3) :][:2].copy().view(np.int32)[0] for lane in LANES])
    return written(np.array(rows, np.int32))


def product_in_halves(left: NDArray, right: NDArray, spec: Tiny) -> NDArray:
    """A product of integers, rounded to fp16 after every 16 terms, to bf16 after all."""
    total, step = np.zeros((1, 1)), 16 if spec.dtype == "fp16" else left.shape[1]
    for start in range(0, left.shape[1], step):
        total = total + left[:, start : start + step] @ right[start : start + step]
        total = total.astype(HALF[spec.dtype]).astype(float)
    return total


def in_row_groups(x: NDArray) -> NDArray:
    """Registers of two neighbours of a row, [row group, column tile, lane, 2]."""
    rows, columns = x.shape
    axes = x.reshape(rows // 8, 8, columns // 8, 4, 2).transpose(0, 2, 1, 3, 4)
    return axes.reshape(rows // 8, columns // 8, 32, 2)


def expect_mma_halves(spec: Tiny, data: Data, *shape: str) -> NDArray:
    rows, columns, k = map(int, shape)
    a = gather(halves(read(data.w, 0, 4 * rows * k), spec.dtype), slots_a(rows, k))
    b = gather(halves(read(data.w, 1024, 2 * k * columns), spec.dtype), slots_b(k, columns))
    found = product_in_halves(a, b, spec)
    exact = a @ b
    assert (found != exact).any()  # there was to round
    assert abs(found - exact).max() <= 2.0**-7 * abs(exact).max()
    return written(to_words(in_row_groups(found).reshape(-1, 32, 2), spec.dtype))


def expect_mma_to_parts_halves(spec: Tiny, data: Data) -> NDArray:
    factor = gather(halves(read(data.w, 0, 16), spec.dtype), slots_a(2, 2))
    both = halves(read(data.w, 1024, 16), spec.dtype)
    made = [
        in_row_groups(product_in_halves(factor, gather(x, slots_b(2, 2)), spec)) for x in (both[:8], both[8:])
    ]
    parts = [x[2 * part : 2 * part + 2] for part in range(2) for x in made]
    return written(to_words(np.concatenate(parts).reshape(-1, 32, 2), spec.dtype))


def added_in_halves(p: NDArray, q: NDArray, axis: int, spec: Tiny) -> NDArray:
    """Registers of outputs and mirrors from [cosines; sines] applied to real parts (p) and imaginary parts (q)."""

    def rounded(x: NDArray) -> NDArray:
        return x.astype(HALF[spec.dtype]).astype(float)

    (a, e), (d, b) = (np.split(rounded(x), 2, axis=axis) for x in (p, q))
    outputs, mirrors = (a + b, d - e), (a - b, d + e)
    if "inverse" in spec.name:
        outputs, mirrors = mirrors, outputs
    parts = [rounded(np.concatenate(pair, axis=axis)) for pair in zip(outputs, mirrors, strict=True)]
    return written(to_words(np.concatenate([in_row_groups(x).reshape(-1, 32, 2) for x in parts]), spec.dtype))


def expect_dft_rows_halves(spec: Tiny, data: Data, direction: str) -> NDArray:
    factor = gather(halves(read(data.w, 0, 8), spec.dtype), slots_a(2, 1))
    parts = halves(read(data.w, 1024, 8), spec.dtype)
    made = (product_in_halves(factor, gather(x, slots_b(1, 2)), spec) for x in (parts[:4], parts[4:]))
    return added_in_halves(*made, 0, spec)


def expect_dft_columns_halves(spec: Tiny, data: Data, direction: str) -> NDArray:
    parts = halves(read(data.w, 0, 16), spec.dtype)
    factor = gather(halves(read(data.w, 1024, 16), spec.dtype), slots_b(2, 4))
    made = (product_in_halves(gather(x, slots_a(1, 2)), factor, spec) for x in (parts[:8], parts[8:]))
    return added_in_halves(*made, 1, spec)


EXACT = {name.removeprefix("expect_"): f for name, f in list(globals().items()) if name.startswith("expect_")}
APPROXIMATE = ("mma", "dft_rows", "dft_columns")
ROUNDED_SUMS = ("mma_halves", "mma_to_parts_halves", "dft_rows_halves", "dft_columns_halves")
"""Of noise in an order of their own: to a neighbour now and then."""


def test_every_kernel_has_a_meaning() -> None:
    assert {name.split(":")[0] for name in KERNELS} == {*EXACT, *APPROXIMATE}


@cases
@pytest.mark.parametrize("seed", range(2))
def test_operation(spec: Tiny, seed: int) -> None:
    name, *words = spec.name.split(":")
    if name in APPROXIMATE:
        return check_product(spec, data_for(spec, seed), run_cpu(spec, data_for(spec, seed))[0])
    data = data_for(spec, seed)
    out, _ = run_cpu(spec, data)
    with np.errstate(invalid="ignore"):
        expected = EXACT[name](spec, data, *words)
    assert_same_halves(out, expected, spec.dtype)


# ---- products ------------------------------------------------------------------------------------------------
def product(spec: Tiny, data: Data) -> tuple[NDArray, NDArray, tuple[int, int]]:
    """The exact result of a product kernel, the size of its terms, and its accumulators' tiles."""
    name, *words = spec.name.split(":")
    if name == "mma":
        rows, columns, k = map(int, words)
        a = gather(halves(read(data.w, 0, 4 * rows * k), spec.dtype), slots_a(rows, k))
        b = gather(halves(read(data.w, 1024, 2 * k * columns), spec.dtype), slots_b(k, columns))
        return a @ b, abs(a) @ abs(b), (rows, columns)
    if name == "dft_rows":
        factor = gather(halves(read(data.w, 0, 8), spec.dtype), slots_a(2, 1))
        parts = halves(read(data.w, 1024, 8), spec.dtype)
        z = gather(parts[:4], slots_b(1, 2)) + 1j * gather(parts[4:], slots_b(1, 2))
        cosine, sine = factor[:16], factor[16:]
        minus, plus = (cosine - 1j * sine) @ z, (cosine + 1j * sine) @ z
        outputs = [plus, minus] if "inverse" in words else [minus, plus]
        if "paired" in words:
            alone = slice(0, 8, int(words[-1]))
            outputs[0][alone], outputs[1][alone] = cosine[alone] @ z, sine[alone] @ z
        size = (abs(cosine) + abs(sine)) @ (abs(z.real) + abs(z.imag))
        if "half" in words:
            return outputs[0], size, (1, 2)
        return np.concatenate(outputs), np.concatenate([size, size]), (2, 2)
    parts = halves(read(data.w, 0, 16), spec.dtype)
    z = gather(parts[:8], slots_a(1, 2)) + 1j * gather(parts[8:], slots_a(1, 2))
    factor = gather(halves(read(data.w, 1024, 16), spec.dtype), slots_b(2, 4))
    cosine, sine = factor[:, :16], factor[:, 16:]
    outputs = [z @ (cosine - 1j * sine), z @ (cosine + 1j * sine)]
    size = (abs(z.real) + abs(z.imag)) @ (abs(cosine) + abs(sine))
    return np.hstack(outputs[::-1] if "inverse" in words else outputs), np.hstack([size, size]), (1, 4)


def result_of_product(spec: Tiny, out: NDArray[np.int16], tiles: tuple[int, int]) -> NDArray:
    count = 4 * tiles[0] * tiles[1]
    floats = out.view(np.float32)
    assert (out[128 * count if spec.name.startswith("dft") else 64 * count :][:64] == POISON).all()
    parts = [floats[32 * count * p :][: 32 * count].reshape(count, 32) for p in range(2)]
    real = accumulators(parts[0], *tiles)
    return real + 1j * accumulators(parts[1], *tiles) if spec.name.startswith("dft") else real


def check_product(spec: Tiny, data: Data, out: NDArray[np.int16]) -> None:
    """Within gamma_K(2^-24) |A| |B| for any order of at most 32 terms and the additions of the butterfly."""
    exact, size, tiles = product(spec, data)
    got = result_of_product(spec, out, tiles)
    terms = 34
    gamma = terms * 2.0**-24 / (1 - terms * 2.0**-24)
    assert got.shape == exact.shape
    assert (abs(got - exact) <= gamma * size).all()


@pytest.mark.parametrize(
    "spec",
    [s for s in CASES if s.name.split(":")[0] in APPROXIMATE],
    ids=lambda spec: f"{spec.name}-{spec.dtype}",
)
def test_products_of_small_integers_are_exact(spec: Tiny) -> None:
    spec = Tiny(**{**vars(spec), "data": "integers"})
    data = data_for(spec)
    exact, _, tiles = product(spec, data)
    assert (result_of_product(spec, run_cpu(spec, data)[0], tiles) == exact).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.nan, 1, np.nan),
        (np.inf, 2, np.inf),
        (-np.inf, 2, -np.inf),
        (np.inf, 0, np.nan),
        (0, np.nan, np.nan),
    ],
)
def test_special_values_stay_in_their_row_and_column(dtype: str, a: float, b: float, expected: float) -> None:
    left, right = np.ones((16, 16)), np.ones((16, 8))
    left[3, 5], right[5, 2] = a, b
    tile = CpuTile(Machine(), dtype)
    fragment = tile.mma(1, 1, 1)(scatter(left, slots_a(1, 1), dtype), scatter(right, slots_b(1, 1), dtype))
    got = accumulators(fragment, 1, 1)
    with np.errstate(invalid="ignore"):
        plain = (left[:, :, None] * right[None]).sum(axis=1)
    np.testing.assert_equal(got[3, 2], np.float32(expected))
    np.testing.assert_equal(got, plain.astype(np.float32))
    quiet = np.ones((16, 8), bool)
    quiet[3], quiet[:, 2] = False, False
    assert (got[quiet] == 16).all()


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("n", [16, 32])
@pytest.mark.parametrize("where", ["rows, paired", "rows", "columns"])
def test_dft_is_the_plain_dft(where: str, n: int, inverse: bool) -> None:
    """With cosines and sines for a factor: frequency q + shift, and its mirror, of the plain definition."""
    draw = np.random.default_rng(n)
    rows = where.startswith("rows")
    shape = (n, 24) if rows else (32, n)
    z = draw.standard_normal(shape) + 1j * draw.standard_normal(shape)
    shift = 0.0 if where == "rows, paired" else 0.5
    q = np.arange(n // 2)
    angle = 2 * np.pi * np.outer(q + shift, np.arange(n)) / n
    cosine, sine = np.cos(angle), np.sin(angle)
    mirror = n - 1 - q
    if not shift:
        mirror = np.where(q == 0, n // 2, n - q)
        sine[0] = (-1.0) ** np.arange(n)
    tile = CpuTile(Machine(), "fp16")
    tiles, half = n // 16, n // 2
    if rows:
        factor = scatter(np.concatenate([cosine, sine]), slots_a(tiles, tiles), "fp16")
        data = np.concatenate([scatter(part, slots_b(tiles, 3), "fp16") for part in (z.real, z.imag)])
        operation = tile.dft_rows(tiles, 3, tiles, inverse=inverse, self_paired=0 if shift else 8)
        parts = np.split(operation(factor, data), 2)
        got = accumulators(parts[0], tiles, 3) + 1j * accumulators(parts[1], tiles, 3)
    else:
        factor = scatter(np.concatenate([cosine, sine]).T, slots_b(tiles, 2 * tiles), "fp16")
        data = np.concatenate([scatter(part, slots_a(2, tiles), "fp16") for part in (z.real, z.imag)])
        parts = np.split(tile.dft_columns(2, 2 * tiles, tiles, inverse=inverse)(data, factor), 2)
        got = (accumulators(parts[0], 2, 2 * tiles) + 1j * accumulators(parts[1], 2, 2 * tiles)).T
        z = z.T
    frequency = np.concatenate([q, mirror]) + shift
    assert len(set(frequency)) == n
    sign = 1 if inverse else -1
    exact = np.exp(sign * 2j * np.pi * np.outer(frequency, np.arange(n)) / n) @ z
    assert np.linalg.norm(got - exact) <= 2 * 2.0**-11 * np.linalg.norm(exact)
    assert half == len(q)


# ---- half-precision arithmetic -------------------------------------------------------------------------------
SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan)


def fma_on_cpu(a: NDArray, b: NDArray, c: NDArray, dtype: str) -> tuple[NDArray, NDArray, NDArray]:
    """a b, a b + c and b a + c for 64 numbers, by the operations that kernels call."""
    tile = CpuTile(Machine(), dtype)
    a, b, c = (to_words(x.reshape(1, 32, 2), dtype) for x in (a, b, c))
    one = to_words(np.ones((1, 32, 2)), dtype)
    minus = c ^ np.int32(-(2**31) + 2**15)
    # (x + i y)(b + i): the real part is x b + (-y 1), with y = -c; the imaginary part of (x + i y)(1 + i b)
    # is x b + (y 1), with y = c.
    real = tile.multiply_complex(1)(np.concatenate([a, minus]), np.concatenate([b, one]))[:1]
    imaginary = tile.multiply_complex(1)(np.concatenate([a, c]), np.concatenate([one, b]))[1:]
    return tile.multiply(1)(a, b), real, imaginary


@st.composite
def operands(draw: st.DrawFn) -> tuple[str, NDArray, NDArray, NDArray]:
    """64 triples of one format: any bits; or products beside half a unit in the last place of c."""
    dtype = draw(st.sampled_from(DTYPES), label="dtype")
    kind = draw(st.sampled_from(("bits", "ties", "special", "near one")), label="kind")
    random = np.random.default_rng(draw(seeds, label="seed"))
    bits = random.integers(-(2**15), 2**15, (3, 64)).astype(np.int16)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        a, b, c = bits.view(HALF[dtype]).astype(np.float64)
    digits, least, most = FORMAT[dtype]
    if kind == "special":
        a, b, c = (np.where(random.random(64) < 0.6, random.choice(SPECIAL, 64), x) for x in (a, b, c))
    if kind == "near one":
        a, b, c = (x.astype(HALF[dtype]).astype(float) for x in random.uniform(-2, 2, (3, 64)))
    if kind == "ties":
        exponent = random.integers(least // 2, most // 2, 64)
        c = random.integers(2 ** (digits - 1), 2**digits, 64) * 2.0 ** (exponent - digits + 1)
        c *= random.choice([-1, 1], 64)
        split = random.integers(least // 4, most // 4, 64)
        a = random.choice([-1.0, 1.0], 64) * 2.0**split
        nudge = 1 + random.choice([0, 0, 1, -1], 64) * 2.0 ** (1 - digits)
        b = 2.0 ** (exponent - digits - split) * nudge
        a, b, c = (x.astype(HALF[dtype]).astype(float) for x in (a, b, c))
    return dtype, a, b, c


@given(operands())
def test_arithmetic_rounds_once(drawn: tuple[str, NDArray, NDArray, NDArray]) -> None:
    dtype, a, b, c = drawn
    times, real, imaginary = fma_on_cpu(a, b, c, dtype)

    def wanted(plus: NDArray) -> NDArray:
        values = [exact_fma(*abc, dtype) for abc in zip(a, b, plus, strict=True)]
        return to_words(np.array(values).reshape(1, 32, 2), dtype)

    assert_same_halves(times, wanted(np.full(64, -0.0)), dtype)
    assert_same_halves(real, wanted(c), dtype)
    assert_same_halves(imaginary, wanted(c), dtype)


@given(st.lists(operands(), min_size=3, max_size=3), seeds)
def test_mirrored_products_round_four_times(drawn: list, seed: int) -> None:
    """x a + conj(m) b of any numbers: ties, subnormals, infinities, NaN, zeros of either sign."""
    dtype = drawn[0][0]
    numbers = np.concatenate([part for _, *parts in drawn for part in parts])
    with np.errstate(over="ignore", invalid="ignore"):  # some are of the other format
        numbers = numbers.astype(HALF[dtype]).astype(float)
    shuffled = np.random.default_rng(seed).permutation(numbers)[: 8 * 64].reshape(4, 2, 32, 2)
    words = [to_words(fragment, dtype) for fragment in shuffled]
    got = CpuTile(Machine(), dtype).multiply_mirror(1)(*words)
    with np.errstate(invalid="ignore"):  # infinity times zero
        wanted = mirror_product(*shuffled, dtype)
    assert_same_halves(got, to_words(wanted, dtype), dtype)


@given(
    dtype=st.sampled_from(DTYPES),
    bits=st.integers(0, 2**15 - 1),
    move=st.sampled_from((0.0, 0.25, 0.5, 0.75, 1.0)),
    lost=st.sampled_from((0.0, 1.0, -1.0)),
    sign=st.sampled_from((1, -1)),
)
@example(dtype="bf16", bits=0x0001, move=0.5, lost=1.0, sign=1)  # subnormal, a hair above the tie
@example(dtype="bf16", bits=0x7F7F, move=0.5, lost=-1.0, sign=-1)  # a hair below overflow
@example(dtype="fp16", bits=0x0000, move=0.5, lost=0.0, sign=-1)  # tie between zero and the least subnormal
def test_rounding_knows_what_the_sum_lost(dtype: str, bits: int, move: float, lost: float, sign: int) -> None:
    """Between two neighbouring halves, at and around their middle, with a remainder below float64's last digit."""
    here = float(np.int16(bits).view(HALF[dtype]))
    after = float(np.int16(min(bits + 1, 2**15 - 1)).view(HALF[dtype]))
    if not math.isfinite(here) or not math.isfinite(after):
        digits, _, most = FORMAT[dtype]
        here, after = (2 - 2.0 ** (1 - digits)) * 2.0**most, 2.0 ** (most + 1)
    value = sign * (here + move * (after - here))
    remainder = lost * math.ulp(value) / 4 if value else 0.0
    got = round_half(np.array([value]), np.array([remainder]), dtype)
    wanted = nearest(Fraction(value) + Fraction(remainder), dtype)
    assert_same_halves(
        got, np.array([wanted if wanted else math.copysign(0.0, value)]).astype(HALF[dtype]), dtype
    )


# ---- counts --------------------------------------------------------------------------------------------------
@given(width=st.sampled_from((1, 2, 4)), seed=seeds, spread=st.sampled_from((1, 4, 40, 1000)))
def test_wavefronts_and_bank_conflicts(width: int, seed: int, spread: int) -> None:
    """Each group of 32 / width lanes takes as many passes as its busiest bank has different words."""
    offsets = width * np.random.default_rng(seed).integers(0, spread, 32)
    machine = Machine()
    machine.count_shared(offsets, width, write=False)
    passes = 0
    every: set[int] = set()
    for first in range(0, 32, 32 // width):
        banks: list[set[int]] = [set() for _ in range(32)]
        for lane in range(first, first + 32 // width):
            for word in range(offsets[lane], offsets[lane] + width):
                banks[word % 32].add(word)
                every.add(word)
        passes += max(map(len, banks))
    assert machine.counters.shared_wavefronts == passes
    assert machine.counters.bank_conflicts == passes - math.ceil(len(every) / 32)
    assert machine.counters.shared_read_bytes == 32 * 4 * width


COUNTS: dict[str, dict[str, Any]] = {
    "places": {
        "blocks": 3,
        "warps": 6,
        "global_read_bytes": {"w": 6 * 128},
        "global_written_bytes": {"out": 6 * 128},
    },
    "barrier": {
        "barriers": 2,
        "blocks": 2,
        "warps": 8,
        "shared_written_bytes": 8 * 512,
        "shared_wavefronts": 8 * 4,
    },
    "groups": {"shared_written_bytes": 1024, "shared_read_bytes": 1024, "global_read_bytes": {"w": 1024}},
    # indices 0, 8, ... 296 are below 301: 38 accesses of 16 bytes
    "copy_async:8": {"global_read_bytes": {"h": 38 * 16}, "shared_written_bytes": 2048},
    "copy_async:4": {"global_read_bytes": {"h": 76 * 8}, "shared_written_bytes": 2048},
    "copy_async:2": {"global_read_bytes": {"h": 151 * 4}, "shared_written_bytes": 2048},
    "copy_async:1": {"global_read_bytes": {"h": 301 * 2}, "shared_written_bytes": 2048},
    "copy_pieces:8": {"global_read_bytes": {"h": 2048}, "shared_written_bytes": 2048},
    "copy_pieces:8:guarded": {"global_read_bytes": {"h": 38 * 16}, "shared_written_bytes": 2048},
    "copy_pieces:4:guarded": {"global_read_bytes": {"h": 76 * 8}, "shared_written_bytes": 2048},
    "copy_pieces:2:guarded": {"global_read_bytes": {"h": 151 * 4}, "shared_written_bytes": 2048},
    "copy_pieces:1:guarded": {"global_read_bytes": {"h": 301 * 2}, "shared_written_bytes": 2048},
    # the copy, and 16 accesses of a half element by each lane, counted as words
    "gather_halves": {"global_read_bytes": {"w": 2048 + 1024}, "shared_read_bytes": 16 * 128},
    "load_shared:1": {"shared_read_bytes": 1024, "shared_wavefronts": 8, "bank_conflicts": 0},
    "load_shared:4": {"shared_read_bytes": 1024, "shared_wavefronts": 8, "bank_conflicts": 0},
    "store_pieces:8:guarded": {"global_written_bytes": {"out": 38 * 16}},
    "store_pieces:1:guarded": {"global_written_bytes": {"out": 301 * 2}},
    "store_pieces:8": {"global_written_bytes": {"out": 1024}},
    "store_shared_pieces": {"shared_written_bytes": 2048, "bank_conflicts": 0, "shared_wavefronts": 32},
    "gather:4:guarded": {"global_read_bytes": {"h": 76 * 8}},
    "gather:1": {"global_read_bytes": {"h": 1024}},
    "load_float": {"global_read_bytes": {"w": 1024, "f": 4}, "fp32_flops": 256},
    "mma:2:3:2": {"mma_m16n8k16": 12, "fp32_flops": 0, "half_flops": 0},
    "dft_rows:forward": {"mma_m16n8k16": 8, "fp32_flops": 2 * 32 * 16},
    "dft_rows:inverse:half": {"mma_m16n8k16": 8, "fp32_flops": 2 * 16 * 16},
    "dft_columns:forward": {"mma_m16n8k16": 16, "fp32_flops": 2 * 16 * 32},
    "mma_halves:2:3:2": {"mma_m16n8k16": 12, "fp32_flops": 0, "half_flops": 0},
    "mma_to_parts_halves": {"mma_m16n8k16": 16, "fp32_flops": 0, "half_flops": 0},
    "dft_rows_halves:forward": {"mma_m16n8k16": 8, "fp32_flops": 0, "half_flops": 2 * 32 * 16},
    "dft_columns_halves:inverse": {"mma_m16n8k16": 16, "fp32_flops": 0, "half_flops": 2 * 16 * 32},
    "multiply": {"half_flops": 1024},
    "multiply_complex": {"half_flops": 6 * 1024},
    "multiply_mirror": {"half_flops": 14 * 4 * 64},
    "transpose": {"transposes": 5, "half_flops": 0, "fp32_flops": 0, "mma_m16n8k16": 0},
}


@given(base=st.integers(0, 64), spread=st.sampled_from((1, 3, 64, 1000)), seed=seeds)
@example(base=1, spread=1000, seed=0)
def test_gathered_halves_take_a_pass_for_every_word_of_a_bank(base: int, spread: int, seed: int) -> None:
    """Low and high halves of each register are an access of its own; two lanes may share a word."""
    draw = np.random.default_rng(seed)
    places = draw.integers(0, spread, (4, 32, 2))  # in half elements
    memory = draw.integers(-(2**31), 2**31, (20, 32)).astype(np.int32)
    machine = Machine()
    tile = CpuTile(machine, "fp16")
    _, gather_places = tile.gather_halves(4)
    fill = tile.store_shared_pieces(tuple((0, 32 * r, (r,)) for r in range(20)))
    found = []

    def kernel() -> None:
        fill(tile.lane(), 0, 0, 0, memory)
        tile.warp_sync()
        before = machine.counters.shared_wavefronts
        offsets = places.astype(np.uint16).view(np.int32)[..., 0]
        found.append(gather_places(base, offsets))
        found.append(machine.counters.shared_wavefronts - before)

    machine.run(kernel, 1, 1, 640, [])
    passes = smallest = 0
    for r in range(4):
        for e in range(2):
            words = {2 * base + int(place) >> 1 for place in places[r, :, e]}
            passes += max(sum(word % 32 == bank for word in words) for bank in range(32))
            smallest += 1  # at most 32 words
    wanted = memory.reshape(-1).view(np.int16)[2 * base + places]
    assert np.array_equal(found[0], wanted.view(np.int32)[..., 0])
    assert found[1] == passes and machine.counters.bank_conflicts == passes - smallest
    assert machine.counters.shared_read_bytes == 4 * 2 * 32 * 4


@pytest.mark.parametrize("halves_per_copy", [8, 4, 2, 1])
@pytest.mark.parametrize("limit", [0, -5])
def test_copies_beyond_the_end_read_nothing(halves_per_copy: int, limit: int) -> None:
    """Where a sequence is missing all is zero, and no address beyond the buffer is formed."""
    spec = Tiny(f"copy_pieces:{halves_per_copy}:guarded", "fp16", n=limit, shared_words=512)
    out, counters = run_cpu(spec, data_for(spec))
    assert not out[:1024].any() and (out[1024:] == POISON).all()
    assert counters.global_read_bytes.get("h", 0) == 0 and counters.shared_written_bytes == 2048


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    spec = KERNELS[name]
    _, counters = run_cpu(spec, data_for(spec))
    found = counters.as_dict()
    assert {key: found[key] for key in COUNTS[name]} == COUNTS[name]


# ---- machine code, and the GPU -------------------------------------------------------------------------------
INSTRUCTIONS = {  # on sm_90; "|": any of them
    "mma:2:3:2": {"HMMA.16816.F32 ": 12},
    "dft_columns:forward": {"HMMA.16816.F32 ": 16},
    "mma_halves:2:3:2": {"HMMA.16816.F16 ": 12, "F2FP": 0},
    "dft_columns_halves:inverse": {"HMMA.16816.F16 ": 16, "F2FP": 0, "FADD": 0},
    "transpose": {"MOVM.16.MT88 ": 5},
    "copy_async:8": {"LDGSTS.E.BYPASS.128": 4},
    "copy_async:4": {"LDGSTS.E.64": 8},
    "copy_async:2": {"LDGSTS.E ": 16},
    "copy_async:1": {"STS.U16": 32},
    "copy_pieces:8": {"LDGSTS.E.BYPASS.128": 4},
    "copy_pieces:4:guarded": {"LDGSTS.E.64": 8},
    "copy_pieces:2": {"LDGSTS.E ": 16},
    "copy_pieces:1:guarded": {"STS.U16": 32},
    "gather_halves": {"LDS.U16": 16, "LDG.E.128": 2},
    "multiply_mirror": {"HFMA2|HMUL2": 8 * 4},
    "pair_halves_swapped": {"PRMT ": 4},
    "prefetch": {"CCTL.E.PF2": 1},
    "opaque": {"LDG.E.128": 4, "STG.E ": 16},  # one turn
    "load_shared:4": {"LDS.128": 2},
    "load_pieces": {"LDS.128": 1, "LDS.64": 1},
    "load_global:2": {"LDG.E.64": 4},
    "store_pieces:8": {"STG.E.128": 2},
    "store_pieces:1": {"STG.E.U16": 16},
    "barrier": {"BAR.SYNC": 1},
}


@cases
def test_compiles(spec: Tiny) -> None:
    """To machine code for sm_90, with the instructions that the operation stands for."""
    pytest.importorskip("numba.cuda")
    from kernels_numba.launch import compile_spec
    from kernels_numba.tile.compile import disassemble, opcodes

    cubin = compile_spec(tiny_kernels, spec, (9, 0))
    if spec.name in INSTRUCTIONS and spec.dtype == "fp16":
        sass = disassemble(cubin)
        wanted = INSTRUCTIONS[spec.name]
        found = {names: sum(map(sass.count, names.split("|"))) for names in wanted}
        assert found == wanted
        assert not {"LDL", "STL", "CALL", "DADD", "DMUL", "DFMA"} & set(opcodes(sass))


@pytest.mark.gpu
@cases
@pytest.mark.parametrize("seed", range(2))
def test_bodies_agree(spec: Tiny, seed: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit; only the order in which a tensor core adds up is its own."""
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path / "cache"))
    name = spec.name.split(":")[0]
    kinds = [spec.data, "integers"] if name in APPROXIMATE else [spec.data, "noise"]
    if name in ROUNDED_SUMS:
        kinds = ["integers", "large integers"]
    for kind in kinds:
        drawn = Tiny(**{**vars(spec), "data": kind})
        data = data_for(drawn, seed)
        out = tiny_kernels.run_gpu(drawn, data)
        if kind == "noise" and name in APPROXIMATE:
            check_product(drawn, data, out)
        else:
            assert_same_halves(out, run_cpu(drawn, data)[0], spec.dtype)
