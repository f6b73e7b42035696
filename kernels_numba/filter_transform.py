"""The transform of filters on a GPU: from taps to the spectrum that a convolution kernel reads.

N points go through device memory, in place, once for each factor (decimation in frequency, as in `fused_float.py`):

    first    taps, placed on the circle -> their points, radix r1, times twiddles
    next     radix 16, times twiddles; as often as there are factors left
    peak     the largest magnitude of each channel's bins -> its scale
    last     bins in the kernel's order, times their phases, over the scale, rounded

Filters are done some channels at a time: WORKSPACE_BYTES for their points is all that
preparing needs besides tables and the result.

For half precision all is done in fp32 (taps of fp64 are rounded to it first): its error, of some 2^-23, is nothing
beside the 2^-11 or 2^-8 of the spectrum's own rounding. The spectrum of an fp32 convolution is made in fp64 and rounded
once; in fp32 it would have the error of a third transform, and the convolution would miss its bound. No peak is looked
for then: fp32 holds spectra of any ordinary size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.arrays import Adapter, adapter_of
from monarch.index import natural_order_of

WARPS = 4
THREADS = 32 * WARPS
WORKSPACE_BYTES = 128 * 2**20
PEAK_WARPS = 8
LARGEST_RADIX = 16


@dataclass(frozen=True)
class Spec:
    """One kernel: ``kind`` is "first", "next", "peak" or "last".

    ``radix``: of a pass. ``taps``: the filter's type. ``dtype``: the spectrum's. ``parts``: bins that make a position.
    """

    kind: str
    radix: int = 0
    taps: str = "fp32"
    dtype: str = "fp32"
    parts: int = 1
    limits: tuple[float, float] = (0.0, 0.0)
    """Between these a peak needs no scale."""

    @property
    def double(self) -> bool:
        """Whether it computes in fp64."""
        return self.dtype == "fp32"

    @property
    def name(self) -> str:
        """For error messages and profilers."""
        wide = "_fp64" if self.double else ""
        detail = {
            "first": f"_r{self.radix}_of_{self.taps}{wide}",
            "next": f"_r{self.radix}{wide}",
            "peak": "",
        }
        return f"filter_{self.kind}" + detail.get(self.kind, f"_{self.parts}_{self.dtype}")

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return PEAK_WARPS if self.kind == "peak" else WARPS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 2 * 4 * 32 * PEAK_WARPS if self.kind == "peak" else 0


def factors_of(n: int) -> tuple[int, ...]:
    """Radices of the passes: 16 as often as it divides N, what is left comes first."""
    found: list[int] = []
    left = n
    while left > 1:
        radix = next((r for r in range(LARGEST_RADIX, 1, -1) if left % r == 0), 0)
        if not radix:
            raise ValueError(f"a transform of {n} points has a prime factor above {LARGEST_RADIX}")
        found.insert(0, radix)
        left //= radix
    return tuple(found)


# ---- the kernels ---------------------------------------------------------------------------------------------
def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile``."""
    return {"first": _build_first, "next": _build_next, "peak": _build_peak, "last": _build_last}[spec.kind](
        tile, spec
    )


def _build_first(tile: Any, spec: Spec) -> Any:
    """Taps to points after the first pass.

    Arguments: ``taps`` [rows, .], ``places`` (which tap each sample of the circle is, negative for none), ``table`` of
    twiddles, ``points``; then the butterflies in all and in a row, and the distance of two rows of taps.
    """
    radix = spec.radix
    small, lane, warp, block, divide, int64 = (
        tile.small,
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.int64,
    )
    double = spec.double
    load = tile.load_taps(radix, spec.taps, double=double)
    dft = tile.dft_points(radix, 1, inverse=False, double=double)
    turn, store = tile.multiply_strided(radix, double=double), tile.store_strided(radix, double=double)
    zeros, join = tile.zeros(radix, double=double), tile.join

    def kernel(taps, places, table, points, butterflies, step, row_taps):
        index = small(block() * THREADS + 32 * warp() + lane())
        valid = index < butterflies
        now = small(index * valid)
        row = small(divide(now, step))
        column = small(now - row * step)
        x = join(load(taps, int64(row) * row_taps, places, column, step), zeros())
        store(
            points, int64(row) * (radix * step) + column, step, valid, turn(dft(x), table, 4 * column, step)
        )

    return kernel


