"""What a prediction comes to, in sentences: what binds, which input moves it most, and what comes next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from costmodel import units

STEP = 0.1
LEAST = 0.0005
"""Changes below it round to nothing."""


@dataclass(frozen=True)
class Sensitivity:
    """An input, and the relative change of the time with it 10 % larger."""

    name: str
    change: float


def sensitivities(
    evaluate: Callable[[dict[str, float]], float], values: Mapping[str, float]
) -> list[Sensitivity]:
    """Every input, the one that moves the time most first; ``evaluate`` maps all inputs to a time."""
    centre = evaluate(dict(values))
    moved = [
        Sensitivity(name, evaluate({**values, name: value * (1 + STEP)}) / centre - 1)
        for name, value in values.items()
    ]
    return sorted(moved, key=lambda s: -abs(s.change))


def sentence(found: list[Sensitivity]) -> str:
    """The most sensitive input and the next one, in words."""
    shown = [s for s in found[:2] if abs(s.change) >= LEAST]
    if not shown:
        return f"No input moves the time: {STEP:.0%} more of any changes it by less than {LEAST:.2%}."

    def words(s: Sensitivity) -> str:
        return f"{abs(s.change):.1%} {'longer' if s.change > 0 else 'shorter'}"

    text = f"Most sensitive to {shown[0].name}: {STEP:.0%} more of it, and the time is {words(shown[0])}"
    return text + (f" (next {shown[1].name}: {words(shown[1])})." if len(shown) > 1 else ".")


def bound_sentence(name: str, part: str, share: float, total: str, interval: str) -> str:
    """What binds, and how much of the time it is: names and times as text."""
    return f"Bound by {name}, {share:.0%} of its time: {part} of {total} ({interval})."


def conclusion(
    best: str,
    time_us: float,
    high_us: float,
    *,
    bound: str,
    share: float,
    floor_us: float | None = None,
    other: tuple[str, float] | None = None,
) -> str:
    """The best choice with its time in microseconds, and how much slower another one (its name, its time) is."""
    text = f"Best: {best}, {units.microseconds(time_us)}"
    if floor_us is not None:
        text += f", {units.ratio(time_us / floor_us)}x the memory floor"
    text += f", bound by {bound}, {share:.0%} of its time"
    if other is None:
        return text + "."
    tie = ", inside the interval: a tie" if other[1] < high_us else ""
    return f"{text}; next {other[0]}, {other[1] / time_us - 1:.0%} slower{tie}."
