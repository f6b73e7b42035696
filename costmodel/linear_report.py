"""The measured parts of ``docs/linear.md``: ``python -m costmodel.linear_report --gpu h200-sxm --write``.

Without ``--write`` they are printed: the products of Llama2-7B beside the vendor's library, shapes that are not whole
multiples, what was set and what was reached, and a decode step with each technique on and off; all from
``costmodel/measurements``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from costmodel import documents, linear, measure_decode, measurements, render
from costmodel.compare_linear import WIDTH
from costmodel.errors import UnknownGPUError
from costmodel.gpus import load
from costmodel.measurements import Row
from costmodel.models import model, models

DOCUMENT = Path(__file__).parent.parent / "docs" / "linear.md"
MODEL = "llama2-7b"
VENDOR, OVERLAPPED, DISPATCH = "cublas", "-overlapped", "dispatch"
TARGETS = {"qkv": (26.0, 24.0), "o": (10.5, 9.0), "ffn1": (24.0, 21.5), "ffn2": (24.5, 22.0)}
"""Microseconds for up to 16 rows that were set before: at most, and the aim."""
FEW, SOME, MANY = (1, 2, 4, 8, 16), (32, 64), (256, 512, 1024, 2048)
WITHIN = 1.03
"""How far behind the fastest provider dispatch may be."""
NAMES = {"gemv": "vector", "flat": "flat", "full": "full"}
Providers = dict[str, Row]


class Times:
    """Measured rows by [N, K], M and provider."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.found: dict[tuple[int, int], dict[int, Providers]] = {}
        for row in rows:
            if row.dtype == "fp16" and not row.provider_variant.startswith(WIDTH):
                case = row.case_values
                pair = (int(case["N"]), int(case["K"]))
                self.found.setdefault(pair, {}).setdefault(int(case["M"]), {})[row.provider] = row

    def best(self, pair: tuple[int, int], m: int, *, overlap: bool = False) -> tuple[float, str] | None:
        """Microseconds and name of the fastest kernel of ours."""
        found = [
            (row.median_us, NAMES[row.provider_variant.removesuffix(OVERLAPPED)])
            for name, row in self.found.get(pair, {}).get(m, {}).items()
            if row.ours and name.endswith(OVERLAPPED) == overlap
        ]
        return min(found, default=None)

    def vendor(self, pair: tuple[int, int], m: int) -> float | None:
        """Microseconds of the vendor's library."""
        row = self.found.get(pair, {}).get(m, {}).get(VENDOR)
        return None if row is None else row.median_us


def _figure(us: float | None) -> str:
    return "-" if us is None else f"{us:.1f}"


def _ratio(above: float | None, below: tuple[float, str] | None) -> str:
    return "-" if above is None or below is None else f"{above / below[0]:.2f}"


def measured(rows: Sequence[Row], gpu: str) -> list[str]:
    """Every layer and M of `MODEL` beside the library, then the others in short."""
    times, layers = Times(rows), model(MODEL).linear
    commits = list(dict.fromkeys(row.commit.removesuffix("+") for row in rows))
    runs = (
        f"commit {commits[0]}" if len(commits) == 1 else f"commits {', '.join(commits)}: boards differ by 3 %"
    )
    rate = linear.rates(gpu).memory_bytes_per_s
    board = load(gpu).slug.partition("-")[0].upper()
    lines = [
        f"{board}, fp16, weights rotated through more than L2, microseconds of GPU time in a CUDA graph; of an M the",
        f"library and the fastest of ours in one run ({runs}). *One after another*: the",
        "fastest of our kernels as `linear` launches it. *Overlapped*: the same with `overlap=True`. *Floor*: the",
        f"weights at {rate / 1e12:.2f} TB/s. The library is cuBLAS through `torch.matmul`.",
    ]
    for name, pair in layers.items():
        floor = 2e6 * pair[0] * pair[1] / rate
        lines += ["", f"**{name} [{pair[0]}, {pair[1]}]**, floor {floor:.1f}", ""]
        header = ["M", "cuBLAS", "one after another", "/ cuBLAS", "overlapped", "/ cuBLAS"]
        lines += _table(header, [_row(times, pair, m) for m in sorted(times.found.get(pair, {}))])
    return [*lines, *_other_shapes(times, set(layers.values()))]


def _row(times: Times, pair: tuple[int, int], m: int) -> list[str]:
    vendor = times.vendor(pair, m)
    cells = [str(m), _figure(vendor)]
    for overlap in (False, True):
        best = times.best(pair, m, overlap=overlap)
        cells += (
            [f"{best[0]:.1f} {best[1]}", f"{best[0] / vendor:.2f}" if vendor else "-"] if best else ["-", "-"]
        )
    return cells


def _other_shapes(times: Times, done: set[tuple[int, int]]) -> list[str]:
    """The library's time over ours for the shapes of other models and of none, by M."""
    owners = _owners()
    shapes = [pair for pair in times.found if pair not in done]
    if not shapes:
        return []
    sizes = sorted({m for pair in shapes for m in times.found[pair]})
    rows = []
    for pair in shapes:
        cells = [_ratio(times.vendor(pair, m), times.best(pair, m)) for m in sizes]
        rows.append([owners.get(pair, ""), f"[{pair[0]}, {pair[1]}]", *cells])
    title = (
        "**Other shapes**: the library's time over that of the fastest of ours, launched one after another."
    )
    return ["", title, "", *_table(["", "[N, K]", *(f"M = {m}" for m in sizes)], rows, left=2)]


