"""What a kernel did, counted: the quantities that the cost model predicts and the CPU body records.

All counts are totals over the grid. "Instructions" are warp instructions. Flops count a multiply and an add
as two.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields


@dataclass
class Counters:
    """Exact totals of one launch (units in the names)."""

    global_read_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes read from device memory or its caches, by buffer name; masked-off lanes move nothing."""
    global_written_bytes: dict[str, int] = field(default_factory=dict)
    """Bytes written to device memory, by buffer name."""
    shared_read_bytes: int = 0
    shared_written_bytes: int = 0
    shared_wavefronts: int = 0
    """Passes over the 32 banks that the shared-memory instructions need."""
    bank_conflicts: int = 0
    """Wavefronts beyond the fewest that the bytes of each instruction need."""
    mma_m16n8k16: int = 0
    """Tensor-core instructions of this shape, or parts of wider ones; 4096 flops each."""
    mma_m16n8k8: int = 0
    """Tensor-core instructions on TF32; 2048 flops each."""
    fp32_flops: int = 0
    half_flops: int = 0
    """Flops of packed half-precision multiplies and fused multiply-adds."""
    exponentials: int = 0
    """Results of the special-function unit, 2^x."""
    transposes: int = 0
    """8 x 8 register transposes (``movmatrix``)."""
    barriers: int = 0
    """Barriers: the block's, counted once per block, and its teams', once per team."""
    atomics: int = 0
    """Read-modify-writes of device memory."""
    blocks: int = 0
    warps: int = 0

    def add_bytes(self, kind: str, buffer: str, count: int) -> None:
        """Add ``count`` bytes of ``kind`` ("global_read_bytes" or "global_written_bytes") to a buffer."""
        table: dict[str, int] = getattr(self, kind)
        table[buffer] = table.get(buffer, 0) + count

    def as_dict(self) -> dict[str, object]:
        """All counts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}
