"""The filter's gradient in spectra, for fp32 sequences: a block sums conj(Z) W over the batch in registers.

As `gradient_warp`, with the forward transform of `fused_float` in fp32: each thread has R points of the transform of a
pair of u, keeps them while that of dy is made, and adds conj(Z) W to R sums. A transform of N = S P points, P up to
8192, is S units of work of P points: unit s has the frequencies s + S kappa,

    Z[s + S kappa] = sum_m w_P^(kappa m) (w_N^(s m) sum_q w_S^(s q) z[q P + m]),

and reads all of its input, as the units beside it do at about the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import float_spec, float_stages
from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.float_spec import Shape, shape_of
from monarch import Plan, format_factors
from monarch.index import digit_order_of

LARGEST = 8192
SHAPES: dict[tuple[int, ...], tuple[int, tuple[int, ...]]] = {
    **{f: (1, f) for n, f in float_spec.DEFAULT_FACTORS.items() if n == prod(f) and n <= LARGEST},
    (3, 16, 16, 16): (3, (16, 16, 16)),
    (4, 16, 16, 16): (4, (16, 16, 16)),
    (2, 32, 16, 16): (2, (32, 16, 16)),
    (3, 32, 16, 16): (3, (32, 16, 16)),
    (4, 32, 16, 16): (4, (32, 16, 16)),
}
"""By a plan's factors: S, and the factors of P."""
FACTORS = tuple(SHAPES)
PACKINGS = {"pair": FACTORS}
"""Which plans this kernel takes."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    parts: int
    factors: tuple[int, ...]
    guarded: bool = False
    pregate: bool = False
    """The inputs have a gate,"""
    postgate: bool = False
    """and so have the gradients."""
    complex_rows: bool = False
    """A pair is a complex sequence already, a row of a long transform, as `outer_float` leaves it."""
    dtype: str = "fp32"

    @property
    def shape(self) -> Shape:
        """What follows from the factors of P."""
        return shape_of(self.factors)

    @property
    def n(self) -> int:
        """Transform length N."""
        return self.parts * self.shape.points

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.shape.together * self.shape.threads // 32

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: the points of its transforms."""
        return 8 * self.shape.together * self.shape.padding[2]

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        guard, parts = "_guarded" if self.guarded else "", f"{self.parts}of_" if self.parts > 1 else ""
        guard += "_rows" * self.complex_rows
        return f"fftconv_dk_{parts}{format_factors(self.factors)}_fp32{gates}{guard}_w{self.warps}"


