"""The filter's gradient in spectra, order 3: a block transforms pairs of u and of dy and sums conj(Z) W over the batch.

As `gradient_warp`, with the first stages of `fused_block`: the outer one by all warps (A), and after an exchange in
shared memory the two inner ones, each warp for its k1 (B). Both do u and dy in turn, A strip by strip, so twiddles are
read once. Of a pair's u the spectrum Z takes the room, in the exchange, of what it was made from; dy has an exchange of
its own, and where W is ready conj(Z) W is added to the sums.

The frequencies of a long transform are dealt to several units of work: one has 16 k1 (8 and their mirrors) of N1 and
does that part of the outer stage alone, so its exchanges and sums are a part of the whole, and no product is done
twice. It reads all of its input, as the units beside it do at about the same time: that comes from the L2 cache.
"""

from __future__ import annotations

from typing import Any

from kernels_numba import rounded_stages as stages
from kernels_numba.block_pieces import copy_pieces, first_exchange_pieces, first_exchange_reads, rows_to_b
from kernels_numba.gradient_spec import (
    FACTORS,
    PACKINGS,
    STRIP,
    Spec,
    make_spec,
    min_blocks,
    operand_key,
    operands,
    overlapping,
    sums_layout,
)
from kernels_numba.operands import columns_to_a


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: as `gradient_warp.build`, with the outer twiddles ``tables`` after the constants, and
    ``sums`` [units, N / parts, 2]; a unit is a channel, a share of its pairs and a part of its frequencies.
    """
    n2, n3, q = spec.n2, spec.n3, spec.q
    warps, halves, guarded, ring, parts = spec.warps, spec.halves, spec.guarded, spec.ring, spec.parts
    gated_in, gated_out, after = spec.pregate, spec.postgate, spec.gates_after
    in_registers, in_shared, tables_shared = (
        spec.sums == "registers",
        spec.sums == "shared",
        spec.tables_shared,
    )
    half, right, served = spec.sums == "half", spec.right_angle, spec.served
    reloaded = spec.reloaded
    rows, lanes, fold = spec.rows, spec.lanes, spec.fold
    t1, t2, j2, k3 = rows // 16, n2 // 16, n3 // 8, n3 // 16  # tiles of rows and columns
    in_tiles = spec.rows_in // 16
    my_strips, my_rows, my_sums = spec.strips // warps, spec.slots // warps, spec.kept // warps
    outer = rows // 8 * 4  # registers of the real parts of a packed strip
    inner = q // 64  # registers of the real parts of a packed inner matrix
    log_per_row = (n3 // 16).bit_length() - 1
    part_points = spec.kept * q  # of sums and of outer twiddles

    # Where things lie in shared memory.
    factor_part = rows * spec.rows_in // 2
    at_f2 = parts * factor_part
    at_f3 = at_f2 + n2 * n2 // 2
    at_t2 = at_f3 + n3 * n3 // 2
    constant_rounds = spec.factor_words // 128
    at_tables = spec.factor_words
    table_rounds = part_points // 128 if tables_shared else 0
    at_exchange = at_tables + (part_points if tables_shared else 0)
    exchange_words = spec.exchange_words
    at_sums = at_exchange + 2 * exchange_words
    at_stage = at_sums + (2 * part_points if in_shared else 0)
    es, es2, eb = spec.row_words, spec.pair_words, spec.row_pair_words
    slot_words = es2 if right else es  # from the k1 of an output of A to the next one's
    stage_words, sequence_words = spec.stage_words, spec.rows_in * STRIP // 2
    strip_words = 32 * rows // served  # of outer twiddles
    copy_rows, gate_at = tile.copy_pieces(copy_pieces(spec), halves, guarded=guarded), 4 * sequence_words

    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    barrier, warp_sync, commit = tile.barrier, tile.warp_sync, tile.commit
    turns_of, copy_constants, join = tile.opaque, tile.copy_words_async, tile.join
    wait_all, wait_strip, follow = tile.wait(0), tile.wait(ring - 1), tile.follow(overlap=spec.overlap)
    # A
    load_rows, gate = tile.load_shared(8 * in_tiles, 2), tile.multiply(8 * in_tiles)
    first_to_b, second_to_b = (tile.pair_halves(rows_to_b(spec, part)) for part in range(2))
    load_f1 = tile.load_shared(t1 * in_tiles * 4, 4)
    stage1, stage1_later = (  # later: of parts without a self-paired k1
        stages.first(tile, t1, 4, spec.rows_in, right_angle=right, paired=paired) for paired in (lanes, 0)
    )
    multiply_outer = tile.multiply_complex_shared(outer // 2) if right else tile.multiply_complex(outer)
    turned = outer // served
    pack_table, no_strip = tile.pack(2 * turned), tile.no_sums(turned)
    load_table_shared, load_table = tile.load_shared(2 * turned, 4), tile.load_global(2 * turned, 4)
    put_first = tile.store_shared_pieces(first_exchange_pieces(spec))
    # B
    get_first = tile.load_pieces(first_exchange_reads(spec), 4 * t2 * j2)
    load_f2, load_f3 = tile.load_shared(t2 * t2 * 4, 4), tile.load_shared(k3 * j2 * 2, 4)
    load_inner = tile.load_shared(2 * inner, 4)
    stage2 = stages.rows(tile, t2, j2, t2, inverse=False, halves=spec.rounded)
    stage3 = tile.dft_columns(t2, j2, k3, inverse=False)
    pack_inner, multiply_inner = tile.pack(2 * inner), tile.multiply_complex(inner)
    to_a = tile.select(columns_to_a(n2, n3))
    put_spectrum = tile.store_shared_pieces(
        tuple((0, 128 * i, tuple(range(4 * i, 4 * i + 4))) for i in range(inner // 2))
    )
    no_sums, correlate, store_sums = tile.no_sums(inner), tile.correlate(inner), tile.store_sums_global(inner)
    correlate_shared = tile.correlate_shared(inner)
    correlate_global = tile.correlate_global(inner, added=spec.sums == "added")
    clear = tile.store_shared_pieces(tuple((0, 128 * i, (0, 0, 0, 0)) for i in range(inner)))
    load_sums = tile.load_shared(4 * inner, 4)

    def kernel(
        u,
        pre,
        dy,
        post,
        words,
        tables,
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
        r = w
        while r < table_rounds:
            copy_constants(at_tables + r * 128 + c, tables, r * 128 + c)
            r = small(r + warps)
        commit()
        follow()
        wait_all()
        barrier()

        mine = small(at_stage + w * ring * stage_words)
        ring_end = small(ring * stage_words)
        # Where a lane reads its rows, and where its copies come from and go to: as in `fused_block`.
        read_at = small(mine + t * 16 + (((2 * (g & 1) + (g >> 2)) ^ (t >> 1)) << 2) + 2 * ((g >> 1) & 1))
        fold_part = small(divide(g, lanes))  # of the columns; 0 unless the outer factor is 8
        output = small(g - fold_part * lanes)
        first_put = small(at_exchange + output * slot_words + fold_part * (n2 // (2 * fold) * eb) + 8 * t)
        first_get = small(at_exchange + t * eb + 4 * g)
        copy_row = small((index * halves) >> 5)
        copy_column = small((index * halves) & 31)
        copy_from = small(copy_row * q + (copy_column >> 4) * n3 + (copy_column & 15))
        swap = small((copy_row & 3) >> 1)
        copy_to = small(32 * copy_row + (copy_column & 7))
        to0 = small(copy_to + (((copy_column >> 3) ^ swap) << 3))
        to1 = small(copy_to + (((copy_column >> 3) ^ swap ^ 1) << 3))

        my_strip = small(w * my_strips)
        end_strip = small(my_strip + turns_of(my_strips))
        end_sums = turns_of(my_sums)
        end_inner = turns_of(2 * my_rows)
        other_sequence = int64(channels) * length

        # Copies run `ring` strips ahead of the work, through sides (u, then dy), pairs and units.
        unit = small(block())
        turn = small(0 - ring)
        slot_at = small(0)
        copy_unit = unit
        share = small(divide(copy_unit, parts))
        copy_h = small(divide(share, shares))
        copy_p = small((share - copy_h * shares) * per_share)
        copy_end = small(min(copy_p + per_share, pairs))
        copy_side = small(0)
        copy_strip = my_strip
        while unit < units:
            share = small(divide(unit, parts))
            part = small(unit - share * parts)
            h = small(divide(share, shares))
            p = small((share - h * shares) * per_share)
            end = small(min(p + per_share, pairs))
            at_unit = int64(unit) * (2 * part_points) + c
            kept = no_sums()
            more = no_sums()
            blank = pack_inner(no_sums())
            k1 = small(0)
            while k1 < end_sums:
                slot = small(w * my_sums + k1)
                if in_shared:
                    at = small(at_sums + slot * (2 * q) + c)
                    clear(at, at, at, at, blank)
                elif not in_registers:
                    if not half or k1 > 0:
                        store_sums(sums, at_unit + slot * (2 * q), no_sums())
                k1 = small(k1 + 1)
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
                                shift = small(
                                    (strip >> log_per_row) * (2 * n3) + 16 * (strip & (n3 // 16 - 1))
                                )
                                e = small(copy_from + shift)
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
                                u1 = gate(u1, load_rows(at, 64))
                                u2 = gate(u2, load_rows(at + sequence_words, 64))
                            else:
                                u1 = gate(u1, load_rows(at + 2 * sequence_words, 64))
                                u2 = gate(u2, load_rows(at + 3 * sequence_words, 64))
                        x = join(first_to_b(u1), second_to_b(u2))
                        warp_sync()
                    if copy_unit < units:
                        shift = small(
                            (copy_strip >> log_per_row) * (2 * n3) + 16 * (copy_strip & (n3 // 16 - 1))
                        )
                        e = small(copy_from + shift)
                        base = (2 * int64(copy_p) * channels + copy_h) * length
                        for i in range(2):
                            into = small(2 * (mine + slot_at + i * sequence_words))
                            limit = small(length * (2 * copy_p + i < batch))
                            source = base + i * other_sequence
                            i0 = small(to0 + into)
                            i1 = small(to1 + into)
                            if copy_side == 0:
                                copy_rows(u, source, limit, e, i0, i1, i0, i1)
                                if gated_in and not after:
                                    copy_rows(
                                        pre,
                                        source,
                                        limit,
                                        e,
                                        i0 + gate_at,
                                        i1 + gate_at,
                                        i0 + gate_at,
                                        i1 + gate_at,
                                    )
                            else:
                                copy_rows(dy, source, limit, e, i0, i1, i0, i1)
                                if gated_out and not after:
                                    copy_rows(
                                        post,
                                        source,
                                        limit,
                                        e,
                                        i0 + gate_at,
                                        i1 + gate_at,
                                        i0 + gate_at,
                                        i1 + gate_at,
                                    )
                        copy_strip = small(copy_strip + copy_side)
                        copy_side = small(1 - copy_side)
                        if copy_strip == end_strip:
                            copy_strip = my_strip
                            copy_p = small(copy_p + 1)
                            if copy_p == copy_end:
                                copy_unit = small(copy_unit + workers)
                                share = small(divide(copy_unit, parts))
                                copy_h = small(divide(share, shares))
                                copy_p = small((share - copy_h * shares) * per_share)
                                copy_end = small(min(copy_p + per_share, pairs))
                    commit()
                    if turn >= 0:
                        factor = load_f1(part * factor_part + c, 128)
                        if parts == 1 or right:
                            z = stage1(factor, x)
                        elif part == 0:
                            z = stage1(factor, x)
                        else:
                            z = stage1_later(factor, x)
                        if side == 0 or reloaded:
                            if tables_shared:
                                table = load_table_shared(at_tables + strip * strip_words + c, 128)
                            else:
                                table = load_table(tables, part * part_points + strip * strip_words + c, 128)
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
                # ---- B: the inner stages of one k1 at a time, of u (side 0), then of dy
                inner_turn = small(0)
                while inner_turn < end_inner:
                    row = small(inner_turn >> 1)
                    side = small(inner_turn & 1)
                    k1 = row
                    slot = small(w * my_rows + row)
                    place = small(slot * es)
                    if right:  # of both sequences in turn
                        k1 = small(row >> 1)
                        place = small((slot >> 1) * es2 + (slot & 1) * es)
                    slot = small(w * my_sums + k1)
                    at = small(first_get + side * exchange_words + place)
                    x2 = get_first(at, at, at, at)
                    z2 = multiply_inner(stage2(load_f2(at_f2 + c, 128), x2), load_inner(at_t2 + c, 128))
                    spectrum = stage3(to_a(z2), load_f3(at_f3 + c, 128))
                    at = small(at_exchange + place + c)
                    if side == 0:
                        warp_sync()  # all lanes have read what is overwritten now
                        put_spectrum(at, at, at, at, pack_inner(spectrum))
                    else:
                        z3 = load_inner(at, 128)
                        if in_registers:
                            if k1 == 0:
                                kept = correlate(kept, z3, spectrum)
                            else:
                                more = correlate(more, z3, spectrum)
                        elif half and k1 == 0:
                            kept = correlate(kept, z3, spectrum)
                        elif in_shared:
                            correlate_shared(at_sums + slot * (2 * q) + c, z3, spectrum)
                        else:
                            correlate_global(sums, at_unit + slot * (2 * q), z3, spectrum)
                    inner_turn = small(inner_turn + 1)
                barrier()  # the exchanges are free again
                p = small(p + 1)
            if in_registers or half:
                store_sums(sums, at_unit + w * (my_sums * 2 * q), kept)
            if in_registers:
                if my_sums > 1:
                    store_sums(sums, at_unit + (w * my_sums + 1) * (2 * q), more)
            elif in_shared:
                k1 = small(0)
                while k1 < end_sums:
                    slot = small(w * my_sums + k1)
                    store_sums(sums, at_unit + slot * (2 * q), load_sums(at_sums + slot * (2 * q) + c, 128))
                    k1 = small(k1 + 1)
            unit = small(unit + workers)

    return kernel


SIGNATURE = ("HALVES",) * 4 + ("WORDS", "WORDS", "FLOATS") + ("INT",) * 8
"""Kinds of the kernel's arguments, for the compiler."""


def workers(spec: Spec) -> int:
    """Who takes units of work: the block as a whole."""
    return 1


__all__ = [
    "FACTORS",
    "PACKINGS",
    "build",
    "make_spec",
    "min_blocks",
    "operand_key",
    "operands",
    "overlapping",
    "sums_layout",
]
