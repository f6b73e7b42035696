"""The filter's gradient in spectra, order 2: a warp transforms pairs of u and of dy and sums conj(Z) W over the batch.

With z = x1 + i x2 (inputs times their gate) and w = e1 + i e2 (gradients times theirs) of the sequences 1 and 2 of a
channel, the real part of the inverse transform of conj(Z) W is the correlation of x1 with e1 plus that of x2 with e2:
what the filter's gradient is the sum of. A warp has *units* of work: a channel, and a share of its pairs. For each pair
it does the two forward stages of `fused_warp` twice, keeps Z rounded to halves in registers, and adds conj(Z) W in
float32. Sums of different shares are added when the gradient is brought back to taps (`filter_gradient.py`), so every
order is fixed and two runs have the same bits.

Nothing but u, dy, their gates and one spectrum a unit touches device memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import rounded_stages as stages
from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.operands import columns_to_a, factor_scale
from kernels_numba.tile import layout
from kernels_numba.warp_operands import _maps, constants
from kernels_numba.warp_pieces import copy_pieces
from kernels_numba.warp_spec import FACTORS, HALVES_PER_COPY, RIGHT_ANGLE
from monarch import Plan

PACKINGS = {"pair": FACTORS, "right-angle": RIGHT_ANGLE}
"""Which plans this kernel takes."""
IN_REGISTERS = 1024
"""Sums of longer transforms are kept in shared memory."""
HELD = 256
"""Points of the longest transform whose factors and twiddles a lane keeps in registers."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel; see `fused_warp.Spec`."""

    n1: int
    n2: int
    dtype: str
    rows_in: int
    halves: int = HALVES_PER_COPY
    guarded: bool = False
    pregate: bool = False
    """The inputs have a gate,"""
    postgate: bool = False
    """and so have the gradients."""
    sequences: str = ""
    warps: int = 4
    overlap: bool = False
    """The launch before may still run when this one starts."""
    right_angle: bool = False
    """Two real sequences of at most N / 2 samples as complex ones of N / 2 each: the N1 rows are k1 of both."""

    rounded = property(stages.in_halves)

    @property
    def n(self) -> int:
        """Transform length N."""
        return self.n1 * self.n2

    @property
    def served(self) -> int:
        """How many sequences have tables and sums in common."""
        return 2 if self.right_angle else 1

    @property
    def bins(self) -> int:
        """Points of the sums."""
        return self.n // self.served

    @property
    def parts(self) -> int:
        """Shares of the frequencies that a unit of work may have: all of them."""
        return 1

    @property
    def in_registers(self) -> bool:
        """Where the sums are kept."""
        return self.bins <= IN_REGISTERS

    @property
    def held(self) -> bool:
        """Whether factors and twiddles stay in registers."""
        return self.n <= HELD

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        shape = f"{self.n1}x{self.n2}{'_right' * self.right_angle}_in{self.rows_in}"
        guard = "_guarded" * self.guarded
        how = f"_w{self.warps}" + "_o" * self.overlap
        return f"fftconv_dk_{shape}_{self.sequences}{self.dtype}_v{self.halves}{gates}{guard}{how}"

    @property
    def sequence_words(self) -> int:
        """One sequence's live rows."""
        return self.rows_in * self.n2 // 2

    @property
    def stage_words(self) -> int:
        """One buffer of a warp: two sequences, and their gates."""
        return 2 * self.sequence_words * (2 if self.pregate or self.postgate else 1)

    @property
    def constant_words(self) -> int:
        """Words of the constant operands, those of the forward stages."""
        return (self.n1 * self.rows_in + self.n2 * self.n2) // 2 + self.bins

    @property
    def warp_words(self) -> int:
        """Two buffers, of u and of dy, and the sums."""
        return 2 * self.stage_words + (0 if self.in_registers else 2 * self.bins)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.constant_words + self.warps * self.warp_words)


