"""Which way a convolution layer goes: whole maps or tiles by FFT, or the direct library; by a model that counts bytes.

A launch takes as long as the longest of what it does: bytes to and from device memory, products on tensor cores; and
some microseconds more. The direct library is one launch whose operations are the sum's own: it has no spectra, but k^2
times the products. What decides is mostly the bytes of the spectra, so the filters count: [f', f] maps as large as a
tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from kernels_numba.conv2d_float import FEW_COLUMNS
from kernels_numba.conv2d_geometry import Geometry, Pair
from kernels_numba.conv2d_plan import NONE, PASSES, Kept, Plan, can_fuse, candidates
from kernels_numba.conv2d_steps import Source
from kernels_numba.conv2d_tiles import Axis
from kernels_numba.device import LARGEST_SHARED_BYTES

H200_SMS = 132


@dataclass(frozen=True)
class Rates:
    """What a GPU does in a second, as these kernels reach it."""

    memory: float
    """Bytes."""
    tensor: float
    """Flops of products of spectra."""
    direct: float
    """Flops of the library's convolution."""
    launch: float
    """Seconds of a launch beside its work."""
    transform: float
    """Points that transforms make, bytes aside, of tiles of at most 1024 samples,"""
    large_transform: float
    """of larger ones, of which an SM holds fewer,"""
    held: float = 6e11
    """and of those that stay in the registers of a warp (`Plan.fused`)."""
    vector: float = 4.2e13
    """Flops of products of spectra in fp32,"""
    vector_direct: float = 2.8e13
    """of the library's convolution in fp32 (TF32 off),"""
    direct_depthwise: float = 2.8e12
    """of its depthwise kernels,"""
    vector_transform: float = 3.2e11
    """and points of transforms in fp32."""


H200 = Rates(
    memory=3.4e12, tensor=2.75e14, direct=4.4e14, launch=3e-6, transform=4.4e11, large_transform=2.3e11
)
SMALL_TILE = 1024
DIRECT_PASSES = {"forward": 1.0, "input_gradient": 1.2, "weight_gradient": 1.4}
"""How much longer the direct library takes for each pass."""
LIBRARY_TRANSFORMS, LIBRARY_TAPS = 1.2, 5
"""In fp32 the library transforms too, for gradients and for filters of up to so many taps: so much longer than here."""
DEPTHWISE_PASSES = {"forward": 1.0, "input_gradient": 1.8, "weight_gradient": 2.2}
DEPTHWISE_TAPS = (1, 3, 5)
"""Square filters for which the library has depthwise kernels of their own,"""
DEPTHWISE_GAINS = {"forward": 2.4, "input_gradient": 3.6, "weight_gradient": 2.4}
"""and how much faster those are."""
SECTOR = 32
"""Bytes that device memory moves at least."""
CUT_SECTORS = 3
"""Of one row of a tile that other tiles go on beside: sectors written in part are read and written again."""


def rates_for(sm_count: int | None) -> Rates:
    """Rates of a GPU of which only the number of SMs is known: those measured on an H200, per SM."""
    share = (sm_count or H200_SMS) / H200_SMS
    return replace(
        H200,
        memory=H200.memory * share,
        tensor=H200.tensor * share,
        direct=H200.direct * share,
        transform=H200.transform * share,
        large_transform=H200.large_transform * share,
        held=H200.held * share,
        vector=H200.vector * share,
        vector_direct=H200.vector_direct * share,
        direct_depthwise=H200.direct_depthwise * share,
        vector_transform=H200.vector_transform * share,
    )


