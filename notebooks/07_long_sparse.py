# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 7. Longer than a chip, and emptier than full
#
# A transform of a million points does not fit on chip. Cut into rows that do, it costs six crossings of device memory
# instead of two. What does that leave of the speed, and what can be left out?
#
# This notebook needs no GPU. Kernels run on the CPU body, which counts what they do; an artificially small limit on
# chip sends short transforms through the long path. Times are those that were measured on an H200. Five questions:
#
# 1. What does a long convolution move, and who counts it?
# 2. How large should the groups be that go through together?
# 3. What is fp32 worth, and what does it cost?
# 4. When is a filter short enough for tiles?
# 5. What do zeros in a spectrum spare?

# %%
import itertools
import re
import time

import numpy as np
from IPython.display import Image, display
from matplotlib.figure import Figure

import monarch
import reference
from costmodel import gpus, long_traffic, measurements, plots, units
from costmodel.long_report import PUBLISHED_LADDER
from kernels_numba import FFTConv, FFTConvStream, long_groups, prepare_filter
from kernels_numba.partial_choice import choose_tile
from monarch import Plan, SparsityPattern

BEGIN = time.perf_counter()
GPU = "h200-sxm"
ROWS = measurements.read(GPU, op="fftconv")
MOVED = {(m.case, m.provider): m for m in long_traffic.read(GPU)}
COPY = gpus.load(GPU).measured["device_copy_bytes_per_s"].median
rng = np.random.default_rng(0)


def show(figure):
    figure.tight_layout()
    display(Image(data=plots.png(figure)))


def rows_of(variant, provider="ours", dtype="fp16"):
    """Measured rows by N, of the published shapes: eight sequences."""
    found = {}
    for row in ROWS:
        case = row.case_values
        if (str(case["variant"]), row.provider, row.dtype) == (variant, provider, dtype) and case["B"] == 8:
            found[int(case["N"])] = row
    return dict(sorted(found.items()))


def note(row, name):
    return re.search(rf"\b{name}=([^; ]+)", row.note)[1]


# %% [markdown]
# ## Three kernels
#
# With $N = N_1 N_2$ the forward outer stage contracts $n_1$ and multiplies by $w_N^{k_1 n_2}$; every row $k_1$ is then
# a circular convolution of $N_2$ points, which a fused kernel does in place; the inverse stage goes back. Here is one
# of 4096 points, as if no more than 512 fitted on chip:

# %%
ON_CHIP = 512
plan = Plan(4096, monarch.parse_factors("16x16x16"))
u = rng.standard_normal((4, 2, 4096)).astype(np.float16)
k = rng.standard_normal((2, 4096)) / 64
spectrum = prepare_filter(k, length=4096, plan=plan, on_chip=ON_CHIP)
convolve = FFTConv(spectrum, batch=4)
print(convolve.describe())

y, counters = convolve.run_cpu(u)
exact = reference.fftconv(u, k)
long_error = reference.relative_error(y, exact, u, k, pairs=True).overall
print(f"relative error {long_error:.1e}, bound {reference.fftconv_bound(plan.order, 'fp16'):.1e}")

samples = u.size
read, written = counters.global_read_bytes, counters.global_written_bytes
per_sample = (read["u"] + read["workspace"] + written["workspace"] + written["y"]) / samples
print(f"sequences and intermediate: {per_sample:.0f} bytes a sample, where 4 must move")

# %% [markdown]
# Two bytes each for input and output, four for each of two writes and two reads of the intermediate by a *pair*: 12 a
# sample. The hardware's counters saw the same on an H200, and what `torch.fft` moves for the same result:

# %%
plain, torch_rows = rows_of("plain"), rows_of("plain", "torch", "fp32")
long_lengths = [n for n in plain if n >= 131072 and n in torch_rows]
counted = {n: 12 * plain[n].case_values["B"] * plain[n].case_values["H"] * n for n in long_lengths}
for n in long_lengths:
    counted[n] += 4 * n * plain[n].case_values["H"]  # the spectrum
hardware = {n: MOVED.get((plain[n].case, "ours")) for n in long_lengths}
for n in long_lengths:
    ours, theirs = hardware[n], MOVED.get((plain[n].case, "torch"))
    if ours and theirs:
        print(
            f"N = {units.short(n)}: counted {counted[n] / 1e9:.2f} GB, hardware {ours.bytes / 1e9:.2f} GB, torch.fft "
            f"{theirs.bytes / 1e9:.1f} GB"
        )

fig = Figure(figsize=(10, 3.6))
left, right = fig.subplots(1, 2)
for axis, name, values in (
    (left, "time, ms", lambda row: row.median_us / 1e3),
    (right, "time / time of 12 bytes a sample", lambda row: row.median_us * 1e-6 * COPY),
):
    for label, found in (("this project, fp16", plain), ("torch.fft, fp32", torch_rows)):
        scale = [counted[n] if axis is right else 1 for n in long_lengths]
        points = [values(found[n]) / s for n, s in zip(long_lengths, scale, strict=True)]
        axis.semilogx(long_lengths, points, "o-", base=2, label=label)
    axis.set(xlabel="N", ylabel=name, ylim=(0, None))
    axis.legend()
