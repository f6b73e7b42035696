"""The command line: ``python -m costmodel`` or ``costmodel``.

Data on stdout, notes on stderr. Exit codes: 0 done, 1 a comparison failed its limit, 2 usage, 3 unknown
GPU, 4 no GPU here. Everything heavy (sympy, matplotlib, rich, the kernels) is imported by the command that
needs it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

from costmodel import cli_instruments, conv2d_tables, render, units
from costmodel.cli_predict import run as predict
from costmodel.cli_predict import say, side
from costmodel.errors import NoGPUError, UnknownGPUError

OPERATIONS = ("fftconv", "linear", "decode_attention", "conv2d")
MEASURED = (*OPERATIONS, "fftconv_gradients")
COMPARED = ("fftconv", "fftconv_gradients", "linear", "decode_attention", "decode_step", "conv2d")
EXIT_FAILED, EXIT_USAGE, EXIT_UNKNOWN_GPU, EXIT_NO_GPU = 1, 2, 3, 4

_ABOUT = """\
How long an FFT convolution takes on a GPU, which decomposition of its transform is best, by how much, and
how far to trust the answer; and the same for linear layers and their kernels.

  costmodel predict fftconv --gpu h200-sxm -B 64 -H 768 -N 1024      one case, every candidate plan
  costmodel predict fftconv --gpu h100-sxm -N 256:4M:x2              a sweep: the best plan of each length
  costmodel predict fftconv --gpu a100-sxm-40gb -N 4K --explain      where the time goes, with numbers
  costmodel compare --gpu h200-sxm                                   predictions beside measurements
  costmodel predict linear --gpu h200-sxm -M 8 -N 12288 -K 4096      which kernel for x [M, K] w [N, K]^T
  costmodel thresholds --gpu a100-sxm-80gb --model llama2-7b         from which M on which kernel
  costmodel report --gpu h200-sxm --output h200.html                 all of it on one page
"""
_EXITS = "Exit codes: 0 done, 1 a comparison failed its limit, 2 usage, 3 unknown GPU, 4 no GPU here."
_GPU_HELP = (
    "slug of a GPU (see `costmodel gpus`), auto for the GPU of this machine, or the path of a .toml file"
)
_PREDICT = """\
Time every sensible plan and put the best first: order 2, 3 and 4; factors that are multiples of 16 where
the length has such lists, else any; and whatever else a kernel runs.

