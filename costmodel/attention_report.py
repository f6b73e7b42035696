"""The measured part of ``docs/attention.md``: ``python -m costmodel.attention_report --gpu h200-sxm --write``.

Without ``--write`` it is printed. It has the times beside those of the peers, what synchronisation and fallback cost,
the sweep over batches, and the regret of the split counts, all from ``costmodel/measurements``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from costmodel import decode_attention, documents, measurements, render, tables
from costmodel.errors import UnknownGPUError
from costmodel.gpus import load
from costmodel.measurements import Row

PART = "measured-attention"
BEGIN, END = documents.marks(PART)
DOCUMENT = Path(__file__).parent.parent / "docs" / "attention.md"
RATES = (1, 5, 10, 25, 50, 75, 100)
SWEEP = (32, 32, 1024)
Shape = tuple[int, int, int, int]  # B, Hq, Hkv, L


class Times:
    """Measured times by shape, variant, type and provider."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.shapes: dict[tuple[Shape, str], None] = {}
        self.found: dict[tuple[Shape, str, str, str], float] = {}
        for row in rows:
            case = row.case_values
            shape = (int(case["B"]), int(case["Hq"]), int(case["Hkv"]), int(case["L"]))
            self.found[shape, str(case["variant"]), row.dtype, row.provider] = row.median_us
            if row.provider.startswith("sdpa"):
                self.shapes[shape, row.dtype] = None

    def __call__(
        self, shape: Shape, variant: str = "async", dtype: str = "fp16", provider: str = "ours"
    ) -> float | None:
        """Microseconds, None where it was not measured."""
        return self.found.get((shape, variant, dtype, provider))


def figure(us: float | None) -> str:
    """Microseconds with four digits."""
    return "-" if us is None else f"{us:.2f}" if us < 100 else f"{us:.1f}" if us < 1000 else f"{us:.0f}"


def report(rows: Sequence[Row], gpu: str) -> str:
    """The whole text, in Markdown; raises ``ValueError`` where nothing was measured."""
    if not rows:
        raise ValueError(f"nothing of decode_attention was measured on {gpu}; run costmodel measure there")
    times = Times(rows)
    parts = [_beside_peers(times, rows), _synchronised(times), _fallback(times), _shifts(rows), _sweep(times)]
    judged = decode_attention.judge(rows, gpu)
    if judged.pairs:
        parts.append(["### Split counts", "", tables.verdict(judged)])
    host = [row for row in rows if "host" in row.provider]
    if host:
        parts.append(
            [
                "Host time of a prepared call: "
                + ", ".join(f"{r.median_us:.1f} us ({r.provider})" for r in host)
                + "."
            ]
        )
    return "\n\n".join("\n".join(part) for part in parts if part)


