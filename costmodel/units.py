"""Numbers with units: reading sizes and sweeps from the command line, writing quantities for people.

Sizes are integers with an optional binary suffix: K = 2^10, M = 2^20, G = 2^30 ("4K" is 4096, "1.5M" 1572864). A list
is sizes and sweeps joined by commas; a sweep is ``first:last:xF`` (multiply by F) or ``first:last:+D`` (add
D), last included.
"""

from __future__ import annotations

import re

SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
LONGEST_LIST = 1000
_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def size(text: str) -> int:
    """``"4K"`` to 4096, ``"1.5K"`` to 1536.

    Raises:
        ValueError: not a whole number of at least 1 with an optional K, M or G.
    """
    match = re.fullmatch(r"([0-9]+)(?:([KMG]?)|\.5([KMG]))", text.strip(), flags=re.IGNORECASE | re.ASCII)
    value = 0
    if match:
        value = int(match[1]) * SUFFIXES[(match[2] or match[3] or "").upper()]
        value += SUFFIXES[match[3].upper()] // 2 if match[3] else 0
    if value < 1:
        raise ValueError(
            f"{text!r} is not a size; accepted: a whole number of at least 1, K, M and G for 2^10, 2^20, 2^30"
        )
    return value


def sizes(text: str) -> list[int]:
    """``"256:4K:x4,3000"`` to [256, 1024, 4096, 3000].

    Raises:
        ValueError: a part is neither a size nor a sweep, or the sweep does not move.
    """
    out: list[int] = []
    for part in text.split(","):
        if ":" not in part:
            out.append(size(part))
            continue
        pieces = part.split(":")
        step = re.fullmatch(r"([x+])(.+)", pieces[-1].strip(), flags=re.IGNORECASE)
        if len(pieces) != 3 or step is None:
            raise ValueError(
                f"{part!r} is not a sweep; accepted: first:last:x2 (multiply) or first:last:+256 (add)"
            )
        value, last, by = size(pieces[0]), size(pieces[1]), size(step[2])
        multiply = step[1].lower() == "x"
        if multiply and by < 2:
            raise ValueError(f"{part!r} does not move; accepted: a factor of at least 2")
        if value > last:
            raise ValueError(f"{part!r} is empty: {value} is above {last}")
        while value <= last:
            out.append(value)
            value = value * by if multiply else value + by
            if len(out) > LONGEST_LIST:
                raise ValueError(f"{text!r} has over {LONGEST_LIST} values; take a larger step")
    return out


def pair(text: str) -> tuple[int, int]:
    """``"4097x4096"`` to (4097, 4096). Raises ``ValueError``."""
    parts = text.split("x")
    if len(parts) != 2:
        raise ValueError(f"got {text!r}; accepted: two sizes joined by an x, such as 4097x4096")
    return size(parts[0]), size(parts[1])


def short(value: int) -> str:
    """4096 to ``"4K"``, 1572864 to ``"1.5M"``; other numbers as they are."""
    if value > SUFFIXES["M"] and value % SUFFIXES["M"] == SUFFIXES["M"] // 2:
        return f"{value / SUFFIXES['M']}M"
    for suffix in ("G", "M", "K"):
        if value % SUFFIXES[suffix] == 0:
            return f"{value // SUFFIXES[suffix]}{suffix}"
    return str(value)


def quantity(value: float, unit: str) -> str:
    """4.26e12, ``"B/s"`` to ``"4.26 TB/s"`` (decimal prefixes, three digits)."""
    for scale, prefix in _SI:
        if abs(value) >= 0.9995 * scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def microseconds(value: float) -> str:
    """73.5 to ``"73.5 us"``, 22082 to ``"22.1 ms"``, 2.2e6 to ``"2.20 s"``, 0.00096 to ``"0.960 ns"``."""
    scale, unit = _time_unit(value)
    return f"{digits(value / scale)} {unit}"


def microseconds_between(low: float, high: float) -> str:
    """16.2, 18.7 to ``"16.2 .. 18.7 us"``; both in the unit of the larger."""
    scale, unit = _time_unit(high)
    return f"{digits(low / scale)} .. {digits(high / scale)} {unit}"


def _time_unit(value: float) -> tuple[float, str]:
    for scale, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "us")):
        if value >= scale * 0.9995:
            return scale, unit
    return (1e-3, "ns") if 0 < value < 0.01 else (1.0, "us")


def ratio(value: float) -> str:
    """1.174 to ``"1.17"``, 6837.5 to ``"6838"``."""
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def digits(value: float) -> str:
    """Three significant digits without an exponent: 5.20, 73.5, 716, 2950."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:#.3g}" if value else "0"
