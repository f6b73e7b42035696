"""What a fused convolution does: bytes per memory level, flops per pipe, launches, blocks, barriers.

`analytic` counts any plan under one idea of a kernel, so that plans that nobody has written yet can be
compared:

* fp16/bf16 input is read once and the output written once; the filter's spectrum is read once per channel;
* each stage multiplies by the N_i x N_i DFT matrix in cosine/sine form, [cosines; sines] of half the height
  each, and adds and subtracts the mirrored outputs: 4 P N_i real flops forward and as many inverse, half of a
  plain complex product, for the P points of one transform (which carries two real sequences when packing is
  "pair"). The tensor core works on 16 x 16 tiles: a factor that is not a multiple of 16 is padded in rows and
  in the contraction, which multiplies its work by (ceil16(N_i) / N_i)^2;
* where axis 1 is partly zero (signal < n) or partly unwanted, its dead 16-row tiles are skipped;
* twiddles and the filter are complex multiplies in half precision: 6 flops a point, 2(p-1)+1 times; with
  half-length packing the filter is two, applied to a frequency and its mirror, and takes 14;
* the last two stages chain in registers while their product is at most 1024 (each factor at most 32); every
  other boundary goes through shared memory (4 bytes a point written and read, forward and inverse) and
  costs a barrier;
* DFT matrices are read from shared memory once per 32 columns, the chained stages' twiddles once per direction;
  the twiddles of other stages and, unless a warp keeps it in registers, the spectrum come through the caches;
* each block fetches its constants once;
* instructions: one for each product, for 32 additions, for 96 half-precision flops (complex products of packed
  pairs), for 32 words that are rounded or moved between registers, and for each access of 8 or 16 bytes a lane;
* a transform that does not fit in a block's shared memory makes one extra trip through device memory per
  outer stage and direction (4 bytes a point written and read), in a launch of its own.

Where this project has a kernel for a plan, `for_plan` prefers that kernel's exact counts, which are tested
against the counters of its CPU body (costmodel.kernel_counts).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import ceil, prod
from typing import Any, Protocol

from costmodel.gpus import has_instructions
from monarch import Plan, format_factors

ITEM_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4}
COMPLEX_HALF_BYTES = 4
PRODUCT_FLOPS = 4  # per point and N_i, one direction
GATED = ("gated", "causal-gated")
VARIANTS = ("plain", "causal", "gated", "causal-gated")
TILE = 16
WARP_POINTS = 1024
MMA_FLOPS = 4096


@dataclass(frozen=True)
class Counts:
    """Work of one call, all launches together, unless a name says otherwise.

    ``shared_bytes`` and ``l2_bytes`` leave out what each block fetches once, ``fill_bytes_per_block``. ``blocks``
    are portions of work: on a GPU that holds fewer at once, each block takes several. ``workers_per_block`` go
    through their stages independently of each other: its warps, or the block as a whole.
    """

    device_read_bytes: float
    device_write_bytes: float
    mma_flops: float
    half_flops: float
    fp32_flops: float
    shared_bytes: float
    l2_bytes: float
    warp_instructions: float
    transforms: int
    launches: int
    blocks: int
    threads_per_block: int
    shared_bytes_per_block: int
    registers_per_thread: int
    workers_per_block: int
    fill_bytes_per_block: float
    barriers_per_transform: float
    exact: bool = False
    source: str = "analytic"
    waits: bool = False
    """Whether a worker waits for each of its products: then its own stages do not overlap, only other workers do."""
    in_step: bool = False
    """Whether the blocks of an SM go through their stages together, so that more of them overlap no more."""
    capability: str = ""
    """The only compute capability that has the kernel's instructions; empty: all have."""
    stages: tuple[Counts, ...] = ()
    """Kernels that run one after the other, if there are several; the figures above are then of all together."""
    stack_bytes_per_thread: int = 0
    """What does not fit into registers, and is kept in local memory (`local_memory`),"""
    local_bytes: float = 0.0
    """and what is written there, all in all, and read again."""
    arithmetic: str = "half"
    """``"half"``: products on tensor cores. ``"fp32"``: an FFT on CUDA cores, whose flops are its instructions."""

    @property
    def device_bytes(self) -> float:
        """Bytes that cross device memory, read plus written."""
        return self.device_read_bytes + self.device_write_bytes

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)


