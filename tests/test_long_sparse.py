"""Frequency-sparse convolutions on the CPU body: the masked spectrum's result, and what rows of zeros spare."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest
from convolutions import filters, noise, scatter
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import reference
from kernels_numba import FFTConv, FFTConvGradients, prepare_filter, sparse_fftconv
from kernels_numba.operands import kept_slots, rows_needed
from monarch import Plan, SparsityPattern, format_factors

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")

ON_CHIP = 512
PLAN = Plan(4096, (16, 16, 16))


def close(y: NDArray, u: NDArray, k: NDArray, pattern: SparsityPattern, plan: Plan, mode: str) -> None:
    """Within the bound of the dense kernels: rounding knows no zeros, so errors are those of the whole filter."""
    exact = reference.sparse_fftconv(u, k, pattern, plan=plan, mode=mode)
    found = reference.relative_error(y, exact, u, k, pairs=True)
    assert found.worst <= reference.fftconv_bound(plan.order, "fp16") * scatter(plan.n), found


@settings(max_examples=4)
@given(
    rows=st.sampled_from([16, 32]),
    zeros=st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 7)),
    random=st.booleans(),
    mode=st.sampled_from(["circular", "causal"]),
    batch=st.integers(1, 3),
    seed=seeds,
)
@example(16, (7, 0, 0), False, "circular", 2, 0)
@example(32, (3, 2, 1), True, "causal", 3, 1)
def test_sparse_equals_the_masked_spectrum(
    rows: int, zeros: tuple, random: bool, mode: str, batch: int, seed: int
) -> None:
    """For boxes, and for unions of random rows and blocks."""
    plan = Plan(rows * 256, (rows, 16, 16))
    pattern = SparsityPattern.middles(plan, [2 * z for z in zeros])
    if random:
        draw = np.random.default_rng(seed)
        kept = draw.random(plan.factors) < draw.random((rows, 1, 1)).round()
        pattern = SparsityPattern(plan.factors, kept | np.roll(kept, 1, 1)).symmetric()
    length = plan.n if mode == "circular" else plan.n // 2
    k, u = filters(2, length, seed), noise((batch, 2, length), "fp16", [seed, 1])
    spectrum = prepare_filter(k, length=length, mode=mode, plan=plan, on_chip=ON_CHIP, pattern=pattern)
    out = np.full_like(u, np.nan)
    close(FFTConv(spectrum, batch=batch)(u, out=out), u, k, pattern, plan, mode)


def test_two_outer_factors() -> None:
    """Of 16 x 16 rows a quarter stays; only they are stored, written, convolved and read."""
    plan = Plan(65536, (16, 16, 16, 16))
    pattern = SparsityPattern.middles(plan, (8, 8, 0, 0))
    k, u = filters(1, plan.n), noise((1, 1, plan.n), "fp16")
    spectrum = prepare_filter(k, length=plan.n, plan=plan, on_chip=ON_CHIP, pattern=pattern)
    kept = len(spectrum.rows)
    assert 56 <= kept <= 64 and spectrum.words.shape == (1, 256 * kept)
    convolve = FFTConv(spectrum, batch=1)
    y, counters = convolve.run_cpu(u)
    close(y, u, k, pattern, plan, "circular")
    assert counters.global_written_bytes["workspace"] == 2 * 4 * 256 * kept
    assert counters.global_read_bytes["workspace"] == 2 * 4 * 256 * kept
    # Half of the first factor's frequencies have no row: as much less of the second factor's work in both stages.
    dense = FFTConv(prepare_filter(k, length=plan.n, plan=plan, on_chip=ON_CHIP), batch=1).run_cpu(u)[1]
    each = (
        2 * 65536 // 16 // 8
    )  # products of one factor of 16, for both parts; a row's first takes twice as many
    assert dense.mma_m16n8k16 == 9 * each
    assert counters.mma_m16n8k16 == 2 * each + 2 * each // 2 + kept * 5 * each // 256
    assert counters.fp32_flops < 0.6 * dense.fp32_flops
    assert f"{kept} are not zero" in convolve.describe()


def test_rows_of_zeros_are_spared() -> None:
    """Half the rows: half the workspace, its traffic, the spectrum and the rows' products."""
    u, found = noise((2, 1, 4096), "fp16"), {}
    for zeros in (0, 8):
        pattern = SparsityPattern.middles(PLAN, (zeros, 0, 0))
        spectrum = prepare_filter(
            filters(1, 9), length=4096, plan=PLAN, on_chip=ON_CHIP, pattern=pattern if zeros else None
        )
        convolve = FFTConv(spectrum, batch=2)
        _, counters = convolve.run_cpu(u, blocks=1)
        found[zeros] = counters, convolve.groups.bytes, spectrum.words.nbytes
    (dense, room, stored), (sparse, less, fewer) = found[0], found[8]
    assert 2 * less == room and 2 * fewer == stored
    for table in ("global_read_bytes", "global_written_bytes"):
        assert 2 * getattr(sparse, table)["workspace"] == getattr(dense, table)["workspace"]
    assert 2 * sparse.global_read_bytes["spectrum"] == dense.global_read_bytes["spectrum"]
    assert sparse.half_flops * 2 == dense.half_flops
    assert sparse.mma_m16n8k16 < dense.mma_m16n8k16


