"""Causal filters of a few taps for each channel, and their gradients: one pass over memory each.

    y[n] = sum_t w[t] x[n - (T - 1) + t]            the last tap is of lag 0
    dx[n] = sum_t w[t] dy[n + (T - 1) - t]
    dw[t] = sum_(b, n) dy[n] x[n - (T - 1) + t]

A Hyena operator has three of these around its long convolution. A warp takes SPAN samples of a sequence, eight
neighbours a lane; a lane's neighbours beyond these are loaded once more, which the L1 cache serves. All sums are in
float32 and values are rounded once. The sums of dw, one set for each warp, are added up in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import filter_gradient, gradient_jobs, gradient_passes
from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.device import device
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import ELEMENT_TYPES, HALF_TYPES, edge_words

MOST_TAPS = 8
SPAN = 4096
"""Samples of a warp."""
WARPS = 4
EIGHT = 8
"""Neighbours of a lane,"""
CHUNK = 32 * EIGHT
"""and of a warp."""


@dataclass(frozen=True)
class Spec:
    """One kernel; ``chunks`` of a warp are under way at a time, ``halves`` elements an access."""

    taps: int
    dtype: str
    backward: bool
    halves: int = 8
    chunks: int = 4

    warps = WARPS
    shared_bytes = 0

    @property
    def name(self) -> str:
        """For error messages and profilers."""
        way = "gradients" if self.backward else "forward"
        return f"short_conv_{way}_{self.taps}_{self.dtype}_v{self.halves}_c{self.chunks}"


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function of ``spec``, written in the operations of ``tile``.

    Arguments: halves ``x`` [rows, length], float32 ``weights`` [channels, T]; forward halves ``y``, else halves ``dy``
    and ``dx`` and float32 ``sums`` [rows / channels, pieces, channels, T]; then rows times pieces, pieces of a row,
    channels, and the length.
    """
    return (_build_backward if spec.backward else _build_forward)(tile, spec)


def _pieces(spec: Spec) -> tuple[Any, Any, Any]:
    """What a lane accesses: its own halves, those before them and those after."""
    more = edge_words(spec.taps)
    own = tuple((0, CHUNK * i, tuple(range(4 * i, 4 * i + 4))) for i in range(spec.chunks))
    edge = [tuple(range(more * i, more * i + more)) for i in range(spec.chunks)]
    # Before the first sample is nothing: o0 is then beyond the end.
    before = tuple((min(i, 1), CHUNK * i - 2 * more, names) for i, names in enumerate(edge))
    after = tuple((0, CHUNK * i + EIGHT, names) for i, names in enumerate(edge))
    return own, before, after


def _build_forward(tile: Any, spec: Spec) -> Any:
    taps, chunks, halves = spec.taps, spec.chunks, spec.halves
    more, narrow = edge_words(taps), min(halves, 2)
    own, before, _ = _pieces(spec)
    load = tile.gather(own, 4 * chunks, halves, guarded=True)
    load_before = tile.gather(before, more * chunks, narrow, guarded=True)
    load_weights = tile.load_floats(tuple((t, (t,)) for t in range(taps)), taps, guarded=False)
    filtered, pack = tile.filter_taps(chunks, 4, taps, ahead=False), tile.pack(4 * chunks)
    store = tile.store_pieces(own, halves, guarded=True)
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )

    def kernel(x, weights, y, items, pieces, channels, length):
        item = small(block() * WARPS + warp())
        if item < items:
            row = small(divide(item, pieces))
            start = small((item - row * pieces) * SPAN)
            end = small(min(start + SPAN, length))
            h = small(row - divide(row, channels) * channels)
            base = int64(row) * length
            w = load_weights(weights, int64(h) * taps, small(0), small(0))
            while start < end:
                at = small(start + EIGHT * lane())
                edge = small(at + (at == 0) * (length + 2 * more))
                now = load(x, base, length, at, at, at, at)
                y_now = filtered(now, load_before(x, base, length, edge, at, at, at), w)
                store(y, base, length, at, at, at, at, pack(y_now))
                start = small(start + CHUNK * chunks)

    return kernel


