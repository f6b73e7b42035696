"""The model of linear layers: Equation 5, the paper's figures, thresholds, predictions, models, dispatch tables."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kernels_numba
from costmodel import gpus, linear, measurements
from costmodel.cli import main
from costmodel.compare_linear import judge
from costmodel.linear import (
    KERNEL,
    PAPER_WIDTHS,
    equation5,
    exact_thresholds,
    paper_width,
    predict,
    rates,
    ratio,
    symbolic_thresholds,
    thresholds,
)
from costmodel.linear_points import Point, Timing, entry_of, points_of, threshold, write_table
from costmodel.models import model, models
from kernels_numba import linear_dispatch
from kernels_numba import linear_thresholds as shared
from kernels_numba.linear_product import LARGEST_M, Choice

sizes = st.integers(1, 40000)
slugs = st.sampled_from(gpus.slugs())
LLAMA = model("llama2-7b").linear


# ---- Equation 5, and Figures 7 and 9(c) of FlashDecoding++ ----------------------------------------------------
@given(m=st.integers(1, 512), n=sizes, k=sizes, width=st.sampled_from((8, *PAPER_WIDTHS)))
def test_equation5_in_numbers(m: int, n: int, k: int, width: int) -> None:
    compute, parallel = equation5()
    values = {"M": m, "N": n, "K": k, "B_N": width}
    found = [float(e.subs({s: values[s.name] for s in e.free_symbols})) for e in (compute, parallel)]
    assert np.isclose(found[0], ratio(m, k, width)) and found[1] == n / width
    # More reuse with a wider tile, never more than reading each operand once.
    assert ratio(m, k, width) <= ratio(m, k, 2 * width) <= 2 * m * k / (k + m)


def figure7() -> dict[tuple[int, int], int]:
    """Best B_N measured on the A100 for M = 8, by (N, K): the paper's 18 cells.

    The paper prints them for powers of two of N: 32, then 64, then 128 as N grows.
    """
    cells = {}
    for n in (2**i for i in range(10, 19)):
        cells[n, 4096] = 32 if n <= 4096 else 64 if n <= 8192 else 128
        cells[n, 12288] = 32 if n <= 8192 else 64 if n <= 32768 else 128
    return cells


def test_figure7() -> None:
    """15 of 18 cells: one block for every SM decides at K = 4096; at K = 12288 the A100 wanted two to four."""
    sm_count = int(gpus.load("a100-sxm-40gb").spec["sm_count"])
    cells = figure7()
    assert len(cells) == 18
    wrong = {
        cell: (best, paper_width(8, *cell, sm_count))
        for cell, best in cells.items()
        if paper_width(8, *cell, sm_count) != best
    }
    assert wrong == {(8192, 12288): (32, 64), (16384, 12288): (64, 128), (32768, 12288): (64, 128)}


FIGURE9 = {"qkv": (2, 9), "o": (3, 17), "ffn1": (2, 17), "ffn2": (3, 9)}
"""M1 and M2 of Llama2-7B's layers on the A100."""


def test_figure9() -> None:
    """M1 within one everywhere and exact for two of four layers; M2 exact for three, and earlier for the other.

    The paper's M2 is where a library's products, padded to 64 rows, become faster than its flat kernel; here it is
    where this project's full product does, whose smallest tile has 32 rows.
    """
    found = {name: thresholds(*LLAMA[name], "a100-sxm-40gb") for name in FIGURE9}
    assert found == {"qkv": (2, 9), "o": (2, 17), "ffn1": (2, 2), "ffn2": (2, 9)}
    matches = [sum(found[name][i] == FIGURE9[name][i] for name in FIGURE9) for i in range(2)]
    assert matches == [2, 3]
    assert all(abs(found[name][0] - FIGURE9[name][0]) <= 1 for name in FIGURE9)
    assert all(found[name][1] <= FIGURE9[name][1] for name in FIGURE9)


