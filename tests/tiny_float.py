"""Small kernels, about one for each float32 operation of the tile layer, that both bodies run; as `tiny_kernels`.

Every kernel takes the same arguments: halves ``h``, float32 ``f`` and words ``w`` to read, float32 ``out`` to write,
an integer ``n`` and float64 ``d`` to read. A kernel that makes a fragment writes register r of lane l to ``32 r + l``.
"""

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tiny_registry import registry

from kernels_numba.tile.counters import Counters
from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import Buffer, Machine

VOCABULARY = "float"
SIGNATURE = ("HALVES", "FLOATS", "WORDS", "FLOATS", "INT", "DOUBLES")
SIZE = 4096  # elements of every buffer


@dataclass(frozen=True)
class Tiny:
    """One kernel; what a launch asks of a spec."""

    name: str
    warps: int = 1
    shared_words: int = 1024
    dtype: str = "fp32"

    @property
    def shared_bytes(self) -> int:
        return 4 * self.shared_words


class Data(NamedTuple):
    h: NDArray[np.int16]
    f: NDArray[np.float32]
    w: NDArray[np.int32]
    d: NDArray[np.float64]


KERNELS, tiny, build, min_blocks = registry(Tiny)


def data_for(spec: Tiny, seed: int = 0) -> Data:
    """Noise; words are small places, some of them negative."""
    draw = np.random.default_rng(seed)
    half = draw.standard_normal(SIZE).astype(np.float16).view(np.int16)
    words = draw.integers(-50, 1000, SIZE).astype(np.int32)
    return Data(half, draw.standard_normal(SIZE).astype(np.float32), words, draw.standard_normal(SIZE))


def run_cpu(spec: Tiny, data: Data, n: int = 0) -> tuple[NDArray[np.float32], Counters]:
    """Run on the CPU body: what it wrote (NaN before) and what was counted."""
    machine = Machine()
    out = np.full(SIZE, np.nan, np.float32)
    kernel = build(vocabulary(machine, "fp32", VOCABULARY), spec)
    h, f, w, d = (Buffer(name, x) for name, x in zip("hfwd", data, strict=True))
    counters = machine.run(kernel, 1, spec.warps, spec.shared_words, [h, f, w, Buffer("out", out), n, d])
    return out, counters


def run_gpu(spec: Tiny, data: Data, n: int = 0) -> NDArray[np.float32]:
    """Run on the first GPU."""
    from kernels_numba import device
    from kernels_numba.launch import DeviceBuffer, LoadedKernel, synchronize

    loaded = LoadedKernel(sys.modules[__name__], spec, device())
    h, f, w, d, out = (DeviceBuffer.of(x, 0) for x in (*data, np.full(SIZE, np.nan, np.float32)))
    launch = loaded.launcher(1, ("u", "pregate", "postgate", "y", n, d.pointer))
    launch(0, h.pointer, f.pointer, w.pointer, out.pointer)
    synchronize(0)
    return out.host()


def reader(tile: Any, count: int) -> Any:
    """Load register r of lane l from ``at + 32 r + l``."""
    return tile.load_floats(tuple((32 * r, (r,)) for r in range(count)), count, guarded=False)


# Float32 memory: pieces of one element and of two, in and out of order.
PIECES = ((0, (2,)), (65, (0,)), (128, (1, 3)))


@tiny("floats:1", "floats:0")
def build_floats(tile, guarded):
    load = tile.load_floats(PIECES, 4, guarded=bool(guarded))
    store = tile.store_floats(PIECES, guarded=bool(guarded))
    copy = tile.copy_floats(((1, 2, 1), (5, 3, 1), (64, 128, 2)), guarded=bool(guarded))
    get, commit, wait = tile.load_points((1, 64)), tile.commit, tile.wait(0)
    put = tile.store_floats(tuple((32 * r, (r,)) for r in range(4)), guarded=False)
    lane, small, int64 = tile.lane, tile.small, tile.int64

    def kernel(h, f, w, out, n, d):
        index = small(2 * lane())
        copy(f, int64(16), small(n), index, index)
        commit()
        wait()
        put(out, int64(2000), small(1), small(lane()), get(index))
        x = load(f, int64(16), small(n), index)
        store(out, int64(1000), small(n), index, x)

    return kernel


