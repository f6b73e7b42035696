"""Exact counts of the fused convolution kernel of any factors, as closed forms.

:func:`totals` is plain arithmetic, as `kernel_counts.totals` is for order 2: given integers it returns integers,
given sympy symbols it returns expressions; a property test holds it equal to the counters of the kernel's CPU body.

Symbols: B sequences, H channels, L samples; P = N1 .. Np points, p = 2 or 3, and P' with N1 filled up to tiles of 8;
``rows_in`` and ``rows_out``, the live n1 of the input and the output; a grid of ``blocks`` blocks of ``warps`` warps.
Items are the H ceil(B / 2) pairs of sequences of P samples, with half-length packing the H B sequences of 2 P samples,
of complex data those of P samples. Every stage reads its points from shared memory and writes them there, 4 bytes each,
but for the input and the output. Derivation of each line: docs/kernels.md.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from costmodel import local_memory
from costmodel.counts import GATED, MMA_FLOPS, Counts, instructions
from monarch import Plan


def _kernel() -> Any:
    """The kernel's shapes; loaded at first use."""
    from kernels_numba import any_spec

    return any_spec


@lru_cache(maxsize=1024)
def shapes(points: int, order: int, packing: str) -> list[tuple[int, ...]]:
    """The factor lists of ``points`` complex points and an order that the kernel runs with a packing."""
    return [f for f in _kernel().PACKINGS.get(packing, ()) if len(f) == order and prod(f) == points]


def tiles(factor: Any) -> Any:
    """Tiles of 8 points."""
    return (factor + 7) // 8


