"""The measured tables of ``docs/long.md``, which `speed_report` writes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from costmodel import compare, measurements, timing, units
from costmodel.gpus import load
from costmodel.measurements import Row

GPU = "h200-sxm"
PUBLISHED_LADDER = {50: 1.2, 75: 1.3, 79: 1.4, 84: 1.5, 91: 1.8}
"""Speed-up by sparsity in per cent: Fu et al., arXiv 2311.05908, Table 9."""


def _rows() -> list[Row]:
    """Rows of long transforms, of short filters and of zeros."""
    found = []
    for row in measurements.read(GPU, op="fftconv"):
        variant = str(row.case_values["variant"])
        if int(row.case_values["N"]) > 65536 and row.dtype in ("fp16", "fp32"):
            found.append(row)
        elif variant.startswith(("partial", "sparse")):
            found.append(row)
    return found


def _note(row: Row, name: str) -> str:
    found = re.search(rf"\b{name}=([^; ]+)", row.note)
    return found[1] if found else ""


def _megabytes(row: Row) -> str:
    return f"{int(_note(row, 'extra') or 0) / 2**20:.0f}"


def _peer(rows: Sequence[Row], case: str, provider: str) -> Row | None:
    return next((row for row in rows if row.case == case and row.provider == provider), None)


def _ms(row: Row | None) -> str:
    return f"{row.median_us / 1e3:.3g}" if row else "-"


def tables() -> list[str]:
    """All of them."""
    rows = _rows()
    return [*_whole(rows), "", *_partial(rows), "", *_sparse(rows)]


def _predicted(row: Row) -> float:
    gpu = load(GPU)
    plan = compare.plan_to_judge(row)
    assert plan is not None
    return timing.seconds(compare.counts_of(row, plan, gpu), gpu, timing.inputs_of(gpu)) * 1e3


def _whole(rows: Sequence[Row]) -> list[str]:
    """Plain and causal, with the times predicted, and 12 bytes a sample at the copy rate."""
    rate = load(GPU).measured["device_copy_bytes_per_s"].median
    lines = [
        "One H200, fp16, spectrum prepared; GPU time in ms. MiB: what a call takes beside input, output and spectrum.",
        "",
        "| N | L | B, H | plan | ours | predicted | its bytes | torch, fp32 | speed-up | error | MiB | MiB, torch |",
        "|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    chosen = [r for r in rows if r.provider == "ours" and r.case_values["variant"] in ("plain", "causal")]
    for row in sorted(
        chosen, key=lambda r: (-int(r.case_values["B"]), int(r.case_values["N"]), -int(r.case_values["L"]))
    ):
        case = row.case_values
        n, length, pairs = int(case["N"]), int(case["L"]), -(-int(case["B"]) // 2) * int(case["H"])
        moved = 16 * n * pairs + 4 * int(case["B"]) * int(case["H"]) * length + 4 * n * int(case["H"])
        torch = _peer(rows, row.case, "torch")
        gain = f"{torch.median_us / row.median_us:.1f}" if torch else "-"
        error = f"{row.rel_err:.1e}".replace("e-0", "e-")
        cells = (
            units.short(n),
            units.short(length),
            f"{case['B']}, {case['H']}",
            _note(row, "plan"),
            _ms(row),
            f"{_predicted(row):.3g}",
            f"{moved / rate * 1e3:.3g}",
            _ms(torch),
            gain,
            error,
            _megabytes(row),
            _megabytes(torch) if torch else "-",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _partial(rows: Sequence[Row]) -> list[str]:
    """Short filters in tiles, beside the whole at once."""
    lines = [
        "Filters of K taps over signals of 1M samples (B = 8, H = 48): in tiles, and as a whole.",
        "",
        "| K | tile | tiles, ms | whole, ms | whole / tiles | torch, ms | error | MiB, tiles | whole | torch |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    found = [r for r in rows if str(r.case_values["variant"]).startswith("partial") and r.provider == "ours"]
    for row in sorted(found, key=lambda r: int(str(r.case_values["variant"])[8:])):
        whole = next((r for r in rows if r.case == row.case and r.provider.startswith("ours:")), None)
        torch = _peer(rows, row.case, "torch")
        gain = f"{whole.median_us / row.median_us:.2f}" if whole else "-"
        error = f"{row.rel_err:.1e}".replace("e-0", "e-")
        lines.append(
            f"| {str(row.case_values['variant'])[8:]} | {_note(row, 'tile')} | {_ms(row)} | {_ms(whole)} | {gain} | "
            f"{_ms(torch)} | {error} | {_megabytes(row)} | {_megabytes(whole) if whole else '-'} | "
            f"{_megabytes(torch) if torch else '-'} |"
        )
    return lines


def _sparse(rows: Sequence[Row]) -> list[str]:
    """The sparsity ladder at 2M points."""
    lines = [
        "Zeros in the spectrum of 2M points (B = 8, H = 32), along the axes of the outer factors first.",
        "",
        "| zeros | rows kept | ms | speed-up over no zeros | published speed-up | error |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    dense = next(
        (r for r in rows if r.provider == "ours" and r.case == "B=8;H=32;N=2097152;L=2097152;variant=plain"),
        None,
    )
    found = [r for r in rows if str(r.case_values["variant"]).startswith("sparse")]
    for row in sorted(found, key=lambda r: int(str(r.case_values["variant"])[7:])):
        percent = int(str(row.case_values["variant"])[7:])
        gain = f"{dense.median_us / row.median_us:.2f}" if dense else "-"
        error = f"{row.rel_err:.1e}".replace("e-0", "e-")
        lines.append(
            f"| {float(_note(row, 'sparsity')):.1%} | {_note(row, 'rows')} of 256 | {_ms(row)} | {gain} | "
            f"{PUBLISHED_LADDER[percent]} | {error} |"
        )
    return lines
