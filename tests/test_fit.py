"""The fit of the time law's factors to measurements, and the files that it writes."""

import math
from dataclasses import replace

import pytest

import costmodel
from costmodel import compare, counts, fit, fit_report, gpus, measurements, timing
from costmodel.counts import analytic
from kernels_numba import resources
from kernels_numba.families import family_of
from monarch import Plan

H200 = costmodel.load_gpu("h200-sxm")
CAPACITY = H200.spec["shared_memory_per_block_bytes"]
INPUTS = timing.inputs_of(H200)

TRUE = {
    "stages_per_worker": 3.0,
    "half_rate_warps": 2.0,
    "issue_fraction": 0.7,
    "l2_fraction": 0.5,
    "launch_us": 3.0,
}


def synthetic_points() -> list[fit.Point]:
    moved = {key: replace(entry, value=TRUE.get(key, entry.value)) for key, entry in INPUTS.items()}
    out = []
    for factors in ((16, 16), (32, 16), (32, 32), (16, 16, 16), (32, 16, 16), (32, 32, 32), (16, 16, 16, 16)):
        for batch in (2, 64):
            plan = Plan(math.prod(factors), factors)
            work = analytic(plan, batch, 768, capacity_bytes=CAPACITY)
            out.append(fit.Point(work, timing.seconds(work, H200, moved), math.prod(factors)))
    return out


def test_fit_recovers_the_factors_that_made_the_times():
    result = fit.fit(H200, synthetic_points(), prior=dict.fromkeys(fit.FITTED, 100.0))
    for key, value in TRUE.items():
        assert result.factors[key] == pytest.approx(value, rel=0.03), key
    assert max(result.errors) < 0.01
    assert max(result.left_out) < 0.05
    assert len(result.left_out) == len(result.errors) == 14


def test_fitted_factors_go_into_every_file_that_has_them(tmp_path):
    """Beside the GPU's own file the calibrated one, and wider those of others that say where they are from."""
    folder = tmp_path / "gpus"
    folder.mkdir()
    (tmp_path / "calibrated").mkdir()
    texts = {slug: gpus.file_text(slug) for slug in ("h200-sxm", "a40", "b200")}
    own = fit.CARRIED.format(slug="h200-sxm")
    texts["a40"] = texts["a40"].replace(own, "fitted on this GPU", 1)  # the first factor of the file
    for slug, text in texts.items():
        (folder / f"{slug}.toml").write_text(text)
    calibrated = tmp_path / "calibrated" / "h200-sxm.toml"
    calibrated.write_text(texts["h200-sxm"])
    result = fit.Fit(
        {"stages_per_worker": 9.0, "launch_us": 2.0}, {"stages_per_worker": 0.2, "launch_us": 0.01}, (), ()
    )
    written = fit.write(
        gpus.read(folder / "h200-sxm.toml"), result, source="fitted in a test", day="2026-11-30"
    )
    assert set(written) == {calibrated, *folder.glob("*.toml")}
    for path in (folder / "h200-sxm.toml", calibrated):
        found = gpus.read(path).model
        assert found["stages_per_worker"].value == 9 and found["launch_us"].relative_uncertainty == 0.01
    b200, a40 = (gpus.read(folder / f"{slug}.toml").model for slug in ("b200", "a40"))
    assert b200["stages_per_worker"].value == 9 and b200["launch_us"].value == a40["launch_us"].value == 2
    assert b200["stages_per_worker"].relative_uncertainty == pytest.approx(0.6)
    assert b200["launch_us"].relative_uncertainty == 0.15 and b200["launch_us"].source == own
    assert a40["stages_per_worker"] == replace(
        gpus.load("a40").model["stages_per_worker"], source="fitted on this GPU"
    )
    assert b200["l2_fraction"] == gpus.load("b200").model["l2_fraction"]


def test_other_files_have_the_factors_of_the_h200():
    """With three times the uncertainty, and at least 15 %."""
    for slug in gpus.slugs():
        other = gpus.load(slug)
        for key in (*fit.FITTED, *fit.FITTED_FP32) if slug != H200.slug else ():
            here, there = H200.model[key], other.model[key]
            assert there.source == fit.CARRIED.format(slug=H200.slug), (slug, key)
            assert there.value == here.value, (slug, key)
            wider = max(0.15, 3 * here.relative_uncertainty)
            assert there.relative_uncertainty == pytest.approx(min(1.0, wider), rel=0.02), (slug, key)


