"""Small kernels for the operations of attention, that both bodies run; as `tiny_kernels`, whose arguments they take.

The words ``w`` are float32 in rows of 32: register r of a fragment read from row s is row ``s + r``, one number a lane.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny_kernels import POINTERS, POISON, SIGNATURE, SIZE, Data, Tiny, _put, min_blocks

from kernels_numba.tile.counters import Counters
from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import Buffer, Machine

VOCABULARY = "attention"
BUILDERS: dict[str, Callable[[Any], Callable]] = {}
KERNELS: dict[str, Tiny] = {}
SECOND = 32
"""The row where a second fragment begins."""


def row(*names: str, **settings: Any) -> Callable:
    """Register a builder ``build(tile, *words)`` for names ``base:word:word``."""

    def register(build: Callable) -> Callable:
        for name in names:
            values = [int(x) if x.isdigit() else x for x in name.split(":")[1:]]
            BUILDERS[name] = lambda tile, values=values: build(tile, *values)
            KERNELS[name] = Tiny(name, "fp16", **settings)
        return build

    return register


def build(tile: Any, spec: Tiny) -> Callable:
    return BUILDERS[spec.name](tile)


def data_for(seed: int = 0) -> Data:
    """Float32 of many sizes with a few infinities, NaN and equal numbers; floats (factor, cap); halves."""
    draw = np.random.default_rng(seed)
    words = (4 * draw.standard_normal(SIZE)).astype(np.float32)
    words[draw.integers(0, SIZE, 60)] = np.nan
    words[draw.integers(0, SIZE, 200)] = -np.inf
    words[draw.integers(0, SIZE, 60)] = np.inf
    words[64 * 32 :] = draw.standard_normal(SIZE - 64 * 32)
    floats = np.array([0.37, 2.5, -3.0, 3.0, *draw.standard_normal(SIZE - 4)], np.float32)
    halves = draw.standard_normal(SIZE).astype(np.float16).view(np.int16)
    return Data(halves, words.view(np.int32), floats)


def run_cpu(spec: Tiny, data: Data) -> tuple[NDArray[np.int16], Counters]:
    machine = Machine()
    out = np.full(SIZE, POISON, np.int16)
    kernel = build(vocabulary(machine, spec.dtype, VOCABULARY), spec)
    w = data.w.copy()  # some kernels write to it
    buffers = [Buffer("h", data.h), Buffer("w", w), Buffer("f", data.f), Buffer("out", out)]
    counters = machine.run(kernel, spec.grid, spec.warps, spec.shared_words, [*buffers, spec.n])
    return out, counters


def run_gpu(spec: Tiny, data: Data) -> NDArray[np.int16]:
    from kernels_numba import device
    from kernels_numba.launch import DeviceBuffer, LoadedKernel, synchronize

    loaded = LoadedKernel(sys.modules[__name__], spec, device())
    buffers = [DeviceBuffer.of(x, 0) for x in (*data, np.full(SIZE, POISON, np.int16))]
    loaded.launcher(spec.grid, (*POINTERS, spec.n))(0, *(buffer.pointer for buffer in buffers))
    synchronize(0)
    return buffers[-1].host()


def _one(tile: Any, read: int, operation: Any, wrote: int) -> Callable:
    lane, load, values, words = (
        tile.lane,
        tile.load_global(read, 1),
        tile.as_floats(read),
        tile.as_words(wrote),
    )
    put = _put(tile, wrote)

    def kernel(h, w, f, out, n):
        put(out, 0, 0, 2 * lane(), 0, 0, 0, words(operation(values(load(w, lane(), 32)))))

    return kernel


def _two(tile: Any, read: int, other: int, operation: Any, wrote: int) -> Callable:
    lane, load, values, words = (
        tile.lane,
        tile.load_global(read, 1),
        tile.as_floats(read),
        tile.as_words(wrote),
    )
    load2, values2, put = tile.load_global(other, 1), tile.as_floats(other), _put(tile, wrote)
    start = 32 * SECOND

    def kernel(h, w, f, out, n):
        x, y = values(load(w, lane(), 32)), values2(load2(w, start + lane(), 32))
        put(out, 0, 0, 2 * lane(), 0, 0, 0, words(operation(x, y)))

    return kernel


def _flags(tile: Any, read: int, operation: Any, *, lanes: bool = False) -> Callable:
    """An operation whose result is an integer a lane."""
    lane, load, values = tile.lane, tile.load_global(read, 1), tile.as_floats(read)
    register, put = tile.registers(1), _put(tile, 1)
    start = 32 * SECOND

    def outside(h, w, f, out, n):
        found = operation(values(load(w, lane(), 32)), -3.0, 3.0)
        put(out, 0, 0, 2 * lane(), 0, 0, 0, register(found, 0, 0, 0))

    def differ(h, w, f, out, n):
        found = operation(values(load(w, lane(), 32)), values(load(w, start + lane(), 32)))
        put(out, 0, 0, 2 * lane(), 0, 0, 0, register(found, 0, 0, 0))

    return differ if lanes else outside


@row("logits:1", "logits:2:capped")
def logits(tile: Any, tiles: int, capped: str = "") -> Callable:
    count, apply = 4 * tiles, tile.logits(tiles, capped=bool(capped))
    lane, load, values, words = (
        tile.lane,
        tile.load_global(count, 1),
        tile.as_floats(count),
        tile.as_words(count),
    )
    put, number = _put(tile, count), tile.load_float

    def kernel(h, w, f, out, n):
        x = apply(values(load(w, lane(), 32)), number(f, 0), number(f, 1))
        put(out, 0, 0, 2 * lane(), 0, 0, 0, words(x))

    return kernel


@row("mask:1", "mask:2", n=37)
def mask(tile: Any, tiles: int) -> Callable:
    """Keys from 30 + lane / 4 on; limits 31, 45, 38, n - (lane & 3)."""
    count, apply, limits = 4 * tiles, tile.mask(tiles, -1.0), tile.registers(2 * tiles)
    lane, load, values, words = (
        tile.lane,
        tile.load_global(count, 1),
        tile.as_floats(count),
        tile.as_words(count),
    )
    put = _put(tile, count)

    def kernel(h, w, f, out, n):
        index = lane()
        x = apply(values(load(w, index, 32)), 30 + (index >> 2), limits(31, 45, 38, n - (index & 3)))
        put(out, 0, 0, 2 * index, 0, 0, 0, words(x))

    return kernel


@row("shift:1", "shift:2")
def shift(tile: Any, tiles: int) -> Callable:
    return _two(tile, 4 * tiles, 2 * tiles, tile.shift(tiles), 4 * tiles)


@row("outside:1", "outside:2")
def outside(tile: Any, tiles: int) -> Callable:
    return _flags(tile, 4 * tiles, tile.outside(tiles))


@row("differ")
def differ(tile: Any) -> Callable:
    return _flags(tile, 2, tile.differ(2), lanes=True)


@row("exponentials", "exponentials:floor")
def exponentials(tile: Any, floor: str = "") -> Callable:
    return _one(tile, 8, tile.exponentials(8, floor=bool(floor)), 8)


@row("add")
def add(tile: Any) -> Callable:
    return _two(tile, 8, 8, tile.add(8), 8)


@row("times")
def times(tile: Any) -> Callable:
    return _two(tile, 8, 8, tile.times(8), 8)


@row("add_keys:1", "add_keys:2")
def add_keys(tile: Any, tiles: int) -> Callable:
    return _two(tile, 2 * tiles, 4 * tiles, tile.add_keys(tiles), 2 * tiles)


@row("max_keys:1", "max_keys:2")
def max_keys(tile: Any, tiles: int) -> Callable:
    return _two(tile, 2 * tiles, 4 * tiles, tile.max_keys(tiles), 2 * tiles)


@row("sum_lanes")
def sum_lanes(tile: Any) -> Callable:
    return _one(tile, 4, tile.sum_lanes(2), 4)


@row("anchors")
def anchors(tile: Any) -> Callable:
    return _one(tile, 4, tile.anchors(4), 4)


@row("started")
def started(tile: Any) -> Callable:
    return _two(tile, 8, 8, tile.started(8), 8)


@row("decays")
def decays(tile: Any) -> Callable:
    return _two(tile, 8, 8, tile.decays(8), 8)


@row("spread:3", "spread:11")
def spread(tile: Any, rows: int) -> Callable:
    return _one(tile, 2 * -(-rows // 8), tile.spread(rows), rows)


@row("scale_rows")
def scale_rows(tile: Any) -> Callable:
    return _two(tile, 12, 3, tile.scale_rows(3, 4), 12)


@row("join_numbers")
def join_numbers(tile: Any) -> Callable:
    return _two(tile, 2, 6, tile.join_numbers(3), 6)


@row("join_sums")
def join_sums(tile: Any) -> Callable:
    """Sums in rows 0..3, the factors behind them; those of three parts in the second fragment."""
    lane, load, load2, values, values2 = (
        tile.lane,
        tile.load_global(10, 1),
        tile.load_global(12, 1),
        tile.as_floats(10),
        tile.as_floats(12),
    )
    apply, words, put, start = tile.join_sums(3, 4), tile.as_words(4), _put(tile, 4), 32 * SECOND
    ours, factors = tile.select(tuple(range(4))), tile.select(tuple(range(4, 10)))

    def kernel(h, w, f, out, n):
        x = values(load(w, lane(), 32))
        total = apply(ours(x), values2(load2(w, start + lane(), 32)), factors(x))
        put(out, 0, 0, 2 * lane(), 0, 0, 0, words(total))

    return kernel


@row("choose", n=0b1010011001011100)
def choose(tile: Any) -> Callable:
    lane, load, values, words = tile.lane, tile.load_global(4, 1), tile.as_floats(4), tile.as_words(4)
    apply, any_bits, put, start = tile.choose(2), tile.any_bits, _put(tile, 4), 32 * SECOND
    small = tile.small

    def kernel(h, w, f, out, n):
        bits = any_bits(small(n & (1 << (lane() & 15))))  # each lane brings one of them
        x = apply(bits, values(load(w, lane(), 32)), values(load(w, start + lane(), 32)))
        put(out, 0, 0, 2 * lane(), 0, 0, 0, words(x))

    return kernel


@row("numbers")
def numbers(tile: Any) -> Callable:
    """Numbers that are the same in all lanes: fill, first, decay, load_word."""
    lane, load, values = tile.lane, tile.load_global(1, 1), tile.as_floats(1)
    first, decay, word, fill, words, join = (
        tile.first,
        tile.decay,
        tile.load_word,
        tile.fill(2),
        tile.as_words(2),
        tile.join,
    )
    register, put = tile.registers(1), _put(tile, 6)
    start = 64 * 32  # ordinary numbers

    def kernel(h, w, f, out, n):
        a, b = first(values(load(w, start, 0))), first(values(load(w, start + 1, 0)))
        x = join(words(fill(a)), words(fill(decay(a, b))))
        y = join(register(word(w, start + 2), 0, 0, 0), register(word(w, start + 3), 0, 0, 0))
        put(out, 0, 0, 2 * lane(), 0, 0, 0, join(x, y))

    return kernel


@row("quotient", "quotient:zero")
def quotient(tile: Any, zero: str = "") -> Callable:
    lane, load, values, words = tile.lane, tile.load_global(4, 1), tile.as_floats(4), tile.as_words(4)
    divide, put, number = tile.quotient(4), _put(tile, 4), tile.load_float
    nothing = bool(zero)

    def kernel(h, w, f, out, n):
        total = number(f, 1)
        if nothing:
            total = total - total
        put(out, 0, 0, 2 * lane(), 0, 0, 0, words(divide(values(load(w, lane(), 32)), total)))

    return kernel


WIDTHS = {"wide": (4,), "narrow": (2,), "both": (4, 2)}


@row(
    "weigh:1:wide",
    "weigh:3:both",
    "weigh:2:narrow",
    "weigh:2:both:careful",
    shared_words=96 + 16 * 96,
)
def weigh(tile: Any, rows: int, widths: str, careful: str = "") -> Callable:
    """Weights of the rows from w (ordinary numbers, some negative); 16 rows of values from h."""
    per, stride = sum(WIDTHS[widths]), 16 * sum(WIDTHS[widths])
    lane, sync, load, load_values = tile.lane, tile.warp_sync, tile.load_global(1, 1), tile.load_chunks(1, 0)
    store, put_values = (
        tile.store_shared_pieces(((0, 0, (0,)),)),
        tile.store_shared_pieces(((0, 0, (0, 1, 2, 3)),)),
    )
    apply, fill, words = (
        tile.weigh(rows, WIDTHS[widths], stride, careful=bool(careful)),
        tile.fill(rows * per),
        None,
    )
    words, put = tile.as_words(rows * per), _put(tile, rows * per)
    rounds, weight_rounds = 16 * stride // 128, 3
    start = 64 * 32

    def kernel(h, w, f, out, n):
        index = lane()
        for i in range(weight_rounds):
            store(32 * i + index, 0, 0, 0, load(w, start + 32 * i + index, 0))
        for i in range(rounds):
            at = 128 * i + 4 * index
            put_values(96 + at, 0, 0, 0, load_values(h, 2 * at, 0, 1))
        sync()
        put(out, 0, 0, 2 * index, 0, 0, 0, words(apply(fill(0.5), 0, 96, index)))

    return kernel


@row("weigh_products:1:1", "weigh_products:2:2", "weigh_products:2:1:careful", shared_words=320 + 16 * 64)
def weigh_products(tile: Any, tiles: int, blocks: int, careful: str = "") -> Callable:
    """As weigh, of 8 or 16 rows, with the values' chunks where they are read."""
    stride, count = 32 * blocks, 16 * tiles * blocks
    lane, sync, load, load_values = tile.lane, tile.warp_sync, tile.load_global(1, 1), tile.load_chunks(1, 0)
    store, put_values = (
        tile.store_shared_pieces(((0, 0, (0,)),)),
        tile.store_shared_pieces(((0, 0, (0, 1, 2, 3)),)),
    )
    apply, fill = tile.weigh_products(tiles, blocks, stride, careful=bool(careful)), tile.fill(count)
    scale, fill_factor = tile.scale_queries(tiles, blocks), tile.fill(2 * tiles)
    words, put = tile.as_words(count), _put(tile, count)
    rounds, start, per_row = 16 * stride // 128, 64 * 32, 8 * blocks

    def kernel(h, w, f, out, n):
        index = lane()
        for i in range(10):
            store(32 * i + index, 0, 0, 0, load(w, start + 32 * i + index, 0))
        for i in range(rounds):
            at = 32 * i + index
            key = at // per_row
            chunk = (at - key * per_row) ^ (2 * (key & 3))
            put_values(320 + key * stride + 4 * chunk, 0, 0, 0, load_values(h, 8 * at, 0, 1))
        sync()
        x = scale(apply(fill(0.5), 0, 320, index), fill_factor(2.0))
        put(out, 0, 0, 2 * index, 0, 0, 0, words(x))

    return kernel


