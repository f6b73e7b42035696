"""Dispatch tables of linear layers from what was timed: thresholds, ranges of M, and the file.

A table (``kernels_numba/dispatch/<gpu>/<model>.json``, see ``kernels_numba.linear_dispatch``) names the fastest kernel
for every M of every layer. A measured M stands for the M below it down to the one measured before: time grows with M in
steps. `costmodel.measure_linear` times.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costmodel import replays
from costmodel.measurements import Row
from costmodel.models import model, models

LIBRARY = "cublas"
"""The provider that is the vendor's library."""


@dataclass(frozen=True)
class Timing:
    """Microseconds of one candidate: median, 20th and 80th percentile."""

    median: float
    low: float
    high: float
    samples: int


@dataclass
class Point:
    """All candidates for one layer and M: {overlapped: {Choice: Timing}}; the vendor's library is not overlapped."""

    m: int
    times: dict[bool, dict[Any, Timing]] = field(default_factory=lambda: {False: {}, True: {}})
    error: dict[Any, float] = field(default_factory=dict)

    def best(
        self, *, overlap: bool, impl: str | None = None, vendor: bool = False
    ) -> tuple[Any, Timing] | None:
        """The fastest candidate, of one kernel or of all (with or without the vendor's library)."""
        found = dict(self.times[overlap])
        if overlap:  # the vendor's library runs as it does
            found |= {c: t for c, t in self.times[False].items() if c.impl == "vendor"}
        kept = [
            (t.median, str(c), c, t)
            for c, t in found.items()
            if (impl is None or c.impl == impl) and (vendor or c.impl != "vendor")
        ]
        return min(kept)[2:] if kept else None


def points_of(rows: Iterable[Row], n: int, k: int, sizes: Collection[int]) -> list[Point]:
    """What was measured of a layer, from its rows: the best settings of every kernel, for each M of ``sizes``."""
    from costmodel.compare_linear import OVERLAPPED, choice_of
    from kernels_numba.linear_product import Choice

    found: dict[int, Point] = {}
    for row in rows:
        values = row.case_values
        kernel = row.provider_variant.removesuffix(OVERLAPPED) if row.ours else row.provider
        if (
            (values["N"], values["K"], row.dtype) != (n, k, "fp16")
            or int(values["M"]) not in sizes
            or kernel
            not in ("gemv", "flat", "full", LIBRARY)  # not what dispatch picked, which may be any of them
        ):
            continue
        choice = choice_of(row) if row.ours else Choice("vendor")
        point = found.setdefault(int(values["M"]), Point(int(values["M"])))
        overlap = row.ours and row.provider_variant.endswith(OVERLAPPED)
        point.times[overlap][choice] = Timing(row.median_us, row.p20_us, row.p80_us, row.samples)
        point.error[choice] = row.rel_err
    return [found[m] for m in sorted(found)]


def entry_of(layer: str, n: int, k: int, points: list[Point]) -> dict[str, Any]:
    """The table's entry for a layer."""
    found: dict[str, Any] = {"layer": layer, "n": n, "k": k, "dtype": "fp16"}
    for name, first, second in (("m1", "gemv", "flat"), ("m2", "flat", "full")):
        limit, low, high = threshold(points, first, second)
        found |= {name: limit, f"{name}_low": low, f"{name}_high": high}
    for name, vendor, overlap in (
        ("own", False, False),
        ("with_vendor", True, False),
        ("overlapped", False, True),
        ("overlapped_with_vendor", True, True),
    ):
        found[name] = _ranges(points, vendor=vendor, overlap=overlap)
    found["settings"] = {
        impl: _settings(points, impl) for impl in ("gemv", "flat", "full") if _settings(points, impl)
    }
    return found


def threshold(points: list[Point], first: str, second: str) -> tuple[int, int, int]:
    """From which M on ``second`` is faster than ``first``, and the first M where it may be, and surely is.

    "May be": its 20th percentile is below the other's 80th; "surely": its 80th below the other's 20th. A kernel that
    does not take so many rows is slower than any that does.
    """

    def first_m(faster: Callable[[Timing, Timing], bool]) -> int:
        limit = points[-1].m + 1
        for point in reversed(points):
            a, b = (point.best(overlap=False, impl=impl) for impl in (first, second))
            if a is None and b is None:  # more rows than either takes
                continue
            if b is None or (a is not None and not faster(b[1], a[1])):
                break
            limit = point.m
        place = [p.m for p in points].index(limit) if limit <= points[-1].m else len(points)
        # Nothing was measured between the M before and this one: the change is after the former.
        return points[place - 1].m + 1 if place else limit

    return (
        first_m(lambda b, a: b.median < a.median),
        first_m(lambda b, a: b.low < a.high),
        first_m(lambda b, a: b.high < a.low),
    )


