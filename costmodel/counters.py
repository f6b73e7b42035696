"""The model's counts beside the hardware's own counters: ``python -m costmodel.counters``.

Prints what was measured on a GPU (``costmodel/hardware_counters/<gpu>.csv``). With ``--measure`` it runs
every case once under Nsight Compute (``ncu``, which must be installed and allowed to read counters), and with
``--write`` keeps the result. Two quantities are compared, each for a case of every kernel family:

*device-memory bytes* (``dram__bytes_read.sum`` and ``dram__bytes_write.sum``). Cases are large, because what a kernel
wrote last is still in the L2 cache, not in memory, when it ends: at most that cache's size, some 2 % of these
cases' bytes.

*tensor-core instructions* of warps (``sm__inst_executed_pipe_tensor.sum``, less the moves that the compiler puts on the
same pipe, ``.._type_hfma2``): m16n8k16, m16n8k8 on TF32, and each warp's share of a warpgroup's ``wgmma``.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from costmodel import measurements, render, replays
from costmodel.errors import MeasurementError
from costmodel.measure_counters import Case, cases, chosen_cases, run_cases

FOLDER = Path(__file__).parent / "hardware_counters"
LIMIT = 0.05
"""Largest difference that is allowed between a count and the hardware's, relative."""
QUANTITIES = ("device_bytes", "tensor_instructions")
METRICS = {
    "read": "dram__bytes_read.sum",
    "write": "dram__bytes_write.sum",
    "tensor": "sm__inst_executed_pipe_tensor.sum",
    "moves": "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum",
}


@dataclass(frozen=True)
class Entry:
    """One quantity of one case: what the model counts and what the hardware counted; the fields are the columns."""

    family: str
    case: str
    quantity: str
    predicted: int
    measured: int
    date: str
    commit: str
    tool: str

    @property
    def error(self) -> float:
        """How far the count is off, relative; 0 where both are 0."""
        if self.predicted == self.measured:
            return 0.0
        return self.predicted / self.measured - 1 if self.measured else float("inf")


HEADER = ",".join(f.name for f in fields(Entry))


