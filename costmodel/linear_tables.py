"""Answers of the command line about linear layers, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from costmodel import linear, linear_explain, measurements, render, sensitivity, units
from costmodel.gpus import GPU
from costmodel.timing import BOUND_NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TERMS = ("start", "memory", "L2", "CUDA cores", "tensor cores", "latency", "slabs")
"""What a time is made of (`linear.time_of`)."""


def predictions(
    cases: Sequence[tuple[int, int, int]], gpu: GPU, dtype: str, form: str, *, explain: bool = False
) -> str:
    """The best candidates of one case, or the best of several cases."""
    found = {case: linear.predict(*case, gpu=gpu, dtype=dtype) for case in cases}
    if form == "json":
        bodies = [_case(case, candidates, dtype, gpu) for case, candidates in found.items()]
        notes = list(gpu.notes)
        if len(bodies) == 1:
            return render.document("predict-linear", gpu=gpu.describe(), **bodies[0], notes=notes)
        inputs = {"op": "linear", "dtype": dtype, "cases": [list(case) for case in cases]}
        return render.document(
            "predict-linear-sweep", inputs=inputs, gpu=gpu.describe(), cases=bodies, notes=notes
        )
    if form == "csv":
        return _csv(found, gpu, dtype)
    header = [
        "M",
        "N",
        "K",
        "kernel",
        "B_N",
        "split",
        "blocks",
        "time",
        "low",
        "high",
        "slower by",
        "bound by",
    ]
    rows = []
    for case, candidates in found.items():
        shown = candidates[:1] if len(found) > 1 else _best_of_each(candidates)
        for c in shown:
            margin = c.time_us / candidates[0].time_us - 1
            times = [units.microseconds(t) for t in (c.time_us, c.time_low_us, c.time_high_us)]
            slower = "best" if c is candidates[0] else f"{margin:.0%}"
            rows.append([*case, c.choice.impl, c.width, c.split, c.blocks, *times, slower, _bound(c)])
    text = render.rows_as(form, header, rows, title=f"linear {dtype} on {gpu.slug}")
    if explain and len(found) == 1:
        best = next(iter(found.values()))
        terms = [[c.choice.impl, c.width, c.split, *_terms(c)] for c in _best_of_each(best)]
        names = ["kernel", "B_N", "split", *TERMS]
        text += "\n\n" + render.rows_as(form, names, terms, title="Each term alone")
    if len(found) == 1:
        text += "\n\n" + render.prose(_conclusion(next(iter(found)), next(iter(found.values())), gpu), form)
    return text


def _csv(found: dict[tuple[int, int, int], list[linear.Candidate]], gpu: GPU, dtype: str) -> str:
    """Every candidate of every case; times in microseconds."""
    keys = ("kernel", "tile", "splits", "time_us", "time_low_us", "time_high_us", "bound", "margin")
    rows = []
    for case, candidates in found.items():
        answer = _case(case, candidates, dtype, gpu)
        for c in answer["candidates"]:
            cells = [f"{c[key]:.6g}" if isinstance(c[key], float) else c[key] for key in keys]
            rows.append([gpu.slug, *case, dtype, *cells, f"{answer['floor_us']:.6g}"])
    return render.rows_as("csv", ["gpu", *"MNK", "dtype", *keys, "floor_us"], rows)


def explanations(cases: Sequence[tuple[int, int, int]], gpu: GPU, dtype: str) -> str:
    """How the best time of every case comes about, with numbers."""
    return "\n\n".join(
        linear_explain.explain(*case, linear.predict(*case, gpu=gpu, dtype=dtype)[0].choice, gpu, dtype=dtype)
        for case in cases
    )


def figure(cases: Sequence[tuple[int, int, int]], gpu: GPU, dtype: str) -> Figure:
    """One case as bars, several as a curve."""
    from costmodel.sweep_plots import Shown, figure_of

    found = []
    for case in cases:
        candidates = linear.predict(*case, gpu=gpu, dtype=dtype)
        shown = _best_of_each(candidates) if len(cases) == 1 else candidates[:1]
        floor = _floor_us(case, gpu)
        numbers = dict(zip("MNK", case, strict=True))
        found.append(
            (
                numbers,
                [Shown(_name(c), c.time_us, c.time_low_us, c.time_high_us, floor_us=floor) for c in shown],
            )
        )
    return figure_of(found, "MNK", f"linear {dtype} on {gpu.slug}")


def _name(c: linear.Candidate) -> str:
    """A candidate's kernel, width and split."""
    return f"{c.choice.impl}, B_N = {c.width}" + (f", split {c.split}" if c.split > 1 else "")


def _bound(c: linear.Candidate) -> str:
    """What binds a candidate, by the name that all operations have for it."""
    return BOUND_NAMES.get(c.bound, c.bound)


def _floor_us(case: tuple[int, int, int], gpu: GPU) -> float:
    """Weights, inputs and outputs once over the memory."""
    m, n, k = case
    return 2e6 * (n * k + m * k + m * n) / linear.rates(gpu).memory_bytes_per_s


def _runner_up(candidates: Sequence[linear.Candidate]) -> linear.Candidate | None:
    """The best of another kernel; if there is one kernel only, the next one of it."""
    best = candidates[0]
    others = [c for c in candidates if c.choice.impl != best.choice.impl] or list(candidates[1:])
    return others[0] if others else None


def _conclusion(case: tuple[int, int, int], candidates: Sequence[linear.Candidate], gpu: GPU) -> str:
    best, other = candidates[0], _runner_up(candidates)
    return sensitivity.conclusion(
        _name(best),
        best.time_us,
        best.time_high_us,
        bound=_bound(best),
        share=best.terms_us[best.bound] / best.time_us,
        floor_us=_floor_us(case, gpu),
        other=(_name(other), other.time_us) if other else None,
    )


