"""The launches whose counts are set beside the hardware's counters (`counters.py`): some for every kernel family.

Kernels that are launched alone are here, operations of several kernels in `measure_operations.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from costmodel.errors import MeasurementError

PHI, BOUNDS = 0.0, (-40.0, 40.0)


@dataclass(frozen=True)
class Case:
    """One call: the kernel family of each of its launches, its shape in words, the model's counts, how to make it."""

    launches: tuple[str, ...]
    """Families in the order of launches; empty for one that is not judged (what it moves stays in the L2 cache)."""
    name: str
    counts: Callable[[], dict[str, dict[str, int]]]
    """By family, of its launches together."""
    prepare: Callable[[Any], tuple[Callable[[], Any], Callable[[], float], float]]
    """Given PyTorch: the call, its error afterwards on a part of the result, and the bound of that."""

    @property
    def families(self) -> tuple[str, ...]:
        """Those that are judged."""
        return tuple(dict.fromkeys(name for name in self.launches if name))

    @property
    def key(self) -> str:
        """What tells this case from all others, those of the same families too."""
        return f"{'+'.join(self.families)}@{self.name}"


def one_launch(family: str, name: str, counts: Callable[[], dict[str, int]], prepare: Any) -> Case:
    """A call that launches one kernel."""
    return Case((family,), name, lambda: {family: counts()}, prepare)


# ---- what is counted -----------------------------------------------------------------------------------------
CAPACITY_BYTES = 232448
"""Shared memory of a block on an H100 or H200."""
SMS, HOPPER = 132, (9, 0)
CONVOLUTIONS = (
    ("fused_warp", 1024, (32, 32), 64, 8192, "fp16"),
    ("fused_group", 4096, (64, 64), 64, 2048, "fp16"),
    ("fused_block", 4096, (16, 16, 16), 64, 2048, "fp16"),
    ("fused_deep", 32768, (16, 8, 16, 16), 2, 8192, "fp16"),
    ("fused_float", 1024, (), 64, 4096, "fp32"),
    ("fused_rounds", 49152, (), 8, 1024, "fp32"),
    ("fused_any", 4352, (17, 16, 16), 64, 2048, "fp16"),
)
"""Family, length, factors (none: the default), sequences, channels and dtype; circular."""
HALF_SIGNALS = (
    ("fused_group", (64, 32), 64, 2048),
    ("fused_block", (16, 16, 16), 64, 1024),
    ("fused_deep", (16, 8, 16, 16), 2, 4096),
)
"""Family, factors, sequences and channels; causal in fp16, by right-angle packing."""
DECODE = {"batch": 16, "kv_heads": 8, "group": 8, "head_size": 128, "length": 16384}
SOFTMAX = (131072, 4096)
GROUPS = ("stream", "group")
PRODUCTS = (
    ("gemv", 1, 32768, 16384),
    ("flat", 16, 32768, 16384),
    ("full", 256, 32768, 16384),
    ("stream", 256, 32768, 16384),
    ("group", 64, 32768, 16384),
)
"""Kernel ("stream": the full product on warpgroups, "group": for few rows of x); x [M, K] times w [N, K]."""


def _plan(n: int, factors: tuple[int, ...], dtype: str) -> Any:
    from kernels_numba.families import default_plan
    from monarch import Plan

    return Plan(n, factors) if factors else default_plan(n, dtype)


def _convolution(
    family: str, n: int, factors: tuple[int, ...], batch: int, channels: int, dtype: str
) -> Case:
    shape = f"B={batch};H={channels};N={n};" + ("x".join(map(str, factors)) or dtype)
    return _of_plan(family, shape, lambda: _plan(n, factors, dtype), batch, channels, dtype)


def _half_signal(family: str, factors: tuple[int, ...], batch: int, channels: int) -> Case:
    shape = f"B={batch};H={channels};N={2 * prod(factors)};{'x'.join(map(str, factors))};right-angle"

    def plan() -> Any:
        from monarch import Plan

        return Plan.of(factors, packing="right-angle")

    return _of_plan(family, shape, plan, batch, channels, "fp16")


