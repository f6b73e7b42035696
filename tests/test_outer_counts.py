"""The closed-form counts of long convolutions' outer stages against what the CPU body counts, exactly."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from test_kernel_counts import flat

import costmodel
import costmodel.fftconv
from costmodel import (
    long_counts,
    long_float_counts,
    long_report,
    long_traffic,
    measure_long,
    outer_counts,
    outer_float_counts,
)
from costmodel.errors import MeasurementError
from costmodel.long_traffic import Moved
from costmodel.measurements import Row
from kernels_numba import (
    FFTConv,
    device,
    long_groups,
    long_plans,
    outer_float,
    outer_float_spec,
    outer_spec,
    outer_stage,
    prepare_filter,
)
from kernels_numba.long_launch import outer_grid
from kernels_numba.tile.cpu_vocabularies import tile
from kernels_numba.tile.machine import Buffer, Machine
from monarch import Plan, format_factors

N2 = 64
SHAPES = [(32, 1, False, True), (64, 3, True, False), (32, 2, True, True)]
"""Columns of a strip, batch, gated, half a signal."""
CASES = [(a, b, *shape, False) for a, b in ((16, 1), (32, 1), (16, 16)) for shape in SHAPES]
CASES += [(16, 32, *SHAPES[2], False), (16, 16, *SHAPES[1], True), (32, 32, 64, 1, False, True, True)]


@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
@pytest.mark.parametrize(("a", "b", "strip", "batch", "gated", "half", "copied"), CASES)
def test_counts_equal_the_counters(
    a: int, b: int, strip: int, batch: int, gated: bool, half: bool, copied: bool, inverse: bool
) -> None:
    n, channels = a * b * N2, 1
    length = n // 2 - 5 if half else n
    gates = {"postgate" if inverse else "pregate": gated, "scaled": inverse and gated}
    halves = 1 if length % 2 else 8
    spec = outer_spec.Spec(
        a,
        b,
        N2,
        "fp16",
        inverse,
        strip=strip,
        halves=halves,
        guarded=True,
        half_in=half,
        half_out=half,
        warps=4,
        copied=copied,
        **gates,
    )
    pairs = -(-batch // 2)
    x = np.zeros(batch * channels * length, np.int16)
    z = np.zeros(2 * pairs * channels * n, np.int16)
    (words,) = outer_stage.operands(*outer_stage.operand_key(spec))
    constants, scales = Buffer("constants", words), Buffer("scales", np.ones(channels, np.float32))
    scalars, none = (pairs, batch, channels, channels, length), Buffer("none", np.empty(0, np.int16))
    machine = Machine()
    kernel = outer_stage.build(tile(machine, "fp16", "outer"), spec)
    arguments = (
        [Buffer("workspace", z), Buffer("postgate", x), none, constants, scales, Buffer("y", x), none]
        if inverse
        else [Buffer("u", x), Buffer("pregate", x), constants, Buffer("workspace", z)]
    )
    grid = outer_grid(spec, channels, pairs)
    counted = flat(machine.run(kernel, grid, spec.warps, spec.shared_bytes // 4, [*arguments, *scalars]))
    assert counted.pop("blocks") == grid and counted.pop("warps") == grid * spec.warps
    expected = outer_counts.totals(
        a,
        b,
        N2,
        strip=strip,
        warps=spec.warps,
        inverse=inverse,
        batch=batch,
        channels=channels,
        length=length,
        rows_in=spec.rows_in,
        half_out=half and inverse,
        gated=gated,
        scaled=inverse and gated,
        copied=copied,
    )
    assert {name: counted.pop(name, 0) for name in expected} == expected
    assert not any(counted.values()), "the kernel counted something that has no closed form"


@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
@pytest.mark.parametrize(
    ("a", "b", "strip", "io", "batch", "gated", "part"),
    [
        (16, 1, 32, "fp32", 3, True, 1.0),
        (32, 1, 32, "fp16", 2, False, 0.5),
        (16, 16, 32, "fp32", 3, True, 0.4),
        (16, 32, 16, "bf16", 1, True, 1.0),
        (32, 32, 16, "fp32", 2, False, 0.5),
    ],
)
def test_counts_in_fp32_equal_the_counters(
    a: int, b: int, strip: int, io: str, batch: int, gated: bool, part: float, inverse: bool
) -> None:
    n, channels, warps = a * b * N2, 1, 4
    length, pairs = int(part * n), -(-batch // 2)
    live = -(-length // (b * N2))
    gates = {"postgate" if inverse else "pregate": gated}
    spec = outer_float_spec.Spec(a, b, N2, io, inverse, live, strip, warps, 1, guarded=True, **gates)
    x = np.zeros(batch * channels * length, np.float32 if io == "fp32" else np.int16)
    z = np.zeros(2 * pairs * channels * n, np.float32)
    found = outer_float.operands(*outer_float.operand_key(spec))
    tables = [Buffer(name, words) for name, words in zip(("constants", "tables"), found, strict=True)]
    scales, gate = Buffer("scales", np.ones(channels, np.float32)), Buffer(next(iter(gates)), x)
    none = Buffer("none", np.empty(0, x.dtype))
    machine = Machine()
    kernel = outer_float.build(tile(machine, "fp32", "float"), spec)
    arguments = (
        [Buffer("workspace", z), gate, none, *tables, scales, Buffer("y", x), none]
        if inverse
        else [Buffer("u", x), gate, *tables, Buffer("workspace", z)]
    )
    grid, scalars = outer_grid(spec, channels, pairs), (pairs, batch, channels, channels, length)
    counted = flat(machine.run(kernel, grid, warps, spec.shared_bytes // 4, [*arguments, *scalars]))
    assert counted.pop("blocks") == grid and counted.pop("warps") == grid * warps
    expected = outer_float_counts.totals(
        *(a, b, N2),
        inverse=inverse,
        live=live,
        strip=strip,
        batch=batch,
        channels=channels,
        length=length,
        item_bytes=4 if io == "fp32" else 2,
        gated=gated,
    )
    assert {name: counted.pop(name, 0) for name in expected} == expected
    assert not any(counted.values()), "the kernel counted something that has no closed form"


def test_a_long_convolution_moves_what_is_said() -> None:
    """Device memory is crossed by the sequences once, and by the intermediate twice each way."""
    plan = Plan(4096, (16, 16, 16))
    spectrum = prepare_filter(np.eye(2, 9), length=2048, mode="causal", plan=plan, on_chip=2048)
    convolve = FFTConv(spectrum, batch=3)
    _, counters = convolve.run_cpu(np.zeros(convolve.shape, np.float16))
    sequences, planes = 2 * prod(convolve.shape), 2 * 2 * plan.n * 2 * 2
    assert counters.global_read_bytes["u"] == sequences == counters.global_written_bytes["y"]
    assert counters.global_read_bytes["workspace"] == 2 * planes == counters.global_written_bytes["workspace"]
    assert counters.global_read_bytes["spectrum"] >= 4 * 2 * plan.n


def test_the_model_knows_what_the_kernels_choose() -> None:
    assert long_counts.SPLITS == outer_spec.SPLITS and long_counts.BLOCKS == outer_spec.TUNED
    assert long_counts.GROUP_BYTES == long_groups.GROUP_BYTES and long_counts.LONGEST == long_plans.LONGEST
    for n, plan in long_plans.default_long_plans().items():
        rows, row_plan = long_counts.split(plan)
        made = long_plans.split_of(plan)
        assert (rows, row_plan.factors) == (made.rows, made.inner.factors)
        assert plan.factors in long_counts.factor_lists(n, plan.order)
    assert long_float_counts.BLOCKS == outer_float_spec.TUNED
    for n, plan in long_plans.default_long_plans(shortest=32768, products="fp32").items():
        found = long_float_counts.split(plan)
        made = long_plans.split_of(plan, products="fp32")
        assert found is not None and (found[0], found[1]) == (made.rows, made.inner)
        assert plan.factors in long_float_counts.factor_lists(n, plan.order)


def test_predicted_times_of_long_convolutions() -> None:
    """Three kernels, one after the other, above the bytes that they must move."""
    found = costmodel.predict(2**20, gpu="h200-sxm", batch=8, channels=48)
    best = found.best_with_kernel
    assert len(best.counts.stages) == 3 and best.counts.launches == 9  # in three groups
    moved = sum(stage.device_bytes for stage in best.counts.stages)
    assert moved == 12 * 8 * 48 * 2**20 + 4 * 48 * 2**20 == best.counts.device_bytes
    assert moved / 4.3e12 < best.time_s < 2 * moved / 4.3e12
    assert "3 kernels, one after the other" in costmodel.fftconv.explain(
        costmodel.predict(2**20, gpu="h200-sxm", batch=8, channels=48, order=5)
    )


def test_predicted_times_in_fp32() -> None:
    """Twice the bytes of the intermediate, twice those of the sequences and of the spectrum."""
    found = costmodel.predict(2**20, gpu="h200-sxm", batch=8, channels=48, dtype="fp32")
    best = found.best_with_kernel
    assert len(best.counts.stages) == 3 and best.counts.arithmetic == "fp32"
    moved = sum(stage.device_bytes for stage in best.counts.stages)
    assert moved == 24 * 8 * 48 * 2**20 + 8 * 48 * 2**20 == best.counts.device_bytes
    assert moved / 4.3e12 < best.time_s < 2.5 * moved / 4.3e12
    assert costmodel.predict(2**16, gpu="h200-sxm", dtype="fp32").best_with_kernel.counts.stages


def test_measured_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line for every case, with the figures of its rows."""
    rows = []
    for case in measure_long.cases():
        note = "plan=16x16x16x16x16; tile=4096; extra=2097152 bytes; sparsity=0.5; rows=128"
        if not case.zeros and not case.taps:
            products = {"products": "fp32", "shortest": 32768} if case.dtype == "fp32" else {}
            plan = long_plans.default_long_plans(**products)[case.n]
            note = note.replace("16x16x16x16x16", format_factors(plan.factors))
        for provider, dtype, us in (
            ("ours", case.dtype, 1000.0),
            ("ours:x", case.dtype, 2500.0),
            ("torch", "fp32", 8000.0),
        ):
            rows.append(
                Row("fftconv", case.name, dtype, provider, us, us, us, 9, 1, 1, 1e-3, "2026-11-30", "c", note)
            )
    monkeypatch.setattr(long_report.measurements, "read", lambda *_, **__: rows)
    moved = [
        Moved(rows[0].case, provider, n, 10**9, 2 * 10**9, "2026-11-30", "c", "ncu")
        for provider, n in (("ours", 9), ("torch", 8), ("ours:groups=32MiB", 72))
    ]
    monkeypatch.setattr(long_report.long_traffic, "read", lambda *_: moved)
    text = long_report.tables()
    assert sum(line.count("| 8.0 | 1.0e-3 | 2 | 2 |") for line in text) == 12
    assert sum(line.endswith("| 1.0e-3 | 2 | 2 | 3.00 | 3.00 |") for line in text) == 1
    assert sum(line.endswith("| 8 | 8.0 | 1.0e-3 | 2 |") for line in text) == len(measure_long.FLOATS)
    assert sum(line.endswith("| 1 | 2.5 | 2.50 | 8 | 1.0e-3 | 2 | 2 | 2 |") for line in text) == 7
    assert sum(line.startswith("| 50.0% | 128 of 256 | 1 | 1.00 |") for line in text) == 5
    for where in ("within rows", "low pass"):
        assert sum(line.startswith(f"| 50.0%, {where} | 128 of 256 | 1 | 1.00 |") for line in text) == 1
    assert long_report.traffic()[2:] == ["| 32 MiB | 72 | 1.00 | 2.00 |", "| 256 MiB | 9 | 1.00 | 2.00 |"]