# ---- thresholds ----------------------------------------------------------------------------------------------
@given(n=sizes, k=sizes, slug=slugs)
@example(n=1, k=1, slug="h200-sxm")
def test_closed_forms_are_what_sympy_solves(n: int, k: int, slug: str) -> None:
    r = rates(slug)
    values = {
        "N": n,
        "K": k,
        "P": r.sm_count * shared.FLAT_WIDTH * -(-n // (r.sm_count * shared.FLAT_WIDTH)),
        "B": shared.FLAT_WIDTH,
        "C": shared.TILE_LOSS,
        "R": shared.GROUP_ROWS if r.group_flops_per_s else shared.FULL_ROWS,
        "l": shared.SLAB_S,
        "p": shared.parts_of(n, r.sm_count),
        "t_p": shared.MEETING_S * (shared.parts_of(n, r.sm_count) > 1),
        "q": shared.FLAT_ORDER,
        "kappa": shared.FLAT_LOSS,
        "tau": r.tensor_flops_per_s,
        "beta": r.memory_bytes_per_s,
        "lambda_u": r.shared_cache_bytes_per_s,
        "phi": r.lane_instructions_per_s,
        "c_w": shared.WEIGHT_INSTRUCTIONS,
        "c_x": shared.INPUT_INSTRUCTIONS,
        "t_v": shared.VECTOR_START_S,
        "t_f": shared.FLAT_START_S,
        "t_u": shared.GROUP_START_S if r.group_flops_per_s else shared.FULL_START_S,
        "Z": shared.copied_bytes(n, k, in_place=r.group_flops_per_s > 0),
    }
    m1, m2, few = _symbolic()
    values["U"] = float(few.subs({s: values[s.name] for s in few.free_symbols}))
    solved = [complex(e.subs({s: values[s.name] for s in e.free_symbols})) for e in (m1, m2)]
    first, second = exact_thresholds(n, k, r)
    assert np.isclose(solved[0], first, rtol=1e-9, atol=1e-9)
    if values["U"] + values["t_u"] - shared.FLAT_START_S > 2 * n * k / r.memory_bytes_per_s:
        assert np.isclose(solved[1], second, rtol=1e-6, atol=1e-6)
    else:
        assert second <= 0, "the full product is ahead at once"


def test_a_copy_of_the_weights_keeps_the_flat_product_longer() -> None:
    """Measured at M = 64: flat 28.1 us, full 34.4 us for [4096, 4095]; 21.5 and 13.4 us for [4096, 4096]."""
    assert thresholds(4096, 4095, "a100-sxm-40gb")[1] == LARGEST_M["flat"] + 1
    assert thresholds(4096, 4095, "h200-sxm")[1] <= 25  # warpgroups read w in place
    assert thresholds(4096, 4096, "h200-sxm")[1] <= 25


def _symbolic(cache: list = []) -> list:  # noqa: B006  solving takes a second
    if not cache:
        cache.extend(symbolic_thresholds())
    return cache


@given(n=sizes, k=sizes, slug=slugs)
def test_thresholds_are_in_order(n: int, k: int, slug: str) -> None:
    m1, m2 = thresholds(n, k, slug)
    assert 1 <= m1 <= LARGEST_M["gemv"] + 1
    assert m1 <= m2 <= LARGEST_M["flat"] + 1


@given(n=sizes, k=sizes)
def test_dispatch_without_a_table_follows_the_model(n: int, k: int) -> None:
    """One closed form; the kernels' rates of an H200 are those of its GPU file."""
    r = rates("h200-sxm")
    own = shared.H200_RATES
    for name, value in vars(own).items():
        assert value == pytest.approx(getattr(r, name), rel=1e-3)
    assert shared.rates_for(132) == own
    same = shared.Rates(**{name: getattr(r, name) for name in vars(own)})
    assert shared.thresholds(n, k, same, in_place=True) == thresholds(n, k, "h200-sxm")


@pytest.mark.parametrize("slug", ["h200-sxm", "b200", "a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm", "l4"])
def test_thresholds_are_near_the_crossing_of_the_models_own_times(slug: str) -> None:
    """Following M2 costs no more than the error of two times, whatever settings are the best ones."""
    for n, k in LLAMA.values():
        _, m2 = thresholds(n, k, slug)
        for m in (8, 16, 24, 32, 48, 64):
            times: dict[str, float] = {}
            for candidate in predict(m, n, k, gpu=slug):
                times.setdefault(candidate.choice.impl, candidate.time_us)
            chosen = times["full" if m >= m2 else "flat"]
            assert chosen <= (1 + 2**0.5 * KERNEL.error) * min(times["flat"], times["full"])


def test_thresholds_where_products_are_slow_beside_memory() -> None:
    """On a B200, with 1.7 times an H200's memory rate, the flat product's tiles are ahead for the first 8 rows only."""
    assert thresholds(12288, 4096, "b200") == (1, 9)


def test_more_vector_rate_keeps_vector_products_longer() -> None:
    """M1 moves with the ratio of CUDA cores to memory: two rows on an A100, past four on an H100."""
    assert thresholds(12288, 4096, "a100-sxm-40gb")[0] == 2
    assert thresholds(12288, 4096, "h200-sxm")[0] == 3
    assert thresholds(12288, 4096, "h100-sxm")[0] == LARGEST_M["gemv"] + 1


# ---- predictions ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("slug", gpus.slugs())
@pytest.mark.parametrize("m", [1, 8, 64, 65, 300])
def test_predictions_are_sound(m: int, slug: str) -> None:
    if m > 64 and slug == "t4":  # the full product's smallest tile needs more than 64 KiB
        with pytest.raises(ValueError, match="no kernel fits in the 65536 bytes"):
            predict(m, 4096, 4096, gpu=slug)
        return
    found = predict(m, 4096, 4096, gpu=slug)
    spec = gpus.load(slug).spec
    assert [c.time_us for c in found] == sorted(c.time_us for c in found)
    assert len({c.choice for c in found}) == len(found)
    for c in found:
        floor = 2 * 4096 * 4096 / spec["memory_bandwidth_bytes_per_s"] * 1e6
        assert floor < c.time_low_us < c.time_us < c.time_high_us
        assert c.time_us > max(value for name, value in c.terms_us.items() if name != "start")
        limit = LARGEST_M[c.choice.impl]
        assert limit is None or m <= limit
    if m > 64:
        assert {c.choice.impl for c in found} == {"full"}
    early = predict(m, 4096, 4096, gpu=slug, overlap=True)
    assert early[0].time_us < found[0].time_us


@given(m=st.integers(1, 64), n=st.integers(256, 20000), k=st.integers(256, 20000))
@example(m=17, n=256, k=257)
def test_time_grows_with_the_weights(m: int, n: int, k: int) -> None:
    """But for 5 %, and not of small products: starting is most of their time, and more SMs share the reading."""
    small, large = predict(m, n, k, gpu="h200-sxm")[0], predict(m, 4 * n, k, gpu="h200-sxm")[0]
    if 2 * n * k > 2**22:
        assert small.time_us < 1.05 * large.time_us
    if 2 * n * k > 2**26:
        assert small.time_us < large.time_us


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        predict(0, 1, 1, gpu="h200-sxm")


VIDUR = Path(__file__).resolve().parents[2] / "shared" / "data" / "vidur_llama2_7b_tp1_gemm.csv"


@pytest.mark.skipif(not VIDUR.exists(), reason="the library's measured times are not here")
@pytest.mark.parametrize(("name", "slug"), [("a100", "a100-sxm-80gb"), ("h100", "h100-sxm")])
def test_no_prediction_beats_memory_by_much_nor_trails_a_library(name: str, slug: str) -> None:
    """Times of a library on other GPUs: ours are predicted between its half and one and a half of them, M <= 16."""
    table = csv.DictReader(VIDUR.read_text().splitlines())
    rows = [r for r in table if r["gpu"] == name and int(r["m"]) <= 16]
    ratios = [
        predict(int(r["m"]), int(r["n"]), int(r["k"]), gpu=slug)[0].time_us / float(r["time_us"])
        for r in rows
    ]
    assert len(ratios) >= 8
    assert 0.5 < np.median(ratios) < 1.5


# ---- models, tables, commands --------------------------------------------------------------------------------
def test_models() -> None:
    assert {"llama2-7b", "llama2-13b", "opt-6.7b", "chatglm2-6b"} < set(models())
    assert LLAMA == {"qkv": (12288, 4096), "o": (4096, 4096), "ffn1": (11008, 4096), "ffn2": (4096, 11008)}
    for found in models().values():
        width = found.dim // found.heads
        assert found.linear["qkv"] == (found.dim + 2 * found.kv_heads * width, found.dim)
        assert found.linear["o"] == (found.dim, found.dim)
        assert found.linear["ffn1"][1] == found.linear["ffn2"][0] == found.dim
    assert any(found.kv_heads < found.heads for found in models().values())
    with pytest.raises(ValueError, match=r"known: .*llama2-7b.*models.toml"):
        model("gpt-1")


GEMV, FLAT, FULL, VENDOR = (
    Choice.of("gemv", rows=2),
    Choice.of("flat", stages=2),
    Choice("full"),
    Choice("vendor"),
)


def point(m: int, **times: float) -> Point:
    """A measured M; all times spread by 2 % either way."""
    made = Point(m)
    for choice, us in ((GEMV, "gemv"), (FLAT, "flat"), (FULL, "full"), (VENDOR, "vendor")):
        if us in times:
            t = times[us]
            made.times[False][choice] = Timing(t, 0.98 * t, 1.02 * t, 13)
            made.error[choice] = 1e-4
            if us != "vendor":
                made.times[True][choice] = Timing(t - 1, 0.98 * (t - 1), 1.02 * (t - 1), 13)
    return made


POINTS = [
    point(1, gemv=10, flat=12, vendor=14),
    point(2, gemv=11.9, flat=12, vendor=14),
    point(4, gemv=15, flat=12, vendor=14),
    point(16, flat=13, full=20, vendor=14),
    point(64, flat=25, full=21, vendor=14),
    point(128, full=30, vendor=15),
]


def test_thresholds_from_measurements_have_their_noise() -> None:
    """A change between two measured M counts from the first on; where spreads meet it may be earlier or later."""
    assert threshold(POINTS, "gemv", "flat") == (3, 2, 3)
    assert threshold(POINTS, "flat", "full") == (17, 17, 17)


def test_table_from_measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry_of("o", 64, 96, POINTS)]
    path = write_table(entries, "small", slug="a-gpu", gpu_name="A GPU", folder=tmp_path)
    assert linear_dispatch.read_table(path)["entries"] == json.loads(json.dumps(entries))
    monkeypatch.setenv(linear_dispatch.FOLDER_VARIABLE, str(tmp_path))
    linear_dispatch.tables.cache_clear()

    def chosen(m: int, **how: bool) -> str:
        return linear_dispatch.choose(m, 64, 96, "fp16", "A GPU", 132, **how).choice.impl

    assert [chosen(m) for m in (1, 2, 3, 4, 16, 17, 64, 65, 1000)] == ["gemv"] * 2 + ["flat"] * 3 + [
        "full"
    ] * 4
    assert [chosen(m, vendor=True) for m in (4, 16, 17)] == ["flat", "flat", "vendor"]
    found = linear_dispatch.choose(16, 64, 96, "fp16", "A GPU", 132, vendor=True)
    assert found.runner_up == "vendor" and found.margin == pytest.approx(14 / 13 - 1, abs=1e-4)
    assert found.thresholds == (3, 17)
    linear_dispatch.tables.cache_clear()


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Measure into a folder of the test's own, without a GPU; the [N, K] that were swept."""
    from costmodel import measure_linear, replays

    seen: list[tuple[int, int]] = []

    def sweep(n: int, k: int, **_: object) -> list[Point]:
        seen.append((n, k))
        return POINTS

    monkeypatch.setattr(measure_linear, "sweep", sweep)
    monkeypatch.setattr(measure_linear, "candidate_products", lambda *_: [])
    monkeypatch.setattr(measure_linear, "compile_products", lambda *_: None)
    monkeypatch.setattr(replays, "need_torch", lambda: None)
    monkeypatch.setattr(measurements, "FOLDER", tmp_path / "rows")
    monkeypatch.setenv(linear_dispatch.FOLDER_VARIABLE, str(tmp_path / "tables"))
    return seen


