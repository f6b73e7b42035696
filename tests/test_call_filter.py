"""Filters that their convolution's kernel transforms, on the CPU body: values, counts, and where it is not done."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from convolutions import filters, noise
from test_filter_transform import TYPES

import reference
from costmodel import filter_counts, kernel_counts
from kernels_numba import FFTConv, fused_warp, prepare_filter, warp_filter
from kernels_numba.call_filter import Untransformed, prepare_for_call, untransformed
from kernels_numba.spectrum import _layout, prepare_adjoint
from kernels_numba.warp_spec import make_spec, min_blocks
from monarch import Plan

BLOCKS = 2  # of the CPU body
CASES = {  # mode, L, B, H, K, gates, type of taps and sequences, size
    "a block": ("circular", 256, 4, 12, 256, "", "fp32", "fp16", 1.0),
    "adjoint, short, gates": ("circular", 256, 6, 3, 77, "adjoint pregate postgate", "fp16", "fp16", 1e-3),
    "rows of three stages": ("circular", 512, 4, 6, 512, "", "bf16", "bf16", 1e4),
    "one for all": ("circular", 768, 3, 6, 700, "shared postgate", "fp32", "fp16", 1.0),
    "turned": ("causal", 256, 4, 6, 256, "", "fp32", "fp16", 1.0),
    "turned, adjoint, gates": ("causal", 384, 3, 5, 384, "adjoint shared pregate", "fp16", "bf16", 1.0),
    "turned, long": ("causal", 512, 4, 6, 511, "", "fp32", "fp16", 1.0),
    "odd points of a lane": ("causal", 640, 2, 4, 640, "", "fp32", "fp16", 1.0),
    "most points of a lane": ("causal", 768, 4, 4, 701, "adjoint", "fp32", "fp16", 1.0),
    "causal by pairs": ("causal", 301, 3, 5, 77, "", "fp32", "fp16", 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_counts(case: str) -> None:
    """Within the bound, next to bit for bit what a spectrum made before gives, and as counted."""
    mode, length, batch, channels, taps, how, kind, dtype, size = CASES[case]
    k = (size * filters(1 if "shared" in how else channels, taps)).astype(TYPES[kind])
    k = k[0] if "shared" in how else k
    u = noise((batch, channels, length), dtype)
    gates = {name: noise(u.shape, dtype, i) for i, name in enumerate(("pregate", "postgate")) if name in how}
    adjoint = "adjoint" in how
    given = {"length": length, "mode": mode, "dtype": dtype, "channels": channels}
    filter_ = untransformed(k, None, **given, adjoint=adjoint)
    assert filter_ is not None and filter_.channels == channels
    convolve = FFTConv(filter_, batch=batch)
    y, counters = convolve.run_cpu(u, **gates)
    exact = reference.fftconv(u, k, mode=mode, **gates)
    wide = [x.astype(float) for x in (u, *gates.values())]
    if adjoint:
        exact = adjoint_of(wide[0] * (wide[1] if "pregate" in how else 1), k.astype(float), mode)
        exact = exact * (wide[-1] if "postgate" in how else 1)
    error = np.linalg.norm(y.astype(float) - exact) / np.linalg.norm(exact)
    assert error < 1.2 * reference.fftconv_bound(2, dtype, gates=len(gates))
    before = (prepare_adjoint if adjoint else prepare_filter)(k, **given, scaled=True)
    convolve_before = FFTConv(before, batch=batch)
    y_before, _ = convolve_before.run_cpu(u, **gates)
    apart = np.linalg.norm(y.astype(float) - y_before.astype(float)) / np.linalg.norm(exact)
    assert apart < 0.2 * reference.fftconv_bound(2, dtype)

    spec = convolve.spec(**{name: True for name in gates})
    found = warp_filter.chosen(spec, kind, convolve.items, convolve.pairs, BLOCKS)
    assert found is not None
    check_counts(counters.as_dict(), found, convolve, k, gates)


def test_two_output_gates() -> None:
    """One run under two gates, with the filter's transform in it."""
    u, before, first, second = (noise((3, 4, 256), "fp16", i) for i in range(4))
    k = filters(4, 256).astype(np.float32)
    filter_ = untransformed(k, None, length=256)
    assert filter_ is not None
    convolve, twice = FFTConv(filter_, batch=3), np.full(u.shape, np.nan, np.float16)
    y, _ = convolve.run_cpu(u, pregate=before, postgate=first, second=(second, twice))
    for found, gate in ((y, first), (twice, second)):
        right, _ = convolve.run_cpu(u, pregate=before, postgate=gate)
        assert found.tobytes() == right.tobytes() and np.isfinite(right.astype(float)).all()


def adjoint_of(x: Any, k: Any, mode: str) -> Any:
    length = x.shape[-1]
    n = length if mode == "circular" else 2 * length
    return np.fft.irfft(np.fft.rfft(x, n=n) * np.fft.rfft(k, n=n).conj(), n=n)[..., :length]


