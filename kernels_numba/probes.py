"""Kernels that measure a GPU: each does one thing as fast as it can, and leaves a result that can be checked.

A kernel takes words ``source`` and ``target``, and numbers: ``n`` tiles, ``workers`` (the warps of the grid), ``turns``
and ``shift``. What it does is its ``kind``:

``read``, ``write``, ``copy``
    Tiles of ``depth`` quads a lane (512 depth bytes), every one once a turn, ``shift`` tiles later in each turn than in
    the one before. A warp that reads keeps the exclusive or of what it read.
``shared``
    Every warp reads its own ``depth`` quads a lane of shared memory again and again, without bank conflicts.
``fma``, ``fma_halves``
    ``depth`` chains of multiply-adds a lane, on float32 or on pairs of halves.
``exp``
    ``depth`` chains of x = c - e^x a lane, which go to the fixed point c - W(e^c).
``mma``, ``mma_narrow``, ``mma_tf32``
    Products on tensor cores, m16n8k16, m16n8k8 and m16n8k8 on TF32, of operands in registers.
``launch``, ``barrier``
    Nothing but the writing of n; the barriers of a block.

`work` says in closed form what a kernel does; the CPU body counts the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernels_numba.tile.layout import WARP

QUAD = 4
SPAN = QUAD * WARP
"""Words of one quad of every lane."""
STEPS = 17
"""Steps of a chain a turn: odd, so that a chain that alternates between two values ends at the other one."""
EXPONENTIALS = 4
"""Of each chain a turn."""
MMA_TILES = (2, 4, 2)
"""Row tiles, column tiles and k tiles of a product a turn."""
NARROW_PRODUCTS = 8
KINDS = (
    "read",
    "write",
    "copy",
    "shared",
    "fma",
    "fma_halves",
    "exp",
    "mma",
    "mma_narrow",
    "mma_tf32",
    "launch",
    "barrier",
)
VOCABULARY = "probe"
SIGNATURE = ("WORDS", "WORDS", "INT", "INT", "INT", "INT")
"""Kinds of the kernel's arguments, for the compiler."""
NAMES = ("source", "target")


@dataclass(frozen=True)
class Spec:
    """What is compiled into a kernel."""

    kind: str
    depth: int = 8
    warps: int = 8
    dtype: str = "fp16"
    blocks: int = 2
    """Blocks per SM that the compiler must leave registers for."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind: got {self.kind!r}; accepted: {', '.join(KINDS)}")
        chains = ("fma", "fma_halves", "exp")
        if self.depth < 1 or (self.kind in chains and self.depth % QUAD):
            raise ValueError(
                f"depth: got {self.depth}; accepted: at least 1, and for {', '.join(chains)} a multiple of {QUAD}"
            )

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        return 4 * SPAN * self.depth * self.warps if self.kind == "shared" else 0

    @property
    def name(self) -> str:
        """The kernel's name."""
        return f"probe_{self.kind}_{self.dtype}_d{self.depth}_w{self.warps}"


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return spec.blocks


def source_words(spec: Spec, n: int, workers: int) -> int:
    """Words of ``source`` that a kernel reads."""
    row, column, k = MMA_TILES
    return {
        "read": n * SPAN * spec.depth,
        "copy": n * SPAN * spec.depth,
        "write": SPAN,
        "shared": workers * SPAN * spec.depth,
        "fma": WARP * spec.depth + 2 * SPAN,
        "fma_halves": WARP * spec.depth + 2 * SPAN,
        "exp": 2 * WARP * spec.depth,
        "mma": WARP * (4 * row * k + 2 * k * column),
        "mma_narrow": WARP * 3 * NARROW_PRODUCTS,
        "mma_tf32": WARP * 6 * NARROW_PRODUCTS,
    }.get(spec.kind, 0)


def result_words(spec: Spec) -> int:
    """Words that a warp leaves of its registers, one worker after the other; 0 where tiles are the result."""
    row, column, _ = MMA_TILES
    return {
        "write": 0,
        "copy": 0,
        "fma": WARP * spec.depth,
        "fma_halves": WARP * spec.depth,
        "exp": WARP * spec.depth,
        "mma": WARP * 4 * row * column,
        "mma_narrow": WARP * 4 * NARROW_PRODUCTS,
        "mma_tf32": WARP * 4 * NARROW_PRODUCTS,
    }.get(spec.kind, SPAN)


def target_words(spec: Spec, n: int, workers: int) -> int:
    """Words of ``target`` that a kernel writes."""
    return n * SPAN * spec.depth if spec.kind in ("write", "copy") else workers * result_words(spec)


