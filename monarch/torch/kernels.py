"""Tensors on a GPU (or on the kernels' CPU body): `kernels_numba`, in the type of the tensors."""

from __future__ import annotations

import torch

from monarch import Plan, SparsityPattern

from .spectra import prepared

Gradients = tuple[torch.Tensor | None, ...]
OPERANDS = ("u", "k", "pregate", "postgate")


def dense(x: torch.Tensor | None) -> torch.Tensor | None:
    """A tensor as the kernels take it: row-major without gaps (else a copy), and without a record of gradients.

    What PyTorch has only marked as conjugate or negative is worked out: kernels read memory.
    """
    return None if x is None else x.detach().resolve_conj().resolve_neg().contiguous()


def name_of(dtype: torch.dtype) -> str:
    """What the kernels call a type."""
    names = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
    names |= {torch.complex32: "complex32", torch.complex64: "complex64"}
    if dtype not in names:
        raise TypeError(
            f"u: kernels take float16, bfloat16, float32, complex32 and complex64, got {dtype}; convert it, or move "
            "it to the CPU, where double precision is computed in double precision"
        )
    return names[dtype]


def _batched(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.reshape(-1, *x.shape[-2:])


def convolve(
    u: torch.Tensor,
    k: torch.Tensor,
    pregate: torch.Tensor | None,
    postgate: torch.Tensor | None,
    mode: str,
    plan: Plan | None,
    pattern: SparsityPattern | None = None,
    *,
    keep: bool = False,
) -> torch.Tensor:
    """The convolution by one launch, on the current stream of the tensors' GPU."""
    x, before, after = (_batched(dense(t)) for t in (u, pregate, postgate))
    assert x is not None
    batch, channels, length = x.shape
    how = {"length": length, "mode": mode, "dtype": name_of(u.dtype), "plan": plan, "channels": channels}
    run = prepared(k, batch, keep=keep, pattern=pattern, **how)
    y: torch.Tensor = run(x, pregate=before, postgate=after)
    return y.reshape(u.shape)


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
) -> Gradients:
    """The gradients of u, k and the gates, each of the type of its operand; None where it is not needed."""
    from kernels_numba import fftconv_gradients

    if not any(needs):
        return (None,) * 4
    x, e, before, after = (_batched(dense(t)) for t in (u, dy, pregate, postgate))
    assert x is not None
    name_of(u.dtype)
    names = [name for name, need in zip(OPERANDS, needs, strict=True) if need]
    taps = k.detach().resolve_conj().resolve_neg()
    found = fftconv_gradients(
        x, taps, e, mode=mode, pregate=before, postgate=after, plan=plan, pattern=pattern, needs=names
    )
    shaped = (None if t is None else t.reshape(u.shape) for t in (found.u, found.pregate, found.postgate))
    du, dpregate, dpostgate = shaped
    return du, None if found.k is None else found.k.to(k.dtype), dpregate, dpostgate
