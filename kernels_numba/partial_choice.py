"""Whether a causal convolution with a short filter is done tile by tile or as a whole, and why."""

from __future__ import annotations

from kernels_numba.device import Device, device
from kernels_numba.long_plans import INNER_TIME, LONGEST, OUTER_TIME, TYPES, split_of
from kernels_numba.plan_choice import choose_plan, points_needed
from kernels_numba.windows import lag_of, tiles_of


def choose_tile(
    length: int, taps: int, dtype: str = "fp16", where: Device | None = None
) -> tuple[int | None, str]:
    """The tile for a causal convolution of so many samples, None for the whole at once; and the reason in a sentence.

    Whole-length transforms that fit on chip cross device memory once already. Longer ones are compared by the times
    that were measured for a point of either way's kernels, for a sample.
    """
    if dtype not in TYPES:
        return None, f"As a whole: tiles take {' and '.join(TYPES)} sequences, these are {dtype}."
    tiles, need = tiles_of(taps), points_needed("causal", length, taps)
    if need > LONGEST and tiles:
        return tiles[0], f"In tiles of {tiles[0]}: {need} points are more than a transform has, {LONGEST}."
    plan, outer = choose_plan(
        "causal", length, taps, None, dtype, where or device(), sequences=dtype, on_chip=None
    )
    if not outer:
        return None, f"As a whole: {plan.n} points fit on chip."
    split = split_of(plan)
    whole = (INNER_TIME[split.inner.n] + OUTER_TIME[split.rows]) * plan.n / length
    if not tiles:
        return None, f"As a whole: {taps} taps are too many for a tile."
    tile = tiles[0]
    tiled = INNER_TIME[tile] * tile / (tile - lag_of(taps))
    figures = (
        f"{tiled:.2f} ps for a sample in tiles of {tile}, {whole:.2f} ps as a whole of {plan.n} points (by times of "
        "the kernels on an H200)"
    )
    return (tile, f"In tiles: {figures}.") if tiled < whole else (None, f"As a whole: {figures}.")
