"""The fused fp32 convolution of transforms that registers do not hold: `fused_float`, with points in shared memory.

The stages are those of `fused_float.py`, in the same places. But a thread does its butterflies in rounds, reading
each from shared memory and writing it back to where it was; so P points take 8 P bytes of shared memory and nothing
else, to 28672 of them on a GPU whose blocks can have 227 KiB. The next input is copied to a butterfly's places as soon
as its last results have been read. With half-length packing the last stage takes the butterfly that holds a
butterfly's mirrors with it, so that one thread has both and nobody waits.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.float_stages import mirror_places, place_of, point_places, point_twiddles
from kernels_numba.fused_float import _copies, _samples
from kernels_numba.rounds_spec import (
    DEFAULT_FACTORS,
    FACTORS,
    PACKINGS,
    Spec,
    make_spec,
    operand_key,
    operands,
    spectrum_layout,
)


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: those of `fused_float.build`. Items go to blocks in turn, as in `fused_block`.
    """
    shape, stages = spec.shape, spec.shape.stages
    half, mirrored, gated_in, gated_out = spec.half, spec.mirrored, spec.pregate, spec.postgate
    twice = spec.twice
    order, points, turns = len(stages), shape.points, 32 * spec.warps
    first, last = stages[0], stages[-1]
    live, kept = spec.rows_in, spec.rows_out
    unit, sequences = (2, 1) if half else (1, 2)
    spectrum_floats = 4 * points if mirrored else 2 * points
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    barrier, commit, wait, join, turns_of = tile.barrier, tile.commit, tile.wait(0), tile.join, tile.opaque

    inputs, outputs = _samples(spec, live), _samples(spec, kept)
    copy = tile.copy_floats(_copies(spec), guarded=spec.guarded)
    load = tile.load_floats(inputs, 2 * live // sequences, guarded=spec.guarded)
    load_post = tile.load_floats(outputs, 2 * kept // sequences, guarded=spec.guarded)
    store_first = tile.store_floats(outputs, guarded=spec.guarded)
    store_second = tile.store_floats(tuple((c, (r[0] + kept,)) for c, r in outputs), guarded=spec.guarded)
    complex_data = half and not mirrored
    multiply = (lambda n: tile.multiply_complex_floats(n // 2)) if complex_data else tile.multiply_floats
    gate_in, gate_out = multiply(2 * live), multiply(2 * kept)
    # The middle stage that three factors do not have is the second one again, and not compiled.
    second, third = stages[1], stages[order - 2]
    step2, radix2, step3, radix3, radix4 = second.step, second.radix, third.step, third.radix, last.radix
    count1, count2, count3, count4 = (points // s.radix for s in (first, second, third, last))
    pairs_of_last = count4 // 2
    dft1 = tile.dft_points(first.radix, 1, inverse=False, live=live)
    dft1i = tile.dft_points(first.radix, 1, inverse=True, wanted=kept)
    dft2, dft3, dft4 = (tile.dft_points(s.radix, 1, inverse=False) for s in (second, third, last))
    dft2i, dft3i, dft4i = (tile.dft_points(s.radix, 1, inverse=True) for s in (second, third, last))
    turn1, turn2, turn3 = (
        tile.multiply_points(point_twiddles(shape, s), s.radix) for s in (first, second, third)
    )
    turn1i, turn2i, turn3i = (
        tile.multiply_points(point_twiddles(shape, s), s.radix, conjugate=True)
        for s in (first, second, third)
    )
    places = [point_places(shape, s) for s in (first, second, third, last)]
    put1, put2, put3, put4 = (tile.store_points(x) for x in places)
    get1, get2, get3, get4 = (tile.load_points(x) for x in places)
    get_input = tile.load_points(point_places(shape, first, live))
    filter_pairs = tile.multiply_points(
        tuple((4 * count4 * i, (2 * i,), (2 * i + 1,)) for i in range(radix4 // 2)), radix4
    )
    filter_mirrored = tile.multiply_mirrored(mirror_places(shape), 4 * pairs_of_last)
    load_two = tile.load_global(2, 1)
    place = place_of(tile, shape)

    def kernel(
        u, pre, post, post2, spectrum, scales, tables, mirrors, y, out2, items, each, pairs, batch, channels, length
    ):  # fmt: skip
        index = small(lane())
        begin = small(32 * warp())
        item, blocks = small(block()), small(divide(items + each - 1, each))
        other_sequence = int64(channels) * length
        h = small(divide(item, pairs))
        p = small(item - h * pairs)
        start = (sequences * int64(p) * channels + h) * length
        limit = small(length)
        second_limit = small(length * (2 * p + 1 < batch))
        at_round = begin
        while at_round < count1:
            b = small(at_round + index)
            at = place(b, 0, count1, 1)
            copy(u, start, limit, unit * b, at)
            if not half:
                copy(u, start + other_sequence, second_limit, b, at + 1)
            at_round = small(at_round + turns)
        commit()
        while item < items:
            wait()  # for the lane's own copies: no other lane reads them
            at_round = begin
            end_round = small(turns_of(count1))
            while at_round < end_round:
                b = small(at_round + index)
                at = place(b, 0, count1, 1)
                z = get_input(at)
                if gated_in:
                    v = load(pre, start, limit, unit * b)
                    if not half:
                        v = join(v, load(pre, start + other_sequence, second_limit, b))
                    z = gate_in(z, v)
                put1(at, turn1(dft1(z), tables, 4 * b))
                at_round = small(at_round + turns)
            barrier()
            at_round = begin
            end_round = small(turns_of(count2))
            while at_round < end_round:
                b = small(at_round + index)
                at = place(b, 0, step2, radix2)
                m = small(b - step2 * divide(b, step2))
                put2(at, turn2(dft2(get2(at)), tables, 4 * m))
                at_round = small(at_round + turns)
            barrier()
            if order > 3:
                at_round = begin
                end_round = small(turns_of(count3))
                while at_round < end_round:
                    b = small(at_round + index)
                    at = place(b, 0, step3, radix3)
                    m = small(b - step3 * divide(b, step3))
                    put3(at, turn3(dft3(get3(at)), tables, 4 * m))
                    at_round = small(at_round + turns)
                barrier()
            bins = int64(h) * spectrum_floats
            at_round = begin
            if mirrored:
                end_round = small(turns_of(pairs_of_last))
                while at_round < end_round:
                    b = small(at_round + index)
                    both = load_two(mirrors, b, pairs_of_last)
                    at = small(both[0])
                    at2 = small(both[1])
                    x = dft4(get4(at))
                    put4(at, x)
                    x2 = dft4(get4(at2))
                    put4(at2, x2)
                    from_bin = bins + 4 * b
                    starts = load_two(mirrors, 2 * pairs_of_last + b, pairs_of_last)
                    starts2 = load_two(mirrors, 4 * pairs_of_last + b, pairs_of_last)
                    x = filter_mirrored(x, spectrum, from_bin, 0, starts)
                    x2 = filter_mirrored(x2, spectrum, from_bin + 4 * pairs_of_last * radix4, 0, starts2)
                    put4(at, dft4i(x))
                    put4(at2, dft4i(x2))
                    at_round = small(at_round + turns)
            else:
                end_round = small(turns_of(count4))
                while at_round < end_round:
                    b = small(at_round + index)
                    at = place(b, 0, 1, radix4)
                    x = filter_pairs(dft4(get4(at)), spectrum, bins + 4 * b)
                    put4(at, dft4i(x))
                    at_round = small(at_round + turns)
            barrier()
            if order > 3:
                at_round = begin
                end_round = small(turns_of(count3))
                while at_round < end_round:
                    b = small(at_round + index)
                    at = place(b, 0, step3, radix3)
                    m = small(b - step3 * divide(b, step3))
                    put3(at, dft3i(turn3i(get3(at), tables, 4 * m)))
                    at_round = small(at_round + turns)
                barrier()
            at_round = begin
            end_round = small(turns_of(count2))
            while at_round < end_round:
                b = small(at_round + index)
                at = place(b, 0, step2, radix2)
                m = small(b - step2 * divide(b, step2))
                put2(at, dft2i(turn2i(get2(at), tables, 4 * m)))
                at_round = small(at_round + turns)
            barrier()
            item = small(item + blocks)
            more = item < items
            h = small(divide(item, pairs))
            p = small(item - h * pairs)
            next_start = (sequences * int64(p) * channels + h) * length
            next_second = small(length * (2 * p + 1 < batch))
            at_round = begin
            end_round = small(turns_of(count1))
            while at_round < end_round:
                b = small(at_round + index)
                at = place(b, 0, count1, 1)
                x = get1(at)
                if more:  # the lane's places are free now: the next input comes while it works on
                    copy(u, next_start, limit, unit * b, at)
                    if not half:
                        copy(u, next_start + other_sequence, next_second, b, at + 1)
                found = dft1i(turn1i(x, tables, 4 * b))
                out = found
                if gated_out:
                    v = load_post(post, start, limit, unit * b)
                    if not half:
                        v = join(v, load_post(post, start + other_sequence, second_limit, b))
                    out = gate_out(found, v)
                store_first(y, start, limit, unit * b, out)
                if not half:
                    store_second(y, start + other_sequence, second_limit, b, out)
                if twice:
                    v = load_post(post2, start, limit, unit * b)
                    if not half:
                        v = join(v, load_post(post2, start + other_sequence, second_limit, b))
                    out = gate_out(found, v)
                    store_first(out2, start, limit, unit * b, out)
                    if not half:
                        store_second(out2, start + other_sequence, second_limit, b, out)
                at_round = small(at_round + turns)
            commit()
            start = next_start
            second_limit = next_second

    return kernel


VOCABULARY = "float"
SIGNATURE = ("FLOATS",) * 7 + ("WORDS", "FLOATS", "FLOATS") + ("INT",) * 6
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for: 128 a thread."""
    return max(1, 512 // (32 * spec.warps))


def workers(spec: Spec) -> int:
    """Who takes items: the block as a whole."""
    return 1


__all__ = [
    "DEFAULT_FACTORS",
    "FACTORS",
    "PACKINGS",
    "build",
    "make_spec",
    "min_blocks",
    "operand_key",
    "operands",
    "spectrum_layout",
]
