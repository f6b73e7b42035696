"""Exact counts of the outer stages of a long convolution, as closed forms; see kernels_numba/outer_stage.py.

A transform of N = N1 N2 points, N1 = A B rows (B = 1: one factor), in strips of ``strip`` columns. :func:`totals` is
plain arithmetic, as `kernel_counts.totals` is; a property test holds it equal to the counters of the CPU body. What the
rows' fused kernel does between the two stages are its own counts, of 2 ceil(B / 2) planes in H N1 channels.

Bytes of device memory, of one pair: 2 L 2 read and 4 N written forward, 4 N read and 2 L 2 written inverse.
"""

from __future__ import annotations

from typing import Any

COMPLEX_PRODUCT = 6


def run_lengths(b: int, strip: int, *, inverse: bool) -> tuple[int, int]:
    """Columns of a run of twiddles (`kernels_numba.tile.gpu_turns`), and runs of a lane that share a row."""
    if inverse:
        return strip // 8, 1
    return 8, strip // 32


def turn_flops(points: Any, b: int, strip: int, *, inverse: bool) -> Any:
    """float32 operations of the twiddles of N points."""
    columns, shared = run_lengths(b, strip, inverse=inverse)
    runs = points // columns
    squares = columns.bit_length() - 2
    return runs * (COMPLEX_PRODUCT * (2 * columns - 1) + 2) + runs // shared * COMPLEX_PRODUCT * squares


def totals(
    a: int,
    b: int,
    n2: Any,
    *,
    strip: int,
    warps: int,
    inverse: bool,
    batch: Any,
    channels: Any,
    length: Any,
    rows_in: int | None = None,
    half_out: bool = False,
    gated: bool = False,
    scaled: bool = False,
    copied: bool = False,
) -> dict[str, Any]:
    """All counters of one stage over all groups, by name.

    ``rows_in``: of the first factor forward, the rows that can hold signal (default: all); ``half_out``: only half of
    the rows are wanted; ``gated``: with the stage's own gate; ``copied``: strips come by way of shared memory.
    """
    rows_in = a if rows_in is None else rows_in
    n1, pairs = a * b, channels * ((batch + 1) // 2)
    n, strips = n1 * n2, n2 // strip
    first, second = (b, a) if inverse and b > 1 else (a, b)
    live = first if inverse else rows_in
    single = b == 1
    sequences = 2 * batch * channels * length
    # Tensor-core instructions of a pair: two real products for each tile of eight columns.
    mma = (first // 16) * (live // 16) * (n1 // first)
    if not single:
        mma += (second // 16) ** 2 * first
    kept = n // 2 if half_out else n
    butterflies = 2 * kept if single else 2 * n + 2 * kept
    flops = butterflies + turn_flops(n, b, strip, inverse=inverse) + (0 if single else COMPLEX_PRODUCT * n)
    workers = 1 if single else warps  # of a strip
    constants = workers * strips * (2 * first * live + (0 if single else 2 * second * second))
    constants += 0 if single else strips * 32 * n1
    exchanged = 0 if single else 4 * n
    staged = 4 * live * (n1 // first) * n2 if copied else 0
    gate = "postgate" if inverse else "pregate"
    gate_flops = (2 * kept if inverse else 2 * live * (n1 // first) * n2) if gated else 0
    found = {
        "read_constants": pairs * constants,
        f"read_{gate}": sequences if gated else 0,
        "read_scales": 4 * workers * strips * pairs if scaled else 0,
        "shared_read_bytes": pairs * (exchanged + staged),
        "shared_written_bytes": pairs * (exchanged + staged),
        "shared_wavefronts": pairs * (2 * exchanged + staged) // 128,
        "bank_conflicts": 0,
        "mma_m16n8k16": pairs * 2 * mma * (n2 // 8),
        "fp32_flops": pairs * (flops + (2 * kept if scaled else 0)),
        "half_flops": pairs * gate_flops,
        "barriers": 0 if single else pairs * strips,
    }
    ends = ("read_workspace", "written_y") if inverse else ("read_u", "written_workspace")
    inner, outer = 4 * n * pairs, sequences
    return found | dict(zip(ends, (inner, outer) if inverse else (outer, inner), strict=True))
