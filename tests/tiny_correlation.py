"""Small kernels, one for each operation that sums a filter's gradient, that both bodies run; as `tiny_kernels`.

Every kernel takes words ``w`` and float32 ``f`` to read, float32 ``out`` to write, which begins as a copy of ``f``, and
an integer ``n``. Fragments are read a register at a time, register r of lane l at ``32 r + l``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from hardware import HALF
from numpy.typing import NDArray

from kernels_numba.tile.counters import Counters
from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
from kernels_numba.tile.machine import Buffer, Machine

SIGNATURE = ("WORDS", "FLOATS", "FLOATS", "INT")
SIZE = 2048
COUNT = 3  # registers of z in each part
SUMS = 1024
CONSTANTS = (0, 40, 33)


@dataclass(frozen=True)
class Tiny:
    """One kernel; what a launch asks of a spec."""

    name: str
    dtype: str
    warps: int = 1
    shared_bytes: int = 4096

    @property
    def vocabulary(self) -> str:
        return "float" if self.dtype == "fp32" else ""


class Data(NamedTuple):
    w: NDArray[np.int32]
    f: NDArray[np.float32]


BUILDERS: dict[str, Callable[[Any], Callable]] = {}
KERNELS: list[Tiny] = []


def tiny(name: str, *dtypes: str) -> Callable:
    """Register a builder ``build(tile)``."""

    def register(make: Callable) -> Callable:
        BUILDERS[name] = make
        KERNELS.extend(Tiny(name, dtype) for dtype in dtypes)
        return make

    return register


def family(spec: Tiny) -> Any:
    """What `launch` asks of a kernel family."""
    return SimpleNamespace(
        __name__=__name__,
        build=lambda tile, spec: BUILDERS[spec.name](tile),
        SIGNATURE=SIGNATURE,
        VOCABULARY=spec.vocabulary,
        min_blocks=lambda spec: 1,
    )


def data_for(spec: Tiny, seed: int = 0) -> Data:
    """Noise, with some of the halves not finite; for bins small places."""
    draw = np.random.default_rng(seed)
    floats = draw.standard_normal(SIZE).astype(np.float32)
    if spec.dtype == "fp32":
        least = -1 if spec.name in ("taps", "gather_shared") else 0
        return Data(draw.integers(least, 300, SIZE).astype(np.int32), floats)
    noise = draw.standard_normal(2 * SIZE)
    noise[draw.integers(0, 2 * SIZE, 40)] = draw.choice([np.nan, np.inf, -np.inf, 0.0, 1e-7], 40)
    return Data(noise.astype(HALF[spec.dtype]).view(np.int32), floats)


def run_cpu(spec: Tiny, data: Data, n: int) -> tuple[NDArray[np.float32], Counters]:
    """Run on the CPU body: what is in ``out`` after, and what was counted."""
    machine = Machine()
    out = data.f.copy()
    kernel = BUILDERS[spec.name](vocabulary(machine, spec.dtype, spec.vocabulary))
    buffers = [Buffer("w", data.w), Buffer("f", data.f), Buffer("out", out)]
    counters = machine.run(kernel, 1, spec.warps, spec.shared_bytes // 4, [*buffers, n])
    return out, counters


def run_gpu(spec: Tiny, data: Data, n: int) -> NDArray[np.float32]:
    """Run on the first GPU; needs a MONARCH_NUMBA_CACHE of the test's own."""
    from kernels_numba import device
    from kernels_numba.launch import DeviceBuffer, LoadedKernel, synchronize

    loaded = LoadedKernel(family(spec), spec, device())
    buffers = [DeviceBuffer.of(x, 0) for x in (*data, data.f)]
    loaded.launcher(1, ("w", "f", "out", n), ("w", "f", "out"))(0, *(buffer.pointer for buffer in buffers))
    synchronize(0)
    return buffers[-1].host()


@tiny("correlate", "fp16", "bf16")
def correlate(tile: Any) -> Callable:
    """From zero, n times conj(z) w, w made by a real product; written as sums lie in memory."""
    lane, load, mma = tile.lane, tile.load_global(2 * COUNT, 1), tile.mma(1, COUNT, 1)
    none, add, store = tile.no_sums(COUNT), tile.correlate(COUNT), tile.store_sums_global(COUNT)
    load_a, load_b = tile.load_global(4, 1), tile.load_global(2 * COUNT, 1)

    def kernel(w, f, out, n):
        l = lane()  # noqa: E741
        z = load(w, l, 32)
        product = mma(load_a(w, 512 + l, 32), load_b(w, 1024 + l, 32))
        sums = none()
        turn = 0
        while turn < n:
            sums = add(sums, z, product)
            turn += 1
        store(out, 4 * l, sums)

    return kernel


