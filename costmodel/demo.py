"""The demo: predictions for N = 256 .. 4M on three GPUs, beside measurements, as a table and a picture.

``python -m costmodel demo``. With a GPU on this machine the kernels are timed now and those figures are
used for it; without one, the committed measurements are. Which of the two happened is always said.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel import compare as comparing
from costmodel import counts as counting
from costmodel import fftconv, measurements, render, tables, units
from costmodel.compare import Comparison
from costmodel.errors import UnknownGPUError
from costmodel.fftconv import Forecast, plan_name
from costmodel.gpus import GPU, by_device_name, load, local_device_name
from costmodel.measurements import Row

GPUS = ("h200-sxm", "h100-sxm", "a100-sxm-40gb")
PEERS = ("torch", "torch:half-io")
LENGTHS = tuple(2**e for e in range(8, 23))
BATCH, CHANNELS, DTYPE, VARIANT = 64, 768, "fp16", "plain"


@dataclass(frozen=True)
class Evidence:
    """Measured rows of one GPU, and how they came about."""

    slug: str
    rows: tuple[Row, ...]
    live: bool

    def ours(self) -> dict[int, float]:
        """{N: seconds} of our kernels in the demo's cases; the fastest plan of each N."""
        out: dict[int, float] = {}
        for row in self.rows:
            if row.ours and comparing.plan_of(row) is not None and _is_demo(row.case_values, row.dtype):
                n = int(row.case_values["N"])
                out[n] = min(out.get(n, float("inf")), row.median_us * 1e-6)
        return out

    def peer(self, provider: str) -> dict[int, float]:
        """{N: seconds} of another provider in the demo's cases, in whatever type it stores."""
        rows = [r for r in self.rows if r.provider == provider and _is_demo(r.case_values, DTYPE)]
        return {int(row.case_values["N"]): row.median_us * 1e-6 for row in rows}


def evidence(say: Any) -> tuple[list[GPU], dict[str, Evidence]]:
    """The GPUs to show and what was measured on each: live on this machine's GPU, else from the files."""
    gpus = [load(slug) for slug in GPUS]
    found = {g.slug: Evidence(g.slug, tuple(measurements.read(g.slug, op="fftconv")), False) for g in gpus}
    name = local_device_name()
    if name is None:
        say("No GPU on this machine: predictions stand beside the committed measurements.")
        return gpus, found
    try:
        here = by_device_name(name)
    except UnknownGPUError as error:
        say(f"This machine has a {name}, which has no GPU file, so nothing is timed here. {error}")
        return gpus, found
    say(f"This machine has a {name}: timing its kernels now.")
    from costmodel.measure import live

    rows = tuple(live(quick=True))
    if here.slug not in found:
        gpus.append(here)
    found[here.slug] = Evidence(here.slug, rows, True)
    return gpus, found


def forecasts(gpus: Sequence[GPU]) -> dict[str, list[Forecast]]:
    """The demo's predictions by slug, in the order of `LENGTHS`."""
    return {
        g.slug: [
            fftconv.predict(n, gpu=g, batch=BATCH, channels=CHANNELS, dtype=DTYPE, variant=VARIANT)
            for n in LENGTHS
        ]
        for g in gpus
    }


def predicted_rows(found: Sequence[Forecast]) -> list[list[str]]:
    """The best plan of each length, as in `PREDICTED`."""
    return [
        [
            units.short(f.inputs["N"]) + ("*" if too_large(f) else ""),
            f.best.name,
            "yes" if f.best.has_kernel else "no",
            tables.us(f.best.time_s),
            tables.interval(f.best),
            units.ratio(f.best.time_s / f.floor_s),
            f.best.bound,
            f"{f.best.margin:.0%}" + (" tie" if f.tie else ""),
        ]
        for f in found
    ]


