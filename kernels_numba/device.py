"""Which body of the tile layer runs here: a GPU's, or the CPU's. Never silent: :func:`device` tells."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

LARGEST_SHARED_BYTES = 227 * 1024
"""Shared memory that a block can have on the GPUs with the most of it (H100, H200, B200)."""


@dataclass(frozen=True)
class Device:
    """The place where kernels run.

    ``body`` is "gpu" or "cpu"; ``reason`` says why. The other fields describe the GPU (None on the CPU):
    ``capability`` (major, minor), ``sm_count``, ``shared_bytes_per_block`` (the opt-in limit),
    ``shared_bytes_per_sm``, ``l2_bytes``, and ``count``, the number of GPUs in this machine.
    """

    body: str
    reason: str
    index: int | None = None
    name: str | None = None
    capability: tuple[int, int] | None = None
    sm_count: int | None = None
    shared_bytes_per_block: int | None = None
    shared_bytes_per_sm: int | None = None
    driver: int | None = None
    count: int = 0
    memory_bytes: int | None = None
    l2_bytes: int | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether kernels run on a GPU."""
        return self.body == "gpu"

    @property
    def overlaps(self) -> bool:
        """Whether a launch there may begin while the one before it ends ("programmatic dependent launch")."""
        return self.capability is not None and self.capability >= (9, 0)

    def __str__(self) -> str:
        if not self.is_gpu:
            return f"CPU body ({self.reason})"
        major, minor = self.capability or (0, 0)
        return f"GPU body on {self.name} (sm_{major}{minor}, {self.sm_count} SMs, {self.count} GPU(s) here)"


@cache
def _gpus() -> tuple[int, str]:
    """How many GPUs can be used, and why not if none."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        return 0, "NUMBA_ENABLE_CUDASIM is set"
    try:
        import numba.misc  # noqa: F401  (numba-cuda needs it; a missing numba is the commonest cause)
        from cuda.bindings import driver
        from cuda.core import Device as CudaDevice  # noqa: F401
    except ImportError as error:
        return (
            0,
            f"the GPU packages are not installed ({error}); `pip install monarch-numba[gpu]` brings them",
        )
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # no libcuda
        return 0, f"no CUDA driver ({str(error).splitlines()[0]})"
    if status != driver.CUresult.CUDA_SUCCESS:
        return 0, f"the CUDA driver does not start ({status.name})"
    status, count = driver.cuDeviceGetCount()
    if status != driver.CUresult.CUDA_SUCCESS or count == 0:
        return 0, "the CUDA driver finds no GPU"
    return count, f"{count} GPU(s) found"


@cache
def device(index: int = 0) -> Device:
    """The device that kernels run on; ``index`` picks one of several GPUs.

    Raises ``ValueError`` for an index that this machine does not have.
    """
    count, reason = _gpus()
    if count == 0:
        return Device("cpu", reason)
    if not 0 <= index < count:
        raise ValueError(f"index: this machine has GPUs 0..{count - 1}, not {index}")
    from cuda.bindings import driver
    from cuda.core import Device as CudaDevice

    gpu = CudaDevice(index)
    found = gpu.properties
    _, version = driver.cuDriverGetVersion()
    _, total = driver.cuDeviceTotalMem(driver.cuDeviceGet(index)[1])
    return Device(
        body="gpu",
        reason=reason,
        index=index,
        name=gpu.name,
        capability=(gpu.compute_capability.major, gpu.compute_capability.minor),
        sm_count=found.multiprocessor_count,
        shared_bytes_per_block=found.max_shared_memory_per_block_optin,
        shared_bytes_per_sm=found.max_shared_memory_per_multiprocessor,
        memory_bytes=int(total),
        driver=version,
        count=count,
        l2_bytes=found.l2_cache_size,
    )
