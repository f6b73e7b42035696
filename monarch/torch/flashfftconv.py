"""The calls of the package ``flashfftconv`` (HazyResearch/flash-fft-conv), by the kernels of this one.

    from flashfftconv import FlashFFTConv              ->     from monarch.torch.flashfftconv import FlashFFTConv

    conv = FlashFFTConv(seqlen, dtype=torch.float16)
    y = conv(u, k)                                     # u [B, H, L], k [H, K] in fp32, L and K up to seqlen
    y = conv(u, k, pregate, postgate)

There as here: ``y = postgate * ifft(fft(u * pregate, seqlen) * fft(k, seqlen))[..., :L]``, a circular convolution of
``seqlen`` points of sequences that are padded with zeros; taps from ``seqlen`` on are left out. For L = seqlen / 2 or
less and K up to L it is causal; a filter of seqlen taps reaches backwards too. What is more permissive here: any
``seqlen`` and any L, odd ones too, H of any size, one gate without the other, filters of any float type, gradients
in training and evaluation, inputs with gaps.

There is nothing to prepare: ``conv`` holds no tensors, and passes over those that a checkpoint has for it. Spectra are
kept as everywhere here (`monarch.torch.spectra`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .functional import fftconv


class FlashFFTConv(nn.Module):
    """A convolution of ``seqlen`` points, padded and cut as its inputs are.

    Args:
        seqlen: N, the points of the circle.
        dtype: torch.float16 or torch.bfloat16, the type of ``u`` and the gates.
        use_32_butterfly: accepted and without effect; the plan follows from the length.
    """

    def __init__(
        self, seqlen: int, dtype: torch.dtype = torch.float16, use_32_butterfly: bool = True
    ) -> None:
        super().__init__()
        if not isinstance(seqlen, int) or seqlen < 1:
            raise ValueError(f"seqlen: expected a whole number of points, at least 1; got {seqlen!r}")
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"dtype: accepted are torch.float16 and torch.bfloat16; got {dtype}")
        self.seqlen, self.dtype, self.use_32_butterfly = seqlen, dtype, use_32_butterfly

    def forward(
        self, u: Tensor, k: Tensor, pregate: Tensor | None = None, postgate: Tensor | None = None
    ) -> Tensor:
        """Convolve ``u`` [B, H, L] with ``k`` [H, K]."""
        if u.dtype != self.dtype:
            raise TypeError(
                f"u: expected {self.dtype}, as this module was made for; got {u.dtype}; convert one"
            )
        length, n = u.shape[-1], self.seqlen
        if length > n:
            raise ValueError(
                f"u: {length} samples are more than the {n} points of this module; make a longer one"
            )
        k = k[..., :n]
        if length == n:
            mode = "circular"
        elif k.shape[-1] + length <= n + 1:  # no tap reaches back around the circle
            mode, k = "causal", k[..., :length]
        else:
            mode, k = "two-sided", lags_of(k, length, n)
        return fftconv(u, k, mode=mode, pregate=pregate, postgate=postgate)

    def extra_repr(self) -> str:
        """What ``repr`` says."""
        return f"{self.seqlen}, dtype={self.dtype}"

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Take nothing from a checkpoint: there the module has its constants in it, here it has no tensors."""


def lags_of(k: Tensor, length: int, n: int) -> Tensor:
    """The taps of a filter on a circle of N points as a filter of lags 1 - L to L - 1, for L samples."""
    lags = torch.arange(1 - length, length, device=k.device) % n
    return functional.pad(k, (0, n - k.shape[-1])).index_select(-1, lags)


class FlashDepthWiseConv1d(nn.Module):
    """A short filter for each channel, [B, D, L] with zeros on both sides, by PyTorch's own convolution.

    Args:
        channels: D.
        kernel_size: T.
        padding: zeros on either side; the result has L + 2 padding - T + 1 samples.
        weights: [D, 1, T] or [D, T].
        bias: [D].
        is_bhl: whether sequences are [B, D, L], otherwise [B, L, D].
        device: where the parameters are.
        dtype: of the parameters.
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int,
        padding: int,
        weights: Tensor,
        bias: Tensor,
        is_bhl: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.d, self.k, self.padding, self.is_bhl = channels, kernel_size, padding, is_bhl
        taps = weights.detach().reshape(channels, kernel_size)
        self.weights = nn.Parameter(taps.to(device=device, dtype=dtype or weights.dtype).clone())
        self.bias = nn.Parameter(bias.detach().to(device=device, dtype=dtype or bias.dtype).clone())

    def forward(self, u: Tensor) -> Tensor:
        """Filter ``u``."""
        x = u if self.is_bhl else u.transpose(-1, -2)
        weights, bias = self.weights[:, None].to(u.dtype), self.bias.to(u.dtype)
        y = functional.conv1d(x, weights, bias, padding=self.padding, groups=self.d)
        return y if self.is_bhl else y.transpose(-1, -2).contiguous()
