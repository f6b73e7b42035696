"""What a prepared convolution takes of a GPU's memory, in words: its filter, what a call allocates, its constants."""

from __future__ import annotations

from typing import Any

from kernels_numba.device import LARGEST_SHARED_BYTES, device
from kernels_numba.tile.layout import COMPLEX_TYPES

MOST_CONSTANT_BYTES = 2**21
"""Of one kernel's constants: factors, and twiddles that are not computed."""


def constant_bytes(convolve: Any) -> int:
    """Bytes of the constant operands that a convolution's kernel reads, whatever the filter and the batch are."""
    spec = convolve.spec()
    return sum(words.nbytes for words in convolve.family.operands(*convolve._operand_key(spec)))


def spectrum_bytes(convolve: Any) -> int:
    """Bytes of the prepared filter, with its scales."""
    words, scales = convolve.spectrum.words, convolve.spectrum.scales
    return int(words.nbytes) + int(scales.nbytes)


def on_chip(convolve: Any, spec: Any) -> str:
    """How much of a block's shared memory the points and constants take, and what that limits."""
    from kernels_numba.families import HOPPER, default_plans

    where, spectrum = device(), convolve.spectrum
    limit = where.shared_bytes_per_block or LARGEST_SHARED_BYTES
    plans = default_plans(
        limit,
        where.capability or HOPPER,
        dtype=spectrum.products,
        complex_data=spectrum.dtype in COMPLEX_TYPES,
    )
    text = (
        f"  on chip    {spec.shared_bytes:,} of {limit:,} bytes of shared memory that a block can have here; such "
        f"sequences go in one kernel up to {max(plans)} points, more by plans that are asked for"
    )
    cached = [abs(factor) for factor in getattr(spec, "cached", ())]
    if cached:
        factors = " and ".join(map(str, cached))
        size = sum(4 * spec.matrices[factor] for factor in spec.cached)
        text += (
            f"\n             factors of {factors} do not fit beside the points: {size:,} bytes, which every 16 columns "
            "read through the caches"
        )
    return text


def describe(convolve: Any) -> str:
    """Several lines; the figures are exact."""
    from kernels_numba.fftconv import KEPT_CONSTANTS

    spectrum, spec = convolve.spectrum, convolve.spec(where=device())
    batch, channels, length = convolve.shape
    per_bin = int(spectrum.words.nbytes) / (channels * spectrum.plan.n)
    real = "complex" if spectrum.dtype in COMPLEX_TYPES else "real"
    sequences = {"half": "one sequence at a time", "pair": "two sequences together"}
    sequences["right-angle"] = sequences["pair" if convolve.together == 2 else "half"]
    return "\n".join(
        [
            f"Convolution of {real} sequences [{batch}, {channels}, {length}] in {spectrum.dtype}, products in "
            f"{spectrum.products}, by {spectrum.plan}",
            f"  kernel     {convolve.family.__name__.rpartition('.')[2]}, "
            f"{sequences.get(spectrum.plan.packing, 'one complex sequence at a time')}, {spec.warps} warps a block",
            on_chip(convolve, spec),
            f"  filter     {spectrum_bytes(convolve):,} bytes, {per_bin:g} for each channel and bin, and its scales",
            "  a call     allocates its output, unless `out` is given, and nothing else",
            f"  constants  {constant_bytes(convolve):,} bytes a GPU, shared by all convolutions with this kernel's "
            f"factors and type; kept of at most {KEPT_CONSTANTS} kernels, {MOST_CONSTANT_BYTES:,} bytes each",
        ]
    )
