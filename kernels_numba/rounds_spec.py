"""The shape of the fp32 kernel whose points stay in shared memory: how its threads share them, and its tables.

As `float_spec.py`, but a thread holds the points of one butterfly only, one round after the other: P may be more than
fits into registers. In the last stage of half-length packing it does a butterfly and the one that holds its mirrors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import float_spec
from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.float_spec import Stage, weights_of_halves
from monarch import Plan, format_factors
from monarch.index import digit_order_of, mirror_of

FACTORS = (
    (12, 16, 16),
    (20, 16, 16),
    *((16, 8, k, 16) for k in range(9, 14)),
    (16, 16, 8, 14),
)
"""The factors that are compiled and tested, of orders 3 and 4; any others would do that `Shape` accepts."""
PACKINGS = {"pair": FACTORS, "half": FACTORS, "complex": FACTORS}
DEFAULT_FACTORS = {
    36864: (16, 8, 9, 16),
    40960: (16, 8, 10, 16),
    45056: (16, 8, 11, 16),
    49152: (16, 8, 12, 16),
    53248: (16, 8, 13, 16),
    57344: (16, 16, 8, 14),
}
"""By transform length, with half-length packing: longer than what registers hold."""
MOST_THREADS = 512
LARGEST_LAST = 16
"""Of the last stage a thread holds two butterflies."""
PADDINGS = ((30, 0), (4, 1), (5, 1), (6, 1), (7, 1))
"""(shift, factor) to choose from; see `Shape.padding`."""


@dataclass(frozen=True)
class Shape(float_spec.Shape):
    """What follows from the factors alone. Raises ``ValueError`` for factors that no thread layout suits."""

    def __post_init__(self) -> None:
        wrong = None
        if not 3 <= len(self.factors) <= 4:
            wrong = "3 or 4 factors are needed"
        elif max(self.factors) > 32 or self.factors[-1] > LARGEST_LAST or self.factors[-1] % 2:
            wrong = f"factors to 32 are needed, and an even one to {LARGEST_LAST} last"
        elif any(self.points // f % 32 for f in self.factors) or self.points // self.factors[-1] % 64:
            wrong = "butterflies do not fill warps"
        elif not self._fits(0):
            wrong = f"{self.points} points of 8 bytes do not fit into {LARGEST_SHARED_BYTES} bytes"
        if wrong:
            raise ValueError(f"plan: the fp32 kernel cannot run {format_factors(self.factors)}: {wrong}")

    @property
    def held(self) -> int:
        """Points of the largest butterfly."""
        return max(self.factors)

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return min(MOST_THREADS, self.points // 512 * 32)

    @property
    def together(self) -> int:
        """One transform a block."""
        return 1

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, first to last."""
        return float_spec.stages_of(self.factors, dict.fromkeys(self.factors, 1))

    def _fits(self, extra: int) -> bool:
        return 8 * (self.points + extra) <= LARGEST_SHARED_BYTES

    @cached_property
    def padding(self) -> tuple[int, int, int]:
        """(shift, factor, room): point x lies at x + factor (x >> shift), the transform takes ``room`` points.

        Of those that fit the one with the fewest bank conflicts; the points of a butterfly lie at constant distances.
        """
        best = None
        for shift, factor in PADDINGS:
            room = int(self._padded(np.asarray(self.points - 1), shift, factor)) + 1
            if self._fits(room - self.points) and self._constant_distances(shift, factor):
                found = self._conflicts(shift, factor, room)
                if best is None or found < best[0]:
                    best = found, (shift, factor, room)
        assert best is not None
        return best[1]

    def _places(self, stage: Stage, shift: int, factor: int) -> NDArray:
        """Of each butterfly [butterflies, radix]."""
        butterfly = np.arange(self.points // stage.radix)[:, None]
        return self._padded(self.place(stage, butterfly, np.arange(stage.radix)), shift, factor)

    def _constant_distances(self, shift: int, factor: int) -> bool:
        for stage in self.stages:
            places = self._places(stage, shift, factor)
            if (places - places[:, :1] != places[:1] - places[0, 0]).any():
                return False
        return True

    def _conflicts(self, shift: int, factor: int, room: int) -> int:
        """Passes beyond the fewest, were each stage's points accessed once."""
        total = 0
        for stage in self.stages:
            banks = np.sort(self._places(stage, shift, factor)[:, 0].reshape(-1, 16) % 16, axis=1)
            longest = run = np.ones(len(banks), int)
            for i in range(1, 16):
                run = np.where(banks[:, i] == banks[:, i - 1], run + 1, 1)
                longest = np.maximum(longest, run)
            total += stage.radix * int((longest - 1).sum())
        return total


@cache
def shape_of(factors: tuple[int, ...]) -> Shape:
    """The shape of a list of factors, made once."""
    return Shape(factors)


@dataclass(frozen=True)
class Spec(float_spec.Spec):
    """Everything that is compiled into one kernel, as `float_spec.Spec` has it; the next input always comes ahead."""

    @property
    def shape(self) -> Shape:
        """What follows from the factors."""
        return shape_of(self.factors)

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        return super().name.replace("fftconv_", "fftconv_rounds_", 1)


def make_spec(plan: Plan, dtype: str = "fp32", **options: Any) -> Spec:
    """The kernel for a plan; options as of `float_spec.make_spec`. Raises ``ValueError`` when this cannot run it."""
    spec = float_spec.make_spec(plan, dtype, shape=shape_of(plan.factors), kind=Spec, **options)
    assert isinstance(spec, Spec)
    return replace(spec, ahead=True)


@lru_cache(maxsize=32)
def pairs_of_rows(factors: tuple[int, ...]) -> NDArray[np.intp]:
    """Last butterflies [2, pairs]: each beside the one that holds its mirrors, the two that are their own together."""
    count = int(np.prod(factors[:-1]))
    rows, last = np.arange(count), factors[-1]
    mirror = mirror_of(factors)[rows * last + last - 1] // last
    own = np.flatnonzero(mirror == rows)
    first = rows[(rows < mirror) | (rows == 0)]
    return np.stack([first, np.where(first == 0, own[1], mirror[first])])


@lru_cache(maxsize=32)
def places_of_pairs(factors: tuple[int, ...]) -> NDArray[np.int32]:
    """Words [6, pairs]: where both butterflies begin, then of each the two from which its mirrors' distances count.

    Those are as in `float_spec.mirrors`.
    """
    shape, rows = shape_of(factors), pairs_of_rows(factors)
    last = factors[-1]
    begin = shape.at(last * rows)
    start = shape.at(mirror_of(factors)[last * rows + last - 1])
    of_zero = np.where(rows == 0, -shape.at(last - 1), start)
    starts = np.stack([start, of_zero], axis=1).reshape(4, -1)
    return (2 * np.concatenate([begin, starts])).astype(np.int32).reshape(-1)


def spectrum_layout(plan: Plan, dtype: str = "fp32") -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """Bins [1 or 2, positions] and weights in the order in which the kernel reads a spectrum; as many tiles.

    Two points at once [radix / 2, butterflies, 2]; with half-length packing A and B of one [2, radix, pairs, 2].
    """
    shape, last = shape_of(plan.factors), plan.factors[-1]
    order = digit_order_of(plan.factors)
    if plan.packing != "half":
        order = order.reshape(-1, last // 2, 2).swapaxes(0, 1).reshape(1, -1)
        return order, np.full(order.shape, 1 / shape.points, np.complex128), order.size
    slot = last * pairs_of_rows(plan.factors)[:, None, :] + np.arange(last)[:, None]  # [2, radix, pairs]
    return weights_of_halves(order[slot], shape.points)


def operand_key(spec: Spec) -> tuple:
    """What the constant buffers depend on."""
    return (spec.factors, spec.mirrored)


def operands(factors: tuple[int, ...], mirrored: bool) -> tuple[NDArray, ...]:
    """The constant buffers, in the order of the kernel's arguments: twiddles, and where pairs of butterflies lie."""
    places = places_of_pairs(factors) if mirrored else np.zeros(1, np.int32)
    return float_spec.twiddles_of(shape_of(factors).stages), places
