r"""Layers that models are made of, around one long convolution: Hyena, the mixer of M2, a plain long convolution.

Each takes and gives [B, L, D], and each can do its convolution by `monarch.torch.fftconv` or, to compare, by
`monarch.torch.torch_fftconv` (``convolve=``): parameters and mathematics are the same.

`Hyena` (Poli et al., arXiv 2302.10866, order 2), with three projections that each go through a short causal filter:

    v, a, b = short(W_v x), short(W_a x), short(W_b x)          y = W_o [ b * (h conv (a * v)) ]

where conv is causal, and h [D, L] comes from a small network of the position (`ImplicitFilter`). Gates and convolution
are one launch. `MonarchMixer` (Fu et al., arXiv 2310.12109) mixes a sequence in both directions:

    y = W_o [ b * (h conv (a * v)) + b * (g conv v) ]

with two-sided filters h and g of 2 L - 1 taps. `LongConvLayer` (Fu et al., arXiv 2302.06646) has an explicit filter:

    y = W gelu(h conv x + s * x)

What multiplies the signal itself (s, or the "bias" of an implicit filter) is a number more at lag 0 of the filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .functional import as_autocast, fftconv
from .modules import with_skip
from .short import short_conv

Convolve = Callable[..., Tensor]
SHORT_TAPS = 3


class ImplicitFilter(nn.Module):
    """A filter [D, L] as a function of the position: sines of sines, under an exponential window for each channel.

    Args:
        channels: D.
        length: L.
        width: of the hidden layers.
        bands: of sines and cosines of the position, beside the position itself.
        frequency: of the first sine activation.

    The windows decay to a hundredth within 0.3 to 1.5 lengths, as in the authors' code; the filter begins with the
    size of a filter of `LongConv`. It is computed in fp32 even under autocast.
    """

    z: Tensor
    window: Tensor

    def __init__(
        self, channels: int, length: int, *, width: int = 64, bands: int = 1, frequency: float = 10.0
    ) -> None:
        super().__init__()
        t = torch.linspace(0, 1, length)[:, None]
        angle = 2 * math.pi * torch.arange(length)[:, None] / length * torch.linspace(1e-4, bands, bands)
        decay = torch.linspace(math.log(100) / 0.3, math.log(100) / 1.5, channels)
        self.register_buffer("z", torch.cat([t, angle.cos(), -angle.sin()], dim=-1))
        self.register_buffer("window", torch.exp(-t * decay).T.contiguous())
        self.inner = nn.ModuleList([nn.Linear(1 + 2 * bands, width), nn.Linear(width, width)])
        self.frequency = nn.Parameter(torch.full((width,), frequency))
        self.outer = nn.Linear(width, channels, bias=False)

    def forward(self) -> Tensor:
        """The taps."""
        with torch.autocast(self.z.device.type, enabled=False):
            x = self.z
            for layer in self.inner:
                x = torch.sin(self.frequency * layer(x))
            return self.outer.weight @ x.T * self.window  # [D, L] without gaps


class Projections(nn.Module):
    """``count`` linear maps of x [B, L, D], each [B, D, L] and through a short filter of its own.

    They are made one by one, because parts of one product [B, 3 D, L] have gaps, and the kernels take none.
    """

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(width, width) * width**-0.5 for _ in range(count)])
        uniform = SHORT_TAPS**-0.5
        self.shorts = nn.ParameterList(
            [torch.empty(width, SHORT_TAPS).uniform_(-uniform, uniform) for _ in range(count)]
        )

    def forward(self, x: Tensor) -> list[Tensor]:
        """The projections, channels first."""
        rows = _ToChannels.apply(as_autocast(x), *(as_autocast(weight) for weight in self.weights))
        return [short_conv(row, taps) for row, taps in zip(rows, self.shorts, strict=True)]


class _ToChannels(torch.autograd.Function):
    """Weights [E, D] times x [B, L, D]: each [B, E, L] without gaps; and the gradient of x [B, L, D] without gaps.

    ``torch.matmul`` would make one product of all sequences, [B L, E], and give back a transposed view of it, which
    every pass after it has to read across. Gradients of x are added up by the products themselves.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        """The products."""
        ctx.save_for_backward(x, *weights)
        return tuple(torch.bmm(_each(weight, x), x.transpose(1, 2)) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *changes: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x and the weights."""
        x, *weights = ctx.saved_tensors
        dx = None
        if ctx.needs_input_grad[0]:
            for dy, weight in zip(changes, weights, strict=True):
                part = dy.transpose(1, 2), _each(weight, x)
                if dx is None:
                    dx = torch.bmm(*part)
                else:  # in place, unless it is differentiated itself
                    dx = torch.baddbmm(dx, *part) if torch.is_grad_enabled() else dx.baddbmm_(*part)
        return dx, *(_over_all(dy, x) for dy in changes)


class _FromChannels(torch.autograd.Function):
    """``weight`` [E, D] times y [B, D, L]: [B, L, E] without gaps, and so is the gradient of y."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor) -> Tensor:
        """The product."""
        ctx.save_for_backward(y, weight)
        return torch.bmm(y.transpose(1, 2), _each(weight.t(), y))

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of y and the weight."""
        y, weight = ctx.saved_tensors
        return torch.bmm(_each(weight.t(), y), dz.transpose(1, 2)), _over_all(y, dz).t()


def _each(weight: Tensor, x: Tensor) -> Tensor:
    """The same matrix for every sequence."""
    return weight.expand(x.shape[0], -1, -1)


def _over_all(channels: Tensor, rows: Tensor) -> Tensor:
    """The sum over all sequences of products of [B, E, L] and [B, L, D]: [E, D].

    A product for each sequence where that is less to write than ``channels`` in another order.
    """
    if rows.shape[1] >= rows.shape[2]:
        return torch.bmm(channels, rows).sum(0)
    return channels.transpose(0, 1).flatten(1) @ rows.flatten(0, 1)


class Hyena(nn.Module):
    """The Hyena operator of order 2.

    Args:
        width: D.
        length: L, the longest sequence.
        filter_width: of the network that makes the filter.
        convolve: `monarch.torch.fftconv`, or another function of its signature.
    """

    def __init__(
        self,
        width: int,
        length: int,
        *,
        filter_width: int = 64,
        convolve: Convolve = fftconv,
    ) -> None:
        super().__init__()
        self.project = Projections(width, 3)
        self.filter = ImplicitFilter(width, length, width=filter_width)
        self.skip = nn.Parameter(torch.randn(width))
        self.out = nn.Parameter(torch.randn(width, width) * width**-0.5)
        self.convolve = convolve

    def forward(self, x: Tensor) -> Tensor:
        """Mix x [B, L, D] along L, causally."""
        v, before, after = self.project(x)
        k = with_skip(self.filter()[:, : x.shape[1]], self.skip, "causal")
        y = self.convolve(v, k, mode="causal", pregate=before, postgate=after)
        z: Tensor = _FromChannels.apply(y, as_autocast(self.out))
        return z


class MonarchMixer(nn.Module):
    """The sequence mixer of Monarch Mixer (M2-BERT), which looks both ways.

    Args:
        width: D.
        length: L, of every sequence.
        filter_width: of the networks that make the filters.
        residual: add a second long convolution, of the values without their first gate.
        convolve: as in `Hyena`.
    """

    def __init__(
        self,
        width: int,
        length: int,
        *,
        filter_width: int = 64,
        residual: bool = True,
        convolve: Convolve = fftconv,
    ) -> None:
        super().__init__()
        self.project = Projections(width, 3)
        count = 4 if residual else 2  # for each filter one half of later lags and one of earlier ones
        self.filters = nn.ModuleList(
            [ImplicitFilter(width, length, width=filter_width) for _ in range(count)]
        )
        self.skips = nn.ParameterList([torch.randn(width) for _ in range(count // 2)])
        self.out = nn.Parameter(torch.randn(width, width) * width**-0.5)
        self.convolve = convolve

    def two_sided(self, number: int) -> Tensor:
        """Filter ``number`` [D, 2 L - 1]: lags L - 1 down to 1 of one half, 0 to L - 1 of the other."""
        after, before = self.filters[2 * number], self.filters[2 * number + 1]
        k = torch.cat([before()[:, 1:].flip(-1), after()], dim=-1)
        return with_skip(k, self.skips[number], "two-sided")

    def forward(self, x: Tensor) -> Tensor:
        """Mix x [B, L, D] along L."""
        v, before, after = self.project(x)
        y = self.convolve(v, self.two_sided(0), mode="two-sided", pregate=before, postgate=after)
        if len(self.skips) > 1:
            y = y + self.convolve(v, self.two_sided(1), mode="two-sided", postgate=after)
        z: Tensor = _FromChannels.apply(y, as_autocast(self.out))
        return z


class LongConvLayer(nn.Module):
    """A layer with an explicit filter of the sequence's length.

    Args:
        width: D.
        length: L, the longest sequence, and the taps.
        convolve: as in `Hyena`.
    """

    def __init__(self, width: int, length: int, *, convolve: Convolve = fftconv) -> None:
        super().__init__()
        self.k = nn.Parameter(torch.randn(width, length) * length**-0.5)
        self.skip = nn.Parameter(torch.randn(width))
        self.out = nn.Linear(width, width)
        self.convolve = convolve

    def forward(self, x: Tensor) -> Tensor:
        """Mix x [B, L, D] along L, causally."""
        columns = x.transpose(1, 2).contiguous()
        y = self.convolve(columns, with_skip(self.k, self.skip, "causal"), mode="causal")
        z: Tensor = _FromChannels.apply(functional.gelu(y), as_autocast(self.out.weight))
        return z + as_autocast(self.out.bias)


OPERATORS = {"hyena": Hyena, "m2": MonarchMixer, "longconv": LongConvLayer}