class KernelCounts(Protocol):
    """The exact counts of this project's kernel for a plan, or None where it has no such kernel."""

    def __call__(
        self, plan: Plan, batch: int, channels: int, *, dtype: str, variant: str, capacity_bytes: float
    ) -> Counts | None:
        """Counts of one call on input [batch, channels, plan.signal]; ``capacity_bytes`` a block can have."""
        ...


_registry: list[KernelCounts] = []


def register(source: KernelCounts) -> KernelCounts:
    """Add a source of exact counts; later ones are asked first. Usable as a decorator."""
    if source not in _registry:
        _registry.insert(0, source)
    return source


@lru_cache(maxsize=1)
def _shipped() -> Callable[..., Counts | None] | None:
    if importlib.util.find_spec("costmodel.kernel_counts") is None:
        return None
    module = importlib.import_module("costmodel.kernel_counts")
    found: Callable[..., Counts | None] = module.kernel_counts
    return found


def for_plan(
    plan: Plan,
    batch: int,
    channels: int,
    *,
    dtype: str = "fp16",
    variant: str = "plain",
    capacity_bytes: float,
    capability: str = "",
) -> Counts:
    """Exact counts where a kernel exists for the plan (on GPUs of ``capability``, if given), else `analytic`.

    Raises ``ValueError`` for a plan of fp32 without a kernel, which the idea of `analytic` does not cover.
    """
    shipped = _shipped()
    sources = (*_registry, *([shipped] if shipped else []))
    for source in sources if not capability or has_instructions(capability) else ():
        exact = source(plan, batch, channels, dtype=dtype, variant=variant, capacity_bytes=capacity_bytes)
        if exact is not None and (not capability or exact.capability in ("", capability)):
            return exact
    if dtype == "fp32" and capability and not has_instructions(capability):
        raise ValueError(
            f"dtype: got 'fp32' on compute capability {capability}, where no kernel of this project runs, and other "
            "plans of fp32 are not counted; accepted: fp16, bf16"
        )
    if dtype == "fp32":
        raise ValueError(
            f"plan: no fp32 kernel runs {format_factors(plan.factors)} with packing {plan.packing!r}, and other plans "
            "of fp32 are not counted; accepted: those of costmodel.float_counts.factor_lists"
        )
    return analytic(plan, batch, channels, dtype=dtype, variant=variant, capacity_bytes=capacity_bytes)


def instructions(
    *,
    products: float,
    fp32_flops: float,
    half_flops: float,
    words: float,
    accesses: float,
    half_additions: float = 0,
) -> float:
    """Warp instructions: ``words`` of 32 bits that are rounded to or moved between registers, ``accesses``.

    ``half_additions``: of ``half_flops``, those by themselves, an instruction for 64.
    """
    other = half_flops - half_additions
    return products + fp32_flops / 32 + other / 96 + half_additions / 64 + words / 32 + accesses


def bytes_minimum(length: int, wanted: int, batch: int, channels: int, *, dtype: str, variant: str) -> int:
    """Bytes that must cross device memory once: the input, the output, and the gates if there are any."""
    gates = wanted + length if variant in GATED else 0
    return batch * channels * (length + wanted + gates) * ITEM_BYTES[dtype]


def padded_work(factor: int, tile: int = TILE) -> float:
    """The N_i of the tensor core's work: N_i for multiples of 16, else ceil16(N_i)^2 / N_i."""
    full = ceil(factor / tile) * tile
    return full * full / factor


def outer_stages(factors: tuple[int, ...], capacity_bytes: float) -> int:
    """How many leading stages work on sequences that do not fit in one block's shared memory."""
    for stage in range(len(factors)):
        rest = factors[stage:]
        matrices = sum(COMPLEX_HALF_BYTES * n * n for n in set(rest) if n > TILE)
        if COMPLEX_HALF_BYTES * prod(rest) + matrices <= capacity_bytes:
            return stage
    return len(factors)


def _exchanges(inner: tuple[int, ...]) -> int:
    """Stage boundaries (one direction) of the on-chip part that go through shared memory."""
    boundaries = max(0, len(inner) - 1)
    chained = boundaries and max(inner[-2:]) <= 32 and prod(inner[-2:]) <= WARP_POINTS
    return boundaries - 1 if chained else boundaries


