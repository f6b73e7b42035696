"""Measure convolution layers beside cuDNN; how a time is taken is described in `costmodel.measure`.

Providers of a case: ``ours`` by FFT in the tiles that the model chooses, with all transforms inside; ``ours:kept`` with
spectra that the forward pass kept, or, of that pass, keeping them, in the tiles that are best for all three; ``cudnn``
through PyTorch with ``benchmark = True``, and ``cudnn:channels-last``, where all arrays lie that way (in fp32 without
TF32). No padding, stride 1. Passes: fprop, bprop (gradient of the input), accgrad (gradient of the weights) and
backward (both in one call). Errors are against
float64, of eight images, or of eight outputs' weights. Rows ``:host-call`` have the host's time of a call instead.
"""

from __future__ import annotations

import datetime
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodel import measurements, render
from costmodel.compiled import compile_together
from costmodel.conv2d import PASSES
from costmodel.errors import MeasurementError
from costmodel.host_cost import host_times
from costmodel.measurements import Row
from costmodel.replays import commit, need_torch, time_calls

OP = "conv2d"
BACKWARD = "backward"
"""Both gradients."""
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
    def passes(self) -> tuple[Case, ...]:
        """Itself, or both gradients."""
        if self.name_of_pass != BACKWARD:
            return (self,)
        return replace(self, name_of_pass="bprop"), replace(self, name_of_pass="accgrad")

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
        """All arrays, once each: three, or both gradients and what they are of."""
        arrays = [*self.shapes.values()] + (
            [self.shapes["x"], self.shapes["w"]] if len(self.passes) > 1 else []
        )
        return (4 if self.dtype == "fp32" else 2) * sum(math.prod(shape) for shape in arrays)

    @property
    def terms(self) -> int:
        """Terms of the direct sum of one result."""
        if self.which == "weight_gradient":
            return self.batch * math.prod(self.shapes["dy"][2:])
        channels = self.inputs if self.which == "forward" else self.outputs
        return channels // self.groups * self.taps**2

    @property
    def flops(self) -> int:
        """Of the direct sums."""
        return len(self.passes) * 2 * math.prod(self.shapes["dy"]) * self.inputs // self.groups * self.taps**2

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
    for dtype in ("fp16", "fp32"):
        for layer in LAYERS:
            yield Case(*layer, BACKWARD, dtype)
    for name in PASSES:
        yield Case(*LARGE, name)
    for batch, channels, size, taps in DEPTHWISE:
        for name in (*PASSES, BACKWARD):
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
    plans = [plan for case in todo for kept in {False, keeps(case)} for plan in plans_of(case, kept=kept)]
    specs = {step.spec: step.family.__name__ for plan in plans for step in plan.steps()}
    compile_together([(family, spec) for spec, family in specs.items()], torch.cuda.get_device_capability(0))


def keeps(case: Case) -> bool:
    """Whether the pass is measured with spectra that are kept as well."""
    return (
        case.dtype != "bf16"
        and case.groups == 1
        and (case.batch, case.inputs, case.outputs, case.size, case.taps) in LAYERS
    )


def plans_of(case: Case, *, kept: bool) -> tuple[Any, ...]:
    """The plans that the model chooses for a case on this GPU."""
    from kernels_numba import device, explain_conv2d
    from kernels_numba.conv2d_geometry import Geometry
    from kernels_numba.conv2d_shared import of_forward, plan_to_keep, plans_of_gradients

    x, w = case.shapes["x"], case.shapes["w"]
    if not kept and case.name_of_pass != BACKWARD:
        return (explain_conv2d(x, w, dtype=case.dtype, which=case.which, groups=case.groups).plan,)
    here, geometry = device(), Geometry.of(x, w, groups=case.groups)
    if not kept:
        pair = plans_of_gradients(geometry, case.dtype, None, here.sm_count)
        return pair.inputs, pair.weights
    forward = plan_to_keep(geometry, case.dtype, None, here.sm_count)
    pair = of_forward(forward)
    return {"fprop": (forward,), "bprop": (pair.inputs,), "accgrad": (pair.weights,)}.get(
        case.name_of_pass, (pair.inputs, pair.weights)
    )


def _note(case: Case, plans: Sequence[Any], *, kept: bool) -> str:
    """How a case is measured; predictions read it (`compare_conv2d.costs_of`)."""
    first, last = plans[0], plans[-1]
    rows, columns = first.tile
    held = "sums" if last.fused else "spectra"
    text = f"tiles {rows}x{columns}, {first.tiles} an image, {max(p.bytes for p in plans) / 1e6:.1f} MB of {held}"
    if first.part_count > 1:
        text += "; filter in {}x{} parts".format(*first.parts)
    if last.tile != first.tile:
        text += "; gradient of w in tiles {}x{}".format(*last.tile)
    if kept:
        names = {"fprop": "x and w", "bprop": "w", "accgrad": "x"}.get(case.name_of_pass, "x and w")
        text += f"; spectr{'a' if ' ' in names else 'um'} of {names} kept"
    return text


