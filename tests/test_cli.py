"""The command line: every command and format, exit codes, what goes where, and how fast it starts."""

import csv
import io
import json
import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel import cli, counts, measurements, units
from costmodel.measurements import Row

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = {"schema", "version", "inputs", "gpu"}


def run(capsys, *words: str, code: int = 0) -> tuple[str, str]:
    try:
        found = cli.main(words)
    except SystemExit as stop:  # argparse
        found = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert found == code, err
    return out, err


def run_json(capsys, *words: str) -> dict:
    out, _ = run(capsys, *words, "--format", "json")
    document = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert set(document) >= ALWAYS
    return document


@pytest.fixture
def measured(tmp_path, monkeypatch) -> Path:
    """A small measurement folder: two lengths, each with two orders, and a peer."""
    rows = []
    times = {1024: {"ours": 74.0, "ours:16x8x8": 90.0}, 4096: {"ours:16x16x16": 420.0, "ours:64x64": 400.0}}
    for n, providers in times.items():
        case = f"B=64;H=768;N={n};L={n};variant=plain"
        for provider, us in {**providers, "torch": 500.0 * n / 1024}.items():
            rows.append(
                Row("fftconv", case, "fp16", provider, us, us, us, 9, 4 * n, 1, 1e-4, "2026-11-29", "abc")
            )
    measurements.append(rows, "h200-sxm", folder=tmp_path)
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    return tmp_path


# Units.


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1024", [1024]),
        ("4K", [4096]),
        ("4k", [4096]),
        ("2M", [2**21]),
        ("1G", [2**30]),
        ("256,1K,3000", [256, 1024, 3000]),
        ("256:2K:x2", [256, 512, 1024, 2048]),
        ("256:1000:x2", [256, 512]),
        ("256:4M:x2", [2**e for e in range(8, 23)]),
        ("1K:4K:+1K", [1024, 2048, 3072, 4096]),
        ("16,256:1K:x4", [16, 256, 1024]),
    ],
)
def test_sizes(text, values):
    assert units.sizes(text) == values


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-4",
        "4.5",
        "1e3",
        "4KB",
        "K",
        "4 K K",
        "1,",
        "256:4K",
        "256:4K:x1",
        "4K:256:x2",
        "1:2:y3",
        "1:1M:+1",
        "٣",
    ],
)
def test_texts_that_are_no_sizes(text):
    with pytest.raises(ValueError, match=r"size|sweep|move|empty|values"):
        units.sizes(text)


@given(st.integers(1, 2**40))
def test_short_sizes_read_back(value):
    assert units.size(units.short(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (73.5, "73.5 us"),
        (1234.5, "1.23 ms"),
        (22082, "22.1 ms"),
        (2.2e6, "2.20 s"),
        (999.96, "1.00 ms"),
        (99.97, "100 us"),
        (0.00096, "0.960 ns"),
        (0.0, "0 us"),
    ],
)
def test_microseconds(value, text):
    assert units.microseconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.26e12, "4.26 TB/s"),
        (234e12, "234 TB/s"),
        (2.25e15, "2.25 PB/s"),
        (9.9964e11, "1 TB/s"),
        (9.5e9, "9.5 GB/s"),
        (12.0, "12 B/s"),
    ],
)
def test_quantities(value, text):
    assert units.quantity(value, "B/s") == text


# predict.


def test_predict_json(capsys):
    d = run_json(capsys, "predict", "fftconv", "--gpu", "h200-sxm", "-B", "64", "-H", "768", "-N", "1K")
    assert d["schema"] == "monarch-numba/predict/1"
    assert (
        d["inputs"] | {"B": 64, "H": 768, "N": 1024, "L": 1024, "dtype": "fp16", "variant": "plain"}
        == d["inputs"]
    )
    assert d["gpu"]["slug"] == "h200-sxm"
    for candidate in (d["best"], *d["candidates"]):
        assert {"plan", "time_us", "time_low_us", "time_high_us", "bound", "margin"} <= set(candidate)
        assert candidate["time_low_us"] < candidate["time_us"] < candidate["time_high_us"]
    assert d["best"] == d["candidates"][0]
    assert 47 < d["floor_us"] < d["best"]["time_us"] < 200


