"""From a kernel's description to a launch that costs a few microseconds.

Numba's own dispatcher takes tens of microseconds a launch and does not opt in to more than 48 KiB of shared
memory. Here the machine code is built once (and kept on disk), loaded once per device with ``cuda.core``, and
launched on the caller's stream with pointers and integers only; such launches can be captured in a graph.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache as cached
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import cache
from kernels_numba.device import Device, device
from kernels_numba.tensor_maps import Slot, TensorMap

DEFAULT_SHARED_BYTES = 48 * 1024
POINTERS = ("u", "pregate", "postgate", "y")
"""What the arguments of a convolution's kernel that change from call to call are called."""


class LaunchError(RuntimeError):
    """A kernel could not be loaded or launched, or failed while it ran."""


@cached
def _source_digest() -> str:
    """Hash of the source that generates code: a changed source must not find old code."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for path in sorted([*here.glob("*.py"), *here.glob("tile/*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _code_key(family: Any, spec: Any, capability: tuple[int, int]) -> str:
    from kernels_numba.tile import compile as tile_compile

    what = (family.__name__, repr(spec), str(capability), str(family.min_blocks(spec)))
    return "|".join([_source_digest(), *what, tile_compile.toolchain()])


def is_built(family: Any, spec: Any, capability: tuple[int, int]) -> bool:
    """Whether `machine_code` would find the kernel on disk."""
    return cache.has(_code_key(family, spec, capability))


def machine_code(family: Any, spec: Any, capability: tuple[int, int]) -> tuple[bytes, str]:
    """Cubin and entry point of one kernel of a ``family`` (a module with build, SIGNATURE and min_blocks)."""
    key = _code_key(family, spec, capability)

    def build() -> tuple[bytes, str]:
        cubin = compile_spec(family, spec, capability)
        return cubin.code, cubin.entry

    return cache.fetch(key, build)


def vocabulary_of(family: Any, spec: Any) -> str:
    """Which operations a kernel is written in; see `tile.gpu_vocabularies`."""
    wide = getattr(spec, "sequences", "") == "fp32"
    return "wide" if wide else getattr(family, "VOCABULARY", "")


def compile_spec(family: Any, spec: Any, capability: tuple[int, int]) -> Any:
    """Compile one kernel of a family; needs no GPU."""
    from kernels_numba.tile import compile as tile_compile
    from kernels_numba.tile.gpu_vocabularies import tile

    vocabulary = vocabulary_of(family, spec)
    kinds = (("FLOATS" if vocabulary == "wide" and kind == "HALVES" else kind) for kind in family.SIGNATURE)
    signature = tuple(getattr(tile_compile, kind) for kind in kinds)
    # Instructions that one architecture alone has are compiled for that one ("a"), not for its successors too.
    target = (*capability, "a") if getattr(family, "CAPABILITY", None) else capability
    return tile_compile.compile_kernel(
        family.build(tile(spec.dtype, vocabulary), spec),
        signature,
        target,
        threads=32 * spec.warps,
        min_blocks=family.min_blocks(spec),
        name=spec.name,
    )


class LoadedKernel:
    """Machine code on a device, opted in to the shared memory it needs."""

    def __init__(self, family: Any, spec: Any, where: Device) -> None:
        from cuda.bindings import driver
        from cuda.core import Device as CudaDevice
        from cuda.core import ObjectCode

        assert where.capability is not None and where.shared_bytes_per_block is not None
        self.spec, self.device = spec, where
        if spec.shared_bytes > where.shared_bytes_per_block:
            raise LaunchError(
                f"{spec.name} needs {spec.shared_bytes} bytes of shared memory per block; {where.name} "
                f"allows {where.shared_bytes_per_block}. Ask for a plan with a smaller transform length."
            )
        with current_device(where):
            CudaDevice(where.index).set_current()
            code, entry = machine_code(family, spec, where.capability)
            try:
                self._code = ObjectCode.from_cubin(code)
                self.kernel = self._code.get_kernel(entry)
                if spec.shared_bytes > DEFAULT_SHARED_BYTES:
                    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    (status,) = driver.cuKernelSetAttribute(
                        attribute, spec.shared_bytes, self.kernel.handle, where.index
                    )
                    if status != driver.CUresult.CUDA_SUCCESS:
                        raise LaunchError(status.name)
                self.blocks_per_sm = self.kernel.occupancy.max_active_blocks_per_multiprocessor(
                    32 * spec.warps, spec.shared_bytes
                )
            except Exception as error:
                raise LaunchError(
                    f"{spec.name} could not be loaded on {where.name} (driver {where.driver}, "
                    f"{spec.shared_bytes} bytes of shared memory of {where.shared_bytes_per_block}): {error}"
                ) from error
        if self.blocks_per_sm < 1:
            raise LaunchError(
                f"{spec.name}: no block of {32 * spec.warps} threads with {spec.shared_bytes} bytes of "
                f"shared memory fits on an SM of {where.name}"
            )
        self.registers = self.kernel.attributes.num_regs

    def launcher(
        self,
        grid: int | tuple[int, int, int],
        arguments: Sequence[Any],
        pointers: Sequence[str] = POINTERS,
        *,
        overlap: bool = False,
    ) -> Callable[..., None]:
        """A function that launches on a stream: ``launch(stream_handle, *pointers)``, a pointer for each name.

        ``arguments`` are the kernel's: integers, floats (for float32), and the names of ``pointers`` in the places of
        those that change, or maps of what they point to (a name that is missing takes a pointer and forgets it). The
        driver's array of parameters is made once and only the pointers change: the host's share of a launch is then
        little more than the driver's own.

        ``overlap``: the kernel may start while the launch before it in the stream still runs ("programmatic
        dependent launch", compute capability 9); it says itself from where on it needs that launch's results.
        """
        where = self.device
        count = len(arguments)
        values = (ctypes.c_uint64 * (count + 1))(*map(_word, arguments))
        addresses = (ctypes.c_void_p * count)(*(ctypes.addressof(values) + 8 * i for i in range(count)))
        places = [arguments.index(name) if name in arguments else count for name in pointers]
        maps: list[tuple[int, Slot]] = []
        kept: list[Any] = [addresses]
        for i, argument in enumerate(arguments):
            if isinstance(argument, TensorMap):
                slot = Slot(argument)
                addresses[i] = ctypes.addressof(slot.storage)
                if argument.source in pointers:
                    maps.append((pointers.index(argument.source), slot))
                kept.append(slot)
        grid = (grid, 1, 1) if isinstance(grid, int) else grid
        start, success, no_context = self._starter(grid, ctypes.addressof(addresses), overlap=overlap)
        lock = threading.Lock()

        def run(handle: int, *pointers: int) -> None:
            with lock:  # the parameters belong to one launch at a time; the driver copies them
                for place, pointer in zip(places, pointers, strict=True):
                    values[place] = pointer
                for number, slot in maps:
                    slot.point_to(pointers[number])
                status = start(handle)
            if status != success:
                from cuda.bindings import driver

                # A host thread that has not used any GPU yet has no current context.
                if status == no_context and not int(driver.cuCtxGetCurrent()[1]):
                    run_there(handle, *pointers)
                    return
                raise LaunchError(f"launch of {self.describe(grid)} failed: {status.name}")

        def run_there(*pointers: int) -> None:
            with current_device(where):
                run(*pointers)

        run.keep = kept  # type: ignore[attr-defined]  # what the driver reads must stay alive
        return run_there if where.count > 1 else run

    def _starter(
        self, grid: tuple[int, int, int], parameters: int, *, overlap: bool
    ) -> tuple[Callable[[int], Any], Any, Any]:
        """``start(stream_handle)``, which returns the driver's status, and the statuses of success and no context."""
        from cuda.bindings import driver

        with current_device(self.device):
            status, function = driver.cuKernelGetFunction(self.kernel.handle)
        success, no_context = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
        if status != success:
            raise LaunchError(f"{self.describe(grid)} could not be found on the device: {status.name}")
        threads, shared_bytes = 32 * self.spec.warps, self.spec.shared_bytes
        streams: dict[int, Any] = {}

        def start(handle: int) -> Any:
            stream = streams.get(handle)
            if stream is None:
                stream = streams[handle] = driver.CUstream(handle)
            return launch(function, *grid, threads, 1, 1, shared_bytes, stream, parameters, 0)[0]

        def start_with(handle: int) -> Any:
            config = streams.get(handle)
            if config is None:
                config = streams[handle] = driver.CUlaunchConfig()
                config.gridDimX, config.gridDimY, config.gridDimZ = grid
                config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
                config.sharedMemBytes, config.hStream = shared_bytes, driver.CUstream(handle)
                config.attrs, config.numAttrs = attributes, len(attributes)
            return launch_ex(config, function, parameters, 0)[0]

        attributes, kinds = [], driver.CUlaunchAttributeID
        if overlap:
            early = driver.CUlaunchAttribute()
            early.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            early.value.programmaticStreamSerializationAllowed = 1
            attributes.append(early)
        cluster = getattr(self.spec, "cluster", 1)
        if cluster > 1:
            together = driver.CUlaunchAttribute()
            together.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = together.value.clusterDim
            size.x, size.y, size.z = cluster, 1, 1
            attributes.append(together)
        launch, launch_ex = driver.cuLaunchKernel, driver.cuLaunchKernelEx
        return (start_with if attributes else start), success, no_context

    def describe(self, grid: tuple[int, int, int]) -> str:
        """What a failing launch says of itself."""
        axes = 3 if grid[2] > 1 else 2 if grid[1] > 1 else 1
        blocks = " x ".join(map(str, grid[:axes]))
        return (
            f"{self.spec.name} (grid {blocks}, {32 * self.spec.warps} threads, {self.spec.shared_bytes} bytes "
            f"of shared memory of at most {self.device.shared_bytes_per_block} on {self.device.name})"
        )


def _word(argument: Any) -> int:
    """An argument as the low bytes of a 64-bit word; 0 for the name of one that comes later, or a map of it."""
    if isinstance(argument, float):
        return int(struct.unpack("<I", struct.pack("<f", argument))[0])
    return 0 if isinstance(argument, (str, TensorMap)) else int(argument)


_loaded: dict[tuple[str, Any, int], LoadedKernel] = {}


def load(family: Any, spec: Any, index: int) -> LoadedKernel:
    """The kernel on GPU ``index``, loaded at most once."""
    key = (family.__name__, spec, index)
    found = _loaded.get(key)
    if found is None:
        found = _loaded[key] = LoadedKernel(family, spec, device(index))
    return found


class current_device:
    """Make a GPU current for a block of code and restore what was current before."""

    def __init__(self, where: Device) -> None:
        self.where = where

    def __enter__(self) -> None:
        from cuda.bindings import driver
        from cuda.core import Device as CudaDevice

        _, self.previous = driver.cuCtxGetCurrent()
        CudaDevice(self.where.index).set_current()

    def __exit__(self, *_: object) -> None:
        from cuda.bindings import driver

        if int(self.previous):
            driver.cuCtxSetCurrent(self.previous)


def device_index() -> int:
    """The GPU that is current in this thread, else the first."""
    from cuda.bindings import driver

    _, context = driver.cuCtxGetCurrent()
    return int(driver.cuCtxGetDevice()[1]) if int(context) else 0


def synchronize(index: int) -> None:
    """Wait for GPU ``index``; raises :class:`LaunchError` if a kernel failed while it ran."""
    from cuda.bindings import driver

    with current_device(device(index)):
        (status,) = driver.cuCtxSynchronize()
    if status != driver.CUresult.CUDA_SUCCESS:
        kernels = ", ".join(sorted(k.spec.name for k in _loaded.values() if k.device.index == index))
        raise LaunchError(
            f"a kernel failed on {device(index).name}: {status.name}; loaded kernels: {kernels}"
        )


def fill(pointer: int, value: np.float32, count: int, stream: int, index: int) -> None:
    """Set ``count`` float32 in the memory of GPU ``index``, on a stream."""
    from cuda.bindings import driver

    with current_device(device(index)):
        (status,) = driver.cuMemsetD32Async(pointer, int(value.view(np.uint32)), count, stream)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"setting {count} numbers on {device(index).name} failed: {status.name}")


