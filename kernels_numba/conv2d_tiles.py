"""Overlap-save along one axis: which samples each tile sees, which results it makes.

A pass makes results 0 .. n_out - 1 of a source of n_in samples and a filter of ``span``: result a needs the source from
``low + a`` on, span samples (those outside the source are zeros). A tile of T samples has T - span + 1 results that no
wrapped-around sample touches, so tile i begins at sample ``low + i step`` with step = T - span + 1, and the next one
shares span - 1 samples with it.

One tile can do more where its first and last samples are zeros anyway: what wraps around from behind the end of the
tile must be zero, and what it would have been must be zero too. So a map of n samples with padding p on each side
needs n + p samples, not n + 2 p.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels_numba.map_transform import SIZES


@dataclass(frozen=True)
class Axis:
    """Tiles along one axis."""

    size: int
    """Samples of a tile, T."""
    count: int
    step: int
    """Results of a tile, and samples from tile to tile."""
    first: int
    """The sample of the source that the first tile begins with (negative: in the zeros before it)."""
    skip: int
    """The sample of a tile that is its first result: span - 1 where the filter runs backwards, else 0."""

    @property
    def samples(self) -> int:
        """Of all tiles."""
        return self.size * self.count


def axis(
    size: int, n_in: int, n_out: int, span: int, low: int, skip: int, *, wrap: bool = True
) -> Axis | None:
    """Tiles of ``size`` samples, or None where a tile of that size has no room for the filter.

    ``wrap``: whether samples may wrap around where those of the image's edge are zeros.
    """
    high = low + n_out + span - 2  # the last sample that is needed
    whole = size >= n_out + span - 1
    wraps = wrap and high - size < max(low, 0) and min(high, n_in - 1) < low + size and n_out <= size >= span
    if whole or wraps:
        return Axis(size, 1, n_out, low, skip)
    step = size - span + 1
    if step < 1:
        return None
    return Axis(size, -(-n_out // step), step, low, skip)


def from_start(tiles: Axis, n_in: int, n_out: int, span: int, low: int) -> Axis:
    """Tiles of a filter that runs backwards; if one holds the source, it begins with the source if it can.

    The gradient of the weights wants its samples there too, so one transform serves both. Results are then skipped up
    to the place of the first, and what wraps around must end before it.
    """
    skip, last = low + span - 1, n_in + span - 2
    fits = n_in <= tiles.size and skip >= 0 and skip + n_out <= tiles.size and last - tiles.size < skip
    return replace(tiles, first=0, skip=skip) if tiles.count == 1 and fits else tiles


def axes(n_in: int, n_out: int, span: int, low: int, skip: int, *, wrap: bool = True) -> list[Axis]:
    """All ways to tile an axis, shortest tiles first."""
    found = (axis(size, n_in, n_out, span, low, skip, wrap=wrap) for size in SIZES)
    return [tiles for tiles in found if tiles is not None]
