"""The closed-form counts of decode attention against what its CPU body counts, exactly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attentions import Case
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from costmodel import attention_counts, attention_report, decode_attention, measurements, tables
from costmodel.cli import main
from costmodel.measurements import Row
from kernels_numba import DecodeAttention
from kernels_numba.decode_spec import make_spec
from kernels_numba.splits import choose_splits, predicted_us


def counted(case: Case, warps: int, cluster: int = 1) -> dict[str, int]:
    p = case.data()
    attend = DecodeAttention(p.q.shape, p.k.shape, case.dtype, splits=case.splits, **case.settings)
    lengths = [case.room] * case.batch if case.lengths else None
    counters = attend.run_cpu(p.q, p.k, p.v, seqlens=lengths, warps=warps, cluster=cluster)[1]
    found = dict(vars(counters))
    reads, writes = found.pop("global_read_bytes"), found.pop("global_written_bytes")
    found |= {f"read_{name}": count for name, count in reads.items()}
    found |= {f"written_{name}": count for name, count in writes.items()}
    return {name: count for name, count in found.items() if count}


def expected(case: Case, warps: int, cluster: int = 1) -> dict[str, int]:
    return attention_counts.totals(
        case.size,
        case.group,
        case.tokens,
        batch=case.batch,
        kv_heads=case.kv,
        length=case.room,
        splits=case.splits,
        warps=warps,
        capped=case.softcap is not None,
        lengths=case.lengths,
        cluster=cluster,
    )


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    tokens=st.integers(1, 8),
    group=st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 16]),
    size=st.sampled_from([64, 72, 96, 104, 128, 136, 200, 256]),
    room=st.integers(1, 60),
    splits=st.integers(1, 5),
    warps=st.integers(1, 4),
    softcap=st.sampled_from([None, 5.0]),
    lengths=st.booleans(),
    cluster=st.sampled_from([1, 2]),
)
@example(tokens=1, group=1, size=128, room=60, splits=3, warps=4, softcap=None, lengths=False, cluster=2)
@example(tokens=8, group=16, size=64, room=50, splits=2, warps=2, softcap=5.0, lengths=True, cluster=1)
@example(tokens=3, group=2, size=192, room=33, splits=1, warps=3, softcap=None, lengths=False, cluster=1)
@example(tokens=1, group=1, size=128, room=200, splits=1, warps=1, softcap=None, lengths=False, cluster=1)
def test_counts_equal_the_counters(warps: int, cluster: int, **shape: Any) -> None:
    case = Case(batch=1, kv=1, kind="narrow", **(shape | {"splits": cluster} if cluster > 1 else shape))
    assert counted(case, warps, cluster) == expected(case, warps, cluster)


def test_several_sequences_and_heads() -> None:
    case = Case(batch=2, kv=3, group=6, room=40, splits=2)
    assert counted(case, 4) == expected(case, 4)
    assert counted(case._replace(dtype="bf16"), 4) == expected(case, 4)


@pytest.mark.parametrize("tokens", [1, 2, 8])
@pytest.mark.parametrize("group", [1, 4, 5, 16])
@pytest.mark.parametrize("size", [64, 72, 128, 192, 256])
def test_the_model_knows_the_kernel_s_shape(tokens: int, group: int, size: int) -> None:
    spec, shape = make_spec(size, group, tokens, "fp16"), attention_counts.Shape(size, group, tokens)
    for name in ("rows", "row_tiles", "unit_rows", "query_tiles", "products", "padded"):
        assert getattr(spec, name) == getattr(shape, name), name
    assert spec.value_size == shape.size
    assert spec.shared_bytes == decode_attention.shared_bytes(shape)


@given(
    batch=st.integers(1, 64),
    kv=st.sampled_from([1, 2, 8, 32]),
    group=st.sampled_from([1, 4, 8, 16]),
    size=st.sampled_from([64, 128, 256]),
    length=st.integers(1, 40000),
)
@example(batch=8, kv=32, group=1, size=128, length=4096)
def test_kernel_and_model_choose_the_same_splits(
    batch: int, kv: int, group: int, size: int, length: int
) -> None:
    spec = make_spec(size, group, 1, "fp16")
    gpu = decode_attention.load("h200-sxm")
    model = decode_attention.candidates(
        batch=batch, heads=kv * group, kv_heads=kv, head_size=size, length=length, gpu=gpu
    )
    per_sm = decode_attention.blocks_per_sm(attention_counts.Shape(size, group), gpu)
    units = batch * kv * spec.row_tiles
    splits = choose_splits(units, length, spec, 132, per_sm)
    best = model[0]
    assert splits == best.splits
    time = predicted_us(units, -(-length // 16), splits, spec, 132, per_sm)
    assert np.isclose(time + decode_attention.FIGURES.launch_us, best.time_us, rtol=1e-6)


# ---- predictions beside measurements -----------------------------------------------------------------------------
def row(case: str, provider: str, us: float, note: str) -> Row:
    return Row(
        "decode_attention", case, "fp16", provider, us, us, us, 9, 10**6, 1, 1e-4, "2026-11-30", "x", note
    )


def test_regret_of_split_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Times are compared whatever the variant and layout; split counts compete where these are one."""
    case = "B=1;Hq=32;Hkv=32;D=128;L=4096;variant=async"
    best = decode_attention.best_splits(
        batch=1, heads=32, kv_heads=32, head_size=128, length=4096, gpu="h200-sxm"
    )
    rows = [
        row(case, "ours", 22.0, f"splits={best}; 2 input sets"),
        row(case, "ours:s16", 20.0, "splits=16; 2 input sets"),
        row(case, "ours:heads-first", 1.0, f"splits={best}; 2 input sets"),
        row(case, "sdpa-cudnn", 1.0, "layout=keys-first; 2 input sets"),
        row(case.replace("async", "sync"), "ours", 1.0, f"splits={best}; 2 input sets"),
        row(case.replace("L=4096", "L=512"), "ours", 7.0, "splits=4; 9 input sets"),
    ]
    measurements.append(rows, "h200-sxm", folder=tmp_path)
    found = decode_attention.compare("h200-sxm", folder=tmp_path)
    assert len(found.pairs) == 5
    (judged,) = found.decisions
    assert (judged.chosen, judged.best, judged.regret) == (str(best), "16", 1.1)
    assert found.summary()["decisions"]["splits"] == {"cases": 1, "regret_p95": 1.1}
    assert "p95 regret 1.100" in tables.verdict(found)
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    assert main(["compare", "--gpu", "h200-sxm", "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)["operations"]["decode_attention"]
    assert printed["cases"] == 5 and len(printed["rows"]) == 5
    assert main(["compare", "--gpu", "h200-sxm", "--max-regret", "1.05"]) == 1
    assert main(["compare", "--gpu", "h200-sxm", "--max-regret", "1.2"]) == 0
    assert main(["measurements", "--gpu", "h200-sxm"]) == 0
    assert "decode_attention measured on h200-sxm" in capsys.readouterr().out


def test_nothing_measured(tmp_path: Path) -> None:
    assert not decode_attention.compare("h200-sxm", folder=tmp_path).pairs


@pytest.mark.parametrize("change", [{"batch": 0}, {"heads": 3, "kv_heads": 2}, {"length": 0}])
def test_bad_shapes(change: dict[str, int]) -> None:
    case: dict[str, Any] = {
        "batch": 1,
        "heads": 4,
        "kv_heads": 2,
        "head_size": 64,
        "length": 9,
        "gpu": "h200-sxm",
    }
    with pytest.raises(ValueError, match=r"^\w+: got .*accepted"):
        decode_attention.candidates(**case | change)


def test_times_have_sense() -> None:
    """More keys take longer; a faster memory less; the margin is to the next best."""
    case: dict[str, Any] = {"batch": 8, "heads": 32, "kv_heads": 8, "head_size": 128}
    times = [
        decode_attention.candidates(length=n, gpu="h200-sxm", **case)[0].time_us for n in (512, 2048, 8192)
    ]
    assert times == sorted(times)
    slower = decode_attention.candidates(length=8192, gpu="h100-pcie", **case)[0]
    assert slower.time_us > 1.5 * times[-1]
    found = decode_attention.candidates(length=8192, gpu="h200-sxm", **case)
    assert (
        np.isclose(found[1].time_us / found[0].time_us - 1, found[0].margin)
        and found[1].margin == found[0].margin
    )
    floor = 2 * 8 * 8 * 8192 * 128 * 2 / 4.8e12 * 1e6
    assert floor < found[0].time_us < 1.5 * floor


@pytest.mark.parametrize("form", ["table", "md", "csv", "json"])
def test_predict_command(form: str, capsys: Any) -> None:
    words = [
        "predict",
        "decode_attention",
        "--gpu",
        "h200-sxm",
        "--Hq",
        "32",
        "--Hkv",
        "8",
        "-L",
        "8K",
        "--format",
        form,
    ]
    assert main([*words, "-B", "8"]) == 0
    text = capsys.readouterr().out
    best = decode_attention.candidates(
        batch=8, heads=32, kv_heads=8, head_size=128, length=8192, gpu="h200-sxm"
    )[0]
    if form == "json":
        found = json.loads(text)
        assert found["best"]["splits"] == best.splits and found["best"]["time_us"] == best.time_us
        assert found["best"]["bound"] == "device memory" and found["floor_us"] < best.time_us
        assert {"schema", "inputs", "gpu", "version"} <= set(found)
    else:
        assert (f"splits={best.splits}" if form == "csv" else f"{best.time_us:.1f}") in text
    assert main([*words, "-B", "1,8,64"]) == 0
    several = capsys.readouterr().out
    assert len(json.loads(several)["cases"]) == 3 if form == "json" else several.count("\n") >= 4
    assert (
        main(
            [
                "predict",
                "decode_attention",
                "--gpu",
                "h200-sxm",
                "-B",
                "1",
                "-L",
                "64",
                "--Hq",
                "3",
                "--Hkv",
                "2",
            ]
        )
        == 2
    )


def test_bounds_of_times() -> None:
    gpu, shape = decode_attention.load("h200-sxm"), attention_counts.Shape(128, 1)
    sizes = {"batch": 1, "kv_heads": 32}
    assert decode_attention.bound_of(shape, length=256, splits=1, gpu=gpu, **sizes) == "launching"
    assert decode_attention.bound_of(shape, length=32768, splits=1, gpu=gpu, **sizes) == "one SM"
    assert decode_attention.bound_of(shape, length=32768, splits=4, gpu=gpu, **sizes) == "memory"


def test_the_measured_part_of_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def case(batch: int, length: int, variant: str = "async") -> str:
        return f"B={batch};Hq=32;Hkv=32;D=128;L={length};variant={variant}"

    rows = [
        row(case(8, 4096), "ours", 122.0, "splits=1; 1 input set"),
        row(case(8, 4096), "ours:s2", 126.0, "splits=2; 1 input set"),
        row(case(8, 4096), "sdpa-flash", 200.0, "layout=keys-first"),
        row(case(8, 4096), "sdpa-cudnn", 125.0, "layout=keys-first"),
        row(case(8, 4096, "sync"), "ours", 123.0, "splits=1; 1 input set"),
        row(case(8, 4096, "fallback-0"), "ours", 120.0, "splits=1; 1 input set"),
        row(case(8, 4096, "fallback-5"), "ours", 126.0, "splits=1; 1 input set"),
        *(row(case(b, 1024), "ours", 8.0 + 2 * b, "splits=4; 9 input sets") for b in range(1, 5)),
        row(case(1, 1024), "ours:host-call", 8.0, "host time"),
        row(case(8, 4096), "ours:phi0", 122.0, "splits=1; phi=0; bounds=-10,10; fallback=0.00%; 1 input set"),
        row(case(8, 4096), "ours:phi6", 123.0, "splits=1; phi=6; bounds=-10,10; fallback=3.52%; 1 input set"),
    ]
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    assert attention_report.main([]) == 2 and "nothing of decode_attention" in capsys.readouterr().err
    measurements.append(rows, "h200-sxm", folder=tmp_path)
    assert attention_report.main([]) == 0
    text = capsys.readouterr().out
    assert "| 8 | 32 / 32 | 4096 | fp16 | 122.0 | - | 200.0 | 125.0 | 0.98 | 4.40 |" in text
    assert "| 8 | 4096 | 122.0 | 123.0 | 1.008 |" in text
    assert "| B=8, L=4096, every key | - | 1.050 |" in text
    assert "| 6 | (-10, 10) | 3.52 % | 1.00e-04 | 123.0 |" in text
    assert "at which sync is faster: 5 % (B=8, L=4096, every key)." in text
    assert "the largest step up is 0.86 (B=3 to 4), the largest down 1.67 (B=1 to 2)" in text
    assert "p95 regret 1.000" in text and "8.0 us (ours:host-call)" in text
    document = tmp_path / "attention.md"
    document.write_text(f"before\n{attention_report.BEGIN}\nold\n{attention_report.END}\nafter\n")
    monkeypatch.setattr(attention_report, "DOCUMENT", document)
    assert attention_report.main(["--write"]) == 0
    assert document.read_text() == f"before\n{attention_report.BEGIN}\n{text}{attention_report.END}\nafter\n"
    assert attention_report.main(["--gpu", "none"]) == 3