def _beside_peers(times: Times, rows: Sequence[Row]) -> list[str]:
    dates = sorted({row.date for row in rows})
    lines = [
        "## What was measured",
        "",
        f"Head size 128, one query token, microseconds of GPU time, {dates[-1]}; all columns of a row in one run,",
        "inputs rotated through four times the L2 cache, every result checked against float64. *Heads first*: the",
        "same kernel on caches [B, Hkv, L, D]. Flash and cuDNN are PyTorch's backends, each with the layout that suits",
        "it better. *Rate*: keys and values over the time.",
        "",
        "| B | query / key heads | L | type | ours | heads first | flash | cuDNN | ours / better peer | rate, TB/s |",
        "|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for (shape, dtype), _ in sorted(
        times.shapes.items(), key=lambda item: (item[0][0][1] // item[0][0][2], item)
    ):
        mine = times(shape, dtype=dtype)
        others = [
            times(shape, dtype=dtype, provider=p) for p in ("ours:heads-first", "sdpa-flash", "sdpa-cudnn")
        ]
        if mine is None:
            continue
        best = min(x for x in others[1:] if x is not None)
        batch, heads, kv, length = shape
        rate = 4 * batch * 128 * length * kv / mine / 1e6
        shown = " | ".join(map(figure, [mine, *others]))
        lines.append(
            f"| {batch} | {heads} / {kv} | {length} | {dtype} | {shown} | {mine / best:.2f} | {rate:.2f} |"
        )
    return lines


def _synchronised(times: Times) -> list[str]:
    lines = [
        "### What synchronisation costs",
        "",
        "| B | L | async | sync | sync / async |",
        "|---:|---:|---:|---:|---:|",
    ]
    for (shape, variant, dtype, provider), other in sorted(times.found.items()):
        mine = times(shape, dtype=dtype)
        if variant == "sync" and provider == "ours" and mine is not None:
            lines.append(
                f"| {shape[0]} | {shape[3]} | {figure(mine)} | {figure(other)} | {other / mine:.3f} |"
            )
    return lines if len(lines) > 4 else []


def _fallback(times: Times) -> list[str]:
    lines = [
        "### What the fallback costs",
        "",
        "Time over that without fallback, by the share of rows out of range: with every key, or with one key only.",
        "",
        "| rows out of range | " + " | ".join(f"{rate} %" for rate in RATES) + " |",
        "|---|" + "---:|" * len(RATES),
    ]
    start, even = len(lines), []
    for shape in dict.fromkeys(key[0] for key in times.found if key[1] == "fallback-0"):
        base, sync = times(shape, "fallback-0"), times(shape, "sync")
        for provider, name in (("ours", "every key"), ("ours:one-key", "one key")):
            found = [times(shape, f"fallback-{rate}", provider=provider) for rate in RATES]
            cells = ["-" if x is None or base is None else f"{x / base:.3f}" for x in found]
            lines.append(f"| B={shape[0]}, L={shape[3]}, {name} | {' | '.join(cells)} |")
            if sync and any(found):
                slower = [
                    f"{rate} %" for rate, x in zip(RATES, found, strict=True) if x is not None and x > sync
                ]
                even.append(f"{slower[0] if slower else 'no rate'} (B={shape[0]}, L={shape[3]}, {name})")
        if sync and base:
            lines.append(
                f"| B={shape[0]}, L={shape[3]}, variant sync | " + f"{sync / base:.3f} | " * len(RATES)
            )
    if even:
        lines += ["", f"Break-even, the least measured rate at which sync is faster: {', '.join(even)}."]
    return lines if len(lines) > start else []


def _shifts(rows: Sequence[Row]) -> list[str]:
    """Notes of rows with another shift say which, the bounds, and how many rows fall back."""
    found = [(row, dict(part.split("=", 1) for part in row.note.split("; ") if "=" in part)) for row in rows]
    shifted = [(row, said) for row, said in found if "phi" in said]
    if not shifted:
        return []
    usual = next(row for row, said in shifted if float(said["phi"]) == 0)
    case = usual.case_values
    return [
        "### Accuracy and fallback by the shift",
        "",
        f"B={case['B']}, L={case['L']}, logits of mean 0 and variance 1. *Error*: relative L2, of rounded results.",
        "",
        "| shift | (a, b) | rows that fall back | error | us |",
        "|---:|---|---:|---:|---:|",
        *(
            f"| {said['phi']} | ({said['bounds'].replace(',', ', ')}) | {said['fallback'].replace('%', ' %')} "
            f"| {row.rel_err:.2e} | {figure(row.median_us)} |"
            for row, said in shifted
        ),
    ]


def _sweep(times: Times) -> list[str]:
    heads, kv, length = SWEEP
    each = {b: us / b for b in range(1, 65) if (us := times((b, heads, kv, length))) is not None}
    steps = [(each[b], each[b + 1], b) for b in each if b + 1 in each]
    if len(steps) < 2:
        return []
    up = max(steps, key=lambda s: s[1] / s[0])
    down = sorted(steps, key=lambda s: s[1] / s[0])[:2]
    last = max(each)
    return [
        "### Batches",
        "",
        f"{heads} heads, L={length}, B from {min(each)} to {last}, time per sequence with one sequence more:",
        f"the largest step up is {up[1] / up[0]:.2f} (B={up[2]} to {up[2] + 1}), the largest down "
        + " and ".join(f"{s[0] / s[1]:.2f} (B={s[2]} to {s[2] + 1})" for s in down)
        + ", where launching still is much of",
        f"the time. {figure(each[last] * last)} us at B={last}: {4 * 128 * length * kv / each[last] / 1e6:.2f} TB/s.",
    ]


def lines_of(text: str) -> Iterator[str]:
    """Lines without trailing blanks."""
    yield from (line.rstrip() for line in text.splitlines())


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.attention_report", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument(
        "--gpu", default=decode_attention.FITTED_GPU, metavar="GPU", help="slug (%(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="put it into docs/attention.md")
    chosen = parser.parse_args(arguments)
    try:
        rows = measurements.read(load(chosen.gpu).slug, op="decode_attention")
        text = "\n".join(lines_of(report(rows, chosen.gpu)))
    except UnknownGPUError as error:
        render.note(str(error))
        return 3
    except ValueError as error:
        render.note(str(error))
        return 2
    if not chosen.write:
        print(text)
        return 0
    documents.write(DOCUMENT, {PART: [text]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
