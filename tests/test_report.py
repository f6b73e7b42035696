"""The report: well-formed HTML that needs nothing else, with the numbers of the functions they come from."""

import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from costmodel import (
    cli,
    comparisons,
    decode_attention,
    demo,
    linear,
    measurements,
    report,
    tables,
    timing,
    units,
)
from costmodel import fit as fitting
from costmodel.compare import compare, percentile
from costmodel.gpus import load
from costmodel.models import models
from costmodel.report_findings import Findings, gather
from costmodel.report_html import Html, bullets, paragraph, table
from costmodel.report_sections import SECTIONS

# One process makes the pages for all of these tests.
pytestmark = pytest.mark.xdist_group("report")

VOID = {"meta", "br", "hr", "img", "input", "link", "base", "source", "wbr", "col"}
HOSTILE = "<script>alert('1')</script>\"&$HOME $\\frac$ ${x}"


class Page(HTMLParser):
    """A page as elements, the text of each section and table; refuses tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.sections: dict[str, str] = {}
        self.tables: dict[str, list[list[str]]] = {}
        self._section = self._caption = ""
        self._rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self._section = dict(attrs)["id"]
            self.sections[self._section] = ""
        if tag == "table":
            self._rows, self._caption = [], ""
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._rows[-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        assert "svg" in self.open, f"<{tag}/> outside of SVG"
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open}"
        self.open.pop()
        if tag == "table":
            self.tables[self._caption] = self._rows
        if tag == "section":
            self._section = ""

    def handle_data(self, data):
        if self._section and "svg" not in self.open:
            self.sections[self._section] += data
        if "caption" in self.open:
            self._caption += data
        if (self.open and self.open[-1] in ("td", "th")) or {"td", "th"} & set(self.open):
            self._rows[-1][-1] += data


@pytest.fixture(scope="module")
def measured() -> Findings:
    return gather("h200-sxm")


@pytest.fixture(scope="module")
def h200_text(measured) -> str:
    return report.page(measured)


@pytest.fixture(scope="module")
def h200(h200_text) -> Page:
    return Page(h200_text)


@pytest.fixture(scope="module")
def unmeasured() -> Findings:
    return gather("h100-sxm")


@pytest.fixture(scope="module")
def h100(unmeasured) -> Page:
    return Page(report.page(unmeasured))


# The page.


@pytest.mark.parametrize("name", ["h200", "h100"])
def test_the_page_needs_nothing_else(name, request):
    page = request.getfixturevalue(name)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "image", "base", "form"}
    for tag, attributes in page.elements:
        for key, value in attributes.items():
            assert not key.startswith("on"), (tag, key)
            if key in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
                assert (value or "").startswith("#"), (tag, key, value)
            assert "url(" not in (value or "") or "url(#" in (value or ""), (tag, key, value)
            assert "http:" not in (value or "") and "https:" not in (value or ""), (tag, key, value)


@pytest.mark.parametrize("name", ["h200", "h100"])
def test_ids_are_unique_and_links_lead_somewhere(name, request):
    page = request.getfixturevalue(name)
    assert len(page.ids) == len(set(page.ids))
    used = {a["href"][1:] for _, a in page.elements if a.get("href")}
    used |= {i for _, a in page.elements for v in a.values() for i in re.findall(r"url\(#([^)]+)\)", v or "")}
    assert used and used <= set(page.ids)


def test_the_page_is_made_for_phones_and_both_colour_schemes(h200_text):
    text = h200_text
    assert 'name="viewport" content="width=device-width' in text
    assert "prefers-color-scheme: dark" in text and "max-width: 52rem" in text
    assert text.count('<div class="scroll"') == text.count("<table>") > 8
    assert text.count("<svg viewBox=") == text.count("</svg>") == text.count("<figcaption>") == 6
    for colour in set(re.findall(r"var\(--([a-z]+)\)", text)):
        assert text.count(f"--{colour}: #") == 2, colour
    figures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert re.findall(r"(?:fill|stroke): #", figures) == []  # all follow the scheme
    assert re.search(r"figure svg \{[^}]*fill: var\(--ink\)", text)  # what is black says nothing in SVG
    assert "@import" not in text and "$" not in text


def test_axes_have_names_and_units(h200_text):
    figures = "".join(re.findall(r"<svg.*?</svg>", h200_text, re.DOTALL))
    labels = set(map(unescape, re.findall(r"<text[^>]*>([^<]+)</text>", figures)))
    assert {
        "best order p",
        "next order slower, %",
        "transform length N",
        "time, ms",
        "time / memory floor",
        "rows of x, M",
        "time, us",
        "keys of a sequence, L",
        "best number of splits",
        "predicted / measured time",
    } <= labels


@pytest.mark.parametrize("name", ["h200", "h100"])
def test_every_section_is_there(name, request):
    page = request.getfixturevalue(name)
    assert list(page.sections) == list(SECTIONS)
    assert all(len(text.strip()) > 100 for text in page.sections.values())


# Its numbers.


def test_values_of_the_gpu_with_source_and_kind(h200, h100):
    gpu = load("h200-sxm")
    rows = h200.tables[f"Data sheet ({gpu.spec_date})"][1:]
    assert [source for *_, source in rows] == [gpu.spec_sources[key] for key in gpu.spec]
    sheet = {name: value for name, value, _ in rows}
    assert len(sheet) == len(gpu.spec)
    assert sheet["memory bandwidth"] == "4.8 TB/s" and sheet["memory"] == "141 GB"
    assert sheet["shared memory per block"] == "227 KiB" and sheet["boost clock"] == "1980 MHz"
    assert gpu.spec_source in h200.sections["gpu"]
    rates = {row[0]: row for row in h200.tables["Measured rates"][1:]}
    assert rates["device copy"][1] == "4.26 TB/s"
    assert rates["device copy"][3] == gpu.measured["device_copy_bytes_per_s"].date
    for page, slug in ((h200, "h200-sxm"), (h100, "h100-sxm")):
        rows = page.tables["What a convolution's prediction rests on"][1:]
        known = timing.inputs_of(load(slug))
        assert [row[4].startswith(i.origin) for row, i in zip(rows, known.values(), strict=True)] == [
            True
        ] * len(rows)
        kinds = {key: row[3] for key, row in zip(known, rows, strict=True)}
        here = slug == "h200-sxm"
        assert kinds["memory_rate"] == ("measured" if here else "assumed")
        assert kinds["launch_us"] == ("fitted here" if here else "assumed")
        assert (kinds["fp32_rate"], kinds["memory_fraction"]) == ("data sheet", "assumed")
        assert f"{list(kinds.values()).count('assumed')} are assumed" in page.sections["summary"]
    assert "the ratio measured on h200-sxm" in h100.sections["gpu"]
    assert "No rate was measured on this GPU" in h100.sections["gpu"]


@pytest.mark.parametrize(("name", "slug"), [("h200", "h200-sxm"), ("h100", "h100-sxm")])
def test_orders_are_those_of_the_prediction(name, slug, request):
    page = request.getfixturevalue(name)
    found = demo.forecasts([load(slug)])[slug]
    rows = page.tables["Best plan of each length, predicted"]
    assert rows == [list(demo.PREDICTED), *demo.predicted_rows(found)]
    assert [row[0].rstrip("*") for row in rows[1:]] == [units.short(2**e) for e in range(8, 23)]
    run = [units.short(f.inputs["N"]) for f in found if f.best.has_kernel]
    assert f"at {len(run)} of 15 lengths: {', '.join(run)}." in page.sections["summary"]
    over = [f.best.time_s / f.floor_s for f in found]
    assert (
        f"{units.ratio(min(over))} to {units.ratio(max(over))} times the memory floor"
        in page.sections["summary"]
    )


@pytest.mark.parametrize(("name", "slug"), [("h200", "h200-sxm"), ("h100", "h100-sxm")])
def test_thresholds_are_those_of_the_closed_form(name, slug, request):
    page = request.getfixturevalue(name)
    rows = page.tables["Thresholds of the layers, in rows of x"][1:]
    layers = [(m.name, *layer) for m in models().values() for layer in m.linear.items()]
    assert len(rows) == len(layers)
    for row, (model, layer, (n, k)) in zip(rows, layers, strict=True):
        assert row[:4] == [model, layer, str(n), str(k)]
        assert tuple(map(int, row[4:6])) == linear.thresholds(n, k, slug)
    assert (rows[0][6] != "-") == (slug == "h200-sxm")


@pytest.mark.parametrize(("name", "slug"), [("h200", "h200-sxm"), ("h100", "h100-sxm")])
def test_splits_are_those_of_the_prediction(name, slug, request):
    rows = next(
        rows
        for caption, rows in request.getfixturevalue(name).tables.items()
        if "number of splits" in caption
    )
    for batch, heads, length, splits, time, *_ in rows[1:]:
        h, kv = map(int, heads.split("/"))
        case = {
            "batch": int(batch),
            "heads": h,
            "kv_heads": kv,
            "head_size": 128,
            "length": units.size(length),
        }
        best = decode_attention.candidates(**case, gpu=slug)[0]
        assert (splits, time) == (str(best.splits), units.microseconds(best.time_us))
    assert len(rows) == 1 + 2 * 4 * 4


def test_errors_and_regrets_are_those_of_the_comparison(h200):
    errors = {row[0]: row[1:] for row in h200.tables["Errors of times"][1:]}
    regrets = {(row[0], row[1]): row[2:] for row in h200.tables["Regrets of decisions"][1:]}
    for found in comparisons.compare_all("h200-sxm").values():
        s = found.summary()
        shown = [str(s["cases"]), f"{s['median_abs_rel_error']:.1%}", f"{s['p90_abs_rel_error']:.1%}"]
        assert errors[found.op][:3] == shown
        for kind, d in s["decisions"].items():
            if d["cases"]:
                row = regrets[found.op, kind]
                assert (row[0], row[3]) == (str(d["cases"]), f"{d['regret_p95']:.3f}")
            else:
                assert (found.op, kind) not in regrets
        assert len(h200.tables[f"{found.op}: every case"]) == 1 + s["cases"]
        assert (
            f"Measured, {found.op}: {s['cases']} cases, median error {shown[1]}" in h200.sections["summary"]
        )
    assert tables.verdict(compare("h200-sxm")).startswith(f"{errors['fftconv'][0]} cases")


def test_both_errors_of_the_fit_are_stated(h200, measured):
    assert measured.fit is not None
    rows = {row[0]: row[1:] for row in h200.tables["Fit and cross-validation, fitted anew"][1:]}
    assert set(rows) == {j.op for j in measured.judged}
    both = {"fftconv": (measured.fit.errors, measured.fit.left_out)}
    both |= {v.op: (v.fitted, v.left_out) for v in measured.validations}
    for op, errors in both.items():
        shown = [f"{percentile(some, q):.1%}" for some in errors for q in (50, 90)]
        assert rows[op][:5] == [str(len(errors[0])), *shown]
        if op == "fftconv":
            for middle, most in (shown[:2], shown[2:]):
                assert f"median {middle}, p90 {most}" in h200.sections["summary"]
    assert len(measured.fit.left_out) == len(fitting.points_of(load("h200-sxm")))


def test_a_gpu_without_measurements_says_so_and_how_to_measure(h100):
    assert "No kernel was measured on h100-sxm" in h100.sections["summary"]
    text = h100.sections["measured"]
    assert "no error and no regret" in text
    for op in ("fftconv", "linear", "decode_attention"):
        assert f"python -m costmodel measure --op {op}" in text
    assert "python -m costmodel.fit --gpu h100-sxm --write" in text
    assert not {"Errors of times", "Regrets of decisions"} & set(h100.tables)
    assert "measured, ours" not in "".join(h100.sections.values())


def section(name: str, found: Findings) -> str:
    """The text of one section alone."""
    return Page(f'<section id="{name}">' + "".join(SECTIONS[name][1](found)) + "</section>").sections[name]


def test_what_is_missing_of_a_measured_gpu_is_named(measured):
    only = replace(measured, judged=[j for j in measured.judged if j.op == "fftconv"])
    text = section("measured", only)
    others = "fftconv_gradients, linear, decode_attention, decode_step, conv2d"
    assert f"Not measured on h200-sxm yet: {others}." in text
    assert "python -m costmodel.measure_decode" in text
    assert "measure --op linear" in text and "measure --op fftconv\n" not in text


def test_a_single_measured_length_cannot_be_cross_validated(measured):
    fit = replace(measured.fit, left_out=())
    one = replace(measured, fit=fit, validations=[])
    assert "nothing could be cross-validated" in section("measured", one)
    assert "(cross-validated)" not in section("summary", one)


# Escaping.


def test_hostile_names_are_shown_as_they_are(unmeasured):
    source = load("h100-sxm")
    gpu = replace(
        source,
        slug=HOSTILE,
        device_names=(HOSTILE,),
        spec_source=HOSTILE,
        model={key: replace(f, source=HOSTILE) for key, f in source.model.items()},
    )
    forecasts = [replace(f, gpu=gpu) for f in unmeasured.forecasts]
    comparison = replace(unmeasured.comparison, gpu=gpu)
    text = report.page(replace(unmeasured, gpu=gpu, forecasts=forecasts, comparison=comparison))
    assert "<script" not in text and "alert('1')" not in text
    page = Page(text)
    assert f"No kernel was measured on {HOSTILE}" in page.sections["summary"]
    assert f"Source: {HOSTILE}." in page.sections["gpu"]
    assert f"report --gpu {HOSTILE}" in page.sections["measured"]
    name = report.default_name(gpu)
    assert re.fullmatch(r"report-[A-Za-z0-9._-]+\.html", name)


def test_only_html_is_left_as_it_is():
    assert paragraph("a < b & c") == "<p>a &lt; b &amp; c</p>"
    assert bullets([Html("<b>x</b>"), "<b>"]) == "<ul>\n<li><b>x</b></li>\n<li>&lt;b&gt;</li>\n</ul>"
    text = table(["<h>"], [["<c>"], [None]], caption='"<t>"')
    assert "<h>" not in text and "<c>" not in text and "<t>" not in text and "<td>-</td>" in text


# The file.


@pytest.fixture
def quick(measured, h200_text, monkeypatch):
    """The command without the seconds that the findings and figures take."""
    monkeypatch.setattr(report, "gather", lambda gpu, say: measured)
    monkeypatch.setattr(report, "page", lambda found: h200_text if found is measured else "")


def test_the_command_prints_where_the_file_is(quick, h200_text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", "--gpu", "h200-sxm"]) == 0
    assert capsys.readouterr().out == "report-h200-sxm.html\n"
    target = tmp_path / "other.htm"
    assert cli.main(["report", "--gpu", "h200-sxm", "--output", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    for name in ("other.htm", "report-h200-sxm.html"):
        assert (tmp_path / name).read_text(encoding="utf-8") == h200_text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.htm", "report-h200-sxm.html"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("report.pdf", "accepted: a name that ends in .html or .htm"),
        ("report", "accepted: a name that ends in .html"),
        ("nowhere/report.html", "accepted: a file in a folder that exists"),
        ("folder.html", "accepted: the name of a file"),
    ],
)
def test_outputs_that_are_refused_before_any_work(name, message, capsys, tmp_path, monkeypatch):
    (tmp_path / "folder.html").mkdir()
    monkeypatch.setattr(report, "gather", lambda *_, **__: pytest.fail("worked before it looked at the name"))
    assert cli.main(["report", "--gpu", "h200-sxm", "--output", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err
    assert [p.name for p in tmp_path.iterdir()] == ["folder.html"]


def test_unknown_gpu_is_3(capsys, tmp_path):
    target = tmp_path / "r.html"
    assert cli.main(["report", "--gpu", "h300", "--output", str(target)]) == 3
    assert "unknown GPU" in capsys.readouterr().err and not target.exists()


def test_without_matplotlib_nothing_is_written(capsys, tmp_path, monkeypatch):
    from costmodel import plots

    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["report", "--gpu", "h200-sxm", "--output", str(tmp_path / "r.html")]) == 2
    assert "needs matplotlib" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", ["page", "replace"])
def test_a_failure_leaves_the_file_as_it_was(fails, quick, tmp_path, monkeypatch):
    target = tmp_path / "r.html"
    target.write_text("before")

    def fail(*_):
        raise OSError("disk full")

    if fails == "page":
        monkeypatch.setattr(report, "page", fail)
    else:
        monkeypatch.setattr(report, "page", lambda found: "short")
        monkeypatch.setattr(measurements.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report.write("h200-sxm", output=target)
    assert target.read_text() == "before" and list(tmp_path.iterdir()) == [target]


def test_the_template_lies_beside_the_module():
    assert report.TEMPLATE.is_file() and Path(report.__file__).parent == report.TEMPLATE.parent


def test_hardware_counters_stand_beside_the_counts(h200, h100):
    from costmodel import counters

    caption = "Counts beside the hardware's own counters, large cases"
    rows = h200.tables[caption][1:]
    entries = counters.read("h200-sxm")
    assert [(row[0], int(row[2].replace(",", ""))) for row in rows] == [
        (e.family, e.predicted) for e in entries
    ]
    assert caption not in h100.tables


def test_calibrated_curves_are_tables():
    from costmodel import report_instruments
    from costmodel.calibration import CURVES, Curve

    assert set(report_instruments.CURVE_NAMES) == set(CURVES)
    gpu = load("h100-sxm")
    curve = Curve((1048576.0, 2097152.0), (1.3e12, 1.75e12), "here", "2026-11-30")
    page = Page("".join(report_instruments.curves(replace(gpu, curves={"copy_against_size": curve}))))
    (rows,) = page.tables.values()
    assert rows[1:] == [["1.05 MB", "1.3 TB/s"], ["2.1 MB", "1.75 TB/s"]]
    assert report_instruments.curves(gpu) == []
