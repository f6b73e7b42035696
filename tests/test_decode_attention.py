"""Decode attention on the CPU body: laws, the fallback and its boundary, masks, infinities, and refusals."""

from typing import Any

import numpy as np
import pytest
from attentions import GROUPS, RANGES, Case, Problem, cases
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import seeds

import kernels_numba
import reference
from costmodel import attention_counts
from kernels_numba import DecodeAttention
from kernels_numba.attention_checks import HEAD_SIZES

few = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])


def prepared(case: Case, p: Problem, **other: Any) -> DecodeAttention:
    blocks = None if p.block_table is None else p.block_table.shape[1]
    return DecodeAttention(
        p.q.shape, p.k.shape, case.dtype, blocks=blocks, splits=case.splits, **{**case.settings, **other}
    )


def attend(case: Case, p: Problem, **other: Any) -> NDArray:
    """The kernel on the CPU body; its output is poisoned before."""
    how = {"warps": 4, "cluster": 1}
    how = {name: other.pop(name, value) for name, value in how.items()}
    y, _ = prepared(case, p, **other).run_cpu(
        p.q, p.k, p.v, seqlens=p.seqlens, block_table=p.block_table, **how
    )
    return y


def same(a: NDArray, b: NDArray) -> bool:
    return bool((a.view(np.int16) == b.view(np.int16)).all())


def apart(case: Case, p: Problem, a: NDArray, b: NDArray) -> float:
    """Largest difference of two results that are each within the tolerance, in tolerances: at most 2."""
    return float(np.max(np.abs(a.astype(float) - b.astype(float)) / case.tolerance(p), initial=0.0))


# ---- values --------------------------------------------------------------------------------------------------
@few
@given(cases())
@example(Case(room=1))
@example(Case(room=1, splits=6, lengths=True, seed=3))
@example(Case(tokens=8, group=16, size=64, room=20))
@example(Case(tokens=3, group=7, size=72, room=35, page=8, softcap=2.0, lengths=True, dtype="bf16"))
@example(Case(tokens=5, room=3))
@example(Case(kind="OPT-6.7B", group=5, room=60))
@example(Case(kind="all out of range", splits=5, group=6, size=136))
def test_within_the_bound_of_the_reference(case: Case) -> None:
    p = case.data()
    case.check(attend(case, p), p)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("variant", ["async", "sync"])
def test_every_group(group: int, variant: str) -> None:
    case = Case(group=group, variant=variant, kv=1, room=33, seed=group)
    p = case.data()
    case.check(attend(case, p), p)


@pytest.mark.parametrize("size", HEAD_SIZES)
def test_every_head_size(size: int) -> None:
    case = Case(size=size, batch=1, kv=1, group=2, tokens=2, room=19, dtype="fp16" if size % 16 else "bf16")
    p = case.data()
    case.check(attend(case, p), p)


@pytest.mark.parametrize("model", RANGES)
def test_ranges_of_the_paper_s_models(model: str) -> None:
    """With bounds from the range two models never fall back; the third has no common shift."""
    low, high = RANGES[model]
    phi = (low + high) / 2
    case = Case(kind=model, room=90, splits=3, phi=phi)
    if high - low > 100:
        with pytest.raises(ValueError, match="no common shift"):
            prepared(case._replace(bounds=(low - phi - 1, high - phi + 1)), case.data())
        case = case._replace(variant="sync")
    else:
        case = case._replace(bounds=(low - phi - 0.5, high - phi + 0.5))
        assert not case.flags(case.data()).any()
    p = case.data()
    case.check(attend(case, p), p)


# ---- laws ----------------------------------------------------------------------------------------------------
@few
@given(case=cases(room=40, tokens=3), others=st.tuples(st.integers(1, 9), st.integers(1, 6)))
@example(case=Case(kind="outlier", room=50, bounds=(-3.0, 3.0)), others=(60, 1))
def test_any_split_equals_the_whole(case: Case, others: tuple[int, int]) -> None:
    """And any number of warps, more splits than keys among them; a split count gives the same bits again."""
    p = case.data()
    splits, warps = others
    y, z = attend(case._replace(splits=1), p), attend(case._replace(splits=splits), p, warps=warps)
    assert apart(case, p, y, z) <= 2
    assert same(z, attend(case._replace(splits=splits), p, warps=warps))


