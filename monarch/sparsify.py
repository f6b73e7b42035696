"""Choosing a sparsity pattern: the most energy kept for a share of zeros, or the most zeros for an energy.

Both searches are exhaustive within their shape. Slots fall into cells, blocks of ``block`` rows along every
axis, and energies are summed per cell.

- "box", the shape of the paper's pattern: the first cells of every axis are kept. Prefix sums over the cells
  give what each of the boxes would lose, all at once.
- "blocks", any union of cells: cells are of one size, so those of least energy go first.

For real data a block is ``block / 2`` mirrored pairs of rows; see `monarch.sparsity`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import whole_number
from .index import mirror_pairs_of
from .plan import Plan
from .sparsity import SparsityPattern

__all__ = ["Sparsified", "sparsify"]

_ROUNDING = 1e-9  # of a share: 1 - 0.9 asks for a tenth of the slots, not for a tenth and one


@dataclass(frozen=True)
class Sparsified:
    """A pattern that was chosen, and what it keeps.

    Args:
        pattern: the pattern.
        energy_kept: the share of all filters' energy together; ``pattern.energy_kept(spectrum)`` has each
            filter's.
        flops_kept: the share of a convolution's real operations, ``pattern.convolution_flops(plan)`` of
            ``plan.convolution_flops()``.
    """

    pattern: SparsityPattern
    energy_kept: float
    flops_kept: float

    @property
    def sparsity(self) -> float:
        """The share of zeros."""
        return self.pattern.sparsity


def sparsify(
    spectrum: ArrayLike,
    plan: Plan,
    target: float,
    *,
    by: str = "sparsity",
    shape: str = "box",
    block: int | Sequence[int] | None = None,
) -> Sparsified:
    """Find the best block pattern for these filters, one for all of them.

    Args:
        spectrum: ``[..., P]`` in digit order, as `monarch.filter_spectrum` gives it; for packing "half"
            ``monarch.transform(monarch.pack_half(h), plan)``, whose energy in k and -k is that of the slots' real
            frequencies.
        plan: the plan; the pattern is symmetric unless its packing is "complex".
        target: for "sparsity" the least share of zeros, for "energy" the largest share of energy lost; at
            least 0 and below 1.
        by: "sparsity" (then the most energy is kept) or "energy" (then the most slots are zero).
        shape: "box" or "blocks"; see the module's text.
        block: rows per block along every axis, one number or one per axis; 16 is a tile of a tensor core.
            None for the smallest: 1, or 2 (a pair) where the pattern is symmetric.

    Raises:
        TypeError, ValueError: an argument that is not as above; a block that does not divide the rows (for
            "blocks") or is odd (for a symmetric pattern); a sparsity that would leave nothing.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a monarch.Plan; got {type(plan).__name__}.")
    values = np.asarray(spectrum)
    if values.ndim == 0 or values.size == 0 or values.shape[-1] != plan.points:
        raise ValueError(f"spectrum must be [..., {plan.points}] for the plan {plan}; got {values.shape}.")
    if by not in ("sparsity", "energy"):
        raise ValueError(f'by must be "sparsity" or "energy"; got {by!r}.')
    if shape not in ("box", "blocks"):
        raise ValueError(f'shape must be "box" or "blocks"; got {shape!r}.')
    if not isinstance(target, int | float | np.number) or not 0 <= target < 1:
        raise ValueError(f"target must be a share, at least 0 and below 1; got {target!r}.")
    energy = (np.abs(values) ** 2).reshape(-1, plan.points).sum(axis=0)
    if not np.isfinite(energy).all():
        raise ValueError("spectrum must be finite, and so must its squares.")

    levels = _levels(plan, _blocks(plan, block, shape), shape)
    cells = tuple(int(level.max()) + 1 for level in levels)
    index = np.ravel_multi_index(levels, cells)
    losses = np.asarray(np.bincount(index, energy, prod(cells)), np.float64).reshape(cells)
    sizes = np.asarray(np.bincount(index, minlength=prod(cells)), np.int64).reshape(cells)
    needed = (float(target) - _ROUNDING) * plan.points if by == "sparsity" else float(target) * energy.sum()
    chosen = (_best_box if shape == "box" else _best_blocks)(losses, sizes, needed, by == "sparsity")
    pattern = SparsityPattern(plan.factors, chosen.reshape(-1)[index])
    return Sparsified(
        pattern,
        float(pattern.energy_kept(np.sqrt(energy))),
        pattern.convolution_flops(plan) / plan.convolution_flops(),
    )


