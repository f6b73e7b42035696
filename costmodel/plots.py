"""Pictures: pure functions from data to a matplotlib Figure. Only `save` writes anything.

Colours are those of Okabe and Ito (distinguishable with every common colour blindness); orders differ in
marker and line style as well, so that a grey print is readable too.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel import equation2, timing, units
from costmodel.equation2 import Constants
from costmodel.fftconv import ORDERS, Forecast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LENGTHS = tuple(2**e for e in range(8, 23))
COLOURS = {1: "#000000", 2: "#0072B2", 3: "#D55E00", 4: "#009E73", 5: "#CC79A7", 6: "#56B4E9"}
MARKERS = {1: "x", 2: "o", 3: "s", 4: "^", 5: "D", 6: "v"}
STYLES = {1: ":", 2: "-", 3: "--", 4: "-.", 5: ":", 6: ":"}
TERM_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#999999")
GREY = "#666666"
PEER_NAMES = {"torch": "torch fp32", "torch:half-io": "torch half io"}


def _need_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("drawing needs matplotlib; install it: pip install 'monarch-numba[plot]'")


def _figure(width: float, height: float, **layout: Any) -> tuple[Figure, Any]:
    _need_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=110)
    return figure, figure.subplots(**layout)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the ending of ``path`` (.svg, .png, .pdf) says in which form."""
    target = check_name(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    return target


def check_name(path: str | Path) -> Path:
    """``path``, or an error if `save` cannot write such a file."""
    _need_matplotlib()
    target = Path(path)
    if target.suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"plot file: got {str(path)!r}; accepted: a name that ends in .svg, .png or .pdf")
    return target