def test_shape_options_have_defaults(capsys):
    d = run_json(capsys, "predict", "fftconv", "--gpu", "h200-sxm")
    assert (d["inputs"]["B"], d["inputs"]["H"], d["inputs"]["N"]) == (64, 768, 1024)


def test_predict_sweep_json(capsys):
    d = run_json(capsys, "predict", "fftconv", "--gpu", "h100-sxm", "-N", "256:1K:x2,4K", "-B", "1,8")
    assert d["inputs"]["N"] == [256, 512, 1024, 4096] and d["inputs"]["B"] == [1, 8]
    assert [(c["inputs"]["N"], c["inputs"]["B"]) for c in d["cases"]] == [
        (n, b) for n in (256, 512, 1024, 4096) for b in (1, 8)
    ]
    assert all(c["best"] == c["candidates"][0] for c in d["cases"])


def test_predict_table_and_notes(capsys):
    out, err = run(capsys, "predict", "fftconv", "--gpu", "h100-sxm", "-N", "4K")
    assert "16x16x16" in out and "Memory floor" in out and "slower" in out
    assert "data sheet only" in err and "data sheet only" not in out


def test_predict_sweep_table(capsys):
    out, _ = run(capsys, "predict", "fftconv", "--gpu", "h200-sxm", "-N", "256:4M:x2")
    lines = out.splitlines()
    assert len(lines) == 3 + 15
    assert lines[1].split()[:1] == ["N"] and lines[-1].split()[0] == "4M"


def test_predict_csv(capsys):
    out, _ = run(capsys, "predict", "fftconv", "--gpu", "h200-sxm", "-N", "256,1K", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {r["N"] for r in rows} == {"256", "1024"}
    best = next(r for r in rows if r["N"] == "1024")
    expected = costmodel.predict(1024, gpu="h200-sxm").best
    assert float(best["time_us"]) == pytest.approx(expected.time_s * 1e6, rel=1e-5)


@pytest.mark.parametrize("lengths", ["1K", "1K,4K"])
def test_predict_markdown(capsys, lengths):
    out, _ = run(capsys, "predict", "fftconv", "--gpu", "h200-sxm", "-N", lengths, "--format", "md")
    table = [line for line in out.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert set(table[1]) <= set("|-: ")


def test_explain_beside_a_table_but_not_inside_json(capsys):
    words = ("predict", "fftconv", "--gpu", "h200-sxm", "-N", "4K", "--explain")
    out, _ = run(capsys, *words)
    assert "Bound by" in out
    out, err = run(capsys, *words, "--format", "json")
    json.loads(out)
    assert "Bound by" in err


def test_the_papers_model(capsys):
    words = ("predict", "fftconv", "--gpu", "a100-sxm-40gb", "-N", "4K", "--model", "paper")
    out, _ = run(capsys, *words, "--explain")
    assert "Equation 2, order 3" in out and "2.34e+14" in out
    d = run_json(capsys, *words)
    assert {c["plan"]: c["kernel"] for c in d["candidates"]} == {
        "16x16x16": True,
        "64x64": False,
        "32x32x2x2": False,
    }
    assert d["inputs"]["model"] == "paper" and d["best"]["plan"] == "16x16x16"
    assert d["best"]["time_us"] == pytest.approx(915, rel=0.01)


def test_causal_defaults_to_half_the_length(capsys):
    d = run_json(capsys, "predict", "fftconv", "--gpu", "h200-sxm", "--variant", "causal")
    assert d["inputs"]["L"] == 512


def test_order_can_be_fixed(capsys):
    d = run_json(capsys, "predict", "fftconv", "--gpu", "h200-sxm", "-N", "4K", "--order", "2")
    assert {c["order"] for c in d["candidates"]} == {2}


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_predict_plot(capsys, tmp_path, ending):
    pytest.importorskip("matplotlib")
    target = tmp_path / "new" / f"p.{ending}"
    _, err = run(capsys, "predict", "fftconv", "--gpu", "h200-sxm", "-N", "1K,4K", "--plot", str(target))
    start = {"svg": b"<?xml", "png": b"\x89PNG"}[ending]
    assert target.read_bytes().startswith(start) and str(target) in err


def test_plot_of_another_kind_is_refused(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    words = ("predict", "fftconv", "--gpu", "h200-sxm", "--plot", str(tmp_path / "p.txt"))
    out, err = run(capsys, *words, code=2)
    assert out == "" and "accepted: a name that ends in .svg" in err


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "fftconv", "--gpu", "h100-sxm", "-N", "32K", "--explain"),
        ("predict", "fftconv", "--gpu", "h200-sxm", "-N", "256:4M:x2"),
        ("measurements", "--gpu", "h200-sxm"),
        ("compare", "--gpu", "h200-sxm"),
        ("gpus",),
    ],
)
def test_tables_fit_a_terminal_of_100_columns(capsys, words):
    out, _ = run(capsys, *words)
    assert [line for line in out.splitlines() if len(line) > 100] == []


