"""Checks of the arguments that `fftconv` and its gradients share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import monarch

from ._arguments import check_shapes, widen, widen_gate

__all__ = ["check_gradient", "plan_length", "prepare"]


def prepare(
    u: ArrayLike, k: ArrayLike, mode: str, pregate: ArrayLike | None, postgate: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]:
    """Return ``u * pregate``, ``k`` and ``postgate``, widened and checked."""
    if mode not in monarch.MODES:
        raise ValueError(f"mode must be one of {', '.join(monarch.MODES)}; got {mode!r}.")
    x, taps = widen(u, "u"), widen(k, "k")
    check_shapes(x, taps)
    if mode == "circular" and taps.shape[-1] > x.shape[-1]:
        raise ValueError(
            f"k must have at most L={x.shape[-1]} taps, as u has samples, for a circular convolution; "
            f'got {taps.shape[-1]}. Fold it onto the circle, or use mode "causal" or "two-sided".'
        )
    before, after = widen_gate(pregate, "pregate", x), widen_gate(postgate, "postgate", x)
    return (x if before is None else x * before), taps, after


def plan_length(plan: monarch.Plan, mode: str, samples: int, taps: int, least: int) -> int:
    """Return the plan's circular length, or raise if it does not hold the convolution."""
    if not isinstance(plan, monarch.Plan):
        raise TypeError(
            f"plan must be a monarch.Plan, such as monarch.plan({least}); got {type(plan).__name__}."
        )
    if mode == "circular" and plan.packing == "right-angle":
        raise ValueError(
            f'plan must be of whole circles for mode "circular"; got {plan}, which gives half of one. '
            f'Plan({plan.n}, factors, packing="pair") is.'
        )
    if mode == "circular" and plan.n != samples:
        least = samples + taps - 1
    if plan.n < least:
        raise ValueError(
            f"plan must have n >= {least} for mode {mode!r} with L={samples} and K={taps}; got {plan}. "
            f"monarch.plan(monarch.transform_length({least})) makes one."
        )
    for name, value in (("signal", plan.signal), ("wanted", plan.wanted)):
        if value is not None and value < samples:
            raise ValueError(f"plan must have {name} >= L={samples}; got {plan}.")
    return plan.n


def check_gradient(dy: ArrayLike, x: NDArray[Any], is_complex: bool) -> NDArray[Any]:
    """Return ``dy`` widened; raise unless it is a gradient in y."""
    g = widen(dy, "dy")
    if g.shape != x.shape:
        raise ValueError(f"dy must have the shape of u and y, {x.shape}; got {g.shape}. Broadcast it first.")
    if np.iscomplexobj(g) and not is_complex:
        raise TypeError(
            f"dy must be real, as y is for real operands; got {np.asarray(dy).dtype}. Pass its real part."
        )
    return g
