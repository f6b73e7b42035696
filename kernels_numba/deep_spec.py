"""What is compiled into one order-4 kernel: shapes, masks, gates, and how a block is made up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.rounded_stages import in_halves
from monarch import Plan

FACTORS = ((16, 8, 16, 16), (8, 8, 16, 16))
"""The factors this kernel takes: an 8 stands second, because N1 frequencies k1 are dealt to as many warps,"""
PACKINGS = {"pair": FACTORS, "half": FACTORS, "right-angle": FACTORS}
"""and with which packing."""
STRIP = 32
RESERVED_BYTES = 1024
"""Shared memory that a GPU keeps for itself of each block (compute capability 8.0 and later)."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel; ``ring`` is how many strips are copied ahead of the work.

    ``rows_in`` and ``rows_out``: rows of the input that are not zero, of the output that are wanted: all or half.
    """

    n1: int
    n2: int
    n3: int
    n4: int
    dtype: str
    rows_in: int
    rows_out: int
    halves: int = 8
    guarded: bool = False
    pregate: bool = False
    postgate: bool = False
    scaled: bool = False
    """Outputs are multiplied by their channel's scale."""
    sequences: str = ""
    """What sequences are stored in, if not in the type of the products: "fp32"."""
    twice: bool = False
    """The result is stored twice, under two gates."""
    overlap: bool = False
    """The launch may begin while the one before it ends (compute capability 9)."""
    ring: int = 4
    middle_shared: bool = True
    """The inverse middle twiddles are kept in shared memory, not read through the caches."""
    half: bool = False
    """One real sequence of 2 N samples as a complex one of N, not two real ones of N."""
    right_angle: bool = False
    """One real sequence of at most N samples as a complex one of N, turned; only its real parts are read and stored."""
    early: bool = False
    """A warp's own tables are loaded before the barrier in front of their use."""
    marked: int = 0
    """Rows of marks after the constants, one for each channel in turn, that say which k2 are zero; 0: none are."""

    rounded = property(in_halves)

    @property
    def warps(self) -> int:
        """Warps of a block: each has one k1, and one n3 or two."""
        return self.n1

    @property
    def shares(self) -> int:
        """How many n3 a warp has in the outer stages."""
        return self.n3 // self.warps

    @property
    def inner(self) -> int:
        """Points of the inner transform, R = N3 N4."""
        return self.n3 * self.n4

    @property
    def q(self) -> int:
        """Points of one k1, Q = N2 N3 N4."""
        return self.n2 * self.inner

    @property
    def n(self) -> int:
        """Points of the complex transform."""
        return self.n1 * self.q

    @property
    def unit(self) -> int:
        """Samples of one sequence in one point."""
        return 2 if self.half else 1

    @property
    def strips(self) -> int:
        """Strips of 32 columns of the outer stage that a warp has of one n3: two n2 each."""
        return self.n2 // 2

    @property
    def contracted(self) -> int:
        """Rows of the first contraction: those that are live, and zeros where they do not fill a tile."""
        return max(16 if self.right_angle else 8, self.rows_in)

    @property
    def parts(self) -> int:
        """Numbers of a row that are contracted, and that come out: real and imaginary parts, or real ones alone."""
        return 1 if self.right_angle else 2

    @property
    def stored(self) -> int:
        """Rows of the last factor's results, as whole tiles."""
        return 16 * -(-self.parts * self.rows_out // 16)

    @property
    def both(self) -> bool:
        """Whether one copy of all lanes brings the rows of both sequences of a pair."""
        return self.halves > self.unit * self.rows_in

    # What the pieces of the outer stage ask for; see `block_spec.Spec`.
    fold = 1
    lanes = 8

    @property
    def rows(self) -> int:
        """Rows of the outer stage's matrix."""
        return self.n1

    @property
    def row_stride(self) -> int:
        """Points from one n2 to the next."""
        return self.inner

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        gates += "_twice" if self.twice else ""
        factors = f"{self.n1}x{self.n2}x{self.n3}x{self.n4}"
        packed = "_half" * self.half + "_right" * self.right_angle
        shape = f"{factors}{packed}_in{self.rows_in}_out{self.rows_out}"
        guard = "_guarded" * self.guarded + "_scaled" * self.scaled + "_o" * self.overlap
        cached = ("" if self.middle_shared else "_cached") + (f"_marked{self.marked}" if self.marked else "")
        return (
            f"fftconv_{shape}_{self.sequences}{self.dtype}_v{self.halves}{gates}{guard}_r{self.ring}{cached}"
        )

    # ---- shared memory, in words ---------------------------------------------------------------------------
    @property
    def tile_words(self) -> int:
        """One k2 of one k1: R complex points, and padding against bank conflicts."""
        return self.inner + 4

    @property
    def row_words(self) -> int:
        """One k1."""
        return self.n2 * self.tile_words + 4

    @property
    def exchange_words(self) -> int:
        """All points, worked on in place."""
        return self.n1 * self.row_words

    @property
    def stage_words(self) -> int:
        """One strip of two sequences (of one of twice the samples, or only one), and of their input gates."""
        return self.parts * self.rows_in * STRIP // 2 * (2 if self.pregate else 1)

    @property
    def factor_words(self) -> int:
        """What is kept in shared memory: DFT factors (real, half precision), inner and middle twiddles."""
        return self.constant_places[-1] + (self.q if self.middle_shared else 0)

    @property
    def constant_places(self) -> tuple[int, ...]:
        """Words to F1, F1 inverse, F3, F4, F4 inverse, and to inner and middle twiddles, each forward and inverse."""
        outer = (self.n1 * rows for rows in (self.parts * self.contracted, self.stored))
        fourth = self.n4**2 // 2
        sizes = (*outer, self.n3**2 // 2, fourth, fourth, self.inner, self.inner, self.q)
        return tuple(accumulate(sizes, initial=0))

    @property
    def table_places(self) -> tuple[int, ...]:
        """Words from the outer twiddles, which come first, to their inverse, middle factors, inverse ones, mirrors."""
        twiddles, factors = self.n1 * self.inner, self.n1 * 2 * self.n2**2
        return tuple(accumulate((twiddles, factors, factors), initial=twiddles))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.factor_words + self.exchange_words + self.warps * self.ring * self.stage_words)


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
    """The kernel for a plan, with as many strips copied ahead as fit into ``shared_limit`` bytes of shared memory.

    Blocks of 8 warps leave room for two of them on an SM, if they can. Raises ``ValueError`` when this kernel cannot
    run the plan.
    """
    if plan.packing not in PACKINGS or plan.factors not in PACKINGS[plan.packing]:
        raise ValueError(
            f"plan: factors {plan.factors} with packing {plan.packing!r} are not for the order-4 kernel; accepted are "
            f"{' and '.join(map(str, FACTORS))} with packing 'pair', 'half' or 'right-angle'"
        )
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    if guarded is None:
        guarded = signal < plan.n or wanted < plan.n
    n1, right_angle = plan.factors[0], plan.packing == "right-angle"
    rows = [n1 // (2 if samples <= plan.n // 2 and not right_angle else 1) for samples in (signal, wanted)]
    # Measured: pairs of 32768 samples 3 % faster, one sequence of 65536 2 % slower, 16384 as fast.
    choices = {"early": plan.packing == "pair" and n1 == 16} | choices
    spec = Spec(
        *plan.factors,
        dtype,
        rows[0],
        max(8, rows[1]),
        halves,
        guarded,
        pregate,
        postgate,
        scaled,
        half=plan.packing == "half",
        right_angle=right_angle,
        **choices,
    )
    if "ring" in choices:
        return spec
    blocks = min_blocks(spec)
    for limit in ((shared_limit + RESERVED_BYTES) // blocks - RESERVED_BYTES, shared_limit):
        for ring, middle_shared in rings(spec):
            spec = replace(spec, ring=ring, middle_shared=middle_shared)
            if spec.shared_bytes <= limit:
                return spec
    return spec


def rings(spec: Spec) -> list[tuple[int, bool]]:
    """What is tried in turn: strips copied ahead, at most an item's, and whether inverse middle twiddles are shared."""
    most = spec.shares * spec.strips
    return [*((ring, True) for ring in range(most, 1, -1)), (2, False), (1, True), (1, False)]


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for: 16 warps."""
    return 16 // spec.warps
