"""The sections of the report: from findings to HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from costmodel import demo, report_figures, report_instruments, timing, units
from costmodel.compare import percentile
from costmodel.decode_attention import FITTED_GPU, RELATIVE_ERROR, RELATIVE_ERROR_ELSEWHERE
from costmodel.gpus import GPU
from costmodel.models import models
from costmodel.report_findings import HEAD_SIZE, HEADS, KEYS, Findings
from costmodel.report_html import Html, bullets, paragraph, picture, table
from costmodel.report_measured import measured

SHOWN_KEYS = KEYS[::2]
FIGURE_LAYER = ("llama2-7b", "o")
UNITS = (
    ("_bytes_per_s", "B/s"),
    ("_flops_per_s", "flop/s"),
    ("_mhz", "MHz"),
    ("_us", "us"),
    ("_bytes", "bytes"),
)


def _summary(found: Findings) -> list[str]:
    gpu, forecasts = found.gpu, found.forecasts
    run = [f.inputs["N"] for f in forecasts if f.best.has_kernel]
    over = [f.best.time_s / f.floor_s for f in forecasts]
    m1, m2 = ([body[key] for body in found.layers] for key in ("M1", "M2"))
    small, large = found.splits[0], found.splits[-1]
    kinds = [_kind(i.origin) for i in timing.inputs_of(gpu).values()]
    texts: list[object] = [
        demo.conclusion({gpu.slug: forecasts}, [found.comparison]),
        f"A kernel of this project runs the best plan at {len(run)} of {len(forecasts)} lengths: "
        f"{report_figures.describe_lengths(run)}.",
        f"The best plan takes {units.ratio(min(over))} to {units.ratio(max(over))} times the memory floor, the time in "
        "which input and output cross device memory once.",
        f"Linear layers of {len(models())} models: the flat product is ahead of vector products from M1 = "
        f"{_range(m1)} rows, the full product from M2 = {_range(m2)}.",
        "Decode attention, "
        + " and ".join(
            f"B={s.batch}, {s.heads}/{s.kv_heads} heads, L={units.short(s.length)}: {_count(s.splits, 'split')}, "
            f"{units.microseconds(s.time_us)}"
            for s in (small, large)
        )
        + ".",
        f"Of the {len(kinds)} numbers that a convolution's prediction rests on, {kinds.count('measured')} were "
        f"measured on this GPU, {kinds.count('fitted here')} fitted to its measurements, {kinds.count('data sheet')} "
        f"are from the data sheet, and {kinds.count('assumed')} are assumed.",
    ]
    for judged in found.judged:
        s = judged.summary
        texts.append(
            f"Measured, {judged.op}: {_count(s['cases'], 'case')}, median error {s['median_abs_rel_error']:.1%}, "
            f"p90 {s['p90_abs_rel_error']:.1%}."
        )
    if found.fit and found.fit.left_out:
        fitted, unseen = (
            f"median {percentile(errors, 50):.1%}, p90 {percentile(errors, 90):.1%}"
            for errors in (found.fit.errors, found.fit.left_out)
        )
        texts.append(
            f"The error of fftconv's fit is {fitted}; on lengths that the fit has not seen (cross-validated) {unseen}."
        )
    out = [bullets(texts)]
    if not found.judged:
        out.insert(0, _nothing_measured(gpu))
    return out


def _nothing_measured(gpu: GPU) -> str:
    return paragraph(
        f"No kernel was measured on {gpu.slug}: everything below is predicted, and nothing here was compared with a "
        "measured time. The section on measured times says how to measure.",
        kind="warn",
    )


def _range(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _named(key: str, value: float) -> tuple[str, str]:
    """A key of a GPU file and its value as words and a number with its unit."""
    for ending, unit in UNITS:
        if key.endswith(ending):
            name = key.removesuffix(ending).replace("_", " ")
            if unit in ("B/s", "flop/s"):
                return name, units.quantity(value, unit)
            if unit == "bytes" and value % 1024 == 0 and value < 2**30:
                return name, f"{value / 2**20:.4g} MiB" if value >= 2**20 else f"{value / 1024:.4g} KiB"
            return name, units.quantity(value, "B") if unit == "bytes" else f"{value:g} {unit}"
    return key.replace("_", " "), f"{value:g}"


def _kind(origin: str) -> str:
    """Where a number of `timing.inputs_of` is from; what was found on another GPU is assumed to hold on this one."""
    if origin.startswith("measured"):
        return "measured"
    if origin.startswith("fitted to"):
        return "fitted here"
    if origin == "data sheet" or origin.startswith("SMs x"):
        return "data sheet"
    return "assumed"


def _mark(kind: str) -> str:
    return Html(f'<span class="assumed">{kind}</span>') if kind == "assumed" else kind


def _gpu(gpu: GPU) -> list[str]:
    out = [
        table(
            ("value", "is", "source"),
            [
                (*_named(key, value), gpu.spec_sources.get(key, gpu.spec_source))
                for key, value in gpu.spec.items()
            ],
            caption=f"Data sheet ({gpu.spec_date})",
        ),
        paragraph(f"Source: {gpu.spec_source}.", kind="note"),
    ]
    if gpu.measured:
        rows = [
            (*_named(key, m.median), m.source + (f", driver {m.driver}" if m.driver else ""), m.date)
            for key, m in gpu.measured.items()
        ]
        out.append(
            table(("rate", "median", "source", "date"), rows, caption="Measured rates", wide=("source",))
        )
        out += report_instruments.curves(gpu)
    else:
        out.append(
            paragraph("No rate was measured on this GPU: predictions rest on its data sheet.", kind="warn")
        )
    inputs: list[Sequence[object]] = []
    for key, value in timing.inputs_of(gpu).items():
        name, text = _input(key, value.value)
        spread = f"{value.relative_uncertainty:.1%}" if value.relative_uncertainty else "-"
        inputs.append((name, text, spread, _mark(_kind(value.origin)), _origin(gpu, key, value.origin)))
    out.append(
        table(
            ("number", "value", "+-", "is", "source"),
            inputs,
            caption="What a convolution's prediction rests on",
            wide=("source",),
        )
    )
    error = _attention_error(gpu)
    place = "this GPU" if gpu.slug == FITTED_GPU else "another GPU, so they are assumed here"
    out.append(
        paragraph(
            "Linear layers and decode attention use the rates above and factors of their kernels that stand in the "
            f"program and were found on {FITTED_GPU}, {place}; the error of attention's times is taken as {error:.1%}.",
            kind="note",
        )
    )
    return out


def _attention_error(gpu: GPU) -> float:
    return RELATIVE_ERROR if gpu.slug == FITTED_GPU else RELATIVE_ERROR_ELSEWHERE


_RATE_UNITS = {"memory": "B/s", "shared": "B/s", "l2": "B/s", "tensor": "flop/s", "fp32": "flop/s"}


def _input(key: str, value: float) -> tuple[str, str]:
    resource, _, last = key.rpartition("_")
    if last == "rate":
        return key.replace("_", " "), units.quantity(value, _RATE_UNITS.get(resource, " instructions/s"))
    return _named(key, value)


_RATIOS = {"memory_rate": "memory_fraction_of_spec", "tensor_rate": "tensor_fraction_of_spec"}


def _origin(gpu: GPU, key: str, origin: str) -> str:
    """The source of an input; of a data-sheet value times a ratio, the ratio's too; of a factor, its date."""
    if origin.startswith("data sheet x"):
        return f"{origin}: {gpu.model[_RATIOS[key]].source}"
    return f"{origin} ({gpu.model[key].date})" if key in gpu.model else origin


