"""Pictures of linear layers: predicted times of the kernels against M, and where one overtakes the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from costmodel import linear, measurements
from costmodel.gpus import GPU, load
from costmodel.plots import COLOURS, GREY, MARKERS, STYLES, _figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SWEEP = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
NAMES = {"gemv": "vector", "flat": "flat", "full": "full", "cublas": "cuBLAS"}
_LOOKS = {"gemv": 2, "flat": 3, "full": 4, "cublas": 1}


def curves(
    n: int, k: int, gpu: GPU | str, *, sweep: Sequence[int] = SWEEP, instead: linear.Rates | None = None
) -> dict[str, dict[int, float]]:
    """The predicted time of each kernel's best settings, in microseconds by M."""
    found: dict[str, dict[int, float]] = {impl: {} for impl in linear.IMPLS}
    for m in sweep:
        for candidate in linear.predict(m, n, k, gpu=gpu, instead=instead):
            found[candidate.choice.impl].setdefault(m, candidate.time_us)
    return found


def measured_curves(n: int, k: int, slug: str) -> dict[str, dict[int, float]]:
    """Measured times, launched one after the other, in microseconds by M; the vendor's library as "cublas"."""
    found: dict[str, dict[int, float]] = {}
    for row in measurements.read(slug, op="linear"):
        case = row.case_values
        name = row.provider_variant or row.provider
        if (case["N"], case["K"]) == (n, k) and name in NAMES:
            found.setdefault(name, {})[int(case["M"])] = row.median_us
    return found


def dispatch_figure(
    n: int,
    k: int,
    gpu: GPU | str,
    *,
    sweep: Sequence[int] = SWEEP,
    instead: linear.Rates | None = None,
    measured: bool = True,
) -> Figure:
    """Predicted times against M (lines), what was measured (marks), and the thresholds of the closed form."""
    found = load(gpu)
    figure, axes = _figure(7.5, 4.2)
    for impl, times in curves(n, k, found, sweep=sweep, instead=instead).items():
        look = _LOOKS[impl]
        axes.plot(list(times), list(times.values()), STYLES[look], color=COLOURS[look], label=NAMES[impl])
    if measured and instead is None:
        for impl, times in measured_curves(n, k, found.slug).items():
            look = _LOOKS[impl]
            axes.plot(
                list(times),
                list(times.values()),
                MARKERS[look],
                color=COLOURS[look],
                label=f"{NAMES[impl]}, measured",
            )
    limits = linear.thresholds(n, k, instead or found)
    for name, limit, height in zip(
        ("M1", "M2"), limits, (0.98, 0.91), strict=True
    ):  # lines may be close together
        axes.axvline(limit, color=GREY, linewidth=0.8)
        axes.annotate(f" {name} = {limit}", (limit, height), xycoords=("data", "axes fraction"), va="top")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("rows of x, M")
    axes.set_ylabel("time, us")
    what = "an imagined GPU" if instead else found.slug
    axes.set_title(f"[N, K] = [{n}, {k}] on {what}")
    axes.legend(fontsize="small")
    return figure
