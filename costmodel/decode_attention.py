r"""Predictions for decode attention: the time of every split count, and the best.

Keys and values must come from memory once, so that is the first term; a second one is an SM's own time for the keys
that fall to it, which leads when few or uneven blocks leave some SMs idle. They overlap, but not wholly where they are
alike:

.. math::
    t = t_0 + m \,(1 + b^p)^{1/p} + t_w\,(w - 1) + [s > 1]\,(t_r + t_s s), \qquad
    m = \frac{\text{bytes of keys and values}}{\text{read rate}}, \quad
    b = \frac{\lceil B/\text{SMs} \rceil\, \text{tiles of a block}}{\text{tiles of all} / \text{SMs}}\,(c_0 + c_1 R)

with B blocks (units times splits s), w waves of them, R rows of a unit (an SM's work for a key grows with them) and
what the joining of s partial results costs. The figures were fitted to 101 measured times on an H200 (one head size,
128; error 3.3 % rms, 10 % at most); on other GPUs the memory rate is theirs and the rest is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from costmodel import measurements
from costmodel.attention_counts import KEYS, WARP, Shape
from costmodel.compare import percentile
from costmodel.gpus import GPU, load
from costmodel.measurements import Row

LAUNCH_US = 2.86
WAVE_US, REDUCTION_US, SPLIT_US = 1.71, 1.5, 0.133
SM_SHARE, SM_SHARE_PER_ROW = 0.643, 0.0205
NORM = 5.35
FITTED_RATE = 4.49e12
"""Bytes per second; the file of that GPU says 4.55e12 of a long read."""
FITTED_GPU = "h200-sxm"
RELATIVE_ERROR, RELATIVE_ERROR_ELSEWHERE = 0.033, 0.15
"""Root mean square of the fit's relative errors; on a GPU that it was not fitted to, what the project assumes."""
MOST_SPLITS = 512
WARPS, RING_BYTES = 4, 24 * 1024


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


def read_rate(gpu: GPU) -> float:
    """Bytes per second of keys and values: the fit's, times the ratio of this GPU's memory rate to that GPU's."""
    reference = load(FITTED_GPU)
    return FITTED_RATE * _rate(gpu) / _rate(reference)


def _rate(gpu: GPU) -> float:
    return float(gpu.spec["memory_bandwidth_bytes_per_s"])


def floor_us(*, batch: int, kv_heads: int, head_size: int, length: int, gpu: GPU) -> float:
    """Microseconds that keys and values take at the rate of a long read."""
    return batch * kv_heads * length * 4 * head_size / read_rate(gpu) * 1e6


def bound_of(shape: Shape, *, batch: int, kv_heads: int, length: int, splits: int, gpu: GPU) -> str:
    """What most of the time is spent on: memory, a single SM's share, or launching and joining."""
    units, tiles = batch * kv_heads * shape.row_tiles, ceil(length / KEYS)
    sms = int(gpu.spec["sm_count"])
    memory = floor_us(batch=batch, kv_heads=kv_heads, head_size=shape.head_size, length=length, gpu=gpu)
    share = (SM_SHARE + SM_SHARE_PER_ROW * shape.unit_rows) * shape.row_tiles
    one_sm = memory * ceil(units * splits / sms) * ceil(tiles / splits) * sms / (units * tiles) * share
    whole = time_us(shape, batch=batch, kv_heads=kv_heads, length=length, splits=splits, gpu=gpu)
    if max(memory, one_sm) < whole / 2:
        return "launching"
    return "memory" if memory >= one_sm else "one SM"


def time_us(
    shape: Shape, *, batch: int, kv_heads: int, length: int, splits: int, gpu: GPU, per_sm: int | None = None
) -> float:
    """Predicted microseconds of GPU time of one call."""
    units, tiles = batch * kv_heads * shape.row_tiles, ceil(length / KEYS)
    sms = int(gpu.spec["sm_count"])
    blocks = units * splits
    memory = batch * kv_heads * tiles * KEYS * 4 * shape.head_size / read_rate(gpu) * 1e6
    share = SM_SHARE + SM_SHARE_PER_ROW * shape.unit_rows
    busiest = ceil(blocks / sms) * ceil(tiles / splits) * sms / (units * tiles) * share * shape.row_tiles
    waves = ceil(blocks / (sms * (per_sm or blocks_per_sm(shape, gpu))))
    joining = REDUCTION_US + SPLIT_US * splits if splits > 1 else 0.0
    return LAUNCH_US + memory * (1 + busiest**NORM) ** (1 / NORM) + WAVE_US * (waves - 1) + joining


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


