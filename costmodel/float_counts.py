"""Exact counts of this project's fused fp32 convolution kernel.

:func:`totals` has closed forms for everything but bank conflicts, which are counted over the lanes of one block; a
property test holds all of it equal to the counters of the kernel's CPU body.

Symbols: P = r1 r2 ... rp points of a transform, held by T threads with R points each; ``together`` transforms share a
block and each takes ``turns`` of the items in order, so that a grid of ``blocks`` runs blocks x turns x together
transforms, some of them on nothing. Items are the H ceil(B / 2) pairs of sequences, or, with ``half``-length packing,
the H B sequences. Derivation: docs/kernels.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm, prod
from typing import Any

from costmodel.counts import Counts, instructions
from monarch import Plan

Node = int | None


@dataclass
class _Graph:
    """A transform as a graph of complex sums and rotations, with the operations each takes; None is zero."""

    flops: list[int] = field(default_factory=list)
    needs: list[tuple[int, ...]] = field(default_factory=list)

    def node(self, flops: int, *needs: Node) -> Node:
        live = tuple(n for n in needs if n is not None)
        if not live:
            return None
        self.flops.append(flops)
        self.needs.append(live)
        return len(self.flops) - 1

    def add(self, a: Node, b: Node) -> Node:
        return self.node(2, a, b) if a is not None and b is not None else self.node(0, a, b)

    def dft(self, x: list[Node]) -> list[Node]:
        """Factors of 4, 2 or an odd prime, in this order, first over the farthest points."""
        n = len(x)
        if n == 1:
            return x
        a = next(f for f in (4, 2, *range(3, n + 1, 2)) if n % f == 0)
        if a == n:
            return self.odd(x) if n % 2 else self.even(x)
        b = n // a
        rows = [self.dft([x[b * j + i] for j in range(a)]) for i in range(b)]
        out: list[Node] = [None] * n
        for k in range(a):
            # A rotation by no multiple of a quarter turn costs a complex product.
            turned = [self.node(6 if 4 * i * k % n else 0, rows[i][k]) for i in range(b)]
            out[k::a] = self.dft(turned)
        return out

    def even(self, x: list[Node]) -> list[Node]:
        if len(x) == 2:
            return [self.add(*x), self.add(*x)]
        (a, b), (c, d) = self.even(x[0::2]), self.even(x[1::2])
        return [self.add(a, c), self.add(b, d), self.add(a, c), self.add(b, d)]

    def odd(self, x: list[Node]) -> list[Node]:
        """Sums and differences of mirrors, and a chain of multiply-adds of each for every pair of outputs."""
        n, half = len(x), len(x) // 2
        sums = [self.add(x[j], x[n - j]) for j in range(1, half + 1)]
        differences = [self.add(x[j], x[n - j]) for j in range(1, half + 1)]
        first = x[0]
        for s in sums:
            first = self.add(first, s)
        out = [first] * n
        for k in range(1, half + 1):
            even, uneven = x[0], None
            for s, d in zip(sums, differences, strict=True):
                even = self.chain(even, s)
                uneven = self.chain(uneven, d)
            out[k], out[n - k] = self.add(even, uneven), self.add(even, uneven)
        return out

    def chain(self, total: Node, term: Node) -> Node:
        if term is None:
            return total
        return self.node(2 if total is None else 4, total, term)


def transform_flops(points: int, live: int, wanted: int) -> int:
    """Operations of a short transform whose first ``live`` points are not zero, for the first ``wanted`` outputs."""
    graph = _Graph()
    given = [graph.node(0, 0) if i < live else None for i in range(points)]
    needed = {n for n in graph.dft(given)[:wanted] if n is not None}
    total = 0
    for n in range(len(graph.flops) - 1, -1, -1):
        if n in needed:
            total += graph.flops[n]
            needed.update(graph.needs[n])
    return total


AHEAD_POINTS = 8192
"""Transforms of so many points bring their input through shared memory,"""
SPLIT_POINTS = 256
"""and twiddles of stages over so many points are products of two; as the kernel has it."""


FEWER_REGISTERS: dict[tuple[int, ...], int] = {(12, 8, 8): 96}
"""What the compiler takes where that is less than blocks must leave room for."""


def twiddles(factors: tuple[int, ...], threads: int, held: int) -> tuple[int, int]:
    """(accesses of 16 bytes a lane, complex products a lane) of the twiddles of one transform, in one direction."""
    quads = products = 0
    for i, r in enumerate(factors[:-1]):
        s, g = prod(factors[i + 1 :]), held // r
        columns = len({threads * c % s for c in range(g)})
        if r * s >= SPLIT_POINTS and r % 4 == 0:
            quads += columns * -(-(3 + r // 4 - 1) // 2)
            products += g * (3 * (r // 4) + r - 4)
        else:
            quads += columns * r // 2
            products += g * (r - 1)
    return quads, products


def totals(
    factors: tuple[int, ...],
    rows_in: int,
    rows_out: int,
    *,
    half: bool,
    together: int,
    padding: tuple[int, int, int],
    batch: int,
    channels: int,
    length: int,
    guarded: bool,
    blocks: int,
    turns: int,
    pregate: bool = False,
    postgate: bool = False,
    complex_data: bool = False,
) -> dict[str, int]:
    """Totals of one launch, under the names of the CPU body's counters; zero counts are included.

    Args:
        factors: r1, ..., rp.
        rows_in: points of a first-stage butterfly that can hold signal,
        rows_out: and that are wanted.
        half: one sequence by half-length packing.
        together: transforms in a block.
        padding: (shift, factor, room): point x lies at x + factor (x >> shift), a transform takes ``room`` points.
        batch: B.
        channels: H.
        length: L.
        guarded: accesses are masked one by one.
        blocks: the grid.
        turns: items of each transform of a block.
        pregate: a gate on the input,
        postgate: and on the output.
        complex_data: a pair is one complex sequence: gates multiply points, not numbers.
    """
    points, held = prod(factors), lcm(*factors)
    threads = points // held
    steps = [prod(factors[i + 1 :]) for i in range(len(factors))]
    groups = [held // r for r in factors]
    lanes = blocks * turns * together * threads  # threads at work, over all turns
    sequences = 1 if half else 2

    quads, products = twiddles(factors, threads, held)
    flops = 2 * 6 * products + (14 if half else 6) * held
    for r, g in zip(factors[1:], groups[1:], strict=True):
        flops += 2 * g * transform_flops(r, r, r)
    flops += groups[0] * transform_flops(factors[0], rows_in, factors[0])
    flops += groups[0] * transform_flops(factors[0], factors[0], rows_out)
    flops += (6 if complex_data else 2) * groups[0] * (rows_in * pregate + rows_out * postgate)

    exchanges = 2 * (len(factors) - 1) + half
    brought = 8 * groups[0] * rows_in * (points >= AHEAD_POINTS)  # through the lane's own places
    moved = 8 * held * exchanges
    within_warp = threads <= 32 and 32 % threads == 0
    conflicts = blocks * turns * _conflicts(factors, threads, groups, steps, half, together, padding, rows_in)
    samples = batch * channels * length
    # Without masks a transform without an item reads the first one's input again.
    read = 4 * (samples if guarded else blocks * turns * together * sequences * length)
    return {
        "read_u": read,
        "read_pregate": read if pregate else 0,
        "read_postgate": read if postgate else 0,
        "read_spectrum": lanes * 16 * (held if half else held // 2),
        "read_constants": lanes * 2 * 16 * quads,
        "read_tables": blocks * together * threads * 8 * groups[-1] if half else 0,
        "read_scales": 0,
        "written_y": 4 * samples,
        "shared_read_bytes": lanes * (moved + brought),
        "shared_written_bytes": lanes * (moved + brought),
        "shared_wavefronts": lanes * (2 * moved + brought) // 128 + conflicts,
        "bank_conflicts": conflicts,
        "fp32_flops": lanes * flops,
        "mma_m16n8k16": 0,
        "half_flops": 0,
        "transposes": 0,
        "barriers": 0 if within_warp else blocks * turns * (2 * (len(factors) - 1) + 2 * half),
    }


def _kernel() -> tuple[Any, Any]:
    """The kernel's shapes; loaded at first use, since tensor-core predictions need none of it."""
    from kernels_numba import float_spec, fused_float

    return float_spec, fused_float


