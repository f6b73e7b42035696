"""The gradient in a filter whose transform is too long for one kernel: sums of spectra row by row.

With z and w as in `filter_sums` (two sequences of a pair, and the gradients in their results), and N = N1 N2:

    outer stage     z to rows Z[k1, n2], and w to W[k1, n2], into the workspace     `outer_stage`, `outer_float`
    sums            of conj(Z) W at the bins k1 + N1 k2, over the pairs             `gradient_*`
    back            to taps, through device memory once a factor                    `filter_gradient`

The kernel that sums takes each row for a channel of its own, N2 samples long. Gates multiply in the outer stages. All
pairs of some channels go through at a time; where not even one channel's pairs fit into the workspace, they are dealt
into shares, whose sums are added in order on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import filter_gradient, gradient_families, gradient_jobs
from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.device import LARGEST_SHARED_BYTES, Device, device
from kernels_numba.long_groups import WORKSPACE
from kernels_numba.long_launch import outer_family, outer_grid, outer_module
from kernels_numba.long_plans import (
    FLOAT_INNER_TIME,
    FLOAT_OUTER_TIME,
    INNER_TIME,
    LONGEST,
    OUTER_TIME,
    Split,
    stage_bytes,
)
from kernels_numba.outer_float_spec import outer_float_spec
from kernels_numba.outer_spec import SPLITS, outer_spec
from kernels_numba.plan_choice import points_needed
from kernels_numba.spectrum import places_of_taps
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import ELEMENT_TYPES, STORAGE_TYPES
from monarch import Plan

Launch = Callable[..., None]


@cache
def splits(limit: int = LARGEST_SHARED_BYTES, products: str = "fp16") -> dict[int, Split]:
    """By transform length beyond one kernel's, rows and columns that should be fastest."""
    whole = products == "fp32"
    fused = gradient_families.default_plans(limit, products)
    inner_time, outer_time = (FLOAT_INNER_TIME, FLOAT_OUTER_TIME) if whole else (INNER_TIME, OUTER_TIME)
    found: dict[int, tuple[float, Split]] = {}
    for n2, inner in fused.items():
        for rows, pair in SPLITS.items():
            n = rows * n2
            if n2 not in inner_time or n2 % 64 or not max(fused) < n <= LONGEST:
                continue
            outer = tuple(f for f in pair if f > 1)
            family = gradient_families.family_of(inner, products)
            assert family is not None
            made = Split(Plan(n, (*outer, *inner.factors)), outer, inner, family, products)
            time = inner_time[n2] + outer_time[rows]
            if stage_bytes(made) <= limit and (n not in found or time < found[n][0]):
                found[n] = time, made
    return {n: made for n, (_, made) in sorted(found.items())}


def choose(
    mode: str, length: int, taps: int, dtype: str, products: str, limit: int, *, exact: int = 0
) -> Split | None:
    """Rows and columns for a gradient that no one kernel can sum; None where one can, or no kernels here.

    ``exact``: the transform has to have so many points.
    """
    fused, need = gradient_families.default_plans(limit, products), points_needed(mode, length, taps)
    circular = mode == "circular"
    if exact:
        circular, length, need = True, exact, LONGEST + 1
    if max(fused, default=0) >= need or (circular and length in fused):
        return None
    if dtype not in STORAGE_TYPES or products not in (dtype, "fp32"):
        return None
    found = splits(limit, "fp32" if products == "fp32" else "fp16")
    if circular and length in found:
        return found[length]
    return next((split for n, split in found.items() if n >= need), None)


@dataclass(frozen=True)
class Part:
    """Channels ``channel ..`` of the pairs ``pair ..``, whose sums are the share ``share`` of their channels."""

    channel: int
    channels: int
    pair: int
    pairs: int
    share: int


