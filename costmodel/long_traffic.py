"""Device memory that long convolutions and PyTorch's really move: ``python -m costmodel.long_traffic``.

Prints what was counted on a GPU (``costmodel/hardware_counters/long-<gpu>.csv``). With ``--measure`` every way to
compute a case of `measure_long` is called once to warm up and once under Nsight Compute (``ncu``), whose counters
``dram__bytes_read.sum`` and ``dram__bytes_write.sum`` are added over all kernels of that call. Caches are left as they
are between kernels, as in a real call: what a group of channels leaves in the L2 cache for the next kernel is not read
from device memory, and shows. ``--write`` keeps the result.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from costmodel import measurements, render, replays
from costmodel.counters import FOLDER, tool_version
from costmodel.errors import MeasurementError
from costmodel.measure_long import Long, cases, ways_of

METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
MARKER = "erfinv"
"""A kernel of PyTorch's that nothing measured launches: it begins every call."""
GROUPS_MIB = (32, 96)
"""Groups that the first case is also run in, to see what the L2 cache keeps."""


@dataclass(frozen=True)
class Moved:
    """What one call moved; the fields are the columns."""

    case: str
    provider: str
    launches: int
    read_bytes: int
    written_bytes: int
    date: str
    commit: str
    tool: str

    @property
    def bytes(self) -> int:
        """Read and written."""
        return self.read_bytes + self.written_bytes


HEADER = ",".join(f.name for f in fields(Moved))


# ---- measuring -----------------------------------------------------------------------------------------------
def _calls(chosen: Iterable[Long], torch: Any) -> Iterator[tuple[str, str, Any]]:
    """Case, provider and call of everything that is counted, results checked; memory of one case at a time."""
    for number, case in enumerate(chosen):
        for way, error in ways_of(case, torch):
            if not error <= way.bound:  # true for NaN as well
                raise MeasurementError(f"{way.name} {case.name}: error {error:.3g}, bound {way.bound:.3g}")
            yield case.name, way.name, way.call
        if number == 0:
            yield from _grouped(case, torch)


def _grouped(case: Long, torch: Any) -> Iterator[tuple[str, str, Any]]:
    from kernels_numba import FFTConv, prepare_filter

    u = torch.randn((case.batch, case.channels, case.length), device="cuda").half()
    k = torch.randn((case.channels, case.length), device="cuda") / case.length**0.5
    y = torch.empty_like(u)
    spectrum = prepare_filter(k, length=case.length, mode=case.mode)
    for mib in GROUPS_MIB:
        convolve = FFTConv(spectrum, batch=case.batch, workspace=2 * mib * 2**20)
        convolve(u, out=y)
        yield case.name, f"ours:groups={mib}MiB", lambda convolve=convolve: convolve(u, out=y)


def run_calls(chosen: Iterable[Long]) -> None:
    """What ncu looks at: every call once, a marker before it; the names of the calls go to stdout."""
    from costmodel.replays import need_torch

    torch = need_torch()
    marker = torch.zeros(1, device="cuda")
    for case, provider, call in _calls(chosen, torch):
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        marker.erfinv_()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        print(f"CALL,{case},{provider}", flush=True)


def parse_profile(text: str) -> list[tuple[int, int, int]]:
    """Launches, bytes read and bytes written of every call on ncu's raw page as CSV.

    Raises:
        MeasurementError: a counter is not there, or no call began.
    """
    rows = csv.DictReader(line for line in text.splitlines() if line.startswith('"'))
    found: list[list[int]] = []
    for row in rows:
        if not row.get("ID"):  # the line of units
            continue
        if MARKER in (row.get("Kernel Name") or ""):
            found.append([0, 0, 0])
            continue
        try:
            read, written = (round(float((row.get(m) or "").replace(",", ""))) for m in METRICS)
        except ValueError:
            raise MeasurementError(f"ncu: {row.get('Kernel Name')} has no {' and '.join(METRICS)}") from None
        if not found:
            raise MeasurementError(f"ncu: {row.get('Kernel Name')} came before any call began")
        found[-1] = [found[-1][0] + 1, found[-1][1] + read, found[-1][2] + written]
    return [(n, read, written) for n, read, written in found]


