"""Measure the kernels of this machine's GPU beside their peers: ``python -m costmodel measure``.

How a time is taken: all providers of a case in one run; random data; inputs and outputs rotated through
several sets when one set is smaller than twice the L2 cache; warm-up, then many replays of a CUDA graph of
back-to-back calls, each timed by events on the GPU; median, 20th and 80th percentile over the replays. Every
output is compared with float64 first, from memory poisoned with NaN, and a result outside its bound
(``reference.fftconv_bound``) ends the run without writing that row.

PyTorch is the peer and the source of data, so it must be installed; nothing else here needs it.
"""

from __future__ import annotations

import datetime
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import monarch
from costmodel import gpus, measurements, render
from costmodel.errors import MeasurementError
from costmodel.measured_plans import default_of, plans_asked, plans_of
from costmodel.measurements import Row
from costmodel.replays import commit, need_torch, time_calls
from monarch import Plan

BATCH, CHANNELS = 64, 768
MAX_SETS = 12
LONGEST_GATED_PEER = 32768
NO_GPU = 4
FP32_BOUND = 1e-6
MODULES = {
    "long": "measure_long",
    "filters": "measure_filters",
    "fftconv_gradients": "measure_gradients",
    "decode_attention": "measure_attention",
    "conv2d": "measure_conv2d",
}
"""Which module measures an operation; rows of the first two are the convolution's."""


@dataclass(frozen=True)
class Case:
    """One convolution to time."""

    n: int
    length: int
    variant: str
    dtype: str
    batch: int = BATCH
    channels: int = CHANNELS

    @property
    def gated(self) -> bool:
        """With a gate on the input and one on the output."""
        return "gated" in self.variant

    @property
    def mode(self) -> str:
        """The convolution's mode."""
        return "causal" if self.variant.startswith("causal") else "circular"

    @property
    def name(self) -> str:
        """The ``case`` column."""
        return measurements.format_case(
            "fftconv",
            {"B": self.batch, "H": self.channels, "N": self.n, "L": self.length, "variant": self.variant},
        )

    def bytes_min(self, item: int) -> int:
        """Input, gates and output of ``item`` bytes an element, and the filter's spectrum, once each."""
        arrays = 4 if self.gated else 2
        return arrays * self.batch * self.channels * self.length * item + 2 * item * self.channels * self.n

    @property
    def flops(self) -> int:
        """Nominal: two real transforms at 2.5 N log2 N, and N / 2 complex products, per sequence."""
        return round(self.batch * self.channels * (5 * self.n * math.log2(self.n) + 3 * self.n))


