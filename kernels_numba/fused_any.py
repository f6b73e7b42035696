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
from kernels_numba.any_stage import Stage, output_order, sample_pieces, words_of_columns


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: as `fused_block.build`; ``words`` holds the factors and ``tables`` the twiddles. Of complex
    sequences ``length`` is 2 L, and their parts are neighbours. Items go to blocks in turn, as there.
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
    strips1, strips2, stride1, stride2 = s1.strips, s2.strips, s1.stride, s2.stride
    at_f1, at_f2, held1, held2, hold1, hold2 = s1.at, s2.at, s1.held, s2.held, s1.hold, s2.hold
    chunk1, chunk2, chunk_out, next1, next2, next_out = (
        s1.chunk,
        s2.chunk,
        s1.chunk_out,
        s1.next_chunk,
        s2.next_chunk,
        s1.next_out,
    )
    turns1, turns2, turns_out, late = s1.turns, s2.turns, s1.turns_out, s1.late
    (take1, times_held1, times1), (take_out, times_held_out, times_out) = s1.forward, s1.inverse
    take2, times_held2, times2 = s2.forward
    get1, get2, put1, put2 = s1.get, s2.get, s1.put, s2.put
    load_table1, load_table2, turn1, turn2 = s1.load_table, s2.load_table, s1.turn, s2.turn
    next_strip1, next_strip2, padding = s1.next_strip, s2.next_strip, spec.layout.padding
    places = spec.table_places
    at_middle, at_back, at_rows, at_units = (places.get(x, 0) for x in ("middle", "back", "last", "places"))
    keep_middle, keep_rows = spec.one_table
    ways = order - 1  # how often the stages between and the last are gone through, the last one only first

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
    in_tiles, wide = s1.in_tiles, min(halves, 2 * unit)
    in_words = 4 * in_tiles
    load = tile.gather(sample_pieces(spec, in_tiles), 2 * unit * in_tiles, wide, guarded=guarded)
    to_words = tile.pair_halves(
        tuple((i, 2 * in_tiles + i, column) for i in range(2 * in_tiles) for column in range(2))
    )
    gate_in = tile.multiply(in_words if single else in_words // 2)
    widen, gate_complex = (
        tile.widen_words(in_words),
        tile.multiply_words(tuple((2 * i, 2 * i + 1) for i in range(in_words))),
    )
    out_words = 2 * unit * chunk_out  # of one sequence
    out_first, out_second = (sample_pieces(spec, chunk_out, at) for at in (0, out_words))
    store = tile.store_pieces(out_first, wide, guarded=guarded)
    store_second = tile.store_pieces(out_second, wide, guarded=guarded)
    load_gate = tile.gather(out_first, out_words, wide, guarded=guarded)
    in_order, pack_out = tile.select(output_order(spec, chunk_out)), tile.pack(4 * chunk_out)
    gate_out = tile.multiply(4 * chunk_out)
    scale = tile.scale(8 * chunk_out)
    gate_out_complex = tile.multiply_words(tuple((im, re) for re, im in words_of_columns(chunk_out)))

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
    times_last = tile.columns_product(tiles, k_tiles, stored=k_tiles, shared=shared_last)
    made = (2 * ((i % 2) * tiles + 2 * (i // 4) + i % 4 // 2) for i in range(2 * tiles))
    as_operand = tuple((register, register + 1) for register in made)
    load_spectrum = tile.load_global(2 * tiles, 4)
    filter_words = tile.turn_words(as_operand, swap=True)
    turn_rows = tile.turn_words(tuple((2 * i, 2 * i + 1) for i in range(2 * tiles)))
    load_row_table = tile.load_global(tiles, 4)
    group_rows = spec.factors[-2] // 16  # units in a line of rows
    line_words = strides[0] if order > 2 else 0
    units, unit_words = strips(spec)[-1], 16 * last
    spectrum_words = unit_words * (2 if half else 1)
    to_points, pack_points = tile.select(tuple(i for pair in as_operand for i in pair)), tile.pack(2 * tiles)
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

    def take(u, pre, base, apart, length, second, e):
        """A lane's part of a strip of an item's points; the second sequence lies ``apart`` from the first."""
        u1 = load(u, base, length, e, e, e, e)
        if gated_in:
            v = load(pre, base, length, e, e, e, e)
            if complex_data:
                u1 = gate_complex(widen(u1), v)
            else:
                u1 = gate_in(u1, v)
        if not single:
            u2 = load(u, base + apart, second, e, e, e, e)
            if gated_in:
                u2 = gate_in(u2, load(pre, base + apart, second, e, e, e, e))
            u1 = to_words(join(u1, u2))
        return u1

    take = tile.function(take)

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

        # Of a strip a lane has two columns; of a unit four points of two rows.
        lane1 = small(2 * t * stride1 + 2 * g)
        lane2 = small(2 * t * stride2 + 2 * g)
        sample_lane = small(unit * (2 * t * q + 2 * g))
        row = small((g >> 1) + 4 * (g & 1))
        rows_lane = small(row * row_stride + 4 * t)
        rows_table = small(at_rows + row * last + 4 * t)

        first, blocks = small(block()), small(divide(items + each - 1, each))
        h = small(divide(first, pairs))
        p = small(first - h * pairs)
        other_sequence = int64(channels) * length
        next_base = (sequences * int64(p) * channels + h) * length
        base = next_base
        next_second = small(length * (2 * p + 1 < batch))
        second = next_second
        s = one
        item = small(first - blocks)
        while item < items:
            # ---- the first stage: back to samples, and the next item's forward
            there = item >= first
            more = small(item + blocks) < items
            if scaled:
                s = load_scale(scales, h)
            if held1:
                f1 = hold1(at_f1 + c, 128)
            strip = w
            end_strip = small(turns_of(strips1))
            while strip < end_strip:
                m = small(16 * strip)
                at = small(lane1 + m + padding * divide(strip, per_row))
                e = small(sample_lane + unit * m)
                if more and not late:
                    data = take(u, pre, next_base, other_sequence, length, next_second, e)
                if there:
                    z = get1(at, at, at, at)
                    out_e = e
                    turn = small(0)
                    while turn < turns_out:
                        if gated_out:
                            v = load_gate(post, base, length, out_e, out_e, out_e, out_e)
                            if not single:
                                other = base + other_sequence
                                v = join(v, load_gate(post, other, second, out_e, out_e, out_e, out_e))
                        if held1:
                            z1 = times_held_out(z, take_out(f1))
                        else:
                            z1 = times_out(words, at_f1 + turn * next_out + c, z)
                        if scaled:
                            z1 = scale(z1, s)
                        if gated_out and complex_data:
                            out = gate_out_complex(z1, v)
                        else:
                            packed = pack_out(in_order(z1))
                            out = gate_out(packed, v) if gated_out else packed
                        store(y, base, length, out_e, out_e, out_e, out_e, out)
                        if not single:
                            store_second(y, base + other_sequence, second, out_e, out_e, out_e, out_e, out)
                        if twice:
                            v = load_gate(post2, base, length, out_e, out_e, out_e, out_e)
                            if not single:
                                other = base + other_sequence
                                v = join(v, load_gate(post2, other, second, out_e, out_e, out_e, out_e))
                            out = gate_out_complex(z1, v) if complex_data else gate_out(packed, v)
                            store(out2, base, length, out_e, out_e, out_e, out_e, out)
                            if not single:
                                other = base + other_sequence
                                store_second(out2, other, second, out_e, out_e, out_e, out_e, out)
                        out_e = small(out_e + unit * q * (8 * chunk_out))
                        turn = small(turn + 1)
                if more and late:
                    data = take(u, pre, next_base, other_sequence, length, next_second, e)
                if more:
                    k = small(c + next_strip1 * strip)
                    if turns1 == 1:
                        w1 = load_table1(tables, k, 128)
                warp_sync()
                if more:
                    turn = small(0)
                    while turn < turns1:
                        if held1:
                            x1 = times_held1(data, take1(f1))
                        else:
                            x1 = times1(words, at_f1 + turn * next1 + c, data)
                        if turns1 > 1:
                            w1 = load_table1(tables, k, 128)
                        x1 = turn1(x1, w1)
                        put1(at, at, at, at, x1)
                        at = small(at + 8 * chunk1 * stride1)
                        k = small(k + 128 * chunk1)
                        turn = small(turn + 1)
                strip = small(strip + warps)
            item = small(item + blocks)
            if item < items:
                h = small(divide(item, pairs))
                p = small(item - h * pairs)
                base = next_base
                second = next_second
                barrier()
                # ---- the stages between, forward, and after the last one back
                way = small(0)
                k_first = small(at_middle + c)
                skip = small(per_row)
                end_way = small(turns_of(ways)) if ways > 1 else 1
                while way < end_way:
                    if order > 2:
                        if held2:
                            f2 = hold2(at_f2 + c, 128)
                        if keep_middle and way == 0:
                            w2 = load_table2(tables, k_first, 128)
                        strip = w
                        end_strip = small(turns_of(strips2))
                        while strip < end_strip:
                            o = small(divide(strip, per_row))
                            at = small(lane2 + o * line_words + 16 * (strip - o * per_row))
                            k = small(k_first + next_strip2 * (strip - o * skip))
                            if turns2 == 1 and (way > 0 or not keep_middle):
                                w2 = load_table2(tables, k, 128)
                            x = get2(at, at, at, at)
                            warp_sync()
                            turn = small(0)
                            while turn < turns2:
                                if held2:
                                    x1 = times_held2(x, take2(f2))
                                else:
                                    x1 = times2(words, at_f2 + turn * next2 + c, x)
                                if turns2 > 1:
                                    w2 = load_table2(tables, k, 128)
                                x1 = turn2(x1, w2)
                                put2(at, at, at, at, x1)
                                at = small(at + 8 * chunk2 * stride2)
                                k = small(k + 128 * chunk2)
                                turn = small(turn + 1)
                            strip = small(strip + warps)
                        barrier()
                    way = small(way + 1)
                    k_first = small(at_back + c)
                    skip = small(0)
                    if way > 1:
                        continue
                    # ---- the last stage, the filter, and back
                    if held_last:
                        fp = by_contraction(hold_last(at_last + c, 128))
                    if keep_rows:
                        turns = join(
                            load_row_table(tables, rows_table, 16),
                            load_row_table(tables, rows_table + 8 * last, 16),
                        )
                    k_at = int64(h) * channel_words + c
                    strip = w
                    end_strip = small(turns_of(units))
                    while strip < end_strip:
                        if half:
                            unit_at = load_places(tables, at_units + 256 * strip + c, 128)
                            at = small(unit_at[0])
                            at2 = small(unit_at[1])
                            k = small(at_rows + unit_at[2])
                            k2 = small(at_rows + unit_at[3])
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
                        if not keep_rows:
                            turns = join(load_row_table(tables, k, 16), load_row_table(tables, k2, 16))
                        if held_last:
                            z1 = times_held_last(x, fp)
                        else:
                            z1 = times_last(words, at_last + c, x)
                        if half:
                            b = load_spectrum(spectrum, from_k + unit_words, 128)
                            x1 = pack_points(to_points(z1))
                            warp_sync()
                            put_own(at, at2, at, at, x1)
                            warp_sync()
                            if strip == 0:
                                mirror = get_mirrors_singly(unit_at[4], unit_at[5], unit_at[6], unit_at[7])
                            else:
                                mirror = get_mirrors(unit_at[4], unit_at[5], unit_at[6], unit_at[7])
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
                following = small(item + blocks)
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
