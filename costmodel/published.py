"""Equation 2 beside the times that its authors published: ``costmodel published``.

FlashFFTConv (Fu, Kumbong, Nguyen and Ré, arXiv 2311.05908): gated convolutions of 64 x 768 fp16 sequences on an H100
SXM, forward, in milliseconds, the filter's transform inside; ``published/flashfftconv-h100.csv``. Which order was run
can be read in two ways: as the released kernels do it (``released``: 2 to 1K, 3 to 32K, 4 above), or as order 2 up to
32K (``text``), which differs between 4K and 32K. Both are predicted, with constants from the H100's data sheet:
the paper gives those of an A100.

Equation 2 counts the transforms of one convolution. What the published times have besides (two gates, the filter's
transform, launches) it does not know, so it is too low; a second comparison therefore allows one factor for all
lengths, the geometric mean of published over predicted, and asks how well the *shape* fits.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

from costmodel import equation2, render, units
from costmodel.gpus import load
from monarch import format_factors

FILE = Path(__file__).parent / "published" / "flashfftconv-h100.csv"
GPU = "h100-sxm"
BATCH, CHANNELS = 64, 768
HEADER = "n,theirs_ms,pytorch_ms,released_order"
READINGS = ("released", "text")
LAST_OF_ORDER_2 = 32768
ORDERS = (2, 3, 4)


@dataclass(frozen=True)
class Published:
    """One published length: milliseconds of the paper's kernel and of PyTorch, and the order of the released kernel."""

    n: int
    theirs_ms: float
    pytorch_ms: float
    released_order: int

    def order(self, reading: str) -> int:
        """The order by one of `READINGS`."""
        if reading not in READINGS:
            raise ValueError(f"reading: got {reading!r}; accepted: {', '.join(READINGS)}")
        return 2 if reading == "text" and self.n <= LAST_OF_ORDER_2 else self.released_order


@dataclass(frozen=True)
class Predicted:
    """Equation 2 beside one published length; by reading: order, factors, milliseconds and relative error."""

    published: Published
    orders: dict[str, int]
    factors: dict[str, tuple[int, ...]]
    ms: dict[str, float]
    best_order: int

    def error(self, reading: str) -> float:
        """Predicted over published, less one."""
        return self.ms[reading] / self.published.theirs_ms - 1


def read() -> list[Published]:
    """The published row, by length."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    if lines[0] != HEADER:
        raise ValueError(f"{FILE}: header: got {lines[0]!r}; accepted: {HEADER}")
    rows = csv.DictReader(io.StringIO("\n".join(lines)))
    return [
        Published(int(r["n"]), float(r["theirs_ms"]), float(r["pytorch_ms"]), int(r["released_order"]))
        for r in rows
    ]


def predict(gpu: str = GPU) -> list[Predicted]:
    """Equation 2 for every published length, in both readings of its order."""
    rates = equation2.constants(load(gpu))
    found = []
    for row in read():
        factors, cost = {}, {}
        for order in ORDERS:
            chosen = equation2.best_factors(row.n, order, rates)
            assert chosen is not None, (row.n, order)  # powers of two of at least 2^4
            factors[order] = chosen
            cost[order] = equation2.cost(chosen, rates, batch=BATCH, channels=CHANNELS) * 1e3
        orders = {reading: row.order(reading) for reading in READINGS}
        found.append(
            Predicted(
                row,
                orders,
                {reading: factors[order] for reading, order in orders.items()},
                {reading: cost[order] for reading, order in orders.items()},
                min(ORDERS, key=lambda order: cost[order]),
            )
        )
    return found


@dataclass(frozen=True)
class Summary:
    """How one reading fares: lengths whose order is Equation 2's own best, and errors, as they are and by shape."""

    reading: str
    agrees: int
    cases: int
    median_error: float
    factor: float
    """Published over predicted, geometric mean."""
    median_shape_error: float
    worst_shape_error: float
    """Absolute relative errors after that factor."""


