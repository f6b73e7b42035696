"""Every kernel compiles to machine code without a GPU and takes no more of one than the committed table says."""

import csv
from typing import Any

import numpy as np
import pytest

from costmodel import backward_counts
from kernels_numba import FFTConv, backward_warp, prepare_filter, resources
from kernels_numba.families import runs_on
from monarch import Plan

pytest.importorskip("numba.cuda")

KERNELS = list(resources.kernels())
# Of every family the kernels that are nearest to running out of registers, where a change shows first, for the
# architecture that the project is measured on; for the others one of each kind. A compilation takes seconds;
# `python -m kernels_numba.resources` does the whole table.
EACH = 1
ELSEWHERE = (
    next(spec for _, spec in KERNELS if spec.n == 1024),
    next(spec for _, spec in KERNELS if spec.n > 1024),
    next(spec for _, spec in KERNELS if spec.name.startswith("flat_gemm")),
)
COMMITTED = resources.committed()


def fullest(arch: str) -> set[str]:
    """Names of these kernels."""
    found: dict[type, list[tuple[int, int, str]]] = {}
    for _, spec in KERNELS:
        row = COMMITTED.get((spec.name, arch), {"spill_stores": 10**6, "registers": 0})
        found.setdefault(type(spec), []).append((row["spill_stores"], row["registers"], spec.name))
    return {name for rows in found.values() for _, _, name in sorted(rows, reverse=True)[:EACH]}


FULLEST = fullest("sm_90")


def is_checked(family: Any, spec: Any, arch: str) -> bool:
    """Whether a kernel is compiled here for an architecture."""
    if not runs_on(family, resources.capability(arch), spec):
        return False
    return spec.name in FULLEST if arch == "sm_90" else spec in ELSEWHERE


CHECKED = [
    pytest.param(family, spec, arch, id=f"{spec.name}-{arch}")
    for family, spec in KERNELS
    for arch in resources.ARCHITECTURES
    if is_checked(family, spec, arch)
]


