r"""Linear layers y = x w^T: predicted times, the choice of kernel, tile width and split, and the thresholds M1 and M2.

**Time.** A launch costs a fixed time t0 (start, first fetch, sums at the end) and then about what takes longest of

    weights and inputs from device memory   bytes / beta
    everything that passes L2               bytes / lambda       (x is read once for every tile of w: linear_counts;
                                                                  full: lambda_u, blocks that read the same share it)
    CUDA cores                              lane instructions / phi
    tensor cores                            the busiest SM's products / (tau / SMs), tau times what a tile size reaches

The bytes and products are those of `costmodel.linear_counts`, which are the kernels' own, exactly; rates come from the
GPU file; t0 and the instructions for each weight are properties of the kernels, found on an H200 (`linear_kernels`).

**Thresholds.** Vector products cost N K (c_w + c_x M) / phi where CUDA cores bind, the flat product 2 N K / beta where
memory binds (M <= 8), so the flat one is ahead from

.. math:: M_1 = \left(\frac{(t_f - t_v + 2NK/\beta)\,\varphi}{NK} - c_w\right) / c_x

on. Beyond, the flat product's tiles of B rows of w cover P = B S ceil(N / (B S)) rows, and multiply the slower the
smaller they are. The full product is ahead from

.. math:: M_2 = \left(\frac{\tau ((t_u - t_f + U)^q - (2NK/\beta)^q)^{1/q}}{2K P \kappa} - C\right) / (1 + C/B)

on, U the time of a full product of few rows.
`kernels_numba.linear_thresholds` has these forms and their constants; `symbolic_thresholds` solves both in sympy.

**Equation 5** of FlashDecoding++ (Hong et al., arXiv 2311.01282, section 4): a tile width B_N trades the ratio of
products to memory accesses, 2 M K / (K + M K / B_N + M), against N / B_N blocks that run side by side. `paper_width`
takes the widest tile that still gives every SM a block.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any

from costmodel.gpus import GPU, load
from costmodel.linear_kernels import KERNEL, ON_GROUPS, OVERLAP_ORDER, kind_of

if TYPE_CHECKING:
    import sympy

IMPLS = ("gemv", "flat", "full")
PAPER_WIDTHS = (32, 64, 128)

DENSE_OF_SPEC = 0.8
"""Rate of dense products over the data sheet's: 790 over 989 Tflop/s on an H200."""
READ_OVER_COPY = 1.07
"""Rate of a read-only stream over that of a copy: 4.55 over 4.26 TB/s on an H200."""

START = "start"
"""Of the terms the one that is added, and not overlapped."""


@dataclass(frozen=True)
class Rates:
    """What a GPU does in a second, as these kernels see it."""

    memory_bytes_per_s: float
    cached_bytes_per_s: float
    shared_cache_bytes_per_s: float
    """Of L2, where blocks side by side read the same (lambda_u)."""
    group_cache_bytes_per_s: float
    """The same for warpgroups."""
    lane_instructions_per_s: float
    tensor_flops_per_s: float
    group_flops_per_s: float
    """Of products on warpgroups; 0 where there are none."""
    sm_count: int
    uncertainty: float
    """Relative, of the rates."""


def on_groups(gpu: GPU) -> bool:
    """Whether the full product runs on warpgroups there."""
    return gpu.compute_capability == "9.0"


def rates(gpu: GPU | str) -> Rates:
    """Rates from a GPU file: measured ones where it has them, else shares of its data sheet's."""
    found = load(gpu)
    spec, measured = found.spec, found.measured
    read = measured.get("read_stream_bytes_per_s")
    copy = measured.get("device_copy_bytes_per_s")
    if read is not None:
        memory, doubt = read.median, 0.03
    elif copy is not None:
        memory, doubt = copy.median * READ_OVER_COPY, 0.06
    else:
        copied = found.model.get("memory_fraction_of_spec")
        share = READ_OVER_COPY * copied.value if copied is not None else 0.93
        memory, doubt = share * spec["memory_bandwidth_bytes_per_s"], 0.1
    mma, of_spec = measured.get("mma_flops_per_s"), found.model.get("tensor_fraction_of_spec")
    reached = of_spec.value if of_spec is not None else 0.6
    tensor = mma.median if mma is not None else reached * spec["fp16_tensor_flops_per_s"]
    clock = spec["boost_clock_mhz"] * 1e6
    dense = measured.get("dense_product_flops_per_s")
    group = dense.median if dense is not None else DENSE_OF_SPEC * spec["fp16_tensor_flops_per_s"]
    return Rates(
        memory_bytes_per_s=memory,
        cached_bytes_per_s=found.model["l2_fraction"].value * 64 * spec["sm_count"] * clock,
        shared_cache_bytes_per_s=KERNEL.full_cache_fraction * 64 * spec["sm_count"] * clock,
        group_cache_bytes_per_s=KERNEL.group_cache_fraction * 64 * spec["sm_count"] * clock,
        lane_instructions_per_s=KERNEL.vector_fraction * spec["fp32_flops_per_s"] / 2,
        tensor_flops_per_s=tensor,
        group_flops_per_s=group if on_groups(found) else 0.0,
        sm_count=int(spec["sm_count"]),
        uncertainty=doubt,
    )


