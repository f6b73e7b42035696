"""What is compiled into one order-2 kernel: shapes, masks, gates, and how a block is made up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.rounded_stages import in_halves
from monarch import Plan

FACTORS = (*((n1, 16) for n1 in range(16, 128, 16)), (16, 32), (32, 32), (48, 32))
"""The factors this kernel takes: as many points as a warp's registers hold,"""
RIGHT_ANGLE = ((16, 16), (24, 16), (32, 16), (40, 16), (48, 16), (16, 32), (24, 32))
PACKINGS = {"pair": FACTORS, "right-angle": RIGHT_ANGLE}
"""and with which packing."""
HALVES_PER_COPY = 8
TUNED: dict[int, tuple[int, int]] = {256: (16, 32), 512: (16, 16)}
"""By points: warps of a block, and warps of an SM that registers must be left for. Measured fastest on an H200, without
gates; else 4, and 12 up to 1024 points."""
TURNED: dict[tuple[int, int], tuple[int, int]] = {(32, 16): (16, 16)}
"""By factors, the same with right-angle packing, where it differs."""
HALVED: dict[int, tuple[int, int]] = {1024: (12, 12)}
"""The same, where it differs, for at most half a length of outputs."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel.

    ``rows_in`` and ``rows_out``: rows of the [N1, N2] matrix that can hold signal, and that are wanted,
    rounded up to what a tile operation can skip. ``halves``: elements per global access (8, 4, 2 or 1, by
    alignment). ``guarded``: some accesses are masked, because L < N or the last pair has one sequence only.
    """

    n1: int
    n2: int
    dtype: str
    rows_in: int
    rows_out: int
    halves: int = HALVES_PER_COPY
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
    warps: int = 4
    right_angle: bool = False
    """Two real sequences of at most N / 2 samples as complex ones of N / 2 each: the N1 rows are k1 of both."""
    kept: tuple[int, ...] = ()
    """Of each axis, frequencies that are transformed to and from, if the spectrum is zero at others."""
    taps: str = ""
    """The filters' type, if the kernel transforms them (`warp_filter`),"""
    filters: int = 0
    """and for how many of them a block has room."""

    rounded = property(in_halves)

    @property
    def n(self) -> int:
        """Transform length N."""
        return self.n1 * self.n2

    @property
    def kept1(self) -> int:
        """Of N1 the k1 that are kept."""
        return self.kept[0] if self.kept else self.n1

    @property
    def kept2(self) -> int:
        """Of N2 the k2 that are kept."""
        return self.kept[1] if self.kept else self.n2

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        gates += "_twice" if self.twice else ""
        shape = f"{self.n1}x{self.n2}{'_right' * self.right_angle}_in{self.rows_in}_out{self.rows_out}"
        guard = "_guarded" * self.guarded + "_scaled" * self.scaled + "_o" * self.overlap
        guard += f"_kept{self.kept1}x{self.kept2}" if self.kept else ""
        guard += f"_of_{self.filters}_{self.taps}" if self.taps else ""
        return f"fftconv_{shape}_{self.sequences}{self.dtype}_v{self.halves}{gates}{guard}_w{self.warps}"

    @property
    def plain(self) -> bool:
        """Whether whole sequences of halves are all that is read, two of them an item."""
        return not (self.pregate or self.guarded or self.sequences or self.right_angle)

    @property
    def parts_in(self) -> bool:
        """Whether the first factor is a real matrix of both parts, not one in cosine/sine form.

        It needs no additions and no selection of rows, for twice the products; for eight rows of input, which fill a
        product's contraction with both their parts, for as many. Measured: of 32 rows products would bind.
        """
        return self.n1 == 16 and not self.right_angle

    @property
    def lower(self) -> bool:
        """Whether only the first half of the rows is wanted; then the last factor is a matrix of both parts too."""
        return self.rows_out < self.n1 and not self.right_angle

    @property
    def served(self) -> int:
        """How many sequences have tables and a spectrum in common, and else nothing."""
        return 2 if self.right_angle else 1

    @property
    def positions(self) -> int:
        """Of a spectrum, which has a word for each."""
        return self.n // self.served

    @property
    def bins_wide(self) -> int:
        """Registers of the spectrum that a lane loads at once."""
        return 2 if self.kept1 * self.kept2 // self.served % 256 else 4

    @property
    def last_rows(self) -> int:
        """Rows of the last factor of right-angle packing, as whole tiles."""
        return _whole(self.rows_out, 16)

    @property
    def both(self) -> bool:
        """Whether one copy of all lanes brings the rows of both sequences."""
        return self.rows_in * self.n2 == 16 * self.halves

    @property
    def masked_in(self) -> bool:
        """Whether copies of the input are masked; also where the last one of a sequence would bring too much."""
        return (
            self.guarded or self.rows_in * self.n2 % (16 * self.halves if self.both else 32 * self.halves) > 0
        )

    @property
    def masked_out(self) -> bool:
        """The same of the output gate."""
        return self.guarded or self.rows_out * self.n2 % (32 * self.halves) > 0

    # ---- shared memory, in words ---------------------------------------------------------------------------
    @property
    def sequence_words(self) -> int:
        """One sequence's live rows, and room for all that a warp's copies bring."""
        return _whole(self.rows_in * self.n2, (16 if self.both else 32) * self.halves) // 2

    @property
    def output_words(self) -> int:
        """The same of its wanted rows, for the output gate."""
        return _whole(self.rows_out * self.n2, 32 * self.halves) // 2

    @property
    def first_words(self) -> int:
        """F1."""
        return self.kept1 * self.rows_in * (4 if self.parts_in else 1) // 2

    @property
    def constant_places(self) -> tuple[int, ...]:
        """Words to F1, twiddle, F2, F2 inverse, inverse twiddle, F1 inverse; the end."""
        n1, n2, kept1, kept2 = self.n1, self.n2, self.kept1, self.kept2
        last = self.last_rows * n1 // 2 if self.right_angle else n1 * kept1 // (1 if self.lower else 2)
        twiddles = kept1 * n2 // self.served
        sizes = (self.first_words, twiddles, n2 * kept2 // 2, n2 * kept2 // 2, twiddles, last)
        return tuple(accumulate(sizes, initial=0))

    @property
    def stage_words(self) -> int:
        """One buffer of a warp: two sequences, and their input gates."""
        return 2 * self.sequence_words * (2 if self.pregate else 1)

    @property
    def warp_words(self) -> int:
        """Two buffers, and the output gates of the pair at work."""
        return 2 * self.stage_words + 2 * self.output_words * (int(self.postgate) + int(self.twice))

    @property
    def filter_places(self) -> tuple[int, ...]:
        """Words to a block's tables of positions, points of filters, spectra and scales; the end."""
        start, count = self.constant_places[-1] + self.warps * self.warp_words, self.filters
        points, spectrum = self.n + self.n // 16 + 16, self.positions  # points with padding
        sizes = (6 * spectrum, count * points, count * spectrum, count * 64) if self.taps else (0,) * 4
        return tuple(accumulate(sizes, initial=start))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * self.filter_places[-1]


def make_spec(
    plan: Plan,
    dtype: str,
    *,
    halves: int = HALVES_PER_COPY,
    guarded: bool | None = None,
    pregate: bool = False,
    postgate: bool = False,
    scaled: bool = False,
    twice: bool = False,
    shared_limit: int = LARGEST_SHARED_BYTES,
    warps: int = 0,
    kept: tuple[int, ...] = (),
) -> Spec:
    """The kernel for a plan. Raises ``ValueError`` when this kernel cannot run the plan."""
    if plan.factors not in PACKINGS.get(plan.packing, ()):
        raise ValueError(
            f"plan: factors {plan.factors} with packing {plan.packing!r} have no fused kernel yet; accepted "
            f"are {FACTORS} with packing 'pair', {RIGHT_ANGLE} with packing 'right-angle'"
        )
    n1, n2 = plan.factors
    right_angle = plan.packing == "right-angle"
    if right_angle:  # the k1 of both sequences
        n1 *= 2
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    rows_in = 8 if n1 == 16 and signal <= 8 * n2 else _whole(-(-signal // n2), 16)
    rows_out = n1 // 2 if wanted <= plan.n // 2 else n1
    if guarded is None:
        guarded = signal < plan.n or wanted < plan.n
    spec = Spec(
        n1,
        n2,
        dtype,
        rows_in,
        rows_out,
        halves,
        guarded,
        pregate,
        postgate,
        scaled,
        twice=twice,
        right_angle=right_angle,
        kept=kept,
    )
    spec = replace(spec, warps=warps or block_of(spec)[0])
    while spec.shared_bytes > shared_limit and spec.warps > 1:
        spec = replace(spec, warps=spec.warps // 2)
    return spec


def _whole(count: int, step: int) -> int:
    return -(-count // step) * step


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return max(1, block_of(spec)[1] // spec.warps)


def block_of(spec: Spec) -> tuple[int, int]:
    """Warps of a block, and of an SM."""
    if spec.pregate or spec.postgate or spec.n > 1024:
        return 4, 8
    if spec.taps and spec.right_angle and spec.n == 768:  # as many as fit by themselves without the filters
        return 4, 16
    if spec.right_angle and (spec.n1 // 2, spec.n2) in TURNED:
        return TURNED[spec.n1 // 2, spec.n2]
    return (HALVED if spec.lower else {}).get(spec.n) or TUNED.get(spec.n, (4, 12))
