"""Gradients of filters whose transforms are too long for one kernel, on the CPU body."""

from typing import Any

import numpy as np
import pytest
from convolutions import noise, scatter

import reference
from kernels_numba import (
    FFTConvGradients,
    fftconv_gradients,
    gradient_block,
    gradient_float,
    gradient_warp,
    prepare_filter,
)
from kernels_numba.filter_sums import FilterGradient
from kernels_numba.long_gradient import LongFilterGradient, choose, splits
from kernels_numba.long_plans import Split
from monarch import Plan

SHORT = Split(Plan(4096, (16, 16, 16)), (16,), Plan(256, (16, 16)), gradient_warp)
"""Rows and columns of a transform that is quick here; a fused kernel would do it."""
SHORT_FLOAT = Split(Plan(4096, (16, 16, 16)), (16,), Plan(256, (16, 16)), gradient_float, "fp32")
"""The same in fp32."""
ROOM = 12 * SHORT.plan.n
PAIR = 8 * SHORT.plan.n
NAMES = ("pregate", "postgate")


def gradient_of(
    batch: int, channels: int, length: int, *, mode: str, dtype: str = "fp16", gates: int = 0, **choices: Any
) -> tuple[Any, Any, float]:
    """(found, exact, bound over its scatter); checked."""
    shape = (batch, channels, length)
    u, dy = noise(shape, dtype, 1), noise(shape, dtype, 2)
    both = {name: noise(shape, dtype, 3 + i) for i, name in enumerate(NAMES[:gates])}
    choices = {"split": SHORT, "taps": length} | choices
    gradient = LongFilterGradient(shape, mode=mode, dtype=dtype, **choices)
    dk, counters, _ = gradient.run_cpu(u, dy, *(both.get(name) for name in NAMES))
    assert counters.bank_conflicts == 0
    taps = (choices["taps"],) if gradient.shared else (channels, choices["taps"])
    exact = reference.fftconv_gradients(dy, u, np.zeros(taps), mode=mode, **both).k
    order = len(gradient.plan.factors)
    bound = reference.filter_gradient_bound(order, dtype, gates=gates) * scatter(gradient.plan.n)
    reference.check_filter_gradient(dk, exact, dy, u, bound=bound, pairs=True, **both)
    return dk, exact, bound


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("mode", "length", "taps", "gates"),
    [
        ("circular", 4096, 4096, 0),
        ("circular", 1999, 1999, 1),  # on a longer circle: taps have two places
        ("causal", 2048, 2048, 2),
        ("causal", 2047, 3, 0),
        ("two-sided", 1500, 2999, 0),
    ],
)
def test_within_the_bound_of_the_reference(mode: str, length: int, taps: int, gates: int, dtype: str) -> None:
    gradient_of(3, 2, length, mode=mode, dtype=dtype, taps=taps, gates=gates)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("mode", "length", "taps", "gates", "workspace"),
    [
        ("circular", 4096, 4096, 0, 2**29),
        ("circular", 1999, 1999, 1, 2**29),
        ("causal", 2047, 2047, 2, 1),
        ("two-sided", 1500, 2999, 0, 2**29),
    ],
)
def test_in_single_precision(
    mode: str, length: int, taps: int, gates: int, workspace: int, dtype: str
) -> None:
    """Sequences of fp32, and of halves whose products are of fp32: all is fp32 between input and taps."""
    shape, kind = (3, 2, length), {"fp32": np.float32, "fp16": np.float16}[dtype]
    u, dy, *both = (np.random.default_rng(i).standard_normal(shape).astype(kind) for i in range(2 + gates))
    named = dict(zip(NAMES, both, strict=False))
    gradient = LongFilterGradient(
        shape, taps=taps, mode=mode, dtype=dtype, split=SHORT_FLOAT, workspace=workspace
    )
    dk, _, _ = gradient.run_cpu(u, dy, *(named.get(name) for name in NAMES))
    exact = reference.fftconv_gradients(dy, u, np.zeros((2, taps)), mode=mode, **named).k
    bound = reference.filter_gradient32_bound(4096, terms=2, gates=gates) * scatter(4096)
    reference.check_filter_gradient(dk, exact, dy, u, bound=bound, pairs=True, **named)


@pytest.mark.parametrize(
    ("workspace", "groups", "shares"),
    [
        (10 * (ROOM + 3 * PAIR), 1, 1),
        (2 * (ROOM + 3 * PAIR), 2, 1),
        (ROOM + 2 * PAIR, 3, 2),
        (1, 3, 3),  # one pair of one channel at a time, whatever that takes
    ],
)
def test_parts_of_channels_and_pairs(workspace: int, groups: int, shares: int) -> None:
    """However the work is cut, the gradient is the same but for the order of sums."""
    shape = (5, 3, 1024)
    choices = {"taps": 1024, "mode": "causal", "dtype": "fp16", "split": SHORT}
    gradient = LongFilterGradient(shape, workspace=workspace, **choices)  # type: ignore[arg-type]
    parts = list(gradient.parts())
    assert (len(parts), len(parts[0])) == (groups, shares) == (len(parts), gradient.shares)
    u, dy = noise(shape, "fp16", 1), noise(shape, "fp16", 2)
    whole = LongFilterGradient(shape, **choices)  # type: ignore[arg-type]
    dk, again, one = gradient.run_cpu(u, dy)[0], gradient.run_cpu(u, dy)[0], whole.run_cpu(u, dy)[0]
    assert (dk == again).all()
    assert np.abs(dk - one).max() <= 2e-6 * np.abs(one).max()


