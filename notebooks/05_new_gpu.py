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
# # 5. A new GPU: from its data sheet to decisions
#
# Nobody here has measured a B200. What can be said from its data sheet about
#
# * the **order** of an FFT convolution for each length,
# * the **thresholds** $M_1$ and $M_2$ between the kernels of a linear layer,
# * the number of **splits** in decode attention,
#
# and **which of these would flip** if a value of the sheet were another one? This notebook needs no GPU.

# %%
import time

from IPython.display import Image, display

import costmodel
from costmodel import imagined, linear, linear_library, linear_plots, plots, units
from costmodel.models import model

BEGIN = time.perf_counter()
GPU = "b200"  # any slug of `python -m costmodel gpus`, or the path of your own file
LAYERS = {name: model("llama2-7b").linear[name] for name in ("qkv", "o")}


def show(figure):
    display(Image(data=plots.png(figure)))


# %% [markdown]
# ## What is known
#
# The sheet gives peaks. What kernels reach of them is a share that was measured on another GPU, with an uncertainty
# that says how far the two are apart. Products are the weakest point here: `mma.sync` reaches about a quarter of a
# B200's tensor rate if it does there, for each SM and clock, what it does on an H200; the rest needs instructions that
# these kernels do not use.

# %%
gpu = costmodel.load_gpu(GPU)
print(f"{gpu.device_names[0]}, compute capability {gpu.compute_capability}, from: {gpu.spec_source}")
print(f"Note: {gpu.spec_note}" if gpu.spec_note else "Nothing is marked as unsure.")
for key in ("memory_fraction_of_spec", "tensor_fraction_of_spec"):
    share = gpu.model[key]
    print(f"{key} = {share.value:g} +- {share.relative_uncertainty:.0%}: {share.source}")

# %% [markdown]
# ## The best order for each length
#
# Time over the floor of memory; filled marks have a kernel, the band is the best plan's interval of one standard
# deviation. Where lines of two orders lie inside the band, the sheet cannot say which is better.

# %%
forecasts = {n: costmodel.predict(n, gpu=gpu) for n in imagined.LENGTHS}
show(plots.forecast_figure(list(forecasts.values())))
for n, f in forecasts.items():
    sure = "tie" if f.tie else "clear"
    kernel = "kernel" if f.best.has_kernel else "no kernel"
    print(
        f"N = {units.short(n):>4}: order {f.best.plan.order} ({f.best.name}, {kernel}), the next order is "
        f"{f.best.margin:.0%} slower ({sure}), bound by {f.best.bound}"
    )

# %% [markdown]
# ## Thresholds and splits, beside other GPUs
#
# $M_1$ rises with $\varphi/\beta$, the instructions that CUDA cores have for a byte of memory, $M_2$ with
# $\tau/\beta$, the flops of `mma.sync` for it ([notebook 3](03_dispatch.ipynb)). On a card with GDDR6 the first ratio
# is so large that memory hides vector products of all the rows that they take (4); then the flat and the full product
# are nearly a tie, both at the speed of memory. A B200 has few flops of `mma.sync` for a byte (its rate is in
# `tcgen05`): where w has many rows the flat product is left after its first 8 rows of x. Should those products be
# faster than the file assumes, $M_2$ would be later: measure that first.

# %%
for slug in (GPU, "h200-sxm", "a100-sxm-80gb", "l40s", "a40"):
    rates, found = linear.rates(slug), imagined.decisions(slug, LAYERS, lengths=())
    pairs = ", ".join(f"{name} {pair}" for name, pair in found.thresholds.items())
    print(
        f"{slug:>13}: phi/beta = {rates.lane_instructions_per_s / rates.memory_bytes_per_s:5.1f}, "
        f"tau/beta = {rates.tensor_flops_per_s / rates.memory_bytes_per_s:3.0f}; (M1, M2): {pairs}; splits: "
        + ", ".join(f"B={b} L={units.short(keys)}: {s}" for (b, keys), s in found.splits.items())
    )
show(linear_plots.dispatch_figure(*LAYERS["qkv"], gpu))

# %% [markdown]
# The closed form says $M_2$ = 9 for this layer, which is where the curves cross. The times:

# %%
SWEEP = (1, 2, 4, 8, 16, 32, 64)
fastest = {m: linear.predict(m, *LAYERS["qkv"], gpu=gpu)[0].choice.impl for m in SWEEP}
print(", ".join(f"M = {m}: {impl}" for m, impl in fastest.items()))

# %% [markdown]
# What would a library take for the same layer? That formula has been judged on three GPUs that nothing was fitted to
# (half of its errors are below 4 %); the kernels' times have not.

# %%
for m in (1, 8, 64):
    ours = linear.predict(m, *LAYERS["qkv"], gpu=gpu)[0]
    library = linear_library.predict(m, *LAYERS["qkv"], gpu=gpu)
    print(
        f"M = {m:2}: library {library.time_low_us:.1f} to {library.time_high_us:.1f} us; "
        f"ours ({ours.choice.impl}) {ours.time_low_us:.1f} to {ours.time_high_us:.1f} us"
    )

# %% [markdown]
# ## Which value decides what
#
# The five values that decisions hang on most, times a quarter, a half, two and four, one at a time. Rates follow: more
# SMs or a higher clock bring more of everything on the chip, bandwidth and shared memory stay.

