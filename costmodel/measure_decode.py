"""One decode step of a language model's layer, each technique of the products on and off: an ablation.

    python -m costmodel.measure_decode [--model llama2-7b]

Times all products of a layer (queries, keys and values; output; gate and up; down) and its attention for B = 1 .. 8
sequences of L = 1k .. 8k tokens, as one CUDA graph. FlashDecoding++ has three techniques; the two that concern products
are switched on and off alone and together:

* *flat*: on, products of few rows by the flat kernel (padded to 8); off, by the full one (padded to its tile);
* *choice*: on, the kernel that is fastest for each layer and B (`kernels_numba.linear`); off, one kernel for all.

Attention (the third technique) is PyTorch's ``scaled_dot_product_attention`` in every variant, so that its axis is left
out here; norms, rotations and activations are left out as well. The weights of a layer are larger than L2.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from costmodel import measure, render
from costmodel.models import Model, model

BATCHES = (1, 2, 4, 8)
LENGTHS = (1024, 2048, 4096, 8192)
VARIANTS: dict[str, tuple[str | None, bool]] = {
    "torch": ("vendor", False),
    "neither": ("full", False),
    "flat": ("flat", False),
    "choice": ("gemv or full", False),
    "flat + choice": (None, False),
    "flat + choice, overlapped": (None, True),
}
"""For each column the kernel of all products, and whether launches overlap."""


def layer_products(which: Model) -> list[tuple[str, int, int]]:
    """(name, N, K) of a layer's products in order; gate and up are two of the first feed-forward size."""
    pairs = which.linear
    names = ("qkv", "o", "ffn1", "ffn1", "ffn2")
    return [(name, *pairs[name]) for name in names]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: print the table; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.measure_decode", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--model", default="llama2-7b", help="a model of costmodel/models.toml (%(default)s)")
    options = parser.parse_args(arguments)
    from kernels_numba import device

    if not device().is_gpu:
        render.note(f"no GPU to measure: {device().reason}")
        return measure.NO_GPU
    rows = run(model(options.model), measure.need_torch())
    print(render.rows_as("md", ["B", "L", *VARIANTS], rows))
    return 0


def run(which: Model, torch: Any) -> list[list[Any]]:
    """Microseconds of every variant for every batch and length."""
    products = layer_products(which)
    weights = [(torch.randn((n, k), device="cuda") / k**0.5).half() for _, n, k in products]
    rows = []
    for batch in BATCHES:
        for length in LENGTHS:
            cells: list[Any] = [batch, length]
            reference = None
            for impl, overlap in VARIANTS.values():
                step, out = _step(which, products, weights, batch, length, impl, overlap, torch)
                step()
                torch.cuda.synchronize()
                if reference is None:
                    reference = out.clone()
                # Different roundings of the same step, one product after the other.
                error = float((out.double() - reference.double()).norm() / reference.double().norm())
                if not error < 0.02:
                    raise measure.MeasurementError(f"decode step B={batch} L={length}: off by {error:.2g}")
                cells.append(f"{statistics.median(measure.time_calls([step], torch, replays=9)):.1f}")
            rows.append(cells)
            render.note(" ".join(map(str, cells)))
    return rows


def _step(
    which: Model,
    products: Sequence[tuple[str, int, int]],
    weights: Sequence[Any],
    batch: int,
    length: int,
    impl: str | None,
    overlap: bool,
    torch: Any,
) -> tuple[Callable[[], None], Any]:
    """A function that enqueues the step, and where its result lies."""
    from kernels_numba import Linear
    from kernels_numba.linear_dispatch import choose

    generator = torch.Generator(device="cuda").manual_seed(batch + length)

    def random(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", generator=generator).half()

    width = which.dim // which.heads
    here = random(batch, which.dim)
    keys, values = (random(batch, which.kv_heads, length, width) for _ in range(2))
    outs = [torch.empty((batch, n), device="cuda", dtype=torch.half) for _, n, _ in products]

    def product(i: int) -> Callable[[Any], Any]:
        _, n, k = products[i]
        if impl == "vendor":
            return lambda x: torch.matmul(x, weights[i].t(), out=outs[i])
        kernel = impl
        if impl == "gemv or full":  # choice without the flat kernel: vector products up to M1
            from kernels_numba import device

            limits = choose(batch, n, k, "fp16", device().name, device().sm_count or 1).thresholds
            kernel = "gemv" if limits and batch < limits[0] else "full"
        layer = Linear(batch, n, k, dtype="fp16", impl=kernel, overlap=overlap)
        return lambda x: layer(x, weights[i], out=outs[i])

    qkv, o, gate, up, down = (product(i) for i in range(5))
    grouped = which.kv_heads != which.heads
    attend = torch.nn.functional.scaled_dot_product_attention

    def step() -> None:
        qkv(here)
        q = outs[0][:, : which.dim].view(batch, which.heads, 1, width)
        mixed = attend(q, keys, values, enable_gqa=True) if grouped else attend(q, keys, values)
        o(mixed.reshape(batch, which.dim))
        gate(outs[1])
        up(outs[1])
        down(outs[3])

    return step, outs[4]


if __name__ == "__main__":
    sys.exit(main())
