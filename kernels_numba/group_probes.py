"""The kernel that measures products of warpgroups (``wgmma``), by their width: four warps, operands in shared memory.

Arguments and result are those of `probes.py`: words ``source`` [left operand, right operand] as core matrices, and
float32 sums in ``target``, ``turns`` times the product, registers of each warp [column tile, row group, 2].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba.probes import QUAD, SPAN
from kernels_numba.tile.layout import WARP

CAPABILITY = (9, 0)
VOCABULARY = "probe"
SIGNATURE = ("WORDS", "WORDS", "INT", "INT", "INT", "INT")
WARPS = 4
ROWS, DEPTH = 64, 64
"""Rows of the left operand, and the length of the contraction a turn."""
WIDTHS = (64, 128, 256)


@dataclass(frozen=True)
class Spec:
    """What is compiled into a kernel: the type of the operands and the columns of the right one."""

    columns: int
    dtype: str = "fp16"
    warps: int = WARPS
    kind: str = "group"

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: both operands."""
        return 2 * DEPTH * (ROWS + self.columns)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return f"probe_group_n{self.columns}_{self.dtype}"


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return 2


def source_words(spec: Spec, n: int, workers: int) -> int:
    """Words of ``source``: the two operands."""
    return spec.shared_bytes // 4


def result_words(spec: Spec) -> int:
    """Words that a warp leaves: its 16 rows of the sums."""
    return WARP * spec.columns // 2


def target_words(spec: Spec, n: int, workers: int) -> int:
    """Words of ``target`` that a kernel writes."""
    return workers * result_words(spec)


def work(spec: Spec, n: int, workers: int, turns: int) -> dict[str, int]:
    """What a launch does, under the names of `tile.counters.Counters`; products in parts of 16 x 8 x 16."""
    return {
        "global_read_bytes": spec.shared_bytes * (workers // WARPS),
        "global_written_bytes": 4 * target_words(spec, n, workers),
        "mma_m16n8k16": spec.columns // 8 * (DEPTH // 16) * turns * workers,
        "shared_written_bytes": spec.shared_bytes * (workers // WARPS),
    }


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function; see `probes.build`."""
    lane, warp, block, warps = tile.lane, tile.warp, tile.block, spec.warps
    copy, commit, wait = tile.copy_words_async, tile.commit, tile.wait(0)
    fence, barrier = tile.fence_async, tile.barrier
    product = tile.group_mma_add(spec.columns, DEPTH // 16)
    count = spec.columns // 2
    zeros, as_words, put = tile.zeros(count), tile.as_words(count), tile.store_quads(count // QUAD)
    words, left_words, size = spec.shared_bytes // 4, DEPTH * ROWS // 2, WARP * count

    def kernel(source, target, n, workers, turns, shift):
        mine = warp()
        first = QUAD * lane()
        at = SPAN * mine
        while at < words:
            copy(at + first, source, at + first)
            at += SPAN * warps
        commit()
        wait()
        fence()
        barrier()
        c = zeros()
        turn = mine - mine
        while turn < turns:
            c = product(c, 0, left_words)
            turn += 1
        put(target, (block() * warps + mine) * size + first, SPAN, as_words(c))

    return kernel
