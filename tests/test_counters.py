"""The model's counts beside the hardware's counters: the committed file, its reader, and the command."""

from pathlib import Path
from typing import Any

import pytest

import kernels_numba
from costmodel import counters, gpus
from costmodel.errors import MeasurementError
from costmodel.measure_counters import cases, chosen_cases
from kernels_numba import resources
from kernels_numba.device import Device

ROOT = Path(__file__).parent.parent
COMMITTED = counters.read("h200-sxm")
NOT_YET: set[str] = set()
"""Families with a case that was not run yet."""
CASES = [(c, family) for c in cases() for family in c.families if not NOT_YET & set(c.families)]


def test_every_kernel_family_was_measured() -> None:
    """Each module of which the table of resources has kernels, by the name of its module or of what it computes."""
    names = {"split_decode": "decode_attention", "line_softmax": "softmax"}
    modules = {family.__name__.rpartition(".")[2] for family, _ in resources.kernels()}
    assert {names.get(module, module) for module in modules} == {
        family for case in cases() for family in case.families
    }
    wanted = [(family, case.name, quantity) for case, family in CASES for quantity in counters.QUANTITIES]
    assert [(e.family, e.case, e.quantity) for e in COMMITTED] == wanted


@pytest.mark.parametrize(("case", "family"), CASES, ids=lambda x: x if isinstance(x, str) else x.name)
def test_counts_are_those_of_the_hardware(case: Any, family: str) -> None:
    """Within 5 %: and the file holds what the model counts today (else measure anew)."""
    mine = {e.quantity: e for e in COMMITTED if (e.family, e.case) == (family, case.name)}
    assert {quantity: e.predicted for quantity, e in mine.items()} == case.counts()[family]
    assert abs(mine["device_bytes"].error) <= counters.LIMIT
    assert mine["tensor_instructions"].error == 0


def test_cases_have_keys_of_their_own() -> None:
    """A case whose families others have too can be run alone."""
    found = cases()
    assert len({case.key for case in found}) == len(found)
    for case in found:
        assert [c.name for c in chosen_cases([case.key])] == [case.name]


def test_device_bytes_dwarf_the_cache() -> None:
    """What is left in the L2 cache at the end must not matter."""
    l2 = gpus.load("h200-sxm").spec["l2_bytes"]
    assert all(e.measured > 15 * l2 for e in COMMITTED if e.quantity == "device_bytes")


def test_the_documentation_shows_them() -> None:
    text = (ROOT / "docs" / "cost-model.md").read_text()
    table = text.partition("<!-- counters: begin -->\n")[2].partition("\n<!-- counters: end -->")[0]
    assert table == counters.table(COMMITTED, "md"), "python -m costmodel.counters --format md"


# ---- the file ------------------------------------------------------------------------------------------------
ENTRY = counters.Entry("softmax", "rows=1;n=2", "device_bytes", 100, 104, "2026-11-30", "abc1234", "ncu")


def test_round_trip() -> None:
    text = counters.to_csv([*COMMITTED, ENTRY])
    assert counters.parse(text, name="x") == [*COMMITTED, ENTRY]
    assert text.splitlines()[0] == counters.HEADER
    assert ENTRY.error == pytest.approx(100 / 104 - 1)


def test_nothing_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(counters, "FOLDER", tmp_path)
    assert counters.read("h200-sxm") == []
    assert counters.main(["--gpu", "h200-sxm"]) == 0
    assert "--measure --write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.replace("family", "kind", 1), "header: got 'kind,case.*accepted: family,case"),
        (lambda t: "", "header: got 'an empty file'|header: got ''|an empty file"),
        (
            lambda t: t.replace("device_bytes", "bytes"),
            "line 2: quantity: got 'bytes'; accepted: device_bytes",
        ),
        (lambda t: t.replace(",104,", ",-104,"), "line 2: measured: got '-104'; accepted: a whole number"),
        (lambda t: t.replace(",100,", ",1e2,"), "line 2: predicted: got '1e2'"),
        (lambda t: t.replace(",abc1234", ""), "line 2: 7 columns; accepted: 8"),
    ],
)
def test_a_wrong_file_is_refused(change: Any, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        counters.parse(change(counters.to_csv([ENTRY])), name="x.csv")


# ---- ncu -----------------------------------------------------------------------------------------------------
PROFILE = """==PROF== Connected to process 1
"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","sm__inst_executed_pipe_tensor.sum",\
"sm__inst_executed_pipe_tensor_op_hmma_type_hfma2.sum"
"","","byte","byte","inst","inst"
"0","softmax_fp16","1,073,804,544","1,051,545,344","65","5"
"1","gemv_n2","7","1","0","0"
"""


def test_a_profile_is_read() -> None:
    assert counters.parse_profile(PROFILE, 2) == [
        {"read": 1073804544, "write": 1051545344, "tensor": 65, "moves": 5},
        {"read": 7, "write": 1, "tensor": 0, "moves": 0},
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PROFILE.replace('"1","gemv_n2","7","1","0","0"\n', ""), "reported 1 launches, and 2 kernels"),
        (PROFILE.replace('"65"', '"n/a"'), "sm__inst_executed_pipe_tensor.sum of softmax_fp16: got 'n/a'"),
        ("==ERROR== No kernels were profiled.\n", "reported 0 launches"),
    ],
)
def test_a_profile_that_lacks_something_is_refused(text: str, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        counters.parse_profile(text, 2)


def test_measuring_keeps_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    here = Device("gpu", "made up", 0, "NVIDIA H200", (9, 0), 132)
    monkeypatch.setattr(kernels_numba, "device", lambda index=0: here)
    monkeypatch.setattr(counters, "FOLDER", tmp_path)
    factor = 1.01

    def profile(chosen: Any) -> list[dict[str, float]]:
        """As much for each launch of a family as the model counts of all of them over their number."""
        out = []
        for case in chosen:
            for family in case.launches:
                counted, share = case.counts().get(family), 1 / max(1, case.launches.count(family))
                products = share * counted["tensor_instructions"] if counted else 0.0
                out.append(
                    {
                        "read": factor * share * counted["device_bytes"] if counted else 1e9,
                        "write": 0.0,
                        "tensor": products + 3.0,
                        "moves": 3.0,
                    }
                )
        return out

    monkeypatch.setattr(counters, "profile", profile)
    assert counters.main(["--measure", "--write", "--family", "softmax"]) == 0
    assert counters.main(["--measure", "--write", "--family", "spectral_gradient"]) == 0
    assert counters.main(["--measure", "--write", "--family", "fused_warp"]) == 0
    kept = counters.read("h200-sxm")
    layer = ["map_transform"] * 2 + ["spectral_gradient"] * 2
    assert [e.family for e in kept] == ["fused_warp"] * 2 + ["softmax"] * 2 + layer
    assert all(e.error == 0 for e in kept if e.quantity == "tensor_instructions")
    capsys.readouterr()
    assert counters.main(["--family", "softmax", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    factor = 1.2
    assert counters.main(["--measure", "--family", "softmax"]) == 1
    assert counters.read("h200-sxm") == kept


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert counters.main(["--family", "softmaxx"]) == 2
    assert "got 'softmaxx'; accepted: fused_warp" in capsys.readouterr().err
    monkeypatch.setattr(kernels_numba, "device", lambda index=0: Device("cpu", "no driver"))
    assert counters.main(["--measure"]) == 4
    with pytest.raises(MeasurementError, match=r"no-such-ncu cannot be started.*Nsight Compute"):
        counters.profile([CASES[0][0]], tool="no-such-ncu")