# ---- thresholds ----------------------------------------------------------------------------------------------
def symbolic_thresholds() -> tuple[sympy.Expr, sympy.Expr, sympy.Expr]:
    """M1 and M2 as real numbers, solved from the times, and U: in the symbols of the module's text."""
    import sympy

    names = "N K M P B C R U l p q beta lambda_u tau kappa phi c_w c_x t_v t_f t_u"
    (
        n,
        k,
        m,
        covered,
        width,
        loss,
        rows,
        few,
        slab,
        split,
        q,
        beta,
        shared,
        tau,
        slower,
        phi,
        c_w,
        c_x,
        t_v,
        t_f,
        t_u,
    ) = sympy.symbols(names, positive=True)
    copied, meeting = sympy.symbols("Z t_p", nonnegative=True)
    weights = 2 * n * k
    vector = t_v + n * k * (c_w + c_x * m) / phi
    (first,) = sympy.solve(sympy.Eq(vector, t_f + weights / beta), m)
    # What the flat product's products may take, so that with memory it takes as long as the full one.
    products = ((t_u + few - t_f) ** q - (weights / beta) ** q) ** (1 / q)
    (second,) = sympy.solve(
        sympy.Eq(2 * k * covered * slower * (m * (1 + loss / width) + loss) / tau, products), m
    )
    parts = (
        (weights / beta) ** 3,
        (weights / shared) ** 3,
        (weights * rows / tau) ** 3,
        (k * slab / (64 * split)) ** 3,
    )
    few_rows = sum(parts) ** sympy.Rational(1, 3) + meeting + copied / beta
    return sympy.simplify(first), sympy.simplify(second), few_rows


def exact_thresholds(n: int, k: int, r: Rates) -> tuple[float, float]:
    """M1 and M2 as real numbers: the closed forms with numbers put in."""
    from kernels_numba import linear_thresholds

    return linear_thresholds.exact_thresholds(n, k, r, in_place=r.group_flops_per_s > 0)


def thresholds(n: int, k: int, gpu: GPU | Rates | str) -> tuple[int, int]:
    """M1 and M2: from M1 rows on the flat product is ahead of vector products, from M2 on the full one of it.

    Each is at most one more than the kernel before takes.
    """
    from kernels_numba import linear_thresholds

    r = gpu if isinstance(gpu, Rates) else rates(gpu)
    return linear_thresholds.thresholds(n, k, r, in_place=r.group_flops_per_s > 0)


# ---- times ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Candidate:
    """One kernel with its settings, and its predicted time in microseconds with an interval of one deviation."""

    choice: Any
    time_us: float
    time_low_us: float
    time_high_us: float
    bound: str
    terms_us: dict[str, float]
    width: int
    """Rows of w that share one reading of x: B_N."""
    split: int
    blocks: int


