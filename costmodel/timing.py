r"""From counts to time: the measured model.

For each resource r with work W_r (costmodel.counts) and achievable rate R_r (a measured rate, or the data
sheet's times a known ratio, times the fraction of the GPU file), t_r = W_r / (R_r u_r), where u_r is the share of
the GPU that the grid fills. The resources are device memory, tensor cores, shared memory, L2 and the issue slots of
the SMs' schedulers.

*Latency.* A warp waits for its own results, so pipes on the chip reach their rate only with enough warps: W warps on
an SM reach W / (W + W_half) of it, W_half the warps that reach half. Products of warpgroups (wgmma) are not issued one
by one: a single one keeps the tensor cores busy, and takes no such factor.

*Overlap.* A worker (a warp, four warps or a whole block, by kernel) goes through its stages one after the other;
different workers overlap. Alone, a worker needs the sum of its demands; with v workers an SM no more than the
largest is certain to be busy. The law in between is that of balanced jobs in a closed queueing network (Zahorjan et
al., "Balanced job bound analysis of queueing networks", CACM 25, 1982), with the overlap inside a worker (copies
ahead of their use, several warps) fitted as k stages of each worker that run at once:

    t = max_r t_r + (sum_r t_r - max_r t_r) / (1 + k v) + t_launch

Where a worker is a whole block, blocks begin together and drift apart as steps of chance do: v is the root of their
number, or 1 where they stay together. t_launch is what a launch takes beyond that:
starting, the first fetch of everything, and the last block alone.

Interval: every input carries a relative uncertainty s_i. The time is evaluated with each input moved by s_i
alone, and the logarithms of the changes are added in quadrature, together with the model's own error
(leave-one-out, in the GPU file) and, for a plan without a kernel, the error of the analytic counts.
[time_low, time_high] is one standard deviation to either side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, exp, log, sqrt

from costmodel import local_memory, sensitivity, units
from costmodel.counts import Counts
from costmodel.gpus import GPU, Measured

UNRECORDED_SPREAD = 0.03  # of a measured rate whose p20 and p80 were not recorded
CLOCK_SPREAD = 0.03
ANALYTIC_ERROR = 0.12  # of counts for a plan that no kernel exists for
OVERLAPPED = ("memory", "tensor", "shared", "l2", "issue")
SCHEDULERS = 4  # of an SM: warp instructions a clock
L2_BYTES_PER_SM_PER_CLOCK = 64
BOUND_NAMES = {
    "memory": "device memory",
    "tensor": "tensor cores",
    "shared": "shared memory",
    "l2": "L2",
    "issue": "issue slots",
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
    return Input(m.median, UNRECORDED_SPREAD, f"measured {m.date}, +-{UNRECORDED_SPREAD:.0%} assumed")


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
    clock = spec["sm_count"] * spec["boost_clock_mhz"] * 1e6
    l2_width = L2_BYTES_PER_SM_PER_CLOCK
    shared_width = spec["shared_memory_bytes_per_sm_per_clock"]
    out = {
        "memory_rate": _rate(
            gpu, "device_copy_bytes_per_s", "memory_bandwidth_bytes_per_s", "memory_fraction_of_spec"
        ),
        "tensor_rate": _rate(gpu, "mma_flops_per_s", "fp16_tensor_flops_per_s", "tensor_fraction_of_spec"),
        "shared_rate": Input(
            gpu.shared_memory_bytes_per_s, CLOCK_SPREAD, f"SMs x {shared_width:g} bytes x boost clock"
        ),
        "l2_rate": Input(l2_width * clock, CLOCK_SPREAD, f"SMs x {l2_width} bytes x boost clock"),
        "issue_rate": Input(SCHEDULERS * clock, CLOCK_SPREAD, f"SMs x {SCHEDULERS} x boost clock"),
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


def _blocks_per_sm(counts: Counts, gpu: GPU, resident: int) -> float:
    """Blocks on an SM, averaged over the SMs that work where the grid is small."""
    return min(float(resident), max(1.0, counts.blocks / gpu.spec["sm_count"]))


def residency(counts: Counts, gpu: GPU) -> tuple[float, float]:
    """(warps, workers) on an SM, averaged over the SMs that work where the grid is small."""
    here = _blocks_per_sm(counts, gpu, resident_blocks(counts, gpu))
    return here * counts.threads_per_block / 32, here * counts.workers_per_block


def _fill_bytes(counts: Counts, gpu: GPU, resident: int) -> float:
    """What the blocks that are on the GPU at once fetch before they begin, all of them."""
    return min(counts.blocks, int(gpu.spec["sm_count"]) * resident) * counts.fill_bytes_per_block


def work(counts: Counts, gpu: GPU) -> tuple[float, float, float]:
    """Bytes of device memory, of shared memory and the first-level cache, and of L2, with those of local memory."""
    own = (counts.device_bytes, counts.shared_bytes, counts.l2_bytes)
    if not counts.stack_bytes_per_thread:
        return own
    spilled = local_memory.traffic(counts, gpu, resident_blocks(counts, gpu))
    memory, shared, l2 = (a + b for a, b in zip(own, spilled, strict=True))
    return memory, shared, l2


def onchip_factors(counts: Counts) -> tuple[str, str]:
    """The names of W_half and of the issue slots' share, which differ between tensor-core kernels and fp32 ones."""
    prefix = "fp32_" if counts.arithmetic == "fp32" else ""
    return f"{prefix}half_rate_warps", f"{prefix}issue_fraction"


