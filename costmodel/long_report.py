"""The measured tables of ``docs/long.md``, which `speed_report` writes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from costmodel import compare, long_traffic, measurements, timing, units
from costmodel.gpus import load
from costmodel.measurements import Row

GPU = "h200-sxm"
WHERE = {"": "", "within": ", within rows", "low": ", low pass"}
"""Where the zeros of a case are, in words."""
PUBLISHED_LADDER = {50: 1.2, 75: 1.3, 79: 1.4, 84: 1.5, 91: 1.8}
"""Speed-up by sparsity in per cent: Fu et al., arXiv 2311.05908, Table 9."""


def _rows() -> list[Row]:
    """Rows of long transforms, of short filters and of zeros."""
    found = []
    for row in measurements.read(GPU, op="fftconv"):
        variant = str(row.case_values["variant"])
        if int(row.case_values["N"]) > {"fp16": 65536, "fp32": 57344}.get(row.dtype, 2**30):
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


def _gigabytes(row: Row | None) -> str:
    """What hardware counters say that a call moved, read and written."""
    if row is None:
        return "-"
    found = (m for m in long_traffic.read(GPU) if (m.case, m.provider) == (row.case, row.provider))
    moved = next(found, None)
    return f"{moved.bytes / 1e9:.2f}" if moved else "-"


def _error(row: Row) -> str:
    return f"{row.rel_err:.1e}".replace("e-0", "e-")


def tables() -> list[str]:
    """All of them."""
    rows = _rows()
    return [*_whole(rows), "", *_floats(rows), "", *_partial(rows), "", *_sparse(rows)]


def traffic() -> list[str]:
    """Device memory moved by the first case in groups of several sizes."""
    rows = [m for m in long_traffic.read(GPU) if m.provider.startswith("ours")]
    first = next((m.case for m in rows if "groups" in m.provider), "")
    lines = ["| groups | launches | GB read | GB written |", "|---|---:|---:|---:|"]
    for moved in sorted((m for m in rows if m.case == first), key=lambda m: -m.launches):
        size = moved.provider.partition("groups=")[2] or "256MiB"
        read, written = moved.read_bytes / 1e9, moved.written_bytes / 1e9
        lines.append(f"| {size[:-3]} MiB | {moved.launches} | {read:.2f} | {written:.2f} |")
    return lines


def _predicted(row: Row) -> float:
    gpu = load(GPU)
    plan = compare.plan_to_judge(row)
    assert plan is not None
    return timing.seconds(compare.counts_of(row, plan, gpu), gpu, timing.inputs_of(gpu)) * 1e3


def _shape(row: Row) -> tuple[str, str, str, str]:
    case = row.case_values
    shape = f"{case['B']}, {case['H']}"
    return units.short(int(case["N"])), units.short(int(case["L"])), shape, _note(row, "plan")


def _least_ms(row: Row, item: int) -> float:
    """Six crossings of device memory by a sample, and the spectrum, at the rate of a copy."""
    rate = load(GPU).measured["device_copy_bytes_per_s"].median
    case = row.case_values
    n, length, pairs = int(case["N"]), int(case["L"]), -(-int(case["B"]) // 2) * int(case["H"])
    moved = 8 * n * pairs + 2 * int(case["B"]) * int(case["H"]) * length + 2 * n * int(case["H"])
    return item * moved / rate * 1e3


def _whole(rows: Sequence[Row]) -> list[str]:
    """Plain and causal, with the times predicted, and 12 bytes a sample at the copy rate."""
    lines = [
        "One H200, fp16, spectrum prepared; GPU time in ms. MiB: what a call takes beside input, output and spectrum. "
        "GB: read from and written to device memory in a call, by the hardware's counters.",
        "",
        "| N | L | B, H | plan | ours | predicted | its bytes | torch, fp32 | speed-up | error | MiB | MiB, torch | GB "
        "| GB, torch |",
        "|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    chosen = [
        r
        for r in rows
        if (r.provider, r.dtype) == ("ours", "fp16") and r.case_values["variant"] in ("plain", "causal")
    ]
    for row in sorted(
        chosen, key=lambda r: (-int(r.case_values["B"]), int(r.case_values["N"]), -int(r.case_values["L"]))
    ):
        torch = _peer(rows, row.case, "torch")
        cells = (
            *_shape(row),
            _ms(row),
            f"{_predicted(row):.3g}",
            f"{_least_ms(row, 2):.3g}",
            _ms(torch),
            f"{torch.median_us / row.median_us:.1f}" if torch else "-",
            _error(row),
            _megabytes(row),
            _megabytes(torch) if torch else "-",
            _gigabytes(row),
            _gigabytes(torch),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _floats(rows: Sequence[Row]) -> list[str]:
    """The same in fp32."""
    lines = [
        "The same in fp32.",
        "",
        "| N | L | B, H | plan | ours | predicted | its bytes | torch, fp32 | speed-up | error | MiB |",
        "|---:|---:|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    chosen = [r for r in rows if (r.provider, r.dtype, r.case_values["variant"]) == ("ours", "fp32", "plain")]
    for row in sorted(chosen, key=lambda r: int(r.case_values["N"])):
        torch = _peer(rows, row.case, "torch")
        cells = (
            *_shape(row),
            _ms(row),
            f"{_predicted(row):.3g}",
            f"{_least_ms(row, 4):.3g}",
            _ms(torch),
            f"{torch.median_us / row.median_us:.1f}" if torch else "-",
            _error(row),
            _megabytes(row),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _partial(rows: Sequence[Row]) -> list[str]:
    """Short filters in tiles, beside the whole at once."""
    lines = [
        "Filters of K taps over signals of 1M samples (B = 8, H = 48): in tiles (to 12288 taps), and as a whole.",
        "",
        "| K | tile | tiles, ms | whole, ms | whole / tiles | torch, ms | error | MiB, tiles | whole | torch |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    found = {r.case: r for r in rows if str(r.case_values["variant"]).startswith("partial")}
    for case, some in sorted(found.items(), key=lambda x: int(str(x[1].case_values["variant"])[8:])):
        tiles, torch = (_peer(rows, case, provider) for provider in ("ours", "torch"))
        whole = next((r for r in rows if r.case == case and r.provider.startswith("ours:")), None)
        best = tiles or whole or some
        cells = (
            str(some.case_values["variant"])[8:],
            _note(tiles, "tile") if tiles else "-",
            _ms(tiles),
            _ms(whole),
            f"{whole.median_us / tiles.median_us:.2f}" if whole and tiles else "-",
            _ms(torch),
            _error(best),
            *(_megabytes(row) if row else "-" for row in (tiles, whole, torch)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _sparse(rows: Sequence[Row]) -> list[str]:
    """The sparsity ladder at 2M points."""
    lines = [
        "Zeros in the spectrum of 2M points (B = 8, H = 32), along the axes of the outer factors first; *within rows*: "
        "along the first axis of the rows' kernel; *low pass*: along its last.",
        "",
        "| zeros | rows kept | ms | speed-up over no zeros | published speed-up | error | GB |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    dense = next(
        (
            r
            for r in rows
            if (r.provider, r.dtype) == ("ours", "fp16")
            and r.case == "B=8;H=32;N=2097152;L=2097152;variant=plain"
        ),
        None,
    )
    if dense:
        lines.append(f"| 0 | 256 of 256 | {_ms(dense)} | 1 | 1 | {_error(dense)} | {_gigabytes(dense)} |")
    found = [r for r in rows if str(r.case_values["variant"]).startswith("sparse")]
    for row in sorted(
        found, key=lambda r: (len(str(r.case_values["variant"])), str(r.case_values["variant"]))
    ):
        percent, _, where = str(row.case_values["variant"])[7:].partition("-")
        cells = (
            f"{float(_note(row, 'sparsity')):.1%}{WHERE[where]}",
            f"{_note(row, 'rows')} of 256",
            _ms(row),
            f"{dense.median_us / row.median_us:.2f}" if dense else "-",
            str(PUBLISHED_LADDER[int(percent)]),
            _error(row),
            _gigabytes(row),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines
