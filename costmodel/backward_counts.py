"""Exact counts of the kernels that make all gradients of a convolution at once, as closed forms.

Plain arithmetic, as `kernel_counts.totals` is for the convolution: given integers it returns integers, given sympy
symbols expressions; a property test holds it equal to the counters of the kernels' CPU bodies. Symbols are those of
`kernel_counts` (order 2) and `block_counts` (order 3), units those of `gradient_counts`; with right-angle packing N1
counts the rows of both sequences. Of a pair u and dy are transformed, and one spectrum brought back, or two if there is
a postgate.
"""

from __future__ import annotations

from typing import Any

from costmodel import block_counts, kernel_counts


def of_spec(spec: Any, **shape: Any) -> dict[str, Any]:
    """All counters of one launch, by name, of a kernel's spec (`kernels_numba.backward_pass`).

    ``shape``: batch, channels, length, units and blocks.
    """
    names = ["rows_in", "rows_out", "pregate", "postgate", "right_angle"]
    names += ["fold"] if hasattr(spec, "n3") else ["in_registers", "halves"]
    own = {name: getattr(spec, name) for name in names} | shape | {"rounded": spec.rounded}
    if hasattr(spec, "n3"):
        return totals_of_order_3(spec.n1, spec.n2, spec.n3, **own)
    return totals_of_order_2(spec.n1, spec.n2, **own)