def measured_rows(known: Evidence, judged: Comparison) -> list[list[str]]:
    """What was measured of each length, as in `MEASURED`: the measured plan that is predicted fastest."""
    torch = known.peer("torch")
    out = []
    for n in LENGTHS:
        here = [p for p in judged.pairs if _is_demo_case(p.row) and p.plan.n == n]
        if not here:
            continue
        chosen = min(here, key=lambda p: p.predicted_us)
        fastest = min(here, key=lambda p: p.row.median_us)
        several = len(here) > 1
        measured = chosen.row.median_us * 1e-6
        out.append(
            [
                units.short(n),
                plan_name(chosen.plan),
                tables.us(chosen.predicted_us * 1e-6),
                tables.us(measured),
                f"{round(chosen.relative_error, 2) + 0.0:+.0%}",
                plan_name(fastest.plan) if several else "only one",
                f"{chosen.row.median_us / fastest.row.median_us:.2f}" if several else "-",
                tables.us(torch[n]) if n in torch else "-",
                f"{torch[n] / measured:.1f}x" if n in torch else "-",
            ]
        )
    return out


def too_large(f: Forecast) -> bool:
    """Whether input and output do not fit in the GPU's memory at once."""
    i = f.inputs
    minimum = counting.bytes_minimum(
        i["L"], i["wanted"], i["B"], i["H"], dtype=i["dtype"], variant=i["variant"]
    )
    return minimum > f.gpu.spec["memory_bytes"]


def footnotes(by_gpu: dict[str, list[Forecast]]) -> list[str]:
    """What a reader of the tables must know: what does not fit, and which plans nothing runs yet."""
    found = [f for forecasts_of_one in by_gpu.values() for f in forecasts_of_one]
    out = []
    if any(too_large(f) for f in found):
        out.append("* more than the GPU's memory: the time is that of parts that fit, one after the other.")
    if not all(f.best.has_kernel for f in found):
        out.append(
            "kernel: no: nothing here runs that plan yet; its work is counted from the idea of a kernel."
        )
        for forecasts_of_one in by_gpu.values():
            other = [f for f in forecasts_of_one if not f.best.has_kernel and f.best_with_kernel is not None]
            if other:
                slug = other[0].gpu.slug
                names = ", ".join(
                    f"{c.name} at {units.short(f.inputs['N'])} ({c.margin:.0%} slower)"
                    for f in other
                    if (c := f.best_with_kernel) is not None
                )
                out.append(f"On the {slug} the fastest plan with a kernel is {names}.")
    return out


def _is_demo_case(row: Row) -> bool:
    return _is_demo(row.case_values, row.dtype)


def _is_demo(case: dict[str, int | str], dtype: str) -> bool:
    wanted = (BATCH, CHANNELS, case["N"], VARIANT, DTYPE)
    return (case["B"], case["H"], case["L"], case["variant"], dtype) == wanted


PREDICTED = ("N", "best plan", "kernel", "predicted", "interval", "x floor", "bound by", "margin")
MEASURED = ("N", "plan", "predicted", "measured", "error", "fastest", "regret", "torch", "vs torch")
LEGEND = {
    "kernel": "whether a kernel of this project runs the plan on this GPU",
    "interval": "one standard deviation to either side",
    "x floor": "predicted time over the time that input and output need to cross device memory once",
    "margin": "how much slower the best plan of another order is; tie: less than the interval",
    "plan": "of the plans that were measured, the one predicted fastest",
    "error": "predicted over measured time, minus 1",
    "fastest": "of the plans that were measured, the fastest",
    "regret": "measured time of the predicted choice over that of the fastest; 1.00 is perfect",
    "torch": "torch.fft with fp32 arrays, filter prepared, in the same run",
    "vs torch": "how much faster the plan is than that",
}


