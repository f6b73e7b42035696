"""``costmodel predict conv2d``: tilings and direct convolution with their times, in every format."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from costmodel import render, units
from costmodel.conv2d import PASSES, rates, relative_error
from costmodel.gpus import GPU, load

SHOWN = 5
KEYS = ("S", "Cin", "Cout", "n", "k", "pass")


def add_arguments(p: argparse.ArgumentParser, size: Any) -> None:
    """Options of the command line that only this operation has; ``size`` reads a number."""
    layer = p.add_argument_group("conv2d: B images of N x N, K x K taps, no padding")
    layer.add_argument("--Cin", default=96, type=size, metavar="C", help="channels of the input (96)")
    layer.add_argument("--Cout", type=size, metavar="C", help="channels of the result (Cin)")
    layer.add_argument("--pass", dest="which", default="fprop", choices=tuple(PASSES), help="(fprop)")


def predict(options: argparse.Namespace, gpu: str | GPU) -> str:
    """The best ways of each case as text; one case as its own document, several as a list."""
    chosen, form = load(gpu), options.format
    outputs = options.Cout or options.Cin
    taps = [7] if options.K == [4096] else options.K  # the default of linear layers
    cases = [
        dict(zip(KEYS, (b, options.Cin, outputs, n, k, options.which), strict=True))
        for b, n, k in itertools.product(options.B, options.N or [32], taps)
    ]
    answers = [_answer(case, chosen, options.dtype) for case in cases]
    if form == "json":
        if len(answers) == 1:
            return render.document("predict", gpu=chosen.describe(), **answers[0], notes=list(chosen.notes))
        return render.document(
            "predict-sweep", inputs={}, gpu=chosen.describe(), cases=answers, notes=list(chosen.notes)
        )
    header = [*KEYS, "plan", "time_us", "time_low_us", "time_high_us", "bound", "margin"]
    if form == "csv":
        lines = [[chosen.slug, *line] for line in _lines(answers, text=False)]
        return render.rows_as("csv", ["gpu", *header], lines)
    titles = [*KEYS, "plan", "time", "low", "high", "bound", "slower by"]
    return render.rows_as(form, titles, list(_lines(answers, text=True)), title=f"conv2d on {chosen.slug}")


def _lines(answers: Sequence[dict[str, Any]], *, text: bool) -> Iterator[list[Any]]:
    for answer in answers:
        shape = [answer["inputs"][key] for key in KEYS]
        for c in answer["candidates"] if len(answers) == 1 else answer["candidates"][:1]:
            times = [c["time_us"], c["time_low_us"], c["time_high_us"]]
            shown = [units.microseconds(t) if text else f"{t:.6g}" for t in times]
            margin = f"{c['margin']:.1%}" if text else f"{c['margin']:.6g}"
            yield [*shape, c["plan"], *shown, c["bound"], margin]


def _answer(case: dict[str, Any], gpu: GPU, dtype: str) -> dict[str, Any]:
    """Inputs, the best way and the next ones."""
    from kernels_numba.conv2d_dispatch import costs, direct_seconds, plans, seconds
    from kernels_numba.conv2d_geometry import Geometry

    r, error = rates(gpu), relative_error(gpu)
    geometry = Geometry.of(
        (case["S"], case["Cin"], case["n"], case["n"]), (case["Cout"], case["Cin"], case["k"], case["k"])
    )
    found: list[dict[str, Any]] = [
        {
            "plan": "direct",
            "time_us": 1e6 * direct_seconds(geometry, r, PASSES[case["pass"]], dtype),
            "bound": "cores" if dtype == "fp32" else "tensor cores",
        }
    ]
    for plan in plans(geometry, PASSES[case["pass"]], dtype):
        longest = max(costs(plan), key=lambda cost: cost.seconds(r))
        (rows, columns), (down, across) = plan.tile, plan.parts
        found.append(
            {
                "plan": f"fft {rows}x{columns}" + ("" if plan.part_count == 1 else f" {down}x{across} parts"),
                "time_us": 1e6 * seconds(plan, r),
                "bound": longest.bound(r),
                "tiles": plan.tiles,
                "spectra_bytes": plan.bytes,
            }
        )
    found = sorted(found, key=lambda c: c["time_us"])[:SHOWN]
    best = found[0]["time_us"]
    for c in found:
        following = found[1]["time_us"] if c is found[0] and len(found) > 1 else c["time_us"]
        c["margin"] = following / best - 1
        c["time_low_us"], c["time_high_us"] = c["time_us"] * (1 - error), c["time_us"] * (1 + error)
    return {"inputs": {"op": "conv2d", **case, "dtype": dtype}, "best": found[0], "candidates": found}