def _blocks(plan: Plan, block: int | Sequence[int] | None, shape: str) -> list[int]:
    """Return rows per block along every axis."""
    symmetric = plan.packing != "complex"
    if block is None:
        block = 2 if symmetric else 1
    wanted = list(block) if isinstance(block, Sequence) else [block] * plan.order
    if len(wanted) != plan.order:
        raise ValueError(f"block must be one number, or one per axis of {plan}; got {len(wanted)}.")
    rows = [whole_number(b, name="block", least=1, meaning="rows of a block along an axis") for b in wanted]
    for axis, (b, n) in enumerate(zip(rows, plan.factors, strict=True)):
        if symmetric and b % 2:
            raise ValueError(f"block must be even on axis {axis + 1}, where rows go in pairs; got {b}.")
        if shape == "blocks" and n % b:
            raise ValueError(
                f'block must divide the {n} rows of axis {axis + 1} for shape "blocks", whose blocks have one '
                f'size; got {b}. shape="box" takes any.'
            )
    return rows


def _levels(plan: Plan, block: list[int], shape: str) -> tuple[NDArray[np.int64], ...]:
    """Return each slot's cell along every axis, ``[P]`` each, counted from the first that a box keeps."""
    if plan.packing == "complex":
        digits = np.unravel_index(np.arange(plan.points), plan.factors)
        return tuple(digit // b for digit, b in zip(digits, block, strict=True))
    pairs = mirror_pairs_of(plan.factors, nested=shape == "box")
    return tuple(pair // (b // 2) for pair, b in zip(pairs, block, strict=True))


def _best_box(
    losses: NDArray[np.float64], sizes: NDArray[np.int64], target: float, by_sparsity: bool
) -> NDArray[np.bool_]:
    """Return which cells to keep, the first ones of every axis."""
    kept = sizes
    for axis in range(sizes.ndim):
        kept = kept.cumsum(axis=axis)
    zeros = (sizes.sum() - kept).reshape(-1)
    # what a box loses, as sums of what is not negative, so that a loss of zero is one: beyond it on axis i,
    # within it on those before, anywhere on those after
    lost = np.zeros(losses.shape)
    within = losses
    for axis in range(losses.ndim):
        after = within.sum(axis=tuple(range(axis + 1, losses.ndim)), keepdims=True)
        beyond = np.flip(np.flip(after, axis).cumsum(axis), axis)
        lost += np.concatenate([np.delete(beyond, 0, axis), np.zeros_like(beyond.take([0], axis))], axis)
        within = within.cumsum(axis)
    flat = lost.reshape(-1)
    enough = np.flatnonzero(zeros >= target if by_sparsity else flat <= target)
    if not enough.size:
        raise ValueError(f"target must leave a block of each axis; at most {zeros.max() / sizes.sum()} do.")
    order = (-zeros[enough], flat[enough]) if by_sparsity else (flat[enough], -zeros[enough])
    last = np.unravel_index(int(enough[np.lexsort(order)[0]]), losses.shape)
    box = np.zeros(losses.shape, np.bool_)
    box[tuple(slice(0, int(i) + 1) for i in last)] = True
    return box


def _best_blocks(
    losses: NDArray[np.float64], sizes: NDArray[np.int64], target: float, by_sparsity: bool
) -> NDArray[np.bool_]:
    """Return which cells to keep; the cells have one size, so the weakest go first, of equals the last."""
    flat = losses.reshape(-1)
    weakest = np.lexsort((-np.arange(flat.size), flat))
    if by_sparsity:
        count = max(0, int(np.ceil(target / sizes.flat[0])))
    else:
        count = int(np.searchsorted(np.cumsum(flat[weakest]), target, side="right"))
        count = min(count, flat.size - 1)
    if count >= flat.size:
        raise ValueError(f"target must leave one of {flat.size} blocks, a share of {1 / flat.size}.")
    kept = np.ones(flat.size, np.bool_)
    kept[weakest[:count]] = False
    return kept.reshape(losses.shape)
