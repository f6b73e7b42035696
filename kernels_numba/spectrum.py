"""Filters as the kernels want them: transformed, scaled, rounded and laid out, once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import monarch
from kernels_numba.arrays import adapter_of
from kernels_numba.families import DEFAULT_FACTORS, family_of
from kernels_numba.tile.layout import HALF_TYPES
from monarch import Plan

SUPPORTED_LENGTHS = tuple(sorted(DEFAULT_FACTORS))
ORDINARY = (2.0**-6, 2.0**4)
"""Largest magnitudes of a spectrum that half precision holds as they are; others are scaled by a power of two."""


@dataclass(frozen=True)
class Spectrum:
    """A filter, transformed and laid out for the kernel. Make it with :func:`prepare_filter`.

    4 bytes per channel and bin, plus one float32 per channel; copied to a GPU when first used there.
    """

    plan: Plan
    mode: str
    length: int
    taps: int
    dtype: str
    words: NDArray[np.int32] = field(repr=False)
    """[H, N]"""
    scales: NDArray[np.float32] = field(repr=False)
    """[H]"""
    _device: dict[int, tuple[Any, Any]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def scaled(self) -> bool:
        """Whether any channel's spectrum was scaled, so that outputs must be scaled back."""
        return bool((self.scales != 1).any())

    @property
    def channels(self) -> int:
        """H."""
        return self.words.shape[0]

    def on_device(self, index: int) -> tuple[Any, Any]:
        """Spectrum words and scales in the memory of GPU ``index``."""
        if index not in self._device:
            from kernels_numba.launch import DeviceBuffer

            self._device[index] = (DeviceBuffer.of(self.words, index), DeviceBuffer.of(self.scales, index))
        return self._device[index]


def prepare_filter(
    k: Any,
    *,
    length: int,
    mode: str = "circular",
    dtype: str = "fp16",
    plan: Plan | None = None,
    channels: int | None = None,
) -> Spectrum:
    """Transform a filter once, for any number of convolutions.

    Args:
        k: filter [H, K] or [K], any float type, any supported library.
        length: L, samples per sequence.
        mode: as in :func:`fftconv`.
        dtype: "fp16" or "bf16", the dtype of the sequences.
        plan: as in :func:`fftconv`.
        channels: H, to which a filter [K] is broadcast; checked against a filter [H, K].

    Raises:
        TypeError, ValueError: as :func:`fftconv`.
    """
    if dtype not in HALF_TYPES:
        raise ValueError(f"dtype: accepted are {', '.join(HALF_TYPES)}; got {dtype!r}")
    adapter = adapter_of(k, "k")
    if adapter.dtype_name(k) not in ("fp16", "bf16", "fp32", "fp64"):
        raise TypeError(
            f"k: accepted are real fp16, bf16, fp32 and fp64 filters; got {adapter.dtype_name(k)}"
        )
    taps = adapter.host(k).astype(np.float64)
    if taps.ndim == 1:
        taps = np.broadcast_to(taps, (channels or 1, taps.size))
    if taps.ndim != 2 or 0 in taps.shape:
        raise ValueError(f"k: expected a filter [H, K] or [K] with H, K >= 1, got shape {tuple(k.shape)}")
    if channels is not None and taps.shape[0] != channels:
        raise ValueError(
            f"k: {taps.shape[0]} filters for {channels} channels; give one filter [K], or one per channel"
        )
    plan = _choose_plan(mode, length, taps.shape[1], plan)
    circle = monarch.place_filter(taps, length, plan.n, mode=mode)
    with np.errstate(divide="ignore", invalid="ignore"):  # filters may hold infinities and NaN
        bins = np.fft.fft(circle, axis=-1)
        peak = np.abs(bins).max(axis=1)
        ordinary = ~np.isfinite(peak) | (peak == 0) | ((peak >= ORDINARY[0]) & (peak <= ORDINARY[1]))
        scale = np.where(ordinary, 1.0, 2.0 ** np.ceil(np.log2(peak)))
        words = family_of(plan).spectrum_words(bins / scale[:, None], plan, dtype)
    scales = scale.astype(np.float32)
    return Spectrum(plan, mode, length, taps.shape[1], dtype, words, scales)


def _choose_plan(mode: str, length: int, taps: int, plan: Plan | None) -> Plan:
    """The plan asked for, checked, or the default one, with what is zero and what is wanted filled in."""
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(
            f"plan: expected a monarch.Plan, got {type(plan).__name__}; for instance "
            "monarch.Plan(1024, monarch.parse_factors('32x32'))"
        )
    if length < 1:
        raise ValueError(f"length: sequences need at least one sample, got {length}")
    if mode == "circular" and taps > length:
        raise ValueError(
            f"k: {taps} taps are more than the {length} samples of a circular convolution; fold the filter onto the "
            'circle, or use mode "causal" or "two-sided"'
        )
    need = monarch.convolution_length(mode, length, taps)
    if mode == "circular" and plan is not None and plan.n != length:
        raise ValueError(
            f"plan: a circular convolution of length {length} needs a transform of exactly that length, not "
            f"{plan.n}"
        )
    if plan is None:
        fitting = [n for n in SUPPORTED_LENGTHS if (n == need if mode == "circular" else n >= need)]
        if not fitting:
            accepted = (
                f"lengths {SUPPORTED_LENGTHS}"
                if mode == "circular"
                else f"up to {SUPPORTED_LENGTHS[-1]} points"
            )
            raise ValueError(
                f"u: a {mode} convolution of {length} samples with {taps} taps needs {need} points; the "
                f"fused kernel takes {accepted}. reference.fftconv computes any length in float64."
            )
        plan = Plan(fitting[0], DEFAULT_FACTORS[fitting[0]])
    elif plan.n < need:
        raise ValueError(
            f"plan: {plan.n} points are too few for a {mode} convolution of {length} samples with {taps} "
            f"taps, which needs {need}"
        )
    plan = plan.with_(signal=min(length, plan.n), wanted=min(length, plan.n))
    family_of(plan)  # refuses what no kernel can run
    return plan
