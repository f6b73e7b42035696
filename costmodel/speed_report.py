"""The measured tables of the documents: ``python -m costmodel.speed_report --write``.

Without ``--write`` it says which tables differ from the measurements, and exits with 1 if one does. A table stands
between two comments, ``<!-- name: begin -->`` and ``<!-- name: end -->``; text that is no figure (what binds a length)
is taken over from the table as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from costmodel import (
    comparisons,
    counters,
    documents,
    fit_report,
    gradient_report,
    long_report,
    measurements,
    render,
    summary_report,
)
from costmodel.gpus import load
from costmodel.measurements import Row

GPU = "h200-sxm"
BATCH, CHANNELS = 64, 768
ROOT = Path(__file__).parent.parent
HALF_BYTES = 2


@cache
def _rows() -> dict[tuple[str, str, str], Row]:
    return {(row.case, row.dtype, row.provider): row for row in measurements.read(GPU, op="fftconv")}


def row_of(n: int, variant: str = "plain", dtype: str = "fp16", provider: str = "ours") -> Row:
    """The measured row of a transform length. Raises ``KeyError`` where there is none."""
    length = n // 2 if variant.startswith("causal") else n
    case = f"B={BATCH};H={CHANNELS};N={n};L={length};variant={variant}"
    return _rows()[case, dtype, provider]


def lengths(dtype: str = "fp16") -> list[int]:
    """Transform lengths with a plain row of the default plan."""
    found = {int(row.case_values["N"]) for key, row in _rows().items() if key[1:] == (dtype, "ours")}
    return sorted(
        n for n in found if (f"B={BATCH};H={CHANNELS};N={n};L={n};variant=plain", dtype, "ours") in _rows()
    )


def copy_us(n: int) -> float:
    """Microseconds to read every sequence of n halves once and write it once, at the GPU's measured copy rate."""
    return BATCH * CHANNELS * n * 2 * HALF_BYTES / load(GPU).measured["device_copy_bytes_per_s"].median * 1e6


def figure(us: float) -> str:
    """Microseconds with three digits or more."""
    return f"{us:.1f}" if us < 99.95 else f"{us:.0f}"


def plan_of(row: Row) -> str:
    """The plan that the row's note names."""
    words = dict(part.partition("=")[::2] for part in row.note.replace(" ", "").split(";"))
    return f"{words['plan']} {words.get('packing', '')}".strip()


