"""A forward transform in fp32, in a thread's registers and in shared memory between its stages.

The convolutions of `fused_float`, their gradients, and the transforms of filters and of filters' gradients all begin
like this. `fused_float` says what a stage does, `float_spec` which points a thread holds.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.float_spec import Shape, Stage


def four_stages(shape: Shape) -> list[Stage]:
    """The stages; those that a shorter list does not have are the last one again, and nothing of them is compiled."""
    return [shape.stages[min(i, len(shape.stages) - 1)] for i in range(4)]


def barrier_of(tile: Any, shape: Shape) -> Any:
    """What the threads of a transform meet at: no barrier of the block, where a warp has all of them."""
    return tile.warp_sync if shape.threads <= 32 and 32 % shape.threads == 0 else tile.barrier


def place_of(tile: Any, shape: Shape) -> Any:
    """A function of (butterfly, word ``base`` where points begin, step, radix): the word of its first point."""
    small, divide = tile.small, tile.divide
    shift, factor, _ = shape.padding

    def place(butterfly, base, step, radix):
        row = small(divide(butterfly, step))
        at = small(row * (radix * step) + butterfly - row * step)
        return small(base + 2 * (at + factor * (at >> shift)))

    return tile.function(place)


def starts_of(tile: Any, shape: Shape) -> Any:
    """A function of (thread j of a transform, word ``base`` where its points begin): where the thread's points begin.

    The column of each of three stages, then the word of the first point of each of four.
    """
    small, divide, place = tile.small, tile.divide, place_of(tile, shape)
    (step1, radix1), (step2, radix2), (step3, radix3), (step4, radix4) = (
        (s.step, s.radix) for s in four_stages(shape)
    )
    shift, factor, _ = shape.padding

    def starts(j, base):
        row = small(divide(j, step1))
        m1 = small(j - row * step1)
        at = small(row * (radix1 * step1) + m1)
        at1 = small(base + 2 * (at + factor * (at >> shift)))
        row = small(divide(j, step2))
        m2 = small(j - row * step2)
        at = small(row * (radix2 * step2) + m2)
        at2 = small(base + 2 * (at + factor * (at >> shift)))
        row = small(divide(j, step3))
        m3 = small(j - row * step3)
        at = small(row * (radix3 * step3) + m3)
        at3 = small(base + 2 * (at + factor * (at >> shift)))
        return m1, m2, m3, at1, at2, at3, place(j, base, step4, radix4)

    return tile.function(starts)


def forward_of(tile: Any, shape: Shape, *, live: int | None = None) -> Any:
    """A function of (points x, ``tables`` of twiddles, then what `starts_of` returns): the thread's bins.

    The first ``live`` points of each first butterfly are there. Others may still read shared memory when it returns.
    """
    order, held, four = len(shape.stages), shape.held, four_stages(shape)
    barrier, first = barrier_of(tile, shape), four[0]
    given = {} if live is None else {"live": live}
    dft1 = tile.dft_points(first.radix, first.groups, inverse=False, **given)
    dft2, dft3, dft4 = (tile.dft_points(s.radix, s.groups, inverse=False) for s in four[1:])
    turn1, turn2, turn3 = (tile.multiply_points(point_twiddles(shape, s), held) for s in four[:3])
    places = [point_places(shape, s) for s in four]
    put1, put2, put3 = (tile.store_points(x) for x in places[:3])
    get2, get3, get4 = (tile.load_points(x) for x in places[1:])

    def forward(x, tables, m1, m2, m3, at1, at2, at3, at4):
        put1(at1, turn1(dft1(x), tables, 4 * m1))
        barrier()
        x = dft2(get2(at2))
        if order > 2:
            put2(at2, turn2(x, tables, 4 * m2))
            barrier()
            x = dft3(get3(at3))
        if order > 3:
            put3(at3, turn3(x, tables, 4 * m3))
            barrier()
            x = dft4(get4(at4))
        return x

    return tile.function(forward)


def point_places(shape: Shape, stage: Stage, rows: int | None = None) -> tuple[int, ...]:
    """Distances of a thread's points from its first, in shared memory; of the first ``rows`` of each butterfly."""
    return tuple(int(shape.at(c)) for c in shape.constants(stage, rows or stage.radix))


def point_twiddles(shape: Shape, stage: Stage) -> Any:
    """A thread's twiddles of a stage; see `float_spec.tables`. Butterflies in the same column share them."""
    r, s = stage.radix, stage.step
    columns = [shape.threads * c % s for c in range(stage.groups)]
    split = len(stage.exponents) < r

    def turned(exponent: int, column: int) -> tuple[int, ...]:
        """The points that are multiplied by the twiddle of an exponent."""
        if not split:
            rows = [exponent] if exponent else []
        elif exponent < 4:
            rows = list(range(exponent, r, 4))
        else:
            rows = list(range(exponent, exponent + 4))
        return tuple(r * c + q for c in range(stage.groups) if columns[c] == column for q in rows)

    found = []
    for column in dict.fromkeys(columns):
        for i in range(0, len(stage.exponents), 2):
            pair = [turned(e, column) for e in stage.exponents[i : i + 2]]
            found.append((stage.table + 4 * (i // 2 * s + column), *pair, *[()] * (2 - len(pair))))
    return tuple(found)


def mirror_places(shape: Shape) -> Any:
    """Where the mirrors of a thread's points lie: (which start, distance); see `float_spec.mirrors`."""
    last = shape.stages[-1]
    return tuple(
        (c + (last.groups if q == 0 else 0), int(shape.at(last.radix - 1 - q)))
        for c in range(last.groups)
        for q in range(last.radix)
    )
