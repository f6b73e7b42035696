"""Overlap-save: a short filter over long rows, by the fused order-3 kernel on overlapping windows.

A window of N samples (a *tile*) is a circle on which a filter of K taps is exact where nothing wraps around: with the
filter advanced by a ``lag`` of at least K samples, in the first N - lag outputs, which belong to the samples ``lag``
later. So windows begin N - lag samples apart, read N samples each and write the N - lag that are exact: straight from
the rows and to the rows, in one launch for all channels of a batch element. (Stockham, *High-speed convolution and
correlation*, AFIPS SJCC 28, 1966; Fu et al., arXiv 2311.05908, section on partial convolutions.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import fused_block
from kernels_numba.arrays import adapter_of
from kernels_numba.device import Device, device
from kernels_numba.fftconv import CPU_BLOCKS, _device_operands
from kernels_numba.long_plans import INNER_TIME
from kernels_numba.spectrum import Spectrum, prepare_filter
from kernels_numba.tile.layout import ELEMENT_TYPES
from monarch import Plan

TILES: dict[int, tuple[int, ...]] = {
    2048: (8, 16, 16),
    4096: (16, 16, 16),
    8192: (16, 16, 32),
    16384: (16, 32, 32),
    24576: (48, 16, 32),
}
"""Tile lengths N, and their factors."""
STEP = 8
"""Lags are multiples of this, so that windows keep the rows' alignment."""


def lag_of(taps: int) -> int:
    """Samples between a window's first input and its first output, for a filter of so many taps."""
    return STEP * -(-taps // STEP)


def tiles_of(taps: int) -> list[int]:
    """Tiles that at least half of is new, by what a new sample costs: the measured time of a tile's points."""
    lag = lag_of(taps)
    return sorted((n for n in TILES if n >= 2 * lag), key=lambda n: (INNER_TIME[n] * n / (n - lag), n))


def tile_of(taps: int, tile: int | None = None) -> int:
    """The tile asked for, checked, or the best one. Raises ``ValueError`` where there is none."""
    fitting = tiles_of(taps)
    if tile is None and fitting:
        return fitting[0]
    if tile in fitting:
        return int(tile)
    what = f"tile: got {tile}; " if tile is not None else ""
    raise ValueError(
        f"{what}a filter of {taps} taps takes tiles of {', '.join(map(str, sorted(fitting))) or 'none'} samples "
        f"(of {', '.join(map(str, TILES))}, at least twice the taps); fftconv convolves with longer filters"
    )


def prepare_windows(k: Any, *, tile: int, dtype: str, channels: int | None = None) -> Spectrum:
    """The spectrum of a filter [H, K] or [K] on the circle of a tile, advanced by its lag."""
    adapter = adapter_of(k, "k")
    shape = tuple(k.shape)
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"k: expected a filter [H, K] or [K] with H, K >= 1, got shape {shape}")
    size, start = (*shape[:-1], tile), tile - lag_of(shape[-1])
    if adapter.library == "torch":
        circle = k.new_zeros(size)
    elif adapter.library == "cupy":
        circle = adapter.cupy.zeros(size, k.dtype)  # type: ignore[attr-defined]
    else:
        k = adapter.host(k)
        circle = np.zeros(size, k.dtype)
    circle[..., start : start + shape[-1]] = k
    plan = Plan(tile, TILES[tile])
    return prepare_filter(circle, length=tile, dtype=dtype, plan=plan, channels=channels)


@dataclass(frozen=True)
class Rows:
    """Rows to convolve: H of them a batch element, of ``length`` samples each; windows of ``tile``, ``new`` apart."""

    channels: int
    length: int
    tile: int
    new: int

    @property
    def windows(self) -> int:
        """Windows of a row; they give its outputs from ``tile - new`` on."""
        return -(-max(0, self.length - (self.tile - self.new)) // self.new)

    def scalars(self, workers: int) -> tuple[int, tuple[int, ...]]:
        """Grid and integers of the kernel, on at most so many blocks."""
        pairs = -(-self.windows // 2)
        items = self.channels * pairs
        per_block = -(-items // max(1, workers))
        return -(-items // per_block), (items, per_block, pairs, self.windows, self.new, self.length)


def window_spec(
    spectrum: Spectrum,
    halves: int,
    *,
    pregate: bool = False,
    postgate: bool = False,
    where: Device | None = None,
) -> Any:
    """The kernel for windows, for accesses of so many elements."""
    limit = where.shared_bytes_per_block if where else None
    spec = fused_block.make_spec(
        spectrum.plan,
        spectrum.products,
        halves=halves,
        guarded=True,
        pregate=pregate,
        postgate=postgate,
        scaled=spectrum.scaled,
        **({"shared_limit": limit} if limit else {}),
    )
    return replace(spec, windows=True)


def launcher(
    spectrum: Spectrum, rows: Rows, halves: int, gates: tuple[bool, bool], index: int
) -> Callable[..., None]:
    """``run(stream, u, pregate, postgate, y)`` for one batch element, whose outputs begin at ``y`` plus the lag."""
    from kernels_numba import launch

    where = device(index)
    spec = window_spec(spectrum, halves, pregate=gates[0], postgate=gates[1], where=where)
    loaded = launch.load(fused_block, spec, index)
    grid, scalars = rows.scalars((where.sm_count or 1) * loaded.blocks_per_sm)
    words, scales = spectrum.on_device(index)
    constants = _device_operands(fused_block, fused_block.operand_key(spec), index)
    pointers = (words, scales, *(c.pointer for c in constants))
    run = loaded.launcher(grid, ("u", "pregate", "postgate", 0, *pointers, "y", 0, *scalars))
    ahead = ELEMENT_TYPES[spectrum.dtype].itemsize * (rows.tile - rows.new)

    def start(stream: int, u: int, pregate: int, postgate: int, y: int) -> None:
        run(stream, u, pregate, postgate + ahead, y + ahead)

    start.keep = constants  # type: ignore[attr-defined]  # the launch knows only their addresses
    return start


def run_cpu(
    spectrum: Spectrum,
    rows: Rows,
    u: NDArray,
    pregate: NDArray,
    postgate: NDArray,
    y: NDArray,
    *,
    halves: int,
    machine: Any,
    blocks: int = CPU_BLOCKS,
) -> None:
    """One batch element on the CPU body: flat arrays of 16-bit words; ``y`` gets its outputs from the lag on."""
    from kernels_numba.tile.cpu_vocabularies import tile
    from kernels_numba.tile.machine import Buffer

    spec = window_spec(spectrum, halves, pregate=pregate.size > 0, postgate=postgate.size > 0)
    kernel = fused_block.build(tile(machine, spec.dtype), spec)
    grid, scalars = rows.scalars(blocks)
    words, scales = spectrum.on_host()
    lag = rows.tile - rows.new
    constants, tables = fused_block.operands(*fused_block.operand_key(spec))
    none = Buffer("none", np.empty(0, y.dtype))
    buffers = [
        Buffer("u", u),
        Buffer("pregate", pregate),
        Buffer("postgate", postgate[lag:]),
        none,
        Buffer("spectrum", words.reshape(-1)),
        Buffer("scales", scales),
        Buffer("constants", constants),
        Buffer("tables", tables),
        Buffer("y", y[lag:]),
        none,
    ]
    machine.run(kernel, grid, spec.warps, spec.shared_bytes // 4, [*buffers, *scalars])