def work(spec: Spec, n: int, workers: int, turns: int) -> dict[str, int]:
    """What a launch does, under the names of `tile.counters.Counters` (device memory as one number each way)."""
    kind, lanes = spec.kind, WARP * workers
    tiles = 4 * SPAN * spec.depth * n * turns
    found = dict.fromkeys(
        (
            "global_read_bytes",
            "global_written_bytes",
            "shared_read_bytes",
            "shared_written_bytes",
            "fp32_flops",
            "half_flops",
            "exponentials",
            "mma_m16n8k16",
            "mma_m16n8k8",
            "barriers",
        ),
        0,
    )
    found["global_written_bytes"] = 4 * workers * result_words(spec)
    if kind in ("read", "copy"):
        found["global_read_bytes"] = tiles
    elif kind == "write":
        found["global_read_bytes"] = 4 * SPAN * workers
    else:
        private = 1 if kind == "shared" else workers
        found["global_read_bytes"] = 4 * source_words(spec, n, workers) * private
    if kind in ("write", "copy"):
        found["global_written_bytes"] = tiles
    if kind == "shared":
        found["shared_read_bytes"] = 4 * SPAN * spec.depth * turns * workers
        found["shared_written_bytes"] = 4 * SPAN * spec.depth * workers
    elif kind == "fma":
        found["fp32_flops"] = 2 * STEPS * spec.depth * turns * lanes
    elif kind == "fma_halves":
        found["half_flops"] = 4 * STEPS * spec.depth * turns * lanes
    elif kind == "exp":
        found["exponentials"] = EXPONENTIALS * spec.depth * turns * lanes
        found["fp32_flops"] = 3 * found["exponentials"]
    elif kind == "mma":
        row, column, k = MMA_TILES
        found["mma_m16n8k16"] = row * column * k * turns * workers
    elif kind in ("mma_narrow", "mma_tf32"):
        found["mma_m16n8k8"] = NARROW_PRODUCTS * turns * workers
    elif kind == "barrier":
        found["barriers"] = turns * (workers // spec.warps)
    return found


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function: words ``source`` and ``target``, integers ``n``, ``workers``, ``turns`` and ``shift``."""
    kind = spec.kind
    if kind in ("read", "write", "copy"):
        return _stream(tile, spec)
    if kind in ("fma", "fma_halves", "exp"):
        return _chain(tile, spec)
    if kind in ("mma", "mma_narrow", "mma_tf32"):
        return _product(tile, spec)
    return _shared(tile, spec) if kind == "shared" else _wait(tile, spec)


def _stream(tile: Any, spec: Spec) -> Any:
    lane, warp, block, warps, depth = tile.lane, tile.warp, tile.block, spec.warps, spec.depth
    load, store, one, put = (
        tile.load_quads(depth),
        tile.store_quads(depth),
        tile.load_quads(1),
        tile.store_quads(1),
    )
    fold, repeat, registers = tile.fold_quads(depth), tile.repeat_quad(depth), tile.registers(QUAD)
    size, reads, copies = SPAN * depth, spec.kind == "read", spec.kind == "copy"

    def kernel(source, target, n, workers, turns, shift):
        me = block() * warps + warp()
        first = QUAD * lane()
        kept = registers(0, 0, 0, 0) if reads or copies else one(source, first, SPAN)
        start = me - me
        turn = start
        while turn < turns:
            tile_index = me
            while tile_index < n:
                at = tile_index + start
                if at >= n:
                    at = at - n
                place = at * size + first
                if reads:
                    kept = fold(kept, load(source, place, SPAN))
                elif copies:
                    store(target, place, SPAN, load(source, place, SPAN))
                else:
                    store(target, place, SPAN, repeat(kept))
                tile_index += workers
            start += shift
            if start >= n:
                start -= n
            turn += 1
        if reads:
            put(target, me * SPAN + first, SPAN, kept)

    return kernel


def _shared(tile: Any, spec: Spec) -> Any:
    lane, warp, block, warps, depth = tile.lane, tile.warp, tile.block, spec.warps, spec.depth
    copy, commit, wait, warp_sync = tile.copy_words_async, tile.commit, tile.wait(0), tile.warp_sync
    load, fold, put = tile.reload_quads(depth), tile.fold_quads(depth), tile.store_quads(1)
    registers = tile.registers(QUAD)

    def kernel(source, target, n, workers, turns, shift):
        mine = warp()
        me = block() * warps + mine
        first = QUAD * lane()
        base = mine * depth * SPAN + first
        quad = 0
        while quad < depth:
            copy(base + quad * SPAN, source, (me * depth + quad) * SPAN + first)
            quad += 1
        commit()
        wait()
        warp_sync()
        kept = registers(0, 0, 0, 0)
        turn = me - me
        while turn < turns:
            kept = fold(kept, load(base, SPAN))
            turn += 1
        put(target, me * SPAN + first, SPAN, kept)

    return kernel


def _chain(tile: Any, spec: Spec) -> Any:
    lane, warp, block, warps, depth = tile.lane, tile.warp, tile.block, spec.warps, spec.depth
    quads = depth // QUAD
    load, one, put = tile.load_quads(quads), tile.load_quads(1), tile.store_quads(quads)
    four_floats = tile.as_floats(QUAD)
    as_floats, as_words = tile.as_floats(depth), tile.as_words(depth)
    floats, exponential = spec.kind == "fma", spec.kind == "exp"
    chain = tile.multiply_adds(depth, STEPS) if floats else tile.multiply_adds_halves(depth, STEPS)
    exp, add, times, fill = tile.exponentials(depth), tile.add(depth), tile.times(depth), tile.fill(depth)
    size = WARP * depth

    def on_floats(source, target, n, workers, turns, shift):
        me = block() * warps + warp()
        first = QUAD * lane()
        x = as_floats(load(source, first, SPAN))
        a = four_floats(one(source, size + first, SPAN))
        b = four_floats(one(source, size + SPAN + first, SPAN))
        turn = me - me
        while turn < turns:
            x = chain(x, a, b)
            turn += 1
        put(target, me * size + first, SPAN, as_words(x))

    def on_halves(source, target, n, workers, turns, shift):
        me = block() * warps + warp()
        first = QUAD * lane()
        x = load(source, first, SPAN)
        a = one(source, size + first, SPAN)
        b = one(source, size + SPAN + first, SPAN)
        turn = me - me
        while turn < turns:
            x = chain(x, a, b)
            turn += 1
        put(target, me * size + first, SPAN, x)

    def exponentials(source, target, n, workers, turns, shift):
        me = block() * warps + warp()
        first = QUAD * lane()
        x = as_floats(load(source, first, SPAN))
        c = as_floats(load(source, size + first, SPAN))
        minus = fill(-1.0)
        turn = me - me
        while turn < turns:
            x = add(c, times(minus, exp(x)))
            x = add(c, times(minus, exp(x)))
            x = add(c, times(minus, exp(x)))
            x = add(c, times(minus, exp(x)))
            turn += 1
        put(target, me * size + first, SPAN, as_words(x))

    return exponentials if exponential else on_floats if floats else on_halves


def _product(tile: Any, spec: Spec) -> Any:
    lane, warp, block, warps = tile.lane, tile.warp, tile.block, spec.warps
    row, column, k = MMA_TILES
    if spec.kind == "mma":
        left, right, sums = 4 * row * k, 2 * k * column, 4 * row * column
        product = tile.mma_add(row, column, k)
    elif spec.kind == "mma_narrow":
        left, right, sums = 2 * NARROW_PRODUCTS, NARROW_PRODUCTS, 4 * NARROW_PRODUCTS
        product = tile.mma_narrow_add(NARROW_PRODUCTS)
    else:
        left, right, sums = 4 * NARROW_PRODUCTS, 2 * NARROW_PRODUCTS, 4 * NARROW_PRODUCTS
        product = tile.mma_tf32_add(NARROW_PRODUCTS)
    load_a, load_b, put = (
        tile.load_quads(left // QUAD),
        tile.load_quads(right // QUAD),
        tile.store_quads(sums // QUAD),
    )
    zeros, as_words = tile.zeros(sums), tile.as_words(sums)
    start_b, size = WARP * left, WARP * sums

    def kernel(source, target, n, workers, turns, shift):
        me = block() * warps + warp()
        first = QUAD * lane()
        a = load_a(source, first, SPAN)
        b = load_b(source, start_b + first, SPAN)
        c = zeros()
        turn = me - me
        while turn < turns:
            c = product(c, a, b)
            turn += 1
        put(target, me * size + first, SPAN, as_words(c))

    return kernel


def _wait(tile: Any, spec: Spec) -> Any:
    lane, warp, block, warps = tile.lane, tile.warp, tile.block, spec.warps
    put, registers, barrier, waits = (
        tile.store_quads(1),
        tile.registers(QUAD),
        tile.barrier,
        spec.kind == "barrier",
    )

    def kernel(source, target, n, workers, turns, shift):
        me = block() * warps + warp()
        turn = me - me
        if waits:
            while turn < turns:
                barrier()
                turn += 1
        put(target, me * SPAN + QUAD * lane(), SPAN, registers(n, n, n, n))

    return kernel
