"""The fused convolution of any factors: a block carries two real sequences (or one, or a complex one) in shared memory.

For P = N1 .. Np points, a word of two halves each, stage i < p of the forward transform contracts n_i -> k_i on strips
of 16 columns, multiplies by e^(-2 pi i k_i m / (N_i .. Np)), m = n(i+1) .. np, and writes to where it read (decimation
in frequency; Gentleman and Sande 1966). The last stage contracts along the rows, 16 a unit, multiplies by the filter's
spectrum and goes straight back; the other stages follow in reverse. The inverse transform is the forward one of numbers
whose parts are exchanged, so that both have the same constants:

    swap(conj F z) = F swap(z),   swap(conj(w) z) = w swap(z),   swap(a + ib) = b + ia.

A factor is a real matrix [2 N_i, 2 N_i] between real and imaginary parts: plain products of any size, whose operands
the words are as they lie. Accumulators are float32 until twiddles or the spectrum are applied, and rounded once then.
Input is loaded, and multiplied by the first factor, while the item before is finished. `any_spec.py` says how a block
is made up, docs/kernels.md where points lie and what it costs. Some lists have faster kernels in families of their own.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.any_operands import operand_key, operands
from kernels_numba.any_operands import spectrum_of_plan as spectrum_layout
from kernels_numba.any_spec import (
    ACCEPTED,
    FACTORS,
    HELD_LAST,
    PACKINGS,
    Spec,
    make_spec,
    min_blocks,
    strips,
)
from kernels_numba.any_stage import Stage, input_pieces, output_order, output_pieces, words_of_rows


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: as `fused_block.build`; ``words`` holds the factors and ``tables`` the twiddles. Of complex
    sequences ``length`` is 2 L, and their parts are neighbours.
    """
    order, warps, single, half = len(spec.factors), spec.warps, spec.single, spec.half
    guarded, halves, complex_data = spec.guarded, spec.halves, spec.packing == "complex"
    gated_in, gated_out, twice, scaled = spec.pregate, spec.postgate, spec.twice, spec.scaled
    unit, sequences = (2, 1) if single else (1, 2)
    last, row_stride = spec.factors[-1], spec.layout.strides[-2]
    per_row, strides, steps = last // 16, spec.layout.strides, spec.layout.steps
    channel_words = spec.points * (2 if half else 1)

    # The stages before the last; of order 2 the second is the first again, and not compiled.
    s1, s2 = (Stage(tile, spec, i if i < order - 1 else 0) for i in range(2))
    strips1, strips2, rows1, rows2 = s1.strips, s2.strips, s1.rows_apart, s2.rows_apart
    in_table1, step1, step2, stride1, stride2 = s1.rows_in_table, s1.step, s2.step, s1.stride, s2.stride
    at_f1, at_f2, held1, held2 = s1.at, s2.at, s1.held, s2.held
    chunk1, chunk2, chunk_out, next1, next2, next_out = (
        s1.chunk,
        s2.chunk,
        s1.chunk_out,
        s1.next_chunk,
        s2.next_chunk,
        s1.next_out,
    )
    turns1, turns2, turns_out = s1.turns, s2.turns, s1.turns_out
    (hold1, times_held1, times1), (hold_out, times_held_out, times_out) = s1.forward, s1.inverse
    hold2, times_held2, times2 = s2.forward
    get1, get2, put1, put2 = s1.get, s2.get, s1.put, s2.put
    load_table1, load_table2, turn1, turn2 = s1.load_table, s2.load_table, s1.turn, s2.turn
    table2, at_units = spec.table_places[-2], spec.table_places[-1]

    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    barrier, warp_sync, commit, wait_all = tile.barrier, tile.warp_sync, tile.commit, tile.wait(0)
    turns_of, copy_constants, join, one, load_scale = (
        tile.opaque,
        tile.copy_words_async,
        tile.join,
        tile.one,
        tile.load_float,
    )
    shared_words, exchange_words = spec.shared_words, spec.layout.exchange_words

    # Input and output
    in_tiles = s1.in_tiles
    load = tile.gather(
        input_pieces(spec, in_tiles), (4 if single else 2) * in_tiles, min(halves, 2 * unit), guarded=guarded
    )
    in_words = 4 * in_tiles
    to_b = tile.pair_halves(
        tuple(
            (2 * k + r, 2 * in_tiles + 2 * k + r, n)
            for k in range(in_tiles)
            for n in range(2)
            for r in range(2)
        )
    )
    gate_in = tile.multiply(in_words if single else in_words // 2)
    widen, gate_complex = (
        tile.widen_words(in_words),
        tile.multiply_words(tuple((2 * i, 2 * i + 1) for i in range(in_words))),
    )
    out_words = (4 if single else 2) * chunk_out  # of one sequence
    wide_out = min(halves, 4 * unit)
    store = tile.store_pieces(output_pieces(spec, chunk_out, 0), wide_out, guarded=guarded)
    store_second = tile.store_pieces(output_pieces(spec, chunk_out, out_words), wide_out, guarded=guarded)
    load_gate = tile.gather(output_pieces(spec, chunk_out, 0), out_words, wide_out, guarded=guarded)
    in_order, pack_out = tile.select(output_order(spec, chunk_out)), tile.pack(4 * chunk_out)
    gate_out = tile.multiply(4 * chunk_out)
    scale = tile.scale(8 * chunk_out)
    gate_out_complex = tile.multiply_words(tuple((im, re) for re, im in words_of_rows(chunk_out)))

    # The last stage
    tiles, k_tiles = last // 4, last // 8
    shared_last = -last not in spec.cached
    held_last = shared_last and last <= HELD_LAST
    at_last = spec.constant_places[-last] + (exchange_words if shared_last else 0)
    # Registers of a lane's four neighbouring points of 16, of row g or 8 + g, in an A operand (contraction tile, half
    # of it, row), and in the order of accumulators (row, column tile).
    sixteens = [(h, a) for a in range(per_row) for h in range(2)]
    in_operand = {
        (h, a): tuple(4 * (2 * a + b // 2) + h + 2 * (b % 2) for b in range(4)) for h, a in sixteens
    }
    operand = tuple((h, 16 * a, in_operand[h, a]) for h, a in sixteens)
    get_rows, put_own = tile.load_pieces(operand, 2 * tiles), tile.store_shared_pieces(operand)
    put_rows = tile.store_shared_pieces(
        tuple((h, 16 * a, tuple(range(h * tiles + 4 * a, h * tiles + 4 * a + 4))) for h, a in sixteens)
    )
    hold_last = tile.load_shared(4 * tiles * k_tiles // 2, 4)
    by_contraction = tile.select(
        tuple(2 * (n * k_tiles + k) + r for k in range(k_tiles) for n in range(tiles) for r in range(2))
    )
    times_held_last = tile.mma(1, tiles, k_tiles)
    times_last = tile.columns_product(tiles, k_tiles, shared=shared_last)
    made = (2 * ((i % 2) * tiles + 2 * (i // 4) + i % 4 // 2) for i in range(2 * tiles))
    as_operand = tuple((register, register + 1) for register in made)
    load_spectrum = tile.load_global(2 * tiles, 4)
    filter_words = tile.multiply_words(as_operand, swap=True, planar=True)
    turn_rows = tile.multiply_words(tuple((2 * i, 2 * i + 1) for i in range(2 * tiles)))
    load_row_table = tile.load_global(tiles, 4)
    group_rows = spec.factors[-2] // 16  # units in a line of rows
    line_words = strides[0] if order > 2 else 0
    units, unit_words = strips(spec)[-1], 16 * last
    spectrum_words = unit_words * (2 if half else 1)
    to_words, pack_points = tile.select(tuple(i for pair in as_operand for i in pair)), tile.pack(2 * tiles)
    # Mirrors run backwards; those of the row of frequency 0, of which the first is apart, one at a time.
    mirrored = tuple((h, -16 * a - 3, in_operand[h, a][::-1]) for h, a in sixteens)
    mirrored_singly = tuple(
        (h + (2 if a == b == 0 else 0), -16 * a - b, (in_operand[h, a][b],))
        for h, a in sixteens
        for b in range(4)
    )
    get_mirrors, get_mirrors_singly = (tile.load_pieces(x, 2 * tiles) for x in (mirrored, mirrored_singly))
    multiply_mirror, load_places = tile.mirror_words(2 * tiles), tile.load_global(8, 4)
    q = steps[0]

    def kernel(
        u, pre, post, post2, spectrum, scales, words, tables, y, out2, items, each, pairs, batch, channels, length
    ):  # fmt: skip
        index = small(lane())
        w = small(warp())
        g = small(index >> 2)
        t = small(index & 3)
        c = small(4 * index)
        r = small(128 * w)
        while r < shared_words:
            copy_constants(exchange_words + r + c, words, r + c)
            r = small(r + 128 * warps)
        commit()
        wait_all()
        barrier()

        row = small((g >> 1) + 4 * (g & 1))  # of eight outputs
        # A lane's columns of a strip: two as an operand, four of the results.
        get_lane1 = small(2 * t * stride1 + 2 * g)
        get_lane2 = small(2 * t * stride2 + 2 * g)
        put_lane1 = small(row * stride1 + 4 * t)
        put_lane2 = small(row * stride2 + 4 * t)
        in_lane = small(unit * (2 * t * q + 2 * g))
        out_lane = small(unit * (row * q + 4 * t))
        table_lane1 = small(row * step1 + 4 * t)
        back_lane2 = small(row * step2 + 4 * t)
        table_lane2 = small(table2 + row * step2 + 4 * t)
        rows_lane = small(row * row_stride + 4 * t)
        rows_table = small(table2 + row * last + 4 * t)

        first = small(block() * each)
        end_item = small(min(first + each, items))
        h = small(divide(first, pairs))
        p = small(first - h * pairs)
        other_sequence = int64(channels) * length
        next_base = (sequences * int64(p) * channels + h) * length
        base = next_base
        next_second = small(length * (2 * p + 1 < batch))
        second = next_second
        s = one
        item = small(first - 1)
        while item < end_item:
            # ---- the first stage: back to samples, and the next item's forward
            there = item >= first
            more = small(item + 1) < end_item
            if scaled:
                s = load_scale(scales, h)
            if held1:
                f1 = hold1(at_f1 + c, at_f1, at_f1, at_f1)
                f1i = hold_out(at_f1 + c, at_f1, at_f1, at_f1)
            strip = w
            end_strip = small(turns_of(strips1))
            while strip < end_strip:
                o = small(divide(strip, per_row))
                column = small(16 * (strip - o * per_row))
                at = small(o * rows1 + column)
                m = small(o * in_table1 + column)
                if more:
                    e = small(in_lane + unit * m)
                    if single:
                        data = load(u, next_base, length, e, e, e, e)
                        if gated_in:
                            v = load(pre, next_base, length, e, e, e, e)
                            data = gate_complex(widen(data), v) if complex_data else gate_in(data, v)
                    else:
                        u1 = load(u, next_base, length, e, e, e, e)
                        u2 = load(u, next_base + other_sequence, next_second, e, e, e, e)
                        if gated_in:
                            u1 = gate_in(u1, load(pre, next_base, length, e, e, e, e))
                            u2 = gate_in(u2, load(pre, next_base + other_sequence, next_second, e, e, e, e))
                        data = to_b(join(u1, u2))
                if there:
                    z = get1(get_lane1 + at, at, at, at)
                    e = small(out_lane + unit * m)
                    turn = small(0)
                    while turn < turns_out:
                        if gated_out:
                            v = load_gate(post, base, length, e, e, e, e)
                            if not single:
                                v = join(v, load_gate(post, base + other_sequence, second, e, e, e, e))
                        if held1:
                            z1 = times_held_out(f1i, z)
                        else:
                            z1 = times_out(words, at_f1 + turn * next_out + c, z)
                        if scaled:
                            z1 = scale(z1, s)
                        if gated_out and complex_data:
                            out = gate_out_complex(z1, v)
                        else:
                            packed = pack_out(in_order(z1))
                            out = gate_out(packed, v) if gated_out else packed
                        store(y, base, length, e, e, e, e, out)
                        if not single:
                            store_second(y, base + other_sequence, second, e, e, e, e, out)
                        if twice:
                            v = load_gate(post2, base, length, e, e, e, e)
                            if not single:
                                v = join(v, load_gate(post2, base + other_sequence, second, e, e, e, e))
                            out = gate_out_complex(z1, v) if complex_data else gate_out(packed, v)
                            store(out2, base, length, e, e, e, e, out)
                            if not single:
                                store_second(out2, base + other_sequence, second, e, e, e, e, out)
                        e = small(e + unit * q * (8 * chunk_out))
                        turn = small(turn + 1)
                if more:
                    k = small(table_lane1 + m)
                    if turns1 == 1:
                        w1 = load_table1(tables, k, 8 * step1)
                warp_sync()
                if more:
                    to = small(put_lane1 + at)
                    turn = small(0)
                    while turn < turns1:
                        if held1:
                            x1 = times_held1(f1, data)
                        else:
                            x1 = times1(words, at_f1 + turn * next1 + c, data)
                        if turns1 > 1:
                            w1 = load_table1(tables, k, 8 * step1)
                        x1 = turn1(x1, w1)
                        put1(to, to, to, to, x1)
                        to = small(to + 8 * chunk1 * stride1)
                        k = small(k + 8 * chunk1 * step1)
                        turn = small(turn + 1)
                strip = small(strip + warps)
            item = small(item + 1)
            if item < end_item:
                h = small(divide(item, pairs))
                p = small(item - h * pairs)
                base = next_base
                second = next_second
                barrier()
                # ---- the stages between
                if order > 2:
                    if held2:
                        f2 = hold2(at_f2 + c, at_f2, at_f2, at_f2)
                    strip = w
                    end_strip = small(turns_of(strips2))
                    while strip < end_strip:
                        o = small(divide(strip, per_row))
                        column = small(16 * (strip - o * per_row))
                        at = small(o * rows2 + column)
                        k = small(table_lane2 + column)
                        if turns2 == 1:
                            w2 = load_table2(tables, k, 8 * step2)
                        x = get2(get_lane2 + at, at, at, at)
                        warp_sync()
                        to = small(put_lane2 + at)
                        turn = small(0)
                        while turn < turns2:
                            if held2:
                                x1 = times_held2(f2, x)
                            else:
                                x1 = times2(words, at_f2 + turn * next2 + c, x)
                            if turns2 > 1:
                                w2 = load_table2(tables, k, 8 * step2)
                            x1 = turn2(x1, w2)
                            put2(to, to, to, to, x1)
                            to = small(to + 8 * chunk2 * stride2)
                            k = small(k + 8 * chunk2 * step2)
                            turn = small(turn + 1)
                        strip = small(strip + warps)
                    barrier()
                # ---- the last stage, the filter, and back
                if held_last:
                    fp = by_contraction(hold_last(at_last + c, 128))
                k_at = int64(h) * channel_words + c
                strip = w
                end_strip = small(turns_of(units))
                while strip < end_strip:
                    if half:
                        places = load_places(tables, at_units + 256 * strip + c, 128)
                        at = small(places[0])
                        at2 = small(places[1])
                        k = small(table2 + places[2])
                        k2 = small(table2 + places[3])
                    else:
                        o = small(divide(strip, group_rows))
                        line = small(16 * (strip - o * group_rows))
                        at = small(rows_lane + o * line_words + line * row_stride)
                        at2 = small(at + 8 * row_stride)
                        k = small(rows_table + line * last)
                        k2 = small(k + 8 * last)
                    x = get_rows(at, at2, at, at)
                    from_k = k_at + strip * spectrum_words
                    a = load_spectrum(spectrum, from_k, 128)
                    turns = join(load_row_table(tables, k, 16), load_row_table(tables, k2, 16))
                    if held_last:
                        z1 = times_held_last(x, fp)
                    else:
                        z1 = times_last(words, at_last + c, x)
                    if half:
                        b = load_spectrum(spectrum, from_k + unit_words, 128)
                        x1 = pack_points(to_words(z1))
                        warp_sync()
                        put_own(at, at2, at, at, x1)
                        warp_sync()
                        if strip == 0:
                            mirror = get_mirrors_singly(places[4], places[5], places[6], places[7])
                        else:
                            mirror = get_mirrors(places[4], places[5], places[6], places[7])
                        x2 = multiply_mirror(x1, a, mirror, b)
                    else:
                        x2 = filter_words(z1, a)
                    if held_last:
                        z2 = times_held_last(x2, fp)
                    else:
                        z2 = times_last(words, at_last + c, x2)
                    x3 = turn_rows(z2, turns)
                    warp_sync()
                    put_rows(at, at2, at, at, x3)
                    strip = small(strip + warps)
                barrier()
                # ---- back through the stages between
                if order > 2:
                    if held2:
                        f2 = hold2(at_f2 + c, at_f2, at_f2, at_f2)
                    strip = w
                    end_strip = small(turns_of(strips2))
                    while strip < end_strip:
                        o = small(divide(strip, per_row))
                        column = small(16 * (strip - o * per_row))
                        at = small(o * rows2 + column)
                        k = small(back_lane2 + o * step1 + column)
                        if turns2 == 1:
                            w2 = load_table2(tables, k, 8 * step2)
                        x = get2(get_lane2 + at, at, at, at)
                        warp_sync()
                        to = small(put_lane2 + at)
                        turn = small(0)
                        while turn < turns2:
                            if held2:
                                x1 = times_held2(f2, x)
                            else:
                                x1 = times2(words, at_f2 + turn * next2 + c, x)
                            if turns2 > 1:
                                w2 = load_table2(tables, k, 8 * step2)
                            x1 = turn2(x1, w2)
                            put2(to, to, to, to, x1)
                            to = small(to + 8 * chunk2 * stride2)
                            k = small(k + 8 * chunk2 * step2)
                            turn = small(turn + 1)
                        strip = small(strip + warps)
                    barrier()
                following = small(item + 1)
                next_h = small(divide(following, pairs))
                next_p = small(following - next_h * pairs)
                next_base = (sequences * int64(next_p) * channels + next_h) * length
                next_second = small(length * (2 * next_p + 1 < batch))

    return kernel


SIGNATURE = ("HALVES",) * 4 + ("WORDS", "FLOATS", "WORDS", "WORDS") + ("HALVES",) * 2 + ("INT",) * 6
"""Kinds of the kernel's arguments, for the compiler."""


def workers(spec: Spec) -> int:
    """Who takes items: the block as a whole."""
    return 1


__all__ = [
    "ACCEPTED",
    "FACTORS",
    "PACKINGS",
    "build",
    "make_spec",
    "min_blocks",
    "operand_key",
    "operands",
    "spectrum_layout",
]