@row("widen")
def widen(tile: Any) -> Callable:
    lane, load, apply = tile.lane, tile.load_global(4, 1), tile.widen(4)
    words, put = tile.as_words(8), _put(tile, 8)

    def kernel(h, w, f, out, n):
        put(out, 0, 0, 2 * lane(), 0, 0, 0, words(apply(load(w, lane(), 32))))

    return kernel


@row("cut", n=101)
def cut(tile: Any) -> Callable:
    lane, load, values, apply = tile.lane, tile.load_global(8, 1), tile.as_floats(8), tile.cut(8, -2.0)
    words, put = tile.as_words(8), _put(tile, 8)

    def kernel(h, w, f, out, n):
        x = apply(values(load(w, lane(), 32)), 8 * lane(), n)
        put(out, 0, 0, 2 * lane(), 0, 0, 0, words(x))

    return kernel


@row("less")
def less(tile: Any) -> Callable:
    return _two(tile, 8, 1, tile.less(8), 8)


@row("any_outside")
def any_outside(tile: Any) -> Callable:
    return _flags(tile, 8, tile.any_outside(8))


@row("largest")
def largest(tile: Any) -> Callable:
    return _two(tile, 1, 8, tile.largest(8), 1)


@row("total")
def total(tile: Any) -> Callable:
    return _one(tile, 8, tile.total(8), 1)


