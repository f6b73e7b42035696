"""Exact counts of this project's fused convolution kernels, as closed forms; here those of order 2.

:func:`totals` is plain arithmetic: given integers it returns integers, given sympy symbols it returns expressions.
A property test holds it equal to the counters of the kernel's CPU body, instruction by instruction, for every plan
the kernel supports; `block_counts.totals` is the same for order 3, `deep_counts.totals` for order 4.
:func:`kernel_counts` gives the time model what it needs from them, for a kernel of any order. Instructions are
estimated from the counts (`counts.instructions`): the CPU body does not see the GPU's.

Symbols: B sequences, H channels, L samples; N = N1 N2 points; ``rows_in`` and ``rows_out``, the live rows of the
[N1, N2] matrix; ``halves`` elements per copy; a grid of ``blocks`` blocks of ``warps`` warps, of which each takes
``per_warp`` of the H ceil(B / 2) pairs in order. Derivation of each line: docs/kernels.md.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import Any

from costmodel import (
    any_counts,
    block_counts,
    deep_counts,
    float_counts,
    group_counts,
    local_memory,
    long_counts,
    long_float_counts,
    rounds_counts,
)
from costmodel.counts import GATED, ITEM_BYTES, MMA_FLOPS, Counts, instructions
from monarch import Plan

FACTORS = (*((n1, 16) for n1 in range(16, 128, 16)), (16, 32), (32, 32), (48, 32))
RIGHT_ANGLE_FACTORS = ((16, 16), (24, 16), (32, 16), (40, 16), (48, 16), (16, 32), (24, 32))
"""With right-angle packing."""
WARPS = 4
BLOCKS = {256: 16, 512: 16}
HALVED_BLOCKS = {1024: 12}
"""Warps of a block by N, where there are not `WARPS`, without gates; and for half of the outputs."""
TURNED_BLOCKS: dict[tuple[int, ...], int] = {(32, 16): 16}
"""The same by factors, with right-angle packing."""
REGISTERS_PER_SM = 65536
REGISTERS = {256: 64, 512: 120, 768: 144, 1024: 168, 1280: 216, 1536: 240, 1792: 256}
GATED_REGISTERS = {256: 80, 512: 120, 768: 160, 1024: 208, 1280: 240, 1536: 240, 1792: 256}
"""Registers per thread by N, in the steps of 8 that the GPU allocates; compiled for sm_90 (kernels_numba.resources)."""
TURNED_REGISTERS: dict[tuple[int, ...], int] = {
    (16, 16): 88,
    (24, 16): 120,
    (32, 16): 128,
    (40, 16): 256,
    (48, 16): 216,
    (16, 32): 168,
    (24, 32): 248,
}
"""The same by factors, with right-angle packing,"""
TURNED_GATED_REGISTERS = TURNED_REGISTERS | {
    (16, 16): 104,
    (24, 16): 128,
    (32, 16): 160,
    (48, 16): 256,
    (16, 32): 152,
}
"""and with gates."""
FEWER_REGISTERS = {(8, 16, 16): 128}
"""The same of an order-3 kernel without gates, where that is less than its blocks must leave room for."""


@lru_cache(maxsize=1024)
def factor_lists(
    points: int, order: int, packing: str = "pair", dtype: str = "fp16"
) -> tuple[tuple[int, ...], ...]:
    """The factor lists of ``points`` complex points and an order that kernels run, with outer stages or without."""
    found = fused_lists(points, order, packing, dtype)
    if packing != "pair":
        return found
    long = long_float_counts if dtype == "fp32" else long_counts
    return (*found, *(f for f in long.factor_lists(points, order) if f not in found))


@lru_cache(maxsize=1024)
def fused_lists(
    points: int, order: int, packing: str = "pair", dtype: str = "fp16"
) -> tuple[tuple[int, ...], ...]:
    """The factor lists of ``points`` complex points and an order that one kernel runs."""
    known: list[tuple[int, ...]] = []
    if dtype == "fp32":
        known = [*float_counts.factor_lists(order, packing), *rounds_counts.factor_lists(order, packing)]
    elif order == 2:
        own = {"pair": FACTORS, "right-angle": RIGHT_ANGLE_FACTORS}.get(packing, ())
        known = [*own, *group_counts.shapes(packing)]
    elif order == 3:
        known = block_counts.shapes(packing)
    elif order == 4:
        known = deep_counts.shapes(packing)
    if dtype != "fp32":
        known = [*known, *any_counts.shapes(points, order, packing)]
    return tuple(f for f in known if prod(f) == points)


def rows(plan: Plan) -> tuple[int, int]:
    """Live rows of the outer stage's matrix: of the input by 16 (a product's tile), of the output all or half."""
    n1 = max(16, plan.factors[0] * (2 if plan.packing == "right-angle" else 1))  # k1 of two sequences
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    whole = plan.factors[0] < 16  # two parts of the columns fill one product: its rows are all live
    live = 16 if whole else 16 * -(-signal * n1 // (16 * plan.n))
    return live, n1 // 2 if wanted <= plan.n // 2 else n1


def warp_rows(plan: Plan) -> tuple[int, int]:
    """The same of order 2, where eight rows of input fill a tile with both their parts."""
    live, wanted = rows(plan)
    n1, n2 = plan.factors
    if plan.packing == "right-angle":
        return live, wanted
    return 8 if n1 == 16 and (plan.signal or plan.n) <= 8 * n2 else live, wanted


def in_parts(n1: Any) -> bool:
    """Whether the first factor is a real matrix of both parts, not one in cosine/sine form."""
    return bool(n1 == 16)


def is_lower(n1: Any, rows_out: Any) -> bool:
    """Whether half of the output's rows are wanted; the last factor is a real matrix of both parts then."""
    return rows_out is not n1 and bool(rows_out != n1)


