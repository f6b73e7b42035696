"""``costmodel calibrate``: measure this machine's GPU into a file, or compare a file with this machine."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from costmodel import calibrate, calibrated_file, gpus, render
from costmodel.calibration import Calibration, Curve
from costmodel.errors import GPUFileError, NoGPUError, UnknownGPUError
from costmodel.gpus import GPU, Measured
from costmodel.replays import commit

TOLERANCE = 0.1
"""How far a host's rate may lie from a file's when they are compared, relative."""
INTERRUPTED = 130
FAILED = 1


def main(
    path: str,
    *,
    base: str | None = None,
    fresh: bool = False,
    compare_host: bool = False,
    form: str = "table",
) -> int:
    """Calibrate into ``path``, or compare it with this machine; the exit code.

    Args:
        path: the GPU file.
        base: slug or path of the specification that a new file is made from; None: the GPU of this machine.
        fresh: measure all anew, even on another device than the file's.
        compare_host: measure, write nothing, and print file and host side by side.
        form: of what is printed.

    Raises:
        NoGPUError: there is no GPU here.
        GPUFileError: the file is a specification, another device's, or wrong.
        UnknownGPUError: no file describes this device, and no base is given.
    """
    from kernels_numba import device

    here = device()
    if not here.is_gpu:
        raise NoGPUError(f"calibrate: no GPU to measure: {here.reason}")
    target = Path(path)
    if target.suffix != ".toml":
        raise GPUFileError(f"--gpu-file: got {path!r}; accepted: a file that ends in .toml")
    if compare_host:
        return _compare(gpus.read(target), str(here.name), int(here.index or 0), form)
    known = gpus.load(base) if base else _known(target, str(here.name))
    text = calibrated_file.start(target, known)
    _check_device(known, str(here.name))
    index = int(here.index or 0)
    driver, sm_clock, memory_clock = calibrate.clocks(index)
    day = datetime.date.today().isoformat()
    now = Calibration(str(here.name), driver or f"CUDA {here.driver}", sm_clock, memory_clock, day, commit())
    if fresh:
        finished: Sequence[str] = ()
    else:
        calibrated_file.check_same(target, now)
        finished = calibrated_file.done(target)
    todo = calibrate.missing(known, finished)
    if not todo:
        render.note(f"{target}: all {len(finished)} values are there; measure them anew with --fresh")
        return 0
    if finished:
        render.note(f"{target}: goes on after {len(finished)} values")
    count = 0
    try:
        for step, found in _with_progress(todo, day, index):
            clocks = calibrate.clocks(index)
            now = _busiest(now, clocks)
            text = calibrated_file.put(text, found.rates, found.curves, now)
            calibrated_file.write(target, text)
            count += len(step.keys)
    except KeyboardInterrupt:
        render.note(
            f"stopped after {count} values, which are in {target}; the same command goes on from there"
        )
        return INTERRUPTED
    print(table(gpus.read(target), form))
    render.note(f"wrote {target}: pass it as --gpu {target}")
    return 0


def _known(target: Path, name: str) -> GPU:
    """The specification that describes this device: the file's own copy, else that of its slug."""
    if target.exists():
        return gpus.read(target)
    try:
        return gpus.by_device_name(name)
    except UnknownGPUError as error:
        raise UnknownGPUError(
            f"{error}\n  python -m costmodel calibrate --base my.toml --gpu-file {target}"
        ) from None


def _busiest(so_far: Calibration, clocks: tuple[str, float, float]) -> Calibration:
    """With the clocks seen right after a step, the highest so far: idle clocks say nothing."""
    return Calibration(
        so_far.device_name,
        so_far.driver,
        max(so_far.sm_clock_mhz, clocks[1]),
        max(so_far.memory_clock_mhz, clocks[2]),
        so_far.date,
        so_far.commit,
    )


def _with_progress(todo: Sequence[calibrate.Step], day: str, index: int) -> Any:
    """The steps' results, as they come, with a bar on stderr (lines where it is no terminal)."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from kernels_numba.probe_run import Bench, memory_bytes

    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("filling device memory", total=len(todo))
        bench = Bench(index, memory_bytes=memory_bytes(index))
        for step in todo:
            progress.update(bar, description=step.title)
            began = time.perf_counter()
            found = calibrate.run(bench, step, day)
            progress.advance(bar)
            if not console.is_terminal:
                render.note(f"{step.title}: {summary(found)} ({time.perf_counter() - began:.1f} s)")
            yield step, found


def summary(found: calibrate.Result) -> str:
    """A step's result in a few words."""
    parts = [f"{key} {m.median:.4g}" for key, m in found.rates.items()]
    parts += [f"{key} up to {max(c.y):.4g}" for key, c in found.curves.items()]
    return ", ".join(parts)