@row("across:sum", "across:max")
def across(tile: Any, kind: str) -> Callable:
    return _one(tile, 1, tile.across(kind), 1)


@row("consecutive_rows")
def consecutive_rows(tile: Any) -> Callable:
    lane, rows, put = tile.lane, tile.consecutive_rows(4, 3), _put(tile, 4)

    def kernel(h, w, f, out, n):
        put(out, 0, 0, 2 * lane(), 0, 0, 0, rows(5 * lane()))

    return kernel


@row("paged_rows", n=70)
def paged_rows(tile: Any) -> Callable:
    """Pages of 12 keys; the table's entries are the first words, every second one, up to 40 pages."""
    lane, rows, put = tile.lane, tile.paged_rows(4, 16, 12), _put(tile, 4)

    def kernel(h, w, f, out, n):
        put(out, 0, 0, 2 * lane(), 0, 0, 0, rows(lane(), n, w, 3, 2, 40))

    return kernel


@row("copy_rows", shared_words=512, n=6)
def copy_rows(tile: Any) -> Callable:
    """Four copies of two rows of 128 elements, chunks in four orders; keys from n on are zeros."""
    lane, rows, copy = tile.lane, tile.consecutive_rows(4, 2), tile.copy_rows(4, 2, 256)
    commit, wait, sync = tile.commit, tile.wait(0), tile.warp_sync
    load, put = tile.load_shared(16, 4), _put(tile, 16)

    def kernel(h, w, f, out, n):
        index = lane()
        half = index >> 4
        chunk = 8 * (index & 15)
        copy(
            128 * half + chunk,
            128 * half + (chunk ^ 32),
            128 * half + (chunk ^ 8),
            128 * half + (chunk ^ 64),
            h,
            rows(1 + half),
            136,
            chunk + 8,
            1 + half,
            n,
        )
        commit()
        wait()
        sync()
        put(out, 0, 0, 2 * index, 0, 0, 0, load(4 * index, 128))

    return kernel


