"""``costmodel predict conv2d``: tilings and direct convolution with their times, in every format."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from costmodel import render, sensitivity, units
from costmodel.conv2d import PASSES, rates, relative_error
from costmodel.gpus import GPU, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 5
KEYS = ("S", "Cin", "Cout", "n", "k", "pass")


def add_arguments(p: argparse.ArgumentParser, size: Any) -> None:
    """Options of the command line that only this operation has; ``size`` reads a number."""
    layer = p.add_argument_group("conv2d: B images of N x N, K x K taps, no padding")
    layer.add_argument("--Cin", type=size, metavar="C", help="channels of the input (96)")
    layer.add_argument("--Cout", type=size, metavar="C", help="channels of the result (Cin)")
    layer.add_argument("--pass", dest="which", choices=tuple(PASSES), help="(fprop)")


def cases_of(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The layers that the command line asks for."""
    outputs = options.Cout or options.Cin
    return [
        dict(zip(KEYS, (b, options.Cin, outputs, n, k, options.which), strict=True))
        for b, n, k in itertools.product(options.B, options.N, options.K)
    ]


def predict(options: argparse.Namespace, gpu: str | GPU) -> str:
    """The best ways of each case as text; one case as its own document, several as a list."""
    chosen, form, cases = load(gpu), options.format, cases_of(options)
    answers = [_answer(case, chosen, options.dtype) for case in cases]
    if form == "json":
        answers = [_public(answer) for answer in answers]
        if len(answers) == 1:
            return render.document("predict", gpu=chosen.describe(), **answers[0], notes=list(chosen.notes))
        return render.document(
            "predict-sweep", inputs={}, gpu=chosen.describe(), cases=answers, notes=list(chosen.notes)
        )
    header = [*KEYS, "plan", "time_us", "time_low_us", "time_high_us", "bound", "margin"]
    if form == "csv":
        lines = [[chosen.slug, *line] for line in _lines(answers, text=False)]
        return render.rows_as("csv", ["gpu", *header], lines)
    titles = [*KEYS, "plan", "time", "low", "high", "slower by", "bound by"]
    table = render.rows_as(form, titles, list(_lines(answers, text=True)), title=f"conv2d on {chosen.slug}")
    return table if len(answers) > 1 else f"{table}\n\n{render.prose(answers[0]['conclusion'], form)}"


def explanations(options: argparse.Namespace, gpu: GPU) -> str:
    """How the best time of every case comes about, launch by launch, with numbers."""
    return "\n\n".join(_explain(case, gpu, options.dtype) for case in cases_of(options))


def figure(options: argparse.Namespace, gpu: GPU) -> Figure:
    """One layer as bars of its ways, several as a curve."""
    from costmodel.sweep_plots import Shown, figure_of

    found = []
    for case in cases_of(options):
        shown = [
            Shown(c["plan"], c["time_us"], c["time_low_us"], c["time_high_us"])
            for c in _answer(case, gpu, options.dtype)["candidates"]
        ]
        found.append(({name: case[name] for name in ("k", "n", "S")}, shown))
    return figure_of(found, ("k", "n", "S"), f"conv2d on {gpu.slug}, {options.which}")


def _explain(case: dict[str, Any], gpu: GPU, dtype: str) -> str:
    from kernels_numba.conv2d_dispatch import costs, direct_seconds, seconds

    r, answer = rates(gpu), _answer(case, gpu, dtype)
    best = answer["best"]
    plan = best.get("tiling")
    geometry = _geometry(case)
    total = units.microseconds(best["time_us"])
    lines = []
    if plan is None:
        rate = r.vector_direct if dtype == "fp32" else r.direct
        took = units.microseconds(1e6 * geometry.flops / rate)
        copies = (
            "" if dtype == "fp32" else ", more where channels are filled up; images are copied there and back"
        )
        lines.append(
            f"direct: products {geometry.flops:.4g} flop / {rate:.4g}/s = {took}{copies}; memory at {r.memory:.4g} "
            f"B/s: {total} in all"
        )
    else:
        many = "s" if plan.tiles > 1 else ""
        lines.append(
            f"{best['plan']}: {plan.tiles} tile{many} an image, {plan.bytes / 1e6:.1f} MB of spectra"
        )
        lines += [_launch(cost, r) for cost in costs(plan)]
        lines.append(f"t = sum of the launches = {total}")

    def evaluate(moved: dict[str, float]) -> float:
        changed = replace(r, **moved)
        which = PASSES[case["pass"]]
        return seconds(plan, changed) if plan else direct_seconds(geometry, changed, which, dtype)

    values = {f.name: float(getattr(r, f.name)) for f in fields(r)}
    lines.append(sensitivity.sentence(sensitivity.sensitivities(evaluate, values)))
    between = units.microseconds_between(best["time_low_us"], best["time_high_us"])
    part = units.microseconds(best["bound_share"] * best["time_us"])
    lines.append(sensitivity.bound_sentence(best["bound"], part, best["bound_share"], total, between))
    return "\n".join(lines)