# Exit codes.


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("frobnicate",),
        ("predict", "fftconv"),
        ("predict", "conv3d", "--gpu", "h200-sxm"),
        ("predict", "fftconv", "--gpu", "h200-sxm", "-N", "0"),
        ("predict", "fftconv", "--gpu", "h200-sxm", "-N", "1009"),
        ("predict", "fftconv", "--gpu", "h200-sxm", "-L", "4K"),
        ("predict", "fftconv", "--gpu", "h200-sxm", "-N", "1G"),
        ("predict", "linear", "--gpu", "h200-sxm", "--dtype", "fp32"),
        ("predict", "fftconv", "--gpu", "h200-sxm", "-M", "3"),
        ("predict", "linear", "--gpu", "h200-sxm", "-B", "3"),
        ("predict", "linear", "--gpu", "h200-sxm", "--pass", "bprop"),
        ("predict", "decode_attention", "--gpu", "h200-sxm", "-N", "4K"),
        ("predict", "conv2d", "--gpu", "h200-sxm", "--Hq", "4"),
        ("predict", "fftconv", "--gpu", "h200-sxm", "--model", "paper", "--packing", "half"),
        ("compare", "--gpu", "h200-sxm", "--max-regret", "0.5"),
        ("compare", "--gpu", "h200-sxm", "--max-regret", "nan"),
    ],
)
def test_usage_errors_are_2_and_leave_stdout_alone(capsys, words):
    out, err = run(capsys, *words, code=2)
    assert out == "" and err


@pytest.mark.parametrize("command", [("predict", "fftconv"), ("compare",), ("measurements",)])
def test_unknown_gpu_is_3_with_the_command_that_makes_a_file(capsys, command):
    out, err = run(capsys, *command, "--gpu", "h100", code=3)
    assert out == ""
    assert "h100-sxm" in err and "h100-pcie" in err
    assert "python -m costmodel gpus --show h100-pcie > my.toml" in err


