"""Answers of the command line as text, one function per command and every format in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costmodel import measurements, render, units
from costmodel.compare import Comparison, Pair, plan_of
from costmodel.fftconv import ORDERS, Candidate, Forecast, plan_name
from costmodel.gpus import GPU
from costmodel.measurements import Row
from monarch import Plan


def us(seconds: float) -> str:
    """Seconds as text with a unit."""
    return units.microseconds(seconds * 1e6)


def interval(c: Candidate) -> str:
    """A candidate's interval, both ends in one unit."""
    return units.microseconds_between(c.time_low_s * 1e6, c.time_high_s * 1e6)


def forecasts(found: Sequence[Forecast], form: str, *, terms: bool = False) -> str:
    """One case with all its candidates (and, with ``terms``, what each spends on what), or the best of several."""
    first = found[0]
    if form == "json":
        cases = [_case(f) for f in found]
        inputs = dict(first.inputs)
        if len(found) == 1:
            return render.document("predict", gpu=first.gpu.describe(), **cases[0])
        for key in ("N", "B", "H", "L"):
            inputs[key] = sorted({f.inputs[key] for f in found})
        inputs.pop("wanted")
        return render.document("predict-sweep", inputs=inputs, gpu=first.gpu.describe(), cases=cases)
    if form == "csv":
        return _csv(found)
    if len(found) == 1:
        return _one(first, form, terms)
    return _sweep(found, form)


def _case(f: Forecast) -> dict[str, Any]:
    return {
        "inputs": f.inputs,
        "best": f.best.as_dict(),
        "candidates": [c.as_dict() for c in f.candidates],
        "floor_us": f.floor_s * 1e6,
        "tie": f.tie,
        "conclusion": f.conclusion(),
        "notes": list(f.notes),
    }


def _csv(found: Sequence[Forecast]) -> str:
    shape = ("N", "B", "H", "L", "dtype", "variant", "model")
    keys = ("plan", "order", "packing", "kernel", "time_us", "time_low_us", "time_high_us", "bound", "margin")
    rows = []
    for f in found:
        for c in f.candidates:
            values = c.as_dict()
            cells = [f"{values[k]:.6g}" if isinstance(values[k], float) else values[k] for k in keys]
            rows.append([f.gpu.slug, *(f.inputs[k] for k in shape), *cells, f"{f.floor_s * 1e6:.6g}"])
    return render.rows_as("csv", ["gpu", *shape, *keys, "floor_us"], rows)


def _title(f: Forecast, case: str) -> str:
    i = f.inputs
    return f"fftconv {i['variant']} {i['dtype']} on {f.gpu.slug}: {case}, {i['model']} model"


def _one(f: Forecast, form: str, terms: bool) -> str:
    header = ["plan", "order", "kernel", "time", "low", "high", "slower by", "bound by"]
    rows = []
    for number, c in enumerate(f.candidates):
        margin = "best" if number == 0 else f"{c.margin:.0%}"
        times = [us(t) for t in (c.time_s, c.time_low_s, c.time_high_s)]
        kernel = "yes" if c.has_kernel else "no"
        rows.append([c.name, c.plan.order, kernel, *times, margin, c.bound])
    i = f.inputs
    title = _title(f, f"B={i['B']} H={i['H']} N={units.short(i['N'])}")
    text = [render.rows_as(form, header, rows, title=title)]
    if terms:
        rows = [[c.name, *(us(t) for t in c.terms_s.values())] for c in f.candidates]
        text.append(render.rows_as(form, ["plan", *f.best.terms_s], rows, title="Each term alone"))
    return "\n\n".join([*text, render.prose(f"Memory floor {us(f.floor_s)}. {f.conclusion()}", form)])


def _sweep(found: Sequence[Forecast], form: str) -> str:
    varied = [key for key in ("B", "H") if len({f.inputs[key] for f in found}) > 1]
    varied += (
        ["L"]
        if len({(f.inputs["N"], f.inputs["L"]) for f in found}) > len({f.inputs["N"] for f in found})
        else []
    )
    header = ["N", *varied, "best plan", "kernel", "time", "interval", "bound by"]
    header += [f"p={order}" for order in ORDERS]
    rows = []
    for f in found:
        b = f.best
        per_order = [_beside_the_best(f, order) for order in ORDERS]
        rows.append(
            [
                units.short(f.inputs["N"]),
                *(units.short(f.inputs[key]) if key == "L" else f.inputs[key] for key in varied),
                b.name,
                "yes" if b.has_kernel else "no",
                us(b.time_s),
                interval(b),
                b.bound,
                *per_order,
            ]
        )
    fixed = " ".join(f"{key}={found[0].inputs[key]}" for key in ("B", "H") if key not in varied)
    return render.rows_as(form, header, rows, title=_title(found[0], fixed or "each B, H and N"))