def _of_plan(
    family: str, shape: str, plan_of: Callable[[], Any], batch: int, channels: int, dtype: str
) -> Case:
    """Whole circles, or half signals, by a plan."""

    def predicted() -> dict[str, int]:
        from costmodel import group_counts
        from costmodel.counts import MMA_FLOPS, for_plan

        plan = plan_of()
        counted = for_plan(plan, batch, channels, dtype=dtype, capacity_bytes=CAPACITY_BYTES)
        products = counted.mma_flops / MMA_FLOPS
        if family == "fused_group":  # an instruction is a warp's 16 rows of 32 columns, or of their two parts
            products = batch // 2 * channels * group_counts.issued(plan)
        return {"device_bytes": round(counted.device_bytes), "tensor_instructions": round(products)}

    def prepare(torch: Any) -> Any:
        import reference
        from costmodel import measure
        from kernels_numba import FFTConv, prepare_filter

        plan = plan_of()
        n = plan.n
        halved = plan.packing == "right-angle"
        length, variant = (n // 2, "causal") if halved else (n, "plain")
        case = measure.Case(n, length, variant, dtype, batch=batch, channels=channels)
        filters = measure._filters(case, torch)
        convolve = FFTConv(
            prepare_filter(filters, length=length, mode=case.mode, dtype=dtype, plan=plan), batch=batch
        )
        kind = torch.float32 if dtype == "fp32" else torch.float16
        u = torch.empty((batch, channels, length), device="cuda", dtype=kind)
        for b in range(batch):
            u[b] = torch.randn((channels, length), device="cuda", dtype=torch.float32).to(kind)
        y = torch.full_like(u, float("nan"))

        def error() -> float:
            part = measure.Case(n, length, variant, dtype, batch=2, channels=channels)
            return measure._error(measure._Data(u[-2:], None, None), filters, y[-2:], part, torch)

        bound = reference.fft32_bound(n) if dtype == "fp32" else reference.fftconv_bound(plan.order, dtype)
        return lambda: convolve(u, out=y), error, bound

    return one_launch(family, shape, predicted, prepare)


def _decode() -> Case:
    d = DECODE
    heads = d["kv_heads"] * d["group"]

    def predicted() -> dict[str, int]:
        from costmodel.attention_counts import totals

        counted = totals(
            d["head_size"],
            d["group"],
            1,
            batch=d["batch"],
            kv_heads=d["kv_heads"],
            length=d["length"],
            splits=1,
        )
        once = (
            2 * 2 * d["batch"] * heads * d["head_size"]
        )  # queries and results; blocks read queries from a cache
        return {
            "device_bytes": counted["read_k"] + counted["read_v"] + once,
            "tensor_instructions": counted["mma_m16n8k16"] + counted.get("mma_m16n8k8", 0),
        }

    def prepare(torch: Any) -> Any:
        import reference
        from costmodel import measure_attention
        from kernels_numba import DecodeAttention

        case = measure_attention.Case(d["batch"], heads, d["kv_heads"], d["length"])
        q, k, v = measure_attention._data(case, torch, 0)
        attend = DecodeAttention(tuple(q.shape), tuple(k.shape), "fp16", phi=PHI, bounds=BOUNDS)
        y = torch.full_like(q, float("nan"))

        def error() -> float:
            exact = measure_attention._exact(q[-1:], k[-1:], v[-1:], torch)
            return float((y[-1:].double() - exact).norm() / exact.norm())

        bound = reference.decode_attention_bound("fp16", tf32=d["group"] > 4)
        return lambda: attend(q, k, v, out=y), error, bound

    shape = f"B={d['batch']};Hq={heads};Hkv={d['kv_heads']};D={d['head_size']};L={d['length']}"
    return one_launch("decode_attention", shape, predicted, prepare)


def _softmax() -> Case:
    rows, n = SOFTMAX

    def prepare(torch: Any) -> Any:
        import reference
        from kernels_numba import softmax

        x = torch.empty((rows, n), device="cuda", dtype=torch.float16)
        for start in range(0, rows, 8192):
            x[start : start + 8192] = torch.randn((8192, n), device="cuda").half()
        y = torch.full_like(x, float("nan"))

        def error() -> float:
            exact = torch.exp(x[-64:].double())
            exact /= exact.sum(dim=-1, keepdim=True)
            return float((y[-64:].double() - exact).norm() / exact.norm())

        return lambda: softmax(x, phi=PHI, bounds=BOUNDS, out=y), error, 2 * reference.unit_roundoff("fp16")

    def predicted() -> dict[str, int]:
        from costmodel import pass_counts

        counted = pass_counts.softmax(rows, n, team=True, sync=False)
        once = counted["read_x"] // 2 + counted["written_y"]  # the second pass over x comes from a cache
        return {"device_bytes": once, "tensor_instructions": 0}

    return one_launch("softmax", f"rows={rows};n={n}", predicted, prepare)


def _product(impl: str, m: int, n: int, k: int) -> Case:
    def made() -> Any:
        from kernels_numba.linear_product import product
        from kernels_numba.linear_settings import default_choice

        name, capability = ("full", HOPPER) if impl in GROUPS else (impl, None)
        choice = default_choice(name, m, n, k, sm_count=SMS, capability=capability)
        return product(choice, m, n, k, "fp16")

    def predicted() -> dict[str, int]:
        from costmodel.linear_counts import of_product

        chosen = made()
        instructions = of_product(chosen).mma_m16n8k16
        if impl in GROUPS:  # an instruction is a warp's 16 rows of all columns
            instructions = instructions * 8 // chosen.spec.columns
        return {"device_bytes": 2 * (m * k + n * k + m * n), "tensor_instructions": instructions}

    def prepare(torch: Any) -> Any:
        from costmodel import measure_linear
        from kernels_numba import Linear

        x, w = (
            torch.randn((m, k), device="cuda").half(),
            torch.empty((n, k), device="cuda", dtype=torch.float16),
        )
        for start in range(0, n, 4096):
            w[start : start + 4096] = torch.randn((4096, k), device="cuda").half()
        y = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
        layer = Linear(m, n, k, dtype="fp16", choice=made().choice)

        def error() -> float:  # raises where an element is off by more than is allowed
            exact, allowed = measure_linear._exact(x, w[-64:], torch)
            return measure_linear._error(y[:, -64:], exact, allowed, f"{impl} M={m} N={n} K={k}")

        return lambda: layer(x, w, out=y), error, 1.0

    return one_launch(f"linear_{impl}", f"M={m};N={n};K={k}", predicted, prepare)


def cases() -> list[Case]:
    """Every case, in the order in which they are run."""
    from costmodel import measure_operations

    return [
        *(_convolution(*c) for c in CONVOLUTIONS),
        *(_half_signal(*c) for c in HALF_SIGNALS),
        _decode(),
        _softmax(),
        *(_product(*p) for p in PRODUCTS),
        *measure_operations.cases(),
    ]


def chosen_cases(families: Sequence[str] = ()) -> list[Case]:
    """The cases that have a launch of one of these families, or one of these keys; all, if none is named."""
    return [case for case in cases() if not families or set(families) & {*case.families, case.key}]


def run_cases(families: Sequence[str]) -> None:
    """Make the call of every case that has one of the families, and check its result: what ncu looks at.

    The call is made once to compile and prepare what it needs, and once more between the profiler's marks.

    Raises:
        MeasurementError: PyTorch with CUDA is not there, or a result is outside its bound.
    """
    from costmodel.replays import need_torch

    torch = need_torch()
    torch.manual_seed(1)
    for case in chosen_cases(families):
        call, error, bound = case.prepare(torch)
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        call()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        found = error()
        if not found <= bound:  # true for NaN as well
            raise MeasurementError(
                f"{'+'.join(case.families)} {case.name}: error {found:.3g}, bound {bound:.3g}"
            )
        del call, error
        torch.cuda.empty_cache()
