"""One decode step of a language model's layer, each technique on and off: an ablation.

    python -m costmodel.measure_decode [--model llama2-7b]

Times all products of a layer (queries, keys and values; output; gate and up; down) and its attention for B = 1 .. 8
sequences of L = 1k .. 8k tokens, as one CUDA graph. FlashDecoding++ has three techniques, which are switched on and off
alone and together:

* *flat*: on, products of few rows by the flat kernel (padded to 8); off, by the full one (padded to its tile);
* *choice*: on, the kernel that is fastest for each layer and B, of the vector, the full and, where that is on, the flat
  one; off, one kernel for all;
* *async*: on, attention with one shift for all splits of the keys; off, with each split's own maximum.

Beside them stand PyTorch with its library's products and the faster of its FlashAttention and cuDNN attentions, and all
three techniques with launches that overlap. Norms, rotations and activations are left out, but for a copy of the
queries. A layer's weights are larger than L2. Results are held against the same step in float64.

Rows go to ``measurements/<gpu>/decode_step.csv``, row by row: what was measured stays when the run is cut short.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any

from costmodel import measure, measurements, render, replays
from costmodel.measurements import Row
from costmodel.models import Model, model

OP = "decode_step"
BATCHES = (1, 2, 4, 8)
LENGTHS = (1024, 2048, 4096, 8192)
TECHNIQUES = ("flat", "choice", "async")
REPLAYS = 9
ROUNDINGS = 5
"""Results rounded to half one after the other: of qkv, attention, o, gate or up, down."""
ERROR_BOUND = ROUNDINGS * 2.0**-10
"""Each stage adds at most two unit roundoffs of fp16 to the relative error of what it gets, and random weights hand
that on as it is."""


@dataclass(frozen=True)
class Variant:
    """One way to do the step; ``techniques`` None: PyTorch's library and attention."""

    name: str
    techniques: tuple[str, ...] | None = None
    overlap: bool = False


def variants() -> list[Variant]:
    """PyTorch, the eight combinations of the techniques, and all of them with launches that overlap."""
    found = [Variant("torch")]
    for chosen in combinations((False, True), repeat=len(TECHNIQUES)):
        on = tuple(name for name, use in zip(TECHNIQUES, chosen, strict=True) if use)
        found.append(Variant("ours:" + ("+".join(on) or "none"), on))
    found.sort(key=lambda v: len(v.techniques or ()))
    return [*found, Variant("ours:overlapped", TECHNIQUES, overlap=True)]


def layer_products(which: Model) -> list[tuple[str, int, int]]:
    """(name, N, K) of a layer's products in order; gate and up are two of the first feed-forward size."""
    pairs = which.linear
    names = ("qkv", "o", "ffn1", "ffn1", "ffn2")
    return [(name, *pairs[name]) for name in names]


