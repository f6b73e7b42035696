"""The fused order-2 convolution: one warp carries two real sequences through the whole Monarch transform.

Two real sequences that share a filter are one complex sequence z = u1 + i u2, and the real and imaginary part
of its convolution are the two answers. With N = N1 N2 and z as a matrix [n1, n2] (row-major), one warp does

    1. Z[k1, n2]  = sum_n1 F1[k1, n1] z[n1, n2]        contract rows, then multiply by the twiddle w^(k1 n2)
    2. Z[k1, k2]  = sum_n2 Z[k1, n2] F2[n2, k2]        contract columns, then times the filter's spectrum
    3. Y[k1, n2]  = sum_k2 Z[k1, k2] conj F2[k2, n2]   contract columns, then multiply by the inverse twiddle
    4. y[n1, n2]  = sum_k1 conj F1[n1, k1] Y[k1, n2]   contract rows

in registers: nothing but the input, the output and the filter's spectrum touches device memory (the
decomposition of Fu et al., "FlashFFTConv", arXiv 2311.05908, section 3).

Two things make it cheap (docs/kernels.md has the derivation):

*Half the products.* A DFT factor is used as a real matrix [cosines; sines] applied to the real and the
imaginary part: outputs q and its mirror differ only in one sign, so four products of half the height replace
four of the full height. In stages 2 to 4 the outputs are numbered q + 1/2 (mirror n - 1 - q, so every output
has one); the half step is a phase that disappears into the constants multiplied just before. Stage 1 has no
such constants, so its outputs 0 and n/2, their own mirrors, are selected apart.

*Permutations are constants.* The contraction index may run in any order if the constant operand follows, so
lanes load and store what is contiguous, and every other order is absorbed in the constants.
"""

from __future__ import annotations

from typing import Any

from kernels_numba import rounded_stages as stages
from kernels_numba import warp_filter
from kernels_numba.operands import columns_to_a, rows_of_tile_to_b
from kernels_numba.warp_operands import kept_axes, operand_key, operands
from kernels_numba.warp_operands import spectrum_of_plan as spectrum_layout
from kernels_numba.warp_pieces import copy_pieces, output_pieces, rows_of_parts_to_b, rows_to_b
from kernels_numba.warp_spec import FACTORS, PACKINGS, Spec, make_spec, min_blocks


