"""Of every operation: explanations with numbers, what moves a time most, conclusions, sweeps and pictures."""

import json
import re
from typing import Any

import numpy as np
import pytest

from costmodel import attention_tables, cli, conv2d, decode_attention, linear, sensitivity, timing
from costmodel.counts import for_plan
from costmodel.gpus import load
from costmodel.sensitivity import Sensitivity, sensitivities, sentence
from costmodel.sweep_plots import Shown, figure_of
from monarch import Plan

OPERATIONS = ("fftconv", "linear", "decode_attention", "conv2d")
SWEEPS = {
    "fftconv": ("-N", "256:4K:x2"),
    "linear": ("-M", "1:64:x4", "-N", "4K,12288"),
    "decode_attention": ("-L", "1K:16K:x2", "-B", "1,8"),
    "conv2d": ("-K", "3:11:+2", "-N", "32,64"),
}
NUMBER = re.compile(r"[0-9.]+(?:e[+-]?[0-9]+)?")


def run(capsys: Any, *words: str) -> tuple[str, str]:
    assert cli.main(words) == 0
    found = capsys.readouterr()
    return found.out, found.err


# ---- what moves a time ---------------------------------------------------------------------------------------
def test_the_most_sensitive_input_comes_first() -> None:
    found = sensitivities(lambda v: 10 * v["a"] + 1 / v["b"] + 0 * v["c"], {"a": 1.0, "b": 1.0, "c": 5.0})
    assert [s.name for s in found] == ["a", "b", "c"]
    assert found[0].change == pytest.approx(1 / 11) and found[1].change < 0 == found[2].change
    assert sentence(found) == (
        "Most sensitive to a: 10% more of it, and the time is 9.1% longer (next b: 0.8% shorter)."
    )
    assert "next" not in sentence(found[:1])
    assert sentence([Sensitivity("c", 0.0)]).startswith("No input moves the time")


def test_conclusions_name_what_comes_next() -> None:
    text = sensitivity.conclusion("a", 10.0, 12.0, bound="memory", share=0.8, floor_us=8.0, other=("b", 11.0))
    assert (
        text
        == "Best: a, 10.0 us, 1.25x the memory floor, bound by memory, 80% of its time; next b, 10% slower, "
        "inside the interval: a tie."
    )
    text = sensitivity.conclusion("a", 10.0, 12.0, bound="memory", share=0.8, other=("b", 13.0))
    assert text.endswith("next b, 30% slower.") and "floor" not in text
    assert sensitivity.conclusion("a", 1.0, 1.0, bound="L2", share=1.0).endswith("100% of its time.")


def test_rates_move_the_times_they_bind() -> None:
    """Of a kernel that memory binds, memory; its share moves nothing that its rate does not, and is not listed."""
    gpu = load("h200-sxm")
    work = for_plan(Plan(256, (16, 16)), 64, 768, capacity_bytes=232448)
    found = timing.sensitive(work, gpu, timing.inputs_of(gpu))
    assert found[0].name == "memory_rate" and -0.1 < found[0].change < -0.05
    assert not any(s.name.endswith("_fraction") or s.name == "model_error" for s in found)


# ---- explanations --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("gpu", ["h200-sxm", "a40"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_explanations_have_numbers_and_end_in_what_binds(op: str, gpu: str, capsys: Any) -> None:
    out, _ = run(capsys, "predict", op, "--gpu", gpu, "--explain")
    text = " ".join(out.split())
    assert re.search(
        r"Most sensitive to [\w' ]+: 10% more of it, and the time is [0-9.]+% (longer|shorter)", text
    )
    shown = re.search(
        r"Bound by [\w ]+, ([0-9]+)% of its time: ([0-9.]+) (us|ms) of ([0-9.]+) (us|ms) \(", text
    )
    assert shown is not None
    scale = {"us": 1.0, "ms": 1e3}
    part, whole = (float(shown[i]) * scale[shown[i + 1]] for i in (2, 4))
    assert 100 * part / whole == pytest.approx(float(shown[1]), abs=1)
    assert [line for line in out.splitlines() if len(line) > 100] == []