def check_counts(counted: dict[str, Any], found: Any, convolve: FFTConv, k: Any, gates: Any) -> None:
    """Bytes, flops and barriers are those of the convolution and what `filter_counts.within` adds."""
    spec, per_warp = found
    plan, items, pairs = convolve.spectrum.plan, convolve.items, convolve.pairs
    blocks = -(-items // (spec.warps * per_warp))
    n1, n2 = spec.n1, spec.n2
    loads = kernel_counts.spectrum_loads(items, pairs, per_warp)
    batch, channels, length = convolve.shape
    turned = plan.packing == "right-angle"
    base = kernel_counts.totals(
        n1,
        n2,
        spec.rows_in,
        spec.rows_out,
        batch=batch,
        channels=channels,
        length=length,
        blocks=blocks,
        loads=loads,
        pregate="pregate" in gates,
        postgate="postgate" in gates,
        scaled=True,
        halves=spec.halves,
        right_angle=turned,
        rounded=spec.rounded,
    )
    starts = np.arange(0, items, spec.warps * per_warp)
    last = np.minimum(starts + spec.warps * per_warp, items) - 1
    made = int((last // pairs - starts // pairs + 1).sum())
    more = filter_counts.within(
        plan.n,
        blocks,
        made,
        loads,
        used=made * k.shape[-1],
        taps_bytes=k.dtype.itemsize,
        turned=turned,
    )
    for name in ("fp32_flops", "shared_read_bytes", "shared_written_bytes", "barriers"):
        assert counted[name] == base[name] + more[name], name
    read = counted["global_read_bytes"]
    assert {f"read_{name}": n for name, n in read.items() if name in ("taps", "filter tables")} == {
        name: n for name, n in more.items() if name.startswith("read_")
    }
    assert read["u"] == base["read_u"] and "spectrum" not in read and "scales" not in read
    assert counted["mma_m16n8k16"] == base["mma_m16n8k16"]


# ---- where it is not done ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "how",
    [
        {"length": 2048},
        {"length": 256, "dtype": "fp32"},
        {"length": 256, "mode": "two-sided"},
        {"length": 200},  # a filter is folded, and has two places for some taps
        {"length": 2048, "plan": Plan(2048, (8, 16, 16))},
        {"length": 256, "channels": 3},
    ],
    ids=str,
)
def test_other_filters_are_transformed_before(how: dict[str, Any]) -> None:
    assert untransformed(filters(2, 33).astype(np.float32), None, **how) is None


def test_filters_in_host_memory_are_transformed_before() -> None:
    found = prepare_for_call(filters(2, 33), length=256)
    assert not isinstance(found, Untransformed) and found.words.shape == (2, 256)


def test_the_spectrum_after_all() -> None:
    """What asks for words gets those that preparing the filter makes."""
    k, how = filters(3, 256).astype(np.float32), {"length": 256, "channels": 3}
    right = prepare_filter(k, **how, scaled=True)
    found = untransformed(k, lambda: right, **how)
    assert found is not None and found.scaled and found.words is None
    assert found.on_host()[0] is right.words and found.transformed is right


def test_blocks_need_few_filters() -> None:
    """A block has a warp for each filter it needs, with items of its own, and room for it."""
    spec = make_spec(Plan(256, (16, 16)), "fp16")
    assert warp_filter.needed(spec, 24576, 32, 6) == 3  # 96 items a block
    assert (
        warp_filter.needed(spec, 19200, 25, 6) == 5
    )  # from the middle of one channel to the middle of another
    assert warp_filter.needed(spec, 64, 1, 2) == 0  # 32 channels for 16 warps
    assert warp_filter.needed(spec, 97, 96, 6) == 1  # the last block has one warp with an item
    assert warp_filter.needed(spec, 98, 97, 6) == 0  # and here two channels for it
    where: Any = SimpleNamespace(shared_bytes_per_sm=233472, shared_bytes_per_block=232448)
    found = warp_filter.chosen(spec, "fp32", 24576, 32, 132 * min_blocks(spec), where)
    assert found == (replace(spec, taps="fp32", filters=4), 6)
    assert found[0].shared_bytes == spec.shared_bytes + 4 * (6 * 256 + 4 * (288 + 256 + 64))
    small: Any = SimpleNamespace(shared_bytes_per_sm=102400, shared_bytes_per_block=101376)
    assert warp_filter.chosen(spec, "fp32", 24576, 32, 132 * min_blocks(spec), small) is None
    other = make_spec(Plan(1536, (48, 32)), "fp16")
    assert warp_filter.chosen(other, "fp32", 24576, 32, 264, where) is None


@pytest.mark.parametrize("packing", warp_filter.LENGTHS)
def test_every_list_of_these_lengths(packing: str) -> None:
    """A warp transforms a filter, and a spectrum is one tile: real parts of all positions, then imaginary parts."""
    plans = [Plan.of(f, packing=packing) for f in fused_warp.PACKINGS[packing]]
    for n in warp_filter.LENGTHS[packing]:
        assert warp_filter.shape(n).threads == 32
        those = [plan for plan in plans if plan.n == n]
        assert those and all(_layout(plan, "causal", n // 2, 3, "fp16").tiles == 1 for plan in those)