show(fig)
speed_up = {n: torch_rows[n].median_us / plain[n].median_us for n in long_lengths}
print("speed-up:", ", ".join(f"{units.short(n)} {s:.1f}" for n, s in speed_up.items()))

# %% [markdown]
# ## Groups
#
# The workspace holds the intermediate of a group of channels and is bounded by an argument. A group that stays in the
# L2 cache spares device memory; but each group is three launches, whose first and last blocks leave SMs idle.
# `long_groups` weighs the two with constants fitted to five measured sizes:

# %%
whole, l2 = 4 * 131072 * 4 * 384, 60 * 2**20  # 128K points, 8 sequences of 384 channels; H200
sizes = np.array([4, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 256, 384, 768])
measured = {8: 2.00, 16: 1.65, 32: 1.55, 96: 1.52, 768: 1.44}  # ms, H200
extra = {mib: long_groups.extra_us(int(mib) * 2**20, whole, l2) / 1e3 for mib in sizes}
base = np.mean([measured[mib] - extra[mib] for mib in measured])

fig = Figure(figsize=(6, 3.4))
axis = fig.subplots()
axis.semilogx(sizes, [base + extra[mib] for mib in sizes], "-", base=2, label="model")
axis.plot(list(measured), list(measured.values()), "o", label="measured")
axis.axvline(l2 / 2**20 / long_groups.SHARE_OF_L2, color="grey", lw=0.5)
axis.set(xlabel="group, MiB", ylabel="time, ms", title="128K points, B = 8, H = 384")
axis.legend()
show(fig)
first = plain[131072].case
for provider in ("ours:groups=32MiB", "ours:groups=96MiB", "ours"):
    if (first, provider) in MOVED:
        print(f"{provider}: {MOVED[first, provider].bytes / 1e9:.2f} GB of device memory")
chosen = long_groups.grouping(131072, 384, 4, l2_bytes=l2)
print(f"chosen: {len(chosen)} groups of {chosen.bytes / 2**20:.0f} MiB")

# %% [markdown]
# ## In fp32
#
# The same three steps by transforms in registers, with twice the bytes. Halves may go through it too: then one
# rounding, of the result, is all that is left of the error.

# %%
errors = {}
for products in ("fp16", "fp32"):
    prepared = prepare_filter(k, length=4096, products=products, plan=plan, on_chip=ON_CHIP)
    found = FFTConv(prepared, batch=4).run_cpu(u)[0]
    errors[products] = reference.relative_error(found, exact, u, k, pairs=True).overall
    print(f"fp16 in and out, {products} between: relative error {errors[products]:.1e}")
whole_fp32 = prepare_filter(k, length=4096, dtype="fp32", plan=plan, on_chip=ON_CHIP)
x = u.astype(np.float32)
errors["fp32 sequences"] = reference.relative_error(
    FFTConv(whole_fp32, batch=4).run_cpu(x)[0], exact, x, k, pairs=True
).overall
print(
    f"fp32 everywhere: relative error {errors['fp32 sequences']:.1e}, bound {reference.fft32_bound(4096):.1e}"
)
in_fp32 = rows_of("plain", dtype="fp32")
for n in (n for n in in_fp32 if n in torch_rows and n > 65536):
    print(
        f"N = {units.short(n)}: fp16 {plain[n].median_us / 1e3:.2f} ms, fp32 {in_fp32[n].median_us / 1e3:.2f} ms, "
        f"torch.fft {torch_rows[n].median_us / 1e3:.1f} ms"
    )

# %% [markdown]
# ## Short filters
#
# A filter of K taps spoils K - 1 outputs of every tile, so long signals can go tile by tile, in memory of the order of
# the filter, chunk by chunk as they come:

# %%
taps = rng.standard_normal((2, 300)) / 17
signal = rng.standard_normal((1, 2, 7000)).astype(np.float16)
stream = FFTConvStream(taps, (1, 2), tile=2048)
cuts = [0, 1, 800, 801, 5000, 7000]
pieces = [stream(np.ascontiguousarray(signal[..., a:b])) for a, b in itertools.pairwise(cuts)]
streamed = np.concatenate(pieces, axis=-1)
causal = reference.fftconv(signal, taps, mode="causal")
stream_error = reference.relative_error(streamed, causal, signal, taps).overall
print(
    f"five chunks against the whole: relative error {stream_error:.1e}, workspace {stream.workspace:,} bytes"
)
for length, number in ((2**20, 256), (2**20, 2048), (2**20, 12000), (2**20, 20000), (4096, 256)):
    print(f"L = {length}, K = {number}: {choose_tile(length, number)[1]}")

