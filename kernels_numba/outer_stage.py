"""The outer stages of a long convolution, which leave one fused kernel's work to do in every row.

A transform of N = N1 N2 points does not fit on chip, but N1 transforms of N2 points do. With z = u1 + i u2 (two real
sequences that share a filter) as a matrix [n1, n2], row-major,

    forward    Z[k1, n2] = w_N^(k1 n2) sum_n1 w_N1^(n1 k1) z[n1, n2]          for all k1, into the workspace
    inner      every row k1 is convolved on its circle of N2 points, with the bins k1 + N1 k2 of the filter
    inverse    y[n1, n2] = sum_k1 w_N1^(-n1 k1) w_N^(-k1 n2) Z[k1, n2]        out of the workspace

(the four-step FFT of Bailey 1990). The inner convolution is what the fused kernels do: real and imaginary parts are
two sequences of a pair. So device memory is crossed three times, and twice more by the intermediate.

A block takes a strip of columns of one pair. With N1 = A B (n1 = a B + b, k1 = ka + A kb) it contracts one factor for
each value of the other, exchanges through shared memory, and contracts the other; A alone needs no exchange. DFT
factors are used in cosine/sine form, as in `fused_warp`. Twiddles multiply float32 accumulators, so a value is rounded
once for each contraction; those of N points are computed where they are used, for no table of the length's size.
"""

from __future__ import annotations

from typing import Any

from kernels_numba.outer_forward import build_forward
from kernels_numba.outer_inverse import build_inverse
from kernels_numba.outer_spec import Spec, min_blocks, operand_key, operands

VOCABULARY = "outer"
FORWARD_SIGNATURE = ("HALVES", "HALVES", "WORDS", "HALVES") + ("INT",) * 5
INVERSE_SIGNATURE = ("HALVES",) * 3 + ("WORDS", "FLOATS", "HALVES", "HALVES") + ("INT",) * 5


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, with the arguments that the two builders say."""
    return (build_inverse if spec.inverse else build_forward)(tile, spec)


def signature(spec: Spec) -> tuple[str, ...]:
    """Kinds of the kernel's arguments, for the compiler."""
    return INVERSE_SIGNATURE if spec.inverse else FORWARD_SIGNATURE


__all__ = ["build", "min_blocks", "operand_key", "operands", "signature"]
