"""Index maps of the order-p transform.

A vector of ``P = N1 N2 ... Np`` points is read row-major as ``x[n1, ..., np]``. The forward transform leaves
``X[k1, ..., kp]`` in *digit order*: the slot holds the frequency

    k = k1 + N1 (k2 + N2 (k3 + ...)),

that is, the digits of ``k`` in mixed radix, least significant first. Nothing ever needs to be moved: a filter
spectrum stored in the same order multiplies slot by slot, and the inverse starts from that order. The maps
here serve to compare with a transform in natural order, and to find the slot of ``-k``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

__all__ = ["digit_order_of", "mirror_of", "mirror_pairs_of", "natural_order_of"]


def digit_order_of(factors: Sequence[int]) -> NDArray[np.int64]:
    """Return ``d`` of shape ``[P]`` with ``X_digit = X_natural[d]``: ``d[slot]`` is the slot's frequency."""
    shape = tuple(reversed(tuple(factors)))
    return np.arange(prod(shape), dtype=np.int64).reshape(shape).transpose().reshape(-1)


def natural_order_of(factors: Sequence[int]) -> NDArray[np.int64]:
    """Return ``d`` of shape ``[P]`` with ``X_natural = X_digit[d]``: ``d[k]`` is the slot holding ``k``."""
    # the inverse of reversing the axes is reversing the axes of the other shape
    return digit_order_of(tuple(reversed(tuple(factors))))


def mirror_of(factors: Sequence[int]) -> NDArray[np.int64]:
    """Return ``d`` of shape ``[P]``: where ``slot`` holds ``k``, ``d[slot]`` is the slot of ``-k mod P``."""
    frequency = digit_order_of(factors)
    return natural_order_of(factors)[-frequency % frequency.size]


def mirror_pairs_of(factors: Sequence[int], *, nested: bool = False) -> list[NDArray[np.int64]]:
    """Return for each axis the pair that its digit belongs to, ``[P]``, the same for the slots of k and -k.

    From k to -k the first digit that is not zero goes to ``n - d``, pairs ``{0, n / 2}, {1, n - 1}, ...``, and
    those after it to ``n - 1 - d``, pairs ``{0, n - 1}, {1, n - 2}, ...``. Pairs count from 0; an even axis has
    n / 2 of two rows each. On an odd axis 0, or the middle, stands alone.

    Args:
        factors: (N1, ..., Np).
        nested: after the first axis the first m pairs of the first kind lie within the first m of the second, so
            that m pairs are the same rows for all digits before; 0 then stands alone, and n / 2 comes last.
    """
    pairs = []
    digits = np.unravel_index(np.arange(prod(factors)), tuple(factors))
    leading = np.ones(prod(factors), np.bool_)  # all digits so far are zero
    for axis, (digit, n) in enumerate(zip(digits, factors, strict=True)):
        first = np.minimum(digit, n - digit)
        if n % 2 == 0:
            first = np.minimum(first, n // 2 - 1) if nested and axis else first % (n // 2)
        pairs.append(np.where(leading, first, np.minimum(digit, n - 1 - digit)).astype(np.int64))
        leading = leading & (digit == 0)
    return pairs