class LongFilterGradient:
    """The gradient in a filter, as `filter_sums.FilterGradient`, by rows and columns.

    Args:
        shape: (B, H, L) of the sequences.
        taps: K.
        mode: as in `fftconv`.
        dtype: of the sequences.
        split: rows and columns, and the type of the products.
        shared: one filter for all channels.
        kept: as in `filter_sums.FilterGradient`.
        workspace: bytes for intermediates, if one channel's sums and one of its pairs fit.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        taps: int,
        mode: str,
        dtype: str,
        split: Split,
        shared: bool = False,
        kept: NDArray[np.bool_] | None = None,
        workspace: int = WORKSPACE,
    ) -> None:
        self.kept = b"" if kept is None else kept.tobytes()
        self.shape, self.taps, self.mode, self.dtype = shape, taps, mode, dtype
        self.split, self.shared, self.family = split, shared, split.family
        self.products = "fp32" if split.products == "fp32" else dtype
        n = split.plan.n
        self.plan = split.plan.with_(signal=min(shape[2], n), wanted=min(shape[2], n))
        self.pairs = -(-shape[0] // 2)
        # A pair has two intermediates of N complex numbers, a channel its sums and their points in fp32.
        pair, channel = 4 * ELEMENT_TYPES[self.products].itemsize * n, 12 * n
        self.group_pairs = min(self.pairs, max(1, (workspace - channel) // pair))
        self.shares = -(-self.pairs // self.group_pairs)
        whole = max(1, workspace // (pair * self.pairs + channel)) if self.shares == 1 else 1
        self.group_channels = min(shape[1], whole)
        self._launches: dict[tuple[int, int, bool, bool], _Launches] = {}

    def parts(self) -> Iterator[list[Part]]:
        """For some channels after others, the parts that make their sums."""
        for first in range(0, self.shape[1], self.group_channels):
            channels = min(self.group_channels, self.shape[1] - first)
            yield [
                Part(first, channels, pair, min(self.group_pairs, self.pairs - pair), share)
                for share, pair in enumerate(range(0, self.pairs, self.group_pairs))
            ]

    def specs(
        self, low_bits: int = 0, *, pregate: bool = False, postgate: bool = False, where: Device | None = None
    ) -> tuple[Any, Any, Any]:
        """The outer stages of u and of dy, and what sums."""
        batch, _, length = self.shape
        limit = where.shared_bytes_per_block if where else None
        fitting = {"shared_limit": limit} if limit else {}
        rows = self.family.make_spec(self.split.inner, self.products, guarded=False, **fitting)
        if self.products == "fp32":
            own = {"length": length, "batch": batch}
            both = [
                outer_float_spec(self.split, self.dtype, inverse=False, gated=gate, **own)
                for gate in (pregate, postgate)
            ]
            return both[0], both[1], replace(rows, complex_rows=True)
        nbytes = ELEMENT_TYPES[self.dtype].itemsize
        choices: dict[str, Any] = {
            "halves": next(v for v in (8, 4, 2, 1) if length % v == 0 and low_bits % (nbytes * v) == 0),
            "guarded": length < self.plan.n or batch % 2 != 0,
            "half_in": 2 * length <= self.plan.n,
        }
        of_u, of_dy = (
            outer_spec(self.split, self.dtype, inverse=False, pregate=gate, **choices)
            for gate in (pregate, postgate)
        )
        return of_u, of_dy, rows

    def back(self, channels: int, places: int, spec: Any) -> tuple[gradient_jobs.Job, ...]:
        """The launches from sums to taps, of so many channels."""
        _, scale = self.family.sums_layout(spec)
        if self.products == "fp32":  # outer stages of halves are unitary, those of fp32 are sums
            scale /= self.split.rows
        n, way = self.plan.n, gradient_jobs.PASSES
        how = n, channels, self.shares, self.taps, places, scale
        return gradient_jobs.jobs(*how, way=way, zeros=bool(self.kept))

    def outer_scalars(self, part: Part) -> tuple[int, ...]:
        """Integers of the outer stages of a part."""
        batch, channels, length = self.shape
        return part.pairs, min(2 * part.pairs, batch - 2 * part.pair), channels, part.channels, length

    def sum_scalars(self, part: Part, spec: Any, workers: int) -> tuple[int, tuple[int, ...]]:
        """Blocks, and integers, of what sums a part, for so many workers in all."""
        rows = self.split.rows * part.channels
        units, per_block = rows * spec.parts, self.family.workers(spec)
        grid = min(-(-workers // per_block), -(-units // per_block))
        pairs = part.pairs
        return grid, (units, grid * per_block, 1, pairs, pairs, 2 * pairs, rows, self.split.inner.n)

    # ---- on a GPU ------------------------------------------------------------------------------------------
    def launch(self, u: Any, dy: Any, pregate: Any, postgate: Any, *, adapter: Adapter, index: int) -> Any:
        """The gradient, an array of the library of ``u``; all are on GPU ``index`` and have been checked."""
        given = [0 if x is None else adapter_of(x, "u").pointer(x) for x in (u, pregate, dy, postgate)]
        low_bits = (given[0] | given[1] | given[2] | given[3]) & 15
        key = (index, low_bits, pregate is not None, postgate is not None)
        if key not in self._launches:
            self._launches[key] = _Launches(self, *key)
        return self._launches[key](adapter, given)

    # ---- on the CPU body -----------------------------------------------------------------------------------
    def run_cpu(
        self,
        u: NDArray,
        dy: NDArray,
        pregate: NDArray | None = None,
        postgate: NDArray | None = None,
        *,
        workers: int = 8,
    ) -> tuple[NDArray[np.float32], Counters, Counters]:
        """Run the kernels on the CPU body: the gradient, and what was counted, to the sums and after."""
        from kernels_numba.host_arrays import _aligned, _bits
        from kernels_numba.launch import vocabulary_of
        from kernels_numba.tile.cpu_vocabularies import tile
        from kernels_numba.tile.machine import POISON, Buffer, Machine

        specs = self.specs(pregate=pregate is not None, postgate=postgate is not None)
        channels, n, length = self.shape[1], self.plan.n, self.shape[2]
        given = [_bits(x) for x in (u, pregate, dy, postgate)]
        room = 2 * n * self.group_channels * self.group_pairs
        poison = np.float32(np.nan) if self.products == "fp32" else POISON
        z, w = (Buffer(name, _aligned(np.full(room, poison, poison.dtype))) for name in "zw")
        host = tables(self.split, self.products, self.mode, length, self.taps, self.kept)
        arrays = {name: x.reshape(-1) for name, x in host.items()}
        sizes = {"sums": self.group_channels * self.shares * 2 * n, "points": self.group_channels * n}
        totals = gradient_jobs.total_jobs(channels, self.taps) if self.shared else ()
        sizes |= {name: channels * self.taps for job in totals for name in job.pointers}
        sizes["dk"] = channels * self.taps
        arrays |= {name: _aligned(np.full(size, np.nan, np.float32)) for name, size in sizes.items()}
        machine, after = Machine(), Machine()

        def start(
            on: Machine, family: Any, spec: Any, grid: int, buffers: list[Any], scalars: tuple[Any, ...]
        ) -> None:
            kernel = family.build(tile(on, spec.dtype, vocabulary_of(family, spec)), spec)
            on.run(kernel, grid, spec.warps, spec.shared_bytes // 4, [*buffers, *scalars])

        def constants(family: Any, spec: Any) -> list[Buffer]:
            found = family.operands(*family.operand_key(spec))
            names = ("constants", "tables", "roots")
            return [Buffer(name, words) for name, words in zip(names, found, strict=False)]

        for parts in self.parts():
            for part in parts:
                at = (2 * part.pair * channels + part.channel) * length
                for which, to in enumerate((z, w)):
                    spec = specs[which]
                    buffers = [
                        Buffer(name, x if x.size == 0 else x[at:])
                        for name, x in zip(("u", "gate"), given[2 * which : 2 * which + 2], strict=True)
                    ]
                    grid = outer_grid(spec, part.channels, part.pairs)
                    buffers += [*constants(outer_module(spec), spec), to]
                    start(machine, outer_module(spec), spec, grid, buffers, self.outer_scalars(part))
                grid, scalars = self.sum_scalars(part, specs[2], workers)
                none = Buffer("none", np.empty(0, poison.dtype))
                sums = Buffer("sums", arrays["sums"][part.share * 2 * n :])
                buffers = [z, none, w, none, *constants(self.family, specs[2]), sums]
                start(machine, self.family, specs[2], grid, buffers, scalars)
            first, rows = parts[0].channel, parts[0].channels
            target = "rows0" if totals else "dk"
            now = arrays | {"dk": arrays[target][first * self.taps :]}
            for job in self.back(rows, host["taps"].shape[0], specs[2]):
                buffers = [Buffer(name, now[name]) for name in job.pointers]
                start(after, filter_gradient.family(job.spec), job.spec, job.grid, buffers, job.scalars)
        for job in totals:
            buffers = [Buffer(name, arrays[name]) for name in job.pointers]
            start(after, filter_gradient.family(job.spec), job.spec, job.grid, buffers, job.scalars)
        found = arrays["dk"]
        return (
            found[: self.taps] if self.shared else found.reshape(channels, self.taps),
            machine.counters,
            after.counters,
        )


class _Launches:
    """All launches of one gradient on one GPU, for arrays of one alignment and gates; made at first use."""

    def __init__(
        self, gradient: LongFilterGradient, index: int, low_bits: int, pregate: bool, postgate: bool
    ) -> None:
        from kernels_numba import launch
        from kernels_numba.filter_sums import device_operands

        where = device(index)
        self.gradient, self.index = gradient, index
        self.specs = gradient.specs(low_bits, pregate=pregate, postgate=postgate, where=where)
        outer = [outer_family(spec) for spec in self.specs[:2]]
        families = [*map(outer_module, self.specs[:2]), gradient.family]
        self.loaded = [
            launch.load(family, spec, index)
            for family, spec in zip((*outer, gradient.family), self.specs, strict=True)
        ]
        self.constants = [  # the launches know only their addresses
            device_operands(family, family.operand_key(spec), index)
            for family, spec in zip(families, self.specs, strict=True)
        ]
        self.workers = (
            (where.sm_count or 1) * self.loaded[2].blocks_per_sm * gradient.family.workers(self.specs[2])
        )
        how = gradient.products, gradient.mode, gradient.shape[2], gradient.taps, gradient.kept
        self.tables = _device_tables(gradient.split, *how, index)
        self._made: dict[tuple[int, ...], Any] = {}
        totals = gradient_jobs.total_jobs(gradient.shape[1], gradient.taps) if gradient.shared else ()
        self.rows = [job.scalars[-1] for job in totals]
        self.totals = self._jobs(totals)

    def _jobs(self, todo: tuple[gradient_jobs.Job, ...]) -> list[tuple[tuple[str, ...], Launch]]:
        from kernels_numba import launch

        made = []
        for job in todo:
            kernel = launch.load(filter_gradient.family(job.spec), job.spec, self.index)
            slots = tuple(f"{i}" for i in range(len(job.pointers)))
            made.append((job.pointers, kernel.launcher(job.grid, (*slots, *job.scalars), slots)))
        return made

    def _of_part(self, part: Part) -> tuple[Launch, Launch, Launch]:
        """Both outer stages and the sums; made once for each size."""
        gradient = self.gradient
        scalars = gradient.outer_scalars(part)
        size = part.channels, part.pairs, scalars[1]
        if size not in self._made:
            found = []
            for loaded, spec, constants in zip(
                self.loaded[:2], self.specs[:2], self.constants[:2], strict=True
            ):
                arguments = ("u", "gate", *(c.pointer for c in constants), "z", *scalars)
                grid = outer_grid(spec, part.channels, part.pairs)
                found.append(loaded.launcher(grid, arguments, ("u", "gate", "z")))
            grid, integers = gradient.sum_scalars(part, self.specs[2], self.workers)
            arguments = ("z", 0, "w", 0, *(c.pointer for c in self.constants[2]), "sums", *integers)
            found.append(self.loaded[2].launcher(grid, arguments, ("z", "w", "sums")))
            self._made[size] = tuple(found)
        made: tuple[Launch, Launch, Launch] = self._made[size]
        return made

    def _back(self, channels: int) -> list[tuple[tuple[str, ...], Launch]]:
        """The way back to taps of so many channels."""
        if (channels,) not in self._made:
            places = self.tables["taps"].shape[0]
            self._made[channels,] = self._jobs(self.gradient.back(channels, places, self.specs[2]))
        made: list[tuple[tuple[str, ...], Launch]] = self._made[channels,]
        return made

    def __call__(self, adapter: Adapter, given: list[int]) -> Any:
        """Launch everything; the gradient."""
        gradient, index, stream = self.gradient, self.index, adapter.stream(self.index)
        (_, channels, length), taps, n = gradient.shape, gradient.taps, gradient.plan.n
        item, words = (ELEMENT_TYPES[x].itemsize for x in (gradient.dtype, gradient.products))
        words //= 2
        group = gradient.group_channels

        def empty(*shape: int) -> Any:
            return adapter.empty(index, shape, np.float32)

        arrays = {
            "z": empty(gradient.group_pairs, group, n * words),  # complex
            "w": empty(gradient.group_pairs, group, n * words),
            "sums": empty(group, gradient.shares, 2 * n),
            "points": empty(group, n),
        }
        dk = adapter.empty(index, (taps,) if gradient.shared else (channels, taps), np.float32)
        partial = {f"rows{i}": empty(rows, taps) for i, rows in enumerate(self.rows)}
        at = {name: adapter_of(x, name).pointer(x) for name, x in (arrays | partial | {"dk": dk}).items()}
        at |= {name: buffer.pointer for name, buffer in self.tables.items()}
        target = at["rows0"] if partial else at["dk"]
        for parts in gradient.parts():
            for part in parts:
                of_u, of_dy, add_up = self._of_part(part)
                offset = item * (2 * part.pair * channels + part.channel) * length
                u, pregate, dy, postgate = (x + offset if x else 0 for x in given)
                of_u(stream, u, pregate, at["z"])
                of_dy(stream, dy, postgate, at["w"])
                add_up(stream, at["z"], at["w"], at["sums"] + 8 * n * part.share)
            now = at | {"dk": target + 4 * taps * parts[0].channel}
            for names, start in self._back(parts[0].channels):
                start(stream, *(now[name] for name in names))
        for names, start in self.totals:
            start(stream, *(at[name] for name in names))
        return dk


def tables(split: Split, dtype: str, mode: str, length: int, taps: int, kept: bytes) -> dict[str, NDArray]:
    """What the way back to taps reads beside sums, in which a channel's rows lie one after the other."""
    order, _ = split.family.sums_layout(split.family.make_spec(split.inner, dtype, guarded=False))
    bins = (np.arange(split.rows)[:, None] + split.rows * order[None, :]).reshape(-1)
    places = places_of_taps(mode, length, taps, split.plan.n)
    return gradient_jobs.tables(bins, taps, *places, way=gradient_jobs.PASSES, kept=kept)


@lru_cache(maxsize=4)  # they are of the length's size
def _device_tables(
    split: Split, dtype: str, mode: str, length: int, taps: int, kept: bytes, index: int
) -> dict[str, Any]:
    from kernels_numba.launch import DeviceBuffer

    host = tables(split, dtype, mode, length, taps, kept)
    return {name: DeviceBuffer.of(x, index) for name, x in host.items()}
