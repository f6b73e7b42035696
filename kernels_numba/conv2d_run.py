"""Running a planned pass: on a GPU as launches on a stream, on the CPU body with counts.

Spectra are workspaces, "A", "B", "P" (and sums, "S"); constants are copied to each GPU once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.conv2d_plan import Plan
from kernels_numba.conv2d_steps import Constants, Ref, Step
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import STORAGE_TYPES

SIZES = {"HALVES": 2, "WORDS": 4, "FLOATS": 4}


# ---- a GPU ---------------------------------------------------------------------------------------------------
@lru_cache(maxsize=64)
def _constants(make: Any, key: tuple, index: int) -> Any:
    from kernels_numba.launch import DeviceBuffer

    return DeviceBuffer.of(make(*key), index)


class Launches:
    """The launches of one pass on GPU ``index``: ``run(stream, addresses)``, an address for each array by name."""

    def __init__(self, steps: list[Step], index: int) -> None:
        self.steps = [self._prepare(step, index) for step in steps]

    def _prepare(self, step: Step, index: int) -> tuple[Callable[..., None], list[tuple[str, int]], list]:
        from kernels_numba import launch

        loaded = launch.load(step.family, step.spec, index)
        values: list[Any] = []
        refs: list[tuple[str, int]] = []
        kept: list[Any] = []
        for kind, value in zip(step.family.SIGNATURE, step.arguments, strict=True):
            if isinstance(value, Ref):
                refs.append((value.name, SIZES[kind] * value.offset))
                values.append(f"pointer {len(refs)}")
            elif isinstance(value, Constants):
                kept.append(_constants(value.make, value.key, index))
                values.append(kept[-1].pointer)
            else:
                values.append(value)
        names = [f"pointer {i + 1}" for i in range(len(refs))]
        return loaded.launcher(step.grid, values, pointers=names), refs, kept

    def __call__(self, stream: int, addresses: dict[str, int]) -> None:
        """Launch all on ``stream``."""
        for start, refs, _ in self.steps:
            start(stream, *(addresses[name] + offset for name, offset in refs))


KINDS = {"HALVES": np.int16, "WORDS": np.int32, "FLOATS": np.float32}
LABELS = {"A": "spectrum", "B": "spectrum", "P": "product", "S": "sums"}
"""What workspaces are called in counts."""


# ---- the CPU body --------------------------------------------------------------------------------------------
def run_steps(steps: list[Step], dtype: str, arrays: dict[str, NDArray[np.int16]]) -> Counters:
    """Launch steps on the CPU body; ``arrays``, by name, are as halves, and are written to. What was counted."""
    from kernels_numba.tile.cpu_vocabularies import tile as vocabulary
    from kernels_numba.tile.machine import Buffer, Machine

    machine = Machine()
    for step in steps:
        values: list[Any] = []
        for kind, value in zip(step.family.SIGNATURE, step.arguments, strict=True):
            if isinstance(value, Ref):
                data = arrays[value.name].view(KINDS[kind])
                label = LABELS.get(value.name, value.name)
                values.append(Buffer(label, data[value.offset :]))
            elif isinstance(value, Constants):
                values.append(Buffer("constants", _aligned(value.make(*value.key))))
            else:
                values.append(np.float32(value) if kind == "FLOAT" else value)
        kernel = step.family.build(vocabulary(machine, dtype, step.family.VOCABULARY), step.spec)
        machine.run(kernel, step.grid, step.spec.warps, step.spec.shared_bytes // 4, values)
    return machine.counters


def poisoned(halves: int) -> NDArray[np.int16]:
    """An array of NaN that begins on 16 bytes."""
    from kernels_numba.tile.machine import POISON

    return _aligned(np.full(halves, POISON, np.int16))


def run_cpu(
    plan: Plan,
    arrays: dict[str, NDArray],
    out_shape: tuple[int, ...],
    given: dict[str, NDArray] | None = None,
) -> tuple[NDArray, Counters, dict[str, NDArray]]:
    """One pass of host arrays: the result, what all launches did, and the spectra of its operands.

    ``arrays``: "x", "w", "dy" as the pass needs them; ``given``: spectra of operands that are there already.
    """
    made = {name: _aligned(values.reshape(-1).view(np.int16)) for name, values in arrays.items()}
    given = given or {}
    made |= {plan.workspaces[operand]: _aligned(values) for operand, values in given.items()}
    for name, words in plan.words(plan.images).items():
        if name not in made:
            made[name] = poisoned(2 * words)
    made["out"] = poisoned(plan.point_words * int(np.prod(out_shape)))
    steps = plan.steps(kept=frozenset(given))  # all arrays are copies that begin on 16 bytes
    counters = run_steps(steps, plan.dtype, made)
    result = made["out"].view(STORAGE_TYPES[plan.dtype]).reshape(out_shape)
    return result, counters, {operand: made[name] for operand, name in plan.workspaces.items()}


def halves_at(address: int) -> int:
    """How many halves, 8 at most, whose size divides an address."""
    return next(n for n in (8, 4, 2, 1) if address % (2 * n) == 0)


def _aligned(bits: NDArray) -> NDArray:
    """A copy that begins on 16 bytes, as device allocations do."""
    room = np.empty(bits.size + 16 // bits.itemsize, bits.dtype)
    start = (-room.ctypes.data // bits.itemsize) % (16 // bits.itemsize)
    room[start : start + bits.size] = bits
    return room[start : start + bits.size]