def _build_backward(tile: Any, spec: Spec) -> Any:
    taps, chunks, halves = spec.taps, spec.chunks, spec.halves
    more, narrow = edge_words(taps), min(halves, 2)
    own, before, after = _pieces(spec)
    load = tile.gather(own, 4 * chunks, halves, guarded=True)
    load_before, load_after = (
        tile.gather(pieces, more * chunks, narrow, guarded=True) for pieces in (before, after)
    )
    load_weights = tile.load_floats(tuple((t, (t,)) for t in range(taps)), taps, guarded=False)
    filtered, pack = tile.filter_taps(chunks, 4, taps, ahead=True), tile.pack(4 * chunks)
    add, over_lanes, zeros = tile.add_taps(chunks, 4, taps), tile.over_lanes(taps), tile.zeros(taps)
    store = tile.store_pieces(own, halves, guarded=True)
    store_sums = tile.store_floats(tuple((t, (t,)) for t in range(taps)), guarded=True)
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )

    def kernel(x, weights, dy, dx, sums, items, pieces, channels, length):
        item = small(block() * WARPS + warp())
        if item < items:
            row = small(divide(item, pieces))
            piece = small(item - row * pieces)
            start = small(piece * SPAN)
            end = small(min(start + SPAN, length))
            b = small(divide(row, channels))
            h = small(row - b * channels)
            base = int64(row) * length
            w = load_weights(weights, int64(h) * taps, small(0), small(0))
            total = zeros()
            while start < end:
                at = small(start + EIGHT * lane())
                edge = small(at + (at == 0) * (length + 2 * more))
                change = load(dy, base, length, at, at, at, at)
                now = load(x, base, length, at, at, at, at)
                dx_now = filtered(change, load_after(dy, base, length, at, at, at, at), w)
                total = add(total, change, now, load_before(x, base, length, edge, at, at, at))
                store(dx, base, length, at, at, at, at, pack(dx_now))
                start = small(start + CHUNK * chunks)
            to = (int64(b) * pieces + piece) * channels + h
            store_sums(sums, to * taps, small(taps * (lane() == 0)), small(0), over_lanes(total))

    return kernel


def family(spec: Spec) -> Any:
    """What `launch` asks of a kernel family."""
    backward = ("HALVES", "FLOATS", "HALVES", "HALVES", "FLOATS")
    pointers = backward if spec.backward else ("HALVES", "FLOATS", "HALVES")
    return SimpleNamespace(
        __name__=__name__,
        build=build,
        SIGNATURE=pointers + ("INT",) * 4,
        VOCABULARY="float",
        min_blocks=lambda spec: 4,
    )


def short_conv(x: Any, weights: Any) -> Any:
    """Filter every sequence by its channel's few taps, causally.

    Args:
        x: signal [B, H, L], fp16 or bf16, on a GPU (or where there is none in host memory), without gaps.
        weights: taps [H, T], float32, in the same place; T up to 8. The last tap is of lag 0.

    Returns:
        y [B, H, L], an array like ``x``.

    Raises:
        TypeError: a dtype is not accepted.
        ValueError: shapes or places do not fit, or an array has gaps.
    """
    adapter, index = _checked(x, weights)
    if index is None:
        return _as_given(run_cpu(adapter.host(x), adapter_of(weights, "weights").host(weights))[0], x)
    y = adapter.empty_like(x)
    run = _launcher(tuple(x.shape), int(weights.shape[1]), adapter.dtype_name(x), _low_bits(x, y), index)
    run(adapter.stream(index), *(adapter_of(v, "x").pointer(v) for v in (x, weights, y)))
    return y


