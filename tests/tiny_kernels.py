"""Small kernels, about one for each operation of the tile layer, that both bodies run.

Every kernel takes the same arguments: halves ``h``, words ``w`` and floats ``f`` to read, halves ``out`` to
write, and an integer ``n``. A kernel that makes a fragment writes register r of lane l to the two halves at
``64 r + 2 l``, so ``out`` seen as words is the fragment [registers, 32].

The module has the names that a kernel family has (``build``, ``SIGNATURE``, ``min_blocks``), so that the
package's own launching code compiles and loads these kernels.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from hardware import HALF
from numpy.typing import NDArray
from tiny_registry import registry

from kernels_numba.tile.counters import Counters
from kernels_numba.tile.cpu import CpuTile
from kernels_numba.tile.machine import Buffer, Machine

SIGNATURE = ("HALVES", "WORDS", "FLOATS", "HALVES", "INT")
POISON = np.int16(0x7FFF)
POINTERS = ("u", "pregate", "postgate", "y")  # how the launcher names h, w, f and out
SIZE = 4096  # elements of every buffer


@dataclass(frozen=True)
class Tiny:
    """One kernel for one half-precision type; what a launch asks of a spec."""

    name: str
    dtype: str
    n: int = 0
    grid: int = 1
    warps: int = 1
    shared_words: int = 0
    data: str = "bits"

    @property
    def shared_bytes(self) -> int:
        return 4 * self.shared_words


class Data(NamedTuple):
    h: NDArray[np.int16]
    w: NDArray[np.int32]
    f: NDArray[np.float32]


KERNELS, tiny, build, min_blocks = registry(partial(Tiny, dtype="fp16"))


def data_for(spec: Tiny, seed: int = 0) -> Data:
    """Inputs of the kind that the kernel wants: any bits, noise, small integers, or such that sums of are rounded."""
    draw = np.random.default_rng(seed)
    floats = draw.standard_normal(SIZE).astype(np.float32)
    if spec.data == "bits":
        bits = draw.integers(-(2**15), 2**15, 3 * SIZE).astype(np.int16)
    else:
        noise = draw.standard_normal(3 * SIZE)
        most = 32 if spec.data == "large integers" else 4
        values = noise if spec.data == "noise" else draw.integers(-most, most + 1, 3 * SIZE).astype(float)
        bits = values.astype(HALF[spec.dtype]).view(np.int16)
    if spec.name == "gather_halves":  # the table: places inside what the kernel has copied
        bits[SIZE + 2 * TABLE_AT :] &= 2 * TABLE_ROOM - 1
    return Data(bits[:SIZE].copy(), bits[SIZE:].view(np.int32).copy(), floats)


def run_cpu(spec: Tiny, data: Data, family: Any = None) -> tuple[NDArray[np.int16], Counters]:
    """Run on the CPU body, a kernel of this module or of another: what it wrote (poisoned before), what was counted."""
    machine = Machine()
    out = np.full(SIZE, POISON, np.int16)
    kernel = (family or sys.modules[__name__]).build(CpuTile(machine, spec.dtype), spec)
    buffers = [Buffer("h", data.h), Buffer("w", data.w), Buffer("f", data.f), Buffer("out", out)]
    counters = machine.run(kernel, spec.grid, spec.warps, spec.shared_words, [*buffers, spec.n])
    return out, counters


def run_gpu(spec: Tiny, data: Data, family: Any = None) -> NDArray[np.int16]:
    """Run on the first GPU, a kernel of this module or of another; needs a MONARCH_NUMBA_CACHE of the test's own."""
    from kernels_numba import device
    from kernels_numba.launch import DeviceBuffer, LoadedKernel, synchronize

    loaded = LoadedKernel(family or sys.modules[__name__], spec, device())
    buffers = [DeviceBuffer.of(x, 0) for x in (*data, np.full(SIZE, POISON, np.int16))]
    launch = loaded.launcher(spec.grid, (*POINTERS, spec.n))
    launch(0, *(buffer.pointer for buffer in buffers))
    synchronize(0)
    return buffers[-1].host()


