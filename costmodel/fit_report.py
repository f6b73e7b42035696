"""The factors of the convolution's time law and its errors by kernel, as the documents show them."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel import compare, render, timing
from costmodel.compare import Pair, percentile
from costmodel.counts import Counts
from costmodel.fit import FITTED, FITTED_FP32
from costmodel.gpus import GPU, load

MEANING = {
    "stages_per_worker": "$k$: stages of one worker at once",
    "half_rate_warps": "$W_{1/2}$: warps with which pipes reach half of their rates",
    "issue_fraction": "{issued:.1f} instructions issued for each that is counted",
    "l2_fraction": "{l2_terabytes:.1f} TB/s",
    "launch_us": "start, first fetch, last blocks alone",
    "fp32_half_rate_warps": "as $W_{1/2}$, of fp32 kernels",
    "fp32_issue_fraction": "{fp32_issued:.1f} instructions issued for each flop; fused multiply-adds make it fewer",
}
KINDS = ("plain", "causal", "gated", "causal-gated")


def factors(gpu: GPU) -> list[tuple[str, str, str, str]]:
    """Every fitted factor of a GPU's file: its name, value, uncertainty and what it says."""
    words = {
        "issued": 1 / gpu.model["issue_fraction"].value,
        "fp32_issued": 1 / gpu.model["fp32_issue_fraction"].value,
        "l2_terabytes": timing.inputs_of(gpu)["l2_rate"].value * gpu.model["l2_fraction"].value / 1e12,
    }
    return [
        (
            f"`{key}`",
            f"{gpu.model[key].value:.3g}",
            f"+- {gpu.model[key].relative_uncertainty:.0%}",
            MEANING[key].replace("{1/2}", "{{1/2}}").format(**words),
        )
        for key in (*FITTED, *FITTED_FP32)
    ]


def kernel_of(counts: Counts) -> str:
    """The kind of kernel that counts are of, in words."""
    if counts.stages and "filters" not in counts.source:
        return "outer stages" + (", fp32" if counts.arithmetic == "fp32" else "")
    return counts.source.partition(": ")[2].removeprefix("fused ")


def by_kernel(gpu: GPU) -> dict[str, list[Pair]]:
    """The measured convolutions of a GPU beside their predictions, by the kind of their kernel."""
    found: dict[str, list[Pair]] = {}
    for pair in compare.compare(gpu).pairs:
        found.setdefault(kernel_of(compare.counts_of(pair.row, pair.plan, gpu)), []).append(pair)
    return dict(sorted(found.items()))


def _case(pair: Pair) -> str:
    row = pair.row
    variant = row.case_values["variant"]
    words = [f"N = {row.case_values['N']}", str(variant) if variant != "plain" else "", row.dtype]
    name = "x".join(map(str, pair.plan.factors))
    return " ".join(word for word in words if word and word != "fp16") + f", {name}"


def errors(gpu: GPU) -> list[tuple[str, ...]]:
    """By kernel: cases, median and 90th percentile of the error, and the cases that are missed most to either side."""
    rows = []
    for name, pairs in by_kernel(gpu).items():
        off = sorted(pairs, key=lambda p: p.relative_error)
        ends = [f"{p.relative_error:+.0%} ({_case(p)})" for p in (off[0], off[-1])]
        some = [abs(p.relative_error) for p in pairs]
        rows.append(
            (name, str(len(pairs)), f"{percentile(some, 50):.1%}", f"{percentile(some, 90):.1%}", *ends)
        )
    return rows


def lines(gpu: str | GPU) -> list[str]:
    """Both tables as lines of Markdown."""
    chosen = load(gpu)
    first = render.rows_as("md", ("factor", "value", "", "what it says"), factors(chosen))
    header = ("kernel", "cases", "median", "p90", "most too fast", "most too slow")
    second = render.rows_as("md", header, errors(chosen))
    parts: Sequence[str] = (
        f"The file's factors were {chosen.model[FITTED[0]].source}.",
        "",
        first,
        "",
        second,
    )
    return "\n".join(parts).splitlines()
