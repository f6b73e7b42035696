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
# # 4. Convolution layers: operations, bytes, time
#
# A layer of $S$ images of $n \times n$ with $f$ input and $f'$ output channels costs $S f f' (n-k+1)^2 k^2$
# multiply-adds, taken directly. By FFT (Mathieu, Henaff and LeCun, arXiv 1312.5851) the filter size disappears from
# the count: transforms of $S f + f f' + S f'$ maps, and one complex product for each frequency. So the FFT should win
# nearly everywhere. It did not, and this notebook shows what decides: the bytes of the spectra. Nothing here needs a
# GPU; the times were measured on one and come with the package.

# %%
import numpy as np
from IPython.display import Image, display
from matplotlib.figure import Figure

import kernels_numba
import reference
from costmodel import conv2d, measurements, plots
from costmodel.conv2d import PUBLISHED, by_operations, published

GPU = "h200-sxm"


def show(figure):
    display(Image(data=plots.png(figure)))


# %% [markdown]
# ## 2015: five layers on a Titan X
#
# The table of convnet-benchmarks: fbfft against cuDNN R2, fp32, forward, milliseconds. Operations alone promise a
# factor of ten for the first layer, which measured a tie: it has 96 output maps of 128 x 128 for every image, and
# their spectra cross memory six times (four where a transform fits one kernel, up to 32 x 32). A model with three
# rates (memory, products, direct convolution) that counts bytes ranks all five as measured, and each on its side of 1.

# %%
print("layer                       by operations   model: fft  direct  ratio   measured: fft  direct  ratio")
for layer in PUBLISHED:
    fft, direct = published(layer)
    name = f"{layer.inputs:>3} -> {layer.outputs:<3} n={layer.size:<3} k={layer.taps:<2}"
    print(
        f"{name}         {by_operations(layer):>8.1f}x      {fft:>8.1f} {direct:>7.1f} {direct / fft:>5.1f}x"
        f"       {layer.fft_ms:>7.0f} {layer.direct_ms:>7.0f} {layer.direct_ms / layer.fft_ms:>5.1f}x"
    )

# %% [markdown]
# ## Today: half precision on tensor cores
#
# The kernels here keep spectra in half precision and transform by matrix products. What a layer's four launches move
# and compute:

# %%
for shape in (((128, 96, 32, 32), (96, 96, 7, 7)), ((64, 128, 64, 64), (128, 128, 11, 11))):
    print(kernels_numba.explain_conv2d(*shape), "\n")

# %% [markdown]
# A product of spectra takes a few GFLOP, on a GPU that does hundreds of TFLOP each second: bytes bind every launch but
# the products of many tiles. Direct convolution has the operations of the sum, on the same tensor cores, and the
# library copies images that lie channels first. The model has a rate for each (`kernels_numba.conv2d_dispatch`), found
# on an H200 and scaled to other GPUs by their data sheets:

# %%
print("smallest odd k for which the model takes the FFT (forward):")
layers = {(128, 96, 96, 32), (128, 128, 128, 16), (128, 64, 128, 64), (128, 384, 384, 13), (8, 96, 96, 32)}
for slug in ("h200-sxm", "a100-sxm-80gb", "rtx-4090", "b200"):
    found = {layer: conv2d.crossover(*layer, gpu=slug) for layer in sorted(layers)}
    print(f"{slug:>14}: " + "   ".join(f"{a}->{b} S={s} n={n}: {k}" for (s, a, b, n), k in found.items()))

# %% [markdown]
# ## Measured
#
# Microseconds on one H200, all providers of a case in one run; the FFT with the transform of its filters inside.

# %%
rows = measurements.read(GPU, op="conv2d")
cases = {}
for row in rows:
    if row.dtype == "fp16" and row.provider_variant in ("", "kept", "channels-last"):
        cases.setdefault(row.case, {})[row.provider] = row.median_us
for case, times in cases.items():
    library = min(times[name] for name in ("cudnn", "cudnn:channels-last"))
    v = measurements.parse_case("conv2d", case)
    words = f"S={v['S']:<4} {v['Cin']:>3} -> {v['Cout']:<3} n={v['n']:<3} k={v['k']:<2} {v['pass']:<7}"
    print(
        f"{words}  ours {times['ours']:>7.1f}   best of cuDNN {library:>7.1f}   {library / times['ours']:.1f}x"
    )