def cases(*, quick: bool = False) -> Iterator[Case]:
    """What is measured: every length of the fused kernels; up to 1024 points every variant in both half types.

    In fp32 every length, plain, causal and gated.
    """
    from kernels_numba.families import default_factors

    for n in () if quick else sorted(default_factors("fp32")):
        for variant, length in (("plain", n), ("causal", n // 2), ("gated", n)):
            yield Case(n, length, variant, "fp32")
    for n in sorted(default_factors()):
        yield Case(n, n, "plain", "fp16")
        if quick:
            continue
        yield Case(n, n, "plain", "bf16")
        yield Case(n, n // 2, "causal", "fp16")
        yield Case(n, n, "gated", "fp16")
        if n <= 1024:
            yield Case(n, n // 2, "causal-gated", "fp16")
            for variant, length in (("causal", n // 2), ("gated", n), ("causal-gated", n // 2)):
                yield Case(n, length, variant, "bf16")
    if not quick:
        yield Case(4096, 4096, "plain", "fp16", batch=1)


def main(
    *,
    op: str | None = None,
    quick: bool = False,
    plans: Sequence[str] = (),
    models: Sequence[str] = (),
    layers: Sequence[str] = (),
    shapes: Sequence[tuple[int, int]] = (),
    sizes: Sequence[int] = (),
) -> int:
    """Measure and write ``costmodel/measurements/<gpu>/<op>.csv``; the exit code.

    With ``plans`` ("16x8x16x16") only the lengths that they have, in every variant: the default plan and these; of a
    length that has no default plan, plain in fp16. For linear layers, those of ``models`` (by default all; ``layers``
    names some of them) with their dispatch tables, or ``shapes`` [N, K] without; with ``sizes`` rows of x only.
    """
    if op not in (None, "fftconv", "linear", *MODULES):
        render.note(f"op: accepted are fftconv, linear, {', '.join(MODULES)}; got {op!r}")
        return 2
    try:
        asked = plans_asked(plans)
    except (TypeError, ValueError) as error:
        render.note(str(error))
        return 2
    from kernels_numba import device

    here = device()
    if not here.is_gpu:
        render.note(f"no GPU to measure: {here.reason}")
        return NO_GPU
    gpu = gpus.by_device_name(str(here.name))
    if op == "linear":
        from costmodel import measure_linear
        from costmodel.models import models as known

        written = measure_linear.main(
            models=list(models or (() if shapes else known())),
            layers=layers,
            shapes=shapes,
            sizes=sizes,
            quick=quick,
            slug=gpu.slug,
            gpu_name=str(here.name),
            sm_count=int(here.sm_count or 1),
        )
        render.note(f"wrote {written} rows to {measurements.path_of(gpu.slug, op)}")
        return 0
    written = 0
    path = measurements.path_of(gpu.slug, "fftconv" if op in (None, "long", "filters") else op)
    if op in MODULES:
        rows = import_module(f"costmodel.{MODULES[op]}").run(quick=quick)
    else:
        rows = run(quick=quick, asked=asked)
    for row, bound in rows:  # row by row: what was measured stays when the run is cut short
        measurements.append([row], gpu.slug, bounds=[bound])
        written += 1
    render.note(f"wrote {written} rows to {path}")
    return 0


def live(*, quick: bool = True) -> list[Row]:
    """Measure now and write nothing."""
    return [measurements.check(row, bound=bound) for row, bound in run(quick=quick)]


def run(*, quick: bool = False, asked: Sequence[Plan] = ()) -> Iterator[tuple[Row, float]]:
    """All rows with their bounds, as they are measured; with ``asked``, those of the cases that these plans have.

    Raises:
        MeasurementError: PyTorch with CUDA is not there, or a result is wrong.
    """
    torch = need_torch()
    stamp = (datetime.date.today().isoformat(), commit())
    lengths = {plan.n for plan in asked}
    todo = [case for case in cases(quick=quick) if not asked or case.n in lengths]
    todo += [Case(n, n, "plain", "fp16") for n in sorted(lengths - {case.n for case in todo})]
    started = time.perf_counter()
    for number, case in enumerate(todo, start=1):
        done = []
        for provider in _providers(case, torch, asked):
            try:
                done.append(_measure(case, provider, torch, stamp))
            except torch.cuda.OutOfMemoryError:
                if provider.name.startswith("ours"):
                    raise
                render.note(f"{provider.name} does not fit into memory: {case.name} {case.dtype}")
            torch.cuda.empty_cache()
        yield from done
        ours = done[0][0]
        peers = "".join(f"{row.provider} {row.median_us:.1f} us, " for row, _ in done[1:])
        render.note(
            f"[{number}/{len(todo)}, {time.perf_counter() - started:.0f} s] {case.name} {case.dtype}: "
            f"{ours.median_us:.1f} us, {peers}error {ours.rel_err:.2e}"
        )
    if not quick and not asked:
        from costmodel.host_cost import rows as host_rows

        yield from host_rows(torch, stamp)


@dataclass(frozen=True)
class _Provider:
    """A way to compute a case: ``prepare(data)`` gives a call without arguments and where its result lies."""

    name: str
    dtype: str
    prepare: Callable[[_Data], tuple[Callable[[], Any], Any]]
    note: str
    bound: float


@dataclass(frozen=True)
class _Data:
    """One set of inputs on the GPU; gates are None unless the case has them."""

    u: Any
    pregate: Any
    postgate: Any


def _providers(case: Case, torch: Any, asked: Sequence[Plan] = ()) -> list[_Provider]:
    import reference
    from kernels_numba import FFTConv, prepare_filter

    filters = _filters(case, torch)
    gates = 2 if case.gated else 0
    found = []
    default = default_of(case)
    for plan in plans_of(case, asked):
        spectrum = prepare_filter(filters, length=case.length, mode=case.mode, dtype=case.dtype, plan=plan)
        convolve = FFTConv(spectrum, batch=case.batch)

        def ours(data: _Data, convolve: Any = convolve) -> tuple[Callable[[], Any], Any]:
            y = torch.full_like(data.u, math.nan)
            return lambda: convolve(data.u, pregate=data.pregate, postgate=data.postgate, out=y), y

        text = monarch.format_factors(plan.factors)
        name = "ours" if plan == default else f"ours:{text}"
        if case.dtype == "fp32":
            bound = reference.fft32_bound(case.n, gates=gates)
        else:
            bound = reference.fftconv_bound(plan.order, case.dtype, gates=gates)
        note = f"plan={text}" + ("" if plan.packing == "pair" else f"; packing={plan.packing}")
        found.append(_Provider(name, case.dtype, ours, note, bound))
    if case.gated and case.n > LONGEST_GATED_PEER:  # PyTorch's intermediates would not fit beside the data
        return found
    if case.dtype != "bf16":  # fp32 input and output: the same row for all types
        call = _torch_call(case, torch, filters, half=False)
        found.append(_Provider("torch", "fp32", call, "irfft(rfft(u) kf), kf prepared", FP32_BOUND))
    if case.dtype == "fp32":
        return found
    found.append(
        _Provider(
            "torch:half-io",
            case.dtype,
            _torch_call(case, torch, filters, half=True),
            "the same between casts to and from fp32",
            2 * reference.unit_roundoff(case.dtype),
        )
    )
    return found


def _filters(case: Case, torch: Any) -> Any:
    generator = torch.Generator(device="cuda").manual_seed(case.n)
    shape = (case.channels, case.length)
    return torch.randn(shape, device="cuda", generator=generator, dtype=torch.float64) / math.sqrt(
        case.length
    )


def _torch_call(case: Case, torch: Any, filters: Any, *, half: bool) -> Callable:
    spectrum = torch.fft.rfft(filters.float(), n=case.n)

    def prepare(data: _Data) -> tuple[Callable[[], Any], Any]:
        inputs = [x if x is None or half else x.float() for x in (data.u, data.pregate, data.postgate)]
        y = torch.full_like(inputs[0], math.nan)

        def call() -> None:
            u, before, after = inputs
            x = u if before is None else u * before
            out = torch.fft.irfft(torch.fft.rfft(x.float(), n=case.n) * spectrum, n=case.n)[
                ..., : case.length
            ]
            if after is not None:
                out = out.to(u.dtype) * after
            y.copy_(out)

        return call, y

    return prepare


def input_sets(case: Case, item: int, torch: Any) -> list[_Data]:
    """Random inputs, in so many sets that those and their outputs, of ``item`` bytes, fill the L2 cache twice."""
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[case.dtype]
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(1, min(MAX_SETS, math.ceil(2 * cache / case.bytes_min(item))))
    generator = torch.Generator(device="cuda").manual_seed(1)
    shape = (case.batch, case.channels, case.length)

    def random() -> Any:
        return torch.randn(shape, device="cuda", generator=generator).to(kind)

    return [_Data(random(), *((random(), random()) if case.gated else (None, None))) for _ in range(sets)]


def _measure(
    case: Case,
    provider: _Provider,
    torch: Any,
    stamp: tuple[str, str],
    data: Sequence[_Data] = (),
) -> tuple[Row, float]:
    """A row and its bound; with ``data``, of these inputs."""
    item = 4 if provider.dtype == "fp32" else 2
    nbytes = case.bytes_min(item)
    data = data or input_sets(case, item, torch)
    sets = len(data)
    prepared = [provider.prepare(d) for d in data]
    error = 0.0
    filters = _filters(case, torch)
    for one, (call, y) in zip(data, prepared, strict=True):
        call()
        found = _error(one, filters, y, case, torch)
        if not found <= provider.bound:  # true for NaN as well
            raise MeasurementError(
                f"{provider.name} {case.name} {case.dtype}: error {found:.3g}, bound {provider.bound:.3g}; "
                "its row is not written"
            )
        error = max(error, found)
    times = time_calls([call for call, _ in prepared], torch)
    deciles = statistics.quantiles(times, n=10)
    low, middle, high = deciles[1], statistics.median(times), deciles[7]
    note = f"{provider.note}; {sets} input set{'s' if sets > 1 else ''}"
    row = Row(
        "fftconv",
        case.name,
        provider.dtype,
        provider.name,
        middle,
        low,
        high,
        len(times),
        nbytes,
        case.flops,
        error,
        *stamp,
        note,
    )
    return row, provider.bound


def _error(data: _Data, filters: Any, y: Any, case: Case, torch: Any) -> float:
    """||y - exact|| over the norm of ||u|| ||k|| ||gate||, as ``reference.relative_error``; NaN if any is."""
    spectrum = torch.fft.fft(filters, n=case.n)
    taps = filters.norm(dim=-1)
    wrong = size = 0.0
    for start in range(0, case.batch, 8):
        part = slice(start, start + 8)
        x = data.u[part].double()
        if data.pregate is not None:
            x = x * data.pregate[part].double()
        exact = torch.fft.ifft(torch.fft.fft(x, n=case.n) * spectrum).real[..., : case.length]
        terms = x.norm(dim=-1) * taps
        if data.postgate is not None:
            after = data.postgate[part].double()
            exact = exact * after
            terms = terms * after.norm(dim=-1) / math.sqrt(case.length)
        wrong += (y[part].double() - exact).square().sum().item()
        size += torch.maximum(terms, exact.norm(dim=-1)).square().sum().item()
    return math.sqrt(wrong / size)


if __name__ == "__main__":
    sys.exit(main())
