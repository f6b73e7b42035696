"""The gradient of an FFT convolution in its filter: sums of spectra over the batch, and their way back to taps.

One launch sums conj(Z) W of all pairs (`gradient_warp`, `gradient_block`, `gradient_float`); a few more, in fp32, bring
the sums back to taps (`filter_gradient`). Nothing is kept of the forward pass but its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import filter_gradient, gradient_families, gradient_jobs
from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.device import LARGEST_SHARED_BYTES, Device, device
from kernels_numba.families import HOPPER
from kernels_numba.plan_choice import points_needed
from kernels_numba.spectrum import places_of_taps
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import ELEMENT_TYPES, STORAGE_TYPES
from monarch import Plan

CPU_WORKERS = 8
WORKSPACE_BYTES = 128 * 2**20
"""Of the points of channels that go back to taps together. Fewer would not stay in L2: their sums do not fit there."""

Launch = Callable[..., None]


class FilterGradient:
    """The gradient in a filter [H, K], or [K] if ``shared``, for one batch size and length.

    Args:
        shape: (B, H, L) of the sequences.
        taps: K.
        mode: as in `fftconv`.
        dtype: of the sequences.
        products: of the products, as in `fftconv`.
        plan: of the transforms; by default the one measured fastest.
        shared: one filter for all channels.
        kept: [N], by frequency, where the filter's spectrum is not zero: the transform has N points then.

    Raises:
        TypeError: no kernel computes in this type.
        ValueError: no transform is long enough.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        taps: int,
        mode: str,
        dtype: str,
        products: str | None = None,
        plan: Plan | None = None,
        shared: bool = False,
        kept: NDArray[np.bool_] | None = None,
    ) -> None:
        self.shape, self.taps, self.mode, self.dtype = shape, taps, mode, dtype
        self.kept = b"" if kept is None else kept.tobytes()
        self.products, self.shared = products or dtype, shared
        if self.products not in STORAGE_TYPES:
            raise TypeError(
                f"u: gradients in the filter are for fp16, bf16 and fp32 sequences, these are {dtype}; use "
                "reference.fftconv_gradients"
            )
        length = shape[2]
        limit = device().shared_bytes_per_block or LARGEST_SHARED_BYTES
        need = points_needed(mode, length, taps)
        self.plan = gradient_families.choose(
            length, need, plan, limit, self.products, circular=mode == "circular", exact=len(self.kept)
        )
        family = gradient_families.family_of(self.plan, self.products)
        assert family is not None
        self.family = family
        self.turned = self.plan.packing == "right-angle"
        self.pairs = -(-shape[0] // 2)
        self._launches: dict[tuple, Launches] = {}
        self.whole_launches: dict[tuple, Launches] = {}
        """Of a `backward_pass.BackwardPass`, which is made anew for every filter."""

    @property
    def _guarded(self) -> bool:
        """Whether sequences end before their transform does, or a pair has one sequence only."""
        return self.shape[2] < self.plan.n or self.shape[0] % 2 != 0

    def halves(self, low_bits: int) -> int:
        """Elements of an access, for arrays whose addresses end in ``low_bits``."""
        length, nbytes = self.shape[2], ELEMENT_TYPES[self.dtype].itemsize
        return next(v for v in (8, 4, 2, 1) if length % v == 0 and low_bits % (nbytes * v) == 0)

    def spec(
        self, low_bits: int = 0, *, pregate: bool = False, postgate: bool = False, where: Device | None = None
    ) -> Any:
        """The kernel that sums, on a device, for arrays whose addresses end in ``low_bits``."""
        length = self.shape[2]
        limit = where.shared_bytes_per_block if where else None
        spec = self.family.make_spec(
            self.plan,
            self.products,
            halves=self.halves(low_bits),
            guarded=self._guarded,
            pregate=pregate,
            postgate=postgate,
            **({"shared_limit": limit} if limit else {}),
        )
        if where and overlaps(where) and hasattr(self.family, "overlapping"):
            spec = self.family.overlapping(spec)
        whole_rows = self.products != "fp32" and spec.rows_in * self.plan.strides[0] == length
        if whole_rows and self.shape[0] % 2 == 0:  # all that is read is signal
            spec = replace(spec, guarded=False)
        return spec if self.products == self.dtype else replace(spec, sequences="fp32")

    def shares(self, workers: int, parts: int) -> tuple[int, int]:
        """(shares of a channel's pairs, pairs a share) for so many workers: the fewest turns for the busiest.

        A turn is a pair; writing and reading a share's sums counts as one more. In fp32 without guards all shares are
        of one size: there transforms that share a block's barriers take as many turns each, and nothing would mask the
        last ones of a smaller share.
        """
        best = None
        even = self.products == "fp32" and not self._guarded
        for per_share in range(self.pairs, 0, -1):
            if even and self.pairs % per_share:
                continue
            count = -(-self.pairs // per_share)
            turns = -(-self.shape[1] * parts * count // workers) * (per_share + 1)
            if best is None or turns < best[0]:
                best = turns, count, per_share
        assert best is not None
        return best[1], best[2]

    # ---- on a GPU ------------------------------------------------------------------------------------------
    def launch(self, u: Any, dy: Any, pregate: Any, postgate: Any, *, adapter: Adapter, index: int) -> Any:
        """The gradient, an array of the library of ``u``; all are on GPU ``index`` and have been checked."""
        given = [0 if x is None else adapter_of(x, "u").pointer(x) for x in (u, pregate, dy, postgate)]
        low_bits = (given[0] | given[1] | given[2] | given[3]) & 15
        key = (index, low_bits, pregate is not None, postgate is not None)
        made = self._launches.get(key)
        if made is None:
            made = self._launches[key] = self._make(*key)
        return made.run(adapter, index, given)

    def _make(self, index: int, low_bits: int, pregate: bool, postgate: bool) -> Launches:
        from kernels_numba import launch

        where = device(index)
        spec = self.spec(low_bits, pregate=pregate, postgate=postgate, where=where)
        loaded = launch.load(self.family, spec, index)
        per_block = self.family.workers(spec)
        blocks = (where.sm_count or 1) * loaded.blocks_per_sm
        shares, per_share = self.shares(blocks * per_block, spec.parts)
        units = self.shape[1] * spec.parts * shares
        grid = min(blocks, -(-units // per_block))
        constants = device_operands(self.family, self.family.operand_key(spec), index)
        names = ("u", "pregate", "dy", "postgate", "sums")
        scalars = (units, grid * per_block, shares, per_share, self.pairs, *self.shape)
        arguments = (*names[:4], *(c.pointer for c in constants), "sums", *scalars)
        run = loaded.launcher(grid, arguments, names, overlap=getattr(spec, "overlap", False))
        way = gradient_jobs.way_back(self.plan.n, where.shared_bytes_per_block or 0, turned=self.turned)
        return Launches(self, run, spec, shares, way, index, constants)

    # ---- on the CPU body -----------------------------------------------------------------------------------
    def run_cpu(
        self,
        u: NDArray,
        dy: NDArray,
        pregate: NDArray | None = None,
        postgate: NDArray | None = None,
        *,
        workers: int = CPU_WORKERS,
        way: str | None = None,
    ) -> tuple[NDArray[np.float32], Counters, Counters]:
        """Run the kernels on the CPU body: the gradient, and what was counted, of the sums and of the rest.

        ``workers`` is how many warps (order 2) or blocks (order 3) share the work; ``way`` which way back to
        taps is gone (`gradient_jobs`), by default that of a GPU with 227 KiB of shared memory a block.
        """
        from kernels_numba.host_arrays import _aligned, _bits
        from kernels_numba.launch import vocabulary_of
        from kernels_numba.tile.cpu_vocabularies import tile
        from kernels_numba.tile.machine import Buffer, Machine

        spec = self.spec(pregate=pregate is not None, postgate=postgate is not None)
        per_block = self.family.workers(spec)
        shares, per_share = self.shares(workers, spec.parts)
        units = self.shape[1] * spec.parts * shares
        grid = min(-(-workers // per_block), -(-units // per_block))
        sums = _aligned(np.full(self.shape[1] * shares * 2 * self.plan.points, np.nan, np.float32))
        machine = Machine()
        kernel = self.family.build(tile(machine, spec.dtype, vocabulary_of(self.family, spec)), spec)
        constants = self.family.operands(*self.family.operand_key(spec))
        buffers = [
            Buffer("u", _bits(u)),
            Buffer("pregate", _bits(pregate)),
            Buffer("dy", _bits(dy)),
            Buffer("postgate", _bits(postgate)),
            *(
                Buffer(name, words)
                for name, words in zip(("constants", "tables", "roots"), constants, strict=False)
            ),
            Buffer("sums", sums),
        ]
        scalars = (units, grid * per_block, shares, per_share, self.pairs, *self.shape)
        counters = machine.run(kernel, grid, spec.warps, spec.shared_bytes // 4, [*buffers, *scalars])
        found, after = self.back_cpu(spec, shares, sums, way=way)
        return found, counters, after

    def back_cpu(
        self, spec: Any, shares: int, sums: NDArray[np.float32], *, way: str | None = None
    ) -> tuple[NDArray[np.float32], Counters]:
        """From sums to taps on the CPU body: the gradient, and what was counted."""
        from kernels_numba.host_arrays import _aligned
        from kernels_numba.tile.cpu_vocabularies import tile
        from kernels_numba.tile.machine import Buffer, Machine

        channels, n = self.shape[1], self.plan.n
        way = way or gradient_jobs.way_back(n, LARGEST_SHARED_BYTES, turned=self.turned)
        host = tables(self.family, spec, self.mode, self.shape[2], self.taps, way, self.kept)
        arrays = {name: x.reshape(-1) for name, x in host.items()} | {"sums": sums}
        sizes = {"points": channels * n, "dk": channels * self.taps}
        totals = gradient_jobs.total_jobs(channels, self.taps) if self.shared else ()
        sizes |= {name: channels * self.taps for job in totals for name in job.pointers}
        arrays |= {name: _aligned(np.full(size, np.nan, np.float32)) for name, size in sizes.items()}
        after = Machine()
        _, scale = self.family.sums_layout(spec)
        places, zeros = host["taps"].shape[0], bool(self.kept)
        how: dict[str, Any] = {"way": way, "zeros": zeros, "turned": self.turned}
        todo = gradient_jobs.jobs(n, channels, shares, self.taps, places, scale, **how)
        for job in (*todo, *totals):
            names = ["rows0" if totals and job in todo and name == "dk" else name for name in job.pointers]
            kernel = filter_gradient.family(job.spec).build(tile(after, job.spec.dtype, "float"), job.spec)
            after.run(
                kernel,
                job.grid,
                job.spec.warps,
                job.spec.shared_bytes // 4,
                [*(Buffer(name, arrays[name]) for name in names), *job.scalars],
            )
        found = arrays["dk"][: self.taps] if self.shared else arrays["dk"].reshape(channels, self.taps)
        return found, after.counters


def overlaps(where: Device) -> bool:
    """Whether a launch can begin there while the one before it in the stream still runs."""
    return where.capability is not None and where.capability >= HOPPER


class Launches:
    """All launches of one gradient on one GPU, for arrays of one alignment and gates; made at first use."""

    def __init__(
        self,
        gradient: FilterGradient,
        sums: Launch,
        spec: Any,
        shares: int,
        way: str,
        index: int,
        constants: tuple[Any, ...],
    ) -> None:
        from kernels_numba import launch

        channels, n, taps = gradient.shape[1], gradient.plan.n, gradient.taps
        self.sums, self.shares, self.gradient = sums, shares, gradient
        self.keep = constants  # the launch knows only their addresses
        self.tables = _device_tables(
            gradient.family, spec, gradient.mode, gradient.shape[2], taps, way, gradient.kept, index
        )
        _, scale = gradient.family.sums_layout(spec)
        # Channels are brought back some at a time, so that their points fit into the workspace.
        self.count = (
            channels if way != gradient_jobs.PASSES else max(1, min(channels, WORKSPACE_BYTES // (4 * n)))
        )
        self.points = self.count * n if way == gradient_jobs.PASSES else 0

        def launches(todo: tuple[gradient_jobs.Job, ...]) -> list[tuple[tuple[str, ...], Launch]]:
            made = []
            for job in todo:
                kernel = launch.load(filter_gradient.family(job.spec), job.spec, index)
                slots = tuple(f"{i}" for i in range(len(job.pointers)))
                early = getattr(job.spec, "overlap", False)
                run = kernel.launcher(job.grid, (*slots, *job.scalars), slots, overlap=early)
                made.append((job.pointers, run))
            return made

        places = self.tables["taps"].shape[0]
        by_rows: dict[int, list] = {}
        self.chunks = []
        for first in range(0, channels, self.count):
            rows = min(self.count, channels - first)
            if rows not in by_rows:
                how = n, rows, shares, taps, places, scale
                choices = {"way": way, "zeros": bool(gradient.kept), "overlap": overlaps(device(index))}
                choices["turned"] = gradient.turned
                by_rows[rows] = launches(gradient_jobs.jobs(*how, **choices))
            self.chunks.append((first, by_rows[rows]))
        totals = gradient_jobs.total_jobs(channels, taps) if gradient.shared else ()
        self.totals = launches(totals)
        self.rows = [job.scalars[-1] for job in totals]

    def run(self, adapter: Adapter, index: int, given: list[int]) -> Any:
        """Launch everything; the gradient."""
        gradient, stream, empty = self.gradient, adapter.stream(index), adapter.empty
        channels, taps, bins = gradient.shape[1], gradient.taps, gradient.plan.points
        sums = empty(index, (channels, self.shares, 2 * bins), np.float32)
        points = empty(index, (max(self.points, 1),), np.float32)
        dk = empty(index, (taps,) if gradient.shared else (channels, taps), np.float32)
        partial = [empty(index, (rows, taps), np.float32) for rows in self.rows]
        arrays = {"sums": sums, "points": points, "dk": dk} | {f"rows{i}": x for i, x in enumerate(partial)}
        at = {name: adapter_of(x, name).pointer(x) for name, x in arrays.items()}
        at |= {name: buffer.pointer for name, buffer in self.tables.items()}
        self.sums(stream, *given, at["sums"])
        advance = {"sums": 8 * bins * self.shares, "dk": 4 * taps}
        first_target = at["rows0"] if partial else at["dk"]
        for first, launches in self.chunks:
            now = at | {"dk": first_target}
            for names, start in launches:
                start(stream, *(now[name] + first * advance.get(name, 0) for name in names))
        for names, start in self.totals:
            start(stream, *(at[name] for name in names))
        return dk


def tables(
    family: Any, spec: Any, mode: str, length: int, taps: int, way: str, kept: bytes
) -> dict[str, NDArray]:
    """What the way back to taps reads beside sums."""
    order, _ = family.sums_layout(spec)
    places = places_of_taps(mode, length, taps, spec.n)
    return gradient_jobs.tables(order, taps, *places, way=way, kept=kept, turned=order.size < spec.n)


@lru_cache(maxsize=32)
def _device_tables(
    family: Any, spec: Any, mode: str, length: int, taps: int, way: str, kept: bytes, index: int
) -> dict[str, Any]:
    from kernels_numba.launch import DeviceBuffer

    host = tables(family, spec, mode, length, taps, way, kept)
    return {name: DeviceBuffer.of(x, index) for name, x in host.items()}


@lru_cache(maxsize=32)
def device_operands(family: Any, key: tuple, index: int) -> tuple[Any, ...]:
    """A kernel's constants on a GPU, made once."""
    from kernels_numba.launch import DeviceBuffer

    return tuple(DeviceBuffer.of(words, index) for words in family.operands(*key))