def _best_of_each(candidates: Sequence[linear.Candidate]) -> list[linear.Candidate]:
    """The fastest candidate of every kernel, and of the flat one of every tile width."""
    kept: dict[tuple[str, int], linear.Candidate] = {}
    for c in candidates:
        kept.setdefault((c.choice.impl, c.width if c.choice.impl == "flat" else 0), c)
    return list(kept.values())


def _terms(c: linear.Candidate) -> list[str]:
    return [units.microseconds(c.terms_us[name]) if name in c.terms_us else "-" for name in TERMS]


def _case(
    case: tuple[int, int, int], candidates: Sequence[linear.Candidate], dtype: str, gpu: GPU
) -> dict[str, Any]:
    m, n, k = case
    best, other = candidates[0], _runner_up(candidates)

    def body(c: linear.Candidate) -> dict[str, Any]:
        return {
            "plan": str(c.choice),
            "kernel": c.choice.impl,
            "tile": c.width,
            "splits": c.split,
            "time_us": c.time_us,
            "time_low_us": c.time_low_us,
            "time_high_us": c.time_high_us,
            "bound": _bound(c),
            "bound_share": c.terms_us[c.bound] / c.time_us,
            "margin": (other.time_us if c is best and other else c.time_us) / best.time_us - 1,
        }

    return {
        "inputs": {"op": "linear", "M": m, "N": n, "K": k, "dtype": dtype},
        "best": body(best),
        "candidates": [body(c) for c in candidates],
        "floor_us": _floor_us(case, gpu),
        "conclusion": _conclusion(case, candidates, gpu),
    }


def thresholds(
    layers: Sequence[tuple[str, tuple[int, int]]], gpu: GPU, form: str, *, model: str | None = None
) -> str:
    """M1 and M2 of layers as text, predicted, and measured where that was done."""
    bodies = threshold_bodies(layers, gpu)
    if form == "json":
        inputs = {"model": model, "layers": [[n, k] for _, (n, k) in layers]}
        return render.document(
            "thresholds", inputs=inputs, gpu=gpu.describe(), thresholds=bodies, notes=list(gpu.notes)
        )
    header = ["layer", "N", "K", "M1", "M2", "M1 measured", "M2 measured", "B_N at M=8 (Equation 5)"]
    keys = ("layer", "N", "K", "M1", "M2", "M1_measured", "M2_measured", "B_N")
    rows = [["-" if body[key] in (None, "") else body[key] for key in keys] for body in bodies]
    return render.rows_as(form, header, rows, title=f"thresholds of linear layers on {gpu.slug}")


def threshold_bodies(layers: Sequence[tuple[str, tuple[int, int]]], gpu: GPU) -> list[dict[str, Any]]:
    """M1 and M2 of each layer (name, [N, K]): predicted, exact, and measured (None where that was not done)."""
    r = linear.rates(gpu)
    measured = measured_thresholds(gpu.slug)
    bodies = []
    for name, (n, k) in layers:
        m1, m2 = linear.thresholds(n, k, gpu)
        exact = linear.exact_thresholds(n, k, r)
        seen = measured.get((n, k), (None, None))
        bodies.append(
            {
                "layer": name,
                "N": n,
                "K": k,
                "M1": m1,
                "M2": m2,
                "M1_exact": exact[0],
                "M2_exact": exact[1],
                "M1_measured": seen[0],
                "M2_measured": seen[1],
                "B_N": linear.paper_width(8, n, k, r.sm_count),
            }
        )
    return bodies


def measured_thresholds(slug: str) -> dict[tuple[int, int], tuple[int | None, int | None]]:
    """M1 and M2 of every measured [N, K]: the first M from which on the later kernel is the faster one."""
    times: dict[tuple[int, int], dict[int, dict[str, float]]] = {}
    for row in measurements.read(slug, op="linear"):
        case = row.case_values
        if row.ours and not row.provider_variant.endswith("-overlapped"):
            place = times.setdefault((int(case["N"]), int(case["K"])), {}).setdefault(int(case["M"]), {})
            place[row.provider_variant] = row.median_us
    return {
        pair: (_first(by_m, "gemv", "flat"), _first(by_m, "flat", "full")) for pair, by_m in times.items()
    }


def _first(by_m: dict[int, dict[str, float]], before: str, after: str) -> int | None:
    found = None
    for m in sorted(by_m, reverse=True):
        times = by_m[m]
        if before not in times and after not in times:  # more rows than either takes
            continue
        if after not in times or (before in times and times[before] < times[after]):
            break
        found = m
    return found


def closed_forms() -> str:
    """M1 and M2 as formulas."""
    first, second, few = linear.symbolic_thresholds()
    return (
        f"M1 = {first}\nM2 = {second}\n{textwrap.fill(f'U = {few}', 110, subsequent_indent='    ')}\n"
        "N, K: outputs, inputs; P = B S ceil(N / (B S)): rows that the flat product's tiles of B rows cover on S SMs;\n"
        "beta, lambda_u: bytes/s of memory, and of L2 where blocks share what they read (full);\n"
        "phi: lane instructions/s; c_w, c_x: of them for a weight and for its product with one row of x;\n"
        "tau: tensor cores' flops; kappa, C: how much slower the flat product's tiles multiply; q: of the norm\n"
        "Z: 4NK where K is no multiple of 8 and the full product copies w first, else 0\n"
        "U: a full product of few rows; R: rows its least tile is worth; l: what 64 columns take at least;\n"
        "p: parts of K; t_p: what the blocks of a tile take to meet where p > 1, else 0\n"
        "t_v, t_f, t_u: what a vector, flat and full product takes beside its work"
    )
