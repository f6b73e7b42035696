"""Exact counts of the fp32 outer stages of a long convolution, as closed forms; see kernels_numba/outer_float.py.

A transform of N = N1 N2 points, N1 = A B rows (B = 1: one factor). :func:`totals` is plain arithmetic; a property test
holds it equal to the counters of the CPU body. Bytes of device memory, of a pair of fp32 sequences: 8 L read and 8 N
written forward, 8 N read and 8 L written inverse. What the rows' kernel does between is `float_counts`, of a complex
sequence for every pair, in H N1 channels.
"""

from __future__ import annotations

from typing import Any

from costmodel.float_counts import transform_flops

COMPLEX_PRODUCT = 6


def totals(
    a: int,
    b: int,
    n2: int,
    *,
    inverse: bool,
    live: int,
    strip: int,
    batch: int,
    channels: int,
    length: int,
    item_bytes: int = 4,
    gated: bool = False,
) -> dict[str, Any]:
    """All counters of one stage over all groups, by name.

    ``live``: of the factor A, points that can hold signal or are wanted; ``item_bytes``: of a sample; ``gated``: with
    the stage's own gate.
    """
    n1, pairs = a * b, channels * ((batch + 1) // 2)
    n, single = n1 * n2, b == 1
    factor, lines = (
        (a, 1) if single else (b, a)
    )  # of the last factor, and how often a column is transformed by it
    given, wanted = (a, live) if inverse else (live, a)
    flops = b * n2 * transform_flops(a, given, wanted)
    flops += 0 if single else a * n2 * transform_flops(b, b, b)
    flops += COMPLEX_PRODUCT * n * (2 if single else 3)
    tables = lines * n2 * (4 * factor + 16) + (0 if single else 8 * n)
    exchanged = 0 if single else 8 * n
    sequences = item_bytes * batch * channels * length
    gate = "postgate" if inverse else "pregate"
    found = {
        "read_constants": pairs * tables,
        "read_tables": 0,
        f"read_{gate}": sequences if gated else 0,
        "shared_read_bytes": pairs * exchanged,
        "shared_written_bytes": pairs * exchanged,
        "shared_wavefronts": pairs * 2 * exchanged // 128,
        "bank_conflicts": 0,
        "mma_m16n8k16": 0,
        "half_flops": 0,
        "fp32_flops": pairs * (flops + (2 * live * b * n2 if gated else 0)),
        "barriers": 0 if single else pairs * (n2 // strip),
    }
    ends = ("read_workspace", "written_y") if inverse else ("read_u", "written_workspace")
    inner = 8 * n * pairs
    return found | dict(zip(ends, (inner, sequences) if inverse else (sequences, inner), strict=True))
