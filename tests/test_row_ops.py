"""The operations of attention against plain NumPy, lane by lane; and the two bodies against each other."""

import math
from typing import Any

import numpy as np
import pytest
import row_kernels
from hardware import HALF
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from row_kernels import KERNELS, SECOND, WIDTHS, data_for, run_cpu
from strategies import seeds
from tiny_kernels import POISON, Data, Tiny

LANES = range(32)
F = np.float32
FORMATTED = ("weigh:3:both", "weigh:2:both:careful", "weigh_products:2:2", "widen")
CASES = list(KERNELS.values()) + [Tiny(**{**vars(KERNELS[name]), "dtype": "bf16"}) for name in FORMATTED]
cases = pytest.mark.parametrize("spec", CASES, ids=lambda spec: f"{spec.name}-{spec.dtype}")
EXPONENTIAL = ("logits:2:capped", "exponentials", "exponentials:floor", "decays", "numbers", "join_numbers")
"""Kernels whose results the special-function unit rounds in its own way."""
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # infinities are part of the data


def rows_of(data: Data, start: int, count: int) -> NDArray[np.float32]:
    return data.w.view(F).reshape(-1, 32)[start : start + count]


def query_of(register: int, lane: int) -> int:
    return 8 * (register // 2) + 2 * (lane % 4) + register % 2


def results(out: NDArray[np.int16], count: int) -> NDArray[np.int32]:
    """The fragment that a kernel stored."""
    return np.ascontiguousarray(out).view(np.int32).reshape(-1, 32)[:count]


def power(x: Any) -> NDArray:
    """e^x in float64; 0 where float32 has no normal number."""
    y = np.exp(np.asarray(x, float))
    return np.where(y < 2.0**-126, 0.0, y)


def expect_logits(spec: Tiny, data: Data, tiles: int, capped: str = "") -> NDArray:
    x = rows_of(data, 0, 4 * tiles).astype(float) * float(data.f[0])
    return (float(data.f[1]) * np.tanh(x / float(data.f[1])) if capped else x).astype(F)


def expect_mask(spec: Tiny, data: Data, tiles: int) -> NDArray:
    x = rows_of(data, 0, 4 * tiles).copy()
    for i in range(4 * tiles):
        for lane in LANES:
            limit = (31, 45, 38, spec.n - lane % 4)[i % (2 * tiles)]
            if 30 + lane // 4 + 8 * (i // (2 * tiles)) >= limit:
                x[i, lane] = -1
    return x


def expect_shift(spec: Tiny, data: Data, tiles: int) -> NDArray:
    less = rows_of(data, SECOND, 2 * tiles)
    return rows_of(data, 0, 4 * tiles) - np.concatenate([less, less])


def expect_outside(spec: Tiny, data: Data, tiles: int) -> NDArray:
    x = rows_of(data, 0, 4 * tiles)
    bits = np.zeros((1, 32), np.int32)
    for i in range(4 * tiles):
        for lane in LANES:
            if not (-3 < x[i, lane] < 3) and x[i, lane] != -np.inf:
                bits[0, lane] |= 1 << query_of(i % (2 * tiles), lane)
    return bits


def expect_differ(spec: Tiny, data: Data) -> NDArray:
    return (rows_of(data, 0, 2) != rows_of(data, SECOND, 2)).any(axis=0).astype(np.int32)[None]


def expect_exponentials(spec: Tiny, data: Data, floor: str = "") -> NDArray:
    x = rows_of(data, 0, 8)
    y = power(x)
    return np.where((x > -np.inf) & (y < 2.0**-126), 2.0**-126, y) if floor else y


def expect_add(spec: Tiny, data: Data) -> NDArray:
    return rows_of(data, 0, 8) + rows_of(data, SECOND, 8)


def expect_times(spec: Tiny, data: Data) -> NDArray:
    return rows_of(data, 0, 8) * rows_of(data, SECOND, 8)


def expect_add_keys(spec: Tiny, data: Data, tiles: int) -> NDArray:
    x = rows_of(data, SECOND, 4 * tiles)
    return rows_of(data, 0, 2 * tiles) + (x[: 2 * tiles] + x[2 * tiles :])


def expect_max_keys(spec: Tiny, data: Data, tiles: int) -> NDArray:
    most, x = rows_of(data, 0, 2 * tiles), rows_of(data, SECOND, 4 * tiles)
    out = np.empty_like(most)
    for j in range(2 * tiles):
        for lane in LANES:
            seen = [x[i, other] for i in (j, j + 2 * tiles) for other in LANES if other % 4 == lane % 4]
            numbers = [v for v in [most[j, lane], *seen] if not math.isnan(v)]
            out[j, lane] = max(numbers) if numbers else np.nan
    return out


def expect_sum_lanes(spec: Tiny, data: Data) -> NDArray:
    x = rows_of(data, 0, 4).reshape(4, 8, 4)  # pairs of neighbours first, as the distances 4, 8, 16 do
    while x.shape[1] > 1:
        x = x[:, 0::2] + x[:, 1::2]
    return np.tile(x[:, 0], (1, 8))


def expect_anchors(spec: Tiny, data: Data) -> NDArray:
    x = rows_of(data, 0, 4)
    return np.where(x == -np.inf, F(0), x)


def expect_started(spec: Tiny, data: Data) -> NDArray:
    return np.where(rows_of(data, 0, 8) == 0, F(-np.inf), rows_of(data, SECOND, 8))


def expect_decays(spec: Tiny, data: Data) -> NDArray:
    old, new = rows_of(data, 0, 8).astype(float), rows_of(data, SECOND, 8).astype(float)
    x = old - np.where(new == -np.inf, 0, new)
    y = power(x)
    return np.where((x > -np.inf) & (y < 2.0**-126), 2.0**-126, y)


def expect_spread(spec: Tiny, data: Data, rows: int) -> NDArray:
    x = rows_of(data, 0, 4)
    found = [x[2 * (r // 8) + r % 2, (r % 8) // 2] for r in range(rows)]
    return np.repeat(np.array(found, F)[:, None], 32, axis=1)


def expect_scale_rows(spec: Tiny, data: Data) -> NDArray:
    return rows_of(data, 0, 12) * np.repeat(rows_of(data, SECOND, 3), 4, axis=0)


def expect_join_numbers(spec: Tiny, data: Data) -> NDArray:
    """In float64, a lane at a time: parts without weight have no say in the shift, and keep factor 1."""
    found = np.concatenate([rows_of(data, 0, 2), rows_of(data, SECOND, 6)])
    out = np.empty((6, 32))
    for lane in LANES:
        shifts, totals = found[::2, lane].astype(float), found[1::2, lane].astype(float)
        top, some = shifts[0], totals[0] != 0
        for m, l in zip(shifts[1:], totals[1:], strict=True):  # noqa: E741
            if l != 0 and (not some or m > top):
                top, some = m, True
        for i, (m, l) in enumerate(zip(shifts, totals, strict=True)):  # noqa: E741
            x = m - (0 if top == -np.inf else top)
            factor = np.inf if x > 89 else max(float(power(x)), 2.0**-126) if x > -np.inf else float(power(x))
            out[i, lane] = 1 if l == 0 or m == top else factor
        out[4, lane], out[5, lane] = top, out[:4, lane] @ totals
    return out


def expect_join_sums(spec: Tiny, data: Data) -> NDArray:
    own, factors = rows_of(data, 0, 4), rows_of(data, 4, 4)
    total = own * factors[0]
    for factor, more in zip(factors[1:], rows_of(data, SECOND, 12).reshape(3, 4, 32), strict=True):
        total = (factor.astype(float) * more + total).astype(F)
    return total


def expect_choose(spec: Tiny, data: Data) -> NDArray:
    a, b = rows_of(data, 0, 4), rows_of(data, SECOND, 4)
    picks = [[spec.n >> query_of(j, lane) & 1 for lane in LANES] for j in range(4)]
    return np.where(np.array(picks) == 1, a, b)


def expect_numbers(spec: Tiny, data: Data) -> NDArray:
    a, b, c, d = data.w.view(F)[64 * 32 : 64 * 32 + 4]
    decay = np.exp(float(a) - float(b)).astype(F)
    return np.repeat(np.array([a, a, decay, decay, c, d], F)[:, None], 32, axis=1)


def expect_quotient(spec: Tiny, data: Data, zero: str = "") -> NDArray:
    x = rows_of(data, 0, 4)
    return np.zeros_like(x) if zero else x * (F(1) / data.f[1])


def expect_weigh(spec: Tiny, data: Data, rows: int, widths: str, careful: str = "") -> NDArray:
    per = sum(WIDTHS[widths])
    weights = data.w.view(F)[64 * 32 :]
    values = halves_of(data, spec)[: 16 * 32 * per].reshape(16, -1)
    out = np.full((rows, per, 32), 0.5, F)
    for r in range(rows):
        for lane in LANES:
            places, start = [], 0
            for width in WIDTHS[widths]:
                places += [start + width * lane + i for i in range(width)]
                start += 32 * width
            for key in range(16):
                weight = float(weights[20 * r + key])
                if not (careful and weight < 0):
                    out[r, :, lane] = (out[r, :, lane].astype(float) + weight * values[key, places]).astype(F)
    return out.reshape(rows * per, 32)


def expect_weigh_products(spec: Tiny, data: Data, tiles: int, blocks: int, careful: str = "") -> NDArray:
    """In float64: the order of a tensor core's sums is its own."""
    weights = data.w.view(F)[64 * 32 :]
    values = halves_of(data, spec)[: 16 * 64 * blocks].reshape(16, -1)
    out = np.empty((tiles, blocks, 4, 2, 2, 32))
    for n, block, i, y, e, lane in np.ndindex(out.shape):
        q, d = 8 * n + 2 * (lane % 4) + e, 64 * block + 8 * (lane // 4) + 2 * i + y
        w = weights[20 * q : 20 * q + 16]
        w = np.where(w < 0, 0, w) if careful else tf32(w)
        out[n, block, i, y, e, lane] = 2 * (0.5 + w.astype(float) @ values[:, d])
    return out.reshape(-1, 32)


def tf32(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """11 significant bits, ties away from zero."""
    mantissa, exponent = np.frexp(x.astype(float))
    return np.copysign(np.floor(np.abs(mantissa) * 2**11 + 0.5) / 2**11 * 2.0**exponent, mantissa)


def halves_of(data: Data, spec: Tiny) -> NDArray[np.float64]:
    return data.h.view(HALF[spec.dtype]).astype(float)


def expect_widen(spec: Tiny, data: Data) -> NDArray:
    with np.errstate(invalid="ignore"):
        both = np.ascontiguousarray(data.w[:128]).view(HALF[spec.dtype]).reshape(4, 32, 2).astype(F)
    return both.transpose(0, 2, 1).reshape(8, 32)


def expect_cut(spec: Tiny, data: Data) -> NDArray:
    x = rows_of(data, 0, 8).copy()
    for i in range(8):
        for lane in LANES:
            if 8 * lane + i >= spec.n:
                x[i, lane] = -2
    return x


def expect_less(spec: Tiny, data: Data) -> NDArray:
    return rows_of(data, 0, 8) - rows_of(data, SECOND, 1)


def expect_any_outside(spec: Tiny, data: Data) -> NDArray:
    x = rows_of(data, 0, 8)
    return (~(((x > -3) & (x < 3)) | (x == -np.inf))).any(axis=0).astype(np.int32)[None]


def expect_largest(spec: Tiny, data: Data) -> NDArray:
    return np.fmax(rows_of(data, 0, 1), np.fmax.reduce(rows_of(data, SECOND, 8), axis=0)[None])


def expect_total(spec: Tiny, data: Data) -> NDArray:
    x = rows_of(data, 0, 8)
    x = x[:4] + x[4:]
    x = x[:2] + x[2:]
    return x[:1] + x[1:]


def expect_across(spec: Tiny, data: Data, kind: str) -> NDArray:
    x = rows_of(data, 0, 1)[0]
    if kind == "max":
        return np.full((1, 32), np.fmax.reduce(x), F)
    while x.size > 1:  # neighbours first
        x = x[0::2] + x[1::2]
    return np.full((1, 32), x[0], F)


def expect_consecutive_rows(spec: Tiny, data: Data) -> NDArray:
    return np.array([[5 * lane + 3 * i for lane in LANES] for i in range(4)], np.int32)


def expect_paged_rows(spec: Tiny, data: Data) -> NDArray:
    def number(key: int) -> int:
        if key >= spec.n:
            return 0
        entry = int(data.w.view(np.uint32)[3 + 2 * (key // 12)])
        return min(entry, 39) * 12 + key % 12

    return np.array([[number(lane + 16 * i) for lane in LANES] for i in range(4)], np.int32)


def expect_copy_rows(spec: Tiny, data: Data) -> NDArray:
    shared = np.zeros((8, 128), np.int16)
    for i in range(4):
        for half in range(2):
            key = 1 + half + 2 * i
            for chunk in range(16):
                to = chunk ^ (0, 4, 1, 8)[i]
                start = 136 * key + 8 * chunk + 8
                shared[2 * i + half, 8 * to : 8 * to + 8] = data.h[start : start + 8] if key < spec.n else 0
    return fragment_of(shared.reshape(-1).view(np.int32), 16)


def fragment_of(words: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """What a warp reads with 16-byte loads, chunk by chunk."""
    return words.reshape(count // 4, 32, 4).transpose(0, 2, 1).reshape(count, 32)


def expect_load_chunks(spec: Tiny, data: Data) -> NDArray:
    out = np.zeros((3, 32, 8), np.int16)
    for c in range(3):
        for lane in LANES:
            if 4 * lane + 64 * c < spec.n:
                out[c, lane] = data.h[16 + 8 * lane + 64 * c :][:8]
    return out.view(np.int32).transpose(0, 2, 1).reshape(12, 32)


def expect_shared_rows(spec: Tiny, data: Data) -> NDArray:
    return expect_spread(spec, data, 3)


def expect_records(spec: Tiny, data: Data) -> NDArray:
    out = np.full((64, 32), np.int32(0x7FFF7FFF), np.int32)
    lanes = np.arange(32)
    for i in range(3):
        out[3 * i : 3 * i + 3] = [100 * i + lanes, -lanes, np.full(32, 7 * i)]
        out[16 + i] = data.f.view(np.int32)[i]
    out[9:12] = 0  # the fourth of three
    out[32] = 0  # the counter is back
    return out


def start(spec: Tiny, seed: int = 0) -> Data:
    data = data_for(seed)
    if spec.name == "records":
        data.w[0] = 0
    if spec.name == "join_numbers":
        totals = data.w[: 64 * 32].view(F).reshape(-1, 32)
        for row in (1, *range(SECOND + 1, SECOND + 6, 2)):
            totals[row] = np.where(np.arange(32) * row % 5 < 2, F(0), np.abs(totals[row]) % F(8))
    if spec.name == "started":
        data.w[: 8 * 32 : 3] = 0
    return data


def expected(spec: Tiny, data: Data) -> NDArray:
    base, *words = spec.name.split(":")
    return globals()[f"expect_{base}"](spec, data, *(int(x) if x.isdigit() else x for x in words))


def check(spec: Tiny, found: NDArray[np.int32], wanted: NDArray) -> None:
    """Equal bits; equal within 4 units of 2^-24 (of 1 under a cap) where exponentials are approximate."""
    if spec.name.startswith("weigh_products"):
        assert np.abs(found.view(F) - wanted).max() <= 2.0**-20 * np.abs(wanted).max()
        return
    if spec.name in EXPONENTIAL:
        got, exact = found.view(F).astype(float), np.asarray(wanted, float)
        # e^x by 2^x of a rounded product: the product errs by 2^-24 |x| log2(e), 2^x by 2 ulp, subtraction by one more.
        size = np.abs(np.log(np.maximum(np.abs(exact), 1e-300))) + 4
        slack = 2.0**-24 * (8 * size * np.abs(exact) if "capped" not in spec.name else 16 * 2.5)
        same = (np.isnan(got) & np.isnan(exact)) | (got == exact)
        assert (same | (np.abs(got - exact) <= slack)).all()
        return
    if wanted.dtype == F:
        floats = found.view(F)
        assert np.array_equal(floats, wanted, equal_nan=True)
    else:
        assert np.array_equal(found, wanted)


@cases
@pytest.mark.parametrize("seed", range(2))
def test_operation(spec: Tiny, seed: int) -> None:
    data = start(spec, seed)
    wanted = expected(spec, data)
    out, _ = run_cpu(spec, data)
    check(spec, results(out, len(wanted)), wanted)
    rest = out.view(np.int32).reshape(-1, 32)[len(wanted) :]
    assert (rest.view(np.int16) == POISON).all()


@given(seed=seeds, name=st.sampled_from(["outside:2", "max_keys:2", "mask:2", "choose", "weigh:3:both"]))
def test_operations_on_other_data(seed: int, name: str) -> None:
    spec = KERNELS[name]
    data = start(spec, seed)
    wanted = expected(spec, data)
    check(spec, results(run_cpu(spec, data)[0], len(wanted)), wanted)


COUNTS: dict[str, dict[str, Any]] = {
    "logits:1": {"fp32_flops": 128, "exponentials": 0},
    "logits:2:capped": {"exponentials": 256},
    "exponentials": {"exponentials": 256, "fp32_flops": 256},
    "add_keys:2": {"fp32_flops": 256},
    "weigh:3:both": {"fp32_flops": 2 * 3 * 16 * 6 * 32, "shared_read_bytes": 128 * (4 * 4 * 3 + 16 * 3)},
    "paged_rows": {
        "global_read_bytes": {"w": 4 * (3 * 32 + 22)}
    },  # a look-up for each key below 70 of each copy
    "weigh_products:2:2": {"mma_m16n8k8": 2 * 4 * 2 * 2, "fp32_flops": 2 * 2 * 16 * 32},
    "copy_rows": {"global_read_bytes": {"h": 5 * 256}, "shared_written_bytes": 2048},
    "load_chunks": {"global_read_bytes": {"h": 16 * (32 + 32 + 18)}},
    "records": {"atomics": 3, "barriers": 6},
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name: str) -> None:
    found = run_cpu(KERNELS[name], start(KERNELS[name]))[1].as_dict()
    assert {key: found[key] for key in COUNTS[name]} == COUNTS[name]


INSTRUCTIONS = {  # on sm_90
    "exponentials": {"MUFU.EX2": 8},
    "max_keys:1": {"SHFL.BFLY": 6},
    "weigh:1:wide": {"LDS.128": 4, "LDS.64": 16, "FFMA ": 64},
    "copy_rows": {"LDGSTS.E.BYPASS.128": 4},
    "choose": {"REDUX.OR": 1},
    "weigh_products:2:2": {"HMMA.1688.F32.TF32": 2 * 4 * 2 * 2, "LDS.128": 8},
    "records": {"ATOMG.E.INC": 1},
}


@cases
def test_compiles(spec: Tiny) -> None:
    pytest.importorskip("numba.cuda")
    from kernels_numba.launch import compile_spec
    from kernels_numba.tile.compile import disassemble, opcodes

    sass = disassemble(compile_spec(row_kernels, spec, (9, 0)))
    found = {text: sass.count(text) for text in INSTRUCTIONS.get(spec.name, {})}
    assert found == INSTRUCTIONS.get(spec.name, {})
    assert not {"LDL", "STL", "DADD", "DMUL", "DFMA"} & set(opcodes(sass))


@pytest.mark.gpu
@cases
@pytest.mark.parametrize("seed", range(2))
def test_bodies_agree(spec: Tiny, seed: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path / "cache"))
    data = start(spec, seed)
    wanted = expected(spec, data)
    check(spec, results(row_kernels.run_gpu(spec, data), len(wanted)), wanted)
