"""Partial convolutions by overlap-save: chunks of any size, saved and restored, against the whole sequence."""

import tracemalloc
from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import kinds, seeds, signal

import reference

TIGHT = 1e-12
chunk_sizes = st.lists(st.integers(0, 60), min_size=1, max_size=8)


@st.composite
def streams(draw: st.DrawFn) -> tuple[reference.FFTConvStream, NDArray[Any], NDArray[Any]]:
    """A stream of one chunk's tile or of many, a filter and a signal of any length, K beyond L among them."""
    shape = draw(st.sampled_from([(), (3,), (2, 3), (2, 1, 3)]), label="shape")
    taps, samples = draw(st.integers(1, 40), label="K"), draw(st.integers(1, 300), label="L")
    tile = draw(st.none() | st.integers(taps, taps + 80), label="tile")
    shared = not shape or draw(st.booleans(), label="one filter")
    seed = draw(seeds, label="seed")
    k = signal(draw(kinds, label="kind of k"), (taps,) if shared else (3, taps), seed)
    u = signal(draw(kinds, label="kind of u"), (*shape, samples), seed + 1)
    return reference.FFTConvStream(k, shape, tile=tile), u, k


def assert_same(got: NDArray[Any], expected: NDArray[Any], u: NDArray[Any], k: NDArray[Any]) -> None:
    """Agreement to 1e-12 of what the terms could add up to, and nothing narrower than double."""
    assert got.shape == expected.shape and got.dtype == expected.dtype
    size = np.linalg.norm(u, axis=-1, keepdims=True) * np.sum(np.abs(k), axis=-1, keepdims=True)
    assert np.all(np.abs(got - expected) <= TIGHT * size)


def in_chunks(stream: reference.FFTConvStream, u: NDArray[Any], sizes: list[int]) -> NDArray[Any]:
    """Feed ``u`` in chunks of these sizes, the rest in one."""
    pieces = np.split(u, [min(cut, u.shape[-1]) for cut in np.cumsum(sizes)], axis=-1)
    return np.concatenate([stream(piece) for piece in pieces], axis=-1)


@given(streams(), chunk_sizes)
def test_any_chunks_give_the_whole_sequence(
    problem: tuple[reference.FFTConvStream, NDArray[Any], NDArray[Any]], sizes: list[int]
) -> None:
    stream, u, k = problem
    expected = reference.direct_fftconv(u, k, mode="causal")
    assert_same(in_chunks(stream, u, sizes), expected, u, k)
    assert stream.state.shape == (*u.shape[:-1], k.shape[-1] - 1)
    stream.reset()
    assert_same(in_chunks(stream, u, [1] * min(20, u.shape[-1])), expected, u, k)
    assert_same(reference.partial_fftconv(u, k, tile=stream.tile), expected, u, k)
    assert_same(reference.partial_fftconv(u, k), reference.fftconv(u, k, mode="causal"), u, k)


@given(streams(), chunk_sizes, chunk_sizes, seeds)
def test_a_saved_state_continues_the_same(
    problem: tuple[reference.FFTConvStream, NDArray[Any], NDArray[Any]],
    before: list[int],
    after: list[int],
    seed: int,
) -> None:
    stream, u, k = problem
    stream(u[..., : sum(before)])
    saved = stream.state
    rest = signal("noise", (*u.shape[:-1], 50), seed)
    first = in_chunks(stream, rest, after)
    stream.restore(saved)
    assert np.array_equal(in_chunks(stream, rest, after), first)
    other = reference.FFTConvStream(k, u.shape[:-1], tile=stream.tile)
    other.restore(saved)
    saved[...] = np.nan  # neither state nor restore share memory with the caller
    assert np.array_equal(in_chunks(other, rest, after), first)
    stream.reset()
    assert not stream.state.any()


@given(streams(), chunk_sizes, seeds)
def test_gates(
    problem: tuple[reference.FFTConvStream, NDArray[Any], NDArray[Any]], sizes: list[int], seed: int
) -> None:
    stream, u, k = problem
    v, w = signal("noise", u.shape, seed), signal("noise", u.shape, seed + 1)
    expected = reference.direct_fftconv(u, k, mode="causal", pregate=v, postgate=w)
    got = reference.partial_fftconv(u, k, tile=stream.tile, pregate=v, postgate=w)
    assert_same(got / w, expected / w, u * v, k)
    cuts = [min(cut, u.shape[-1]) for cut in np.cumsum(sizes)]
    parts = zip(*(np.split(x, cuts, axis=-1) for x in (u, v, w)), strict=True)
    got = np.concatenate([stream(a, pregate=b, postgate=c) for a, b, c in parts], axis=-1)
    assert_same(got / w, expected / w, u * v, k)


