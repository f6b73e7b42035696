"""From sums of conj(Z) W at a channel's bins back to a gradient in taps: the adjoint of a filter's transform, in fp32.

The gradient g on the circle is real, so it takes a transform of P = N / 2 points: with G the Hermitian part of the sums
S, x[m] = g[2m] + i g[2m + 1] has the transform

    X[k] = (G[k] + G[k + P]) / 2 + i w^k (G[k] - G[k + P]) / 2,  w = e^(2 pi i / N),  G[k] = (S[k] + conj S[N - k]) / 2.

Up to 16384 points a block does it all in shared memory, with the stages of `fused_float` (kind "whole"): it gathers the
four S that make each X and adds the shares of the batch, transforms, and gathers the taps. Longer ones go through
device memory once for each factor, as filters do:

    bins     sums, shares added -> X, and the first pass, times twiddles
    next     `filter_transform`'s passes, in place
    taps     the place of a tap, or the sum of its two places -> dk [H, K], float32

Where the filter's spectrum has zeros, so has the sum of spectra (kind "keep", before all others). A filter that all
channels share has the sum of its channels' gradients (kind "total"), some rows at a time. All sums are in a fixed
order. Transforms run forwards: the inverse transform of X at m is the forward one at -m, over P. Unitary transforms of
z and w make the N of that disappear; a factor 1 / 2 is left, and the DFT factors' own scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import filter_passes, float_spec, float_stages, gradient_passes
from kernels_numba.filter_passes import WARPS
from kernels_numba.float_spec import Shape, shape_of
from kernels_numba.float_stages import point_places

NONE = -1
"""The place of a tap that reaches no output."""
FACTORS = {n: f for n, f in float_spec.DEFAULT_FACTORS.items() if shape_of(f).points == n} | {
    128: (4, 4, 8),
    256: (4, 8, 8),
    384: (6, 4, 4, 4),
    512: (8, 8, 8),
    12288: (24, 8, 8, 8),
    16384: (32, 32, 16),
}
"""By points, the factors of a transform in one block; of few points for many threads, which wait less."""
AT_ONCE = 8
"""Taps that a thread gathers at a time: a wait for a place is long."""


def natural_places(n: int) -> NDArray[np.intp]:
    """Where the bins 0 .. N - 1 lie in shared memory, in points: neighbours side by side, with padding."""
    k = np.arange(n)
    return k + k // 16


def table_width(taps: int, points: int) -> int:
    """W: the places of so many taps, with as many more as a block's threads look at past the last."""
    step = AT_ONCE * shape_of(FACTORS[points]).threads
    return -(-taps // step) * step


@dataclass(frozen=True)
class Spec:
    """One kernel: ``kind`` is "whole", "bins", "taps", "total" or "keep".

    ``factors``: of the transform in a block. ``radix`` and ``points``: of the first pass. ``places``: 1 or 2, of a tap.
    """

    kind: str
    factors: tuple[int, ...] = ()
    radix: int = 0
    points: int = 0
    places: int = 1
    staged: bool = False
    """Of "whole": sums are brought to shared memory in the order in which they lie, which takes room for all N bins."""
    dtype: str = "fp32"
    overlap: bool = False
    """Of "whole": the launch before may still run when this one starts."""
    turned: bool = False
    """Sums are of right-angle packing: P bins, whose transform is complex."""

    @property
    def shape(self) -> Shape:
        """Of a transform in one block."""
        return shape_of(self.factors)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.shape.together * self.shape.threads // 32 if self.factors else WARPS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * self.shape.together * self.room if self.factors else 0

    @property
    def room(self) -> int:
        """Words of shared memory for one filter."""
        points = self.shape.padding[2]
        whole = self.staged and not self.turned
        return 2 * max(points, int(natural_places(2 * self.shape.points)[-1]) + 1 if whole else 0)

    @property
    def name(self) -> str:
        """For error messages and profilers."""
        sizes = [*self.factors] or [n for n in (self.radix, self.points) if n]
        return (
            f"filter_gradient_{self.kind}_"
            + "x".join(map(str, [*sizes, self.places]))
            + "_turned" * self.turned
            + "_staged" * self.staged
            + "_o" * self.overlap
        )


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile``."""
    return _build_whole(tile, spec) if spec.kind == "whole" else gradient_passes.build(tile, spec)


def _build_whole(tile: Any, spec: Spec) -> Any:
    """Sums to taps, a filter a transform.

    Arguments: ``sums`` [rows, shares, N, 2]; ``bins`` [P, 4] of the places that make each X, in shared memory if
    staged, where the sums go to the words ``spots`` [N], else in the sums; ``roots`` [P, 2], ``table`` of twiddles,
    ``taps`` [1 or 2, W] of the words where taps lie, ``dk``; then a factor, rows, shares, K, and W (`table_width`).

    Turned sums are [rows, shares, P, 2]: they are put where the first stage reads its points, and a tap is both parts
    of the point at its word, times ``roots`` [1 or 2, 2, W].
    """
    shape = spec.shape
    stages = shape.stages
    threads, together, held = shape.threads, shape.together, shape.held
    turned, staged = spec.turned, spec.staged
    room, n = spec.room, shape.points if turned else 2 * shape.points
    own = n // (2 * threads)  # quads that a thread brings
    quads = next(count for count in (8, 4, 2, 1) if own % count == 0)
    barrier = float_stages.barrier_of(tile, shape)
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    constants = shape.constants(stages[0], stages[0].radix)
    zeros, add, from_shared = (
        tile.zeros(2 * held),
        tile.add_hermitian(constants),
        tile.hermitian_shared(constants),
    )
    no_quads, add_quads = tile.zeros(4 * quads), tile.add_quads(quads, 4 * threads)
    scatter, turns = tile.scatter_points(quads, 2 * threads), own // quads
    starts, forward = float_stages.starts_of(tile, shape), float_stages.forward_of(tile, shape)
    put4 = tile.store_points(point_places(shape, stages[-1]))
    gather, plus, scaled = tile.gather_shared(AT_ONCE), tile.plus(AT_ONCE), tile.scaled_total(1, AT_ONCE)
    store = tile.store_floats(tuple((i * threads, (i,)) for i in range(AT_ONCE)), guarded=True)
    two, follow = spec.places > 1, tile.follow(overlap=spec.overlap)
    get1, times = tile.load_points(point_places(shape, stages[0])), tile.multiply_floats(AT_ONCE)
    load_turns = tile.load_floats(tuple((i * threads, (i,)) for i in range(AT_ONCE)), AT_ONCE, guarded=False)

    def kernel(sums, bins, spots, roots, table, taps, dk, scale, rows, shares, count, width):
        index = small(32 * warp() + lane())
        slot = small(divide(index, threads))
        j = small(index - slot * threads)
        base = small(slot * room)
        m1, m2, m3, at1, at2, at3, at4 = starts(j, base)

        # Those without a row do the first again, and store nothing.
        row = small(block() * together + slot)
        there = small(row < rows)
        row = small(row * there)
        source = int64(row) * (shares * n)
        follow()
        if staged:
            turn = small(0)
            while turn < turns:
                first = small(turn * (quads * threads) + j)
                v = no_quads()
                share = small(0)
                while share < shares:
                    v = add_quads(v, sums, 2 * (source + share * n) + 4 * first)
                    share = small(share + 1)
                scatter(base, spots, 2 * first, v)
                turn = small(turn + 1)
            barrier()
            if turned:
                x = get1(at1)
            else:
                x = from_shared(base, bins, roots, j)
                barrier()
        else:
            x = zeros()
            share = small(0)
            while share < shares:
                x = add(x, sums, source, bins, roots, j)
                source += n
                share = small(share + 1)
        x = forward(x, table, m1, m2, m3, at1, at2, at3, at4)
        put4(at4, x)
        barrier()
        first = small(0)
        start = int64(row) * count
        limit = small(count * there)
        while first < count:
            tap = small(first + j)
            found = gather(base, taps, tap, threads)
            if turned:
                found = times(found, load_turns(roots, int64(0), 0, tap))
                imaginary = gather(base + 1, taps, tap, threads)
                found = plus(found, times(imaginary, load_turns(roots, int64(width), 0, tap)))
                if two:
                    other = int64(2) * width
                    real = times(gather(base, taps, tap + width, threads), load_turns(roots, other, 0, tap))
                    imaginary = gather(base + 1, taps, tap + width, threads)
                    imaginary = times(imaginary, load_turns(roots, other + width, 0, tap))
                    found = plus(found, plus(real, imaginary))
            elif two:
                found = plus(found, gather(base, taps, tap + width, threads))
            store(dk, start, limit, tap, scaled(found, scale))
            first = small(first + AT_ONCE * threads)

    return kernel


def family(spec: Any) -> Any:
    """What `launch` asks of a kernel family, for one kernel: their arguments differ."""
    if isinstance(spec, filter_passes.Spec):
        return filter_passes.family(spec)
    made_of = ("FLOATS", "WORDS", "FLOATS", "FLOATS")
    signature = {
        "whole": ("FLOATS", "WORDS", *made_of[1:], "WORDS", "FLOATS", "FLOAT", *("INT",) * 4),
        "bins": (*made_of, "FLOATS", "INT", "INT"),
        "taps": ("FLOATS", "WORDS", *(("FLOATS",) * (1 + spec.turned)), "FLOAT", "INT", "INT", "INT"),
        "total": ("FLOATS", "FLOATS", "INT", "INT", "INT"),
        "keep": ("FLOATS", "FLOATS", "INT", "INT"),
    }[spec.kind]
    return SimpleNamespace(
        __name__=__name__,
        build=build,
        SIGNATURE=signature,
        VOCABULARY="float",
        min_blocks=lambda spec: 2 if spec.staged and spec.warps <= 8 else 1,
    )
