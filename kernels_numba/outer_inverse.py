"""The inverse outer stage of a long convolution: rows of the workspace to samples; see `outer_stage.py`."""

from __future__ import annotations

from typing import Any

from kernels_numba.outer_pieces import (
    column_tiles,
    copied_pieces,
    exchange,
    flat,
    groups_at,
    listed_pieces,
    loaded_runs,
    matrices,
    result_runs,
    rounded_pieces,
    strip_pieces,
)
from kernels_numba.outer_spec import Spec, columns_of_lane, constant_words, scales


def build_inverse(tile: Any, spec: Spec) -> Any:
    """Rows of the workspace to samples.

    Arguments: halves ``z`` as in `outer_forward.build_forward`, halves ``post`` and ``post2``, words of the constants,
    float32 ``scales`` [group channels], halves ``y`` and ``out2``; then the integers of `outer_forward.build_forward`.
    """
    a, b, n2, strip, halves = spec.a, spec.b, spec.n2, spec.strip, spec.halves
    guarded, gated, scaled, single = spec.guarded, spec.postgate, spec.scaled, spec.b == 1
    twice = spec.twice
    tiles, warps, strips, row_words = column_tiles(spec), spec.warps, spec.strips, spec.row_words
    group_words, part_words, copied = spec.group_words, spec.part_words, spec.copied
    small, int64, divide = tile.small, tile.int64, tile.divide
    lane, warp, block = tile.lane, tile.warp, tile.block
    first = a if single else b  # contracted first
    pieces, read = strip_pieces(spec, first, n2 if single else a * n2)
    gather = tile.gather(pieces, read, strip // 8, guarded=False)
    # Where some rows are left out, each row of a lane has its place from a table.
    sparse, kept, at_places = spec.kept > 0, spec.rows_kept, constant_words(spec)
    load_place, load_mark, at_marks = tile.load_global(1, 1), tile.load_float, at_places + spec.n1
    listed, part = listed_pieces(spec)
    gather_listed, next_row = tile.gather(listed, part, strip // 8, guarded=True), 4 * (1 if single else a)
    widen, join = tile.widen(2 * read), tile.join
    loaded, order = loaded_runs(spec, first, 1 if single else a)
    turn = tile.turn_runs(tuple(loaded), 2 * read, points=spec.n, inverse=True, scale=scales(spec))
    pairs_of_rows = tile.select(tuple(order) + tuple(2 * read + i for i in order))
    pack = tile.pack(2 * read)
    load_first = tile.load_global(first * first // 64, 4)
    lower = spec.half_out
    dft_first = tile.dft_rows(
        first // 16, tiles, first // 16, inverse=True, self_paired=True, lower_half=lower and single
    )
    even, odd, _ = columns_of_lane(strip, single or copied)
    groups = groups_at(a, b)[: a // 16 if lower else a // 8]
    runs = result_runs(spec, groups, single)
    count = len(groups) * 2 * tiles
    ordered, pack_out, scale = tile.select(flat(runs, count)), tile.pack(count), tile.scale(2 * count)
    outputs = len(runs) * 4
    store_real = tile.store_pieces(rounded_pieces(runs, n2, 0), halves, guarded=guarded)
    store_imaginary = tile.store_pieces(rounded_pieces(runs, n2, outputs), halves, guarded=guarded)
    gather_gate = tile.gather(rounded_pieces(runs, n2, 0), outputs, halves, guarded=guarded)
    multiply, load_scale, one = tile.multiply(2 * outputs), tile.load_float, tile.one
    # Between two factors.
    at_second = first * first // 2
    at_turns = at_second + a * a // 2
    order_words, pack_words, put = exchange(tile, spec, first)
    nothing = tile.select_or_zero((-1,) * (first * strip // 32))
    load_turns, turn_rows = tile.load_global(first // 4, 2), tile.turn_rows(first // 8, 2 * tiles)
    load_rows, to_operand = matrices(tile, spec, a)
    load_second = tile.load_global(a * a // 64, 4)
    dft_second = tile.dft_rows(a // 16, tiles, a // 16, inverse=True, self_paired=True, lower_half=lower)
    copy = tile.copy_pieces(copied_pieces(spec, first, a * n2, 8), 8, guarded=False)
    load_copied, commit, wait = tile.load_shared(read, 4), tile.commit, tile.wait(0)
    barrier, opaque, warp_sync = tile.barrier, tile.opaque, tile.warp_sync
    per_block = warps if single else 1

    @tile.function
    def rows_listed(words, z, base, other, at, k):
        """Rows k + next_row, ... of both parts, where a list says that they lie."""
        o0 = small(load_place(words, at_places + k, 0)[0] * n2 + at)
        o1 = small(load_place(words, at_places + k + next_row, 0)[0] * n2 + at)
        o2 = small(load_place(words, at_places + k + 2 * next_row, 0)[0] * n2 + at)
        o3 = small(load_place(words, at_places + k + 3 * next_row, 0)[0] * n2 + at)
        real = gather_listed(z, base, kept * n2, o0, o1, o2, o3)
        imaginary = gather_listed(z, other, kept * n2, o0, o1, o2, o3)
        if first == 32:
            o0 = small(load_place(words, at_places + k + 4 * next_row, 0)[0] * n2 + at)
            o1 = small(load_place(words, at_places + k + 5 * next_row, 0)[0] * n2 + at)
            o2 = small(load_place(words, at_places + k + 6 * next_row, 0)[0] * n2 + at)
            o3 = small(load_place(words, at_places + k + 7 * next_row, 0)[0] * n2 + at)
            return join(
                join(real, gather_listed(z, base, kept * n2, o0, o1, o2, o3)),
                join(imaginary, gather_listed(z, other, kept * n2, o0, o1, o2, o3)),
            )
        else:
            return join(real, imaginary)

    def kernel(z, post, post2, words, scales, y, out2, pairs, batch, channels, group, length):
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
            base = (2 * int64(p) * group + h) * (kept * n2)
            other = base + int64(group) * (kept * n2)
            to = (2 * int64(p) * channels + h) * length
            other_to = to + int64(channels) * length
            second = small(length * (2 * p + 1 < batch))
            at = small(first_column + (g >> 1) * even + (g & 1) * odd)
            column = small(first_column + 8 * t)
            s = load_scale(scales, h) if scaled else one
            f1 = load_first(words, c, 128)
            if single:
                if sparse:
                    x = rows_listed(words, z, base, other, at, t)
                else:
                    o = small(at + t * n2)
                    x = join(gather(z, base, 0, o, o, o, o), gather(z, other, 0, o, o, o, o))
                x2 = dft_first(f1, pack(pairs_of_rows(turn(widen(x), t, t, t, at))))
                if scaled:
                    x2 = scale(x2, s)
                v = pack_out(ordered(x2))
                mirror = small((a - g) - (g == 0) * (a // 2))
                up = small(g * n2 + column)
                special = small(mirror * n2 + column)
                down = small((a - g) * n2 + column)
                if gated:
                    v1 = gather_gate(post, to, length, up, special, down, up)
                    v2 = gather_gate(post, other_to, second, up, special, down, up)
                    if twice:
                        v3 = gather_gate(post2, to, length, up, special, down, up)
                        v4 = gather_gate(post2, other_to, second, up, special, down, up)
                        again = multiply(v, join(v3, v4))
                    v = multiply(v, join(v1, v2))
                store_real(y, to, length, up, special, down, up, v)
                store_imaginary(y, other_to, second, up, special, down, up, v)
                if twice:
                    store_real(out2, to, length, up, special, down, up, again)
                    store_imaginary(out2, other_to, second, up, special, down, up, again)
            else:
                word = small(16 * (t >> 1) + 2 * (t & 1)) if strip == 64 and not copied else t
                if copied:
                    row0 = small(index >> 3)
                    column0 = small(8 * (index & 7))
                    read_at = small(t * group_words + 4 * (g >> 1) + 16 * (g & 1))
                    i = w
                    while i < a:
                        o = small((row0 * a + i) * n2 + first_column + column0)
                        here = small(2 * (row0 * group_words + i * row_words) + column0)
                        copy(z, base, 0, o, here, here, here, here)
                        here = small(here + 2 * part_words)
                        copy(z, other, 0, o, here, here, here, here)
                        i = small(i + warps)
                    commit()
                    wait()
                    warp_sync()
                up_at = small(g * group_words + word)
                special_at = small(((b - g) - (g == 0) * (b // 2)) * group_words + word)
                down_at = small((b - g) * group_words + word)
                i = w
                end = small(opaque(a))
                while i < end:
                    k = small(i + a * t)
                    if sparse:  # no row of this ka is kept
                        if load_mark(words, at_marks + i) == 0:
                            here = small(i * row_words)
                            zeros = nothing(load_place(words, at_places + t, 0))
                            put(up_at + here, special_at + here, down_at + here, here, zeros)
                            i = small(i + warps)
                            continue
                    if sparse:
                        x = rows_listed(words, z, base, other, at, k)
                    elif copied:
                        here = small(read_at + i * row_words)
                        real = load_copied(here, 4 * group_words)
                        x = join(real, load_copied(here + part_words, 4 * group_words))
                        warp_sync()
                    else:
                        o = small(at + k * n2)
                        x = join(gather(z, base, 0, o, o, o, o), gather(z, other, 0, o, o, o, o))
                    x2 = dft_first(f1, pack(pairs_of_rows(turn(widen(x), k, k, k, at))))
                    turned = turn_rows(x2, load_turns(words, at_turns + 2 * (i * b + g), 16))
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
                mirror = small((a - g) - (g == 0) * (a // 2))
                from_row = small((index & 15) * row_words + 4 * (index >> 4))
                i = w
                end = small(opaque(b))
                while i < end:
                    x2 = dft_second(f2, to_operand(load_rows(from_row + i * group_words)))
                    if scaled:
                        x2 = scale(x2, s)
                    v = pack_out(ordered(x2))
                    up = small((i + b * g) * n2 + column)
                    special = small((i + b * mirror) * n2 + column)
                    down = small((i + b * (a - g)) * n2 + column)
                    if gated:
                        v1 = gather_gate(post, to, length, up, special, down, up)
                        v2 = gather_gate(post, other_to, second, up, special, down, up)
                        if twice:
                            v3 = gather_gate(post2, to, length, up, special, down, up)
                            v4 = gather_gate(post2, other_to, second, up, special, down, up)
                            again = multiply(v, join(v3, v4))
                        v = multiply(v, join(v1, v2))
                    store_real(y, to, length, up, special, down, up, v)
                    store_imaginary(y, other_to, second, up, special, down, up, v)
                    if twice:
                        store_real(out2, to, length, up, special, down, up, again)
                        store_imaginary(out2, other_to, second, up, special, down, up, again)
                    i = small(i + warps)

    return kernel
