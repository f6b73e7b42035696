"""The launches of a long convolution on a GPU: three kernels for each group, in order, on one stream."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from kernels_numba import launch, outer_float, outer_stage
from kernels_numba.device import device
from kernels_numba.long_groups import Group
from kernels_numba.outer_float_spec import Spec as FloatSpec
from kernels_numba.outer_spec import Spec
from kernels_numba.tile.layout import ELEMENT_TYPES

Pointers = tuple[tuple[str, int], ...]
"""What a launch is given: the name of an array and elements to add to its address; or no name, and an address."""


OuterSpec = Spec | FloatSpec


def outer_module(spec: OuterSpec) -> ModuleType:
    """Where an outer stage's kernel and constants are made."""
    return outer_float if isinstance(spec, FloatSpec) else outer_stage


def outer_family(spec: OuterSpec) -> Any:
    """What `launch` asks of a kernel family, for one outer stage: their arguments differ."""
    module = outer_module(spec)
    return SimpleNamespace(
        __name__=module.__name__,
        build=module.build,
        SIGNATURE=module.signature(spec),
        VOCABULARY=module.VOCABULARY,
        min_blocks=module.min_blocks,
    )


def outer_grid(spec: OuterSpec, channels: int, pairs: int) -> int:
    """Blocks of an outer stage: one for each strip, or for ``warps`` strips where a warp takes one alone."""
    return -(-spec.strips * channels * pairs // (spec.warps if spec.b == 1 else 1))


def inner_scalars(split: Any, spec: Any, rows: int, pairs: int, blocks: int) -> tuple[int, tuple[int, ...]]:
    """Grid and integers of the rows' kernel: the two planes of a pair are a pair of sequences of N2 samples.

    In fp32 a pair is one complex sequence. ``rows``: of all channels of a group.
    """
    workers = split.family.workers(spec)
    items = rows * pairs
    per_worker = -(-items // (workers * max(1, blocks)))
    grid, points = -(-items // (workers * per_worker)), split.inner.points
    if split.products == "fp32":
        return grid, (items, per_worker, pairs, pairs, rows, 2 * points)
    return grid, (items, per_worker, pairs, 2 * pairs, rows, points)


class Stages:
    """The three kernels of a `LongFFTConv` on one GPU, and its launches.

    Args:
        convolve: the convolution.
        key: GPU, low bits of the addresses, whether there are gates, and whether twice, as `FFTConv._launch`.
        operands: ``operands(family, key, index)``, constant buffers on a GPU.
    """

    def __init__(
        self, convolve: Any, key: tuple[int, int, bool, bool, bool], operands: Callable[..., Any]
    ) -> None:
        index, low_bits, pregate, postgate, twice = key
        self.where, self.split, self.shape = device(index), convolve.split, convolve.shape
        self.rows = convolve.rows
        self.itemsize = ELEMENT_TYPES[convolve.spectrum.dtype].itemsize
        self.words_each = int(convolve.spectrum.words.shape[1])
        self.specs = convolve.specs(
            low_bits, pregate=pregate, postgate=postgate, twice=twice, where=self.where
        )
        inner = self.split.family
        families = (outer_family(self.specs[0]), inner, outer_family(self.specs[2]))
        self.loaded = [
            launch.load(family, spec, index) for family, spec in zip(families, self.specs, strict=True)
        ]
        self.constants = [
            operands(family, convolve.operand_key(family, spec), index)
            for family, spec in zip(convolve.families(self.specs), self.specs, strict=True)
        ]
        self.words, self.scales = convolve.spectrum.on_device(index)
        self._made: dict[tuple[int, int, int], tuple[Callable[..., None], ...]] = {}
        self.steps = [step for group in convolve.groups for step in self._steps(group)]

    def __call__(self, stream: int, **given: int) -> None:
        """Launch everything on a stream; addresses of the arrays and of the workspace ``z``."""
        for run, pointers in self.steps:
            places = (given[name] + self.itemsize * at if name else at for name, at in pointers)
            run(stream, *places)

    def _steps(self, group: Group) -> list[tuple[Callable[..., None], Pointers]]:
        batch, channels, length = self.shape
        first = 2 * group.pair
        forward, inner, inverse = self._launchers(
            group.channels, group.pairs, min(2 * group.pairs, batch - first)
        )
        at = (first * channels + group.channel) * length
        words = self.words + 4 * group.channel * self.words_each
        scales = self.scales + 4 * group.channel
        return [
            (forward, (("u", at), ("pregate", at), ("z", 0))),
            (inner, (("z", 0), ("", words), ("", scales), ("z", 0))),
            (inverse, (("z", 0), ("postgate", at), ("second", at), ("", scales), ("y", at), ("y2", at))),
        ]

    def _launchers(self, channels: int, pairs: int, batch: int) -> tuple[Callable[..., None], ...]:
        """Launches for a group of so many channels, pairs and sequences; made once for each size."""
        size = channels, pairs, batch
        if size not in self._made:
            forward, inner, inverse = self.specs
            scalars = (pairs, batch, self.shape[1], channels, self.shape[2])
            workers = (self.where.sm_count or 1) * self.loaded[1].blocks_per_sm
            grid, integers = inner_scalars(self.split, inner, self.rows * channels, pairs, workers)
            first, middle, last = ([c.pointer for c in found] for found in self.constants)
            self._made[size] = (
                self.loaded[0].launcher(
                    outer_grid(forward, channels, pairs),
                    ("u", "pregate", *first, "z", *scalars),
                    ("u", "pregate", "z"),
                ),
                self.loaded[1].launcher(
                    grid,
                    ("z", 0, 0, 0, "words", "scales", *middle, "back", 0, *integers),
                    ("z", "words", "scales", "back"),
                ),
                self.loaded[2].launcher(
                    outer_grid(inverse, channels, pairs),
                    ("z", "postgate", "second", *last, "scales", "y", "y2", *scalars),
                    ("z", "postgate", "second", "scales", "y", "y2"),
                ),
            )
        return self._made[size]
