"""The product on warpgroups for rows of w that begin anywhere (compute capability 9.0).

For y = x w^T with x [M, K], w [N, K], where K is not a multiple of 8 and the copy engine (`linear_stream`) cannot read
w. Both operands come in slabs 64 deep, by asynchronous copies into ``stages`` buffers in shared memory, swizzled as
`linear_full` does, which is a layout that ``wgmma`` reads in place: no operand passes registers. A block's tile of y is
one product of a *left* operand of 64 rows for each of its warpgroups and a *right* one of ``columns`` rows, at most
256. Left is x and right is w; or, ``turned``, left is w and right is x, so that few rows of x are not padded to 64:
the tensor cores then form y^T.

Rows of w are copied by words of 4 bytes. If K is odd, every other row begins within a word: a tile is then made of rows
that begin alike, two apart (``phases``), and those that begin within a word are read from the element before on, which
is set to zero when it has arrived. x is read from padded copies that are shifted as much (`linear_realign`), which are
made while the first weights come. Where w does not end on 4 bytes, its last row cannot be read so.

Products run ahead of the warps that issue them, so that tensor cores do not wait for a barrier: two slabs are theirs,
the one they work on and the one before it, whose end only the next barrier makes known to all; the others are being
filled. The sums of a tile stay in registers.

A tile need not be whole: ``pitch`` rows of w belong to it, so that every SM reads as many bytes of the weights, which
is what counts for few rows of x. The tensor cores multiply zeros beyond. Blocks that split K meet in shared memory, as
those of `linear_stream` do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba.linear_full import CHUNKS, ROW_WORDS, SLAB
from kernels_numba.linear_realign import CHUNK
from kernels_numba.tile.layout import row_words

CAPABILITY = (9, 0)
"""The only compute capability with ``wgmma``."""
GROUP_ROWS = 64
"""Rows of a warpgroup's product."""
GROUP_WARPS = 4


class WarpgroupTile:
    """What a tile of the products on warpgroups takes, here and in `linear_stream`."""

    groups: int
    columns: int
    turned: bool

    @property
    def left_rows(self) -> int:
        """Rows of the left operand in a tile."""
        return GROUP_ROWS * self.groups

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
    def registers(self) -> int:
        """Accumulators of a lane."""
        return self.columns // 2


@dataclass(frozen=True)
class Spec(WarpgroupTile):
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
    words: bool = False
    """Rows of w do not begin on 16 bytes,"""
    phases: int = 1
    """and begin at 1 or 2 places within a word: rows of a tile are so far apart."""
    cluster: int = 1
    """Blocks that split K between them."""
    overlap: bool = False
    """The first weights are loaded while the launch before still runs."""
    halves: int = 2
    """Elements of y that are stored together."""
    staged: bool = False
    """Results leave through shared memory, in whole rows."""
    blocks: int = 1
    """Blocks per SM that the compiler must leave registers for."""

    def __post_init__(self) -> None:
        if self.columns not in range(16 * self.groups, 257, 16 * self.groups):
            raise ValueError(
                f"columns: {self.groups} warpgroups copy {16 * self.groups} rows at once and a product has at most 256 "
                f"columns, so a multiple up to 256; got {self.columns}"
            )
        if self.cluster not in range(1, 9) or self.columns % (8 * self.cluster):
            raise ValueError(
                f"cluster: up to 8 blocks share a tile, and each stores an equal part of its columns, "
                f"{self.columns}, in eights; got {self.cluster}"
            )
        if self.ahead < 1:
            raise ValueError(
                f"stages: two are used while others are filled, so at least 3; got {self.stages}"
            )
        check_room(self, self.warps)

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return GROUP_WARPS * self.groups

    @property
    def ahead(self) -> int:
        """Slabs on their way while one is used."""
        return self.stages - 2

    @property
    def shared_bytes(self) -> int:
        """All stages."""
        return 4 * self.stages * self.stage_words

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        flags = {"t": self.turned, "r": self.staged, "o": self.overlap}
        flags |= {f"p{self.phases}": self.words, f"c{self.cluster}": self.cluster > 1}
        marks = "".join(f"_{mark}" for mark, on in flags.items() if on)
        shape = f"{self.left_rows}x{self.columns}_s{self.stages}"
        return f"group_gemm_{shape}_{self.dtype}_v{self.halves}_b{self.blocks}{marks}"


