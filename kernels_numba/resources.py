"""What every kernel takes of a GPU, as a table that is kept with the code: ``python -m kernels_numba.resources``.

Registers decide how many warps an SM can hold, and a register that does not fit (a spill) costs memory traffic in
the innermost loop; neither shows in a test of values. So all kernels are compiled to machine code, which needs no
GPU, and the figures are compared with the committed table (``resources.csv``): more spills or stack, another number
of tensor-core instructions, double-precision arithmetic, or eight registers more is a failure.

Without options: print the table as CSV, and exit with 1 if it is worse than the committed one. ``--write`` commits
what was found, ``--add`` only compiles kernels that have no row yet. ``--arch sm_90 ...`` restricts it to some
architectures.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from kernels_numba import (
    backward_pass,
    filter_gradient,
    filter_passes,
    filter_short,
    filter_whole,
    fused_deep,
    fused_group,
    fused_warp,
    gradient_families,
    gradient_float,
    linear_group,
    linear_realign,
    short_conv,
    warp_filter,
)
from kernels_numba.any_resources import any_kernels, float_kernels
from kernels_numba.families import default_plans, family_of, runs_on
from kernels_numba.layer_resources import layer_kernels
from kernels_numba.linear_product import Choice, product
from kernels_numba.linear_settings import FULL_TILES, default_choice
from kernels_numba.long_resources import long_kernels
from kernels_numba.spectrum import ORDINARY
from monarch import Plan

TABLE = Path(__file__).with_name("resources.csv")
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
COLUMNS = (
    "kernel",
    "arch",
    "registers",
    "spill_stores",
    "spill_loads",
    "stack_bytes",
    "static_shared_bytes",
    "dynamic_shared_bytes",
    "mma",
    "instructions",
    "toolchain",
)
MORE_REGISTERS = 8
"""As many may be added without a new table: another release of the compiler moves them by a few."""
REGENERATE = "`python -m kernels_numba.resources --write` makes the table anew"


def kernels() -> Iterator[tuple[Any, Any]]:
    """(family, spec) of every kernel in the table.

    Order 2: the default plans, and 32x16, in both formats, the gated and guarded kernel of 256 and of 1024 points, and
    the causal one of 1024. On warpgroups: all in both formats, and both variants of 4096 points. Order 3: the default
    plans, 16x32x32, 32x32x32, 80x16x16 and 96x16x16, in both formats, and the same variants of the shortest. Order 4:
    all plans in both formats, the gated and guarded kernels, and the causal one for pairs. Half signals by right-angle
    packing: the default plans, of 1024, 4096 and 8192 in both formats and with gates. Any factors and fp32: see
    `any_resources`. Filters: the passes in fp32. Linear layers: the default kernels of some shapes and M, one of each
    with K not a multiple of 8 and split, all tiles of the full product, and the realigning copy. Convolution layers:
    see `layer_kernels`. Long transforms: see `long_kernels`. Those that measure a GPU: `_probes`. Results under two
    gates: see `_two_gates`. Those that transform their filters: see `_from_taps`.
    """
    warp = [plan for plan in default_plans().values() if family_of(plan) is fused_warp]
    for plan in (*warp, Plan(512, (32, 16))):
        for dtype in ("fp16", "bf16"):
            yield _kernel(plan, dtype)
    for n1 in (16, 32):
        yield _kernel(Plan(n1 * n1, (n1, n1)), "fp16", guarded=True, pregate=True, postgate=True)
    yield _kernel(Plan(1024, (32, 32), signal=512, wanted=512), "fp16")
    for pair in fused_group.FACTORS:
        for dtype in ("fp16", "bf16"):
            yield _kernel(Plan(prod(pair), pair), dtype)
    yield _kernel(Plan(4096, (64, 64)), "fp16", guarded=True, pregate=True, postgate=True)
    yield _kernel(Plan(4096, (64, 64), signal=2048, wanted=2048), "fp16")
    longest = (32, 32, 32)  # not the default where order 4 is faster; nor is 16x32x32
    block = [plan for plan in default_plans().values() if plan.order == 3]
    for plan in (
        *block,
        Plan(16384, (16, 32, 32)),
        Plan(32768, longest),
        Plan(65536, longest, packing="half"),
        Plan(20480, (80, 16, 16)),
        Plan(24576, (96, 16, 16)),
    ):
        for dtype in ("fp16", "bf16"):
            yield _kernel(plan, dtype)
    plan = min(block, key=lambda plan: plan.n)
    shortest = plan.n
    yield _kernel(plan, "fp16", guarded=True, pregate=True, postgate=True)
    yield _kernel(plan.with_(signal=shortest // 2, wanted=shortest // 2), "fp16")
    turned = [plan for plan in default_plans(halved=True).values() if plan.packing == "right-angle"]
    for plan in (plan for plan in turned if plan.order < 4):
        yield _kernel(plan, "fp16")
        if plan.n in (1024, 4096, 8192):
            yield _kernel(plan, "bf16")
            yield _kernel(plan, "fp16", guarded=True, pregate=True, postgate=True)
    yield from _order_4()
    yield from any_kernels()
    yield from _gradients()
    yield from _linear()
    yield from attention_kernels()
    yield from long_kernels()
    yield from float_kernels()
    for spec in (
        filter_passes.Spec("first", 16, "fp32", "fp16"),
        filter_passes.Spec("first", 24, "fp32", "fp16", turned=True),
        filter_passes.Spec("sums", 17, "fp32", "fp16"),
        filter_passes.Spec("next", 16, dtype="fp16"),
        filter_passes.Spec("next", 32, dtype="fp16"),
        filter_passes.Spec("end", 32, dtype="fp16", peaks=True),
        filter_passes.Spec("end", 16, dtype="fp16"),
        filter_passes.Spec("peak", dtype="fp16"),
        filter_passes.Spec("scale", dtype="fp16", limits=ORDINARY["fp16"]),
        filter_passes.Spec("last", dtype="fp16"),
    ):
        yield filter_passes.family(spec), spec
    yield from _two_gates()
    yield from _from_taps()
    yield from layer_kernels()
    yield from _probes()


def _two_gates() -> Iterator[tuple[Any, Any]]:
    """Kernels whose results go under two output gates: the default of an order each, and in fp32."""
    both = {"pregate": True, "postgate": True, "twice": True}
    for n, dtype in ((1024, "fp16"), (4096, "fp16"), (16384, "fp16"), (1024, "fp32")):
        yield _kernel(default_plans(dtype=dtype)[n], dtype, **both)


def _from_taps() -> Iterator[tuple[Any, Any]]:
    """Convolutions that transform their filters: by points of a lane, as they run on an H200 at B = 64, H = 768."""
    for n, filters in ((256, 4), (512, 8), (768, 2)):
        yield _kernel_from_taps(default_plans()[n], filters)
    for n, filters in ((512, 8), (768, 2), (1024, 8), (1280, 4), (1536, 4)):
        plan = default_plans(halved=True)[n]
        yield _kernel_from_taps(plan.with_(signal=n // 2, wanted=n // 2), filters)


def _kernel_from_taps(plan: Plan, filters: int) -> tuple[Any, Any]:
    spec = fused_warp.make_spec(plan, "fp16", guarded=False, scaled=True)
    spec = replace(spec, taps="fp32", filters=filters)
    return warp_filter.family(spec), spec


def _probes() -> Iterator[tuple[Any, Any]]:
    """The kernels that measure a GPU (`costmodel.calibrate`), one of each kind and type."""
    from kernels_numba import group_probes, probes

    for kind, depth, warps, dtype, blocks in (
        ("read", 8, 4, "fp16", 2),
        ("write", 1, 8, "fp16", 2),
        ("copy", 1, 8, "fp16", 2),
        ("shared", 4, 8, "fp16", 4),
        ("fma", 8, 8, "fp16", 4),
        ("fma_halves", 8, 8, "fp16", 4),
        ("fma_halves", 8, 8, "bf16", 4),
        ("exp", 8, 8, "fp16", 4),
        ("mma", 8, 8, "fp16", 2),
        ("mma", 8, 8, "bf16", 2),
        ("mma_narrow", 8, 8, "fp16", 2),
        ("mma_tf32", 8, 8, "fp16", 2),
        ("launch", 1, 1, "fp16", 2),
        ("barrier", 1, 8, "fp16", 2),
    ):
        yield probes, probes.Spec(kind, depth, warps, dtype, blocks)
    for columns, dtype in ((64, "fp16"), (128, "fp16"), (256, "fp16"), (256, "bf16")):
        yield group_probes, group_probes.Spec(columns, dtype)


def _order_4() -> Iterator[tuple[Any, Any]]:
    for packing, lists in fused_deep.PACKINGS.items():
        for factors in lists:
            plan = Plan.of(factors, packing=packing)
            for dtype in ("fp16", "bf16"):
                yield fused_deep, fused_deep.make_spec(plan, dtype)
            yield fused_deep, fused_deep.make_spec(plan, "fp16", guarded=True, pregate=True, postgate=True)
            if packing == "pair":
                causal = plan.with_(signal=plan.n // 2, wanted=plan.n // 2)
                yield fused_deep, fused_deep.make_spec(causal, "fp16")


def _gradients() -> Iterator[tuple[Any, Any]]:
    """Gradients in the filter: each way to keep sums, gated ones, half signals, bf16, fp32; and to and from taps."""
    for factors, dtype, gated in (
        ((16, 16), "fp16", True),
        ((32, 32), "fp16", False),
        ((48, 32), "bf16", False),
        ((16, 16, 16), "fp16", False),
        ((48, 16, 16), "fp16", True),
        ((32, 16, 32), "fp16", False),
        ((32, 32, 32), "fp16", False),
        ((64, 32, 32), "bf16", False),
        ((16, 16, 16), "fp32", False),
        ((2, 32, 16, 16), "fp32", False),
    ):
        plan = Plan(prod(factors), factors)
        family = gradient_families.family_of(plan, dtype)
        assert family is not None
        yield family, family.make_spec(plan, dtype, guarded=gated, pregate=gated, postgate=gated)
    for n, gated in ((512, False), (1536, True), (16384, False), (65536, True)):
        plan = gradient_families.turned_plans()[n]
        family = gradient_families.family_of(plan)
        assert family is not None
        yield family, family.make_spec(plan, "fp16", guarded=gated, pregate=gated, postgate=gated)
    for n, halved, gated in (
        (256, False, True),
        (1024, False, False),
        (4096, False, False),
        (8192, True, True),
    ):
        plan = gradient_families.turned_plans()[n] if halved else gradient_families.default_plans()[n]
        family = backward_pass.family_of(plan)
        assert family is not None
        yield (
            family,
            family.make_spec(plan, "fp16", guarded=gated, pregate=gated, postgate=gated, scaled=True),
        )
    yield gradient_float, gradient_float.Spec(1, (16, 16, 16), complex_rows=True)
    for spec in (
        filter_gradient.Spec("whole", (8, 8, 8), staged=True),
        filter_gradient.Spec("whole", (32, 32, 16)),
        filter_gradient.Spec("whole", (8, 8, 8), staged=True, turned=True),
        filter_gradient.Spec("bins", radix=8, points=32768, turned=True),
        filter_gradient.Spec("taps", turned=True),
        filter_gradient.Spec("bins", radix=8, points=32768),
        filter_gradient.Spec("taps"),
        filter_gradient.Spec("total"),
    ):
        yield filter_gradient.family(spec), spec
    for backward in (False, True):
        short = short_conv.make_spec(3, "fp16", 4096, backward=backward)
        yield short_conv.family(short), short
    turned_lists = (*((f, True) for f in filter_whole.TURNED.values()), ((32, 16, 16), True))
    for factors, turned in (((16, 16, 8), False), ((32, 32, 16), False), *turned_lists):
        whole = filter_whole.Spec(factors, "fp32", "fp16", ORDINARY["fp16"], turned)
        yield filter_whole.family(whole), whole
    for n in (256, 1024, 2048):
        few = filter_short.spec_of(n, n, 1, "fp32", "fp16", ORDINARY["fp16"], in_order=True)
        yield filter_short.family(few), few


def _linear() -> Iterator[tuple[Any, Any]]:
    found = {}
    for n, k, m, impl, dtype in (
        *((4096, 4096, m, "gemv", "fp16") for m in (1, 2, 4)),
        *((4096, 4096, m, "flat", "fp16") for m in (8, 16, 32, 64)),
        *((12288, 4096, m, "flat", "fp16") for m in (8, 16)),
        (4096, 4096, 1, "gemv", "bf16"),
        (4096, 4096, 8, "flat", "bf16"),
        (4096, 4096, 256, "full", "bf16"),
        (64, 4095, 1, "gemv", "fp16"),
        (64, 4095, 8, "flat", "fp16"),
        (64, 4095, 300, "full", "fp16"),
    ):
        made = product(default_choice(impl, m, n, k), m, n, k, dtype)
        found[made.spec] = made.family
    for tile in FULL_TILES:
        made = product(Choice.of("full", **tile), 512, 12288, 4096, "fp16")
        found[made.spec] = made.family
    for m, n, k, dtype in (
        (32, 12288, 4096, "fp16"),
        (64, 4096, 4096, "fp16"),
        (256, 12288, 4096, "fp16"),
        (1024, 4096, 4096, "bf16"),
        (300, 64, 4095, "fp16"),
        (64, 4096, 4095, "fp16"),
    ):
        choice = default_choice("full", m, n, k, capability=linear_group.CAPABILITY)
        made = product(choice, m, n, k, dtype)
        found[made.spec] = made.family
    for led in (False, True):
        found[linear_realign.Spec("fp16", led=led)] = linear_realign
    for spec, family in found.items():
        yield family, spec


def attention_kernels() -> Iterator[tuple[Any, Any]]:
    """Decode attention: both formats and schemes, each way to weigh values and to join splits, the largest; softmax."""
    from kernels_numba import line_softmax, split_decode

    make = split_decode.make_spec
    yield from ((split_decode, make(128, group, 1, "fp16")) for group in (1, 4, 8))
    yield from ((split_decode, make(128, group, 1, "fp16", cluster=2)) for group in (1, 16))
    yield split_decode, make(128, 1, 1, "fp16", sync=True)
    yield split_decode, make(128, 1, 1, "bf16", lengths=True)
    yield split_decode, split_decode.make_spec(64, 1, 8, "bf16", lengths=True, page=16, capped=True)
    yield split_decode, split_decode.make_spec(256, 16, 1, "fp16")
    yield line_softmax, line_softmax.Spec("fp16", 8, team=True, sync=False)
    yield line_softmax, line_softmax.Spec("bf16", 1, team=False, sync=True)


def _kernel(plan: Plan, dtype: str, **variant: bool) -> tuple[Any, Any]:
    family = family_of(plan, dtype)
    return family, family.make_spec(plan, dtype, **variant)


def capability(arch: str) -> tuple[int, int]:
    """Compute capability of an architecture: (9, 0) of "sm_90"."""
    digits = arch.removeprefix("sm_")
    if not arch.startswith("sm_") or not digits.isdigit() or len(digits) < 2:
        raise ValueError(f"arch: expected a name such as sm_90, got {arch!r}")
    return int(digits[:-1]), int(digits[-1])


def is_known(arch: str) -> bool:
    """Whether the installed CUDA toolkit can compile for ``arch``."""
    from kernels_numba.tile.compile import known_capabilities

    return capability(arch) in known_capabilities()


def measure(family: Any, spec: Any, arch: str) -> dict[str, Any]:
    """Compile a kernel: a row of the table, and ``double_precision``, the number of such instructions."""
    from kernels_numba.launch import compile_spec
    from kernels_numba.tile import compile as tile_compile

    found = tile_compile.resources(compile_spec(family, spec, capability(arch)))
    return {
        "kernel": spec.name,
        "arch": arch,
        **found,
        "dynamic_shared_bytes": spec.shared_bytes,
        "toolchain": tile_compile.toolchain(),
    }


def problems(found: dict[str, Any], kept: dict[str, Any] | None) -> list[str]:
    """What is worse in a row than in the committed one (None: there is none)."""
    what = f"{found['kernel']} on {found['arch']}"
    wrong = []
    if found["double_precision"]:
        wrong.append(f"{what}: {found['double_precision']} double-precision instructions")
    if kept is None:
        return [*wrong, f"{what}: not in the table"]
    for key in ("spill_stores", "spill_loads", "stack_bytes"):
        if found[key] > kept[key]:
            wrong.append(f"{what}: {key} {kept[key]} -> {found[key]}")
    if found["mma"] != kept["mma"]:
        wrong.append(f"{what}: mma {kept['mma']} -> {found['mma']}")
    if found["registers"] > kept["registers"] + MORE_REGISTERS:
        wrong.append(f"{what}: registers {kept['registers']} -> {found['registers']}")
    if wrong and found["toolchain"] != kept["toolchain"]:
        wrong.append(f"{what}: the table was made with {kept['toolchain']}; here is {found['toolchain']}")
    return wrong


def committed() -> dict[tuple[str, str], dict[str, Any]]:
    """The committed table by (kernel, arch); empty if there is none."""
    if not TABLE.exists():
        return {}
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if tuple(rows.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{TABLE}: expected the columns {','.join(COLUMNS)}; {REGENERATE}")
        found: list[dict[str, Any]] = [
            {key: int(value) if value.isdigit() else value for key, value in row.items()} for row in rows
        ]
    return {(row["kernel"], row["arch"]): row for row in found}


def _write(file: Any, rows: Sequence[dict[str, Any]]) -> None:
    writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kernels_numba.resources", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--write", action="store_true", help=f"write {TABLE.name} instead of comparing with it"
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help=f"write {TABLE.name} with the rows that it lacks and without those of no kernel",
    )
    parser.add_argument(
        "--arch", nargs="+", default=ARCHITECTURES, metavar="sm_90", help="default: %(default)s"
    )
    chosen = parser.parse_args(arguments)
    kept, rows, wrong = committed(), [], []
    archs = []
    for arch in chosen.arch:
        try:
            known = is_known(arch)
        except ValueError as error:
            parser.error(str(error))
        if known:
            archs.append(arch)
        else:
            print(f"{arch}: skipped, the installed CUDA toolkit does not know it", file=sys.stderr)
    todo = [
        (family, spec, arch)
        for family, spec in kernels()
        for arch in archs
        if runs_on(family, capability(arch), spec) and not (chosen.add and (spec.name, arch) in kept)
    ]
    started = time.perf_counter()
    for number, (family, spec, arch) in enumerate(todo, start=1):
        row = measure(family, spec, arch)
        rows.append(row)
        wrong += problems(row, kept.get((spec.name, arch)))
        if time.perf_counter() - started > 2:
            print(f"[{number}/{len(todo)}] {spec.name} {arch}: {row['registers']} registers", file=sys.stderr)
    if chosen.write or chosen.add:
        # What was not asked for keeps its row, as long as the kernel exists.
        names = {spec.name: place for place, (_, spec) in enumerate(kernels())}
        found = {(row["kernel"], row["arch"]) for row in rows}
        others = [row for key, row in kept.items() if key[0] in names and key not in found]
        rows = sorted([*rows, *others], key=lambda row: (names[row["kernel"]], capability(row["arch"])))
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            _write(file, rows)
        print(f"wrote {len(rows)} rows to {TABLE}", file=sys.stderr)
        return 0
    _write(sys.stdout, rows)
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        print(f"worse than {TABLE.name}; if that is meant, {REGENERATE}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
