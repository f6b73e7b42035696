"""Constant operands of the order-2 kernel, in which a warp carries a pair of sequences; see `operands.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.operands import (
    factor,
    factor_scale,
    in_parts,
    kept_slots,
    mirrored,
    right_angle_factors,
    rows_needed,
    rows_read,
    turned_twiddles,
    twiddles,
)
from kernels_numba.tile import layout
from monarch import Plan


# ---- index maps: which index each slot of a fragment stands for --------------------------------------------
def columns_read(n: int) -> NDArray[np.intp]:
    """Column slot 8 j + c -> column of the input: lane group c reads the n/8 columns from c n/8 on."""
    slot = np.arange(n)
    return (n // 8) * (slot % 8) + slot // 8


def columns_written(n: int) -> NDArray[np.intp]:
    """Column slot -> output column: thread t's slots are n/8 contiguous columns, and their mirrors."""
    slot = np.arange(n // 2)
    j, c = slot // 8, slot % 8
    q = (n // 8) * (c // 2) + 2 * j + c % 2
    return np.concatenate([q, n - 1 - q])


@dataclass(frozen=True)
class _Maps:
    """Index maps of one kernel; the four stages' slots in terms of n1, n2, k1, k2."""

    row_in: NDArray[np.intp]
    column_in: NDArray[np.intp]
    k1: NDArray[np.intp]
    k2: NDArray[np.intp]
    column_out: NDArray[np.intp]
    row_out: NDArray[np.intp]


@cache
def _maps(n1: int, n2: int, kept: tuple[int, int] | None = None) -> _Maps:
    kept1, kept2 = kept or (n1, n2)
    return _Maps(
        row_in=rows_read(n1),
        column_in=columns_read(n2),
        k1=kept_slots(n1, kept1, self_paired=True),
        k2=kept_slots(n2, kept2),
        column_out=columns_written(n2),
        row_out=mirrored(n1),
    )


@lru_cache(maxsize=64)
def constants(
    n1: int,
    n2: int,
    rows_in: int,
    dtype: str,
    kept: tuple[int, int] | None = None,
    *,
    parts_in: bool = False,
    lower: bool = False,
    right_angle: bool = False,
) -> NDArray[np.int32]:
    """The constant operands as the kernel reads them: F1, twiddle, F2, and the inverse F2, twiddle, F1.

    ``kept``: k1 and k2 that are transformed to and from, all by default. ``parts_in``: F1 is a real matrix of both
    parts; ``lower``: so is its inverse, of the lower half of the rows. With right-angle packing n1 is the factor N1.
    """
    kept1, kept2 = kept or (n1, n2)
    at = _maps(n1, n2, (kept1, kept2))
    groups, tiles = kept1 // 8, n2 // 8
    undone = factor_scale(n1, 0.0, dtype), factor_scale(n2, 0.5, dtype) * factor_scale(n1, 0.5, dtype)
    forward, inverse = twiddles(at.k1, (at.column_in, at.column_out), (n1, n2), undone)
    first: NDArray
    if right_angle:
        first, last, scale = right_angle_factors(n1, np.arange(n1), rows_read(rows_in), dtype)
        forward, inverse = turned_twiddles(
            np.arange(n1), (at.column_in, at.column_out), (n1, n2), scale, dtype
        )
    elif parts_in:
        row, part = np.tile(at.row_in[:rows_in], 2), np.repeat([0, 1], rows_in)
        first = in_parts(np.outer(at.k1, row), part, n1, factor_scale(n1, 0.0, dtype), inverse=False)
    else:
        first = factor(n1, at.row_in, at.k1, shift=0.0, dtype=dtype)[:, :rows_in]
    second = factor(n2, at.column_in, at.k2, shift=0.5, dtype=dtype).T
    third = factor(n2, at.k2, at.column_out, shift=0.5, dtype=dtype).T
    if right_angle:
        fourth = last.swapaxes(1, 2).reshape(-1, 2 * n1)
    elif lower:
        turns = np.outer(at.row_out[: n1 // 2] + 0.5, np.tile(at.k1, 2))
        part = np.repeat([0, 1], kept1)
        fourth = in_parts(turns, part, n1, factor_scale(n1, 0.5, dtype), inverse=True)
    else:
        fourth = factor(n1, at.k1, at.row_out, shift=0.5, dtype=dtype)
    parts = [
        layout.pack_operand(first, layout.a_index(*(x // 16 for x in first.shape)), dtype),
        layout.pack_complex(forward, layout.c_index(groups, tiles), dtype),
        layout.pack_operand(second, layout.b_index(n2 // 16, kept2 // 8), dtype),
        layout.pack_operand(third, layout.b_index(kept2 // 16, tiles), dtype),
        layout.pack_complex(inverse, layout.c_index(groups, tiles), dtype),
        layout.pack_operand(fourth, layout.a_index(*(x // 16 for x in fourth.shape)), dtype),
    ]
    words = np.concatenate(parts)
    words.setflags(write=False)
    return words


def spectrum_layout(
    factors: tuple[int, ...], dtype: str, kept: tuple[int, ...] = ()
) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """The bin at each position of the kernel's order, what it is multiplied by (stage 3's phase), and tiles."""
    n1, n2 = factors
    kept1, kept2 = kept or factors
    at = _maps(n1, n2, (kept1, kept2))
    k = at.k1[:, None] + n1 * at.k2[None, :]
    phase = np.exp(-1j * np.pi * at.k2 / n2) / factor_scale(n2, 0.5, dtype)
    positions = layout.lane_order_positions(kept1 // 8, kept2 // 8)
    return k[positions], np.broadcast_to(phase, (kept1, kept2))[positions], 1


def kept_axes(plan: Plan, alive: NDArray[np.bool_]) -> tuple[int, ...]:
    """Of each axis the rows that the kernel must do where only ``alive [N1, N2]`` is not zero; () for all."""
    first, second = (np.asarray(alive.any(axis=axis)) for axis in (1, 0))
    found = rows_needed(first, self_paired=True), rows_needed(second)
    return () if found == plan.factors else found


def operand_key(spec: Any) -> tuple:
    """What the constant buffers depend on."""
    n1, kept1 = spec.n1 // spec.served, spec.kept1 // spec.served
    how = (spec.parts_in, spec.lower, spec.right_angle)
    return (n1, spec.n2, spec.rows_in, spec.dtype, (kept1, spec.kept2), *how)


def operands(
    n1: int,
    n2: int,
    rows_in: int,
    dtype: str,
    kept: tuple[int, int] | None = None,
    parts_in: bool = False,
    lower: bool = False,
    right_angle: bool = False,
) -> tuple[NDArray[np.int32], ...]:
    """The constant buffers, in the order of the kernel's arguments."""
    how = {"parts_in": parts_in, "lower": lower, "right_angle": right_angle}
    return (constants(n1, n2, rows_in, dtype, kept, **how),)


def spectrum_of_plan(
    plan: Plan, dtype: str, kept: tuple[int, ...] = ()
) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """Bins [1, N] and weights [1, N] in the order in which the kernel reads a spectrum; tiles.

    ``kept``: the rows of each axis that are, if not all; see `kept_axes`.
    """
    if plan.packing == "right-angle":
        n1, n2 = plan.factors
        at, width = _maps(n1, n2), 2 if n1 * n2 % 256 else 4  # `warp_spec.Spec.bins_wide`
        positions = layout.lane_order_positions(n1 // 8, n2 // 8, width=width)
        k = np.arange(n1)[:, None] + n1 * at.k2[None, :]
        phase = np.exp(-1j * np.pi * at.k2 / n2) / factor_scale(n2, 0.5, dtype)
        return k[positions][None], np.broadcast_to(phase, (n1, n2))[positions][None], 1
    order, phase, tiles = spectrum_layout(plan.factors, dtype, kept)
    return order[None], phase[None], tiles