@pytest.mark.parametrize(
    ("op", "line"),
    [
        ("fftconv", r"memory +([0-9.e+]+) B / \(([0-9.e+]+) B/s x 1\) = ([0-9.]+) us"),
        ("linear", r"memory +([0-9.e+]+) B / ([0-9.e+]+)/s = ([0-9.]+) us"),
        ("decode_attention", r"memory +([0-9.e+]+) B / ([0-9.e+]+) B/s = ([0-9.]+) us"),
        ("conv2d", r"product: longest of device memory ([0-9.e+]+) B / ([0-9.e+]+)/s = ([0-9.]+) us"),
    ],
)
def test_terms_are_work_over_rate(op: str, line: str, capsys: Any) -> None:
    shape = ("-L", "4K", "-B", "2") if op == "decode_attention" else ()
    out, _ = run(capsys, "predict", op, "--gpu", "h200-sxm", "--explain", *shape)
    found = re.search(line, " ".join(out.split()))
    assert found is not None
    work, rate, us = map(float, found.groups())
    assert 1e6 * work / rate == pytest.approx(us, rel=0.01)


def test_the_explained_time_is_the_predicted_one(capsys: Any) -> None:
    for op in OPERATIONS:
        out, _ = run(capsys, "predict", op, "--gpu", "h200-sxm", "--format", "json")
        best = json.loads(out)["best"]
        out, err = run(capsys, "predict", op, "--gpu", "h200-sxm", "--explain", "--format", "csv")
        assert "Bound by" in err and "Bound by" not in out
        shown = re.search(r"% of its time: ([0-9.]+) (us|ms) of ([0-9.]+) (us|ms)", " ".join(err.split()))
        assert shown is not None
        assert float(shown[3]) * {"us": 1, "ms": 1e3}[shown[4]] == pytest.approx(best["time_us"], rel=0.01)
        assert 0 < best["bound_share"] <= 1


def test_an_explained_term_of_the_full_product_has_its_own_rates(capsys: Any) -> None:
    """On warpgroups, elsewhere, and with a copy of the weights first."""
    for gpu, rate in (("h200-sxm", "group_flops_per_s"), ("a100-sxm-80gb", "tensor_flops_per_s")):
        out, _ = run(capsys, "predict", "linear", "--gpu", gpu, "-M", "2048", "--explain")
        assert f"Most sensitive to {rate}" in out
        assert f"{getattr(linear.rates(gpu), rate):.4g}/s" in out


# ---- sweeps and conclusions ----------------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
@pytest.mark.parametrize("op", OPERATIONS)
def test_sweeps(op: str, form: str, capsys: Any) -> None:
    out, _ = run(capsys, "predict", op, "--gpu", "h100-pcie", *SWEEPS[op], "--format", form)
    wanted = {"fftconv": 5, "linear": 8, "decode_attention": 10, "conv2d": 10}[op]
    if form == "json":
        cases = json.loads(out)["cases"]
        assert len(cases) == wanted
        for case in cases:
            best, others = case["best"], case["candidates"][1:]
            assert best == case["candidates"][0]
            assert all(other["time_us"] >= best["time_us"] for other in others)
            assert case["conclusion"].startswith("Best")
            assert best["time_low_us"] <= best["time_us"] <= best["time_high_us"]
    elif form == "csv":
        assert len(out.splitlines()) > wanted
    else:
        lines = out.splitlines()
        assert len(lines) == wanted + (2 if form == "md" else 3)


def test_a_sweep_over_samples_has_a_column_for_them(capsys: Any) -> None:
    out, _ = run(capsys, "predict", "fftconv", "--gpu", "h200-sxm", "-N", "4K", "-L", "1K,2K,4K")
    assert [line.split()[:2] for line in out.splitlines()[3:]] == [["4K", "1K"], ["4K", "2K"], ["4K", "4K"]]


@pytest.mark.parametrize("op", OPERATIONS)
def test_one_case_ends_in_a_sentence(op: str, capsys: Any) -> None:
    out, _ = run(capsys, "predict", op, "--gpu", "h200-sxm")
    text = " ".join(out.split())
    assert re.search(r"bound by [\w ]+, [0-9]+% of its time", text)