@few
@given(cases(room=90, tokens=4), st.just(2))
@example(Case(kind="outlier", room=150, group=6, tokens=5, bounds=(-3.0, 3.0)), 4)
@example(Case(room=1), 2)
def test_splits_as_a_cluster_give_the_same_bits(case: Case, cluster: int) -> None:
    case = case._replace(splits=cluster)
    p = case.data()
    assert same(attend(case, p, cluster=cluster), attend(case, p))


@few
@given(cases(room=50, tokens=3))
def test_async_equals_sync(case: Case) -> None:
    p = case.data()
    case = case._replace(variant="async")
    assert apart(case, p, attend(case, p), attend(case._replace(variant="sync"), p)) <= 2


@few
@given(seed=seeds, move=st.sampled_from([-3.0, -0.5, 1.0, 6.0]), kind=st.sampled_from(["noise", "narrow"]))
def test_the_shift_does_not_matter(seed: int, move: float, kind: str) -> None:
    case = Case(kind=kind, seed=seed, bounds=(-20.0, 20.0))
    p = case.data()
    assert apart(case, p, attend(case, p), attend(case._replace(phi=move), p)) <= 2


@few
@given(cases(room=40, tokens=1))
def test_heads_of_a_group_are_independent(case: Case) -> None:
    """A head gets the same bits whatever the heads that share its keys ask for."""
    p = case.data()
    q = np.random.default_rng(case.seed).permuted(p.q, axis=3)
    q[:, :, case.group // 2 :: case.group] = p.q[:, :, case.group // 2 :: case.group]
    y, z = (
        np.ascontiguousarray(attend(case, x)[:, :, case.group // 2 :: case.group])
        for x in (p, p._replace(q=q))
    )
    assert same(y, z)


@few
@given(cases(room=30, tokens=4))
def test_what_is_not_seen_does_not_exist(case: Case) -> None:
    """NaN in keys and values past the end of a sequence, and past what a token may see, change no bit."""
    case = case._replace(lengths=True, page=0, kind="noise")
    p = case.data()
    assert p.seqlens is not None
    y = attend(case, p)
    k, v = p.k.copy(), p.v.copy()
    for b, n in enumerate(p.seqlens):
        k[b, n:] = v[b, n:] = np.nan
    assert same(attend(case, p._replace(k=k, v=v)), y)
    for b, n in enumerate(p.seqlens):  # the newest key is the last token's alone
        if n:
            k[b, n - 1] = v[b, n - 1] = np.nan
    z = attend(case, p._replace(k=k, v=v))
    assert same(np.ascontiguousarray(z[:, :-1]), np.ascontiguousarray(y[:, :-1]))
    seen = np.array(p.seqlens) > 0
    assert np.isnan(z[seen, -1].astype(float)).all() and not z[~seen].astype(float).any()


def test_pages_are_the_contiguous_cache() -> None:
    case = Case(tokens=2, group=3, room=41, lengths=True, seed=5)
    p = case.data()
    for page in (1, 7, 8, 16, 64):
        paged = case._replace(page=page).data()._replace(seqlens=p.seqlens)
        assert same(attend(case, paged), attend(case, p))


@pytest.mark.skipif(kernels_numba.device().is_gpu, reason="host arrays go to the GPU here")
def test_heads_before_keys_in_memory() -> None:
    """Caches [B, Hkv, L, D] seen as [B, L, Hkv, D], as other libraries keep them."""
    case = Case(group=2, room=21)
    p = case.data()
    k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (p.k, p.v))
    y = kernels_numba.decode_attention(p.q, k, v, splits=2, **case.settings)
    assert not k.flags.c_contiguous and same(y, attend(case, p))


def test_the_cap_comes_before_the_mask() -> None:
    """A capped mask would leave -softcap, a weight that is not zero."""
    case = Case(tokens=4, room=6, softcap=0.5, batch=1)
    p = case.data()
    case.check(attend(case, p), p)
    uncapped = case._replace(softcap=None)
    with pytest.raises(AssertionError):
        uncapped.check(attend(case, p), p)


# ---- the fallback --------------------------------------------------------------------------------------------
def rows(*logits: list[float], dtype: type = np.float16) -> Problem:
    """A sequence for each list, whose logits are those very numbers (scale 1)."""
    n = len(logits[0])
    q = np.zeros((len(logits), 1, 1, 64), dtype)
    q[..., 0] = 1
    k = np.zeros((len(logits), n, 1, 64), dtype)
    k[..., 0, 0] = logits
    v = np.random.default_rng(0).standard_normal(k.shape).astype(dtype)
    return Problem(q, k, v, None, None)


def fell_back(case: Case, p: Problem) -> bool:
    """Told by the work done: a running maximum takes operations, and nothing is read twice."""
    counters = prepared(case, p).run_cpu(p.q, p.k, p.v)[1]
    quiet = attention_counts.totals(
        case.size, 1, 1, batch=len(p.q), kv_heads=1, length=p.k.shape[1], splits=case.splits
    )
    assert counters.mma_m16n8k16 == quiet["mma_m16n8k16"]
    assert counters.global_read_bytes["k"] == quiet["read_k"] and counters.fp32_flops >= quiet["fp32_flops"]
    return counters.fp32_flops > quiet["fp32_flops"]


FIGURE_6 = Case(scale=1.0, phi=6.0, bounds=(-3.0, 3.0), splits=1)


def test_the_example_of_figure_6() -> None:
    """[4, 5, 6, 7] passes; [3, 6, 9, 6] reaches both ends of the open interval and is recomputed."""
    p = rows([4, 5, 6, 7], [3, 6, 9, 6])
    assert case_flags(FIGURE_6, p) == [False, True]
    FIGURE_6.check(attend(FIGURE_6, p), p)
    assert [fell_back(FIGURE_6, rows(x)) for x in ([4, 5, 6, 7], [3, 6, 9, 6])] == [False, True]


def case_flags(case: Case, p: Problem) -> list[bool]:
    return [bool(x) for x in case.flags(p).reshape(-1)]


@pytest.mark.parametrize(
    ("logit", "falls_back"),
    [
        (3.0, True),
        (3.001953125, False),  # the next fp16 after 3
        (8.9921875, False),  # the last one before 9
        (9.0, True),
        (6.0, False),
        (-np.inf, False),  # absent
        (np.inf, True),
        (np.nan, True),
    ],
)
def test_the_boundary_of_the_fallback(logit: float, falls_back: bool) -> None:
    """Where it fires is told by the work done, in every place of a row and every split."""
    for place in (0, 7, 15, 16, 40):
        logits = [5.0] * 41
        logits[place] = logit
        p = rows(logits)
        case = FIGURE_6._replace(splits=2)
        assert case_flags(case, p) == [falls_back]
        assert fell_back(case, p) == falls_back
        case.check(attend(case, p), p)


@few
@given(seed=seeds, group=st.sampled_from([2, 5, 9]))
def test_only_flagged_rows_are_recomputed(seed: int, group: int) -> None:
    """The other rows of a group get the very bits that they get when nothing is flagged."""
    case = Case(kind="narrow", group=group, seed=seed, room=50, bounds=(-8.0, 8.0))
    p = case.data()
    assert not case.flags(p).any()
    quiet = attend(case, p)
    q = p.q.copy()
    q[:, :, ::group] *= 400  # the first head of each group leaves the range
    loud = p._replace(q=q)
    flags = case.flags(loud)
    y = attend(case, loud)
    case.check(y, loud)
    assert flags.any() and same(y[~flags], quiet[~flags])


@pytest.mark.parametrize("value", [-300.0, -40.0, 40.0, 300.0])
@pytest.mark.parametrize("place", [0, 15, 16, 33, 69])
def test_one_outlier(value: float, place: int) -> None:
    logits = np.random.default_rng(place).uniform(-4, 4, 70).astype(np.float16).astype(float).tolist()
    logits[place] = value
    p = rows(logits, [x if x != value else 0.0 for x in logits])
    case = Case(scale=1.0, bounds=(-5.0, 5.0), splits=3)
    assert case_flags(case, p) == [True, False]
    case.check(attend(case, p), p)


def test_rows_far_below_and_far_above_the_shift() -> None:
    """Also rows that leave the range late, on either side, with sums of both kinds to join."""
    late = [0.5] * 60 + [-300.0] * 10 + [90.0] * 10 + [0.25] * 20
    p = rows(late, late[::-1])
    for splits in (1, 2, 5):
        case = Case(scale=1.0, bounds=(-5.0, 5.0), splits=splits)
        case.check(attend(case, p), p)
    p = rows([-300.0 + x for x in range(40)], [250.0 - x for x in range(40)])
    case = Case(scale=1.0, bounds=(-5.0, 5.0), splits=4)
    case.check(attend(case, p), p)


# ---- infinities and NaN ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("variant", ["async", "sync"])
@pytest.mark.parametrize(
    "what", ["nan in q", "inf in q", "nan in k", "inf in k", "nan in v", "inf in v", "-inf in v"]
)
def test_what_is_not_finite_propagates(what: str, variant: str) -> None:
    case = Case(group=3, room=37, variant=variant, splits=2)
    p = case.data()
    value = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}[what.split()[0]]
    x = {"q": p.q, "k": p.k, "v": p.v}[what[-1]]
    x[(0, 0, 1, 3) if what[-1] == "q" else (0, 20, 1, 3)] = value
    y = attend(case, p)
    exact = case.exact(p)
    assert np.array_equal(np.isnan(y.astype(float)), np.isnan(exact))
    right = np.isfinite(exact)
    assert (y.astype(float)[~right & ~np.isnan(exact)] == exact[~right & ~np.isnan(exact)]).all()
    with np.errstate(invalid="ignore"):
        off = np.abs(y.astype(float) - exact)[right]
    assert right.any() and (off <= 0.01).all()


def test_infinite_values_of_keys_with_little_weight() -> None:
    """e^-90 is no float32, yet its product with infinity is infinite."""
    for variant in ("async", "sync"):
        p = rows([-100.0] + [0.0] * 40, [0.0] * 41)
        p.v[0, 0, 0, 5] = np.inf
        case = Case(scale=1.0, bounds=(-5.0, 5.0), variant=variant, splits=3)
        y = attend(case, p)
        assert y[0, 0, 0, 5] == np.inf and np.isfinite(np.delete(y[0, 0, 0].astype(float), 5)).all()


def test_rows_that_are_all_masked() -> None:
    p = rows([-np.inf] * 20, [-np.inf] * 19 + [1.0])
    for variant in ("async", "sync"):
        y = attend(Case(scale=1.0, variant=variant, splits=3), p)
        assert not y[0].astype(float).any()
        assert np.allclose(y[1, 0, 0].astype(float), p.v[1, -1, 0].astype(float))


# ---- the function ----------------------------------------------------------------------------------------------
@pytest.mark.skipif(kernels_numba.device().is_gpu, reason="host arrays go to the GPU here")
def test_the_function_is_the_prepared_call() -> None:
    case = Case(tokens=2, group=4, room=30, lengths=True)
    p = case.data()
    y = kernels_numba.decode_attention(p.q, p.k, p.v, seqlens=p.seqlens, **case.settings)
    case.check(y, p)
    assert same(y, attend(case, p))
    out = np.full_like(p.q, np.nan)
    assert kernels_numba.decode_attention(p.q, p.k, p.v, seqlens=p.seqlens, out=out, **case.settings) is out
    assert same(out, y)


def refused(error: type[Exception], match: str, **changes: Any) -> None:
    case = Case(room=20, batch=1)
    p = case.data()
    arguments: dict[str, Any] = {"q": p.q, "k_cache": p.k, "v_cache": p.v, "phi": 0.0, "bounds": (-5, 5)}
    arguments |= {name: change(p) if callable(change) else change for name, change in changes.items()}
    with pytest.raises(error, match=match):
        kernels_numba.decode_attention(**arguments)


@pytest.mark.parametrize(
    ("error", "match", "changes"),
    [
        (
            TypeError,
            "^q: the fused kernels take fp16 and bf16, got fp32",
            {"q": lambda p: p.q.astype(np.float32)},
        ),
        (TypeError, "^q: expected a NumPy, PyTorch, CuPy or Numba array", {"q": [1.0]}),
        (TypeError, "^k_cache: expected fp16", {"k_cache": lambda p: p.k.astype(np.float32)}),
        (ValueError, r"^q: expected \[B, T, Hq, D\]", {"q": lambda p: p.q[0]}),
        (ValueError, "^q: expected 1 to 8 query tokens, got 9", {"q": lambda p: np.tile(p.q, (1, 9, 1, 1))}),
        (ValueError, "^q: expected a head size from 64 to 256", {"q": lambda p: np.tile(p.q, 5)}),
        (ValueError, "^q: expected 1 to 16 query heads", {"q": lambda p: np.tile(p.q, (1, 1, 17, 1))}),
        (
            ValueError,
            "^k_cache: expected a sequence for each",
            {"k_cache": lambda p: np.tile(p.k, (2, 1, 1, 1))},
        ),
        (ValueError, "^k_cache: expected the head size of q", {"k_cache": lambda p: np.tile(p.k, 2)}),
        (ValueError, "^v_cache: expected shape", {"v_cache": lambda p: p.v[:, :10]}),
        (ValueError, "^v_cache: expected contiguous heads", {"v_cache": lambda p: np.tile(p.v, 2)[..., ::2]}),
        (ValueError, "^seqlens: expected 0 to 20", {"seqlens": [21]}),
        (ValueError, "^seqlens: expected 0 to 20", {"seqlens": [-1]}),
        (ValueError, "^seqlens: expected shape", {"seqlens": [1, 2]}),
        (TypeError, "^seqlens: expected integers", {"seqlens": [1.5]}),
        (ValueError, "^block_table: expected pages from 0 to 0", {"block_table": [[1]]}),
        (ValueError, "^block_table: expected .B, blocks.", {"block_table": [1]}),
        (ValueError, "^phi and bounds: expected for variant", {"phi": None}),
        (ValueError, "^phi: expected a finite", {"phi": np.nan}),
        (TypeError, "^phi: expected a number", {"phi": "0"}),
        (TypeError, "^bounds: expected two numbers", {"bounds": (1, 2, 3)}),
        (ValueError, "^bounds: expected .a, b. with -60 <= a < b <= 40", {"bounds": (-496.8, 363.5)}),
        (ValueError, "^bounds: expected", {"bounds": (5, -5)}),
        (ValueError, "^variant: expected one of async, sync; got 'fast'", {"variant": "fast"}),
        (ValueError, "^softcap: expected a finite positive", {"softcap": 0.0}),
        (ValueError, "^scale: expected a finite", {"scale": np.inf}),
        (ValueError, "^splits: expected a whole number", {"splits": 0}),
        (ValueError, "^out: expected shape", {"out": lambda p: p.q[:, :, :1]}),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
@pytest.mark.skipif(kernels_numba.device().is_gpu, reason="the same checks run there on GPU arrays")
def test_refusals(error: type[Exception], match: str, changes: dict[str, Any]) -> None:
    refused(error, match, **changes)


def test_what_does_not_fit_into_a_grid_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^q: expected at most 65535 sequences and 8191 key heads, got 65536"
    ):
        DecodeAttention((2**16, 1, 1, 64), (2**16, 1, 1, 64), variant="sync")
    with pytest.raises(ValueError, match=r"^q: expected at most .* got 1 and 8192"):
        DecodeAttention((1, 1, 2**13, 64), (1, 1, 2**13, 64), variant="sync")


# ---- the check itself ------------------------------------------------------------------------------------------
def test_the_check_rejects_what_is_wrong() -> None:
    """Zeros, a lost split, another scale, a mask off by one, neighbouring heads, weights rounded to half precision."""
    case = Case(tokens=2, group=2, room=60)
    p = case.data()
    exact, tolerance = case.exact(p), case.tolerance(p)
    lost = reference.decode_attention(p.q, p.k[:, :40], p.v[:, :40], **case.settings)
    wrong = {
        "zeros": np.zeros_like(exact),
        "lost": lost,
        "scale": case.exact(p, scale=0.13),
        "mask": np.concatenate([exact[:, 1:], exact[:, :1]], axis=1),
        "heads": exact[:, :, ::-1],
        "nan": np.where(exact == exact.flat[3], np.nan, exact),
        "eighth of a percent": exact * 1.00125,
    }
    assert reference.check_attention(exact.astype(np.float16), exact, tolerance) <= 1
    for name, y in wrong.items():
        with pytest.raises(AssertionError):
            reference.check_attention(y, exact, tolerance)
            pytest.fail(name)
    with pytest.raises(ValueError, match="zeros would pass"):
        reference.check_attention(exact, exact, tolerance * 1e6)
    with pytest.raises(ValueError, match="one shape"):
        reference.check_attention(exact[:1], exact, tolerance)
