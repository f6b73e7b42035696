"""What is compiled into one warpgroup kernel: shapes, masks, gates, and how a block is made up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.group_operands import WARPS
from monarch import Plan

CAPABILITY = (9, 0)
"""The only compute capability with ``wgmma``."""
TUNED: dict[tuple[int, ...], tuple[int, int, bool, bool]] = {
    (64, 32): (4, 2, True, True),
    (64, 64): (3, 2, True, True),
    (64, 128): (2, 1, False, False),
}
"""By factors: pairs of sequences a block works on at once, copies that run ahead (2) or not (1), twiddles in shared
memory, and the spectrum in registers while the channel lasts."""
TURNED: dict[tuple[int, ...], tuple[int, int, bool, bool]] = {(64, 32): (3, 2, True, True)}
"""The same, with right-angle packing."""
FACTORS = tuple(TUNED)
"""The factors this kernel takes,"""
PACKINGS = {"pair": FACTORS, "right-angle": tuple(TURNED)}
"""and with which packing."""
CORE_WORDS = 32
"""An 8 x 8 core matrix."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel; fields as in `fused_warp.Spec`.

    ``teams`` of four warps work side by side and share the constants.
    """

    n1: int
    n2: int
    dtype: str
    rows_in: int
    rows_out: int
    halves: int = 8
    guarded: bool = False
    pregate: bool = False
    postgate: bool = False
    scaled: bool = False
    sequences: str = ""
    """What sequences are stored in, if not in the type of the products: "fp32"."""
    twice: bool = False
    """The result is stored twice, under two gates."""
    overlap: bool = False
    """The launch may begin while the one before it ends (compute capability 9)."""
    teams: int = 3
    ring: int = 2
    tables_shared: bool = True
    keep: bool = True
    right_angle: bool = False
    """Two real sequences of at most N / 2 samples as complex ones of N / 2 = N1 N2 points each."""

    @property
    def n(self) -> int:
        """Points of the complex transform."""
        return self.n1 * self.n2

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return WARPS * self.teams

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        gates += "_twice" if self.twice else ""
        shape = f"{self.n1}x{self.n2}{'_right' * self.right_angle}_in{self.rows_in}_out{self.rows_out}"
        guard = "_guarded" * self.guarded + "_scaled" * self.scaled + "_o" * self.overlap
        return (
            f"fftconv_group_{shape}_{self.sequences}{self.dtype}_v{self.halves}{gates}{guard}_t{self.teams}"
        )

    @property
    def exchange_rows(self) -> int:
        """Rows of the last contraction: k1, or with right-angle packing their real parts, then imaginary parts."""
        return 2 * self.n1 if self.right_angle else self.n1

    # ---- shared memory, in words ---------------------------------------------------------------------------
    @property
    def factor_words(self) -> int:
        """The DFT factors."""
        return (self.exchange_rows * (self.rows_in + self.n1) + 2 * self.n2**2) // 2

    @property
    def column_words(self) -> int:
        """Eight columns of a sequence's live rows as core matrices."""
        return self.rows_in // 8 * CORE_WORDS

    @property
    def pair_words(self) -> int:
        """Two sequences."""
        return 2 * (self.n2 // 8) * self.column_words

    @property
    def stage_words(self) -> int:
        """One buffer of a team: two sequences, and their input gates."""
        return self.pair_words * (2 if self.pregate else 1)

    @property
    def team_words(self) -> int:
        """A team's buffers, and its exchange."""
        return self.ring * self.stage_words + self.exchange_rows * self.n2

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        tables = 2 * self.n if self.tables_shared else 0
        return 4 * (self.factor_words + tables + self.teams * self.team_words)


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
    """The kernel for a plan, with as much as fits into ``shared_limit`` bytes of shared memory a block.

    Raises ``ValueError`` when this kernel cannot run the plan.
    """
    if plan.factors not in PACKINGS.get(plan.packing, ()):
        raise ValueError(
            f"plan: factors {plan.factors} with packing {plan.packing!r} are not for the warpgroup kernel; accepted "
            f"are {FACTORS} with packing 'pair', {PACKINGS['right-angle']} with 'right-angle'"
        )
    n1, n2 = plan.factors
    right_angle = plan.packing == "right-angle"
    settings = (TURNED if right_angle else TUNED)[n1, n2]
    tuned = zip(("teams", "ring", "tables_shared", "keep"), settings, strict=True)
    choices = dict(tuned) | {"right_angle": right_angle} | choices
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    rows_in = 32 * -(-signal // (32 * n2))  # each warp copies whole rows of core matrices
    rows_out = n1 // 2 if wanted <= plan.n // 2 and not right_angle else n1
    if guarded is None:
        guarded = signal < plan.n or wanted < plan.n
    spec = Spec(n1, n2, dtype, rows_in, rows_out, halves, guarded, pregate, postgate, scaled, **choices)
    while spec.shared_bytes > shared_limit:
        if spec.ring > 1 and spec.teams <= 2:
            spec = replace(spec, ring=1)
        elif spec.tables_shared:
            spec = replace(spec, tables_shared=False)
        elif spec.teams > 1:
            spec = replace(spec, teams=spec.teams - 1)
        elif spec.ring > 1:
            spec = replace(spec, ring=1)
        else:
            break
    return spec


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for: a block fills an SM."""
    return 1
