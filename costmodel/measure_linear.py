"""Measure linear layers beside the vendor's library, and write the dispatch table.

For every layer [N, K] of a model and M from 1 to 2048, each kernel is timed with a few settings, launched one after the
other and overlapped (``Linear(..., overlap=True)``), and so is the vendor's library. Times are taken as in
`costmodel.measure`: a CUDA graph of back-to-back calls with weights rotated through more than L2. Every result is held
against float64 first, as ``reference.check_linear`` does, and a wrong one ends the run.

The table of the fastest kernels is `costmodel.linear_points`'s.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from costmodel import measurements, render, replays
from costmodel.compiled import compile_together
from costmodel.errors import MeasurementError
from costmodel.linear_points import (
    LIBRARY,
    Point,
    Timing,
    entry_of,
    merged,
    points_of,
    tables_of,
    write_table,
)
from costmodel.measurements import Row
from costmodel.models import model

SWEEP = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 1024, 2048)
QUICK_SWEEP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
REPLAYS, LEAST_US = 7, 1000.0
"""Of one candidate: replays, and how long each lasts at least. Hundreds of candidates take a minute."""
FEWEST_ON_GROUPS = 3
"""Rows of x from which on products on warpgroups are timed: of fewer the vector product is ahead."""
GROUP_CANDIDATES, GROUP_CANDIDATES_OF_MANY = 3, 3
"""Settings of each product on warpgroups that are timed, the best by their rough times: for few rows, for many."""


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
        tiles = [(3, 4, 2, 8), (2, 2, 2, 16), (6, 2, 2, 8)] if m <= 16 else [(3, 2, 3, 8)]
        for row_tiles, steps, stages, warps in tiles if m <= 32 else ():
            settings = {"row_tiles": row_tiles, "steps": steps, "stages": stages, "warps": warps}
            found.append(Choice.of("flat", **{**base.options, **settings}))
    if m >= FEWEST_ON_GROUPS and on_groups:
        ranked = sorted(group_candidates(m, n, k, sm_count, limit), key=lambda pair: (pair[0], str(pair[1])))
        for streamed in (0, 1):
            family = [choice for _, choice in ranked if choice.options.get("stream", 0) == streamed]
            found += list(dict.fromkeys(family))[: GROUP_CANDIDATES if m < 192 else GROUP_CANDIDATES_OF_MANY]
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
    sizes: Sequence[int] = (),
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
        sizes: rows of x; () for all of the sweep. Tables keep what was measured of others before.
        folder: where tables go, by default where they are looked for.

    Raises:
        ValueError: a layer that none of the models has.
    """
    unknown = set(layers) - {layer for name in models for layer in model(name).linear}
    if unknown:
        raise ValueError(
            f"layer: got {', '.join(sorted(unknown))}; accepted: the layers of {', '.join(models)}"
        )
    torch = replays.need_torch()
    written = 0
    entries: dict[tuple[int, int], dict[str, Any]] = {}

    pairs = list(shapes)
    for name in models:
        pairs += [pair for layer, pair in model(name).linear.items() if not layers or layer in layers]
    sizes = sizes or (QUICK_SWEEP if quick else SWEEP)
    compile_products(candidate_products(dict.fromkeys(pairs), sizes, sm_count, torch), torch)

    def measured(label: str, n: int, k: int) -> list[Point]:
        nonlocal written
        for point in sweep(n, k, sizes=sizes, sm_count=sm_count, torch=torch, label=label):
            rows = list(rows_of(point, n, k))
            measurements.append(rows, slug)
            written += len(rows)
        return points_of(measurements.read(slug, op="linear"), n, k, SWEEP)

    def write(name: str) -> None:
        path = write_table(merged(entries, name, gpu_name), name, slug=slug, gpu_name=gpu_name, folder=folder)
        render.note(f"wrote {path}")

    for n, k in shapes:
        measured("shape", n, k)
    for name in models:
        for layer, (n, k) in model(name).linear.items():
            if (not layers or layer in layers) and (n, k) not in entries:
                entries[n, k] = entry_of(layer, n, k, measured(f"{name} {layer}", n, k))
        write(name)
    # Tables of other models have some of these layers too.
    for name in tables_of(slug, folder):
        if name not in models and set(entries) & set(model(name).linear.values()):
            write(name)
    return written


