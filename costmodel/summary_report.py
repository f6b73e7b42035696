"""README's first table: some measured cases of every operation beside what PyTorch takes; `speed_report` writes it."""

from __future__ import annotations

from costmodel import measurements
from costmodel.measurements import Row

CASES = (
    ("fftconv", "B=64;H=768;N=1024;L=1024;variant=plain", "FFT convolution, 64 x 768 sequences of 1024"),
    ("fftconv", "B=64;H=768;N=16384;L=16384;variant=plain", "the same of 16384"),
    ("fftconv", "B=8;H=48;N=1048576;L=1048576;variant=plain", "8 x 48 of 1M"),
    (
        "fftconv_gradients",
        "B=64;H=768;N=4096;L=4096;variant=plain",
        "both gradients of 64 x 768 of 4096, from the taps",
    ),
    (
        "conv2d",
        "S=128;Cin=96;Cout=96;n=32;k=7;pass=fprop",
        "conv2d, 128 images, 96 to 96 channels, 32 x 32, 7 x 7",
    ),
    ("linear", "M=8;N=12288;K=4096", "linear, 8 rows, [12288, 4096] weights, launches that overlap"),
    (
        "decode_attention",
        "B=8;Hq=32;Hkv=32;D=128;L=4096;variant=async",
        "decode attention, 8 x 32 heads, 4096 keys",
    ),
)
"""Operation, case, and what it is in words; inputs in fp16."""
PEERS = ("torch", "cublas", "cudnn", "sdpa")
NAMES = {"torch": "torch, fp32", "cublas": "cuBLAS", "cudnn": "cuDNN", "sdpa": "torch attention"}
OURS = ("ours", "ours:flat-overlapped", "ours:flat", "ours:full-overlapped", "ours:full", "ours:gemv")
"""Ways to run ours that compete: of linear layers, kernels and overlapped launches."""


def lines(gpu: str) -> list[str]:
    """The table; a case that was not measured has no line."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in measurements.read(gpu):
        if row.dtype == "fp16" or not row.ours:
            rows.setdefault((row.op, row.case), []).append(row)
    found = ["| in fp16 | ours, us | theirs, us | speed-up |", "|---|---:|---:|---:|"]
    for op, case, words in CASES:
        measured = rows.get((op, case), [])
        ours = [row.median_us for row in measured if row.provider in OURS]
        peers = [(row.median_us, _peer(row)) for row in measured if _peer(row)]
        if ours and peers:
            us, (theirs, name) = min(ours), min(peers)
            found.append(
                f"| {words} | {_figure(us)} | {_figure(theirs)} ({NAMES[name]}) | {theirs / us:.2f} |"
            )
    return found


def _peer(row: Row) -> str:
    """Whose row it is, of those that users would call instead; ``""`` for ours and where it is not the same work."""
    name, _, variant = row.provider.partition(":")
    known = next((peer for peer in PEERS if name.partition("-")[0] == peer), "")
    return "" if variant.startswith(("host", "depthwise")) else known


def _figure(us: float) -> str:
    return f"{us:.1f}" if us < 99.95 else f"{us:.0f}"
