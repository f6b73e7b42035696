"""Argument checks shared by the package: every message names the argument, what came and what is accepted."""

from __future__ import annotations

import operator

__all__ = ["whole_number"]


def whole_number(value: object, *, name: str, least: int, meaning: str) -> int:
    """Return ``value`` as a Python int, or raise.

    Args:
        value: what the caller passed; any integer type (Python, NumPy) but not bool.
        name: the argument's name, for the message.
        least: the smallest accepted value.
        meaning: what the argument stands for, for the message.

    Raises:
        TypeError: ``value`` is not an integer.
        ValueError: ``value`` is below ``least``.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} must be an integer ({meaning}); got {value!r} of type {type(value).__name__}."
        ) from None
    if number < least:
        raise ValueError(f"{name} must be at least {least} ({meaning}); got {number}.")
    return number
