"""Parts of documents that commands write: what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from costmodel import measurements


def marks(name: str) -> tuple[str, str]:
    """The two comments around a part."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def replaced(text: str, name: str, make: Callable[[Sequence[str]], Sequence[str]], *, where: str) -> str:
    """A document's text with one part made anew from its old lines. Raises ``ValueError`` where it has no such part."""
    begin, end = marks(name)
    before, found, rest = text.partition(begin + "\n")
    old, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{where}: no place for a table between {begin} and {end}")
    return "\n".join([before + begin, *make(old.splitlines()), end]) + after


def write(path: Path, parts: Mapping[str, Sequence[str]]) -> None:
    """Put the lines of parts, by name, into a document; ``ValueError`` where it lacks one, and nothing is written."""
    text = path.read_text(encoding="utf-8")
    for name, lines in parts.items():
        text = replaced(text, name, lambda _, lines=lines: lines, where=path.name)  # type: ignore[misc]
    measurements.write_whole(path, text)
