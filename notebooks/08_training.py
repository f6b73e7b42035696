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
# # 8. Training: is a convolution in half precision good enough, and what does it buy?
#
# A training step goes through a long convolution three times: forward, and backward for the signal and for the filter.
# Everything that is rounded there may move the loss. And everything that is kept for the backward pass takes memory,
# which decides the largest batch.
#
# `monarch.torch` keeps the arguments of the forward pass and nothing else, and computes spectra again. This notebook
# looks at three questions with what was measured on an H200, and needs no GPU and no PyTorch:
#
# 1. Are gradients right, and how far from exact are they?
# 2. Do losses follow those of a model that convolves by `torch.fft`, as closely as chance allows?
# 3. What does it save, in time and in memory?

# %%
import time

import numpy as np
from IPython.display import Image, display
from matplotlib.figure import Figure

import kernels_numba
import reference
from costmodel import plots, training, training_report

BEGIN = time.perf_counter()
GPU = "h200-sxm"
NAMES = {"fused": "monarch.torch", "torch": "torch.fft"}
COLOURS = {"fused": "C0", "torch": "C1"}


def show(figure):
    display(Image(data=plots.png(figure)))


# %% [markdown]
# ## Gradients
#
# With $y = q \cdot (k * (p u))$ and a gradient $\bar y$ in $y$, per channel and with $e = q \bar y$:
#
# $$\bar u_m = p_m \sum_j k_j e_{m+j} \qquad \bar k_j = \sum_b \sum_m e_{m+j}\, (p u)_m$$
#
# Both are correlations, products with a conjugate spectrum. The kernels compute them in half precision with sums in
# float32, here on the CPU body, and `reference` says exactly what they should be and how far they may be off:

# %%
rng = np.random.default_rng(0)
u, p, q = (rng.standard_normal((3, 2, 128)).astype(np.float16) for _ in range(3))
dy = (u + rng.standard_normal(u.shape)).astype(np.float16)  # follows u, so that the filter has a gradient
k = rng.standard_normal((2, 128)) / np.sqrt(128)

gates = {"pregate": p, "postgate": q}
found = kernels_numba.fftconv_gradients(u, k, dy, mode="causal", **gates)
exact = reference.fftconv_gradients(dy, u, k, mode="causal", **gates)
bound = reference.fftconv_bound(2, "fp16", gates=2)
errors = {
    "u": (reference.relative_error(found.u, exact.u, dy, k, pregate=q, postgate=p).overall, bound),
    "k": (
        reference.filter_gradient_error(found.k, exact.k, dy, u, **gates).overall,
        reference.filter_gradient_bound(2, "fp16", gates=2),
    ),
}
for name, (error, limit) in errors.items():
    print(f"gradient in {name}: relative error {error:.1e}, bound {limit:.1e}")

# %% [markdown]
# The gradient passes the test that defines one: a small step along any direction changes $\langle \bar y, y \rangle$ by
# the step times the gradient. $y$ is linear in the filter, so in float64 the step need not even be small:

# %%
step = rng.standard_normal(k.shape)
change = np.sum(
    dy
    * (
        reference.fftconv(u, k + step, mode="causal", **gates)
        - reference.fftconv(u, k, mode="causal", **gates)
    )
)
print(f"change {change:.10f}, step . gradient {np.sum(step * exact.k):.10f}")

# %% [markdown]
# ## A language model, twice
#
# `examples/train_hyena.py` trains a small Hyena model on the text of Python's own library, a byte a token. Each seed
# fixes the parameters and the batches; the only difference is who convolves. If rounding mattered, the two curves of
# one seed would part, and further than the curves of two seeds, which differ by chance:

# %%
runs = training.runs(GPU)
curves = training.curves(training.losses(GPU))
settings = runs["settings"]
print(
    f"{settings['layers']} layers of width {settings['width']}, {settings['length']} bytes, batch {settings['batch']}, "
    f"{settings['steps']} steps in {settings['dtype']} on {runs['where']}"
)
seeds = sorted({seed for _, seed in curves})


def smooth(values, width=5):
    """Means of neighbouring steps: each batch is another text, and its loss jumps."""
    return np.convolve(values, np.ones(width) / width, mode="valid")


