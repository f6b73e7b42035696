"""Where the samples of a two-dimensional convolution layer lie: stride, padding, dilation and groups.

Per axis, with ``n`` samples, ``k`` taps, dilation ``d``, stride ``s`` and padding ``p`` before and ``q`` after:

    padded  n + p + q                samples, zeros around the input
    span    d (k - 1) + 1            samples that the spread-out filter covers
    dense   padded - span + 1        outputs at stride 1, at least 1
    output  (dense - 1) // s + 1     every s-th of them, the first one included

"same" has p + q = d (k - 1), so that dense = n; where that is odd, the extra zero goes after (right, bottom).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import whole, widen_real

__all__ = ["Geometry", "Pair", "images", "pair"]

Pair = tuple[int, int]  # of the rows and of the columns


def pair(value: int | Sequence[int], name: str, meaning: str, *, least: int = 1) -> Pair:
    """Return one integer for both axes, or two (rows first), as two; raise unless they are at least ``least``."""
    values = tuple(value) if isinstance(value, tuple | list | np.ndarray) else (value, value)
    if any(isinstance(v, bool) or not isinstance(v, int | np.integer) for v in values):
        raise TypeError(f"{name} must be one integer or two, rows first ({meaning}); got {value!r}.")
    if len(values) != 2 or min(values) < least:
        raise ValueError(f"{name} must be one integer or two of at least {least} ({meaning}); got {value!r}.")
    return int(values[0]), int(values[1])


def images(x: ArrayLike, name: str, shape: str) -> NDArray[np.float64]:
    """Return ``x`` as float64 with four axes, of which only the first may be empty, or raise."""
    wide = widen_real(x, name)
    if wide.ndim != 4 or 0 in wide.shape[1:] or (shape[1] != "S" and not len(wide)):
        raise ValueError(f"{name} must be {shape}, none of them 0 but S; got shape {wide.shape}.")
    return wide


@dataclass(frozen=True)
class Geometry:
    """A layer's shapes, checked."""

    x_shape: tuple[int, int, int, int]  # S, Cin, n, m
    w_shape: tuple[int, int, int, int]  # Cout, Cin / groups, kh, kw
    stride: Pair
    dilation: Pair
    before: Pair  # zeros above and left
    after: Pair  # zeros below and right
    groups: int

    @classmethod
    def of(
        cls,
        x_shape: tuple[int, ...],
        w_shape: tuple[int, ...],
        *,
        stride: int | Sequence[int],
        padding: int | Sequence[int] | str,
        dilation: int | Sequence[int],
        groups: int,
        filters: str = "w",
    ) -> Geometry:
        """Check the arguments of a layer; ``filters`` is the argument that has Cout channels."""
        groups = whole(groups, "groups", "of channels that are not mixed")
        if x_shape[1] != w_shape[1] * groups:
            raise ValueError(
                f"w must be [Cout, Cin / groups, kh, kw] with Cin={x_shape[1]} as x has and groups={groups}; "
                f"got w {tuple(w_shape)}."
            )
        if w_shape[0] % groups:
            raise ValueError(f"{filters} must have Cout divisible by groups={groups}; got Cout={w_shape[0]}.")
        steps = pair(stride, "stride", "samples from output to output")
        spread = pair(dilation, "dilation", "samples from tap to tap")
        reach = (spread[0] * (w_shape[2] - 1), spread[1] * (w_shape[3] - 1))
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f'padding must be "same", "valid", an integer or two; got {padding!r}.')
            if padding == "same" and steps != (1, 1):
                raise ValueError(
                    f'padding "same" must have stride 1; got {stride!r}. Give padding in samples.'
                )
            total = reach if padding == "same" else (0, 0)
            before = (total[0] // 2, total[1] // 2)
            after = (total[0] - before[0], total[1] - before[1])
        else:
            before = after = pair(padding, "padding", "zeros on each side", least=0)
        made = cls(tuple(x_shape), tuple(w_shape), steps, spread, before, after, groups)  # type: ignore[arg-type]
        if min(made.dense) < 1:
            raise ValueError(
                f"w must fit into the padded x: {w_shape[2:]} taps with dilation {spread} cover "
                f"{(reach[0] + 1, reach[1] + 1)} samples of {made.padded}. Pad more or take a smaller filter."
            )
        return made

    @property
    def padded(self) -> Pair:
        """Samples of the input with its zeros."""
        (_, _, n, m), (top, left), (bottom, right) = self.x_shape, self.before, self.after
        return n + top + bottom, m + left + right

    @property
    def dense(self) -> Pair:
        """Outputs at stride 1."""
        (rows, columns), (_, _, kh, kw), (dh, dw) = self.padded, self.w_shape, self.dilation
        return rows - dh * (kh - 1), columns - dw * (kw - 1)

    @property
    def y_shape(self) -> tuple[int, int, int, int]:
        """Shape of the result."""
        (rows, columns), (sh, sw) = self.dense, self.stride
        return self.x_shape[0], self.w_shape[0], (rows - 1) // sh + 1, (columns - 1) // sw + 1

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise unless that is the shape of the result, and so of the gradient of it."""
        if shape != self.y_shape:
            raise ValueError(
                f"gradient must have the shape of the layer's result, {self.y_shape} for x {self.x_shape} and "
                f"w {self.w_shape}; got {shape}."
            )

    def pad(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Put the zeros around."""
        return np.pad(x, [(0, 0), (0, 0), *zip(self.before, self.after, strict=True)])

    def crop(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take the zeros off again."""
        (top, left), (_, _, n, m) = self.before, self.x_shape
        return x[..., top : top + n, left : left + m]
