"""`costmodel calibrate` with a GPU that is made up: what it writes, resumes, refuses and compares."""

import tomllib
from pathlib import Path
from typing import Any, ClassVar

import pytest

import kernels_numba
from costmodel import (
    calibrate,
    calibrate_command,
    calibrated_file,
    calibration,
    cli,
    compare,
    gpus,
    measurements,
)
from costmodel.errors import GPUFileError
from costmodel.gpus import load
from kernels_numba import probe_checks, probe_run
from kernels_numba.device import Device

H200 = load("h200-sxm")
NAMES = {key for step in calibrate.steps(H200) for key in step.keys}
RATES = {"read": 4.5e12, "write": 4.2e12, "copy": 4.1e12, "shared": 33e12, "fma": 60e12, "fma_halves": 120e12}
RATES |= {"exp": 4e12, "mma": 550e12, "mma_narrow": 300e12, "mma_tf32": 250e12, "group": 790e12}


class FakeBench:
    """Times that follow from `RATES`, times ``FACTOR``."""

    stream_bytes = 7 << 28
    where = Device("gpu", "made up", 0, "NVIDIA H200", (9, 0), 132, 232448, 233472, 13000, 1)
    factor = 1.0
    asked: ClassVar[list[str]] = []
    stop_at: int | None = None

    def __init__(self, index: int = 0, *, memory_bytes: float = 0) -> None:
        self.index = index

    def time(self, spec: Any, *, nbytes: int = 0, turns: int = 1, blocks_per_sm: int = 0, **_: Any) -> Any:
        if self.stop_at is not None and len(self.asked) == self.stop_at:
            raise KeyboardInterrupt
        self.asked.append(spec.name)
        family = probe_checks.family_of(spec)
        workers = 132 * 2 * spec.warps
        n = nbytes // (512 * spec.depth) if spec.kind in probe_run.STREAMS else 7
        work = family.work(spec, n, workers, turns)
        flops = sum(
            calibrate.MMA_FLOPS.get(name, 1) * count for name, count in work.items() if name[:6] != "global"
        )
        amount = flops or work["global_read_bytes"] + work["global_written_bytes"]
        middle = 0.03 * turns if spec.kind == "barrier" else amount / RATES.get(spec.kind, 1e12) * 1e6
        middle = max(middle, 2.0) * self.factor
        return probe_run.Timed(
            tuple(middle * (1 + 0.001 * i) for i in range(-10, 11)), work, blocks_per_sm or 2
        )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[FakeBench]:
    monkeypatch.setattr(kernels_numba, "device", lambda index=0: FakeBench.where)
    monkeypatch.setattr(probe_run, "Bench", FakeBench)
    monkeypatch.setattr(probe_run, "memory_bytes", lambda index: 1e11)
    monkeypatch.setattr(calibrate, "clocks", lambda index=0: ("580.1", 1980.0, 3201.0))
    monkeypatch.setattr(FakeBench, "asked", [])
    monkeypatch.setattr(FakeBench, "stop_at", None)
    monkeypatch.setattr(FakeBench, "factor", 1.0)
    return FakeBench


def run(path: Path, *more: str) -> int:
    return cli.main(["calibrate", "--gpu-file", str(path), *more])


