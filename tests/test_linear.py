"""Linear layers on the CPU body: against float64, laws that hold bit for bit, arguments, and the choice of a kernel."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings, target
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import kinds, seeds, signal

import kernels_numba
import reference
from kernels_numba import Linear, linear_dispatch
from kernels_numba.linear_dispatch import DispatchWarning, choose
from kernels_numba.linear_product import ADJUSTABLE, LARGEST_M, Choice, Product, product
from kernels_numba.linear_realign import head, padded, phases
from kernels_numba.linear_run import run_cpu
from kernels_numba.linear_settings import default_choice

DTYPES = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
OWN = ("gemv", "flat", "full")
few = settings(max_examples=18)  # each runs one kernel or several on the CPU body
# Smaller than what a GPU wants, so that a few hundred elements already make several batches, tiles and blocks.
SMALL: dict[str, tuple[dict[str, int], ...]] = {
    "gemv": (
        {"rows": 4, "depth": 1, "warps": 2},
        {"rows": 2, "depth": 2, "warps": 1, "double_buffer": 1},
    ),
    "flat": (
        {"row_tiles": 1, "stages": 3, "warps": 2, "shares": 2},
        {"row_tiles": 2, "steps": 2, "stages": 2, "warps": 1, "shares": 3},
        {"row_tiles": 1, "stages": 1, "warps": 2, "shares": 1},
    ),
    "full": (
        {"rows": 64, "columns": 64, "warp_rows": 32, "warp_columns": 32, "stages": 3, "shares": 1},
        {"rows": 32, "columns": 64, "warp_rows": 32, "warp_columns": 32, "stages": 4},
        # On warpgroups, x or w (turned) in tiles of 64 rows for each; copied by words.
        {"groups": 1, "columns": 48, "stages": 3},
        {"groups": 1, "turned": 1, "pitch": 37, "columns": 48, "stages": 4},
        {"groups": 2, "turned": 1, "pitch": 70, "columns": 96, "stages": 3},
        # The same, operands brought by the copy engine.
        {"stream": 1, "groups": 1, "pitch": 37, "columns": 48, "stages": 3, "shares": 2},
        {"stream": 1, "groups": 2, "turned": 1, "pitch": 70, "columns": 96, "stages": 5},
    ),
}


class Case(NamedTuple):
    """One product: a kernel with small settings, a shape, a dtype, whether the operands begin on 16 bytes."""

    impl: str
    variant: int
    split: int
    m: int
    n: int
    k: int
    dtype: str = "fp16"
    aligned_x: bool = True
    aligned_w: bool = True
    kind: str = "noise"
    seed: int = 0

    @property
    def choice(self) -> Choice:
        variants = SMALL[self.impl]
        chosen = variants[self.variant % len(variants)]
        return Choice.of(self.impl, **chosen, split=self.split)

    @property
    def product(self) -> Product:
        return product(
            self.choice,
            self.m,
            self.n,
            self.k,
            self.dtype,
            aligned_x=self.aligned_x,
            aligned_w=self.aligned_w,
        )

    def data(self) -> tuple[NDArray, NDArray]:
        x = signal(self.kind, (self.m, self.k), self.seed)
        w = signal("noise", (self.n, self.k), self.seed + 1)
        if self.kind == "outlier":
            x /= 128  # within the range of fp16
        return x.astype(DTYPES[self.dtype]), w.astype(DTYPES[self.dtype])


@st.composite
def cases(draw: st.DrawFn, *, impls: tuple[str, ...] = OWN) -> Case:
    impl = draw(st.sampled_from(impls), label="impl")
    most = {"gemv": 4, "flat": 20, "full": 70}[impl]
    sizes = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 95, 127, 128)))
    depths = st.one_of(st.integers(1, 30), st.sampled_from((64, 127, 128, 129, 255, 256, 384, 511, 520, 700)))
    return Case(
        impl,
        draw(st.integers(0, 6), label="variant"),
        draw(st.integers(1, 3), label="split"),
        draw(st.integers(1, most), label="m"),
        draw(sizes, label="n"),
        draw(depths, label="k"),
        draw(st.sampled_from(sorted(DTYPES)), label="dtype"),
        draw(st.booleans(), label="aligned x"),
        draw(st.booleans(), label="aligned w"),
        draw(kinds.filter(lambda kind: kind != "huge range"), label="kind"),
        draw(seeds, label="seed"),
    )


def judge(y: NDArray, x: NDArray, w: NDArray, dtype: str) -> float:
    """Error over what is allowed; for data that `check_linear` refuses (zeros would pass), over the bound alone."""
    x, w, y = (a.astype(np.float64) for a in (x, w, y))
    try:
        return reference.check_linear(y, x, w, dtype=dtype)
    except ValueError as refused:
        assert "zeros would pass" in str(refused)
        bound = reference.linear_bound(x, w, dtype)
        # Below the normal numbers of fp16 rounding is absolute.
        assert (abs(y - reference.linear(x, w)) <= bound + 2.0**-25).all()
        return 0.0


# ---- values --------------------------------------------------------------------------------------------------
@settings(max_examples=30)
@given(cases())
@example(Case("gemv", 0, 1, 1, 1, 1))
@example(Case("flat", 0, 1, 1, 1, 1))
@example(Case("full", 0, 1, 1, 1, 1))
@example(Case("flat", 0, 3, 9, 37, 263, aligned_x=False))
@example(Case("flat", 1, 1, 8, 130, 520))
@example(Case("flat", 2, 1, 8, 70, 520))  # without double buffering
@example(Case("gemv", 0, 2, 4, 37, 7, "bf16", aligned_w=False))
@example(Case("full", 1, 3, 33, 65, 200, "bf16", aligned_w=False))
@example(Case("full", 2, 1, 70, 128, 256))
@example(Case("full", 3, 2, 33, 80, 511, "bf16", aligned_x=False))
@example(Case("full", 4, 1, 31, 141, 384))
@example(Case("full", 3, 2, 33, 304, 511))  # rows of w apart in phases
@example(Case("full", 4, 1, 5, 144, 257, "bf16"))
@example(Case("full", 5, 1, 64, 141, 384))
@example(Case("full", 6, 1, 100, 141, 384, "bf16", aligned_x=False, aligned_w=False))
@example(
    Case("full", 0, 1, 53, 63, 129, kind="impulse", seed=212778)
)  # results below the normal numbers of fp16
def test_within_the_bound_of_the_reference(case: Case) -> None:
    x, w = case.data()
    y, _ = run_cpu(case.product, x, w)
    assert y.shape == (case.m, case.n) and y.dtype == x.dtype
    target(judge(y, x, w, case.dtype))


@few
@given(cases())
@example(Case("flat", 0, 1, 3, 40, 255))
def test_rows_of_the_identity_read_the_weights(case: Case) -> None:
    """x[m] = one 1 at some k: y[m, n] = w[n, k], exactly. No element is visited twice or left out."""
    _, w = case.data()
    draw = np.random.default_rng(case.seed)
    at = draw.integers(0, case.k, case.m)
    x = np.zeros((case.m, case.k), w.dtype)
    x[np.arange(case.m), at] = 1
    y, _ = run_cpu(case.product, x, w)
    assert np.array_equal(y.astype(float), w.T[at].astype(float))


@few
@given(cases(), st.sampled_from((np.nan, np.inf)), seeds)
@example(Case("flat", 0, 1, 3, 40, 255), np.nan, 1)
@example(Case("gemv", 0, 1, 3, 40, 255), np.inf, 2)
def test_what_is_not_finite_stays_in_its_row_and_column(case: Case, value: float, seed: int) -> None:
    """Neither padding nor a neighbouring row that shares 16 bytes lets it out."""
    case = case._replace(kind="noise")
    x, w = case.data()
    draw = np.random.default_rng(seed)
    plain, _ = run_cpu(case.product, x, w)
    row, column = draw.integers(case.m), draw.integers(case.n)
    x, w = x.copy(), w.copy()
    x[row, draw.integers(case.k)] = value
    w[column, draw.integers(case.k)] = value
    y, _ = run_cpu(case.product, x, w)
    quiet = np.ones((case.m, case.n), bool)
    quiet[row], quiet[:, column] = False, False
    assert np.array_equal(y[quiet].view(np.int16), plain[quiet].view(np.int16))
    assert not np.isfinite(y[~quiet].astype(float)).any()


@few
@given(cases(impls=("flat", "full")), seeds)
def test_padded_rows_change_nothing(case: Case, seed: int) -> None:
    """Rows of x that fill the tile, of whatever values, leave the others as they are, bit for bit."""
    case = case._replace(kind="noise")
    spec = case.product.spec
    tile = 8 if case.impl == "flat" else getattr(spec, "x_rows", 0) or spec.rows
    more = case._replace(m=-(-case.m // tile) * tile)
    x, w = more.data()
    x[case.m :] *= np.random.default_rng(seed).choice([1, np.nan, np.inf, 0], (more.m - case.m, 1))
    y, _ = run_cpu(case.product, np.ascontiguousarray(x[: case.m]), w)
    z, _ = run_cpu(more.product, x, w)
    assert np.array_equal(y.view(np.int16), z[: case.m].view(np.int16))


@few
@given(cases())
@example(Case("flat", 0, 3, 8, 40, 2048))
def test_split_changes_only_rounding(case: Case) -> None:
    """Sums of integers that float32 holds are the same however K is split; others stay within the bound."""
    draw = np.random.default_rng(case.seed)
    x, w = (
        draw.integers(-4, 5, shape).astype(DTYPES[case.dtype])
        for shape in ((case.m, case.k), (case.n, case.k))
    )
    whole = run_cpu(case._replace(split=1).product, x, w)[0]
    parts = run_cpu(case.product, x, w)[0]
    assert np.array_equal(whole.view(np.int16), parts.view(np.int16))
    assert np.array_equal(
        whole.astype(float), reference.linear(x, w).astype(DTYPES[case.dtype]).astype(float)
    )


@few
@given(cases(impls=("gemv", "flat")))
def test_a_row_of_x_does_not_depend_on_the_others(case: Case) -> None:
    case = case._replace(kind="noise", m=min(case.m, 8))
    x, w = case.data()
    y, _ = run_cpu(case.product, x, w)
    one = case._replace(m=1)
    for row in {0, case.m - 1}:
        z, _ = run_cpu(one.product, np.ascontiguousarray(x[row : row + 1]), w)
        assert np.array_equal(z[0].view(np.int16), y[row].view(np.int16))


@given(k=st.integers(1, 5000))
def test_phases_and_heads(k: int) -> None:
    for n in range(20):
        begin = n * k
        first = begin + head(k, n % phases(k))
        assert first % 8 == 0 or first == begin + k
        assert first - begin < 8
    assert padded(k) % 8 == 0 and 0 <= padded(k) - k < 8


def test_weights_are_read_once() -> None:
    """Whole shares or not, no byte of w beyond its own is read, and no byte twice."""
    for shares in (1, 2, 3, 5):
        choice = Choice.of("flat", row_tiles=1, stages=2, warps=2, shares=shares)
        x, w = np.ones((3, 512), np.float16), np.ones((37, 512), np.float16)
        _, counters = run_cpu(product(choice, 3, 37, 512, "fp16"), x, w)
        assert counters.global_read_bytes["w"] == w.nbytes
        assert counters.global_written_bytes == {"y": 2 * 3 * 37}
        assert counters.bank_conflicts == 0


# ---- the public functions ------------------------------------------------------------------------------------
def operands(m: int = 3, n: int = 20, k: int = 40, dtype: str = "fp16") -> tuple[NDArray, NDArray]:
    return Case("flat", 0, 1, m, n, k, dtype).data()


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("impl", [None, *OWN])
@pytest.mark.parametrize("m", [0, 1, 3, 4])
def test_every_impl(impl: str | None, m: int, dtype: str) -> None:
    x, w = operands(m, 37, 99, dtype)
    out = np.full((m, 37), np.nan, DTYPES[dtype])
    y = kernels_numba.linear(x, w, impl=impl, out=out)
    assert y is out
    if m:
        judge(y, x, w, dtype)
    again = kernels_numba.linear(x, w, impl=impl)
    assert again.shape == (m, 37) and np.array_equal(again.view(np.int16), y.view(np.int16))


def test_named_functions() -> None:
    x, w = operands()
    for function, impl in (
        (kernels_numba.gemv, "gemv"),
        (kernels_numba.flat_gemm, "flat"),
        (kernels_numba.full_gemm, "full"),
    ):
        assert np.array_equal(function(x, w), kernels_numba.linear(x, w, impl=impl))


def test_leading_axes() -> None:
    x, w = operands(6)
    y = kernels_numba.linear(x.reshape(2, 3, -1), w)
    assert y.shape == (2, 3, 20) and np.array_equal(y.reshape(6, 20), kernels_numba.linear(x, w))
    single = kernels_numba.linear(x[0], w)
    assert single.shape == (20,) and np.array_equal(single, kernels_numba.linear(x[:1], w)[0])
    assert kernels_numba.linear(x.reshape(6, 1, -1)[:0], w).shape == (0, 1, 20)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda x, w: (x.astype(np.float32), w), TypeError, r"x: the kernels take fp16 and bf16, got fp32"),
        (lambda x, w: (x, w.astype(ml_dtypes.bfloat16)), TypeError, r"w: expected fp16 .* got bf16"),
        (lambda x, w: (x, w.T), ValueError, r"w: expected \[N, K\] with the K=40 of x"),
        (lambda x, w: (x, w[:, :39]), ValueError, r"K=40"),
        (lambda x, w: (x[:, :0], w[:, :0]), ValueError, r"K >= 1"),
        (lambda x, w: (x, w[:0]), ValueError, r"N >= 1"),
        (lambda x, w: (x, w[0]), ValueError, r"w: expected \[N, K\]"),
        (lambda x, w: (x[:, ::2], w[:, ::2].copy()), ValueError, r"x: expected a contiguous"),
        (lambda x, w: (x[:, ::2].copy(), w[:, ::2]), ValueError, r"w: expected a contiguous"),
        (lambda x, w: (x.tolist(), w), TypeError, r"x: expected a NumPy"),
    ],
)
def test_refused_arguments(change: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        kernels_numba.linear(*change(*operands()))


def test_refused_outputs() -> None:
    x, w = operands()
    for out, error, message in (
        (np.empty((3, 21), np.float16), ValueError, r"out: expected shape \(3, 20\)"),
        (np.empty((3, 20), np.float32), TypeError, r"out: expected fp16"),
        (np.empty((20, 3), np.float16).T, ValueError, r"out: expected a contiguous"),
    ):
        with pytest.raises(error, match=message):
            kernels_numba.linear(x, w, out=out)
    frozen = np.empty((3, 20), np.float16)
    frozen.setflags(write=False)
    with pytest.raises(ValueError, match="read-only"):
        kernels_numba.linear(x, w, out=frozen)


def test_refused_impls() -> None:
    x, w = operands(9)
    with pytest.raises(ValueError, match="gemv, flat, full, vendor"):
        kernels_numba.linear(x, w, impl="cublas")
    with pytest.raises(
        ValueError, match=r"gemv takes at most M=4 rows of x, got 9; flat and full and vendor"
    ):
        kernels_numba.linear(x, w, impl="gemv")
    with pytest.raises(ValueError, match="reached through PyTorch or CuPy arrays on a GPU"):
        kernels_numba.linear(x, w, impl="vendor")
    for arguments, message in (
        ((-1, 2, 3), "m: expected"),
        ((1, 0, 3), "n: expected"),
        ((1, 2, 0.5), "k: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            Linear(*arguments, dtype="fp16")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dtype"):
        Linear(1, 2, 3, dtype="fp32")
    with pytest.raises(ValueError, match="contradict"):
        Linear(1, 2, 3, dtype="fp16", impl="flat", choice=Choice("gemv"))
    with pytest.raises(ValueError, match="no setting 'stages'"):
        Choice("gemv", (("stages", 3),))


@given(
    impl=st.sampled_from(OWN),
    m=st.integers(1, 5000),
    n=st.integers(1, 40000),
    k=st.integers(1, 40000),
    sm_count=st.sampled_from((1, 16, 84, 108, 132, 148)),
    shared=st.sampled_from((99, 163, 227)),
)
def test_default_choices_fit(impl: str, m: int, n: int, k: int, sm_count: int, shared: int) -> None:
    """Every default kernel fits a GPU's shared memory, has a grid, and covers its shape."""
    limit = LARGEST_M[impl]
    m = m if limit is None else 1 + m % limit
    choice = default_choice(impl, m, n, k, sm_count=sm_count, shared_bytes=shared * 1024)
    made = product(choice, m, n, k, "fp16")
    assert made.spec.shared_bytes <= shared * 1024
    assert 1 <= made.grid < 2**31 and made.grid % made.split == 0
    assert 32 * made.spec.warps <= 1024
    assert set(made.choice.options) <= set(ADJUSTABLE[impl])


