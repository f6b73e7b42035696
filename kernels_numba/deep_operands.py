"""Constant operands of the order-4 kernel; see `operands.py` and docs/kernels.md.

n = n1 Q + n2 R + n3 N4 + n4 and k = k1 + N1 (k2 + N2 (k3 + N3 k4)), Q = N2 R, R = N3 N4.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kernels_numba.block_operands import mirror_offsets, mirrored_weights
from kernels_numba.deep_spec import Spec
from kernels_numba.operands import (
    TURN,
    factor,
    factor_scale,
    mirrored,
    right_angle_factors,
    rounding_scale,
    rows_read,
    twiddles,
)
from kernels_numba.tile import layout
from monarch import Plan


# ---- index maps: which index each slot of a fragment stands for --------------------------------------------
def parts_read(rows: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(part, row) of each contraction slot of the outer stage, 16 a tile: thread t has rows 4 e + t, both parts each.

    Fewer than eight rows are followed by others up to eight, which stand for zeros.
    """
    slot = np.arange(2 * max(8, rows))
    return slot % 2, 4 * (slot // 8) + slot % 8 // 2


def columns_paired(n4: int) -> NDArray[np.intp]:
    """Column slot -> n4 in the forward inner stage: lane group g has columns 2 g and 2 g + 1."""
    slot = np.arange(n4)
    return 2 * (slot % 8) + slot // 8


def columns_split(n4: int) -> NDArray[np.intp]:
    """Column slot -> n4 after the inverse inner stage: even columns in one half of the lanes, odd ones in the other."""
    q = np.arange(n4 // 2)
    q = 2 * (q % 4) + q // 4
    return np.concatenate([q, n4 - 1 - q])


def columns_of_four(n4: int) -> NDArray[np.intp]:
    """Column slot 8 j + 2 t + e -> n4 of the outer twiddles: thread t has columns 4 t to 4 t + 3."""
    slot = np.arange(n4)
    return 4 * (slot % 8 // 2) + 2 * (slot // 8) + slot % 2


def columns_middle(n3: int, strip: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(n3, n4) of the 32 column slots of a strip of the middle stage: neighbours are two n3 of one n4."""
    slot = np.arange(32)
    j, c = slot // 8, slot % 8
    return mirrored(n3)[2 * strip + c % 2], 4 * (c // 2) + j


def columns_last(n4: int) -> NDArray[np.intp]:
    """Column slot 8 j + g -> n4 of the last stage, with one n2 in each half of the groups."""
    slot = np.arange(2 * n4)
    j, g = slot // 8, slot % 8
    return 8 * (g // 2 % 2) + g % 2 + 2 * j


def rotation(turns: NDArray[np.floating]) -> NDArray[np.complex128]:
    """exp(2 pi i turns)."""
    return np.exp(2j * np.pi * turns).astype(np.complex128)


# ---- complex factors as real matrices ----------------------------------------------------------------------
def as_real(matrix: NDArray, dtype: str) -> tuple[NDArray, float]:
    """A complex matrix [m, n] as a real one [2 m, 2 n] of real, then imaginary parts, scaled to round well.

    Returns it and its scale.
    """
    real = np.block([[matrix.real, -matrix.imag], [matrix.imag, matrix.real]])
    scale = rounding_scale(real, dtype)
    return scale * real, scale


def outer_factor(n1: int, *, inverse: bool, dtype: str) -> tuple[NDArray, float]:
    """The factor n1 -> slot of k1, or back, as a real matrix [2 N1, 2 N1], and its scale."""
    n1s, k1 = np.arange(n1), mirrored(n1, self_paired=True)
    angle = 2 * np.pi * (np.outer(n1s, k1) if inverse else -np.outer(k1, n1s)) / n1
    return as_real(np.exp(1j * angle) / np.sqrt(n1), dtype)


def middle_factor(n1: int, n2: int, k1: float, *, inverse: bool, dtype: str) -> tuple[NDArray, float]:
    """The factor n2 -> k2 (or back) of one k1, with the twiddle w^(k1 n2), as a real matrix [2 N2, 2 N2]; its scale.

    A k1 of the transform of n2 is not whole: these are the frequencies k2 + k1 / N1.
    """
    n2s, k2s = np.arange(n2), np.arange(n2)
    angle = -2 * np.pi * (n1 * k2s[:, None] + k1) * n2s[None, :] / (n1 * n2)
    if inverse:
        angle = -angle.T
    return as_real(np.exp(1j * angle) / np.sqrt(n2), dtype)


def outer_factors(
    n1: int, rows_in: int, rows_out: int, dtype: str, right_angle: bool
) -> tuple[NDArray, NDArray, float, float]:
    """The factors n1 -> slot of k1 of what is read, and back of what is stored, and their scales.

    Columns of the first and rows of the second are both parts of samples; with right-angle packing real samples.
    """
    if right_angle:
        first, last, scale = right_angle_factors(
            n1, mirrored(n1, self_paired=True), rows_read(max(16, rows_in)), dtype
        )
        return first, last.swapaxes(1, 2).reshape(-1, 2 * n1), scale, scale
    (first, there), (last, back) = (outer_factor(n1, inverse=way, dtype=dtype) for way in (False, True))
    # Rows of zeros, and rows that nobody wants, are the last ones of both parts.
    part, row = parts_read(rows_in)
    first = np.where(row < rows_in, first[:, part * n1 + row], 0)
    last = last.reshape(2, n1, 2 * n1)[:, :rows_out].reshape(2 * rows_out, 2 * n1)
    return first, last, there, back


@lru_cache(maxsize=16)
def constants(
    n1: int, n2: int, n3: int, n4: int, rows_in: int, rows_out: int, dtype: str, right_angle: bool = False
) -> NDArray[np.int32]:
    """Factors and twiddles that all warps share, in the order the kernel reads them.

    F1, F1 inverse (of real and imaginary parts), F3 (both ways), F4, F4 inverse (half precision); the inner twiddles
    of k3 and n4, forward and inverse; the middle twiddles of k2 and (n3, n4), forward by strips and inverse by k2.
    """
    a, b, c = layout.a_index, layout.b_index, layout.c_index
    paired, split, q = columns_paired(n4), columns_split(n4), n2 * n3 * n4
    k3, k4, n3s = mirrored(n3), mirrored(n4), mirrored(n3)
    # Phases and scales of factors go to twiddles of which none is exact anyway: those of k1 = 0 and k2 = 0 that are 1
    # stay 1. The middle factors' scales depend on k1: the spectrum undoes those.
    first, last, _, back = outer_factors(n1, rows_in, rows_out, dtype, right_angle)
    undone = (
        factor_scale(n3, 0.5, dtype),
        factor_scale(n4, 0.5, dtype) * factor_scale(n3, 0.5, dtype) * back,
    )
    forward, inverse = twiddles(k3, (paired, split), (n3, n4), undone)
    parts = [
        layout.pack_operand(first, a(n1 // 8, first.shape[1] // 16), dtype),
        layout.pack_operand(last, a(last.shape[0] // 16, n1 // 8), dtype),
        layout.pack_operand(factor(n3, n3s, k3, shift=0.5, dtype=dtype), a(n3 // 16, n3 // 16), dtype),
        layout.pack_operand(factor(n4, paired, k4, shift=0.5, dtype=dtype).T, b(n4 // 16, n4 // 8), dtype),
        layout.pack_operand(factor(n4, k4, split, shift=0.5, dtype=dtype).T, b(n4 // 16, n4 // 8), dtype),
        layout.pack_complex(forward, c(n3 // 8, n4 // 8), dtype),
        layout.pack_complex(inverse, c(n3 // 8, n4 // 8), dtype),
    ]
    for strip in range(n3 // 2):
        row, column = columns_middle(n3, strip)
        w = rotation(-np.outer(np.arange(n2), row * n4 + column) / q)
        parts.append(layout.pack_complex(w, c(n2 // 8, 4), dtype))
    for k2 in range(n2):
        w = rotation(k2 * np.add.outer(n3s * n4, split) / q)
        parts.append(layout.pack_complex(w, c(n3 // 8, n4 // 8), dtype))
    words = np.concatenate(parts)
    words.setflags(write=False)
    return words


@lru_cache(maxsize=16)
def tables(
    n1: int, n2: int, n3: int, n4: int, dtype: str, half: bool = False, right_angle: bool = False
) -> NDArray[np.int32]:
    """What each warp has of its own: N1 R words of outer twiddles, as many inverse, and middle factors of its k1.

    The twiddle of (k1, n) is w^(k1 n2 R) w^(k1 (n3 N4 + n4)): the first factor is part of the middle factors, so only
    [N1, R] twiddles remain. Forward they are stored by n3 slot as packed C fragments, inverse as the B operands of one
    half of the lanes (the other half has the same). With half-length packing `block_operands.mirror_offsets` follow.
    """
    n = n1 * n2 * n3 * n4
    k1, n3s = frequencies(n1, right_angle), mirrored(n3)
    middle = [middle_factor(n1, n2, k, inverse=way, dtype=dtype)[0] for way in (False, True) for k in k1]
    scale = outer_factors(n1, n1, n1, dtype, right_angle)[2]
    c_rows, c_columns = layout.c_index(n1 // 8, n4 // 8)
    rows, columns = (
        x.reshape(4, 2, *x.shape[1:])[:, : n1 // 8].reshape(-1, *x.shape[1:]) for x in layout.b_index(1, 4)
    )
    outer, inverse = [], []
    for row in n3s:
        m = row * n4 + columns_of_four(n4)
        w = rotation(row / (2 * n3) - np.outer(k1, m) / n) / scale
        found = [layout.to_words(part[c_rows, c_columns], dtype) for part in (w.real, w.imag)]
        outer.append(layout.lane_order(np.concatenate(found)))
        m = row * n4 + columns_last(n4)
        w = rotation(np.outer(k1, m) / n)
        b = [layout.to_words(part[rows, columns], dtype)[:, :16] for part in (w.real, w.imag)]
        inverse.append(np.concatenate(b).reshape(-1, 4, 16).transpose(0, 2, 1).reshape(-1))
    factors = [layout.pack_operand(matrix, layout.a_index(1, 1), dtype) for matrix in middle]
    words = np.concatenate([*outer, *inverse, *factors, *([mirror_offsets(16, n3, n4)] if half else [])])
    words.setflags(write=False)
    return words


def frequencies(n1: int, right_angle: bool) -> NDArray[np.floating]:
    """Slot of k1 -> frequency; with right-angle packing turned."""
    return mirrored(n1, self_paired=True) + (TURN if right_angle else 0.0)


def tiles_in_order(n1: int, n2: int, half: bool) -> NDArray[np.intp]:
    """(slot of k1, k2) of each inner convolution, in the order in which they are done; two neighbours go together.

    For pairs of sequences by k1 and k2; for one sequence mirrors together: (k1, k2) and (N1 - k1, N2 - 1 - k2), for
    k1 = 0 (0, k2) and (0, N2 - k2), of which k2 = 0 and N2 / 2 are their own.
    """
    if not half:
        return np.array([(slot, k2) for slot in range(n1) for k2 in range(n2)])
    own, middle = n2 // 2, n1 // 2
    found = [[(0, 0), (0, own)], *([(0, i), (0, n2 - i)] for i in range(1, own))]
    found += [[(middle, k2), (middle, n2 - 1 - k2)] for k2 in range(own)]
    found += [[(slot, k2), (slot + middle, n2 - 1 - k2)] for slot in range(1, middle) for k2 in range(n2)]
    return np.array(found).reshape(-1, 2)


def spectrum_of_plan(plan: Plan, dtype: str) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """Bins [1 or 2, N] and weights in the order in which the kernel reads a spectrum; tiles."""
    n1, n2, n3, n4 = plan.factors
    half = plan.packing == "half"
    slot, k2 = tiles_in_order(n1, n2, half).T
    k3, k4 = mirrored(n3)[:, None], mirrored(n4)[None, :]
    positions = layout.lane_order_positions(n3 // 8, n4 // 8)
    inner = (k3 + n3 * k4)[positions]
    k1 = mirrored(n1, self_paired=True)
    order = (k1[slot] + n1 * k2)[:, None] + n1 * n2 * inner[None, :]
    phase = rotation(-(k4 + 0 * k3) / (2 * n4))[positions] / factor_scale(n4, 0.5, dtype)
    right_angle = plan.packing == "right-angle"
    middle = frequencies(n1, right_angle)
    scales = np.prod(
        [[middle_factor(n1, n2, k, inverse=way, dtype=dtype)[1] for k in middle] for way in (False, True)],
        axis=0,
    )
    flat = order.reshape(-1), (phase[None, :] / scales[slot][:, None]).reshape(-1), n1 * n2
    if half:
        bins, weights, tiles = mirrored_weights(*flat)
        return bins, weights, tiles
    return flat[0][None], flat[1][None], n1 * n2


def operand_key(spec: Spec, marks: bytes = b"") -> tuple:
    """What the constant buffers depend on."""
    factors = (spec.n1, spec.n2, spec.n3, spec.n4)
    return (*factors, spec.rows_in, spec.rows_out, spec.dtype, spec.half, marks, spec.right_angle)


def operands(
    n1: int,
    n2: int,
    n3: int,
    n4: int,
    rows_in: int,
    rows_out: int,
    dtype: str,
    half: bool,
    marks: bytes = b"",
    right_angle: bool = False,
) -> tuple[NDArray[np.int32], ...]:
    """The constant buffers, in the order of the kernel's arguments: what all warps share and marks, each warp's own."""
    words = constants(n1, n2, n3, n4, rows_in, rows_out, dtype, right_angle)
    if marks:
        words = np.concatenate([words, np.frombuffer(marks, np.int32)])
    return words, tables(n1, n2, n3, n4, dtype, half, right_angle)


def skipped_points(plan: Plan, kept: tuple[int, ...] = ()) -> int:
    """Neighbouring points of the kernel's order that are left out together, if all are zero: two k2 of a k1."""
    return 2 * plan.factors[2] * plan.factors[3]
