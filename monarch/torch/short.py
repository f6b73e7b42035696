"""Short causal filters, as operators ``monarch_numba::short_conv`` and ``monarch_numba::short_conv_backward``.

Half-precision tensors on a GPU (or within `kernels_on_host`) are filtered by the project's kernel, forward and backward
in one pass over memory each; all others by PyTorch's own convolution.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from . import host

MOST_TAPS = 8
"""Of `kernels_numba.short_conv`."""


def short_conv(x: Tensor, taps: Tensor) -> Tensor:
    """A causal filter of a few taps [D, T] for each channel of x [B, D, L]; the last tap is of lag 0.

    Taps are used in fp32, as they are kept under autocast; differentiable in both, twice.
    """
    half = x.dtype in (torch.float16, torch.bfloat16)
    there = x.is_cuda or (not torch.compiler.is_compiling() and host.runs_kernels(x))
    if half and there and x.numel() and taps.shape[-1] <= MOST_TAPS:
        y: Tensor = forward_op(x, taps.to(torch.float32))
        return y
    padded = functional.pad(x, (taps.shape[-1] - 1, 0))
    return functional.conv1d(padded, taps[:, None].to(x.dtype), groups=taps.shape[0])


def _forward(x: Tensor, taps: Tensor) -> Tensor:
    from kernels_numba import short_conv

    y: Tensor = short_conv.short_conv(x.detach().contiguous(), taps.detach().contiguous())
    return y


def _backward(dy: Tensor, x: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    from kernels_numba import short_conv

    operands = (v.detach().contiguous() for v in (dy, x, taps))
    dx, dw = short_conv.short_conv_gradients(*operands)
    return dx, dw


forward_op = torch.library.custom_op(
    "monarch_numba::short_conv", _forward, mutates_args=(), schema="(Tensor x, Tensor taps) -> Tensor"
)
backward_op = torch.library.custom_op(
    "monarch_numba::short_conv_backward",
    _backward,
    mutates_args=(),
    schema="(Tensor dy, Tensor x, Tensor taps) -> (Tensor, Tensor)",
)


@forward_op.register_fake
def _forward_fake(x: Tensor, taps: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@backward_op.register_fake
def _backward_fake(dy: Tensor, x: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), taps.new_empty(taps.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    found: tuple[Tensor, Tensor] = backward_op(dy, *ctx.saved_tensors)
    return tuple(x if need else None for x, need in zip(found, ctx.needs_input_grad, strict=True))


def _differentiate_twice(ctx: Any, of_dx: Tensor, of_dw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All is linear in each operand: in the term of a change, it stands in place of its operand."""
    dy, x, taps = ctx.saved_tensors
    return (
        forward_op(of_dx, taps) + forward_op(x, of_dw),
        backward_op(dy, x, of_dw)[0],
        backward_op(dy, of_dx, taps)[1],
    )


forward_op.register_autograd(_differentiate, setup_context=_keep)
backward_op.register_autograd(_differentiate_twice, setup_context=_keep)
