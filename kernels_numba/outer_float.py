"""The outer stages of a long convolution in fp32: the same four steps as `outer_stage`, transforms in registers.

Arithmetic is that of `fused_float`: a lane holds one column, all points of a factor, and transforms them by sums and
rotations in float32. The intermediate is complex, ``z [pairs, group channels, N1, N2]``, a pair of real sequences as
real and imaginary part, and the rows' kernel is the fused one for complex sequences. Twiddles come from tables, rounded
once from float64, as products of two: 8 (2 A + B / 2) bytes a column, not 8 A B.

Sequences may be halves too: they are widened where they are read, and results are rounded once.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.outer_float_spec import Spec, min_blocks, operand_key, operands

VOCABULARY = "float"


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``: `_forward` or `_inverse`."""
    return (_inverse if spec.inverse else _forward)(tile, spec)


def _turns(tile: Any, spec: Spec) -> tuple[Any, Any]:
    """Products with the twiddles of N points: those of the last factor's outputs, and those of a row."""
    factor, _ = spec.last
    half, step = factor // 2, 4 * spec.n2
    within = tuple((step * i, (2 * i, 2 * i + half), (2 * i + 1, 2 * i + 1 + half)) for i in range(half // 2))
    of_row = ((0, tuple(range(half)), tuple(range(half, factor))),)
    return tuple(tile.multiply_points(x, factor, conjugate=spec.inverse) for x in (within, of_row))


def _forward(tile: Any, spec: Spec) -> Any:
    """Samples to rows of the intermediate.

    Arguments: sequences ``u`` and ``pre`` [batch, channels, length] (from the group's first on), float32 ``tables``,
    words ``places``, float32 ``z``; then pairs, batch and channels, the group's channels, and the length.
    """
    a, b, n2, strip, warps, strips = spec.a, spec.b, spec.n2, spec.strip, spec.warps, spec.strips
    single, guarded, gated, sparse, kept = b == 1, spec.guarded, spec.pregate, spec.kept > 0, spec.rows_kept
    factor, apart = spec.last
    at_between, at_within, at_row = spec.places
    together = 32 // strip  # rows that a warp takes at once
    rows, row_step = b // together, b * strip
    small, int64, divide, lane, warp, block = (
        *(tile.small, tile.int64, tile.divide),
        *(tile.lane, tile.warp, tile.block),
    )
    constants = tuple(b * n2 * i for i in range(spec.live))
    load = tile.load_kind(constants, spec.io, guarded=guarded)
    gate, join = tile.multiply_floats(2 * spec.live), tile.join
    dft_first = tile.dft_points(a, 1, inverse=False, live=spec.live)
    turn_between = tile.multiply_points(tuple((4 * i, (2 * i,), (2 * i + 1,)) for i in range(a // 2)), a)
    put_points, get_points = (
        tile.store_points(tuple(row_step * i for i in range(a))),
        tile.load_points(tuple(strip * i for i in range(factor))),
    )
    dft_second = tile.dft_points(factor, 1, inverse=False)
    turn_within, turn_row = _turns(tile, spec)
    put, put_rows = tile.store_strided(factor), tile.store_rows(factor)
    load_places = tile.load_global(factor, 4)
    barrier, opaque, load_mark, at_marks = tile.barrier, tile.opaque, tile.load_float, spec.n1
    per_block = warps if single else 1

    def kernel(u, pre, tables, places, z, pairs, batch, channels, group, length):
        index, w = small(lane()), small(warp())
        item = small(block() * per_block)
        if single:
            item = small(item + w)
        line = small(divide(item, strips))
        column = small((item - line * strips) * strip + (index & (strip - 1)))
        h = small(divide(line, pairs))
        p = small(line - h * pairs)
        if h < group:
            base = (2 * int64(p) * channels + h) * length
            other = base + int64(channels) * length
            second = small(length * (2 * p + 1 < batch))
            to = (int64(p) * group + h) * (kept * n2) + column
            if single:
                x = join(load(u, base, length, column), load(u, other, second, column))
                if gated:
                    x = gate(x, join(load(pre, base, length, column), load(pre, other, second, column)))
                x = turn_within(dft_first(x), tables, at_within + 4 * column)
                x = turn_row(x, tables, at_row + 4 * column)
                if sparse:
                    put_rows(z, to, load_places(places, 0, 4), x)
                else:
                    put(z, to, n2, h < group, x)
            else:
                upper = small(divide(index, strip))
                point = small(2 * (index & (strip - 1)))
                j = w
                end = small(opaque(rows))
                while j < end:
                    i = small(j * together + upper)
                    at = small(i * n2 + column)
                    x = join(load(u, base, length, at), load(u, other, second, at))
                    if gated:
                        x = gate(x, join(load(pre, base, length, at), load(pre, other, second, at)))
                    x = turn_between(dft_first(x), tables, at_between + 2 * a * i)
                    put_points(small(2 * strip * i + point), x)
                    j = small(j + warps)
                barrier()
                j = w
                end = small(opaque(a // together))
                while j < end:
                    if sparse:  # no row of these ka is kept
                        at = small(at_marks + j * together)
                        if load_mark(places, at) + load_mark(places, at + together - 1) == 0:
                            j = small(j + warps)
                            continue
                    i = small(j * together + upper)
                    x = dft_second(get_points(small(2 * row_step * i + point)))
                    x = turn_within(x, tables, at_within + 4 * column)
                    x = turn_row(x, tables, at_row + 4 * (int64(i) * n2 + column))
                    if sparse:
                        put_rows(z, to, load_places(places, factor * i, 4), x)
                    else:
                        put(z, to + int64(i) * n2, apart * n2, h < group, x)
                    j = small(j + warps)

    return kernel


def _inverse(tile: Any, spec: Spec) -> Any:
    """Rows of the intermediate to samples.

    Arguments: float32 ``z`` as in `_forward`, sequences ``post`` and ``post2``, float32 ``tables``, words ``places``,
    float32 ``scales`` (not used: fp32 spectra are never scaled), sequences ``y`` and ``out2``; then the integers of
    `_forward`.
    """
    a, b, n2, strip, warps, strips = spec.a, spec.b, spec.n2, spec.strip, spec.warps, spec.strips
    single, guarded, gated, sparse, kept = b == 1, spec.guarded, spec.postgate, spec.kept > 0, spec.rows_kept
    twice = spec.twice
    factor, apart = spec.last
    at_between, at_within, at_row = spec.places
    together = 32 // strip
    rows, row_step = b // together, b * strip
    small, int64, divide, lane, warp, block = (
        *(tile.small, tile.int64, tile.divide),
        *(tile.lane, tile.warp, tile.block),
    )
    get, get_rows, nothing = tile.load_strided(factor), tile.load_rows(factor), tile.zeros(2 * factor)
    load_places = tile.load_global(factor, 4)
    turn_within, turn_row = _turns(tile, spec)
    dft_last = tile.dft_points(factor, 1, inverse=True)
    put_points, get_points = (
        tile.store_points(tuple(strip * i for i in range(factor))),
        tile.load_points(tuple(row_step * i for i in range(a))),
    )
    turn_between = tile.multiply_points(
        tuple((4 * i, (2 * i,), (2 * i + 1,)) for i in range(a // 2)), a, conjugate=True
    )
    dft_first = tile.dft_points(a, 1, inverse=True, wanted=spec.live)
    constants = tuple(b * n2 * i for i in range(spec.live))
    load_gate = tile.load_kind(constants, spec.io, guarded=guarded)
    gate, join = tile.multiply_floats(2 * spec.live), tile.join
    store_first, store_second = (
        tile.store_kind(constants, first, spec.io, guarded=guarded) for first in (0, spec.live)
    )
    barrier, opaque, load_mark, at_marks = tile.barrier, tile.opaque, tile.load_float, spec.n1
    per_block = warps if single else 1

    def kernel(z, post, post2, tables, places, scales, y, out2, pairs, batch, channels, group, length):
        index, w = small(lane()), small(warp())
        item = small(block() * per_block)
        if single:
            item = small(item + w)
        line = small(divide(item, strips))
        column = small((item - line * strips) * strip + (index & (strip - 1)))
        h = small(divide(line, pairs))
        p = small(line - h * pairs)
        if h < group:
            source = (int64(p) * group + h) * (kept * n2) + column
            to = (2 * int64(p) * channels + h) * length
            other = to + int64(channels) * length
            second = small(length * (2 * p + 1 < batch))
            if single:
                if sparse:
                    x = get_rows(z, source, load_places(places, 0, 4))
                else:
                    x = get(z, source, n2)
                x = turn_within(x, tables, at_within + 4 * column)
                x = dft_first(turn_row(x, tables, at_row + 4 * column))
                if twice:
                    v = join(load_gate(post2, to, length, column), load_gate(post2, other, second, column))
                    v = gate(x, v)
                    store_first(out2, to, length, column, v)
                    store_second(out2, other, second, column, v)
                if gated:
                    x = gate(
                        x, join(load_gate(post, to, length, column), load_gate(post, other, second, column))
                    )
                store_first(y, to, length, column, x)
                store_second(y, other, second, column, x)
            else:
                upper = small(divide(index, strip))
                point = small(2 * (index & (strip - 1)))
                j = w
                end = small(opaque(a // together))
                while j < end:
                    i = small(j * together + upper)
                    if sparse:  # no row of these ka is kept
                        at = small(at_marks + j * together)
                        if load_mark(places, at) + load_mark(places, at + together - 1) == 0:
                            put_points(small(2 * row_step * i + point), nothing())
                            j = small(j + warps)
                            continue
                    if sparse:
                        x = get_rows(z, source, load_places(places, factor * i, 4))
                    else:
                        x = get(z, source + int64(i) * n2, apart * n2)
                    x = turn_within(x, tables, at_within + 4 * column)
                    x = turn_row(x, tables, at_row + 4 * (int64(i) * n2 + column))
                    put_points(small(2 * row_step * i + point), dft_last(x))
                    j = small(j + warps)
                barrier()
                j = w
                end = small(opaque(rows))
                while j < end:
                    i = small(j * together + upper)
                    at = small(i * n2 + column)
                    x = turn_between(get_points(small(2 * strip * i + point)), tables, at_between + 2 * a * i)
                    x = dft_first(x)
                    if twice:
                        v = join(load_gate(post2, to, length, at), load_gate(post2, other, second, at))
                        v = gate(x, v)
                        store_first(out2, to, length, at, v)
                        store_second(out2, other, second, at, v)
                    if gated:
                        x = gate(x, join(load_gate(post, to, length, at), load_gate(post, other, second, at)))
                    store_first(y, to, length, at, x)
                    store_second(y, other, second, at, x)
                    j = small(j + warps)

    return kernel


def signature(spec: Spec) -> tuple[str, ...]:
    """Kinds of the kernel's arguments, for the compiler."""
    io = "FLOATS" if spec.io == "fp32" else "HALVES"
    if spec.inverse:
        return ("FLOATS", io, io, "FLOATS", "WORDS", "FLOATS", io, io) + ("INT",) * 5
    return (io, io, "FLOATS", "WORDS", "FLOATS") + ("INT",) * 5


__all__ = ["build", "min_blocks", "operand_key", "operands", "signature"]
