"""The cost model of convolution layers: the published table in its ordering, the choice, the crossover."""

import pytest

from costmodel import conv2d
from costmodel.conv2d import PUBLISHED, by_operations, published


def test_published_layers_are_reproduced_in_ordering() -> None:
    """Bytes of spectra tell where the FFT wins and where it ties; operations alone do not."""
    times = [published(layer) for layer in PUBLISHED]
    order = sorted(range(5), key=lambda i: times[i][0])
    assert order == sorted(range(5), key=lambda i: PUBLISHED[i].fft_ms)
    for layer, (fft, direct) in zip(PUBLISHED, times, strict=True):
        ratio, found = layer.direct_ms / layer.fft_ms, direct / fft
        if ratio > 1.5:
            assert found > 1.5  # a clear win
        else:
            assert 0.7 < found < 1.5  # as good as a tie
            assert by_operations(layer) > 1.5 * found
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
