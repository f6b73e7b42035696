"""Which kernels of long convolutions and of spectra with zeros are in the table of `resources`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from kernels_numba import fused_block, fused_deep, fused_warp
from kernels_numba.long_launch import outer_family
from kernels_numba.long_plans import split_of
from kernels_numba.outer_float_spec import outer_float_spec
from kernels_numba.outer_spec import outer_spec
from monarch import Plan


def long_kernels() -> Iterator[tuple[Any, Any]]:
    """Both outer stages of 256 rows in both formats and fp32, and of 1024 rows, around 4096 points; windows of 4096.

    And of each kernel that leaves out zeros one that does.
    """
    for factors, dtypes in (((16, 16), ("fp16", "bf16")), ((32, 32), ("fp16",))):
        split = split_of(Plan(4096 * prod(factors), (*factors, 16, 16, 16)))
        for dtype in dtypes:
            for inverse in (False, True):
                spec = outer_spec(split, dtype, inverse=inverse)
                yield outer_family(spec), spec
    yield (
        fused_block,
        replace(fused_block.make_spec(Plan(4096, (16, 16, 16)), "fp16", guarded=True), windows=True),
    )
    for factors, io in (((16, 16), "fp32"), ((16, 16), "fp16"), ((32, 32), "fp32")):
        split = split_of(Plan(4096 * prod(factors), (*factors, 16, 16, 16)), products="fp32")
        for inverse in (False, True):
            whole = outer_float_spec(split, io, inverse=inverse, length=split.plan.n, batch=2)
            yield outer_family(whole), whole
    yield fused_warp, fused_warp.make_spec(Plan(1024, (32, 32)), "fp16", kept=(32, 16))
    plan = Plan(8192, (16, 16, 32))
    yield fused_block, fused_block.make_spec(plan, "fp16", marked=256, kept=(16, 16, 16))
    yield fused_deep, fused_deep.make_spec(Plan(16384, (8, 8, 16, 16)), "fp16", marked=64)
