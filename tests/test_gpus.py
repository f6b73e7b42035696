"""GPU files: every shipped one agrees with itself; a wrong one is refused by key, value and mend."""

import copy
import dataclasses
import json
import math
import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

import costmodel
from costmodel import gpus
from costmodel.cli import main
from costmodel.gpus import GPUFileError, has_instructions, load


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
    assert set(gpu.spec_sources) == set(gpu.spec)
    assert all(len(source) > 10 for source in gpu.spec_sources.values())


def test_what_is_unsure_says_so():
    """In the value's own source and in the note that every prediction repeats."""
    for slug, key in (
        ("b200", "fp32_flops_per_s"),
        ("b200", "memory_bandwidth_bytes_per_s"),
        ("l40s", "l2_bytes"),
        ("rtx-5090", "fp16_tensor_flops_per_s"),
        ("rtx-pro-6000-server", "fp16_tensor_flops_per_s"),
    ):
        gpu = load(slug)
        assert "unsure" in gpu.spec_sources[key] and "unsure" in gpu.spec_note.lower()
        assert "unsure" not in gpu.spec_sources["registers_per_sm"]


def test_a_value_without_a_source_of_its_own_has_that_of_the_section(data):
    del data["spec"]["sources"]
    found = gpus.parse(data, name="mine.toml")
    assert found.spec_sources == {} and found.spec_source == data["spec"]["source"]


# Per SM and clock, by compute capability: fp32 lanes; fp16 vector rate over the fp32 one; products of tensor cores
# with fp32 sums (CUDA programming guide, arithmetic throughput; NVIDIA's architecture white papers). GeForce cards
# of 8.6 and later have half of the products.
CORES = {"7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.9": 128, "9.0": 128, "10.0": 128, "12.0": 128}
HALF_RATE = {"7.0": 2, "7.5": 2, "8.0": 4, "8.6": 1, "8.9": 1, "9.0": 2, "10.0": 2, "12.0": 1}
PRODUCTS = {
    "7.0": 512,
    "7.5": 512,
    "8.0": 1024,
    "8.6": 512,
    "8.9": 512,
    "9.0": 2048,
    "10.0": 4096,
    "12.0": 512,
}
# What a block, an SM and its threads can have: shared memory (KiB) of an SM and of a block, resident threads.
ROOM = {
    "7.0": (96, 96, 2048),
    "7.5": (64, 64, 1024),
    "8.0": (164, 163, 2048),
    "8.6": (100, 99, 1536),
    "8.9": (100, 99, 1536),
    "9.0": (228, 227, 2048),
    "10.0": (228, 227, 2048),
    "12.0": (100, 99, 1536),
}
TOLERANCE = 0.01  # data sheets round to three digits


def contradictions(gpu: gpus.GPU) -> list[str]:
    """The values of a file that do not follow from its SMs, its clocks and its architecture."""
    s, cc = gpu.spec, gpu.compute_capability
    geforce = any("GeForce" in name for name in gpu.device_names)
    products = PRODUCTS[cc] / (2 if geforce else 1)
    clocks = {key: s["sm_count"] * s[f"{key}_clock_mhz"] * 1e6 for key in ("boost", "tensor")}
    fp32 = 2 * CORES[cc] * clocks["boost"]
    per_sm, per_block, threads = ROOM[cc]
    expected = {
        "fp32_flops_per_s": fp32,
        "fp16_vector_flops_per_s": HALF_RATE[cc] * fp32,
        "fp16_tensor_fma_per_sm_per_clock": products,
        "fp16_tensor_flops_per_s": 2 * products * clocks["tensor"],
        "shared_memory_per_sm_bytes": per_sm * 1024,
        "shared_memory_per_block_bytes": per_block * 1024,
        "shared_memory_bytes_per_sm_per_clock": 64 if cc == "7.5" else 128,
        "registers_per_sm": 65536,
        "threads_per_sm": threads,
    }
    wrong = [key for key, value in expected.items() if abs(s[key] / value - 1) > TOLERANCE]
    return wrong + (["tensor_clock_mhz"] if s["tensor_clock_mhz"] > s["boost_clock_mhz"] else [])


