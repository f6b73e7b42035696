"""Times of the gradients of a convolution: `timing`'s law for the kernels that sum over the batch, and what is around.

A backward pass is one kernel, where that makes all gradients at once (`backward_counts`); else the gradient in the
filter, which is one kernel that sums conj(Z) W (`gradient_counts`), and a convolution for every other gradient (one
with two results for those in the signal and its gate). Around these are a kernel that brings the sums back to taps,
and, where it starts from taps, the transform of the filter for each of the two spectra,

    t_back = t_b + bytes / rate,      t_filter = t_f + points / r_f   (one launch, up to 32768 points)
                                      t_filter = bytes / (share of the copy rate)   (passes through device memory)

whose launches are short of blocks: they wait for their own results. Their figures, and how much more of L2 the kernels
of the filter's gradient reach than those of the convolution, were found on an H200 (`GRADIENT`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from costmodel import backward_counts, gradient_counts, timing
from costmodel import counts as counting
from costmodel.counts import MMA_FLOPS, Counts, instructions
from costmodel.gpus import GPU
from monarch import Plan

NEEDS = ("u", "k", "pregate", "postgate")
FITTED_GPU = "h200-sxm"
RELATIVE_ERROR, RELATIVE_ERROR_ELSEWHERE = 0.12, 0.3
"""Of a pass's time, where the figures were found and on other GPUs."""
REGISTERS_PER_SM = 65536
ON_CHIP = 32768
"""Points of the longest filter that is transformed in one launch."""
PASSES = 3
"""Of a longer one through device memory, each with a write, and as many reads, of which one is at the end."""
TURN_WORDS = {2: 5, 3: 8}
"""Words a point that are rounded or moved, by order, as for the convolution;"""
ROUNDED = {2: (3, 1), 3: (5, 2)}
"""and of these, where tensor cores round, what they spare of u's and dy's transforms, and of each one back."""


@dataclass(frozen=True)
class Figures:
    """What was found on measurements."""

    l2: float
    """How much more of L2's rate is reached than by convolutions."""
    back_start_s: float
    back_bytes_per_s: float
    filter_start_s: float
    filter_points_per_s: float
    pass_share: float
    """Of the copy rate, of a filter's passes through device memory."""


GRADIENT = Figures(1.0, 4.4e-6, 1.1e13, 6.2e-6, 1.47e11, 0.95)


