"""The closed-form counts of decode attention against what its CPU body counts, exactly."""

from typing import Any

import numpy as np
import pytest
from attentions import Case
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from costmodel import attention_counts, decode_attention
from kernels_numba import DecodeAttention
from kernels_numba.decode_spec import make_spec
from kernels_numba.splits import choose_splits, predicted_us


def counted(case: Case, warps: int) -> dict[str, int]:
    p = case.data()
    attend = DecodeAttention(p.q.shape, p.k.shape, case.dtype, splits=case.splits, **case.settings)
    lengths = [case.room] * case.batch if case.lengths else None
    counters = attend.run_cpu(p.q, p.k, p.v, seqlens=lengths, warps=warps)[1]
    found = dict(vars(counters))
    reads, writes = found.pop("global_read_bytes"), found.pop("global_written_bytes")
    found |= {f"read_{name}": count for name, count in reads.items()}
    found |= {f"written_{name}": count for name, count in writes.items()}
    return {name: count for name, count in found.items() if count}


def expected(case: Case, warps: int) -> dict[str, int]:
    return attention_counts.totals(
        case.size,
        case.group,
        case.tokens,
        batch=case.batch,
        kv_heads=case.kv,
        length=case.room,
        splits=case.splits,
        warps=warps,
        capped=case.softcap is not None,
        lengths=case.lengths,
    )


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    tokens=st.integers(1, 8),
    group=st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 16]),
    size=st.sampled_from([64, 72, 96, 104, 128, 136, 200, 256]),
    room=st.integers(1, 60),
    splits=st.integers(1, 5),
    warps=st.integers(1, 4),
    softcap=st.sampled_from([None, 5.0]),
    lengths=st.booleans(),
)
@example(tokens=1, group=1, size=128, room=60, splits=3, warps=4, softcap=None, lengths=False)
@example(tokens=8, group=16, size=64, room=50, splits=2, warps=2, softcap=5.0, lengths=True)
@example(tokens=3, group=2, size=192, room=33, splits=1, warps=3, softcap=None, lengths=False)
def test_counts_equal_the_counters(warps: int, **shape: Any) -> None:
    case = Case(batch=1, kv=1, kind="narrow", **shape)
    assert counted(case, warps) == expected(case, warps)


def test_several_sequences_and_heads() -> None:
    case = Case(batch=2, kv=3, group=6, room=40, splits=2)
    assert counted(case, 4) == expected(case, 4)
    assert counted(case._replace(dtype="bf16"), 4) == expected(case, 4)


@pytest.mark.parametrize("tokens", [1, 2, 8])
@pytest.mark.parametrize("group", [1, 4, 5, 16])
@pytest.mark.parametrize("size", [64, 72, 128, 192, 256])
def test_the_model_knows_the_kernel_s_shape(tokens: int, group: int, size: int) -> None:
    spec, shape = make_spec(size, group, tokens, "fp16"), attention_counts.Shape(size, group, tokens)
    for name in ("rows", "row_tiles", "unit_rows", "query_tiles", "products", "padded"):
        assert getattr(spec, name) == getattr(shape, name), name
    assert spec.value_size == shape.size
    assert spec.shared_bytes == decode_attention.shared_bytes(shape)


@given(
    batch=st.integers(1, 64),
    kv=st.sampled_from([1, 2, 8, 32]),
    group=st.sampled_from([1, 4, 8, 16]),
    size=st.sampled_from([64, 128, 256]),
    length=st.integers(1, 40000),
)
@example(batch=8, kv=32, group=1, size=128, length=4096)
def test_kernel_and_model_choose_the_same_splits(
    batch: int, kv: int, group: int, size: int, length: int
) -> None:
    spec = make_spec(size, group, 1, "fp16")
    gpu = decode_attention.load("h200-sxm")
    model = decode_attention.candidates(
        batch=batch, heads=kv * group, kv_heads=kv, head_size=size, length=length, gpu=gpu
    )
    per_sm = decode_attention.blocks_per_sm(attention_counts.Shape(size, group), gpu)
    units = batch * kv * spec.row_tiles
    splits = choose_splits(units, length, spec, 132, per_sm)
    best = model[0]
    assert splits == best.splits
    time = predicted_us(units, -(-length // 16), splits, spec, 132, per_sm)
    assert np.isclose(time + decode_attention.LAUNCH_US, best.time_us, rtol=1e-6)