def _reinterpret(tile: Any, count: int, to: str) -> Any:
    """Registers of float32 as words, or of words as float32: an operation that only these tests need."""
    if tile.name == "cpu":
        return lambda fragment: np.ascontiguousarray(fragment).view(
            {"words": np.int32, "floats": np.float32}[to]
        )
    from kernels_numba.tile.gpu_emit import F32, I32, intrinsic, pack_tuple, types, unpack

    element, register = (types.int32, I32) if to == "words" else (types.float32, F32)

    @intrinsic
    def cast(typing_context, fragment):
        def codegen(context, builder, signature, args):
            values = [builder.bitcast(x, register) for x in unpack(builder, args[0], count)]
            return pack_tuple(context, builder, signature.return_type, values)

        return types.UniTuple(element, count)(fragment), codegen

    return cast


def _put(tile: Any, count: int) -> Any:
    return tile.store_pieces(tuple((0, 64 * r, (r,)) for r in range(count)), 2, guarded=False)


def _elementwise(tile: Any, read: int, operation: Any, wrote: int) -> Callable:
    """Read a fragment (float32 if the operation wants it), apply, write."""
    lane, load, put = tile.lane, tile.load_global(read, 4), _put(tile, wrote)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, operation(load(w, 4 * l, 128)))

    return kernel


def _two(tile: Any, first: int, second: int, operation: Any, wrote: int, words: Any = None) -> Callable:
    """Read two fragments, the second from word 1024 on; apply; write (through ``words`` if float32)."""
    lane, put = tile.lane, _put(tile, wrote)
    width = 4 if second % 4 == 0 else 2
    one, two, step = tile.load_global(first, 4), tile.load_global(second, width), 32 * width

    if words is None:

        def kernel(h, w, f, out, n):
            l = lane()  # noqa: E741
            put(out, 0, 0, 2 * l, 0, 0, 0, operation(one(w, 4 * l, 128), two(w, 1024 + width * l, step)))

        return kernel

    def kernel_of_floats(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, words(operation(one(w, 4 * l, 128), two(w, 1024 + width * l, step))))

    return kernel_of_floats


# ---- places and order ----------------------------------------------------------------------------------------
@tiny("places", grid=3, warps=2)
def places(tile: Any) -> Callable:
    lane, warp, block, load, put = tile.lane, tile.warp, tile.block, tile.load_global(1, 1), _put(tile, 1)

    def kernel(h, w, f, out, n):
        first = (block() * 2 + warp()) * 32
        put(out, 2 * first, 0, 2 * lane(), 0, 0, 0, load(w, first + 31 - lane(), 0))

    return kernel


@tiny("divide", n=7)
def divide(tile: Any) -> Callable:
    lane, quotient, load, put = tile.lane, tile.divide, tile.load_global(1, 1), _put(tile, 1)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, load(w, quotient(100 * l + 99, n), 0))

    return kernel


TURNS = 4


@tiny("opaque")
def opaque(tile: Any) -> Callable:
    """A loop of four turns, from where the warp has its share on."""
    lane, warp, turns, small = tile.lane, tile.warp, tile.opaque, tile.small
    load, multiply, put = tile.load_global(16, 4), tile.multiply(16), _put(tile, 16)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        i = small(TURNS * warp())
        end = small(i + turns(TURNS))
        while i < end:
            x = load(w, 512 * i + 4 * l, 128)
            put(out, 1024 * i, 0, 2 * l, 0, 0, 0, multiply(x, x))
            i = small(i + 1)

    return kernel


@tiny("held")
def held(tile: Any) -> Callable:
    """Indices of 32 and of 64 bits, other ones in each lane."""
    lane, keep, small, int64 = tile.lane, tile.held, tile.small, tile.int64
    load, put = tile.load_global(8, 4), _put(tile, 8)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        near, far = keep(small(124 - 4 * l)), keep(int64(2) * l)
        put(out, 0, 0, far, 0, 0, 0, load(w, near, 128))

    return kernel


