"""Tensors in host memory: `reference`, in float64 or complex128.

Double precision comes out as it was computed, exact to rounding, which is what ``torch.autograd.gradcheck`` needs.
Other types get the same results, rounded to the type of ``u``: closer to exact than those of a GPU.
`kernels_on_host` runs the kernels' CPU body instead, with the roundings of the GPU's; it is slow, and for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from monarch import Plan, SparsityPattern

_on_host: ContextVar[bool] = ContextVar("kernels_on_host", default=False)


@contextmanager
def kernels_on_host() -> Iterator[None]:
    """Run the kernels, on their CPU body, for tensors in host memory of a type that GPUs take (where there is no GPU).

    A convolution rounds as it does on a GPU, and takes milliseconds for each pair of sequences.
    """
    token = _on_host.set(True)
    try:
        yield
    finally:
        _on_host.reset(token)


def runs_kernels(u: torch.Tensor) -> bool:
    """Whether the kernels compute for this tensor."""
    return u.is_cuda or (_on_host.get() and u.dtype not in (torch.float64, torch.complex128))


def to_numpy(x: torch.Tensor | None) -> Any:
    """A tensor in host memory as float64 or complex128; None stays None."""
    if x is None:
        return None
    return (
        x.detach()
        .to(torch.complex128 if x.is_complex() else torch.float64)
        .resolve_conj()
        .resolve_neg()
        .numpy()
    )


def to_tensor(x: Any, like: torch.Tensor) -> torch.Tensor:
    """An array in double precision as a tensor of the type of ``like``."""
    return torch.from_numpy(np.ascontiguousarray(x)).to(like.dtype)


def convolve(
    u: torch.Tensor,
    k: torch.Tensor,
    pregate: torch.Tensor | None,
    postgate: torch.Tensor | None,
    mode: str,
    plan: Plan | None,
    pattern: SparsityPattern | None,
) -> torch.Tensor:
    """The convolution by `reference.fftconv`, or `reference.sparse_fftconv`."""
    import reference

    gates = {"pregate": to_numpy(pregate), "postgate": to_numpy(postgate)}
    with np.errstate(invalid="ignore", over="ignore"):  # infinities and NaN go through, as they do in PyTorch
        if pattern is None:
            y = reference.fftconv(to_numpy(u), to_numpy(k), mode=mode, plan=plan, **gates)
        else:
            assert plan is not None
            y = reference.sparse_fftconv(to_numpy(u), to_numpy(k), pattern, mode=mode, plan=plan, **gates)
    return to_tensor(y, u)


def gradients(
    dy: torch.Tensor,
    u: torch.Tensor,
    k: torch.Tensor,
    pregate: torch.Tensor | None,
    postgate: torch.Tensor | None,
    mode: str,
    plan: Plan | None,
    pattern: SparsityPattern | None,
    needs: tuple[bool, bool, bool, bool],
) -> tuple[torch.Tensor | None, ...]:
    """The gradients by `reference`: of u, k and the gates, None where it is not needed."""
    import reference

    operands = (u, k, pregate, postgate)
    gates = {"pregate": to_numpy(pregate), "postgate": to_numpy(postgate)}
    with np.errstate(invalid="ignore", over="ignore"):
        arrays = to_numpy(dy), to_numpy(u), to_numpy(k)
        if pattern is None:
            found = reference.fftconv_gradients(*arrays, mode=mode, plan=plan, **gates)
        else:
            assert plan is not None
            found = reference.sparse_fftconv_gradients(*arrays, pattern, mode=mode, plan=plan, **gates)
    return tuple(
        to_tensor(x, like) if need and x is not None and like is not None else None
        for x, need, like in zip(found, needs, operands, strict=True)
    )