def _ranges(points: list[Point], *, vendor: bool, overlap: bool) -> list[dict[str, Any]]:
    """From which M on which choice; each measured M stands for those after the one measured before."""
    rows: list[dict[str, Any]] = []
    begin = 1
    for point in points:
        best = point.best(overlap=overlap, vendor=vendor)
        if best is None:
            continue
        choice, t = best
        others = [
            (other[1].median / t.median - 1, impl)
            for impl in ("gemv", "flat", "full", "vendor")
            if impl != choice.impl and (other := point.best(overlap=overlap, impl=impl, vendor=vendor))
        ]
        margin, following = min(others, default=(None, None))
        rows.append(
            {
                "m": begin,
                "impl": choice.impl,
                "settings": choice.options,
                "next": following,
                "margin": None if margin is None else round(margin, 4),
                "time_us": round(t.median, 3),
            }
        )
        begin = point.m + 1
    return rows


def _settings(points: list[Point], impl: str) -> list[dict[str, Any]]:
    rows, begin = [], 1
    for point in points:
        best = point.best(overlap=False, impl=impl)
        if best:
            rows.append({"m": begin, "settings": best[0].options})
        begin = point.m + 1
    if rows:
        rows[0]["m"] = 1
    return rows


def write_table(
    entries: list[dict[str, Any]], name: str, *, slug: str, gpu_name: str, folder: Path | None = None
) -> Path:
    """Write a dispatch table whole or not at all; returns its path."""
    from kernels_numba import linear_dispatch

    table = {
        "schema_version": linear_dispatch.SCHEMA,
        "kernels": linear_dispatch.GENERATION,
        "gpu": gpu_name,
        "model": name,
        "date": datetime.date.today().isoformat(),
        "commit": replays.commit(),
        "sha256": linear_dispatch.checksum(entries),
        "entries": entries,
    }
    path = (folder or linear_dispatch.folders()[0]) / slug / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(_compact(table), encoding="utf-8")
    os.replace(partial, path)
    linear_dispatch.tables.cache_clear()
    return path


def tables_of(slug: str, folder: Path | None = None) -> list[str]:
    """The models that have a table for a GPU."""
    from kernels_numba import linear_dispatch

    where = (folder or linear_dispatch.folders()[0]) / slug
    return sorted(path.stem for path in where.glob("*.json") if path.stem in models())


def _compact(table: dict[str, Any]) -> str:
    """JSON with one row of a list to a line, so that a changed table reads well as a difference."""
    entries = []
    for entry in table["entries"]:
        parts = []
        for key, value in entry.items():
            if isinstance(value, list):
                rows = ",\n    ".join(json.dumps(row) for row in value)
                parts.append(f'"{key}": [\n    {rows}\n   ]')
            else:
                parts.append(f'"{key}": {json.dumps(value)}')
        entries.append("  {" + ",\n   ".join(parts) + "}")
    head = "".join(f'"{key}": {json.dumps(value)},\n ' for key, value in table.items() if key != "entries")
    return "{" + head + '"entries": [\n' + ",\n".join(entries) + "\n ]}\n"


def merged(entries: dict[tuple[int, int], dict[str, Any]], name: str, gpu_name: str) -> list[dict[str, Any]]:
    """A model's entries, in the order of its layers: those of now, else those of its table, else of any table.

    Only tables that may be used (`linear_dispatch.read_table`) give entries; a layer without one is left out.
    """
    from kernels_numba import linear_dispatch

    kept: dict[tuple[int, int], dict[str, Any]] = {}
    for folder in reversed(linear_dispatch.folders()):
        for path in sorted(folder.glob("*/*.json"), key=lambda path: path.stem == name):
            try:
                table = linear_dispatch.read_table(path)
            except ValueError:
                continue
            if table["gpu"] == gpu_name:
                kept |= {(e["n"], e["k"]): e for e in table["entries"] if e["dtype"] == "fp16"}
    kept |= entries
    return [{**kept[pair], "layer": layer} for layer, pair in model(name).linear.items() if pair in kept]
