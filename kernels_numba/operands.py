"""What the operands of all fused convolutions share: DFT factors in cosine/sine form, slot maps, register orders.

A kernel's index may run in any order if the constants follow: a contraction index permuted on both operands
changes nothing, and an output index permuted reappears, permuted, in the next constant. So maps choose what is
contiguous for the lanes, and every permutation is absorbed in constants, in float64, before rounding.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from kernels_numba.tile import layout


# ---- index maps: which index each slot of a fragment stands for --------------------------------------------
def rows_read(n: int) -> NDArray[np.intp]:
    """Contraction slot -> row of the input: lane thread t reads rows 4 e + t, e = 0..3, of each 16."""
    slot = np.arange(n)
    tile, s = slot // 16, slot % 16
    return 16 * tile + 4 * (s % 2 + 2 * (s // 8)) + (s % 8) // 2


def mirrored(n: int, *, self_paired: bool = False) -> NDArray[np.intp]:
    """Output slot -> index: q in the first half, its mirror in the second."""
    q = np.arange(n // 2)
    if self_paired:
        return np.concatenate([q, np.where(q == 0, n // 2, (n - q) % n)])
    return np.concatenate([q, n - 1 - q])


def kept_slots(n: int, kept: int, *, self_paired: bool = False) -> NDArray[np.intp]:
    """Of the slots of `mirrored` the first ``kept / 2`` of each half: low frequencies, and their mirrors."""
    return mirrored(n, self_paired=self_paired).reshape(2, -1)[:, : kept // 2].reshape(-1)


def rows_needed(alive: NDArray[np.bool_], *, self_paired: bool = False) -> int:
    """Of an axis the fewest rows, a multiple of 16, whose `kept_slots` hold all that is not zero, ``alive [n]``."""
    n = alive.size
    for kept in range(16, n, 16):
        rest = alive.copy()
        rest[kept_slots(n, kept, self_paired=self_paired)] = False
        if not rest.any():
            return kept
    return n


@cache
def factor_scale(n: int, shift: float, dtype: str) -> float:
    """The scale in [1, 2) with which a DFT factor rounds to half precision with the least error.

    A factor of length n has about n/2 different magnitudes, so a scale that suits them all exists: the
    factors' part of the rounding error falls to about half. What follows the factor is divided by the scale
    again, in float64, before it is rounded itself.
    """
    return rounding_scale(_entries(n, np.arange(n), np.arange(n), shift), dtype)


def rounding_scale(entries: NDArray[np.floating], dtype: str) -> float:
    """The scale in [1, 2) with which numbers round to half precision with the least error (of 4096 scales)."""
    scales = 2 ** (np.arange(4096) / 4096)
    magnitudes, weights = np.unique(np.abs(entries).round(12), return_counts=True)
    scaled = scales[:, None] * magnitudes
    rounded = scaled.astype(layout.HALF_TYPES[dtype]).astype(np.float64)
    error = (((rounded - scaled) ** 2) @ weights) / scales**2
    return float(scales[np.argmin(error)])


def _entries(n: int, contracted: NDArray[np.intp], outputs: NDArray[np.intp], shift: float) -> NDArray:
    """[cosines; sines] of a unitary DFT factor: rows are the first half of ``outputs``, twice."""
    q = outputs[: len(outputs) // 2]
    angle = 2 * np.pi * np.outer(q + shift, contracted) / n
    cosines, sines = np.cos(angle), np.sin(angle)
    if not shift:  # row 0 of the sines is free: it carries output n/2
        sines[0] = np.cos(np.pi * contracted)
    return np.concatenate([cosines, sines]) / np.sqrt(n)


def factor(
    n: int, contracted: NDArray[np.intp], outputs: NDArray[np.intp], *, shift: float, dtype: str
) -> NDArray:
    """A DFT factor [outputs, contracted] in cosine/sine form, scaled by :func:`factor_scale`."""
    return factor_scale(n, shift, dtype) * _entries(n, contracted, outputs, shift)


TURN = 0.25
"""Of a step between frequencies: so far right-angle packing turns them."""


def right_angle_factors(
    n1: int, k1: NDArray[np.intp], rows: NDArray[np.intp], dtype: str
) -> tuple[NDArray, NDArray, float]:
    """The first factor [2 N1, rows] of real samples, the last one [N1, N1, 2] of real results, and their scale.

    Rows of the first are real parts, then imaginary parts of the frequencies k1 + 1/4, its columns samples ``rows``;
    those of the last are results, k1 and their parts. Both are filled up to whole tiles with zeros.
    """
    wave = np.exp(-2j * np.pi * np.outer(k1 + TURN, np.arange(n1)) / n1) / np.sqrt(n1)
    first, last = np.zeros((2 * n1, rows.size)), np.zeros((16 * -(-n1 // 16), n1, 2))
    first[:, rows < n1] = np.concatenate([wave.real, wave.imag])[:, rows[rows < n1]]
    last[:n1] = np.stack([wave.real, wave.imag], axis=-1).swapaxes(0, 1)
    scale = rounding_scale(last, dtype)
    return scale * first, scale * last, scale


def turned_twiddles(
    k1: NDArray[np.intp],
    columns: tuple[NDArray[np.intp], NDArray[np.intp]],
    shape: tuple[int, int],
    scale: float,
    dtype: str,
) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """As `twiddles` of order 2, with right-angle packing: frequencies are turned, and k1 have no half steps.

    ``scale``: of `right_angle_factors`.
    """
    rows, width = shape
    forward, inverse = (
        np.exp(-2j * np.pi * np.outer(k1 + TURN, column) / (rows * width)) / scale for column in columns
    )
    back: NDArray = np.conj(inverse) / factor_scale(width, 0.5, dtype)
    return forward * np.exp(1j * np.pi * columns[0] / width), back


def in_parts(
    turns: NDArray, part: NDArray[np.intp], n: int, scale: float, *, inverse: bool
) -> NDArray[np.float64]:
    """A complex factor exp(-+ 2 pi i turns / n) as a real matrix: rows of real parts, then of imaginary parts.

    ``part``: of each column, whether it stands for real (0) or imaginary parts of what is contracted.
    """
    angle = 2 * np.pi * turns / n * (1 if inverse else -1)
    real = np.where(part, -np.sin(angle), np.cos(angle))
    imaginary = np.where(part, np.cos(angle), np.sin(angle))
    found: NDArray[np.float64] = scale / np.sqrt(n) * np.concatenate([real, imaginary])
    return found


def twiddles(
    k: NDArray[np.intp],
    columns: tuple[NDArray[np.intp], NDArray[np.intp]],
    shape: tuple[int, int],
    scales: tuple[float, float],
) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Twiddles between two stages, forward and inverse, with the half steps of the stages that follow absorbed.

    Args:
        k: by row slot, the frequency of the first stage.
        columns: by column slot, the samples that the second stage contracts, and those its inverse makes.
        shape: (rows, columns) of the two stages.
        scales: of the factors whose scale the forward and the inverse twiddles undo.
    """
    rows, width = shape
    n = rows * width
    w = np.exp(-2j * np.pi * (np.outer(k, columns[0]) % n) / n)
    forward = w * np.exp(1j * np.pi * columns[0] / width)[None, :] / scales[0]
    w = np.exp(2j * np.pi * (np.outer(k, columns[1]) % n) / n)
    return forward, w * np.exp(-1j * np.pi * k / rows)[:, None] / scales[1]


# ---- results of one stage as an operand of the next --------------------------------------------------------
def columns_to_a(rows: int, columns: int) -> tuple[int, ...]:
    """Registers of a packed complex [rows, columns] as an A operand whose columns are contracted next."""
    packed, column_tiles = rows * columns // 64, columns // 8
    return tuple(
        part * packed + (2 * m + (r & 1)) * column_tiles + 2 * k + (r >> 1)
        for part in range(2)
        for m in range(rows // 16)
        for k in range(columns // 16)
        for r in range(4)
    )


def rows_of_tile_to_b(rows: int, columns: int) -> tuple[int, ...]:
    """Blocks of a packed complex [rows, columns] that, transposed, are a B operand whose rows are contracted next."""
    packed, column_tiles = rows * columns // 64, columns // 8
    return tuple(
        part * packed + (2 * k + r) * column_tiles + j
        for part in range(2)
        for k in range(rows // 16)
        for j in range(column_tiles)
        for r in range(2)
    )