def check_room(spec: Any, workers: int) -> None:
    """Raise if what leaves a tile through the slabs' shared memory does not fit: sums that meet, and results."""
    leaving = spec.tile_sums * (spec.cluster > 1) + 16 * workers * row_words(spec.columns // spec.cluster)
    if leaving > spec.stages * spec.stage_words:
        raise ValueError(
            f"stages: sums and results leave through {leaving} words of their shared memory; {spec.stages} have "
            f"{spec.stages * spec.stage_words}"
        )


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    left_rows, columns, stages, stage_words = spec.left_rows, spec.columns, spec.stages, spec.stage_words
    turned, overlap, parts = spec.turned, spec.overlap, spec.cluster
    # Where the operands of a stage lie, and how many rows they have.
    left_words = left_rows * ROW_WORDS
    x_rows, w_rows = spec.x_rows, spec.w_rows
    x_at, w_at = (left_words, 0) if turned else (0, left_words)
    threads = 32 * spec.warps
    copied_rows = threads // CHUNKS
    step = 2 * ROW_WORDS * copied_rows
    lane, warp, block, divide, barrier = tile.lane, tile.warp, tile.block, tile.divide, tile.barrier
    small, int64, opaque, fence = tile.small, tile.int64, tile.opaque, tile.fence_async
    copy_x = tile.copy_rows(x_rows // copied_rows, step, copied_rows, guarded=True)
    phases = spec.phases
    edges = phases > 1
    # By words, sixteen lanes bring one half of a row and then the other.
    words, word_rows = spec.words, threads // 16
    if words:
        copy_w = tile.copy_words(w_rows // word_rows, 2 * ROW_WORDS * word_rows, word_rows)
    else:
        copy_w = tile.copy_rows(w_rows // copied_rows, step, copied_rows, guarded=True)
    clear = tile.clear_halves(w_rows // word_rows, 2 * ROW_WORDS * word_rows, 1)
    ahead = spec.ahead
    commit, wait, wait_all = tile.commit, tile.wait(ahead - 1), tile.wait(0)
    registers, mine = spec.registers, spec.registers // parts
    zeros, begin_products = tile.zeros(registers), tile.group_mma_add(columns, SLAB // 16)
    finish_before, finish = tile.group_wait(columns, 1), tile.group_wait(columns, 0)
    store = (tile.store_group_turned if turned else tile.store_group)(columns // parts, spec.halves, phases)
    wait_for_previous, let_next_start = tile.wait_for_previous, tile.let_next_start
    meet, take, give = tile.meet_cluster, tile.part_of(registers, parts), tile.give_sums(mine)
    add = tile.add(mine)
    get, as_floats = tile.load_shared(mine, 4), tile.as_floats(mine)
    part_words = spec.tile_sums // parts
    staged = spec.staged
    put_rows, staged_words = tile.store_group_rows(columns // parts), 16 * row_words(columns // parts)
    # Behind the sums of the blocks that share a tile.
    staged_at = spec.tile_sums if parts > 1 else 0
    part_rows, part_columns = (columns // parts, 0) if turned else (0, columns // parts)

    def kernel(x, w, y, m, n, k, x_stride, w_stride, plane, x_tiles, pitch):
        at = lane()
        index = small(warp())
        place = small(block())
        part = small(0)
        if parts > 1:
            place = small(divide(block(), parts))
            part = small(block() - place * parts)
        across = small(divide(place, x_tiles))
        x_begin = small((place - across * x_tiles) * x_rows)
        phase = small(0)
        if edges:
            stripe = small(divide(across, phases))
            phase = small(across - stripe * phases)
            across = stripe
        w_begin = small(across * pitch)
        w_end = small(min(divide(n - phase + (phases - 1), phases), w_begin + pitch))
        # Rows that begin within a word are read from one element before on; x is shifted alike.
        lead = small(phase & k & 1)
        first_slab = small(0)
        slabs = small(divide(k + (phases - 1) + (SLAB - 1), SLAB))
        if parts > 1:
            first_slab = small(divide(part * slabs, parts))
            slabs = small(divide((part + 1) * slabs, parts) - first_slab)
        # Copies of x: eight lanes bring the eight chunks of a row.
        thread = small(32 * index + at)
        row = small(thread >> 3)
        chunk = small(thread & 7)
        to = small(2 * (row * ROW_WORDS + ((chunk ^ (row & 7)) << 2)))
        x_step = int64(copied_rows) * x_stride
        x_column = small(CHUNK * chunk + SLAB * first_slab)
        from_x = int64(x_begin + row) * x_stride + x_column + int64(phase) * plane
        x_left = small(m - x_begin - row)
        # Of w, by words: the chunks of the second half of a row are four further on, before they are swizzled.
        w_row = small(thread >> 4)
        word = small(thread & 15)
        into = small(2 * w_row * ROW_WORDS + 2 * (word & 3))
        w_to = small(into + 8 * ((word >> 2) ^ (w_row & 7)))
        w_to_second = small(into + 8 * (((word >> 2) + 4) ^ (w_row & 7)))
        w_step = int64(word_rows * phases) * w_stride
        w_column = small(2 * word + SLAB * first_slab)
        from_w = int64((w_begin + w_row) * phases + phase) * w_stride + w_column - lead
        w_left = small(w_end - w_begin - w_row)
        w_depth = small(lead + k - w_column)
        # Or as x.
        chunk_step = int64(copied_rows) * w_stride
        from_chunk = int64(w_begin + row) * w_stride + x_column
        chunk_left = small(w_end - w_begin - row)

        def bring_x(stage, slab):
            """Copy a slab of x to a stage."""
            copy_x(
                2 * (stage + x_at) + to,
                x,
                from_x + SLAB * slab,
                x_step,
                x_left,
                x_column + SLAB * slab < x_stride,
            )

        def bring_w(stage, slab):
            """The same of w."""
            if words:
                start, rest = from_w + SLAB * slab, small(w_depth - SLAB * slab)
                copy_w(2 * (stage + w_at) + w_to, w, start, w_step, w_left, rest)
                copy_w(2 * (stage + w_at) + w_to_second, w, start + 32, w_step, w_left, rest - 32)
            else:
                copy_w(
                    2 * (stage + w_at) + to,
                    w,
                    from_chunk + SLAB * slab,
                    chunk_step,
                    chunk_left,
                    x_column + SLAB * slab < k,
                )

        if overlap:
            for s in range(ahead):
                if s < slabs:
                    bring_w(s * stage_words, s)
            wait_for_previous()
            let_next_start()
        for s in range(ahead):
            if s < slabs:
                bring_x(s * stage_words, s)
                if not overlap:
                    bring_w(s * stage_words, s)
            commit()
        coming = small(ahead * stage_words)
        here = small(0)
        left = small((index >> 2) * (GROUP_ROWS * ROW_WORDS))
        c = zeros()
        for s in range(opaque(slabs)):
            wait()
            if edges:
                if first_slab + s == 0:
                    # What lies before the rows is not theirs.
                    clear(2 * (here + w_at) + w_to, small(lead * (word == 0)))
            fence()
            barrier()
            # Here every warp has seen the end of the products before the last: their slab is free.
            c = begin_products(c, here + left, here + left_words)
            if s + ahead < slabs:
                bring_x(coming, s + ahead)
                bring_w(coming, s + ahead)
            commit()
            coming = small(coming + stage_words)
            if coming == stages * stage_words:
                coming = small(0)
            here = small(here + stage_words)
            if here == stages * stage_words:
                here = small(0)
            c = finish_before(c)
        c = finish(c)
        wait_all()

        def leave(values):
            """Results to y."""
            out_row = small(x_begin + part * part_rows)
            out_column = small(w_begin + part * part_columns)
            if staged:
                out_row = small(out_row + 16 * index)
                to_y = int64(out_row) * n + out_column
                put_rows(
                    y, staged_at + index * staged_words, to_y, n, m - out_row, w_end - out_column, values
                )
            else:
                if turned:  # of y: row g and columns 2 t, 2 t + 1 of each 8 x 8 block
                    out_row = small(out_row + (at >> 2))
                    out_column = small(out_column + 16 * index + 2 * (at & 3))
                else:
                    out_row = small(out_row + 16 * index + (at >> 2))
                    out_column = small(out_column + 2 * (at & 3))
                to_y = int64(out_row) * n + (out_column * phases + phase)
                store(y, to_y, n, m - out_row, w_end - out_column, values)

        if parts > 1:
            # Of the sums each block adds up an equal part of the columns.
            words_at = small(index * (32 * mine) + 4 * at)
            meet()
            for to_block in range(parts):
                give(words_at + part * part_words, to_block, take(c, to_block))
            meet()
            total = as_floats(get(words_at, 128))
            for p in range(1, parts):
                total = add(total, as_floats(get(words_at + p * part_words, 128)))
            leave(total)
        else:
            if staged:
                barrier()  # nobody reads the slabs any more
            leave(c)

    return kernel


VOCABULARY = "linear"
SIGNATURE = ("HALVES",) * 3 + ("INT",) * 8
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return spec.blocks
