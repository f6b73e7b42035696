"""A backward pass whose gradients leave one kernel, but for those in taps, which two more kernels make.

What is prepared for the gradients one by one is used: spectra and their scales (`fftconv.FFTConv`), and the sums' way
back to taps (`filter_sums.FilterGradient`). See `backward_warp`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import backward_block, backward_warp, gradient_jobs
from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.device import LARGEST_SHARED_BYTES, Device, device
from kernels_numba.families import fitted
from kernels_numba.fftconv import FFTConv
from kernels_numba.filter_sums import FilterGradient, Launches, device_operands
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import ELEMENT_TYPES
from monarch import Plan

APART = (48, 32)
"""Factors of pairs whose gradients are made faster one by one if there are no gates: registers are short."""
FAMILIES: tuple[ModuleType, ...] = (backward_warp, backward_block)


def family_of(plan: Plan) -> ModuleType | None:
    """The family whose kernel makes all gradients of a plan's convolution, or None."""
    return next((f for f in FAMILIES if plan.factors in f.PACKINGS.get(plan.packing, ())), None)


def runs(plan: Plan, summed: Plan, *, gated: bool, limit: int = LARGEST_SHARED_BYTES) -> bool:
    """Whether one kernel makes all gradients, of half-precision products: it has to transform as both plans say.

    Its blocks can have ``limit`` bytes of shared memory.
    """
    same = (plan.factors, plan.packing) == (summed.factors, summed.packing)
    apart = plan.factors == APART and plan.packing == "pair" and not gated
    return same and not apart and _least_shared(plan.factors, plan.packing) <= limit


@cache
def _least_shared(factors: tuple[int, ...], packing: str) -> float:
    """Bytes of shared memory a block that a plan's kernel needs, with gates, which take more; infinite without one."""
    plan = Plan.of(factors, packing=packing)
    family = family_of(plan)
    if family is None:
        return math.inf
    spec = family.make_spec(plan, "fp16", shared_limit=0, pregate=True, postgate=True, scaled=True)
    return float(spec.shared_bytes)


def fits(correlate: FFTConv | None, gradient: Any, *, gated: bool) -> bool:
    """The same of what is prepared for each gradient."""
    plan = plan_of(gradient, gated=gated)
    return plan is not None and correlate is not None and runs(correlate.spectrum.plan, plan, gated=gated)


def plan_of(gradient: Any, *, gated: bool) -> Plan | None:
    """The plan of spectra with which one kernel makes all gradients, that of the sums; None without such a kernel."""
    if not isinstance(gradient, FilterGradient) or gradient.products == "fp32" or gradient.kept:
        return None
    limit = device().shared_bytes_per_block or LARGEST_SHARED_BYTES
    return gradient.plan if runs(gradient.plan, gradient.plan, gated=gated, limit=limit) else None


