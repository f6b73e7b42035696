"""Plans as text: what an operator that a compiler traces can take as an argument."""

from functools import cache
from operator import index

from monarch import Plan

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


@cache
def from_text(text: str) -> Plan | None:
    """The plan of `to_text`."""
    if text == DEFAULT:
        return None
    n, factors, packing, signal, wanted = text.split(":")
    return Plan(
        int(n),
        tuple(int(factor) for factor in factors.split("x")),
        packing=packing,
        signal=None if signal == "-" else int(signal),
        wanted=None if wanted == "-" else int(wanted),
    )
