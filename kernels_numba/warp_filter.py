"""The filter's transform inside its convolution: blocks of `fused_warp` make the spectra that their own items need.

A launch between two convolutions costs about 2 us, whatever it does: it waits for the one before, and the convolution
for it. A convolution of 256 points takes 15. But a block of it works on few channels, three of 768 at a batch of 64. So
a warp each transforms the taps of one of them in fp32, as `filter_short` does, while the others read their first
sequences, and the spectra stay in shared memory. A channel that two blocks share is transformed by both.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import filter_passes, filter_short, filter_transform
from kernels_numba.device import Device
from kernels_numba.float_spec import Shape, shape_of
from kernels_numba.float_stages import four_stages, place_of, point_places
from kernels_numba.warp_spec import Spec, min_blocks

FACTORS: dict[int, tuple[int, ...]] = {
    128: (4, 4, 4, 2),
    256: (8, 8, 4),
    384: (12, 4, 4, 2),
    512: (16, 8, 4),
    640: (20, 4, 4, 2),
    768: (24, 8, 4),
}
"""By points P = N / 2: factors of a transform by a warp, of which the first is what a lane holds."""
LENGTHS = {"pair": (256, 512, 768), "right-angle": (512, 768, 1024, 1280, 1536)}
"""By packing the N whose filters are transformed here: there is room in registers and shared memory."""
TAPS = ("fp16", "bf16", "fp32")
RESERVED_BYTES = 1024
"""Of an SM's shared memory for each block, which are the system's."""


def shape(n: int) -> Shape:
    """Of the transform of N / 2 complex points by a warp."""
    return shape_of(FACTORS[n // 2])


def turn_words(n: int) -> int:
    """Words of a row of twiddles in the tables: of all points."""
    return 64 * shape(n).held


def turn_rows(spec: Spec) -> int:
    """How many there are: one after each stage but the last, and before them what right-angle packing turns taps by."""
    return len(shape(spec.n).stages) - 1 + spec.right_angle


def together(spec: Spec) -> int:
    """Pairs of positions that a lane makes at a time, for one wait: as many as registers hold."""
    turns = spec.positions // 64
    most = 2 if spec.n == 256 else 5
    return max(each for each in range(1, most + 1) if turns % each == 0)


def functions(tile: Any, spec: Spec) -> tuple[Any, Any, Any]:
    """What a warp does with a filter, lane ``index`` of it.

    ``bring(tables, index)``: four rows of twiddles, of which some may be others again.
    ``load(taps, row_at, count, at)``: a lane's samples. ``make(index, tables, points, spectrum, scale, samples, ..)``:
    from these and the twiddles the spectrum and its scale, for every lane, at these words of shared memory; ``tables``
    is the word of those of positions.
    """
    from kernels_numba.spectrum import ORDINARY

    how, right = shape(spec.n), spec.right_angle
    held, stages, each = how.held, how.stages, together(spec)
    first = how.constants(stages[0], stages[0].radix)
    places = [2 * c + part for part in range(2) for c in first]
    load_taps = tile.load_kind(first if right else tuple(places), spec.taps, guarded=True)
    load_pairs, zeros = tile.load_global(2 * held, 2), tile.zeros(held)
    turn, row, four = tile.turn_by_words(held), turn_words(spec.n), len(stages) > 3
    all_four = four_stages(how)
    dft1, dft2, dft3, dft4 = (tile.dft_points(s.radix, s.groups, inverse=False) for s in all_four)
    at_points = [point_places(how, s) for s in all_four]
    put1, put2, put3, put4 = (tile.store_points(x) for x in at_points)
    get2, get3, get4 = (tile.load_points(x) for x in at_points[1:])
    (step2, radix2), (step3, radix3), (step4, radix4) = ((s.step, s.radix) for s in all_four[1:])
    place = place_of(tile, how)
    shift, factor, _ = how.padding
    largest, power = tile.largest_part(held, 32), tile.powers_above(1, 1, *ORDINARY[spec.dtype])
    load_rows, combine = tile.load_shared(4 * each, 4), tile.combine_pairs(each, 1, 0)
    divided, pack, put_scale = tile.divide_groups(1, 4 * each), tile.pack(2 * each), tile.store_points((0,))
    words = spec.positions // 2  # of real parts
    pieces = tuple((0, 32 * t + part * words, (2 * t + part,)) for t in range(each) for part in range(2))
    put_positions, groups, table_words = tile.store_shared_pieces(pieces), words // 32 // each, 4 * words
    small, join, as_words, warp_sync = tile.small, tile.join, tile.as_words, tile.warp_sync

    def bring(tables, index):
        at = small(2 * index)
        w1 = load_pairs(tables, at + row if right else at, 64)
        w0 = load_pairs(tables, at, 64) if right else w1
        at = small(at + row) if right else at
        w2 = load_pairs(tables, at + row, 64)
        w3 = load_pairs(tables, at + 2 * row, 64) if four else w2
        return w0, w1, w2, w3

    def make(index, tables, points, spectrum, scale, samples, w0, w1, w2, w3):
        x = turn(join(samples, zeros()), w0) if right else samples
        put1(small(points + 2 * (index + factor * (index >> shift))), turn(dft1(x), w1))
        warp_sync()
        at = place(index, points, step2, radix2)
        put2(at, turn(dft2(get2(at)), w2))
        warp_sync()
        if four:
            at = place(index, points, step3, radix3)
            put3(at, turn(dft3(get3(at)), w3))
            warp_sync()
        at = place(index, points, step4, radix4)
        x = dft4(get4(at))
        put4(at, x)
        peak = power(as_words(largest(x)))
        put_scale(small(scale + 2 * index), join(peak, peak))
        warp_sync()
        q = small(0)
        while q < groups:
            pair = small(index + q * (32 * each))
            at = small(tables + 4 * pair)
            which = load_rows(at, 128)
            x = combine(points, which, load_rows(at + table_words, 128), load_rows(at + 2 * table_words, 128))
            at = small(spectrum + pair)
            put_positions(at, at, at, at, pack(divided(x, peak)))
            q = small(q + 1)

    return tile.function(bring), load_taps, tile.function(make)


def tables(
    n: int,
    order: NDArray[np.intp],
    phase: NDArray[np.complex128],
    *,
    right_angle: bool,
    adjoint: bool,
) -> NDArray[np.int32]:
    """What the kernel reads beside the taps, in one array: twiddles, and three rows of each pair of positions.

    ``order``, ``phase`` as in `spectrum`.
    """
    factors, turned = FACTORS[n // 2], int(right_angle) * (-1 if adjoint else 1)
    # The bins of a filter that runs backwards are those of -k, or conjugates.
    found = filter_short.positions(factors, -order % n if adjoint else order, phase, turned=turned)
    weights = found["weights"].reshape(-1, 2, 4)
    parts = []
    if right_angle:
        how = shape(n)
        point = how.place(how.stages[0], np.arange(32), 0)
        first = np.array(how.constants(how.stages[0], how.stages[0].radix))[:, None]
        parts.append(filter_transform.turns(n // 2, "fp16").view(np.int32).reshape(-1, 2)[point + first])
    parts += [filter_short.twiddles(factors), found["places"], weights[:, 0], weights[:, 1]]
    return np.concatenate([part.reshape(-1) for part in parts]).astype(np.int32)


def needed(spec: Spec, items: int, pairs: int, per_warp: int) -> int:
    """How many filters a block needs at most; 0 where one has fewer warps with items than that."""
    starts = np.arange(0, items, spec.warps * per_warp)
    ends = np.minimum(starts + spec.warps * per_warp, items)
    filters = (ends - 1) // pairs - starts // pairs + 1
    return 0 if (filters > -(-(ends - starts) // per_warp)).any() else int(filters.max())


def chosen(
    spec: Spec, kind: str, items: int, pairs: int, blocks: int, where: Device | None = None
) -> tuple[Spec, int] | None:
    """The kernel that transforms filters of type ``kind`` too, and items of a warp, for about so many ``blocks``.

    None where it can not, or there is no room.
    """
    if spec.n not in LENGTHS["right-angle" if spec.right_angle else "pair"] or spec.kept or spec.sequences:
        return None
    per_warp = -(-items // (spec.warps * max(1, blocks)))
    filters = needed(spec, items, pairs, per_warp)
    if not filters:
        return None
    spec = replace(spec, taps=kind, filters=1 << (filters - 1).bit_length())
    if where is not None and where.shared_bytes_per_sm and where.shared_bytes_per_block:
        room = where.shared_bytes_per_sm // min_blocks(spec) - RESERVED_BYTES
        if spec.shared_bytes > min(room, where.shared_bytes_per_block):
            return None
    return spec, per_warp


def family(spec: Spec) -> Any:
    """What `launch` asks of a kernel family: `fused_warp`, whose arguments are taps and tables for a spectrum here."""
    from kernels_numba import fused_warp

    pointers = list(fused_warp.SIGNATURE)
    pointers[4:6] = [filter_passes.TAP_POINTERS[spec.taps], "WORDS"]
    return SimpleNamespace(
        __name__=fused_warp.__name__,
        build=fused_warp.build,
        SIGNATURE=tuple(pointers),
        VOCABULARY="float",
        min_blocks=min_blocks,
    )
