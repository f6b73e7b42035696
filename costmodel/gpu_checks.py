"""What a GPU file is held to beside the ranges of its units: its architecture, its schema, and the line of a fault."""

from __future__ import annotations

import re

SCHEMA_CHANGES = {
    1: "every key ends in its unit, without a prefix; each rate and factor is a table with source and date, and a "
    "factor has a relative_uncertainty"
}
"""By schema version, what it changed."""

KIB = 1024
ARCHITECTURES: dict[str, tuple[int, int, int]] = {
    "7.0": (96 * KIB, 96 * KIB, 2048),
    "7.5": (64 * KIB, 64 * KIB, 1024),
    "8.0": (164 * KIB, 163 * KIB, 2048),
    "8.6": (100 * KIB, 99 * KIB, 1536),
    "8.7": (164 * KIB, 163 * KIB, 1536),
    "8.9": (100 * KIB, 99 * KIB, 1536),
    "9.0": (228 * KIB, 227 * KIB, 2048),
    "10.0": (228 * KIB, 227 * KIB, 2048),
    "10.3": (228 * KIB, 227 * KIB, 2048),
    "12.0": (100 * KIB, 99 * KIB, 1536),
    "12.1": (100 * KIB, 99 * KIB, 1536),
}
"""Shared memory of an SM and of a block in bytes, and threads of an SM, at most (CUDA C++ Programming Guide, technical
specifications per compute capability)."""
REGISTERS_PER_SM = 65536
COUNTED = (
    *("sm_count", "fp16_tensor_fma_per_sm_per_clock", "l2_bytes", "shared_memory_per_sm_bytes"),
    *("shared_memory_per_block_bytes", "registers_per_sm", "threads_per_sm"),
)
"""Values that are whole numbers."""
RATE_TOLERANCE = 0.1
"""Data sheets round, and state rates at clocks of their own; a rate with sparsity is off by 1."""
LIMITED = ("shared_memory_per_sm_bytes", "shared_memory_per_block_bytes", "threads_per_sm")


def architecture_problem(capability: str, spec: dict[str, float]) -> str:
    """What in a specification the architecture does not have, with what it has; empty where all is possible."""
    for key in COUNTED:
        if spec[key] % 1:
            return f"spec.{key}: got {spec[key]:g}; accepted: a whole number"
    derived = 2e6 * spec["sm_count"] * spec["fp16_tensor_fma_per_sm_per_clock"] * spec["tensor_clock_mhz"]
    if abs(spec["fp16_tensor_flops_per_s"] / derived - 1) > RATE_TOLERANCE:
        return (
            f"spec.fp16_tensor_flops_per_s: got {spec['fp16_tensor_flops_per_s']:.4g}, but 2 x sm_count x "
            f"fp16_tensor_fma_per_sm_per_clock x tensor_clock_mhz is {derived:.4g} flop/s; accepted: within "
            f"{RATE_TOLERANCE:.0%}. Mend the one that is wrong (a rate with sparsity is twice the dense one)"
        )
    for key, most in zip(LIMITED, ARCHITECTURES.get(capability, ()), strict=False):
        if spec[key] > most:
            return (
                f"spec.{key}: got {spec[key]:g}; compute capability {capability} has at most {most}. Write that, or "
                "mend identity.compute_capability"
            )
    if capability in ARCHITECTURES and spec["registers_per_sm"] > REGISTERS_PER_SM:
        return (
            f"spec.registers_per_sm: got {spec['registers_per_sm']:g}; compute capability {capability} has "
            f"{REGISTERS_PER_SM}. Write that"
        )
    block, sm = spec["shared_memory_per_block_bytes"], spec["shared_memory_per_sm_bytes"]
    if block > sm:
        return (
            f"spec.shared_memory_per_block_bytes: got {block:g}, more than an SM has (shared_memory_per_sm_bytes = "
            f"{sm:g}); accepted: at most that"
        )
    return ""


def schema_problem(found: object, current: int) -> str:
    """What is wrong with a file's schema version, with what changed since; empty where it is the current one."""
    start = "start from `python -m costmodel gpus --show h200-sxm`"
    if found == current and not isinstance(found, bool):
        return ""
    text = f"schema_version: got {found!r}; accepted: {current}"
    if isinstance(found, int) and not isinstance(found, bool) and found > current:
        return f"{text}. The file is of a newer version of monarch-numba: update it, or {start}"
    since = found if isinstance(found, int) and not isinstance(found, bool) else 0
    changes = "; ".join(
        f"version {version}: {change}" for version, change in SCHEMA_CHANGES.items() if version > since
    )
    return f"{text}. What changed since ({changes}): bring the values over, or {start}"


def line_of(text: str, section: str, key: str) -> int | None:
    """The line of a GPU file where a key of a section (such as ``measured.mma_flops_per_s``) stands.

    That of the section's head where it has no such key; None where there is neither.
    """
    inside, head = section == "", None
    for number, line in enumerate(text.splitlines(), start=1):
        if found := re.match(r"\s*\[([^\[\]]+)\]", line):
            if inside and section:
                break
            inside = found[1].strip() == section
            head = number if inside else head
        elif inside and re.match(rf'\s*"?{re.escape(key)}"?\s*=', line):
            return number
    return head


def with_line(message: str, name: str, text: str) -> str:
    """A message about file ``name`` with the line that it is about, where it can be found.

    Messages name a place as ``section.key``, ``section.table.key`` or ``section: unknown key 'key'``.
    """
    place = re.match(re.escape(name) + r": ([\w ]+(?:\.\w+)*)(?:: unknown key '([^']*)')?", message)
    if place is None:
        return message
    parts = ([] if place[1] == "top level" else place[1].split(".")) + ([place[2]] if place[2] else [])
    # A key of a table, a key of a section, or a section as a whole.
    for cut in range(len(parts) - 1, -1, -1):
        found = line_of(text, ".".join(parts[:cut]), parts[cut]) if cut < len(parts) else None
        if found is None and cut == len(parts) - 1:
            found = line_of(text, ".".join(parts), "")
        if found is not None:
            return f"{name}, line {found}{message[len(name) :]}"
    return message
