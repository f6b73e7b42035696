"""Predictions beside every measured row of every operation, and cross-validation of their models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel import (
    compare_conv2d,
    compare_decode,
    compare_gradients,
    comparisons,
    cross_validation,
    gradient_time,
    least_squares,
    long_counts,
    measurements,
    timing,
)
from costmodel.compare import percentile
from costmodel.counts import for_plan
from costmodel.cross_validation import Problem, fold_of, validate
from costmodel.gpus import load
from costmodel.measurements import Row
from monarch import Plan

GPU = "h200-sxm"
MEDIAN, P90, REGRET = 0.10, 0.25, 1.05
"""What is asked of the model, over all committed rows."""
FOUND = comparisons.compare_all(GPU)


def ours(op: str) -> list[Row]:
    """Rows of GPU time of this project's kernels."""
    rows = measurements.read(GPU, op=op)
    return [row for row in rows if row.ours and not row.provider_variant.startswith("host")]


# ---- all rows ------------------------------------------------------------------------------------------------
def test_every_measured_operation_is_compared() -> None:
    assert set(comparisons.OPERATIONS) == set(measurements.CASE_KEYS)
    with pytest.raises(ValueError, match=r"op: got 'softmax'; accepted: fftconv, .*conv2d"):
        comparisons.compare(GPU, "softmax")


@pytest.mark.parametrize("op", comparisons.OPERATIONS)
def test_no_row_of_ours_is_left_out(op: str) -> None:
    assert [pair.row for pair in FOUND[op].pairs] == ours(op)


@pytest.mark.parametrize("op", comparisons.OPERATIONS)
def test_errors_are_within_what_is_asked(op: str) -> None:
    summary = FOUND[op].summary()
    assert summary["median_abs_rel_error"] <= MEDIAN and summary["p90_abs_rel_error"] <= P90


def test_errors_over_all_rows() -> None:
    errors = [abs(pair.relative_error) for one in FOUND.values() for pair in one.pairs]
    assert len(errors) > 1000
    assert percentile(errors, 50) <= MEDIAN and percentile(errors, 90) <= P90


def test_regrets_are_within_what_is_asked() -> None:
    regrets: dict[str, list[float]] = {}
    for one in FOUND.values():
        for decision in one.decisions:
            regrets.setdefault(decision.kind, []).append(decision.regret)
    assert set(regrets) == {"order", "tile", "splits", "thresholds"}
    for kind, values in regrets.items():
        assert percentile(values, 95) <= REGRET, kind


# ---- cross-validation ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("problem", cross_validation.problems(GPU), ids=lambda problem: problem.op)
def test_cases_left_out_of_the_fit(problem: Problem) -> None:
    """Predicted within what is asked too, and fitted again they are not worse than as the code has them."""
    found = validate(problem)
    own = [pair.row.median_us for pair in FOUND[problem.op].pairs]
    assert np.allclose(problem.measured, own)
    shown = [abs(pair.relative_error) for pair in FOUND[problem.op].pairs]
    assert np.allclose(found.as_is, shown, atol=1e-9), "the problem is another model than the comparison's"
    assert percentile(found.left_out, 50) <= MEDIAN and percentile(found.left_out, 90) <= P90


def made(noise: float = 0.0, groups: int = 6) -> Problem:
    """Times that are 2 a + 0.5 b, of random a and b."""
    rng = np.random.default_rng(0)
    parts = rng.uniform(1, 9, (30, 2))
    times = parts @ np.array([2.0, 0.5]) * np.exp(noise * rng.standard_normal(30))
    return Problem("made", ("a", "b"), lambda f: parts @ f, times, [i % groups for i in range(30)])


def test_factors_are_found() -> None:
    found = validate(made())
    assert found.folds == 6
    assert found.factors == pytest.approx({"a": 2.0, "b": 0.5}, rel=0.01)
    assert max(found.left_out) < 0.01 < 0.2 < percentile(found.as_is, 50)


def test_what_was_left_out_is_harder() -> None:
    found = validate(made(noise=0.1))
    assert np.mean(found.fitted) < np.mean(found.left_out)


def test_left_out_cases_do_not_help() -> None:
    """A group whose times follow another law is predicted by the others' law."""
    problem = made(groups=5)
    odd = np.array([group == 3 for group in problem.groups])
    found = validate(replace(problem, measured=np.where(odd, 3 * problem.measured, problem.measured)))
    assert np.all(np.array(found.left_out)[odd] > 0.5)


def test_groups_stay_together() -> None:
    groups = ["a", "b", "a", "c", "d", "b"]
    fold = fold_of(groups, 3)
    assert list(fold) == [0, 1, 0, 2, 0, 1]
    with pytest.raises(ValueError, match="made: got one group of cases; accepted: two or more"):
        validate(made(groups=1))


