"""Which plan a convolution takes: the one asked for, checked, or the default one for its length."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

import monarch
from kernels_numba import fused_float
from kernels_numba.device import LARGEST_SHARED_BYTES, Device
from kernels_numba.families import (
    HOPPER,
    default_factors,
    default_plans,
    family_of,
    is_fused,
    runs_on,
    shared_bytes,
)
from kernels_numba.long_plans import TYPES, default_long_plans, refusal, split, split_of
from kernels_numba.tile.layout import COMPLEX_TYPES
from monarch import Plan


def points_needed(mode: str, length: int, taps: int) -> int:
    """Points of a transform without aliasing; a circular convolution of another length than that is folded."""
    if mode == "circular":
        return 2 * length - 1 if taps > 1 else length
    return monarch.convolution_length(mode, length, taps)


@lru_cache(maxsize=256, typed=True)
def choose_plan(
    mode: str,
    length: int,
    taps: int,
    plan: Plan | None,
    dtype: str,
    where: Device,
    *,
    sequences: str,
    on_chip: int | None = None,
) -> tuple[Plan, bool]:
    """The plan asked for, checked, or the default one, with what is zero and wanted; whether it has outer stages.

    ``dtype``: of the products, ``sequences``: of the arrays. ``on_chip``: see `spectrum.prepare_filter`.
    """
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(
            f"plan: expected a monarch.Plan, got {type(plan).__name__}; for instance "
            "monarch.Plan(1024, monarch.parse_factors('32x32'))"
        )
    if not isinstance(length, (int, np.integer)) or length < 1:
        raise ValueError(f"length: expected a whole number of samples, at least one; got {length!r}")
    if mode == "circular" and taps > length:
        raise ValueError(
            f"k: {taps} taps are more than the {length} samples of a circular convolution; fold the filter onto the "
            'circle, or use mode "causal" or "two-sided"'
        )
    need = points_needed(mode, length, taps)
    capability = where.capability or HOPPER  # the CPU body runs every family
    limit = where.shared_bytes_per_block or LARGEST_SHARED_BYTES
    complex_data = sequences in COMPLEX_TYPES
    plans = {
        n: p
        for n, p in default_plans(limit, capability, dtype=dtype, complex_data=complex_data).items()
        if on_chip is None or n <= on_chip
    }
    if (
        sequences in TYPES and dtype == "fp32"
    ):  # have outer stages from where registers no longer hold the points
        plans = {n: p for n, p in plans.items() if p.factors in fused_float.FACTORS}
    longer: dict[int, Plan] = {}
    if _has_long(dtype, sequences):
        shortest = max(plans, default=0) if on_chip is None else on_chip
        longer = default_long_plans(limit, capability, shortest=shortest, products=dtype)
    if sequences in TYPES and dtype == "fp32":  # no fused kernel reads halves and multiplies in fp32
        if plan is None and on_chip is None and need <= max(plans, default=0):
            raise ValueError(
                f"products: a transform of {need} points fits on chip, where {sequences} sequences are multiplied in "
                f"{sequences}; convert the sequences to fp32 for fp32 products"
            )
        plans = {}
    if plan is None:
        found, outer = _default(mode, length, taps, need, plans, longer, (dtype, sequences), where)
        if not outer:
            halved = 2 * length <= found.n
            found = default_plans(limit, capability, halved=halved, dtype=dtype, complex_data=complex_data)[
                found.n
            ]
        plan = found
    else:
        outer = _is_long(plan, dtype, capability, on_chip)
        if outer and not _has_long(dtype, sequences):
            raise ValueError(
                f"plan: {refusal(sequences, dtype)}; convert them, or take another plan than {plan}"
            )
        if not outer and sequences in TYPES and dtype == "fp32":
            raise ValueError(
                f"plan: {plan} runs in one kernel, and those multiply {sequences} sequences in {sequences}; fp32 "
                "products of halves are for transforms with outer stages"
            )
        if plan.n < need and not (mode == "circular" and plan.n == length):
            or_exact = f" (or a transform of exactly {length})" if mode == "circular" else ""
            raise ValueError(
                f"plan: {plan.n} points are too few for a {mode} convolution of {length} samples with {taps} "
                f"taps, which needs {need}{or_exact}"
            )
    if (plan.packing == "complex") != complex_data:
        raise ValueError(
            f"plan: {plan} is for {'complex' if plan.packing == 'complex' else 'real'} sequences, these are "
            f"{sequences}; "
            'Plan(..., packing="complex") is for complex ones, the other packings are for real ones'
        )
    plan = plan.with_(signal=min(length, plan.n), wanted=min(length, plan.n))
    if outer:
        split_of(plan, capability, dtype)
    elif not runs_on(family_of(plan, dtype), capability):
        other = plans.get(plan.n, "another plan")
        raise ValueError(
            f"plan: {plan} needs instructions that {where.name} does not have (compute capability "
            f"{capability[0]}.{capability[1]}); leave plan away, or ask for {other}"
        )
    elif shared_bytes(plan, dtype) > limit:
        raise ValueError(
            f"plan: {plan} needs {shared_bytes(plan, dtype):,} bytes of shared memory a block, {where.name} has "
            f"{limit:,}; leave plan away, or ask for a plan of fewer points (half-length packing has half as many)"
        )
    return plan, outer


def _has_long(products: str, sequences: str) -> bool:
    """Whether there are long transforms of sequences of a type with products of a type."""
    return (products == "fp32" and sequences in (*TYPES, "fp32")) or sequences == products in TYPES


def _is_long(plan: Plan, dtype: str, capability: tuple[int, int], on_chip: int | None) -> bool:
    """Whether a plan that was asked for has outer stages: if no fused kernel runs it, or none may."""
    if split(plan, capability, dtype) is None:
        return False
    return is_fused(plan, dtype) is False if on_chip is None else plan.n > on_chip


def _default(
    mode: str,
    length: int,
    taps: int,
    need: int,
    plans: dict[int, Plan],
    longer: dict[int, Plan],
    types: tuple[str, str],
    where: Device,
) -> tuple[Plan, bool]:
    """The default plan for so many points, and whether it has outer stages."""
    for found, outer in ((plans, False), (longer, True)):
        if mode == "circular" and length in found:
            return found[length], outer
    for found, outer in ((plans, False), (longer, True)):
        fitting = [n for n in found if n >= need]
        if fitting:
            return found[min(fitting)], outer
    dtype, sequences = types
    reasons = ""
    if len(plans) < len(default_factors(dtype, complex_data=sequences in COMPLEX_TYPES)):
        reasons = f" on {where.name}, by its shared memory"
    if not longer:
        reasons += f" ({refusal(sequences, dtype)})"
    raise ValueError(
        f"u: a {mode} convolution of {length} samples with {taps} taps needs {need} points; the kernels of {dtype} "
        f"take up to {max(longer or plans)}{reasons}. reference.fftconv computes any length in float64."
    )


# ---- spectra with zeros --------------------------------------------------------------------------------------
def check_pattern(pattern: monarch.SparsityPattern, plan: Plan, mode: str, length: int) -> None:
    """Raises unless a pattern of zeros is one of the plan's, and leaves results real."""
    if not isinstance(pattern, monarch.SparsityPattern):
        raise TypeError(f"pattern: expected a monarch.SparsityPattern, got {type(pattern).__name__}")
    if pattern.factors != plan.factors:
        raise ValueError(
            f"pattern: it has the factors {pattern.factors}, the plan {plan}; make it with this plan, and give the plan"
        )
    if plan.packing in ("half", "right-angle"):
        raise ValueError(
            f'pattern: {plan.packing} packing has no zeros in its spectrum; take a plan with packing "pair"'
        )
    if plan.packing == "pair" and not pattern.is_symmetric:
        raise ValueError("pattern: zeros must be symmetric for real sequences; take pattern.symmetric()")
    if mode == "circular" and length != plan.n:
        raise ValueError(
            f"pattern: a circular convolution of {length} samples on a circle of {plan.n} points would have zeros of "
            "another spectrum; take a plan of exactly as many points"
        )


