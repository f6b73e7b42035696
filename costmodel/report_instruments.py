"""Tables of the report about the instrument: counts beside hardware counters, and calibrated curves."""

from __future__ import annotations

from html import escape

from costmodel import counters, units
from costmodel.calibration import CURVES
from costmodel.gpus import GPU
from costmodel.report_html import Html, table

CURVE_NAMES = {
    "read_against_bytes_in_flight": "reading, by bytes asked for at once on an SM",
    "read_against_size": "reading once what no cache has, by size",
    "copy_against_size": "copying once what no cache has, by size",
    "repeated_read_against_size": "reading again and again, by size",
}


def counted(gpu: GPU) -> list[str]:
    """The model's counts beside the hardware's; nothing where no counters were read."""
    entries = counters.read(gpu.slug)
    if not entries:
        return []
    rows = [
        (e.family, e.quantity.replace("_", " "), f"{e.predicted:,}", f"{e.measured:,}", f"{e.error:+.1%}")
        for e in entries
    ]
    header = ("kernel family", "quantity", "counted", "hardware", "difference")
    listing = table(header, rows, caption="Counts beside the hardware's own counters, large cases")
    families = len({e.family for e in entries})
    worst = max(abs(e.error) for e in entries)
    text = f"Counts beside the hardware's own counters: {families} kernel families, at most {worst:.1%} apart"
    return [Html(f"<details><summary>{escape(text)}</summary>\n{listing}\n</details>")]


def curves(gpu: GPU) -> list[str]:
    """A table of every calibrated curve."""
    found = []
    for key, curve in gpu.curves.items():
        rows = [
            (units.quantity(x, "B"), units.quantity(y, "B/s")) for x, y in zip(curve.x, curve.y, strict=True)
        ]
        found.append(table(tuple(CURVES[key]), rows, caption=f"Measured: {CURVE_NAMES[key]}"))
    return found
