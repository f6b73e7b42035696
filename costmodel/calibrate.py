"""Measure a GPU: ``costmodel calibrate --gpu-file FILE``. Under three minutes, with this project's own kernels.

Every step launches a kernel of `kernels_numba.probes`, checks what it left, times a captured graph of launches, and
writes what it found to the file at once: a run that was stopped goes on where it was. Rates are given with the 20th and
80th percentile over replays; a rate is that of the fastest of a few ways to launch the kernel, which its source names.
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.calibration import Curve
from costmodel.gpus import GPU, Measured

MEBI = 1 << 20
MMA_FLOPS = {"mma_m16n8k16": 4096, "mma_m16n8k8": 2048}
SIZES = tuple(MEBI << e for e in range(11))
MOST_WINDOWS = 512
"""Launches in turn on memory of their own: at a mebibyte each, ten times an L2 cache."""
TURNS = 2001
"""Of a loop in a kernel that computes: a millisecond or so."""
HOPPER = "9.0"
OURS = "costmodel calibrate"
"""How the source of a value that was calibrated begins."""
NVIDIA_SMI = (
    "nvidia-smi",
    "--format=csv,noheader,nounits",
    "--query-gpu=driver_version,clocks.sm,clocks.mem",
)


@dataclass(frozen=True)
class Result:
    """What one step found: rates and curves by name."""

    rates: dict[str, Measured]
    curves: dict[str, Curve]


@dataclass(frozen=True)
class Step:
    """One step: the names that it fills in, and how. ``run`` gets a bench and the day."""

    keys: tuple[str, ...]
    title: str
    run: Callable[[Any, str], Result]


def steps(gpu: GPU) -> list[Step]:
    """What is measured on a GPU, in order."""
    found = [
        Step(("read_stream_bytes_per_s", "read_against_bytes_in_flight"), "reading device memory", _read),
        Step(("device_copy_bytes_per_s",), "copying device memory", _copy),
        Step(("device_write_bytes_per_s",), "writing device memory", _write),
        Step(("read_against_size",), "reading, by size", _read_sizes),
        Step(("copy_against_size",), "copying, by size", _copy_sizes),
        Step(("l2_read_bytes_per_s", "l2_write_bytes_per_s", "l2_copy_bytes_per_s"), "L2", _l2_of(gpu)),
        Step(("repeated_read_against_size",), "reading again and again, by size", _repeated),
        Step(("shared_read_bytes_per_s",), "shared memory", _shared),
        Step(("fp32_flops_per_s",), "float32", _chain("fma", "fp32_flops", "fp16", "fp32_flops_per_s")),
        Step(
            ("fp16_vector_flops_per_s",),
            "pairs of fp16",
            _chain("fma_halves", "half_flops", "fp16", "fp16_vector_flops_per_s"),
        ),
        Step(
            ("bf16_vector_flops_per_s",),
            "pairs of bf16",
            _chain("fma_halves", "half_flops", "bf16", "bf16_vector_flops_per_s"),
        ),
        Step(
            ("exponentials_per_s",),
            "exponentials",
            _chain("exp", "exponentials", "fp16", "exponentials_per_s"),
        ),
        Step(("mma_flops_per_s",), "products m16n8k16 of fp16", _mma("mma", "fp16", "mma_flops_per_s")),
        Step(
            ("mma_bf16_flops_per_s",),
            "products m16n8k16 of bf16",
            _mma("mma", "bf16", "mma_bf16_flops_per_s"),
        ),
        Step(
            ("mma_m16n8k8_flops_per_s",),
            "products m16n8k8 of fp16",
            _mma("mma_narrow", "fp16", "mma_m16n8k8_flops_per_s"),
        ),
        Step(
            ("mma_tf32_flops_per_s",),
            "products m16n8k8 of TF32",
            _mma("mma_tf32", "fp16", "mma_tf32_flops_per_s"),
        ),
    ]
    if gpu.compute_capability == HOPPER:
        found += [
            Step(
                (f"wgmma_n{n}_flops_per_s",),
                f"products of warpgroups, {n} columns",
                _group(n, "fp16", f"wgmma_n{n}"),
            )
            for n in (64, 128, 256)
        ]
        found.append(
            Step(
                ("wgmma_bf16_n256_flops_per_s",),
                "products of warpgroups of bf16, 256 columns",
                _group(256, "bf16", "wgmma_bf16_n256"),
            )
        )
    return [
        *found,
        Step(("launch_latency_us",), "launches", _launch),
        Step(("barrier_latency_us",), "barriers", _barrier),
    ]


def rate(amount: float, timed: Any, how: str, day: str, driver: str) -> Measured:
    """``amount`` over the times of a launch."""
    times = sorted(timed.times_us)
    low, high = times[int(0.2 * (len(times) - 1))], times[int(0.8 * (len(times) - 1))]
    middle = statistics.median(times)
    values = [_rounded(amount / (t * 1e-6)) for t in (middle, high, low)]
    return Measured(values[0], how, day, values[1], values[2], len(times), driver)


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _how(timed: Any, name: str) -> str:
    return f"{OURS}, {name}, {timed.blocks_per_sm} blocks per SM, CUDA graphs"


def _best(tried: Iterable[Measured]) -> Measured:
    return max(tried, key=lambda m: m.median)


def _bytes_of(timed: Any) -> int:
    return int(timed.work["global_read_bytes"] + timed.work["global_written_bytes"])


# ---- device memory and L2 ------------------------------------------------------------------------------------
IN_FLIGHT = (
    *((1, 4, blocks) for blocks in (1, 2, 4, 8)),
    *((4, 4, blocks) for blocks in (4, 6, 8, 12)),
    *((8, 4, blocks) for blocks in (8, 10)),
)
"""Reading: (quads a lane asks for at once, warps of a block, blocks per SM)."""
COPIES = ((1, 8), (2, 8), (4, 8), (8, 4))
WRITES = ((1, 8), (4, 8))
"""Copying and writing: (quads a lane, warps of a block), each on grids of `GRIDS`."""
GRIDS = (2, 4, 8, 0)
"""Blocks per SM; 0: as many blocks as there are tiles, so that blocks come and go in the order of memory."""


def _stream(bench: Any, kind: str, depth: int, warps: int, per_sm: int, nbytes: int, **settings: Any) -> Any:
    from kernels_numba.probes import Spec

    spec = Spec(kind, depth, warps)
    return spec, bench.time(spec, nbytes=nbytes, blocks_per_sm=per_sm, **settings)


def _read(bench: Any, day: str) -> Result:
    by_bytes: dict[int, float] = {}
    tried = []
    for depth, warps, blocks in IN_FLIGHT:
        spec, timed = _stream(bench, "read", depth, warps, blocks, bench.stream_bytes)
        found = rate(_bytes_of(timed), timed, _how(timed, spec.name), day, driver_text(bench))
        tried.append(found)
        asked = 512 * depth * warps * timed.blocks_per_sm
        by_bytes[asked] = max(by_bytes.get(asked, 0.0), found.median)
    return Result(
        {"read_stream_bytes_per_s": _best(tried)}, {"read_against_bytes_in_flight": _curve(by_bytes, day)}
    )


def _curve(points: dict[int, float], day: str) -> Curve:
    x = tuple(sorted(points))
    return Curve(tuple(map(float, x)), tuple(points[i] for i in x), f"{OURS}, CUDA graphs", day)


def _every_tile(nbytes: int, depth: int, warps: int) -> int:
    """Blocks of which every warp has one tile."""
    return -(-nbytes // (512 * depth * warps))


def _fastest(bench: Any, day: str, kind: str, kernels: Sequence[tuple[int, int]]) -> Measured:
    tried = []
    for depth, warps in kernels:
        for blocks in GRIDS:
            settings = {} if blocks else {"blocks": _every_tile(bench.stream_bytes, depth, warps)}
            spec, timed = _stream(
                bench,
                kind,
                depth,
                warps,
                blocks,
                bench.stream_bytes,
                check=blocks in (GRIDS[0], 0),
                **settings,
            )
            how = (
                _how(timed, spec.name)
                if blocks
                else f"{OURS}, {spec.name}, a block for every tile, CUDA graphs"
            )
            tried.append(rate(_bytes_of(timed), timed, how, day, driver_text(bench)))
    return _best(tried)


def _copy(bench: Any, day: str) -> Result:
    return Result({"device_copy_bytes_per_s": _fastest(bench, day, "copy", COPIES)}, {})


def _write(bench: Any, day: str) -> Result:
    return Result({"device_write_bytes_per_s": _fastest(bench, day, "write", WRITES)}, {})


def _read_sizes(bench: Any, day: str) -> Result:
    return Result({}, {"read_against_size": _cold(bench, day, "read", 4, 4, 8)})


def _copy_sizes(bench: Any, day: str) -> Result:
    return Result({}, {"copy_against_size": _cold(bench, day, "copy", 1, 8, 0)})


def _cold(bench: Any, day: str, kind: str, depth: int, warps: int, blocks: int) -> Curve:
    """One launch over data that no cache has: the launches in turn go through as much memory as there is."""
    points = {}
    for size in SIZES:
        windows = min(bench.stream_bytes // size, MOST_WINDOWS)
        settings = {} if blocks else {"blocks": _every_tile(size, depth, warps)}
        _, timed = _stream(bench, kind, depth, warps, blocks, size, windows=windows, **settings)
        points[size] = rate(_bytes_of(timed), timed, "", day, "").median
    return _curve(points, day)


def _l2_of(gpu: GPU) -> Callable[[Any, str], Result]:
    def run(bench: Any, day: str) -> Result:
        size = max(int(gpu.spec["l2_bytes"] / 4) // MEBI, 1) * MEBI
        rates = {}
        for kind, part in (("read", 1), ("write", 1), ("copy", 2)):
            tried = []
            for depth, warps, blocks in ((4, 8, 4), (8, 4, 8)):
                nbytes = max(size // part // MEBI, 1) * MEBI
                turns = 2 * (512 * MEBI // nbytes) + 1
                spec, timed = _stream(
                    bench, kind, depth, warps, blocks, nbytes, turns=turns, shift=_shift(nbytes, depth)
                )
                tried.append(rate(_bytes_of(timed), timed, _how(timed, spec.name), day, driver_text(bench)))
            rates[f"l2_{kind}_bytes_per_s"] = _best(tried)
        return Result(rates, {})

    return run


def _shift(nbytes: int, depth: int) -> int:
    """Tiles by which a turn starts later: no SM comes to the same data again before many turns."""
    tiles = nbytes // (512 * depth)
    return (tiles * 5 // 13) | 1 if tiles > 13 else 1


def _repeated(bench: Any, day: str) -> Result:
    points = {}
    for size in [
        2 * MEBI,
        4 * MEBI,
        8 * MEBI,
        *(i * 8 * MEBI for i in (2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64)),
    ]:
        if size > bench.stream_bytes:
            continue
        turns = 2 * (512 * MEBI // size) + 1
        _, timed = _stream(bench, "read", 4, 8, 4, size, turns=turns, shift=_shift(size, 4), replays=8)
        points[size] = rate(_bytes_of(timed), timed, "", day, "").median
    return Result({}, {"repeated_read_against_size": _curve(points, day)})


# ---- on the chip ---------------------------------------------------------------------------------------------
def _compute(
    bench: Any, day: str, specs: Iterable[Any], amount: Callable[[Any], float], key: str, turns: int = TURNS
) -> Result:
    tried = []
    for spec in specs:
        timed = bench.time(spec, turns=turns)
        tried.append(rate(amount(timed), timed, _how(timed, spec.name), day, driver_text(bench)))
    return Result({key: _best(tried)}, {})


def _shared(bench: Any, day: str) -> Result:
    from kernels_numba.probes import Spec

    specs = [Spec("shared", 8, 8, blocks=2), Spec("shared", 4, 8, blocks=4)]
    return _compute(bench, day, specs, lambda t: t.work["shared_read_bytes"], "shared_read_bytes_per_s")


def _chain(kind: str, counted: str, dtype: str, key: str) -> Callable[[Any, str], Result]:
    def run(bench: Any, day: str) -> Result:
        from kernels_numba.probes import Spec

        specs = [Spec(kind, 8, 8, dtype, blocks=4)]
        return _compute(bench, day, specs, lambda t: t.work[counted], key)

    return run


def _mma(kind: str, dtype: str, key: str) -> Callable[[Any, str], Result]:
    def run(bench: Any, day: str) -> Result:
        from kernels_numba.probes import Spec

        specs = [Spec(kind, 8, warps, dtype, blocks) for warps, blocks in ((8, 2), (4, 2))]
        return _compute(
            bench, day, specs, lambda t: sum(flops * t.work[name] for name, flops in MMA_FLOPS.items()), key
        )

    return run


def _group(columns: int, dtype: str, name: str) -> Callable[[Any, str], Result]:
    def run(bench: Any, day: str) -> Result:
        from kernels_numba.group_probes import Spec

        amount = lambda t: MMA_FLOPS["mma_m16n8k16"] * t.work["mma_m16n8k16"]  # noqa: E731
        return _compute(bench, day, [Spec(columns, dtype)], amount, f"{name}_flops_per_s")

    return run


# ---- latencies -----------------------------------------------------------------------------------------------
def _launch(bench: Any, day: str) -> Result:
    """From one launch to the next in a graph, of a kernel that writes a word a lane, a warp on each SM."""
    from kernels_numba.probes import Spec

    spec = Spec("launch", 1, 1)
    timed = bench.time(spec, blocks_per_sm=1)
    return Result({"launch_latency_us": _time(timed.times_us, _how(timed, spec.name), day, bench)}, {})


def _barrier(bench: Any, day: str) -> Result:
    """A block of eight warps, one barrier after the other."""
    from kernels_numba.probes import Spec

    spec = Spec("barrier", 1, 8)
    timed = bench.time(spec, blocks=1, turns=10 * TURNS)
    empty = statistics.median(bench.time(spec, blocks=1, turns=1).times_us)
    each = [(t - empty) / (10 * TURNS - 1) for t in timed.times_us]
    return Result({"barrier_latency_us": _time(each, f"{OURS}, {spec.name}, one block", day, bench)}, {})


def _time(times_us: Sequence[float], how: str, day: str, bench: Any) -> Measured:
    times = sorted(times_us)
    low, high = times[int(0.2 * (len(times) - 1))], times[int(0.8 * (len(times) - 1))]
    middle, low, high = (_rounded(t) for t in (statistics.median(times), low, high))
    return Measured(middle, how, day, low, high, len(times), driver_text(bench))


# ---- the machine ---------------------------------------------------------------------------------------------
def driver_text(bench: Any) -> str:
    """The CUDA version of the driver."""
    version = int(bench.where.driver or 0)
    return f"CUDA {version // 1000}.{version % 1000 // 10}"


def clocks(index: int = 0) -> tuple[str, float, float]:
    """Driver, SM clock and memory clock (MHz) now; empty and zeros where nvidia-smi is not installed."""
    try:
        text = subprocess.run(
            [*NVIDIA_SMI, f"--id={index}"], capture_output=True, text=True, check=True, timeout=20
        ).stdout
        driver, sm, memory = (part.strip() for part in text.strip().splitlines()[0].split(","))
        return driver, float(sm), float(memory)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return "", 0.0, 0.0


def missing(gpu: GPU, done: Iterable[str]) -> list[Step]:
    """The steps that still have something to fill in."""
    there = set(done)
    return [step for step in steps(gpu) if not set(step.keys) <= there]


def run(bench: Any, step: Step, day: str) -> Result:
    """What a step finds, which is what it promises."""
    found = step.run(bench, day)
    names = {*found.rates, *found.curves}
    if set(step.keys) != names:
        raise ValueError(f"{step.title}: {', '.join(step.keys)} were promised, {', '.join(names)} were found")
    return found
