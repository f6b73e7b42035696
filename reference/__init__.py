"""Exact mathematics in float64 NumPy, one short file per operation: the judge of every kernel.

>>> import numpy as np, reference
>>> reference.fftconv(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0]), mode="causal").round(12)
array([1., 3., 5.])
"""

from .accuracy import RelativeError, check_close, fft32_bound, fftconv_bound, relative_error, unit_roundoff
from .fftconv import direct_fftconv, fftconv

__all__ = [
    "RelativeError",
    "check_close",
    "direct_fftconv",
    "fft32_bound",
    "fftconv",
    "fftconv_bound",
    "relative_error",
    "unit_roundoff",
]