def make_spec(
    plan: Plan,
    dtype: str,
    *,
    halves: int = HALVES_PER_COPY,
    guarded: bool | None = None,
    pregate: bool = False,
    postgate: bool = False,
    shared_limit: int = LARGEST_SHARED_BYTES,
) -> Spec:
    """The kernel for a plan. Raises ``ValueError`` when this kernel cannot run the plan."""
    if plan.factors not in PACKINGS.get(plan.packing, ()):
        raise ValueError(
            f"plan: {plan} has no order-2 kernel for the filter's gradient; accepted are {FACTORS} with packing "
            f"'pair', {RIGHT_ANGLE} with packing 'right-angle'"
        )
    n1, n2 = plan.factors
    right_angle = plan.packing == "right-angle"
    if right_angle:  # the k1 of both sequences
        n1 *= 2
    signal = plan.signal or plan.n
    rows_in = 16 * -(-signal // (16 * n2))
    guarded = signal < plan.n if guarded is None else guarded
    spec = Spec(n1, n2, dtype, rows_in, halves, guarded, pregate, postgate, right_angle=right_angle)
    while spec.shared_bytes > shared_limit and spec.warps > 1:
        spec = replace(spec, warps=spec.warps // 2)
    return spec


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: buffers of half elements ``u``, ``pre``, ``dy``, ``post``; ``words`` of the constants;
    float32 ``sums`` [units, bins, 2]; then the number of units, workers in all, shares of a channel's pairs, pairs a
    share, pairs, batch size, channels, and the sequence length L.
    """
    n1, n2 = spec.n1, spec.n2
    row_tiles, column_tiles, in_tiles, k2_tiles = n1 // 16, n2 // 8, spec.rows_in // 16, n2 // 16
    packed, read, served = n1 * n2 // 64, spec.rows_in * n2 // 64, spec.served
    own = packed // served  # of tables and sums
    warps, halves, guarded, in_registers = spec.warps, spec.halves, spec.guarded, spec.in_registers
    gated_in, gated_out = spec.pregate, spec.postgate
    log_columns, column_mask, row_words = n2.bit_length() - 1, n2 - 1, n2 // 2
    row_step = 4 * row_words
    swizzle = 2 if n2 == 32 else 0  # see `fused_warp`

    at_t1 = n1 * spec.rows_in // 2
    at_f2 = at_t1 + spec.bins
    total = spec.constant_words
    constant_rounds = total // 128
    sequence_words, stage_words, warp_words = spec.sequence_words, spec.stage_words, spec.warp_words
    copy_rows, gate_at, n = (
        tile.copy_pieces(copy_pieces(spec, swizzle), halves, guarded=guarded),
        4 * sequence_words,
        spec.bins,
    )

    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    barrier, warp_sync, commit, copy_constants = (
        tile.barrier,
        tile.warp_sync,
        tile.commit,
        tile.copy_words_async,
    )
    wait_all, wait_input, follow = tile.wait(0), tile.wait(1), tile.follow(overlap=spec.overlap)
    held = spec.held
    chunk = column_tiles // 2  # words of a lane's contiguous columns
    load_rows = tile.load_shared(4 * in_tiles * chunk, chunk)
    load_f1 = tile.load_shared(row_tiles * in_tiles * 4, 4)
    load_twiddle = tile.load_shared(2 * own, 4)
    load_f2 = tile.load_shared(k2_tiles * column_tiles * 2, 4)
    right = spec.right_angle
    multiply = tile.multiply_complex_shared(own) if right else tile.multiply_complex(packed)
    stage1 = stages.first(tile, row_tiles, column_tiles, spec.rows_in, right_angle=right)
    shape = (row_tiles, column_tiles, k2_tiles)
    stage2 = stages.columns(tile, *shape, inverse=False, halves=spec.rounded)
    stage2_wide = tile.dft_columns(*shape, inverse=False)
    pack, pack_sums, gate, join = (
        tile.pack(2 * packed),
        tile.pack(2 * own),
        tile.multiply(read),
        tile.join,
    )
    to_b = tile.pair_halves(
        tuple(
            ((4 * k + 2 * r) * chunk + j // 2, (4 * k + 2 * r + 1) * chunk + j // 2, j % 2)
            for k in range(in_tiles)
            for j in range(column_tiles)
            for r in range(2)
        )
    )
    to_a = tile.select(columns_to_a(n1, n2))
    nothing = tile.no_sums(packed)
    no_sums, correlate, store_sums = (
        tile.no_sums(own),
        tile.correlate(own, served),
        tile.store_sums_global(own),
    )
    correlate_shared, load_sums = tile.correlate_shared(own), tile.load_shared(4 * own, 4)
    clear = tile.store_shared_pieces(tuple((0, 128 * i, (0, 0, 0, 0)) for i in range(own)))

    def kernel(
        u, pre, dy, post, words, sums, units, workers, shares, per_share, pairs, batch, channels, length
    ):
        index = small(lane())
        w = small(warp())
        g = small(index >> 2)
        t = small(index & 3)
        c = small(4 * index)
        r = w
        while r < constant_rounds:
            copy_constants(r * 128 + c, words, r * 128 + c)
            r = small(r + warps)
        commit()
        follow()
        wait_all()
        barrier()

        mine = small(total + w * warp_words)
        my_sums = small(mine + 2 * stage_words + c)
        column = small(g * chunk)
        read_at = small(mine + t * row_words + (((column >> 2) ^ (t & swizzle)) << 2) + (column & 3))
        # Where this lane's copies come from and go to; see `warp_pieces.copy_pieces`.
        copy_from = small(index * halves)
        copy_column = small(copy_from & column_mask)
        copy_row = small(copy_from >> log_columns)
        copy_chunk = small((copy_column >> 3) ^ (copy_row & swizzle))
        copy_to = small(2 * (mine + copy_row * row_words + (copy_chunk << 2)) + (copy_column & 7))
        copy_to_swapped = small(
            2 * (mine + copy_row * row_words + ((copy_chunk ^ swizzle) << 2)) + (copy_column & 7)
        )
        other_sequence = int64(channels) * length

        # u goes through the first buffer, dy through the second; copies run a buffer ahead of the work. A turn brings
        # the next pair, finishes the pair before with its dy, and begins the next with its u.
        unit = small(block() * warps + w)
        next_unit = unit
        next_h = small(divide(unit, shares))
        next_p = small((unit - next_h * shares) * per_share)
        next_end = small(min(next_p + per_share, pairs))
        begun = small(0)
        if held:
            f1 = load_f1(c, 128)
            twiddle = load_twiddle(at_t1 + c, 128)
            f2 = load_f2(at_f2 + c, 128)
        z = pack(nothing())
        while unit < units:
            h = small(divide(unit, shares))
            p = small((unit - h * shares) * per_share)
            end = small(min(p + per_share, pairs))
            kept = no_sums()
            if not in_registers:
                blank = pack_sums(no_sums())
                clear(my_sums, my_sums, my_sums, my_sums, blank)
            while p < end:
                base = (2 * int64(next_p) * channels + next_h) * length
                there = small(next_unit < units)
                if there:
                    for q in range(2):
                        limit = small(length * (2 * next_p + q < batch))
                        source = base + q * other_sequence
                        to0 = small(copy_to + q * (2 * sequence_words))
                        to1 = small(copy_to_swapped + q * (2 * sequence_words))
                        copy_rows(u, source, limit, copy_from, to0, to1, to1, to1)
                        if gated_in:
                            to0 = small(to0 + gate_at)
                            to1 = small(to1 + gate_at)
                            copy_rows(pre, source, limit, copy_from, to0, to1, to1, to1)
                commit()
                if begun:
                    wait_input()
                    warp_sync()
                    at = small(read_at + stage_words)
                    u1 = load_rows(at, row_step)
                    u2 = load_rows(at + sequence_words, row_step)
                    if gated_out:
                        u1 = gate(u1, load_rows(at + 2 * sequence_words, row_step))
                        u2 = gate(u2, load_rows(at + 3 * sequence_words, row_step))
                    x = join(to_b(u1), to_b(u2))
                    if not held:
                        f1 = load_f1(c, 128)
                        twiddle = load_twiddle(at_t1 + c, 128)
                        f2 = load_f2(at_f2 + c, 128)
                    spectrum = stage2_wide(to_a(multiply(stage1(f1, x), twiddle)), f2)
                    if in_registers:
                        kept = correlate(kept, z, spectrum)
                    else:
                        correlate_shared(my_sums, z, spectrum)
                    warp_sync()
                    p = small(p + 1)
                begun = small(1)
                if there:
                    for q in range(2):
                        limit = small(length * (2 * next_p + q < batch))
                        source = base + q * other_sequence
                        to0 = small(copy_to + 2 * stage_words + q * (2 * sequence_words))
                        to1 = small(copy_to_swapped + 2 * stage_words + q * (2 * sequence_words))
                        copy_rows(dy, source, limit, copy_from, to0, to1, to1, to1)
                        if gated_out:
                            to0 = small(to0 + gate_at)
                            to1 = small(to1 + gate_at)
                            copy_rows(post, source, limit, copy_from, to0, to1, to1, to1)
                commit()
                if there:
                    wait_input()
                    warp_sync()
                    u1 = load_rows(read_at, row_step)
                    u2 = load_rows(read_at + sequence_words, row_step)
                    if gated_in:
                        u1 = gate(u1, load_rows(read_at + 2 * sequence_words, row_step))
                        u2 = gate(u2, load_rows(read_at + 3 * sequence_words, row_step))
                    x = join(to_b(u1), to_b(u2))
                    if not held:
                        f1 = load_f1(c, 128)
                        twiddle = load_twiddle(at_t1 + c, 128)
                        f2 = load_f2(at_f2 + c, 128)
                    z = stage2(to_a(multiply(stage1(f1, x), twiddle)), f2)
                    warp_sync()
                    next_p = small(next_p + 1)
                    if next_p == next_end:
                        next_unit = small(next_unit + workers)
                        next_h = small(divide(next_unit, shares))
                        next_p = small((next_unit - next_h * shares) * per_share)
                        next_end = small(min(next_p + per_share, pairs))
            at = int64(unit) * (2 * n) + c
            if in_registers:
                store_sums(sums, at, kept)
            else:
                store_sums(sums, at, load_sums(my_sums, 128))
            unit = small(unit + workers)

    return kernel


SIGNATURE = ("HALVES",) * 4 + ("WORDS", "FLOATS") + ("INT",) * 8
"""Kinds of the kernel's arguments, for the compiler."""


def overlapping(spec: Spec) -> Spec:
    """The kernel on compute capability 9."""
    return replace(spec, overlap=True)


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return 3 if spec.n <= 512 and not (spec.pregate or spec.postgate) else 2


def workers(spec: Spec) -> int:
    """Who takes units of work: every warp of a block."""
    return spec.warps


def operand_key(spec: Spec) -> tuple:
    """What the constant buffers depend on."""
    return (spec.n1 // spec.served, spec.n2, spec.rows_in, spec.dtype, spec.right_angle)


@lru_cache(maxsize=64)
def operands(
    n1: int, n2: int, rows_in: int, dtype: str, right_angle: bool = False
) -> tuple[NDArray[np.int32], ...]:
    """The constant buffers: factors and twiddles of the forward stages, the first of `warp_operands.constants`.

    With right-angle packing n1 is the factor N1.
    """
    words = (n1 * rows_in * (2 if right_angle else 1) + n2 * n2) // 2 + n1 * n2
    return (constants(n1, n2, rows_in, dtype, right_angle=right_angle)[:words],)


def sums_layout(spec: Spec) -> tuple[NDArray[np.intp], float]:
    """The bin at each point of a unit's sums, and what the sums are to be multiplied by."""
    n1, n2 = spec.n1 // spec.served, spec.n2
    at = _maps(n1, n2)
    k1 = np.arange(n1) if spec.right_angle else at.k1
    rows, columns = layout.c_index(n1 // 8, n2 // 8)
    order = k1[rows] + n1 * at.k2[columns]
    return order.reshape(-1), factor_scale(n2, 0.5, spec.dtype) ** -2