@tiny("correlate_global", "fp16", "bf16")
def correlate_global(tile: Any) -> Callable:
    """To what is in global memory from SUMS on, n times."""
    lane, load, mma = tile.lane, tile.load_global(2 * COUNT, 1), tile.mma(1, COUNT, 1)
    add, load_a, load_b = tile.correlate_global(COUNT), tile.load_global(4, 1), tile.load_global(2 * COUNT, 1)

    def kernel(w, f, out, n):
        l = lane()  # noqa: E741
        z = load(w, l, 32)
        product = mma(load_a(w, 512 + l, 32), load_b(w, 1024 + l, 32))
        turn = 0
        while turn < n:
            add(out, SUMS + 4 * l, z, product)
            turn += 1

    return kernel


@tiny("correlate_shared", "fp16", "bf16")
def correlate_shared(tile: Any) -> Callable:
    """To zeros in shared memory, n times; then its words to global memory."""
    lane, load, mma = tile.lane, tile.load_global(2 * COUNT, 1), tile.mma(1, COUNT, 1)
    add, load_a, load_b = tile.correlate_shared(COUNT), tile.load_global(4, 1), tile.load_global(2 * COUNT, 1)
    none, pack = tile.no_sums(1), tile.pack(1)
    clear = tile.store_shared_pieces(tuple((0, 128 * i, (0, 0, 0, 0)) for i in range(COUNT)))
    read, store = tile.load_shared(4 * COUNT, 4), tile.store_sums_global(COUNT)

    def kernel(w, f, out, n):
        l = lane()  # noqa: E741
        z = load(w, l, 32)
        product = mma(load_a(w, 512 + l, 32), load_b(w, 1024 + l, 32))
        at = 4 * l
        clear(at, at, at, at, pack(none()))
        turn = 0
        while turn < n:
            add(at, z, product)
            turn += 1
        store(out, 4 * l, read(at, 128))

    return kernel


@tiny("hermitian", "fp32")
def hermitian(tile: Any) -> Callable:
    """Points lane + CONSTANTS of a row of points that begins at n, added to as many others."""
    lane, load, add = tile.lane, tile.load_strided(len(CONSTANTS)), tile.add_hermitian(CONSTANTS)
    store = tile.store_strided(len(CONSTANTS))

    def kernel(w, f, out, n):
        l = lane()  # noqa: E741
        store(out, l, 32, l < 30, add(load(f, l, 32), f, n, w, f, l))

    return kernel


@tiny("gather_shared", "fp32")
def gather_shared(tile: Any) -> Callable:
    """Two floats a lane of shared memory, beyond the n-th; none for the last lanes, or where the place is negative."""
    lane, load, put = tile.lane, tile.load_global(4, 4), tile.store_shared_pieces(((0, 0, (0, 1, 2, 3)),))
    gather, store, sync = tile.gather_shared(2), tile.store_strided(1), tile.warp_sync

    def kernel(w, f, out, n):
        l = lane()  # noqa: E741
        turn = 0
        while turn < 4:
            at = 128 * turn + 4 * l
            put(at, at, at, at, load(w, at, 1))
            turn += 1
        sync()
        keep = l < 29
        store(out, l, 32, True, gather(n, w, (l + 600) * keep + keep - 1, 40))

    return kernel


@tiny("correlate_points", "fp32")
def correlate_points(tile: Any) -> Callable:
    """Sums + conj(z) w of three points a lane, n times."""
    lane, load, add, store = tile.lane, tile.load_strided(3), tile.correlate_points(3), tile.store_strided(3)

    def kernel(w, f, out, n):
        l = lane()  # noqa: E741
        sums = load(f, l + 300, 32)
        turn = 0
        while turn < n:
            sums = add(sums, load(f, l, 32), load(f, l + 100, 32))
            turn += 1
        store(out, l, 32, True, sums)

    return kernel


@tiny("add_turned", "fp32")
def add_turned(tile: Any) -> Callable:
    """Points + points times (f[n] + i f[n + 1])."""
    lane, load, add, store = tile.lane, tile.load_strided(3), tile.add_turned(3), tile.store_strided(3)
    load_float = tile.load_float

    def kernel(w, f, out, n):
        l = lane()  # noqa: E741
        x = add(load(f, l + 300, 32), load(f, l, 32), load_float(f, n), load_float(f, n + 1))
        store(out, l, 32, True, x)

    return kernel


@tiny("plus", "fp32")
def plus(tile: Any) -> Callable:
    """Sums of complex points."""
    lane, load, add, store = tile.lane, tile.load_strided(2), tile.plus(4), tile.store_strided(2)

    def kernel(w, f, out, n):
        l = lane()  # noqa: E741
        store(out, l, 32, True, add(load(f, l, 32), load(f, l + 200, 32)))

    return kernel


@tiny("taps", "fp32")
def taps(tile: Any) -> Callable:
    """Two floats a lane by their places, none where those are negative; their sum over four."""
    lane, load, total = tile.lane, tile.load_taps(2, "fp32"), tile.scaled_total(2)
    store = tile.store_floats(((0, (0,)),), guarded=True)

    def kernel(w, f, out, n):
        l = lane()  # noqa: E741
        store(out, 0, 30, l, total(load(f, n, w, l, 40), 0.25))

    return kernel
