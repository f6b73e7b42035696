"""The operators ``monarch_numba::fftconv`` and ``monarch_numba::fftconv_backward`` of PyTorch.

Both have a fake implementation (shapes and types without data), so that ``torch.compile`` and ``torch.export`` trace
through them, and a derivative, so that gradients of gradients exist. The forward pass keeps its arguments and nothing
else; the backward pass computes anew what it needs. A plan, and a pattern of zeros, are one text (`plans`).

``y = postgate * ((u * pregate) conv k)`` is linear in each operand, and so is each of its gradients. The derivative of
``<dy, y>`` along changes (u', k', ...) is ``<dy, y(u', k, ...) + y(u, k', ...) + ...>``, with one operand in each term
in place of the other; its derivatives in dy and the operands are again convolutions and their gradients. Of complex
operands ``<a, b>`` is Re sum a conj(b), and all of this holds as it stands.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import host, kernels, plans

NAMES = ("u", "k", "pregate", "postgate")


def _forward(
    u: Tensor,
    k: Tensor,
    pregate: Tensor | None,
    postgate: Tensor | None,
    mode: str,
    plan: str,
    keep: bool,
) -> Tensor:
    if u.numel() == 0:
        return u.new_empty(u.shape)
    chosen, pattern = plans.from_text(plan), plans.pattern_from_text(plan)
    if host.runs_kernels(u):
        return kernels.convolve(u, k, pregate, postgate, mode, chosen, pattern, keep=keep)
    return host.convolve(u, k, pregate, postgate, mode, chosen, pattern)


def _backward(
    dy: Tensor,
    u: Tensor,
    k: Tensor,
    pregate: Tensor | None,
    postgate: Tensor | None,
    mode: str,
    plan: str,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    chosen, pattern = plans.from_text(plan), plans.pattern_from_text(plan)
    need_u, need_k, need_pregate, need_postgate = needs
    wanted = (need_u, need_k, need_pregate, need_postgate)
    if u.numel() == 0:
        found: tuple[Tensor | None, ...] = (
            u.new_empty(u.shape),
            k.new_zeros(k.shape),
            *[u.new_empty(u.shape)] * 2,
        )
    elif host.runs_kernels(u):
        found = kernels.gradients(dy, u, k, pregate, postgate, mode, chosen, pattern, wanted)
    else:
        found = host.gradients(dy, u, k, pregate, postgate, mode, chosen, pattern, wanted)
    # An operator's results have no None among them: what is not needed is a tensor of no elements.
    a, b, c, d = (
        x if x is not None and need else u.new_empty(0) for x, need in zip(found, wanted, strict=True)
    )
    return a, b, c, d


_OPERANDS = "Tensor u, Tensor k, Tensor? pregate, Tensor? postgate, str mode, str plan"

forward_op = torch.library.custom_op(
    "monarch_numba::fftconv", _forward, mutates_args=(), schema=f"({_OPERANDS}, bool keep) -> Tensor"
)
backward_op = torch.library.custom_op(
    "monarch_numba::fftconv_backward",
    _backward,
    mutates_args=(),
    schema=f"(Tensor dy, {_OPERANDS}, bool[] needs) -> (Tensor, Tensor, Tensor, Tensor)",
)


@forward_op.register_fake
def _forward_fake(
    u: Tensor,
    k: Tensor,
    pregate: Tensor | None,
    postgate: Tensor | None,
    mode: str,
    plan: str,
    keep: bool,
) -> Tensor:
    return u.new_empty(u.shape)


@backward_op.register_fake
def _backward_fake(
    dy: Tensor,
    u: Tensor,
    k: Tensor,
    pregate: Tensor | None,
    postgate: Tensor | None,
    mode: str,
    plan: str,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a, b, c, d = (
        like.new_empty(like.shape) if need and like is not None else u.new_empty(0)
        for like, need in zip((u, k, pregate, postgate), needs, strict=True)
    )
    return a, b, c, d


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    u, k, pregate, postgate, ctx.mode, ctx.plan, _ = inputs
    ctx.save_for_backward(u, k, pregate, postgate)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    operands = ctx.saved_tensors
    needs = [bool(need) for need in ctx.needs_input_grad[:4]]
    found = backward_op(dy, *operands, ctx.mode, ctx.plan, needs)
    return (*(x if need else None for x, need in zip(found, needs, strict=True)), None, None, None)


forward_op.register_autograd(_differentiate, setup_context=_keep_for_backward)


def _keep_for_second_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dy, u, k, pregate, postgate, ctx.mode, ctx.plan, ctx.needs = inputs
    ctx.save_for_backward(dy, u, k, pregate, postgate)
    ctx.set_materialize_grads(False)


def _differentiate_twice(ctx: Any, *changes: Tensor | None) -> tuple[Tensor | None, ...]:
    dy, *operands = ctx.saved_tensors
    need_dy = ctx.needs_input_grad[0]
    totals: list[Tensor | None] = [None] * 5

    def add(place: int, x: Tensor) -> None:
        held = totals[place]
        totals[place] = x if held is None else held + x

    for changed, (change, had) in enumerate(zip(changes, ctx.needs, strict=True)):
        if change is None or not had:
            continue
        replaced = [change if i == changed else x for i, x in enumerate(operands)]
        if need_dy:
            add(0, forward_op(*replaced, ctx.mode, ctx.plan, False))
        needs = [
            bool(need) and i != changed and operands[i] is not None
            for i, need in enumerate(ctx.needs_input_grad[1:5])
        ]
        if any(needs):
            for i, x in enumerate(backward_op(dy, *replaced, ctx.mode, ctx.plan, needs)):
                if needs[i]:
                    add(i + 1, x)
    return (*totals, None, None, None)


backward_op.register_autograd(_differentiate_twice, setup_context=_keep_for_second_backward)
