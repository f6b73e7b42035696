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
# # 1. Decomposition: order, factors and what they cost
#
# A long convolution is a Fourier transform, a product and an inverse transform. A *Monarch decomposition*
# of order $p$ writes the transform of $N = N_1 N_2 \cdots N_p$ points as $p$ small dense ones with twiddle
# factors between them. Dense products are what tensor cores do, so the question is: **how many factors, and
# which?**
#
# This notebook answers it for a GPU of your choice, first with the model of the FlashFFTConv paper (arXiv
# 2311.05908, Equation 2), then with this project's measured model. It needs no GPU.

# %%
import numpy as np
from IPython.display import Image, display

import costmodel
import monarch
from costmodel import equation2, plots, units

GPU = "a100-sxm-40gb"  # any slug of `python -m costmodel gpus`, or the path of your own file


def show(figure):
    display(Image(data=plots.png(figure)))


# %% [markdown]
# ## One transform, three decompositions
#
# The same 4096 points as 64 x 64, as 16 x 16 x 16 and as 8 x 8 x 8 x 8. They compute the same numbers in
# another order; `plan.frequencies()` says which frequency every output slot holds.

# %%
rng = np.random.default_rng(0)
x = rng.standard_normal(4096) + 1j * rng.standard_normal(4096)
exact = np.fft.fft(x, norm="ortho")

for factors in ((64, 64), (16, 16, 16), (8, 8, 8, 8)):
    plan = monarch.Plan(n=4096, factors=factors, packing="complex")
    y = monarch.transform(x, plan)
    error = np.abs(y - exact[plan.frequencies().ravel()]).max()
    products = sum(plan.flops(i) for i in range(plan.order)) / 1e6
    print(
        f"{monarch.format_factors(factors):>10}: {products:6.2f} Mflop of products, largest error {error:.1e}"
    )

# %% [markdown]
# A stage costs $8\,N N_i$ real operations, so the sum of the factors counts: 128, 48, 32. More factors are
# less work. Why not always the highest order, then? Two reasons:
#
# 1. a factor under 16 does not fill a tile of the tensor cores, and falls back to arithmetic that is over ten
#    times slower (the kernels of this project lay two parts side by side for a first factor of 8; Equation 2
#    does not know that);
# 2. every stage moves the whole sequence once more.
#
# Equation 2 weighs them against each other, for $B \times H$ sequences:
#
# $$C = B H \sum_{i=1}^{p} \left[ \frac{16\, N N_i}{\gamma(N_i)} + \frac{4 N}{\omega(i)} \right]$$
#
# $\gamma$ is the tensor-core rate for factors of at least 16, otherwise the ordinary rate. $\omega$ is the
# on-chip bandwidth while stage $i$ works on a sequence that fits in shared memory (with its DFT matrices),
# otherwise the bandwidth of device memory.

# %%
rates = equation2.constants(GPU)
print(equation2.explain((16, 16, 16), rates, batch=64, channels=768))

# %% [markdown]
# ## Where the order changes
#
# Cost per token over $N$. Three things to see: high orders are dear at short lengths (reason 1); order 2
# steps up where its sequence and matrices no longer fit on chip, and order 3 later (the circles); and the
# lowest curve changes from order to order. Those changes are the *knees*.

# %%
show(plots.order_costs(rates, title=f"Equation 2 on {GPU}"))
for last, (old, new) in plots.knees(rates).items():
    print(f"order {old} up to N = {units.short(last)}, order {new} above")

# %% [markdown]
# ### Why the knee between order 2 and order 3 is where it is
#
# At $N = 2048$ order 3 needs a factor under 16 (32 x 32 x 2, say): one stage leaves the tensor cores, and
# that outweighs the smaller sum. At $N = 4096$ it is 16 x 16 x 16: all three stages are on tensor cores, with
# 48 against 128 in the sum. So on this GPU the knee sits just below $16^3$, the smallest length whose three
# factors all fill a tile. (Where ordinary arithmetic is faster, relative to tensor cores, the odd factor is
# cheaper and the knee comes an octave earlier.)

# %%
for n in (2048, 4096, 32768):
    show(plots.stage_bars(n, rates))

# %% [markdown]
# ### A trap
#
# With $N_i = N^{1/p}$ in floating point, $4096^{1/3}$ is just under 16, so the threshold says "no tensor
# core" at exactly the length where order 3 becomes right. Factors are integers here, and a float is
# refused.

# %%
root = 4096 ** (1 / 3)
print(f"4096 ** (1/3) = {root!r}")
try:
    equation2.cost((root, root, root), rates)
