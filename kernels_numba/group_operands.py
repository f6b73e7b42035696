"""Constant operands of the order-2 kernel in which four warps carry a pair of sequences; see `operands.py`.

Sample n = n1 N2 + n2 and frequency k = k1 + N1 k2. A warp of the group holds 16 of the 64 rows: 8 outputs q in its
first row group, their mirrors in its second, so that both meet in one lane (``dealt``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.operands import (
    factor,
    factor_scale,
    mirrored,
    right_angle_factors,
    turned_twiddles,
    twiddles,
)
from kernels_numba.tile import layout
from kernels_numba.warp_operands import columns_written
from monarch import Plan

WARPS = 4


def dealt(n: int) -> NDArray[np.intp]:
    """Row slot -> place among [outputs, mirrors]: eight outputs, then their eight mirrors, for each warp."""
    return np.arange(n).reshape(2, -1, 8).swapaxes(0, 1).reshape(-1)


@dataclass(frozen=True)
class _Maps:
    """Index maps of one kernel; the four stages' slots in terms of n1, n2, k1, k2."""

    k1: NDArray[np.intp]
    k2: NDArray[np.intp]
    column_in: NDArray[np.intp]
    column_out: NDArray[np.intp]
    rows: NDArray[np.intp]


@cache
def _maps(n1: int, n2: int, right_angle: bool = False) -> _Maps:
    rows = np.arange(n1) if right_angle else dealt(n1)
    return _Maps(
        k1=rows if right_angle else mirrored(n1, self_paired=True)[rows],
        k2=mirrored(n2),
        column_in=np.arange(n2),
        column_out=columns_written(n2),
        rows=rows,
    )


@lru_cache(maxsize=32)
def constants(n1: int, n2: int, rows_in: int, dtype: str, right_angle: bool = False) -> NDArray[np.int32]:
    """F1, F2, and the inverse F2, F1, as core matrices."""
    at = _maps(n1, n2, right_angle)
    natural = np.arange(n1)
    if right_angle:  # rows of the last one's contraction are real parts, then imaginary parts
        first, last, _ = right_angle_factors(n1, natural, natural[:rows_in], dtype)
        last = last.swapaxes(1, 2).reshape(n1, 2 * n1)
    else:
        first = factor(n1, natural, mirrored(n1, self_paired=True), shift=0.0, dtype=dtype)[at.rows, :rows_in]
        last = factor(n1, at.k1, mirrored(n1), shift=0.5, dtype=dtype)[at.rows]
    columns = layout.group_right_index(n2, n2)
    parts = [
        *(
            layout.pack_core(x, layout.group_left_index(rows_in), dtype)
            for x in first.reshape(-1, n1, rows_in)
        ),
        layout.pack_core(factor(n2, at.column_in, at.k2, shift=0.5, dtype=dtype).T, columns, dtype),
        layout.pack_core(factor(n2, at.k2, at.column_out, shift=0.5, dtype=dtype).T, columns, dtype),
        layout.pack_core(last, layout.group_left_index(last.shape[1]), dtype),
    ]
    words = np.concatenate(parts)
    words.setflags(write=False)
    return words


@lru_cache(maxsize=32)
def tables(n1: int, n2: int, dtype: str, right_angle: bool = False) -> NDArray[np.int32]:
    """Twiddles, forward and inverse, by warp: 2 N1 N2 words."""
    at = _maps(n1, n2, right_angle)
    parts = []
    orders = layout.group_row_slices(n2), layout.group_column_slices(n2)
    if right_angle:
        *_, scale = right_angle_factors(n1, at.k1, at.k1, dtype)
        both = turned_twiddles(at.k1, (at.column_in, at.column_out), (n1, n2), scale, dtype)
    else:
        undone = factor_scale(n1, 0.0, dtype), factor_scale(n2, 0.5, dtype) * factor_scale(n1, 0.5, dtype)
        both = twiddles(at.k1, (at.column_in, at.column_out), (n1, n2), undone)
    for table, slices in zip(both, orders, strict=True):
        rows, columns = layout.c_index(2, n2 // 8)
        order = list(layout.by_slices(slices))
        for mine in np.split(table, WARPS):
            parts.append(layout.pack_complex(mine, (rows[order], columns[order]), dtype))
    words = np.concatenate(parts)
    words.setflags(write=False)
    return words


def spectrum_layout(
    factors: tuple[int, ...], dtype: str, right_angle: bool = False
) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """The bin at each position of the kernel's order, what it is multiplied by (stage 3's phase), and tiles (warps)."""
    n1, n2 = factors
    at = _maps(n1, n2, right_angle)
    k = (at.k1[:, None] + n1 * at.k2[None, :]).reshape(WARPS, 16, n2)
    phase = np.exp(-1j * np.pi * at.k2 / n2) / factor_scale(n2, 0.5, dtype)
    rows, columns = layout.lane_order_positions(2, n2 // 8, layout.by_slices(layout.group_column_slices(n2)))
    return k[:, rows, columns].reshape(-1), np.tile(phase[columns], WARPS), WARPS


def operand_key(spec: Any) -> tuple:
    """What the constant buffers depend on."""
    return (spec.n1, spec.n2, spec.rows_in, spec.dtype, spec.right_angle)


def operands(
    n1: int, n2: int, rows_in: int, dtype: str, right_angle: bool = False
) -> tuple[NDArray[np.int32], ...]:
    """The constant buffers, in the order of the kernel's arguments: factors, then twiddles."""
    return constants(n1, n2, rows_in, dtype, right_angle), tables(n1, n2, dtype, right_angle)


def spectrum_of_plan(plan: Plan, dtype: str) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """Bins [1, N] and weights [1, N] in the order in which the kernel reads a spectrum; tiles."""
    order, phase, tiles = spectrum_layout(plan.factors, dtype, plan.packing == "right-angle")
    return order[None], phase[None], tiles
