"""Predictions of decode steps beside measurements: products, attention and a copy, one after the other.

Nothing is fitted to these rows: products are `linear`'s, attention is `decode_attention`'s, and the copy of the queries
takes what a small launch does. The kernels are those that `kernels_numba` chooses today for the row's techniques.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from costmodel import decode_attention, linear, measurements
from costmodel.attention_counts import Shape
from costmodel.compare import Comparison, Pair
from costmodel.cross_validation import Problem
from costmodel.gpus import GPU, load
from costmodel.linear_kernels import KERNEL
from costmodel.measure_decode import OP, kernel_of, layer_products, variants
from costmodel.measurements import Row
from costmodel.models import model

COPY_US = 2.0
PARTS = ("products", "attention", "copy")


def parts_us(row: Row, gpu: GPU) -> dict[str, float]:
    """Microseconds of a step's products, attention and copy.

    Raises:
        ValueError: a provider that is none of the variants, or a model that is not known.
    """
    from kernels_numba.device import Device
    from kernels_numba.linear_product import product

    names = {variant.name: variant for variant in variants()}
    if row.provider not in names:
        raise ValueError(f"{row.case}: provider: got {row.provider!r}; accepted: {', '.join(names)}")
    variant, case = names[row.provider], row.case_values
    which, batch, length = model(str(case["model"])), int(case["B"]), int(case["L"])
    major, minor = (int(digits) for digits in gpu.compute_capability.split("."))
    sms = int(gpu.spec["sm_count"])
    where = Device("gpu", "of the file", 0, gpu.device_names[0], (major, minor), sms)
    rates = linear.rates(gpu)
    products = 0.0
    for _, n, k in layer_products(which):
        choice = kernel_of(variant, batch, n, k, where=where)
        made = product(choice, batch, n, k, row.dtype, overlap=variant.overlap)
        products += linear.time_of(made, rates, overlap=variant.overlap)[0]
    shape = Shape(which.dim // which.heads, which.heads // which.kv_heads)
    splits = decode_attention.best_splits(
        batch=batch,
        heads=which.heads,
        kv_heads=which.kv_heads,
        head_size=shape.head_size,
        length=length,
        gpu=gpu,
    )
    attention = decode_attention.time_us(
        shape, batch=batch, kv_heads=which.kv_heads, length=length, splits=splits, gpu=gpu
    )
    return dict(zip(PARTS, (1e6 * products, attention, COPY_US), strict=True))


def compare(gpu: str | GPU, *, folder: Path | None = None) -> Comparison:
    """Predictions beside every measured row of ours on one GPU."""
    chosen = load(gpu)
    return judge(measurements.read(chosen.slug, op=OP, folder=folder), chosen)


def judge(rows: Sequence[Row], gpu: GPU) -> Comparison:
    """Predictions beside those of ``rows`` that are ours."""
    spread = sqrt(KERNEL.error**2 + linear.rates(gpu).uncertainty ** 2)
    pairs = []
    for row in rows:
        if row.ours:
            parts = parts_us(row, gpu)
            us = sum(parts.values())
            longest = max(parts, key=lambda name: parts[name])
            plan = row.provider_variant
            pairs.append(Pair(row, plan, us, us * (1 - spread), us * (1 + spread), longest))
    return Comparison(OP, gpu, tuple(pairs), ())


def problem(gpu: str | GPU, *, folder: Path | None = None) -> Problem | None:
    """The model with a factor for each part; batches and lengths are left out whole."""
    chosen = load(gpu)
    rows = [row for row in measurements.read(chosen.slug, op=OP, folder=folder) if row.ours]
    if not rows:
        return None
    parts = np.array([list(parts_us(row, chosen).values()) for row in rows])

    def predict(factors: NDArray) -> NDArray:
        return np.asarray(parts @ factors)

    return Problem(OP, PARTS, predict, np.array([row.median_us for row in rows]), [row.case for row in rows])
