"""Measure gradients of the fused convolution beside PyTorch's: ``costmodel measure --op fftconv_gradients``.

A case is one backward pass: from u, the taps k, dy and gates to du, dk and the gates' gradients. *ours* starts from the
taps, so the filter's transforms are in it, and keeps nothing of the forward pass; ``ours:dk`` is the filter's gradient
alone, ``ours:prepared`` has the filter's transforms made before, ``filter`` is one of these alone. *torch* is
autograd's backward of ``irfft(rfft(u) * rfft(k))`` in fp32, which kept both spectra. Times are taken as `measure` takes
them.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from costmodel import measure, measurements, render, replays
from costmodel.errors import MeasurementError
from costmodel.measure import Case
from costmodel.measurements import Row

OP = "fftconv_gradients"
FILTER = "filter"
REPLAYS = 10
SOME = (1024, 4096, 16384)
VARIANTS = {
    "causal": (256, 512, 2048, *SOME, 8192, 32768, 65536),
    "gated": (256, 512, *SOME, 8192),
    "causal-gated": (256, 512, 1024, 8192, 16384),
}
"""Lengths at which each is measured."""
FIRST = (1024, 4096, 256, 16384, 65536, 32768, 2048, 8192)
"""Lengths in this order, then the others: a run may be cut short."""
LONGEST_GRAPH = 32768
"""PyTorch's intermediates of longer ones do not fit twice, as a graph of their own needs."""
CHECKED = (0, 1, 300, 767)  # channels whose gradients are compared with float64


@dataclass(frozen=True)
class _Data:
    u: Any
    dy: Any
    gates: dict[str, Any]


