"""What `costmodel calibrate` adds to a GPU file: who measured, more rates, and curves where one number would mislead.

``[calibration]``   the device, its driver and clocks, the day and the commit: a file that has it was written by
                    `costmodel calibrate` and may be measured anew; one that has not is a specification.
``[curve.*]``       two lists of the same length, x ascending, each named by its unit.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from costmodel.errors import GPUFileError

BANDWIDTH = (1e10, 1e15)
TENSOR = (1e12, 2e16)
RATES: dict[str, tuple[float, float]] = {
    "device_write_bytes_per_s": (1e11, 1e14),
    "l2_read_bytes_per_s": (1e11, 1e15),
    "l2_write_bytes_per_s": (1e11, 1e15),
    "l2_copy_bytes_per_s": (1e11, 1e15),
    "shared_read_bytes_per_s": (1e12, 1e16),
    "mma_bf16_flops_per_s": TENSOR,
    "mma_m16n8k8_flops_per_s": TENSOR,
    "mma_tf32_flops_per_s": TENSOR,
    "wgmma_n64_flops_per_s": TENSOR,
    "wgmma_n128_flops_per_s": TENSOR,
    "wgmma_n256_flops_per_s": TENSOR,
    "wgmma_bf16_n256_flops_per_s": TENSOR,
    "fp32_flops_per_s": (1e11, 2e15),
    "fp16_vector_flops_per_s": (1e11, 4e15),
    "bf16_vector_flops_per_s": (1e11, 4e15),
    "exponentials_per_s": (1e10, 1e15),
    "launch_latency_us": (0.1, 100.0),
    "barrier_latency_us": (0.001, 10.0),
}
"""Measured rates beside those of `gpus.MEASURED_RANGES`, with the values that are possible."""
CURVES: dict[str, tuple[str, str]] = {
    "read_against_bytes_in_flight": ("bytes_per_sm", "bytes_per_s"),
    "read_against_size": ("bytes", "bytes_per_s"),
    "copy_against_size": ("bytes", "bytes_per_s"),
    "repeated_read_against_size": ("bytes", "bytes_per_s"),
}
"""Names of x and y, by curve: by what is asked for at once; by size, of data that no cache has; again and again."""
_CALIBRATION = {
    "device_name": str,
    "driver": str,
    "sm_clock_mhz": float,
    "memory_clock_mhz": float,
    "date": str,
    "commit": str,
}


@dataclass(frozen=True)
class Curve:
    """Measured values ``y`` at ``x``, ascending; units as in `CURVES`."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    source: str
    date: str


@dataclass(frozen=True)
class Calibration:
    """Which device a file's measured values come from; clocks in MHz while it worked, 0 where not known."""

    device_name: str
    driver: str
    sm_clock_mhz: float
    memory_clock_mhz: float
    date: str
    commit: str


def read_curves(section: dict[str, Any], name: str) -> dict[str, Curve]:
    """The ``[curve.*]`` tables of a file called ``name``.

    Raises:
        GPUFileError: an unknown curve or key, lists of different lengths, an x out of order, an impossible value.
    """
    found = {}
    _known(section, tuple(CURVES), f"{name}: curve")
    for key, table in section.items():
        where = f"{name}: curve.{key}"
        x_name, y_name = CURVES[key]
        if not isinstance(table, dict):
            raise GPUFileError(f"{where}: got {table!r}; accepted: a table with {x_name} and {y_name}")
        _known(table, (x_name, y_name, "source", "date"), where)
        x, y = (_numbers(table.get(column), f"{where}.{column}") for column in (x_name, y_name))
        if len(x) != len(y) or not x:
            raise GPUFileError(
                f"{where}: {len(x)} values of {x_name} and {len(y)} of {y_name}; accepted: as many of both"
            )
        if any(b <= a for a, b in pairwise(x)):
            raise GPUFileError(f"{where}.{x_name}: got {list(x)}; accepted: each value above the one before")
        low, high = BANDWIDTH
        bad = [value for value in y if not low <= value <= high]
        if bad:
            raise GPUFileError(
                f"{where}.{y_name}: got {bad[0]:g}; accepted: numbers from {low:g} to {high:g}"
            )
        found[key] = Curve(x, y, *(_text(table, word, where) for word in ("source", "date")))
    return found


def read_calibration(section: dict[str, Any] | None, name: str) -> Calibration | None:
    """The ``[calibration]`` table of a file called ``name``; None where it has none."""
    if section is None:
        return None
    where = f"{name}: calibration"
    if not isinstance(section, dict):
        raise GPUFileError(f"{where}: got {section!r}; accepted: a table with {', '.join(_CALIBRATION)}")
    _known(section, tuple(_CALIBRATION), where)
    values: dict[str, Any] = {}
    for key, kind in _CALIBRATION.items():
        if kind is str:
            values[key] = _text(section, key, where)
        else:
            (values[key],) = _numbers([section.get(key)], f"{where}.{key}")
    return Calibration(**values)


def _known(section: dict[str, Any], accepted: tuple[str, ...], where: str) -> None:
    for key in section:
        if key not in accepted:
            near = difflib.get_close_matches(key, accepted, n=1, cutoff=0.4)
            mend = f"did you mean {near[0]!r}?" if near else "remove it"
            raise GPUFileError(f"{where}: unknown key {key!r}; accepted: {', '.join(accepted)}; {mend}")


def _text(section: dict[str, Any], key: str, where: str) -> str:
    value = section.get(key)
    if not isinstance(value, str) or not value.strip():
        raise GPUFileError(f"{where}.{key}: got {value!r}; accepted: a text in quotes")
    return value


def _numbers(values: Any, where: str) -> tuple[float, ...]:
    good = isinstance(values, list) and all(
        isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) and v >= 0 for v in values
    )
    if not good:
        raise GPUFileError(f"{where}: got {values!r}; accepted: numbers of at least 0")
    return tuple(float(v) for v in values)
