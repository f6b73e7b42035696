"""Errors of the cost model, each with the exit code the command line gives it."""

from __future__ import annotations


class UnknownGPUError(ValueError):
    """No GPU file has this name (exit code 3)."""


class NoGPUError(RuntimeError):
    """The local GPU was asked for and there is none (exit code 4)."""


class GPUFileError(ValueError):
    """A GPU file has a missing, unknown or impossible value."""


class MeasurementError(ValueError):
    """A measurement row or file breaks the contract of costmodel.measurements."""