def _achieved(inputs: Inputs, name: str) -> float:
    """A resource's rate, times the share of it that kernels reach."""
    return inputs[f"{name}_rate"].value * inputs[f"{name}_fraction"].value


def terms(counts: Counts, gpu: GPU, inputs: Inputs) -> dict[str, float]:
    """Seconds per resource, each as if it were alone; of several kernels together, if there are."""
    if counts.stages:
        each = [terms(stage, gpu, inputs) for stage in counts.stages]
        return {key: sum(part[key] for part in each) for key in each[0]}
    sm_count = int(gpu.spec["sm_count"])
    resident = resident_blocks(counts, gpu)
    warps = _blocks_per_sm(counts, gpu, resident) * counts.threads_per_block / 32
    busy = use(counts.blocks, sm_count, resident)
    reach = min(1.0, counts.blocks / sm_count)
    half, issue = (inputs[key].value for key in onchip_factors(counts))
    onchip = busy * warps / (warps + half)
    memory, shared, l2 = work(counts, gpu)
    products = busy if counts.waits else onchip
    fill = _fill_bytes(counts, gpu, resident)
    # An addition is one flop where the data sheet counts two; elsewhere an instruction is one issue slot.
    issued = (counts.warp_instructions - counts.fp32_flops / 32) / inputs["issue_rate"].value
    issued += 2 * counts.fp32_flops / inputs["fp32_rate"].value
    return {
        "memory": memory / (_achieved(inputs, "memory") * reach),
        "tensor": counts.mma_flops / (_achieved(inputs, "tensor") * products),
        "shared": (shared + fill) / (_achieved(inputs, "shared") * onchip),
        "l2": (l2 + fill) / (_achieved(inputs, "l2") * onchip),
        "issue": issued / (issue * onchip),
        "launch": counts.launches * inputs["launch_us"].value * 1e-6,
    }


def combine(parts: dict[str, float], overlap: float) -> float:
    """Seconds altogether: the largest term, of the others 1 / (1 + ``overlap``), and the launches."""
    largest = max(parts[key] for key in OVERLAPPED)
    others = sum(parts[key] for key in OVERLAPPED) - largest
    return largest + others / (1 + overlap) + parts["launch"]


def stages_at_once(counts: Counts, inputs: Inputs) -> float:
    """Stages of one worker under way at once: k, or 1 where it waits for its products."""
    return 1.0 if counts.waits else inputs["stages_per_worker"].value


def independent_workers(counts: Counts, gpu: GPU) -> float:
    """v: workers on an SM whose stages overlap with each other's; of blocks the root, or 1 where they stay in step."""
    workers = 1.0 if counts.in_step else residency(counts, gpu)[1]
    return sqrt(workers) if counts.workers_per_block == 1 else workers


def overlap(counts: Counts, gpu: GPU, inputs: Inputs) -> float:
    """How many stages of its workers an SM has under way at once: k v, or v where a worker waits for its products."""
    return stages_at_once(counts, inputs) * independent_workers(counts, gpu)


def seconds(counts: Counts, gpu: GPU, inputs: Inputs) -> float:
    """The model's time for one call: of each kernel, where one runs after the other."""
    if counts.stages:
        return sum(seconds(stage, gpu, inputs) for stage in counts.stages)
    return combine(terms(counts, gpu, inputs), overlap(counts, gpu, inputs))


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


def _us(seconds: float) -> str:
    return units.microseconds(seconds * 1e6)


_UNITS = {"memory": "B", "tensor": "flop", "shared": "B", "l2": "B"}


def _share(key: str, counts: Counts, gpu: GPU, reached: float, busy: float) -> str:
    """The part of a resource's rate that the kernel has, as one more factor in words; nothing where it has all."""
    share = reached * busy
    if key == "memory":
        share = min(1.0, counts.blocks / gpu.spec["sm_count"])
    elif key == "tensor" and counts.waits:
        share = busy
    return "" if share == 1 else f" x {share:.2g}"


