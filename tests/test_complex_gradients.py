"""Gradients of complex convolutions by the kernels, on whichever body runs here, against the exact ones."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import reference
from kernels_numba import FFTConvGradients, fftconv_gradients, prepare_filter
from kernels_numba.arrays import COMPLEX32

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")

GATES = ("pregate", "postgate")


def noise(shape: tuple[int, ...], seed: int) -> NDArray[np.complex64]:
    parts = np.random.default_rng(seed).standard_normal((2, *shape))
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


def apart(found: Any, exact: Any) -> float:
    """Relative difference in L2."""
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


@pytest.mark.parametrize("complex_filter", [True, False])
@pytest.mark.parametrize(
    ("mode", "length", "taps", "gates", "products"),
    [
        ("circular", 256, 256, (), None),
        ("causal", 200, 130, GATES, None),
        ("two-sided", 151, 77, GATES[1:], None),
        ("circular", 100, 100, GATES[:1], None),
        ("causal", 128, 128, GATES, "fp16"),
    ],
)
def test_as_the_reference(
    mode: str, length: int, taps: int, gates: tuple[str, ...], products: str | None, complex_filter: bool
) -> None:
    u, dy = noise((3, 2, length), 1), noise((3, 2, length), 2)
    k = noise((2, taps), 3) if complex_filter else noise((2, taps), 3).real
    both = {name: noise(u.shape, 4 + i) for i, name in enumerate(gates)}
    found = fftconv_gradients(u, k, dy, mode=mode, products=products, **both)
    exact = reference.fftconv_gradients(dy, u, k, mode=mode, **both)
    bound = 4e-7 if products is None else 8 * reference.fftconv_bound(2, "fp16", gates=2)
    for name in ("u", "k", *gates):
        got, wanted = getattr(found, name), getattr(exact, name)
        assert got.shape == wanted.shape
        assert np.iscomplexobj(got) == (name != "k" or complex_filter)
        assert apart(got, wanted) <= bound, name
    assert all(getattr(found, name) is None for name in set(GATES) - set(gates))


def test_two_halves() -> None:
    """complex32: records of two fp16 go in, and come out for all but the filter."""
    wide = [noise((2, 2, 256), i) for i in range(4)]
    arrays = []
    for x in wide:
        narrow = np.empty(x.shape, COMPLEX32)
        narrow["real"], narrow["imag"] = x.real, x.imag
        arrays.append(narrow)
    u, dy, before, after = ((x["real"] + 1j * x["imag"]).astype(np.complex64) for x in arrays)
    k = noise((2, 256), 5) / 16
    found = fftconv_gradients(arrays[0], k, arrays[1], pregate=arrays[2], postgate=arrays[3])
    exact = reference.fftconv_gradients(dy, u, k, pregate=before, postgate=after)
    bound = 8 * reference.fftconv_bound(2, "fp16", gates=2)
    for name in ("u", *GATES):
        got = getattr(found, name)
        assert got.dtype == COMPLEX32
        assert apart(got["real"] + 1j * got["imag"].astype(float), getattr(exact, name)) <= bound
    assert found.k.dtype == np.complex64 and apart(found.k, exact.k) <= bound


def test_only_what_is_needed() -> None:
    u, dy, gate = (noise((2, 2, 256), i) for i in range(3))
    k = noise((2, 256), 3)
    whole = fftconv_gradients(u, k, dy, pregate=gate, postgate=gate)
    for name in ("u", "k", *GATES):
        found = fftconv_gradients(u, k, dy, pregate=gate, postgate=gate, needs=name)
        assert [n for n in ("u", "k", *GATES) if getattr(found, n) is not None] == [name]
        assert np.array_equal(getattr(found, name), getattr(whole, name))


def test_one_filter_for_all_channels() -> None:
    u, dy, k = noise((2, 3, 200), 1), noise((2, 3, 200), 2), noise((50,), 3)
    found = fftconv_gradients(u, k, dy, mode="causal")
    exact = reference.fftconv_gradients(dy, u, k, mode="causal")
    assert found.k.shape == (50,) and apart(found.k, exact.k) <= 4e-7 and apart(found.u, exact.u) <= 4e-7


def test_refused() -> None:
    u, k = noise((2, 2, 256), 1), noise((2, 256), 2)
    with pytest.raises(ValueError, match="dy: expected shape"):
        fftconv_gradients(u, k, u[:1])
    with pytest.raises(TypeError, match="dy: expected complex64"):
        fftconv_gradients(u, k, u.real)
    spectrum = prepare_filter(k, length=256, dtype="complex64")
    with pytest.raises(TypeError, match="give the filter to fftconv_gradients"):
        FFTConvGradients(spectrum, batch=2)