fig = Figure(figsize=(10, 3.6))
left, right = fig.subplots(1, 2)
for (name, seed), (steps, losses) in curves.items():
    style = {"color": COLOURS[name], "ls": "-" if seed == seeds[0] else "--"}
    left.plot(steps, losses, label=f"{NAMES[name]}, seed {seed}", **style, lw=1)
left.set(xlabel="step", ylabel="loss, nats per byte")
left.legend()
between, chance = [], []
for seed in seeds:
    gap = np.abs(smooth(np.subtract(curves["fused", seed][1], curves["torch", seed][1])))
    right.semilogy(curves["fused", seed][0][2:-2], gap, color=COLOURS["fused"], ls="-" if seed == seeds[0] else "--",
                   label=f"convolutions, seed {seed}")  # fmt: skip
    between.append(gap)
for name in NAMES:
    gap = np.abs(smooth(np.subtract(curves[name, seeds[0]][1], curves[name, seeds[1]][1])))
    right.semilogy(curves[name, seeds[0]][0][2:-2], gap, color="grey", ls="-" if name == "fused" else "--",
                   label=f"seeds, {NAMES[name]}")  # fmt: skip
    chance.append(gap)
right.set(xlabel="step", ylabel="difference of two curves")
right.legend()
fig.tight_layout()
show(fig)
print(
    f"median difference: of convolutions {np.median(between):.4f}, of seeds {np.median(chance):.4f} nats per byte"
)

# %% [markdown]
# The same on text that no run has seen, and how fast it went:

# %%
held_out_gap, held_out_spread = training_report.seed_noise(runs)
speeds = {name: [r["tokens_per_s"] for r in runs["runs"] if r["convolution"] == name] for name in NAMES}
for r in runs["runs"]:
    print(
        f"{NAMES[r['convolution']]:>13}, seed {r['seed']}: held out {r['held_out_loss']:.4f} nats per byte, "
        f"{r['tokens_per_s'] / 1e3:.0f} thousand tokens/s"
    )
print(f"differences: of convolutions at most {held_out_gap:.4f}, of seeds {held_out_spread:.4f}")

# %% [markdown]
# ## Time and memory
#
# The whole model holds more than convolutions. Layers alone, forward and backward, each beside the same layer with
# `torch.fft`, and the bare circular convolution. Memory is what a pass allocates at its peak beyond inputs and
# parameters, as the FlashFFTConv paper counts it.

# %%
both = training_report.pairs(training.operators(GPU))
fig = Figure(figsize=(10, 3.6))
speed, memory = fig.subplots(1, 2)
ratios = {}
for layer, label in training_report.NAMES.items():
    mine = [(a, b) for a, b in both if a.layer == layer]
    if not mine:
        continue
    lengths = [a.L for a, _ in mine]
    ratios[layer] = {a.L: (b.step_us / a.step_us, b.forward_bytes / a.forward_bytes) for a, b in mine}
    speed.semilogx(lengths, [ratios[layer][n][0] for n in lengths], "o-", base=2, label=label)
    memory.semilogx(lengths, [ratios[layer][n][1] for n in lengths], "o-", base=2, label=label)
for axis, title in (
    (speed, "time of a step: torch.fft / ours"),
    (memory, "memory of a forward pass: torch.fft / ours"),
):
    axis.axhline(1, color="grey", lw=0.5)
    axis.set(xlabel="samples", ylabel="ratio", title=title)
speed.legend()
fig.tight_layout()
show(fig)
for a, b in both:
    if a.largest_batch and b.largest_batch:
        print(
            f"{training_report.NAMES[a.layer]:>17} L={a.L:6}: largest batch {a.largest_batch:6} and {b.largest_batch:6}"
        )

# %% [markdown]
# ## What was claimed, checked

# %%
assert all(error <= limit for error, limit in errors.values())
assert abs(change - np.sum(step * exact.k)) < 1e-9 * abs(change)
# Rounding does not move the loss by more than chance.
assert len(curves) == 4 and all(losses[-1] < losses[0] / 2 for _, losses in curves.values())
assert np.median(between) <= np.median(chance)
# It saves memory wherever it was measured, and time.
assert all(
    memory_ratio > 1 and time_ratio > 1
    for by_length in ratios.values()
    for time_ratio, memory_ratio in by_length.values()
)
print(f"All of it took {time.perf_counter() - BEGIN:.0f} s.")