def test_measuring_in_parts(swept: list[tuple[int, int]], tmp_path: Path) -> None:
    """Layer by layer gives the table of a whole run; a layer that two models share is swept once."""
    from costmodel import measure_linear

    where = {"quick": True, "slug": "h200-sxm", "gpu_name": "A GPU", "sm_count": 132}
    path = tmp_path / "tables" / "h200-sxm" / "opt-6.7b.json"
    for layers in (["qkv"], ["o", "ffn1"], ["ffn2"]):
        measure_linear.main(models=["opt-6.7b"], layers=layers, **where)
    parts = linear_dispatch.read_table(path)["entries"]
    assert [e["layer"] for e in parts] == ["qkv", "o", "ffn1", "ffn2"]
    path.unlink()
    assert swept == [(12288, 4096), (4096, 4096), (16384, 4096), (4096, 16384)]
    swept.clear()
    written = measure_linear.main(models=["llama2-7b", "opt-6.7b"], **where)
    assert linear_dispatch.read_table(path)["entries"] == parts
    assert swept == [*LLAMA.values(), (16384, 4096), (4096, 16384)]
    rows = measurements.read("h200-sxm", op="linear")
    assert len(rows) == written == 6 * sum(1 for p in POINTS for _ in measure_linear.rows_of(p, 1, 1))
    with pytest.raises(ValueError, match="layer: got gate; accepted: the layers of llama2-7b"):
        measure_linear.main(models=["llama2-7b"], layers=["gate"], **where)