def explain(counts: Counts, gpu: GPU) -> str:
    """Term by term: work / (rate x fraction) = time, then the combination, ending in one plain sentence."""
    if counts.stages:
        total, low, high = time_with_interval(counts, gpu)
        each = [f"Kernel {i}, {s.source}\n{explain(s, gpu)}" for i, s in enumerate(counts.stages, start=1)]
        between = units.microseconds_between(low * 1e6, high * 1e6)
        moved = sensitivity.sentence(sensitive(counts, gpu, inputs_of(gpu)))
        return "\n".join(
            [*each, f"{len(each)} kernels, one after the other: {_us(total)} ({between}).", moved]
        )
    known = inputs_of(gpu)
    parts = terms(counts, gpu, known)
    resident = resident_blocks(counts, gpu)
    warps, _ = residency(counts, gpu)
    workers = independent_workers(counts, gpu)
    busy = use(counts.blocks, int(gpu.spec["sm_count"]), resident)
    fill = _fill_bytes(counts, gpu, resident)
    half, issue = (known[key].value for key in onchip_factors(counts))
    reached = warps / (warps + half)
    lines = [
        f"Counts ({'exact' if counts.exact else 'analytic'}): {counts.transforms} transforms, "
        f"{counts.launches} launch{'es' if counts.launches > 1 else ''}",
        f"  work for {counts.blocks} blocks of {counts.threads_per_block} threads, {resident} blocks per SM at once, "
        f"the last wave included {busy:.0%} busy",
        f"  {warps:.3g} warps per SM reach {warps:.3g} / ({warps:.3g} + {half:.3g}) = {reached:.0%} of "
        "the rates on chip",
    ]
    memory, shared, l2 = work(counts, gpu)
    amounts = {"memory": memory, "tensor": counts.mma_flops, "shared": shared + fill, "l2": l2 + fill}
    if counts.stack_bytes_per_thread:
        lines.append(
            f"  {counts.stack_bytes_per_thread} B of a thread do not fit into registers: {counts.local_bytes:.3g} B "
            f"written to local memory and read, {memory - counts.device_bytes:.3g} B of it cross device memory"
        )
    for key, unit in _UNITS.items():
        r, f = known[f"{key}_rate"], known[f"{key}_fraction"]
        part = _share(key, counts, gpu, reached, busy)
        lines.append(
            f"  {key:<7} {amounts[key]:.4g} {unit} / ({r.value:.4g} {unit}/s x {f.value:.3g}{part})"
            f" = {_us(parts[key])}  [{r.origin}]"
        )
    additions = counts.fp32_flops / 32
    lines.append(
        f"  issue   ({counts.warp_instructions - additions:.4g} instr / {known['issue_rate'].value:.4g}/s"
        f" + {additions:.4g} adds / {known['fp32_rate'].value / 64:.4g}/s)"
        f" / ({issue:.3g} x {reached * busy:.2g}) = {_us(parts['issue'])}"
    )
    lines.append(f"  launch  {counts.launches} x {known['launch_us'].value:.3g} us = {_us(parts['launch'])}")
    stages = stages_at_once(counts, known)
    total, low, high = time_with_interval(counts, gpu, known)
    largest = max(parts, key=lambda key: parts[key])
    others = sum(parts[key] for key in OVERLAPPED) - max(parts[key] for key in OVERLAPPED)
    lines.append(
        f"t = largest + others / (1 + {stages:.3g} x {workers:.3g} workers per SM) + launch = "
        f"{_us(max(parts[key] for key in OVERLAPPED))} + {_us(others)} / {1 + stages * workers:.3g} + "
        f"{_us(parts['launch'])} = {_us(total)}"
    )
    lines.append(sensitivity.sentence(sensitive(counts, gpu, known)))
    between = units.microseconds_between(low * 1e6, high * 1e6)
    share = parts[largest] / total
    lines.append(
        sensitivity.bound_sentence(BOUND_NAMES[largest], _us(parts[largest]), share, _us(total), between)
    )
    return "\n".join(lines)


def sensitive(counts: Counts, gpu: GPU, inputs: Inputs) -> list[sensitivity.Sensitivity]:
    """What 10 % more of every input does to the time; shares of a rate move it as the rate does, and are left out."""
    values = {
        key: entry.value
        for key, entry in inputs.items()
        if key != "model_error" and not key.endswith("_fraction")
    }

    def evaluate(moved: dict[str, float]) -> float:
        changed = {key: replace(inputs[key], value=value) for key, value in moved.items()}
        return seconds(counts, gpu, {**inputs, **changed})

    return sensitivity.sensitivities(evaluate, values)
