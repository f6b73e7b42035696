r"""How far a result may be from the exact one, derived; and the comparison that holds it to that.

**Half-precision Monarch convolution** (operands stored in half precision, sums in fp32, unitary factors).
Rounding to nearest with unit roundoff u errs, on the binade [1, 2), uniformly in [-u, u]: rms u / sqrt 3.
Relative to the rms of the values themselves that is 0.38 u (uniform significands), 0.39 u (logarithmic) or
0.43 u (Gaussian); call it u / sqrt 6 = 0.41 u. Independent roundings add in quadrature, unitary stages carry
them on without growth, and in each of the p stages of each of the two directions at most four things round:

    the DFT factor F      the product F x      the twiddles      the product with the twiddles

where the last stage has the filter's spectrum, once, in place of twiddles. At most 8 p - 2 roundings, so

.. math::
    \frac{\|\hat y - y\|_2}{\|u\|_2 \|k\|_2} \lesssim \sqrt{8 p}\,\frac{u}{\sqrt 6} = 1.15 \sqrt p\, u

whatever N. A kernel that keeps F x in fp32 until its twiddles (or the spectrum) are applied rounds 6 p - 1
times: 0.39 sqrt(6 p - 1) u, about 0.9 sqrt p u. Gates add one rounding each. The filter itself is given in
    half
precision, so it adds none. Single sequences scatter about the mean, by 10 % at N = 256 and less above. The
walk needs data without structure (see ``coherent``) and values above the subnormal range.

**fp32 FFT convolution**: the same walk over log2 N stages of two points in each direction (Gentleman and Sande
1966; Schatzman 1996). A stage has at most four roundings (twiddle, two in its product, sum), of which those of the
product are of half its size each: 3 to 3.6 in all, and sqrt(7.2 log2 N) u / sqrt 6 = 1.1 sqrt(log2 N) u. Longer
stages save twiddles and stay below.

**Softmax by a shift s**, w_i = e^(x_i - s) / sum_j e^(x_j - s), whatever s is: the maximum or a fixed phi. The
difference x_i - s is rounded, an error of up to u |x_i - s|, and an *absolute* error of an exponent is a relative
error of its exponential. Hence the error grows with the distance from the shift. Uniform in the worst place of
a binade it is u |x_i - s| / sqrt 3 rms. What does not depend on s: the exponential, its sum and the quotient, at
most 2 u / sqrt 3 rms together, and a chain of m additions, the k-th of which errs by u / sqrt 3 of k / m of the
sum: m / 3 such squares. With d the rms of x_i - s weighted by w_i^2,

.. math::
    \frac{\|\hat w - w\|_2}{\|w\|_2} \lesssim \frac{u}{\sqrt 3} \sqrt{d^2 + 4 + m / 3} .

Where the weights are, x is near its maximum: shifting by it leaves d < 2, about 1.2 u. A fixed phi in the middle of a
range of 23 (Llama2-7B: -16.8 to 6.5) has d up to 9: about 5 u of fp32, far below the roundoff of fp16. It
is not better to take phi = a, the lower end: d doubles. Single rows scatter by a factor of 2 to 4. At worst, for
each weight: numerator and denominator err by u d (d now the largest), 0.22 u for log2(e), by whose rounded
value kernels multiply, on differences of up to 2 d, 4 u each for the exponential (2 ulp), u for the quotient and
m u: (2.5 d + 9 + m) u. All above the subnormal range. Errors of the logits themselves come on top.
"""

from __future__ import annotations

import numpy as np

from .comparison import RelativeError, check_close, relative_error

__all__ = [
    "RelativeError",
    "check_close",
    "fft32_bound",
    "fftconv_bound",
    "relative_error",
    "softmax_shift_bound",
    "unit_roundoff",
]

_ROUNDOFF = {
    **dict.fromkeys(("float16", "fp16", "half"), 2.0**-11),
    **dict.fromkeys(("bfloat16", "bf16"), 2.0**-8),
    **dict.fromkeys(("float32", "fp32"), 2.0**-24),
    **dict.fromkeys(("float64", "fp64"), 2.0**-53),
}


def unit_roundoff(dtype: object) -> float:
    """Return the unit roundoff u of a dtype, or of a name such as "fp16" or "bf16": half the gap above 1."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name  # type: ignore[call-overload]
    if name not in _ROUNDOFF:
        raise ValueError(f"dtype must be one of {', '.join(_ROUNDOFF)}; got {dtype!r}.")
    return _ROUNDOFF[name]


def fftconv_bound(order: int, dtype: object, *, gates: int = 0, coherent: bool = False) -> float:
    """Return the bound on the relative L2 error of a half-precision Monarch convolution: 1.15 sqrt(p) u.

    Args:
        order: p, the number of factors.
        dtype: what operands are stored in.
        gates: how many gates are applied (0 to 2), one more rounding each.
        coherent: for data with structure (an impulse, a constant, a tone): all values share a significand,
            roundings are no longer independent, and 8 p of them may each reach u and add up.
    """
    if order < 1 or gates < 0:
        raise ValueError(f"order must be at least 1 and gates at least 0; got {order} and {gates}.")
    u = unit_roundoff(dtype)
    return (8 * order + gates) * u if coherent else 1.15 * float(np.sqrt(order + gates / 8)) * u


def fft32_bound(n: int, *, gates: int = 0, coherent: bool = False) -> float:
    """Return the bound on the relative L2 error of an fp32 FFT convolution of ``n`` points: 1.1 sqrt(log2 n) u.

    ``gates`` and ``coherent`` as for `fftconv_bound`; coherent, 8 log2 n roundings may each reach u and add up.
    """
    if n < 1 or gates < 0:
        raise ValueError(f"n must be at least 1 and gates at least 0; got {n} and {gates}.")
    stages, u = float(np.log2(max(n, 2))), 2.0**-24
    return (8 * stages + gates) * u if coherent else float(np.sqrt(1.1**2 * stages + gates / 6)) * u


def softmax_shift_bound(
    distance: float, *, dtype: object = "fp32", additions: int = 0, coherent: bool = False
) -> float:
    """Return the bound on the relative error of softmax weights that were shifted by s.

    Args:
        distance: |x - s|, in natural units. The rms weighted by the squares of the weights; the largest of
            all entries is safe, and needed where ``coherent``. In range it is at most max(|a|, |b|).
        dtype: what the exponentials are computed and added in.
        additions: m, how many additions follow one another in the longest chain.
        coherent: bound every single weight, all roundings at their largest; otherwise the relative L2 error
            over many rows.
    """
    if not 0 <= distance < np.inf or additions < 0:
        raise ValueError(
            f"distance and additions must be finite and at least 0; got {distance} and {additions}."
        )
    u = unit_roundoff(dtype)
    if coherent:
        return (2.5 * distance + 9 + additions) * u
    return float(np.sqrt((distance**2 + 4 + additions / 3) / 3)) * u
