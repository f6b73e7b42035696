"""The closed-form counts of the filter gradient's kernels against what their CPU bodies count, exactly."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodel import backward_counts, float_gradient_counts, gradient_counts, long_gradient_counts
from kernels_numba import (
    FFTConv,
    backward_warp,
    gradient_block,
    gradient_float,
    gradient_spec,
    gradient_warp,
    prepare_filter,
)
from kernels_numba.backward_pass import BackwardPass
from kernels_numba.filter_sums import FilterGradient
from kernels_numba.long_gradient import LongFilterGradient
from kernels_numba.long_plans import Split
from kernels_numba.tile.layout import HALF_TYPES
from monarch import Plan

PAIRS = [*gradient_warp.FACTORS, (8, 16, 16), (16, 16, 16), (32, 16, 16)]
TURNED = [*gradient_warp.RIGHT_ANGLE, (16, 16, 16)]
PLANS = [Plan.of(f) for f in PAIRS] + [Plan.of(f, packing="right-angle") for f in TURNED]


@settings(max_examples=5)
@given(
    plan=st.sampled_from(PLANS),
    dtype=st.sampled_from(["fp16", "bf16"]),
    batch=st.integers(1, 4),
    channels=st.integers(1, 2),
    part=st.floats(0.01, 1.0),
    gates=st.tuples(st.booleans(), st.booleans()),
    workers=st.integers(1, 6),
)
@example(
    plan=Plan.of((48, 32)), dtype="fp16", batch=3, channels=2, part=0.4, gates=(True, False), workers=5
)  # sums in shared memory
@example(
    plan=Plan.of((16, 16, 32)), dtype="fp16", batch=1, channels=1, part=0.6, gates=(True, True), workers=1
)
@example(
    plan=Plan.of((16, 32, 32)), dtype="bf16", batch=1, channels=1, part=1.0, gates=(False, False), workers=1
)
@example(
    plan=Plan.of((48, 16, 16)), dtype="fp16", batch=1, channels=1, part=0.5, gates=(False, False), workers=1
)
@example(
    plan=Plan.of((24, 16, 32), packing="right-angle"),
    dtype="fp16",
    batch=3,
    channels=1,
    part=0.9,
    gates=(True, False),
    workers=2,
)
def test_counts_equal_the_counters(
    plan: Plan,
    dtype: str,
    batch: int,
    channels: int,
    part: float,
    gates: tuple[bool, bool],
    workers: int,
) -> None:
    """Every counter, for any plan, batch, length, gates and grid."""
    length = max(1, int(part * plan.points))
    shape = (batch, channels, length)
    mode = "circular" if length == plan.n else "causal"
    taps = plan.n + 1 - length if mode == "causal" else length
    gradient = FilterGradient(shape, taps=taps, mode=mode, dtype=dtype, plan=plan)
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
    assert gradient_spec.ROWS == gradient_counts.ROWS
    expected = gradient_counts.of_spec(spec, **known)
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


WHOLE = [Plan.of(f) for f in backward_warp.FACTORS if f not in ((64, 16), (80, 16), (96, 16), (112, 16))]
WHOLE += [Plan.of((8, 16, 16)), Plan.of((16, 16, 16))]
WHOLE += [Plan.of(f, packing="right-angle") for f in ((16, 16), (24, 16), (16, 16, 16))]


@settings(max_examples=5)
@given(
    plan=st.sampled_from(WHOLE),
    dtype=st.sampled_from(["fp16", "bf16"]),
    batch=st.integers(1, 4),
    part=st.floats(0.01, 1.0),
    gates=st.tuples(st.booleans(), st.booleans()),
    workers=st.integers(1, 6),
)
@example(plan=Plan.of((16, 16)), dtype="fp16", batch=3, part=0.5, gates=(True, True), workers=5)
@example(plan=Plan.of((48, 32)), dtype="fp16", batch=3, part=1.0, gates=(True, False), workers=5)
@example(plan=Plan.of((16, 16, 32)), dtype="fp16", batch=1, part=1.0, gates=(True, True), workers=1)
@example(plan=WHOLE[-1], dtype="fp16", batch=2, part=1.0, gates=(True, True), workers=1)
@example(plan=WHOLE[-2], dtype="bf16", batch=3, part=0.9, gates=(False, True), workers=2)
def test_counts_of_whole_backward_passes_equal_the_counters(
    plan: Plan, dtype: str, batch: int, part: float, gates: tuple[bool, bool], workers: int
) -> None:
    """Every counter of the kernels that make all gradients at once."""
    length = max(1, int(part * plan.points))
    shape, mode = (batch, 2, length), "circular" if length == plan.n else "causal"
    taps = plan.n + 1 - length if mode == "causal" else length
    how: dict[str, Any] = {"mode": mode, "dtype": dtype, "plan": plan}
    k = np.random.default_rng(0).standard_normal((2, taps))
    spectrum = prepare_filter(k, length=length, gradients=True, **how)
    convolve, correlate = FFTConv(spectrum, batch=batch), FFTConv(spectrum.adjoint, batch=batch)
    whole = BackwardPass(correlate, convolve, FilterGradient(shape, taps=taps, **how))
    u, dy, before, after = (
        np.random.default_rng(i).standard_normal(shape).astype(HALF_TYPES[dtype]) for i in range(4)
    )
    given = before if gates[0] else None, after if gates[1] else None
    _, counters, _ = whole.run_cpu(u, dy, *given, workers=workers)
    spec = whole.spec(pregate=gates[0], postgate=gates[1])
    _, _, (units, *_) = whole.scalars(spec, workers)
    known = {"batch": batch, "channels": 2, "length": length, "units": units, "blocks": counters.blocks}
    expected = backward_counts.of_spec(spec, **known)
    counted = dict(vars(counters))
    for kind in ("read", "written"):
        counted |= {f"{kind}_{name}": count for name, count in counted.pop(f"global_{kind}_bytes").items()}
    assert counted.pop("warps") == counted.pop("blocks") * spec.warps
    assert {name: counted.pop(name, 0) for name in expected} == expected
    assert not any(counted.values()), "the kernel counted something that has no closed form"
