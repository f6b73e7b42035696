"""``costmodel predict``: a table, then an explanation, then a picture, for every operation."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable
from typing import Any

from costmodel import conv2d_tables, render

SHAPES: dict[str, dict[str, Any]] = {
    "fftconv": {"N": [1024], "B": [64], "H": [768], "L": None},
    "linear": {"M": [1], "N": [4096], "K": [4096]},
    "decode_attention": {"B": [64], "Hq": 32, "Hkv": None, "D": 128, "L": [4096]},
    "conv2d": {"B": [64], "N": [32], "K": [7], "Cin": 96, "Cout": None, "which": "fprop"},
}
"""Options that say an operation's shape, with what they are if not given (None: what follows from others)."""


def fill_in(options: argparse.Namespace) -> None:
    """Put in what was not given.

    Raises:
        ValueError: an option was given that another operation has.
    """
    mine = SHAPES[options.op]
    for name in dict.fromkeys(key for shape in SHAPES.values() for key in shape):
        if getattr(options, name) is None:
            setattr(options, name, mine.get(name))
        elif name not in mine:
            flag = "--pass" if name == "which" else f"-{name}" if len(name) == 1 else f"--{name}"
            others = " and ".join(op for op, shape in SHAPES.items() if name in shape)
            raise ValueError(f"{options.op}: {flag} belongs to {others}; leave it out")


def run(options: argparse.Namespace) -> int:
    """Print what was asked for, explain it and draw it; returns the exit code."""
    from costmodel.gpus import load

    fill_in(options)
    gpu = load(options.gpu)
    if options.plot:
        from costmodel import plots

        plots.check_name(options.plot)
    if options.op != "fftconv":
        return _predict_other(options, gpu)
    from costmodel import fftconv, tables

    forecasts = [
        fftconv.predict(
            n,
            gpu=gpu,
            batch=b,
            channels=h,
            length=length,
            dtype=options.dtype,
            variant=options.variant,
            order=options.order,
            packing=options.packing,
            model=options.model,
        )
        for n, b, h, length in itertools.product(options.N, options.B, options.H, options.L or [None])
    ]
    print(tables.forecasts(forecasts, options.format, terms=options.explain))
    if options.explain:
        text = render.wrapped("\n\n".join(fftconv.explain(f) for f in forecasts))
        print(f"\n{text}" if options.format == "table" else text, file=side(options.format))
    say(note for f in forecasts for note in f.notes)
    if options.plot:
        plots.save(plots.forecast_figure(forecasts), options.plot)
        render.note(f"drew {options.plot}")
    return 0


def _predict_other(options: argparse.Namespace, gpu: Any) -> int:
    """The operations without plans of a transform: a table, then an explanation, then a picture."""
    strange = [
        name
        for name, given in (
            ("--order", options.order),
            ("--packing", options.packing != "auto"),
            ("--model paper", options.model == "paper"),
            ("--variant", options.variant != "plain"),
        )
        if given
    ]
    if strange:
        verb = "belongs" if len(strange) == 1 else "belong"
        raise ValueError(f"{options.op}: {', '.join(strange)} {verb} to fftconv; leave it out")
    make: Any = {"linear": _linear, "decode_attention": _attention, "conv2d": _layer}[options.op]
    table, explanation, figure = make(options, gpu)
    print(table)
    if options.explain:
        text = render.wrapped(explanation())
        print(f"\n{text}" if options.format == "table" else text, file=side(options.format))
    say(gpu.notes)
    if options.plot:
        from costmodel import plots

        plots.save(figure(), options.plot)
        render.note(f"drew {options.plot}")
    return 0


def _linear(options: argparse.Namespace, gpu: Any) -> tuple[str, Any, Any]:
    from costmodel import linear_tables

    if options.dtype == "fp32":
        raise ValueError("--dtype: got fp32; accepted with linear: fp16, bf16")
    cases = list(itertools.product(options.M, options.N, options.K))
    table = linear_tables.predictions(cases, gpu, options.dtype, options.format, explain=options.explain)
    return (
        table,
        lambda: linear_tables.explanations(cases, gpu, options.dtype),
        lambda: linear_tables.figure(cases, gpu, options.dtype),
    )


def _attention(options: argparse.Namespace, gpu: Any) -> tuple[str, Any, Any]:
    from costmodel import attention_tables

    if options.dtype == "fp32":
        raise ValueError("--dtype: got fp32; accepted with decode_attention: fp16, bf16")
    cases = attention_tables.cases_of(
        batches=options.B,
        heads=options.Hq,
        kv_heads=options.Hkv or options.Hq,
        head_size=options.D,
        lengths=options.L,
    )
    return (
        attention_tables.predict(gpu, options.format, cases),
        lambda: attention_tables.explanations(gpu, cases),
        lambda: attention_tables.figure(gpu, cases),
    )


def _layer(options: argparse.Namespace, gpu: Any) -> tuple[str, Any, Any]:
    return (
        conv2d_tables.predict(options, gpu),
        lambda: conv2d_tables.explanations(options, gpu),
        lambda: conv2d_tables.figure(options, gpu),
    )


def say(notes: Iterable[str]) -> None:
    """Every note once, on stderr."""
    for text in dict.fromkeys(notes):
        render.note(text)


def side(form: str) -> Any:
    """Where an explanation goes: beside a table, but never into a document that a program reads."""
    return sys.stdout if form == "table" else sys.stderr