@row("load_chunks", n=200)
def load_chunks(tile: Any) -> Callable:
    lane, load, put = tile.lane, tile.load_chunks(3, 64), _put(tile, 12)

    def kernel(h, w, f, out, n):
        index = lane()
        put(out, 0, 0, 2 * index, 0, 0, 0, load(h, 16 + 8 * index, 4 * index, n))

    return kernel


@row("shared_rows", shared_words=64)
def shared_rows(tile: Any) -> Callable:
    """put_rows and get_float: registers 0..2, each the same in all lanes."""
    lane, spread, load, values = tile.lane, tile.spread(3), tile.load_global(2, 1), tile.as_floats(2)
    store, get, sync, fill, words, put = (
        tile.put_rows(3),
        tile.get_float,
        tile.warp_sync,
        tile.fill(1),
        tile.as_words(1),
        _put(tile, 1),
    )

    def kernel(h, w, f, out, n):
        store(7, spread(values(load(w, lane(), 32))))
        sync()
        for i in range(3):
            put(out, 64 * i, 0, 2 * lane(), 0, 0, 0, words(fill(get(7 + i))))

    return kernel


WORD_PIECES = ((0, 0, (2, 0)), (1, 64, (1,)))


@row("records", grid=3, warps=2, shared_words=32)
def records(tile: Any) -> Callable:
    """Every block leaves a record in w; the last to arrive copies all of them to out, two at a time: of the second two
    one is not there. The counter is w[0]."""
    lane, warp, block, barrier = tile.lane, tile.warp, tile.block, tile.barrier
    fence, arrive, any_bits, first = tile.fence, tile.arrive, tile.any_bits, tile.first
    store, load = (
        tile.store_word_pieces(WORD_PIECES),
        tile.load_fresh_pieces(WORD_PIECES, 3, parts=2, step=128),
    )
    put_float, number = tile.put_float, tile.load_float
    register, tell, told = (
        tile.registers(1),
        tile.store_shared_pieces(((0, 0, (0,)),)),
        tile.load_shared(1, 1),
    )
    registers, get_one, put, put1 = (
        tile.registers(3),
        tile.load_fresh_pieces(((0, 0, (0,)),), 1),
        _put(tile, 6),
        _put(tile, 1),
    )
    start = 1024

    def kernel(h, w, f, out, n):
        index = lane()
        mine = block()
        if warp() == 0:
            store(w, start + 128 * mine, 2 * index, index, registers(100 * mine + index, -index, 7 * mine, 0))
            put_float(w, start + 128 * mine + 96, number(f, mine))
        fence()
        barrier()
        if warp() == 0:
            tell(index, 0, 0, 0, register(arrive(w, 0, 3), 0, 0, 0))
            fence()
        barrier()
        if any_bits(first(told(index, 0))) == 2:
            if warp() == 0:
                put(out, 0, 0, 2 * index, 0, 0, 0, load(w, start, 2 * index, index, 3))
                put(out, 384, 0, 2 * index, 0, 0, 0, load(w, start + 256, 2 * index, index, 1))
                put1(out, 2048, 0, 2 * index, 0, 0, 0, get_one(w, 0, 0, 0, 1))
            else:
                for i in range(3):
                    put1(out, 1024 + 64 * i, 0, 2 * index, 0, 0, 0, get_one(w, start + 128 * i + 96, 0, 0, 1))

    return kernel


__all__ = ["KERNELS", "SIGNATURE", "build", "data_for", "min_blocks", "run_cpu", "run_gpu"]
