"""Gradients of convolutions of complex sequences, by the kernels of complex convolutions and of real filter gradients.

In the sense of PyTorch, dL/dRe + i dL/dIm: with y = w * c, c = x conv k, x = u * v and e = conj(w) dy, per channel,

    du = conj(v) (e corr k)     dv = conj(u) (e corr k)     the convolution with the adjoint of conj(k), in one run
    dw = dy conj(c)             the convolution of conj(x) with conj(k), gated by dy
    dk = sum of e corr x        from correlations of real and imaginary parts, as twice as many real sequences:
                                Re: x' with e' and x'' with e'';  Im: x' with e'' less x'' with e'

so conjugates, x, e and their parts are arrays of their own here. The filter may be real: its gradient is Re alone.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from kernels_numba.arrays import COMPLEX32, Adapter, adapter_of
from kernels_numba.device import device
from kernels_numba.fftconv import FFTConv
from kernels_numba.spectrum import prepare_adjoint, prepare_filter
from monarch import Plan, SparsityPattern


def gradients(
    u: Any,
    k: Any,
    dy: Any,
    pregate: Any,
    postgate: Any,
    wanted: frozenset[str],
    *,
    mode: str,
    plan: Plan | None,
    pattern: SparsityPattern | None = None,
    products: str | None,
) -> dict[str, Any]:
    """The gradients that are wanted, by name; arguments as those of `fftconv_gradients`, and checked as there."""
    from kernels_numba.fftconv_gradients import fftconv_gradients

    adapter, dtype = adapter_of(u, "u"), adapter_of(u, "u").dtype_name(u)
    xp = _arithmetic(adapter)
    narrow = dtype == "complex32"
    products = products or ("fp16" if narrow else None)
    if narrow:
        u, dy, pregate, postgate = (_widened(x) for x in (u, dy, pregate, postgate))
    shape = (1, *u.shape) if len(u.shape) == 2 else tuple(u.shape)
    on_gpu = adapter_of(k, "k").index(k) is not None or device().is_gpu  # where a look at scales would wait
    complex_filter = adapter_of(k, "k").dtype_name(k).startswith("complex")
    how: dict[str, Any] = {"length": shape[2], "mode": mode, "dtype": "complex64", "plan": plan}
    how |= {"channels": shape[1], "products": products, "pattern": pattern}
    how |= {"scaled": products is not None if on_gpu else None}
    zeros: dict[str, Any] = {}
    if pattern is not None:
        assert plan is not None
        if not pattern.is_symmetric:
            raise ValueError(
                "pattern: gradients of complex convolutions take zeros at k and -k alike; take pattern.symmetric(), or "
                "reference.sparse_fftconv_gradients"
            )
        zeros = {"plan": plan.with_(packing="pair"), "pattern": pattern}
    turned = _conjugate(k) if complex_filter else k
    before, after = (None if x is None else _conjugate(x) for x in (pregate, postgate))
    found: dict[str, Any] = {}
    of_gate = "pregate" in wanted and pregate is not None
    if "u" in wanted or of_gate:
        run = FFTConv(prepare_adjoint(turned, **how), batch=shape[0])
        if of_gate and "u" in wanted:
            found["u"], found["pregate"] = run.twice(dy, before, _conjugate(u), pregate=after)
        elif of_gate:
            found["pregate"] = run(dy, pregate=after, postgate=_conjugate(u))
        else:
            found["u"] = run(dy, pregate=after, postgate=before)
    if "postgate" in wanted and postgate is not None:
        run = FFTConv(prepare_filter(turned, **how), batch=shape[0])
        found["postgate"] = run(_conjugate(u), pregate=before, postgate=dy)
    if narrow:
        found = {name: _narrowed(x) for name, x in found.items()}
    if "k" in wanted:
        x, e = u if pregate is None else u * pregate, dy if after is None else dy * after
        (xr, xi), (er, ei) = ([part.reshape(shape) for part in _parts(z)] for z in (x, e))
        taps = _parts(k)[0] if complex_filter else k

        def summed(one: Any, other: Any, with_one: Any, with_other: Any) -> Any:
            pairs = [_joined(xp, *both) for both in ((one, other), (with_one, with_other))]
            how = {"mode": mode, "products": products, **zeros}
            return fftconv_gradients(pairs[0], taps, pairs[1], needs=("k",), **how).k

        found["k"] = summed(xr, xi, er, ei)
        if complex_filter:
            found["k"] = found["k"] + 1j * summed(xr, -xi, ei, er)
    return found


def _arithmetic(adapter: Adapter) -> ModuleType:
    """The library's module; raises ``TypeError`` for one that has no arithmetic."""
    if adapter.library == "torch":
        import torch

        return torch
    if adapter.library == "cupy":
        import cupy

        return cupy
    if adapter.library == "numpy":
        return np
    raise TypeError(
        f"u: gradients of complex convolutions take NumPy, PyTorch and CuPy arrays, got {adapter.library}; convert "
        "them, for instance with cupy.asarray"
    )


def _conjugate(x: Any) -> Any:
    adapter = adapter_of(x, "u")
    if adapter.library == "torch":
        import torch

        return torch.conj_physical(x)
    return x.conj()


def _parts(x: Any) -> tuple[Any, Any]:
    """Real and imaginary part, each without gaps."""
    adapter = adapter_of(x, "u")
    if adapter.library == "torch":
        return x.real.contiguous(), x.imag.contiguous()
    return x.real.copy(), x.imag.copy()


def _joined(xp: ModuleType, one: Any, other: Any) -> Any:
    """Two batches as one."""
    return xp.cat([one, other]) if hasattr(xp, "cat") else xp.concatenate([one, other])


def _widened(x: Any) -> Any:
    """Numbers of two halves as complex64."""
    return None if x is None else adapter_of(x, "u").complex64(x)


def _narrowed(x: Any) -> Any:
    """complex64 rounded to two halves."""
    adapter = adapter_of(x, "u")
    if adapter.library == "torch":
        import torch

        return x.to(torch.complex32)
    out = np.empty(x.shape, COMPLEX32)
    out["real"], out["imag"] = x.real, x.imag
    return out
