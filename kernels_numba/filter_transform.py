"""The transform of filters on a GPU: from taps to the spectrum that a convolution kernel reads.

A filter's N samples on its circle are P = N / 2 complex points, of two neighbours each. These go through device memory,
in place, once for each factor (decimation in frequency, as in `fused_float.py`):

    first    taps, placed on the circle -> their points, radix r1, times twiddles
    sums     the same of a prime r1 that no thread's registers hold: each point is a sum over taps
    next     a later one, radix 32 at most, times twiddles; as often as there are factors left
    end      the last one where rows are whole blocks, which also finds the largest magnitude of each block's points
    peak     the largest magnitude of each piece of a channel's points, where the last pass has not found it
    scale    of each channel, from the largest of its pieces
    last     positions in the kernel's order, E a + O b of points as in `filter_whole`, over the scale, rounded

Filters are done some channels at a time: WORKSPACE_BYTES for their points is all that preparing needs besides tables
and the result. So few that the L2 cache holds their points from one pass to the next are no faster: launches are short.

For half precision all is done in fp32 (taps of fp64 are rounded to it first): its error, of some 2^-23, is nothing
beside the 2^-11 or 2^-8 of the spectrum's own rounding. The spectrum of an fp32 convolution is made in fp64 and rounded
once; in fp32 it would have the error of a third transform, and the convolution would miss its bound. No peak is looked
for then: fp32 holds spectra of any ordinary size.

Of the bins b and b + P the squares add up to those of the points b and -b, so no bin is larger than sqrt(2) times the
largest point, which is at most sqrt(2) times the largest bin: what the scale is made of is at most twice the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.filter_passes import AT_ONCE, MOST_PIECES, PEAK_WARPS, THREADS, Spec, family
from monarch.index import natural_order_of

WORKSPACE_BYTES = 256 * 2**20
RADICES = (*range(2, 17), 24, 32)
"""That a thread transforms in its registers."""
LARGEST_SUM = 256
"""A first factor that is none of these is done by sums, up to this."""


@cache
def factors_of(n: int, largest: int) -> tuple[int, ...]:
    """Radices of the passes over n points: as few as can be, of those the least, smaller ones first.

    Before them the product of the prime factors that no radix has, if there are any.
    """
    known = n
    for prime in (2, 3, 5, 7, 11, 13):
        while known % prime == 0:
            known //= prime
    if known > LARGEST_SUM:
        raise ValueError(
            f"a transform of {n} points leaves {known} when prime factors up to 13 are taken out, and filters are "
            f"transformed up to {LARGEST_SUM}"
        )
    if known > 1:
        return (known, *factors_of(n // known, largest)) if known < n else (known,)
    radices = [r for r in RADICES if n % r == 0 and r <= largest]

    def lists(left: int, count: int, least: int) -> Iterator[tuple[int, ...]]:
        if count == 0:
            if left == 1:
                yield ()
            return
        for r in radices:
            if r >= least and left % r == 0:
                yield from ((r, *rest) for rest in lists(left // r, count - 1, r))

    for count in range(1, n.bit_length()):
        found = min(lists(n, count, 2), key=lambda f: (max(f), f), default=None)
        if found:
            return found
    raise AssertionError(f"{n} points have no factors up to {largest}")


def largest_radix(dtype: str) -> int:
    """That a thread's registers hold, for spectra of a type: those of fp32 are computed in fp64."""
    return 16 if dtype == "fp32" else 32


