"""The fused convolution, on whichever body runs here: its meaning, its error bound, its bad inputs.

`test_fftconv_gpu.py` has what needs a GPU: streams, graphs, threads, array libraries, and the two bodies together.
"""

from dataclasses import replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from convolutions import FACTORS, PLAIN, Case, cases, filters, half, noise, scatter
from hardware import HALF
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import kernels_numba
import reference
from kernels_numba import FFTConv, fused_block, prepare_filter
from kernels_numba.block_spec import TUNED
from monarch import Plan

# Where there is a GPU, arrays of the host are copied to it, and these tests test its body.
pytestmark = pytest.mark.filterwarnings("ignore::kernels_numba.HostCopyWarning")


# ---- meaning and accuracy ------------------------------------------------------------------------------------
@given(cases())
@example(PLAIN)
@example(PLAIN._replace(mode="causal", length=1, taps=1, batch=1))
@example(PLAIN._replace(mode="causal", length=128, taps=129, batch=3, gates=(True, True), offset=1))
@example(PLAIN._replace(mode="two-sided", length=200, taps=57, channels=3, dtype="bf16"))
def test_within_the_bound_of_the_reference(case: Case) -> None:
    u, k, gates = case.data()
    y = kernels_numba.fftconv(u, k, mode=case.mode, plan=case.plan, **gates)
    assert y.shape == u.shape and y.dtype == u.dtype
    exact = reference.fftconv(u, k, mode=case.mode, **gates)
    found = reference.relative_error(y, exact, u, k, pairs=True, **gates)
    assert found.worst <= case.bound, (found, case.bound)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("factors", FACTORS)
def test_many_sequences_together_are_within_the_bound(factors: tuple[int, int], dtype: str) -> None:
    """The bound speaks of the mean, and it is not loose: half of it would be exceeded."""
    n = prod(factors)
    u, k = noise((8, 4, n), dtype), filters(4, n)
    y = kernels_numba.fftconv(u, k, plan=Plan(n, factors))
    found = reference.relative_error(y, reference.fftconv(u, k), u, k, pairs=True)
    bound = reference.fftconv_bound(2, dtype)
    assert bound / 2 < found.overall <= bound


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("factors", FACTORS)
def test_a_wrong_result_would_be_noticed(factors: tuple[int, int], dtype: str) -> None:
    """Plain, with the comparison that refuses to be empty."""
    n = prod(factors)
    u, k = noise((4, 2, n), dtype), filters(2, n)
    bound = reference.fftconv_bound(2, dtype) * scatter(n)
    y = kernels_numba.fftconv(u, k, plan=Plan(n, factors))
    reference.check_close(y, reference.fftconv(u, k), u, k, bound=bound, pairs=True)
    for wrong in (np.roll(y, 1, axis=-1), y[::-1], y[:, ::-1], np.zeros_like(y), -y):
        with pytest.raises(AssertionError):
            reference.check_close(wrong, reference.fftconv(u, k), u, k, bound=bound, pairs=True)


UNTUNED = [(n1, 16) for n1 in (64, 96, 112)] + [f for f in fused_block.FACTORS if f not in TUNED]


@pytest.mark.parametrize("factors", UNTUNED, ids=str)
def test_lists_that_were_not_tuned_are_right_too(factors: tuple[int, ...]) -> None:
    """Every list of multiples of 16 that fits, causal, of odd length, with a gate."""
    n = prod(factors)
    length = n // 2 - 5
    u, gate, k = noise((3, 1, length), "fp16"), noise((3, 1, length), "fp16", 1), filters(1, length)
    y = kernels_numba.fftconv(
        u, k, mode="causal", pregate=gate, plan=Plan(n, factors), out=np.full_like(u, np.nan)
    )
    exact = reference.fftconv(u, k, mode="causal", pregate=gate)
    found = reference.relative_error(y, exact, u, k, pairs=True, pregate=gate)
    assert found.worst <= reference.fftconv_bound(len(factors), "fp16", gates=1) * scatter(length)


ORDER_3 = [(n, factors) for n, factors in kernels_numba.families.DEFAULT_FACTORS.items() if len(factors) == 3]


