"""Measure convolution layers beside cuDNN; how a time is taken is described in `costmodel.measure`.

Providers of a case: ``ours`` by FFT in the tiles that the model chooses, with all transforms inside; for the gradient
of the weights also ``ours:kept``, with the spectrum of x that the forward pass kept; ``cudnn`` through PyTorch with
``benchmark = True``, and ``cudnn:channels-last``, where all arrays lie that way (in fp32 without TF32). No padding,
stride 1. Passes: fprop, bprop (gradient of the input) and accgrad (gradient of the weights). Errors are against
float64, of eight images, or of eight outputs' weights. Rows ``:host-call`` have the host's time of a call instead.
"""

from __future__ import annotations

import datetime
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel import measurements, render
from costmodel.compiled import compile_together
from costmodel.conv2d import PASSES
from costmodel.errors import MeasurementError
from costmodel.host_cost import host_times
from costmodel.measure import commit, need_torch, time_calls
from costmodel.measurements import Row

OP = "conv2d"
MAX_SETS = 6
EXACT_IMAGES, EXACT_OUTPUTS = 8, 8
REPLAYS = 15

LAYERS = (
    (128, 96, 96, 32, 7),
    (128, 96, 96, 32, 11),
    (128, 96, 96, 64, 7),
    (64, 128, 128, 64, 11),
    (128, 3, 96, 128, 11),
    (128, 64, 128, 64, 9),
    (128, 128, 128, 32, 9),
    (128, 128, 128, 16, 7),
    (128, 384, 384, 13, 3),
)
"""(S, Cin, Cout, n, k): layers for which speed is asked for, and those of convnet-benchmarks."""
LARGE = (16, 64, 64, 128, 65)
"""(S, Cin, Cout, n, k): a filter that no tile has room for."""
DEPTHWISE = ((128, 96, 32, 3), (128, 96, 32, 7), (64, 96, 56, 7), (64, 96, 64, 31))
"""(S, C, n, k): layers with a filter for each channel, as providers ``ours:depthwise``, ``cudnn:depthwise``."""
SWEEP = {3: (3, 5, 7), 64: (3, 5, 7), 96: (3, 5), 128: (3, 5, 7), 384: (5, 7)}
"""By input channels, other filter sizes, forward only: from which k on the FFT wins."""