# ---- what the hardware counted ----------------------------------------------------------------------------------
ERFINV = '"{}","void erfinv_kernel","32","1"'


def test_counters_are_added_over_a_call() -> None:
    """A marker begins every call; the line of units is none."""
    head = '"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"\n"","","byte","byte"'
    body = [ERFINV.format(0), '"1","outer","1,000","20"', '"2","rows","5","6"', ERFINV.format(3)]
    text = "\n".join(["==PROF== noise", head, *body, '"4","copy","7","8"'])
    assert long_traffic.parse_profile(text) == [(2, 1005, 26), (1, 7, 8)]
    with pytest.raises(MeasurementError, match="came before any call began"):
        long_traffic.parse_profile("\n".join([head, '"4","copy","7","8"']))
    with pytest.raises(MeasurementError, match="copy has no dram__bytes_read"):
        long_traffic.parse_profile("\n".join([head, ERFINV.format(0), '"4","copy","n/a","8"']))


def test_the_file_of_counters() -> None:
    """Read as it was written, and of calls whose bytes are those that are counted, to 5 %."""
    rows = long_traffic.read("h200-sxm")
    assert rows and long_traffic.parse(long_traffic.to_csv(rows), name="x") == rows
    for wrong in ("case,provider", long_traffic.HEADER + "\na,b,c,1,2,d,e,f"):
        with pytest.raises(MeasurementError, match=r"^x.*"):
            long_traffic.parse(wrong, name="x")
    plain = [m for m in rows if m.provider == "ours" and m.case.endswith("variant=plain")]
    assert plain
    for moved in plain:
        values = dict(part.split("=") for part in moved.case.split(";"))
        n, batch, channels = (int(values[name]) for name in ("N", "B", "H"))
        counted = 12 * n * batch * channels + 4 * n * channels
        assert moved.bytes == pytest.approx(counted, rel=0.05)
    assert long_traffic.main([]) == 0


def test_counting_needs_a_gpu(capsys: pytest.CaptureFixture) -> None:
    if device().is_gpu:
        pytest.skip("here is a GPU")
    assert long_traffic.main(["--measure"]) == 4 and "no GPU to measure" in capsys.readouterr().err