def test_shapes_of_no_model_get_rows_and_no_table(swept: list[tuple[int, int]], tmp_path: Path) -> None:
    from costmodel import measure_linear

    measure_linear.main(
        models=[], shapes=[(4097, 4095)], quick=True, slug="h200-sxm", gpu_name="A GPU", sm_count=132
    )
    assert swept == [(4097, 4095)] and not (tmp_path / "tables").exists()
    assert {row.case_values["N"] for row in measurements.read("h200-sxm", op="linear")} == {4097}
    for arguments in (["--shape", "4097"], ["--shape", "4097x0"]):
        with pytest.raises(SystemExit):
            main(["measure", "--op", "linear", *arguments])
    assert main(["measure", "--shape", "4097x4095"]) == 2


@pytest.mark.parametrize("path", sorted(linear_dispatch.folders()[-1].glob("*/*.json")), ids=lambda p: p.stem)
def test_committed_tables_are_current(path: Path) -> None:
    """Of these kernels, whole, and with the layers of their model."""
    table = linear_dispatch.read_table(path)
    layers = {(entry["n"], entry["k"]) for entry in table["entries"]}
    assert layers == set(model(path.stem).linear.values())
    assert gpus.by_device_name(table["gpu"]).slug == path.parent.name


def test_thresholds_command(capsys: pytest.CaptureFixture) -> None:
    assert main(["thresholds", "--gpu", "h200-sxm", "--model", "llama2-7b", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "monarch-numba/thresholds/1"
    assert [row["layer"] for row in found["thresholds"]] == list(LLAMA)
    assert [(row["M1"], row["M2"]) for row in found["thresholds"]] == [
        thresholds(*pair, "h200-sxm") for pair in LLAMA.values()
    ]
    assert main(["thresholds", "--gpu", "a100-sxm-40gb", "-N", "4K", "-K", "4K", "--explain"]) == 0
    text = capsys.readouterr().out
    assert "M1 = " in text and "M2 = " in text and all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_predict_command(form: str, capsys: pytest.CaptureFixture) -> None:
    command = ["predict", "linear", "--gpu", "h200-sxm", "-M", "8", "-N", "12288", "--format", form]
    assert main(command) == 0
    one = capsys.readouterr().out
    assert "flat" in one
    if form == "json":
        found = json.loads(one)
        assert found["best"] == found["candidates"][0] and found["best"]["margin"] > 0
        assert {"time_us", "time_low_us", "time_high_us", "bound", "tile", "splits"} <= set(found["best"])
        assert found["best"]["bound"] == "device memory"
    if form == "csv":
        best, *others = csv.DictReader(one.splitlines())
        assert (best["gpu"], best["M"], best["bound"]) == ("h200-sxm", "8", "device memory") and others
        assert float(best["time_low_us"]) < float(best["time_us"]) < float(best["time_high_us"])
    assert main([*command[:5], "1:64:x4", *command[6:]]) == 0
    many = capsys.readouterr().out
    assert (json.loads(many)["cases"] if form == "json" else many.splitlines())[3:]
    assert main([*command, "--order", "2"]) == 2


def test_measured_rows_are_legal() -> None:
    for slug in gpus.slugs():
        for row in measurements.read(slug, op="linear"):
            assert row.rel_err < 1e-3
            others = ("cublas", "dispatch")
            assert row.provider in others or row.provider_variant.split("-")[0] in LARGEST_M


def test_dispatch_figure_shows_what_the_model_says() -> None:
    pytest.importorskip("matplotlib")
    from costmodel import linear_plots

    figure = linear_plots.dispatch_figure(4096, 4096, "a100-sxm-40gb", sweep=(1, 8, 128))
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert {"vector", "flat", "full"} <= set(lines)
    for impl, name in (("flat", "flat"), ("full", "full")):
        for m, us in zip(*lines[name].get_data(), strict=True):
            best = next(c for c in predict(int(m), 4096, 4096, gpu="a100-sxm-40gb") if c.choice.impl == impl)
            assert us == best.time_us
    assert [text.get_text().strip() for text in axes.texts] == ["M1 = 2", "M2 = 17"]
    imagined = linear.what_if(rates("h200-sxm"), bandwidth=2, sm_count=0.5)
    assert imagined.memory_bytes_per_s == 2 * rates("h200-sxm").memory_bytes_per_s and imagined.sm_count == 66
    assert linear_plots.dispatch_figure(4096, 4096, "h200-sxm", sweep=(1, 8), instead=imagined).axes


def row(m: int, impl: str, us: float, settings: str = "") -> measurements.Row:
    case = f"M={m};N=4096;K=4096"
    stamp = (13, 2**25, 2**25 * m, 1e-4, "2026-11-30", "abc")
    return measurements.Row(
        "linear", case, "fp16", f"ours:{impl}", us, us, us, *stamp, f"{impl} {settings}".strip()
    )


def test_comparison_judges_the_thresholds() -> None:
    """On an H200 M1 and M2 are 4 here: vector products at M = 3 and full ones at 8, both behind in these rows."""
    rows = [
        row(3, "gemv", 11.0, "rows=4 depth=2 warps=4"),
        row(3, "flat", 10.0, "row_tiles=2 stages=2 warps=8 shares=132"),
        row(8, "flat", 11.4, "row_tiles=2 stages=2 warps=8 shares=132"),
        row(8, "full", 14.0, "rows=32 columns=128 warp_rows=32 warp_columns=32 stages=6 split=4"),
        row(512, "full", 47.0, "rows=128 columns=128 stages=3 blocks=2 shares=264"),
    ]
    found = judge(rows, gpus.load("h200-sxm"))
    assert [(d.chosen, d.best, pytest.approx(d.regret)) for d in found.decisions] == [
        ("gemv", "flat", 1.1),
        ("full", "flat", 14.0 / 11.4),
    ]
    assert found.summary()["decisions"]["thresholds"]["cases"] == 2
    assert all(abs(p.relative_error) < 0.25 for p in found.pairs) and len(found.pairs) == 5


def test_what_dispatch_picked_is_no_candidate_of_a_table() -> None:
    """Its rows may be of any kernel, or of the library: a table is of those by name."""
    ours, library = row(8, "flat", 11.0, "row_tiles=2 stages=2 warps=8 shares=132"), row(8, "flat", 14.0)
    library = dataclasses.replace(library, provider="cublas", note="through torch.matmul")
    picked = dataclasses.replace(ours, provider="dispatch", median_us=10.9)
    (point,) = points_of([ours, library, picked], 4096, 4096, (8,))
    assert {str(choice): t.median for choice, t in point.times[False].items()} == {
        "flat row_tiles=2 stages=2 warps=8 shares=132": 11.0,
        "vendor": 14.0,
    }


@pytest.mark.parametrize("form", ["table", "json", "csv", "md"])
def test_commands_read_measured_rows(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(measurements, "FOLDER", tmp_path)
    measurements.append([row(8, "flat", 11.4, "row_tiles=2 stages=2 warps=8 shares=132")], "h200-sxm")
    for command in (["compare", "--op", "linear"], ["measurements"]):
        assert main([*command, "--gpu", "h200-sxm", "--format", form]) == 0
        assert "flat" in capsys.readouterr().out


def test_decode_step_has_the_products_of_a_layer(capsys: pytest.CaptureFixture) -> None:
    from costmodel import measure_decode

    weights = sum(n * k for _, n, k in measure_decode.layer_products(model("llama2-7b")))
    assert 32 * weights == pytest.approx(6.48e9, rel=0.01)  # of Llama2-7B's 6.74e9, without the embeddings
    if kernels_numba.device().is_gpu:
        pytest.skip("measuring takes a minute")
    assert measure_decode.main([]) == measure_decode.measure.NO_GPU
    assert "no GPU to measure" in capsys.readouterr().err
