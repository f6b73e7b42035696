"""More commands of `cli.py`: the report, calibrating a GPU, the paper's model beside the paper's times."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def add(commands: Any, *, epilog: str, formats: tuple[str, ...], gpu_help: str) -> None:
    """Add these commands to a parser's."""
    h = commands.add_parser(
        "report",
        help="all that is known of a GPU, as one HTML file",
        description="Write one HTML page without scripts or other files: the GPU's values and their sources, best "
        "orders, memory floors, thresholds of linear layers, splits of decode attention, and predictions "
        "beside measurements.",
        epilog=epilog,
    )
    h.add_argument("--gpu", required=True, metavar="GPU", help=gpu_help)
    h.add_argument(
        "--output",
        metavar="FILE",
        help="a name that ends in .html or .htm (report-SLUG.html, in this folder)",
    )

    k = commands.add_parser(
        "calibrate",
        help="measure this machine's GPU into a GPU file",
        description="Measure bandwidths, rates and latencies of this GPU, in under three minutes, and write them "
        "with a copy of its specification. Goes on where it was stopped; a specification is never changed.",
        epilog=epilog,
    )
    k.add_argument("--gpu-file", required=True, metavar="FILE", help="the .toml file to write, or to compare")
    k.add_argument("--base", metavar="GPU", help="the specification to start from (the file of this device)")
    k.add_argument("--fresh", action="store_true", help="measure anew what the file has")
    k.add_argument(
        "--compare-host",
        action="store_true",
        help="write nothing; exit 1 when a rate is over 10 %% off the file's",
    )
    tables = tuple(form for form in formats if form != "json")
    k.add_argument("--format", default="table", choices=tables, help="table, csv or md (table)")

    p = commands.add_parser(
        "published",
        help="Equation 2 beside the times its authors published",
        description="FlashFFTConv's gated times on an H100 (arXiv 2311.05908), N = 256 to 4M, and what Equation 2 "
        "says of them, in both readings of which order was run.",
        epilog=epilog,
    )
    p.add_argument("--format", default="table", choices=formats, help="table, json, csv or md (table)")


def _report(options: argparse.Namespace) -> int:
    from costmodel.report import main as report

    return report(options.gpu, output=options.output)


def _calibrate(options: argparse.Namespace) -> int:
    from costmodel.calibrate_command import main

    return main(
        options.gpu_file,
        base=options.base,
        fresh=options.fresh,
        compare_host=options.compare_host,
        form=options.format,
    )


def _published(options: argparse.Namespace) -> int:
    from costmodel.published import text

    print(text(options.format))
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "report": _report,
    "calibrate": _calibrate,
    "published": _published,
}