@tiny("barrier", grid=2, warps=4, shared_words=4 * 128)
def barrier(tile: Any) -> Callable:
    """Every warp reads what the next one brought."""
    lane, warp, block, meet = tile.lane, tile.warp, tile.block, tile.barrier
    copy, commit, wait = tile.copy_words_async, tile.commit, tile.wait(0)
    load, put = tile.load_shared(4, 4), _put(tile, 4)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        mine = warp()
        other = (mine + 1) & 3
        copy(128 * mine + 4 * l, w, (block() * 4 + mine) * 128 + 4 * l)
        commit()
        wait()
        meet()
        put(out, (block() * 4 + mine) * 256, 0, 2 * l, 0, 0, 0, load(128 * other + 4 * l, 0))

    return kernel


@tiny("groups", shared_words=256)
def groups(tile: Any) -> Callable:
    """Two groups of copies; the first is read while the second may still be under way."""
    lane, copy, commit, sync = tile.lane, tile.copy_words_async, tile.commit, tile.warp_sync
    wait_first, wait_all, load, put = tile.wait(1), tile.wait(0), tile.load_shared(4, 4), _put(tile, 4)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        copy(4 * l, w, 4 * l)
        commit()
        copy(128 + 4 * l, w, 512 + 4 * l)
        commit()
        wait_first()
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, load(124 - 4 * l, 0))
        wait_all()
        sync()
        put(out, 256, 0, 2 * l, 0, 0, 0, load(252 - 4 * l, 0))

    return kernel


# ---- memory --------------------------------------------------------------------------------------------------
@tiny("copy_async:8", "copy_async:4", "copy_async:2", "copy_async:1", shared_words=512, n=301)
def copy_async(tile: Any, halves: int) -> Callable:
    """1024 elements from an offset of one access on, those with an index of n or more masked off."""
    lane, copy, commit, wait, sync = (
        tile.lane,
        tile.copy_async(halves),
        tile.commit,
        tile.wait(0),
        tile.warp_sync,
    )
    rounds, load, put = 32 // halves, tile.load_shared(16, 4), _put(tile, 16)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        for i in range(rounds):
            e = (i * 32 + l) * halves
            copy(e, h, halves + e, e < n)
        commit()
        wait()
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, load(4 * l, 128))

    return kernel


PLACES = (0, 5, 17, 31)
"""Lane l writes in the turn of lane l ^ PLACES[i] at a copy's place i."""


def copied_pieces(halves: int) -> tuple[tuple[int, int, int], ...]:
    """Rounds of 32 accesses of 1024 elements, the last one first, to each of the four places in turn."""
    rounds = 32 // halves
    step = 32 * halves
    return tuple((i % 4, step * (rounds - 1 - i), step * i) for i in range(rounds))


def copied_from(halves: int, guarded: bool) -> int:
    """The first element: near the start; guarded, so near the end that only elements below n = 301 are in bounds."""
    return SIZE - 304 if guarded else halves


@tiny("copy_pieces:8", "copy_pieces:4", "copy_pieces:2", "copy_pieces:1", shared_words=512)
@tiny(
    "copy_pieces:8:guarded",
    "copy_pieces:4:guarded",
    "copy_pieces:2:guarded",
    "copy_pieces:1:guarded",
    shared_words=512,
    n=301,
)
def copy_pieces(tile: Any, halves: int, guarded: str = "") -> Callable:
    """1024 elements; if guarded, zeros for those of accesses that do not begin below n."""
    lane, commit, wait, sync = tile.lane, tile.commit, tile.wait(0), tile.warp_sync
    copy = tile.copy_pieces(copied_pieces(halves), halves, guarded=bool(guarded))
    base = copied_from(halves, bool(guarded))
    load, put = tile.load_shared(16, 4), _put(tile, 16)
    _, second, third, fourth = PLACES

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        at = halves * l
        copy(h, base, n, at, at, halves * (l ^ second), halves * (l ^ third), halves * (l ^ fourth))
        commit()
        wait()
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, load(4 * l, 128))

    return kernel