@pytest.mark.parametrize(
    ("mode", "part", "gates", "dtype", "batch"),
    [
        ("circular", 1.0, (False, False), "fp16", 3),
        ("causal", 0.5, (True, True), "bf16", 1),
        ("two-sided", 0.61, (False, True), "fp16", 1),
    ],
)
def test_longer_transforms(mode: str, part: float, gates: tuple[bool, bool], dtype: str, batch: int) -> None:
    """The order-3 kernel on the shortest length that it has."""
    n, factors = ORDER_3[0]
    length = n if mode == "circular" else int(part * n) - 1
    taps = n if mode == "circular" else n + 1 - length
    case = PLAIN._replace(
        factors=factors, mode=mode, length=length, taps=taps, batch=batch, gates=gates, dtype=dtype
    )
    u, k, both = case.data()
    exact = reference.fftconv(u, k, mode=mode, **both)
    y = kernels_numba.fftconv(u, k, mode=mode, **both)
    reference.check_close(y, exact, u, k, bound=case.bound, pairs=True, **both)


@pytest.mark.parametrize(
    ("factors", "mode", "length", "taps", "batch", "gates", "dtype"),
    [
        ((16, 16, 16), "circular", 8192, 8192, 2, (False, False), "fp16"),
        ((16, 16, 16), "causal", 4096, 4000, 1, (True, True), "bf16"),
        ((16, 16, 16), "two-sided", 4001, 1000, 3, (True, False), "fp16"),
        ((16, 16, 16), "two-sided", 4002, 1000, 1, (False, True), "fp16"),
        ((16, 32, 16), "causal", 8196, 3000, 1, (False, False), "fp16"),
        ((32, 16, 16), "causal", 16383, 2, 1, (False, False), "fp16"),
        ((16, 16, 32), "circular", 16384, 5, 1, (False, False), "bf16"),
    ],
)
def test_half_length_packing(
    factors: tuple[int, ...], mode: str, length: int, taps: int, batch: int, gates: tuple, dtype: str
) -> None:
    """One real sequence of 2 P samples as a complex one of P: every alignment, gates, short and full signals."""
    case = PLAIN._replace(
        factors=factors, mode=mode, length=length, taps=taps, batch=batch, gates=gates, dtype=dtype
    )
    u, k, both = case.data()
    plan = Plan(2 * prod(factors), factors, packing="half")
    y = kernels_numba.fftconv(u, k, mode=mode, plan=plan, **both)
    exact = reference.fftconv(u, k, mode=mode, **both)
    reference.check_close(y, exact, u, k, bound=case.bound, **both)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_half_length_packing_keeps_sequences_apart(value: float) -> None:
    """Each sequence is transformed alone: what is wrong with one cannot reach another."""
    u, k = noise((2, 1, 8192), "fp16"), filters(1, 8192)
    u[0, 0, 5] = value
    y = kernels_numba.fftconv(u, k, plan=Plan(8192, (16, 16, 16), packing="half"))
    assert not np.isfinite(y[0].astype(float)).any() and np.isfinite(y[1].astype(float)).all()


@pytest.mark.parametrize("factors", [f for _, f in ORDER_3[1:2]])
def test_even_longer_transforms(factors: tuple[int, ...]) -> None:
    case = PLAIN._replace(factors=factors, length=prod(factors), taps=prod(factors), batch=2)
    u, k, _ = case.data()
    y = kernels_numba.fftconv(u, k)
    reference.check_close(y, reference.fftconv(u, k), u, k, bound=case.bound, pairs=True)