def quads(outputs: Any, contracted: Any) -> Any:
    """Bytes of a factor that a product of so many tiles of 8 points takes; of contraction tiles two at a time."""
    return 1024 * outputs * ((contracted + 1) // 2)


def stages(factors: tuple[Any, ...], rows_in: Any, rows_out: Any) -> list[tuple[Any, Any, Any]]:
    """Of stages before the last: factor, strips of an item one way, and bytes of the factor a strip both ways."""
    first, *middle, _ = factors
    points, t = prod(factors), tiles(first)
    found = [(first, points // first // 16, quads(t, rows_in // 8) + quads(rows_out // 8, t))]
    return found + [(f, points // (16 * f), 2 * quads(f // 8, f // 8)) for f in middle]


def products(factors: tuple[Any, ...], rows_in: Any, rows_out: Any) -> Any:
    """Tensor-core instructions (16 x 8 x 16) of one item: real products with factors of real and imaginary parts."""
    first = tiles(factors[0]) * (rows_in + rows_out) * prod(factors[1:]) // 64
    return first + prod(factors) * sum(factors[1:]) // 256


def totals(
    factors: tuple[Any, ...],
    rows_in: Any,
    rows_out: Any,
    *,
    batch: Any,
    channels: Any,
    numbers: Any,
    blocks: Any,
    warps: Any,
    cached: tuple[int, ...] = (),
    held: int,
    held_last: int,
    one_table: tuple[bool, bool] = (False, False),
    padding: int = 4,
    packing: str = "pair",
    item_bytes: int = 2,
    pregate: bool = False,
    postgate: bool = False,
    scaled: bool = False,
) -> dict[str, Any]:
    """All counters of one launch, by name.

    ``numbers``: L, of complex sequences 2 L, of ``item_bytes`` each. ``cached``, ``held``, ``held_last``,
    ``one_table``, ``padding``: which factors are not in shared memory, up to which size they stay in registers, whether
    twiddles of the middle stage forward and of units do, and words after a row; see `any_spec`.
    """
    order, points, half, complex_data = len(factors), prod(factors), packing == "half", packing == "complex"
    first, last = factors[0], factors[-1]
    q = points // first
    filled = 8 * tiles(first) * q  # P'
    items = channels * ((batch + 1) // 2 if packing == "pair" else batch)
    units = points // (16 * last)

    # Bytes of a stage's factor, read for each strip, or once by each warp for all of an item's; by where it lies.
    in_shared, through_caches, words = 0, 0, 0
    for i, (f, count, each) in enumerate(stages(factors, rows_in, rows_out)):
        if f in cached:
            through_caches += items * count * each
        elif f <= held:
            in_shared += warps * (2 * items if i else items + blocks) * quads(tiles(f), tiles(f))
        else:
            in_shared += items * count * each
    if -last in cached:
        through_caches += items * units * 16 * last * last
    elif last <= held_last:
        in_shared += items * warps * 8 * last * last
    else:
        in_shared += items * units * 16 * last * last
    for f in (*dict.fromkeys(factors[:-1]), -last):
        words += 0 if f in cached else quads(tiles(abs(f)), tiles(abs(f))) // 4
    between = 4 * filled + 4 * (2 * order - 3) * points  # one way
    # Twiddles: as many, but where a warp keeps those of all its strips, or units.
    turned = between
    for stays, of_table in zip(one_table, (factors[-2] * last, 16 * last), strict=True):
        turned -= (4 * points - 4 * of_table * warps) if stays else 0
    exchanged = between + (4 * points if half else 0)
    conflicts = 3 * last // 2 if half else 0
    if not padding:  # rows begin at one bank: two lie on it where lanes access 16 bytes, four where 8
        conflicts += points // 16 + 6 * points // 16
    shared_read = in_shared + items * exchanged
    sequences = item_bytes * batch * channels * numbers
    live, kept = q * rows_in, q * rows_out
    gates = (live if pregate else 0) + (kept if postgate else 0)
    return {
        "read_u": sequences,
        "read_pregate": sequences if pregate else 0,
        "read_postgate": sequences if postgate else 0,
        "read_spectrum": (8 if half else 4) * points * items,
        "read_scales": 4 * warps * (items + blocks) if scaled else 0,
        "read_constants": 4 * words * blocks + through_caches,
        "read_tables": items * (turned + (1024 * units if half else 0)),
        "written_y": sequences,
        "shared_read_bytes": shared_read,
        "shared_written_bytes": 4 * words * blocks + items * exchanged,
        "shared_wavefronts": (shared_read + items * exchanged) // 128 + items * conflicts,
        "bank_conflicts": items * conflicts,
        "mma_m16n8k16": items * products(factors, rows_in, rows_out),
        "fp32_flops": items
        * ((14 * points if half else 0) + (2 * kept if scaled else 0) + (6 * gates if complex_data else 0)),
        "half_flops": items
        * (6 * between // 4 + (0 if half else 6 * points) + (0 if complex_data else 2 * gates)),
        "transposes": 0,
        "barriers": blocks + 2 * (order - 1) * items,
    }


STRIP_INSTRUCTIONS = 35
"""Warp instructions of a strip that no count has: addresses, conditions of its rows, the loop. As the machine code of
24, 17 and 36 x 16 x 16 has them 11 to 95, and 35 as times of 27 cases say."""
READ_AGAIN = 0.7
"""What a byte of a factor costs that each strip reads anew from shared memory, in others: 0.7 is what times of the same
cases say. Of an odd number of tiles the last is read alone, not with another (0.8 of 36 points); the rest is open."""


def strips(spec: Any) -> int:
    """How many strips an item has: those of the stages, both ways, and the units of the last factor."""
    last = spec.factors[-1]
    return 2 * sum(n for _, n, _ in _stages_of(spec)) + prod(spec.factors) // (16 * last)


def read_again(spec: Any) -> int:
    """Bytes of factors that the strips of an item read anew from shared memory: too many for a warp's registers."""
    held = (*spec.cached, *range(_kernel().HELD + 1))
    return sum(n * each for f, n, each in _stages_of(spec) if f not in held)


def _stages_of(spec: Any) -> list[tuple[int, int, int]]:
    return stages(spec.factors, spec.rows_in, spec.rows_out)


def _alike(spec: Any) -> list[str]:
    """A kernel whose stack stands for this one's: with the same last factor, whose products hold the most registers.

    With half-length packing these go through shared memory, and only the largest factor needs more than there are.
    """
    last = spec.factors[-1]
    alike = Plan(16 * last, (16, last))
    if spec.packing == "half":
        alike = Plan(2 * 256 * last, (16, 16, last), packing="half")
    return [_kernel().make_spec(alike, "fp16").name]


def kernel_counts(
    plan: Plan, batch: int, channels: int, *, variant: str, capacity_bytes: float
) -> Counts | None:
    """Counts of one call of the fused kernel, or None where its points do not fit."""
    kernel, gated = _kernel(), variant in GATED
    spec = kernel.make_spec(plan, "fp16", pregate=gated, postgate=gated, shared_limit=int(capacity_bytes))
    if spec.shared_bytes > capacity_bytes:
        return None
    order, points, single = plan.order, plan.points, plan.packing != "pair"
    items = channels * (batch if single else (batch + 1) // 2)
    found = totals(
        plan.factors,
        spec.rows_in,
        spec.rows_out,
        batch=batch,
        channels=channels,
        numbers=(plan.signal or plan.n) * (2 if plan.packing == "complex" else 1),
        blocks=0,
        warps=spec.warps,
        cached=spec.cached,
        held=kernel.HELD,
        held_last=kernel.HELD_LAST,
        one_table=spec.one_table,
        padding=spec.layout.padding,
        packing=plan.packing,
        pregate=gated,
        postgate=gated,
    )
    sequences = found["read_u"] + found["read_pregate"] + found["read_postgate"]
    # All of it takes the way of shared memory, what comes from L2 once more, when it is put into the first-level cache.
    # From L2 come twiddles that each point has its own of, and factors that are not in shared memory, if that cache is
    # too small for either. The warps of an SM read a factor at about the same time: it comes once for them all.
    tables = found["read_spectrum"] + found["read_tables"]
    of_sm = capacity_bytes + local_memory.RESERVED_BYTES
    resident = int(of_sm // (spec.shared_bytes + local_memory.RESERVED_BYTES))
    resident = max(1, min(kernel.min_blocks(spec), resident))
    own = 4 * (8 * tiles(plan.factors[0]) * points // plan.factors[0] + (order - 2) * points)
    left = local_memory.cache_bytes(of_sm, spec.shared_bytes, resident)
    fetched = sequences + found["read_spectrum"] + (items * own if own > left else 0)
    if sum(4 * spec.matrices[f] for f in spec.cached) > left:
        fetched += found["read_constants"] / (spec.warps * resident)
    beyond = fetched + found["written_y"]
    cached = tables + found["read_constants"] + fetched
    stack = local_memory.stack_bytes(spec.name, *_alike(spec))
    row = points // plan.factors[0]
    arrays = 2 if gated else 1
    # Samples go by 4 bytes a lane (8 where both are of one sequence), points of strips by 8, all else by 16.
    narrow = found["shared_written_bytes"] / items - 4 * points * (2 if plan.packing == "half" else 1)
    accesses = (found["shared_read_bytes"] + found["shared_written_bytes"] + cached) / items / 512
    accesses += 2 * narrow * (1 / 256 - 1 / 512)
    accesses += arrays * 4 * row * (spec.rows_in + spec.rows_out) / (256 if single else 128)
    between = 2 * order - 1  # complex products of a point
    return Counts(
        device_read_bytes=sequences + found["read_spectrum"] // items * channels,
        device_write_bytes=found["written_y"],
        mma_flops=MMA_FLOPS * found["mma_m16n8k16"],
        half_flops=found["half_flops"],
        fp32_flops=found["fp32_flops"],
        shared_bytes=found["shared_read_bytes"]
        + found["shared_written_bytes"]
        + sequences
        + found["written_y"]
        + cached
        - (1 - READ_AGAIN) * items * read_again(spec),
        l2_bytes=beyond,
        # Results are rounded, and parts of products joined; of pairs samples are joined and results rounded too.
        warp_instructions=instructions(
            products=found["mma_m16n8k16"],
            fp32_flops=found["fp32_flops"],
            half_flops=found["half_flops"],
            words=items * points * (2 * between + 2),
            accesses=items * accesses,
        )
        + items * STRIP_INSTRUCTIONS * strips(spec),
        transforms=items,
        launches=1,
        blocks=items,
        threads_per_block=32 * spec.warps,
        shared_bytes_per_block=spec.shared_bytes,
        registers_per_thread=kernel.registers(spec),
        workers_per_block=1,
        fill_bytes_per_block=4 * spec.shared_words,
        barriers_per_transform=2.0 * (order - 1),
        exact=True,
        in_step=True,
        stack_bytes_per_thread=stack,
        local_bytes=32 * stack * items * kernel.strips(spec)[-1],
        source=f"kernel_counts: any factors, order {order}, {plan.packing}",
    )
