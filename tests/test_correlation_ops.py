"""The operations that sum a filter's gradient against plain arithmetic written down again; and the two bodies alike."""

from typing import Any

import numpy as np
import pytest
import tiny_correlation
from hardware import gather, halves, slots_a, slots_b, slots_c
from numpy.typing import NDArray
from tiny_correlation import CONSTANTS, COUNT, KERNELS, SIZE, SUMS, Data, Tiny, data_for, run_cpu

from kernels_numba.tile.layout import HALF_TYPES

LANES = range(32)
cases = pytest.mark.parametrize("spec", KERNELS, ids=lambda spec: f"{spec.name}-{spec.dtype}")


def fragment(words: NDArray[np.int32], start: int, count: int) -> NDArray[np.int32]:
    return words[start : start + 32 * count].reshape(count, 32)


def single(a: Any, b: Any, c: Any) -> np.float32:
    """a b + c in float32, rounded once (a is a half, so a b is exact in float64; the sum's own loss is too small)."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


def product(data: Data, dtype: str) -> NDArray[np.float32]:
    """[4 COUNT, 32]: what the real product gives, by row groups; as float32 sums of products of halves."""
    a = gather(halves(fragment(data.w, 512, 4), dtype), slots_a(1, 1))
    b = gather(halves(fragment(data.w, 1024, 2 * COUNT), dtype), slots_b(1, COUNT))
    with np.errstate(invalid="ignore", over="ignore"):
        matrix = a.astype(np.float32) @ b.astype(np.float32)
    values = np.empty((2 * COUNT, 32, 2), np.float32)
    values[tuple(np.moveaxis(slots_c(1, COUNT), -1, 0))] = matrix
    return values.transpose(0, 2, 1).reshape(4 * COUNT, 32)


def summed(data: Data, dtype: str, turns: int, before: NDArray[np.float32]) -> NDArray[np.float32]:
    """[COUNT, 32, 4] quads: two points of a register, real and imaginary part of each."""
    z, w = halves(fragment(data.w, 0, 2 * COUNT), dtype), product(data, dtype)
    out = before.reshape(COUNT, 32, 4).copy()
    for _ in range(turns):
        for i in range(COUNT):
            for lane in LANES:
                for e in range(2):
                    zr, zi = z[i, lane, e], z[i + COUNT, lane, e]
                    wr, wi = w[2 * i + e, lane], w[2 * (i + COUNT) + e, lane]
                    re, im = out[i, lane, 2 * e : 2 * e + 2]
                    out[i, lane, 2 * e] = single(zi, wi, single(zr, wr, re))
                    out[i, lane, 2 * e + 1] = single(-zi, wr, single(zr, wi, im))
    return out.reshape(-1)


def expected(spec: Tiny, data: Data, n: int) -> NDArray[np.float32]:
    out = data.f.copy()
    size = 128 * COUNT
    zero = np.zeros(size, np.float32)
    if spec.name in ("correlate", "correlate_shared"):
        out[:size] = summed(data, spec.dtype, n, zero)
    elif spec.name == "correlate_global":
        out[SUMS : SUMS + size] = summed(data, spec.dtype, n, out[SUMS : SUMS + size])
    elif spec.name == "hermitian":
        points, numbers = data.f.astype(np.float64).reshape(-1, 2), data.w
        for i, constant in enumerate(CONSTANTS):
            for lane in range(30):
                k = lane + constant
                a, b, c, e = (complex(*points[n + numbers[4 * k + j]]) for j in range(4))
                one, two = a + b.conjugate(), c + e.conjugate()
                w, before = complex(*points[k]), complex(*points[lane + 32 * i])
                total = before + (one + two) + 1j * w * (one - two)
                out[2 * (lane + 32 * i) :][:2] = total.real, total.imag
    elif spec.name == "gather_shared":
        shared = data.w[:512].view(np.float32)
        for i, lane in np.ndindex(2, 32):
            place = data.w[600 + lane + 40 * i]
            out[2 * lane + i] = shared[n + place] if lane < 29 and place >= 0 else 0
    elif spec.name in ("correlate_points", "add_turned"):
        points = data.f.reshape(-1, 2)
        for i in range(96):
            re, im = points[300 + i]
            (zr, zi), (wr, wi) = points[i], points[100 + i]
            if spec.name == "add_turned":  # (a + i b) x is conj(a - i b) x
                (zr, zi), (wr, wi) = (data.f[n], -data.f[n + 1]), points[i]
            for _ in range(n if spec.name == "correlate_points" else 1):
                re, im = single(zi, wi, single(zr, wr, re)), single(-zi, wr, single(zr, wi, im))
            out[2 * i : 2 * i + 2] = re, im
    elif spec.name == "plus":
        for i in range(2):
            out[64 * i : 64 * i + 64] = data.f[64 * i : 64 * i + 64] + data.f[400 + 64 * i : 464 + 64 * i]
    else:
        for lane in range(30):
            places = [data.w[lane], data.w[lane + 40]]
            one, two = (data.f[n + p] if p >= 0 else np.float32(0) for p in places)
            out[lane] = (one + two) * np.float32(0.25)
    return out


def assert_same(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> None:
    """Equal bits; any NaN equals any other."""
    same = (got.view(np.int32) == wanted.view(np.int32)) | (np.isnan(got) & np.isnan(wanted))
    assert same.all(), np.flatnonzero(~same)


@cases
@pytest.mark.parametrize("seed", range(2))
def test_cpu_body(spec: Tiny, seed: int) -> None:
    data = data_for(spec, seed)
    got, counters = run_cpu(spec, data, 2)
    wanted = expected(spec, data, 2)
    if spec.name == "hermitian":
        assert np.isclose(got, wanted, rtol=1e-6, atol=1e-5).all()
        return
    if spec.dtype == "fp32":
        assert_same(got, wanted)
        return
    # The order of a product's sum is the processor's own, so w is right to its last bits only.
    same = np.isclose(got, wanted, rtol=1e-5, atol=1e-4, equal_nan=True)
    assert same.all() and not np.isnan(got).all()
    assert counters.fp32_flops == 2 * 16 * COUNT * 32
    assert counters.bank_conflicts == 0


@cases
def test_nothing_beyond_is_touched(spec: Tiny) -> None:
    data = data_for(spec, 3)
    got, _ = run_cpu(spec, data, 2)
    wanted = expected(spec, data, 2)
    assert ((got == data.f) | (wanted != data.f)).all() and got.size == SIZE


@pytest.mark.parametrize("spec", [s for s in KERNELS if s.dtype != "bf16"], ids=lambda spec: spec.name)
def test_compiles_to_few_instructions(spec: Tiny) -> None:
    """Four fused multiply-adds a point, 16 bytes an access, no spills and nothing in double precision."""
    pytest.importorskip("numba.cuda")
    from kernels_numba.launch import compile_spec
    from kernels_numba.tile.compile import disassemble, opcodes

    sass = disassemble(compile_spec(tiny_correlation.family(spec), spec, (9, 0)))
    assert not {"LDL", "STL", "CALL", "DADD", "DMUL", "DFMA"} & set(opcodes(sass))
    if spec.dtype == "fp16":
        assert opcodes(sass)["FFMA"] % (8 * COUNT) == 0
        assert sass.count("STG.E.128") % COUNT == 0 and sass.count("STG.E.128") > 0


@pytest.mark.gpu
@cases
@pytest.mark.parametrize("seed", range(2))
def test_bodies_agree(spec: Tiny, seed: int, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit where no tensor core adds up, else to its last bits."""
    monkeypatch.setenv("MONARCH_NUMBA_CACHE", str(tmp_path / "cache"))
    data = data_for(spec, seed)
    got, wanted = tiny_correlation.run_gpu(spec, data, 2), run_cpu(spec, data, 2)[0]
    if spec.dtype == "fp32":
        assert_same(got, wanted)
    else:
        assert np.isclose(got, wanted, rtol=1e-5, atol=1e-4, equal_nan=True).all()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_products_of_two_sequences_go_to_the_same_sums(dtype: str) -> None:
    """First those of the first, then those of the second, each by itself."""
    from kernels_numba.tile.cpu_vocabularies import tile
    from kernels_numba.tile.machine import Machine

    ops, rng = tile(Machine(), dtype), np.random.default_rng(0)
    given = rng.standard_normal((2, 2 * COUNT, 32, 2)).astype(HALF_TYPES[dtype])
    z = given.reshape(4 * COUNT, 64).view(np.int32)
    w, sums = rng.standard_normal((2, 8 * COUNT, 32)).astype(np.float32)
    sums = sums[: 4 * COUNT]
    # [parts, sequences, registers, ...]
    own = z.reshape(2, 2, COUNT, 32).swapaxes(0, 1), w.reshape(2, 2, 2 * COUNT, 32).swapaxes(0, 1)
    expected = sums
    for one, other in zip(*own, strict=True):
        expected = ops.correlate(COUNT)(expected, one.reshape(-1, 32), other.reshape(-1, 32))
    assert (ops.correlate(COUNT, 2)(sums, z, w) == expected).all()
