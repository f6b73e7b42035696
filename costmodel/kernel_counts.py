"""Exact counts of this project's fused order-2 convolution kernel, as closed forms.

:func:`totals` is plain arithmetic: given integers it returns integers, given sympy symbols it returns expressions.
A property test holds it equal to the counters of the kernel's CPU body, instruction by instruction, for every plan
the kernel supports; :func:`kernel_counts` gives the time model what it needs from them.

Symbols: B sequences, H channels, L samples; N = N1 N2 points; ``rows_in`` and ``rows_out``, the live rows of the
[N1, N2] matrix; ``halves`` elements per copy; a grid of ``blocks`` blocks of ``warps`` warps, of which each takes
``per_warp`` of the H ceil(B / 2) pairs in order. Derivation of each line: docs/kernels.md.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from costmodel.counts import GATED, Counts
from monarch import Plan

FACTORS = (16, 32)
WARPS = 4
REGISTERS = {256: 88, 512: 128, 1024: 168}
GATED_REGISTERS = 255


def rows(plan: Plan) -> tuple[int, int]:
    """Live rows of the outer stage's matrix: of the input by 16 (a product's tile), of the output all or half."""
    n1 = max(16, plan.factors[0])
    signal, wanted = plan.signal or plan.n, plan.wanted or plan.n
    whole = plan.factors[0] < 16  # two parts of the columns fill one product: its rows are all live
    live = 16 if whole else 16 * -(-signal * n1 // (16 * plan.n))
    return live, n1 // 2 if wanted <= plan.n // 2 else n1


def constant_words(n1: Any, n2: Any, rows_in: Any) -> Any:
    """32-bit words of the four DFT factors (real, half precision) and the two twiddle matrices (complex)."""
    return (n1 * rows_in + n1 * n1 + 2 * n2 * n2) // 2 + 2 * n1 * n2


def products(n1: Any, n2: Any, rows_in: Any) -> Any:
    """Tensor-core instructions (16 x 8 x 16) of one pair: two real products of the factor's size in each stage."""
    return 2 * (n1 // 16) * (n2 // 8) * (rows_in // 16 + 2 * (n2 // 16) + n1 // 16)


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
) -> dict[str, Any]:
    """All counters of one launch, by name; ``loads`` is :func:`spectrum_loads`."""
    n = n1 * n2
    items = channels * ((batch + 1) // 2)
    words = constant_words(n1, n2, rows_in)
    read, kept = rows_in * n2, rows_out * n2
    gate_room = kept if isinstance(kept, int) and kept >= 32 * halves else _at_least(kept, 32 * halves)
    arrays_in = 4 if pregate else 2
    sequences = 2 * batch * channels * length
    shared_read = items * (4 * words + 2 * read * arrays_in + (4 * kept if postgate else 0))
    staged = items * (2 * read * arrays_in + (4 * gate_room if postgate else 0))
    butterflies = 3 * 2 * n + (n if rows_out is not n1 and rows_out != n1 else 2 * n)
    gates = (2 * read if pregate else 0) + (2 * kept if postgate else 0)
    return {
        "read_u": sequences,
        "read_pregate": sequences if pregate else 0,
        "read_postgate": sequences if postgate else 0,
        "read_spectrum": 4 * n * loads,
        "read_scales": 4 * loads if scaled else 0,
        "read_constants": 4 * words * blocks,
        "written_y": sequences,
        "shared_read_bytes": shared_read,
        "shared_written_bytes": 4 * words * blocks + staged,
        "shared_wavefronts": shared_read // 128,
        "bank_conflicts": 0,
        "mma_m16n8k16": items * products(n1, n2, rows_in),
        "fp32_flops": items * (butterflies + (2 * kept if scaled else 0)),
        "half_flops": items * (18 * n + gates),
        "transposes": items * n // 32,
        "barriers": blocks,
    }


def _at_least(value: Any, floor: int) -> Any:
    if isinstance(value, int):
        return max(value, floor)
    import sympy

    return sympy.Max(value, floor)


def kernel_counts(plan: Plan, batch: int, channels: int, *, dtype: str, variant: str) -> Counts | None:
    """Counts of one call of the fused kernel, or None when it cannot run the plan."""
    if plan.packing != "pair" or plan.order != 2 or any(f not in FACTORS for f in plan.factors):
        return None
    n1, n2 = plan.factors
    rows_in, rows_out = rows(plan)
    length = plan.signal or plan.n
    gated = variant in GATED
    items = channels * ((batch + 1) // 2)
    blocks = -(-items // WARPS)
    found = totals(
        n1,
        n2,
        rows_in,
        rows_out,
        batch=batch,
        channels=channels,
        length=length,
        blocks=blocks,
        loads=channels,
        pregate=gated,
        postgate=gated,
    )
    buffers = WARPS * 4 * (rows_in * n2 * (4 if gated else 2) + (rows_out * n2 if gated else 0))
    inputs = found["read_u"] + found["read_pregate"] + found["read_postgate"] + found["read_spectrum"]
    return Counts(
        device_read_bytes=inputs,
        device_write_bytes=found["written_y"],
        mma_flops=4096 * found["mma_m16n8k16"],
        half_flops=found["half_flops"],
        fp32_flops=found["fp32_flops"],
        shared_bytes=found["shared_read_bytes"] + found["shared_written_bytes"],
        transforms=items,
        launches=1,
        blocks=blocks,
        threads_per_block=32 * WARPS,
        shared_bytes_per_block=4 * constant_words(n1, n2, rows_in) + buffers,
        registers_per_thread=GATED_REGISTERS if gated else REGISTERS[plan.n],
        barriers_per_transform=0.0,
        exact=True,
        source="kernel_counts: fused order 2",
    )
