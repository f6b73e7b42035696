"""Filters as the kernels want them: transformed, scaled, rounded and laid out, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

import monarch
from kernels_numba.arrays import adapter_of
from kernels_numba.device import device
from kernels_numba.families import FLOAT_TYPES
from kernels_numba.plan_choice import (
    axes_kept,
    check_pattern,
    choose_plan,
    marks_of,
    rows_kept,
    spectrum_layout,
)
from kernels_numba.tile.layout import COMPLEX_TYPES, ELEMENT_TYPES, HALF_TYPES, STORAGE_TYPES
from monarch import Plan

ORDINARY = {"fp16": (2.0**-6, 2.0**4), "bf16": (2.0**-6, 2.0**4), "fp32": (0.0, np.inf)}
"""Largest magnitudes of a spectrum that are kept as they are; other spectra are scaled by a power of two."""


LONGEST_KEPT = 2**17
"""Points of the longest transform whose layout is kept for the next filter."""


@dataclass(frozen=True)
class Spectrum:
    """A filter, transformed and laid out for the kernel. Make it with :func:`prepare_filter`.

    4 bytes per channel and bin (8 in fp32), plus one float32 per channel. Where kernels run on a GPU, it is made there
    and lives there, for a filter in host memory on the current GPU; it is copied to another when first used there.
    """

    plan: Plan
    mode: str
    length: int
    taps: int
    dtype: str
    """Of the sequences,"""
    products: str
    """and of the products: the same, a half-precision type for fp32 and complex64 sequences, or fp32 for long ones of
    halves."""
    words: Any = field(repr=False)
    """int32 [H, N], of fp32 [H, 2 N]"""
    scales: Any = field(repr=False)
    """float32 [H]"""
    scaled: bool
    """Whether any channel's spectrum was scaled, so that outputs must be scaled back."""
    adjoint: Spectrum | None = field(default=None, repr=False, compare=False)
    """The spectrum that correlates with the filter, for gradients; if it was asked for."""
    outer: bool = False
    """Whether the plan's first factors are outer stages; see `long_plans`."""
    rows: tuple[int, ...] = ()
    """With outer stages, the rows k1 that are kept, if some are zero; words are [H, kept N2] then."""
    pattern: monarch.SparsityPattern | None = field(default=None, repr=False, compare=False)
    """What is kept of the whole spectrum, if there are zeros."""
    marks: bytes = field(default=b"", repr=False)
    """float32 by row (all are one without outer stages) and part of it that a kernel may leave out: 1.0 where something
    is kept, else 0. Empty where nothing can be left out."""
    axes: tuple[int, ...] = ()
    """Of each axis of the kernel's plan (the rows' with outer stages) so many rows are in ``words``, if not all."""
    _device: dict[int, tuple[Any, Any]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def channels(self) -> int:
        """H."""
        return int(self.words.shape[0])

    def on_host(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Words and scales as NumPy arrays."""
        return adapter_of(self.words, "words").host(self.words), adapter_of(self.scales, "scales").host(
            self.scales
        )

    def on_device(self, index: int) -> tuple[int, int]:
        """Addresses of words and scales in the memory of GPU ``index``."""
        adapter = adapter_of(self.words, "words")
        if adapter.index(self.words) == index:
            return adapter.pointer(self.words), adapter.pointer(self.scales)
        if index not in self._device:
            from kernels_numba.launch import DeviceBuffer

            words, scales = self.on_host()
            self._device[index] = (DeviceBuffer.of(words, index), DeviceBuffer.of(scales, index))
        words, scales = self._device[index]
        return words.pointer, scales.pointer


def prepare_filter(
    k: Any,
    *,
    length: int,
    mode: str = "circular",
    dtype: str = "fp16",
    plan: Plan | None = None,
    channels: int | None = None,
    products: str | None = None,
    gradients: bool = False,
    scaled: bool | None = None,
    on_chip: int | None = None,
    pattern: monarch.SparsityPattern | None = None,
) -> Spectrum:
    """Transform a filter once, for any number of convolutions.

    Args:
        k: filter [H, K] or [K], any float type, any supported library; complex ones for complex sequences only.
        length: L, samples per sequence.
        mode: as in :func:`fftconv`.
        dtype: "fp16", "bf16", "fp32", "complex64" or "complex32", the dtype of the sequences.
        plan: as in :func:`fftconv`.
        channels: H, to which a filter [K] is broadcast; checked against a filter [H, K].
        products: as in :func:`fftconv`.
        gradients: prepare for `fftconv_gradients` too: the result's ``adjoint`` is the spectrum that correlates with
            the filter (with the zeros of a pattern).
        scaled: True: outputs are multiplied by their channel's scale whatever it is. Else a look at the scales, which
            waits for the GPU, tells whether they must be; so a CUDA graph can hold the preparation only with True.
        on_chip: points of the longest transform that one kernel takes; a longer one gets outer stages. By default all
            that one can take.
        pattern: which slots of the plan's spectrum are kept; the others are zero. With outer stages, rows of zeros
            are neither stored nor moved nor convolved. See `sparse_convolution.sparse_fftconv`.

    Raises:
        TypeError, ValueError: as :func:`fftconv`.
    """
    made = _prepare(
        k,
        length,
        mode,
        dtype,
        plan,
        channels,
        products,
        scaled,
        adjoint=False,
        on_chip=on_chip,
        pattern=pattern,
        both=gradients,
    )
    if not gradients or made.adjoint is not None:
        return made
    how = k, length, mode, dtype, plan, channels, products, scaled
    return replace(made, adjoint=_prepare(*how, adjoint=True, on_chip=on_chip, pattern=pattern))


def prepare_adjoint(
    k: Any,
    *,
    length: int,
    mode: str = "circular",
    dtype: str = "fp16",
    plan: Plan | None = None,
    channels: int | None = None,
    products: str | None = None,
    scaled: bool | None = None,
    pattern: monarch.SparsityPattern | None = None,
) -> Spectrum:
    """As :func:`prepare_filter`, the spectrum that correlates with the filter: tap j acts at lag -j. For gradients."""
    return _prepare(k, length, mode, dtype, plan, channels, products, scaled, adjoint=True, pattern=pattern)


def _prepare(
    k: Any,
    length: int,
    mode: str,
    dtype: str,
    plan: Plan | None,
    channels: int | None,
    products: str | None,
    scaled: bool | None,
    *,
    adjoint: bool,
    on_chip: int | None = None,
    pattern: monarch.SparsityPattern | None = None,
    both: bool = False,
) -> Spectrum:
    """The spectrum; if ``both`` with its adjoint, where that comes from the same passes over a filter."""
    if dtype not in ELEMENT_TYPES:
        raise ValueError(f"dtype: accepted are {', '.join(ELEMENT_TYPES)}; got {dtype!r}")
    adapter = adapter_of(k, "k")
    kind = adapter.dtype_name(k)
    mixed = (products in HALF_TYPES and dtype in FLOAT_TYPES) or (products == "fp32" and dtype in HALF_TYPES)
    mixed |= (products, dtype) == ("fp16", "complex32")
    if products not in (None, dtype) and not mixed:
        raise ValueError(
            f"products: accepted are fp16 and bf16 for {' and '.join(FLOAT_TYPES)} sequences, fp32 for long ones of "
            "halves, or nothing; got "
            f"{products!r} for {dtype} ones"
        )
    complex_filter = kind in ("complex32", "complex64", "complex128")
    if complex_filter and dtype not in COMPLEX_TYPES:
        raise TypeError(f"k: a {kind} filter is for complex sequences; these are {dtype}: convert them or it")
    if not complex_filter and kind not in ("fp16", "bf16", "fp32", "fp64"):
        raise TypeError(
            "k: accepted are real fp16, bf16, fp32 and fp64 filters, and complex32, complex64 and complex128 ones of "
            f"complex sequences; got {kind}"
        )
    shape = tuple(k.shape)
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"k: expected a filter [H, K] or [K] with H, K >= 1, got shape {shape}")
    if channels is not None and len(shape) == 2 and shape[0] != channels:
        raise ValueError(
            f"k: {shape[0]} filters for {channels} channels; give one filter [K], or one per channel"
        )
    products = "fp16" if dtype == "complex32" else products or dtype
    if kind == "complex32":
        k = adapter.complex64(k)
    where = device(adapter.index(k) or 0)
    plan, outer = choose_plan(
        mode, length, shape[-1], plan, products, where, sequences=dtype, on_chip=on_chip
    )
    if pattern is not None:
        check_pattern(pattern, plan, mode, length)
    live = rows_kept(pattern, plan, products) if pattern is not None and outer else ()
    marks = b"" if pattern is None else marks_of(pattern, plan, products, outer=outer)
    axes = axes_kept(pattern, plan, products, outer=outer)
    choices = (plan, mode, length, shape[-1], "fp32" if products == "complex64" else products)
    rows = (channels or 1) if len(shape) == 1 else shape[0]
    index, more = adapter.index(k), []
    stored = "fp32" if products == "complex64" else products
    if index is None and device().is_gpu:
        from kernels_numba.launch import device_index

        index = device_index()
    if index is None:
        with np.errstate(divide="ignore", invalid="ignore"):  # filters may hold infinities and NaN
            layout = _kept(_layout, plan)(*choices, adjoint, outer, pattern)
            double = np.complex128 if complex_filter else np.float64
            words, scales = _transform(adapter.host(k).astype(double), rows, layout)
    else:
        from kernels_numba import filter_transform, filter_whole

        # A filter that is prepared for graphs changes in every step.
        tables = _last_constants if scaled and plan.n > LONGEST_KEPT else _kept(_constants, plan)
        # A complex filter's parts are transformed in fp32, whatever becomes of their sum.
        made = "fp32" if complex_filter else stored
        both = both and pattern is None and not complex_filter
        constants, tiles = tables(*choices, index, adjoint, outer, pattern, made, both)
        in_one = filter_whole.NAMES & constants.keys()
        make = filter_whole.transform if in_one else filter_transform.transform

        def on_gpu(x: Any, rows: int) -> tuple[Any, ...]:
            return make(
                x, rows, constants, tiles, made, ORDINARY[made], adapter=adapter_of(x, "k"), index=index
            )

        words, scales, *more = _complex(k, rows, on_gpu, stored) if complex_filter else on_gpu(k, rows)
    if scaled is None:
        scaled = bool((adapter_of(scales, "scales").host(scales) != 1).any())
    found = Spectrum(
        plan,
        mode,
        length,
        shape[-1],
        dtype,
        products,
        words,
        scales,
        scaled,
        outer=outer,
        rows=live,
        pattern=pattern,
        marks=marks,
        axes=axes,
    )
    return replace(found, adjoint=replace(found, words=more[0])) if more else found


@dataclass(frozen=True)
class _Layout:
    """How the words of a spectrum follow from its taps."""

    n: int
    targets: NDArray[np.intp]
    """Where on the circle of n samples the taps go,"""
    sources: NDArray[np.intp]
    """and which taps go there."""
    order: NDArray[np.intp]
    """[1 or 2, n]: the bins that make each position of the kernel's order,"""
    phase: NDArray[np.complex128]
    """[1 or 2, n]: and what they are multiplied by."""
    tiles: int
    """Positions come in so many tiles; a tile's real parts come before its imaginary parts."""
    dtype: str
    turned: bool = False
    """Whether bins are the n / 2 of right-angle packing; see `monarch.right_angle_filter`."""


def _kept(made: Any, plan: Plan) -> Any:
    """A cached function as it is, or for long transforms without its cache: their tables are of the length's size."""
    return made if plan.n <= LONGEST_KEPT else made.__wrapped__


def places_of_taps(mode: str, length: int, taps: int, n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions on the circle, and the taps that go there.

    A circular convolution on a longer circle is a linear one with a filter that is repeated one period earlier: tap j
    acts at the lags j and j - L.
    """
    if mode == "circular" and n != length:
        tap = np.arange(taps)
        return np.concatenate([tap, tap[1:] + n - length]), np.concatenate([tap, tap[1:]])
    numbered = monarch.place_filter(np.arange(1, taps + 1), length, n, mode=mode)
    targets = np.flatnonzero(numbered)
    return targets, numbered[targets].astype(np.intp) - 1


@lru_cache(maxsize=32)
def _layout(
    plan: Plan,
    mode: str,
    length: int,
    taps: int,
    dtype: str,
    adjoint: bool = False,
    outer: bool = False,
    pattern: monarch.SparsityPattern | None = None,
) -> _Layout:
    """The layout of a plan's spectrum, for filters of so many taps, with the zeros of a pattern.

    ``adjoint``: of the filter that runs backwards.
    """
    order, phase, tiles = spectrum_layout(plan, dtype, pattern, outer=outer)
    if pattern is not None:
        phase = phase * pattern.bins(plan)[order]
    targets, sources = places_of_taps(mode, length, taps, plan.n)
    targets = -targets % plan.n if adjoint else targets
    turned = plan.packing == "right-angle"
    return _Layout(plan.n, targets, sources, order, phase, tiles, dtype, turned)


@lru_cache(maxsize=32)
def _constants(
    plan: Plan,
    mode: str,
    length: int,
    taps: int,
    dtype: str,
    index: int,
    adjoint: bool = False,
    outer: bool = False,
    pattern: monarch.SparsityPattern | None = None,
    made: str = "fp16",
    both: bool = False,
) -> tuple[dict[str, Any], int]:
    """A layout in the memory of GPU ``index``, as `filter_whole` wants it, or else `filter_transform`; tiles.

    ``made``: the type of the spectra to be made in that layout. ``both``: by `filter_transform` the adjoint, too.
    """
    from kernels_numba import filter_transform as on_gpu
    from kernels_numba import filter_whole
    from kernels_numba.launch import DeviceBuffer

    layout = _kept(_layout, plan)(plan, mode, length, taps, dtype, adjoint, outer, pattern)
    numbers = on_gpu.numbers(layout.n, layout.targets, layout.sources, turned=layout.turned)
    what = (layout.n, numbers, layout.order, layout.phase)
    room = device(index).shared_bytes_per_block or 0
    kernels = filter_whole.kernels(layout.n, layout.order.shape[1], layout.tiles, room)
    if kernels and made in HALF_TYPES and not outer and pattern is None:
        host = kernels.tables(*what)
    else:
        host = on_gpu.all_tables(*what, made, both=both, turned=layout.turned)
    return {name: DeviceBuffer.of(array, index) for name, array in host.items()}, layout.tiles


@lru_cache(maxsize=2)
def _last_constants(*how: Any) -> tuple[dict[str, Any], int]:
    """`_constants` of long transforms: those of the last filter and its adjoint."""
    made: tuple[dict[str, Any], int] = _constants.__wrapped__(*how)
    return made


def _complex(
    k: Any, rows: int, transform: Callable[[Any, int], tuple[Any, Any]], stored: str
) -> tuple[Any, Any]:
    """Words and scales of a complex filter from its parts, which are transformed as real filters, in fp32.

    In half precision the sum is scaled and rounded as `_transform` does, in tiles of two positions (`fused_any`).
    """
    adapter = adapter_of(k, "k")
    if adapter.library == "torch" and adapter.index(k) is not None:
        import torch

        wide = torch.broadcast_to(k.detach(), (rows, k.shape[-1]))
        words, scales = transform(torch.cat([wide.real, wide.imag]).contiguous(), 2 * rows)
        parts = torch.view_as_complex(words.view(torch.float32).view(2, rows, -1, 2))
        whole = torch.view_as_real(parts[0] + 1j * parts[1]).contiguous()
        if stored in HALF_TYPES:
            scales = _scales_there(torch.view_as_complex(whole).abs().amax(dim=1), stored)
            tiled = (whole / scales[:, None, None]).view(rows, -1, 2, 2).transpose(2, 3)
            kind = torch.float16 if stored == "fp16" else torch.bfloat16
            return tiled.to(kind).contiguous().view(rows, -1).view(torch.int32), scales
        return whole.view(rows, -1).view(torch.int32), scales[:rows]
    xp = adapter.cupy if adapter.library == "cupy" else np  # type: ignore[attr-defined]
    wide = xp.broadcast_to(k if xp is not np else adapter.host(k), (rows, k.shape[-1]))
    words, scales = transform(xp.concatenate([wide.real, wide.imag]), 2 * rows)
    if xp is np or stored in HALF_TYPES:  # not every library has bf16
        words, scales = (adapter_of(x, "k").host(x) for x in (words, scales))
    parts = words.view(np.complex64).reshape(2, rows, -1)
    whole = parts[0] + np.complex64(1j) * parts[1]
    if stored not in HALF_TYPES:
        return whole.view(np.int32), scales[:rows]
    scales = _scales(np.abs(whole).max(axis=1), stored)
    tiled = (whole / scales[:, None]).view(np.float32).reshape(rows, -1, 2, 2).swapaxes(2, 3)
    halves = np.ascontiguousarray(tiled.astype(STORAGE_TYPES[stored])).reshape(rows, -1)
    return xp.asarray(halves.view(np.int32)), xp.asarray(scales)


def _scales(peak: NDArray, dtype: str) -> NDArray[np.float32]:
    """By channel the power of two over which a spectrum of that largest magnitude is stored."""
    least, most = ORDINARY[dtype]
    ordinary = ~np.isfinite(peak) | (peak == 0) | ((peak >= least) & (peak <= most))
    return np.where(ordinary, 1.0, 2.0 ** np.ceil(np.log2(np.where(ordinary, 1.0, peak)))).astype(np.float32)


def _scales_there(peak: Any, dtype: str) -> Any:
    """`_scales` of a tensor, where it is: nothing waits for the GPU."""
    import torch

    least, most = ORDINARY[dtype]
    ordinary = ~torch.isfinite(peak) | (peak == 0) | ((peak >= least) & (peak <= most))
    mantissa, exponent = torch.frexp(peak)
    power = torch.ldexp(torch.ones_like(peak), exponent - (mantissa == 0.5).int())
    return torch.where(ordinary, torch.ones_like(peak), power)


def _transform(k: NDArray, rows: int, layout: _Layout) -> tuple[NDArray, NDArray]:
    """Words and scales in NumPy, in float64, rounded once; `filter_transform` is the GPU's."""
    circle = np.zeros((rows, layout.n), k.dtype)
    circle[:, layout.targets] = k[..., layout.sources]
    bins = np.fft.fft(monarch.fold_right_angle(circle) if layout.turned else circle, axis=-1)
    scale = _scales(np.abs(bins).max(axis=1), layout.dtype)
    values = np.zeros((rows, layout.order.shape[1]), np.complex128)
    for order, phase in zip(layout.order, layout.phase, strict=True):
        values += bins[:, order] * phase
    values /= scale[:, None]
    tiled = values.reshape(rows, layout.tiles, -1)
    parts = np.stack([tiled.real, tiled.imag], axis=2).astype(STORAGE_TYPES[layout.dtype])
    return parts.reshape(rows, -1).view(np.int32), scale
