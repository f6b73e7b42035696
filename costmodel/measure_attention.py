"""Measure decode attention beside PyTorch's backends; how a time is taken is described in `costmodel.measure`.

Providers of a case: ``ours`` with the split count that it chooses itself, ``ours:s4`` with four splits,
``ours:heads-first`` on caches [B, Hkv, L, D], and PyTorch's flash and cuDNN backends, each with the layout of the
caches that suits it better. Variants: async, sync, and fallback-R, where R percent of the rows leave the range with
every key: the most that the fallback can cost; ``ours:one-key``: with one key only. ``ours:phi6`` and ``ours:wide6``
have another shift, with the bounds of the others and with the widest; their notes say how many rows fall back.
"""

from __future__ import annotations

import datetime
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel import measurements, render
from costmodel.errors import MeasurementError
from costmodel.host_cost import host_times
from costmodel.measurements import Row
from costmodel.replays import commit, need_torch, time_calls

OP = "decode_attention"
PHI, BOUNDS = 0.0, (-10.0, 10.0)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
SHIFTS: dict[str, tuple[tuple[float, float], tuple[float, ...]]] = {
    "phi": (BOUNDS, (0, 2, 4, 5, 6, 7, 8, 12, 20)),
    "wide": ((-60.0, 40.0), (-36, -20, 0, 20, 40, 56)),
}
"""By the name of the provider, bounds and shifts of logits that are normal, with mean 0 and variance 1."""
SHIFTED = (8, 32, 32, 1024)
RATES = (0, 1, 5, 10, 25, 50, 75, 100)
MAX_SETS = 16
L2_TURNS = 4
"""Inputs are rotated through so many times the L2 cache: what is left there of a turn before is no matter."""
Rows = Iterator[tuple[Row, float]]


