"""What is compiled into one fp32 outer stage of a long transform, and its tables; see `outer_float.py`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.outer_spec import marks_of_rows

TUNED: dict[int, tuple[int, int, int]] = {
    16: (32, 4, 6),
    32: (32, 4, 4),
    256: (32, 8, 3),
    512: (16, 8, 2),
    1024: (16, 16, 1),
}
"""By rows: columns of a strip, warps of a block, and blocks on an SM that the compiler leaves registers for."""


@dataclass(frozen=True)
class Spec:
    """One kernel: rows ``n1 = a b``, of ``n2`` columns, taken ``strip`` columns at a time.

    ``io``: type of the sequences. ``live``: of the factor a, points that can hold signal, or are wanted. ``guarded``,
    ``pregate``, ``postgate``, ``twice``: as for the fused kernels. ``kept``: rows of the intermediate that are not left
    out, if some are.
    """

    a: int
    b: int
    n2: int
    io: str
    inverse: bool
    live: int
    strip: int
    warps: int
    blocks: int
    guarded: bool = False
    pregate: bool = False
    postgate: bool = False
    twice: bool = False
    kept: int = 0
    dtype: str = "fp32"

    @property
    def n1(self) -> int:
        """Rows."""
        return self.a * self.b

    @property
    def rows_kept(self) -> int:
        """Rows of the intermediate."""
        return self.kept or self.n1

    @property
    def name(self) -> str:
        """For error messages and profilers."""
        gates = {(0, 0): "", (1, 0): "_pre", (0, 1): "_post", (1, 1): "_gated"}[self.pregate, self.postgate]
        gates += "_twice" if self.twice else ""
        parts = f"{self.a}x{self.b}_of_{self.n2}" if self.b > 1 else f"{self.a}_of_{self.n2}"
        flags = ("_guarded" if self.guarded else "") + (f"_rows{self.kept}" if self.kept else "")
        way = f"inverse_{parts}_out{self.live}" if self.inverse else f"forward_{parts}_in{self.live}"
        io = "" if self.io == "fp32" else f"_{self.io}"
        return f"outer_{way}_fp32{io}{gates}{flags}_s{self.strip}_w{self.warps}b{self.blocks}"

    @property
    def strips(self) -> int:
        """Strips of a row."""
        return self.n2 // self.strip

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: the exchange between two factors."""
        return 8 * self.n1 * self.strip if self.b > 1 else 0

    @property
    def last(self) -> tuple[int, int]:
        """The factor next to the intermediate, and how far its rows lie apart there."""
        return (self.b, self.a) if self.b > 1 else (self.a, 1)

    @property
    def places(self) -> tuple[int, int, int]:
        """Where in the tables the twiddles between the factors begin, those within N's, and those of a row; floats."""
        factor, _ = self.last
        between = 2 * self.n1 if self.b > 1 else 0
        return 0, between, between + factor * self.n2


def outer_float_spec(
    split: Any, io: str, *, inverse: bool, length: int, batch: int, gated: bool = False, kept: int = 0
) -> Spec:
    """The fp32 outer stage of a `long_plans.Split` for sequences of type ``io``, forward or inverse."""
    a, b = split.pair
    strip, warps, blocks = TUNED[a * b]
    step = b * split.inner.points
    live = min(a, -(-length // step))
    return Spec(
        a,
        b,
        split.inner.points,
        io,
        inverse,
        live,
        strip,
        warps,
        blocks,
        guarded=length != live * step or batch % 2 != 0,
        pregate=gated and not inverse,
        postgate=gated and inverse,
        kept=kept,
    )


@lru_cache(maxsize=8)
def tables(a: int, b: int, n2: int) -> NDArray[np.float32]:
    """Twiddles, from float64: w_(a b)^(ka nb) as [nb, ka]; then those of N points as products of two.

    With F the last factor, d = a rows between its outputs (1 if it is the only one) and f < F / 2: w_N^(d f n2) as
    [f / 2, n2, 2 of f], and w_N^((r + d h F / 2) n2), r < d, as [r, n2, 2 of h].
    """
    factor, apart = (b, a) if b > 1 else (a, 1)
    n, column = a * b * n2, np.arange(n2)
    parts = []
    if b > 1:
        parts.append(np.exp(-2j * np.pi * np.outer(np.arange(b), np.arange(a)) / (a * b)))
    within = apart * np.arange(factor // 2).reshape(-1, 1, 2)
    parts.append(np.exp(-2j * np.pi * (within * column[:, None] % n) / n))
    row = np.arange(apart)[:, None, None] + apart * (factor // 2) * np.arange(2)
    parts.append(np.exp(-2j * np.pi * (row * column[:, None] % n) / n))
    found = np.concatenate([x.astype(np.complex64).reshape(-1) for x in parts]).view(np.float32)
    found.setflags(write=False)
    return found


def operand_key(spec: Spec, rows: tuple[int, ...] = ()) -> tuple:
    """What the constant buffers depend on; ``rows``: those of the intermediate that are kept, if not all."""
    return (spec.a, spec.b, spec.n2, rows)


def operands(a: int, b: int, n2: int, rows: tuple[int, ...] = ()) -> tuple[NDArray, NDArray[np.int32]]:
    """The twiddles, and where the rows are in the intermediate, [d, F] (negative: nowhere), in points; and marks.

    The marks are `outer_spec.marks_of_rows`.
    """
    factor, apart = (b, a) if b > 1 else (a, 1)
    places = np.full(a * b, -1, np.int32)
    kept = np.array(rows or range(a * b))
    places[kept] = n2 * np.arange(kept.size)
    by_group = np.ascontiguousarray(places.reshape(factor, apart).T).reshape(-1)
    return tables(a, b, n2), np.concatenate([by_group, marks_of_rows(a, tuple(kept)).view(np.int32)])


def min_blocks(spec: Spec) -> int:
    """Blocks on an SM that the compiler must leave registers for."""
    return spec.blocks
