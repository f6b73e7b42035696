r"""Constants of the transform: unitary DFT matrices and twiddle factors.

.. math::
    F_n[j, k] = \frac{1}{\sqrt n} e^{-2 \pi i\, jk / n}, \qquad
    T_{n, r}[k, m] = e^{-2 \pi i\, km / (n r)}, \quad 0 \le k < n,\ 0 \le m < r.

``F_n`` is ``[n, n]``, symmetric and unitary, so a vector keeps its norm through every stage and
half-precision values keep their magnitude; ``T`` is ``[n, r]``.

The phase is reduced exactly, in integers: first ``jk mod n``, then to the octant, so that sine and cosine
only ever see an argument in ``[0, pi/4]``. Each entry is then within about one unit in the last place,
whatever ``n``; ``exp(-2j*pi*j*k/n)`` evaluated as written would lose ``log2(jk)`` bits.

Arrays are cached and read-only.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import whole_number

__all__ = ["dft_matrix", "roots_of_unity", "twiddle_factors"]

_LARGEST_CACHED = 1 << 18  # entries (4 MiB); larger tables are made anew, so that the cache stays small


def roots_of_unity(exponent: ArrayLike, n: int) -> NDArray[np.complex128]:
    """Return ``exp(-2 pi i exponent / n)``, elementwise, to about one unit in the last place.

    Args:
        exponent: integers of any size and sign that fit in int64.
        n: the order of the root, at least 1 and at most 2**60.
    """
    n = whole_number(n, name="n", least=1, meaning="the order of the root of unity")
    quarter_turns, rest = np.divmod(4 * np.remainder(np.asarray(exponent, dtype=np.int64), n), n)
    # the angle is (quarter_turns + rest / n) * pi / 2; fold the second half of each quadrant onto the first
    folded = 2 * rest > n
    angle = np.where(folded, n - rest, rest) * (np.pi / 2 / n)
    cosine, sine = np.cos(angle), np.sin(angle)
    diagonal = 2 * rest == n  # an eighth of a turn: both parts are the same number
    cosine, sine = (np.where(diagonal, np.sqrt(0.5), part) for part in (cosine, sine))
    real, imaginary = np.where(folded, sine, cosine), np.where(folded, cosine, sine)
    root = np.empty(np.shape(angle), dtype=np.complex128)
    # multiply by (-i) ** quarter_turns by moving parts, which is exact
    root.real = np.choose(quarter_turns, [real, -imaginary, -real, imaginary])
    root.imag = np.choose(quarter_turns, [-imaginary, -real, imaginary, real])
    return root + 0.0  # no negative zeros


@lru_cache(maxsize=128)
def _cached_dft(n: int, inverse: bool) -> NDArray[np.complex128]:
    matrix = _dft(n)
    if inverse:
        matrix = matrix.conj()
    matrix.setflags(write=False)
    return matrix


def _dft(n: int) -> NDArray[np.complex128]:
    index = np.arange(n, dtype=np.int64)
    return roots_of_unity(index, n)[np.outer(index, index) % n] / np.sqrt(n)


def dft_matrix(n: int, *, inverse: bool = False) -> NDArray[np.complex128]:
    """Return the unitary DFT matrix ``F_n`` of shape ``[n, n]`` (its conjugate for the inverse), read-only.

    Raises:
        TypeError: ``n`` is not an integer.
        ValueError: ``n`` is below 1.
    """
    n = whole_number(n, name="n", least=1, meaning="the size of the DFT matrix")
    if n * n <= _LARGEST_CACHED:
        return _cached_dft(n, bool(inverse))
    matrix = _dft(n).conj() if inverse else _dft(n)
    matrix.setflags(write=False)
    return matrix


@lru_cache(maxsize=64)
def _cached_twiddles(n: int, rest: int) -> NDArray[np.complex128]:
    return _twiddles(n, rest)


def _twiddles(n: int, rest: int) -> NDArray[np.complex128]:
    # the exponent k * m stays below n * rest, so it needs no reduction
    exponent = np.outer(np.arange(n, dtype=np.int64), np.arange(rest, dtype=np.int64))
    table = roots_of_unity(exponent, n * rest)
    table.setflags(write=False)
    return table


def twiddle_factors(n: int, rest: int) -> NDArray[np.complex128]:
    """Return ``exp(-2 pi i k m / (n rest))`` as a read-only array of shape ``[n, rest]``.

    Args:
        n: the factor just contracted; ``k`` is its frequency.
        rest: the product of the factors still to come; ``m`` is their flattened index.
    """
    n = whole_number(n, name="n", least=1, meaning="the factor just contracted")
    rest = whole_number(rest, name="rest", least=1, meaning="the product of the remaining factors")
    return _cached_twiddles(n, rest) if n * rest <= _LARGEST_CACHED else _twiddles(n, rest)
