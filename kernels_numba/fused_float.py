"""The fused fp32 convolution: a block (or a part of one) carries two real sequences through a mixed-radix FFT.

Two real sequences that share a filter are one complex sequence z = u1 + i u2, or one sequence of 2 P samples is a
complex one of P points (half-length packing; Sorensen et al. 1987), or the data are complex already. For
P = r1 r2 ... rp, stage i of the forward transform contracts n_i to k_i in registers, multiplies by
e^(-2 pi i k_i m / (r_i s_i)), m = n(i+1) .. np, and exchanges through shared memory (decimation in frequency;
Gentleman and Sande 1966). Frequencies stay in the order that results; the filter's spectrum is kept in it. The inverse
transform goes the same way back. All arithmetic is fp32, with twiddles that were rounded once, from float64.

Nothing but the input, the output, the spectrum and the twiddles touches device memory. `float_spec.py` says which
thread holds what; docs/kernels.md what it costs.
"""

from __future__ import annotations

from typing import Any

from kernels_numba import float_stages
from kernels_numba.float_spec import (
    DEFAULT_FACTORS,
    FACTORS,
    PACKINGS,
    Spec,
    make_spec,
    operand_key,
    operands,
    spectrum_layout,
)
from kernels_numba.float_stages import mirror_places, point_places, point_twiddles


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile`` (the GPU's or the CPU's body).

    Arguments of the kernel: float32 buffers ``u``, ``pre``, ``post``, ``post2``, ``spectrum`` [H, positions, 2],
    ``scales`` (not used), ``tables`` (twiddles), words ``mirrors``, ``y`` and ``out2`` (as `fused_warp.build`); then
    the number of items (H times pairs), the items per worker, pairs per channel, batch size, channels, and the sequence
    length L (2 L for complex sequences, whose parts are neighbours).
    """
    shape, stages = spec.shape, spec.shape.stages
    half, gated_in, gated_out, ahead = spec.half, spec.pregate, spec.postgate, spec.ahead
    twice = spec.twice
    with_mirrors = spec.mirrored
    threads, together, held, order = shape.threads, shape.together, shape.held, len(stages)
    first, last = stages[0], stages[-1]
    groups1 = first.groups
    live, kept = groups1 * spec.rows_in, groups1 * spec.rows_out
    unit, sequences = (2, 1) if half else (1, 2)
    room, spectrum_floats = 2 * shape.padding[2], 4 * shape.points if with_mirrors else 2 * shape.points
    barrier = float_stages.barrier_of(tile, shape)
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )

    inputs, outputs = _samples(spec, spec.rows_in), _samples(spec, spec.rows_out)
    copy = tile.copy_floats(_copies(spec), guarded=spec.guarded)
    load = tile.load_floats(inputs, 2 * live // sequences, guarded=spec.guarded)
    load_post = tile.load_floats(outputs, 2 * kept // sequences, guarded=spec.guarded)
    store_first = tile.store_floats(outputs, guarded=spec.guarded)
    store_second = tile.store_floats(tuple((c, (r[0] + kept,)) for c, r in outputs), guarded=spec.guarded)
    complex_data = half and not with_mirrors
    multiply = (lambda n: tile.multiply_complex_floats(n // 2)) if complex_data else tile.multiply_floats
    gate_in, gate_out, join = multiply(2 * live), multiply(2 * kept), tile.join
    four = float_stages.four_stages(shape)
    starts, forward = (
        float_stages.starts_of(tile, shape),
        float_stages.forward_of(tile, shape, live=spec.rows_in),
    )
    dft1i = tile.dft_points(first.radix, groups1, inverse=True, wanted=spec.rows_out)
    dft2i, dft3i, dft4i = (tile.dft_points(s.radix, s.groups, inverse=True) for s in four[1:])
    turn1i, turn2i, turn3i = (
        tile.multiply_points(point_twiddles(shape, s), held, conjugate=True) for s in four[:3]
    )
    places = [point_places(shape, s) for s in four]
    put2, put3, put4 = (tile.store_points(x) for x in places[1:])
    get1, get2, get3 = (tile.load_points(x) for x in places[:3])
    get_input, commit, wait = (
        tile.load_points(point_places(shape, first, spec.rows_in)),
        tile.commit,
        tile.wait(0),
    )
    filter_pairs = tile.multiply_points(
        tuple((4 * threads * i, (2 * i,), (2 * i + 1,)) for i in range(held // 2)), held
    )
    mirrored = tile.multiply_mirrored(mirror_places(shape), 4 * threads)
    load_mirrors = tile.load_global(2 * last.groups, 1)

    def kernel(
        u, pre, post, post2, spectrum, scales, tables, mirrors, y, out2, items, each, pairs, batch, channels, length
    ):  # fmt: skip
        index = small(32 * warp() + lane())
        slot = small(divide(index, threads))
        j = small(index - slot * threads)
        base = small(slot * room)
        # The thread's first point in each stage, and its column there.
        m1, m2, m3, at1, at2, at3, at4 = starts(j, base)
        if with_mirrors:
            others = load_mirrors(mirrors, j, threads)

        # Workers without an item do the first one again, and store nothing.
        item = small((block() * together + slot) * each)
        turn = small(0)
        other_sequence = int64(channels) * length
        sample = small(unit * j)
        there = small(item < items)
        now = small(item * there)
        h = small(divide(now, pairs))
        p = small(now - h * pairs)
        start = (sequences * int64(p) * channels + h) * length
        limit = small(length * there)
        second = small(limit * (2 * p + 1 < batch))
        if ahead:
            copy(u, start, limit, sample, at1)
            if not half:
                copy(u, start + other_sequence, second, sample, at1 + 1)
            commit()
        while turn < each:
            if ahead:
                wait()  # for the lane's own copies: no other lane reads them
                z = get_input(at1)
            elif half:
                z = load(u, start, limit, sample)
            else:
                z = join(load(u, start, limit, sample), load(u, start + other_sequence, second, sample))
            if gated_in:
                v = load(pre, start, limit, sample)
                if not half:
                    v = join(v, load(pre, start + other_sequence, second, sample))
                z = gate_in(z, v)
            x = forward(z, tables, m1, m2, m3, at1, at2, at3, at4)
            bins = int64(h) * spectrum_floats + 4 * j
            if with_mirrors:
                put4(at4, x)
                barrier()
                x = mirrored(x, spectrum, bins, base, others)
                barrier()
            else:
                x = filter_pairs(x, spectrum, bins)
            if order > 3:
                x = dft4i(x)
                put4(at4, x)
                barrier()
                x = turn3i(get3(at3), tables, 4 * m3)
            if order > 2:
                x = dft3i(x)
                put3(at3, x)
                barrier()
                x = turn2i(get2(at2), tables, 4 * m2)
            x = dft2i(x)
            put2(at2, x)
            barrier()
            x = get1(at1)
            item = small(item + 1)
            turn = small(turn + 1)
            there = small(item < items)
            now = small(item * there)
            h = small(divide(now, pairs))
            p = small(now - h * pairs)
            next_start = (sequences * int64(p) * channels + h) * length
            next_limit = small(length * there)
            next_second = small(next_limit * (2 * p + 1 < batch))
            if ahead:  # the lane's places are free now: the next input comes while it works on
                if turn < each:
                    copy(u, next_start, next_limit, sample, at1)
                    if not half:
                        copy(u, next_start + other_sequence, next_second, sample, at1 + 1)
                commit()
            found = dft1i(turn1i(x, tables, 4 * m1))
            out = found
            if gated_out:
                v = load_post(post, start, limit, sample)
                if not half:
                    v = join(v, load_post(post, start + other_sequence, second, sample))
                out = gate_out(found, v)
            store_first(y, start, limit, sample, out)
            if not half:
                store_second(y, start + other_sequence, second, sample, out)
            if twice:
                v = load_post(post2, start, limit, sample)
                if not half:
                    v = join(v, load_post(post2, start + other_sequence, second, sample))
                out = gate_out(found, v)
                store_first(out2, start, limit, sample, out)
                if not half:
                    store_second(out2, start + other_sequence, second, sample, out)
            start = next_start
            limit = next_limit
            second = next_second

    return kernel


def _samples(spec: Spec, rows: int) -> Any:
    """Where a thread's samples of the first ``rows`` points of its butterflies lie: (distance, registers).

    One sequence of a pair, a register a point; or both parts of the points of one sequence.
    """
    constants = spec.shape.constants(spec.shape.stages[0], rows)
    if not spec.half:
        return tuple((c, (i,)) for i, c in enumerate(constants))
    points = [(2 * c, i, i + len(constants)) for i, c in enumerate(constants)]
    if spec.wide:
        return tuple((c, (re, im)) for c, re, im in points)
    return tuple(piece for c, re, im in points for piece in ((c, (re,)), (c + 1, (im,))))


def _copies(spec: Spec) -> Any:
    """A thread's copies of its input into its own places: (distance, place in words, how many samples)."""
    stage = spec.shape.stages[0]
    places = [2 * x for x in point_places(spec.shape, stage, spec.rows_in)]
    constants = spec.shape.constants(stage, spec.rows_in)
    if not spec.half:
        return tuple((c, x, 1) for c, x in zip(constants, places, strict=True))
    if spec.wide:
        return tuple((2 * c, x, 2) for c, x in zip(constants, places, strict=True))
    return tuple((2 * c + i, x + i, 1) for c, x in zip(constants, places, strict=True) for i in range(2))


VOCABULARY = "float"
SIGNATURE = ("FLOATS",) * 7 + ("WORDS", "FLOATS", "FLOATS") + ("INT",) * 6
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for: 80 a thread with up to 16 points, else 128."""
    return max(1, (768 if spec.shape.held <= 16 else 512) // (32 * spec.warps))


def workers(spec: Spec) -> int:
    """Who takes items: every transform of a block."""
    return spec.shape.together


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