def _case(case: Case, torch: Any, stamp: tuple[str, str]) -> Iterator[tuple[Row, float]]:
    import reference

    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(2, min(MAX_SETS, math.ceil(2 * cache / case.bytes_min)))
    data = [_data(case, torch, seed) for seed in range(sets)]
    exact = [_exact(one, data[0], torch) for one in case.passes]
    plans = plans_of(case, kept=False)
    products = max(p.images * p.tiles if p.which == "weight_gradient" else p.contraction[1] for p in plans)
    bound = reference.conv2d_bound(case.dtype, terms=products)
    of_library = 2 * reference.unit_roundoff(case.dtype)
    if case.groups > 1 and case.name_of_pass in ("accgrad", BACKWARD):
        of_library *= 2  # its sums are in halves from block to block
    if case.dtype == "fp32":  # it may add up all terms one after the other, or transform
        terms = max(one.terms for one in case.passes)
        of_library = reference.conv2d_bound("fp32", terms=terms)

    def measured(
        name: str, calls: Sequence[Callable[[], Any]], results: Sequence[Any], text: str, limit: float
    ) -> tuple[Row, float]:
        error = max(
            ((_part(one, result).double() - right).norm() / right.norm()).item()
            for one, result, right in zip(case.passes, results, exact, strict=True)
        )
        if not error <= limit:  # true for NaN as well
            raise MeasurementError(
                f"{name} {case.name} {case.dtype}: error {error:.3g}, bound {limit:.3g}; its row is not written"
            )
        times = time_calls(calls, torch, replays=REPLAYS)
        deciles = statistics.quantiles(times, n=10)
        values = (statistics.median(times), deciles[1], deciles[7], len(times), case.bytes_min, case.flops)
        text = f"{text}; {sets} input sets" + (f"; groups = {case.groups}" if case.groups > 1 else "")
        return Row(OP, case.name, case.dtype, case.provider(name), *values, error, *stamp, text), limit

    calls, results = _ours(case, data, torch, kept=False)
    yield measured("ours", calls, results, _note(case, plans, kept=False), bound)
    if keeps(case):
        calls, results = _ours(case, data, torch, kept=True)
        yield measured("ours:kept", calls, results, _note(case, plans_of(case, kept=True), kept=True), bound)
    for name, layout in (("cudnn", torch.contiguous_format), ("cudnn:channels-last", torch.channels_last)):
        calls = _library(case, data, torch, layout)
        found = calls[0]()
        text = f"cuDNN {torch.backends.cudnn.version()}, benchmark=True"
        yield measured(name, calls, found if len(case.passes) > 1 else [found], text, of_library)


def host_rows(torch: Any, stamp: tuple[str, str]) -> Iterator[tuple[Row, float]]:
    """What a call costs the host, of the first layer, beside the library's call and an elementwise operation."""
    import reference

    case = Case(*LAYERS[0], "fprop")
    data = _data(case, torch, 0)
    calls, (result,) = _ours(case, [data], torch, kept=False)
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
) -> tuple[list[Callable[[], Any]], tuple[Any, ...]]:
    """Calls on each set of data, and the results of the first, which has been called."""
    import kernels_numba

    calls: list[Callable[[], Any]] = []
    results = []
    for one in data:
        shapes = {"fprop": ("dy",), "bprop": ("x",), "accgrad": ("w",), BACKWARD: ("x", "w")}[
            case.name_of_pass
        ]
        out = tuple(torch.full_like(one[name], math.nan) for name in shapes)
        results.append(out)
        keep = kernels_numba.Conv2dSpectra() if kept else None
        layer: dict[str, Any] = {"impl": "fft", "groups": case.groups, "keep": keep}
        x, w, dy, y = one["x"], one["w"], one["dy"], out[0]
        if kept and case.name_of_pass != "fprop":
            kernels_numba.conv2d(x, w, **layer)
        call: Callable[[], Any] = {
            "fprop": functools.partial(kernels_numba.conv2d, x, w, out=y, **layer),
            "bprop": functools.partial(
                kernels_numba.conv2d_input_gradient, dy, w, input_size=case.size, out=y, **layer
            ),
            "accgrad": functools.partial(
                kernels_numba.conv2d_weight_gradient, x, dy, kernel_size=case.taps, out=y, **layer
            ),
            BACKWARD: functools.partial(kernels_numba.conv2d_gradients, dy, x, w, out=out, **layer),
        }[case.name_of_pass]
        calls.append(call)
    calls[0]()
    return calls, results[0]


def _library(case: Case, data: list[dict[str, Any]], torch: Any, layout: Any) -> list[Callable[[], Any]]:
    calls: list[Callable[[], Any]] = []
    backward = torch.ops.aten.convolution_backward
    passes = {one.name_of_pass for one in case.passes}
    wanted = ["bprop" in passes, "accgrad" in passes, False]
    for one in data:
        x, w, dy = (one[name].to(memory_format=layout) for name in ("x", "w", "dy"))
        if case.name_of_pass == "fprop":
            calls.append(
                lambda x=x, w=w: torch.nn.functional.conv2d(x, w, groups=case.groups)  # type: ignore[misc]
            )
            continue
        place = slice(2) if all(wanted[:2]) else wanted.index(True)
        calls.append(
            lambda x=x, w=w, dy=dy, place=place: backward(  # type: ignore[misc]
                dy, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], case.groups, wanted
            )[place]
        )
    return calls
