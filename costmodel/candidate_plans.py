"""Which plans of a transform are worth predicting: factor lists of every order, by packing, and what kernels run."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel import any_counts, equation2, kernel_counts
from costmodel import counts as counting
from monarch import Plan, factor_lists

ORDERS = (2, 3, 4)
LONG_ORDERS = (5, 6)
"""Orders that only kernels with outer stages have."""
PACKINGS = ("auto", "pair", "half", "any", "complex", "right-angle")


def plans(
    n: int,
    *,
    capacity_bytes: float,
    orders: Sequence[int] = ORDERS,
    packing: str = "auto",
    signal: int | None = None,
    wanted: int | None = None,
    dtype: str = "fp16",
) -> list[Plan]:
    """Candidate plans: factors that are multiples of 16 where the order has such lists, else any; what kernels run.

    Of fp32 (an FFT on CUDA cores), only what kernels run.

    ``packing="auto"``: pairs of sequences; where a pair does not fit on chip, or no pair's kernel does (that of any
    factors aside), also one sequence as N/2 complex points; of half a length of samples, in and out, also those
    turned through a right angle that kernels run.
    """
    if packing not in PACKINGS:
        raise ValueError(f"packing: got {packing!r}; accepted: {', '.join(PACKINGS)}")
    packings = {"auto": ["pair"], "any": ["pair", "half"]}.get(packing, [packing])
    if packing == "auto" and n % 2 == 0:
        run = {
            pack: any(
                _runs(Plan(n=n, factors=factors, packing=pack), capacity_bytes, dtype)
                for order in orders
                for factors in kernel_counts.factor_lists(points, order, pack, dtype)
                if factors not in any_counts.shapes(points, order, pack)
            )
            for pack, points in (("pair", n), ("half", n // 2))
        }
        long = counting.COMPLEX_HALF_BYTES * n > capacity_bytes and dtype != "fp32"
        if long or (run["half"] and not run["pair"]):
            packings = ["pair", "half"]
    halved = n % 2 == 0 and max(signal or n, wanted or n) <= n // 2
    if packing in ("auto", "any") and halved and dtype != "fp32":
        packings = [*packings, "right-angle"]
    out = []
    for pack in packings:
        if pack != "pair" and pack != "complex" and (n % 2 or n < 4):
            continue
        points = n // 2 if pack in ("half", "right-angle") else n
        for order in orders:
            known = kernel_counts.factor_lists(points, order, pack, dtype)
            counted = dtype != "fp32" and order not in LONG_ORDERS and pack != "right-angle"
            lists = _lists_to_count(points, order) if counted else []
            lists = [*lists, *(f for f in known if f not in lists)]
            found = [Plan(n=n, factors=f, packing=pack, signal=signal, wanted=wanted) for f in lists]
            out += [p for p in found if dtype != "fp32" or _runs(p, capacity_bytes, dtype)]
    if not out and dtype == "fp32":
        raise ValueError(
            f"N: no fp32 kernel transforms {n} points with packing {packing!r} on this GPU; accepted: powers of two "
            "from 256 to 16777216, 3 times a power of two from 768 to 12582912, and multiples of 4096 from 36864 to "
            "57344, as far as shared memory goes. Half precision has plans of every length"
        )
    if not out:
        raise ValueError(
            f"N: {n} has no plan of order {' or '.join(map(str, orders))} with packing {packing!r}; "
            f"choose a length that is a product of that many factors, such as {_longer(n, min(orders))}"
        )
    return out


def _lists_to_count(points: int, order: int) -> list[tuple[int, ...]]:
    """Factor lists that are worth counting without a kernel: of multiples of 16 where there are such, else any."""
    return factor_lists(points, order=order, multiple_of=16) or list(
        equation2.descending_lists(points, order)
    )


def _runs(plan: Plan, capacity_bytes: float, dtype: str) -> bool:
    """Whether a kernel runs a plan on a GPU whose blocks can have so much shared memory."""
    work = kernel_counts.kernel_counts(
        plan, 2, 1, dtype=dtype, variant="plain", capacity_bytes=capacity_bytes
    )
    return work is not None


def _longer(n: int, order: int) -> int:
    from monarch import transform_length

    length: int = transform_length(max(n, 16**order))
    return length
