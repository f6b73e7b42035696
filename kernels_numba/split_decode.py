"""The decode-attention kernel: keys and values streamed once, by splits that need nothing of each other.

A *unit* is a sequence, a key head and up to 16 rows (query heads of its group, times query tokens). Its keys are taken
in tiles of 16 and dealt in turn to the warps of ``splits`` blocks. A warp brings tiles to shared memory with
asynchronous copies, several at a time and in a ring of its own, so the only barriers are at the end. With S the logits
of a tile, x = scale S (soft-capped) and a shift m per row,

    weights  e^(x - m)          [16 keys, rows]     fp32
    l += sum of weights         o += weights^T V    both fp32, for the tile's halves V

The logits are a tensor-core product of halves, exact but for its float32 sums; the weights never leave float32, because
with a shift that is not the maximum they range over e^(b - a), which fp16 does not hold.

**async**: m = phi. Nothing passes between tiles, warps or splits until the end, and then sums are added. Where a row
leaves (a, b) in a tile, its warp goes on with the running maximum as m for this row: from that tile, which is not yet
added, and with what was summed before as a part whose shift is phi. Nothing is read twice, and the other rows get the
very bits they had. **sync**: m is the running maximum, for all rows.
At the end partial results (m, l, o) of warps and splits are joined in a fixed order: added where their shifts
agree, else scaled to the larger one first. There is one launch: the blocks of two splits are a cluster, each of which
finishes every second row, with what both write to its shared memory; with more splits, or without clusters, blocks
leave results in device memory, and the last one of a unit to arrive joins them.

A weight that is not zero stays at least 2^-126, so that an infinite value keeps its part in the result.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.decode_pieces import (
    half_pieces,
    key_pieces,
    parts_of,
    product_pieces,
    row_pieces,
    weight_pieces,
)
from kernels_numba.decode_spec import KEYS, WEIGHT_STRIDE, Spec, make_spec, min_blocks
from kernels_numba.tile.layout import WARP

VOCABULARY = "attention"
SIGNATURE = ("HALVES",) * 4 + ("WORDS",) * 4 + ("INT",) * 10 + ("FLOAT",) * 5
"""Kinds of the kernel's arguments, for the compiler."""


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile``.

    Arguments: halves ``q`` [B, T, Hq, D], ``k`` and ``v`` ([B, L, Hkv, D] or pages [.., page, Hkv, D]), ``out`` as q;
    words ``lengths``, ``table``, ``partials`` [units, splits, record], ``arrivals`` [units] (zeros before and after);
    key heads, L, splits; elements from one sequence, key and head of the caches to the next; words from one length to
    the next, from one page number to the next and from one row of the table to the next; pages; float32 phi, a, b,
    scale, cap.
    """
    d, group, tokens, rows = spec.head_size, spec.group, spec.tokens, spec.rows
    unit_rows, row_tiles, tiles = spec.unit_rows, spec.row_tiles, spec.query_tiles
    warps, stages, sync, lengthy, page = spec.warps, spec.stages, spec.sync, spec.lengths, spec.page
    padded, widths, size = spec.padded, spec.widths, spec.value_size
    stage_words, warp_words, ring_words = spec.stage_words, spec.warp_words, spec.ring_words
    shared_words, record_words = warps * spec.warp_words, spec.record_words
    per, chunks, k_tiles = sum(widths), spec.contracted // 32, spec.contracted // 16
    sums_count = 16 * tiles * (size // 64) if spec.products else unit_rows * per
    row_words = padded // 2
    lanes_per_row = padded // 8
    rows_per_copy = WARP // lanes_per_row
    copies = KEYS // rows_per_copy
    careful_tiles, cluster = tokens > 1, spec.cluster
    clustered = cluster > 1
    lead = (stages - 1) * warps
    negative = float("-inf")
    at_most, at_total = spec.result_rows * size, spec.result_rows * (size + 1)
    by_products = spec.products

    # A cluster lies along the grid's first axis; otherwise blocks at once better have neighbouring heads.
    block_of_heads, block_of_splits, block_of_batch = (
        tile.block_along(axis) for axis in ((1, 0, 2) if clustered else (0, 1, 2))
    )
    lane, warp, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.divide,
        tile.small,
        tile.int64,
    )
    barrier, warp_sync, commit, wait, fence = (
        tile.barrier,
        tile.warp_sync,
        tile.commit,
        tile.wait(stages - 1),
        tile.fence,
    )
    word, arrive, any_bits = tile.load_word, tile.arrive, tile.any_bits
    consecutive = tile.consecutive_rows(copies, rows_per_copy)
    paged = tile.paged_rows(copies, rows_per_copy, page or 1)
    copy = tile.copy_rows(copies, rows_per_copy, rows_per_copy * padded, consecutive=not page)
    load_query, join = tile.load_chunks(chunks, 32), tile.join
    # Registers of both columns of queries, chunk by chunk -> B operand registers.
    to_b = tile.select(
        tuple(n * 4 * chunks + 2 * k + r for k in range(k_tiles) for n in range(tiles) for r in range(2))
    )
    load_keys = tile.load_pieces(key_pieces(chunks, row_words), 4 * k_tiles)
    product = tile.mma(1, tiles, k_tiles, chains=spec.chains)
    logits, mask, mark = (
        tile.logits(tiles, capped=spec.capped),
        tile.mask(tiles, negative),
        tile.mask(tiles, -1.0),
    )
    limits_of = tile.registers(2 * tiles)
    shift, outside = tile.shift(tiles), tile.outside(tiles)
    exp, exp_floor = tile.exponentials(4 * tiles), tile.exponentials(4 * tiles, floor=True)
    add_keys, max_keys, sum_lanes = tile.add_keys(tiles), tile.max_keys(tiles), tile.sum_lanes(tiles)
    differ, choose, started = tile.differ(2 * tiles), tile.choose(tiles), tile.started(2 * tiles)
    anchors, decays, times = tile.anchors(2 * tiles), tile.decays(2 * tiles), tile.times(2 * tiles)
    fill, fill_sums, fill_row = tile.fill(2 * tiles), tile.fill(sums_count), tile.fill(per)
    spread = tile.spread(unit_rows)
    weight_words = tile.as_words(4 * tiles)
    put_weights = tile.store_shared_pieces(weight_pieces(tiles))
    if spec.products:
        shape = (tiles, size // 64, row_words)
        weigh, weigh_carefully = tile.weigh_products(*shape), tile.weigh_products(*shape, careful=True)
        factors_of, scale_sums = tile.select(tuple(range(2 * tiles))), tile.scale_queries(*shape[:2])
        put_sums = tile.store_shared_pieces(product_pieces(tiles, size))
    else:
        weigh = tile.weigh(unit_rows, widths, row_words)
        weigh_carefully = tile.weigh(unit_rows, widths, row_words, careful=True)
        factors_of, scale_sums = spread, tile.scale_rows(unit_rows, per)
        put_sums = tile.store_shared_pieces(row_pieces(unit_rows, widths, size))
    # Where the values' chunks go: turned by the key for tensor cores, which read two chunks of four keys at once.
    turn_values = 2 if spec.products else 0
    # From one copy to the next, the key moves on by so many.
    turn1, turn2, turn3 = (turn_values * (i * rows_per_copy & 3) for i in (1, 2, 3))
    sum_words, row_as_words = tile.as_words(sums_count), tile.as_words(per)
    # A row of each of several parts: the warps' from shared memory, as many splits' at once from global memory.
    row = row_pieces(1, widths, size)
    get_rows = tile.load_pieces(parts_of(row, warps, per, warp_words), warps * per)
    numbers_of_part = ((0, 0, (0,)), (1, 0, (1,)))
    get_numbers = tile.load_pieces(parts_of(numbers_of_part, warps, 2, warp_words), 2 * warps)
    get_records = tile.load_fresh_pieces(row, per, parts=warps, step=record_words)
    get_record_numbers = tile.load_fresh_pieces(numbers_of_part, 2, parts=warps, step=record_words)
    # Rows that the blocks of a cluster write to the one that finishes them: those of the first, of the second, ...
    greet, await_greetings, meet = tile.greet, tile.await_greetings, tile.meet
    near_at, near_rows = shared_words + WARP, spec.near_rows
    near_words, near_numbers = near_rows * (size + 4), near_at + near_rows * size
    give_row, give_numbers = tile.store_neighbour_pieces(row), tile.put_neighbour_numbers(2)
    get_near = tile.load_pieces(parts_of(row, cluster, per, near_words), cluster * per)
    get_near_numbers = tile.load_pieces(parts_of(numbers_of_part, cluster, 2, near_words), 2 * cluster)
    near_as_floats, near_numbers_as_floats = tile.as_floats(cluster * per), tile.as_floats(2 * cluster)
    join_near_numbers, join_near = tile.join_numbers(cluster), tile.join_sums(cluster, per)
    numbers_of_near = tile.select((cluster + 1, cluster + 2))
    rows_as_floats, numbers_as_floats = tile.as_floats(warps * per), tile.as_floats(2 * warps)
    join_numbers, join_sums = tile.join_numbers(warps), tile.join_sums(warps, per)
    numbers_of, total_at = tile.select((warps + 1, warps + 2)), tile.select((1,))
    put_rows, fill_one, quotient = tile.put_rows(unit_rows), tile.fill(1), tile.quotient(per)
    pack = tile.pack(per // 2)
    put_out = tile.store_pieces(half_pieces(widths), min(widths), guarded=True)
    put_record, put_float = tile.store_word_pieces(row), tile.put_float
    tell, told = tile.store_shared_pieces(((0, 0, (0,)),)), tile.load_shared(1, 1)
    as_register, first_of = tile.registers(1), tile.first
    two = tiles == 2

    def kernel(
        q, k, v, out, lengths, table, partials, arrivals,
        heads, room, splits, sequence_stride, key_stride, head_stride, length_step, page_step, table_row, pages,
        phi, low, high, factor, cap,
    ):  # fmt: skip
        if clustered:
            greet()
        index = small(lane())
        w = small(warp())
        g = small(index >> 2)
        t = small(index & 3)
        split = small(block_of_splits())
        tile_of_head = small(block_of_heads())
        b = small(block_of_batch())
        head = small(divide(tile_of_head, row_tiles))
        row_tile = small(tile_of_head - head * row_tiles)
        n = small(room)
        if lengthy:
            n = small(min(max(word(lengths, int64(b) * length_step), 0), room))
        count = small((n + 15) >> 4)
        first = small(split * warps + w)
        mine = small(w * warp_words)
        weights_at = small(mine + ring_words)

        # Where this lane's copies go: 16-byte chunks of a key's row change places in every second row, so that
        # two rows read together fall on different banks. Values are read a row at a time, and stay where they are.
        row = small(divide(index, lanes_per_row))
        chunk = small(index - row * lanes_per_row)
        turned = small((row & 1) << 2) if rows_per_copy > 1 else small(0)
        key_even = small(row * padded + ((chunk ^ turned) << 3))
        key_odd = key_even if rows_per_copy > 1 else small((chunk ^ 4) << 3)
        turned = small(chunk ^ (turn_values * (row & 3)))
        value_to = small(KEYS * padded + row * padded)
        v0 = small(value_to + (turned << 3))
        v1 = small(value_to + ((turned ^ turn1) << 3))
        v2 = small(value_to + ((turned ^ turn2) << 3))
        v3 = small(value_to + ((turned ^ turn3) << 3))
        column = int64(head) * head_stride + (chunk << 3)
        if page == 0:
            column = column + int64(b) * sequence_stride
        live = small((chunk << 3) < d)
        end = small(n * live)  # a lane past the row's end copies zeros
        table_at = int64(b) * table_row

        # Copies of the first tiles, before anything that can wait for them.
        ahead = first
        fetch = small(0)
        while fetch < stages - 1:
            if ahead < count:
                to = small(2 * (mine + fetch * stage_words))
                key = small(16 * ahead + row)
                if page:
                    places = paged(key, end, table, table_at, page_step, pages)
                else:
                    places = consecutive(key)
                k0 = small(to + key_even)
                k1 = small(to + key_odd)
                copy(k0, k1, k0, k1, k, places, key_stride, column, key, end)
                copy(to + v0, to + v1, to + v2, to + v3, v, places, key_stride, column, key, end)
            commit()
            ahead = small(ahead + splits * warps)
            fetch = small(fetch + 1)

        # The unit's queries as B operand, and how many keys each of the lane's may see.
        base = small(row_tile * unit_rows)
        seen = small((g < unit_rows) & (base + g < rows))
        near = small(base + g * seen)
        token = small(divide(near, group))
        at = ((int64(b) * tokens + token) * heads + head) * group + (near - token * group)
        x0 = load_query(q, at * d + 8 * t, small(8 * t + (1 - seen) * d), d)
        x1 = x0
        r0 = small(2 * t)
        a0 = small(base + r0)
        before = small(n - tokens + 1)
        c0 = small((before + divide(a0, group)) * ((r0 < unit_rows) & (a0 < rows)))
        c1 = small((before + divide(a0 + 1, group)) * ((r0 + 1 < unit_rows) & (a0 + 1 < rows)))
        c2 = c0
        c3 = c1
        if two:
            seen = small((g + 8 < unit_rows) & (base + g + 8 < rows))
            far = small(base + (g + 8) * seen)
            token = small(divide(far, group))
            at = ((int64(b) * tokens + token) * heads + head) * group + (far - token * group)
            x1 = load_query(q, at * d + 8 * t, small(8 * t + (1 - seen) * d), d)
            c2 = small((before + divide(a0 + 8, group)) * ((r0 + 8 < unit_rows) & (a0 + 8 < rows)))
            c3 = small((before + divide(a0 + 9, group)) * ((r0 + 9 < unit_rows) & (a0 + 9 < rows)))
        queries = to_b(join(x0, x1))
        visible = limits_of(c0, c1, c2, c3)

        read_row = small(mine + g * row_words)
        read_even = small(read_row + ((((g & 1) << 2) + t) << 2))
        read_odd = small(read_row + (((4 - ((g & 1) << 2)) + t) << 2))
        put0 = small(weights_at + r0 * WEIGHT_STRIDE + g)
        shifts = fill(phi)
        chosen = small(-1 if sync else 0)
        most = fill(negative)
        totals = fill(0.0)
        sums = fill_sums(0.0)
        slot = small(0)
        now = first
        while now < count:
            ahead = small(now + splits * lead)
            fetch = small(slot - 1 if slot > 0 else stages - 1)
            if ahead < count:
                to = small(2 * (mine + fetch * stage_words))
                key = small(16 * ahead + row)
                if page:
                    places = paged(key, end, table, table_at, page_step, pages)
                else:
                    places = consecutive(key)
                k0 = small(to + key_even)
                k1 = small(to + key_odd)
                copy(k0, k1, k0, k1, k, places, key_stride, column, key, end)
                copy(to + v0, to + v1, to + v2, to + v3, v, places, key_stride, column, key, end)
            commit()
            wait()
            warp_sync()
            offset = small(slot * stage_words)
            s = product(load_keys(read_even + offset, read_odd + offset, 0, 0), queries)
            x = mask(logits(s, factor, cap), 16 * now + g, visible)
            y = x
            if not sync:
                y = shift(x, shifts)
                fresh = small(any_bits(outside(y, low, high)) & (-1 ^ chosen))
                if fresh != 0:
                    # What these rows have summed so far is a part whose shift is phi, if it is anything.
                    most = choose(fresh, started(sum_lanes(totals), shifts), most)
                    chosen = small(chosen | fresh)
            if chosen != 0:
                top = choose(chosen, max_keys(most, x), most)
                if any_bits(differ(most, top)) != 0:
                    drop = choose(chosen, decays(most, top), fill(1.0))
                    totals = times(totals, drop)
                    sums = scale_sums(sums, factors_of(drop))
                most = top
                p = exp_floor(shift(x, choose(chosen, anchors(top), shifts)))
            else:
                p = exp(y)
            totals = add_keys(totals, p)
            hidden = careful_tiles and 16 * now + 15 > n - tokens
            if hidden:
                p = mark(p, 16 * now + g, visible)
            put_weights(put0, put0 + 8, 0, 0, weight_words(p))
            warp_sync()
            values_at = small(mine + offset + KEYS * row_words)
            if hidden:
                sums = weigh_carefully(sums, weights_at, values_at, index)
            else:
                sums = weigh(sums, weights_at, values_at, index)
            warp_sync()
            slot = small(slot + 1 if slot + 1 < stages else 0)
            now = small(now + splits * warps)

        if by_products:
            put_sums(mine + 2 * t * size + 8 * g, 0, 0, 0, sum_words(sums))
        else:
            put_sums(mine + 4 * index, mine + 2 * index, 0, 0, sum_words(sums))
        put_rows(mine + at_most, spread(choose(chosen, most, shifts)))
        put_rows(mine + at_total, spread(sum_lanes(totals)))
        unit = small((b * heads + head) * row_tiles + row_tile)
        stage = small(0)
        barrier()
        if clustered:
            await_greetings()
        while stage < 2:
            # First the parts of the block's warps; then those of the splits: in the last block of the unit, or of a
            # cluster in each of its blocks for some rows.
            parts = small(warps if stage == 0 else splits)
            r = w
            step = small(warps)
            if clustered and stage == 1:
                parts = small(1)
                r = small(cluster * w + split)
                step = small(cluster * warps)
            while r < unit_rows:
                o = fill_row(0.0)
                numbers = join(fill_one(phi), fill_one(0.0))
                i = small(0)
                while i < parts:
                    if clustered and stage == 1:
                        nth = small(divide(r, cluster))
                        at_row = small(near_at + nth * size)
                        found = get_near(at_row + 4 * index, at_row + 2 * index, 0, 0)
                        theirs = get_near_numbers(near_numbers + nth, near_numbers + near_rows + nth, 0, 0)
                        factors = join_near_numbers(numbers, near_numbers_as_floats(theirs))
                        o = join_near(o, near_as_floats(found), factors)
                        numbers = numbers_of_near(factors)
                    else:
                        if stage == 0:
                            found = get_rows(r * size + 4 * index, r * size + 2 * index, 0, 0)
                            theirs = get_numbers(at_most + r, at_total + r, 0, 0)
                        else:
                            at = (int64(unit) * splits + i) * record_words
                            live = parts - i
                            found = get_records(partials, at + r * size, 4 * index, 2 * index, live)
                            at = at + unit_rows * size
                            theirs = get_record_numbers(partials, at, r, r + unit_rows, live)
                        factors = join_numbers(numbers, numbers_as_floats(theirs))
                        o = join_sums(o, rows_as_floats(found), factors)
                        numbers = numbers_of(factors)
                    i = small(i + warps)
                if splits == 1 or stage == 1:
                    whole = small(base + r)
                    if whole < rows:
                        token = small(divide(whole, group))
                        at = ((int64(b) * tokens + token) * heads + head) * group + (whole - token * group)
                        y = pack(quotient(o, first_of(total_at(numbers))))
                        put_out(out, at * d, d, 4 * index, 2 * index, 0, 0, y)
                elif clustered:
                    nth = small(divide(r, cluster))
                    block = small(r - nth * cluster)
                    at_row = small(near_at + split * near_words + nth * size)
                    give_row(at_row + 4 * index, at_row + 2 * index, block, row_as_words(o))
                    give_numbers(near_numbers + split * near_words + nth, near_rows, block, numbers)
                else:
                    at = (int64(unit) * splits + split) * record_words
                    put_record(partials, at + r * size, 4 * index, 2 * index, row_as_words(o))
                    put_float(partials, at + unit_rows * size + r, first_of(numbers))
                    put_float(partials, at + unit_rows * (size + 1) + r, first_of(total_at(numbers)))
                r = small(r + step)
            stage = small(stage + 1 if splits > 1 else 2)
            if clustered:
                if stage == 1:
                    meet()
            elif stage == 1:
                fence()
                barrier()
                if w == 0:
                    came = as_register(arrive(arrivals, unit, splits), 0, 0, 0)
                    tell(shared_words + index, 0, 0, 0, came)
                    fence()
                barrier()
                if any_bits(first_of(told(shared_words + index, 0))) != splits - 1:
                    stage = small(2)

    return kernel


__all__ = ["SIGNATURE", "build", "make_spec", "min_blocks"]
