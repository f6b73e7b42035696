"""Analytical cost model: counts, time, decisions, and the GPU files and measurements that they rest on.

`best_plan` chooses a plan, `predict` times the candidates, `load_gpu` reads a GPU file. The command line is
``python -m costmodel``. Importing this package needs NumPy only; sympy, rich and matplotlib load when used.
"""

from costmodel.counts import Counts
from costmodel.errors import GPUFileError, MeasurementError, NoGPUError, UnknownGPUError
from costmodel.fftconv import best_plan, predict
from costmodel.gpus import GPU
from costmodel.gpus import load as load_gpu

__all__ = [
    "GPU",
    "Counts",
    "GPUFileError",
    "MeasurementError",
    "NoGPUError",
    "UnknownGPUError",
    "best_plan",
    "load_gpu",
    "predict",
]
