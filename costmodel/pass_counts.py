"""Exact counts of kernels that go over their operands once or twice: softmax of rows, and filters of a few taps.

Plain arithmetic, as `kernel_counts.totals` is for the convolution: given integers they return integers; property tests
hold them equal to the counters of the kernels' CPU bodies.
"""

from __future__ import annotations

from typing import Any

WARP, EACH = 32, 8
TEAM = 8
"""Warps that share a long row."""


def softmax(rows: Any, n: Any, *, team: bool, sync: bool, flagged: Any = 0) -> dict[str, Any]:
    """Softmax of ``rows`` rows of n halves, each a warp's, or with ``team`` a block's.

    A row is gone through twice, once for its sum and once for the results; ``flagged`` rows, whose numbers are too far
    from the fixed shift, are summed once more, with the running maximum. ``sync``: all are, and only so.
    """
    turns = -(-n // (WARP * EACH))
    warps, joined = (TEAM, 1) if team else (1, 0)
    fixed, running = (0, rows) if sync else (rows, flagged)
    sums = fixed + running
    # Every warp of a team reads the maxima of all, their sums and flags; with a running maximum the maxima twice.
    gets = joined * WARP * 4 * TEAM * TEAM * (3 * fixed + 4 * running)
    puts = joined * 4 * 3 * TEAM * sums
    return {
        "read_x": 2 * n * (sums + rows),
        "written_y": 2 * n * rows,
        "exponentials": WARP * EACH * turns * (fixed + rows)
        + running * (WARP * (EACH + 1) * turns + WARP * warps + joined * TEAM * TEAM),
        "fp32_flops": WARP * EACH * turns * (3 * fixed + 4 * rows)
        + WARP * 12 * warps * fixed
        + running * (WARP * (35 * turns + 13 * warps) + 2 * joined * TEAM * TEAM),
        "shared_read_bytes": gets,
        "shared_written_bytes": puts,
        "shared_wavefronts": gets // (4 * WARP) + puts // 4,
        "barriers": 2 * joined * sums,
    }


def _neighbours(length: int, groups: range, edge: int, shift: int) -> int:
    """Samples beyond their own eight that all lanes of a row load, ``edge`` each where the row has as many."""
    return sum(min(max(length - EACH * i + shift, 0), edge) for i in groups)


def short_conv(rows: int, length: int, taps: int, *, span: int, backward: bool = False) -> dict[str, int]:
    """A filter of a few taps over ``rows`` sequences of halves, ``span`` samples a warp; or its gradients.

    A lane takes eight neighbours, and loads the samples before them (of dy: after them) that its taps reach once more.
    """
    chunks = 1 if length <= 2 * WARP * EACH else 4
    edge = 2 * max(1, taps // 2)
    turns = -(-length // (WARP * EACH * chunks))
    groups, items = WARP * chunks * turns, rows * -(-length // span)
    products = WARP * EACH * chunks * turns * rows
    before = _neighbours(length, range(1, groups), edge, edge)
    found = {
        "read_x": 2 * rows * (length + before),
        "read_weights": 4 * WARP * taps * items,
        "fp32_flops": products * (2 * taps - 1),
    }
    if not backward:
        return found | {"written_y": 2 * rows * length}
    after = _neighbours(length, range(1, groups + 1), edge, 0)
    found["fp32_flops"] += products * 2 * taps + 5 * WARP * taps * items
    return found | {
        "read_dy": 2 * rows * (length + after),
        "written_dx": 2 * rows * length,
        "written_sums": 4 * taps * items,
    }