# ---- algebra -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("factors", FACTORS)
def test_an_impulse_brings_out_the_filter(factors: tuple[int, int], dtype: str) -> None:
    n = prod(factors)
    where = [0, 1, n // 2 + 3, n - 1]
    u = np.zeros((len(where), 1, n))
    u[np.arange(len(where)), 0, where] = 1
    k = filters(1, n)
    y = kernels_numba.fftconv(half(u, dtype), k, plan=Plan(n, factors)).astype(float)
    bound = reference.fftconv_bound(2, dtype, coherent=True)
    for i, position in enumerate(where):
        assert np.linalg.norm(y[i, 0] - np.roll(k[0], position)) <= bound * np.linalg.norm(k)


@given(seed=seeds, factors=st.sampled_from(FACTORS), power=st.sampled_from((-8, -1, 1, 5)))
def test_scaling_by_powers_of_two_is_exact(seed: int, factors: tuple[int, int], power: int) -> None:
    """Roundings are relative, so they scale along; nothing is near the ends of bf16's range."""
    n = prod(factors)
    u, k = noise((2, 1, n), "bf16", seed), filters(1, n, seed)
    plan = Plan(n, factors)
    y = kernels_numba.fftconv(u, k, plan=plan).astype(float)
    scaled = kernels_numba.fftconv(half(u.astype(float) * 2.0**power, "bf16"), k, plan=plan).astype(float)
    assert (scaled == y * 2.0**power).all()
    wider = kernels_numba.fftconv(u, k * 2.0 ** (8 * power), plan=plan).astype(float)
    assert (wider == y * 2.0 ** (8 * power)).all()


@given(seed=seeds, factors=st.sampled_from(FACTORS), dtype=st.sampled_from(("fp16", "bf16")))
def test_linearity(seed: int, factors: tuple[int, int], dtype: str) -> None:
    """Negation is exact; sums are as exact as the bound says."""
    n = prod(factors)
    plan = Plan(n, factors)
    a, b, k = noise((2, 1, n), dtype, seed), noise((2, 1, n), dtype, [seed, 9]), filters(1, n, seed)
    spectrum = prepare_filter(k, length=n, dtype=dtype, plan=plan)
    convolve = FFTConv(spectrum, batch=2)
    ya, yb = convolve(a).astype(float), convolve(b).astype(float)
    assert (convolve(-a).astype(float) == -ya).all()
    total = half(a.astype(float) + b.astype(float), dtype)
    bound = 3 * reference.fftconv_bound(2, dtype)
    size = sum(np.linalg.norm(x.astype(float)) for x in (a, b, total)) * np.linalg.norm(k) / 3
    lost = total.astype(float) - a.astype(float) - b.astype(float)
    exact = ya + yb + reference.fftconv(lost, k)
    assert np.linalg.norm(convolve(total).astype(float) - exact) <= bound * size


def test_the_order_of_the_factors_changes_only_roundings() -> None:
    u, k = noise((3, 2, 512), "fp16"), filters(2, 512)
    one, two = (kernels_numba.fftconv(u, k, plan=Plan(512, f)).astype(float) for f in ((16, 32), (32, 16)))
    assert (one != two).any()
    found = reference.relative_error(one, two, u, k, pairs=True)
    assert found.worst <= 2 * reference.fftconv_bound(2, "fp16")


@given(case=cases(), pairs=st.integers(2, 3))
def test_pairs_and_channels_do_not_meet(case: Case, pairs: int) -> None:
    """A pair of sequences gets the same bits alone as among others."""
    case = case._replace(batch=2 * pairs, kind="noise", offset=0)
    u, k, gates = case.data()
    y = kernels_numba.fftconv(u, k, mode=case.mode, plan=case.plan, **gates)
    channel, first = case.channels - 1, 2 * (pairs - 1)
    part = (slice(first, first + 2), slice(channel, channel + 1))
    alone = kernels_numba.fftconv(
        u[part].copy(),
        k[channel],
        mode=case.mode,
        plan=case.plan,
        **{name: x[part].copy() for name, x in gates.items()},
    )
    assert (y[part].view(np.int16) == alone.view(np.int16)).all()


# ---- values that do not fit ----------------------------------------------------------------------------------
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("which", ["u", "pregate", "postgate"])
def test_what_is_not_finite_stays_in_its_pair(which: str, dtype: str, bad: float) -> None:
    shape = (5, 2, 256)
    arrays = {name: noise(shape, dtype, seed) for seed, name in enumerate(("u", "pregate", "postgate"))}
    k = filters(2, 256)
    clean = kernels_numba.fftconv(k=k, **arrays)
    arrays[which][2, 1, 77] = bad
    y = kernels_numba.fftconv(k=k, **arrays)
    assert (
        not np.isfinite(y[2, 1].astype(float)).any()
        if which != "postgate"
        else np.isfinite(y).sum() == y.size - 1
    )
    same = np.ones(shape[:2], bool)
    same[2:4, 1] = False
    assert (y[same].view(np.int16) == clean[same].view(np.int16)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_filter_that_is_not_finite_stays_in_its_channel(bad: float) -> None:
    u, k = noise((2, 3, 256), "fp16"), filters(3, 256)
    clean = kernels_numba.fftconv(u, k)
    k[1, 5] = bad
    y = kernels_numba.fftconv(u, k)
    assert not np.isfinite(y[:, 1]).any()
    assert (y[:, [0, 2]].view(np.int16) == clean[:, [0, 2]].view(np.int16)).all()


def test_overflow_inside_is_not_finite_outside() -> None:
    """sqrt(N) times 60000 does not fit into fp16; the result must say so and not look like a number."""
    u = half(np.full((2, 1, 1024), 60000.0), "fp16")
    y = kernels_numba.fftconv(u, filters(1, 1024))
    assert not np.isfinite(y).any()
    assert np.isfinite(
        kernels_numba.fftconv(half(u.astype(float), "bf16"), filters(1, 1024)).astype(float)
    ).all()


def test_a_result_that_does_not_fit_is_infinite() -> None:
    u, k = np.zeros((2, 1, 256)), np.zeros((1, 256))
    u[0, 0, 3], k[0, 4] = 1.0, 1e6
    y = kernels_numba.fftconv(half(u, "fp16"), k).astype(float)
    assert y[0, 0, 7] == np.inf
    exact = np.zeros(256)
    exact[7] = np.inf
    assert (np.isinf(y[0, 0]) == np.isinf(exact)).all()
    assert (
        abs(y[0, 0][np.isfinite(y[0, 0])]) <= 1e6 * reference.fftconv_bound(2, "fp16", coherent=True)
    ).all()


@pytest.mark.parametrize(
    ("dtype", "size", "level"),
    [
        ("fp16", 1e-2, 1.0),
        ("fp16", 1e4, 1.0),
        ("fp16", 1e6, 1e-2),  # taps alone are far above the largest fp16 number
        ("fp16", 1e-6, 1e4),  # and here below the least
        ("bf16", 1e-30, 1.0),
        ("bf16", 1e30, 1.0),
    ],
)
def test_filters_of_any_size(dtype: str, size: float, level: float) -> None:
    """The spectrum is scaled by a power of two where its format does not hold it."""
    u, k = half(level * noise((2, 1, 256), dtype).astype(float), dtype), size * filters(1, 256)
    y = kernels_numba.fftconv(u, k)
    bound = reference.fftconv_bound(2, dtype) * scatter(256)
    reference.check_close(y, reference.fftconv(u, k), u, k, bound=bound, pairs=True)


# ---- shapes, outputs, prepared calls -------------------------------------------------------------------------
def test_one_filter_for_all_channels() -> None:
    u, k = noise((2, 3, 256), "fp16"), filters(1, 100)
    y = kernels_numba.fftconv(u, k[0])
    assert (y == kernels_numba.fftconv(u, np.repeat(k, 3, axis=0))).all()


def test_without_a_batch_axis() -> None:
    u, k = noise((2, 256), "fp16"), filters(2, 256)
    y = kernels_numba.fftconv(u, k, pregate=u)
    assert y.shape == (2, 256)
    assert (y == kernels_numba.fftconv(u[None], k, pregate=u[None])[0]).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_filters_of_any_float_type(dtype: Any) -> None:
    u, k = noise((2, 1, 256), "fp16"), filters(1, 256).astype(dtype)
    expected = kernels_numba.fftconv(u, k.astype(np.float64))
    assert (kernels_numba.fftconv(u, k) == expected).all()
    assert (kernels_numba.fftconv(u, np.repeat(k, 2, axis=1)[:, ::2]) == expected).all()


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("length", [256, 100])
def test_out(batch: int, length: int) -> None:
    """Every element of the output is written, and no other."""
    u, k = noise((batch, 2, length), "fp16"), filters(2, 100)
    mode = "circular" if length == 256 else "causal"
    expected = kernels_numba.fftconv(u, k, mode=mode)
    room = np.full(u.size + 32, np.nan, np.float16)
    out = room[16:-16].reshape(u.shape)
    assert kernels_numba.fftconv(u, k, mode=mode, out=out) is out
    assert (out == expected).all()
    assert np.isnan(room[:16]).all() and np.isnan(room[-16:]).all()
    before = u.copy()
    assert kernels_numba.fftconv(u, k, mode=mode, out=u) is u
    assert (u == expected).all() and (before != u).any()


def test_inputs_are_left_alone() -> None:
    arrays = [noise((3, 2, 256), "fp16", seed) for seed in range(3)]
    k = filters(2, 256)
    before = [x.copy() for x in (*arrays, k)]
    kernels_numba.fftconv(arrays[0], k, pregate=arrays[1], postgate=arrays[2])
    assert all((x == y).all() for x, y in zip((*arrays, k), before, strict=True))


@pytest.mark.parametrize(("n", "length", "batch"), [(256, 256, 2), (512, 250, 3), (1024, 512, 1)])
def test_a_launch_that_may_begin_early_does_the_same(n: int, length: int, batch: int) -> None:
    """What it names of its inputs before it waits is there, and results are the same bits."""
    u, gate = (noise((batch, 2, length), "fp16", seed) for seed in (0, 1))
    mode = "circular" if length == n else "causal"
    convolve = FFTConv(prepare_filter(filters(2, length), length=length, mode=mode), batch=batch)
    assert convolve.spectrum.plan.n == n
    gates = ({}, {"pregate": gate})
    late = [convolve.run_cpu(u, **operands, blocks=3)[0] for operands in gates]
    how = convolve.spec
    convolve.spec = lambda *given, **more: replace(how(*given, **more), overlap=True)  # type: ignore[method-assign]
    for operands, expected in zip(gates, late, strict=True):
        early, _ = convolve.run_cpu(u, **operands, blocks=3)
        assert (early.view(np.int16) == expected.view(np.int16)).all()


def test_prepared_is_the_same_as_direct() -> None:
    k = filters(2, 90)
    spectrum = prepare_filter(k, length=150, mode="causal", dtype="bf16")
    convolve = FFTConv(spectrum, batch=3)
    for seed in range(2):
        u, v = noise((3, 2, 150), "bf16", seed), noise((3, 2, 150), "bf16", seed + 5)
        expected = kernels_numba.fftconv(u, k, mode="causal", postgate=v)
        assert (convolve(u, postgate=v) == expected).all()
        assert (kernels_numba.fftconv(u, spectrum, postgate=v) == expected).all()
        assert (kernels_numba.fftconv(u, spectrum, mode="causal", postgate=v) == expected).all()


def test_read_only_inputs() -> None:
    u, k = noise((2, 1, 256), "fp16"), filters(1, 256)
    expected = kernels_numba.fftconv(u, k)
    for x in (u, k):
        x.setflags(write=False)
    assert (kernels_numba.fftconv(u, k) == expected).all()


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_the_grid_does_not_change_the_result(blocks: int) -> None:
    u, k = noise((5, 3, 256), "fp16"), filters(3, 256)
    convolve = FFTConv(prepare_filter(k, length=256), batch=5)
    y, counters = convolve.run_cpu(u, blocks=blocks)
    assert (y == convolve.run_cpu(u, blocks=1)[0]).all()
    assert 1 <= counters.blocks <= blocks


@pytest.mark.parametrize(
    ("length", "taps"), [(1, 1), (5, 5), (97, 97), (255, 1), (300, 299), (301, 7), (2049, 2048)]
)
def test_any_circle(length: int, taps: int) -> None:
    """A circle that is no transform length is folded on a longer one."""
    u, k = noise((3, 1, length), "fp16", length), filters(1, taps)
    spectrum = prepare_filter(k, length=length)
    assert spectrum.plan.n >= min(length, 2 * length - 1)
    y = FFTConv(spectrum, batch=3)(u)
    bound = reference.fftconv_bound(spectrum.plan.order, "fp16", coherent=length < 32) * scatter(length)
    reference.check_close(y, reference.fftconv(u, k), u, k, bound=bound, pairs=True)


# ---- bad input -----------------------------------------------------------------------------------------------
U, K = np.zeros((2, 3, 256), np.float16), np.ones((3, 256))


def call(u: Any = U, k: Any = K, **arguments: Any) -> Any:
    return kernels_numba.fftconv(u, k, **arguments)


def strided(x: NDArray) -> NDArray:
    return np.repeat(x, 2, axis=-1)[..., ::2]


def frozen(x: NDArray) -> NDArray:
    x = x.copy()
    x.setflags(write=False)
    return x


BAD: dict[str, tuple[type[Exception], str, Any]] = {
    # name: exception, what the message must match, the call
    "u is a list": (
        TypeError,
        "^u: expected a NumPy.* got builtins.list.*numpy.asarray",
        lambda: call([[1.0]]),
    ),
    "u is None": (TypeError, "^u: expected.*NoneType", lambda: call(None)),
    "u fp64": (
        TypeError,
        "^u: .*fp16, bf16, fp32, complex64, complex32, got fp64; convert",
        lambda: call(U.astype(np.float64)),
    ),
    "u int16": (
        TypeError,
        "^u: .*fp16, bf16, fp32, complex64, complex32, got int16; convert",
        lambda: call(U.astype(np.int16)),
    ),
    "u complex128": (
        TypeError,
        "^u: .*fp16, bf16, fp32, complex64, complex32, got complex128; convert",
        lambda: call(U.astype(np.complex128)),
    ),
    "u of one axis": (ValueError, r"^u: expected sequences \[B, H, L\].*\(256,\)", lambda: call(U[0, 0])),
    "u of four axes": (ValueError, r"^u: expected sequences.*\(1, 2, 3, 256\)", lambda: call(U[None])),
    "length 0": (ValueError, r"^u: expected.*L >= 1.*\(2, 3, 0\)", lambda: call(U[..., :0])),
    "batch 0": (ValueError, r"^u: expected.*B, H, L >= 1.*\(0, 3, 256\)", lambda: call(U[:0])),
    "channels 0": (ValueError, r"^u: expected.*\(2, 0, 256\)", lambda: call(U[:, :0], K[:0])),
    "circular length": (
        ValueError,
        "^u: a circular convolution of 9000000 samples.*17999999 points.*up to 16777216",
        lambda: call(np.zeros((1, 1, 9000000), np.float16), np.ones(3)),
    ),
    "too long": (
        ValueError,
        "^u: a causal convolution of 16777216 samples with 9 taps needs.*up to 16777216",
        lambda: call(np.zeros((1, 1, 2**24), np.float16), np.ones(9), mode="causal", tile=None),
    ),
    "u strided": (ValueError, r"^u: expected a contiguous.*contiguous\(\)", lambda: call(strided(U))),
    "u transposed": (
        ValueError,
        "^u: expected a contiguous",
        lambda: call(np.zeros((3, 2, 256), np.float16).transpose(1, 0, 2)),
    ),
    "k is a list": (TypeError, "^k: expected a NumPy", lambda: call(k=[1.0])),
    "k complex": (
        TypeError,
        "^k: a complex128 filter is for complex sequences; these are fp16",
        lambda: call(k=K.astype(complex)),
    ),
    "k int": (TypeError, "^k: accepted are real.*int64", lambda: call(k=K.astype(np.int64))),
    "k empty": (ValueError, r"^k: expected a filter.*\(3, 0\)", lambda: call(k=K[:, :0])),
    "k of no channels": (ValueError, r"^k: expected a filter.*\(0, 256\)", lambda: call(k=K[:0])),
    "k of three axes": (ValueError, r"^k: expected a filter.*\(1, 3, 256\)", lambda: call(k=K[None])),
    "k of other channels": (ValueError, r"^k: 2 filters for 3 channels; give", lambda: call(k=K[:2])),
    "k longer than circular u": (ValueError, "^k: 257 taps.*256", lambda: call(k=np.ones((3, 257)))),
    "mode unknown": (ValueError, "mode.*same", lambda: call(mode="same")),
    "pregate of another shape": (
        ValueError,
        r"^pregate: expected shape \(2, 3, 256\).*got \(1, 3, 256\)",
        lambda: call(pregate=U[:1]),
    ),
    "postgate of another length": (
        ValueError,
        r"^postgate: expected shape \(2, 3, 256\).*got \(2, 3, 255\)",
        lambda: call(postgate=U[..., 1:]),
    ),
    "pregate of another type": (
        TypeError,
        "^pregate: expected fp16.*got bf16; convert",
        lambda: call(pregate=U.astype(HALF["bf16"])),
    ),
    "postgate fp32": (
        TypeError,
        "^postgate: expected fp16.*got fp32; convert",
        lambda: call(postgate=U.astype(np.float32)),
    ),
    "pregate a number": (TypeError, "^pregate: expected a NumPy", lambda: call(pregate=2.0)),
    "pregate strided": (ValueError, "^pregate: expected a contiguous", lambda: call(pregate=strided(U))),
    "out of another shape": (ValueError, "^out: expected shape", lambda: call(out=np.zeros_like(U[:1]))),
    "out of another type": (
        TypeError,
        "^out: expected fp16.*got fp32",
        lambda: call(out=np.zeros(U.shape, np.float32)),
    ),
    "out strided": (ValueError, "^out: expected a contiguous", lambda: call(out=strided(U))),
    "out read-only": (ValueError, "^out: .*read-only", lambda: call(out=frozen(U))),
    "plan of another length": (
        ValueError,
        "^plan: 512 points are too few for a circular.*of 300 samples.*599.*or a transform of exactly 300",
        lambda: call(np.zeros((1, 1, 300), np.float16), np.ones(3), plan=Plan(512, (16, 32))),
    ),
    "plan too short": (
        ValueError,
        "^plan: 256 points are too few.*511",
        lambda: call(mode="causal", plan=Plan(256, (16, 16))),
    ),
    "plan of other factors": (ValueError, "^plan: .*16, 32", lambda: call(plan=Plan(256, (8, 32)))),
    "plan of order 1": (
        ValueError,
        "^plan: .*accepted with packing 'pair' 16x16",
        lambda: call(plan=Plan(256, (256,))),
    ),
    "plan of half packing": (
        ValueError,
        "^plan: .*packing 'pair'",
        lambda: call(plan=Plan(768, (24, 16), packing="half"), u=np.zeros((2, 3, 768), np.float16)),
    ),
    "plan is text": (TypeError, "^plan: .*Plan.*str", lambda: call(plan="16x16")),
    "dtype unknown": (
        ValueError,
        "^dtype: .*fp16, bf16, fp32, complex64, complex32; got 'fp64'",
        lambda: prepare_filter(K, length=256, dtype="fp64"),
    ),
    "length 0 to prepare": (
        ValueError,
        "^length: .*got 0",
        lambda: prepare_filter(K, length=0, mode="causal"),
    ),
    "batch 0 to prepare": (ValueError, "^batch: ", lambda: FFTConv(prepare_filter(K, length=256), batch=0)),
    "more pairs than 2^31": (
        ValueError,
        "^u: .*split the batch",
        lambda: FFTConv(prepare_filter(K, length=256), batch=2**33),
    ),
    "spectrum of another length": (
        ValueError,
        r"^u: expected shape \(2, 3, 512\).*got \(2, 3, 256\)",
        lambda: call(k=prepare_filter(np.ones((3, 5)), length=512)),
    ),
    "spectrum of other channels": (
        ValueError,
        r"^u: expected shape \(2, 1, 256\).*got \(2, 3, 256\)",
        lambda: call(k=prepare_filter(np.ones((1, 5)), length=256)),
    ),
    "spectrum of another type": (
        TypeError,
        "^u: expected bf16.*got fp16",
        lambda: call(k=prepare_filter(K, length=256, dtype="bf16")),
    ),
    "spectrum of another plan": (
        ValueError,
        "^plan: the spectrum was prepared for",
        lambda: call(
            u=np.zeros((2, 3, 512), np.float16), k=prepare_filter(K, length=512), plan=Plan(512, (32, 16))
        ),
    ),
    "spectrum of another mode": (
        ValueError,
        "^mode: the spectrum was prepared for.*circular.*causal",
        lambda: call(k=prepare_filter(K, length=256), mode="causal"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    kind, message, attempt = BAD[name]
    with pytest.raises(kind, match=message):
        attempt()


def test_bad_input_after_a_good_call() -> None:
    """A prepared convolution remembers which arrays passed its checks; that must not let others through."""
    convolve = FFTConv(prepare_filter(K, length=256), batch=2)
    convolve(U, pregate=U)
    with pytest.raises(ValueError, match=r"^u: expected a contiguous"):
        convolve(strided(U))
    with pytest.raises(TypeError, match=r"^pregate: expected fp16"):
        convolve(U, pregate=U.astype(HALF["bf16"]))
    with pytest.raises(ValueError, match=r"^out: expected shape"):
        convolve(U, out=np.zeros_like(U[:, :2]))
