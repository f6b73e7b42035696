"""Exact decode attention: the definition in plain Python, the laws it obeys, and the wrong ways it is not."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import reference

Array = NDArray[Any]
VARIANTS = ("async", "sync", "plain")
PHI: dict[str, Any] = {"phi": 0.25, "bounds": (-4.0, 4.0)}


class Problem(NamedTuple):
    q: Array  # [B, T, Hq, D]
    k: Array  # [B, L, Hkv, D]
    v: Array
    seqlens: list[int]


def problem(
    batch: int = 2,
    tokens: int = 2,
    kv: int = 2,
    group: int = 3,
    size: int = 8,
    room: int = 12,
    *,
    seed: int = 0,
) -> Problem:
    """Normal values; logits of a size that some rows leave the bounds of PHI and others do not."""
    draw = np.random.default_rng(seed)
    q = 2 * draw.standard_normal((batch, tokens, kv * group, size))
    k, v = draw.standard_normal((2, batch, room, kv, size))
    return Problem(q, k, v, draw.integers(0, room + 1, batch).tolist())


@st.composite
def problems(draw: st.DrawFn, *, tokens: int = 8) -> Problem:
    batch, kv = draw(st.integers(1, 3), label="B"), draw(st.integers(1, 3), label="Hkv")
    count = draw(st.integers(1, tokens), label="T")
    group = draw(st.sampled_from([1, 2, 3, 5, 6, 7, 16]), label="group")
    size, room = draw(st.integers(1, 9), label="D"), draw(st.integers(1, 20), label="L")
    found = problem(batch, count, kv, group, size, room, seed=draw(seeds, label="seed"))
    return found._replace(seqlens=[draw(st.integers(0, room), label="seqlen") for _ in range(batch)])


def attend(p: Problem, variant: str = "async", **settings: Any) -> Array:
    return reference.decode_attention(
        p.q, p.k, p.v, seqlens=p.seqlens, variant=variant, **{**PHI, **settings}
    )


def same(got: Array, expected: Array) -> bool:
    """Agreement to 1e-12 of the values, which are about 1; NaN agrees with nothing."""
    return got.shape == expected.shape and bool(np.all(np.abs(got - expected) <= 1e-12))


def as_written(
    p: Problem,
    *,
    softcap: float | None = None,
    cap_last: bool = False,  # the ways to be wrong: the cap after the mask,
    interleaved: bool = False,  # query head h in group h mod Hkv,
    late: int = 0,  # the causal mask off by one,
    shifted: bool = True,  # the maximum not subtracted,
    scale: float | None = None,
) -> Array:
    """The definition, index by index in plain Python."""
    y = np.zeros(p.q.shape)
    batch, tokens, heads, size = p.q.shape
    kv = p.k.shape[2]
    scale = 1 / math.sqrt(size) if scale is None else scale
    for b, t, h in np.ndindex(batch, tokens, heads):
        g, n = h % kv if interleaved else h // (heads // kv), p.seqlens[b]
        x = []
        for j in range(n):
            s = scale * math.fsum(p.q[b, t, h] * p.k[b, j, g])
            s = s if softcap is None or cap_last else softcap * math.tanh(s / softcap)
            s = s if j <= n - tokens + t + late else -math.inf
            x.append(softcap * math.tanh(s / softcap) if softcap is not None and cap_last else s)
        most = max(x, default=-math.inf)
        if most == -math.inf:
            continue
        weights = [math.exp(s - (most if shifted else 0)) for s in x]
        y[b, t, h] = sum(w * p.v[b, j, g] for j, w in enumerate(weights)) / math.fsum(weights)
    return y


# ---- the definition, and what is not it ----


@given(problems(tokens=4), st.sampled_from([None, 0.5, 3.0, 50.0]), st.integers(1, 30))
def test_every_variant_is_the_definition(p: Problem, softcap: float | None, splits: int) -> None:
    expected = as_written(p, softcap=softcap)
    for variant in VARIANTS:
        assert same(attend(p, variant, softcap=softcap, splits=splits), expected), variant


WHOLE = problem(tokens=4, seed=3)._replace(seqlens=[12, 5])


@pytest.mark.parametrize(
    "wrong", [{"cap_last": True}, {"interleaved": True}, {"late": 1}, {"late": -1}, {"scale": 1.0}]
)
def test_the_wrong_ways_are_rejected(wrong: dict[str, Any]) -> None:
    y = attend(WHOLE, softcap=2.0)
    assert same(y, as_written(WHOLE, softcap=2.0))
    assert np.max(np.abs(y - as_written(WHOLE, softcap=2.0, **wrong))) > 0.05


def test_a_maximum_not_subtracted_is_rejected() -> None:
    p = WHOLE._replace(q=WHOLE.q * 1000)
    assert same(attend(p), as_written(p))
    with pytest.raises(OverflowError):
        as_written(p, shifted=False)


def test_a_wrong_length_is_rejected() -> None:
    assert not same(attend(WHOLE._replace(seqlens=[12, 6])), attend(WHOLE))
    assert not same(reference.decode_attention(*WHOLE[:3], variant="plain"), attend(WHOLE))


# ---- laws ----


def test_splits_are_taken() -> None:
    """They change nothing but the rounding; and that they do."""
    p = problem(room=200)._replace(seqlens=[200, 150])
    for variant in ("async", "sync"):
        one, many = (attend(p, variant, splits=splits, bounds=(-200, 200)) for splits in (1, 7))
        assert same(one, many) and not np.array_equal(one, many)


@given(problems(), st.integers(1, 40), st.integers(1, 40))
def test_any_split_is_the_whole(p: Problem, one: int, other: int) -> None:
    for variant in VARIANTS:
        assert same(attend(p, variant, splits=one), attend(p, "plain", splits=other))


@given(problems(), seeds)
def test_a_common_shift_of_the_logits_changes_nothing(p: Problem, seed: int) -> None:
    """A vector added to all keys of a group adds q . vector to all logits of a row."""
    moved = p._replace(k=p.k + np.random.default_rng(seed).standard_normal((1, 1, *p.k.shape[2:])))
    assert same(attend(moved), attend(p))


@given(problems())
def test_a_group_shares_its_head(p: Problem) -> None:
    repeated = [np.repeat(cache, p.q.shape[2] // cache.shape[2], axis=2) for cache in (p.k, p.v)]
    assert same(attend(p._replace(k=repeated[0], v=repeated[1])), attend(p))


@given(problems())
def test_query_tokens_are_steps_of_decoding(p: Problem) -> None:
    """T tokens at once equal T calls with one token each, the cache growing by one key in between."""
    y, tokens = attend(p), p.q.shape[1]
    for t in range(tokens):
        lengths = [max(n - tokens + t + 1, 0) for n in p.seqlens]
        assert same(attend(p._replace(q=p.q[:, t : t + 1], seqlens=lengths)), y[:, t : t + 1])


@given(problems(), st.integers(0, 19), seeds)
def test_later_keys_never_matter(p: Problem, at: int, seed: int) -> None:
    """A causal mask, and an end of the sequence, that even NaN does not pass."""
    at = min(at, p.k.shape[1] - 1)
    k, v = p.k.copy(), p.v.copy()
    k[:, at:], v[:, at:] = np.nan, np.inf
    y, spoilt = attend(p), attend(p._replace(k=k, v=v))
    for b, t in np.ndindex(*p.q.shape[:2]):
        seen = p.seqlens[b] - p.q.shape[1] + t + 1
        assert same(spoilt[b, t], y[b, t]) if seen <= at else np.isnan(spoilt[b, t]).all()


@given(problems(), st.floats(0.01, 100))
def test_a_soft_cap_bounds_the_logits(p: Problem, cap: float) -> None:
    """With logits in (-cap, cap) no bound around that is ever left, and no weight beats another by e^(2 cap)."""
    args = {"seqlens": p.seqlens, "softcap": cap, "phi": 0.0, "bounds": (-1.01 * cap, 1.01 * cap)}
    assert not reference.attention_flags(p.q, p.k, **args).any()
    if cap < 0.1:  # nearly uniform weights
        mean = as_written(p._replace(q=np.zeros_like(p.q)))
        assert np.all(np.abs(attend(p, softcap=cap) - mean) <= math.expm1(2 * cap) * np.abs(p.v).max())


def test_a_huge_soft_cap_is_none_and_the_scale_is_one_over_root_d() -> None:
    assert np.allclose(attend(WHOLE, softcap=1e6), attend(WHOLE), rtol=0, atol=1e-9)
    assert same(attend(WHOLE, scale=8**-0.5), attend(WHOLE))
    assert same(attend(WHOLE, scale=0.5), attend(WHOLE._replace(q=WHOLE.q * 0.5 * 8**0.5)))


# ---- pages ----


@given(problems(), st.integers(1, 7), seeds)
def test_paged_is_contiguous(p: Problem, page: int, seed: int) -> None:
    """Pages in any order; unused ones hold NaN, and unused entries of the table point nowhere."""
    draw = np.random.default_rng(seed)
    (batch, room), rest = p.k.shape[:2], p.k.shape[2:]
    blocks = -(-room // page)
    order = draw.permutation(batch * blocks + 2)
    pools = np.full((2, len(order), page, *rest), np.nan)
    table = np.full((batch, blocks), -1)
    for b, n in enumerate(p.seqlens):
        for block in range(-(-n // page)):
            table[b, block] = order[b * blocks + block]
            count = min(page, n - block * page)
            for pool, cache in zip(pools, (p.k, p.v), strict=True):
                pool[table[b, block], :count] = cache[b, block * page : block * page + count]
    paged = p._replace(k=pools[0], v=pools[1])
    assert np.array_equal(attend(paged, block_table=table), attend(p))
    flags = [
        reference.attention_flags(p.q, k, seqlens=p.seqlens, **PHI, **more)
        for k, more in ((p.k, {}), (pools[0], {"block_table": table}))
    ]
    assert np.array_equal(*flags)


def test_pages_may_be_shared_and_lengths_left_out() -> None:
    pool = problem(batch=3, room=4)
    both = reference.decode_attention(
        pool.q[:2], pool.k, pool.v, block_table=[[1, 0], [1, 2]], variant="plain"
    )
    for b, pages in enumerate(([1, 0], [1, 2])):
        k, v = (cache[pages].reshape(1, 8, *cache.shape[2:]) for cache in (pool.k, pool.v))
        assert same(reference.decode_attention(pool.q[b : b + 1], k, v, variant="plain")[0], both[b])


# ---- the fallback ----


@given(problems(), st.integers(1, 5))
@example(problem(seed=1), 3)
def test_flags_are_the_rule(p: Problem, width: int) -> None:
    flags = reference.attention_flags(p.q, p.k, seqlens=p.seqlens, phi=0.5, bounds=(-width, width))
    assert flags.shape == p.q.shape[:3]
    tokens, heads = p.q.shape[1:3]
    for b, t, h in np.ndindex(*flags.shape):
        seen = max(p.seqlens[b] - tokens + t + 1, 0)
        x = p.k[b, :seen, h // (heads // p.k.shape[2])] @ p.q[b, t, h] / math.sqrt(p.q.shape[3])
        assert flags[b, t, h] == np.any(np.abs(x - 0.5) >= width)


def test_the_fallback_is_seen_and_not_felt() -> None:
    p = problem(batch=4, seed=5)._replace(seqlens=[12, 12, 5, 12])
    flags = reference.attention_flags(p.q, p.k, seqlens=p.seqlens, **PHI)
    assert 0.1 < flags.mean() < 0.9  # of either kind: the tests above meet both
    for bounds in ((-0.01, 0.01), (-200.0, 200.0)):
        assert same(attend(p, bounds=bounds), attend(p, "plain"))


def test_boundary_of_the_fallback() -> None:
    """Logits 4, 5, 6, 7 and 3, 6, 9, 6 of one key head each; (-3, 3) about 6 is open."""
    k = np.array([[4.0, 3], [5, 6], [6, 9], [7, 6]]).reshape(1, 4, 2, 1)
    args: dict[str, Any] = {"phi": 6, "bounds": (-3, 3), "scale": 1.0}
    assert reference.attention_flags(np.ones((1, 1, 2, 1)), k, **args).tolist() == [[[False, True]]]
    args["bounds"] = (-4, 3)  # the cap makes 9 into 8.74: phi and bounds are of capped logits
    for softcap, expected in ((None, True), (30.0, False)):
        flags = reference.attention_flags(np.ones((1, 1, 2, 1)), k, softcap=softcap, **args)
        assert flags.tolist() == [[[False, expected]]]


# ---- rows without keys, infinities, NaN ----


@pytest.mark.parametrize("variant", VARIANTS)
def test_lengths_at_the_edges(variant: str) -> None:
    p = problem(batch=4, tokens=3, room=5)._replace(seqlens=[0, 1, 2, 5])
    y = attend(p, variant, splits=9)
    assert not y[0].any() and not y[1, :2].any() and not y[2, 0].any()
    group = p.q.shape[2] // p.k.shape[2]
    assert same(y[1, 2], np.repeat(p.v[1, 0], group, axis=0))  # one key: its value
    assert same(y[2, 1], np.repeat(p.v[2, 0], group, axis=0))
    assert same(y, as_written(p))
    empty = reference.decode_attention(p.q, p.k[:, :0], p.v[:, :0], variant=variant, **PHI)
    assert empty.shape == p.q.shape and not empty.any()
    assert reference.decode_attention(p.q[:0], p.k[:0], p.v[:0], variant=variant, **PHI).shape == (0, 3, 6, 8)


@pytest.mark.parametrize("variant", VARIANTS)
def test_infinities_and_nan(variant: str) -> None:
    p = problem(batch=1, tokens=1, kv=2, group=1, size=2, room=4)._replace(seqlens=[4])
    q, k, v = np.abs(p.q), p.k.copy(), p.v.copy()
    clean = attend(p._replace(q=q), variant)[0, 0]

    def spoilt(name: str, value: float, group: int, size: int = 0, at: int = 2) -> Array:
        arrays = {"k": k.copy(), "v": v.copy()}
        arrays[name][0, at, group, size] = value
        return attend(Problem(q, arrays["k"], arrays["v"], [4]), variant, splits=3)[0, 0]

    for value in (np.nan, np.inf):  # a logit of NaN or infinity: nothing is left of the row, all of the other
        y = spoilt("k", value, 0)
        assert np.isnan(y[0]).all() and same(y[1], clean[1])
    without = [np.delete(cache[:, :, :1], 2, axis=1) for cache in (k, v)]
    left = attend(Problem(q[:, :, :1], without[0], without[1], [3]), variant)[0, 0, 0]
    assert same(spoilt("k", -np.inf, 0)[0], left)  # a logit of -inf: that key is not there
    for value in (np.nan, np.inf, -np.inf):
        y = spoilt("v", value, 1)
        assert y[1, 0] == value or (np.isnan(value) and np.isnan(y[1, 0]))
        assert same(y[1, 1], clean[1, 1]) and same(y[0], clean[0])
    nothing = k.copy()
    nothing[..., 0] = -np.inf  # all logits -inf: zeros, whatever the values
    assert not attend(Problem(q, nothing, np.full_like(v, np.nan), [4]), variant, splits=2).any()
    assert np.isnan(attend(Problem(np.full_like(q, np.nan), k, v, [4]), variant)).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_beyond_half_precision(variant: str) -> None:
    """fp16 products of 128 terms overflow before they are scaled; here they do not."""
    q, k = np.full((1, 1, 1, 128), 60.0, np.float16), np.full((1, 3, 1, 128), 60.0, np.float16)
    k[0, 1] = 50
    v = np.arange(3.0).reshape(1, 3, 1, 1) * np.ones((1, 3, 1, 128))
    y = reference.decode_attention(q, k, v, variant=variant, **PHI)
    assert y.dtype == np.float64 and same(y, np.ones((1, 1, 1, 128)))


def test_layouts_and_dtypes() -> None:
    half = [x.astype(np.float16) for x in WHOLE[:3]]
    expected = attend(Problem(*(x.astype(np.float64) for x in half), WHOLE.seqlens))
    strided = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in half]  # [B, H, L, D] in memory
    bf16 = pytest.importorskip("ml_dtypes").bfloat16
    short = [x.astype(bf16) for x in half]
    assert same(attend(Problem(*half, WHOLE.seqlens)), expected)
    assert same(attend(Problem(*strided, np.array(WHOLE.seqlens, np.int32).tolist())), expected)
    wide = Problem(*(x.astype(np.float64) for x in short), WHOLE.seqlens)
    assert same(attend(Problem(*short, WHOLE.seqlens)), attend(wide))
    assert not same(attend(wide), expected)


# ---- what is refused ----

Q, K = np.zeros((2, 1, 6, 8)), np.zeros((2, 5, 3, 8))


def call(q: Any = Q, k: Any = K, v: Any = None, **settings: Any) -> object:
    settings = {"variant": "sync", **settings}
    return reference.decode_attention(q, k, k if v is None else v, **settings)


REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: call(Q[0]), ValueError, r"q must be \[B, T, Hq, D\] .*got shape \(1, 6, 8\)"),
    (lambda: call(Q[:, :0]), ValueError, r"q must be \[B, T, Hq, D\] with T, Hq and D at least 1"),
    (lambda: call(Q * 1j), TypeError, r"q must be real"),
    (lambda: call(Q > 0), TypeError, r"q must be float16.*got bool"),
    (lambda: call(k=K[0]), ValueError, r"k_cache must be \[B, L, Hkv, D\].*got shape \(5, 3, 8\)"),
    (lambda: call(k=1.0), ValueError, r"k_cache must be \[B, L, Hkv, D\].*got shape \(\)"),
    (lambda: call(k=K[:, :, :0]), ValueError, r"k_cache must be .* Hkv and D at least 1"),
    (lambda: call(k=K * 1j, seqlens=[0, 0]), TypeError, r"k_cache must be real"),
    (lambda: call(v=K > 0, seqlens=[0, 0]), TypeError, r"v_cache must be float16.*got bool"),
    (lambda: call(v=K[:, :4]), ValueError, r"v_cache must have the shape of k_cache, .*got \(2, 4, 3, 8\)"),
    (lambda: call(k=K[..., :4]), ValueError, r"k_cache must have the head size of q, D=8"),
    (lambda: call(Q[:, :, :4]), ValueError, r"q must have a multiple of the 3 key heads .*got Hq=4"),
    (lambda: call(Q[:, :, :2]), ValueError, r"q must have a multiple of the 3 key heads .*got Hq=2"),
    (lambda: call(k=K[:1]), ValueError, r"a sequence for each of the B=2 of q.*need a block_table"),
    (lambda: call(seqlens=[5]), ValueError, r"seqlens must be \[B\] with B=2.*got shape \(1,\)"),
    (lambda: call(seqlens=5), ValueError, r"seqlens must be \[B\] with B=2.*got shape \(\)"),
    (lambda: call(seqlens=[5, 6]), ValueError, r"seqlens must lie between 0 and 5.*got 5 to 6"),
    (lambda: call(seqlens=[-1, 5]), ValueError, r"seqlens must lie between 0 and 5.*got -1 to 5"),
    (lambda: call(seqlens=[1.0, 2.0]), TypeError, r"seqlens must be integers .*got float64"),
    (lambda: call(block_table=[[0, 1]]), ValueError, r"block_table must be \[B, blocks\] with B=2.*\(1, 2\)"),
    (lambda: call(block_table=[0, 1]), ValueError, r"block_table must be \[B, blocks\]"),
    (lambda: call(block_table=[[0.0], [1.0]]), TypeError, r"block_table must be integers"),
    (
        lambda: call(block_table=[[0, 1], [1, 2]]),
        ValueError,
        r"block_table must hold pages from 0 to 1 .*got 2 at \[1, 1\], where sequence 1 has 10 keys",
    ),
    (lambda: call(block_table=[[0, -1], [1, 0]], seqlens=[6, 1]), ValueError, r"got -1 at \[0, 1\]"),
    (lambda: call(block_table=[[0], [1]], seqlens=[6, 1]), ValueError, r"seqlens must lie between 0 and 5"),
    (
        lambda: call(k=K[:, :0], block_table=[[0], [1]]),
        ValueError,
        r"k_cache must have pages of at least one",
    ),
    (lambda: call(scale=np.nan), ValueError, r"scale must be finite"),
    (lambda: call(scale="1"), TypeError, r"scale must be a real number"),
    (lambda: call(softcap=0), ValueError, r"softcap must be positive, or None for no cap; got 0"),
    (lambda: call(softcap=-3.0), ValueError, r"softcap must be positive"),
    (lambda: call(splits=0), ValueError, r"splits must be at least 1"),
    (lambda: call(variant="flash"), ValueError, r"variant must be one of async, sync, plain; got 'flash'"),
    (lambda: call(variant="async"), ValueError, r"phi and bounds must be given"),
    (lambda: call(phi=0, bounds=(1, 0)), ValueError, r"bounds must be \(a, b\) with a < b"),
    (
        lambda: reference.attention_flags(Q, K, phi=0, bounds=None),
        ValueError,
        r"phi and bounds must be given",
    ),
    (lambda: reference.attention_flags(Q, K[:1], phi=0, bounds=(-1, 1)), ValueError, r"a sequence for each"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_input_is_named(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_bad_input_is_refused_before_any_work() -> None:
    with pytest.raises(ValueError, match="variant must be one of"):
        reference.decode_attention(Q[:0], K[:0], K[:0], variant="flash")
    with pytest.raises(ValueError, match="softcap must be positive"):
        call(Q[:0], K[:0], softcap=0)
