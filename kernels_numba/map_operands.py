r"""The constants of two-dimensional transforms: half-step DFT factors of real maps, and back.

A tile of R x C samples is seen as one period of a signal that changes sign from period to period, along either axis.
Its transform has frequencies half a step beside the usual ones,

    Z[p, q] = sum_{r, c} x[r, c] e^{-2 pi i (p + 1/2) r / R} e^{-2 pi i (q + 1/2) c / C}

for a real x conj Z[p, q] = Z[-1 - p, -1 - q], so q = 0 .. C/2 - 1 are all there is to keep, and every one of them is an
ordinary complex number: no frequency is its own mirror. Products of such spectra are skew-circular convolutions: what
wraps around comes back with the other sign. Overlap-save throws away what wraps, so the sign does not matter.

Half of the rows p are kept as mirrors of the other half: p and -1 - p, p < R/2, in row slots 8 y + g and R/2 + 8 y + g.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kernels_numba.operands import rounding_scale
from kernels_numba.tile import layout

SIGNAL, FILTER = "signal", "filter"
"""How a spectrum is scaled: by 1 / sqrt(points), which keeps the size of samples, or not at all."""


def _angles(n: int, at: NDArray[np.intp]) -> NDArray[np.float64]:
    """[n / 2 frequencies, samples]: 2 pi (q + 1/2) at / n."""
    return 2 * np.pi * np.outer(np.arange(n // 2) + 0.5, at) / n


@lru_cache(maxsize=64)
def scale(n: int, kind: str, dtype: str) -> float:
    """What the factor of n points is multiplied by: near 1 / sqrt(n) or 1, where its entries round best."""
    best = rounding_scale(np.cos(_angles(n, np.arange(n))), dtype)
    power = -round(np.log2(n) / 2) if kind == SIGNAL else 0
    return best * 2.0 ** (power - 1)


def _column_slots(columns: int) -> NDArray[np.intp]:
    """Contraction slot -> column: a lane's columns are neighbours (`load_window`)."""
    slot = np.arange(columns)
    k, half, thread, e = slot // 16, slot % 16 // 8, slot % 8 // 2, slot % 2
    return thread * (columns // 4) + 4 * k + 2 * half + e


def _pack(matrices: list[tuple[NDArray, tuple]], dtype: str) -> NDArray[np.int32]:
    return np.concatenate([layout.pack_operand(matrix, index, dtype) for matrix, index in matrices])


@lru_cache(maxsize=32)
def forward(
    rows: int, columns: int, seen: tuple[int, int], slices: int, kind: str, dtype: str
) -> NDArray[np.int32]:
    """Words of the constants of the forward transform, in lane order: columns for each slice, then rows.

    ``seen``: rows and columns of samples that may be other than zero.
    """
    at = _angles(columns, _column_slots(seen[1]))
    width = columns // 2 // slices
    parts = []
    for s in range(slices):
        chosen = at[s * width : (s + 1) * width]
        factor = scale(columns, kind, dtype) * np.concatenate([np.cos(chosen), -np.sin(chosen)]).T
        parts.append((factor, layout.b_index(seen[1] // 16, 2 * width // 8)))
    down = _angles(rows, np.arange(seen[0]))
    factor = scale(rows, kind, dtype) * np.concatenate([np.cos(down), np.sin(down)])
    parts.append((factor, layout.a_index(rows // 16, seen[0] // 16)))
    return _pack(parts, dtype)


@lru_cache(maxsize=64)
def inverse(
    rows: int, columns: int, slices: int, wanted: tuple[int, int], first: tuple[int, int], dtype: str
) -> NDArray[np.int32]:
    """Words of the constants of the inverse transform, in lane order: columns for each slice, then rows.

    Args:
        rows: R.
        columns: C.
        slices: of the wanted columns.
        wanted: rows and columns of samples, multiples of 16 and of 8 slices.
        first: the sample of the tile that is row and column 0 of them.
        dtype: what constants are rounded to.
    """
    across = _angles(columns, first[1] + np.arange(wanted[1]))
    slot = np.arange(columns)
    frequency = 8 * (slot // 16) + 2 * (slot % 8 // 2) + slot % 16 // 8
    entries = np.where(slot[:, None] % 2, -np.sin(across[frequency]), np.cos(across[frequency]))
    entries = scale(columns, SIGNAL, dtype) * entries
    width = wanted[1] // slices
    parts = [
        (entries[:, s * width : (s + 1) * width], layout.b_index(columns // 16, width // 8))
        for s in range(slices)
    ]
    down = _angles(rows, first[0] + np.arange(wanted[0]))
    factor = scale(rows, SIGNAL, dtype) * np.concatenate([np.cos(down), -np.sin(down)]).T
    parts.append((factor, layout.a_index(wanted[0] // 16, rows // 16)))
    return _pack(parts, dtype)


def lift(rows: int, columns: int) -> float:
    """What a spectrum of kind "signal" is multiplied by to be one of kind "filter": a power of two."""
    return float(2.0 ** sum(round(np.log2(n) / 2) for n in (rows, columns)))


def result_scale(rows: int, columns: int, kinds: tuple[str, str], dtype: str) -> float:
    """What the inverse transform of a product of two spectra is multiplied by."""
    total = 1.0
    for n in (rows, columns):
        total *= n * scale(n, SIGNAL, dtype)
        for kind in kinds:
            total *= scale(n, kind, dtype)
    return 2 / total


def points(rows: int, columns: int) -> int:
    """Frequencies that are kept of a tile."""
    return rows * columns // 2