@pytest.mark.parametrize("taps", [1, 5, 40])
def test_complex_data_and_narrow_types(taps: int) -> None:
    u, k = signal("noise", (2, 3, 100), 0), signal("noise", (3, taps), 1)
    for x, h in ((u, k + 1j * k[::-1]), (u + 1j * u[::-1], k), (u + 1j * u[::-1], 1j * k)):
        expected = reference.direct_fftconv(x, h, mode="causal")
        for tile in (taps, 64, None):
            assert_same(reference.partial_fftconv(x, h, tile=tile), expected, x, h)
    stream = reference.FFTConvStream(k, (2, 3), tile=64)
    mixed = np.concatenate([stream(u[..., :50]), stream(1j * u[..., 50:])], axis=-1)
    x = np.concatenate([u[..., :50] + 0j, 1j * u[..., 50:]], axis=-1)
    assert_same(mixed, reference.direct_fftconv(x, k, mode="causal"), x, k)
    narrow = u.astype(np.float16)
    assert_same(reference.partial_fftconv(narrow, k), reference.fftconv(narrow, k, mode="causal"), narrow, k)


@given(st.integers(1, 5000), st.none() | st.integers(1, 10**6))
@example(1, None)
@example(1, 1)
@example(2048, 10**7)
def test_the_tile_costs_least(taps: int, samples: int | None) -> None:
    tile = reference.overlap_save_tile(taps, samples)

    def cost(n: int) -> float:
        return n * log2(n) / (n - taps + 1)

    assert tile >= max(taps, 256) and tile & (tile - 1) == 0
    shorter_signal = samples is not None and 2 * tile >= samples + taps - 1
    assert shorter_signal or all(cost(tile) <= cost(2**e) for e in range(8, 26) if 2**e >= taps)
    # N = (K - 1)(1 + ln N), where the derivative is zero, to the next power of two either way
    if not shorter_signal and tile > 256:
        assert 1 / 2 < (taps - 1) * (1 + np.log(tile)) / tile < 2


@pytest.mark.parametrize("gated", [False, True])
def test_memory_does_not_grow_with_the_signal(gated: bool) -> None:
    k = signal("noise", (2, 200), 0)
    for samples in (20_000, 100_000):
        u = signal("noise", (3, 2, samples), 1)
        gates = {"pregate": u, "postgate": u} if gated else {}
        stream = reference.FFTConvStream(k, (3, 2))
        tracemalloc.start()
        y = stream(u, **gates)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert y.nbytes < peak <= y.nbytes + 1.05 * stream.workspace + 20_000


def test_zero_samples_and_what_is_left_after_an_error() -> None:
    stream = reference.FFTConvStream(np.ones(4), (2,), tile=8)
    stream(signal("noise", (2, 5), 0))
    saved = stream.state
    assert stream(np.ones((2, 0))).shape == (2, 0)
    late = np.ones((2, 30), np.int64)
    late[1, -1] = 2**53
    with pytest.raises(TypeError, match="u has integers"):
        stream(late)
    assert np.array_equal(stream.state, saved)


ONES = np.ones((2, 3, 8))
STREAM = reference.FFTConvStream(np.ones((3, 4)), (2, 3))
REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: STREAM(np.ones((3, 8))), ValueError, r"u must have shape \(2, 3, 'any'\), as u; got \(3, 8\)"),
    (lambda: STREAM(1.0), ValueError, r"u must have shape"),
    (lambda: STREAM(ONES, pregate=ONES[..., :1]), ValueError, r"pregate must have shape"),
    (lambda: STREAM(ONES, postgate=ONES > 0), TypeError, r"postgate must be float16"),
    (lambda: STREAM(ONES > 0), TypeError, r"u must be float16.*got bool"),
    (lambda: STREAM.restore(np.ones((2, 3, 4))), ValueError, r"state must have shape \(2, 3, 3\)"),
    (lambda: reference.FFTConvStream(np.ones(0), (2,)), ValueError, r"k must be a non-empty array"),
    (
        lambda: reference.FFTConvStream(np.ones((2, 4)), (2, 3)),
        ValueError,
        r"k must have one filter for each",
    ),
    (lambda: reference.FFTConvStream(np.ones(4), (2, 0)), ValueError, r"shape must be at least 1"),
    (lambda: reference.FFTConvStream(np.ones(9), (2,), tile=8), ValueError, r"tile must be at least K=9"),
    (lambda: reference.FFTConvStream(np.ones(9), (2,), tile=1.5), TypeError, r"tile must be an integer"),
    (lambda: reference.partial_fftconv(ONES[..., :0], np.ones(4)), ValueError, r"u must be a non-empty"),
    (lambda: reference.partial_fftconv(ONES, np.ones((2, 4))), ValueError, r"k must have one filter for"),
    (lambda: reference.overlap_save_tile(0), ValueError, r"taps must be at least 1"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_input_is_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