# ---- the kernel --------------------------------------------------------------------------------------------
def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: buffers of half elements ``u``, ``pre``, ``post``, ``post2``; of words ``spectrum``
    [H, N], of float32 ``scales`` [H], of words ``constants``; of half elements ``y`` and, under the gate ``post2``,
    ``out2``; then the number of items (H times pairs), the items per warp, pairs per channel, batch size, channels,
    and the sequence length L. If the kernel transforms filters, ``spectrum`` are their taps and ``scales`` words of
    `warp_filter.tables`, and K taps of a filter come with the length, as L + 2^32 K, or - K if all channels share one.
    """
    n1, n2 = spec.n1, spec.n2
    row_tiles, column_tiles, kept1, kept2 = n1 // 16, n2 // 8, spec.kept1, spec.kept2
    k1_tiles, k2_tiles, bin_tiles = kept1 // 16, n2 // 16, kept2 // 8
    both = spec.both
    # Registers of the real (or imaginary) parts of a packed matrix, between stages and of the bins.
    packed, packed_bins = kept1 * n2 // 64, kept1 * kept2 // 64
    read = spec.rows_in * n2 // 64
    kept = spec.rows_out * n2 // 64
    warps, halves, guarded = spec.warps, spec.halves, spec.guarded
    gated_in, gated_out, twice = spec.pregate, spec.postgate, spec.twice
    log_columns = n2.bit_length() - 1
    column_mask = n2 - 1
    row_words = n2 // 2
    row_step = 4 * row_words
    # 16-byte chunks of a row change places in every second pair of rows, so that four rows read together by a
    # half-warp fall on different banks.
    swizzle = 2 if n2 == 32 else 0
    # The output gate is read by eight rows at once, half a row each: rows four apart must differ if n2 = 16.
    gate_mask, gate_shift = (2, 0) if n2 == 32 else (4, 2)

    at_f1, at_t1, at_f2, at_f3, at_t2, at_f4, total = spec.constant_places
    constant_rounds = total // 128
    sequence_words, stage_words, warp_words = spec.sequence_words, spec.stage_words, spec.warp_words
    copy_rows = tile.copy_pieces(copy_pieces(spec, swizzle), halves, guarded=spec.masked_in)
    pre_at = 4 * spec.sequence_words
    gate_copies, gate_words = spec.output_words * 2 // (32 * halves), spec.output_words
    second_gate = 2 * gate_words
    served, right = spec.served, spec.right_angle
    bins, unguarded = kept1 * kept2 // served, not spec.masked_out
    taps = bool(spec.taps)
    at_places, at_points, at_spectra, at_scales, _ = spec.filter_places
    table_rounds, scale_words = (at_points - at_places) // 128, 64

    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    scaled, one = spec.scaled, tile.one
    barrier, warp_sync, commit, follow = (
        tile.barrier,
        tile.warp_sync,
        tile.commit,
        tile.follow(overlap=spec.overlap),
    )
    early, prefetch = spec.overlap and spec.plain, tile.prefetch
    wait_all, wait_gate, wait_input = tile.wait(0), tile.wait(1), tile.wait(2 if gated_out else 1)
    copy, copy_constants = tile.copy_async(halves), tile.copy_words_async
    chunk = column_tiles // 2  # words of a lane's contiguous columns
    load_rows = tile.load_shared(spec.rows_in // 4 * chunk, chunk)
    load_f1 = tile.load_shared(spec.first_words // 32, 4)
    load_twiddle = tile.load_shared(2 * packed // served, 4)
    load_f2 = tile.load_shared(k2_tiles * bin_tiles * 2, 4)  # as many as of its inverse
    last_tiles = spec.last_rows // 16 if right else row_tiles
    load_f4 = tile.load_shared(last_tiles * k1_tiles * (8 if spec.lower else 4), 4)
    wide = spec.bins_wide  # registers of the spectrum that are loaded at once
    load_spectrum, load_scale = tile.load_global(2 * packed_bins // served, wide), tile.load_float
    how = {"right_angle": right, "parts": spec.parts_in}
    stage1 = stages.first(tile, k1_tiles, column_tiles, spec.rows_in, **how)
    rounded = spec.rounded
    stage2 = stages.columns(tile, k1_tiles, bin_tiles, k2_tiles, inverse=False, halves=rounded)
    stage3 = stages.columns(tile, k1_tiles, column_tiles, bin_tiles // 2, inverse=True, halves=rounded)
    if right:
        stage4 = tile.mma_from_parts(last_tiles, column_tiles, k1_tiles, 2 * kept)
    elif spec.lower:
        stage4 = tile.mma(row_tiles, column_tiles, 2 * k1_tiles)
    else:
        stage4 = tile.dft_rows(row_tiles, column_tiles, k1_tiles, inverse=True)
    scale = tile.scale(4 * kept)
    product = tile.multiply_complex_shared if right else tile.multiply_complex
    multiply, multiply_bins = (product(count // served) for count in (packed, packed_bins))
    gate_in, gate_out, join = tile.multiply(read), tile.multiply(2 * kept), tile.join
    pair_rows = tile.pair_halves(rows_to_b(spec))
    to_a, bins_to_a = tile.select(columns_to_a(kept1, n2)), tile.select(columns_to_a(kept1, kept2))
    transpose = tile.transpose(rows_of_parts_to_b(spec) if right else rows_of_tile_to_b(kept1, n2))
    # The mirrored columns run backwards: their halves swap while rounding, their registers are stored
    # backwards.
    pack_out = tile.pack(2 * kept, swap=tuple(i for i in range(2 * kept) if i % column_tiles >= chunk))
    real, imaginary = output_pieces(spec, 0, n2), output_pieces(spec, kept, n2)
    store_real, store_imaginary = (
        tile.store_pieces(pieces, min(halves, 2 * chunk), guarded=guarded, held=not guarded)
        for pieces in (real, imaginary)
    )
    load_gate = tile.load_pieces(
        output_pieces(spec, 0, row_words)
        + tuple((o, c + spec.output_words, r) for o, c, r in output_pieces(spec, kept, row_words)),
        2 * kept,
    )

    def copy_both(u, pre, base, buffer, p, copies, batch, length, other_sequence):
        """Start copies of the pair ``p`` of a channel, which begin at ``base``, to a buffer."""
        second, copy_from, copy_to, copy_to_swapped = copies
        for q in range(1 if both else 2):
            end = small(length * (2 * p + q + second < batch))
            source = base + q * other_sequence
            to0 = small(buffer + q * (2 * sequence_words) + copy_to)
            to1 = small(buffer + q * (2 * sequence_words) + copy_to_swapped)
            copy_rows(u, source, end, copy_from, to0, to1, to1, to1)
            if gated_in:
                copy_rows(pre, source, end, copy_from, to0 + pre_at, to1 + pre_at, to1 + pre_at, to1 + pre_at)

    copy_pair = tile.function(copy_both)
    if taps:
        bring_turns, load_taps, make_spectrum = warp_filter.functions(tile, spec)
        at_tables = warp_filter.turn_words(spec.n) * warp_filter.turn_rows(spec)
        point_words, step = (at_spectra - at_points) // spec.filters, 1 if right else 2
        load_spectrum = tile.load_shared(2 * packed_bins // served, wide)
        load_scale = tile.load_points((0,))

    def kernel(
        u, pre, post, post2, spectrum, scales, words, y, out2, items, per_warp, pairs, batch, channels, length
    ):
        if taps:
            count = small(length >> 32)
            length = length & 0xFFFFFFFF
        pairs, batch, channels, length = small(pairs), small(batch), small(channels), small(length)
        index = small(lane())
        w = small(warp())
        g = small(index >> 2)
        t = small(index & 3)
        c = small(4 * index)
        if taps:
            # This warp makes the spectrum of channel `row`, if the block needs so many.
            opening = small(block() * (warps * per_warp))
            first_h = small(divide(opening, pairs))
            row = small(first_h + w)
            makes = row <= divide(min(opening + warps * per_warp, items) - 1, pairs)
            row_at = int64(row) * max(count, 0)
            count = small(abs(count))
            if makes:
                # Taps may still be written, but their lines can be where that is done.
                prefetch(spectrum, row_at + small(divide(index * count, 32)), True)
                w0, w1, w2, w3 = bring_turns(scales, index)
        r = w
        while r < constant_rounds:
            copy_constants(r * 128 + c, words, r * 128 + c)
            r = small(r + warps)
        if taps:
            r = w
            while r < table_rounds:
                copy_constants(at_places + r * 128 + c, scales, at_tables + r * 128 + c)
                r = small(r + warps)
        commit()
        if early:
            # The first pair may still be written, but comes to the L2 cache meanwhile, half a warp a sequence.
            first_item = small((block() * warps + w) * per_warp)
            last_item = small(min(first_item + per_warp, items))
            h = small(divide(first_item, pairs))
            p = small(first_item - h * pairs)
            near = small(index >> 4)
            line = small((index & 15) * 64)
            there = (first_item < last_item) & (line < length) & (2 * p + near < batch)
            start = ((2 * int64(p) + near) * channels + h) * length + line
            prefetch(u, start, there)
        follow()

        mine = small(total + w * warp_words)
        gate = small(mine + 2 * stage_words)
        # Lane offsets: where this lane reads its rows, and where its four kinds of output pieces lie.
        column = small(g * chunk)
        read_at = small(mine + t * row_words + (((column >> 2) ^ (t & swizzle)) << 2) + (column & 3))
        left = small(2 * chunk * t)
        right = small(n2 - 2 * chunk - left)
        up = small(g * n2)
        swap_up = small((g & gate_mask) >> gate_shift)
        swap_down = small(((7 - g) & gate_mask) >> gate_shift)
        left_up = small(gate + (up >> 1) + (((left >> 3) ^ swap_up) << 2) + ((left & 7) >> 1))
        right_up = small(gate + (up >> 1) + (((right >> 3) ^ swap_up) << 2) + ((right & 7) >> 1))
        left_down = small(gate - (up >> 1) + (((left >> 3) ^ swap_down) << 2) + ((left & 7) >> 1))
        right_down = small(gate - (up >> 1) + (((right >> 3) ^ swap_down) << 2) + ((right & 7) >> 1))

        # Where this lane's copies come from and go to; see `copy_pieces`.
        copy_second = small(index >> 4 if both else 0)  # of the pair
        copy_from = small((index & 15 if both else index) * halves)
        copy_column = small(copy_from & column_mask)
        copy_row = small(copy_from >> log_columns)
        copy_chunk = small((copy_column >> 3) ^ (copy_row & swizzle))
        copy_to = small(2 * (copy_row * row_words + (copy_chunk << 2)) + (copy_column & 7))
        copy_to = small(copy_to + 2 * sequence_words * copy_second)
        copy_to_swapped = small(
            2 * (copy_row * row_words + ((copy_chunk ^ swizzle) << 2)) + (copy_column & 7)
        )

        first = small((block() * warps + w) * per_warp)
        last = small(min(first + per_warp, items))
        if first >= last:
            wait_all()
            barrier()
            if taps:
                barrier()
        else:
            h = small(divide(first, pairs))
            p = small(first - h * pairs)
            next_h = h
            next_p = p
            if not taps:
                k = load_spectrum(spectrum, int64(h) * bins + wide * index, 32 * wide)
                s = load_scale(scales, h) if scaled else one
            # Copies run one turn ahead of the work: turn first - 1 only starts those of the first pair.
            item = small(first - 1)
            other_sequence = int64(channels) * length
            copy_base = copy_second * other_sequence
            copies = (copy_second, copy_from, copy_to, copy_to_swapped)
            if taps:
                # The first pair's copies are started before a filter is made.
                buffer = small(2 * (mine + (first & 1) * stage_words))
                base = (2 * int64(p) * channels + h) * length + copy_base
                copy_pair(u, pre, base, buffer, p, copies, batch, length, other_sequence)
                commit()
                if makes:
                    samples = load_taps(spectrum, row_at, small(count), small(step * index))
                wait_gate()
                barrier()
                if makes:
                    points = small(at_points + w * point_words)
                    made = small(at_spectra + w * bins)
                    scale_at = small(at_scales + w * scale_words)
                    make_spectrum(index, small(at_places), points, made, scale_at, samples, w0, w1, w2, w3)
                    barrier()
                next_p = small(p + 1)
                if next_p == pairs:
                    next_p = small(0)
                    next_h = small(h + 1)
                item = first
            while item < last:
                base = (2 * int64(p) * channels + h) * length
                second = small(2 * p + 1 < batch)
                if gated_out:
                    if item >= first:
                        for q in range(2):
                            end = small(length * (second if q else 1))
                            for i in range(gate_copies):
                                e = small((i * 32 + index) * halves)
                                row = small(e >> log_columns)
                                col = small(e & column_mask)
                                to = small(gate + q * gate_words + row * row_words)
                                to = small(to + (((col >> 3) ^ ((row & gate_mask) >> gate_shift)) << 2))
                                to = small(2 * to + (col & 7))
                                source = base + q * other_sequence + e
                                copy(to, post, source, (e < end) | unguarded)
                                if twice:
                                    copy(to + 2 * second_gate, post2, source, (e < end) | unguarded)
                    commit()
                if item + 1 < last:
                    buffer = small(2 * (mine + ((item + 1) & 1) * stage_words))
                    next_base = (2 * int64(next_p) * channels + next_h) * length + copy_base
                    copy_pair(u, pre, next_base, buffer, next_p, copies, batch, length, other_sequence)
                commit()
                if item >= first:
                    wait_input()
                    warp_sync()
                    at = small(read_at + (item & 1) * stage_words)
                    u1 = load_rows(at, row_step)
                    u2 = load_rows(at + sequence_words, row_step)
                    if gated_in:
                        v1 = gate_in(u1, load_rows(at + 2 * sequence_words, row_step))
                        v2 = gate_in(u2, load_rows(at + 3 * sequence_words, row_step))
                        x = pair_rows(join(v1, v2))
                    else:
                        x = pair_rows(join(u1, u2))
                    z1 = multiply(stage1(load_f1(at_f1 + c, 128), x), load_twiddle(at_t1 + c, 128))
                    z2 = stage2(to_a(z1), load_f2(at_f2 + c, 128))
                    if taps:
                        if item == first:
                            if not makes:  # those that do have met the others before
                                barrier()
                            k = load_spectrum(at_spectra + (h - first_h) * bins + wide * index, 32 * wide)
                            s = load_scale(small(at_scales + (h - first_h) * scale_words + 2 * index))[0]
                    z2 = multiply_bins(z2, k)
                    z3 = multiply(
                        stage3(bins_to_a(z2), load_f2(at_f3 + c, 128)), load_twiddle(at_t2 + c, 128)
                    )
                    y4 = stage4(load_f4(at_f4 + c, 128), transpose(z3))
                    z4 = pack_out(scale(y4, s)) if scaled else pack_out(y4)
                    other = base + other_sequence
                    limit = small(length * second)
                    if gated_out:
                        wait_gate()
                        warp_sync()
                        z5 = gate_out(z4, load_gate(left_up, right_up, left_down, right_down))
                        store_real(y, base, length, up + left, up + right, left - up, right - up, z5)
                        store_imaginary(y, other, limit, up + left, up + right, left - up, right - up, z5)
                        if twice:
                            u0, u1 = small(left_up + second_gate), small(right_up + second_gate)
                            d0, d1 = small(left_down + second_gate), small(right_down + second_gate)
                            z5 = gate_out(z4, load_gate(u0, u1, d0, d1))
                            store_real(out2, base, length, up + left, up + right, left - up, right - up, z5)
                            store_imaginary(
                                out2, other, limit, up + left, up + right, left - up, right - up, z5
                            )
                    else:
                        store_real(y, base, length, up + left, up + right, left - up, right - up, z4)
                        store_imaginary(y, other, limit, up + left, up + right, left - up, right - up, z4)
                    warp_sync()
                else:  # constants have arrived when the first input is under way
                    if not taps:
                        wait_input()
                        barrier()
                h = next_h
                p = next_p
                if item >= first and p == 0 and item + 1 < last:
                    if taps:
                        k = load_spectrum(at_spectra + (h - first_h) * bins + wide * index, 32 * wide)
                        s = load_scale(small(at_scales + (h - first_h) * scale_words + 2 * index))[0]
                    else:
                        k = load_spectrum(spectrum, int64(h) * bins + wide * index, 32 * wide)
                        if scaled:
                            s = load_scale(scales, h)
                next_p = small(next_p + 1)
                if next_p == pairs:
                    next_p = small(0)
                    next_h = small(next_h + 1)
                item = small(item + 1)

    return kernel


TOGETHER = {"right-angle": 2}
"""By packing, sequences of an item, where they are not those of a transform."""
SIGNATURE = ("HALVES",) * 4 + ("WORDS", "FLOATS", "WORDS") + ("HALVES",) * 2 + ("INT",) * 6
"""Kinds of the kernel's arguments, for the compiler."""


def workers(spec: Spec) -> int:
    """Who takes items: every warp of a block."""
    return spec.warps


__all__ = [
    "FACTORS",
    "PACKINGS",
    "build",
    "kept_axes",
    "make_spec",
    "min_blocks",
    "operand_key",
    "operands",
    "spectrum_layout",
]
