"""Equation 2 beside the paper's published times, in both readings of its table of orders."""

import json
from pathlib import Path

import pytest

from costmodel import cli, equation2, published

FOUND = published.predict()
BY_LENGTH = {p.published.n: p for p in FOUND}
K = 1024


def test_the_row_is_the_papers() -> None:
    assert [(p.published.n, p.published.theirs_ms, p.published.pytorch_ms) for p in FOUND] == [
        (256, 0.11, 0.62),
        (K, 0.29, 2.30),
        (4 * K, 1.43, 9.49),
        (8 * K, 3.58, 19.4),
        (16 * K, 12.2, 29.9),
        (32 * K, 26.3, 84.8),
        (K * K, 1768.9, 3071.4),
        (2 * K * K, 4623.5, 6342.6),
        (4 * K * K, 10049.4, 13031.2),
    ]


def test_the_two_readings() -> None:
    assert [p.orders["released"] for p in FOUND] == [2, 2, 3, 3, 3, 3, 4, 4, 4]
    assert [p.orders["text"] for p in FOUND] == [2, 2, 2, 2, 2, 2, 4, 4, 4]
    with pytest.raises(ValueError, match="reading: got 'both'; accepted: released, text"):
        FOUND[0].published.order("both")


def test_predictions_are_equation_2_by_hand() -> None:
    rates = equation2.constants("h100-sxm")
    sequences, n = 64 * 768, 4096
    order_2 = sequences * 2 * (16 * n * 64 / rates.tau_m + 4 * n / rates.sigma_s) * 1e3
    order_3 = sequences * 3 * (16 * n * 16 / rates.tau_m + 4 * n / rates.sigma_s) * 1e3
    found = BY_LENGTH[n]
    assert found.factors == {"released": (16, 16, 16), "text": (64, 64)}
    assert found.ms["text"] == pytest.approx(order_2, rel=1e-12)
    assert found.ms["released"] == pytest.approx(order_3, rel=1e-12)
    assert found.error("released") == pytest.approx(order_3 / 1.43 - 1, rel=1e-12)


def test_the_model_prefers_the_released_orders() -> None:
    """By its own best order at every length, and by the shape of the row."""
    released, text = (published.summarise(FOUND, reading) for reading in published.READINGS)
    assert (released.agrees, text.agrees, released.cases) == (9, 5, 9)
    assert published.preferred(FOUND) == "released"
    assert all(p.error(reading) < 0 for p in FOUND for reading in published.READINGS)
    assert released.median_shape_error < text.median_shape_error
    assert text.median_error < released.median_error  # nearer in time all the same: both are too low
    for p in FOUND:
        if p.orders["released"] == p.orders["text"]:
            assert p.ms["released"] == p.ms["text"]
        else:
            assert p.ms["released"] < p.ms["text"]


def test_a_common_factor_leaves_no_bias() -> None:
    s = published.summarise(FOUND, "released")
    shifted = [p.ms["released"] * s.factor / p.published.theirs_ms for p in FOUND]
    product = 1.0
    for ratio in shifted:
        product *= ratio
    assert product == pytest.approx(1, rel=1e-9)
    assert s.worst_shape_error == pytest.approx(max(abs(r - 1) for r in shifted))


@pytest.mark.parametrize("form", ["table", "csv", "md", "json"])
def test_command(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["published", "--format", form]) == 0
    out = capsys.readouterr().out
    if form == "json":
        document = json.loads(out)
        assert document["preferred"] == "released" and len(document["rows"]) == 9
        assert document["rows"][2]["text"]["predicted_ms"] == pytest.approx(BY_LENGTH[4 * K].ms["text"])
    elif form == "csv":
        lines = out.splitlines()
        assert lines[0].startswith(
            "N,published,best order,released_factors,released_says,released_error,text_factors"
        )
        assert len(lines) == 10 and lines[3].startswith("4096,1.43,3,16x16x16,")
    else:
        assert "10049.4 ms" in out and "arXiv 2311.05908" in out + published.text("table")
        assert "Equation 2 prefers 'released'" in " ".join(out.split())
        assert form == "md" or max(map(len, out.splitlines())) <= 110


def test_another_header_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "row.csv"
    path.write_text("n,ms\n256,0.11\n")
    monkeypatch.setattr(published, "FILE", path)
    with pytest.raises(ValueError, match=r"row\.csv: header: got 'n,ms'; accepted: n,theirs_ms"):
        published.read()


def test_the_documentation_shows_it() -> None:
    text = (Path(__file__).parent.parent / "docs" / "cost-model.md").read_text()
    shown = text.partition("<!-- published: begin -->\n")[2].partition("\n<!-- published: end -->")[0]
    assert shown == published.text("md"), "python -m costmodel published --format md"