def _spread(m: Measured) -> str:
    return f"{(m.p80 - m.p20) / m.median:.1%}" if m.p20 is not None and m.p80 is not None else "-"


PEAKS = {
    "memory_bandwidth_bytes_per_s": (
        "read_stream_bytes_per_s",
        "device_copy_bytes_per_s",
        "device_write_bytes_per_s",
    ),
    "fp16_tensor_flops_per_s": ("mma_", "wgmma_"),
    "fp32_flops_per_s": ("fp32_flops_per_s",),
    "fp16_vector_flops_per_s": ("fp16_vector_flops_per_s", "bf16_vector_flops_per_s"),
}
"""By value of a data sheet, the rates (or how their names begin) that it is the peak of; TF32's is half of fp16's."""


def of_peak(key: str, gpu: GPU) -> float | None:
    """A measured rate as a share of the data sheet's; None where that says nothing of it."""
    measured = gpu.measured[key].median
    if key == "shared_read_bytes_per_s":
        return measured / gpu.shared_memory_bytes_per_s
    for peak, names in PEAKS.items():
        if key.startswith(names):
            return measured / (gpu.spec[peak] * (0.5 if "tf32" in key else 1.0))
    return None


def table(gpu: GPU, form: str) -> str:
    """Rates with their spread and their share of the data sheet, and the range of every curve."""
    header = ("rate", "median", "p80 - p20", "of data sheet", "how")
    rows = []
    for key, m in gpu.measured.items():
        share = of_peak(key, gpu)
        how = m.source.removeprefix("costmodel calibrate, ").removesuffix(", CUDA graphs")
        rows.append((key, f"{m.median:.4g}", _spread(m), "-" if share is None else f"{share:.0%}", how))
    curves = [(key, _points(c), "-", "-", f"{len(c.x)} points") for key, c in gpu.curves.items()]
    return render.rows_as(form, header, [*rows, *curves])


def _points(curve: Curve) -> str:
    return f"{min(curve.y):.4g} .. {max(curve.y):.4g}"


def compared(file: GPU, host: dict[str, Measured]) -> list[tuple[str, float, float, float]]:
    """(rate, the file's, the host's, host over file) of the rates that both have."""
    both = [key for key in host if key in file.measured]
    return [
        (key, file.measured[key].median, host[key].median, host[key].median / file.measured[key].median)
        for key in both
    ]


def _check_device(known: GPU, name: str) -> None:
    if name not in known.device_names:
        raise GPUFileError(
            f"{known.path} describes {', '.join(known.device_names)}; this device is {name!r}. Put its name into "
            "device_names of a copy, and its data sheet's values into [spec]"
        )
    if not known.runs_kernels:
        raise GPUFileError(f"{known.path}: {known.notes[0]}, nor can these kernels measure it")


def _compare(file: GPU, name: str, index: int, form: str) -> int:
    _check_device(file, name)
    host: dict[str, Measured] = {}
    wanted = set(file.measured)
    todo = [step for step in calibrate.steps(file) if wanted & set(step.keys)]
    for _, found in _with_progress(todo, datetime.date.today().isoformat(), index):
        host |= found.rates
    rows = compared(file, host)
    cells = [
        (key, f"{a:.4g}", f"{b:.4g}", f"{ratio:.3f}", "" if abs(ratio - 1) <= TOLERANCE else "differs")
        for key, a, b, ratio in rows
    ]
    print(render.rows_as(form, ("rate", "file", "this machine", "ratio", ""), cells))
    untold = sorted(wanted - set(host))
    if untold:
        render.note(f"not measured by calibrating: {', '.join(untold)}")
    wrong = [key for key, _, _, ratio in rows if abs(ratio - 1) > TOLERANCE]
    if wrong:
        render.note(f"more than {TOLERANCE:.0%} apart: {', '.join(wrong)}")
    return FAILED if wrong else 0