@dataclass(frozen=True)
class Cost:
    """Of a kind of launch: bytes, flops of products of spectra, and points that are transformed."""

    name: str
    bytes: int
    flops: int
    points: int = 0
    large: bool = False
    """Points of a large tile."""
    single: bool = False
    """In fp32."""
    held: bool = False
    """Points that stay in registers."""

    def terms(self, rates: Rates) -> dict[str, float]:
        """Seconds of what it does, each as if it were alone."""
        if self.single:
            return {
                "device memory": self.bytes / rates.memory,
                "cores": self.flops / rates.vector,
                "transforms": self.points / rates.vector_transform,
            }
        return {
            "device memory": self.bytes / rates.memory,
            "tensor cores": self.flops / rates.tensor,
            "transforms": self.points / self.transform_rate(rates),
        }

    def transform_rate(self, rates: Rates) -> float:
        """Points that half-precision transforms make in a second."""
        if self.held:
            return rates.held
        return rates.large_transform if self.large else rates.transform

    def seconds(self, rates: Rates) -> float:
        """Time of the launch."""
        return max(self.terms(rates).values()) + rates.launch

    def bound(self, rates: Rates) -> str:
        """What most of it is spent on."""
        terms = {**self.terms(rates), "launching": rates.launch}
        return max(terms, key=lambda name: terms[name])