def test_margins_are_to_the_runner_up() -> None:
    found = attention_tables._answer(
        attention_tables.cases_of(batches=[1], heads=32, kv_heads=32, head_size=128, lengths=[8192])[0],
        load("h200-sxm"),
    )
    best, second = found["candidates"][:2]
    assert best["margin"] == pytest.approx(second["time_us"] / best["time_us"] - 1)


@pytest.mark.parametrize("op", OPERATIONS[1:])
@pytest.mark.parametrize(
    "words", [("--order", "2"), ("--packing", "half"), ("--model", "paper"), ("--variant", "causal")]
)
def test_options_of_another_operation_are_refused(op: str, words: tuple[str, str], capsys: Any) -> None:
    assert cli.main(["predict", op, "--gpu", "h200-sxm", *words]) == 2
    assert f"{op}: {words[0]}" in capsys.readouterr().err


@pytest.mark.parametrize("op", ["linear", "decode_attention"])
def test_half_precision_only(op: str, capsys: Any) -> None:
    assert cli.main(["predict", op, "--gpu", "h200-sxm", "--dtype", "fp32"]) == 2
    assert "accepted with" in capsys.readouterr().err


# ---- pictures ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("op", OPERATIONS)
def test_pictures(op: str, tmp_path: Any, capsys: Any) -> None:
    pytest.importorskip("matplotlib")
    for name, words in (("one.svg", ()), ("sweep.png", SWEEPS[op])):
        run(capsys, "predict", op, "--gpu", "h200-sxm", *words, "--plot", str(tmp_path / name))
        assert (tmp_path / name).stat().st_size > 2000
    assert cli.main(["predict", op, "--gpu", "h200-sxm", "--plot", str(tmp_path / "x.gif")]) == 2
    assert "accepted: a name that ends in .svg, .png or .pdf" in capsys.readouterr().err


def test_curves_are_drawn_along_what_varies() -> None:
    pytest.importorskip("matplotlib")
    shown = [Shown("a", 2.0, 1.5, 2.5, floor_us=1.0), Shown("b", 3.0, 2.5, 3.5)]
    cases = [({"M": m, "N": n}, shown) for m in (1, 2, 4) for n in (8, 16)]
    figure = figure_of(cases, "MN", "title")
    (ax,) = figure.axes
    assert ax.get_xlabel() == "M" and ax.get_title() == "title"
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["N = 8", "N = 16", "memory floor"]
    line = ax.get_lines()[0]
    assert np.array_equal(line.get_xdata(), [1, 2, 4]) and np.array_equal(line.get_ydata(), [2, 2, 2])
    (ax,) = figure_of(cases[:1], "MN", "title").axes
    assert [text.get_text() for text in ax.get_yticklabels()] == ["a", "b"]
    with pytest.raises(ValueError, match="cases: got none"):
        figure_of([], "MN", "title")


# ---- convolution layers --------------------------------------------------------------------------------------
def test_direct_convolution_says_what_binds_it(capsys: Any) -> None:
    out, _ = run(capsys, "predict", "conv2d", "--gpu", "h200-sxm", "-K", "1", "--format", "json")
    best = json.loads(out)["best"]
    assert best["plan"] == "direct" and best["bound"] == "device memory" and 0.5 < best["bound_share"] < 1
    assert "tiling" not in best
    out, _ = run(capsys, "predict", "conv2d", "--gpu", "h200-sxm", "-K", "1", "--explain")
    assert "direct: products" in out
    assert conv2d.predict(64, 96, 96, 32, 1, gpu="h200-sxm").impl == "direct"


def test_attention_explains_few_blocks(capsys: Any) -> None:
    """A call that launches and joins for most of its time says so."""
    out, _ = run(
        capsys, "predict", "decode_attention", "--gpu", "h200-sxm", "-B", "1", "-L", "512", "--explain"
    )
    assert "Bound by launching" in out
    case = {"batch": 1, "kv_heads": 32, "length": 512, "splits": 2}
    assert (
        decode_attention.bound_of(
            decode_attention.Shape(128, 1),
            gpu=load("h200-sxm"),
            **case,  # type: ignore[arg-type]
        )
        == "launching"
    )
