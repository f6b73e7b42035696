"""The product on warpgroups on the CPU body: what it reads, which settings it takes, and where it is chosen.

Its values, laws and counts are tested with those of the other kernels (`test_linear.py`, `test_linear_counts.py`), its
operations in `test_tile_group_sums.py`.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel import gpus, linear
from kernels_numba import linear_group
from kernels_numba.linear_dispatch import choose
from kernels_numba.linear_product import Choice, product
from kernels_numba.linear_run import run_cpu
from kernels_numba.linear_settings import default_choice, group_candidates

ON_GROUPS = linear_group.CAPABILITY
H200_SHARED = 232448
sizes = st.integers(1, 30000)


def test_every_sm_reads_its_share_of_the_weights_once() -> None:
    """Turned, a tile is as many rows of w as are its share, whole 64 or not; x is read once for each."""
    x, w = np.ones((21, 320), np.float16), np.ones((150, 320), np.float16)
    choice = Choice.of("full", groups=1, turned=1, pitch=38, columns=32, stages=4, shares=4)
    made = product(choice, 21, 150, 320, "fp16")
    assert made.tiles == (1, 4) and made.grid == 4 and made.spec.halves == 2
    _, counters = run_cpu(made, x, w)
    assert counters.global_read_bytes == {"w": w.nbytes, "x": 4 * x.nbytes}
    assert counters.global_written_bytes == {"y": 2 * 21 * 150}
    assert counters.bank_conflicts == 0


def test_pairs_of_results_are_stored_together_where_they_can_be() -> None:
    """Rows of w of a tile in odd number leave the next one's first result on an odd place."""
    common = {"groups": 1, "turned": 1, "columns": 16, "stages": 3}
    for pitch, n, halves in ((38, 150, 2), (37, 150, 1), (38, 151, 1)):
        made = product(Choice.of("full", **common, pitch=pitch), 3, n, 64, "fp16")
        assert made.spec.halves == halves and made.spec.guarded
    whole = product(Choice.of("full", groups=1, columns=16, stages=3), 64, 32, 64, "fp16")
    assert not whole.spec.guarded and whole.pitch == 16


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"groups": 2, "columns": 48}, "2 warpgroups copy 32 rows at once"),
        ({"groups": 1, "columns": 272}, "at most 256 columns"),
        ({"groups": 1, "columns": 16, "stages": 2}, "at least 3; got 2"),
    ],
)
def test_refused_settings(chosen: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        product(Choice.of("full", **chosen), 3, 64, 64, "fp16")


@settings(max_examples=40)
@given(m=st.integers(1, 5000), n=sizes, k=sizes, sms=st.integers(1, 200), kib=st.integers(80, 227))
def test_defaults_fit(m: int, n: int, k: int, sms: int, kib: int) -> None:
    """On compute capability 9.0 the full product runs on warpgroups, within shared memory; elsewhere never."""
    where = {"sm_count": sms, "shared_bytes": 1024 * kib}
    found = default_choice("full", m, n, k, capability=ON_GROUPS, **where)
    made = product(found, m, n, k, "fp16")
    assert isinstance(made.spec, linear_group.Spec) == any(group_candidates(m, n, k, **where))
    assert made.spec.shared_bytes <= 1024 * kib
    assert made.tiles[0] * getattr(made.spec, "x_rows", 1 << 20) >= m
    assert not made.pitch or made.pitch <= made.spec.w_rows
    for capability in (None, (8, 0), (10, 0)):
        other = default_choice("full", m, n, k, capability=capability, sm_count=sms)
        assert "groups" not in other.options


def test_dispatch_knows_the_capability() -> None:
    for capability in (ON_GROUPS, (8, 0), None):
        found = choose(512, 96, 1024, "fp16", "A GPU", 132, capability=capability)
        assert found.choice.impl == "full"
        assert ("groups" in found.choice.options) == (capability == ON_GROUPS)


def test_predictions_use_it_where_it_runs() -> None:
    for slug in ("h200-sxm", "h100-pcie", "a100-sxm-40gb", "l4", "b200"):
        candidates = linear.predict(512, 4096, 4096, gpu=slug)
        on_groups = gpus.load(slug).compute_capability == "9.0"
        assert all(("groups" in c.choice.options) == on_groups for c in candidates)
    choice = default_choice("full", 512, 4096, 4096, capability=ON_GROUPS, shared_bytes=H200_SHARED)
    made = product(choice, 512, 4096, 4096, "fp16")
    with pytest.raises(ValueError, match="no products on warpgroups"):
        linear.time_of(made, linear.rates("a100-sxm-40gb"))
    seconds, _, terms = linear.time_of(made, linear.rates("h200-sxm"))
    early, _, _ = linear.time_of(made, linear.rates("h200-sxm"), overlap=True)
    assert early < seconds and max(terms.values()) < seconds < sum(terms.values())
