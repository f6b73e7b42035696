"""The flat product with every tile width B_N: ``python -m costmodel.measure_widths [--model llama2-7b]``.

B_N rows of w share one reading of x. The layers of a model are timed for a few M with B_N from 16 to 96, other settings
as by default, as `measure_linear` takes times; rows go to the linear layers' file as ``ours:flat-b48`` and so on.
`compare_linear` judges what the model's choice among them costs.
"""

from __future__ import annotations

import argparse
import datetime
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from costmodel import measure, measurements, render, replays
from costmodel.measure_linear import LEAST_US, REPLAYS, _calls, _error, _exact, compile_products
from costmodel.measurements import Row
from costmodel.models import Model, model

OP = "linear"
SWEEP = (1, 8, 16)
ROW_TILES = (1, 2, 3, 4, 6)
"""Tiles of 16 rows."""


def choices(m: int, n: int, k: int, sm_count: int) -> list[Any]:
    """The flat product with every width that fits into shared memory."""
    from kernels_numba.device import LARGEST_SHARED_BYTES
    from kernels_numba.linear_product import Choice, product
    from kernels_numba.linear_settings import default_choice

    base = default_choice("flat", m, n, k, sm_count=sm_count).options
    found = [Choice.of("flat", **{**base, "row_tiles": tiles}) for tiles in ROW_TILES]
    return [
        choice
        for choice in found
        if product(choice, m, n, k, "fp16").spec.shared_bytes <= LARGEST_SHARED_BYTES
    ]


def run(which: Model, torch: Any, sm_count: int) -> Iterator[Row]:
    """A row for every layer, M and width.

    Raises:
        MeasurementError: a result is wrong.
    """
    from kernels_numba.linear_product import product

    stamp = (datetime.date.today().isoformat(), replays.commit())
    layers = list(dict.fromkeys(which.linear.values()))
    compile_products(
        [
            product(choice, m, n, k, "fp16")
            for n, k in layers
            for m in SWEEP
            for choice in choices(m, n, k, sm_count)
        ],
        torch,
    )
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    for n, k in layers:
        sets = max(2, math.ceil(2 * cache / (2 * n * k)) + 1)
        weights = [torch.randn((n, k), device="cuda").half() for _ in range(sets)]
        for m in SWEEP:
            x = torch.randn((m, k), device="cuda").half()
            exact, allowed = _exact(x, weights[0], torch)
            case = measurements.format_case(OP, {"M": m, "N": n, "K": k})
            for choice in choices(m, n, k, sm_count):
                calls, y = _calls(choice, x, weights, overlap=False)
                y.fill_(math.nan)
                calls[0]()
                error = _error(y, exact, allowed, f"{choice} M={m} N={n} K={k}")
                times = replays.time_calls(calls, torch, replays=REPLAYS, least_us=LEAST_US)
                deciles = statistics.quantiles(times, n=10)
                name = f"ours:flat-b{16 * choice.options['row_tiles']}"
                figures = (statistics.median(times), deciles[1], deciles[7], len(times))
                sizes = (2 * (n * k + m * k + m * n), 2 * m * n * k)
                yield Row(OP, case, "fp16", name, *figures, *sizes, error, *stamp, str(choice))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: measure and write; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m costmodel.measure_widths", description=(__doc__ or "").splitlines()[0]
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
    written = 0
    for row in run(model(options.model), replays.need_torch(), int(here.sm_count or 1)):
        measurements.append([row], slug)
        written += 1
        render.note(f"{row.case} {row.provider_variant}: {row.median_us:.2f} us")
    render.note(f"wrote {written} rows to {measurements.path_of(slug, OP)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
