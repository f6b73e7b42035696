"""The fused order-3 convolution: a block carries two real sequences, its warps the stages.

With N = N1 Q, Q = N2 N3, a pair of real sequences z = u1 + i u2 lies as a matrix [n1, m], m = n2 N3 + n3:

    A. Every warp contracts n1 -> k1 for its strips of 32 columns m, multiplies by the outer twiddles w^(k1 m) and
       writes to shared memory; the block meets.
    B. Every warp takes pairs of k1. For each k1 it does the order-2 convolution of Q points in registers (contract
       n2, twiddle, contract n3, multiply by the spectrum, and back), multiplies by the inverse outer twiddles and
       writes to shared memory; the block meets.
    C. Every warp contracts k1 -> n1 for its strips, and stores the result.

Nothing but input, output, spectrum and (where they do not fit on chip) outer twiddles comes from device memory or
its caches. The order-2 part is `fused_warp`'s; DFT factors are used in cosine/sine form and permutations are
absorbed in constants as described there and in docs/kernels.md.

What makes the exchanges cheap: in A the columns of a strip are dealt so that a packed register holds two n2 of one
n3, which is a register of the next stage's operand; in B two k1 are combined into registers that hold two k1 of one
column, which is a register of C's operand. Neither needs a transpose, all accesses are 8 or 16 bytes a lane, and the
paddings make them free of bank conflicts.
"""

from __future__ import annotations

from typing import Any