@tiny("load_shared:1", "load_shared:2", "load_shared:4", shared_words=1024)
def load_shared(tile: Any, width: int) -> Callable:
    """Eight words, ``width`` at a time: with width 1 lanes are 3 words apart, otherwise in reverse."""
    lane, copy, commit, wait, sync = (
        tile.lane,
        tile.copy_words_async,
        tile.commit,
        tile.wait(0),
        tile.warp_sync,
    )
    load, put = tile.load_shared(8, width), _put(tile, 8)
    step, start = (3, 0) if width == 1 else (-width, 31 * width)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        for i in range(8):
            copy(128 * i + 4 * l, w, 128 * i + 4 * l)
        commit()
        wait()
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, load(start + step * l, 68))

    return kernel


@tiny("load_global:1", "load_global:2", "load_global:4")
def load_global(tile: Any, width: int) -> Callable:
    lane, load, put = tile.lane, tile.load_global(8, width), _put(tile, 8)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, load(w, 1024 - width * l, 68))

    return kernel


PIECES = ((0, 4, (3, 2, 1, 0)), (1, 256, (4, 5)), (2, 0, (7,)), (3, 400, (6,)))
"""(which lane offset, constant, registers)"""


@tiny("load_pieces", shared_words=512)
def load_pieces(tile: Any) -> Callable:
    lane, copy, commit, wait, sync = (
        tile.lane,
        tile.copy_words_async,
        tile.commit,
        tile.wait(0),
        tile.warp_sync,
    )
    load, put = tile.load_pieces(PIECES, 8), _put(tile, 8)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        for i in range(4):
            copy(128 * i + 4 * l, w, 128 * i + 4 * l)
        commit()
        wait()
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, load(4 * (l ^ 5), 2 * l, 31 - l, 3 * l))

    return kernel


@tiny("store_pieces:8", "store_pieces:4", "store_pieces:2", "store_pieces:1", n=301)
@tiny(
    "store_pieces:8:guarded",
    "store_pieces:4:guarded",
    "store_pieces:2:guarded",
    "store_pieces:1:guarded",
    n=301,
)
def store_pieces(tile: Any, halves: int, guarded: str = "") -> Callable:
    """Eight registers: four in a row from one end, four reversed from the other, from element 8 on.

    Guarded, only elements below n are written.
    """
    lane, load = tile.lane, tile.load_global(8, 4)
    pieces = ((1, 0, (0, 1, 2, 3)), (2, 248, (7, 6, 5, 4)))
    put = tile.store_pieces(pieces, halves, guarded=bool(guarded))

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 8, n, 0, 16 * l, 8 * (63 - 2 * l) - 248, 0, load(w, 4 * l, 128))

    return kernel


TABLE_AT, TABLE_ROOM, GATHER_BASE = 1024, 512, 36


@tiny("gather_halves", shared_words=GATHER_BASE + TABLE_ROOM)
def gather_halves(tile: Any) -> Callable:
    """The words from the first on go to shared memory; a table of places in them follows at word 1024."""
    lane, copy, commit, wait, sync = (
        tile.lane,
        tile.copy_words_async,
        tile.commit,
        tile.wait(0),
        tile.warp_sync,
    )
    (load, gather), put = tile.gather_halves(8), _put(tile, 8)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        for i in range(4):
            copy(GATHER_BASE + 128 * i + 4 * l, w, 128 * i + 4 * l)
        commit()
        wait()
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, gather(GATHER_BASE, load(w, TABLE_AT + 4 * l, 128)))

    return kernel


SCATTERED = ((0, 0, (1, 0, 3, 2)), (1, 256, (5, 4)), (2, 384, (7,)), (3, 384, (6,)))


@tiny("store_shared_pieces", shared_words=512)
def store_shared_pieces(tile: Any) -> Callable:
    lane, load, sync = tile.lane, tile.load_global(8, 4), tile.warp_sync
    store, again, put = tile.store_shared_pieces(SCATTERED), tile.load_shared(16, 4), _put(tile, 16)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        store(4 * (l ^ 5), 2 * l, 31 - l, 127 - l, load(w, 4 * l, 128))
        store(128 + 4 * l, 64 + 2 * l, 32 + l, 64 + l, load(w, 1024 + 4 * l, 128))
        sync()
        put(out, 0, 0, 2 * l, 0, 0, 0, again(4 * l, 128))

    return kernel


