"""Files of training measurements: what readers accept and refuse. (What trains is in test_torch.py.)"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from costmodel import measurements, training, training_report
from costmodel.errors import MeasurementError
from costmodel.training import OperatorRow

ROW = OperatorRow(
    "hyena", 64, 768, 4096, "fp16", "fused", 5e3, 4.9e3, 5.1e3, 15e3, 14.9e3, 15.1e3, 10, 2**30, 2**31, 500, 1e-3,
    "2026-11-30", "abc", 'a "note", with a comma',
)  # fmt: skip


def test_rows_go_through_a_file(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, convolution="torch", largest_batch=0, step_us=5e4, step_p80_us=6e4)]
    path = tmp_path / "h200-sxm" / "training.csv"
    path.parent.mkdir()
    path.write_text(training.to_csv(rows))
    assert training.operators("h200-sxm", folder=tmp_path) == rows
    assert training.HEADER.startswith("layer,B,D,L,dtype,convolution,forward_us,") and ROW.backward_us == 1e4
    assert training.operators("l4", folder=tmp_path) == []
    assert measurements.read("h200-sxm", folder=tmp_path) == []  # another kind of file


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layer": "mamba"}, "layer: got 'mamba'; accepted: fftconv, "),
        ({"dtype": "fp8"}, "dtype: got 'fp8'"),
        ({"convolution": "ours"}, "convolution: got 'ours'"),
        ({"B": 0}, "B: got 0"),
        ({"step_bytes": 0}, "step_bytes: got 0"),
        ({"forward_us": float("nan")}, "forward_us: got 4900.0, nan"),
        ({"step_p80_us": 1.0}, "step_us: got"),
        ({"forward_us": 5050.0, "step_us": 5e3, "step_p20_us": 4e3}, "step_us: got 5000.0, less than"),
        ({"largest_batch": -1}, "largest_batch: got -1"),
        ({"rel_diff": float("inf")}, "rel_diff: got inf"),
    ],
)
def test_rows_that_are_refused(changes: dict[str, object], text: str) -> None:
    with pytest.raises(MeasurementError) as caught:
        training.to_csv([replace(ROW, **changes)])  # type: ignore[arg-type]
    assert text in str(caught.value)


def test_files_that_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "h200-sxm"
    folder.mkdir()
    good = training.to_csv([ROW])
    for text, message in (
        ("", "header: got 'an empty file'"),
        (good.replace("layer,B", "layer,b"), "header: got 'layer,b"),
        (good + "hyena,64\n", "line 3: 2 columns; accepted: 20"),
        (good.replace(",768,", ",many,"), "line 2: invalid literal"),
    ):
        (folder / "training.csv").write_text(text)
        with pytest.raises(MeasurementError, match=message):
            training.operators("h200-sxm", folder=tmp_path)
    curve = folder / "hyena_training.csv"
    curve.write_text("convolution,seed,step,loss\nfused,0,0,5.5\nfused,0,2,5\ntorch,0,0,5.5\n")
    rows = training.losses("h200-sxm", folder=tmp_path)
    assert training.curves(rows) == {("fused", 0): ([0, 2], [5.5, 5.0]), ("torch", 0): ([0], [5.5])}
    curve.write_text("convolution,seed,step,loss\nfused,0,0,nan\n")
    with pytest.raises(MeasurementError, match="line 2: got Loss"):
        training.losses("h200-sxm", folder=tmp_path)
    assert training.losses("l4", folder=tmp_path) == [] and training.runs("l4", folder=tmp_path) == {}
    (folder / "hyena_training.json").write_text(
        json.dumps({"settings": {}, "where": "", "torch": "", "commit": ""})
    )
    with pytest.raises(MeasurementError, match="runs is missing"):
        training.runs("h200-sxm", folder=tmp_path)


def test_committed_measurements_are_read() -> None:
    """Whatever was measured is complete: both convolutions of every case."""
    rows = training.operators("h200-sxm")
    cases = {(row.layer, row.B, row.L, row.dtype) for row in rows}
    assert len(rows) == 2 * len(cases)
    curves = training.curves(training.losses("h200-sxm"))
    assert {seed for _, seed in curves} == {seed for name, seed in curves if name == "fused"}


def runs(gap: float = 0.01) -> dict[str, object]:
    found = [
        {"convolution": name, "seed": seed, "first_loss": 5.5, "last_loss": 2.0, "tokens_per_s": speed,
         "held_out_loss": 2.0 + 0.1 * seed + (gap if name == "fused" else 0)}
        for name, speed in (("fused", 3e6), ("torch", 1e6))
        for seed in (0, 1)
    ]  # fmt: skip
    settings = {"layers": 4, "width": 384, "length": 4096, "batch": 32, "steps": 200, "dtype": "bf16"}
    return {"settings": settings, "where": "a GPU", "torch": "2", "commit": "abc", "runs": found}


def test_report() -> None:
    rows = [replace(ROW, layer=layer) for layer in training.LAYERS]
    rows += [replace(row, convolution="torch", forward_us=3e4, step_us=6e4, forward_p20_us=3e4, step_p20_us=6e4,
                     forward_p80_us=3e4, step_p80_us=6e4, step_bytes=2**33) for row in rows]  # fmt: skip
    text = training_report.report(rows, runs())
    assert '| Hyena | 64 | 4096 | 15 | 60 | 4.00x | 2048 | 8192 | 4.00x | 500 | 500 | abc: a "note",' in text
    assert (
        "| convolution | 64 | 4096 | 5 | 10 | 2.00 | 30 (6.0x) | 30 (3.0x) | 1024 | 1024 (1.0x) | 2048 |"
        in text
    )
    assert "commit abc: 3000 thousand tokens/s by\n`monarch.torch`, 1000 by `torch.fft` (3.00x)" in text
    alone = runs()
    alone["runs"] = [run for run in alone["runs"] if run["seed"] == 0]  # type: ignore[attr-defined]
    assert "differ by 0.010. A second seed was not run." in training_report.report(rows, alone)
    assert "differ by at most 0.010, those of two seeds\nby 0.100" in text
    assert training_report.seed_noise(runs(0.3)) == (pytest.approx(0.3), pytest.approx(0.1))
    with pytest.raises(ValueError, match="nothing of training was measured"):
        training_report.report(rows[:2], {})


def test_report_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [ROW, replace(ROW, convolution="torch")]
    monkeypatch.setattr(training, "operators", lambda slug: rows)
    monkeypatch.setattr(training, "runs", lambda slug: runs())
    assert training_report.main([]) == 0
    text = capsys.readouterr().out
    document = tmp_path / "training.md"
    begin, end = training_report.BEGIN, training_report.END
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    monkeypatch.setattr(training_report, "DOCUMENT", document)
    assert training_report.main(["--write"]) == 0
    assert document.read_text() == f"before\n{begin}\n{text}{end}\nafter\n"
    assert training_report.main(["--gpu", "none"]) == 3
    rows.clear()
    assert training_report.main([]) == 2


def test_the_document_is_what_was_measured() -> None:
    rows = training.operators("h200-sxm")
    document = training_report.DOCUMENT.read_text(encoding="utf-8")
    shown = document.partition(training_report.BEGIN)[2].partition(training_report.END)[0].strip()
    assert shown == (training_report.report(rows, training.runs("h200-sxm")) if rows else "")