def rows_kept(pattern: monarch.SparsityPattern | None, plan: Plan, products: str = "fp16") -> tuple[int, ...]:
    """Rows k1 of a plan with outer stages of which something is kept; () if that is all of them."""
    if pattern is None:
        return ()
    rows = split_of(plan, products=products).rows
    live = pattern.bins(plan).reshape(-1, rows).any(axis=0)
    if live.all():
        return ()
    return tuple(int(row) for row in np.flatnonzero(live)) or (0,)


def _of_rows(plan: Plan, products: str, outer: bool) -> tuple[ModuleType, Plan]:
    """The kernel that multiplies by the spectrum, and its plan: that of the rows, with outer stages."""
    if not outer:
        return family_of(plan, products), plan
    made = split_of(plan, products=products)
    return made.family, made.inner


def axes_kept(
    pattern: monarch.SparsityPattern | None, plan: Plan, products: str, *, outer: bool
) -> tuple[int, ...]:
    """Of each axis of a kernel the rows that it must do, if it can leave out others (of all rows of a long plan)."""
    if pattern is None:
        return ()
    family, inner = _of_rows(plan, products, outer)
    if inner.packing != "pair" or not hasattr(family, "kept_axes"):
        return ()
    alive = pattern.bins(plan).reshape(inner.points, -1).any(axis=1)
    found: tuple[int, ...] = family.kept_axes(inner, alive.reshape(inner.factors[::-1]).T)
    return found


def spectrum_layout(
    plan: Plan, products: str, pattern: monarch.SparsityPattern | None, *, outer: bool
) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """Bins, weights and tiles of a spectrum as the kernels read it, without what a pattern lets them leave out."""
    axes = axes_kept(pattern, plan, products, outer=outer)
    if outer:
        made = split_of(plan, products=products)
        return made.spectrum_layout(products, rows_kept(pattern, plan, products), axes)
    order, phase, tiles = family_of(plan, products).spectrum_layout(
        plan, products, *((axes,) if axes else ())
    )
    return order, phase, tiles


def marks_of(pattern: monarch.SparsityPattern, plan: Plan, products: str, *, outer: bool) -> bytes:
    """What `spectrum.Spectrum.marks` holds: which parts of a spectrum are not all zero."""
    family, inner = _of_rows(plan, products, outer)
    if inner.packing != "pair" or not hasattr(family, "skipped_points"):
        return b""
    order, *_ = spectrum_layout(plan, products, pattern, outer=outer)
    points = family.skipped_points(inner, axes_kept(pattern, plan, products, outer=outer))
    alive = pattern.bins(plan)[order[0]].reshape(-1, points).any(axis=1)
    return b"" if alive.all() else alive.astype(np.float32).tobytes()
