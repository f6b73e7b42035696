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
# # 3. Dispatch: which kernel for which linear layer
#
# A linear layer multiplies M rows of input with N rows of weights, $y = x w^T$. While a language model decodes, M is
# the batch: 1, 8, 64. Then every weight is read once and used M times, and time is the weights' bytes. FlashDecoding++
# (Hong et al., arXiv 2311.01282) takes three kernels for three ranges of M, and two thresholds between them:
#
# * below $M_1$ **vector products** on CUDA cores,
# * from $M_1$ on a **flat product** on tensor cores, with M padded to 8 inside the instruction,
# * from $M_2$ on a **full product** in large tiles.
#
# **Where are the crossovers, and why there?** This notebook needs no GPU.

# %%
import numpy as np
from IPython.display import Image, display

import costmodel
import kernels_numba
import reference
from costmodel import compare_linear, linear, linear_plots, measure_decode, plots, render
from costmodel.models import model
from kernels_numba import Linear

GPU = "h200-sxm"  # any slug of `python -m costmodel gpus`, or the path of your own file
LAYERS = model("llama2-7b").linear


def show(figure):
    display(Image(data=plots.png(figure)))


# %% [markdown]
# ## One product, three kernels
#
# The same layer by each kernel. They add up in different orders, so they differ by a rounding now and then; each is
# within the bound that `reference.linear_bound` derives. What they do differs more: the CPU body counts it.

# %%
rng = np.random.default_rng(0)
x = rng.standard_normal((3, 520)).astype(np.float16)
w = rng.standard_normal((96, 520)).astype(np.float16)

for impl in ("gemv", "flat", "full"):
    y, counters = Linear(3, 96, 520, dtype="fp16", impl=impl).run_cpu(x, w)
    part = reference.check_linear(y, x, w, dtype="fp16")
    read = sum(counters.global_read_bytes.values())
    print(
        f"{impl:>5}: error {part:.2f} of what is allowed; {read} bytes read, {counters.mma_m16n8k16} tensor-core "
        f"instructions, {counters.fp32_flops} flops on CUDA cores"
    )
print(kernels_numba.explain_linear(3, 96, 520))

# %% [markdown]
# ## Where the lines cross
#
# Lines are predictions, marks are measurements. Vector products cost CUDA-core instructions for every weight and every
# row, so they leave the floor of memory first. The flat product stays on it until the rows of x, which come from L2
# once for every tile of weights, are as many bytes as the weights. The full product shares them in larger tiles.

# %%
for name in ("qkv", "o"):
    show(linear_plots.dispatch_figure(*LAYERS[name], GPU))

# %% [markdown]
# ## The thresholds in closed form
#
# Each crossover is the solution of one equation between two terms of the model, which sympy solves. Two ratios decide:
# $\varphi/\beta$, the instructions that CUDA cores have for every byte of memory, and $\tau/\beta$, the flops of tensor
# cores for it: the flat product's tiles are small, and multiply at a fraction of their rate.

# %%
for name, expression in zip(("M1", "M2", "U"), linear.symbolic_thresholds(), strict=True):
    print(name, "=", expression)
print()
for gpu in costmodel.gpus.slugs():
    rates = linear.rates(gpu)
    found = ", ".join(f"{name} {linear.thresholds(*pair, gpu)}" for name, pair in LAYERS.items())
    print(
        f"{gpu:>14}: phi/beta = {rates.lane_instructions_per_s / rates.memory_bytes_per_s:4.1f} instructions a byte, "
        f"tau/beta = {rates.tensor_flops_per_s / rates.memory_bytes_per_s:3.0f} flops; (M1, M2): {found}"
    )

# %% [markdown]
# The paper measured on an A100 for these four layers: (2, 9), (3, 17), (2, 17), (3, 9). The model's M1 is there within
# one, its M2 the paper's for three of them and earlier for the third (ffn1): the paper's is where a library, which pads
# to 64 rows, overtakes its flat kernel, ours where our full product does.

# %% [markdown]
# ## What if
#
# More bandwidth moves M1 down, since memory hides less; more CUDA-core rate moves it up. Faster tensor cores move M2 of
# o and ffn2 far up, because the flat product's small tiles gain more than the full one's; less bandwidth moves it up
# too. For qkv and ffn1, whose full product need not split K and on warpgroups begins sooner than the flat one, the
# flat product then has nothing that the full one lacks: it is ahead at once. With the sliders:

