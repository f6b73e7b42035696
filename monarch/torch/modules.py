"""Long convolutions as a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from monarch import MODES, Plan, SparsityPattern

from . import plans
from .functional import fftconv


class LongConv(nn.Module):
    """A long convolution with a filter to learn: ``y = postgate * (x conv k + skip * x)``, ``x = u * pregate``.

    Args:
        channels: H.
        taps: K, the length of the filter.
        mode: "causal" (the default), "circular" or "two-sided", as in `monarch.torch.fftconv`.
        skip: learn a number per channel that ``x`` is added with. It costs nothing: it is a number added to the tap
            of lag 0.
        plan: as in `monarch.torch.fftconv`, and so is the pattern.
        pattern: slots of the plan's spectrum that are kept.
        device: where the parameters are.
        dtype: of the parameters; fp32 is best whatever the type of the signals.

    Shapes: u and the gates [..., H, L], k [H, K], skip [H], y [..., H, L]. The filter begins as noise of variance
    1 / K, which keeps the size of a signal, and the skip as noise of variance 1.
    """

    def __init__(
        self,
        channels: int,
        taps: int,
        *,
        mode: str = "causal",
        skip: bool = False,
        plan: Plan | None = None,
        pattern: SparsityPattern | None = None,
        device: Any = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        for name, value in (("channels", channels), ("taps", taps)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number, at least 1; got {value!r}")
        if mode not in MODES:
            raise ValueError(f"mode: accepted are {', '.join(MODES)}; got {mode!r}")
        plans.with_pattern(plan, pattern)
        self.channels, self.taps, self.mode, self.plan, self.pattern = channels, taps, mode, plan, pattern
        self.k = nn.Parameter(torch.empty(channels, taps, device=device, dtype=dtype))
        self.skip = nn.Parameter(torch.empty(channels, device=device, dtype=dtype)) if skip else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the filter, and the skip, anew."""
        nn.init.normal_(self.k, std=self.taps**-0.5)
        if self.skip is not None:
            nn.init.normal_(self.skip)

    def filter(self) -> Tensor:
        """The filter that is convolved with, the skip in it."""
        return self.k if self.skip is None else with_skip(self.k, self.skip, self.mode)

    def forward(self, u: Tensor, pregate: Tensor | None = None, postgate: Tensor | None = None) -> Tensor:
        """Convolve ``u`` [..., H, L]."""
        how: Any = {"mode": self.mode, "plan": self.plan, "pattern": self.pattern}
        return fftconv(u, self.filter(), pregate=pregate, postgate=postgate, **how)

    def extra_repr(self) -> str:
        """What ``repr`` says."""
        return f"{self.channels}, {self.taps}, mode={self.mode!r}, skip={self.skip is not None}"


def with_skip(k: Tensor, skip: Tensor, mode: str) -> Tensor:
    """The filter [H, K] that also adds ``skip`` [H] times the signal: one number more at lag 0."""
    taps = k.shape[-1]
    lag = (taps - 1) // 2 if mode == "two-sided" else 0
    where = torch.full((1,), lag, dtype=torch.long, device=k.device)
    return k.index_add(1, where, skip[:, None].to(k.dtype))