# %%
FACTORS = (0.25, 0.5, 2, 4)
base = imagined.decisions(gpu, LAYERS)
moved = {
    (name, factor): imagined.decisions(imagined.what_if(gpu, **{name: factor}), LAYERS)
    for name in imagined.MAIN
    for factor in FACTORS
}
for (name, factor), found in moved.items():
    print(f"{name} x {factor:g}: {'; '.join(imagined.flips(base, found)) or 'nothing flips'}")

# %%
rows = {gpu.slug: base.orders}
rows |= {f"{name.replace('_', ' ')} x {factor:g}": found.orders for (name, factor), found in moved.items()}
show(imagined.orders_figure(rows))

# %% [markdown]
# Where does each value move the order, and was that length a tie before?

# %%
tied = [n for n, f in forecasts.items() if f.tie]
moved_by = {
    name: [n for n in base.orders if any(moved[name, f].orders[n] != base.orders[n] for f in FACTORS)]
    for name in imagined.MAIN
}
print("ties:", ", ".join(map(units.short, tied)))
for name, lengths in moved_by.items():
    print(f"{name:>13} moves the order at {', '.join(map(units.short, lengths)) or 'no length'}")

# %% [markdown]
# Shared memory decides the orders of what just fits in a block, some of 8K to 64K. All that bandwidth, SMs, clock and
# the tensor rate move was a tie before, most of it sequences that pass through device memory in stages. Up to 4K
# nothing here moves the order. $M_1$ hangs on the ratio of the chip's rates to memory's: twice the bandwidth does to it
# what half the clock does. $M_2$ hangs on the tensor rate most of all: with half of it the full product is ahead at
# once, with twice as much from 25 rows on. The tensor rate moves no split.

# %% [markdown]
# ## With sliders
#
# Factors on every value of the sheet (what follows from others is not there: rates from SMs, clock and what an SM does
# in a clock); the first row stays the GPU as it is. Without a front end there is one picture, of the GPU as it is.


# %%
def picture(**factors):
    there = imagined.what_if(gpu, **factors)
    found = imagined.decisions(there, LAYERS, lengths=imagined.LENGTHS)
    print("; ".join(imagined.flips(base, found)) or "nothing flips")
    return imagined.orders_figure({gpu.slug: base.orders, "with the sliders": found.orders})


try:
    from ipywidgets import FloatLogSlider, interact
except ImportError:
    print("No sliders: ipywidgets is not installed (pip install 'monarch-numba[notebooks]').")
    show(picture())
else:

    def ratio(name):
        return FloatLogSlider(
            value=1, base=2, min=-3, max=3, step=0.5, description=name, continuous_update=False
        )

    interact(
        lambda **factors: show(picture(**factors)),
        **{name: ratio(name.replace("_", " ")) for name in imagined.VALUES},
    )

# %% [markdown]
# ## Checked
#
# The numbers that the text names, for the B200 of this project's file.

# %%
if GPU == "b200":
    orders = base.orders
    assert [orders[n] for n in (256, 1024, 4096, 8192)] == [2, 2, 3, 3]
    assert base.thresholds == {"qkv": (1, 9), "o": (2, 17)}
    assert [m for m, impl in fastest.items() if impl == "flat"] == [1, 2, 4, 8] and fastest[16] == "full"
    assert base.splits == {(1, 4096): 10, (1, 65536): 18, (8, 8192): 2, (64, 2048): 1}
    # Up to 4K nothing moves the order.
    assert all(found.orders[n] == orders[n] for found in moved.values() for n in orders if n <= 4096)
    # A quarter of the shared memory holds no pair of 32K points; what else moves an order moves one of a tie.
    assert {n for n in orders if 8192 <= n <= 65536} & set(moved_by["shared_memory"])
    assert all(set(lengths) <= set(tied) for name, lengths in moved_by.items() if name != "shared_memory")
    # Twice the bandwidth does to M1 what half the clock does; shared memory does nothing, products move M2 alone.
    for name in LAYERS:
        assert moved["bandwidth", 2].thresholds[name][0] == moved["clock", 0.5].thresholds[name][0] == 1
    assert all(moved["shared_memory", factor].thresholds == base.thresholds for factor in FACTORS)
    assert moved["tensor_rate", 2].thresholds == {"qkv": (1, 25), "o": (2, 41)}
    assert moved["tensor_rate", 0.5].thresholds["qkv"] == (1, 1)
    assert all(moved["tensor_rate", factor].splits == base.splits for factor in FACTORS)
    # Half the bandwidth brings the first threshold of a GPU with slower memory.
    assert moved["bandwidth", 0.5].thresholds["qkv"] == (5, 9)
    # Ties: from 16K on the sheet cannot say which order is better, but at 32K.
    assert {n for n in forecasts if n >= 16384} - {32768} <= set(tied)
    assert not {256, 512, 1024, 8192} & set(tied)
for slug in ("l40s", "a40"):
    assert imagined.decisions(slug, LAYERS, lengths=()).thresholds["qkv"][0] == 5
print(f"All of it took {time.perf_counter() - BEGIN:.0f} s.")

# %% [markdown]
# **In one sentence:** a data sheet decides the order up to 8K points, clearly where two orders are far apart, leaves
# ties from 16K on but at 32K, and puts the thresholds where the ratios of products and instructions to memory put
# them: measure the rate of `mma.sync` first.