def cases(*, quick: bool = False) -> Iterator[Case]:
    """Every length in fp16; variants and bf16 at some."""
    from kernels_numba.gradient_families import DEFAULT_FACTORS

    for n in (*FIRST, *sorted(set(DEFAULT_FACTORS) - set(FIRST))):
        yield Case(n, n, "plain", "fp16")
    for variant, lengths in () if quick else VARIANTS.items():
        for n in lengths:
            yield Case(n, n // 2 if "causal" in variant else n, variant, "fp16")
    for n in () if quick else SOME:
        yield Case(n, n, "plain", "bf16")


def run(*, quick: bool = False) -> Iterator[tuple[Row, float]]:
    """All rows with their bounds, as they are measured.

    Raises:
        MeasurementError: PyTorch with CUDA is not there; or, at the end, results were wrong: they have no row.
    """
    import datetime

    torch = replays.need_torch()
    stamp = (datetime.date.today().isoformat(), replays.commit())
    started = time.perf_counter()
    wrong: list[str] = []
    for case in cases(quick=quick):
        times = []
        for name, dtype, prepare, note in _providers(case, torch):
            try:
                row, bound = _measure(case, name, dtype, prepare, note, torch, stamp)
            except torch.cuda.OutOfMemoryError:
                if name.startswith("ours"):
                    raise
                render.note(f"{name} does not fit into memory: {case.name}")
                continue
            except MeasurementError as error:
                wrong.append(str(error))
                render.note(wrong[-1])
                continue
            finally:
                torch.cuda.empty_cache()
            times.append(f"{name} {row.median_us:.1f} us, error {row.rel_err:.2e}")
            yield row, bound
        render.note(f"[{time.perf_counter() - started:.0f} s] {case.name} {case.dtype}: {'; '.join(times)}")
    if wrong:
        raise MeasurementError("; ".join(wrong))


Prepared = tuple[Callable[[], Any], Callable[[], dict[str, Any]]]


def _providers(case: Case, torch: Any) -> Iterator[tuple[str, str, Callable[[_Data, Any], Prepared], str]]:
    from kernels_numba import FFTConv, FFTConvGradients, fftconv_gradients, prepare_filter
    from kernels_numba.spectrum import prepare_adjoint

    def ours(data: _Data, k: Any, needs: tuple[str, ...]) -> Prepared:
        found: dict[str, Any] = {}

        def call() -> None:
            grads = fftconv_gradients(data.u, k, data.dy, mode=case.mode, needs=needs, **data.gates)
            found.update(grads._asdict())

        return call, lambda: found

    def prepared(data: _Data, k: Any) -> Prepared:
        spectrum = prepare_filter(k, length=case.length, mode=case.mode, dtype=case.dtype, gradients=True)
        run = FFTConvGradients(spectrum, batch=case.batch)
        found: dict[str, Any] = {}
        return lambda: found.update(run(data.u, data.dy, **data.gates)._asdict()), lambda: found

    def adjoint(data: _Data, k: Any) -> Prepared:
        made: dict[str, Any] = {}

        def call() -> None:
            made["spectrum"] = prepare_adjoint(
                k, length=case.length, mode=case.mode, dtype=case.dtype, scaled=True
            )

        return call, lambda: {"u": FFTConv(made["spectrum"], batch=case.batch)(data.dy)}

    def by_torch(data: _Data, k: Any) -> Prepared:
        found: dict[str, Any] = {}
        leaves = {"u": data.u.float(), "k": k, **{name: x.float() for name, x in data.gates.items()}}
        leaves = {name: x.detach().requires_grad_() for name, x in leaves.items()}
        dy = data.dy.float()
        made: dict[int, Any] = {}

        def forward() -> Any:
            x = leaves["u"] * leaves["pregate"] if "pregate" in leaves else leaves["u"]
            product = torch.fft.rfft(x, n=case.n) * torch.fft.rfft(leaves["k"], n=case.n)
            y = torch.fft.irfft(product, n=case.n)[..., : case.length]
            return y * leaves["postgate"] if "postgate" in leaves else y

        def call() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            if stream not in made:  # autograd goes back on the stream on which it came
                made.clear()
                found.clear()
                made[stream] = forward()
            grads = torch.autograd.grad(made[stream], list(leaves.values()), dy, retain_graph=True)
            found.update(zip(leaves, grads, strict=True))

        return call, lambda: found

    everything = ("u", "k", "pregate", "postgate")
    yield "ours", case.dtype, lambda data, k: ours(data, k, everything), "from the taps"
    yield "ours:prepared", case.dtype, prepared, "with prepared spectra"
    yield "ours:dk", case.dtype, lambda data, k: ours(data, k, ("k",)), "the filter's gradient alone"
    if not case.gated:
        yield FILTER, case.dtype, adjoint, "a transform of the filter alone"
    if case.dtype != "bf16" and not (case.gated and case.n > 4096):
        yield "torch", "fp32", by_torch, "autograd of irfft(rfft(u) rfft(k)), both spectra kept"


def _measure(
    case: Case,
    name: str,
    dtype: str,
    prepare: Callable[[_Data, Any], Prepared],
    note: str,
    torch: Any,
    stamp: tuple[str, str],
) -> tuple[Row, float]:
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[case.dtype]
    item = 4 if dtype == "fp32" else 2
    size = case.batch * case.channels * case.length
    arrays = 7 if case.gated else 3
    nbytes = arrays * size * item + 8 * case.channels * case.length
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    flops = 2 * case.flops
    sets = max(1, min(measure.MAX_SETS, math.ceil(2 * cache / nbytes)))
    if name == FILTER:  # taps in, a spectrum of halves out
        nbytes = 4 * case.channels * (case.length + case.n)
        flops = int(2.5 * case.channels * case.n * math.log2(case.n))
    generator = torch.Generator(device="cuda").manual_seed(1)
    shape = (case.batch, case.channels, case.length)

    def random() -> Any:
        return torch.randn(shape, device="cuda", generator=generator, dtype=kind)

    names = ("pregate", "postgate") if case.gated else ()
    data = [_Data(random(), random(), {gate: random() for gate in names}) for _ in range(sets)]
    k = torch.randn(shape[1:], device="cuda", generator=generator) / math.sqrt(case.length)
    made = [prepare(one, k) for one in data]
    errors = []
    for one, (call, found) in zip(data, made, strict=True):
        call()
        errors += _errors(one, k, found(), case, dtype, name, torch)
    calls = [call for call, _ in made]
    if name == "torch" and case.n > LONGEST_GRAPH:
        times = _time_without_graph(calls[0], torch)
    else:
        times = replays.time_calls(calls, torch, replays=REPLAYS)
    deciles = statistics.quantiles(times, n=10)
    row = Row(
        OP,
        measurements.format_case(
            OP,
            {"B": case.batch, "H": case.channels, "N": case.n, "L": case.length, "variant": case.variant},
        ),
        dtype,
        name,
        statistics.median(times),
        deciles[1],
        deciles[7],
        len(times),
        nbytes,
        flops,
        max(error for error, _ in errors),
        *stamp,
        f"{note}; {sets} input set{'s' if sets > 1 else ''}",
    )
    return row, max(bound for _, bound in errors)


def _time_without_graph(call: Callable[[], Any], torch: Any) -> list[float]:
    """Microseconds of GPU time of some calls, each long enough that the host keeps ahead."""
    times = []
    for _ in range(4):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return times[1:]


def _errors(
    data: _Data, k: Any, found: dict[str, Any], case: Case, dtype: str, name: str, torch: Any
) -> list[tuple[float, float]]:
    """The error and the bound of every gradient, for some channels, against float64; raises if one is too large."""
    import reference
    from kernels_numba.families import default_plans

    gates = 2 if case.gated else 0
    order = default_plans()[case.n].order
    order = max(order, 4) if case.n > 24576 else order  # half-length packing rounds once more
    exact = dtype == "fp32"
    bounds = {
        "k": measure.FP32_BOUND
        if exact
        else reference.filter_gradient_bound(min(order, 3), dtype, gates=gates),
        "u": measure.FP32_BOUND if exact else reference.fftconv_bound(order, dtype, gates=gates),
    }
    chosen = list(CHECKED)
    before, after = (
        None if gate not in data.gates else data.gates[gate][:, chosen].double()
        for gate in ("pregate", "postgate")
    )
    u, dy, taps = (x[..., chosen, :].double() for x in (data.u, data.dy, k))
    x = u if before is None else u * before
    e = dy if after is None else dy * after
    spectrum, of_e, of_x = (torch.fft.rfft(v, n=case.n) for v in (taps, e, x))
    dx = torch.fft.irfft(of_e * spectrum.conj(), n=case.n)[..., : case.length]
    c = torch.fft.irfft(of_x * spectrum, n=case.n)[..., : case.length]
    # As `reference.relative_error`: relative to |input| |taps|, and a gate's root mean square.
    into, out_of = (v.norm(dim=-1) * taps.norm(dim=-1) for v in (e, x))

    def under(size: Any, gate: Any) -> Any:
        return size if gate is None else size * gate.norm(dim=-1) / math.sqrt(case.length)

    sizes = {
        "u": under(into, before),
        "pregate": under(into, u),
        "postgate": under(out_of, dy),
        "k": e.norm(dim=-1) * x.norm(dim=-1),
    }
    wanted = {
        "u": dx if before is None else dx * before,
        "k": torch.fft.irfft((of_e * of_x.conj()).sum(0), n=case.n)[..., : case.length],
        "pregate": dx * u,
        "postgate": c * dy,
    }
    out = []
    for key, value in found.items():
        if value is None:
            continue
        got = value[..., chosen, :].double()
        error = ((got - wanted[key]).norm() / torch.maximum(sizes[key].norm(), wanted[key].norm())).item()
        bound = bounds["k" if key == "k" else "u"]
        if not error <= bound:  # true for NaN as well
            raise MeasurementError(
                f"{name} {case.name} {case.dtype}: gradient in {key}: error {error:.3g}, bound {bound:.3g}; its row is "
                "not written"
            )
        out.append((error, bound))
    return out
