"""Tensors on a GPU (or on the kernels' CPU body): `kernels_numba`, in the type of the tensors."""

from __future__ import annotations

import torch

from monarch import Plan

from .spectra import prepared

Gradients = tuple[torch.Tensor | None, ...]
OPERANDS = ("u", "k", "pregate", "postgate")


def dense(x: torch.Tensor | None) -> torch.Tensor | None:
    """A tensor as the kernels take it: row-major without gaps (else a copy), and without a record of gradients."""
    return None if x is None else x.detach().contiguous()


def name_of(dtype: torch.dtype) -> str:
    """What the kernels call a type."""
    names = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
    if dtype not in names:
        raise TypeError(
            f"u: kernels take float16, bfloat16 and float32, got {dtype}; convert it, or move it to the CPU, where "
            "float64 is computed in float64"
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
    *,
    keep: bool = False,
) -> torch.Tensor:
    """The convolution by one launch, on the current stream of the tensors' GPU."""
    x, before, after = (_batched(dense(t)) for t in (u, pregate, postgate))
    assert x is not None
    batch, channels, length = x.shape
    run = prepared(
        k, batch, keep=keep, length=length, mode=mode, dtype=name_of(u.dtype), plan=plan, channels=channels
    )
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
    needs: tuple[bool, bool, bool, bool],
) -> Gradients:
    """The gradients of u, k and the gates, each of the type of its operand; None where it is not needed."""
    from kernels_numba import fftconv_gradients
    from kernels_numba.long_gradient import has_kernels

    if not any(needs):
        return (None,) * 4
    x, e, before, after = (_batched(dense(t)) for t in (u, dy, pregate, postgate))
    assert x is not None
    name_of(u.dtype)
    names = [name for name, need in zip(OPERANDS, needs, strict=True) if need]
    of_filter = None
    if needs[1] and not has_kernels(mode, x.shape[-1], k.shape[-1], name_of(u.dtype)):
        names.remove("k")
        of_filter = correlations(x, k, e, before, after, mode)
    found = fftconv_gradients(
        x, k.detach(), e, mode=mode, pregate=before, postgate=after, plan=plan, needs=names
    )
    found = found if of_filter is None else found._replace(k=of_filter)
    shaped = (None if t is None else t.reshape(u.shape) for t in (found.u, found.pregate, found.postgate))
    du, dpregate, dpostgate = shaped
    return du, None if found.k is None else found.k.to(k.dtype), dpregate, dpostgate


def correlations(
    x: torch.Tensor,
    k: torch.Tensor,
    e: torch.Tensor,
    pregate: torch.Tensor | None,
    postgate: torch.Tensor | None,
    mode: str,
) -> torch.Tensor:
    """The gradient of the filter in fp32, by a convolution for every sequence: where no kernel sums over the batch.

    A sequence takes the filter's place. Lag j - c of its correlation with the gradient is tap j's, so that gradient is
    moved by the c lags that a two-sided filter has before 0.
    """
    from kernels_numba import FFTConv
    from kernels_numba.spectrum import prepare_adjoint

    taps, length = k.shape[-1], x.shape[-1]
    lags = (taps - 1) // 2 if mode == "two-sided" else 0
    points, how = (length, "circular") if mode == "circular" else (max(length + lags, taps), "causal")
    total = torch.zeros((x.shape[1], taps), dtype=torch.float32, device=x.device)
    for b in range(len(x)):
        as_filter = x[b] if pregate is None else x[b] * pregate[b]
        signal = e[b] if postgate is None else e[b] * postgate[b]
        if how == "causal":
            signal = torch.nn.functional.pad(signal, (lags, points - length - lags))
        spectrum = prepare_adjoint(as_filter, length=points, mode=how, dtype="fp32", scaled=False)
        total += FFTConv(spectrum, batch=1)(signal[None].contiguous())[0, :, :taps]
    return total if k.ndim == 2 else total.sum(0)