def free_bytes(index: int) -> int:
    """Device memory of GPU ``index`` that nobody has allocated."""
    from cuda.bindings import driver

    with current_device(device(index)):
        status, free, _ = driver.cuMemGetInfo()
    return int(free) if status == driver.CUresult.CUDA_SUCCESS else 0


def _free_caches() -> None:
    """Ask libraries for the memory that they keep for arrays to come: the driver counts it as taken."""
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()


class DeviceBuffer:
    """Device memory that holds a copy of a host array, freed with the object."""

    def __init__(self, index: int, shape: Sequence[int], dtype: Any) -> None:
        self.shape, self.dtype, self.where = tuple(shape), np.dtype(dtype), device(index)
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self.pointer = 0
        with current_device(self.where):
            try:
                self.pointer = int(self._call("cuMemAlloc", max(self.nbytes, 1)))
            except LaunchError:
                _free_caches()
                self.pointer = int(self._call("cuMemAlloc", max(self.nbytes, 1)))

    def _call(self, name: str, *args: Any) -> Any:
        from cuda.bindings import driver

        status, *rest = getattr(driver, name)(*args)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise LaunchError(f"{name} of {self.nbytes} bytes on {self.where.name} failed: {status.name}")
        return rest[0] if rest else None

    @classmethod
    def of(cls, host: NDArray, index: int) -> DeviceBuffer:
        """A copy of ``host`` on GPU ``index``."""
        made = cls(index, host.shape, host.dtype)
        host = np.ascontiguousarray(host)
        with current_device(made.where):
            made._call("cuMemcpyHtoD", made.pointer, host.ctypes.data, made.nbytes)
        return made

    def host(self) -> NDArray:
        """A copy on the host; waits for the work that came before on the default stream."""
        out = np.empty(self.shape, self.dtype)
        with current_device(self.where):
            self._call("cuMemcpyDtoH", out.ctypes.data, self.pointer, self.nbytes)
        return out

    def __del__(self) -> None:
        if getattr(self, "pointer", 0):
            try:
                with current_device(self.where):
                    self._call("cuMemFree", self.pointer)
            except Exception:  # the interpreter is ending, or the context is gone and its memory with it
                pass
            self.pointer = 0
