"""From the shape of a product to the launches that compute it: which kernel, with which settings, on what grid.

A :class:`Choice` names a kernel and its adjustable settings; a dispatch table stores choices. A :class:`Product` is a
choice made concrete for one shape, dtype, alignment and GPU generation: the compiled-in ``Spec``, the grid, the
kernel's arguments, and what must be realigned before (`linear_realign`). Both bodies of the tile layer run it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from types import ModuleType
from typing import Any

from kernels_numba import (
    linear_flat,
    linear_full,
    linear_gemv,
    linear_group,
    linear_realign,
    linear_stream,
)
from kernels_numba.tensor_maps import TensorMap

FAMILIES: dict[str, ModuleType] = {"gemv": linear_gemv, "flat": linear_flat, "full": linear_full}
IMPLS = (*FAMILIES, "vendor")
LARGEST_M: dict[str, int | None] = {
    "gemv": linear_gemv.MAX_COLUMNS,
    "flat": 8 * linear_flat.MAX_COLUMN_TILES,
    "full": None,
    "vendor": None,
}
"""The most rows of x that each takes."""
ADJUSTABLE: dict[str, tuple[str, ...]] = {
    "gemv": ("rows", "depth", "warps", "blocks", "double_buffer", "split"),
    "flat": ("row_tiles", "steps", "stages", "warps", "blocks", "shares", "split"),
    "full": (
        *("rows", "warp_rows", "warp_columns"),
        *("stream", "groups", "turned", "pitch"),
        *("columns", "stages", "blocks", "shares", "split"),
    ),
    "vendor": (),
}
MAX_INDEX = 2**31 - 1


@dataclass(frozen=True)
class Choice:
    """A kernel ("gemv", "flat", "full" or "vendor") and its settings, as (name, value) in the order of `ADJUSTABLE`."""

    impl: str
    settings: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.impl not in IMPLS:
            raise ValueError(f"impl: expected one of {', '.join(IMPLS)}; got {self.impl!r}")
        unknown = [name for name, _ in self.settings if name not in ADJUSTABLE[self.impl]]
        if unknown:
            raise ValueError(
                f"{self.impl} has no setting {unknown[0]!r}; it has {', '.join(ADJUSTABLE[self.impl])}"
            )

    def __str__(self) -> str:
        return self.impl + "".join(f" {name}={value}" for name, value in self.settings)

    @classmethod
    def of(cls, impl: str, **settings: int) -> Choice:
        """A choice with the settings in canonical order."""
        order = [name for name in ADJUSTABLE.get(impl, ()) if name in settings]
        return cls(impl, tuple((name, int(settings[name])) for name in order))

    @property
    def options(self) -> dict[str, int]:
        """The settings by name."""
        return dict(self.settings)


@dataclass(frozen=True)
class Product:
    """One product y [M, N] = x [M, K] w [N, K]^T, ready to be launched."""

    m: int
    n: int
    k: int
    choice: Choice
    spec: Any
    grid: int
    split: int
    phases: int
    shift_x: bool
    """x is read from shifted copies (of each phase, or one padded for the full product),"""
    copy_w: bool
    """and w from a padded one."""
    stride: int
    """Distance of two rows of x as it is read,"""
    plane: int
    """and of its shifted copies, in elements."""
    depth: int
    """K as the kernel sees it: padded, where both operands are padded copies."""
    tiles: tuple[int, int] = (0, 0)
    """Of the full product: tiles of y along M, along N,"""
    pitch: int = 0
    """and rows of w of each, for those on warpgroups."""
    early: bool = False
    """The first launch may begin while the one before it still runs."""

    @property
    def family(self) -> ModuleType:
        """The module of the kernel."""
        for found in (linear_group, linear_stream):
            if isinstance(self.spec, found.Spec):
                return found
        return FAMILIES[self.choice.impl]

    @property
    def groups(self) -> int:
        """Groups of blocks that share their outputs, and a counter; for the full product, tiles."""
        if self.choice.impl == "full":
            return prod(self.tiles)
        return self.grid // self.split

    @property
    def partial_floats(self) -> int:
        """Float32 partial sums that blocks leave where several share their outputs."""
        if self.split == 1 or getattr(self.spec, "cluster", 1) > 1:
            return 0
        if self.choice.impl == "full":
            return self.groups * self.split * self.spec.tile_sums
        if self.choice.impl == "gemv":
            return self.grid * self.spec.registers
        return self.split * self.m * self.n * self.phases

    @property
    def led(self) -> bool:
        """Copies of x have zeros in front (`linear_realign`)."""
        return self.choice.impl == "full" and self.phases > 1

    @property
    def shifted_x_size(self) -> int:
        """Half elements of the copies of x."""
        return self.phases * self.m * self.stride if self.shift_x else 0

    @property
    def copied_w_size(self) -> int:
        """Half elements of the copy of w."""
        return self.n * linear_realign.padded(self.k) if self.copy_w else 0

    def arguments(self, x: Any, shifted: Any, w: Any, partials: Any, counters: Any, y: Any) -> list[Any]:
        """The kernel's arguments; pointers, names or buffers are passed through.

        ``shifted`` is what x is read from: its copies, or x itself.
        """
        w_stride = linear_realign.padded(self.k) if self.copy_w else self.k
        if isinstance(self.spec, linear_stream.Spec):
            # Boxes of as many rows as there are.
            x_box = min(self.m, self.spec.x_rows)
            maps = (
                TensorMap(shifted, self.m, self.k, self.stride, x_box),
                TensorMap(w, self.n, self.k, w_stride, self.pitch),
            )
            walk = (x_box, self.pitch, self.tiles[0], self.groups, self.grid // self.split)
            return [*maps, y, self.m, self.n, self.k, *walk]
        if isinstance(self.spec, linear_group.Spec):
            strides = (self.stride, w_stride, self.plane)
            return [shifted, w, y, self.m, self.n, self.k, *strides, self.tiles[0], self.pitch]
        if self.choice.impl == "full":
            order = (self.tiles[0], self.groups, self.grid // self.split, self.split)
            return [shifted, w, partials, counters, y, self.m, self.n, self.k, self.stride, w_stride, *order]
        sizes = (self.m, self.n, self.depth, self.stride, self.plane, self.phases, self.split)
        shares = (self.groups // self.phases,) if self.choice.impl == "flat" else ()
        return [x, shifted, w, partials, counters, y, *sizes, *shares]


def check_accepts(impl: str, m: int) -> None:
    """Raise ``ValueError`` if a kernel does not take M rows of x, naming those that do."""
    limit = LARGEST_M[impl]
    if limit is not None and m > limit:
        wider = [name for name, most in LARGEST_M.items() if most is None or most >= m]
        raise ValueError(
            f"impl: {impl} takes at most M={limit} rows of x, got {m}; {' and '.join(wider)} take more"
        )


def product(
    choice: Choice,
    m: int,
    n: int,
    k: int,
    dtype: str,
    *,
    overlap: bool = False,
    aligned_x: bool = True,
    aligned_w: bool = True,
    aligned_y: bool = True,
) -> Product:
    """Make a choice concrete.

    Args:
        choice: a kernel of this project and its settings.
        m: rows of x, at least 1.
        n: rows of w, at least 1.
        k: columns of both, at least 1.
        dtype: "fp16" or "bf16".
        overlap: weights are loaded while the launch before still runs (compute capability 9).
        aligned_x: x begins on 16 bytes; so for ``w``; ``aligned_y``: y begins on 4 bytes.
        aligned_w: see ``aligned_x``.
        aligned_y: see ``aligned_x``.

    Raises:
        ValueError: a kernel that does not take so many rows, or sizes beyond 32-bit indices.
    """
    check_accepts(choice.impl, m)
    whole = k % 8 == 0
    options: dict[str, Any] = choice.options
    number = 1
    # A copy of w is what the launch before writes: it cannot be loaded early.
    overlap = overlap and aligned_w
    split = options.pop("split", 1)
    tiles, pitch = (0, 0), 0
    if "groups" in options:
        streamed, turned = options.pop("stream", 0), bool(options.pop("turned", 0))
        split = min(split, -(-k // linear_full.SLAB))
        shares, pitch = options.pop("shares", 0), options.pop("pitch", 0)
        shift_x = not (whole and aligned_x)
        # By words w is read where its rows lie, if it ends on one.
        copy_w = not aligned_w or (not whole if streamed else n * k % 2 == 1)
        number = 1 if streamed or copy_w else 1 + k % 2
        overlap = overlap and not copy_w
        # What a launch of this product writes is x alone: while it is copied, the first weights come.
        options |= {"cluster": split, "turned": turned, "overlap": overlap or (shift_x and not copy_w)}
        on_groups: Any
        if streamed:
            on_groups = linear_stream.Spec(dtype, **options)
        else:
            on_groups = linear_group.Spec(dtype, **options, words=not (whole or copy_w), phases=number)
        pitch = pitch or on_groups.w_rows
        together = n % 2 == 0 and pitch % 2 == 0 and aligned_y and number == 1
        spec: Any = replace(on_groups, halves=2 if together else 1)
        tiles = -(-m // spec.x_rows), number * -(-n // (number * pitch))
        stride = linear_realign.padded(k, led=number > 1) if shift_x else k
        plane, depth = (m * stride if number > 1 else 0), k
        # Several tiles a block: only where their sums do not meet in shared memory.
        several = streamed and shares and split == 1
        grid = split * (min(prod(tiles), shares) if several else prod(tiles))
        if grid == split * prod(tiles) and together and not turned:
            spec = replace(spec, staged=True)
    elif choice.impl == "full":
        overlap = overlap and whole
        slabs = -(-k // linear_full.SLAB)
        split = min(split, slabs)
        shares = options.pop("shares", 0)
        full = linear_full.Spec(dtype, **options, split=split > 1, overlap=overlap)
        tiles = linear_full.tiles(full, m, n)
        spec = replace(
            full,
            guarded=bool(m % full.rows or n % full.columns or k % linear_full.SLAB),
            halves=2 if n % 2 == 0 and aligned_y else 1,
        )
        shift_x, copy_w = not (whole and aligned_x), not (whole and aligned_w)
        stride, plane, depth = (linear_realign.padded(k) if shift_x else k), 0, k
        walkers = prod(tiles)
        # To copy ahead into the next tile, a tile must have at least as many slabs as are under way.
        if shares and slabs // split >= full.stages - 1:
            walkers = min(walkers, max(1, shares // split))
        grid = walkers * split
    else:
        copy_w = not aligned_w
        edges = not whole and not copy_w
        depth = linear_realign.padded(k) if copy_w else k
        number = linear_realign.phases(depth)
        alike = -(-n // number)
        if choice.impl == "gemv":
            options["double_buffer"] = bool(options.get("double_buffer", 0))
            gemv = linear_gemv.Spec(
                dtype, columns=m, **options, split=split > 1, edges=edges, overlap=overlap
            )
            batches = depth // (8 * gemv.batch_chunks)
            even = depth % (8 * gemv.batch_chunks) == 0 and batches >= split * gemv.warps
            spec = replace(gemv, guarded=not even)
            grid = linear_gemv.tiles(gemv, n, number) * split
        else:
            shares = min(-(-options.pop("shares", 132) // (number * split)), alike)
            spec = linear_flat.Spec(
                dtype, column_tiles=-(-m // 8), **options, split=split > 1, edges=edges, overlap=overlap
            )
            grid = shares * number * split
        shift_x = edges or (copy_w and not whole) or not aligned_x
        stride = linear_realign.padded(k) if shift_x else k
        plane = m * stride if number > 1 else 0
    where = (shift_x, copy_w, stride, plane, depth, tiles, pitch, overlap)
    found = Product(m, n, k, choice, spec, grid, split, number, *where)
    if max(found.grid, found.shifted_x_size // 8, found.copied_w_size // 8, n, k, m) > MAX_INDEX:
        raise ValueError(
            f"x and w: M={m}, N={n}, K={k} are more than 32-bit indices reach; split the product"
        )
    return found
