"""Constant operands of the order-3 kernel, in which a block carries one pair of sequences.

The index maps continue those of `operands.py`: slots of fragments in terms of n1, n2, n3 and k1, k2, k3. With
Q = N2 N3, sample n = n1 Q + n2 N3 + n3 and frequency k = k1 + N1 (k2 + N2 k3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from kernels_numba.block_spec import STRIP, Spec
from kernels_numba.operands import (
    TURN,
    factor,
    factor_scale,
    kept_slots,
    mirrored,
    right_angle_factors,
    rows_needed,
    rows_read,
    twiddles,
)
from kernels_numba.tile import layout
from monarch import Plan


def strip_columns(n3: int, strip: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """(n2, n3) of the 32 column slots of a strip of the forward outer stage.

    Neighbouring slots are two n2 of one n3, so that a packed register is a pair over n2: what the next stage
    contracts.
    """
    per_row = n3 // 16
    slot = np.arange(STRIP)
    j, c = slot // 8, slot % 8
    return 2 * (strip // per_row) + (c & 1), 16 * (strip % per_row) + 4 * (c >> 1) + j


def columns_exchanged(n3: int) -> NDArray[np.intp]:
    """Column slot -> n3 after the inverse column stage: two slots of a lane are two columns apart."""
    slot = np.arange(n3 // 2)
    j, c = slot // 8, slot % 8
    t, e = c // 2, c % 2
    q = 8 * j + 4 * (t >> 1) + (t & 1) + 2 * e
    return np.concatenate([q, n3 - 1 - q])


def columns_paired(n3: int) -> NDArray[np.intp]:
    """Column slot -> n3 in the forward row stage: lane group g reads columns 2 g, 2 g + 1 of each sixteen."""
    slot = np.arange(n3)
    j, c = slot // 8, slot % 8
    return 16 * (j >> 1) + 2 * c + (j & 1)


@dataclass(frozen=True)
class _Maps:
    row_in: NDArray[np.intp]
    k1: NDArray[np.intp]
    k2: NDArray[np.intp]
    k3: NDArray[np.intp]
    column_in: NDArray[np.intp]
    column_out: NDArray[np.intp]
    row_out: NDArray[np.intp]


@cache
def _maps(n1: int, n2: int, n3: int, kept3: int | None = None) -> _Maps:
    return _Maps(
        row_in=rows_read(max(16, n1)),
        k1=mirrored(n1, self_paired=True),
        k2=mirrored(n2),
        k3=kept_slots(n3, kept3 or n3),
        column_in=columns_paired(n3),
        column_out=columns_exchanged(n3),
        row_out=mirrored(n2),
    )


def outer_factor(
    n1: int, contracted: NDArray[np.intp], outputs: NDArray[np.intp], *, shift: float, dtype: str
) -> NDArray:
    """The outer stage's factor, cosine rows above sine rows; for n1 = 8, of two parts of the columns side by side.

    Rows are slots (row group, part, output), columns (part, contracted index), and the parts do not mix.
    """
    fold, half = max(1, 16 // n1), n1 // 2
    one = factor(n1, contracted, outputs, shift=shift, dtype=dtype)
    parts = one.reshape(2, 1, half, 1, n1) * np.eye(fold)[None, :, None, :, None]
    return parts.reshape(n1 * fold, n1 * fold)


@lru_cache(maxsize=32)
def constants(
    n1: int,
    n2: int,
    n3: int,
    rows_in: int,
    dtype: str,
    half: bool = False,
    kept3: int | None = None,
    right_angle: bool = False,
) -> NDArray[np.int32]:
    """Factors and inner twiddles, in the order the kernel reads them; with right-angle packing n1 is the factor N1.

    F1, F2, F3, F3 inverse, F2 inverse, F1 inverse (real, half precision), then the inner twiddles of k2 and n3,
    forward and inverse (complex). ``kept3``: the k3 that are transformed to and from, all by default.
    """
    kept3 = kept3 or n3
    at = _maps(n1, n2, n3, kept3)
    natural = np.arange(n2)
    a, b, c = layout.a_index, layout.b_index, layout.c_index
    undone = factor_scale(n2, 0.5, dtype), factor_scale(n3, 0.5, dtype)
    forward, inverse = twiddles(at.k2, (at.column_in, at.column_out), (n2, n3), undone)
    if right_angle:
        first, last, _ = right_angle_factors(n1, np.arange(n1), rows_read(rows_in), dtype)
        last = last.reshape(-1, 2 * n1)
    else:
        first = outer_factor(n1, np.arange(n1), at.k1, shift=0.0, dtype=dtype)[:, at.row_in][:, :rows_in]
        # Pairs of contracted slots: neighbours, or (half-length packing) a slot and its mirror.
        contracted = at.k1.reshape(2, -1).T.reshape(-1) if half else at.k1
        last = outer_factor(n1, contracted, mirrored(n1), shift=0.5, dtype=dtype)
    parts = [
        layout.pack_operand(first, a(first.shape[0] // 16, rows_in // 16), dtype),
        layout.pack_operand(factor(n2, natural, at.k2, shift=0.5, dtype=dtype), a(n2 // 16, n2 // 16), dtype),
        layout.pack_operand(
            factor(n3, at.column_in, at.k3, shift=0.5, dtype=dtype).T, b(n3 // 16, kept3 // 8), dtype
        ),
        layout.pack_operand(
            factor(n3, at.k3, at.column_out, shift=0.5, dtype=dtype).T, b(kept3 // 16, n3 // 8), dtype
        ),
        layout.pack_operand(
            factor(n2, at.k2, at.row_out, shift=0.5, dtype=dtype), a(n2 // 16, n2 // 16), dtype
        ),
        layout.pack_operand(last, a(last.shape[0] // 16, last.shape[1] // 16), dtype),
        layout.pack_complex(forward, c(n2 // 8, n3 // 8), dtype),
        layout.pack_complex(inverse, c(n2 // 8, n3 // 8), dtype),
    ]
    words = np.concatenate(parts)
    words.setflags(write=False)
    return words


@lru_cache(maxsize=16)
def outer_twiddles(
    n1: int, n2: int, n3: int, rows_in: int, dtype: str, half: bool = False, right_angle: bool = False
) -> NDArray[np.int32]:
    """Twiddles of the outer stage: forward [strips, N1 x 32], then inverse [N1 slots, N2 x N3]; 2 P words.

    With half-length packing the offsets of :func:`mirror_offsets` follow. With right-angle packing frequencies are
    turned and stand in their own order, and there are no half steps of k1.
    """
    at = _maps(n1, n2, n3)
    q, points = n2 * n3, n1 * n2 * n3
    parts = []
    if right_angle:
        *_, scale = right_angle_factors(n1, np.arange(n1), rows_read(rows_in), dtype)
        k1 = np.arange(n1)[:, None] + TURN
        for strip in range(q // STRIP):
            row, column = strip_columns(n3, strip)
            w = (
                np.exp(-2j * np.pi * k1 * (row * n3 + column) / points)
                * np.exp(1j * np.pi * row / n2)
                / scale
            )
            parts.append(layout.pack_complex(w, layout.c_index(n1 // 8, STRIP // 8), dtype))
        m = at.row_out[:, None] * n3 + at.column_out[None, :]
        for frequency in k1[:, 0]:
            w = np.exp(2j * np.pi * frequency * m / points) / (factor_scale(n2, 0.5, dtype) * scale)
            parts.append(layout.pack_complex(w, layout.c_index(n2 // 8, n3 // 8), dtype))
        words = np.concatenate(parts)
        words.setflags(write=False)
        return words
    fold, outputs = max(1, 16 // n1), n1 // 2
    upper, within = np.divmod(np.arange(n1 * fold), outputs * fold)  # cosine or sine rows
    part, output = np.divmod(within, outputs)
    k1 = at.k1[upper * outputs + output]
    for strip in range(q // STRIP // fold):
        row, column = strip_columns(n3, strip)
        m = (part * (q // fold))[:, None] + (row * n3 + column)[None, :]
        w = np.exp(-2j * np.pi * (k1[:, None] * m % points) / points)
        w = w * np.exp(1j * np.pi * (m // n3) / n2) / factor_scale(n1, 0.0, dtype)
        parts.append(layout.pack_complex(w, layout.c_index(n1 * fold // 8, STRIP // 8), dtype))
    m = at.row_out[:, None] * n3 + at.column_out[None, :]
    for frequency in at.k1:
        w = np.exp(2j * np.pi * ((frequency * m) % points) / points)
        w = (
            w
            * np.exp(-1j * np.pi * frequency / n1)
            / (factor_scale(n2, 0.5, dtype) * factor_scale(n1, 0.5, dtype))
        )
        parts.append(layout.pack_complex(w, layout.c_index(n2 // 8, n3 // 8), dtype))
    if half:
        parts.append(mirror_offsets(n1, n2, n3))
    words = np.concatenate(parts)
    words.setflags(write=False)
    return words


def mirror_offsets(n1: int, n2: int, n3: int) -> NDArray[np.int32]:
    """For every half element of the tile k1 = 0, where its mirror -k lies when registers are stored one by one.

    Lane-ordered words of two 16-bit offsets, in half elements: register r of lane l is word 32 r + l. (A lane's mirror
    is mostly its neighbour's, so that a gather of one register has few bank conflicts.)
    (Mirrors of other tiles are whole registers: k2 and N2 - 1 - k2, k3 and N3 - 1 - k3 share a lane.)
    """
    at = _maps(n1, n2, n3)
    rows, columns = layout.c_index(n2 // 8, n3 // 8)
    k2, k3 = at.k2[rows], at.k3[columns]
    mirror2 = np.where(k2 == 0, 0, n2 - k2)
    mirror3 = np.where(k2 == 0, (n3 - k3) % n3, n3 - 1 - k3)
    row, column = np.argsort(at.k2)[mirror2], np.argsort(at.k3)[mirror3]
    registers = rows.shape[0]
    offsets = []
    for part in range(2):
        register = part * registers + row // 8 * (n3 // 8) + column // 8
        lane = 4 * (row % 8) + column % 8 // 2
        offsets.append(2 * (32 * register + lane) + column % 2)
    halves = np.concatenate(offsets).astype(np.uint16)  # [2 registers, 32 lanes, 2]
    return layout.lane_order(np.ascontiguousarray(halves).view(np.int32)[..., 0])


def half_spectrum_layout(factors: tuple[int, ...], dtype: str) -> tuple:
    """For half-length packing: two bins for each position, and what they are multiplied by; tiles.

    One real sequence of N = 2 P samples is transformed as z = u[2n] + i u[2n + 1] (Sorensen et al. 1987). With the
    filter's bins H of N points, S = (H[k] + H[k + P]) / 2 and D = (H[k] - H[k + P]) / 2, the convolution becomes
    Z' [k] = A Z[k] + B conj Z[-k], A = S - D sin(2 pi k / N), B = i D cos(2 pi k / N): both are sums of two bins with
    weights. A tile's positions are those of A, then those of B.
    """
    return mirrored_weights(*spectrum_layout(factors, dtype))


def mirrored_weights(order: NDArray[np.intp], phase: NDArray[np.complex128], tiles: int) -> tuple:
    """The layout of a pair's spectrum [P] as that of half-length packing: bins, weights [2, 2 P], and tiles."""
    points = order.size
    angle = np.pi * order / points
    a = np.stack([(1 - np.sin(angle)) / 2, (1 + np.sin(angle)) / 2])
    b = 0.5j * np.stack([np.cos(angle), -np.cos(angle)])
    weights = np.stack([w * phase for w in (a, b)], axis=1)  # [2 bins, A or B, P]
    bins = np.stack([order, order + points])[:, None, :].repeat(2, axis=1)
    by_tile = [x.reshape(2, 2, tiles, -1).swapaxes(1, 2).reshape(2, -1) for x in (bins, weights)]
    return by_tile[0], by_tile[1], 2 * tiles


def spectrum_layout(
    factors: tuple[int, ...], dtype: str, kept: tuple[int, ...] = ()
) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """The bin at each position of the kernel's order, what it is multiplied by, and tiles (one for each k1)."""
    (n1, n2, n3), (*_, kept3) = factors, kept or factors
    at = _maps(n1, n2, n3, kept3)
    inner = n1 * (at.k2[:, None] + n2 * at.k3[None, :])
    phase = np.exp(-1j * np.pi * at.k3 / n3) / factor_scale(n3, 0.5, dtype)
    positions = layout.lane_order_positions(n2 // 8, kept3 // 8)
    order = at.k1[:, None] + inner[positions][None, :]
    return order.reshape(-1), np.tile(np.broadcast_to(phase, (n2, kept3))[positions], n1), n1


def kept_axes(plan: Plan, alive: NDArray[np.bool_]) -> tuple[int, ...]:
    """Of each axis the rows that the kernel must do where only ``alive [N1, N2, N3]`` is not zero; () for all.

    Only k3 are left out so; k1 go by marks.
    """
    kept3 = rows_needed(np.asarray(alive.any(axis=(0, 1))))
    return () if kept3 == plan.factors[2] else (*plan.factors[:2], kept3)


def operand_key(spec: Spec, marks: bytes = b"") -> tuple:
    """What the constant buffers depend on."""
    n1 = spec.n1 // 2 if spec.right_angle else spec.n1
    return (n1, spec.n2, spec.n3, spec.rows_in, spec.dtype, spec.half, marks, spec.kept3, spec.right_angle)


def operands(
    n1: int,
    n2: int,
    n3: int,
    rows_in: int,
    dtype: str,
    half: bool,
    marks: bytes = b"",
    kept3: int | None = None,
    right_angle: bool = False,
) -> tuple[NDArray[np.int32], ...]:
    """The constant buffers, in the order of the kernel's arguments: factors and marks, then outer twiddles."""
    words = constants(n1, n2, n3, rows_in, dtype, half, kept3, right_angle)
    if marks:
        words = np.concatenate([words, np.frombuffer(marks, np.int32)])
    return words, outer_twiddles(n1, n2, n3, rows_in, dtype, half, right_angle)


def spectrum_of_plan(
    plan: Plan, dtype: str, kept: tuple[int, ...] = ()
) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """Bins [1 or 2, N] and weights in the order in which the kernel reads a spectrum; tiles.

    ``kept``: the rows of each axis that are, if not all; see `kept_axes`.
    """
    if plan.packing == "half":
        return half_spectrum_layout(plan.factors, dtype)
    order, phase, tiles = spectrum_layout(plan.factors, dtype, kept)
    if plan.packing == "right-angle":
        n1 = plan.factors[0]
        slots = _maps(*plan.factors).k1  # the order of k1 that `spectrum_layout` has
        in_order = order.reshape(n1, -1)[np.argsort(slots)]
        return in_order.reshape(1, -1), phase[None], tiles
    return order[None], phase[None], tiles


def skipped_points(plan: Plan, kept: tuple[int, ...] = ()) -> int:
    """Neighbouring points of the kernel's order that are left out together, if all are zero: two k1."""
    _, n2, n3 = kept or plan.factors
    return 2 * n2 * n3
