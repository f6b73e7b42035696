"""What the launches of a convolution layer by FFT do, counted in closed form: bytes, products, flops, barriers.

The figures are those that the CPU body counts while it runs (``kernels_numba.Counters``), exactly. Symbols: R x C
samples of a tile and F = R C / 2 frequencies; M tiles of all images; slots, the channels of a spectrum with those that
fill up groups of four.

* *transform*: reads every sample once for each tile it is in, writes 4 F words a slot; products R/16 (C/8)(C/16) for
the
  columns, and as many of R for the rows.
* *product*: reads x once for every block of columns, w once for every block of rows.
* *inverse*: reads 4 F a slot, writes the result.

In fp32 points and samples are twice as large, and products are fused multiply-adds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from costmodel.linear_counts import LinearCounts as Counts
from costmodel.linear_counts import ceil

LANES, WARP_BYTES, QUAD_BYTES = 32, 128, 512


def window_samples(values: dict[str, Any], axis: str) -> int:
    """Stored samples of an image that the tiles along an axis ("down" or "across") see, counted for every tile."""
    size, first = ("height", "first_row") if axis == "down" else ("width", "first_column")
    total = 0
    for tile in range(values[f"tiles_{axis}"]):
        start = values[first] + tile * values[f"step_{axis}"]
        low, high = max(start, 0), min(values[size], start + values[f"extent_{axis}"])
        spread = values[axis]
        total += max(0, ceil(high, spread) - ceil(low, spread))
    return total


def conflicts_of_rows(channels: int) -> int:
    """Passes beyond the first for 32 words of shared memory in rows of ``channels``, one word apart."""
    words = [lane // channels * (channels + 1) + lane % channels for lane in range(LANES)]
    return int(np.bincount(np.array(words) % 32).max()) - 1


def _points(total: Counts, tile: tuple[int, int], seen: tuple[int, int], warps: int, slices: int = 1) -> None:
    """Transforms to points of so many tiles of maps."""
    (rows, columns), seen_tiles, k_tiles = tile, seen[0] // 16, seen[1] // 16
    row_tiles, q_tiles = rows // 16, columns // 16 // slices
    loaded = warps * slices * QUAD_BYTES * (k_tiles * q_tiles + row_tiles * seen_tiles)
    total.shared_read_bytes += loaded
    total.shared_wavefronts += loaded // WARP_BYTES
    total.mma_m16n8k16 += warps * slices * 2 * q_tiles * seen_tiles * (k_tiles + row_tiles)
    total.transposes += warps * slices * 4 * seen_tiles * q_tiles
    total.fp32_flops += warps * slices * 64 * (rows // 8 * q_tiles * 2)


def _samples(
    total: Counts, tile: tuple[int, int], wanted: tuple[int, int], warps: int, slices: int = 1
) -> None:
    """Transforms back of so many tiles of maps, and their scale."""
    (rows, columns), out_groups, out_tiles = tile, wanted[0] // 8, wanted[1] // 8 // slices
    row_tiles, k_tiles = rows // 16, columns // 16
    loaded = warps * 2 * (k_tiles * out_tiles + out_groups * row_tiles) * slices
    total.shared_read_bytes += WARP_BYTES * loaded
    total.shared_wavefronts += loaded
    total.mma_m16n8k16 += warps * slices * out_tiles * row_tiles * (k_tiles + out_groups // 2)
    total.transposes += warps * slices * 2 * row_tiles * out_tiles
    total.half_flops += warps * 2 * rows * columns
    total.fp32_flops += warps * slices * 2 * out_groups * out_tiles * LANES


def _transform(total: Counts, spec: Any, values: dict[str, Any], grid: int) -> None:
    points = spec.points
    tiles = values["tiles_down"] * values["tiles_across"]
    images = values["maps"] // tiles
    slots = values["maps"] * values["all_channels"]  # tiles of maps that warps carry
    groups = values["all_channels"] // values["padded_channels"]
    seen = window_samples(values, "down") * window_samples(values, "across")
    total.read(values["x"].name, 2 * images * groups * values["real_channels"] * seen)
    total.read("constants", grid * 4 * spec.constant_words)
    total.wrote("spectrum", 4 * points * slots)
    total.shared_written_bytes += grid * 4 * spec.constant_words + 4 * points * slots
    _points(total, (spec.rows, spec.columns), (spec.seen_rows, spec.seen_columns), slots, spec.slices)
    moved = grid * points * spec.channels // LANES
    total.shared_read_bytes += WARP_BYTES * moved
    total.shared_wavefronts += 4 * points * slots // WARP_BYTES
    total.shared_wavefronts += moved * (1 + conflicts_of_rows(spec.channels))
    total.bank_conflicts += moved * conflicts_of_rows(spec.channels)
    total.barriers += 2 * grid


def _inverse(total: Counts, spec: Any, values: dict[str, Any], grid: int) -> None:
    points, tiles = spec.points, values["tiles_down"] * values["tiles_across"]
    groups = values["all_channels"] // values["padded_channels"]
    warps = values["maps"] * groups * values["real_channels"]  # tiles of maps that warps carry
    samples = ceil(values["height"], values["down"]) * ceil(values["width"], values["across"])
    total.wrote("out", 2 * warps // tiles * samples)
    total.read("constants", grid * 512 * ceil(spec.constant_words, 128))
    total.shared_written_bytes += grid * 512 * ceil(spec.constant_words, 128)
    if spec.sums:
        total.read("sums", 8 * points * values["chunks"] * warps)
        total.fp32_flops += warps * 2 * points * (values["chunks"] + 1)
    else:
        total.read("product", 4 * points * values["maps"] * values["all_channels"])
        total.shared_written_bytes += grid * 4 * points * spec.channels
        total.shared_read_bytes += 4 * warps * points
        total.shared_wavefronts += warps * points // LANES
    _samples(total, (spec.rows, spec.columns), (spec.wanted_rows, spec.wanted_columns), warps, spec.slices)
    total.barriers += grid


def _read_maps(total: Counts, values: dict[str, Any], name: str, side: str, **window: int) -> int:
    """Bytes that a depthwise kernel reads of the maps of one operand; the tiles of maps that warps carry."""
    step = {f"step_{axis}": values[f"step_{axis}"] for axis in ("down", "across")}
    tiles = {f"tiles_{axis}": values[f"tiles_{axis}"] for axis in ("down", "across")}
    seen_by = {
        **step,
        **tiles,
        "height": values[f"{side}_height"],
        "width": values[f"{side}_width"],
        **window,
    }
    images = values["maps"] // (tiles["tiles_down"] * tiles["tiles_across"])
    seen = window_samples(seen_by, "down") * window_samples(seen_by, "across")
    total.read(name, 2 * images * values["channels"] * seen)
    return int(values["maps"] * values["channels"])


def _correlation(total: Counts, spec: Any, values: dict[str, Any], grid: int) -> None:
    tile, points, registers = (spec.rows, spec.columns), spec.points, spec.points // 64
    whole = {"extent_down": spec.rows, "extent_across": spec.columns, "down": 1, "across": 1}
    first = {"first_row": values["x_first_row"], "first_column": values["x_first_column"]}
    blocks = {name: values[name] for name in ("extent_down", "extent_across", "down", "across")}
    warps = _read_maps(total, values, "x", "x", **whole, **first)
    _read_maps(total, values, "dy", "g", **blocks, first_row=0, first_column=0)
    for side in (spec.x, spec.g):
        _points(total, tile, (side.seen_rows, side.seen_columns), warps)
    total.fp32_flops += warps * 16 * registers * LANES
    total.read("constants", grid * 4 * spec.constant_words)
    total.shared_written_bytes += grid * (4 * spec.constant_words + 8 * points * spec.warps)
    total.shared_read_bytes += grid * 8 * points * spec.warps
    total.shared_wavefronts += grid * 2 * 8 * points * spec.warps // WARP_BYTES
    total.fp32_flops += grid * spec.warps * 2 * points
    total.wrote("sums", 8 * grid * points)
    total.barriers += 2 * grid


def _convolution(total: Counts, spec: Any, values: dict[str, Any], grid: int) -> None:
    tile, points = (spec.rows, spec.columns), spec.points
    window = {
        "extent_down": spec.rows,
        "extent_across": spec.columns,
        "down": values["x_down_by"],
        "across": values["x_across_by"],
        "first_row": values["first_row"],
        "first_column": values["first_column"],
    }
    warps = _read_maps(total, values, values["x"].name, "x", **window)
    taps = ceil(values["w_height"], values["w_down_by"]) * ceil(values["w_width"], values["w_across_by"])
    total.read("w", 2 * grid * taps)
    _points(total, tile, (spec.x.seen_rows, spec.x.seen_columns), warps)
    _points(total, tile, (spec.w.seen_rows, spec.w.seen_columns), grid)
    total.fp32_flops += warps * 6 * points
    _samples(total, tile, (spec.wanted_rows, spec.wanted_columns), warps)
    samples = ceil(values["y_height"], values["y_down_by"]) * ceil(values["y_width"], values["y_across_by"])
    total.wrote("out", 2 * warps // (values["tiles_down"] * values["tiles_across"]) * samples)
    total.read("constants", grid * 4 * sum(spec.words))
    total.shared_written_bytes += grid * 4 * (sum(spec.words) + points)
    total.shared_read_bytes += warps * 4 * points
    total.shared_wavefronts += (warps + grid) * points // LANES
    total.barriers += 2 * grid


def _product(total: Counts, spec: Any, values: dict[str, Any], grid: int) -> None:
    row_blocks, column_blocks = values["row_blocks"], values["column_blocks"]
    frequencies = grid // (row_blocks * column_blocks)  # of all groups
    m, n, k = values["m"], values["n"], values["k"]
    row_tiles, column_tiles = spec.warp_rows // 16, spec.warp_columns // 8
    parts = values["parts"]
    slabs = grid * parts * ceil(k, 64)
    w = values["w_rows"] * 8 * ceil(n, 4) if spec.across else k * n  # halves of points, as they are copied
    total.read("spectrum", 2 * parts * frequencies * (column_blocks * m * k + row_blocks * w))
    total.wrote("product", 4 * frequencies * m * 2 * ceil(n, 2))
    total.shared_written_bytes += slabs * (spec.rows + spec.columns) * 128
    loaded = slabs * spec.warps * 4 * (row_tiles + column_tiles // 2)
    total.shared_read_bytes += loaded * QUAD_BYTES
    total.shared_wavefronts += loaded * 4
    total.mma_m16n8k16 += slabs * spec.warps * 4 * row_tiles * 2 * column_tiles
    total.barriers += slabs


def _gradient(total: Counts, spec: Any, values: dict[str, Any], grid: int) -> None:
    row_blocks, column_blocks = values["row_blocks"], values["column_blocks"]
    frequencies = grid // (row_blocks * column_blocks)
    m, rows, columns = values["m"], values["rows"], values["columns"]
    slabs = grid * ceil(m, 32)
    chunks = column_blocks * ceil(rows, 4) + row_blocks * ceil(columns, 4)
    total.read("spectrum", 16 * frequencies * m * chunks)
    last = not spec.partial or values["last"]
    if spec.partial and not values["first"]:
        total.read("sums", 8 * frequencies * rows * columns)
    if last:
        total.wrote("product", 4 * frequencies * rows * columns)
    else:
        total.wrote("sums", 8 * frequencies * rows * columns)
    total.shared_written_bytes += slabs * 32 * 4 * (spec.rows + spec.columns)
    tiles = 4 * spec.rows * spec.columns // 128  # 16 rows of 8 columns of halves, of a block
    down, across = layouts()[spec.rows, spec.columns]
    loaded = slabs * 2 * (across * spec.rows // 8 + down * spec.columns // 8)
    total.shared_read_bytes += loaded * QUAD_BYTES
    total.shared_wavefronts += loaded * 4
    total.mma_m16n8k16 += slabs * 2 * tiles
    total.fp32_flops += grid * tiles * 4 * LANES * (3 if spec.partial and not values["first"] else 2)
    total.barriers += slabs


def layouts() -> dict[tuple[int, int], tuple[int, int]]:
    """How the warps of a block share its tile of a gradient."""
    from kernels_numba.spectral_gradient import LAYOUTS

    return LAYOUTS


# ---- fp32 ----------------------------------------------------------------------------------------------------
def passes(words: np.ndarray, width: int) -> tuple[int, int]:
    """Passes over the banks of an access of ``width`` words a lane, and those beyond the fewest its words need."""
    parts = [np.unique(part[:, None] + np.arange(width)) for part in words.reshape(width, LANES // width)]
    found = sum(int(np.bincount(part % 32).max()) for part in parts)
    return found, found - max(1, ceil(len(np.unique(words[:, None] + np.arange(width))), 32))


def _add_accesses(total: Counts, words: np.ndarray, width: int, times: int) -> None:
    found, beyond = passes(words, width)
    total.shared_wavefronts += times * found
    total.bank_conflicts += times * beyond


def _columns_and_rows(total: Counts, spec: Any, grid: int) -> None:
    """What a block writes to and reads from shared memory: each lane a column of points, and a row."""
    columns, rows = np.arange(spec.channels * spec.width), np.arange(spec.channels * spec.rows)
    by_column = columns // spec.width * spec.pitch + columns % spec.width
    by_row = rows % spec.channels * spec.pitch + rows // spec.channels * spec.width
    for points in by_column.reshape(-1, LANES):
        _add_accesses(total, 2 * points, 2, grid * spec.rows)
    for points in by_row.reshape(-1, LANES):
        _add_accesses(total, 2 * points, 2, grid * spec.width)
    nbytes = 8 * grid * spec.channels * spec.rows * spec.width
    total.shared_written_bytes += nbytes
    total.shared_read_bytes += nbytes
    total.barriers += grid


def _float_transform(total: Counts, spec: Any, values: dict[str, Any], grid: int) -> None:
    from kernels_numba.tile.points import dft_program

    images = values["maps"] // (values["tiles_down"] * values["tiles_across"])
    groups = values["all_channels"] // values["padded_channels"]
    seen = window_samples(values, "down") * window_samples(values, "across")
    total.read(values["x"].name, 4 * images * groups * values["real_channels"] * seen)
    total.wrote("spectrum", 8 * spec.rows * spec.half * values["maps"] * values["all_channels"])
    _columns_and_rows(total, spec, grid)
    column = dft_program(spec.rows, inverse=True, live=spec.seen_rows).flops
    row = dft_program(spec.half, inverse=True, live=spec.width, skew="in").flops
    total.fp32_flops += grid * spec.channels * (spec.width * column + spec.rows * row)


def _float_inverse(total: Counts, spec: Any, values: dict[str, Any], grid: int) -> None:
    from kernels_numba.tile.points import dft_program

    tiles = values["tiles_down"] * values["tiles_across"]
    groups = values["all_channels"] // values["padded_channels"]
    samples = ceil(values["height"], values["down"]) * ceil(values["width"], values["across"])
    total.read("product", 8 * spec.rows * spec.half * values["maps"] * values["all_channels"])
    total.wrote("out", 4 * values["maps"] * groups * values["real_channels"] // tiles * samples)
    _columns_and_rows(total, spec, grid)
    column = dft_program(spec.rows).flops + 2 * spec.rows  # the scale
    row = dft_program(spec.half, skew="out").flops
    total.fp32_flops += grid * spec.channels * (spec.width * column + spec.rows * row)


def _float_product(total: Counts, spec: Any, values: dict[str, Any], grid: int) -> None:
    row_blocks, column_blocks = values["row_blocks"], values["column_blocks"]
    frequencies = grid // (row_blocks * column_blocks)
    m, n, k = values["m"], values["n"], values["k"]
    parts = values["parts"]
    x = k * m if "x" in spec.deep else k * 2 * ceil(m, 2)
    w = k * n if "w" in spec.deep else values["w_rows"] * 2 * ceil(n, 2)
    total.read("spectrum", 8 * parts * frequencies * (column_blocks * x + row_blocks * w))
    total.wrote("product", 8 * frequencies * m * n)
    if spec.accumulate:
        total.read("product", 8 * frequencies * m * n)
    slabs = grid * parts * ceil(k, 16)
    total.shared_written_bytes += slabs * 8 * 16 * (spec.rows + spec.columns)
    steps = 2 if "x" in spec.deep else 1
    turns = grid * spec.warps * parts * ceil(k, steps)
    lanes = np.arange(LANES)
    for operand, place, count in (("x", lanes >> 3, 8), ("w", lanes & 7, spec.lane_columns)):
        words = 2 * steps * count
        total.shared_read_bytes += turns * WARP_BYTES * words
        _add_accesses(total, place * (2 * spec.pitch if operand in spec.deep else 4), 4, turns * words // 4)
    total.fp32_flops += turns * LANES * 8 * 8 * spec.lane_columns * steps
    total.barriers += slabs


def _pointwise(total: Counts, spec: Any, values: dict[str, Any], grid: int) -> None:
    m, channels, parts, rows, warps = (
        values["m"], values["channels"], values["parts"], spec.rows, spec.warps
    )  # fmt: skip
    frequencies, point = (
        grid // (values["row_blocks"] * values["column_blocks"]),
        8 if spec.dtype == "fp32" else 4,
    )
    if not spec.sums:
        filters = values["row_blocks"] * warps  # every warp reads them
        total.read("spectrum", point * frequencies * channels * parts * (m + filters))
        total.wrote("product", point * frequencies * m * channels)
        total.fp32_flops += grid * warps * parts * 8 * rows * LANES
        return
    total.read("spectrum", 2 * point * frequencies * m * channels)
    turns = ceil(m, rows)  # of a block's warps
    total.fp32_flops += grid * (turns * 8 * rows * LANES + (warps + 1) * 2 * LANES)
    if spec.partial and not values["first"]:
        total.read("sums", 8 * frequencies * channels)
        total.fp32_flops += grid * 2 * LANES
    last = not spec.partial or values["last"]
    total.wrote("product" if last else "sums", (point if last else 8) * frequencies * channels)
    nbytes = grid * warps * 8 * LANES
    total.shared_written_bytes += nbytes
    total.shared_read_bytes += nbytes
    total.shared_wavefronts += 2 * nbytes // WARP_BYTES
    total.barriers += grid


KERNELS = {
    "map_convolution": _convolution,
    "map_correlation": _correlation,
    "map_transform": _transform,
    "map_inverse": _inverse,
    "spectral_product": _product,
    "spectral_gradient": _gradient,
    "float_map_transform": _float_transform,
    "float_map_inverse": _float_inverse,
    "float_spectral_product": _float_product,
    "spectral_pointwise": _pointwise,
}


def of_steps(steps: Iterable[Any]) -> Counts:
    """Count the launches of a ``kernels_numba.conv2d_plan.Plan`` (what its ``steps`` gives)."""
    total = Counts()
    for step in steps:
        KERNELS[step.family.__name__.rpartition(".")[2]](total, step.spec, step.values, step.grid)
        total.blocks += step.grid
        total.warps += step.grid * step.spec.warps
    return total