@dataclass(frozen=True)
class Judgement:
    """One measured case: the time of the chosen split count over that of the best measured one."""

    case: str
    dtype: str
    chosen: int
    best: int
    regret: float


@dataclass(frozen=True)
class SplitComparison:
    """Predictions beside the measured times of "async", and what the choice of a split count costs."""

    gpu: GPU
    pairs: tuple[tuple[Row, int, float], ...]
    """(row, splits, predicted microseconds)."""
    op: str = "decode_attention"

    @property
    def judgements(self) -> list[Judgement]:
        """The regret in every case that was measured with more than one split count."""
        cases: dict[tuple[str, str], list[tuple[Row, int, float]]] = {}
        for row, splits, predicted in self.pairs:
            cases.setdefault((row.case, row.dtype), []).append((row, splits, predicted))
        out = []
        for (case, dtype), members in cases.items():
            if len({splits for _, splits, _ in members}) > 1:
                pick, top = (
                    min(members, key=lambda m: (m[2], m[1])),
                    min(members, key=lambda m: m[0].median_us),
                )
                regret = pick[0].median_us / top[0].median_us
                out.append(Judgement(case, dtype, pick[1], top[1], regret))
        return out

    def summary(self) -> dict[str, object]:
        """The JSON form of the contract; figures are null where there is no case."""
        errors = [abs(predicted / row.median_us - 1) for row, _, predicted in self.pairs]
        none = {"cases": 0, "regret_p95": None}
        regrets = [j.regret for j in self.judgements]
        splits = {"cases": len(regrets), "regret_p95": percentile(regrets, 95) if regrets else None}
        return {
            "cases": len(errors),
            "median_abs_rel_error": percentile(errors, 50) if errors else None,
            "p90_abs_rel_error": percentile(errors, 90) if errors else None,
            "decisions": {"order": none, "splits": splits, "tile": none, "thresholds": none},
        }

    def rows(self) -> list[dict[str, object]]:
        """Every case with both times."""
        return [
            {
                "case": row.case,
                "dtype": row.dtype,
                "provider": row.provider,
                "splits": splits,
                "measured_us": row.median_us,
                "predicted_us": predicted,
                "relative_error": predicted / row.median_us - 1,
            }
            for row, splits, predicted in self.pairs
        ]

    def worst_regret_p95(self) -> float | None:
        """The p95 regret of the split count, if any case was measured with two."""
        regrets = [j.regret for j in self.judgements]
        return percentile(regrets, 95) if regrets else None

    def verdict(self) -> str:
        """The errors and the regret in plain sentences."""
        errors = [abs(predicted / row.median_us - 1) for row, _, predicted in self.pairs]
        text = (
            f"{self.op}: {len(errors)} times: median absolute error {percentile(errors, 50):.1%}, "
            f"p90 {percentile(errors, 90):.1%}."
        )
        regrets = [j.regret for j in self.judgements]
        if not regrets:
            return text
        return (
            f"{text}\nDecision splits (how many splits): {len(regrets)} cases, p95 regret "
            f"{percentile(regrets, 95):.3f}, worst {max(regrets):.3f} (1 is perfect)."
        )


def compare(gpu: str | GPU, *, folder: Path | None = None) -> SplitComparison | None:
    """Predictions beside what was measured on a GPU; None when nothing was."""
    chosen = load(gpu)
    rows = measurements.read(chosen.slug, op="decode_attention", folder=folder)
    found = judge(rows, chosen)
    return found if found.pairs else None


def judge(rows: Sequence[Row], gpu: str | GPU) -> SplitComparison:
    """Predictions beside those rows of ours that say their split count: "async", on caches with the keys first."""
    chosen = load(gpu)
    pairs = []
    for row in rows:
        splits = row.note.partition("splits=")[2].partition(";")[0]
        variant = row.provider_variant
        plain = row.ours and (not variant or (variant[0] == "s" and variant[1:].isdigit()))
        values = row.case_values
        if plain and splits.isdigit() and values["variant"] == "async":
            batch, heads, kv, size, length = (int(values[k]) for k in ("B", "Hq", "Hkv", "D", "L"))
            predicted = time_us(
                Shape(size, heads // kv),
                batch=batch,
                kv_heads=kv,
                length=length,
                splits=int(splits),
                gpu=chosen,
            )
            pairs.append((row, int(splits), predicted))
    return SplitComparison(chosen, tuple(pairs))
