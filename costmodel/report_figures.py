"""Figures of the report, and how a figure becomes SVG that stands in an HTML page and follows its colours.

They are narrow (5.2 inches), so that their text is still readable where a phone shrinks them to its width. No figure
has a title or any other text that comes from a file: captions are the page's, which escapes them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from costmodel import linear_plots, units
from costmodel.fftconv import ORDERS, Forecast
from costmodel.gpus import GPU
from costmodel.plots import COLOURS, GREY, MARKERS, STYLES, _figure, _length_axis, _plain_log, over_floor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.2, 3.8  # inches
THEME = {
    "#000000": "ink",
    "#666666": "muted",
    "#dddddd": "grid",
    "#cccccc": "grid",
    "#ffffff": "paper",
    "#bbbbbb": "band",
    "#0072b2": "blue",
    "#d55e00": "orange",
    "#009e73": "green",
    "#cc79a7": "pink",
    "#56b4e9": "sky",
}
"""Colours of the figures, and the page's variables that stand for them."""
LOOKS = {
    "fftconv": 2,
    "linear": 3,
    "decode_attention": 4,
    "fftconv_gradients": 5,
    "conv2d": 6,
    "decode_step": 1,
}


def inline_svg(figure: Figure, *, label: str, prefix: str) -> str:
    """The figure as one ``<svg>`` element for an HTML page.

    Its colours are the page's variables (`THEME`), its text is text, and its size is that of the place it stands in.

    Args:
        figure: what to draw.
        label: what a reader hears who does not see it; escaped here.
        prefix: of the ids inside, different for every figure of a page.
    """
    from html import escape

    from matplotlib import rc_context

    out = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    text = out.getvalue()
    opening = re.search(r"<svg[^>]*\bviewBox=\"([-0-9. ]+)\"[^>]*>", text)
    assert opening is not None
    body = text[opening.end() :]
    body = re.sub(r"<!--.*?-->|<style.*?</style>|<metadata.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", body).replace("xlink:href", "href")
    body = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda m: _themed(m[0]), body)
    body = re.sub(r"\s*\n\s*", "\n", body)
    return f'<svg viewBox="{opening[1]}" role="img" aria-label="{escape(label)}">{body.strip()}'


def _themed(colour: str) -> str:
    return f"var(--{THEME[colour]})" if colour in THEME else colour


def order_figure(found: Sequence[Forecast]) -> Figure:
    """The best order against N: filled where a kernel runs that plan, and how much slower the next order is."""
    figure, (top, bottom) = _figure(WIDTH, 4.4, nrows=2, sharex=True)
    lengths = [f.inputs["N"] for f in found]
    top.step(lengths, [f.best.plan.order for f in found], where="mid", color=GREY, linewidth=0.8)
    orders = sorted({*ORDERS, *(f.best.plan.order for f in found)})
    for order in orders:
        for filled in (True, False):
            xs = [f.inputs["N"] for f in found if (f.best.plan.order, f.best.has_kernel) == (order, filled)]
            face = COLOURS[order] if filled else "white"
            top.plot(xs, [order] * len(xs), MARKERS[order], color=COLOURS[order], mfc=face, ms=7)
    top.plot([], [], "o", color=GREY, label="a kernel runs it")
    top.plot([], [], "o", color=GREY, mfc="white", label="no kernel yet")
    top.legend(frameon=False, fontsize=8.5, loc="lower right")
    top.set_yticks(orders)
    top.set_ylim(orders[0] - 0.4, orders[-1] + 0.4)
    top.set_ylabel("best order p")
    for f in found:
        colour = GREY if f.tie else COLOURS[f.best.plan.order]
        bottom.plot(f.inputs["N"], 100 * f.best.margin, MARKERS[f.best.plan.order], color=colour, ms=6)
    bottom.set_ylim(-3, None)
    bottom.set_ylabel("next order slower, %")
    for ax in (top, bottom):
        _length_axis(ax, lengths)
    top.set_xlabel("")
    return figure


def floor_figure(
    found: Sequence[Forecast], *, measured: dict[int, float], peers: dict[str, dict[int, float]]
) -> Figure:
    """Predicted time over the memory floor against N, by order, beside what was measured (seconds by N)."""
    figure, ax = _figure(WIDTH, 5.0)
    over_floor(ax, found, measured=measured, peers=peers)
    ax.set_title("", loc="left")
    _legend_below(figure, columns=2)
    return figure


