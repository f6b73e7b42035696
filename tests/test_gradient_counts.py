"""The closed-form counts of the filter gradient's kernels against what their CPU bodies count, exactly."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodel import float_gradient_counts, gradient_counts, long_gradient_counts
from kernels_numba import gradient_block, gradient_float, gradient_spec, gradient_warp
from kernels_numba.filter_sums import FilterGradient
from kernels_numba.long_gradient import LongFilterGradient
from kernels_numba.long_plans import Split
from kernels_numba.tile.layout import HALF_TYPES
from monarch import Plan

ALL = [*gradient_warp.FACTORS, (8, 16, 16), (16, 16, 16), (32, 16, 16), (16, 16, 32), (16, 32, 32)]


@settings(max_examples=5)
@given(
    factors=st.sampled_from(ALL[:-2]),
    dtype=st.sampled_from(["fp16", "bf16"]),
    batch=st.integers(1, 4),
    channels=st.integers(1, 2),
    part=st.floats(0.01, 1.0),
    gates=st.tuples(st.booleans(), st.booleans()),
    workers=st.integers(1, 6),
)
@example(
    factors=(48, 32), dtype="fp16", batch=3, channels=2, part=0.4, gates=(True, False), workers=5
)  # sums in shared memory
@example(factors=(16, 16, 32), dtype="fp16", batch=1, channels=1, part=0.6, gates=(True, True), workers=1)
@example(factors=(16, 32, 32), dtype="bf16", batch=1, channels=1, part=1.0, gates=(False, False), workers=1)
def test_counts_equal_the_counters(
    factors: tuple[int, ...],
    dtype: str,
    batch: int,
    channels: int,
    part: float,
    gates: tuple[bool, bool],
    workers: int,
) -> None:
    """Every counter, for any plan, batch, length, gates and grid."""
    n = prod(factors)
    length = max(1, int(part * n))
    shape = (batch, channels, length)
    mode = "circular" if length == n else "causal"
    taps = n + 1 - length if mode == "causal" else n
    gradient = FilterGradient(shape, taps=taps, mode=mode, dtype=dtype, plan=Plan(n, factors))
    rng = np.random.default_rng(0)
    u, dy, before, after = (rng.standard_normal(shape).astype(HALF_TYPES[dtype]) for _ in range(4))
    _, counters, _ = gradient.run_cpu(
        u, dy, before if gates[0] else None, after if gates[1] else None, workers=workers
    )
    spec = gradient.spec(pregate=gates[0], postgate=gates[1])
    shares, _ = gradient.shares(workers, spec.parts)
    known = {
        "batch": batch,
        "channels": channels,
        "length": length,
        "units": channels * spec.parts * shares,
        "blocks": counters.blocks,
        "pregate": gates[0],
        "postgate": gates[1],
    }
    if len(factors) == 2:
        expected = gradient_counts.totals_of_order_2(
            *factors,
            spec.rows_in,
            in_registers=spec.in_registers,
            held_by=counters.warps if spec.held else 0,
            **known,
        )
    else:
        assert gradient_spec.ROWS == gradient_counts.ROWS
        expected = gradient_counts.totals_of_order_3(
            *factors,
            spec.rows_in,
            parts=spec.parts,
            fold=spec.fold,
            sums=spec.sums,
            tables_shared=spec.tables_shared,
            **known,
        )
    counted = dict(vars(counters))
    for kind in ("read", "written"):
        counted |= {f"{kind}_{name}": count for name, count in counted.pop(f"global_{kind}_bytes").items()}
    assert counted.pop("warps") == counted.pop("blocks") * spec.warps
    assert {name: counted.pop(name, 0) for name in expected} == expected
    assert not any(counted.values()), "the kernel counted something that has no closed form"


@settings(max_examples=6)
@given(
    factors=st.sampled_from([f for f in gradient_float.FACTORS if prod(f) <= 2048]),
    batch=st.integers(1, 6),
    channels=st.integers(1, 2),
    part=st.floats(0.01, 1.0),
    gates=st.tuples(st.booleans(), st.booleans()),
    workers=st.integers(1, 6),
)
@example(factors=(16, 16), batch=6, channels=3, part=1.0, gates=(True, True), workers=3)
@example(factors=(16, 16), batch=5, channels=1, part=1.0, gates=(False, True), workers=2)
@example(factors=(3, 16, 16, 16), batch=1, channels=1, part=0.6, gates=(True, False), workers=2)
@example(factors=(2, 32, 16, 16), batch=2, channels=1, part=1.0, gates=(False, False), workers=2)
@example(factors=(6, 8, 8, 8), batch=2, channels=1, part=1.0, gates=(False, False), workers=2)
def test_counts_in_fp32_equal_the_counters(
    factors: tuple[int, ...],
    batch: int,
    channels: int,
    part: float,
    gates: tuple[bool, bool],
    workers: int,
) -> None:
    """Every counter of the fp32 kernel, whole and in parts of the frequencies, with threads that have nothing to do."""
    parts, radices = gradient_float.SHAPES[factors]
    n = parts * prod(radices)
    length = max(1, int(part * n))
    shape = (batch, channels, length)
    mode = "circular" if length == n else "causal"
    taps = n + 1 - length if mode == "causal" else n
    gradient = FilterGradient(shape, taps=taps, mode=mode, dtype="fp32", plan=Plan(n, factors))
    rng = np.random.default_rng(0)
    u, dy, before, after = (rng.standard_normal(shape).astype(np.float32) for _ in range(4))
    _, counters, _ = gradient.run_cpu(
        u, dy, before if gates[0] else None, after if gates[1] else None, workers=workers
    )
    spec = gradient.spec(pregate=gates[0], postgate=gates[1])
    shares, per_share = gradient.shares(workers, parts)
    expected = float_gradient_counts.totals(
        radices,
        parts,
        together=spec.shape.together,
        padding=spec.shape.padding,
        batch=batch,
        channels=channels,
        length=length,
        guarded=spec.guarded,
        shares=shares,
        per_share=per_share,
        pregate=gates[0],
        postgate=gates[1],
    )
    counted = dict(vars(counters))
    for kind in ("read", "written"):
        counted |= {f"{kind}_{name}": count for name, count in counted.pop(f"global_{kind}_bytes").items()}
    assert counted.pop("warps") == counted.pop("blocks") * spec.warps
    assert {name: counted.pop(name, 0) for name in expected} == expected
    assert not any(counted.values()), "the kernel counted something that has no closed form"


SHORT = Split(Plan(4096, (16, 16, 16)), (16,), Plan(256, (16, 16)), gradient_warp)
SHORT_FLOAT = Split(Plan(4096, (16, 16, 16)), (16,), Plan(256, (16, 16)), gradient_float, "fp32")
BLOCKS = Split(Plan(32768, (16, 8, 16, 16)), (16,), Plan(2048, (8, 16, 16)), gradient_block)


@pytest.mark.parametrize(
    ("split", "dtype", "batch", "length", "gates", "workspace"),
    [
        (SHORT, "fp16", 3, 2048, (True, False), 2**29),
        (SHORT, "bf16", 5, 4096, (False, True), 1),
        (SHORT_FLOAT, "fp32", 3, 2048, (True, True), 2**29),
        (SHORT_FLOAT, "fp16", 2, 4096, (False, False), 1),
        (BLOCKS, "fp16", 2, 16384, (False, False), 2**29),
    ],
)
def test_counts_of_long_gradients_equal_the_counters(
    split: Split, dtype: str, batch: int, length: int, gates: tuple[bool, bool], workspace: int
) -> None:
    """Outer stages and sums of rows, of all channels and pairs at once and of each alone."""
    shape = (batch, 2 if split is not BLOCKS else 1, length)
    mode = "circular" if length == split.plan.n else "causal"
    gradient = LongFilterGradient(
        shape, taps=length, mode=mode, dtype=dtype, split=split, workspace=workspace
    )
    kind = {"fp32": np.float32}.get(dtype) or HALF_TYPES[dtype]
    u, dy, before, after = (np.random.default_rng(i).standard_normal(shape).astype(kind) for i in range(4))
    _, counters, _ = gradient.run_cpu(u, dy, before if gates[0] else None, after if gates[1] else None)
    expected = long_gradient_counts.totals(gradient, workers=8, pregate=gates[0], postgate=gates[1])
    counted = dict(vars(counters))
    for way in ("read", "written"):
        counted |= {f"{way}_{name}": count for name, count in counted.pop(f"global_{way}_bytes").items()}
    counted.pop("warps")
    counted.pop("blocks")
    assert {name: counted.pop(name, 0) for name in expected} == expected
    assert not any(counted.values()), "the kernels counted something that has no closed form"
