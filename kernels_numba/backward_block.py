"""A backward pass in one launch, order 3: a block transforms pairs of u and of dy, and all gradients leave from there.

As `backward_warp`, in the stages of `fused_block`: A brings strips of u and of dy in turn into an exchange each. In B a
warp takes two k1 at a time (with right-angle packing one, of both sequences) through the inner stages, first those of
u, whose spectrum z stays in registers; then those of dy, w. It adds conj(z) w to the sums, brings conj(K) w back, which
takes the room of dy in its exchange, and K z, which takes that of u, if there is a postgate. C brings both to samples.
All k1 have to be in one block, so this is for transforms whose exchanges and sums fit there.
"""

from __future__ import annotations

from typing import Any

from kernels_numba import block_pieces as pieces
from kernels_numba.backward_spec import PACKINGS, Spec, make_spec, min_blocks
from kernels_numba.block_operands import operand_key, operands
from kernels_numba.block_spec import STRIP, STRIP_WORDS
from kernels_numba.block_stages import inner_stages, outer_stages
from kernels_numba.gradient_spec import sums_layout
from kernels_numba.operands import columns_to_a, rows_of_tile_to_b


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: as `backward_warp.build`, with the outer twiddles ``tables`` after the constants.
    """
    n1, n2, n3, q, n = spec.n1, spec.n2, spec.n3, spec.q, spec.n
    warps, halves, guarded, ring = spec.warps, spec.halves, spec.guarded, spec.ring
    gated_in, gated_out, after = spec.pregate, spec.postgate, spec.gates_after
    right, served, bins = spec.right_angle, spec.served, spec.bins
    rows, lanes, fold = spec.rows, spec.lanes, spec.fold
    t1, t2, j2, k3 = rows // 16, n2 // 16, n3 // 8, n3 // 16  # tiles of rows and columns
    in_tiles, strips = spec.rows_in // 16, spec.strips
    my_strips, my_pairs = strips // warps, n1 // 2 // warps
    outer, kept = rows // 8 * 4, spec.rows_out // 8 * 4  # registers of real parts of a strip, in and out
    inner = q // 64  # registers of real parts of a packed k1
    log_per_row = n3 // 32  # strips of two rows n2

    # Where things lie in shared memory.
    at_f1, at_f2, at_f3, at_f3i, at_f2i, at_f1i, at_t2, at_t2i, total = spec.constant_places
    constant_rounds, at_exchange, exchange_words = total // 128, total, spec.exchange_words
    at_stage = at_exchange + 2 * exchange_words
    es, eb, es2, shift2 = spec.row_words, spec.row_pair_words, spec.pair_words, spec.second_shift
    slot_words = es2 if right else es  # from the k1 of an output of A to the next one's
    strip_words, inverse_at = 32 * rows // served, n // served
    row_bins = 2 * q // served  # of a spectrum, from two k1 to the next two
    stage_words, sequence_words = spec.stage_words, spec.rows_in * STRIP // 2
    copy_rows, gate_at = (
        tile.copy_pieces(pieces.copy_pieces(spec), halves, guarded=guarded),
        4 * sequence_words,
    )

    lane, warp, block, divide, small = tile.lane, tile.warp, tile.block, tile.divide, tile.small
    barrier, warp_sync, commit, int64 = tile.barrier, tile.warp_sync, tile.commit, tile.int64
    follow, turns_of = tile.follow(overlap=spec.overlap), tile.opaque
    wait_all, wait_strip = tile.wait(0), tile.wait(ring - 1)
    copy_constants, join, load_scale = tile.copy_words_async, tile.join, tile.load_float
    multiply_inner, pack = tile.multiply_complex(inner), tile.pack(2 * inner)
    # A
    load_rows, gate_in = tile.load_shared(8 * in_tiles, 2), tile.multiply(8 * in_tiles)
    first_to_b, second_to_b = (tile.pair_halves(pieces.rows_to_b(spec, part)) for part in range(2))
    load_f1 = tile.load_shared(t1 * in_tiles * 4, 4)
    stage1, multiply_outer, stage1i = outer_stages(tile, spec)
    turned = outer // served
    pack_table, no_strip = tile.pack(2 * turned), tile.no_sums(turned)
    load_table = tile.load_global(2 * turned, 4)
    put_first = tile.store_shared_pieces(pieces.first_exchange_pieces(spec))
    # B
    get_first = tile.load_pieces(pieces.first_exchange_reads(spec), 4 * t2 * j2)
    load_f2, load_f3 = tile.load_shared(t2 * t2 * 4, 4), tile.load_shared(k3 * j2 * 2, 4)
    load_t2, load_inner = tile.load_shared(2 * inner, 4), tile.load_global(2 * inner, 4)
    stage2, stage3, stage3i, stage2i = inner_stages(tile, spec)
    stage3_wide = tile.dft_columns(t2, j2, k3, inverse=False)
    to_a, transpose = tile.select(columns_to_a(n2, n3)), tile.transpose(rows_of_tile_to_b(n2, n3))
    low, high = (tile.pair_halves(pieces.joined_halves(spec, e)) for e in range(2))
    put_second = tile.store_shared_pieces(pieces.second_exchange_pieces(spec))
    no_sums, correlate, store_sums = tile.no_sums(inner), tile.correlate(inner), tile.store_sums_global(inner)
    # C
    get_second = tile.load_pieces(pieces.second_exchange_reads(spec), 16 * t1)
    load_f1i = tile.load_shared(spec.last_rows // 16 * t1 * 4, 4)
    scale, pack_out, gate_out = tile.scale(4 * kept), tile.pack(2 * kept), tile.multiply(2 * kept)
    real, imaginary = pieces.output_pieces(spec, 0), pieces.output_pieces(spec, kept)
    store_real, store_imaginary = (tile.store_pieces(x, halves, guarded=guarded) for x in (real, imaginary))
    gather_gate = tile.gather(real, kept, halves, guarded=guarded)

    def begin(at, c):
        """A k1 in an exchange after stage 2, as a left operand."""
        x = stage2(load_f2(at_f2 + c, 128), get_first(at, at, at, at))
        return to_a(multiply_inner(x, load_t2(at_t2 + c, 128)))

    def inverse(x, back, c):
        """A packed spectrum through the inner stages, and by the outer twiddles ``back``."""
        x = multiply_inner(stage3i(to_a(x), load_f3(at_f3i + c, 128)), load_t2(at_t2i + c, 128))
        return multiply_inner(stage2i(load_f2(at_f2i + c, 128), transpose(x)), back)

    begin, inverse = tile.function(begin), tile.function(inverse)

    def forward(at, c):
        """The spectrum of a k1 in an exchange, packed."""
        return stage3(begin(at, c), load_f3(at_f3 + c, 128))

    def forward_wide(at, c):
        """The same, float32."""
        return stage3_wide(begin(at, c), load_f3(at_f3 + c, 128))

    forward, forward_wide = tile.function(forward), tile.function(forward_wide)

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
        tables,
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
        index, w = small(lane()), small(warp())
        g, t, c = small(index >> 2), small(index & 3), small(4 * index)
        r = w
        while r < constant_rounds:
            copy_constants(r * 128 + c, words, r * 128 + c)
            r = small(r + warps)
        commit()
        follow()
        wait_all()
        barrier()

        # Where a lane's rows, outputs and copies lie: as in `fused_block`.
        mine, ring_end = small(at_stage + w * ring * stage_words), small(ring * stage_words)
        read_at = small(mine + t * 16 + (((2 * (g & 1) + (g >> 2)) ^ (t >> 1)) << 2) + 2 * ((g >> 1) & 1))
        part = small(divide(g, lanes))  # of the columns; 0 unless the outer factor is 8
        output = small(g - part * lanes)
        first_put = small(at_exchange + output * slot_words + part * (n2 // (2 * fold) * eb) + 8 * t)
        first_get = small(at_exchange + t * eb + 4 * g)
        second_get = small(at_exchange + t * (es2 + shift2) + 4 * g)
        odd = small(t & 1)
        plus = small(at_exchange + 4 * odd + 2 * (t >> 1))
        minus = small(at_exchange + 4 * (1 - odd) + 2 - 2 * (t >> 1))
        if n3 == 16:
            up = small((g >> 1) * STRIP_WORDS + 16 * (g & 1))
            down = small(((7 - g) >> 1) * STRIP_WORDS + 16 * ((7 - g) & 1))
        else:
            up = small(g * STRIP_WORDS)
            down = small((7 - g) * STRIP_WORDS)
        out_up = small(output * q + part * (q // fold) + 8 * t)
        out_down = small(part * (q // fold) + 8 * t - output * q)
        copy_row = small((index * halves) >> 5)
        copy_column = small((index * halves) & 31)
        copy_from = small(copy_row * q + (copy_column >> 4) * n3 + (copy_column & 15))
        swap = small((copy_row & 3) >> 1)
        copy_to = small(32 * copy_row + (copy_column & 7))
        to0 = small(copy_to + (((copy_column >> 3) ^ swap) << 3))
        to1 = small(copy_to + (((copy_column >> 3) ^ swap ^ 1) << 3))

        my_strip = small(w * my_strips)
        end_strip = small(my_strip + turns_of(my_strips))
        end_pair = turns_of(my_pairs)
        other_sequence = int64(channels) * length

        # Copies run `ring` strips ahead of the work, through sides (u, then dy), pairs and units.
        unit = small(block())
        turn = small(0 - ring)
        slot_at = small(0)
        copy_unit = unit
        copy_h = small(divide(copy_unit, shares))
        copy_p = small((copy_unit - copy_h * shares) * per_share)
        copy_end = small(min(copy_p + per_share, pairs))
        copy_side = small(0)
        copy_strip = my_strip
        while unit < units:
            h = small(divide(unit, shares))
            p = small((unit - h * shares) * per_share)
            end = small(min(p + per_share, pairs))
            k_at = int64(h) * bins + c
            summed = no_sums()
            more = no_sums()
            third = no_sums()
            while p < end:
                # ---- A: contract n1 for this warp's strips, of u and of dy, whose twiddles are the same
                strip = my_strip
                side = small(0)
                table = pack_table(no_strip())
                while strip < end_strip:
                    if turn >= 0:
                        wait_strip()
                        warp_sync()
                        at = small(read_at + slot_at)
                        u1 = load_rows(at, 64)
                        u2 = load_rows(at + sequence_words, 64)
                        if (gated_in and side == 0) or (gated_out and side == 1):
                            if after:  # into the same place
                                warp_sync()
                                e = small((strip >> log_per_row) * (2 * n3) + 16 * (strip & (n3 // 16 - 1)))
                                e = small(copy_from + e)
                                base = (2 * int64(p) * channels + h) * length
                                for i in range(2):
                                    into = small(2 * (mine + slot_at + i * sequence_words))
                                    limit = small(length * (2 * p + i < batch))
                                    source = base + i * other_sequence
                                    i0, i1 = small(to0 + into), small(to1 + into)
                                    if side == 0:
                                        copy_rows(pre, source, limit, e, i0, i1, i0, i1)
                                    else:
                                        copy_rows(post, source, limit, e, i0, i1, i0, i1)
                                commit()
                                wait_all()
                                warp_sync()
                                u1 = gate_in(u1, load_rows(at, 64))
                                u2 = gate_in(u2, load_rows(at + sequence_words, 64))
                            else:
                                u1 = gate_in(u1, load_rows(at + 2 * sequence_words, 64))
                                u2 = gate_in(u2, load_rows(at + 3 * sequence_words, 64))
                        x = join(first_to_b(u1), second_to_b(u2))
                        warp_sync()
                    if copy_unit < units:
                        e = small((copy_strip >> log_per_row) * (2 * n3) + 16 * (copy_strip & (n3 // 16 - 1)))
                        e = small(copy_from + e)
                        base = (2 * int64(copy_p) * channels + copy_h) * length
                        for i in range(2):
                            into = small(2 * (mine + slot_at + i * sequence_words))
                            limit = small(length * (2 * copy_p + i < batch))
                            source = base + i * other_sequence
                            i0, i1 = small(to0 + into), small(to1 + into)
                            g0, g1 = small(i0 + gate_at), small(i1 + gate_at)
                            if copy_side == 0:
                                copy_rows(u, source, limit, e, i0, i1, i0, i1)
                                if gated_in and not after:
                                    copy_rows(pre, source, limit, e, g0, g1, g0, g1)
                            else:
                                copy_rows(dy, source, limit, e, i0, i1, i0, i1)
                                if gated_out and not after:
                                    copy_rows(post, source, limit, e, g0, g1, g0, g1)
                        copy_strip = small(copy_strip + copy_side)
                        copy_side = small(1 - copy_side)
                        if copy_strip == end_strip:
                            copy_strip = my_strip
                            copy_p = small(copy_p + 1)
                            if copy_p == copy_end:
                                copy_unit = small(copy_unit + workers)
                                copy_h = small(divide(copy_unit, shares))
                                copy_p = small((copy_unit - copy_h * shares) * per_share)
                                copy_end = small(min(copy_p + per_share, pairs))
                    commit()
                    if turn >= 0:
                        z = stage1(load_f1(at_f1 + c, 128), x)
                        if side == 0:
                            table = load_table(tables, strip * strip_words + c, 128)
                        to = small(first_put + side * exchange_words + (strip >> log_per_row) * eb)
                        to = small(to + 32 * (strip & (n3 // 16 - 1)))
                        put_first(to, to, to, to, multiply_outer(z, table))
                        strip = small(strip + side)
                        side = small(1 - side)
                    turn = small(turn + 1)
                    slot_at = small(slot_at + stage_words)
                    if slot_at == ring_end:
                        slot_at = small(0)
                barrier()
                # ---- B: two k1 at a time, of u and of dy
                i = small(0)
                while i < end_pair:
                    pair = small(w * my_pairs + i)
                    at = small(first_get + pair * es2)
                    at_dy = small(at + exchange_words)
                    from_k = k_at + pair * row_bins
                    table0 = small(inverse_at + pair * row_bins + c)
                    row_at = small(pair * es2 + (pair & 3) * shift2)
                    up_at, down_at = small(row_at + up), small(row_at + down)
                    if right:  # one k1 of both sequences, which have its spectrum and sums in common
                        z0 = forward(at, c)
                        z1 = forward(small(at + es), c)
                        k0 = load_inner(adjoint, from_k, 128)
                        bins_of_dy = forward_wide(at_dy, c)
                        if i == 0:
                            summed = correlate(summed, z0, bins_of_dy)
                        elif i == 1:
                            more = correlate(more, z0, bins_of_dy)
                        else:
                            third = correlate(third, z0, bins_of_dy)
                        w0 = multiply_inner(pack(bins_of_dy), k0)
                        bins_of_dy = forward_wide(small(at_dy + es), c)
                        if i == 0:
                            summed = correlate(summed, z1, bins_of_dy)
                        elif i == 1:
                            more = correlate(more, z1, bins_of_dy)
                        else:
                            third = correlate(third, z1, bins_of_dy)
                        w1 = multiply_inner(pack(bins_of_dy), k0)
                        back = load_inner(tables, table0, 128)
                        if gated_out:
                            k0 = load_inner(spectrum, from_k, 128)
                            z0 = inverse(multiply_inner(z0, k0), back, c)
                            both = join(z0, inverse(multiply_inner(z1, k0), back, c))
                            both = join(low(both), high(both))
                            warp_sync()  # all lanes have read what is overwritten now
                            put_second(up_at + plus, up_at + minus, down_at + plus, down_at + minus, both)
                        both = join(inverse(w0, back, c), inverse(w1, back, c))
                    else:
                        back = load_inner(tables, table0, 128)
                        z0 = forward(at, c)
                        k0 = load_inner(adjoint, from_k, 128)
                        if gated_out:
                            even_of_u = inverse(
                                multiply_inner(z0, load_inner(spectrum, from_k, 128)), back, c
                            )
                        bins_of_dy = forward_wide(at_dy, c)
                        summed = correlate(summed, z0, bins_of_dy)
                        even = inverse(multiply_inner(pack(bins_of_dy), k0), back, c)
                        back = load_inner(tables, table0 + q, 128)
                        z0 = forward(small(at + es), c)
                        k0 = load_inner(adjoint, from_k + q, 128)
                        if gated_out:
                            k1 = load_inner(spectrum, from_k + q, 128)
                            both = join(even_of_u, inverse(multiply_inner(z0, k1), back, c))
                            both = join(low(both), high(both))
                            warp_sync()
                            put_second(up_at + plus, up_at + minus, down_at + plus, down_at + minus, both)
                        bins_of_dy = forward_wide(small(at_dy + es), c)
                        more = correlate(more, z0, bins_of_dy)
                        both = join(even, inverse(multiply_inner(pack(bins_of_dy), k0), back, c))
                    both = join(low(both), high(both))
                    up_at, down_at = small(up_at + exchange_words), small(down_at + exchange_words)
                    warp_sync()
                    put_second(up_at + plus, up_at + minus, down_at + plus, down_at + minus, both)
                    i = small(i + 1)
                barrier()
                # ---- C: back to samples
                base = (2 * int64(p) * channels + h) * length
                other = base + other_sequence
                limit = small(length * (2 * p + 1 < batch))
                strip = my_strip
                while strip < end_strip:
                    o = small(32 * strip)
                    o_up, o_down = small(out_up + o), small(out_down + o)
                    at = small(second_get + strip * STRIP_WORDS)
                    if gated_in:
                        gate1 = gather_gate(pre, base, length, o_up, o_down, o, o)
                        gate2 = gather_gate(pre, other, limit, o_up, o_down, o, o)
                    f1i = load_f1i(at_f1i + c, 128)
                    at_dy = small(at + exchange_words)
                    y4 = stage1i(f1i, get_second(at_dy, at_dy, at_dy, at_dy))
                    z4 = pack_out(scale(y4, load_scale(adjoint_scales, h)))
                    if gated_in:
                        out = gate_out(z4, join(gate1, gate2))
                        gate1 = gather_gate(u, base, length, o_up, o_down, o, o)
                        gate2 = gather_gate(u, other, limit, o_up, o_down, o, o)
                        store_real(du, base, length, o_up, o_down, o, o, out)
                        store_imaginary(du, other, limit, o_up, o_down, o, o, out)
                        out = gate_out(z4, join(gate1, gate2))
                        store_real(dpre, base, length, o_up, o_down, o, o, out)
                        store_imaginary(dpre, other, limit, o_up, o_down, o, o, out)
                    else:
                        store_real(du, base, length, o_up, o_down, o, o, z4)
                        store_imaginary(du, other, limit, o_up, o_down, o, o, z4)
                    if gated_out:
                        gate1 = gather_gate(dy, base, length, o_up, o_down, o, o)
                        gate2 = gather_gate(dy, other, limit, o_up, o_down, o, o)
                        y4 = stage1i(f1i, get_second(at, at, at, at))
                        z4 = pack_out(scale(y4, load_scale(scales, h)))
                        out = gate_out(z4, join(gate1, gate2))
                        store_real(dpost, base, length, o_up, o_down, o, o, out)
                        store_imaginary(dpost, other, limit, o_up, o_down, o, o, out)
                    strip = small(strip + 1)
                barrier()  # the exchanges are free again
                p = small(p + 1)
            at_sums = int64(unit) * (2 * bins) + c
            if right:
                store_sums(sums, at_sums + w * (my_pairs * 2 * q), summed)
                if my_pairs > 1:
                    store_sums(sums, at_sums + (w * my_pairs + 1) * (2 * q), more)
                if my_pairs > 2:
                    store_sums(sums, at_sums + (w * my_pairs + 2) * (2 * q), third)
            else:
                store_sums(sums, at_sums + w * (4 * q), summed)
                store_sums(sums, at_sums + w * (4 * q) + 2 * q, more)
            unit = small(unit + workers)

    return kernel


SIGNATURE = (
    ("HALVES",) * 4 + ("WORDS", "FLOATS") * 2 + ("WORDS",) * 2 + ("HALVES",) * 3 + ("FLOATS",) + ("INT",) * 8
)
"""Kinds of the kernel's arguments, for the compiler."""


def workers(spec: Spec) -> int:
    """Who takes units of work: the block as a whole."""
    return 1


__all__ = [
    "PACKINGS",
    "build",
    "make_spec",
    "min_blocks",
    "operand_key",
    "operands",
    "sums_layout",
]
