"""Kernel functions to machine code, with or without a GPU, and what the machine code uses.

The pipeline is numba-cuda's own (Numba IR -> NVVM -> LTO -> nvJitLink -> cubin). It wants a current device
only to ask for its compute capability; :func:`compile_kernel` answers that question itself.
"""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import tempfile
import types as python_types
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from numba.cuda import dispatcher as _dispatcher
from numba.cuda import types
from numba.cuda.compiler import _compile_pyfunc_with_fixup

HALVES = types.CPointer(types.int16)
WORDS = types.CPointer(types.int32)
FLOATS = types.CPointer(types.float32)
DOUBLES = types.CPointer(types.float64)
INT = types.int64
FLOAT = types.float32
MAPS = types.CPointer(types.UniTuple(types.int64, 16))
"""A tensor map (`kernels_numba.tensor_maps`): 128 bytes of a kernel's parameters, of which it has the address."""


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture and the name of its entry point."""

    code: bytes
    entry: str
    capability: tuple


@contextmanager
def _pretend_device(capability: tuple[int, int]) -> Any:
    """While compiling, answer "which device?" with a bare compute capability."""
    original = _dispatcher.get_current_device
    _dispatcher.get_current_device = lambda: python_types.SimpleNamespace(
        compute_capability=capability, name=b"compile-only", id=0
    )
    try:
        yield
    finally:
        _dispatcher.get_current_device = original


@contextmanager
def _without_collector() -> Any:
    """While compiling, no garbage collection: it takes a fifth of the time, and finds next to nothing to free."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def compile_kernel(
    function: Any,
    signature: tuple,
    capability: tuple,
    *,
    threads: int,
    min_blocks: int = 1,
    name: str | None = None,
) -> Cubin:
    """Compile a kernel for ``capability`` and blocks of ``threads``, ``min_blocks`` of them per SM.

    A capability is (major, minor), or (major, minor, "a") for code with instructions of that architecture alone.
    """
    with _pretend_device(capability), _without_collector():
        if name:
            function.__name__ = function.__qualname__ = name
        library, _ = _compile_pyfunc_with_fixup(
            function,
            types.void(*signature),
            cc=capability,
            device=False,
            abi="numba",
            fastmath=False,
            lineinfo=False,
            opt=True,
            launch_bounds=(threads, min_blocks),
        )
        library._lto = True
        if MAPS in signature:
            _pass_by_value(library, [i for i, kind in enumerate(signature) if kind == MAPS])
        cubin = library.get_cubin(cc=capability)
    return Cubin(bytes(cubin.code), library._entry_name, capability)


def _pass_by_value(library: Any, places: list[int]) -> None:
    """Make pointer arguments of a kernel parameters by value, which stay where they are (``__grid_constant__``).

    Numba has no such arguments, so this is done to the text of its LLVM module.
    """
    entry = library._entry_name
    begin = f'define void @"{entry}"('
    texts = []
    for text in library.llvm_strs:
        head, found, rest = text.partition(begin)
        if found:
            arguments, close, body = rest.partition(")")
            parts = arguments.split(", ")
            for place in places:
                parts[place] = parts[place].replace("* ", "* byval align 64 ", 1)
            text = head + found + ", ".join(parts) + close + body
            kernel = re.search(rf'!{{ (void [^@]*@"{re.escape(entry)}"), !"kernel"', text)
            listed = "!nvvm.annotations = !{ "
            if kernel is None or listed not in text:
                raise RuntimeError(
                    "this version of numba-cuda writes kernels another way: no annotations were found"
                )
            numbers = ", ".join(f"i32 {place + 1}" for place in places)
            text = text.replace(listed, f"{listed}!100000, ", 1)
            text += f'\n!100000 = !{{ {kernel[1]}, !"grid_constant", !100001 }}\n!100001 = !{{ {numbers} }}\n'
        texts.append(text)
    library._llvm_strs = texts


def known_capabilities() -> list[tuple[int, int]]:
    """Compute capabilities that the installed CUDA toolkit can compile for."""
    from numba.cuda.cudadrv import nvrtc

    return [(major, minor) for major, minor in nvrtc.get_supported_ccs()]


def toolchain() -> str:
    """Versions that decide what the machine code looks like."""
    names = ("numba-cuda", "numba", "llvmlite", "cuda-bindings", "nvidia-nvvm", "nvidia-nvjitlink")
    found = []
    for name in names:
        try:
            found.append(f"{name}={version(name)}")
        except ModuleNotFoundError:
            continue
    return " ".join(found)


def _utility(name: str) -> str:
    """Path of a CUDA binary utility: the pip package's, else the one on PATH."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        for file in files(f"nvidia-cuda-{name}") or ():
            if Path(file).name == name:
                return str(file.locate())
    except PackageNotFoundError:
        pass
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; `pip install nvidia-cuda-{name}` brings it")
    return found


def _run_on_cubin(tool: str, flags: list[str], code: bytes) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code)
        command = [_utility(tool), *flags, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def disassemble(cubin: Cubin) -> str:
    """SASS of a cubin."""
    return _run_on_cubin("nvdisasm", ["-c", "-ndf"], cubin.code)  # without its analysis of jumps


def opcodes(sass: str) -> dict[str, int]:
    """How often each opcode (without its modifiers) occurs."""
    counts: dict[str, int] = {}
    for match in re.finditer(
        r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", sass, re.MULTILINE
    ):
        counts[match[1]] = counts.get(match[1], 0) + 1
    return counts


def resources(cubin: Cubin) -> dict[str, int]:
    """Registers, stack and static shared bytes, spill instructions, and instruction counts that matter."""
    usage = _run_on_cubin("cuobjdump", ["-res-usage"], cubin.code)
    found = dict(re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", usage))
    counts = opcodes(disassemble(cubin))
    return {
        "registers": int(found["REG"]),
        "stack_bytes": int(found["STACK"]),
        "static_shared_bytes": int(found["SHARED"]),
        "spill_stores": counts.get("STL", 0),
        "spill_loads": counts.get("LDL", 0),
        "mma": counts.get("HMMA", 0) + counts.get("HGMMA", 0),
        "double_precision": sum(counts.get(op, 0) for op in ("DADD", "DMUL", "DFMA")),
        "instructions": sum(counts.values()),
    }


def device_array(shape: tuple[int, ...], dtype: Any) -> Any:
    """An uninitialised Numba device array."""
    from numba import cuda

    return cuda.device_array(shape, dtype)
