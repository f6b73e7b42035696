"""Transforms too long for one fused kernel: which plans have outer stages, and the default ones.

Such a plan's factors are those of the rows, one or two (`outer_spec.SPLITS`), then those of a plan that a fused kernel
runs, on every row: N = N1 N2. Where factors could be divided either way, two outer factors are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import fused_float
from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.families import FAMILIES, HOPPER, default_plans
from kernels_numba.outer_float_spec import outer_float_spec
from kernels_numba.outer_spec import SPLITS, outer_spec
from monarch import Plan, format_factors

LONGEST = 2**24
"""Points of the longest transform."""
TYPES = ("fp16", "bf16")
"""Half-precision types; sequences of fp32 have long transforms in fp32, those of halves on request."""

INNER_TIME = {
    256: 1.33,
    512: 1.18,
    768: 1.19,
    1024: 1.18,
    1536: 1.30,
    2048: 1.51,
    4096: 1.52,
    8192: 1.93,
    12288: 2.32,
    16384: 2.29,
    24576: 2.59,
    32768: 2.26,
}
"""Picoseconds a point of the fused kernels, measured on an H200 (costmodel/measurements),"""
OUTER_TIME = {16: 2.05, 32: 2.07, 256: 2.25, 512: 2.64, 1024: 2.96}
"""and of both outer stages, by rows (16 is taken from 32)."""
FLOAT_INNER_TIME = {
    256: 2.65,
    512: 2.66,
    768: 2.70,
    1024: 2.80,
    1536: 3.10,
    2048: 2.72,
    3072: 3.10,
    4096: 2.94,
    6144: 3.40,
    8192: 3.09,
    12288: 3.97,
    16384: 3.46,
}
FLOAT_OUTER_TIME = {16: 4.10, 32: 4.10, 256: 4.19, 512: 4.54, 1024: 5.36}
"""The same in fp32, on complex sequences; of 3 times a power of two estimated from pairs of real ones."""


@dataclass(frozen=True)
class Split:
    """A long plan as rows and columns."""

    plan: Plan
    outer: tuple[int, ...]
    inner: Plan
    family: ModuleType
    """Of the inner plan."""
    products: str = "fp16"
    """"fp32": sequences are transformed in fp32, a pair as one complex sequence."""

    @property
    def rows(self) -> int:
        """N1."""
        return self.plan.n // self.inner.n

    @property
    def pair(self) -> tuple[int, int]:
        """The outer factors, the second one if there is no other."""
        return SPLITS[self.rows]

    def spectrum_layout(
        self, dtype: str, kept: tuple[int, ...] = (), axes: tuple[int, ...] = ()
    ) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
        """Bins and weights [1, N] in the order in which the rows' kernels read a spectrum, row by row; tiles.

        ``kept``: of these rows only, if not of all; ``axes``: of each axis of a row so many, as its kernel has them.
        """
        order, phase, tiles = self.family.spectrum_layout(self.inner, dtype, *((axes,) if axes else ()))
        rows = np.array(kept) if kept else np.arange(self.rows)
        bins = rows[:, None] + self.rows * order[0][None, :]
        if self.products == "fp32":  # outer stages of halves are unitary, those of fp32 are sums
            phase = phase / self.rows
        return bins.reshape(1, -1), np.tile(phase, rows.size), rows.size * tiles


def split(plan: Plan, capability: tuple[int, int] = HOPPER, products: str = "fp16") -> Split | None:
    """Rows and columns of a plan with outer stages; None if no kernels run it so, with products of such a type."""
    if plan.packing != "pair" or products == "complex64":
        return None
    packing = "complex" if products == "fp32" else "pair"
    for outer in (2, 1):
        head, rest = plan.factors[:outer], plan.factors[outer:]
        if not rest or head not in ((a, b)[:outer] for a, b in SPLITS.values() if (b > 1) == (outer == 2)):
            continue
        for family in (fused_float,) if products == "fp32" else FAMILIES:
            if rest in family.PACKINGS.get(packing, ()):
                inner = Plan(int(np.prod(rest)), rest, packing=packing)
                if inner.n % 64 == 0 and getattr(family, "CAPABILITY", None) in (None, capability):
                    return Split(plan, head, inner, family, products)
    return None


def split_of(plan: Plan, capability: tuple[int, int] = HOPPER, products: str = "fp16") -> Split:
    """As :func:`split`; raises ``ValueError`` if no kernels run the plan."""
    found = split(plan, capability, products)
    if found is None:
        heads = ", ".join(format_factors((a, b) if b > 1 else (a,)) for a, b in SPLITS.values())
        raise ValueError(
            f"plan: no kernels run {plan}; a long one is {heads}, then factors that a fused kernel runs in pairs"
        )
    return found


def stage_bytes(made: Split) -> int:
    """The most shared memory that a block of either outer stage takes."""
    if made.products == "fp32":
        return outer_float_spec(made, "fp32", inverse=False, length=made.plan.n, batch=2).shared_bytes
    return max(outer_spec(made, made.products, inverse=way).shared_bytes for way in (False, True))


@cache
def default_long_plans(
    limit: int = LARGEST_SHARED_BYTES,
    capability: tuple[int, int] = HOPPER,
    *,
    shortest: int = 65536,
    products: str = "fp16",
) -> dict[int, Plan]:
    """By transform length above ``shortest``, the plan that should be fastest; GPUs as for `families.default_plans`."""
    whole = products == "fp32"
    inner_time, outer_time = (FLOAT_INNER_TIME, FLOAT_OUTER_TIME) if whole else (INNER_TIME, OUTER_TIME)
    found: dict[int, tuple[float, Plan]] = {}
    for inner in default_plans(limit, capability, dtype="complex64" if whole else "fp16").values():
        for rows, pair in SPLITS.items():
            n = rows * inner.n
            if inner.packing == "half" or inner.n not in inner_time or not shortest < n <= LONGEST:
                continue
            factors = (*(f for f in pair if f > 1), *inner.factors)
            made = split(Plan(n, factors), capability, products)
            if made is None or made.rows != rows or stage_bytes(made) > limit:
                continue
            time = inner_time[inner.n] + outer_time[rows]
            if n not in found or time < found[n][0]:
                found[n] = (time, Plan(n, factors))
    return {n: plan for n, (_, plan) in sorted(found.items())}


def refusal(sequences: Any, products: Any) -> str:
    """Why sequences of a type, with products of a type, have no long transforms."""
    return (
        f"transforms with outer stages take {' and '.join(TYPES)} sequences with products of the same type or fp32, "
        f"and fp32 ones with fp32, not {sequences} sequences with {products} products"
    )