def _launch(cost: Any, r: Any) -> str:
    """One launch: the longest of its terms, each work over rate, and the launch itself."""
    work = {"device memory": (cost.bytes, "B"), "transforms": (cost.points, "points")}
    parts = []
    for name, took in cost.terms(r).items():
        amount, unit = work.get(name, (cost.flops, "flop"))
        if took:
            parts.append(
                f"{name} {amount:.4g} {unit} / {amount / took:.4g}/s = {units.microseconds(1e6 * took)}"
            )
    return (
        f"  {cost.name}: longest of {'; '.join(parts)}; + {units.microseconds(1e6 * r.launch)} to launch = "
        f"{units.microseconds(1e6 * cost.seconds(r))}"
    )


def _geometry(case: dict[str, Any]) -> Any:
    from kernels_numba.conv2d_geometry import Geometry

    return Geometry.of(
        (case["S"], case["Cin"], case["n"], case["n"]), (case["Cout"], case["Cin"], case["k"], case["k"])
    )


def _lines(answers: Sequence[dict[str, Any]], *, text: bool) -> Iterator[list[Any]]:
    for answer in answers:
        shape = [answer["inputs"][key] for key in KEYS]
        for number, c in enumerate(answer["candidates"] if len(answers) == 1 else answer["candidates"][:1]):
            times = [c["time_us"], c["time_low_us"], c["time_high_us"]]
            if text:
                slower = f"{c['margin']:.1%}" if number else "best"
                yield [*shape, c["plan"], *(units.microseconds(t) for t in times), slower, c["bound"]]
            else:
                yield [*shape, c["plan"], *(f"{t:.6g}" for t in times), c["bound"], f"{c['margin']:.6g}"]


def _answer(case: dict[str, Any], gpu: GPU, dtype: str) -> dict[str, Any]:
    """Inputs, the best way and the next ones."""
    from kernels_numba.conv2d_dispatch import costs, direct_seconds, plans, seconds

    r, error = rates(gpu), relative_error(gpu)
    geometry = _geometry(case)
    at_once = replace(r, direct=math.inf, vector_direct=math.inf)
    direct, moved = (direct_seconds(geometry, some, PASSES[case["pass"]], dtype) for some in (r, at_once))
    moved -= r.launch
    by_memory = 2 * moved >= direct
    found: list[dict[str, Any]] = [
        {
            "plan": "direct",
            "time_us": 1e6 * direct,
            "bound": "device memory" if by_memory else "cores" if dtype == "fp32" else "tensor cores",
            "bound_share": (moved if by_memory else direct - moved) / direct,
        }
    ]
    for plan in plans(geometry, PASSES[case["pass"]], dtype):
        (rows, columns), (down, across) = plan.tile, plan.parts
        total = seconds(plan, r)
        bound, part = _binds(costs(plan), r)
        found.append(
            {
                "plan": f"fft {rows}x{columns}" + ("" if plan.part_count == 1 else f" {down}x{across} parts"),
                "time_us": 1e6 * total,
                "bound": bound,
                "bound_share": part / total,
                "tiles": plan.tiles,
                "spectra_bytes": plan.bytes,
                "tiling": plan,
            }
        )
    found = sorted(found, key=lambda c: c["time_us"])[:SHOWN]
    best = found[0]["time_us"]
    for c in found:
        following = found[1]["time_us"] if c is found[0] and len(found) > 1 else c["time_us"]
        c["margin"] = following / best - 1
        c["time_low_us"], c["time_high_us"] = c["time_us"] * (1 - error), c["time_us"] * (1 + error)
    text = sensitivity.conclusion(
        found[0]["plan"],
        best,
        found[0]["time_high_us"],
        bound=found[0]["bound"],
        share=found[0]["bound_share"],
        other=(found[1]["plan"], found[1]["time_us"]) if len(found) > 1 else None,
    )
    inputs = {"op": "conv2d", **case, "dtype": dtype}
    return {"inputs": inputs, "best": found[0], "candidates": found, "conclusion": text}


def _binds(launches: Sequence[Any], r: Any) -> tuple[str, float]:
    """What binds most of the launches' time, and those seconds: each launch is what its longest term is."""
    spent: dict[str, float] = {}
    for cost in launches:
        name = cost.bound(r)
        terms = {**cost.terms(r), "launching": r.launch}
        spent[name] = spent.get(name, 0.0) + terms[name]
    name = max(spent, key=lambda key: spent[key])
    return name, spent[name]


def _public(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what only Python has."""

    def without(c: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in c.items() if key != "tiling"}

    candidates = [without(c) for c in answer["candidates"]]
    return {**answer, "best": candidates[0], "candidates": candidates}
