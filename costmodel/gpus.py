"""GPU files: what is known about a GPU, each value with its unit, its source and its date.

A file ``costmodel/gpus/<slug>.toml`` has four sections, and those of `costmodel.calibration` where it was calibrated:

``[identity]``  slug, exact device names, compute capability.
``[spec]``      data-sheet values, and a ``note`` on what is unsure. Enough for a prediction with wide intervals.
``[measured.*]`` rates measured on the GPU: median, and where known p20, p80, samples and driver.
``[model.*]``   fitted factors of the time model (costmodel.timing), each with its relative uncertainty.

Every key ends in its unit (``_bytes_per_s``, ``_flops_per_s``, ``_mhz``, ``_us``, ``_bytes``), and every
value is checked against the range that its unit allows: a rate written in TB/s where bytes/s are wanted is
an error that says so, not a prediction that is 10^12 off.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from costmodel import gpu_checks
from costmodel.calibration import RATES, Calibration, Curve, read_calibration, read_curves
from costmodel.errors import GPUFileError, NoGPUError, UnknownGPUError

SCHEMA_VERSION = 1
FOLDER = Path(__file__).parent / "gpus"

# key -> (lowest, highest) plausible value: wide enough for any GPU of 2015-2030, too narrow for a wrong
# prefix.
SPEC_RANGES: dict[str, tuple[float, float]] = {
    "sm_count": (1, 1024),
    "boost_clock_mhz": (300, 5000),
    "tensor_clock_mhz": (300, 5000),
    "fp16_tensor_fma_per_sm_per_clock": (64, 16384),
    "fp16_tensor_flops_per_s": (5e12, 2e16),
    "fp16_vector_flops_per_s": (1e12, 2e15),
    "fp32_flops_per_s": (1e12, 2e15),
    "memory_bandwidth_bytes_per_s": (1e11, 1e14),
    "memory_bytes": (2e9, 2e12),
    "l2_bytes": (2**20, 2**30),
    "shared_memory_per_sm_bytes": (2**15, 2**20),
    "shared_memory_per_block_bytes": (2**15, 2**20),
    "shared_memory_bytes_per_sm_per_clock": (32, 1024),
    "registers_per_sm": (2**14, 2**18),
    "threads_per_sm": (512, 8192),
}
MEASURED_RANGES: dict[str, tuple[float, float]] = {
    "device_copy_bytes_per_s": (1e11, 1e14),
    "read_stream_bytes_per_s": (1e11, 1e14),
    "onchip_bytes_per_s": (1e12, 1e15),
    "mma_flops_per_s": (5e12, 2e16),
    "dense_product_flops_per_s": (5e12, 2e16),
    "vector_flops_per_s": (1e12, 2e15),
    **RATES,
}
MODEL_RANGES: dict[str, tuple[float, float]] = {
    "stages_per_worker": (0.01, 100.0),
    "half_rate_warps": (0.01, 64.0),
    "launch_us": (0.0, 100.0),
    "memory_fraction": (0.05, 1.2),
    "tensor_fraction": (0.05, 1.2),
    "shared_fraction": (0.05, 1.2),
    "l2_fraction": (0.05, 1.2),
    "issue_fraction": (0.05, 1.2),
    "fp32_half_rate_warps": (0.01, 64.0),
    "fp32_issue_fraction": (0.05, 2.0),
    "model_error": (0.0, 1.0),
    "memory_fraction_of_spec": (0.05, 1.0),
    "tensor_fraction_of_spec": (0.05, 1.0),
}
KERNELS_NEED = (8, 0)
"""The least compute capability that has the kernels' instructions: m16n8k16 products and asynchronous copies."""
OPTIONAL_MODEL = ("memory_fraction_of_spec", "tensor_fraction_of_spec")
_IDENTITY_KEYS = ("slug", "device_names", "compute_capability")
_MEASURED_KEYS = ("median", "p20", "p80", "samples", "driver", "date", "source")
_MODEL_KEYS = ("value", "relative_uncertainty", "date", "source")


@dataclass(frozen=True)
class Measured:
    """One measured rate: ``median`` in the unit of its key, with the spread where it was recorded."""

    median: float
    source: str
    date: str
    p20: float | None = None
    p80: float | None = None
    samples: int | None = None
    driver: str | None = None


@dataclass(frozen=True)
class Factor:
    """One factor of the time model and its relative uncertainty (one standard deviation)."""

    value: float
    relative_uncertainty: float
    source: str
    date: str