@pytest.mark.parametrize("slug", gpus.slugs())
def test_rates_follow_from_sms_clocks_and_architecture(slug):
    assert contradictions(load(slug)) == []


@pytest.mark.parametrize("slug", gpus.slugs())
@pytest.mark.parametrize(
    ("key", "factor", "named"),
    [
        ("sm_count", 1.03, "fp32_flops_per_s"),
        ("boost_clock_mhz", 0.95, "fp32_flops_per_s"),
        ("tensor_clock_mhz", 0.95, "fp16_tensor_flops_per_s"),
        ("fp16_tensor_flops_per_s", 2, "fp16_tensor_flops_per_s"),
        ("fp32_flops_per_s", 0.5, "fp32_flops_per_s"),
        ("fp16_tensor_fma_per_sm_per_clock", 2, "fp16_tensor_fma_per_sm_per_clock"),
        ("shared_memory_per_block_bytes", 1.5, "shared_memory_per_block_bytes"),
    ],
)
def test_a_wrong_value_contradicts_the_others(slug, key, factor, named):
    """A slip of 3 % in the SMs, the rate with sparsity in place of the dense one, or half a rate."""
    gpu = load(slug)
    wrong = dataclasses.replace(gpu, spec={**gpu.spec, key: gpu.spec[key] * factor})
    assert named in contradictions(wrong)


@pytest.mark.parametrize("slug", ["v100-sxm-32gb", "t4"])
def test_no_kernel_is_claimed_without_its_instructions(slug):
    """Below compute capability 8.0 there are no m16n8k16 products and no asynchronous copies."""
    gpu = load(slug)
    assert not gpu.runs_kernels
    for n in (256, 4096, 32768):
        found = costmodel.predict(n, gpu=slug)
        assert not any(c.has_kernel for c in found.candidates) and found.best_with_kernel is None
        assert found.notes[0].startswith(f"no kernel of this project runs on {slug}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "fftconv", "-N", "1024"],
        ["predict", "linear", "-M", "8"],
        ["predict", "decode_attention"],
        ["thresholds", "--model", "llama2-7b"],
    ],
)
def test_every_command_says_that_no_kernel_runs(arguments, capsys):
    for slug, said in (("t4", True), ("a40", False)):
        assert main([*arguments, "--gpu", slug, "--format", "json"]) == 0
        out, err = capsys.readouterr()
        notes = json.loads(out)["notes"]
        assert any("no kernel of this project runs on t4" in note for note in notes) is said
        assert ("no kernel of this project runs" in " ".join(err.split())) is said


def test_fp32_is_refused_where_no_kernel_runs():
    with pytest.raises(ValueError, match=r"compute capability 7\.5, where no kernel of this project runs"):
        costmodel.predict(1024, gpu="t4", dtype="fp32")
    assert costmodel.predict(1024, gpu="a40", dtype="fp32").best.has_kernel


def test_which_capabilities_run_kernels():
    runs = {slug: load(slug).runs_kernels for slug in gpus.slugs()}
    assert sorted(slug for slug, ok in runs.items() if not ok) == ["t4", "v100-sxm-32gb"]
    assert has_instructions("10.0") and has_instructions("8.0") and not has_instructions("7.5")


