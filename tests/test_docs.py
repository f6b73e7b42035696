"""The documentation's links: built strictly, as `make docs` does, and checked again without that tool."""

import html
import re
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
DOCUMENTS = [*PAGES, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
CODE = re.compile(r"^```.*?^```$|`+[^`]+`+", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
OPERATION_PAGES = {"fftconv": "fftconv.md", "linear": "linear.md", "decode_attention": "attention.md"}


def anchors(path: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    found: set[str] = set()
    for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "")
        name = re.sub(r"[^\w\- ]", "", unicodedata.normalize("NFC", html.unescape(plain)).strip().lower())
        name, number = name.replace(" ", "-"), 0
        while (name if not number else f"{name}-{number}") in found:
            number += 1
        found.add(name if not number else f"{name}-{number}")
    return found


def broken(path: Path, text: str) -> list[str]:
    """The links of a document that lead nowhere; those to other sites are not followed."""
    wrong = []
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        if not there.exists():
            wrong.append(f"{path.name}: {target}: no such file")
        elif anchor and (there.suffix != ".md" or anchor not in anchors(there)):
            wrong.append(f"{path.name}: {target}: no such heading")
    return wrong


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    assert broken(path, path.read_text()) == []


def test_broken_links_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n## What binds\n")
    text = "[a](#what-binds) [b](page.md) [c](other.md) [d](#what) [e](page.md#What) `[f](code.md)` [g](https://x.org)"
    assert broken(page, text) == [
        "page.md: other.md: no such file",
        "page.md: #what: no such heading",
        "page.md: page.md#What: no such heading",
    ]


def test_every_operation_has_a_page() -> None:
    from costmodel.cli import OPERATIONS

    names = {page.name for page in PAGES}
    missing = [op for op in OPERATIONS if OPERATION_PAGES.get(op, f"{op}.md") not in names]
    assert not missing


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Build a folder of pages into another one with the project's own settings; the warnings are errors."""
    pytest.importorskip("mkdocs", reason="`pip install '.[dev]'` brings it")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    def run(site: Path, **changes: str) -> None:
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site), **changes))

    return run


@pytest.mark.filterwarnings("default")
def test_the_site_builds(build, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    build(tmp_path / "site")
    site = {path.name: path.read_text() for path in (tmp_path / "site").glob("*.html")}
    assert {f"{page.stem}.html" for page in PAGES} <= set(site)
    for page in PAGES:
        if page.name != "index.md":  # every page is in the list and in the menu, without being named anywhere
            assert f'href="{page.stem}.html"' in site["index.html"]
    assert "<math" in site["mathematics.html"] and "@@formula" not in "".join(site.values())
    for name, text in site.items():
        loaded = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(https?:[^\"]+)\"", text)
        assert not loaded, f"{name} loads {loaded[0]}"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "text", ["[a](nowhere.md)", "[a](#nothing)", "[a](../no/such/file.py)"], ids=["page", "heading", "file"]
)
def test_a_broken_link_stops_the_build(build, tmp_path: Path, text: str) -> None:  # type: ignore[no-untyped-def]
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "index.md").write_text(f"# Title\n\n{text}\n")
    with pytest.raises(Exception, match=r"warning|no such file|[Aa]borted"):
        build(tmp_path / "site", docs_dir=str(pages))