class BackwardPass:
    """All gradients of a convolution, for one batch size and length.

    Args:
        correlate: the convolution by the filter's adjoint spectrum.
        convolve: that by its spectrum, if there is a postgate.
        gradient: in the filter.
    """

    def __init__(self, correlate: FFTConv, convolve: FFTConv | None, gradient: FilterGradient) -> None:
        self.correlate, self.convolve, self.gradient = correlate, convolve, gradient
        self.family: Any = family_of(gradient.plan)

    def spec(
        self, low_bits: int = 0, *, pregate: bool = False, postgate: bool = False, where: Device | None = None
    ) -> Any:
        """The kernel, on a device, for arrays whose addresses end in ``low_bits``."""
        batch, _, length = self.gradient.shape
        plan, dtype = self.gradient.plan, self.gradient.dtype
        limit = where.shared_bytes_per_block if where else None
        alone = batch % 2 != 0
        spec = self.family.make_spec(
            plan,
            self.gradient.products,
            halves=self.gradient.halves(low_bits),
            guarded=length < plan.n or alone,
            pregate=pregate,
            postgate=postgate,
            scaled=True,
            **({"shared_limit": limit} if limit else {}),
        )
        spec = fitted(spec, plan, length, alone=alone, capability=where.capability if where else None)
        return spec if self.gradient.products == dtype else replace(spec, sequences="fp32")

    def scalars(self, spec: Any, workers: int) -> tuple[int, int, tuple[int, ...]]:
        """Blocks, shares of a channel's pairs, and integers of the kernel, for so many workers in all."""
        gradient, per_block = self.gradient, self.family.workers(spec)
        shares, per_share = gradient.shares(workers, 1)
        units = gradient.shape[1] * shares
        grid = min(-(-workers // per_block), -(-units // per_block))
        return grid, shares, (units, grid * per_block, shares, per_share, gradient.pairs, *gradient.shape)

    # ---- on a GPU ------------------------------------------------------------------------------------------
    def launch(
        self, u: Any, dy: Any, pregate: Any, postgate: Any, *, adapter: Adapter, index: int
    ) -> dict[str, Any]:
        """The gradients by name, arrays of the library of ``u``; all are on GPU ``index`` and have been checked."""
        gates = pregate is not None, postgate is not None
        found = {"u": adapter.empty_like(u)}
        found |= {
            name: adapter.empty_like(u)
            for name, gate in zip(("pregate", "postgate"), gates, strict=True)
            if gate
        }
        given = (u, pregate, dy, postgate, *(found.get(name) for name in ("u", "pregate", "postgate")))
        at = [0 if x is None else adapter_of(x, "u").pointer(x) for x in given]
        low_bits = 0
        for address in at:
            low_bits |= address & 15
        key = (index, low_bits, *gates)
        launches = self.gradient.whole_launches
        made = launches.get(key)
        if made is None:
            made = launches[key] = self._make(*key)
        spectra = [x for convolve in (self.correlate, self.convolve) for x in _on_device(convolve, index)]
        return found | {"k": made.run(adapter, index, [*at[:4], *spectra, *at[4:]])}

    def _make(self, index: int, low_bits: int, pregate: bool, postgate: bool) -> Launches:
        from kernels_numba import launch

        where = device(index)
        spec = self.spec(low_bits, pregate=pregate, postgate=postgate, where=where)
        loaded = launch.load(self.family, spec, index)
        workers = (where.sm_count or 1) * loaded.blocks_per_sm * self.family.workers(spec)
        grid, shares, scalars = self.scalars(spec, workers)
        constants = device_operands(self.family, self.family.operand_key(spec), index)
        read = ("u", "pregate", "dy", "postgate", "adjoint", "adjoint_scales", "words", "scales")
        written = ("du", "dpregate", "dpostgate", "sums")
        arguments = (*read, *(c.pointer for c in constants), *written, *scalars)
        run: Callable[..., None] = loaded.launcher(grid, arguments, (*read, *written), overlap=spec.overlap)
        gradient = self.gradient
        way = gradient_jobs.way_back(
            gradient.plan.n, where.shared_bytes_per_block or 0, turned=gradient.turned
        )
        return Launches(gradient, run, spec, shares, way, index, constants)

    # ---- on the CPU body -----------------------------------------------------------------------------------
    def run_cpu(
        self,
        u: NDArray,
        dy: NDArray,
        pregate: NDArray | None = None,
        postgate: NDArray | None = None,
        *,
        workers: int = 8,
    ) -> tuple[dict[str, NDArray], Counters, Counters]:
        """Run the kernels on the CPU body: gradients by name, and what the first kernel and the rest counted."""
        from kernels_numba.host_arrays import _aligned, _bits
        from kernels_numba.launch import vocabulary_of
        from kernels_numba.tile.cpu_vocabularies import tile
        from kernels_numba.tile.machine import POISON, Buffer, Machine

        gradient = self.gradient
        gates: dict[str, Any] = {"pregate": pregate is not None, "postgate": postgate is not None}
        spec = self.spec(**gates)
        grid, shares, scalars = self.scalars(spec, workers)
        stored = ELEMENT_TYPES[gradient.dtype]
        poison = np.float32(np.nan) if gradient.dtype == "fp32" else POISON
        size = int(np.prod(gradient.shape))
        sizes = {"u": size} | {name: size * gate for name, gate in gates.items()}
        results = {name: _aligned(np.full(n, poison, poison.dtype)) for name, n in sizes.items()}
        sums = _aligned(np.full(gradient.shape[1] * shares * 2 * gradient.plan.points, np.nan, np.float32))
        spectra = []
        for name, convolve in (("adjoint", self.correlate), ("spectrum", self.convolve)):
            words, scales = (np.empty(0, np.int32),) * 2 if convolve is None else convolve.spectrum.on_host()
            spectra += [Buffer(name, words.reshape(-1)), Buffer(f"{name}_scales", scales)]
        machine = Machine()
        kernel = self.family.build(tile(machine, spec.dtype, vocabulary_of(self.family, spec)), spec)
        constants = self.family.operands(*self.family.operand_key(spec))
        read = {"u": u, "pregate": pregate, "dy": dy, "postgate": postgate}
        buffers = [
            *(Buffer(name, _bits(x)) for name, x in read.items()),
            *spectra,
            *(Buffer(name, words) for name, words in zip(("constants", "tables"), constants, strict=False)),
            *(Buffer(f"d{name}", x) for name, x in results.items()),
            Buffer("sums", sums),
        ]
        counters = machine.run(kernel, grid, spec.warps, spec.shared_bytes // 4, [*buffers, *scalars])
        k, after = gradient.back_cpu(spec, shares, sums)
        found = {name: x.view(stored).reshape(gradient.shape) for name, x in results.items() if x.size}
        return found | {"k": k}, counters, after


def _on_device(convolve: FFTConv | None, index: int) -> tuple[int, int]:
    return (0, 0) if convolve is None else convolve.spectrum.on_device(index)
