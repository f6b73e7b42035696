"""Products of spectra where every channel has a filter of its own: depthwise layers, no sum over channels.

    y[f, m, c] = sum_part x[f, m, part, c] w[f, part, c]            the second factor conjugated if asked for
    y[f, c] = factor sum_m conj(g[f, m, c]) x[f, m, c]              ``sums``, the gradient of the weights

Neighbouring lanes have neighbouring channels, so nothing needs shared memory but the sums of a block's warps. Points of
half precision are multiplied and added in float32, and rounded once. Where images come in groups, ``partial``, sums go
from launch to launch in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LANES = 32


@dataclass(frozen=True)
class Spec:
    """Everything that is compiled into one kernel."""

    dtype: str
    sums: bool = False
    conjugate: str = ""
    """"right" or "left", or "": none."""
    partial: bool = False
    rows: int = 8
    """Rows m that a warp has at once."""
    warps: int = 8

    @property
    def shared_bytes(self) -> int:
        """The sums of all warps."""
        return 8 * LANES * self.warps if self.sums else 0

    @property
    def name(self) -> str:
        """A name that says what the kernel is, for error messages and profilers."""
        kind = "sums" if self.sums else "product"
        partial = "_partial" if self.partial else ""
        return (
            f"spectral_pointwise_{kind}_r{self.rows}_w{self.warps}_{self.dtype}_conj{self.conjugate}{partial}"
        )


def build(tile: Any, spec: Spec) -> Any:
    """The kernel function for one spec and one body of the tile layer."""
    return _build_sums(tile, spec) if spec.sums else _build_product(tile, spec)


def _build_product(tile: Any, spec: Spec) -> Any:
    rows, warps = spec.rows, spec.warps
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    load, load_one, store = tile.load_point_rows(rows), tile.load_point_rows(1), tile.store_point_rows(rows)
    multiply = tile.add_point_products(rows, 1, 1, conjugate=spec.conjugate)
    zeros = tile.zeros(2 * rows)

    def kernel(
        x, w, y, sums, m, channels, row_blocks, column_blocks, parts, all_channels, first, last, factor
    ):
        item = small(divide(block(), row_blocks))
        row = small((block() - item * row_blocks) * (rows * warps) + rows * warp())
        frequency = small(divide(item, column_blocks))
        channel = small((item - frequency * column_blocks) * LANES + lane())
        ok = channel < channels
        here = int64(frequency) * m + row
        at = here * all_channels + channel
        w_at = int64(frequency) * all_channels + channel
        c = zeros()
        part = small(0)
        while part < parts:
            c = multiply(c, load(x, at, all_channels, m - row, ok), load_one(w, w_at, 0, 1, ok))
            at = at + channels
            w_at = w_at + channels
            part = small(part + 1)
        store(y, here * channels + channel, channels, m - row, ok, c)

    return kernel


def _build_sums(tile: Any, spec: Spec) -> Any:
    rows, warps, partial = spec.rows, spec.warps, spec.partial
    lane, warp, block, divide, small, int64 = (
        tile.lane,
        tile.warp,
        tile.block,
        tile.divide,
        tile.small,
        tile.int64,
    )
    load, store, barrier = tile.load_point_rows(rows), tile.store_point_rows(1), tile.barrier
    add_products = tile.add_point_products(1, 1, rows, conjugate=spec.conjugate)
    zeros, add, scale = tile.zeros(2), tile.add(2), tile.scale(2)
    put, get = tile.store_points((0,)), tile.load_points((0,))
    load_sums, store_sums = tile.load_far_points(1), tile.store_far_points(1)

    def kernel(
        x, w, y, sums, m, channels, row_blocks, column_blocks, parts, all_channels, first, last, factor
    ):
        frequency = small(divide(block(), column_blocks))
        index = small(lane())
        channel = small((block() - frequency * column_blocks) * LANES + index)
        ok = channel < channels
        row = small(rows * warp())
        here = int64(frequency) * m
        c = zeros()
        while row < m:
            g = load(x, (here + row) * channels + channel, channels, m - row, ok)
            c = add_products(c, g, load(w, (here + row) * all_channels + channel, all_channels, m - row, ok))
            row = small(row + rows * warps)
        put(2 * (LANES * warp() + index), c)
        barrier()
        if warp() == 0:
            total = zeros()
            i = small(0)
            while i < warps:
                total = add(total, get(2 * (LANES * i + index)))
                i = small(i + 1)
            total = scale(total, factor)
            at = int64(frequency) * channels + channel
            if partial and first == 0:
                total = add(total, load_sums(sums, at, 0, ok))
            if partial and last == 0:
                store_sums(sums, at, 0, ok, total)
            else:
                store(y, at, 0, 1, ok, total)

    return kernel


VOCABULARY = "float-layers"
ARGUMENTS = (
    "x",
    "w",
    "y",
    "sums",
    "m",
    "channels",
    "row_blocks",
    "column_blocks",
    "parts",
    "all_channels",
    "first",
    "last",
    "factor",
)
"""Names of the kernel's arguments,"""
SIGNATURE = ("WORDS",) * 3 + ("FLOATS",) + ("INT",) * 8 + ("FLOAT",)
"""and their kinds, for the compiler; distances are points."""


def min_blocks(spec: Spec) -> int:
    """Blocks per SM that the compiler must leave registers for."""
    return 32 // spec.warps