@tiny("gather:8", "gather:4", "gather:2", "gather:1", n=301)
@tiny("gather:8:guarded", "gather:4:guarded", "gather:2:guarded", "gather:1:guarded", n=301)
def gather(tile: Any, halves: int, guarded: str = "") -> Callable:
    """What `store_pieces` below stores, read back: zeros from element n on if guarded."""
    lane, put = tile.lane, _put(tile, 8)
    pieces = ((1, 0, (0, 1, 2, 3)), (2, 248, (7, 6, 5, 4)))
    load = tile.gather(pieces, 8, halves, guarded=bool(guarded))

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, load(h, 8, n, 0, 16 * l, 8 * (63 - 2 * l) - 248, 0))

    return kernel


@tiny("load_float", n=5, data="noise")
def load_float(tile: Any) -> Callable:
    lane, load, one, put = tile.lane, tile.load_global(8, 4), tile.load_float, _put(tile, 8)
    floats, words, scale = _reinterpret(tile, 8, "floats"), _reinterpret(tile, 8, "words"), tile.scale(8)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, words(scale(floats(load(w, 4 * l, 128)), one(f, n))))

    return kernel


# ---- products ------------------------------------------------------------------------------------------------
@tiny("mma:1:1:1", "mma:1:2:3", "mma:2:3:2", data="noise")
def mma(tile: Any, rows: int, columns: int, k: int) -> Callable:
    count = 4 * rows * columns
    words = _reinterpret(tile, count, "words")
    return _two(tile, 4 * rows * k, 2 * k * columns, tile.mma(rows, columns, k), count, words)


@tiny("dft_rows:forward", "dft_rows:inverse", "dft_rows:inverse:half", data="noise")
@tiny("dft_rows:forward:paired:8", "dft_rows:forward:paired:4", "dft_rows:inverse:paired:4", data="noise")
def dft_rows(tile: Any, direction: str, extra: str = "", period: int = 0) -> Callable:
    """A factor of 32 outputs and 16 inputs on a complex [16, 16]; in the first 8 rows, some have no mirror."""
    rows, columns, k = 2, 2, 1
    operation = tile.dft_rows(
        rows,
        columns,
        k,
        inverse=direction == "inverse",
        self_paired=period,
        lower_half=extra == "half",
    )
    count = 2 * 4 * rows * columns // (2 if extra == "half" else 1)
    return _two(tile, 4 * rows * k, 2 * 2 * k * columns, operation, count, _reinterpret(tile, count, "words"))


@tiny("dft_columns:forward", "dft_columns:inverse", data="noise")
def dft_columns(tile: Any, direction: str) -> Callable:
    """A complex [16, 32] and a factor of 32 inputs and 32 outputs."""
    rows, columns, k = 1, 4, 2
    operation = tile.dft_columns(rows, columns, k, inverse=direction == "inverse")
    count = 2 * 4 * rows * columns
    return _two(tile, 2 * 4 * rows * k, 2 * k * columns, operation, count, _reinterpret(tile, count, "words"))


@tiny("mma_halves:2:3:2", data="large integers")
def mma_halves(tile: Any, rows: int, columns: int, k: int) -> Callable:
    return _two(tile, 4 * rows * k, 2 * k * columns, tile.mma_halves(rows, columns, k), 2 * rows * columns)


@tiny("mma_to_parts_halves", data="large integers")
def mma_to_parts_halves(tile: Any) -> Callable:
    """A factor of 16 rows, of real and of imaginary parts, and 32 inputs of two sequences."""
    return _two(tile, 16, 16, tile.mma_to_parts_halves(2, 2, 2), 16)


@tiny("dft_rows_halves:forward", "dft_rows_halves:inverse", data="large integers")
def dft_rows_halves(tile: Any, direction: str) -> Callable:
    return _two(tile, 8, 8, tile.dft_rows_halves(2, 2, 1, inverse=direction == "inverse"), 16)


