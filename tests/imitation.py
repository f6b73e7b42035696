"""A half-precision kernel imitated in NumPy: constants and intermediates rounded, everything else exact."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import monarch

Array = NDArray[Any]
Keep = Callable[[Array], Array]


def half(x: Array, dtype: Any) -> Array:
    """Rounded to a half precision, part by part."""
    if np.iscomplexobj(x):
        return half(x.real, dtype) + 1j * half(x.imag, dtype)
    return x.astype(dtype).astype(np.float64)


def forward(x: Array, plan: monarch.Plan, keep: Keep, *, fused: bool) -> Array:
    """The stages; unless fused, rounded before twiddles too. What leaves the last one is kept only then."""
    shape = x.shape
    for i, factor in enumerate(plan.factors):
        x = keep(plan.dft(i)) @ x.reshape(-1, factor, plan.strides[i])
        x = x if fused else keep(x)
        x = keep(x * keep(plan.twiddle(i))) if i < plan.order - 1 else x
    return x.reshape(shape)


def inverse(x: Array, plan: monarch.Plan, keep: Keep, *, fused: bool) -> Array:
    """The stages backwards."""
    shape = x.shape
    for i in reversed(range(plan.order)):
        x = x.reshape(-1, plan.factors[i], plan.strides[i])
        if i < plan.order - 1:
            x = x * keep(plan.twiddle(i)).conj()
            x = x if fused else keep(x)
        x = keep(keep(plan.dft(i, inverse=True)) @ x)
    return x.reshape(shape)


def imitated(u: Array, k: Array, plan: monarch.Plan, *, dtype: Any, fused: bool) -> Array:
    """A convolution of pairs."""

    def keep(x: Array) -> Array:
        return half(x, dtype)

    norm = np.linalg.norm(k, axis=-1, keepdims=True)
    spectrum = keep(monarch.filter_spectrum(k / norm, plan))
    x = keep(forward(monarch.pack_pairs(u), plan, keep, fused=fused) * spectrum)
    return monarch.unpack_pairs(inverse(x, plan, keep, fused=fused), len(u)) * norm


def imitated_gradients(
    dy: Array, u: Array, k: Array, plan: monarch.Plan, *, dtype: Any, fused: bool
) -> tuple[Array, Array]:
    """The gradients in u and k of a convolution of pairs, summed over the batch in more than half precision."""

    def keep(x: Array) -> Array:
        return half(x, dtype)

    norm = np.linalg.norm(k, axis=-1, keepdims=True)
    spectrum = keep(monarch.filter_spectrum(k / norm, plan))
    e, x = (forward(monarch.pack_pairs(z), plan, keep, fused=fused) for z in (dy, u))
    du = inverse(keep(e * spectrum.conj()), plan, keep, fused=fused)
    # the sum over the batch grows with it: brought back into range, as the filter is by its norm
    scale = np.sqrt(len(e))
    dk = inverse(keep(np.sum(e * x.conj(), axis=0) / scale), plan, keep, fused=fused).real
    return monarch.unpack_pairs(du, len(u)) * norm, scale * np.sqrt(plan.points) * dk