def _build_next(tile: Any, spec: Spec) -> Any:
    """A later pass, in place.

    Arguments: ``table``, two that are not used, ``points``; then the butterflies in all, their points' distance, and
    where the table begins.
    """
    radix = spec.radix
    small, lane, warp, block, divide, int64 = (
        tile.small,
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.int64,
    )
    double = spec.double
    load = tile.load_strided(radix, double=double)
    dft = tile.dft_points(radix, 1, inverse=False, double=double)
    turn, store = tile.multiply_strided(radix, double=double), tile.store_strided(radix, double=double)

    def kernel(table, unused, unused_too, points, butterflies, step, start):
        index = small(block() * THREADS + 32 * warp() + lane())
        valid = index < butterflies
        now = small(index * valid)
        row = small(divide(now, step))
        column = small(now - row * step)
        at = int64(row) * (radix * step) + column
        x = turn(dft(load(points, at, step)), table, start + 4 * column, step)
        store(points, at, step, valid, x)

    return kernel


def _build_peak(tile: Any, spec: Spec) -> Any:
    """The scale of each row. Arguments: ``points``, two that are not used, ``scales``; then a row's points."""
    small, lane, warp, block, int64 = tile.small, tile.lane, tile.warp, tile.block, tile.int64
    threads = 32 * PEAK_WARPS
    load, zeros, magnitude = tile.load_strided(1), tile.zeros(1), tile.magnitude(1)
    as_words, put = tile.as_words, tile.store_shared_pieces(((0, 0, (0,)),))
    load_warps, largest_of_warps = tile.load_shared(PEAK_WARPS, 1), tile.largest_word(PEAK_WARPS)
    load_lanes, largest_of_lanes = tile.load_shared(32, 1), tile.largest_word(32)
    power, store = tile.power_above(*spec.limits), tile.store_floats(((0, (0,)),), guarded=True)
    barrier, warp_sync = tile.barrier, tile.warp_sync

    def kernel(points, unused, unused_too, scales, n):
        index = small(32 * warp() + lane())
        base = int64(block()) * n
        best = zeros()
        at = small(0)
        while at < n:  # rows are whole blocks of threads, so all lanes go round together
            best = magnitude(load(points, base + at + index, 1), best)
            at = small(at + threads)
        put(index, index, index, index, as_words(best))
        barrier()
        best = largest_of_warps(load_warps(lane(), 32))
        mine = small(threads + index)
        put(mine, mine, mine, mine, as_words(best))
        warp_sync()
        best = largest_of_lanes(load_lanes(threads + 32 * warp(), 1))
        store(scales, block(), 1, index, power(best))

    return kernel


def _build_last(tile: Any, spec: Spec) -> Any:
    """Bins to a spectrum, two neighbouring positions a lane.

    Arguments: ``points``, ``places`` [parts, positions] of a position's bins, ``weights`` [parts, positions, 2],
    ``scales`` and the spectrum; then the pairs of positions in a row and in all, a row's points, and the pairs in a
    tile (real parts, then imaginary parts).
    """
    parts, double = spec.parts, spec.double
    small, lane, warp, block, divide, int64 = (
        tile.small,
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.int64,
    )
    words = 8 if double else 4  # of the weights of two positions
    load_places, load_weights = tile.load_global(2, 2), tile.load_global(words, 4)
    gather, weigh = tile.gather_points(2, double=double), tile.weigh(2, double=double)
    zeros, narrow, load_scale = tile.zeros(4, double=double), tile.narrow(4), tile.load_float
    scaled = tile.divide_floats(4)
    if double:
        store = tile.store_floats(((0, (0, 2)), (2, (1, 3))), guarded=False)
    else:
        pack, store_halves = tile.pack(2), tile.store_pieces(((0, 0, (0,)), (1, 0, (1,))), 2, guarded=True)

    def kernel(points, places, weights, spectrum, scales, pairs, items, n, tile_pairs):
        index = small(block() * THREADS + 32 * warp() + lane())
        there = small(index < items)
        now = small(index * there)
        row = small(divide(now, pairs))
        pair = small(now - row * pairs)
        x = zeros()
        for part in range(parts):
            at = small(part * pairs + pair)
            found = gather(points, int64(row) * n, load_places(places, 2 * at, 1))
            x = weigh(x, found, load_weights(weights, words * at, 4))
        if double:
            store(spectrum, int64(0), there, small(4 * now), narrow(x))
        else:  # of the 4 elements of a pair two are stored with those of its tile before it, two a tile's half later
            t = small(divide(index, tile_pairs))
            real = small(2 * (index + t * tile_pairs))
            imaginary = small(real + 2 * tile_pairs)
            store_halves(
                spectrum,
                int64(0),
                small(4 * items),
                real,
                imaginary,
                real,
                real,
                pack(scaled(x, load_scale(scales, row))),
            )

    return kernel


