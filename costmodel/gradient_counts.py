"""Exact counts of the kernels that sum a filter's gradient over the batch, as closed forms.

Plain arithmetic, as `kernel_counts.totals` is for the convolution: given integers they return integers, given sympy
symbols expressions; a property test holds them equal to the counters of the kernels' CPU bodies.

Symbols: B sequences, H channels, L samples; N points; ``rows_in`` live rows of the outer stage's matrix. A unit of work
is a channel, a share of its ceil(B / 2) pairs, and for order 3 one of ``parts`` parts of N1; ``units`` of them are
dealt to a grid of ``blocks`` blocks. Each pair is transformed twice in each part, its u and its dy: a *turn*. With
right-angle packing N1 counts the rows of both sequences, ``served`` = 2: they have tables and sums in common.
"""

from __future__ import annotations

from typing import Any

ROWS = 16
STRIP = 32


def totals_of_order_2(
    n1: Any,
    n2: Any,
    rows_in: Any,
    *,
    batch: Any,
    channels: Any,
    length: Any,
    units: Any,
    blocks: Any,
    in_registers: bool,
    held_by: Any = 0,
    served: int = 1,
    pregate: bool = False,
    postgate: bool = False,
    rounded: bool = False,
) -> dict[str, Any]:
    """All counters of one launch of the order-2 kernel, by name.

    ``held_by``: warps in all, if each keeps factors and twiddles in registers. ``rounded``: as in
    `block_counts.totals`, but for dy's spectrum, which sums take in float32.
    """
    n, read = n1 * n2, rows_in * n2
    bins = n // served
    items = channels * ((batch + 1) // 2)
    words = (n1 * rows_in + n2 * n2) // 2 + bins
    gates = int(pregate) + int(postgate)
    staged = 4 * read * items * (2 + gates)  # two sequences of u, dy and their gates
    kept = 0 if in_registers else 8 * n  # of sums in shared memory, read and written for each pair
    whole = 0 if in_registers else 8 * n * units  # cleared, and read at the end
    constants = 4 * words * (held_by or 2 * items)
    return _global(batch, channels, length, 1, pregate, postgate) | {
        "read_constants": 4 * words * blocks,
        "written_sums": 8 * bins * units,
        "shared_read_bytes": constants + staged + kept * items + whole,
        "shared_written_bytes": 4 * words * blocks + staged + kept * items + whole,
        "shared_wavefronts": (constants + staged + 2 * kept * items + 2 * whole) // 128,
        "bank_conflicts": 0,
        "mma_m16n8k16": items * 4 * (n1 // 16) * (n2 // 8) * (rows_in // 16 + n2 // 16),
        # Butterflies of two stages (right-angle packing: one), twice; conj(Z) W.
        "fp32_flops": items * ((2 if rounded else 4 * (3 - served)) * n + 8 * n),
        "half_flops": items * ((14 if rounded else 12) * n + 2 * read * gates),
        "barriers": blocks,
    }


def totals_of_order_3(
    n1: Any,
    n2: Any,
    n3: Any,
    rows_in: Any,
    *,
    batch: Any,
    channels: Any,
    length: Any,
    units: Any,
    blocks: Any,
    parts: Any,
    fold: int,
    sums: str,
    tables_shared: bool,
    reloaded: bool,
    served: int = 1,
    pregate: bool = False,
    postgate: bool = False,
    rounded: bool = False,
) -> dict[str, Any]:
    """All counters of one launch of the order-3 kernel; ``sums`` says where they are kept.

    ``rounded``: products of stage 2 are, before they are added up in halves.
    """
    q = n2 * n3
    slots = n1 // parts
    points, strips = slots * q, q // (STRIP * fold)
    bins = points // served
    work = channels * parts * ((batch + 1) // 2)
    gates = int(pregate) + int(postgate)
    read = rows_in * q // fold
    words = (parts * ROWS * rows_in + n2 * n2 + n3 * n3) // 2 + q
    staged = 4 * read * work * (2 + gates)
    # Of one turn: F1 for each strip, outer twiddles, and for each k1 the exchange, F2, inner twiddles and F3.
    tables = 4 * bins * (1 + reloaded)  # of a pair: of u and of dy at once, or of each
    turn = 2 * ROWS * rows_in * strips + slots * (4 * q + 2 * n2 * n2 + 4 * q + 2 * n3 * n3)
    shared_reads = 2 * turn + (tables if tables_shared else 0) + 4 * points  # and Z
    exchanged = 2 * 4 * points + 4 * points  # both exchanges, and Z
    kept = 8 * points if sums == "shared" else 0
    whole = kept // served * units
    by_cache = {"global": 8, "added": 8, "half": 4}.get(sums, 0) * points * work
    read_shared = work * (shared_reads + kept) + staged + whole
    stored = work * (exchanged + kept) + whole
    loaded = 4 * words + (tables if tables_shared else 0)
    inner = 2 * (n2 // 16) * (n3 // 8) * (n2 // 16 + n3 // 16)
    return _global(batch, channels, length, parts, pregate, postgate) | {
        "read_constants": 4 * words * blocks,
        "read_tables": tables * (blocks if tables_shared else work),
        "read_sums": 0 if sums == "added" else by_cache,
        "written_sums": 8 * bins * units + by_cache,
        "shared_read_bytes": read_shared,
        "shared_written_bytes": blocks * loaded + staged + stored,
        "shared_wavefronts": (read_shared + stored) // 128,
        "bank_conflicts": 0,
        "mma_m16n8k16": work * 2 * (strips * 8 * (ROWS // 16) * (rows_in // 16) + slots * inner),
        # Butterflies of three stages (right-angle packing: two), twice; conj(Z) W.
        "fp32_flops": work * ((4 if rounded else 4 * (4 - served)) * points + 8 * points),
        "half_flops": work * ((28 if rounded else 24) * points + 2 * read * gates),
        "barriers": blocks + 2 * work,
    }


def of_spec(spec: Any, *, blocks: Any, **shape: Any) -> dict[str, Any]:
    """All counters of one launch of a kernel of half precision, by its spec (`kernels_numba.gradient_families`)."""
    shape["rounded"] = spec.rounded
    if hasattr(spec, "n3"):
        names = ("parts", "fold", "sums", "tables_shared", "reloaded", "served")
        kept = {name: getattr(spec, name) for name in names}
        return totals_of_order_3(spec.n1, spec.n2, spec.n3, spec.rows_in, blocks=blocks, **kept, **shape)
    held = blocks * spec.warps if spec.held else 0
    kept = {"in_registers": spec.in_registers, "held_by": held, "served": spec.served}
    return totals_of_order_2(spec.n1, spec.n2, spec.rows_in, blocks=blocks, **kept, **shape)


def _global(
    batch: Any, channels: Any, length: Any, parts: Any, pregate: bool, postgate: bool
) -> dict[str, Any]:
    """Sequences read: every part reads all."""
    sequences = 2 * batch * channels * length * parts
    return {
        "read_u": sequences,
        "read_dy": sequences,
        "read_pregate": sequences if pregate else 0,
        "read_postgate": sequences if postgate else 0,
    }
