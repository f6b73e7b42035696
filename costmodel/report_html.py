"""Pieces of the report's page. Every text is escaped where it is put in, unless it is `Html` already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from costmodel import render, report_figures


class Html(str):
    """Text that is HTML already; any other text is escaped where it is put into the page."""


def _text(value: object) -> str:
    return value if isinstance(value, Html) else escape(str(value))


def paragraph(text: object, *, kind: str = "") -> str:
    """A paragraph, of a class."""
    return f'<p class="{kind}">{_text(text)}</p>' if kind else f"<p>{_text(text)}</p>"


def bullets(texts: Iterable[object]) -> str:
    """A list."""
    return "<ul>\n" + "\n".join(f"<li>{_text(text)}</li>" for text in texts) + "\n</ul>"


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], *, caption: str, wide: Sequence[str] = ()
) -> str:
    """A table that scrolls by itself; columns of numbers to the right, those named in ``wide`` with broken lines."""
    texts = [["-" if cell is None or cell == "" else cell for cell in row] for row in rows]
    kinds = []
    for i, name in enumerate(header):
        numbers = all(render.is_number(str(row[i])) for row in texts)
        kinds.append(' class="wide"' if name in wide else ' class="number"' if numbers else "")
    head = "".join(
        f'<th scope="col"{kind}>{_text(name)}</th>' for name, kind in zip(header, kinds, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(f"<td{kind}>{_text(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in texts
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">\n<table>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def picture(figure: Any, name: str, caption: str) -> str:
    """A figure with what it shows in words below it."""
    svg = report_figures.inline_svg(figure, label=caption, prefix=name)
    return f"<figure>\n{svg}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"
