"""Checks and conversion of arguments: everything becomes float64 or complex128, exactly, or is refused.

The rule for dtypes, mixed ones included: inputs are widened without loss, half precisions (float16,
bfloat16) and integers too, and the result is float64, or complex128 if any input is complex.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["check_shapes", "finite", "whole", "widen", "widen_gate", "widen_real"]

Widened = NDArray[Any]  # float64 or complex128

_ACCEPTED = "float16, bfloat16, float32, float64, complex64, complex128 or integers"


def widen(x: ArrayLike, name: str) -> Widened:
    """Return ``x`` as float64 or complex128 with the same values, or raise TypeError."""
    data = np.asarray(x)
    if np.issubdtype(data.dtype, np.integer):
        wide = data.astype(np.float64)
        if np.any(np.abs(wide) >= 2.0**53):
            raise TypeError(f"{name} has integers of 2**53 or more, which float64 may not hold; convert it.")
        return wide
    if data.dtype in (np.complex64, np.complex128):
        return data.astype(np.complex128)
    # bfloat16 and its kin are not NumPy floating types; they are known by name
    if data.dtype in (np.float16, np.float32, np.float64) or data.dtype.name == "bfloat16":
        return data.astype(np.float64)
    raise TypeError(f"{name} must be {_ACCEPTED}; got {data.dtype}. Convert it to one of these.")


def check_shapes(u: Widened, k: Widened) -> None:
    """Raise ValueError unless ``u`` is ``[..., H, L]`` and ``k`` is ``[H, K]`` or ``[K]``, neither empty."""
    for name, array, shape in (("u", u, "[..., H, L]"), ("k", k, "[H, K] or [K]")):
        if array.ndim == 0 or array.size == 0:
            raise ValueError(f"{name} must be a non-empty array {shape}; got shape {array.shape}.")
    if k.ndim > 2:
        raise ValueError(f"k must be [H, K] or [K], a filter per channel or for all; got shape {k.shape}.")
    if k.ndim == 2 and (u.ndim < 2 or u.shape[-2] != k.shape[0]):
        raise ValueError(
            f"k must have one filter for each of the H channels of u [..., H, L], or be a single filter [K]; "
            f"got k {k.shape} and u {u.shape}."
        )


def widen_gate(gate: ArrayLike | None, name: str, u: Widened) -> Widened | None:
    """Return a gate widened, or None; raise ValueError unless it has the shape of ``u``."""
    if gate is None:
        return None
    wide = widen(gate, name)
    if wide.shape != u.shape:
        raise ValueError(f"{name} must have the shape of u, {u.shape}; got {wide.shape}. Broadcast it first.")
    return wide


def widen_real(x: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return real ``x`` as float64 with the same values, or raise TypeError."""
    wide = widen(x, name)
    if np.iscomplexobj(wide):
        raise TypeError(f"{name} must be real; got {np.asarray(x).dtype}. Pass its real part.")
    return wide


def finite(value: object, name: str, meaning: str) -> float:
    """Return a finite real number as a float, or raise."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real):
        raise TypeError(
            f"{name} must be a real number ({meaning}); got {value!r} of type {type(value).__name__}."
        )
    if not np.isfinite(float(value)):
        raise ValueError(f"{name} must be finite ({meaning}); got {value!r}.")
    return float(value)


def whole(value: object, name: str, meaning: str) -> int:
    """Return a positive integer as an int, or raise."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral):
        raise TypeError(
            f"{name} must be an integer ({meaning}); got {value!r} of type {type(value).__name__}."
        )
    if value < 1:
        raise ValueError(f"{name} must be at least 1 ({meaning}); got {value!r}.")
    return int(value)
