"""What the kernels of linear layers do, counted in closed form: bytes, products, flops, barriers, for a whole launch.

The figures are those that the CPU body of the kernels counts while it runs (``kernels_numba.Counters``), exactly.
Symbols: x [M, K], w [N, K]; P phases (rows of w that begin alike within 16 bytes are P apart), of which phase p has
``head(p)`` elements before its first whole chunk of 8, then c(p) chunks, then a tail.

* *vector*: T tiles of R rows. w is read once (a tile at the end repeats its last row), x once for every tile.
* *flat*: S shares a phase, each in ceil(rows / B_N) tiles. w is read once, x once for every tile and share, and each
  warp's first batch once more. Products: a warp's turns, times B_N / 16 x ceil(M / 8) x 2 for each 32 of K.
* *full*: ceil(M / rows) x ceil(N / columns) tiles: x is read once for every column of tiles, w once for every row.
* *full, on warpgroups* ("stream"): the same, with its own tiles, in boxes that hold no more rows than there are; a
  warpgroup reads its 64 rows of the left operand and all rows of the right one from shared memory.
* *full, on warpgroups, rows that begin anywhere* ("group"): the same with w by words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Any

CHUNK, LANES, WARP_BYTES = 8, 32, 128
SLAB = 64
REALIGN_LANES = 256


@dataclass
class LinearCounts:
    """Totals of all launches of one product; names and units as in ``kernels_numba.Counters``."""

    global_read_bytes: dict[str, int] = field(default_factory=dict)
    global_written_bytes: dict[str, int] = field(default_factory=dict)
    shared_read_bytes: int = 0
    shared_written_bytes: int = 0
    shared_wavefronts: int = 0
    bank_conflicts: int = 0
    mma_m16n8k16: int = 0
    fp32_flops: int = 0
    half_flops: int = 0
    transposes: int = 0
    barriers: int = 0
    blocks: int = 0
    warps: int = 0

    def read(self, buffer: str, count: int) -> None:
        """Add bytes read from a buffer."""
        self.global_read_bytes[buffer] = self.global_read_bytes.get(buffer, 0) + count

    def wrote(self, buffer: str, count: int) -> None:
        """Add bytes written to a buffer."""
        self.global_written_bytes[buffer] = self.global_written_bytes.get(buffer, 0) + count


@dataclass(frozen=True)
class Shape:
    """A product and where its operands lie."""

    m: int
    n: int
    k: int
    shift_x: bool = False
    """x is read from realigned copies,"""
    copy_w: bool = False
    """and w from a padded one."""


@dataclass(frozen=True)
class _Phase:
    rows: int
    head: int
    chunks: int
    ends: int
    """Elements before the first and after the last whole chunk."""


@dataclass(frozen=True)
class _Run:
    """The main launch of a product: what the counts of every kernel are of."""

    m: int
    n: int
    k: int
    depth: int
    """K as rows of w have it: padded, if they are padded copies."""
    phases: list[_Phase]
    x: str
    """Where x is read from,"""
    w: str
    """and w."""
    options: dict[str, int]
    grid: int
    split: int


def ceil(a: int, b: int) -> int:
    """Quotient rounded up."""
    return -(-a // b)


def phases(n: int, k: int) -> list[_Phase]:
    """The rows of w by the place within 16 bytes at which they begin."""
    number = CHUNK // gcd(k, CHUNK)
    found = []
    for p in range(number):
        head = min(-p * k % CHUNK, k)
        chunks = (k - head) // CHUNK
        found.append(_Phase(len(range(p, n, number)), head, chunks, k - CHUNK * chunks))
    return found


def _realign(
    total: LinearCounts, rows: int, k: int, number: int, source: str, target: str, *, led: bool = False
) -> None:
    stride = ceil(k + led, CHUNK) * CHUNK
    chunks = number * rows * stride // CHUNK
    blocks = ceil(chunks, REALIGN_LANES)
    # Where in the source copies begin: after a head, or with a zero before.
    starts = [-p if led else -p * k % CHUNK for p in range(number)]
    elements = rows * sum(max(k - max(start, 0), 0) for start in starts)
    end = starts[-1] + stride
    last = max(min(k, end) - max(end - CHUNK, 0), 0)
    spare = blocks * REALIGN_LANES - chunks  # lanes beyond the last chunk repeat it
    total.read(source, 2 * (elements + spare * last))
    total.wrote(target, 2 * CHUNK * blocks * REALIGN_LANES)
    total.blocks += blocks
    total.warps += blocks * REALIGN_LANES // LANES


def counts(impl: str, shape: Shape, options: dict[str, int], *, grid: int, split: int) -> LinearCounts:
    """Count a product.

    Args:
        impl: "gemv", "flat" or "full".
        shape: the product.
        options: the kernel's settings, by the names of its ``Spec``.
        grid: blocks of the main launch.
        split: blocks that share their outputs.
    """
    total = LinearCounts()
    depth = ceil(shape.k, CHUNK) * CHUNK if shape.copy_w and impl != "full" else shape.k
    groups = phases(shape.n, depth)
    if shape.shift_x:
        led = options.get("phases", 1) > 1
        number = len(groups) if impl != "full" else 1 + led
        _realign(total, shape.m, shape.k, number, "x", "shifted x", led=led)
    if shape.copy_w:
        _realign(total, shape.n, shape.k, 1, "w", "copied w")
    x, w = ("shifted x" if shape.shift_x else "x"), ("copied w" if shape.copy_w else "w")
    kind = "stream" if "stream" in options else "group" if "groups" in options else impl
    run = _Run(shape.m, shape.n, shape.k, depth, groups, x, w, options, grid, split)
    {"gemv": _gemv, "flat": _flat, "full": _full, "group": _group, "stream": _stream}[kind](total, run)
    total.wrote("y", 2 * shape.m * shape.n)
    for table in (total.global_read_bytes, total.global_written_bytes):
        for name in [name for name, count in table.items() if not count]:
            del table[name]
    return total


def _gemv(total: LinearCounts, run: _Run) -> None:
    m, rows, warps, batch = run.m, run.options["rows"], run.options["warps"], LANES * run.options["depth"]
    sums, workers = rows * m, run.split * warps
    for phase in run.phases:
        tiles = ceil(phase.rows, rows)  # that have a row; the others end at once
        batches = ceil(phase.chunks, batch)
        idle = workers - min(batches, workers) if run.options.get("double_buffer", 0) else 0
        total.read(run.w, tiles * rows * 2 * run.depth)
        total.read(run.x, tiles * m * 2 * CHUNK * phase.chunks)
        total.read("x", tiles * m * 2 * phase.ends)
        products = (batches + idle) * 4 * run.options["depth"] + (2 if phase_has_edges(run.depth) else 0)
        total.fp32_flops += tiles * 4 * LANES * sums * products
        blocks = tiles * run.split
        total.fp32_flops += blocks * sums * LANES * (warps - 1 + 5)
        _sums_of_warps(total, blocks, warps, sums)
        total.barriers += blocks
        if run.split > 1:
            total.barriers += 2 * blocks
            total.wrote("partials", 4 * sums * blocks)
            total.read("partials", WARP_BYTES * sums * blocks)
            total.fp32_flops += tiles * sums * LANES * (run.split - 1)
    total.blocks += run.grid
    total.warps += run.grid * warps


def phase_has_edges(k: int) -> bool:
    """Whether rows of K elements need the step for what lies beside whole chunks."""
    return k % CHUNK != 0


def _sums_of_warps(total: LinearCounts, times: int, warps: int, sums: int) -> None:
    """All warps leave their sums in shared memory and each sum is read from all of them, ``times`` times."""
    total.shared_written_bytes += times * warps * sums * WARP_BYTES
    total.shared_read_bytes += times * warps * sums * WARP_BYTES
    total.shared_wavefronts += 2 * times * warps * sums


def _flat(total: LinearCounts, run: _Run) -> None:
    m, warps, steps = run.m, run.options["warps"], run.options.get("steps", 4)
    row_tiles, column_tiles = run.options["row_tiles"], ceil(m, 8)
    batch, workers = 4 * steps, run.split * warps
    registers, stage_bytes = 4 * row_tiles * column_tiles, 2 * CHUNK * batch * 16 * row_tiles
    shares = run.grid // (run.split * len(run.phases))
    edges = phase_has_edges(run.depth)
    for phase in run.phases:
        batches = ceil(phase.chunks, batch)
        turns = batches + workers - min(batches, workers)  # of all workers; each takes one at least
        for share in range(shares):
            rows = (share + 1) * phase.rows // shares - share * phase.rows // shares
            tiles = ceil(rows, 16 * row_tiles)
            total.read(run.w, rows * 2 * CHUNK * phase.chunks)
            inputs = tiles * phase.chunks + min(phase.chunks, workers * batch)
            total.read(run.x, 8 * column_tiles * 2 * CHUNK * inputs)
            if edges:
                total.read(run.w, tiles * 16 * row_tiles * 2 * phase.ends)
                total.read("x", tiles * 8 * column_tiles * 2 * phase.ends)
                total.mma_m16n8k16 += tiles * row_tiles * column_tiles
            total.mma_m16n8k16 += tiles * turns * row_tiles * column_tiles * 2 * steps
            total.shared_written_bytes += tiles * turns * stage_bytes
            total.shared_read_bytes += tiles * turns * stage_bytes
            total.shared_wavefronts += tiles * turns * stage_bytes // WARP_BYTES
            _sums_of_warps(total, tiles * run.split, warps, registers)
            total.fp32_flops += tiles * run.split * registers * LANES * (warps - 1)
            total.barriers += 2 * tiles * run.split
            if run.split > 1:
                items = ceil(rows * m, LANES)
                total.barriers += 2 * run.split
                total.wrote("partials", 4 * run.split * rows * m)
                total.read("partials", WARP_BYTES * run.split * items)
                total.fp32_flops += LANES * (run.split - 1) * items
    total.blocks += run.grid
    total.warps += run.grid * warps


def _full(total: LinearCounts, run: _Run) -> None:
    m, n, k = run.m, run.n, run.k
    rows, columns = run.options["rows"], run.options["columns"]
    row_tiles, column_tiles = run.options["warp_rows"] // 16, run.options["warp_columns"] // 8
    warps = (rows // run.options["warp_rows"]) * (columns // run.options["warp_columns"])
    down, across = ceil(m, rows), ceil(n, columns)
    tiles, slabs = down * across, ceil(k, SLAB)
    row_bytes = 2 * CHUNK * ceil(k, CHUNK)
    total.read(run.x, across * m * row_bytes)
    total.read(run.w, down * n * row_bytes)
    total.shared_written_bytes += tiles * slabs * (rows + columns) * 2 * SLAB
    loaded = tiles * slabs * warps * (SLAB // 16) * (row_tiles + column_tiles // 2) * 4 * WARP_BYTES
    total.shared_read_bytes += loaded
    total.shared_wavefronts += loaded // WARP_BYTES
    total.mma_m16n8k16 += tiles * slabs * (SLAB // 16) * (rows // 16) * (columns // 8)
    total.barriers += run.grid + tiles * slabs
    if run.split > 1:
        total.barriers += 2 * tiles * run.split
        total.wrote("partials", 4 * tiles * run.split * rows * columns)
        total.read("partials", 4 * tiles * run.split * rows * columns)
        total.fp32_flops += tiles * (run.split - 1) * rows * columns
    total.blocks += run.grid
    total.warps += run.grid * warps


def _group(total: LinearCounts, run: _Run) -> None:
    m, n, k = run.m, run.n, run.k
    left, right = run.options["left_rows"], run.options["columns"]
    number, x_rows = run.options["phases"], right if run.options["turned"] else left
    x_tiles, w_tiles = ceil(m, x_rows), number * ceil(n, number * run.options["pitch"])
    tiles, slabs = x_tiles * w_tiles, ceil(k + number - 1, SLAB)
    chunk = 1 if run.options["words"] else CHUNK
    for p in range(number):  # from the word on in which a row begins; what came before it is cleared
        total.read(run.w, x_tiles * len(range(p, n, number)) * 2 * chunk * ceil(p + k, chunk))
        total.shared_written_bytes += tiles // number * (left + right - x_rows) * 2 * p
    total.read(run.x, w_tiles * m * 2 * CHUNK * ceil(k + number - 1, CHUNK))
    total.shared_written_bytes += tiles * slabs * (left + right) * 2 * SLAB
    total.barriers += tiles * slabs
    _products_of_groups(total, run, tiles, slabs)
    total.warps += run.grid * left // 16


def _stream(total: LinearCounts, run: _Run) -> None:
    m, n, row_bytes = run.m, run.n, 2 * run.k
    left, right = run.options["left_rows"], run.options["columns"]
    x_rows = right if run.options["turned"] else left
    x_tiles, w_tiles = ceil(m, x_rows), ceil(n, run.options["pitch"])
    tiles, slabs = x_tiles * w_tiles, ceil(run.k, SLAB)
    total.read(run.x, w_tiles * m * row_bytes)
    total.read(run.w, x_tiles * n * row_bytes)
    total.shared_written_bytes += tiles * slabs * (min(m, x_rows) + run.options["pitch"]) * 2 * SLAB
    total.barriers += run.grid
    _products_of_groups(total, run, tiles, slabs)
    total.warps += run.grid * (left // 16 + 1)


def _products_of_groups(total: LinearCounts, run: _Run, tiles: int, slabs: int) -> None:
    """Products of warpgroups, and the sums of blocks that share a tile."""
    left, right, split = run.options["left_rows"], run.options["columns"], run.split
    warps = left // 16
    # A warp's own 16 rows of the left operand, and a quarter of the right one.
    read = tiles * slabs * (left + warps * right // 4) * 2 * SLAB
    total.shared_read_bytes += read
    total.shared_wavefronts += read // WARP_BYTES
    total.mma_m16n8k16 += tiles * slabs * (SLAB // 16) * warps * (right // 8)
    if run.options["turned"]:
        total.transposes += tiles * warps * right // 4
    if run.options["staged"]:
        # Results of a warp: 16 rows to shared memory, and from there in pieces of 128 bytes.
        part = right // split
        stored, loaded = warps * part // 4, left * ceil(part, 2 * LANES)
        total.shared_written_bytes += tiles * split * stored * WARP_BYTES
        total.shared_read_bytes += tiles * split * loaded * WARP_BYTES
        total.shared_wavefronts += tiles * split * (stored + loaded)
        total.barriers += tiles * (split == 1)
    if split > 1:
        total.fp32_flops += tiles * (split - 1) * left * right
        sums = 4 * tiles * split * left * right
        total.barriers += 2 * tiles
        total.shared_written_bytes += sums
        total.shared_read_bytes += sums
        total.shared_wavefronts += 2 * sums // WARP_BYTES
    total.blocks += run.grid


def of_product(product: Any) -> LinearCounts:
    """Count a ``kernels_numba.linear_product.Product``."""
    options = {**_spec_options(product.spec), **product.choice.options, "pitch": product.pitch}
    shape = Shape(product.m, product.n, product.k, product.shift_x, product.copy_w)
    return counts(product.choice.impl, shape, options, grid=product.grid, split=product.split)


def _spec_options(spec: Any) -> dict[str, int]:
    names = (
        "rows",
        "depth",
        "warps",
        "double_buffer",
        "row_tiles",
        "steps",
        "columns",
        "warp_rows",
        "warp_columns",
        "groups",
        "left_rows",
        "turned",
        "words",
        "phases",
        "staged",
    )
    return {name: int(getattr(spec, name)) for name in names if hasattr(spec, name)}
