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

from kernels_numba.operands import factor, factor_scale, mirrored, twiddles
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
def _maps(n1: int, n2: int) -> _Maps:
    rows = dealt(n1)
    return _Maps(
        k1=mirrored(n1, self_paired=True)[rows],
        k2=mirrored(n2),
        column_in=np.arange(n2),
        column_out=columns_written(n2),
        rows=rows,
    )


@lru_cache(maxsize=32)
def constants(n1: int, n2: int, rows_in: int, dtype: str) -> NDArray[np.int32]:
    """F1, F2, and the inverse F2, F1, as core matrices."""
    at = _maps(n1, n2)
    natural = np.arange(n1)
    first = factor(n1, natural, mirrored(n1, self_paired=True), shift=0.0, dtype=dtype)[at.rows, :rows_in]
    last = factor(n1, at.k1, mirrored(n1), shift=0.5, dtype=dtype)[at.rows]
    columns = layout.group_right_index(n2, n2)
    parts = [
        layout.pack_core(first, layout.group_left_index(rows_in), dtype),
        layout.pack_core(factor(n2, at.column_in, at.k2, shift=0.5, dtype=dtype).T, columns, dtype),
        layout.pack_core(factor(n2, at.k2, at.column_out, shift=0.5, dtype=dtype).T, columns, dtype),
        layout.pack_core(last, layout.group_left_index(n1), dtype),
    ]
    words = np.concatenate(parts)
    words.setflags(write=False)
    return words


@lru_cache(maxsize=32)
def tables(n1: int, n2: int, dtype: str) -> NDArray[np.int32]:
    """Twiddles, forward and inverse, by warp: 2 N words."""
    at = _maps(n1, n2)
    undone = factor_scale(n1, 0.0, dtype), factor_scale(n2, 0.5, dtype) * factor_scale(n1, 0.5, dtype)
    parts = []
    orders = layout.group_row_slices(n2), layout.group_column_slices(n2)
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
    factors: tuple[int, ...], dtype: str
) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """The bin at each position of the kernel's order, what it is multiplied by (stage 3's phase), and tiles (warps)."""
    n1, n2 = factors
    at = _maps(n1, n2)
    k = (at.k1[:, None] + n1 * at.k2[None, :]).reshape(WARPS, 16, n2)
    phase = np.exp(-1j * np.pi * at.k2 / n2) / factor_scale(n2, 0.5, dtype)
    rows, columns = layout.lane_order_positions(2, n2 // 8, layout.by_slices(layout.group_column_slices(n2)))
    return k[:, rows, columns].reshape(-1), np.tile(phase[columns], WARPS), WARPS


def operand_key(spec: Any) -> tuple:
    """What the constant buffers depend on."""
    return (spec.n1, spec.n2, spec.rows_in, spec.dtype)


def operands(n1: int, n2: int, rows_in: int, dtype: str) -> tuple[NDArray[np.int32], ...]:
    """The constant buffers, in the order of the kernel's arguments: factors, then twiddles."""
    return constants(n1, n2, rows_in, dtype), tables(n1, n2, dtype)


def spectrum_of_plan(plan: Plan, dtype: str) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """Bins [1, N] and weights [1, N] in the order in which the kernel reads a spectrum; tiles."""
    order, phase, tiles = spectrum_layout(plan.factors, dtype)
    return order[None], phase[None], tiles