@dataclass(frozen=True)
class Case:
    """One pass of a layer to time."""

    batch: int
    inputs: int
    outputs: int
    size: int
    taps: int
    name_of_pass: str
    dtype: str = "fp16"
    groups: int = 1

    @property
    def name(self) -> str:
        """The ``case`` column."""
        values: dict[str, int | str] = {"S": self.batch, "Cin": self.inputs, "Cout": self.outputs}
        return measurements.format_case(
            OP, values | {"n": self.size, "k": self.taps, "pass": self.name_of_pass}
        )

    @property
    def which(self) -> str:
        """The pass, as the kernels call it."""
        return PASSES[self.name_of_pass]

    @property
    def shapes(self) -> dict[str, tuple[int, int, int, int]]:
        """Of x, w and y."""
        out = self.size - self.taps + 1
        return {
            "x": (self.batch, self.inputs, self.size, self.size),
            "w": (self.outputs, self.inputs // self.groups, self.taps, self.taps),
            "dy": (self.batch, self.outputs, out, out),
        }

    @property
    def bytes_min(self) -> int:
        """All three arrays, once each."""
        return (4 if self.dtype == "fp32" else 2) * sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def terms(self) -> int:
        """Terms of the direct sum of one result."""
        if self.which == "weight_gradient":
            return self.batch * math.prod(self.shapes["dy"][2:])
        channels = self.inputs if self.which == "forward" else self.outputs
        return channels // self.groups * self.taps**2

    @property
    def flops(self) -> int:
        """Of the direct sum."""
        return 2 * math.prod(self.shapes["dy"]) * self.inputs // self.groups * self.taps**2

    def provider(self, name: str) -> str:
        """The ``provider`` column."""
        if self.groups == 1:
            return name
        library, _, variant = name.partition(":")
        return f"{library}:depthwise" + (f"-{variant}" if variant else "")


def cases(*, quick: bool = False) -> Iterator[Case]:
    """What is measured, in the order of importance."""
    for layer in LAYERS[:1] if quick else LAYERS[:4]:
        for name in PASSES:
            yield Case(*layer, name)
    if quick:
        return
    for layer in LAYERS[4:]:
        yield Case(*layer, "fprop")
    for batch, inputs, outputs, size, taps in LAYERS[:1] + LAYERS[4:]:
        for k in SWEEP[inputs]:
            if k != taps:
                yield Case(batch, inputs, outputs, size, k, "fprop")
    for layer in LAYERS[4:]:
        yield Case(*layer, "bprop")
        yield Case(*layer, "accgrad")
    for name in PASSES:
        yield Case(*LAYERS[0], name, "bf16")
    for layer in LAYERS:
        for name in PASSES:
            yield Case(*layer, name, "fp32")
    for batch, inputs, outputs, size, taps in LAYERS[:1] + LAYERS[4:]:
        for k in SWEEP[inputs]:
            if k != taps:
                yield Case(batch, inputs, outputs, size, k, "fprop", "fp32")
    for name in PASSES:
        yield Case(*LARGE, name)
    for batch, channels, size, taps in DEPTHWISE:
        for name in PASSES:
            yield Case(batch, channels, channels, size, taps, name, groups=channels)


def run(*, quick: bool = False) -> Iterator[tuple[Row, float]]:
    """All rows with their bounds, as they are measured.

    Raises:
        MeasurementError: PyTorch with CUDA is not there, or a result is wrong.
    """
    torch = need_torch()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    stamp = (datetime.date.today().isoformat(), commit())
    todo = list(cases(quick=quick))
    _compile(todo, torch)
    started = time.perf_counter()
    for number, case in enumerate(todo, start=1):
        done = list(_case(case, torch, stamp))
        yield from done
        torch.cuda.empty_cache()
        others = "".join(f", {row.provider} {row.median_us:.1f}" for row, _ in done[1:])
        render.note(
            f"[{number}/{len(todo)}, {time.perf_counter() - started:.0f} s] {case.name} {case.dtype}: "
            f"{done[0][0].median_us:.1f} us{others}; error {done[0][0].rel_err:.2e}"
        )
    yield from host_rows(torch, stamp)


def _compile(todo: Sequence[Case], torch: Any) -> None:
    """Machine code of all kernels into the cache, by several processes."""
    specs = {step.spec: step.family.__name__ for case in todo for step in plan_of(case).steps()}
    compile_together([(family, spec) for spec, family in specs.items()], torch.cuda.get_device_capability(0))


def plan_of(case: Case) -> Any:
    """The plan that the model chooses for a case on this GPU."""
    from kernels_numba import explain_conv2d

    shapes = case.shapes
    settings: dict[str, Any] = {"dtype": case.dtype, "which": case.which, "groups": case.groups}
    return explain_conv2d(shapes["x"], shapes["w"], **settings).plan


def _case(case: Case, torch: Any, stamp: tuple[str, str]) -> Iterator[tuple[Row, float]]:
    import reference

    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(2, min(MAX_SETS, math.ceil(2 * cache / case.bytes_min)))
    data = [_data(case, torch, seed) for seed in range(sets)]
    exact = _exact(case, data[0], torch)
    plan = plan_of(case)
    products = plan.images * plan.tiles if case.which == "weight_gradient" else plan.contraction[1]
    bound = reference.conv2d_bound(case.dtype, terms=products)
    of_library = 2 * reference.unit_roundoff(case.dtype)
    if case.groups > 1 and case.which == "weight_gradient":
        of_library *= 2  # its sums are in halves from block to block
    if case.dtype == "fp32":  # it may add up all terms one after the other, or transform
        of_library = reference.conv2d_bound("fp32", terms=case.terms)
    rows, columns = plan.tile
    note = f"tiles {rows}x{columns}, {plan.tiles} an image, {plan.bytes / 1e6:.1f} MB of spectra; {sets} input sets"

    def measured(
        name: str, calls: Sequence[Callable[[], Any]], result: Any, text: str, limit: float
    ) -> tuple[Row, float]:
        error = ((_part(case, result).double() - exact).norm() / exact.norm()).item()
        if not error <= limit:  # true for NaN as well
            raise MeasurementError(
                f"{name} {case.name} {case.dtype}: error {error:.3g}, bound {limit:.3g}; its row is not written"
            )
        times = time_calls(calls, torch, replays=REPLAYS)
        deciles = statistics.quantiles(times, n=10)
        values = (statistics.median(times), deciles[1], deciles[7], len(times), case.bytes_min, case.flops)
        text = f"{text}; groups = {case.groups}" if case.groups > 1 else text
        return Row(OP, case.name, case.dtype, case.provider(name), *values, error, *stamp, text), limit

    if plan.part_count > 1:
        note += "; filter in {}x{} parts".format(*plan.parts)
    calls, result = _ours(case, data, torch, kept=False)
    yield measured("ours", calls, result, note, bound)
    if case.name_of_pass == "accgrad" and case.groups == 1:
        calls, result = _ours(case, data, torch, kept=True)
        yield measured("ours:kept", calls, result, note + "; spectrum of x kept", bound)
    for name, layout in (("cudnn", torch.contiguous_format), ("cudnn:channels-last", torch.channels_last)):
        calls = _library(case, data, torch, layout)
        text = f"cuDNN {torch.backends.cudnn.version()}, benchmark=True; {sets} input sets"
        yield measured(name, calls, calls[0](), text, of_library)


def host_rows(torch: Any, stamp: tuple[str, str]) -> Iterator[tuple[Row, float]]:
    """What a call costs the host, of the first layer, beside the library's call and an elementwise operation."""
    import reference

    case = Case(*LAYERS[0], "fprop")
    data = _data(case, torch, 0)
    calls, result = _ours(case, [data], torch, kept=False)
    exact = _exact(case, data, torch)
    error = ((_part(case, result).double() - exact).norm() / exact.norm()).item()
    bound = reference.conv2d_bound(case.dtype)
    for name, function in (
        ("ours:host-call", calls[0]),
        ("cudnn:host-call", _library(case, [data], torch, torch.contiguous_format)[0]),
        ("torch:host-elementwise", lambda: torch.mul(result, 2.0, out=result)),
    ):
        times = sorted(host_times(function, torch))
        middle, low, high = (times[int(len(times) * part)] for part in (0.5, 0.2, 0.8))
        note = "host time of one call, not GPU time" + ("; with out=" if name.startswith("ours") else "")
        figures = (middle, low, high, len(times), case.bytes_min, case.flops)
        yield (
            Row(OP, case.name, "fp16", name, *figures, error if "ours" in name else 0.0, *stamp, note),
            bound,
        )
        render.note(f"{name}: {middle:.1f} us on the host")


def _data(case: Case, torch: Any, seed: int) -> dict[str, Any]:
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[case.dtype]
    generator = torch.Generator(device="cuda").manual_seed(seed)
    found = {
        name: torch.randn(shape, device="cuda", generator=generator) for name, shape in case.shapes.items()
    }
    found["w"] /= math.sqrt(case.inputs // case.groups * case.taps**2)
    found["dy"] /= math.sqrt(math.prod(case.shapes["dy"][2:]) * case.batch)
    return {name: values.to(kind) for name, values in found.items()}


def _part(case: Case, result: Any) -> Any:
    """The part of a result that is compared: some images, or, where all images are summed, some outputs."""
    return result[:EXACT_OUTPUTS] if case.which == "weight_gradient" else result[:EXACT_IMAGES]


def _exact(case: Case, data: dict[str, Any], torch: Any) -> Any:
    """That part of the pass in float64."""
    benchmark, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    try:
        if case.which == "forward":
            x = data["x"][:EXACT_IMAGES].double()
            return torch.nn.functional.conv2d(x, data["w"].double(), groups=case.groups)
        if case.which == "input_gradient":
            dy = data["dy"][:EXACT_IMAGES].double()
            shape = (len(dy), *data["x"].shape[1:])
            return torch.nn.grad.conv2d_input(shape, data["w"].double(), dy, groups=case.groups)
        shape = (EXACT_OUTPUTS, *case.shapes["w"][1:])
        total = torch.zeros(shape, device="cuda", dtype=torch.float64)
        channels = slice(None if case.groups == 1 else EXACT_OUTPUTS)
        groups = 1 if case.groups == 1 else EXACT_OUTPUTS
        for start in range(0, case.batch, EXACT_IMAGES):
            images = slice(start, start + EXACT_IMAGES)
            dy = data["dy"][images, :EXACT_OUTPUTS].double()
            x = data["x"][images, channels].double()
            total += torch.nn.grad.conv2d_weight(x, shape, dy, groups=groups)
        return total
    finally:
        torch.backends.cudnn.benchmark = benchmark


def _ours(
    case: Case, data: list[dict[str, Any]], torch: Any, *, kept: bool
) -> tuple[list[Callable[[], Any]], Any]:
    import kernels_numba

    size, k = case.size, case.taps
    calls: list[Callable[[], Any]] = []
    results = []
    for one in data:
        shape = {"forward": "dy", "input_gradient": "x"}.get(case.which, "w")
        y = torch.full_like(one[shape], math.nan)
        results.append(y)
        settings: dict[str, Any] = {"impl": "fft", "out": y, "groups": case.groups}
        if case.which == "forward":
            call = functools.partial(kernels_numba.conv2d, one["x"], one["w"], **settings)
        elif case.which == "input_gradient":
            call = functools.partial(
                kernels_numba.conv2d_input_gradient, one["dy"], one["w"], input_size=size, **settings
            )
        else:
            keep = kernels_numba.Conv2dSpectra() if kept else None
            if keep is not None:
                kernels_numba.conv2d(one["x"], one["w"], keep=keep)
            settings |= {"kernel_size": k, "keep": keep}
            call = functools.partial(kernels_numba.conv2d_weight_gradient, one["x"], one["dy"], **settings)
        calls.append(call)
    calls[0]()
    return calls, results[0]


def _library(case: Case, data: list[dict[str, Any]], torch: Any, layout: Any) -> list[Callable[[], Any]]:
    calls: list[Callable[[], Any]] = []
    backward = torch.ops.aten.convolution_backward
    wanted = [case.which == "input_gradient", case.which == "weight_gradient", False]
    for one in data:
        x, w, dy = (one[name].to(memory_format=layout) for name in ("x", "w", "dy"))
        if case.which == "forward":
            calls.append(
                lambda x=x, w=w: torch.nn.functional.conv2d(x, w, groups=case.groups)  # type: ignore[misc]
            )
            continue
        place = wanted.index(True)
        calls.append(
            lambda x=x, w=w, dy=dy, place=place: backward(  # type: ignore[misc]
                dy, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], case.groups, wanted
            )[place]
        )
    return calls
