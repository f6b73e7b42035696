"""Operations that matrix products stream and add up with, against plain NumPy; the two bodies against each other.

Where a matrix lies in registers is `hardware`'s, written down from the PTX ISA; sums of float32 are done in exact
rational arithmetic and rounded once.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import tiny_products
from hardware import HALF, accumulators, assert_same_halves, gather, halves, nearest, slots_a, slots_b
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds
from tiny_kernels import POISON, SIZE, Data, Tiny
from tiny_products import (
    CHUNK_PIECES,
    KERNELS,
    MATRICES,
    NEAR_LIMIT,
    PAIR_ORDER,
    PLACES,
    data_for,
    run_cpu,
)

from kernels_numba.tile.cpu_products import fma_single
from kernels_numba.tile.machine import KernelError

LANES = range(32)
DTYPES = ("fp16", "bf16")
FORMATTED = ("mma_add", "dot_add", "store_rounded", "store_tile")
CASES = [
    Tiny(**{**vars(spec), "dtype": dtype})
    for spec in KERNELS.values()
    for dtype in (DTYPES if spec.name.split(":")[0] in FORMATTED else ("fp16",))
]
cases = pytest.mark.parametrize("spec", CASES, ids=lambda spec: f"{spec.name}-{spec.dtype}")


def read(words: NDArray[np.int32], start: int, count: int, width: int) -> NDArray[np.int32]:
    """The fragment [count, 32] that a kernel reads, ``width`` words a lane."""
    return np.array(
        [
            [words[start + (r // width) * 32 * width + width * lane + r % width] for lane in LANES]
            for r in range(count)
        ]
    )


def written(fragment: NDArray) -> NDArray[np.int16]:
    out = np.full(SIZE, POISON, np.int16)
    words = np.ascontiguousarray(fragment).reshape(-1).view(np.int16)
    out[: words.size] = words
    return out


def single(x: Fraction) -> float:
    """x rounded once to float32, in its normal range; zero is positive."""
    if x == 0:
        return 0.0
    exponent = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    exponent -= Fraction(2) ** exponent > abs(x)
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(x / quantum) * quantum
    return math.copysign(math.inf, x) if abs(rounded) >= Fraction(2) ** 128 else float(rounded)


def test_exact_rounding_to_single_is_ieee() -> None:
    values = np.random.default_rng(0).standard_normal(500) * 10.0 ** np.arange(-40, 40).repeat(7)[:500]
    assert [single(Fraction(x)) for x in values] == list(values.astype(np.float32).astype(float))


# ---- what the small kernels must write -----------------------------------------------------------------------
def expect_load_chunks(spec: Tiny, data: Data, kind: str, guarded: str = "") -> NDArray:
    first, step, last, stride, start = PLACES.values()
    fragment = np.empty((12, 32), np.int32)
    for which, constant, registers in CHUNK_PIECES:
        for lane in LANES:
            row = min((lane >> 2) + first + which * step, last)
            chunk = (lane & 3) + constant
            values = data.h[start + row * stride + 8 * chunk :][:8].copy().view(np.int32)
            live = not guarded or chunk < spec.n
            fragment[list(registers), lane] = values if live else 0
    return written(fragment)


def expect_load_pairs(spec: Tiny, data: Data) -> NDArray:
    fragment = np.zeros((3, 32, 2), np.int16)
    for register, (which, side, constant) in enumerate(PAIR_ORDER):
        for lane in LANES:
            for e in range(2):
                at = 2 * lane + 50 * side + constant + e
                if at < (spec.n if side else NEAR_LIMIT):
                    fragment[register, lane, e] = data.h[3 + 701 * which + at]
    return written(fragment.view(np.int32)[..., 0])


def expect_copy_rows(spec: Tiny, data: Data, guarded: str = "") -> NDArray:
    shared = np.zeros((4, 32, 8), np.int16)
    for i in range(4):
        for lane in LANES:
            if not guarded or (2 * i < spec.n - (lane >> 3) and lane != 3):
                shared[i, lane] = data.h[8 + 8 * lane + 264 * i :][:8]
    return written(read(shared.reshape(-1).view(np.int32), 0, 16, 4))


def expect_load_matrices(spec: Tiny, data: Data) -> NDArray:
    """Register i of lane 4 g + t: word t of the row that lane 8 i + g names."""
    rows = [12 * (31 - lane) for lane in LANES]
    return written(
        np.array(
            [
                [data.w[rows[8 * i + (lane >> 2)] + constant + (lane & 3)] for lane in LANES]
                for constant in MATRICES
                for i in range(4)
            ]
        )
    )


def expect_dot_add(spec: Tiny, data: Data, rows: str, columns: str, words: str) -> NDArray:
    r, c, k = int(rows), int(columns), int(words)
    sums = read(data.w, 0, r * c, 1).view(np.float32).astype(float).reshape(r, c, 32)
    w = halves(read(data.w, 1024, r * k, 1), spec.dtype).reshape(r, k, 32, 2)
    x = halves(read(data.w, 2048, c * k, 1), spec.dtype).reshape(c, k, 32, 2)
    for i in range(k):
        for e in range(2):
            for a, b, lane in np.ndindex(r, c, 32):
                left, right, total = (
                    float(v) for v in (w[a, i, lane, e], x[b, i, lane, e], sums[a, b, lane])
                )
                if all(map(math.isfinite, (left, right, total))):
                    exact = Fraction(left) * Fraction(right) + Fraction(total)
                    sums[a, b, lane] = single(exact) if exact else left * right + total
                else:
                    sums[a, b, lane] = left * right + total
    return written(sums.astype(np.float32).reshape(r * c, 32))


def expect_add(spec: Tiny, data: Data) -> NDArray:
    a, b = (read(data.w, start, 8, 4).view(np.float32) for start in (0, 1024))
    return written(a + b)


def expect_sum_lanes(spec: Tiny, data: Data) -> NDArray:
    """A butterfly adds lane l and l ^ 16 first, so halves of the warp fold onto each other."""
    values = read(data.w, 0, 4, 4).view(np.float32)
    for distance in (16, 8, 4, 2, 1):
        values = (values[:, :distance] + values[:, distance : 2 * distance]).astype(np.float32)
    return written(np.repeat(values, 32, axis=1))


def rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.int16]:
    exact = [nearest(Fraction(float(x)), dtype) if math.isfinite(x) and x else float(x) for x in values.flat]
    with np.errstate(over="ignore"):
        return np.array(exact).astype(HALF[dtype]).view(np.int16).reshape(values.shape)


def expect_store_rounded(spec: Tiny, data: Data) -> NDArray:
    out = np.full(SIZE, POISON, np.int16)
    values = rounded(data.w[:32].view(np.float32), spec.dtype)
    for lane in range(spec.n):
        out[3 * lane + 1] = values[lane]
    return out


def expect_store_tile(spec: Tiny, data: Data, width: str) -> NDArray:
    stride = 42 - int(width)
    out = np.full(SIZE, POISON, np.int16)
    matrix = accumulators(read(data.w, 0, 16, 4).view(np.float32), 2, 2)
    for row, column in np.ndindex(spec.n, 12):
        out[8 + row * stride + column] = rounded(matrix[row, column, None], spec.dtype)[0]
    return out


def expect_last_block(spec: Tiny, data: Data) -> NDArray:
    mine = data.w[1024 : 1024 + 6 * 64].view(np.float32).reshape(6, 2, 32).copy()
    mine[:, :, 7] = data.f[: 6 * 64].reshape(6, 2, 32)[:, :, 7]
    sums = [(mine[3 * g] + mine[3 * g + 1]) + mine[3 * g + 2] for g in range(2)]
    return written(np.array(sums, np.float32))


def expect_sums(spec: Tiny, data: Data) -> NDArray:
    fragment = read(data.w, 0, 8, 4)
    return written(np.concatenate([fragment[4:], fragment[:4]]))


def expect_order(spec: Tiny, data: Data) -> NDArray:
    return written(data.w[:96])


EXACT = {name.removeprefix("expect_"): f for name, f in list(globals().items()) if name.startswith("expect_")}


def test_every_kernel_has_a_meaning() -> None:
    assert {name.split(":")[0] for name in KERNELS} == {*EXACT, "mma_add"}


def assert_right(spec: Tiny, data: Data, out: NDArray[np.int16]) -> None:
    name, *words = spec.name.split(":")
    if name == "mma_add":
        rows, columns, k = map(int, words)
        a = gather(halves(read(data.w, 0, 4 * rows * k, 4), spec.dtype), slots_a(rows, k))
        b = gather(halves(read(data.w, 1024, 2 * k * columns, 2), spec.dtype), slots_b(k, columns))
        count = 4 * rows * columns
        got = accumulators(out.view(np.float32)[: 32 * count].reshape(count, 32), rows, columns)
        gamma = (2 * 16 * k + 1) * 2.0**-24  # 32 k terms, in any order; tensor cores cut bits off
        assert (abs(got - 2 * a @ b) <= 2 * gamma * 2 * (abs(a) @ abs(b))).all()
        assert (out[64 * count :] == POISON).all()
        return
    with np.errstate(invalid="ignore", over="ignore"):
        expected = EXACT[name](spec, data, *words)
    if name in ("dot_add", "add", "sum_lanes"):  # float32 results: any NaN equals any other
        got, wanted = out.view(np.float32), expected.view(np.float32)
        both = np.isnan(got) & np.isnan(wanted)
        assert ((got.view(np.int32) == wanted.view(np.int32)) | both).all()
    else:
        assert_same_halves(out, expected, spec.dtype)


@cases
@pytest.mark.parametrize("seed", range(2))
def test_operation(spec: Tiny, seed: int) -> None:
    data = data_for(spec, seed)
    out, _, after = run_cpu(spec, data)
    assert_right(spec, data, out)
    assert np.array_equal(after.h, data.h) and np.array_equal(after.w, data.w)  # counters are back at zero


def test_products_of_small_integers_are_exact() -> None:
    for name in ("mma_add:1:1:1", "mma_add:2:3:2"):
        rows, columns, k = map(int, name.split(":")[1:])
        spec = Tiny(name, "fp16", data="integers")
        data = data_for(spec)
        a = gather(halves(read(data.w, 0, 4 * rows * k, 4), "fp16"), slots_a(rows, k))
        b = gather(halves(read(data.w, 1024, 2 * k * columns, 2), "fp16"), slots_b(k, columns))
        count = 4 * rows * columns
        got = run_cpu(spec, data)[0].view(np.float32)[: 32 * count].reshape(count, 32)
        assert np.array_equal(accumulators(got, rows, columns), 2 * a @ b)


@given(
    exponents=st.lists(st.integers(-40, 40), min_size=3, max_size=3),
    seed=seeds,
    near_tie=st.booleans(),
)
@example(exponents=[0, 0, 0], seed=0, near_tie=True)
def test_multiply_add_in_single_rounds_once(exponents: list[int], seed: int, near_tie: bool) -> None:
    draw = np.random.default_rng(seed)
    a, b, c = (
        (draw.uniform(1, 2, 16) * draw.choice([-1, 1], 16) * 2.0**e).astype(np.float32) for e in exponents
    )
    if near_tie:  # a b is half an ulp of c, or a hair off
        a = np.ldexp(np.float32(1), np.frexp(c)[1] - 25).astype(np.float32)
        b = (1 + draw.choice([0.0, 2.0**-23, -(2.0**-23)], 16)).astype(np.float32)
    wanted = [
        single(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert np.array_equal(fma_single(a, b, c), np.array(wanted, np.float32))


# ---- counts --------------------------------------------------------------------------------------------------
COUNTS: dict[str, dict[str, Any]] = {
    "load_chunks:stream": {"global_read_bytes": {"h": 3 * 32 * 16}},
    # chunks t and t + 4 below 6: all of the first, half of the second, none of the third
    "load_chunks:keep:guarded": {"global_read_bytes": {"h": (32 + 16) * 16}},
    # near: 21 elements, 18 from the third on; far: 30
    "load_pairs": {"global_read_bytes": {"h": 2 * (21 + 18 + 30)}},
    "copy_rows": {"global_read_bytes": {"h": 2048}, "shared_written_bytes": 2048},
    # of lanes in groups of 8: rows 5, 4, 3, 2 are left, so 3, 2, 2 and 1 copies, without those of lane 3
    "copy_rows:guarded": {"global_read_bytes": {"h": 16 * (8 * (3 + 2 + 2 + 1) - 3)}},
    "load_matrices": {"shared_read_bytes": 3 * 512, "shared_wavefronts": 3 * 4, "bank_conflicts": 0},
    "mma_add:2:3:2": {"mma_m16n8k16": 24, "fp32_flops": 0},
    "dot_add:2:3:4": {"fp32_flops": 2 * 2 * 3 * 8 * 32},
    "add": {"fp32_flops": 256},
    "sum_lanes": {"fp32_flops": 5 * 4 * 32},
    "store_rounded": {"global_written_bytes": {"out": 38}},
    "store_tile:2": {"global_written_bytes": {"out": 2 * 27 * 12}},
    "sums": {"global_written_bytes": {"f": 1024, "out": 1024}, "global_read_bytes": {"w": 1024, "f": 1024}},
    "last_block": {
        "global_written_bytes": {"f": 6 * 2 * 31 * 4, "out": 2 * 2 * 128},
        "global_read_bytes": {"w": 6 * 2 * 128, "f": 2 * 2 * 3 * 128},
        "barriers": 12,
    },
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    _, counters, _ = run_cpu(KERNELS[name], data_for(KERNELS[name]))
    found = counters.as_dict()
    assert {key: found[key] for key in COUNTS[name]} == COUNTS[name]


def test_more_blocks_than_announced_are_an_error() -> None:
    spec = KERNELS["last_block"]
    data = data_for(spec)
    data.w[1] = spec.n
    with pytest.raises(KernelError, match="of 3 blocks that arrive"):
        run_cpu(spec, data)


# ---- machine code, and the GPU -------------------------------------------------------------------------------
INSTRUCTIONS = {  # on sm_90
    "load_chunks:stream": {"LDG.E.128.CONSTANT": 0, "LDG.E.NA.128.CONSTANT": 3},
    "load_chunks:keep": {"LDG.E.128": 3},
    "copy_rows": {"LDGSTS.E.BYPASS.128": 4},
    "load_matrices": {"LDSM.16.M88.4": 3},
    "mma_add:2:3:2": {"HMMA.16816.F32 ": 24},
    "dot_add:2:3:4": {"FFMA ": 48},
    "sum_lanes": {"SHFL.BFLY": 20},
    "last_block": {"ATOMG.E.INC": 1},
    "order": {"ACQBULK": 1},
}


@cases
def test_compiles(spec: Tiny) -> None:
    """To machine code for sm_90, with the instructions that the operation stands for."""
    pytest.importorskip("numba.cuda")
    from kernels_numba.launch import compile_spec
    from kernels_numba.tile.compile import disassemble, opcodes

    cubin = compile_spec(tiny_products, spec, (9, 0))
    if spec.name in INSTRUCTIONS and spec.dtype == "fp16":
        sass = disassemble(cubin)
        wanted = INSTRUCTIONS[spec.name]
        assert {name: sass.count(name) for name in wanted} == wanted
        assert not {"LDL", "STL", "CALL", "DADD", "DMUL", "DFMA"} & set(opcodes(sass))


@pytest.mark.gpu
@cases
@pytest.mark.parametrize("seed", range(2))
def test_bodies_agree(spec: Tiny, seed: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit; only the order in which a tensor core adds up is its own. Two launches leave what one does."""
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path / "cache"))
    data = data_for(spec, seed)
    assert_right(spec, data, tiny_products.run_gpu(spec, data, launches=2))
