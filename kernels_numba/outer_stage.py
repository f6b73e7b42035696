"""The outer stages of a long convolution, which leave one fused kernel's work to do in every row.

A transform of N = N1 N2 points does not fit on chip, but N1 transforms of N2 points do. With z = u1 + i u2 (two real
sequences that share a filter) as a matrix [n1, n2], row-major,

    forward    Z[k1, n2] = w_N^(k1 n2) sum_n1 w_N1^(n1 k1) z[n1, n2]          for all k1, into the workspace
    inner      every row k1 is convolved on its circle of N2 points, with the bins k1 + N1 k2 of the filter
    inverse    y[n1, n2] = sum_k1 w_N1^(-n1 k1) w_N^(-k1 n2) Z[k1, n2]        out of the workspace

(the four-step FFT of Bailey 1990). The inner convolution is what the fused kernels do: real and imaginary parts are
two sequences of a pair. So device memory is crossed three times, and twice more by the intermediate.

A block takes a strip of columns of one pair. With N1 = A B (n1 = a B + b, k1 = ka + A kb) it contracts one factor for
each value of the other, exchanges through shared memory, and contracts the other; A alone needs no exchange. DFT
factors are used in cosine/sine form, as in `fused_warp`. Twiddles multiply float32 accumulators, so a value is rounded
once for each contraction; those of N points are computed where they are used, for no table of the length's size.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.outer_pieces import (
    column_tiles,
    copied_pieces,
    exchange,
    flat,
    groups_at,
    loaded_runs,
    matrices,
    result_runs,
    rounded_pieces,
    strip_pieces,
    to_b,
)
from kernels_numba.outer_spec import Spec, columns_of_lane, min_blocks, operand_key, operands, scales

VOCABULARY = "outer"


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``. Arguments: as :func:`_forward` or :func:`_inverse` say."""
    return (_inverse if spec.inverse else _forward)(tile, spec)


def _forward(tile: Any, spec: Spec) -> Any:
    """Samples to rows of the workspace.

    Arguments: halves ``u`` and ``pre`` [batch, channels, length] (from the group's first sequence on), words of the
    constants, halves ``z`` [2 pairs, group channels, N1, N2]; then pairs, batch and channels, the group's channels,
    and the length.
    """
    a, b, n1, n2, strip, halves = spec.a, spec.b, spec.n1, spec.n2, spec.strip, spec.halves
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
            to = (2 * int64(p) * group + h) * (n1 * n2)
            other_to = to + int64(group) * (n1 * n2)
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
                    x = dft_second(f2, to_operand(load_rows(from_row + i * group_words)))
                    up_row = small(i + a * g)
                    special_row = small(i + a * mirror)
                    down_row = small(i + a * (b - g))
                    y = pack(ordered(turn(x, up_row, special_row, down_row, column)))
                    up = small(up_row * n2 + column)
                    special = small(special_row * n2 + column)
                    down = small(down_row * n2 + column)
                    store_real(z, to, 0, up, special, down, up, y)
                    store_imaginary(z, other_to, 0, up, special, down, up, y)
                    i = small(i + warps)

    return kernel


def _inverse(tile: Any, spec: Spec) -> Any:
    """Rows of the workspace to samples.

    Arguments: halves ``z`` as in :func:`_forward`, halves ``post``, words of the constants, float32 ``scales`` [group],
    halves ``y``; then the integers of :func:`_forward`.
    """
    a, b, n1, n2, strip, halves = spec.a, spec.b, spec.n1, spec.n2, spec.strip, spec.halves
    guarded, gated, scaled, single = spec.guarded, spec.postgate, spec.scaled, spec.b == 1
    tiles, warps, strips, row_words = column_tiles(spec), spec.warps, spec.strips, spec.row_words
    group_words, part_words, copied = spec.group_words, spec.part_words, spec.copied
    small, int64, divide = tile.small, tile.int64, tile.divide
    lane, warp, block = tile.lane, tile.warp, tile.block
    first = a if single else b  # contracted first
    pieces, read = strip_pieces(spec, first, n2 if single else a * n2)
    gather = tile.gather(pieces, read, strip // 8, guarded=False)
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
    load_turns, turn_rows = tile.load_global(first // 4, 2), tile.turn_rows(first // 8, 2 * tiles)
    load_rows, to_operand = matrices(tile, spec, a)
    load_second = tile.load_global(a * a // 64, 4)
    dft_second = tile.dft_rows(a // 16, tiles, a // 16, inverse=True, self_paired=True, lower_half=lower)
    copy = tile.copy_pieces(copied_pieces(spec, first, a * n2, 8), 8, guarded=False)
    load_copied, commit, wait = tile.load_shared(read, 4), tile.commit, tile.wait(0)
    barrier, opaque, warp_sync = tile.barrier, tile.opaque, tile.warp_sync
    per_block = warps if single else 1

    def kernel(z, post, words, scales, y, pairs, batch, channels, group, length):
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
            base = (2 * int64(p) * group + h) * (n1 * n2)
            other = base + int64(group) * (n1 * n2)
            to = (2 * int64(p) * channels + h) * length
            other_to = to + int64(channels) * length
            second = small(length * (2 * p + 1 < batch))
            at = small(first_column + (g >> 1) * even + (g & 1) * odd)
            column = small(first_column + 8 * t)
            s = load_scale(scales, h) if scaled else one
            f1 = load_first(words, c, 128)
            if single:
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
                    v = multiply(v, join(v1, v2))
                store_real(y, to, length, up, special, down, up, v)
                store_imaginary(y, other_to, second, up, special, down, up, v)
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
                    if copied:
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
                        v = multiply(v, join(v1, v2))
                    store_real(y, to, length, up, special, down, up, v)
                    store_imaginary(y, other_to, second, up, special, down, up, v)
                    i = small(i + warps)

    return kernel


FORWARD_SIGNATURE = ("HALVES", "HALVES", "WORDS", "HALVES") + ("INT",) * 5
INVERSE_SIGNATURE = ("HALVES", "HALVES", "WORDS", "FLOATS", "HALVES") + ("INT",) * 5

__all__ = ["FORWARD_SIGNATURE", "INVERSE_SIGNATURE", "build", "min_blocks", "operand_key", "operands"]