@pytest.mark.parametrize("workspace", [1, 2**30])
def test_one_filter_for_all_channels(workspace: int) -> None:
    gradient_of(4, 3, 700, mode="causal", shared=True, workspace=workspace)


def test_rows_by_a_kernel_of_order_3() -> None:
    split = Split(Plan(32768, (16, 8, 16, 16)), (16,), Plan(2048, (8, 16, 16)), gradient_block)
    gradient_of(2, 1, 16384, mode="causal", split=split)


def test_what_is_not_finite_stays_in_its_channel() -> None:
    shape = (4, 2, 1000)
    u, dy = noise(shape, "fp16", 1), noise(shape, "fp16", 2)
    u[1, 0, 17] = np.nan
    gradient = LongFilterGradient(shape, taps=1000, mode="causal", dtype="fp16", split=SHORT)
    dk = gradient.run_cpu(u, dy)[0]
    assert np.isnan(dk[0]).all() and np.isfinite(dk[1]).all()


@pytest.mark.parametrize("size", [2.0**-12, 2.0**6])
def test_scaled_losses(size: float) -> None:
    """Powers of two go through, down to where halves lose bits."""
    shape = (2, 1, 2048)
    u, dy = noise(shape, "fp16", 1), noise(shape, "fp16", 2)
    gradient = LongFilterGradient(shape, taps=2048, mode="causal", dtype="fp16", split=SHORT)
    one, other = gradient.run_cpu(u, dy)[0], gradient.run_cpu(u, (size * dy).astype(np.float16))[0]
    tolerance = reference.filter_gradient_bound(3, "fp16")
    assert np.linalg.norm(other / size - one) <= tolerance * np.linalg.norm(one) + 1e-12


def test_which_lengths_take_it() -> None:
    limit = 227 * 1024
    assert choose("circular", 32768, 32768, "fp32", "fp32", limit) is None
    assert choose("causal", 32768, 32768, "fp16", "fp16", limit) is None
    assert choose("circular", 65536, 65536, "fp16", "fp16", limit) is None
    for mode, length, points in (
        ("causal", 32769, 131072),
        ("circular", 131072, 131072),
        ("circular", 131071, 262144),
        ("causal", 2**20, 2**21),
    ):
        found = choose(mode, length, length, "bf16", "bf16", limit)
        assert found is not None and found.plan.n == points
    assert choose("causal", 2**24, 2**24, "fp16", "fp16", limit) is None
    for dtype in ("fp32", "fp16"):
        for length in (32768, 2**18, 2**23):
            found = choose("causal", length, length, dtype, "fp32", limit)
            assert found is not None and found.plan.n == 2 * length and found.products == "fp32"
    assert choose("causal", 2**24, 2**24, "fp32", "fp32", limit) is None
    for n, split in [*splits().items(), *splits(products="fp32").items()]:
        assert (
            split.rows * split.inner.n == n == split.plan.n
            and split.outer == split.plan.factors[: len(split.outer)]
        )


def test_through_the_public_calls() -> None:
    """A length that only this way takes, with all gradients."""
    shape, taps = (1, 1, 65600), 65600
    u, dy = noise(shape, "fp16", 1), noise(shape, "fp16", 2)
    k = np.random.default_rng(3).standard_normal((1, taps)) / np.sqrt(taps)
    found = fftconv_gradients(u, k, dy, mode="causal", needs=("u", "k"))
    exact = reference.fftconv_gradients(dy, u, k, mode="causal")
    order = 4
    bound = reference.filter_gradient_bound(order, "fp16") * scatter(131072)
    reference.check_filter_gradient(found.k, exact.k, dy, u, bound=bound, pairs=True)
    bound = reference.fftconv_bound(order, "fp16") * scatter(131072)
    reference.check_close(found.u, exact.u, dy, k, bound=bound, pairs=True)
    spectrum = prepare_filter(k, length=taps, mode="causal", gradients=True)
    assert spectrum.outer and spectrum.adjoint is not None and spectrum.adjoint.outer
    prepared = FFTConvGradients(spectrum, batch=1, needs=("k",))
    assert isinstance(prepared.filter_gradient, LongFilterGradient)
    with pytest.raises(ValueError, match="its kernels take up to 65536"):
        FilterGradient(shape, taps=taps, mode="causal", dtype="fp16")
