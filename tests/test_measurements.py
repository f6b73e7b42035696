"""Measurement files, and predictions beside them: contract, refusals, regret arithmetic."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from costmodel import compare, gpus, measure_decode, measurements, speed_report, summary_report
from costmodel.compare import Comparison, Pair
from costmodel.errors import MeasurementError
from costmodel.measurements import HEADER, Row
from monarch import Plan

CASE = "B=64;H=768;N=1024;L=1024;variant=plain"
ROW = Row(
    "fftconv", CASE, "fp16", "ours", 74.0, 73.5, 74.9, 40, 204_472_320, 10**9, 7.6e-4, "2026-11-29", "abc", ""
)


def row(**changes) -> Row:
    return replace(ROW, **changes)


def test_header_is_the_contract():
    assert HEADER == (
        "op,case,dtype,provider,median_us,p20_us,p80_us,samples,bytes_min,flops,rel_err,date,commit,note"
    )
    assert measurements.to_csv([]).splitlines() == [HEADER]


# Cases.


def test_a_case_reads_and_writes():
    values = {"B": 64, "H": 768, "N": 1024, "L": 1024, "variant": "plain"}
    assert measurements.parse_case("fftconv", CASE) == values
    assert measurements.format_case("fftconv", dict(reversed(values.items()))) == CASE
    conv = "S=128;Cin=96;Cout=96;n=32;k=7;pass=fprop"
    assert measurements.format_case("conv2d", measurements.parse_case("conv2d", conv)) == conv


@pytest.mark.parametrize(
    "case",
    [
        "H=768;B=64;N=1024;L=1024;variant=plain",
        "B=64;H=768;N=1024;L=1024",
        CASE + ";K=3",
        CASE.replace("64", "-64"),
        CASE.replace("64", "64.0"),
        CASE.replace("64", ""),
        CASE.replace("plain", ""),
        "",
    ],
)
def test_other_cases_are_refused(case):
    with pytest.raises(MeasurementError, match="accepted"):
        measurements.parse_case("fftconv", case)


def test_case_keys_must_be_complete():
    with pytest.raises(MeasurementError, match=r"missing \['H', 'N', 'L', 'variant'\], not known \['Z'\]"):
        measurements.format_case("fftconv", {"B": 1, "Z": 2})
    with pytest.raises(MeasurementError, match="op: got 'fft'"):
        measurements.format_case("fft", {})


# Rows.


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"median_us": math.nan}, "median_us: got nan"),
        ({"p80_us": math.inf}, "p80_us: got inf"),
        ({"p20_us": 0.0}, "p20_us: got 0.0"),
        ({"p20_us": 80.0}, "p20 <= median <= p80"),
        ({"samples": 0}, "samples: got 0"),
        ({"bytes_min": 0}, "bytes_min: got 0"),
        ({"flops": -1}, "flops: got -1"),
        ({"rel_err": math.nan}, "rel_err: got nan"),
        ({"rel_err": -1e-3}, "rel_err: got -0.001"),
        ({"dtype": "fp8"}, "dtype: got 'fp8'"),
        ({"case": "N=1024"}, "case: got 'N=1024'"),
        ({"date": "yesterday"}, "date: got 'yesterday'"),
    ],
)
def test_rows_that_are_refused(tmp_path, changes, text):
    with pytest.raises(MeasurementError) as caught:
        measurements.append([row(**changes)], "h200-sxm", folder=tmp_path)
    assert text in str(caught.value)
    assert not list(tmp_path.rglob("*"))


def test_a_wrong_result_is_not_written_and_nothing_beside_it_is(tmp_path):
    bound = 1e-3
    with pytest.raises(MeasurementError, match=r"rel_err 0\.00101 exceeds its bound 0\.001"):
        measurements.append(
            [row(), row(provider="torch", rel_err=1.01e-3)],
            "h200-sxm",
            bounds=[bound, bound],
            folder=tmp_path,
        )
    assert not list(tmp_path.rglob("*.csv"))
    measurements.append([row(rel_err=bound)], "h200-sxm", bounds=[bound], folder=tmp_path)
    with pytest.raises(MeasurementError, match="got 1 for 2 rows"):
        measurements.append([row(), row(provider="torch")], "h200-sxm", bounds=[bound], folder=tmp_path)


def test_appending_keeps_one_header_and_the_latest_row(tmp_path):
    measurements.append(
        [row(), row(provider="torch", median_us=515.0, p80_us=520.0)], "h200-sxm", folder=tmp_path
    )
    (path,) = measurements.append(
        [row(median_us=73.9), row(dtype="bf16", note='a "note", with a comma')], "h200-sxm", folder=tmp_path
    )
    text = path.read_text()
    assert text.count("op,case") == 1 and text.splitlines()[0] == HEADER
    assert [(r.provider, r.dtype, r.median_us) for r in measurements.read_file(path)] == [
        ("ours", "fp16", 73.9),
        ("torch", "fp16", 515.0),
        ("ours", "bf16", 74.0),
    ]
    assert measurements.read_file(path)[2].note == 'a "note", with a comma'
    assert [p.name for p in path.parent.iterdir()] == ["fftconv.csv"]


def test_nothing_measured_is_an_empty_list(tmp_path):
    assert measurements.read("h200-sxm", folder=tmp_path) == []


@given(st.floats(0.01, 1e7), st.floats(0, 5e-3), st.integers(1, 10**15))
def test_a_row_survives_the_file(median, error, nbytes):
    before = row(median_us=median, p20_us=median, p80_us=median, rel_err=error, bytes_min=nbytes)
    (after,) = measurements._parse(measurements.to_csv([before]), name="x")
    assert after.bytes_min == nbytes
    assert after.median_us == pytest.approx(median, rel=5e-6)
    assert after.rel_err == pytest.approx(error, rel=5e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty file"),
        ("op,case\n", "header: got 'op,case'"),
        (HEADER + "\n" + HEADER + "\n", "line 2"),
        (HEADER + "\nfftconv," + CASE + "\n", "line 2: 2 columns; accepted: 14"),
    ],
)
def test_broken_files_name_the_line(tmp_path, text, message):
    path = tmp_path / "fftconv.csv"
    path.write_text(text)
    with pytest.raises(MeasurementError) as caught:
        measurements.read_file(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert str(caught.value).endswith("measure again")  # the mend


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("rel_err", "0.5", "rel_err: got 0.5; no right result of fp16 has more than 0.006. Delete the row"),
        ("median_us", "fast", "median_us: got 'fast'; accepted: a number"),
        ("samples", "1.5", "samples: got '1.5'; accepted: a whole number"),
        ("dtype", "fp8", "dtype: got 'fp8'; accepted: fp16, bf16, fp32"),
    ],
)
def test_wrong_cells_name_the_line_and_the_column(tmp_path, column, value, message):
    path = tmp_path / "fftconv.csv"
    header, line = measurements.to_csv([row()]).splitlines()
    cells = line.split(",")
    cells[header.split(",").index(column)] = value
    path.write_text("\n".join([header, line, ",".join(cells)]) + "\n")
    with pytest.raises(MeasurementError) as caught:
        measurements.read_file(path)
    assert f"{path}, line 3: " in str(caught.value) and message in str(caught.value)


def test_a_row_that_is_there_twice(tmp_path):
    path = tmp_path / "fftconv.csv"
    path.write_text(measurements.to_csv([row(), row(dtype="bf16"), row(median_us=74.5)]))
    with pytest.raises(MeasurementError, match=r"line 4: .* in fp16 stands in line 2 already; delete one"):
        measurements.read_file(path)


def test_no_operation_promises_more_than_the_loosest_bound():
    """Bounds of every operation, of the largest that kernels take, with gates."""
    for dtype in ("fp16", "bf16"):
        bounds = [reference.fftconv_bound(6, dtype, gates=2), reference.conv2d_bound(dtype)]
        bounds += [reference.filter_gradient_bound(3, dtype, gates=2)]
        bounds += [reference.decode_attention_bound(dtype, tf32=True)]
        assert max(bounds) < measurements.LOOSEST_BOUND[dtype]
    assert reference.fft32_bound(2**24, gates=2) < measurements.LOOSEST_BOUND["fp32"]
    assert measure_decode.ERROR_BOUND < measurements.LOOSEST_BOUND["fp16"]


def committed_files():
    return sorted(measurements.FOLDER.glob("*/*.csv"))


def test_committed_files_are_legal_and_of_known_gpus():
    for path in committed_files():
        assert path.parent.name in gpus.slugs()
        rows = measurements.read_file(path)
        assert rows and {r.op for r in rows} == {path.stem}
        keys = [(r.case, r.dtype, r.provider) for r in rows]
        assert len(keys) == len(set(keys))


# Percentiles and regret.


def test_percentile():
    assert compare.percentile([3, 1, 2], 50) == 2
    assert compare.percentile([0, 10], 95) == pytest.approx(9.5, rel=1e-12)
    assert compare.percentile([7], 5) == 7
    with pytest.raises(ValueError, match="values: got none"):
        compare.percentile([], 50)


def pair(factors, measured_us, predicted_us, *, case=CASE) -> Pair:
    n = math.prod(factors)
    return Pair(
        row(case=case, median_us=measured_us, p20_us=measured_us, p80_us=measured_us),
        Plan(n=n, factors=factors),
        predicted_us,
        predicted_us * 0.9,
        predicted_us * 1.1,
        "device memory",
    )


def test_regret_of_a_wrong_and_a_right_order():
    wrong = [pair((32, 32), 100.0, 90.0), pair((16, 8, 8), 80.0, 95.0)]
    (found,) = compare.decide(wrong)
    assert (found.kind, found.chosen, found.best) == ("order", "2", "3")
    assert found.regret == pytest.approx(1.25, rel=1e-12)
    right = [pair((32, 32), 100.0, 96.0), pair((16, 8, 8), 80.0, 95.0)]
    assert compare.decide(right)[0].regret == 1.0


def test_order_is_judged_by_the_best_plan_of_each():
    members = [pair((64, 16), 70.0, 99.0), pair((32, 32), 100.0, 90.0), pair((16, 8, 8), 80.0, 95.0)]
    by_kind = {d.kind: d for d in compare.decide(members)}
    assert by_kind["order"].regret == 1.0  # order 2 was chosen, and its best plan is the fastest of all
    assert by_kind["tile"].chosen == "32x32" and by_kind["tile"].best == "64x16"
    assert by_kind["tile"].regret == pytest.approx(100 / 70, rel=1e-12)


def test_one_measured_choice_decides_nothing():
    assert compare.decide([pair((32, 32), 100.0, 90.0)]) == []
    other = pair((16, 16), 20.0, 19.0, case=CASE.replace("1024", "256"))
    assert compare.decide([pair((32, 32), 100.0, 90.0), other]) == []


def test_summary_figures():
    pairs = (pair((32, 32), 100.0, 90.0), pair((16, 8, 8), 80.0, 100.0))
    found = Comparison("fftconv", gpus.load("h200-sxm"), pairs, tuple(compare.decide(pairs)))
    s = found.summary()
    assert s["cases"] == 2
    assert s["median_abs_rel_error"] == pytest.approx((0.1 + 0.25) / 2, rel=1e-12)
    assert s["p90_abs_rel_error"] == pytest.approx(0.1 + 0.9 * 0.15, rel=1e-12)
    assert s["inside_interval"] == 0.0  # 100 is not within 81 .. 99, nor 80 within 90 .. 110
    assert s["decisions"]["order"] == {"cases": 1, "regret_p95": pytest.approx(1.25, rel=1e-12)}
    assert s["decisions"]["splits"] == {"cases": 0, "regret_p95": None}
    assert found.worst_regret_p95() == pytest.approx(1.25, rel=1e-12)


def test_empty_comparison_has_no_figures(tmp_path):
    s = compare.compare("h200-sxm", folder=tmp_path).summary()
    assert s["cases"] == 0 and s["median_abs_rel_error"] is None
    assert set(s["decisions"]) == {"order", "splits", "tile", "thresholds"}


@pytest.mark.parametrize(
    ("provider", "note", "factors"),
    [
        ("ours", "", (32, 32)),
        ("ours", "plan=64x16; 3 input sets", (64, 16)),
        ("ours:16x64", "plan=64x16", (16, 64)),
        ("ours:host-call", "", None),
    ],
)
def test_the_plan_of_a_row(provider, note, factors):
    found = compare.plan_of(row(provider=provider, note=note))
    assert (found.factors if found else None) == factors


def test_a_causal_rows_plan_knows_its_signal():
    found = compare.plan_of(row(case="B=64;H=768;N=1024;L=512;variant=causal"))
    assert (found.n, found.signal, found.wanted) == (1024, 512, 512)


def test_compare_reads_the_files_and_predicts_each_row(tmp_path):
    rows = [
        row(),
        row(provider="ours:16x8x8", median_us=100.0, p20_us=99.0, p80_us=101.0),
        row(provider="ours:host-call"),
        row(provider="torch", median_us=515.0, p80_us=520.0),
        row(case=CASE.replace("plain", "backward")),
    ]
    measurements.append(rows, "h200-sxm", folder=tmp_path)
    found = compare.compare("h200-sxm", folder=tmp_path)
    assert [p.row.provider for p in found.pairs] == ["ours", "ours:16x8x8"]
    assert found.skipped == 2
    first = found.pairs[0]
    assert first.low_us < first.predicted_us < first.high_us
    assert 30 < first.predicted_us < 200  # microseconds, not milliseconds
    assert [d.kind for d in found.decisions] == ["order"]


@pytest.mark.parametrize("table", speed_report.TABLES, ids=lambda table: table.name)
def test_tables_of_documents_are_those_of_the_measurements(table: speed_report.Table):
    old, new = table.replaced()
    assert old == new, "python -m costmodel.speed_report --write"


def test_a_stale_table_is_found_and_written(tmp_path, monkeypatch, capsys):
    table = speed_report.Table("page.md", "numbers", lambda old: [*old, "| 3 |"])
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- numbers: begin -->\n| 1 |\n<!-- numbers: end -->\nafter\n")
    monkeypatch.setattr(speed_report, "ROOT", tmp_path)
    monkeypatch.setattr(speed_report, "TABLES", (table,))
    assert speed_report.main([]) == 1 and "not as measured" in capsys.readouterr().err
    assert speed_report.main(["--write"]) == 0
    assert page.read_text() == "before\n<!-- numbers: begin -->\n| 1 |\n| 3 |\n<!-- numbers: end -->\nafter\n"
    page.write_text("nothing here")
    with pytest.raises(ValueError, match=r"page.md: no place for a table between <!-- numbers: begin -->"):
        table.replaced()


def test_the_first_table_takes_the_best_of_each_side(tmp_path, monkeypatch):
    """Other types, times of the host and cases that are missing have no part."""
    op, case, words = next(entry for entry in summary_report.CASES if entry[0] == "linear")
    base = row(op=op, case=case)
    rows = [
        replace(base, provider=provider, dtype=dtype, median_us=us, p20_us=us, p80_us=us)
        for provider, dtype, us in (
            ("ours:flat", "fp16", 20.0),
            ("ours:flat-overlapped", "fp16", 16.0),
            ("ours:flat", "bf16", 1.0),
            ("ours:flat-b48", "fp16", 2.0),
            ("cublas", "fp16", 24.0),
            ("torch:host-elementwise", "fp16", 3.0),
        )
    ]
    measurements.append(rows, "h200-sxm", folder=tmp_path)
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    assert summary_report.lines("h200-sxm")[2:] == [f"| {words} | 16.0 | 24.0 (cuBLAS) | 1.50 |"]
