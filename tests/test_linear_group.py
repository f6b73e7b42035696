"""The products on warpgroups on the CPU body: what they read, which settings they take, and where they are chosen.

Their values, laws and counts are tested with those of the other kernels (`test_linear.py`, `test_linear_counts.py`),
operations in `test_tile_group_sums.py` and `test_tile_clusters.py`.
"""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel import gpus, linear
from kernels_numba import linear_group, linear_stream
from kernels_numba.linear_dispatch import choose
from kernels_numba.linear_product import Choice, Product, product
from kernels_numba.linear_run import run_cpu
from kernels_numba.linear_settings import default_choice, group_candidates
from kernels_numba.tensor_maps import MAPS_KEPT, Slot, TensorMap

ON_GROUPS = linear_group.CAPABILITY
H200_SHARED = 232448
sizes = st.integers(1, 30000)


def group(m: int, n: int, k: int, **options: int) -> Product:
    return product(Choice.of("full", **options), m, n, k, "fp16")


@pytest.mark.parametrize("stream", [0, 1])
def test_every_sm_reads_its_share_of_the_weights_once(stream: int) -> None:
    """Turned, a tile is as many rows of w as are its share, whole 64 or not; x is read once for each."""
    x, w = np.ones((21, 320), np.float16), np.ones((150, 320), np.float16)
    options = {"groups": 1, "turned": 1, "pitch": 38, "columns": 32, "stages": 4, "shares": 4}
    made = group(21, 150, 320, **options, **({"stream": 1} if stream else {}))
    assert made.family is (linear_stream if stream else linear_group)
    assert made.tiles == (1, 4) and made.grid == 4 and made.spec.halves == 2
    y, counters = run_cpu(made, x, w)
    assert (y == 320).all()
    assert counters.global_read_bytes == {"w": w.nbytes, "x": 4 * x.nbytes}
    assert counters.global_written_bytes == {"y": 2 * 21 * 150}
    assert counters.bank_conflicts == 0


def test_boxes_have_no_more_rows_than_there_are() -> None:
    x, w = np.ones((5, 128), np.float16), np.ones((151, 128), np.float16)
    made = group(5, 151, 128, stream=1, groups=1, columns=40, pitch=38, stages=3)
    assert [
        (a.rows, a.columns, a.stride, a.box_rows) for a in made.arguments("x", "x", "w", 0, 0, "y")[:2]
    ] == [
        (5, 128, 128, 5),
        (151, 128, 128, 38),
    ]
    _, counters = run_cpu(made, x, w)
    assert counters.shared_written_bytes == 4 * 2 * (5 + 38) * 128


def test_results_leave_in_whole_rows_where_a_block_has_one_tile() -> None:
    """Through shared memory, by words of two elements: not where these begin on odd places, nor turned."""
    common = {"stream": 1, "groups": 1, "columns": 40, "pitch": 38, "stages": 3}
    assert group(5, 150, 128, **common).spec.staged and group(5, 150, 128, **common, shares=4).spec.staged
    for m, n, change in (
        (5, 150, {"shares": 2}),
        (5, 151, {}),
        (5, 150, {"pitch": 37}),
        (5, 150, {"turned": 1}),
    ):
        assert not group(m, n, 128, **{**common, **change}).spec.staged
    x = np.random.default_rng(0).standard_normal((5, 128)).astype(np.float16)
    w = np.eye(150, 128).astype(np.float16)
    y, counters = run_cpu(group(5, 150, 128, **common), x, w)
    assert np.array_equal(y[:, :128], x) and not y[:, 128:].any() and counters.bank_conflicts == 0


@pytest.mark.parametrize("split", [2, 3, 8])
def test_blocks_that_split_k_write_no_partial_sums(split: int) -> None:
    """Their sums meet in shared memory; y is written once, and nothing else."""
    x, w = np.ones((9, 640), np.float16), np.ones((70, 640), np.float16)
    made = group(9, 70, 640, stream=1, groups=1, columns=192, pitch=70, stages=3, split=split)
    assert made.grid == split == made.spec.cluster and made.partial_floats == 0
    y, counters = run_cpu(made, x, w)
    assert (y == 640).all()
    assert counters.global_read_bytes == {"w": w.nbytes, "x": x.nbytes}
    assert counters.global_written_bytes == {"y": y.nbytes}