def _beside_the_best(f: Forecast, order: int) -> str:
    """How much slower an order's best plan is than the best of all; a tie is inside that one's interval."""
    c = f.best_of_order(order)
    if c is None or c is f.best:
        return "best" if c else "-"
    return f"+{c.margin:.0%}" + (" tie" if c.time_s < f.best.time_high_s else "")


def gpu_list(gpus: Sequence[GPU], form: str) -> str:
    """Every GPU with the figures that decide most."""
    if form == "json":
        listed = [
            {
                **g.describe(),
                "memory_bandwidth_bytes_per_s": g.spec["memory_bandwidth_bytes_per_s"],
                "fp16_tensor_flops_per_s": g.spec["fp16_tensor_flops_per_s"],
                "sm_count": int(g.spec["sm_count"]),
                "shared_memory_per_block_bytes": int(g.spec["shared_memory_per_block_bytes"]),
                "measured": sorted(g.measured),
            }
            for g in gpus
        ]
        return render.document("gpus", inputs={}, gpu=None, gpus=listed)
    if form == "csv":
        keys = (
            *("sm_count", "memory_bandwidth_bytes_per_s", "fp16_tensor_flops_per_s"),
            *("shared_memory_per_block_bytes", "l2_bytes"),
        )
        head = ("slug", "device_name", "compute_capability", *keys, "measured")
        lines = [
            [
                g.slug,
                g.device_names[0],
                g.compute_capability,
                *(f"{g.spec[k]:.10g}" for k in keys),
                " ".join(sorted(g.measured)),
            ]
            for g in gpus
        ]
        return render.rows_as(form, head, lines)
    header = ["slug", "device name", "cc", "SMs", "GB/s", "fp16 Tflop/s", "shared", "L2", "rates from"]
    rows = [
        [
            g.slug,
            _short(g.device_names[0].removeprefix("NVIDIA ")),
            g.compute_capability,
            int(g.spec["sm_count"]),
            f"{g.spec['memory_bandwidth_bytes_per_s'] / 1e9:.0f}",
            f"{g.spec['fp16_tensor_flops_per_s'] / 1e12:.4g}",
            f"{g.spec['shared_memory_per_block_bytes'] / 1024:.0f} KiB",
            f"{g.spec['l2_bytes'] / 2**20:.0f} MiB",
            "data sheet" if g.data_sheet_only else f"{len(g.measured)} measured",
        ]
        for g in gpus
    ]
    return render.rows_as(form, header, rows)


def _short(name: str, width: int = 17) -> str:
    """A name cut to the table's width; the other formats have it whole."""
    return name if len(name) <= width else name[: width - 2].rstrip() + ".."


def measured(rows: Sequence[Row], gpu: GPU, form: str) -> str:
    """Measured rows; ``csv`` is the measurement file's own form."""
    if form == "csv":
        return measurements.to_csv(rows).rstrip("\n")
    columns = measurements.HEADER.split(",")
    if form == "json":
        listed = [{key: getattr(row, key) for key in columns} for row in rows]
        return render.document("measurements", inputs={}, gpu=gpu.describe(), rows=listed)
    if not rows:
        return f"No measurements of {gpu.slug}."
    tables = []
    for op in dict.fromkeys(row.op for row in rows):
        own = [row for row in rows if row.op == op]
        header = [*case_keys(op), "type", "provider", "median", "p20 .. p80", "error"]
        cells = [
            [
                *case_cells(row),
                row.dtype,
                _provider(row),
                units.microseconds(row.median_us),
                units.microseconds_between(row.p20_us, row.p80_us),
                f"{row.rel_err:.1e}".replace("e-0", "e-"),
            ]
            for row in own
        ]
        dates = sorted({row.date for row in own})
        when = dates[0] if len(dates) == 1 else f"{dates[0]} .. {dates[-1]}"
        tables.append(render.rows_as(form, header, cells, title=f"{op} measured on {gpu.slug}, {when}"))
    return "\n\n".join(tables)


def _provider(row: Row) -> str:
    """Who was measured; where the kernels chose the plan themselves, with that plan."""
    plan = plan_of(row) if row.op == "fftconv" and row.ours and not row.provider_variant else None
    return f"{row.provider}: {plan_name(plan)}" if plan else row.provider


def case_keys(op: str) -> tuple[str, ...]:
    """The columns of a case: the variant first, if there is one."""
    keys = measurements.CASE_KEYS[op]
    return (*(k for k in keys if k == "variant"), *(k for k in keys if k != "variant"))


