"""What is compiled into one order-3 kernel of a whole backward pass; see `backward_block`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from kernels_numba import block_spec
from kernels_numba.block_spec import STRIP
from kernels_numba.device import LARGEST_SHARED_BYTES
from monarch import Plan

TUNED: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {
    ("pair", (8, 16, 16)): (3, 4),
    ("pair", (16, 16, 16)): (2, 8),
    ("pair", (16, 16, 32)): (1, 8),
    ("right-angle", (8, 16, 16)): (2, 8),
    ("right-angle", (16, 16, 16)): (2, 8),
    ("right-angle", (24, 16, 16)): (1, 8),
    ("right-angle", (16, 16, 32)): (1, 8),
}
"""By packing and factors: blocks per SM, and warps of a block; measured fastest on an H200,"""
GATED_BLOCKS = {("pair", (16, 16, 16)): 1}
"""and blocks per SM with gates, where that differs."""
PACKINGS = {
    packing: tuple(factors for kind, factors in TUNED if kind == packing)
    for packing in ("pair", "right-angle")
}
"""Which plans this kernel takes."""


@dataclass(frozen=True)
class Spec(block_spec.Spec):
    """Everything that is compiled into one kernel; gates are those of the convolution."""

    parts = 1

    @property
    def served(self) -> int:
        """How many sequences have tables and sums in common."""
        return 2 if self.right_angle else 1

    @property
    def bins(self) -> int:
        """Points of the sums."""
        return self.n // self.served

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        return super().name.replace("fftconv_", "fftconv_back_", 1)

    @property
    def stage_words(self) -> int:
        """One strip of two sequences, and of their gates, unless they come after it into the same place."""
        gated = (self.pregate or self.postgate) and not self.gates_after
        return self.rows_in * STRIP * (2 if gated else 1)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * (self.factor_words + 2 * self.exchange_words + self.warps * self.ring * self.stage_words)


def make_spec(plan: Plan, dtype: str, *, shared_limit: int = LARGEST_SHARED_BYTES, **choices: Any) -> Spec:
    """The kernel for a plan, as `fused_block.make_spec` makes one. Raises ``ValueError`` if none can run it.

    It has one size: whether ``shared_limit`` bytes of shared memory are enough is for the caller to see.
    """
    if plan.factors not in PACKINGS.get(plan.packing, ()):
        raise ValueError(
            f"plan: {plan} has no order-3 kernel for whole backward passes; accepted are {PACKINGS}"
        )
    _, warps = TUNED[plan.packing, plan.factors]
    fixed: dict[str, Any] = {"warps": warps, "ring": 1, "tables_shared": False, "ahead": False, "lean": False}
    found = block_spec.make_spec(plan, dtype, **choices, **fixed)
    return Spec(**{field.name: getattr(found, field.name) for field in fields(found)})


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    packing, n1 = ("right-angle", spec.n1 // 2) if spec.right_angle else ("pair", spec.n1)
    key = packing, (n1, spec.n2, spec.n3)
    gated = spec.pregate or spec.postgate
    return GATED_BLOCKS.get(key, TUNED[key][0]) if gated else TUNED[key][0]