partial = {
    int(str(row.case_values["variant"])[8:]): (
        row,
        next(r for r in ROWS if r.case == row.case and "ours:" in r.provider),
    )
    for row in ROWS
    if str(row.case_values["variant"]).startswith("partial") and row.provider == "ours"
}
fig = Figure(figsize=(6, 3.4))
axis = fig.subplots()
for which, label in enumerate(("in tiles", "as a whole")):
    points = sorted((number, pair[which].median_us / 1e3) for number, pair in partial.items())
    axis.semilogx(*zip(*points, strict=True), "o-", base=2, label=label)
axis.set(xlabel="taps", ylabel="time, ms", ylim=(0, None), title="1M samples, B = 8, H = 48")
axis.legend()
show(fig)

# %% [markdown]
# ## Zeros in a spectrum
#
# A smooth filter has little energy at high frequencies. `monarch.sparsify` finds what to keep, for a share of zeros or
# a budget of energy, in whole rows of the plan's axes:

# %%
smooth = np.exp(-np.arange(4096) / 300) * np.cos(np.arange(4096) / 100)
filters = np.stack([smooth, np.roll(smooth, 1)])
slots = np.fft.fft(filters)[..., plan.frequencies().reshape(-1)]
ladder = {target: monarch.sparsify(slots, plan, target, shape="blocks") for target in (0.5, 0.75, 0.91)}
for target, found in ladder.items():
    print(
        f"{target:.0%} zeros: {found.energy_kept:.4%} of the energy kept, {found.flops_kept:.0%} of the operations"
    )

# %% [markdown]
# The most significant digit of a frequency is that of the last axis, so such zeros lie there, where they spare fewest
# operations (and, by tensor cores, only half of an axis of 32). A model that is trained with zeros along the first axes
# spares more: rows of which nothing is kept are not stored, moved or convolved, and the kernels of orders 3 and 4 leave
# out blocks inside a row. The CPU body counts what that spares, here of a plan of 4096 points in one kernel and of its
# long form:

# %%
share = {}
for where, limit in (("rows of a long plan", ON_CHIP), ("blocks of one kernel", None)):
    tallies = []
    for zeros in (0, 8, 12):
        pattern = SparsityPattern.middles(plan, (zeros, 0, 0))
        prepared = prepare_filter(filters, length=4096, plan=plan, pattern=pattern, on_chip=limit)
        found, tally = FFTConv(prepared, batch=2).run_cpu(u[:2])
        masked = reference.sparse_fftconv(u[:2], filters, pattern, plan=plan)
        error = reference.relative_error(found, masked, u[:2], filters, pairs=True).overall
        tallies.append((pattern.sparsity, tally.global_read_bytes["spectrum"], tally.mma_m16n8k16, error))
    share[where] = tallies
    for sparsity, spectrum_bytes, products, error in tallies:
        print(
            f"{where}, {sparsity:.0%} zeros: spectrum read {spectrum_bytes / tallies[0][1]:.2f}, products "
            f"{products / tallies[0][2]:.2f} of the dense ones, error {error:.1e}"
        )

# %% [markdown]
# On an H200, at 2M points, beside what was published for FlashFFTConv (Fu et al. 2023, Table 9):

# %%
dense = plain[2097152]
gain = {0: 1.0}
for percent in PUBLISHED_LADDER:
    (row,) = rows_of(f"sparse-{percent}").values()
    gain[percent] = dense.median_us / row.median_us
fig = Figure(figsize=(6, 3.4))
axis = fig.subplots()
axis.plot(list(gain), list(gain.values()), "o-", label="this project, H200")
axis.plot(
    [0, *PUBLISHED_LADDER], [1, *PUBLISHED_LADDER.values()], "s--", label="FlashFFTConv, H100, published"
)
axis.set(xlabel="zeros, %", ylabel="speed-up over no zeros", ylim=(0, None))
axis.legend()
show(fig)

# %% [markdown]
# ## What was claimed, checked

# %%
assert long_error <= reference.fftconv_bound(plan.order, "fp16")
assert per_sample == 12
assert all(abs(hardware[n].bytes / counted[n] - 1) < 0.05 for n in long_lengths if hardware[n])
assert all(s > 5 for s in speed_up.values())
assert max(abs(base + extra[mib] - ms) for mib, ms in measured.items()) < 0.1 and chosen.bytes == 256 * 2**20
assert errors["fp32"] < 0.5 * errors["fp16"] and errors["fp32 sequences"] <= reference.fft32_bound(4096)
assert stream_error <= reference.fftconv_bound(3, "fp16")
assert all(
    whole.median_us > 1.5 * tiles.median_us for number, (tiles, whole) in partial.items() if number <= 2048
)
kept = [found.energy_kept for found in ladder.values()]
assert kept[0] > 0.99 and kept == sorted(kept, reverse=True)
for tallies in share.values():
    assert all(error <= reference.fftconv_bound(3, "fp16") for *_, error in tallies)
    assert [round(row[1] / tallies[0][1], 1) for row in tallies] == [1.0, 0.5, 0.2]
    assert tallies[0][2] > tallies[1][2] > tallies[2][2]
assert all(gain[percent] > published for percent, published in PUBLISHED_LADDER.items())
print(f"All of it took {time.perf_counter() - BEGIN:.0f} s.")