def png(figure: Figure) -> bytes:
    """The figure as a PNG image, for a notebook to show."""
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _length_axis(ax: Axes, lengths: Sequence[int]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    ax.set_xscale("log", base=2)
    step = 2 if len(lengths) > 9 else 1
    shown = list(lengths)[::step]
    ax.xaxis.set_major_locator(FixedLocator(shown))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(shown, [units.short(n) for n in shown])
    ax.set_xlabel("transform length N")
    ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _plain_log(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def order_costs(
    rates: Constants, *, lengths: Sequence[int] = LENGTHS, orders: Sequence[int] = ORDERS, title: str = ""
) -> Figure:
    """Equation 2's cost per token of each order (Figure 4 of the paper), and where each leaves the chip.

    Args:
        rates: constants of a GPU, or any others (`what_if`).
        lengths: transform lengths.
        orders: orders to draw.
        title: what the picture is of.
    """
    figure, ax = _figure(7.6, 4.6)
    curves = equation2.curve(orders, lengths, rates)
    for order, cost in curves.items():
        ps_per_token = [c * 1e12 for c in cost]
        ax.plot(
            lengths,
            ps_per_token,
            color=COLOURS[order],
            linestyle=STYLES[order],
            marker=MARKERS[order],
            markersize=4.5,
            label=f"order p = {order}",
        )
        left = leaves_chip(order, rates, lengths=lengths)
        if left is not None:
            at = list(lengths).index(left)
            ax.plot([left], [ps_per_token[at]], "o", mfc="none", mec=COLOURS[order], ms=12, mew=1.4)
    ax.plot(
        [], [], "o", mfc="none", mec=GREY, ms=10, mew=1.4, linestyle="none", label="first length off chip"
    )
    _length_axis(ax, lengths)
    ax.set_yscale("log")
    _plain_log(ax.yaxis)
    ax.set_ylabel("cost per token and sequence, ps")
    ax.set_title(title or "Cost of a convolution by order (Equation 2)", loc="left", fontsize=11)
    ax.legend(frameon=False)
    for text in _knee_text(knees(rates, lengths=lengths, orders=orders)):
        ax.text(0.99, 0.03, text, transform=ax.transAxes, ha="right", va="bottom", fontsize=9, color=GREY)
    return figure


def _knee_text(found: dict[int, tuple[int, int]]) -> list[str]:
    parts = [f"p = {a} up to {units.short(n)}, then p = {b}" for n, (a, b) in found.items()]
    return ["\n".join(parts)] if parts else []


def leaves_chip(order: int, rates: Constants, *, lengths: Sequence[int] = LENGTHS) -> int | None:
    """The first length at which some stage of the order's best factor list does not stay on chip."""
    for n in lengths:
        factors = equation2.best_factors(n, order, rates)
        if factors and not equation2.on_chip(factors, 0, capacity_bytes=rates.capacity_bytes):
            return n
    return None


def knees(
    rates: Constants, *, lengths: Sequence[int] = LENGTHS, orders: Sequence[int] = ORDERS
) -> dict[int, tuple[int, int]]:
    """Where the best order changes: {last length of the old order: (old, new)}."""
    curves = equation2.curve(orders, lengths, rates)
    best = [
        min(orders, key=lambda p: (curves[p][i] != curves[p][i], curves[p][i])) for i in range(len(lengths))
    ]
    return {lengths[i]: (best[i], best[i + 1]) for i in range(len(lengths) - 1) if best[i] != best[i + 1]}


def what_if(
    rates: Constants,
    *,
    bandwidth: float = 1.0,
    sm_count: float = 1.0,
    tensor_rate: float = 1.0,
    shared_memory: float = 1.0,
) -> Constants:
    """The constants of an imagined GPU: each figure times a ratio.

    More SMs bring more of everything that lives in an SM: tensor cores, arithmetic and on-chip bandwidth,
    but no more device bandwidth and no more shared memory per block.
    """
    for name, ratio in (
        ("bandwidth", bandwidth),
        ("sm_count", sm_count),
        ("tensor_rate", tensor_rate),
        ("shared_memory", shared_memory),
    ):
        if not 0 < ratio < float("inf"):
            raise ValueError(f"{name}: got {ratio}; accepted: a positive ratio, 1 for the GPU as it is")
    return Constants(
        sigma_h=rates.sigma_h * bandwidth,
        sigma_s=rates.sigma_s * sm_count,
        tau_m=rates.tau_m * sm_count * tensor_rate,
        tau_g=rates.tau_g * sm_count,
        capacity_bytes=rates.capacity_bytes * shared_memory,
    )


def stage_bars(n: int, rates: Constants, *, orders: Sequence[int] = ORDERS) -> Figure:
    """For one length: what each stage of the best plan of each order spends on products and on traffic."""
    figure, ax = _figure(7.6, 3.4)
    names = []
    for row, order in enumerate(orders):
        factors = equation2.best_factors(n, order, rates)
        if factors is None:
            names.append(f"p = {order}: none")
            continue
        names.append(f"p = {order}: " + " x ".join(map(str, factors)))
        left = 0.0
        for i, ni in enumerate(factors):
            products, traffic = (t * 1e12 / n for t in equation2.stage_cost(factors, i, rates))
            on_core = ni >= rates.mu
            near = equation2.on_chip(factors, i, capacity_bytes=rates.capacity_bytes)
            parts = (
                (products, "#0072B2" if on_core else "#D55E00"),
                (traffic, "#56B4E9" if near else "#E69F00"),
            )
            for width, colour in parts:
                ax.barh(row, width, left=left, color=colour, edgecolor="white", linewidth=0.8)
                left += width
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlabel("cost per token and sequence, ps (stages from left to right)")
    ax.set_title(f"N = {units.short(n)}: where each order spends its time", loc="left", fontsize=11)
    ax.spines[["top", "right"]].set_visible(False)
    labels = (
        ("#0072B2", "products on tensor cores"),
        ("#D55E00", "products without (factor < 16)"),
        ("#56B4E9", "traffic on chip"),
        ("#E69F00", "traffic to device memory"),
    )
    for colour, text in labels:
        ax.barh([0], [0], color=colour, label=text)
    ax.legend(
        frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2, columnspacing=1
    )
    return figure


def forecast_figure(found: Sequence[Forecast], *, measured: dict[int, float] | None = None) -> Figure:
    """A sweep over N as times over the memory floor, or one case as bars of what its candidates spend."""
    if not found:
        raise ValueError("found: got no forecast; accepted: at least one")
    lengths = sorted({f.inputs["N"] for f in found})
    if len(lengths) == 1:
        return candidate_bars(found[0])
    figure, ax = _figure(7.6, 4.6)
    chosen = {f.inputs["N"]: f for f in found}
    over_floor(ax, [chosen[n] for n in lengths], measured=measured)
    ax.plot([], [], "o", color=GREY, markersize=5, label="filled: a kernel exists")
    ax.legend(frameon=False)
    return figure


def over_floor(
    ax: Axes,
    found: Sequence[Forecast],
    *,
    measured: dict[int, float] | None = None,
    peers: dict[str, dict[int, float]] | None = None,
) -> None:
    """Draw predicted time over memory floor against N, one line per order, the best with its interval.

    ``measured`` and each of ``peers`` map N to seconds.
    """
    lengths = [f.inputs["N"] for f in found]
    low = [f.best.time_low_s / f.floor_s for f in found]
    high = [f.best.time_high_s / f.floor_s for f in found]
    ax.fill_between(lengths, low, high, color="#bbbbbb", alpha=0.5, linewidth=0, label="interval of the best")
    for order in ORDERS:
        points = [(f.inputs["N"], f.best_of_order(order), f.floor_s) for f in found]
        xs = [n for n, c, _ in points if c]
        ys = [c.time_s / floor for _, c, floor in points if c]
        ax.plot(
            xs,
            ys,
            color=COLOURS[order],
            linestyle=STYLES[order],
            marker=MARKERS[order],
            markersize=5,
            markerfacecolor="white",
            label=f"predicted, p = {order}",
        )
        made = [(n, c.time_s / floor) for n, c, floor in points if c and c.has_kernel]
        if made:
            ax.plot(*zip(*made, strict=True), MARKERS[order], color=COLOURS[order], markersize=5)
    floors = {f.inputs["N"]: f.floor_s for f in found}
    for number, (name, times) in enumerate((peers or {}).items()):
        xs = [n for n in lengths if n in times]
        ys = [times[n] / floors[n] for n in xs]
        ax.plot(
            xs,
            ys,
            color=GREY,
            marker="+x1"[number % 3],
            linestyle=":",
            linewidth=1,
            label=f"measured, {PEER_NAMES.get(name, name)}",
        )
    if measured:
        xs = [n for n in lengths if n in measured]
        ys = [measured[n] / floors[n] for n in xs]
        ax.plot(
            xs,
            ys,
            "*",
            color="black",
            markersize=11,
            markeredgecolor="white",
            markeredgewidth=0.6,
            linestyle="none",
            label="measured, ours",
            zorder=5,
        )
    _length_axis(ax, lengths)
    ax.set_yscale("log")
    _plain_log(ax.yaxis)
    ax.set_ylim(1, None)
    ax.set_yticks([1, 1.5, 2, 3, 5, 10, 20, 50])
    tallest = max(c.time_s / f.floor_s for f in found for c in f.candidates if c.plan.order in ORDERS[:2])
    ax.set_ylim(min(0.95, *(0.97 * y for y in low)), min(60.0, max(8.0, tallest * 1.1)))
    ax.set_ylabel("time / memory floor")
    f = found[0]
    ax.set_title(
        f"{f.gpu.slug}  (B={f.inputs['B']}, H={f.inputs['H']}, {f.inputs['dtype']})", loc="left", fontsize=11
    )


def candidate_bars(found: Forecast) -> Figure:
    """What the candidates of one case spend on each resource alone, and their predicted times."""
    shown = found.candidates[:6]
    figure, ax = _figure(7.6, 1.6 + 0.42 * len(shown))
    for row, c in enumerate(shown):
        left = 0.0
        for (name, seconds), colour in zip(c.terms_s.items(), TERM_COLOURS, strict=False):
            ax.barh(
                row,
                seconds * 1e6,
                left=left,
                color=colour,
                edgecolor="white",
                linewidth=0.6,
                label=f"{timing.BOUND_NAMES.get(name, name)} alone" if row == 0 else None,
            )
            left += seconds * 1e6
        error = [[(c.time_s - c.time_low_s) * 1e6], [(c.time_high_s - c.time_s) * 1e6]]
        ax.errorbar(
            c.time_s * 1e6,
            row,
            xerr=error,
            fmt="o",
            color="black",
            markersize=5,
            capsize=3,
            label="predicted time (terms overlap)" if row == 0 else None,
        )
    ax.axvline(found.floor_s * 1e6, color=GREY, linestyle=":", label="memory floor")
    ax.set_yticks(range(len(shown)), [c.name for c in shown])
    ax.invert_yaxis()
    ax.set_xlabel("us")
    ax.spines[["top", "right"]].set_visible(False)
    i = found.inputs
    ax.set_title(
        f"{found.gpu.slug}: N={units.short(i['N'])}, B={i['B']}, H={i['H']}, {i['dtype']} {i['variant']}",
        loc="left",
        fontsize=11,
    )
    ax.legend(frameon=False, fontsize=8.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def demo_figure(
    by_gpu: Sequence[Sequence[Forecast]],
    *,
    measured: dict[str, dict[int, float]],
    peers: dict[str, dict[str, dict[int, float]]] | None = None,
) -> Figure:
    """One panel per GPU: predicted time over floor by order, and what was measured (slug to N to s)."""
    figure, axes = _figure(5.0 * len(by_gpu), 4.8, ncols=len(by_gpu), sharey=True, squeeze=False)
    for ax, found in zip(axes[0], by_gpu, strict=True):
        slug = found[0].gpu.slug
        over_floor(ax, found, measured=measured.get(slug), peers=(peers or {}).get(slug))
        if ax is not axes[0][0]:
            ax.set_ylabel("")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=len(labels))
    figure.suptitle(
        "FFT convolution: time over memory floor (input read once, output written once); filled: a kernel exists"
    )
    return figure