def costs(plan: Plan, kept: Kept = NONE) -> list[Cost]:
    """What the launches of a plan do, one image group after the other added up; the spectra of ``kept`` are there."""
    if plan.fused:
        return _fused_costs(plan)
    geometry, images = plan.geometry, plan.geometry.x_shape[0]
    words, size, single = plan.words(images), plan.element_bytes, plan.dtype == "fp32"
    points = {name: count // plan.point_words for name, count in words.items()}
    sources: list[Source] = {
        "forward": lambda: [plan.source_x(images), plan.source_w()],
        "input_gradient": lambda: [plan.source_dy(images), plan.source_w()],
        "weight_gradient": lambda: [plan.source_dy(images), plan.source_x(images)],
    }[plan.which]()
    found = []
    large = plan.tile[0] * plan.tile[1] > SMALL_TILE
    for name, source in zip("AB", sources, strict=True):
        if source.name in kept:
            continue
        # Every part of a filter sees the images anew, and of the filters its own taps.
        seen = 1 if source.name == "w" else source.parts
        stored = seen * source.images * source.groups * source.channels * source.shape[0] * source.shape[1]
        moved = size * stored + 4 * words[name]
        found.append(Cost(f"transform of {source.name}", moved, 0, points[name], large, single))
    inputs, outputs = geometry.inputs, geometry.outputs
    products = plan.points * images * plan.tiles * geometry.groups * inputs * outputs * plan.part_count
    if single and not plan.pointwise:  # 16 columns at least
        columns = inputs if plan.which != "forward" else outputs
        products = products * max(columns, FEW_COLUMNS) // columns
    # Sums that one group of images leaves to the next are written and read, and so are products in fp32.
    passed = 8 * (plan.batches - 1) * (words.get("S", 0) or (single and words["P"]))
    passed = passed if plan.which == "weight_gradient" else 0
    moved = 4 * (words["A"] + words["B"] + words["P"]) + passed
    found.append(Cost("product", moved, 8 * products, single=single))
    result = {"forward": geometry.y_shape, "input_gradient": geometry.x_shape}.get(
        plan.which, geometry.w_shape
    )
    stored = size * prod(result)
    if plan.which != "weight_gradient" and plan.across.count > 1:
        # Two tiles side by side write parts of the same sectors, at different times.
        stored += CUT_SECTORS * stored * SECTOR // (size * plan.across.step)
    found.append(Cost("inverse transform", 4 * words["P"] + stored, 0, points["P"], large, single))
    return found


def _fused_costs(plan: Plan) -> list[Cost]:
    """All in one launch; of the gradient of the weights the transform back of the sums in a second one."""
    geometry, size = plan.geometry, plan.element_bytes
    maps = geometry.x_shape[0] * plan.tiles * geometry.groups
    read = size * (prod(geometry.x_shape) + prod(geometry.y_shape))
    points = plan.points * maps
    if plan.which != "weight_gradient":
        read += size * prod(geometry.w_shape)
        return [Cost("transforms and product", read, 8 * points, 2 * points, held=True)]
    sums = 4 * plan.words(plan.images)["S"]
    return [
        Cost("transforms and product", read + sums, 8 * points, 2 * points, held=True),
        Cost("inverse transform", sums + size * prod(geometry.w_shape), 0, plan.points * geometry.groups),
    ]


def seconds(plan: Plan, rates: Rates, kept: Kept = NONE) -> float:
    """Time of a pass by FFT; the spectra of ``kept`` are there."""
    found = costs(plan, kept)
    extra = (plan.launches(kept) - len(found)) * rates.launch
    return sum(cost.seconds(rates) for cost in found) + extra


def is_depthwise(geometry: Geometry) -> bool:
    """Whether each channel has a filter of its own."""
    return geometry.inputs == geometry.outputs == 1


def direct_seconds(geometry: Geometry, rates: Rates, which: str = "forward", dtype: str = "fp16") -> float:
    """Time of a pass by the direct library.

    Its kernels for halves want channels last: images of channels first are copied there and back. They fill up
    channels of the input to 32 in a group and those of the result to 64. Depthwise layers have kernels of their own,
    on ordinary cores.
    """
    size = 4 if dtype == "fp32" else 2
    moved = size * sum(prod(shape) for shape in (geometry.x_shape, geometry.w_shape, geometry.y_shape))
    if is_depthwise(geometry):
        kh, kw = geometry.w_shape[2:]
        own = kh == kw and kh in DEPTHWISE_TAPS
        rate = rates.direct_depthwise * (DEPTHWISE_GAINS[which] if own else 1)
        return max(moved / rates.memory, DEPTHWISE_PASSES[which] * geometry.flops / rate) + rates.launch
    if dtype == "fp32":
        flops = DIRECT_PASSES[which] * geometry.flops
        return max(moved / rates.memory, flops / rates.vector_direct) + rates.launch
    waste = 1.0
    for channels, unit in ((geometry.inputs, 32), (geometry.outputs, 64)):
        waste *= -(-channels // unit) * unit / channels
    work = max(moved / rates.memory, waste * DIRECT_PASSES[which] * geometry.flops / rates.direct)
    copied = 2 * size * (prod(geometry.x_shape) + prod(geometry.y_shape))
    return work + copied / rates.memory + rates.launch


def plans(
    geometry: Geometry,
    which: str,
    dtype: str,
    *,
    tile: int | Pair | None = None,
    parts: Pair | None = None,
    memory: int | None = None,
    ample: int | None = None,
    shared_limit: int = LARGEST_SHARED_BYTES,
    fused: bool = True,
) -> list[Plan]:
    """All ways to do a pass by FFT within ``memory`` bytes of spectra; with ``parts``, those of so many of the filter.

    ``fused``: in one launch where that can be; else spectra are there, to be given or kept.

    Without such a limit, those within ``ample`` bytes, or if there are none, those that need least.

    Raises ``ValueError`` where there is none: tiles that do not exist, or too little memory; the message says what
    would do.
    """
    found = [way for way in candidates(geometry, which) if parts in (None, way[2])]
    if tile is not None:
        wanted = tile if isinstance(tile, tuple) else (tile, tile)
        found = [way for way in found if (way[0].size, way[1].size) == wanted]
        if not found:
            accepted = sorted({(d.size, a.size) for d, a, _ in candidates(geometry, which)})
            raise ValueError(
                f"tile: accepted for this layer are {', '.join(f'{r}x{c}' for r, c in accepted)}; got {tile!r}"
            )
    limit = ample if memory is None else memory
    made = [_within(geometry, which, dtype, way, limit, shared_limit, fused=fused) for way in found]
    fitting = [plan for plan, _ in made if plan is not None]
    if not fitting:
        least = min(nbytes for _, nbytes in made)
        if memory is None:
            again = {
                "tile": tile,
                "parts": parts,
                "memory": least,
                "shared_limit": shared_limit,
                "fused": fused,
            }
            return plans(geometry, which, dtype, **again)  # type: ignore[arg-type]
        raise ValueError(
            f"memory: the spectra of this layer need at least {least} bytes (one image at a time); got a limit of "
            f"{memory}"
        )
    return fitting


def _within(
    geometry: Geometry,
    which: str,
    dtype: str,
    way: tuple[Axis, Axis, Pair],
    memory: int | None,
    shared_limit: int,
    *,
    fused: bool,
) -> tuple[Plan | None, int]:
    """The plan of a tiling that obeys the limit, and the bytes it needs at least."""
    total = max(geometry.x_shape[0], 1)
    down, across, parts = way
    plan = Plan(geometry, which, dtype, down, across, total, shared_limit, parts)
    if fused and can_fuse(plan):
        plan = replace(plan, fused=True)
        return (plan if memory is None or plan.bytes <= memory else None), plan.bytes
    if memory is None or plan.bytes <= memory:
        return plan, plan.bytes
    one = replace(plan, images=1)
    fixed = 4 * sum(one.words(0).values())
    images = (memory - fixed) // (one.bytes - fixed)
    if images < 1:
        return None, min(plan.bytes, one.bytes)
    # As many groups as that needs, of equal size.
    return replace(plan, images=-(-total // -(-total // min(images, total)))), one.bytes


def best(found: list[Plan], rates: Rates) -> Plan:
    """The plan that the model says is fastest."""
    return min(found, key=lambda plan: (seconds(plan, rates), plan.bytes))


@dataclass(frozen=True)
class Explanation:
    """Which way a pass goes, and why. Times are microseconds of the model."""

    which: str
    impl: str
    """"fft" or "direct"."""
    plan: Plan | None
    """The best plan by FFT, if there is one,"""
    fft_us: float | None
    direct_us: float
    launches: tuple[tuple[str, int, int, float], ...]
    """and of its launches name, bytes, flops and time."""
    obstacle: str = ""
    """Why there is no plan."""

    @property
    def margin(self) -> float | None:
        """How much slower the other way would be: 0.5 is half as long again."""
        if self.fft_us is None:
            return None
        return max(self.fft_us, self.direct_us) / min(self.fft_us, self.direct_us) - 1

    def __str__(self) -> str:
        if self.plan is None:
            return f"{self.which}: direct, {self.direct_us:.0f} us; no FFT: {self.obstacle}"
        rows, columns = self.plan.tile
        held = f"{self.plan.bytes / 1e6:.1f} MB of " + ("sums" if self.plan.fused else "spectra")
        lines = [
            f"{self.which}: {self.impl}; by FFT {self.fft_us:.0f} us, direct {self.direct_us:.0f} us (model)",
            f"  FFT in tiles of {rows} x {columns}, {self.plan.tiles} an image, {self.plan.images} images at once, "
            + held,
        ]
        if self.plan.part_count > 1:
            lines.append(
                "  filter in {} x {} parts of {} x {} taps".format(*self.plan.parts, *self.plan.part_taps)
            )
        lines += [
            f"  {name}: {nbytes / 1e6:.1f} MB, {flops / 1e9:.1f} GFLOP, {us:.0f} us"
            for name, nbytes, flops, us in self.launches
        ]
        return "\n".join(lines)


def explain(
    geometry: Geometry,
    which: str,
    dtype: str,
    *,
    sm_count: int | None = None,
    rates: Rates | None = None,
    tile: int | Pair | None = None,
    memory: int | None = None,
    ample: int | None = None,
    shared_limit: int = LARGEST_SHARED_BYTES,
    direct: bool = True,
) -> Explanation:
    """Choose for one pass, with given rates or those of so many SMs; ``direct``: whether the library can be reached."""
    if which not in PASSES:
        raise ValueError(f"which: expected one of {', '.join(PASSES)}; got {which!r}")
    rates = rates or rates_for(sm_count)
    direct_us = 1e6 * direct_seconds(geometry, rates, which, dtype)
    try:
        found = plans(
            geometry, which, dtype, tile=tile, memory=memory, ample=ample, shared_limit=shared_limit
        )
    except ValueError as error:
        if not direct:
            raise
        return Explanation(which, "direct", None, None, direct_us, (), str(error))
    plan = best(found, rates)
    fft_us = 1e6 * seconds(plan, rates)
    transforms = which != "forward" or max(geometry.w_shape[2:]) <= LIBRARY_TAPS
    if dtype == "fp32" and transforms and not is_depthwise(geometry):
        direct_us = min(direct_us, LIBRARY_TRANSFORMS * fft_us)
    launches = tuple((c.name, c.bytes, c.flops, 1e6 * c.seconds(rates)) for c in costs(plan))
    impl = "direct" if direct and direct_us < fft_us else "fft"
    return Explanation(which, impl, plan, fft_us, direct_us, launches)