def case_cells(row: Row) -> list[int | str]:
    """The case of a row under `case_keys`."""
    case = row.case_values
    return [units.short(int(case[key])) if key in ("N", "L", "K") else case[key] for key in case_keys(row.op)]


def _plan_name(p: Pair) -> str:
    """A plan's name; of a linear layer, the kernel's and whether launches overlap (settings: the row's note)."""
    if isinstance(p.plan, Plan):
        return plan_name(p.plan)
    return p.row.provider_variant if p.row.op == "linear" else str(p.plan)


def comparisons(found: Comparison, others: Sequence[Comparison], form: str) -> str:
    """Predicted and measured time of every case, then the errors and the regret of each decision.

    ``others`` are operations that stand beside it: in JSON with their rows, else as sentences, in CSV not at all.
    """
    if form == "json":
        body = {one.op: {**one.summary(), "rows": _comparison_bodies(one)} for one in (found, *others)}
        return render.document("compare", inputs={}, gpu=found.gpu.describe(), operations=body)
    if form == "csv":
        bodies = _comparison_bodies(found)
        columns = ["case", "dtype", "provider", "plan", *_COMPARED_TIMES, "relative_error"]
        rows = [
            [
                *(body[key] for key in columns[:4]),
                *(f"{body[key]:.6g}" for key in _COMPARED_TIMES),
                f"{body['relative_error']:+.4f}",
            ]
            for body in bodies
        ]
        return render.rows_as(form, columns, rows)
    header, cells = comparison_rows(found)
    measured = [one for one in others if one.pairs]
    lines = [verdict(found), *(f"\n{one.op}: {verdict(one)}" for one in measured)]
    missing = [one.op for one in others if not one.pairs]
    if missing and found.pairs:
        lines.append(f"\nNot measured on {found.gpu.slug} yet: {', '.join(missing)}.")
    sentences = "\n".join(lines)
    if not cells:
        return sentences
    table = render.rows_as(form, header, cells, title=f"{found.op} on {found.gpu.slug}")
    return f"{table}\n\n{sentences}"


_COMPARED_TIMES = ("measured_us", "predicted_us", "predicted_low_us", "predicted_high_us")


def _comparison_bodies(found: Comparison) -> list[dict[str, Any]]:
    """Every case for JSON and CSV."""
    return [
        {
            "case": p.row.case,
            "dtype": p.row.dtype,
            "provider": p.row.provider,
            "plan": str(p.plan) if isinstance(p.plan, Plan | int) else _plan_name(p),
            "measured_us": p.row.median_us,
            "predicted_us": p.predicted_us,
            "predicted_low_us": p.low_us,
            "predicted_high_us": p.high_us,
            "relative_error": p.relative_error,
            "bound": p.bound,
        }
        for p in found.pairs
    ]


def comparison_rows(found: Comparison) -> tuple[list[str], list[list[int | str]]]:
    """Header and cells of predicted and measured times, one row for each case."""
    header = [*case_keys(found.op), "type", "plan", "ours", "model", "interval", "error"]
    return header, [
        [
            *case_cells(p.row),
            p.row.dtype,
            _plan_name(p),
            units.microseconds(p.row.median_us),
            units.microseconds(p.predicted_us),
            units.microseconds_between(p.low_us, p.high_us),
            f"{p.relative_error:+.0%}",
        ]
        for p in found.pairs
    ]


_DECISIONS = {
    "order": "which order",
    "splits": "how many splits",
    "tile": "which factors, which tile width",
    "thresholds": "where to change kernel",
}


def verdict(found: Comparison) -> str:
    """The errors and regrets in plain sentences."""
    s = found.summary()
    if not s["cases"]:
        return f"No {found.op} of ours was measured on {found.gpu.slug} yet, so there is nothing to compare."
    lines = [
        f"{s['cases']} cases: median absolute error {s['median_abs_rel_error']:.1%}, "
        f"p90 {s['p90_abs_rel_error']:.1%}; {s['inside_interval']:.0%} lie inside their interval."
    ]
    for kind, d in s["decisions"].items():
        if d["cases"]:
            lines.append(
                f"Decision {kind} ({_DECISIONS[kind]}): {d['cases']} case{'s' if d['cases'] > 1 else ''}, "
                f"p95 regret {d['regret_p95']:.3f} (1 is perfect)."
            )
    if len(lines) == 1:
        lines.append("No decision has two measured choices, so there is no regret to report.")
    else:
        lines += [
            f"Decision {kind} ({_DECISIONS[kind]}): no case was measured with two."
            for kind in (("order", "tile") if found.op == "fftconv" else ())
            if not s["decisions"][kind]["cases"]
        ]
    return "\n".join(lines)
