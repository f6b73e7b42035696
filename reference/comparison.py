"""Comparison of a result with the exact one, made to reject.

Errors are held against ``||u|| ||k||``, the size of the terms, not against ``|y|``, which cancellation can
make small; where the terms align (constant with constant, tone with tone), the result itself is larger and
takes its place. Two sequences packed as ``u1 + i u2`` share their rounding errors: with ``pairs`` the smaller
of the two is held to the root mean square of both. A comparison
that a result of zeros would pass is refused. The bounds are in `reference.accuracy`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import check_shapes, widen, widen_gate

__all__ = ["RelativeError", "check_close", "hold", "judge", "norm", "relative_error", "shared"]


class RelativeError(NamedTuple):
    """Relative L2 errors; infinite where the result is not finite."""

    worst: float  # of the worst sequence (one batch element of one channel)
    overall: float  # of everything together
    where: tuple[int, ...]  # index of the worst sequence


def norm(x: NDArray[Any], axis: int | None = None) -> NDArray[Any]:
    """Return the L2 norm, scaled by a power of two so that squares neither overflow nor vanish."""
    largest = float(np.max(np.abs(x), initial=0.0))
    scale = 2.0 ** np.floor(np.log2(largest)) if 0 < largest < np.inf else 1.0
    return scale * np.sqrt(np.sum(np.abs(x / scale) ** 2, axis=axis))


def shared(size: NDArray[Any], shape: tuple[int, ...], pairs: bool) -> NDArray[Any]:
    """Raise the size of each sequence ``[..., H]`` to the rms of its pair: batch elements 2b and 2b+1."""
    if not pairs:
        return size
    square = size.reshape(-1, *shape[-2:-1]) ** 2
    if len(square) % 2:
        square = np.concatenate([square, np.zeros_like(square[:1])])
    rms = np.sqrt(np.repeat((square[0::2] + square[1::2]) / 2, 2, axis=0))
    return np.maximum(size, rms[: size.size // rms[0].size].reshape(size.shape))


def _compare(
    y: ArrayLike, y_ref: ArrayLike, u: ArrayLike, k: ArrayLike, gates: tuple[Any, Any], pairs: bool
) -> tuple[RelativeError, float]:
    """Return the error, and how large the exact result is in the same measure."""
    got, exact, x, taps = widen(y, "y"), widen(y_ref, "y_ref"), widen(u, "u"), widen(k, "k")
    check_shapes(x, taps)
    if got.shape != exact.shape or exact.shape != x.shape:
        raise ValueError(f"y, y_ref and u must have one shape; got {got.shape}, {exact.shape} and {x.shape}.")
    if not np.all(np.isfinite(exact)):
        raise ValueError("y_ref must be finite: it is the exact result, and NaN compares with nothing.")
    before, after = widen_gate(gates[0], "pregate", x), widen_gate(gates[1], "postgate", x)
    terms = norm(x if before is None else x * before, axis=-1) * norm(taps, axis=-1)
    terms = shared(terms, x.shape, pairs)
    if after is not None:  # an error spread evenly over the sequence is scaled by the gate's rms
        terms = terms * norm(after, axis=-1) / np.sqrt(x.shape[-1])
    return judge(got, exact, np.maximum(terms, shared(norm(exact, axis=-1), x.shape, pairs)))


def judge(got: NDArray[Any], exact: NDArray[Any], size: NDArray[Any]) -> tuple[RelativeError, float]:
    """Compare along the last axis with ``size``; return the error, and how large the exact result is beside it."""
    size, finite = np.atleast_1d(size), np.all(np.isfinite(got), axis=-1)
    difference = np.atleast_1d(norm(np.where(finite[..., None], got, exact) - exact, axis=-1))
    error = np.full(size.shape, np.inf)
    np.divide(difference, size, out=error, where=size > 0)
    error[difference == 0] = 0.0  # where nothing went in, nothing may come out
    error[~np.atleast_1d(finite)] = np.inf
    worst, total = float(np.max(error)), float(norm(size))
    overall = float(norm(difference)) / total if np.isfinite(worst) and total else worst
    where = np.unravel_index(int(np.argmax(error)), error.shape)
    found = RelativeError(worst, overall, tuple(int(i) for i in where))
    return found, float(norm(exact)) / total if total else np.inf


def relative_error(
    y: ArrayLike,
    y_ref: ArrayLike,
    u: ArrayLike,
    k: ArrayLike,
    *,
    pregate: ArrayLike | None = None,
    postgate: ArrayLike | None = None,
    pairs: bool = False,
) -> RelativeError:
    """Return ``||y - y_ref|| / max(||u|| ||k||, ||y_ref||)``: worst sequence, overall, and where.

    Args:
        y: the result to judge, ``[..., H, L]``, any dtype. A NaN or infinity anywhere makes the error
            infinite.
        y_ref: the exact result.
        u: the signal, ``[..., H, L]``.
        k: the filter, ``[H, K]`` or ``[K]``.
        pregate: as given to `fftconv`; ``u * pregate`` then takes the place of ``u``.
        postgate: likewise; its root mean square multiplies ``||u|| ||k||``.
        pairs: batch elements 2b and 2b+1 were packed into one complex sequence and share their errors.
    """
    return _compare(y, y_ref, u, k, (pregate, postgate), pairs)[0]


def check_close(
    y: ArrayLike,
    y_ref: ArrayLike,
    u: ArrayLike,
    k: ArrayLike,
    *,
    bound: float,
    pregate: ArrayLike | None = None,
    postgate: ArrayLike | None = None,
    pairs: bool = False,
) -> RelativeError:
    """Raise AssertionError unless every sequence is within ``bound``; return the error.

    Raises:
        AssertionError: the error is larger; the message has the figures and the place.
        ValueError: the exact result is so small beside ``bound`` that zeros would pass: the check would be
            empty.
    """
    found, size = _compare(y, y_ref, u, k, (pregate, postgate), pairs)
    advice = "y_ref is {:.3g} of ||u|| ||k||, {}. Use a signal that the filter lets through."
    hold(found, size, bound, advice, "sequence")
    return found


def hold(found: RelativeError, size: float, bound: float, advice: str, what: str) -> None:
    """Raise unless the error is within the bound, and the bound well below the size of the exact result."""
    if not bound > 0:
        raise ValueError(f"bound must be positive; got {bound}.")
    if size < 2 * bound:
        raise ValueError(advice.format(size, f"within twice the bound {bound:.3g}: zeros would pass"))
    if not found.worst <= bound:
        raise AssertionError(
            f"relative error {found.worst:.4g} in {what} {list(found.where)} exceeds the bound {bound:.4g} "
            f"({found.worst / bound:.3g} times; overall error {found.overall:.4g})."
        )
