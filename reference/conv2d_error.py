r"""How far a convolution layer by FFT may be from the exact one, and a comparison that holds it to that.

Operands, spectra and results are stored in half precision, sums in fp32. On the way of each number this rounds:

    two DFT factors, the half-transformed map, its spectrum       four times, for each of two operands
    the product of spectra, summed over channels                  once
    the sum and the difference of mirrored frequencies            once
    two DFT factors, the half-transformed product, the result     four times

Fourteen roundings, each u / sqrt 6 of what it rounds in the root mean square (`reference.accuracy`), in quadrature:
sqrt(14 / 6) u = 1.53 u. Transforms carry an error on without growth, spread evenly over the samples of a tile, those
that are thrown away too. With a signal of n_in samples in a map, results of n_out, a filter (or, for the gradient of
the weights, a second signal), and overlap-save in tiles of any size,

.. math::
    \|\hat y_{so} - y_{so}\|_2 \lesssim 1.53\, u\, \sqrt{\min(1, n_{out} / n_{in})}\,
    \Big(\sum_c \|x_{sc}\|_2^2\, \|w_{oc}\|_2^2\Big)^{1/2}

for each map of results: sums over more channels grow alike on both sides. This is a norm-wise bound. A small element
beside large ones may be wrong entirely. Few numbers scatter: the root mean square of n of them by 1 / sqrt(2 n), of
which four are allowed. All above the subnormal range, where fp16 rounds worse.

**In fp32** transforms are FFTs: two operands and the product go through log2 N stages, N <= 2048 points of a tile, and
one turn more, each of at most 3.6 roundings (`reference.accuracy`). The sum of K products of spectra (over channels, or
images and tiles) rounds 2 K partial sums whose squares grow evenly to the whole, each by u / sqrt 3 at worst: as good
as 2 K roundings. In quadrature sqrt((130 + 2 K) / 6) u: 3e-7 for few terms, below 1e-5 for K up to 80 000.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import widen_real
from .accuracy import unit_roundoff
from .comparison import RelativeError, hold, judge

__all__ = ["check_conv2d", "conv2d_bound", "conv2d_sizes"]

PASSES = ("forward", "input_gradient", "weight_gradient")
ROUNDINGS = 14
STAGES = 12
"""Of an FFT in fp32, of two points each, with a turn more."""


def conv2d_bound(
    dtype: object, *, samples: int | None = None, coherent: bool = False, terms: int = 1
) -> float:
    """Return the bound on the relative L2 error of a layer by FFT: 1.53 u in half precision, 4.7 u and up in fp32.

    Args:
        dtype: what operands and spectra are stored in.
        samples: how many numbers are compared; a few scatter, so more is allowed. None: very many.
        coherent: for data with structure, whose roundings may all reach u and add up.
        terms: K, how many products of spectra are added up; counts in fp32 only.
    """
    u = unit_roundoff(dtype)
    single = u == unit_roundoff("fp32")
    if coherent:
        return (3 * 8 * STAGES + 2 * terms if single else ROUNDINGS) * u
    roundings = 3 * 3.6 * STAGES + 2 * terms if single else ROUNDINGS
    return float(np.sqrt(roundings / 6)) * u * (1 + (4 / np.sqrt(2 * samples) if samples else 0))


def _squares(maps: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return the squared norm of each map of ``[A, B, rows, columns]``."""
    return np.sum(np.square(widen_real(maps, name)), axis=(2, 3))


def conv2d_sizes(a: ArrayLike, b: ArrayLike, *, which: str, groups: int = 1, out: int) -> NDArray[np.float64]:
    """Return the size of each map of a pass's results, what the bound is relative to.

    Args:
        a: x of the forward pass, the gradient in y of the other two.
        b: w, or x for the gradient of the weights.
        which: "forward", "input_gradient" or "weight_gradient".
        groups: of channels that are not mixed.
        out: samples of a map of results.
    """
    if which not in PASSES:
        raise ValueError(f"which must be one of {', '.join(PASSES)}; got {which!r}.")
    first, second = _squares(a, "a"), _squares(b, "b")
    if which == "weight_gradient":  # [S, O] and [S, C] -> [O, C / groups]
        left, right = (m.reshape(len(m), groups, m.shape[1] // groups) for m in (first, second))
        sums = np.einsum("sgo,sgc->goc", left, right).reshape(first.shape[1], -1)
    else:  # [S, channels] and [O, C / groups] -> [S, the other channels]
        left = first.reshape(len(first), groups, first.shape[1] // groups)
        right = second.reshape(groups, second.shape[0] // groups, second.shape[1])
        sums = np.einsum("sgc,goc->sgo" if which == "forward" else "sgo,goc->sgc", left, right)
        sums = sums.reshape(len(first), -1)
    rows, columns = np.shape(b if which == "weight_gradient" else a)[2:]
    return np.sqrt(sums * min(1.0, out / (rows * columns)))


def check_conv2d(
    got: ArrayLike,
    exact: ArrayLike,
    a: ArrayLike,
    b: ArrayLike,
    *,
    which: str,
    dtype: object,
    groups: int = 1,
    coherent: bool = False,
    terms: int | None = None,
) -> RelativeError:
    """Raise AssertionError unless a pass's result is within `conv2d_bound`; return the error.

    All maps together are held to the bound, and each of them, which scatters more, to that of its own samples.
    The operands are those of `conv2d_sizes`; ``terms`` as for `conv2d_bound`, by default the channels (or images) that
    are summed, in one tile. A comparison that zeros would pass is refused with a ValueError.
    """
    y, ref = np.asarray(got, np.float64), widen_real(exact, "exact")
    if y.shape != ref.shape:
        raise ValueError(f"got and exact must have one shape; got {y.shape} and {ref.shape}.")
    out = ref.shape[2] * ref.shape[3]
    sizes = conv2d_sizes(a, b, which=which, groups=groups, out=out)
    found, size = judge(y.reshape(*ref.shape[:2], out), ref.reshape(*ref.shape[:2], out), sizes)
    advice = "exact is {:.3g} of its terms, {}. Use data that do not cancel."
    if terms is None:
        terms = np.shape(a)[0 if which == "weight_gradient" else 1]
    bounds = (conv2d_bound(dtype, samples=n, coherent=coherent, terms=terms) for n in (out, ref.size))
    hold(found, size, next(bounds), advice, "map")
    every = next(bounds)
    if found.overall > every:
        raise AssertionError(f"relative error {found.overall:.4g} of all maps exceeds the bound {every:.4g}.")
    return found
