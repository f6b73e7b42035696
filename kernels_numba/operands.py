"""Constant operands of the fused convolution: DFT factors, twiddles and spectra, laid out for the kernel.

A kernel's index may run in any order if the constants follow: a contraction index permuted on both operands
changes nothing, and an output index permuted reappears, permuted, in the next constant. So the maps below
choose what is contiguous for the lanes, and every permutation is absorbed here, in float64, before rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile import layout


# ---- index maps: which index each slot of a fragment stands for --------------------------------------------
def rows_read(n: int) -> NDArray[np.intp]:
    """Contraction slot -> row of the input: lane thread t reads rows 4 e + t, e = 0..3, of each 16."""
    slot = np.arange(n)
    tile, s = slot // 16, slot % 16
    return 16 * tile + 4 * (s % 2 + 2 * (s // 8)) + (s % 8) // 2


def columns_read(n: int) -> NDArray[np.intp]:
    """Column slot 8 j + c -> column of the input: lane group c reads the n/8 columns from c n/8 on."""
    slot = np.arange(n)
    return (n // 8) * (slot % 8) + slot // 8


def mirrored(n: int, *, self_paired: bool = False) -> NDArray[np.intp]:
    """Output slot -> index: q in the first half, its mirror in the second."""
    q = np.arange(n // 2)
    if self_paired:
        return np.concatenate([q, np.where(q == 0, n // 2, (n - q) % n)])
    return np.concatenate([q, n - 1 - q])


def columns_written(n: int) -> NDArray[np.intp]:
    """Column slot -> output column: thread t's slots are n/8 contiguous columns, and their mirrors."""
    slot = np.arange(n // 2)
    j, c = slot // 8, slot % 8
    q = (n // 8) * (c // 2) + 2 * j + c % 2
    return np.concatenate([q, n - 1 - q])


@cache
def factor_scale(n: int, shift: float, dtype: str) -> float:
    """The scale in [1, 2) with which a DFT factor rounds to half precision with the least error.

    A factor of length n has about n/2 different magnitudes, so a scale that suits them all exists: the
    factors' part of the rounding error falls to about half. What follows the factor is divided by the scale
    again, in float64, before it is rounded itself.
    """
    entries = _entries(n, np.arange(n), np.arange(n), shift).reshape(-1)
    scales = 2 ** (np.arange(4096) / 4096)
    magnitudes, weights = np.unique(np.abs(entries).round(12), return_counts=True)
    scaled = scales[:, None] * magnitudes
    rounded = scaled.astype(layout.HALF_TYPES[dtype]).astype(np.float64)
    error = (((rounded - scaled) ** 2) @ weights) / scales**2
    return float(scales[np.argmin(error)])


def _entries(n: int, contracted: NDArray[np.intp], outputs: NDArray[np.intp], shift: float) -> NDArray:
    """[cosines; sines] of a unitary DFT factor: rows are the first half of ``outputs``, twice."""
    q = outputs[: n // 2]
    angle = 2 * np.pi * np.outer(q + shift, contracted) / n
    cosines, sines = np.cos(angle), np.sin(angle)
    if not shift:  # row 0 of the sines is free: it carries output n/2
        sines[0] = np.cos(np.pi * contracted)
    return np.concatenate([cosines, sines]) / np.sqrt(n)


def _factor(
    n: int, contracted: NDArray[np.intp], outputs: NDArray[np.intp], *, shift: float, dtype: str
) -> NDArray:
    return factor_scale(n, shift, dtype) * _entries(n, contracted, outputs, shift)


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
def _maps(n1: int, n2: int) -> _Maps:
    return _Maps(
        row_in=rows_read(n1),
        column_in=columns_read(n2),
        k1=mirrored(n1, self_paired=True),
        k2=mirrored(n2),
        column_out=columns_written(n2),
        row_out=mirrored(n1),
    )


@lru_cache(maxsize=64)
def constants(n1: int, n2: int, rows_in: int, dtype: str) -> NDArray[np.int32]:
    """The constant operands as the kernel reads them: F1, twiddle, F2, and the inverse F2, twiddle, F1."""
    at = _maps(n1, n2)
    n = n1 * n2
    groups, tiles, k_tiles = n1 // 8, n2 // 8, n2 // 16
    w = np.exp(-2j * np.pi * (np.outer(at.k1, at.column_in) % n) / n)
    forward = w * np.exp(1j * np.pi * at.column_in / n2)[None, :] / factor_scale(n1, 0.0, dtype)
    w = np.exp(2j * np.pi * (np.outer(at.k1, at.column_out) % n) / n)
    inverse = w * np.exp(-1j * np.pi * at.k1 / n1)[:, None] / factor_scale(n2, 0.5, dtype)
    first = _factor(n1, at.row_in, at.k1, shift=0.0, dtype=dtype)[:, :rows_in]
    parts = [
        layout.pack_operand(first, layout.a_index(n1 // 16, rows_in // 16), dtype),
        layout.pack_complex(forward, layout.c_index(groups, tiles), dtype),
        layout.pack_operand(
            _factor(n2, at.column_in, at.k2, shift=0.5, dtype=dtype).T, layout.b_index(k_tiles, tiles), dtype
        ),
        layout.pack_operand(
            _factor(n2, at.k2, at.column_out, shift=0.5, dtype=dtype).T, layout.b_index(k_tiles, tiles), dtype
        ),
        layout.pack_complex(inverse, layout.c_index(groups, tiles), dtype),
        layout.pack_operand(
            _factor(n1, at.k1, at.row_out, shift=0.5, dtype=dtype), layout.a_index(n1 // 16, n1 // 16), dtype
        ),
    ]
    words = np.concatenate(parts)
    words.setflags(write=False)
    return words


def output_scale(n1: int, dtype: str) -> float:
    """What the outputs must be multiplied by: the scale of the last factor, undone."""
    return 1 / factor_scale(n1, 0.5, dtype)


def spectrum_words(spectrum: NDArray[np.complexfloating], n1: int, n2: int, dtype: str) -> NDArray[np.int32]:
    """Filter spectra [H, N] in natural order as the kernel's words [H, N], stage 3's phase absorbed."""
    at = _maps(n1, n2)
    k = at.k1[:, None] + n1 * at.k2[None, :]
    slots = spectrum[:, k] * (np.exp(-1j * np.pi * at.k2 / n2) / factor_scale(n2, 0.5, dtype))
    rows, columns = layout.c_index(n1 // 8, n2 // 8)
    pairs = slots[:, rows, columns]  # [H, registers, 32, 2]
    pairs = np.stack([pairs.real, pairs.imag], axis=1)
    words = layout.to_words(pairs, dtype)  # [H, 2, registers, 32]
    h, _, registers, lanes = words.shape
    return words.reshape(h, 2, registers // 4, 4, lanes).swapaxes(3, 4).reshape(h, -1)
