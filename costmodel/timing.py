r"""From counts to time: the measured model.

For each resource r with work W_r (costmodel.counts) and achievable rate R_r (a measured rate, or the data
sheet's times a known ratio, times the fitted fraction of the GPU file), t_r = W_r / (R_r u_r), where u_r is
the share of the GPU that the grid fills. Resources overlap imperfectly:

    t = (t_memory^q + t_tensor^q + t_shared^q + t_vector^q)^(1/q) + t_sync + t_launch

q = 1 adds the terms (no overlap), q = infinity takes the largest (perfect overlap). A block-wide barrier
drains the pipelines of its block; with R blocks resident on each of S SMs, t_sync = barriers *
synchronise_us / (S R).

Interval: every input carries a relative uncertainty s_i. The time is evaluated with each input moved by s_i
alone, and the logarithms of the changes are added in quadrature, together with the model's own error
(leave-one-out, in the GPU file) and, for a plan without a kernel, the error of the analytic counts.
[time_low, time_high] is one standard deviation to either side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, exp, inf, log, sqrt

from costmodel.counts import Counts
from costmodel.gpus import GPU, Measured

UNRECORDED_SPREAD = 0.03  # of a measured rate whose p20 and p80 were not recorded
CLOCK_SPREAD = 0.03
ANALYTIC_ERROR = 0.12  # of counts for a plan that no kernel exists for
OVERLAPPED = ("memory", "tensor", "shared", "vector")
BOUND_NAMES = {
    "memory": "device memory",
    "tensor": "tensor cores",
    "shared": "shared memory",
    "vector": "ordinary arithmetic",
    "sync": "barriers",
    "launch": "launching",
}


@dataclass(frozen=True)
class Input:
    """A number that the prediction rests on, its relative standard deviation, and where it is from."""

    value: float
    relative_uncertainty: float
    origin: str


Inputs = dict[str, Input]


def _measured(m: Measured) -> Input:
    if m.p20 is not None and m.p80 is not None:
        spread = (m.p80 - m.p20) / (2 * 0.8416 * m.median)  # p20 and p80 of a normal law: 0.8416 sigma
        return Input(m.median, spread, f"measured {m.date}")
    return Input(m.median, UNRECORDED_SPREAD, f"measured {m.date}, spread assumed")


def _rate(gpu: GPU, measured: str, spec: str, ratio: str) -> Input:
    if measured in gpu.measured:
        return _measured(gpu.measured[measured])
    if ratio in gpu.model:
        f = gpu.model[ratio]
        return Input(gpu.spec[spec] * f.value, f.relative_uncertainty, f"data sheet x {f.value:g}")
    return Input(gpu.spec[spec], 0.3, "data sheet")


def inputs_of(gpu: GPU) -> Inputs:
    """Every number that a prediction on this GPU rests on, by name."""
    spec = gpu.spec
    out = {
        "memory_rate": _rate(
            gpu, "device_copy_bytes_per_s", "memory_bandwidth_bytes_per_s", "memory_fraction_of_spec"
        ),
        "tensor_rate": _rate(gpu, "mma_flops_per_s", "fp16_tensor_flops_per_s", "tensor_fraction_of_spec"),
        "shared_rate": Input(gpu.shared_memory_bytes_per_s, CLOCK_SPREAD, "SMs x 128 bytes x boost clock"),
        "half_rate": Input(spec["fp16_vector_flops_per_s"], CLOCK_SPREAD, "data sheet"),
        "fp32_rate": Input(spec["fp32_flops_per_s"], CLOCK_SPREAD, "data sheet"),
    }
    for key, f in gpu.model.items():
        if not key.endswith("_of_spec"):
            out[key] = Input(f.value, f.relative_uncertainty, f.source)
    return out


def resident_blocks(counts: Counts, gpu: GPU) -> int:
    """Blocks that one SM holds at once, by registers, shared memory and threads; at least 1."""
    spec = gpu.spec
    reserve = 1024  # the system's share of each block's shared memory
    limits = (
        spec["registers_per_sm"] // (counts.registers_per_thread * counts.threads_per_block),
        spec["shared_memory_per_sm_bytes"] // (counts.shared_bytes_per_block + reserve),
        spec["threads_per_sm"] // counts.threads_per_block,
        32,
    )
    return max(1, int(min(limits)))


def use(blocks: int, sm_count: int, resident: int) -> float:
    """Share of the SMs' time that a grid uses: the last wave is only partly full (wave quantisation)."""
    if blocks <= 0:
        raise ValueError(f"blocks: got {blocks}; accepted: at least 1")
    slots = sm_count * resident
    if blocks >= slots:
        return blocks / (ceil(blocks / slots) * slots)
    return blocks / (ceil(blocks / sm_count) * sm_count)