except TypeError as error:
    print("TypeError:", error)

# %% [markdown]
# ## What if the GPU were different?
#
# Sliders for the bandwidth of device memory, the number of SMs, the tensor-core rate of an SM and the
# shared memory of a block, as ratios to the chosen GPU. The callback is a pure function,
# `costmodel.plots.what_if`, then `costmodel.plots.order_costs`.


# %%
def picture(gpu=GPU, bandwidth=1.0, sm_count=1.0, tensor_rate=1.0, shared_memory=1.0):
    imagined = plots.what_if(
        equation2.constants(gpu),
        bandwidth=bandwidth,
        sm_count=sm_count,
        tensor_rate=tensor_rate,
        shared_memory=shared_memory,
    )
    changes = {
        "bandwidth": bandwidth,
        "SMs": sm_count,
        "tensor rate": tensor_rate,
        "shared memory": shared_memory,
    }
    changed = [f"{name} x {ratio:g}" for name, ratio in changes.items() if ratio != 1]
    return plots.order_costs(imagined, title=" ".join([gpu, *changed]))


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
        lambda **values: show(picture(**values)),
        gpu=costmodel.gpus.slugs(),
        bandwidth=ratio("bandwidth"),
        sm_count=ratio("SMs"),
        tensor_rate=ratio("tensor rate"),
        shared_memory=ratio("shared mem."),
    )

# %% [markdown]
# What does it take to move a knee? The same pure functions without sliders:

# %%
for changes in (
    {},
    {"bandwidth": 8},
    {"sm_count": 4},
    {"shared_memory": 4},
    {"tensor_rate": 4},
    {"tensor_rate": 16},
):
    imagined = plots.what_if(rates, **changes)
    knees = [f"p = {a} to {units.short(n)}, then p = {b}" for n, (a, b) in plots.knees(imagined).items()]
    off_chip = plots.leaves_chip(3, imagined)
    print(
        f"{changes or 'as it is'!s:>22}: {'; '.join(knees)}; order 3 leaves the chip at {units.short(off_chip)}"
    )
for gpu in costmodel.gpus.slugs():
    knees = plots.knees(equation2.constants(gpu))
    print(
        f"{gpu:>22}: "
        + "; ".join(f"p = {a} to {units.short(n)}, then p = {b}" for n, (a, b) in knees.items())
    )

# %% [markdown]
# Eight times the bandwidth moves neither knee, and four times the shared memory moves the bumps, but not the
# knees: the step of a bump is small against the products. It takes tensor cores many times as fast, so that
# traffic outweighs products, before the low orders live longer.

# %%
show(picture(tensor_rate=16))
show(picture(shared_memory=4))

# %% [markdown]
# ## The measured model
#
# Equation 2 knows no packing of two real sequences into one complex one, no overlap of memory and products,
# and takes a complex product for four real ones. The measured model counts what a fused kernel does, divides by
# rates measured on the GPU (or its data sheet, with a wider interval), and lets the terms overlap.
#
# The kernels of this project are of order 2 (one warp keeps a pair of sequences in registers) and of order 3
# (a block exchanges it through shared memory). They split a complex factor into cosines and sines and get every
# output together with its mirror, so two real products do the work of four (`docs/kernels.md`). For their plans
# the counts are exact; those of all others come from the idea of a kernel, with a wider interval.

# %%
for gpu in ("h200-sxm", GPU):
    forecast = costmodel.predict(4096, gpu=gpu)
    print(f"{gpu}: {forecast.conclusion()}")
    made = forecast.best_with_kernel
    print(f"The fastest plan with a kernel: {made.name if made else 'none'}.")
    show(plots.candidate_bars(forecast))

# %%
sweep = [costmodel.predict(n, gpu="h200-sxm") for n in plots.LENGTHS]
show(plots.forecast_figure(sweep))

# %%
# What was said above, of the numbers that were shown.
orders = {n: len(forecast.best.plan.factors) for n, forecast in zip(plots.LENGTHS, sweep, strict=True)}
assert [orders[n] for n in (256, 512, 1024, 4096, 8192, 16384, 32768)] == [2, 2, 2, 3, 3, 4, 4]
assert all(forecast.best.time_s == min(c.time_s for c in forecast.candidates) for forecast in sweep)
assert sorted(orders.values())[-1] >= 5, "the longest lengths take more stages"

# %% [markdown]
# **In one sentence:** take the highest order whose factors all still fill a tensor-core tile (a first factor of 8
# does, two parts at a time), up to the point where another stage costs more traffic than it saves products.
