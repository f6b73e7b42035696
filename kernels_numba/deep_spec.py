"""What is compiled into one order-4 kernel: shapes, masks, gates, and how a block is made up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from kernels_numba.device import LARGEST_SHARED_BYTES
from monarch import Plan

FACTORS = ((16, 8, 16, 16),)
"""The factors this kernel takes: the 8 stands second, because N1 frequencies k1 are dealt to as many warps,"""
PACKINGS = {"pair": FACTORS, "half": FACTORS}
"""and with which packing."""
STRIP = 32


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
    ring: int = 4
    half: bool = False
    """One real sequence of 2 N samples as a complex one of N, not two real ones of N."""

    @property
    def warps(self) -> int:
        """Warps of a block: each has one k1, and one n3."""
        return self.n1

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
        """Strips of 32 columns of the outer stage that a warp has: two n2 of one n3 each."""
        return self.n2 // 2

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
        factors = f"{self.n1}x{self.n2}x{self.n3}x{self.n4}"
        shape = f"{factors}{'_half' if self.half else ''}_in{self.rows_in}_out{self.rows_out}"
        guard = ("_guarded" if self.guarded else "") + ("_scaled" if self.scaled else "")
        return f"fftconv_{shape}_{self.sequences}{self.dtype}_v{self.halves}{gates}{guard}_r{self.ring}"

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
        """One strip of two sequences, and of their input gates."""
        return 2 * self.rows_in * STRIP // 2 * (2 if self.pregate else 1)

    @property
    def factor_words(self) -> int:
        """DFT factors (real, half precision; outer ones of real and imaginary parts), inner and middle twiddles."""
        outer, inner = 4 * self.n1 * (self.rows_in + self.rows_out), self.n3**2 + 2 * self.n4**2
        return (outer + inner) // 2 + 2 * self.inner + 2 * self.q

    @property
    def constant_places(self) -> tuple[int, ...]:
        """Words to F1, F1 inverse, F3, F4, F4 inverse, and to inner and middle twiddles, each forward and inverse."""
        outer, fourth = (2 * self.n1 * rows for rows in (self.rows_in, self.rows_out)), self.n4**2 // 2
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

    Raises ``ValueError`` when this kernel cannot run the plan.
    """
    if plan.packing not in PACKINGS or plan.factors not in PACKINGS[plan.packing]:
        raise ValueError(
            f"plan: factors {plan.factors} with packing {plan.packing!r} are not for the order-4 kernel; accepted are "
            f"{' and '.join(map(str, FACTORS))} with packing 'pair' or 'half'"
        )
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    if guarded is None:
        guarded = signal < plan.n or wanted < plan.n
    n1 = plan.factors[0]
    spec = Spec(
        *plan.factors,
        dtype,
        n1 // (2 if signal <= plan.n // 2 else 1),
        n1 // (2 if wanted <= plan.n // 2 else 1),
        halves,
        guarded,
        pregate,
        postgate,
        scaled,
        half=plan.packing == "half",
        **choices,
    )
    for ring in range(spec.ring, 0, -1):
        spec = replace(spec, ring=ring)
        if spec.shared_bytes <= shared_limit:
            break
    return spec


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return 1
