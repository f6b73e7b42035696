"""`fftconv` for tensors, and the same by `torch.fft` to compare with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from monarch import MODES, Plan, SparsityPattern

from . import plans
from .ops import forward_op

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)


def fftconv(
    u: Tensor,
    k: Tensor,
    *,
    mode: str = "circular",
    pregate: Tensor | None = None,
    postgate: Tensor | None = None,
    plan: Plan | None = None,
    pattern: SparsityPattern | None = None,
) -> Tensor:
    """Convolve every sequence with its channel's filter: ``y = postgate * ((u * pregate) conv k)``.

    Args:
        u: signal [..., H, L]. On a GPU fp16, bf16, fp32, complex32 or complex64; on the CPU float64 and complex128 too.
        k: filter [H, K], or [K] for all channels; any float type, best fp32. Complex only where ``u`` is.
        mode: "circular" (K <= L), "causal" (output n uses inputs up to n) or "two-sided" (tap (K - 1) // 2 is lag 0).
        pregate: multiplies ``u`` before; shape and type of ``u``.
        postgate: multiplies the result; shape and type of ``u``.
        plan: the transform to run; by default the one measured fastest.
        pattern: which slots of this plan's spectrum of the filter are kept; the others are zero, as in
            `reference.sparse_fftconv`. What that spares is not computed.

    Returns:
        y [..., H, L], of the type of ``u``, contiguous. Differentiable in u, k and the gates, twice; gradients of
        complex operands are PyTorch's, dL/dRe + i dL/dIm.

    Tensors that are not contiguous are copied, and so are gradients. Under autocast ``u`` and the gates are cast to
    its type; the filter is not, and its gradient has its own type. Otherwise nothing is cast: a mixture of types is
    refused. On the CPU see `monarch.torch.kernels_on_host`.

    Raises:
        TypeError: a dtype is not accepted, or those of u and the gates differ.
        ValueError: shapes or devices do not fit, or the convolution is longer than the kernels take.
    """
    text = plans.with_pattern(plan, pattern)
    if mode not in MODES:
        raise ValueError(f"mode: accepted are {', '.join(MODES)}; got {mode!r}")
    u, pregate, postgate = (as_autocast(x) for x in (u, pregate, postgate))
    check(u, k, pregate, postgate)
    recorded = torch.is_grad_enabled() and any(
        [x is not None and x.requires_grad for x in (u, k, pregate, postgate)]
    )
    y: Tensor = forward_op(u, k, pregate, postgate, mode, text, not recorded)
    return y


def torch_fftconv(
    u: Tensor,
    k: Tensor,
    *,
    mode: str = "circular",
    pregate: Tensor | None = None,
    postgate: Tensor | None = None,
    plan: Any = None,
    pattern: SparsityPattern | None = None,
) -> Tensor:
    """The same convolution by `torch.fft`, in float32 at least: what `fftconv` is compared with.

    Takes what `fftconv` takes (a ``plan`` is ignored unless there is a ``pattern``); K and L of any size.
    """
    u, pregate, postgate = (as_autocast(x) for x in (u, pregate, postgate))
    check(u, k, pregate, postgate)
    wide = torch.promote_types(u.dtype, torch.float32)
    length, taps = u.shape[-1], k.shape[-1]
    x = u.to(wide) if pregate is None else u.to(wide) * pregate.to(wide)
    centre = (taps - 1) // 2 if mode == "two-sided" else 0
    n = length if mode == "circular" else length + min(length, max(centre + 1, taps - centre))
    if mode == "circular" and taps > length:
        raise ValueError(f"k: {taps} taps are more than the {length} samples of a circular convolution")
    if pattern is not None:
        plans.with_pattern(plan, pattern)  # says what is wrong with them
        n = plan.n
    # Taps that reach no wanted output are left out; the rest goes to its lag on the circle.
    first, last = max(0, centre - length + 1), min(taps, centre + length)
    of_k = wide if k.is_complex() else wide.to_real()
    circle = torch.nn.functional.pad(k[..., first:last].to(of_k), (0, n - (last - first)))
    circle = circle.roll(first - centre, dims=-1)
    if wide.is_complex:
        product = torch.fft.fft(x, n=n) * torch.fft.fft(circle, n=n)
    else:
        product = torch.fft.rfft(x, n=n) * torch.fft.rfft(circle, n=n)
    if pattern is not None:
        kept = torch.from_numpy(pattern.bins(plan)).to(product.device)
        product = product * kept[: product.shape[-1]]
    y = (torch.fft.ifft(product) if wide.is_complex else torch.fft.irfft(product, n=n))[..., :length]
    return (y if postgate is None else y * postgate.to(wide)).to(u.dtype)


def as_autocast(x: Any) -> Any:
    """A tensor in the type of autocast, where that is on; what is not of single or half precision stays as it is."""
    kind = x.device.type if isinstance(x, Tensor) else "meta"
    if kind == "meta" or x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return x
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def check(u: Tensor, k: Tensor, pregate: Tensor | None, postgate: Tensor | None) -> None:
    """Raise unless shapes, types and devices of the operands fit together."""
    for name, x in (("u", u), ("k", k), ("pregate", pregate), ("postgate", postgate)):
        if x is None:
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
        if x.dtype not in TYPES + COMPLEX:
            raise TypeError(
                f"{name}: accepted are float16, bfloat16, float32, float64, complex32, complex64 and complex128; got "
                f"{x.dtype}; convert it"
            )
        if name == "k" and x.is_complex() and not u.is_complex():
            raise TypeError(
                f"k: a complex filter is for complex sequences, and u is {u.dtype}; convert u or k"
            )
        if x.device != u.device:
            raise ValueError(f"{name} is on {x.device} and u on {u.device}; move them to one device")
        if name.endswith("gate") and x.dtype != u.dtype:
            raise TypeError(
                f"{name}: expected {u.dtype}, as u has, got {x.dtype}; convert one, nothing is converted silently"
            )
        if name.endswith("gate") and x.shape != u.shape:
            raise ValueError(
                f"{name}: expected the shape of u, {tuple(u.shape)}; got {tuple(x.shape)}; expand it"
            )
    if u.ndim < 2:
        raise ValueError(f"u: expected [..., H, L], got shape {tuple(u.shape)}")
    if k.ndim not in (1, 2) or (k.ndim == 2 and k.shape[0] != u.shape[-2]):
        raise ValueError(
            f"k: expected [H, K] with the {u.shape[-2]} channels of u, or [K], got shape {tuple(k.shape)}"
        )
    if u.is_cuda and u.dtype in (torch.float64, torch.complex128):
        raise TypeError(
            f"u: on a GPU accepted are float16, bfloat16, float32, complex32 and complex64, got {u.dtype}; convert it, "
            "or move it to the CPU, where double precision is computed in double precision"
        )
