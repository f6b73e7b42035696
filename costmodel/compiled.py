"""Machine code of many kernels at once: several processes fill the cache before a measurement."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def compile_together(kernels: Sequence[tuple[str, Any]], capability: tuple[int, int]) -> None:
    """Compile kernels, each a family's module and a spec, for a compute capability; those in the cache are there."""
    from kernels_numba import launch

    work = [
        (family, spec, capability)
        for family, spec in kernels
        if not launch.is_built(importlib.import_module(family), spec, capability)
    ]
    if not work:
        return
    workers = min(16, os.cpu_count() or 1, len(work))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile_one, work, chunksize=1))


def _compile_one(job: tuple[str, Any, tuple[int, int]]) -> None:
    from kernels_numba import launch

    family, spec, capability = job
    launch.machine_code(importlib.import_module(family), spec, capability)