def speed() -> list[str]:
    """README's table: every length beside torch and the floor."""
    lines = [
        f"One H200, {BATCH} sequences of {CHANNELS} channels, fp16, circular; microseconds of GPU time.",
        "",
        "| N | plan | ours | torch, fp32 | speed-up | floor | ours / floor | relative error |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for n in lengths():
        ours, torch = row_of(n), row_of(n, dtype="fp32", provider="torch").median_us
        us, floor = ours.median_us, copy_us(n)
        error = f"{ours.rel_err:.1e}".replace("e-0", "e-")
        lines.append(
            f"| {n} | {plan_of(ours)} | {figure(us)} | {figure(torch)} | {torch / us:.1f} | {figure(floor)} | "
            f"{us / floor:.2f} | {error} |"
        )
    return lines


def binds(old: Sequence[str]) -> list[str]:
    """The table of docs/kernels.md that says what binds each length; the reasons are those of ``old``."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in old if line.startswith("|")]
    reasons = {row[0]: row[-1] for row in cells}
    lines = [
        "| N | plan | floor | time | ratio | torch | speed-up | what binds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n in lengths():
        ours, torch = row_of(n), row_of(n, dtype="fp32", provider="torch").median_us
        us, floor = ours.median_us, copy_us(n)
        lines.append(
            f"| {n} | {plan_of(ours)} | {figure(floor)} | {figure(us)} | {us / floor:.2f} | {figure(torch)} | "
            f"{torch / us:.1f} | {reasons.get(str(n), 'not profiled')} |"
        )
    return lines


def variants() -> list[str]:
    """The table of docs/kernels.md with the other types and variants."""
    lines = [
        "| N | plain | bf16 | / plain | causal | / plain | gated | / (plain + reads) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n in lengths():
        plain = row_of(n).median_us
        bf16, causal = row_of(n, dtype="bf16").median_us, row_of(n, "causal").median_us
        gated = row_of(n, "gated").median_us
        lines.append(
            f"| {n} | {figure(plain)} | {figure(bf16)} | {bf16 / plain:.2f} | {figure(causal)} | "
            f"{causal / plain:.2f} | {figure(gated)} | {gated / (plain + copy_us(n)):.2f} |"
        )
    return lines


def prediction_error() -> list[str]:
    """README's table of how far predictions are off."""
    lines = ["| operation | cases | median error | nine in ten within |", "|---|---:|---:|---:|"]
    for name, comparison in comparisons.compare_all(GPU).items():
        errors = comparison.summary()
        middle, most = (
            100 * float(str(errors[key])) for key in ("median_abs_rel_error", "p90_abs_rel_error")
        )
        lines.append(f"| `{name}` | {errors['cases']} | {middle:.1f} % | {most:.1f} % |")
    return lines


def regrets() -> list[str]:
    """What decisions cost, for those that were measured with two choices or more, and the worst of each kind."""
    lines = ["| operation | decision | cases | p95 regret | worst |", "|---|---|---:|---:|---|"]
    for name, comparison in comparisons.compare_all(GPU).items():
        for kind, found in comparison.summary()["decisions"].items():
            if found["cases"]:
                worst = max((d for d in comparison.decisions if d.kind == kind), key=lambda d: d.regret)
                what = f"{worst.regret:.3f}, {worst.case.replace(';', ' ')}: {worst.chosen}, not {worst.best}"
                what = what if worst.regret > 1 else "1.000"
                lines.append(
                    f"| `{name}` | `{kind}` | {found['cases']} | {found['regret_p95']:.3f} | {what} |"
                )
    return lines


@dataclass(frozen=True)
class Table:
    """A table of a document: its name, and what makes its lines from the old ones."""

    document: str
    name: str
    make: Callable[[Sequence[str]], list[str]]

    @property
    def path(self) -> Path:
        """The document."""
        return ROOT / self.document

    def replaced(self) -> tuple[str, str]:
        """The document as it is, and with this table made anew. Raises ``ValueError`` where it has no such place."""
        text = self.path.read_text(encoding="utf-8")
        return text, documents.replaced(text, self.name, self.make, where=self.document)


TABLES = (
    Table("README.md", "speed", lambda _: summary_report.lines(GPU)),
    Table("README.md", "prediction-error", lambda _: prediction_error()),
    Table("README.md", "measured-speed", lambda _: speed()),
    Table("docs/cost-model.md", "regrets", lambda _: regrets()),
    Table("docs/cost-model.md", "fit", lambda _: fit_report.lines(GPU)),
    Table("docs/cost-model.md", "counters", lambda _: counters.table(counters.read(GPU), "md").splitlines()),
    Table("docs/kernels.md", "what-binds", binds),
    Table("docs/kernels.md", "variants", lambda _: variants()),
    Table("docs/gradients.md", "gradient-speed", lambda _: gradient_report.lines()),
    Table("docs/long.md", "long-measured", lambda _: long_report.tables()),
    Table("docs/long.md", "long-traffic", lambda _: long_report.traffic()),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.speed_report", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument("--write", action="store_true", help="put the tables into the documents")
    chosen = parser.parse_args(arguments)
    stale = 0
    for table in TABLES:
        old, new = table.replaced()
        if old == new:
            continue
        stale += 1
        if chosen.write:
            table.path.write_text(new, encoding="utf-8")
        render.note(f"{table.document}, {table.name}: {'written' if chosen.write else 'not as measured'}")
    return 0 if chosen.write or not stale else 1


if __name__ == "__main__":
    sys.exit(main())
