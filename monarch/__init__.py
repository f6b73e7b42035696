"""Monarch decompositions of the Fourier transform: plans, factors, twiddles, index maps, packing. NumPy only.

    >>> import monarch
    >>> plan = monarch.plan(1024)
    >>> str(plan)
    'N=1024 32x32 pair'
    >>> monarch.transform_length(monarch.convolution_length("causal", 700, 700))
    1536

A DFT of ``P = N1 N2 ... Np`` points is p contractions with small dense DFT matrices, with twiddle factors
between: matrix products, which tensor cores run. See docs/mathematics.md.
"""

from .adjoint import filter_spectrum_adjoint, half_filter_adjoint, place_filter_adjoint
from .convolution import MODES, circular_convolution, convolution_length, filter_spectrum, place_filter
from .dft import dft_matrix, roots_of_unity, twiddle_factors
from .factors import choose_factors, factor_lists, format_factors, parse_factors, transform_length, work
from .packing import (
    fold_right_angle,
    half_filter,
    merge_half,
    pack_half,
    pack_pairs,
    pack_right_angle,
    right_angle_filter,
    split_half,
    unpack_half,
    unpack_pairs,
    unpack_right_angle,
)
from .plan import LINEAR_PACKINGS, PACKINGS, Plan, plan
from .sparse import sparse_circular_convolution
from .sparsify import Sparsified, sparsify
from .sparsity import SparsityPattern
from .transform import digit_order, natural_order, transform

# PyTorch's torchmonarch also imports as `monarch`; the other packages here look at this name to tell them
# apart
__distribution__ = "monarch-numba"

__all__ = [
    "LINEAR_PACKINGS",
    "MODES",
    "PACKINGS",
    "Plan",
    "Sparsified",
    "SparsityPattern",
    "choose_factors",
    "circular_convolution",
    "convolution_length",
    "dft_matrix",
    "digit_order",
    "factor_lists",
    "filter_spectrum",
    "filter_spectrum_adjoint",
    "fold_right_angle",
    "format_factors",
    "half_filter",
    "half_filter_adjoint",
    "merge_half",
    "natural_order",
    "pack_half",
    "pack_pairs",
    "pack_right_angle",
    "parse_factors",
    "place_filter",
    "place_filter_adjoint",
    "plan",
    "right_angle_filter",
    "roots_of_unity",
    "sparse_circular_convolution",
    "sparsify",
    "split_half",
    "transform",
    "transform_length",
    "twiddle_factors",
    "unpack_half",
    "unpack_pairs",
    "unpack_right_angle",
    "work",
]
