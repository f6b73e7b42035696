"""The measured part of ``docs/training.md``: ``python -m costmodel.training_report --gpu h200-sxm --write``.

Without ``--write`` it is printed. It has the times and memory of layers beside the same ones by `torch.fft`, and what
the training run came to, from ``costmodel/training_runs/<gpu>/training.csv`` and ``hyena_training.*``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costmodel import documents, render, training
from costmodel.errors import UnknownGPUError
from costmodel.gpus import load
from costmodel.training import OperatorRow

PART = "measured-training"
BEGIN, END = documents.marks(PART)
DOCUMENT = Path(__file__).parent.parent / "docs" / "training.md"
NAMES = {
    "fftconv": "convolution",
    "fftconv-gated": "convolution, two gates",
    "hyena": "Hyena",
    "m2": "M2 mixer",
    "longconv": "long convolution",
}


def pairs(rows: Sequence[OperatorRow]) -> list[tuple[OperatorRow, OperatorRow]]:
    """(fused, torch) of every case, in the order of the file."""
    found: dict[tuple[str, int, int, int, str], dict[str, OperatorRow]] = {}
    for row in rows:
        found.setdefault((row.layer, row.B, row.D, row.L, row.dtype), {})[row.convolution] = row
    return [(both["fused"], both["torch"]) for both in found.values() if len(both) == 2]


def milliseconds(us: float) -> str:
    """Three digits."""
    return f"{us / 1e3:.3g}"


def mebibytes(count: int) -> str:
    """Whole ones."""
    return f"{count / 2**20:.0f}"


def report(rows: Sequence[OperatorRow], runs: dict[str, Any]) -> str:
    """The whole text, in Markdown; raises ``ValueError`` where nothing was measured."""
    both = pairs(rows)
    if not both:
        raise ValueError(
            "nothing of training was measured on this GPU; run python -m costmodel.measure_training"
        )
    bare = [pair for pair in both if pair[0].layer.startswith("fftconv")]
    layers = [pair for pair in both if pair not in bare]
    parts = []
    if bare:
        parts.append("\n".join(_bare(bare)))
    if layers:
        parts.append("\n".join(_layers(layers)))
    if runs:
        parts.append("\n".join(_run(runs)))
    return "\n\n".join(parts)


def _bare(both: list[tuple[OperatorRow, OperatorRow]]) -> list[str]:
    first = both[0][0]
    lines = [
        f"Circular convolutions alone, {first.D} channels, {first.dtype}, {first.date}; milliseconds of GPU time, the "
        "filter's transform and all",
        "gradients in it; MiB beyond inputs at the peak of a forward pass that records gradients, and of forward and "
        "backward pass.",
        "",
        "| | B | N | forward | backward | backward / forward | torch forward | torch backward | MiB forward | of torch"
        " | MiB step | of torch |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for ours, other in both:
        cells = [
            NAMES[ours.layer],
            ours.B,
            ours.L,
            milliseconds(ours.forward_us),
            milliseconds(ours.backward_us),
            f"{ours.backward_us / ours.forward_us:.2f}",
            f"{milliseconds(other.forward_us)} ({other.forward_us / ours.forward_us:.1f}x)",
            f"{milliseconds(other.backward_us)} ({other.backward_us / ours.backward_us:.1f}x)",
            mebibytes(ours.forward_bytes),
            f"{mebibytes(other.forward_bytes)} ({other.forward_bytes / ours.forward_bytes:.1f}x)",
            mebibytes(ours.step_bytes),
            f"{mebibytes(other.step_bytes)} ({other.step_bytes / ours.step_bytes:.1f}x)",
        ]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def _layers(both: list[tuple[OperatorRow, OperatorRow]]) -> list[str]:
    first = both[0][0]
    lines = [
        f"Layers of width {first.D} under autocast to {first.dtype}, {first.date}: forward and backward pass, memory",
        "at its peak beyond inputs and parameters, and the largest batch that ran.",
        "",
        "| layer | B | L | ms | torch.fft ms | faster | MiB | torch.fft MiB | less | largest B | torch.fft | commit |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for ours, other in both:
        cells = [
            NAMES[ours.layer] + (f", width {ours.D}" if ours.D != first.D else ""),
            ours.B,
            ours.L,
            milliseconds(ours.step_us),
            milliseconds(other.step_us),
            f"{other.step_us / ours.step_us:.2f}x",
            mebibytes(ours.step_bytes),
            mebibytes(other.step_bytes),
            f"{other.step_bytes / ours.step_bytes:.2f}x",
            ours.largest_batch or "-",
            other.largest_batch or "-",
            ours.commit + (f": {ours.note}" if ours.note else ""),
        ]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return lines


def seed_noise(runs: dict[str, Any]) -> tuple[float, float]:
    """(largest difference of the convolutions' held-out losses at one seed, of the seeds' at one convolution)."""
    losses = {(r["convolution"], r["seed"]): r["held_out_loss"] for r in runs["runs"]}
    seeds = sorted({seed for _, seed in losses})
    between = max(abs(losses["fused", seed] - losses["torch", seed]) for seed in seeds)
    spread = max(
        max(losses[name, seed] for seed in seeds) - min(losses[name, seed] for seed in seeds)
        for name in training.CONVOLUTIONS
    )
    return between, spread


def _run(runs: dict[str, Any]) -> list[str]:
    settings = runs["settings"]
    speed = {
        name: statistics.median(r["tokens_per_s"] for r in runs["runs"] if r["convolution"] == name)
        for name in training.CONVOLUTIONS
    }
    between, spread = seed_noise(runs)
    how = "each a CUDA graph" if all(r.get("graph") for r in runs["runs"]) else "launched one by one"
    lines = [
        f"A Hyena language model ({settings['layers']} layers of width {settings['width']}, {settings['dtype']},",
        f"{settings['length']} bytes, batch {settings['batch']}, {settings['steps']} steps,",
        f"{how}) on {runs['where']}, commit {runs['commit']}: {speed['fused'] / 1e3:.0f} thousand tokens/s by",
        f"`monarch.torch`, {speed['torch'] / 1e3:.0f} by `torch.fft` ({speed['fused'] / speed['torch']:.2f}x).",
        "",
        "| convolution | seed | first loss | last ten | held out | tokens/s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for r in runs["runs"]:
        lines.append(
            f"| {r['convolution']} | {r['seed']} | {r['first_loss']:.3f} | {r['last_loss']:.3f} | "
            f"{r['held_out_loss']:.3f} | {r['tokens_per_s']:.0f} |"
        )
    if len({r["seed"] for r in runs["runs"]}) == 1:
        return [
            *lines,
            "",
            f"The held-out losses of the two convolutions differ by {between:.3f}. A second seed was not run.",
        ]
    lines += [
        "",
        f"At one seed the held-out losses of the two convolutions differ by at most {between:.3f}, those of two seeds",
        f"by {spread:.3f}.",
    ]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.training_report", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument("--gpu", default="h200-sxm", metavar="GPU", help="slug (%(default)s)")
    parser.add_argument("--write", action="store_true", help="put it into docs/training.md")
    chosen = parser.parse_args(arguments)
    try:
        slug = load(chosen.gpu).slug
        text = report(training.operators(slug), training.runs(slug))
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
