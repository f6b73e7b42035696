"""The fused order-4 convolution: a block carries two real sequences (or one, with half-length packing).

With N = N1 Q, Q = N2 R, R = N3 N4, a pair z = u1 + i u2 lies as a matrix [n1, m], m = n2 R + n3 N4 + n4. It fills one
exchange in shared memory, which every stage reads and overwrites in place:

    A. Every warp contracts n1 -> k1 for its n3 (with N1 = 8 its two), on strips of 32 columns (two n2, all n4), and
       multiplies by the outer twiddles w^(k1 (n3 N4 + n4)); the block meets.
    M. Every warp contracts n2 -> k2 for its k1, on strips (two n3, all n4), and multiplies by the middle twiddles.
    B. For each k2 it does the order-2 convolution of R points in registers, and multiplies by the inverse middle
       twiddles. (With half-length packing a k1 and its mirror belong together: the block meets before and after.)
    M'. Every warp contracts k2 -> n2 for its k1; the block meets.
    C. Every warp multiplies by the inverse outer twiddles, contracts k1 -> n1 for its n3, and stores the result.

N2 = 8 complex points are 16 real ones: the middle stage is a plain product with a real matrix [16, 16], which any phase
fits into. So it holds the part w^(k1 n2 R) of the outer twiddles; what is left of them depends on one n3, and registers
hold it for all its strips. No table of N entries is read. The rest is as in `fused_block`.
"""

from __future__ import annotations

from typing import Any

