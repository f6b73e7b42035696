"""Least squares by Gauss-Newton with a numerical Jacobian and halved steps, for a handful of unknowns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

MOST_STEPS = 60
NEAR = 1e-6
"""Of unknowns that are logarithms of factors: a step below it changes nothing."""

Residuals = Callable[[NDArray], NDArray]


def minimise(
    residuals: Residuals, size: int, *, steps: int = MOST_STEPS, start: NDArray | None = None
) -> tuple[NDArray, NDArray]:
    """The ``x`` [size] with the least sum of squares of ``residuals(x)``, and its covariance; starts at zeros."""
    x = np.zeros(size) if start is None else start
    for _ in range(steps):
        r = residuals(x)
        step = -np.linalg.lstsq(jacobian(residuals, x), r, rcond=None)[0]
        scale = 1.0
        while scale > 1e-4 and np.sum(residuals(x + scale * step) ** 2) > np.sum(r**2):
            scale /= 2
        x = x + scale * step
        if np.max(np.abs(scale * step)) < NEAR:
            break
    slopes = jacobian(residuals, x)
    return x, np.linalg.inv(slopes.T @ slopes)


def jacobian(function: Residuals, x: NDArray, h: float = 1e-4) -> NDArray:
    """Slopes of ``function`` at ``x`` [results, size], by differences to both sides."""
    columns = [(function(x + h * e) - function(x - h * e)) / (2 * h) for e in np.eye(len(x))]
    return np.stack(columns, axis=1)
