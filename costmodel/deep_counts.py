"""Exact counts of this project's fused order-4 convolution kernel, as closed forms.

:func:`totals` is plain arithmetic, as `kernel_counts.totals` is for order 2: given integers it returns integers,
given sympy symbols it returns expressions; a property test holds it equal to the counters of the kernel's CPU body.

Symbols: B sequences, H channels, L samples; P = N1 Q points, Q = N2 R, R = N3 N4; ``rows_in`` and ``rows_out``, the
live rows of the [N1, Q] matrix; a grid of ``blocks`` blocks of N1 warps. Items are the H ceil(B / 2) pairs of sequences
of P samples, or, with ``half``-length packing, the H B sequences of 2 P samples. Every stage reads its operands from
the exchange and writes its results there, 4 bytes a point: the outer one, the middle one, the inner convolution and
the middle one again write, all but the first read, and so does the last. Derivation of each line: docs/kernels.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from costmodel.counts import GATED, MMA_FLOPS, Counts, instructions
from monarch import Plan

STRIP = 32
WARPS_PER_SM = 16
SHAPES: dict[tuple[int, ...], int] = {(16, 8, 16, 16): 1, (8, 8, 16, 16): 2}
"""By factors, as the kernel chooses: blocks that an SM has room for, if its shared memory has."""
REGISTERS = 128
RESERVED_BYTES = 1024
"""Shared memory that a GPU keeps for itself of each block."""


@dataclass(frozen=True)
class Shape:
    """One block: what it is made of, and the shared memory it takes."""

    warps: int
    ring: int
    middle_shared: bool
    shared_bytes: int


def shapes(packing: str) -> list[tuple[int, ...]]:
    """The factor lists that the kernel takes with a packing."""
    return list(SHAPES) if packing in ("pair", "half", "right-angle") else []


def rows(plan: Plan) -> tuple[int, int]:
    """Live rows of the outer stage: of the input, of the output; all, or half where the rest is not more.

    Of the output at least eight: fewer do not fill a product's tile, and are not left out.
    """
    n1, signal, wanted = plan.factors[0], plan.signal or plan.n, plan.wanted or plan.n
    if plan.packing == "right-angle":
        return n1, n1
    live = (n1 // 2 if length <= plan.n // 2 else n1 for length in (signal, wanted))
    return next(live), max(8, next(live))


def _outer(rows_in: Any, rows_out: Any, right_angle: bool) -> tuple[Any, Any]:
    """Numbers that the first factor contracts, and that the last one makes: both parts of rows, or real ones.

    At least 16, with zeros: a tile.
    """
    parts = 1 if right_angle else 2
    if isinstance(rows_in, int):
        return max(16, parts * rows_in), -(-parts * rows_out // 16) * 16
    import sympy

    return sympy.Max(16, parts * rows_in), parts * rows_out


def constant_words(
    n1: Any, n2: Any, n3: Any, n4: Any, rows_in: Any, rows_out: Any, *, right_angle: bool = False
) -> Any:
    """32-bit words of five DFT factors (half precision), the inner and the middle twiddles (complex).

    The two outer factors are of real and imaginary parts, [2 N1, 2 rows_in] (of 16 columns at least) and
    [2 rows_out, 2 N1]; with right-angle packing samples have one part.
    """
    outer = 2 * n1 * sum(_outer(rows_in, rows_out, right_angle))
    return (outer + n3 * n3 + 2 * n4 * n4) // 2 + 2 * n3 * n4 + 2 * n2 * n3 * n4


def exchange_words(n1: Any, n2: Any, n3: Any, n4: Any) -> Any:
    """All points, with four words of padding for each (k1, k2) and four for each k1."""
    return n1 * (n2 * (n3 * n4 + 4) + 4)


def block_shape(
    factors: tuple[int, ...],
    rows_in: int,
    rows_out: int,
    *,
    pregate: bool,
    capacity_bytes: float,
    right_angle: bool = False,
) -> Shape | None:
    """The block that the kernel takes on a GPU with ``capacity_bytes`` of shared memory a block; None: too little.

    Where as many fit on an SM as registers allow, and else where one fits: as many strips ahead as there is room for.
    For the second strip, and for the first, inverse middle twiddles give way.
    """
    n1, n2, n3, n4 = factors
    words = constant_words(n1, n2, n3, n4, rows_in, rows_out, right_angle=right_angle)
    words += exchange_words(n1, n2, n3, n4)
    stage = n1 * rows_in * STRIP * (2 if pregate else 1) // (2 if right_angle else 1)
    most, blocks = n3 // n1 * (n2 // 2), SHAPES[factors]
    choices = [*((ring, True) for ring in range(most, 1, -1)), (2, False), (1, True), (1, False)]
    for limit in ((capacity_bytes + RESERVED_BYTES) // blocks - RESERVED_BYTES, capacity_bytes):
        for ring, middle_shared in choices:
            found = 4 * (words + ring * stage - (0 if middle_shared else n2 * n3 * n4))
            if found <= limit:
                return Shape(n1, ring, middle_shared, found)
    return None


def products(
    n1: Any, n2: Any, n3: Any, n4: Any, rows_in: Any, rows_out: Any, *, right_angle: bool = False
) -> Any:
    """Tensor-core instructions (16 x 8 x 16) of one item.

    The outer and the middle stage are real products with factors of real and imaginary parts; the middle one, with
    [2 N2, 2 N2], fills a tile. The inner stages are two products of the factor's size each.
    """
    q = n2 * n3 * n4
    outer = q // 8 * (n1 // 8) * sum(_outer(rows_in, rows_out, right_angle)) // 16
    inner = n1 * n2 * 4 * (n3 // 16) * (n4 // 8) * (n3 // 16 + n4 // 16)
    return outer + 2 * n1 * n3 * n4 // 8 + inner


def table_bytes(n1: Any, n2: Any, n3: Any, n4: Any, *, half: bool) -> Any:
    """Bytes that all warps read of their own constants for one item.

    Outer twiddles once, their inverse twice (both halves of the lanes), two middle factors; and mirrors' offsets.
    """
    return 12 * n1 * n3 * n4 + 16 * n1 * n2 * n2 + (4 * n3 * n4 if half else 0)


def totals(
    n1: Any,
    n2: Any,
    n3: Any,
    n4: Any,
    rows_in: Any,
    rows_out: Any,
    *,
    batch: Any,
    channels: Any,
    length: Any,
    blocks: Any,
    half: bool = False,
    right_angle: bool = False,
    pregate: bool = False,
    postgate: bool = False,
    scaled: bool = False,
    middle_shared: bool = True,
    early: bool = False,
    rounded: bool = False,
) -> dict[str, Any]:
    """All counters of one launch, by name.

    ``middle_shared``: whether inverse middle twiddles are in shared memory, or read through the caches.
    ``early``: whether outer twiddles are loaded an item ahead. ``rounded``: as `block_counts.totals`.
    """
    q, points = n2 * n3 * n4, n3 * n4
    n = n1 * q
    items = channels * (batch if half or right_angle else (batch + 1) // 2)
    words = constant_words(n1, n2, n3, n4, rows_in, rows_out, right_angle=right_angle)
    words -= 0 if middle_shared else q
    sequences = 2 * batch * channels * length
    parts, (contracted, made) = 1 if right_angle else 2, _outer(rows_in, rows_out, right_angle)
    staged = 2 * parts * rows_in * q * (2 if pregate else 1)
    exchanged = 16 * n
    # Factors once for each warp, but where registers are short for each strip (the last one, with an output gate) or
    # two tiles (F4 inverse, with half-length packing). Middle twiddles for each k1, inner ones for each two tiles: 4
    # bytes, both directions.
    again, again4 = (n2 * n3 // (2 * n1) if postgate else 1), (n2 // 2 if half else 1)
    factors = 4 * n1 * (contracted + again * made) + 2 * n3 * n3 + 2 * (1 + again4) * n4 * n4
    middle = 4 * n
    constants = n1 * factors + (2 if middle_shared else 1) * middle + 4 * n
    # Half-length packing: the tile k1 = k2 = 0 and its mirror, as `block_counts.totals` has it.
    mirrored, gathered, conflicts = (4 * points, 8 * points, n3 + 4) if half else (0, 0, 0)
    first = 4 * n1 * points * blocks if early else 0
    shared_read = items * (staged + constants + exchanged + gathered)
    rows_kept = parts * q * rows_out
    gates = (parts * q * rows_in if pregate else 0) + (rows_kept if postgate else 0)
    return {
        "read_u": sequences,
        "read_pregate": sequences if pregate else 0,
        "read_postgate": sequences if postgate else 0,
        "read_spectrum": (8 if half else 4) * n * items,
        "read_scales": 4 * n1 * items if scaled else 0,
        "read_constants": 4 * words * blocks + (0 if middle_shared else items * middle),
        "read_tables": table_bytes(n1, n2, n3, n4, half=half) * items + first,
        "written_y": sequences,
        "shared_read_bytes": shared_read,
        "shared_written_bytes": 4 * words * blocks + items * (staged + exchanged + mirrored),
        "shared_wavefronts": (shared_read + items * (exchanged + mirrored)) // 128 + items * conflicts,
        "bank_conflicts": items * conflicts,
        "mma_m16n8k16": items * products(n1, n2, n3, n4, rows_in, rows_out, right_angle=right_angle),
        "fp32_flops": items * ((0 if rounded else 8 * n) + (rows_kept if scaled else 0)),
        "half_flops": items * ((50 if half or rounded else 42) * n + gates),
        "transposes": items * n // 32,
        "barriers": blocks + (5 if half else 3) * items,
    }


def kernel_counts(
    plan: Plan, batch: int, channels: int, *, dtype: str, variant: str, capacity_bytes: float
) -> Counts | None:
    """Counts of one call of the fused kernel, or None when it does not fit."""
    gated, half, right_angle = variant in GATED, plan.packing == "half", plan.packing == "right-angle"
    rows_in, rows_out = rows(plan)
    rounded = right_angle and dtype == "fp16"
    how: dict[str, Any] = {"pregate": gated, "right_angle": right_angle}
    shape = block_shape(plan.factors, rows_in, rows_out, capacity_bytes=capacity_bytes, **how)
    if shape is None:
        return None
    n, items = plan.points, channels * (batch if half or right_angle else (batch + 1) // 2)
    n1, n2, n3, n4 = plan.factors
    found = totals(
        n1,
        n2,
        n3,
        n4,
        rows_in,
        rows_out,
        batch=batch,
        channels=channels,
        length=plan.signal or plan.n,
        blocks=0,
        half=half,
        postgate=gated,
        middle_shared=shape.middle_shared,
        rounded=rounded,
        **how,
    )
    sequences = found["read_u"] + found["read_pregate"] + found["read_postgate"]
    cached = found["read_spectrum"] + found["read_tables"] + found["read_constants"]
    kept, live = n * rows_out // n1, n * rows_in // n1
    if right_angle:  # one part
        kept, live = kept // 2, live // 2
    arrays = 2 if gated else 1
    staged = 4 * live * arrays
    # 16 bytes a lane, but 8 where rows of a pair are read (and copied, by 16).
    accesses = (found["shared_read_bytes"] + cached) / items + 16 * n + 4 * kept * arrays
    accesses = accesses / 512 + (staged / 512 if half else staged / 256)
    return Counts(
        device_read_bytes=sequences + found["read_spectrum"] // items * channels,
        device_write_bytes=found["written_y"],
        mma_flops=MMA_FLOPS * found["mma_m16n8k16"],
        half_flops=found["half_flops"],
        fp32_flops=found["fp32_flops"],
        shared_bytes=found["shared_read_bytes"] + found["shared_written_bytes"],
        l2_bytes=sequences + found["written_y"] + cached,
        warp_instructions=instructions(
            products=found["mma_m16n8k16"],
            fp32_flops=found["fp32_flops"],
            half_flops=found["half_flops"],
            # In fp16 tensor cores round the outer and middle stages, with right-angle packing the inner ones too.
            words=items * ((3 if rounded else 7 if dtype == "fp16" else 10) * n + live + kept),
            accesses=items * accesses,
            half_additions=items * 8 * n * rounded,
        ),
        transforms=items,
        launches=1,
        blocks=items,
        threads_per_block=32 * shape.warps,
        shared_bytes_per_block=shape.shared_bytes,
        registers_per_thread=REGISTERS,
        workers_per_block=1,
        fill_bytes_per_block=4 * constant_words(n1, n2, n3, n4, rows_in, rows_out, right_angle=right_angle)
        - (0 if shape.middle_shared else 4 * n // n1),
        barriers_per_transform=5.0 if half else 3.0,
        exact=True,
        source=f"kernel_counts: fused order {plan.order}, {plan.packing}",
    )