def test_what_is_unsure_is_said_with_a_prediction():
    assert any("L2 unsure" in note for note in costmodel.predict(1024, gpu="l40s").notes)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("sm_count", 132.5, "sm_count: got 132.5; accepted: a whole number"),
        ("threads_per_sm", 1000.25, "threads_per_sm: got 1000.25; accepted: a whole number"),
        ("sm_count", 160, "2 x sm_count x fp16_tensor_fma_per_sm_per_clock x tensor_clock_mhz is 1.199e"),
        ("fp16_tensor_flops_per_s", 1978.8e12, "a rate with sparsity is twice the dense one"),
    ],
)
def test_values_that_contradict_each_other_are_refused(data, key, value, message):
    data["spec"][key] = value
    with pytest.raises(GPUFileError) as caught:
        gpus.parse(data, name="wrong.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize("value", ["9", "sm_90", "9.0a", ""])
def test_compute_capability_has_two_numbers(data, value):
    data["identity"]["compute_capability"] = value
    with pytest.raises(GPUFileError, match=r"identity\.compute_capability"):
        gpus.parse(data, name="wrong.toml")


@pytest.mark.parametrize(
    ("slug", "l2_mib", "per_sm_kib", "per_block_kib"),
    [
        ("a100-sxm-40gb", 40, 164, 163),
        ("a100-sxm-80gb", 40, 164, 163),
        ("h100-sxm", 50, 228, 227),
        ("h100-pcie", 50, 228, 227),
        ("h200-sxm", 50, 228, 227),
        ("v100-sxm-32gb", 6, 96, 96),
        ("t4", 4, 64, 64),
        ("a10", 6, 100, 99),
        ("a40", 6, 100, 99),
        ("rtx-3090", 6, 100, 99),
        ("rtx-4090", 72, 100, 99),
        ("l4", 48, 100, 99),
        ("l40s", 96, 100, 99),
        ("b200", 126, 228, 227),
        ("rtx-5090", 96, 100, 99),
        ("rtx-pro-6000-server", 128, 100, 99),
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
        if key in ("source", "date", "sources"):
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
    with pytest.raises(GPUFileError, match=r"mine\.toml, line 20: spec\.l2_bytes: got nan"):
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


@pytest.mark.parametrize(
    ("version", "mend"),
    [
        (2, "newer version of monarch-numba: update it"),
        (0, "What changed since .version 1: every key ends in its unit"),
        (None, "What changed since"),
        ("1", "What changed since"),
        (True, "What changed since"),
    ],
)
def test_another_schema_version(data, version, mend):
    data["schema_version"] = version
    with pytest.raises(GPUFileError, match=rf"schema_version: got .*; accepted: 1.*{mend}"):
        gpus.parse(data, name="wrong.toml")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("shared_memory_per_block_bytes", 300_000, "compute capability 9.0 has at most 232448"),
        ("shared_memory_per_sm_bytes", 262_144, "compute capability 9.0 has at most 233472"),
        ("threads_per_sm", 4096, "compute capability 9.0 has at most 2048"),
        ("registers_per_sm", 131_072, "compute capability 9.0 has 65536"),
    ],
)
def test_what_the_architecture_does_not_have(data, key, value, message):
    data["spec"][key] = value
    with pytest.raises(GPUFileError, match=rf"spec\.{key}: got {value}; {message}\. Write that"):
        gpus.parse(data, name="wrong.toml")


def test_a_block_has_no_more_than_an_sm(data):
    """Of an architecture that is not known too."""
    data["identity"]["compute_capability"] = "99.0"
    gpus.parse(data, name="new.toml")
    data["spec"]["shared_memory_per_block_bytes"] = 240_000
    with pytest.raises(GPUFileError, match=r"got 240000, more than an SM has .*accepted: at most that"):
        gpus.parse(data, name="new.toml")


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("sm_count = 132", "sm_count = -1", "sm_count"),
        ("sm_count = 132", "sm_cont = 132", "sm_cont"),
        ("l2_bytes = 52428800\n", "", "[spec]"),
        ("[identity]", "[identities]", "[identities]"),
        ("median = 4.55e12", "median = 4.55", "median = 4.55"),
        ("[measured.mma_flops_per_s]", "[measured.mma_tflops]", "[measured.mma_tflops]"),
        ("[model.launch_us]\nvalue = ", "[model.launch_us]\nvalue = true  # was ", "value = true"),
        ("schema_version = 1", "schema_version = 0", "schema_version"),
        ('l2_bytes = "', 'l2_byte = "', "l2_byte ="),
        ('l2_bytes = "', 'l2_bytes = 3  # "', "l2_bytes = 3"),
        ("shared_memory_per_block_bytes = 232448", "shared_memory_per_block_bytes = 300000", "_per_block_"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path, old, new, place):
    text = gpus.file_text("h200-sxm")
    assert old in text
    text = text.replace(old, new, 1)
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(GPUFileError) as caught:
        load(str(path))
    number = int(re.match(rf"{re.escape(str(path))}, line (\d+): ", str(caught.value))[1])
    assert place in text.splitlines()[number - 1]


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
