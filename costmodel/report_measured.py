"""The report's section that sets predictions beside measurements."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import median

from costmodel import report_figures, report_instruments
from costmodel.compare import percentile
from costmodel.decode_attention import FITTED_GPU
from costmodel.gpus import GPU
from costmodel.report_findings import OPERATIONS, Findings, Judged
from costmodel.report_html import paragraph, picture, table


def measured(found: Findings) -> list[str]:
    """Errors and regrets of every operation, their fits, counters, and every case folded away."""
    gpu = found.gpu
    missing = [op for op in OPERATIONS if op not in [j.op for j in found.judged]]
    out = []
    if found.judged:
        out += [
            paragraph(
                "Error: |predicted - measured| / measured, with the factors of the GPU file. Regret: the measured time "
                "of the predicted choice over that of the best measured choice (1 is perfect), over cases measured "
                "with at least two choices. The factors of all operations but decode_step were found on measurements "
                f"such as these (on {FITTED_GPU}), so there these are errors of a fit; cross-validated errors stand "
                "below them."
            ),
            *_error_tables(found.judged),
            picture(
                report_figures.error_figure({j.op: j.points for j in found.judged}),
                "error",
                "Predicted over measured time against measured time, every case.",
            ),
            *_fit(found),
            *report_instruments.counted(gpu),
        ]
        for j in found.judged:
            listing = table(j.header, j.cells, caption=f"{j.op}: every case")
            out.append(
                f"<details><summary>{escape(j.op)}: all {len(j.cells)} cases</summary>\n{listing}\n</details>"
            )
    else:
        out.append(
            paragraph(
                f"No kernel was measured on {gpu.slug} yet, so there is no error and no regret to show.",
                kind="warn",
            )
        )
    if missing:
        if found.judged:
            out.append(paragraph(f"Not measured on {gpu.slug} yet: {', '.join(missing)}.", kind="warn"))
        out += _how_to_measure(gpu, missing)
    return out


def _error_tables(judged: Sequence[Judged]) -> list[str]:
    errors, decisions = [], []
    for j in judged:
        s = j.summary
        inside = s.get("inside_interval")
        errors.append(
            (
                j.op,
                s["cases"],
                f"{s['median_abs_rel_error']:.1%}",
                f"{s['p90_abs_rel_error']:.1%}",
                "-" if inside is None else f"{inside:.0%}",
            )
        )
        for kind, regrets in j.regrets.items():
            figures = [median(regrets), *(percentile(regrets, q) for q in (90, 95)), max(regrets)]
            decisions.append((j.op, kind, len(regrets), *(f"{r:.3f}" for r in figures)))
        if not j.regrets:
            decisions.append((j.op, "none with two choices", 0, *["-"] * 4))
    return [
        table(
            ("operation", "cases", "median error", "p90 error", "inside interval"),
            errors,
            caption="Errors of times",
        ),
        table(
            ("operation", "decision", "cases", "median regret", "p90 regret", "p95 regret", "worst"),
            decisions,
            caption="Regrets of decisions",
        ),
    ]


def _fit(found: Findings) -> list[str]:
    """Fit and cross-validation of every operation."""
    rows, alone = [], []
    if found.fit:
        rows.append(_fit_row("fftconv", "each length", found.fit.errors, found.fit.left_out))
        alone += [] if found.fit.left_out else ["fftconv"]
    rows += [_fit_row(v.op, f"one of {v.folds} parts", v.fitted, v.left_out) for v in found.validations]
    if not rows:
        return []
    out = [
        table(
            (
                "operation",
                "cases",
                "fit: median",
                "p90",
                "cross-validated: median",
                "p90",
                "left out in turn",
            ),
            rows,
            caption="Fit and cross-validation, fitted anew",
        )
    ]
    if found.fit:
        factors = ", ".join(
            f"{key} {value:.4g} (+- {found.fit.uncertainties[key]:.0%})"
            for key, value in found.fit.factors.items()
        )
        out.append(paragraph(f"Factors of the fit of fftconv: {factors}.", kind="note"))
    if alone:
        out.append(
            paragraph("Only one length was measured, so nothing could be cross-validated.", kind="note")
        )
    return out


def _fit_row(op: str, what: str, fitted: Sequence[float], left_out: Sequence[float]) -> list[str]:
    figures = [
        f"{percentile(errors, q):.1%}" if errors else "-" for errors in (fitted, left_out) for q in (50, 90)
    ]
    return [op, str(len(fitted)), *figures, what]


def _how_to_measure(gpu: GPU, ops: Sequence[str]) -> list[str]:
    commands = [
        "python -m costmodel.measure_decode"
        if op == "decode_step"
        else f"python -m costmodel measure --op {op}"
        for op in ops
    ]
    if "fftconv" in ops:
        commands.append(f"python -m costmodel.fit --gpu {gpu.slug} --write")
    commands.append(f"python -m costmodel report --gpu {gpu.slug}")
    return [
        paragraph(
            f"To measure, on a machine whose GPU is a {gpu.device_names[0]}, with this project and its gpu extra (the "
            "GPU's file must be among those that `python -m costmodel gpus` lists):"
        ),
        f"<pre>{escape(chr(10).join(commands))}</pre>",
    ]