def test_the_command_prints_every_operation(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_validation, "problems", lambda gpu: [made()])
    monkeypatch.setattr("costmodel.fit.points_of", lambda gpu: [])
    assert cross_validation.main(["--format", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].startswith("made,30,")


def test_the_command_writes_its_table_into_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    page, readme = tmp_path / "docs" / "cost-model.md", tmp_path / "README.md"
    page.write_text(
        "Before.\n\n<!-- cross-validation: begin -->\nold\n<!-- cross-validation: end -->\nAfter.\n"
    )
    readme.write_text("<!-- left-out: begin -->\n<!-- left-out: end -->\n")
    monkeypatch.setattr(cross_validation, "ROOT", tmp_path)
    monkeypatch.setattr(cross_validation, "problems", lambda gpu: [made()])
    monkeypatch.setattr("costmodel.fit.points_of", lambda gpu: [])
    assert cross_validation.main(["--write"]) == 0
    text = page.read_text()
    assert "| made | 30 |" in text and "\nold\n" not in text
    assert text.startswith("Before.") and text.endswith("After.\n")
    errors = validate(made()).left_out
    most = f"{100 * percentile(errors, 90):.1f} %"
    assert readme.read_text().splitlines()[2].endswith(f"nine in ten of them by at most {most}.")


def test_few_cases_of_another_kind_do_not_decide() -> None:
    """A tenth of the cases takes three times as long: the others are still predicted as if it were not there."""
    problem = made(groups=10)
    odd = np.array([group == 3 for group in problem.groups])
    found = validate(replace(problem, measured=np.where(odd, 3 * problem.measured, problem.measured)))
    assert percentile(found.fitted, 50) < 0.03
    residuals = np.array([-30.0, -1.5, 0.0, 2.0, 30.0])
    assert least_squares.loss(residuals, 2.0) == 2 * (4 * 30 - 4) + 2.25 + 4
    assert least_squares.loss(residuals, np.inf) == np.sum(residuals**2)


# ---- what a row says -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("judge", "op", "change", "message"),
    [
        (compare_conv2d.judge, "conv2d", {"note": "by hand"}, "note: got 'by hand'; accepted: .*32x32"),
        (compare_conv2d.judge, "conv2d", {"note": "tiles 8x8, 1"}, r"tile: accepted for this layer are"),
        (compare_gradients.judge, "fftconv_gradients", {"provider": "ours:du"}, "accepted: ours with .*dk"),
        (compare_decode.judge, "decode_step", {"provider": "ours:fast"}, "accepted: torch, ours:none"),
    ],
)
def test_rows_that_are_not_understood(judge: Any, op: str, change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        judge([replace(ours(op)[0], **change)], load(GPU))


# ---- counts of what is beside the fused kernels --------------------------------------------------------------
def test_spectra_with_zeros_spare_what_lies_between_the_stages() -> None:
    plan = Plan(2**21, (16, 16, 16, 16, 32))
    full = for_plan(plan, 8, 32, capacity_bytes=232448)
    half = long_counts.with_rows(full, plan, 128)
    between = full.stages[1].device_bytes / 2
    outer = full.stages[0].device_write_bytes / 2 + full.stages[2].device_read_bytes / 2
    assert full.device_bytes - half.device_bytes == pytest.approx(between + outer)
    assert half.stages[0].mma_flops == full.stages[0].mma_flops
    assert long_counts.with_rows(full, plan, 256).device_bytes == full.device_bytes
    for rows, wrong in ((0, plan), (257, plan), (4, Plan(1024, (32, 32)))):
        with pytest.raises(ValueError, match=f"rows: got {rows}"):
            long_counts.with_rows(full, wrong, rows)


def test_windows_overlap_by_the_filter() -> None:
    assert long_counts.windows(1000, 1, 100) == 10
    assert long_counts.windows(1000, 100, 100) == 1000
    with pytest.raises(ValueError, match="taps: got 101 for tiles of 100"):
        long_counts.windows(1000, 101, 100)


def test_gradients_take_what_they_are_made_of() -> None:
    """A convolution for each gradient beside the filter's, and a filter's transform for each spectrum."""
    gpu = load(GPU)
    inputs = timing.inputs_of(gpu)
    case: dict[str, Any] = {"n": 12288, "length": 12288, "batch": 64, "channels": 768, "gpu": gpu}

    def seconds(**other: Any) -> float:
        return gradient_time.seconds(gradient_time.work(**case, **other), gpu, inputs)

    alone, both = seconds(needs=("k",)), seconds(needs=("u", "k"), prepared=True)
    one = timing.seconds(for_plan(Plan(12288, (48, 16, 16)), 64, 768, capacity_bytes=232448), gpu, inputs)
    assert both - alone == pytest.approx(one)
    assert seconds(needs=("u", "k")) > both
    assert seconds(gated=True, prepared=True) > seconds(gated=True, needs=("u", "k"), prepared=True) + one
    with pytest.raises(ValueError, match="needs: got u; accepted: k, and others"):
        gradient_time.work(**case, needs=("u",))
    with pytest.raises(ValueError, match="N: got 1000; accepted: 256"):
        gradient_time.work(**case | {"n": 1000, "length": 1000})


@pytest.mark.parametrize("n", [256, 4096])
def test_gradients_of_one_kernel_share_transforms(n: int) -> None:
    """All at once is less than each by itself; a postgate's gradient is one more transform."""
    gpu = load(GPU)
    case: dict[str, Any] = {"n": n, "length": n, "batch": 64, "channels": 768, "gpu": gpu}
    alone, both = (gradient_time.work(**case, needs=needs) for needs in (("k",), ("u", "k")))
    assert (both.convolutions, both.twice, both.filters) == (0, 0, 1)
    assert alone.sums.mma_flops < both.sums.mma_flops < alone.sums.mma_flops + both.convolution.mma_flops
    gated = gradient_time.work(**case, gated=True)
    assert (gated.convolutions, gated.filters) == (0, 2)
    assert gated.sums.transforms == both.sums.transforms * 4 // 3
    some = gradient_time.work(**case, gated=True, needs=("u", "k"))
    assert some.convolutions == 1


@pytest.mark.parametrize("length", [256, 1024, 4096, 16384, 65536])
def test_shares_are_those_of_the_kernels(length: int) -> None:
    from kernels_numba.filter_sums import FilterGradient

    gradient = FilterGradient((64, 768, length), taps=length, mode="circular", dtype="fp16")
    parts = gradient.spec().parts
    for workers in (132, 264, 1056, 5000):
        assert gradient_time.shares(workers, parts, 32, 768) == gradient.shares(workers, parts)[0]
