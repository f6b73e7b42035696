"""The gradient of an FFT convolution in its filter: sums of spectra over the batch, and their way back to taps.

One launch sums conj(Z) W of all pairs (`gradient_warp`, `gradient_block`); a few more, in fp32, bring the sums back to
taps (`filter_gradient`). Nothing is kept of the forward pass but its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels_numba import filter_gradient, filter_transform, gradient_families
from kernels_numba.arrays import Adapter, adapter_of
from kernels_numba.device import LARGEST_SHARED_BYTES, Device, device
from kernels_numba.spectrum import places_of_taps, points_needed
from kernels_numba.tile.counters import Counters
from kernels_numba.tile.layout import ELEMENT_TYPES, HALF_TYPES
from monarch import Plan

CPU_WORKERS = 8

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
    ) -> None:
        self.shape, self.taps, self.mode, self.dtype = shape, taps, mode, dtype
        self.products, self.shared = products or dtype, shared
        if self.products not in HALF_TYPES:
            raise TypeError(
                f"k: gradients in the filter are computed with fp16 and bf16 products, these are {self.products}; "
                'leave "k" out of needs, convert the sequences, or use reference.fftconv_gradients'
            )
        length = shape[2]
        limit = device().shared_bytes_per_block or LARGEST_SHARED_BYTES
        need = points_needed(mode, length, taps)
        self.plan = gradient_families.choose(length, need, plan, limit, circular=mode == "circular")
        family = gradient_families.family_of(self.plan)
        assert family is not None
        self.family = family
        self.pairs = -(-shape[0] // 2)
        self._launches: dict[tuple, tuple] = {}

    def spec(
        self, low_bits: int = 0, *, pregate: bool = False, postgate: bool = False, where: Device | None = None
    ) -> Any:
        """The kernel that sums, on a device, for arrays whose addresses end in ``low_bits``."""
        batch, _, length = self.shape
        nbytes = ELEMENT_TYPES[self.dtype].itemsize
        halves = next(v for v in (8, 4, 2, 1) if length % v == 0 and low_bits % (nbytes * v) == 0)
        limit = where.shared_bytes_per_block if where else None
        spec = self.family.make_spec(
            self.plan,
            self.products,
            halves=halves,
            guarded=length < self.plan.n or batch % 2 != 0,
            pregate=pregate,
            postgate=postgate,
            **({"shared_limit": limit} if limit else {}),
        )
        return spec if self.products == self.dtype else replace(spec, sequences="fp32")

    def shares(self, workers: int, parts: int) -> tuple[int, int]:
        """(shares of a channel's pairs, pairs a share) for so many workers: the fewest turns for the busiest.

        A turn is a pair; writing and reading a share's sums counts as one more.
        """
        best = None
        for per_share in range(self.pairs, 0, -1):
            count = -(-self.pairs // per_share)
            turns = -(-self.shape[1] * parts * count // workers) * (per_share + 1)
            if best is None or turns < best[0]:
                best = turns, count, per_share
        assert best is not None
        return best[1], best[2]

    def rows(self, shares: int) -> tuple[int, int]:
        """(filters, sums that each filter's gradient is the sum of)."""
        channels = self.shape[1]
        return (1, channels * shares) if self.shared else (channels, shares)

    # ---- on a GPU ------------------------------------------------------------------------------------------
    def launch(self, u: Any, dy: Any, pregate: Any, postgate: Any, *, adapter: Adapter, index: int) -> Any:
        """The gradient, an array of the library of ``u``; all are on GPU ``index`` and have been checked."""
        given = [0 if x is None else adapter_of(x, "u").pointer(x) for x in (u, pregate, dy, postgate)]
        low_bits = (given[0] | given[1] | given[2] | given[3]) & 15
        key = (index, low_bits, pregate is not None, postgate is not None)
        made = self._launches.get(key)
        if made is None:
            made = self._launches[key] = self._make(*key)
        run, shares, count, chunks, constants = made
        rows, parts = self.rows(shares)
        n, stream = self.plan.n, adapter.stream(index)
        sums = adapter.empty(index, (rows, parts, 2 * n), np.float32)
        points = adapter.empty(index, (count, 2 * n), np.float32)
        dk = adapter.empty(index, (self.taps,) if self.shared else (rows, self.taps), np.float32)
        at = {
            name: adapter_of(x, name).pointer(x)
            for name, x in (("sums", sums), ("points", points), ("dk", dk))
        }
        run(stream, *given, at["sums"])
        at |= {name: buffer.pointer for name, buffer in constants.items()}
        advance = {"sums": 8 * n * parts, "dk": 4 * self.taps}
        first = 0
        for length, launches in chunks:
            for names, start in launches:
                start(stream, *(at[name] + first * advance.get(name, 0) for name in names))
            first += length
        return dk

    def _make(self, index: int, low_bits: int, pregate: bool, postgate: bool) -> tuple:
        """Launches, made at first use: of the sums; shares, rows of the workspace, launches by chunk, and tables."""
        from kernels_numba import launch

        where = device(index)
        spec = self.spec(low_bits, pregate=pregate, postgate=postgate, where=where)
        loaded = launch.load(self.family, spec, index)
        per_block = self.family.workers(spec)
        blocks = (where.sm_count or 1) * loaded.blocks_per_sm
        shares, per_share = self.shares(blocks * per_block, spec.parts)
        units = self.shape[1] * spec.parts * shares
        grid = min(blocks, -(-units // per_block))
        constants = _device_operands(self.family, self.family.operand_key(spec), index)
        names = ("u", "pregate", "dy", "postgate", "sums")
        scalars = (units, grid * per_block, shares, per_share, self.pairs, *self.shape)
        run = loaded.launcher(grid, (*names[:4], *(c.pointer for c in constants), "sums", *scalars), names)
        rows, parts = self.rows(shares)
        count = max(1, min(rows, filter_transform.WORKSPACE_BYTES // (8 * self.plan.n)))
        tables = _device_tables(self.plan.n, self.family, spec, self.mode, self.shape[2], self.taps, index)
        chunks: list[tuple[int, list[tuple[tuple[str, ...], Launch]]]] = []
        for first in range(0, rows, count):
            length = min(count, rows - first)
            if chunks and chunks[-1][0] == length:
                chunks.append(chunks[-1])
                continue
            launches = []
            for job in self.jobs(spec, length, parts, tables["taps"].shape[0]):
                kernel = launch.load(filter_gradient.family(job.spec), job.spec, index)
                slots = tuple(f"{i}" for i in range(len(job.pointers)))
                launches.append((job.pointers, kernel.launcher(job.grid, (*slots, *job.scalars), slots)))
            chunks.append((length, launches))
        return run, shares, count, chunks, tables | {f"constants{i}": c for i, c in enumerate(constants)}

    def jobs(self, spec: Any, rows: int, shares: int, places: int) -> tuple[filter_gradient.Job, ...]:
        """The launches that bring sums of ``rows`` filters back to taps."""
        _, factor = self.family.sums_layout(spec)
        return filter_gradient.jobs(self.plan.n, rows, shares, self.taps, places, factor)

    # ---- on the CPU body -----------------------------------------------------------------------------------
    def run_cpu(
        self,
        u: NDArray,
        dy: NDArray,
        pregate: NDArray | None = None,
        postgate: NDArray | None = None,
        *,
        workers: int = CPU_WORKERS,
    ) -> tuple[NDArray[np.float32], Counters, Counters]:
        """Run the kernels on the CPU body: the gradient, and what was counted, of the sums and of the rest.

        ``workers`` is how many warps (order 2) or blocks (order 3) share the work.
        """
        from kernels_numba.fftconv import _aligned, _bits
        from kernels_numba.launch import vocabulary_of
        from kernels_numba.tile.cpu_vocabularies import tile
        from kernels_numba.tile.machine import Buffer, Machine

        spec = self.spec(pregate=pregate is not None, postgate=postgate is not None)
        per_block = self.family.workers(spec)
        shares, per_share = self.shares(workers, spec.parts)
        units = self.shape[1] * spec.parts * shares
        grid = min(-(-workers // per_block), -(-units // per_block))
        rows, parts = self.rows(shares)
        n = self.plan.n
        host = tables(n, self.family, spec, self.mode, self.shape[2], self.taps)
        sums, points, dk = (
            _aligned(np.full(size, np.nan, np.float32))
            for size in (rows * parts * 2 * n, rows * 2 * n, rows * self.taps)
        )
        machine = Machine()
        kernel = self.family.build(tile(machine, spec.dtype, vocabulary_of(self.family, spec)), spec)
        constants = self.family.operands(*self.family.operand_key(spec))
        buffers = [
            Buffer("u", _bits(u)),
            Buffer("pregate", _bits(pregate)),
            Buffer("dy", _bits(dy)),
            Buffer("postgate", _bits(postgate)),
            *(Buffer(name, words) for name, words in zip(("constants", "tables"), constants, strict=False)),
            Buffer("sums", sums),
        ]
        scalars = (units, grid * per_block, shares, per_share, self.pairs, *self.shape)
        counters = machine.run(kernel, grid, spec.warps, spec.shared_bytes // 4, [*buffers, *scalars])
        arrays = {"sums": sums, "points": points, "dk": dk} | {
            name: x.reshape(-1) for name, x in host.items()
        }
        after = Machine()
        for job in self.jobs(spec, rows, parts, host["taps"].shape[0]):
            vocabulary = tile(after, job.spec.dtype, "float")
            kernel = filter_gradient.family(job.spec).build(vocabulary, job.spec)
            after.run(
                kernel,
                job.grid,
                job.spec.warps,
                job.spec.shared_bytes // 4,
                [*(Buffer(name, arrays[name]) for name in job.pointers), *job.scalars],
            )
        return dk.reshape((self.taps,) if self.shared else (rows, self.taps)), counters, after.counters


def tables(n: int, family: Any, spec: Any, mode: str, length: int, taps: int) -> dict[str, NDArray]:
    """What the way back to taps reads: twiddles, places of bins and of taps."""
    order, _ = family.sums_layout(spec)
    return {
        "table": filter_transform.tables(n, "fp16")[0],
        "bins": filter_gradient.bin_places(order),
        "taps": filter_gradient.tap_places(n, taps, *places_of_taps(mode, length, taps, n)),
    }


@lru_cache(maxsize=32)
def _device_tables(
    n: int, family: Any, spec: Any, mode: str, length: int, taps: int, index: int
) -> dict[str, Any]:
    from kernels_numba.launch import DeviceBuffer

    return {
        name: DeviceBuffer.of(x, index) for name, x in tables(n, family, spec, mode, length, taps).items()
    }


@lru_cache(maxsize=32)
def _device_operands(family: Any, key: tuple, index: int) -> tuple[Any, ...]:
    from kernels_numba.launch import DeviceBuffer

    return tuple(DeviceBuffer.of(words, index) for words in family.operands(*key))
