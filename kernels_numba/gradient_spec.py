"""What is compiled into one order-3 kernel of the filter's gradient, and its constant operands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.block_operands import _maps, outer_factor, strip_columns
from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.operands import TURN, factor, factor_scale, right_angle_factors, rows_read, twiddles
from kernels_numba.rounded_stages import in_halves
from kernels_numba.tile import layout
from monarch import Plan

STRIP = 32
ROWS = 16
"""Rows of the outer stage's product: as many k1 has a unit of work (half as many, of two halves of the columns each,
where the first factor is 8)."""

TUNED: dict[tuple[int, ...], tuple[int, int, int, bool, str]] = {
    (8, 16, 16): (3, 4, 2, True, "registers"),
    (16, 16, 16): (2, 8, 2, True, "registers"),
    (32, 16, 16): (2, 8, 1, False, "registers"),
    (48, 16, 16): (2, 8, 1, False, "registers"),
    (64, 16, 16): (2, 8, 1, False, "registers"),
    (16, 16, 32): (1, 16, 2, False, "registers"),
    (32, 16, 32): (1, 16, 2, False, "registers"),
    (48, 16, 32): (1, 8, 1, False, "registers"),
    (64, 16, 32): (1, 8, 1, False, "shared"),
    (16, 32, 32): (1, 8, 1, False, "global"),
    (32, 32, 32): (1, 8, 1, False, "half"),
    (48, 32, 32): (1, 8, 1, False, "global"),
    (64, 32, 32): (1, 8, 1, False, "global"),
}
"""By factors: blocks per SM, warps per block, strips copied ahead, outer twiddles in shared memory (of one part only),
and where the sums are kept: in registers, in shared memory, or in the result, through the L2 cache; or there those of
one k1, and of a warp's other k1 in registers ("half")."""
ADDED = ((48, 32, 32), (64, 32, 32))
"""Factors whose sums through the L2 cache are added there, on compute capability 9: loads of them have no registers."""

TURNED: dict[tuple[int, ...], tuple[int, int, int, bool, str]] = {
    (8, 16, 16): (4, 4, 1, False, "registers"),
    (16, 16, 16): (4, 4, 1, False, "registers"),
    (24, 16, 16): (4, 4, 1, False, "registers"),
    (16, 16, 32): (2, 8, 1, False, "registers"),
    (24, 16, 32): (2, 8, 1, False, "registers"),
    (32, 16, 32): (2, 8, 1, False, "registers"),
    (16, 32, 32): (1, 8, 1, False, "registers"),
    (24, 32, 32): (1, 8, 1, False, "registers"),
    (32, 32, 32): (1, 8, 1, False, "registers"),
}
"""The same with right-angle packing, whose sums are those of both sequences: half as many."""