def _sizes() -> str:
    return f"B={demo.BATCH} sequences, H={demo.CHANNELS} channels, {demo.DTYPE}, {demo.VARIANT}"


def _order(found: Findings) -> list[str]:
    return [
        paragraph(
            f"FFT convolution, {_sizes()}: the plan with the least predicted time among orders 2, 3 and 4, and above "
            "64K those of 5 and 6 that kernels run. A plan is a factor list of N (half: of N/2, one "
            "sequence at a time). Where no kernel exists the work is counted from the idea of one: take that with care."
        ),
        picture(
            report_figures.order_figure(found.forecasts),
            "order",
            "Best order by transform length N (above; filled where a kernel of this project runs the plan), and by how "
            "many percent the best plan of another order is slower (below; grey where that is inside the interval).",
        ),
        table(
            demo.PREDICTED,
            demo.predicted_rows(found.forecasts),
            caption="Best plan of each length, predicted",
        ),
        *(paragraph(text, kind="note") for text in demo.footnotes({found.gpu.slug: found.forecasts})),
        bullets(f"{name}: {demo.LEGEND[name]}" for name in demo.PREDICTED if name in demo.LEGEND),
    ]


def _floor(found: Findings) -> list[str]:
    measured = found.known.ours()
    peers = {name: times for name in demo.PEERS if (times := found.known.peer(name))}
    out = [
        paragraph(
            f"FFT convolution, {_sizes()}. The memory floor is the time that input and output need to cross device "
            f"memory once at {units.quantity(timing.inputs_of(found.gpu)['memory_rate'].value, 'B/s')}."
        ),
        picture(
            report_figures.time_figure(found.forecasts, measured=measured),
            "time",
            "Time of one call by transform length N: predicted for the best plan with its interval, and the memory "
            + ("floor; stars were measured." if measured else "floor; nothing was measured on this GPU."),
        ),
        picture(
            report_figures.floor_figure(found.forecasts, measured=measured, peers=peers),
            "floor",
            "The same as multiples of the memory floor, by order; filled where a kernel exists.",
        ),
    ]
    rows = demo.measured_rows(found.known, found.comparison)
    if rows:
        newest = max(row.date for row in found.known.rows)
        out.append(table(demo.MEASURED, rows, caption=f"Beside what was measured (last on {newest})"))
        out.append(bullets(f"{name}: {demo.LEGEND[name]}" for name in demo.MEASURED if name in demo.LEGEND))
    return out


