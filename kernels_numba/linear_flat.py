"""The flat product: few rows of input against many rows of weights, on tensor cores, at the speed of memory.

For y = x w^T with x [M, K], w [N, K] and M at most 64 every weight is used M times and read once, so time is the
weights' bytes. Tensor cores multiply 16 rows by 8 columns, 16 deep (``mma.m16n8k16``). The *weights* are the 16-row
operand here and the batch, padded to a multiple of 8 inside the instruction, the 8-column one (FlashDecoding++, Hong et
al., arXiv 2311.01282, section 4, pads to 8 instead of 64).

**Weights stream through shared memory.** Each warp has a ring of ``stages`` batches there; a batch is 16 ``row_tiles``
rows of w, ``steps`` times 32 elements deep, brought by asynchronous copies of 128 or 256 contiguous bytes of a row.
Nobody else reads it, so no barrier is needed; what is under way holds no registers and was asked for before the
products of the batch before. A product may visit k in any order if both operands do: lane 4 g + t takes the 16 bytes of
chunk 4 s + t (8 elements) of row g, which are, as they stand, its share of *two* steps of the instruction, and the same
chunk of row g of x.

**Work.** A block takes an equal share of the rows of w, in tiles; rows of a tile beyond its share are not loaded, so
shares need not be whole tiles, and all SMs read as much. The warps of a block take batches along K in turn (and so do
the ``split`` blocks that share their rows, where N is small); their sums meet in shared memory, those of blocks in
device memory, in float32 and in a fixed order, so a result does not depend on timing. The copies of the next tile are
under way meanwhile.

**Rows that do not begin on 16 bytes** (K not a multiple of 8): row n begins n K halves on, so rows ``phases`` = 8 /
gcd(K, 8) apart are alike. A tile is made of such rows; its chunks are the aligned ones, which begin ``head`` < 8
elements in, and the few elements before and after them are one more step of products. x must follow: it is read from
copies shifted by each head (`linear_realign`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_COLUMN_TILES = 8


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    dtype: str
    column_tiles: int = 1
    """Rows of x, in tiles of 8: M <= 8 column_tiles."""
    row_tiles: int = 1
    """Rows of w that are multiplied together, in tiles of 16 (the tile width B_N is 16 row_tiles)."""
    steps: int = 4
    """32-deep steps in a batch, 2 or 4."""
    stages: int = 2
    """Batches of a warp's ring; all but one are under way (two: double buffering, one: none)."""
    warps: int = 8
    edges: bool = False
    """K is not a multiple of 8."""
    split: bool = False
    """Several blocks share their rows."""
    overlap: bool = False
    """Weights are loaded while the launch before still runs (compute capability 9)."""
    blocks: int = 1
    """Blocks per SM that the compiler must leave registers for."""

    @property
    def registers(self) -> int:
        """Accumulators of a lane."""
        return 4 * self.row_tiles * self.column_tiles

    @property
    def ring_words(self) -> int:
        """Shared memory of the rings of all warps, in words."""
        return self.warps * self.stages * self.row_tiles * self.tile_words

    @property
    def batch_chunks(self) -> int:
        """Chunks of 8 halves of each row in a batch."""
        return 4 * self.steps

    @property
    def tile_words(self) -> int:
        """Words of 16 rows of a batch."""
        return 16 * 4 * self.batch_chunks

    @property
    def shared_bytes(self) -> int:
        """The rings, and the sums of all warps."""
        return 4 * (self.ring_words + 32 * self.registers * self.warps)

    @property
    def rows(self) -> int:
        """Rows of w that are multiplied together, B_N."""
        return 16 * self.row_tiles

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        flags = {"e": self.edges, "s": self.split, "o": self.overlap}
        marks = "".join(mark for mark, on in flags.items() if on)
        shape = f"n{self.rows}_m{8 * self.column_tiles}_k{32 * self.steps}_s{self.stages}_w{self.warps}"
        return f"flat_gemm_{shape}_{self.dtype}" + (f"_{marks}" if marks else "")