def bytes_min(which: Model, batch: int, length: int) -> int:
    """Bytes that a step must move: weights, and keys and values."""
    weights = sum(n * k for _, n, k in layer_products(which))
    return 2 * (weights + 2 * batch * length * which.kv_heads * (which.dim // which.heads))


def flops(which: Model, batch: int, length: int) -> int:
    """A multiply and an add as two."""
    weights = sum(n * k for _, n, k in layer_products(which))
    return 2 * batch * (weights + 2 * length * which.dim)


def table(rows: Sequence[Row]) -> list[list[Any]]:
    """A line for each batch and length: B, L, and the microseconds of every variant in the order of `variants`."""
    times: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows:
        case = row.case_values
        times.setdefault((int(case["B"]), int(case["L"])), {})[row.provider] = row.median_us
    names = [v.name for v in variants()]
    return [
        [*place, *(f"{found[name]:.1f}" if name in found else "-" for name in names)]
        for place, found in sorted(times.items())
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: measure, write, print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.measure_decode", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", default="llama2-7b", help="a model of costmodel/models.toml (%(default)s)")
    options = parser.parse_args(arguments)
    from kernels_numba import device

    here = device()
    if not here.is_gpu:
        render.note(f"no GPU to measure: {here.reason}")
        return measure.NO_GPU
    from costmodel import gpus

    slug = gpus.by_device_name(str(here.name)).slug
    rows = []
    for row in run(model(options.model), replays.need_torch()):
        measurements.append([row], slug, bounds=[ERROR_BOUND])
        rows.append(row)
    print(render.rows_as("md", ["B", "L", *(v.name for v in variants())], table(rows)))
    render.note(f"wrote {len(rows)} rows to {measurements.path_of(slug, OP)}")
    return 0


def run(which: Model, torch: Any) -> Iterator[Row]:
    """A row for every variant, batch and length."""
    stamp = (datetime.date.today().isoformat(), replays.commit())
    _compile(which, torch)
    products = layer_products(which)
    generator = torch.Generator(device="cuda").manual_seed(0)

    def random(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", generator=generator).half()

    weights = [random(n, k).div_(k**0.5) for _, n, k in products]
    width = which.dim // which.heads
    for batch in BATCHES:
        here = random(batch, which.dim)
        for length in LENGTHS:
            keys, values = (random(batch, which.kv_heads, length, width) for _ in range(2))
            step = _Step(which, products, weights, (here, keys, values), torch)
            exact = step.exact()
            case = measurements.format_case(OP, {"B": batch, "L": length, "model": which.slug})
            for variant in variants():
                found = min((_time(call, out, exact, torch), note) for call, out, note in step.ways(variant))
                (middle, low, high, count, error), note = found
                sizes = (count, bytes_min(which, batch, length), flops(which, batch, length))
                yield Row(OP, case, "fp16", variant.name, middle, low, high, *sizes, error, *stamp, note)
            render.note(f"B={batch} L={length}: last {variant.name} {middle:.1f} us")


def _time(
    call: Callable[[], None], out: Any, exact: Any, torch: Any
) -> tuple[float, float, float, int, float]:
    """Median, 20th and 80th percentile, samples, and the relative error of the first result."""
    out.fill_(float("nan"))
    call()
    error = float((out.double() - exact).norm() / exact.norm())
    times = replays.time_calls([call], torch, replays=REPLAYS)
    deciles = statistics.quantiles(times, n=10)
    return statistics.median(times), deciles[1], deciles[7], len(times), error


def kernel_of(variant: Variant, batch: int, n: int, k: int, *, where: Any = None) -> Any:
    """The kernel and settings of a product on a device (None: this one), None for PyTorch's library."""
    from kernels_numba import device
    from kernels_numba.linear_dispatch import choose

    if variant.techniques is None:
        return None
    gpu = device() if where is None else where

    def chosen(impl: str | None) -> Any:
        return choose(
            *(batch, n, k, "fp16", gpu.name, gpu.sm_count or 1),
            capability=gpu.capability,
            impl=impl,
            overlap=variant.overlap,
        )

    if "flat" in variant.techniques:
        return chosen(None if "choice" in variant.techniques else "flat").choice
    first = (chosen(None).thresholds or (1, 1))[0] if "choice" in variant.techniques else 1
    return chosen("gemv" if batch < first else "full").choice


def _compile(which: Model, torch: Any) -> None:
    """Machine code of all products into the cache, by several processes."""
    from costmodel.measure_linear import compile_products
    from kernels_numba.linear_product import product

    found = {}
    for variant in variants()[1:]:
        for batch in BATCHES:
            for _, n, k in layer_products(which):
                choice = kernel_of(variant, batch, n, k)
                made = product(choice, batch, n, k, "fp16", overlap=variant.overlap)
                found[made.spec] = made
    compile_products(list(found.values()), torch)


class _Step:
    """The step on given arrays."""

    def __init__(
        self, which: Model, products: Sequence[tuple[str, int, int]], weights: Any, data: Any, torch: Any
    ) -> None:
        self.which, self.products, self.weights, self.torch = which, products, weights, torch
        self.here, self.keys, self.values = data
        self.batch, self.width = self.here.shape[0], which.dim // which.heads
        self.outs = [self.here.new_empty((self.batch, n)) for _, n, _ in products]
        self.q, self.mixed = (self.here.new_empty((self.batch, 1, which.heads, self.width)) for _ in range(2))

    def exact(self) -> Any:
        """The result in float64."""
        qkv, o, _, up, down = (w.double() for w in self.weights)
        q = (self.here.double() @ qkv.t())[:, : self.which.dim]
        q = q.view(self.batch, self.which.kv_heads, -1, self.width)
        logits = q @ self.keys.double().transpose(-1, -2) / self.width**0.5
        mixed = self.torch.softmax(logits, dim=-1) @ self.values.double()
        return mixed.reshape(self.batch, -1) @ o.t() @ up.t() @ down.t()

    def ways(self, variant: Variant) -> Iterator[tuple[Callable[[], None], Any, str]]:
        """(function that enqueues the step, where its result lies, note) for each attention worth trying."""
        products = [self._product(i, variant) for i in range(len(self.products))]
        for attend, note in self._attentions(variant):
            yield self._chain(products, attend), self.outs[-1], note

    def _chain(
        self, products: Sequence[Callable[[Any], Any]], attend: Callable[[], Any]
    ) -> Callable[[], None]:
        qkv, o, gate, up, down = products
        outs, q, dim = self.outs, self.q, self.which.dim
        queries = outs[0][:, :dim].view(q.shape)

        def step() -> None:
            qkv(self.here)
            q.copy_(queries)
            o(attend())
            gate(outs[1])
            up(outs[1])
            down(outs[3])

        return step

    def _product(self, i: int, variant: Variant) -> Callable[[Any], Any]:
        from kernels_numba import Linear

        (_, n, k), w, out = self.products[i], self.weights[i], self.outs[i]
        choice = kernel_of(variant, self.batch, n, k)
        if choice is None:
            return lambda x: self.torch.matmul(x, w.t(), out=out)
        layer = Linear(self.batch, n, k, dtype="fp16", choice=choice, overlap=variant.overlap)
        return lambda x: layer(x, w, out=out)

    def _attentions(self, variant: Variant) -> Iterator[tuple[Callable[[], Any], str]]:
        flat_result = self.mixed.view(self.batch, -1)
        if variant.techniques is not None:
            from costmodel.measure_attention import BOUNDS, PHI
            from kernels_numba import DecodeAttention

            keys, values = (x.transpose(1, 2) for x in (self.keys, self.values))
            how = "async" if "async" in variant.techniques else "sync"
            attend = DecodeAttention(
                tuple(self.q.shape), tuple(keys.shape), "fp16", phi=PHI, bounds=BOUNDS, variant=how
            )

            def ours() -> Any:
                attend(self.q, keys, values, out=self.mixed)
                return flat_result

            yield ours, f"attention {how}"
            return
        from torch.nn.attention import SDPBackend, sdpa_kernel

        grouped = self.which.kv_heads != self.which.heads
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

            def library(backend: Any = backend) -> Any:
                with sdpa_kernel(backend):
                    mixed = self.torch.nn.functional.scaled_dot_product_attention(
                        self.q.transpose(1, 2), self.keys, self.values, enable_gqa=grouped
                    )
                return mixed.reshape(self.batch, -1)

            try:
                library()
            except RuntimeError as error:
                render.note(f"{backend.name} does not run here: {str(error).splitlines()[0]}")
                continue
            yield library, f"attention {backend.name.lower()}"


if __name__ == "__main__":
    sys.exit(main())
