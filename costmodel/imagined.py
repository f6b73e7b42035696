"""GPUs that are imagined: a GPU file's values times factors, what is decided there, and which decisions flip.

Everything here is a pure function of a GPU: no measurement, no device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from costmodel import decode_attention, fftconv, linear, units
from costmodel.calibration import RATES
from costmodel.gpus import GPU, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LENGTHS = tuple(2**e for e in range(8, 23))
"""Transform lengths, 256 to 4M."""
CACHES = ((1, 4096), (1, 65536), (8, 8192), (64, 2048))
"""Decode attention: (sequences, keys of each), 32 query and 8 key heads of 128."""
MAIN = ("bandwidth", "sm_count", "clock", "tensor_rate", "shared_memory")
"""What decisions hang on most,"""
VALUES = (*MAIN, "vector_rate", "shared_width", "registers", "threads", "l2_size", "memory_size")
"""and all that `what_if` changes: every value of a data sheet, those that follow from others left out."""

_SCALES = {
    "sm_count": ("sm_count",),
    "boost_clock_mhz": ("clock",),
    "tensor_clock_mhz": ("clock",),
    "fp16_tensor_fma_per_sm_per_clock": ("tensor_rate",),
    "fp16_tensor_flops_per_s": ("sm_count", "clock", "tensor_rate"),
    "fp16_vector_flops_per_s": ("sm_count", "clock", "vector_rate"),
    "fp32_flops_per_s": ("sm_count", "clock", "vector_rate"),
    "memory_bytes": ("memory_size",),
    "l2_bytes": ("l2_size",),
    "shared_memory_bytes_per_sm_per_clock": ("shared_width",),
    "registers_per_sm": ("registers",),
    "threads_per_sm": ("threads",),
    "memory_bandwidth_bytes_per_s": ("bandwidth",),
    "shared_memory_per_sm_bytes": ("shared_memory",),
    "shared_memory_per_block_bytes": ("shared_memory",),
    "device_copy_bytes_per_s": ("bandwidth",),
    "read_stream_bytes_per_s": ("bandwidth",),
    "onchip_bytes_per_s": ("sm_count", "clock", "shared_width"),
    "mma_flops_per_s": ("sm_count", "clock", "tensor_rate"),
    "dense_product_flops_per_s": ("sm_count", "clock", "tensor_rate"),
    "vector_flops_per_s": ("sm_count", "clock", "vector_rate"),
    "device_write_bytes_per_s": ("bandwidth",),
    **dict.fromkeys(
        ("l2_read_bytes_per_s", "l2_write_bytes_per_s", "l2_copy_bytes_per_s"), ("sm_count", "clock")
    ),
    "shared_read_bytes_per_s": ("sm_count", "clock", "shared_width"),
    "bf16_vector_flops_per_s": ("sm_count", "clock", "vector_rate"),
    "exponentials_per_s": ("sm_count", "clock"),
    **{key: ("sm_count", "clock", "tensor_rate") for key in RATES if key.startswith(("mma_", "wgmma_"))},
}


def what_if(gpu: GPU | str, **factors: float) -> GPU:
    """A GPU whose values are those of another times factors; rates follow from the SMs, the clock and the width.

    Args:
        gpu: slug, path or GPU.
        factors: by the names of `VALUES`; tensor_rate, vector_rate and shared_width are those of an SM and a clock. SMs
            are rounded to whole ones.

    Raises:
        ValueError: an unknown name, or a factor that is not positive and finite.
    """
    found = load(gpu)
    for name, factor in factors.items():
        if name not in VALUES:
            raise ValueError(f"factors: got {name!r}; accepted: {', '.join(VALUES)}")
        if not (factor > 0 and math.isfinite(factor)):
            raise ValueError(f"{name}: got {factor}; accepted: a positive number")
    changes = {name: factor for name, factor in factors.items() if factor != 1}
    if not changes:
        return found
    if "sm_count" in changes:  # whole SMs, and rates that follow from them
        sms = max(1, round(found.spec["sm_count"] * changes["sm_count"]))
        changes["sm_count"] = sms / found.spec["sm_count"]

    def scale(key: str) -> float:
        return math.prod(changes.get(name, 1.0) for name in _SCALES.get(key, ()))

    spec = {key: value * scale(key) for key, value in found.spec.items()}
    for key in WHOLE:
        spec[key] = max(1, round(spec[key]))
    measured = {
        key: replace(
            row,
            median=row.median * scale(key),
            p20=None if row.p20 is None else row.p20 * scale(key),
            p80=None if row.p80 is None else row.p80 * scale(key),
        )
        for key, row in found.measured.items()
    }
    name = " ".join([found.slug, *(f"{key} x {factors[key]:g}" for key in changes)])
    return replace(found, slug=name, spec=spec, measured=measured)


WHOLE = ("sm_count", "registers_per_sm", "threads_per_sm")


@dataclass(frozen=True)
class Decisions:
    """What is best on a GPU: orders by transform length, (M1, M2) by layer, splits by (sequences, keys)."""

    orders: dict[int, int]
    thresholds: dict[str, tuple[int, int]]
    splits: dict[tuple[int, int], int]


def decisions(
    gpu: GPU | str, layers: Mapping[str, tuple[int, int]], *, lengths: Sequence[int] = LENGTHS
) -> Decisions:
    """All decisions on one GPU; ``layers`` are [N, K] by name."""
    found = load(gpu)
    return Decisions(
        orders=best_orders(found, lengths),
        thresholds={name: linear.thresholds(n, k, found) for name, (n, k) in layers.items()},
        splits={
            (batch, keys): decode_attention.best_splits(
                batch=batch, heads=32, kv_heads=8, head_size=128, length=keys, gpu=found
            )
            for batch, keys in CACHES
        },
    )


def best_orders(gpu: GPU | str, lengths: Sequence[int] = LENGTHS) -> dict[int, int]:
    """The order of the fastest plan for each transform length, 64 sequences of 768 channels."""
    found = load(gpu)
    return {n: fftconv.predict(n, gpu=found).best.plan.order for n in lengths}


def flips(before: Decisions, after: Decisions) -> list[str]:
    """The decisions that differ, each as one phrase."""
    out = [
        f"N = {units.short(n)}: order {order} -> {after.orders[n]}"
        for n, order in before.orders.items()
        if after.orders[n] != order
    ]
    for number, name in enumerate(("M1", "M2")):
        for layer, pair in before.thresholds.items():
            now = after.thresholds[layer][number]
            if now != pair[number]:
                out.append(f"{name} of {layer}: {pair[number]} -> {now}")
    return out + [
        f"splits for B = {batch}, L = {units.short(keys)}: {number} -> {after.splits[batch, keys]}"
        for (batch, keys), number in before.splits.items()
        if after.splits[batch, keys] != number
    ]


def orders_figure(rows: Mapping[str, Mapping[int, int]]) -> Figure:
    """A grid of best orders: a row for each GPU, a column for each length; the number stands in every cell."""
    from costmodel.plots import COLOURS, _figure

    lengths = list(next(iter(rows.values())))
    figure, axes = _figure(8.0, 0.9 + 0.32 * len(rows))
    for y, orders in enumerate(rows.values()):
        first = next(iter(rows.values()))
        for x, n in enumerate(lengths):
            changed = orders[n] != first[n]
            axes.barh(
                y, 0.94, left=x + 0.03, height=0.86, color=COLOURS[orders[n]], alpha=0.75 if changed else 0.3
            )
            axes.text(
                x + 0.5, y, str(orders[n]), ha="center", va="center", weight="bold" if changed else None
            )
    axes.set_xticks([x + 0.5 for x in range(len(lengths))], [units.short(n) for n in lengths])
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, len(lengths))
    axes.set_xlabel("transform length N")
    axes.set_title("best order; strong where it differs from the first row", loc="left")
    axes.grid(visible=False)
    return figure
