"""The GPU file that `costmodel calibrate` writes: a copy of a specification with what was measured put in.

Everything but ``[measured.*]``, ``[curve.*]`` and ``[calibration]`` is the specification's, comments included. A file
without ``[calibration]`` was written by hand, or is a data sheet, and is never written to.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from costmodel import gpus, measurements
from costmodel.calibrate import OURS
from costmodel.calibration import CURVES, Calibration, Curve
from costmodel.errors import GPUFileError
from costmodel.gpus import GPU, Measured

_TABLE = r"(?:^#[^\n]*\n)*^\[{name}\]\n(?:(?!^\[|^#[^\n]*\n(?:#[^\n]*\n)*\[)[^\n]*\n)*"


def start(path: Path, base: GPU) -> str:
    """The text to go on from: that of ``path``, or of ``base`` where there is no such file.

    Raises:
        GPUFileError: the file is a specification.
    """
    if not path.exists():
        return Path(base.path).read_text(encoding="utf-8")
    found = gpus.read(path)
    if found.calibration is None:
        raise GPUFileError(
            f"{path} is a specification, which calibrating never changes. Name another file, which is made from it: "
            f"costmodel calibrate --base {path} --gpu-file {path.with_name(path.stem + '-calibrated.toml').name}"
        )
    return path.read_text(encoding="utf-8")


def done(path: Path) -> tuple[str, ...]:
    """The rates and curves that a calibrated file has from calibrating."""
    if not path.exists():
        return ()
    found = gpus.read(path)
    rates = [key for key, m in found.measured.items() if m.source.startswith(OURS)]
    return (*rates, *found.curves)


def check_same(path: Path, now: Calibration) -> None:
    """Refuse to add to what another device, or another driver, gave.

    Raises:
        GPUFileError: naming both.
    """
    before = gpus.read(path).calibration if path.exists() else None
    for what in ("device_name", "driver"):
        if before is not None and getattr(before, what) != getattr(now, what):
            raise GPUFileError(
                f"{path} was calibrated with {what.replace('_', ' ')} {getattr(before, what)!r}, and this machine has "
                f"{getattr(now, what)!r}. Name another file, or measure all of it anew with --fresh"
            )


def put(
    text: str, rates: Mapping[str, Measured], curves: Mapping[str, Curve], calibration: Calibration | None
) -> str:
    """The text with tables put in, or in the place of those that were there."""
    for key, m in rates.items():
        figures: dict[str, float | None] = {
            "median": m.median,
            "p20": m.p20,
            "p80": m.p80,
            "samples": m.samples,
        }
        words = {"source": m.source, "date": m.date, "driver": m.driver}
        body = "".join(f"{name} = {value:.6g}\n" for name, value in figures.items() if value is not None)
        body += "".join(f'{name} = "{value}"\n' for name, value in words.items() if value)
        text = _put(text, f"measured.{key}", body)
    for key, curve in curves.items():
        x_name, y_name = CURVES[key]
        body = f"{x_name} = {_list(curve.x)}\n{y_name} = {_list(curve.y)}\n"
        text = _put(text, f"curve.{key}", body + f'source = "{curve.source}"\ndate = "{curve.date}"\n')
    if calibration:
        c = calibration
        text = _put(
            text,
            "calibration",
            f'device_name = "{c.device_name}"\ndriver = "{c.driver}"\nsm_clock_mhz = {c.sm_clock_mhz:.6g}\n'
            f'memory_clock_mhz = {c.memory_clock_mhz:.6g}\ndate = "{c.date}"\ncommit = "{c.commit}"\n',
        )
    return text


def _list(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{v:.15g}" if v == int(v) and v < 1e15 else f"{v:.6g}" for v in values) + "]"


def _put(text: str, name: str, body: str) -> str:
    table = f"[{name}]\n{body}"
    pattern = re.compile(_TABLE.format(name=re.escape(name)), re.MULTILINE)
    found = pattern.search(text)
    if found:
        return text[: found.start()] + table + "\n" + text[found.end() :].lstrip("\n")
    return text.rstrip("\n") + "\n\n" + table


def write(path: Path, text: str) -> None:
    """Write a file that was checked as a whole first; it is all new or as it was before.

    Raises:
        GPUFileError: the text is not a GPU file; then nothing is written.
    """
    gpus.parse(tomllib.loads(text), name=str(path))
    measurements.write_whole(path, text)
