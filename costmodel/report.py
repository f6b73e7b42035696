"""``costmodel report``: all that the model says about one GPU, as one HTML file that needs nothing else.

`costmodel.report_findings` asks the other modules, `page` writes HTML from what they said (every text in it escaped,
every figure inline as SVG), `write` puts that into a file at once or not at all. The file has no script and loads
nothing.
"""

from __future__ import annotations

import re
from datetime import date
from html import escape
from pathlib import Path
from string import Template

from costmodel import measurements, render
from costmodel.gpus import GPU, load
from costmodel.report_findings import Findings, Say, gather
from costmodel.report_sections import SECTIONS

TEMPLATE = Path(__file__).with_name("report.html")
ENDINGS = (".html", ".htm")


def page(found: Findings) -> str:
    """The whole page."""
    sections = "\n".join(
        f'<section id="{name}">\n<h2>{escape(title)}</h2>\n' + "\n".join(pieces(found)) + "\n</section>"
        for name, (title, pieces) in SECTIONS.items()
    )
    gpu = found.gpu
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(f"Cost model report: {gpu.device_names[0]} ({gpu.slug})"),
        about=escape(
            f"Compute capability {gpu.compute_capability}. Made on {date.today().isoformat()} by monarch-numba "
            f"{render.version()}. us: microseconds; K, M: 2^10, 2^20. An interval is one standard deviation to either "
            "side."
        ),
        contents="\n".join(
            f'<li><a href="#{name}">{escape(title)}</a></li>' for name, (title, _) in SECTIONS.items()
        ),
        sections=sections,
        footer=escape(
            "The same in a terminal: python -m costmodel --help. How the model works: docs/cost-model.md."
        ),
    )


def default_name(gpu: GPU) -> str:
    """``report-<slug>.html``; what is no letter, digit, dot, dash or underscore in a slug becomes a dash."""
    return f"report-{re.sub(r'[^A-Za-z0-9._-]+', '-', gpu.slug)}.html"


def check_output(path: str | Path) -> Path:
    """``path``, or a ``ValueError`` that says what is accepted."""
    target = Path(path)
    if target.suffix.lower() not in ENDINGS:
        raise ValueError(f"--output: got {str(path)!r}; accepted: a name that ends in {' or '.join(ENDINGS)}")
    if not target.parent.is_dir():
        raise ValueError(
            f"--output: there is no folder {str(target.parent)!r}; accepted: a file in a folder that exists"
        )
    if target.is_dir():
        raise ValueError(f"--output: {str(path)!r} is a folder; accepted: the name of a file")
    return target


def write(gpu: str | GPU, *, output: str | Path | None = None, say: Say = lambda text: None) -> Path:
    """Make the report of a GPU and write it; returns where. On any error no file changes.

    Raises:
        ValueError: an output that is not accepted, or no matplotlib.
        UnknownGPUError: no such GPU.
    """
    from costmodel.plots import _need_matplotlib

    chosen = load(gpu)
    target = check_output(output if output is not None else default_name(chosen))
    _need_matplotlib()
    found = gather(chosen, say=say)
    say("figures")
    measurements.write_whole(target, page(found))
    return target


def main(gpu: str, *, output: str | None = None) -> int:
    """The command: progress on stderr, the file's name on stdout."""
    from rich.console import Console

    console = Console(file=None, stderr=True)
    with console.status("report") as status:
        path = write(gpu, output=output, say=lambda text: status.update(f"report: {text}"))
    print(path)
    return 0