def sweep(n: int, k: int, *, sizes: Sequence[int], sm_count: int, torch: Any, label: str) -> Iterator[Point]:
    """Time all candidates of a layer for every M."""
    weights, generator = weights_of(n, k, torch)
    for m in sizes:
        choices = candidates(m, n, k, sm_count)
        point = time_choices(choices, m, weights, generator, torch)
        best, timing = point.best(overlap=False, vendor=True)  # type: ignore[misc]
        early = point.best(overlap=True)
        text = f"; overlapped {early[0].impl} {early[1].median:.1f}" if early else ""
        vendor = point.best(overlap=False, impl="vendor", vendor=True)
        beside = f", vendor {vendor[1].median:.1f}" if vendor else ""
        render.note(f"{label} [{n}, {k}] M={m}: {best.impl} {timing.median:.1f} us{text}{beside}")
        yield point
    del weights
    torch.cuda.empty_cache()


def weights_of(n: int, k: int, torch: Any) -> tuple[list[Any], Any]:
    """Random weights of more than L2 together, and the generator that inputs are to come from."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(2, math.ceil(2 * cache / (2 * n * k)) + 1)
    generator = torch.Generator(device="cuda").manual_seed(n + k)
    weights = [
        torch.randn((n, k), device="cuda", generator=generator, dtype=torch.float32).half()
        for _ in range(sets)
    ]
    return weights, generator


def time_choices(
    choices: Sequence[Any],
    m: int,
    weights: list[Any],
    generator: Any,
    torch: Any,
    *,
    modes: Sequence[bool] = (False, True),
) -> Point:
    """Times of choices, launched one after another and overlapped; None is what dispatch picks.

    Raises `MeasurementError` where a result is wrong.
    """
    n, k = weights[0].shape
    point = Point(m)
    x = torch.randn((m, k), device="cuda", generator=generator, dtype=torch.float32).half()
    exact, allowed = _exact(x, weights[0], torch)
    for choice in choices:
        for overlap in modes[:1] if choice is not None and choice.impl == "vendor" else modes:
            calls, y = _calls(choice, x, weights, overlap=overlap)
            y.fill_(math.nan)
            calls[0]()
            point.error[choice] = _error(y, exact, allowed, f"{choice} M={m} N={n} K={k}")
            times = replays.time_calls(calls, torch, replays=REPLAYS, least_us=LEAST_US)
            deciles = statistics.quantiles(times, n=10)
            point.times[overlap][choice] = Timing(
                statistics.median(times), deciles[1], deciles[7], len(times)
            )
    return point


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
    for impl in ("gemv", "flat", "full", "vendor"):
        for overlap in (False, True):
            best = point.best(overlap=overlap, impl=impl, vendor=True)
            if best is None or (impl == "vendor" and overlap):
                continue
            choice, timing = best
            name = LIBRARY if impl == "vendor" else f"ours:{impl}" + ("-overlapped" if overlap else "")
            note = "through torch.matmul" if impl == "vendor" else str(choice)
            yield row_of(point, n, k, name, timing, point.error[choice], note)


def row_of(point: Point, n: int, k: int, provider: str, timing: Timing, error: float, note: str) -> Row:
    """A row for the measurement file."""
    m = point.m
    case = measurements.format_case("linear", {"M": m, "N": n, "K": k})
    moved, flops = 2 * (n * k + m * k + m * n), 2 * m * n * k
    times = (timing.median, timing.low, timing.high, timing.samples)
    stamp = (datetime.date.today().isoformat(), replays.commit())
    return Row("linear", case, "fp16", provider, *times, moved, flops, error, *stamp, note)


def candidate_products(
    pairs: Iterable[tuple[int, int]], sizes: Sequence[int], sm_count: int, torch: Any
) -> list[Any]:
    """All products of the sweeps of layers [N, K]."""
    from kernels_numba.linear_product import product

    modes = (False, True) if torch.cuda.get_device_capability(0) >= (9, 0) else (False,)
    return [
        product(choice, m, n, k, "fp16", overlap=overlap)
        for n, k in pairs
        for m in sizes
        for choice in candidates(m, n, k, sm_count)
        if choice.impl != "vendor"
        for overlap in modes
    ]


def compile_products(products: list[Any], torch: Any) -> None:
    """Machine code of the kernels of products, and of what realigns their operands, into the cache, side by side."""
    from kernels_numba import linear_realign

    specs = {made.spec: made.family.__name__ for made in products}
    for made in products:
        for led in {*[made.led] * made.shift_x, *[False] * made.copy_w}:
            overlap = getattr(made.spec, "overlap", False)
            specs[linear_realign.Spec(made.spec.dtype, overlap=overlap, led=led)] = linear_realign.__name__
    compile_together([(family, spec) for spec, family in specs.items()], torch.cuda.get_device_capability(0))