def mma_per_pair(spec: Any) -> int:
    """Tensor-core instructions for one pair of sequences, counted by the CPU body."""
    live = spec.rows_in < spec.n1 or spec.rows_out < spec.n1
    length = spec.n // 2 if live else spec.n
    spectrum = prepare_filter(
        np.eye(1, length // 2),
        length=length,
        mode="causal" if live else "circular",
        dtype=spec.dtype,
        plan=Plan.of((spec.n1 // 2, spec.n2), packing="right-angle")
        if getattr(spec, "right_angle", False)
        else Plan(spec.n, (spec.n1, spec.n2)),
    )
    u = np.zeros((2, 1, length), np.float16).view(spec_dtype(spec))
    gates = {name: u for name in ("pregate", "postgate") if getattr(spec, name)}
    convolve = FFTConv(spectrum, batch=2)
    assert convolve.spec(**{name: True for name in gates}).rows_in == spec.rows_in
    return convolve.run_cpu(u, **gates)[1].mma_m16n8k16


def spec_dtype(spec: Any) -> Any:
    from hardware import HALF

    return HALF[spec.dtype]


@pytest.mark.parametrize(("family", "spec", "arch"), CHECKED)
def test_no_worse_than_the_committed_table(family: Any, spec: Any, arch: str) -> None:
    if not resources.is_known(arch):
        pytest.skip(f"the installed CUDA toolkit does not know {arch}")
    found = resources.measure(family, spec, arch)
    wrong = resources.problems(found, resources.committed().get((spec.name, arch)))
    assert not wrong, "\n".join([*wrong, f"If that is meant, {resources.REGENERATE}."])
    if getattr(family, "VOCABULARY", "") == "float":
        assert found["mma"] == 0
    elif not hasattr(spec, "n1"):  # linear layers, attention, convolution layers
        pass
    elif hasattr(spec, "strip"):  # an outer stage: its loops hold one product of each factor
        rows = (spec.a // 16 * (spec.rows_in // 16), (spec.b // 16) ** 2)
        assert found["mma"] == 2 * spec.strip // 8 * sum(rows)
    elif hasattr(spec, "teams"):  # one instruction is a warp's rows of a slice of at most 32 columns
        slices, deep = -(-spec.n2 // 32), (spec.rows_in + spec.n1 + 4 * spec.n2) // 16
        assert found["mma"] == slices * deep
        both = 4 * found["mma"] * min(spec.n2, 32) // 8  # real and imaginary parts at once
        assert both < mma_per_pair(spec)
    elif family is backward_warp:  # the code of a turn is one pair's
        one = {"batch": 2, "channels": 1, "units": 1, "blocks": 1}
        assert found["mma"] == backward_counts.of_spec(spec, length=spec.n, **one)["mma_m16n8k16"]
    elif hasattr(spec, "rows_out") and not hasattr(
        spec, "n3"
    ):  # its loops over strips and rows repeat the code of an order-3 kernel
        assert found["mma"] == mma_per_pair(spec)
    if spec.name.startswith(("gemv", "realign")):
        assert found["mma"] == 0


def test_compiling_leaves_the_garbage_collector_as_it_was() -> None:
    import gc

    from kernels_numba.tile import compile as tile_compile

    def wrong(x: Any) -> None:
        x.no_such_thing()

    for running in (True, False):
        (gc.enable if running else gc.disable)()
        try:
            with pytest.raises(Exception, match="no_such_thing"):
                tile_compile.compile_kernel(wrong, (tile_compile.INT,), (9, 0), threads=32)
            assert gc.isenabled() == running
        finally:
            gc.enable()


def test_the_table_is_complete() -> None:
    """A row for every kernel and architecture, none besides, and no double precision by way of `problems`."""
    wanted = {
        (spec.name, arch)
        for family, spec in KERNELS
        for arch in resources.ARCHITECTURES
        if runs_on(family, resources.capability(arch), spec)
    }
    assert set(resources.committed()) == wanted, resources.REGENERATE
    with resources.TABLE.open(newline="") as file:
        assert tuple(next(csv.reader(file))) == resources.COLUMNS


def test_kernel_names_are_unique() -> None:
    assert len({spec.name for _, spec in KERNELS}) == len(KERNELS)


ROW = {
    "kernel": "k",
    "arch": "sm_90",
    "registers": 100,
    "spill_stores": 2,
    "spill_loads": 2,
    "stack_bytes": 16,
    "static_shared_bytes": 0,
    "dynamic_shared_bytes": 0,
    "mma": 16,
    "instructions": 500,
    "double_precision": 0,
    "toolchain": "t=1",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spill_stores": 3}, "spill_stores 2 -> 3"),
        ({"spill_loads": 3}, "spill_loads 2 -> 3"),
        ({"stack_bytes": 24}, "stack_bytes 16 -> 24"),
        ({"mma": 17}, "mma 16 -> 17"),
        ({"mma": 15}, "mma 16 -> 15"),
        ({"registers": 109}, "registers 100 -> 109"),
        ({"double_precision": 1}, "1 double-precision instructions"),
    ],
    ids=lambda x: str(x) if isinstance(x, str) else "",
)
def test_what_is_worse_is_named(change: dict[str, int], message: str) -> None:
    assert resources.problems({**ROW, **change}, ROW) == [f"k on sm_90: {message}"]
    newer = {**ROW, **change, "toolchain": "t=2"}
    assert resources.problems(newer, ROW)[1:] == [
        "k on sm_90: the table was made with t=1; here is t=2",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"registers": 108},
        {"registers": 20},
        {"spill_stores": 0, "spill_loads": 0, "stack_bytes": 0},
        {"instructions": 900},
        {"toolchain": "t=2"},
    ],
)
def test_what_is_not_worse_passes(change: dict[str, Any]) -> None:
    assert resources.problems({**ROW, **change}, ROW) == []


def test_a_kernel_that_is_not_in_the_table_is_a_problem() -> None:
    assert resources.problems(ROW, None) == ["k on sm_90: not in the table"]


@pytest.mark.parametrize(("arch", "expected"), [("sm_80", (8, 0)), ("sm_90", (9, 0)), ("sm_120", (12, 0))])
def test_architecture_names(arch: str, expected: tuple[int, int]) -> None:
    assert resources.capability(arch) == expected
    assert resources.is_known(arch) in (True, False)
    assert not resources.is_known("sm_10")


@pytest.mark.parametrize("arch", ["90", "sm_", "sm_9", "compute_90", "sm_9x"])
def test_bad_architecture_name(arch: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=f"arch.*{arch}"):
        resources.capability(arch)
    with pytest.raises(SystemExit) as stopped:
        resources.main(["--arch", arch])
    assert stopped.value.code == 2
    assert f"got {arch!r}" in capsys.readouterr().err


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> dict[str, Any]:
    """The command with a table of its own, one kernel, and a compiler whose answer can be changed."""
    family, spec = KERNELS[0]
    row = {**ROW, "kernel": spec.name}
    monkeypatch.setattr(resources, "TABLE", tmp_path / "resources.csv")
    monkeypatch.setattr(resources, "kernels", lambda: iter([(family, spec)]))
    monkeypatch.setattr(resources, "measure", lambda family, spec, arch: {**row, "arch": arch})
    return row


def test_command(one_kernel: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Write, compare, find something worse, skip what the toolkit does not know, keep other architectures."""
    assert resources.main(["--write", "--arch", "sm_80", "sm_90", "sm_10"]) == 0
    assert "sm_10: skipped" in capsys.readouterr().err
    assert sorted(arch for _, arch in resources.committed()) == ["sm_80", "sm_90"]

    assert resources.main(["--arch", "sm_90"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        ",".join(resources.COLUMNS),
        ",".join(str({**one_kernel, "arch": "sm_90"}[column]) for column in resources.COLUMNS),
    ]
    assert printed.err == ""

    one_kernel["spill_stores"] += 1
    assert resources.main(["--arch", "sm_90"]) == 1
    error = capsys.readouterr().err
    assert "spill_stores 2 -> 3" in error and "--write" in error

    assert resources.main(["--write", "--arch", "sm_90"]) == 0
    table = resources.committed()
    assert {arch: row["spill_stores"] for (_, arch), row in table.items()} == {"sm_80": 2, "sm_90": 3}

    one_kernel["spill_stores"] += 1
    assert resources.main(["--add", "--arch", "sm_80", "sm_90", "sm_100"]) == 0
    table = resources.committed()
    assert {arch: row["spill_stores"] for (_, arch), row in table.items()} == {
        "sm_80": 2,
        "sm_90": 3,
        "sm_100": 4,
    }


def test_a_table_of_another_form_is_refused(one_kernel: dict[str, Any]) -> None:
    resources.TABLE.write_text("kernel,arch\nk,sm_90\n")
    with pytest.raises(ValueError, match=r"resources\.csv: expected the columns.*--write"):
        resources.committed()