def constant_words(n1: Any, n2: Any, rows_in: Any, rows_out: Any, *, right_angle: bool = False) -> Any:
    """32-bit words of the four DFT factors (real, half precision) and the two twiddle matrices (complex)."""
    if right_angle:
        outer = n1 * (rows_in + block_counts.last_rows(n1, right_angle=True))
        return (outer + 2 * n2 * n2) // 2 + n1 * n2
    outer = n1 * rows_in * (4 if in_parts(n1) else 1) + n1 * n1 * (2 if is_lower(n1, rows_out) else 1)
    return (outer + 2 * n2 * n2) // 2 + 2 * n1 * n2


def products(n1: Any, n2: Any, rows_in: Any, *, right_angle: bool = False) -> Any:
    """Tensor-core instructions (16 x 8 x 16) of one pair: two real products of the factor's size in each stage.

    A first factor of both parts is twice as high and wide.
    """
    first = rows_in // 8 if in_parts(n1) and not right_angle else rows_in // 16
    last = block_counts.last_rows(n1, right_angle=right_angle) // 16
    return 2 * (n1 // 16) * (n2 // 8) * (first + 2 * (n2 // 16) + last)


def spectrum_loads(items: int, pairs: int, per_warp: int) -> int:
    """How often a warp loads a channel's spectrum: at its first pair, and whenever its channel changes."""
    active = -(-items // per_warp)
    shared = pairs * per_warp // gcd(pairs, per_warp)
    return active + (items - 1) // pairs - (items - 1) // shared


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
    pregate: bool = False,
    postgate: bool = False,
    scaled: bool = False,
    halves: int = 8,
    right_angle: bool = False,
    rounded: bool = False,
) -> dict[str, Any]:
    """All counters of one launch, by name; ``loads`` is :func:`spectrum_loads`; the rest as `block_counts.totals`."""
    n = n1 * n2
    items = channels * ((batch + 1) // 2)
    words = constant_words(n1, n2, rows_in, rows_out, right_angle=right_angle)
    read, kept = rows_in * n2, rows_out * n2
    room, gate_room = copied(read, halves), _whole(kept, 32 * halves)
    arrays_in = 4 if pregate else 2
    sequences = 2 * batch * channels * length
    shared_read = items * (4 * words + 2 * read * arrays_in + (4 * kept if postgate else 0))
    staged = items * (2 * room * arrays_in + (4 * gate_room if postgate else 0))
    # Real factors of both parts need no additions.
    butterflies = 2 * n * (2 if right_angle else 4 - in_parts(n1) - is_lower(n1, rows_out))
    gates = (2 * read if pregate else 0) + (2 * kept if postgate else 0)
    return {
        "read_u": sequences,
        "read_pregate": sequences if pregate else 0,
        "read_postgate": sequences if postgate else 0,
        "read_spectrum": (2 if right_angle else 4) * n * loads,
        "read_scales": 4 * loads if scaled else 0,
        "read_constants": 4 * words * blocks,
        "written_y": sequences,
        "shared_read_bytes": shared_read,
        "shared_written_bytes": 4 * words * blocks + staged,
        "shared_wavefronts": shared_read // 128,
        "bank_conflicts": 0,
        "mma_m16n8k16": items * products(n1, n2, rows_in, right_angle=right_angle),
        "fp32_flops": items * ((0 if rounded else butterflies) + (2 * kept if scaled else 0)),
        "half_flops": items * (18 * n + (butterflies if rounded else 0) + gates),
        "transposes": items * n // 32,
        "barriers": blocks,
    }


def copied(read: Any, halves: int) -> Any:
    """Elements that a warp's copies of a sequence bring; where all lanes have room for two sequences, just these."""
    return read if isinstance(read, int) and read == 16 * halves else _whole(read, 32 * halves)


def _whole(value: Any, step: int) -> Any:
    """``value`` rounded up to a multiple: the copies of a warp bring so many elements at once."""
    if isinstance(value, int):
        return -(-value // step) * step
    import sympy

    return sympy.ceiling(value / step) * step


def kernel_counts(
    plan: Plan, batch: int, channels: int, *, dtype: str, variant: str, capacity_bytes: float
) -> Counts | None:
    """Counts of one call of the fused kernel, or None when there is none for the plan or it does not fit."""
    known = factor_lists(plan.points, plan.order, plan.packing, dtype)
    if dtype not in ITEM_BYTES or plan.factors not in known:
        return None
    if dtype == "fp32" and plan.factors in fused_lists(plan.points, plan.order, plan.packing, dtype):
        rounds = plan.factors in rounds_counts.factor_lists(plan.order, plan.packing)
        return (rounds_counts if rounds else float_counts).kernel_counts(
            plan, batch, channels, gated=variant in GATED, capacity_bytes=capacity_bytes
        )
    if dtype == "fp32":
        return long_float_counts.kernel_counts(
            plan, batch, channels, variant=variant, capacity_bytes=capacity_bytes
        )
    if plan.factors not in fused_lists(plan.points, plan.order, plan.packing):
        return long_counts.kernel_counts(
            plan, batch, channels, variant=variant, capacity_bytes=capacity_bytes, inner=kernel_counts
        )
    if plan.factors in group_counts.shapes(plan.packing):
        return group_counts.kernel_counts(
            plan, batch, channels, variant=variant, capacity_bytes=capacity_bytes
        )
    if plan.factors in any_counts.shapes(plan.points, plan.order, plan.packing):
        return any_counts.kernel_counts(plan, batch, channels, variant=variant, capacity_bytes=capacity_bytes)
    if plan.order == 4:
        return deep_counts.kernel_counts(
            plan, batch, channels, dtype=dtype, variant=variant, capacity_bytes=capacity_bytes
        )
    make = _one_warp if plan.order == 2 else _block
    return make(plan, batch, channels, dtype, variant in GATED, capacity_bytes)


def _sequences(found: dict[str, Any]) -> int:
    return found["read_u"] + found["read_pregate"] + found["read_postgate"]


def _one_warp(
    plan: Plan, batch: int, channels: int, dtype: str, gated: bool, capacity_bytes: float
) -> Counts | None:
    n1, n2 = plan.factors
    right_angle = plan.packing == "right-angle"
    by_tensor_cores = dtype == "fp16"
    rounded = right_angle and by_tensor_cores
    if right_angle:  # the k1 of both sequences
        n1 *= 2
    rows_in, rows_out = warp_rows(plan)
    items = channels * ((batch + 1) // 2)
    words = constant_words(n1, n2, rows_in, rows_out, right_angle=right_angle)
    read, kept = rows_in * n2, rows_out * n2
    if right_angle:
        warps = TURNED_BLOCKS.get(plan.factors) or BLOCKS.get(plan.n, WARPS)
    else:
        warps = (BLOCKS | (HALVED_BLOCKS if rows_out < n1 else {})).get(plan.n, WARPS)
    warps = WARPS if gated else warps
    buffers = 4 * (copied(read, 8) * (4 if gated else 2) + (_whole(kept, 256) if gated else 0))
    while 4 * words + warps * buffers > capacity_bytes and warps > 1:
        warps //= 2
    if 4 * words + warps * buffers > capacity_bytes:
        return None
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
        pregate=gated,
        postgate=gated,
        right_angle=right_angle,
        rounded=rounded,
    )
    sequences = _sequences(found)
    wide, narrow = 512, 8 * n2  # bytes of one access: 16 a lane, and a lane's contiguous columns
    rows_read = 4 * read * (2 if gated else 1) + (4 * kept if gated else 0)
    accesses = (4 * words + rows_read) / wide + (rows_read + 4 * kept) / narrow
    return Counts(
        device_read_bytes=sequences + found["read_spectrum"],
        device_write_bytes=found["written_y"],
        mma_flops=MMA_FLOPS * found["mma_m16n8k16"],
        half_flops=found["half_flops"],
        fp32_flops=found["fp32_flops"],
        shared_bytes=found["shared_read_bytes"] + found["shared_written_bytes"],
        l2_bytes=sequences + found["written_y"] + found["read_spectrum"],
        warp_instructions=instructions(
            products=found["mma_m16n8k16"],
            fp32_flops=found["fp32_flops"],
            half_flops=found["half_flops"],
            words=items * ((2 if rounded else 5 - (in_parts(n1) and by_tensor_cores)) * n1 * n2 + kept),
            accesses=items * accesses,
            half_additions=items * 4 * n1 * n2 * rounded,
        ),
        transforms=items,
        launches=1,
        blocks=-(-items // warps),
        threads_per_block=32 * warps,
        shared_bytes_per_block=4 * words + warps * buffers,
        registers_per_thread=(
            (TURNED_GATED_REGISTERS if gated else TURNED_REGISTERS)[plan.factors]
            if right_angle
            else (GATED_REGISTERS if gated else REGISTERS)[plan.n]
        ),
        workers_per_block=warps,
        fill_bytes_per_block=4 * words + warps * 4 * plan.n,  # each warp starts with a spectrum
        barriers_per_transform=0.0,
        exact=True,
        source="kernel_counts: fused order 2",
    )


def _block_names(plan: Plan, gated: bool, capacity_bytes: float) -> list[str]:
    """The kernel's name in the table of resources, and that of a plain pair of its factors, which is alike."""
    from kernels_numba import block_spec, fused_block

    room = int(min(capacity_bytes, block_spec.LARGEST_SHARED_BYTES))
    own = fused_block.make_spec(plan, "fp16", pregate=gated, postgate=gated, shared_limit=room)
    plain = plan if plan.packing == "right-angle" else Plan(plan.points, plan.factors)
    alike = fused_block.make_spec(plain, "fp16")
    return [own.name, alike.name]


def _block(
    plan: Plan, batch: int, channels: int, dtype: str, gated: bool, capacity_bytes: float
) -> Counts | None:
    factors, half, right_angle = plan.factors, plan.packing == "half", plan.packing == "right-angle"
    lean = right_angle and plan.factors in block_counts.LEAN
    by_tensor_cores = right_angle and dtype == "fp16"
    if right_angle:  # the k1 of both sequences
        factors = (2 * factors[0], *factors[1:])
    n, (n1, n2, n3) = prod(factors), factors
    rows_in, rows_out = rows(plan)
    how = {"half": half, "right_angle": right_angle, "pregate": gated, "postgate": gated}
    shape = block_counts.block_shape(factors, rows_in, capacity_bytes=capacity_bytes, **how)
    if shape is None:
        return None
    items = channels * (batch if half else (batch + 1) // 2)
    fold, q = block_counts.fold_of(n1), n2 * n3
    found = block_counts.totals(
        n1,
        n2,
        n3,
        rows_in,
        rows_out,
        batch=batch,
        channels=channels,
        length=plan.signal or plan.n,
        blocks=0,
        warps=shape.warps,
        tables_shared=shape.tables_shared,
        together=q <= block_counts.TOGETHER_POINTS,
        lean=lean,
        rounded=by_tensor_cores or lean,
        fold=fold,
        **how,
    )
    sequences = _sequences(found)
    tables = 0 if shape.tables_shared else found["read_tables"] // items
    arrays = 2 if gated else 1
    staged = 4 * q // fold * rows_in * arrays
    kept = n * rows_out // (fold * n1)
    # 16 bytes a lane, but 8 where rows of a pair are read and where two inner results are written.
    wide = found["shared_read_bytes"] // items + 8 * n + tables + 4 * kept * arrays
    narrow = staged + 4 * n
    accesses = wide / 512 + narrow / 256
    if (
        half
    ):  # rows of 16 bytes; a second spectrum; mirrors' offsets, and 12 Q bytes by single words, not four
        accesses += (4 * n - 4 * q - staged) / 512 + 12 * q / 128
    constants = 4 * block_counts.factor_words(n1, n2, n3, rows_in, fold=fold, right_angle=right_angle)
    stack = local_memory.stack_bytes(*_block_names(plan, gated, capacity_bytes))
    room = REGISTERS_PER_SM // (32 * shape.warps * shape.blocks_per_sm) // 8 * 8
    if not gated:
        room = min(room, FEWER_REGISTERS.get((n1, n2, n3), room))
    return Counts(
        device_read_bytes=sequences + found["read_spectrum"] // items * channels,
        device_write_bytes=found["written_y"],
        mma_flops=MMA_FLOPS * found["mma_m16n8k16"],
        half_flops=found["half_flops"],
        fp32_flops=found["fp32_flops"],
        shared_bytes=found["shared_read_bytes"] + found["shared_written_bytes"],
        l2_bytes=sequences + found["written_y"] + found["read_spectrum"] + found["read_tables"],
        warp_instructions=instructions(
            products=found["mma_m16n8k16"],
            fp32_flops=found["fp32_flops"],
            half_flops=found["half_flops"],
            words=items * ((3 if by_tensor_cores else 8) * n + kept),
            accesses=items * accesses,
            half_additions=items * 8 * n * (by_tensor_cores or lean),
        ),
        transforms=items,
        launches=1,
        blocks=items,
        threads_per_block=32 * shape.warps,
        shared_bytes_per_block=shape.shared_bytes,
        registers_per_thread=min(255, room),
        workers_per_block=1,
        fill_bytes_per_block=constants + (8 * n if shape.tables_shared else 0),
        barriers_per_transform=3.0,
        stack_bytes_per_thread=stack,
        local_bytes=stack * items * q // (fold * block_counts.STRIP) * 32,
        exact=True,
        source=f"kernel_counts: fused order 3, {plan.packing}",
    )