from kernels_numba import deep_pieces as pieces
from kernels_numba import rounded_stages as stages
from kernels_numba.block_pieces import copy_pieces, mirror_registers, woven
from kernels_numba.deep_operands import operand_key, operands, skipped_points
from kernels_numba.deep_operands import spectrum_of_plan as spectrum_layout
from kernels_numba.deep_spec import FACTORS, PACKINGS, STRIP, Spec, make_spec, min_blocks
from kernels_numba.operands import columns_to_a, rows_of_tile_to_b


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: as `fused_block.build`; ``tables`` holds what each warp has of its own.
    """
    n1, n2, n3, n4, n, q = spec.n1, spec.n2, spec.n3, spec.n4, spec.n, spec.q
    points = spec.inner
    warps, halves, guarded, ring = spec.warps, spec.halves, spec.guarded, spec.ring
    gated_in, gated_out, twice, half, unit = spec.pregate, spec.postgate, spec.twice, spec.half, spec.unit
    shares, strips, per_k1 = spec.shares, spec.strips, n2 // 2
    log_strips = strips.bit_length() - 1
    share_words, next_share = n1 * n4, 16 * warps  # outer twiddles of one n3; to a warp's other n3
    middle_strips, back_strips, tiles = n3 // 2, points // STRIP, n1 * n2 // 2 // warps
    inner, kept = points // 64, spec.rows_out // 8 * 4  # registers of real parts: of a tile, of results

    # Where things lie, in shared memory and in the table.
    at_f1, at_f1i, at_f3, at_f4, at_f4i, at_t3, at_t3i, at_t2, at_t2i = spec.constant_places
    from_outer_i, from_f2, from_f2i, from_mirrors = spec.table_places
    at_exchange, constant_rounds = spec.factor_words, spec.factor_words // 128
    at_stage = at_exchange + spec.exchange_words
    ts, es = spec.tile_words, spec.row_words
    stage_words, sequence_words = spec.stage_words, spec.rows_in * STRIP // 2

    copy_rows = tile.copy_pieces(copy_pieces(spec), halves, guarded=guarded)
    single, pre_words, pre_at = spec.right_angle, spec.parts * sequence_words, 2 * spec.parts * sequence_words
    lane, warp, block, divide, small = tile.lane, tile.warp, tile.block, tile.divide, tile.small
    scaled, load_scale, one, middle_shared = spec.scaled, tile.load_float, tile.one, spec.middle_shared
    sequences, both = 1 if single else 2 // unit, spec.both
    copies = 1 if both else sequences
    barrier, warp_sync, commit, int64 = tile.barrier, tile.warp_sync, tile.commit, tile.int64
    follow, meet = tile.follow(overlap=spec.overlap), barrier if half else warp_sync
    # Whether a tile's spectrum is loaded one step ahead of its use; measured faster where it is.
    ahead = (half or gated_in or gated_out) and not spec.marked
    turns_of, held, early = tile.opaque, tile.held, spec.early
    wait_all, wait_strip = tile.wait(0), tile.wait(ring - 1)
    copy_constants, join, load_factor = tile.copy_words_async, tile.join, tile.load_shared(4, 4)
    # A
    # Words of a lane's four columns, and of four rows.
    chunk, row_step, rows_in = 2 * unit, 64 * unit, spec.rows_in
    in_words, log_width = rows_in // 4 * chunk, 5 + int(half)
    load_rows, gate_in = tile.load_shared(in_words, chunk), tile.multiply(in_words)
    to_b, in_order = tile.pair_halves(pieces.rows_to_b(spec)), tile.select_or_zero(pieces.rows_in_order(spec))
    in_tiles, out_tiles, k1_tiles = spec.parts * spec.contracted // 16, spec.stored // 16, n1 // 8
    load_f1, stage1 = tile.load_shared(4 * k1_tiles * in_tiles, 4), tile.mma_halves(k1_tiles, 4, in_tiles)
    load_outer, spread = tile.load_global(n1 // 2, 4), tile.pair_halves(pieces.twiddle_pairs(spec))
    put_first = tile.store_shared_pieces(pieces.outer_writes(spec))
    # M
    load_own_factor, stage2 = tile.load_global(4, 4), tile.mma_halves(1, 4, 1)
    get_middle = tile.load_pieces(pieces.MIDDLE_READS, 8)
    multiply_outer, multiply_inner = tile.multiply_complex(n1 // 2), tile.multiply_complex(inner)
    put_middle = tile.store_shared_pieces(pieces.MIDDLE_WRITES)
    # B
    get_tile = tile.load_pieces(pieces.INNER_READS, 2 * inner)
    load_inner_shared, load_inner = tile.load_shared(2 * inner, 4), tile.load_global(2 * inner, 4)
    rounded = spec.rounded
    stage3, stage3i = (stages.rows(tile, 1, 2, 1, inverse=way, halves=rounded) for way in (False, True))
    stage4, stage4i = (stages.columns(tile, 1, 2, 1, inverse=way, halves=rounded) for way in (False, True))
    to_a, transpose = tile.select(columns_to_a(n3, n4)), tile.transpose(rows_of_tile_to_b(n3, n4))
    put_tile, mirror = tile.store_shared_pieces(pieces.INNER_WRITES), tile.select(mirror_registers(n3, n4))
    multiply_mirror = tile.multiply_mirror(inner, mirror_first=True)
    load_offsets, gather_mirror = tile.gather_halves(2 * inner)
    put_registers = tile.store_shared_pieces(tuple((0, 32 * r, (r,)) for r in range(2 * inner)))
    marked, load_word, nothing = spec.marked, tile.load_global(1, 1), tile.select_or_zero((-1,) * (2 * inner))
    # M'
    get_back, back_to_b = tile.load_pieces(pieces.back_reads(spec), 8), tile.pair_halves(pieces.BACK_PAIRS)
    put_back = tile.store_shared_pieces(pieces.BACK_WRITES)
    # C
    load_outer_i, get_last = tile.load_global(n1, 4), tile.load_pieces(pieces.outer_reads(spec), n1)
    last_to_b = tile.pair_halves_swapped(pieces.outer_pairs(spec))
    last_in_order = tile.select(pieces.outer_in_order(spec))
    load_f1i, results = tile.load_shared(4 * out_tiles * k1_tiles, 4), spec.parts * kept  # packed registers
    stage1i = tile.mma_first(out_tiles, 4, k1_tiles, 2 * results)
    scale, pack_out, gate_out = tile.scale(2 * results), tile.pack(results), tile.multiply(results)
    weave = tile.select(woven(spec))
    store_real = tile.store_pieces(pieces.output_pieces(spec, 0), halves, guarded=guarded)
    imaginary = () if single else pieces.output_pieces(spec, kept)
    store_imaginary = tile.store_pieces(imaginary, halves, guarded=guarded)
    gather = tile.gather(pieces.output_pieces(spec, 0), kept, halves, guarded=guarded)

    def kernel(
        u, pre, post, post2, spectrum, scales, words, tables, y, out2, items, each, pairs, batch, channels, length
    ):  # fmt: skip
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

        mine, ring_end = small(at_stage + w * ring * stage_words), small(ring * stage_words)
        my_row = small(at_exchange + w * es)
        # This warp's n3: slots hold n3 in the first half, mirrors in the second. With 8 warps it has one of each.
        my_n3 = small(w if w < n3 // 2 else n3 + n3 // 2 - 1 - w)
        to_other_n3 = small(unit * n4 * (n3 - 1 - 2 * w))
        my_strip = small(w >> 1)  # of the middle stage, and place in it
        # A lane's four columns of a row, as `fused_block` has them.
        if half:
            read_at = small(mine + t * 32 + ((4 * (g & 1) + ((g >> 1) ^ t)) << 2))
        else:
            read_at = small(mine + t * 16 + (((2 * (g & 1) + (g >> 2)) ^ (t >> 1)) << 2) + 2 * ((g >> 1) & 1))
        first_put = small(at_exchange + g * es + (w & 1) * ts + 32 * my_strip + 8 * (t ^ (my_strip & 3)))
        middle_get, middle_put = small(my_row + t * (2 * ts) + (g & 1) * ts), small(my_row + g * ts)
        tile_get = small(at_exchange + 32 * t + 4 * (g ^ (2 * t)))
        tile_put = small(at_exchange + c)
        back_get = small(my_row + t * (2 * ts) + 4 * g)
        # Columns of an output lane: even or odd ones of the first or the last eight; see docs/kernels.md.
        turned = small((w >> 1) & 1)
        back_put0 = small(my_row + g * ts + 16 * (t >> 1) + 8 * (t & 1) + 4 * turned)
        back_put1 = small(my_row + g * ts + 16 * (t >> 1) + 8 * (1 - (t & 1)) + 4 * (1 - turned))
        upper = small((g >> 1) & 1)
        last_get = small(
            at_exchange + t * (2 * es) + (g >> 2) * ts + 16 * w + 8 * (g & 1) + 4 * (upper ^ (t & 1))
        )
        out_from = small(unit * (g * q + (t >> 1) * points + my_n3 * n4 + 8 * (t & 1)))
        # Where this lane's copies of a strip come from and go to; see `copy_pieces`.
        copy_row = small((index * halves) >> log_width)
        copy_to_row = copy_row
        copy_second = small(0)  # whether it is a row of the other sequence
        if both:
            copy_second = small(divide(copy_row, rows_in))
            copy_row = small(copy_row - rows_in * copy_second)
        copy_column = small((index * halves) & (32 * unit - 1))
        second_row = small(copy_column >> (log_width - 1))  # of the strip's two n2
        copy_from = small(
            unit * (copy_row * q + second_row * points + my_n3 * n4) + (copy_column & (16 * unit - 1))
        )
        swap = small(copy_row & 3 if half else (copy_row & 3) >> 1)
        copy_to = small(2 * mine + 32 * unit * copy_to_row + (copy_column & 7))
        to0 = small(copy_to + (((copy_column >> 3) ^ swap) << 3))
        to1 = small(copy_to + (((copy_column >> 3) ^ swap ^ 1) << 3))
        to2 = small(copy_to + (((copy_column >> 3) ^ swap ^ 2) << 3))
        to3 = small(copy_to + (((copy_column >> 3) ^ swap ^ 3) << 3))

        first, blocks = small(block()), small(divide(items + each - 1, each))
        h, next_h = small(divide(first, pairs)), small(divide(blocks, pairs))  # next: from an item to another
        p, next_p = small(first - h * pairs), small(blocks - next_h * pairs)
        other_sequence = int64(channels) * length
        # Copies run `ring` strips ahead of the work: turn i of all strips of all items of this warp.
        turns = small(divide(items - first + blocks - 1, blocks) * (shares * strips))
        turn, slot_at = small(0 - ring), small(0)
        copy_h, copy_p, copy_strip = h, p, small(0)
        copy_base = (sequences * int64(p) * channels + h) * length
        base = copy_base
        # Of the last loop the assembler must not know the turns either: unrolled for sm_80, it spills.
        last_turns = small(strips if items > 0 else 0)
        item = first
        if early:
            next_t1 = load_outer(tables, w * share_words + c, 128)
        while item < items:
            s = load_scale(scales, h) if scaled else one
            # ---- A: contract n1 for this warp's n3, or its two
            f1 = load_f1(at_f1 + c, 128)
            read_here, copy_here, put_here = held(read_at), held(copy_from), held(first_put)
            here0, here1, here2, here3 = held(to0), held(to1), held(to2), held(to3)
            apart, next_n3 = held(other_sequence), held(to_other_n3)
            if early:
                f2 = load_own_factor(tables, from_f2 + w * 128 + c, 128)
            share = small(0)
            while share < shares:
                t1 = next_t1 if early else load_outer(tables, (w + share * warps) * share_words + c, 128)
                t1 = spread(t1)
                strip, end_strip = small(0), small(turns_of(strips))
                while strip < end_strip:
                    if turn >= 0:
                        wait_strip()
                        warp_sync()
                        at = small(read_here + slot_at)
                        u1 = load_rows(at, row_step)
                        u2 = u1 if sequences == 1 else load_rows(at + sequence_words, row_step)
                        if gated_in:
                            u1 = gate_in(u1, load_rows(at + pre_words, row_step))
                            if sequences > 1:
                                u2 = gate_in(u2, load_rows(at + pre_words + sequence_words, row_step))
                        x = in_order(u1 if half else to_b(u1 if single else join(u1, u2)))
                        warp_sync()
                    if small(turn + ring) < turns:
                        e = small(copy_here + (copy_strip & (strips - 1)) * (2 * unit * points))
                        if shares > 1:
                            e = small(e + (copy_strip >> log_strips) * next_n3)
                        for i in range(copies):
                            into = small(2 * (slot_at + i * sequence_words))
                            end = small(length * (sequences * copy_p + i + copy_second < batch))
                            source = copy_base + (i + copy_second) * apart
                            at0, at1, at2, at3 = here0 + into, here1 + into, here2 + into, here3 + into
                            copy_rows(u, source, end, e, at0, at1, at2, at3)
                            if gated_in:
                                at0, at1, at2, at3 = at0 + pre_at, at1 + pre_at, at2 + pre_at, at3 + pre_at
                                copy_rows(pre, source, end, e, at0, at1, at2, at3)
                        copy_strip = small(copy_strip + 1)
                        if copy_strip == shares * strips:
                            copy_strip = small(0)
                            copy_h, copy_p = small(copy_h + next_h), small(copy_p + next_p)
                            if copy_p >= pairs:
                                copy_h, copy_p = small(copy_h + 1), small(copy_p - pairs)
                            copy_base = (sequences * int64(copy_p) * channels + copy_h) * length
                    commit()
                    if turn >= 0:
                        z = multiply_outer(stage1(f1, x), t1)
                        to = small(put_here + strip * (2 * ts) + share * next_share)
                        put_first(to, to, to, to, z)
                        strip = small(strip + 1)
                    turn = small(turn + 1)
                    slot_at = small(slot_at + stage_words)
                    if slot_at == ring_end:
                        slot_at = small(0)
                share = small(share + 1)
            if not early:
                f2 = load_own_factor(tables, from_f2 + w * 128 + c, 128)
            barrier()
            from0 = int64(h) * (unit * n) + w * (tiles * 2 * unit * points) + c
            if ahead:
                k0 = load_inner(spectrum, from0, 128)
                k1 = load_inner(spectrum, from0 + unit * points, 128)
            # ---- M: contract n2 for this warp's k1, two strips at a time
            get_here, put_here = held(middle_get), held(middle_put)
            strip, end_strip = small(0), small(turns_of(middle_strips))
            while strip < end_strip:
                even = small(32 * strip + 8 * ((g >> 1) ^ (strip & 3)))
                uneven = small(32 * strip + 32 + 8 * ((g >> 1) ^ ((strip + 1) & 3)))
                x0 = get_middle(get_here + even, even, even, even)
                x1 = get_middle(get_here + uneven, even, even, even)
                from_t2 = small(at_t2 + strip * points + c)
                z0 = multiply_inner(stage2(f2, x0), load_inner_shared(from_t2, 128))
                z1 = multiply_inner(stage2(f2, x1), load_inner_shared(from_t2 + points, 128))
                warp_sync()
                even = small(put_here + 32 * strip + 8 * (t ^ (strip & 3)))
                uneven = small(put_here + 32 * strip + 32 + 8 * (t ^ ((strip + 1) & 3)))
                put_middle(even, even, even, even, z0)
                put_middle(uneven, uneven, uneven, uneven, z1)
                strip = small(strip + 2)
            meet()
            # ---- B: inner convolutions, two at a time
            f3 = load_factor(at_f3 + c, 128)
            f4 = load_factor(at_f4 + c, 128)
            if not half:
                f4i = load_factor(at_f4i + c, 128)
            pair = small(w * tiles)
            pair_end = small(pair + turns_of(tiles))
            while pair < pair_end:
                if half:  # mirrors; `deep_operands.tiles_in_order` has the order
                    slot = small(divide(pair, n2))
                    k2 = small(pair - slot * n2)
                    row0 = slot
                    row1 = small(slot + n1 // 2)
                    other = small(n2 - 1 - k2)
                    if slot == 0:
                        if k2 < per_k1:
                            row1 = row0
                            other = small(n2 - k2 if k2 > 0 else per_k1)
                        else:
                            row0 = row1
                            k2 = small(k2 - per_k1)
                            other = small(n2 - 1 - k2)
                else:
                    row0 = small(divide(pair, per_k1))
                    row1 = row0
                    k2 = small(2 * (pair - row0 * per_k1))
                    other = small(k2 + 1)
                tile0 = small(row0 * es + k2 * ts)
                tile1 = small(row1 * es + other * ts)
                if marked:  # nothing is kept of these two k2; `spectrum.Spectrum` has the marks
                    mark_at = small(at_t2i + q + (h - divide(h, marked) * marked) * (n1 * per_k1) + pair)
                    if load_scale(words, mark_at) == 0:
                        zeros = nothing(load_word(words, c, 0))
                        at, to = small(tile_put + tile0), small(tile_put + tile1)
                        put_tile(at, at, at, at, zeros)
                        put_tile(to, to, to, to, zeros)
                        pair = small(pair + 1)
                        from0 += 2 * unit * points
                        continue
                at = small(tile_get + tile0)
                x0 = get_tile(at, at, at, at)
                at = small(tile_get + tile1)
                x1 = get_tile(at, at, at, at)
                if not ahead:
                    k0 = load_inner(spectrum, from0, 128)
                    k1 = load_inner(spectrum, from0 + unit * points, 128)
                t3 = load_inner_shared(at_t3 + c, 128)
                z0 = multiply_inner(stage3(f3, x0), t3)
                y0 = multiply_inner(stage3(f3, x1), t3)
                if half:
                    b0 = load_inner(spectrum, from0 + points, 128)
                    b1 = load_inner(spectrum, from0 + 3 * points, 128)
                    z1 = stage4(to_a(z0), f4)
                    y1 = stage4(to_a(y0), f4)
                    warp_sync()
                    if pair == 0:
                        put_registers(at_exchange + index, at_exchange, at_exchange, at_exchange, z1)
                        warp_sync()
                        mirror0 = gather_mirror(at_exchange, load_offsets(tables, from_mirrors + c, 128))
                        mirror1 = mirror(y1)
                        warp_sync()
                    else:
                        mirror0 = mirror(y1)
                        mirror1 = mirror(z1)
                    z2 = multiply_mirror(z1, k0, mirror0, b0)
                    y2 = multiply_mirror(y1, k1, mirror1, b1)
                else:
                    z2 = multiply_inner(stage4(to_a(z0), f4), k0)
                    y2 = multiply_inner(stage4(to_a(y0), f4), k1)
                    warp_sync()
                pair = small(pair + 1)
                from0 += 2 * unit * points
                if ahead and pair < pair_end:
                    k0 = load_inner(spectrum, from0, 128)
                    k1 = load_inner(spectrum, from0 + unit * points, 128)
                if half:  # then registers are short
                    f4i = load_factor(at_f4i + c, 128)
                t3i = load_inner_shared(at_t3i + c, 128)
                z3 = multiply_inner(stage4i(to_a(z2), f4i), t3i)
                y3 = multiply_inner(stage4i(to_a(y2), f4i), t3i)
                z4 = stage3i(f3, transpose(z3))
                y4 = stage3i(f3, transpose(y3))
                if middle_shared:
                    t2i = load_inner_shared(at_t2i + k2 * points + c, 128)
                    v2i = load_inner_shared(at_t2i + other * points + c, 128)
                else:
                    t2i = load_inner(words, at_t2i + k2 * points + c, 128)
                    v2i = load_inner(words, at_t2i + other * points + c, 128)
                at = small(tile_put + tile0)
                put_tile(at, at, at, at, multiply_inner(z4, t2i))
                at = small(tile_put + tile1)
                put_tile(at, at, at, at, multiply_inner(y4, v2i))
            f2i = load_own_factor(tables, from_f2i + w * 128 + c, 128)
            meet()
            # ---- M': contract k2 for this warp's k1, two strips at a time
            strip, end_strip = small(0), small(turns_of(back_strips))
            while strip < end_strip:
                at = small(back_get + 32 * strip)
                x0 = get_back(at, at, at, at)
                x1 = get_back(at + 32, at, at, at)
                z0 = stage2(f2i, back_to_b(x0))
                z1 = stage2(f2i, back_to_b(x1))
                warp_sync()
                at = small(back_put0 + 32 * strip)
                to = small(back_put1 + 32 * strip)
                put_back(at, to, at, at, z0)
                put_back(at + 32, to + 32, at, at, z1)
                strip = small(strip + 2)
            from_t1i = small(from_outer_i + w * share_words + 16 * (g & 3) + 4 * t)
            t1i = load_outer_i(tables, from_t1i, 64)
            barrier()
            # ---- C: back to samples
            # The other sequence of the pair; or, of the one sequence, the other four points of a lane.
            base2 = base + (8 if half else other_sequence)
            limit = small(length - 8 if half else length * (2 * p + 1 < batch))
            if not gated_out:
                f1i = load_f1i(at_f1i + c, 128)
            get_here, out_here, next_n3 = held(last_get), held(out_from), held(to_other_n3)
            share = small(0)
            while share < shares:
                if share > 0:
                    t1i = load_outer_i(tables, from_t1i + share * (warps * share_words), 64)
                strip = small(0)
                end_strip = last_turns
                while strip < end_strip:
                    o = small(out_here + strip * (2 * unit * points) + share * next_n3)
                    if gated_out:
                        gate1 = gather(post, base, length, o, o, o, o)
                        gates = gate1 if single else join(gate1, gather(post, base2, limit, o, o, o, o))
                    at = small(get_here + strip * (2 * ts) + share * next_share)
                    x2 = multiply_outer(last_to_b(get_last(at, at, at, at), upper), t1i)
                    if gated_out:  # here too
                        f1i = load_f1i(at_f1i + c, 128)
                    y5 = stage1i(f1i, last_in_order(x2))
                    if scaled:
                        y5 = scale(y5, s)
                    z5 = pack_out(weave(y5)) if half else pack_out(y5)
                    if twice:
                        gate3 = gather(post2, base, length, o, o, o, o)
                        gates2 = gate3 if single else join(gate3, gather(post2, base2, limit, o, o, o, o))
                    out = gate_out(z5, gates) if gated_out else z5
                    store_real(y, base, length, o, o, o, o, out)
                    store_imaginary(y, base2, limit, o, o, o, o, out)
                    if twice:
                        out = gate_out(z5, gates2)
                        store_real(out2, base, length, o, o, o, o, out)
                        store_imaginary(out2, base2, limit, o, o, o, o, out)
                    strip = small(strip + 1)
                share = small(share + 1)
            if early:
                next_t1 = load_outer(tables, w * share_words + c, 128)
            barrier()
            h, p = small(h + next_h), small(p + next_p)
            if p >= pairs:
                h, p = small(h + 1), small(p - pairs)
            base = (sequences * int64(p) * channels + h) * length
            item = small(item + blocks)

    return kernel


SIGNATURE = ("HALVES",) * 4 + ("WORDS", "FLOATS", "WORDS", "WORDS") + ("HALVES",) * 2 + ("INT",) * 6
"""Kinds of the kernel's arguments, for the compiler."""


def workers(spec: Spec) -> int:
    """Who takes items: the block as a whole."""
    return 1


__all__ = [
    "FACTORS",
    "PACKINGS",
    "build",
    "make_spec",
    "min_blocks",
    "operand_key",
    "operands",
    "skipped_points",
    "spectrum_layout",
]
