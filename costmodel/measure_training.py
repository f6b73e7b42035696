"""Measure layers with a long convolution, forward and backward, beside the same ones by `torch.fft`.

    python -m costmodel.measure_training [--quick] [--layer hyena] [--length 4096] [--output training.csv]

GPU time by graph replay, as in `costmodel.measure`: of a forward pass that records gradients, and of forward and
backward pass. Memory as PyTorch's allocator counts it: what is allocated at the peak, less what was before (parameters
and inputs), which is how the FlashFFTConv paper counts. The largest batch is found by running: memory grows linearly
with the batch, so two small ones say where to look. Both convolutions have the same parameters and inputs, and where
their outputs or gradients differ by more than rounding explains, no row is written. A case that one of the two has no
memory for is measured with half the sequences, or, with one sequence, half the channels.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel import render
from costmodel.errors import MeasurementError
from costmodel.replays import commit, need_torch, time_calls
from costmodel.training import CONVOLUTIONS, FOLDER, LAYERS, OperatorRow, to_csv

WIDTH = 768
TOKENS = 64 * 4096
LENGTHS = (128, 4096, 16384, 65536, 2**20)
BARE_LENGTHS = (256, 1024, 4096, 8192, 16384, 32768, 65536, 2**20)
REPLAYS = 10
FITS = 0.98  # of the batch that two smaller ones predict
LESS = 0.93  # of one that did not fit
KEPT_ON_GPU = 2**32  # elements of an output that stays there to be compared
PIECE = 2**26  # elements that are compared at a time
NARROWEST = 192  # channels that a case without memory for more is measured with


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

    def smaller(self) -> Case | None:
        """Half the sequences or, of one sequence, half the channels; nothing if that would be too narrow."""
        if self.batch > 1:
            return replace(self, batch=self.batch // 2)
        return replace(self, width=self.width // 2) if self.width >= 2 * NARROWEST else None


def cases(*, layers: Sequence[str] = LAYERS, lengths: Sequence[int] = (), quick: bool = False) -> list[Case]:
    """What is measured: 4096 samples first, then the rest; as many samples as 64 sequences of 4096 have.

    Bare convolutions have 64 sequences at every length but the longest, as the paper has. Beyond TOKENS samples a
    layer has one sequence.
    """
    found = []
    for layer in layers:
        bare = layer.startswith("fftconv")
        for length in lengths or (BARE_LENGTHS if bare else LENGTHS):
            batch = min(64, 2**22 // length) if bare else TOKENS // length
            if not quick or length == 4096:
                found.append(Case(layer, length, max(1, batch)))
    return sorted(found, key=lambda case: case.length != 4096)


def bound(case: Case, order: int = 4) -> float:
    """The largest difference that rounding explains: of a convolution, and of casts and products on either side."""
    import reference

    gates = 0 if case.layer in ("fftconv", "longconv") else 2
    single = reference.filter_gradient_bound(order, case.dtype, gates=gates)
    return (1.5 if case.bare else 8) * single


class Layer:
    """A layer with its inputs; `forward` is a forward pass that records gradients, `step` that and a backward pass."""

    def __init__(
        self, case: Case, convolution: str, torch: Any, *, batch: int | None = None, device: str = "cuda"
    ) -> None:
        from monarch.torch import fftconv, torch_fftconv
        from monarch.torch.operators import OPERATORS

        torch.manual_seed(0)
        self.torch, self.device = torch, device
        self.half = {"fp16": torch.float16, "bf16": torch.bfloat16}[case.dtype]
        convolve = fftconv if convolution == "fused" else torch_fftconv
        shape = (batch or case.batch, case.width, case.length)

        def noise() -> Any:
            return torch.randn(shape, device=device, dtype=self.half).requires_grad_()

        self.parameters: list[Any]
        if case.bare:
            k = torch.randn(case.width, case.length, device=device) * case.length**-0.5
            gates = {n: noise() for n in ("pregate", "postgate")} if case.layer.endswith("gated") else {}
            self.x = noise()
            self.parameters = [k.requires_grad_(), *gates.values()]
            # The bare convolution is the circular one, as the paper measures it.
            self.run: Callable[[Any], Any] = lambda x: convolve(x, k, **gates)
            self.dy = self.x.detach()
        else:
            made = OPERATORS[case.layer]
            module = made(case.width, case.length, convolve=convolve).to(device)
            self.run, self.parameters = module, list(module.parameters())
            self.x = torch.randn(
                shape[0], shape[2], shape[1], device=device, dtype=self.half
            ).requires_grad_()
            self.dy = self.x.detach() / 64  # so that sums over all samples stay within fp16

    def forward(self) -> Any:
        """The output; weights are cast to half precision anew, as in a training step."""
        with self.torch.autocast(self.device, self.half, cache_enabled=False):
            return self.run(self.x)

    def forget(self) -> None:
        """Free all gradients."""
        self.x.grad = None
        for p in self.parameters:
            p.grad = None

    def step(self) -> Any:
        """Forward and backward pass; gradients are made anew."""
        self.forget()
        y = self.forward()
        y.backward(self.dy)
        return y

    def results(self) -> list[Any]:
        """Output of a step, gradient in the input, and those in all parameters in a row."""
        y = self.step()
        rows = [p.grad.float().flatten() for p in self.parameters]
        return [y.detach(), self.x.grad.detach(), self.torch.cat(rows)]


def workspaces() -> int:
    """Bytes that kernels allocated for themselves, which PyTorch's allocator does not see."""
    from kernels_numba.workspace import allocated

    return allocated(0)


