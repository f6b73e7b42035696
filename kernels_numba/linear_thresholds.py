r"""From how many rows of x on which kernel is faster: M1 and M2 in closed form, from a GPU's rates.

The one place of the closed forms and of the kernels' constants in them: the dispatch without a measured table uses it,
and so does the cost model (``costmodel.linear``), which derives it from its times in sympy. docs/linear.md explains.

.. math::

    M_1 = \left(\frac{(t_f - t_v + 2NK/\beta)\,\varphi}{NK} - c_w\right) / c_x, \qquad
    M_2 = \frac{\lambda (t_u - t_f + U) - 2NK}{2K (S p - N\lambda / C\lambda_u)}

S p is how often the flat product reads x, p = ceil(N / (S B)) for tiles of B rows of w; U is what a full product of few
rows takes, which has to move the weights from memory and through L2 and to multiply them with a whole tile of x:

.. math::
    U = \left((2NK/\beta)^q + (2NK/\lambda_u)^q + (2NK R/\tau)^q\right)^{1/q} + Z/\beta, \qquad q = 3

Z = 4NK where K is not a multiple of 8 and the full product first copies w (`linear_realign`), else 0: also on
warpgroups, which read few rows of x against w in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from kernels_numba.linear_product import LARGEST_M
from kernels_numba.linear_realign import CHUNK
from kernels_numba.linear_settings import flat_tile

VECTOR_START_S, FLAT_START_S, FULL_START_S = 1.8e-6, 3.3e-6, 3.5e-6
"""t_v, t_f, t_u: seconds that a vector, flat and full product takes beside its work."""
WEIGHT_INSTRUCTIONS, INPUT_INSTRUCTIONS = 8.5, 1.25
"""c_w, c_x: lane instructions of a vector product for a weight, and for its product with one row of x."""
FLAT_WIDTH, FULL_WIDTH = 32, 128
"""B (for more than 16 rows of x) and C: rows of w that share one reading of x, flat and full."""
FULL_ROWS = 52.0
"""R: rows of x that the smallest tile of the full product is worth, padding and its lower rate of products included."""
FULL_ORDER = 3
"""q: of the norm that adds up the parts of a full product's time."""
ROW_STEP = 8
"""The flat product pads x to a multiple of it."""


class HasRates(Protocol):
    """What the closed forms ask of a GPU."""

    @property
    def memory_bytes_per_s(self) -> float:
        """beta: of a stream that is only read."""

    @property
    def cached_bytes_per_s(self) -> float:
        """lambda: of L2."""

    @property
    def shared_cache_bytes_per_s(self) -> float:
        """lambda_u: of L2, where blocks side by side read the same."""

    @property
    def lane_instructions_per_s(self) -> float:
        """phi: of CUDA cores."""

    @property
    def tensor_flops_per_s(self) -> float:
        """tau: of ``mma.sync``."""

    @property
    def sm_count(self) -> int:
        """S."""


@dataclass(frozen=True)
class Rates:
    """What a GPU does in a second, as linear layers see it, and its SMs."""

    memory_bytes_per_s: float
    cached_bytes_per_s: float
    shared_cache_bytes_per_s: float
    lane_instructions_per_s: float
    tensor_flops_per_s: float
    sm_count: int


H200_RATES = Rates(4.55e12, 6.793e12, 1.0538e13, 2.509e13, 5.51e14, 132)
"""``costmodel.linear.rates("h200-sxm")``, which a test holds it to: kernels do not import the cost model."""


def rates_for(sm_count: int) -> Rates:
    """Rates of a GPU of which only the number of SMs is known: those measured on an H200, per SM."""
    part, one = sm_count / H200_RATES.sm_count, H200_RATES
    return Rates(
        one.memory_bytes_per_s * part,
        one.cached_bytes_per_s * part,
        one.shared_cache_bytes_per_s * part,
        one.lane_instructions_per_s * part,
        one.tensor_flops_per_s * part,
        sm_count,
    )


def copied_bytes(n: int, k: int, *, in_place: bool = False) -> float:
    """Z: bytes that the full product reads and writes to copy w, whose rows must begin on 16 bytes.

    ``in_place``: on warpgroups few rows of x are copied instead (`linear_group`).
    """
    return 4.0 * n * k if k % CHUNK and not in_place else 0.0


def exact_thresholds(
    n: int, k: int, rates: HasRates, *, width: int = FLAT_WIDTH, in_place: bool = False
) -> tuple[float, float]:
    """M1 and M2 as real numbers; infinity where there is none.

    Args:
        n: rows of w.
        k: columns of both.
        rates: the GPU's.
        width: B, rows of w of a tile of the flat product.
        in_place: the full product runs on warpgroups.
    """
    weights = 2.0 * n * k
    first = (
        (FLAT_START_S - VECTOR_START_S + weights / rates.memory_bytes_per_s)
        * rates.lane_instructions_per_s
        / (n * k)
    )
    first = (first - WEIGHT_INSTRUCTIONS) / INPUT_INSTRUCTIONS
    parts = (
        weights / rates.memory_bytes_per_s,
        weights / rates.shared_cache_bytes_per_s,
        weights * FULL_ROWS / rates.tensor_flops_per_s,
    )
    few = sum(part**FULL_ORDER for part in parts) ** (1 / FULL_ORDER)
    few += copied_bytes(n, k, in_place=in_place) / rates.memory_bytes_per_s
    gain = rates.cached_bytes_per_s * (FULL_START_S - FLAT_START_S + few) - weights
    easier = rates.cached_bytes_per_s / rates.shared_cache_bytes_per_s
    readings = rates.sm_count * -(-n // (rates.sm_count * width)) - n / FULL_WIDTH * easier
    return first, (gain / (2.0 * k * readings) if readings > 0 else inf)


def thresholds(n: int, k: int, rates: HasRates, *, in_place: bool = False) -> tuple[int, int]:
    """M1 and M2: from M1 rows on the flat product is ahead of vector products, from M2 on the full one of it.

    Each is at most one more than the kernel before takes. The flat product takes as long for the 8 rows that it pads
    to, so M2 - 1 is a multiple of 8 (or M2 = M1); its tiles are wider for few rows.
    """
    most_vector, most_flat = LARGEST_M["gemv"] or 0, LARGEST_M["flat"] or 0
    first, _ = exact_thresholds(n, k, rates)
    m1 = max(1, min(int(first) + 1 if first >= 0 else 1, most_vector + 1))
    share = -(-n // rates.sm_count)
    m2 = 1
    while m2 <= most_flat:
        padded = m2 + ROW_STEP - 1
        width = 16 * flat_tile(padded, share)["row_tiles"]
        if exact_thresholds(n, k, rates, width=width, in_place=in_place)[1] < padded:
            break
        m2 += ROW_STEP
    return m1, max(m1, m2)
