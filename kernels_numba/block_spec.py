"""What is compiled into one order-3 kernel: shapes, masks, gates, and how a block is made up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Any

from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.rounded_stages import in_halves
from monarch import Plan

INNER_FACTORS = (16, 32)
INNER = tuple((n2, n3) for n2 in INNER_FACTORS for n3 in INNER_FACTORS)
LARGEST_FIRST, MOST_POINTS = 96, 32768
"""What fits on chip: factors and strips, whose size is that of the first factor, and the exchange."""
STRIP = 32
STRIP_WORDS = 72
"""Words of one strip in the second exchange: 32 columns, two parts, and padding against bank conflicts."""

TUNED: dict[tuple[int, ...], tuple[int, int, int, bool]] = {
    (8, 16, 16): (3, 4, 2, True),
    (16, 16, 16): (2, 8, 2, True),
    (16, 16, 32): (3, 4, 1, False),
    (16, 32, 16): (3, 4, 1, False),
    (32, 16, 16): (3, 4, 1, False),
    (16, 32, 32): (2, 4, 1, False),
    (32, 16, 32): (2, 4, 1, False),
    (32, 32, 16): (2, 4, 1, False),
    (32, 32, 32): (1, 8, 1, False),
    (48, 16, 16): (2, 4, 1, False),
    (48, 16, 32): (1, 8, 1, False),
    (48, 32, 16): (1, 8, 1, False),
}
"""By factors: blocks per SM, warps per block, strips copied ahead, outer twiddles in shared memory. Measured fastest
on an H200, without gates."""

UNTUNED = (1, 8, 1, False)
"""The same for other factors."""

AHEAD = ((8, 16, 16), (16, 16, 16), (32, 16, 16), (32, 16, 32), (32, 32, 16))
"""Factors whose kernels load the spectrum of pairs a step ahead: where there are registers, and it gains anything."""

TURNED: dict[tuple[int, ...], tuple[int, int, int, bool]] = {
    (8, 16, 16): (4, 4, 1, False),
    (16, 16, 16): (4, 4, 1, False),
    (16, 16, 32): (2, 8, 1, False),
    (16, 32, 16): (2, 4, 1, False),
    (24, 16, 16): (2, 4, 1, False),
    (32, 16, 32): (1, 8, 2, False),
}
"""As `TUNED`, with right-angle packing."""
TURNED_AHEAD = ((24, 16, 16), (16, 32, 32), (32, 16, 32), (32, 32, 16))
"""As `AHEAD`."""
LEAN = ((24, 16, 16), (24, 32, 16), (32, 16, 32), (32, 32, 16))
"""Factors whose kernels for right-angle packing are leaner; see `Spec.lean`. Measured: others gain nothing by it."""

FACTORS = (
    (8, 16, 16),
    *(
        (n1, n2, n3)
        for n2, n3 in INNER
        for n1 in range(16, LARGEST_FIRST + 1, 16)
        if n1 * n2 * n3 <= MOST_POINTS
    ),
)
"""The factors this kernel takes,"""
TOGETHER_POINTS = 256
"""Inner convolutions of at most so many points are done two at a time."""
RIGHT_ANGLE = (
    (8, 16, 16),
    *((n1, *inner) for n1 in (16, 24, 32, 48) for inner in INNER if 2 * n1 * prod(inner) <= MOST_POINTS),
)
PACKINGS = {"pair": FACTORS, "half": tuple(f for f in FACTORS if f[0] >= 16), "right-angle": RIGHT_ANGLE}
"""and with which packing."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel; ``ring`` is how many strips are copied ahead of the work."""

    n1: int
    n2: int
    n3: int
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
    warps: int = 8
    ring: int = 2
    tables_shared: bool = False
    """The outer twiddles are kept in shared memory, not read through the caches."""
    ahead: bool = False
    """The spectrum of a pair of k1 is loaded while the pair before it, or the outer stage, is worked on."""
    lean: bool = False
    """Two inner convolutions at a time in fewer instructions: outputs and mirrors are added up in halves, and two k1
    are read from the exchange while the two before them are worked on. (For errors that leave room: half signals.)"""
    windows: bool = False
    """Sequences are overlapping windows of one row."""
    half: bool = False
    """One real sequence of 2 N samples as a complex one of N, not two real ones of N."""
    right_angle: bool = False
    """Two real sequences of at most N / 2 samples as complex ones of N / 2 each: the N1 k1 are those of both."""
    kept: tuple[int, ...] = ()
    """Of each axis, frequencies that are transformed to and from, if the spectrum is zero at others; all but of N3."""
    marked: int = 0
    """Rows of marks after the constants, one for each channel in turn, that say which k1 are zero; 0: none are."""

    def __post_init__(self) -> None:
        if self.strips % self.warps or self.n1 // 2 % self.warps:
            raise ValueError(
                f"warps: {self.strips} strips and {self.n1 // 2} pairs of k1 do not divide among {self.warps}"
            )

    @property
    def rounded(self) -> bool:
        """Whether inner products are rounded before outputs and mirrors are added up; see `rounded_stages`."""
        return (self.right_angle and self.lean) or in_halves(self)

    @property
    def kept3(self) -> int:
        """Of N3 the k3 that are kept."""
        return self.kept[2] if self.kept else self.n3

    @property
    def q(self) -> int:
        """Points of the inner transform, Q = N2 N3."""
        return self.n2 * self.n3

    @property
    def n(self) -> int:
        """Points of the complex transform."""
        return self.n1 * self.q

    @property
    def gates_after(self) -> bool:
        """Whether a strip of input gates is copied when its sequences are in registers, and not ahead with them.

        Measured on an H200: from 8192 points on the room that it saves is worth more than copies that are ahead.
        """
        return self.n > 4096

    @property
    def row_stride(self) -> int:
        """Points from one n2 to the next."""
        return self.n3

    @property
    def beside(self) -> bool:
        """Whether the two k1 that a warp works on together are not neighbours in the outer stage's slots.

        They are a k1 and its mirror (half-length packing), or the k1 of two sequences (right-angle packing).
        """
        return self.half or self.right_angle

    @property
    def together(self) -> bool:
        """Whether two inner convolutions are done at a time: two chains, which share their constants."""
        return self.lean or self.q <= TOGETHER_POINTS

    @property
    def unit(self) -> int:
        """Samples of one sequence in one point."""
        return 2 if self.half else 1

    @property
    def fold(self) -> int:
        """How many parts of the columns share a product of the outer stage: a factor of 8 fills half of one."""
        return max(1, 16 // self.n1)

    @property
    def rows(self) -> int:
        """Rows of the outer stage's matrix: n1 of every part."""
        return self.n1 * self.fold

    @property
    def lanes(self) -> int:
        """Outputs of the outer stage in one row group of one part."""
        return min(8, self.n1 // 2)

    @property
    def strips(self) -> int:
        """Strips of 32 columns (in every part)."""
        return self.q // (STRIP * self.fold)

    @property
    def rolled(self) -> bool:
        """Whether loops over strips and k1 must stay loops: large bodies, unrolled, only spill.

        Measured on an H200: up to 8192 points without gates the compiler's own choice is 3 to 9 % faster.
        """
        return self.n > 8192 or self.n1 < 16 or self.half or self.pregate or self.postgate

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        gates += "_twice" if self.twice else ""
        packed = "_half" * self.half + "_right" * self.right_angle + "_lean" * self.lean
        shape = f"{self.n1}x{self.n2}x{self.n3}{packed}_in{self.rows_in}_out{self.rows_out}"
        guard = "_guarded" * self.guarded + "_scaled" * self.scaled + "_o" * self.overlap
        guard += ("_windows" if self.windows else "") + (f"_marked{self.marked}" if self.marked else "")
        guard += f"_kept{self.kept3}" if self.kept else ""
        return f"fftconv_{shape}_{self.sequences}{self.dtype}_v{self.halves}{gates}{guard}_w{self.warps}"

    # ---- shared memory, in words ---------------------------------------------------------------------------
    @property
    def row_pair_words(self) -> int:
        """Two n2 of one k1 in the first exchange: N3 complex pairs, and padding against bank conflicts."""
        return 2 * self.n3 + 8

    @property
    def row_words(self) -> int:
        """One k1 in the first exchange: from it to the next, of a pair (half-length packing) or of all."""
        return self.n2 // 2 * self.row_pair_words + (0 if self.beside else 4)

    @property
    def pair_words(self) -> int:
        """A pair of k1, in both exchanges. Stores to the first go to neighbouring k1 at once, or (beside) pairs."""
        return 2 * self.row_words + (4 if self.beside else 0)

    @property
    def second_shift(self) -> int:
        """In the second exchange pair i starts so much later (i mod 4) times: four are read at once.

        They must be 8 words apart, modulo 16 (a pair is 8, or where k1 are beside each other 4 and this shift).
        """
        return 4 if self.beside else 0

    @property
    def exchange_words(self) -> int:
        """The first exchange; the second takes the room of each pair of k1."""
        return self.n1 // 2 * self.pair_words

    @property
    def stage_words(self) -> int:
        """One strip of two sequences, and of their input gates, unless they come after it into the same place."""
        return 2 * self.rows_in * STRIP // 2 * (2 if self.pregate and not self.gates_after else 1)

    @property
    def constant_places(self) -> tuple[int, ...]:
        """Words to F1, F2, F3, F3 inverse, F2 inverse, F1 inverse, to inner twiddles forward and inverse; the end."""
        second, third = self.n2**2 // 2, self.n3 * self.kept3 // 2
        first, last = self.rows * self.rows_in // 2, self.rows * self.last_rows // 2
        sizes = (first, second, third, third, second, last, self.q, self.q)
        return tuple(accumulate(sizes, initial=0))

    @property
    def last_rows(self) -> int:
        """Rows of the last factor: cosines and sines, or of right-angle packing the samples, as whole tiles."""
        return 16 * -(-self.rows_out // 16) if self.right_angle else self.rows

    @property
    def factor_words(self) -> int:
        """The DFT factors and inner twiddles."""
        return self.constant_places[-1]

    @property
    def table_words(self) -> int:
        """The outer twiddles, forward and inverse; those of right-angle packing serve both sequences."""
        return self.n if self.right_angle else 2 * self.n

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        tables = self.table_words if self.tables_shared else 0
        return 4 * (
            self.factor_words + tables + self.exchange_words + self.warps * self.ring * self.stage_words
        )


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
    """The kernel for a plan, with as many warps as fit into ``shared_limit`` bytes of shared memory a block.

    Raises ``ValueError`` when this kernel cannot run the plan.
    """
    if plan.packing not in PACKINGS or plan.factors not in PACKINGS[plan.packing]:
        raise ValueError(
            f"plan: factors {plan.factors} with packing {plan.packing!r} are not for the order-3 kernel; accepted are "
            f"a multiple of 16 to {LARGEST_FIRST} and two out of {INNER_FACTORS}, {MOST_POINTS} points at most; "
            "8x16x16 with packing 'pair'; 8x16x16, or 16, 24, 32 or 48 and two of these, half as many points, with "
            "packing 'right-angle'"
        )
    n1, n2, n3 = plan.factors
    half, right_angle = plan.packing == "half", plan.packing == "right-angle"
    _, warps, ring, in_shared = block_of(plan.factors, gated=pregate or postgate, right_angle=right_angle)
    ahead = plan.factors in (TURNED_AHEAD if right_angle else AHEAD)
    choices = {"warps": warps, "ring": ring, "tables_shared": in_shared, "ahead": ahead} | choices
    if right_angle:  # the k1 of both sequences
        n1 *= 2
        choices = {"right_angle": True, "lean": plan.factors in LEAN} | choices
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    rows_in = 16 * -(-signal // (16 * n2 * n3 * (2 if half else 1))) if n1 >= 16 else 16
    rows_out = max(n1, 16) // (2 if wanted <= plan.n // 2 else 1)
    if guarded is None:
        guarded = signal < plan.n or wanted < plan.n
    spec = Spec(
        n1, n2, n3, dtype, rows_in, rows_out, halves, guarded, pregate, postgate, scaled, half=half, **choices
    )
    for smaller in ({"tables_shared": False}, {"ring": 1}, {"warps": 4}, {"warps": 2}):
        if spec.shared_bytes > shared_limit:
            spec = replace(spec, **{name: min(getattr(spec, name), value) for name, value in smaller.items()})
    return spec


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    gated, n1 = spec.pregate or spec.postgate, spec.n1 // 2 if spec.right_angle else spec.n1
    return block_of((n1, spec.n2, spec.n3), gated=gated, right_angle=spec.right_angle)[0]


def block_of(
    factors: tuple[int, ...], *, gated: bool, right_angle: bool = False
) -> tuple[int, int, int, bool]:
    """Blocks per SM, warps, strips copied ahead, outer twiddles in shared memory."""
    blocks, warps, ring, in_shared = (TURNED if right_angle else TUNED).get(factors, UNTUNED)
    if gated:  # gates take registers; more blocks are worth more than the rest
        ring, in_shared = 1, False
        if prod(factors) * (2 if right_angle else 1) <= 8192:
            blocks, warps = min(3, blocks * warps // 4), 4
    return blocks, warps, ring, in_shared
