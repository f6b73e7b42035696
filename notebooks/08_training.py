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
# 2. Do losses follow those of a model that convolves by `torch.fft`?
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
# fixes the parameters and the batches; the only difference is who convolves. What two curves of one seed differ by is
# to be compared with how much the loss jumps from batch to batch, and, where more than one seed was run, with what two
# seeds differ by:

# %%
runs = training.runs(GPU)
curves = training.curves(training.losses(GPU))
settings = runs["settings"]
print(
    f"{settings['layers']} layers of width {settings['width']}, {settings['length']} bytes, batch {settings['batch']}, "
    f"{settings['steps']} steps in {settings['dtype']} on {runs['where']}"
)
seeds = sorted({seed for _, seed in curves})


def style(name, seed):
    return {"color": COLOURS[name], "ls": "-" if seed == seeds[0] else "--", "lw": 1}


fig = Figure(figsize=(10, 3.6))
left, right = fig.subplots(1, 2)
for (name, seed), (steps, losses) in curves.items():
    left.plot(steps, losses, label=f"{NAMES[name]}, seed {seed}", **style(name, seed))
left.set(xlabel="step", ylabel="loss, nats per byte")
left.legend()
between, chance, jumps = [], [], []
for seed in seeds:
    steps, fused = curves["fused", seed]
    plain = np.asarray(curves["torch", seed][1])
    between.append(np.abs(fused - plain))
    right.semilogy(steps, between[-1], label=f"convolutions, seed {seed}", **style("fused", seed))
    # A curve against the mean of its two neighbours: what the next batch alone changes.
    jumps.append(np.abs(plain[1:-1] - (plain[:-2] + plain[2:]) / 2))
    right.semilogy(steps[1:-1], jumps[-1], label=f"next batches, seed {seed}", **style("torch", seed))
for name in NAMES if len(seeds) > 1 else ():
    chance.append(np.abs(np.subtract(curves[name, seeds[0]][1], curves[name, seeds[1]][1])))
    right.semilogy(curves[name, seeds[0]][0], chance[-1], color="grey", lw=1, label=f"seeds, {NAMES[name]}")
right.set(xlabel="step", ylabel="difference of two losses")
right.legend()
fig.tight_layout()
show(fig)
print(f"median difference of the convolutions: {np.median(between):.4f} nats per byte")
print(f"                  of neighbouring batches: {np.median(np.concatenate(jumps)):.4f}")
print(
    f"                  of two seeds: {np.median(chance):.4f}"
    if chance
    else "                  of two seeds: not run"
)

# %% [markdown]
# The same on text that no run has seen, and how fast it went:

# %%
held_out_gap, held_out_spread = training_report.seed_noise(runs)
for r in runs["runs"]:
    print(
        f"{NAMES[r['convolution']]:>13}, seed {r['seed']}: held out {r['held_out_loss']:.4f} nats per byte, "
        f"{r['tokens_per_s'] / 1e3:.0f} thousand tokens/s"
    )
print(f"difference of the convolutions at most {held_out_gap:.4f}")

# %% [markdown]
# ## Time and memory
#
# The whole model holds more than convolutions. Layers alone, forward and backward, each beside the same layer with
# `torch.fft`, and the bare circular convolution. Memory is what a pass allocates at its peak beyond inputs and
# parameters, as the FlashFFTConv paper counts it.

# %%
both = training_report.pairs(training.operators(GPU))
ratios = {}
for a, b in both:
    name = f"{training_report.NAMES[a.layer]}, L={a.L}, B={a.B}"
    ratios.setdefault(a.layer, {})[a.L] = (b.step_us / a.step_us, b.forward_bytes / a.forward_bytes)
    print(
        f"{name}: step {a.step_us / 1e3:.1f} ms, torch.fft {b.step_us / 1e3:.1f} ms; forward pass "
        f"{a.forward_bytes / 2**20:.0f} MiB, torch.fft {b.forward_bytes / 2**20:.0f} MiB"
    )
    if a.largest_batch and b.largest_batch:
        print(f"{'':>{len(name)}}  largest batch {a.largest_batch}, torch.fft {b.largest_batch}")
if any(len(by_length) > 1 for by_length in ratios.values()):
    fig = Figure(figsize=(10, 3.6))
    axes = fig.subplots(1, 2)
    for layer, by_length in ratios.items():
        for axis, values in zip(axes, zip(*by_length.values(), strict=True), strict=True):
            axis.semilogx(list(by_length), values, "o-", base=2, label=training_report.NAMES[layer])
    for axis, what in zip(axes, ("time of a step", "memory of a forward pass"), strict=True):
        axis.axhline(1, color="grey", lw=0.5)
        axis.set(xlabel="samples", ylabel="torch.fft / ours", title=what)
    axes[0].legend()
    fig.tight_layout()
    show(fig)
else:
    print("Other lengths are not measured yet; on a GPU: python -m costmodel.measure_training")

# %% [markdown]
# ## What was claimed, checked

# %%
assert all(error <= limit for error, limit in errors.values())
assert abs(change - np.sum(step * exact.k)) < 1e-9 * abs(change)
# Models learn alike by both: curves fall by half, and lie closer to each other than a loss to that of the next batch.
assert all(losses[-1] < losses[0] / 2 for _, losses in curves.values())
assert np.median(between) < np.median(np.concatenate(jumps))
assert not chance or np.median(between) <= np.median(chance)
assert held_out_gap < 0.01 * min(r["held_out_loss"] for r in runs["runs"])
# Memory is saved wherever it was measured, and time wherever a filter serves more than one sequence.
assert both and all(memory > 1 for by_length in ratios.values() for _, memory in by_length.values())
assert all(b.step_us > a.step_us for a, b in both if a.B > 1)
print(f"All of it took {time.perf_counter() - BEGIN:.0f} s.")
