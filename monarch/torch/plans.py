"""Plans and patterns of zeros as text: what an operator that a compiler traces can take as an argument."""

from __future__ import annotations

import base64
import zlib
from functools import cache, lru_cache
from operator import index

import numpy as np
import torch

from monarch import Plan, SparsityPattern

DEFAULT = ""


def to_text(plan: Plan | None) -> str:
    """A plan in one word, empty for none: ``1024:32x32:pair:-:-``, the last two its signal and wanted samples."""
    if plan is None:
        return DEFAULT
    if not isinstance(plan, Plan):
        raise TypeError(
            f"plan: expected a monarch.Plan or None, got {type(plan).__name__}; for instance "
            'monarch.Plan.parse("32x32")'
        )
    # index() makes a compiler take a number for what it is, instead of tracing a text of a number that may change.
    factors = "x".join([str(index(factor)) for factor in plan.factors])
    signal = "-" if plan.signal is None else str(index(plan.signal))
    wanted = "-" if plan.wanted is None else str(index(plan.wanted))
    return f"{index(plan.n)}:{factors}:{plan.packing}:{signal}:{wanted}"


def with_pattern(plan: Plan | None, pattern: SparsityPattern | None) -> str:
    """`to_text`, and the pattern's slots behind it, packed: ``1024:32x32:pair:-:-:eJxj...``."""
    text = to_text(plan)
    if pattern is None:
        return text
    if plan is None:
        raise ValueError("pattern: zeros are of one plan's spectrum; give that plan, too")
    return f"{text}:{_packed(pattern)}"


@torch.compiler.assume_constant_result  # a compiler sees the text alone
def _packed(pattern: SparsityPattern) -> str:
    if not isinstance(pattern, SparsityPattern):
        raise TypeError(f"pattern: expected a monarch.SparsityPattern, got {type(pattern).__name__}")
    return _packed_slots(pattern)


@lru_cache(maxsize=64)
def _packed_slots(pattern: SparsityPattern) -> str:
    return base64.b64encode(zlib.compress(np.packbits(pattern.kept).tobytes())).decode()


@cache
def pattern_from_text(text: str) -> SparsityPattern | None:
    """The pattern of `with_pattern`, or None."""
    parts = text.split(":")
    if len(parts) < 6:
        return None
    plan = from_text(text)
    assert plan is not None
    bits = np.frombuffer(zlib.decompress(base64.b64decode(parts[5])), np.uint8)
    return SparsityPattern(plan.factors, np.unpackbits(bits, count=plan.points).astype(np.bool_))


@cache
def from_text(text: str) -> Plan | None:
    """The plan of `to_text`, or `with_pattern`."""
    if text == DEFAULT:
        return None
    n, factors, packing, signal, wanted = text.split(":")[:5]
    return Plan(
        int(n),
        tuple(int(factor) for factor in factors.split("x")),
        packing=packing,
        signal=None if signal == "-" else int(signal),
        wanted=None if wanted == "-" else int(wanted),
    )
