"""Frequency-sparse spectra: which slots of the transform are zero, and the products that need not be done.

The transform leaves slot ``[k1, ..., kp]``. Stage i computes rows ``(k1, ..., ki)``, each a vector of ``rest_i
= N_i+1 ... Np`` values from ``Ni`` such vectors. A row is needed only if some slot that begins with it is
kept, in the forward transform, where nothing else is read from it, and in the inverse, where it would be zero.
So with ``V_i`` rows kept, stage i takes ``8 V_i Ni rest_i`` real operations either way, of ``8 P Ni``: zeros
along the first axis spare the share of all stages, those along the last only of the last.

**Real data.** The spectrum of a real filter is conjugate-symmetric, ``X[-k] = conj X[k]``, and a real filter
it must remain: two sequences packed as ``u1 + i u2`` would mix otherwise. A pattern does that if it keeps -k
wherever it keeps k. In digit order -k is, for the first digit that is not zero, ``ki -> Ni - ki``, and ``ki
-> Ni - 1 - ki`` for those after it: rows go in pairs (`monarch.index.mirror_pairs_of`), which stand together
if the rows of the DFT matrices are stored in that order. With packing "half" a slot holds the frequencies k and k +
N / 2 of the real sequence, and both are zero. For "complex" any pattern will do; the real part of a result is
then that of the spectrum times ``(kept[k] + kept[-k]) / 2``, which is the paper's practice.

Source: Fu et al., FlashFFTConv, arXiv 2311.05908, section on frequency-sparse convolutions and its appendix,
whose pattern is the last a, b, c, d rows of the four axes: sparsity 1 - prod (Ni - ai) / Ni.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import whole_number
from .index import mirror_of, mirror_pairs_of
from .plan import Plan

__all__ = ["Rows", "SparsityPattern"]

Rows = slice | Iterable[int] | None  # rows of one axis; None for all of them


@dataclass(frozen=True, eq=False)
class SparsityPattern:
    """The slots of a spectrum that are kept; all others are zero.

    Args:
        factors: (N1, ..., Np), the axes.
        kept: True where a slot is kept, ``[P]`` or ``[N1, ..., Np]``, in digit order; stored as ``[P]``,
            read-only.

    Raises:
        TypeError, ValueError: not booleans, or not as many as the factors say.
    """

    factors: tuple[int, ...]
    kept: NDArray[np.bool_]

    def __post_init__(self) -> None:
        kept = np.array(self.kept)
        if kept.dtype != np.bool_:
            raise TypeError(f"kept must hold booleans, True where a slot is kept; got {kept.dtype}.")
        factors = tuple(
            whole_number(n, name="factors", least=1, meaning="rows of an axis") for n in self.factors
        )
        if kept.shape not in ((prod(factors),), factors):
            raise ValueError(f"kept must have shape ({prod(factors)},) or {factors}; got {kept.shape}.")
        kept = kept.reshape(-1)
        kept.setflags(write=False)
        object.__setattr__(self, "factors", factors)
        object.__setattr__(self, "kept", kept)

    # ---- making patterns

    @classmethod
    def blocks(cls, plan: Plan, boxes: Iterable[Sequence[Rows]]) -> SparsityPattern:
        """Keep a union of boxes, each one selection of rows per axis: a slice, numbers of rows, or None.

        ``blocks(plan, [(None,) * plan.order])`` keeps everything, ``blocks(plan, [])`` nothing.
        """
        _check_plan(plan)
        kept = np.zeros(plan.factors, np.bool_)
        for box in boxes:
            kept[np.ix_(*_box(plan.factors, box))] = True
        return cls(plan.factors, kept)

    @classmethod
    def tails(cls, plan: Plan, zeros: Sequence[int]) -> SparsityPattern:
        """Zero the last ``zeros[i]`` rows of axis i: the (a, b, c, d) of the paper.

        It is not symmetric (unless nothing is zero): for complex data, or the real part of the result.
        """
        counts = _counts(plan, zeros)
        return cls.blocks(plan, [[slice(n - a) for n, a in zip(plan.factors, counts, strict=True)]])

    @classmethod
    def middles(cls, plan: Plan, zeros: Sequence[int]) -> SparsityPattern:
        """Zero ``zeros[i]`` rows of axis i or more, in mirrored pairs from the middle: `tails` for real data.

        It is symmetric and, where rows and zeros are even, lies within a box of exactly ``Ni - zeros[i]`` rows
        per axis; of that box, a few slots beside frequencies with leading digits of zero are zero too. What stays
        of the last axis are the rows next to its ends, so zeros on it alone are a low-pass filter.
        """
        counts = _counts(plan, zeros)
        kept = np.ones(plan.points, np.bool_)
        pairs = mirror_pairs_of(plan.factors, nested=True)
        for axis, (n, a, pair) in enumerate(zip(plan.factors, counts, pairs, strict=True)):
            if a:
                kept &= pair < (n - a + (axis == 0 and n % 2)) // 2
        return cls(plan.factors, kept)

    def without(self, box: Sequence[Rows]) -> SparsityPattern:
        """Return the pattern with one more block of zeros, given as in `blocks`."""
        kept = self.kept.reshape(self.factors).copy()
        kept[np.ix_(*_box(self.factors, box))] = False
        return SparsityPattern(self.factors, kept)

    def symmetric(self) -> SparsityPattern:
        """Return the largest pattern within this one that keeps real filters real: k only where -k is kept."""
        return SparsityPattern(self.factors, self.kept & self.kept[mirror_of(self.factors)])

    def __or__(self, other: SparsityPattern) -> SparsityPattern:
        """Keep what either keeps."""
        return SparsityPattern(self.factors, self.kept | self._same(other).kept)

    def __and__(self, other: SparsityPattern) -> SparsityPattern:
        """Keep what both keep."""
        return SparsityPattern(self.factors, self.kept & self._same(other).kept)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SparsityPattern):
            return NotImplemented
        return self.factors == other.factors and np.array_equal(self.kept, other.kept)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.factors, self.kept.tobytes()))

    def _same(self, other: SparsityPattern) -> SparsityPattern:
        if not isinstance(other, SparsityPattern) or other.factors != self.factors:
            raise ValueError(f"Both patterns must have the factors {self.factors}; got {other}.")
        return other

    # ---- what they say

    @property
    def sparsity(self) -> float:
        """The share of zeros."""
        return 1.0 - int(np.count_nonzero(self.kept)) / self.kept.size

    @property
    def is_symmetric(self) -> bool:
        """Whether real filters stay real."""
        return bool(np.array_equal(self.kept, self.kept[mirror_of(self.factors)]))

    def apply(self, spectrum: ArrayLike) -> NDArray[Any]:
        """Return the spectrum ``[..., P]``, in digit order, with its zeros."""
        return np.where(self.kept, self._points(spectrum), 0)

    def bins(self, plan: Plan) -> NDArray[np.bool_]:
        """Return by frequency 0 .. N - 1, in natural order, whether it is kept, ``[N]``."""
        self.check(plan)
        kept = np.zeros(plan.points, np.bool_)
        kept[plan.frequencies().reshape(-1)] = self.kept
        return np.tile(kept, plan.n // plan.points)  # a slot of "half" holds k and k + N / 2

    def energy_kept(self, spectrum: ArrayLike) -> NDArray[np.float64]:
        """Return the share of ``sum |X|^2`` that is kept, ``[..., P] -> [...]``; 1 where there is none.

        By Parseval it is that of the filter's taps on the circle: ``1 - |h - h'|^2 / |h|^2``.
        """
        energy = np.abs(self._points(spectrum)) ** 2
        total, lost = energy.sum(axis=-1), energy[..., ~self.kept].sum(axis=-1)
        return 1.0 - np.divide(lost, total, out=np.zeros_like(total), where=total > 0)

    def _points(self, spectrum: ArrayLike) -> NDArray[Any]:
        values = np.asarray(spectrum)
        if values.ndim == 0 or values.shape[-1] != self.kept.size:
            raise ValueError(
                f"spectrum must have {self.kept.size} values along its last axis, one per slot of "
                f"{'x'.join(map(str, self.factors))}; got shape {values.shape}."
            )
        return values

    # ---- what need not be done

    def rows(self, stage: int) -> NDArray[np.bool_]:
        """Return which rows ``(k1, ..., ki)`` a stage (counted from 0) must do, ``[N1, ..., Ni]``."""
        stage = whole_number(stage, name="stage", least=0, meaning="the index of a factor, counted from 0")
        if stage >= len(self.factors):
            raise ValueError(f"stage must be below the order {len(self.factors)}; got {stage}.")
        return np.asarray(self.kept.reshape(*self.factors[: stage + 1], -1).any(axis=-1))

    def skipped_rows(self, stage: int) -> int:
        """Return matrix rows that a stage skips, of ``N1 ... Ni``, in each direction; one is ``8 Ni rest_i``."""
        return int(np.count_nonzero(~self.rows(stage)))

    def flops(self, stage: int) -> int:
        """Return real operations of a stage's contraction, one transform, one direction: 8 V_i Ni rest_i."""
        return 8 * int(np.count_nonzero(self.rows(stage))) * prod(self.factors[stage:])

    def convolution_flops(self, plan: Plan) -> int:
        """Return real operations of one convolution, as ``plan.convolution_flops()`` does with nothing zero."""
        self.check(plan)
        rows = [int(np.count_nonzero(self.rows(i))) for i in range(plan.order)]
        one_way = sum(self.flops(i) for i in range(plan.order))
        one_way += sum(6 * rows[i] * plan.strides[i] for i in range(plan.order - 1))
        return 2 * one_way + plan.pointwise_flops() // plan.points * rows[-1]

    def check(self, plan: Plan) -> None:
        """Raise ValueError unless the pattern is of this plan, and symmetric if its packing needs that."""
        _check_plan(plan)
        if plan.factors != self.factors:
            raise ValueError(
                f"pattern must have the factors {plan.factors} of the plan; got {self.factors}. "
                "Slots of different factors hold different frequencies."
            )
        if plan.packing != "complex" and not self.is_symmetric:
            raise ValueError(
                f"pattern must keep -k wherever it keeps k for packing {plan.packing!r}, or real sequences "
                'become complex. Take pattern.symmetric(), SparsityPattern.middles, or packing="complex".'
            )

    def __str__(self) -> str:
        """Return a short name, such as ``32x32, 75.0 % zero, rows 16/32 512/1024``."""
        rows = [self.rows(i) for i in range(len(self.factors))]
        counts = " ".join(f"{np.count_nonzero(r)}/{r.size}" for r in rows)
        return f"{'x'.join(map(str, self.factors))}, {100 * self.sparsity:.1f} % zero, rows {counts}"