def peak(call: Callable[[], Any], torch: Any) -> int:
    """Bytes allocated at the peak of a call, beyond what was allocated before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def largest_batch(case: Case, convolution: str, torch: Any) -> int:
    """The largest batch that a step runs with, within seven percent."""
    from kernels_numba.launch import LaunchError

    def ran(batch: int) -> int:
        """Bytes that a step with this batch needs, inputs and all; 0 if it does not fit."""
        torch.cuda.empty_cache()
        try:
            torch.cuda.reset_peak_memory_stats()
            Layer(case, convolution, torch, batch=batch).step()
            torch.cuda.synchronize()
        except (torch.cuda.OutOfMemoryError, LaunchError):
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
    for part in (FITS, *[LESS] * 6):  # pieces of free memory are not always together
        guess = max(1, min(int(guess * part), limit))
        if ran(guess):
            return guess
    return 2 * few


def times_of(call: Callable[[], Any], torch: Any, nbytes: int) -> tuple[list[float], str]:
    """Microseconds of GPU time of one call, many times; by a graph, and if it cannot be captured by events: a note.

    ``nbytes``: what a call takes, which a graph takes once more, for itself.
    """
    if 2.2 * nbytes < torch.cuda.get_device_properties(0).total_memory:
        try:
            return time_calls([call], torch, replays=REPLAYS), ""
        except RuntimeError as error:
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise
    torch.cuda.synchronize()
    found = []
    for number in range(REPLAYS + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        if number >= 2:
            found.append(begin.elapsed_time(end) * 1e3)
    return found, "launched, not captured"


def differences(found: Sequence[Any], others: Sequence[Any], *, device: str) -> list[float]:
    """Relative differences in L2, of every result; in pieces, and wherever each lies."""
    out = []
    for a, b in zip(found, others, strict=True):
        apart = size = 0.0
        for x, y in zip(a.flatten().split(PIECE), b.flatten().split(PIECE), strict=True):
            x, y = x.to(device).float(), y.to(device).float()
            apart += (x - y).double().square().sum().item()
            size += y.double().square().sum().item()
        out.append(math.sqrt(apart / size))
    return out


def measured(
    case: Case, torch: Any, stamp: tuple[str, str], *, batches: bool, device: str = "cuda"
) -> list[OperatorRow]:
    """The rows of a case, of both convolutions; raises `MeasurementError` where these differ."""
    from monarch.torch import forget_spectra

    rows: dict[str, dict[str, Any]] = {}
    results: list[Any] = []
    for convolution in CONVOLUTIONS:
        forget_spectra()  # and workspaces, which are counted
        layer = Layer(case, convolution, torch, device=device)
        if not results:
            kept = device if case.batch * case.width * case.length <= KEPT_ON_GPU else "cpu"
            results = [x.to(kept) for x in layer.results()]
        else:
            found, limit = differences(results, layer.results(), device=device), bound(case)
            results = []
            if not max(found) <= limit:  # true for NaN as well
                raise MeasurementError(
                    f"{case}: output and gradients differ by {[f'{x:.2g}' for x in found]}, bound {limit:.2g}; "
                    "no row is written"
                )
        figures: dict[str, Any] = {"note": ""}
        for part, call in (("forward", layer.forward), ("step", layer.step)):
            layer.forget()
            figures[f"{part}_bytes"] = peak(call, torch) + (workspaces() if convolution == "fused" else 0)
            times, note = times_of(call, torch, figures[f"{part}_bytes"])
            deciles = statistics.quantiles(times, n=10)
            figures |= {
                f"{part}_us": statistics.median(times),
                f"{part}_p20_us": deciles[1],
                f"{part}_p80_us": deciles[7],
                "samples": len(times),
                "note": note or figures["note"],
            }
        rows[convolution] = figures
        del layer, call
        torch.cuda.empty_cache()
    return [
        OperatorRow(
            layer=case.layer,
            B=case.batch,
            D=case.width,
            L=case.length,
            dtype=case.dtype,
            convolution=convolution,
            largest_batch=largest_batch(case, convolution, torch) if batches else 0,
            rel_diff=max(found),
            date=stamp[0],
            commit=stamp[1],
            **figures,
        )
        for convolution, figures in rows.items()
    ]


def what_fits(case: Case, torch: Any, stamp: tuple[str, str], *, batches: bool) -> list[OperatorRow]:
    """The rows of a case, or of the largest smaller one that memory has room for."""
    from kernels_numba.launch import LaunchError

    tried: Case | None = case
    while tried:
        try:
            return measured(tried, torch, stamp, batches=batches)
        except (torch.cuda.OutOfMemoryError, LaunchError) as error:
            reason = str(error).splitlines()[0]
            if "memory" not in reason.lower():
                raise
        # Out here, what the failed case held can be freed: an error holds all that its functions did.
        gc.collect()
        torch.cuda.empty_cache()
        render.note(f"{tried}: {reason}")
        tried = tried.smaller()
    raise MeasurementError(f"{case}: not even a smaller one fits")


def run(
    todo: Sequence[Case], *, batches: bool = True, seconds: float = float("inf")
) -> Iterator[OperatorRow]:
    """All rows, as they are measured; no case is begun after so many ``seconds``.

    A length that the kernels do not take is left out, and so are a case whose results differ and one without memory;
    all are named.

    Raises:
        MeasurementError: PyTorch with CUDA is not there.
    """
    torch = need_torch()
    stamp = (datetime.date.today().isoformat(), commit())
    started = time.perf_counter()
    for number, case in enumerate(todo, start=1):
        if time.perf_counter() - started > seconds:
            render.note(f"{len(todo) - number + 1} cases were not begun")
            return
        try:
            ours, other = what_fits(case, torch, stamp, batches=batches and not case.bare)
        except ValueError as error:
            render.note(f"[{number}/{len(todo)}] {case}: left out: {str(error).splitlines()[0]}")
            continue
        render.note(
            f"[{number}/{len(todo)}, {time.perf_counter() - started:.0f} s] {case.layer} B={ours.B} D={ours.D} "
            f"L={case.length}: forward {ours.forward_us:.0f} us ({other.forward_us / ours.forward_us:.2f}x), "
            f"step {ours.step_us:.0f} us ({other.step_us / ours.step_us:.2f}x), "
            f"{ours.forward_bytes / 2**20:.0f} MiB ({other.forward_bytes / ours.forward_bytes:.2f}x), "
            f"of a step {ours.step_bytes / 2**20:.0f} MiB ({other.step_bytes / ours.step_bytes:.2f}x), "
            f"batch {ours.largest_batch} and {other.largest_batch}; difference {ours.rel_diff:.1e} {ours.note}"
        )
        yield ours
        yield other


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
        "--output",
        type=Path,
        help="the file to write; by default that of this GPU in costmodel/training_runs",
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case after so many")
    parser.add_argument("--no-batches", action="store_true", help="do not look for the largest batch")
    options = parser.parse_args(arguments)
    todo = cases(layers=options.layer or LAYERS, lengths=options.length or (), quick=options.quick)
    rows: list[OperatorRow] = []
    try:
        need_torch()
        path = options.output or FOLDER / _slug() / "training.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        batches = not (options.quick or options.no_batches)
        for row in run(todo, batches=batches, seconds=options.seconds):
            rows.append(row)
            if (
                row.convolution == CONVOLUTIONS[-1]
            ):  # both of a case: what is there is complete whenever this ends
                path.write_text(to_csv(rows), encoding="utf-8")
    except MeasurementError as error:
        render.note(str(error))
        return 1
    render.note(f"{len(rows)} rows: {path}")
    return 0 if rows else 1


def _slug() -> str:
    import torch

    from costmodel import gpus

    return gpus.by_device_name(torch.cuda.get_device_name()).slug


if __name__ == "__main__":
    sys.exit(main())
