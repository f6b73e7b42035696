"""Convolutions too long for one fused kernel: outer stages before and after, group by group; see `outer_stage.py`.

Beside input, output and spectrum a call needs one workspace, of at most ``workspace`` bytes: the intermediate of a
group of channels and pairs of sequences. Nothing is ever copied as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from kernels_numba import outer_stage
from kernels_numba.arrays import adapter_of
from kernels_numba.device import Device, device
from kernels_numba.fftconv import CPU_BLOCKS, MAX_ITEMS, FFTConv, _aligned, _bits, _device_operands, _write
from kernels_numba.long_groups import GROUP_BYTES, WORKSPACE, Group, grouping
from kernels_numba.long_plans import Split, split_of
from kernels_numba.outer_spec import Spec, outer_spec
from kernels_numba.spectrum import Spectrum
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import ELEMENT_TYPES

PLANES = 2
"""Of the intermediate: real and imaginary parts."""


def outer_family(spec: Spec) -> Any:
    """What `launch` asks of a kernel family, for one outer stage: their arguments differ."""
    return SimpleNamespace(
        __name__=outer_stage.__name__,
        build=outer_stage.build,
        SIGNATURE=outer_stage.INVERSE_SIGNATURE if spec.inverse else outer_stage.FORWARD_SIGNATURE,
        VOCABULARY=outer_stage.VOCABULARY,
        min_blocks=outer_stage.min_blocks,
        operand_key=outer_stage.operand_key,
        operands=outer_stage.operands,
    )


class LongFFTConv(FFTConv):
    """A prepared convolution with outer stages. What `FFTConv` makes of a spectrum of a long plan."""

    def __init__(self, spectrum: Spectrum, *, batch: int, workspace: int | None = None) -> None:
        self._prepare(spectrum, batch)
        self.split: Split = split_of(spectrum.plan)
        self.workspace = WORKSPACE if workspace is None else workspace
        self.groups = grouping(
            spectrum.plan.n, spectrum.channels, self.pairs, workspace=self.workspace, target=GROUP_BYTES
        )
        largest = self.split.rows * self.groups.group_channels * self.groups.group_pairs
        if largest * max(1, self.split.inner.n // 32) > MAX_ITEMS:
            raise ValueError(f"workspace: groups of {self.groups.bytes} bytes are too large; allow less")

    def specs(
        self, low_bits: int = 0, *, pregate: bool = False, postgate: bool = False, where: Device | None = None
    ) -> tuple[Spec, Any, Spec]:
        """The three kernels: forward outer stage, rows, inverse outer stage."""
        spectrum, length = self.spectrum, self.shape[2]
        limit = where.shared_bytes_per_block if where else None
        halves = self._halves(low_bits)
        guarded = length < spectrum.plan.n or self.shape[0] % 2 != 0
        choices: dict[str, Any] = {"halves": halves, "guarded": guarded}
        half = 2 * length <= spectrum.plan.n
        inner = self.split.family.make_spec(
            self.split.inner, spectrum.products, guarded=False, **({"shared_limit": limit} if limit else {})
        )
        forward = outer_spec(
            self.split, spectrum.products, inverse=False, pregate=pregate, half_in=half, **choices
        )
        inverse = outer_spec(
            self.split,
            spectrum.products,
            inverse=True,
            postgate=postgate,
            half_out=half,
            scaled=self.scaled,
            **choices,
        )
        return forward, inner, inverse

    def _launch(self, key: tuple[int, int, bool, bool]) -> Callable[..., None]:
        """All launches of a call, for a GPU, the low bits of the addresses, and the gates."""
        from kernels_numba.workspace import Workspaces

        if key in self._launches:
            return self._launches[key]
        index = key[0]
        steps: list[tuple[Callable[..., None], tuple]] = []
        kernels = self._kernels(key)
        for group in self.groups:
            steps += self._group_steps(group, kernels)
        itemsize = ELEMENT_TYPES[self.spectrum.dtype].itemsize
        rooms = self._rooms(index)
        assert isinstance(rooms, Workspaces)

        def run(stream: int, u: int, pre: int, post: int, y: int) -> None:
            z, _ = rooms.of(stream)
            given = {"u": u, "pregate": pre, "postgate": post, "y": y, "z": z}
            for launch, pointers in steps:
                launch(
                    stream,
                    *(given[name] + itemsize * offset if name else offset for name, offset in pointers),
                )

        self._launches[key] = run
        return run

    def _rooms(self, index: int) -> Any:
        """The workspaces on a GPU; the same for all variants of the kernels."""
        from kernels_numba.workspace import Workspaces

        if index not in self._workspaces:  # a second one is for a stream that a graph is captured on
            streams = 2 if 2 * self.groups.bytes <= self.workspace else 1
            self._workspaces[index] = Workspaces(index, self.groups.bytes // 4, 0, streams=streams)
        return self._workspaces[index]

    def _kernels(self, key: tuple[int, int, bool, bool]) -> Callable[[int, int], tuple]:
        """For channels and pairs of a group, its three launches; made once for each size."""
        from kernels_numba import launch

        index, low_bits, pregate, postgate = key
        where = device(index)
        forward, inner, inverse = self.specs(low_bits, pregate=pregate, postgate=postgate, where=where)
        families = (outer_family(forward), self.split.family, outer_family(inverse))
        loaded = [
            launch.load(family, spec, index)
            for family, spec in zip(families, (forward, inner, inverse), strict=True)
        ]
        constants = [
            _device_operands(family, family.operand_key(spec), index)
            for family, spec in zip(
                (outer_stage, self.split.family, outer_stage), (forward, inner, inverse), strict=True
            )
        ]
        self._keep.append(tuple(constants))  # the launches know only their addresses
        sm_count = where.sm_count or 1
        made: dict[tuple[int, int, int], tuple] = {}

        def of(channels: int, pairs: int, batch: int) -> tuple:
            if (channels, pairs, batch) not in made:
                scalars = (pairs, batch, self.shape[1], channels, self.shape[2])
                outer_grid = (
                    self.outer_grid(forward, channels, pairs),
                    self.outer_grid(inverse, channels, pairs),
                )
                workers = sm_count * loaded[1].blocks_per_sm
                grid, inner_scalars = self.inner_scalars(channels, pairs, inner, workers)
                first, middle, last = ([c.pointer for c in found] for found in constants)
                made[channels, pairs, batch] = (
                    loaded[0].launcher(
                        outer_grid[0], ("u", "pregate", *first, "z", *scalars), ("u", "pregate", "z")
                    ),
                    loaded[1].launcher(
                        grid,
                        ("z", 0, 0, "words", "scales", *middle, "z2", *inner_scalars),
                        ("z", "words", "scales", "z2"),
                    ),
                    loaded[2].launcher(
                        outer_grid[1],
                        ("z", "postgate", *last, "scales", "y", *scalars),
                        ("z", "postgate", "scales", "y"),
                    ),
                )
            return made[channels, pairs, batch]

        words, scales = self.spectrum.on_device(index)
        of.addresses = (words, scales)  # type: ignore[attr-defined]
        return of

    def _group_steps(self, group: Group, kernels: Any) -> list[tuple[Callable[..., None], tuple]]:
        """The launches of a group: (launch, its pointers as (name, elements), or an address without a name)."""
        batch, channels, length = self.shape
        first = 2 * group.pair
        forward, inner, inverse = kernels(group.channels, group.pairs, min(2 * group.pairs, batch - first))
        words, scales = kernels.addresses
        at = (first * channels + group.channel) * length
        words += 4 * group.channel * self.spectrum.plan.n
        scales += 4 * group.channel
        return [
            (forward, (("u", at), ("pregate", at), ("z", 0))),
            (inner, (("z", 0), ("", words), ("", scales), ("z", 0))),
            (inverse, (("z", 0), ("postgate", at), ("", scales), ("y", at))),
        ]

    @staticmethod
    def outer_grid(spec: Spec, channels: int, pairs: int) -> int:
        """Blocks of an outer stage: one for each strip, or for ``warps`` strips where a warp takes one alone."""
        return -(-spec.strips * channels * pairs // (spec.warps if spec.b == 1 else 1))

    def inner_scalars(self, channels: int, pairs: int, spec: Any, blocks: int) -> tuple[int, tuple[int, ...]]:
        """Grid and integers of the rows' kernel: a pair of planes is a pair of sequences of N2 samples."""
        rows, workers = self.split.rows * channels, self.split.family.workers(spec)
        items = rows * pairs
        per_worker = -(-items // (workers * max(1, blocks)))
        grid = -(-items // (workers * per_worker))
        return grid, (items, per_worker, pairs, 2 * pairs, rows, self.split.inner.n)

    def run_cpu(
        self, u: Any, *, pregate: Any = None, postgate: Any = None, out: Any = None, blocks: int = CPU_BLOCKS
    ) -> tuple[Any, Counters]:
        """Run all kernels on the CPU body; returns y and what was counted, over all of them."""
        from kernels_numba.launch import vocabulary_of
        from kernels_numba.tile.cpu_vocabularies import tile
        from kernels_numba.tile.machine import POISON, Buffer, Machine

        machine = Machine()
        specs = self.specs(pregate=pregate is not None, postgate=postgate is not None)
        families = (outer_stage, self.split.family, outer_stage)
        kernels = [
            family.build(tile(machine, spec.dtype, vocabulary_of(family, spec)), spec)
            for family, spec in zip(families, specs, strict=True)
        ]
        forward, inner, inverse = specs
        stored = ELEMENT_TYPES[self.spectrum.dtype]
        batch, channels, length = self.shape
        n, rows = self.spectrum.plan.n, self.split.rows
        result = _aligned(np.full(int(np.prod(self.shape)), POISON, POISON.dtype))
        inputs = [_bits(x) for x in (u, pregate, postgate)]
        spectrum, scales = self.spectrum.on_host()
        constants = [
            family.operands(*family.operand_key(spec)) for family, spec in zip(families, specs, strict=True)
        ]
        for group in self.groups:
            first = 2 * group.pair
            at = (first * channels + group.channel) * length
            z = _aligned(np.full(self.groups.bytes // 2, POISON, POISON.dtype))
            own = slice(group.channel, group.channel + group.channels)
            names = ("u", "pregate", "postgate")
            x, pre, post = (Buffer(name, part[at:]) for name, part in zip(names, inputs, strict=True))
            y, workspace, scale = (
                Buffer("y", result[at:]),
                Buffer("workspace", z),
                Buffer("scales", scales[own]),
            )
            scalars = (group.pairs, min(2 * group.pairs, batch - first), channels, group.channels, length)
            outer = [Buffer("constants", words) for found in (constants[0], constants[2]) for words in found]
            arguments = [x, pre, outer[0], workspace, *scalars]
            shared = [spec.shared_bytes // 4 for spec in specs]
            machine.run(
                kernels[0],
                self.outer_grid(forward, group.channels, group.pairs),
                forward.warps,
                shared[0],
                arguments,
            )
            grid, inner_scalars = self.inner_scalars(group.channels, group.pairs, inner, blocks)
            words = Buffer("spectrum", spectrum[own].reshape(-1)[: group.channels * rows * n // rows])
            tables = [
                Buffer(name, part) for name, part in zip(("constants", "tables"), constants[1], strict=False)
            ]
            none = Buffer("none", np.empty(0, np.int16))
            machine.run(
                kernels[1],
                grid,
                inner.warps,
                shared[1],
                [workspace, none, none, words, scale, *tables, workspace, *inner_scalars],
            )
            arguments = [workspace, post, outer[1], scale, y, *scalars]
            machine.run(
                kernels[2],
                self.outer_grid(inverse, group.channels, group.pairs),
                inverse.warps,
                shared[2],
                arguments,
            )
        values = result.view(stored).reshape(self.shape)
        if out is None:
            return values, machine.counters
        _write(out, adapter_of(out, "out"), values)
        return out, machine.counters