def _check_plan(plan: object) -> None:
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a monarch.Plan; got {type(plan).__name__}.")


def _counts(plan: Plan, zeros: Sequence[int]) -> list[int]:
    """Return zero rows per axis, checked against the plan."""
    _check_plan(plan)
    if len(zeros) != plan.order:
        raise ValueError(f"zeros must hold one number per axis of {plan}; got {len(zeros)}.")
    counts = [whole_number(a, name="zeros", least=0, meaning="zero rows of an axis") for a in zeros]
    if any(a > n for a, n in zip(counts, plan.factors, strict=True)):
        raise ValueError(f"zeros must be at most the rows {plan.factors}; got {tuple(counts)}.")
    return counts


def _box(factors: tuple[int, ...], box: Sequence[Rows]) -> list[NDArray[np.bool_]]:
    """Return the rows of a box as booleans, one array per axis."""
    if len(box) != len(factors):
        raise ValueError(f"A block must select rows of {len(factors)} axes; got {len(box)}.")
    chosen = []
    for axis, (n, rows) in enumerate(zip(factors, box, strict=True)):
        mask = np.zeros(n, np.bool_)
        if rows is None or isinstance(rows, slice):
            mask[slice(None) if rows is None else rows] = True
        else:
            numbers = [whole_number(r, name="row", least=0, meaning="a row of an axis") for r in rows]
            if any(r >= n for r in numbers):
                raise ValueError(f"Rows of axis {axis + 1} must be below {n}; got {max(numbers)}.")
            mask[numbers] = True
        chosen.append(mask)
    return chosen
