"""The full product on warpgroups whose operands the copy engine brings (compute capability 9.0).

For y = x w^T with x [M, K], w [N, K], rows of both on 16 bytes. Tiles, operands, the split of K and turned products are
as in `linear_group`; but there every warp copies, in some 160 instructions a slab, and all of them meet at each slab.
Here one warp asks for all operands, two instructions a slab, and writes where they go to nobody: the copy engine finds
addresses, leaves out what lies beyond the matrix, and swizzles (`tensor_maps`). Warpgroups do nothing but multiply.

**Order.** Each of ``stages`` buffers has two barriers in shared memory: *full* opens when the bytes of a slab have
come, *free* when all warps have done with the products that read it. Nobody else waits for anybody. The warp that asks
runs ahead into the next tile, while sums of the last one are stored.

**Boxes.** A block takes ``pitch`` rows of w, as many as give every SM the same, and the box has no row more, nor has
that of x where there are few: rows of the buffer that nobody brings are multiplied, and belong to results that nobody
stores.

**Few rows of w**: the ``cluster`` blocks that split K meet in shared memory: each sends every other one its part of the
sums, and adds up and stores an equal share of the columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba.linear_full import ROW_WORDS, SLAB
from kernels_numba.linear_group import CAPABILITY, GROUP_ROWS, GROUP_WARPS, WarpgroupTile, check_room
from kernels_numba.tensor_maps import MOST_ROWS
from kernels_numba.tile.layout import row_words

__all__ = ["CAPABILITY", "Spec", "build"]

GATE_WORDS = 2


@dataclass(frozen=True)
class Spec(WarpgroupTile):
    """Everything that is compiled into one kernel."""

    dtype: str
    groups: int = 1
    """Warpgroups that multiply, 64 rows of the left operand each."""
    columns: int = 96
    """Rows of the right operand in a tile."""
    stages: int = 8
    """Slabs in shared memory."""
    turned: bool = False
    """The left operand is w."""
    cluster: int = 1
    """Blocks that split K between them."""
    overlap: bool = False
    """The first weights are loaded while the launch before still runs."""
    halves: int = 2
    """Elements of y that are stored together."""
    staged: bool = False
    """Results leave through shared memory, in whole rows: blocks have one tile."""
    blocks: int = 1
    """Blocks per SM that the compiler must leave registers for."""

    def __post_init__(self) -> None:
        if self.cluster not in range(1, 9):
            raise ValueError(f"split: up to 8 blocks of a cluster share a tile; got {self.cluster}")
        unit = 8 * self.cluster
        if self.columns not in range(unit, MOST_ROWS + 1, unit):
            raise ValueError(
                f"columns: each of {self.cluster} blocks stores an equal part of the columns, in eights, and a product "
                f"has at most {MOST_ROWS}, so a multiple of {unit}; got {self.columns}"
            )
        if self.stages < 2:
            raise ValueError(f"stages: one is used while others are filled, so at least 2; got {self.stages}")
        check_room(self, self.warps - 1)

    @property
    def warps(self) -> int:
        """Warps of a block: those that multiply, and one that asks for operands."""
        return GROUP_WARPS * self.groups + 1

    @property
    def ahead(self) -> int:
        """Slabs on their way while one is used."""
        return self.stages - 1

    @property
    def shared_bytes(self) -> int:
        """All stages, and their barriers."""
        return 4 * self.stages * (self.stage_words + 2 * GATE_WORDS)

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        flags = {"t": self.turned, "r": self.staged, f"c{self.cluster}": self.cluster > 1, "o": self.overlap}
        marks = "".join(f"_{mark}" for mark, on in flags.items() if on)
        shape = f"{self.left_rows}x{self.columns}_s{self.stages}"
        return f"stream_gemm_{shape}_{self.dtype}_v{self.halves}_b{self.blocks}{marks}"


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    left_rows, columns, stages, stage_words = spec.left_rows, spec.columns, spec.stages, spec.stage_words
    turned, overlap, parts = spec.turned, spec.overlap, spec.cluster
    left_words = left_rows * ROW_WORDS
    x_rows = spec.x_rows
    x_at, w_at = (left_words, 0) if turned else (0, left_words)
    full_at = stages * stage_words
    free_at = full_at + GATE_WORDS * stages
    workers = spec.warps - 1
    lane, warp, block, divide = tile.lane, tile.warp, tile.block, tile.divide
    small, int64, opaque = tile.small, tile.int64, tile.opaque
    begin_gates, prefetch_map = tile.begin_gates(stages, workers), tile.prefetch_map
    announce, await_barrier, arrive, bring = tile.announce, tile.await_barrier, tile.arrive, tile.bring_box
    registers, mine = spec.registers, spec.registers // parts
    zeros, begin_products = tile.zeros(registers), tile.group_mma_add(columns, SLAB // 16)
    finish_before, finish = tile.group_wait(columns, 1), tile.group_wait(columns, 0)
    store = (tile.store_group_turned if turned else tile.store_group)(columns // parts, spec.halves)
    wait_for_previous, let_next_start = tile.wait_for_previous, tile.let_next_start
    meet, take, give = tile.meet_cluster, tile.part_of(registers, parts), tile.give_sums(mine)
    get, as_floats, add = tile.load_shared(mine, 4), tile.as_floats(mine), tile.add(mine)
    part_words = spec.tile_sums // parts
    staged = spec.staged
    put_rows, staged_words = tile.store_group_rows(columns // parts), 16 * row_words(columns // parts)
    # Behind the sums of the blocks that share a tile.
    staged_at = spec.tile_sums if parts > 1 else 0
    barrier = tile.barrier
    part_rows, part_columns = (columns // parts, 0) if turned else (0, columns // parts)

    def kernel(x, w, y, m, n, k, x_box, pitch, x_tiles, tiles, walkers):
        at = lane()
        index = small(warp())
        # A block takes every walkers-th tile, and of each the same part of K.
        first_tile = small(block())
        part = small(0)
        if parts > 1:
            first_tile = small(divide(block(), parts))
            part = small(block() - first_tile * parts)
        first_slab = small(0)
        slabs = small(divide(k + (SLAB - 1), SLAB))
        if parts > 1:
            first_slab = small(divide(part * slabs, parts))
            slabs = small(divide((part + 1) * slabs, parts) - first_slab)
        turns = small(divide(tiles - first_tile + (walkers - 1), walkers))

        def corner(place):
            """The first rows of x and of w of a tile."""
            across = small(divide(place, x_tiles))
            return small((place - across * x_tiles) * x_rows), small(across * pitch)

        if index == workers:
            prefetch_map(w)
            prefetch_map(x)
        begin_gates(0, full_at)
        c = zeros()
        if index == workers:
            nbytes = small(2 * SLAB * (x_box + pitch))
            x_begin, w_begin = corner(first_tile)
            first = small(0)
            if overlap:
                # The weights of all buffers come while the launch before still runs, x after it.
                first = small(min(slabs, stages))
                for s in range(opaque(first)):
                    announce(full_at + GATE_WORDS * s, nbytes)
                    bring(
                        s * stage_words + w_at, full_at + GATE_WORDS * s, w, w_begin, SLAB * (first_slab + s)
                    )
                wait_for_previous()
                let_next_start()
                for s in range(opaque(first)):
                    bring(
                        s * stage_words + x_at, full_at + GATE_WORDS * s, x, x_begin, SLAB * (first_slab + s)
                    )
            place = first_tile
            next_slab = first
            stage = first
            turn = small(0)
            for _ in range(first, opaque(turns * slabs)):
                if stage == stages:
                    stage = small(0)
                    turn = small(turn + 1)
                if next_slab == slabs:
                    next_slab = small(0)
                    place = small(place + walkers)
                    x_begin, w_begin = corner(place)
                if turn > 0:
                    await_barrier(free_at + GATE_WORDS * stage, small((turn - 1) & 1))
                full = small(full_at + GATE_WORDS * stage)
                announce(full, nbytes)
                bring(stage * stage_words + w_at, full, w, w_begin, SLAB * (first_slab + next_slab))
                bring(stage * stage_words + x_at, full, x, x_begin, SLAB * (first_slab + next_slab))
                stage = small(stage + 1)
                next_slab = small(next_slab + 1)
        else:
            left = small((index >> 2) * (GROUP_ROWS * ROW_WORDS))
            here = small(0)
            before = small(0)
            turn = small(0)
            place = first_tile
            for _ in range(opaque(turns)):
                s = small(0)
                while True:  # there is one slab at least, so that sums begin as one thing
                    await_barrier(full_at + GATE_WORDS * here, turn)
                    c = begin_products(c, here * stage_words + left, here * stage_words + left_words)
                    c = finish_before(c)
                    if s > 0:
                        arrive(free_at + GATE_WORDS * before)
                    before = here
                    here = small(here + 1)
                    if here == stages:
                        here = small(0)
                        turn = small(1 - turn)
                    s = small(s + 1)
                    if s >= slabs:
                        break
                c = finish(c)
                arrive(free_at + GATE_WORDS * before)
                if parts == 1 and not staged:
                    x_begin, w_begin = corner(place)
                    w_end = small(min(n, w_begin + pitch))
                    if turned:  # of y: row g and columns 2 t, 2 t + 1 of each 8 x 8 block
                        out_row = small(x_begin + (at >> 2))
                        out_column = small(w_begin + 16 * index + 2 * (at & 3))
                    else:
                        out_row = small(x_begin + 16 * index + (at >> 2))
                        out_column = small(w_begin + 2 * (at & 3))
                    store(y, int64(out_row) * n + out_column, n, m - out_row, w_end - out_column, c)
                    c = zeros()
                    place = small(place + walkers)

        def leave(values):
            """Results of the first tile to y."""
            x_begin, w_begin = corner(first_tile)
            w_end = small(min(n, w_begin + pitch))
            out_row = small(x_begin + part * part_rows)
            out_column = small(w_begin + part * part_columns)
            if staged:
                out_row = small(out_row + 16 * index)
                to_y = int64(out_row) * n + out_column
                put_rows(
                    y, staged_at + index * staged_words, to_y, n, m - out_row, w_end - out_column, values
                )
            else:
                if turned:
                    out_row = small(out_row + (at >> 2))
                    out_column = small(out_column + 16 * index + 2 * (at & 3))
                else:
                    out_row = small(out_row + 16 * index + (at >> 2))
                    out_column = small(out_column + 2 * (at & 3))
                store(y, int64(out_row) * n + out_column, n, m - out_row, w_end - out_column, values)

        if parts > 1:
            # Of the sums each block adds up an equal part of the columns.
            words = small(index * (32 * mine) + 4 * at)
            meet()
            if index < workers:
                for to in range(parts):
                    give(words + part * part_words, to, take(c, to))
            meet()
            if index < workers:
                total = as_floats(get(words, 128))
                for p in range(1, parts):
                    total = add(total, as_floats(get(words + p * part_words, 128)))
                leave(total)
        elif staged:
            barrier()  # nobody reads the slabs any more
            if index < workers:
                leave(c)

    return kernel


VOCABULARY = "linear"
SIGNATURE = ("MAPS", "MAPS", "HALVES") + ("INT",) * 8
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return spec.blocks