FACTORS, RIGHT_ANGLE = tuple(TUNED), tuple(TURNED)
"""The factors this kernel takes,"""
PACKINGS = {"pair": FACTORS, "right-angle": RIGHT_ANGLE}
"""and with which packing."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel; see `block_spec.Spec`."""

    n1: int
    n2: int
    n3: int
    dtype: str
    rows_in: int
    halves: int = 8
    guarded: bool = False
    pregate: bool = False
    """The inputs have a gate,"""
    postgate: bool = False
    """and so have the gradients."""
    sequences: str = ""
    warps: int = 8
    ring: int = 1
    tables_shared: bool = False
    sums: str = "registers"
    overlap: bool = False
    """The launch before may still run when this one starts."""
    right_angle: bool = False
    """Two real sequences of at most N / 2 samples as complex ones of N / 2 each: the N1 rows are k1 of both."""

    # What `block_pieces` asks for beside these.
    unit = 1
    half = False
    rows = ROWS

    def __post_init__(self) -> None:
        most = {"registers": 2, "half": 2}.get(self.sums, self.slots)  # k1 of a warp
        if self.strips % self.warps or self.kept % self.warps or self.kept // self.warps > most:
            raise ValueError(
                f"warps: {self.strips} strips and {self.kept} k1, sums in {self.sums}, are not for {self.warps}"
            )

    rounded = property(in_halves)

    @property
    def beside(self) -> bool:
        """Whether the rows of a k1, those of both sequences, lie beside each other in an exchange."""
        return self.right_angle

    @property
    def served(self) -> int:
        """How many sequences have tables and sums in common."""
        return 2 if self.right_angle else 1

    @property
    def kept(self) -> int:
        """The k1 whose sums a unit keeps."""
        return self.slots // self.served

    @property
    def q(self) -> int:
        """Points of the inner transform, Q = N2 N3."""
        return self.n2 * self.n3

    @property
    def n(self) -> int:
        """Transform length N."""
        return self.n1 * self.q

    @property
    def parts(self) -> int:
        """How many units of work share the frequencies."""
        return max(1, self.n1 // ROWS)

    @property
    def slots(self) -> int:
        """The k1 of one unit, of all sequences that are transformed by themselves."""
        return self.n1 // self.parts

    @property
    def gates_after(self) -> bool:
        """Whether a strip of gates is copied when its sequences are in registers, into the same place."""
        return (self.pregate or self.postgate) and 8192 < self.n <= 16384

    @property
    def reloaded(self) -> bool:
        """Whether outer twiddles are loaded for u and again for dy: two blocks of an SM have no registers for them."""
        return self.n1 > 32 and self.q == 256 and not self.right_angle

    @property
    def fold(self) -> int:
        """How many parts of the columns share a product of the outer stage: a factor of 8 fills half of one."""
        return max(1, ROWS // self.n1)

    @property
    def lanes(self) -> int:
        """Outputs of the outer stage in one row group of one part of the columns."""
        return min(8, self.n1 // 2)

    @property
    def strips(self) -> int:
        """Strips of 32 columns (in every part of the columns)."""
        return self.q // (STRIP * self.fold)

    @property
    def row_stride(self) -> int:
        """Points from one n2 to the next."""
        return self.n3

    @property
    def rows_out(self) -> int:
        """There are no samples out."""
        return 0

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        shape = f"{self.n1}x{self.n2}x{self.n3}{'_right' * self.right_angle}_in{self.rows_in}"
        guard = "_guarded" * self.guarded
        where = f"_{self.sums}" + (f"_r{self.ring}" if self.ring > 1 else "") + "_o" * self.overlap
        return f"fftconv_dk_{shape}_{self.sequences}{self.dtype}_v{self.halves}{gates}{guard}{where}_w{self.warps}"

    # ---- shared memory, in words ---------------------------------------------------------------------------
    @property
    def row_pair_words(self) -> int:
        """Two n2 of one k1 in an exchange: N3 complex pairs, and padding against bank conflicts."""
        return 2 * self.n3 + 8

    @property
    def row_words(self) -> int:
        """One k1 in an exchange: from it to the next, or (beside) to that of the other sequence."""
        return self.n2 // 2 * self.row_pair_words + (0 if self.beside else 4)

    @property
    def pair_words(self) -> int:
        """Two of them; where they lie beside each other, stores go to neighbouring pairs at once."""
        return 2 * self.row_words + (4 if self.beside else 0)

    @property
    def exchange_words(self) -> int:
        """One exchange, of u or of dy."""
        return self.slots // 2 * self.pair_words

    @property
    def stage_words(self) -> int:
        """One strip of two sequences, and of their gates, unless they come after it."""
        gated = (self.pregate or self.postgate) and not self.gates_after
        return self.rows_in * STRIP * (2 if gated else 1)

    @property
    def factor_words(self) -> int:
        """The DFT factors (the first one's rows of all parts) and inner twiddles."""
        return (self.parts * ROWS * self.rows_in + self.n2**2 + self.n3**2) // 2 + self.q

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        words = self.factor_words + 2 * self.exchange_words + self.warps * self.ring * self.stage_words
        words += (self.n // self.served if self.tables_shared else 0) + (
            2 * self.kept * self.q if self.sums == "shared" else 0
        )
        return 4 * words


def make_spec(
    plan: Plan,
    dtype: str,
    *,
    halves: int = 8,
    guarded: bool | None = None,
    pregate: bool = False,
    postgate: bool = False,
    shared_limit: int = LARGEST_SHARED_BYTES,
    **choices: Any,
) -> Spec:
    """The kernel for a plan, with as much on chip as fits into ``shared_limit`` bytes of shared memory a block.

    Raises ``ValueError`` when this kernel cannot run the plan.
    """
    if plan.factors not in PACKINGS.get(plan.packing, ()):
        raise ValueError(
            f"plan: {plan} has no order-3 kernel for the filter's gradient; accepted are {FACTORS} with packing "
            f"'pair', {RIGHT_ANGLE} with packing 'right-angle'"
        )
    n1, n2, n3 = plan.factors
    right_angle = plan.packing == "right-angle"
    _, warps, ring, tables_shared, sums = (TURNED if right_angle else TUNED)[plan.factors]
    chosen: dict[str, Any] = {
        "warps": warps,
        "ring": ring,
        "tables_shared": tables_shared,
        "sums": sums,
    } | choices
    if right_angle:  # the k1 of both sequences
        n1 *= 2
        chosen["right_angle"] = True
    signal = plan.signal or plan.n
    rows_in = 16 * -(-signal // (16 * n2 * n3)) if n1 >= 16 else 16
    guarded = signal < plan.n if guarded is None else guarded
    spec = Spec(n1, n2, n3, dtype, rows_in, halves, guarded, pregate, postgate, **chosen)
    in_registers = spec.sums == "registers"  # where two k1 a warp have room, so not with fewer warps
    eight = min(8, spec.warps)
    fewer: dict[str, Any] = {"sums": "global"} | ({"warps": min(4, spec.warps)} if in_registers else {})
    steps: tuple[dict[str, Any], ...] = (
        {"tables_shared": False},
        {"ring": 1},
        {"warps": eight} if spec.slots // eight <= 2 else {},
        fewer,
        {"warps": min(8, spec.warps)},
        {"warps": min(4, spec.warps)},
        {"warps": min(2, spec.warps)},
    )
    for less in steps:
        if spec.shared_bytes > shared_limit:
            spec = replace(spec, **less)
    return spec


def overlapping(spec: Spec) -> Spec:
    """The kernel on compute capability 9."""
    added = spec.sums == "global" and (spec.n1, spec.n2, spec.n3) in ADDED
    return replace(spec, overlap=True, sums="added" if added else spec.sums)


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    factors = spec.n1 // spec.served, spec.n2, spec.n3
    blocks, warps = (TURNED if spec.right_angle else TUNED)[factors][:2]
    return max(1, blocks * warps // max(spec.warps, 4))


def operand_key(spec: Spec) -> tuple:
    """What the constant buffers depend on."""
    return (spec.n1 // spec.served, spec.n2, spec.n3, spec.rows_in, spec.dtype, spec.right_angle)


def _slots(n1: int, part: int) -> NDArray[np.intp]:
    """Slots of k1 (see `operands.mirrored`) of one part: some of the first half, and their mirrors."""
    parts = max(1, n1 // ROWS)
    count = n1 // 2 // parts
    first = np.arange(part * count, (part + 1) * count)
    return np.concatenate([first, n1 // 2 + first])


@lru_cache(maxsize=32)
def operands(
    n1: int, n2: int, n3: int, rows_in: int, dtype: str, right_angle: bool = False
) -> tuple[NDArray[np.int32], ...]:
    """The constant buffers: F1 of every part, F2, F3, inner twiddles; and outer twiddles [parts, strips, 16 x 32].

    With right-angle packing n1 is the factor N1, and the twiddles are [parts, strips, 8 x 32].
    """
    at = _maps(n1, n2, n3)
    undone = factor_scale(n2, 0.5, dtype), factor_scale(n3, 0.5, dtype)
    forward, _ = twiddles(at.k2, (at.column_in, at.column_out), (n2, n3), undone)
    first, tables = (_turned_stage if right_angle else _outer_stage)(n1, n2, n3, rows_in, dtype)
    index = layout.a_index(1, rows_in // 16)
    square = layout.a_index(n2 // 16, n2 // 16), layout.b_index(n3 // 16, n3 // 8)
    found = [
        *(layout.pack_operand(rows, index, dtype) for rows in first),
        layout.pack_operand(factor(n2, np.arange(n2), at.k2, shift=0.5, dtype=dtype), square[0], dtype),
        layout.pack_operand(factor(n3, at.column_in, at.k3, shift=0.5, dtype=dtype).T, square[1], dtype),
        layout.pack_complex(forward, layout.c_index(n2 // 8, n3 // 8), dtype),
    ]
    return np.concatenate(found), np.concatenate(tables)


def _outer_stage(
    n1: int, n2: int, n3: int, rows_in: int, dtype: str
) -> tuple[list[NDArray], list[NDArray[np.int32]]]:
    """F1 of every part, and its packed outer twiddles strip by strip."""
    at = _maps(n1, n2, n3)
    q, points, fold = n2 * n3, n1 * n2 * n3, max(1, ROWS // n1)
    parts = max(1, n1 // ROWS)
    whole = outer_factor(n1, np.arange(n1), at.k1, shift=0.0, dtype=dtype)[:, at.row_in]
    first = [whole[_slots(n1, part) if fold == 1 else slice(None), :rows_in] for part in range(parts)]
    tables = []
    outputs = n1 // 2 // parts
    upper, within = np.divmod(np.arange(ROWS), outputs * fold)  # cosine or sine rows
    column_part, output = np.divmod(within, outputs)
    for part in range(parts):
        k1 = at.k1[_slots(n1, part)][upper * outputs + output]
        for strip in range(q // STRIP // fold):
            row, column = strip_columns(n3, strip)
            m = (column_part * (q // fold))[:, None] + (row * n3 + column)[None, :]
            w = np.exp(-2j * np.pi * (k1[:, None] * m % points) / points)
            w = w * np.exp(1j * np.pi * (m // n3) / n2) / factor_scale(n1, 0.0, dtype)
            tables.append(layout.pack_complex(w, layout.c_index(ROWS // 8, STRIP // 8), dtype))
    return first, tables


def _turned_stage(
    n1: int, n2: int, n3: int, rows_in: int, dtype: str
) -> tuple[list[NDArray], list[NDArray[np.int32]]]:
    """The same with right-angle packing: rows of real parts above those of imaginary parts."""
    whole, _, scale = right_angle_factors(n1, np.arange(n1), rows_read(rows_in), dtype)
    by_part = whole.reshape(2, -1, ROWS // 2, rows_in)
    first = [by_part[:, part].reshape(ROWS, rows_in) for part in range(by_part.shape[1])]
    tables = []
    for k1 in np.arange(n1).reshape(-1, ROWS // 2, 1) + TURN:
        for strip in range(n2 * n3 // STRIP):
            row, column = strip_columns(n3, strip)
            w = np.exp(-2j * np.pi * k1 * (row * n3 + column) / (n1 * n2 * n3))
            w = w * np.exp(1j * np.pi * row / n2) / scale
            tables.append(layout.pack_complex(w, layout.c_index(1, STRIP // 8), dtype))
    return first, tables


def sums_layout(spec: Spec) -> tuple[NDArray[np.intp], float]:
    """The bin at each point of a channel's sums [parts, k1, Q], and what the sums are to be multiplied by."""
    n1, n2, n3 = spec.n1 // spec.served, spec.n2, spec.n3
    at = _maps(n1, n2, n3)
    rows, columns = layout.c_index(n2 // 8, n3 // 8)
    inner = (n1 * (at.k2[rows] + n2 * at.k3[columns])).reshape(-1)
    if spec.right_angle:
        k1 = np.arange(n1)
    else:
        k1 = np.concatenate([at.k1[_slots(n1, part)] for part in range(spec.parts)])
    return (k1[:, None] + inner[None, :]).reshape(-1), factor_scale(n3, 0.5, spec.dtype) ** -2
