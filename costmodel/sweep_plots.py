"""Pictures of predictions that have no plans of a transform: one case as bars, several as a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel import units
from costmodel.plots import COLOURS, GREY, _figure, _plain_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 12
A_DECADE = 8
"""Times further apart than this stand on a logarithmic axis."""


@dataclass(frozen=True)
class Shown:
    """One time to draw, in microseconds: its name (bars), its place along the axis (curve), interval and floor."""

    name: str
    time_us: float
    low_us: float
    high_us: float
    place: float = 0.0
    floor_us: float | None = None


def bars(found: Sequence[Shown], title: str) -> Figure:
    """Candidates of one case with their intervals, the best on top."""
    shown = list(found)[:MOST_BARS]
    figure, ax = _figure(7.6, 1.2 + 0.38 * len(shown))
    ax.barh(
        [s.name for s in shown],
        [s.time_us for s in shown],
        xerr=[[s.time_us - s.low_us for s in shown], [s.high_us - s.time_us for s in shown]],
        color=[COLOURS[2], *[GREY] * (len(shown) - 1)],
        error_kw={"elinewidth": 1},
    )
    floor = shown[0].floor_us
    if floor is not None:
        ax.axvline(floor, color="black", linestyle=":", linewidth=1)
        ax.annotate(" memory floor", (floor, 1), xycoords=("data", "axes fraction"), va="bottom")
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("predicted time, us")
    ax.set_title(title, fontsize="medium", pad=16)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def curve(found: Mapping[str, Sequence[Shown]], axis: str, title: str) -> Figure:
    """Best times along an axis, one line for each label, with intervals, and memory floors where they are known."""
    figure, ax = _figure(7.6, 4.4)
    for number, (label, shown) in enumerate(found.items()):
        colour = COLOURS[1 + number % len(COLOURS)]
        xs = [s.place for s in shown]
        ax.fill_between(xs, [s.low_us for s in shown], [s.high_us for s in shown], color=colour, alpha=0.15)
        ax.plot(xs, [s.time_us for s in shown], "o-", color=colour, markersize=4, label=label or "predicted")
        if all(s.floor_us is not None for s in shown):
            ax.plot(xs, [s.floor_us for s in shown], ":", color=colour, linewidth=1)
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    places = sorted({s.place for shown in found.values() for s in shown})
    times = [time for shown in found.values() for s in shown for time in (s.low_us, s.high_us)]
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(places[:: 1 + len(places) // MOST_BARS]))
    ax.xaxis.set_minor_locator(NullLocator())
    if max(times) > A_DECADE * min(times):
        ax.set_yscale("log")
        _plain_log(ax.yaxis)
    else:
        ax.set_ylim(bottom=0)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: units.short(round(value))))
    ax.set_xlabel(axis)
    ax.set_ylabel("predicted time, us")
    ax.set_title(title, fontsize="medium")
    if any(s.floor_us is not None for shown in found.values() for s in shown):
        ax.plot([], [], ":", color=GREY, label="memory floor")
    ax.legend(frameon=False)
    ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def figure_of(
    cases: Sequence[tuple[dict[str, int], Sequence[Shown]]], axes: Sequence[str], title: str
) -> Figure:
    """One case as bars; several along the axis that varies most, a line for each setting of the others.

    Args:
        cases: the numbers of each case by name, and its candidates with the best first.
        axes: names of numbers that may vary, the one to draw along first where several vary as much.
        title: what the picture is of.

    Raises:
        ValueError: there is no case.
    """
    if not cases:
        raise ValueError("cases: got none; accepted: at least one")
    if len(cases) == 1:
        return bars(cases[0][1], title)
    varied = {name: len({numbers[name] for numbers, _ in cases}) for name in axes}
    along = max(axes, key=lambda name: varied[name])
    others = [name for name in axes if name != along and varied[name] > 1]
    lines: dict[str, list[Shown]] = {}
    for numbers, shown in sorted(cases, key=lambda case: case[0][along]):
        label = ", ".join(f"{name} = {numbers[name]}" for name in others)
        best = shown[0]
        lines.setdefault(label, []).append(
            Shown(best.name, best.time_us, best.low_us, best.high_us, numbers[along], best.floor_us)
        )
    return curve(lines, along, title)
