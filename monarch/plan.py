"""The plan of a Monarch convolution: what is transformed, in which factors, and how real data are packed.

A `Plan` is plain data (a frozen dataclass); everything else is derived from it: DFT factors, twiddles, index
maps, which rows are zero, floating-point operations per stage. The transform itself (Fu et al., arXiv
2311.05908; the order-2 case is the four-step FFT of Bailey 1990) reads ``P`` points row-major as ``x[n1,
..., np]`` and does, for i = 1..p,

    contract axis i with F_Ni                        n_i -> k_i                   8 P Ni flops
    multiply by exp(-2 pi i k_i m / (Ni rest_i))     m = flattened (n_i+1..np)    6 P flops (not after the
    last)

with ``rest_i = N_i+1 ... Np``. The result ``X[k1, ..., kp]`` is in digit order (see `monarch.digit_order`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._check import whole_number
from .dft import dft_matrix, twiddle_factors
from .factors import check_factors, choose_factors, format_factors, parse_factors
from .index import digit_order_of, mirror_of

__all__ = ["LINEAR_PACKINGS", "PACKINGS", "Plan", "plan"]

PACKINGS = ("pair", "half", "complex")
"""How data on a whole circle are packed,"""
LINEAR_PACKINGS = ("right-angle",)
"""and, beside that, those of which at most half a circle is signal and wanted."""
_HALVED = ("half", "right-angle")

_PACKING_STORY = {
    "pair": "two real sequences that share a filter make one complex one, u1 + i u2",
    "half": "one real sequence of N samples makes a complex one of N / 2 (even + i odd samples)",
    "complex": "complex data, not packed",
    "right-angle": "one real sequence of at most N / 2 samples, turned through a right angle over N / 2 complex points",
}


@dataclass(frozen=True)
class Plan:
    """How to run a circular convolution of ``n`` samples by an order-p Monarch transform.

    Args:
        n: N, the circular length of the convolution, in samples (real ones for "pair" and "half").
        factors: (N1, ..., Np), each an integer >= 2; their product is `points`: N, or N / 2 for "half" and
            "right-angle".
        packing: "pair", "half", "complex" or "right-angle"; see `monarch.packing`.
        signal: samples of the input that may be non-zero, the first ones; the rest is zero padding. None for
            all; for "right-angle" for n / 2, the most that it takes and gives.
        wanted: samples of the output that are wanted, the first ones. None for all. (The offset of a
            two-sided convolution is absorbed in where the filter is placed, so the wanted samples always
            come first.)

    Raises:
        TypeError, ValueError: an argument that is not as above, naming it and the mend.
    """

    n: int
    factors: tuple[int, ...]
    packing: str = "pair"
    signal: int | None = None
    wanted: int | None = None

    def __post_init__(self) -> None:
        n = whole_number(self.n, name="n", least=2, meaning="the circular length of the convolution")
        if self.packing not in (*PACKINGS, *LINEAR_PACKINGS):
            accepted = ", ".join((*PACKINGS, *LINEAR_PACKINGS))
            raise ValueError(f"packing must be one of {accepted}; got {self.packing!r}.")
        factors = check_factors(self.factors)
        if self.packing == "half" and n % 2:
            raise ValueError(
                f'packing "half" splits the {n} samples into even and odd ones, so n must be even; '
                f'use n={n + 1} for a padded convolution, or packing="pair".'
            )
        if self.packing == "right-angle" and n % 2:
            raise ValueError(f'packing "right-angle" has n / 2 points, so n={n} must be even; use n={n + 1}.')
        points = n // 2 if self.packing in _HALVED else n
        if prod(factors) != points:
            halved = f" (n / 2, because of packing {self.packing!r})" if self.packing in _HALVED else ""
            raise ValueError(
                f"factors must multiply to {points}{halved}; "
                f"got {'x'.join(map(str, factors))} = {prod(factors)}. "
                f"monarch.plan({n}, packing={self.packing!r}) chooses factors."
            )
        object.__setattr__(self, "n", n)
        object.__setattr__(self, "factors", factors)
        for name, meaning in (
            ("signal", "input samples that may be non-zero"),
            ("wanted", "output samples wanted"),
        ):
            value = getattr(self, name)
            most = points if self.packing in LINEAR_PACKINGS else n
            if value is None:
                if most == n:
                    continue
                value = most
            value = whole_number(value, name=name, least=1, meaning=meaning)
            if value > most:
                limit = f"n={n}" if most == n else f"n/2={most} with packing {self.packing!r}"
                raise ValueError(
                    f"{name} must be at most {limit} ({meaning}); got {value}. Take a longer transform."
                )
            object.__setattr__(self, name, value)

    # ---- making plans

    @classmethod
    def parse(
        cls, text: str, *, packing: str = "pair", signal: int | None = None, wanted: int | None = None
    ) -> Plan:
        """Make a plan from factors as text: ``Plan.parse("32x32")`` has n = 1024 (2048 for "half")."""
        return cls.of(parse_factors(text), packing=packing, signal=signal, wanted=wanted)

    @classmethod
    def of(
        cls,
        factors: tuple[int, ...],
        *,
        packing: str = "pair",
        signal: int | None = None,
        wanted: int | None = None,
    ) -> Plan:
        """Make the plan that has these factors with a packing; n follows."""
        n = prod(factors) * (2 if packing in _HALVED else 1)
        return cls(n, factors, packing=packing, signal=signal, wanted=wanted)

    def with_(self, **changes: Any) -> Plan:
        """Return a copy with some fields changed; the copy is checked as a new plan is."""
        return replace(self, **changes)

    # ---- what follows from the fields

    @property
    def order(self) -> int:
        """The number of factors, p."""
        return len(self.factors)

    @property
    def points(self) -> int:
        """The points of the complex transform, P: n, or n / 2 with half-length and right-angle packing."""
        return self.n // 2 if self.packing in _HALVED else self.n

    @property
    def sequences_per_transform(self) -> int:
        """Sequences that share one complex transform: 2 for "pair", otherwise 1."""
        return 2 if self.packing == "pair" else 1

    @property
    def strides(self) -> tuple[int, ...]:
        """Row-major strides of ``x[n1, ..., np]`` in points: ``strides[i]`` is the product of later ones."""
        return tuple(prod(self.factors[i + 1 :]) for i in range(self.order))

    @property
    def tensor_core(self) -> bool:
        """Whether every factor is a multiple of 16, the edge of a tensor-core tile."""
        return all(factor % 16 == 0 for factor in self.factors)

    def _stage(self, stage: int) -> int:
        stage = whole_number(stage, name="stage", least=0, meaning="the index of a factor, counted from 0")
        if stage >= self.order:
            raise ValueError(
                f"stage must be below the order {self.order} (factors count from 0); got {stage}."
            )
        return stage

    def dft(self, stage: int, inverse: bool = False) -> NDArray[np.complex128]:
        """Return the unitary DFT matrix of a stage (counted from 0), ``[Ni, Ni]``, read-only."""
        return dft_matrix(self.factors[self._stage(stage)], inverse=inverse)

    def twiddle(self, stage: int) -> NDArray[np.complex128]:
        """Return the forward twiddles after a stage, ``[Ni, rest_i]``, read-only (ones after the last).

        The inverse multiplies by the conjugate, before the stage's contraction.
        """
        return twiddle_factors(self.factors[self._stage(stage)], self.strides[stage])

    def frequencies(self) -> NDArray[np.int64]:
        """Return the frequency held by every slot of the transform, ``[N1, ..., Np]``."""
        return digit_order_of(self.factors).reshape(self.factors)

    def mirror(self) -> NDArray[np.int64]:
        """Return for every slot, flattened ``[P]``, the slot of the opposite frequency."""
        return mirror_of(self.factors)

    # ---- zeros

    def _live_tiles(self, samples: int | None, tile: int) -> int:
        tile = whole_number(tile, name="tile", least=1, meaning="rows of axis 1 in a tile")
        samples = self.n if samples is None else samples
        points = -(-samples // 2) if self.packing == "half" else samples
        rows = -(-points // self.strides[0])
        return -(-rows // tile)

    def live_input_tiles(self, tile: int = 16) -> int:
        """Return the tiles of ``tile`` rows of axis 1 that hold signal; the others are zero."""
        return self._live_tiles(self.signal, tile)

    def live_output_tiles(self, tile: int = 16) -> int:
        """Return the tiles of ``tile`` rows of axis 1 that hold wanted output; the others may be skipped."""
        return self._live_tiles(self.wanted, tile)

    # ---- work

    def flops(self, stage: int) -> int:
        """Return real operations of a stage's contraction, one transform, one direction: 8 P Ni."""
        return 8 * self.points * self.factors[self._stage(stage)]

    def twiddle_flops(self, stage: int) -> int:
        """Return real operations of the twiddles after a stage, one direction: 6 P, and 0 after the last."""
        return 6 * self.points if self._stage(stage) < self.order - 1 else 0

    def pointwise_flops(self) -> int:
        """Return real operations of the product with the filter: 6 P, or 14 P for "half" (A Z + B conj Z)."""
        return (14 if self.packing == "half" else 6) * self.points

    def convolution_flops(self) -> int:
        """Return real operations of one convolution: forward, product, inverse; nothing skipped."""
        one_way = sum(self.flops(i) + self.twiddle_flops(i) for i in range(self.order))
        return 2 * one_way + self.pointwise_flops()

    # ---- words

    def __str__(self) -> str:
        """Return a short name, such as ``N=1024 32x32 pair``."""
        limits = [
            f"{name}={v}" for name, v in (("signal", self.signal), ("wanted", self.wanted)) if v is not None
        ]
        return " ".join([f"N={self.n}", format_factors(self.factors), self.packing, *limits])

    def describe(self) -> str:
        """Return a readable explanation of several lines."""
        fit = "all multiples of 16, so tensor cores can run every stage"
        if not self.tensor_core:
            fit = "not all multiples of 16, so tensor cores would need padded tiles"
        lines = [
            f"Monarch convolution of circular length N = {self.n}, order p = {self.order}",
            f"  packing   {self.packing}: {_PACKING_STORY[self.packing]}",
            f"  factors   {' x '.join(map(str, self.factors))} = {self.points} points; {fit}",
        ]
        for i, (factor, rest) in enumerate(zip(self.factors, self.strides, strict=True)):
            before = self.points // (factor * rest)
            shape = f"[{factor}, {factor}] by {before} x [{factor}, {rest}]"
            twiddle = f"; twiddles [{factor}, {rest}]" if i < self.order - 1 else ""
            lines.append(
                f"  stage {i + 1}   contract n{i + 1} -> k{i + 1}: {shape}, {self.flops(i):,} flops{twiddle}"
            )
        frequency = " + ".join(
            f"{weight} k{i + 1}" if weight > 1 else f"k{i + 1}"
            for i, weight in enumerate(prod(self.factors[:j]) for j in range(self.order))
        )
        digits = ", ".join(f"k{i + 1}" for i in range(self.order))
        lines.append(f"  output    slot [{digits}] holds frequency {frequency}")
        tiles = -(-self.factors[0] // 16)
        for name, value, live in (
            ("input", self.signal, self.live_input_tiles()),
            ("wanted", self.wanted, self.live_output_tiles()),
        ):
            if value is not None and value < self.n:
                lines.append(
                    f"  {name:<8}  first {value} of {self.n} samples: {live} of {tiles} 16-row tiles are live"
                )
        share = self.convolution_flops() / self.sequences_per_transform / self.n
        lines.append(
            f"  work      {self.convolution_flops():,} flops per transform (forward, product, inverse), "
            f"{share:.1f} per sample"
        )
        return "\n".join(lines)


def plan(
    n: int,
    *,
    gpu: Any = None,
    order: int | None = None,
    factors: tuple[int, ...] | None = None,
    packing: str = "pair",
    signal: int | None = None,
    wanted: int | None = None,
) -> Plan:
    """Choose a plan for a circular convolution of ``n`` samples.

    Args:
        n: circular length, at least 2. For a linear convolution or an awkward length take
            ``monarch.transform_length(monarch.convolution_length(mode, L, K))``.
        gpu: a GPU the cost model knows ("h200-sxm", or what `costmodel` accepts); the plan is then the one it
            predicts to be fastest. None for the rule of `monarch.choose_factors`: multiples of 16 if
            possible, the smallest order whose factors are at most 32, balanced, the largest factor first.
        order: the number of factors, if it is to be fixed.
        factors: the factors themselves, if they are to be fixed.
        packing: "pair", "half", "complex" or "right-angle".
        signal: input samples that may be non-zero; None for all (with "right-angle" for half of them).
        wanted: output samples wanted; None for as many.

    Raises:
        ValueError: no such plan; the message says what is possible.
    """
    n = whole_number(n, name="n", least=1, meaning="the circular length of the convolution")
    if n == 1 or (packing in _HALVED and n < 4):
        raise ValueError(
            f"n={n} leaves no factor of 2 or more to transform with packing {packing!r}; "
            f"monarch.transform_length({n}) gives a length that pads it."
        )
    if factors is not None:
        if gpu is not None:
            raise ValueError("Give factors, or a gpu to choose them for, not both.")
        made = Plan(n, tuple(factors), packing=packing, signal=signal, wanted=wanted)
        if order is not None and order != made.order:
            raise ValueError(
                f"order must be {made.order}, the number of factors given; got {order}. Leave it out."
            )
        return made
    if gpu is not None:
        from costmodel import best_plan  # lazy: this package needs NumPy only

        chosen: Plan = best_plan(n, gpu=gpu, order=order, packing=packing, signal=signal, wanted=wanted)
        return chosen
    if packing in _HALVED and n % 2:
        raise ValueError(
            f'packing "{packing}" needs an even n; got {n}. Use packing="pair", or pad to {n + 1}.'
        )
    points = n // 2 if packing in _HALVED else n
    return Plan(n, choose_factors(points, order=order), packing=packing, signal=signal, wanted=wanted)