def show(console: Any, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one table; a terminal that is too narrow breaks its lines, but nothing is cut off."""
    console.print(title, style="bold", markup=False)
    console.print(render.rows_as("table", header, rows) + "\n", soft_wrap=True, markup=False)


def show_gpu(console: Any, gpu: GPU, found: Sequence[Forecast], known: Evidence, judged: Comparison) -> None:
    """Print what is predicted for one GPU and, where something was measured, that beside it."""
    rates = "rates from its data sheet only" if gpu.data_sheet_only else "rates measured"
    origin = "" if known.rows else "; nothing measured on it"
    title = f"{gpu.device_names[0]} ({gpu.slug}), predicted; {rates}{origin}"
    show(console, title, PREDICTED, predicted_rows(found))
    rows = measured_rows(known, judged)
    if rows:
        origin = "measured here and now" if known.live else f"measured {max(r.date for r in known.rows)}"
        show(console, f"{gpu.device_names[0]} ({gpu.slug}), {origin}, beside the prediction", MEASURED, rows)
    if judged.pairs:
        console.print(f"All that was measured, {tables.verdict(judged)}\n", markup=False)


def conclusion(by_gpu: dict[str, list[Forecast]], judged: Sequence[Comparison]) -> str:
    """One plain sentence: where the order changes on the first GPU, and how far to trust that."""
    slug, found = next(iter(by_gpu.items()))
    runs: list[tuple[int, int, int]] = []
    for f in found:
        n, order = f.inputs["N"], f.best.plan.order
        if runs and runs[-1][0] == order:
            runs[-1] = (order, runs[-1][1], n)
        else:
            runs.append((order, n, n))
    parts = [
        f"order {order} "
        + (f"at {units.short(a)}" if a == b else f"from {units.short(a)} to {units.short(b)}")
        for order, a, b in runs
    ]
    text = f"On the {slug} take {', '.join(parts)}"
    errors = [abs(p.relative_error) for c in judged for p in c.pairs]
    if not errors:
        return f"{text}; no kernel of ours was measured yet, so trust this as far as the intervals say."
    worst = comparing.percentile(errors, 90)
    text += f"; over {len(errors)} measured cases nine predictions in ten are off by {worst:.0%} or less"
    fitted = [c.gpu.model["model_error"] for c in judged if c.pairs]
    if any(f.source.startswith("fitted") for f in fitted):
        text += f" (two thirds of those of lengths left out of the fit by {max(f.value for f in fitted):.0%} or less)"
    regrets = [d.regret for c in judged for d in c.decisions]
    if regrets:
        text += f", and the worst choice between measured plans cost {max(regrets) - 1:.0%}"
    return text + "."


def main(*, folder: str | Path = "build/demo") -> int:
    """Run the demo; pictures go to ``folder``."""
    from rich.console import Console

    console = Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else render.PROSE_WIDTH, highlight=False
    )

    def say(text: str) -> None:
        console.print(text, markup=False)

    say(
        f"FFT convolution, B={BATCH} sequences, H={CHANNELS} channels, {DTYPE}: GPU time of one call by length N."
    )
    say("A plan is a factor list of N (half: of N/2, for one sequence at a time).")
    for name, meaning in LEGEND.items():
        say(f"  {name:<9} {meaning}")
    gpus, known = evidence(say)
    console.print()
    by_gpu = forecasts(gpus)
    judged = [comparing.judge(known[g.slug].rows, g) for g in gpus]
    for gpu, comparison in zip(gpus, judged, strict=True):
        show_gpu(console, gpu, by_gpu[gpu.slug], known[gpu.slug], comparison)
    for text in footnotes(by_gpu):
        say(text)
    _draw(by_gpu, known, Path(folder), say)
    say(conclusion(by_gpu, judged))
    return 0


def _draw(by_gpu: dict[str, list[Forecast]], known: dict[str, Evidence], folder: Path, say: Any) -> None:
    from costmodel import plots

    measured = {slug: e.ours() for slug, e in known.items()}
    peers = {slug: {name: times for name in PEERS if (times := e.peer(name))} for slug, e in known.items()}
    try:
        figure = plots.demo_figure(list(by_gpu.values()), measured=measured, peers=peers)
    except ValueError as error:
        say(f"No picture: {error}")
        return
    written = [plots.save(figure, folder / f"fftconv.{ending}") for ending in ("svg", "png")]
    say("Picture: " + " and ".join(str(path) for path in written))
