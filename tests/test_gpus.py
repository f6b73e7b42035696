"""GPU files: every shipped one agrees with itself; a wrong one is refused by key, value and mend."""

import copy
import math
import sys
import tomllib
import types
from pathlib import Path

import pytest

import costmodel
from costmodel import gpus
from costmodel.gpus import GPUFileError, load


@pytest.fixture
def data() -> dict:
    return tomllib.loads(gpus.file_text("h200-sxm"))


def test_the_wanted_gpus_are_there():
    assert {"a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm", "h100-pcie", "h200-sxm"} <= set(gpus.slugs())


@pytest.mark.parametrize("slug", gpus.slugs())
def test_file_is_named_as_its_slug_and_has_sources(slug):
    gpu = load(slug)
    assert gpu.slug == slug == Path(gpu.path).stem
    assert gpu.device_names
    for origin in (gpu, *gpu.measured.values(), *gpu.model.values()):
        source = origin.spec_source if origin is gpu else origin.source
        assert len(source) > 4


@pytest.mark.parametrize("slug", gpus.slugs())
def test_tensor_rate_is_sms_times_clock_times_width(slug):
    s = load(slug).spec
    derived = 2 * s["sm_count"] * s["fp16_tensor_fma_per_sm_per_clock"] * s["tensor_clock_mhz"] * 1e6
    assert s["fp16_tensor_flops_per_s"] == pytest.approx(derived, rel=0.002)
    assert s["tensor_clock_mhz"] <= s["boost_clock_mhz"]


@pytest.mark.parametrize("slug", gpus.slugs())
def test_vector_rates_follow_from_cores_and_clock(slug):
    s = load(slug).spec
    cores = {"8.0": 64, "9.0": 128}[load(slug).compute_capability]
    assert s["fp32_flops_per_s"] == pytest.approx(
        2 * s["sm_count"] * cores * s["boost_clock_mhz"] * 1e6, rel=0.002
    )
    ratio = {"8.0": 4, "9.0": 2}[load(slug).compute_capability]
    assert s["fp16_vector_flops_per_s"] == pytest.approx(ratio * s["fp32_flops_per_s"], rel=0.001)


@pytest.mark.parametrize(
    ("slug", "l2_mib", "per_sm_kib", "per_block_kib"),
    [
        ("a100-sxm-40gb", 40, 164, 163),
        ("a100-sxm-80gb", 40, 164, 163),
        ("h100-sxm", 50, 228, 227),
        ("h100-pcie", 50, 228, 227),
        ("h200-sxm", 50, 228, 227),
    ],
)
def test_capacities(slug, l2_mib, per_sm_kib, per_block_kib):
    s = load(slug).spec
    assert s["l2_bytes"] == l2_mib * 2**20
    assert s["shared_memory_per_sm_bytes"] == per_sm_kib * 2**10
    assert s["shared_memory_per_block_bytes"] == per_block_kib * 2**10


@pytest.mark.parametrize("slug", gpus.slugs())
def test_measured_rates_stay_under_the_data_sheet(slug):
    gpu = load(slug)
    tops = {
        "device_copy_bytes_per_s": gpu.spec["memory_bandwidth_bytes_per_s"],
        "read_stream_bytes_per_s": gpu.spec["memory_bandwidth_bytes_per_s"],
        "onchip_bytes_per_s": gpu.shared_memory_bytes_per_s,
        "mma_flops_per_s": gpu.spec["fp16_tensor_flops_per_s"],
        "dense_product_flops_per_s": gpu.spec["fp16_tensor_flops_per_s"],
        "vector_flops_per_s": gpu.spec["fp32_flops_per_s"],
    }
    for key, rate in gpu.measured.items():
        assert 0.4 * tops[key] < rate.median < tops[key], key


def test_the_papers_constants():
    measured = load("a100-sxm-40gb").measured
    found = {key: m.median for key, m in measured.items()}
    assert found == {
        "device_copy_bytes_per_s": 1.35e12,
        "onchip_bytes_per_s": 9.5e12,
        "mma_flops_per_s": 234e12,
        "vector_flops_per_s": 17.6e12,
    }
    assert all("2311.05908" in m.source for m in measured.values())


def test_every_spec_value_is_caught_a_thousand_times_off(data):
    """Giga for tera, or the reverse: the ranges are narrower than any slip of a prefix."""
    for key, value in data["spec"].items():
        if key in ("source", "date"):
            continue
        for factor in (1e-3, 1e3):
            wrong = copy.deepcopy(data)
            wrong["spec"][key] = value * factor
            with pytest.raises(GPUFileError, match=rf"spec\.{key}.*accepted"):
                gpus.parse(wrong, name="wrong.toml")


def test_a_rate_in_terabytes_is_told_what_to_write(data):
    data["measured"]["device_copy_bytes_per_s"]["median"] = 4.26
    with pytest.raises(GPUFileError, match=r"tera-units, write 4\.26e\+12"):
        gpus.parse(data, name="wrong.toml")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -4.8e12, 0, "4.8e12", True, None])