def family(spec: Spec) -> Any:
    """What `launch` asks of a kernel family, for one kernel: their arguments differ."""
    taps = {"fp16": "HALVES", "bf16": "HALVES", "fp32": "FLOATS", "fp64": "DOUBLES"}[spec.taps]
    inner = "DOUBLES" if spec.double else "FLOATS"
    pointers = {
        "first": (taps, "WORDS", inner, inner),
        "next": (inner,) * 4,
        "peak": (inner,) * 3 + ("FLOATS",),
        "last": (inner, "WORDS", "WORDS", "FLOATS" if spec.double else "HALVES", "FLOATS"),
    }[spec.kind]
    scalars = {"first": 3, "next": 3, "peak": 1, "last": 4}[spec.kind]
    return SimpleNamespace(
        __name__=__name__,
        build=build,
        SIGNATURE=pointers + ("INT",) * scalars,
        VOCABULARY="float",
        min_blocks=lambda spec: 1,
    )


# ---- tables --------------------------------------------------------------------------------------------------
def starts_of(n: int) -> tuple[int, ...]:
    """Where each pass's twiddles begin in the table of `tables`."""
    radices = factors_of(n)
    sizes = [2 * (r + r % 2) * (n // prod(radices[: i + 1])) for i, r in enumerate(radices)]
    return tuple(sum(sizes[:i]) for i in range(len(sizes)))


@lru_cache(maxsize=32)
def tables(n: int, dtype: str) -> tuple[NDArray, tuple[int, ...]]:
    """Twiddles of all passes over N points, as `float_spec.tables` but for the last pass too; where each begins.

    In the type that spectra of ``dtype`` are computed in.
    """
    parts, step = [], n
    for r in factors_of(n):
        step //= r
        w = np.exp(-2j * np.pi * np.outer(np.arange(r + r % 2), np.arange(step)) / (r * step))
        parts.append(w.reshape(-1, 2, step).transpose(0, 2, 1).reshape(-1))
    found = np.concatenate(parts)
    found = found.view(np.float64) if dtype == "fp32" else found.astype(np.complex64).view(np.float32)
    found.setflags(write=False)
    return found, starts_of(n)


def numbers(n: int, targets: NDArray[np.intp], sources: NDArray[np.intp]) -> NDArray[np.int32]:
    """Which tap each sample of the circle is; -1 for none."""
    found = np.full(n, -1, np.int32)
    found[targets] = sources
    return found


def weights(phase: NDArray[np.complex128], dtype: str) -> NDArray[np.int32]:
    """What bins are multiplied by, as words, in the type that spectra of ``dtype`` are computed in."""
    return phase.astype(np.complex128 if dtype == "fp32" else np.complex64).view(np.int32)


def places(n: int, order: NDArray[np.intp]) -> NDArray[np.int32]:
    """Where the passes leave the bins ``order``."""
    return natural_order_of(factors_of(n))[order].astype(np.int32)


@dataclass(frozen=True)
class Job:
    """One launch: the kernel, its blocks, names of its pointers and its scalars."""

    spec: Spec
    grid: int
    pointers: tuple[str, ...]
    scalars: tuple[int, ...]


@cache
def jobs(
    n: int,
    rows: int,
    taps: str,
    row_taps: int,
    dtype: str,
    parts: int,
    positions: int,
    tiles: int,
    limits: tuple,
) -> tuple[Job, ...]:
    """The launches for ``rows`` channels, in order."""
    found = []
    inner = "fp32" if dtype == "fp32" else "fp16"  # fp16 and bf16 differ in the last kernel only
    step = n
    starts = starts_of(n)
    for i, radix in enumerate(factors_of(n)):
        step //= radix
        butterflies = rows * (n // radix)
        grid = -(-butterflies // THREADS)
        if i == 0:
            names: tuple[str, ...] = ("taps", "numbers", "table", "points")
            found.append(Job(Spec("first", radix, taps, inner), grid, names, (butterflies, step, row_taps)))
        else:
            names = ("table", "points", "points", "points")
            found.append(Job(Spec("next", radix, dtype=inner), grid, names, (butterflies, step, starts[i])))
    if dtype != "fp32":
        peak = Spec("peak", dtype=inner, limits=limits)
        found.append(Job(peak, rows, ("points", "points", "points", "scales"), (n,)))
    pairs = positions // 2
    scalars = (pairs, rows * pairs, n, pairs // tiles if dtype != "fp32" else 1)
    names = ("points", "places", "weights", "spectrum", "scales")
    found.append(Job(Spec("last", dtype=dtype, parts=parts), -(-rows * pairs // THREADS), names, scalars))
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
) -> tuple[Any, Any]:
    """Words and scales of a filter [H, K] or [K] for ``rows`` channels, made on GPU ``index``.

    They are arrays of the filter's library if it lives there, else device buffers. ``constants``: device buffers of
    the layout's ``table``, ``numbers``, ``places`` and ``weights``. Launches go to the library's current stream.
    """
    from kernels_numba import launch

    source, make, stream = on_device(k, adapter, index)
    parts, positions = constants["places"].shape
    n, width = constants["numbers"].shape[0], 2 if dtype == "fp32" else 1
    words, scales = make(index, (rows, width * positions), np.int32), make(index, (rows,), np.float32)
    inner = np.dtype(np.float64 if dtype == "fp32" else np.float32)
    count = max(1, min(rows, WORKSPACE_BYTES // (2 * n * inner.itemsize)))
    points = make(index, (count, 2 * n), inner)
    kind = adapter.dtype_name(k)
    itemsize = {"fp64": 8, "fp32": 4}.get(kind, 2)
    row_taps = int(k.shape[-1]) if len(k.shape) == 2 else 0
    if dtype == "fp32":
        launch.fill(adapter_of(scales, "scales").pointer(scales), np.float32(1), rows, stream, index)
    addresses = {name: buffer.pointer for name, buffer in constants.items()}
    addresses |= {
        name: adapter_of(x, name).pointer(x)
        for name, x in (("taps", source), ("points", points), ("spectrum", words), ("scales", scales))
    }
    advance = {"taps": row_taps * itemsize, "spectrum": 4 * width * positions, "scales": 4}
    for first in range(0, rows, count):
        now = {name: address + first * advance.get(name, 0) for name, address in addresses.items()}
        rows_now = min(count, rows - first)
        for run, names in _launches(
            n, rows_now, kind, row_taps, dtype, parts, positions, tiles, limits, index
        ):
            run(stream, *[now[name] for name in names])
    return words, scales


@cache
def _launches(
    n: int,
    rows: int,
    taps: str,
    row_taps: int,
    dtype: str,
    parts: int,
    positions: int,
    tiles: int,
    limits: tuple,
    index: int,
) -> list[tuple[Callable[..., None], tuple[str, ...]]]:
    """`jobs` ready to launch on GPU ``index``, and the pointers that each takes, the same for every filter."""
    from kernels_numba import launch

    found = []
    for job in jobs(n, rows, taps, row_taps, dtype, parts, positions, tiles, limits):
        places = tuple(f"pointer {i}" for i in range(len(job.pointers)))  # the same pointer may come twice
        loaded = launch.load(family(job.spec), job.spec, index)
        found.append((loaded.launcher(job.grid, (*places, *job.scalars), places), job.pointers))
    return found
