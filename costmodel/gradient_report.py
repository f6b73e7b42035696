"""The measured table of ``docs/gradients.md``; `speed_report` puts it there."""

from __future__ import annotations

from costmodel import measurements
from costmodel.measurements import Row, format_case

OP = "fftconv_gradients"
GPU = "h200-sxm"
BATCH, CHANNELS = 64, 768


def lines() -> list[str]:
    """Every measured case beside the forward pass and PyTorch's backward."""
    rows = {(row.case, row.dtype, row.provider): row for row in measurements.read(GPU, op=OP)}
    forwards = {(row.case, row.dtype, row.provider): row for row in measurements.read(GPU, op="fftconv")}
    found = [
        f"One H200, {BATCH} sequences of {CHANNELS} channels; microseconds of GPU time.",
        "",
        "| N | case | forward | all gradients | / forward | spectra prepared | / forward | dk alone | a transform of k "
        "| / forward | torch | speed-up | error |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    cases = dict.fromkeys((row.case, row.dtype) for row in rows.values() if row.ours)
    for case, dtype in sorted(cases, key=_order):
        values = measurements.parse_case(OP, case)
        if (values["B"], values["H"]) != (BATCH, CHANNELS):
            continue
        forward = forwards.get((format_case("fftconv", values), dtype, "ours"))
        every, prepared, dk = (rows.get((case, dtype, name)) for name in ("ours", "ours:prepared", "ours:dk"))
        of_filter, torch = rows.get((case, dtype, "filter")), rows.get((case, "fp32", "torch"))
        variant = f"{values['variant']}, {dtype}"
        cells = [
            str(values["N"]),
            variant,
            _time(forward),
            _time(every),
            _ratio(every, forward),
            _time(prepared),
            _ratio(prepared, forward),
            _time(dk),
            _time(of_filter),
            _ratio(of_filter, forward),
            _time(torch),
            _ratio(torch, every, digits=1),
            f"{every.rel_err:.1e}".replace("e-0", "e-") if every else "",
        ]
        found.append("| " + " | ".join(cells) + " |")
    return found


def _order(case: tuple[str, str]) -> tuple[bool, str, int]:
    """Plain cases in fp16 first, then the others by variant; by length."""
    values = measurements.parse_case(OP, case[0])
    variant = f"{values['variant']}, {case[1]}"
    return variant != "plain, fp16", variant, int(values["N"])


def _time(row: Row | None) -> str:
    return "" if row is None else f"{row.median_us:.1f}" if row.median_us < 99.95 else f"{row.median_us:.0f}"


def _ratio(one: Row | None, other: Row | None, *, digits: int = 2) -> str:
    return f"{one.median_us / other.median_us:.{digits}f}" if one and other else ""