def test_fit_leaves_what_no_case_depends_on():
    """Nothing can be learnt about L2 from kernels that it has no work for."""
    only = [
        replace(p, counts=replace(p.counts, l2_bytes=0, fill_bytes_per_block=0)) for p in synthetic_points()
    ]
    result = fit.fit(H200, only)
    assert result.factors["l2_fraction"] == pytest.approx(INPUTS["l2_fraction"].value, rel=1e-6)
    assert result.uncertainties["l2_fraction"] == pytest.approx(fit.PULL, rel=1e-6)


def test_fit_needs_points():
    with pytest.raises(ValueError, match="got none; measure first"):
        fit.fit(H200, [])


def test_fitted_file_reads_back(tmp_path):
    result = fit.fit(H200, synthetic_points())
    text = fit.updated_text(gpus.file_text("h200-sxm"), result, source="fitted in a test", day="2026-11-30")
    path = tmp_path / "fitted.toml"
    path.write_text(text)
    fitted = gpus.read(path)
    for key in fit.FITTED:
        assert fitted.model[key].value == pytest.approx(result.factors[key], rel=1e-3)
        assert fitted.model[key].source == "fitted in a test"
    own = fitted.model["model_error"].value  # two thirds of the left-out errors are not above it
    below, above = sorted(result.left_out)[8:10]  # of 14
    assert 0.999 * below <= own <= 1.001 * above
    assert fitted.measured == H200.measured and fitted.spec == H200.spec
    assert text.endswith('"\n')
    assert text.count("#") == gpus.file_text("h200-sxm").count("#")  # the comments stay


def test_fit_finds_the_factors_of_fp32_kernels():
    """They are learnt from fp32 cases alone, which teach nothing about the others."""
    true = {"fp32_half_rate_warps": 3.0, "fp32_issue_fraction": 0.8}
    moved = {key: replace(entry, value=true.get(key, entry.value)) for key, entry in INPUTS.items()}
    points = []
    for n in (256, 1024, 4096, 16384, 32768):
        for variant in ("plain", "gated"):
            work = costmodel.predict(n, gpu=H200, dtype="fp32", variant=variant).best.counts
            points.append(fit.Point(work, timing.seconds(work, H200, moved), n))
    result = fit.fit(H200, points, prior=dict.fromkeys(fit.FITTED_FP32, 100.0))
    assert result.factors == pytest.approx(true, rel=0.03)


def test_the_documents_say_what_the_files_do():
    """Every fitted factor and every measured convolution is there, once."""
    lines = "\n".join(fit_report.lines(H200))
    for key in (*fit.FITTED, *fit.FITTED_FP32):
        assert f"| `{key}` | {H200.model[key].value:.3g} |" in lines
    groups = fit_report.by_kernel(H200)
    convolutions = {name: pairs for name, pairs in groups.items() if not name.startswith("filters")}
    assert sum(map(len, convolutions.values())) == len(fit.points_of(H200))
    assert {"order 2", "order 3, pair", "order 4, half", "fp32", "outer stages"} <= set(groups)
    for name, pairs in groups.items():
        worst = max(abs(p.relative_error) for p in pairs)
        assert f"{worst:.0%}" in next(line for line in lines.splitlines() if line.startswith(f"| {name} |"))


def test_occupancy_is_that_of_the_compiled_kernels():
    """Of every measured convolution whose kernel is in the table of compiled ones: as many blocks on an SM."""
    compiled = {name: row for (name, arch), row in resources.committed().items() if arch == "sm_90"}
    seen = {}
    for row in measurements.read("h200-sxm", op="fftconv"):
        variant = str(row.case_values["variant"])
        plan = compare.plan_to_judge(row) if row.ours and variant in counts.VARIANTS else None
        if plan is None:
            continue
        work = compare.counts_of(row, plan, H200)
        if work.stages:
            continue
        gated = variant in counts.GATED
        spec = family_of(plan, row.dtype).make_spec(
            plan, row.dtype, pregate=gated, postgate=gated, guarded=plan.signal is not None
        )
        if spec.name in compiled:
            registers = -(-int(compiled[spec.name]["registers"]) // 8) * 8
            there = replace(
                work,
                registers_per_thread=registers,
                shared_bytes_per_block=int(compiled[spec.name]["dynamic_shared_bytes"]),
            )
            seen[spec.name] = (timing.resident_blocks(work, H200), timing.resident_blocks(there, H200))
    assert len(seen) > 50
    assert {name: pair for name, pair in seen.items() if pair[0] != pair[1]} == {}
