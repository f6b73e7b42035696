"""The fp32 kernel's shape: which thread holds which points, where they lie in shared memory, and its tables.

A transform of P = r1 r2 ... rp points is held by T = P / R threads with R points each, R a multiple of every factor.
In stage i the array is [k1 .. k(i-1), n_i, n(i+1) .. np], row-major; butterfly b combines the r_i points

    place_i(b, q) = (b // s) r_i s + q s + b mod s,        q = 0 .. r_i - 1, s = r(i+1) ... rp,

and thread j does the butterflies j, j + T, j + 2 T, ... . Each stage reads and writes the same places, so that a
barrier between writing and reading is all the order that is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from math import lcm, prod

import numpy as np
from numpy.typing import NDArray

from kernels_numba.device import LARGEST_SHARED_BYTES
from monarch import Plan, format_factors
from monarch.index import digit_order_of, mirror_of

DEFAULT_FACTORS: dict[int, tuple[int, ...]] = {
    256: (16, 16),
    512: (4, 8, 16),
    768: (12, 8, 8),
    1024: (4, 16, 16),
    1536: (6, 4, 8, 8),
    2048: (16, 16, 8),
    3072: (6, 8, 8, 8),
    4096: (16, 16, 16),
    6144: (12, 8, 8, 8),
    8192: (32, 16, 16),
    12288: (24, 8, 8, 8),
    16384: (32, 32, 16),
    24576: (24, 8, 8, 8),
    32768: (32, 32, 16),
}
"""For every transform length the factors measured fastest on an H200. Factors of half the length mean half-length
packing."""
FACTORS = (
    *dict.fromkeys(DEFAULT_FACTORS.values()),
    (8, 8, 8),
    (8, 8, 16),
    (16, 8, 8),
    (32, 32),
    (8, 16, 16),
    (16, 16, 32),
    (8, 8, 16, 16),
)
"""The factors this kernel takes, of orders 2 to 4; any others would do that `Shape` accepts."""
PACKINGS = {"pair": FACTORS, "half": FACTORS, "complex": FACTORS}
"""With any packing: a pair of sequences of P samples, one sequence of 2 P, or one complex sequence of P."""
AHEAD_POINTS = 8192
"""From so many points on a block brings its next input to shared memory while it works."""
SPLIT_POINTS = 256
"""Twiddles of stages over so many points are products of two."""
PADDINGS = ((30, 0), (4, 1), (3, 1), (5, 1), (4, 2), (5, 2), (6, 4), (3, 2), (5, 4), (6, 8))
"""(shift, factor) to choose from; see `Shape.padding`."""
MOST_POINTS = 16384
MOST_THREADS = 1024
FEWEST_THREADS = 128
"""Shorter transforms share a block, up to so many threads."""


@dataclass(frozen=True)
class Stage:
    """One stage: ``radix`` points a butterfly, ``step`` apart; ``groups`` butterflies a thread."""

    radix: int
    step: int
    groups: int
    table: int
    """Where its twiddles begin, in floats,"""
    exponents: tuple[int, ...]
    """and of which of the q they are; see `tables`."""


def stages_of(factors: tuple[int, ...], groups: dict[int, int]) -> tuple[Stage, ...]:
    """Stages of a list of factors, with so many butterflies a thread by radix."""
    found, table = [], 0
    for i, radix in enumerate(factors):
        step = prod(factors[i + 1 :])
        exponents = tuple(range(radix))
        if radix * step >= SPLIT_POINTS and radix % 4 == 0:
            exponents = (1, 2, 3, *range(4, radix, 4))
        found.append(Stage(radix, step, groups[radix], table, exponents))
        table += 2 * (len(exponents) + len(exponents) % 2) * step if step > 1 else 0
    return tuple(found)


@dataclass(frozen=True)
class Shape:
    """What follows from the factors alone. Raises ``ValueError`` for factors that no thread layout suits."""

    factors: tuple[int, ...]

    def __post_init__(self) -> None:
        wrong = None
        if not 2 <= len(self.factors) <= 4:
            wrong = "2 to 4 factors are needed"
        elif self.held > 32:
            wrong = f"a thread would hold {self.held} points, at most 32 fit into registers"
        elif self.points > MOST_POINTS or self.threads > MOST_THREADS:
            wrong = f"{self.points} points, at most {MOST_POINTS} fit into registers, 64 a thread"
        elif any(s.radix % 2 for s in self.stages) or not self._constant_places():
            wrong = "threads would not find their points at constant distances"
        elif self.together * self.threads % 32:
            wrong = f"{self.threads} threads do not fill warps"
        if wrong:
            raise ValueError(f"plan: the fp32 kernel cannot run {format_factors(self.factors)}: {wrong}")

    @property
    def points(self) -> int:
        """P."""
        return prod(self.factors)

    @property
    def held(self) -> int:
        """R, the points of a thread."""
        return lcm(*self.factors)

    @property
    def threads(self) -> int:
        """T, the threads of one transform."""
        return self.points // self.held

    @property
    def together(self) -> int:
        """Transforms that share a block."""
        least = 32 // np.gcd(32, self.threads)
        return max(int(least), FEWEST_THREADS // self.threads)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, first to last."""
        return stages_of(self.factors, {radix: self.held // radix for radix in self.factors})

    def place(self, stage: Stage, butterfly: NDArray | int, q: NDArray | int) -> NDArray:
        """The point q of a butterfly."""
        row, column = np.divmod(butterfly, stage.step)
        return row * stage.radix * stage.step + q * stage.step + column

    @cached_property
    def padding(self) -> tuple[int, int, int]:
        """(shift, factor, room): point x lies at x + factor (x >> shift), a transform takes ``room`` points.

        Of some candidates the one with the fewest bank conflicts: lanes access 8 bytes each, so each half of a warp
        wants 16 different places modulo 16.
        """
        best = None
        for shift, factor in PADDINGS:
            whole = (1 << shift) % self.factors[-1] == 0 or not factor  # a last butterfly lies in one piece
            if not whole or not self._constant_places(shift, factor):
                continue
            room = self._padded(np.asarray(self.points - 1), shift, factor) + 1
            for extra in range(16 if self.together > 1 else 1):
                found = self._conflicts(shift, factor, int(room) + extra), int(room) + extra
                if best is None or found < best[0]:
                    best = found, (shift, factor, int(room) + extra)
        assert best is not None
        return best[1]

    @staticmethod
    def _padded(x: NDArray, shift: int, factor: int) -> NDArray:
        return x + factor * (x >> shift)

    def at(self, x: NDArray | int) -> NDArray:
        """Where point x lies, in points of shared memory."""
        shift, factor, _ = self.padding
        return self._padded(np.asarray(x), shift, factor)

    def _constant_places(self, shift: int = 30, factor: int = 0) -> bool:
        """Whether every thread's points lie at the same distances from its first."""
        thread = np.arange(self.threads)[:, None, None]
        for stage in self.stages:
            c, q = np.arange(stage.groups)[:, None], np.arange(stage.radix)
            whole = self._padded(self.place(stage, thread + self.threads * c, q), shift, factor)
            apart = whole - whole[:, :1, :1]
            if (apart != apart[:1]).any():
                return False
        return True

    def _conflicts(self, shift: int, factor: int, room: int) -> int:
        lane = np.arange(self.together * self.threads)
        slot, thread = np.divmod(lane, self.threads)
        total = 0
        for stage in self.stages:
            at = self._padded(self.place(stage, thread, 0), shift, factor) + slot * room
            for half in at.reshape(-1, 16):
                total += stage.groups * (int(np.bincount(half % 16).max()) - 1)
        return total

    def constants(self, stage: Stage, count: int) -> tuple[int, ...]:
        """Distances of a thread's first ``count`` points of each butterfly from its first, in points of the array."""
        return tuple(
            int(self.place(stage, self.threads * c, q)) for c in range(stage.groups) for q in range(count)
        )


@cache
def shape_of(factors: tuple[int, ...]) -> Shape:
    """The shape of a list of factors, made once."""
    return Shape(factors)


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel.

    ``rows_in`` and ``rows_out``: points of a first-stage butterfly that can hold signal, and that are wanted.
    ``guarded``: some accesses are masked, because L < N or the last pair has one sequence only. ``wide``: the two
    numbers of a point (half-length packing, complex data) are accessed as one. ``ahead``: the next input is copied
    while this one is at work.
    """

    factors: tuple[int, ...]
    rows_in: int
    rows_out: int
    half: bool = False
    """A point is two neighbouring numbers of one sequence, not one of each of two."""
    guarded: bool = False
    pregate: bool = False
    postgate: bool = False
    wide: bool = False
    ahead: bool = False
    mirrored: bool = False
    """The spectrum is that of real data, two numbers a point (half-length packing)."""
    twice: bool = False
    """The result is stored twice, under two gates."""
    dtype: str = "fp32"

    @property
    def shape(self) -> Shape:
        """What follows from the factors."""
        return shape_of(self.factors)

    @property
    def n(self) -> int:
        """Transform length N, in samples."""
        return self.shape.points * (2 if self.mirrored else 1)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return self.shape.together * self.shape.threads // 32

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: the points of its transforms."""
        return 8 * self.shape.together * self.shape.padding[2]

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        gates += "_twice" if self.twice else ""
        packing = ("_half" if self.mirrored else "_complex") + "_wide" * self.wide if self.half else ""
        guard = "_guarded" if self.guarded else ""
        rows = f"_in{self.rows_in}_out{self.rows_out}" + ("_ahead" if self.ahead else "")
        return f"fftconv_{format_factors(self.factors)}{rows}_fp32{packing}{gates}{guard}_w{self.warps}"


def make_spec(
    plan: Plan,
    dtype: str = "fp32",
    *,
    halves: int = 8,
    guarded: bool | None = None,
    pregate: bool = False,
    postgate: bool = False,
    scaled: bool = False,
    twice: bool = False,
    shared_limit: int = LARGEST_SHARED_BYTES,
    shape: Shape | None = None,
    kind: type[Spec] = Spec,
) -> Spec:
    """The kernel for a plan. ``halves``: elements that may be accessed at once. Nothing depends on ``shared_limit``.

    ``shape``, ``kind``: of a kernel of another shape. Raises ``ValueError`` when this kernel cannot run the plan.
    """
    if plan.packing not in PACKINGS:
        raise ValueError(
            f"plan: packing {plan.packing!r} has no fp32 kernel; accepted are {', '.join(PACKINGS)}"
        )
    shape = shape or shape_of(plan.factors)
    half, mirrored = plan.packing != "pair", plan.packing == "half"
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    step = shape.stages[0].step * (2 if mirrored else 1)
    if guarded is None:
        guarded = signal < plan.n or wanted < plan.n
    rows_in, rows_out = -(-signal // step), -(-wanted // step)
    wide, ahead = half and halves > 1, shape.points >= AHEAD_POINTS
    return kind(
        plan.factors, rows_in, rows_out, half, guarded, pregate, postgate, wide, ahead, mirrored, twice
    )


@lru_cache(maxsize=64)
def tables(factors: tuple[int, ...]) -> NDArray[np.float32]:
    """The twiddles of a list of factors."""
    return twiddles_of(shape_of(factors).stages)


@lru_cache(maxsize=64)
def twiddles_of(stages: tuple[Stage, ...]) -> NDArray[np.float32]:
    """Twiddles e^(-2 pi i q m / (r s)) of all stages but the last, each [q / 2, s, 2 of q, 2 parts]; from float64.

    A lane reads those of two q at once. Of a long stage only q = 1, 2, 3 and the multiples of four are kept, and
    points are multiplied by two of them: a product costs less than a read past the first-level cache.
    """
    parts = []
    for stage in stages[:-1]:
        q, m = np.array(stage.exponents), np.arange(stage.step)
        w = np.exp(-2j * np.pi * np.outer(q, m) / (stage.radix * stage.step))
        w = np.concatenate([w, np.ones((len(q) % 2, stage.step))])
        parts.append(w.reshape(-1, 2, stage.step).transpose(0, 2, 1).reshape(-1))
    found = np.concatenate(parts).astype(np.complex64).view(np.float32)
    found.setflags(write=False)
    return found


@lru_cache(maxsize=64)
def mirrors(factors: tuple[int, ...]) -> NDArray[np.int32]:
    """Where the mirrors of a thread's last butterflies lie: words [2, groups, T] from which distances count.

    The mirror of point q lies r - 1 - q points from the first word, that of point 0 from the second. Both are the
    mirror of point r - 1, but for the butterfly that holds frequency 0: there q mirrors to r - q, and 0 to itself.
    """
    shape = shape_of(factors)
    last = shape.stages[-1]
    butterfly = np.arange(shape.threads) + shape.threads * np.arange(last.groups)[:, None]
    start = shape.at(mirror_of(factors)[shape.place(last, butterfly, last.radix - 1)])
    of_zero = np.where(butterfly == 0, -shape.at(last.radix - 1), start)
    return (2 * np.stack([start, of_zero])).astype(np.int32).reshape(-1)


def spectrum_layout(plan: Plan, dtype: str = "fp32") -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """Bins [1 or 2, positions] and weights in the order in which the kernel reads a spectrum; as many tiles.

    Threads read two points at once: [R / 2, T, 2]. With half-length packing a point has two numbers, A and B
    (see `block_operands.half_spectrum_layout`): [R, T, 2]. Weights hold the 1 / P of the inverse transform.
    """
    shape = shape_of(plan.factors)
    last = shape.stages[-1]
    constants = np.array(shape.constants(last, last.radix))
    slot = shape.place(last, np.arange(shape.threads), 0)[None, :] + constants[:, None]  # [R, T]
    order = digit_order_of(plan.factors)[slot]
    if plan.packing != "half":
        order = order.reshape(-1, 2, shape.threads).swapaxes(1, 2).reshape(1, -1)
        return order, np.full(order.shape, 1 / shape.points, np.complex128), order.size
    return weights_of_halves(order, shape.points)


def weights_of_halves(
    order: NDArray[np.intp], points: int
) -> tuple[NDArray[np.intp], NDArray[np.complex128], int]:
    """Bins and weights of half-length packing, A and B of each frequency of ``order`` in turn."""
    angle = np.pi * order / points
    a = np.stack([(1 - np.sin(angle)) / 2, (1 + np.sin(angle)) / 2])
    b = 0.5j * np.stack([np.cos(angle), -np.cos(angle)])
    weights = np.stack([a, b], axis=-1).reshape(2, -1) / points
    bins = np.repeat(np.stack([order, order + points])[..., None], 2, axis=-1).reshape(2, -1)
    return bins, weights.astype(np.complex128), bins.shape[1]


def operand_key(spec: Spec) -> tuple:
    """What the constant buffers depend on."""
    return (spec.factors, spec.mirrored)


def operands(factors: tuple[int, ...], mirrored: bool) -> tuple[NDArray, ...]:
    """The constant buffers, in the order of the kernel's arguments: twiddles, and the mirrors' places."""
    return tables(factors), mirrors(factors) if mirrored else np.zeros(1, np.int32)