@tiny("multiply_floats")
def build_multiply(tile):
    load, store = reader(tile, 3), tile.store_floats(tuple((32 * r, (r,)) for r in range(3)), guarded=False)
    multiply, lane, small, int64 = tile.multiply_floats(3), tile.lane, tile.small, tile.int64

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        a, b = load(f, int64(0), small(1), index), load(f, int64(100), small(1), index)
        store(out, int64(0), small(1), index, multiply(a, b))

    return kernel


@tiny(
    "dft:4:0:4:4",
    "dft:8:1:8:8",
    "dft:16:0:16:16",
    "dft:16:0:9:16",
    "dft:16:1:16:8",
    "dft:12:1:12:12",
    "dft:6:0:3:6",
    "dft:5:0:5:5",
    "dft:32:0:32:32",
)
def build_dft(tile, points, inverse, live, wanted):
    groups = 2 if points < 32 else 1
    count = 2 * groups
    load = reader(tile, count * live)
    store = tile.store_floats(tuple((32 * r, (r,)) for r in range(count * wanted)), guarded=False)
    dft = tile.dft_points(points, groups, inverse=bool(inverse), live=live, wanted=wanted)
    lane, small, int64 = tile.lane, tile.small, tile.int64

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        store(out, int64(0), small(1), index, dft(load(f, int64(0), small(1), index)))

    return kernel


# Two numbers of a table for the points named; point 3 is multiplied twice, point 4 not at all.
FACTORS = ((4, (0, 3), (1,)), (256, (), (3, 2)))


@tiny("multiply_points:0", "multiply_points:1")
def build_multiply_points(tile, conjugate):
    load, store = reader(tile, 10), tile.store_floats(tuple((32 * r, (r,)) for r in range(10)), guarded=False)
    multiply = tile.multiply_points(FACTORS, 5, conjugate=bool(conjugate))
    lane, small, int64 = tile.lane, tile.small, tile.int64

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        x = load(f, int64(0), small(1), index)
        store(out, int64(0), small(1), index, multiply(x, f, int64(512) + 8 * index))

    return kernel


PLACES = (0, 33, 70)
MIRRORS = ((1, 3), (0, 36), (1, 66))


@tiny("points")
def build_points(tile):
    load, put, get = reader(tile, 6), tile.store_points(PLACES), tile.load_points(PLACES)
    store = tile.store_floats(tuple((32 * r, (r,)) for r in range(6)), guarded=False)
    lane, small, int64, warp_sync = tile.lane, tile.small, tile.int64, tile.warp_sync

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        put(2 * index, load(f, int64(0), small(1), index))
        warp_sync()
        store(out, int64(0), small(1), index, get(2 * (31 - index)))

    return kernel


@tiny("mirrored")
def build_mirrored(tile):
    load, put = reader(tile, 6), tile.store_points(tuple(range(0, 96, 32)))
    store = tile.store_floats(tuple((32 * r, (r,)) for r in range(6)), guarded=False)
    mirrored, starts = tile.multiply_mirrored(MIRRORS, 128), tile.load_global(2, 1)
    lane, small, int64, warp_sync = tile.lane, tile.small, tile.int64, tile.warp_sync

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        x = load(f, int64(0), small(1), index)
        put(2 * index, x)
        warp_sync()
        y = mirrored(x, f, int64(512) + 4 * index, small(2 * 8), starts(w, index, 32))
        store(out, int64(0), small(1), index, y)

    return kernel


