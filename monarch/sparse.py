"""Convolution with a sparse spectrum, done row by row: rows that no kept slot needs are never computed.

Between the stages only kept rows exist, as ``[..., V_i, rest_i]``. A stage takes those vectors of rows that
need the same rows next together, and multiplies them by these rows of the DFT matrix (by these columns of the
inverse). See `monarch.sparsity` for why that is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .convolution import filter_spectrum, on_circle
from .packing import half_filter, pack_half, pack_pairs, unpack_half, unpack_pairs
from .plan import Plan
from .sparsity import SparsityPattern

__all__ = ["sparse_circular_convolution"]


def sparse_circular_convolution(
    x: ArrayLike, h: ArrayLike, plan: Plan, pattern: SparsityPattern, *, counts: Counter[str] | None = None
) -> NDArray[np.float64] | NDArray[np.complex128]:
    """Do `circular_convolution` with the pattern's zeros in the spectrum of ``h``, skipping what they spare.

    Args:
        x: ``[B, ..., N]``, real for packings "pair" and "half".
        h: the filter on the circle, ``[N]`` or ``[..., N]`` of the shape of one batch element; its whole
            spectrum is computed here, and the pattern applied.
        plan: the plan.
        pattern: what is kept; symmetric unless the packing is "complex".
        counts: is added to: ``"rows 1"``, ``"rows 2"``, ... matrix rows multiplied in each stage, ``"flops"`` real
            operations (products, twiddles, pointwise), both directions and all transforms together. From the
            shapes of the products as they are done; `SparsityPattern.convolution_flops` foretells them.

    Returns:
        ``[B, ..., N]`` float64 for real packings, complex128 for "complex".

    Raises:
        TypeError, ValueError: as `circular_convolution`; a pattern of another plan, or not symmetric where the
            packing needs it.
    """
    pattern.check(plan)
    data, taps = on_circle(x, h, plan)
    tally: Counter[str] = Counter() if counts is None else counts
    live = np.flatnonzero(pattern.kept)
    if plan.packing == "half":
        a, b = half_filter(taps, plan)
        z = _forward(pack_half(data), plan, pattern, tally)
        mirrored = np.searchsorted(
            live, plan.mirror()[live]
        )  # all of them are live: the pattern is symmetric
        product = a[..., live] * z + b[..., live] * z[..., mirrored].conj()
    else:
        z = _forward(pack_pairs(data) if plan.packing == "pair" else data, plan, pattern, tally)
        product = filter_spectrum(taps, plan)[..., live] * z
    tally["flops"] += plan.pointwise_flops() // plan.points * product.size
    y = _inverse(product, plan, pattern, tally)
    if plan.packing == "half":
        return unpack_half(y)
    return unpack_pairs(y, data.shape[0]) if plan.packing == "pair" else y


def _groups(
    pattern: SparsityPattern, stage: int
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]]:
    """Yield ``parents [m]``, ``rows [r]`` of the stage's matrix and ``children [m, r]``: kept rows, by number.

    Parents are rows kept before the stage, children those it makes of them.
    """
    after = pattern.rows(stage).reshape(-1, pattern.factors[stage])
    needed = after[after.any(axis=1)]
    number = np.cumsum(needed).reshape(needed.shape) - 1
    if not needed.size:
        return
    kinds, kind = np.unique(needed, axis=0, return_inverse=True)
    for which, rows in enumerate(kinds):
        parents, chosen = np.flatnonzero(kind.reshape(-1) == which), np.flatnonzero(rows)
        yield parents, chosen, number[np.ix_(parents, chosen)]


def _forward(
    x: NDArray[Any], plan: Plan, pattern: SparsityPattern, tally: Counter[str]
) -> NDArray[np.complex128]:
    """Transform ``[..., P]`` into the kept slots, ``[..., V_p]``, in digit order."""
    lead = x.shape[:-1]
    work: NDArray[np.complex128] = np.asarray(x, np.complex128).reshape(-1, 1, plan.points)
    for stage, rest in enumerate(plan.strides):
        factor, kept = plan.factors[stage], int(np.count_nonzero(pattern.rows(stage)))
        work = work.reshape(len(work), -1, factor, rest)
        made = np.zeros((len(work), kept, rest), np.complex128)
        for parents, rows, children in _groups(pattern, stage):
            product = plan.dft(stage)[rows] @ work[:, parents]
            _count(tally, stage, product, factor)
            if stage < plan.order - 1:
                product *= plan.twiddle(stage)[rows]
                tally["flops"] += 6 * product.size
            made[:, children] = product
        work = made
    return work.reshape(*lead, work.shape[1])


def _inverse(
    z: NDArray[Any], plan: Plan, pattern: SparsityPattern, tally: Counter[str]
) -> NDArray[np.complex128]:
    """Transform kept slots, ``[..., V_p]``, back into ``[..., P]``; the other slots are zero."""
    lead = z.shape[:-1]
    work = z.reshape(prod(lead), z.shape[-1], 1)
    for stage in reversed(range(plan.order)):
        factor, rest = plan.factors[stage], plan.strides[stage]
        kept = int(np.count_nonzero(pattern.rows(stage - 1))) if stage else 1
        made = np.zeros((len(work), kept, factor, rest), np.complex128)
        for parents, rows, children in _groups(pattern, stage):
            operand = work[:, children]
            if stage < plan.order - 1:
                operand = operand * plan.twiddle(stage)[rows].conj()
                tally["flops"] += 6 * operand.size
            made[:, parents] = plan.dft(stage, inverse=True)[:, rows] @ operand
            _count(tally, stage, operand, factor)
        work = made.reshape(len(work), kept, factor * rest)
    return work.reshape(*lead, plan.points)


def _count(tally: Counter[str], stage: int, rows: NDArray[Any], factor: int) -> None:
    """Count a product with ``rows`` ``[batch, m, r, rest]``, made of ``factor`` rows each or going into as many."""
    tally[f"rows {stage + 1}"] += prod(rows.shape[:-1])
    tally["flops"] += 8 * factor * rows.size
