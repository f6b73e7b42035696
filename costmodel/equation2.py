r"""The paper's cost model, Equation 2 of FlashFFTConv (arXiv 2311.05908).

For B x H sequences of length N = N_1 N_2 .. N_p, in seconds:

    C = B H sum_{i=1..p} [ 16 N N_i / gamma(N_i) + 4 N / omega(i) ]

16 = 8 real flops per complex multiply-add, forward and inverse; 4 = bytes of one complex half.
gamma(N_i) = tau_M when N_i >= mu = 16 (the factor fills a tensor core), else tau_G.
omega(i) = sigma_S when the intermediate of stage i stays on chip, else sigma_H.

Two decisions that the paper leaves to its reader:

*Factors are integers.* With N_i = N^(1/p) in floating point, 4096^(1/3) is 15.999.. and falls under mu at
exactly the length where order 3 becomes right. Here the cost of an order is that of its best integer factor
list.

*What stays on chip.* Stage i works on sequences of N_i N_{i+1} .. N_p points. It stays on chip when one
such sequence (4 bytes a point) and the DFT matrices of the stages i..p (4 N_j^2 bytes, equal ones shared)
fit in the shared memory that one block can have. Twiddles are streamed. On an A100 (163 KiB) order 2 leaves
the chip between 16K and 32K (its two DFT matrices no longer fit beside the sequence), order 3 between 32K
and 64K (the sequence itself no longer fits): the order of the bumps in the paper's Figure 4.

The closed form in plain Python is `cost`; `symbolic` is the same sum in sympy, and `explain` substitutes it
term by term.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt, prod
from typing import TYPE_CHECKING, Any

from costmodel import sensitivity
from costmodel.gpus import GPU, load
from monarch import format_factors

if TYPE_CHECKING:
    import sympy

MU = 16
FLOPS = 16
COMPLEX_HALF_BYTES = 4

# Used where a GPU file has no measured constant: the ratios of the paper's A100 constants to the A100's
# peaks.
ONCHIP_FRACTION = 9.5e12 / (108 * 128 * 1.41e9)
VECTOR_FRACTION = 17.6 / 19.5


@dataclass(frozen=True)
class Constants:
    """Rates of Equation 2, in bytes/s and flop/s, and the on-chip capacity of one block in bytes."""

    sigma_h: float
    sigma_s: float
    tau_m: float
    tau_g: float
    capacity_bytes: float
    mu: int = MU


def constants(gpu: str | GPU) -> Constants:
    """The constants of a GPU: measured where its file has them, else its data sheet times a known ratio."""
    g = load(gpu)
    spec, measured, model = g.spec, g.measured, g.model

    def rate(key: str, otherwise: float) -> float:
        return measured[key].median if key in measured else otherwise

    def share(key: str) -> float:
        return model[key].value if key in model else 1.0

    return Constants(
        sigma_h=rate(
            "device_copy_bytes_per_s", spec["memory_bandwidth_bytes_per_s"] * share("memory_fraction_of_spec")
        ),
        sigma_s=rate("onchip_bytes_per_s", g.shared_memory_bytes_per_s * ONCHIP_FRACTION),
        tau_m=rate("mma_flops_per_s", spec["fp16_tensor_flops_per_s"] * share("tensor_fraction_of_spec")),
        tau_g=rate("vector_flops_per_s", spec["fp32_flops_per_s"] * VECTOR_FRACTION),
        capacity_bytes=spec["shared_memory_per_block_bytes"],
    )


def on_chip(factors: Sequence[int], stage: int, *, capacity_bytes: float) -> bool:
    """Whether stage ``stage`` (0-based) of ``factors`` stays on chip: see the module's text for the rule."""
    rest = factors[stage:]
    matrices = sum(COMPLEX_HALF_BYTES * n * n for n in set(rest))
    return COMPLEX_HALF_BYTES * prod(rest) + matrices <= capacity_bytes


def stage_cost(factors: Sequence[int], stage: int, rates: Constants) -> tuple[float, float]:
    """Seconds that stage ``stage`` (0-based) of one sequence spends on (products, traffic)."""
    n, ni = prod(factors), factors[stage]
    gamma = rates.tau_m if ni >= rates.mu else rates.tau_g
    omega = rates.sigma_s if on_chip(factors, stage, capacity_bytes=rates.capacity_bytes) else rates.sigma_h
    return FLOPS * n * ni / gamma, COMPLEX_HALF_BYTES * n / omega


def cost(factors: Sequence[int], rates: Constants, *, batch: int = 1, channels: int = 1) -> float:
    """Equation 2 in seconds for ``batch`` x ``channels`` sequences of prod(factors) points.

    Raises:
        TypeError: a factor is not an integer (a root such as 4096 ** (1 / 3) flips the tensor-core
            threshold).
    """
    for ni in factors:
        if isinstance(ni, bool) or not isinstance(ni, int):
            raise TypeError(
                f"factors: got {ni!r} ({type(ni).__name__}); accepted: integers, such as (16, 16, 16)"
            )
    return batch * channels * sum(sum(stage_cost(factors, i, rates)) for i in range(len(factors)))


