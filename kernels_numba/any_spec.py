"""What is compiled into one kernel of any factors: shapes, masks, gates, and how a block is made up.

A transform of P = N1 .. Np points lies in shared memory, a word a point, as rows of Np points. Stage i < p contracts
n_i on strips of 16 columns, which lie in one row; the last stage contracts along 16 rows, a unit. Products come in
tiles of 8 points, to which the first factor of three is filled up with zeros, so that may be any number; the others
are multiples of 16, by which columns and rows are dealt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Any

from kernels_numba import block_spec, deep_spec, group_spec, warp_spec
from kernels_numba.device import LARGEST_SHARED_BYTES
from monarch import Plan

LARGEST_FIRST = 432
"""A strip's points of a stage are held in registers, 16 for 32 of a factor; of the first stage nothing else,"""
LARGEST = 256
"""of a middle one,"""
LARGEST_LAST = 128
"""and a unit's, before and after the last stage."""
PADDING = 4
"""Words after each row, and after what each further factor counts: see docs/kernels.md."""
HELD = 32
"""Factors up to this size stay in registers while a warp does its strips,"""
HELD_LAST = 16
"""and the last one up to this."""
LATE = 128
"""Where a strip holds more points of the first stage, the next item's are loaded when this one's are done with."""
ORDERS = (2, 3)
"""Four factors of 16 are more points than fit."""


def tiles_of(factor: int) -> int:
    """Tiles of 8 points that a factor fills."""
    return -(-factor // 8)


def _lists() -> Iterator[tuple[int, ...]]:
    """All lists that fit, shortest factors first."""
    for last in range(16, LARGEST_LAST + 1, 16):
        for first in range(16, LARGEST_FIRST + 1, 16):
            if _fits((first, last)):
                yield first, last
        for middle in range(16, LARGEST + 1, 16):
            for first in range(2, LARGEST_FIRST + 1):
                if not _fits((first, middle, last)):
                    break
                yield first, middle, last


def _fits(factors: tuple[int, ...]) -> bool:
    return 4 * Layout(factors).exchange_words <= LARGEST_SHARED_BYTES


@dataclass(frozen=True)
class Layout:
    """Where points lie: N1 x .. x Np, each index a stride of words apart, and of points of the array."""

    factors: tuple[int, ...]

    @property
    def padding(self) -> int:
        """Words after each row: none where three factors fit only without, at the price of bank conflicts."""
        _, *middle, last = self.factors
        padded = self._words((middle[0] * (last + PADDING) + PADDING) if middle else last + PADDING)
        return PADDING if not middle or 4 * padded <= LARGEST_SHARED_BYTES else 0

    @property
    def strides(self) -> tuple[int, ...]:
        """Words from an index to the next, by factor."""
        _, *middle, last = self.factors
        row = last + self.padding
        return (*(f * row + PADDING for f in middle), row, 1)

    @property
    def steps(self) -> tuple[int, ...]:
        """The same in points of the array, without padding."""
        return tuple(prod(self.factors[i + 1 :]) for i in range(len(self.factors)))

    @property
    def exchange_words(self) -> int:
        """All points, and the first factor's zeros."""
        return self._words(self.strides[0])

    def _words(self, stride: int) -> int:
        return 8 * tiles_of(self.factors[0]) * stride


ALL = tuple(_lists())
ACCEPTED = (
    f"any N1 x N2 x N3 whose last two factors are multiples of 16, to {LARGEST} and {LARGEST_LAST}, and N1 x N2 of "
    f"multiples of 16, to {LARGEST_FIRST} and {LARGEST_LAST}, with points that fit into the shared memory of a block"
)
"""In words, for messages."""
_FASTER = (warp_spec, group_spec, block_spec, deep_spec)
PACKINGS = {
    packing: tuple(
        f
        for f in ALL
        if all(f not in m.PACKINGS.get(packing, ()) for m in _FASTER)
        and (packing != "half" or Layout(f).padding)  # those are longer than any that is wanted
    )
    for packing in ("pair", "half", "complex")
}
"""The plans that this kernel runs: those that no faster one does."""
FACTORS = ALL
"""The factors that it takes."""
_ALL = frozenset(ALL)


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel.

    ``rows_in`` and ``rows_out``: n1 that can hold signal, and that are wanted, rounded up to a product's tile of 8.
    """

    factors: tuple[int, ...]
    dtype: str
    rows_in: int
    rows_out: int
    packing: str = "pair"
    halves: int = 8
    guarded: bool = False
    pregate: bool = False
    postgate: bool = False
    scaled: bool = False
    """Outputs are multiplied by their channel's scale."""
    sequences: str = ""
    """What sequences are stored in, if not in the type of the products: "fp32" (of complex ones, each part)."""
    twice: bool = False
    """The result is stored twice, under two gates."""
    warps: int = 4
    cached: tuple[int, ...] = ()
    """Factors that are read through the caches, not kept in shared memory, the largest; see `matrices`."""

    @property
    def layout(self) -> Layout:
        """Where points lie."""
        return Layout(self.factors)

    @property
    def points(self) -> int:
        """P."""
        return prod(self.factors)

    @property
    def half(self) -> bool:
        """Half-length packing: one real sequence of 2 P samples."""
        return self.packing == "half"

    @property
    def single(self) -> bool:
        """Whether an item is one sequence, whose neighbours are a point's parts; else a pair of real ones."""
        return self.packing != "pair"

    @property
    def n(self) -> int:
        """Transform length N, in samples."""
        return self.points * (2 if self.half else 1)

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        gates += "_twice" if self.twice else ""
        shape = "x".join(map(str, self.factors)) + ("" if self.packing == "pair" else f"_{self.packing}")
        guard = ("_guarded" if self.guarded else "") + ("_scaled" if self.scaled else "")
        cached = "_cached" if self.cached else ""
        return (
            f"fftconv_any_{shape}_in{self.rows_in}_out{self.rows_out}_{self.sequences}{self.dtype}_v{self.halves}"
            f"{gates}{guard}_w{self.warps}{cached}"
        )

    # ---- shared memory, and the constants, in words -------------------------------------------------------------
    @property
    def matrices(self) -> dict[int, int]:
        """Words of each factor, by size: of stages before the last, and of the last one under its negative."""
        sizes = sorted((*dict.fromkeys(self.factors[:-1]), -self.factors[-1]), key=abs)
        return {factor: 128 * tiles_of(abs(factor)) * stored_tiles(abs(factor)) for factor in sizes}

    @property
    def constant_places(self) -> dict[int, int]:
        """Where each begins in the buffer of constants; in shared memory those that are kept follow the points."""
        starts = accumulate(self.matrices.values(), initial=0)
        return dict(zip(self.matrices, starts, strict=False))

    @property
    def shared_words(self) -> int:
        """Words of the factors in shared memory."""
        return sum(words for factor, words in self.matrices.items() if factor not in self.cached)

    @property
    def table_places(self) -> dict[str, int]:
        """Where twiddles begin in the buffer of tables: of strips forward, by stage, of middle ones back, of units.

        And where the places of units begin, which follow.
        """
        first, *middle, last = self.factors
        row = prod(middle) * last
        sizes = {"first": 8 * tiles_of(first) * row}
        if middle:
            sizes |= {"middle": row, "back": self.points}
        sizes |= {"last": self.factors[-2] * last}
        return dict(zip((*sizes, "places"), accumulate(sizes.values(), initial=0), strict=True))

    @property
    def one_table(self) -> tuple[bool, bool]:
        """Whether all strips of the middle stage have the same twiddles forward, and all units; lanes keep those."""
        *first, before, last = self.factors
        return bool(first) and last == 16 and before <= HELD, bool(first) and before == 16 and not self.half

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.layout.exchange_words + self.shared_words)


