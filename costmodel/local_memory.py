"""What does not fit into a thread's registers, and where it goes: the compiler's stack, as traffic of the caches.

A kernel writes a register that it cannot keep to local memory and reads it again. Writes go through the first-level
cache to L2. What the threads of an SM have there together may be more than shared memory leaves of that cache; then
reads come from L2 too. What all threads have may be a good part of L2; then streams push as much of what was written
out to device memory before it is written again, and beyond L2's size reads come from there. Stacks are those of the
compiled kernels (``kernels_numba/resources.csv``). What counters say of it on an H200: docs/cost-model.md.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING

from costmodel.gpu_checks import KIB

if TYPE_CHECKING:
    from costmodel.counts import Counts
    from costmodel.gpus import GPU

RESERVED_BYTES = 1 * KIB
"""Of shared memory, which the system takes for every block."""
LEAST_CACHE_BYTES = 28 * KIB
"""What an SM's memory has beside its shared memory, however much of that is used, from compute capability 8.0 on (CUDA
C++ Programming Guide, "unified data cache"): the rest is first-level cache where no block has it."""
MEASURED_ON = "sm_90"
"""Whose stacks are taken: those of the measured GPU, on others too, where they differ by a few per cent."""


@lru_cache(maxsize=1)
def _stacks() -> dict[str, int]:
    """By kernel; read as it lies, because `kernels_numba.resources` imports every kernel."""
    table = resources.files("kernels_numba") / "resources.csv"
    rows = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    return {row["kernel"]: int(row["stack_bytes"]) for row in rows if row["arch"] == MEASURED_ON}


def stack_bytes(*names: str) -> int:
    """The stack of a thread of the first of these kernels that the table of resources has; 0 where it has none."""
    return next((found for name in names if (found := _stacks().get(name)) is not None), 0)


def cache_bytes(of_sm: float, of_block: float, resident: int) -> float:
    """What an SM with so much shared memory, of which each of its blocks takes a part, has of first-level cache."""
    return max(of_sm + LEAST_CACHE_BYTES - resident * (of_block + RESERVED_BYTES), 0.0)


def traffic(counts: Counts, gpu: GPU, resident: int) -> tuple[float, float, float]:
    """Bytes of local memory that cross device memory, the first-level cache and L2, with so many blocks on an SM."""
    if not counts.stack_bytes_per_thread:
        return 0.0, 0.0, 0.0
    written = counts.local_bytes
    on_sm = counts.stack_bytes_per_thread * counts.threads_per_block * resident
    everywhere, l2 = on_sm * gpu.spec["sm_count"], gpu.spec["l2_bytes"]
    left = cache_bytes(gpu.spec["shared_memory_per_sm_bytes"], counts.shared_bytes_per_block, resident)
    missed = 1 - min(1.0, left / on_sm)
    memory = written * (min(1.0, everywhere / l2) + missed * max(0.0, 1 - l2 / everywhere))
    return memory, written * (2 + missed), written * (1 + missed)
