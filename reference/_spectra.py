"""Real transforms in two dimensions, laid out as one matrix for each frequency and group of channels.

Images ``[S, groups * C, n, m]`` become ``[P, Q // 2 + 1, groups, S, C]`` and filters ``[groups * O, C, kh, kw]``
become ``[P, Q // 2 + 1, groups, O, C]``, zero-padded to P x Q; results go back the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._geometry import Pair

__all__ = ["Conv2dSpectrum", "to_matrices", "to_samples"]


@dataclass(frozen=True)
class Conv2dSpectrum:
    """A real transform ``[P, Q // 2 + 1, groups, rows, columns]``, ready for the products of matrices.

    Rows and columns are S, Cin / groups of "x"; Cout / groups, Cin / groups of "w"; S, Cout / groups of
    "gradient".
    """

    of: str
    values: NDArray[np.complex128]

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self.values.nbytes


def to_matrices(
    data: NDArray[np.float64], lengths: Pair, groups: int, *, filters: bool = False
) -> NDArray[np.complex128]:
    """Transform images, or filters, into matrices."""
    values = np.fft.rfft2(data, s=lengths)
    first, second, *frequencies = values.shape
    if filters:
        values = values.reshape(groups, first // groups, second, *frequencies).transpose(3, 4, 0, 1, 2)
    else:
        values = values.reshape(first, groups, second // groups, *frequencies).transpose(3, 4, 1, 0, 2)
    return np.ascontiguousarray(values)


def to_samples(
    matrices: NDArray[np.complex128], lengths: Pair, *, filters: bool = False
) -> NDArray[np.float64]:
    """Return ``[..., P, Q]`` samples of images, or of filters."""
    values = matrices.transpose(2, 3, 4, 0, 1) if filters else matrices.transpose(3, 2, 4, 0, 1)
    first, second, third, *frequencies = values.shape
    shape = (first * second, third) if filters else (first, second * third)
    return np.fft.irfft2(values.reshape(*shape, *frequencies), s=lengths)
