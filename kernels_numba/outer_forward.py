"""The forward outer stage of a long convolution: samples to rows of the workspace; see `outer_stage.py`."""

from __future__ import annotations

from typing import Any

from kernels_numba.outer_pieces import (
    column_tiles,
    copied_pieces,
    exchange,
    flat,
    group_pieces,
    groups_at,
    matrices,
    result_runs,
    rounded_pieces,
    strip_pieces,
    to_b,
)
from kernels_numba.outer_spec import Spec, columns_of_lane, constant_words, scales


def build_forward(tile: Any, spec: Spec) -> Any:
    """Samples to rows of the workspace.

    Arguments: halves ``u`` and ``pre`` [batch, channels, length] (from the group's first sequence on), words of the
    constants, halves ``z`` [2 pairs, group channels, N1, N2]; then pairs, batch and channels, the group's channels,
    and the length.
    """
    a, b, n2, strip, halves = spec.a, spec.b, spec.n2, spec.strip, spec.halves
    guarded, gated, single = spec.guarded, spec.pregate, spec.b == 1
    tiles, warps, strips, row_words = column_tiles(spec), spec.warps, spec.strips, spec.row_words
    group_words, part_words, copied = spec.group_words, spec.part_words, spec.copied
    rows_in = spec.rows_in
    small, int64, divide = tile.small, tile.int64, tile.divide
    lane, warp, block = tile.lane, tile.warp, tile.block
    pieces, read = strip_pieces(spec, rows_in, b * n2)
    gather = tile.gather(pieces, read, min(halves, strip // 8), guarded=guarded)
    multiply, join = tile.multiply(read), tile.join
    pairs_of_rows = tile.pair_halves(tuple(to_b(spec, rows_in)))
    load_first = tile.load_global(a * rows_in // 64, 4)
    dft_first = tile.dft_rows(a // 16, tiles, rows_in // 16, inverse=False, self_paired=True)
    even, odd, _ = columns_of_lane(strip, single or copied)
    last = a if single else b
    runs = result_runs(spec, groups_at(last, 1 if single else a), single)
    count = last * strip // 32  # accumulators of a part
    turn = tile.turn_runs(tuple(runs), count, points=spec.n, inverse=False, scale=scales(spec))
    ordered, pack = tile.select(flat(runs, count)), tile.pack(count)
    outputs = len(runs) * 4
    store_real = tile.store_pieces(rounded_pieces(runs, n2, 0), 8, guarded=False)
    store_imaginary = tile.store_pieces(rounded_pieces(runs, n2, outputs), 8, guarded=False)
    # Where some rows are left out, each row group of a lane has its place from a table.
    sparse, kept, at_places = spec.kept > 0, spec.rows_kept, constant_words(spec)
    load_place, load_mark, at_marks = tile.load_global(1, 1), tile.load_float, at_places + spec.n1
    put_real = tile.store_pieces(group_pieces(runs, 0), 8, guarded=True)
    put_imaginary = tile.store_pieces(group_pieces(runs, outputs), 8, guarded=True)
    below = 8 * (1 if single else a)  # from a row group to the next
    four = last == 32
    # Between two factors.
    at_second = a * rows_in // 2
    second_tiles = max(b // 16, 1)
    at_turns = at_second + b * b // 2
    order_words, pack_words, put = exchange(tile, spec, a)
    load_turns, turn_rows = tile.load_global(a // 4, 2), tile.turn_rows(a // 8, 2 * tiles)
    load_rows, to_operand = matrices(tile, spec, 16 * second_tiles)
    load_second = tile.load_global(4 * second_tiles**2, 4)
    dft_second = tile.dft_rows(second_tiles, tiles, second_tiles, inverse=False, self_paired=True)
    copy = tile.copy_pieces(copied_pieces(spec, rows_in, b * n2, halves), halves, guarded=guarded)
    load_copied, commit, wait = tile.load_shared(read, 4), tile.commit, tile.wait(0)
    barrier, opaque, warp_sync = tile.barrier, tile.opaque, tile.warp_sync
    per_block = warps if single else 1

    def kernel(u, pre, words, z, pairs, batch, channels, group, length):
        index = small(lane())
        w = small(warp())
        g = small(index >> 2)
        t = small(index & 3)
        c = small(4 * index)
        item = small(block() * per_block)
        if single:
            item = small(item + w)
        row = small(divide(item, strips))
        first_column = small((item - row * strips) * strip)
        h = small(divide(row, pairs))
        p = small(row - h * pairs)
        if h < group:
            base = (2 * int64(p) * channels + h) * length
            other = base + int64(channels) * length
            second = small(length * (2 * p + 1 < batch))
            at = small(first_column + (g >> 1) * even + (g & 1) * odd)
            to = (2 * int64(p) * group + h) * (kept * n2)
            other_to = to + int64(group) * (kept * n2)
            column = small(first_column + 8 * t)
            f1 = load_first(words, c, 128)
            if single:
                o = small(at + t * n2)
                u1 = gather(u, base, length, o, o, o, o)
                u2 = gather(u, other, second, o, o, o, o)
                if gated:
                    u1 = multiply(u1, gather(pre, base, length, o, o, o, o))
                    u2 = multiply(u2, gather(pre, other, second, o, o, o, o))
                x = dft_first(f1, join(pairs_of_rows(u1), pairs_of_rows(u2)))
                mirror = small((a - g) - (g == 0) * (a // 2))
                y = pack(ordered(turn(x, g, mirror, small(a - g), column)))
                if sparse:
                    o0 = small(load_place(words, at_places + g, 0)[0] * n2 + column)
                    o1 = small(load_place(words, at_places + mirror, 0)[0] * n2 + column)
                    o2 = o1
                    o3 = o1
                    if four:
                        o2 = o1
                        o1 = small(load_place(words, at_places + g + below, 0)[0] * n2 + column)
                        o3 = small(load_place(words, at_places + (a - g) - below, 0)[0] * n2 + column)
                    put_real(z, to, kept * n2, o0, o1, o2, o3, y)
                    put_imaginary(z, other_to, kept * n2, o0, o1, o2, o3, y)
                else:
                    up = small(g * n2 + column)
                    special = small(mirror * n2 + column)
                    down = small((a - g) * n2 + column)
                    store_real(z, to, 0, up, special, down, up, y)
                    store_imaginary(z, other_to, 0, up, special, down, up, y)
            else:
                word = small(16 * (t >> 1) + 2 * (t & 1)) if strip == 64 and not copied else t
                if copied:
                    row0 = small((index * halves) >> 6)
                    column0 = small((index * halves) & 63)
                    read_at = small(t * group_words + 4 * (g >> 1) + 16 * (g & 1))
                    i = w
                    while i < b:
                        o = small((row0 * b + i) * n2 + first_column + column0)
                        here = small(2 * (row0 * group_words + i * row_words) + column0)
                        copy(u, base, length, o, here, here, here, here)
                        here = small(here + 2 * part_words)
                        copy(u, other, second, o, here, here, here, here)
                        i = small(i + warps)
                    commit()
                    wait()
                    warp_sync()
                up_at = small(g * group_words + word)
                special_at = small(((a - g) - (g == 0) * (a // 2)) * group_words + word)
                down_at = small((a - g) * group_words + word)
                i = w
                end = small(opaque(b))
                while i < end:
                    o = small(at + (t * b + i) * n2)
                    if copied:
                        u1 = load_copied(read_at + i * row_words, 4 * group_words)
                        u2 = load_copied(read_at + part_words + i * row_words, 4 * group_words)
                        warp_sync()
                    else:
                        u1 = gather(u, base, length, o, o, o, o)
                        u2 = gather(u, other, second, o, o, o, o)
                    if gated:
                        u1 = multiply(u1, gather(pre, base, length, o, o, o, o))
                        u2 = multiply(u2, gather(pre, other, second, o, o, o, o))
                    x = dft_first(f1, join(pairs_of_rows(u1), pairs_of_rows(u2)))
                    turned = turn_rows(x, load_turns(words, at_turns + 2 * (i * a + g), 16))
                    here = small(i * row_words)
                    put(
                        up_at + here,
                        special_at + here,
                        down_at + here,
                        here,
                        pack_words(order_words(turned)),
                    )
                    i = small(i + warps)
                barrier()
                f2 = load_second(words, at_second + c, 128)
                mirror = small((b - g) - (g == 0) * (b // 2))
                from_row = small((index & 15) * row_words + 4 * (index >> 4))
                i = w
                end = small(opaque(a))
                while i < end:
                    if sparse:  # no row of this ka is kept
                        if load_mark(words, at_marks + i) == 0:
                            i = small(i + warps)
                            continue
                    x = dft_second(f2, to_operand(load_rows(from_row + i * group_words)))
                    up_row = small(i + a * g)
                    special_row = small(i + a * mirror)
                    down_row = small(i + a * (b - g))
                    y = pack(ordered(turn(x, up_row, special_row, down_row, column)))
                    if sparse:
                        o0 = small(load_place(words, at_places + up_row, 0)[0] * n2 + column)
                        o1 = small(load_place(words, at_places + special_row, 0)[0] * n2 + column)
                        o2 = o1
                        o3 = o1
                        if four:
                            o2 = o1
                            o1 = small(load_place(words, at_places + up_row + below, 0)[0] * n2 + column)
                            o3 = small(load_place(words, at_places + down_row - below, 0)[0] * n2 + column)
                        put_real(z, to, kept * n2, o0, o1, o2, o3, y)
                        put_imaginary(z, other_to, kept * n2, o0, o1, o2, o3, y)
                    else:
                        up = small(up_row * n2 + column)
                        special = small(special_row * n2 + column)
                        down = small(down_row * n2 + column)
                        store_real(z, to, 0, up, special, down, up, y)
                        store_imaginary(z, other_to, 0, up, special, down, up, y)
                    i = small(i + warps)

    return kernel
