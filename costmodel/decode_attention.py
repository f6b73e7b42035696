r"""Predictions for decode attention: the time of every split count, and the best.

Keys and values must come from memory once, so that is the first term; a second one is an SM's own time for the keys
that fall to it, which leads when few or uneven blocks leave some SMs idle. They overlap, but not wholly where they are
alike; and SMs do not get the same share of the memory's rate, which blocks even out that come after others:

.. math::
    t = t_0 + m \,(1 + b^p)^{1/p} + u\,m / w + t_w\,(w - 1) + t_j, \qquad
    m = \frac{\text{bytes of keys and values}}{\text{read rate}}, \quad
    b = \frac{\lceil B/\text{SMs} \rceil\, \text{tiles of a block}}{\text{tiles of all} / \text{SMs}}\,(c_0 + c_1 R)

with B blocks (units times splits s), w waves of them, R rows of a unit (an SM's work for a key grows with them) and
what joining s partial results costs, t_j: nothing for one, t_c in a cluster of two blocks, else t_r + t_s s. The
figures were fitted to the times of two H200s (one head size, 128), those of the better split counts weighing most, and
such that what was measured slower is predicted slower; the errors are in ``costmodel compare``. By how much SMs are
unequal is a matter of the H200 at hand (u = 0 on one, 0.04 on another). On other GPUs the memory rate is theirs and the
rest is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel import measurements
from costmodel.attention_counts import KEYS, WARP, Shape
from costmodel.compare import Comparison, Decision, Pair
from costmodel.gpus import GPU, load
from costmodel.measurements import Row


@dataclass(frozen=True)
class Figures:
    """What was fitted; microseconds, and without unit."""

    launch_us: float = 3.1
    unfair: float = 0.02
    """Of the memory's time, with one wave."""
    wave_us: float = 1.24
    reduction_us: float = 0.84
    split_us: float = 0.15
    cluster_us: float = 0.53
    sm_share: float = 0.553
    sm_share_per_row: float = 0.0212
    norm: float = 5.08
    read_bytes_per_s: float = 4.69e12
    """On `FITTED_GPU`; the file of that GPU says 4.55e12 of a long read."""


FIGURES = Figures()
if TYPE_CHECKING:
    from costmodel.cross_validation import Problem

FITTED_GPU = "h200-sxm"
RELATIVE_ERROR, RELATIVE_ERROR_ELSEWHERE = 0.03, 0.15
"""Two thirds of 276 measured times lie within it (split counts far from the best too); on a GPU that the fit is not of,
what the project assumes."""
MOST_SPLITS = 512
WARPS, RING_BYTES = 4, 24 * 1024
CLUSTERS_SINCE = (9, 0)


@dataclass(frozen=True)
class Candidate:
    """A split count and its predicted time; ``margin``: how much slower than the best (for the best: the next)."""

    splits: int
    time_us: float
    margin: float
    blocks: int
    waves: int