def short_conv_gradients(dy: Any, x: Any, weights: Any) -> tuple[Any, Any]:
    """The gradients of `short_conv` in its operands, from ``dy`` [B, H, L], that in its result.

    Returns dx [B, H, L], like ``x``, and that of the weights, float32 [H, T]; two calls give the same bits. Raises as
    `short_conv`.
    """
    adapter, index = _checked(x, weights, dy)
    if index is None:
        host = (adapter_of(v, "x").host(v) for v in (x, weights, dy))
        dx, dw, _ = run_cpu_gradients(*host)
        return _as_given(dx, x), _as_given(dw, x)
    dx = adapter.empty_like(x)
    batch, channels, length = x.shape
    taps = int(weights.shape[1])
    rows = batch * pieces_of(length)

    def room(count: int) -> Any:
        return adapter.empty(index, (channels, taps) if count == 1 else (count, channels, taps), np.float32)

    sums = room(rows)
    run = _launcher(tuple(x.shape), taps, adapter.dtype_name(x), _low_bits(x, dy, dx), index, backward=True)
    stream = adapter.stream(index)
    run(stream, *(adapter_of(v, "x").pointer(v) for v in (x, weights, dy, dx, sums)))
    for job, start in _totals(rows, channels * taps, index):
        added = room(-(-job.scalars[-1] // gradient_passes.TOGETHER))
        start(stream, *(adapter_of(v, "x").pointer(v) for v in (sums, added)))
        sums = added
    return dx, sums


def pieces_of(length: int) -> int:
    """Warps that share a sequence."""
    return -(-length // SPAN)


def _checked(x: Any, weights: Any, dy: Any = None) -> tuple[Adapter, int | None]:
    adapter, of_weights = adapter_of(x, "x"), adapter_of(weights, "weights")
    if adapter.dtype_name(x) not in HALF_TYPES:
        raise TypeError(f"x: accepted are fp16 and bf16; got {adapter.dtype_name(x)}; convert it")
    if of_weights.dtype_name(weights) != "fp32":
        raise TypeError(f"weights: expected fp32; got {of_weights.dtype_name(weights)}; convert them")
    if len(x.shape) != 3 or 0 in x.shape:
        raise ValueError(f"x: expected [B, H, L] with nothing empty; got shape {tuple(x.shape)}")
    if len(weights.shape) != 2 or weights.shape[0] != x.shape[1] or not 1 <= weights.shape[1] <= MOST_TAPS:
        raise ValueError(
            f"weights: expected [H, T] with the {x.shape[1]} channels of x and 1 to {MOST_TAPS} taps; got shape "
            f"{tuple(weights.shape)}"
        )
    if dy is not None and (
        tuple(dy.shape) != tuple(x.shape) or adapter_of(dy, "dy").dtype_name(dy) != adapter.dtype_name(x)
    ):
        raise ValueError(
            f"dy: expected shape and type of x, {tuple(x.shape)}; got {tuple(dy.shape)}, {dy.dtype}"
        )
    index = adapter.index(x)
    for name, v in (("x", x), ("weights", weights), ("dy", dy)):
        if v is None:
            continue
        other = adapter_of(v, name)
        if other.index(v) != index:
            raise ValueError(f"{name} and x are in different places; move them to one GPU")
        if not other.contiguous(v):
            raise ValueError(f"{name}: expected a contiguous (row-major) array; copy it")
    if index is None and device().is_gpu:
        raise ValueError("x: expected arrays on the GPU, these are in host memory; move them there")
    return adapter, index


def _low_bits(*arrays: Any) -> int:
    found = 0
    for x in arrays:
        found |= adapter_of(x, "x").pointer(x)
    return found & 15


def make_spec(taps: int, dtype: str, length: int, low_bits: int = 0, *, backward: bool = False) -> Spec:
    """The kernel for sequences of so many samples, at addresses that end in ``low_bits``."""
    halves = next(v for v in (8, 4, 2, 1) if length % v == 0 and low_bits % (2 * v) == 0)
    return Spec(taps, dtype, backward, halves, chunks=1 if length <= 2 * CHUNK else 4)


@lru_cache(maxsize=256)
def _launcher(
    shape: tuple[int, int, int], taps: int, dtype: str, low_bits: int, index: int, *, backward: bool = False
) -> Callable[..., None]:
    from kernels_numba import launch

    spec = make_spec(taps, dtype, shape[2], low_bits, backward=backward)
    batch, channels, length = shape
    pieces = pieces_of(length)
    items = batch * channels * pieces
    if items >= 2**31 // WARPS:
        raise ValueError(f"x: {items} pieces of sequences are too many for one launch; split the batch")
    names = ("x", "weights", "dy", "dx", "sums") if backward else ("x", "weights", "y")
    loaded = launch.load(family(spec), spec, index)
    return loaded.launcher(-(-items // WARPS), (*names, items, pieces, channels, length), names)


@lru_cache(maxsize=64)
def _totals(rows: int, columns: int, index: int) -> tuple[tuple[Any, Callable[..., None]], ...]:
    from kernels_numba import launch

    made = []
    for job in gradient_jobs.total_jobs(rows, columns):
        kernel = launch.load(filter_gradient.family(job.spec), job.spec, index)
        made.append((job, kernel.launcher(job.grid, ("from", "to", *job.scalars), ("from", "to"))))
    return tuple(made)


# ---- on the CPU body -----------------------------------------------------------------------------------------
def _run(spec: Any, made: Any, grid: int, buffers: list[Any], scalars: tuple[int, ...]) -> Counters:
    from kernels_numba.tile.cpu_vocabularies import tile
    from kernels_numba.tile.machine import Machine

    machine = Machine()
    kernel = made.build(tile(machine, spec.dtype, "float"), spec)
    return machine.run(kernel, grid, spec.warps, 0, [*buffers, *scalars])


def run_cpu(x: NDArray, weights: NDArray) -> tuple[NDArray, Counters]:
    """`short_conv` on the CPU body, and what was counted."""
    from kernels_numba.host_arrays import _aligned, _bits
    from kernels_numba.tile.machine import POISON, Buffer

    dtype = adapter_of(x, "x").dtype_name(x)
    (batch, channels, length), taps = x.shape, weights.shape[1]
    y = _aligned(np.full(x.size, POISON, POISON.dtype))
    spec, pieces = make_spec(taps, dtype, length), pieces_of(length)
    items = batch * channels * pieces
    buffers = [Buffer("x", _bits(x)), Buffer("weights", np.ravel(weights)), Buffer("y", y)]
    counters = _run(spec, family(spec), -(-items // WARPS), buffers, (items, pieces, channels, length))
    return y.view(ELEMENT_TYPES[dtype]).reshape(x.shape), counters


def run_cpu_gradients(x: NDArray, weights: NDArray, dy: NDArray) -> tuple[NDArray, NDArray, Counters]:
    """`short_conv_gradients` on the CPU body, and what was counted before the last sums."""
    from kernels_numba.host_arrays import _aligned, _bits
    from kernels_numba.tile.machine import POISON, Buffer

    dtype = adapter_of(x, "x").dtype_name(x)
    (batch, channels, length), taps = x.shape, weights.shape[1]
    dx = _aligned(np.full(x.size, POISON, POISON.dtype))
    spec, pieces = make_spec(taps, dtype, length, backward=True), pieces_of(length)
    items, columns = batch * channels * pieces, channels * taps
    sums = np.full(batch * pieces * columns, np.nan, np.float32)
    buffers = [
        *(
            Buffer(name, v)
            for name, v in (("x", _bits(x)), ("weights", np.ravel(weights)), ("dy", _bits(dy)))
        ),
        Buffer("dx", dx),
        Buffer("sums", sums),
    ]
    counters = _run(spec, family(spec), -(-items // WARPS), buffers, (items, pieces, channels, length))
    for job in gradient_jobs.total_jobs(batch * pieces, columns):
        added = np.full(-(-job.scalars[-1] // gradient_passes.TOGETHER) * columns, np.nan, np.float32)
        _run(
            job.spec,
            filter_gradient.family(job.spec),
            job.grid,
            [Buffer("from", sums), Buffer("to", added)],
            job.scalars,
        )
        sums = added
    return dx.view(ELEMENT_TYPES[dtype]).reshape(x.shape), sums.reshape(channels, taps), counters


def _as_given(values: NDArray, x: Any) -> Any:
    """A result in host memory as an array of the library of ``x``."""
    if adapter_of(x, "x").library != "torch":
        return values
    import torch

    if values.dtype == np.float32:
        return torch.from_numpy(values)
    return torch.from_numpy(values.view(np.int16)).view(x.dtype)