def stored_tiles(factor: int) -> int:
    """Contraction tiles of a factor as its operand has them: two are read together."""
    return tiles_of(factor) + tiles_of(factor) % 2


def make_spec(
    plan: Plan,
    dtype: str,
    *,
    halves: int = 8,
    guarded: bool | None = None,
    pregate: bool = False,
    postgate: bool = False,
    scaled: bool = False,
    shared_limit: int = LARGEST_SHARED_BYTES,
    **choices: Any,
) -> Spec:
    """The kernel for a plan, with as many factors in ``shared_limit`` bytes of shared memory as fit, the largest last.

    Raises ``ValueError`` when this kernel cannot run the plan.
    """
    if plan.factors not in _ALL:
        raise ValueError(f"plan: factors {plan.factors} are not for this kernel; accepted are {ACCEPTED}")
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    row = plan.n // plan.factors[0]
    rows_in, rows_out = (8 * -(-length // (8 * row)) for length in (signal, wanted))
    if guarded is None:
        guarded = signal < plan.n or wanted < plan.n
    guarded |= plan.factors[0] % 8 > 0  # what fills the first factor up lies beyond the sequence
    spec = Spec(
        plan.factors, dtype, rows_in, rows_out, plan.packing, halves, guarded, pregate, postgate, scaled
    )
    for factor in reversed(spec.matrices):
        if spec.shared_bytes > shared_limit:
            spec = replace(spec, cached=(*spec.cached, factor))
    return replace(spec, **({"warps": _warps(spec)} | choices))


def strips(spec: Spec) -> tuple[int, ...]:
    """Pieces of work of each stage: strips of 16 columns, and units of 16 rows."""
    return tuple(spec.points // (16 * f) for f in spec.factors)


def _most_warps(spec: Spec) -> int:
    """Warps that an SM's registers should hold: factors of 16 want 80 a thread, to 32 128, to 96 168, larger ones 255.

    A thread holds a strip's points, or a unit's before and after the last stage. Measured on an H200.
    """
    held = max(*spec.factors[:-1], 2 * spec.factors[-1])
    if held > 32:
        return 12 if held <= 96 else 8
    return 24 if max(spec.factors) <= 16 else 16


def _warps(spec: Spec) -> int:
    """Warps of a block: blocks side by side fill an SM's registers, and few warps are idle."""
    most, fit = _most_warps(spec), LARGEST_SHARED_BYTES // (spec.shared_bytes + 1024)

    def time(warps: int) -> float:
        rounds = (-(-count // warps) for count in strips(spec))
        resident = warps * max(1, min(most // warps, fit))
        return sum(n * warps * f for n, f in zip(rounds, spec.factors, strict=True)) / resident

    return min(range(1, most + 1), key=lambda warps: (time(warps), warps))


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return max(1, _most_warps(spec) // spec.warps)


def registers(spec: Spec) -> int:
    """Registers that a thread may have."""
    return min(255, 65536 // (32 * spec.warps * min_blocks(spec)))
