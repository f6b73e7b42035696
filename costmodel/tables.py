"""Answers of the command line as text, one function per command and every format in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costmodel import measurements, render, units
from costmodel.compare import Comparison
from costmodel.fftconv import ORDERS, Forecast
from costmodel.gpus import GPU
from costmodel.measurements import Row


def us(seconds: float) -> str:
    """Seconds as text with a unit."""
    return units.microseconds(seconds * 1e6)


def forecasts(found: Sequence[Forecast], form: str) -> str:
    """One case with all its candidates, or several cases with the best plan of each."""
    first = found[0]
    if form == "json":
        cases = [_case(f) for f in found]
        inputs = dict(first.inputs)
        if len(found) == 1:
            return render.document("predict", gpu=first.gpu.describe(), **cases[0])
        for key in ("N", "B", "H"):
            inputs[key] = sorted({f.inputs[key] for f in found})
        for key in ("L", "wanted"):
            inputs.pop(key)
        return render.document("predict-sweep", inputs=inputs, gpu=first.gpu.describe(), cases=cases)
    if form == "csv":
        return _csv(found)
    if len(found) == 1:
        return _one(first, form)
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


def _title(f: Forecast, lengths: str) -> str:
    i = f.inputs
    case = f"B={i['B']} H={i['H']} N={lengths}"
    return f"fftconv {i['variant']} {i['dtype']} on {f.gpu.slug}: {case}, {i['model']} model"


def _one(f: Forecast, form: str) -> str:
    header = ["plan", "order", "kernel", "time", "low", "high", "slower by", "bound by", *f.best.terms_s]
    rows = []
    for number, c in enumerate(f.candidates):
        margin = "best" if number == 0 else f"{c.margin:.0%}"
        times = [us(t) for t in (c.time_s, c.time_low_s, c.time_high_s)]
        kernel = "yes" if c.has_kernel else "no"
        alone = (us(t) for t in c.terms_s.values())
        rows.append([c.name, c.plan.order, kernel, *times, margin, c.bound, *alone])
    table = render.rows_as(form, header, rows, title=_title(f, units.short(f.inputs["N"])))
    gap = "\n" if form == "table" else "\n\n"
    return f"{table}{gap}Memory floor {us(f.floor_s)}. {f.conclusion()}"


def _sweep(found: Sequence[Forecast], form: str) -> str:
    header = [
        "N",
        "B",
        "H",
        "best plan",
        "order",
        "kernel",
        "time",
        "low",
        "high",
        "x floor",
        "bound by",
        "margin",
    ]
    header += [f"p={order}" for order in ORDERS]
    rows = []
    for f in found:
        b = f.best
        margin = f"{b.margin:.0%}" + (" tie" if f.tie else "")
        per_order = [f.best_of_order(order) for order in ORDERS]
        rows.append(
            [
                units.short(f.inputs["N"]),
                f.inputs["B"],
                f.inputs["H"],
                b.name,
                b.plan.order,
                "yes" if b.has_kernel else "no",
                *(us(t) for t in (b.time_s, b.time_low_s, b.time_high_s)),
                f"{b.time_s / f.floor_s:.2f}",
                b.bound,
                margin,
                *(us(c.time_s) if c else "-" for c in per_order),
            ]
        )
    return render.rows_as(form, header, rows, title=_title(found[0], "sweep"))


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
    header = [
        "slug",
        "device name",
        "cc",
        "SMs",
        "memory",
        "tensor fp16",
        "shared/block",
        "L2",
        "measured rates",
    ]
    rows = [
        [
            g.slug,
            g.device_names[0],
            g.compute_capability,
            int(g.spec["sm_count"]),
            units.quantity(g.spec["memory_bandwidth_bytes_per_s"], "B/s"),
            units.quantity(g.spec["fp16_tensor_flops_per_s"], "flop/s"),
            f"{g.spec['shared_memory_per_block_bytes'] / 1024:.0f} KiB",
            f"{g.spec['l2_bytes'] / 2**20:.0f} MiB",
            len(g.measured) or "none: data sheet only",
        ]
        for g in gpus
    ]
    return render.rows_as(form, header, rows)


def measured(rows: Sequence[Row], gpu: GPU, form: str) -> str:
    """Measured rows; ``csv`` is the measurement file's own form."""
    if form == "csv":
        return measurements.to_csv(rows).rstrip("\n")
    columns = measurements.HEADER.split(",")
    if form == "json":
        listed = [{key: getattr(row, key) for key in columns} for row in rows]
        return render.document("measurements", inputs={}, gpu=gpu.describe(), rows=listed)
    shown = [c for c in columns if c not in ("op", "bytes_min", "flops", "commit")]
    cells = [
        [f"{v:.4g}" if isinstance(v := getattr(row, key), float) else v for key in shown] for row in rows
    ]
    return render.rows_as(form, shown, cells, title=f"measured on {gpu.slug}")


def comparison(found: Comparison, form: str) -> str:
    """Predicted and measured time of every case, then the errors and the regret of each decision."""
    if form == "json":
        rows = [
            {
                "case": p.row.case,
                "dtype": p.row.dtype,
                "provider": p.row.provider,
                "plan": str(p.plan),
                "measured_us": p.row.median_us,
                "predicted_us": p.predicted_us,
                "predicted_low_us": p.low_us,
                "predicted_high_us": p.high_us,
                "relative_error": p.relative_error,
                "bound": p.bound,
            }
            for p in found.pairs
        ]
        body = {found.op: {**found.summary(), "rows": rows}}
        return render.document("compare", inputs={}, gpu=found.gpu.describe(), operations=body)
    header = ["case", "dtype", "provider", "plan", "measured us", "predicted us", "low us", "high us"]
    header.append("error")
    figure = (lambda value: f"{value:.6g}") if form == "csv" else units.digits
    cells = [
        [
            p.row.case,
            p.row.dtype,
            p.row.provider,
            "x".join(map(str, p.plan.factors)),
            figure(p.row.median_us),
            figure(p.predicted_us),
            figure(p.low_us),
            figure(p.high_us),
            f"{p.relative_error:+.4f}" if form == "csv" else f"{p.relative_error:+.1%}",
        ]
        for p in found.pairs
    ]
    table = render.rows_as(form, header, cells, title=f"{found.op} on {found.gpu.slug}")
    if form == "csv":
        return table
    return f"{table}\n\n{verdict(found)}"


def verdict(found: Comparison) -> str:
    """The errors and regrets in plain sentences."""
    s = found.summary()
    if not s["cases"]:
        return f"No case of {found.op} was measured on {found.gpu.slug}."
    lines = [
        f"{s['cases']} cases: median absolute error {s['median_abs_rel_error']:.1%}, "
        f"p90 {s['p90_abs_rel_error']:.1%}; {s['inside_interval']:.0%} lie inside their interval."
    ]
    for kind, d in s["decisions"].items():
        if d["cases"]:
            lines.append(
                f"Decision {kind}: {d['cases']} cases, p95 regret {d['regret_p95']:.3f} (1 is perfect)."
            )
    if len(lines) == 1:
        lines.append("No decision has two measured choices, so there is no regret to report.")
    return "\n".join(lines)