def test_a_file_with_everything(gpu: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    assert run(path) == 0
    found = gpus.read(path)
    assert {*found.measured, *found.curves} == {*NAMES, *H200.measured}
    assert found.spec == H200.spec and found.model == H200.model and found.device_names == H200.device_names
    assert found.calibration == calibration.Calibration(
        "NVIDIA H200", "580.1", 1980.0, 3201.0, found.calibration.date, found.calibration.commit
    )
    for key in NAMES & set(found.measured):
        m = found.measured[key]
        assert m.p20 < m.median < m.p80 and m.samples == 21 and m.source.startswith("costmodel calibrate")
    assert found.measured["device_copy_bytes_per_s"].median == pytest.approx(4.1e12, rel=1e-3)
    assert found.measured["mma_flops_per_s"].median == pytest.approx(550e12, rel=1e-3)
    assert found.measured["wgmma_n256_flops_per_s"].median == pytest.approx(790e12, rel=1e-3)
    assert found.measured["barrier_latency_us"].median == pytest.approx(0.03, rel=0.05)
    assert found.measured["dense_product_flops_per_s"] == H200.measured["dense_product_flops_per_s"]
    curve = found.curves["read_against_bytes_in_flight"]
    assert curve.x[0] == 2048 and max(curve.y) == pytest.approx(4.5e12, rel=1e-3)
    printed = capsys.readouterr()
    assert "device_copy_bytes_per_s" in printed.out and f"--gpu {path}" in printed.err
    # It serves for predictions, and its comments are those of the specification.
    assert cli.main(["predict", "fftconv", "--gpu", str(path), "-N", "1024"]) == 0
    assert "# Warps on an SM with which its pipes reach half" in path.read_text()
    assert "# Device-to-device copy" not in path.read_text()  # it spoke of what is no longer there


def test_it_goes_on_where_it_was_stopped(
    gpu: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole.toml"
    assert run(whole) == 0
    everything = list(gpu.asked)
    path = tmp_path / "mine.toml"
    gpu.asked.clear()
    gpu.stop_at = len(everything) // 2
    assert run(path) == calibrate_command.INTERRUPTED
    assert "the same command goes on" in capsys.readouterr().err
    half = gpus.read(path)
    assert set(half.curves) and not set(half.measured) >= NAMES - set(half.curves)
    gpu.asked.clear()
    gpu.stop_at = None
    assert run(path) == 0
    assert 0 < len(gpu.asked) < len(everything)
    assert tomllib.loads(path.read_text()) == tomllib.loads(whole.read_text())
    gpu.asked.clear()
    assert run(path) == 0
    assert not gpu.asked and "--fresh" in capsys.readouterr().err
    assert run(path, "--fresh") == 0
    assert gpu.asked == everything


def test_stopped_before_anything_nothing_is_written(gpu: type, tmp_path: Path) -> None:
    gpu.stop_at = 0
    assert run(tmp_path / "mine.toml") == calibrate_command.INTERRUPTED
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("slug", ["h200-sxm", "a100-sxm-80gb"])
def test_a_specification_is_never_written_to(
    gpu: type, slug: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sheet.toml"
    path.write_text(gpus.file_text(slug))
    before = path.read_bytes()
    assert run(path) == 2
    error = capsys.readouterr().err
    assert "is a specification" in error and "--base" in error and "sheet-calibrated.toml" in error
    assert path.read_bytes() == before and not gpu.asked


def test_another_device_or_driver_is_refused(
    gpu: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    assert run(path) == 0
    before = path.read_bytes()
    monkeypatch.setattr(calibrate, "clocks", lambda index=0: ("590.2", 1980.0, 3201.0))
    assert run(path) == 2
    assert "'580.1', and this machine has '590.2'" in capsys.readouterr().err
    assert run(tmp_path / "other.toml", "--base", "a100-sxm-80gb") == 2
    assert "this device is 'NVIDIA H200'" in capsys.readouterr().err
    assert run(tmp_path / "mine.txt") == 2
    assert "ends in .toml" in capsys.readouterr().err
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["mine.toml"]


def test_a_gpu_that_runs_no_kernel_is_refused(
    gpu: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Device("gpu", "made up", 0, "Tesla T4", (7, 5), 40)
    monkeypatch.setattr(kernels_numba, "device", lambda index=0: old)
    monkeypatch.setattr(FakeBench, "where", old)
    assert run(tmp_path / "mine.toml") == 2
    assert "no kernel of this project runs on t4" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_compare_host(gpu: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    assert run(path) == 0
    before = path.read_bytes()
    capsys.readouterr()
    gpu.factor = 1.05
    assert run(path, "--compare-host", "--format", "csv") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "rate,file,this machine,ratio,"
    by_rate = {line.split(",")[0]: line.split(",") for line in lines[1:]}
    assert float(by_rate["device_copy_bytes_per_s"][3]) == pytest.approx(1 / 1.05, abs=1e-3)
    assert set(by_rate) == NAMES & set(gpus.read(path).measured)
    gpu.factor = 1.2
    assert run(path, "--compare-host") == 1
    assert "more than 10% apart: " in capsys.readouterr().err
    assert path.read_bytes() == before


def test_without_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernels_numba, "device", lambda index=0: Device("cpu", "no driver"))
    assert run(tmp_path / "mine.toml") == 4
    assert "no GPU to measure: no driver" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_gpu_without_warpgroups_has_no_such_steps() -> None:
    keys = {key for step in calibrate.steps(load("a100-sxm-80gb")) for key in step.keys}
    assert keys == {key for key in NAMES if not key.startswith("wgmma")}


def test_every_step_is_a_key_of_gpu_files() -> None:
    assert NAMES <= {*gpus.MEASURED_RANGES, *calibration.CURVES}


BAD_CURVES = [
    ("bytes = [1, 2]\nbytes_per_s = [1e12]", "2 values of bytes and 1 of bytes_per_s"),
    ("bytes = [2, 1]\nbytes_per_s = [1e12, 1e12]", "each value above the one before"),
    ("bytes = [1]\nbytes_per_s = [4.2]", "got 4.2; accepted: numbers from 1e[+]10"),
    ("bytes = [-1]\nbytes_per_s = [1e12]", "at least 0"),
    ("byte = [1]\nbytes_per_s = [1e12]", "unknown key 'byte'.*did you mean 'bytes'"),
    ('bytes = "1"\nbytes_per_s = [1e12]', "accepted: numbers"),
]


@pytest.mark.parametrize(("body", "message"), BAD_CURVES)
def test_wrong_curves(body: str, message: str) -> None:
    text = (
        gpus.file_text("h200-sxm")
        + f'\n[curve.copy_against_size]\n{body}\nsource = "x"\ndate = "2026-01-01"\n'
    )
    with pytest.raises(GPUFileError, match=message):
        gpus.parse(tomllib.loads(text), name="mine.toml")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[curve.speed]\nbytes = [1]", "unknown key 'speed'"),
        ('[calibration]\ndevice_name = "x"', "calibration.driver: got None; accepted: a text"),
        ('[calibration]\ndevice = "x"', "unknown key 'device'.*device_name"),
        ('[calibration]\ndevice_name = "x"\ndriver = "y"\nsm_clock_mhz = "z"', "sm_clock_mhz"),
    ],
)
def test_wrong_tables(body: str, message: str) -> None:
    with pytest.raises(GPUFileError, match=message):
        gpus.parse(tomllib.loads(gpus.file_text("h200-sxm") + "\n" + body + "\n"), name="mine.toml")


def test_a_wrong_text_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    with pytest.raises(GPUFileError):
        calibrated_file.write(path, gpus.file_text("h200-sxm").replace("median = 551e12", "median = 551"))
    assert not list(tmp_path.iterdir())


def test_what_was_found_on_an_h200() -> None:
    """The committed file: everything is there, on the same board and specification, and shown in the documentation."""
    root = Path(__file__).parent.parent
    found = gpus.read(root / "costmodel" / "calibrated" / "h200-sxm.toml")
    assert NAMES <= {*found.measured, *found.curves}
    assert found.spec == H200.spec and found.calibration.device_name in H200.device_names
    for key in ("device_copy_bytes_per_s", "read_stream_bytes_per_s"):
        assert found.measured[key].median == pytest.approx(H200.measured[key].median, rel=0.03)
    for key in found.measured:
        share = calibrate_command.of_peak(key, found)
        assert share is None or 0.4 < share < 1, key
    for curve in found.curves.values():
        assert len(curve.x) >= 10
    known, calibrated = (
        compare.judge(measurements.read("h200-sxm", op="fftconv"), gpu).summary() for gpu in (H200, found)
    )
    for key in ("median_abs_rel_error", "p90_abs_rel_error"):
        assert abs(known[key] - calibrated[key]) < 0.03, key
    text = (root / "docs" / "cost-model.md").read_text()
    shown = text.partition("<!-- calibrated: begin -->\n")[2].partition("\n<!-- calibrated: end -->")[0]
    assert shown == calibrate_command.table(found, "md")
