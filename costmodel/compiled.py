"""Machine code of many kernels at once: several processes fill the cache before a measurement."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def compile_together(kernels: Sequence[tuple[str, Any]], capability: tuple[int, int]) -> None:
    """Compile kernels, each a family's module and a spec, for a compute capability, into the cache."""
    work = [(family, spec, capability) for family, spec in kernels]
    workers = max(1, min(16, os.cpu_count() or 1, len(work)))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile_one, work, chunksize=1))


def _compile_one(job: tuple[str, Any, tuple[int, int]]) -> None:
    import importlib

    from kernels_numba import launch

    family, spec, capability = job
    launch.machine_code(importlib.import_module(family), spec, capability)
