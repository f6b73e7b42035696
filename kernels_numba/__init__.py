"""GPU kernels in pure Python, with the names and meanings of ``reference``.

    >>> import numpy as np, kernels_numba
    >>> u = np.ones((2, 1, 256), np.float16)
    >>> k = np.zeros((1, 256)); k[0, 1] = 1
    >>> kernels_numba.fftconv(u, k).shape
    (2, 1, 256)

Every kernel is written once, in the operations of ``kernels_numba.tile``, and runs on a GPU (compiled by
Numba-CUDA) and on the CPU (in NumPy, counted and checked). Without a GPU, or with ``NUMBA_ENABLE_CUDASIM=1``,
the CPU body runs; :func:`device` tells which. It is meant for tests and counts, at a few milliseconds a pair
of sequences; for large data without a GPU use ``reference``.
"""

import monarch as _monarch

if getattr(_monarch, "__distribution__", None) != "monarch-numba":
    raise ImportError(
        f"the package `monarch` found at {getattr(_monarch, '__file__', '?')} is not monarch-numba's "
        "(PyTorch's `torchmonarch` installs one of the same name); install monarch-numba in an environment "
        "without it"
    )

from kernels_numba.calibration import Calibration, calibrate_phi
from kernels_numba.conv2d import (
    Conv2dSpectra,
    conv2d,
    conv2d_gradients,
    conv2d_input_gradient,
    conv2d_weight_gradient,
    explain_conv2d,
)
from kernels_numba.decode_attention import DecodeAttention, decode_attention
from kernels_numba.device import Device, device
from kernels_numba.fftconv import FFTConv, HostCopyWarning, fftconv
from kernels_numba.fftconv_gradients import FFTConvGradients, fftconv_gradients
from kernels_numba.linear import Linear, explain_linear, flat_gemm, full_gemm, gemv, linear
from kernels_numba.softmax import softmax
from kernels_numba.sparse_convolution import sparse_fftconv
from kernels_numba.spectrum import Spectrum, prepare_filter
from kernels_numba.stream import FFTConvStream, partial_fftconv
from kernels_numba.tile.counters import Counters

__all__ = [
    "Calibration",
    "Conv2dSpectra",
    "Counters",
    "DecodeAttention",
    "Device",
    "FFTConv",
    "FFTConvGradients",
    "FFTConvStream",
    "HostCopyWarning",
    "Linear",
    "Spectrum",
    "calibrate_phi",
    "conv2d",
    "conv2d_gradients",
    "conv2d_input_gradient",
    "conv2d_weight_gradient",
    "decode_attention",
    "device",
    "explain_conv2d",
    "explain_linear",
    "fftconv",
    "fftconv_gradients",
    "flat_gemm",
    "full_gemm",
    "gemv",
    "linear",
    "partial_fftconv",
    "prepare_filter",
    "softmax",
    "sparse_fftconv",
]