def factor_lists(order: int, packing: str) -> list[tuple[int, ...]]:
    """The factor lists of an order that the kernel runs."""
    _, kernel = _kernel()
    return [f for f in kernel.FACTORS if len(f) == order] if packing in kernel.PACKINGS else []


def kernel_counts(
    plan: Plan, batch: int, channels: int, *, gated: bool, capacity_bytes: float
) -> Counts | None:
    """Counts of one call, or None where the block's points do not fit into its shared memory.

    Blocks are of one turn each; twiddles come through the first-level caches, at no cost.
    """
    shapes, _ = _kernel()
    spec = shapes.make_spec(plan, "fp32", pregate=gated, postgate=gated)
    if spec.shared_bytes > capacity_bytes:
        return None
    single = plan.packing == "half"
    if plan.packing == "complex":  # a pair of real sequences for every complex one
        batch *= 2
    items = channels * (batch if single else -(-batch // 2))
    together = spec.shape.together
    found = totals(
        plan.factors,
        spec.rows_in,
        spec.rows_out,
        half=single,
        together=together,
        padding=spec.shape.padding,
        batch=batch,
        channels=channels,
        length=plan.signal or plan.n,
        guarded=spec.guarded,
        blocks=-(-items // together),
        turns=1,
        pregate=gated,
        postgate=gated,
        complex_data=plan.packing == "complex",
    )
    return counts_of(
        plan,
        spec,
        found,
        items,
        channels,
        registers=FEWER_REGISTERS.get(plan.factors, 80 if spec.shape.held <= 16 else 128),
    )


def counts_of(
    plan: Plan, spec: Any, found: dict[str, int], items: int, channels: int, *, registers: int
) -> Counts:
    """The counts of a call that runs a kernel on ``items``, from its totals."""
    single, together, points = plan.packing == "half", spec.shape.together, plan.points
    sequences = found["read_u"] + found["read_pregate"] + found["read_postgate"]
    shared = found["shared_read_bytes"] + found["shared_written_bytes"]
    read = found["read_spectrum"] + found["read_constants"] + found["read_tables"]
    # A lane reaches 8 bytes of shared memory at once, one number of a sequence, 16 bytes of tables.
    accesses = shared / 256 + (sequences + found["written_y"]) / 128 + read / 512
    return Counts(
        device_read_bytes=sequences + 8 * points * channels * (2 if single else 1),
        device_write_bytes=found["written_y"],
        mma_flops=0,
        half_flops=0,
        fp32_flops=found["fp32_flops"],
        shared_bytes=128 * found["shared_wavefronts"],  # conflicts included
        l2_bytes=sequences + found["written_y"] + found["read_spectrum"],
        warp_instructions=instructions(
            products=0, fp32_flops=found["fp32_flops"], half_flops=0, words=0, accesses=accesses
        ),
        transforms=items,
        launches=1,
        blocks=-(-items // together),
        threads_per_block=32 * spec.warps,
        shared_bytes_per_block=spec.shared_bytes,
        registers_per_thread=registers,
        workers_per_block=together,
        fill_bytes_per_block=0,
        barriers_per_transform=found["barriers"] / items,
        exact=True,
        source="kernel_counts: fused fp32",
        arithmetic="fp32",
        in_step=True,
    )


def _conflicts(
    factors: tuple[int, ...],
    threads: int,
    groups: list[int],
    steps: list[int],
    half: bool,
    together: int,
    padding: tuple[int, int, int],
    rows_in: int,
) -> int:
    """Passes beyond the fewest for one turn of a block: half a warp wants 16 places that differ modulo 16."""
    shift, factor, room = padding

    def extra(places: list[int]) -> int:
        total = 0
        for start in range(0, len(places), 16):
            banks: dict[int, set[int]] = {}
            for place in places[start : start + 16]:
                banks.setdefault(place % 16, set()).add(place)
            total += max(map(len, banks.values())) - 1
        return total

    def stage(i: int) -> int:
        r, s = factors[i], steps[i]
        firsts = [j // s * r * s + j % s for j in range(threads)]
        return extra([slot * room + x + factor * (x >> shift) for slot in range(together) for x in firsts])

    # Every exchange writes in the order of one stage and reads in that of its neighbour, both ways.
    last = len(factors) - 1
    inner = [stage(i) * factors[i] * groups[i] for i in range(last + 1)]
    total = 2 * sum(inner[:-1]) + 2 * sum(inner[1:])
    if prod(factors) >= AHEAD_POINTS:
        total += inner[0] * rows_in // factors[0]
    if not half:
        return total
    total += inner[-1]  # written once more, for the mirrors
    r = factors[-1]
    for c in range(groups[-1]):
        for q in range(r):
            places = []
            for slot in range(together):
                for j in range(threads):
                    x = mirror(factors, (j + threads * c) * r + q)
                    places.append(slot * room + x + factor * (x >> shift))
            total += extra(places)
    return total


def mirror(factors: tuple[int, ...], place: int) -> int:
    """Where the frequency -k is, if k is at ``place``: digits of k lie most significant last."""
    digits: list[int] = []
    rest = place
    for r in reversed(factors):
        rest, digit = divmod(rest, r)
        digits.insert(0, digit)
    found, borrowed = [], False
    for r, digit in zip(factors, digits, strict=True):
        found.append((-digit - borrowed) % r)
        borrowed = borrowed or digit > 0
    out = 0
    for r, digit in zip(factors, found, strict=True):
        out = out * r + digit
    return out
