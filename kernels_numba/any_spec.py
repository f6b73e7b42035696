"""What is compiled into one kernel of any factors: shapes, masks, gates, and how a block is made up.

A transform of P = N1 .. Np points lies in shared memory, a word a point, as rows of Np points. Stage i < p contracts
n_i on strips of 16 columns, which lie in one row; the last stage contracts along 16 rows, a unit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, product
from math import prod
from typing import Any

from kernels_numba import block_spec, deep_spec, group_spec, warp_spec
from kernels_numba.device import LARGEST_SHARED_BYTES
from monarch import Plan

LARGEST = 256
"""A strip's points of a stage are held in registers, 16 for 32 of a factor;"""
LARGEST_LAST = 128
"""and a unit's, before and after the last stage."""
PADDING = 4
"""Words after each row, and after what each further factor counts: see docs/kernels.md."""
HELD = 32
"""Factors up to this size stay in registers while a warp does its strips,"""
HELD_LAST = 16
"""and the last one up to this."""
ORDERS = (2, 3)
"""Four factors of 16 are more points than fit."""


def _lists() -> Iterator[tuple[int, ...]]:
    for order in ORDERS:
        *most, last = (LARGEST // 16,) * (order - 1) + (LARGEST_LAST // 16,)
        for head in product(*(range(1, m + 1) for m in most)):
            for tail in range(1, last + 1):
                factors = tuple(16 * x for x in (*head, tail))
                if 4 * Layout(factors).exchange_words <= LARGEST_SHARED_BYTES:
                    yield factors
                else:
                    break


@dataclass(frozen=True)
class Layout:
    """Where points lie: N1 x .. x Np, each index a stride of words apart, and of points of the array."""

    factors: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """Words from an index to the next, by factor."""
        found = [1]
        for factor in reversed(self.factors[1:]):
            found.insert(0, factor * found[0] + PADDING)
        return tuple(found)

    @property
    def steps(self) -> tuple[int, ...]:
        """The same in points of the array, without padding."""
        return tuple(prod(self.factors[i + 1 :]) for i in range(len(self.factors)))

    @property
    def exchange_words(self) -> int:
        """All points."""
        return self.factors[0] * self.strides[0]


ALL = tuple(_lists())
ACCEPTED = (
    f"any 2 or 3 multiples of 16, to {LARGEST} and the last one to {LARGEST_LAST}, whose points fit into the shared "
    "memory of a block"
)
"""In words, for messages."""
_FASTER = (warp_spec, group_spec, block_spec, deep_spec)
PACKINGS = {
    packing: tuple(f for f in ALL if all(f not in m.PACKINGS.get(packing, ()) for m in _FASTER))
    for packing in ("pair", "half", "complex")
}
"""The plans that this kernel runs: those that no faster one does."""
FACTORS = ALL
"""The factors that it takes."""


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
        return {factor: 2 * factor * factor for factor in sizes}

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
    def table_places(self) -> tuple[int, ...]:
        """Where each stage's twiddles begin in the buffer of tables, and what follows them."""
        sizes = (prod(self.factors[i:]) for i in range(len(self.factors) - 1))
        return tuple(accumulate(sizes, initial=0))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.layout.exchange_words + self.shared_words)


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
    if plan.factors not in ALL:
        raise ValueError(f"plan: factors {plan.factors} are not for this kernel; accepted are {ACCEPTED}")
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    row = plan.n // plan.factors[0]
    rows_in, rows_out = (8 * -(-length // (8 * row)) for length in (signal, wanted))
    if guarded is None:
        guarded = signal < plan.n or wanted < plan.n
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
    """Warps that an SM's registers should hold: factors of 16 want 80 a thread, up to 64 128, larger ones 255.

    A thread holds a strip's points, or a unit's before and after the last stage. Measured on an H200.
    """
    held = max(*spec.factors[:-1], 2 * spec.factors[-1])
    return 24 if held <= 32 and max(spec.factors) <= 16 else 16 if held <= 64 else 8


def _warps(spec: Spec) -> int:
    """Warps of a block: enough that blocks side by side fill an SM's registers, and as few idle ones as can be."""
    most = _most_warps(spec)
    blocks = max(1, min(most, LARGEST_SHARED_BYTES // (spec.shared_bytes + 1024)))
    least = -(-most // blocks)

    def idle(warps: int) -> float:
        return sum(
            -(-count // warps) * warps * f for count, f in zip(strips(spec), spec.factors, strict=True)
        )

    return min(range(least, min(most, 2 * least) + 1), key=lambda warps: (idle(warps), warps))


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return max(1, _most_warps(spec) // spec.warps)


def registers(spec: Spec) -> int:
    """Registers that a thread may have."""
    return min(255, 65536 // (32 * spec.warps * min_blocks(spec)))