def summarise(found: Sequence[Predicted], reading: str) -> Summary:
    """The summary of one reading."""
    ratios = [p.published.theirs_ms / p.ms[reading] for p in found]
    factor = exp(statistics.fmean(map(log, ratios)))
    shape = [abs(factor / ratio - 1) for ratio in ratios]
    return Summary(
        reading,
        sum(p.orders[reading] == p.best_order for p in found),
        len(found),
        statistics.median(abs(p.error(reading)) for p in found),
        factor,
        statistics.median(shape),
        max(shape),
    )


def preferred(found: Sequence[Predicted]) -> str:
    """The reading that Equation 2 prefers: the one with its own best order at more lengths."""
    return max(READINGS, key=lambda reading: summarise(found, reading).agrees)


def text(form: str, gpu: str = GPU) -> str:
    """Published and predicted times, errors, and the verdict in sentences."""
    found = predict(gpu)
    summaries = {reading: summarise(found, reading) for reading in READINGS}
    if form == "json":
        rows = [
            {
                "n": p.published.n,
                "published_ms": p.published.theirs_ms,
                "best_order": p.best_order,
                **{
                    reading: {
                        "order": p.orders[reading],
                        "factors": list(p.factors[reading]),
                        "predicted_ms": p.ms[reading],
                        "relative_error": p.error(reading),
                    }
                    for reading in READINGS
                },
            }
            for p in found
        ]
        return render.document(
            "published",
            inputs={
                "B": BATCH,
                "H": CHANNELS,
                "dtype": "fp16",
                "variant": "gated",
                "source": "arXiv 2311.05908",
            },
            gpu=load(gpu).describe(),
            rows=rows,
            summaries={reading: vars(s) for reading, s in summaries.items()},
            preferred=preferred(found),
        )
    header = [
        "N",
        "published",
        "best order",
        *(_heading(reading, what, form) for reading in READINGS for what in _COLUMNS),
    ]
    cells = [
        [
            units.short(p.published.n) if form != "csv" else p.published.n,
            f"{p.published.theirs_ms:g} ms" if form != "csv" else p.published.theirs_ms,
            p.best_order,
            *(cell for reading in READINGS for cell in _cells(p, reading, form)),
        ]
        for p in found
    ]
    table = render.rows_as(
        form, header, cells, title=f"Equation 2 on {gpu} beside the gated times of arXiv 2311.05908"
    )
    return table if form == "csv" else f"{table}\n\n{render.prose(verdict(found), form)}"


_COLUMNS = ("factors", "says", "error")


def _heading(reading: str, what: str, form: str) -> str:
    if form == "csv":
        return f"{reading}_{what}"
    return reading if what == "factors" else what


def _cells(p: Predicted, reading: str, form: str) -> list[str]:
    factors = format_factors(p.factors[reading])
    if form == "csv":
        return [factors, f"{p.ms[reading]:.6g}", f"{p.error(reading):+.4f}"]
    ms = p.ms[reading]
    return [factors, f"{ms:.3g} ms" if ms < 1000 else f"{ms:.0f} ms", f"{p.error(reading):+.0%}"]


def verdict(found: Sequence[Predicted]) -> str:
    """What the comparison says, in sentences."""
    s = {reading: summarise(found, reading) for reading in READINGS}
    parts = [
        f"Reading '{name}': the order that Equation 2 prefers at {v.agrees} of {v.cases} lengths; median absolute "
        f"error {v.median_error:.0%}; with one factor of {v.factor:.2g} for all lengths {v.median_shape_error:.0%}, "
        f"at most {v.worst_shape_error:.0%}."
        for name, v in s.items()
    ]
    parts.append(
        f"Equation 2 prefers '{preferred(found)}'. It counts the transforms only; gates, the filter's transform and "
        "launches are in the published times."
    )
    return " ".join(parts)
