"""Measure layers with a long convolution, forward and backward, beside the same ones by `torch.fft`.

    python -m costmodel.measure_training [--quick] [--layer hyena] [--length 4096] [--output training.csv]

GPU time by graph replay, as in `costmodel.measure`: of a forward pass that records gradients, and of forward and
backward pass. Memory as PyTorch's allocator counts it: what is allocated at the peak, less what was before (parameters
and inputs), which is how the FlashFFTConv paper counts. The largest batch is found by running: memory grows linearly
with the batch, so two small ones say where to look. Both convolutions have the same parameters and inputs, and where
their outputs or gradients differ by more than rounding explains, no row is written.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from costmodel import measurements, render
from costmodel.errors import MeasurementError
from costmodel.measure import commit, need_torch, time_calls
from costmodel.training import CONVOLUTIONS, LAYERS, OperatorRow, to_csv

WIDTH = 768
TOKENS = 64 * 4096
LENGTHS = (128, 4096, 16384, 65536)
BARE_LENGTHS = (256, 1024, 4096, 8192, 16384, 32768)
REPLAYS = 10
FITS = 0.98  # of the batch that two smaller ones predict


@dataclass(frozen=True)
class Case:
    """One layer and shape."""

    layer: str
    length: int
    batch: int
    width: int = WIDTH
    dtype: str = "fp16"

    @property
    def bare(self) -> bool:
        """A convolution alone."""
        return self.layer.startswith("fftconv")


def cases(*, layers: Sequence[str] = LAYERS, lengths: Sequence[int] = (), quick: bool = False) -> list[Case]:
    """What is measured: as many samples as 64 sequences of 4096 have, and never more than 64 sequences."""
    found = []
    for layer in layers:
        for length in lengths or (BARE_LENGTHS if layer.startswith("fftconv") else LENGTHS):
            if not quick or length == 4096:
                found.append(Case(layer, length, max(1, min(64, TOKENS // length))))
    return found


def bound(case: Case, order: int = 4) -> float:
    """The largest difference that rounding explains: two casts, products and a convolution on either side."""
    import reference

    gates = 0 if case.layer in ("fftconv", "longconv") else 2
    single = reference.filter_gradient_bound(order, case.dtype, gates=gates)
    return single if case.bare else 8 * single


class Layer:
    """A layer with its inputs on the GPU; calling it is a forward pass, the result a number to differentiate."""

    def __init__(self, case: Case, convolution: str, torch: Any, *, batch: int | None = None) -> None:
        from monarch.torch import fftconv, torch_fftconv
        from monarch.torch.operators import OPERATORS

        torch.manual_seed(0)
        self.torch, self.case = torch, case
        self.half = {"fp16": torch.float16, "bf16": torch.bfloat16}[case.dtype]
        convolve = fftconv if convolution == "fused" else torch_fftconv
        shape = (batch or case.batch, case.width, case.length)

        def noise() -> Any:
            return torch.randn(shape, device="cuda", dtype=self.half).requires_grad_()

        if case.bare:
            k = torch.randn(case.width, case.length, device="cuda") * case.length**-0.5
            gates = {n: noise() for n in ("pregate", "postgate")} if case.layer.endswith("gated") else {}
            self.x = noise()
            # The bare convolution is the circular one, as the paper measures it.
            self.run: Callable[[Any], Any] = lambda x: convolve(x, self.parameters[0], **gates)
            self.parameters = [k.requires_grad_(), *gates.values()]
        else:
            made = OPERATORS[case.layer]
            # The same for both: short filters compiled to one pass each.
            short = {} if case.layer == "longconv" else {"short": _compiled(torch)}
            module = made(case.width, case.length, convolve=convolve, **short).cuda()
            self.run, self.parameters = module, list(module.parameters())
            self.x = torch.randn(shape[0], *shape[:0:-1], device="cuda", dtype=self.half).requires_grad_()

    def forward(self) -> Any:
        """The output; weights are cast to half precision anew, as in a training step."""
        with self.torch.autocast("cuda", self.half, cache_enabled=False):
            return self.run(self.x)

    def step(self) -> Any:
        """Forward and backward pass; gradients are made anew."""
        self.x.grad = None
        for p in self.parameters:
            p.grad = None
        y = self.forward()
        y.backward(self.x.detach() if y.shape == self.x.shape else self.torch.ones_like(y))
        return y

    def results(self) -> list[Any]:
        """Output and gradients of a step."""
        y = self.step()
        return [y.detach(), self.x.grad, *(p.grad for p in self.parameters)]


@cache
def _compiled(torch: Any) -> Any:
    from monarch.torch.operators import short_conv

    return torch.compile(short_conv, fullgraph=True, dynamic=True)


def peak(call: Callable[[], Any], torch: Any) -> int:
    """Bytes allocated at the peak of a call, beyond what was allocated before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def largest_batch(case: Case, convolution: str, torch: Any) -> int:
    """The largest batch that a step runs with, within two percent."""

    def ran(batch: int) -> int:
        """Bytes that a step with this batch needs, inputs and all; 0 if it does not fit."""
        torch.cuda.empty_cache()
        try:
            torch.cuda.reset_peak_memory_stats()
            Layer(case, convolution, torch, batch=batch).step()
            torch.cuda.synchronize()
        except torch.cuda.OutOfMemoryError:
            return 0
        return int(torch.cuda.max_memory_allocated())

    few = max(1, case.batch // 4)
    small, double = ran(few), ran(2 * few)
    if not small or not double:
        return few if small else 0
    torch.cuda.empty_cache()
    room = torch.cuda.mem_get_info()[0] + torch.cuda.memory_allocated()
    guess = int(few + (room - small) / max(1, (double - small) / few))
    limit = (2**31 - 1) // case.width  # sequences that a launch takes
    for _ in range(6):
        guess = max(1, min(int(guess * FITS), limit))
        if ran(guess):
            return guess
    return 2 * few


def measured(case: Case, torch: Any, stamp: tuple[str, str], *, batches: bool) -> Iterator[OperatorRow]:
    """The rows of a case, of both convolutions."""
    rows: dict[str, dict[str, Any]] = {}
    results: dict[str, list[Any]] = {}
    for convolution in CONVOLUTIONS:
        layer = Layer(case, convolution, torch)
        results[convolution] = layer.results()
        figures: dict[str, Any] = {}
        for part, call in (("forward", layer.forward), ("step", layer.step)):
            layer.step()
            layer.x.grad = None
            for p in layer.parameters:
                p.grad = None
            figures[f"{part}_bytes"] = peak(call, torch)
            times = time_calls([call], torch, replays=REPLAYS)
            deciles = statistics.quantiles(times, n=10)
            figures |= {
                f"{part}_us": statistics.median(times),
                f"{part}_p20_us": deciles[1],
                f"{part}_p80_us": deciles[7],
                "samples": len(times),
            }
        rows[convolution] = figures
        del layer, call
        torch.cuda.empty_cache()
    differences = [
        ((a.float() - b.float()).norm() / b.float().norm()).item()
        for a, b in zip(*results.values(), strict=True)
    ]
    results.clear()
    limit = bound(case)
    if not max(differences) <= limit:  # true for NaN as well
        raise MeasurementError(
            f"{case}: outputs and gradients differ by {[f'{x:.2g}' for x in differences]}, bound {limit:.2g}; "
            "no row is written"
        )
    for convolution, figures in rows.items():
        most = largest_batch(case, convolution, torch) if batches else 0
        yield OperatorRow(
            layer=case.layer,
            B=case.batch,
            D=case.width,
            L=case.length,
            dtype=case.dtype,
            convolution=convolution,
            largest_batch=most,
            rel_diff=max(differences),
            date=stamp[0],
            commit=stamp[1],
            **figures,
        )


def run(todo: Sequence[Case], *, batches: bool = True) -> Iterator[OperatorRow]:
    """All rows, as they are measured; a length that the kernels do not take is left out, and named.

    Raises:
        MeasurementError: PyTorch with CUDA is not there, or results differ.
    """
    torch = need_torch()
    stamp = (datetime.date.today().isoformat(), commit())
    for number, case in enumerate(todo, start=1):
        try:
            rows = list(measured(case, torch, stamp, batches=batches and not case.bare))
        except (ValueError, torch.cuda.OutOfMemoryError) as error:
            if isinstance(error, MeasurementError):
                raise
            render.note(f"[{number}/{len(todo)}] {case}: left out: {str(error).splitlines()[0]}")
            torch.cuda.empty_cache()
            continue
        ours, other = rows
        render.note(
            f"[{number}/{len(todo)}] {case.layer} B={case.batch} L={case.length}: forward {ours.forward_us:.0f} us "
            f"({other.forward_us / ours.forward_us:.2f}x), step {ours.step_us:.0f} us "
            f"({other.step_us / ours.step_us:.2f}x), bytes {ours.forward_bytes / 2**20:.0f} MiB "
            f"({other.forward_bytes / ours.forward_bytes:.2f}x), of a step "
            f"{other.step_bytes / ours.step_bytes:.2f}x, batch {ours.largest_batch} and {other.largest_batch}; "
            f"difference {ours.rel_diff:.1e}"
        )
        yield from rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.measure_training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="4096 samples only, and no largest batch")
    parser.add_argument("--layer", action="append", choices=LAYERS, help="this one; may be given again")
    parser.add_argument("--length", action="append", type=int, help="this many samples; may be given again")
    parser.add_argument(
        "--output", type=Path, help="the file to write; by default that of this GPU in costmodel/measurements"
    )
    options = parser.parse_args(arguments)
    todo = cases(layers=options.layer or LAYERS, lengths=options.length or (), quick=options.quick)
    try:
        text = to_csv(run(todo, batches=not options.quick))
        path = options.output or measurements.FOLDER / _slug() / "training.csv"
    except MeasurementError as error:
        render.note(str(error))
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    render.note(f"written: {path}")
    return 0


def _slug() -> str:
    import torch

    from costmodel import gpus

    return gpus.by_device_name(torch.cuda.get_device_name()).slug


if __name__ == "__main__":
    sys.exit(main())
