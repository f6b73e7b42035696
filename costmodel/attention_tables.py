"""``costmodel predict decode_attention``: split counts with their times, in every format of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costmodel import render, sensitivity, units
from costmodel.attention_counts import Shape
from costmodel.decode_attention import (
    FIGURES,
    Candidate,
    bound_of,
    candidates,
    floor_us,
    read_rate,
    relative_error,
    relative_rate,
    terms_us,
    total_us,
    work,
)
from costmodel.gpus import GPU, load
from costmodel.timing import BOUND_NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 6


def cases_of(
    *, batches: Sequence[int], heads: int, kv_heads: int, head_size: int, lengths: Sequence[int]
) -> list[dict[str, Any]]:
    """Every batch with every length."""
    return [
        {"op": "decode_attention", "B": b, "Hq": heads, "Hkv": kv_heads, "D": head_size, "L": length}
        for b in batches
        for length in lengths
    ]


def predict(gpu: str | GPU, form: str, cases: Sequence[dict[str, Any]]) -> str:
    """The best split counts of each case as text; one case as its own document, several as a list."""
    chosen = load(gpu)
    answers = [_answer(case, chosen) for case in cases]
    if form == "json":
        if len(answers) == 1:
            return render.document("predict", gpu=chosen.describe(), **answers[0], notes=list(chosen.notes))
        return render.document(
            "predict-sweep", inputs={}, gpu=chosen.describe(), cases=answers, notes=list(chosen.notes)
        )
    header = ["B", "Hq", "Hkv", "D", "L", "plan", "time_us", "time_low_us", "time_high_us", "bound", "margin"]
    if form == "csv":
        return render.rows_as(
            "csv", ["gpu", *header], [[chosen.slug, *line] for line in _lines(answers, text=False)]
        )
    titles = ["B", "Hq", "Hkv", "D", "L", "splits", "time", "low", "high", "slower by", "bound by"]
    table = render.rows_as(
        form,
        titles,
        list(_lines(answers, text=True)),
        title=f"decode_attention on {chosen.slug}, one query token",
    )
    if len(answers) > 1:
        return table
    return f"{table}\n\n{render.prose(answers[0]['conclusion'], form)}"


def explanations(gpu: GPU, cases: Sequence[dict[str, Any]]) -> str:
    """How the best time of every case comes about, with numbers."""
    return "\n\n".join(_explain(case, gpu) for case in cases)


def figure(gpu: GPU, cases: Sequence[dict[str, Any]]) -> Figure:
    """One case as bars of its split counts, several as a curve."""
    from costmodel.sweep_plots import Shown, figure_of

    found = []
    for case in cases:
        answer = _answer(case, gpu)
        shown = [
            Shown(
                _splits(c["splits"]),
                *(c["time_us"], c["time_low_us"], c["time_high_us"]),
                floor_us=answer["floor_us"],
            )
            for c in answer["candidates"]
        ]
        found.append(({name: case[name] for name in ("L", "B")}, shown))
    return figure_of(found, ("L", "B"), f"decode_attention on {gpu.slug}, one query token")


def _explain(case: dict[str, Any], gpu: GPU) -> str:
    best = _answer(case, gpu)["best"]
    shape = Shape(case["D"], case["Hq"] // case["Hkv"])
    sizes = {"batch": case["B"], "kv_heads": case["Hkv"], "length": case["L"]}
    done = work(shape, splits=best["splits"], gpu=gpu, **sizes)
    terms, rate = terms_us(done, relative_rate(gpu)), read_rate(gpu)
    share = FIGURES.sm_share + FIGURES.sm_share_per_row * done.rows
    us = {name: units.microseconds(term) for name, term in terms.items()}
    lines = [
        f"splits = {best['splits']}: {best['blocks']} blocks in {best['waves']} wave{'s' if done.waves > 1 else ''}",
        f"  memory   {done.nbytes:.4g} B / {rate:.4g} B/s = {us['memory']}",
        f"  one SM   {us['memory']} x {done.uneven:.3g} (the busiest SM's keys over the average) x "
        f"({FIGURES.sm_share:g} + {FIGURES.sm_share_per_row:g} x {done.rows} rows) = {us['memory']} x "
        f"{done.uneven * share:.3g} = {us['one SM']}",
        f"  waves    {us['memory']} x {FIGURES.unfair:g} / {done.waves} + {done.waves - 1} more x "
        f"{FIGURES.wave_us:g} us = {us['waves']}",
        "  joining  "
        + (
            f"{us['joining']} in a cluster of two blocks"
            if done.clustered
            else f"{FIGURES.reduction_us:g} us + {FIGURES.split_us:g} us x {done.splits} splits = {us['joining']}"
            if done.splits > 1
            else "nothing to join"
        ),
        f"  launch   {us['launch']}",
        f"t = launch + norm of order {FIGURES.norm:g} of (memory, one SM) + waves + joining = "
        f"{units.microseconds(best['time_us'])}",
    ]
    names = {"read rate": "read_bytes_per_s", "launch": "launch_us", "SM's share": "sm_share"}

    def evaluate(moved: dict[str, float]) -> float:
        figures = replace(FIGURES, **{names[name]: value for name, value in moved.items()})
        return float(total_us(terms_us(done, relative_rate(gpu), figures), figures))

    values = {name: float(getattr(FIGURES, key)) for name, key in names.items()}
    lines.append(sensitivity.sentence(sensitivity.sensitivities(evaluate, values)))
    between = units.microseconds_between(best["time_low_us"], best["time_high_us"])
    part, total = best["bound_share"] * best["time_us"], units.microseconds(best["time_us"])
    lines.append(
        sensitivity.bound_sentence(
            best["bound"], units.microseconds(part), best["bound_share"], total, between
        )
    )
    return "\n".join(lines)


def _lines(answers: Sequence[dict[str, Any]], *, text: bool) -> Iterator[list[Any]]:
    for answer in answers:
        shape = [answer["inputs"][key] for key in ("B", "Hq", "Hkv", "D", "L")]
        for number, c in enumerate(answer["candidates"] if len(answers) == 1 else answer["candidates"][:1]):
            times = [c["time_us"], c["time_low_us"], c["time_high_us"]]
            if text:
                shown = [units.microseconds(t) for t in times]
                slower = f"{c['margin']:.1%}" if number else "best"
                yield [*shape, c["splits"], *shown, slower, c["bound"]]
            else:
                yield [*shape, c["plan"], *(f"{t:.6g}" for t in times), c["bound"], f"{c['margin']:.6g}"]


def _answer(case: dict[str, Any], gpu: GPU) -> dict[str, Any]:
    """Inputs, the best split count and the next ones."""
    sizes = {"batch": case["B"], "kv_heads": case["Hkv"], "length": case["L"]}
    found = candidates(heads=case["Hq"], head_size=case["D"], gpu=gpu, **sizes)
    shape = Shape(case["D"], case["Hq"] // case["Hkv"])
    error = relative_error(gpu)

    def as_dict(c: Candidate) -> dict[str, Any]:
        terms = terms_us(work(shape, splits=c.splits, gpu=gpu, **sizes), relative_rate(gpu))
        bound = bound_of(shape, splits=c.splits, gpu=gpu, **sizes)
        part = c.time_us - max(terms["memory"], terms["one SM"]) if bound == "launching" else terms[bound]
        return {
            "plan": f"splits={c.splits}",
            "splits": c.splits,
            "time_us": c.time_us,
            "time_low_us": c.time_us * (1 - error),
            "time_high_us": c.time_us * (1 + error),
            "bound": BOUND_NAMES.get(bound, bound),
            "bound_share": part / c.time_us,
            "margin": c.margin,
            "blocks": c.blocks,
            "waves": c.waves,
        }

    shown = [as_dict(c) for c in found[:SHOWN]]
    floor = floor_us(head_size=case["D"], gpu=gpu, **sizes)
    best, other = shown[0], shown[1] if len(shown) > 1 else None
    text = sensitivity.conclusion(
        _splits(best["splits"]),
        best["time_us"],
        best["time_high_us"],
        bound=best["bound"],
        share=best["bound_share"],
        floor_us=floor,
        other=(_splits(other["splits"]), other["time_us"]) if other else None,
    )
    return {"inputs": case, "best": best, "candidates": shown, "floor_us": floor, "conclusion": text}


def _splits(count: int) -> str:
    return f"{count} splits" if count > 1 else "1 split"