def test_rows_that_begin_anywhere() -> None:
    """Words for few rows: K odd wants two copies of x, K even one; w is copied only where it ends within a word."""
    for n, k, phases, copy_w in ((150, 321, 2, False), (150, 322, 1, False), (151, 321, 1, True)):
        made = group(3, n, k, groups=1, columns=32, stages=3)
        assert (made.phases, made.copy_w, made.shift_x, made.spec.overlap) == (
            phases,
            copy_w,
            True,
            not copy_w,
        )
        assert not made.early  # the weights come early, x is copied after the launch before
        streamed = group(3, n, k, stream=1, groups=1, columns=32, stages=3)
        assert streamed.copy_w and streamed.shift_x and not streamed.spec.overlap


def test_pairs_of_results_are_stored_together_where_they_can_be() -> None:
    """Rows of w of a tile in odd number leave the next one's first result on an odd place."""
    common = {"stream": 1, "groups": 1, "turned": 1, "columns": 16, "stages": 3}
    for pitch, n, halves in ((38, 150, 2), (37, 150, 1), (38, 151, 1)):
        assert group(3, n, 64, **common, pitch=pitch).spec.halves == halves
    assert group(64, 32, 64, stream=1, groups=1, columns=16, stages=3).pitch == 16


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"groups": 2, "columns": 48}, "2 warpgroups copy 32 rows at once"),
        ({"groups": 1, "columns": 272}, "at most 256 columns"),
        ({"groups": 1, "columns": 16, "stages": 2}, "at least 3; got 2"),
        (
            {"groups": 1, "columns": 16, "split": 4},
            "each stores an equal part of its columns, 16, in eights; got 4",
        ),
        ({"stream": 1, "columns": 12}, "so a multiple of 8; got 12"),
        ({"stream": 1, "columns": 264}, "has at most 256, so a multiple of 8; got 264"),
        ({"stream": 1, "columns": 16, "split": 4}, "so a multiple of 32; got 16"),
        ({"stream": 1, "columns": 144, "split": 9}, "split: up to 8 blocks of a cluster share a tile; got 9"),
        ({"stream": 1, "columns": 16, "stages": 1}, "at least 2; got 1"),
        (
            {"stream": 1, "groups": 2, "columns": 256, "stages": 3, "split": 2},
            "41472 words of their shared memory; 3",
        ),
    ],
)
def test_refused_settings(chosen: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        group(3, 64, 640, **{"groups": 1, **chosen})


@settings(max_examples=60)
@given(m=st.integers(1, 5000), n=sizes, k=sizes, sms=st.integers(1, 200), kib=st.integers(80, 227))
def test_defaults_fit(m: int, n: int, k: int, sms: int, kib: int) -> None:
    """On compute capability 9.0 the full product runs on warpgroups, within shared memory; elsewhere never.

    Only rows that do not begin on 16 bytes are copied by words.
    """
    where = {"sm_count": sms, "shared_bytes": 1024 * kib}
    found = default_choice("full", m, n, k, capability=ON_GROUPS, **where)
    made = product(found, m, n, k, "fp16")
    on_groups = isinstance(made.spec, linear_group.Spec | linear_stream.Spec)
    assert on_groups == any(group_candidates(m, n, k, **where))
    assert made.spec.shared_bytes <= 1024 * kib
    assert made.tiles[0] * getattr(made.spec, "x_rows", 1 << 20) >= m
    if on_groups:
        assert made.pitch <= made.spec.w_rows and made.tiles[1] * made.pitch >= n
        assert not getattr(made.spec, "words", False) or k % 8
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


def test_maps_follow_their_pointers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map is made once for an address, as long as not too many came between; for one that stays at once."""
    made: list[int] = []

    def encoded(self: Any, pointer: int) -> bytes:
        made.append(pointer)
        return pointer.to_bytes(8, "little") * 16

    monkeypatch.setattr(TensorMap, "encoded", encoded)
    slot = Slot(TensorMap("x", 3, 64, 64, 3))
    assert not made
    for pointer in (16, 32, 16, 16):
        slot.point_to(pointer)
        assert list(slot.storage) == [pointer] * 16
    assert made == [16, 32]
    for pointer in range(48, 48 + 16 * MAPS_KEPT, 16):
        slot.point_to(pointer)
    slot.point_to(16)
    assert made.count(16) == 2 and len(slot.known) <= MAPS_KEPT
    assert list(Slot(TensorMap(4096, 3, 64, 64, 3)).storage) == [4096] * 16