def weight_pieces(row_tiles: int, steps: int) -> Any:
    """Loads of a batch of weights, from shared memory, as an A operand [row_tiles, 2 steps]: see ``load_pieces``.

    The chunks of odd rows are stored with bit 2 flipped, so that eight lanes (two rows, four chunks) touch all banks:
    the first lane offset is of even steps, the second of odd ones.
    """
    pieces = []
    row_words = 16 * steps
    for d in range(steps):
        for m in range(row_tiles):
            first = (m * 2 * steps + 2 * d) * 4
            for half in range(2):  # rows g and g + 8: registers 0, 2 and 1, 3 of both k-tiles
                registers = tuple(first + half + i for i in (0, 2, 4, 6))
                pieces.append((d % 2, 32 * (d // 2) + row_words * (8 * half + 16 * m), registers))
    return tuple(pieces)


def input_pieces(column_tiles: int, steps: int) -> Any:
    """Loads of the same batch of x, from global memory, as a B operand [2 steps, column_tiles]."""
    pieces = []
    for d in range(steps):
        for n in range(column_tiles):
            near, far = (2 * ((2 * d + j) * column_tiles + n) for j in range(2))
            pieces.append((n, 4 * d, (near, near + 1, far, far + 1)))
    return tuple(pieces)


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    row_tiles, column_tiles, warps, stages = spec.row_tiles, spec.column_tiles, spec.warps, spec.stages
    edges, split_k, overlap = spec.edges, spec.split, spec.overlap
    registers, tile_rows, ring_words = spec.registers, spec.rows, spec.ring_words
    steps, batch = spec.steps, spec.batch_chunks
    stage_words = row_tiles * spec.tile_words
    row_words = 4 * batch
    # A copy of the warp is 32 / batch rows of a batch.
    row_shift, row_mask, copied_rows = batch.bit_length() - 1, batch - 1, 32 // batch
    lane, warp, block, divide, barrier = tile.lane, tile.warp, tile.block, tile.divide, tile.barrier
    small, int64, opaque, warp_sync = tile.small, tile.int64, tile.opaque, tile.warp_sync
    copy = tile.copy_rows(tile_rows // copied_rows, 256, copied_rows, guarded=True)
    commit, wait = tile.commit, tile.wait(max(stages - 2, 0))
    load_w = tile.load_pieces(weight_pieces(row_tiles, steps), 8 * row_tiles * steps)
    column_places = tile.places(column_tiles)
    load_x = tile.load_chunks(input_pieces(column_tiles, steps), guarded=True, stream=False)
    row_places = tile.places(2 * row_tiles)
    edge_w = tile.load_pairs(tuple((2 * m + r % 2, r // 2, 0) for m in range(row_tiles) for r in range(4)))
    edge_x = tile.load_pairs(tuple((n, r, 0) for n in range(column_tiles) for r in range(2)))
    zeros, mma_add = tile.zeros(registers), tile.mma_add(row_tiles, column_tiles, 2 * steps)
    mma_edge = tile.mma_add(row_tiles, column_tiles, 1)
    as_words, as_float, add = tile.as_words(registers), tile.as_floats(1), tile.add(1)
    put = tile.store_shared_pieces(tuple((0, 32 * r, (r,)) for r in range(registers)))
    get, store, load_fresh, store_float = (
        tile.load_shared(1, 1),
        tile.store_rounded,
        tile.load_fresh,
        tile.store_float,
    )
    wait_for_previous, let_next_start, last_block = (
        tile.wait_for_previous,
        tile.let_next_start,
        tile.last_block,
    )

    def kernel(x, shifted, w, partials, counters, y, m, n, k, row_stride, plane, phases, split, shares):
        at = lane()
        g = small(at >> 2)
        t = small(at & 3)
        index = small(warp())
        group = small(divide(block(), split))
        part = small(block() - group * split)
        # A share: rows first, first + phases, ... below the limit.
        stripe = small(divide(group, phases))
        phase = small(group - stripe * phases)
        alike = small(divide(n - phase + phases - 1, phases))  # rows of this phase
        begin = small(divide(stripe * alike, shares))
        end = small(divide((stripe + 1) * alike, shares))
        tiles = small(divide(end - begin + (tile_rows - 1), tile_rows))
        head = small(0)
        if edges:
            head = small((8 - ((phase * (k & 7)) & 7)) & 7)
            if head > k:
                head = small(k)
        chunks = small((k - head) >> 3)
        # Batches go round all warps of the blocks of a share; every warp takes a turn, if only of zeros.
        worker = small(part * warps + index)
        workers = small(split * warps)
        batches = small(divide(chunks + (batch - 1), batch))
        turns = small(divide(batches + workers - 1 - worker, workers))
        if turns < 1:
            turns = small(1)
        stride = int64(phases) * k
        total = small(tiles * turns)
        # The ring: the chunks of odd rows have bit 2 of their place flipped.
        down = small(at >> row_shift)
        chunk = small(at & row_mask)
        ring = small(index * (stages * stage_words))
        to = small(2 * ring + 2 * (down * row_words + ((chunk ^ ((down & 1) << 2)) << 2)))
        low = small(ring + g * row_words + ((t ^ ((g & 1) << 2)) << 2))
        high = small(ring + g * row_words + (((t + 4) ^ ((g & 1) << 2)) << 2))
        # What is copied next: which turn of which rows, and to which stage.
        from_row = int64(begin + down) * stride + int64(phase) * k + head
        copy_chunk = small(worker * batch + chunk)
        copy_turn = small(0)
        copy_left = small(end - begin - down)

        def bring(stage, turn, at_chunk, left, at_row):
            """Copy a batch into a stage; what comes next: the next turn, or the first one of the next rows."""
            copy(
                to + 2 * stage_words * stage,
                w,
                at_row + 8 * at_chunk,
                copied_rows * stride,
                left,
                at_chunk < chunks,
            )
            at_chunk = small(at_chunk + workers * batch)
            turn = small(turn + 1)
            if turn == turns:
                turn = small(0)
                at_chunk = small(worker * batch + chunk)
                left = small(left - tile_rows)
                at_row = at_row + tile_rows * stride
            return turn, at_chunk, left, at_row

        copied = small(0)
        stage = small(0)
        while copied < stages - 1:
            if copied < total:
                copy_turn, copy_chunk, copy_left, from_row = bring(
                    copied, copy_turn, copy_chunk, copy_left, from_row
                )
            commit()
            copied = small(copied + 1)
        if overlap:
            wait_for_previous()
            let_next_start()
        columns = column_places(g, 8, m - 1, row_stride, phase * plane)
        first_chunk = small(worker * batch + t)
        turn = small(0)
        at_chunk = first_chunk
        b = load_x(shifted, at_chunk, chunks, columns)
        into = small(stages - 1)
        row = small(begin)
        c = zeros()
        for s in range(opaque(total)):
            if stages > 1:
                wait()
                warp_sync()
            # Into the stage that was used a turn ago.
            if s + (stages - 1) < total:
                copy_turn, copy_chunk, copy_left, from_row = bring(
                    into, copy_turn, copy_chunk, copy_left, from_row
                )
            commit()
            if stages == 1:
                wait()
                warp_sync()
            here = small(stage * stage_words)
            a = load_w(low + here, high + here, 0, 0)
            turn = small(turn + 1)
            at_chunk = small(at_chunk + workers * batch)
            if turn == turns:
                at_chunk = first_chunk
            following = load_x(shifted, at_chunk, chunks, columns)
            c = mma_add(c, a, b)
            b = following
            into = stage
            stage = small(stage + 1)
            if stage == stages:
                stage = small(0)
            if stages == 1:
                warp_sync()
            if turn == turns:
                # The tile is done: sums over warps, and over blocks.
                turn = small(0)
                if edges:
                    if worker == 0:
                        # What lies before the first and after the last chunk: up to 7 elements each.
                        far = small(head + 8 * chunks + 2 * t)
                        whole_rows = row_places(row + g, 8, end - 1, stride, phase * int64(k))
                        whole_columns = column_places(g, 8, m - 1, k, 0)
                        a_edge = edge_w(w, 2 * t, head, far, k, whole_rows)
                        c = mma_edge(c, a_edge, edge_x(x, 2 * t, head, far, k, whole_columns))
                mine = small(ring_words + index * (32 * registers) + at)
                put(mine, mine, mine, mine, as_words(c))
                barrier()
                for r in range(index, registers, warps):
                    place = small(ring_words + 32 * r + at)
                    sum_ = as_float(get(place, 0))
                    for v in range(1, warps):
                        sum_ = add(sum_, as_float(get(place + v * (32 * registers), 0)))
                    pair = small(r >> 1)
                    below = small(divide(pair, column_tiles))
                    column = small(8 * (pair - below * column_tiles) + 2 * t + (r & 1))
                    out = small(row + 8 * below + g)
                    live = small((out < end) & (column < m))
                    if split_k:
                        # Partial sums: [part, column, row of the phase].
                        to_partial = (int64(part * m + column) * phases + phase) * n + out
                        store_float(partials, to_partial, live != 0, sum_)
                    else:
                        store(y, int64(column) * n + out * phases + phase, live != 0, sum_)
                barrier()
                c = zeros()
                row = small(row + tile_rows)
        if split_k:
            if last_block(counters, group, split):
                size = int64(m * phases) * n
                for i in range(index * 32, (end - begin) * m, warps * 32):
                    item = small(i + at)
                    column = small(divide(item, end - begin))
                    out = small(begin + item - column * (end - begin))
                    inside = small(item < (end - begin) * m)
                    place = ((int64(column) * phases + phase) * n + out) * inside
                    sum_ = load_fresh(partials, place)
                    for p in range(1, split):
                        sum_ = add(sum_, load_fresh(partials, place + p * size))
                    store(y, int64(column) * n + out * phases + phase, inside != 0, sum_)

    return kernel


VOCABULARY = "linear"
SIGNATURE = ("HALVES",) * 3 + ("FLOATS", "WORDS", "HALVES") + ("INT",) * 8
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return spec.blocks
