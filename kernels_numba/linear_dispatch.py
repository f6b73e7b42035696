"""Which kernel computes a linear layer: a table that was measured, else the cost model's thresholds.

A *table* belongs to a GPU and a model (``dispatch/<gpu>/<model>.json``, written by ``costmodel measure --op linear``).
For each layer [N, K] and dtype it says, for every M, the fastest kernel with its settings, and by how much it is ahead
of the next. It is used only if it is whole (its checksum), of this schema, and measured with these kernels
(`GENERATION`); otherwise it is refused, with a warning that names the command to measure it anew, and the model's
choice is used meanwhile.

The *model*: up to M1 - 1 rows the vector product, up to M2 - 1 the flat one, from M2 on the full one. `thresholds` is
the closed form that ``costmodel.linear`` derives (docs/linear.md), with rates of the GPU at hand.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.linear_product import LARGEST_M, Choice, default_choice

GENERATION = 1
"""Of the kernels: a table measured with other ones is stale. Raise it when a kernel's speed changes."""
SCHEMA = 1
FOLDER_VARIABLE = "MONARCH_NUMBA_DISPATCH"
LISTS = {
    (False, False): "own",
    (True, False): "with_vendor",
    (False, True): "overlapped",
    (True, True): "overlapped_with_vendor",
}
"""A table's lists of choices: whether the vendor's library can be called, and whether launches overlap."""


class DispatchWarning(UserWarning):
    """A dispatch table was refused; the cost model's choice is used meanwhile."""


@dataclass(frozen=True)
class Rates:
    """What a GPU does in a second, as linear layers see it, and its SMs."""

    memory_bytes_per_s: float
    cached_bytes_per_s: float
    shared_cache_bytes_per_s: float
    lane_instructions_per_s: float
    sm_count: int


H200_RATES = Rates(4.55e12, 6.793e12, 1.0538e13, 2.509e13, 132)
"""As ``costmodel.linear.rates("h200-sxm")``."""
STARTS = (1.8e-6, 3.3e-6, 3.5e-6)
"""Seconds that a vector, flat and full product takes beside its work,"""
INSTRUCTIONS = (8.5, 1.25)
"""lane instructions of a vector product for a weight, and for its product with one row of x,"""
WIDTHS = (32, 128)
"""and rows of w that share one reading of x, flat and full: as in ``costmodel.linear``."""


def rates_for(sm_count: int) -> Rates:
    """Rates of a GPU of which only the number of SMs is known: those measured on an H200, per SM."""
    part, one = sm_count / H200_RATES.sm_count, H200_RATES
    return Rates(
        one.memory_bytes_per_s * part,
        one.cached_bytes_per_s * part,
        one.shared_cache_bytes_per_s * part,
        one.lane_instructions_per_s * part,
        sm_count,
    )