# %%
figure = Figure(figsize=(7, 4), layout="constrained")
axes = figure.subplots()
sweep = {}
for case, times in cases.items():
    v = measurements.parse_case("conv2d", case)
    if v["pass"] == "fprop":
        best = min(times[name] for name in ("cudnn", "cudnn:channels-last"))
        sweep.setdefault((v["S"], v["Cin"], v["Cout"], v["n"]), []).append((v["k"], best / times["ours"]))
for (s, inputs, outputs, n), points in sorted(sweep.items()):
    if len(points) > 2:
        axes.plot(*zip(*sorted(points), strict=True), "o-", label=f"{inputs} -> {outputs}, n={n}, S={s}")
axes.axhline(1, color="grey", linewidth=0.8)
axes.set(xlabel="k", ylabel="best of cuDNN / FFT", yscale="log", title="forward, fp16, one H200")
axes.legend(frameon=False, fontsize="small")
show(figure)

# %% [markdown]
# The five layers of 2015 in their own precision, fp32 (TF32 off): the smallest filter for which the FFT was ahead of
# cuDNN, and how far it is ahead with the filter of the table.

# %%
single = {}
for row in rows:
    v = measurements.parse_case("conv2d", row.case)
    if row.dtype == "fp32" and v["pass"] == "fprop":
        single.setdefault((v["S"], v["Cin"], v["Cout"], v["n"]), {}).setdefault(v["k"], {})[row.provider] = (
            row.median_us
        )
for layer in PUBLISHED:
    sizes = single[layer.batch, layer.inputs, layer.outputs, layer.size]
    library = {k: min(times["cudnn"], times["cudnn:channels-last"]) for k, times in sizes.items()}
    smallest = min(k for k, times in sizes.items() if times["ours"] < library[k])
    ours, theirs = sizes[layer.taps]["ours"], library[layer.taps]
    print(
        f"{layer.inputs:>3} -> {layer.outputs:<3} n={layer.size:<3} k={layer.taps:<2}: {ours:>6.0f} us, "
        f"cuDNN {theirs:>6.0f}, "
        f"{theirs / ours:>4.1f}x (2015: {layer.direct_ms / layer.fft_ms:.1f}x); ahead from k={smallest}"
    )

# %% [markdown]
# ## Accuracy
#
# Spectra in half precision cost accuracy that a direct convolution with float32 sums does not lose: 1.0 to 1.35 instead
# of 0.4 units of roundoff, norm-wise, whatever the filter. The bound is 1.53 (`reference.conv2d_bound`).

# %%
rng = np.random.default_rng(0)
x = rng.standard_normal((2, 3, 20, 20)).astype(np.float16)
for k in (3, 7, 11):
    w = (rng.standard_normal((4, 3, k, k)) / k).astype(np.float16)
    exact = reference.conv2d(x, w)
    y = kernels_numba.conv2d(x, w, impl="fft", tile=32)
    size = np.linalg.norm(exact)
    fft, once = (np.linalg.norm(z - exact) / size * 2**11 for z in (y, exact.astype(np.float16)))
    print(f"k={k:<2}: {fft:.2f} u by FFT, {once:.2f} u rounded once")

# %% [markdown]
# Norm-wise is the catch: a result that is small beside its neighbours has their error, and where all terms are
# positive the FFT may return a small negative number.

# %%
x = np.zeros((1, 1, 16, 16), np.float16)
x[0, 0, 3, 3] = 1000
x[0, 0, 12, 12] = 0.01
y = kernels_numba.conv2d(x, np.ones((1, 1, 3, 3), np.float16), impl="fft")
print(f"largest result {y.max():.1f}, smallest {y.min():.3f}, where 0.01 stands {y[0, 0, 11, 11]:.3f}")

# %%
# What was said above, of the numbers that were shown.
assert abs(y.max() - 1000) < 1 and fft < 1.53
if GPU == "h200-sxm":
    gains = {}
    for case, times in cases.items():
        v = measurements.parse_case("conv2d", case)
        if "ours" in times and "cudnn" in times and v.get("groups", 1) == 1:
            library = min(times["cudnn"], times["cudnn:channels-last"])
            gains.setdefault(v["k"], []).append(library / times["ours"])
    assert all(gain > 1 for k, found in gains.items() if 7 <= k <= 11 for gain in found), (
        "from 7 x 7 on the FFT is ahead"
    )
    assert min(gains[3]) < 1, "and for some layers with 3 x 3 it is not"
