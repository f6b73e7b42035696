r"""From how many rows of x on which kernel is faster: M1 and M2 in closed form, from a GPU's rates.

The one place of the closed forms and of the kernels' constants in them: the dispatch without a measured table uses it,
and so does the cost model (``costmodel.linear``), which derives it from its times in sympy. docs/linear.md explains.

.. math::

    M_1 = \left(\frac{(t_f - t_v + 2NK/\beta)\,\varphi}{NK} - c_w\right) / c_x, \qquad
    M_2 = \left(\frac{\tau \left((t_u - t_f + U)^q - (2NK/\beta)^q\right)^{1/q}}{2K P \kappa} - C\right) /
    \left(1 + C/B\right)

P = B S ceil(N / (B S)) is the rows of w that the flat product's tiles of B rows cover on all SMs; a tile of B by M
multiplies at tau / (kappa (1 + C/B + C/M)), and memory and products hide each other but for a norm of order q = 4. U is
what a full product of few rows takes, which has to move the weights from memory and through L2, to multiply them with a
whole tile of x, and to do the K / 64 p slabs of a part of K one after the other:

.. math::
    U = \left((2NK/\beta)^3 + (2NK/\lambda_u)^3 + (2NK R/\tau)^3 + (K l/64p)^3\right)^{1/3} + t_p + Z/\beta

p is the parts that K is cut into, so that tiles of 128 rows of w give all SMs work, and t_p what the blocks of a tile
take to meet where p > 1, else 0. Z = 4NK where K is not a multiple of 8 and the full product first copies w
(`linear_realign`), else 0: also on warpgroups, which read few rows of x against w in place. Where U is less than the
flat product's memory time and start, the full product is ahead from the first row on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kernels_numba.linear_product import LARGEST_M
from kernels_numba.linear_realign import CHUNK
from kernels_numba.linear_settings import flat_tile

VECTOR_START_S, FLAT_START_S, FULL_START_S = 1.8e-6, 3.3e-6, 3.5e-6
"""t_v, t_f, t_u: seconds that a vector, flat and full product takes beside its work,"""
GROUP_START_S = 1.6e-6
"""and t_u on warpgroups."""
WEIGHT_INSTRUCTIONS, INPUT_INSTRUCTIONS = 8.5, 1.25
"""c_w, c_x: lane instructions of a vector product for a weight, and for its product with one row of x."""
FLAT_WIDTH = 32
"""B for more than 16 rows of x: rows of w that share one reading of x."""
FULL_ROWS = 52.0
"""R: rows of x that the smallest tile of the full product is worth, padding and its lower rate of products included."""
GROUP_ROWS = 16.0
"""and R on warpgroups, whose instructions take w as the larger operand."""
FULL_ORDER, FLAT_ORDER = 3, 4
"""Of the norms that add up the parts of a full product's time, and of a flat one's: q."""
FLAT_LOSS, TILE_LOSS = 2.4, 16.0
"""kappa and C: how much slower than at tau the flat product's tiles multiply, large ones and small ones."""
SLAB_COLUMNS, SLAB_S = 64, 0.12e-6
"""Columns of a slab, and l: seconds that one takes at least."""
FULL_WIDTH, MOST_PARTS, MEETING_S = 128, 4, 1.5e-6
"""Of the full product: rows of w of a tile, the most parts of K, and t_p: seconds until the parts' blocks have met."""
ROW_STEP = 8
"""The flat product pads x to a multiple of it."""


class HasRates(Protocol):
    """What the closed forms ask of a GPU."""

    @property
    def memory_bytes_per_s(self) -> float:
        """beta: of a stream that is only read."""

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
    shared_cache_bytes_per_s: float
    lane_instructions_per_s: float
    tensor_flops_per_s: float
    sm_count: int


H200_RATES = Rates(4.55e12, 1.0538e13, 2.509e13, 5.51e14, 132)
"""``costmodel.linear.rates("h200-sxm")``, which a test holds it to: kernels do not import the cost model."""


def rates_for(sm_count: int) -> Rates:
    """Rates of a GPU of which only the number of SMs is known: those measured on an H200, per SM."""
    part, one = sm_count / H200_RATES.sm_count, H200_RATES
    return Rates(
        one.memory_bytes_per_s * part,
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


def parts_of(n: int, sm_count: int) -> int:
    """p: parts of K in which a full product of few rows has a block for every SM, 4 at most."""
    return max(1, min(MOST_PARTS, sm_count // -(-n // FULL_WIDTH)))


def exact_thresholds(
    n: int, k: int, rates: HasRates, *, width: int = FLAT_WIDTH, in_place: bool = False
) -> tuple[float, float]:
    """M1 and M2 as real numbers; not positive where the later kernel is ahead at once.

    Args:
        n: rows of w.
        k: columns of both.
        rates: the GPU's.
        width: B, rows of w of a tile of the flat product.
        in_place: the full product runs on warpgroups.
    """
    weights = 2.0 * n * k
    memory = weights / rates.memory_bytes_per_s
    first = (FLAT_START_S - VECTOR_START_S + memory) * rates.lane_instructions_per_s / (n * k)
    first = (first - WEIGHT_INSTRUCTIONS) / INPUT_INSTRUCTIONS
    split = parts_of(n, rates.sm_count)
    parts = (
        memory,
        weights / rates.shared_cache_bytes_per_s,
        weights * (GROUP_ROWS if in_place else FULL_ROWS) / rates.tensor_flops_per_s,
        k / (SLAB_COLUMNS * split) * SLAB_S,
    )
    few = sum(part**FULL_ORDER for part in parts) ** (1 / FULL_ORDER)
    few += MEETING_S * (split > 1) + copied_bytes(n, k, in_place=in_place) / rates.memory_bytes_per_s
    room = (GROUP_START_S if in_place else FULL_START_S) - FLAT_START_S + few
    products = (room**FLAT_ORDER - memory**FLAT_ORDER) ** (1 / FLAT_ORDER) if room > memory else 0.0
    covered = rates.sm_count * width * -(-n // (rates.sm_count * width))
    rows = products * rates.tensor_flops_per_s / (2.0 * k * covered * FLAT_LOSS)
    return first, (rows - TILE_LOSS) / (1 + TILE_LOSS / width)


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
