"""The order-p Monarch transform, executed from a plan in float64.

Forward, with ``P = N1 ... Np`` and the data seen as ``[k1 ... k_i-1, n_i, rest_i]``:

    x[k1.., n_i, m]  ->  T_i[k_i, m] * sum_{n_i} F_Ni[k_i, n_i] x[k1.., n_i, m],       i = 1 .. p,

which is the unitary DFT in digit order. The inverse undoes the stages from the last to the first, with
conjugate twiddles and matrices. Order 1 is the plain matrix product with ``F_P``. Each stage is one batched
matrix product of shape ``[Ni, Ni] x [Ni, rest_i]``, exactly what a kernel hands to tensor cores.

Source: Fu et al., FlashFFTConv, arXiv 2311.05908, section 3; Bailey, J. Supercomputing 4 (1990), for order 2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .index import digit_order_of, natural_order_of
from .plan import Plan

__all__ = ["digit_order", "natural_order", "transform"]


def transform(x: ArrayLike, plan: Plan, *, inverse: bool = False) -> NDArray[np.complex128]:
    """Transform the last axis: ``[..., P] -> [..., P]`` complex128, unitary.

    Args:
        x: real or complex; the last axis holds ``plan.points`` values, in natural order (forward) or in
            digit order (inverse).
        plan: gives the factors. Its packing matters only through ``plan.points``: packing is done by the
            caller.
        inverse: undo the forward transform.

    Returns:
        Digit order ``[k1, ..., kp]`` flattened (forward), natural order (inverse).
        ``transform(x, plan)[..., natural_order(plan)]`` equals ``numpy.fft.fft(x, norm="ortho")``.

    Raises:
        ValueError: the last axis does not hold ``plan.points`` values.
    """
    data = np.asarray(x)
    if data.ndim == 0 or data.shape[-1] != plan.points:
        raise ValueError(
            f"x must have {plan.points} values along its last axis (the points of the plan {plan}); "
            f"got shape {data.shape}."
        )
    shape = data.shape
    work = np.asarray(data, np.complex128)  # every contraction makes a new array, so x is never written to
    for stage in reversed(range(plan.order)) if inverse else range(plan.order):
        work = work.reshape(-1, plan.factors[stage], plan.strides[stage])
        if inverse:
            if stage < plan.order - 1:
                work *= plan.twiddle(stage).conj()
            work = _contract(plan.dft(stage, inverse=True), work)
        else:
            work = _contract(plan.dft(stage), work)
            if stage < plan.order - 1:
                work *= plan.twiddle(stage)
    return work.reshape(shape)


def _contract(matrix: NDArray[np.complex128], data: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """``[N, N], [batch, N, rest] -> [batch, N, rest]``; the matrix is symmetric, so either side will do."""
    if data.shape[-1] == 1:  # one large product instead of many matrix-vector ones
        return (data[..., 0] @ matrix)[..., None]
    return matrix @ data


def digit_order(plan: Plan) -> NDArray[np.int64]:
    """Return ``d`` of shape ``[P]`` with ``X_digit = X_natural[..., d]``: the frequency held by each slot."""
    return digit_order_of(plan.factors)


def natural_order(plan: Plan) -> NDArray[np.int64]:
    """Return ``d`` of shape ``[P]`` with ``X_natural = X_digit[..., d]``: the slot of each frequency."""
    return natural_order_of(plan.factors)