def make_spec(
    plan: Plan,
    dtype: str = "fp32",
    *,
    halves: int = 8,
    guarded: bool | None = None,
    pregate: bool = False,
    postgate: bool = False,
    shared_limit: int = LARGEST_SHARED_BYTES,
) -> Spec:
    """The kernel for a plan. Nothing depends on ``halves`` or ``shared_limit``.

    Raises ``ValueError`` when this kernel cannot run the plan.
    """
    if plan.factors not in PACKINGS.get(plan.packing, ()):
        raise ValueError(
            f"plan: {plan} has no fp32 kernel for the filter's gradient; accepted are {FACTORS} with packing 'pair'"
        )
    parts, factors = SHAPES[plan.factors]
    guarded = (plan.signal or plan.n) < plan.n if guarded is None else guarded
    return Spec(parts, factors, guarded, pregate, postgate)


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: float32 buffers ``u``, ``pre``, ``dy``, ``post``; ``tables`` (twiddles), ``turns``
    [S, P, 2] and ``roots`` [S, S, 2] of the parts; ``sums`` [units, P, 2]; then as `gradient_warp.build`.
    """
    shape, parts = spec.shape, spec.parts
    stages, points = shape.stages, shape.points
    threads, together, held = shape.threads, shape.together, shape.held
    gated_in, gated_out = spec.pregate, spec.postgate
    room = 2 * shape.padding[2]
    barrier = float_stages.barrier_of(tile, shape)
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    constants, rows = shape.constants(stages[0], stages[0].radix), spec.complex_rows
    pieces = tuple((c, (i,)) for i, c in enumerate(constants))
    points_of_row = tuple((2 * c, (i, i + held)) for i, c in enumerate(constants))
    load_row = tile.load_floats(points_of_row, 2 * held, guarded=False)
    load, join, gate = (
        tile.load_floats(pieces, held, guarded=spec.guarded),
        tile.join,
        tile.multiply_floats(2 * held),
    )
    starts, forward = float_stages.starts_of(tile, shape), float_stages.forward_of(tile, shape)
    turn_part = tile.multiply_points(
        tuple((4 * threads * i, (2 * i,), (2 * i + 1,)) for i in range(held // 2)), held
    )
    zeros, add_turned, load_float = tile.zeros(2 * held), tile.add_turned(held), tile.load_float
    correlate, opaque = tile.correlate_points(held), tile.opaque
    store = tile.store_floats(tuple((2 * threads * i, (i, i + held)) for i in range(held)), guarded=True)

    def kernel(
        u,
        pre,
        dy,
        post,
        tables,
        turns,
        roots,
        sums,
        units,
        workers,
        shares,
        per_share,
        pairs,
        batch,
        channels,
        length,
    ):
        index = small(32 * warp() + lane())
        slot = small(divide(index, threads))
        j = small(index - slot * threads)
        base = small(slot * room)
        m1, m2, m3, at1, at2, at3, at4 = starts(j, base)
        other_sequence = int64(channels) * length

        first = small(block() * together)
        while first < units:
            # Workers without a unit do the first again, and store nothing.
            there = small(first + slot < units)
            unit = small((first + slot) * there)
            share = small(divide(unit, parts))
            part = small(unit - share * parts)
            h = small(divide(share, shares))
            p = small((share - h * shares) * per_share)
            kept = zeros()
            z = zeros()
            turn = small(0)
            sides = small(2 * opaque(small(per_share)))
            side = small(0)
            while turn < sides:  # a share with fewer pairs than others adds zeros
                start = (2 * int64(p) * channels + h) * length
                limit = small(length * (p < pairs))
                second = small(limit * (2 * p + 1 < batch))
                start = start * (p < pairs)
                if rows:
                    start = 2 * (int64(p) * channels + h) * length
                x = zeros()
                q = small(0)
                while q < parts:
                    sample = small(j + q * points)
                    if rows:
                        y = (
                            load_row(u, start, limit, 2 * sample)
                            if side == 0
                            else load_row(dy, start, limit, 2 * sample)
                        )
                    elif side == 0:
                        y = join(
                            load(u, start, limit, sample), load(u, start + other_sequence, second, sample)
                        )
                        if gated_in:
                            y = gate(
                                y,
                                join(
                                    load(pre, start, limit, sample),
                                    load(pre, start + other_sequence, second, sample),
                                ),
                            )
                    else:
                        y = join(
                            load(dy, start, limit, sample), load(dy, start + other_sequence, second, sample)
                        )
                        if gated_out:
                            y = gate(
                                y,
                                join(
                                    load(post, start, limit, sample),
                                    load(post, start + other_sequence, second, sample),
                                ),
                            )
                    if parts > 1:
                        at = small(2 * (part * parts + q))
                        x = add_turned(x, y, load_float(roots, at), load_float(roots, at + 1))
                    else:
                        x = y
                    q = small(q + 1)
                if parts > 1:
                    x = turn_part(x, turns, part * (2 * points) + 4 * j)
                x = forward(x, tables, m1, m2, m3, at1, at2, at3, at4)
                barrier()  # all have read what the next transform overwrites
                if side == 0:
                    z = x
                else:
                    kept = correlate(kept, z, x)
                p = small(p + side)
                side = small(1 - side)
                turn = small(turn + 1)
            store(sums, int64(unit) * (2 * points), small(2 * points * there), small(2 * j), kept)
            first = small(first + workers)

    return kernel


VOCABULARY = "float"
SIGNATURE = ("FLOATS",) * 8 + ("INT",) * 8
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return max(1, (512 if spec.shape.held <= 16 else 256) // (32 * spec.warps))


def workers(spec: Spec) -> int:
    """Who takes units of work: every transform of a block."""
    return spec.shape.together


def operand_key(spec: Spec) -> tuple:
    """What the constant buffers depend on."""
    return (spec.parts, spec.factors)


@lru_cache(maxsize=32)
def operands(parts: int, factors: tuple[int, ...]) -> tuple[NDArray[np.float32], ...]:
    """The constant buffers: twiddles of the stages; w_N^(s m) as threads read them; w_S^(s q)."""
    shape = shape_of(factors)
    points, first = shape.points, shape.stages[0]
    m = (
        shape.place(first, np.arange(shape.threads), 0)
        + np.array(shape.constants(first, first.radix))[:, None]
    )
    m = m.reshape(-1, 2, shape.threads).swapaxes(1, 2).reshape(-1)  # two points of a thread are neighbours
    s, q = np.arange(parts), np.arange(parts)
    turns = np.exp(-2j * np.pi * np.outer(s, m) / (parts * points))
    roots = np.exp(-2j * np.pi * np.outer(s, q) / parts)
    narrow = [x.astype(np.complex64).reshape(-1).view(np.float32) for x in (turns, roots)]
    return float_spec.tables(factors), *narrow


def sums_layout(spec: Spec) -> tuple[NDArray[np.intp], float]:
    """The bin at each point of a channel's sums [S, R, T], and what the sums are to be multiplied by."""
    shape = spec.shape
    last = shape.stages[-1]
    constants = np.array(shape.constants(last, last.radix))
    slot = shape.place(last, np.arange(shape.threads), 0)[None, :] + constants[:, None]  # [R, T]
    kappa = digit_order_of(spec.factors)[slot].reshape(-1)
    order = np.arange(spec.parts)[:, None] + spec.parts * kappa[None, :]
    return order.reshape(-1), 1 / spec.n