def shares(workers: int, parts: int, pairs: int, channels: int) -> int:
    """Into how many shares a channel's pairs go for so many workers (`kernels_numba.filter_sums`)."""
    counts = (-(-pairs // per_share) for per_share in range(pairs, 0, -1))
    return min(counts, key=lambda n: (-(-channels * parts * n // workers) * (-(-pairs // n) + 1), n))


def sums_counts(
    plan: Plan, batch: int, channels: int, *, dtype: str, gated: bool, gpu: GPU
) -> tuple[Counts, int]:
    """Counts of the kernel that sums conj(Z) W over the batch, and into how many shares the batch goes.

    Raises:
        ValueError: no such kernel of half precision runs the plan.
    """
    from kernels_numba import gradient_families

    family = gradient_families.family_of(plan, dtype)
    if family is None or dtype == "fp32":
        raise ValueError(f"plan: no kernel of {dtype} for the filter's gradient is counted for {plan}")
    length, n = plan.signal or plan.n, plan.n
    limit = int(gpu.spec["shared_memory_per_block_bytes"])
    spec: Any = family.make_spec(
        plan, dtype, pregate=gated, postgate=gated, guarded=length < n, shared_limit=limit
    )
    block, count, known = _launch(family, spec, batch, channels, gpu)
    found = gradient_counts.of_spec(spec, **known, length=length, pregate=gated, postgate=gated)
    pairs = (batch + 1) // 2
    sequences = sum(found[f"read_{name}"] for name in ("u", "dy", "pregate", "postgate"))
    sums = found["written_sums"] + found.get("read_sums", 0)
    turns, points = channels * pairs * spec.parts, n // spec.parts
    shared = found["shared_read_bytes"] + found["shared_written_bytes"]
    counts = Counts(
        device_read_bytes=sequences / spec.parts,  # every part reads all, most of it from L2
        device_write_bytes=8 * plan.points * channels * count,
        mma_flops=MMA_FLOPS * found["mma_m16n8k16"],
        half_flops=found["half_flops"],
        fp32_flops=found["fp32_flops"],
        shared_bytes=shared,
        l2_bytes=sequences + sums + found.get("read_tables", 0),
        warp_instructions=instructions(
            products=found["mma_m16n8k16"],
            fp32_flops=found["fp32_flops"],
            half_flops=found["half_flops"],
            words=turns * (TURN_WORDS[plan.order] - spec.rounded * (plan.order + 1)) * points,
            accesses=(shared + sequences + sums) / 400,
        ),
        transforms=2 * turns,
        launches=1,
        fill_bytes_per_block=0,
        barriers_per_transform=0.0 if plan.order == 2 else 1.0,
        exact=True,
        source=f"gradient_counts: order {plan.order}",
        **block,
    )
    return counts, count


def whole_counts(
    plan: Plan, batch: int, channels: int, *, dtype: str, gated: bool, gpu: GPU
) -> tuple[Counts, int]:
    """The same of the kernel that makes all gradients at once, if there is one for the plan."""
    from kernels_numba import backward_pass

    family = backward_pass.family_of(plan)
    if family is None:
        raise ValueError(f"plan: no kernel makes all gradients at once for {plan}")
    length, n = plan.signal or plan.n, plan.n
    gates: dict[str, bool] = {"pregate": gated, "postgate": gated}
    spec: Any = family.make_spec(
        plan,
        dtype,
        scaled=True,
        guarded=length < n,
        shared_limit=int(gpu.spec["shared_memory_per_block_bytes"]),
        **gates,
    )
    block, count, known = _launch(family, spec, batch, channels, gpu)
    found = backward_counts.of_spec(spec, **known, length=length)
    sequences, arrays = 2 * batch * channels * length, 2 if gated else 1
    read = sum(n for name, n in found.items() if name.startswith("read_"))
    written = sum(n for name, n in found.items() if name.startswith("written_"))
    shared = found["shared_read_bytes"] + found["shared_written_bytes"]
    items, back = channels * ((batch + 1) // 2), 2 if gated else 1
    there, again = ROUNDED[plan.order]
    counts = Counts(
        device_read_bytes=2 * arrays * sequences + 4 * back * plan.points * channels,
        device_write_bytes=written,
        mma_flops=MMA_FLOPS * found["mma_m16n8k16"],
        half_flops=found["half_flops"],
        fp32_flops=found["fp32_flops"],
        shared_bytes=shared,
        l2_bytes=read + written,
        warp_instructions=instructions(
            products=found["mma_m16n8k16"],
            fp32_flops=found["fp32_flops"],
            half_flops=found["half_flops"],
            words=items
            * n
            * (TURN_WORDS[plan.order] * (2 + back) / 2 - spec.rounded * (there + back * again)),
            accesses=(shared + read + written) / 400,
        ),
        transforms=(2 + back) * items,
        launches=1,
        fill_bytes_per_block=0,
        barriers_per_transform=0.0 if plan.order == 2 else 3 / (2 + back),
        exact=True,
        source=f"backward_counts: order {plan.order}",
        **block,
    )
    return counts, count


def _launch(
    family: Any, spec: Any, batch: int, channels: int, gpu: GPU
) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """What `Counts` say of a block, the shares of the batch, and what counts ask of the launch."""
    threads, sms = 32 * spec.warps, int(gpu.spec["sm_count"])
    registers = min(255, REGISTERS_PER_SM // (threads * family.min_blocks(spec)) // 8 * 8)
    room = int(gpu.spec["shared_memory_per_sm_bytes"]) // (spec.shared_bytes + 1024)
    resident = max(1, min(REGISTERS_PER_SM // (registers * threads), room))
    per_block = family.workers(spec)
    count = shares(sms * resident * per_block, spec.parts, (batch + 1) // 2, channels)
    units = channels * spec.parts * count
    blocks = -(-units // per_block)
    known = {"batch": batch, "channels": channels, "units": units, "blocks": min(sms * resident, blocks)}
    block: dict[str, Any] = {
        "blocks": blocks,
        "threads_per_block": threads,
        "shared_bytes_per_block": spec.shared_bytes,
        "registers_per_thread": registers,
        "workers_per_block": per_block,
    }
    return block, count, known


@dataclass(frozen=True)
class Pass:
    """What a backward pass does."""

    sums: Counts
    """What sums, and, if it makes all gradients at once, all that."""
    back_bytes: int
    """Of sums and of the filter's gradient."""
    convolution: Counts
    convolutions: int
    twice: int
    """How many of these store their result under two gates,"""
    sequences: int
    """bytes of all sequences, which each such run reads and writes once more."""
    filters: int
    """Transforms of the filter,"""
    filter_points: int
    """points of all channels' filters,"""
    in_passes: bool
    """and whether they go through device memory."""


def work(
    n: int,
    length: int,
    batch: int,
    channels: int,
    *,
    gpu: GPU,
    dtype: str = "fp16",
    gated: bool = False,
    prepared: bool = False,
    needs: tuple[str, ...] = NEEDS,
) -> Pass:
    """What a backward pass does: N points, L samples; ``prepared``: both spectra are there.

    Raises:
        ValueError: a gradient without the filter's among ``needs``, or no kernel for the length.
    """
    from kernels_numba import backward_pass, families, gradient_families

    if "k" not in needs:
        raise ValueError(f"needs: got {', '.join(needs)}; accepted: k, and others beside it")
    limit = int(gpu.spec["shared_memory_per_block_bytes"])
    plans = gradient_families.default_plans(limit, dtype)
    if n not in plans:
        raise ValueError(f"N: got {n}; accepted: {', '.join(map(str, plans))}")
    signal = {"signal": length, "wanted": length} if length < n else {}
    summed = plans[n]
    if 2 * length <= n and dtype != "fp32":
        summed = gradient_families.turned_plans(limit).get(n, summed)
    plan = families.default_plans(halved=2 * length <= n, dtype=dtype)[n].with_(**signal)
    variant = "gated" if gated else "plain"
    others = [name for name in needs if name == "u" or (gated and name in ("pregate", "postgate"))]
    wanted = len(others) == (3 if gated else 1)
    spectra_of = plan if prepared else summed  # from taps, spectra are made as one kernel wants them
    at_once = wanted and dtype != "fp32" and backward_pass.runs(spectra_of, summed, gated=gated, limit=limit)
    counted = whole_counts if at_once else sums_counts
    sums, count = counted(summed.with_(**signal), batch, channels, dtype=dtype, gated=gated, gpu=gpu)
    twice = int("u" in others and "pregate" in others)  # one run for both
    spectra = {"u": "adjoint", "pregate": "adjoint", "postgate": "forward"}
    return Pass(
        sums,
        channels * (8 * summed.points * count + 4 * length),
        counting.for_plan(plan, batch, channels, dtype=dtype, variant=variant, capacity_bytes=float(limit)),
        0 if at_once else len(others) - twice,
        0 if at_once else twice,
        (4 if dtype == "fp32" else 2) * batch * channels * length,
        0 if prepared else len({spectra[name] for name in others}),
        channels * n,
        n > ON_CHIP,
    )


def seconds(done: Pass, gpu: GPU, inputs: timing.Inputs, figures: Figures = GRADIENT) -> float:
    """The time of a backward pass."""
    l2 = inputs["l2_fraction"]
    moved = {**inputs, "l2_fraction": replace(l2, value=min(1.0, l2.value * figures.l2))}
    time = timing.seconds(done.sums, gpu, moved)
    time += figures.back_start_s + done.back_bytes / figures.back_bytes_per_s
    if done.convolutions:
        once, moved_too = done.convolution, 2 * done.sequences
        both = replace(
            once,
            device_read_bytes=once.device_read_bytes + done.sequences,
            device_write_bytes=once.device_write_bytes + done.sequences,
            l2_bytes=once.l2_bytes + moved_too,
        )
        time += (done.convolutions - done.twice) * timing.seconds(once, gpu, inputs)
        time += done.twice * timing.seconds(both, gpu, inputs) if done.twice else 0.0
    if done.in_passes:  # taps, half as many points (8 bytes) there and back, and the spectrum
        nbytes = done.filter_points * (4 + 4 * 2 * PASSES + 4)
        one = nbytes / (figures.pass_share * inputs["memory_rate"].value)
    else:
        one = figures.filter_start_s + done.filter_points / figures.filter_points_per_s
    return time + done.filters * one


def relative_error(gpu: GPU) -> float:
    """Of a pass's time on a GPU."""
    return RELATIVE_ERROR if gpu.slug == FITTED_GPU else RELATIVE_ERROR_ELSEWHERE
