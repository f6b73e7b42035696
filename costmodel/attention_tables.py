"""``costmodel predict decode_attention``: split counts with their times, in every format of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from costmodel import render, units
from costmodel.attention_counts import Shape
from costmodel.decode_attention import (
    Candidate,
    bound_of,
    candidates,
    floor_us,
    relative_error,
)
from costmodel.gpus import GPU, load

SHOWN = 6


def predict(
    gpu: str | GPU,
    form: str,
    *,
    batches: Sequence[int],
    heads: int,
    kv_heads: int,
    head_size: int,
    lengths: Sequence[int],
) -> str:
    """The best split counts of each case as text; one case as its own document, several as a list."""
    chosen = load(gpu)
    cases = [
        {"op": "decode_attention", "B": b, "Hq": heads, "Hkv": kv_heads, "D": head_size, "L": length}
        for b in batches
        for length in lengths
    ]
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
    titles = ["B", "Hq", "Hkv", "D", "L", "splits", "time", "low", "high", "bound", "slower by"]
    return render.rows_as(
        form,
        titles,
        list(_lines(answers, text=True)),
        title=f"decode_attention on {chosen.slug}, one query token",
    )


def _lines(answers: Sequence[dict[str, Any]], *, text: bool) -> Iterator[list[Any]]:
    for answer in answers:
        shape = [answer["inputs"][key] for key in ("B", "Hq", "Hkv", "D", "L")]
        for c in answer["candidates"] if len(answers) == 1 else answer["candidates"][:1]:
            times = [c["time_us"], c["time_low_us"], c["time_high_us"]]
            if text:
                shown = [units.microseconds(t) for t in times]
                yield [*shape, c["splits"], *shown, c["bound"], f"{c['margin']:.1%}"]
            else:
                yield [*shape, c["plan"], *(f"{t:.6g}" for t in times), c["bound"], f"{c['margin']:.6g}"]


def _answer(case: dict[str, Any], gpu: GPU) -> dict[str, Any]:
    """Inputs, the best split count and the next ones."""
    sizes = {"batch": case["B"], "kv_heads": case["Hkv"], "length": case["L"]}
    found = candidates(heads=case["Hq"], head_size=case["D"], gpu=gpu, **sizes)
    shape = Shape(case["D"], case["Hq"] // case["Hkv"])
    error = relative_error(gpu)

    def as_dict(c: Candidate) -> dict[str, Any]:
        return {
            "plan": f"splits={c.splits}",
            "splits": c.splits,
            "time_us": c.time_us,
            "time_low_us": c.time_us * (1 - error),
            "time_high_us": c.time_us * (1 + error),
            "bound": bound_of(shape, splits=c.splits, gpu=gpu, **sizes),
            "margin": c.margin,
            "blocks": c.blocks,
            "waves": c.waves,
        }

    shown = [as_dict(c) for c in found[:SHOWN]]
    floor = floor_us(head_size=case["D"], gpu=gpu, **sizes)
    return {"inputs": case, "best": shown[0], "candidates": shown, "floor_us": floor}