def shared_bytes(shape: Shape) -> int:
    """Shared memory of a block: its warps' rings and weights."""
    stages = max(3, RING_BYTES // (4 * KEYS * shape.padded))
    rows = 8 * shape.query_tiles if shape.products else shape.unit_rows
    ring = max(stages * KEYS * shape.padded, rows * (shape.size + 2))
    return 4 * (WARPS * (ring + 160 * shape.query_tiles) + WARP)


def blocks_per_sm(shape: Shape, gpu: GPU) -> int:
    """Blocks that fit on an SM at once, by shared memory (1 KiB of each is the system's)."""
    room = int(gpu.spec["shared_memory_per_sm_bytes"])
    return max(1, min(room // (shared_bytes(shape) + 1024), 2))


def relative_rate(gpu: GPU) -> float:
    """Memory rate over that of the GPU that the figures were found on."""
    return 1.0 if gpu.slug == FITTED_GPU else _rate(gpu) / _fitted_rate()


def read_rate(gpu: GPU) -> float:
    """Bytes per second of keys and values: the fit's, times the ratio of this GPU's memory rate to that GPU's."""
    return FIGURES.read_bytes_per_s * relative_rate(gpu)


def _rate(gpu: GPU) -> float:
    return float(gpu.spec["memory_bandwidth_bytes_per_s"])


@cache
def _fitted_rate() -> float:
    return _rate(load(FITTED_GPU))


def floor_us(*, batch: int, kv_heads: int, head_size: int, length: int, gpu: GPU) -> float:
    """Microseconds that keys and values take at the rate of a long read."""
    return batch * kv_heads * length * 4 * head_size / read_rate(gpu) * 1e6


def clustered(splits: int, gpu: GPU) -> bool:
    """Whether the splits of a unit are a cluster of two blocks."""
    return splits == 2 and tuple(map(int, gpu.compute_capability.split("."))) >= CLUSTERS_SINCE


def bound_of(shape: Shape, *, batch: int, kv_heads: int, length: int, splits: int, gpu: GPU) -> str:
    """What most of the time is spent on: memory, a single SM's share, or launching and joining."""
    done = work(shape, batch=batch, kv_heads=kv_heads, length=length, splits=splits, gpu=gpu)
    return _bound(terms_us(done, relative_rate(gpu)))


@dataclass(frozen=True)
class Work:
    """What the time of a call follows from."""

    nbytes: Any
    """Of keys and values."""
    uneven: Any
    """Keys of the busiest SM over those of an average one, times the tiles of rows of a unit."""
    rows: Any
    waves: Any
    splits: Any
    clustered: Any
    """Whether the splits are a cluster of blocks."""


def work(
    shape: Shape, *, batch: int, kv_heads: int, length: int, splits: int, gpu: GPU, per_sm: int | None = None
) -> Work:
    """Of a call with so many splits."""
    units, tiles = batch * kv_heads * shape.row_tiles, ceil(length / KEYS)
    sms = int(gpu.spec["sm_count"])
    blocks = units * splits
    uneven = ceil(blocks / sms) * ceil(tiles / splits) * sms / (units * tiles) * shape.row_tiles
    waves = ceil(blocks / (sms * (per_sm or blocks_per_sm(shape, gpu))))
    nbytes = batch * kv_heads * tiles * KEYS * 4 * shape.head_size
    return Work(nbytes, uneven, shape.unit_rows, waves, splits, clustered(splits, gpu))


def terms_us(done: Work, rate: float, figures: Figures = FIGURES) -> dict[str, Any]:
    """Microseconds: launch, memory, the busiest SM's own time, waves that are unfair or many, joining partial results.

    ``rate``: `relative_rate` of the GPU. ``done`` may hold arrays, of many calls at once.
    """
    memory = done.nbytes / (figures.read_bytes_per_s * rate) * 1e6
    share = figures.sm_share + figures.sm_share_per_row * done.rows
    apart = (figures.reduction_us + figures.split_us * done.splits) * (done.splits > 1)
    joining = apart * (1 - done.clustered) + figures.cluster_us * done.clustered
    return {
        "launch": figures.launch_us,
        "memory": memory,
        "one SM": memory * done.uneven * share,
        "waves": figures.unfair * memory / done.waves + figures.wave_us * (done.waves - 1),
        "joining": joining,
    }


def total_us(terms: dict[str, Any], figures: Figures = FIGURES) -> Any:
    """Memory and the busiest SM overlap, but not wholly where they are alike; the rest comes on top."""
    memory, one = terms["memory"], terms["one SM"]
    both = memory * (1 + (one / memory) ** figures.norm) ** (1 / figures.norm)
    return terms["launch"] + both + terms["waves"] + terms["joining"]


def time_us(
    shape: Shape, *, batch: int, kv_heads: int, length: int, splits: int, gpu: GPU, per_sm: int | None = None
) -> float:
    """Predicted microseconds of GPU time of one call."""
    done = work(shape, batch=batch, kv_heads=kv_heads, length=length, splits=splits, gpu=gpu, per_sm=per_sm)
    return float(total_us(terms_us(done, relative_rate(gpu))))


def candidates(
    *, batch: int, heads: int, kv_heads: int, head_size: int, length: int, gpu: str | GPU, tokens: int = 1
) -> list[Candidate]:
    """Every sensible split count with its time, the best first; of equal ones the fewest splits.

    Raises:
        ValueError: sizes that are not positive, or heads that do not divide.
    """
    for name, value in (
        ("batch", batch),
        ("heads", heads),
        ("kv_heads", kv_heads),
        ("head_size", head_size),
        ("length", length),
        ("tokens", tokens),
    ):
        if value < 1:
            raise ValueError(f"{name}: got {value}; accepted: at least 1")
    if heads % kv_heads:
        raise ValueError(f"heads: got {heads}; accepted: a multiple of the {kv_heads} key heads")
    chosen = load(gpu)
    shape = Shape(head_size, heads // kv_heads, tokens)
    units, per_sm = batch * kv_heads * shape.row_tiles, blocks_per_sm(shape, chosen)
    slots = int(chosen.spec["sm_count"]) * per_sm
    most = min(ceil(length / KEYS), MOST_SPLITS, max(1, 8 * slots // units))
    times = {
        s: time_us(shape, batch=batch, kv_heads=kv_heads, length=length, splits=s, gpu=chosen, per_sm=per_sm)
        for s in range(1, most + 1)
    }
    order = sorted(times, key=lambda s: (times[s], s))
    best = times[order[0]]
    following = times[order[1]] if len(order) > 1 else best
    return [
        Candidate(
            splits=s,
            time_us=times[s],
            margin=(following if s == order[0] else times[s]) / best - 1,
            blocks=units * s,
            waves=ceil(units * s / slots),
        )
        for s in order
    ]


def best_splits(**case: int | str | GPU) -> int:
    """The split count with the least predicted time; arguments as `candidates`.

    Example:
        >>> best_splits(batch=1, heads=32, kv_heads=32, head_size=128, length=4096, gpu="h200-sxm")
        4
    """
    return candidates(**case)[0].splits  # type: ignore[arg-type]


def relative_error(gpu: GPU) -> float:
    """Of a call's time on a GPU."""
    return RELATIVE_ERROR if gpu.slug == FITTED_GPU else RELATIVE_ERROR_ELSEWHERE


def compare(gpu: str | GPU, *, folder: Path | None = None) -> Comparison:
    """Predictions beside what was measured on a GPU, and what the choice of a split count costs."""
    chosen = load(gpu)
    return judge(measurements.read(chosen.slug, op="decode_attention", folder=folder), chosen)


def judge(rows: Sequence[Row], gpu: str | GPU) -> Comparison:
    """Predictions beside those rows of ours that say their split count, whatever the softmax and the layout.

    Rows that fall back are predicted as if none did. Split counts compete among those of "async" on caches with the
    keys first.
    """
    chosen = load(gpu)
    rate, spread = relative_rate(chosen), relative_error(chosen)
    pairs = []
    for row, splits in _measured(rows):
        terms = terms_us(_work(row, splits, chosen), rate)
        us = float(total_us(terms))
        pairs.append(Pair(row, splits, us, us * (1 - spread), us * (1 + spread), _bound(terms)))
    return Comparison("decode_attention", chosen, tuple(pairs), tuple(_decide(pairs)))


def _decide(pairs: Sequence[Pair]) -> list[Decision]:
    """The regret in every case that was measured with more than one split count."""
    cases: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        variant = pair.row.provider_variant
        plain = not variant or (variant[0] == "s" and variant[1:].isdigit())
        if plain and pair.row.case_values["variant"] == "async":
            cases.setdefault((pair.row.case, pair.row.dtype), []).append(pair)
    found = []
    for (case, dtype), members in cases.items():
        if len({pair.plan for pair in members}) > 1:
            pick = min(members, key=lambda pair: (pair.predicted_us, pair.plan))
            top = min(members, key=lambda pair: pair.row.median_us)
            regret = pick.row.median_us / top.row.median_us
            found.append(Decision("splits", case, dtype, str(pick.plan), str(top.plan), regret))
    return found


def _bound(terms: dict[str, Any]) -> str:
    """What most of the time is spent on: memory, a single SM's share, or launching and joining."""
    if max(terms["memory"], terms["one SM"]) < total_us(terms) / 2:
        return "launching"
    return "memory" if terms["memory"] >= terms["one SM"] else "one SM"


def _measured(rows: Sequence[Row]) -> list[tuple[Row, int]]:
    """Rows of ours with the split count that their note names; times of the host are not of the GPU."""
    found = []
    for row in rows:
        splits = row.note.partition("splits=")[2].partition(";")[0]
        if row.ours and splits.isdigit():
            found.append((row, int(splits)))
    return found


def _work(row: Row, splits: int, gpu: GPU) -> Work:
    batch, heads, kv, size, length = (int(row.case_values[k]) for k in ("B", "Hq", "Hkv", "D", "L"))
    return work(Shape(size, heads // kv), batch=batch, kv_heads=kv, length=length, splits=splits, gpu=gpu)


def problem(gpu: str | GPU, *, folder: Path | None = None) -> Problem | None:
    """The model with its figures as factors; shapes are left out whole."""
    import numpy as np

    from costmodel.cross_validation import Problem

    chosen = load(gpu)
    found = _measured(measurements.read(chosen.slug, op="decode_attention", folder=folder))
    if not found:
        return None
    works = [astuple(_work(row, splits, chosen)) for row, splits in found]
    everything, rate = Work(*map(np.array, zip(*works, strict=True))), relative_rate(chosen)

    def predict(factors: Any) -> Any:
        moved = Figures(*(v * float(f) for v, f in zip(astuple(FIGURES), factors, strict=True)))
        return total_us(terms_us(everything, rate, moved), moved)

    keys = ("B", "Hq", "Hkv", "D", "L")
    groups = [tuple(row.case_values[key] for key in keys) for row, _ in found]
    names = tuple(f.name for f in fields(Figures))
    return Problem("decode_attention", names, predict, np.array([row.median_us for row, _ in found]), groups)
