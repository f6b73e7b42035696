"""What brings sums of spectra back to taps reads, and its launches; the kernels are in `filter_gradient.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import filter_passes, filter_transform, float_spec
from kernels_numba.filter_gradient import FACTORS, NONE, Spec, natural_places, table_width
from kernels_numba.filter_passes import THREADS
from kernels_numba.filter_transform import factors_of
from kernels_numba.float_spec import shape_of
from kernels_numba.gradient_passes import TOGETHER
from monarch.index import natural_order_of

LARGEST = 16
"""Radix of a pass back to taps: the first gathers four sums for each point."""
STAGED, WHOLE, PASSES = "staged", "whole", "passes"
"""Ways back to taps: in a block with all bins in shared memory, with half of them, and through device memory."""


def way_back(n: int, limit: int, *, turned: bool = False) -> str:
    """The way for N samples, with ``limit`` bytes of shared memory a block; ``turned``: by right-angle packing."""
    if n // 2 not in FACTORS:
        return PASSES
    for way in (STAGED,) if turned else (STAGED, WHOLE):
        if Spec("whole", FACTORS[n // 2], staged=way == STAGED, turned=turned).shared_bytes <= limit:
            return way
    return PASSES


def bin_places(at: NDArray[np.intp]) -> NDArray[np.int32]:
    """[P, 4]: where the bins k, -k, k + P and P - k lie, if bin k does at ``at[k]``."""
    n = at.size
    k = np.arange(n // 2)
    return np.stack([at[k], at[-k % n], at[k + n // 2], at[(n // 2 - k) % n]], axis=1).astype(np.int32)


@lru_cache(maxsize=32)
def roots(points: int) -> NDArray[np.float32]:
    """[P, 2]: cosine and sine of 2 pi k / N, N = 2 P."""
    angle = np.pi * np.arange(points) / points
    return np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def tap_places(
    places: NDArray[np.intp], n: int, width: int, targets: NDArray[np.intp], sources: NDArray[np.intp]
) -> NDArray[np.int32]:
    """Where the gradient of each tap lies, [1 or 2, W], if point x of the transform lies at ``places[x]``.

    W is K or more; what is more has no place. ``targets`` are places on the circle of n samples, ``sources`` the taps
    that lie there.
    """
    at = 2 * places[-(targets // 2) % (n // 2)] + targets % 2
    _, first = np.unique(sources, return_index=True)
    rest = np.setdiff1d(np.arange(sources.size), first)
    found = np.full((2 if rest.size else 1, width), NONE, np.int32)
    found[0, sources[first]] = at[first]
    if rest.size:
        found[1, sources[rest]] = at[rest]
    return found


def turned_taps(
    places: NDArray[np.intp], n: int, width: int, targets: NDArray[np.intp], sources: NDArray[np.intp]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The same with right-angle packing: where the points lie that hold taps, and what both parts are multiplied by.

    The point l is turned back by l / P of a right angle; then its real part is the tap of lag l, its imaginary part
    that of lag l - P. Factors are [1 or 2, parts, W].
    """
    points = n // 2
    where = tap_places(places, n, width, 2 * (targets % points), sources)
    back, lag = np.divmod(targets, points)
    turn = np.exp(0.5j * np.pi * lag / points) * np.where(back, -1j, 1)
    factors = np.zeros((where.shape[0], 2, width), np.float32)
    _, first = np.unique(sources, return_index=True)
    for row, some in enumerate((first, np.setdiff1d(np.arange(sources.size), first))[: where.shape[0]]):
        factors[row][:, sources[some]] = turn[some].real, -turn[some].imag
    return where, factors