# %%
base = linear.rates(GPU)


def picture(layer="qkv", **changes):
    sweep = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    return linear_plots.dispatch_figure(
        *LAYERS[layer], GPU, sweep=sweep, instead=linear.what_if(base, **changes)
    )


try:
    from ipywidgets import FloatLogSlider, interact
except ImportError:
    print("No sliders: ipywidgets is not installed (pip install 'monarch-numba[notebooks]').")
else:

    def ratio(name):
        return FloatLogSlider(
            value=1, base=2, min=-3, max=3, step=0.5, description=name, continuous_update=False
        )

    interact(
        lambda layer, **values: show(picture(layer, **values)),
        layer=list(LAYERS),
        bandwidth=ratio("bandwidth"),
        sm_count=ratio("SMs"),
        tensor_rate=ratio("tensor rate"),
        vector_rate=ratio("CUDA cores"),
    )

# %% [markdown]
# The same pure functions without sliders:

# %%
for changes in (
    {},
    {"bandwidth": 2},
    {"bandwidth": 0.5},
    {"vector_rate": 2},
    {"vector_rate": 0.5},
    {"sm_count": 2},
    {"tensor_rate": 4},
):
    imagined = linear.what_if(base, **changes)
    found = ", ".join(f"{name} {linear.thresholds(*pair, imagined)}" for name, pair in LAYERS.items())
    print(f"{changes or 'as it is'!s:>22}: {found}")

# %% [markdown]
# With tensor cores four times as fast the flat product of o is ahead up to 32 rows, that of ffn2 up to 56.

# %% [markdown]
# ## Equation 5: how wide a tile
#
# A tile of $B_N$ weights' rows reads x once: the ratio of products to memory accesses, $2MK / (K + MK/B_N + M)$, grows
# with $B_N$, and the number of blocks, $N / B_N$, falls. The widest tile that still gives every SM a block is what the
# paper measured on the A100 in 15 of 18 cases.

# %%
sm_count = linear.rates("a100-sxm-40gb").sm_count
for k in (4096, 12288):
    widths = {n: linear.paper_width(8, n, k, sm_count) for n in (2**i for i in range(10, 19))}
    print(f"K = {k}: " + ", ".join(f"{n}: {width}" for n, width in widths.items()))

# %% [markdown]
# ## A decode step
#
# What the choice brings where it matters: all products and the attention of one Llama2-7B layer as a CUDA graph,
# microseconds measured on an H200, with each of FlashDecoding++'s techniques on and off. *flat*: products padded to 8
# rows instead of a whole tile; *choice*: the kernel by layer and batch; *async*: one shift for all splits of the keys.

# %%
steps = measure_decode.table(costmodel.measurements.read("h200-sxm", op=measure_decode.OP))
names = [variant.name.removeprefix("ours:") for variant in measure_decode.variants()]
print(render.rows_as("table", ["B", "L", *names], steps))

# %%
# What was said above, of the numbers that were shown.
if GPU == "h200-sxm":
    assert [linear.thresholds(*pair, GPU)[0] for pair in LAYERS.values()] == [3, 4, 3, 3]
    faster = linear.what_if(base, tensor_rate=4)
    assert [linear.thresholds(*pair, faster)[1] for pair in LAYERS.values()] == [3, 33, 3, 57]
    judged = compare_linear.compare(GPU)
    regrets = [d.regret for d in judged.decisions if d.kind == "thresholds"]
    print(f"{len(regrets)} measured decisions, p95 of the regret {np.percentile(regrets, 95):.3f}")
    assert np.percentile(regrets, 95) <= 1.05
paper = {"qkv": (2, 9), "o": (3, 17), "ffn1": (2, 17), "ffn2": (3, 9)}
found = {name: linear.thresholds(*pair, "a100-sxm-40gb") for name, pair in LAYERS.items()}
assert all(abs(found[name][0] - m1) <= 1 and found[name][1] <= m2 for name, (m1, m2) in paper.items())
assert sum(found[name][1] == m2 for name, (_, m2) in paper.items()) == 3

# %% [markdown]
# **In one sentence:** as long as weights stream at the speed of memory nothing else matters, and each threshold is the
# M at which some other resource (CUDA cores, then tensor cores) needs as long as memory does.