def time_of(product: Any, r: Rates, *, overlap: bool = False) -> tuple[float, str, dict[str, float]]:
    """Seconds of a ``kernels_numba.linear_product.Product``, what binds it, and all terms."""
    from costmodel.linear_counts import of_product
    from kernels_numba import linear_thresholds as shared

    counted = of_product(product)
    impl, spec = product.choice.impl, product.spec
    if product.pitch:
        return _time_on_groups(product, counted, r, overlap=overlap)
    weights = 2.0 * product.n * product.k
    passing = sum(counted.global_read_bytes.values()) + sum(counted.global_written_bytes.values())
    if impl == "gemv":  # a few rows of x, which stay in L1
        passing -= counted.global_read_bytes.get("x", 0)
    terms = {
        "memory": (weights + 2.0 * product.m * (product.k + product.n)) / r.memory_bytes_per_s,
        "L2": passing / (r.shared_cache_bytes_per_s if impl == "full" else r.cached_bytes_per_s),
    }
    if impl == "gemv":
        lanes = shared.WEIGHT_INSTRUCTIONS + shared.INPUT_INSTRUCTIONS * product.m
        terms["CUDA cores"] = product.n * product.k * lanes / r.lane_instructions_per_s
        start = shared.VECTOR_START_S
    else:
        rows, columns = (spec.rows, spec.columns) if impl == "full" else (spec.rows, 8 * spec.column_tiles)
        loss = 1 + KERNEL.tile_loss / rows + KERNEL.tile_loss / columns
        units = product.grid if impl == "flat" else product.groups * product.split
        busiest = -(-units // r.sm_count) * r.sm_count / units
        products = 4096.0 * counted.mma_m16n8k16 * busiest
        terms["tensor cores"] = products * loss / r.tensor_flops_per_s
        if impl == "flat":
            terms["tensor cores"] *= shared.FLAT_LOSS
            terms["L2"] /= KERNEL.flat_cache_factor
        start = shared.FLAT_START_S if impl == "flat" else shared.FULL_START_S
        # Too few blocks leave memory without enough to do.
        idle = min(1.0, (KERNEL.full_reach if impl == "full" else 1.0) * product.grid / r.sm_count)
        terms["memory"], terms["L2"] = terms["memory"] / idle, terms["L2"] / idle
    start -= KERNEL.hidden_s[IMPLS.index(impl)] if overlap else 0.0
    bound = max(terms, key=terms.__getitem__)
    start += _realigning(product, r)
    # What is next to binding is not hidden whole: a norm of high order instead of the largest.
    order = OVERLAP_ORDER[impl]
    work = sum(term**order for term in terms.values()) ** (1 / order)
    return start + work, bound, {START: start, **terms}


def _realigning(product: Any, r: Rates) -> float:
    """Seconds of the launches that copy operands first."""
    copied = 4.0 * product.n * product.k * product.copy_w
    copied += 2.0 * product.shifted_x_size * product.led / KERNEL.realign_share
    return KERNEL.realign_s * (product.shift_x + product.copy_w) + copied / r.memory_bytes_per_s


def _time_on_groups(
    product: Any, counted: Any, r: Rates, *, overlap: bool
) -> tuple[float, str, dict[str, float]]:
    """`time_of` for the full product on warpgroups, whose busiest SM decides."""
    from kernels_numba import linear_settings as settings

    if not r.group_flops_per_s:
        raise ValueError(f"{product.choice}: this GPU has no products on warpgroups")
    kind = kind_of(product.choice)
    own = ON_GROUPS[kind]
    # As many tiles at once as clusters of the blocks that share one fill SMs.
    units = product.groups
    slots = int(r.sm_count * settings.REACH[product.split] / product.split)
    turns = -(-units // slots)
    busiest = turns * r.sm_count / (units * product.split)
    reach = min(1.0, own.reach * product.grid / r.sm_count)
    passing = sum(counted.global_read_bytes.values()) + sum(counted.global_written_bytes.values())
    moved = 2.0 * (product.n * product.k + product.m * (product.k + product.n))
    slabs = turns * -(-product.k // 64) / product.split
    by_words = own.word_row_s * product.spec.w_rows * getattr(product.spec, "words", False)
    terms = {
        "memory": moved / r.memory_bytes_per_s / reach,
        "L2": passing * busiest / (own.cache * r.group_cache_bytes_per_s),
        "tensor cores": 4096.0 * counted.mma_m16n8k16 * busiest / r.group_flops_per_s,
        "latency": slabs * own.latency_s / product.spec.ahead,
        "slabs": slabs * max(own.slab_s, by_words),
    }
    start = own.start_s - (own.hidden_s if overlap else 0.0)
    if product.split > 1:
        start += 4.0 * product.spec.tile_sums * turns / own.exchange_bytes_per_s
    start += _realigning(product, r)
    order = OVERLAP_ORDER[kind]
    work = sum(term**order for term in terms.values()) ** (1 / order)
    return start + work, max(terms, key=terms.__getitem__), {START: start, **terms}


def what_if(
    r: Rates, *, bandwidth: float = 1, sm_count: float = 1, tensor_rate: float = 1, vector_rate: float = 1
) -> Rates:
    """Rates of an imagined GPU: memory, tensor and CUDA-core rates times factors; more SMs bring more of everything."""
    return replace(
        r,
        memory_bytes_per_s=r.memory_bytes_per_s * bandwidth,
        cached_bytes_per_s=r.cached_bytes_per_s * sm_count,
        shared_cache_bytes_per_s=r.shared_cache_bytes_per_s * sm_count,
        group_cache_bytes_per_s=r.group_cache_bytes_per_s * sm_count,
        lane_instructions_per_s=r.lane_instructions_per_s * sm_count * vector_rate,
        tensor_flops_per_s=r.tensor_flops_per_s * sm_count * tensor_rate,
        group_flops_per_s=r.group_flops_per_s * sm_count * tensor_rate,
        sm_count=max(1, round(r.sm_count * sm_count)),
    )


def predict(
    m: int,
    n: int,
    k: int,
    *,
    gpu: GPU | str,
    dtype: str = "fp16",
    overlap: bool = False,
    instead: Rates | None = None,
) -> list[Candidate]:
    """Time every kernel with every tile width and split worth having; the fastest first.

    Args:
        m: rows of x.
        n: rows of w.
        k: columns of both.
        gpu: a GPU file's slug or path, or what `costmodel.load_gpu` gave.
        dtype: "fp16" or "bf16".
        overlap: launches overlap.
        instead: rates of an imagined GPU (`what_if`), in place of this one's.

    Raises:
        ValueError: a size below 1, or no kernel fits on this GPU.
    """
    from kernels_numba.linear_product import LARGEST_M, Choice, product
    from kernels_numba.linear_settings import FULL_TILES, default_choice, group_candidates

    if min(m, n, k) < 1:
        raise ValueError(f"M, N and K must be at least 1; got {m}, {n}, {k}")
    found = load(gpu)
    r = instead or rates(found)
    limit = int(found.spec["shared_memory_per_block_bytes"])
    where: dict[str, Any] = {"sm_count": r.sm_count, "shared_bytes": limit}
    choices = []
    for impl in IMPLS:
        most = LARGEST_M[impl]
        if most is None or m <= most:
            with suppress(ValueError):  # no tile of it fits in so little shared memory
                choices.append(default_choice(impl, m, n, k, **where))
    if on_groups(found):
        choices = [choice for choice in choices if choice.impl != "full"]
        choices += [choice for _, choice in group_candidates(m, n, k, **where)]
    if m <= (LARGEST_M["flat"] or 0):
        flat = [c.options for c in choices if c.impl == "flat"]
        choices += [
            Choice.of("flat", **{**base, "row_tiles": row_tiles, "split": split})
            for base in flat
            for row_tiles in (1, 2, 3, 4, 6)
            for split in (1, 2, 4)
        ]
    slabs = -(-k // 64)
    choices += [
        Choice.of("full", **tile, split=split)
        for tile in FULL_TILES
        for split in (1, 2, 4, 8)
        if split <= slabs and not on_groups(found)
    ]
    # No memory is faster than its data sheet.
    moved = 2.0 * (n * k + m * k + m * n)
    floor_us = 1e6 * moved / max(r.memory_bytes_per_s, found.spec["memory_bandwidth_bytes_per_s"])
    candidates = []
    for choice in dict.fromkeys(choices):
        made = product(choice, m, n, k, dtype)
        if made.spec.shared_bytes > limit:
            continue
        seconds, bound, terms = time_of(made, r, overlap=overlap)
        spread = sqrt(KERNEL.error**2 + r.uncertainty**2)
        width = made.pitch or (made.spec.columns if choice.impl == "full" else made.spec.rows)
        candidates.append(
            Candidate(
                choice,
                seconds * 1e6,
                max(seconds * 1e6 * (1 - spread), floor_us),
                seconds * 1e6 * (1 + spread),
                bound,
                {name: value * 1e6 for name, value in terms.items()},
                width,
                made.split,
                made.grid,
            )
        )
    if not candidates:
        raise ValueError(
            f"linear, M = {m}: no kernel fits in the {limit} bytes of shared memory that a block has on {found.slug}"
        )
    return sorted(candidates, key=lambda c: (c.time_us, str(c.choice)))


# ---- Equation 5 ----------------------------------------------------------------------------------------------
def equation5() -> tuple[sympy.Expr, sympy.Expr]:
    """The ratio of products to memory accesses, and the number of blocks, in the symbols M, N, K and B_N."""
    import sympy

    m, n, k, width = sympy.symbols("M N K B_N", positive=True)
    return 2 * m * k / (k + m * k / width + m), n / width


def ratio(m: int, k: int, width: int) -> float:
    """Equation 5's ratio of products to memory accesses, in elements."""
    return 2 * m * k / (k + m * k / width + m)


def paper_width(m: int, n: int, k: int, sm_count: int, widths: tuple[int, ...] = PAPER_WIDTHS) -> int:
    """The width with the largest ratio of those that give every SM a block; the narrowest where none does."""
    enough = [width for width in widths if n / width >= sm_count]
    return max(enough, key=lambda width: ratio(m, k, width)) if enough else min(widths)
