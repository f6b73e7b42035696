"""The fused order-2 convolution on warpgroups: four warps carry two real sequences, products by ``wgmma``.

With N = N1 N2, N1 = 64, and a pair of real sequences z = u1 + i u2 as a matrix [n1, n2] (row-major), four warps do

    1. Z[k1, n2]  = sum_n1 F1[k1, n1] z[n1, n2]        both operands from shared memory; times the twiddle w^(k1 n2)
    2. Z[k1, k2]  = sum_n2 Z[k1, n2] F2[n2, k2]        data from registers; times the filter's spectrum
    3. Y[k1, n2]  = sum_k2 Z[k1, k2] conj F2[k2, n2]   data from registers; times the inverse twiddle; to shared memory
    4. y[n1, n2]  = sum_k1 conj F1[n1, k1] Y[k1, n2]   both operands from shared memory

The tensor cores of compute capability 9.0 read an operand from shared memory in place, in either orientation: input
goes from its copy straight into the first product, and constants cost no instruction. A warp holds 16 whole rows of
every product, so stages 2 and 3 stay in its registers, and one exchange is left, before stage 4.

DFT factors in cosine/sine form and permutations as constants are as in `fused_warp` and docs/kernels.md.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.group_operands import WARPS, operand_key, operands
from kernels_numba.group_operands import spectrum_of_plan as spectrum_layout
from kernels_numba.group_spec import CAPABILITY, CORE_WORDS, FACTORS, PACKINGS, Spec, make_spec, min_blocks
from kernels_numba.operands import columns_to_a
from kernels_numba.tile.layout import SLICE_TILES


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: as `fused_warp.build`, with the twiddles ``tables`` after the constants; items are dealt to
    teams, ``each`` each.
    """
    n1, n2, n = spec.n1, spec.n2, spec.n
    teams, halves, guarded, ring = spec.teams, spec.halves, spec.guarded, spec.ring
    gated_in, gated_out, twice = spec.pregate, spec.postgate, spec.twice
    in_shared, scaled, turned = spec.tables_shared, spec.scaled, spec.right_angle
    warps, keep = spec.warps, spec.keep
    exchange_column = spec.exchange_rows // 8 * CORE_WORDS
    packed = n2 // 4  # registers of the real parts of a warp's 16 rows, packed
    row_groups = 1 if spec.rows_out < n1 else 2
    kept = packed * row_groups // 2
    tiles, log_columns, column_mask = n2 // 8, n2.bit_length() - 1, n2 - 1
    my_rows = spec.rows_in // WARPS  # that a warp copies

    # Where things lie in shared memory.
    at_f1 = 0
    at_f2 = at_f1 + spec.exchange_rows * spec.rows_in // 2
    at_f2i = at_f2 + n2 * n2 // 2
    at_f1i = at_f2i + n2 * n2 // 2
    at_tables = spec.factor_words
    constant_rounds = spec.factor_words // 128
    table_rounds = 2 * n // 128 if in_shared else 0
    at_teams = at_tables + (2 * n if in_shared else 0)
    stage_words, team_words, pre_at = spec.stage_words, spec.team_words, spec.pair_words
    column_words = spec.column_words
    part_words = min(tiles, SLICE_TILES) * column_words
    my_words = my_rows // 8 * CORE_WORDS
    at_exchange = ring * stage_words

    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    barrier, commit, wait_all = tile.barrier, tile.commit, tile.wait(0)
    meet, fence, follow = tile.team_barrier(WARPS), tile.fence_async, tile.follow(overlap=spec.overlap)
    copy_constants = tile.copy_words_async
    copy_rows = tile.copy_pieces(_copy_pieces(spec, halves), halves, guarded=guarded)
    gate_pieces = tuple(
        (0, to // 2, tuple(range(4 * i, 4 * i + 4))) for i, (_, to, _) in enumerate(_copy_pieces(spec, 8))
    )
    load_rows, store_rows = (
        tile.load_pieces(gate_pieces, 4 * len(gate_pieces)),
        tile.store_shared_pieces(gate_pieces),
    )
    gate_in = tile.multiply(4 * len(gate_pieces))
    twiddled = "shared" if in_shared else "global"
    in_rows = {"along": 4 * CORE_WORDS, "across": 4 * column_words}
    out_rows = {"along": 4 * CORE_WORDS, "across": 4 * exchange_column}
    spectral = "registers" if keep else "global"
    if turned:
        to_parts = tile.group_to_parts_times(n2, spec.rows_in // 16, table=twiddled, **in_rows)
        stage2, stage3 = (
            tile.group_dft_columns_of_both(n2, n2 // 16, inverse=bool(i), table=table)
            for i, table in enumerate((spectral, twiddled))
        )
        stage4 = tile.group_from_parts(n2, spec.exchange_rows // 16, **out_rows)
    else:
        stage1 = tile.group_dft_rows_times(
            n2, spec.rows_in // 16, inverse=False, self_paired=True, table=twiddled, **in_rows
        )
        stage2, stage3 = (
            tile.group_dft_columns_times(n2, n2 // 16, inverse=bool(i), table=table)
            for i, table in enumerate((spectral, twiddled))
        )
        stage4 = tile.group_dft_rows(n2, n1 // 16, inverse=True, lower_half=spec.rows_out < n1, **out_rows)
    to_a = tile.select(_columns_to_a(spec))
    load_words = tile.load_global(2 * packed, 4)
    prefetch = tile.prefetch
    at_forward = at_tables if in_shared else 0
    at_inverse = at_forward + n
    load_scale, one = tile.load_float, tile.one
    put = tile.store_matrices(_exchange_pieces(spec))
    scale, gate_out, join = tile.scale(4 * kept), tile.multiply(2 * kept), tile.join
    # The mirrored columns run backwards: their halves swap while rounding, their registers are stored backwards.
    pack_out = tile.pack(2 * kept, swap=tuple(i for i in range(2 * kept) if i % tiles >= tiles // 2))
    wide = min(halves, n2 // 8)
    store_real = tile.store_pieces(_output_pieces(spec, 0), wide, guarded=guarded)
    store_imaginary = tile.store_pieces(_output_pieces(spec, kept), wide, guarded=guarded)
    gather_gate = tile.gather(_output_pieces(spec, 0), kept, wide, guarded=guarded)

    def kernel(
        u, pre, post, post2, spectrum, scales, words, tables, y, out2, items, each, pairs, batch, channels, length
    ):  # fmt: skip
        index = small(lane())
        w = small(warp())
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
        fence()
        barrier()

        team = small(w >> 2)
        w = small(w & 3)
        g = small(index >> 2)
        t = small(index & 3)
        mine = small(at_teams + team * team_words)
        exchange = small(mine + at_exchange)
        # Rows of core matrices that this lane stores: matrix index / 8 of four, row index mod 8.
        put_at = small(exchange + w * (2 * CORE_WORDS) + (index >> 3) * exchange_column + (index & 7) * 4)
        # Where this lane's copies come from and go to; see `_copy_pieces`.
        e = small(index * halves)
        row = small(index & 7 if halves == 8 else e >> log_columns)
        column = small(index - row if halves == 8 else e & column_mask)
        place = small((column >> 3) + (column >> 5) * SLICE_TILES)  # see `_column_place`
        copy_to = small(w * (2 * my_words) + row * 8 + place * (2 * column_words) + (column & 7))
        copy_from = small((w * my_rows + row) * n2 + column)
        row = small(index & 7)
        gate_at = small(w * my_words + row * 4 + (index >> 3) * column_words)
        up = small(((16 if turned else 8) * w + g) * n2)
        down = small(up + 8 * n2 if turned else (n1 - 1 - 8 * w - g) * n2)
        left = small((n2 >> 3) * t)
        right = small(n2 - (n2 >> 3) - left)
        alone = small((w == 0) & (g == 0))  # row 0 of the first stage
        my_table = small(w * (16 * n2) + c)
        my_line = small((w * 32 + index) * 32 & (n - 1))

        # Teams take turns, so that they share a channel's spectrum in the caches.
        first = small(block() * teams * each + team)
        last = small(min(block() * teams * each + teams * each, items))
        if first < last:
            h = small(divide(first, pairs))
            p = small(first - h * pairs)
            other_sequence = int64(channels) * length
            if keep:
                k = load_words(spectrum, int64(h) * n + my_table, 128)
                prefetch(spectrum, int64(h + 1) * n + my_line, h + 1 < channels)
            s = load_scale(scales, h) if scaled else one
            # Copies run ahead of the work: the first pair's are started here, every other's during the one before it.
            base = (2 * int64(p) * channels + h) * length
            for i in range(2):
                end = small(length * (2 * p + i < batch))
                source = base + i * other_sequence
                to = small(2 * (mine + i * part_words) + copy_to)
                copy_rows(u, source, end, copy_from, to, to, to, to)
                if gated_in:
                    to = small(to + 2 * pre_at)
                    copy_rows(pre, source, end, copy_from, to, to, to, to)
            commit()
            wait_all()
            fence()
            item = first
            slot = small(0)
            while item < last:
                next_p = small(p + teams)
                next_h = h
                while next_p >= pairs:
                    next_p = small(next_p - pairs)
                    next_h = small(next_h + 1)
                base = (2 * int64(p) * channels + h) * length
                at = small(mine + slot * stage_words)
                meet(team)
                if gated_in:
                    for i in range(2):
                        x = small(at + i * part_words + gate_at)
                        v = small(x + pre_at)
                        store_rows(x, x, x, x, gate_in(load_rows(x, x, x, x), load_rows(v, v, v, v)))
                    fence()
                    meet(team)
                if turned:
                    z1 = to_parts(at_f1, at, tables, at_forward + my_table)
                else:
                    z1 = stage1(at_f1, at, tables, at_forward + my_table, alone)
                if ring == 1:
                    meet(team)
                else:
                    slot = small(1 - slot)
                if item + teams < last:
                    buffer = small(2 * (mine + slot * stage_words) + copy_to)
                    next_base = (2 * int64(next_p) * channels + next_h) * length
                    for i in range(2):
                        end = small(length * (2 * next_p + i < batch))
                        source = next_base + i * other_sequence
                        to = small(buffer + i * (2 * part_words))
                        copy_rows(u, source, end, copy_from, to, to, to, to)
                        if gated_in:
                            to = small(to + 2 * pre_at)
                            copy_rows(pre, source, end, copy_from, to, to, to, to)
                commit()
                if keep:
                    z2 = stage2(to_a(z1), at_f2, k, 0)
                else:
                    z2 = stage2(to_a(z1), at_f2, spectrum, int64(h) * n + my_table)
                put(put_at, stage3(to_a(z2), at_f2i, tables, at_inverse + my_table))
                fence()
                meet(team)
                other = base + other_sequence
                limit = small(length * (2 * p + 1 < batch))
                y4 = stage4(at_f1i, exchange)
                y5 = pack_out(scale(y4, s)) if scaled else pack_out(y4)
                if gated_out:
                    gate1 = gather_gate(post, base, length, up + left, up + right, down + left, down + right)
                    gate2 = gather_gate(post, other, limit, up + left, up + right, down + left, down + right)
                    if twice:
                        gate3 = gather_gate(
                            post2, base, length, up + left, up + right, down + left, down + right
                        )
                        gate4 = gather_gate(
                            post2, other, limit, up + left, up + right, down + left, down + right
                        )
                        y6 = gate_out(y5, join(gate3, gate4))
                    y5 = gate_out(y5, join(gate1, gate2))
                # The next pair has arrived by now; after the stores the fence would wait for them too.
                wait_all()
                fence()
                store_real(y, base, length, up + left, up + right, down + left, down + right, y5)
                store_imaginary(y, other, limit, up + left, up + right, down + left, down + right, y5)
                if twice:
                    store_real(out2, base, length, up + left, up + right, down + left, down + right, y6)
                    store_imaginary(out2, other, limit, up + left, up + right, down + left, down + right, y6)
                item = small(item + teams)
                if (keep or scaled) and next_h != h and item < last:
                    if keep:
                        k = load_words(spectrum, int64(next_h) * n + my_table, 128)
                        prefetch(spectrum, int64(next_h + 1) * n + my_line, next_h + 1 < channels)
                    if scaled:
                        s = load_scale(scales, next_h)
                h = next_h
                p = next_p

    return kernel


def _copy_pieces(spec: Spec, halves: int) -> Any:
    """A warp's copies of its rows of one sequence: each brings 32 times ``halves`` elements.

    Copies of 16 bytes bring eight rows of 32 columns: eight lanes then write one core matrix, which takes one pass over
    the banks. (An asynchronous copy takes a pass for every 128 bytes of shared memory that it touches, whatever the
    banks.) Narrower ones bring what is contiguous in the input.
    """
    step = 32 * halves
    pieces = []
    for start in range(0, spec.rows_in // WARPS * spec.n2, step):
        row, column = divmod(start, spec.n2)
        if halves == 8:
            row, column = row // 8 * 8, (start - row // 8 * 8 * spec.n2) // 8
        at = _column_place(column // 8) * spec.column_words + row // 8 * CORE_WORDS + row % 8 * 4
        pieces.append((0, 2 * at, row * spec.n2 + column))
    return tuple(pieces)


def _column_place(tile: int) -> int:
    """Where a column tile of the real parts lies, counted in column tiles: imaginary parts follow each slice."""
    return tile + tile // SLICE_TILES * SLICE_TILES


def _columns_to_a(spec: Spec) -> tuple[int, ...]:
    """A warp's complex rows as the left operand of a contraction of columns; of right-angle packing both sequences'."""
    one = columns_to_a(16, spec.n2)
    return tuple(i * len(one) + r for i in range(2 if spec.right_angle else 1) for r in one)


def _exchange_pieces(spec: Spec) -> Any:
    """Four neighbouring core matrices of a row group at a time, real parts, then imaginary parts.

    Imaginary parts are columns beside the real ones; of right-angle packing, whose second sequence is beside the
    first, they are rows below, since both are contracted.
    """
    tiles, packed = spec.n2 // 8, spec.n2 // 4
    width, column = min(tiles, SLICE_TILES), spec.exchange_rows // 8 * CORE_WORDS
    beside = (0, spec.n1 // 8 * CORE_WORDS) if spec.right_angle else (0, width * column)
    return tuple(
        (
            (_column_place(j) + sequence * width) * column + beside[part] + group * CORE_WORDS,
            tuple((2 * sequence + part) * packed + group * tiles + j + i for i in range(4)),
        )
        for sequence in range(2 if spec.right_angle else 1)
        for part in range(2)
        for group in range(2)
        for j in range(0, tiles, 4)
    )


def _output_pieces(spec: Spec, first_register: int) -> Any:
    """Where a lane's outputs lie: (lane offset, 0, registers).

    Lane offsets 0 and 1 are a row's left and right part, 2 and 3 the mirrored row's.
    """
    tiles, chunk = spec.n2 // 8, spec.n2 // 16
    pieces = []
    for group in range(1 if spec.rows_out < spec.n1 else 2):
        start = first_register + group * tiles
        pieces.append((2 * group, 0, tuple(start + j for j in range(chunk))))
        pieces.append((2 * group + 1, 0, tuple(start + tiles - 1 - j for j in range(chunk))))
    return tuple(pieces)


TOGETHER = {"right-angle": 2}
"""By packing, sequences of an item, where they are not those of a transform."""
SIGNATURE = ("HALVES",) * 4 + ("WORDS", "FLOATS", "WORDS", "WORDS") + ("HALVES",) * 2 + ("INT",) * 6
"""Kinds of the kernel's arguments, for the compiler."""


def workers(spec: Spec) -> int:
    """Who takes items: every team of a block."""
    return spec.teams


__all__ = [
    "CAPABILITY",
    "FACTORS",
    "PACKINGS",
    "build",
    "make_spec",
    "min_blocks",
    "operand_key",
    "operands",
    "spectrum_layout",
]
