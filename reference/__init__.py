"""Exact mathematics in float64 NumPy, one short file per operation: the judge of every kernel.

>>> import numpy as np, reference
>>> reference.fftconv(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0]), mode="causal").round(12)
array([1., 3., 5.])
"""

from ._spectra import Conv2dSpectrum
from .accuracy import (
    RelativeError,
    check_close,
    fft32_bound,
    fftconv_bound,
    relative_error,
    softmax_shift_bound,
    unit_roundoff,
)
from .attention import attention_flags, decode_attention
from .attention_error import attention_tolerance, check_attention, decode_attention_bound
from .conv2d import conv2d, conv2d_input_gradient, conv2d_weight_gradient
from .conv2d_error import check_conv2d, conv2d_bound, conv2d_sizes
from .conv2d_fft import Conv2dTransforms, conv2d_transforms
from .fftconv import fftconv
from .fftconv_direct import direct_fftconv, direct_fftconv_gradients
from .fftconv_gradient_error import (
    check_filter_gradient,
    filter_gradient32_bound,
    filter_gradient_bound,
    filter_gradient_error,
)
from .fftconv_gradients import FFTConvGradients, fftconv_gradients
from .linear import check_linear, linear, linear_bound
from .partial import FFTConvStream, overlap_save_tile, partial_fftconv
from .softmax import overflow_flags, softmax
from .sparse import sparse_fftconv, sparse_fftconv_gradients

__all__ = [
    "Conv2dSpectrum",
    "Conv2dTransforms",
    "FFTConvGradients",
    "FFTConvStream",
    "RelativeError",
    "attention_flags",
    "attention_tolerance",
    "check_attention",
    "check_close",
    "check_conv2d",
    "check_filter_gradient",
    "check_linear",
    "conv2d",
    "conv2d_bound",
    "conv2d_input_gradient",
    "conv2d_sizes",
    "conv2d_transforms",
    "conv2d_weight_gradient",
    "decode_attention",
    "decode_attention_bound",
    "direct_fftconv",
    "direct_fftconv_gradients",
    "fft32_bound",
    "fftconv",
    "fftconv_bound",
    "fftconv_gradients",
    "filter_gradient32_bound",
    "filter_gradient_bound",
    "filter_gradient_error",
    "linear",
    "linear_bound",
    "overflow_flags",
    "overlap_save_tile",
    "partial_fftconv",
    "relative_error",
    "softmax",
    "softmax_shift_bound",
    "sparse_fftconv",
    "sparse_fftconv_gradients",
    "unit_roundoff",
]
