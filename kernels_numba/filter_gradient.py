"""From sums over the batch, conj(Z) W at the bins of each channel, back to a gradient in taps.

The adjoint of `filter_transform`, in fp32: the sums of all shares of the batch are added, first to last, and N points
go through device memory once for each factor, as there; the last pass reads each tap's place on the circle.

    bins     sums in the kernel's order, shares added -> points after the first pass, times twiddles
    next     `filter_transform`'s passes, in place
    taps     the place of a tap, or the sum of its two places -> dk [H, K], float32

The passes transform forwards: the inverse transform of S at t is the forward one at -t, over N. Unitary transforms of z
and of w make that N disappear, so no factor is left but the DFT factors' own scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import filter_transform
from kernels_numba.filter_transform import THREADS, WARPS, factors_of
from monarch.index import natural_order_of

NONE = -1
"""The place of a tap that reaches no output."""


@dataclass(frozen=True)
class Spec:
    """One kernel: ``kind`` is "bins" or "taps"; ``radix`` of the first, ``places`` (1 or 2) of a tap."""

    kind: str
    radix: int = 0
    places: int = 1
    dtype: str = "fp16"
    warps: int = WARPS
    shared_bytes: int = 0

    @property
    def name(self) -> str:
        """For error messages and profilers."""
        return f"filter_gradient_{self.kind}_{self.radix if self.kind == 'bins' else self.places}"


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile``."""
    return _build_bins(tile, spec) if spec.kind == "bins" else _build_taps(tile, spec)


def _build_bins(tile: Any, spec: Spec) -> Any:
    """Sums to points after the first pass.

    Arguments: ``sums`` [rows, shares, N, 2], ``places`` [N] of the bins in it, ``table`` of twiddles, ``points``; then
    the butterflies in all and in a row, and the shares.
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
    zeros, add, dft = tile.zeros(2 * radix), tile.add_bins(radix), tile.dft_points(radix, 1, inverse=False)
    turn, store = tile.multiply_strided(radix), tile.store_strided(radix)

    def kernel(sums, places, table, points, butterflies, step, shares):
        index = small(block() * THREADS + 32 * warp() + lane())
        valid = index < butterflies
        now = small(index * valid)
        row = small(divide(now, step))
        column = small(now - row * step)
        n = small(radix * step)
        base = int64(row) * (shares * n)
        x = zeros()
        share = small(0)
        while share < shares:
            x = add(x, sums, base, places, column, step)
            base += n
            share = small(share + 1)
        store(points, int64(row) * n + column, step, valid, turn(dft(x), table, 4 * column, step))

    return kernel


def _build_taps(tile: Any, spec: Spec) -> Any:
    """Points to taps.

    Arguments: ``points`` [rows, N, 2], ``places`` [1 or 2, taps] of the taps' real parts, ``dk``; then a factor, the
    taps in a row and in all, and N.
    """
    small, lane, warp, block, divide, int64 = (
        tile.small,
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.int64,
    )
    load, total = tile.load_taps(spec.places, "fp32"), tile.scaled_total(spec.places)
    store = tile.store_floats(((0, (0,)),), guarded=True)

    def kernel(points, places, dk, factor, taps, items, n):
        index = small(block() * THREADS + 32 * warp() + lane())
        now = small(index * (index < items))
        row = small(divide(now, taps))
        tap = small(now - row * taps)
        x = load(points, int64(row) * (2 * n), places, tap, taps)
        store(dk, int64(0), items, index, total(x, factor))

    return kernel


def family(spec: Any) -> Any:
    """What `launch` asks of a kernel family, for one kernel: their arguments differ."""
    if isinstance(spec, filter_transform.Spec):
        return filter_transform.family(spec)
    signature = {
        "bins": ("FLOATS", "WORDS", "FLOATS", "FLOATS", "INT", "INT", "INT"),
        "taps": ("FLOATS", "WORDS", "FLOATS", "FLOAT", "INT", "INT", "INT"),
    }[spec.kind]
    return SimpleNamespace(
        __name__=__name__, build=build, SIGNATURE=signature, VOCABULARY="float", min_blocks=lambda spec: 1
    )


# ---- tables --------------------------------------------------------------------------------------------------
def bin_places(order: NDArray[np.intp]) -> NDArray[np.int32]:
    """Where each bin lies in a channel's sums, whose points are the bins ``order``."""
    return np.argsort(order).astype(np.int32)


def tap_places(n: int, taps: int, targets: NDArray[np.intp], sources: NDArray[np.intp]) -> NDArray[np.int32]:
    """Where the passes leave the gradient of each tap, as floats of a row of points: [1 or 2, taps].

    ``targets`` are places on the circle of n samples, ``sources`` the taps that lie there.
    """
    at = (2 * natural_order_of(factors_of(n))[-targets % n]).astype(np.int32)
    _, first = np.unique(sources, return_index=True)
    rest = np.setdiff1d(np.arange(sources.size), first)
    found = np.full((2 if rest.size else 1, taps), NONE, np.int32)
    found[0, sources[first]] = at[first]
    if rest.size:
        found[1, sources[rest]] = at[rest]
    return found


@dataclass(frozen=True)
class Job:
    """One launch: the kernel, its blocks, names of its pointers and its scalars."""

    spec: Any
    grid: int
    pointers: tuple[str, ...]
    scalars: tuple[Any, ...]


@cache
def jobs(n: int, rows: int, shares: int, taps: int, places: int, factor: float) -> tuple[Job, ...]:
    """The launches for ``rows`` filters, in order."""
    found = []
    step = n
    _, starts = filter_transform.tables(n, "fp16")
    for i, radix in enumerate(factors_of(n)):
        step //= radix
        butterflies = rows * (n // radix)
        grid = -(-butterflies // THREADS)
        if i == 0:
            names = ("sums", "bins", "table", "points")
            found.append(Job(Spec("bins", radix), grid, names, (butterflies, step, shares)))
        else:
            names = ("table", "points", "points", "points")
            spec = filter_transform.Spec("next", radix, dtype="fp16")
            found.append(Job(spec, grid, names, (butterflies, step, starts[i])))
    items = rows * taps
    last = Spec("taps", places=places)
    found.append(Job(last, -(-items // THREADS), ("points", "taps", "dk"), (factor, taps, items, n)))
    return tuple(found)
