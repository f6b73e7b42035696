"""Shapes of a convolution layer in two dimensions, checked: the arguments of PyTorch's functional ``conv2d``.

Per axis, with n samples, k taps, dilation d, stride s and padding p before and q after, a layer has a padded input of
n + p + q samples, a *span* of d (k - 1) + 1 samples that its filter covers, *dense* = n + p + q - span + 1 outputs at
stride 1, of which every s-th is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Pair = tuple[int, int]
Shape = tuple[int, int, int, int]
LARGEST = 2**31 - 2**16
"""Images, maps and samples are counted in 32 bits."""


def pair(value: Any, name: str, meaning: str, *, least: int = 1) -> Pair:
    """One integer for both axes, or two (rows first), as two."""
    values = tuple(value) if isinstance(value, (tuple, list, np.ndarray)) else (value, value)
    if any(isinstance(v, bool) or not isinstance(v, (int, np.integer)) for v in values):
        raise TypeError(f"{name}: expected one integer or two, rows first ({meaning}); got {value!r}")
    if len(values) != 2 or min(values) < least:
        raise ValueError(
            f"{name}: expected one integer or two of at least {least} ({meaning}); got {value!r}"
        )
    return int(values[0]), int(values[1])


@dataclass(frozen=True)
class Geometry:
    """A layer: x [N, C, H, W], w [O, C / groups, kh, kw], y [N, O, h, w]."""

    x_shape: Shape
    w_shape: Shape
    stride: Pair
    dilation: Pair
    before: Pair
    after: Pair
    groups: int

    @classmethod
    def of(
        cls,
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Geometry:
        """Check the arguments of a layer. Raises ``TypeError`` or ``ValueError``, naming the argument."""
        x, w = tuple(map(int, x_shape)), tuple(map(int, w_shape))
        if len(x) != 4 or 0 in x[1:]:
            raise ValueError(f"x: expected [N, C, H, W], none of them 0 but N; got shape {x}")
        if len(w) != 4 or 0 in w:
            raise ValueError(f"w: expected [O, C / groups, kh, kw], none of them 0; got shape {w}")
        if isinstance(groups, bool) or not isinstance(groups, (int, np.integer)) or groups < 1:
            raise ValueError(f"groups: expected a whole number, at least 1; got {groups!r}")
        if x[1] != w[1] * groups or w[0] % groups:
            raise ValueError(
                f"w: expected [O, C / groups, kh, kw] with the C={x[1]} of x, groups={groups} and O divisible by "
                f"groups; got {w}"
            )
        steps = pair(stride, "stride", "samples from output to output")
        spread = pair(dilation, "dilation", "samples from tap to tap")
        reach = (spread[0] * (w[2] - 1), spread[1] * (w[3] - 1))
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ValueError(f'padding: expected "same", "valid", an integer or two; got {padding!r}')
            if padding == "same" and steps != (1, 1):
                raise ValueError(
                    f'padding: "same" needs stride 1, got {stride!r}; give the padding in samples'
                )
            total = reach if padding == "same" else (0, 0)
            before = (total[0] // 2, total[1] // 2)
            after = (total[0] - before[0], total[1] - before[1])
        else:
            before = after = pair(padding, "padding", "zeros on each side", least=0)
        made = cls(x, w, steps, spread, before, after, int(groups))
        if min(made.dense) < 1:
            raise ValueError(
                f"w: its taps cover {made.span} samples of {made.padded}, the padded x; pad more or take a smaller "
                "filter"
            )
        if max(x[0] * x[1], w[0] * w[1], max(made.padded) + max(made.span), x[0] * w[0]) > LARGEST:
            raise ValueError(f"x, w: {x} and {w} have more than 2^31 maps; split the batch")
        return made

    @property
    def span(self) -> Pair:
        """Samples that the filter covers, rows and columns."""
        return tuple(d * (k - 1) + 1 for d, k in zip(self.dilation, self.w_shape[2:], strict=True))  # type: ignore[return-value]

    @property
    def padded(self) -> Pair:
        """Samples of the input with its zeros."""
        return tuple(  # type: ignore[return-value]
            n + p + q for n, p, q in zip(self.x_shape[2:], self.before, self.after, strict=True)
        )

    @property
    def dense(self) -> Pair:
        """Outputs at stride 1."""
        return tuple(n - k + 1 for n, k in zip(self.padded, self.span, strict=True))  # type: ignore[return-value]

    @property
    def y_shape(self) -> Shape:
        """Shape of the result."""
        rows, columns = ((n - 1) // s + 1 for n, s in zip(self.dense, self.stride, strict=True))
        return self.x_shape[0], self.w_shape[0], rows, columns

    @property
    def inputs(self) -> int:
        """Channels of x in a group."""
        return self.w_shape[1]

    @property
    def outputs(self) -> int:
        """Channels of y in a group."""
        return self.w_shape[0] // self.groups

    @property
    def flops(self) -> int:
        """Of the direct sums: a multiplication and an addition for each tap."""
        n, o, h, w = self.y_shape
        return 2 * n * o * h * w * self.inputs * self.w_shape[2] * self.w_shape[3]
