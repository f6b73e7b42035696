"""The full product on warpgroups: many rows of input at the rate of ``wgmma`` (compute capability 9.0).

For y = x w^T with x [M, K], w [N, K], both operands as they lie in memory: rows along K. A block's tile of y is one
product of a *left* operand of 64 rows for each of its warpgroups and a *right* one of ``columns`` rows, at most 256.
Left is x and right is w; or, ``turned``, left is w and right is x, so that few rows of x are not padded to 64: the
tensor cores then form y^T. Both come in slabs 64 deep, by asynchronous copies into ``stages`` buffers in shared memory,
swizzled as `linear_full` does, which is a layout that ``wgmma`` reads in place: no operand passes registers.

Products run ahead of the warps that issue them, so that tensor cores do not wait for a barrier: two slabs are theirs,
the one they work on and the one before it, whose end only the next barrier makes known to all; the others are being
filled. The sums of a tile stay in registers.

Turned, a tile need not be a whole number of 64 rows: ``pitch`` rows of w belong to it, so that every SM reads as many
bytes of the weights, which is what counts for few rows of x. The tensor cores multiply zeros beyond.

Tiles, their order, the split of K and launches that overlap are as in `linear_full`.

**Rows of w that do not begin on 16 bytes** (K not a multiple of 8): rows ``phases`` = 8 / gcd(K, 8) apart begin
alike, and a tile is made of such rows. They are copied from the whole chunk on in which they begin; the up to 7
elements before are set to zero when they have arrived, and what lies behind the row is not copied. x is read from
copies that are shifted as much, with zeros before (`linear_realign`). For many rows of x it is cheaper to copy w to
padded rows first; and where w does not end on 16 bytes, its last row cannot be read so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba.linear_full import CHUNKS, ROW_WORDS, SLAB
from kernels_numba.linear_realign import CHUNK

CAPABILITY = (9, 0)
"""The only compute capability with ``wgmma``."""
GROUP_ROWS = 64
"""Rows of a warpgroup's product."""
GROUP_WARPS = 4


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    dtype: str
    groups: int = 2
    """Warpgroups of a block, 64 rows of the left operand each."""
    columns: int = 256
    """Rows of the right operand in a tile."""
    stages: int = 4
    """Slabs in shared memory: two are used, the others on their way."""
    turned: bool = False
    """The left operand is w."""
    guarded: bool = False
    """Some tiles or slabs are not whole."""
    phases: int = 1
    """Places within 16 bytes at which rows of w begin: rows of a tile are so far apart (`linear_realign`)."""
    split: bool = False
    """Several blocks share a tile."""
    overlap: bool = False
    """The first weights are loaded while the launch before still runs."""
    halves: int = 2
    """Elements of y that are stored together."""
    blocks: int = 1
    """Blocks per SM that the compiler must leave registers for."""

    def __post_init__(self) -> None:
        if self.columns not in range(16 * self.groups, 257, 16 * self.groups):
            raise ValueError(
                f"columns: {self.groups} warpgroups copy {16 * self.groups} rows at once and a product has at most 256 "
                f"columns, so a multiple up to 256; got {self.columns}"
            )
        if self.ahead < 1:
            raise ValueError(
                f"stages: two are used while others are filled, so at least 3; got {self.stages}"
            )

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return GROUP_WARPS * self.groups

    @property
    def left_rows(self) -> int:
        """Rows of the left operand in a tile."""
        return GROUP_ROWS * self.groups

    @property
    def ahead(self) -> int:
        """Slabs on their way while one is used."""
        return self.stages - 2

    @property
    def x_rows(self) -> int:
        """Rows of x in a tile."""
        return self.columns if self.turned else self.left_rows

    @property
    def w_rows(self) -> int:
        """Rows of w that a tile has room for."""
        return self.left_rows if self.turned else self.columns

    @property
    def tile_sums(self) -> int:
        """Sums of a tile."""
        return self.left_rows * self.columns

    @property
    def stage_words(self) -> int:
        """Shared memory of one slab of both operands, in words."""
        return (self.left_rows + self.columns) * ROW_WORDS

    @property
    def shared_bytes(self) -> int:
        """All stages."""
        return 4 * self.stages * self.stage_words

    @property
    def registers(self) -> int:
        """Accumulators of a lane."""
        return self.columns // 2

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        flags = {"t": self.turned, "g": self.guarded, "s": self.split, "o": self.overlap}
        flags |= {f"p{self.phases}": self.phases > 1}
        marks = "".join(f"_{mark}" for mark, on in flags.items() if on)
        shape = f"{self.left_rows}x{self.columns}_s{self.stages}"
        return f"group_gemm_{shape}_{self.dtype}_v{self.halves}_b{self.blocks}{marks}"


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    left_rows, columns, stages, stage_words = spec.left_rows, spec.columns, spec.stages, spec.stage_words
    turned, overlap, split_k = spec.turned, spec.overlap, spec.split
    # Where the operands of a stage lie, and how many rows they have.
    left_words = left_rows * ROW_WORDS
    x_rows, w_rows = spec.x_rows, spec.w_rows
    x_at, w_at = (left_words, 0) if turned else (0, left_words)
    threads = 32 * spec.warps
    copied_rows = threads // CHUNKS
    step = 2 * ROW_WORDS * copied_rows
    lane, warp, block, divide, barrier = tile.lane, tile.warp, tile.block, tile.divide, tile.barrier
    small, int64, opaque, fence = tile.small, tile.int64, tile.opaque, tile.fence_async
    copy_x = tile.copy_rows(x_rows // copied_rows, step, copied_rows, guarded=spec.guarded)
    phases = spec.phases
    edges = phases > 1
    copy_w = tile.copy_rows(
        w_rows // copied_rows, step, copied_rows, guarded=spec.guarded or edges, partial=edges
    )
    clear = tile.clear_halves(w_rows // copied_rows, step, CHUNK - 1)
    ahead = spec.ahead
    commit, wait, wait_all = tile.commit, tile.wait(ahead - 1), tile.wait(0)
    registers, tile_sums = spec.registers, spec.tile_sums
    zeros, begin_products = tile.zeros(registers), tile.group_mma_add(columns, SLAB // 16)
    finish_before, finish = tile.group_wait(columns, 1), tile.group_wait(columns, 0)
    store = (tile.store_group_turned if turned else tile.store_group)(columns, spec.halves, phases)
    wait_for_previous, let_next_start = tile.wait_for_previous, tile.let_next_start
    store_sums, load_sums, add, last_block = (
        tile.store_sums(registers),
        tile.load_sums(registers),
        tile.add(registers),
        tile.last_block,
    )

    def kernel(
        x, w, partials, counters, y, m, n, k, x_stride, w_stride, plane, x_tiles, tiles, walkers, split, pitch
    ):
        at = lane()
        index = small(warp())
        # A block takes every walkers-th tile, and of each the same part of K.
        first_tile = small(block())
        part = small(0)
        if split_k:
            first_tile = small(divide(block(), split))
            part = small(block() - first_tile * split)
        # Copies: eight lanes bring the eight chunks of a row.
        thread = small(32 * index + at)
        row = small(thread >> 3)
        chunk = small(thread & 7)
        to = small(2 * (row * ROW_WORDS + ((chunk ^ (row & 7)) << 2)))
        x_step = int64(copied_rows) * x_stride
        w_step = int64(copied_rows * phases) * w_stride
        first_slab = small(0)
        # Rows of w are read from whole chunks on, up to 7 elements early; x is shifted alike.
        deepest = small(k + (CHUNK - 1 if edges else 0))
        slabs = small(divide(deepest + (SLAB - 1), SLAB))
        if split_k:
            first_slab = small(divide(part * slabs, split))
            slabs = small(divide((part + 1) * slabs, split) - first_slab)
        first_chunk = small(8 * chunk + SLAB * first_slab)
        depth = small((x_stride if edges else k) - first_chunk)

        def corner(place):
            """The first rows of x and of w of a tile, where its rows of w end, and their phase."""
            across = small(divide(place, x_tiles))
            x_begin = small((place - across * x_tiles) * x_rows)
            phase = small(0)
            if edges:
                stripe = small(divide(across, phases))
                phase = small(across - stripe * phases)
                across = stripe
            w_begin = small(across * pitch)
            return (
                x_begin,
                w_begin,
                small(min(divide(n - phase + (phases - 1), phases), w_begin + pitch)),
                phase,
            )

        def bring_x(stage, first, phase, slab):
            """Copy a slab of x, from its row ``first`` on, to a stage."""
            start = int64(first + row) * x_stride + (first_chunk + SLAB * slab) + int64(phase) * plane
            copy_x(2 * (stage + x_at) + to, x, start, x_step, small(m - first - row), SLAB * slab < depth)

        def bring_w(stage, first, end, phase, slab):
            """The same of w, whose rows of this tile end at ``end``."""
            place = small(first_chunk + SLAB * slab)
            start = int64((first + row) * phases + phase) * w_stride + place
            left = small(end - first - row)
            if edges:
                lead = small((phase * k) & (CHUNK - 1))
                copy_w(2 * (stage + w_at) + to, w, start - lead, w_step, left, small(lead + k - place))
            else:
                copy_w(2 * (stage + w_at) + to, w, start, w_step, left, SLAB * slab < depth)

        # What is copied next: which slab of which tile.
        copy_tile = first_tile
        x_begin, w_begin, w_end, phase = corner(first_tile)
        group = small(index >> 2)
        left = small(group * (64 * ROW_WORDS))
        for s in range(ahead):
            if s < slabs:
                bring_w(s * stage_words, w_begin, w_end, phase, s)
        if overlap:
            wait_for_previous()
            let_next_start()
        for s in range(ahead):
            if s < slabs:
                bring_x(s * stage_words, x_begin, phase, s)
            commit()
        copy_slab = small(ahead)
        coming = small(ahead * stage_words)
        here = small(0)
        c = zeros()
        tile_index = first_tile
        while tile_index < tiles:
            if edges:
                out_phase = small(corner(tile_index)[3])
            for s in range(opaque(slabs)):
                wait()
                if edges:
                    if s == 0:
                        # What lies before the rows is not theirs.
                        lead = small(((out_phase * k) & (CHUNK - 1)) * ((first_slab == 0) & (chunk == 0)))
                        clear(2 * (here + w_at) + to, lead)
                fence()
                barrier()
                # Here every warp has seen the end of the products before the last: their slab is free.
                c = begin_products(c, here + left, here + left_words)
                if copy_slab >= slabs:  # on to the next tile, as long as this one's products last
                    if copy_tile < tiles:
                        copy_tile = small(copy_tile + walkers)
                        copy_slab = small(0)
                        x_begin, w_begin, w_end, phase = corner(copy_tile)
                if copy_tile < tiles:
                    bring_x(coming, x_begin, phase, copy_slab)
                    bring_w(coming, w_begin, w_end, phase, copy_slab)
                commit()
                copy_slab = small(copy_slab + 1)
                coming = small(coming + stage_words)
                if coming == stages * stage_words:
                    coming = small(0)
                here = small(here + stage_words)
                if here == stages * stage_words:
                    here = small(0)
                c = finish_before(c)
            c = finish(c)
            out_row, out_column, out_end, out_phase = corner(tile_index)
            if turned:  # of y: row g and columns 2 t, 2 t + 1 of each 8 x 8 block
                out_row = small(out_row + (at >> 2))
                out_column = small(out_column + 16 * index + 2 * (at & 3))
            else:
                out_row = small(out_row + 16 * index + (at >> 2))
                out_column = small(out_column + 2 * (at & 3))
            place = int64(out_row) * n + (out_column * phases + out_phase)
            if split_k:
                mine = int64(tile_index * split) * tile_sums + (index * (32 * registers) + 4 * at)
                store_sums(partials, mine + part * tile_sums, 128, c)
                if last_block(counters, tile_index, split):
                    c = load_sums(partials, mine, 128)
                    for p in range(1, split):
                        c = add(c, load_sums(partials, mine + p * tile_sums, 128))
                    store(y, place, n, m - out_row, out_end - out_column, c)
            else:
                store(y, place, n, m - out_row, out_end - out_column, c)
            c = zeros()
            tile_index = small(tile_index + walkers)
        wait_all()

    return kernel


VOCABULARY = "linear"
SIGNATURE = ("HALVES",) * 2 + ("FLOATS", "WORDS", "HALVES") + ("INT",) * 11
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return spec.blocks


def tiles(spec: Spec, m: int, n: int, pitch: int) -> tuple[int, int]:
    """Tiles of y: along M, along N."""
    return -(-m // spec.x_rows), spec.phases * -(-n // (spec.phases * pitch))