def test_the_advice_for_an_unknown_gpu_works(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, err = run(capsys, "predict", "fftconv", "--gpu", "h300", code=3)
    shows, uses = (line.split("costmodel ", 1)[1].split() for line in err.splitlines() if "python -m" in line)
    out, _ = run(capsys, *shows[: shows.index(">")])
    Path(shows[-1]).write_text(out)
    run(capsys, *uses)


def test_show_of_an_unknown_gpu_is_3(capsys):
    run(capsys, "gpus", "--show", "h300", code=3)


def test_wrong_gpu_file_is_2(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(costmodel.gpus.file_text("h200-sxm").replace("4.26e12", "nan"))
    _, err = run(capsys, "predict", "fftconv", "--gpu", str(path), code=2)
    assert "measured.device_copy_bytes_per_s.median: got nan" in err


def test_no_gpu_here_is_4(capsys, monkeypatch):
    module = types.ModuleType("kernels_numba")
    module.device = lambda: types.SimpleNamespace(is_gpu=False, name=None, reason="test")
    monkeypatch.setitem(sys.modules, "kernels_numba", module)
    _, err = run(capsys, "predict", "fftconv", "--gpu", "auto", code=4)
    assert "no GPU here" in err and "--gpu h200-sxm" in err


def test_measure_hands_over_its_options_and_exit_code(capsys, monkeypatch):
    module = types.ModuleType("costmodel.measure")
    asked = []
    module.main = lambda **options: asked.append(options) or 4
    monkeypatch.setitem(sys.modules, "costmodel.measure", module)
    run(capsys, "measure", "--op", "fftconv", "--quick", code=4)
    run(capsys, "measure", "--plan", "32x32x32", "--plan", "16x8x16x16", code=4)
    assert asked == [
        {"op": "fftconv", "quick": True, "plans": []},
        {"op": "fftconv", "quick": False, "plans": ["32x32x32", "16x8x16x16"]},
    ]


def test_measure_knows_the_plans_it_is_asked_for(capsys, monkeypatch):
    import kernels_numba
    from kernels_numba.device import Device

    monkeypatch.setattr(kernels_numba, "device", lambda: Device("cpu", "none for this test"))
    run(capsys, "measure", "--plan", "16x8x16x16", code=4)
    for op in ("filters", "long"):
        run(capsys, "measure", "--op", op, code=4)
    for wrong in ("16x272", "8x16x16x16", "2x2x2x2x2", "16xx16", "big"):
        _, err = run(capsys, "measure", "--plan", wrong, code=2)
        assert wrong in err


def test_every_operation_has_what_measures_it():
    from importlib import import_module

    from costmodel.measure import MODULES

    for name in MODULES.values():
        assert callable(import_module(f"costmodel.{name}").run)


def test_measured_beside_the_default():
    """Plans asked for in every variant of their lengths; else every plan of the default's packing, once a length."""
    from costmodel.measure import Case
    from costmodel.measured_plans import default_of, plans_asked, plans_of
    from kernels_numba.families import default_plan
    from monarch import Plan

    asked = plans_asked(["16x8x16x16"])
    factors = (16, 8, 16, 16)
    whole = [Plan(32768, factors), Plan(65536, factors, packing="half")]
    assert asked == [*whole, Plan(65536, factors, packing="right-angle")]
    for plan in whole:
        for case in (Case(plan.n, plan.n, "plain", "fp16"), Case(plan.n, 99, "causal-gated", "bf16")):
            found = plans_of(case, asked)
            assert found[0] == default_of(case) and plan in found and len(found) <= 2
        assert {p.order for p in plans_of(Case(plan.n, plan.n, "plain", "fp16"))} == {3, 4}
        assert len(plans_of(Case(plan.n, plan.n, "plain", "bf16"))) == 1
    assert plans_of(Case(1024, 1024, "plain", "fp16"), asked) == [default_plan(1024)]
    without = plans_asked(["48x48"])  # no default has 2304 points; complex packing is not measured
    assert [(plan.n, plan.packing) for plan in without] == [(2304, "pair"), (4608, "half")]
    assert plans_of(Case(2304, 2304, "plain", "fp16"), without) == without[:1]


# gpus, measurements, compare.


def test_gpus(capsys):
    out, _ = run(capsys, "gpus")
    assert all(slug in out for slug in costmodel.gpus.slugs()) and "data sheet" in out
    d = run_json(capsys, "gpus")
    by_slug = {g["slug"]: g for g in d["gpus"]}
    assert by_slug["h200-sxm"]["memory_bandwidth_bytes_per_s"] == 4.8e12
    assert by_slug["h100-sxm"]["data_sheet_only"] is True


def test_gpus_show_prints_the_file(capsys):
    out, _ = run(capsys, "gpus", "--show", "h200-sxm")
    assert out == costmodel.gpus.file_text("h200-sxm")


def test_measurements_csv_is_the_file(capsys, measured):
    out, _ = run(capsys, "measurements", "--gpu", "h200-sxm", "--format", "csv")
    assert out == (measured / "h200-sxm" / "fftconv.csv").read_text()


@pytest.mark.parametrize("form", ["table", "md"])
def test_measurements_for_people(capsys, measured, form):
    out, _ = run(capsys, "measurements", "--gpu", "h200-sxm", "--format", form)
    assert "torch" in out and "median" in out and "ours: 32x32" in out


def test_measurements_json(capsys, measured):
    d = run_json(capsys, "measurements", "--gpu", "h200-sxm", "--op", "fftconv")
    assert len(d["rows"]) == 6 and d["rows"][0]["median_us"] == 74.0


def test_no_measurements_is_a_header_and_a_note(capsys, measured):
    out, err = run(capsys, "measurements", "--gpu", "h100-sxm", "--format", "csv")
    assert out == measurements.HEADER + "\n"
    assert "nothing was measured on h100-sxm" in err


def test_compare_json(capsys, measured):
    d = run_json(capsys, "compare", "--gpu", "h200-sxm")
    op = d["operations"]["fftconv"]
    assert op["cases"] == 4
    assert 0 < op["median_abs_rel_error"] <= op["p90_abs_rel_error"] < 1
    assert set(op["decisions"]) == {"order", "splits", "tile", "thresholds"}
    # N=1024 is chosen rightly; at 4096 the model takes order 3, measured here at 420 instead of 400 us.
    assert op["decisions"]["order"]["cases"] == 2
    assert op["decisions"]["order"]["regret_p95"] == pytest.approx(1 + 0.95 * 0.05, rel=1e-9)
    assert op["decisions"]["tile"] == {"cases": 0, "regret_p95": None}
    row = next(r for r in op["rows"] if r["provider"] == "ours")
    assert row["relative_error"] == pytest.approx(row["predicted_us"] / row["measured_us"] - 1, rel=1e-9)


def test_compare_table_sets_both_times_beside_each_other(capsys, measured):
    out, _ = run(capsys, "compare", "--gpu", "h200-sxm")
    assert "measured" in out and "model" in out and "32x32" in out
    assert "4 cases: median absolute error" in out
    assert "Decision order (which order): 2 cases, p95 regret 1.048" in out


def test_compare_fails_its_limit(capsys, measured):
    run(capsys, "compare", "--gpu", "h200-sxm", "--max-regret", "1.05")
    _, err = run(capsys, "compare", "--gpu", "h200-sxm", "--max-regret", "1.04", code=1)
    assert "regret 1.048 is above the limit 1.040" in err


def test_compare_without_measurements_says_that_nothing_was_judged(capsys, measured):
    out, err = run(capsys, "compare", "--gpu", "h100-sxm", "--max-regret", "1.1")
    assert "No fftconv of ours was measured" in out and "had nothing to judge" in err
    out, err = run(capsys, "compare", "--gpu", "h100-sxm", "--format", "csv")
    assert len(out.splitlines()) == 1 and "nothing of ours was measured" in err


# Help, start-up, pipes.


@pytest.mark.parametrize(
    "command", ["predict", "thresholds", "gpus", "measure", "measurements", "compare", "report", "demo"]
)
def test_help_of_every_command(capsys, command):
    out, _ = run(capsys, command, "--help")
    assert len(out.split()) > 20
    assert all(len(line) <= 120 for line in out.splitlines())


def test_top_help_has_examples_that_work(capsys, monkeypatch):
    from costmodel import report

    monkeypatch.setattr(report, "main", lambda gpu, output: 0)  # takes seconds; tests/test_report.py runs it
    out, _ = run(capsys, "--help")
    examples = [
        line.split("   ")[0].split()[1:] for line in out.splitlines() if line.startswith("  costmodel ")
    ]
    assert len(examples) == 7
    for words in examples:
        run(capsys, *words)


# The kernel of any factors says itself how it runs a plan, so `kernels_numba` is loaded, but no compiler.
LAZY = ("sympy", "matplotlib", "rich", "numba", "reference", "scipy", "torch", "hypothesis")
PROBE = f"""
import sys
from costmodel.cli import main
code = main(["predict", "fftconv", "--gpu", "h200-sxm", "-N", "1024", "--format", "json"])
found = [name for name in {LAZY!r} if name in sys.modules]
print(found, file=sys.stderr)
sys.exit(code or bool(found))
"""


def test_predict_starts_cold_without_anything_heavy():
    begin = os.times()
    result = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    end = os.times()
    taken = end.children_user + end.children_system - begin.children_user - begin.children_system
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["best"]["plan"]
    assert taken < 1.5  # seconds of processor time, which other processes do not lengthen; 0.3 s is usual


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m costmodel predict fftconv --gpu h200-sxm -N 256:4M:x2 --format csv"
    process = subprocess.Popen(command.split(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    error = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert "Traceback" not in error


# demo.


@pytest.fixture
def no_gpu(monkeypatch):
    import costmodel.demo

    monkeypatch.setattr(costmodel.demo, "local_device_name", lambda: None)


def test_demo_beside_measurements(capsys, measured, no_gpu, tmp_path):
    pytest.importorskip("rich")
    pytest.importorskip("matplotlib")
    out, _ = run(capsys, "demo", "--out", str(tmp_path / "pictures"))
    assert "No GPU on this machine" in out
    for slug in ("h200-sxm", "h100-sxm", "a100-sxm-40gb"):
        assert slug in out
    lines = [line.split() for line in out.splitlines()]
    row = next(words for words in lines if words and words[0] == "4K")
    assert row[2] == "yes"
    row = next(words for words in lines if words and words[0] == "4K" and words[-1].endswith("x"))
    # 420 us measured over 400 of the fastest, and 2000 us of torch over 420.
    assert row[-5:] == ["64x64", "1.05", "2.00", "ms", "4.8x"]
    assert out.rstrip().endswith(".") and "nine predictions in ten" in " ".join(out.split())
    assert all(len(line.rstrip()) <= 100 for line in out.splitlines())
    assert (tmp_path / "pictures" / "fftconv.svg").read_text().startswith("<?xml")
    assert (tmp_path / "pictures" / "fftconv.png").read_bytes().startswith(b"\x89PNG")


def test_demo_without_measurements_says_so(capsys, no_gpu, tmp_path, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(measurements, "FOLDER", tmp_path / "none")
    monkeypatch.setattr(counts, "_registry", [])
    out, _ = run(capsys, "demo", "--out", str(tmp_path / "pictures"))
    assert "nothing measured on it" in out
    assert "no kernel of ours was measured yet" in " ".join(out.split())


def test_demo_with_a_gpu_measures_now(capsys, measured, tmp_path, monkeypatch):
    pytest.importorskip("rich")
    import costmodel.demo

    rows = [replace(r, median_us=r.p80_us * 0.9, p20_us=1.0) for r in measurements.read("h200-sxm")]
    module = types.ModuleType("costmodel.measure")
    module.live = lambda quick: rows
    monkeypatch.setitem(sys.modules, "costmodel.measure", module)
    monkeypatch.setattr(costmodel.demo, "local_device_name", lambda: "NVIDIA H200")
    out, _ = run(capsys, "demo", "--out", str(tmp_path / "pictures"))
    assert "This machine has a NVIDIA H200: timing its kernels now." in out
    assert "measured here and now" in out
    assert measurements.read("h200-sxm")[0].median_us == 74.0  # a demo writes no measurement