@dataclass(frozen=True)
class Case:
    """One attention to time: one query token, caches of L keys."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    variant: str = "async"
    dtype: str = "fp16"
    size: int = 128
    everything: bool = True
    """With other split counts, layouts and the peers; else ``ours`` alone."""

    @property
    def name(self) -> str:
        """The ``case`` column."""
        values: dict[str, int | str] = {
            "B": self.batch,
            "Hq": self.heads,
            "Hkv": self.kv_heads,
            "D": self.size,
        }
        return measurements.format_case(OP, values | {"L": self.length, "variant": self.variant})

    @property
    def bytes_min(self) -> int:
        """Keys, values, queries and results, once each."""
        return 4 * self.batch * self.size * (self.length * self.kv_heads + self.heads)

    @property
    def flops(self) -> int:
        """Both products."""
        return 4 * self.batch * self.heads * self.length * self.size

    @property
    def rate(self) -> int:
        """Percent of rows out of range."""
        return int(self.variant.removeprefix("fallback-")) if self.variant.startswith("fallback") else 0


def cases(*, quick: bool = False) -> Iterator[Case]:
    """What is measured."""
    for batch in (1, 8):
        for length in (1024, 4096, 8192, 32768):
            yield Case(batch, 32, 32, length)
            if not quick:
                yield Case(batch, 32, 32, length, "sync", everything=False)
    for heads in (32,) if quick else (32, 64, 128):
        yield Case(8, heads, 8, 8192)
    if quick:
        return
    yield Case(8, 32, 32, 4096, dtype="bf16")
    yield Case(8, 32, 8, 8192, dtype="bf16")
    for shape in (
        (1, 32, 32, 2048),
        (3, 32, 32, 4096),
        (9, 32, 32, 2048),
        (1, 8, 8, 32768),
        (4, 32, 8, 2048),
    ):
        yield Case(*shape)
    for batch in range(1, 65):
        yield Case(batch, 32, 32, 1024, everything=False)
    for shape in ((1, 32, 32, 8192), (8, 32, 32, 4096)):
        for rate in RATES:
            yield Case(*shape, f"fallback-{rate}", everything=False)


def run(*, quick: bool = False) -> Rows:
    """All rows with their bounds, as they are measured.

    Raises:
        MeasurementError: PyTorch with CUDA is not there, or a result is wrong.
    """
    torch = need_torch()
    stamp = (datetime.date.today().isoformat(), commit())
    todo = list(cases(quick=quick))
    started = time.perf_counter()
    for number, case in enumerate(todo, start=1):
        done = list(_case(case, torch, stamp, quick=quick))
        yield from done
        torch.cuda.empty_cache()
        peers = "".join(f", {row.provider} {row.median_us:.1f}" for row, _ in done[1:])
        render.note(
            f"[{number}/{len(todo)}, {time.perf_counter() - started:.0f} s] {case.name} {case.dtype}: "
            f"{done[0][0].median_us:.2f} us{peers}; error {done[0][0].rel_err:.2e}"
        )
    if not quick:
        yield from _host_cost(torch, stamp)


def _case(case: Case, torch: Any, stamp: tuple[str, str], *, quick: bool) -> Rows:
    import reference
    from kernels_numba import DecodeAttention

    cache = torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(1, min(MAX_SETS, math.ceil(L2_TURNS * cache / case.bytes_min)))
    data = [_data(case, torch, seed) for seed in range(sets)]
    exact = _exact(*data[0], torch)
    bound = reference.decode_attention_bound(case.dtype, tf32=case.heads // case.kv_heads > 4)
    settings: dict[str, Any] = {
        "phi": PHI,
        "bounds": BOUNDS,
        "variant": "sync" if case.variant == "sync" else "async",
    }

    def measured(
        name: str, calls: Sequence[Callable[..., Any]], y: Any, right: Any, note: str, limit: float
    ) -> Any:
        error = ((y.double() - right).norm() / right.norm()).item()
        if not error <= limit:  # true for NaN as well
            raise MeasurementError(
                f"{name} {case.name} {case.dtype}: error {error:.3g}, bound {limit:.3g}; its row is not written"
            )
        times = time_calls(calls, torch)
        deciles = statistics.quantiles(times, n=10)
        low, middle, high = deciles[1], statistics.median(times), deciles[7]
        note = f"{note}; {sets} input set{'s' if sets > 1 else ''}"
        figures = (middle, low, high, len(times), case.bytes_min, case.flops, error)
        return Row(OP, case.name, case.dtype, name, *figures, *stamp, note), limit

    def ours(
        name: str,
        inputs: list[tuple[Any, Any, Any]],
        splits: int | None = None,
        note: str = "",
        **scheme: Any,
    ) -> Any:
        q, k, _ = inputs[0]
        scheme = settings | scheme
        attend = DecodeAttention(tuple(q.shape), tuple(k.shape), case.dtype, splits=splits, **scheme)
        outs = [torch.full_like(x[0], math.nan) for x in inputs]
        calls = [lambda x=x, out=out: attend(*x, out=out) for x, out in zip(inputs, outs, strict=True)]
        for call in calls:
            call()
        right = exact if inputs is data or name == "ours:heads-first" else _exact(*inputs[0], torch)
        note = f"splits={attend.chosen_splits}{note}"
        return measured(name, calls, outs[0], right, note, bound), attend

    row, attend = ours("ours", data)
    yield row
    if case.rate:
        yield ours("ours:one-key", [_with_one_key(case, x, torch) for x in data])[0]
    if not case.everything:
        return
    for splits in () if quick else SPLITS:
        if splits != attend.chosen_splits and splits * case.batch * case.kv_heads <= 2048:
            yield ours(f"ours:s{splits}", data, splits)[0]
    if not quick and (case.batch, case.heads, case.kv_heads, case.length) == SHIFTED:
        for name, (bounds, shifts) in SHIFTS.items():
            for phi in shifts:
                share = _out_of_range(data, phi, bounds, torch)
                note = f"; phi={phi:g}; bounds={bounds[0]:g},{bounds[1]:g}; fallback={share:.2%}"
                yield ours(f"ours:{name}{phi:g}", data, note=note, phi=float(phi), bounds=bounds)[0]
    first = [(q, *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in kv)) for q, *kv in data]
    yield ours("ours:heads-first", first)[0]
    from torch.nn.attention import SDPBackend, sdpa_kernel

    sdpa = torch.nn.functional.scaled_dot_product_attention
    for name, backend in (
        ("sdpa-flash", SDPBackend.FLASH_ATTENTION),
        ("sdpa-cudnn", SDPBackend.CUDNN_ATTENTION),
    ):
        found = []
        for layout, inputs in (("keys-first", data), ("heads-first", first)):
            views = [tuple(x.transpose(1, 2) for x in one) for one in inputs]
            calls = [lambda v=v: sdpa(*v, enable_gqa=case.heads != case.kv_heads) for v in views]
            try:
                with sdpa_kernel(backend):
                    y = calls[0]().transpose(1, 2)
                    limit = 2 * reference.unit_roundoff(case.dtype)
                    found.append(measured(name, calls, y, exact, f"layout={layout}", limit))
            except RuntimeError as error:
                render.note(f"{name} does not run {case.name} {case.dtype}: {str(error).splitlines()[0]}")
        if found:
            yield min(found, key=lambda pair: pair[0].median_us)


def _data(case: Case, torch: Any, seed: int) -> tuple[Any, Any, Any]:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[case.dtype]

    def random(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", generator=generator, dtype=torch.float32).to(kind)

    q = random(case.batch, 1, case.heads, case.size)
    k = torch.empty((case.batch, case.length, case.kv_heads, case.size), device="cuda", dtype=kind)
    v = torch.empty_like(k)
    for b in range(case.batch):
        k[b], v[b] = random(*k.shape[1:]), random(*k.shape[1:])
    flagged = _flagged(case, torch)
    q.view(-1, case.size)[flagged] *= 64  # logits of some 64, so nearly every key is out of range
    return q, k, v


def _with_one_key(case: Case, data: tuple[Any, Any, Any], torch: Any) -> tuple[Any, Any, Any]:
    """The same rows out of range, but each by one key only: along the row's query, in the middle of the cache."""
    q, k, v = data[0].clone(), data[1].clone(), data[2]
    flagged = _flagged(case, torch)
    rows = q.view(-1, case.size)
    rows[flagged] /= 64
    keys = k[:, case.length // 2].repeat_interleave(case.heads // case.kv_heads, dim=1).view(-1, case.size)
    size = rows[flagged].float().square().sum(dim=-1, keepdim=True)
    keys[flagged] = (rows[flagged].float() * 15 * math.sqrt(case.size) / size).to(k.dtype)
    k[:, case.length // 2] = keys.view(case.batch, case.heads, case.size)[:, :: case.heads // case.kv_heads]
    return q, k, v


def _flagged(case: Case, torch: Any) -> Any:
    """Indices of the rows that are out of range: evenly spread over sequences and heads."""
    rows = case.batch * case.heads
    return torch.arange(round(rows * case.rate / 100), device="cuda") * 100 // max(case.rate, 1)


def _out_of_range(
    data: list[tuple[Any, Any, Any]], phi: float, bounds: tuple[float, float], torch: Any
) -> float:
    """The share of rows that fall back, of all inputs."""
    flagged = total = 0
    for q, k, _ in data:
        for b in range(q.shape[0]):
            x = torch.einsum("hd,lhd->hl", q[b, 0].double(), k[b].double()) / math.sqrt(q.shape[3]) - phi
            flagged += int(((x <= bounds[0]) | (x >= bounds[1])).any(dim=-1).sum().item())
            total += q.shape[2]
    return flagged / total


def _exact(q: Any, k: Any, v: Any, torch: Any) -> Any:
    """Attention in float64, a sequence at a time."""
    out = torch.empty(q.shape, device="cuda", dtype=torch.float64)
    group = q.shape[2] // k.shape[2]
    for b in range(q.shape[0]):
        for h in range(k.shape[2]):
            heads = slice(h * group, (h + 1) * group)
            x = (q[b, 0, heads].double() @ k[b, :, h].double().T) / math.sqrt(q.shape[3])
            out[b, 0, heads] = torch.softmax(x, dim=-1) @ v[b, :, h].double()
    return out


def _host_cost(torch: Any, stamp: tuple[str, str]) -> Rows:
    """Host time of a prepared call, beside one PyTorch elementwise operation."""
    from kernels_numba import DecodeAttention

    case = Case(1, 32, 32, 1024)
    q, k, v = _data(case, torch, 0)
    attend = DecodeAttention(tuple(q.shape), tuple(k.shape), "fp16", phi=PHI, bounds=BOUNDS)
    y = torch.full_like(q, math.nan)
    attend(q, k, v, out=y)
    error = ((y.double() - _exact(q, k, v, torch)).norm() / _exact(q, k, v, torch).norm()).item()
    for name, function in (
        ("ours:host-call", lambda: attend(q, k, v, out=y)),
        ("torch:host-elementwise", lambda: torch.mul(q, 2.0, out=y)),
    ):
        times = sorted(host_times(function, torch))
        middle, low, high = (times[int(len(times) * part)] for part in (0.5, 0.2, 0.8))
        note = "host time of one call with out=, not GPU time"
        figures = (middle, low, high, len(times), case.bytes_min, case.flops, error)
        yield Row(OP, case.name, "fp16", name, *figures, *stamp, note), 1e-3
        render.note(f"{name}: {middle:.1f} us on the host")