def profile(*, quick: bool, commit: str, tool: str = "ncu") -> list[Moved]:
    """Run all calls under ncu.

    Raises:
        MeasurementError: ncu is not there or failed, or reported another number of calls than were made.
    """
    command = [
        *(tool, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"),
        *(
            "--print-kernel-base",
            "demangled",
            "--cache-control",
            "none",
            "--profile-from-start",
            "off",
            "--metrics",
            ",".join(METRICS),
        ),
        *(sys.executable, "-m", "costmodel.long_traffic", "--run", *(("--quick",) if quick else ())),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise MeasurementError(
            f"{tool} cannot be started ({error}); install NVIDIA Nsight Compute"
        ) from error
    if done.returncode:
        raise MeasurementError(f"{tool} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    names = [line.split(",")[1:] for line in done.stdout.splitlines() if line.startswith("CALL,")]
    counted = parse_profile(done.stdout)
    if len(names) != len(counted):
        raise MeasurementError(f"ncu reported {len(counted)} calls, and {len(names)} were made")
    day, version = datetime.date.today().isoformat(), tool_version()
    return [
        Moved(case, provider, *moved, day, commit, version)
        for (case, provider), moved in zip(names, counted, strict=True)
    ]


# ---- the file ------------------------------------------------------------------------------------------------
def path_of(slug: str) -> Path:
    """Where a GPU's figures are kept."""
    return FOLDER / f"long-{slug}.csv"


def read(slug: str) -> list[Moved]:
    """What was counted on a GPU; empty where nothing was."""
    path = path_of(slug)
    return parse(path.read_text(encoding="utf-8"), name=str(path)) if path.exists() else []


def parse(text: str, *, name: str) -> list[Moved]:
    """The rows of a file. Raises ``MeasurementError`` for another header or an impossible value, with the line."""
    found = []
    for number, cells in measurements.lines_of(text, name=name, header=HEADER):
        if not all(c.isascii() and c.isdigit() for c in cells[2:5]):
            raise MeasurementError(
                f"{name}, line {number}: got {cells[2:5]}; accepted: whole numbers. {measurements.MEND}"
            )
        launches, read_bytes, written_bytes = map(int, cells[2:5])
        found.append(Moved(cells[0], cells[1], launches, read_bytes, written_bytes, *cells[5:]))
    return found


def to_csv(rows: Iterable[Moved]) -> str:
    """Header and rows as the text of a file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER.split(","))
    writer.writerows([getattr(row, f.name) for f in fields(Moved)] for row in rows)
    return out.getvalue()


def table(rows: Sequence[Moved], form: str) -> str:
    """As text."""
    cells = [
        (m.case, m.provider, str(m.launches), f"{m.read_bytes / 1e9:.3f}", f"{m.written_bytes / 1e9:.3f}")
        for m in rows
    ]
    return render.rows_as(form, ("case", "provider", "launches", "GB read", "GB written"), cells)


def main(argv: Sequence[str] | None = None) -> int:
    """Print, or measure; the exit code is 4 without a GPU, 2 where measuring failed."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.long_traffic", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--gpu", default="h200-sxm", help="slug of a GPU that was measured (%(default)s)")
    parser.add_argument("--measure", action="store_true", help="count on this machine's GPU, under ncu")
    parser.add_argument("--write", action="store_true", help="with --measure: keep the result")
    parser.add_argument("--quick", action="store_true", help="only the first cases")
    parser.add_argument("--commit", help="what is measured, where there is no checkout to ask")
    parser.add_argument("--format", default="table", choices=("table", "csv", "md"), help="(table)")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.run:
        run_calls(cases(quick=options.quick))
        return 0
    slug = options.gpu
    rows = read(slug)
    if options.measure:
        from costmodel import gpus
        from kernels_numba import device

        here = device()
        if not here.is_gpu:
            render.note(f"no GPU to measure: {here.reason}")
            return 4
        try:
            made = profile(quick=options.quick, commit=options.commit or replays.commit())
        except MeasurementError as error:
            print(f"long_traffic: {error}", file=sys.stderr)
            return 2
        slug, new = gpus.by_device_name(str(here.name)).slug, {(m.case, m.provider) for m in made}
        rows = [*(m for m in read(slug) if (m.case, m.provider) not in new), *made]
        if options.write:
            measurements.write_whole(path_of(slug), to_csv(rows))
            render.note(f"wrote {path_of(slug)}")
    print(table(rows, options.format))
    return 0


if __name__ == "__main__":
    sys.exit(main())