# ---- tables --------------------------------------------------------------------------------------------------
def starts_of(n: int, largest: int) -> tuple[int, ...]:
    """Where each pass's twiddles begin in the table of `tables`."""
    radices = factors_of(n, largest)
    sizes = [2 * (r + r % 2) * (n // prod(radices[: i + 1])) for i, r in enumerate(radices)]
    return tuple(sum(sizes[:i]) for i in range(len(sizes)))


@lru_cache(maxsize=32)
def tables(n: int, dtype: str, largest: int) -> tuple[NDArray, tuple[int, ...]]:
    """Twiddles of all passes over n points, as `float_spec.tables` but for the last pass too; where each begins.

    In the type that spectra of ``dtype`` are computed in.
    """
    parts, step = [], n
    for r in factors_of(n, largest):
        step //= r
        w = np.exp(-2j * np.pi * np.outer(np.arange(r + r % 2), np.arange(step)) / (r * step))
        parts.append(w.reshape(-1, 2, step).transpose(0, 2, 1).reshape(-1))
    found = np.concatenate(parts)
    found = found.view(np.float64) if dtype == "fp32" else found.astype(np.complex64).view(np.float32)
    found.setflags(write=False)
    return found, starts_of(n, largest)


def numbers(
    n: int, targets: NDArray[np.intp], sources: NDArray[np.intp], *, turned: bool = False
) -> NDArray[np.int32]:
    """Which tap each sample of the circle is, -1 for none; the two samples of a point side by side.

    They are neighbours, or with right-angle packing (``turned``) half a circle apart.
    """
    found = np.full(n, -1, np.int32)
    found[targets] = sources
    return found.reshape(2, -1).T.reshape(-1).copy() if turned else found


def turns(points: int, dtype: str) -> NDArray[np.floating]:
    """What right-angle packing multiplies points by, in the type that spectra of ``dtype`` are computed in."""
    found = np.exp(-0.5j * np.pi * np.arange(points) / points)
    return found.view(np.float64) if dtype == "fp32" else found.astype(np.complex64).view(np.float32)


def tables_of_positions(
    at: NDArray[np.intp],
    order: NDArray[np.intp],
    phase: NDArray[np.complex128],
    dtype: str,
    *,
    turned: int = 0,
) -> dict[str, NDArray]:
    """``places`` [positions, 2] of X and its mirror, and ``weights`` [positions, 4], a and b of `filter_whole`.

    ``at``: where each of the P points lies; ``order``, ``phase`` [1 or 2, positions] as in `spectrum`. ``turned``:
    positions are points themselves (1), as right-angle packing has them, or their conjugates (-1), those of ``-order``.
    """
    n, b = 2 * at.size, order % at.size
    assert (b == b[:1]).all(), "the bins of a position differ by P"
    root = np.exp(-2j * np.pi * order / n)
    odd = turned * phase / 2 if turned else -0.5j * phase * root
    weights = np.stack([phase.sum(axis=0) / 2, odd.sum(axis=0)], axis=1)
    real = weights.view(np.float64) if dtype == "fp32" else weights.astype(np.complex64).view(np.float32)
    return {"places": np.stack([at[b[0]], at[-b[0] % at.size]], axis=1).astype(np.int32), "weights": real}


def all_tables(
    n: int,
    numbers: NDArray[np.int32],
    order: NDArray[np.intp],
    phase: NDArray[np.complex128],
    dtype: str,
    *,
    both: bool = False,
    turned: bool = False,
) -> dict[str, NDArray]:
    """What the kernels read beside taps, by name; ``both``: for the spectrum that correlates with the filter, too."""
    largest = largest_radix(dtype)
    at = natural_order_of(factors_of(n // 2, largest))
    found = tables_of_positions(at, order, phase, dtype, turned=int(turned))
    if both:
        second = tables_of_positions(at, -order % n, phase, dtype, turned=-int(turned))
        found |= {f"{name}2": x for name, x in second.items()}
    if turned:
        found["turns"] = turns(n // 2, dtype)
    numbered = {"numbers": numbers.reshape(-1, 2).T.copy(), "table": tables(n // 2, dtype, largest)[0]}
    radix = factors_of(n // 2, largest)[0]
    if radix not in RADICES:
        roots = np.exp(-2j * np.pi * np.arange(radix) / radix)
        numbered["roots"] = roots.astype(np.complex128 if dtype == "fp32" else np.complex64).view(np.int32)
    return numbered | found


@dataclass(frozen=True)
class Job:
    """One launch: the kernel, its blocks, names of its pointers and its scalars."""

    spec: Spec
    grid: int
    pointers: tuple[str, ...]
    scalars: tuple[int, ...]


def rows_at_once(rows: int, n: int, dtype: str) -> int:
    """Of ``rows`` filters of N taps, how many have points in device memory together: as many each time."""
    count = max(1, min(rows, WORKSPACE_BYTES // (n * (8 if dtype == "fp32" else 4))))
    return -(-rows // -(-rows // count))


def in_blocks(points: int, radix: int) -> bool:
    """Whether the last pass over rows of ``points`` can be of kind "end"."""
    return points // radix % THREADS == 0 and radix & (radix - 1) == 0


def pieces_of(points: int, last: Spec) -> tuple[int, int]:
    """Into how many pieces a row goes for its peak, and of how many points, behind the ``last`` pass."""
    if last.peaks:
        span = THREADS * last.radix
    else:
        span = 32 * PEAK_WARPS * AT_ONCE
        span *= -(-points // (span * MOST_PIECES))
    return -(-points // span), span


@cache
def jobs(
    n: int,
    rows: int,
    taps: str,
    row_taps: int,
    dtype: str,
    positions: int,
    tiles: int,
    limits: tuple,
    both: bool = False,
    turned: bool = False,
) -> tuple[Job, ...]:
    """The launches for ``rows`` channels, in order; ``both``: of two spectra, ``turned``, as in `all_tables`."""
    found = []
    inner = "fp32" if dtype == "fp32" else "fp16"  # fp16 and bf16 differ in the last kernel only
    points = n // 2
    step = points
    starts = starts_of(points, largest_radix(dtype))
    for i, radix in enumerate(factors_of(points, largest_radix(dtype))):
        step //= radix
        butterflies = rows * (points // radix)
        grid = -(-butterflies // THREADS)
        if radix not in RADICES:
            names: tuple[str, ...] = ("taps", "numbers", "table", "roots", "points")
            sums = Spec("sums", radix, taps, inner)
            found.append(Job(sums, -(-rows * points // THREADS), names, (rows * points, step, row_taps)))
        elif i == 0:
            names = ("taps", "numbers", "table", *(("turns",) if turned else ()), "points")
            first = Spec("first", radix, taps, inner, turned=turned)
            found.append(Job(first, grid, names, (butterflies, step, row_taps)))
        elif step == 1 and dtype != "fp32" and in_blocks(points, radix):
            found.append(Job(Spec("end", radix, dtype=inner, peaks=True), grid, ("points", "peaks"), ()))
        else:
            names = ("table", "points", "points", "points")
            found.append(Job(Spec("next", radix, dtype=inner), grid, names, (butterflies, step, starts[i])))
    if dtype != "fp32":
        pieces, span = pieces_of(points, found[-1].spec)
        if not found[-1].spec.peaks:
            names = ("points", "points", "points", "peaks")
            found.append(Job(Spec("peak", dtype=inner), rows * pieces, names, (points, pieces, span)))
        scale = Spec("scale", dtype=inner, limits=limits)
        found.append(Job(scale, rows, ("peaks", "peaks", "peaks", "scales"), (pieces,)))
    pairs = positions // 2
    items = -(-rows // AT_ONCE) * pairs
    scalars = (pairs, items, points, pairs // tiles if dtype != "fp32" else 1, rows)
    for which in ("", "2") if both else ("",):
        names = ("points", f"places{which}", f"weights{which}", f"spectrum{which}", "scales")
        found.append(Job(Spec("last", dtype=dtype), -(-items // THREADS), names, scalars))
    return tuple(found)


# ---- running -------------------------------------------------------------------------------------------------
def on_device(k: Any, adapter: Adapter, index: int) -> tuple[Any, Any, int]:
    """The filter in the memory of GPU ``index`` without gaps, what makes arrays beside it, and the stream to use."""
    from kernels_numba import launch

    there = adapter.index(k) == index
    source = adapter.packed(k)
    if adapter_of(source, "k").index(source) != index:  # not every library packs on the device
        source = launch.DeviceBuffer.of(source, index)
    return source, adapter.empty if there else launch.DeviceBuffer, adapter.stream(index) if there else 0


def transform(
    k: Any,
    rows: int,
    constants: dict[str, Any],
    tiles: int,
    dtype: str,
    limits: tuple,
    *,
    adapter: Adapter,
    index: int,
) -> tuple[Any, ...]:
    """Words and scales of a filter [H, K] or [K] for ``rows`` channels, made on GPU ``index``.

    With tables of both spectra, words of the second one come after these.

    They are arrays of the filter's library if it lives there, else device buffers. ``constants``: device buffers of
    the layout's ``table``, ``numbers``, ``places`` and ``weights``. Launches go to the library's current stream.
    """
    from kernels_numba import launch

    source, make, stream = on_device(k, adapter, index)
    positions, n = constants["places"].shape[0], 2 * constants["numbers"].shape[1]
    width = 2 if dtype == "fp32" else 1
    both = "places2" in constants
    words, scales = make(index, (rows, width * positions), np.int32), make(index, (rows,), np.float32)
    words2 = make(index, (rows, width * positions), np.int32) if both else words
    inner = np.dtype(np.float64 if dtype == "fp32" else np.float32)
    count = rows_at_once(rows, n, dtype)
    # The last kernel reads some rows at a time, there or not.
    points = make(index, (-(-count // AT_ONCE) * AT_ONCE, n), inner)
    peaks = make(index, (count, max(MOST_PIECES, n // (2 * THREADS))), np.float32)
    kind = adapter.dtype_name(k)
    itemsize = {"fp64": 8, "fp32": 4}.get(kind, 2)
    row_taps = int(k.shape[-1]) if len(k.shape) == 2 else 0
    if dtype == "fp32":
        launch.fill(adapter_of(scales, "scales").pointer(scales), np.float32(1), rows, stream, index)
    arrays = {"taps": source, "points": points, "peaks": peaks, "spectrum": words, "scales": scales}
    arrays |= {"spectrum2": words2}
    addresses = {name: buffer.pointer for name, buffer in constants.items()}
    addresses |= {name: adapter_of(x, name).pointer(x) for name, x in arrays.items()}
    advance = {"taps": row_taps * itemsize, "spectrum": 4 * width * positions, "scales": 4}
    advance["spectrum2"] = advance["spectrum"]
    for first in range(0, rows, count):
        now = {name: address + first * advance.get(name, 0) for name, address in addresses.items()}
        which = both, "turns" in constants
        how = (n, min(count, rows - first), kind, row_taps, dtype, positions, tiles, limits, *which, index)
        for run, names in _launches(*how):
            run(stream, *[now[name] for name in names])
    return (words, scales, words2) if both else (words, scales)


@cache
def _launches(*how: Any) -> list[tuple[Callable[..., None], tuple[str, ...]]]:
    """`jobs` ready to launch on the GPU that comes last, and the pointers that each takes, for every filter."""
    from kernels_numba import launch

    found = []
    *what, index = how
    for job in jobs(*what):
        places = tuple(f"pointer {i}" for i in range(len(job.pointers)))  # the same pointer may come twice
        loaded = launch.load(family(job.spec), job.spec, index)
        found.append((loaded.launcher(job.grid, (*places, *job.scalars), places), job.pointers))
    return found
