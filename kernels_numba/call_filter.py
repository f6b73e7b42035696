"""Filters of one call: those of short convolutions are transformed by the convolution's own kernel (`warp_filter`).

A training step has new taps each time. What `prepare_for_call` returns is a spectrum to `FFTConv` like any other, but
where the kernel can, its words are not made before the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import warp_filter
from kernels_numba.arrays import adapter_of
from kernels_numba.device import device
from kernels_numba.plan_choice import choose_plan
from kernels_numba.spectrum import Spectrum, _layout, places_of_taps, prepare_adjoint, prepare_filter
from kernels_numba.tile.layout import HALF_TYPES
from monarch import Plan


@dataclass(frozen=True)
class Untransformed(Spectrum):
    """A filter that its convolution's kernel transforms, in a call that follows at once; it has no ``words``."""

    source: Any = None
    """The taps, without gaps,"""
    kind: str = ""
    """their type,"""
    count: int = 0
    """for how many channels they are,"""
    tables: Any = None
    """and what the kernel reads beside them, in the same memory."""
    transform: Callable[[], Spectrum] | None = None
    """Makes the spectrum, for a kernel that does not."""

    @property
    def channels(self) -> int:
        """H."""
        return self.count

    def with_taps(self, length: int) -> int:
        """What the kernel is told for a length: see `fused_warp.build`."""
        return length + (self.taps if len(self.source.shape) == 2 else -self.taps) * 2**32

    @cached_property
    def transformed(self) -> Spectrum:
        """The spectrum after all."""
        assert self.transform is not None
        return self.transform()

    def on_host(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """As `Spectrum.on_host`."""
        return self.transformed.on_host()

    def on_device(self, index: int) -> tuple[int, int]:
        """As `Spectrum.on_device`."""
        return self.transformed.on_device(index)

    def kernel(self, spec: Any, items: int, pairs: int, index: int) -> tuple[Any, int, int, int] | None:
        """The kernel for so many items, items of a warp, and addresses of taps and tables; None if there is none."""
        adapter, where = adapter_of(self.source, "k"), device(index)
        if adapter.index(self.source) != index:
            return None
        blocks = (where.sm_count or 1) * warp_filter.min_blocks(spec)
        found = warp_filter.chosen(spec, self.kind, items, pairs, blocks, where)
        return found and (*found, adapter.pointer(self.source), self.tables.pointer)


def prepare_for_call(
    k: Any, *, adjoint: bool = False, gradients: bool = False, scaled: bool | None = None, **how: Any
) -> Spectrum:
    """`prepare_filter`, or if ``adjoint`` `prepare_adjoint`, for one call of a convolution that follows at once."""
    make = partial(prepare_filter, k, scaled=scaled, **how)
    correlate = partial(prepare_adjoint, k, scaled=scaled, **how)
    found = None
    if adapter_of(k, "k").index(k) is not None:
        found = untransformed(k, correlate if adjoint else make, adjoint=adjoint, **how)
    if found is None:
        return correlate() if adjoint else make(gradients=gradients)
    return replace(found, adjoint=untransformed(k, correlate, adjoint=True, **how)) if gradients else found


def untransformed(
    k: Any,
    transform: Callable[[], Spectrum] | None,
    *,
    length: int,
    mode: str = "circular",
    dtype: str = "fp16",
    plan: Plan | None = None,
    channels: int | None = None,
    products: str | None = None,
    pattern: Any = None,
    adjoint: bool = False,
) -> Untransformed | None:
    """The filter as it is, if there may be a kernel that transforms it; what is wrong with it is said by others."""
    adapter, shape = adapter_of(k, "k"), tuple(k.shape)
    kind, index = adapter.dtype_name(k), adapter.index(k)
    if kind not in warp_filter.TAPS or dtype not in HALF_TYPES or products not in (None, dtype):
        return None
    if pattern is not None or len(shape) not in (1, 2) or 0 in shape:
        return None
    if len(shape) == 2 and channels not in (None, shape[0]):
        return None
    taps, rows = shape[-1], shape[0] if len(shape) == 2 else channels or 1
    plan, outer = choose_plan(mode, length, taps, plan, dtype, device(index or 0), sequences=dtype)
    if outer or plan.order != 2 or plan.n not in warp_filter.LENGTHS.get(plan.packing, ()):
        return None
    if not _in_order(plan, mode, length, taps):
        return None
    known = plan, mode, length, taps
    tables = _tables(*known, dtype, adjoint, index)
    source = k if adapter.contiguous(k) else adapter.packed(k)
    return Untransformed(
        *known,
        dtype,
        dtype,
        None,
        None,
        True,
        source=source,
        kind=kind,
        count=rows,
        tables=tables,
        transform=transform,
    )


@lru_cache(maxsize=128)
def _in_order(plan: Plan, mode: str, length: int, taps: int) -> bool:
    """Whether tap i is sample i of the circle."""
    targets, sources = places_of_taps(mode, length, taps, plan.n)
    return targets.size == taps and bool((targets == sources).all())


@lru_cache(maxsize=32)
def _tables(
    plan: Plan, mode: str, length: int, taps: int, dtype: str, adjoint: bool, index: int | None
) -> Any:
    """`warp_filter.tables` on a GPU, or in host memory."""
    layout = _layout(plan, mode, length, taps, dtype)
    how = {"right_angle": layout.turned, "adjoint": adjoint}
    host = warp_filter.tables(plan.n, layout.order, layout.phase, **how)
    if index is None:
        return host
    from kernels_numba.launch import DeviceBuffer

    return DeviceBuffer.of(host, index)
