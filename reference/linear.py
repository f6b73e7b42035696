r"""Linear layers in float64: ``y = x w^T``, and how far from it a kernel's result may lie.

Shapes: ``x [..., M, K]``, ``w [N, K]`` (a row per output, the usual layout), ``y [..., M, N]``:

    y[m, n] = sum_k x[m, k] w[n, k]

**Bound.** Let u be the unit roundoff of the storage type, v = 2^-24 that of the fp32 sums and
gamma_K(v) = K v / (1 - K v). K products and sums in any order, whole or split, err by at most
gamma_K(v) |x| |w|^T (Higham, *Accuracy and Stability of Numerical Algorithms*, section 3.1). Storage adds

- operands rounded to half on the way in, the result kept in fp32: u for each operand, 2 u |x| |w|^T
  (Blanchard, Higham, Lopez, Mary, Pranesh, SIAM J. Sci. Comput. 42, 2020), or
- operands that are half already, so that their products are exact in fp32, and a result rounded to half: u |y|.
  The other u covers the sums of tensor cores, which cut bits off instead of rounding (Fasi, Higham, Mikaitis,
  Pranesh, PeerJ Comput. Sci. 7:e330, 2021),

so that, element by element,

.. math::
    |\hat y - y| \le (2 u + \gamma_K(v))\, |x|\, |w|^T .

That must hold for any data, but it is much larger than what kernels do: |x| |w|^T grows like K and random y like
sqrt K, so one of 4096 terms could be missing unnoticed. **The check** therefore also uses what is likely. Of the
second kind u |y| remains. Roundings of the sums are independent, with probability 1 - 2 exp(-lambda^2 / 2) below
lambda sqrt(K) v (Higham and Mary, SIAM J. Sci. Comput. 41, 2019), here lambda = 4. What tensor cores cut off points
toward zero and adds up: 8 to 16 products and a sum, aligned with a bit or two to spare, lose about 5 v a step, and on
a sum that grows from nothing at most K v / 3 in all. Together u |y| + (4 sqrt K + K / 3) v |x| |w|^T.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import widen, widen_real
from .accuracy import unit_roundoff

__all__ = ["check_linear", "linear", "linear_bound"]

_SINGLE, _HALF = 2.0**-24, 2.0**-11
_UNDERFLOW = 2.0**-25
"""Below the normal numbers of fp16 rounding is absolute: half their spacing. (Those of bf16 end at 2^-126.)"""


def _operands(x: ArrayLike, w: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows, weights = widen_real(x, "x"), widen_real(w, "w")
    if rows.ndim == 0 or rows.shape[-1] == 0:
        raise ValueError(f"x must be [..., M, K] with K >= 1; got shape {rows.shape}.")
    if weights.ndim != 2 or 0 in weights.shape:
        raise ValueError(f"w must be [N, K] with N >= 1 and K >= 1; got shape {weights.shape}.")
    if rows.shape[-1] != weights.shape[1]:
        raise ValueError(
            f"w must be [N, K] with the K={rows.shape[-1]} of x [..., M, K], one row per output; got w "
            f"{weights.shape} and x {rows.shape}. Pass w.T if it is stored as [K, N]."
        )
    return rows, weights


def linear(x: ArrayLike, w: ArrayLike) -> NDArray[np.float64]:
    """Return ``x @ w.T`` in float64: ``x [..., M, K]`` (or ``[K]``), ``w [N, K]`` to ``[..., M, N]``.

    Args:
        x: real, any dtype up to double; M = 0 gives an empty result.
        w: likewise, a row per output; N >= 1, K >= 1.

    Raises:
        TypeError: complex data, or a dtype that double precision does not hold.
        ValueError: shapes that do not fit, K = 0 or N = 0.
    """
    rows, weights = _operands(x, w)
    return np.matmul(rows, weights.T)


def _sums(terms: int, dtype: object) -> tuple[float, float, float]:
    """Return u of the storage, v of the sums (fp32, or better if the storage is) and gamma_K(v)."""
    u = unit_roundoff(dtype)
    v = min(u, _SINGLE)
    if terms * v >= 1:
        raise ValueError(
            f"x and w must have K < {int(1 / v)} for sums in fp32 to mean anything; got K={terms}."
        )
    return u, v, terms * v / (1 - terms * v)


def linear_bound(x: ArrayLike, w: ArrayLike, dtype: object) -> NDArray[np.float64]:
    """Return the largest error of each element, ``(2 u + gamma_K(2^-24)) |x| |w|^T``, shape of `linear`.

    Where every term is zero the bound is zero. Values below the normal range of ``dtype`` are not covered.

    Args:
        x: as for `linear`, and so is ``w``.
        w: the weights.
        dtype: what operands and result are stored in, a dtype or a name such as "fp16"; sums are in fp32 (for
            float64 in float64).
    """
    rows, weights = _operands(x, w)
    u, _, gamma = _sums(rows.shape[-1], dtype)
    return (2 * u + gamma) * np.matmul(np.abs(rows), np.abs(weights).T)


def _exact(values: NDArray[np.float64], name: str, u: float) -> None:
    """Raise unless all values have the significand of the storage type."""
    significand = np.frexp(values)[0] / u  # integers up to 1 / u
    if not np.array_equal(significand, np.rint(significand)):
        raise ValueError(
            f"{name} must hold values of the given dtype, as the kernel got them; round it first."
        )


def check_linear(y: ArrayLike, x: ArrayLike, w: ArrayLike, *, dtype: object) -> float:
    """Raise AssertionError unless ``y`` is ``x w^T`` as a sound kernel computes it; return error / tolerance.

    To see partial sums kept in half, give it operands whose parts of K nearly cancel. ``x`` and ``w`` are what the
    kernel got, values of ``dtype``; ``y`` is the result to judge, ``[..., M, N]``.

    Raises:
        AssertionError: an element is off by more than the smaller of `linear_bound` and the likely error (see
            the module's text), or is not finite.
        ValueError: shapes that do not fit, operands not in ``dtype``, or data for which zeros would pass.
    """
    exact, got = linear(x, w), widen(y, "y")
    if got.shape != exact.shape:
        raise ValueError(f"y must have the shape [..., M, N] of x w^T, {exact.shape}; got {got.shape}.")
    rows, weights = _operands(x, w)
    terms = rows.shape[-1]
    u, v, _ = _sums(terms, dtype)
    _exact(rows, "x", u)
    _exact(weights, "w", u)
    if not np.all(np.isfinite(exact)):
        raise ValueError("x and w must have a finite product: NaN compares with nothing.")
    size = np.abs(rows) @ np.abs(weights).T
    likely = u * np.abs(exact) + (4 * np.sqrt(terms) + terms / 3) * v * size
    allowed = np.minimum(likely, linear_bound(rows, weights, dtype)) + _UNDERFLOW * (size > 0) * (u == _HALF)
    if np.linalg.norm(exact) < 2 * np.linalg.norm(allowed):
        raise ValueError("x and w cancel so far that zeros would pass. Use operands with a larger product.")
    finite = np.isfinite(got)
    error = np.abs(np.where(finite, got, exact) - exact)
    ratio = np.where(error > 0, np.inf, 0.0)
    np.divide(error, allowed, out=ratio, where=allowed > 0)
    ratio[~finite] = np.inf
    worst = float(np.max(ratio, initial=0.0))
    if not worst <= 1:
        where = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
        raise AssertionError(
            f"y{list(where)} is {got[where]:.7g} instead of {exact[where]:.7g}: off by {error[where]:.4g}, "
            f"{worst:.3g} times the {allowed[where]:.4g} allowed; {np.sum(ratio > 1)} of {ratio.size} are wrong."
        )
    return worst
