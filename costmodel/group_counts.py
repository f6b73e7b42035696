"""Exact counts of this project's fused order-2 kernel on warpgroups, as closed forms.

:func:`totals` is plain arithmetic, as `kernel_counts.totals` is for the kernel in which one warp carries a pair; a
property test holds it equal to the counters of the kernel's CPU body.

Symbols: B sequences, H channels, L samples; N1 N2 points, N1 = 64; ``rows_in`` and ``rows_out``, the live rows of
the [N1, N2] matrix; a grid of ``blocks`` blocks of ``teams`` teams of four warps. Items are the H ceil(B / 2) pairs of
sequences; teams of a block take them in turn. Derivation of each line: docs/kernels.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from costmodel.counts import GATED, MMA_FLOPS, Counts, instructions
from monarch import Plan

ROWS, WARPS = 64, 4
SLICE = 32
"""Columns of a contraction of rows that are formed at once; each such slice reads the factor again."""
CAPABILITY = "9.0"
SHAPES: dict[tuple[int, ...], tuple[int, int, bool, bool]] = {
    (64, 32): (4, 2, True, True),
    (64, 64): (3, 2, True, True),
    (64, 128): (2, 1, False, False),
}
"""By factors, as the kernel chooses: teams, input buffers of each, twiddles in shared memory, spectrum in registers."""
TURNED_SHAPES: dict[tuple[int, ...], tuple[int, int, bool, bool]] = {(64, 32): (3, 2, True, True)}
"""The same, with right-angle packing."""
REGISTERS = {2048: 112, 4096: 168, 8192: 256}
"""Registers per thread by N, in the steps of 8 that the GPU allocates; compiled for sm_90 (kernels_numba.resources)."""
TURNED_REGISTERS = 160
"""The same, with right-angle packing."""


@dataclass(frozen=True)
class Shape:
    """One block: what it is made of, and the shared memory it takes."""

    teams: int
    ring: int
    tables_shared: bool
    keep: bool
    shared_bytes: int


def shapes(packing: str) -> list[tuple[int, ...]]:
    """The factor lists that the kernel takes with a packing."""
    return list({"pair": SHAPES, "right-angle": TURNED_SHAPES}.get(packing, ()))


def live_rows(plan: Plan) -> tuple[int, int]:
    """Rows of the input that are copied and multiplied, by 32; rows of the output that are formed."""
    n1, n2 = plan.factors
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    half = wanted <= plan.n // 2 and plan.packing == "pair"
    return 32 * -(-signal // (32 * n2)), n1 // 2 if half else n1


def factor_words(n1: Any, n2: Any, rows_in: Any, *, right_angle: bool = False) -> Any:
    """32-bit words of the four DFT factors (real, half precision); the outer ones of right-angle packing have parts."""
    return ((2 if right_angle else 1) * n1 * (rows_in + n1) + 2 * n2 * n2) // 2


def block_shape(
    factors: tuple[int, ...], rows_in: int, *, pregate: bool, capacity_bytes: float, right_angle: bool = False
) -> Shape | None:
    """The block that the kernel takes on a GPU with ``capacity_bytes`` of shared memory a block; None: too little."""
    n1, n2 = factors
    teams, ring, tables, keep = (TURNED_SHAPES if right_angle else SHAPES)[factors]
    n, exchanged = prod(factors), prod(factors) * (2 if right_angle else 1)
    constants = factor_words(n1, n2, rows_in, right_angle=right_angle)

    def size() -> int:
        stage = rows_in * n2 * (2 if pregate else 1)
        return 4 * (constants + (2 * n if tables else 0) + teams * (ring * stage + exchanged))

    while size() > capacity_bytes:
        if ring > 1 and teams <= 2:
            ring = 1
        elif tables:
            tables = False
        elif teams > 1:
            teams -= 1
        elif ring > 1:
            ring = 1
        else:
            return None
    return Shape(teams, ring, tables, keep, size())


def products(n1: Any, n2: Any, rows_in: Any, *, right_angle: bool = False) -> Any:
    """Tensor-core work of an item in 16 x 8 x 16 products: two real products of the factor's size in each stage.

    With right-angle packing of each of two sequences.
    """
    sequences = 2 if right_angle else 1
    return 2 * sequences * (n1 // 16) * (n2 // 8) * (rows_in // 16 + 2 * (n2 // 16) + n1 // 16)


def issued(plan: Plan) -> int:
    """Product instructions of the four warps for an item: each is a warp's 16 rows of a slice."""
    (n1, n2), rows = plan.factors, live_rows(plan)[0]
    if plan.packing == "right-angle":  # of both sequences at once, but for the inner stages
        return WARPS * (2 * rows + 8 * n2 + 2 * n1) // 16
    return WARPS * -(-n2 // SLICE) * (rows + 4 * n2 + n1) // 16


def spectrum_loads(items: int, pairs: int, per_team: int, teams: int) -> int:
    """How often a team's channel begins or changes: it takes every ``teams``-th item of its block's."""
    total, per_block = 0, per_team * teams
    for start in range(0, items, per_block):
        for team in range(teams):
            mine = range(start + team, min(start + per_block, items), teams)
            total += len({item // pairs for item in mine})
    return total


def totals(
    n1: Any,
    n2: Any,
    rows_in: Any,
    rows_out: Any,
    *,
    batch: Any,
    channels: Any,
    length: Any,
    blocks: Any,
    loads: Any,
    tables_shared: bool,
    ring: int,
    keep: bool,
    pregate: bool = False,
    postgate: bool = False,
    scaled: bool = False,
    right_angle: bool = False,
) -> dict[str, Any]:
    """All counters of one launch, by name; ``loads`` is :func:`spectrum_loads`.

    ``right_angle``: two sequences of at most N / 2 = N1 N2 samples, each as so many complex points.
    """
    n, points = n1 * n2, n1 * n2 * (2 if right_angle else 1)
    items = channels * ((batch + 1) // 2)
    words = factor_words(n1, n2, rows_in, right_angle=right_angle)
    read, kept = rows_in * n2, rows_out * n2
    sequences = 2 * batch * channels * length
    slices = -(-n2 // SLICE)
    # Products read: the outer factors once for each slice, the inner ones for the real and the imaginary part, and the
    # data of the outer ones. With right-angle packing the first factor's two parts read the data each.
    if right_angle:
        outer = 2 * 2 * n1 * (rows_in + n1) + 8 * read + 4 * points
    else:
        outer = slices * 2 * n1 * (rows_in + n1) + 4 * read + 4 * n
    inner = 2 * 4 * n2 * n2 * (points // n)
    gated = 8 * read if pregate else 0  # input and gate
    tables = 8 * n if tables_shared else 0
    shared_read = items * (outer + inner + gated + tables)
    stored = 4 * points + (4 * read if pregate else 0)
    butterflies = 2 * 2 * points if right_angle else 3 * 2 * n + (n if rows_out != n1 else 2 * n)
    gates = (2 * read if pregate else 0) + (2 * kept if postgate else 0)
    return {
        "read_u": sequences,
        "read_pregate": sequences if pregate else 0,
        "read_postgate": sequences if postgate else 0,
        "read_spectrum": 4 * n * (loads if keep else items),
        "read_scales": 4 * WARPS * loads if scaled else 0,
        "read_constants": 4 * words * blocks,
        "read_tables": 8 * n * (blocks if tables_shared else items),
        "written_y": sequences,
        "shared_read_bytes": shared_read,
        "shared_written_bytes": (4 * words + tables) * blocks
        + items * (stored + 4 * read * (2 if pregate else 1)),
        "shared_wavefronts": (shared_read + items * stored) // 128,
        "bank_conflicts": 0,
        "mma_m16n8k16": items * products(n1, n2, rows_in, right_angle=right_angle),
        "fp32_flops": items * (butterflies + (2 * kept if scaled else 0)),
        "half_flops": items * (18 * points + gates),
        "transposes": 0,
        "barriers": blocks + items * (2 + (ring == 1) + pregate),
    }


def kernel_counts(
    plan: Plan, batch: int, channels: int, *, variant: str, capacity_bytes: float
) -> Counts | None:
    """Counts of one call of the fused kernel, or None when it does not fit."""
    gated, right_angle = variant in GATED, plan.packing == "right-angle"
    n1, n2 = plan.factors
    rows_in, rows_out = live_rows(plan)
    shape = block_shape(
        plan.factors, rows_in, pregate=gated, capacity_bytes=capacity_bytes, right_angle=right_angle
    )
    if shape is None:
        return None
    n, items = plan.points, channels * ((batch + 1) // 2)
    points = 2 * n if right_angle else n
    found = totals(
        n1,
        n2,
        rows_in,
        rows_out,
        batch=batch,
        channels=channels,
        length=plan.signal or plan.n,
        blocks=0,
        loads=channels,
        tables_shared=shape.tables_shared,
        ring=shape.ring,
        keep=shape.keep,
        pregate=gated,
        postgate=gated,
        right_angle=right_angle,
    )
    sequences = found["read_u"] + found["read_pregate"] + found["read_postgate"]
    kept = rows_out * n2
    # Accesses of 16 bytes a lane: tables, spectrum, exchange, copies, gates, outputs. Products read by themselves.
    staged = 4 * rows_in * n2 * (4 if gated else 1)
    accesses = 8 * n + (0 if shape.keep else 4 * n) + 4 * points + staged + 4 * kept * (2 if gated else 1)
    return Counts(
        device_read_bytes=sequences + 4 * n * channels,
        device_write_bytes=found["written_y"],
        mma_flops=MMA_FLOPS * found["mma_m16n8k16"],
        half_flops=found["half_flops"],
        fp32_flops=found["fp32_flops"],
        shared_bytes=found["shared_read_bytes"] + found["shared_written_bytes"],
        l2_bytes=sequences
        + found["written_y"]
        + found["read_spectrum"]
        + (0 if shape.tables_shared else found["read_tables"]),
        warp_instructions=instructions(
            products=items * issued(plan),
            fp32_flops=found["fp32_flops"],
            half_flops=found["half_flops"],
            words=items * (3 * points + kept),
            accesses=items * accesses / 512,
        ),
        transforms=items,
        launches=1,
        blocks=-(-items // shape.teams),
        threads_per_block=32 * WARPS * shape.teams,
        shared_bytes_per_block=shape.shared_bytes,
        registers_per_thread=TURNED_REGISTERS if right_angle else min(255, REGISTERS[n]),
        workers_per_block=shape.teams,
        fill_bytes_per_block=4 * factor_words(n1, n2, rows_in, right_angle=right_angle)
        + (8 * n if shape.tables_shared else 0)
        + (shape.teams * 4 * n if shape.keep else 0),
        barriers_per_transform=float(2 + (shape.ring == 1) + gated),
        exact=True,
        source="kernel_counts: fused order 2, warpgroups",
        waits=True,
        capability=CAPABILITY,
    )