@pytest.mark.parametrize("kept", [False, True])
def test_nothing_and_everything(kept: bool) -> None:
    pattern = SparsityPattern(PLAN.factors, np.full(PLAN.factors, kept))
    u, k = noise((1, 1, 4096), "fp16"), filters(1, 4096)
    dense, sparse = (
        FFTConv(prepare_filter(k, length=4096, plan=PLAN, on_chip=ON_CHIP, pattern=p), batch=1)(u)
        for p in (None, pattern)
    )
    assert np.array_equal(sparse, dense if kept else np.zeros_like(dense))


@pytest.mark.parametrize("factors", [(32, 32), (8, 16, 16), (16, 16, 32), (8, 8, 16, 16)], ids=str)
def test_one_kernel_takes_patterns_too(factors: tuple[int, ...]) -> None:
    """A box of zeros, and random blocks, by every kind of kernel; those of orders 3 and 4 leave parts out."""
    plan = Plan(prod(factors), factors)
    draw = np.random.default_rng(len(factors))
    kept = draw.random(factors[:2] + (1,) * (plan.order - 2)) < 0.5
    blocks = SparsityPattern(factors, np.broadcast_to(kept, factors)).symmetric()
    u, k = noise((3, 2, plan.n), "fp16"), filters(2, plan.n)
    for pattern in (SparsityPattern.middles(plan, (factors[0] // 2, *[2] * (plan.order - 1))), blocks):
        close(sparse_fftconv(u, k, pattern, plan=plan), u, k, pattern, plan, "circular")


@pytest.mark.parametrize(
    ("factors", "outer"), [((16, 16, 16), ()), ((8, 8, 16, 16), ()), ((8, 8, 16, 16), (16,))]
)
def test_zeros_inside_a_row_are_spared(factors: tuple[int, ...], outer: tuple[int, ...]) -> None:
    """Nothing kept of a half and of all but a quarter: as much less of the spectrum is read, as many products done."""
    plan = Plan(prod(outer) * prod(factors), (*outer, *factors))
    u, k, found = noise((2, 1, plan.n), "fp16"), filters(1, plan.n), []
    for zeros in (0, 1, 2):
        rows = (0,) * len(outer)
        fourth = (factors[0] // 2, factors[1] // 2) if plan.order > 3 else (3 * factors[0] // 4, 0)
        middles = {0: (0, 0), 1: (factors[0] // 2, 0), 2: fourth}[zeros]
        pattern = SparsityPattern.middles(plan, (*rows, *middles, *(0,) * (len(factors) - 2)))
        spectrum = prepare_filter(k, length=plan.n, plan=plan, pattern=pattern if zeros else None)
        assert spectrum.outer == bool(outer) and len(spectrum.rows) == 0
        convolve = FFTConv(spectrum, batch=2)
        y, counters = convolve.run_cpu(u)
        close(y, u, k, pattern, plan, "circular")
        marks = np.frombuffer(spectrum.marks, np.float32)
        found.append((counters, marks.mean() if zeros else 1.0))
    (dense, _), (half, of_half), (quarter, of_quarter) = found
    assert of_quarter < of_half < 0.6
    for sparse, share in ((half, of_half), (quarter, of_quarter)):
        read = sparse.global_read_bytes["spectrum"], dense.global_read_bytes["spectrum"]
        assert read[0] == share * read[1]
    for name in ("mma_m16n8k16", "half_flops", "transposes", "fp32_flops"):
        spared = [getattr(dense, name) - getattr(x, name) for x in (half, quarter)]
        assert 0 < spared[0] and spared[1] * (1 - of_half) == pytest.approx(spared[0] * (1 - of_quarter)), (
            name
        )


@pytest.mark.parametrize(
    ("factors", "zeros", "axes"),
    [
        ((32, 32), (16, 0), (16, 32)),
        ((32, 32), (16, 16), (16, 16)),
        ((48, 16), (32, 0), (16, 16)),
        ((16, 16, 32), (8, 0, 16), (16, 16, 16)),
        ((16, 16, 16, 32), (8, 4, 0, 16), (16, 16)),
    ],
    ids=str,
)
def test_low_frequencies_of_an_axis(factors: tuple[int, ...], zeros: tuple[int, ...], axes: tuple) -> None:
    """Zeros around the middle of an axis of the kernel, by 16 rows: neither stored nor transformed to."""
    plan = Plan(prod(factors), factors)
    pattern = SparsityPattern.middles(plan, zeros)
    u, k = noise((3, 1, plan.n), "fp16"), filters(1, plan.n)
    dense, sparse = (
        prepare_filter(k, length=plan.n, plan=plan, pattern=p, on_chip=8192) for p in (None, pattern)
    )
    assert sparse.axes == axes and not dense.axes
    if sparse.outer:
        text = FFTConv(sparse, batch=3).describe()
        assert f"of a row {format_factors(axes)} frequencies are kept" in text
    whole = plan.factors[-len(axes) :]
    share = prod(axes) / prod(whole) * (len(sparse.rows) / 256 if sparse.outer else 1)
    assert sparse.words.nbytes == share * dense.words.nbytes
    counted = []
    for spectrum in (dense, sparse):
        convolve = FFTConv(spectrum, batch=3)
        y, counters = convolve.run_cpu(u)
        counted.append(counters)
    close(y, u, k, pattern, plan, "circular")
    for name in ("mma_m16n8k16", "half_flops", "fp32_flops"):
        assert getattr(counted[1], name) < getattr(counted[0], name), name
    read = [c.global_read_bytes["spectrum"] for c in counted]
    marks = np.frombuffer(sparse.marks, np.float32).mean() if sparse.marks else 1.0
    assert read[1] == share * marks * read[0]


@pytest.mark.parametrize("on_chip", [None, ON_CHIP], ids=["one kernel", "long"])
def test_gradients_of_sequences(on_chip: int | None) -> None:
    """Correlation with the same zeros: <dy, y(x)> = <du, x> for what the kernels of y and du left out alike."""
    pattern = SparsityPattern.middles(PLAN, (8, 4, 0))
    k, u, dy, gate = filters(1, 4096), *(noise((2, 1, 4096), "fp16", [seed]) for seed in range(3))
    spectrum = prepare_filter(k, length=4096, plan=PLAN, pattern=pattern, on_chip=on_chip, gradients=True)
    found = FFTConvGradients(spectrum, batch=2, needs=("u", "pregate"))(u, dy, pregate=gate)
    backwards = np.roll(k[:, ::-1], 1, axis=-1)  # of the circle
    exact = reference.sparse_fftconv(dy, backwards, pattern, plan=PLAN)
    bound = reference.fftconv_bound(3, "fp16", gates=1) * scatter(4096)
    for gradient, other in ((found.u, gate), (found.pregate, u)):
        error = reference.relative_error(gradient, exact * other, dy, backwards, postgate=other, pairs=True)
        assert error.worst <= bound


def test_rows_that_are_needed() -> None:
    """The first of each half, by 16, that hold all that is alive; 24 of 32 is no mirror of the self-paired 8."""
    for kept, paired in ((16, False), (16, True), (32, True)):
        alive = np.zeros(64, bool)
        alive[kept_slots(64, kept, self_paired=paired)] = True
        assert rows_needed(alive, self_paired=paired) == kept
        alive[kept // 2] = True
        assert rows_needed(alive, self_paired=paired) == kept + 16
    assert rows_needed(np.zeros(32, bool)) == 16 and rows_needed(np.ones(48, bool)) == 48


def test_refusals() -> None:
    u, k = noise((1, 1, 1024), "fp16"), filters(1, 9)
    plan = Plan(1024, (32, 32))
    middles = SparsityPattern.middles(plan, (16, 0))
    for arguments, kind, words in (
        ({"pattern": None}, None, ""),
        (
            {"pattern": np.ones(1024, bool)},
            TypeError,
            "pattern: expected a monarch.SparsityPattern, got ndarray",
        ),
        ({"pattern": SparsityPattern.middles(PLAN, (8, 0, 0))}, ValueError, "pattern: it has the factors"),
        ({"pattern": SparsityPattern.tails(plan, (8, 0))}, ValueError, "pattern: zeros must be symmetric"),
    ):
        if kind is None:
            prepare_filter(k, length=1024, plan=plan, **arguments)
            continue
        with pytest.raises(kind, match=f"^{re.escape(words)}"):
            prepare_filter(k, length=1024, plan=plan, **arguments)
    with pytest.raises(
        ValueError, match=r"^pattern: a circular convolution of 500 samples on a circle of 1024"
    ):
        sparse_fftconv(np.ascontiguousarray(u[..., :500]), k, middles, plan=plan)
    half = Plan(65536, (16, 8, 16, 16), packing="half")
    whole = SparsityPattern(half.factors, np.ones(prod(half.factors), bool))
    with pytest.raises(ValueError, match=r"^pattern: half packing has no zeros in its spectrum"):
        prepare_filter(k, length=65536, plan=half, pattern=whole)