@pytest.mark.parametrize(
    "place",
    [
        ("spec", "memory_bandwidth_bytes_per_s"),
        ("measured", "mma_flops_per_s", "median"),
        ("model", "half_rate_warps", "value"),
        ("model", "shared_fraction", "relative_uncertainty"),
    ],
)
def test_values_that_are_no_plausible_numbers(data, place, value):
    if place[-1] == "relative_uncertainty" and value == 0:
        value = 1.5  # an uncertainty may be 0, but not above 1
    section = data
    for key in place[:-1]:
        section = section[key]
    section[place[-1]] = value
    with pytest.raises(GPUFileError) as caught:
        gpus.parse(data, name="wrong.toml")
    message = str(caught.value)
    assert "wrong.toml" in message and place[-1] in message and "accepted" in message
    assert str(value) in message or f"{value:g}" in message


def test_nan_in_a_file_on_disk(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(gpus.file_text("h200-sxm").replace("l2_bytes = 52428800", "l2_bytes = nan"))
    with pytest.raises(GPUFileError, match=r"mine\.toml: spec\.l2_bytes: got nan"):
        load(str(path))


@pytest.mark.parametrize(
    ("section", "key", "near"),
    [
        ("spec", "memory_bandwidth_gb_per_s", "memory_bandwidth_bytes_per_s"),
        ("measured", "mma_tflops_per_s", "mma_flops_per_s"),
        ("model", "half_rate_warp", "half_rate_warps"),
        ("identity", "device_name", "device_names"),
    ],
)
def test_unknown_key_names_the_nearest(data, section, key, near):
    data[section][key] = 1.0
    with pytest.raises(GPUFileError, match=rf"unknown key '{key}'.*did you mean '{near}'"):
        gpus.parse(data, name="wrong.toml")


@pytest.mark.parametrize("section", ["identity", "spec", "model"])
def test_missing_section_or_key(data, section):
    less = copy.deepcopy(data)
    del less[section]
    with pytest.raises(GPUFileError, match=rf"\[{section}\] is missing"):
        gpus.parse(less, name="wrong.toml")
    key = next(k for k in data[section] if k not in ("source", "date"))
    del data[section][key]
    with pytest.raises(GPUFileError, match=key):
        gpus.parse(data, name="wrong.toml")


def test_value_without_source_or_with_a_wrong_date(data):
    wrong = copy.deepcopy(data)
    del wrong["measured"]["mma_flops_per_s"]["source"]
    with pytest.raises(GPUFileError, match=r"mma_flops_per_s\.source"):
        gpus.parse(wrong, name="wrong.toml")
    data["spec"]["date"] = "yesterday"
    with pytest.raises(GPUFileError, match=r"spec\.date: got 'yesterday'"):
        gpus.parse(data, name="wrong.toml")


def test_another_schema_version(data):
    data["schema_version"] = 2
    with pytest.raises(GPUFileError, match="schema_version: got 2; accepted: 1"):
        gpus.parse(data, name="wrong.toml")


def test_spread_must_surround_the_median(data):
    data["measured"]["mma_flops_per_s"] |= {"p20": 560e12, "p80": 570e12}
    with pytest.raises(GPUFileError, match="p20 <= median <= p80"):
        gpus.parse(data, name="wrong.toml")


@pytest.mark.parametrize(
    ("text", "near"), [("h100", "h100-sxm"), ("H200-SMX", "h200-sxm"), ("a100", "a100-sxm-40gb")]
)
def test_unknown_gpu_names_the_nearest_and_the_way(text, near):
    with pytest.raises(costmodel.UnknownGPUError) as caught:
        load(text)
    message = str(caught.value)
    assert near in message and repr(text) in message
    assert "python -m costmodel gpus --show" in message and "--gpu my.toml" in message


def test_slug_in_any_case_and_a_gpu_itself():
    assert load("H200-SXM").slug == "h200-sxm"
    assert load(load("h200-sxm")) is load("h200-sxm")
    with pytest.raises(TypeError, match="int"):
        load(3)


def test_shown_file_can_be_used_as_my_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(gpus.file_text("h100-sxm").replace('slug = "h100-sxm"', 'slug = "mine"'))
    mine = load(str(path))
    assert mine.slug == "mine"
    assert mine.spec == load("h100-sxm").spec


def test_missing_or_broken_file(tmp_path):
    with pytest.raises(costmodel.UnknownGPUError, match="cannot be read"):
        load(str(tmp_path / "none.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("spec = [")
    with pytest.raises(GPUFileError, match="not valid TOML"):
        load(str(broken))


def fake_device(monkeypatch, name: str | None) -> None:
    module = types.ModuleType("kernels_numba")
    module.device = lambda: types.SimpleNamespace(is_gpu=name is not None, name=name)
    monkeypatch.setitem(sys.modules, "kernels_numba", module)


def test_auto_matches_the_exact_device_name(monkeypatch):
    fake_device(monkeypatch, "NVIDIA H200")
    assert load("auto").slug == "h200-sxm"
    fake_device(monkeypatch, "NVIDIA H200 NVL")
    with pytest.raises(costmodel.UnknownGPUError, match=r"named 'NVIDIA H200 NVL'.*nearest: h200-sxm"):
        load("auto")


def test_auto_without_a_gpu(monkeypatch):
    fake_device(monkeypatch, None)
    with pytest.raises(costmodel.NoGPUError, match="no GPU here"):
        load("auto")