# ---- dispatch ------------------------------------------------------------------------------------------------
ROWS = [
    {"m": 1, "impl": "gemv", "settings": {"rows": 2, "depth": 1, "warps": 2}, "next": "flat", "margin": 0.1},
    {"m": 3, "impl": "flat", "settings": {"stages": 3, "warps": 2}, "next": "gemv", "margin": 0.02},
    {"m": 65, "impl": "full", "settings": {}, "next": None, "margin": None},
]
ENTRIES = [
    {
        "n": 96,
        "k": 64,
        "dtype": "fp16",
        "m1": 3,
        "m2": 65,
        "own": ROWS,
        "overlapped": ROWS,
        "overlapped_with_vendor": ROWS,
        "with_vendor": [
            *ROWS[:2],
            {"m": 40, "impl": "vendor", "settings": {}, "next": "flat", "margin": 0.3},
        ],
        "settings": {"flat": [{"m": 1, "settings": {"stages": 2, "warps": 4}}]},
    }
]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a table for a GPU named "A GPU", with changes; the folder is looked in first."""
    monkeypatch.setenv(linear_dispatch.FOLDER_VARIABLE, str(tmp_path))
    linear_dispatch.tables.cache_clear()

    def write(**changes: Any) -> Path:
        linear_dispatch.tables.cache_clear()
        whole = {
            "schema_version": linear_dispatch.SCHEMA,
            "kernels": linear_dispatch.GENERATION,
            "gpu": "A GPU",
            "entries": ENTRIES,
            "sha256": linear_dispatch.checksum(ENTRIES),
        }
        path = tmp_path / "a-gpu" / "small.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**whole, **changes}))
        return path

    yield write
    linear_dispatch.tables.cache_clear()


def test_table_is_followed(table: Any) -> None:
    table()
    found = {m: choose(m, 96, 64, "fp16", "A GPU", 132) for m in (0, 1, 2, 3, 64, 65, 10**6)}
    assert [found[m].choice.impl for m in found] == ["gemv", "gemv", "gemv", "flat", "flat", "full", "full"]
    assert found[3].choice.options == {"stages": 3, "warps": 2}
    assert found[3].runner_up == "gemv" and found[3].margin == 0.02 and found[3].thresholds == (3, 65)
    text = "M=3 N=96 K=64: flat stages=3 warps=2, by measured table a-gpu/small (M1=3, M2=65); next: gemv, 2 % slower"
    assert str(found[3]) == text
    assert choose(40, 96, 64, "fp16", "A GPU", 132, vendor=True).choice.impl == "vendor"
    asked = choose(8, 96, 64, "fp16", "A GPU", 132, impl="flat")
    assert asked.rule == "asked for" and asked.choice.options == {"stages": 2, "warps": 4}
    for other in (("fp16", "Another GPU", 96), ("fp16", "A GPU", 97)):
        dtype, gpu, n = other
        assert "cost model" in choose(3, n, 64, dtype, gpu, 132).rule


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 0}, "schema version 0"),
        ({"kernels": linear_dispatch.GENERATION - 1}, "kernels of generation"),
        ({"sha256": "0" * 64}, "checksum"),
        ({"entries": []}, "checksum"),
        ({"entries": None}, "checksum"),
    ],
)
def test_bad_table_is_refused_with_the_command_that_mends_it(table: Any, changes: dict, message: str) -> None:
    table(**changes)
    command = "python -m costmodel measure --op linear --model small"
    with pytest.warns(DispatchWarning, match=f"refused: .*{message}.*{command}"):
        found = choose(3, 96, 64, "fp16", "A GPU", 132)
    assert "cost model" in found.rule


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema_version": 1}'])
def test_broken_file_is_refused(table: Any, content: str) -> None:
    table().write_text(content)
    with pytest.warns(DispatchWarning, match="cannot be read"):
        assert "cost model" in choose(3, 96, 64, "fp16", "A GPU", 132).rule


@pytest.mark.parametrize(
    "row",
    [
        {"m": 2, "impl": "gemv", "settings": {}},
        {"m": 1, "impl": "other", "settings": {}},
        {"m": 1, "settings": {}},
        {"m": 1, "impl": "gemv", "settings": {"rows": "x"}},
    ],
)
def test_table_with_wrong_rows_is_refused(table: Any, row: dict) -> None:
    entries = [{**ENTRIES[0], "own": [row]}]
    table(entries=entries, sha256=linear_dispatch.checksum(entries))
    with pytest.warns(DispatchWarning, match="refused"):
        assert "cost model" in choose(3, 96, 64, "fp16", "A GPU", 132).rule


@given(
    n=st.integers(1, 50000),
    k=st.integers(1, 50000),
    sm_count=st.sampled_from((16, 84, 108, 132)),
    m=st.integers(1, 600),
)
def test_model_chooses_a_kernel_that_takes_the_rows(n: int, k: int, sm_count: int, m: int) -> None:
    found = choose(m, n, k, "fp16", None, sm_count)
    limit = LARGEST_M[found.choice.impl]
    assert limit is None or m <= limit
    assert found.thresholds is not None and 1 <= found.thresholds[0] <= found.thresholds[1]
    assert found.runner_up in OWN and found.runner_up != found.choice.impl


def test_explain() -> None:
    text = str(kernels_numba.explain_linear(1, 4096, 4096))
    assert text.startswith("M=1 N=4096 K=4096: ") and "next: " in text


# ---- workspaces ----------------------------------------------------------------------------------------------
class FakeBuffer(NamedTuple):
    nbytes: int
    number: int


def test_workspaces_belong_to_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of a stream share one, streams do not, and a stream that is captured finds one ready or is told."""
    from kernels_numba import linear_run
    from kernels_numba.launch import LaunchError

    captured: set[int] = set()
    made: list[FakeBuffer] = []

    class Pool(linear_run._Pool):
        def _allocate(self, nbytes: int) -> FakeBuffer:
            assert not captured
            made.append(FakeBuffer(nbytes, len(made)))
            return made[-1]

    monkeypatch.setattr(linear_run, "_capturing", lambda stream: stream in captured)
    pool = Pool(0, zeros=False)
    first = pool.take(7, 100)
    assert pool.take(7, 50) is first
    larger = pool.take(7, 200)
    assert larger.nbytes >= 200 and pool.take(7, 100) is larger
    captured.add(8)
    other = pool.take(8, 150)
    assert other is not larger and other.nbytes >= 150
    assert pool.take(8, 200) is other
    captured.add(9)
    with pytest.raises(LaunchError, match="call it once outside"):
        pool.take(9, 10)
    captured.clear()
    assert pool.take(7, 10) is larger  # makes one ready again
    captured.add(9)
    assert pool.take(9, 10).nbytes >= 10