def _shape(points: int, block_bytes: int, capacity_bytes: float) -> tuple[int, int]:
    """(warps, registers per thread) of a block, as the kernels that exist have them."""
    if points <= WARP_POINTS:
        return 4, 72 if points <= 256 else 112 if points <= 512 else 168
    if points <= 8192:
        return 8, 128
    return 4 if 2 * block_bytes <= capacity_bytes else 8, 255


def analytic(
    plan: Plan,
    batch: int,
    channels: int,
    *,
    dtype: str = "fp16",
    variant: str = "plain",
    capacity_bytes: float,
) -> Counts:
    """Counts of ``plan`` under the kernel idea in this module's text, on input [B, H, plan.signal]."""
    points, factors, order = plan.points, plan.factors, plan.order
    length = plan.n if plan.signal is None else plan.signal
    wanted = plan.n if plan.wanted is None else plan.wanted
    transforms = ceil(batch / plan.sequences_per_transform) * channels
    outer = outer_stages(factors, capacity_bytes)
    inner = factors[outer:]
    inner_points = prod(inner)

    tiles = ceil(factors[0] / TILE)
    live = (plan.live_input_tiles() + plan.live_output_tiles()) / (2 * tiles)
    work = sum(padded_work(f) for f in factors[1:]) + padded_work(factors[0]) * live
    mma = 2 * PRODUCT_FLOPS * points * work
    multiplies = 2 * (order - 1) + 1
    half = 6 * points * multiplies
    mirrored = 4 * points * order  # additions of mirrored outputs
    spectrum = COMPLEX_HALF_BYTES * points
    if plan.packing == "half":  # the filter multiplies the mirrored frequency too: 14 flops, two spectra
        half += 8 * points
        spectrum *= 2
    if variant in GATED:
        half += plan.sequences_per_transform * (length + wanted)

    exchanges = _exchanges(inner)
    one_warp = inner_points <= WARP_POINTS
    per_block = 4 if one_warp else 1
    chained = max(0, len(inner) - 1 - exchanges)
    matrices = sum(4 * f * f * ceil(points / (32 * f)) for f in inner)
    twiddles = 2 * COMPLEX_HALF_BYTES * points
    staged = twiddles
    shared: float = 2 * exchanges * 2 * COMPLEX_HALF_BYTES * points + matrices + chained * twiddles + staged
    if variant in GATED:  # gates of the input, and of one warp those of the output, go the input's way
        shared += (2 if one_warp else 1) * staged
    cached = (order - 1 - chained) * twiddles + (0 if one_warp else spectrum)

    constants = sum(4 * f * f for f in inner)
    constants += 2 * COMPLEX_HALF_BYTES * (inner_points if one_warp else prod(inner[-2:])) * chained
    block_bytes = constants + COMPLEX_HALF_BYTES * inner_points * (
        2 * per_block if inner_points <= 8192 else 1
    )
    warps, registers = _shape(inner_points, block_bytes, capacity_bytes)
    trips = 2 * outer * transforms * COMPLEX_HALF_BYTES * points
    parts = 2 if plan.packing == "complex" else 1  # numbers in one sample
    minimum = parts * bytes_minimum(length, wanted, batch, channels, dtype=dtype, variant=variant)
    written = parts * batch * channels * wanted * ITEM_BYTES[dtype]
    per_transform = instructions(
        products=mma / MMA_FLOPS,
        fp32_flops=mirrored,
        half_flops=half,
        words=3 * order * points,
        accesses=(shared + cached + minimum / transforms) / 400 + 2 * trips / transforms / 512,
    )
    return Counts(
        device_read_bytes=minimum - written + channels * spectrum + trips,
        device_write_bytes=written + trips,
        mma_flops=transforms * mma,
        half_flops=transforms * half,
        fp32_flops=transforms * mirrored,
        shared_bytes=transforms * shared,
        l2_bytes=minimum + 2 * trips + transforms * cached,
        warp_instructions=transforms * per_transform,
        transforms=transforms,
        launches=2 * outer + 1,
        blocks=ceil(transforms * (points // inner_points) / per_block),
        threads_per_block=32 * warps,
        shared_bytes_per_block=min(block_bytes, int(capacity_bytes)),
        registers_per_thread=registers,
        workers_per_block=per_block,
        fill_bytes_per_block=constants + (COMPLEX_HALF_BYTES * points * per_block if one_warp else 0),
        barriers_per_transform=0.0 if one_warp else (2.0 * exchanges + 1) * (points // inner_points),
    )
