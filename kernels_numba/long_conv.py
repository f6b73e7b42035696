"""Convolutions too long for one fused kernel: outer stages before and after, group by group; see `outer_stage.py`.

Beside input, output and spectrum a call needs one workspace, of at most ``workspace`` bytes: the intermediate of a
group of channels and pairs of sequences. Nothing is ever copied as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba.arrays import adapter_of
from kernels_numba.device import Device, device
from kernels_numba.fftconv import CPU_BLOCKS, MAX_ITEMS, FFTConv, _device_operands
from kernels_numba.host_arrays import _aligned, _bits, _write
from kernels_numba.long_groups import SHARE_OF_L2, WORKSPACE, Group, extra_us, grouping, what_fits
from kernels_numba.long_launch import OuterSpec, Stages, inner_scalars, outer_grid, outer_module
from kernels_numba.long_plans import Split, split_of
from kernels_numba.outer_float_spec import outer_float_spec
from kernels_numba.outer_spec import outer_spec
from kernels_numba.spectrum import Spectrum
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import ELEMENT_TYPES
from kernels_numba.workspace import Workspaces
from monarch import format_factors


class LongFFTConv(FFTConv):
    """A prepared convolution with outer stages. What `FFTConv` makes of a spectrum of a long plan."""

    def __init__(self, spectrum: Spectrum, *, batch: int, workspace: int | None = None) -> None:
        self._prepare(spectrum, batch)
        self.split: Split = split_of(spectrum.plan, products=spectrum.products)
        self.family = self.split.family
        self.workspace = WORKSPACE if workspace is None else workspace
        self.rows = len(spectrum.rows) or self.split.rows
        points, itemsize = self.split.inner.points, ELEMENT_TYPES[spectrum.products].itemsize
        self.l2_bytes = device().l2_bytes or 0
        self.groups = grouping(
            self.rows * points,
            spectrum.channels,
            self.pairs,
            workspace=self.workspace,
            itemsize=itemsize,
            l2_bytes=self.l2_bytes,
        )
        blocks = self.groups.group_channels * self.groups.group_pairs * max(self.split.rows, points)
        if blocks > MAX_ITEMS:
            raise ValueError(f"workspace: groups of {self.groups.bytes} bytes are too large; allow less")
        self._workspaces: dict[int, Workspaces] = {}

    def describe(self) -> str:
        """Rows and columns, and what a call allocates and moves, in words."""
        groups, split, plan = self.groups, self.split, self.spectrum.plan
        batch, channels, length = self.shape
        ends = 2 * ELEMENT_TYPES[self.spectrum.dtype].itemsize * batch * channels * length
        moved = ends + 8 * self.groups.itemsize * self.groups.n * self.pairs * channels
        return "\n".join(
            [
                f"Convolution of {plan} with outer stages",
                f"  rows       N1 = {split.rows}, by factors {format_factors(split.outer)}; {self.rows} are not zero",
                f"  columns    N2 = {split.inner.n}, by the fused kernel of {format_factors(split.inner.factors)}",
                *self._zeros(),
                f"  groups     {len(groups)} of at most {groups.group_channels} channels x {groups.group_pairs} pairs, "
                f"{self._why()}",
                f"  workspace  {groups.bytes:,} bytes, of {self.workspace:,} allowed",
                f"  moved      {moved:,} bytes a call beside the spectrum, of them {ends:,} of input and output; the "
                "others stay in the L2 cache as far as a group fits",
            ]
        )

    def _zeros(self) -> list[str]:
        """What is left out of every row, as a line; none where nothing is."""
        axes, marks = self.spectrum.axes, np.frombuffer(self.spectrum.marks, np.float32)
        left = [f"of a row {format_factors(axes)} frequencies are kept"] if axes else []
        left += [f"{np.count_nonzero(marks)} of {marks.size} blocks are not zero"] if marks.size else []
        return [f"  zeros      {', '.join(left)}"] if left else []

    def _why(self) -> str:
        """The grouping beside one that stays in the L2 cache."""
        groups = self.groups
        least, whole = (
            groups.bytes // (groups.group_channels * groups.group_pairs),
            groups.bytes * len(groups),
        )
        small = min(groups.bytes, max(least, self.l2_bytes // SHARE_OF_L2))
        mine, other = (extra_us(size, whole, self.l2_bytes) for size in (groups.bytes, small))
        return f"{mine:+.0f} us by launches and L2 ({other:+.0f} in groups of {small:,} bytes)"

    def specs(
        self,
        low_bits: int = 0,
        *,
        pregate: bool = False,
        postgate: bool = False,
        twice: bool = False,
        where: Device | None = None,
    ) -> tuple[OuterSpec, Any, OuterSpec]:
        """The three kernels: forward outer stage, rows, inverse outer stage."""
        plan, products, length = self.spectrum.plan, self.spectrum.products, self.shape[2]
        limit = where.shared_bytes_per_block if where else None
        chosen: dict[str, Any] = {"marked": self.rows} if self.spectrum.marks else {}
        chosen |= {"kept": self.spectrum.axes} if self.spectrum.axes else {}
        inner = self.split.family.make_spec(
            self.split.inner,
            products,
            guarded=False,
            **chosen,
            **({"shared_limit": limit} if limit else {}),
        )
        if products == "fp32":
            own = {"length": length, "batch": self.shape[0], "kept": len(self.spectrum.rows)}
            first, last = (
                outer_float_spec(self.split, self.spectrum.dtype, inverse=inverse, gated=gated, **own)
                for inverse, gated in ((False, pregate), (True, postgate))
            )
            return first, inner, replace(last, twice=twice)
        half = 2 * length <= plan.n
        choices: dict[str, Any] = {
            "halves": self._halves(low_bits),
            "guarded": length < plan.n or self.shape[0] % 2 != 0,
            "kept": len(self.spectrum.rows),
        }
        forward = outer_spec(self.split, products, inverse=False, pregate=pregate, half_in=half, **choices)
        choices |= {"postgate": postgate, "scaled": self.scaled}
        inverse = outer_spec(self.split, products, inverse=True, half_out=half, **choices)
        return forward, inner, replace(inverse, twice=twice)

    def operand_key(self, family: Any, spec: Any) -> tuple:
        """What the constant buffers of one of the kernels depend on."""
        if family is not self.split.family:
            key: tuple = family.operand_key(spec, self.spectrum.rows)
            return key
        return self._operand_key(spec)

    def families(self, specs: tuple[OuterSpec, Any, OuterSpec]) -> tuple[ModuleType, ModuleType, ModuleType]:
        """Where each of the three kernels is made."""
        return outer_module(specs[0]), self.split.family, outer_module(specs[2])

    def _launch(self, key: tuple[int, int, bool, bool, bool]) -> Callable[..., None]:
        """All launches of a call, for a GPU, the low bits of the addresses, and the gates."""
        if key in self._launches:
            return self._launches[key]
        index = key[0]
        stages = Stages(self, key, _device_operands)
        if index not in self._workspaces:
            self._workspaces[index] = self._allocate(index)
        rooms = self._workspaces[index]

        def run(
            stream: int, u: int, pregate: int, postgate: int, y: int, second: int = 0, y2: int = 0
        ) -> None:
            given = {"u": u, "pregate": pregate, "postgate": postgate, "second": second, "y": y, "y2": y2}
            stages(stream, **given, z=rooms.of(stream)[0])

        self._launches[key] = run
        return run

    def _allocate(self, index: int) -> Workspaces:
        """The workspace on a GPU, and a second one for a stream that a graph is captured on if both fit."""
        from kernels_numba.launch import LaunchError, free_bytes

        streams = 2 if 2 * self.groups.bytes <= self.workspace else 1
        try:
            return _workspaces(index, self.groups.bytes // 4, streams)
        except LaunchError as error:
            raise LaunchError(
                f"workspace: {streams * self.groups.bytes} bytes could not be allocated; "
                f"{what_fits(self.groups, free_bytes(index))}"
            ) from error

    def run_cpu(
        self,
        u: Any,
        *,
        pregate: Any = None,
        postgate: Any = None,
        out: Any = None,
        second: tuple[Any, Any] | None = None,
        blocks: int = CPU_BLOCKS,
    ) -> tuple[Any, Counters]:
        """Run all kernels on the CPU body; returns y and what was counted, over all of them."""
        from kernels_numba.tile.machine import POISON, Machine

        machine = Machine()
        specs = self.specs(
            pregate=pregate is not None, postgate=postgate is not None, twice=second is not None
        )
        poison, poison_z = (
            POISON if ELEMENT_TYPES[dtype].itemsize == 2 else np.float32(np.nan)
            for dtype in (self.spectrum.dtype, self.spectrum.products)
        )
        size = int(np.prod(self.shape))
        result, result2 = (_aligned(np.full(n, poison, poison.dtype)) for n in (size, size if second else 0))
        arrays = {
            "u": _bits(u),
            "pregate": _bits(pregate),
            "postgate": _bits(postgate),
            "second": _bits(second[0] if second else None),
            "y": result,
            "y2": result2,
            "workspace": _aligned(np.empty(self.groups.bytes // poison_z.itemsize, poison_z.dtype)),
        }
        for group in self.groups:
            arrays["workspace"][...] = poison_z
            self._group_on_cpu(machine, group, specs, arrays, blocks)
        kind = ELEMENT_TYPES[self.spectrum.dtype]
        values = result.view(kind).reshape(self.shape)
        if second:
            _write(second[1], adapter_of(second[1], "out"), result2.view(kind).reshape(self.shape))
        if out is None:
            return values, machine.counters
        _write(out, adapter_of(out, "out"), values)
        return out, machine.counters

    def _group_on_cpu(
        self, machine: Any, group: Group, specs: Any, arrays: dict[str, NDArray], blocks: int
    ) -> None:
        """One group's three kernels on the CPU body."""
        from kernels_numba.launch import vocabulary_of
        from kernels_numba.tile.cpu_vocabularies import tile
        from kernels_numba.tile.machine import Buffer

        batch, channels, length = self.shape
        first = 2 * group.pair
        at = (first * channels + group.channel) * length
        words, scales = self.spectrum.on_host()
        own = slice(group.channel, group.channel + group.channels)
        buffers = {name: Buffer(name, x if name == "workspace" else x[at:]) for name, x in arrays.items()}
        spectrum, scale = Buffer("spectrum", words[own].reshape(-1)), Buffer("scales", scales[own])
        none = Buffer("none", np.empty(0, arrays["workspace"].dtype))
        scalars = (group.pairs, min(2 * group.pairs, batch - first), channels, group.channels, length)
        grid, integers = inner_scalars(self.split, specs[1], self.rows * group.channels, group.pairs, blocks)
        z = buffers["workspace"]
        grids = [outer_grid(spec, group.channels, group.pairs) for spec in (specs[0], specs[2])]
        for which, (family, spec) in enumerate(zip(self.families(specs), specs, strict=True)):
            kernel = family.build(tile(machine, spec.dtype, vocabulary_of(family, spec)), spec)
            found = family.operands(*self.operand_key(family, spec))
            tables = [Buffer(name, x) for name, x in zip(("constants", "tables"), found, strict=False)]
            arguments, count = (
                ([buffers["u"], buffers["pregate"], *tables, z, *scalars], grids[0]),
                ([z, none, none, none, spectrum, scale, *tables, z, none, *integers], grid),
                (
                    [
                        z,
                        buffers["postgate"],
                        buffers["second"],
                        *tables,
                        scale,
                        buffers["y"],
                        buffers["y2"],
                        *scalars,
                    ],
                    grids[1],
                ),
            )[which]
            machine.run(kernel, count, spec.warps, spec.shared_bytes // 4, arguments)


def forget_workspaces() -> None:
    """Free workspaces that no convolution uses."""
    _workspaces.cache_clear()


@lru_cache(maxsize=2)
def _workspaces(index: int, words: int, streams: int) -> Workspaces:
    """Workspaces of a size, which convolutions share: one follows the other on a stream.

    Those of the last two sizes are kept, for a filter that is learned has a convolution of its own in every step.
    """
    return Workspaces(index, words, 0, streams=streams)