Sizes take lists and sweeps: 1024 | 4K | 256,1K,4K | 256:4M:x2 | 1K:8K:+1K  (K = 2^10, M = 2^20).
The interval is one standard deviation of what went in: measured rates, data-sheet values, the model's
own error.
"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="costmodel", description=_ABOUT, epilog=_EXITS, formatter_class=raw)
    top.add_argument("--version", action="version", version=f"monarch-numba {render.version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    p = commands.add_parser(
        "predict",
        help="predict times and the best plan",
        description=_PREDICT,
        epilog=_EXITS,
        formatter_class=raw,
    )
    p.add_argument("op", choices=OPERATIONS, help="operation")
    p.add_argument("--gpu", required=True, metavar="GPU", help=_GPU_HELP)
    shape = p.add_argument_group(
        "shape: u [B, H, L], one filter per channel, transform length N; linear: x [M, K], w [N, K]"
    )
    shape.add_argument(
        "-N", type=_sizes, metavar="N", help="transform length(s) (1024); linear: outputs (4096)"
    )
    shape.add_argument("-M", type=_sizes, metavar="M", help="linear: rows of x (1)")
    shape.add_argument("-K", type=_sizes, metavar="K", help="linear: inputs (4096); conv2d: taps (7)")
    shape.add_argument("-B", type=_sizes, metavar="B", help="batch: sequences per filter (64)")
    shape.add_argument("-H", type=_sizes, metavar="H", help="channels: filters (768)")
    shape.add_argument(
        "-L", type=_sizes, metavar="L", help="input samples (N; N/2 for causal variants); keys (4096)"
    )
    shape.add_argument(
        "--dtype",
        default="fp16",
        choices=("fp16", "bf16", "fp32"),
        help="stored type (fp16); fp32: fftconv and conv2d only",
    )
    shape.add_argument(
        "--variant",
        default="plain",
        choices=("plain", "causal", "gated", "causal-gated"),
        help="gated: y = v * ((u * w) conv k) (plain)",
    )
    heads = p.add_argument_group("decode_attention: one query token over caches [B, L, Hkv, D]")
    heads.add_argument("--Hq", type=_size, metavar="H", help="query heads (32)")
    heads.add_argument("--Hkv", type=_size, metavar="H", help="key heads (Hq)")
    heads.add_argument("-D", type=_size, metavar="D", help="head size (128)")
    conv2d_tables.add_arguments(p, _size)
    how = p.add_argument_group("plan and model")
    how.add_argument("--order", type=_size, metavar="P", help="only plans of this order")
    how.add_argument(
        "--packing",
        default="auto",
        choices=("auto", "pair", "half", "any", "complex", "right-angle"),
        help="pair: two sequences a transform; half: one as N/2 points; right-angle: one of half a length as N/2 "
        "points; auto: pair, half too where a pair does not fit on chip, right-angle for half a length (auto)",
    )
    how.add_argument(
        "--model",
        default="measured",
        choices=("measured", "paper"),
        help="measured: counts over measured rates; paper: Equation 2 of FlashFFTConv (measured)",
    )
    _format(p)
    p.add_argument("--plot", metavar="FILE", help="also draw it (.svg, .png or .pdf)")
    p.add_argument(
        "--explain",
        action="store_true",
        help="also show every term of every plan, and the formula with numbers put in",
    )

    t = commands.add_parser(
        "thresholds",
        help="linear layers: from how many rows on which kernel",
        description="From M1 rows of x on the flat product is ahead of vector products, from M2 on the full one of it: "
        "predicted from a GPU file in closed form, beside what was measured there.",
        epilog=_EXITS,
    )
    t.add_argument("--gpu", required=True, metavar="GPU", help=_GPU_HELP)
    t.add_argument("-N", default=[4096], type=_sizes, metavar="N", help="outputs (4096)")
    t.add_argument("-K", default=[4096], type=_sizes, metavar="K", help="inputs (4096)")
    t.add_argument("--model", metavar="MODEL", help="the layers of this model (see costmodel/models.toml)")
    t.add_argument("--explain", action="store_true", help="also show the closed forms")
    _format(t)

    g = commands.add_parser(
        "gpus", help="the GPUs that are known", description="List GPU files, or print one."
    )
    g.add_argument("--show", metavar="SLUG", help="print this GPU's file: redirect it to make your own")
    _format(g)

    m = commands.add_parser(
        "measure",
        help="time the kernels on this machine's GPU",
        description="Time this project's kernels, and what else is installed, on this GPU; check every "
        "result; write costmodel/measurements. Exit code 4 without a GPU.",
    )
    m.add_argument(
        "--op", default="fftconv", choices=(*MEASURED, "long", "filters"), help="operation (fftconv)"
    )
    m.add_argument(
        "--model",
        action="append",
        metavar="MODEL",
        help="linear: the layers of this model (see costmodel/models.toml); may be repeated (all)",
    )
    for name, kind, metavar, what in (
        ("--layer", str, "LAYER", "only this layer of the models (qkv); tables keep their other entries"),
        ("--shape", _shape, "NxK", "this shape (4097x4096), of no model"),
        ("--rows", int, "M", "only so many rows of x; of others what was measured before stays"),
    ):
        text = f"linear: {what}; repeatable"
        m.add_argument(name, action="append", default=[], type=kind, metavar=metavar, help=text)
    m.add_argument("--quick", action="store_true", help="fewer samples and cases")
    m.add_argument(
        "--plan",
        action="append",
        default=[],
        metavar="FACTORS",
        help="only the lengths of these factors (16x8x16x16), and this plan beside the default; repeatable",
    )

    r = commands.add_parser(
        "measurements", help="print what was measured", description="Print measured rows."
    )
    r.add_argument("--gpu", required=True, metavar="GPU", help=_GPU_HELP)
    r.add_argument("--op", choices=MEASURED, help="operation (all)")
    _format(r)

    c = commands.add_parser(
        "compare",
        help="predictions beside measurements",
        description="Set the predicted time of every measured case beside it, and judge decisions by "
        "their regret: the time of the predicted choice over that of the best measured one (1 is perfect).",
        epilog=_EXITS,
    )
    c.add_argument("--gpu", required=True, metavar="GPU", help=_GPU_HELP)
    c.add_argument(
        "--op",
        choices=COMPARED,
        help="this operation, case by case (every operation in short, and the convolutions case by case)",
    )
    c.add_argument(
        "--max-regret", type=_positive, metavar="X", help="exit 1 when a decision's p95 regret is above X"
    )
    _format(c)

    cli_instruments.add(commands, epilog=_EXITS, formats=render.FORMATS, gpu_help=_GPU_HELP)
    d = commands.add_parser(
        "demo",
        help="the whole path on one page",
        description="Predict the best plan for N = 256 .. 4M on H200, H100 and A100, set it beside "
        "measurements, draw it. With a GPU here, its kernels are timed now.",
    )
    d.add_argument("--out", default="build/demo", metavar="FOLDER", help="where the pictures go (build/demo)")
    return top


