"""The CPU body's operations on samples of any stored type and on rows by a table; see `gpu_samples.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernels_numba.tile.cpu_memory import Fragment, _lanes
from kernels_numba.tile.layout import HALF_TYPES, WARP
from kernels_numba.tile.machine import Buffer, Machine


class CpuSamples:
    """Operations of the vocabulary "float"; :class:`kernels_numba.tile.cpu_vocabularies.CpuFloats` inherits them."""

    machine: Machine
    load_floats: Callable
    store_floats: Callable

    def load_kind(self, constants: tuple[int, ...], kind: str, *, guarded: bool) -> Callable:
        """Samples of type ``kind`` as float32; zeros where masked."""
        count = len(constants)
        if kind == "fp32":
            pieces = tuple((c, (i,)) for i, c in enumerate(constants))
            return self.load_floats(pieces, count, guarded=guarded)

        def load(source: Buffer, base: Any, limit: Any, at: Any) -> Fragment:
            at = _lanes(at) + np.array(constants)[:, None]
            keep = at < limit if guarded else np.ones(at.shape, bool)
            where = (_lanes(base) + at)[keep]
            source.check(where, 1)
            out = np.zeros((count, WARP), np.float32)
            with np.errstate(invalid="ignore"):
                out[keep] = source.data.view(HALF_TYPES[kind])[where].astype(np.float32)
            self.machine.counters.add_bytes("global_read_bytes", source.name, 2 * where.size)
            return out

        return load

    def store_kind(self, constants: tuple[int, ...], first: int, kind: str, *, guarded: bool) -> Callable:
        """Registers from ``first`` on, rounded to ``kind``."""
        if kind == "fp32":
            pieces = tuple((c, (first + i,)) for i, c in enumerate(constants))
            return self.store_floats(pieces, guarded=guarded)

        def store(target: Buffer, base: Any, limit: Any, at: Any, x: Fragment) -> None:
            at = _lanes(at) + np.array(constants)[:, None]
            keep = at < limit if guarded else np.broadcast_to(_lanes(limit) > 0, at.shape)
            where = (_lanes(base) + at)[keep]
            target.check(where, 1)
            with np.errstate(over="ignore", invalid="ignore"):
                rounded = x[first : first + len(constants)].astype(HALF_TYPES[kind])
            target.data[where] = rounded.view(np.int16)[keep]
            self.machine.counters.add_bytes("global_written_bytes", target.name, 2 * where.size)

        return store

    def load_rows(self, count: int) -> Callable:
        """Complex points of global memory at places; zeros where a place is negative."""

        def load(source: Buffer, base: Any, places: Fragment) -> Fragment:
            keep = places >= 0
            where = 2 * (_lanes(base) + places)[keep]
            source.check(where, 2)
            out = np.zeros((2, count, WARP), np.float32)
            out[0, keep], out[1, keep] = source.data[where], source.data[where + 1]
            self.machine.counters.add_bytes("global_read_bytes", source.name, 8 * where.size)
            return out.reshape(2 * count, WARP)

        return load

    def store_rows(self, count: int) -> Callable:
        """The reverse."""

        def store(target: Buffer, base: Any, places: Fragment, x: Fragment) -> None:
            keep = places >= 0
            where = 2 * (_lanes(base) + places)[keep]
            target.check(where, 2)
            target.data[where], target.data[where + 1] = x[:count][keep], x[count:][keep]
            self.machine.counters.add_bytes("global_written_bytes", target.name, 8 * where.size)

        return store
