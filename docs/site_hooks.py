"""What `mkdocs build` does to the pages beside rendering Markdown: formulas, headings' names, links out of docs/.

Formulas between dollar signs become MathML, which browsers show without a script. Headings get the names that GitHub
gives them, so the same links work in both places. A link to a file of the repository that is not a page is kept as
text, and fails the build when there is no such file.
"""

from __future__ import annotations

import html
import re
import unicodedata
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

DOCS = Path(__file__).parent
_CODE = re.compile(r"(^```.*?^```$|^(?: {4}[^\n]*\n)+|`+[^`]+`+)", re.MULTILINE | re.DOTALL)
_FORMULA = re.compile(
    r"\$\$(?P<block>.+?)\$\$|(?<![\w$\\])\$(?P<inline>[^\s$](?:[^$]*[^\s$])?)\$(?![\w$])", re.DOTALL
)
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
_PAGES = "<!-- pages -->"
_formulas: dict[str, list[str]] = {}


def slug(title: str, separator: str = "-") -> str:
    """A heading's anchor as GitHub makes it: letters, digits, hyphens and underscores, spaces to hyphens."""
    text = unicodedata.normalize("NFC", html.unescape(title)).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", separator)


def on_config(config: Any) -> Any:
    """Name headings as GitHub does."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Take the formulas out, list the pages where that is asked for, and check links to other files."""
    kept = _formulas[page.file.src_uri] = []

    def formula(found: re.Match[str]) -> str:
        block = found["block"] is not None
        kept.append(convert(found["block"] or found["inline"], display="block" if block else "inline"))
        return f"@@formula{len(kept) - 1}@@"

    def outside(found: re.Match[str]) -> str:
        target = (DOCS / found[2]).resolve()
        if not target.exists():
            raise ValueError(f"{page.file.src_uri}: [{found[1]}]({found[2]}): there is no such file")
        return f"{found[1]} (`{target.relative_to(DOCS.parent)}`)"

    if _PAGES in markdown:
        markdown = markdown.replace(_PAGES, _contents(files))
    parts = _CODE.split(markdown)
    parts[::2] = [_OUTSIDE.sub(outside, _FORMULA.sub(formula, part)) for part in parts[::2]]
    return "".join(parts)


def _contents(files: Any) -> str:
    """A list of all pages but this one, by title, each with its first sentence."""
    lines = []
    for file in sorted(files.documentation_pages(), key=lambda f: f.src_uri):
        if file.src_uri != "index.md":
            title, sentence = summary(Path(file.abs_src_path).read_text(encoding="utf-8"))
            lines.append(f"- [{title}]({file.src_uri}): {sentence}")
    return "\n".join(lines)


def summary(markdown: str) -> tuple[str, str]:
    """The title of a page and the first sentence of its text, without links."""
    head, _, rest = markdown.partition("\n")
    paragraph = " ".join(rest.strip().split("\n\n", 1)[0].split())
    plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", paragraph)
    return head.removeprefix("# ").strip(), re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0].rstrip(":.") + "."


def on_page_content(content: str, *, page: Any, config: Any, files: Any) -> str:
    """Put the formulas back."""
    for number, formula in enumerate(_formulas.pop(page.file.src_uri)):
        content = content.replace(f"@@formula{number}@@", formula)
    return content