def _legend_below(figure: Figure, *, columns: int) -> None:
    """One legend under the axes, where it hides nothing."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8.5, loc="outside lower center", ncols=columns)


def time_figure(found: Sequence[Forecast], *, measured: dict[int, float]) -> Figure:
    """The best plan's predicted time in milliseconds against N, with its interval, above the memory floor."""
    figure, ax = _figure(WIDTH, HEIGHT)
    lengths = [f.inputs["N"] for f in found]
    low = [f.best.time_low_s * 1e3 for f in found]
    high = [f.best.time_high_s * 1e3 for f in found]
    ax.fill_between(lengths, low, high, color="#bbbbbb", alpha=0.5, linewidth=0, label="interval")
    times = [f.best.time_s * 1e3 for f in found]
    ax.plot(lengths, times, "-o", color=COLOURS[2], ms=4, label="best plan, predicted")
    ax.plot(lengths, [f.floor_s * 1e3 for f in found], ":", color="black", label="memory floor")
    xs = [n for n in lengths if n in measured]
    if xs:
        ax.plot(xs, [measured[n] * 1e3 for n in xs], "*", color="black", ms=9, label="measured, ours")
    _length_axis(ax, lengths)
    ax.set_yscale("log")
    _plain_log(ax.yaxis)
    ax.set_ylabel("time, ms")
    ax.legend(frameon=False, fontsize=8.5)
    return figure


def linear_figure(n: int, k: int, gpu: GPU) -> Figure:
    """Times of the three kernels of one layer against M, with the thresholds."""
    from matplotlib.ticker import LogLocator

    figure = linear_plots.dispatch_figure(n, k, gpu)
    figure.set_size_inches(WIDTH, 4.6)
    ax = figure.axes[0]
    ax.set_title("")
    legend = ax.get_legend()
    if legend:
        legend.remove()
    _legend_below(figure, columns=3)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (ax.xaxis, ax.yaxis):
        _plain_log(axis)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def splits_figure(best: Mapping[tuple[int, int], int]) -> Figure:
    """The best number of splits, by (B, L), against the length L of the keys: one line for each batch B."""
    figure, ax = _figure(WIDTH, HEIGHT)
    lengths = sorted({length for _, length in best})
    batches = sorted({batch for batch, _ in best})
    for look, batch in enumerate(batches, start=2):
        ax.plot(
            lengths,
            [best[batch, length] for length in lengths],
            STYLES[look],
            marker=MARKERS[look],
            color=COLOURS[look],
            mfc="none",
            ms=2 * look + 1,  # the lines of large batches lie on each other
            label=f"B = {batch}",
        )
    _length_axis(ax, lengths)
    ax.set_xlabel("keys of a sequence, L")
    ax.set_yscale("log", base=2)
    _plain_log(ax.yaxis)
    ax.set_ylabel("best number of splits")
    ax.set_ylim(0.8, None)
    _legend_below(figure, columns=4)
    return figure


def error_figure(points: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Predicted over measured time against measured time, from (measured, predicted) microseconds by operation."""
    figure, ax = _figure(WIDTH, HEIGHT)
    for op, pairs in points.items():
        look = LOOKS[op]
        xs, ys = [m for m, _ in pairs], [p / m for m, p in pairs]
        ax.plot(xs, ys, MARKERS[look], color=COLOURS[look], mfc="none", ms=5, label=op.replace("_", " "))
    ax.axhline(1, color="black", linewidth=0.8)
    for y in (0.9, 1.1):
        ax.axhline(y, color=GREY, linestyle=":", linewidth=0.8)
    ax.set_xscale("log")
    ax.set_xlabel("measured time, us (dotted: 10 % off)")
    ax.set_ylabel("predicted / measured time")
    _plain_log(ax.xaxis)
    ax.spines[["top", "right"]].set_visible(False)
    _legend_below(figure, columns=3)
    return figure


def describe_lengths(lengths: Sequence[int]) -> str:
    """``"256, 512, 1K"``; ``"none"`` where there is none."""
    return ", ".join(units.short(n) for n in lengths) or "none"