# ---- the hardware --------------------------------------------------------------------------------------------
def profile(chosen: Sequence[Case], *, tool: str = "ncu") -> list[dict[str, float]]:
    """The counters of `METRICS` of every launch of the cases: ncu around a process of its own.

    Raises:
        MeasurementError: ncu is not there or failed.
    """
    command = [
        *(tool, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"),
        *("--profile-from-start", "off"),
        *("--metrics", ",".join(METRICS.values())),
        *(
            sys.executable,
            "-m",
            "costmodel.counters",
            "--run",
            *(case.key for case in chosen),
        ),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise MeasurementError(
            f"{tool} cannot be started ({error}); install NVIDIA Nsight Compute"
        ) from error
    if done.returncode:
        raise MeasurementError(f"{tool} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return parse_profile(done.stdout, sum(len(case.launches) for case in chosen))


def parse_profile(text: str, count: int) -> list[dict[str, float]]:
    """The rows of ncu's raw page as CSV, one for each launch: `METRICS` by their short names.

    Raises:
        MeasurementError: another number of launches than ``count``, or a counter that is not there.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = [row for row in csv.DictReader(lines) if row.get("ID")]  # the line of units has no ID
    if len(rows) != count:
        raise MeasurementError(f"ncu reported {len(rows)} launches, and {count} kernels were to be measured")
    found = []
    for row in rows:
        values = {}
        for name, metric in METRICS.items():
            cell = (row.get(metric) or "").replace(",", "")
            try:
                values[name] = float(cell)
            except ValueError:
                raise MeasurementError(f"ncu: {metric} of {row.get('Kernel Name')}: got {cell!r}") from None
        found.append(values)
    return found


def entries(
    chosen: Sequence[Case], found: Sequence[dict[str, float]], *, day: str, commit: str, tool: str
) -> list[Entry]:
    """Counted beside measured, case by case: the launches of one family in a case together."""
    out = []
    launches = iter(found)
    for case in chosen:
        measured = {family: dict.fromkeys(QUANTITIES, 0.0) for family in case.families}
        for family in case.launches:
            values = next(launches)
            if family:
                measured[family]["device_bytes"] += values["read"] + values["write"]
                measured[family]["tensor_instructions"] += values["tensor"] - values["moves"]
        for family, predicted in case.counts().items():
            out += [
                Entry(family, case.name, q, predicted[q], round(measured[family][q]), day, commit, tool)
                for q in QUANTITIES
            ]
    return out


# ---- the file ------------------------------------------------------------------------------------------------
def path_of(slug: str) -> Path:
    """Where a GPU's counters are kept."""
    return FOLDER / f"{slug}.csv"


def read(slug: str) -> list[Entry]:
    """What was measured on a GPU; empty where nothing was."""
    path = path_of(slug)
    return parse(path.read_text(encoding="utf-8"), name=str(path)) if path.exists() else []


def parse(text: str, *, name: str) -> list[Entry]:
    """The entries of a file, each checked.

    Raises:
        MeasurementError: the header is another, or a value is impossible; with the line.
    """
    columns = HEADER.split(",")
    found = []
    for number, cells in measurements.lines_of(text, name=name, header=HEADER):
        where = f"{name}, line {number}"
        row = dict(zip(columns, cells, strict=True))
        if row["quantity"] not in QUANTITIES:
            raise MeasurementError(
                f"{where}: quantity: got {row['quantity']!r}; accepted: {', '.join(QUANTITIES)}. "
                + measurements.MEND
            )
        for column in ("predicted", "measured"):
            if not (row[column].isascii() and row[column].isdigit()):
                raise MeasurementError(
                    f"{where}: {column}: got {row[column]!r}; accepted: a whole number. {measurements.MEND}"
                )
        values: dict[str, Any] = {
            **row,
            "predicted": int(row["predicted"]),
            "measured": int(row["measured"]),
        }
        found.append(Entry(**values))
    return found


def to_csv(rows: Iterable[Entry]) -> str:
    """Header and entries as the text of a file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER.split(","))
    writer.writerows([getattr(row, f.name) for f in fields(Entry)] for row in rows)
    return out.getvalue()


def table(rows: Sequence[Entry], form: str) -> str:
    """Counted beside measured, as text."""
    names = {"device_bytes": "device bytes", "tensor_instructions": "tensor instructions"}
    header = ("kernel family", "case", "quantity", "counted", "hardware", "difference")
    cells = [
        (e.family, e.case.replace(";", " "), names[e.quantity], e.predicted, e.measured, f"{e.error:+.2%}")
        for e in rows
    ]
    return render.rows_as(form, header, cells)


def main(argv: Sequence[str] | None = None) -> int:
    """Print, or measure; the exit code is 1 where a count is further off than `LIMIT`, 4 without a GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.counters", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--gpu", default="h200-sxm", help="slug of a GPU whose counters were measured (h200-sxm)"
    )
    parser.add_argument(
        "--measure", action="store_true", help="run the cases under ncu on this machine's GPU"
    )
    parser.add_argument("--family", action="append", help="only this kernel family; may be repeated")
    parser.add_argument("--write", action="store_true", help="with --measure: keep the result")
    parser.add_argument("--format", default="table", choices=("table", "csv", "md"), help="(table)")
    parser.add_argument("--run", nargs="+", metavar="FAMILY", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    known = list(dict.fromkeys(family for case in cases() for family in case.families))
    accepted = {*known, *(case.key for case in cases())} if options.run else known
    unknown = [name for name in (options.run or options.family or ()) if name not in accepted]
    if unknown:
        print(f"counters: family: got {unknown[0]!r}; accepted: {', '.join(known)}", file=sys.stderr)
        return 2
    if options.run:
        run_cases(options.run)
        return 0
    slug = options.gpu
    try:
        if options.measure:
            rows, slug = _measure(chosen_cases(options.family or ()))
            if not rows:
                return 4
        else:
            rows = [e for e in read(slug) if not options.family or e.family in options.family]
    except MeasurementError as error:
        print(f"counters: {error}", file=sys.stderr)
        return 2
    if not rows:
        render.note(
            f"no counters of {slug} yet; on such a GPU: python -m costmodel.counters --measure --write"
        )
    print(table(rows, options.format))
    if options.measure and options.write:
        order = [(family, case.name) for case in cases() for family in case.families]
        anew = {(row.family, row.case) for row in rows}
        kept = [e for e in read(slug) if (e.family, e.case) not in anew and (e.family, e.case) in order]
        merged = sorted([*kept, *rows], key=lambda e: order.index((e.family, e.case)))
        measurements.write_whole(path_of(slug), to_csv(merged))
        render.note(f"wrote {path_of(slug)}")
    return 1 if any(abs(row.error) > LIMIT for row in rows) else 0


def tool_version() -> str:
    """Which ncu is installed."""
    try:
        text = subprocess.run(("ncu", "--version"), capture_output=True, text=True).stdout
    except OSError:
        return "ncu"
    return next((f"ncu {line.strip()}" for line in text.splitlines() if line.startswith("Version")), "ncu")


def _measure(chosen: Sequence[Case]) -> tuple[list[Entry], str]:
    from costmodel import gpus
    from kernels_numba import device

    here = device()
    if not here.is_gpu:
        render.note(f"no GPU to measure: {here.reason}")
        return [], ""
    found = profile(chosen)
    day = datetime.date.today().isoformat()
    return entries(chosen, found, day=day, commit=replays.commit(), tool=tool_version()), gpus.by_device_name(
        str(here.name)
    ).slug


if __name__ == "__main__":
    sys.exit(main())
