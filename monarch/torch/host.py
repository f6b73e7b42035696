"""Tensors in host memory: `reference`, in float64.

float64 comes out as it was computed, exact to rounding, which is what ``torch.autograd.gradcheck`` needs. Results for
fp32, bf16 and fp16 are the same float64 results, rounded to the type of ``u``: closer to exact than those of a GPU.
`kernels_on_host` runs the kernels' CPU body instead, with the roundings of the GPU's; it is slow, and for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from monarch import Plan

_on_host: ContextVar[bool] = ContextVar("kernels_on_host", default=False)


@contextmanager
def kernels_on_host() -> Iterator[None]:
    """Run the kernels, on their CPU body, for fp16, bf16 and fp32 tensors in host memory (where there is no GPU).

    A convolution rounds as it does on a GPU, and takes milliseconds for each pair of sequences.
    """
    token = _on_host.set(True)
    try:
        yield
    finally:
        _on_host.reset(token)


def runs_kernels(u: torch.Tensor) -> bool:
    """Whether the kernels compute for this tensor."""
    return u.is_cuda or (_on_host.get() and u.dtype != torch.float64)


def to_numpy(x: torch.Tensor | None) -> Any:
    """A tensor in host memory as float64; None stays None."""
    return None if x is None else x.detach().to(torch.float64).numpy()


def to_tensor(x: Any, like: torch.Tensor) -> torch.Tensor:
    """A float64 array as a tensor of the type of ``like``."""
    return torch.from_numpy(np.ascontiguousarray(x)).to(like.dtype)


def convolve(
    u: torch.Tensor,
    k: torch.Tensor,
    pregate: torch.Tensor | None,
    postgate: torch.Tensor | None,
    mode: str,
    plan: Plan | None,
) -> torch.Tensor:
    """The convolution by `reference.fftconv`."""
    import reference

    gates = {"pregate": to_numpy(pregate), "postgate": to_numpy(postgate)}
    with np.errstate(invalid="ignore", over="ignore"):  # infinities and NaN go through, as they do in PyTorch
        y = reference.fftconv(to_numpy(u), to_numpy(k), mode=mode, plan=plan, **gates)
    return to_tensor(y, u)


def gradients(
    dy: torch.Tensor,
    u: torch.Tensor,
    k: torch.Tensor,
    pregate: torch.Tensor | None,
    postgate: torch.Tensor | None,
    mode: str,
    plan: Plan | None,
    needs: tuple[bool, bool, bool, bool],
) -> tuple[torch.Tensor | None, ...]:
    """The gradients by `reference.fftconv_gradients`: of u, k and the gates, None where it is not needed."""
    import reference

    operands = (u, k, pregate, postgate)
    gates = {"pregate": to_numpy(pregate), "postgate": to_numpy(postgate)}
    with np.errstate(invalid="ignore", over="ignore"):
        found = reference.fftconv_gradients(
            to_numpy(dy), to_numpy(u), to_numpy(k), mode=mode, plan=plan, **gates
        )
    return tuple(
        to_tensor(x, like) if need and x is not None and like is not None else None
        for x, need, like in zip(found, needs, operands, strict=True)
    )
