"""The measured parts of docs/linear.md: what a table says is what was measured, and the document is current."""

from pathlib import Path

import pytest

from costmodel import linear_report, measure_decode, measurements
from costmodel.measurements import Row
from costmodel.models import model

SLUG = "h200-sxm"


def row(m: int, pair: tuple[int, int], provider: str, us: float) -> Row:
    case = measurements.format_case("linear", {"M": m, "N": pair[0], "K": pair[1]})
    return Row("linear", case, "fp16", provider, us, us, us, 9, 1, 1, 1e-4, "2026-11-30", "abc", "full")


def step(batch: int, length: int, provider: str, us: float) -> Row:
    case = measurements.format_case(
        measure_decode.OP, {"B": batch, "L": length, "model": linear_report.MODEL}
    )
    return Row(measure_decode.OP, case, "fp16", provider, us, us, us, 9, 1, 1, 1e-4, "2026-11-30", "abc")


QKV = model(linear_report.MODEL).linear["qkv"]
ROWS = [
    row(64, QKV, "cublas", 30.0),
    row(64, QKV, "ours:full", 25.0),
    row(64, QKV, "ours:flat", 40.0),
    row(64, QKV, "ours:full-overlapped", 24.0),
    row(8, (4097, 4095), "cublas", 30.0),
    row(8, (4097, 4095), "ours:flat", 20.0),
]


def test_products_beside_the_library() -> None:
    text = "\n".join(linear_report.measured(ROWS, SLUG))
    assert "| 64 | 30.0 | 25.0 full | 0.83 | 24.0 full | 0.80 |" in text
    assert "|  | [4097, 4095] | 1.50 |" in text and "in one run (commit " in text
    reached = "\n".join(linear_report.targets(ROWS))
    assert "| qkv | - (-) | 1.25 (1.20) | - | - | - | - |" in reached


def test_what_dispatch_picks_beside_the_fastest() -> None:
    """Overlapped launches are no provider of their own; what was timed without the library says nothing."""
    assert linear_report.dispatched(ROWS) == ["Not measured yet."]
    more = [
        row(64, QKV, "dispatch", 25.5),
        row(8, (4097, 4095), "dispatch", 22.0),
        row(8, QKV, "dispatch", 9.0),
    ]
    lines = linear_report.dispatched([*ROWS, *more])
    assert lines[:2] == ["2 cases: at most 3% behind in 1, 10.0% at worst,", "2.0% or less in 95 of 100."]
    assert lines[3] == "|  | [N, K] | M = 8 | M = 64 |"
    assert lines[5:] == ["| llama2-7b qkv | [12288, 4096] | - | 1.02 |", "|  | [4097, 4095] | 1.10 | - |"]


def test_decode_step_by_technique() -> None:
    """A column for each combination, in a fixed order; what was not measured is a dash."""
    names = [v.name for v in measure_decode.variants()]
    assert names[:2] == ["torch", "ours:none"] and names[-2:] == ["ours:flat+choice+async", "ours:overlapped"]
    assert len(set(names)) == 10
    rows = [step(1, 1024, names[-1], 109.38), step(1, 1024, "torch", 131.82), step(2, 512, "torch", 7.0)]
    lines = linear_report.decode(rows)
    assert lines[2:] == [
        "| 1 | 1024 | 131.8 |" + " - |" * 8 + " 109.4 |",
        "| 2 | 512 | 7.0 |" + " - |" * 9,
    ]


def test_committed_decode_steps_are_whole() -> None:
    """Every variant for every batch and length; errors within what the roundings allow."""
    rows = [r for r in measurements.read(SLUG, op=measure_decode.OP) if r.case_values["model"] == "llama2-7b"]
    found = {(r.case_values["B"], r.case_values["L"], r.provider) for r in rows}
    wanted = {
        (batch, length, v.name)
        for batch in measure_decode.BATCHES
        for length in measure_decode.LENGTHS
        for v in measure_decode.variants()
    }
    assert found == wanted
    for r in rows:
        assert r.rel_err <= measure_decode.ERROR_BOUND
        case = r.case_values
        assert r.bytes_min == measure_decode.bytes_min(model("llama2-7b"), int(case["B"]), int(case["L"]))
        assert r.median_us * 1e-6 > r.bytes_min / 4.8e12  # the data sheet's bandwidth


def test_document_is_current() -> None:
    """After new measurements: python -m costmodel.linear_report --write."""
    text = linear_report.DOCUMENT.read_text(encoding="utf-8")
    for name, lines in linear_report.sections(SLUG).items():
        assert "\n".join([f"<!-- {name}: begin -->", *lines, f"<!-- {name}: end -->"]) in text


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    document = tmp_path / "linear.md"
    names = list(linear_report.sections(SLUG))
    document.write_text("".join(f"a\n<!-- {n}: begin -->\nold\n<!-- {n}: end -->\nz\n" for n in names))
    monkeypatch.setattr(linear_report, "DOCUMENT", document)
    assert linear_report.main(["--write"]) == 0
    text = document.read_text()
    assert "old" not in text and text.count("a\n<!-- ") == text.count("-->\nz\n") == len(names)
    assert linear_report.main(["--gpu", "none"]) == 3
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    assert linear_report.main([]) == 2
    assert "nothing of linear was measured on h200-sxm" in capsys.readouterr().err