def tables(
    order: NDArray[np.intp],
    taps: int,
    targets: NDArray[np.intp],
    sources: NDArray[np.intp],
    *,
    way: str,
    kept: bytes = b"",
    turned: bool = False,
) -> dict[str, NDArray]:
    """All that the kernels read beside sums, whose points are the bins ``order``, by name.

    ``kept``: booleans [N] by frequency, whether the filter's spectrum is not zero there; empty if it is nowhere.
    ``turned``: sums are N / 2 of right-angle packing.
    """
    n = order.size * (2 if turned else 1)
    points = n // 2
    if way != PASSES:
        shape = shape_of(FACTORS[points])
        at = shape.at(natural_order_of(FACTORS[points]))
        twiddle = float_spec.tables(FACTORS[points])
    else:
        at = natural_order_of(factors_of(points, LARGEST))
        twiddle = filter_transform.tables(points, "fp16", LARGEST)[0]
    width = taps if way == PASSES else table_width(taps, points)
    if turned:
        where, turns = turned_taps(at, n, width, targets, sources)
        spots = 2 * shape_of(FACTORS[points]).at(order) if way == STAGED else np.zeros(1)
        return {
            "bins": 2 * np.argsort(order).astype(np.int32),
            "spots": spots.astype(np.int32),
            "roots": turns,
            "table": twiddle,
            "taps": where,
        }
    return {
        "bins": 2 * bin_places(natural_places(n)) if way == STAGED else bin_places(np.argsort(order)),
        "spots": (2 * natural_places(n)[order]).astype(np.int32) if way == STAGED else np.zeros(1, np.int32),
        "roots": roots(points),
        "table": twiddle,
        "taps": tap_places(at, n, width, targets, sources),
    } | ({"kept": np.repeat(np.frombuffer(kept, np.bool_)[order], 2).astype(np.float32)} if kept else {})


# ---- launches ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Job:
    """One launch: the kernel, its blocks, names of its pointers and its scalars."""

    spec: Any
    grid: int
    pointers: tuple[str, ...]
    scalars: tuple[Any, ...]


@cache
def jobs(
    n: int,
    rows: int,
    shares: int,
    taps: int,
    places: int,
    scale: float,
    *,
    way: str,
    zeros: bool = False,
    overlap: bool = False,
    turned: bool = False,
) -> tuple[Job, ...]:
    """The launches for ``rows`` filters, in order; they leave dk [rows, taps].

    ``zeros``: tables have ``kept``. ``overlap``: launches can begin before the one before has ended. ``turned``: sums
    are of right-angle packing.
    """
    if zeros:
        quads = rows * shares * (n // 2)
        keep = Job(Spec("keep"), -(-quads // THREADS), ("sums", "kept"), (quads, n // 2))
        return (keep, *jobs(n, rows, shares, taps, places, scale, way=way, overlap=overlap))
    points, scale = n // 2, scale * (1.0 if turned else 0.5)
    if way != PASSES:
        how: dict[str, Any] = {"staged": way == STAGED, "overlap": overlap, "turned": turned}
        spec = Spec("whole", FACTORS[points], places=places, **how)
        names = ("sums", "bins", "spots", "roots", "table", "taps", "dk")
        width = table_width(taps, points)
        return (Job(spec, -(-rows // spec.shape.together), names, (scale, rows, shares, taps, width)),)
    found: list[Job] = []
    step = points
    _, starts = filter_transform.tables(points, "fp16", LARGEST)
    for i, radix in enumerate(factors_of(points, LARGEST)):
        step //= radix
        butterflies = rows * (points // radix)
        grid = -(-butterflies // THREADS)
        if i == 0:
            first = Spec("bins", radix=radix, points=points, turned=turned)
            pointers = ("sums", "bins", "roots", "table", "points")
            found.append(Job(first, grid, pointers, (butterflies, shares)))
        elif step == 1 and filter_transform.in_blocks(points, radix):
            end = filter_passes.Spec("end", radix, dtype="fp16")
            found.append(Job(end, grid, ("points", "points"), ()))
        else:
            later = filter_passes.Spec("next", radix, dtype="fp16")
            passed = ("table", "points", "points", "points")
            found.append(Job(later, grid, passed, (butterflies, step, starts[i])))
    items = rows * taps
    last, turns = Spec("taps", places=places, turned=turned), ("roots",) if turned else ()
    names = ("points", "taps", *turns, "dk")
    found.append(Job(last, -(-items // THREADS), names, (scale, taps, items, points)))
    return tuple(found)


@cache
def total_jobs(rows: int, taps: int) -> tuple[Job, ...]:
    """The launches that add the gradients of ``rows`` channels up: they end in "dk", and begin in "rows0"."""
    found: list[Job] = []
    while rows > 1:
        groups = -(-rows // TOGETHER)
        names = (f"rows{len(found)}", "dk" if groups == 1 else f"rows{len(found) + 1}")
        items = groups * taps
        found.append(Job(Spec("total"), -(-items // THREADS), names, (taps, items, rows)))
        rows = groups
    return tuple(found)