@lru_cache(maxsize=4096)
def best_factors(n: int, order: int, rates: Constants) -> tuple[int, ...] | None:
    """The factor list of this order that Equation 2 prefers; None when ``n`` has no such factorisation.

    Only lists with the largest factor first are compared: the products do not depend on the order of the
    factors, and with the small ones last every later stage works on the shortest sequences, so most stages
    stay on chip.
    """
    return min(descending_lists(n, order), key=lambda f: (cost(f, rates), f), default=None)


@lru_cache(maxsize=512)
def descending_lists(n: int, order: int) -> tuple[tuple[int, ...], ...]:
    """Every factor list of ``n`` with this many factors of at least 2, the largest first."""
    divisors = [d for d in range(2, isqrt(n) + 1) if n % d == 0]
    divisors = sorted({*divisors, *(n // d for d in divisors), *([n] if n > 1 else [])})

    def lists(points: int, count: int, largest: int) -> Iterator[tuple[int, ...]]:
        if count == 1:
            if 2 <= points <= largest:
                yield (points,)
            return
        for first in divisors:
            if first > largest:
                return
            if first**count >= points and points % first == 0:
                for rest in lists(points // first, count - 1, first):
                    yield (first, *rest)

    return tuple(lists(n, order, n))


def curve(orders: Sequence[int], lengths: Sequence[int], rates: Constants) -> dict[int, list[float]]:
    """Figure 4: for each order, seconds per token at each length (nan where the order does not exist)."""
    out: dict[int, list[float]] = {}
    for order in orders:
        lists = [best_factors(n, order, rates) for n in lengths]
        out[order] = [cost(f, rates) / n if f else float("nan") for f, n in zip(lists, lengths, strict=True)]
    return out


def symbolic(order: int) -> sympy.Expr:
    """Equation 2 of this order in sympy, in the symbols B, H, N1..Np, gamma1..gammap, omega1..omegap."""
    import sympy

    b, h = sympy.symbols("B H", positive=True)
    n = sympy.symbols(f"N1:{order + 1}", positive=True, integer=True)
    gamma = sympy.symbols(f"gamma1:{order + 1}", positive=True)
    omega = sympy.symbols(f"omega1:{order + 1}", positive=True)
    total = sympy.Mul(*n)
    terms = [
        FLOPS * total * ni / g + COMPLEX_HALF_BYTES * total / o
        for ni, g, o in zip(n, gamma, omega, strict=True)
    ]
    return b * h * sympy.Add(*terms)


def substitutions(factors: Sequence[int], rates: Constants, *, batch: int, channels: int) -> dict[str, float]:
    """Values for every symbol of `symbolic`, by name."""
    values: dict[str, float] = {"B": batch, "H": channels}
    for i, ni in enumerate(factors, start=1):
        near = on_chip(factors, i - 1, capacity_bytes=rates.capacity_bytes)
        values[f"N{i}"] = ni
        values[f"gamma{i}"] = rates.tau_m if ni >= rates.mu else rates.tau_g
        values[f"omega{i}"] = rates.sigma_s if near else rates.sigma_h
    return values


def evaluate(expression: sympy.Expr, values: dict[str, float]) -> float:
    """The number that ``expression`` is, with every symbol given by name."""
    return float(expression.subs({symbol: values[symbol.name] for symbol in expression.free_symbols}))


def explain(factors: Sequence[int], rates: Constants, *, batch: int, channels: int) -> str:
    """Equation 2 with this plan's numbers put in, one line a term, ending in one plain sentence."""
    expression = symbolic(len(factors))
    values = substitutions(factors, rates, batch=batch, channels=channels)
    n = prod(factors)
    lines = [
        f"Equation 2, order {len(factors)}: C = {expression}",
        f"N = {format_factors(tuple(factors))} = {n}",
    ]
    largest = (0.0, "")
    for i, ni in enumerate(factors, start=1):
        gamma, omega = values[f"gamma{i}"], values[f"omega{i}"]
        core = "tau_M, tensor cores" if ni >= rates.mu else f"tau_G, no tensor cores: N{i} < {rates.mu}"
        level = "sigma_S, on chip" if omega == rates.sigma_s else "sigma_H, device memory"
        products, traffic = (batch * channels * t * 1e6 for t in stage_cost(factors, i - 1, rates))
        lines.append(
            f"  stage {i} products: {batch} * {channels} * {FLOPS} * {n} * {ni} / {gamma:.4g} ({core})"
            f" = {products:.3g} us"
        )
        lines.append(
            f"  stage {i} traffic:  {batch} * {channels} * {COMPLEX_HALF_BYTES} * {n} / {omega:.4g} ({level})"
            f" = {traffic:.3g} us"
        )
        largest = max(
            largest, (products, f"the products of stage {i}"), (traffic, f"the traffic of stage {i}")
        )
    total = evaluate(expression, values) * 1e6
    names = ("sigma_h", "sigma_s", "tau_m", "tau_g")

    def moved_cost(changed: dict[str, Any]) -> float:
        return cost(factors, replace(rates, **changed), batch=batch, channels=channels)

    moved = sensitivity.sensitivities(moved_cost, {name: getattr(rates, name) for name in names})
    lines.append(sensitivity.sentence(moved))
    lines.append(f"Sum: {total:.4g} us; the largest term is {largest[1]} ({largest[0] / total:.0%}).")
    return "\n".join(lines)
