"""Least squares by Gauss-Newton with a numerical Jacobian and halved steps, for a handful of unknowns.

With a limit the loss is Huber's: residuals beyond it count in proportion and not by their squares, so that few cases of
another kind do not decide for all (iteratively reweighted least squares).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

MOST_STEPS = 60
NEAR = 1e-6
"""Of unknowns that are logarithms of factors: a step below it changes nothing."""
LEAST_GAIN = 1e-5
"""Of the loss, relative: where its slope has a kink, steps go on for long without gaining anything."""

Residuals = Callable[[NDArray], NDArray]


def minimise(
    residuals: Residuals,
    size: int,
    *,
    steps: int = MOST_STEPS,
    start: NDArray | None = None,
    limit: float = np.inf,
) -> tuple[NDArray, NDArray]:
    """The ``x`` [size] with the least loss of ``residuals(x)``, and its covariance; starts at zeros."""
    x = np.zeros(size) if start is None else start
    for _ in range(steps):
        r = residuals(x)
        weight = np.sqrt(limit / np.maximum(np.abs(r), limit)) if np.isfinite(limit) else np.ones_like(r)
        slopes = weight[:, None] * jacobian(residuals, x)
        # Of a thousand cases and forty unknowns, which all are held near a value: the normal equations are enough.
        step = -np.linalg.solve(slopes.T @ slopes, slopes.T @ (weight * r))
        scale, now = 1.0, loss(r, limit)
        while scale > 1e-4 and loss(residuals(x + scale * step), limit) > now:
            scale /= 2
        x = x + scale * step
        if np.max(np.abs(scale * step)) < NEAR or now - loss(residuals(x), limit) < LEAST_GAIN * now:
            break
    return x, np.linalg.inv(slopes.T @ slopes)


def loss(residuals: NDArray, limit: float) -> float:
    """The sum of squares, of which those beyond ``limit`` go on as straight lines."""
    size = np.abs(residuals)
    near = np.minimum(size, limit)
    return float(np.sum(near * (2 * size - near)))


def jacobian(function: Residuals, x: NDArray, h: float = 1e-4) -> NDArray:
    """Slopes of ``function`` at ``x`` [results, size], by differences to both sides."""
    columns = [(function(x + h * e) - function(x - h * e)) / (2 * h) for e in np.eye(len(x))]
    return np.stack(columns, axis=1)