# ---- filters -------------------------------------------------------------------------------------------------
@tiny("taps:fp16:0", "taps:bf16:0", "taps:fp32:0", "taps:fp64:0", "taps:fp32:1", "taps:fp64:1", "taps:fp16:1")
def build_taps(tile, kind, double):
    load, narrow = tile.load_taps(3, kind, double=bool(double)), tile.narrow(3)
    store = tile.store_floats(tuple((32 * r, (r,)) for r in range(3)), guarded=False)
    lane, small, int64 = tile.lane, tile.small, tile.int64

    wide = bool(double)

    def kernel_of_halves(h, f, w, out, n, d):
        index = small(lane())
        x = load(h, int64(7), w, int64(index), int64(40))
        store(out, int64(0), small(1), index, narrow(x) if wide else x)

    def kernel_of_floats(h, f, w, out, n, d):
        index = small(lane())
        x = load(f, int64(7), w, int64(index), int64(40))
        store(out, int64(0), small(1), index, narrow(x) if wide else x)

    def kernel_of_doubles(h, f, w, out, n, d):
        index = small(lane())
        x = load(d, int64(7), w, int64(index), int64(40))
        store(out, int64(0), small(1), index, narrow(x) if wide else x)

    return {"fp32": kernel_of_floats, "fp64": kernel_of_doubles}.get(kind, kernel_of_halves)


@tiny("strided:0", "strided:1")
def build_strided(tile, double):
    wide = bool(double)
    load, gather = tile.load_strided(3, double=wide), tile.gather_points(3, double=wide)
    multiply, weigh = tile.multiply_strided(3, double=wide), tile.weigh(3, double=wide)
    zeros, narrow = tile.zeros(6, double=wide), tile.narrow(6)
    words, places = tile.load_global(12 if double else 6, 1), tile.load_global(3, 1)
    dft = tile.dft_points(3, 1, inverse=False, double=wide)
    store = tile.store_floats(tuple((32 * r, (r,)) for r in range(6)), guarded=False)
    lane, small, int64 = tile.lane, tile.small, tile.int64

    def kernel(h, f, w, out, n, d):
        source = d if double else f
        index = small(lane())
        x = load(source, int64(index), int64(50))
        x = multiply(dft(x), source, int64(4 * index), int64(33))
        x = weigh(zeros(), x, words(w, 0, 1))
        x = weigh(x, gather(source, int64(3), places(w, 40, 1)), words(w, 20, 1))
        store(out, int64(0), small(1), index, narrow(x) if double else x)

    return kernel


@tiny("store_strided")
def build_store_strided(tile):
    load, store = tile.load_strided(3), tile.store_strided(3)
    lane, small, int64 = tile.lane, tile.small, tile.int64

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        store(out, int64(5 + index), int64(40), index < 20, load(f, int64(index), int64(32)))

    return kernel


@tiny("magnitude")
def build_magnitude(tile):
    load, zeros, magnitude = tile.load_strided(3), tile.zeros(1), tile.magnitude(3)
    as_words, put = tile.as_words, tile.store_shared_pieces(((0, 0, (0,)),))
    gather, largest, power = tile.load_shared(32, 1), tile.largest_word(32), tile.power_above(2.0**-6, 16.0)
    store = tile.store_floats(((0, (0,)),), guarded=False)
    divide, lane, small, int64, warp_sync = (
        tile.divide_floats(1),
        tile.lane,
        tile.small,
        tile.int64,
        tile.warp_sync,
    )
    load_float = tile.load_float

    def kernel(h, f, w, out, n, d):
        index = small(lane())
        best = magnitude(load(f, int64(index), int64(32)), zeros())
        put(index, index, index, index, as_words(best))
        warp_sync()
        most = largest(gather(0, 1))
        store(out, int64(0), small(1), index, best)
        store(out, int64(32), small(1), index, most)
        store(out, int64(64), small(1), index, power(most))
        store(out, int64(96), small(1), index, divide(most, load_float(f, 4000)))

    return kernel
