"""Blocks that share x: what is read how often, which settings fit, and which are refused.

Values, laws and counts are tested with those of the other kernels (`test_linear.py`, `test_linear_counts.py`), the
operations in `test_tile_clusters.py`.
"""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_numba import linear_cluster
from kernels_numba.linear_product import Choice, product
from kernels_numba.linear_run import run_cpu
from kernels_numba.linear_settings import cluster_choice

SMALL = {"groups": 1, "columns": 48, "depth": 1, "stages": 4, "cluster": 2, "pitch": 38}


def test_x_is_read_once_for_each_cluster() -> None:
    """And w once by all, whole shares or not; no bank twice."""
    x, w = np.ones((21, 320), np.float16), np.ones((150, 320), np.float16)
    made = product(Choice.of("full", **SMALL), 21, 150, 320, "fp16")
    assert made.family is linear_cluster and made.grid == 4 and made.spec.halves == 2
    y, counters = run_cpu(made, x, w)
    assert (y == 320).all()
    assert counters.global_read_bytes == {"w": w.nbytes, "x": 2 * x.nbytes}
    assert counters.global_written_bytes == {"y": 2 * 21 * 150}
    assert counters.bank_conflicts == 0


@settings(max_examples=60)
@given(
    m=st.integers(1, 256),
    n=st.integers(1, 30000),
    slabs=st.integers(1, 100),
    cluster=st.sampled_from((2, 4, 8)),
    depth=st.integers(1, 2),
    per_sm=st.integers(1, 2),
    kib=st.integers(80, 227),
)
def test_settings_fit(m: int, n: int, slabs: int, cluster: int, depth: int, per_sm: int, kib: int) -> None:
    """Within shared memory, all rows of x and w in one wave of blocks."""
    where = {"cluster": cluster, "depth": depth, "per_sm": per_sm}
    found = cluster_choice(m, n, 64 * slabs, 132, 1024 * kib, **where)
    if found is None:
        return
    made = product(found, m, n, 64 * slabs, "fp16")
    assert per_sm * (made.spec.shared_bytes + 1024) <= 1024 * (kib + 1)
    assert made.spec.x_rows >= m and made.grid * made.pitch >= n
    assert made.grid % cluster == 0 and made.grid <= 132 * per_sm + cluster
    assert made.spec.columns >= made.pitch


def test_some_settings_fit_an_h200() -> None:
    for m in (16, 64, 100, 128):
        for n, k in ((11008, 4096), (5120, 5120), (4096, 11008)):
            assert cluster_choice(m, n, k, 132, 232448, cluster=2)
    assert cluster_choice(64, 11008, 4095, 132, 232448, cluster=2) is None
    assert cluster_choice(64, 11008, 4096 + 64, 132, 232448, cluster=2, depth=2) is None


@pytest.mark.parametrize(
    ("change", "shape", "message"),
    [
        ({"columns": 40}, (3, 64, 64), "1 warpgroups copy 16 rows at once"),
        ({"stages": 3}, (3, 64, 64), "at least 4; got 3"),
        ({"cluster": 3}, (3, 64, 64), "blocks, which any GPU with clusters takes; got 3"),
        ({"depth": 3}, (3, 64, 192), "expected 1 or 2 slabs a step; got 3"),
        ({"split": 2}, (3, 64, 64), "blocks that share x do not split K"),
        ({}, (65, 64, 64), "takes at most M=64 rows of x and whole steps of K, 64 each; got M=65, K=64"),
        ({"depth": 2}, (3, 64, 192), "whole steps of K, 128 each; got M=3, K=192"),
    ],
)
def test_refused_settings(change: dict[str, int], shape: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        product(Choice.of("full", **{**SMALL, **change}), *shape, "fp16")