@dataclass(frozen=True)
class GPU:
    """A GPU as its file describes it; ``spec`` in the units of the key names."""

    slug: str
    device_names: tuple[str, ...]
    compute_capability: str
    spec: dict[str, float]
    spec_source: str
    spec_date: str
    measured: dict[str, Measured] = field(default_factory=dict)
    model: dict[str, Factor] = field(default_factory=dict)
    path: str = ""
    spec_note: str = ""
    spec_sources: dict[str, str] = field(default_factory=dict)
    """Where single values of ``spec`` are from, if not from ``spec_source``."""
    curves: dict[str, Curve] = field(default_factory=dict)
    calibration: Calibration | None = None

    @property
    def runs_kernels(self) -> bool:
        """Whether kernels of this project run here: by compute capability alone (`KERNELS_NEED`)."""
        return has_instructions(self.compute_capability)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any prediction on this GPU must know."""
        if self.runs_kernels:
            return ()
        need = ".".join(map(str, KERNELS_NEED))
        return (
            f"no kernel of this project runs on {self.slug}: compute capability {self.compute_capability} lacks "
            f"m16n8k16 products and asynchronous copies ({need} has them); the times are of kernels not written",
        )

    @property
    def data_sheet_only(self) -> bool:
        """True when no rate was measured on this GPU: predictions rest on its data sheet."""
        return not self.measured

    @property
    def shared_memory_bytes_per_s(self) -> float:
        """Peak of all shared memories together: SMs x bytes per clock x boost clock."""
        s = self.spec
        return s["sm_count"] * s["shared_memory_bytes_per_sm_per_clock"] * s["boost_clock_mhz"] * 1e6

    def describe(self) -> dict[str, Any]:
        """The short form that every JSON answer carries under ``gpu``."""
        return {
            "slug": self.slug,
            "device_names": list(self.device_names),
            "compute_capability": self.compute_capability,
            "data_sheet_only": self.data_sheet_only,
        }


def has_instructions(compute_capability: str) -> bool:
    """Whether a compute capability such as ``"8.6"`` has what the kernels of this project need."""
    major, minor = map(int, compute_capability.split("."))
    return (major, minor) >= KERNELS_NEED


def slugs() -> list[str]:
    """The GPUs that have a file, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(gpu: str | Path | GPU) -> GPU:
    """A GPU from its slug (``"h200-sxm"``), from ``"auto"`` or from the path of a ``.toml`` file.

    Raises:
        UnknownGPUError: no such slug; the message has the nearest names and how to make a file.
        NoGPUError: ``"auto"`` and no GPU here.
        GPUFileError: the file is there and is wrong; the message names the key.
    """
    if isinstance(gpu, GPU):
        return gpu
    if not isinstance(gpu, str | Path):
        raise TypeError(
            f"gpu: got {type(gpu).__name__}; accepted: a slug such as 'h200-sxm', 'auto', a path, a GPU"
        )
    text = str(gpu)
    if text == "auto":
        return _local_gpu()
    if text.endswith(".toml"):
        return read(text)
    known = {slug.lower(): slug for slug in slugs()}
    if text.lower() in known:
        return _load_slug(known[text.lower()])
    raise UnknownGPUError(_unknown(text))


@lru_cache(maxsize=64)
def _load_slug(slug: str) -> GPU:
    return read(FOLDER / f"{slug}.toml")


def _unknown(text: str) -> str:
    names = slugs()
    near = [n for n in names if text.lower() in n] or difflib.get_close_matches(
        text.lower(), names, n=3, cutoff=0.3
    )
    base = (near or names)[0]
    return (
        f"unknown GPU {text!r}. Nearest: {', '.join(near) if near else 'none'}; all: {', '.join(names)}.\n"
        "To add one, copy the nearest file, put in the values of the data sheet, and pass its path:\n"
        f"  python -m costmodel gpus --show {base} > my.toml\n"
        "  python -m costmodel predict fftconv --gpu my.toml"
    )


def local_device_name() -> str | None:
    """The exact name of this machine's GPU; None without one (the CPU body of the kernels would run)."""
    try:
        import kernels_numba
    except ImportError:
        return None
    here = kernels_numba.device()
    return str(here.name) if here.is_gpu else None


def _local_gpu() -> GPU:
    name = local_device_name()
    if name is None:
        raise NoGPUError(
            "--gpu auto: no GPU here (the CPU body of the kernels would run). "
            f"Name one instead: --gpu {' or --gpu '.join(slugs())}"
        )
    return by_device_name(name)