from kernels_numba import block_pieces as pieces
from kernels_numba.block_operands import kept_axes, operand_key, operands, skipped_points
from kernels_numba.block_operands import spectrum_of_plan as spectrum_layout
from kernels_numba.block_spec import FACTORS, PACKINGS, STRIP, STRIP_WORDS, Spec, make_spec, min_blocks
from kernels_numba.block_stages import for_one_sequence, inner_stages, outer_stages, outputs
from kernels_numba.operands import columns_to_a, rows_of_tile_to_b


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: as `fused_warp.build`, with the outer twiddles ``tables`` after the constants. Items are
    dealt to blocks in turn, at most ``each`` each, so that all blocks are at the same few channels at a time and
    their spectra stay in L2. With ``spec.windows`` sequences are windows of one row for each channel, which
    begin ``channels`` samples apart and give as many outputs; rows have ``length`` samples (see `windows.py`).
    """
    n1, n2, n3, q, n = spec.n1, spec.n2, spec.n3, spec.q, spec.n
    warps, halves, guarded, ring = spec.warps, spec.halves, spec.guarded, spec.ring
    gated_in, gated_out, twice, in_shared = spec.pregate, spec.postgate, spec.twice, spec.tables_shared
    gates_after = gated_in and spec.gates_after
    half, unit, right, beside = spec.half, spec.unit, spec.right_angle, spec.beside
    windows, ahead, lean = spec.windows, spec.ahead and not (half or spec.marked), spec.lean
    rows, lanes, fold = spec.rows, spec.lanes, spec.fold
    t1, t2, j2 = rows // 16, n2 // 16, n3 // 8  # tiles of rows and columns
    in_tiles, groups1, strips = spec.rows_in // 16, rows // 8, spec.strips
    my_strips, my_pairs = strips // warps, n1 // 2 // warps
    outer, kept = groups1 * 4, spec.rows_out // 8 * 4  # registers of real parts of a strip, in and out
    inner, bins = q // 64, n2 * spec.kept3  # registers of real parts of a packed k1, and points of it kept
    per_row, log_per_row = n3 // 16, n3 // 32  # strips of two rows n2

    # Where things lie in shared memory.
    at_f1, at_f2, at_f3, at_f3i, at_f2i, at_f1i, at_t2, at_t2i, total = spec.constant_places
    constant_rounds, at_tables = total // 128, total
    table_rounds = spec.table_words // 128 if in_shared else 0
    at_exchange = at_tables + (spec.table_words if in_shared else 0)
    at_stage = at_exchange + spec.exchange_words
    es, eb, es2, shift2 = spec.row_words, spec.row_pair_words, spec.pair_words, spec.second_shift
    slot_words = es2 if beside else es  # from the k1 of a slot to the next slot's
    served = 2 if right else 1  # sequences that have outer twiddles and spectrum in common
    strip_words, inverse_at, row_bins = 32 * rows // served, n // served, 2 * bins // served
    stage_words, sequence_words = spec.stage_words, spec.rows_in * STRIP // 2
    copy_rows = tile.copy_pieces(pieces.copy_pieces(spec), halves, guarded=guarded)

    lane, warp, block, divide, small = tile.lane, tile.warp, tile.block, tile.divide, tile.small
    scaled, one, together, sequences = spec.scaled, tile.one, spec.together, 2 // spec.unit
    barrier, warp_sync, commit, int64 = tile.barrier, tile.warp_sync, tile.commit, tile.int64
    follow, turns_of = tile.follow(overlap=spec.overlap), tile.opaque if spec.rolled else tile.small
    wait_all, wait_strip, multiply_inner = tile.wait(0), tile.wait(ring - 1), tile.multiply_complex(inner)
    copy_constants, join, load_scale = tile.copy_words_async, tile.join, tile.load_float
    # A
    chunk, row_step = 2 * unit, 64 * unit  # words of a lane's four columns; of four rows
    load_rows, gate_in = tile.load_shared(4 * in_tiles * chunk, chunk), tile.multiply(4 * in_tiles * chunk)
    first_to_b, second_to_b = (tile.pair_halves(pieces.rows_to_b(spec, part)) for part in range(2))
    log_width = 5 + int(half)
    load_f1 = tile.load_shared(t1 * in_tiles * 4, 4)
    stage1, multiply_outer, stage1i = outer_stages(tile, spec)
    load_table_shared, load_table = (f(2 * outer // served, 4) for f in (tile.load_shared, tile.load_global))
    put_first = tile.store_shared_pieces(pieces.first_exchange_pieces(spec))
    # B
    get_first = tile.load_pieces(pieces.first_exchange_reads(spec), 4 * t2 * j2)
    load_f2, load_f3 = tile.load_shared(t2 * t2 * 4, 4), tile.load_shared(n3 * spec.kept3 // 64, 4)
    load_inner_shared, load_inner = tile.load_shared(2 * inner, 4), tile.load_global(2 * inner, 4)
    stage2, stage3, stage3i, stage2i = inner_stages(tile, spec)
    load_bins, multiply_bins = tile.load_global(bins // 32, 4), tile.multiply_complex(bins // 64)
    to_a, bins_to_a = tile.select(columns_to_a(n2, n3)), tile.select(columns_to_a(n2, spec.kept3))
    transpose = tile.transpose(rows_of_tile_to_b(n2, n3))
    low, high = (tile.pair_halves(pieces.joined_halves(spec, e)) for e in range(2))
    put_second = tile.store_shared_pieces(pieces.second_exchange_pieces(spec))
    marked, load_word, nothing = spec.marked, tile.load_global(1, 1), tile.select_or_zero((-1,) * (4 * inner))
    # C
    get_second = tile.load_pieces(pieces.second_exchange_reads(spec), 16 * t1)
    load_f1i = tile.load_shared(spec.last_rows // 16 * t1 * 4, 4)
    scale, pack_out, gate_out = tile.scale(4 * kept), tile.pack(2 * kept), tile.multiply(2 * kept)
    weave, mirror, multiply_mirror, put_tile, load_offsets, gather_mirror = for_one_sequence(tile, spec)
    store_real, store_imaginary, gather_gate = outputs(tile, spec)

    def kernel(
        u, pre, post, post2, spectrum, scales, words, tables, y, out2, items, each, pairs, batch, channels, length
    ):  # fmt: skip
        index, w = small(lane()), small(warp())
        g, t, c = small(index >> 2), small(index & 3), small(4 * index)
        r = w
        while r < constant_rounds:
            copy_constants(r * 128 + c, words, r * 128 + c)
            r = small(r + warps)
        r = w
        while r < table_rounds:
            copy_constants(at_tables + r * 128 + c, tables, r * 128 + c)
            r = small(r + warps)
        commit()
        follow()
        wait_all()
        barrier()

        mine, ring_end = small(at_stage + w * ring * stage_words), small(ring * stage_words)
        # A lane's two words of a row: chunk 2 (g & 1) + (g >> 2), moved by one in every second pair of rows.
        if half:  # a lane's four words of a row: chunk 4 (g & 1) + (g >> 1), moved by the row
            read_at = small(mine + t * 32 + ((4 * (g & 1) + ((g >> 1) ^ t)) << 2))
        else:
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
        out_up = small(unit * (output * q + part * (q // fold) + 8 * t))
        out_down = small(unit * (part * (q // fold) + 8 * t - output * q))
        # Where this lane's copies of a strip come from and go to; see `copy_pieces`.
        copy_row = small((index * halves) >> log_width)
        copy_column = small((index * halves) & (32 * unit - 1))
        second_row = small(copy_column >> (log_width - 1))  # of the strip's two n2
        copy_from = small(unit * (copy_row * q + second_row * n3) + (copy_column & (16 * unit - 1)))
        swap = small(copy_row & 3 if half else (copy_row & 3) >> 1)
        copy_to = small(32 * unit * copy_row + (copy_column & 7))
        to0 = small(copy_to + (((copy_column >> 3) ^ swap) << 3))
        to1 = small(copy_to + (((copy_column >> 3) ^ swap ^ 1) << 3))
        to2 = small(copy_to + (((copy_column >> 3) ^ swap ^ 2) << 3))
        to3 = small(copy_to + (((copy_column >> 3) ^ swap ^ 3) << 3))

        first, blocks = small(block()), small(divide(items + each - 1, each))
        next_h = small(divide(blocks, pairs))  # from one item of a block to the next
        next_p = small(blocks - next_h * pairs)
        my_strip = small(w * my_strips)
        end_strip = small(my_strip + turns_of(my_strips))
        h = small(divide(first, pairs))
        p = small(first - h * pairs)
        other_sequence = int64(channels) if windows else int64(channels) * length
        shrink = small(channels) if windows else 0
        # Copies run `ring` strips ahead of the work: turn i of all strips of all items of this warp.
        turns = small(divide(items - first + blocks - 1, blocks) * my_strips)
        turn = small(0 - ring)
        slot_at = small(0)
        copy_h, copy_p, copy_strip = h, p, my_strip
        copy_base = sequences * int64(p) * other_sequence + int64(h) * length
        base = copy_base
        item = first
        if not in_shared:  # of the first strip: ahead of its item, as others are ahead of their turns
            table = load_table(tables, my_strip * strip_words + c, 128)
        while item < items:
            k_at = int64(h) * (unit * n1 * bins // served) + c
            s = load_scale(scales, h) if scaled else one
            if ahead:
                k0 = load_bins(spectrum, k_at + w * my_pairs * row_bins, 128)
                k1 = k0 if right else load_bins(spectrum, k_at + w * my_pairs * row_bins + bins, 128)
            # ---- A: contract n1 for this warp's strips
            strip = my_strip
            while strip < end_strip:
                if turn >= 0:
                    wait_strip()
                    warp_sync()
                    at = small(read_at + slot_at)
                    u1 = load_rows(at, row_step)
                    u2 = u1 if half else load_rows(at + sequence_words, row_step)
                    if gates_after:  # into the same place
                        warp_sync()
                        e = small((strip >> log_per_row) * (2 * n3) + 16 * (strip & (per_row - 1)))
                        e = small(copy_from + unit * e)
                        for i in range(sequences):
                            into = small(2 * (mine + slot_at + i * sequence_words))
                            now = small(sequences * p + i)
                            end = small((length - shrink * now) * (now < batch))
                            source = base + i * other_sequence
                            copy_rows(pre, source, end, e, to0 + into, to1 + into, to2 + into, to3 + into)
                        commit()
                        wait_all()
                        warp_sync()
                        u1 = gate_in(u1, load_rows(at, row_step))
                        u2 = u1 if half else gate_in(u2, load_rows(at + sequence_words, row_step))
                    elif gated_in:
                        u1 = gate_in(u1, load_rows(at + 2 * sequence_words, row_step))
                        u2 = u1 if half else gate_in(u2, load_rows(at + 3 * sequence_words, row_step))
                    x = join(first_to_b(u1), second_to_b(u2))
                    warp_sync()
                if turn + ring < turns:
                    shift = small((copy_strip >> log_per_row) * (2 * n3) + 16 * (copy_strip & (per_row - 1)))
                    e = small(copy_from + unit * shift)
                    for i in range(sequences):
                        into = small(2 * (mine + slot_at + i * sequence_words))
                        now = small(sequences * copy_p + i)
                        end = small((length - shrink * now) * (now < batch))
                        source = copy_base + i * other_sequence
                        copy_rows(u, source, end, e, to0 + into, to1 + into, to2 + into, to3 + into)
                        if gated_in and not gates_after:
                            into = small(into + 4 * sequence_words)
                            copy_rows(pre, source, end, e, to0 + into, to1 + into, to2 + into, to3 + into)
                    copy_strip = small(copy_strip + 1)
                    if copy_strip == end_strip:
                        copy_strip = my_strip
                        copy_h, copy_p = small(copy_h + next_h), small(copy_p + next_p)
                        if copy_p >= pairs:
                            copy_h, copy_p = small(copy_h + 1), small(copy_p - pairs)
                        copy_base = sequences * int64(copy_p) * other_sequence + int64(copy_h) * length
                commit()
                if turn >= 0:
                    z = stage1(load_f1(at_f1 + c, 128), x)
                    if in_shared:
                        table = load_table_shared(at_tables + strip * strip_words + c, 128)
                    to = small(first_put + (strip >> log_per_row) * eb + 32 * (strip & (per_row - 1)))
                    put_first(to, to, to, to, multiply_outer(z, table))
                    strip = small(strip + 1)
                    if not in_shared and strip < end_strip:
                        table = load_table(tables, strip * strip_words + c, 128)
                turn = small(turn + 1)
                slot_at = small(slot_at + stage_words)
                if slot_at == ring_end:
                    slot_at = small(0)
            barrier()
            # ---- B: the inner convolution of two k1 at a time
            pair = small(w * my_pairs)
            pair_end = small(pair + turns_of(my_pairs))
            if lean:
                at = small(first_get + pair * es2)
                odd_at = small(at + es)
                x0, x1 = get_first(at, at, at, at), get_first(odd_at, odd_at, odd_at, odd_at)
            while pair < pair_end:
                if marked:  # nothing is kept of these two k1; `spectrum.Spectrum` has the marks
                    mark_at = small(total + (h - divide(h, marked) * marked) * (n1 // 2) + pair)
                    if load_scale(words, mark_at) == 0:
                        at, zeros = small(pair * es2 + (pair & 3) * shift2), nothing(load_word(words, c, 0))
                        up_at, down_at = small(at + up), small(at + down)
                        put_second(up_at + plus, up_at + minus, down_at + plus, down_at + minus, zeros)
                        pair = small(pair + 1)
                        continue
                at = small(first_get + pair * es2)
                from_k = k_at + pair * row_bins
                table0 = small(inverse_at + pair * (q if beside else 2 * q) + c)
                table1 = small(table0 + (0 if right else n // 2 if half else q))
                if half:  # two k1 that mirror each other, or mirror themselves: 0 and N1 / 2
                    x0 = get_first(at, at, at, at)
                    z0 = multiply_inner(
                        stage2(load_f2(at_f2 + c, 128), x0), load_inner_shared(at_t2 + c, 128)
                    )
                    even0 = stage3(to_a(z0), load_f3(at_f3 + c, 128))
                    at = small(at + es)
                    x1 = get_first(at, at, at, at)
                    y0 = multiply_inner(
                        stage2(load_f2(at_f2 + c, 128), x1), load_inner_shared(at_t2 + c, 128)
                    )
                    uneven0 = stage3(to_a(y0), load_f3(at_f3 + c, 128))
                    if pair == 0:
                        warp_sync()
                        put_tile(at_exchange + index, at_exchange, at_exchange, at_exchange, even0)
                        warp_sync()
                        mirror0 = gather_mirror(at_exchange, load_offsets(tables, 2 * n + c, 128))
                        mirror1 = mirror(uneven0)
                    else:
                        mirror0 = mirror(uneven0)
                        mirror1 = mirror(even0)
                    k0, b0 = load_inner(spectrum, from_k, 128), load_inner(spectrum, from_k + q, 128)
                    k1, b1 = load_inner(spectrum, from_k + n, 128), load_inner(spectrum, from_k + n + q, 128)
                    z1 = multiply_mirror(even0, k0, mirror0, b0)
                    y1 = multiply_mirror(uneven0, k1, mirror1, b1)
                    z2 = multiply_inner(
                        stage3i(to_a(z1), load_f3(at_f3i + c, 128)),
                        load_inner_shared(at_t2i + c, 128),
                    )
                    z3 = stage2i(load_f2(at_f2i + c, 128), transpose(z2))
                    y2 = multiply_inner(
                        stage3i(to_a(y1), load_f3(at_f3i + c, 128)),
                        load_inner_shared(at_t2i + c, 128),
                    )
                    y3 = stage2i(load_f2(at_f2i + c, 128), transpose(y2))
                elif together:  # two independent chains, where registers allow
                    if not lean:
                        x0 = get_first(at, at, at, at)
                        odd_at = small(at + es)
                        x1 = get_first(odd_at, odd_at, odd_at, odd_at)
                    if not ahead:
                        k0 = load_bins(spectrum, from_k, 128)
                        k1 = k0 if right else load_bins(spectrum, from_k + bins, 128)
                    f2, t2 = load_f2(at_f2 + c, 128), load_inner_shared(at_t2 + c, 128)
                    z0 = multiply_inner(stage2(f2, x0), t2)
                    y0 = multiply_inner(stage2(f2, x1), t2)
                    f3 = load_f3(at_f3 + c, 128)
                    z1 = multiply_bins(stage3(to_a(z0), f3), k0)
                    y1 = multiply_bins(stage3(to_a(y0), f3), k1)
                    if ahead and pair + 1 < pair_end:
                        k0 = load_bins(spectrum, from_k + row_bins, 128)
                        k1 = k0 if right else load_bins(spectrum, from_k + 3 * bins, 128)
                    f3i, t2i = load_f3(at_f3i + c, 128), load_inner_shared(at_t2i + c, 128)
                    z2 = multiply_inner(stage3i(bins_to_a(z1), f3i), t2i)
                    y2 = multiply_inner(stage3i(bins_to_a(y1), f3i), t2i)
                    f2i = load_f2(at_f2i + c, 128)
                    z3 = stage2i(f2i, transpose(z2))
                    y3 = stage2i(f2i, transpose(y2))
                else:
                    x0 = get_first(at, at, at, at)
                    if not ahead:
                        k0 = load_bins(spectrum, from_k, 128)
                    z0 = multiply_inner(
                        stage2(load_f2(at_f2 + c, 128), x0), load_inner_shared(at_t2 + c, 128)
                    )
                    z1 = multiply_bins(stage3(to_a(z0), load_f3(at_f3 + c, 128)), k0)
                    if ahead and not right and pair + 1 < pair_end:
                        k0 = load_bins(spectrum, from_k + 2 * bins, 128)
                    z2 = multiply_inner(
                        stage3i(bins_to_a(z1), load_f3(at_f3i + c, 128)),
                        load_inner_shared(at_t2i + c, 128),
                    )
                    z3 = stage2i(load_f2(at_f2i + c, 128), transpose(z2))
                    at = small(at + es)
                    x1 = get_first(at, at, at, at)
                    if right or not ahead:
                        k1 = k0 if right else load_bins(spectrum, from_k + bins, 128)
                    y0 = multiply_inner(
                        stage2(load_f2(at_f2 + c, 128), x1), load_inner_shared(at_t2 + c, 128)
                    )
                    y1 = multiply_bins(stage3(to_a(y0), load_f3(at_f3 + c, 128)), k1)
                    if ahead and pair + 1 < pair_end:
                        k1 = load_bins(spectrum, from_k + (bins if right else 3 * bins), 128)
                        k0 = k1 if right else k0
                    y2 = multiply_inner(
                        stage3i(bins_to_a(y1), load_f3(at_f3i + c, 128)),
                        load_inner_shared(at_t2i + c, 128),
                    )
                    y3 = stage2i(load_f2(at_f2i + c, 128), transpose(y2))
                if lean and pair + 1 < pair_end:
                    at = small(at + es2)
                    odd_at = small(at + es)
                    x0, x1 = get_first(at, at, at, at), get_first(odd_at, odd_at, odd_at, odd_at)
                if in_shared:
                    even = multiply_inner(z3, load_inner_shared(at_tables + table0, 128))
                    uneven = multiply_inner(y3, load_inner_shared(at_tables + table1, 128))
                else:
                    back = load_inner(tables, table0, 128)
                    even = multiply_inner(z3, back)
                    uneven = multiply_inner(y3, back if right else load_inner(tables, table1, 128))
                row_at = small(pair * es2 + (pair & 3) * shift2)
                up_at, down_at = small(row_at + up), small(row_at + down)
                both = join(even, uneven)
                both = join(low(both), high(both))
                warp_sync()
                put_second(up_at + plus, up_at + minus, down_at + plus, down_at + minus, both)
                pair = small(pair + 1)
            barrier()
            # ---- C: back to samples
            # The other sequence of the pair; or, of the one sequence, the other four points of a lane.
            other = base + (8 if half else other_sequence)
            limit0 = length
            limit = small(length - 8 if half else length * (2 * p + 1 < batch))
            if windows:
                left = small(length - n + channels - 2 * p * channels)  # outputs, from this window's first on
                limit0 = min(channels, left)
                limit = small(min(channels, left - channels) * (2 * p + 1 < batch))
            strip = my_strip
            while strip < end_strip:
                o = small(strip * (32 * unit))
                o_up, o_down = small(out_up + o), small(out_down + o)
                if gated_out:
                    gate1 = gather_gate(post, base, limit0, o_up, o_down, o, o)
                    gate2 = gather_gate(post, other, limit, o_up, o_down, o, o)
                at = small(second_get + strip * STRIP_WORDS)
                x2 = get_second(at, at, at, at)
                y4 = stage1i(load_f1i(at_f1i + c, 128), x2)
                if scaled:
                    y4 = scale(y4, s)
                z4 = pack_out(weave(y4)) if half else pack_out(y4)
                if twice:
                    gate3 = gather_gate(post2, base, limit0, o_up, o_down, o, o)
                    gate4 = gather_gate(post2, other, limit, o_up, o_down, o, o)
                out = gate_out(z4, join(gate1, gate2)) if gated_out else z4
                store_real(y, base, limit0, o_up, o_down, o, o, out)
                store_imaginary(y, other, limit, o_up, o_down, o, o, out)
                if twice:
                    out = gate_out(z4, join(gate3, gate4))
                    store_real(out2, base, limit0, o_up, o_down, o, o, out)
                    store_imaginary(out2, other, limit, o_up, o_down, o, o, out)
                strip = small(strip + 1)
            if not in_shared:
                table = load_table(tables, my_strip * strip_words + c, 128)
            barrier()
            h, p = small(h + next_h), small(p + next_p)
            if p >= pairs:
                h, p = small(h + 1), small(p - pairs)
            base = sequences * int64(p) * other_sequence + int64(h) * length
            item = small(item + blocks)

    return kernel


TOGETHER = {"right-angle": 2}
"""By packing, sequences of an item, where they are not those of a transform."""
SIGNATURE = ("HALVES",) * 4 + ("WORDS", "FLOATS", "WORDS", "WORDS") + ("HALVES",) * 2 + ("INT",) * 6
"""Kinds of the kernel's arguments, for the compiler."""


def workers(spec: Spec) -> int:
    """Who takes items: the block as a whole."""
    return 1


__all__ = [
    "FACTORS",
    "PACKINGS",
    "build",
    "kept_axes",
    "make_spec",
    "min_blocks",
    "operand_key",
    "operands",
    "skipped_points",
    "spectrum_layout",
]
