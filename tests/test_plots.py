"""Pictures and the notebook: what is drawn is what the model says, and the notebook runs as it is."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

import costmodel
from costmodel import equation2, plots
from costmodel.equation2 import constants

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
A100 = constants("a100-sxm-40gb")
LENGTHS = plots.LENGTHS


def lines_of(figure, number: int = 0) -> dict:
    ax = figure.axes[number]
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def test_order_costs_draws_equation_2():
    figure = plots.order_costs(A100)
    drawn = lines_of(figure)
    for order, cost in equation2.curve((2, 3, 4), LENGTHS, A100).items():
        line = drawn[f"order p = {order}"]
        assert list(line.get_xdata()) == list(LENGTHS)
        assert list(line.get_ydata()) == pytest.approx([c * 1e12 for c in cost], rel=1e-12)
    ax = figure.axes[0]
    assert "ps" in ax.get_ylabel() and "N" in ax.get_xlabel()
    assert any("p = 2 up to 2K, then p = 3" in t.get_text() for t in ax.texts)


def test_orders_differ_in_more_than_colour():
    drawn = [line for label, line in lines_of(plots.order_costs(A100)).items() if label.startswith("order")]
    for look in ("get_color", "get_marker", "get_linestyle"):
        assert len({getattr(line, look)() for line in drawn}) == 3


def test_knees_and_leaving_the_chip():
    assert plots.knees(A100) == {2048: (2, 3), 32768: (3, 4)}
    assert [plots.leaves_chip(p, A100) for p in (2, 3)] == [32768, 65536]
    roomy = plots.what_if(A100, shared_memory=1e6)
    assert plots.leaves_chip(3, roomy) is None


@pytest.mark.parametrize(
    ("slider", "moved", "still"),
    [
        ("bandwidth", ["sigma_h"], ["sigma_s", "tau_m", "tau_g", "capacity_bytes"]),
        ("sm_count", ["sigma_s", "tau_m", "tau_g"], ["sigma_h", "capacity_bytes"]),
        ("tensor_rate", ["tau_m"], ["sigma_h", "sigma_s", "tau_g", "capacity_bytes"]),
        ("shared_memory", ["capacity_bytes"], ["sigma_h", "sigma_s", "tau_m", "tau_g"]),
    ],
)
def test_what_each_slider_moves(slider, moved, still):
    there = plots.what_if(A100, **{slider: 2.0})
    for key in moved:
        assert getattr(there, key) == pytest.approx(2 * getattr(A100, key), rel=1e-12)
    for key in still:
        assert getattr(there, key) == getattr(A100, key)


def test_sliders_at_one_change_nothing():
    assert plots.what_if(A100) == A100


@pytest.mark.parametrize("ratio", [0, -1, math.inf, math.nan])
def test_impossible_ratios(ratio):
    with pytest.raises(ValueError, match="bandwidth: got"):
        plots.what_if(A100, bandwidth=ratio)


def test_what_moves_the_knees():
    """Traffic must outweigh products before low orders live longer; bandwidth alone changes nothing."""
    assert plots.knees(plots.what_if(A100, bandwidth=8)) == plots.knees(A100)
    assert plots.knees(plots.what_if(A100, tensor_rate=16)) == {4096: (2, 3), 262144: (3, 4)}


def test_stage_bars_add_up_to_the_cost():
    n = 32768
    figure = plots.stage_bars(n, A100)
    ax = figure.axes[0]
    for row, order in enumerate((2, 3, 4)):
        bars = [b for b in ax.patches if round(b.get_y() + b.get_height() / 2) == row and b.get_width() > 0]
        total = sum(b.get_width() for b in bars)
        factors = equation2.best_factors(n, order, A100)
        assert total == pytest.approx(equation2.cost(factors, A100) * 1e12 / n, rel=1e-9)
        assert len(bars) == 2 * order


def test_forecast_of_one_length_is_bars_and_of_many_a_curve():
    one = plots.forecast_figure([costmodel.predict(4096, gpu="h200-sxm")])
    assert one.axes[0].get_yticklabels()[0].get_text() == "16x16x16"
    many = [costmodel.predict(n, gpu="h200-sxm") for n in (1024, 4096, 16384)]
    drawn = lines_of(plots.forecast_figure(many, measured={4096: 400e-6}))
    expected = [f.best_of_order(3).time_s / f.floor_s for f in many]
    assert list(drawn["predicted, p = 3"].get_ydata()) == pytest.approx(expected, rel=1e-12)
    assert list(drawn["measured, ours"].get_ydata()) == pytest.approx([400e-6 / many[1].floor_s], rel=1e-12)
    with pytest.raises(ValueError, match="found: got no forecast"):
        plots.forecast_figure([])


def test_demo_figure_has_a_panel_per_gpu():
    by_gpu = [[costmodel.predict(n, gpu=g) for n in (256, 1024)] for g in ("h200-sxm", "h100-sxm")]
    peers = {"h200-sxm": {"torch": {256: 155e-6}}}
    figure = plots.demo_figure(by_gpu, measured={"h200-sxm": {256: 17e-6}}, peers=peers)
    assert [ax.get_title(loc="left").split()[0] for ax in figure.axes] == ["h200-sxm", "h100-sxm"]
    assert {"measured, ours", "measured, torch fp32"} <= set(lines_of(figure, 0))
    assert "measured, ours" not in lines_of(figure, 1)


def test_save_refuses_other_endings(tmp_path):
    figure = plots.order_costs(A100)
    with pytest.raises(ValueError, match=r"accepted: a name that ends in \.svg"):
        plots.save(figure, tmp_path / "p.jpeg")
    assert plots.save(figure, tmp_path / "a" / "p.pdf").read_bytes().startswith(b"%PDF")


# Notebooks.


PICTURES = {"01_decomposition": 10, "02_async_softmax": 2, "03_dispatch": 3, "05_new_gpu": 4}
PICTURES["04_conv2d"] = 1
PICTURES["06_model_against_measurement"] = 1
PICTURES["07_long_sparse"] = 4
PICTURES["08_training"] = 2
"""Every picture that a notebook shows."""


def test_there_is_a_notebook():
    assert {path.stem for path in NOTEBOOKS} == set(PICTURES)


@pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_and_script_are_one_and_without_output(script):
    jupytext = pytest.importorskip("jupytext")
    notebook = json.loads(script.with_suffix(".ipynb").read_text())
    cells = jupytext.read(script).cells
    assert [(c["cell_type"], "".join(c["source"])) for c in notebook["cells"]] == [
        (c.cell_type, c.source) for c in cells
    ]
    for cell in notebook["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.parametrize("script", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(script, tmp_path):
    """Executed cell by cell as Jupyter would, in a kernel of its own."""
    for package in ("jupytext", "nbclient", "ipykernel", "ipywidgets"):
        pytest.importorskip(package)
    executed = tmp_path / script.with_suffix(".ipynb").name
    begin = time.perf_counter()
    result = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "execute_notebook.py"), str(script), str(executed)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    cells = json.loads(executed.read_text())["cells"]
    shown = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    # Every picture that the script shows, the one of the sliders among them.
    assert sum("image/png" in data for data in shown) == PICTURES[script.stem]
    assert time.perf_counter() - begin < 60  # the aim is 30 s on a quiet machine