def _owners() -> dict[tuple[int, int], str]:
    """Which model's layer a shape is; the first one's where several have it."""
    found: dict[tuple[int, int], str] = {}
    for slug, one in models().items():
        for layer, pair in one.linear.items():
            found.setdefault(pair, f"{slug} {layer}")
    return found


def dispatched(rows: Sequence[Row]) -> list[str]:
    """What dispatch picks beside the fastest provider of each case: the ratio of their times, by layer and M."""
    cases: dict[tuple[int, int], dict[int, float]] = {}
    for pair, by_m in Times(rows).found.items():
        for m, providers in by_m.items():
            if DISPATCH in providers and VENDOR in providers:
                one_by_one = [r.median_us for name, r in providers.items() if not name.endswith(OVERLAPPED)]
                cases.setdefault(pair, {})[m] = providers[DISPATCH].median_us / min(one_by_one)
    if not cases:
        return ["Not measured yet."]
    sizes = sorted({m for found in cases.values() for m in found})
    names = _owners()
    table = []
    for pair, found in cases.items():
        cells = [f"{found[m]:.2f}" if m in found else "-" for m in sizes]
        table.append([names.get(pair, ""), f"[{pair[0]}, {pair[1]}]", *cells])
    ratios = sorted(ratio for found in cases.values() for ratio in found.values())
    late = sum(ratio > WITHIN for ratio in ratios)
    return [
        f"{len(ratios)} cases: at most {WITHIN - 1:.0%} behind in {len(ratios) - late}, {ratios[-1] - 1:.1%} at worst,",
        f"{ratios[int(0.95 * (len(ratios) - 1))] - 1:.1%} or less in 95 of 100.",
        "",
        *_table(["", "[N, K]", *(f"M = {m}" for m in sizes)], table, left=2),
    ]


def targets(rows: Sequence[Row]) -> list[str]:
    """What was set for each layer of `MODEL`, and what was reached."""
    times, layers = Times(rows), model(MODEL).linear
    few = []
    for name, pair in layers.items():
        cells = []
        for m in FEW:
            early, late = (times.best(pair, m, overlap=overlap) for overlap in (True, False))
            cells.append(f"{early[0]:.1f} ({late[0]:.1f})" if early and late else "-")
        few.append([f"{name} [{pair[0]}, {pair[1]}]", *(f"{us:.1f}" for us in TARGETS[name]), *cells])
    many = []
    for name, pair in layers.items():
        cells = []
        for m in SOME:
            modes = [_ratio(times.vendor(pair, m), times.best(pair, m, overlap=o)) for o in (True, False)]
            cells.append(f"{modes[0]} ({modes[1]})")
        cells += [_ratio(times.vendor(pair, m), times.best(pair, m)) for m in MANY]
        many.append([name, *cells])
    return [
        "Overlapped launches, and in parentheses one after another, microseconds:",
        "",
        *_table(["layer", "must", "aim", *(f"M = {m}" for m in FEW)], few, left=1),
        "",
        "The library's time over ours (M = 32 and 64: overlapped, in parentheses one after another; from 256 on one "
        "after",
        "another, where 0.60 was set):",
        "",
        *_table(["layer", *(f"M = {m}" for m in (*SOME, *MANY))], many, left=1),
    ]


def decode(rows: Sequence[Row]) -> list[str]:
    """A decode step, each technique on and off."""
    found = [row for row in rows if row.case_values["model"] == MODEL]
    names = [v.name for v in measure_decode.variants()]
    titles = [name.removeprefix("ours:").replace("+", " + ") for name in names]
    return _table(["B", "L", *titles], [list(map(str, row)) for row in measure_decode.table(found)])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 0) -> list[str]:
    marks = ["---" if i < left else "---:" for i in range(len(header))]
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(marks) + "|"]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def sections(slug: str) -> dict[str, list[str]]:
    """Lines by the name of their marks in the document; raises ``ValueError`` where nothing was measured."""
    rows = measurements.read(slug, op="linear")
    steps = measurements.read(slug, op=measure_decode.OP)
    if not rows or not steps:
        what = "linear" if not rows else measure_decode.OP
        command = "costmodel measure --op linear" if not rows else "python -m costmodel.measure_decode"
        raise ValueError(f"nothing of {what} was measured on {slug}; run `{command}` there")
    return {
        "measured-linear": measured(rows, slug),
        "dispatch-linear": dispatched(rows),
        "targets-linear": targets(rows),
        "decode-step": decode(steps),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.linear_report", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument("--gpu", default="h200-sxm", metavar="GPU", help="slug (%(default)s)")
    parser.add_argument("--write", action="store_true", help="put them into docs/linear.md")
    chosen = parser.parse_args(arguments)
    try:
        found = sections(load(chosen.gpu).slug)
    except UnknownGPUError as error:
        render.note(str(error))
        return 3
    except ValueError as error:
        render.note(str(error))
        return 2
    if not chosen.write:
        print("\n\n".join("\n".join(lines) for lines in found.values()))
        return 0
    documents.write(DOCUMENT, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
