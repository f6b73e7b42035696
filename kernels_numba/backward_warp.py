"""A backward pass in one launch, order 2: a warp transforms pairs of u and of dy, and all gradients leave from there.

The gradients of a convolution share their transforms. With z the spectrum of a pair of u, under its gate, and w that
of dy, under its gate,

    du, dpregate    the inverse transform of conj(K) w, under the gates pregate and u
    dpostgate       the inverse transform of K z, under the gate dy
    dk              sums of conj(z) w over the batch, brought back to taps by `filter_gradient`

so two transforms forward and one or two back make all of them, where `fused_warp` and `gradient_warp` make four or six;
and u, dy and their gates come from device memory once. Stages, operands and spectra are those of `fused_warp`, the sums
those of `gradient_warp`. Output gates are read a second time, from the L2 cache.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from kernels_numba import rounded_stages as stages
from kernels_numba import warp_spec
from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.gradient_warp import sums_layout
from kernels_numba.operands import columns_to_a, rows_of_tile_to_b
from kernels_numba.warp_operands import operand_key, operands
from kernels_numba.warp_pieces import copy_pieces, output_pieces, rows_of_parts_to_b, rows_to_b
from kernels_numba.warp_spec import FACTORS, PACKINGS
from monarch import Plan

IN_REGISTERS = 768
"""Sums of more bins are kept in shared memory."""


@dataclass(frozen=True)
class Spec(warp_spec.Spec):
    """Everything that is compiled into one kernel; gates are those of the convolution."""

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
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        return super().name.replace("fftconv_", "fftconv_back_", 1)

    @property
    def stage_words(self) -> int:
        """One buffer of a warp: two sequences, and their gates."""
        return 2 * self.sequence_words * (2 if self.pregate or self.postgate else 1)

    @property
    def warp_words(self) -> int:
        """A buffer of u and one of dy, and the sums."""
        return 2 * self.stage_words + (0 if self.in_registers else 2 * self.bins)


def make_spec(plan: Plan, dtype: str, *, shared_limit: int = LARGEST_SHARED_BYTES, **choices: Any) -> Spec:
    """The kernel for a plan, as `fused_warp.make_spec` makes one. Raises ``ValueError`` if none can run it."""
    found = warp_spec.make_spec(plan, dtype, **choices)
    spec = Spec(**{field.name: getattr(found, field.name) for field in fields(found)} | {"warps": 4})
    while spec.shared_bytes > shared_limit and spec.warps > 1:
        spec = replace(spec, warps=spec.warps // 2)
    return spec


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: buffers of half elements ``u``, ``pre``, ``dy``, ``post``; the spectrum ``adjoint`` that
    correlates, in words [H, bins], and its ``scales``, and that of the filter (read if there is a postgate); ``words``
    of the constants; the results ``du``, ``dpre``, ``dpost``; float32 ``sums`` [units, bins, 2]; then the number of
    units, workers in all, shares of a channel's pairs, pairs a share, pairs, batch size, channels, and the length L.
    """
    n1, n2 = spec.n1, spec.n2
    row_tiles, column_tiles, k2_tiles = n1 // 16, n2 // 8, n2 // 16
    packed, served, right, both = n1 * n2 // 64, spec.served, spec.right_angle, spec.both
    own = packed // served  # of tables and sums
    read, kept = spec.rows_in * n2 // 64, spec.rows_out * n2 // 64
    warps, halves, guarded, in_registers = spec.warps, spec.halves, spec.guarded, spec.in_registers
    gated_in, gated_out = spec.pregate, spec.postgate
    log_columns, column_mask, row_words = n2.bit_length() - 1, n2 - 1, n2 // 2
    row_step, swizzle = 4 * row_words, 2 if n2 == 32 else 0  # see `fused_warp`

    at_f1, at_t1, at_f2, at_f3, at_t2, at_f4, total = spec.constant_places
    constant_rounds = total // 128
    sequence_words, stage_words, warp_words = spec.sequence_words, spec.stage_words, spec.warp_words
    copy_rows = tile.copy_pieces(copy_pieces(spec, swizzle), halves, guarded=spec.masked_in)
    gate_at, bins, wide = 4 * sequence_words, spec.bins, spec.bins_wide

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
    chunk = column_tiles // 2  # words of a lane's contiguous columns
    load_rows = tile.load_shared(spec.rows_in // 4 * chunk, chunk)
    load_f1 = tile.load_shared(spec.first_words // 32, 4)
    load_twiddle, load_spectrum = tile.load_shared(2 * own, 4), tile.load_global(2 * own, wide)
    load_f2 = tile.load_shared(k2_tiles * column_tiles * 2, 4)  # as many as of its inverse
    last_tiles = spec.last_rows // 16 if right else row_tiles
    load_f4 = tile.load_shared(last_tiles * row_tiles * (8 if spec.lower else 4), 4)
    how = {"right_angle": right, "parts": spec.parts_in}
    stage1 = stages.first(tile, row_tiles, column_tiles, spec.rows_in, **how)
    if right:
        stage4 = tile.mma_from_parts(last_tiles, column_tiles, row_tiles, 2 * kept)
    elif spec.lower:
        stage4 = tile.mma(row_tiles, column_tiles, 2 * row_tiles)
    else:
        stage4 = tile.dft_rows(row_tiles, column_tiles, row_tiles, inverse=True)
    shape, rounded = (row_tiles, column_tiles, k2_tiles), spec.rounded
    stage2 = stages.columns(tile, *shape, inverse=False, halves=rounded)
    stage3 = stages.columns(tile, *shape, inverse=True, halves=rounded)
    stage2_wide = tile.dft_columns(*shape, inverse=False)
    multiply = tile.multiply_complex_shared(own) if right else tile.multiply_complex(packed)
    pack, pack_sums, scale = tile.pack(2 * packed), tile.pack(2 * own), tile.scale(4 * kept)
    gate_in, gate_out, join, load_scale = (
        tile.multiply(read),
        tile.multiply(2 * kept),
        tile.join,
        tile.load_float,
    )
    pair_rows, to_a = tile.pair_halves(rows_to_b(spec)), tile.select(columns_to_a(n1, n2))
    transpose = tile.transpose(rows_of_parts_to_b(spec) if right else rows_of_tile_to_b(n1, n2))
    pack_out = tile.pack(2 * kept, swap=tuple(i for i in range(2 * kept) if i % column_tiles >= chunk))
    real, imaginary = output_pieces(spec, 0, n2), output_pieces(spec, kept, n2)
    width = min(halves, 2 * chunk)
    store_real, store_imaginary = (
        tile.store_pieces(pieces, width, guarded=guarded, held=not guarded) for pieces in (real, imaginary)
    )
    load_gate = tile.gather(real, kept, width, guarded=guarded)
    nothing, no_sums = tile.no_sums(packed), tile.no_sums(own)
    correlate, store_sums = tile.correlate(own, served), tile.store_sums_global(own)
    correlate_shared, load_sums = tile.correlate_shared(own), tile.load_shared(4 * own, 4)
    clear = tile.store_shared_pieces(tuple((0, 128 * i, (0, 0, 0, 0)) for i in range(own)))

    @tile.function
    def begin(u1, u2, c):
        """A pair's rows after stage 1, as a left operand."""
        x = pair_rows(join(u1, u2))
        return to_a(multiply(stage1(load_f1(at_f1 + c, 128), x), load_twiddle(at_t1 + c, 128)))

    @tile.function
    def forward(u1, u2, c):
        """The bins of a pair's rows, packed."""
        return stage2(begin(u1, u2, c), load_f2(at_f2 + c, 128))

    @tile.function
    def forward_wide(u1, u2, c):
        """The same, float32."""
        return stage2_wide(begin(u1, u2, c), load_f2(at_f2 + c, 128))

    @tile.function
    def inverse(x, k, c, scales, h):
        """Packed bins times those of a filter, back to samples, by the filter's scale."""
        x = to_a(multiply(x, k))
        x = multiply(stage3(x, load_f2(at_f3 + c, 128)), load_twiddle(at_t2 + c, 128))
        return pack_out(scale(stage4(load_f4(at_f4 + c, 128), transpose(x)), load_scale(scales, h)))

    def kernel(
        u,
        pre,
        dy,
        post,
        adjoint,
        adjoint_scales,
        spectrum,
        scales,
        words,
        du,
        dpre,
        dpost,
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
        # Where this lane's four kinds of output pieces lie, as in `fused_warp`.
        left = small(2 * chunk * t)
        right_columns = small(n2 - 2 * chunk - left)
        up = small(g * n2)
        o0, o1 = small(up + left), small(up + right_columns)
        o2, o3 = small(left - up), small(right_columns - up)
        # Where its copies come from and go to.
        copy_second = small(index >> 4 if both else 0)  # of the pair
        copy_from = small((index & 15 if both else index) * halves)
        copy_column = small(copy_from & column_mask)
        copy_row = small(copy_from >> log_columns)
        copy_chunk = small((copy_column >> 3) ^ (copy_row & swizzle))
        copy_to = small(2 * (mine + copy_row * row_words + (copy_chunk << 2)) + (copy_column & 7))
        copy_to_swapped = small(
            2 * (mine + copy_row * row_words + ((copy_chunk ^ swizzle) << 2)) + (copy_column & 7)
        )
        copy_to = small(copy_to + 2 * sequence_words * copy_second)
        other_sequence = int64(channels) * length
        copy_base = copy_second * other_sequence

        # u goes through the first buffer, dy through the second; copies run a buffer ahead of the work. A turn brings
        # the next pair, finishes the pair before with its dy, and begins the next with its u.
        unit = small(block() * warps + w)
        next_unit = unit
        next_h = small(divide(unit, shares))
        next_p = small((unit - next_h * shares) * per_share)
        next_end = small(min(next_p + per_share, pairs))
        begun = small(0)
        z = pack(nothing())
        while unit < units:
            h = small(divide(unit, shares))
            p = small((unit - h * shares) * per_share)
            end = small(min(p + per_share, pairs))
            summed = no_sums()
            if not in_registers:
                blank = pack_sums(no_sums())
                clear(my_sums, my_sums, my_sums, my_sums, blank)
            while p < end:
                next_base = (2 * int64(next_p) * channels + next_h) * length
                there = small(next_unit < units)
                if there:
                    for q in range(1 if both else 2):
                        limit = small(length * (2 * next_p + q + copy_second < batch))
                        source = next_base + copy_base + q * other_sequence
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
                        u1 = gate_in(u1, load_rows(at + 2 * sequence_words, row_step))
                        u2 = gate_in(u2, load_rows(at + 3 * sequence_words, row_step))
                    bins_of_dy = forward_wide(u1, u2, c)
                    if in_registers:
                        summed = correlate(summed, z, bins_of_dy)
                    else:
                        correlate_shared(my_sums, z, bins_of_dy)
                    k = load_spectrum(adjoint, int64(h) * bins + wide * index, 32 * wide)
                    y = inverse(pack(bins_of_dy), k, c, adjoint_scales, h)
                    base = (2 * int64(p) * channels + h) * length
                    other = base + other_sequence
                    limit = small(length * (2 * p + 1 < batch))
                    if gated_in:
                        gates = join(
                            load_gate(pre, base, length, o0, o1, o2, o3),
                            load_gate(pre, other, limit, o0, o1, o2, o3),
                        )
                        out = gate_out(y, gates)
                        store_real(du, base, length, o0, o1, o2, o3, out)
                        store_imaginary(du, other, limit, o0, o1, o2, o3, out)
                        gates = join(
                            load_gate(u, base, length, o0, o1, o2, o3),
                            load_gate(u, other, limit, o0, o1, o2, o3),
                        )
                        out = gate_out(y, gates)
                        store_real(dpre, base, length, o0, o1, o2, o3, out)
                        store_imaginary(dpre, other, limit, o0, o1, o2, o3, out)
                    else:
                        store_real(du, base, length, o0, o1, o2, o3, y)
                        store_imaginary(du, other, limit, o0, o1, o2, o3, y)
                    warp_sync()
                    p = small(p + 1)
                begun = small(1)
                if there:
                    for q in range(1 if both else 2):
                        limit = small(length * (2 * next_p + q + copy_second < batch))
                        source = next_base + copy_base + q * other_sequence
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
                        u1 = gate_in(u1, load_rows(read_at + 2 * sequence_words, row_step))
                        u2 = gate_in(u2, load_rows(read_at + 3 * sequence_words, row_step))
                    z = forward(u1, u2, c)
                    if gated_out:
                        k = load_spectrum(spectrum, int64(next_h) * bins + wide * index, 32 * wide)
                        y = inverse(z, k, c, scales, next_h)
                        other = next_base + other_sequence
                        limit = small(length * (2 * next_p + 1 < batch))
                        gates = join(
                            load_gate(dy, next_base, length, o0, o1, o2, o3),
                            load_gate(dy, other, limit, o0, o1, o2, o3),
                        )
                        out = gate_out(y, gates)
                        store_real(dpost, next_base, length, o0, o1, o2, o3, out)
                        store_imaginary(dpost, other, limit, o0, o1, o2, o3, out)
                    warp_sync()
                    next_p = small(next_p + 1)
                    if next_p == next_end:
                        next_unit = small(next_unit + workers)
                        next_h = small(divide(next_unit, shares))
                        next_p = small((next_unit - next_h * shares) * per_share)
                        next_end = small(min(next_p + per_share, pairs))
            at = int64(unit) * (2 * bins) + c
            if in_registers:
                store_sums(sums, at, summed)
            else:
                store_sums(sums, at, load_sums(my_sums, 128))
            unit = small(unit + workers)

    return kernel


SIGNATURE = (
    ("HALVES",) * 4 + ("WORDS", "FLOATS") * 2 + ("WORDS",) + ("HALVES",) * 3 + ("FLOATS",) + ("INT",) * 8
)
"""Kinds of the kernel's arguments, for the compiler."""


def workers(spec: Spec) -> int:
    """Who takes units of work: every warp of a block."""
    return spec.warps


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for: measured fastest on an H200."""
    gated = spec.pregate or spec.postgate
    if spec.n <= 256:
        return 3 if gated else 5
    return 3 if spec.n <= (512 if gated or spec.right_angle else 768) else 2


__all__ = [
    "FACTORS",
    "PACKINGS",
    "build",
    "make_spec",
    "min_blocks",
    "operand_key",
    "operands",
    "sums_layout",
]