def by_device_name(name: str) -> GPU:
    """The GPU whose file lists exactly this device name.

    Raises:
        UnknownGPUError: no file lists it.
    """
    for slug in slugs():
        gpu = _load_slug(slug)
        if name in gpu.device_names:
            return gpu
    listed = {n: s for s in slugs() for n in _load_slug(s).device_names}
    near = difflib.get_close_matches(name, listed, n=1, cutoff=0.0)
    base = listed[near[0]] if near else slugs()[0]
    raise UnknownGPUError(
        f"unknown GPU: this device is named {name!r} and no file lists that name (nearest: {base}).\n"
        f"  python -m costmodel gpus --show {base} > my.toml    # then put {name!r} into device_names\n"
        "  python -m costmodel predict fftconv --gpu my.toml"
    )


def file_text(slug: str) -> str:
    """The text of a GPU's file."""
    return Path(load(slug).path).read_text(encoding="utf-8")


def read(path: str | Path) -> GPU:
    """Read and check one GPU file."""
    where = Path(path)
    try:
        text = where.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise UnknownGPUError(
            f"GPU file {str(path)!r} cannot be read ({error.strerror}). "
            f"Make one: python -m costmodel gpus --show {slugs()[0]} > {where.name}"
        ) from error
    except UnicodeDecodeError as error:
        raise GPUFileError(f"{path}: not UTF-8 text ({error.reason}); accepted: TOML in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise GPUFileError(f"{path}: not valid TOML: {error}") from error
    try:
        return parse(data, name=str(path))
    except GPUFileError as error:
        raise GPUFileError(gpu_checks.with_line(str(error), str(path), text)) from error


def parse(data: dict[str, Any], *, name: str) -> GPU:
    """Check the content of a GPU file and build the GPU; ``name`` is what errors call the file."""
    sections = ("schema_version", "identity", "spec", "measured", "model", "curve", "calibration")
    _only(data, sections, f"{name}: top level")
    if problem := gpu_checks.schema_problem(data.get("schema_version"), SCHEMA_VERSION):
        raise GPUFileError(f"{name}: {problem}")
    identity = _section(data, "identity", name)
    _only(identity, _IDENTITY_KEYS, f"{name}: identity")
    names = identity.get("device_names")
    if not (isinstance(names, list) and names and all(isinstance(n, str) for n in names)):
        raise GPUFileError(f"{name}: identity.device_names: got {names!r}; accepted: a list of device names")
    capability = _text(identity, "compute_capability", f"{name}: identity")
    if not re.fullmatch(r"[0-9]{1,2}\.[0-9]", capability):
        raise GPUFileError(
            f'{name}: identity.compute_capability: got {capability!r}; accepted: a text such as "9.0"'
        )
    spec = dict(_section(data, "spec", name))
    note = _text(spec, "note", f"{name}: spec") if "note" in spec else ""
    sources = _sources(spec.pop("sources", {}), f"{name}: spec.sources")
    spec_source, spec_date = _origin(spec, f"{name}: spec")
    _only(spec, tuple(SPEC_RANGES), f"{name}: spec")
    _all_there(spec, tuple(SPEC_RANGES), f"{name}: spec")
    numbers = {key: _number(value, SPEC_RANGES[key], f"{name}: spec.{key}") for key, value in spec.items()}
    if problem := gpu_checks.architecture_problem(capability, numbers):
        raise GPUFileError(f"{name}: {problem}")
    return GPU(
        slug=_text(identity, "slug", f"{name}: identity"),
        device_names=tuple(names),
        compute_capability=capability,
        spec=numbers,
        spec_source=spec_source,
        spec_date=spec_date,
        spec_sources=sources,
        measured=_measured(data.get("measured", {}), name),
        model=_model(_section(data, "model", name), name),
        path=name,
        spec_note=note,
        curves=read_curves(data.get("curve", {}), name),
        calibration=read_calibration(data.get("calibration"), name),
    )


def _measured(section: dict[str, Any], name: str) -> dict[str, Measured]:
    _only(section, tuple(MEASURED_RANGES), f"{name}: measured")
    out = {}
    for key, row in section.items():
        where = f"{name}: measured.{key}"
        if not isinstance(row, dict):
            raise GPUFileError(f"{where}: got {row!r}; accepted: a table with median, source and date")
        _only(row, _MEASURED_KEYS, where)
        _all_there(row, ("median",), where)
        source, date = _origin(dict(row), where)
        limits = MEASURED_RANGES[key]
        values = {q: _number(row[q], limits, f"{where}.{q}") for q in ("median", "p20", "p80") if q in row}
        if not values.get("p20", 0.0) <= values["median"] <= values.get("p80", math.inf):
            raise GPUFileError(f"{where}: p20 <= median <= p80 does not hold: {values}")
        out[key] = Measured(
            source=source,
            date=date,
            samples=row.get("samples"),
            driver=row.get("driver"),
            median=values["median"],
            p20=values.get("p20"),
            p80=values.get("p80"),
        )
    return out


def _model(section: dict[str, Any], name: str) -> dict[str, Factor]:
    _only(section, tuple(MODEL_RANGES), f"{name}: model")
    _all_there(section, tuple(k for k in MODEL_RANGES if k not in OPTIONAL_MODEL), f"{name}: model")
    out = {}
    for key, row in section.items():
        where = f"{name}: model.{key}"
        if not isinstance(row, dict):
            raise GPUFileError(f"{where}: got {row!r}; accepted: a table with value and relative_uncertainty")
        _only(row, _MODEL_KEYS, where)
        _all_there(row, ("value", "relative_uncertainty"), where)
        source, date = _origin(dict(row), where)
        out[key] = Factor(
            value=_number(row["value"], MODEL_RANGES[key], f"{where}.value"),
            relative_uncertainty=_number(
                row["relative_uncertainty"], (0.0, 1.0), f"{where}.relative_uncertainty"
            ),
            source=source,
            date=date,
        )
    return out


def _section(data: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    section = data.get(key)
    if not isinstance(section, dict):
        raise GPUFileError(
            f"{name}: section [{key}] is missing. See `python -m costmodel gpus --show h200-sxm`"
        )
    return section


def _only(section: dict[str, Any], accepted: tuple[str, ...], where: str) -> None:
    for key in section:
        if key not in accepted:
            near = difflib.get_close_matches(key, accepted, n=1, cutoff=0.4)
            mend = f"did you mean {near[0]!r} (mind the unit)?" if near else "remove it"
            raise GPUFileError(f"{where}: unknown key {key!r}; accepted: {', '.join(accepted)}; {mend}")


def _all_there(section: dict[str, Any], wanted: tuple[str, ...], where: str) -> None:
    missing = [key for key in wanted if key not in section]
    if missing:
        raise GPUFileError(
            f"{where}: missing {', '.join(missing)}; add the value in the unit that ends the key"
        )


def _sources(section: Any, where: str) -> dict[str, str]:
    if not isinstance(section, dict):
        raise GPUFileError(f"{where}: got {section!r}; accepted: a table, a text in quotes for a value's key")
    _only(section, tuple(SPEC_RANGES), where)
    return {key: _text(section, key, where) for key in section}


def _origin(section: dict[str, Any], where: str) -> tuple[str, str]:
    out = _text(section, "source", where), _text(section, "date", where)
    if not (len(out[1]) == 10 and out[1].replace("-", "").isdigit()):
        raise GPUFileError(f'{where}.date: got {out[1]!r}; accepted: a day as in "2026-11-30"')
    return out


def _text(section: dict[str, Any], key: str, where: str) -> str:
    value = section.pop(key, None) if key in ("source", "date", "note") else section.get(key)
    if not isinstance(value, str) or not value.strip():
        raise GPUFileError(f"{where}.{key}: got {value!r}; accepted: a text in quotes")
    return value


def _number(value: Any, limits: tuple[float, float], where: str) -> float:
    low, high = limits
    accepted = f"accepted: a number from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GPUFileError(f"{where}: got {value!r}; {accepted}, without quotes or a unit")
    if not math.isfinite(value):
        raise GPUFileError(f"{where}: got {value}; {accepted}. A measured rate that is not known is left out")
    if not low <= value <= high:
        raise GPUFileError(f"{where}: got {value:g}; {accepted}. {_unit_hint(float(value), limits, where)}")
    return float(value)


def _unit_hint(value: float, limits: tuple[float, float], where: str) -> str:
    if value < 0:
        return "It cannot be negative"
    for factor, prefix in ((1e12, "tera"), (1e9, "giga"), (1e6, "mega"), (1e3, "kilo")):
        if limits[0] <= value * factor <= limits[1]:
            return (
                f"The key's unit has no prefix; if this was meant in {prefix}-units, write {value * factor:g}"
            )
    return f"The unit is the ending of {where.rsplit('.', 1)[-1]!r}"
