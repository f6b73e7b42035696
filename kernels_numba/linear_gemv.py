"""The vector product: one row of input, or a few, against many rows of weights, on CUDA cores.

For y = x w^T with x [M, K], w [N, K] and M at most `MAX_COLUMNS` nothing is gained by tensor cores: every weight is
read once, so time is the weights' bytes. A block takes ``rows`` outputs; a warp's lanes lie along K, 16 bytes each, so
that one of its loads is 512 contiguous bytes of a row of w. Each lane widens its halves to float32, multiplies and adds
in float32 (one rounding for each product added), and the lanes' sums are added by a butterfly of shuffles.

Batches of loads, the split of K over the warps of a block and over blocks, the order of sums and rows that do not begin
on 16 bytes are as in `linear_flat`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MAX_COLUMNS = 4
WARP_CHUNKS = 32
"""Chunks of 8 halves in one load of a warp."""


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    dtype: str
    columns: int = 1
    """Rows of x, M."""
    rows: int = 4
    """Outputs of a block."""
    depth: int = 4
    """Loads of each row in one batch: a lane has rows depth loads of 16 bytes under way."""
    warps: int = 4
    guarded: bool = False
    """Some batches are not whole, or some warps have none."""
    edges: bool = False
    """K is not a multiple of 8."""
    split: bool = False
    """Several blocks share their outputs."""
    double_buffer: bool = False
    """The next batch's loads are issued before this one is used; more warps do as well with fewer registers."""
    overlap: bool = False
    """Weights are loaded while the launch before still runs (compute capability 9)."""
    blocks: int = 1
    """Blocks per SM that the compiler must leave registers for."""

    @property
    def registers(self) -> int:
        """Sums of a lane."""
        return self.rows * self.columns

    @property
    def shared_bytes(self) -> int:
        """The sums of all lanes."""
        return 128 * self.registers * self.warps

    @property
    def batch_chunks(self) -> int:
        """Chunks of 8 halves of each row in a batch."""
        return WARP_CHUNKS * self.depth

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        flags = {"g": self.guarded, "e": self.edges, "s": self.split, "o": self.overlap}
        marks = "".join(mark for mark, on in flags.items() if on) + ("" if self.double_buffer else "1")
        shape = f"n{self.rows}_m{self.columns}_d{self.depth}_w{self.warps}"
        return f"gemv_{shape}_{self.dtype}" + (f"_{marks}" if marks else "")


