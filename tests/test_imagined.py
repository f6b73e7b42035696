"""Imagined GPUs: factors move what they must and nothing else, and the flips are the differences."""

import math

import pytest

from costmodel import fftconv, gpus, imagined
from costmodel.imagined import VALUES, best_orders, decisions, flips, what_if

LAYERS = {"o": (4096, 4096)}
SHORT = (256, 4096, 32768)


def test_no_factor_changes_nothing() -> None:
    assert what_if("b200") is gpus.load("b200")
    assert what_if("b200", clock=1, bandwidth=1.0) is gpus.load("b200")


@pytest.mark.parametrize("slug", ["b200", "h200-sxm", "a100-sxm-40gb"])
def test_rates_still_follow_from_sms_clock_and_width(slug: str) -> None:
    base = gpus.load(slug)
    there = what_if(slug, sm_count=1.01, clock=0.5, tensor_rate=2, bandwidth=3, shared_memory=0.5)
    old, new = base.spec, there.spec
    sms = round(1.01 * old["sm_count"])
    grown = sms / old["sm_count"]
    assert new["sm_count"] == sms
    assert new["fp32_flops_per_s"] == pytest.approx(old["fp32_flops_per_s"] * grown * 0.5)
    assert new["fp16_tensor_flops_per_s"] == pytest.approx(old["fp16_tensor_flops_per_s"] * grown)
    assert new["memory_bandwidth_bytes_per_s"] == 3 * old["memory_bandwidth_bytes_per_s"]
    assert new["shared_memory_per_block_bytes"] == old["shared_memory_per_block_bytes"] / 2
    assert new["l2_bytes"] == old["l2_bytes"] and there.model == base.model
    derived = 2 * sms * new["fp16_tensor_fma_per_sm_per_clock"] * new["tensor_clock_mhz"] * 1e6
    assert new["fp16_tensor_flops_per_s"] == pytest.approx(derived, rel=0.01)
    for key, row in base.measured.items():
        factor = 3 if key in ("device_copy_bytes_per_s", "read_stream_bytes_per_s") else grown * 0.5
        factor *= 2 if key in ("mma_flops_per_s", "dense_product_flops_per_s") else 1
        assert there.measured[key].median == pytest.approx(row.median * factor)


def test_every_number_of_the_files_is_scaled_or_known_not_to_be() -> None:
    """A new key in GPU files must be thought about here."""
    fixed = {"launch_latency_us", "barrier_latency_us"}
    assert set(imagined._SCALES) | fixed == {*gpus.SPEC_RANGES, *gpus.MEASURED_RANGES}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("vector_rate", {"fp32_flops_per_s", "fp16_vector_flops_per_s"}),
        ("shared_width", {"shared_memory_bytes_per_sm_per_clock"}),
        ("registers", {"registers_per_sm"}),
        ("threads", {"threads_per_sm"}),
        ("l2_size", {"l2_bytes"}),
        ("memory_size", {"memory_bytes"}),
    ],
)
def test_a_value_moves_what_it_is_and_nothing_else(name: str, keys: set[str]) -> None:
    base, there = gpus.load("b200"), what_if("b200", **{name: 0.5})
    assert {key for key in base.spec if there.spec[key] != base.spec[key]} == keys
    assert all(there.spec[key] == base.spec[key] / 2 for key in keys)


def test_fewer_registers_are_slower() -> None:
    """Fewer warps of a kernel that registers bind; half the width of shared memory takes its term twice."""
    base = fftconv.predict(1024, gpu="b200").best
    fewer, narrow = (
        fftconv.predict(1024, gpu=what_if("b200", **f)).best
        for f in ({"registers": 0.5}, {"shared_width": 0.5})
    )
    assert fewer.time_s > base.time_s
    assert narrow.terms_s["shared"] == pytest.approx(2 * base.terms_s["shared"])


@pytest.mark.parametrize("factor", [0, -1, math.inf, math.nan])
def test_impossible_factors(factor: float) -> None:
    with pytest.raises(ValueError, match="clock: got"):
        what_if("b200", clock=factor)


def test_unknown_value() -> None:
    with pytest.raises(ValueError, match=r"got 'cache'; accepted: bandwidth"):
        what_if("b200", cache=2)
    assert set(VALUES) == {name for names in imagined._SCALES.values() for name in names}


def test_flips_are_the_differences() -> None:
    base = decisions("b200", LAYERS, lengths=SHORT)
    assert flips(base, base) == []
    less = decisions(what_if("b200", shared_memory=0.25), LAYERS, lengths=SHORT)
    assert flips(base, less) == ["N = 32K: order 4 -> 3"]
    slow = decisions(what_if("b200", bandwidth=0.5), LAYERS, lengths=SHORT)
    assert {"M1 of o: 2 -> 5", "M2 of o: 17 -> 25"} <= set(flips(base, slow))


def test_only_ratios_decide_thresholds() -> None:
    """Everything twice as fast: the fixed times weigh twice, and nothing else changes hands."""
    faster = decisions(what_if("a40", bandwidth=2, clock=2), LAYERS, lengths=())
    assert faster.thresholds == decisions("a40", LAYERS, lengths=()).thresholds
    assert best_orders(what_if("b200", bandwidth=2, clock=2), SHORT) == best_orders("b200", SHORT)


def test_figure_marks_what_differs() -> None:
    pytest.importorskip("matplotlib")
    figure = imagined.orders_figure({"a": {256: 2, 4096: 3}, "b": {256: 2, 4096: 4}})
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["2", "3", "2", "4"]
    assert [text.get_weight() == "bold" for text in axes.texts] == [False, False, False, True]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["256", "4K"]
