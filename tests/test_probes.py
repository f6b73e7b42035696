"""The kernels that measure a GPU: right results on the CPU body, and counts in closed form equal to its counters."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels_numba import group_probes, probe_checks, probes
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.cpu_vocabularies import tile
from kernels_numba.tile.machine import Buffer, Machine

POISON = np.int32(0x7FC07FC0)


def run(
    spec: Any, n: int, blocks: int, turns: int, shift: int = 0
) -> tuple[NDArray[np.int32], NDArray[np.int32], Counters]:
    family = probe_checks.family_of(spec)
    workers = blocks * spec.warps
    source = probe_checks.source(spec, n, workers)
    target = np.full(family.target_words(spec, n, workers), POISON, np.int32)
    machine = Machine()
    kernel = family.build(tile(machine, spec.dtype, family.VOCABULARY), spec)
    buffers = [Buffer("source", source), Buffer("target", target)]
    counters = machine.run(
        kernel, blocks, spec.warps, spec.shared_bytes // 4, [*buffers, n, workers, turns, shift]
    )
    return source, target, counters


def agree(spec: Any, counters: Counters, n: int, workers: int, turns: int) -> None:
    wanted = probe_checks.family_of(spec).work(spec, n, workers, turns)
    found = counters.as_dict()
    for name in ("global_read_bytes", "global_written_bytes"):
        found[name] = sum(found[name].values())
    assert {name: found[name] for name in wanted} == wanted
    idle = {"blocks", "warps", "shared_wavefronts", "bank_conflicts", *wanted}
    if spec.kind != "group":
        assert not any(value for name, value in found.items() if name not in idle)
        assert found["bank_conflicts"] == 0


SPECS = [
    *(probes.Spec(kind, depth=4, warps=2) for kind in probes.KINDS),
    probes.Spec("fma_halves", depth=4, warps=1, dtype="bf16"),
    probes.Spec("mma", warps=1, dtype="bf16"),
    probes.Spec("mma_narrow", warps=1, dtype="bf16"),
    group_probes.Spec(64),
    group_probes.Spec(128, "bf16"),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_results_and_counts(spec: Any) -> None:
    turns = 15 if spec.kind == "exp" else 3
    source, target, counters = run(spec, n=7, blocks=2, turns=turns, shift=3)
    workers = 2 * spec.warps
    assert probe_checks.problem(spec, source, target, 7, workers, turns) is None
    agree(spec, counters, 7, workers, turns)


@settings(max_examples=10)
@given(
    kind=st.sampled_from(["read", "write", "copy"]),
    depth=st.integers(1, 3),
    warps=st.integers(1, 3),
    blocks=st.integers(1, 3),
    n=st.integers(1, 9),
    turns=st.sampled_from([1, 3, 5]),
    data=st.data(),
)
def test_streams_touch_every_tile_once_a_turn(
    kind: str, depth: int, warps: int, blocks: int, n: int, turns: int, data: st.DataObject
) -> None:
    spec = probes.Spec(kind, depth, warps)
    shift = data.draw(st.integers(0, n - 1))
    source, target, counters = run(spec, n, blocks, turns, shift)
    assert probe_checks.problem(spec, source, target, n, blocks * warps, turns) is None
    agree(spec, counters, n, blocks * warps, turns)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_wrong_result_is_seen(spec: Any) -> None:
    turns = 15 if spec.kind == "exp" else 1
    source, target, _ = run(spec, n=5, blocks=1, turns=turns)
    for place in (0, target.size // 2, target.size - 1):
        wrong = target.copy()
        wrong[place] ^= 1 << 22  # a bit that counts in float32 and in the upper half
        assert probe_checks.problem(spec, source, wrong, 5, spec.warps, turns)
    assert probe_checks.problem(spec, source, np.full_like(target, POISON), 5, spec.warps, turns)


@pytest.mark.gpu
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_on_a_gpu(spec: Any) -> None:
    from kernels_numba import device
    from kernels_numba.launch import DeviceBuffer, load, synchronize

    if spec.kind == "group" and device().capability != group_probes.CAPABILITY:
        pytest.skip("warpgroup products need compute capability 9.0")
    family, workers, turns = probe_checks.family_of(spec), 2 * spec.warps, 15
    source = probe_checks.source(spec, 7, workers)
    there = DeviceBuffer.of(source, 0)
    target = DeviceBuffer.of(np.full(family.target_words(spec, 7, workers), POISON, np.int32), 0)
    load(family, spec, 0).launcher(2, (*probes.NAMES, 7, workers, turns, 3), probes.NAMES)(
        0, there.pointer, target.pointer
    )
    synchronize(0)
    assert probe_checks.problem(spec, source, target.host(), 7, workers, turns) is None


def test_the_operands_are_no_zeros() -> None:
    """Zeros take less power than numbers, so clocks and rates would be higher than those of kernels."""
    for spec in SPECS:
        words = probe_checks.source(spec, 4, 4)
        assert np.count_nonzero(words) > 0.99 * words.size, spec.name
    halves = probe_checks.source(probes.Spec("mma"), 4, 4).view(np.float16)
    assert (halves != 0).all() and halves.std() > 1


def test_what_cannot_be_seen_is_not_checked() -> None:
    spec = probes.Spec("read", 1, 1)
    with pytest.raises(ValueError, match=r"turns: got 2.*odd"):
        probe_checks.problem(spec, np.zeros(128, np.int32), np.zeros(128, np.int32), 1, 1, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("move",), "kind: got 'move'; accepted: read"),
        (("fma", 3), "depth: got 3.*multiple of 4"),
        (("read", 0), "depth"),
    ],
)
def test_bad_specs(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        probes.Spec(*arguments)
