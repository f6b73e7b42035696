"""Counts of softmax and of short filters: equal to the counters of their CPU bodies."""

from typing import Any

import numpy as np
from convolutions import noise
from hypothesis import example, given, settings
from hypothesis import strategies as st

from costmodel import pass_counts
from kernels_numba import line_softmax, short_conv
from kernels_numba.softmax import softmax_cpu
from kernels_numba.tile.counters import Counters

COUNTED = ("fp32_flops", "exponentials", "shared_read_bytes", "shared_written_bytes", "shared_wavefronts")


def named(counters: Counters) -> dict[str, Any]:
    """What the CPU body counted, by the names of the model; zeros left out."""
    found: dict[str, Any] = counters.as_dict()
    out = {f"read_{k}": v for k, v in found["global_read_bytes"].items()}
    out |= {f"written_{k}": v for k, v in found["global_written_bytes"].items()}
    out |= {k: found[k] for k in (*COUNTED, "barriers", "mma_m16n8k16", "bank_conflicts", "half_flops")}
    return {k: v for k, v in out.items() if v}


@settings(max_examples=40)
@given(rows=st.integers(1, 10), n=st.integers(1, 2400), sync=st.booleans(), far=st.sets(st.integers(0, 9)))
@example(rows=3, n=line_softmax.SHORT, sync=False, far={1})
@example(rows=3, n=line_softmax.SHORT + 1, sync=False, far={0, 2})
@example(rows=2, n=line_softmax.SHORT + 1, sync=True, far=set())
def test_softmax(rows: int, n: int, sync: bool, far: set[int]) -> None:
    x = np.random.default_rng(n).standard_normal((rows, n)).astype(np.float16)
    flagged = sorted(row for row in far if row < rows)
    x[flagged, -1] = 60
    scheme: dict[str, Any] = {"variant": "sync"} if sync else {"phi": 0.0, "bounds": (-20.0, 20.0)}
    counted = pass_counts.softmax(
        rows, n, team=n > line_softmax.SHORT, sync=sync, flagged=0 if sync else len(flagged)
    )
    assert {k: v for k, v in counted.items() if v} == named(softmax_cpu(x, **scheme)[1])


@settings(max_examples=30)
@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 3),
    length=st.integers(1, 1300),
    taps=st.integers(1, short_conv.MOST_TAPS),
)
@example(batch=1, channels=2, length=short_conv.SPAN + 8, taps=3)
@example(batch=1, channels=1, length=2 * short_conv.SPAN + 1, taps=8)
def test_short_filters(batch: int, channels: int, length: int, taps: int) -> None:
    x = noise((batch, channels, length), "fp16", 1)
    w = np.ones((channels, taps), np.float32)
    for backward in (False, True):
        ran = short_conv.run_cpu_gradients(x, w, x)[2] if backward else short_conv.run_cpu(x, w)[1]
        counted = pass_counts.short_conv(
            batch * channels, length, taps, span=short_conv.SPAN, backward=backward
        )
        assert counted == named(ran)
