"""The cost model of convolution layers: the published table in its ordering, the choice, the crossover."""

import json

import numpy as np
import pytest

from costmodel import conv2d, measurements
from costmodel.cli import main
from costmodel.conv2d import (
    PUBLISHED,
    TITAN_X,
    TITAN_X_BANDWIDTH,
    by_operations,
    memory_share,
    published,
)
from costmodel.measure_conv2d import BACKWARD, cases
from kernels_numba.conv2d_dispatch import explain
from kernels_numba.conv2d_geometry import Geometry


def test_published_layers_are_reproduced_in_ordering() -> None:
    """Bytes of spectra tell how the layers rank and on which the FFT wins; operations alone do not."""
    times = [published(layer) for layer in PUBLISHED]
    order = sorted(range(5), key=lambda i: times[i][0])
    assert order == sorted(range(5), key=lambda i: PUBLISHED[i].fft_ms)
    gains, found = (
        [d / f for f, d in pairs] for pairs in (((x.fft_ms, x.direct_ms) for x in PUBLISHED), times)
    )
    assert sorted(range(5), key=lambda i: found[i]) == sorted(range(5), key=lambda i: gains[i])
    assert memory_share() == pytest.approx(TITAN_X.memory / TITAN_X_BANDWIDTH)
    for layer, (fft, direct), gain, ratio in zip(PUBLISHED, times, gains, found, strict=True):
        assert (ratio > 1) == (gain > 1) and 0.8 < ratio / gain < 1.2
        assert by_operations(layer) > 1.4 * ratio
        assert 0.5 < fft / layer.fft_ms < 2
        assert 0.5 < direct / layer.direct_ms < 2
    assert by_operations(PUBLISHED[0]) > 10


def test_prediction_names_what_it_costs() -> None:
    found = conv2d.predict(128, 96, 96, 32, 7, gpu="h200-sxm")
    assert found.impl == "fft" and found.plan is not None and found.plan.tile == (32, 32)
    assert [name for name, *_ in found.launches] == [
        "transform of x",
        "transform of w",
        "product",
        "inverse transform",
    ]
    spectra = 4 * 512 * 96 * (128 + 96 + 128)
    assert found.plan.bytes == spectra and dict((n, b) for n, b, *_ in found.launches)["product"] == spectra
    slower = conv2d.predict(128, 96, 96, 32, 7, gpu="a100-sxm-40gb")
    assert slower.fft_us > found.fft_us  # type: ignore[operator]


