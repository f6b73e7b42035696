"""Measurement files: ``costmodel/measurements/<gpu-slug>/<operation>.csv``, one row per case and provider.

The header is exactly `HEADER`. ``case`` is ``key=value`` pairs joined by ``;``, keys in the order of
`CASE_KEYS`; times are microseconds of GPU time; ``rel_err`` is the relative error against float64. A row is
refused when its error exceeds its bound or when a figure is not finite, so a committed file holds right
results only. Appending writes a new file and moves it into place: a reader never sees half a row, and a
header is never repeated.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from costmodel.errors import MeasurementError

FOLDER = Path(__file__).parent / "measurements"
HEADER = "op,case,dtype,provider,median_us,p20_us,p80_us,samples,bytes_min,flops,rel_err,date,commit,note"
MEND = "Mend the row, or delete it and measure again"
CASE_KEYS = {
    "fftconv": ("B", "H", "N", "L", "variant"),
    "fftconv_gradients": ("B", "H", "N", "L", "variant"),
    "linear": ("M", "N", "K"),
    "decode_attention": ("B", "Hq", "Hkv", "D", "L", "variant"),
    "decode_step": ("B", "L", "model"),
    "conv2d": ("S", "Cin", "Cout", "n", "k", "pass"),
}
TEXT_KEYS = ("variant", "pass", "model")
DTYPES = ("fp16", "bf16", "fp32")
LOOSEST_BOUND = {"fp16": 6e-3, "bf16": 4.8e-2, "fp32": 1e-5}
"""Errors that no right result of any operation has, by what it is stored in: 12 roundings of fp16 or bf16 that add up,
and 168 of fp32, in which sums may have ten thousands of terms (`reference.conv2d_bound`). Bounds of operations are
smaller (``reference.accuracy``), and are checked when a row is measured."""


@dataclass(frozen=True)
class Row:
    """One measured case of one provider; the fields are the columns."""

    op: str
    case: str
    dtype: str
    provider: str
    median_us: float
    p20_us: float
    p80_us: float
    samples: int
    bytes_min: int
    flops: int
    rel_err: float
    date: str
    commit: str
    note: str = ""

    @property
    def case_values(self) -> dict[str, int | str]:
        """The case as a dictionary."""
        return parse_case(self.op, self.case)

    @property
    def ours(self) -> bool:
        """Whether a kernel of this project ran."""
        return self.provider.partition(":")[0] == "ours"

    @property
    def provider_variant(self) -> str:
        """What follows ``ours:`` (or another provider's colon), else ``""``."""
        return self.provider.partition(":")[2]


def parse_case(op: str, case: str) -> dict[str, int | str]:
    """``"B=64;H=768;N=1024;L=1024;variant=plain"`` to a dictionary; keys must come in the order given."""
    if op not in CASE_KEYS:
        raise MeasurementError(f"op: got {op!r}; accepted: {', '.join(CASE_KEYS)}")
    pairs = [part.partition("=") for part in case.split(";")]
    keys = tuple(key for key, _, _ in pairs)
    if keys != CASE_KEYS[op]:
        raise MeasurementError(
            f"case: got {case!r}; accepted for {op}, in this order: "
            + ";".join(f"{key}=.." for key in CASE_KEYS[op])
        )
    out: dict[str, int | str] = {}
    for key, _, value in pairs:
        if key in TEXT_KEYS:
            if not value:
                raise MeasurementError(f"case: {key} is empty in {case!r}; accepted: a name")
            out[key] = value
        elif value.isascii() and value.isdigit() and int(value) > 0:
            out[key] = int(value)
        else:
            raise MeasurementError(
                f"case: {key}={value!r} in {case!r}; accepted: a whole number of at least 1"
            )
    return out


def format_case(op: str, values: dict[str, int | str]) -> str:
    """The inverse of `parse_case`; checks the keys and values on the way."""
    if op not in CASE_KEYS:
        raise MeasurementError(f"op: got {op!r}; accepted: {', '.join(CASE_KEYS)}")
    missing = [key for key in CASE_KEYS[op] if key not in values]
    extra = [key for key in values if key not in CASE_KEYS[op]]
    if missing or extra:
        raise MeasurementError(
            f"case of {op}: missing {missing}, not known {extra}; accepted: {CASE_KEYS[op]}"
        )
    case = ";".join(f"{key}={values[key]}" for key in CASE_KEYS[op])
    parse_case(op, case)
    return case


def check(row: Row, *, bound: float | None = None) -> Row:
    """The row itself, when every value is legal and its error is within ``bound`` (None: no bound to check).

    Raises:
        MeasurementError: which column, what came, what is accepted.
    """
    where = f"{row.provider} {row.case}"
    parse_case(row.op, row.case)
    if row.dtype not in DTYPES:
        raise MeasurementError(f"{where}: dtype: got {row.dtype!r}; accepted: {', '.join(DTYPES)}")
    for name in ("median_us", "p20_us", "p80_us"):
        value = getattr(row, name)
        if not (math.isfinite(value) and value > 0):
            raise MeasurementError(f"{where}: {name}: got {value}; accepted: a positive time")
    if not row.p20_us <= row.median_us <= row.p80_us:
        raise MeasurementError(
            f"{where}: p20 <= median <= p80 does not hold: {row.p20_us}, {row.median_us}, {row.p80_us}"
        )
    for name in ("samples", "bytes_min"):
        if getattr(row, name) < 1:
            raise MeasurementError(f"{where}: {name}: got {getattr(row, name)}; accepted: at least 1")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", row.date):
        raise MeasurementError(f'{where}: date: got {row.date!r}; accepted: a day as in "2026-11-30"')
    if row.flops < 0:
        raise MeasurementError(f"{where}: flops: got {row.flops}; accepted: 0 (unknown) or more")
    if not (math.isfinite(row.rel_err) and row.rel_err >= 0):
        raise MeasurementError(
            f"{where}: rel_err: got {row.rel_err}: the result is not a number, so not recorded"
        )
    if row.rel_err > LOOSEST_BOUND[row.dtype]:
        raise MeasurementError(
            f"{where}: rel_err: got {row.rel_err:.3g}; no right result of {row.dtype} has more than "
            f"{LOOSEST_BOUND[row.dtype]:g}. Delete the row, mend what is wrong and measure again"
        )
    if bound is not None and not row.rel_err <= bound:
        raise MeasurementError(
            f"{where}: rel_err {row.rel_err:.3g} exceeds its bound {bound:.3g}: wrong, so not recorded"
        )
    return row


def path_of(slug: str, op: str, *, folder: Path | None = None) -> Path:
    """Where the measurements of an operation on a GPU are."""
    return (folder or FOLDER) / slug / f"{op}.csv"


def read(slug: str, *, op: str | None = None, folder: Path | None = None) -> list[Row]:
    """All rows of a GPU (of one operation, or of all); an empty list when nothing was measured."""
    base = (folder or FOLDER) / slug
    # A folder may hold files with other columns beside them (costmodel.training).
    files = [base / f"{name}.csv" for name in ([op] if op else sorted(CASE_KEYS))]
    return [row for file in files if file.exists() for row in read_file(file)]


def read_file(path: Path) -> list[Row]:
    """The rows of one file, each checked."""
    return _parse(path.read_text(encoding="utf-8"), name=str(path))


def lines_of(text: str, *, name: str, header: str) -> list[tuple[int, list[str]]]:
    """The cells of every line of a CSV file under its header, with their numbers.

    Raises:
        MeasurementError: another header, or a line with more or fewer columns; with the line and the mend.
    """
    lines = text.splitlines()
    if not lines or lines[0] != header:
        raise MeasurementError(
            f"{name}, line 1: header: got {lines[0] if lines else 'an empty file'!r}; accepted: {header}. Write that, "
            "with the columns of all rows in its order, or delete the file and measure again"
        )
    found = list(enumerate(csv.reader(lines[1:]), start=2))
    count = len(header.split(","))
    for number, cells in found:
        if len(cells) != count:
            raise MeasurementError(f"{name}, line {number}: {len(cells)} columns; accepted: {count}. {MEND}")
    return found


def _parse(text: str, *, name: str) -> list[Row]:
    columns = HEADER.split(",")
    rows: list[Row] = []
    first: dict[tuple[str, str, str, str], int] = {}
    for number, cells in lines_of(text, name=name, header=HEADER):
        try:
            row = check(_row(dict(zip(columns, cells, strict=True))))
        except ValueError as error:
            mend = "" if str(error).endswith("measure again") else f". {MEND}"
            raise MeasurementError(f"{name}, line {number}: {error}{mend}") from error
        if (again := first.setdefault(_key(row), number)) != number:
            raise MeasurementError(
                f"{name}, line {number}: {row.provider} of {row.case} in {row.dtype} stands in line {again} already; "
                "delete one of them"
            )
        rows.append(row)
    return rows


def _row(cells: dict[str, str]) -> Row:
    kinds: dict[str, Callable[[str], Any]] = {"float": float, "int": int, "str": str}
    values = {}
    for f in fields(Row):
        try:
            values[f.name] = kinds[str(f.type)](cells[f.name])
        except ValueError:
            what = "a whole number" if f.type == "int" else "a number"
            raise MeasurementError(f"{f.name}: got {cells[f.name]!r}; accepted: {what}") from None
    return Row(**values)


def to_csv(rows: Iterable[Row]) -> str:
    """Header and rows as the text of a measurement file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER.split(","))
    for row in rows:
        writer.writerow([_cell(getattr(row, f.name)) for f in fields(Row)])
    return out.getvalue()


def _cell(value: float | int | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def append(
    rows: Iterable[Row],
    slug: str,
    *,
    bounds: Iterable[float | None] | None = None,
    folder: Path | None = None,
) -> list[Path]:
    """Add rows to the files of a GPU, replacing earlier rows of the same case, dtype and provider.

    Args:
        rows: what was measured.
        slug: the GPU.
        bounds: for each row, the largest error it may have (None: not bounded).
        folder: another measurement folder than the package's.

    Returns:
        The files written.

    Raises:
        MeasurementError: a row is illegal or wrong; then no file changes.
    """
    new = list(rows)
    limits = list(bounds) if bounds is not None else [None] * len(new)
    if len(limits) != len(new):
        raise MeasurementError(f"bounds: got {len(limits)} for {len(new)} rows; accepted: one for each")
    for row, bound in zip(new, limits, strict=True):
        check(row, bound=bound)
    written = []
    for op in dict.fromkeys(row.op for row in new):
        path = path_of(slug, op, folder=folder)
        merged = {_key(row): row for row in (read_file(path) if path.exists() else [])}
        merged |= {_key(row): row for row in new if row.op == op}
        write_whole(path, to_csv(merged.values()))
        written.append(path)
    return written


def _key(row: Row) -> tuple[str, str, str, str]:
    return (row.op, row.case, row.dtype, row.provider)


def write_whole(path: Path, text: str) -> None:
    """Write a file of text in UTF-8 beside its place and move it there: it is all new or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
