"""Frequency-sparse convolutions: zeros in the filter's spectrum, and what they spare.

The result is that of the dense kernels with the spectrum zeroed, to rounding. Where a plan has outer stages, rows k1 of
which nothing is kept are left out: they are not in the spectrum, not written by the forward stage, not convolved, and
not read by the inverse stage. Within a row, and in plans that one kernel runs, kernels of half precision leave out the
middle of an axis by 16 rows, and blocks (`spectrum.Spectrum.axes` and ``marks``); what is finer are values like others.
"""

from __future__ import annotations

from typing import Any

import monarch
from kernels_numba.arrays import adapter_of
from kernels_numba.fftconv import FFTConv, _dtype_of, _shape_of
from kernels_numba.spectrum import prepare_filter
from monarch import Plan


def sparse_fftconv(
    u: Any,
    k: Any,
    pattern: monarch.SparsityPattern,
    *,
    plan: Plan,
    mode: str = "circular",
    pregate: Any = None,
    postgate: Any = None,
    out: Any = None,
) -> Any:
    """Convolve ``u [B, H, L]`` with ``k [H, K]`` or ``[K]``, its spectrum zero where the pattern says so.

    Args:
        u: as in `fftconv`.
        k: as in `fftconv`; its whole spectrum is computed, and the pattern, one for all channels, applied.
        pattern: what is kept; symmetric, as sequences are real.
        plan: of packing "pair"; a circular convolution takes one of exactly L points.
        mode: as in `fftconv`. The filter that is left is as long as the circle, so a causal or two-sided convolution
            also sees samples that its own filter did not, and wraps around.
        pregate: as in `fftconv`.
        postgate: as in `fftconv`.
        out: as in `fftconv`.

    To call often: ``prepare_filter(k, ..., plan=plan, pattern=pattern)`` and `FFTConv`.

    Raises:
        TypeError, ValueError: as `fftconv`; a pattern of another plan, or not symmetric.
    """
    batch, channels, length = _shape_of(u)
    dtype = _dtype_of(u, adapter_of(u, "u"), "u")
    spectrum = prepare_filter(
        k, length=length, mode=mode, dtype=dtype, plan=plan, channels=channels, pattern=pattern
    )
    return FFTConv(spectrum, batch=batch)(u, pregate=pregate, postgate=postgate, out=out)
