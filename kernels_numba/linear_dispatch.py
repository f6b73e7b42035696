"""Which kernel computes a linear layer: a table that was measured, else the cost model's thresholds.

A *table* belongs to a GPU and a model (``dispatch/<gpu>/<model>.json``, written by ``costmodel measure --op linear``).
For each layer [N, K] and dtype it says, for every M, the fastest kernel with its settings, and by how much it is ahead
of the next. It is used only if it is whole (its checksum), of this schema, and measured with these kernels
(`GENERATION`); otherwise it is refused, with a warning that names the command to measure it anew, and the model's
choice is used meanwhile.

The *model*: up to M1 - 1 rows the vector product, up to M2 - 1 the flat one, from M2 on the full one
(`linear_thresholds`), with rates of an H200 for each SM of the GPU at hand.
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

from kernels_numba import linear_group
from kernels_numba.device import LARGEST_SHARED_BYTES
from kernels_numba.linear_product import Choice
from kernels_numba.linear_settings import default_choice
from kernels_numba.linear_thresholds import rates_for, thresholds

GENERATION = 2
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
    capability: tuple[int, int] | None = None,
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
        capability: its compute capability, None: any.
        impl: the kernel that is asked for, if one is; then only its settings are chosen.
        vendor: whether the vendor's library can be called.
        overlap: whether launches overlap (``Linear(..., overlap=True)``).
    """
    size = (max(m, 1), n, k)
    where: dict[str, Any] = {"sm_count": sm_count, "shared_bytes": shared_bytes, "capability": capability}
    entry = tables(gpu).get((n, k, dtype)) or tables(gpu).get((n, k, "fp16"))
    if impl is not None:
        found = default_choice(impl, *size, **where)
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
    limits = thresholds(n, k, rates_for(sm_count), in_place=capability == linear_group.CAPABILITY)
    place = (m >= limits[0]) + (m >= limits[1])
    order = ("gemv", "flat", "full")
    name = order[place]
    # The neighbour whose threshold is nearer comes next.
    neighbours = [i for i in (place - 1, place + 1) if 0 <= i < len(order)]
    nearest = min(neighbours, key=lambda i: abs(m - limits[min(i, place)]))
    choice = default_choice(name, *size, **where)
    rule = "cost model, no table for this layer"
    return Explanation(m, n, k, choice, rule, order[nearest], None, limits)
