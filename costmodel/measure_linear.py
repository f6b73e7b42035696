"""Measure linear layers beside the vendor's library, and write the dispatch table.

For every layer [N, K] of a model and M from 1 to 2048, each kernel is timed with a few settings, launched one after the
other and overlapped (``Linear(..., overlap=True)``), and so is the vendor's library. Times are taken as in
`costmodel.measure`: a CUDA graph of back-to-back calls with weights rotated through more than L2. Every result is held
against float64 first, as ``reference.check_linear`` does, and a wrong one ends the run.

The table (``kernels_numba/dispatch/<gpu>/<model>.json``, see ``kernels_numba.linear_dispatch``) names the fastest
kernel for every M. A measured M stands for the M below it down to the one measured before: time grows with M in steps.
"""

from __future__ import annotations

import datetime
import json
import math
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costmodel import measure, measurements, render
from costmodel.errors import MeasurementError
from costmodel.measurements import Row
from costmodel.models import model

SWEEP = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048)
QUICK_SWEEP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
REPLAYS = 9
GROUP_CANDIDATES = 5
"""Settings of the full product on warpgroups that are timed, those with the least rough time."""


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


def candidates(m: int, n: int, k: int, sm_count: int) -> list[Any]:
    """Settings worth timing: the default of each kernel that takes M rows, and its neighbours."""
    from kernels_numba import linear_group
    from kernels_numba.device import LARGEST_SHARED_BYTES, device
    from kernels_numba.linear_product import LARGEST_M, Choice, product
    from kernels_numba.linear_settings import FULL_TILES, default_choice, group_candidates

    limit = device().shared_bytes_per_block or LARGEST_SHARED_BYTES
    on_groups = device().capability == linear_group.CAPABILITY
    found = [Choice("vendor")]
    if m <= (LARGEST_M["gemv"] or 0):
        found.append(default_choice("gemv", m, n, k, sm_count=sm_count))
        found.append(Choice.of("gemv", rows=2, depth=4, warps=4, blocks=4))
        if m > 1:
            found.append(Choice.of("gemv", rows=4, depth=1, warps=8, blocks=3))
    if m <= (LARGEST_M["flat"] or 0):
        base = default_choice("flat", m, n, k, sm_count=sm_count)
        found.append(base)
        tiles = (
            [(2, 4, 2, 8), (3, 4, 2, 8), (2, 2, 2, 16), (6, 2, 2, 8)]
            if m <= 16
            else [(2, 4, 2, 8), (3, 2, 3, 8)]
        )
        for row_tiles, steps, stages, warps in tiles if m <= 32 else ():
            settings = {"row_tiles": row_tiles, "steps": steps, "stages": stages, "warps": warps}
            found.append(Choice.of("flat", **{**base.options, **settings}))
    if m >= 12 and on_groups:
        ranked = sorted(group_candidates(m, n, k, sm_count, limit), key=lambda pair: (pair[0], str(pair[1])))
        found += [choice for _, choice in ranked[:GROUP_CANDIDATES]]
    elif m >= 12:
        found.append(default_choice("full", m, n, k, sm_count=sm_count))
        for tile in FULL_TILES:
            if tile["rows"] < 2 * m <= 16 * tile["rows"] and (m > 64 or tile["rows"] <= 64):
                units = -(-m // tile["rows"]) * -(-n // tile["columns"])
                for split in {1, max(1, min(8, round(sm_count * tile["blocks"] / units)))}:
                    shares = sm_count * tile["blocks"]
                    found.append(Choice.of("full", **tile, shares=shares, split=split))
                    if units * split > shares:
                        found.append(Choice.of("full", **tile, split=split))
    return [
        choice
        for choice in dict.fromkeys(found)
        if choice.impl == "vendor" or product(choice, m, n, k, "fp16").spec.shared_bytes <= limit
    ]


def main(
    *,
    models: Sequence[str],
    quick: bool,
    slug: str,
    gpu_name: str,
    sm_count: int,
    layers: Sequence[str] = (),
    shapes: Sequence[tuple[int, int]] = (),
    folder: Path | None = None,
) -> int:
    """Measure, add to the measurements and write a table for each model; returns how many rows were written.

    Args:
        models: their slugs. A layer that several have is measured once.
        quick: fewer M.
        slug: the GPU's file,
        gpu_name: the driver's name of it,
        sm_count: and its SMs.
        layers: of the models only these, by name; the tables' other entries stay.
        shapes: [N, K] that belong to no model: they get rows and no table.
        folder: where tables go, by default where they are looked for.

    Raises:
        ValueError: a layer that none of the models has.
    """
    unknown = set(layers) - {layer for name in models for layer in model(name).linear}
    if unknown:
        raise ValueError(
            f"layer: got {', '.join(sorted(unknown))}; accepted: the layers of {', '.join(models)}"
        )
    torch = measure.need_torch()
    written = 0
    entries: dict[tuple[int, int], dict[str, Any]] = {}

    def measured(label: str, n: int, k: int) -> list[Point]:
        nonlocal written
        points = list(sweep(n, k, quick=quick, sm_count=sm_count, torch=torch, label=label))
        rows = [row for point in points for row in rows_of(point, n, k)]
        measurements.append(rows, slug)
        written += len(rows)
        return points

    for n, k in shapes:
        measured("shape", n, k)
    for name in models:
        for layer, (n, k) in model(name).linear.items():
            if (not layers or layer in layers) and (n, k) not in entries:
                entries[n, k] = entry_of(layer, n, k, measured(f"{name} {layer}", n, k))
        path = write_table(merged(entries, name, gpu_name), name, slug=slug, gpu_name=gpu_name, folder=folder)
        render.note(f"wrote {path}")
    return written


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


def sweep(n: int, k: int, *, quick: bool, sm_count: int, torch: Any, label: str) -> Iterator[Point]:
    """Time all candidates of a layer for every M."""
    sizes = QUICK_SWEEP if quick else SWEEP
    todo = {m: candidates(m, n, k, sm_count) for m in sizes}
    _compile(todo, n, k, torch)
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(2, math.ceil(2 * cache / (2 * n * k)) + 1)
    generator = torch.Generator(device="cuda").manual_seed(n + k)
    weights = [
        torch.randn((n, k), device="cuda", generator=generator, dtype=torch.float32).half()
        for _ in range(sets)
    ]
    for m, choices in todo.items():
        point = Point(m)
        x = torch.randn((m, k), device="cuda", generator=generator, dtype=torch.float32).half()
        exact, allowed = _exact(x, weights[0], torch)
        for choice in choices:
            for overlap in (False,) if choice.impl == "vendor" else (False, True):
                calls, y = _calls(choice, x, weights, overlap=overlap)
                y.fill_(math.nan)
                calls[0]()
                point.error[choice] = _error(y, exact, allowed, f"{choice} M={m} N={n} K={k}")
                times = measure.time_calls(calls, torch, replays=REPLAYS)
                deciles = statistics.quantiles(times, n=10)
                point.times[overlap][choice] = Timing(
                    statistics.median(times), deciles[1], deciles[7], len(times)
                )
        best, timing = point.best(overlap=False, vendor=True)  # type: ignore[misc]
        early = point.best(overlap=True)
        text = f"; overlapped {early[0].impl} {early[1].median:.1f}" if early else ""
        vendor = point.best(overlap=False, impl="vendor", vendor=True)
        beside = f", vendor {vendor[1].median:.1f}" if vendor else ""
        render.note(f"{label} [{n}, {k}] M={m}: {best.impl} {timing.median:.1f} us{text}{beside}")
        yield point
    del weights
    torch.cuda.empty_cache()


def _calls(choice: Any, x: Any, weights: list[Any], *, overlap: bool) -> tuple[list[Callable[[], Any]], Any]:
    from kernels_numba import Linear

    (m, k), n = x.shape, weights[0].shape[0]
    layer = Linear(m, n, k, dtype="fp16", choice=choice, overlap=overlap)
    y = x.new_empty((m, n))
    return [lambda w=w: layer(x, w, out=y) for w in weights], y  # type: ignore[misc]


def _exact(x: Any, w: Any, torch: Any) -> tuple[Any, Any]:
    """The product in float64, and the error that ``reference.check_linear`` allows each element."""
    a, b = x.double(), w.double()
    exact, size = a @ b.t(), a.abs() @ b.abs().t()
    terms, u, v = x.shape[1], 2.0**-11, 2.0**-24
    gamma = terms * v / (1 - terms * v)
    likely = u * exact.abs() + (4 * math.sqrt(terms) + terms / 3) * v * size
    return exact, torch.minimum(likely, (2 * u + gamma) * size)


def _error(y: Any, exact: Any, allowed: Any, what: str) -> float:
    """Relative L2 error; raises if an element is off by more than is allowed, or is not a number."""
    off = (y.double() - exact).abs()
    if not bool((off <= allowed).all()):  # false for NaN as well
        raise MeasurementError(f"{what}: an element is off by more than reference.check_linear allows")
    return float(off.norm() / exact.norm())


def rows_of(point: Point, n: int, k: int) -> Iterator[Row]:
    """Rows for the measurement file: the best settings of every kernel, overlapped and not, and the vendor's."""
    stamp = (datetime.date.today().isoformat(), measure.commit())
    m = point.m
    case = measurements.format_case("linear", {"M": m, "N": n, "K": k})
    nbytes, flops = 2 * (n * k + m * k + m * n), 2 * m * n * k
    for impl in ("gemv", "flat", "full", "vendor"):
        for overlap in (False, True):
            best = point.best(overlap=overlap, impl=impl, vendor=True)
            if best is None or (impl == "vendor" and overlap):
                continue
            choice, t = best
            name = "cublas" if impl == "vendor" else f"ours:{impl}" + ("-overlapped" if overlap else "")
            note = "through torch.matmul" if impl == "vendor" else str(choice)
            error = point.error[choice]
            yield Row(
                "linear",
                case,
                "fp16",
                name,
                t.median,
                t.low,
                t.high,
                t.samples,
                nbytes,
                flops,
                error,
                *stamp,
                note,
            )


# ---- the table -----------------------------------------------------------------------------------------------
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
        "commit": measure.commit(),
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


def _compile(todo: dict[int, list[Any]], n: int, k: int, torch: Any) -> None:
    """Machine code of all candidates into the cache."""
    from kernels_numba.linear_product import product

    modes = (False, True) if torch.cuda.get_device_capability(0) >= (9, 0) else (False,)
    compile_products(
        [
            product(choice, m, n, k, "fp16", overlap=overlap)
            for m, choices in todo.items()
            for choice in choices
            if choice.impl != "vendor"
            for overlap in modes
        ],
        torch,
    )


def compile_products(products: list[Any], torch: Any) -> None:
    """Machine code of the kernels of products into the cache, by several processes."""
    specs = {made.spec: made.family.__name__ for made in products}
    compile_together([(family, spec) for spec, family in specs.items()], torch)


def compile_together(kernels: list[tuple[str, Any]], torch: Any) -> None:
    """Machine code of kernels (family module, spec) into the cache, by several processes."""
    capability = torch.cuda.get_device_capability(0)
    work = [(family, spec, capability) for family, spec in kernels]
    workers = max(1, min(16, os.cpu_count() or 1, len(work)))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile_one, work, chunksize=1))


def _compile_one(job: tuple[str, Any, tuple[int, int]]) -> None:
    import importlib

    from kernels_numba import launch

    family, spec, capability = job
    launch.machine_code(importlib.import_module(family), spec, capability)
