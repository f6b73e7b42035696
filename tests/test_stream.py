"""Streams and partial convolutions on the CPU body: chunks of any size equal the whole; windows overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convolutions import filters, noise, scatter
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import kernels_numba
import reference
from kernels_numba import FFTConvStream, partial_fftconv, windows
from kernels_numba.partial_choice import choose_tile
from kernels_numba.tile.machine import Machine

pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")

TILE = 2048


def gates_of(shape: tuple[int, ...], on: tuple[bool, bool], dtype: str = "fp16") -> dict[str, NDArray]:
    names = [name for name, there in zip(("pregate", "postgate"), on, strict=True) if there]
    return {name: noise(shape, dtype, [len(name), 7]) for name in names}


def parts(x: NDArray, cuts: list[int]) -> list[NDArray]:
    return [np.ascontiguousarray(piece) for piece in np.split(x, cuts, axis=-1)]


def in_chunks(stream: Any, u: NDArray, cuts: list[int], gates: dict[str, NDArray]) -> NDArray:
    """Chunk by chunk into poisoned memory."""
    found = []
    pieces = {name: parts(x, cuts) for name, x in gates.items()}
    for i, chunk in enumerate(parts(u, cuts)):
        out = np.full_like(chunk, np.nan)
        found.append(stream(chunk, out=out, **{name: pieces[name][i] for name in pieces}))
        assert found[-1] is out
    return np.concatenate(found, axis=-1)


def close(y: NDArray, u: NDArray, k: NDArray, gates: dict[str, NDArray], dtype: str = "fp16") -> None:
    exact = reference.fftconv(u, k, mode="causal", **gates)
    found = reference.relative_error(y, exact, u, k, **gates)
    bound = reference.fftconv_bound(3, dtype, gates=len(gates), coherent=k.shape[-1] < 32)
    assert found.worst <= bound * scatter(min(u.shape[-1], TILE)), (found, bound)


@settings(max_examples=4)
@given(
    taps=st.sampled_from([1, 9, 300, 1000]),
    samples=st.integers(1, 6000),
    chunks=st.lists(st.integers(0, 4000), max_size=3),
    channels=st.integers(1, 2),
    gates=st.tuples(st.booleans(), st.booleans()),
    dtype=st.sampled_from(["fp16", "bf16"]),
    seed=seeds,
)
@example(300, 5001, [5, 700, 0, 2500], 2, (True, True), "fp16", 0)
@example(1000, 4100, [4000], 1, (False, False), "bf16", 1)
def test_any_chunks_equal_the_whole(
    taps: int, samples: int, chunks: list[int], channels: int, gates: tuple, dtype: str, seed: int
) -> None:
    k = filters(channels, taps, seed)
    u = noise((1, channels, samples), dtype, [seed, 3])
    both = gates_of(u.shape, gates, dtype)
    cuts = [min(samples, cut) for cut in np.cumsum(chunks)]
    stream = FFTConvStream(k, (1, channels), dtype=dtype, tile=TILE)
    close(in_chunks(stream, u, cuts, both), u, k, both, dtype)
    past = (u * both["pregate"] if "pregate" in both else u)[..., max(0, samples - taps + 1) :]
    state = stream.state
    assert state.shape == (1, channels, taps - 1) and state.dtype == u.dtype
    kept = min(taps - 1, samples)
    assert np.array_equal(state[..., taps - 1 - kept :], past[..., past.shape[-1] - kept :])
    assert not state[..., : taps - 1 - kept].any()


def test_a_saved_state_continues_the_same() -> None:
    k, u = filters(2, 200), noise((2, 2, 900), "fp16")
    stream, other = (FFTConvStream(k, (2, 2), tile=TILE) for _ in range(2))
    stream(np.ascontiguousarray(u[..., :400]))
    saved = stream.state
    rest = np.ascontiguousarray(u[..., 400:])
    first = stream(rest)
    other.restore(saved)
    saved[...] = np.nan  # neither state nor restore share memory with the caller
    assert np.array_equal(other(rest), first)
    stream.reset()
    assert not stream.state.any()
    assert np.array_equal(stream(rest), FFTConvStream(k, (2, 2), tile=TILE)(rest))


def test_gates_may_come_and_go() -> None:
    """A chunk without an input gate after one with: the past keeps its own."""
    k, u = filters(1, 300), noise((1, 1, 1500), "fp16")
    gate = noise(u.shape, "fp16", 5)
    gate[..., 500:] = 1
    stream = FFTConvStream(k, (1, 1), tile=TILE)
    pieces, own = parts(u, [500, 600]), parts(gate, [500, 600])
    y = [stream(pieces[0], pregate=own[0]), stream(pieces[1]), stream(pieces[2])]
    close(np.concatenate(y, axis=-1), u, k, {"pregate": gate})


def test_a_filter_goes_on_to_longer_signals() -> None:
    """Trained at one length, applied at four times that: the same outputs, and more of them."""
    k, u = filters(1, 512), noise((1, 1, 8192), "fp16")
    y = partial_fftconv(u, k, tile=4096)
    close(y, u, k, {})
    short = np.ascontiguousarray(u[..., :2048])
    close(partial_fftconv(short, k, tile=4096), short, k, {})


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_no_alignment_is_asked_for(offset: int) -> None:
    k, u = filters(1, 100), noise((1, 1, 4096 - offset), "fp16")
    close(partial_fftconv(u, k, tile=TILE), u, k, {})


def test_windows_read_and_write_what_they_must() -> None:
    """Every window reads its tile once, as far as the row goes, and writes its new samples."""
    k, u = filters(1, 100), noise((1, 1, 5000), "fp16")
    spectrum = windows.prepare_windows(k, tile=TILE, dtype="fp16")
    rows = windows.Rows(1, 5000, TILE, TILE - windows.lag_of(100))
    assert (rows.new, rows.windows) == (1944, 3)
    y, none, machine = np.full(5000, np.float16(np.nan)), np.empty(0, np.int16), Machine()
    words = u.reshape(-1).view(np.int16)
    windows.run_cpu(spectrum, rows, words, none, none, y.view(np.int16), halves=8, machine=machine)
    starts = [1944 * i for i in range(3)]
    assert machine.counters.global_read_bytes["u"] == 2 * sum(min(TILE, 5000 - s) for s in starts)
    assert machine.counters.global_written_bytes["y"] == 2 * (5000 - 104)
    assert np.isnan(y[:104]).all() and np.isfinite(y[104:]).all()
    exact = reference.fftconv(u, k, mode="causal")[0, 0]
    assert np.linalg.norm(y[104:] - exact[104:]) <= reference.fftconv_bound(3, "fp16") * np.linalg.norm(exact)


@given(st.integers(1, 12288))
def test_the_tile_costs_least(taps: int) -> None:
    tile, lag = windows.tile_of(taps), windows.lag_of(taps)
    assert lag % 8 == 0 and taps <= lag < taps + 8 and 2 * lag <= tile
    cost = {n: windows.INNER_TIME[n] * n / (n - lag) for n in windows.TILES if n >= 2 * lag}
    assert cost[tile] == min(cost.values())


def test_memory_is_of_the_order_of_the_filter() -> None:
    """And what is said of the choice names it."""
    stream = FFTConvStream(filters(3, 500), (2, 3))
    assert stream.workspace <= 2 * 6 * (2 * 504 + 3 * stream.tile)
    text = stream.describe()
    assert f"tiles of {stream.tile}" in text and f"{stream.workspace:,} bytes" in text and "2048:" in text


def test_refusals() -> None:
    k, u = filters(2, 50), noise((1, 2, 100), "fp16")
    stream = FFTConvStream(k, (1, 2), tile=TILE)
    stream(u)
    before = stream.state
    for wrong, kind, words in (
        ({"u": u[:, :1]}, ValueError, r"^u: expected shape \(1, 2, 'any'\)"),
        ({"u": u.astype(np.float32)}, TypeError, r"^u: expected fp16, got fp32"),
        ({"u": u, "pregate": u[..., 1:]}, ValueError, r"^pregate: expected shape"),
        ({"u": u[..., ::2]}, ValueError, r"^u: expected a contiguous"),
    ):
        with pytest.raises(kind, match=words):
            stream(**wrong)
    assert np.array_equal(stream.state, before)  # a chunk that is refused changes nothing
    with pytest.raises(ValueError, match=r"^state: expected shape \(1, 2, 49\)"):
        stream.restore(np.zeros((1, 2, 50), np.float16))
    with pytest.raises(TypeError, match=r"^state: expected float16; got float64"):
        stream.restore(np.zeros((1, 2, 49)))
    with pytest.raises(ValueError, match=r"^tile: got 2048; a filter of 1025 taps takes tiles of 4096, 8192"):
        FFTConvStream(filters(1, 1025), (1, 1), tile=2048)
    with pytest.raises(ValueError, match=r"takes tiles of none"):
        FFTConvStream(filters(1, 12289), (1, 1))
    with pytest.raises(ValueError, match=r"^dtype: streams take fp16 and bf16"):
        FFTConvStream(k, (1, 2), dtype="fp32")
    with pytest.raises(ValueError, match=r"^shape: expected \(B, H\)"):
        FFTConvStream(k, (2,))
    with pytest.raises(ValueError, match=r"^k: 2 filters for 3 channels"):
        FFTConvStream(k, (1, 3))


# ---- by way of fftconv ---------------------------------------------------------------------------------------
def test_the_choice_between_tiles_and_the_whole_says_why() -> None:
    for length, taps, tile, words in (
        (1000, 1000, None, "As a whole: 2048 points fit on chip."),
        (2**20, 2048, 8192, "In tiles: 2.57 ps for a sample in tiles of 8192, "),
        (2**20, 2**20, None, "As a whole: 1048576 taps are too many for a tile."),
        (40000, 30000, None, "As a whole: "),
        (2**24, 9, 2048, "In tiles of 2048: 16777224 points are more than a transform has"),
    ):
        chosen, reason = choose_tile(length, taps)
        assert chosen == tile and reason.startswith(words), reason
    assert choose_tile(1000, 9, "fp32") == (
        None,
        "As a whole: tiles take fp16 and bf16 sequences, these are fp32.",
    )


def test_fftconv_takes_tiles() -> None:
    k, u = filters(1, 200), noise((1, 1, 5000), "fp16")
    out = np.full_like(u, np.nan)
    assert kernels_numba.fftconv(u, k, mode="causal", tile=2048, out=out) is out
    assert np.array_equal(out, partial_fftconv(u, k, tile=2048))
    close(out, u, k, {})
