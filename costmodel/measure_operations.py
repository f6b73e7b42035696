"""Operations of several kernels whose counts are set beside the hardware's counters; see `measure_counters.py`.

Convolution layers, long convolutions, gradients in a filter, filters, layers with an odd number of columns, and the
kernels that measure a GPU. Arrays are so large that what is left in the L2 cache after a launch hardly counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from costmodel.measure_counters import CAPACITY_BYTES, HOPPER, SMS, Case, one_launch
from monarch import Plan

LAYERS = (
    ("fprop", 4096, 96, 32, 3, "fp16", 1),
    ("accgrad", 2048, 96, 32, 3, "fp16", 1),
    ("fprop", 2048, 96, 32, 3, "fp32", 1),
    ("fprop", 4096, 128, 32, 3, "fp16", 128, True),
    ("fprop", 4096, 128, 32, 3, "fp16", 128),
    ("accgrad", 4096, 128, 32, 3, "fp16", 128),
)
"""Pass, S, Cin = Cout, n, k, dtype, groups, and whether spectra are kept; whole maps in tiles of 32 x 32. The last
three are depthwise."""
TILE = (32, 32)
LONG = (
    (2**20, (16, 16, 16, 16, 16), 8, 48, "fp16"),
    (2**20, (16, 16, 16, 16, 16), 8, 48, "fp32"),
)
"""N, factors, B, H and dtype; all sequences in one group."""
LONG_WORKSPACE = 2**32
SHORT = (16, 1024, 32768, 3)
"""B, H, L and taps."""
GRADIENTS = (
    ("gradient_warp", 1024, (32, 32), 65536, "fp16"),
    ("gradient_block", 4096, (16, 16, 16), 16384, "fp16"),
    ("gradient_float", 1024, (4, 16, 16), 65536, "fp32"),
)
"""Family, N, factors, channels and dtype; so many channels that a worker has whole ones."""
WHOLE = (("backward_warp", (32, 32), 65536), ("backward_block", (16, 16, 16), 16384))
"""The same of whole backward passes in one launch, with prepared spectra."""
GRADIENT_BATCH = 4
FILTERS = ((1024, 2**18), (4096, 2**16), (65536, 1024))
"""N and channels: in one launch, short and longer, and in passes through device memory."""
ODD_LAYER = (256, 32768, 16383)
PROBE_BYTES = 2**30
PROBE_WORKERS = {"copy": 2**16, "mma": 2**18, "group": 2**17}
"""Warps of a probe: of products so many that their results are more than the cache holds."""

Prepared = tuple[Callable[[], Any], Callable[[], float], float]


def cases() -> list[Case]:
    """Every case, in the order in which they are run."""
    return [
        *(_layer(*layer) for layer in LAYERS),
        *(_long(*one) for one in LONG),
        _short(),
        *(_gradient(*one) for one in GRADIENTS),
        *(_whole(*one) for one in WHOLE),
        *(_filter(*one) for one in FILTERS),
        _odd_layer(),
        *(_probe(kind) for kind in ("copy", "mma", "group")),
    ]


def _sum(parts: list[tuple[str, int, int]]) -> dict[str, dict[str, int]]:
    """By family, of (family, bytes, tensor instructions) of each launch."""
    found: dict[str, dict[str, int]] = {}
    for family, nbytes, instructions in parts:
        if family:
            mine = found.setdefault(family, {"device_bytes": 0, "tensor_instructions": 0})
            mine["device_bytes"] += nbytes
            mine["tensor_instructions"] += instructions
    return found


# ---- convolution layers --------------------------------------------------------------------------------------
def _layer(
    name: str,
    batch: int,
    channels: int,
    size: int,
    taps: int,
    dtype: str,
    groups: int,
    kept: bool = False,
) -> Case:
    from costmodel.measure_conv2d import Case as Layer

    layer = Layer(batch, channels, channels, size, taps, name, dtype, groups)
    sums = name == "accgrad"
    product = "spectral_gradient" if sums else "spectral_product"
    # Of a gradient in the weights these are few.
    last = "" if sums else "map_inverse"
    launches: tuple[str, ...] = ("map_transform", "map_transform", product, last)
    if dtype == "fp32":
        launches = tuple(f"float_{family}" for family in launches)
    elif kept:
        launches = ("map_transform", "map_transform", "spectral_pointwise", last)
    elif groups > 1:
        launches = ("map_correlation", "") if sums else ("map_convolution",)

    def counts() -> dict[str, dict[str, int]]:
        from costmodel.conv2d_counts import of_steps
        from kernels_numba.conv2d_dispatch import costs, plans
        from kernels_numba.conv2d_geometry import Geometry

        geometry = Geometry.of(layer.shapes["x"], layer.shapes["w"], groups=groups)
        plan = plans(geometry, layer.which, dtype, tile=TILE, fused=not kept)[0]
        # Both transforms are added up, so their order does not matter.
        each = zip(launches, costs(plan), plan.steps(), strict=True)
        return _sum([(family, cost.bytes, of_steps([step]).mma_m16n8k16) for family, cost, step in each])

    def prepare(torch: Any) -> Prepared:
        import kernels_numba
        import reference
        from costmodel import measure_conv2d

        data = measure_conv2d._data(layer, torch, 1)
        settings: dict[str, Any] = {"impl": "fft", "tile": TILE, "groups": groups}
        if kept:
            settings["keep"] = kernels_numba.Conv2dSpectra()
        if sums:
            y = torch.full_like(data["w"], math.nan)

            def call() -> None:
                kernels_numba.conv2d_weight_gradient(
                    data["x"], data["dy"], kernel_size=taps, out=y, **settings
                )
        else:
            y = torch.full_like(data["dy"], math.nan)

            def call() -> None:
                kernels_numba.conv2d(data["x"], data["w"], out=y, **settings)

        def error() -> float:
            exact = measure_conv2d._exact(layer, data, torch)
            found = measure_conv2d._part(layer, y).double() - exact
            return float(found.norm() / exact.norm())

        return call, error, reference.conv2d_bound(dtype, terms=channels)

    return Case(launches, layer.name, counts, prepare)


# ---- long convolutions ---------------------------------------------------------------------------------------
def _long(n: int, factors: tuple[int, ...], batch: int, channels: int, dtype: str) -> Case:
    plan, single = Plan(n, factors), dtype == "fp32"
    launches = ("outer_float", "", "outer_float") if single else ("outer_stage", "fused_block", "outer_stage")

    def counts() -> dict[str, dict[str, int]]:
        from costmodel.counts import MMA_FLOPS, for_plan

        stages = for_plan(plan, batch, channels, dtype=dtype, capacity_bytes=CAPACITY_BYTES).stages
        each = zip(launches, stages, strict=True)
        return _sum([(family, round(s.device_bytes), round(s.mma_flops / MMA_FLOPS)) for family, s in each])

    def prepare(torch: Any) -> Prepared:
        import reference
        from costmodel.measure_long import Long, _error
        from kernels_numba import FFTConv, prepare_filter

        u = torch.randn((batch, channels, n), device="cuda").to(torch.float32 if single else torch.float16)
        k = torch.randn((channels, n), device="cuda", dtype=torch.float64) / math.sqrt(n)
        spectrum = prepare_filter(k, length=n, plan=plan, dtype=dtype)
        convolve = FFTConv(spectrum, batch=batch, workspace=LONG_WORKSPACE)
        y = torch.full_like(u, math.nan)

        def error() -> float:
            some = Long(n, n, 1, 4, dtype=dtype)
            return _error(some, y[-1:, :4], u[-1:, :4], k[:4], torch)

        bound = reference.fft32_bound(n) if single else reference.fftconv_bound(plan.order, dtype)
        return lambda: convolve(u, out=y), error, bound

    shape = f"B={batch};H={channels};N={n};" + "x".join(map(str, factors))
    return Case(launches, shape + (";fp32" if single else ""), counts, prepare)


def _short() -> Case:
    """A few taps for each channel."""
    batch, channels, length, taps = SHORT

    def counts() -> dict[str, int]:
        return {"device_bytes": 2 * 2 * batch * channels * length, "tensor_instructions": 0}

    def prepare(torch: Any) -> Prepared:
        import reference
        from kernels_numba.short_conv import short_conv

        x = torch.randn((batch, channels, length), device="cuda").half()
        w = torch.randn((channels, taps), device="cuda")
        found: dict[str, Any] = {}

        def call() -> None:
            found["y"] = short_conv(x, w)

        def error() -> float:
            padded = torch.nn.functional.pad(x[-1].double(), (taps - 1, 0))
            exact = sum(w[:, t : t + 1].double() * padded[:, t : t + length] for t in range(taps))
            return float((found["y"][-1].double() - exact).norm() / exact.norm())

        return call, error, 2 * reference.unit_roundoff("fp16")

    return one_launch("short_conv", f"B={batch};H={channels};L={length};T={taps}", counts, prepare)


# ---- gradients in a filter -----------------------------------------------------------------------------------
def _gradient(family: str, n: int, factors: tuple[int, ...], channels: int, dtype: str) -> Case:
    batch, plan = GRADIENT_BATCH, Plan(n, factors)
    item = 4 if dtype == "fp32" else 2
    launches = (family, "filter_gradient")

    def counts() -> dict[str, dict[str, int]]:
        from costmodel import gradient_counts
        from kernels_numba import gradient_families

        kernel = gradient_families.family_of(plan, dtype)
        assert kernel is not None
        spec = kernel.make_spec(plan, dtype)
        known: dict[str, Any] = {
            "batch": batch,
            "channels": channels,
            "length": n,
            "units": channels,
            "blocks": 1,
        }
        sums, products = 8 * n * channels, 0
        if dtype != "fp32":
            products = gradient_counts.of_spec(spec, **known)["mma_m16n8k16"]
        read = 2 * item * batch * channels * n
        return _sum([(family, read + sums, products), ("filter_gradient", sums + 4 * n * channels, 0)])

    def prepare(torch: Any) -> Prepared:
        import reference
        from kernels_numba import fftconv_gradients

        kind = torch.float32 if dtype == "fp32" else torch.float16
        u, dy = (torch.randn((batch, channels, n), device="cuda").to(kind) for _ in range(2))
        k = torch.randn((channels, n), device="cuda")
        found: dict[str, Any] = {}

        def call() -> None:
            found["k"] = fftconv_gradients(u, k, dy, plan=plan, needs=("k",)).k

        def error() -> float:
            some = [0, 1, channels // 2, channels - 1]
            x, e = u[:, some].double(), dy[:, some].double()
            exact = torch.fft.irfft((torch.fft.rfft(e) * torch.fft.rfft(x).conj()).sum(0), n=n)
            size = (e.norm(dim=-1) * x.norm(dim=-1)).norm()
            return float((found["k"][some].double() - exact).norm() / torch.maximum(size, exact.norm()))

        if dtype == "fp32":
            return call, error, reference.filter_gradient32_bound(n, terms=batch // 2)
        return call, error, reference.filter_gradient_bound(plan.order, dtype)

    shape = f"B={batch};H={channels};N={n};" + "x".join(map(str, factors))
    return Case(launches, shape + (";fp32" if dtype == "fp32" else ""), counts, prepare)


def _whole(family: str, factors: tuple[int, ...], channels: int) -> Case:
    batch, plan = GRADIENT_BATCH, Plan.of(factors)
    n = plan.n

    def counts() -> dict[str, dict[str, int]]:
        from costmodel import backward_counts
        from kernels_numba import backward_pass

        kernel = backward_pass.family_of(plan)
        assert kernel is not None
        known: dict[str, Any] = {"batch": batch, "channels": channels, "units": channels, "blocks": 1}
        products = backward_counts.of_spec(kernel.make_spec(plan, "fp16"), **known, length=n)["mma_m16n8k16"]
        sums, sequences = 8 * n * channels, 2 * batch * channels * n
        whole = 3 * sequences + 4 * n * channels + sums  # u, dy and du; the spectrum
        return _sum([(family, whole, products), ("filter_gradient", sums + 4 * n * channels, 0)])

    def prepare(torch: Any) -> Prepared:
        import reference
        from kernels_numba import FFTConvGradients, prepare_filter

        u, dy = (torch.randn((batch, channels, n), device="cuda").half() for _ in range(2))
        k = torch.randn((channels, n), device="cuda") / n**0.5
        run = FFTConvGradients(prepare_filter(k, length=n, gradients=True), batch=batch)
        found: dict[str, Any] = {}

        def call() -> None:
            found["u"] = run(u, dy).u

        def error() -> float:
            some = [0, 1, channels // 2, channels - 1]
            of_dy, of_k = (torch.fft.rfft(x[..., some, :].double()) for x in (dy, k))
            exact = torch.fft.irfft(of_dy * of_k.conj(), n=n)
            return float((found["u"][:, some].double() - exact).norm() / exact.norm())

        return call, error, reference.fftconv_bound(plan.order, "fp16")

    shape = f"B={batch};H={channels};N={n};" + "x".join(map(str, factors)) + ";all gradients"
    return Case((family, "filter_gradient"), shape, counts, prepare)


# ---- filters -------------------------------------------------------------------------------------------------
def _filter(n: int, channels: int) -> Case:
    """The transform of filters; in passes, with a workspace for all channels at once."""
    from kernels_numba.filter_transform import factors_of
    from kernels_numba.filter_whole import kernels

    passes = n > 32768
    family = "filter_passes" if passes else kernels(n, n, 1).__name__.rpartition(".")[2]

    def counts() -> dict[str, dict[str, int]]:
        taps, spectrum, points = 4 * n, 4 * n + 4, 4 * n  # of a channel
        if not passes:
            return _sum([(family, channels * (taps + spectrum), 0)])
        # Points are written by every pass, and read by all but the first and at the end.
        crossings = 2 * len(factors_of(n // 2, 32))
        return _sum([(family, channels * (taps + spectrum + crossings * points), 0)])

    def prepare(torch: Any) -> Prepared:
        import reference
        from costmodel.measure_long import Long, _error
        from kernels_numba import FFTConv, filter_transform, prepare_filter
        from kernels_numba.families import default_plan

        plan = default_plan(n)
        k = torch.randn((channels, n), device="cuda") / math.sqrt(n)
        found: dict[str, Any] = {}

        def call() -> None:
            allowed = filter_transform.WORKSPACE_BYTES
            filter_transform.WORKSPACE_BYTES = 4 * n * channels
            try:
                found["spectrum"] = prepare_filter(k, length=n, plan=plan, scaled=True)
            finally:
                filter_transform.WORKSPACE_BYTES = allowed

        def error() -> float:
            u = torch.randn((1, channels, n), device="cuda").half()
            y = torch.full_like(u, math.nan)
            FFTConv(found["spectrum"], batch=1)(u, out=y)
            return _error(Long(n, n, 1, 8), y[:, -8:], u[:, -8:], k[-8:].double(), torch)

        return call, error, reference.fftconv_bound(plan.order, "fp16")

    launches = (family,) * (len(factors_of(n // 2, 32)) + 2 if passes else 1)
    return Case(launches, f"H={channels};N={n}", counts, prepare)


# ---- layers with an odd number of columns --------------------------------------------------------------------
def _odd_layer() -> Case:
    """Both operands are copied to places where rows begin on 16 bytes; x is few."""
    m, n, k = ODD_LAYER

    def counts() -> dict[str, dict[str, int]]:
        from kernels_numba.linear_realign import padded

        return _sum([("linear_realign", 2 * (m + n) * (k + padded(k)), 0)])

    def prepare(torch: Any) -> Prepared:
        from costmodel import measure_linear
        from kernels_numba import Linear
        from kernels_numba.linear_settings import default_choice

        x, w = torch.randn((m, k), device="cuda").half(), torch.randn((n, k), device="cuda").half()
        y = torch.full((m, n), math.nan, device="cuda", dtype=torch.float16)
        choice = default_choice("full", m, n, k, sm_count=SMS, capability=HOPPER)
        layer = Linear(m, n, k, dtype="fp16", choice=choice)

        def error() -> float:
            exact, allowed = measure_linear._exact(x, w[-64:], torch)
            return measure_linear._error(y[:, -64:], exact, allowed, f"full M={m} N={n} K={k}")

        return lambda: layer(x, w, out=y), error, 1.0

    return Case(("linear_realign", "linear_realign", ""), f"M={m};N={n};K={k}", counts, prepare)


# ---- the kernels that measure a GPU --------------------------------------------------------------------------
def _probe(kind: str) -> Case:
    from kernels_numba import group_probes, probes

    spec: Any = group_probes.Spec(256) if kind == "group" else probes.Spec(kind)
    family: Any = group_probes if kind == "group" else probes
    workers = PROBE_WORKERS[kind]
    n = PROBE_BYTES // (4 * probes.SPAN * spec.depth) if kind == "copy" else 7
    turns = 1 if kind == "copy" else 3

    def counts() -> dict[str, int]:
        done = family.work(spec, n, workers, turns)
        read = done["global_read_bytes"] if kind == "copy" else 4 * family.source_words(spec, n, workers)
        products = done["mma_m16n8k16"]
        if kind == "group":  # an instruction is a warp's 16 rows of all columns
            products = products * 8 // spec.columns
        return {"device_bytes": read + done["global_written_bytes"], "tensor_instructions": products}

    def prepare(torch: Any) -> Prepared:
        from kernels_numba import launch, probe_checks

        words = probe_checks.source(spec, n, workers)
        source = torch.from_numpy(words).cuda()
        target = torch.full((family.target_words(spec, n, workers),), -1, device="cuda", dtype=torch.int32)
        run = launch.load(family, spec, 0).launcher(
            workers // spec.warps, (*probes.NAMES, n, workers, turns, 0), probes.NAMES
        )

        def call() -> None:
            run(torch.cuda.current_stream().cuda_stream, source.data_ptr(), target.data_ptr())

        def error() -> float:
            wrong = probe_checks.problem(spec, words, target.cpu().numpy(), n, workers, turns)
            return math.inf if wrong else 0.0

        return call, error, 0.0

    return one_launch(family.__name__.rpartition(".")[2], f"{spec.name};workers={workers}", counts, prepare)