@tiny("dft_columns_halves:forward", "dft_columns_halves:inverse", data="large integers")
def dft_columns_halves(tile: Any, direction: str) -> Callable:
    return _two(tile, 16, 16, tile.dft_columns_halves(1, 4, 2, inverse=direction == "inverse"), 16)


# ---- arithmetic on registers, and moving them ----------------------------------------------------------------
SWAPPED = (1, 2)


@tiny("pack", "pack:swap")
def pack(tile: Any, swap: str = "") -> Callable:
    rounded, floats = tile.pack(4, swap=SWAPPED if swap else ()), _reinterpret(tile, 8, "floats")
    lane, load, put = tile.lane, tile.load_global(8, 4), _put(tile, 4)

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        put(out, 0, 0, 2 * l, 0, 0, 0, rounded(floats(load(w, 4 * l, 128))))

    return kernel


@tiny("multiply")
def multiply(tile: Any) -> Callable:
    return _two(tile, 16, 16, tile.multiply(16), 16)


@tiny("multiply_complex")
def multiply_complex(tile: Any) -> Callable:
    return _two(tile, 32, 32, tile.multiply_complex(16), 32)


@tiny("multiply_mirror", "multiply_mirror:first")
def multiply_mirror(tile: Any, first: str = "") -> Callable:
    """Four complex fragments of four registers a part, 256 words apart."""
    lane, load, put = tile.lane, tile.load_global(8, 4), _put(tile, 8)
    multiply = tile.multiply_mirror(4, mirror_first=bool(first))

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        x, a = load(w, 4 * l, 128), load(w, 256 + 4 * l, 128)
        m, b = load(w, 512 + 4 * l, 128), load(w, 768 + 4 * l, 128)
        put(out, 0, 0, 2 * l, 0, 0, 0, multiply(x, a, m, b))

    return kernel


PICKS = (5, 5, 0, 7, 1)


@tiny("select")
def select(tile: Any) -> Callable:
    return _elementwise(tile, 8, tile.select(PICKS), len(PICKS))


ZEROS = (3, -1, 0, -1, 3)


@tiny("select_or_zero")
def select_or_zero(tile: Any) -> Callable:
    return _elementwise(tile, 8, tile.select_or_zero(ZEROS), len(ZEROS))


@tiny("join")
def join(tile: Any) -> Callable:
    return _two(tile, 4, 8, tile.join, 12)


PAIRS = ((0, 1, 0), (0, 1, 1), (7, 2, 0), (3, 3, 1))


@tiny("pair_halves")
def pair_halves(tile: Any) -> Callable:
    return _elementwise(tile, 8, tile.pair_halves(PAIRS), len(PAIRS))


@tiny("pair_halves_swapped")
def pair_halves_swapped(tile: Any) -> Callable:
    """Swapped in the lanes of which just one of the bits 2 and 8 is set."""
    load, pair, put = tile.load_global(8, 4), tile.pair_halves_swapped(PAIRS), _put(tile, len(PAIRS))
    lane, small = tile.lane, tile.small

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        swap = small(((l >> 1) ^ (l >> 3)) & 1)
        put(out, 0, 0, 2 * l, 0, 0, 0, pair(load(w, 4 * l, 128), swap))

    return kernel


@tiny("prefetch")
def prefetch(tile: Any) -> Callable:
    """Of 20 lanes; the others name places that are not there. Then a fragment, as it is."""
    load, hint, put = tile.load_global(4, 4), tile.prefetch, _put(tile, 4)
    lane = tile.lane

    def kernel(h, w, f, out, n):
        l = lane()  # noqa: E741
        hint(h, 200 * l, l < 20)
        put(out, 0, 0, 2 * l, 0, 0, 0, load(w, 4 * l, 128))

    return kernel


BLOCKS = (5, 0, 7, 2, 1)


@tiny("transpose")
def transpose(tile: Any) -> Callable:
    return _elementwise(tile, 8, tile.transpose(BLOCKS), len(BLOCKS))
