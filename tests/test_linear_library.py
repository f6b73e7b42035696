"""The time of a library's linear layer: its constant from the H200's measurements, its error on three other GPUs."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel import gpus, measurements
from costmodel.linear_library import ERROR, LARGEST_M, START_S, moved_bytes, predict, simple_rule_us

VIDUR = Path(__file__).resolve().parents[2] / "shared" / "data" / "vidur_llama2_7b_tp1_gemm.csv"
needs_vidur = pytest.mark.skipif(not VIDUR.exists(), reason="the library's measured times are not here")
A100 = gpus.load("a100-sxm-80gb")
# The table says "a100"; its makers had DGX nodes (SXM) and nodes of the PCIe card, whose data sheet has 1935 GB/s.
A100_PCIE = replace(A100, spec={**A100.spec, "memory_bandwidth_bytes_per_s": 1.935e12})
CARDS = {"a100": A100, "h100": gpus.load("h100-sxm"), "a40": gpus.load("a40")}


def own_times() -> list[tuple[int, int, int, float]]:
    """(M, N, K, microseconds) of cuBLAS on the H200, M up to 64, rows of whole 16 bytes."""
    rows = [row for row in measurements.read("h200-sxm", op="linear") if row.provider == "cublas"]
    found = [(*(int(row.case_values[key]) for key in "MNK"), row.median_us) for row in rows]
    return [row for row in found if row[0] <= LARGEST_M and row[1] % 8 == row[2] % 8 == 0]


def errors(cards: dict[str, gpus.GPU], name: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Relative errors of the model and of the simple rule, on the rows of one card or of all."""
    table = list(csv.DictReader(VIDUR.read_text().splitlines()))
    model, rule = [], []
    for row in table:
        m, n, k = (int(row[key]) for key in "mnk")
        if m <= LARGEST_M and name in ("", row["gpu"]):
            card, time = cards[row["gpu"]], float(row["time_us"])
            model.append(predict(m, n, k, gpu=card).time_us / time - 1)
            rule.append(simple_rule_us(n, k, gpu=card) / time - 1)
    return np.array(model), np.array(rule)


def test_the_constant_is_the_h200s() -> None:
    own = own_times()
    rate = gpus.load("h200-sxm").measured["device_copy_bytes_per_s"].median
    rest = [us - moved_bytes(m, n, k) / rate * 1e6 for m, n, k, us in own]
    off = [predict(m, n, k, gpu="h200-sxm").time_us / us - 1 for m, n, k, us in own]
    assert len(own) == 180
    assert np.median(rest) == pytest.approx(START_S * 1e6, rel=0.1)
    assert np.sqrt(np.mean(np.square(off))) == pytest.approx(ERROR, rel=0.2)


@needs_vidur
@pytest.mark.parametrize(("name", "most"), [("a100", 0.07), ("h100", 0.04), ("a40", 0.04), ("", 0.04)])
def test_times_on_gpus_that_nothing_was_fitted_to(name: str, most: float) -> None:
    """The target is 10 %; the bounds are what docs/cost-model.md says, rounded up."""
    model, _ = errors(CARDS, name)
    assert len(model) == (44 if name else 132)
    assert np.median(np.abs(model)) < most


@needs_vidur
def test_beats_the_simple_rule_but_for_the_a100_read_as_sxm() -> None:
    for cards, worse in ((CARDS, {"a100"}), ({**CARDS, "a100": A100_PCIE}, set())):
        for name in ("", *cards):
            model, rule = (np.median(np.abs(e)) for e in errors(cards, name))
            assert (model > rule) == (name in worse), name


@needs_vidur
def test_a_wrong_bandwidth_is_noticed() -> None:
    wrong = {"a40": replace(CARDS["a40"], spec={**CARDS["a40"].spec, "memory_bandwidth_bytes_per_s": 864e9})}
    assert np.median(np.abs(errors({**CARDS, **wrong}, "a40")[0])) > 0.1


def test_interval_and_refusals() -> None:
    found = predict(8, 4096, 4096, gpu="a40")
    assert found.time_low_us < found.time_us < found.time_high_us
    assert found.time_us > START_S * 1e6
    with pytest.raises(ValueError, match="M: got 65; accepted: up to 64"):
        predict(65, 4096, 4096, gpu="a40")
    with pytest.raises(ValueError, match="at least 1"):
        predict(1, 0, 4096, gpu="a40")
