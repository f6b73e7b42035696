"""Every operation's predictions beside its measurements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from costmodel.compare import Comparison
from costmodel.gpus import GPU, load

OPERATIONS = ("fftconv", "fftconv_gradients", "linear", "decode_attention", "decode_step", "conv2d")


def compare(gpu: str | GPU, op: str, *, folder: Path | None = None) -> Comparison:
    """One operation on a GPU; without a case where nothing was measured.

    Raises:
        ValueError: an operation that is not among `OPERATIONS`.
    """
    chosen = load(gpu)
    if op not in OPERATIONS:
        raise ValueError(f"op: got {op!r}; accepted: {', '.join(OPERATIONS)}")
    return _module(op)(chosen, folder=folder)


def _module(op: str) -> Callable[..., Comparison]:
    from costmodel import compare as fftconv
    from costmodel import compare_conv2d, compare_decode, compare_gradients, compare_linear, decode_attention

    modules: dict[str, Any] = {
        "fftconv": fftconv,
        "fftconv_gradients": compare_gradients,
        "linear": compare_linear,
        "decode_attention": decode_attention,
        "decode_step": compare_decode,
        "conv2d": compare_conv2d,
    }
    made: Callable[..., Comparison] = modules[op].compare
    return made


def compare_all(gpu: str | GPU, *, folder: Path | None = None) -> dict[str, Comparison]:
    """Every operation, by name; those without measurements too."""
    chosen = load(gpu)
    return {op: compare(chosen, op, folder=folder) for op in OPERATIONS}