def _format(p: argparse.ArgumentParser) -> None:
    p.add_argument("--format", default="table", choices=render.FORMATS, help="table, json, csv or md (table)")


def _argument(convert: Any) -> Any:
    def read(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _at_least_one(text: str) -> float:
    value = float(text)
    if not 1 <= value < float("inf"):
        raise ValueError(f"{text!r}: a regret is a ratio of at least 1")
    return value


_size, _sizes, _shape = _argument(units.size), _argument(units.sizes), _argument(units.pair)
_positive = _argument(_at_least_one)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (argparse itself exits with 2 on a usage error)."""
    options = parser().parse_args(argv)
    try:
        code = _COMMANDS[options.command](options)
        sys.stdout.flush()
        return code
    except UnknownGPUError as error:
        print(f"costmodel: {error}", file=sys.stderr)
        return EXIT_UNKNOWN_GPU
    except NoGPUError as error:
        print(f"costmodel: {error}", file=sys.stderr)
        return EXIT_NO_GPU
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # `costmodel ... | head`: nobody reads any more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        print(f"costmodel: {error}", file=sys.stderr)
        return EXIT_USAGE


def _thresholds(options: argparse.Namespace) -> int:
    from costmodel import linear_tables
    from costmodel.gpus import load
    from costmodel.models import model

    gpu = load(options.gpu)
    if options.model:
        layers = list(model(options.model).linear.items())
    else:
        layers = [("", pair) for pair in itertools.product(options.N, options.K)]
    print(linear_tables.thresholds(layers, gpu, options.format, model=options.model))
    say(gpu.notes)
    if options.explain:
        print("\n" + linear_tables.closed_forms(), file=side(options.format))
    return 0


def _gpus(options: argparse.Namespace) -> int:
    from costmodel import gpus, tables

    if options.show:
        print(gpus.file_text(options.show), end="")
    else:
        print(tables.gpu_list([gpus.load(slug) for slug in gpus.slugs()], options.format))
    return 0


def _measure(options: argparse.Namespace) -> int:
    from costmodel.measure import main as measure

    linear = {
        "models": options.model or (),
        "layers": options.layer,
        "shapes": options.shape,
        "sizes": options.rows,
    }
    if any(linear.values()) and options.op != "linear":
        raise ValueError("--model, --layer, --shape, --rows: they are of linear layers; give --op linear")
    if options.plan and options.op != "fftconv":
        raise ValueError("--plan: only convolutions have plans; give --op fftconv")
    which = linear if options.op == "linear" else {"plans": options.plan}
    return int(measure(op=options.op, quick=options.quick, **which))


def _measurements(options: argparse.Namespace) -> int:
    from costmodel import measurements, tables
    from costmodel.gpus import load

    gpu = load(options.gpu)
    rows = measurements.read(gpu.slug, op=options.op)
    print(tables.measured(rows, gpu, options.format))
    if not rows:
        render.note(f"nothing was measured on {gpu.slug} yet; on such a GPU run: python -m costmodel measure")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from costmodel import comparisons, tables

    if options.op:
        every = [comparisons.compare(options.gpu, options.op)]
    else:
        every = list(comparisons.compare_all(options.gpu).values())
    found, others = every[0], every[1:]
    print(tables.comparisons(found, others, options.format))
    if found.skipped:
        render.note(f"rows left out, of a variant that the model does not predict: {found.skipped}")
    if not found.pairs and options.format in ("json", "csv"):
        render.note(f"nothing of ours was measured on {found.gpu.slug} yet, so nothing was compared")
    if options.max_regret is None:
        return 0
    regrets = [one.worst_regret_p95() for one in every]
    worst = max((regret for regret in regrets if regret is not None), default=None)
    if worst is None:
        render.note("no case has two measured choices, so --max-regret had nothing to judge")
        return 0
    if worst > options.max_regret:
        print(f"costmodel: regret {worst:.3f} is above the limit {options.max_regret:.3f}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _demo(options: argparse.Namespace) -> int:
    from costmodel.demo import main as demo

    return demo(folder=options.out)


_COMMANDS = {
    "predict": predict,
    "gpus": _gpus,
    "measure": _measure,
    "thresholds": _thresholds,
    "measurements": _measurements,
    "compare": _compare,
    "demo": _demo,
    **cli_instruments.COMMANDS,
}
