"""Answers as text: aligned tables, Markdown, CSV and JSON. Data goes to stdout, notes to stderr."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import math
import re
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FORMATS = ("table", "json", "csv", "md")
PROSE_WIDTH = 100


def version() -> str:
    """The version of the project, installed or not."""
    try:
        return importlib.metadata.version("monarch-numba")
    except importlib.metadata.PackageNotFoundError:
        project = Path(__file__).parent.parent / "pyproject.toml"
        return (
            str(tomllib.loads(project.read_text())["project"]["version"]) if project.exists() else "unknown"
        )


def document(kind: str, *, inputs: dict[str, Any], gpu: dict[str, Any] | None, **content: Any) -> str:
    """A JSON document: schema, version, inputs, gpu and the content; a number that is not finite is null."""
    body = {
        "schema": f"monarch-numba/{kind}/1",
        "version": version(),
        "inputs": inputs,
        "gpu": gpu,
        **content,
    }
    return json.dumps(_finite(body), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def rows_as(form: str, header: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "") -> str:
    """Rows as ``"table"``, ``"md"`` or ``"csv"`` text."""
    cells = [["" if v is None else str(v) for v in row] for row in rows]
    if form == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(cells)
        return out.getvalue().rstrip("\n")
    numeric = [all(is_number(row[i]) for row in cells) for i in range(len(header))]
    if form == "md":
        marks = ["---:" if n else "---" for n in numeric]
        return "\n".join("| " + " | ".join(line) + " |" for line in [list(header), marks, *cells])
    widths = [max(len(header[i]), *(len(row[i]) for row in cells), 0) for i in range(len(header))]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= PROSE_WIDTH else " "

    def line(row: Sequence[str]) -> str:
        parts = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True))
        return gap.join(parts).rstrip()

    rule = gap.join("-" * w for w in widths)
    return "\n".join([*([title] if title else []), line(header), rule, *(line(row) for row in cells)])


def prose(text: str, form: str) -> str:
    """Sentences, in lines that a narrow terminal shows whole; Markdown breaks its own."""
    return text if form == "md" else textwrap.fill(text, PROSE_WIDTH, break_on_hyphens=False)


def wrapped(text: str) -> str:
    """Lines that a narrow terminal shows whole; what follows of a long one stands further in."""
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 4)
        lines.append(
            textwrap.fill(line, PROSE_WIDTH, subsequent_indent=indent, break_on_hyphens=False)
            if line
            else line
        )
    return "\n".join(lines)


def is_number(cell: str) -> bool:
    """Whether a table shows a cell as a number, to the right; empty cells and dashes go with either."""
    head = cell.strip().lstrip("+-~").split(" ")[0].rstrip("%xKMG*")
    return cell in ("", "-") or re.fullmatch(r"\d+(\.\d+)?(e[+-]\d+)?", head) is not None


def note(text: str) -> None:
    """One line for the reader, on stderr."""
    print(f"note: {text}", file=sys.stderr)