def thresholds(n: int, k: int, rates: Rates) -> tuple[int, int]:
    """M1 and M2: from M1 rows on the flat product is faster than vector products, from M2 on the full one is faster.

    The closed form that ``costmodel.linear`` derives; docs/linear.md has the equations.
    """
    most_vector, most_flat = LARGEST_M["gemv"] or 0, LARGEST_M["flat"] or 0
    weights = 2.0 * n * k
    vector, flat, full = STARTS
    first = (flat - vector + weights / rates.memory_bytes_per_s) * rates.lane_instructions_per_s / (n * k)
    first = (first - INSTRUCTIONS[0]) / INSTRUCTIONS[1]
    easier = rates.cached_bytes_per_s / rates.shared_cache_bytes_per_s
    readings = rates.sm_count * -(-n // (rates.sm_count * WIDTHS[0])) - n / WIDTHS[1] * easier
    excess = rates.cached_bytes_per_s / rates.memory_bytes_per_s - 1
    gain = rates.cached_bytes_per_s * (full - flat) + weights * excess
    m1 = max(1, min(int(first) + 1 if first >= 0 else 1, most_vector + 1))
    m2 = most_flat + 1
    if readings > 0 and gain <= 2.0 * k * readings * most_flat:
        m2 = int(max(gain, 0.0) / (2.0 * k * readings)) + 1
    return m1, max(m1, m2)


@dataclass(frozen=True)
class Explanation:
    """Which kernel runs a product, and why."""

    m: int
    n: int
    k: int
    choice: Choice
    rule: str
    """"asked for", "measured table ..." or "cost model ..."."""
    runner_up: str | None = None
    margin: float | None = None
    """How much slower the runner-up is: 0.05 is 5 %."""
    thresholds: tuple[int, int] | None = None
    """M1 and M2 of this [N, K]."""

    def __str__(self) -> str:
        text = f"M={self.m} N={self.n} K={self.k}: {self.choice}, by {self.rule}"
        if self.thresholds:
            text += f" (M1={self.thresholds[0]}, M2={self.thresholds[1]})"
        if self.runner_up is not None:
            close = "" if self.margin is None else f", {100 * self.margin:.0f} % slower"
            text += f"; next: {self.runner_up}{close}"
        return text


# ---- tables --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Entry:
    """One layer [N, K] of a table: for M from ``starts[i]`` on, ``choices[i]``, for each of `LISTS`."""

    source: str
    thresholds: tuple[int, int]
    starts: dict[str, tuple[int, ...]]
    choices: dict[str, tuple[tuple[Choice, str | None, float | None], ...]]
    settings: dict[str, tuple[tuple[int, Choice], ...]]
    """For each kernel the settings measured best from an M on."""


def checksum(entries: Any) -> str:
    """SHA-256 of a table's entries in canonical form."""
    return hashlib.sha256(json.dumps(entries, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def folders() -> list[Path]:
    """Where tables are looked for: ``$MONARCH_NUMBA_DISPATCH`` first, then beside the kernels."""
    own = Path(__file__).with_name("dispatch")
    chosen = os.environ.get(FOLDER_VARIABLE)
    return [Path(chosen), own] if chosen else [own]


def read_table(path: Path) -> dict[str, Any]:
    """A table that may be used. Raises ``ValueError`` with what is wrong."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        schema, kernels, entries = table["schema_version"], table["kernels"], table["entries"]
        good = checksum(entries) == table["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"it cannot be read ({type(error).__name__}: {error})") from None
    if schema != SCHEMA:
        raise ValueError(f"it has schema version {schema}, not {SCHEMA}")
    if kernels != GENERATION:
        raise ValueError(f"it was measured with kernels of generation {kernels}; these are {GENERATION}")
    if not good:
        raise ValueError("its checksum does not match its entries")
    return table


def _entry(raw: dict[str, Any], source: str) -> Entry:
    starts, choices = {}, {}
    for name in LISTS.values():
        rows = raw[name]
        starts[name] = tuple(int(row["m"]) for row in rows)
        if not rows or list(starts[name]) != sorted(set(starts[name])) or starts[name][0] != 1:
            raise ValueError(f"the rows of [{raw['n']}, {raw['k']}] do not begin at M=1 and rise")
        choices[name] = tuple(
            (Choice.of(row["impl"], **row["settings"]), row.get("next"), row.get("margin")) for row in rows
        )
    settings = {
        impl: tuple((int(row["m"]), Choice.of(impl, **row["settings"])) for row in rows)
        for impl, rows in raw["settings"].items()
    }
    return Entry(source, (int(raw["m1"]), int(raw["m2"])), starts, choices, settings)


@lru_cache(maxsize=8)
def tables(gpu: str | None) -> dict[tuple[int, int, str], Entry]:
    """All entries for a GPU, by (N, K, dtype). Tables that may not be used are told of, once."""
    found: dict[tuple[int, int, str], Entry] = {}
    if gpu is None:
        return found
    for folder in reversed(folders()):
        for path in sorted(folder.glob("*/*.json")):
            try:
                table = read_table(path)
                if table["gpu"] != gpu:
                    continue
                source = f"{path.parent.name}/{path.stem}"
                made = {
                    (int(raw["n"]), int(raw["k"]), str(raw["dtype"])): _entry(raw, source)
                    for raw in table["entries"]
                }
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                warnings.warn(
                    f"the dispatch table {path} is refused: {error}. The cost model's choice is used meanwhile; "
                    f"`python -m costmodel measure --op linear --model {path.stem}` measures it anew",
                    DispatchWarning,
                    stacklevel=2,
                )
                continue
            found.update(made)
    return found


def choose(
    m: int,
    n: int,
    k: int,
    dtype: str,
    gpu: str | None,
    sm_count: int,
    *,
    shared_bytes: int = LARGEST_SHARED_BYTES,
    impl: str | None = None,
    vendor: bool = False,
    overlap: bool = False,
) -> Explanation:
    """The kernel for a product on a GPU (by its device name), in constant time after the first call for the GPU.

    Args:
        m: rows of x.
        n: rows of w.
        k: columns of both.
        dtype: "fp16" or "bf16".
        gpu: the GPU's name, None for the CPU body.
        sm_count: its SMs.
        shared_bytes: the shared memory that it allows a block.
        impl: the kernel that is asked for, if one is; then only its settings are chosen.
        vendor: whether the vendor's library can be called.
        overlap: whether launches overlap (``Linear(..., overlap=True)``).
    """
    entry = tables(gpu).get((n, k, dtype)) or tables(gpu).get((n, k, "fp16"))
    if impl is not None:
        found = default_choice(impl, max(m, 1), n, k, sm_count=sm_count, shared_bytes=shared_bytes)
        for start, choice in entry.settings.get(impl, ()) if entry else ():
            if m >= start:
                found = choice
        return Explanation(m, n, k, found, "asked for", thresholds=entry.thresholds if entry else None)
    if entry is not None:
        rows = LISTS[vendor, overlap]
        place = bisect_right(entry.starts[rows], max(m, 1)) - 1
        choice, runner_up, margin = entry.choices[rows][place]
        rule = f"measured table {entry.source}"
        return Explanation(m, n, k, choice, rule, runner_up, margin, entry.thresholds)
    limits = thresholds(n, k, rates_for(sm_count))
    place = (m >= limits[0]) + (m >= limits[1])
    order = ("gemv", "flat", "full")
    name = order[place]
    # The neighbour whose threshold is nearer comes next.
    neighbours = [i for i in (place - 1, place + 1) if 0 <= i < len(order)]
    nearest = min(neighbours, key=lambda i: abs(m - limits[min(i, place)]))
    choice = default_choice(name, max(m, 1), n, k, sm_count=sm_count, shared_bytes=shared_bytes)
    rule = "cost model, no table for this layer"
    return Explanation(m, n, k, choice, rule, order[nearest], None, limits)
