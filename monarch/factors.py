"""Factor lists: reading, writing, enumerating and choosing them.

A transform of ``P`` points and order ``p`` is described by its ordered factors ``(N1, ..., Np)`` with
product ``P``. One direction costs ``8 P (N1 + ... + Np)`` real operations, so balanced lists of small
factors are cheap; each stage also moves the data once, so orders are not free. GPUs want every factor to be
a multiple of 16, the edge of a tensor-core tile.

The work of a list, used wherever a choice is made without asking the cost model, is

    work(N1..Np) = P (N1 + ... + Np + 8 p),

in units of one complex multiply-add per point. The 8 is the price of a stage's traffic: Equation 2 of Fu et
al. (arXiv 2311.05908) with the A100 constants printed there gives (4 / 9.5e12) / (16 / 234e12) = 6.2 for a
stage that stays on chip; the rounded-up figure leans towards fewer stages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import isqrt, prod

from ._check import whole_number

__all__ = ["choose_factors", "factor_lists", "format_factors", "parse_factors", "transform_length", "work"]

_STAGE_PRICE = 8
_COMFORTABLE = 32  # the largest factor whose matrix a warp still holds in registers
_TOLERABLE = 256  # beyond this a dense matrix costs more than tiles that do not fit


def check_factors(factors: object) -> tuple[int, ...]:
    """Return ``factors`` as a tuple of ints, each at least 2, or raise naming the offending entry."""
    if isinstance(factors, (str, bytes)) or not isinstance(factors, Iterable):
        raise TypeError(
            f"factors must be a sequence of integers such as (32, 32); got {factors!r}. "
            'For text such as "32x32" use monarch.parse_factors.'
        )
    checked = tuple(
        whole_number(f, name=f"factors[{i}]", least=2, meaning="one factor of the transform length")
        for i, f in enumerate(factors)
    )
    if not checked:
        raise ValueError("factors must hold at least one integer; got an empty sequence.")
    return checked


def parse_factors(text: str) -> tuple[int, ...]:
    """Read factors written as text: ``"32x32" -> (32, 32)``; ``*``, ``,`` and spaces separate as well.

    Raises:
        TypeError: ``text`` is not a string.
        ValueError: ``text`` is not integers >= 2 with separators between.
    """
    if not isinstance(text, str):
        raise TypeError(f'text must be a string such as "32x32"; got {text!r} of type {type(text).__name__}.')
    parts = re.split(r"\s*[x×*,]\s*|\s+", text.strip().lower())
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f'text must be integers joined by "x", such as "16x16x32"; got {text!r}.')
    return check_factors([int(part) for part in parts])


def format_factors(factors: Sequence[int]) -> str:
    """Write factors as text: ``(32, 32) -> "32x32"``. ``parse_factors`` reads it back."""
    return "x".join(str(f) for f in check_factors(factors))


def work(factors: Sequence[int]) -> int:
    """Return the work of a factor list, ``P (sum of factors + 8 p)`` (see the module's text)."""
    return prod(factors) * (sum(factors) + _STAGE_PRICE * len(factors))


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def _lists(
    points: int, order: int | None, choices: Sequence[int], descending: bool
) -> Iterator[tuple[int, ...]]:
    """Yield the lists of ``order`` (or any) factors from ``choices`` with product ``points``."""
    if points == 1:
        if not order:
            yield ()
        return
    if order == 0:
        return
    for first in choices:
        if points % first == 0:
            left = [c for c in choices if c <= first] if descending else choices
            for others in _lists(points // first, None if order is None else order - 1, left, descending):
                yield (first, *others)


def _choices(points: int, multiple_of: int, largest: int | None) -> list[int]:
    return [
        d for d in _divisors(points) if d >= 2 and d % multiple_of == 0 and (largest is None or d <= largest)
    ]


def factor_lists(
    points: int, *, order: int | None = None, multiple_of: int = 16, largest: int | None = None
) -> list[tuple[int, ...]]:
    """Return every ordered factor list of ``points``, by order and then by value.

    Args:
        points: the transform length to factor, at least 2.
        order: the number of factors; None for all orders.
        multiple_of: each factor is a multiple of this; 1 allows any integers (there can be very many lists).
        largest: the largest factor allowed; None for no limit.

    Returns:
        Ordered lists: (16, 32) and (32, 16) both appear. Empty when there is none.
    """
    points = whole_number(points, name="points", least=2, meaning="the transform length to factor")
    multiple_of = whole_number(
        multiple_of, name="multiple_of", least=1, meaning="what each factor is a multiple of"
    )
    if order is not None:
        order = whole_number(order, name="order", least=1, meaning="the number of factors")
    if largest is not None:
        largest = whole_number(largest, name="largest", least=2, meaning="the largest factor allowed")
    found = _lists(points, order, _choices(points, multiple_of, largest), False)
    return sorted(found, key=lambda factors: (len(factors), factors))


def choose_factors(points: int, *, order: int | None = None) -> tuple[int, ...]:
    """Choose a factor list without knowing the GPU; deterministic.

    1. Factors are multiples of 16 if ``points`` (and ``order``) allow it, otherwise any integers. Without
       ``order``, "allow" includes that no factor need exceed 256: 1152 points are 36x32, not one matrix of
       1152.
    2. Without ``order``: the smallest order that has a list with no factor above 32; if there is none, any
       order.
    3. Among those, the least work (the most balanced list of an order).
    4. The factors stand largest first: zero padding is skipped by whole 16-row tiles of the first axis,
       so a long first axis skips more precisely.

    Raises:
        ValueError: ``points`` has no list of this order.
    """
    points = whole_number(points, name="points", least=2, meaning="the transform length to factor")
    if order is not None:
        order = whole_number(order, name="order", least=1, meaning="the number of factors")
    for multiple_of in (16, 1):
        lists = list(_lists(points, order, _choices(points, multiple_of, None), True))
        if multiple_of > 1 and order is None:
            lists = [factors for factors in lists if factors[0] <= _TOLERABLE]
        if not lists:
            continue
        comfortable = [factors for factors in lists if factors[0] <= _COMFORTABLE]
        if comfortable and order is None:
            fewest = min(len(factors) for factors in comfortable)
            lists = [factors for factors in comfortable if len(factors) == fewest]
        return min(lists, key=lambda factors: (work(factors), len(factors), factors))
    legal = sorted({len(factors) for factors in _lists(points, None, _choices(points, 1, None), True)})
    raise ValueError(
        f"order must be between 1 and {legal[-1]} for {points} points (it has no more prime factors); "
        f"got {order}. monarch.transform_length({points}) may give a longer transform that has more."
    )


def transform_length(minimum: int, *, multiple_of: int = 16) -> int:
    """Return the cheapest legal transform length of at least ``minimum`` points.

    Every factor is a multiple of ``multiple_of`` and there are at least two of them, so for 16 the
    candidates are 256, 512, 768, 1024, 1280, ..., not only powers of two; the one of least work wins, then
    the shortest. A slightly longer transform with small factors often beats a tight one: 4096 = 16x16x16 is
    cheaper than 2560 = 32x80.

    Args:
        minimum: the number of points that must fit, at least 1. A plan with half-length packing transforms
            ``N / 2`` points: take ``2 * transform_length((N + 1) // 2)``.
        multiple_of: what each factor is a multiple of.
    """
    minimum = whole_number(minimum, name="minimum", least=1, meaning="the points that must fit")
    multiple_of = whole_number(
        multiple_of, name="multiple_of", least=1, meaning="what each factor is a multiple of"
    )
    smallest = max(2, multiple_of)
    best = (work((smallest, -(-minimum // smallest) * smallest)), -(-minimum // smallest) * smallest**2)
    order = 2
    while True:
        best = _cheapest_cover(minimum, (), order, step=multiple_of, smallest=smallest, best=best)
        if smallest**order >= minimum:
            return best[1]  # one more factor would only add work
        order += 1


def _cheapest_cover(
    minimum: int, chosen: tuple[int, ...], left: int, *, step: int, smallest: int, best: tuple[int, int]
) -> tuple[int, int]:
    """Extend ``chosen`` by ``left`` factors, non-decreasing, to ``minimum``; return the best (work, points).

    Branch and bound: by the inequality of arithmetic and geometric means, ``left`` factors with product
    ``q`` sum to at least ``left * q ** (1 / left)``.
    """
    short = -(-minimum // prod(chosen))  # what the remaining factors must at least multiply to
    if left == 1:
        complete = (*chosen, max(smallest, -(-short // step) * step))
        return min(best, (work(complete), prod(complete)))
    order = len(chosen) + left
    if minimum * (sum(chosen) + left * short ** (1 / left) * (1 - 1e-9) + _STAGE_PRICE * order) > best[0]:
        return best
    factor = smallest
    while True:
        best = _cheapest_cover(minimum, (*chosen, factor), left - 1, step=step, smallest=factor, best=best)
        if factor**left >= short:  # a larger smallest factor only overshoots further
            return best
        factor += step