def terms(counts: Counts, gpu: GPU, inputs: Inputs) -> dict[str, float]:
    """Seconds per resource, each as if it were alone."""
    v = {key: i.value for key, i in inputs.items()}
    sm_count = int(gpu.spec["sm_count"])
    resident = resident_blocks(counts, gpu)
    busy = use(counts.blocks, sm_count, resident)
    reach = min(1.0, counts.blocks / sm_count)
    barriers = counts.barriers_per_transform * counts.transforms
    return {
        "memory": counts.device_bytes / (v["memory_rate"] * v["memory_fraction"] * reach),
        "tensor": counts.mma_flops / (v["tensor_rate"] * v["tensor_fraction"] * busy),
        "shared": counts.shared_bytes / (v["shared_rate"] * v["shared_fraction"] * busy),
        "vector": (counts.half_flops / v["half_rate"] + counts.fp32_flops / v["fp32_rate"])
        / (v["vector_fraction"] * busy),
        "sync": barriers * v["synchronise_us"] * 1e-6 / (min(counts.blocks, sm_count * resident)),
        "launch": counts.launches * v["launch_us"] * 1e-6,
    }


def combine(parts: dict[str, float], exponent: float) -> float:
    """Seconds altogether: the overlapped terms by the q-norm, the rest added."""
    overlapped = [parts[key] for key in OVERLAPPED]
    largest = max(overlapped)
    rest = sum(value for key, value in parts.items() if key not in OVERLAPPED)
    if largest == 0 or exponent == inf:
        return largest + rest
    return largest * sum((t / largest) ** exponent for t in overlapped) ** (1 / exponent) + rest


def seconds(counts: Counts, gpu: GPU, inputs: Inputs) -> float:
    """The model's time for one call."""
    return combine(terms(counts, gpu, inputs), inputs["overlap_exponent"].value)


def interval(
    evaluate: Callable[[Inputs], float], inputs: Inputs, *, extra: float = 0.0
) -> tuple[float, float]:
    """(low, high) of ``evaluate``: one standard deviation from the inputs and ``extra`` (both relative)."""
    centre = evaluate(inputs)
    variance = extra * extra
    for key, entry in inputs.items():
        if entry.relative_uncertainty == 0 or key == "model_error":
            continue
        moved = replace(entry, value=entry.value * (1 + entry.relative_uncertainty))
        variance += log(evaluate({**inputs, key: moved}) / centre) ** 2
    return centre * exp(-sqrt(variance)), centre * exp(sqrt(variance))


def time_with_interval(counts: Counts, gpu: GPU, inputs: Inputs | None = None) -> tuple[float, float, float]:
    """(time, low, high) in seconds for one call."""
    known = inputs_of(gpu) if inputs is None else inputs
    extra = known["model_error"].value if "model_error" in known else 0.0
    if not counts.exact:
        extra = sqrt(extra * extra + ANALYTIC_ERROR**2)
    low, high = interval(lambda i: seconds(counts, gpu, i), known, extra=extra)
    return seconds(counts, gpu, known), low, high


def bound(parts: dict[str, float]) -> str:
    """The name of the resource that takes longest."""
    return BOUND_NAMES[max(parts, key=lambda key: parts[key])]


_WORK = {
    "memory": ("device_bytes", "B", "memory_rate", "memory_fraction"),
    "tensor": ("mma_flops", "flop", "tensor_rate", "tensor_fraction"),
    "shared": ("shared_bytes", "B", "shared_rate", "shared_fraction"),
}


def explain(counts: Counts, gpu: GPU) -> str:
    """Term by term: work / (rate x fraction) = time, then the combination, ending in one plain sentence."""
    known = inputs_of(gpu)
    parts = terms(counts, gpu, known)
    resident = resident_blocks(counts, gpu)
    busy = use(counts.blocks, int(gpu.spec["sm_count"]), resident)
    lines = [
        f"Counts ({'exact' if counts.exact else 'analytic'}): {counts.transforms} transforms, "
        f"{counts.launches} launch(es), {counts.blocks} blocks of {counts.threads_per_block} threads, "
        f"{resident} per SM, the grid fills {busy:.0%}"
    ]
    for key, (work, unit, rate, fraction) in _WORK.items():
        r, f = known[rate], known[fraction]
        lines.append(
            f"  {key:<7} {getattr(counts, work):.4g} {unit} / ({r.value:.4g} {unit}/s x {f.value:.3g})"
            f" = {parts[key] * 1e6:.3g} us   [{r.origin}]"
        )
    lines.append(
        f"  vector  ({counts.half_flops:.4g} half flop / {known['half_rate'].value:.4g} flop/s"
        f" + {counts.fp32_flops:.4g} flop / {known['fp32_rate'].value:.4g} flop/s)"
        f" / {known['vector_fraction'].value:.3g} = {parts['vector'] * 1e6:.3g} us"
    )
    lines.append(
        f"  sync    {counts.barriers_per_transform * counts.transforms:.4g} barriers"
        f" x {known['synchronise_us'].value:.3g} us / blocks at once = {parts['sync'] * 1e6:.3g} us"
    )
    lines.append(
        f"  launch  {counts.launches} x {known['launch_us'].value:.3g} us = {parts['launch'] * 1e6:.3g} us"
    )
    q = known["overlap_exponent"].value
    total, low, high = time_with_interval(counts, gpu, known)
    largest = max(parts, key=lambda key: parts[key])
    lines.append(f"t = (memory^q + tensor^q + shared^q + vector^q)^(1/q) + sync + launch with q = {q:.3g}")
    lines.append(
        f"Bound by {BOUND_NAMES[largest]}: {parts[largest] * 1e6:.3g} us of {total * 1e6:.4g} us "
        f"(between {low * 1e6:.4g} and {high * 1e6:.4g} us)."
    )
    return "\n".join(lines)