def _pieces(rows: int, depth: int) -> Any:
    """Loads of a batch: row r holds 4 depth registers, chunk after chunk."""
    return tuple(
        (r, WARP_CHUNKS * d, tuple(4 * (r * depth + d) + i for i in range(4)))
        for d in range(depth)
        for r in range(rows)
    )


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    tile_rows, columns, depth, warps = spec.rows, spec.columns, spec.depth, spec.warps
    edges, split_k, overlap, double_buffer = spec.edges, spec.split, spec.overlap, spec.double_buffer
    registers, batch = spec.registers, spec.batch_chunks
    lane, warp, block, divide, barrier = tile.lane, tile.warp, tile.block, tile.divide, tile.barrier
    small, int64 = tile.small, tile.int64
    row_places, column_places = tile.places(tile_rows), tile.places(columns)
    load_w = tile.load_chunks(_pieces(tile_rows, depth), guarded=spec.guarded, stream=True)
    load_x = tile.load_chunks(_pieces(columns, depth), guarded=spec.guarded, stream=False)
    edge_w = tile.load_pairs(tuple((r, side, 0) for r in range(tile_rows) for side in range(2)))
    edge_x = tile.load_pairs(tuple((c, side, 0) for c in range(columns) for side in range(2)))
    zeros, dot_add = tile.zeros(registers), tile.dot_add(tile_rows, columns, 4 * depth)
    dot_edge = tile.dot_add(tile_rows, columns, 2)
    as_words, as_float, add, sum_lanes = (
        tile.as_words(registers),
        tile.as_floats(1),
        tile.add(1),
        tile.sum_lanes(1),
    )
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

    def kernel(x, shifted, w, partials, counters, y, m, n, k, row_stride, plane, phases, split):
        at = lane()
        index = small(warp())
        tile_index = small(divide(block(), split))
        part = small(block() - tile_index * split)
        stripe = small(divide(tile_index, phases))
        phase = small(tile_index - stripe * phases)
        first = small(stripe * (tile_rows * phases) + phase)
        if first < n:
            head = small(0)
            if edges:
                head = small((8 - ((phase * (k & 7)) & 7)) & 7)
                if head > k:
                    head = small(k)
            chunks = small((k - head) >> 3)
            last = small(first + divide(n - 1 - first, phases) * phases)
            rows = row_places(first, phases, last, k, head)
            worker = small(part * warps + index)
            workers = small(split * warps)
            batches = small(divide(chunks + (batch - 1), batch))
            turns = small(divide(batches + workers - 1 - worker, workers))
            at_chunk = small(worker * batch + at)
            c = zeros()
            if double_buffer:
                a = load_w(w, at_chunk, chunks, rows)
            if overlap:
                wait_for_previous()
                let_next_start()
            inputs = column_places(0, 1, m - 1, row_stride, phase * plane)
            if double_buffer:
                for _ in range(1, turns):
                    following = small(at_chunk + workers * batch)
                    b = load_w(w, following, chunks, rows)
                    c = dot_add(c, a, load_x(shifted, at_chunk, chunks, inputs))
                    a = b
                    at_chunk = following
                c = dot_add(c, a, load_x(shifted, at_chunk, chunks, inputs))
            else:
                for _ in range(turns):
                    a = load_w(w, at_chunk, chunks, rows)
                    c = dot_add(c, a, load_x(shifted, at_chunk, chunks, inputs))
                    at_chunk = small(at_chunk + workers * batch)
            if edges:
                if worker == 0:
                    # What lies before the first and after the last chunk: up to 7 elements each.
                    far = small(head + 8 * chunks + 2 * at)
                    whole_rows = row_places(first, phases, last, k, 0)
                    whole_inputs = column_places(0, 1, m - 1, k, 0)
                    a_edge = edge_w(w, 2 * at, head, far, k, whole_rows)
                    c = dot_edge(c, a_edge, edge_x(x, 2 * at, head, far, k, whole_inputs))
            mine = small(index * (32 * registers) + at)
            put(mine, mine, mine, mine, as_words(c))
            barrier()
            for r in range(index, registers, warps):
                place = small(32 * r + at)
                total = as_float(get(place, 0))
                for v in range(1, warps):
                    total = add(total, as_float(get(place + v * (32 * registers), 0)))
                total = sum_lanes(total)
                if split_k:
                    store_float(partials, int64(block()) * registers + r, at == 0, total)
                else:
                    row = small(divide(r, columns))
                    column = small(r - row * columns)
                    row = small(first + phases * row)
                    store(y, int64(column) * n + row, (at == 0) & (row < n), total)
            if split_k:
                if last_block(counters, tile_index, split):
                    for r in range(index, registers, warps):
                        base = int64(tile_index * split) * registers + r
                        total = load_fresh(partials, base)
                        for p in range(1, split):
                            total = add(total, load_fresh(partials, base + p * registers))
                        row = small(divide(r, columns))
                        column = small(r - row * columns)
                        row = small(first + phases * row)
                        store(y, int64(column) * n + row, (at == 0) & (row < n), total)

    return kernel


VOCABULARY = "linear"
SIGNATURE = ("HALVES",) * 3 + ("FLOATS", "WORDS", "HALVES") + ("INT",) * 7
"""Kinds of the kernel's arguments, for the compiler."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return spec.blocks


def tiles(spec: Spec, n: int, phases: int) -> int:
    """Tiles of outputs: those of rows alike in phase, for every phase."""
    return phases * -(-n // (spec.rows * phases))