@pytest.mark.parametrize("which", ["forward", "input_gradient", "weight_gradient"])
def test_crossover_moves_with_the_shape(which: str) -> None:
    """The FFT wins from some k on, and stays ahead; with few images the filters' spectra weigh more."""
    k = conv2d.crossover(128, 96, 96, 32, gpu="h200-sxm", which=which)
    assert k is not None and k <= 7
    assert conv2d.predict(128, 96, 96, 32, k, gpu="h200-sxm", which=which).impl == "fft"
    few = conv2d.crossover(2, 256, 256, 16, gpu="h200-sxm", which=which)
    assert few is None or few > k


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", "conv2d", "--gpu", "h200-sxm", "-B", "128", "--Cin", "96", "-N", "32"]
    assert main([*asked, "-K", "7", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"] == {
        "op": "conv2d", "S": 128, "Cin": 96, "Cout": 96, "n": 32, "k": 7, "pass": "fprop", "dtype": "fp16"
    }  # fmt: skip
    assert found["best"] == found["candidates"][0] and found["best"]["plan"] == "fft 32x32"
    times = [c["time_us"] for c in found["candidates"]]
    assert times == sorted(times)
    for c in found["candidates"]:
        assert c["time_low_us"] < c["time_us"] < c["time_high_us"] and c["margin"] >= 0
    assert main([*asked, "-K", "3,7", "--pass", "bprop", "--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("gpu,S,Cin,Cout,n,k,pass,plan,time_us") and len(lines) == 3
    assert main([*asked, "-K", "99"]) == 2  # larger than the map
    assert "cover (99, 99) samples of (32, 32)" in capsys.readouterr().err
    assert main([*asked, "-K", "7", "--dtype", "fp32", "--format", "json"]) == 0
    single = json.loads(capsys.readouterr().out)
    assert single["best"]["time_us"] > found["best"]["time_us"] and single["best"]["plan"].startswith("fft")
    assert main(["predict", "conv2d", "--gpu", "h200-sxm", "-N", "99", "-K", "70"]) == 0
    assert "2x2 parts" in capsys.readouterr().out


def test_measured_cases() -> None:
    """Each once, the published layers among them; bytes and operations are the layer's own."""
    found = list(cases())
    assert len({(case.name, case.dtype, case.groups) for case in found}) == len(found)
    published_ones = {(x.batch, x.inputs, x.outputs, x.size, x.taps) for x in PUBLISHED}
    assert published_ones <= {(c.batch, c.inputs, c.outputs, c.size, c.taps) for c in found}
    first = found[0]
    assert first.name == "S=128;Cin=96;Cout=96;n=32;k=7;pass=fprop"
    assert first.flops == 2 * 128 * 96 * 96 * 26**2 * 49
    assert first.bytes_min == 2 * (128 * 96 * (32**2 + 26**2) + 96 * 96 * 49)


def test_depthwise_layers_go_the_faster_way() -> None:
    """In one launch, by far the FFT, ahead of the library in either layout; a single tap is the library's."""
    times: dict[str, dict[str, float]] = {}
    for row in measurements.read("h200-sxm", op="conv2d"):
        library, _, variant = row.provider.partition(":")
        spectra = (
            row.ours and "MB of sums" not in row.note
        )  # several launches, as they are where spectra are kept
        if variant.startswith("depthwise") and BACKWARD not in row.case and not spectra:
            times.setdefault(row.case, {})[library + variant.removeprefix("depthwise")] = row.median_us
    both = {case: found for case, found in times.items() if "ours" in found}
    assert len(both) >= 6
    for case, found in both.items():
        v = measurements.parse_case("conv2d", case)
        s, channels, n, k = (int(v[key]) for key in ("S", "Cin", "n", "k"))
        geometry = Geometry.of((s, channels, n, n), (channels, 1, k, k), groups=channels)
        way = explain(geometry, conv2d.PASSES[str(v["pass"])], "fp16", rates=conv2d.rates("h200-sxm"))
        assert way.fft_us is not None and abs(way.fft_us / found["ours"] - 1) < 0.25
        assert way.impl == "fft" and found["ours"] == min(found.values()), case
    one = Geometry.of((128, 96, 32, 32), (96, 1, 1, 1), groups=96)
    assert explain(one, "forward", "fp16", rates=conv2d.rates("h200-sxm")).impl == "direct"


def test_measurements_are_predicted() -> None:
    """Half of the times within 10 %, nine in ten within 20 %; the way taken is never much slower than the other."""
    times: dict[tuple[str, str], dict[str, float]] = {}
    for row in measurements.read("h200-sxm", op="conv2d"):
        times.setdefault((row.case, row.dtype), {})[row.provider] = row.median_us
    assert len(times) > 40
    errors, regrets = [], []
    for (case, dtype), found in times.items():
        if "ours" not in found:  # a depthwise layer
            continue
        v = measurements.parse_case("conv2d", case)
        s, inputs, outputs, n, k = (int(v[key]) for key in ("S", "Cin", "Cout", "n", "k"))
        if k >= 7:  # ahead of the library, in either layout
            assert found["ours"] < min(found["cudnn"], found["cudnn:channels-last"])
        if v["pass"] == BACKWARD:
            continue
        which = conv2d.PASSES[str(v["pass"])]
        predicted = conv2d.predict(s, inputs, outputs, n, k, gpu="h200-sxm", which=which, dtype=dtype)
        assert predicted.fft_us is not None
        errors.append(abs(predicted.fft_us / found["ours"] - 1))
        taken = found["ours" if predicted.impl == "fft" else "cudnn"]
        regrets.append(taken / min(found["ours"], found["cudnn"]))
    assert np.median(errors) < 0.1 and np.percentile(errors, 90) < 0.2
    assert max(regrets) < 1.15
