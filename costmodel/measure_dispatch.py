"""What dispatch picks, timed beside everything that was measured: ``python -m costmodel.measure_dispatch``.

For every layer of every model and M up to 512 the product that ``kernels_numba.linear`` picks for PyTorch arrays, by
the dispatch table that is installed, is timed anew: provider "dispatch" in the measurements. Between the M of the
sweep, which the tables know nothing of, every kernel, with the table's settings, and the library are timed too, for the
layers of one model.
`costmodel.linear_report` sets them against the fastest provider of each case.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from costmodel import gpus, measure, measurements, render, replays
from costmodel.measure_linear import (
    SWEEP,
    compile_products,
    row_of,
    rows_of,
    time_choices,
    weights_of,
)
from costmodel.measurements import Row
from costmodel.models import models

MOST = 512
BETWEEN, MODEL = (5, 20, 40, 80, 112, 448), "llama2-7b"
PROVIDER = "dispatch"


def kernels(m: int, n: int, k: int) -> list[Any]:
    """The choice of each kernel that takes M rows, and the vendor's library."""
    from kernels_numba import Linear
    from kernels_numba.linear_product import LARGEST_M

    accepted = [impl for impl, most in LARGEST_M.items() if most is None or m <= most]
    return [Linear(m, n, k, dtype="fp16", impl=impl).choice("torch") for impl in accepted]


def rows(n: int, k: int, sizes: tuple[int, ...], others: tuple[int, ...]) -> Iterator[Row]:
    """Rows of one layer: what dispatch picks for M of ``sizes``, and beside all kernels for ``others``."""
    from kernels_numba import Linear

    torch = replays.need_torch()
    weights, generator = weights_of(n, k, torch)
    for m in (*sizes, *others):
        choices = [None, *(kernels(m, n, k) if m in others else ())]
        point = time_choices(choices, m, weights, generator, torch, modes=(False,))
        picked = Linear(m, n, k, dtype="fp16").choice("torch")
        timing, error = point.times[False].pop(None), point.error.pop(None)
        yield row_of(point, n, k, PROVIDER, timing, error, str(picked))
        yield from rows_of(point, n, k)
        render.note(f"[{n}, {k}] M={m}: {picked.impl} {timing.median:.1f} us")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    from kernels_numba import device
    from kernels_numba.linear_product import product

    parser = argparse.ArgumentParser(
        prog="python -m costmodel.measure_dispatch", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument("layers", nargs="*", metavar="model/layer", help="only these (all)")
    asked = set(parser.parse_args(arguments).layers)
    named = {f"{name}/{layer}" for name, found in models().items() for layer in found.linear}
    if asked - named:
        render.note(f"layer: got {', '.join(sorted(asked - named))}; accepted: {', '.join(sorted(named))}")
        return 2
    here = device()
    if not here.is_gpu:
        render.note(f"no GPU to measure: {here.reason}")
        return measure.NO_GPU
    torch, slug = replays.need_torch(), gpus.by_device_name(str(here.name)).slug
    layers = {
        pair: name
        for name, found in reversed(models().items())
        for layer, pair in found.linear.items()
        if not asked or f"{name}/{layer}" in asked
    }
    sizes = tuple(m for m in SWEEP if m <= MOST)
    pairs = [(pair, BETWEEN if name == MODEL else ()) for pair, name in layers.items()]
    made = [
        product(choice, m, *pair, "fp16")
        for pair, others in pairs
        for m in others
        for choice in kernels(m, *pair)
        if choice.impl != "vendor"
    ]
    compile_products(made, torch)
    for pair, others in pairs:
        measurements.append(list(rows(*pair, sizes, others)), slug)
    return 0


if __name__ == "__main__":
    sys.exit(main())