def _linear(found: Findings) -> list[str]:
    keys = ("model", "layer", "N", "K", "M1", "M2", "M1_measured", "M2_measured")
    name, layer = FIGURE_LAYER
    n, k = models()[name].linear[layer]
    measured = any(body["M1_measured"] or body["M2_measured"] for body in found.layers)
    return [
        paragraph(
            "A layer is x [M, K] times w [N, K] transposed. From M1 rows of x on the flat product is predicted ahead "
            "of vector products, from M2 on the full product of it (each at most one more than the kernel before "
            "takes)." + ("" if measured else " No layer was measured on this GPU.")
        ),
        table(
            [key.replace("_", " ") for key in keys],
            [[body[key] for key in keys] for body in found.layers],
            caption="Thresholds of the layers, in rows of x",
        ),
        picture(
            report_figures.linear_figure(n, k, found.gpu),
            "linear",
            f"Predicted time against rows M for layer {layer} of {models()[name].name}, N = {n}, K = {k} (lines); "
            + ("marks were measured; " if measured else "")
            + "vertical lines: M1 and M2.",
        ),
    ]


def _attention(found: Findings) -> list[str]:
    heads, kv_heads = HEADS[-1]
    error = _attention_error(found.gpu)
    rows = [
        (
            s.batch,
            f"{s.heads}/{s.kv_heads}",
            units.short(s.length),
            s.splits,
            units.microseconds(s.time_us),
            units.microseconds_between(s.time_us * (1 - error), s.time_us * (1 + error)),
            units.ratio(s.time_us / s.floor_us),
            "best" if s.splits == 1 else f"{s.unsplit_us / s.time_us - 1:+.0%}",
        )
        for s in found.splits
        if s.length in SHOWN_KEYS
    ]
    best = {(s.batch, s.length): s.splits for s in found.splits if (s.heads, s.kv_heads) == HEADS[-1]}
    return [
        paragraph(
            f"One query token, head size {HEAD_SIZE}, keys and values in half precision: over how many blocks the keys "
            "of a sequence are split for the least predicted time. Floor: keys and values read once."
        ),
        picture(
            report_figures.splits_figure(best),
            "splits",
            f"Best number of splits against the length L of the keys, {heads} query and {kv_heads} key heads, by "
            "batch B.",
        ),
        table(
            ("B", "heads", "L", "best splits", "time", "interval", "x floor", "one split"),
            rows,
            caption="Best number of splits, predicted (heads: query/key; one split: how much slower that is)",
        ),
    ]


SECTIONS: dict[str, tuple[str, Callable[[Findings], list[str]]]] = {
    "summary": ("Summary", _summary),
    "order": ("Best order by length", _order),
    "floor": ("Time and memory floor", _floor),
    "linear": ("Linear layers: M1 and M2", _linear),
    "attention": ("Decode attention: splits", _attention),
    "measured": ("Predicted against measured", measured),
    "gpu": ("The GPU's values", lambda found: _gpu(found.gpu)),
}
"""By the name that links lead to: title, and what writes the pieces below it."""
