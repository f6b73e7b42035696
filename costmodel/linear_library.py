r"""The time of a *library's* linear layer y = x w^T (cuBLAS, as ``torch.nn.functional.linear`` calls it), small M.

For M <= 64 a library is bound by memory, so

.. math:: t = t_0 + \frac{2 (NK + MK + MN)}{\beta}

with beta the rate of device memory that the GPU's file gives (`costmodel.timing.inputs_of`: a measured copy, or the
data sheet's bandwidth times a known share). The one constant, t_0, is the median of what 144 times of cuBLAS on an
H200 have beside their bytes (costmodel/measurements/h200-sxm/linear.csv, M <= 64, N and K multiples of 8); nothing is
fitted on any other GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from costmodel import timing
from costmodel.gpus import GPU, load

START_S = 5.11e-6
"""t_0: choice of a kernel aside, starting it, its first fetch, its last blocks, and sums of split K."""
ERROR = 0.058
"""Relative standard deviation of the 144 times from the formula."""
LARGEST_M = 64


@dataclass(frozen=True)
class LibraryTime:
    """A predicted time in microseconds, and one standard deviation to either side."""

    time_us: float
    time_low_us: float
    time_high_us: float


def moved_bytes(m: int, n: int, k: int) -> int:
    """Bytes of x [M, K], w [N, K] and y [M, N] in half precision."""
    return 2 * (n * k + m * k + m * n)


def predict(m: int, n: int, k: int, *, gpu: GPU | str) -> LibraryTime:
    """A library's time for x [M, K] times w [N, K] transposed, in half precision.

    Raises:
        ValueError: a size below 1, or M above 64, where products and not memory bind.
    """
    if min(m, n, k) < 1:
        raise ValueError(f"M, N and K must be at least 1; got {m}, {n}, {k}")
    if m > LARGEST_M:
        raise ValueError(f"M: got {m}; accepted: up to {LARGEST_M}, where memory binds")
    rate = timing.inputs_of(load(gpu))["memory_rate"]
    memory = moved_bytes(m, n, k) / rate.value
    us = (START_S + memory) * 1e6
    spread = sqrt(ERROR**2 + (rate.relative_uncertainty * memory * 1e6 / us) ** 2)
    return LibraryTime(us, us * (1 - spread), us * (1 + spread))


def simple_rule_us(n: int, k: int, *, gpu: GPU | str) -> float:
    """What a model must beat: the weights at 0.8 of the data sheet's bandwidth, and 3 us."""
    return 3.0 + 2e6 * n * k / (0.8 * load(gpu).spec["memory_bandwidth_bytes_per_s"])
