r"""How far half-precision gradients of an FFT convolution may be from the exact ones; the counting of `accuracy`.

**In the signal and the gates** the gradient is the convolution's own chain of roundings, with e = dy * postgate in
place of u (and the conjugate spectrum): `fftconv_bound` holds as it is, and `check_close` compares, by norms alone:

    du         check_close(du, exact, dy, k, pregate=postgate, postgate=pregate, ...)
    dpregate   check_close(dpregate, exact, dy, k, pregate=postgate, postgate=u, ...)
    dpostgate  check_close(dpostgate, exact, u, k, pregate=pregate, postgate=dy, ...)

**In the filter** there are three directions of p stages: two forward (e and x), one back. Rounded before and after the
twiddles, a forward direction rounds 4 p - 2 times (matrix, its product, twiddles, their product; the last stage
has no twiddles), the product of the spectra, summed over the batch in fp32, once, and the way back 4 p - 2 times.
At most 12 p - 5 independent roundings of u / sqrt 6 each, carried on without growth:

.. math::
    \frac{\|\widehat{dk} - dk\|_2}{\sqrt{\sum_b \|e_b\|_2^2 \|x_b\|_2^2}} \lesssim
    \sqrt{12 p}\,\frac{u}{\sqrt 6} = 1.41 \sqrt p\, u .

The denominator is that of independent errors: an error of e_b spreads over all frequencies, so its product with
conj X_b is of the size ||error|| ||x_b||, and sequences add in quadrature. That is for all N places of the circle; K
taps of them have sqrt(K / N) of it. A kernel that rounds only after twiddles and products rounds 9 p - 4 times:
0.41 sqrt(9 p - 4) u. In fp32, of N points, three directions have 3/2 of the squared error of a convolution's two.
A pair shares its errors: ||e_b|| and ||x_b|| are then at least their rms over the pair.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import widen, widen_gate
from .accuracy import fft32_bound, unit_roundoff
from .comparison import RelativeError, hold, judge, norm, shared

__all__ = [
    "check_filter_gradient",
    "filter_gradient32_bound",
    "filter_gradient_bound",
    "filter_gradient_error",
]


def filter_gradient_bound(order: int, dtype: object, *, gates: int = 0, coherent: bool = False) -> float:
    """Return the bound on the relative L2 error of a half-precision gradient in the filter: 1.41 sqrt(p) u.

    Args:
        order: p, the number of factors.
        dtype: what operands are stored in; sums, that over the batch too, are in fp32.
        gates: how many gates are applied (0 to 2), one more rounding each.
        coherent: for data with structure, whose 12 p roundings may each reach u and add up.
    """
    if order < 1 or gates < 0:
        raise ValueError(f"order must be at least 1 and gates at least 0; got {order} and {gates}.")
    u = unit_roundoff(dtype)
    return (12 * order + gates) * u if coherent else float(np.sqrt((12 * order + gates) / 6)) * u


def filter_gradient32_bound(n: int, *, terms: int = 1, gates: int = 0) -> float:
    """Return the bound on the relative L2 error of an fp32 gradient in the filter: 1.35 sqrt(log2 n) u.

    Adding ``terms`` sequences (or pairs) one after the other, as independent as their errors, rounds sums that grow as
    the square root: terms / 12 of u^2 in all. ``gates`` as for `fft32_bound`, whose square has two thirds of the rest.
    """
    if terms < 1:
        raise ValueError(f"terms must be at least 1; got {terms}.")
    u = unit_roundoff("fp32")
    return float(np.sqrt(1.5 * fft32_bound(n) ** 2 + (terms / 12 + gates / 6) * u**2))


def filter_gradient_error(
    dk: ArrayLike,
    dk_ref: ArrayLike,
    dy: ArrayLike,
    u: ArrayLike,
    *,
    pregate: ArrayLike | None = None,
    postgate: ArrayLike | None = None,
    pairs: bool = False,
) -> RelativeError:
    """Return ``||dk - dk_ref|| / max(sqrt(sum ||dy||^2 ||u||^2), ||dk_ref||)``: worst filter, overall, and where.

    Args:
        dk: the gradient to judge, ``[H, K]`` or ``[K]``, any dtype. A NaN or infinity anywhere makes the error
            infinite.
        dk_ref: the exact gradient.
        dy: the gradient in y, ``[..., H, L]``.
        u: the signal, ``[..., H, L]``.
        pregate: as given to `fftconv`; ``u * pregate`` then takes the place of ``u``.
        postgate: likewise, ``dy * postgate`` that of ``dy``.
        pairs: batch elements 2b and 2b+1 were packed into one complex sequence and share their errors.
    """
    return _compare(dk, dk_ref, dy, u, (pregate, postgate), pairs)[0]


def check_filter_gradient(
    dk: ArrayLike,
    dk_ref: ArrayLike,
    dy: ArrayLike,
    u: ArrayLike,
    *,
    bound: float,
    pregate: ArrayLike | None = None,
    postgate: ArrayLike | None = None,
    pairs: bool = False,
) -> RelativeError:
    """Raise AssertionError unless every filter's gradient is within ``bound``; return the error.

    Raises:
        AssertionError: the error is larger; the message has the figures and the place.
        ValueError: the exact gradient is so small beside ``bound`` that zeros would pass.
    """
    found, size = _compare(dk, dk_ref, dy, u, (pregate, postgate), pairs)
    hold(found, size, bound, "dk_ref is {:.3g} of ||dy|| ||u||, {}. Use a dy that follows u.", "filter")
    return found


def _compare(
    dk: ArrayLike, dk_ref: ArrayLike, dy: ArrayLike, u: ArrayLike, gates: tuple[Any, Any], pairs: bool
) -> tuple[RelativeError, float]:
    got, exact = widen(dk, "dk"), widen(dk_ref, "dk_ref")
    e, x = widen(dy, "dy"), widen(u, "u")
    if e.shape != x.shape or x.ndim == 0:
        raise ValueError(f"dy and u must have one shape, [..., H, L]; got {e.shape} and {x.shape}.")
    if got.shape != exact.shape or exact.ndim not in (1, 2) or exact.shape[:-1] not in ((), x.shape[-2:-1]):
        raise ValueError(
            f"dk and dk_ref must have one shape, [H, K] or [K], with the H channels of u {x.shape}; "
            f"got {got.shape} and {exact.shape}."
        )
    if not np.all(np.isfinite(exact)):
        raise ValueError("dk_ref must be finite: it is the exact gradient, and NaN compares with nothing.")
    before, after = widen_gate(gates[0], "pregate", x), widen_gate(gates[1], "postgate", x)
    x, e = x if before is None else x * before, e if after is None else e * after
    terms: NDArray[Any] = shared(norm(e, axis=-1), x.shape, pairs) * shared(norm(x, axis=-1), x.shape, pairs)
    summed = norm(terms.reshape(-1, *exact.shape[:-1]), axis=0)
    return judge(got, exact, np.maximum(summed, norm(exact, axis=-1)))