def totals_of_order_2(
    n1: Any,
    n2: Any,
    rows_in: Any,
    rows_out: Any,
    *,
    batch: Any,
    channels: Any,
    length: Any,
    units: Any,
    blocks: Any,
    in_registers: bool,
    halves: int = 8,
    pregate: bool = False,
    postgate: bool = False,
    right_angle: bool = False,
    rounded: bool = False,
) -> dict[str, Any]:
    """All counters of one launch of the order-2 kernel; ``rounded`` as in `block_counts.totals`."""
    n, bins = n1 * n2, n1 * n2 // (2 if right_angle else 1)
    items, gates, back = channels * ((batch + 1) // 2), int(pregate) + int(postgate), 1 + int(postgate)
    real_first = kernel_counts.in_parts(n1) and not right_angle
    real_last = kernel_counts.is_lower(n1, rows_out) and not right_angle
    last = block_counts.last_rows(n1, right_angle=right_angle)
    to_bins = (n1 * rows_in * (4 if real_first else 1) + n2 * n2) // 2 + bins  # words of constants
    to_samples = (n2 * n2 + n1 * last * (2 if real_last else 1)) // 2 + bins
    read, kept = rows_in * n2, rows_out * n2
    staged = 4 * kernel_counts.copied(read, halves) * (2 + gates)
    sums = 0 if in_registers else 8 * n  # read and written for each pair,
    whole = 0 if in_registers else 8 * n * units  # cleared, and read at the end
    loads = items * (4 * (2 * to_bins + back * to_samples) + 4 * read * (2 + gates) + sums) + whole
    first = rows_in // (8 if real_first else 16)
    tiles = 2 * (n1 // 16) * (n2 // 8)
    products = tiles * (2 * (first + n2 // 16) + back * (n2 // 16 + last // 16))
    butterflies = 2 * n * (2 * (2 - real_first) + back * (2 - real_last))
    if right_angle:
        butterflies = 2 * n * (2 + back)
    in_halves = 2 * n * (1 + back) if rounded else 0  # not those of dy's spectrum, which sums take in float32
    return _global(batch, channels, length, pregate, postgate) | {
        "read_adjoint": 4 * bins * items,
        "read_adjoint_scales": 4 * items,
        "read_spectrum": 4 * bins * items if postgate else 0,
        "read_spectrum_scales": 4 * items if postgate else 0,
        "read_constants": 4 * (to_bins + to_samples) * blocks,
        "written_sums": 8 * bins * units,
        "shared_read_bytes": loads,
        "shared_written_bytes": 4 * (to_bins + to_samples) * blocks + items * (staged + sums) + whole,
        "shared_wavefronts": (loads + items * sums + whole) // 128,
        "bank_conflicts": 0,
        "mma_m16n8k16": items * products,
        "fp32_flops": items * (butterflies - in_halves + 8 * n + 2 * kept * back),
        "half_flops": items
        * (
            in_halves
            + 12 * n
            + 12 * n * back
            + 2 * read * gates
            + 2 * kept * (2 * int(pregate) + int(postgate))
        ),
        "transposes": items * n // 32 * back,
        "barriers": blocks,
    }


def totals_of_order_3(
    n1: Any,
    n2: Any,
    n3: Any,
    rows_in: Any,
    rows_out: Any,
    *,
    batch: Any,
    channels: Any,
    length: Any,
    units: Any,
    blocks: Any,
    fold: int = 1,
    pregate: bool = False,
    postgate: bool = False,
    right_angle: bool = False,
    rounded: bool = False,
) -> dict[str, Any]:
    """All counters of one launch of the order-3 kernel; ``rounded`` as in `block_counts.totals`."""
    q = n2 * n3
    n, rows, strips = n1 * q, fold * n1, q // (block_counts.STRIP * fold)
    bins = n // (2 if right_angle else 1)
    items, gates, back = channels * ((batch + 1) // 2), int(pregate) + int(postgate), 1 + int(postgate)
    last = block_counts.last_rows(n1, fold=fold, right_angle=right_angle)
    words = block_counts.factor_words(n1, n2, n3, rows_in, fold=fold, right_angle=right_angle)
    staged, rows_kept = 128 * strips * rows_in * (2 + gates), 64 * strips * rows_out
    constants = 2 * rows * strips * (2 * rows_in + last) + n1 * (2 + back) * (
        2 * n2 * n2 + 2 * n3 * n3 + 4 * q
    )
    exchanged = 4 * n * (2 + back)
    loads = items * (staged + constants + exchanged)
    inner = 2 * (n2 // 16) * (n3 // 8) * (n2 // 16 + n3 // 16)
    outer = strips * 8 * (rows // 16)
    additions = 12 * n + back * (4 * n + (2 * n if rows_out == rows else n))
    if right_angle:
        additions = 8 * n + 4 * n * back
    in_halves = 6 * n + 4 * n * back if rounded else 0
    return _global(batch, channels, length, pregate, postgate) | {
        "read_adjoint": 4 * bins * items,
        "read_adjoint_scales": 4 * strips * items,
        "read_spectrum": 4 * bins * items if postgate else 0,
        "read_spectrum_scales": 4 * strips * items if postgate else 0,
        "read_constants": 4 * words * blocks,
        "read_tables": 8 * bins * items,
        "written_sums": 8 * bins * units,
        "shared_read_bytes": loads,
        "shared_written_bytes": 4 * words * blocks + items * (staged + exchanged),
        "shared_wavefronts": (loads + items * exchanged) // 128,
        "bank_conflicts": 0,
        "mma_m16n8k16": items
        * (outer * (2 * (rows_in // 16) + back * (last // 16)) + n1 * inner * (2 + back)),
        "fp32_flops": items * (additions - in_halves + 8 * n + rows_kept * back),
        "half_flops": items
        * (
            in_halves
            + 24 * n
            + 18 * n * back
            + 64 * strips * rows_in * gates
            + rows_kept * (2 * int(pregate) + int(postgate))
        ),
        "transposes": items * n // 32 * back,
        "barriers": blocks + 3 * items,
    }


def _global(batch: Any, channels: Any, length: Any, pregate: bool, postgate: bool) -> dict[str, Any]:
    """Sequences read, those that are output gates too a second time, and written."""
    sequences = 2 * batch * channels * length
    return {
        "read_u": sequences * (1 + int(pregate)),
        "read_pregate": 2 * sequences * int(pregate),
        "read_dy": sequences * (1 + int(postgate)),
        "read_postgate": sequences * int(postgate),
        "written_du": sequences,
        "written_dpregate": sequences * int(pregate),
        "written_dpostgate": sequences * int(postgate),
    }
